//! The scheduling core against any bytes, in two ways.
//!
//! The first byte chooses. Even: the bytes are a history of the model, a driver that keeps its
//! promises, and every invariant is checked. Odd: they are events of a driver that keeps none,
//! and the core must neither panic nor lose its own tables, and its journal must replay. The fuzz
//! target
//! `sched_events` and the replay of its corpus both call [`attack`].

#[path = "../model/bytes.rs"]
mod bytes;
#[path = "../model/mod.rs"]
mod model;

use bytes::Bytes;
use model::histories::{Source, play};
use weft_sched::invariants::audit;
use weft_sched::journal::{Replay, Writer};
use weft_sched::{
    Actions, Cap, Class, Config, DeviceKey, Event, Node, SessionKey, TenantKey, Usage, VgpuKey,
    Weight, policy,
};

/// The longest history that an input may cause.
const DECISIONS: u64 = 3_000;

impl Source for Bytes<'_> {
    fn below(&mut self, limit: u64) -> u64 {
        self.number(limit)
    }

    fn is_empty(&self) -> bool {
        self.is_used_up()
    }
}

/// Puts the core through what the bytes say.
pub fn attack(data: &[u8]) {
    let Some((way, rest)) = data.split_first() else { return };
    if way % 2 == 0 {
        play(&mut Bytes(rest), DECISIONS);
    } else {
        mislead(&mut Bytes(rest));
    }
}

fn mislead(source: &mut Bytes<'_>) {
    let mut node = Node::new();
    let (mut now_ns, mut actions, mut file) = (0, Actions::new(), Vec::new());
    let mut writer = Writer::begin(&node, &mut file);
    while !source.is_empty() {
        let most_ns = 1 << (8 * source.below(4));
        now_ns += source.below(most_ns);
        let event = any_event(source);
        let result = node.handle(now_ns, event, &mut actions);
        writer.record(now_ns, &event, result, actions.as_slice(), &mut file);
        actions.clear();
        if let Err(broken) = audit(&node) {
            panic!("{broken}, after {event:?}");
        }
    }
    Replay::new(&file).expect("a journal").run().expect("no difference");
}

fn any_policy(source: &mut Bytes<'_>) -> weft_sched::PolicyId {
    let names = policy::NAMES;
    let choice = usize::try_from(source.below(names.len() as u64)).unwrap_or(0);
    policy::by_name(names[choice]).unwrap_or_default()
}

/// Settings of a device; some are refused.
fn any_config(source: &mut Bytes<'_>) -> Config {
    let policy = any_policy(source);
    let (quantum_ns, sleeper_credit_ns) = (source.below(1 << 24), source.below(1 << 23));
    Config { policy, quantum_ns, sleeper_credit_ns, ..Config::default() }
}

fn any_event(source: &mut Bytes<'_>) -> Event {
    let kind = source.below(28);
    let mut key = |limit| u32::try_from(source.below(limit)).unwrap_or(0);
    let (device, tenant) = (DeviceKey(key(2)), TenantKey(key(4)));
    let (vgpu, session) = (VgpuKey(key(5)), SessionKey(key(7)));
    let weight = Weight::new(1 + key(5)).unwrap_or_default();
    match kind {
        0 => Event::DeviceUp { device, config: any_config(source) },
        1 => Event::DeviceDown { device },
        2 => Event::AddTenant { tenant, weight },
        3 => Event::RemoveTenant { tenant },
        4 => Event::ReweightTenant { tenant, weight },
        5 | 6 => Event::AddVgpu { vgpu, tenant, device, weight },
        7 => Event::RemoveVgpu { vgpu },
        8 => Event::Reweight { vgpu, weight },
        9 => Event::SetCap { vgpu, cap: any_cap(source) },
        10 | 11 => Event::AddSession { session, vgpu },
        12 => Event::ReweightSession { session, weight },
        13 => Event::RemoveSession { session },
        14 | 15 => Event::Runnable { session, estimate_ns: source.below(1 << 20) },
        16 => Event::Idle { session },
        17 => Event::Used { session, usage: any_usage(source) },
        18 | 19 => {
            let epoch = source.below(64);
            Event::Released { session, epoch, usage: any_usage(source) }
        }
        20 => Event::SyncCalls { session, calls: source.below(1 << 10) },
        21 => Event::OnCpu { vgpu, on: source.below(2) == 0 },
        22 => Event::Adopt { session, epoch: source.below(64), budget_ns: source.below(1 << 24) },
        24 => Event::MoveVgpu { vgpu, device },
        23 => Event::SetClass { vgpu, class: any_class(source) },
        26 => Event::SetTenantCap { tenant, cap: any_cap(source) },
        27 => Event::SetOwner { vgpu, owner: u32::try_from(source.below(3)).unwrap_or(0) },
        _ if source.below(2) == 0 => Event::SetPolicy { device, policy: any_policy(source) },
        _ => Event::Timer,
    }
}

fn any_usage(source: &mut Bytes<'_>) -> Usage {
    let mut counter = || match source.below(8) {
        0 => u64::MAX,
        _ => source.below(1 << 28),
    };
    Usage { used_ns: counter(), in_flight_ns: counter(), idle_ns: counter() }
}

fn any_class(source: &mut Bytes<'_>) -> Class {
    if source.below(2) == 0 { Class::Batch } else { Class::UserFacing { sla_ns: 1 } }
}

fn any_cap(source: &mut Bytes<'_>) -> Option<Cap> {
    let share_ppm = u32::try_from(source.below(1_100_000)).unwrap_or(0);
    let period_ns = source.below(1 << 30);
    (source.below(4) > 0).then_some(Cap { share_ppm, period_ns })
}
