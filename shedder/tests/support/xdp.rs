//! A one-instruction XDP program of the test's own: a veth that runs any receives what its peer sends by native
//! XDP, and one that drops is a network that loses what comes back.
#![expect(
    unsafe_code,
    reason = "the program is loaded by the bare system call, without the loader under test"
)]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, RawFd};

use aya_obj::generated::{bpf_attach_type, bpf_attr, bpf_cmd, bpf_insn, bpf_prog_type};
use xtask::testbed::{End, Namespace};

const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;

/// What the program returns for every packet.
#[derive(Clone, Copy, Debug)]
pub enum Verdict {
    Drop = 1,
    Pass = 2,
}

/// A program attached to a device, natively; detached on drop.
#[derive(Debug)]
pub struct XdpProgram {
    _link: File,
}

impl XdpProgram {
    /// Loads one and attaches it to an end of a veth pair.
    pub fn attach(namespace: &Namespace, end: &End, verdict: Verdict) -> Self {
        let link = namespace
            .enter(|| {
                let ifindex = super::wire::ifindex(&end.interface)?;
                attach(load(verdict)?.as_raw_fd(), ifindex)
            })
            .unwrap()
            .unwrap();
        Self { _link: link }
    }
}

fn load(verdict: Verdict) -> io::Result<File> {
    // r0 = verdict; exit
    let instructions = [instruction(0xb7, verdict as i32), instruction(0x95, 0)];
    let license = c"Dual MIT/GPL";
    // SAFETY: all zero is a value of this union of plain numbers.
    let mut attributes: bpf_attr = unsafe { std::mem::zeroed() };
    // SAFETY: any bytes are a value of this member.
    let load = unsafe { &mut attributes.__bindgen_anon_3 };
    load.prog_type = bpf_prog_type::BPF_PROG_TYPE_XDP as u32;
    load.insns = instructions.as_ptr() as u64;
    load.insn_cnt = 2;
    load.license = license.as_ptr() as u64;
    bpf(bpf_cmd::BPF_PROG_LOAD, &attributes)
}

fn instruction(code: u8, immediate: i32) -> bpf_insn {
    bpf_insn {
        code,
        _bitfield_align_1: [],
        _bitfield_1: bpf_insn::new_bitfield_1(0, 0),
        off: 0,
        imm: immediate,
    }
}

fn attach(program: RawFd, ifindex: u32) -> io::Result<File> {
    // SAFETY: as above.
    let mut attributes: bpf_attr = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    let link = unsafe { &mut attributes.link_create };
    link.__bindgen_anon_1.prog_fd = u32::try_from(program).unwrap();
    link.__bindgen_anon_2.target_ifindex = ifindex;
    link.attach_type = bpf_attach_type::BPF_XDP as u32;
    link.flags = XDP_FLAGS_DRV_MODE;
    bpf(bpf_cmd::BPF_LINK_CREATE, &attributes)
}

fn bpf(command: bpf_cmd, attributes: &bpf_attr) -> io::Result<File> {
    // SAFETY: the kernel reads the attributes, and what they point to lives until the call returns.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, command as u32, attributes, size_of::<bpf_attr>()) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and nobody else's.
    Ok(unsafe { File::from_raw_fd(RawFd::try_from(fd).unwrap()) })
}
