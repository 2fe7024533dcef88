//! Every mistake that a file can hold, with the place where it is reported.

use std::fmt::Write as _;

use super::refuse;

/// A text (after `version = 1`, so its first line is line 2), and for each problem line, column and a part of the
/// message.
type Case = (&'static str, &'static [(usize, usize, &'static str)]);

fn check(cases: &[Case]) {
    for (text, expected) in cases {
        expect(&format!("version = 1\n{text}"), expected);
    }
}

fn expect(text: &str, expected: &[(usize, usize, &str)]) {
    let error = refuse(text);
    let found: Vec<_> =
        error.problems.iter().map(|problem| (problem.position.unwrap(), problem.message.as_str())).collect();
    assert_eq!(found.len(), expected.len(), "{error}\n---\n{text}");
    for ((position, message), (line, column, part)) in found.into_iter().zip(expected) {
        assert_eq!((position.line, position.column), (*line, *column), "{error}\n---\n{text}");
        assert!(message.contains(part), "{part}\n---\n{error}");
    }
}

#[test]
fn version() {
    expect("", &[(1, 1, "version is missing: add `version = 1`")]);
    expect("\nmode = \"off\"", &[(1, 1, "version is missing")]);
    expect("version = 2", &[(1, 11, "version: 2 is not known to this shedder")]);
    expect("version = \"1\"", &[(1, 11, "version: expected an integer, found a string")]);
    expect(
        "versoin = 1",
        &[(1, 1, "unknown key `versoin`, did you mean `version`?"), (1, 1, "version is missing")],
    );
}

#[test]
fn unknown_keys() {
    check(&[
        ("mod = 'off'", &[(2, 1, "unknown key `mod`, did you mean `mode`?")]),
        ("xyzzy = 1", &[(2, 1, "unknown key `xyzzy`: choose version, mode, attach,")]),
        ("[atach]\nvia = 'tc'", &[(2, 2, "unknown key `atach`, did you mean `attach`?")]),
        (
            "[attach]\n  interface = ['lo']",
            &[(3, 3, "attach: unknown key `interface`, did you mean `interfaces`?")],
        ),
        ("[daemon]\ntik = '1s'", &[(3, 1, "daemon: unknown key `tik`, did you mean `tick`?")]),
        ("metrics = { lisen = 'off' }", &[(2, 13, "metrics: unknown key `lisen`, did you mean `listen`?")]),
        ("guard.port = [22]", &[(2, 7, "guard: unknown key `port`, did you mean `ports`?")]),
        ("[levels]\nhold-max = '1s'", &[(3, 1, "levels: unknown key `hold-max`")]),
        (
            "[signals.memory]\nhihg = { enter = 1, exit = 0 }",
            &[(3, 1, "signals.memory: unknown key `hihg`, did you mean `high`?")],
        ),
        ("[signals.memory]\nwindow = '1s'", &[(3, 1, "signals.memory: unknown key `window`")]),
        (
            "[signals.memory]\nhigh = { entr = 1, exit = 0.9 }",
            &[(3, 10, "signals.memory.high: unknown key `entr`, did you mean `enter`?")],
        ),
        (
            "[classes.batch]\nshare = [1, 1, 1, 1]",
            &[(3, 1, "classes.batch: unknown key `share`, did you mean `shares`?")],
        ),
        ("[classes.bach]\nfloor = 0", &[(2, 10, "classes: unknown key `bach`, did you mean `batch`?")]),
        (
            "[[source]]\ncidr = '::/0'\nclas = 'core'",
            &[
                (2, 1, "source.class is missing: add `class = \"core\"`"),
                (4, 1, "source: unknown key `clas`, did you mean `class`?"),
            ],
        ),
        (
            "[[port]]\nport = 80\nqueue_dept = 1",
            &[(4, 1, "port: unknown key `queue_dept`, did you mean `queue_depth`?")],
        ),
        ("[[prot]]\nport = 80", &[(2, 3, "unknown key `prot`, did you mean `port`?")]),
    ]);
}

#[test]
fn types_of_sections() {
    check(&[
        ("attach = 1", &[(2, 10, "attach is a table, found an integer: write [attach]")]),
        ("[[daemon]]\ntick = '1s'", &[(2, 1, "daemon is a table, found a list: write [daemon]")]),
        ("[port]\nport = 80", &[(2, 1, "port is a list of tables, found a table: write [[port]]")]),
        ("port = [80]", &[(2, 9, "port is a list of tables, found an integer")]),
        ("source = 'x'", &[(2, 10, "source is a list of tables, found a string")]),
        ("signals.memory = true", &[(2, 18, "signals.memory is a table, found a boolean")]),
        ("classes.core = 0.5", &[(2, 16, "classes.core is a table, found a float")]),
    ]);
}

#[test]
fn attach() {
    check(&[
        (
            "[attach]\ninterfaces = []",
            &[(3, 14, "attach.interfaces is empty: name one, or write [\"default-route\"]")],
        ),
        ("[attach]\ninterfaces = 'eth0'", &[(3, 14, "expected a list in [brackets], found a string")]),
        (
            "[attach]\ninterfaces = ['eth0', 3]",
            &[(3, 23, "expected a string such as \"eth0\", found an integer")],
        ),
        ("[attach]\ninterfaces = ['default_route']", &[(3, 15, "did you mean `default-route`?")]),
        ("[attach]\ninterfaces = ['eth/0']", &[(3, 15, "cannot be the name of an interface")]),
        ("[attach]\ninterfaces = ['']", &[(3, 15, "cannot be the name of an interface")]),
        ("[attach]\ninterfaces = ['abcdefghijklmnop']", &[(3, 15, "cannot be the name of an interface")]),
        ("[attach]\ninterfaces = ['eth[']", &[(3, 15, "`eth[` is no glob")]),
        ("[attach]\nvia = 'natve'", &[(3, 7, "attach.via: unknown via `natve`, did you mean `native`?")]),
        ("[attach]\nvia = 'ebpf'", &[(3, 7, "unknown via `ebpf`: choose auto, native, generic or tc")]),
        ("mode = 'enforced'", &[(2, 8, "mode: unknown mode `enforced`, did you mean `enforce`?")]),
        ("mode = 1", &[(2, 8, "mode: expected a string such as \"observe\", found an integer")]),
    ]);
}

#[test]
fn daemon() {
    check(&[
        ("[daemon]\ntick = '9ms'", &[(3, 8, "daemon.tick: 9ms is outside of 10ms..10s")]),
        ("[daemon]\ntick = '11s'", &[(3, 8, "11s is outside of 10ms..10s")]),
        ("[daemon]\ntick = 100", &[(3, 8, "daemon.tick: `100` has no unit: write \"100ms\" or \"100s\"")]),
        ("[daemon]\ntick = true", &[(3, 8, "expected a string such as \"100ms\", found a boolean")]),
        ("[daemon]\ntick = '100msec'", &[(3, 8, "unknown unit `msec`")]),
        ("[daemon]\nlease = '61s'", &[(3, 9, "daemon.lease: 61s is longer than 60s")]),
        ("[daemon]\nlease = '299ms'", &[(3, 9, "daemon.lease (299ms) is shorter than 3 ticks (300ms)")]),
        (
            "[daemon]\ntick = '2s'",
            &[(3, 8, "daemon.lease (3s) is shorter than 3 ticks (6s): write lease = \"6s\"")],
        ),
        ("[daemon]\nlease = '2s'\ntick = '1s'", &[(3, 9, "shorter than 3 ticks (3s)")]),
        ("[daemon]\ntick = 'x'\nlease = '50ms'", &[(3, 8, "`x` is no duration")]),
        (
            "[daemon]\nsocket = 'run/s.sock'",
            &[(
                3,
                10,
                "daemon.socket: `run/s.sock` is no absolute path: write one such as \"/run/shedder/control.sock\"",
            )],
        ),
        ("[daemon]\nbpffs = ''", &[(3, 9, "daemon.bpffs: `` is no absolute path")]),
        ("[daemon]\nbpffs = \"/a\\u0000\"", &[(3, 9, "cannot hold the character NUL")]),
        ("[daemon]\non_exit = 'detatch'", &[(3, 11, "unknown on_exit `detatch`, did you mean `detach`?")]),
    ]);
    let long = format!("version = 1\n[daemon]\nsocket = '/{}'", "x".repeat(107));
    expect(&long, &[(3, 10, "108 bytes are too long for a socket")]);
    let taken = "version = 1\n[daemon]\nsocket = '/run/shedder/level'";
    expect(taken, &[(3, 10, "`level` beside the socket is the file with the level")]);
}

#[test]
fn metrics_and_guard() {
    check(&[
        (
            "metrics.listen = '127.0.0.1'",
            &[(2, 18, "metrics.listen: `127.0.0.1` is no IP address with port")],
        ),
        (
            "metrics.listen = 'localhost:9464'",
            &[(2, 18, "is no IP address with port: write \"127.0.0.1:9464\", or \"off\"")],
        ),
        ("metrics.listen = '[::]:0'", &[(2, 18, "has port 0, which cannot be guarded")]),
        ("metrics.listen = false", &[(2, 18, "expected a string")]),
        (
            "metrics.admission_level = 'hihg'",
            &[(2, 27, "metrics.admission_level: unknown level `hihg`, did you mean `high`?")],
        ),
        (
            "metrics.admission_level = 'normal'",
            &[(2, 27, "unknown level `normal`: choose moderate, high or emergency")],
        ),
        ("[guard]\nports = [22, 0]", &[(3, 14, "guard.ports: 0 is no port: choose 1 to 65535")]),
        ("[guard]\nports = [65536, -1]", &[(3, 10, "65536 is no port"), (3, 17, "-1 is no port")]),
        ("[guard]\nports = ['22']", &[(3, 10, "guard.ports: expected an integer, found a string")]),
        (
            "[guard]\nsources = ['10.0.0.0/33']",
            &[(3, 12, "guard.sources: `10.0.0.0/33` is no CIDR: prefix length `33`")],
        ),
        ("[guard]\nrate = 1000", &[(3, 8, "guard.rate: `1000` has no unit: write \"1000/s\"")]),
        ("[guard]\nrate = 'learned'", &[(3, 8, "exempt sources have no port to learn from")]),
    ]);
}

#[test]
fn levels() {
    check(&[
        ("[levels]\nhold = 10", &[(3, 8, "levels.hold: `10` has no unit")]),
        ("[levels]\nmax_hold = '5min'", &[(3, 12, "unknown unit `min`")]),
        ("[levels]\nramp = '2y'", &[(3, 8, "unknown unit `y`")]),
        (
            "[levels]\nstale_after = '99ms'",
            &[(3, 15, "levels.stale_after (99ms) is shorter than a tick (100ms)")],
        ),
        (
            "[levels]\non_loss = 'holt'",
            &[(3, 11, "levels.on_loss: unknown on_loss `holt`, did you mean `hold`?")],
        ),
        (
            "[daemon]\ntick = '5s'\nlease = '15s'",
            &[(3, 8, "levels.stale_after (2s) is shorter than a tick (5s)")],
        ),
    ]);
}

#[test]
fn signals() {
    check(&[
        (
            "[signals.memory]\nhigh = { enter = 0.8, exit = 0.8 }",
            &[(3, 18, "signals.memory.high: enter (0.8) is not above exit (0.8)")],
        ),
        ("[signals.memory]\nhigh = { exit = 0.99 }", &[(3, 17, "enter (0.95) is not above exit (0.99)")]),
        (
            "[signals.memory]\nhigh = { enter = 0.5, exit = 0.4 }",
            &[(3, 8, "signals.memory.high: enter (0.5) is below that of moderate (0.92)")],
        ),
        (
            "[signals.memory]\nmoderate = { enter = 0.96 }",
            &[(3, 12, "signals.memory.high: enter (0.95) is below that of moderate (0.96)")],
        ),
        (
            "[signals.memory]\nhigh = { exit = 0.5 }",
            &[(3, 8, "signals.memory.high: exit (0.5) is below that of moderate (0.88)")],
        ),
        (
            "[signals.memory]\nhigh = 0.9",
            &[(3, 8, "expected { enter = 10, exit = 5 } or \"never\", found a float")],
        ),
        (
            "[signals.memory]\nhigh = { enter = '90%' }",
            &[(3, 18, "signals.memory.high.enter: expected a number, found a string")],
        ),
        ("[signals.memory]\nhigh = { enter = inf }", &[(3, 18, "expected a finite number")]),
        ("[signals.memory]\npath = '/x'", &[(3, 1, "`memory` is read by shedder itself")]),
        (
            "[signals.memory]\nenabled = 'no'",
            &[(3, 11, "signals.memory.enabled: expected true or false, found a string")],
        ),
        ("[signals.memory]\nfor = 5", &[(3, 7, "signals.memory.for: `5` has no unit")]),
        (
            "[signals.memory]\nstale_after = '1ms'",
            &[(3, 15, "signals.memory.stale_after (1ms) is shorter than a tick")],
        ),
        ("[signals.memory]\non_loss = 'drop'", &[(3, 11, "unknown on_loss `drop`")]),
        ("[signals.accept_queue]\nmoderate = 'never'", &[(2, 1, "signal `accept_queue` demands no level")]),
        ("[signals.psi_io_some]\nwindow = '1s'", &[(2, 1, "signal `psi_io_some` demands no level")]),
        (
            "[signals.psi_io_some]\nhigh = { enter = 5 }",
            &[(3, 8, "signals.psi_io_some.high.exit is missing")],
        ),
        (
            "[signals.psi_cpu_some]\nwindow = 'avg11'",
            &[(3, 10, "unknown window `avg11`, did you mean `avg10`?")],
        ),
        ("[signals.psi_cpu_some]\nwindow = 10", &[(3, 10, "`10` has no unit")]),
        ("[signals.psi_cpu_some]\nwindow = '1h'", &[(3, 10, "1h is outside of 10ms..5m")]),
        ("[signals.memry]\nenabled = false", &[(2, 10, "unknown signal `memry`, did you mean `memory`?")]),
    ]);
}

#[test]
fn signals_of_ones_own() {
    check(&[
        (
            "[signals.lag]\npath = '/x'\nhigh = { enter = 1, exit = 0 }",
            &[(2, 10, "unknown signal `lag`: a signal of your own needs source = \"file\"")],
        ),
        (
            "[signals.lag]\nsource = 'file'\nhigh = { enter = 1, exit = 0 }",
            &[(2, 1, "signals.lag.path is missing")],
        ),
        ("[signals.lag]\nsource = 'file'\npath = '/x'", &[(2, 1, "signal `lag` demands no level")]),
        (
            "[signals.lag]\nsource = 'fil'\npath = 'x'\nhigh = { enter = 1 }",
            &[
                (3, 10, "unknown source `fil`, did you mean `file`?"),
                (4, 8, "is no absolute path"),
                (5, 8, "signals.lag.high.exit is missing"),
            ],
        ),
        (
            "[signals.lag]\nsource = 'file'\npath = '/x'\nscope = 'prt:80'\nhigh = { enter = 1, exit = 0 }",
            &[(5, 9, "unknown scope `prt`, did you mean `port`?")],
        ),
        (
            "[signals.lag]\nsource = 'file'\npath = '/x'\nscope = 'port:0'\nhigh = { enter = 1, exit = 0 }",
            &[(5, 9, "0 is no port")],
        ),
        (
            "[signals.lag]\nsource = 'file'\npath = '/x'\nscope = 'cgroup:../x'\nhigh = { enter = 1, exit = 0 }",
            &[(5, 9, "is no path below the cgroup mount")],
        ),
        (
            "[signals.Lag]\nsource = 'file'\npath = '/x'\nhigh = { enter = 1, exit = 0 }",
            &[(2, 10, "`Lag` cannot name a signal")],
        ),
        (
            "[signals.operator]\nsource = 'file'\npath = '/x'\nhigh = { enter = 1, exit = 0 }",
            &[(2, 10, "`operator` stands for levels that an operator set")],
        ),
        (
            "[signals.configuration]\nsource = 'file'\npath = '/x'\nhigh = { enter = 1, exit = 0 }",
            &[(2, 10, "`configuration` stands for levels that a change of the configuration ended")],
        ),
        (
            "[signals.offered_below_quota]\nsource = 'file'\npath = '/x'\nhigh = { enter = 1, exit = 0 }",
            &[(2, 10, "`offered_below_quota` stands for what clients offer, in traces")],
        ),
    ]);
}

#[test]
fn classes_and_sources() {
    check(&[
        ("[classes.core]\nshares = [1, 1, 1]", &[(3, 10, "classes.core.shares has 3 values: write 4")]),
        (
            "[classes.core]\nshares = [1, 1.5, 1, -0.1]",
            &[(3, 14, "classes.core.shares: 1.5 is outside of 0..1"), (3, 22, "-0.1 is outside of 0..1")],
        ),
        ("[classes.core]\nshares = 0.5", &[(3, 10, "expected a list in [brackets], found a float")]),
        ("[classes.core]\nfloor = 5", &[(3, 9, "classes.core.floor: 5 is outside of 0..1")]),
        (
            "[classes.control]\nfloor = 0.5\n[classes.optional]\nfloor = 0.45\n[classes.batch]\nshares = [1, 1, 1, 1]",
            &[(
                5,
                9,
                "the floors of all classes together are 1.020 (control 0.5, core 0.05, interactive 0.02, optional 0.45)",
            )],
        ),
        ("[classes.core]\nfloor = nan", &[(3, 9, "expected a finite number")]),
        ("[classes.core]\naction = 'rset'", &[(3, 10, "unknown action `rset`, did you mean `reset`?")]),
        (
            "[[source]]\ncidr = '10.0.0.0'\nclass = 'cor'",
            &[
                (3, 8, "has no prefix length: write \"10.0.0.0/32\""),
                (4, 9, "unknown class `cor`, did you mean `core`?"),
            ],
        ),
        ("[[source]]", &[(2, 1, "source.cidr is missing"), (2, 1, "source.class is missing")]),
        (
            "[[source]]\ncidr = '10.0.0.0/8'\nclass = 'core'\n[[source]]\ncidr = '10.0.0.0/8'\nclass = 'batch'",
            &[(6, 8, "10.0.0.0/8 has its class from line 3")],
        ),
    ]);
}

#[test]
fn ports() {
    check(&[
        ("[[port]]", &[(2, 1, "port.port is missing: add `port = 8080`")]),
        ("[[port]]\nport = 0", &[(3, 8, "port.port: 0 is no port: choose 1 to 65535")]),
        ("[[port]]\nport = 65536", &[(3, 8, "65536 is no port")]),
        ("[[port]]\nport = '0-10'", &[(3, 8, "0 is no port")]),
        ("[[port]]\nport = '8099-8000'", &[(3, 8, "the range ends before it starts: write \"8000-8099\"")]),
        ("[[port]]\nport = '8000-'", &[(3, 8, "`8000-` is no range of ports")]),
        ("[[port]]\nport = 80.0", &[(3, 8, "expected a port such as 8080 or a range")]),
        ("[[port]]\nport = 80\n[[port]]\nport = 80", &[(5, 8, "80 overlaps with 80 of line 3")]),
        (
            "[[port]]\nport = '80-90'\n[[port]]\nport = 100\n[[port]]\nport = '90-95'",
            &[(7, 8, "90-95 overlaps with 80-90 of line 3")],
        ),
        (
            "[[port]]\nport = 85\n[[port]]\nport = '80-90'\nshared = true",
            &[(5, 8, "80-90 overlaps with 85 of line 3")],
        ),
        (
            "[[port]]\nport = 22",
            &[(3, 8, "22 is guarded and never shed: leave it out, or add `override_guard = true`")],
        ),
        ("[[port]]\nport = '2000-3000'\nshared = true", &[(3, 8, "2379 is guarded")]),
        ("[[port]]\nport = 9464", &[(3, 8, "9464 is guarded")]),
        ("[guard]\nports = [80]\n[[port]]\nport = 80\noverride_guard = false", &[(5, 8, "80 is guarded")]),
        (
            "[[port]]\nport = 80\nprotocol = 'udp'",
            &[(4, 12, "port.protocol: udp is not supported yet, tcp only")],
        ),
        ("[[port]]\nport = 80\nprotocol = 'tpc'", &[(4, 12, "unknown protocol `tpc`, did you mean `tcp`?")]),
        (
            "[[port]]\nport = 80\nclass = 'interactiv'",
            &[(4, 9, "unknown class `interactiv`, did you mean `interactive`?")],
        ),
        (
            "[[port]]\nport = 80\naction = 'tarpit'",
            &[(4, 10, "unknown action `tarpit`: choose drop or reset")],
        ),
        (
            "[[port]]\nport = 80\nshared = 1",
            &[(4, 10, "port.shared: expected true or false, found an integer")],
        ),
        ("[[port]]\nport = 80\noverride_guard = 'yes'", &[(4, 18, "expected true or false, found a string")]),
    ]);
}

#[test]
fn limits_of_ports() {
    check(&[
        ("[[port]]\nport = 80\nrate = 5000", &[(4, 8, "port.rate: `5000` has no unit: write \"5000/s\"")]),
        ("[[port]]\nport = 80\nrate = 0.5", &[(4, 8, "`0.5` has no unit: write \"0.5/s\"")]),
        (
            "[[port]]\nport = 80\nrate = nan",
            &[(4, 8, "port.rate: expected a string such as \"5000/s\", found a float")],
        ),
        (
            "[[port]]\nport = 80\nrate = 1e308",
            &[(4, 8, "expected a string such as \"5000/s\", found a float")],
        ),
        ("[[port]]\nport = 80\nrate = 1e3", &[(4, 8, "expected a string such as \"5000/s\", found a float")]),
        (
            "[[port]]\nport = 80\nrate = -5",
            &[(4, 8, "expected a string such as \"5000/s\", found an integer")],
        ),
        ("[[port]]\nport = 80\nrate = 0x10", &[(4, 8, "`16` has no unit: write \"16/s\"")]),
        ("[[port]]\nport = 80\nrate = 1_000", &[(4, 8, "`1000` has no unit: write \"1000/s\"")]),
        ("[[port]]\nport = 80\nqueue_wait = 0x10", &[(4, 14, "`16` has no unit: write \"16ms\" or \"16s\"")]),
        ("[[port]]\nport = 80\nqueue_wait = -5", &[(4, 14, "write a number and a unit, such as \"100ms\"")]),
        ("[[port]]\nport = 80\nrate = '5000'", &[(4, 8, "has no unit: write \"5000/s\"")]),
        ("[[port]]\nport = 80\nrate = '50ms'", &[(4, 8, "`50ms` is no rate: write \"50/s\"")]),
        ("[[port]]\nport = 80\nburst = 0", &[(4, 9, "0 would never admit anything")]),
        ("[[port]]\nport = 80\nburst = 1.5", &[(4, 9, "port.burst: expected an integer, found a float")]),
        ("[[port]]\nport = 80\nconnections = -1", &[(4, 15, "-1 is no number from 0 to 4294967294")]),
        (
            "[[port]]\nport = 80\nconnections = '100'",
            &[(4, 15, "expected a number or \"unlimited\", found a string")],
        ),
        ("[[port]]\nport = 80\nconnections = 'unlimted'", &[(4, 15, "did you mean `unlimited`?")]),
        ("[[port]]\nport = 80\nqueue_depth = 90", &[(4, 15, "port.queue_depth: 90 is outside of 0..1")]),
        ("[[port]]\nport = 80\nqueue_wait = 50", &[(4, 14, "`50` has no unit: write \"50ms\"")]),
        (
            "[[port]]\nport = 80\nqueue_wait = '2h'",
            &[(4, 14, "`2h` is longer than an hour: write \"unlimited\"")],
        ),
        ("[[port]]\nport = 80\nqueue_wait = '50/s'", &[(4, 14, "unknown unit `/s`")]),
        ("[[port]]\nport = 80\nto = 'loca'", &[(4, 6, "unknown destination `loca`, did you mean `local`?")]),
        (
            "[[port]]\nport = 80\nto = '10.0.0.0/8'",
            &[(4, 6, "CIDRs stand in a list: write [\"10.0.0.0/8\"]")],
        ),
        ("[[port]]\nport = 80\nto = []", &[(4, 6, "port.to is empty")]),
        (
            "[[port]]\nport = 80\nto = ['10.0.0.1/8']",
            &[(4, 7, "has address bits beyond its prefix: write \"10.0.0.0/8\"")],
        ),
        ("[[port]]\nport = 80\nto = 1", &[(4, 6, "expected a string such as \"local\", found an integer")]),
    ]);
}

#[test]
fn more_than_fits_into_the_kernel() {
    check(&[
        (
            "[[port]]\nport = '30000-31023'",
            &[(3, 8, "30000-31023 makes 1024 policies, 1023 fit: add `shared = true`")],
        ),
        (
            "[[port]]\nport = '30000-31022'\n[[port]]\nport = 1\n[[port]]\nport = 2",
            &[(5, 8, "1 makes 1024 policies, 1023 fit")],
        ),
        ("[[port]]\nport = '1-65535'\noverride_guard = true", &[(3, 8, "makes 65535 policies")]),
    ]);

    let cidrs = |from: u32, count: u32| {
        (from..from + count)
            .map(|n| format!("'10.{}.{}.0/24'", n >> 8, n & 255))
            .collect::<Vec<_>>()
            .join(", ")
    };
    let line = format!("[guard]\nsources = [{}]\n", cidrs(0, 16_384));
    let one_more = "[[source]]\ncidr = '::1/128'\nclass = 'core'\n";
    expect(
        &format!("version = 1\n{line}{one_more}{one_more}"),
        &[
            (4, 1, "more than 16384 CIDRs in guard.sources and [[source]] together"),
            (8, 8, "has its class from line 5"),
        ],
    );

    let beyond = format!("version = 1\n[guard]\nsources = [\n{},\n'::1/128']\n{one_more}", cidrs(0, 16_384));
    expect(&beyond, &[(5, 1, "more than 16384 CIDRs")]);

    let mut ports = String::from("version = 1\n");
    write!(ports, "[[port]]\nport = '30000-30099'\nto = [{}]\n", cidrs(0, 163)).unwrap();
    write!(ports, "[[port]]\nport = '31000-31001'\nto = [{}]\n", cidrs(0, 43)).unwrap();
    expect(&ports, &[(7, 6, "16386 destination CIDRs over all policies, 16384 fit")]);
}

#[test]
fn what_is_no_toml() {
    check(&[
        ("mode = 'off'\nmode = 'off'", &[(3, 1, "`mode` is set twice: keep one")]),
        ("[daemon]\ntick = '1s'\n[levels]\n[daemon]\nlease = '4s'", &[(5, 2, "`daemon` is set twice")]),
        (
            "mode = 'off'\nmode = 'off'\n[metrics]\nlisten = 3",
            &[(3, 1, "`mode` is set twice"), (5, 10, "expected a string")],
        ),
        (
            "mode = enforce\n[daemon]\ntick = 100ms\nlease = '1s'",
            &[(2, 8, "this is no TOML: string values must be quoted"), (4, 8, "this is no TOML")],
        ),
        ("mode 'off'", &[(2, 6, "this is no TOML")]),
        ("[attach]\ninterfaces = ['lo'\nvia = 'tc'", &[(4, 1, "this is no TOML")]),
    ]);
}

#[test]
fn all_independent_problems_are_reported_in_the_order_of_the_file() {
    let text = "version = 1\nmode = 'enfroce'\n[daemon]\ntick = 5\nlease = '2m'\n[[port]]\nport = 0\nrate = 1\n[[port]]\nport = \
                22\nclas = 'core'\n[attach]\ninterfaces = []\n";
    let error = refuse(text);
    let places: Vec<_> = error
        .problems
        .iter()
        .map(|problem| problem.position.unwrap())
        .map(|at| (at.line, at.column))
        .collect();
    assert_eq!(places, [(2, 8), (4, 8), (5, 9), (7, 8), (8, 8), (10, 8), (11, 1), (13, 14)]);
    let shown = error.to_string();
    assert!(shown.starts_with(
        "f.toml:2:8: mode: unknown mode `enfroce`, did you mean `enforce`?\n  |\n2 | mode = 'enfroce'\n  |        ^^^^^^^^^\n\nf.toml:4:8: "
    ), "{shown}");
}
