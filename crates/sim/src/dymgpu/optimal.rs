//! Placements beside all layouts there are, on small cases that are drawn.

use weft_sched::VgpuKey;
use weft_sched::memory::{self, Demand, Layout, Problem, exhaustive};

use super::{Setup, part};
use crate::outcome::Outcome;
use crate::random::Random;

const NAMES: [&str; 5] = ["exact", "size", "utilization", "scores", "scattered"];

/// Sums over all cases, in expected copies or as said.
#[derive(Default)]
struct Sums {
    cases: f64,
    of_each: [f64; NAMES.len()],
    best: f64,
    searched: f64,
    searched_mismatches: f64,
    mismatches: f64,
    proven: f64,
    at_most: f64,
    best_at_most: f64,
    rare: f64,
    best_rare: f64,
    equal_mismatches: f64,
}

pub(super) fn optimal(setup: &Setup) -> Outcome {
    let cases = if setup.quick { 50 } else { 300 };
    let window = format!("{cases} cases of 2 to 5 vGPUs on 4 to 9 slots");
    let mut outcome = Outcome::new("optimal", "Beside exhaustive search", window);
    let mut random = Random::part(setup.seed, 1);
    let mut sums = Sums::default();
    for _ in 0..cases {
        let (region, demands) = draw(&mut random, (4, 9), (2, 5));
        sums.add(region, demands);
    }
    outcome.baseline("exhaustive_cases", sums.cases);
    outcome.figure("exact_mismatches", sums.mismatches);
    outcome.figure("exact_searched_mismatches", sums.searched_mismatches);
    outcome.figure("exact_proven_share", part(sums.proven, sums.cases));
    outcome.figure("algorithm_1_mismatches_equal_rates", sums.equal_mismatches);
    for (name, sum) in NAMES.iter().zip(sums.of_each) {
        outcome.figure(format!("small_{name}_over_optimum"), part(sum, sums.best));
    }
    outcome.figure("small_searched_over_optimum", part(sums.searched, sums.best));
    outcome.figure("small_exact_over_optimum_at_most", part(sums.at_most, sums.best_at_most));
    outcome.figure("small_exact_over_optimum_if_independent", part(sums.rare, sums.best_rare));
    outcome.control("mean_excess_of_scores", part(sums.of_each[3], sums.best) - 1.0);
    larger(&mut outcome, &mut random, cases / 10);
    outcome.note(
        "All is in expected copies: in each round each vGPU has a turn with its rate as the chance. \
         `exact_mismatches` counts cases in which `exact` has more of them than the best of all \
         contiguous layouts; `exact` itself tries all layouts there, cleverly, so \
         `exact_searched_mismatches` says how often its search alone, which is all that there is for \
         more than 8 vGPUs, misses the best. `at_most` counts a shared slot at every turn, \
         `if_independent` draws each turn from all vGPUs by their rates: other measures, which \
         `exact` does not make least.",
    );
    outcome
}

impl Sums {
    fn add(&mut self, region: usize, mut demands: Vec<Demand>) {
        let problem = Problem { region, demands: &demands, hidden: 0 };
        let best = exhaustive::contiguous_expected_milli(&problem);
        let expected = |layout: &Layout| layout.copies_expected_milli(&demands);
        for (name, sum) in NAMES.iter().zip(&mut self.of_each) {
            *sum += expected(&of(name, &problem)) as f64;
        }
        let exact = of("exact", &problem);
        let searched = expected(&memory::searched(&problem));
        self.cases += 1.0;
        self.best += best as f64;
        self.searched += searched as f64;
        self.mismatches += count(expected(&exact) != best);
        self.searched_mismatches += count(searched != best);
        self.proven += count(memory::is_proven(&problem));
        self.at_most += exact.copies_at_most(&demands) as f64;
        self.best_at_most += exhaustive::contiguous(&problem) as f64;
        self.rare += exact.copies_if_rare_milli(&demands) as f64;
        self.best_rare += exhaustive::contiguous_if_rare_milli(&problem) as f64;
        demands.iter_mut().for_each(|demand| demand.rate = memory::EVERY_ROUND);
        let problem = Problem { region, demands: &demands, hidden: 0 };
        let equal = of("size", &problem).copies_at_most(&demands);
        self.equal_mismatches += count(equal != exhaustive::contiguous(&problem));
    }
}

/// The search beside the proof, where all layouts are too many to list.
fn larger(outcome: &mut Outcome, random: &mut Random, cases: u64) {
    let (mut proven, mut misses, mut found, mut best) = (0.0, 0.0, 0.0, 0.0);
    for _ in 0..cases {
        let (region, demands) = draw(random, (10, 14), (6, 8));
        let problem = Problem { region, demands: &demands, hidden: 0 };
        if !memory::is_proven(&problem) {
            continue;
        }
        let searched = memory::searched(&problem).copies_expected_milli(&demands);
        let least = of("exact", &problem).copies_expected_milli(&demands);
        proven += 1.0;
        misses += count(searched != least);
        found += searched as f64;
        best += least as f64;
    }
    outcome.baseline("larger_cases", cases as f64);
    outcome.figure("larger_proven_share", part(proven, cases as f64));
    outcome.figure("larger_searched_mismatches", misses);
    outcome.figure("larger_searched_over_optimum", part(found, best));
}

fn count(is_so: bool) -> f64 {
    f64::from(u8::from(is_so))
}

pub(super) fn compare(outcome: &mut Outcome) {
    let rows = [
        ("`exact` against exhaustive search, expected copies, any rates", "exact_mismatches"),
        ("the search of `exact` alone against the same", "exact_searched_mismatches"),
        (
            "Algorithm 1 against exhaustive search, equal rates",
            "algorithm_1_mismatches_equal_rates",
        ),
    ];
    for (what, name) in rows {
        let worst = outcome.interval(name).map_or(f64::NAN, |(_, high)| high);
        let cases = outcome.baselines["exhaustive_cases"];
        let ours = format!("at most {worst} of {cases} cases a seed differ");
        outcome.compare(what, "not in the paper", ours);
    }
}

fn of(name: &str, problem: &Problem<'_>) -> Layout {
    let placement = memory::by_name(name).expect("a name of the registry");
    placement.place(problem).expect("what is drawn fits")
}

/// A region and vGPUs that each fit into it, with any rates.
fn draw(random: &mut Random, regions: (u64, u64), counts: (u64, u64)) -> (usize, Vec<Demand>) {
    let region = random.between(regions.0, regions.1);
    let count = random.between(counts.0, counts.1);
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
