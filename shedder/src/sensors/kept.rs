//! Files of the kernel that stay open: reading one again costs a third of opening, reading and closing it.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::fs::{FsWord, PROC_SUPER_MAGIC, fstatfs};
use rustix::process::{Resource, getrlimit};

use super::source::{ReadError, Source, open};

/// `linux/magic.h`
const CGROUP_SUPER_MAGIC: FsWord = 0x27_e0eb;
const CGROUP2_SUPER_MAGIC: FsWord = 0x6367_7270;

/// Most files that stay open; the kernel holds a page for each. More are opened for each reading.
const OPEN_MAX: usize = 2_048;

/// Files that stay open now, in the whole process.
static OPEN: AtomicUsize = AtomicUsize::new(0);

/// A file of `/proc` or of a cgroup that is read again and again.
#[derive(Debug)]
pub(crate) struct Kept {
    path: PathBuf,
    state: State,
    /// Of its text, when it was read last.
    length: usize,
}

#[derive(Debug)]
enum State {
    Closed,
    Open(File, Place),
    /// Elsewhere another file may take the place of one that is still open.
    NotKernels,
}

impl Kept {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, state: State::Closed, length: 0 }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Its text now. Where the file is gone, whatever has its path instead is read.
    pub(crate) fn read<'s>(&mut self, source: &'s mut Source) -> Result<&'s str, ReadError> {
        if let State::Open(file, _) = &self.state {
            match source.read_about(file, self.length) {
                Ok(read) => {
                    self.length = read;
                    return source.text(read);
                }
                Err(error) => {
                    self.state = State::Closed;
                    // The cgroup is gone, or the module that had the file; another may have its path.
                    if !matches!(error.raw_os_error(), Some(libc::ENODEV | libc::ENOENT)) {
                        return Err(ReadError::Io(error));
                    }
                }
            }
        }
        if matches!(self.state, State::NotKernels) {
            return source.read(&self.path);
        }
        let file = open(&self.path).map_err(ReadError::Io)?;
        if !is_kernels(&file).map_err(ReadError::Io)? {
            self.state = State::NotKernels;
            return source.read(&self.path);
        }
        let read = source.read_open(&file).map_err(ReadError::Io)?;
        self.length = read;
        if let Some(place) = Place::take() {
            self.state = State::Open(file, place);
        }
        source.text(read)
    }
}

fn is_kernels(file: &File) -> io::Result<bool> {
    let kind = fstatfs(file)?.f_type;
    Ok([PROC_SUPER_MAGIC, CGROUP_SUPER_MAGIC, CGROUP2_SUPER_MAGIC].contains(&kind))
}

/// One of the files that may stay open.
#[derive(Debug)]
struct Place;

impl Place {
    fn take() -> Option<Self> {
        let limit = getrlimit(Resource::Nofile).current.and_then(|limit| usize::try_from(limit).ok());
        // The other half is for everything else.
        let most = limit.map_or(OPEN_MAX, |limit| OPEN_MAX.min(limit / 2));
        let taken = OPEN.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |open| {
            (open < most).then_some(open.saturating_add(1))
        });
        taken.ok().map(|_| Self)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        OPEN.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::sensors::testing::RealCgroup;

    fn is_open(kept: &Kept) -> bool {
        matches!(kept.state, State::Open(..))
    }

    #[test]
    fn a_file_of_proc_stays_open_and_is_read_anew() {
        let mut source = Source::default();
        let mut kept = Kept::new(PathBuf::from("/proc/thread-self/comm"));
        let read = |kept: &mut Kept, source: &mut Source| kept.read(source).map(str::to_owned).unwrap();
        std::thread::Builder::new()
            .name("one".to_owned())
            .spawn(move || {
                assert_eq!(read(&mut kept, &mut source), "one\n");
                assert!(is_open(&kept));
                fs::write("/proc/thread-self/comm", "another").unwrap();
                assert_eq!(read(&mut kept, &mut source), "another\n");
            })
            .unwrap()
            .join()
            .unwrap();
    }

    #[test]
    fn a_file_of_another_file_system_may_be_replaced() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("number");
        let mut source = Source::default();
        let mut kept = Kept::new(path.clone());
        assert!(kept.read(&mut source).unwrap_err().is_not_found());
        for text in ["1", "2"] {
            fs::write(root.path().join("new"), text).unwrap();
            fs::rename(root.path().join("new"), &path).unwrap();
            assert_eq!(kept.read(&mut source).unwrap(), text);
            assert!(!is_open(&kept));
        }
    }

    #[test]
    fn a_cgroup_that_is_removed_is_not_found_and_its_successor_is() {
        let cgroup = RealCgroup::unified("kept");
        let mut source = Source::default();
        let mut kept = Kept::new(cgroup.path().join("cgroup.events"));
        kept.read(&mut source).unwrap();
        assert!(is_open(&kept));
        fs::remove_dir(cgroup.path()).unwrap();
        assert!(kept.read(&mut source).unwrap_err().is_not_found());
        assert!(!is_open(&kept));
        fs::create_dir(cgroup.path()).unwrap();
        assert!(kept.read(&mut source).unwrap().contains("populated 0"));
        assert!(is_open(&kept));
    }

    #[test]
    fn pressure_that_is_switched_off_is_not_found_until_it_is_on_again() {
        let cgroup = RealCgroup::unified("kept-off");
        let mut source = Source::default();
        let mut kept = Kept::new(cgroup.path().join("cpu.pressure"));
        let switch = cgroup.path().join("cgroup.pressure");
        kept.read(&mut source).expect("these tests need a kernel with PSI");
        fs::write(&switch, "0").expect("these tests need Linux 6.1 or later");
        assert!(kept.read(&mut source).unwrap_err().is_not_found());
        fs::write(&switch, "1").unwrap();
        assert!(kept.read(&mut source).unwrap().starts_with("some"));
    }
}
