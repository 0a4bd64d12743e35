//! The goals, on quick runs.

use super::*;
use crate::outcome::MadeOn;

const QUICK: Setup = Setup { seed: 3, quick: true };

#[test]
fn sharing_is_in_the_papers_range_and_the_control_is_not() {
    let outcome = production::sharing(&QUICK);
    assert_eq!(outcome.first_violation, None);
    let of = |name: &str| outcome.figures[name];
    let speedups = [of("speedup_2x"), of("speedup_1_5x"), of("speedup_1x")];
    assert!(speedups.is_sorted() && speedups[0] >= 1.8 && speedups[2] <= 5.0, "{speedups:?}");
    let ratio = of("hours_clamp_queued_8") / of("hours_clamp_queued_4");
    assert!((0.4..=0.55).contains(&ratio), "{ratio}");
    assert!(outcome.controls["speedup_8x"] < 1.0, "no gain at a factor of 8");
    assert!(of("fcfs_over_bound_4") >= 1.0);
}

#[test]
fn backfilling_waits_less() {
    let outcome = production::backfilling(&QUICK);
    assert_eq!(outcome.first_violation, None);
    let of = |name: &str| outcome.figures[name];
    assert!(of("wait_h_4_gpus_conservative") <= of("wait_h_4_gpus_fcfs"));
    assert!(of("wait_h_4_gpus_easy") <= of("wait_h_4_gpus_fcfs"));
}

#[test]
fn fragmentation_packs_better_than_best_fit_and_controls_worse() {
    let inputs = Inputs::stand_in(&QUICK);
    let outcome = packing::packing(&QUICK, &inputs);
    assert_eq!(outcome.first_violation, None);
    assert!(outcome.figures["frag_over_best_fit"] > 1.0, "{outcome:?}");
    assert!(outcome.controls["least_load_over_best_fit"] < 1.0);
    let bound = outcome.baselines["bound_allocated_100"];
    assert!(outcome.figures["allocated_100_fragmentation"] <= bound);
    assert!(outcome.controls["allocated_100_random"] < outcome.figures["allocated_100_best_fit"]);
}

#[test]
fn nobody_is_better_than_the_optimum() {
    let outcome = small::small(&QUICK);
    assert_eq!(outcome.first_violation, None);
    let of = |name: &str| outcome.figures[&format!("of_optimum_{name}")];
    assert!(of("fragmentation") <= 1.0 && of("fragmentation") > of("least_load"), "{outcome:?}");
}

#[test]
fn the_same_seed_gives_the_same_figures() {
    let of = |seed| production::sharing(&Setup { seed, ..QUICK }).figures;
    assert_eq!(of(5), of(5));
    assert_ne!(of(5), of(6), "nothing was drawn");
    let inputs = Inputs::stand_in(&QUICK);
    let of = |seed| packing::packing(&Setup { seed, ..QUICK }, &inputs).figures;
    assert_eq!(of(5), of(5));
    assert_ne!(of(5), of(6), "nothing was drawn");
}

#[test]
fn logs_run_under_every_discipline() {
    let jobs =
        Lublin { jobs: 60, nodes: 16, nodes_max: 16, limit: Limit::Clamp, typed: true, seed: 1 };
    let mut inputs = Inputs::stand_in(&QUICK);
    assert!(production::logs(&QUICK, &inputs).is_none());
    inputs.logs.push(("made_up".to_owned(), jobs.generate()));
    let outcome = production::logs(&QUICK, &inputs).expect("there is a log");
    assert_eq!(outcome.first_violation, None);
    assert!(outcome.figures["over_bound_made_up_easy"] >= 1.0);
}

#[test]
fn the_report_has_every_headline_and_what_is_published() {
    let mut sharing = production::sharing(&QUICK);
    production::compare(&mut sharing);
    let inputs = Inputs { is_alibaba: true, ..Inputs::stand_in(&QUICK) };
    let mut packing = packing::packing(&QUICK, &inputs);
    packing::compare(&mut packing);
    let outcomes = vec![sharing, packing, speed::speed(&QUICK)];
    let summary = summary(&outcomes);
    for name in HEADLINES {
        assert!(summary.figures.contains_key(name), "{name}");
    }
    for name in ["first", "p50", "p99", "max", "learning"] {
        let name = format!("decision_ms_{name}_100k_fragmentation_mixed");
        assert!(summary.figures.contains_key(&name), "{name}");
    }
    let report = Report {
        command: "weft sim gsaas".into(),
        commit: "none".into(),
        made_on: MadeOn { machine: "two cores".into(), stolen: 0.25 },
        setup: QUICK,
        seeds: 1,
        summary,
        outcomes,
    };
    let text = report.markdown();
    assert!(text.contains("| 95.23 % |") && text.contains("2 to 4"), "{text}");
    let page = report.html();
    assert!(page.contains("<svg") && !page.contains("src=") && !page.contains("<script"));
    let json = report.json();
    assert!(json["figures"]["frag_over_best_fit"].is_number());
    assert_eq!(json["machine"], "two cores");
    assert_eq!(json["stolen"], 0.25);
}
