//! Names and counts as people read them.

use std::collections::BTreeMap;

/// `host`, `port 8080`, `cgroup /kube/pod`
pub(super) fn scope(scope: &str) -> String {
    scope.replacen(':', " ", 1)
}

/// `rate 10, queue_wait 7`, in the order of `names` and without zeros; empty where all are zero.
pub(super) fn counts<'a>(names: impl IntoIterator<Item = &'a str>, totals: &BTreeMap<String, u64>) -> String {
    let shown: Vec<String> = names
        .into_iter()
        .filter_map(|name| match totals.get(name) {
            None | Some(0) => None,
            Some(total) => Some(format!("{name} {total}")),
        })
        .collect();
    shown.join(", ")
}
