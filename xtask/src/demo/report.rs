//! What the demo shows in the end, as a table and as data.

use std::fmt;

use serde::Serialize;
use xtask::testbed::{Outcome, ServerCounts};

/// Below this part of its capacity the server counts as collapsed.
const COLLAPSED_RATIO: f64 = 0.5;
/// At this part of its capacity the server counts as protected.
const PROTECTED_RATIO: f64 = 0.95;

/// One measurement. `offered` is the sum of `useful`, `refused`, `gave_up` and `failed`.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    name: &'static str,
    duration_seconds: f64,
    offered: u64,
    offered_per_second: f64,
    useful: u64,
    useful_per_second: f64,
    useful_p50_seconds: Option<f64>,
    useful_p99_seconds: Option<f64>,
    refused: u64,
    gave_up: u64,
    /// Answers that the server worked for although the client had given up.
    answered_too_late: u64,
    failed: u64,
    /// Why, the most frequent only.
    failed_mostly: Option<String>,
    /// How far the client was ever behind its own schedule.
    client_lag_max_seconds: f64,
}

impl Row {
    pub(crate) fn new(name: &'static str, outcome: &Outcome, server: ServerCounts) -> Self {
        let seconds = |percent| outcome.latency(percent).map(|latency| latency.as_secs_f64());
        let most = outcome.failed.iter().max_by_key(|(_, count)| **count);
        Self {
            name,
            duration_seconds: outcome.duration.as_secs_f64(),
            offered: outcome.offered,
            offered_per_second: outcome.offered_per_second(),
            useful: outcome.useful(),
            useful_per_second: outcome.useful_per_second(),
            useful_p50_seconds: seconds(50),
            useful_p99_seconds: seconds(99),
            refused: outcome.refused,
            gave_up: outcome.gave_up,
            answered_too_late: server.answered.saturating_sub(outcome.useful()),
            failed: outcome.failed.values().sum(),
            failed_mostly: most.map(|(why, _)| why.clone()),
            client_lag_max_seconds: outcome.lag_max.as_secs_f64(),
        }
    }

    fn cells(&self) -> [String; COLUMNS.len()] {
        let ms = |seconds: Option<f64>| {
            seconds.map_or_else(|| "–".to_owned(), |seconds| format!("{:.0} ms", seconds * 1000.0))
        };
        [
            self.name.to_owned(),
            format!("{:.0}/s", self.offered_per_second),
            format!("{:.0}/s", self.useful_per_second),
            ms(self.useful_p50_seconds),
            ms(self.useful_p99_seconds),
            self.refused.to_string(),
            self.gave_up.to_string(),
            self.answered_too_late.to_string(),
        ]
    }
}

const COLUMNS: [&str; 8] =
    ["the server", "offered", "useful answers", "p50", "p99", "refused", "gave up", "answered too late"];

/// All three measurements.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    capacity: Row,
    without_shedder: Row,
    with_shedder: Row,
    /// Useful answers per second over the capacity.
    useful_ratio_without_shedder: f64,
    useful_ratio_with_shedder: f64,
}

impl Report {
    pub(crate) fn new(capacity: Row, without_shedder: Row, with_shedder: Row) -> Self {
        let ratio = |row: &Row| row.useful_per_second / capacity.useful_per_second.max(1.0);
        Self {
            useful_ratio_without_shedder: ratio(&without_shedder),
            useful_ratio_with_shedder: ratio(&with_shedder),
            capacity,
            without_shedder,
            with_shedder,
        }
    }

