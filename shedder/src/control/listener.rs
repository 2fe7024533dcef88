//! Creating the control socket without a moment in which anyone but root could use it.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with, sockopt,
};

/// Connections that may wait for the server.
const BACKLOG: i32 = 64;

/// The control socket cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// A daemon lives there.
    #[error(
        "another daemon{} answers at {}; stop it, or give this one a daemon.socket of its own",
        pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default(),
        path.display()
    )]
    Live {
        /// The socket.
        path: PathBuf,
        /// Whose it is.
        pid: Option<i32>,
    },
    /// A daemon has its socket in that directory, or is just making it.
    #[error(
        "another daemon has its socket in {}, and beside it the level that applications read; stop it, or give this one a \
         daemon.socket in a directory of its own",
        directory.display()
    )]
    Shared {
        /// The directory.
        directory: PathBuf,
    },
    /// Something else has the name.
    #[error("{} exists and is not a socket; move it away, or set daemon.socket to another path", path.display())]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// No socket can have that name.
    #[error("{} is too long for a Unix socket; set daemon.socket to a path of at most 100 bytes", path.display())]
    PathTooLong {
        /// The path.
        path: PathBuf,
    },
    /// Anything else.
    #[error("cannot {doing} {}: {source}; set daemon.socket to a path where root may write", path.display())]
    Io {
        /// What was tried.
        doing: &'static str,
        /// With what.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
}

/// The daemon's end of the control socket. Its file goes when it is dropped, and the directory that was made for it
/// where it has never been served.
#[derive(Debug)]
pub struct ControlListener {
    pub(super) listener: UnixListener,
    file: SocketFile,
    // Dropped after the file that lies in it.
    made: MadeDirectories,
}

impl ControlListener {
    /// Listens at `path`; a socket that a dead daemon left there is replaced.
    ///
    /// # Errors
    /// [`SocketError`], a sentence that says what to do. Nothing of a live daemon has been touched then.
    pub fn bind(path: &Path) -> Result<Self, SocketError> {
        Self::bind_holding(path, None)
    }

    /// As [`ControlListener::bind`], where the directory is already locked by `held`.
    fn bind_holding(path: &Path, held: Option<File>) -> Result<Self, SocketError> {
        let failed = |doing, path: &Path| {
            let path = path.to_owned();
            move |source: io::Error| SocketError::Io { doing, path, source }
        };
        let directory = directory_of(path);
        let made = MadeDirectories::make(directory).map_err(failed("create the directory", directory))?;
        let lock = match held {
            Some(lock) => lock,
            None => lock_directory(path, directory)?,
        };
        refuse_live(path)?;
        // Nobody can connect before `listen`, and by then the mode is right.
        let unfinished = unfinished_name(path);
        match fs::remove_file(&unfinished) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(failed("remove", &unfinished)(error));
            }
            _ => {}
        }
        let socket = unix_socket(SocketFlags::NONBLOCK).map_err(failed("make a socket for", path))?;
        let address = address(&unfinished).map_err(|_| SocketError::PathTooLong { path: path.to_owned() })?;
        bind(&socket, &address).map_err(|errno| failed("bind", &unfinished)(errno.into()))?;
        let mut file = SocketFile::of(&unfinished, lock).map_err(failed("find", &unfinished))?;
        fs::set_permissions(&unfinished, Permissions::from_mode(0o600))
            .map_err(failed("set the mode of", &unfinished))?;
        listen(&socket, BACKLOG).map_err(|errno| failed("listen at", path)(errno.into()))?;
        fs::rename(&unfinished, path).map_err(failed("replace", path))?;
        path.clone_into(&mut file.path);
        Ok(Self { listener: UnixListener::from(socket), file, made })
    }

    /// Where it listens.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.file.path
    }

    /// The socket and the file that must outlive it.
    pub(super) fn into_parts(self) -> (UnixListener, SocketFile) {
        let Self { listener, file, made } = self;
        made.keep();
        (listener, file)
    }
}

fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Between the look at the old socket and its replacement nobody else may do the same, and later nobody else may have
/// the level file.
fn lock_directory(path: &Path, directory: &Path) -> Result<File, SocketError> {
    let failed = |doing| {
        let path = directory.to_owned();
        move |source: io::Error| SocketError::Io { doing, path, source }
    };
    let lock = File::open(directory).map_err(failed("open the directory"))?;
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(lock),
        Err(Errno::WOULDBLOCK) => {
            refuse_live(path)?;
            Err(SocketError::Shared { directory: directory.to_owned() })
        }
        Err(errno) => Err(failed("lock the directory")(errno.into())),
    }
}

