//! The dynamic program alone, without the search and the proof that come after it.

use proptest::prelude::*;

use super::super::super::tests::{assert_sound, small};
use super::super::super::{EVERY_ROUND, exhaustive};
use super::*;
use crate::VgpuKey;

/// What a shape is ranked by: copies saved of those that everybody makes who shares everything.
fn value(problem: &Problem<'_>, shape: &Shape) -> u64 {
    let out = |(demand, lies): (&Demand, &Lies)| match lies {
        Lies::Inside => 0,
        Lies::Alone => u64::from(demand.rate) * demand.slots as u64,
        Lies::Out(slots) => u64::from(demand.rate) * *slots as u64,
    };
    problem.demands.iter().zip(&shape.lies).map(out).sum()
}

/// The most that any shape saves: each length, and everybody inside, alone or cut, two at most.
fn most_of_all_shapes(problem: &Problem<'_>) -> u64 {
    let largest = problem.demands.iter().map(|demand| demand.slots).max().unwrap_or(0);
    let of_length = |length: usize| best_from(problem.demands, length, problem.region - length, 2);
    (1..=largest).filter_map(of_length).max().unwrap_or(0)
}

/// The most that these save with so many slots beside the run, `None` if they do not fit.
fn best_from(demands: &[Demand], length: usize, left: usize, cuts: usize) -> Option<u64> {
    let Some((demand, others)) = demands.split_first() else { return Some(0) };
    let of = |out: usize| {
        let is_cut = (1..demand.slots).contains(&out);
        let fits = demand.slots - out <= length && out <= left && (!is_cut || cuts > 0);
        let rest = fits.then(|| best_from(others, length, left - out, cuts - usize::from(is_cut)));
        rest.flatten().map(|rest| rest + u64::from(demand.rate) * out as u64)
    };
    (0..=demand.slots).filter_map(of).max()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn the_program_finds_the_best_of_all_shapes((region, demands) in small(5, 8)) {
        let problem = Problem { region, demands: &demands, hidden: 0 };
        prop_assume!(problem.total() > region);
        prop_assert!(is_small(&problem));
        let shape = program(&problem);
        assert_sound(&lay(&problem, &shape), &demands);
        prop_assert_eq!(value(&problem, &shape), most_of_all_shapes(&problem));
    }

    #[test]
    fn no_layout_copies_less_than_one_shared_run((region, demands) in small(5, 8)) {
        let problem = Problem { region, demands: &demands, hidden: 0 };
        prop_assume!(problem.total() > region);
        let found = lay(&problem, &program(&problem)).copies_at_most(&demands);
        prop_assert_eq!(found, exhaustive::contiguous(&problem));
    }

    #[test]
    fn the_greedy_layout_is_sound_and_no_better((region, demands) in small(8, 20)) {
        let problem = Problem { region, demands: &demands, hidden: 0 };
        prop_assume!(problem.total() > region && is_small(&problem));
        let shape = greedy(&problem);
        assert_sound(&lay(&problem, &shape), &demands);
        prop_assert!(value(&problem, &shape) <= value(&problem, &program(&problem)));
    }
}

/// The control: shapes that cut nobody save less, so that cuts are what is compared above.
#[test]
fn the_best_shape_cuts_vgpus() {
    let demand = |number| Demand { vgpu: VgpuKey(number), slots: 3, rate: EVERY_ROUND };
    let demands = [demand(0), demand(1), demand(2)];
    let problem = Problem { region: 8, demands: &demands, hidden: 0 };
    let uncut = best_from(&demands, 3, problem.region - 3, 0);
    let best = most_of_all_shapes(&problem);
    assert!(uncut < Some(best), "{uncut:?} of {best}");
    assert_eq!(value(&problem, &program(&problem)), best);
}
