//! Weft's own: what can still meet its SLA first, by deadline, within each vGPU's share; what
//! cannot goes behind, but keeps its vGPU's share; batch tasks take what is left, stop at the next
//! slice boundary when they are in the way, and some batch task runs within a bounded time.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::super::state::{Device, Run, State};
use super::super::types::PoolConfig;
use super::{Order, Pick, Policy};
use crate::class::Class;
use crate::codec::{Codec, codec};
use crate::heap::Heap;
use crate::key::{DeviceKey, TaskKey, VgpuKey, Weight};
use crate::tag::Tag;

/// What a task was picked as, and so how it is charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Fair,
    /// Hopeless: it has what is left over.
    Late,
    /// Hopeless for longer than `late_patience_ns` and within its vGPU's share: first, and not to
    /// be stopped.
    Overdue,
}

codec!(enum Kind { 0 Fair {}, 1 Late {}, 2 Overdue {} });

/// Start tags of one class.
#[derive(Debug, Default)]
struct Share {
    /// vGPUs with a task that waits, hopeless or not, by start tag.
    order: Heap<Tag>,
    virtual_time: Tag,
}

codec!(struct Share { order, virtual_time });

impl Share {
    fn settle(&mut self) {
        if let Some((tag, _)) = self.order.peek() {
            self.virtual_time = self.virtual_time.max(tag);
        }
    }
}

/// Tasks that cannot meet their SLA any more.
#[derive(Debug, Default)]
struct Late {
    /// Of each vGPU, oldest first.
    tasks: Vec<VecDeque<TaskKey>>,
    /// vGPUs by start tag.
    order: Heap<Tag>,
    /// vGPUs by the submission of their oldest.
    oldest: Heap<u64>,
}

codec!(struct Late { tasks, order, oldest });

impl Late {
    fn reserve(&mut self, vgpu: VgpuKey) {
        if self.tasks.len() <= vgpu.index() {
            self.tasks.resize_with(vgpu.index() + 1, VecDeque::new);
        }
        self.order.reserve(vgpu.0);
        self.oldest.reserve(vgpu.0);
    }

    fn place(&mut self, state: &State, vgpu: VgpuKey, tag: Tag) {
        match self.tasks[vgpu.index()].front() {
            Some(task) => {
                self.order.set(vgpu.0, tag);
                self.oldest.set(vgpu.0, state.task(*task).submitted_ns);
            }
            None => {
                self.order.remove(vgpu.0);
                self.oldest.remove(vgpu.0);
            }
        }
    }
}

#[derive(Debug)]
pub(super) struct Deadline {
    /// User-facing, batch.
    shares: [Share; 2],
    /// Start tag of each vGPU.
    tags: Vec<Tag>,
    /// vGPUs by the deadline of their first waiting task.
    first: Heap<u64>,
    late: Late,
    /// Of each device: what its task was picked as, and what it was charged in advance.
    picked: Vec<(Kind, u64)>,
    /// User-facing tasks that wait and were not found hopeless.
    hopeful: u32,
    overdue: u32,
    /// Devices that were told to yield.
    yielding: u32,
    /// Since when batch tasks wait and none runs.
    dry_since_ns: Option<u64>,
}

codec!(struct Deadline {
    shares, tags, first, late, picked, hopeful, overdue, yielding, dry_since_ns,
});

impl Deadline {
    pub(super) fn new(_config: &PoolConfig) -> Self {
        Self {
            shares: [Share::default(), Share::default()],
            tags: Vec::new(),
            first: Heap::default(),
            late: Late::default(),
            picked: Vec::new(),
            hopeful: 0,
            overdue: 0,
            yielding: 0,
            dry_since_ns: None,
        }
    }

