//! The result, as tables and as data.

use std::fmt;

use serde::Serialize;

use super::analysis::{Counts, Measured, StepResult, recovered, steps};
use super::limits::Variant;
use super::plan::Planned;
use super::services::Scenario;
use crate::bench::table::{ms, table};

/// Useful answers at 2.5 times the capacity and more, of the capacity, with shedder.
const QUEUE_RATIO_MIN: f64 = 0.97;
const INSIDE_RATIO_MIN: f64 = 0.95;
/// Of useful answers where the accept queue is the bound.
const QUEUE_P99_SECONDS_MAX: f64 = 0.055;
/// For each level to step down from the default `hold`, and this beyond.
const RECOVERY_SECONDS_MAX: f64 = 2.0;
const HOLD_SECONDS: f64 = 10.0;
/// Of the highest class, while it offers less than this of the capacity.
const SPARED_RATIO_MIN: f64 = 0.95;
const FITS_RATIO_MAX: f64 = 0.8;
const OVERLOADED_FACTOR: f64 = 2.5;
/// A load that was later than this, or a CPU that was busier, says more of this machine than of the server.
const LAG_SECONDS_MAX: f64 = 0.025;
const BUSY_RATIO_MAX: f64 = 0.95;
const OFFERED_RATIO_MIN: f64 = 0.95;
const ABOVE_CAPACITY_RATIO: f64 = 1.03;

const HEAD: [&str; 11] = [
    "",
    "offered",
    "per second",
    "by sockets",
    "useful",
    "of capacity",
    "p50",
    "p99",
    "too late",
    "refused",
    "converged",
];

/// Everything that was measured.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    quick: bool,
    /// Load and server had to share one CPU.
    one_cpu: bool,
    pub(super) scenarios: Vec<ScenarioReport>,
}

/// One server.
#[derive(Debug, Serialize)]
pub(super) struct ScenarioReport {
    name: &'static str,
    pub(super) title: &'static str,
    #[serde(skip)]
    pub(super) scenario: Scenario,
    pub(super) capacity_per_second: f64,
    pub(super) runs: Vec<Run>,
}

/// One server behind one limit.
#[derive(Debug, Serialize)]
pub(super) struct Run {
    pub(super) variant: Variant,
    pub(super) steps: Vec<StepResult>,
    /// From the drop of the load until every attempt is answered as fast as before it rose, for a second.
    recovered_after_seconds: Option<f64>,
    /// Why attempts failed otherwise, the most frequent only.
    failed_mostly: Option<String>,
}

impl Run {
    pub(super) fn new(
        variant: Variant,
        measured: &Measured,
        plan: &[Planned],
        capacity_per_second: f64,
    ) -> Self {
        let steps = steps(measured, plan, capacity_per_second);
        let failed = measured.with_sockets.failed.iter().max_by_key(|(_, count)| **count);
        Self {
            variant,
            recovered_after_seconds: steps.first().and_then(|before| recovered(measured, plan, before)),
            failed_mostly: failed.map(|(why, _)| why.clone()),
            steps,
        }
    }

    fn row(&self, step: &StepResult) -> Vec<String> {
        vec![
            self.variant.name().to_owned(),
            format!("{}×", step.factor),
            format!("{:.0}", step.offered_per_second),
            format!("{:.0}", step.offered_with_sockets_per_second),
            format!("{:.0}/s", step.useful_per_second),
            percent(step.useful_of_capacity_ratio),
            ms(step.useful_p50_seconds),
            ms(step.useful_p99_seconds),
            step.counts.too_late.to_string(),
            step.counts.refused.to_string(),
            ms(step.converged_after_seconds),
        ]
    }

    /// How many levels lay above normal when the load dropped.
    fn levels_at_the_drop(&self) -> u8 {
        let before = self.steps.len().checked_sub(2).and_then(|index| self.steps.get(index));
        let level = before.and_then(|step| step.observed.level.as_deref()).unwrap_or_default();
        let names = ["moderate", "high", "emergency"];
        (1..).zip(names).find(|(_, name)| level.starts_with(name)).map_or(0, |(levels, _)| levels)
    }

    fn overloaded(&self) -> impl Iterator<Item = &StepResult> {
        self.steps.iter().filter(|step| step.factor >= OVERLOADED_FACTOR)
    }

