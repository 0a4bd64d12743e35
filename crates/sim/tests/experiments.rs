//! Every experiment in its quick form: what it promises holds, what must fail fails, and the same
//! seed gives the same figures.
#![expect(clippy::unwrap_used, reason = "a panic here is the test's report")]

use weft_sim::experiments::{EXPERIMENTS, Lab, by_name, summary};
use weft_sim::report::Report;
use weft_sim::{Calibration, Loop, Outcome, SECOND, Setup, Transport, World};

fn run(name: &str, seed: u64) -> Outcome {
    let mut silent = |_: &str| {};
    let mut lab = Lab::new(seed, true, Calibration::default(), &mut silent);
    by_name(name).unwrap().run(&mut lab).unwrap()
}

#[test]
fn invariants_hold_in_every_experiment() {
    for experiment in EXPERIMENTS.iter().filter(|experiment| experiment.name != "adversary") {
        let outcome = run(experiment.name, 3);
        assert_eq!(outcome.first_violation, None, "{}", experiment.name);
    }
}

#[test]
fn shares_follow_weights_where_the_controls_do_not() {
    for name in ["figure8", "figure9"] {
        let outcome = run(name, 1);
        // Windows of one second: the lag bound alone allows some percent.
        assert!(outcome.figures["mmr_min"] > 0.9, "{name}: {:?}", outcome.figures);
        for (control, mmr) in &outcome.controls {
            assert!(*mmr < 0.85, "{name}: {control} is {mmr}");
        }
    }
}

#[test]
fn a_tenant_of_long_kernels_moves_nobody() {
    let outcome = run("long_kernels", 1);
    assert!(outcome.figures["mmr_0_2ms"] >= 0.999, "{:?}", outcome.figures);
    assert!(outcome.figures["mmr_6ms"] >= 0.99, "{:?}", outcome.figures);
    assert!(outcome.controls.values().all(|mmr| *mmr < 0.5), "{:?}", outcome.controls);
}

#[test]
fn kernels_that_are_stopped_share_fairly_and_cost_what_stopping_costs() {
    let outcome = run("preemption", 1);
    let figure = |name: &str| outcome.figures[name];
    for cost in ["0us", "100us", "1ms"] {
        assert!(figure(&format!("mmr_stopped_{cost}_6ms")) >= 0.99, "{:?}", outcome.figures);
        assert!(figure(&format!("mmr_stopped_{cost}_0_2ms")) >= 0.998, "{:?}", outcome.figures);
    }
    assert!(figure("overhead_stopped_0us_0_2ms") < 1.001, "{:?}", outcome.figures);
    assert!(figure("overhead_stopped_100us_0_2ms") > 1.01, "{:?}", outcome.figures);
    let (small, large) = (figure("lost_stopped_1ms_0_2ms"), figure("lost_stopped_1ms_6ms"));
    assert!(small > 3.0 * large && large > 0.0, "{:?}", outcome.figures);
    assert!(outcome.controls["mmr_unsliced"] < 0.1, "{:?}", outcome.controls);
    // The driver's slices are equal: nobody starves and no weight counts.
    assert!((0.2..0.3).contains(&outcome.controls["mmr_driver"]), "{:?}", outcome.controls);
}

#[test]
fn weights_count_at_every_level_and_splitting_gains_nothing() {
    let outcome = run("hierarchy", 1);
    let figure = |name: &str| outcome.figures[name];
    // Phases of four seconds: the lightest session gets a hundredth of one.
    assert!(figure("mmr_min") >= 0.97, "{:?}", outcome.figures);
    assert!(figure("mmr_tenants_min") >= 0.99, "{:?}", outcome.figures);
    assert!(figure("share_error_max") <= 0.015, "{:?}", outcome.figures);
    assert!(figure("split_gain").abs() <= 0.002, "{:?}", outcome.figures);
    for (control, value) in &outcome.controls {
        let fails = if control.starts_with("mmr") { *value < 0.5 } else { *value > 0.5 };
        assert!(fails, "{control} is {value}");
    }
}

#[test]
fn caps_hold_and_idle_nothing_that_others_want() {
    let outcome = run("caps", 1);
    let figure = |name: &str| outcome.figures[name];
    assert!(figure("share_over_cap_max") <= 1.002, "{:?}", outcome.figures);
    assert!(figure("share_over_cap_min") >= 0.9, "{:?}", outcome.figures);
    assert!(figure("excess_over_bound_max") <= 1.0, "{:?}", outcome.figures);
    assert!(figure("utilization_min") >= 0.995, "{:?}", outcome.figures);
    assert!(figure("mmr_rest_min") >= 0.99, "{:?}", outcome.figures);
    assert!((0.59..0.61).contains(&figure("utilization_all_capped")), "{:?}", outcome.figures);
    assert!((0.99..1.002).contains(&figure("tenant_share_over_cap")), "{:?}", outcome.figures);
    assert!(figure("tenant_mmr") >= 0.98, "{:?}", outcome.figures);
    assert!(figure("tenant_utilization") >= 0.995, "{:?}", outcome.figures);
    let divided = outcome.controls["tenant_share_over_cap_divided"];
    assert!((0.45..0.55).contains(&divided), "{:?}", outcome.controls);
    assert!(outcome.controls["share_over_cap_uncapped"] > 1.3, "{:?}", outcome.controls);
    assert!(outcome.controls["violations_uncapped"] > 0.0, "{:?}", outcome.controls);
}

