//! The daemon as a whole: processor time and memory as the kernel accounts for them.

use std::fs::{self, File};
use std::mem::MaybeUninit;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};

use super::TICK_MS;
use super::host::Host;

/// Time for everything that a start looks for, a bounded amount of work in each tick.
const SETTLE: Duration = Duration::from_secs(8);
/// Covers what is done once a second. All windows together cover what is done every ten.
const WINDOW: Duration = Duration::from_secs(2);
const WINDOWS: usize = 10;
const STEP: Duration = Duration::from_millis(50);
const PATIENCE_STEPS: u32 = 600;

pub(crate) struct Whole {
    /// Of the median window: other work on the machine makes caches cold.
    pub(crate) cpu_ms_per_tick: f64,
    pub(crate) mean_cpu_ms_per_tick: f64,
    pub(crate) least_cpu_ms_per_tick: f64,
    pub(crate) resident_mib: f64,
    pub(crate) peak_mib: f64,
    pub(crate) log_lines: usize,
}

pub(crate) fn measure(host: &Host) -> Result<Whole> {
    let log = host.directory.path().join("log");
    let mut command = Command::new(env!("CARGO_BIN_EXE_shedder"));
    command.arg("run").arg("--config").arg(&host.config);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&log)?);
    let mut child = Running(host.namespace.spawn(&mut command)?);
    let measured = child.measure(host);
    let stopped = child.stop();
    let log = fs::read_to_string(&log)?;
    let whole = measured.with_context(|| format!("its log:\n{log}"))?;
    stopped.with_context(|| format!("its log:\n{log}"))?;
    Ok(Whole { log_lines: log.lines().count(), ..whole })
}

/// Killed on drop unless it was stopped.
struct Running(Child);

impl Running {
    fn measure(&mut self, host: &Host) -> Result<Whole> {
        for step in 0.. {
            // The socket is bound before the programs are loaded; it answers after the first tick.
            if let Some(status) = self.0.try_wait()? {
                bail!("the daemon ended: {status}");
            }
            if UnixStream::connect(host.socket()).is_ok() {
                break;
            }
            ensure!(step < PATIENCE_STEPS, "the daemon does not get ready");
            sleep(STEP);
        }
        sleep(SETTLE);
        let mut windows = (0..WINDOWS).map(|_| self.window()).collect::<Result<Vec<f64>>>()?;
        let mean = windows.iter().sum::<f64>() / WINDOWS as f64;
        windows.sort_by(f64::total_cmp);
        Ok(Whole {
            mean_cpu_ms_per_tick: mean,
            cpu_ms_per_tick: windows.get(WINDOWS / 2).copied().unwrap_or(mean),
            least_cpu_ms_per_tick: windows.first().copied().unwrap_or(mean),
            resident_mib: self.status_mib("VmRSS:")?,
            peak_mib: self.status_mib("VmHWM:")?,
            log_lines: 0,
        })
    }

    /// Processor time of each tick of a window.
    fn window(&self) -> Result<f64> {
        let (began, before) = (shedder::daemon::clock::monotonic(), self.cpu()?);
        sleep(WINDOW);
        let (ended, after) = (shedder::daemon::clock::monotonic(), self.cpu()?);
        let ticks = (ended - began).as_secs_f64() * 1e3 / TICK_MS;
        Ok((after - before).as_secs_f64() * 1e3 / ticks)
    }

    /// Processor time of all threads so far.
    fn cpu(&self) -> Result<Duration> {
        let pid = libc::pid_t::try_from(self.0.id())?;
        let mut clock = 0;
        let mut time = MaybeUninit::uninit();
        // SAFETY: both pointers are valid for writes of their type.
        #[expect(unsafe_code, reason = "no safe wrapper gives the clock of another process")]
        let time = unsafe {
            ensure!(libc::clock_getcpuclockid(pid, &raw mut clock) == 0, "the daemon has no clock");
            ensure!(libc::clock_gettime(clock, time.as_mut_ptr()) == 0, "the daemon's clock cannot be read");
            time.assume_init()
        };
        Ok(Duration::new(u64::try_from(time.tv_sec)?, u32::try_from(time.tv_nsec)?))
    }

    fn status_mib(&self, key: &str) -> Result<f64> {
        let text = fs::read_to_string(format!("/proc/{}/status", self.0.id()))?;
        let kibibytes = text.lines().find_map(|line| line.strip_prefix(key)?.trim().strip_suffix(" kB"));
        Ok(kibibytes.with_context(|| format!("no {key} in the daemon's status"))?.parse::<f64>()? / 1024.0)
    }

    fn stop(&mut self) -> Result<()> {
        if self.0.try_wait()?.is_none() {
            rustix::process::kill_process(
                rustix::process::Pid::from_child(&self.0),
                rustix::process::Signal::TERM,
            )?;
        }
        for _ in 0..PATIENCE_STEPS {
            if let Some(status) = self.0.try_wait()? {
                ensure!(status.success(), "the daemon ended: {status}");
                return Ok(());
            }
            sleep(STEP);
        }
        bail!("the daemon does not end")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It has usually ended.
        self.0.kill().ok();
        self.0.wait().ok();
    }
}
