//! The configuration after validation: plain values, no text, nothing left to check.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;
use shedder_common::class::{CLASSES, Class};
use shedder_common::control::Mode;
use shedder_common::level::{LEVELS, Level};

/// Everything that `shedder run` obeys.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// What the kernel does with its decisions.
    pub mode: Mode,
    /// Where the programs are attached.
    pub attach: Attach,
    /// The daemon itself.
    pub daemon: Daemon,
    /// The HTTP endpoint.
    pub metrics: Metrics,
    /// What is never shed.
    pub guard: Guard,
    /// How levels rise and fall.
    pub levels: LevelRules,
    /// Every signal, the defaults merged with what the file says: the built-in ones in a fixed order, then the
    /// file's own by name.
    pub signals: Vec<Signal>,
    /// By [`Class::index`].
    pub classes: [ClassRules; CLASSES],
    /// Classes by source CIDR.
    pub sources: Vec<SourceClass>,
    /// Port policies; ranges without `shared` are already one policy for each port.
    pub ports: Vec<PortPolicy>,
    /// No file was given: policies follow the TCP ports that listen, with default limits, except those of
    /// [`Guard::ports`]. With a file its `[[port]]` policies are all there are.
    pub follow_listeners: bool,
}

/// `[attach]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attach {
    /// Interfaces; never empty.
    pub interfaces: Vec<InterfacePattern>,
    /// How.
    pub via: Via,
}

/// One entry of `attach.interfaces`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InterfacePattern {
    /// `default-route`: whatever holds a default route, IPv4 or IPv6.
    DefaultRoute,
    /// A name.
    Name(String),
    /// A glob such as `eth*`.
    Glob(String),
}

/// `attach.via`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    /// Native XDP, else TCX, else clsact.
    Auto,
    /// XDP in the driver or an error.
    Native,
    /// XDP on socket buffers or an error.
    Generic,
    /// TCX, else clsact, or an error.
    Tc,
}

/// Name of the file with the host's level, beside [`Daemon::socket`].
pub const LEVEL_FILE: &str = "level";

/// `[daemon]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Daemon {
    /// Pace of the control loop.
    pub tick: Duration,
    /// For how long the kernel obeys what was written last.
    pub lease: Duration,
    /// The control socket.
    pub socket: PathBuf,
    /// Directory in bpffs under which maps and links are pinned.
    pub bpffs: PathBuf,
    /// What SIGTERM leaves behind.
    pub on_exit: OnExit,
}

/// `daemon.on_exit`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnExit {
    /// Nothing.
    Detach,
    /// Pinned programs and maps that pass everything once the lease ends.
    Keep,
}

/// `[metrics]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metrics {
    /// Where the endpoint listens; `None` where it is switched off with `listen = "off"`.
    pub listen: Option<SocketAddr>,
    /// From this level on `/admission` answers 503, unless the request names another; never `normal`.
    pub admission_level: Level,
}

/// `[guard]`
#[derive(Clone, Debug, PartialEq)]
pub struct Guard {
    /// Ports that no policy covers unless it says `override_guard = true`. A list in the file replaces the default
    /// one; the endpoint's own port is always among them.
    pub ports: Vec<u16>,
    /// Sources that are always admitted, within `rate`.
    pub sources: Vec<IpNet>,
    /// Rate of those sources together.
    pub rate: RateLimit,
}

/// `[levels]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LevelRules {
    /// Time below `exit` before a step down.
    pub hold: Duration,
    /// A level held longer than this without need is probed one level down.
    pub max_hold: Duration,
    /// Time over which shares climb back after a step down.
    pub ramp: Duration,
    /// Age from which a reading is unavailable.
    pub stale_after: Duration,
    /// What a signal that is lost demands.
    pub on_loss: OnLoss,
}

/// `on_loss`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnLoss {
    /// Nothing.
    Ignore,
    /// What it demanded last, for `max_hold` at most.
    Hold,
}

/// `[signals.NAME]`
#[derive(Clone, Debug, PartialEq)]
pub struct Signal {
    /// The name in metrics and on the command line.
    pub name: String,
    /// Where the number comes from.
    pub source: SignalSource,
    /// Switched off signals are neither read nor shown.
    pub enabled: bool,
    /// By [`shedder_common::level::Level::index`]; `normal` is always `None`.
    pub thresholds: [Option<Threshold>; LEVELS],
    /// Time at or above `enter` before the level rises.
    pub rise_after: Duration,
    /// Overrides [`LevelRules::stale_after`].
    pub stale_after: Duration,
    /// Overrides [`LevelRules::on_loss`].
    pub on_loss: OnLoss,
}

