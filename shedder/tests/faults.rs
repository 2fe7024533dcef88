//! Wrong configurations and a host that lacks something: a sentence that says what to do, and no harm to what
//! runs.

#![cfg(test)]

mod support;

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use rustix::process::Signal;
use support::run::{Told, shedder, shedder_in};
use support::{Daemon, Net, PATIENCE, SHEDDER, Setup, connect, eventually};
use xtask::testbed::{Namespace, PinDirectory};

/// What follows `version = 1`, where the fault is, and what is said of it.
const WRONG: [(&str, &str, &str); 9] = [
    ("[[port]]\nport = 8080\nrat = \"5/s\"", "4:1", "unknown key `rat`, did you mean `rate`?"),
    ("[levels]\nhold = \"10\"", "3:8", "`10` has no unit"),
    ("[signals.memory]\nhigh = { enter = 0.5, exit = 0.6 }", "3:18", "raise enter or lower exit"),
    ("[[port]]\nport = 0", "3:8", "0 is no port: choose 1 to 65535"),
    ("[[port]]\nport = \"80-90\"\n[[port]]\nport = 85", "5:8", "85 overlaps with 80-90 of line 3"),
    ("[[port]]\nport = 22", "3:8", "22 is guarded and never shed"),
    ("[attach]\ninterfaces = []", "3:14", "attach.interfaces is empty"),
    ("[[port]]\nport = 443\nto = [\"10.0.0.0/33\"]", "4:7", "`10.0.0.0/33` is no CIDR"),
    ("[[port]\nport = 443", "2:8", ""),
];

/// A configuration for a namespace's interface; the daemon's places are the test's.
fn config(interface: &str, via: &str, rest: &str) -> String {
    format!(
        "version = 1\nmode = \"enforce\"\n[attach]\ninterfaces = [\"{interface}\"]\nvia = \"{via}\"\n\
         [daemon]\nsocket = \"{{socket}}\"\nbpffs = \"{{bpffs}}\"\n{rest}\n"
    )
}

const CLOSED: &str = "[[port]]\nport = 8080\nrate = \"0/s\"\n";

/// The daemon must end with 1 and say this.
fn assert_fails(mut daemon: Daemon, sentence: &str) {
    assert_eq!(daemon.exit_code(), Some(1), "{}", daemon.log());
    assert!(daemon.log().contains(sentence), "{}", daemon.log());
    assert!(daemon.log().lines().last().unwrap().starts_with("shedder: "), "{}", daemon.log());
    assert!(!daemon.bpffs().exists(), "nothing stays pinned");
}

#[test]
fn a_wrong_file_is_refused_with_its_place_and_the_running_daemon_keeps_the_old_one() {
    let net = Net::new();
    let daemon = Daemon::start(&net, &Setup { mode: "enforce", via: "auto", rest: CLOSED });
    let file = daemon.config_file();
    let good = fs::read_to_string(&file).unwrap();
    let address = SocketAddr::new(net.server_ip(false), 8080);
    let _listener = net.server.enter(|| TcpListener::bind(address).unwrap()).unwrap();
    let path = file.to_str().unwrap();
    for (number, (text, place, message)) in WRONG.into_iter().enumerate() {
        fs::write(&file, format!("version = 1\n{text}\n")).unwrap();
        for verb in [["check", path].as_slice(), &["run", "--config", path], &["unload", "--config", path]] {
            let told = shedder(verb);
            assert_eq!(told.code, Some(2), "{verb:?}: {told:?}");
            assert!(told.stderr.contains(&format!("{path}:{place}: ")), "{told:?}");
            assert!(told.stderr.contains(message), "{told:?}");
        }
        daemon.signal(Signal::HUP);
        eventually("the daemon refuses it", || {
            daemon.log().matches("The running configuration stays").count() == number + 1
        });
        assert!(daemon.log().contains(&format!("{path}:{place}: ")), "{}", daemon.log());
    }
    assert!(connect(&net.client, address, PATIENCE).is_err(), "the old configuration is in force");
    assert_eq!(daemon.port("8080")["classes"]["interactive"]["quota"]["closed"], true);

    fs::write(&file, good.replace("0/s", "500/s")).unwrap();
    daemon.signal(Signal::HUP);
    eventually("a right file is taken", || {
        daemon.port("8080")["classes"]["interactive"]["quota"]["rate_per_second"] == 500.0
    });
    connect(&net.client, address, PATIENCE).unwrap();
    // Right by itself, but the endpoint moves at a restart only, and would be shed until then.
    let covers =
        good.replace("127.0.0.1:9464", "127.0.0.1:9465") + "\n[[port]]\nport = 9464\nrate = \"0/s\"\n";
    fs::write(&file, covers).unwrap();
    assert_eq!(shedder(&["check", path]).code, Some(0));
    daemon.signal(Signal::HUP);
    eventually("a policy of the running endpoint's port is refused", || {
        daemon.log().contains("port 9464 of the new one covers 9464")
    });
    assert_eq!(daemon.port("8080")["classes"]["interactive"]["quota"]["rate_per_second"], 500.0);
    fs::remove_file(&file).unwrap();
    daemon.signal(Signal::HUP);
    eventually("a missing file is refused", || {
        daemon.log().matches("The running configuration stays").count() == WRONG.len() + 2
    });
    assert_eq!(daemon.status()["mode"], "enforce");
}

