//! Invariants at every step, against a device that really has contents.

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

use proptest::prelude::*;

use super::*;

/// What a part of a vGPU's memory has: whose it is, which, and how often it was written.
type Content = (VgpuKey, usize, u64);

/// A device whose private copies are written back only when a plan says so.
#[derive(Default)]
struct Device {
    slots: Vec<Option<Content>>,
    private: BTreeMap<(VgpuKey, usize), Content>,
    /// What each part must have.
    truth: BTreeMap<(VgpuKey, usize), u64>,
    /// A fault: so many copies are carried out, then one is skipped.
    skip_after: Option<usize>,
}

impl Device {
    fn new(region: usize) -> Self {
        Self { slots: vec![None; region], ..Self::default() }
    }

    fn carry_out(&mut self, steps: &mut Vec<Step>) {
        for step in steps.drain(..) {
            match step {
                Step::Save { vgpu, part, slot } => {
                    let content = self.slots[slot].take();
                    // Of a vGPU that is gone nothing is kept.
                    if let Some(content) = content.filter(|content| content.0 == vgpu) {
                        self.private.insert((vgpu, part), content);
                    }
                }
                Step::Copy { vgpu, part, slot } => {
                    if self.skip_after == Some(0) {
                        self.skip_after = None;
                        continue;
                    }
                    self.skip_after = self.skip_after.map(|left| left - 1);
                    let fresh = (vgpu, part, 0);
                    let content = self.private.get(&(vgpu, part)).copied().unwrap_or(fresh);
                    self.slots[slot] = Some(content);
                }
            }
        }
    }

    /// The resident vGPU finds all of its memory as it left it, and writes it again.
    fn run(&mut self, place: &Place) -> Result<(), String> {
        for (part, slot) in place.slots().enumerate() {
            let written = self.truth.entry((place.vgpu, part)).or_default();
            let expected = Some((place.vgpu, part, *written));
            if self.slots[slot] != expected {
                return Err(format!("slot {slot}: {:?}, not {expected:?}", self.slots[slot]));
            }
            *written += 1;
            self.slots[slot] = Some((place.vgpu, part, *written));
        }
        Ok(())
    }
}

/// Ten rounds of everybody, with the next one's slots written in between.
fn rounds(layout: &Layout, device: &mut Device, ahead: usize) -> Result<(), String> {
    let mut table = Table::new(layout.region);
    let mut steps = Vec::new();
    table.set_layout(layout, &mut steps);
    let turns: Vec<VgpuKey> = layout.order.iter().map(|index| layout.places[*index].vgpu).collect();
    for turn in 0..10 * turns.len() {
        let [now, next, later] = [turn, turn + 1, turn + 2].map(|turn| turns[turn % turns.len()]);
        table.switch_to(now, &mut steps).unwrap();
        device.carry_out(&mut steps);
        table.check().map_err(|broken| broken.to_string())?;
        for _ in 0..ahead {
            if table.prefetch(next, &[], &mut steps).is_none() {
                table.prefetch(later, &[next], &mut steps);
            }
            device.carry_out(&mut steps);
            table.check().map_err(|broken| broken.to_string())?;
        }
        device.run(layout.place(now).unwrap())?;
    }
    Ok(())
}

#[test]
fn one_skipped_copy_is_detected() {
    let layout = place("size", REGION, &mixed(15));
    let copies = layout.copies_per_round();
    for skipped in 0..2 * copies {
        let mut device = Device { skip_after: Some(skipped), ..Device::new(REGION) };
        assert!(rounds(&layout, &mut device, 0).is_err(), "copy {skipped} was not missed");
    }
    rounds(&layout, &mut Device::new(REGION), 0).unwrap();
}

