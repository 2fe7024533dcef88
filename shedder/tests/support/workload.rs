//! A server in a process and control groups of its own, which runs short of memory when it is told to.
//!
//! The process is this test binary again: it runs one of its tests, which sees by [`is_workload`] that it is to
//! [`serve`]. It obeys lines on standard input and ends with it.

use std::env;
use std::fs::File;
use std::io::{BufRead as _, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio, exit};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{sleep, spawn};
use std::time::Duration;

use rustix::fs::{Advice, fadvise};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tempfile::NamedTempFile;
use xtask::testbed::{Cgroup, Namespace};

/// The name of the test that calls [`serve`].
const ROLE: &str = "a_workload_uses_the_memory_that_it_is_told_to";
const LISTEN: &str = "SHEDDER_TEST_LISTEN";
const FILE: &str = "SHEDDER_TEST_FILE";

const MIB: usize = 1 << 20;
const PAGE_BYTES: usize = 4096;
const READERS: u64 = 4;
const OPEN_FILES_MAX: u64 = 100;
const OPEN_FILES: usize = 92;
const PAUSE: Duration = Duration::from_millis(5);

/// The process as the test sees it; it ends on drop, and its control groups go.
pub struct Workload {
    child: Child,
    orders: ChildStdin,
    cgroup: Cgroup,
    _file: NamedTempFile,
}

impl Workload {
    /// Starts one that may use so much memory. It accepts on `address` once it is told to listen.
    pub fn start(server: &Namespace, address: SocketAddr, limit_bytes: u64) -> Self {
        let cgroup = Cgroup::with_memory(limit_bytes).unwrap();
        // A quarter more than fits: what is read again was dropped so lately that the kernel calls it a stall.
        let file = cold_file(limit_bytes + limit_bytes / 4);
        let mut command = Command::new(env::current_exe().unwrap());
        command.args([ROLE, "--exact", "--nocapture"]);
        command.env(LISTEN, address.to_string()).env(FILE, file.path());
        let mut child = server.spawn(command.stdin(Stdio::piped()).stdout(Stdio::null())).unwrap();
        let orders = child.stdin.take().unwrap();
        let mut workload = Self { child, orders, cgroup, _file: file };
        // Before it opens a socket, which then belongs to the control group too.
        workload.cgroup.add(workload.child.id()).unwrap();
        workload.say("listen");
        workload
    }

    /// Takes one more MiB of memory of the kind that cannot be dropped.
    pub fn take_mib(&mut self) {
        self.say("take");
    }

    /// Gives back all that it took.
    pub fn give(&mut self) {
        self.say("give");
    }

    /// Opens files until it has used nine tenths of the descriptors that it may have.
    pub fn open_files(&mut self) {
        self.say("open");
    }

    /// Closes them.
    pub fn close_files(&mut self) {
        self.say("close");
    }

    /// Reads once what is larger than its memory, which is then full of it.
    pub fn read_once(&mut self) {
        self.say("read");
    }

    /// Bytes that the kernel charges to its control group, whatever they are for.
    pub fn charged_bytes(&self) -> u64 {
        let files = ["memory.usage_in_bytes", "memory.current"].map(|name| self.cgroup.memory().join(name));
        let text = files.iter().find_map(|file| std::fs::read_to_string(file).ok()).unwrap();
        text.trim().parse().unwrap()
    }

    /// For how long some task of its control group has waited for memory, microseconds.
    pub fn stalled_us(&self) -> u64 {
        let text = std::fs::read_to_string(self.cgroup.unified().join("memory.pressure")).unwrap();
        let total = text.lines().find_map(|line| line.strip_prefix("some")?.split_once("total="));
        total.unwrap().1.parse().unwrap()
    }

    /// Reads more than fits into its memory, again and again.
    pub fn thrash(&mut self) {
        self.say("thrash");
    }

    /// Stops reading.
    pub fn rest(&mut self) {
        self.say("rest");
    }

    /// The scopes of its control groups.
    pub fn scopes(&self) -> [String; 2] {
        [self.cgroup.unified(), self.cgroup.memory()]
            .map(|directory| format!("cgroup:/{}", directory.file_name().unwrap().to_str().unwrap()))
    }

    fn say(&mut self, order: &str) {
        writeln!(self.orders, "{order}").unwrap();
    }
}

impl Drop for Workload {
    fn drop(&mut self) {
        // One that is gone already needs no killing.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// A file on the disk of the build whose pages nobody has in memory, so that they count for who reads them.
fn cold_file(bytes: u64) -> NamedTempFile {
    let mut file = NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    std::io::copy(&mut std::io::repeat(7).take(bytes), &mut file).unwrap();
    file.as_file().sync_all().unwrap();
    fadvise(file.as_file(), 0, None, Advice::DontNeed).unwrap();
    file
}

static THRASHING: AtomicBool = AtomicBool::new(false);

/// Whether this process is one that [`Workload::start`] started.
pub fn is_workload() -> bool {
    env::var_os(LISTEN).is_some()
}

/// What the process does, until its standard input ends.
pub fn serve() -> ! {
    let (mut taken, mut open) = (Vec::new(), Vec::new());
    let limit = Rlimit { current: Some(OPEN_FILES_MAX), ..getrlimit(Resource::Nofile) };
    setrlimit(Resource::Nofile, limit).unwrap();
    for order in std::io::stdin().lock().lines() {
        match order.unwrap().as_str() {
            "listen" => {
                accept();
                read_when_thrashing();
            }
            "take" => taken.push(vec![7_u8; MIB]),
            "give" => taken.clear(),
            "open" => {
                while std::fs::read_dir("/proc/self/fd").unwrap().count() < OPEN_FILES {
                    open.push(File::open("/dev/null").unwrap());
                }
            }
            "close" => open.clear(),
            "read" => {
                let mut file = File::open(env::var_os(FILE).unwrap()).unwrap();
                std::io::copy(&mut file, &mut std::io::sink()).unwrap();
            }
            "thrash" => THRASHING.store(true, Ordering::Relaxed),
            "rest" => THRASHING.store(false, Ordering::Relaxed),
            other => panic!("{other:?}"),
        }
    }
    // Its threads never end by themselves.
    exit(0)
}

fn accept() {
    let listener = TcpListener::bind(env::var(LISTEN).unwrap()).unwrap();
    spawn(move || {
        loop {
            // A client may have gone before it was accepted.
            drop(listener.accept());
        }
    });
}

fn read_when_thrashing() {
    let path = PathBuf::from(env::var_os(FILE).unwrap());
    for seed in 1..=READERS {
        let file = File::open(&path).unwrap();
        fadvise(&file, 0, None, Advice::Random).unwrap();
        let pages = file.metadata().unwrap().len() / PAGE_BYTES as u64;
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        spawn(move || {
            let mut page = [0; PAGE_BYTES];
            loop {
                while !THRASHING.load(Ordering::Relaxed) {
                    sleep(PAUSE);
                }
                // xorshift64: an order that no readahead foresees.
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                file.read_exact_at(&mut page, state % pages * PAGE_BYTES as u64).unwrap();
            }
        });
    }
}
