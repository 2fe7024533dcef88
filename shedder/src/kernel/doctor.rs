//! `shedder doctor`: what this kernel, these interfaces and this container allow, and what shedder will
//! therefore do. Facts are gathered in one place and judged in another.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::attachment::{self, Hook, Plan};
use super::offsets::{VMLINUX_BTF, read_types};
use super::support::{Jit, KernelSupport, Layout, Psi};
use crate::config::model::{Action, Attach, Config, InterfacePattern};
use crate::net::links::{self, LinkFacts};
use crate::net::namespace;
use crate::net::sockets::SocketTables;

/// The oldest kernel whose programs have what the hot path uses: XDP for packets in several buffers.
const OLDEST: (u32, u32) = (5, 18);

/// Coarse clock steps above this are said to be coarse.
const FINE_STEP_NS: u64 = 5_000_000;

/// What the configuration asks of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wants {
    /// Interfaces and hooks.
    pub attach: Attach,
    /// Directory of the pins.
    pub bpffs: PathBuf,
    /// Some policy answers with RST.
    pub needs_reset: bool,
}

impl Wants {
    /// What that configuration asks for.
    #[must_use]
    pub fn of(config: &Config) -> Self {
        Self {
            attach: config.attach.clone(),
            bpffs: config.daemon.bpffs.clone(),
            needs_reset: needs_reset(config),
        }
    }
}

/// Whether any policy may answer with RST, in whatever mode the daemon starts. Policies that follow listeners
/// have the default action, which is to reset.
#[must_use]
pub fn needs_reset(config: &Config) -> bool {
    config.follow_listeners
        || config.ports.iter().any(|port| port.action == Action::Reset)
        || config.classes.iter().any(|class| class.action == Some(Action::Reset))
}

/// What was found. An `Err` is a sentence that says what could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Kernel, file systems, privileges.
    pub support: KernelSupport,
    /// Every interface.
    pub links: Result<Vec<LinkFacts>, String>,
    /// Interfaces of the default routes.
    pub default_routes: Result<BTreeSet<u32>, String>,
    /// Fields of the kernel that are missing, and what is therefore not judged.
    pub missing_fields: Result<Vec<String>, String>,
    /// Listening TCP sockets.
    pub listeners: Result<usize, String>,
    /// Inode number of the network namespace.
    pub namespace: Result<u32, String>,
}

/// Asks the running kernel.
#[must_use]
pub fn gather(wants: &Wants) -> Facts {
    Facts {
        support: KernelSupport::read(Path::new("/"), &wants.bpffs),
        links: links::list().map_err(|error| error.to_string()),
        default_routes: links::default_route_interfaces().map_err(|error| error.to_string()),
        missing_fields: read_types(Path::new(VMLINUX_BTF))
            .map(|types| types.missing)
            .map_err(|error| error.to_string()),
        listeners: SocketTables::open()
            .and_then(|mut tables| tables.listeners())
            .map(|listeners| listeners.len())
            .map_err(|error| error.to_string()),
        namespace: namespace::inode().map_err(|error| error.to_string()),
    }
}

/// How good one thing is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// As it should be.
    Ok,
    /// shedder works, but not all of it.
    Limited,
    /// `shedder run` starts and waits for it; nothing is served until then.
    Waits,
    /// shedder does not work until this is mended.
    Missing,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ok => "ok",
            Self::Limited => "limited",
            Self::Waits => "waits",
            Self::Missing => "missing",
        })
    }
}

/// The verdict on one topic.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// What it is about.
    pub topic: String,
    /// The verdict.
    pub state: State,
    /// What is there, what shedder will therefore do, and what would help.
    pub sentence: String,
}

impl Line {
    fn new(topic: &str, state: State, sentence: impl Into<String>) -> Self {
        Self { topic: topic.into(), state, sentence: sentence.into() }
    }
}

