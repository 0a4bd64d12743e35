//! The paper's examples, the tables re-derived from it, and optimality by exhaustive search.

use alloc::vec::Vec;

use proptest::prelude::*;

use super::paper::{HIDDEN, QUANTUM_NS, REGION, mixed};
use super::*;

mod dynamic;
mod lag;
mod monitored;
mod stepwise;

fn demands(slots: &[usize]) -> Vec<Demand> {
    paper::demands(slots.iter().copied())
}

fn place(name: &str, region: usize, demands: &[Demand]) -> Layout {
    let problem = Problem { region, demands, hidden: HIDDEN };
    by_name(name).unwrap().place(&problem).unwrap()
}

fn copies(name: &str, region: usize, demands: &[Demand]) -> usize {
    place(name, region, demands).copies_per_round()
}

fn starts(layout: &Layout) -> Vec<usize> {
    layout.places.iter().map(|place| place.runs[0].start).collect()
}

/// Every slot is inside the region, nobody has one twice, and everybody has what was asked for.
pub(super) fn assert_sound(layout: &Layout, demands: &[Demand]) {
    assert_eq!(layout.places.len(), demands.len());
    for (place, demand) in layout.places.iter().zip(demands) {
        let mut slots: Vec<usize> = place.slots().collect();
        assert!(slots.iter().all(|slot| *slot < layout.region), "{layout:?}");
        slots.sort_unstable();
        slots.dedup();
        assert_eq!((place.vgpu, slots.len()), (demand.vgpu, demand.slots), "{layout:?}");
    }
    let mut order = layout.order.clone();
    order.sort_unstable();
    assert_eq!(order, (0..demands.len()).collect::<Vec<_>>(), "everybody has one turn");
}

#[test]
fn the_tables_rederived_from_the_paper_match() {
    for (count, expected) in paper::REDERIVED {
        let names = paper::REDERIVED_NAMES;
        let found = names.map(|name| copies(name, REGION, &mixed(count)));
        assert_eq!(found, expected, "{count} vGPUs: {names:?}");
    }
}

#[test]
fn figure_4_four_vgpus_of_six_slots_on_twelve() {
    let four = demands(&[6, 6, 6, 6]);
    assert_eq!(copies("scores", 12, &four), 24);
    assert_eq!(copies("size", 12, &four), 18);
    assert_eq!(copies("exact", 12, &four), 18);
}

#[test]
fn scores_take_the_leftmost_run_of_the_least_score() {
    // "Slots 4 and 5" of the paper count from one, and the first of them is taken.
    assert_eq!(starts(&place("scores", 5, &demands(&[4, 2]))), [0, 3]);
    assert_eq!(starts(&place("scores", 4, &demands(&[2, 1, 1, 1]))), [0, 2, 3, 0]);
}

#[test]
fn the_example_of_algorithm_1() {
    let layout = place("size", 5, &demands(&[4, 4, 3, 2]));
    assert_eq!(starts(&layout), [0, 1, 1, 1]);
    let shared: Vec<usize> = layout.occupants().into_iter().filter(|count| *count > 1).collect();
    assert_eq!((shared.len(), layout.copies_per_round()), (3, 11));
}

#[test]
fn the_end_of_algorithm_1_is_defined() {
    let all = |slots: &[usize]| starts(&place("size", 10, &demands(slots)));
    assert_eq!(all(&[]), [0; 0]);
    assert_eq!(all(&[3, 2]), [0, 3], "everything fits, with room to spare");
    assert_eq!(all(&[6, 4]), [0, 6], "an exact fit");
    assert_eq!(all(&[6, 4, 2]), [0, 6, 6], "one more than an exact fit goes on the last");
    assert_eq!(all(&[10, 10]), [0, 0], "as large as the region");
    assert_eq!(all(&[2, 10]), [0, 0]);
}

#[test]
fn algorithm_2_puts_those_that_run_most_alone() {
    let mut four = demands(&[4, 4, 3, 2]);
    for (demand, rate) in four.iter_mut().zip([100, 200, 300, 1_000]) {
        demand.rate = rate;
    }
    assert_eq!(starts(&place("utilization", 8, &four)), [4, 4, 2, 0]);
    assert_eq!(starts(&place("utilization", 20, &four)), [9, 5, 2, 0], "everything fits");
    assert_eq!(starts(&place("utilization", 13, &four)), [9, 5, 2, 0], "an exact fit");
}

