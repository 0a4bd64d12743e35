//! A saturated pool for measuring the cost of a decision. The caller has the clock.

use alloc::vec::Vec;

use super::{Class, Pool, PoolAction, PoolConfig, PoolEvent};
use crate::key::{DeviceKey, TaskKey, TenantKey, VgpuKey, Weight};

/// vGPUs of the pool; every fourth is a batch one.
const VGPUS: u32 = 256;
/// Whose they are.
const TENANTS: u32 = 64;

/// A pool whose devices always run and whose queue has always as many tasks.
#[derive(Debug)]
pub struct SaturatedPool {
    pool: Pool,
    actions: Vec<PoolAction>,
    /// What each device runs.
    running: Vec<Option<TaskKey>>,
    /// Told to yield.
    yields: Vec<bool>,
    vgpus: Vec<VgpuKey>,
    now_ns: u64,
    next: usize,
}

impl SaturatedPool {
    /// So many devices and outstanding tasks.
    pub fn new(config: PoolConfig, devices: u32, tasks: u32) -> Self {
        let mut saturated = Self {
            pool: Pool::new(config),
            actions: Vec::new(),
            running: alloc::vec![None; devices as usize],
            yields: alloc::vec![false; devices as usize],
            vgpus: Vec::new(),
            now_ns: 0,
            next: 0,
        };
        for key in 0..VGPUS {
            let class = match key % 4 {
                0 => Class::Batch,
                _ => Class::UserFacing { sla_ns: config.sla_ns },
            };
            let weight = Weight::new(key % 3 + 1).unwrap_or_default();
            let (vgpu, tenant) = (VgpuKey(key), TenantKey(key % TENANTS));
            saturated.feed(PoolEvent::AddVgpu { vgpu, tenant, class, weight });
        }
        for key in 0..devices {
            saturated.feed(PoolEvent::DeviceUp { device: DeviceKey(key) });
        }
        for key in 0..tasks {
            let vgpu = VgpuKey(key % VGPUS);
            saturated.vgpus.push(vgpu);
            let estimate_ns = saturated.length_ns(key);
            saturated.feed(PoolEvent::Submit { task: TaskKey(key), vgpu, estimate_ns });
        }
        saturated
    }

    /// A device's task ends, another task runs there, and its vGPU submits the next: the two
    /// events that a task costs. False if no device runs anything.
    pub fn decide(&mut self) -> bool {
        let devices = self.running.len();
        let ready = (0..devices).map(|step| (self.next + step) % devices);
        let Some((place, task)) =
            ready.filter_map(|place| Some((place, self.running[place]?))).next()
        else {
            return false;
        };
        self.next = place + 1;
        self.now_ns += 1_500_000;
        let device = DeviceKey(u32::try_from(place).unwrap_or_default());
        self.running[place] = None;
        if core::mem::take(&mut self.yields[place]) {
            self.feed(PoolEvent::Stopped { device, task });
        } else {
            self.feed(PoolEvent::Finished { device, task });
            let vgpu = self.vgpus[task.index()];
            let estimate_ns = self.length_ns(task.0);
            self.feed(PoolEvent::Submit { task, vgpu, estimate_ns });
        }
        true
    }

    /// 14 to 178 ms, Table I of Flexy.
    fn length_ns(&self, key: u32) -> u64 {
        14_000_000 + u64::from(key).wrapping_mul(0x9E37_79B9_7F4A_7C15) % 164_000_000
    }

    fn feed(&mut self, event: PoolEvent) {
        self.pool.handle(self.now_ns, event, &mut self.actions).expect("the driver keeps order");
        for action in self.actions.drain(..) {
            match action {
                PoolAction::Run { device, task } => self.running[device.index()] = Some(task),
                PoolAction::Yield { device, .. } => self.yields[device.index()] = true,
                PoolAction::Reset { device } => self.running[device.index()] = None,
            }
        }
    }
}