/// The verdicts, most basic first.
#[must_use]
pub fn report(facts: &Facts, wants: &Wants) -> Vec<Line> {
    let support = &facts.support;
    let mut lines = vec![kernel(support), privileges(support)];
    lines.extend(lockdown(support));
    lines.extend([
        type_information(support, &facts.missing_fields),
        jit(&support.bpf_jit),
        clock(support),
        bpffs(support, &wants.bpffs),
        xdp(support),
        tc(support),
    ]);
    lines.extend(interfaces(facts, wants));
    lines.extend([sockets(facts), pressure(&support.psi), cgroups(support)]);
    lines
}

/// Whether `shedder run` can work here, if only once what it waits for is there.
#[must_use]
pub fn can_run(lines: &[Line]) -> bool {
    lines.iter().all(|line| line.state != State::Missing)
}

/// The report as text: one topic a line, and a last line that sums up.
#[must_use]
pub fn render(lines: &[Line]) -> String {
    let width = lines.iter().map(|line| line.topic.len()).max().unwrap_or(0);
    let mut text = String::new();
    for Line { topic, state, sentence } in lines {
        text.push_str(&format!("{state:<7}  {topic:<width$}  {sentence}\n"));
    }
    let count = |state| lines.iter().filter(|line| line.state == state).count();
    let limited = format!("{} of {} topics are limited.\n", count(State::Limited), lines.len());
    text.push_str(&match (count(State::Missing), count(State::Waits), count(State::Limited)) {
        (0, 0, 0) => "shedder can do all of its work here.\n".to_owned(),
        (0, 0, _) => format!("shedder works here; {limited}"),
        (0, _, _) => {
            format!(
                "`shedder run` starts here and serves nothing until what it waits for is there; {limited}"
            )
        }
        (missing, _, _) => format!("shedder cannot work here yet; what is missing: {missing}.\n"),
    });
    text
}

fn kernel(support: &KernelSupport) -> Line {
    let release = &support.release;
    let (major, minor) = OLDEST;
    if support.version.is_none() {
        let sentence = format!("the release \"{release}\" cannot be read; it is treated as an old kernel");
        return Line::new("kernel", State::Limited, sentence);
    }
    if support.at_least(major, minor) {
        return Line::new("kernel", State::Ok, format!("Linux {release}"));
    }
    let sentence = format!(
        "Linux {release} is too old: the programs need XDP for packets in several buffers, which Linux {major}.{minor} \
         and some older kernels of distributions have (6.6 or later is best)"
    );
    Line::new("kernel", State::Missing, sentence)
}

fn privileges(support: &KernelSupport) -> Line {
    const TOPIC: &str = "privileges";
    let Some(capabilities) = support.capabilities else {
        let sentence = "the capabilities cannot be read from /proc/self/status: mount /proc";
        return Line::new(TOPIC, State::Limited, sentence);
    };
    let lacking = capabilities.lacking();
    if !lacking.is_empty() {
        let sentence =
            format!("{} missing: run as root, or add them to the unit or container", lacking.join(", "));
        return Line::new(TOPIC, State::Missing, sentence);
    }
    if support.initial_user_namespace == Some(false) {
        let sentence = "the process lives in a user namespace, where capabilities do not count for BPF: run it in \
                        the initial one (hostUsers: true, no rootless container)";
        return Line::new(TOPIC, State::Missing, sentence);
    }
    let who = if support.is_root { "root" } else { "not root, but with the capabilities needed" };
    Line::new(TOPIC, State::Ok, who)
}

fn lockdown(support: &KernelSupport) -> Option<Line> {
    (support.lockdown.as_deref() == Some("confidentiality")).then(|| {
        let sentence = "lockdown=confidentiality forbids programs to read kernel memory: connections are not counted, and \
                        before Linux 6.2 the queue_wait gate admits; lockdown=integrity is enough for most purposes";
        Line::new("lockdown", State::Limited, sentence)
    })
}

fn type_information(support: &KernelSupport, missing: &Result<Vec<String>, String>) -> Line {
    const TOPIC: &str = "btf";
    match missing {
        _ if !support.btf => {
            let sentence = format!(
                "there is no {VMLINUX_BTF}: the connections, queue_depth and queue_wait gates admit; use a kernel with \
                 CONFIG_DEBUG_INFO_BTF=y and mount /sys"
            );
            Line::new(TOPIC, State::Limited, sentence)
        }
        Err(error) => Line::new(
            TOPIC,
            State::Limited,
            format!("{error}: the connections, queue_depth and queue_wait gates admit"),
        ),
        Ok(missing) if missing.is_empty() => {
            Line::new(TOPIC, State::Ok, "connections and accept queues can be read in the kernel")
        }
        Ok(missing) => Line::new(TOPIC, State::Limited, missing.join("; ")),
    }
}

