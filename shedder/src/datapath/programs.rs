//! Loading the programs.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::LazyLock;

use anyhow::{Context as _, Result, anyhow, bail};
use aya::programs::{BtfTracePoint, Iter, SchedClassifier, Xdp};
use aya::{Btf, Ebpf, EbpfLoader};
use shedder_common::abi::{NO_FIELD, SocketOffsets, global, map, program};
use shedder_common::fingerprint::Key;

use super::object::object;
use super::pins::Pins;
use super::wire::Wire;
use crate::kernel::offsets::Cast;

/// The programs that count connections.
pub(super) const TRACKERS: [&str; 2] = [program::TRACK_CONNECTIONS, program::TRACK_INTERRUPTING];

/// What the programs must know before they are loaded.
#[derive(Clone, Copy, Debug)]
pub struct LoadOptions {
    /// Inode number of the network namespace whose sockets are counted.
    pub namespace_inode: u32,
    /// Where the kernel keeps socket fields.
    pub offsets: SocketOffsets,
    /// How the kernel lets a program say that a pointer is to a `tcp_sock`.
    pub cast: Option<Cast>,
    /// Level of the programs' log; `None` removes it from the code.
    pub bpf_log: Option<aya_log::Level>,
}

/// One for all programs of this process, which share their fingerprints.
pub(super) static FINGERPRINT_KEY: LazyLock<Key> = LazyLock::new(|| {
    // The hasher's keys come from the system's random numbers.
    Key::new(std::array::from_fn(|index| RandomState::new().hash_one(index)))
});

/// Loads the object with its maps pinned, or taken from their pins, and the packet programs for devices with that
/// link header into the kernel. What a kernel does not let them read is done without: returns too what they were loaded
/// with.
pub(super) fn load(pins: &Pins, options: &LoadOptions, link_header_len: u32) -> Result<(Ebpf, LoadOptions)> {
    let load = |options: LoadOptions| -> Result<(Ebpf, LoadOptions)> {
        let mut ebpf = load_object(pins, &options, link_header_len)?;
        load_packet_programs(&mut ebpf)?;
        Ok((ebpf, options))
    };
    let plain = LoadOptions { cast: None, ..*options };
    if options.cast.is_some() {
        match load(*options) {
            Ok(loaded) => return Ok(loaded),
            Err(error) => tracing::debug!("The programs do without bpf_rdonly_cast: {error:#}."),
        }
    }
    load(plain).or_else(|error| {
        for lesser in lesser(options.offsets) {
            if let Ok(loaded) = load(LoadOptions { offsets: lesser, ..plain }) {
                tracing::debug!("The programs read less of sockets: {error:#}.");
                return Ok(loaded);
            }
        }
        // Whatever it is, it is not what they read.
        Err(error)
    })
}

/// Offsets that a kernel may allow which refuses those: without what only a helper reads, which lockdown=confidentiality
/// forbids, and none.
fn lesser(offsets: SocketOffsets) -> impl Iterator<Item = SocketOffsets> {
    let typed = SocketOffsets { established_us: NO_FIELD, ..offsets };
    [typed, SocketOffsets::UNKNOWN].into_iter().filter(move |lesser| *lesser != offsets)
}

/// What gates do not judge because the programs were loaded with less than was given.
pub(super) fn unread(given: &LoadOptions, loaded: &LoadOptions) -> Option<&'static str> {
    if given.offsets == loaded.offsets {
        None
    } else if loaded.offsets == SocketOffsets::UNKNOWN {
        Some("the queue_depth and queue_wait gates admit")
    } else {
        Some("the queue_wait gate admits")
    }
}

