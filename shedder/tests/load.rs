//! x
use shedder::datapath::*;
use shedder_common::abi::SocketOffsets;
#[test]
fn load() {
    let mut o = SocketOffsets::UNKNOWN;
    o.accept_queue = 600;
    o.listen_backlog = 604;
    o.syn_queue = 1000;
    o.accept_head = 1008;
    o.request_child = 1200;
    o.established_us = 1600;
    o.family = 16;
    o.namespace = 48;
    o.namespace_inode = 0;
    o.local_port = 14;
    o.remote_port = 12;
    o.remote_v4 = 0;
    o.local_v4 = 4;
    o.remote_v6 = 56;
    o.local_v6 = 72;
    o.protocol = 500;
    o.receive_next = 1500;
    let options = LoadOptions { namespace_inode: 1, offsets: o, bpf_log: None };
    let t = std::time::Instant::now();
    let mut bench = TestBench::load("/sys/fs/bpf/shedder-test-x".as_ref(), options, 14)
        .unwrap_or_else(|e| panic!("{e:?}"));
    for p in [Program::ShedXdp, Program::ShedTc] {
        match bench.verified_instructions(p) {
            Ok(n) => println!("{p:?} {n}"),
            Err(e) => println!("{p:?} {e:#}"),
        }
    }
    println!("{:?}", t.elapsed());
    let d =
        Datapath::start("/sys/fs/bpf/shedder-test-y".as_ref(), options).unwrap_or_else(|e| panic!("{e:?}"));
    d.remove().unwrap();
}