/// One run is looked at from all sides: it takes longer than all other experiments do.
#[test]
fn attacks_gain_nothing_and_take_nothing_from_victims() {
    let outcome = run("adversary", 1);
    cheating_gains_nothing_and_would_without_the_policy(&outcome);
    victims_keep_their_share_and_would_lose_it_without_the_defence(&outcome);
    assert_eq!(run("adversary", 1).figures, outcome.figures, "of the same seed");
    let summed = summary(&[outcome]);
    for name in ["adversary_gain_max", "victim_loss_max"] {
        assert!(summed.figures.contains_key(name), "{name} is missing");
    }
}

fn cheating_gains_nothing_and_would_without_the_policy(outcome: &Outcome) {
    // A quick run is short: 20 s of a bound of some 50 ms.
    assert!(outcome.figures["gain_max"] < 0.01, "{:?}", outcome.figures);
    let mut gains = outcome.controls.iter().filter(|(name, _)| name.starts_with("gain"));
    assert!(gains.all(|(_, gain)| *gain > 0.3), "{:?}", outcome.controls);
    assert_eq!(outcome.first_violation, None);
}

fn victims_keep_their_share_and_would_lose_it_without_the_defence(outcome: &Outcome) {
    let (figures, controls) = (&outcome.figures, &outcome.controls);
    let attacks =
        ["kill", "rename", "leave", "storm", "pauses", "users", "grow", "uncut_one", "uncut_eight"];
    // Who has next to nothing of the device owes the victim all the rest of it, and each of its
    // turns costs two switches and the way to the daemon (ADR 18 says why that is not less).
    let gives_up = |attack| ["storm", "pauses"].contains(&attack);
    for attack in attacks {
        let lost = figures[&format!("loss_between_stalls_{attack}")];
        let most = if gives_up(attack) { 0.02 } else { 0.01 };
        assert!(lost < most, "{attack}: {figures:?}");
    }
    for attack in attacks {
        // A quantum and the victim's own kernel beyond the longest that cannot be cut.
        let stall_ms = figures[&format!("stall_beyond_kernel_ms_{attack}")];
        assert!(stall_ms < 6.5, "{attack}: {figures:?}");
        // Switches cost what they do on the real clock.
        assert!(figures[&format!("utilization_{attack}")] > 0.97, "{attack}: {figures:?}");
        assert!(figures[&format!("utilization_honest_{attack}")] > 0.985, "{attack}: {figures:?}");
    }
    // An attack takes no more than one program does that means no harm.
    let honest = controls["loss_pauses_one_honest"];
    assert!(figures["loss_pauses"] < honest && honest < 0.03, "{figures:?}, honest: {honest}");
    for (control, least) in [
        ("kill_off", 0.9),
        ("rename_off", 0.9),
        ("leave_off", 0.3),
        ("users_off", 0.5),
        ("storm_round_robin", 0.3),
        ("pauses_round_robin", 0.3),
        ("grow_unmanaged", 0.9),
        ("uncut_one_unmanaged", 0.9),
        ("uncut_eight_unmanaged", 0.9),
    ] {
        assert!(controls[&format!("loss_{control}")] > least, "{control}: {controls:?}");
    }
}

#[test]
fn a_sleeper_that_wakes_costs_others_a_quantum_at_most() {
    let outcome = run("wakeup", 1);
    let figure = |name: &str| outcome.figures[name];
    assert!(figure("wake_delay_over_fair_quanta_max") <= 1.0, "{:?}", outcome.figures);
    assert!(figure("wake_delay_over_steady_quanta_max") <= 1.0, "{:?}", outcome.figures);
    // Without the sleeper the others wait less than beside a competitor: its turns are seen.
    assert!(figure("wake_delay_quanta_max") > 1.0, "{:?}", outcome.figures);
    assert!(figure("wake_delay_quanta_max") <= 4.5, "{:?}", outcome.figures);
}

/// A native program that sleeps as Weft's does would hide what the sleeping costs: most where the
/// kernel ends while its caller falls asleep.
#[test]
fn the_native_program_polls() {
    let overhead = run("figure2", 1).figures["overhead_rings_sync_51us"];
    assert!(overhead > 1.05, "{overhead}");
}

