//! Shares against weights on a model device, over the windows that the goals state.

use crate::model::{Habits, Load, MS, Model, Random, SECOND, US};

const THREE: [u32; 3] = [1, 2, 3];
const SIX: [u32; 6] = [1, 2, 2, 3, 3, 4];

/// Kernel sizes of the evaluation, in ns.
const MIXED: [u64; 6] = [21_000, 51_000, 172_000, 391_000, 800_000, 1_605_000];

const PIPELINED: Habits = Habits {
    pipelined: true,
    window_ns: 6_000_000,
    error_permille: 0,
    settle_delay_ns: 0,
    switch_ns: 0,
};

/// The median MMR of five windows of 10 s.
fn mmr(policy: &str, habits: Habits, weights: &[u32], sizes: impl Fn(usize) -> Vec<u64>) -> f64 {
    let mut model = Model::new(policy, habits);
    for (number, weight) in weights.iter().enumerate() {
        model.tenant(*weight, Load::Saturating(sizes(number)));
    }
    let mut windows: Vec<f64> = (0..5)
        .map(|_| {
            let before = model.served();
            model.run_for(10 * SECOND);
            model.mmr_since(&before)
        })
        .collect();
    model.check_bills();
    // A wrong prediction grants the successor too late now and then.
    if habits.error_permille == 0 {
        assert!(model.busy_ns > 49_999 * MS, "the device was busy {} ns of 50 s", model.busy_ns);
    }
    windows.sort_by(f64::total_cmp);
    windows[2]
}

fn mixed(number: usize) -> Vec<u64> {
    vec![MIXED[number % MIXED.len()]]
}

fn shuffled(number: usize) -> Vec<u64> {
    let mut random = Random(number as u64);
    (0..997).map(|_| 21_000 + random.below(1_584_001)).collect()
}

#[test]
fn three_weights_get_their_shares() {
    for habits in [Habits::default(), PIPELINED] {
        assert!(mmr("fair", habits, &THREE, |_| vec![207 * US]) >= 0.995);
        assert!(mmr("fair", habits, &THREE, mixed) >= 0.995);
        assert!(mmr("fair", habits, &THREE, shuffled) >= 0.99);
    }
}

#[test]
fn six_weights_get_their_shares() {
    for habits in [Habits::default(), PIPELINED] {
        assert!(mmr("fair", habits, &SIX, |_| vec![46 * US]) >= 0.99);
        assert!(mmr("fair", habits, &SIX, mixed) >= 0.99);
        assert!(mmr("fair", habits, &SIX, shuffled) >= 0.99);
    }
}

/// Commands several quanta long overrun every turn; the tags carry the overrun.
#[test]
fn overruns_even_out() {
    let sizes = |number: usize| vec![if number == 0 { 50 * MS } else { 377 * US }];
    assert!(mmr("fair", Habits::default(), &SIX, sizes) >= 0.9);
    let mut model = Model::new("fair", Habits::default());
    for (number, weight) in SIX.into_iter().enumerate() {
        model.tenant(weight, Load::Saturating(sizes(number)));
    }
    model.run_for(300 * SECOND);
    assert!(model.mmr_since(&[0; 6]) >= 0.99);
}

/// Predictions 20 % off, settled a millisecond after the work finished.
#[test]
fn late_settlement_loses_nothing() {
    for error_permille in [-200, 200] {
        let habits = Habits { error_permille, settle_delay_ns: MS, ..PIPELINED };
        assert!(mmr("fair", habits, &SIX, mixed) >= 0.99, "{error_permille}");
    }
}

#[test]
fn the_controls_fail() {
    assert!(mmr("unmanaged", Habits::default(), &THREE, mixed) < 0.9);
    assert!(mmr("unmanaged", Habits::default(), &SIX, |_| vec![46 * US]) < 0.9);
    assert!(mmr("round_robin", Habits::default(), &THREE, |_| vec![46 * US]) < 0.5);
    assert!(mmr("priority", Habits::default(), &THREE, |_| vec![46 * US]) < 0.01);
}

/// Two tenants of equal weight: one always has work, the other sleeps in between. Sleeping must
/// not buy more than the share.
#[test]
fn a_sleeper_gains_nothing() {
    for (size_ns, pause_ns) in
        [(30 * MS, 30 * MS), (6 * MS, 101 * US), (400 * US, 99 * US), (46 * US, 10 * US)]
    {
        let mut model = Model::new("fair", Habits::default());
        let steady = model.tenant(1, Load::Saturating(vec![100 * US]));
        let sleeper = model.tenant(1, Load::Pausing { size_ns, pause_ns });
        model.run_for(60 * SECOND);
        let (steady, sleeper) = (model.served_ns(steady), model.served_ns(sleeper));
        assert!(
            sleeper <= steady + size_ns.max(6 * MS) * 2,
            "{size_ns}/{pause_ns}: {sleeper} against {steady}"
        );
        model.check_bills();
    }
}

/// Short pauses within a turn do not cost the share: held time is shared equally.
#[test]
fn a_synchronous_tenant_keeps_its_turn() {
    let mut model = Model::new("fair", Habits::default());
    let steady = model.tenant(1, Load::Saturating(vec![100 * US]));
    let synchronous = model.tenant(1, Load::Pausing { size_ns: 46 * US, pause_ns: 10 * US });
    model.run_for(10 * SECOND);
    // 46 of 56 µs of half the time.
    let share = model.served_ns(synchronous) * 1000 / model.served_ns(steady);
    assert!((800..=840).contains(&share), "{share} thousandths");
}

/// A device beside a co-runner that sleeps is as busy as its saturating tenant keeps it.
#[test]
fn work_is_conserved_at_every_sleep_ratio() {
    for sleep_percent in [50, 60, 70, 80] {
        let mut model = Model::new("fair", Habits::default());
        model.tenant(1, Load::Saturating(vec![200 * US]));
        let size_ns = (100 - sleep_percent) * 50 * US;
        let pause_ns = sleep_percent * 50 * US;
        model.tenant(1, Load::Pausing { size_ns, pause_ns });
        model.run_for(10 * SECOND);
        assert!(model.busy_ns >= 9_800 * MS, "{sleep_percent} %: {}", model.busy_ns);
    }
}

/// After any idle time a tenant waits for one quantum at most beside one other.
#[test]
fn a_long_sleeper_wakes_within_a_quantum() {
    let mut model = Model::new("fair", Habits::default());
    model.tenant(1, Load::Saturating(vec![100 * US]));
    let sleeper = model.tenant(1, Load::Pausing { size_ns: 50 * US, pause_ns: 2 * SECOND });
    model.run_for(SECOND);
    for _ in 0..20 {
        let before = model.served_ns(sleeper);
        model.run_for(2 * SECOND + 50 * US + 6 * MS + 200 * US);
        assert!(model.served_ns(sleeper) > before);
    }
}

/// Processes of one vGPU share its weight: more of them buy nothing.
#[test]
fn splitting_into_sessions_gains_nothing() {
    let mut model = Model::new("fair", PIPELINED);
    let honest = model.tenant(1, Load::Saturating(vec![100 * US]));
    let splitter = model.vgpu(1);
    for _ in 0..7 {
        model.session(splitter, Load::Saturating(vec![100 * US]));
    }
    model.run_for(10 * SECOND);
    let (honest, splitter) = (model.served_ns(honest), model.served_ns(splitter));
    assert!(honest.abs_diff(splitter) <= 13 * MS, "{honest} against {splitter}");
}
