//! Tasks: virtual accelerators, the pools that their tasks wait in, and their runners.
//!
//! The daemon sees no task's code, arguments or buffers: a tenant's program says these to its
//! accelerator's runner, over a socket that the daemon makes and gives away. The runner reports
//! that it has a task; [`dispatch`] says where and when it runs.

mod admin;
mod dispatch;
mod journal;
mod open;
mod runner;
mod store;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use weft_ring::Loss;
use weft_sched::pool::PoolConfig;
use weft_sched::{DeviceKey, TenantKey, Weight};

use self::dispatch::{Action, Actions, Dispatch, Share};
use self::journal::Journals;
use self::runner::RunnerHandle;
use self::store::{Record, Store};
use super::devices::Devices;
use super::driver::Order as Driving;
use super::registry::Registry;
use super::tenancy::Tenancy;
use super::{Daemon, STACK_BYTES, now_ns};
use crate::config::{NodeConfig, ShareConfig};
use crate::runner::messages::Order;

pub(crate) use self::admin::ensure_whole;
pub(crate) use self::open::greet;

/// Stands between an accelerator's name and its device's in the name of its vGPU there. No vGPU of
/// a user's has it in its name.
const SEPARATOR: char = '@';

/// A killed session is over within this time.
const RESET_LIMIT: Duration = Duration::from_secs(30);

/// Name of an accelerator's vGPU on a device.
pub(crate) fn member_name(accelerator: &str, device: &str) -> String {
    format!("{accelerator}{SEPARATOR}{device}")
}

/// Whether a vGPU is an accelerator's.
pub(crate) fn is_member(vgpu: &str) -> bool {
    vgpu.contains(SEPARATOR)
}

/// Pools, accelerators and runners.
#[derive(Debug)]
pub(crate) struct Tasks {
    inner: Mutex<Inner>,
    /// One runner is started at a time. Taken before everything else.
    starting: Mutex<()>,
}

/// Locked after the daemon's tables, never before.
#[derive(Debug)]
struct Inner {
    dispatch: Dispatch,
    journals: Journals,
    store: Store,
    runners: BTreeMap<u32, RunnerHandle>,
    next_runner: u64,
    /// Programs whose connections are being opened.
    opening: usize,
    /// Sessions that runners are about to get: accelerator, device.
    attaching: BTreeSet<(u32, u32)>,
}

impl Tasks {
    /// The pools of a configuration, with the accelerators that are kept in its state directory.
    pub(crate) fn open(
        config: &NodeConfig,
        devices: &Devices,
        tenancy: &Tenancy,
        registry: &mut Registry,
    ) -> anyhow::Result<Self> {
        let store = Store::open(&config.state_dir)
            .with_context(|| format!("cannot use {}", config.state_dir.display()))?;
        let named = devices.iter().filter_map(|device| device.config.pool.clone());
        let pools: BTreeSet<String> = named.chain(config.pools.keys().cloned()).collect();
        let mut dispatch = Dispatch::default();
        for pool in &pools {
            let by_tenant = config.scheduling.share == ShareConfig::User;
            let own = config.pool_settings(pool).config();
            dispatch.add_pool(pool, PoolConfig { by_tenant, ..own });
        }
        let journals = Journals::start(config, &mut dispatch)?;
        for device in devices.iter() {
            if let Some(pool) = &device.config.pool {
                // Nobody waits yet.
                let _ = dispatch.device_up(now_ns(), pool, device.key);
            }
        }
        for record in store.iter() {
            let tenant = tenant_of(config, tenancy, registry, record.owner);
            if let Err(error) = add_record(&mut dispatch, config, record, tenant) {
                let name = &record.name;
                tracing::warn!(name, %error, "an accelerator's pool is gone; configure it again");
            }
        }
        let inner = Inner {
            dispatch,
            journals,
            store,
            runners: BTreeMap::new(),
            next_runner: 0,
            opening: 0,
            attaching: BTreeSet::new(),
        };
        Ok(Self { inner: Mutex::new(inner), starting: Mutex::default() })
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there is an accelerator of that name.
    pub(crate) fn is_accelerator(&self, name: &str) -> bool {
        self.inner().store.find(name).is_some()
    }

    /// Ends all runners and the pools' journals.
    pub(crate) fn end(&self) {
        let mut inner = self.inner();
        inner.runners.values().for_each(RunnerHandle::kill);
        let Inner { journals, dispatch, .. } = &mut *inner;
        journals.end(dispatch);
    }

    /// Hands on what the pools' journals have.
    pub(crate) fn flush_journals(&self) {
        self.inner().journals.flush();
    }
}

/// The tenant that pays for a user's accelerators, and its weight.
fn tenant_of(
    config: &NodeConfig,
    tenancy: &Tenancy,
    registry: &mut Registry,
    owner: u32,
) -> (TenantKey, Weight) {
    let payer = tenancy.of_user(owner);
    let user = registry.user(payer);
    let weight = user.weight.unwrap_or_else(|| config.scheduling.user_weight(payer));
    (TenantKey(user.key), Weight::new(weight).unwrap_or_default())
}

fn add_record(
    dispatch: &mut Dispatch,
    config: &NodeConfig,
    record: &Record,
    (tenant, tenant_weight): (TenantKey, Weight),
) -> Result<(), dispatch::Impossible> {
    let (class, weight) = (record.class(), record.weight());
    let share = Share { tenant, tenant_weight, class, weight };
    let tasks_max = config.pool_settings(&record.pool).tasks;
    dispatch.add(now_ns(), record.key, &record.pool, share, tasks_max)
}

impl Daemon {
    /// The pool that a device is in.
    fn pool_of(&self, device: DeviceKey) -> Option<&str> {
        self.devices.find(device)?.config.pool.as_deref()
    }

