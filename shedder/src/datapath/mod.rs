//! The kernel side as the daemon sees it: the only module that knows BPF.

mod attach;
mod counters;
mod errno;
mod maps;
mod object;
mod pinned;
mod pins;
mod ports;
mod prefixes;
mod program_info;
mod programs;
mod test_run;
mod unload;
mod wire;

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use aya::Ebpf;
use aya::programs::links::FdLink;
use shedder_common::abi::SocketOffsets;
use shedder_common::address::Address;
use shedder_common::control::Mode;
use shedder_common::gcra::Rate;
use shedder_common::packet::parse::ETHERNET_LEN;

pub use attach::AttachError;
pub use counters::{Counters, PolicyReading};
pub use maps::SourceEntry;
pub use pinned::Pinned;
pub use ports::PortRange;
pub use program_info::xdp_program_name;
pub use programs::LoadOptions;
pub use test_run::{Program, TestBench, TestRun};
pub use unload::{Unloaded, unload};

use crate::kernel::attachment::Hook;
use crate::quota::QuotaTable;

/// What is in force besides the limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// What the kernel does with its decisions.
    pub mode: Mode,
    /// Until when it obeys, on the monotonic clock.
    pub lease_expires_ns: u64,
    /// Rate of the exempt sources; `None` is no limit.
    pub exempt_rate: Option<Rate>,
}

/// A hook that did not work, and why.
pub type HookError = (Hook, AttachError);

/// Programs, maps and links of one daemon.
pub struct Datapath {
    pins: pins::Pins,
    _lock: pins::PinLock,
    options: LoadOptions,
    /// For devices with an Ethernet header, and counting.
    ethernet: Ebpf,
    /// For devices without a link-layer header; loaded when there is one.
    headerless: Option<Ebpf>,
    maps: maps::Maps,
    track: Result<Vec<FdLink>, String>,
    attached: BTreeMap<u32, Attached>,
    adopted: bool,
    recount: Recount,
}

/// Whether connections must be counted anew.
#[derive(Debug)]
enum Recount {
    Due,
    Done,
    /// The kernel has no iterator over TCP sockets, and why.
    Unavailable(String),
}

#[derive(Debug)]
struct Attached {
    hook: Hook,
    program_id: u32,
    held: attach::Held,
}

impl Datapath {
    /// Loads the programs and counts connections from now on. Maps that an earlier daemon pinned go on being
    /// used if they are what this build makes; otherwise they are made anew. Nothing is refused until
    /// [`Datapath::write`].
    ///
    /// # Errors
    ///
    /// bpffs is missing or held by another daemon, or the kernel refuses a map or program.
    pub fn start(bpffs: &Path, options: LoadOptions) -> Result<Self> {
        let pins = pins::Pins::new(bpffs);
        let lock = pins.lock()?;
        pins.create()?;
        if let Some(reason) = pins.unusable_maps()? {
            tracing::warn!("The pinned maps are not of this build and are made anew: {reason}.");
            pins.remove_maps()?;
        }
        let adopted = pins.map(shedder_common::abi::map::CONTROL).exists();
        let (mut ethernet, loaded) = programs::load(&pins, &options, ETHERNET_LEN)?;
        if let Some(consequence) = programs::unread(&options, &loaded) {
            tracing::warn!("The kernel does not let programs read all of its sockets: {consequence}.");
        }
        let (track, recount) = match start_counting(&mut ethernet, &pins, &loaded) {
            Ok((track, recount)) => (Ok(track), recount),
            Err(error) => {
                for name in programs::TRACKERS {
                    pins::remove_file(&pins.track_link(name))?;
                }
                let reason = format!("connections are not counted, so limits on them admit: {error:#}");
                (Err(reason.clone()), Recount::Unavailable(reason))
            }
        };
        let maps = maps::Maps::take(&mut ethernet)?;
        Ok(Self {
            pins,
            _lock: lock,
            options: loaded,
            ethernet,
            headerless: None,
            maps,
            track,
            attached: BTreeMap::new(),
            adopted,
            recount,
        })
    }

    /// Whether the maps are those of an earlier daemon, so that counters go on.
    #[must_use]
    pub const fn adopted(&self) -> bool {
        self.adopted
    }

    /// Why connections are not counted, so that no limit of theirs may be enforced; `None` where they are.
    #[must_use]
    pub fn uncounted(&self) -> Option<&str> {
        self.track.as_ref().err().map(String::as_str)
    }

