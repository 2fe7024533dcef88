//! Attaching to interfaces, and adopting what an earlier daemon attached.

use std::path::Path;

use anyhow::{Chain, Context as _, Result, bail};
use aya::Ebpf;
use aya::programs::links::{FdLink, PinnedLink};
use aya::programs::tc::{
    NlOptions, SchedClassifier, SchedClassifierLink, TcAttachOptions, TcError, TcHandle, qdisc_add_clsact,
    qdisc_detach_program,
};
use aya::programs::xdp::XdpLink;
use aya::programs::{LinkOrder, ProgramError, TcAttachType, XdpMode};
use shedder_common::abi::program;

use super::errno::errno;
use super::pins::{Pins, remove_file};
use super::programs;
use crate::kernel::attachment::Hook;
use crate::net::{filters, links};

/// Where shedder's filter stands on clsact, so that a restart finds its own and no one else's.
const CLSACT_PRIORITY: u16 = 0x5ed;
const CLSACT_HANDLE: u32 = 0x5ed;

/// A program attached to an interface. Dropping it detaches unless the link is pinned.
#[derive(Debug)]
pub(super) enum Held {
    /// By `bpf_link`, pinned.
    Link(#[expect(dead_code, reason = "open, it stays attached")] FdLink),
    /// By a clsact filter, which stays until it is removed.
    Filter,
}

/// Why an attachment failed.
#[derive(Debug)]
pub struct AttachError {
    /// The kernel's error, where there was one.
    pub errno: Option<i32>,
    /// All of it.
    pub error: anyhow::Error,
}

impl From<anyhow::Error> for AttachError {
    fn from(error: anyhow::Error) -> Self {
        Self { errno: errno(error.chain()), error }
    }
}

/// Attaches at one hook, taking over a pinned link where one is left.
pub(super) fn attach(
    ebpf: &mut Ebpf,
    pins: &Pins,
    hook: Hook,
    interface: &str,
    ifindex: u32,
) -> Result<Held, AttachError> {
    let pin = pins.interface_link(hook, ifindex);
    let left = pins
        .interface_links()
        .into_iter()
        .filter(|(other_hook, other_ifindex, _)| (*other_hook, *other_ifindex) == (hook, ifindex));
    for (_, _, path) in left {
        match adopt(ebpf, hook, &path) {
            Ok(link) => return Ok(Held::Link(repin(link, &path, &pin)?)),
            Err(error) => {
                // Its interface is gone, or it is no link of ours: what it held is free.
                tracing::debug!("{} is not adopted: {error:#}", path.display());
                remove_file(&path)?;
            }
        }
    }
    let link = match hook {
        Hook::XdpNative => attach_xdp(ebpf, ifindex, XdpMode::Driver)?,
        Hook::XdpGeneric => attach_xdp(ebpf, ifindex, XdpMode::Skb)?,
        Hook::Tcx => attach_tcx(ebpf, interface)?,
        Hook::Clsact => {
            attach_clsact(ebpf, interface)?;
            return Ok(Held::Filter);
        }
    };
    Ok(Held::Link(pin_link(link, &pin)?))
}

/// Id of the program that serves a hook.
pub(super) fn program_id(ebpf: &mut Ebpf, hook: Hook) -> Result<u32> {
    let info = if hook.is_xdp() {
        programs::xdp(ebpf, program::SHED_XDP)?.info()
    } else {
        programs::classifier(ebpf, program::SHED_TC)?.info()
    };
    Ok(info?.id())
}

/// Whether a program runs at the TCX ingress hook of an interface.
pub(super) fn runs_at_tcx(interface: &str, program_id: u32) -> Result<bool> {
    let (_revision, programs) = SchedClassifier::query_tcx(interface, TcAttachType::Ingress)?;
    Ok(programs.iter().any(|program| program.id() == program_id))
}

/// Whether a filter of the clsact qdisc of an interface runs a program.
pub(super) fn runs_at_clsact(ifindex: u32, program_id: u32) -> Result<bool> {
    Ok(filters::ingress_programs(ifindex)?.contains(&program_id))
}

/// Unpins, and removes a filter. A link goes when it is dropped.
pub(super) fn detach(pins: &Pins, held: &Held, hook: Hook, ifindex: u32) -> Result<()> {
    remove_file(&pins.interface_link(hook, ifindex))?;
    match held {
        Held::Link(_) => Ok(()),
        Held::Filter => remove_clsact_filter_at(ifindex),
    }
}

/// [`remove_clsact_filter`] of an interface, whatever it is called by now. With an interface its filter goes too.
pub(super) fn remove_clsact_filter_at(ifindex: u32) -> Result<()> {
    match links::name(ifindex)? {
        Some(interface) => remove_clsact_filter(&interface),
        None => Ok(()),
    }
}

/// Removes shedder's filter from an interface's clsact qdisc; the qdisc stays, since others may use it.
pub(super) fn remove_clsact_filter(interface: &str) -> Result<()> {
    match qdisc_detach_program(interface, TcAttachType::Ingress, program::SHED_TC) {
        Ok(()) => Ok(()),
        // There is none.
        Err(TcError::IoError(error)) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) if errno(Chain::new(&error)) == Some(libc::ENODEV) => Ok(()),
        Err(error) => Err(error).with_context(|| format!("remove the filter from {interface}")),
    }
}

