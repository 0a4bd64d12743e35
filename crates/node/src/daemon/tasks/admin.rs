//! Accelerators on the admin socket: created, removed, reported.

use std::sync::Arc;

use super::runner::owed;
use super::{Record, SEPARATOR, add_record, is_member, member_name, tenant_of};
use crate::admin::{AcceleratorReport, AskedAccelerator, PoolReport, VgpuReport};
use crate::config::{NAME_RULE, is_vgpu_name};
use crate::daemon::devices::Device;
use crate::daemon::registry::{Change, Wanted, token};
use crate::daemon::roles::{Caller, Forbidden};
use crate::daemon::sessions::Asked;
use crate::daemon::{Daemon, now_ns};
use crate::runner::messages::Order;

/// Whether a device is in the pool of that name.
fn is_in(device: &Device, pool: &str) -> bool {
    device.config.pool.as_deref() == Some(pool)
}

/// A vGPU of an accelerator is not changed by itself.
pub(crate) fn ensure_whole(name: &str, verb: &str) -> anyhow::Result<()> {
    let whole = name.split(SEPARATOR).next().unwrap_or(name);
    anyhow::ensure!(
        !is_member(name),
        "vGPU `{name}` is part of virtual accelerator `{whole}`; {verb} that one"
    );
    Ok(())
}

/// Whether `caller` may change an accelerator.
fn permit(caller: Caller, record: &Record) -> Result<(), Forbidden> {
    if caller.administrates() || record.owner == caller.uid {
        return Ok(());
    }
    let what = format!("virtual accelerator `{}`", record.name);
    Err(Forbidden::Owner { what, owner: record.owner })
}

impl Daemon {
    /// Creates an accelerator and its vGPUs.
    pub(crate) fn create_accelerator(
        self: &Arc<Self>,
        asked: AskedAccelerator,
        caller: Caller,
    ) -> anyhow::Result<()> {
        let AskedAccelerator { name, pool, weight, memory_bytes, owner, sla_ns, token } = asked;
        anyhow::ensure!(is_vgpu_name(&name), "`{name}` is no name: {NAME_RULE}");
        let devices: Vec<&Device> = self.devices.iter().filter(|of| is_in(of, &pool)).collect();
        anyhow::ensure!(!devices.is_empty(), "{}", self.no_pool(&pool));
        let smallest = devices.iter().map(|device| device.config.memory_bytes()).min();
        let memory_bytes =
            memory_bytes.unwrap_or_else(|| self.config.default_memory_bytes(smallest.unwrap_or(0)));
        let weight = weight.unwrap_or(self.config.defaults.weight);
        let (owner, sla_ns) = (owner.unwrap_or(caller.uid), sla_ns.unwrap_or(0));
        let member = |device: &Device| Wanted {
            name: member_name(&name, &device.name),
            owner,
            device: device.name.clone(),
            weight,
            memory_bytes,
            sla_ns,
            ..Wanted::default()
        };
        let members: Vec<Wanted> = devices.into_iter().map(member).collect();
        self.check_members(&name, &members, caller)?;
        let tenant = {
            let mut tables = self.tables();
            tenant_of(&self.config, &self.tenancy, &mut tables.registry, owner)
        };
        let record = {
            let mut inner = self.tasks.inner();
            let key = inner.store.unused_key();
            let record = Record {
                name,
                key,
                owner,
                pool,
                weight,
                memory_bytes,
                sla_ns,
                token: token::kept(&token.unwrap_or_default()),
                is_granted: owner != caller.uid,
            };
            add_record(&mut inner.dispatch, &self.config, &record, tenant)?;
            inner.store.add(record.clone())?;
            record
        };
        self.ensure_members(&record)
    }

    /// Whether `caller` may have an accelerator of that name with these vGPUs.
    fn check_members(&self, name: &str, members: &[Wanted], caller: Caller) -> anyhow::Result<()> {
        let tables = self.tables();
        let exists = tables.registry.find(name).is_ok() || self.tasks.is_accelerator(name);
        anyhow::ensure!(!exists, "`{name}` exists already; choose another name");
        for wanted in members {
            // A device that is out of service now may be back when a task comes.
            if !tables.registry.is_in_service(&wanted.device) {
                continue;
            }
            if !caller.administrates() {
                let asked = Asked {
                    name: wanted.name.clone(),
                    device: &wanted.device,
                    weight: wanted.weight,
                    memory_bytes: wanted.memory_bytes,
                    token: "",
                    siblings: members.len() - 1,
                };
                self.wanted(&tables, asked, caller.uid, self.tenancy.of_user(caller.uid))?;
            }
            tables.registry.check_wanted(wanted)?;
        }
        Ok(())
    }

    fn no_pool(&self, pool: &str) -> String {
        let pools: std::collections::BTreeSet<&str> =
            self.devices.iter().filter_map(|device| device.config.pool.as_deref()).collect();
        let pools = pools.into_iter().collect::<Vec<_>>().join(", ");
        if pools.is_empty() {
            return "no device of this node is in a pool; give devices one (`pool = \"NAME\"`)"
                .to_owned();
        }
        match pool.is_empty() {
            true => format!("tasks run on a pool of devices; name it with --device: {pools}"),
            false => format!("there is no pool `{pool}` on this node; it has {pools}"),
        }
    }

