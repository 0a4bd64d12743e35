//! What the paper says, as rows, as marks on curves, and its Figure 7.

use super::experiments::{FACTORS_QUICK, LONG_SLA_NS, OUTSTANDING, SLA_NS, find, reading, spell};
use super::study::{Bench, Curve, by_name, percent};
use super::workload::{COLUMNS, Column, Spec};
use crate::MS;
use crate::outcome::{Outcome, PlotKind};

/// Statement, column, utilisation, entries, and what the paper says.
type Statement = (&'static str, usize, f64, &'static [&'static str], &'static str);

const STATEMENTS: [Statement; 18] = [
    ("K = 1 in W1 at 70 %", 0, 0.7, &["flexy_k1", "priority_k1"], K1_AT_70),
    ("K = 0 in W1 at 80 %", 0, 0.8, &["flexy_k0", "priority_k0"], "85"),
    ("K = 0 in W1 at 70 %", 0, 0.7, &["flexy_k0", "priority_k0"], "20 (§IV-A) and 90 (§IV-D)"),
    ("round robin in W1 above 80 %", 0, 0.82, &["round_robin"], "< 30"),
    ("resets in W1 at 45 %", 0, 0.45, &["flexy_reset", "priority_reset"], "65, 52"),
    (
        "K = 1 in W2 at 60 % (its count column is 40:60; the label says 20-80)",
        1,
        0.6,
        &["flexy_k1", "priority_k1"],
        "77",
    ),
    ("K = 0 in W2 at 60 %", 1, 0.6, &["flexy_k0", "priority_k0"], "65"),
    (
        "K = 1 in W3 at 57 % (its count column is 20:80; the label says 60-40)",
        2,
        0.57,
        &["flexy_k1", "priority_k1"],
        "97",
    ),
    ("K = 0 in W3 at 57 %", 2, 0.57, &["flexy_k0", "priority_k0"], "95"),
    // Figure 6 by its text (§IV-D): "the percentile of tasks that meet their SLA rises from 84 % to
    // 99.2 %, while GPU utilization decreases sharply from 95 % to 25 %" as K goes from 0 to 3.
    ("K = 0 in W1 at 95 %, Figure 6(a)", 0, 0.95, &["flexy_k0"], "84"),
    ("K = 2 in W1 at 45 %, Figure 6(a)", 0, 0.45, &["flexy_k2"], "90"),
    ("K = 3 in W1 at 25 %, Figure 6(a)", 0, 0.25, &["flexy_k3"], "90 and 99.2 (both in §IV-D)"),
    ("K = 0 in W2 at 40 %, Figure 6(b)", 1, 0.4, &["flexy_k0"], "88"),
    ("K = 1 in W2 at 40 %, Figure 6(b)", 1, 0.4, &["flexy_k1"], "95"),
    ("K = 2 in W2 at 40 %, Figure 6(b)", 1, 0.4, &["flexy_k2"], "95"),
    ("K = 3 in W2 at 20 %, Figure 6(b)", 1, 0.2, &["flexy_k3"], "98"),
    ("K = 0 in W3 at 75 %, Figure 6(c)", 2, 0.75, &["flexy_k0"], "85"),
    ("K = 3 in W3 at 25 %, Figure 6(c)", 2, 0.25, &["flexy_k3"], "99"),
];

/// Of one curve, in three places of the paper.
const K1_AT_70: &str = "98 (abstract), > 95 (§IV-A), 90 (§IV-D)";

/// The policies of the statements.
const ENTRIES_OF_STATEMENTS: [&str; 9] = [
    "flexy_k0",
    "flexy_k1",
    "flexy_k2",
    "flexy_k3",
    "priority_k0",
    "priority_k1",
    "round_robin",
    "flexy_reset",
    "priority_reset",
];
/// Loads between which their utilisations lie.
const FACTORS: [u64; 9] = [1_400, 1_000, 700, 550, 450, 350, 275, 225, 175];

/// What the paper says of utilisations and tasks in time, beside what this model has there, under
/// every reading of "outstanding".
pub(super) fn statements(bench: &Bench, quick: bool) -> Outcome {
    let window = "shape 1.5, no backlog; in time, %, by outstanding tasks per job";
    let mut outcome = Outcome::new("statements", "what the paper says, and this model", window);
    let entries = ENTRIES_OF_STATEMENTS.map(by_name);
    let factors = if quick { &FACTORS_QUICK[..] } else { &FACTORS[..] };
    let readings = if quick { &OUTSTANDING[3..4] } else { &OUTSTANDING[..] };
    let mut found = Vec::new();
    for column in COLUMNS {
        for outstanding in readings {
            let spec = reading(column, *outstanding, 15, false);
            found.push((column, *outstanding, bench.curves(&spec, SLA_NS, &entries, factors)));
        }
    }
    for (what, column, at, names, paper) in STATEMENTS {
        let of_column = found.iter().filter(|(of, ..)| *of == COLUMNS[column]);
        let texts = of_column.map(|(_, outstanding, curves)| {
            let values: Vec<String> = names
                .iter()
                .map(|name| find(curves, name).and_then(|curve| curve.at(at)))
                .map(|value| value.map_or_else(|| "–".to_owned(), |value| format!("{value:.0}")))
                .collect();
            format!("{}: {}", spell(*outstanding), values.join(", "))
        });
        let ours = texts.collect::<Vec<_>>().join("; ");
        outcome.compare(&format!("{what} ({})", names.join(", ")), paper, ours);
    }
    rederived(&mut outcome, &found);
    long_resets(bench, &mut outcome, readings, factors);
    for (column, outstanding, curves) in &found {
        for curve in curves {
            let (column, of) = (column.name.replace(':', "_"), spell(*outstanding));
            if let Some(value) = curve.at(0.7) {
                outcome.figure(format!("{}_{column}_{of}_at_70", curve.name), value);
            }
        }
    }
    outcome.note(
        "Table II is headed \"user-facing to batch\"; its durations give the job counts 80:20, 40:60 \
         and 20:80, so results are named by counts. \"–\": that utilisation is not reached.",
    );
    outcome.note(
        "\"Remaining task execution time is less than the reset overhead\" (§II-C3) is read as \
         greater. The window of the average execution time is 16 tasks here; the paper has no number.",
    );
    outcome.note(
        "Algorithm 1 sorts devices by completion, so idle ones stand before those that serve a \
         user-facing task: `flexy` follows it. In `flexy_packed` devices that serve count in U, as \
         the text (\"packs all user-facing tasks to a subset\") can also be read.",
    );
    outcome
}

/// What independent scripts derived from the paper's text before this model was: W1 at 70 %, by
/// outstanding tasks per job: round robin, priority, `flexy` with K = 1.
const DERIVED: [(Option<u32>, [f64; 3]); 5] = [
    (Some(1), [67.0, 98.0, 98.0]),
    (Some(2), [62.0, 95.0, 96.0]),
    (Some(4), [58.0, 90.0, 90.0]),
    (Some(8), [52.0, 81.0, 81.0]),
    (None, [25.0, 31.0, 32.0]),
];

fn rederived(outcome: &mut Outcome, found: &[(Column, Option<u32>, Vec<Curve>)]) {
    let mut furthest = 0.0f64;
    for (outstanding, expected) in DERIVED {
        let Some((.., curves)) =
            found.iter().find(|(column, of, _)| *column == COLUMNS[0] && *of == outstanding)
        else {
            continue;
        };
        let mut texts = Vec::new();
        for (name, expected) in ["round_robin", "priority_k0", "flexy_k1"].into_iter().zip(expected)
        {
            let Some(value) = find(curves, name).and_then(|curve| curve.at(0.7)) else { continue };
            furthest = furthest.max((value - expected).abs());
            texts.push(format!("{value:.1} (differs by {:+.1})", value - expected));
        }
        let what = format!(
            "W1 at 70 %, {} outstanding, re-derived from the text by other scripts (round_robin, \
             priority_k0, flexy_k1)",
            spell(outstanding)
        );
        let before = expected.map(|value| format!("{value:.0}")).join(", ");
        outcome.compare(&what, &format!("none; re-derived {before}"), texts.join(", "));
    }
    outcome.figure("differs_from_rederived_points_max", furthest);
}

/// Figure 7: resets with an SLA of a second.
fn long_resets(bench: &Bench, outcome: &mut Outcome, readings: &[Option<u32>], factors: &[u64]) {
    let entries = ["flexy_reset", "priority_reset"].map(by_name);
    let mut texts = [Vec::new(), Vec::new()];
    for outstanding in readings {
        let spec = reading(COLUMNS[0], *outstanding, 15, false);
        let curves = bench.curves(&spec, LONG_SLA_NS, &entries, factors);
        for (at, texts) in [0.45, 0.7].into_iter().zip(&mut texts) {
            let value = |curve: &Curve| {
                curve.at(at).map_or_else(|| "–".to_owned(), |value| format!("{value:.0}"))
            };
            let each: Vec<String> = curves.iter().map(value).collect();
            texts.push(format!("{}: {}", spell(*outstanding), each.join(", ")));
        }
    }
    for (at, texts) in [45, 70].into_iter().zip(texts) {
        let what = format!(
            "resets in W1 with an SLA of 1 s (flexy_reset, priority_reset), at {at} % here"
        );
        let paper = "> 92 of flexy_reset (§IV-E), utilisation not stated";
        outcome.compare(&what, paper, texts.join("; "));
    }
}

/// Latencies of Figure 7's axis: eight a decade, from 10 ms on; the 17th is a second.
const LATENCIES: u32 = 24;
/// The policies of Figure 7, the paper's first.
const LATE: [&str; 4] = ["flexy_reset", "priority_reset", "flexy_k1", "deadline"];

/// Figure 7: "the SLA violation percentile versus the execution time of user-facing tasks in
/// logarithmic scale" with an SLA of a second. An execution time that is compared with an SLA is
/// read as the time from submission to end.
pub(super) fn figure7(bench: &Bench) -> Outcome {
    let window =
        "jobs 80:20, f = 0.3, SLA 1 s, outstanding at most 8, shape 1.8, all seeds together";
    let mut outcome = Outcome::new("figure7", "user-facing tasks that take longer", window);
    let seeds = usize::try_from(bench.seeds).unwrap_or(usize::MAX).max(1);
    let runs = bench.all(LATE.len() * seeds, |place| {
        let seed = bench.seed + (place % seeds) as u64;
        let options = by_name(LATE[place / seeds]).options(LONG_SLA_NS);
        bench.run(&Spec::new(COLUMNS[0], 300, seed), &options).latencies_ns
    });
    let title = "User-facing tasks that take longer than a time, with an SLA of 1 s";
    let plot = outcome.plot(PlotKind::LogLines, title, "from submission to end, ms", "later, %");
    let mut at_sla = Vec::new();
    for (name, runs) in LATE.into_iter().zip(runs.chunks(seeds)) {
        let latencies_ns: Vec<u64> = runs.iter().flatten().copied().collect();
        let points = (0..LATENCIES).map(|step| 10f64.powf(1.0 + f64::from(step) / 8.0));
        let later = |ms: f64| later_percent(&latencies_ns, (ms * MS as f64).round());
        plot.series(name, points.map(|ms| (ms, later(ms))));
        at_sla.push((name, later_percent(&latencies_ns, LONG_SLA_NS as f64)));
    }
    for (name, percent) in at_sla {
        outcome.figure(format!("{name}_late_pct"), percent);
    }
    outcome
}

/// Those of the latencies that are longer, in percent.
fn later_percent(latencies_ns: &[u64], than_ns: f64) -> f64 {
    let later = latencies_ns.iter().filter(|ns| **ns as f64 > than_ns).count();
    percent((latencies_ns.len() as u64, later as u64))
}

/// Whether the paper has a value or a bound for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    At,
    Above,
    Below,
}

