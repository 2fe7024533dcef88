//! The host's level as a word in a file, for applications that degrade by themselves.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, UTIME_NOW, utimensat};
use shedder_common::level::Level;

use crate::config::model::LEVEL_FILE;

/// How often the time of the file is renewed, so that readers can tell a dead daemon's word from a living one's.
const RENEWAL: Duration = Duration::from_secs(1);

/// The file, replaced atomically when the level changes and removed when it is dropped.
#[derive(Debug)]
pub(super) struct LevelFile {
    path: PathBuf,
    unfinished: PathBuf,
    written: Option<(Duration, Level)>,
    trouble: String,
}

impl LevelFile {
    /// Beside the control socket; nothing is written yet.
    pub(super) fn beside(socket: &Path) -> Self {
        Self {
            path: socket.with_file_name(LEVEL_FILE),
            unfinished: socket.with_file_name(format!(".{LEVEL_FILE}")),
            written: None,
            trouble: String::new(),
        }
    }

    /// Says the level. What goes wrong is logged when it begins and tried again at the next tick.
    pub(super) fn publish(&mut self, now: Duration, level: Level) {
        let result = match self.written {
            Some((at, written)) if written == level => {
                if now.saturating_sub(at) < RENEWAL {
                    return;
                }
                // Whoever removed the file gets it again.
                self.touch().or_else(|_| self.replace(level))
            }
            _ => self.replace(level),
        };
        let trouble = result.err().map(|error| error.to_string()).unwrap_or_default();
        if trouble.is_empty() {
            self.written = Some((now, level));
        } else {
            self.written = None;
            if trouble != self.trouble {
                tracing::warn!("The level cannot be written to {}: {trouble}.", self.path.display());
            }
        }
        self.trouble = trouble;
    }

    fn touch(&self) -> io::Result<()> {
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        let times = Timestamps { last_access: now, last_modification: now };
        Ok(utimensat(CWD, &self.path, &times, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    fn replace(&self, level: Level) -> io::Result<()> {
        if let Some(directory) = self.path.parent() {
            fs::DirBuilder::new().recursive(true).mode(0o755).create(directory)?;
        }
        match fs::remove_file(&self.unfinished) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file =
            fs::OpenOptions::new().write(true).create_new(true).mode(0o644).open(&self.unfinished)?;
        io::Write::write_all(&mut file, format!("{}\n", level.name()).as_bytes())?;
        fs::rename(&self.unfinished, &self.path)
    }
}

impl Drop for LevelFile {
    fn drop(&mut self) {
        if self.written.is_some()
            && let Err(error) = fs::remove_file(&self.path)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!("{} stays behind: {error}.", self.path.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    use super::*;

    const fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn the_word_is_replaced_when_it_changes_and_gone_at_the_end() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("run/level");
        let mut file = LevelFile::beside(&directory.path().join("run/control.sock"));
        assert!(!path.exists());
        file.publish(at(0), Level::Normal);
        assert_eq!(fs::read_to_string(&path).unwrap(), "normal\n");
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o644);
        let first = fs::metadata(&path).unwrap().ino();
        // Held open, the inode is not used again.
        let _held = fs::File::open(&path).unwrap();
        file.publish(at(100), Level::Normal);
        assert_eq!(fs::metadata(&path).unwrap().ino(), first);
        file.publish(at(200), Level::High);
        assert_eq!(fs::read_to_string(&path).unwrap(), "high\n");
        assert_ne!(fs::metadata(&path).unwrap().ino(), first);
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
        drop(file);
        assert!(!path.exists());
    }

    #[test]
    fn its_time_is_renewed_and_a_lost_file_comes_back() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("level");
        let mut file = LevelFile::beside(&directory.path().join("control.sock"));
        file.publish(at(0), Level::Moderate);
        let old = Timespec { tv_sec: 1_000, tv_nsec: 0 };
        let times = Timestamps { last_access: old, last_modification: old };
        utimensat(CWD, &path, &times, AtFlags::empty()).unwrap();
        file.publish(at(999), Level::Moderate);
        assert_eq!(fs::metadata(&path).unwrap().mtime(), 1_000);
        file.publish(at(1_000), Level::Moderate);
        assert!(fs::metadata(&path).unwrap().mtime() > 1_000);
        fs::remove_file(&path).unwrap();
        file.publish(at(2_000), Level::Moderate);
        assert_eq!(fs::read_to_string(&path).unwrap(), "moderate\n");
    }

    #[test]
    fn a_place_that_cannot_be_written_is_no_end() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("run");
        fs::write(&place, "in the way").unwrap();
        let mut file = LevelFile::beside(&place.join("control.sock"));
        file.publish(at(0), Level::High);
        assert!(!file.trouble.is_empty());
        fs::remove_file(&place).unwrap();
        file.publish(at(100), Level::High);
        assert_eq!(fs::read_to_string(place.join("level")).unwrap(), "high\n");
        assert!(file.trouble.is_empty());
    }
}