#[test]
fn without_bpffs_it_says_how_to_mount_it() {
    let net = Net::new();
    for hide in ["umount /sys/fs/bpf", "mount -t tmpfs none /sys/fs/bpf"] {
        let config = config(&net.link.b.interface, "auto", CLOSED);
        let config = config.replace("{socket}", "{socket}.d/control.sock");
        let mut daemon = in_private_mounts(&net.server, hide, &config);
        daemon.exit_code();
        assert!(!daemon.socket().with_extension("sock.d").exists(), "the directory that it made is gone");
        assert_fails(daemon, "mount -t bpf bpf /sys/fs/bpf");
    }
    // Elsewhere than in a bpffs nothing is pinned, and unload says so.
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("shedder.toml");
    let bpffs = directory.path().join("pins");
    fs::write(
        &file,
        format!("version = 1\n[daemon]\nbpffs = \"{0}\"\nsocket = \"{0}.sock\"\n", bpffs.display()),
    )
    .unwrap();
    let told = support::run::unload(&file);
    assert_eq!(told.code, Some(0), "{told:?}");
    assert!(told.stdout.starts_with("no bpffs is mounted where"), "{told:?}");
}

#[test]
fn without_btf_connections_are_not_counted_and_the_rest_works() {
    serves_uncounted("mount -t tmpfs none /sys/kernel/btf", "CONFIG_DEBUG_INFO_BTF");
}

#[test]
fn where_the_kernel_refuses_the_counting_the_rest_works() {
    let directory = tempfile::tempdir().unwrap();
    let types = directory.path().join("vmlinux");
    // Without the type of the tracepoint the program cannot be loaded.
    let hide = format!(
        "LC_ALL=C sed s/btf_trace_inet_sock_set_state/btf_trace_inet_sock_set_stat_/ /sys/kernel/btf/vmlinux >{0} && \
         mount --bind {0} /sys/kernel/btf/vmlinux",
        types.display()
    );
    serves_uncounted(&hide, "the kernel refused track_connections");
}

/// Where `hide` was done the daemon warns of this, counts no connections and refuses what other limits refuse.
fn serves_uncounted(hide: &str, warning: &str) {
    let net = Net::new();
    let rest = format!("{CLOSED}[[port]]\nport = 8081\nconnections = 1\n");
    let daemon = in_private_mounts(&net.server, hide, &config(&net.link.b.interface, "auto", &rest));
    daemon.wait_until_ready();
    let status = daemon.status();
    let warnings: Vec<_> =
        status["warnings"].as_array().unwrap().iter().map(|warning| warning.as_str().unwrap()).collect();
    let uncounted = "connections are not counted, so limits on them admit: ";
    assert!(warnings.iter().any(|told| told.starts_with(uncounted) && told.contains(warning)), "{status}");
    let closed = SocketAddr::new(net.server_ip(false), 8080);
    let limited = SocketAddr::new(net.server_ip(false), 8081);
    let _listeners =
        [closed, limited].map(|address| net.server.enter(|| TcpListener::bind(address).unwrap()).unwrap());
    assert!(connect(&net.client, closed, PATIENCE).is_err());
    let admitted: Vec<_> = (0..5).map(|_| connect(&net.client, limited, PATIENCE).unwrap()).collect();
    eventually("they are admitted and counted as attempts", || daemon.counts("8081").admitted == 5);
    assert_eq!(daemon.active("8081"), 0);
    drop(admitted);
}