    /// What must be known to judge the figures.
    fn remarks(&self) -> Vec<String> {
        let name = self.variant.name();
        let mut remarks = Vec::new();
        for step in &self.steps {
            let at = format!("{name} at {}×", step.factor);
            if step.offered_per_second < OFFERED_RATIO_MIN * step.planned_per_second {
                let (offered, planned) = (step.offered_per_second, step.planned_per_second);
                remarks.push(format!(
                    "{at}: the load made {offered:.0} attempts a second of {planned:.0} planned"
                ));
            }
            if step.useful_of_capacity_ratio > ABOVE_CAPACITY_RATIO {
                remarks.push(format!(
                    "{at}: above the capacity, which was measured while this machine was busy"
                ));
            }
            if step.client_lag_max_seconds > LAG_SECONDS_MAX {
                let lag = ms(Some(step.client_lag_max_seconds));
                remarks.push(format!("{at}: the load was up to {lag} late (latencies include that)"));
            }
            let busy = |ratio: Option<f64>| ratio.filter(|ratio| *ratio > BUSY_RATIO_MAX);
            if let Some(ratio) = busy(step.observed.load_cpu_busy_ratio) {
                remarks.push(format!("{at}: the CPU of the load was {} busy", percent(ratio)));
            }
            if let Some(ratio) = busy(step.observed.server_cpu_busy_ratio) {
                remarks.push(format!("{at}: the CPU of the server was {} busy", percent(ratio)));
            }
            if let Some(level) = step.observed.level.as_deref().filter(|level| !level.starts_with("normal")) {
                remarks.push(format!("{at}: it ended at level {level}"));
            }
            if step.counts.failed > 0 {
                let why = self.failed_mostly.as_deref().unwrap_or("unknown");
                remarks
                    .push(format!("{at}: {} attempts failed otherwise, mostly: {why}", step.counts.failed));
            }
        }
        remarks
    }
}

impl ScenarioReport {
    pub(super) fn new(scenario: Scenario, capacity_per_second: f64, runs: Vec<Run>) -> Self {
        Self { name: scenario.name(), title: scenario.title(), scenario, capacity_per_second, runs }
    }

    /// What shedder must reach here and whether it did.
    fn requirements(&self) -> Vec<(bool, String)> {
        let Some(run) = self.runs.iter().find(|run| run.variant == Variant::Shedder) else {
            return Vec::new();
        };
        let (ratio_min, p99_max) = match self.scenario {
            Scenario::Queue => (QUEUE_RATIO_MIN, Some(QUEUE_P99_SECONDS_MAX)),
            Scenario::EventLoop | Scenario::Nginx => (INSIDE_RATIO_MIN, None),
            Scenario::Classes => return self.order(run),
        };
        let mut found = Vec::new();
        for step in run.overloaded() {
            let ratio = step.useful_of_capacity_ratio;
            let at = format!("{} at {}×", self.name, step.factor);
            found.push((
                ratio >= ratio_min,
                format!("{at}: {:.1} % of capacity, at least {}", ratio * 100.0, percent(ratio_min)),
            ));
            if let Some(max) = p99_max {
                let p99 = step.useful_p99_seconds;
                found.push((
                    p99.is_some_and(|p99| p99 <= max),
                    format!("{at}: p99 {}, at most {}", ms(p99), ms(Some(max))),
                ));
            }
        }
        let recovery = run.recovered_after_seconds;
        let recovery_max = RECOVERY_SECONDS_MAX + HOLD_SECONDS * f64::from(run.levels_at_the_drop());
        found.push((
            recovery.is_some_and(|seconds| seconds <= recovery_max),
            format!("{}: recovered after {}, at most {}", self.name, ms(recovery), ms(Some(recovery_max))),
        ));
        found
    }

