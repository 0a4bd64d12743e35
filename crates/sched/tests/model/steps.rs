//! What histories of the model are made of.

use weft_sched::{Cap, Class, Event};

use super::{Load, Model, vgpu_key};

#[derive(Clone, Debug)]
pub(crate) enum Step {
    AddGroup { weight: u32 },
    RemoveGroup { group: usize },
    ReweightGroup { group: usize, weight: u32 },
    AddVgpu { group: usize, weight: u32, owner: Option<u32> },
    SetCap { vgpu: usize, cap: Option<Cap> },
    SetGroupCap { group: usize, cap: Option<Cap> },
    SetClass { vgpu: usize, class: Class },
    ReweightSession { session: usize, weight: u32 },
    AddSession { vgpu: usize, load: Load },
    Burst { session: usize, commands: Vec<u64> },
    Kill { session: usize },
    RemoveVgpu { vgpu: usize },
    Reweight { vgpu: usize, weight: u32 },
    Pass { ns: u64 },
    Settle,
}

impl Model {
    /// Whose a vGPU is that has no sessions yet: it begins with what the owner's others owe.
    pub(crate) fn own(&mut self, vgpu: usize, owner: u32) {
        self.settle();
        let key = vgpu_key(vgpu);
        self.tell(Event::SetOwner { vgpu: key, owner });
        let view = self.node.vgpu(key).unwrap();
        let ahead_ns = view.ahead.to_ns() * u128::from(view.weight.get()) + 1_000;
        self.lag.begins_ahead(key, u64::try_from(ahead_ns).unwrap());
    }
}

pub(crate) fn choose(from: &[usize], number: usize) -> Option<usize> {
    (!from.is_empty()).then(|| from[number % from.len()])
}

pub(crate) fn take(model: &mut Model, step: &Step) {
    match step {
        Step::AddGroup { weight } => {
            model.group(*weight);
        }
        Step::RemoveGroup { group } => {
            if let Some(group) = choose(&model.groups_alive(), *group) {
                model.remove_group(group);
            }
        }
        Step::ReweightGroup { group, weight } => {
            if let Some(group) = choose(&model.groups_alive(), *group) {
                model.reweight_group(group, *weight);
            }
        }
        Step::AddVgpu { group, weight, owner } => {
            if let Some(group) = choose(&model.groups_alive(), *group) {
                let vgpu = model.vgpu_of(group, *weight);
                owner.iter().for_each(|owner| model.own(vgpu, *owner));
            }
        }
        Step::SetCap { vgpu, cap } => {
            if let Some(vgpu) = choose(&model.vgpus_alive(), *vgpu) {
                model.set_cap(vgpu, *cap);
            }
        }
        Step::SetGroupCap { group, cap } => {
            if let Some(group) = choose(&model.groups_alive(), *group) {
                model.set_group_cap(group, *cap);
            }
        }
        Step::SetClass { vgpu, class } => {
            if let Some(vgpu) = choose(&model.vgpus_alive(), *vgpu) {
                model.set_class(vgpu, *class);
            }
        }
        Step::ReweightSession { session, weight } => {
            if let Some(session) = choose(&model.sessions_alive(), *session) {
                model.reweight_session(session, *weight);
            }
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
