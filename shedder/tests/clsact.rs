//! The hook of kernels without TCX: a filter of the clsact qdisc.

#![cfg(test)]

mod support;

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::time::Duration;

use aya::programs::SchedClassifier;
use aya::programs::tc::{NlOptions, TcAttachOptions, TcAttachType};
use shedder::config::model::{Action, Config, PortPolicy, RateLimit};
use shedder::datapath::{Datapath, LoadOptions, Rules, unload};
use shedder::kernel::attachment::Hook;
use shedder::kernel::offsets::{KernelTypes, VMLINUX_BTF, read_types};
use shedder::net::namespace;
use shedder::quota;
use shedder_common::address::Address;
use shedder_common::control::Mode;
use support::run::must;
use support::wire::ifindex;
use support::{Net, bpf, connect};
use xtask::testbed::PinDirectory;

const PATIENCE: Duration = Duration::from_secs(5);
const ETHERNET_LEN: u32 = 14;

/// A net whose server is served without a daemon, since a daemon would choose TCX here.
struct Scene {
    net: Net,
    pins: PinDirectory,
}

impl Scene {
    fn new() -> Self {
        Self { net: Net::new(), pins: PinDirectory::new("test") }
    }

    fn interface(&self) -> &str {
        &self.net.link.b.interface
    }

    /// Runs `work` where a daemon would run.
    fn serve<T: Send>(&self, work: impl FnOnce(Datapath, u32) -> T + Send) -> T {
        let start = || {
            let KernelTypes { offsets, cast, .. } = read_types(Path::new(VMLINUX_BTF)).unwrap();
            let options =
                LoadOptions { namespace_inode: namespace::inode().unwrap(), offsets, cast, bpf_log: None };
            let datapath = Datapath::start(self.pins.path(), options).unwrap();
            work(datapath, ifindex(self.interface()).unwrap())
        };
        self.net.server.enter(start).unwrap()
    }

    fn attach(&self, datapath: &mut Datapath, ifindex: u32, hook: Hook) {
        let attached = datapath.attach(self.interface(), ifindex, ETHERNET_LEN, &[hook], |_| false);
        assert!(
            matches!(attached, Ok((taken, ref failures)) if taken == hook && failures.is_empty()),
            "{attached:?}"
        );
    }

    /// The port admits nobody from now on.
    fn close(&self, datapath: &mut Datapath, action: Action) {
        let mut config = Config::observe_default();
        let closed = RateLimit::PerSecond(0.0);
        config.ports = vec![PortPolicy { rate: closed, action, ..PortPolicy::of_port(8080) }];
        let end = &self.net.link.b;
        let own = [Address::from_v4(end.ipv4.octets()), Address::from_v6(end.ipv6.octets())];
        assert!(datapath.set_local_addresses(&own).unwrap().is_empty());
        let rules = Rules { mode: Mode::Enforce, lease_expires_ns: u64::MAX, exempt_rate: None };
        datapath.write(&quota::table(&config, &[], 0), &rules).unwrap();
    }

    /// How a connect over each family ends.
    fn connect(&self, port: u16, patience: Duration) -> [Result<(), ErrorKind>; 2] {
        [false, true].map(|ipv6| {
            let address = SocketAddr::new(self.net.server_ip(ipv6), port);
            connect(&self.net.client, address, patience).map(drop).map_err(|error| error.kind())
        })
    }

    fn assert_refused(&self) {
        assert_eq!(self.connect(8080, PATIENCE), [Err(ErrorKind::ConnectionRefused); 2]);
    }

    fn filters(&self) -> String {
        must(&format!("tc -netns {} filter show dev {} ingress", self.net.server.name(), self.interface()))
    }

    fn count_filters(&self, name: &str) -> usize {
        self.filters().lines().filter(|line| line.contains(&format!(" {name} "))).count()
    }

    fn listeners(&self) -> Vec<TcpListener> {
        let addresses = [false, true].map(|ipv6| self.net.server_ip(ipv6));
        let listen = |port| addresses.map(|ip| TcpListener::bind((ip, port)).unwrap());
        self.net.server.enter(|| [listen(8080), listen(8081)].into_iter().flatten().collect()).unwrap()
    }
}

