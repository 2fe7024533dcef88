//! `[attach]`

use globset::Glob;

use crate::config::defaults;
use crate::config::error::Problems;
use crate::config::model::{Attach, InterfacePattern, Via};
use crate::config::section::Section;
use crate::config::suggest::{choose, did_you_mean, show};
use crate::config::value::{self, Read};

const DEFAULT_ROUTE: &str = "default-route";

/// Longest name that the kernel gives an interface, in bytes.
const LONGEST_NAME: usize = 15;

pub(super) fn read(root: &Section<'_>, problems: &mut Problems<'_>) -> Attach {
    let mut attach = defaults::attach();
    let Some(section) = root.open("attach", problems) else { return attach };
    section.expect_keys(&["interfaces", "via"], problems);
    let found_before = problems.count();
    if let Some(interfaces) =
        section.read_list("interfaces", problems, |value| interface(value::text(value, "eth0")?))
    {
        if interfaces.is_empty() && problems.count() == found_before {
            let span = section.value("interfaces").map_or(section.span(), toml::Spanned::span);
            problems.at(span, "attach.interfaces is empty: name one, or write [\"default-route\"]");
        }
        attach.interfaces = interfaces.into_iter().map(toml::Spanned::into_inner).collect();
    }
    attach.via = section.read_or("via", attach.via, problems, |value| via(value::text(value, "auto")?)).value;
    attach
}

fn interface(text: &str) -> Read<InterfacePattern> {
    let shown = show(text);
    if text == DEFAULT_ROUTE {
        return Ok(InterfacePattern::DefaultRoute);
    }
    if text.contains(['*', '?', '[', '{']) {
        return match Glob::new(text) {
            Ok(_) => Ok(InterfacePattern::Glob(text.to_owned())),
            Err(why) => Err(format!("`{shown}` is no glob: {}; write one such as \"eth*\"", why.kind())),
        };
    }
    if let Some(near) = did_you_mean(text, [DEFAULT_ROUTE]) {
        return Err(format!("unknown interface `{shown}`, did you mean `{near}`?"));
    }
    let unfit = |c: char| c.is_whitespace() || c.is_control() || c == '/' || c == ':';
    if text.is_empty() || text == "." || text == ".." || text.len() > LONGEST_NAME || text.contains(unfit) {
        return Err(format!(
            "`{shown}` cannot be the name of an interface (1 to {LONGEST_NAME} bytes without blanks, `/` and `:`): \
             `ip link` lists those that exist"
        ));
    }
    Ok(InterfacePattern::Name(text.to_owned()))
}

fn via(word: &str) -> Read<Via> {
    let choices = [("auto", Via::Auto), ("native", Via::Native), ("generic", Via::Generic), ("tc", Via::Tc)];
    choose("via", word, &choices)
}