    /// Of the attempts of a higher class a greater part is useful, and of the highest nearly all while it alone is no
    /// overload.
    fn order(&self, run: &Run) -> Vec<(bool, String)> {
        let order = |step: &StepResult| {
            let ratios: Vec<f64> = step.classes.iter().map(|class| useful_ratio(&class.counts)).collect();
            let shown: Vec<_> = step
                .classes
                .iter()
                .zip(&ratios)
                .map(|(class, ratio)| format!("{} {}", class.class, percent(*ratio)))
                .collect();
            let text = format!("{} at {}×: useful of {}", self.name, step.factor, shown.join(", "));
            let highest = step.classes.first().zip(ratios.first());
            let fits = |counts: &Counts| {
                counts.offered as f64 / step.duration_seconds <= FITS_RATIO_MAX * self.capacity_per_second
            };
            let spared =
                highest.is_none_or(|(class, ratio)| !fits(&class.counts) || *ratio >= SPARED_RATIO_MIN);
            (spared && ratios.is_sorted_by(|higher, lower| higher >= lower), text)
        };
        run.overloaded().map(order).collect()
    }
}

fn useful_ratio(counts: &Counts) -> f64 {
    counts.useful as f64 / counts.offered.max(1) as f64
}

fn percent(ratio: f64) -> String {
    format!("{:.0} %", ratio * 100.0)
}

impl fmt::Display for ScenarioReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{}: capacity {:.0} requests a second, measured alone",
            self.title, self.capacity_per_second
        )?;
        let rows: Vec<_> =
            self.runs.iter().flat_map(|run| run.steps.iter().map(|step| run.row(step))).collect();
        f.write_str(&table(&HEAD, &rows))?;
        for run in &self.runs {
            let recovered = run.recovered_after_seconds.map_or_else(
                || "not while this watched".to_owned(),
                |seconds| format!("after {}", ms(Some(seconds))),
            );
            writeln!(f, "{}: recovered {recovered}", run.variant.name())?;
        }
        if self.scenario == Scenario::Classes {
            f.write_str(&self.class_table())?;
        }
        for remark in self.runs.iter().flat_map(Run::remarks) {
            writeln!(f, "note: {remark}")?;
        }
        Ok(())
    }
}

impl ScenarioReport {
    fn class_table(&self) -> String {
        let head = ["", "offered", "class", "of the load", "useful", "of its attempts", "p99", "refused"];
        let mut rows = Vec::new();
        for run in &self.runs {
            for step in &run.steps {
                for class in &step.classes {
                    let counts = &class.counts;
                    let of_load = counts.offered as f64 / step.counts.offered.max(1) as f64;
                    rows.push(vec![
                        run.variant.name().to_owned(),
                        format!("{}×", step.factor),
                        class.class.to_owned(),
                        percent(of_load),
                        format!("{:.0}/s", counts.useful as f64 / step.duration_seconds),
                        format!("{:.1} %", useful_ratio(counts) * 100.0),
                        ms(class.useful_p99_seconds),
                        counts.refused.to_string(),
                    ]);
                }
            }
        }
        table(&head, &rows)
    }
}

impl Report {
    pub(super) fn new(quick: bool, one_cpu: bool) -> Self {
        Self { quick, one_cpu, scenarios: Vec::new() }
    }

    /// What must be reached, and what the figures do not say.
    pub(super) fn requirements_text(&self) -> String {
        let mut text = String::new();
        for (reached, what) in self.scenarios.iter().flat_map(ScenarioReport::requirements) {
            text += &format!("{}  {what}\n", if reached { "reached" } else { "MISSED " });
        }
        text += "Attempts beyond those of sockets come from a client without: complete connections too, whose \
                 refusals are counted by the kernel.\n";
        if self.one_cpu {
            text += "Load and server shared one CPU.\n";
        }
        if self.quick {
            text += "These steps were short: nothing to quote.\n";
        }
        text
    }