    /// Attaches to an interface at the first hook of `ladder` that works. `may_fall_back` says after which
    /// kernel errors the next one is tried. Returns the hook, and why earlier ones failed.
    ///
    /// # Errors
    ///
    /// No hook worked.
    pub fn attach(
        &mut self,
        interface: &str,
        ifindex: u32,
        link_header_len: u32,
        ladder: &[Hook],
        may_fall_back: impl Fn(i32) -> bool,
    ) -> Result<(Hook, Vec<HookError>), Vec<HookError>> {
        let mut failures = Vec::new();
        for hook in ladder {
            let attempt =
                self.instance(link_header_len).map_err(AttachError::from).and_then(|(ebpf, pins)| {
                    let program_id = attach::program_id(ebpf, *hook)?;
                    Ok((program_id, attach::attach(ebpf, pins, *hook, interface, ifindex)?))
                });
            match attempt {
                Ok((program_id, held)) => {
                    self.attached.insert(ifindex, Attached { hook: *hook, program_id, held });
                    return Ok((*hook, failures));
                }
                Err(error) => {
                    let go_on = error.errno.is_some_and(&may_fall_back);
                    failures.push((*hook, error));
                    if !go_on {
                        break;
                    }
                }
            }
        }
        Err(failures)
    }

    /// Removes links and filters that an earlier daemon left on interfaces or at hooks that are not served any
    /// more, and what other ABI versions left. Called once after the first attachments.
    ///
    /// # Errors
    ///
    /// A pin or filter cannot be removed.
    pub fn remove_leftovers(&self) -> Result<()> {
        for (hook, ifindex, path) in self.pins.interface_links() {
            if self.attached.get(&ifindex).is_none_or(|attached| attached.hook != hook) {
                pins::remove_file(&path)?;
            }
        }
        // A filter has no pin that would tell of it.
        for (ifindex, _) in self.attached.iter().filter(|(_, attached)| attached.hook != Hook::Clsact) {
            attach::remove_clsact_filter_at(*ifindex)?;
        }
        self.pins.remove_other_versions()
    }

    /// Whether an interface that [`Datapath::attach`] attached to still runs the program. It does not where the
    /// interface left the namespace, was replaced under its index, or somebody detached the link or removed the filter. `xdp_program`
    /// is the id of the XDP program that the interface runs.
    #[must_use]
    pub fn is_attached(&self, interface: &str, ifindex: u32, xdp_program: Option<u32>) -> bool {
        match self.attached.get(&ifindex) {
            Some(attached) if attached.hook.is_xdp() => xdp_program == Some(attached.program_id),
            // Where the hook cannot be queried, nothing is known against it.
            Some(attached) if attached.hook == Hook::Tcx => {
                attach::runs_at_tcx(interface, attached.program_id).unwrap_or(true)
            }
            Some(attached) => attach::runs_at_clsact(ifindex, attached.program_id).unwrap_or(true),
            None => false,
        }
    }

    /// Detaches from an interface, which may be gone already.
    ///
    /// # Errors
    ///
    /// The pin or the filter cannot be removed; then it stays attached and this can be tried again.
    pub fn detach(&mut self, ifindex: u32) -> Result<()> {
        if let Some(Attached { hook, held, .. }) = self.attached.get(&ifindex) {
            attach::detach(&self.pins, held, *hook, ifindex)?;
            self.attached.remove(&ifindex);
        }
        Ok(())
    }

    /// Writes limits, ports and rules in one piece: everything into the bank that is not in force, then one
    /// word that puts it in force. Where new policies find no room beside those that go, these go first.
    ///
    /// # Errors
    ///
    /// More policies than slots, or the kernel refuses a write; then the table that is in force stays so, for as long
    /// as [`Datapath::renew`] renews its lease.
    pub fn write(&mut self, table: &QuotaTable, rules: &Rules) -> Result<()> {
        let moved = self.maps.write(table, rules)?;
        if moved && let Recount::Done = self.recount {
            self.recount = Recount::Due;
        }
        Ok(())
    }

    /// Counts the connections that are older than the counting, or than the policy of their port, where there
    /// may be such: after the start, and after a [`Datapath::write`] that gave ports another policy.
    ///
    /// # Errors
    ///
    /// The kernel cannot iterate over TCP sockets; such connections are then not counted.
    pub fn recount(&mut self) -> Result<()> {
        match &self.recount {
            Recount::Done => Ok(()),
            Recount::Due => {
                attach::recount_connections(&mut self.ethernet)?;
                self.recount = Recount::Done;
                Ok(())
            }
            Recount::Unavailable(why) => anyhow::bail!("{why}"),
        }
    }

