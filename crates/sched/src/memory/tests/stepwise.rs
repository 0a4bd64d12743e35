//! Invariants at every step, against a device that really has contents.

use alloc::vec::Vec;

use proptest::prelude::*;

use super::contents::Contents;
use super::*;

/// Ten rounds of everybody, with the next one's slots written in between.
fn rounds(layout: &Layout, device: &mut Contents, ahead: usize) -> Result<(), String> {
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
        device.run(layout.place(now).unwrap()).map_err(|lost| lost.to_string())?;
    }
    Ok(())
}

#[test]
fn one_skipped_copy_is_detected() {
    let layout = place("size", REGION, &mixed(15));
    let copies = layout.copies_per_round();
    for skipped in 0..2 * copies {
        let mut device = Contents::skipping(REGION, skipped);
        assert!(rounds(&layout, &mut device, 0).is_err(), "copy {skipped} was not missed");
    }
    rounds(&layout, &mut Contents::new(REGION), 0).unwrap();
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
            let result = rounds(&layout, &mut Contents::new(region), ahead);
            prop_assert_eq!(result, Ok(()), "{}", name);
        }
    }

    #[test]
    fn a_manager_keeps_everything_at_every_step(
        name in prop::sample::select(NAMES.to_vec()),
        rule in prop::sample::select(alloc::vec![Rule::Gain, Rule::Dymgpu]),
        events in prop::collection::vec((0..9_u8, 0..8_u32, 1..=16_usize), 1..120),
    ) {
        let mut driven = Driven::new(ManagerConfig { rule, ..monitored::config(name, 16) });
        for (what, key, slots) in events {
            prop_assert_eq!(driven.event(what, VgpuKey(key), slots), Ok(()));
        }
    }
}

/// A manager with a device and whoever has the turn on it.
struct Driven {
    manager: Manager,
    device: Contents,
    /// Who has the turn, where it lay at its begin.
    running: Option<Place>,
    steps: Vec<Step>,
    now_ns: u64,
}

impl Driven {
    fn new(config: ManagerConfig) -> Self {
        let (manager, device) = (Manager::new(config), Contents::new(config.region));
        Self { manager, device, running: None, steps: Vec::new(), now_ns: 0 }
    }

    /// One event; then whoever has the turn goes on and must find all of its memory.
    fn event(&mut self, what: u8, vgpu: VgpuKey, slots: usize) -> Result<(), String> {
        self.now_ns += 3_000_000_000;
        let (now, steps) = (self.now_ns, &mut self.steps);
        match what {
            0 | 1 => drop(self.manager.create(now, vgpu, slots, steps)),
            2 => {
                if self.manager.destroy(now, vgpu, steps).is_ok() {
                    self.device.carry_out(steps);
                    self.device.forget(vgpu);
                    self.running.take_if(|place| place.vgpu == vgpu);
                }
            }
            3 => drop(self.manager.handle_timeout(now, steps).unwrap()),
            4 => self.manager.rest(now, vgpu),
            5 => {
                self.running = None;
                self.manager.end_turn(steps).unwrap();
            }
            6 => while self.manager.prefetch(vgpu, &[], steps).is_some() {},
            _ => {
                let is_known = self.manager.wake(now, vgpu, steps).is_ok();
                if is_known && self.manager.switch_to(vgpu, steps).is_none() {
                    return Err(format!("{vgpu:?} woke and has no place"));
                }
                if is_known {
                    self.running = self.manager.layout().place(vgpu).cloned();
                }
            }
        }
        self.device.carry_out(&mut self.steps);
        self.manager.table().check().map_err(|broken| broken.to_string())?;
        let Some(place) = &self.running else { return Ok(()) };
        if self.manager.layout().place(place.vgpu) != Some(place) {
            return Err(format!("{:?} was moved in its turn", place.vgpu));
        }
        self.manager.charge(self.now_ns, place.vgpu, QUANTUM_NS);
        self.device.run(place).map_err(|lost| lost.to_string())
    }
}
