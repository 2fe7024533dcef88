//! The result, as a table and as data.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::stall::Kind;
use super::{HOLD, TICK};
use crate::bench::table::{ms, table};

/// What PSI shows must have changed the quotas after so many ticks, at the median.
const PSI_TICKS_MAX: f64 = 2.0;

const fn is_psi(kind: Kind) -> bool {
    matches!(kind, Kind::Cpu | Kind::Memory)
}

/// Everything that was measured.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    quick: bool,
    tick_seconds: f64,
    /// How long a level is held at least after its signal is gone.
    hold_seconds: f64,
    pub(super) stalls: Vec<StallReport>,
}

/// One stall, repeated.
#[derive(Debug, Serialize)]
pub(super) struct StallReport {
    name: &'static str,
    #[serde(skip)]
    kind: Kind,
    /// From the order until PSI shows enough; nothing for signals other than PSI.
    threshold: Summary,
    reaction: Summary,
    /// What of the reaction came after the threshold was reached.
    beyond: Summary,
    recovery: Summary,
    /// Which demanded the level, the most frequent.
    signal: String,
    samples: Vec<Sample>,
}

/// One repetition.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Sample {
    /// From the order to stall until PSI of the control group has grown by what the threshold asks for; nothing for
    /// other signals, and where quotas changed before, since stalls of others counted too.
    pub(super) threshold_seconds: Option<f64>,
    /// From the order to stall until the daemon shows other quotas.
    pub(super) reaction_seconds: f64,
    /// From the order to stop until it shows normal ones.
    pub(super) recovery_seconds: f64,
    pub(super) signal: String,
    pub(super) level: String,
}

/// Of all repetitions; nothing where there are none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
struct Summary {
    median_seconds: Option<f64>,
    worst_seconds: Option<f64>,
}

impl Summary {
    fn new(values: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<_> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        // The upper one of two: no repetition is made to look better than it was.
        Self { median_seconds: values.get(values.len() / 2).copied(), worst_seconds: values.last().copied() }
    }
}

impl StallReport {
    pub(super) fn new(kind: Kind, samples: Vec<Sample>) -> Self {
        let mut signals: BTreeMap<&str, usize> = BTreeMap::new();
        for sample in &samples {
            *signals.entry(&sample.signal).or_default() += 1;
        }
        let most = signals.into_iter().max_by_key(|(_, count)| *count);
        Self {
            name: kind.name(),
            kind,
            threshold: Summary::new(samples.iter().filter_map(|sample| sample.threshold_seconds)),
            beyond: Summary::new(samples.iter().map(|sample| sample.beyond(kind))),
            reaction: Summary::new(samples.iter().map(|sample| sample.reaction_seconds)),
            recovery: Summary::new(samples.iter().map(|sample| sample.recovery_seconds)),
            signal: most.map_or_else(String::new, |(signal, _)| signal.to_owned()),
            samples,
        }
    }

    fn ticks(&self) -> Option<f64> {
        Some(self.beyond.median_seconds? / TICK.as_secs_f64())
    }

    fn row(&self) -> Vec<String> {
        vec![
            self.name.to_owned(),
            self.signal.clone(),
            ms(self.threshold.median_seconds),
            ms(self.reaction.median_seconds),
            ms(self.reaction.worst_seconds),
            self.ticks().map_or_else(|| "–".to_owned(), |ticks| format!("{ticks:.1}")),
            ms(self.recovery.median_seconds),
            ms(self.recovery.worst_seconds),
            self.samples.len().to_string(),
        ]
    }
}

impl Report {
    pub(super) fn new(quick: bool) -> Self {
        Self { quick, tick_seconds: TICK.as_secs_f64(), hold_seconds: HOLD.as_secs_f64(), stalls: Vec::new() }
    }

