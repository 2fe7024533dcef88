//! Who holds a lock on a file, as the kernel tells.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The process that holds a lock on a file or directory; `None` where there is none, or where it lives in a process
/// namespace that is not seen from here.
#[must_use]
pub fn holder(path: &Path) -> Option<i32> {
    let found = std::fs::metadata(path).ok()?;
    let device = (rustix::fs::major(found.dev()), rustix::fs::minor(found.dev()));
    let locks = procfs::locks().ok()?;
    let lock = locks
        .into_iter()
        .find(|lock| (lock.devmaj, lock.devmin, lock.inode) == (device.0, device.1, found.ino()))?;
    lock.pid.filter(|pid| *pid > 0)
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use rustix::fs::{FlockOperation, flock};

    use super::*;

    #[test]
    fn whoever_holds_a_lock_is_named() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(holder(directory.path()), None);
        let lock = File::open(directory.path()).unwrap();
        flock(&lock, FlockOperation::NonBlockingLockExclusive).unwrap();
        assert_eq!(holder(directory.path()), i32::try_from(std::process::id()).ok());
        assert_eq!(holder(&directory.path().join("nothing")), None);
        drop(lock);
        assert_eq!(holder(directory.path()), None);
    }
}
