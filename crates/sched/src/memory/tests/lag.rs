//! The order of turns that suits a layout, against the lag bound: σ is all that it may take.

use alloc::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::invariants::{Lag, LagBound};
use crate::key::Weight;

/// Turns are multiples of it: what divides by every weight leaves tags exact.
const UNIT_NS: u64 = 12_000;
const TURN_NS: u64 = 500 * UNIT_NS;
/// By which a turn may overrun.
const PIECE_NS: u64 = 100 * UNIT_NS;

/// Turns of busy vGPUs, each as long as it is in `lengths`, in the order of `ahead`. What switches
/// take is nobody's service, however long it is, and moves no tag.
fn bent(
    layout: &Layout,
    weights: &[u32],
    lengths: &[u64],
    ahead: Ahead,
    bound: &mut LagBound,
) -> Result<usize, Lag> {
    let mut table = Table::new(layout.region);
    table.set_layout(layout, &mut Vec::new());
    let mut waiting: Vec<Waiting> = Vec::new();
    for (place, weight) in layout.places.iter().zip(weights) {
        let number = bound.add(Weight::new(*weight).unwrap()).unwrap();
        bound.submitted(number, PIECE_NS);
        bound.set_backlogged(number, true);
        waiting.push(Waiting { vgpu: place.vgpu, tag_ns: 0 });
    }
    let (mut last, mut copies) = (None, 0);
    for length_ns in lengths {
        let vgpu = ahead.next(layout, &table, &waiting, last).unwrap();
        let number = waiting.iter().position(|one| one.vgpu == vgpu).unwrap();
        copies += table.switch_to(vgpu, &mut Vec::new()).unwrap();
        waiting[number].tag_ns += length_ns / u64::from(weights[number]);
        bound.served(number, *length_ns)?;
        ahead.write(layout, &mut table, &waiting, ahead.hidden, &mut Vec::new());
        last = Some(vgpu);
    }
    Ok(copies)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn an_order_that_bends_stays_within_the_lag_bound(
        (region, demands) in small(7, 16),
        weights in prop::collection::vec(1..=4_u32, 7),
        lengths in prop::collection::vec(1..=600_u64, 1..200),
        slack in 0..2_000_u64,
        hidden in 0..6_usize,
    ) {
        prop_assume!(!demands.is_empty());
        let lengths: Vec<u64> = lengths.into_iter().map(|length| length * UNIT_NS).collect();
        let slack_ns = slack * UNIT_NS;
        for name in NAMES {
            let layout = place(name, region, &demands);
            let mut bound = LagBound::new(TURN_NS, slack_ns);
            let ahead = Ahead { sigma_ns: Some(slack_ns), hidden };
            let result = bent(&layout, &weights, &lengths, ahead, &mut bound);
            prop_assert!(result.is_ok(), "{}: {}", name, result.unwrap_err());
        }
    }
}

/// The control: what bends by more than the bound says breaks it, and saves copies by that.
#[test]
fn more_than_the_slack_of_the_bound_breaks_it() {
    let layout = place("whole", 4, &demands(&[4, 4]));
    let (weights, lengths) = ([1, 1], [TURN_NS; 40]);
    let of = |sigma_ns, slack_ns| {
        let ahead = Ahead { sigma_ns: Some(sigma_ns), hidden: 0 };
        bent(&layout, &weights, &lengths, ahead, &mut LagBound::new(TURN_NS, slack_ns))
    };
    // Of equal tags the one goes on that has its slots: two turns of each.
    assert_eq!(of(0, 0).unwrap(), 4 * 21);
    // Five turns of one, and then ten of each: what is ahead by four may go on.
    let copies = of(4 * TURN_NS, 4 * TURN_NS).unwrap();
    assert!(copies < 4 * 8, "{copies} copies in 40 turns");
    let lag = of(8 * TURN_NS, 2 * TURN_NS).unwrap_err();
    assert!(lag.lag > lag.bound, "{lag}");
}
