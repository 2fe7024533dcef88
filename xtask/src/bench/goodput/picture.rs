//! Useful answers over what is offered, one panel for each server, as SVG.

use std::fmt::Write;

use super::analysis::StepResult;
use super::limits::Variant;
use super::report::{Report, ScenarioReport};
use super::services::Scenario;

const PANEL_WIDTH: f64 = 300.0;
const PLOT_WIDTH: f64 = 230.0;
const PLOT_HEIGHT: f64 = 170.0;
const LEFT: f64 = 52.0;
const TOP: f64 = 62.0;
const HEIGHT: f64 = 290.0;
const MEASURE: &str = "useful answers, of the capacity";
/// Of the capacity, at the top of a panel.
const RATIO_MAX: f64 = 1.1;

/// The picture.
pub(super) fn svg(report: &Report) -> String {
    let width = PANEL_WIDTH * report.scenarios.len().max(1) as f64;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {HEIGHT}\" width=\"{width}\" \
         height=\"{HEIGHT}\" font-family=\"system-ui, sans-serif\" font-size=\"11\">\n\
         <title>Useful answers over the load offered, both in parts of the server's capacity</title>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
    );
    for (variant, place) in Variant::ALL.into_iter().zip([0.0, 90.0, 180.0]) {
        let x = LEFT + place;
        line(&mut svg, &[(x, 16.0), (x + 18.0, 16.0)], variant);
        text(&mut svg, (x + 23.0, 20.0), "start", "#222", variant.name());
    }
    text(&mut svg, (LEFT + 270.0, 20.0), "start", "#555", MEASURE);
    for (scenario, left) in report.scenarios.iter().zip((0_u8..).map(|place| f64::from(place) * PANEL_WIDTH))
    {
        panel(&mut svg, scenario, left);
    }
    svg + "</svg>\n"
}

fn panel(svg: &mut String, scenario: &ScenarioReport, left: f64) {
    let (x, bottom) = (left + LEFT, TOP + PLOT_HEIGHT);
    text(svg, (x, TOP - 18.0), "start", "#000", scenario.title);
    if let Some(class) = favoured(scenario) {
        let words = format!("useful answers to {class}, of its attempts");
        text(svg, (x, TOP - 5.0), "start", "#555", &words);
    }
    for quarter in 0..=4_u8 {
        let ratio = f64::from(quarter) / 4.0;
        let y = height(ratio);
        let stroke = if quarter == 4 { "#888" } else { "#ddd" };
        let points = format!("x1=\"{x}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"", x + PLOT_WIDTH);
        push(svg, format_args!("<line {points} stroke=\"{stroke}\"/>"));
        text(svg, (x - 6.0, y + 4.0), "end", "#555", &format!("{:.0} %", ratio * 100.0));
    }
    let Some(first) = scenario.runs.first() else { return };
    let rising = rising(&first.steps);
    for (place, step) in rising.iter().enumerate() {
        text(
            svg,
            (across(x, place, rising.len()), bottom + 16.0),
            "middle",
            "#555",
            &format!("{}×", step.factor),
        );
    }
    text(svg, (x + PLOT_WIDTH / 2.0, bottom + 34.0), "middle", "#222", "offered, of the capacity");
    // What is measured against first, what is measured last: it lies on top where both are alike.
    for variant in [Variant::Nothing, Variant::Nftables, Variant::Shedder] {
        for run in scenario.runs.iter().filter(|run| run.variant == variant) {
            let steps = self::rising(&run.steps);
            let points: Vec<_> = steps
                .iter()
                .enumerate()
                .map(|(place, step)| (across(x, place, steps.len()), height(ratio(scenario, step))))
                .collect();
            line(svg, &points, variant);
            for (x, y) in points {
                let (color, radius) = (color(variant), width(variant) * 1.5);
                push(
                    svg,
                    format_args!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius}\" fill=\"{color}\"/>"),
                );
            }
        }
    }
}

/// The class that sees all of every limit, where several share the port.
fn favoured(scenario: &ScenarioReport) -> Option<&'static str> {
    let step = scenario.runs.first()?.steps.first()?;
    Some(step.classes.first().filter(|_| scenario.scenario == Scenario::Classes)?.class)
}

/// What is drawn of a step.
fn ratio(scenario: &ScenarioReport, step: &StepResult) -> f64 {
    match step.classes.first() {
        Some(favoured) if scenario.scenario == Scenario::Classes => {
            favoured.counts.useful as f64 / favoured.counts.offered.max(1) as f64
        }
        _ => step.useful_of_capacity_ratio,
    }
}

/// The steps up to the highest load: the last one shows the recovery.
fn rising(steps: &[StepResult]) -> &[StepResult] {
    let end = steps.windows(2).position(|pair| matches!(pair, [this, next] if next.factor < this.factor));
    steps.get(..end.map_or(steps.len(), |end| end + 1)).unwrap_or(steps)
}

/// The steps lie evenly: they span more than two orders of magnitude.
fn across(left: f64, place: usize, count: usize) -> f64 {
    let step = PLOT_WIDTH / count.max(1) as f64;
    left + step * (place as f64 + 0.5)
}

fn height(ratio: f64) -> f64 {
    TOP + PLOT_HEIGHT * (1.0 - ratio.clamp(0.0, RATIO_MAX) / RATIO_MAX)
}

const fn color(variant: Variant) -> &'static str {
    match variant {
        Variant::Nothing => "#d1495b",
        Variant::Shedder => "#00798c",
        Variant::Nftables => "#edae49",
    }
}

/// Narrower the later it is drawn, so that none hides another.
const fn width(variant: Variant) -> f64 {
    match variant {
        Variant::Nothing | Variant::Shedder => 2.0,
        Variant::Nftables => 5.0,
    }
}

fn line(svg: &mut String, points: &[(f64, f64)], variant: Variant) {
    let (color, width) = (color(variant), width(variant));
    let points: Vec<_> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let points = points.join(" ");
    push(
        svg,
        format_args!(
            "<polyline points=\"{points}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"{width}\"/>"
        ),
    );
}

fn text(svg: &mut String, (x, y): (f64, f64), anchor: &str, fill: &str, words: &str) {
    push(
        svg,
        format_args!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" fill=\"{fill}\">{words}</text>"
        ),
    );
}

fn push(svg: &mut String, element: std::fmt::Arguments<'_>) {
    // Writing to a String cannot fail.
    writeln!(svg, "{element}").ok();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_capacity_lies_below_the_top() {
        assert!(height(1.0) > TOP && height(0.0) == TOP + PLOT_HEIGHT);
        assert_eq!(height(7.0), TOP);
        assert!(height(f64::NAN).is_nan());
    }

    #[test]
    fn an_empty_report_is_a_picture_too() {
        let svg = svg(&Report::new(false, false));
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
        assert_eq!(svg.matches("<polyline").count(), 3, "the legend");
    }
}
