//! Somebody outside the core says who should be next.

use weft_sched::{
    Action, Actions, Config, DeviceKey, Event, Node, SessionKey, TenantKey, Usage, VgpuKey, Weight,
};

const D: DeviceKey = DeviceKey(0);
const MS: u64 = 1_000_000;

/// A device whose sessions, one of each vGPU, always have work and use each turn up.
struct Device {
    node: Node,
    now_ns: u64,
    quantum_ns: u64,
    used_ns: Vec<u64>,
    holder: Option<(SessionKey, u64)>,
}

impl Device {
    /// vGPUs of these weights, of a tenant each or all of one.
    fn new(weights: &[u32], apart: bool, reach_ns: u64) -> Self {
        let config = Config { reach_ns, ..Config::default() };
        let (node, quantum_ns) = (Node::new(), config.quantum_ns);
        let used_ns = vec![0; weights.len()];
        let mut device = Self { node, now_ns: 0, quantum_ns, used_ns, holder: None };
        device.tell(Event::DeviceUp { device: D, config });
        for (key, weight) in (0..).zip(weights) {
            let weight = Weight::new(*weight).unwrap();
            let (vgpu, session) = (VgpuKey(key), SessionKey(key));
            let tenant = if apart { TenantKey(key + 1) } else { TenantKey::DEFAULT };
            if apart {
                device.tell(Event::AddTenant { tenant, weight });
            }
            device.tell(Event::AddVgpu { vgpu, tenant, device: D, weight });
            device.tell(Event::AddSession { session, vgpu });
        }
        for key in (0..).take(weights.len()) {
            device.tell(Event::Runnable { session: SessionKey(key), estimate_ns: 0 });
        }
        device
    }

    fn tell(&mut self, event: Event) {
        let mut actions = Actions::new();
        self.node.handle(self.now_ns, event, &mut actions).unwrap();
        for action in actions.drain() {
            if let Action::Grant { session, epoch, .. } = action {
                self.holder = Some((session, epoch));
            }
        }
    }

    /// A turn, in which `prefer` says who of those within reach should be next. Whose it was.
    fn turn(&mut self, prefer: impl FnOnce(&[VgpuKey]) -> Option<VgpuKey>) -> u32 {
        let (session, epoch) = self.holder.take().unwrap();
        if let Some(vgpu) = prefer(&self.node.within_reach(D)) {
            self.tell(Event::Prefer { vgpu });
        }
        self.now_ns += self.quantum_ns;
        self.used_ns[session.0 as usize] += self.quantum_ns;
        let used_ns = self.used_ns[session.0 as usize];
        let usage = Usage { used_ns, in_flight_ns: 0, idle_ns: 0 };
        self.tell(Event::Released { session, epoch, usage });
        session.0
    }
}

/// In an order of their own, round after round, and nobody is a turn ahead of another one.
#[test]
fn an_order_is_followed_within_a_quantum() {
    const ORDER: [u32; 5] = [0, 3, 1, 4, 2];
    for apart in [false, true] {
        let mut device = Device::new(&[1; 5], apart, 6 * MS);
        let mut last = 0;
        let mut seen = Vec::new();
        for _ in 0..50 {
            let turn = ORDER.iter().position(|key| *key == last).unwrap();
            let wanted = VgpuKey(ORDER[(turn + 1) % ORDER.len()]);
            let whose = device.turn(|within| Some(wanted).filter(|one| within.contains(one)));
            seen.push(whose);
            last = device.holder.unwrap().0.0;
            let (least, most) = (device.used_ns.iter().min(), device.used_ns.iter().max());
            assert!(most.unwrap() - least.unwrap() <= device.quantum_ns, "{seen:?}");
        }
        let expected: Vec<u32> = ORDER.into_iter().cycle().take(50).collect();
        assert_eq!(seen, expected);
    }
}

/// The control: without a reach nobody is before whoever is behind, whoever is preferred.
#[test]
fn without_a_reach_only_equals_change_places() {
    let mut device = Device::new(&[1; 4], false, 0);
    for _ in 0..40 {
        device.turn(|_| Some(VgpuKey(3)));
        let (least, most) = (device.used_ns.iter().min(), device.used_ns.iter().max());
        assert!(most.unwrap() - least.unwrap() <= device.quantum_ns);
    }
    assert_eq!(device.used_ns, [10 * 6 * MS; 4]);
}

/// Who is always preferred has its share and a turn or two more, at any weight.
#[test]
fn who_is_always_preferred_gets_no_more_than_the_reach() {
    for (apart, weight) in [(false, 1), (true, 1), (false, 3), (true, 3)] {
        let mut device = Device::new(&[weight, 1, 1, 1], apart, 6 * MS);
        for _ in 0..600 {
            device.turn(|_| Some(VgpuKey(0)));
        }
        let part_ns = 600 * device.quantum_ns * u64::from(weight) / u64::from(weight + 3);
        let over_ns = device.used_ns[0].abs_diff(part_ns);
        assert!(over_ns <= 2 * device.quantum_ns, "{weight}: {over_ns} ns");
    }
}

/// It holds for one turn, and not for who sleeps by then.
#[test]
fn a_preference_ends_with_the_turn_and_is_nothing_to_who_sleeps() {
    let mut device = Device::new(&[1; 4], false, 6 * MS);
    assert_eq!(device.turn(|_| Some(VgpuKey(2))), 0);
    assert_eq!(device.turn(|_| None), 2);
    assert_eq!([device.turn(|_| None), device.turn(|_| None)], [1, 3]);
    device.tell(Event::Prefer { vgpu: VgpuKey(3) });
    device.tell(Event::Idle { session: SessionKey(3) });
    assert_eq!(device.turn(|_| None), 0);
    assert_ne!(device.holder.unwrap().0, SessionKey(3));
    assert!(!device.node.within_reach(D).contains(&VgpuKey(3)), "it does not wait");
}