/// A worker that knows when a kernel will end announces that until it has: a caller that polled
/// first and fell asleep then is awake when its answer comes.
#[test]
fn who_polled_first_is_awake_in_time_where_the_end_is_known() {
    let busy = |tells_ends| {
        let mut world = World::new(Setup { tells_ends, ..Setup::new("fair", 1) }).unwrap();
        let vgpu = world.vgpu(1);
        let rings = Transport { submit_ns: 125, round_trip_ns: 391, lock_step: false };
        world.program(vgpu, Box::new(Loop::simple(400, true)), rings, None, 1_024);
        world.run_for(SECOND);
        world.busy_ns() as f64 / SECOND as f64
    };
    let (told, not_told) = (busy(true), busy(false));
    assert!(told > 0.995 && not_told < 0.95, "{told} {not_told}");
}

#[test]
fn every_claim_of_the_paper_is_held_against_figures() {
    let outcomes: Vec<Outcome> = EXPERIMENTS
        .iter()
        .filter(|experiment| experiment.is_of_paper())
        .map(|experiment| run(experiment.name, 1))
        .collect();
    let report = Report {
        command: String::new(),
        commit: String::new(),
        seed: 1,
        seeds: 1,
        quick: true,
        calibration: Vec::new(),
        summary: summary(&outcomes),
        outcomes,
        real: Vec::new(),
    };
    let rows = report.claims();
    let of = |verdict: &str| rows.iter().filter(|row| row.verdict == verdict).collect::<Vec<_>>();
    for row in of("not measured") {
        assert!(row.why.len() > 20 && row.simulated == "–", "a figure is missing: {row:?}");
        assert!(["figure1", "table2"].contains(&row.experiment.as_str()), "{row:?}");
    }
    let (good, bad) = (of("reproduced"), of("not reproduced"));
    assert!(good.len() > 30, "{} of {} reproduced", good.len(), rows.len());
    // A page on which everything is reproduced has not looked.
    assert!(bad.len() > 3, "{} of {} not reproduced", bad.len(), rows.len());
    for row in bad {
        assert!(!row.why.is_empty(), "no reason: {row:?}");
    }
    for (text, kind) in [(report.html(), "page"), (report.markdown(), "summary")] {
        let shown =
            rows.iter().all(|row| text.contains(&row.experiment) && text.contains(row.verdict));
        assert!(shown && text.contains("Credit-hs, overhead, SRD1"), "{kind}");
    }
}

/// What the report that is kept does not reproduce on the paced device has a reason, too.
#[test]
fn the_kept_report_has_a_reason_for_what_is_not_reproduced() {
    let kept = include_str!("../../../docs/evaluation/README.md");
    assert!(kept.contains("paced: ") && kept.contains("**not reproduced**"), "no such rows");
    let without: Vec<&str> = kept.lines().filter(|line| line.contains("no known reason")).collect();
    assert!(without.is_empty(), "{without:#?}");
}

#[test]
fn several_seeds_give_an_interval() {
    let one = |seed| run("figure8", seed);
    let merged = weft_sim::seeds::merge(vec![one(1), one(2), one(3)]).unwrap();
    let (low, high) = merged.interval("mmr_fair_BS").unwrap();
    let median = merged.figures["mmr_fair_BS"];
    assert!(low <= median && median <= high && low < high, "{low} {median} {high}");
}

#[test]
fn charges_close() {
    assert!(run("closure", 1).figures["closure_max"] <= 0.001);
    let table = run("table2", 1);
    assert!(table.figures["error_max"] <= 0.01 && table.controls["error_host_timed_max"] > 0.01);
}

#[test]
fn idling_is_seen_where_work_is_not_conserved() {
    let outcome = run("figure10", 1);
    assert!(outcome.figures["utilization_min"] > 0.95, "{:?}", outcome.figures);
    assert!(outcome.controls["utilization_min"] < 0.9, "{:?}", outcome.controls);
}

#[test]
fn a_seed_gives_the_same_figures_and_another_seed_others() {
    let text = |seed| serde_json::to_string(&run("reweight", seed)).unwrap();
    assert_eq!(text(5), text(5));
    assert_ne!(text(5), text(6));
}

#[test]
fn the_summary_has_the_figures_that_the_design_asks_for() {
    let names = ["figure8", "figure9", "long_kernels", "wakeup", "hierarchy", "caps"];
    let outcomes: Vec<Outcome> = names.into_iter().map(|name| run(name, 1)).collect();
    let all = summary(&outcomes);
    for name in [
        "mmr_min",
        "overhead_max",
        "long_kernel_mmr",
        "wake_delay_quanta_max",
        "hierarchy_mmr_min",
        "share_over_cap_max",
        "lag_bound_violations",
        "decisions",
    ] {
        assert!(all.figures.contains_key(name), "{name} is missing");
    }
}
