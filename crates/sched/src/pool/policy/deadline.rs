//! Weft's own: what can still meet its SLA first, by deadline, within each vGPU's share; what
//! cannot goes behind, but keeps its vGPU's share; batch tasks take what is left, stop at the next
//! slice boundary when they are in the way, and some batch task runs within a bounded time. After a
//! quantum a task gives way to one that is owed more, whatever its tenant said that it would take.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::super::state::{Device, Run, State};
use super::super::types::PoolConfig;
use super::shares::Shares;
use super::{Order, Pick, Policy};
use crate::class::Class;
use crate::codec::{Codec, codec};
use crate::heap::Heap;
use crate::key::{DeviceKey, TaskKey, TenantKey, VgpuKey, Weight};

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

/// What a device's run was charged.
#[derive(Clone, Copy, Debug)]
struct Charge {
    kind: Kind,
    /// Charged in advance, in ns.
    ahead_ns: u64,
    /// Until when its time is charged.
    until_ns: u64,
    /// When it should be done, by its estimate.
    end_ns: u64,
}

codec!(struct Charge { kind, ahead_ns, until_ns, end_ns });

impl Charge {
    const NONE: Self = Self { kind: Kind::Fair, ahead_ns: 0, until_ns: 0, end_ns: 0 };
}

/// Tasks that cannot meet their SLA any more.
#[derive(Debug, Default)]
struct Late {
    /// Of each vGPU, oldest first.
    tasks: Vec<VecDeque<TaskKey>>,
    /// vGPUs by the submission of their oldest.
    oldest: Heap<u64>,
}

codec!(struct Late { tasks, oldest });

impl Late {
    fn reserve(&mut self, vgpu: VgpuKey) {
        if self.tasks.len() <= vgpu.index() {
            self.tasks.resize_with(vgpu.index() + 1, VecDeque::new);
        }
        self.oldest.reserve(vgpu.0);
    }

    fn place(&mut self, state: &State, vgpu: VgpuKey) {
        match self.tasks[vgpu.index()].front() {
            Some(task) => self.oldest.set(vgpu.0, state.task(*task).submitted_ns),
            None => self.oldest.remove(vgpu.0),
        }
    }
}

#[derive(Debug)]
pub(super) struct Deadline {
    shares: Shares,
    /// vGPUs by the deadline of their first waiting task.
    first: Heap<u64>,
    late: Late,
    /// Of each device.
    charges: Vec<Charge>,
    /// Before this no run is charged between its beginning and its end.
    charge_at_ns: u64,
    /// User-facing tasks that wait and were not found hopeless.
    hopeful: u32,
    overdue: u32,
    /// Devices that were told to yield for a hopeful task.
    yielding: u32,
    /// Since when batch tasks wait and none runs.
    dry_since_ns: Option<u64>,
}

codec!(struct Deadline {
    shares, first, late, charges, charge_at_ns, hopeful, overdue, yielding, dry_since_ns,
});

impl Deadline {
    pub(super) fn new(_config: &PoolConfig) -> Self {
        Self {
            shares: Shares::default(),
            first: Heap::default(),
            late: Late::default(),
            charges: Vec::new(),
            charge_at_ns: u64::MAX,
            hopeful: 0,
            overdue: 0,
            yielding: 0,
            dry_since_ns: None,
        }
    }

    /// The vGPU's place in its queues, after its first waiting task changed.
    fn place(&mut self, state: &State, vgpu: VgpuKey) {
        let of = state.vgpu(vgpu);
        match of.waiting.front() {
            Some(task) if of.class.is_user_facing() => {
                self.first.set(vgpu.0, state.deadline_ns(*task));
            }
            _ => self.first.remove(vgpu.0),
        }
        // Hopeless tasks hold their vGPU's place, or those that meet their SLA would have all.
        let waits = !of.waiting.is_empty() || !self.late.tasks[vgpu.index()].is_empty();
        self.shares.set_waits(state, vgpu, waits);
        self.late.place(state, vgpu);
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
        self.shares.is_within(vgpu, state.config.slack_ns)
    }

    /// Who is next while a task waits that can meet its SLA. A run is stopped for that one only,
    /// and where it would run: else what was stopped would be picked again at once, for ever.
    fn next_vgpu(&self, state: &State) -> Option<VgpuKey> {
        let (_, urgent) = self.first.peek()?;
        let fair = self.shares.first(0)?;
        let urgent = VgpuKey(urgent);
        Some(if self.is_within(state, urgent) { urgent } else { fair })
    }

