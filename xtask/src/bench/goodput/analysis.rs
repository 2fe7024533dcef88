//! What the attempts of a run amount to.

use std::ops::Range;
use std::time::Duration;

use serde::Serialize;
use xtask::testbed::{Fate, Outcome, Record, StatelessOutcome};

use super::net::{CLASSES, PATTERN, class_of};
use super::plan::{Planned, schedule};

pub(super) const WINDOW: Duration = Duration::from_millis(100);
/// A plateau is reached where a window and the mean of this many from it on have this part of it.
const CONVERGED_RATIO: f64 = 0.9;
const CONVERGED_WINDOWS: usize = 5;
/// Recovered is what stays so for this many windows.
const RECOVERED_WINDOWS: usize = 10;
/// Latency is back where the median of a window is below twice the p99 before the overload, but not below this.
const RECOVERED_LATENCY_MIN: Duration = Duration::from_millis(5);

/// What a run gave.
#[derive(Debug, Default)]
pub(super) struct Measured {
    pub(super) with_sockets: Outcome,
    pub(super) stateless: StatelessOutcome,
    pub(super) observed: Vec<Observed>,
}

/// What was seen of the machine and the daemon during a step.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Observed {
    /// How busy the CPU of the load was, 0..=1.
    pub(super) load_cpu_busy_ratio: Option<f64>,
    /// How busy the CPU of the server was, 0..=1.
    pub(super) server_cpu_busy_ratio: Option<f64>,
    /// The level of the port at the end of the step and the signals that demand one, where shedder runs.
    pub(super) level: Option<String>,
}

/// Attempts and what became of them: `offered` is the sum of the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Counts {
    pub(super) offered: u64,
    pub(super) useful: u64,
    pub(super) refused: u64,
    /// No complete answer in time: too late, or never.
    pub(super) too_late: u64,
    pub(super) failed: u64,
}

/// One step of a run.
#[derive(Clone, Debug, Serialize)]
pub(super) struct StepResult {
    /// What was offered, of the capacity.
    pub(super) factor: f64,
    pub(super) duration_seconds: f64,
    pub(super) planned_per_second: f64,
    pub(super) offered_per_second: f64,
    pub(super) offered_with_sockets_per_second: f64,
    pub(super) useful_per_second: f64,
    pub(super) useful_of_capacity_ratio: f64,
    pub(super) useful_p50_seconds: Option<f64>,
    pub(super) useful_p99_seconds: Option<f64>,
    #[serde(flatten)]
    pub(super) counts: Counts,
    /// From the start of the step until useful answers come at 90 % of the rate that they keep.
    pub(super) converged_after_seconds: Option<f64>,
    pub(super) classes: Vec<ClassResult>,
    /// How far the load was behind its schedule at most. Latencies count from the schedule all the same.
    pub(super) client_lag_max_seconds: f64,
    #[serde(flatten)]
    pub(super) observed: Observed,
}

/// One class in one step.
#[derive(Clone, Debug, Serialize)]
pub(super) struct ClassResult {
    pub(super) class: &'static str,
    pub(super) useful_p99_seconds: Option<f64>,
    #[serde(flatten)]
    pub(super) counts: Counts,
}

/// Answers per second of a server that always has something to do, without the time in which its queue fills.
pub(super) fn capacity(records: &[Record], duration: Duration) -> f64 {
    let start = duration / 5;
    let useful = records.iter().filter(|record| record.fate == Fate::Useful);
    let answers = useful.filter(|record| (start..duration).contains(&record.ended)).count();
    answers as f64 / (duration - start).as_secs_f64().max(f64::MIN_POSITIVE)
}

/// The steps of a run.
pub(super) fn steps(measured: &Measured, plan: &[Planned], capacity_per_second: f64) -> Vec<StepResult> {
    let step =
        |(index, planned): (usize, &Planned)| step(measured, plan, index, planned, capacity_per_second);
    plan.iter().enumerate().map(step).collect()
}

