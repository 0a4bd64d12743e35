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
pub struct HeldSlot {
    /// The part is needed, or expected to be, in this turn.
    pub is_due: bool,
    /// The part is in the slot.
    pub is_there: bool,
    /// When what is in the slot was used last, whoever's it is. 0 for nothing.
    pub used: u64,
}

/// Pairs of slots whose parts change places: the first one's has to come, and comes into the
/// second one's slot, which was used longer ago and whose part is not due.
pub fn arrange(slots: &[HeldSlot]) -> Vec<(usize, usize)> {
    let all = 0..slots.len();
    let mut coming: Vec<usize> =
        all.clone().filter(|at| slots[*at].is_due && !slots[*at].is_there).collect();
    let mut free: Vec<usize> = all.filter(|at| !slots[*at].is_due).collect();
    // Whose slots were used last are moved first, each to the one that was used longest ago.
    coming.sort_by_key(|at| core::cmp::Reverse(slots[*at].used));
    free.sort_by_key(|at| slots[*at].used);
    let is_older = |(from, to): &(usize, usize)| slots[*to].used < slots[*from].used;
    coming.into_iter().zip(free).take_while(is_older).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn held(is_due: bool, is_there: bool, used: u64) -> HeldSlot {
        HeldSlot { is_due, is_there, used }
    }

    #[test]
    fn what_comes_gets_the_slot_that_was_used_longest_ago() {
        let slots = [
            held(true, false, 9),
            held(false, false, 3),
            held(false, true, 2),
            held(true, true, 1),
            held(true, false, 5),
        ];
        assert_eq!(arrange(&slots), [(0, 2), (4, 1)]);
    }

    #[test]
    fn nothing_moves_for_no_gain() {
        assert_eq!(arrange(&[held(true, false, 3), held(false, false, 3)]), []);
        assert_eq!(arrange(&[held(true, true, 9), held(false, false, 1)]), []);
        assert_eq!(arrange(&[held(true, false, 0), held(false, true, 1)]), []);
    }

    proptest! {
        /// No part takes part in two exchanges, what is due and there stays, and what is written
        /// over was used no later than what would have been: the slots' ages, sorted.
        #[test]
        fn what_is_written_over_is_never_newer(
            slots in prop::collection::vec((any::<bool>(), any::<bool>(), 0_u64..8), 0..12)
        ) {
            let slots: Vec<HeldSlot> =
                slots.into_iter().map(|(due, there, used)| held(due, there, used)).collect();
            let pairs = arrange(&slots);
            let mut seen: Vec<usize> = pairs.iter().flat_map(|(one, other)| [*one, *other]).collect();
            seen.sort_unstable();
            prop_assert!(seen.windows(2).all(|two| two[0] != two[1]));
            for (from, to) in &pairs {
                prop_assert!(slots[*from].is_due && !slots[*from].is_there && !slots[*to].is_due);
                prop_assert!(slots[*to].used < slots[*from].used);
            }
            let written = |moves: &[(usize, usize)]| {
                let coming = (0..slots.len()).filter(|at| slots[*at].is_due && !slots[*at].is_there);
                let slot = |at: usize| moves.iter().find(|(one, _)| *one == at).map_or(at, |two| two.1);
                let mut used: Vec<u64> = coming.map(|at| slots[slot(at)].used).collect();
                used.sort_unstable();
                used
            };
            let (kept, moved) = (written(&[]), written(&pairs));
            prop_assert!(kept.iter().zip(&moved).all(|(kept, moved)| moved <= kept));
        }
    }
}
