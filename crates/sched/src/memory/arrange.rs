//! Which of its slots each part of a vGPU gets.
//!
//! A placement says which slots a vGPU has. Where it has parts that a turn does not need, another
//! of its slots may do as well as the one that a part had last, and hold something that is needed
//! less: several vGPUs that go through their memory at one pace, each from its first slot on, would
//! write over what the one before is about to go on with. So what comes is given the slot that was
//! used longest ago, whoever used it, as demand paging does with all slots of a device.

use alloc::vec::Vec;

/// A slot of a vGPU whose turn begins or goes on, and the part that has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seat {
    /// The part is needed, or expected to be, in this turn.
    pub is_due: bool,
    /// The part is in the slot.
    pub is_there: bool,
    /// When what is in the slot was used last, whoever's it is. 0 for nothing.
    pub used: u64,
}

/// Pairs of seats whose parts change places: the first one's has to come, and comes into the
/// second one's slot, which was used longer ago and whose part is not due.
pub fn arrange(seats: &[Seat]) -> Vec<(usize, usize)> {
    let all = 0..seats.len();
    let mut coming: Vec<usize> =
        all.clone().filter(|at| seats[*at].is_due && !seats[*at].is_there).collect();
    let mut free: Vec<usize> = all.filter(|at| !seats[*at].is_due).collect();
    // Whose slots were used last are moved first, each to the one that was used longest ago.
    coming.sort_by_key(|at| core::cmp::Reverse(seats[*at].used));
    free.sort_by_key(|at| seats[*at].used);
    let is_older = |(from, to): &(usize, usize)| seats[*to].used < seats[*from].used;
    coming.into_iter().zip(free).take_while(is_older).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn seat(is_due: bool, is_there: bool, used: u64) -> Seat {
        Seat { is_due, is_there, used }
    }

    #[test]
    fn what_comes_gets_the_slot_that_was_used_longest_ago() {
        let seats = [
            seat(true, false, 9),
            seat(false, false, 3),
            seat(false, true, 2),
            seat(true, true, 1),
            seat(true, false, 5),
        ];
        assert_eq!(arrange(&seats), [(0, 2), (4, 1)]);
    }

    #[test]
    fn nothing_moves_for_no_gain() {
        assert_eq!(arrange(&[seat(true, false, 3), seat(false, false, 3)]), []);
        assert_eq!(arrange(&[seat(true, true, 9), seat(false, false, 1)]), []);
        assert_eq!(arrange(&[seat(true, false, 0), seat(false, true, 1)]), []);
    }

    proptest! {
        /// No part takes part in two exchanges, what is due and there stays, and what is written
        /// over was used no later than what would have been: the slots' ages, sorted.
        #[test]
        fn what_is_written_over_is_never_newer(
            seats in prop::collection::vec((any::<bool>(), any::<bool>(), 0_u64..8), 0..12)
        ) {
            let seats: Vec<Seat> =
                seats.into_iter().map(|(due, there, used)| seat(due, there, used)).collect();
            let pairs = arrange(&seats);
            let mut seen: Vec<usize> = pairs.iter().flat_map(|(one, other)| [*one, *other]).collect();
            seen.sort_unstable();
            prop_assert!(seen.windows(2).all(|two| two[0] != two[1]));
            for (from, to) in &pairs {
                prop_assert!(seats[*from].is_due && !seats[*from].is_there && !seats[*to].is_due);
                prop_assert!(seats[*to].used < seats[*from].used);
            }
            let written = |moves: &[(usize, usize)]| {
                let coming = (0..seats.len()).filter(|at| seats[*at].is_due && !seats[*at].is_there);
                let slot = |at: usize| moves.iter().find(|(one, _)| *one == at).map_or(at, |two| two.1);
                let mut used: Vec<u64> = coming.map(|at| seats[slot(at)].used).collect();
                used.sort_unstable();
                used
            };
            let (kept, moved) = (written(&[]), written(&pairs));
            prop_assert!(kept.iter().zip(&moved).all(|(kept, moved)| moved <= kept));
        }
    }
}
