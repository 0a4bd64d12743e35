//! Idle vGPUs, utilisation, and when somebody is moved.

use super::*;

const S: u64 = 1_000_000_000;

pub(super) fn config(name: &str, region: usize) -> ManagerConfig {
    ManagerConfig {
        placement: by_name(name).unwrap(),
        rule: Rule::Gain,
        region,
        hidden: HIDDEN,
        monitor: MonitorConfig::default(),
        period_ns: 20 * S,
        quantum_ns: QUANTUM_NS,
        defers: false,
    }
}

pub(super) fn manager(name: &str, region: usize, slots: &[usize]) -> Manager {
    let mut manager = Manager::new(config(name, region));
    for demand in demands(slots) {
        manager.create(0, demand.vgpu, demand.slots, &mut Vec::new()).unwrap();
    }
    manager
}

#[test]
fn idle_after_the_threshold_and_not_before() {
    let mut monitor = Monitor::new(MonitorConfig::default());
    monitor.add(0, VgpuKey(0));
    monitor.add(0, VgpuKey(1));
    monitor.charge(5 * S, VgpuKey(1), S);
    assert_eq!(monitor.poll_idle(20 * S - 1, None), []);
    assert_eq!(monitor.poll_idle(20 * S, None), [VgpuKey(0)]);
    assert_eq!(monitor.poll_idle(25 * S, None), [VgpuKey(1)]);
    assert!(monitor.poll_idle(30 * S, None).is_empty(), "each is told once");
    assert!(monitor.wake(31 * S, VgpuKey(0)) && !monitor.wake(31 * S, VgpuKey(0)));
    assert!(!monitor.is_idle(VgpuKey(0)) && monitor.is_idle(VgpuKey(1)));
}

#[test]
fn utilisation_is_that_of_the_window() {
    let mut monitor = Monitor::new(MonitorConfig { window_ns: 10 * S, ..MonitorConfig::default() });
    monitor.add(0, VgpuKey(0));
    assert_eq!(monitor.utilisation_permille(S / 4, VgpuKey(0)), None, "too young to say");
    for second in 1..=4 {
        monitor.charge(second * S, VgpuKey(0), S / 2);
    }
    assert_eq!(monitor.utilisation_permille(4 * S, VgpuKey(0)), Some(500), "of its life so far");
    assert_eq!(monitor.utilisation_permille(10 * S, VgpuKey(0)), Some(200));
    assert_eq!(monitor.utilisation_permille(14 * S, VgpuKey(0)), Some(0), "all of it is forgotten");
    assert_eq!(monitor.utilisation_permille(14 * S, VgpuKey(9)), None);
}

#[test]
fn both_times_can_be_set() {
    let mut monitor = Monitor::new(MonitorConfig { idle_ns: S, window_ns: S });
    monitor.add(0, VgpuKey(0));
    assert_eq!(monitor.poll_idle(S, None), [VgpuKey(0)]);
}

#[test]
fn nobody_is_moved_for_no_gain() {
    let mut manager = manager("size", 10, &[4, 4]);
    let before = manager.layout().clone();
    let mut steps = Vec::new();
    // The three fit without moving anybody, though Algorithm 1 would put the largest first.
    let replaced = manager.create(S, VgpuKey(5), 2, &mut steps).unwrap();
    assert_eq!(replaced, Replaced::default());
    assert_eq!(manager.layout().places[..2], before.places[..]);
    for second in 2..60 {
        for key in [0, 1, 5] {
            manager.charge(second * S, VgpuKey(key), 300_000_000);
        }
        assert_eq!(manager.handle_timeout(second * S, &mut steps).unwrap(), Replaced::default());
    }
    assert_eq!(steps, []);
}

#[test]
fn somebody_is_moved_where_it_pays() {
    let four = manager("size", 12, &[6, 6, 6, 6]);
    assert_eq!(four.layout().copies_per_round(), 18);
    let kept = manager("scores", 12, &[6, 6, 6, 6]);
    assert_eq!(kept.layout().copies_per_round(), 24, "the control: gScale moves nobody");
}

