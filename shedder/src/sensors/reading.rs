//! What a sensor says: one number for one signal at one scope, or why there is none.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use crate::config::model::FileScope;
use crate::config::scope;

/// Whom a reading or a level is about. `host` sorts first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// The whole host.
    Host,
    /// A workload: a cgroup.
    Cgroup(CgroupPath),
    /// The listeners of one port.
    Port(u16),
}

impl Scope {
    /// The scope of a cgroup, however its path is written.
    #[must_use]
    pub fn cgroup(path: &Path) -> Self {
        Self::Cgroup(CgroupPath::new(path))
    }
}

/// A cgroup's path below the cgroup mount, with a leading slash. It is copied and compared for every reading of every
/// tick, so a copy shares the text and a comparison does not take the path apart.
#[derive(Clone, Debug)]
pub struct CgroupPath(Arc<Path>);

impl CgroupPath {
    /// However it is written.
    #[must_use]
    pub fn new(path: &Path) -> Self {
        let mut absolute = PathBuf::from("/");
        absolute.extend(path.components().filter(|part| matches!(part, Component::Normal(_))));
        Self(absolute.into())
    }

    /// As a path.
    #[must_use]
    pub fn as_path(&self) -> &Path {
        &self.0
    }

    fn bytes(&self) -> &[u8] {
        self.0.as_os_str().as_bytes()
    }
}

impl PartialEq for CgroupPath {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.bytes() == other.bytes()
    }
}

impl Eq for CgroupPath {}

impl PartialOrd for CgroupPath {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for CgroupPath {
    fn cmp(&self, other: &Self) -> Ordering {
        if Arc::ptr_eq(&self.0, &other.0) { Ordering::Equal } else { self.bytes().cmp(other.bytes()) }
    }
}

impl Hash for CgroupPath {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.bytes().hash(state);
    }
}

impl From<&FileScope> for Scope {
    fn from(scope: &FileScope) -> Self {
        match scope {
            FileScope::Host => Self::Host,
            FileScope::Port(port) => Self::Port(*port),
            FileScope::Cgroup(path) => Self::cgroup(path),
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.write_str("host"),
            Self::Cgroup(path) => write!(f, "cgroup:{}", path.as_path().display()),
            Self::Port(port) => write!(f, "port:{port}"),
        }
    }
}

/// Why a text names no scope, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ScopeError(String);

impl FromStr for Scope {
    type Err = ScopeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        scope::read(text).map(|scope| Self::from(&scope)).map_err(ScopeError)
    }
}

/// Why there is no number. The reason does not change while its cause stays, so that a change is worth a line.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
#[error("{reason}")]
pub struct Unavailable {
    /// What kind of reason it is.
    pub cause: Cause,
    /// One sentence: what is missing and, where known, what to do.
    pub reason: Cow<'static, str>,
}

/// What kind of reason there is for a number's absence. The last is the gravest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// There is none here: no limit is set, the kernel does not have it.
    Absent,
    /// It will come: the first window is not over, an owner is still looked for.
    NotYet,
    /// It should be there and could not be read.
    Failed,
}

impl Unavailable {
    /// It should be there and could not be read.
    #[must_use]
    pub fn new(reason: impl Into<Cow<'static, str>>) -> Self {
        Self { cause: Cause::Failed, reason: reason.into() }
    }

    /// There is none here, which is no failure.
    #[must_use]
    pub fn absent(reason: impl Into<Cow<'static, str>>) -> Self {
        Self { cause: Cause::Absent, reason: reason.into() }
    }

    /// It will come by itself.
    #[must_use]
    pub fn not_yet(reason: impl Into<Cow<'static, str>>) -> Self {
        Self { cause: Cause::NotYet, reason: reason.into() }
    }

    /// Whether a read has failed.
    #[must_use]
    pub fn is_failure(&self) -> bool {
        self.cause == Cause::Failed
    }
}

/// One signal at one scope, now.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    /// Name of the signal.
    pub signal: Arc<str>,
    /// Whom it is about.
    pub scope: Scope,
    /// The number, in the unit of the signal; always finite.
    pub value: Result<f64, Unavailable>,
    /// For how long it has been so: whoever writes a file may have written it a while ago. It is stale by this age and
    /// the time since it was read together.
    pub age: Duration,
}

impl Reading {
    /// What is so now.
    #[must_use]
    pub fn of_now(signal: &Arc<str>, scope: &Scope, value: Result<f64, Unavailable>) -> Self {
        Self { signal: Arc::clone(signal), scope: scope.clone(), value, age: Duration::ZERO }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn scopes_are_spelled_and_read_back() {
        for (text, scope) in [
            ("host", Scope::Host),
            ("port:8080", Scope::Port(8080)),
            ("cgroup:/a/b.service", Scope::cgroup(Path::new("/a/b.service"))),
        ] {
            assert_eq!(scope.to_string(), text);
            assert_eq!(text.parse(), Ok(scope));
        }
        assert_eq!("cgroup:a//b/".parse(), Ok(Scope::cgroup(Path::new("/a/b"))));
    }

    #[test]
    fn what_is_no_scope_is_refused() {
        for text in [
            "",
            "Host",
            "port",
            "port:",
            "port:0",
            "port:65536",
            "port:+8",
            "port:8080x",
            "cgroup:",
            "cgroup:a/../b",
        ] {
            assert!(text.parse::<Scope>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_host_sorts_first() {
        let mut scopes = [Scope::Port(1), Scope::cgroup(Path::new("/")), Scope::Host];
        scopes.sort();
        assert_eq!(scopes[0], Scope::Host);
    }

    proptest! {
        #[test]
        fn any_scope_survives_its_text(path in "(/[a-z@-][a-z.@-]{0,7}){1,4}", port in 1u16..) {
            for scope in [Scope::cgroup(Path::new(&path)), Scope::Port(port)] {
                prop_assert_eq!(scope.to_string().parse::<Scope>(), Ok(scope));
            }
        }
    }
}
