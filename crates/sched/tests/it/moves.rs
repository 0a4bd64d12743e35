//! vGPUs that go from device to device: what they owe goes with them.

use std::collections::BTreeMap;

use weft_sched::invariants::audit;
use weft_sched::{
    Action, Actions, Cap, Class, Config, DeviceKey, Event, EventError, Node, SessionKey, TenantKey,
    Usage, VgpuKey, Weight,
};

const MS: u64 = 1_000_000;
/// The device executes for so long between two looks at it.
const STEP_NS: u64 = MS / 10;

/// Devices on which whoever has a turn always has work.
struct Devices {
    now_ns: u64,
    node: Node,
    /// The turns: epoch, budget, what was used in it, and whether it is to end.
    turns: BTreeMap<SessionKey, (u64, u64, u64, bool)>,
    used_ns: BTreeMap<SessionKey, u64>,
}

impl Devices {
    fn new(configs: &[Config]) -> Self {
        let (turns, used_ns) = (BTreeMap::new(), BTreeMap::new());
        let mut devices = Self { now_ns: 0, node: Node::new(), turns, used_ns };
        for (device, config) in (0..).map(DeviceKey).zip(configs) {
            devices.tell(Event::DeviceUp { device, config: *config });
        }
        devices
    }

    /// A tenant with a vGPU, which has a session that has work: all of this key.
    fn tenant(&mut self, key: u32, device: u32) {
        let (tenant, vgpu, session) = (TenantKey(key), VgpuKey(key), SessionKey(key));
        let device = DeviceKey(device);
        self.tell(Event::AddTenant { tenant, weight: Weight::ONE });
        self.tell(Event::AddVgpu { vgpu, tenant, device, weight: Weight::ONE });
        self.tell(Event::AddSession { session, vgpu });
        self.wake(key);
    }

    fn wake(&mut self, key: u32) {
        self.tell(Event::Runnable { session: SessionKey(key), estimate_ns: MS });
    }

    fn tell(&mut self, event: Event) {
        let mut actions = Actions::new();
        self.node.handle(self.now_ns, event, &mut actions).unwrap();
        audit(&self.node).unwrap();
        for action in actions.drain() {
            match action {
                Action::Grant { session, epoch, budget_ns, .. } => {
                    let turn = self.turns.entry(session).or_insert((epoch, 0, 0, false));
                    if turn.0 != epoch {
                        *turn = (epoch, 0, 0, false);
                    }
                    turn.1 = budget_ns;
                }
                Action::Revoke { session, .. } => {
                    self.turns.entry(session).and_modify(|turn| turn.3 = true);
                }
                Action::Kill { .. } => panic!("nobody is overdue"),
                Action::Wake { .. }
                | Action::Prepare { .. }
                | Action::DeviceIdle { .. }
                | Action::Timer { .. }
                | Action::CancelTimer => {}
            }
        }
    }

    fn usage(&self, session: SessionKey) -> Usage {
        let used_ns = self.used_ns.get(&session).copied().unwrap_or_default();
        Usage { used_ns, in_flight_ns: 0, idle_ns: 0 }
    }

    fn step(&mut self) {
        self.now_ns += STEP_NS;
        let holders: Vec<SessionKey> = self.turns.keys().copied().collect();
        for session in holders {
            *self.used_ns.entry(session).or_default() += STEP_NS;
            let usage = self.usage(session);
            self.tell(Event::Used { session, usage });
            let Some(turn) = self.turns.get_mut(&session) else { continue };
            turn.2 += STEP_NS;
            if turn.3 || turn.2 >= turn.1 {
                let epoch = turn.0;
                self.turns.remove(&session);
                self.tell(Event::Released { session, epoch, usage });
            }
        }
        if self.node.poll_timeout().is_some_and(|(at_ns, _)| at_ns <= self.now_ns) {
            self.tell(Event::Timer);
        }
    }

    fn move_to(&mut self, key: u32, device: u32) {
        self.turns.remove(&SessionKey(key));
        self.tell(Event::MoveVgpu { vgpu: VgpuKey(key), device: DeviceKey(device) });
    }

    fn device(&self, key: u32) -> u32 {
        self.node.vgpu(VgpuKey(key)).unwrap().device.0
    }

    fn used(&self, key: u32) -> u64 {
        self.usage(SessionKey(key)).used_ns
    }

    fn run_for(&mut self, ns: u64) {
        (0..ns / STEP_NS).for_each(|_| self.step());
    }
}

fn config(quantum_ms: u64) -> Config {
    Config { quantum_ns: quantum_ms * MS, ..Config::default() }
}