    /// An error where a full run missed what must be reached.
    pub(super) fn verdict(&self) -> anyhow::Result<()> {
        for stall in self.stalls.iter().filter(|stall| is_psi(stall.kind)) {
            let reached = stall.ticks().is_some_and(|ticks| ticks <= PSI_TICKS_MAX);
            anyhow::ensure!(
                self.quick || reached,
                "{}: the quotas follow PSI later than {PSI_TICKS_MAX} ticks at the median",
                stall.name
            );
        }
        Ok(())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head = [
            "stall",
            "signal",
            "PSI at threshold, median",
            "quotas changed, median",
            "worst",
            "ticks after that, median",
            "normal again, median",
            "worst",
            "repeated",
        ];
        let rows: Vec<_> = self.stalls.iter().map(StallReport::row).collect();
        f.write_str(&table(&head, &rows))?;
        writeln!(
            f,
            "Ticks of {:.0} ms. The way back includes {:.0} s of hold for each level, and for PSI the window.",
            self.tick_seconds * 1000.0,
            self.hold_seconds
        )?;
        for stall in self.stalls.iter().filter(|stall| is_psi(stall.kind)) {
            let early = stall.samples.iter().filter(|sample| sample.threshold_seconds.is_none()).count();
            if early > 0 {
                writeln!(
                    f,
                    "{}: {early} times quotas changed before its own PSI had grown enough: stalls of others counted \
                     too.",
                    stall.name
                )?;
            }
        }
        if self.quick {
            writeln!(f, "Few repetitions: nothing to quote.")?;
        }
        Ok(())
    }
}

impl Sample {
    fn beyond(&self, kind: Kind) -> f64 {
        let reached =
            self.threshold_seconds.unwrap_or(if is_psi(kind) { self.reaction_seconds } else { 0.0 });
        self.reaction_seconds - reached
    }
}

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (reaction, recovery) = (ms(Some(self.reaction_seconds)), ms(Some(self.recovery_seconds)));
        write!(f, "{} by {} after {reaction}, normal again after {recovery}", self.level, self.signal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(threshold_seconds: Option<f64>, reaction_seconds: f64) -> Sample {
        Sample {
            threshold_seconds,
            reaction_seconds,
            recovery_seconds: 1.2,
            signal: "psi_memory_full".to_owned(),
            level: "moderate".to_owned(),
        }
    }

    fn report(kind: Kind, reactions: &[f64]) -> Report {
        let threshold = is_psi(kind).then_some(0.05);
        let samples = reactions.iter().map(|reaction| sample(threshold, *reaction)).collect();
        Report { stalls: vec![StallReport::new(kind, samples)], ..Report::new(false) }
    }

    #[test]
    fn the_median_is_what_happened() {
        assert_eq!(
            Summary::new([0.3, 0.1, 0.2, 0.9]),
            Summary { median_seconds: Some(0.3), worst_seconds: Some(0.9) }
        );
        assert_eq!(Summary::new([]), Summary::default());
    }

    #[test]
    fn ticks_count_from_when_psi_shows_it() {
        assert!(report(Kind::Memory, &[0.1, 0.249, 3.0]).verdict().is_ok());
        assert!(report(Kind::Memory, &[0.1, 0.3, 0.3]).verdict().is_err());
        assert!(report(Kind::Memory, &[]).verdict().is_err());
        assert!(report(Kind::Accept, &[3.0]).verdict().is_ok(), "only PSI has a requirement");
    }

    #[test]
    fn a_change_before_the_threshold_is_said() {
        let samples = vec![sample(None, 0.4), sample(Some(0.1), 0.15)];
        let stall = StallReport::new(Kind::Memory, samples);
        assert!((stall.beyond.worst_seconds.unwrap() - 0.05).abs() < 1e-9);
        let report = Report { stalls: vec![stall], ..Report::new(false) };
        assert!(report.to_string().contains("1 times quotas changed before"), "{report}");
    }

    #[test]
    fn the_table_says_what_is_included() {
        let text = report(Kind::Memory, &[0.15]).to_string();
        for part in ["psi_memory_full", "150 ms", "1200 ms", "includes 1 s of hold"] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
    }
}
