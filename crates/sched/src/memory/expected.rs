//! How often a slot is expected to be copied, from the rates of those that have it.
//!
//! In each round each vGPU has a turn with its rate as the chance, whatever the others do. A turn
//! of vGPU i, with chance p, copies the slot unless nobody else had it since i's last turn. Let q
//! be the chance that no other occupant has a turn in a round. i's last turn was k rounds ago with
//! chance p (1 - p)^(k-1), and nobody came between with chance q^k, whatever the order within a
//! round. So the slot is still i's with chance p q / (1 - (1 - p) q).
//!
//! Busy vGPUs (q = 0) copy at every turn, as in DymGPU §2.3; with rare turns the chance is that of
//! drawing each turn from all, i's rate over the sum of rates.

use alloc::vec;

use super::EVERY_ROUND;

const EVERY: u64 = EVERY_ROUND as u64;
/// A chance of one.
const ONE: u64 = 1 << 30;

/// Copies of one slot per 1,000 rounds in thousandths, for its occupants' rates, which are at most
/// [`EVERY_ROUND`]. Chances are rounded down to 2⁻³⁰ at each step, in the order given.
pub(super) fn slot_milli(rates: &[u32]) -> u64 {
    let sleeps = |all: u64, rate: u32| all * (EVERY - u64::from(rate)) / EVERY;
    // The chance that nobody from a place on has a turn: 0 up to some place, where there are many.
    let mut after = vec![0; rates.len() + 1];
    after[rates.len()] = ONE;
    let mut all = ONE;
    for (place, &rate) in rates.iter().enumerate().rev() {
        all = sleeps(all, rate);
        if all == 0 {
            break;
        }
        after[place] = all;
    }
    let (mut before, mut sum) = (ONE, 0);
    for (place, &rate) in rates.iter().enumerate() {
        let others = before * after[place + 1] / ONE;
        sum += of_one(u64::from(rate), others);
        before = sleeps(before, rate);
    }
    sum
}

fn of_one(rate: u64, others: u64) -> u64 {
    let turns = rate * 1_000;
    if others == 0 {
        return turns;
    }
    // Nothing to divide by only where nobody ever has a turn.
    let kept = (turns * rate * others).checked_div(EVERY * ONE - (EVERY - rate) * others);
    turns - kept.unwrap_or(turns)
}