#[test]
fn an_idle_vgpu_makes_room_and_is_placed_anew_when_it_wakes() {
    let mut manager = manager("size", 12, &[6, 6, 6]);
    let mut steps = Vec::new();
    for second in 1..=20 {
        manager.charge(second * S, VgpuKey(0), 300_000_000);
        manager.charge(second * S, VgpuKey(2), 300_000_000);
        manager.handle_timeout(second * S, &mut steps).unwrap();
    }
    assert_eq!(manager.layout().places.len(), 2);
    assert_eq!(manager.layout().copies_per_round(), 0);
    assert_eq!(manager.switch_to(VgpuKey(1), &mut steps), None, "it must wake first");
    manager.wake(21 * S, VgpuKey(1), &mut steps).unwrap();
    assert_eq!(manager.switch_to(VgpuKey(1), &mut steps), Some(6));
    let unknown = manager.wake(21 * S, VgpuKey(9), &mut steps).unwrap_err();
    assert_eq!(unknown.to_string(), "v9 is not known: create it first");
}

#[test]
fn who_runs_or_waits_is_never_idle() {
    let mut manager = manager("size", 12, &[6, 6, 6]);
    let mut steps = Vec::new();
    for key in 0..3 {
        manager.wake(0, VgpuKey(key), &mut steps).unwrap();
    }
    manager.switch_to(VgpuKey(0), &mut steps).unwrap();
    // One kernel of 25 s, in which the program of v0 asks for nothing more; v1 waits, v2 has left.
    manager.rest(S, VgpuKey(0));
    manager.rest(S, VgpuKey(2));
    for second in 2..=25 {
        manager.handle_timeout(second * S, &mut steps).unwrap();
    }
    let left: Vec<u32> = manager.layout().places.iter().map(|place| place.vgpu.0).collect();
    assert_eq!(left, [0, 1], "only v2 may be idle");
    assert_eq!(manager.table().resident(), Some(VgpuKey(0)));
    manager.end_turn(&mut steps).unwrap();
    manager.handle_timeout(26 * S, &mut steps).unwrap();
    assert_eq!(manager.layout().places.len(), 1, "the control: without its turn v0 is idle");
}

#[test]
fn nobody_is_moved_or_written_over_in_a_turn() {
    let mut manager = manager("size", 12, &[4, 6]);
    let mut steps = Vec::new();
    manager.switch_to(VgpuKey(0), &mut steps).unwrap();
    let place = manager.layout().place(VgpuKey(0)).cloned();
    for key in 2..5 {
        manager.create(S, VgpuKey(key), 6, &mut steps).unwrap();
        steps.clear();
        while manager.prefetch(VgpuKey(key), &[], &mut steps).is_some() {}
        assert_eq!(manager.layout().place(VgpuKey(0)).cloned(), place);
        assert_eq!((manager.table().check(), manager.table().lacks(VgpuKey(0))), (Ok(()), 0));
    }
}

#[test]
fn scores_move_nobody() {
    let mut manager = manager("scores", 12, &[6, 6, 6, 6]);
    let mut steps = Vec::new();
    for key in [1, 3] {
        assert_eq!(manager.destroy(S, VgpuKey(key), &mut steps).unwrap().moved, 0);
    }
    for second in 2..60 {
        for key in [0, 2] {
            manager.charge(second * S, VgpuKey(key), S / 2);
        }
        assert_eq!(manager.handle_timeout(second * S, &mut steps).unwrap().moved, 0);
    }
    assert_eq!(manager.layout().copies_per_round(), 12, "they still lie on each other");
}

#[test]
fn a_refused_vgpu_changes_nothing() {
    let mut manager = manager("exact", 12, &[6, 6, 6]);
    let before = manager.layout().clone();
    manager.create(S, VgpuKey(9), 13, &mut Vec::new()).unwrap_err();
    manager.create(S, VgpuKey(0), 1, &mut Vec::new()).unwrap_err();
    manager.destroy(S, VgpuKey(9), &mut Vec::new()).unwrap_err();
    assert_eq!(*manager.layout(), before);
    manager.destroy(S, VgpuKey(0), &mut Vec::new()).unwrap();
    assert_eq!(manager.layout().places.len(), 2);
}