#[test]
fn what_cannot_be_placed_is_refused_with_words() {
    let place = |name, demands: &[Demand]| {
        let problem = Problem { region: 8, demands, hidden: HIDDEN };
        by_name(name).unwrap().place(&problem)
    };
    for name in NAMES {
        assert!(!by_name(name).unwrap().summary().is_empty());
        assert_eq!(
            place(name, &demands(&[2, 9])).unwrap_err().to_string(),
            "v1 asks for 9 slots and the region has 8: lower its memory"
        );
        let error = place(name, &demands(&[0])).unwrap_err();
        assert_eq!(error, PlaceError::Empty { vgpu: VgpuKey(0) });
        let mut often = demands(&[1]);
        often[0].rate = EVERY_ROUND + 1;
        assert_eq!(
            place(name, &often).unwrap_err().to_string(),
            "v0 has a rate of 1001: a rate is at most 1000 turns per 1,000 rounds"
        );
        let twice = [demands(&[1])[0], demands(&[1])[0]];
        assert_eq!(place(name, &twice).unwrap_err(), PlaceError::Twice { vgpu: VgpuKey(0) });
    }
    assert_eq!(
        by_name("first").unwrap_err().to_string(),
        "placement = \"first\" is not known: placement is one of scores, size, utilization, exact, \
         scattered, pipelined, whole, demand"
    );
}

#[test]
fn two_piles_take_turns() {
    let fifteen = mixed(15);
    let layout = place("pipelined", REGION, &fifteen);
    assert_sound(&layout, &fifteen);
    let turns = layout.order.iter().zip(layout.order.iter().cycle().skip(1));
    for (now, next) in turns {
        let (now, next) = (&layout.places[*now], &layout.places[*next]);
        let occupants = layout.occupants();
        assert!(
            now.slots().all(|slot| occupants[slot] < 2 || !next.has(slot)),
            "{now:?} hides nothing of {next:?}"
        );
    }
}

#[test]
fn the_successor_is_the_next_in_order_unless_another_leaves_less_to_write() {
    let candidate =
        |index, tag_ns, distance, visible| Candidate { index, tag_ns, distance, visible };
    let three = [candidate(0, 0, 2, 5), candidate(1, 16, 1, 0), candidate(2, 0, 3, 3)];
    assert_eq!(successor(&three, 0), Some(2));
    assert_eq!(successor(&three, 15), Some(2));
    assert_eq!(successor(&three, 16), Some(1));
    assert_eq!(successor(&[], 16), None);
}

#[test]
fn many_vgpus_are_placed_soundly() {
    let slots: Vec<usize> = (0..1_000).map(|key| 1 + key * 7_919 % 40).collect();
    let mut many = demands(&slots);
    for (key, demand) in (0..).zip(&mut many) {
        demand.rate = 1 + key * 613 % EVERY_ROUND;
    }
    let scattered = place("scattered", 10_000, &many).copies_at_most(&many);
    for name in NAMES {
        let layout = place(name, 10_000, &many);
        assert_sound(&layout, &many);
        assert!(layout.copies_at_most(&many) >= scattered, "{name} beats the bound");
    }
    let exact = place("exact", 10_000, &many);
    let rival = place("utilization", 10_000, &many);
    assert!(exact.copies_expected_milli(&many) <= rival.copies_expected_milli(&many));
}

#[test]
fn a_region_that_no_device_has_is_refused() {
    let problem = Problem { region: REGION_MAX + 1, demands: &demands(&[1]), hidden: HIDDEN };
    let error = by_name("size").unwrap().place(&problem).unwrap_err();
    assert_eq!(error, PlaceError::Region { region: REGION_MAX + 1 });
    // The largest one there is, with the most that many vGPUs can ask for, overflows nothing.
    let large = demands(&[REGION_MAX; 20]);
    assert_eq!(starts(&place("utilization", REGION_MAX, &large)), [0; 20]);
}

