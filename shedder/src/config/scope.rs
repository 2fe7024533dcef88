//! Whom a signal speaks for, as configuration and traces spell it: `host`, `port:8080`, `cgroup:system.slice/app.service`.

use std::path::{Component, Path, PathBuf};

use super::limits;
use super::model::FileScope;
use super::suggest::{show, unknown};

/// Reads a scope.
///
/// # Errors
///
/// A sentence that says what is wrong and what to write instead.
pub(crate) fn read(text: &str) -> Result<FileScope, String> {
    if text == "host" {
        return Ok(FileScope::Host);
    }
    match text.split_once(':') {
        Some(("port", number)) => port(number).map(FileScope::Port),
        Some(("cgroup", path)) => cgroup(path).map(FileScope::Cgroup),
        Some((kind, _)) => Err(unknown("scope", kind, &["host", "port", "cgroup"])),
        None => Err(unknown("scope", text, &["host", "port:N", "cgroup:PATH"])),
    }
}

fn port(text: &str) -> Result<u16, String> {
    match text.parse::<i64>() {
        Ok(number) if limits::is_plain_number(text) => limits::port(number),
        _ => Err(format!("`{}` is no port: write one such as \"port:8080\"", show(text))),
    }
}

/// A path below the cgroup mount; a slash in front is no difference.
fn cgroup(text: &str) -> Result<PathBuf, String> {
    let path = Path::new(text.trim_start_matches('/'));
    let below = path.components().all(|part| matches!(part, Component::Normal(_)));
    if path.as_os_str().is_empty() || !below || text.contains('\0') {
        return Err(format!(
            "`{}` is no path below the cgroup mount: write one such as \"cgroup:system.slice/app.service\"",
            show(text)
        ));
    }
    Ok(path.to_owned())
}
