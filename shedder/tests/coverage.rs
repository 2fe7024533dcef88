//! Whom a policy covers: by destination and by source.

#![cfg(test)]

mod support;

use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use support::hooks::HOOKS;
use support::wire::meet_neighbours;
use support::xdp::{Verdict, XdpProgram};
use support::{Counts, Daemon, Net, Setup, connect, eventually, run, settles};
use xtask::testbed::{Namespace, VethPair};

/// A client and a host behind the server, which routes between them.
struct Routed {
    net: Net,
    far: Namespace,
    far_link: VethPair,
    _peer: XdpProgram,
}

impl Routed {
    fn new() -> Self {
        let net = Net::new();
        let far = Namespace::new().unwrap();
        let far_link = VethPair::new(&net.server, &far).unwrap();
        for key in ["ipv4/ip_forward", "ipv6/conf/all/forwarding"] {
            net.server.set_sysctl(key, "1").unwrap();
        }
        let route = |namespace: &Namespace, via: IpAddr| {
            let family = if via.is_ipv6() { "-6" } else { "-4" };
            run(
                "ip",
                &[family, "-netns", namespace.name(), "route", "add", "default", "via", &via.to_string()],
            );
        };
        for ipv6 in [false, true] {
            route(&net.client, net.server_ip(ipv6));
            route(&far, if ipv6 { far_link.a.ipv6.into() } else { far_link.a.ipv4.into() });
        }
        let peer = XdpProgram::attach(&net.client, &net.link.a, Verdict::Pass);
        let routed = Self { net, far, far_link, _peer: peer };
        for ipv6 in [false, true] {
            // All have met, so that no SYN of the test waits for an address and is repeated.
            let closed = SocketAddr::new(routed.far_ip(ipv6), 9);
            eventually("the route works", || {
                connect(&routed.net.client, closed, Duration::from_secs(5))
                    .is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused)
            });
        }
        routed
    }

    fn far_ip(&self, ipv6: bool) -> IpAddr {
        if ipv6 { self.far_link.b.ipv6.into() } else { self.far_link.b.ipv4.into() }
    }

    fn listen(&self, ipv6: bool) -> [TcpListener; 2] {
        let bind = |namespace: &Namespace, ip| {
            namespace.enter(|| TcpListener::bind(SocketAddr::new(ip, 8080))).unwrap().unwrap()
        };
        [bind(&self.net.server, self.net.server_ip(ipv6)), bind(&self.far, self.far_ip(ipv6))]
    }

    /// How many of ten connects to the router and to the host behind it are made.
    fn connected(&self, ipv6: bool) -> [usize; 2] {
        [self.net.server_ip(ipv6), self.far_ip(ipv6)].map(|ip| {
            let address = SocketAddr::new(ip, 8080);
            (0..10).filter(|_| connect(&self.net.client, address, Duration::from_secs(5)).is_ok()).count()
        })
    }
}

#[test]
fn what_is_forwarded_is_judged_only_where_the_policy_says_so() {
    for (via, _) in HOOKS {
        let routed = Routed::new();
        let far: String = format!("[\"{}/32\", \"{}/128\"]", routed.far_ip(false), routed.far_ip(true));
        for (to, connected, exempt, shed) in
            [("\"local\"", [0, 10], 20, 20), ("\"any\"", [0, 0], 0, 40), (&far, [10, 0], 20, 20)]
        {
            let rest = format!("[[port]]\nport = 8080\nconnections = 0\nto = {to}\n");
            let daemon = Daemon::start(&routed.net, &Setup { mode: "enforce", via, rest: &rest });
            meet_neighbours(&routed.net);
            for ipv6 in [false, true] {
                let _listeners = routed.listen(ipv6);
                assert_eq!(routed.connected(ipv6), connected, "{via}, to = {to}, IPv6: {ipv6}");
            }
            let expected = Counts { exempt, shed, resets_sent: shed, ..Counts::default() };
            settles(&format!("{via}, to = {to}"), &expected, || daemon.counts("8080"));
            assert_eq!(daemon.status()["exempt"]["destination"], exempt, "{via}, to = {to}");
        }
    }
}

#[test]
fn an_address_that_the_host_gets_later_is_covered() {
    let net = Net::new();
    let rest = "[[port]]\nport = 8080\nconnections = 0\n";
    let daemon = Daemon::start(&net, &Setup { mode: "enforce", via: "auto", rest });
    let sources = net.link.b.add_sources(1).unwrap();
    for ip in sources.ipv4.iter().chain(&sources.ipv6) {
        let address = SocketAddr::new(*ip, 8080);
        let _listener = net.server.enter(|| TcpListener::bind(address)).unwrap().unwrap();
        let before = daemon.counts("8080").shed;
        eventually("it is refused", || {
            drop(connect(&net.client, address, Duration::from_secs(5)));
            daemon.counts("8080").shed > before
        });
        let error = connect(&net.client, address, Duration::from_secs(5)).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
    }
}

