//! `[metrics]`

use crate::config::defaults;
use crate::config::error::Problems;
use crate::config::model::Metrics;
use crate::config::section::Section;
use crate::config::value;

pub(super) fn read(root: &Section<'_>, problems: &mut Problems<'_>) -> Metrics {
    let defaults = defaults::metrics();
    let Some(section) = root.open("metrics", problems) else { return defaults };
    section.expect_keys(&["listen"], problems);
    Metrics { listen: section.read_or("listen", defaults.listen, problems, value::listen).value }
}
