//! `shedder run`: the control loop and what it serves.

pub mod clock;
mod control_loop;
mod interfaces;
mod level_file;
mod policies;
mod pressure;
mod ranges;
mod recent;
mod reconcile;
mod reload;
pub mod report;
mod sources;
mod ticker;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use aya_log::Level;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::unix::AsyncFd;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot};

use crate::config::model::{Config, OnExit, Via};
use crate::control::protocol::{Command, Payload, Refusal};
use crate::control::{self, ControlListener, ControlMessage};
use crate::datapath::{Datapath, LoadOptions};
use crate::endpoint;
use crate::kernel::offsets::{VMLINUX_BTF, read_types};
use crate::kernel::support::{Capabilities, KernelSupport};
use crate::log;
use crate::net::changes::{Changed, Changes};
use crate::net::namespace;
use crate::snapshot_reader;
use control_loop::ControlLoop;
use level_file::LevelFile;
use reload::Reload;
use shedder_common::abi::SocketOffsets;
use ticker::Ticker;

/// Commands that wait for the loop; more callers wait at the socket.
const COMMAND_QUEUE: usize = 64;

/// What `shedder run` is given.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where the configuration came from; read again on SIGHUP.
    pub config_file: Option<PathBuf>,
    /// The configuration.
    pub config: Config,
    /// Level of the kernel programs' log.
    pub bpf_log: Option<Level>,
}

/// Runs until SIGTERM, SIGINT or `shedder unload`.
///
/// # Errors
///
/// The daemon cannot start, with what to do about it. Once it runs it does not give up.
pub fn run(options: Options) -> Result<()> {
    keep_memory_small();
    let _log = log::start().context("start the log")?;
    allow_open_files();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        // Rendering for the endpoint and reading the configuration are all that runs beside the loop.
        .max_blocking_threads(4)
        .build()
        .context("start the runtime")?;
    // A task that the runtime's own timer wakes is run at once; the one that it blocks on is woken through a descriptor.
    let result = runtime.block_on(async { tokio::spawn(serve(options)).await.context("the control loop")? });
    runtime.shutdown_background();
    result
}

