//! Ten million decisions of random histories, from a seed, with every invariant checked. The same
//! histories at any length: `cargo xtask soak`.

use crate::model::Random;
use crate::model::histories::{Played, play};

/// Decisions of one history.
const HISTORY: u64 = 10_000;

#[test]
fn ten_million_decisions_break_no_invariant() {
    let mut total = Played::default();
    let mut seed = 1;
    while total.decisions < 10_000_000 {
        total.add(play(&mut Random(seed), HISTORY));
        seed += 1;
    }
    assert!(total.turns > 1_000_000, "{total:?} in {seed} histories");
}

/// A turn that began with a quantum in flight went on beyond it.
#[test]
fn the_history_that_broke_the_lag_bound_does_so_no_more() {
    play(&mut Random(16_613), HISTORY);
}