fn step(
    measured: &Measured,
    plan: &[Planned],
    index: usize,
    planned: &Planned,
    capacity_per_second: f64,
) -> StepResult {
    let within = |record: &&Record| planned.contains(record.intended);
    let with_sockets: Vec<_> = measured.with_sockets.records.iter().filter(within).collect();
    let stateless: Vec<_> = measured.stateless.records.iter().filter(within).collect();
    let by_class: Vec<_> = (0..CLASSES.len())
        .map(|class| {
            let offered = stateless_offered(&measured.stateless, plan, index, class);
            let refused = refused_between(&measured.stateless, index, class);
            class_result(class, &with_sockets, &stateless, offered, refused)
        })
        .collect();
    let mut counts = Counts::default();
    for (class, _) in &by_class {
        counts.offered += class.counts.offered;
        counts.useful += class.counts.useful;
        counts.refused += class.counts.refused;
        counts.too_late += class.counts.too_late;
        counts.failed += class.counts.failed;
    }
    let mut latencies: Vec<_> =
        by_class.iter().flat_map(|(_, latencies)| latencies.iter().copied()).collect();
    latencies.sort_unstable();
    let seconds = planned.duration.as_secs_f64();
    let useful_per_second = counts.useful as f64 / seconds;
    let started_late = with_sockets.iter().map(|record| record.started.saturating_sub(record.intended));
    let sent_late =
        measured.stateless.lags.iter().filter(|(at, _)| planned.contains(*at)).map(|(_, lag)| *lag);
    StepResult {
        factor: planned.factor,
        duration_seconds: seconds,
        planned_per_second: f64::from(planned.with_sockets_per_second)
            + f64::from(planned.stateless_per_second),
        offered_per_second: counts.offered as f64 / seconds,
        offered_with_sockets_per_second: with_sockets.len() as f64 / seconds,
        useful_per_second,
        useful_of_capacity_ratio: useful_per_second / capacity_per_second.max(1.0),
        useful_p50_seconds: percentile(&latencies, 50),
        useful_p99_seconds: percentile(&latencies, 99),
        counts,
        converged_after_seconds: converged(&useful_by_window(measured, planned)),
        classes: by_class.into_iter().map(|(class, _)| class).collect(),
        client_lag_max_seconds: started_late.chain(sent_late).max().unwrap_or_default().as_secs_f64(),
        observed: measured.observed.get(index).cloned().unwrap_or_default(),
    }
}

fn class_result(
    class: usize,
    with_sockets: &[&Record],
    stateless: &[&Record],
    stateless_offered: u64,
    stateless_refused: u64,
) -> (ClassResult, Vec<Duration>) {
    let of_class = |record: &&&Record| class_of(record.source) == class;
    let count = |records: &[&Record], fate| {
        records.iter().filter(of_class).filter(|record| record.fate == fate).count() as u64
    };
    let useful_stateless = count(stateless, Fate::Useful);
    // What was never answered leaves no record. A refusal that arrives after the boundary counts in the next step.
    let refused_stateless =
        stateless_refused.min(stateless_offered - useful_stateless.min(stateless_offered));
    let counts = Counts {
        offered: with_sockets.iter().filter(of_class).count() as u64 + stateless_offered,
        useful: count(with_sockets, Fate::Useful) + useful_stateless,
        refused: count(with_sockets, Fate::Refused) + refused_stateless,
        too_late: count(with_sockets, Fate::GaveUp)
            + stateless_offered.saturating_sub(useful_stateless + refused_stateless),
        failed: count(with_sockets, Fate::Failed),
    };
    let records = with_sockets.iter().chain(stateless).filter(of_class);
    let mut latencies: Vec<_> =
        records.filter(|record| record.fate == Fate::Useful).map(|record| record.latency()).collect();
    latencies.sort_unstable();
    let name = CLASSES.get(class).copied().unwrap_or_default();
    (ClassResult { class: name, useful_p99_seconds: percentile(&latencies, 99), counts }, latencies)
}

/// How many attempts of a class the client without sockets made in a step.
fn stateless_offered(outcome: &StatelessOutcome, plan: &[Planned], index: usize, class: usize) -> u64 {
    let total = |steps: &[Planned]| schedule(steps, |planned| planned.stateless_per_second).total();
    let before = total(plan.get(..index).unwrap_or_default());
    let after = total(plan.get(..=index).unwrap_or_default());
    let left_out = outcome.left_out.iter().map(|range| range.start.max(before)..range.end.min(after));
    let left_out: u64 = left_out.map(|range| of_class(&range, class)).sum();
    of_class(&(before..after), class).saturating_sub(left_out)
}

/// How many attempts of a range are of a class: the pattern repeats, whatever the number of sources.
fn of_class(attempts: &Range<u64>, class: usize) -> u64 {
    let places = (0_u64..)
        .take(PATTERN.len())
        .filter(|place| usize::try_from(*place).is_ok_and(|place| class_of(place) == class));
    let length = PATTERN.len() as u64;
    let until = |end: u64, place: u64| (end + length - 1 - place) / length;
    places.map(|place| until(attempts.end, place).saturating_sub(until(attempts.start, place))).sum()
}

