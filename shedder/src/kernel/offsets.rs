//! The fields that the programs in the kernel read, and what is not judged where one is missing.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use shedder_common::abi::{NO_FIELD, SocketOffsets};

use super::btf::{Btf, BtfError, FieldError};

/// The kernel's own type information.
pub const VMLINUX_BTF: &str = "/sys/kernel/btf/vmlinux";

/// No kernel's type information comes near this.
const MAX_BTF_BYTES: u64 = 64 << 20;

/// The offsets cannot be told at all; nothing that needs one is judged.
#[derive(Debug, thiserror::Error)]
pub enum OffsetsError {
    /// The file cannot be read.
    #[error("cannot read {0}: {1}; the kernel needs CONFIG_DEBUG_INFO_BTF=y and /sys mounted")]
    Read(PathBuf, std::io::Error),
    /// It is not what it should be.
    #[error("cannot understand {0}: {1}")]
    Parse(PathBuf, BtfError),
}

/// What needs a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    Connections,
    QueueDepth,
    HalfOpen,
    QueueWait,
    RoundTrip,
}

impl Need {
    /// What follows when the field is missing.
    const fn consequence(self) -> &'static str {
        match self {
            Self::Connections => "connections are not counted and the connections gate admits",
            Self::QueueDepth => "the queue_depth and queue_wait gates admit",
            Self::HalfOpen => "the connections gate does not count half-open requests",
            Self::QueueWait => "the queue_wait gate admits",
            Self::RoundTrip => "the queue_wait gate takes clients for near ones",
        }
    }
}

/// How a program says that a pointer is to a `tcp_sock`: numbers in the kernel's BTF.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cast {
    /// Of the function `bpf_rdonly_cast`, which there is since Linux 6.2.
    pub function: u32,
    /// Of the structure.
    pub tcp_sock: u32,
}

/// What the programs must know of the running kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelTypes {
    /// Where fields are; a missing one is [`NO_FIELD`].
    pub offsets: SocketOffsets,
    /// `None` where the kernel has no such thing; reading fields then costs more.
    pub cast: Option<Cast>,
    /// A sentence for each missing field that says what is therefore not judged.
    pub missing: Vec<String>,
}

/// Reads them from a file of BTF, usually [`VMLINUX_BTF`].
///
/// # Errors
///
/// There is no such file or it is not BTF.
pub fn read_types(path: &Path) -> Result<KernelTypes, OffsetsError> {
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(MAX_BTF_BYTES).read_to_end(&mut bytes))
        .map_err(|error| OffsetsError::Read(path.to_owned(), error))?;
    let btf = Btf::parse(bytes).map_err(|error| OffsetsError::Parse(path.to_owned(), error))?;
    Ok(find(&btf))
}

/// Collects offsets and what is missing.
struct Finder<'a> {
    btf: &'a Btf,
    missing: Vec<String>,
}

impl Finder<'_> {
    fn offset(&mut self, of: &str, path: &str, size: u32, need: Need) -> u32 {
        match self.btf.field_offset(of, path, size) {
            Ok(offset) => offset,
            Err(error) => {
                self.miss(&error, need);
                NO_FIELD
            }
        }
    }

    fn miss(&mut self, error: &FieldError, need: Need) {
        self.missing.push(format!("{error}: {}", need.consequence()));
    }
}

const POINTER: u32 = usize::BITS / 8;