    /// Tells the pools that a user's weight is this from now on.
    pub(crate) fn note_user_weight(self: &Arc<Self>, key: u32, weight: u32) {
        let weight = Weight::new(weight).unwrap_or_default();
        self.with_tasks(|inner| inner.dispatch.set_tenant(now_ns(), TenantKey(key), weight));
    }

    /// Tells the device's pool that it can be used, or that it is gone.
    pub(crate) fn note_service(self: &Arc<Self>, device: DeviceKey, in_service: bool) {
        let Some(pool) = self.pool_of(device) else { return };
        let change = match in_service {
            true => Dispatch::device_up,
            false => Dispatch::device_down,
        };
        self.with_tasks(|inner| change(&mut inner.dispatch, now_ns(), pool, device));
    }

    /// Changes what runs where, and has it carried out.
    fn with_tasks(self: &Arc<Self>, change: impl FnOnce(&mut Inner) -> Actions) {
        let mut inner = self.tasks.inner();
        let actions = change(&mut inner);
        let resets = inner.carry_out(actions);
        drop(inner);
        for (key, device) in resets {
            self.reset(key, device);
        }
    }

    /// Kills an accelerator's session on a device, and reports when it is over.
    fn reset(self: &Arc<Self>, key: u32, device: DeviceKey) {
        let daemon = Arc::clone(self);
        let thread = thread::Builder::new().name("reset".to_owned()).stack_size(STACK_BYTES);
        let spawned = thread.spawn(move || {
            daemon.end_member(key, device, RESET_LIMIT);
            if let Some(pool) = daemon.pool_of(device) {
                daemon.with_tasks(|inner| inner.dispatch.reset_done(now_ns(), pool, device));
            }
        });
        if let Err(error) = spawned {
            tracing::error!(%error, "no thread to reset a device with; it is lost to its pool");
        }
    }

    /// Ends the sessions of an accelerator on a device, and waits until they are over.
    fn end_member(&self, key: u32, device: DeviceKey, limit: Duration) {
        let Some(name) = self.tasks.inner().store.by_key(key).map(|record| record.name.clone())
        else {
            return;
        };
        let Some(device) = self.devices.find(device) else { return };
        let deadline = Instant::now() + limit;
        let mut tables = self.tables();
        let Ok(vgpu) = tables.registry.find(&member_name(&name, &device.name)) else { return };
        let vgpu = vgpu.key;
        while self.end_those(&mut tables, Loss::DeviceWithdrawn, |entry| entry.vgpu == vgpu) {
            if Instant::now() >= deadline {
                tracing::error!(accelerator = name, device = device.name, "a session does not end");
                return;
            }
            tables = self.await_end(tables);
        }
        self.driver.send(Driving::Forget { vgpu });
    }
}

impl Inner {
    /// Tells runners what to do; the sessions that are to be killed: accelerator, device.
    fn carry_out(&mut self, actions: Actions) -> Vec<(u32, DeviceKey)> {
        let mut resets = Vec::new();
        for (key, action) in actions {
            let order = match action {
                Action::Run { run, whole_ns_max } => Order::Run { run, whole_ns_max },
                Action::Yield { run, at_ns } => Order::Yield { run, at_ns },
                Action::Cancelled { task } => Order::Cancelled { task },
                Action::Reset { device } => {
                    resets.push((key, device));
                    continue;
                }
            };
            if let Some(runner) = self.runners.get(&key) {
                runner.tell(order, None);
            }
        }
        resets
    }
}
