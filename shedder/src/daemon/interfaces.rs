//! Serving interfaces that come and go.

use std::collections::BTreeMap;

use crate::config::model::{Attach, InterfacePattern, Via};
use crate::datapath::{AttachError, Datapath, xdp_program_name};
use crate::kernel::attachment::{Holder, Hook, Plan, may_fall_back, plan, refusal};
use crate::kernel::support::KernelSupport;
use crate::net::NetError;
use crate::net::links::{self, LinkFacts};
use crate::snapshot::Attachment;

/// How interfaces are served.
#[derive(Debug, Default)]
pub(super) struct Interfaces {
    served: BTreeMap<u32, Attachment>,
    /// Those that should not be served any more and cannot be let go, and why.
    stuck: BTreeMap<u32, String>,
    unmatched: Vec<InterfacePattern>,
    /// `attach.via` and whether resets are needed, as of the last look.
    terms: Option<(Via, bool)>,
}

impl Interfaces {
    /// Attaches to interfaces that should be served and are not, and lets go of those that should not be served
    /// any more. What cannot be attached stays on the list with the reason, and is tried again next time.
    ///
    /// # Errors
    ///
    /// The kernel does not list its links.
    pub(super) fn sync(
        &mut self,
        datapath: &mut Datapath,
        attach: &Attach,
        needs_reset: bool,
        support: &KernelSupport,
    ) -> Result<(), NetError> {
        let links = links::list()?;
        let defaults = links::default_route_interfaces()?;
        let selection = links::select(&attach.interfaces, &links, &defaults);
        links.iter().for_each(|link| self.follow_name(link));
        let gone: Vec<u32> = self
            .served
            .keys()
            .copied()
            .filter(|ifindex| selection.chosen.iter().all(|link| link.ifindex != *ifindex))
            .collect();
        for ifindex in gone {
            self.let_go(datapath, ifindex);
        }
        for link in &selection.chosen {
            self.stuck.remove(&link.ifindex);
        }
        let terms = (attach.via, needs_reset);
        let new_terms = self.terms.replace(terms) != Some(terms);
        for link in &selection.chosen {
            if let Some(attachment) = self.served.get(&link.ifindex)
                && attachment.mode != NOT_SERVED
            {
                if !datapath.is_attached(&link.name, link.ifindex, link.xdp_attached) {
                    tracing::warn!("{} has lost its program and is served anew.", link.name);
                } else if !new_terms
                    || allows(&plan(link, attach.via, needs_reset, support), &attachment.mode)
                {
                    // An attachment can reset a network card, so only the operator's own change makes a new one.
                    continue;
                }
                if let Err(error) = datapath.detach(link.ifindex) {
                    tracing::warn!("{} stays served by {}: {error:#}.", link.name, attachment.mode);
                    self.terms = None;
                    continue;
                }
            }
            let attachment = serve(datapath, link, attach.via, needs_reset, support);
            if self.served.get(&link.ifindex) != Some(&attachment) {
                report(&attachment);
            }
            self.served.insert(link.ifindex, attachment);
        }
        if self.unmatched != selection.unmatched {
            for pattern in &selection.unmatched {
                tracing::warn!("{}.", unmatched(pattern));
            }
            self.unmatched = selection.unmatched;
        }
        Ok(())
    }

    /// An interface is called otherwise and served as before.
    fn follow_name(&mut self, link: &LinkFacts) {
        if let Some(attachment) = self.served.get_mut(&link.ifindex)
            && attachment.interface != link.name
        {
            tracing::info!("{} is called {} now.", attachment.interface, link.name);
            attachment.interface.clone_from(&link.name);
        }
    }

    /// Where that fails the interface stays on the list, and it is tried again next time.
    fn let_go(&mut self, datapath: &mut Datapath, ifindex: u32) {
        let Some(attachment) = self.served.get(&ifindex) else { return };
        if let Err(error) = datapath.detach(ifindex) {
            let Attachment { interface, mode, .. } = attachment;
            let trouble = format!("{interface} stays served by {mode}: letting go of it failed: {error:#}");
            if self.stuck.get(&ifindex) != Some(&trouble) {
                tracing::warn!("{trouble}.");
                self.stuck.insert(ifindex, trouble);
            }
            return;
        }
        if attachment.mode != NOT_SERVED {
            tracing::info!("{} is not served any more.", attachment.interface);
        }
        self.served.remove(&ifindex);
        self.stuck.remove(&ifindex);
    }