    /// An error where a full run missed what must be reached.
    pub(super) fn verdict(&self) -> anyhow::Result<()> {
        let missed = self
            .scenarios
            .iter()
            .flat_map(ScenarioReport::requirements)
            .filter(|(reached, _)| !reached)
            .count();
        anyhow::ensure!(self.quick || missed == 0, "{missed} requirements are missed");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::analysis::{ClassResult, Observed};
    use super::*;

    fn step(factor: f64, ratio: f64, p99: f64) -> StepResult {
        let class = |class, useful| ClassResult {
            class,
            useful_p99_seconds: Some(p99),
            counts: Counts { offered: 100, useful, refused: 100 - useful, ..Counts::default() },
        };
        StepResult {
            factor,
            duration_seconds: 1.0,
            planned_per_second: 4000.0,
            offered_per_second: factor * 1600.0,
            offered_with_sockets_per_second: 800.0,
            useful_per_second: ratio * 1600.0,
            useful_of_capacity_ratio: ratio,
            useful_p50_seconds: Some(0.01),
            useful_p99_seconds: Some(p99),
            counts: Counts { offered: 4000, useful: 1600, refused: 2400, ..Counts::default() },
            converged_after_seconds: None,
            classes: vec![class("control", 100), class("interactive", 60), class("batch", 10)],
            client_lag_max_seconds: 0.1,
            observed: Observed {
                load_cpu_busy_ratio: Some(0.99),
                server_cpu_busy_ratio: Some(0.5),
                level: Some("moderate".to_owned()),
            },
        }
    }

    fn report(scenario: Scenario, ratio: f64, p99: f64) -> Report {
        let run = Run {
            variant: Variant::Shedder,
            steps: vec![step(0.5, 0.5, 0.002), step(2.5, ratio, p99), step(0.5, 0.5, 0.002)],
            recovered_after_seconds: Some(0.2),
            failed_mostly: None,
        };
        Report {
            scenarios: vec![ScenarioReport::new(scenario, 1600.0, vec![run])],
            ..Report::new(false, false)
        }
    }

    #[test]
    fn only_what_is_reached_passes() {
        assert!(report(Scenario::Queue, 0.98, 0.05).verdict().is_ok());
        assert!(report(Scenario::Queue, 0.96, 0.05).verdict().is_err());
        assert!(report(Scenario::Queue, 0.98, 0.06).verdict().is_err());
        assert!(report(Scenario::EventLoop, 0.96, 0.2).verdict().is_ok());
        assert!(report(Scenario::Classes, 0.1, 0.2).verdict().is_ok());
    }

    #[test]
    fn recovery_may_take_a_hold_for_each_level() {
        let mut report = report(Scenario::Queue, 0.98, 0.05);
        let run = &mut report.scenarios[0].runs[0];
        run.recovered_after_seconds = Some(11.0);
        assert_eq!(run.levels_at_the_drop(), 1);
        assert!(report.verdict().is_ok());
        report.scenarios[0].runs[0].steps[1].observed.level = Some("normal".to_owned());
        assert!(report.verdict().is_err());
    }

    #[test]
    fn a_lower_class_never_fares_better() {
        let mut report = report(Scenario::Classes, 1.0, 0.01);
        report.scenarios[0].runs[0].steps[1].classes.reverse();
        assert!(report.verdict().is_err());
        assert!(
            report.requirements_text().contains("MISSED   classes at 2.5×"),
            "{}",
            report.requirements_text()
        );
    }

    #[test]
    fn the_highest_class_is_spared_while_it_is_no_overload_by_itself() {
        let mut report = report(Scenario::Classes, 1.0, 0.01);
        report.scenarios[0].runs[0].steps[1].classes[0].counts.useful = 90;
        assert!(report.verdict().is_err());
        report.scenarios[0].runs[0].steps[1].classes[0].counts.offered = 1500;
        report.scenarios[0].runs[0].steps[1].classes[0].counts.useful = 1400;
        assert!(report.verdict().is_ok());
    }

    #[test]
    fn what_spoils_the_figures_is_said() {
        let text = report(Scenario::Queue, 0.98, 0.05).scenarios[0].to_string();
        for part in [
            "shedder at 2.5×: the load was up to 100 ms late",
            "the CPU of the load was 99 % busy",
            "it ended at level moderate",
            "recovered after 200 ms",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        assert!(!text.contains("CPU of the server"), "{text}");
    }

    #[test]
    fn data_has_names_with_units() {
        let json = serde_json::to_value(report(Scenario::Queue, 0.98, 0.05)).unwrap();
        let step = &json["scenarios"][0]["runs"][0]["steps"][1];
        assert_eq!(step["useful_p99_seconds"], 0.05);
        assert_eq!(step["refused"], 2400);
        assert_eq!(step["level"], "moderate");
        assert_eq!(step["classes"][2]["class"], "batch");
    }
}
