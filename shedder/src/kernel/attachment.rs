//! How an interface is served, and what a refused attachment means. Pure rules over facts.

use std::fmt;

use super::support::KernelSupport;
use crate::config::model::Via;
use crate::net::links::LinkFacts;

/// Where a program can be attached to an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Hook {
    /// XDP in the driver.
    XdpNative,
    /// XDP on socket buffers.
    XdpGeneric,
    /// A TCX link at ingress.
    Tcx,
    /// A filter of the clsact qdisc at ingress.
    Clsact,
}

impl Hook {
    /// The word of `status` and of `shedder_attach_info`.
    #[must_use]
    pub const fn mode(self) -> &'static str {
        match self {
            Self::XdpNative => "native",
            Self::XdpGeneric => "generic",
            Self::Tcx => "tcx",
            Self::Clsact => "clsact",
        }
    }

    /// Whether the hook runs the XDP program; the others run the classifier.
    #[must_use]
    pub const fn is_xdp(self) -> bool {
        matches!(self, Self::XdpNative | Self::XdpGeneric)
    }
}

impl fmt::Display for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::XdpNative => "native XDP",
            Self::XdpGeneric => "generic XDP",
            Self::Tcx => "TCX",
            Self::Clsact => "clsact",
        })
    }
}

/// How to attach to one interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// What to try, first to last. Empty where the interface cannot be served.
    pub ladder: Vec<Hook>,
    /// Why, as a sentence for `status`.
    pub reason: String,
    /// The hook that the configuration insists on loses resets on this interface.
    pub loses_resets: bool,
}

/// Decides how an interface is served. `needs_reset` says whether any policy answers with RST.
#[must_use]
pub fn plan(facts: &LinkFacts, via: Via, needs_reset: bool, support: &KernelSupport) -> Plan {
    if let Some(unsupported) = facts.unsupported() {
        return Plan {
            ladder: Vec::new(),
            reason: format!("{unsupported}; it is not served"),
            loses_resets: false,
        };
    }
    let tc = if support.tcx { Hook::Tcx } else { Hook::Clsact };
    let trouble = needs_reset.then(|| reset_trouble(facts)).flatten();
    match via {
        Via::Native => {
            let obstacle = trouble.map(str::to_owned).or_else(|| no_xdp(facts));
            Plan { loses_resets: trouble.is_some(), ..strict(Hook::XdpNative, "native", obstacle) }
        }
        Via::Generic => {
            let lost = needs_reset && facts.external_tunnel;
            let obstacle = lost.then(|| TUNNEL_TROUBLE.to_owned());
            Plan { loses_resets: lost, ..strict(Hook::XdpGeneric, "generic", obstacle) }
        }
        Via::Tc => strict(tc, "tc", None),
        Via::Auto => {
            let served_by_tc = trouble.map(str::to_owned).or_else(|| no_xdp(facts));
            match served_by_tc {
                Some(why) => Plan {
                    ladder: vec![tc],
                    reason: format!("{why}, so {tc} serves it"),
                    loses_resets: false,
                },
                None => Plan {
                    ladder: vec![Hook::XdpNative, tc],
                    reason: format!("native XDP is the cheapest; {tc} serves where the driver has none"),
                    loses_resets: false,
                },
            }
        }
    }
}

/// The configuration names the hook: that one or an error.
fn strict(hook: Hook, word: &str, obstacle: Option<String>) -> Plan {
    let mut reason = format!("attach.via = \"{word}\" asks for {hook}");
    if let Some(obstacle) = obstacle {
        reason = format!("{reason}, although {obstacle}");
    }
    Plan { ladder: vec![hook], reason, loses_resets: false }
}

const TUNNEL_TROUBLE: &str =
    "an external tunnel drops the RST that XDP sends, which cannot say where it belongs";

/// Why a RST sent by native XDP would not arrive.
fn reset_trouble(facts: &LinkFacts) -> Option<&'static str> {
    if facts.kind.as_deref() == Some("veth") {
        return Some("a veth drops the RST that native XDP sends unless its peer runs an XDP program too");
    }
    if facts.external_tunnel {
        return Some(TUNNEL_TROUBLE);
    }
    match (facts.vlan_uppers, facts.rx_vlan_offload) {
        (true, Some(true)) => {
            Some("the device takes VLAN tags off before XDP sees them, and a RST would leave without its tag")
        }
        (true, None) => Some(
            "VLANs stand on the device and it does not tell whether it takes their tags off before XDP, which \
             would send a RST without its tag",
        ),
        _ => None,
    }
}

/// Why XDP is not tried at all.
fn no_xdp(facts: &LinkFacts) -> Option<String> {
    if facts.loopback {
        return Some("loopback has no driver that runs XDP".into());
    }
    (facts.link_header_len == Some(0))
        .then(|| format!("a link of type {} has no Ethernet header, which XDP needs", facts.link_type))
}

