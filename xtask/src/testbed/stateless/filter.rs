//! Filters of packet sockets, and their counts.

use std::io;
use std::mem::size_of;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd};

use libc::{
    BPF_ABS, BPF_ALU, BPF_AND, BPF_B, BPF_IND, BPF_JEQ, BPF_JMP, BPF_JSET, BPF_K, BPF_LD, BPF_LDX, BPF_MSH,
    BPF_RET, BPF_W, PACKET_STATISTICS, SO_ATTACH_FILTER, SOL_PACKET, SOL_SOCKET, c_void, sock_filter,
    sock_fprog, socklen_t, tpacket_stats,
};

const TCP: u32 = 6;
/// Where the flags stand in a TCP header.
const FLAGS: u32 = 13;
const RST: u32 = super::segment::RST as u32;
const WHOLE: u32 = 0x4_0000;

/// Which TCP segments to a network a socket shall get.
#[derive(Clone, Copy, Debug)]
pub(super) struct Filter {
    pub(super) network: Ipv4Addr,
    pub(super) mask: Ipv4Addr,
    /// Those with RST, or those without.
    pub(super) resets: bool,
}

impl Filter {
    /// Classic BPF over a packet that starts with its IP header.
    fn program(self) -> [sock_filter; 11] {
        let (hit, miss) = if self.resets { (0, 1) } else { (1, 0) };
        [
            instruction(BPF_LD | BPF_B | BPF_ABS, 9, 0, 0),
            instruction(BPF_JMP | BPF_JEQ | BPF_K, TCP, 0, 8),
            instruction(BPF_LD | BPF_W | BPF_ABS, 16, 0, 0),
            instruction(BPF_ALU | BPF_AND | BPF_K, self.mask.into(), 0, 0),
            instruction(BPF_JMP | BPF_JEQ | BPF_K, self.network.into(), 0, 5),
            instruction(BPF_LDX | BPF_B | BPF_MSH, 0, 0, 0),
            instruction(BPF_LD | BPF_B | BPF_IND, FLAGS, 0, 0),
            instruction(BPF_JMP | BPF_JSET | BPF_K, RST, hit, miss),
            instruction(BPF_RET | BPF_K, WHOLE, 0, 0),
            instruction(BPF_RET | BPF_K, 0, 0, 0),
            instruction(BPF_RET | BPF_K, 0, 0, 0),
        ]
    }

    /// Puts it before a packet socket.
    pub(super) fn attach(self, socket: impl AsFd) -> io::Result<()> {
        let mut program = self.program();
        let program = sock_fprog {
            len: u16::try_from(program.len()).unwrap_or(u16::MAX),
            filter: program.as_mut_ptr(),
        };
        let size = socklen_t::try_from(size_of::<sock_fprog>()).unwrap_or(socklen_t::MAX);
        let fd = socket.as_fd().as_raw_fd();
        let value: *const sock_fprog = &raw const program;
        #[expect(unsafe_code, reason = "no safe wrapper knows this option")]
        // SAFETY: the descriptor is open, and the kernel copies the program, which lives until the call returns.
        let result =
            unsafe { libc::setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, value.cast::<c_void>(), size) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

/// How many packets passed the filter of a packet socket since this was asked last, read or not.
pub(super) fn passed(socket: impl AsFd) -> io::Result<u64> {
    let mut statistics = tpacket_stats { tp_packets: 0, tp_drops: 0 };
    let mut size = socklen_t::try_from(size_of::<tpacket_stats>()).unwrap_or(0);
    let fd = socket.as_fd().as_raw_fd();
    let value: *mut tpacket_stats = &raw mut statistics;
    #[expect(unsafe_code, reason = "no safe wrapper knows this option")]
    // SAFETY: the descriptor is open, and the kernel writes `size` bytes at most to a struct of that size.
    let result =
        unsafe { libc::getsockopt(fd, SOL_PACKET, PACKET_STATISTICS, value.cast::<c_void>(), &raw mut size) };
    if result == 0 { Ok(statistics.tp_packets.into()) } else { Err(io::Error::last_os_error()) }
}

fn instruction(code: u32, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code: u16::try_from(code).unwrap_or(u16::MAX), jt, jf, k }
}