fn shed(datapath: &Datapath) -> (u64, u64) {
    let counters = datapath.read().unwrap();
    let classes = &counters.policies[&(8080, 8080)].counters.classes;
    (classes.iter().flat_map(|class| class.shed).sum(), classes.iter().map(|class| class.reset_sent).sum())
}

#[test]
fn a_filter_refuses_with_reset_and_with_drop_and_goes() {
    let scene = Scene::new();
    let _listeners = scene.listeners();
    scene.serve(|mut datapath, ifindex| {
        scene.attach(&mut datapath, ifindex, Hook::Clsact);
        assert_eq!(scene.count_filters("shed_tc"), 1, "{}", scene.filters());
        assert_eq!(bpf::tcx(&scene.net.server, scene.interface()), Vec::<String>::new());
        assert!(datapath.is_attached(scene.interface(), ifindex, None));
        // Nothing is refused before a table is written.
        assert_eq!(scene.connect(8080, PATIENCE), [Ok(()); 2]);
        scene.close(&mut datapath, Action::Reset);
        scene.assert_refused();
        assert_eq!(shed(&datapath), (2, 2));
        assert_eq!(scene.connect(8081, PATIENCE), [Ok(()); 2]);
        scene.close(&mut datapath, Action::Drop);
        assert_eq!(scene.connect(8080, Duration::from_millis(50)), [Err(ErrorKind::TimedOut); 2]);
        assert_eq!(shed(&datapath), (4, 2));
        datapath.detach(ifindex).unwrap();
        assert_eq!(scene.filters(), "");
        assert_eq!(scene.connect(8080, PATIENCE), [Ok(()); 2]);
        datapath.remove().unwrap();
    });
    assert!(!scene.pins.path().exists());
}

#[test]
fn a_filter_that_a_killed_daemon_left_goes_on_and_is_taken_over() {
    let scene = Scene::new();
    let _listeners = scene.listeners();
    scene.serve(|mut datapath, ifindex| {
        scene.attach(&mut datapath, ifindex, Hook::Clsact);
        scene.close(&mut datapath, Action::Reset);
        // As a kill leaves it.
        datapath.keep();
    });
    scene.assert_refused();
    scene.serve(|mut datapath, ifindex| {
        assert!(datapath.adopted());
        scene.attach(&mut datapath, ifindex, Hook::Clsact);
        datapath.remove_leftovers().unwrap();
        assert_eq!(scene.count_filters("shed_tc"), 1, "{}", scene.filters());
        scene.close(&mut datapath, Action::Reset);
        scene.assert_refused();
        assert_eq!(shed(&datapath), (4, 4), "counters go on");
        datapath.remove().unwrap();
    });
    assert_eq!(scene.filters(), "");
}

#[test]
fn a_filter_that_is_left_goes_when_another_hook_serves() {
    let scene = Scene::new();
    scene.serve(|mut datapath, ifindex| {
        scene.attach(&mut datapath, ifindex, Hook::Clsact);
        datapath.keep();
    });
    for hook in [Hook::Tcx, Hook::XdpGeneric] {
        scene.serve(|mut datapath, ifindex| {
            scene.attach(&mut datapath, ifindex, hook);
            datapath.remove_leftovers().unwrap();
            assert_eq!(scene.filters(), "", "{hook}");
            scene.close(&mut datapath, Action::Reset);
            scene.assert_refused();
            datapath.detach(ifindex).unwrap();
            scene.attach(&mut datapath, ifindex, Hook::Clsact);
            datapath.keep();
        });
    }
    // Without a daemon.
    let unloaded = || unload(scene.pins.path(), &[scene.interface().to_owned()]).unwrap();
    assert!(!scene.net.server.enter(unloaded).unwrap().pins.is_empty());
    assert_eq!(scene.filters(), "");
}

