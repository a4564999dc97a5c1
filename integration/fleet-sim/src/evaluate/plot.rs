//! Results -> SVG plots.

use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;
use warmpath_core::config::Policy;

use super::{Figure, MAIN, Results};
use crate::arm::Arm;
use crate::scenario::{SWEEP_KV_TOKENS, Sweep};

/// Scenarios in the bar charts.
const BARS: [&str; 12] = [
    "13b-fitted-10",
    "13b-fitted-30",
    "13b-evicting-10",
    "13b-evicting-20",
    "8b-50-documents",
    "8b-churn",
    "8b-unique",
    "8b-chats",
    "8b-agents",
    "mooncake-conversation-8",
    "mooncake-synthetic-8",
    "70b-50-documents",
];

const SIZE: (u32, u32) = (1_000, 420);

/// Told apart in grey too, by the order of their lightness.
const COLORS: [RGBColor; 6] = [
    RGBColor(200, 200, 200),
    RGBColor(150, 150, 150),
    RGBColor(240, 170, 90),
    RGBColor(230, 120, 120),
    RGBColor(40, 110, 190),
    RGBColor(20, 40, 60),
];

/// Why a plot could not be drawn.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {what}")]
pub struct PlotError {
    path: String,
    what: String,
}

/// Draws all plots into a directory.
///
/// # Errors
/// When a file cannot be written.
pub fn all(results: &Results, directory: &Path) -> Result<(), PlotError> {
    let p99: Figure = |figures| figures.ttft.p99_ms;
    let cached: Figure = |figures| 100.0 * figures.cached_share;
    let drawn = |name: &str, draw: &dyn Fn(&Area<'_>) -> Drawn| {
        let path = directory.join(name);
        let area = SVGBackend::new(&path, SIZE).into_drawing_area();
        draw(&area).and_then(|()| Ok(area.present()?)).map_err(|error| PlotError {
            path: path.display().to_string(),
            what: error.to_string(),
        })
    };
    drawn("p99.svg", &|area| {
        bars(area, results, "P99 TTFT over that of least_request, %", &|name, arm| {
            let baseline = Arm::Policy(Policy::LeastRequest);
            100.0 * results.mean(name, arm, p99) / results.mean(name, baseline, p99)
        })
    })?;
    drawn("cached.svg", &|area| {
        bars(area, results, "cached share of prompt tokens, %", &|name, arm| {
            results.mean(name, arm, cached)
        })
    })?;
    drawn("memory.svg", &|area| {
        let arms =
            [Arm::Policy(Policy::LeastRequest), Arm::NoResidency, Arm::Policy(Policy::KvCost)];
        lines(
            area,
            results,
            "P99 TTFT in ms by KV memory of an engine in tokens (50 documents, 13B)",
            &arms,
            p99,
        )
    })?;
    drawn("downgrades.svg", &|area| {
        let share: Figure = |f| 100.0 * f.downgrades as f64 / f.requests as f64;
        let arms = [Arm::Policy(Policy::KvCost)];
        lines(area, results, "decisions that residency changed, %, by KV memory", &arms, share)
    })
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), Box<dyn std::error::Error>>;

/// Groups of bars, one group a scenario, one bar an arm; cut off at 250.
fn bars(
    area: &Area<'_>,
    results: &Results,
    title: &str,
    value: &dyn Fn(&str, Arm) -> f64,
) -> Drawn {
    area.fill(&WHITE)?;
    let shown: Vec<&str> =
        BARS.into_iter().filter(|name| !results.of(name, MAIN[0]).is_empty()).collect();
    let heights = shown.iter().flat_map(|name| MAIN.map(|arm| value(name, arm)));
    let top = heights.fold(100.0, f64::max).min(250.0);
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 18))
        .margin(10)
        .x_label_area_size(60)
        .y_label_area_size(50)
        .build_cartesian_2d(0.0..shown.len() as f64, 0.0..top)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(shown.len() * 2 + 1)
        .x_label_style(("sans-serif", 11).into_font().transform(FontTransform::None))
        .x_label_formatter(&|at| {
            // Labels stand under the middles of the groups.
            let middle = (at.fract() - 0.5).abs() < 1e-6;
            let name = shown.get(*at as usize).filter(|_| middle);
            name.map_or(String::new(), |name| name.replacen('-', " ", 1).replace("mooncake ", ""))
        })
        .draw()?;
    let width = 0.8 / MAIN.len() as f64;
    for (at, arm) in MAIN.into_iter().enumerate() {
        let color = COLORS[at];
        let series = shown.iter().enumerate().map(|(group, name)| {
            let left = group as f64 + 0.1 + width * at as f64;
            let corners = [(left, 0.0), (left + width * 0.9, value(name, arm).min(top))];
            Rectangle::new(corners, color.filled())
        });
        chart
            .draw_series(series)?
            .label(arm.name())
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 12, y + 5)], color.filled()));
    }
    legend(&mut chart)
}

fn lines(area: &Area<'_>, results: &Results, title: &str, arms: &[Arm], figure: Figure) -> Drawn {
    area.fill(&WHITE)?;
    let at = |kv_tokens: u32, arm| {
        (f64::from(kv_tokens), results.mean(&Sweep::Fixed.scenario(kv_tokens), arm, figure))
    };
    let heights = SWEEP_KV_TOKENS.iter().flat_map(|&kv| arms.iter().map(move |&arm| at(kv, arm).1));
    let top = heights.fold(1.0, f64::max) * 1.05;
    let span = f64::from(SWEEP_KV_TOKENS[0])..f64::from(SWEEP_KV_TOKENS[SWEEP_KV_TOKENS.len() - 1]);
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 18))
        .margin(10)
        .x_label_area_size(40)
        .y_label_area_size(60)
        .build_cartesian_2d(span.log_scale(), 0.0..top)?;
    chart.configure_mesh().draw()?;
    for &arm in arms {
        let color = MAIN.iter().position(|main| *main == arm).map_or(BLACK, |at| COLORS[at]);
        let points: Vec<(f64, f64)> = SWEEP_KV_TOKENS.into_iter().map(|kv| at(kv, arm)).collect();
        let series = LineSeries::new(points, color.stroke_width(3));
        chart
            .draw_series(series)?
            .label(arm.name())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 14, y)], color.stroke_width(3)));
    }
    legend(&mut chart)
}

fn legend<'a, 'b: 'a, X: Ranged, Y: Ranged>(
    chart: &mut ChartContext<'a, SVGBackend<'b>, Cartesian2d<X, Y>>,
) -> Drawn {
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.85))
        .border_style(RGBColor(200, 200, 200))
        .label_font(("sans-serif", 12))
        .draw()?;
    Ok(())
}
