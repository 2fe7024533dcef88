//! Reading small text files that may hang, vanish or hold garbage.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::reading::Unavailable;

/// Enough for every file of `/proc` and of a cgroup that a sensor reads.
const PROC_BYTES_MAX: usize = 64 * 1024;

/// Why a file gave no text.
#[derive(Debug)]
pub(crate) enum ReadError {
    Io(io::Error),
    NotRegular,
    TooLong(u64),
    NotText,
}

impl ReadError {
    pub(crate) fn is_not_found(&self) -> bool {
        // A cgroup that is removed while its file is open answers ENODEV, a process ESRCH.
        matches!(self, Self::Io(error) if error.kind() == io::ErrorKind::NotFound
            || matches!(error.raw_os_error(), Some(libc::ENODEV | libc::ESRCH)))
    }

    pub(crate) fn is_unsupported(&self) -> bool {
        matches!(self, Self::Io(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP))
    }

    /// The reason, with the file named.
    pub(crate) fn at(&self, path: &Path) -> Unavailable {
        let path = path.display();
        Unavailable::new(match self {
            Self::Io(error) => format!("{path}: {error}"),
            Self::NotRegular => format!("{path} is not a regular file"),
            Self::TooLong(max) => format!("{path} is longer than {max} bytes"),
            Self::NotText => format!("{path} is not text"),
        })
    }
}

/// Reads whole small files, with one buffer for all of them.
#[derive(Debug, Default)]
pub(crate) struct Source {
    buffer: Vec<u8>,
}

impl Source {
    /// The text of a file of `/proc` or of a cgroup that the kernel shows in one piece. One system call each to open,
    /// read and close: hundreds of these are read per tick.
    pub(crate) fn read(&mut self, path: &Path) -> Result<&str, ReadError> {
        let mut file = open(path).map_err(ReadError::Io)?;
        let read = self.fill(|buffer| file.read(buffer)).map_err(ReadError::Io)?;
        self.text(read)
    }

    /// As much as one read gives.
    pub(super) fn read_open(&mut self, file: &File) -> io::Result<usize> {
        self.fill(|buffer| file.read_at(buffer, 0))
    }

    /// The same of a file that is expected to be about so long. For a file of `/proc/sys` the kernel clears as much memory
    /// as is asked for (`proc_sys_call_handler` in `fs/proc/proc_sysctl.c`).
    pub(super) fn read_about(&mut self, file: &File, length: usize) -> io::Result<usize> {
        let enough = length.saturating_mul(2).saturating_add(64).min(PROC_BYTES_MAX);
        let read = self.fill(|buffer| file.read_at(buffer.get_mut(..enough).unwrap_or_default(), 0))?;
        if read < enough { Ok(read) } else { self.read_open(file) }
    }

    fn fill(&mut self, mut read: impl FnMut(&mut [u8]) -> io::Result<usize>) -> io::Result<usize> {
        if self.buffer.len() < PROC_BYTES_MAX {
            // Pages that no file needs are never touched.
            self.buffer = vec![0; PROC_BYTES_MAX];
        }
        loop {
            match read(&mut self.buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result,
            }
        }
    }

    /// What was read last.
    pub(super) fn text(&self, read: usize) -> Result<&str, ReadError> {
        match self.buffer.get(..read) {
            Some(text) if read < PROC_BYTES_MAX => std::str::from_utf8(text).map_err(|_| ReadError::NotText),
            _ => Err(ReadError::TooLong(PROC_BYTES_MAX as u64)),
        }
    }

    /// The text and modification time of a regular file of at most `max` bytes. Never waits for a writer.
    pub(crate) fn read_at_most(&mut self, path: &Path, max: u64) -> Result<(&str, SystemTime), ReadError> {
        let file = open(path).map_err(ReadError::Io)?;
        let metadata = file.metadata().map_err(ReadError::Io)?;
        if !metadata.is_file() {
            return Err(ReadError::NotRegular);
        }
        self.buffer.clear();
        let read = file.take(max.saturating_add(1)).read_to_end(&mut self.buffer).map_err(ReadError::Io)?;
        if u64::try_from(read).map_or(true, |read| read > max) {
            return Err(ReadError::TooLong(max));
        }
        let text = std::str::from_utf8(&self.buffer).map_err(|_| ReadError::NotText)?;
        Ok((text, metadata.modified().map_err(ReadError::Io)?))
    }
}

/// Opens for reading; a FIFO without a writer must not block the loop.
pub(super) fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)
}

/// `path` under the injected root.
pub(crate) fn under(root: &Path, path: impl AsRef<Path>) -> PathBuf {
    let path = path.as_ref();
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// A whole number on its own.
pub(crate) fn whole_number(text: &str, path: &Path) -> Result<u64, Unavailable> {
    text.trim().parse().map_err(|_| garbage(path, "a whole number"))
}

/// The file says something else than was expected.
pub(crate) fn garbage(path: &Path, expected: &str) -> Unavailable {
    Unavailable::new(format!("{} does not hold {expected}", path.display()))
}

/// The value of `key` in lines of `key value`, as in `memory.stat`.
pub(crate) fn keyed(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn reads_text_within_its_bound() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("file");
        fs::write(&path, "12345").unwrap();
        let mut source = Source::default();
        assert_eq!(source.read_at_most(&path, 5).unwrap().0, "12345");
        assert!(matches!(source.read_at_most(&path, 4), Err(ReadError::TooLong(4))));
        assert_eq!(source.read(&path).unwrap(), "12345");
        fs::write(&path, [0xff, 0xfe]).unwrap();
        assert!(matches!(source.read(&path), Err(ReadError::NotText)));
        assert!(matches!(source.read_at_most(&path, 5), Err(ReadError::NotText)));
        fs::write(&path, vec![b'1'; PROC_BYTES_MAX]).unwrap();
        assert!(matches!(source.read(&path), Err(ReadError::TooLong(_))));
    }

    #[test]
    fn refuses_what_is_no_file_without_waiting() {
        let root = tempfile::tempdir().unwrap();
        let fifo = root.path().join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        let mut source = Source::default();
        for path in [&fifo, root.path(), Path::new("/dev/zero")] {
            assert!(matches!(source.read_at_most(path, 10), Err(ReadError::NotRegular)));
        }
        assert_eq!(source.read(&fifo).unwrap(), "", "nobody writes");
        assert!(matches!(source.read(root.path()), Err(ReadError::Io(_))));
        assert!(matches!(source.read(Path::new("/dev/zero")), Err(ReadError::TooLong(_))));
        assert!(source.read(&root.path().join("absent")).unwrap_err().is_not_found());
    }

    #[test]
    fn an_input_error_is_named_with_its_file() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("mem");
        symlink("/proc/self/mem", &path).unwrap();
        let error = Source::default().read(&path).unwrap_err();
        assert!(
            matches!(&error, ReadError::Io(error) if error.raw_os_error() == Some(libc::EIO)),
            "{error:?}"
        );
        assert!(error.at(&path).reason.starts_with(&path.display().to_string()));
    }

    #[test]
    fn keys_are_matched_whole() {
        let text = "file 1\ninactive_file_x 2\ninactive_file 3\ninactive_anon x\n";
        assert_eq!(keyed(text, "inactive_file"), Some(3));
        assert_eq!(keyed(text, "inactive_anon"), None);
        assert_eq!(keyed(text, "absent"), None);
    }
}
