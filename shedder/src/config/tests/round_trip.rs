//! The effective configuration reads back as an equal one.

use proptest::prelude::*;

use super::read;
use crate::config::effective;
use crate::config::model::Config;

#[test]
fn the_default_round_trips_but_for_the_listeners() {
    let config = Config::observe_default();
    let text = effective(&config);
    assert!(text.contains("# No file: the policies follow"));
    assert_eq!(read(&text), Config { follow_listeners: false, ..config });
}

#[test]
fn runs_of_equal_policies_are_one_range_again() {
    let text = "version = 1\n[[port]]\nport = \"8000-8099\"\n[[port]]\nport = 8100\n[[port]]\nport = 8101\nrate = \
                \"1/s\"\n[[port]]\nport = \"9000-9001\"\nshared = true\n[[port]]\nport = \"20-23\"\noverride_guard = true";
    let config = read(text);
    let effective = effective(&config);
    let ports: Vec<_> = effective.lines().filter(|line| line.starts_with("port = ")).collect();
    assert_eq!(
        ports,
        ["port = \"8000-8100\"", "port = 8101", "port = \"9000-9001\"", "port = \"20-23\""],
        "{effective}"
    );
    assert_eq!(effective.matches("shared = true").count(), 1);
    assert_eq!(effective.matches("override_guard = true").count(), 1);
    assert_eq!(read(&effective), config);
}

#[test]
fn awkward_text_is_quoted() {
    let config = read(
        "version = 1\n[daemon]\nsocket = '/run/\"a\"\\b é.sock'\n[signals.x]\nsource = 'file'\npath = \"/run/\\n\\t'\\\"\"\n\
         scope = 'cgroup:a b/\"c\"'\nhigh = { enter = 1e300, exit = -0.1 }\n",
    );
    assert_eq!(read(&effective(&config)), config);
}

/// One of these texts, or none.
fn maybe(texts: &'static [&'static str]) -> impl Strategy<Value = &'static str> {
    prop_oneof![Just(""), proptest::sample::select(texts)]
}

fn port_table() -> impl Strategy<Value = String> {
    let limits = (
        maybe(&["rate = '7/min'\n", "rate = '0/s'\n", "rate = 'unlimited'\n", "rate = '0.3/s'\n"]),
        maybe(&["burst = 1\n", "burst = 4294967295\n"]),
        maybe(&["connections = 0\n", "connections = 20000\n", "connections = 'unlimited'\n"]),
        maybe(&["queue_depth = 0\n", "queue_depth = 0.123456789\n", "queue_depth = 'unlimited'\n"]),
        maybe(&["queue_wait = '0s'\n", "queue_wait = '1234us'\n", "queue_wait = 'unlimited'\n"]),
        maybe(&["action = 'drop'\n"]),
        maybe(&["class = 'batch'\n", "class = 'control'\n"]),
        maybe(&["to = 'any'\n", "to = ['10.0.0.0/8', '::1/128']\n"]),
        maybe(&["shared = true\n"]),
    );
    limits.prop_map(|(a, b, c, d, e, f, g, h, i)| [a, b, c, d, e, f, g, h, i].concat())
}

fn configuration() -> impl Strategy<Value = String> {
    let head = (
        maybe(&["mode = 'enforce'\n", "mode = 'off'\n"]),
        maybe(&["attach = { interfaces = ['eth*', 'lo'], via = 'generic' }\n"]),
        maybe(&["daemon = { tick = '33ms', lease = '1.5s', on_exit = 'keep' }\n"]),
        maybe(&[
            "metrics.listen = 'off'\n",
            "metrics.listen = '[::]:99'\n",
            "metrics.admission_level = 'moderate'\n",
        ]),
        maybe(&["guard = { ports = [1, 2], sources = ['::/0'], rate = '5/s' }\n"]),
        maybe(&["levels = { hold = '0s', max_hold = '90m', stale_after = '7s', on_loss = 'hold' }\n"]),
        maybe(&["[signals.memory]\nenabled = false\nemergency = 'never'\nfor = '1s'\n"]),
        maybe(&["[signals.psi_cpu_full]\nwindow = 'avg60'\nhigh = { enter = 1, exit = 0.5 }\n"]),
        maybe(&[
            "[signals.z]\nsource = 'file'\npath = '/z'\nscope = 'port:1'\nhigh = { enter = 1, exit = 0 }\n",
        ]),
        maybe(&["[classes.core]\nshares = [1, 0.1, 0.333, 0]\nfloor = 0.7\naction = 'drop'\n"]),
    );
    let sources = maybe(&["[[source]]\ncidr = '10.0.0.0/8'\nclass = 'core'\n"]);
    let ports = proptest::collection::vec((1_u16..40, port_table()), 0..8);
    (head, sources, ports).prop_map(|((a, b, c, d, e, f, g, h, i, j), sources, ports)| {
        let mut text = ["version = 1\n", a, b, c, d, e, f, g, h, i, j, sources].concat();
        let mut next = 30_000;
        for (width, table) in ports {
            let last = next + width - 1;
            text += &format!("[[port]]\nport = '{next}-{last}'\n{table}");
            next = last + 1;
        }
        text
    })
}

proptest! {
    #[test]
    fn any_configuration_round_trips(text in configuration()) {
        let config = read(&text);
        let effective = effective(&config);
        prop_assert_eq!(&read(&effective), &config, "{}", effective);
    }
}