fn load_object(pins: &Pins, options: &LoadOptions, link_header_len: u32) -> Result<Ebpf> {
    let paths: Vec<_> = map::ALL.into_iter().map(|name| (name, pins.map(name))).collect();
    let offsets = Wire(options.offsets);
    let tcp_sock = options.cast.map_or(0, |cast| cast.tcp_sock);
    let key = Wire(*FINGERPRINT_KEY);
    let log_level: u8 = options.bpf_log.map_or(0, |level| level as u8);
    let mut loader = EbpfLoader::new();
    loader
        .override_global(global::NAMESPACE_ID, &0_u32, true)
        .override_global(global::NAMESPACE_INODE, &options.namespace_inode, true)
        .override_global(global::LINK_HEADER_LEN, &link_header_len, true)
        .override_global(global::SOCKET_OFFSETS, &offsets, true)
        .override_global(global::TCP_SOCK_TYPE, &tcp_sock, true)
        .override_global(global::FINGERPRINT_KEY, &key, true)
        .override_global("AYA_LOG_LEVEL", &log_level, false);
    for (name, path) in &paths {
        loader.map_pin_path(name, path.as_path());
    }
    loader.load(&object(options.cast.map(|cast| cast.function))).context("load the kernel side")
}

fn load_packet_programs(ebpf: &mut Ebpf) -> Result<()> {
    let refused = |name| format!("the kernel refused {name}");
    xdp(ebpf, program::SHED_XDP)?.load().with_context(|| refused(program::SHED_XDP))?;
    classifier(ebpf, program::SHED_TC)?.load().with_context(|| refused(program::SHED_TC))
}

/// Loads the programs that pass everything, which benchmarks and tests measure against.
pub(super) fn load_empty_programs(ebpf: &mut Ebpf) -> Result<()> {
    xdp(ebpf, program::PASS_XDP)?.load()?;
    Ok(classifier(ebpf, program::PASS_TC)?.load()?)
}

/// The kernel's own types, without which connections cannot be counted.
pub(super) fn kernel_types() -> Result<Btf> {
    Btf::from_sys_fs().context(
        "/sys/kernel/btf/vmlinux is needed, from a kernel with CONFIG_DEBUG_INFO_BTF=y and with /sys mounted",
    )
}

/// Loads the connection counting into the kernel.
pub(super) fn load_track_connections(ebpf: &mut Ebpf, types: &Btf) -> Result<()> {
    for name in TRACKERS {
        tracker(ebpf, name)?.load("inet_sock_set_state", types).map_err(|error| {
            // A log of the verifier is nothing for a sentence.
            tracing::debug!("The kernel refused {name}: {error:#}.");
            anyhow!(
                "the kernel refused {name} (lockdown=confidentiality does that; RUST_LOG=debug shows more)"
            )
        })?;
    }
    Ok(())
}

/// Loads the iterator that counts the connections that are there already.
pub(super) fn load_recount_connections(ebpf: &mut Ebpf, types: &Btf) -> Result<()> {
    recount_connections(ebpf)?
        .load("tcp", types)
        .with_context(|| format!("the kernel refused {}", program::RECOUNT_CONNECTIONS))
}

/// An XDP program of the object.
pub(super) fn xdp<'a>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a mut Xdp> {
    match ebpf.program_mut(name) {
        Some(program) => Ok(program.try_into()?),
        None => bail!("the object has no program {name}"),
    }
}

/// A classifier of the object.
pub(super) fn classifier<'a>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a mut SchedClassifier> {
    match ebpf.program_mut(name) {
        Some(program) => Ok(program.try_into()?),
        None => bail!("the object has no program {name}"),
    }
}

/// A tracing program of the object.
pub(super) fn tracker<'a>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a mut BtfTracePoint> {
    match ebpf.program_mut(name) {
        Some(program) => Ok(program.try_into()?),
        None => bail!("the object has no program {name}"),
    }
}

/// The iterator of the object.
pub(super) fn recount_connections(ebpf: &mut Ebpf) -> Result<&mut Iter> {
    match ebpf.program_mut(program::RECOUNT_CONNECTIONS) {
        Some(program) => Ok(program.try_into()?),
        None => bail!("the object has no program {}", program::RECOUNT_CONNECTIONS),
    }
}
