//! Random histories of the model.

use proptest::prelude::*;

use super::{Habits, Load, MS, Model, US};

#[derive(Clone, Debug)]
pub(crate) enum Step {
    AddVgpu { weight: u32 },
    AddSession { vgpu: usize, load: Load },
    Burst { session: usize, commands: Vec<u64> },
    Kill { session: usize },
    RemoveVgpu { vgpu: usize },
    Reweight { vgpu: usize, weight: u32 },
    Pass { ns: u64 },
    Settle,
}

fn weight() -> impl Strategy<Value = u32> {
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
        3 => weight().prop_map(|weight| Step::AddVgpu { weight }),
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
    (any::<bool>(), 200 * US..6 * MS, prop_oneof![Just(0i64), -300i64..300], 0..2 * MS).prop_map(
        |(pipelined, window_ns, error_permille, settle_delay_ns)| Habits {
            pipelined,
            window_ns,
            error_permille: if pipelined { error_permille } else { 0 },
            settle_delay_ns,
        },
    )
}

pub(crate) fn choose(from: &[usize], number: usize) -> Option<usize> {
    (!from.is_empty()).then(|| from[number % from.len()])
}

pub(crate) fn take(model: &mut Model, step: &Step) {
    match step {
        Step::AddVgpu { weight } => {
            model.vgpu(*weight);
        }
        Step::AddSession { vgpu, load } => {
            if let Some(vgpu) = choose(&model.vgpus_alive(), *vgpu) {
                model.session(vgpu, load.clone());
            }
        }
        Step::Burst { session, commands } => {
            if let Some(session) = choose(&model.sessions_alive(), *session) {
                commands.iter().for_each(|size_ns| model.offer(session, *size_ns));
            }
        }
        Step::Kill { session } => {
            if let Some(session) = choose(&model.sessions_alive(), *session) {
                model.kill(session);
            }
        }
        Step::RemoveVgpu { vgpu } => {
            if let Some(vgpu) = choose(&model.vgpus_alive(), *vgpu) {
                model.remove_vgpu(vgpu);
            }
        }
        Step::Reweight { vgpu, weight } => {
            if let Some(vgpu) = choose(&model.vgpus_alive(), *vgpu) {
                model.reweight(vgpu, *weight);
            }
        }
        Step::Pass { ns } => model.run_for(*ns),
        Step::Settle => model.settle(),
    }
}