/// Connects from an address of the client's.
fn connect_from(net: &Net, source: IpAddr, to: SocketAddr) -> bool {
    net.client
        .enter(|| {
            let family = if source.is_ipv6() {
                rustix::net::AddressFamily::INET6
            } else {
                rustix::net::AddressFamily::INET
            };
            let socket = rustix::net::socket(family, rustix::net::SocketType::STREAM, None).unwrap();
            rustix::net::bind(&socket, &SocketAddr::new(source, 0)).unwrap();
            rustix::net::connect(&socket, &to).map(|()| TcpStream::from(socket)).is_ok()
        })
        .unwrap()
}

#[test]
fn exempt_sources_are_admitted_within_the_guards_rate() {
    for (via, _) in HOOKS {
        let net = Net::new();
        let _peer = XdpProgram::attach(&net.client, &net.link.a, Verdict::Pass);
        let sources = net.link.a.add_sources(2).unwrap();
        // A burst of a tenth of a second of the rate.
        let rest = format!(
            "[guard]\nsources = [\"{}/32\", \"{}/128\"]\nrate = \"100/h\"\n[[port]]\nport = 8080\nconnections = 0\n",
            sources.ipv4[0], sources.ipv6[0]
        );
        let daemon = Daemon::start(&net, &Setup { mode: "enforce", via, rest: &rest });
        meet_neighbours(&net);
        let mut admitted = [[0, 0], [0, 0]];
        for (ipv6, addresses) in [(false, &sources.ipv4), (true, &sources.ipv6)] {
            let address = SocketAddr::new(net.server_ip(ipv6), 8080);
            let _listener = net.server.enter(|| TcpListener::bind(address)).unwrap().unwrap();
            for (source, admitted) in addresses.iter().zip(&mut admitted[usize::from(ipv6)]) {
                *admitted = (0..10).filter(|_| connect_from(&net, *source, address)).count();
            }
        }
        // One source is exempt, the other is not; both families share the guard's rate, whose burst is one.
        assert_eq!(admitted, [[1, 0], [0, 0]], "{via}");
        eventually("all are counted", || {
            let counts = daemon.counts("8080");
            (counts.exempt, counts.shed) == (1, 39)
        });
        assert_eq!(daemon.status()["exempt"]["source"], 1);
    }
}

#[test]
fn exempt_sources_within_a_wide_rate_are_always_admitted() {
    let net = Net::new();
    let client = net.link.a.ipv4;
    let rest = format!(
        "[guard]\nsources = [\"{client}/32\"]\nrate = \"unlimited\"\n[[port]]\nport = 8080\nconnections = 0\n"
    );
    let daemon = Daemon::start(&net, &Setup { mode: "enforce", via: "auto", rest: &rest });
    let address = SocketAddr::new(net.server_ip(false), 8080);
    let listener = net.server.enter(|| TcpListener::bind(address)).unwrap().unwrap();
    let connects =
        |_: &i32| connect(&net.client, address, Duration::from_secs(5)).map(|_| listener.accept()).is_ok();
    let admitted = (0..200).filter(connects).count();
    assert_eq!(admitted, 200);
    let expected = Counts { exempt: 200, ..Counts::default() };
    eventually("all are counted as exempt", || daemon.counts("8080") == expected);
}

#[test]
fn a_source_class_is_refused_while_others_pass() {
    for (via, _) in HOOKS {
        let net = Net::new();
        let _peer = XdpProgram::attach(&net.client, &net.link.a, Verdict::Pass);
        let sources = net.link.a.add_sources(2).unwrap();
        let rest = format!(
            "[classes.batch]\nshares = [0, 0, 0, 0]\n\
             [[source]]\ncidr = \"{}/32\"\nclass = \"batch\"\n[[source]]\ncidr = \"{}/128\"\nclass = \"batch\"\n\
             [[port]]\nport = 8080\n",
            sources.ipv4[0], sources.ipv6[0]
        );
        let daemon = Daemon::start(&net, &Setup { mode: "enforce", via, rest: &rest });
        meet_neighbours(&net);
        for (ipv6, addresses) in [(false, &sources.ipv4), (true, &sources.ipv6)] {
            let address = SocketAddr::new(net.server_ip(ipv6), 8080);
            let listener = net.server.enter(|| TcpListener::bind(address)).unwrap().unwrap();
            listener.set_nonblocking(true).unwrap();
            let admitted = [0, 1].map(|number| {
                (0..10)
                    .filter(|_| {
                        let connected = connect_from(&net, addresses[number], address);
                        // The queue's gates are not asked here.
                        drop(listener.accept());
                        connected
                    })
                    .count()
            });
            assert_eq!(admitted, [0, 10], "{via} {address}");
        }
        eventually("each class has its counts", || {
            let classes = &daemon.port("8080")["classes"];
            classes["batch"]["shed"]["closed"] == 20 && classes["interactive"]["admitted"] == 20
        });
        assert_eq!(daemon.port("8080")["classes"]["batch"]["admitted"], 0);
    }
}