fn jit(jit: &Jit) -> Line {
    match jit {
        Jit::On => Line::new("jit", State::Ok, "programs are compiled"),
        Jit::Off => Line::new(
            "jit",
            State::Limited,
            "programs are interpreted, several times slower: sysctl net.core.bpf_jit_enable=1",
        ),
        Jit::Unknown(why) => {
            Line::new("jit", State::Limited, format!("it is unknown whether programs are compiled: {why}"))
        }
    }
}

fn clock(support: &KernelSupport) -> Line {
    let ns = support.coarse_clock_resolution_ns;
    let step = format!("{}.{:03} ms", ns / 1_000_000, ns % 1_000_000 / 1_000);
    if !support.coarse_clock {
        let sentence = "programs have no coarse clock before Linux 5.11";
        return Line::new("clock", State::Limited, sentence);
    }
    if ns > FINE_STEP_NS {
        let sentence = format!("the coarse clock steps by {step}; what is timed by it is as coarse");
        return Line::new("clock", State::Limited, sentence);
    }
    Line::new("clock", State::Ok, format!("the coarse clock steps by {step}"))
}

fn bpffs(support: &KernelSupport, path: &Path) -> Line {
    let path = path.display();
    if support.bpffs_mounted {
        return Line::new("bpffs", State::Ok, format!("maps and links are pinned in {path}"));
    }
    let sentence = format!(
        "{path} does not lie in a bpffs: mount -t bpf bpf /sys/fs/bpf, or mount the host's into the container"
    );
    Line::new("bpffs", State::Missing, sentence)
}

fn xdp(support: &KernelSupport) -> Line {
    if support.xdp_frags {
        return Line::new(
            "xdp",
            State::Ok,
            "XDP takes packets in several buffers, so that a large MTU is no obstacle",
        );
    }
    let sentence =
        "XDP takes packets in several buffers since Linux 5.18; without that the programs are not loaded";
    Line::new("xdp", State::Limited, sentence)
}

fn tc(support: &KernelSupport) -> Line {
    if support.tcx {
        return Line::new("tc", State::Ok, "where XDP does not serve, TCX links do");
    }
    let sentence = "TCX needs Linux 6.6: where XDP does not serve, a filter in clsact does, which outlives a killed \
                    daemon until shedder starts again or unloads (it passes everything once the lease ends)";
    Line::new("tc", State::Limited, sentence)
}

/// One line for each interface that is meant and one for each pattern that means none.
fn interfaces(facts: &Facts, wants: &Wants) -> Vec<Line> {
    const TOPIC: &str = "interfaces";
    let links = match &facts.links {
        Ok(links) => links,
        Err(error) => return vec![Line::new(TOPIC, State::Missing, error.as_str())],
    };
    let mut lines = Vec::new();
    let none = BTreeSet::new();
    let default_routes = facts.default_routes.as_ref().unwrap_or_else(|error| {
        lines.push(Line::new(TOPIC, State::Limited, error.as_str()));
        &none
    });
    let selection = links::select(&wants.attach.interfaces, links, default_routes);
    lines.extend(selection.chosen.iter().map(|link| {
        let plan = attachment::plan(link, wants.attach.via, wants.needs_reset, &facts.support);
        interface(link, &plan)
    }));
    let serves = !selection.chosen.is_empty();
    lines.extend(selection.unmatched.iter().map(|pattern| unmatched(pattern, serves)));
    lines
}

