//! When DymGPU's rule moves somebody.

use super::*;

const S: u64 = 1_000_000_000;

fn manager(name: &str, region: usize, slots: &[usize]) -> Manager {
    let config = ManagerConfig { rule: Rule::Dymgpu, ..monitored::config(name, region) };
    let mut manager = Manager::new(config);
    for demand in demands(slots) {
        manager.create(0, demand.vgpu, demand.slots, &mut Vec::new()).unwrap();
    }
    manager
}

#[test]
fn a_small_newcomer_is_put_on_the_shared_slots() {
    // The paper's example: P = 0, 1, 1, 1 and L = 3, so that one of 3 slots moves nobody.
    let mut manager = manager("size", 5, &[4, 4, 3, 2]);
    assert_eq!(starts(manager.layout()), [0, 1, 1, 1]);
    let replaced = manager.create(S, VgpuKey(9), 3, &mut Vec::new()).unwrap();
    assert_eq!((replaced.moved, starts(manager.layout())[4]), (0, 1));
}

#[test]
fn a_large_newcomer_moves_the_others_where_fewer_slots_are_shared() {
    // 4 and 4 overlap on L = 2 of 6 slots. On P_K one of 3 shares 3 slots, and as many anew.
    let mut stays = manager("size", 6, &[4, 4]);
    assert_eq!(stays.create(S, VgpuKey(9), 3, &mut Vec::new()).unwrap().moved, 0);
    assert_eq!(starts(stays.layout()), [0, 2, 2]);
    // 5 and 5 on 8 slots: with one of 8 on them all are shared, anew as well.
    let mut moves = manager("size", 12, &[5, 4, 4]);
    assert_eq!(starts(moves.layout()), [0, 5, 8]);
    // One of 6: at P_K = 6 it shares 6 slots; anew it lies first, and 4 of 12 are shared.
    let before = moves.layout().copies_per_round();
    let replaced = moves.create(S, VgpuKey(9), 6, &mut Vec::new()).unwrap();
    assert!(replaced.moved > 0, "{:?} from {before}", moves.layout());
}

#[test]
fn who_ends_moves_the_others_only_if_it_had_slots_of_its_own() {
    let mut shares = manager("size", 5, &[4, 4, 3, 2]);
    let before = starts(shares.layout());
    assert_eq!(shares.destroy(S, VgpuKey(3), &mut Vec::new()).unwrap().moved, 0);
    assert_eq!(starts(shares.layout()), before[..3]);
    // v0 had slot 0 alone: v1 is the largest now and begins there.
    assert!(shares.destroy(S, VgpuKey(0), &mut Vec::new()).unwrap().moved > 0);
    assert_eq!(starts(shares.layout())[0], 0);
}

#[test]
fn by_utilization_everybody_moves_when_a_period_is_over_and_not_before() {
    let mut manager = manager("utilization", 8, &[4, 4, 4]);
    assert_eq!(starts(manager.layout()), [0, 4, 4], "newcomers: free slots, then the end");
    for second in 1..=20 {
        for (key, used) in [(0, 10), (1, 100), (2, 800)] {
            manager.charge(second * S, VgpuKey(key), used * S / 1_000);
        }
        let moved = manager.handle_timeout(second * S, &mut Vec::new()).unwrap().moved;
        assert_eq!(moved > 0, second == 20, "at {second} s");
    }
    assert_eq!(starts(manager.layout()), [4, 4, 0], "the most used is alone");
}

#[test]
fn who_has_the_turn_moves_when_it_is_over() {
    let mut manager = manager("utilization", 8, &[4, 4, 4]);
    let mut steps = Vec::new();
    manager.switch_to(VgpuKey(0), &mut steps).unwrap();
    manager.charge(19 * S, VgpuKey(1), 5 * S);
    manager.charge(19 * S, VgpuKey(2), 10 * S);
    assert_eq!(manager.handle_timeout(20 * S, &mut steps).unwrap(), Replaced::default());
    assert_eq!((starts(manager.layout())[0], manager.table().lacks(VgpuKey(0))), (0, 0));
    assert!(manager.end_turn(&mut steps).unwrap().moved > 0);
    assert_eq!(starts(manager.layout()), [4, 4, 0]);
    assert_eq!(manager.end_turn(&mut steps).unwrap(), Replaced::default(), "once is enough");
}