fn refused_between(outcome: &StatelessOutcome, index: usize, class: usize) -> u64 {
    let until = |index: usize| {
        outcome.refused.get(index).and_then(|(_, by_group)| by_group.get(class)).copied().unwrap_or(0)
    };
    until(index).saturating_sub(index.checked_sub(1).map_or(0, until))
}

/// The nearest rank; in seconds.
fn percentile(sorted: &[Duration], percent: usize) -> Option<f64> {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).map(Duration::as_secs_f64)
}

/// Useful answers by the window in which they came.
fn useful_by_window(measured: &Measured, planned: &Planned) -> Vec<u64> {
    let mut windows = vec![0; window_of(planned.duration)];
    let records = measured.with_sockets.records.iter().chain(&measured.stateless.records);
    for record in records.filter(|record| record.fate == Fate::Useful) {
        let window = record.ended.checked_sub(planned.start).map(window_of);
        if let Some(count) = window.and_then(|window| windows.get_mut(window)) {
            *count += 1;
        }
    }
    windows
}

fn window_of(time: Duration) -> usize {
    usize::try_from(time.as_nanos() / WINDOW.as_nanos()).unwrap_or(usize::MAX)
}

/// Seconds until the rate is reached that the second half of the step keeps; `None` where that is nothing.
fn converged(useful: &[u64]) -> Option<f64> {
    let half = useful.get(useful.len() / 2..)?;
    let plateau = mean(half);
    if plateau < 1.0 {
        return None;
    }
    let enough = |value: f64| value >= CONVERGED_RATIO * plateau;
    let window = (0..useful.len()).find(|&window| {
        let rest = useful.get(window..).unwrap_or_default();
        rest.first().is_some_and(|first| enough(*first as f64))
            && enough(mean(rest.get(..CONVERGED_WINDOWS).unwrap_or(rest)))
    })?;
    Some(window as f64 * WINDOW.as_secs_f64())
}

fn mean(values: &[u64]) -> f64 {
    values.iter().sum::<u64>() as f64 / values.len().max(1) as f64
}

/// Seconds from the start of the last step until every attempt is answered, as fast as before the overload, for a
/// second; `None` where the step ends before.
pub(super) fn recovered(measured: &Measured, plan: &[Planned], before: &StepResult) -> Option<f64> {
    let last = plan.last()?;
    let limit = before.useful_p99_seconds.map(|p99| Duration::from_secs_f64(2.0 * p99))?;
    let limit = limit.max(RECOVERED_LATENCY_MIN);
    let mut windows: Vec<Vec<&Record>> = vec![Vec::new(); window_of(last.duration)];
    for record in &measured.with_sockets.records {
        let window = record.intended.checked_sub(last.start).map(window_of);
        if let Some(records) = window.and_then(|window| windows.get_mut(window)) {
            records.push(record);
        }
    }
    let good: Vec<bool> = windows.iter().map(|records| is_good(records, limit)).collect();
    let stays = RECOVERED_WINDOWS.min(good.len() / 2);
    let window = good.windows(stays.max(1)).position(|windows| windows.iter().all(|good| *good))?;
    Some(window as f64 * WINDOW.as_secs_f64())
}