    /// The vGPU's place in its queues, after its first waiting task changed.
    fn place(&mut self, state: &State, vgpu: VgpuKey) {
        let of = state.vgpu(vgpu);
        let share = &mut self.shares[State::place(!of.class.is_user_facing())];
        match of.waiting.front() {
            Some(task) if of.class.is_user_facing() => {
                self.first.set(vgpu.0, state.deadline_ns(*task));
            }
            _ => self.first.remove(vgpu.0),
        }
        // Hopeless tasks hold their vGPU's place, or those that meet their SLA would have all.
        if of.waiting.is_empty() && self.late.tasks[vgpu.index()].is_empty() {
            share.order.remove(vgpu.0);
        } else {
            share.order.set(vgpu.0, self.tags[vgpu.index()]);
        }
        share.settle();
        self.late.place(state, vgpu, self.tags[vgpu.index()]);
    }

    fn take(&mut self, state: &mut State, vgpu: VgpuKey) -> Option<TaskKey> {
        state.vgpu_mut(vgpu).waiting.pop_front()
    }

    /// Puts what cannot be done in time any more behind.
    fn give_up(&mut self, state: &mut State, now_ns: u64) {
        while let Some((deadline_ns, key)) = self.first.peek() {
            let vgpu = VgpuKey(key);
            let Some(&task) = state.vgpu(vgpu).waiting.front() else { return };
            if now_ns.saturating_add(state.remaining_ns(task)) <= deadline_ns {
                return;
            }
            self.take(state, vgpu);
            self.hopeful -= 1;
            self.late.tasks[vgpu.index()].push_back(task);
            self.place(state, vgpu);
        }
    }

    /// Whether the vGPU is at most the slack ahead of the one that is owed most.
    fn is_within(&self, state: &State, vgpu: VgpuKey) -> bool {
        let slack = Tag::from_service(state.config.slack_ns, state.vgpu(vgpu).weight);
        let least = self.shares[0].order.peek();
        least.is_none_or(|(least, _)| self.tags[vgpu.index()] <= least.plus(slack))
    }

    /// While a task waits that can meet its SLA: the one of the earliest deadline if its vGPU is
    /// within its share; otherwise the smallest tag's, which may be hopeless and is owed all the
    /// same.
    fn hopeful_task(&mut self, state: &mut State, now_ns: u64) -> Option<TaskKey> {
        loop {
            self.give_up(state, now_ns);
            let (_, urgent) = self.first.peek()?;
            let (_, fair) = self.shares[0].order.peek()?;
            let is_within = self.is_within(state, VgpuKey(urgent));
            let vgpu = VgpuKey(if is_within { urgent } else { fair });
            let Some(task) = self.take(state, vgpu) else {
                return self.late.tasks[vgpu.index()].pop_front();
            };
            self.hopeful -= 1;
            if now_ns.saturating_add(state.remaining_ns(task)) <= state.deadline_ns(task) {
                return Some(task);
            }
            // Not the earliest of all, and hopeless all the same.
            self.late.tasks[vgpu.index()].push_back(task);
            self.place(state, vgpu);
        }
    }

    fn is_starving(&self, state: &State, now_ns: u64) -> bool {
        let since = self.dry_since_ns.map_or(0, |since| now_ns.saturating_sub(since));
        state.waiting[1] > 0 && since >= state.config.batch_patience_ns
    }

    fn is_overdue(&self, state: &State, now_ns: u64) -> bool {
        self.overdue == 0
            && self.late.oldest.peek().is_some_and(|(at_ns, key)| {
                now_ns.saturating_sub(at_ns) >= state.config.late_patience_ns
                    && self.is_within(state, VgpuKey(key))
            })
    }

    /// The oldest hopeless task, or the first one of the smallest tag's vGPU.
    fn late_task(&mut self, is_overdue: bool) -> Option<TaskKey> {
        let oldest = self.late.oldest.peek().map(|(_, key)| key);
        let fair = self.late.order.peek().map(|(_, key)| key);
        let key = if is_overdue { oldest } else { fair }?;
        self.late.tasks[key as usize].pop_front()
    }

