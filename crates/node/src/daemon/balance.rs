//! vGPUs of a pool that go to another of its devices by themselves, where one idles beside a
//! crowded one. The balancer decides (`weft_sched::balance`); this thread looks and has them moved.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use weft_api::node::{DeviceReport, Stats, VgpuReport};
use weft_sched::balance::{Balancer, Resident, Room};
use weft_sched::{DeviceKey, VgpuKey};

use super::tasks::is_member;
use super::{Daemon, STACK_BYTES};
use crate::admin::{Share, demand_of, own_cap_ppm, ratio_of, shares};

/// A vGPU that was moved, or could not be, stays for so many looks.
const REST_LOOKS: u32 = 12;

/// What uses less of its device than this, and does not wait for more, crowds nobody.
const IDLE: f64 = 0.01;

/// Looks at each pool of several devices in a thread of its own, for as long as the daemon lives.
pub(super) fn start(daemon: &Arc<Daemon>) -> anyhow::Result<()> {
    let mut pools: BTreeMap<&str, usize> = BTreeMap::new();
    for device in &daemon.config.devices {
        *pools.entry(device.pool.as_deref().unwrap_or_default()).or_default() += 1;
    }
    pools.retain(|pool, devices| !pool.is_empty() && *devices > 1);
    for pool in pools.into_keys() {
        let seconds = daemon.config.pool_settings(pool).balance_s;
        if seconds == 0 {
            continue;
        }
        let (pool, daemon) = (pool.to_owned(), Arc::downgrade(daemon));
        let every = Duration::from_secs(seconds);
        let thread = thread::Builder::new().name("balance".to_owned()).stack_size(STACK_BYTES);
        thread.spawn(move || watch(&daemon, &pool, every))?;
    }
    Ok(())
}

fn watch(daemon: &Weak<Daemon>, pool: &str, every: Duration) {
    let (mut balancer, mut before) = (Balancer::default(), None);
    loop {
        thread::sleep(every);
        let Some(daemon) = daemon.upgrade() else { return };
        // It is ending.
        let Ok(now) = daemon.stats() else { return };
        if let Some(before) = before.replace(now.clone()) {
            daemon.balance(pool, every, &mut balancer, &before, &now);
        }
    }
}

impl Daemon {
    /// Moves a vGPU of the pool if it was worth it by what was used between two looks.
    fn balance(
        &self,
        pool: &str,
        every: Duration,
        balancer: &mut Balancer,
        before: &Stats,
        now: &Stats,
    ) {
        let of_pool =
            |device: &&DeviceReport| device.pool.as_deref() == Some(pool) && device.in_service;
        let rooms: Vec<Room> = now
            .devices
            .iter()
            .filter(of_pool)
            .filter_map(|device| {
                let free_bytes = device.memory_bytes.saturating_sub(device.memory_used_bytes);
                let device = self.devices.named(&device.name)?.key;
                Some(Room { device, free_bytes })
            })
            .collect();
        let shares = shares(before, now);
        let residents: Vec<Resident> = now
            .vgpus
            .iter()
            .zip(&shares)
            .filter_map(|(vgpu, share)| self.resident(vgpu, share, &rooms))
            .collect();
        let rest_ns = every.as_nanos().saturating_mul(REST_LOOKS.into());
        let rest_ns = u64::try_from(rest_ns).unwrap_or(u64::MAX);
        let Some(best) = balancer.look(now.now_ns, rest_ns, &rooms, &residents) else { return };
        let name = self.tables().registry.by_key(best.vgpu.0).map(|vgpu| vgpu.name.clone());
        let Some(name) = name else { return };
        let to = self.devices.get(best.to).name.as_str();
        let (stretched, then) = best.stretch;
        tracing::info!(vgpu = name, to, stretched, then, "a vGPU moves to balance its pool");
        if let Err(error) = self.move_vgpu(&name, to) {
            tracing::warn!(vgpu = name, to, error = format!("{error:#}"), "it stays");
        }
    }

    /// What a vGPU asks of the pool's device that it lives on; nothing, if it does not use it.
    fn resident(&self, vgpu: &VgpuReport, share: &Share, rooms: &[Room]) -> Option<Resident> {
        let device = self.devices.named(&vgpu.device)?;
        let lives_there = |room: &Room| room.device == device.key;
        if !rooms.iter().any(lives_there) || share.entitled == 0.0 {
            return None;
        }
        let wants = if share.asks_for_less { share.of_device } else { ratio_of(own_cap_ppm(vgpu)) };
        if wants < IDLE {
            return None;
        }
        let tables = self.tables();
        let known = tables.registry.find(&vgpu.name).ok()?;
        // An answer that is due within milliseconds does not wait for a move.
        let may_move = !known.pinned
            && known.sla_ns == 0
            && known.moving.is_none()
            && !is_member(&vgpu.name)
            && self.receives(device.key, rooms);
        Some(Resident {
            vgpu: VgpuKey(known.key),
            device: device.key,
            demand: demand_of(vgpu, wants),
            memory_bytes: vgpu.memory_used_bytes,
            may_move,
        })
    }

    /// Whether sessions of a device can go to all the others of its pool.
    fn receives(&self, from: DeviceKey, rooms: &[Room]) -> bool {
        let from = self.devices.get(from);
        let takes = |room: &Room| {
            self.devices.get(room.device).config.backend.receives(&from.config.backend)
        };
        rooms.iter().all(takes)
    }
}
