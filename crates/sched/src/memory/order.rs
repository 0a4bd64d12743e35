//! The order of turns that suits a layout.

use alloc::collections::BTreeMap;

use super::layout::Layout;
use crate::key::VgpuKey;

/// The order of turns that suits a layout, round after round.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TurnOrder {
    turns: BTreeMap<VgpuKey, usize>,
}

impl TurnOrder {
    /// That of a layout.
    pub fn of(layout: &Layout) -> Self {
        let turn = |(turn, index): (usize, &usize)| (layout.places[*index].vgpu, turn);
        Self { turns: layout.order.iter().enumerate().map(turn).collect() }
    }

    /// Turns from that of `last`, or from the first one, until that of a vGPU; none of one that has
    /// no place.
    pub fn distance(&self, last: Option<VgpuKey>, vgpu: VgpuKey) -> Option<usize> {
        let turn = *self.turns.get(&vgpu)?;
        let count = self.turns.len();
        let last = last.and_then(|last| self.turns.get(&last));
        Some(last.map_or(turn, |last| (turn + count - last - 1) % count))
    }

    /// Who of these is the first after `last`.
    pub fn next(&self, last: VgpuKey, among: &[VgpuKey]) -> Option<VgpuKey> {
        let distance = |vgpu: VgpuKey| Some((self.distance(Some(last), vgpu)?, vgpu));
        among.iter().copied().filter_map(distance).min().map(|(_, vgpu)| vgpu)
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::super::layout::{Place, Run};
    use super::*;

    const fn key(vgpu: u32) -> VgpuKey {
        VgpuKey(vgpu)
    }

    #[test]
    fn who_comes_after_whom_goes_round() {
        let place = |vgpu| Place { vgpu: key(vgpu), runs: vec![Run { start: 0, len: 1 }] };
        let places = vec![place(7), place(3), place(5)];
        let order = TurnOrder::of(&Layout { region: 1, places, order: vec![2, 0, 1] });
        let all = [key(3), key(5), key(7)];
        assert_eq!(order.next(key(5), &all), Some(key(7)));
        assert_eq!(order.next(key(7), &all), Some(key(3)));
        assert_eq!(order.next(key(3), &all), Some(key(5)), "and round again");
        assert_eq!(order.next(key(5), &[key(3), key(5)]), Some(key(3)));
        assert_eq!(order.next(key(5), &[key(5)]), Some(key(5)), "it is the last of them");
        assert_eq!(order.next(key(9), &all), Some(key(5)), "from the first one on");
        assert_eq!(order.next(key(5), &[key(9)]), None, "who has no place has no turn here");
    }
}
