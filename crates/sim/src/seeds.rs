//! One outcome of several: the same experiment with other seeds.

use std::collections::BTreeMap;

use crate::outcome::{Outcome, Plot};

/// Medians of the outcomes of one experiment, with the least and the largest value of each figure.
/// Of `n` seeds the median of all lies in that interval with probability `1 − 2^(1 − n)`: 99.8 % of
/// ten. `None` of none.
pub fn merge(outcomes: Vec<Outcome>) -> Option<Outcome> {
    let mut merged = outcomes.first()?.clone();
    for (pick, prefix) in [(of_figures as Pick, ""), (of_baselines, ""), (of_controls, "control:")]
    {
        let names: Vec<String> = pick(&mut merged).keys().cloned().collect();
        for name in names {
            let mut copies = outcomes.clone();
            let values: Vec<f64> =
                copies.iter_mut().filter_map(|one| pick(one).get(&name).copied()).collect();
            pick(&mut merged).insert(name.clone(), median(&values));
            merged.intervals.insert(format!("{prefix}{name}"), range(&values));
        }
    }
    for (place, plot) in merged.plots.iter_mut().enumerate() {
        merge_plot(plot, &outcomes, place);
    }
    merged.seeds = outcomes.len();
    merged.lag_bound_violations = outcomes.iter().map(|one| one.lag_bound_violations).sum();
    merged.lag_share_max = outcomes.iter().map(|one| one.lag_share_max).fold(0.0, f64::max);
    merged.other_violations = outcomes.iter().map(|one| one.other_violations).sum();
    merged.decisions = outcomes.iter().map(|one| one.decisions).sum();
    merged.first_violation = outcomes.into_iter().find_map(|one| one.first_violation);
    Some(merged)
}

type Pick = fn(&mut Outcome) -> &mut BTreeMap<String, f64>;

fn of_figures(outcome: &mut Outcome) -> &mut BTreeMap<String, f64> {
    &mut outcome.figures
}

fn of_baselines(outcome: &mut Outcome) -> &mut BTreeMap<String, f64> {
    &mut outcome.baselines
}

fn of_controls(outcome: &mut Outcome) -> &mut BTreeMap<String, f64> {
    &mut outcome.controls
}

fn merge_plot(plot: &mut Plot, outcomes: &[Outcome], place: usize) {
    for (line, series) in plot.series.iter_mut().enumerate() {
        let same = || outcomes.iter().filter_map(|one| one.plots.get(place)?.series.get(line));
        for (number, point) in series.points.iter_mut().enumerate() {
            let values: Vec<f64> =
                same().filter_map(|series| series.points.get(number)).map(|at| at.1).collect();
            point.1 = median(&values);
            series.ranges.push(range(&values));
        }
    }
}

fn range(values: &[f64]) -> (f64, f64) {
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    (low, values.iter().copied().fold(f64::NEG_INFINITY, f64::max))
}

/// A list's median; 0 for an empty list.
#[must_use]
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        length if length % 2 == 1 => sorted[length / 2],
        length => f64::midpoint(sorted[length / 2 - 1], sorted[length / 2]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::PlotKind;

    #[test]
    fn figures_and_points_become_medians_with_their_range() {
        let one = |value: f64| {
            let mut outcome = Outcome::new("x", "x", "x");
            outcome.figure("a", value);
            outcome.decisions = 2;
            outcome.plot(PlotKind::Lines, "p", "", "").series("s", [(1.0, 10.0 * value)]);
            outcome
        };
        let merged = merge(vec![one(3.0), one(1.0), one(2.0)]).unwrap();
        assert_eq!((merged.figures["a"], merged.intervals["a"]), (2.0, (1.0, 3.0)));
        let series = &merged.plots[0].series[0];
        assert_eq!((series.points[0], series.ranges[0]), ((1.0, 20.0), (10.0, 30.0)));
        assert_eq!((merged.seeds, merged.decisions), (3, 6));
        assert!(merge(Vec::new()).is_none());
    }
}