#[test]
fn expected_copies_are_those_of_a_table_with_drawn_turns() {
    // Three vGPUs on one pile and beside it, 40,000 rounds, a fixed linear congruential generator.
    let mut three = demands(&[4, 3, 3]);
    for (demand, rate) in three.iter_mut().zip([900, 400, 150]) {
        demand.rate = rate;
    }
    let layout = place("size", 6, &three);
    let mut table = Table::new(6);
    table.set_layout(&layout, &mut Vec::new());
    let (mut state, mut copies) = (1_u64, 0);
    for _ in 0..40_000 {
        for demand in &three {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            if (state >> 33) % 1_000 < u64::from(demand.rate) {
                copies += table.switch_to(demand.vgpu, &mut Vec::new()).unwrap() as u64;
            }
        }
    }
    let found = copies * 1_000 / 40;
    let expected = layout.copies_expected_milli(&three);
    assert!(found.abs_diff(expected) * 50 < expected, "{found} beside {expected}");
    let other = layout.copies_if_rare_milli(&three);
    assert!(found.abs_diff(other) * 50 > other, "the control: rare turns are another thing");
}

/// Up to `most` vGPUs and a region that each of them fits into.
pub(super) fn small(most: usize, region_max: usize) -> impl Strategy<Value = (usize, Vec<Demand>)> {
    let sizes = (1..=region_max).prop_flat_map(move |region| {
        (Just(region), prop::collection::vec((1..=region, 0..=EVERY_ROUND), 0..=most))
    });
    sizes.prop_map(|(region, rows)| {
        let slots: Vec<usize> = rows.iter().map(|row| row.0).collect();
        let mut all = demands(&slots);
        for (demand, row) in all.iter_mut().zip(rows) {
            demand.rate = row.1;
        }
        (region, all)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn every_placement_is_sound((region, demands) in small(8, 20)) {
        for name in NAMES {
            assert_sound(&place(name, region, &demands), &demands);
        }
    }

    #[test]
    fn algorithm_1_is_optimal_for_equal_rates((region, mut demands) in small(5, 8)) {
        demands.iter_mut().for_each(|demand| demand.rate = EVERY_ROUND);
        let problem = Problem { region, demands: &demands, hidden: HIDDEN };
        let found = place("size", region, &demands).copies_at_most(&demands);
        prop_assert_eq!(found, exhaustive::contiguous(&problem));
    }

    #[test]
    fn exact_has_the_least_expected_copies((region, demands) in small(5, 8)) {
        let problem = Problem { region, demands: &demands, hidden: HIDDEN };
        prop_assert!(is_proven(&problem));
        let found = place("exact", region, &demands).copies_expected_milli(&demands);
        prop_assert_eq!(found, exhaustive::contiguous_expected_milli(&problem));
    }

    #[test]
    fn exact_is_never_above_the_others((region, demands) in small(12, 30)) {
        let of = |name| place(name, region, &demands).copies_expected_milli(&demands);
        for rival in ["size", "utilization"] {
            prop_assert!(of("exact") <= of(rival), "{}", rival);
        }
    }

    #[test]
    fn busy_vgpus_copy_what_they_share((region, mut demands) in small(8, 20)) {
        demands.iter_mut().for_each(|demand| demand.rate = EVERY_ROUND);
        for name in NAMES {
            let layout = place(name, region, &demands);
            let expected = layout.copies_expected_milli(&demands);
            prop_assert_eq!(expected, 1_000 * layout.copies_at_most(&demands));
        }
    }

    #[test]
    fn scattered_is_optimal_for_any_rates((region, demands) in small(4, 6)) {
        let problem = Problem { region, demands: &demands, hidden: HIDDEN };
        let found = place("scattered", region, &demands).copies_at_most(&demands);
        prop_assert_eq!(found, exhaustive::scattered(&problem));
    }

    #[test]
    fn fewer_copies_are_expected_than_at_most((region, demands) in small(8, 20)) {
        for name in NAMES {
            let layout = place(name, region, &demands);
            let most = 1_000 * layout.copies_at_most(&demands);
            prop_assert!(layout.copies_expected_milli(&demands) <= most);
            prop_assert!(layout.copies_if_rare_milli(&demands) <= most);
        }
    }
}
