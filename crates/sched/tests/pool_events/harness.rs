//! A pool against any bytes: events in any order, most of which make no sense.
//!
//! What the pool refuses must change nothing. What it takes is held against the invariants that
//! hold under every policy; its journal must replay, and a pool that goes on from a snapshot must
//! be the same one. The fuzz target `pool_events` and the replay of its corpus both call
//! [`attack`].

#[path = "../model/bytes.rs"]
mod bytes;

use std::collections::BTreeSet;

use bytes::Bytes;
use weft_sched::journal::{PoolReplay, PoolWriter};
use weft_sched::pool::invariants::{Limits, Trace};
use weft_sched::pool::{Class, Pool, PoolAction, PoolConfig, PoolEvent, policy};
use weft_sched::{DeviceKey, TaskKey, TenantKey, VgpuKey, Weight};

/// Kinds of events.
pub const EVENTS: u64 = 12;
/// Kinds of actions.
pub const ACTIONS: usize = 3;

/// What an input came to.
#[derive(Debug, Default)]
pub struct Reached {
    /// Kinds of events that the pool took.
    pub events: BTreeSet<u64>,
    /// Kinds of actions that it answered.
    pub actions: BTreeSet<usize>,
    /// Under this policy.
    pub policy: &'static str,
    /// Events that it took in all.
    pub taken: u64,
}

/// Puts a pool through what the bytes say.
///
/// # Panics
/// If an invariant breaks.
pub fn attack(data: &[u8]) -> Reached {
    let mut source = Bytes(data);
    let config = any_config(&mut source);
    let mut reached = Reached { policy: config.policy.name(), ..Reached::default() };
    let mut pool = Pool::new(config);
    let mut trace = Trace::new(Limits::default());
    let (mut file, mut actions, mut now_ns) = (Vec::new(), Vec::new(), 0u64);
    let mut writer = PoolWriter::begin(&pool, &mut file);
    while !source.is_used_up() {
        let most_ns = 1 << (8 * source.number(5));
        now_ns += source.number(most_ns);
        let kind = source.number(EVENTS + 1);
        if kind == EVENTS {
            let bytes = pool.snapshot();
            pool = Pool::restore(&bytes).expect("a pool's own snapshot");
            assert_eq!(pool.snapshot(), bytes, "a restored pool is another one");
            continue;
        }
        let event = any_event(kind, &mut source);
        let before = pool.snapshot();
        actions.clear();
        let result = pool.handle(now_ns, event, &mut actions);
        writer.record(now_ns, &event, result.as_ref().copied(), &actions, &mut file);
        if result.is_err() {
            assert!(actions.is_empty(), "{event:?} is refused and has actions");
            assert_eq!(pool.snapshot(), before, "{event:?} is refused and changes the pool");
            continue;
        }
        if let Err(broken) = trace.step(now_ns, &event, &actions) {
            panic!("{broken}, after {event:?}: {actions:?}");
        }
        reached.events.insert(kind);
        reached.actions.extend(actions.iter().map(number_of));
        reached.taken += 1;
    }
    let mut replay = PoolReplay::new(&file).expect("a journal");
    replay.run().expect("no difference");
    reached
}

fn number_of(action: &PoolAction) -> usize {
    match action {
        PoolAction::Run { .. } => 0,
        PoolAction::Yield { .. } => 1,
        PoolAction::Reset { .. } => 2,
    }
}

fn any_config(source: &mut Bytes<'_>) -> PoolConfig {
    let place = usize::try_from(source.number(policy::NAMES.len() as u64)).unwrap_or(0);
    let policy = policy::by_name(policy::NAMES[place]).unwrap_or_default();
    let mut config = PoolConfig { policy, ..PoolConfig::default() };
    config.reserved = key(source, 4);
    config.reset = source.number(2) == 1;
    config.by_tenant = source.number(2) == 1;
    config.counts_serving = source.number(2) == 1;
    config.recent = key(source, 5);
    let mut time = || match source.number(8) {
        0 => 0,
        1 => u64::MAX,
        _ => source.number(1 << 32),
    };
    (config.sla_ns, config.reset_ns) = (time(), time());
    (config.slice_ns, config.slack_ns) = (time(), time());
    (config.batch_patience_ns, config.late_patience_ns) = (time(), time());
    (config.batch_quantum_ns, config.user_quantum_ns) = (time(), time());
    config
}

/// An event about few devices, vGPUs and tasks, so that many meet.
fn any_event(kind: u64, source: &mut Bytes<'_>) -> PoolEvent {
    let (device, tenant) = (DeviceKey(key(source, 4)), TenantKey(key(source, 3)));
    let (vgpu, task) = (VgpuKey(key(source, 5)), TaskKey(key(source, 8)));
    let weight = Weight::new(1 + key(source, 5)).unwrap_or_default();
    match kind {
        0 => PoolEvent::DeviceUp { device },
        1 => PoolEvent::DeviceDown { device },
        2 => PoolEvent::SetTenant { tenant, weight },
        3 => PoolEvent::AddVgpu { vgpu, tenant, class: any_class(source), weight },
        4 => PoolEvent::SetVgpu { vgpu, class: any_class(source), weight },
        5 => PoolEvent::RemoveVgpu { vgpu },
        6 => PoolEvent::Submit { task, vgpu, estimate_ns: any_estimate(source) },
        7 => PoolEvent::Finished { device, task },
        8 => PoolEvent::Stopped { device, task },
        9 => PoolEvent::Lost { device, task },
        10 => PoolEvent::Cancel { task },
        _ => PoolEvent::ResetDone { device },
    }
}

fn any_class(source: &mut Bytes<'_>) -> Class {
    match source.number(3) {
        0 => Class::Batch,
        1 => Class::UserFacing { sla_ns: source.number(1 << 32) },
        _ => Class::UserFacing { sla_ns: u64::MAX },
    }
}

fn any_estimate(source: &mut Bytes<'_>) -> u64 {
    match source.number(4) {
        0 => 0,
        1 => u64::MAX,
        _ => source.number(1 << 32),
    }
}

fn key(source: &mut Bytes<'_>, limit: u64) -> u32 {
    u32::try_from(source.number(limit)).unwrap_or(0)
}