/// Directories that were not there before; those that are empty go when this is dropped.
#[derive(Debug)]
struct MadeDirectories {
    /// The innermost first.
    paths: Vec<PathBuf>,
}

impl MadeDirectories {
    /// Makes a directory and those above it where they are missing.
    fn make(directory: &Path) -> io::Result<Self> {
        let missing = directory.ancestors().take_while(|path| !path.as_os_str().is_empty() && !path.exists());
        let made = Self { paths: missing.map(Path::to_owned).collect() };
        DirBuilder::new().recursive(true).mode(0o755).create(directory)?;
        Ok(made)
    }

    fn keep(mut self) {
        self.paths.clear();
    }
}

impl Drop for MadeDirectories {
    fn drop(&mut self) {
        for path in &self.paths {
            // One that somebody else uses by now is not empty.
            let _in_use = fs::remove_dir(path);
        }
    }
}

/// Removes the socket's file when dropped, unless the name has become somebody else's.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    device: u64,
    inode: u64,
    /// Locked.
    directory: File,
}

impl SocketFile {
    fn of(path: &Path, directory: File) -> io::Result<Self> {
        let found = fs::symlink_metadata(path)?;
        Ok(Self { path: path.to_owned(), device: found.dev(), inode: found.ino(), directory })
    }

    /// The name.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the name is still this socket's.
    pub(super) fn is_in_place(&self) -> bool {
        fs::symlink_metadata(&self.path)
            .is_ok_and(|found| found.dev() == self.device && found.ino() == self.inode)
    }

    /// Another socket under the name, which is lost.
    ///
    /// # Errors
    /// As for [`ControlListener::bind`].
    pub(super) fn bind_again(&self) -> Result<(UnixListener, Self), SocketError> {
        let bound = ControlListener::bind_holding(&self.path, self.held_directory())?;
        Ok(bound.into_parts())
    }

    /// The lock, where the directory is still the one that is locked.
    fn held_directory(&self) -> Option<File> {
        let (found, held) = (fs::metadata(directory_of(&self.path)).ok()?, self.directory.metadata().ok()?);
        (found.dev() == held.dev() && found.ino() == held.ino()).then(|| self.directory.try_clone().ok())?
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.is_in_place()
            && let Err(error) = fs::remove_file(&self.path)
        {
            tracing::warn!(path = %self.path.display(), %error, "the control socket's file stays behind");
        }
    }
}

/// `Ok` where `path` is free or a dead daemon's socket.
fn refuse_live(path: &Path) -> Result<(), SocketError> {
    let io_failed = |doing, source| SocketError::Io { doing, path: path.to_owned(), source };
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(io_failed("look at", error)),
        Ok(found) if !found.file_type().is_socket() => {
            return Err(SocketError::NotASocket { path: path.to_owned() });
        }
        Ok(_) => {}
    }
    let address = address(path).map_err(|_| SocketError::PathTooLong { path: path.to_owned() })?;
    let socket = unix_socket(SocketFlags::NONBLOCK).map_err(|error| io_failed("make a socket for", error))?;
    match connect(&socket, &address) {
        Ok(()) => {
            let pid = sockopt::socket_peercred(&socket).ok().map(|peer| peer.pid.as_raw_nonzero().get());
            Err(SocketError::Live { path: path.to_owned(), pid })
        }
        // So many wait for it that no more fit: it lives.
        Err(Errno::AGAIN) => Err(SocketError::Live { path: path.to_owned(), pid: None }),
        Err(Errno::CONNREFUSED | Errno::NOENT) => Ok(()),
        Err(errno) => Err(io_failed("ask who listens at", errno.into())),
    }
}

fn unfinished_name(path: &Path) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    path.with_file_name(name)
}

/// A new stream socket, closed on `exec`.
pub(super) fn unix_socket(flags: SocketFlags) -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::UNIX, SocketType::STREAM, flags | SocketFlags::CLOEXEC, None)?)
}

/// The address of a path; an error where the path is too long.
pub(super) fn address(path: &Path) -> io::Result<SocketAddrUnix> {
    Ok(SocketAddrUnix::new(path)?)
}

/// Connects within the socket's own time limit.
pub(super) fn connect_to(socket: &impl AsFd, address: &SocketAddrUnix) -> Result<(), Errno> {
    connect(socket, address)
}