#[test]
fn without_pressure_files_the_other_signals_work() {
    let net = Net::new();
    let hide = "mount -t tmpfs none /proc/pressure";
    let daemon = in_private_mounts(&net.server, hide, &config(&net.link.b.interface, "auto", CLOSED));
    daemon.wait_until_ready();
    let told = || {
        daemon
            .log()
            .lines()
            .filter(|line| line.contains("The signal psi_") && line.contains(" of host is unavailable"))
            .count()
    };
    eventually("each is said to be unavailable", || told() == 4);
    let status = daemon.status();
    let host = status["signals"].as_array().unwrap().iter().filter(|signal| signal["scope"] == "host");
    for signal in host {
        let (name, value) = (signal["signal"].as_str().unwrap(), signal["value"].as_f64());
        if name.starts_with("psi_") {
            let reason = signal["unavailable"].as_str().unwrap();
            assert!(value.is_none() && reason.contains("the kernel has no PSI"), "{signal}");
            assert_eq!(signal["demands"], "normal", "{signal}");
        } else if name == "memory" {
            assert!(value.is_some_and(|value| value > 0.0), "{signal}");
        }
    }
    let address = SocketAddr::new(net.server_ip(false), 8080);
    let _listener = net.server.enter(|| TcpListener::bind(address).unwrap()).unwrap();
    assert!(connect(&net.client, address, PATIENCE).is_err());
    let ticks = || daemon.status()["ticks"]["total"].as_u64().unwrap();
    let later = ticks() + 30;
    eventually("time passes", || ticks() > later);
    assert_eq!(told(), 4, "one line each, however often it is tried");
}

/// A daemon in a mount namespace of its own, in which `hide` was done before.
fn in_private_mounts(namespace: &Namespace, hide: &str, config: &str) -> Daemon {
    let (pins, directory) = (PinDirectory::new("test"), tempfile::tempdir().unwrap());
    let file = write_config(&pins, &directory, config);
    let script = format!("{hide} && exec {SHEDDER} run --config {}", file.display());
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &script]);
    Daemon::spawn(namespace, &mut command, pins, directory)
}

