//! The goals, on a quick run.

use super::*;
use crate::outcome::MadeOn;

fn quick(run: Run) -> Outcome {
    let outcome = run(&Setup { seed: 3, quick: true });
    assert_eq!(outcome.first_violation, None, "{}", outcome.name);
    outcome
}

#[test]
fn copies_reach_the_optimum_and_the_control_does_not() {
    let outcome = quick(copies::copies);
    let of = |name: &str| outcome.figures[name];
    assert!((of("copies_over_scores_15") - 127.0 / 165.0).abs() < 1e-12);
    assert!((of("copies_scattered_15") - 120.0).abs() < 1e-12);
    assert!(outcome.controls["copies_scores_over_exact_15"] > 1.2);
    assert!(outcome.controls["violations_with_one_copy_skipped"] > 0.0, "a fault must be found");
}

#[test]
fn scores_move_nobody_and_every_event_is_timed() {
    let watched = quick(watch::watch);
    assert!(watched.figures["watched_moves_scores_per_minute"].abs() < 1e-12);
    assert!(watched.figures["watched_moves_dymgpu_utilization_per_minute"] > 0.0);
    let speed = quick(speed::speed);
    let of = |name: &str| speed.figures[name];
    for event in ["look", "wake", "destroy", "create"] {
        assert!(of(&format!("decision_us_{event}_scores")) <= of("decision_us_max"));
    }
    assert!(of("decision_us_max") <= of("decision_us_worst"));
    assert!(of("search_us_exact") > 0.0 && of("take_us_exact") > 0.0);
    assert!(!speed.figures.contains_key("search_us_scores"), "it moves nobody");
}

#[test]
fn hidden_copies_reach_the_goal_within_a_quantum_of_lag() {
    let outcome = quick(pipeline::pipeline);
    let of = |name: &str| outcome.figures[name];
    assert!(of("pipelined_efficiency") >= 0.90, "{outcome:?}");
    assert!((of("scores_efficiency") - 0.54).abs() < 0.01);
    assert!(of("lag_quanta_over") <= 1.0);
    assert!((of("pipelined_mmr") - 1.0).abs() < 1e-12);
    assert!(outcome.controls["efficiency_all_as_large_as_the_region"] < 0.25);
}

#[test]
fn exact_agrees_with_exhaustive_search() {
    let outcome = quick(optimal::optimal);
    assert!(outcome.figures["exact_mismatches"].abs() < 1e-12);
    assert!(outcome.figures["algorithm_1_mismatches_equal_rates"].abs() < 1e-12);
    assert!(outcome.controls["mean_excess_of_scores"] > 0.01, "the control must be worse");
}

#[test]
fn the_same_seed_gives_the_same_figures() {
    for experiment in EXPERIMENTS.iter().filter(|experiment| experiment.draws) {
        let of = |seed| (experiment.run)(&Setup { seed, quick: true }).figures;
        assert_eq!(of(5), of(5));
        assert_ne!(of(5), of(6), "nothing was drawn");
    }
}

#[test]
fn the_report_has_every_figure_and_says_what_differs() {
    let setup = Setup { seed: 1, quick: true };
    let outcomes = vec![quick(copies::copies), quick(sets::sets), quick(watch::watch)];
    let summary = summary(&outcomes);
    let (command, commit) = ("weft sim dymgpu".to_owned(), "none".to_owned());
    let made_on = MadeOn { machine: "two cores".to_owned(), stolen: 0.25 };
    let mut report = Report::new(command, commit, made_on, setup, 1, summary, outcomes);
    let text = report.markdown();
    assert!(text.contains("| 15 | 165 | 127 | 127 | 127 | 120 |"), "{text}");
    assert!(!text.contains("(expected"));
    report.summary.figures.insert("copies_size_15".to_owned(), 126.0);
    assert!(report.markdown().contains("126 (expected 127)"));
    let row = "| copies over gScale's, 15 vGPUs, least by placement | copies_over_scores_15 | ";
    assert!(text.contains(&format!("{row}0.7697 | ≤ 0.77 | yes |")), "{text}");
    assert!(text.contains("| decision_us_max | not measured | ≤ 1000 | no |"), "{text}");
    report.summary.figures.insert("copies_over_scores_15".to_owned(), 0.78);
    assert!(report.markdown().contains(&format!("{row}0.7800 | ≤ 0.77 | no |")));
    let page = report.html();
    assert!(page.contains("<svg") && !page.contains("src=") && !page.contains("<script"));
    let json = report.json();
    assert!(json["figures"]["copies_over_scores_15"].is_number());
    assert_eq!(json["machine"], "two cores");
    assert_eq!(json["stolen"], 0.25);
}
