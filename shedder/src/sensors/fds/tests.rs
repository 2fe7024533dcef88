use std::os::unix::fs::symlink;

use super::*;
use crate::sensors::context::ListenerFact;
use crate::sensors::testing::{Bench, signal};

const LIMITS: &str = include_str!("../fixtures/linux-6.18/proc/100/limits");

fn bench() -> Bench {
    let bench = Bench::new([signal("fds", SignalSource::Fds)]);
    bench.write("proc/sys/kernel/osrelease", "5.15.0-91-generic\n");
    bench.write("proc/sys/fs/file-nr", "9600\t0\t96000\n");
    bench
}

fn listener(port: u16, inode: u32) -> ListenerFact {
    ListenerFact { port, inode, accept_queue: 0, backlog: 128, drops: Some(0), cgroup_id: None }
}

/// A process with that many descriptors, the first of which is the socket.
fn process(bench: &Bench, pid: u32, inode: u32, descriptors: u32, soft: &str) {
    let limits = LIMITS.lines().map(|line| {
        if line.starts_with("Max open files") {
            format!("Max open files            {soft:<20} 1048576              files     \n")
        } else {
            format!("{line}\n")
        }
    });
    bench.write(&format!("proc/{pid}/limits"), &limits.collect::<String>());
    bench.write(&format!("proc/{pid}/cgroup"), "0::/\n");
    fs::create_dir_all(bench.path(&format!("proc/{pid}/fd"))).unwrap();
    for fd in 0..descriptors {
        let target = if fd == 0 { format!("socket:[{inode}]") } else { "/dev/null".to_owned() };
        symlink(target, bench.path(&format!("proc/{pid}/fd/{fd}"))).unwrap();
    }
}

#[test]
fn the_hosts_files_over_their_limit() {
    let mut bench = bench();
    bench.tick(0);
    assert_eq!(bench.value("fds", "host"), Ok(0.1));
    for (text, reason) in [
        ("9600\t0\t9223372036854775807\n", "no limit"),
        ("9600\t0\t18446744073709551615\n", "no limit"),
        ("9600\t0\t0\n", "above 0"),
        ("9600\t0", "three numbers"),
        ("", "three numbers"),
        ("a b c", "three numbers"),
    ] {
        bench.write("proc/sys/fs/file-nr", text);
        bench.tick(100);
        assert!(bench.value("fds", "host").unwrap_err().contains(reason), "{text:?}");
    }
}

#[test]
fn the_process_nearest_to_its_limit_counts_for_the_port() {
    let mut bench = bench();
    process(&bench, 10, 77, 20, "100");
    process(&bench, 11, 77, 30, "40");
    process(&bench, 12, 78, 64, "128");
    bench.listeners = vec![listener(80, 77), listener(81, 78), listener(82, 79)];
    bench.tick(0);
    assert_eq!(bench.value("fds", "port:80"), Ok(0.75));
    assert_eq!(bench.value("fds", "port:81"), Ok(0.5));
    assert!(bench.value("fds", "port:82").unwrap_err().contains("no process found"));
}

#[test]
fn limits_that_are_none_are_named() {
    for (soft, reason) in [("unlimited", "no RLIMIT_NOFILE"), ("0", "above 0"), ("x", "above 0")] {
        let mut bench = bench();
        process(&bench, 10, 77, 3, soft);
        bench.listeners = vec![listener(80, 77)];
        bench.tick(0);
        assert!(bench.value("fds", "port:80").unwrap_err().contains(reason), "{soft}");
    }
}

#[test]
fn a_truncated_limits_file_is_named() {
    let mut bench = bench();
    process(&bench, 10, 77, 3, "100");
    bench.write("proc/10/limits", "Limit                     Soft Limit");
    bench.listeners = vec![listener(80, 77)];
    bench.tick(0);
    assert!(bench.value("fds", "port:80").unwrap_err().contains("Max open files"));
}

#[test]
fn where_the_kernel_does_not_tell_they_are_counted_once_a_second() {
    let mut bench = bench();
    process(&bench, 10, 77, 20, "100");
    bench.listeners = vec![listener(80, 77)];
    bench.tick(0);
    symlink("/dev/null", bench.path("proc/10/fd/20")).unwrap();
    bench.tick(900);
    assert_eq!(bench.value("fds", "port:80"), Ok(0.2));
    bench.tick(1_000);
    assert_eq!(bench.value("fds", "port:80"), Ok(0.21));
}

#[test]
fn releases_are_compared_as_numbers() {
    assert_eq!(version("5.15.0-91-generic\n"), Some((5, 15)));
    assert_eq!(version("6.18.44"), Some((6, 18)));
    assert_eq!(version("6.2-rc1"), Some((6, 2)));
    assert_eq!(version(""), None);
    assert_eq!(version("six.two"), None);
}

#[test]
fn the_size_of_the_directory_is_the_count_where_the_kernel_says_so() {
    let mut fds = Fds::new(Path::new("/"), Vec::new());
    assert!(fds.size_counts, "these tests need Linux 6.2 or later");
    let pid = std::process::id();
    let limit = soft_limit(&mut Source::default(), Path::new("/proc/self/limits")).unwrap();
    let ratio_before = fds.of_process(Duration::ZERO, pid).unwrap();
    let held: Vec<_> = (0..500).map(|_| fs::File::open("/dev/null").unwrap()).collect();
    let ratio_with = fds.of_process(Duration::ZERO, pid).unwrap();
    let grown = (ratio_with - ratio_before) * limit as f64;
    // Other tests of this process open and close files meanwhile.
    assert!((300.0..=700.0).contains(&grown), "{grown}");
    drop(held);
}