async fn serve(options: Options) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!(
            "shedder run must be root to load programs into the kernel: use sudo, or a privileged container"
        );
    }
    let Options { config_file, config, bpf_log } = options;
    let support = KernelSupport::read(Path::new("/"), &config.daemon.bpffs);
    let lacking = support.capabilities.map(Capabilities::lacking).unwrap_or_default();
    if !lacking.is_empty() {
        bail!(
            "{} missing: add them to the unit or container; `shedder doctor` tells more",
            lacking.join(", ")
        );
    }
    let ticker = Ticker::new(config.daemon.tick).context("start the timer of the control loop")?;
    let (commands, mut requests) = mpsc::channel::<ControlMessage>(COMMAND_QUEUE);
    let control = ControlListener::bind(&config.daemon.socket)?;
    let endpoint = match config.metrics.listen {
        Some(address) => Some(endpoint::bind(address).await?),
        None => None,
    };
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hangup = signal(SignalKind::hangup())?;

    let mut changes = Changes::subscribe()?;
    let mut datapath = Datapath::start(&config.daemon.bpffs, load_options(bpf_log)?)?;
    if datapath.adopted() {
        tracing::info!("The maps of an earlier daemon are adopted; counters go on.");
    }
    if bpf_log.is_some() {
        follow_bpf_log(&mut datapath);
    }
    let last_tick = Arc::new(AtomicU64::new(0));
    let (tick, on_exit) = (config.daemon.tick, config.daemon.on_exit);
    let admission_level = config.metrics.admission_level;
    let mut level_file = LevelFile::beside(&config.daemon.socket);
    let recordings = control::Recordings::default();
    let strict = config.attach.via != Via::Auto;
    let mut control_loop = ControlLoop::start(config, datapath, support, recordings.clone());
    if strict && let Some(refused) = control_loop.refused_attachment() {
        control_loop.into_datapath().remove()?;
        bail!("{refused}");
    }
    // Whoever is answered from now on is told of a finished tick.
    turn(&mut control_loop, &last_tick, &mut level_file);
    let (snapshot, mut askers) = snapshot_reader::channel();

    control_loop.announce();
    return_free_memory();
    if let Some(listener) = endpoint {
        let state = endpoint::State {
            snapshot: snapshot.clone(),
            tick_interval: tick,
            tick_age: tick_age(&last_tick),
            admission_level,
        };
        tokio::spawn(endpoint::serve(listener, state));
    }
    let (stop_control, stopped) = oneshot::channel::<()>();
    let stop = async {
        let _closed = stopped.await;
    };
    let control = tokio::spawn(control::serve(control, snapshot, commands, recordings, stop));

    let mut reload = Reload::of(config_file);
    let asked_by = loop {
        tokio::select! {
            biased;
            _ = terminate.recv() => break None,
            _ = interrupt.recv() => break None,
            _ = hangup.recv() => reload.begin(),
            config = reload.configuration() => control_loop.reload(config),
            ticked = ticker.tick() => {
                ticked.context("wait for the next tick")?;
                turn(&mut control_loop, &last_tick, &mut level_file);
            }
            Some(asker) = askers.recv() => {
                // The asker may have gone.
                let _unsent = asker.send(control_loop.snapshot(clock::monotonic()));
            }
            changed = changes.next() => {
                let changed = changed.unwrap_or_else(|error| {
                    tracing::debug!("{error}");
                    Changed::EVERYTHING
                });
                control_loop.network_changed(changed);
            }
            request = requests.recv() => {
                // The sender lives as long as the control task; without it there is nothing to answer.
                let Some(ControlMessage { command, reply }) = request else { continue };
                if matches!(command, Command::Unload) {
                    break Some(reply);
                }
                let answer = control_loop.command(command, clock::monotonic());
                // The caller may have gone.
                let _unsent = reply.send(answer);
            }
        }
    };
    drop(askers);
    let datapath = control_loop.into_datapath();
    let removed = if asked_by.is_some() || on_exit == OnExit::Detach {
        datapath.remove().inspect(|()| tracing::info!("Everything is detached and unpinned."))
    } else {
        datapath.keep();
        tracing::info!("Programs and maps stay pinned; they pass everything once the lease has ended.");
        Ok(())
    };
    answer_unloads(asked_by, &mut requests, &removed);
    let _gone = stop_control.send(());
    if let Ok(Err(error)) = control.await {
        tracing::debug!("the control socket ended: {error}");
    }
    removed.context(NOT_REMOVED)
}

/// Has the C library's allocator keep as little as it can: one heap for all threads, and large texts, such as the
/// answer to a scrape, outside of it, so that they are given back when they are sent.
fn keep_memory_small() {
    #[cfg(target_env = "gnu")]
    for (parameter, value) in [(libc::M_ARENA_MAX, 1), (libc::M_MMAP_THRESHOLD, 256 * 1024)] {
        // SAFETY: takes no pointer; called before any other thread is started.
        #[expect(unsafe_code, reason = "the allocator of the C library has no safe interface")]
        let _known = unsafe { libc::mallopt(parameter, value) };
    }
}

/// Files that may be open at once, for the sensors' sake; by default it is 1,024.
const OPEN_FILES: u64 = 8_192;

/// Raises the soft limit where the hard one allows. Otherwise the sensors keep fewer files open.
fn allow_open_files() {
    let limit = getrlimit(Resource::Nofile);
    let wanted = limit.maximum.map_or(OPEN_FILES, |maximum| maximum.min(OPEN_FILES));
    if limit.current.is_some_and(|current| current < wanted) {
        let raised = Rlimit { current: Some(wanted), maximum: limit.maximum };
        if let Err(error) = setrlimit(Resource::Nofile, raised) {
            tracing::debug!("the limit of open files stays: {error}");
        }
    }
}