    fn batch_task(&mut self, state: &mut State) -> Option<TaskKey> {
        let (_, vgpu) = self.shares[1].order.peek()?;
        self.take(state, VgpuKey(vgpu))
    }

    /// Charges in advance what the task should take; [`settle`](Policy::settle) puts it right.
    fn charge(&mut self, state: &State, device: DeviceKey, task: TaskKey, kind: Kind) {
        let vgpu = state.task(task).vgpu;
        let ahead_ns = state.remaining_ns(task);
        let tag = &mut self.tags[vgpu.index()];
        *tag = tag.plus(Tag::from_service(ahead_ns, state.vgpu(vgpu).weight));
        if self.picked.len() <= device.index() {
            self.picked.resize(device.index() + 1, (Kind::Fair, 0));
        }
        self.picked[device.index()] = (kind, ahead_ns);
        self.overdue += u32::from(kind == Kind::Overdue);
        self.place(state, vgpu);
    }

    /// Who may be stopped, with the time of its next slice boundary.
    fn stoppable(&self, state: &State, now_ns: u64) -> Option<(u64, DeviceKey)> {
        let slice_ns = state.config.slice_ns.max(1);
        (0u32..)
            .zip(&state.devices)
            .filter_map(|(key, device)| {
                let Device::Running(run) = device else { return None };
                let kind = self.picked.get(key as usize).map(|picked| picked.0);
                if run.yields || !(run.is_batch || kind == Some(Kind::Late)) {
                    return None;
                }
                let past_ns = now_ns.saturating_sub(run.since_ns);
                let next = run.since_ns + past_ns.next_multiple_of(slice_ns);
                Some((next.max(run.protected_ns), DeviceKey(key)))
            })
            .min()
    }
}

impl Policy for Deadline {
    fn add(&mut self, state: &State, vgpu: VgpuKey) {
        if self.tags.len() <= vgpu.index() {
            self.tags.resize(vgpu.index() + 1, Tag::ZERO);
        }
        self.tags[vgpu.index()] = Tag::ZERO;
        self.shares.iter_mut().for_each(|share| share.order.reserve(vgpu.0));
        self.first.reserve(vgpu.0);
        self.late.reserve(vgpu);
        self.place(state, vgpu);
    }

    /// Keeps by how much it is ahead, as service: a weight that is lowered for a moment wins
    /// nothing. What it was charged in advance is put right by its new weight.
    fn changed(&mut self, state: &State, vgpu: VgpuKey, class: Class, old: Weight) {
        let (of, tag) = (state.vgpu(vgpu), self.tags[vgpu.index()]);
        let virtual_time =
            |class: Class| self.shares[State::place(!class.is_user_facing())].virtual_time;
        let runs = state.keyed_runs().filter(|(_, run)| state.task(run.task).vgpu == vgpu);
        let ahead = |weight: Weight| {
            let tags = runs.clone().map(|(device, _)| {
                let (_, ahead_ns) = self.picked[device.index()];
                Tag::from_service(ahead_ns, weight)
            });
            tags.fold(Tag::ZERO, Tag::plus)
        };
        let settled = tag.minus(ahead(old));
        let lead = settled.minus(virtual_time(class)).rescaled(old, of.weight);
        let is_of_class = of.class.is_user_facing() == class.is_user_facing();
        let base = match is_of_class {
            true => settled.min(virtual_time(class)),
            false => virtual_time(of.class),
        };
        self.tags[vgpu.index()] = base.plus(lead).plus(ahead(of.weight));
        for (device, run) in state.keyed_runs() {
            let (kind, _) = &mut self.picked[device.index()];
            if state.task(run.task).vgpu == vgpu && *kind == Kind::Late && !is_of_class {
                // Whether it may be stopped is its new class's to say.
                *kind = Kind::Fair;
            }
        }
        self.place(state, vgpu);
    }

