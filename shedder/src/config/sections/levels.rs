//! `[levels]`

use std::time::Duration;

use crate::config::defaults;
use crate::config::error::Problems;
use crate::config::model::LevelRules;
use crate::config::section::{Section, Setting};
use crate::config::units::show_duration;
use crate::config::value;

pub(super) fn read(root: &Section<'_>, tick: &Setting<Duration>, problems: &mut Problems<'_>) -> LevelRules {
    let defaults = defaults::levels();
    let stale_after = Setting { value: defaults.stale_after, span: None };
    let Some(section) = root.open("levels", problems) else {
        expect_a_tick("levels.stale_after", &stale_after, tick, problems);
        return defaults;
    };
    section.expect_keys(&["hold", "max_hold", "ramp", "stale_after", "on_loss"], problems);
    let stale_after = section.read_or("stale_after", defaults.stale_after, problems, value::duration);
    if stale_after.span.is_some() || !section.has("stale_after") {
        expect_a_tick("levels.stale_after", &stale_after, tick, problems);
    }
    LevelRules {
        hold: section.read_or("hold", defaults.hold, problems, value::duration).value,
        max_hold: section.read_or("max_hold", defaults.max_hold, problems, value::duration).value,
        ramp: section.read_or("ramp", defaults.ramp, problems, value::duration).value,
        stale_after: stale_after.value,
        on_loss: section.read_or("on_loss", defaults.on_loss, problems, value::on_loss).value,
    }
}

/// A reading is at most a tick old when it is made; what is stale sooner would never be available.
pub(super) fn expect_a_tick(
    path: &str,
    stale_after: &Setting<Duration>,
    tick: &Setting<Duration>,
    problems: &mut Problems<'_>,
) {
    let Some(span) = stale_after.span.clone().or_else(|| tick.span.clone()) else { return };
    if stale_after.value < tick.value {
        let (stale_after, tick) = (show_duration(stale_after.value), show_duration(tick.value));
        problems.at(
            span,
            format!(
                "{path} ({stale_after}) is shorter than a tick ({tick}), so no reading would be available: write \
                 stale_after = \"{tick}\" or more, or a shorter tick"
            ),
        );
    }
}