/// A program that holds the place which shedder asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its id.
    pub id: u32,
    /// Its name; empty where unknown.
    pub name: String,
}

/// Whether the next hook of the ladder may be tried after this errno: the device cannot do it. Drivers say so in several
/// ways, also where they have too few queues for one more on every CPU. Whatever else went wrong would go wrong there
/// too, or would silently put shedder beside someone else's program.
#[must_use]
pub const fn may_fall_back(errno: i32) -> bool {
    matches!(errno, libc::EOPNOTSUPP | libc::EINVAL | libc::ERANGE | libc::ENOMEM | libc::ENOSPC)
}

/// What a refused attachment means and what to do about it, as a sentence for `status`.
#[must_use]
pub fn refusal(hook: Hook, facts: &LinkFacts, errno: i32, holder: Option<&Holder>) -> String {
    let name = &facts.name;
    match errno {
        libc::EOPNOTSUPP => format!("the driver of {name} has no {hook}"),
        libc::ERANGE => {
            format!("the MTU of {name} ({}) is larger than its driver allows with {hook}", facts.mtu)
        }
        libc::EINVAL => format!("{name} or the kernel does not accept {hook}"),
        libc::EBUSY | libc::EEXIST if hook.is_xdp() => {
            let who = holder.map_or_else(String::new, |holder| match holder.name.as_str() {
                "" => format!(" (id {})", holder.id),
                program => format!(" (id {}, name {program})", holder.id),
            });
            format!(
                "another XDP program is attached to {name}{who}; it is left alone: detach it, or set attach.via = \
                 \"tc\""
            )
        }
        libc::EBUSY | libc::EEXIST => {
            format!("another filter holds the place of {hook} on {name}; it is left alone: remove it")
        }
        libc::EPERM | libc::EACCES => format!(
            "attaching {hook} to {name} is not permitted: run as root, or with CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN"
        ),
        libc::ENODEV => format!("{name} is gone; it is served again when it comes back"),
        libc::ENOMEM | libc::ENOSPC if hook == Hook::XdpNative => format!(
            "the driver of {name} has too few queues for {hook} on every CPU, or no memory for them (`ethtool -L` gives \
             it fewer channels)"
        ),
        libc::ENOMEM => format!("no memory is left to attach {hook} to {name}"),
        other => {
            format!("attaching {hook} to {name} failed: {}", std::io::Error::from_raw_os_error(other))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::support::tests::capable;

    fn ethernet() -> LinkFacts {
        LinkFacts {
            name: "eth0".into(),
            ifindex: 2,
            up: true,
            mtu: 1500,
            link_header_len: Some(14),
            link_type: "ETHER".into(),
            rx_vlan_offload: Some(true),
            ..LinkFacts::default()
        }
    }

    fn old() -> KernelSupport {
        KernelSupport { tcx: false, version: Some((5, 15)), ..capable() }
    }

    fn ladder(facts: &LinkFacts, via: Via, needs_reset: bool) -> Vec<Hook> {
        plan(facts, via, needs_reset, &capable()).ladder
    }

    #[test]
    fn auto_prefers_native_and_falls_back_to_what_the_kernel_has() {
        for needs_reset in [false, true] {
            assert_eq!(ladder(&ethernet(), Via::Auto, needs_reset), [Hook::XdpNative, Hook::Tcx]);
            let plan = plan(&ethernet(), Via::Auto, needs_reset, &old());
            assert_eq!(plan.ladder, [Hook::XdpNative, Hook::Clsact]);
            assert!(plan.reason.contains("native XDP") && plan.reason.contains("clsact"), "{}", plan.reason);
        }
    }

    #[test]
    fn a_veth_that_resets_is_served_by_tc() {
        let veth = LinkFacts { kind: Some("veth".into()), ..ethernet() };
        let plan = plan(&veth, Via::Auto, true, &capable());
        assert_eq!(plan.ladder, [Hook::Tcx]);
        assert!(plan.reason.contains("peer") && plan.reason.contains("TCX"), "{}", plan.reason);
        assert_eq!(ladder(&veth, Via::Auto, false), [Hook::XdpNative, Hook::Tcx]);
    }

    #[test]
    fn tags_that_would_be_lost_send_resets_through_tc() {
        let trunk = |offload| LinkFacts { vlan_uppers: true, rx_vlan_offload: offload, ..ethernet() };
        assert_eq!(ladder(&trunk(Some(true)), Via::Auto, true), [Hook::Tcx]);
        assert_eq!(ladder(&trunk(None), Via::Auto, true), [Hook::Tcx]);
        assert_eq!(ladder(&trunk(Some(false)), Via::Auto, true), [Hook::XdpNative, Hook::Tcx]);
        assert_eq!(ladder(&trunk(Some(true)), Via::Auto, false), [Hook::XdpNative, Hook::Tcx]);
    }

    #[test]
    fn an_external_tunnel_resets_through_tc() {
        let tunnel = LinkFacts { external_tunnel: true, kind: Some("vxlan".into()), ..ethernet() };
        assert_eq!(ladder(&tunnel, Via::Auto, true), [Hook::Tcx]);
        assert_eq!(ladder(&tunnel, Via::Auto, false), [Hook::XdpNative, Hook::Tcx]);
        for via in [Via::Native, Via::Generic] {
            let insisted = plan(&tunnel, via, true, &capable());
            assert!(insisted.loses_resets && insisted.reason.contains("although an external tunnel drops"));
            assert!(!plan(&tunnel, via, false, &capable()).loses_resets);
        }
        assert!(!plan(&tunnel, Via::Tc, true, &capable()).loses_resets);
    }

    #[test]
    fn devices_without_ethernet_and_loopback_are_served_by_tc() {
        let tunnel = LinkFacts { link_header_len: Some(0), link_type: "NONE".into(), ..ethernet() };
        let loopback = LinkFacts { name: "lo".into(), loopback: true, ..ethernet() };
        for needs_reset in [false, true] {
            assert_eq!(ladder(&tunnel, Via::Auto, needs_reset), [Hook::Tcx]);
            assert_eq!(ladder(&loopback, Via::Auto, needs_reset), [Hook::Tcx]);
        }
        let unknown = LinkFacts { link_header_len: None, link_type: "INFINIBAND".into(), ..ethernet() };
        for via in [Via::Auto, Via::Native, Via::Generic, Via::Tc] {
            let plan = plan(&unknown, via, false, &capable());
            assert!(plan.ladder.is_empty() && plan.reason.contains("INFINIBAND"));
        }
    }

    #[test]
    fn a_named_hook_is_the_only_one() {
        let veth = LinkFacts { kind: Some("veth".into()), ..ethernet() };
        for facts in [ethernet(), veth.clone()] {
            assert_eq!(ladder(&facts, Via::Native, true), [Hook::XdpNative]);
            assert_eq!(ladder(&facts, Via::Generic, true), [Hook::XdpGeneric]);
            assert_eq!(ladder(&facts, Via::Tc, true), [Hook::Tcx]);
            assert_eq!(plan(&facts, Via::Tc, true, &old()).ladder, [Hook::Clsact]);
        }
        let insisted = plan(&veth, Via::Native, true, &capable());
        assert!(insisted.loses_resets && insisted.reason.contains("although a veth drops"));
        assert!(!plan(&veth, Via::Native, false, &capable()).loses_resets);
        let loopback = LinkFacts { name: "lo".into(), loopback: true, ..ethernet() };
        let impossible = plan(&loopback, Via::Native, true, &capable());
        assert!(impossible.reason.contains("although loopback has no driver"), "{}", impossible.reason);
        assert!(!plan(&veth, Via::Tc, true, &capable()).loses_resets);
    }

    #[test]
    fn only_what_the_device_cannot_do_falls_back() {
        for errno in [libc::EOPNOTSUPP, libc::EINVAL, libc::ERANGE, libc::ENOMEM, libc::ENOSPC] {
            assert!(may_fall_back(errno));
        }
        for errno in [libc::EBUSY, libc::EEXIST, libc::EPERM, libc::ENODEV, 0] {
            assert!(!may_fall_back(errno));
        }
    }

    #[test]
    fn refusals_name_the_reason() {
        let says = |errno, holder: Option<&Holder>| refusal(Hook::XdpNative, &ethernet(), errno, holder);
        let holder = Holder { id: 42, name: "xdp_router".into() };
        assert!(
            says(libc::EBUSY, Some(&holder))
                .contains("another XDP program is attached to eth0 (id 42, name xdp_router)")
        );
        let nameless = Holder { id: 7, name: String::new() };
        assert!(says(libc::EEXIST, Some(&nameless)).contains("(id 7);"));
        assert!(says(libc::EBUSY, None).contains("attached to eth0;"));
        assert!(says(libc::EPERM, None).contains("CAP_BPF"));
        assert!(says(libc::ERANGE, None).contains("1500"));
        assert!(refusal(Hook::Clsact, &ethernet(), libc::EEXIST, None).contains("filter"));
        for errno in [libc::ENOMEM, libc::ENOSPC] {
            assert!(says(errno, None).contains("too few queues"));
            assert!(!refusal(Hook::Tcx, &ethernet(), errno, None).contains("queues"));
        }
    }
}