#[test]
fn a_renamed_interface_loses_the_filter() {
    let scene = Scene::new();
    let (ns, old) = (scene.net.server.name(), scene.interface());
    let filters = || must(&format!("tc -netns {ns} filter show dev renamed0 ingress"));
    let rename = |from: &str, to: &str| {
        must(&format!("ip -n {ns} link set dev {from} down"));
        must(&format!("ip -n {ns} link set dev {from} name {to}"));
    };
    scene.serve(|mut datapath, ifindex| {
        scene.attach(&mut datapath, ifindex, Hook::Clsact);
        rename(old, "renamed0");
        assert!(filters().contains(" shed_tc "), "{}", filters());
        assert!(datapath.is_attached("renamed0", ifindex, None));
        datapath.detach(ifindex).unwrap();
        assert_eq!(filters(), "");
        rename("renamed0", old);
        // What an earlier daemon left, where another hook serves by now.
        scene.attach(&mut datapath, ifindex, Hook::Clsact);
        scene.attach(&mut datapath, ifindex, Hook::Tcx);
        rename(old, "renamed0");
        datapath.remove_leftovers().unwrap();
        assert_eq!(filters(), "");
        datapath.remove().unwrap();
    });
}

#[test]
fn a_filter_that_somebody_removed_is_missed_and_comes_back() {
    let scene = Scene::new();
    let _listeners = scene.listeners();
    let ns = scene.net.server.name();
    scene.serve(|mut datapath, ifindex| {
        for removal in ["qdisc del dev {} clsact", "filter del dev {} ingress"] {
            scene.attach(&mut datapath, ifindex, Hook::Clsact);
            scene.close(&mut datapath, Action::Reset);
            scene.assert_refused();
            assert!(datapath.is_attached(scene.interface(), ifindex, None));
            must(&format!("tc -netns {ns} {}", removal.replace("{}", scene.interface())));
            assert!(!datapath.is_attached(scene.interface(), ifindex, None), "{removal}");
            datapath.detach(ifindex).unwrap();
        }
        scene.attach(&mut datapath, ifindex, Hook::Clsact);
        scene.assert_refused();
        datapath.remove().unwrap();
    });
}

#[test]
fn an_interface_that_went_is_let_go() {
    let scene = Scene::new();
    scene.serve(|mut datapath, ifindex| {
        scene.attach(&mut datapath, ifindex, Hook::Clsact);
        must(&format!("ip -n {} link del {}", scene.net.server.name(), scene.interface()));
        assert!(!datapath.is_attached(scene.interface(), ifindex, None));
        datapath.detach(ifindex).unwrap();
        // As when it goes while it is looked at, and without a daemon.
        unload(Path::new("/sys/fs/bpf/shedder-nothing"), &[scene.interface().to_owned()]).unwrap();
        datapath.remove().unwrap();
    });
}

#[test]
fn foreign_filters_and_qdiscs_stay() {
    for qdisc in ["clsact", "ingress"] {
        let scene = Scene::new();
        let _listeners = scene.listeners();
        let show =
            || must(&format!("tc -netns {} qdisc show dev {}", scene.net.server.name(), scene.interface()));
        must(&format!("tc -netns {} qdisc add dev {} {qdisc}", scene.net.server.name(), scene.interface()));
        let before = show();
        let mut foreign = bpf::foreign();
        let program: &mut SchedClassifier = foreign.program_mut("pass_tc").unwrap().try_into().unwrap();
        program.load().unwrap();
        let attach_foreign = || {
            let options = TcAttachOptions::Netlink(NlOptions::default());
            program.attach_with_options(scene.interface(), TcAttachType::Ingress, options).unwrap()
        };
        let link = scene.net.server.enter(attach_foreign).unwrap();
        scene.serve(|mut datapath, ifindex| {
            scene.attach(&mut datapath, ifindex, Hook::Clsact);
            assert_eq!((scene.count_filters("pass_tc"), scene.count_filters("shed_tc")), (1, 1), "{qdisc}");
            scene.close(&mut datapath, Action::Reset);
            // Both have their say, whichever comes first.
            scene.assert_refused();
            assert_eq!(scene.connect(8081, PATIENCE), [Ok(()); 2]);
            datapath.remove().unwrap();
        });
        assert_eq!((scene.count_filters("pass_tc"), scene.count_filters("shed_tc")), (1, 0), "{qdisc}");
        assert_eq!(show(), before);
        scene.net.server.enter(|| program.detach(link).unwrap()).unwrap();
    }
}
