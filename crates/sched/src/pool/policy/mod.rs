//! Pool policies: which task runs on a device that is free, and which device is freed for whom.
//! One file each, and one line in the registry below.
//!
//! [`Pool::handle`](super::Pool::handle) calls the hooks of `Policy` in this order: `enter` for a
//! task that waits, `leave` for one that is taken back, `settle` for one that ended; `changed`
//! for a vGPU that is owed something else from now on, between `leave` and `enter` for all of its
//! tasks that wait if its class is another one; then `plan`, `pick` once for each free device by
//! key, and `orders`.

mod adaptive;
mod deadline;
mod fifo;
mod flexy;
mod priority;
mod resets;
mod rotation;
mod round_robin;
mod shares;

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;

use super::state::{Run, State};
use super::types::PoolConfig;
use crate::class::Class;
use crate::codec::{Codec, Malformed, Reader};
use crate::key::{DeviceKey, TaskKey, TenantKey, VgpuKey, Weight};

/// Declares the registry: the order is the order of [`NAMES`], the first is the default.
macro_rules! registry {
    ($($name:literal: $policy:ty, $summary:literal
       $(, keeps devices: $keeps:literal)? $(, bounds batch: $bounds:literal)?;)+) => {
        const REGISTRY: &[Entry] = &[$(Entry {
            name: $name,
            summary: $summary,
            keeps_devices: [$($keeps,)? false][0],
            bounds_batch: [$($bounds,)? false][0],
            build: |config| Box::new(<$policy>::new(config)),
            take: |input| Ok(Box::new(<$policy as Codec>::take(input)?)),
        }),+];

        /// The names of all pool policies.
        pub const NAMES: &[&str] = &[$($name),+];
    };
}

registry! {
    "deadline": deadline::Deadline, "what can meet its SLA first; batch yields within a slice",
        bounds batch: true;
    "fifo": fifo::Fifo, "one queue, whatever the class: the negative control";
    "round_robin": round_robin::RoundRobin, "a model of Flexy's baseline: vGPUs in turn";
    "priority": priority::Priority, "a model of Flexy's priority: user-facing vGPUs first";
    "flexy": flexy::Flexy, "a model of Flexy: a pool for user-facing tasks by Little's law",
        keeps devices: true;
    "adaptive": adaptive::Adaptive, "flexy with K by a PID controller on measured latency",
        keeps devices: true;
}

struct Entry {
    name: &'static str,
    summary: &'static str,
    keeps_devices: bool,
    bounds_batch: bool,
    build: fn(&PoolConfig) -> Box<dyn Policy>,
    take: fn(&mut Reader<'_>) -> Result<Box<dyn Policy>, Malformed>,
}

/// A policy of the registry.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct PoolPolicyId(u8);

/// The pool policy of that name.
pub fn by_name(name: &str) -> Option<PoolPolicyId> {
    (0u8..).zip(NAMES).find(|(_, known)| **known == name).map(|(id, _)| PoolPolicyId(id))
}

impl PoolPolicyId {
    /// Its name.
    pub fn name(self) -> &'static str {
        self.entry().name
    }

    /// What it does, in half a line.
    pub fn summary(self) -> &'static str {
        self.entry().summary
    }

    /// Whether it keeps free devices from batch tasks by itself, for user-facing tasks to come.
    pub fn keeps_devices(self) -> bool {
        self.entry().keeps_devices
    }

    /// Whether it bounds how long batch vGPUs wait.
    pub fn bounds_batch_wait(self) -> bool {
        self.entry().bounds_batch
    }

    pub(super) fn build(self, config: &PoolConfig) -> Box<dyn Policy> {
        (self.entry().build)(config)
    }

    pub(super) fn take(self, input: &mut Reader<'_>) -> Result<Box<dyn Policy>, Malformed> {
        (self.entry().take)(input)
    }

    fn entry(self) -> &'static Entry {
        &REGISTRY[usize::from(self.0)]
    }
}

impl Codec for PoolPolicyId {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(self.0);
    }

    fn take(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        let id = u32::take(input)?;
        let known = u8::try_from(id).ok().filter(|id| usize::from(*id) < REGISTRY.len());
        known.map(Self).ok_or_else(|| input.malformed("pool policy"))
    }
}

impl fmt::Debug for PoolPolicyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The task for a device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pick {
    pub(super) task: TaskKey,
    /// For so long it is not told to yield, in ns.
    pub(super) protected_ns: u64,
}

impl Pick {
    fn whole(task: TaskKey) -> Self {
        Self { task, protected_ns: u64::MAX }
    }
}

/// What a policy wants of a busy device.
#[derive(Clone, Copy, Debug)]
pub(super) enum Order {
    Yield { device: DeviceKey, at_ns: u64 },
    Reset { device: DeviceKey, run: Run },
}

/// See the module.
pub(super) trait Policy: fmt::Debug + Send {
    /// A vGPU joined; its key may have been another's before.
    fn add(&mut self, _state: &State, _vgpu: VgpuKey) {}

    /// A vGPU without tasks is about to leave.
    fn remove(&mut self, _state: &State, _vgpu: VgpuKey) {}

    /// A tenant's share is another one from now on.
    fn set_tenant(&mut self, _tenant: TenantKey, _weight: Weight) {}

    /// A vGPU had that class until now. If its class is another one, none of its tasks is in a
    /// queue at the moment.
    fn changed(&mut self, _state: &State, _vgpu: VgpuKey, _class: Class) {}

    /// `task` waits; `first` if it goes on or begins anew, so before its vGPU's others.
    fn enter(&mut self, state: &mut State, now_ns: u64, task: TaskKey, first: bool);

    /// `task`, which waits, is taken back. It is still a task.
    fn leave(&mut self, state: &mut State, task: TaskKey);

    /// A device's run ended: done, stopped or lost. Its task is still one.
    fn settle(&mut self, _state: &mut State, _now_ns: u64, _device: DeviceKey, _run: &Run) {}

    /// A user-facing task was done so long after its submission.
    fn served(&mut self, _now_ns: u64, _latency_ns: u64) {}

    /// Before the picks of an event.
    fn plan(&mut self, _state: &mut State, _now_ns: u64) {}

    /// Takes the task for `device`, which is free, out of its queue.
    fn pick(&mut self, state: &mut State, now_ns: u64, device: DeviceKey) -> Option<Pick>;

    /// After the picks: which busy devices are to be freed.
    fn orders(&mut self, _state: &mut State, _now_ns: u64, _orders: &mut Vec<Order>) {}

    /// Devices that it keeps for user-facing tasks now.
    fn kept(&self, state: &State) -> u32 {
        state.reserved()
    }

    /// Appends its state.
    fn put(&self, out: &mut Vec<u8>);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_policy_says_what_it_keeps_and_bounds() {
        let of = |kept: fn(PoolPolicyId) -> bool| -> Vec<&str> {
            NAMES.iter().copied().filter(|name| kept(by_name(name).unwrap())).collect()
        };
        assert_eq!(of(PoolPolicyId::keeps_devices), ["flexy", "adaptive"]);
        assert_eq!(of(PoolPolicyId::bounds_batch_wait), ["deadline"]);
    }
}