    /// Changes an accelerator, with its vGPUs and its tasks; whether there is one of that name.
    pub(crate) fn set_accelerator(
        self: &Arc<Self>,
        name: &str,
        change: &Change,
        caller: Caller,
    ) -> anyhow::Result<bool> {
        ensure_whole(name, "set")?;
        let Some(record) = self.tasks.inner().store.find(name).cloned() else { return Ok(false) };
        permit(caller, &record)?;
        anyhow::ensure!(
            change.cap_ppm.is_none(),
            "virtual accelerator `{name}` has no cap; give --weight, --memory or --sla"
        );
        // Of devices that came since it was last used it has none yet.
        self.ensure_members(&record)?;
        let places = self.places(&record).into_iter();
        let members: Vec<String> = places.map(|place| place.vgpu).collect();
        self.set_vgpus(&members, change, caller)?;
        let record = Record {
            weight: change.weight.unwrap_or(record.weight),
            memory_bytes: change.memory_bytes.unwrap_or(record.memory_bytes),
            sla_ns: change.sla_ns.unwrap_or(record.sla_ns),
            is_granted: record.is_granted || record.owner != caller.uid,
            ..record
        };
        self.tasks.inner().store.add(record.clone())?;
        self.with_tasks(|inner| {
            if let Some(runner) = inner.runners.get(&record.key) {
                runner.tell(Order::Owed(owed(&record)), None);
            }
            inner.dispatch.set(now_ns(), record.key, record.class(), record.weight())
        });
        Ok(true)
    }

    /// Removes an accelerator and its vGPUs; whether there was one of that name.
    pub(crate) fn remove_accelerator(
        self: &Arc<Self>,
        name: &str,
        force: bool,
        caller: Caller,
    ) -> anyhow::Result<bool> {
        ensure_whole(name, "remove")?;
        let Some(record) = self.tasks.inner().store.find(name).cloned() else { return Ok(false) };
        permit(caller, &record)?;
        let connections = {
            let inner = self.tasks.inner();
            inner.runners.get(&record.key).map_or(0, |runner| runner.connections)
        };
        anyhow::ensure!(
            force || connections == 0,
            "accelerator `{name}` is in use by {connections} programs; `--force` ends their tasks"
        );
        // First of all nobody finds it any more.
        self.tasks.inner().store.remove(name)?;
        self.with_tasks(|inner| {
            if let Some(runner) = inner.runners.get(&record.key) {
                runner.kill();
            }
            inner.dispatch.remove(now_ns(), record.key)
        });
        let members: Vec<String> = {
            let tables = self.tables();
            let own = tables.registry.iter().map(|vgpu| vgpu.name.clone());
            own.filter(|vgpu| vgpu.starts_with(&member_name(name, ""))).collect()
        };
        for member in members {
            self.remove_member(&member)?;
        }
        Ok(true)
    }

    /// All accelerators, by name, with the vGPUs that they consist of.
    pub(crate) fn accelerator_reports(&self, vgpus: &[VgpuReport]) -> Vec<AcceleratorReport> {
        let inner = self.tasks.inner();
        let report = |record: &Record| {
            let prefix = member_name(&record.name, "");
            let own = || vgpus.iter().filter(|vgpu| vgpu.name.starts_with(&prefix));
            let runner = inner.runners.get(&record.key);
            AcceleratorReport {
                name: record.name.clone(),
                owner: record.owner,
                pool: record.pool.clone(),
                weight: record.weight,
                memory_bytes: record.memory_bytes,
                sla_ns: record.sla_ns,
                runner: runner.map(super::RunnerHandle::pid),
                connections: runner.map_or(0, |runner| runner.connections),
                tasks: inner.dispatch.counts(record.key),
                vgpus: own().map(|vgpu| vgpu.name.clone()).collect(),
                used_ns: own().map(|vgpu| vgpu.used_ns).sum(),
            }
        };
        inner.store.iter().map(report).collect()
    }

    /// All pools, by name.
    pub(crate) fn pool_reports(&self) -> Vec<PoolReport> {
        let mut pools: std::collections::BTreeMap<&str, Vec<String>> =
            self.config.pools.keys().map(|pool| (pool.as_str(), Vec::new())).collect();
        for device in self.devices.iter() {
            if let Some(pool) = device.config.pool.as_deref() {
                pools.entry(pool).or_default().push(device.name.clone());
            }
        }
        let inner = self.tasks.inner();
        let report = |(name, devices): (&str, Vec<String>)| {
            let (user_devices, batch_devices) = inner.dispatch.devices_by_class(name);
            let policy = self.config.pool_settings(name).policy;
            PoolReport { name: name.to_owned(), policy, devices, user_devices, batch_devices }
        };
        pools.into_iter().map(report).collect()
    }
}