#[test]
fn who_is_not_root_is_told_so() {
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    // Where it was built, others than root may have no way to it.
    let program = directory.path().join("shedder");
    fs::copy(SHEDDER, &program).unwrap();
    let net = Net::new();
    let daemon = Daemon::start(&net, &Setup { mode: "enforce", via: "auto", rest: CLOSED });
    fs::set_permissions(daemon.directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let as_nobody = |arguments: &[&str]| -> Told {
        Command::new(&program).args(arguments).uid(65534).gid(65534).output().unwrap().into()
    };
    let socket = daemon.socket();
    let socket = socket.to_str().unwrap();
    for (arguments, sentence) in [
        (["run"].as_slice(), "must be root"),
        (&["unload", "--socket", "/nonexistent.sock"], "must be root"),
        (&["unload", "--socket", socket], "run this as root"),
        (&["status", "--socket", socket], "run this as root"),
        (&["mode", "off", "--socket", socket], "run this as root"),
    ] {
        let told = as_nobody(arguments);
        assert_eq!(told.code, Some(1), "{arguments:?}: {told:?}");
        assert!(told.stderr.contains(sentence), "{arguments:?}: {told:?}");
    }
    let doctor = as_nobody(&["doctor"]);
    assert_eq!(doctor.code, Some(1), "{doctor:?}");
    assert!(doctor.stdout.contains("missing  privileges"), "{doctor:?}");
    assert_eq!(daemon.status()["mode"], "enforce");
}

#[test]
fn capabilities_that_are_lacking_are_named_and_the_three_that_matter_are_enough() {
    let net = Net::new();
    let start = |bounding_set: &str| {
        let (pins, directory) = (PinDirectory::new("test"), tempfile::tempdir().unwrap());
        let file = write_config(&pins, &directory, &config(&net.link.b.interface, "auto", CLOSED));
        let mut command = Command::new("setpriv");
        command.arg(format!("--bounding-set={bounding_set}")).args([SHEDDER, "run", "--config"]).arg(file);
        Daemon::spawn(&net.server, &mut command, pins, directory)
    };
    let lacking = start("-bpf,-perfmon,-sys_admin,-net_admin");
    assert_fails(lacking, "CAP_BPF, CAP_PERFMON, CAP_NET_ADMIN missing: add them to the unit or container");
    let enough = start("-all,+bpf,+perfmon,+net_admin");
    enough.wait_until_ready();
    let address = SocketAddr::new(net.server_ip(false), 8080);
    let _listener = net.server.enter(|| TcpListener::bind(address).unwrap()).unwrap();
    assert!(connect(&net.client, address, PATIENCE).is_err());
    assert_eq!(enough.status()["warnings"], serde_json::json!([]));
}

/// Writes a configuration for these places.
fn write_config(pins: &PinDirectory, directory: &tempfile::TempDir, config: &str) -> PathBuf {
    let file = directory.path().join("shedder.toml");
    let config = config
        .replace("{socket}", directory.path().join("control.sock").to_str().unwrap())
        .replace("{bpffs}", pins.path().to_str().unwrap());
    fs::write(&file, config).unwrap();
    file
}

#[test]
fn a_taken_endpoint_says_which_key_to_change() {
    let net = Net::new();
    let _taken = net.server.enter(|| TcpListener::bind("127.0.0.1:9464").unwrap()).unwrap();
    let daemon = Daemon::launch_with(&net.server, &config(&net.link.b.interface, "auto", CLOSED));
    assert_fails(
        daemon,
        "another process listens on 127.0.0.1:9464; change metrics.listen or set it to \"off\"",
    );
}

#[test]
fn a_stale_socket_is_replaced_and_another_file_is_not() {
    let net = Net::new();
    let config = config(&net.link.b.interface, "auto", CLOSED);
    let stale = tempfile::tempdir().unwrap();
    drop(UnixListener::bind(stale.path().join("control.sock")).unwrap());
    let daemon = Daemon::relaunch_with(&net.server, &config, PinDirectory::new("test"), stale);
    daemon.wait_until_ready();
    drop(daemon);

    let precious = tempfile::tempdir().unwrap();
    let path = precious.path().join("control.sock");
    fs::write(&path, "precious").unwrap();
    let daemon = Daemon::relaunch_with(&net.server, &config, PinDirectory::new("test"), precious);
    assert_fails(daemon, "exists and is not a socket; move it away");
}

#[test]
fn a_second_daemon_is_refused_and_the_first_one_is_not_harmed() {
    let net = Net::new();
    let first = Daemon::start(&net, &Setup { mode: "enforce", via: "auto", rest: CLOSED });
    let ids = support::bpf::held(first.pid());
    let file = first.config_file();
    let same_socket = shedder_in(&net.server, &["run", "--config", file.to_str().unwrap()]);
    assert_eq!(same_socket.code, Some(1), "{same_socket:?}");
    let pid = format!("another daemon (pid {}) answers at", first.pid());
    assert!(same_socket.stderr.contains(&pid), "{same_socket:?}");

    let other = first.directory.path().join("other.toml");
    let text = fs::read_to_string(&file)
        .unwrap()
        .replace("control.sock", "own/other.sock")
        .replace("127.0.0.1:9464", "off");
    fs::write(&other, text).unwrap();
    let same_bpffs = shedder_in(&net.server, &["run", "--config", other.to_str().unwrap()]);
    assert_eq!(same_bpffs.code, Some(1), "{same_bpffs:?}");
    assert!(same_bpffs.stderr.contains("another shedder uses"), "{same_bpffs:?}");

    assert_eq!(support::bpf::held(first.pid()), ids);
    let address = SocketAddr::new(net.server_ip(false), 8080);
    let _listener = net.server.enter(|| TcpListener::bind(address).unwrap()).unwrap();
    assert!(connect(&net.client, address, PATIENCE).is_err(), "the first one goes on refusing");
}
