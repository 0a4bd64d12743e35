//! What `weft bench fairgv` measured on the paced device, on the plots of Figures 8, 9 and 11.

use super::number;
use super::paper::{Mark, Side, Source, measure};
use super::real::RealRun;
use crate::outcome::{Outcome, Plot};

/// The benchmark.
const BENCHMARK: &str = "fairgv";

/// A mark for each bar or point of a plot of this experiment whose like was measured. What is void
/// has none.
pub(super) fn marks(experiment: &str, plot: &Plot, runs: &[RealRun]) -> Vec<Mark> {
    let mark = |place: Place| {
        let Place { series, x, figure } = place;
        let y = measured(runs, &figure)?;
        Some(Mark { series, x, y, side: Side::On, source: Source::Paced, text: number(y) })
    };
    places(experiment, plot).into_iter().filter_map(mark).collect()
}

/// What the plots of this experiment have no marks of because it is void, and why.
pub(super) fn gaps(outcome: &Outcome, runs: &[RealRun]) -> Vec<String> {
    let places = outcome.plots.iter().flat_map(|plot| places(&outcome.name, plot));
    let gap = |place: Place| {
        let mut runs = runs.iter().filter(|run| run.name == BENCHMARK);
        let why = runs.find_map(|run| run.why_void(&place.figure))?;
        Some(format!("{} of the paced device is void and not drawn: {why}.", place.figure))
    };
    places.filter_map(gap).collect()
}

/// A bar or a point, and what the benchmark calls its figure.
struct Place {
    /// The series, by its place.
    series: usize,
    x: f64,
    figure: String,
}

fn places(experiment: &str, plot: &Plot) -> Vec<Place> {
    let mut places = Vec::new();
    for (series, line) in plot.series.iter().enumerate() {
        for (place, &(x, _)) in line.points.iter().enumerate() {
            if let Some(figure) = figure(experiment, plot, &line.name, (place, x)) {
                places.push(Place { series, x, figure });
            }
        }
    }
    places
}

/// What the benchmark calls the figure of a bar or a point, by its place and its x.
fn figure(experiment: &str, plot: &Plot, system: &str, (place, x): (usize, f64)) -> Option<String> {
    match experiment {
        "figure8" | "figure9" => {
            let (measure, program) = (measure(plot)?, plot.groups.get(place)?);
            Some(format!("{experiment}_{measure}_{system}_{program}"))
        }
        "figure11" => {
            let program = plot.title.rsplit(' ').next()?;
            Some(format!("{experiment}_run_time_{system}_{program}_{x:.0}us"))
        }
        _ => None,
    }
}

fn measured(runs: &[RealRun], figure: &str) -> Option<f64> {
    let mut runs = runs.iter().filter(|run| run.name == BENCHMARK);
    runs.find_map(|run| run.figure(figure))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::PlotKind;

    fn run(figures: &serde_json::Value, controls: &serde_json::Value) -> RealRun {
        let document = serde_json::json!({"name": "fairgv", "mode": "paced", "window": "w",
            "commit": "c", "figures": figures, "controls": controls});
        RealRun::parse(&document.to_string()).unwrap()
    }

    fn told(marks: &[Mark]) -> Vec<(usize, f64, f64)> {
        marks.iter().map(|mark| (mark.series, mark.x, mark.y)).collect()
    }

    #[test]
    fn what_was_measured_stands_at_its_bar_and_its_point() {
        let figures = serde_json::json!({"figure8_mmr_fair_HS": 0.99,
            "figure9_mmr_fair_MM": 0.5, "figure11_run_time_fair_MM_391us": 2.01});
        let runs = [run(&figures, &serde_json::json!({"figure8_mmr_unmanaged_MM": 0.33}))];
        let mut outcome = Outcome::new("figure8", "", "");
        let plot = outcome.plot(PlotKind::Bars, "t", "", "MMR").groups(["MM", "HS"]);
        plot.bars("fair", [1.0, 1.0]).bars("unmanaged", [0.3, 0.3]);
        assert_eq!(told(&marks("figure8", plot, &runs)), [(0, 1.0, 0.99), (1, 0.0, 0.33)]);
        assert!(marks("figure7", plot, &runs).is_empty() && marks("figure8", plot, &[]).is_empty());
        let plot = outcome.plot(PlotKind::Lines, "Normalised run time of MM", "", "run time");
        plot.series("fair", [(21.0, 2.0), (391.0, 2.0)]);
        assert_eq!(told(&marks("figure11", plot, &runs)), [(0, 391.0, 2.01)]);
    }

    #[test]
    fn what_is_void_is_a_gap_that_is_told() {
        let document = serde_json::json!({"name": "fairgv", "mode": "paced", "window": "w",
            "commit": "c", "figures": {"figure8_mmr_fair_HS": 0.99},
            "void": [{"figures": ["figure8_mmr_fair_MM", "figure8_mmr_min"], "why": "5 % late"}]});
        let runs = [RealRun::parse(&document.to_string()).unwrap()];
        let mut outcome = Outcome::new("figure8", "", "");
        let plot = outcome.plot(PlotKind::Bars, "t", "", "MMR").groups(["MM", "HS"]);
        plot.bars("fair", [1.0, 1.0]);
        assert_eq!(told(&marks("figure8", plot, &runs)), [(0, 1.0, 0.99)]);
        let expected = "figure8_mmr_fair_MM of the paced device is void and not drawn: 5 % late.";
        assert_eq!(gaps(&outcome, &runs), [expected]);
        // The controls: what was not measured is no gap of that kind, nor is what stands.
        assert!(gaps(&outcome, &[]).is_empty());
        assert!(gaps(&Outcome::new("figure7", "", ""), &runs).is_empty());
    }
}