    fn enter(&mut self, state: &mut State, now_ns: u64, task: TaskKey, first: bool) {
        let vgpu = state.task(task).vgpu;
        let is_batch = state.is_batch(task);
        if !is_batch
            && first
            && now_ns.saturating_add(state.remaining_ns(task)) > state.deadline_ns(task)
        {
            self.late.tasks[vgpu.index()].push_front(task);
            self.place(state, vgpu);
            return;
        }
        self.hopeful += u32::from(!is_batch);
        let waiting = &mut state.vgpu_mut(vgpu).waiting;
        // With hopeless tasks it has not slept, and keeps what it is owed.
        if waiting.is_empty() && self.late.tasks[vgpu.index()].is_empty() {
            let tag = &mut self.tags[vgpu.index()];
            *tag = (*tag).max(self.shares[State::place(is_batch)].virtual_time);
        }
        if first {
            waiting.push_front(task);
        } else {
            waiting.push_back(task);
        }
        self.place(state, vgpu);
    }

    fn leave(&mut self, state: &mut State, task: TaskKey) {
        let vgpu = state.task(task).vgpu;
        let waiting = &mut state.vgpu_mut(vgpu).waiting;
        let before = waiting.len();
        waiting.retain(|other| *other != task);
        if waiting.len() < before {
            self.hopeful -= u32::from(!state.is_batch(task));
        } else {
            self.late.tasks[vgpu.index()].retain(|other| *other != task);
        }
        self.place(state, vgpu);
    }

    fn settle(&mut self, state: &mut State, device: DeviceKey, run: &Run, used_ns: u64) {
        let (kind, ahead_ns) = self.picked[device.index()];
        self.yielding -= u32::from(run.yields);
        self.overdue -= u32::from(kind == Kind::Overdue);
        let vgpu = state.task(run.task).vgpu;
        let weight = state.vgpu(vgpu).weight;
        let tag = &mut self.tags[vgpu.index()];
        let used = Tag::from_service(used_ns, weight);
        *tag = tag.plus(used).minus(Tag::from_service(ahead_ns, weight));
        self.place(state, vgpu);
    }

    fn plan(&mut self, state: &mut State, now_ns: u64) {
        let is_dry = state.waiting[1] > 0 && state.running[1] == 0;
        self.dry_since_ns = if is_dry { self.dry_since_ns.or(Some(now_ns)) } else { None };
    }

    fn pick(&mut self, state: &mut State, now_ns: u64, device: DeviceKey) -> Option<Pick> {
        if self.is_starving(state, now_ns)
            && let Some(task) = self.batch_task(state)
        {
            self.dry_since_ns = None;
            self.charge(state, device, task, Kind::Fair);
            return Some(Pick { task, protected_ns: state.config.batch_quantum_ns });
        }
        if self.is_overdue(state, now_ns)
            && let Some(task) = self.late_task(true)
        {
            self.charge(state, device, task, Kind::Overdue);
            return Some(Pick::whole(task));
        }
        if let Some(task) = self.hopeful_task(state, now_ns) {
            self.charge(state, device, task, Kind::Fair);
            return Some(Pick::whole(task));
        }
        let (task, kind) = match self.late_task(false) {
            Some(task) => (task, Kind::Late),
            None => (self.batch_task(state)?, Kind::Fair),
        };
        self.charge(state, device, task, kind);
        Some(Pick { task, protected_ns: 0 })
    }

    fn orders(&mut self, state: &mut State, now_ns: u64, orders: &mut Vec<Order>) {
        while self.hopeful > self.yielding {
            let Some((at_ns, device)) = self.stoppable(state, now_ns) else { return };
            if let Device::Running(run) = &mut state.devices[device.index()] {
                run.yields = true;
            }
            self.yielding += 1;
            orders.push(Order::Yield { device, at_ns });
        }
    }

    fn kept(&self, state: &State) -> u32 {
        state.running[0]
    }

    fn put(&self, out: &mut Vec<u8>) {
        Codec::put(self, out);
    }
}