    /// An error where this run did not show what the demo is there to show.
    pub(crate) fn verdict(&self) -> anyhow::Result<()> {
        anyhow::ensure!(
            self.useful_ratio_without_shedder < COLLAPSED_RATIO,
            "the server did not collapse without shedder, so this run shows nothing"
        );
        anyhow::ensure!(
            self.useful_ratio_with_shedder >= PROTECTED_RATIO,
            "with shedder the server stayed below {:.0} % of its capacity",
            PROTECTED_RATIO * 100.0
        );
        Ok(())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = [&self.capacity, &self.without_shedder, &self.with_shedder];
        f.write_str(&table(&rows.map(Row::cells)))?;
        for row in rows.iter().filter(|row| row.failed > 0) {
            let why = row.failed_mostly.as_deref().unwrap_or("unknown");
            writeln!(f, "{}: {} connections failed otherwise, mostly: {why}", row.name, row.failed)?;
        }
        let lag_max_seconds = rows.map(|row| row.client_lag_max_seconds).into_iter().fold(0.0, f64::max);
        writeln!(
            f,
            "\nOf what the server can do, its clients got {:.0} % without shedder and {:.0} % with it \
             (the client was never more than {:.0} ms late).",
            self.useful_ratio_without_shedder * 100.0,
            self.useful_ratio_with_shedder * 100.0,
            lag_max_seconds * 1000.0,
        )
    }
}

/// Columns as wide as they must be: the first to the left, numbers to the right.
fn table(rows: &[[String; COLUMNS.len()]]) -> String {
    let head = COLUMNS.map(str::to_owned);
    let lines: Vec<_> = std::iter::once(&head).chain(rows).collect();
    let width = |column: usize| {
        lines.iter().filter_map(|cells| cells.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let mut text = String::new();
    for cells in &lines {
        for (column, cell) in cells.iter().enumerate() {
            let width = width(column);
            text += &if column == 0 { format!("{cell:width$}") } else { format!("  {cell:>width$}") };
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &'static str, useful: u64) -> Row {
        let mut outcome = Outcome::default();
        outcome.duration = std::time::Duration::from_secs(1);
        outcome.offered = 4000;
        let counts = ServerCounts { answered: 1600, aborted: 0 };
        Row { useful, useful_per_second: useful as f64, ..Row::new(name, &outcome, counts) }
    }

    fn report(without: u64, with: u64) -> Report {
        Report::new(row("at capacity", 1600), row("without shedder", without), row("with shedder", with))
    }

    #[test]
    fn ratios_are_those_of_the_capacity() {
        let report = report(400, 1560);
        assert_eq!(report.useful_ratio_without_shedder, 0.25);
        assert_eq!(report.useful_ratio_with_shedder, 0.975);
        assert!(report.to_string().contains("25 % without shedder and 98 % with it"), "{report}");
    }

    #[test]
    fn the_verdict_needs_a_collapse_and_a_rescue() {
        assert!(report(400, 1560).verdict().is_ok());
        assert!(report(900, 1560).verdict().unwrap_err().to_string().contains("did not collapse"));
        assert!(report(400, 1500).verdict().unwrap_err().to_string().contains("below 95 %"));
    }

    #[test]
    fn a_server_that_answers_nobody_makes_no_nonsense() {
        let report = Report::new(row("at capacity", 0), row("without shedder", 0), row("with shedder", 0));
        assert_eq!(report.useful_ratio_with_shedder, 0.0);
    }

    #[test]
    fn the_table_is_aligned() {
        let text = table(&[row("a", 1).cells(), row("a longer name", 1000).cells()]);
        let widths: Vec<_> = text.lines().map(|line| line.chars().count()).collect();
        assert_eq!(widths.len(), 3);
        assert!(widths.iter().all(|width| Some(width) == widths.first()), "{text}");
        assert!(text.contains("  –  "), "{text}");
    }

    #[test]
    fn data_has_names_with_units() {
        let json = serde_json::to_value(report(400, 1560)).unwrap();
        assert_eq!(json["with_shedder"]["useful_per_second"], 1560.0);
        assert_eq!(json["with_shedder"]["answered_too_late"], 1600);
        assert!(json["capacity"]["useful_p99_seconds"].is_null());
    }
}
