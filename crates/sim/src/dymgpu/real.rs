//! What `weft bench memory` measured on a node, beside what was simulated.

use crate::outcome::{Outcome, PlotKind};
use crate::report::RealRun;

/// Ways to place, at the paper's proportions: what was measured of each, and simulated.
const AT_PROPORTIONS: [(&str, &str, Option<&str>); 3] = [
    ("scores", "scores_efficiency_real_modelled", Some("scores_efficiency")),
    ("exact", "exact_efficiency_real_modelled", None),
    ("pipelined", "pipelined_efficiency_real_modelled", Some("pipelined_efficiency")),
];

/// How much memory all have together, over the device's, and whether what they work on fits.
const LOADS: [(&str, &str); 4] = [
    ("2x_fits", "2x, work fits"),
    ("2x_exceeds", "2x, nothing stays"),
    ("4x_fits", "4x, work fits"),
    ("4x_exceeds", "4x, nothing stays"),
];

/// What moving a slot costs.
const COSTS: [(&str, &str); 3] = [
    ("modelled", "the paper's cost of an entry"),
    ("contents", "contents are swapped"),
    ("memcpy", "what copying takes here"),
];

/// Unmodified programs.
const PROGRAMS: [(&str, &str); 3] = [
    ("clients_2x_over_swap_modelled", "2x, the paper's cost"),
    ("clients_4x_over_swap_modelled", "4x, the paper's cost"),
    ("clients_4x_over_swap_contents", "4x, contents"),
];

/// A document of `weft bench memory` as an experiment of the report.
pub(super) fn beside(run: &RealRun, simulated: &Outcome) -> Outcome {
    let window = format!(
        "Not simulated: `weft bench {}`, {}, {}; {}; commit `{}`",
        run.name, run.mode, run.window, run.machine, run.commit
    );
    let mut outcome = Outcome::new("real", "On a node", window);
    let of = |name: &str| run.figures.get(name).copied();
    let mut tell = |name: &str| {
        if let Some(value) = of(name) {
            outcome.figure(name, value);
            let ends = [of(&format!("{name}_least")), of(&format!("{name}_most"))];
            if let [Some(least), Some(most)] = ends {
                outcome.intervals.insert(name.to_owned(), (least, most));
                // The rounds, of which it is the median.
                outcome.seeds = 2;
            }
        }
    };
    AT_PROPORTIONS.iter().for_each(|(_, name, _)| tell(name));
    for (load, _) in LOADS {
        COSTS.iter().for_each(|(cost, _)| tell(&format!("over_swap_{load}_{cost}")));
    }
    PROGRAMS.iter().for_each(|(name, _)| tell(name));
    ["clients_ended_well", "clients_verified", "verified"].into_iter().for_each(&mut tell);
    for (name, value) in &run.controls {
        outcome.control(name.clone(), *value);
    }
    proportions(&mut outcome, run, simulated);
    over_swap(&mut outcome, run);
    outcome
}

fn proportions(outcome: &mut Outcome, run: &RealRun, simulated: &Outcome) {
    let value = |from: &Outcome, name: Option<&str>| {
        name.and_then(|name| from.figures.get(name)).copied().unwrap_or(0.0)
    };
    let measured = AT_PROPORTIONS.map(|(_, name, _)| run.figures.get(name).copied().unwrap_or(0.0));
    let expected = AT_PROPORTIONS.map(|(.., name)| value(simulated, name));
    let title = "Efficiency, 15 vGPUs, 1.22 ms a slot";
    let plot = outcome.plot(PlotKind::Bars, title, "placement", "efficiency");
    plot.groups(AT_PROPORTIONS.map(|(way, ..)| way)).bars("on a node (0: not measured)", measured);
    plot.bars("simulated (0: it was not)", expected).line_at(0.9, "the goal of `pipelined`");
}

fn over_swap(outcome: &mut Outcome, run: &RealRun) {
    let title = "Throughput of `exact` over whole-vGPU swap, turns of 6 ms";
    let plot = outcome.plot(PlotKind::Bars, title, "memory over the device's", "times");
    plot.groups(LOADS.map(|(_, load)| load)).line_at(1.0, "whole-vGPU swap");
    for (cost, words) in COSTS {
        let of = |load: &str| run.figures.get(&format!("over_swap_{load}_{cost}")).copied();
        plot.bars(words, LOADS.map(|(load, _)| of(load).unwrap_or(0.0)));
    }
    let title = "Unmodified programs under `exact` over whole-vGPU swap";
    let plot = outcome.plot(PlotKind::Bars, title, "memory over the device's", "times");
    plot.groups(PROGRAMS.map(|(_, words)| words)).line_at(1.0, "whole-vGPU swap");
    plot.bars("on a node", PROGRAMS.map(|(name, _)| run.figures.get(name).copied().unwrap_or(0.0)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_measured_stands_beside_what_was_simulated() {
        let text = r#"{"name": "memory", "commit": "c", "mode": "real", "window": "w",
            "machine": "m", "figures": {"pipelined_efficiency_real_modelled": 0.907,
            "over_swap_4x_fits_contents": 7.2, "over_swap_4x_fits_contents_least": 6.7,
            "over_swap_4x_fits_contents_most": 7.9, "flat_saxpy_ms": 4.5},
            "controls": {"spoiled_memory_noticed": 1.0}}"#;
        let mut simulated = Outcome::new("dymgpu", "", "");
        simulated.figure("pipelined_efficiency", 0.995);
        let outcome = beside(&RealRun::parse(text).unwrap(), &simulated);
        assert!(outcome.window.contains("real, w; m; commit `c`"), "{}", outcome.window);
        assert_eq!(outcome.figures.len(), 2);
        assert_eq!(outcome.interval("over_swap_4x_fits_contents"), Some((6.7, 7.9)));
        assert_eq!(outcome.controls["spoiled_memory_noticed"], 1.0);
        let bars = |plot: usize, series: usize| outcome.plots[plot].series[series].points.clone();
        assert_eq!(bars(0, 0)[2], (2.0, 0.907));
        assert_eq!(bars(0, 1)[2], (2.0, 0.995));
        assert_eq!(bars(1, 1)[2], (2.0, 7.2));
    }
}
