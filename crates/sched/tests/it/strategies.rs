//! Random histories of the model.

use proptest::prelude::*;
use weft_sched::{Cap, Class, Config};

use crate::model::steps::Step;
use crate::model::{Habits, Load, MS, US};

pub(crate) fn weight() -> impl Strategy<Value = u32> {
    prop_oneof![4 => 1u32..5, 1 => 1u32..=10_000]
}

fn size() -> impl Strategy<Value = u64> {
    prop_oneof![6 => US..2 * MS, 1 => 1u64..2_000, 1 => 2 * MS..40 * MS]
}

pub(crate) fn load() -> impl Strategy<Value = Load> {
    prop_oneof![
        prop::collection::vec(size(), 1..5).prop_map(Load::Saturating),
        (size(), US..5 * MS).prop_map(|(size_ns, pause_ns)| Load::Pausing { size_ns, pause_ns }),
        Just(Load::Manual),
    ]
}

pub(crate) fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        1 => weight().prop_map(|weight| Step::AddGroup { weight }),
        1 => any::<usize>().prop_map(|group| Step::RemoveGroup { group }),
        1 => (any::<usize>(), weight())
            .prop_map(|(group, weight)| Step::ReweightGroup { group, weight }),
        4 => (any::<usize>(), weight(), prop::option::weighted(0.3, 0u32..3))
            .prop_map(|(group, weight, owner)| Step::AddVgpu { group, weight, owner }),
        1 => (any::<usize>(), cap()).prop_map(|(vgpu, cap)| Step::SetCap { vgpu, cap }),
        1 => (any::<usize>(), cap()).prop_map(|(group, cap)| Step::SetGroupCap { group, cap }),
        2 => (any::<usize>(), class()).prop_map(|(vgpu, class)| Step::SetClass { vgpu, class }),
        1 => (any::<usize>(), weight())
            .prop_map(|(session, weight)| Step::ReweightSession { session, weight }),
        6 => (any::<usize>(), load()).prop_map(|(vgpu, load)| Step::AddSession { vgpu, load }),
        6 => (any::<usize>(), prop::collection::vec(size(), 1..20))
            .prop_map(|(session, commands)| Step::Burst { session, commands }),
        2 => any::<usize>().prop_map(|session| Step::Kill { session }),
        1 => any::<usize>().prop_map(|vgpu| Step::RemoveVgpu { vgpu }),
        2 => (any::<usize>(), weight()).prop_map(|(vgpu, weight)| Step::Reweight { vgpu, weight }),
        12 => prop_oneof![0..200 * US, 0..100 * MS].prop_map(|ns| Step::Pass { ns }),
        1 => Just(Step::Settle),
    ]
}

pub(crate) fn habits() -> impl Strategy<Value = Habits> {
    let errors = prop_oneof![Just(0i64), -300i64..300];
    let switches = prop_oneof![Just(0), 0..4 * MS];
    (any::<bool>(), 200 * US..6 * MS, errors, 0..2 * MS, switches).prop_map(
        |(pipelined, window_ns, error_permille, settle_delay_ns, switch_ns)| Habits {
            pipelined,
            window_ns,
            error_permille: if pipelined { error_permille } else { 0 },
            settle_delay_ns,
            switch_ns,
        },
    )
}

fn cap() -> impl Strategy<Value = Option<Cap>> {
    let caps = (10_000u32..=1_000_000, MS..200 * MS);
    prop::option::weighted(
        0.8,
        caps.prop_map(|(share_ppm, period_ns)| Cap { share_ppm, period_ns }),
    )
}

fn class() -> impl Strategy<Value = Class> {
    prop_oneof![2 => Just(Class::UserFacing { sla_ns: 200 * MS }), 1 => Just(Class::Batch)]
}

/// Settings of `fair`, with and without sleeper credit, slack, preferences and borrowing.
pub(crate) fn config() -> impl Strategy<Value = Config> {
    let quantum = prop_oneof![2 => Just(6 * MS), 1 => 200 * US..10 * MS];
    let borrow = prop_oneof![1 => Just(0), 3 => 0..100 * MS];
    let some = || prop_oneof![2 => Just(0), 1 => 0..6 * MS];
    (quantum, 0..=1_000u64, some(), some(), borrow).prop_map(
        |(quantum_ns, credit_permille, slack_ns, reach_ns, borrow_ns)| Config {
            quantum_ns,
            sleeper_credit_ns: (quantum_ns * credit_permille / 1_000)
                .saturating_sub(quantum_ns / 2),
            slack_ns,
            reach_ns,
            borrow_ns,
            ..Config::default()
        },
    )
}
