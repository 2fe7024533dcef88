//! A host with many ports and cgroups: a network namespace, real listeners in real cgroups, and files of numbers.

use std::fmt::Write as _;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context as _, Result};
use tempfile::TempDir;
use xtask::testbed::{Cgroup, Namespace, PinDirectory};

const FIRST_PORT: u16 = 20_000;
const WRITE_PERIOD: Duration = Duration::from_secs(1);

/// Everything goes when it is dropped, the listeners before their cgroups.
pub(crate) struct Host {
    pub(crate) namespace: Namespace,
    pub(crate) directory: TempDir,
    pub(crate) config: PathBuf,
    _pins: PinDirectory,
    writer: Option<Writer>,
    _listeners: Vec<TcpListener>,
    _home: Home,
    _cgroups: Vec<Cgroup>,
}

impl Host {
    pub(crate) fn new(ports: u16, listeners: usize, cgroups: usize) -> Result<Self> {
        let namespace = Namespace::new()?;
        let directory = tempfile::Builder::new().prefix("shedder-tick-").tempdir()?;
        let cgroups = (0..cgroups).map(|_| Cgroup::new()).collect::<Result<Vec<_>>>()?;
        let home = Home::find()?;
        let mut sockets = Vec::new();
        for (port, cgroup) in (FIRST_PORT..).zip(cgroups.iter().cycle().take(listeners)) {
            cgroup.add(std::process::id())?;
            sockets.push(namespace.enter(|| TcpListener::bind(("127.0.0.1", port)))??);
        }
        home.return_to()?;
        let idle = cgroups.get(listeners..).unwrap_or_default();
        let files: Vec<PathBuf> =
            (0..idle.len()).map(|number| directory.path().join(format!("number-{number}"))).collect();
        let pins = PinDirectory::new("bench-tick");
        let text = configuration(directory.path(), pins.path(), ports, files.iter().zip(idle))?;
        let config = directory.path().join("shedder.toml");
        fs::write(&config, text)?;
        let writer = (!files.is_empty()).then(|| Writer::start(files)).transpose()?;
        Ok(Self {
            namespace,
            directory,
            config,
            _pins: pins,
            writer,
            _listeners: sockets,
            _home: home,
            _cgroups: cgroups,
        })
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.path().join("control.sock")
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Some(writer) = self.writer.take() {
            writer.stop();
        }
    }
}

fn configuration<'a>(
    directory: &Path,
    bpffs: &Path,
    ports: u16,
    numbers: impl Iterator<Item = (&'a PathBuf, &'a Cgroup)>,
) -> Result<String> {
    let mut text = format!(
        "version = 1\nmode = \"enforce\"\n\
         [attach]\ninterfaces = [\"lo\"]\n\
         [daemon]\nsocket = \"{}\"\nbpffs = \"{}\"\n\
         [metrics]\nlisten = \"127.0.0.1:9464\"\n",
        directory.join("control.sock").display(),
        bpffs.display(),
    );
    for (place, (file, cgroup)) in numbers.enumerate() {
        let name = cgroup.unified().file_name().context("a cgroup without a name")?.display();
        write!(
            text,
            "[signals.number_{place}]\nsource = \"file\"\npath = \"{}\"\nscope = \"cgroup:/{name}\"\n\
             moderate = {{ enter = 10, exit = 5 }}\n",
            file.display()
        )?;
    }
    for port in (FIRST_PORT..).take(usize::from(ports)) {
        write!(text, "[[port]]\nport = {port}\n")?;
    }
    Ok(text)
}

/// The cgroup of this process, to return to.
struct Home {
    procs: PathBuf,
}

impl Home {
    fn find() -> Result<Self> {
        let text = fs::read_to_string("/proc/self/cgroup")?;
        let path = text.lines().find_map(|line| line.strip_prefix("0::/")).context("no cgroup v2")?;
        let mounts = fs::read_to_string("/proc/self/mounts")?;
        let mount = mounts.lines().find_map(|line| {
            let mut fields = line.split(' ').skip(1);
            let point = fields.next()?;
            (fields.next()? == "cgroup2").then_some(point)
        });
        Ok(Self { procs: Path::new(mount.context("no cgroup v2")?).join(path).join("cgroup.procs") })
    }

    fn return_to(&self) -> Result<()> {
        fs::write(&self.procs, std::process::id().to_string())
            .with_context(|| self.procs.display().to_string())
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        // A cgroup that a process is in cannot be removed.
        if let Err(error) = self.return_to() {
            eprintln!("{error:#}");
        }
    }
}

/// Replaces every file once a second.
struct Writer {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Writer {
    fn start(files: Vec<PathBuf>) -> Result<Self> {
        write_all(&files, 0)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            for round in 1.. {
                // Not all at once: applications do not agree on a moment.
                for part in files.chunks(files.len().div_ceil(10)) {
                    if stopped.load(Ordering::Relaxed) {
                        return;
                    }
                    write_all(part, round % 3).unwrap();
                    thread::sleep(WRITE_PERIOD / 10);
                }
            }
        });
        Ok(Self { stop, thread })
    }

    fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
    }
}

fn write_all(files: &[PathBuf], number: u32) -> Result<()> {
    for file in files {
        let new = file.with_extension("new");
        fs::write(&new, format!("{number}\n"))?;
        fs::rename(&new, file)?;
    }
    Ok(())
}