/// Enter and exit values of one level; `enter > exit`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Threshold {
    /// At or above this value the level is demanded.
    pub enter: f64,
    /// At or below this value the demand ends, so that 0 can be left again.
    pub exit: f64,
}

/// Where a signal's number comes from.
#[derive(Clone, Debug, PartialEq)]
pub enum SignalSource {
    /// Stall time, percent.
    Psi {
        /// cpu, memory or io.
        resource: PsiResource,
        /// `full` instead of `some`.
        full: bool,
        /// Over what.
        window: PsiWindow,
    },
    /// Used memory over the limit, ratio.
    Memory,
    /// Open descriptors over the limit, ratio.
    Fds,
    /// Accept queue over the listen backlog, ratio.
    AcceptQueue,
    /// Connection-tracking entries over their limit, ratio.
    Conntrack,
    /// TCP memory over its pressure limit, ratio.
    TcpMem,
    /// Accept-queue overflows per second.
    ListenOverflows,
    /// A number that an application or script writes.
    File {
        /// The file.
        path: PathBuf,
        /// What it speaks for.
        scope: FileScope,
    },
}

/// PSI resources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PsiResource {
    /// `/proc/pressure/cpu`
    Cpu,
    /// `/proc/pressure/memory`
    Memory,
    /// `/proc/pressure/io`
    Io,
}

/// `window` of a PSI signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PsiWindow {
    /// From the `total` counters over this time.
    Over(Duration),
    /// The kernel's ten-second average.
    Avg10,
    /// The kernel's one-minute average.
    Avg60,
    /// The kernel's five-minute average.
    Avg300,
}

/// `scope` of a `file` signal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileScope {
    /// The whole host.
    Host,
    /// One port.
    Port(u16),
    /// One cgroup, its path below the cgroup mount.
    Cgroup(PathBuf),
}

/// `[classes.NAME]`
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClassRules {
    /// Part of every limit by level, 0..=1.
    pub shares: [f64; LEVELS],
    /// Part of the port's rate that the class always keeps, 0..=1.
    pub floor: f64,
    /// Overrides the port's action.
    pub action: Option<Action>,
}

/// `[[source]]`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceClass {
    /// Who.
    pub cidr: IpNet,
    /// As what.
    pub class: Class,
}

/// `[[port]]`
#[derive(Clone, Debug, PartialEq)]
pub struct PortPolicy {
    /// First port.
    pub first: u16,
    /// Last port; above `first` only where the whole range shares one quota.
    pub last: u16,
    /// Class of whoever has none by source.
    pub class: Class,
    /// New connections per second.
    pub rate: RateLimit,
    /// Connections that may come at once after idleness; `None` is a tenth of a second's worth, 1 at least.
    pub burst: Option<u32>,
    /// Concurrent connections; `None` is no limit.
    pub connections: Option<u32>,
    /// Part of the listen backlog, 0..=1; `None` is no limit.
    pub queue_depth: Option<f64>,
    /// Age of the oldest unaccepted connection; `None` is no limit.
    pub queue_wait: Option<Duration>,
    /// What a refusal does.
    pub action: Action,
    /// Destinations covered.
    pub to: Destinations,
}

/// A rate of new connections.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RateLimit {
    /// This many per second; 0 admits none.
    PerSecond(f64),
    /// What the port admitted before it came under pressure.
    Learned,
    /// No limit.
    Unlimited,
}

/// What a refusal does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send nothing.
    Drop,
    /// Answer with one RST.
    Reset,
}

impl Action {
    /// As the configuration spells it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Drop => "drop",
            Self::Reset => "reset",
        }
    }
}

/// Destinations that a policy covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destinations {
    /// The addresses of this host.
    Local,
    /// Every destination.
    Any,
    /// These.
    Listed(Vec<IpNet>),
}

impl PortPolicy {
    /// The port or range as configuration and metrics spell it: `8080`, `8000-8099`.
    #[must_use]
    pub fn label(&self) -> String {
        if self.first == self.last { self.first.to_string() } else { format!("{}-{}", self.first, self.last) }
    }

    /// Whether its owner closed it: a limit of 0 admits none, whatever the share, and no floor lies below it.
    #[must_use]
    pub fn admits_none(&self) -> bool {
        self.rate == RateLimit::PerSecond(0.0)
            || self.connections == Some(0)
            || self.queue_depth == Some(0.0)
            || self.queue_wait.is_some_and(|wait| wait.is_zero())
    }
}