fn interface(link: &LinkFacts, plan: &Plan) -> Line {
    let topic = format!("interface {}", link.name);
    let Some(first) = plan.ladder.first() else {
        return Line::new(&topic, State::Missing, plan.reason.as_str());
    };
    let hooks: Vec<String> = plan.ladder.iter().map(ToString::to_string).collect();
    let mut sentence = format!("{}: {}", hooks.join(", else "), plan.reason);
    let mut state = State::Ok;
    if let (Some(id), true) = (link.xdp_attached, first.is_xdp()) {
        state = State::Limited;
        let otherwise = match plan.ladder.get(1) {
            Some(next) => format!("{next} serves beside it"),
            None => "the interface is not served; detach it, or set attach.via = \"tc\"".to_owned(),
        };
        sentence.push_str(&format!(
            "; an XDP program (id {id}) is attached: unless it is shedder's own it is left alone and {otherwise}"
        ));
    }
    if plan.loses_resets || (link.loopback && *first == Hook::XdpNative) {
        state = State::Limited;
    }
    if !link.up {
        sentence.push_str("; the interface is down");
    }
    Line::new(&topic, state, sentence)
}

fn unmatched(pattern: &InterfacePattern, serves: bool) -> Line {
    let state = if serves { State::Limited } else { State::Waits };
    let sentence = match pattern {
        InterfacePattern::DefaultRoute => {
            "there is no default route in the main table: `run` waits for one; where there will be none, name \
             interfaces in attach.interfaces"
                .to_owned()
        }
        InterfacePattern::Name(name) => {
            format!("there is no interface {name}: `run` waits for it and serves it once it comes")
        }
        InterfacePattern::Glob(glob) => {
            format!("no interface matches {glob}: `run` waits for one and serves what comes to match")
        }
    };
    Line::new("interfaces", state, sentence)
}

fn sockets(facts: &Facts) -> Line {
    let place = match &facts.namespace {
        Ok(inode) => format!("network namespace {inode}"),
        Err(error) => return Line::new("sockets", State::Limited, error.as_str()),
    };
    match &facts.listeners {
        Ok(count) => {
            let sentence =
                format!("{place}, TCP sockets that listen: {count}; policies apply to this namespace only");
            Line::new("sockets", State::Ok, sentence)
        }
        Err(error) => Line::new(
            "sockets",
            State::Limited,
            format!(
                "{error}: connections that are older than shedder are not counted, accept queues not read"
            ),
        ),
    }
}

fn pressure(psi: &Psi) -> Line {
    const LOST: &str = "the psi_* signals are unavailable and demand nothing";
    match psi {
        Psi::Available => Line::new("psi", State::Ok, "pressure of cpu, memory and io is measured"),
        Psi::Disabled => {
            let sentence = format!("the kernel was started without it: boot with psi=1; until then {LOST}");
            Line::new("psi", State::Limited, sentence)
        }
        Psi::Absent(why) => Line::new("psi", State::Limited, format!("{why}: {LOST}")),
    }
}

