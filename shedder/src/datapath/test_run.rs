//! Running the loaded programs on bytes, without an interface: for tests and benchmarks.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use aya::Ebpf;
use aya::programs::{TestRun as _, TestRunOptions};
use shedder_common::abi::program;
use shedder_common::fingerprint::Key;
use shedder_common::packet::parse::ETHERNET_LEN;

use super::pins::{PinLock, Pins};
use super::{Counters, LoadOptions, Rules, SourceEntry, maps, programs};
use crate::quota::QuotaTable;

/// A program that can be run on bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// Judges on XDP.
    ShedXdp,
    /// Judges on TC.
    ShedTc,
    /// Passes everything on XDP.
    PassXdp,
    /// Passes everything on TC.
    PassTc,
}

/// What a run gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestRun {
    /// What the program returned.
    pub action: u32,
    /// The packet afterwards.
    pub packet: Vec<u8>,
    /// Mean time of one run.
    pub duration: Duration,
}

/// The programs and maps, loaded but not attached anywhere.
pub struct TestBench {
    ebpf: Ebpf,
    loaded: LoadOptions,
    maps: maps::Maps,
    pins: Pins,
    _lock: PinLock,
}

impl TestBench {
    /// Loads the programs with maps pinned under a bpffs directory of the bench's own, for devices with that
    /// link header.
    ///
    /// # Errors
    ///
    /// As for [`super::Datapath::start`].
    pub fn load(bpffs: &Path, options: LoadOptions, link_header_len: u32) -> Result<Self> {
        let pins = Pins::new(bpffs);
        let lock = pins.lock()?;
        pins.create()?;
        let (mut ebpf, loaded) = programs::load(&pins, &options, link_header_len)?;
        if link_header_len == ETHERNET_LEN {
            programs::load_empty_programs(&mut ebpf)?;
        }
        let maps = maps::Maps::take(&mut ebpf)?;
        Ok(Self { ebpf, loaded, maps, pins, _lock: lock })
    }

    /// What the programs were loaded with: less than was given where the kernel does not allow all of it.
    #[must_use]
    pub const fn loaded(&self) -> &LoadOptions {
        &self.loaded
    }

    /// As [`super::Datapath::write`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn write(&mut self, table: &QuotaTable, rules: &Rules) -> Result<()> {
        self.maps.write(table, rules).map(drop)
    }

    /// As [`super::Datapath::renew`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn renew(&mut self, rules: &Rules) -> Result<()> {
        self.maps.renew(rules)
    }

    /// As [`super::Datapath::set_local_addresses`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn set_local_addresses(&mut self, addresses: &[shedder_common::address::Address]) -> Result<()> {
        self.maps.set_local_addresses(addresses).map(drop)
    }

    /// As [`super::Datapath::set_sources`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn set_sources(&mut self, sources: &[SourceEntry]) -> Result<()> {
        self.maps.set_sources(sources)
    }

    /// As [`super::Datapath::set_correction`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn set_correction(&mut self, first: u16, last: u16, connections: i64) -> Result<()> {
        self.maps.set_correction((first, last), connections)
    }

    /// As [`super::Datapath::read`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn read(&self) -> Result<Counters> {
        self.maps.read()
    }

    /// The secret of the programs' fingerprints, with which a test finds the same slots.
    #[must_use]
    pub fn fingerprint_key() -> Key {
        *programs::FINGERPRINT_KEY
    }

    /// Instructions that the verifier walked through for a program.
    ///
    /// # Errors
    ///
    /// The program is not loaded.
    pub fn verified_instructions(&mut self, program: Program) -> Result<u32> {
        let info = match program {
            Program::ShedXdp | Program::PassXdp => programs::xdp(&mut self.ebpf, name(program))?.info()?,
            Program::ShedTc | Program::PassTc => {
                programs::classifier(&mut self.ebpf, name(program))?.info()?
            }
        };
        info.verified_instruction_count().context("this kernel does not tell")
    }

    /// Runs a program `repeat` times on a packet.
    ///
    /// # Errors
    ///
    /// The kernel refuses the run.
    pub fn run(&mut self, program: Program, packet: &[u8], repeat: u32) -> Result<TestRun> {
        let mut out = vec![0; packet.len() + 256];
        let options = TestRunOptions {
            data_in: Some(packet),
            data_out: Some(&mut out),
            repeat,
            ..TestRunOptions::default()
        };
        let result = match program {
            Program::ShedXdp | Program::PassXdp => {
                programs::xdp(&mut self.ebpf, name(program))?.test_run(options)?
            }
            Program::ShedTc | Program::PassTc => {
                programs::classifier(&mut self.ebpf, name(program))?.test_run(options)?
            }
        };
        out.truncate(result.data_size_out as usize);
        Ok(TestRun { action: result.return_value, packet: out, duration: result.duration })
    }
}

impl Drop for TestBench {
    fn drop(&mut self) {
        if let Err(error) = self.pins.remove_all() {
            tracing::warn!("The pins of a test bench stay: {error:#}");
        }
    }
}

const fn name(program: Program) -> &'static str {
    match program {
        Program::ShedXdp => program::SHED_XDP,
        Program::ShedTc => program::SHED_TC,
        Program::PassXdp => program::PASS_XDP,
        Program::PassTc => program::PASS_TC,
    }
}