/// Column of Table II, policy, utilisation and tasks in time in %, and where the text says so.
type Mark = (usize, &'static str, f64, f64, Said, &'static str);

/// What the text says of points of Figures 5 and 6. Of one place it has several values at times.
const MARKS: [Mark; 24] = [
    (0, "flexy_k1", 70.0, 98.0, Said::At, "98 (abstract)"),
    (0, "flexy_k1", 70.0, 95.0, Said::Above, "> 95 (§IV-A)"),
    (0, "priority_k1", 70.0, 95.0, Said::Above, "> 95 (§IV-A)"),
    (0, "flexy_k0", 80.0, 85.0, Said::At, "85 (§IV-A)"),
    (0, "priority_k0", 80.0, 85.0, Said::At, "85 (§IV-A)"),
    (0, "round_robin", 80.0, 30.0, Said::Below, "< 30 above 80 % (§IV-A)"),
    (0, "flexy_reset", 45.0, 65.0, Said::At, "65 (§IV-A)"),
    (0, "flexy_k0", 95.0, 84.0, Said::At, "84 (§IV-D)"),
    (0, "flexy_k0", 70.0, 90.0, Said::At, "90 (§IV-D)"),
    (0, "flexy_k1", 70.0, 90.0, Said::At, "90 (§IV-D)"),
    (0, "flexy_k2", 45.0, 90.0, Said::At, "90 (§IV-D)"),
    (0, "flexy_k3", 25.0, 90.0, Said::At, "90 (§IV-D)"),
    (0, "flexy_k3", 25.0, 99.2, Said::At, "99.2 (§IV-D)"),
    (1, "flexy_k1", 60.0, 77.0, Said::At, "almost 77 (§IV-B)"),
    (1, "priority_k1", 60.0, 77.0, Said::At, "almost 77 (§IV-B)"),
    (1, "flexy_k0", 60.0, 65.0, Said::At, "65 (§IV-B)"),
    (1, "priority_k0", 60.0, 65.0, Said::At, "65 (§IV-B)"),
    (1, "flexy_k0", 40.0, 88.0, Said::At, "88 (§IV-D)"),
    (1, "flexy_k1", 40.0, 95.0, Said::At, "95 (§IV-D)"),
    (1, "flexy_k2", 40.0, 95.0, Said::At, "95 (§IV-D)"),
    (1, "flexy_k3", 20.0, 98.0, Said::At, "98 (§IV-D)"),
    (2, "flexy_k1", 57.0, 97.0, Said::At, "97 (§IV-C)"),
    (2, "flexy_k0", 75.0, 85.0, Said::At, "85 (§IV-D)"),
    (2, "flexy_k3", 25.0, 99.0, Said::At, "99 (§IV-D)"),
];

