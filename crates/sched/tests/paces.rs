//! A pool of devices that differ in speed, of which its estimates know nothing.
#![expect(clippy::unwrap_used, reason = "a panic here is the test's report")]

use weft_sched::pool::{Class, Pool, PoolAction, PoolConfig, PoolEvent};
use weft_sched::{DeviceKey, TaskKey, TenantKey, VgpuKey, Weight};

const MS: u64 = 1_000_000;
const SLOW: DeviceKey = DeviceKey(0);
const FAST: DeviceKey = DeviceKey(1);
const ANSWERS: VgpuKey = VgpuKey(0);
const OTHER: VgpuKey = VgpuKey(1);
const NIGHTLY: VgpuKey = VgpuKey(2);
/// What tasks are thought to take, and take on the fast device; on the other one four times that.
const ESTIMATE_NS: u64 = 100 * MS;

struct Two {
    pool: Pool,
    now_ns: u64,
    next: u32,
}

impl Two {
    fn new() -> Self {
        let mut two = Self { pool: Pool::new(PoolConfig::default()), now_ns: 0, next: 0 };
        let user = Class::UserFacing { sla_ns: 200 * MS };
        for (vgpu, class) in [(ANSWERS, user), (OTHER, user), (NIGHTLY, Class::Batch)] {
            let (tenant, weight) = (TenantKey(0), Weight::new(1).unwrap());
            two.feed(PoolEvent::AddVgpu { vgpu, tenant, class, weight });
        }
        for device in [SLOW, FAST] {
            two.feed(PoolEvent::DeviceUp { device });
        }
        two
    }

    fn feed(&mut self, event: PoolEvent) -> Vec<PoolAction> {
        let mut actions = Vec::new();
        self.pool.handle(self.now_ns, event, &mut actions).unwrap();
        actions
    }

    /// A task of the vGPU, and what the pool does then.
    fn submit(&mut self, vgpu: VgpuKey, estimate_ns: u64) -> (TaskKey, Vec<PoolAction>) {
        let task = TaskKey(self.next);
        self.next += 1;
        (task, self.feed(PoolEvent::Submit { task, vgpu, estimate_ns }))
    }

    /// The vGPU has two tasks at a time on both devices, to their ends.
    fn teach(&mut self, vgpu: VgpuKey, estimate_ns: u64) {
        for _ in 0..20 {
            let tasks = [self.submit(vgpu, estimate_ns), self.submit(vgpu, estimate_ns)];
            let began = tasks.into_iter().flat_map(|(_, actions)| actions);
            let mut began: Vec<(DeviceKey, TaskKey)> = began.filter_map(run).collect();
            began.sort_unstable_by_key(|(device, _)| *device != FAST);
            let since_ns = self.now_ns;
            for (device, task) in began {
                let times = if device == SLOW { 4 } else { 1 };
                self.now_ns = since_ns + times * ESTIMATE_NS;
                self.feed(PoolEvent::Finished { device, task });
            }
        }
    }
}

fn run(action: PoolAction) -> Option<(DeviceKey, TaskKey)> {
    match action {
        PoolAction::Run { device, task } => Some((device, task)),
        PoolAction::Yield { .. } | PoolAction::Reset { .. } => None,
    }
}

fn runs(device: DeviceKey, task: TaskKey) -> PoolAction {
    PoolAction::Run { device, task }
}

/// Both devices run batch tasks, and a request comes that only the fast one can answer in time.
fn asked(two: &mut Two, vgpu: VgpuKey) -> (TaskKey, Vec<PoolAction>) {
    two.submit(NIGHTLY, 0);
    two.submit(NIGHTLY, 0);
    two.now_ns += 7 * MS;
    two.submit(vgpu, ESTIMATE_NS)
}

#[test]
fn a_request_waits_for_the_device_that_can_answer_in_time() {
    let mut two = Two::new();
    two.teach(ANSWERS, ESTIMATE_NS);
    let began_ns = two.now_ns;
    let (task, actions) = asked(&mut two, ANSWERS);
    // The slow device's batch task is not in its way.
    let at_ns = began_ns + 10 * MS;
    assert_eq!(actions, [PoolAction::Yield { device: FAST, at_ns }]);
    // Nor does it go where it would be late.
    let stopped = |two: &Two, device| {
        let batch = [TaskKey(two.next - 3), TaskKey(two.next - 2)];
        PoolEvent::Stopped { device, task: batch[device.0 as usize] }
    };
    two.now_ns = at_ns;
    let event = stopped(&two, SLOW);
    let again = two.feed(event);
    assert!(!again.contains(&runs(SLOW, task)), "{again:?}");
    let event = stopped(&two, FAST);
    assert!(two.feed(event).contains(&runs(FAST, task)));
}

/// The control: who was never served is taken to run as fast anywhere.
#[test]
fn where_nothing_is_known_devices_are_equal() {
    let mut two = Two::new();
    let (_, actions) = asked(&mut two, ANSWERS);
    assert_eq!(actions, [PoolAction::Yield { device: SLOW, at_ns: 10 * MS }]);
}

#[test]
fn of_free_devices_a_request_has_one_that_is_fast_enough() {
    let mut two = Two::new();
    two.teach(ANSWERS, ESTIMATE_NS);
    let (first, actions) = two.submit(ANSWERS, ESTIMATE_NS);
    assert_eq!(actions, [runs(FAST, first)]);
    // A device that is too slow does better than none.
    let (second, actions) = two.submit(ANSWERS, ESTIMATE_NS);
    assert_eq!(actions, [runs(SLOW, second)]);
}

/// What one vGPU says of its tasks moves nothing for another one.
#[test]
fn what_one_vgpu_says_is_not_believed_of_another() {
    let mut two = Two::new();
    two.teach(OTHER, 10 * MS);
    let began_ns = two.now_ns;
    let (_, actions) = asked(&mut two, ANSWERS);
    assert_eq!(actions, [PoolAction::Yield { device: SLOW, at_ns: began_ns + 10 * MS }]);
}