#[test]
fn a_slot_of_somebody_else_breaks_the_rules() {
    let layout = place("size", 10, &demands(&[6, 4, 2]));
    let mut table = Table::new(10);
    table.set_layout(&layout, &mut Vec::new());
    table.switch_to(VgpuKey(0), &mut Vec::new()).unwrap();
    table.check().unwrap();
    table.give_away(3, VgpuKey(1));
    assert_eq!(
        table.check().unwrap_err().to_string(),
        "v0 runs and does not own slot 3 as its part 3"
    );
    table.switch_to(VgpuKey(0), &mut Vec::new()).unwrap();
    table.give_away(9, VgpuKey(0));
    assert_eq!(table.check().unwrap_err(), Broken::Stray { vgpu: VgpuKey(0), slot: 9 });
}

#[test]
fn a_vgpu_without_a_place_has_no_turn() {
    let mut table = Table::new(4);
    table.set_layout(&place("size", 4, &demands(&[2])), &mut Vec::new());
    assert_eq!(table.switch_to(VgpuKey(7), &mut Vec::new()), None);
    assert_eq!(table.prefetch(VgpuKey(7), &[], &mut Vec::new()), None);
    assert_eq!(table.resident(), None);
}

#[test]
fn what_the_resident_uses_is_never_written() {
    let layout = place("size", 4, &demands(&[4, 4]));
    let mut table = Table::new(4);
    let mut steps = Vec::new();
    table.set_layout(&layout, &mut steps);
    assert_eq!(table.switch_to(VgpuKey(0), &mut steps), Some(4));
    assert_eq!(table.lacks(VgpuKey(1)), 4);
    assert_eq!(table.prefetch(VgpuKey(1), &[], &mut steps), None);
}

#[test]
fn copies_in_rounds_are_those_of_the_layout() {
    for name in NAMES {
        let fifteen = mixed(15);
        let layout = place(name, REGION, &fifteen);
        let mut table = Table::new(REGION);
        table.set_layout(&layout, &mut Vec::new());
        let mut round = || -> usize {
            let turns = fifteen.iter().map(|demand| demand.vgpu);
            turns.map(|vgpu| table.switch_to(vgpu, &mut Vec::new()).unwrap()).sum()
        };
        assert_eq!(round(), 165, "{name}: the first round writes everything");
        assert_eq!(round(), layout.copies_per_round(), "{name}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn nothing_is_lost_or_seen_by_others((region, demands) in small(7, 16), ahead in 0..6_usize) {
        prop_assume!(!demands.is_empty());
        for name in NAMES {
            let layout = place(name, region, &demands);
            let result = rounds(&layout, &mut Device::new(region), ahead);
            prop_assert_eq!(result, Ok(()), "{}", name);
        }
    }

    #[test]
    fn a_manager_keeps_everything_at_every_step(
        name in prop::sample::select(NAMES.to_vec()),
        events in prop::collection::vec((0..6_u8, 0..8_u32, 1..=16_usize), 1..120),
    ) {
        let mut manager = Manager::new(monitored::config(name, 16));
        let mut device = Device::new(16);
        let (mut steps, mut now) = (Vec::new(), 0);
        for (what, key, slots) in events {
            let vgpu = VgpuKey(key);
            now += 3_000_000_000;
            match what {
                0 => drop(manager.create(now, vgpu, slots, &mut steps)),
                1 => {
                    if manager.destroy(now, vgpu, &mut steps).is_ok() {
                        device.carry_out(&mut steps);
                        device.private.retain(|(owner, _), _| *owner != vgpu);
                        device.truth.retain(|(owner, _), _| *owner != vgpu);
                    }
                }
                2 => drop(manager.handle_timeout(now, &mut steps).unwrap()),
                _ => {
                    let woken = manager.wake(now, vgpu, &mut steps).is_ok();
                    let switched = manager.switch_to(vgpu, &mut steps).is_some();
                    prop_assert_eq!(woken, switched, "who wakes has a place");
                }
            }
            manager.prefetch(VgpuKey(key + 1), &[], &mut steps);
            device.carry_out(&mut steps);
            prop_assert_eq!(manager.table().check(), Ok(()));
            if what > 2 && let Some(place) = manager.layout().place(vgpu) {
                prop_assert_eq!(device.run(place), Ok(()));
                manager.charge(now, vgpu, 16_000_000);
            }
        }
    }
}