fn cgroups(support: &KernelSupport) -> Line {
    const TOPIC: &str = "cgroups";
    let at = support.cgroups.unified.as_deref().unwrap_or(Path::new("")).display();
    match support.cgroups.layout {
        Layout::V2 => {
            Line::new(TOPIC, State::Ok, format!("version 2 at {at}: workloads have levels of their own"))
        }
        Layout::Hybrid => Line::new(
            TOPIC,
            State::Limited,
            format!(
                "hybrid, version 2 at {at}: workloads have pressure from there and memory from version 1"
            ),
        ),
        Layout::V1 => Line::new(
            TOPIC,
            State::Limited,
            "version 1 only: workloads have a memory signal but no pressure of their own; boot with \
             systemd.unified_cgroup_hierarchy=1",
        ),
        Layout::None => Line::new(
            TOPIC,
            State::Limited,
            "no cgroup file system is mounted: only the host has levels; mount the host's /sys/fs/cgroup",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::support::tests::capable;
    use super::super::support::{Capabilities, Cgroups};
    use super::*;
    use crate::config::model::Via;

    fn wants() -> Wants {
        Wants {
            attach: Attach { interfaces: vec![InterfacePattern::DefaultRoute], via: Via::Auto },
            bpffs: "/sys/fs/bpf/shedder".into(),
            needs_reset: true,
        }
    }

    fn eth0() -> LinkFacts {
        LinkFacts {
            name: "eth0".into(),
            ifindex: 2,
            up: true,
            mtu: 1500,
            link_header_len: Some(14),
            link_type: "ETHER".into(),
            ..LinkFacts::default()
        }
    }

    fn good() -> Facts {
        Facts {
            support: capable(),
            links: Ok(vec![eth0()]),
            default_routes: Ok(BTreeSet::from([2])),
            missing_fields: Ok(Vec::new()),
            listeners: Ok(3),
            namespace: Ok(4_026_531_840),
        }
    }

    fn line(facts: &Facts, wants: &Wants, topic: &str) -> Line {
        report(facts, wants).into_iter().find(|line| line.topic == topic).unwrap_or_else(|| panic!("{topic}"))
    }

    #[test]
    fn a_capable_host_is_ok_throughout() {
        let lines = report(&good(), &wants());
        assert!(lines.iter().all(|line| line.state == State::Ok), "{lines:#?}");
        let text = render(&lines);
        assert!(text.ends_with("shedder can do all of its work here.\n"));
        assert!(text.contains("ok       interface eth0  native XDP, else TCX: "), "{text}");
        assert_eq!(text.lines().count(), lines.len() + 1);
    }

    /// What a change of the facts does to one topic.
    fn verdict(topic: &str, change: impl FnOnce(&mut Facts)) -> (State, String) {
        let mut facts = good();
        change(&mut facts);
        let line = line(&facts, &wants(), topic);
        (line.state, line.sentence)
    }

    #[test]
    fn each_lack_is_told_with_its_remedy() {
        use State::{Limited, Missing};
        type Change = fn(&mut Facts);
        let cases: [(&str, Change, State, &str); 22] = [
            ("kernel", |f| f.support.version = Some((5, 10)), Missing, "5.18"),
            ("kernel", |f| f.support.version = Some((5, 17)), Missing, "several buffers"),
            ("kernel", |f| f.support.version = None, Limited, "old kernel"),
            (
                "privileges",
                |f| f.support.capabilities = Some(Capabilities(1 << 12)),
                Missing,
                "CAP_BPF, CAP_PERFMON",
            ),
            ("privileges", |f| f.support.capabilities = None, Limited, "/proc"),
            ("privileges", |f| f.support.initial_user_namespace = Some(false), Missing, "user namespace"),
            (
                "lockdown",
                |f| f.support.lockdown = Some("confidentiality".into()),
                Limited,
                "queue_wait gate admits",
            ),
            ("btf", |f| f.support.btf = false, Limited, "CONFIG_DEBUG_INFO_BTF"),
            (
                "btf",
                |f| f.missing_fields = Err("cannot understand it".into()),
                Limited,
                "cannot understand it",
            ),
            ("btf", |f| f.missing_fields = Ok(vec!["no rcv_nxt".into()]), Limited, "no rcv_nxt"),
            ("jit", |f| f.support.bpf_jit = Jit::Off, Limited, "bpf_jit_enable=1"),
            ("jit", |f| f.support.bpf_jit = Jit::Unknown("hidden".into()), Limited, "hidden"),
            ("clock", |f| f.support.coarse_clock = false, Limited, "5.11"),
            ("clock", |f| f.support.coarse_clock_resolution_ns = 10_000_000, Limited, "10.000 ms"),
            ("bpffs", |f| f.support.bpffs_mounted = false, Missing, "mount -t bpf"),
            ("xdp", |f| f.support.xdp_frags = false, Limited, "5.18"),
            ("tc", |f| f.support.tcx = false, Limited, "clsact"),
            ("sockets", |f| f.listeners = Err("no sock_diag".into()), Limited, "no sock_diag"),
            ("psi", |f| f.support.psi = Psi::Disabled, Limited, "psi=1"),
            ("psi", |f| f.support.psi = Psi::Absent("no CONFIG_PSI".into()), Limited, "no CONFIG_PSI"),
            ("cgroups", |f| f.support.cgroups = Cgroups::default(), Limited, "mount the host's"),
            ("cgroups", |f| f.support.cgroups.layout = Layout::Hybrid, Limited, "/sys/fs/cgroup"),
        ];
        for (topic, change, state, words) in cases {
            let (found, sentence) = verdict(topic, change);
            assert_eq!(found, state, "{topic}: {sentence}");
            assert!(sentence.contains(words), "{topic}: {sentence}");
        }
    }

    #[test]
    fn interfaces_say_how_they_are_served() {
        let served = |change: fn(&mut LinkFacts), wants: &Wants| {
            let mut link = eth0();
            change(&mut link);
            line(&Facts { links: Ok(vec![link]), ..good() }, wants, "interface eth0")
        };
        let veth = served(|link| link.kind = Some("veth".into()), &wants());
        assert!(veth.state == State::Ok && veth.sentence.starts_with("TCX: a veth"), "{veth:?}");
        let foreign = served(|link| link.xdp_attached = Some(7), &wants());
        assert!(foreign.state == State::Limited && foreign.sentence.contains("(id 7)"), "{foreign:?}");
        let by_tc = Wants { attach: Attach { via: Via::Tc, ..wants().attach }, ..wants() };
        assert_eq!(served(|link| link.xdp_attached = Some(7), &by_tc).state, State::Ok);
        let native = Wants { attach: Attach { via: Via::Native, ..wants().attach }, ..wants() };
        assert_eq!(served(|link| link.kind = Some("veth".into()), &native).state, State::Limited);
        assert_eq!(served(|link| link.link_header_len = None, &wants()).state, State::Missing);
        assert!(served(|link| link.up = false, &wants()).sentence.ends_with("is down"));
    }

    #[test]
    fn patterns_without_interface_are_told() {
        let mut wants = wants();
        let without_route = Facts { default_routes: Ok(BTreeSet::new()), ..good() };
        let (state, sentence) = verdict("interfaces", |facts| *facts = without_route.clone());
        assert_eq!(state, State::Waits);
        assert!(sentence.contains("no default route") && sentence.contains("`run` waits"), "{sentence}");
        let lines = report(&without_route, &wants);
        assert!(can_run(&lines) && render(&lines).contains("serves nothing until what it waits for"));
        let named = Wants {
            attach: Attach { interfaces: vec![InterfacePattern::Name("eth9".into())], via: Via::Auto },
            ..wants.clone()
        };
        let absent = line(&good(), &named, "interfaces");
        assert!(absent.state == State::Waits && absent.sentence.contains("`run` waits for it"), "{absent:?}");
        let (state, sentence) = verdict("interfaces", |facts| facts.default_routes = Err("refused".into()));
        assert_eq!((state, sentence.as_str()), (State::Limited, "refused"));
        let (state, _) = verdict("interfaces", |facts| facts.links = Err("refused".into()));
        assert_eq!(state, State::Missing);
        wants.attach.interfaces.push(InterfacePattern::Glob("wlan*".into()));
        let missing = line(&good(), &wants, "interfaces");
        assert!(missing.state == State::Limited && missing.sentence.contains("wlan*"));
    }

    #[test]
    fn the_summary_counts() {
        let line = |state| Line::new("x", state, "y");
        assert!(render(&[line(State::Ok), line(State::Limited)]).contains("1 of 2 topics are limited"));
        assert!(render(&[line(State::Missing), line(State::Limited)]).contains("what is missing: 1."));
        assert!(render(&[line(State::Missing), line(State::Waits)]).contains("what is missing: 1."));
        assert!(!can_run(&[line(State::Missing), line(State::Ok)]) && can_run(&[line(State::Limited)]));
        let json = serde_json::to_string(&line(State::Limited)).unwrap();
        assert_eq!(json, r#"{"topic":"x","state":"limited","sentence":"y"}"#);
    }

    #[test]
    fn this_host_is_reported_on() {
        let facts = gather(&wants());
        assert_eq!(facts.missing_fields, Ok(Vec::new()));
        assert!(facts.links.as_ref().unwrap().iter().any(|link| link.loopback));
        assert!(facts.listeners.is_ok() && facts.namespace.is_ok());
        let lines = report(&facts, &wants());
        assert!(
            lines.iter().any(|line| line.topic == "kernel" && line.sentence.contains(&facts.support.release))
        );
        println!("{}", render(&lines));
    }
}
