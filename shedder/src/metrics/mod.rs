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
    let mut text = String::new();
    text::encode(&mut text, &registry)?;
    // The library writes infinity as `inf`, which OpenMetrics reads; `+Inf` is its canonical form. A label value
    // holds no line feed, so only a number can match.
    Ok(text.replace(" inf\n", " +Inf\n"))
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