fn find(btf: &Btf) -> KernelTypes {
    use Need::{Connections, HalfOpen, QueueDepth, QueueWait, RoundTrip};
    let mut finder = Finder { btf, missing: Vec::new() };
    let mut common =
        |path: &str, size| finder.offset("sock", &format!("__sk_common.{path}"), size, Connections);
    let state = common("skc_state", 1);
    let family = common("skc_family", 2);
    let local_port = common("skc_num", 2);
    let remote_port = common("skc_dport", 2);
    let remote_v4 = common("skc_daddr", 4);
    let local_v4 = common("skc_rcv_saddr", 4);
    let remote_v6 = common("skc_v6_daddr", 16);
    let local_v6 = common("skc_v6_rcv_saddr", 16);
    let namespace = common("skc_net.net", POINTER);
    let offsets = SocketOffsets {
        state,
        family,
        local_port,
        remote_port,
        remote_v4,
        local_v4,
        remote_v6,
        local_v6,
        namespace,
        namespace_inode: finder.offset("net", "ns.inum", 4, Connections),
        protocol: finder.offset("sock", "sk_protocol", 2, Connections),
        accept_queue: finder.offset("sock", "sk_ack_backlog", 4, QueueDepth),
        listen_backlog: finder.offset("sock", "sk_max_ack_backlog", 4, QueueDepth),
        syn_queue: finder.offset("tcp_sock", "inet_conn.icsk_accept_queue.qlen", 4, HalfOpen),
        accept_head: finder.offset(
            "tcp_sock",
            "inet_conn.icsk_accept_queue.rskq_accept_head",
            POINTER,
            QueueWait,
        ),
        request_child: finder.offset("request_sock", "sk", POINTER, QueueWait),
        established_us: finder.offset("tcp_sock", "rcvq_space.time", 8, QueueWait),
        receive_next: finder.offset("tcp_sock", "rcv_nxt", 4, QueueWait),
        round_trip: finder.offset("tcp_sock", "srtt_us", 4, RoundTrip),
    };
    let missing = finder.missing;
    KernelTypes { offsets, cast: find_cast(btf), missing }
}

fn find_cast(btf: &Btf) -> Option<Cast> {
    Some(Cast { function: btf.function("bpf_rdonly_cast")?, tcp_sock: btf.structure("tcp_sock")? })
}

#[cfg(test)]
mod tests {
    use super::super::btf::tests::Writer;
    use super::*;
    use proptest::prelude::*;

    const PTR: u32 = 2 << 24;

    /// The structs of a kernel, smaller than they are; `protocol` is the size of that field.
    fn kernel(protocol: u32, rcvq_time: &str) -> Vec<u8> {
        let mut writer = Writer::default();
        let (u8_, u16_, u32_, u64_) = (writer.int(1), writer.int(2), writer.int(4), writer.int(8));
        let protocol = writer.int(protocol);
        let pointer = writer.add("", PTR, 0, &[]);
        let v6 = writer.structure("in6_addr", 16, &[("s6_addr", u64_, 0)]);
        let net_pointer = writer.structure("possible_net", 8, &[("net", pointer, 0)]);
        let addresses = writer.structure("", 8, &[("skc_daddr", u32_, 0), ("skc_rcv_saddr", u32_, 32)]);
        let ports = writer.structure("", 4, &[("skc_dport", u16_, 0), ("skc_num", u16_, 16)]);
        let common = writer.structure(
            "sock_common",
            64,
            &[
                ("", addresses, 0),
                ("", ports, 96),
                ("skc_family", u16_, 128),
                ("skc_state", u8_, 144),
                ("skc_net", net_pointer, 192),
                ("skc_v6_daddr", v6, 256),
                ("skc_v6_rcv_saddr", v6, 384),
            ],
        );
        let sock = writer.structure(
            "sock",
            128,
            &[
                ("__sk_common", common, 0),
                ("sk_ack_backlog", u32_, 512),
                ("sk_max_ack_backlog", u32_, 544),
                ("sk_protocol", protocol, 576),
            ],
        );
        let atomic = writer.structure("", 4, &[("counter", u32_, 0)]);
        let queue = writer.structure(
            "request_sock_queue",
            16,
            &[("qlen", atomic, 0), ("rskq_accept_head", pointer, 64)],
        );
        let connection = writer.structure(
            "inet_connection_sock",
            160,
            &[("icsk_inet", sock, 0), ("icsk_accept_queue", queue, 1024)],
        );
        let space = writer.structure("", 16, &[("space", u32_, 0), (rcvq_time, u64_, 64)]);
        writer.structure(
            "tcp_sock",
            200,
            &[
                ("inet_conn", connection, 0),
                ("rcv_nxt", u32_, 1280),
                ("srtt_us", u32_, 1312),
                ("rcvq_space", space, 1344),
            ],
        );
        writer.structure("request_sock", 80, &[("__req_common", common, 0), ("sk", pointer, 512)]);
        let ns = writer.structure("ns_common", 8, &[("ops", u32_, 0), ("inum", u32_, 32)]);
        writer.structure("net", 16, &[("passive", u32_, 0), ("ns", ns, 64)]);
        writer.bytes()
    }

