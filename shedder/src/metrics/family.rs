//! Metric families as this crate writes them: a name, a help text, and samples with labels.

use std::fmt;

use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;

/// Labels of one sample, in the order in which they are written.
pub(super) type Labels<'a, const N: usize> = [(&'a str, &'a str); N];

/// Writes one family after the other.
pub(super) struct Families<'a>(DescriptorEncoder<'a>);

impl<'a> Families<'a> {
    pub(super) fn new(encoder: DescriptorEncoder<'a>) -> Self {
        Self(encoder)
    }

    /// A counter; `_total` is appended to its name.
    pub(super) fn counter(
        &mut self,
        name: &str,
        help: &str,
        samples: impl FnOnce(&mut Counter<'_>) -> fmt::Result,
    ) -> fmt::Result {
        samples(&mut Counter(self.0.encode_descriptor(name, help, None, MetricType::Counter)?))
    }

    /// A gauge.
    pub(super) fn gauge(
        &mut self,
        name: &str,
        help: &str,
        samples: impl FnOnce(&mut Gauge<'_>) -> fmt::Result,
    ) -> fmt::Result {
        samples(&mut Gauge(self.0.encode_descriptor(name, help, None, MetricType::Gauge)?))
    }

    /// A histogram.
    pub(super) fn histogram(
        &mut self,
        name: &str,
        help: &str,
        samples: impl FnOnce(&mut Histogram<'_>) -> fmt::Result,
    ) -> fmt::Result {
        samples(&mut Histogram(self.0.encode_descriptor(name, help, None, MetricType::Histogram)?))
    }

    /// An info; `_info` is appended to its name.
    pub(super) fn info(
        &mut self,
        name: &str,
        help: &str,
        samples: impl FnOnce(&mut Info<'_>) -> fmt::Result,
    ) -> fmt::Result {
        samples(&mut Info(self.0.encode_descriptor(name, help, None, MetricType::Info)?))
    }
}

/// Samples of a counter.
pub(super) struct Counter<'a>(MetricEncoder<'a>);

impl Counter<'_> {
    pub(super) fn add<const N: usize>(&mut self, labels: &Labels<'_, N>, total: u64) -> fmt::Result {
        self.0.encode_family(labels)?.encode_counter::<NoLabelSet, u64, f64>(&total, None)
    }
}

/// Samples of a gauge.
pub(super) struct Gauge<'a>(MetricEncoder<'a>);

impl Gauge<'_> {
    pub(super) fn add<const N: usize>(&mut self, labels: &Labels<'_, N>, value: f64) -> fmt::Result {
        self.0.encode_family(labels)?.encode_gauge(&value)
    }

    pub(super) fn add_count<const N: usize>(&mut self, labels: &Labels<'_, N>, count: u64) -> fmt::Result {
        self.0.encode_family(labels)?.encode_gauge(&count)
    }
}

/// Samples of a histogram.
pub(super) struct Histogram<'a>(MetricEncoder<'a>);

impl Histogram<'_> {
    /// `counts` has one entry for each of `bounds` and one more for the rest, not cumulative; a missing entry is 0.
    pub(super) fn add<const N: usize>(
        &mut self,
        labels: &Labels<'_, N>,
        bounds: &[f64],
        counts: &[u64],
        sum: f64,
    ) -> fmt::Result {
        let mut counts = counts.iter().copied();
        let mut buckets: Vec<(f64, u64)> =
            bounds.iter().map(|bound| (*bound, counts.next().unwrap_or_default())).collect();
        buckets.push((f64::INFINITY, counts.sum()));
        let total = buckets.iter().map(|(_, count)| count).sum();
        self.0.encode_family(labels)?.encode_histogram::<NoLabelSet>(sum, total, &buckets, None)
    }
}

/// Samples of an info.
pub(super) struct Info<'a>(MetricEncoder<'a>);

impl Info<'_> {
    pub(super) fn add<const N: usize>(&mut self, labels: &Labels<'_, N>) -> fmt::Result {
        self.0.encode_info(labels)
    }
}