    /// Renews the lease and the mode without touching limits.
    ///
    /// # Errors
    ///
    /// The kernel refuses the write.
    pub fn renew(&mut self, rules: &Rules) -> Result<()> {
        self.maps.renew(rules)
    }

    /// Makes the kernel know these addresses as the host's own. Returns those that found no place, to which
    /// policies with `to = "local"` therefore do not apply.
    ///
    /// # Errors
    ///
    /// The kernel refuses a write.
    pub fn set_local_addresses(&mut self, addresses: &[Address]) -> Result<Vec<Address>> {
        self.maps.set_local_addresses(addresses)
    }

    /// Makes the kernel know these sources.
    ///
    /// # Errors
    ///
    /// The kernel refuses a write.
    pub fn set_sources(&mut self, sources: &[SourceEntry]) -> Result<()> {
        self.maps.set_sources(sources)
    }

    /// Sets what is added to the kernel's count of a policy's live connections.
    ///
    /// # Errors
    ///
    /// The kernel refuses the write.
    pub fn set_correction(&mut self, first: u16, last: u16, connections: i64) -> Result<()> {
        self.maps.set_correction((first, last), connections)
    }

    /// Reads all counters, summed over CPUs.
    ///
    /// # Errors
    ///
    /// The kernel refuses a read.
    pub fn read(&self) -> Result<Counters> {
        self.maps.read()
    }

    /// Reads again what was decided by each policy, a third of the cost of [`Datapath::read`]; whatever else is in
    /// `counters` stays as it was read last.
    ///
    /// # Errors
    ///
    /// The kernel refuses a read.
    pub fn read_decisions(&self, counters: &mut Counters) -> Result<()> {
        self.maps.read_decisions(counters)
    }

    /// Log records of the programs, where they were loaded with a level.
    ///
    /// # Errors
    ///
    /// The ring buffer cannot be read.
    pub fn take_log(&mut self) -> Result<Option<aya_log::EbpfLogger<&'static dyn log::Log>>> {
        if self.options.bpf_log.is_none() {
            return Ok(None);
        }
        Ok(Some(aya_log::EbpfLogger::init(&mut self.ethernet).context("read the programs' log")?))
    }

    /// Leaves programs and maps pinned. They pass everything once the lease ends.
    pub fn keep(self) {}

    /// Detaches everywhere and unpins everything; what cannot be removed does not keep the rest.
    ///
    /// # Errors
    ///
    /// A pin or filter cannot be removed: the first of them.
    pub fn remove(mut self) -> Result<()> {
        let interfaces: Vec<u32> = self.attached.keys().copied().collect();
        let detached: Vec<Result<()>> = interfaces.into_iter().map(|ifindex| self.detach(ifindex)).collect();
        let track: Vec<Result<()>> =
            programs::TRACKERS.iter().map(|name| pins::remove_file(&self.pins.track_link(name))).collect();
        drop(self.track);
        let pins = self.pins.remove_all().map(drop);
        detached.into_iter().chain(track).chain([pins]).collect()
    }

    /// The programs for devices with that link header.
    fn instance(&mut self, link_header_len: u32) -> Result<(&mut Ebpf, &pins::Pins)> {
        if link_header_len != 0 {
            return Ok((&mut self.ethernet, &self.pins));
        }
        if self.headerless.is_none() {
            self.headerless = Some(programs::load(&self.pins, &self.options, 0)?.0);
        }
        let ebpf = self.headerless.as_mut().context("the programs for devices without header are gone")?;
        Ok((ebpf, &self.pins))
    }
}

/// Counts connections from now on.
///
/// # Errors
///
/// The kernel does not tell its types, or does not let programs read its sockets.
fn start_counting(
    ebpf: &mut Ebpf,
    pins: &pins::Pins,
    loaded: &LoadOptions,
) -> Result<(Vec<FdLink>, Recount)> {
    let types = programs::kernel_types()?;
    // Where sockets cannot be read the programs would see none.
    ensure!(loaded.offsets != SocketOffsets::UNKNOWN, "where the kernel keeps fields of sockets is unknown");
    programs::load_track_connections(ebpf, &types)?;
    let recount = match programs::load_recount_connections(ebpf, &types) {
        Ok(()) => Recount::Due,
        Err(error) => Recount::Unavailable(format!("{error:#}")),
    };
    Ok((attach::attach_track_connections(ebpf, pins)?, recount))
}