/// Gives back what the start needed, since the kernel's types alone take more than the daemon ever does later, or
/// what a look at many ports did.
fn return_free_memory() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: takes no pointer, and may be called at any time from any thread.
        #[expect(unsafe_code, reason = "the allocator of the C library has no safe interface")]
        let _released = unsafe { libc::malloc_trim(0) };
    }
}

/// One turn of the loop.
fn turn(control_loop: &mut ControlLoop, last_tick: &AtomicU64, level_file: &mut LevelFile) {
    control_loop.tick(clock::monotonic());
    let now = clock::monotonic();
    last_tick.store(clock::nanoseconds(now), Ordering::Relaxed);
    level_file.publish(now, control_loop.host_level());
    control_loop.took(now);
    if control_loop.has_spare_memory(now) {
        return_free_memory();
    }
}

/// Tells everyone who asked for it that all is removed, now that it is; whoever asks for something else hears
/// that the daemon is stopping.
fn answer_unloads(
    first: Option<oneshot::Sender<Result<Payload, Refusal>>>,
    requests: &mut mpsc::Receiver<ControlMessage>,
    removed: &Result<()>,
) {
    requests.close();
    let others = std::iter::from_fn(|| requests.try_recv().ok())
        .filter(|message| matches!(message.command, Command::Unload))
        .map(|message| message.reply);
    for reply in first.into_iter().chain(others) {
        let answer = match removed {
            Ok(()) => {
                Ok(Payload::Message(
                    "everything is detached and unpinned; the daemon exits with code 0, and a supervisor that restarts \
                     it even so attaches it again"
                        .to_owned(),
                ))
            }
            Err(error) => Err(Refusal::failed(format!("{NOT_REMOVED}: {error:#}"))),
        };
        // The caller may have gone.
        let _unsent = reply.send(answer);
    }
}

const NOT_REMOVED: &str = "not everything could be removed; `shedder unload` tries again";

fn load_options(bpf_log: Option<Level>) -> Result<LoadOptions> {
    let (offsets, cast) = match read_types(Path::new(VMLINUX_BTF)) {
        Ok(types) => {
            for what in types.missing {
                tracing::warn!("{what}.");
            }
            (types.offsets, types.cast)
        }
        Err(error) => {
            tracing::warn!("Connections are not counted and queues not judged: {error}.");
            (SocketOffsets::UNKNOWN, None)
        }
    };
    Ok(LoadOptions { namespace_inode: namespace::inode()?, offsets, cast, bpf_log })
}

fn follow_bpf_log(datapath: &mut Datapath) {
    let logger = match datapath.take_log() {
        Ok(Some(logger)) => logger,
        Ok(None) => return,
        Err(error) => {
            tracing::warn!("The kernel programs' log is not shown: {error:#}.");
            return;
        }
    };
    // SAFETY: the logger owns its ring buffer, whose descriptor stays open and the same until both are dropped.
    #[expect(unsafe_code, reason = "the library gives a raw descriptor only")]
    let registered = unsafe { AsyncFd::register(logger) };
    let logger = match registered {
        Ok(logger) => logger,
        Err(error) => {
            tracing::warn!("The kernel programs' log is not shown: {error}.");
            return;
        }
    };
    tokio::spawn(async move {
        let mut logger = logger;
        while let Ok(mut ready) = logger.readable_mut().await {
            ready.get_inner_mut().flush();
            ready.clear_ready();
        }
    });
}

fn tick_age(last_tick: &Arc<AtomicU64>) -> Arc<dyn Fn() -> Option<Duration> + Send + Sync> {
    let last_tick = Arc::clone(last_tick);
    Arc::new(move || {
        let last_ns = last_tick.load(Ordering::Relaxed);
        (last_ns != 0).then(|| clock::monotonic().saturating_sub(Duration::from_nanos(last_ns)))
    })
}