/// What the paper says of a policy's line in a section: x, y, and how it says it.
pub(crate) fn said_of(section: &str, policy: &str) -> Vec<(f64, f64, Said, &'static str)> {
    if section == "figure7" && policy == "flexy_reset" {
        return vec![(1_000.0, 8.0, Said::Below, "> 92 % in time (§IV-E), utilisation not stated")];
    }
    let is_of = |mark: &&Mark| section == section_name(COLUMNS[mark.0], SLA_NS) && mark.1 == policy;
    MARKS.iter().filter(is_of).map(|(_, _, x, y, said, text)| (*x, *y, *said, *text)).collect()
}

/// The section of a column and an SLA.
pub(super) fn section_name(column: Column, sla_ns: u64) -> String {
    format!("{} within {} ms", column.name, sla_ns / MS)
}

#[cfg(test)]
mod tests {
    use super::super::study::ENTRIES;
    use super::*;

    #[test]
    fn the_papers_marks_are_of_lines_that_are_drawn() {
        for (_, policy, x, y, ..) in MARKS {
            assert!(ENTRIES.iter().any(|entry| entry.name == policy), "{policy}");
            assert!((0.0..=100.0).contains(&x) && (0.0..=100.0).contains(&y), "{x} {y}");
        }
        let said = said_of("80:20 within 200 ms", "flexy_k3");
        assert_eq!(said.iter().map(|said| said.1).collect::<Vec<_>>(), [90.0, 99.2]);
        // The paper's figures are of 200 ms.
        assert!(said_of("80:20 within 1000 ms", "flexy_k3").is_empty());
        assert_eq!(said_of("figure7", "flexy_reset")[0].2, Said::Below);
    }

    #[test]
    fn later_are_those_that_take_longer_than_the_time() {
        let latencies_ns = [MS, 2 * MS, 3 * MS, 4 * MS];
        assert_eq!(later_percent(&latencies_ns, 2.0 * MS as f64), 50.0);
        assert_eq!(later_percent(&[], 1.0), 0.0);
    }

    #[test]
    fn figure_7_has_every_policys_part_beyond_the_sla() {
        let found = figure7(&Bench::new(1, 1));
        let plot = &found.plots[0];
        assert_eq!(plot.series.iter().map(|of| of.name.as_str()).collect::<Vec<_>>(), LATE);
        for series in &plot.series {
            let values: Vec<f64> = series.points.iter().map(|point| point.1).collect();
            assert!(values.is_sorted_by(|one, next| one >= next), "{values:?}");
            let (ms, late) = series.points[16];
            assert!((ms - 1_000.0).abs() < 1e-6, "{ms}");
            let told = found.figures[&format!("{}_late_pct", series.name)];
            assert!((late - told).abs() < 1e-9, "{late} and {told}");
        }
        assert!(plot.series[0].points[0].1 > 90.0, "hardly a task is done within 10 ms");
    }
}