fn adopt(ebpf: &mut Ebpf, hook: Hook, path: &Path) -> Result<FdLink> {
    let link: FdLink = PinnedLink::from_pin(path)?.into();
    match hook {
        Hook::XdpNative | Hook::XdpGeneric => {
            let program = programs::xdp(ebpf, program::SHED_XDP)?;
            let id = program.attach_to_link(XdpLink::try_from(link)?)?;
            Ok(program.take_link(id)?.try_into()?)
        }
        Hook::Tcx => {
            let program = programs::classifier(ebpf, program::SHED_TC)?;
            let id = program.attach_to_link(SchedClassifierLink::try_from(link)?)?;
            Ok(program.take_link(id)?.try_into()?)
        }
        Hook::Clsact => bail!("a filter has no link"),
    }
}

/// Moves an adopted link's pin to where this version keeps it.
fn repin(link: FdLink, from: &Path, to: &Path) -> Result<FdLink> {
    if from == to {
        return Ok(link);
    }
    let link = pin_link(link, to)?;
    remove_file(from)?;
    Ok(link)
}

fn attach_xdp(ebpf: &mut Ebpf, ifindex: u32, mode: XdpMode) -> Result<FdLink> {
    let program = programs::xdp(ebpf, program::SHED_XDP)?;
    let id = program.attach_to_if_index(ifindex, mode)?;
    let link = program.take_link(id)?;
    // The library falls back to netlink, whose attachment would outlive a crash without a pin.
    link.try_into().context("the kernel has no bpf_link for XDP (needs Linux 5.9)")
}

fn attach_tcx(ebpf: &mut Ebpf, interface: &str) -> Result<FdLink> {
    let program = programs::classifier(ebpf, program::SHED_TC)?;
    let options = TcAttachOptions::TcxOrder(LinkOrder::default());
    let id = program.attach_with_options(interface, TcAttachType::Ingress, options)?;
    Ok(program.take_link(id)?.try_into()?)
}

fn attach_clsact(ebpf: &mut Ebpf, interface: &str) -> Result<()> {
    match qdisc_add_clsact(interface) {
        Ok(()) => {}
        Err(error) if errno(Chain::new(&error)) == Some(libc::EEXIST) => {}
        Err(error) => return Err(error).with_context(|| format!("add clsact to {interface}")),
    }
    remove_clsact_filter(interface)?;
    let program = programs::classifier(ebpf, program::SHED_TC)?;
    let options = NlOptions {
        priority: CLSACT_PRIORITY,
        handle: TcHandle::from(CLSACT_HANDLE),
        ..NlOptions::default()
    };
    let id =
        program.attach_with_options(interface, TcAttachType::Ingress, TcAttachOptions::Netlink(options))?;
    // The filter belongs to the qdisc, not to this process; it is removed by name.
    std::mem::forget(program.take_link(id)?);
    Ok(())
}

/// Pins a link and keeps it open.
pub(super) fn pin_link(link: FdLink, path: &Path) -> Result<FdLink> {
    remove_file(path)?;
    let pinned = link.pin(path).with_context(|| format!("pin {}", path.display()))?;
    Ok(pinned.into())
}

/// Attaches the connection counting. New programs are attached before the old ones go; a connection is counted
/// once although several see it, because the socket remembers.
pub(super) fn attach_track_connections(ebpf: &mut Ebpf, pins: &Pins) -> Result<Vec<FdLink>> {
    let attach = |name| {
        let program = programs::tracker(ebpf, name)?;
        let id = program
            .attach()
            .map_err(|error: ProgramError| anyhow::Error::from(error))
            .context("attach to the tracepoint inet_sock_set_state")?;
        pin_link(program.take_link(id)?.into(), &pins.track_link(name))
    };
    programs::TRACKERS.into_iter().map(attach).collect()
}

/// Makes every live connection hold the policy that its port has now, and the counts say so.
pub(super) fn recount_connections(ebpf: &mut Ebpf) -> Result<()> {
    let program = programs::recount_connections(ebpf)?;
    let id = program.attach().context("attach to the iterator over TCP sockets")?;
    let mut sockets = program.take_link(id)?.into_file().context("iterate over TCP sockets")?;
    // Reading is what runs it; it prints nothing.
    std::io::copy(&mut sockets, &mut std::io::sink()).context("iterate over TCP sockets")?;
    Ok(())
}