    #[test]
    fn every_field_is_found() {
        let KernelTypes { offsets, missing, .. } = find(&Btf::parse(kernel(2, "time")).unwrap());
        assert_eq!(missing, Vec::<String>::new());
        let expected = SocketOffsets {
            protocol: 72,
            accept_queue: 64,
            listen_backlog: 68,
            syn_queue: 128,
            accept_head: 136,
            request_child: 64,
            established_us: 176,
            receive_next: 160,
            round_trip: 164,
            state: 18,
            family: 16,
            local_port: 14,
            remote_port: 12,
            remote_v4: 0,
            local_v4: 4,
            remote_v6: 32,
            local_v6: 48,
            namespace: 24,
            namespace_inode: 12,
        };
        assert_eq!(offsets, expected);
    }

    #[test]
    fn a_missing_field_names_what_is_not_judged() {
        let KernelTypes { offsets, missing, .. } = find(&Btf::parse(kernel(1, "stamp")).unwrap());
        assert_eq!((offsets.protocol, offsets.established_us), (NO_FIELD, NO_FIELD));
        assert_eq!(
            missing,
            [
                "field sk_protocol of struct sock has 1 bytes instead of 2: connections are not counted and the \
                 connections gate admits",
                "struct tcp_sock has no field rcvq_space.time: the queue_wait gate admits",
            ]
        );
        let KernelTypes { offsets, missing, .. } = find(&Btf::parse(Writer::default().bytes()).unwrap());
        assert_eq!(offsets, SocketOffsets::UNKNOWN);
        assert_eq!(missing.len(), 19);
    }

    #[test]
    fn a_file_that_is_absent_or_wrong_is_an_error_with_its_path() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("vmlinux");
        let error = read_types(&path).unwrap_err().to_string();
        assert!(error.contains("vmlinux") && error.contains("CONFIG_DEBUG_INFO_BTF"), "{error}");
        std::fs::write(&path, b"ELF").unwrap();
        assert!(read_types(&path).unwrap_err().to_string().contains("magic"));
    }

    /// Facts that hold on every 64-bit kernel of the last decade.
    #[test]
    fn the_running_kernel_is_understood() {
        let KernelTypes { offsets, cast, missing } =
            read_types(Path::new(VMLINUX_BTF)).expect("these tests need a kernel with BTF");
        assert_eq!(missing, Vec::<String>::new());
        assert!(cast.is_some(), "Linux 6.2 and later have it");
        assert_eq!((offsets.remote_v4, offsets.local_v4), (0, 4));
        assert_eq!((offsets.remote_port, offsets.local_port, offsets.family), (12, 14, 16));
        assert_eq!(offsets.local_v6, offsets.remote_v6 + 16);
        assert!(offsets.accept_head > offsets.syn_queue);
        let fields =
            [offsets.protocol, offsets.accept_queue, offsets.listen_backlog, offsets.namespace_inode];
        assert!(fields.iter().all(|offset| *offset > 0 && *offset < 4096), "{offsets:?}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn a_damaged_file_of_the_running_kernel_does_no_harm(
            keep in prop_oneof![Just(1.0_f64), 0.0_f64..1.0],
            flips in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..64),
        ) {
            let mut bytes = std::fs::read(VMLINUX_BTF).unwrap();
            for (place, value) in &flips {
                let place = place.index(bytes.len());
                bytes[place] = *value;
            }
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a part of a length")]
            bytes.truncate((bytes.len() as f64 * keep) as usize);
            if let Ok(btf) = Btf::parse(bytes) {
                find(&btf);
            }
        }
    }
}
