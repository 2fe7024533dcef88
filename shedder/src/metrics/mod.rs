//! A [`Snapshot`] as OpenMetrics text.

mod daemon;
mod family;
mod ports;
mod pressure;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, text};
use prometheus_client::registry::Registry;

use crate::snapshot::Snapshot;
use family::Families;

/// Media type of what [`render`] returns.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Every series of a snapshot, `# EOF` included.
///
/// What is unavailable is `NaN`, so that its series is there from the first scrape and no comparison with it holds.
///
/// # Errors
/// None in practice: writing to a string does not fail.
pub fn render(snapshot: Arc<Snapshot>) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(SnapshotCollector(snapshot)));
    let mut text = CanonicalText(String::new());
    text::encode(&mut text, &registry)?;
    Ok(text.0)
}

/// Takes the library's text in pieces and writes infinity, which it spells `inf`, as OpenMetrics' canonical `+Inf`.
struct CanonicalText(String);

impl fmt::Write for CanonicalText {
    fn write_str(&mut self, piece: &str) -> fmt::Result {
        // A label value holds no line feed, so only a number can match.
        const LIBRARYS: &str = " inf\n";
        // The match may have begun in the piece before.
        let from = self.0.floor_char_boundary(self.0.len().saturating_sub(LIBRARYS.len()));
        self.0.push_str(piece);
        if self.0.get(from..).is_some_and(|end| end.contains(LIBRARYS)) {
            let end = self.0.split_off(from);
            self.0.push_str(&end.replace(LIBRARYS, " +Inf\n"));
        }
        Ok(())
    }
}

/// Lends the registry a snapshot, so that no number is stored twice.
#[derive(Debug)]
struct SnapshotCollector(Arc<Snapshot>);

impl Collector for SnapshotCollector {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut families = Families::new(encoder);
        ports::encode(&mut families, &self.0)?;
        pressure::encode(&mut families, &self.0)?;
        daemon::encode(&mut families, &self.0)
    }
}