fn is_good(records: &[&Record], limit: Duration) -> bool {
    let mut latencies: Vec<_> = records.iter().map(|record| record.latency()).collect();
    latencies.sort_unstable();
    records.iter().all(|record| record.fate == Fate::Useful)
        && percentile(&latencies, 50).is_some_and(|median| median <= limit.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use xtask::testbed::stateless_source;

    use super::super::plan::plan;
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn record(source: usize, intended: u64, latency: u64, fate: Fate) -> Record {
        let intended = ms(intended);
        Record { source, intended, started: intended + ms(1), ended: intended + ms(latency), fate }
    }

    fn measured(records: Vec<Record>, stateless: StatelessOutcome) -> Measured {
        let mut with_sockets = Outcome::default();
        with_sockets.records = records;
        Measured { with_sockets, stateless, observed: Vec::new() }
    }

    #[test]
    fn the_capacity_is_that_of_the_time_with_a_full_queue() {
        let records: Vec<_> = (0..100).map(|at| record(0, at * 10, 250, Fate::Useful)).collect();
        // 100 a second from 250 ms on; what is answered after the end does not count.
        assert_eq!(capacity(&records, ms(1000)), 75.0 / 0.8);
        assert_eq!(capacity(&records, Duration::ZERO), 0.0);
    }

    #[test]
    fn a_plateau_is_reached_where_it_lasts() {
        let rates = [0, 10, 100, 10, 80, 95, 100, 100, 99, 101, 100, 100, 100, 100, 98, 100];
        // The third window is one lucky moment.
        assert_eq!(converged(&rates), Some(0.5));
        assert_eq!(converged(&[100; 10]), Some(0.0));
        assert_eq!(converged(&[0; 10]), None);
        assert_eq!(converged(&[]), None);
    }

    #[test]
    fn attempts_count_in_the_step_for_which_they_were_intended() {
        let plan = plan(1600.0, ms(1000));
        let records = vec![
            record(0, 10, 5, Fate::Useful),
            record(1, 999, 100, Fate::Useful),
            record(2, 1000, 1, Fate::Refused),
            record(2, 1001, 250, Fate::GaveUp),
        ];
        let steps = steps(&measured(records, StatelessOutcome::default()), &plan, 1600.0);
        assert_eq!(steps[0].counts, Counts { offered: 2, useful: 2, ..Counts::default() });
        assert_eq!(steps[1].counts, Counts { offered: 2, refused: 1, too_late: 1, ..Counts::default() });
        assert_eq!(steps[0].useful_p99_seconds, Some(0.1));
        assert_eq!(steps[0].classes[0].counts.useful, 1, "control");
        assert_eq!(steps[1].classes[2].counts.offered, 2, "batch");
        assert_eq!(steps[0].client_lag_max_seconds, 0.001);
    }

    #[test]
    fn what_the_client_without_sockets_did_adds_up() {
        let plan = plan(1600.0, ms(1000));
        // At ten times the capacity 12,000 attempts in the fifth step, one in eight of them control.
        let refused = (0..7).map(|step| (ms(1000 * (step + 1)), vec![0, 100 * step, 7])).collect();
        let records = vec![record(1, 4500, 30, Fate::Useful), record(1, 4501, 300, Fate::GaveUp)];
        let stateless = StatelessOutcome {
            records,
            refused,
            lags: vec![(ms(4100), ms(9))],
            // The second lies in the step after.
            left_out: vec![0..8, 12_000..13_000],
        };
        let steps = steps(&measured(Vec::new(), stateless), &plan, 1600.0);
        let [control, interactive, batch] = &steps[4].classes[..] else { panic!("three classes") };
        assert_eq!(control.counts.offered, 1499);
        assert_eq!(control.counts.too_late, 1499);
        assert_eq!(
            interactive.counts,
            Counts { offered: 4497, useful: 1, refused: 100, too_late: 4396, failed: 0 }
        );
        assert_eq!(batch.counts, Counts { offered: 5996, too_late: 5996, ..Counts::default() });
        assert_eq!(steps[4].client_lag_max_seconds, 0.009);
        assert_eq!(steps[4].offered_per_second, 11_992.0);
        assert_eq!(steps[5].offered_per_second, 155_000.0);
    }

    #[test]
    fn recovery_wants_a_good_second() {
        let plan = plan(1600.0, ms(2000));
        let start = 12_000;
        let before = |p99| StepResult {
            useful_p99_seconds: p99,
            ..steps(&measured(Vec::new(), StatelessOutcome::default()), &plan, 1.0).remove(0)
        };
        let mut records: Vec<_> = (0..200).map(|at| record(0, start + at * 10, 1, Fate::Useful)).collect();
        records[0].fate = Fate::Refused;
        records[25] = record(0, start + 250, 250, Fate::GaveUp);
        let found = |records: &[Record], p99| {
            recovered(&measured(records.to_vec(), StatelessOutcome::default()), &plan, &before(p99))
        };
        assert!((found(&records, Some(0.001)).unwrap() - 0.3).abs() < 1e-9);
        assert_eq!(found(&records, None), None, "nothing to compare with");
        for record in &mut records {
            record.ended += ms(100);
        }
        assert_eq!(found(&records, Some(0.001)), None, "slow is not recovered");
    }

    #[test]
    fn groups_of_sources_are_classes() {
        for class in (0..8).map(class_of) {
            let group = u8::try_from(class).unwrap();
            assert_eq!(stateless_source(group, 1).octets()[2], group);
        }
    }
}