    /// All attachments, by name.
    #[must_use]
    pub(super) fn attachments(&self) -> Vec<Attachment> {
        let mut attachments: Vec<_> = self.served.values().cloned().collect();
        attachments.sort_by(|left, right| left.interface.cmp(&right.interface));
        attachments
    }

    /// What does not work as configured.
    #[must_use]
    pub(super) fn warnings(&self) -> Vec<String> {
        let stuck = self.stuck.values().cloned();
        self.unmatched.iter().map(unmatched).chain(stuck).chain(self.all_refused()).collect()
    }

    /// Why an interface that is there is not served; the first one where there are several.
    #[must_use]
    pub(super) fn refused(&self) -> Option<String> {
        self.all_refused().next()
    }

    fn all_refused(&self) -> impl Iterator<Item = String> + '_ {
        self.served
            .values()
            .filter(|attachment| attachment.mode == NOT_SERVED)
            .map(|attachment| format!("{} is not served: {}", attachment.interface, attachment.reason))
    }
}

/// The mode of an interface that could not be attached.
pub(super) const NOT_SERVED: &str = "none";

fn allows(plan: &Plan, mode: &str) -> bool {
    plan.ladder.iter().any(|hook| hook.mode() == mode)
}

fn report(attachment: &Attachment) {
    let Attachment { interface, mode, reason, .. } = attachment;
    if mode == NOT_SERVED {
        tracing::error!("{interface} is not served: {reason}.");
    } else {
        tracing::info!("{interface} is served by {mode}: {reason}.");
    }
}

fn unmatched(pattern: &InterfacePattern) -> String {
    match pattern {
        InterfacePattern::DefaultRoute => {
            "no interface holds a default route; name interfaces in attach.interfaces, or wait for one"
                .to_owned()
        }
        InterfacePattern::Name(name) => {
            format!("there is no interface {name}; it is served when it comes, or correct attach.interfaces")
        }
        InterfacePattern::Glob(glob) => {
            format!("no interface matches {glob}; what comes is served, or correct attach.interfaces")
        }
    }
}

fn serve(
    datapath: &mut Datapath,
    link: &LinkFacts,
    via: Via,
    needs_reset: bool,
    support: &KernelSupport,
) -> Attachment {
    let plan = plan(link, via, needs_reset, support);
    let attachment = |mode: &str, reason: String| Attachment {
        interface: link.name.clone(),
        ifindex: link.ifindex,
        mode: mode.to_owned(),
        reason,
    };
    let Some(link_header_len) = link.link_header_len else { return attachment(NOT_SERVED, plan.reason) };
    if plan.ladder.is_empty() {
        return attachment(NOT_SERVED, plan.reason);
    }
    // After native XDP comes TC, which stands beside other programs and replaces none.
    let go_on = |errno| may_fall_back(errno) || matches!(errno, libc::EBUSY | libc::EEXIST);
    match datapath.attach(&link.name, link.ifindex, link_header_len, &plan.ladder, go_on) {
        Ok((hook, failures)) => {
            let mut reason = plan.reason;
            for (failed, error) in &failures {
                reason = format!("{}, so {hook} serves it", explain(*failed, link, error));
            }
            attachment(hook.mode(), reason)
        }
        Err(failures) => {
            let reasons: Vec<_> = failures.iter().map(|(hook, error)| explain(*hook, link, error)).collect();
            attachment(NOT_SERVED, reasons.join("; "))
        }
    }
}

fn explain(hook: Hook, link: &LinkFacts, error: &AttachError) -> String {
    match error.errno {
        Some(errno) => {
            let holder =
                link.xdp_attached.map(|id| Holder { id, name: xdp_program_name(id).unwrap_or_default() });
            refusal(hook, link, errno, holder.as_ref())
        }
        None => format!("{:#}", error.error),
    }
}