    /// While a task waits that can meet its SLA: the one of the earliest deadline if its vGPU is
    /// within its share; otherwise the smallest tag's, which may be hopeless and is owed all the
    /// same. With the device, which is another free one if only that is fast enough; none if none
    /// of them is, and the device is to be spared for something else.
    fn hopeful_task(
        &mut self,
        state: &mut State,
        now_ns: u64,
        device: DeviceKey,
        spare: bool,
    ) -> Option<(TaskKey, DeviceKey)> {
        loop {
            self.give_up(state, now_ns);
            let vgpu = self.next_vgpu(state)?;
            let device = match state.vgpu(vgpu).waiting.front() {
                Some(next) if awaits_faster(state, now_ns, *next, device) => {
                    let fits = |key: &u32| !awaits_faster(state, now_ns, *next, DeviceKey(*key));
                    match state.free.iter().copied().find(fits) {
                        Some(faster) => DeviceKey(faster),
                        None if spare => return None,
                        None => device,
                    }
                }
                Some(_) | None => device,
            };
            let Some(task) = self.take(state, vgpu) else {
                return Some((self.late.tasks[vgpu.index()].pop_front()?, device));
            };
            self.hopeful -= 1;
            if now_ns.saturating_add(state.remaining_ns(task)) <= state.deadline_ns(task) {
                return Some((task, device));
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

    fn oldest_late_task(&mut self) -> Option<TaskKey> {
        let (_, vgpu) = self.late.oldest.peek()?;
        self.late.tasks[vgpu as usize].pop_front()
    }

    /// The first one of the smallest tag's vGPU, while no user-facing vGPU has any other.
    fn late_task(&mut self) -> Option<TaskKey> {
        let vgpu = self.shares.first(0)?;
        self.late.tasks[vgpu.index()].pop_front()
    }

    fn batch_task(&mut self, state: &mut State) -> Option<TaskKey> {
        let vgpu = self.shares.first(1)?;
        self.take(state, vgpu)
    }

    /// Charges a user-facing task in advance what it should take, at most a quantum: its estimate
    /// may be its tenant's word. [`settle`](Policy::settle) and [`accrue`](Self::accrue) put it
    /// right. A batch task may be stopped at any time, and is charged what it had.
    fn begin(&mut self, state: &State, now_ns: u64, device: DeviceKey, task: TaskKey, kind: Kind) {
        let vgpu = state.task(task).vgpu;
        let rest_ns = state.remaining_on_ns(task, device);
        let ahead_ns = ahead_ns(state, state.is_batch(task), rest_ns);
        self.shares.start(state, vgpu, ahead_ns);
        if self.charges.len() <= device.index() {
            self.charges.resize(device.index() + 1, Charge::NONE);
        }
        let end_ns = now_ns.saturating_add(rest_ns);
        self.charges[device.index()] = Charge { kind, ahead_ns, until_ns: now_ns, end_ns };
        self.charge_at_ns = self.charge_at_ns.min(now_ns.saturating_add(period_ns(state)));
        self.overdue += u32::from(kind == Kind::Overdue);
        self.place(state, vgpu);
    }

    /// Charges runs that were not charged for a quantum what they had since.
    fn accrue(&mut self, state: &State, now_ns: u64) {
        if now_ns < self.charge_at_ns {
            return;
        }
        let period_ns = period_ns(state);
        let mut next_ns = u64::MAX;
        for (device, run) in state.keyed_runs() {
            let charge = &mut self.charges[device.index()];
            let used_ns = now_ns.saturating_sub(charge.until_ns);
            if used_ns >= period_ns {
                let rest_ns = charge.end_ns.saturating_sub(now_ns);
                let after_ns = ahead_ns(state, run.is_batch, rest_ns);
                let ahead = (charge.ahead_ns, after_ns);
                (charge.until_ns, charge.ahead_ns) = (now_ns, after_ns);
                self.shares.charge(state, state.task(run.task).vgpu, used_ns, ahead);
            }
            let charge = &self.charges[device.index()];
            next_ns = next_ns.min(charge.until_ns.saturating_add(period_ns));
        }
        self.charge_at_ns = next_ns;
    }

    /// Who may be stopped for a hopeful task, with the time of its next slice boundary.
    fn stoppable(&self, state: &State, now_ns: u64) -> Option<(u64, DeviceKey)> {
        let next = self.next_vgpu(state).and_then(|vgpu| state.vgpu(vgpu).waiting.front());
        let stops = |(device, run): (DeviceKey, &Run)| {
            if next.is_some_and(|task| awaits_faster(state, now_ns, *task, device)) {
                return None;
            }
            let is_late = self.charges[device.index()].kind == Kind::Late;
            let stops = !run.yields && (run.is_batch || is_late);
            stops.then(|| (boundary_ns(state, run, now_ns).max(run.protected_ns), device))
        };
        state.keyed_runs().filter_map(stops).min()
    }

    /// The device whose batch run, after its quantum, is the first that a batch vGPU that waits is
    /// owed more than, with the time of that; none if another one was told to stop by then. One
    /// that does not stop within a quantum of its time is not waited for: its kernel cannot be cut.
    fn turn(&self, state: &State, now_ns: u64) -> Option<(u64, DeviceKey)> {
        self.shares.first(1)?;
        let overtime_ns = state.config.batch_quantum_ns;
        let is_due = |run: &Run| run.stop_ns.saturating_add(overtime_ns) >= now_ns;
        let told = state.keyed_runs().filter(|(_, run)| run.is_batch && !run.yields);
        let told_ns = told.filter(|(_, run)| is_due(run)).map(|(_, run)| run.stop_ns).min();
        let ends = |(device, run): (DeviceKey, &Run)| {
            if run.yields || !run.is_batch {
                return None;
            }
            let more_ns = self.shares.until_owed_ns(state.task(run.task).vgpu)?;
            let owed_ns = self.charges[device.index()].until_ns.saturating_add(more_ns);
            let quantum_ns = run.since_ns.saturating_add(state.config.batch_quantum_ns);
            let at_ns = owed_ns.max(quantum_ns).max(now_ns);
            Some((boundary_ns(state, run, at_ns), device))
        };
        let turn = state.keyed_runs().filter_map(ends).min();
        turn.filter(|(at_ns, _)| told_ns.is_none_or(|told_ns| *at_ns < told_ns))
    }

    /// User-facing runs stop after a quantum while somebody waits whom no batch run makes way for;
    /// for batch tasks not before these are owed a device.
    fn end_long_runs(&self, state: &mut State, orders: &mut Vec<Order>) {
        let is_dry = state.waiting[1] > 0 && state.running[1] == 0;
        let patience_ns = state.config.batch_patience_ns;
        let dry_ns = self.dry_since_ns.filter(|_| is_dry);
        let from_ns = match dry_ns.map(|since_ns| since_ns.saturating_add(patience_ns)) {
            _ if state.waiting[0] > self.yielding => 0,
            Some(at_ns) => at_ns,
            None => return,
        };
        let quantum_ns = state.config.user_quantum_ns;
        for (device, of) in (0u32..).map(DeviceKey).zip(&mut state.devices) {
            if let Device::Running(run) = of
                && !run.is_batch
            {
                let at_ns = run.since_ns.saturating_add(quantum_ns).max(from_ns);
                tell(run, device, at_ns, orders);
            }
        }
    }
}

/// Whether a task can be done in time by another device of the pool, but not by this one.
fn awaits_faster(state: &State, now_ns: u64, task: TaskKey, device: DeviceKey) -> bool {
    let is_late = |rest_ns| now_ns.saturating_add(rest_ns) > state.deadline_ns(task);
    is_late(state.remaining_on_ns(task, device)) && !is_late(state.remaining_ns(task))
}

/// What a run is charged in advance that should go on for `rest_ns`.
fn ahead_ns(state: &State, is_batch: bool, rest_ns: u64) -> u64 {
    if is_batch { 0 } else { rest_ns.min(state.config.user_quantum_ns) }
}

/// How often a run is charged.
fn period_ns(state: &State) -> u64 {
    state.config.batch_quantum_ns.max(1)
}

/// The first slice boundary of a run that is not before `at_ns`.
fn boundary_ns(state: &State, run: &Run, at_ns: u64) -> u64 {
    let past_ns = at_ns.saturating_sub(run.since_ns);
    let slice_ns = state.config.slice_ns.max(1);
    let slices_ns = past_ns.checked_next_multiple_of(slice_ns).unwrap_or(u64::MAX);
    run.since_ns.saturating_add(slices_ns)
}

/// Tells a run to stop, unless it was told to stop as early.
fn tell(run: &mut Run, device: DeviceKey, at_ns: u64, orders: &mut Vec<Order>) {
    if at_ns < run.stop_ns {
        run.stop_ns = at_ns;
        orders.push(Order::Yield { device, at_ns });
    }
}

impl Policy for Deadline {
    fn add(&mut self, state: &State, vgpu: VgpuKey) {
        self.shares.add(state, vgpu);
        self.first.reserve(vgpu.0);
        self.late.reserve(vgpu);
    }

    fn remove(&mut self, state: &State, vgpu: VgpuKey) {
        self.shares.remove(vgpu, state.vgpu(vgpu));
    }

    fn set_tenant(&mut self, tenant: TenantKey, weight: Weight) {
        self.shares.set_tenant(tenant, weight);
    }

    /// Keeps by how much it is ahead, as service: a weight that is lowered for a moment wins
    /// nothing.
    fn changed(&mut self, state: &State, vgpu: VgpuKey, class: Class) {
        if state.vgpu(vgpu).class.is_user_facing() == class.is_user_facing() {
            self.shares.reweight(state, vgpu);
        } else {
            for (device, _) in state.runs_of(vgpu) {
                let charge = &mut self.charges[device.index()];
                if charge.kind == Kind::Late {
                    // Whether it may be stopped is its new class's to say.
                    charge.kind = Kind::Fair;
                }
            }
            self.shares.reclass(state, vgpu);
        }
        self.place(state, vgpu);
    }

    fn enter(&mut self, state: &mut State, now_ns: u64, task: TaskKey, first: bool) {
        self.accrue(state, now_ns);
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

    fn settle(&mut self, state: &mut State, now_ns: u64, device: DeviceKey, run: &Run) {
        let Charge { kind, ahead_ns, until_ns, .. } = self.charges[device.index()];
        self.yielding -= u32::from(run.yields);
        self.overdue -= u32::from(kind == Kind::Overdue);
        let vgpu = state.task(run.task).vgpu;
        let used_ns = now_ns.saturating_sub(until_ns);
        self.shares.charge(state, vgpu, used_ns, (ahead_ns, 0));
        self.shares.end(state, vgpu);
        self.place(state, vgpu);
    }

    fn plan(&mut self, state: &mut State, now_ns: u64) {
        self.accrue(state, now_ns);
        let is_dry = state.waiting[1] > 0 && state.running[1] == 0;
        self.dry_since_ns = if is_dry { self.dry_since_ns.or(Some(now_ns)) } else { None };
    }

    fn pick(&mut self, state: &mut State, now_ns: u64, device: DeviceKey) -> Option<Pick> {
        if self.is_starving(state, now_ns)
            && let Some(task) = self.batch_task(state)
        {
            self.dry_since_ns = None;
            self.begin(state, now_ns, device, task, Kind::Fair);
            return Some(Pick {
                task,
                protected_ns: state.config.batch_quantum_ns,
                elsewhere: None,
            });
        }
        if self.is_overdue(state, now_ns)
            && let Some(task) = self.oldest_late_task()
        {
            self.begin(state, now_ns, device, task, Kind::Overdue);
            return Some(Pick::whole(task));
        }
        if let Some((task, on)) = self.hopeful_task(state, now_ns, device, true) {
            self.begin(state, now_ns, on, task, Kind::Fair);
            return Some(Pick { elsewhere: Some(on), ..Pick::whole(task) });
        }
        let other = self.late_task().map(|task| (task, Kind::Late));
        let other = other.or_else(|| Some((self.batch_task(state)?, Kind::Fair)));
        if let Some((task, kind)) = other {
            self.begin(state, now_ns, device, task, kind);
            return Some(Pick { task, protected_ns: 0, elsewhere: None });
        }
        // A device that is too slow for it does better than none.
        let (task, on) = self.hopeful_task(state, now_ns, device, false)?;
        self.begin(state, now_ns, on, task, Kind::Fair);
        Some(Pick { elsewhere: Some(on), ..Pick::whole(task) })
    }

    fn orders(&mut self, state: &mut State, now_ns: u64, orders: &mut Vec<Order>) {
        while self.hopeful > self.yielding {
            let Some((at_ns, device)) = self.stoppable(state, now_ns) else { break };
            if let Device::Running(run) = &mut state.devices[device.index()] {
                run.yields = true;
                tell(run, device, at_ns, orders);
            }
            self.yielding += 1;
        }
        if let Some((at_ns, device)) = self.turn(state, now_ns)
            && let Device::Running(run) = &mut state.devices[device.index()]
        {
            tell(run, device, at_ns, orders);
        }
        self.end_long_runs(state, orders);
    }

    fn kept(&self, state: &State) -> u32 {
        state.running[0]
    }

    fn put(&self, out: &mut Vec<u8>) {
        Codec::put(self, out);
    }
}
