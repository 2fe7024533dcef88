//! Who is known by source: guarded sources and classes, merged so that the longest prefix alone says all.

use ipnet::IpNet;
use shedder_common::limits::SourceRule;

use crate::config::model::Config;
use crate::datapath::SourceEntry;

/// The entries of the source table. A lookup gives the longest matching prefix only, so each entry carries what
/// shorter ones say too.
#[must_use]
pub(super) fn source_table(config: &Config) -> Vec<SourceEntry> {
    let mut cidrs: Vec<IpNet> = config
        .sources
        .iter()
        .map(|source| source.cidr)
        .chain(config.guard.sources.iter().copied())
        .map(|cidr| cidr.trunc())
        .collect();
    cidrs.sort_unstable();
    cidrs.dedup();
    let entry = |cidr: IpNet| SourceEntry {
        cidr,
        rule: SourceRule {
            class: config
                .sources
                .iter()
                .filter(|source| source.cidr.contains(&cidr))
                .max_by_key(|source| source.cidr.prefix_len())
                .map(|source| source.class),
            exempt: config.guard.sources.iter().any(|guarded| guarded.contains(&cidr)),
        },
    };
    cidrs.into_iter().map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::model::SourceClass;
    use shedder_common::class::Class;

    #[test]
    fn an_entry_carries_what_shorter_prefixes_say() {
        let mut config = Config::observe_default();
        let net = |text: &str| text.parse::<IpNet>().unwrap();
        config.sources = vec![
            SourceClass { cidr: net("10.0.0.0/8"), class: Class::Batch },
            SourceClass { cidr: net("10.1.0.0/16"), class: Class::Core },
        ];
        config.guard.sources = vec![net("10.1.2.0/24"), net("10.0.0.0/9"), net("fd00::/8")];
        let table = source_table(&config);
        let rule = |text: &str| table.iter().find(|entry| entry.cidr == net(text)).unwrap().rule;
        assert_eq!(rule("10.0.0.0/8"), SourceRule { class: Some(Class::Batch), exempt: false });
        assert_eq!(rule("10.0.0.0/9"), SourceRule { class: Some(Class::Batch), exempt: true });
        assert_eq!(rule("10.1.0.0/16"), SourceRule { class: Some(Class::Core), exempt: true });
        assert_eq!(rule("10.1.2.0/24"), SourceRule { class: Some(Class::Core), exempt: true });
        assert_eq!(rule("fd00::/8"), SourceRule { class: None, exempt: true });
        assert_eq!(table.len(), 5);
    }
}
