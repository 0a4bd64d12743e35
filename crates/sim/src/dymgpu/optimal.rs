//! Placements beside all layouts there are, on small cases that are drawn.

use weft_sched::VgpuKey;
use weft_sched::memory::{self, Demand, Problem, exhaustive};

use super::Setup;
use crate::outcome::Outcome;
use crate::random::Random;

pub(super) fn optimal(setup: &Setup) -> Outcome {
    let cases = if setup.quick { 50 } else { 300 };
    let window = format!("{cases} cases of 2 to 5 vGPUs on 4 to 9 slots");
    let mut outcome = Outcome::new("optimal", "Beside exhaustive search", window);
    let mut random = Random::part(setup.seed, 1);
    let names = ["exact", "size", "utilization", "scores", "scattered"];
    let (mut mismatches, mut equal, mut all) = (0.0, 0.0, 0.0);
    let (mut sums, mut best_sum) = ([0.0; 5], 0.0);
    let (mut expected, mut best_expected) = (0.0, 0.0);
    for _ in 0..cases {
        let (region, mut demands) = draw(&mut random);
        let problem = Problem { region, demands: &demands, hidden: 0 };
        let best = exhaustive::contiguous(&problem) as f64;
        for (name, sum) in names.iter().zip(&mut sums) {
            let cost = cost(name, &problem);
            *sum += cost;
            if *name == "exact" && (cost - best).abs() > 0.0 {
                mismatches += 1.0;
            }
        }
        best_sum += best;
        all += 1.0;
        let exact = memory::by_name("exact").expect("a name of the registry").place(&problem);
        expected += exact.map_or(0, |layout| layout.copies_expected_milli(&demands)) as f64;
        best_expected += exhaustive::contiguous_expected_milli(&problem) as f64;
        demands.iter_mut().for_each(|demand| demand.rate = memory::EVERY_ROUND);
        let problem = Problem { region, demands: &demands, hidden: 0 };
        let differ = cost("size", &problem) - exhaustive::contiguous(&problem) as f64;
        equal += f64::from(u8::from(differ.abs() > 0.0));
    }
    outcome.figure("exact_mismatches", mismatches);
    outcome.figure("algorithm_1_mismatches_equal_rates", equal);
    outcome.baseline("exhaustive_cases", all);
    for (name, sum) in names.iter().zip(sums) {
        outcome.figure(format!("small_{name}_over_optimum"), super::part(sum, best_sum));
    }
    outcome.figure("small_exact_over_optimum_if_independent", super::part(expected, best_expected));
    outcome.control("mean_excess_of_scores", super::part(sums[3], best_sum) - 1.0);
    outcome.note(
        "`exact` makes the sum of rates over shared slots least. Where turns come independently of \
         each other a busy vGPU keeps its slots beside sleepy ones, which that sum does not see: \
         `small_exact_over_optimum_if_independent` is what it then has over the best layout.",
    );
    outcome
}

pub(super) fn compare(outcome: &mut Outcome) {
    let worst = |name: &str| outcome.interval(name).map_or(f64::NAN, |(_, high)| high);
    let ours = format!(
        "at most {} of {} cases a seed differ",
        worst("exact_mismatches"),
        outcome.baselines["exhaustive_cases"]
    );
    outcome.compare("`exact` against exhaustive search, any rates", "not in the paper", ours);
    let worst = |name: &str| outcome.interval(name).map_or(f64::NAN, |(_, high)| high);
    let ours = format!(
        "at most {} of {} cases a seed differ",
        worst("algorithm_1_mismatches_equal_rates"),
        outcome.baselines["exhaustive_cases"]
    );
    outcome.compare("Algorithm 1 against exhaustive search, equal rates", "not claimed", ours);
}

fn cost(name: &str, problem: &Problem<'_>) -> f64 {
    let placement = memory::by_name(name).expect("a name of the registry");
    let layout = placement.place(problem).expect("what is drawn fits");
    layout.copies_at_most(problem.demands) as f64
}

/// A region and vGPUs that each fit into it, with any rates.
fn draw(random: &mut Random) -> (usize, Vec<Demand>) {
    let region = random.between(4, 9);
    let count = random.between(2, 5);
    let size = |random: &mut Random| usize::try_from(random.between(1, region)).unwrap_or(1);
    let rate = |random: &mut Random| u32::try_from(random.between(1, 1_000)).unwrap_or(1);
    let demands = (0..count).map(|key| Demand {
        vgpu: VgpuKey(u32::try_from(key).unwrap_or(0)),
        slots: size(random),
        rate: rate(random),
    });
    let demands = demands.collect();
    (usize::try_from(region).unwrap_or(4), demands)
}