#[test]
fn who_goes_where_others_have_waited_less_waits_as_it_would_have() {
    let mut devices = Devices::new(&[config(6), config(6)]);
    for (key, device) in [(1, 0), (2, 0), (3, 1)] {
        devices.tenant(key, device);
    }
    // Tenant 1 leaves each device after a whole turn there: the other one's tenant was alone.
    let mut since = devices.used(1);
    for _ in 0..10_000 {
        devices.step();
        if devices.used(1) >= since + 6 * MS {
            since = devices.used(1);
            let to = 1 - devices.device(1);
            devices.move_to(1, to);
            devices.wake(1);
        }
    }
    let share = devices.used(1) as f64 / devices.now_ns as f64;
    assert!((0.4..=0.52).contains(&share), "{share} of a device");
}

#[test]
fn it_is_as_far_ahead_but_no_further_than_anybody_may_be() {
    let mut devices = Devices::new(&[config(6), config(6), config(1)]);
    for (key, device) in [(1, 0), (2, 0), (3, 1), (4, 2)] {
        devices.tenant(key, device);
    }
    while devices.used(1) < 6 * MS {
        devices.step();
    }
    // The moment of its turn's end: the others of its device have not had theirs.
    devices.move_to(1, 1);
    devices.wake(1);
    let before = devices.used(3);
    while devices.used(1) == 6 * MS {
        devices.step();
    }
    let waited_ns = devices.used(3) - before;
    assert!((6 * MS..=13 * MS).contains(&waited_ns), "{waited_ns} ns");
    devices.move_to(1, 2);
    devices.wake(1);
    let (own, before) = (devices.used(1), devices.used(4));
    while devices.used(1) == own {
        devices.step();
    }
    let waited_ns = devices.used(4) - before;
    assert!(waited_ns <= 3 * MS, "{waited_ns} ns, where a quantum is one millisecond");
}

#[test]
fn cap_class_and_totals_go_along() {
    let mut devices = Devices::new(&[config(6), config(6)]);
    devices.tenant(1, 0);
    devices.tenant(2, 1);
    let cap = Cap { share_ppm: 250_000, period_ns: 20 * MS };
    devices.tell(Event::SetCap { vgpu: VgpuKey(1), cap: Some(cap) });
    devices.run_for(100 * MS);
    let used = devices.used(1);
    devices.move_to(1, 1);
    let view = devices.node.vgpu(VgpuKey(1)).unwrap();
    assert_eq!((view.used_ns, view.cap, view.is_runnable), (used, Some(cap), false));
    devices.wake(1);
    devices.run_for(200 * MS);
    let more = devices.used(1) - used;
    assert!((40 * MS..=56 * MS).contains(&more), "{more} ns of a quarter of 200 ms");
    // The device that it left is not waited for, and a class is known where it came.
    assert_eq!(devices.node.holders(DeviceKey(0)), []);
    let class = Class::UserFacing { sla_ns: MS };
    devices.tell(Event::SetClass { vgpu: VgpuKey(1), class });
    devices.move_to(1, 0);
    devices.tenant(5, 0);
    assert!(devices.node.slice_ns(SessionKey(5)).is_some(), "somebody user-facing is attached");
    assert!(devices.node.slice_ns(SessionKey(2)).is_none(), "and nobody there any more");
}

/// A tenant's cap is each device's: what was used here is not counted there, and who comes back
/// finds it counted.
#[test]
fn a_tenants_cap_stays_with_the_device() {
    let mut devices = Devices::new(&[config(6), config(6)]);
    devices.tenant(1, 0);
    devices.tenant(2, 1);
    let tenant = devices.node.vgpu(VgpuKey(1)).unwrap().tenant;
    let cap = Cap { share_ppm: 250_000, period_ns: 40 * MS };
    devices.tell(Event::SetTenantCap { tenant, cap: Some(cap) });
    devices.run_for(20 * MS);
    assert_eq!(devices.used(1), 10 * MS);
    devices.move_to(1, 1);
    devices.wake(1);
    devices.run_for(10 * MS);
    let there = devices.used(1) - 10 * MS;
    assert!(there >= 5 * MS, "{there} ns of another allowance");
    devices.move_to(1, 0);
    devices.wake(1);
    devices.run_for(8 * MS);
    assert_eq!(devices.used(1), 10 * MS + there, "nothing of this period is left here");
}

#[test]
fn a_move_to_nowhere_changes_nothing_and_one_to_where_it_is_neither() {
    let mut devices = Devices::new(&[config(6)]);
    devices.tenant(1, 0);
    let before = devices.node.snapshot();
    let (vgpu, device) = (VgpuKey(1), DeviceKey(7));
    let refused = devices.node.handle(0, Event::MoveVgpu { vgpu, device }, &mut Actions::new());
    assert_eq!(refused, Err(EventError::UnknownDevice(device)));
    devices.tell(Event::MoveVgpu { vgpu, device: DeviceKey(0) });
    assert_eq!(devices.node.snapshot(), before);
}
