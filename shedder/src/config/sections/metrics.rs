//! `[metrics]`

use shedder_common::level::Level;
use toml::de::DeValue;

use crate::config::defaults;
use crate::config::error::Problems;
use crate::config::model::Metrics;
use crate::config::section::Section;
use crate::config::suggest::choose;
use crate::config::value::{self, Read};

pub(super) fn read(root: &Section<'_>, problems: &mut Problems<'_>) -> Metrics {
    let defaults = defaults::metrics();
    let Some(section) = root.open("metrics", problems) else { return defaults };
    section.expect_keys(&["listen", "admission_level"], problems);
    Metrics {
        listen: section.read_or("listen", defaults.listen, problems, value::listen).value,
        admission_level: section
            .read_or("admission_level", defaults.admission_level, problems, admission_level)
            .value,
    }
}

/// `normal` is none of them: `/admission` would never admit.
fn admission_level(value: &DeValue<'_>) -> Read<Level> {
    let levels = [Level::Moderate, Level::High, Level::Emergency].map(|level| (level.name(), level));
    choose("level", value::text(value, "high")?, &levels)
}
