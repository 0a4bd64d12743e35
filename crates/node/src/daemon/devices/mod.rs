//! The node's devices: what each is, the pages that its workers share, and its memory.

pub(crate) mod ahead;
pub(crate) mod exports;
pub(crate) mod frames;
pub(crate) mod lending;
pub(crate) mod planner;
pub(crate) mod residency;

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, bail};
use weft_device::DeviceInfo;
use weft_device::soft::Geometry;
use weft_device::{DEVICE_PAGE_BYTES, DevicePage};
use weft_ring::{Access, MemoryFile};
use weft_sched::DeviceKey;

use super::adopt::Survivor;
use super::precedence::may_order_threads;
use super::process::WorkerProcess;
use super::spawn;
use crate::admin::{DeviceReport, MemoryReport};
use crate::config::{ByteSize, DeviceConfig, NodeConfig, Processors};
use crate::link::DeviceSpec;

/// A device of the node.
#[derive(Debug)]
pub(crate) struct Device {
    /// Its key. It keeps it for as long as sessions live that began on it.
    pub(crate) key: DeviceKey,
    /// Its name, unique on the node.
    pub(crate) name: String,
    /// As it was told, with the memory that vGPUs may have.
    pub(crate) config: DeviceConfig,
    /// What tenants see of it.
    pub(crate) info: DeviceInfo,
    /// How its memory is divided.
    pub(crate) geometry: Geometry,
    /// Queue, timeline and busy total, which all its workers share.
    pub(crate) page_file: MemoryFile,
    page: DevicePage,
}

/// The node's devices by key, and those that it has none of.
#[derive(Debug)]
pub(crate) struct Devices {
    open: BTreeMap<DeviceKey, Device>,
    absent: Vec<Absent>,
    /// Processors that are no device's own, where some are.
    others: Option<Processors>,
}

/// A configured device that was not usable when the node started.
#[derive(Debug)]
pub(crate) struct Absent {
    config: DeviceConfig,
    /// Why, in words.
    pub(crate) reason: String,
}

impl Absent {
    /// The device as administrators see it.
    pub(crate) fn report(&self) -> DeviceReport {
        DeviceReport {
            name: self.config.name.clone(),
            pool: self.config.pool.clone(),
            failure: Some(self.reason.clone()),
            product: "not usable since the node started".to_owned(),
            backend: self.config.backend.kind().to_owned(),
            clock: self.config.backend.clock().to_owned(),
            processors: self.config.processors.to_string(),
            ..DeviceReport::default()
        }
    }
}

/// Takes the devices that are not usable out of the configuration: a node starts with the others.
///
/// # Errors
/// When none is usable.
pub(crate) fn set_aside(config: &mut NodeConfig) -> anyhow::Result<Vec<Absent>> {
    let mut absent = Vec::new();
    for device in std::mem::take(&mut config.devices) {
        match identify(&mut device.clone()) {
            Ok(_) => config.devices.push(device),
            Err(error) => absent.push((device, error)),
        }
    }
    if config.devices.is_empty()
        && let Some((_, error)) = absent.pop()
    {
        return Err(error);
    }
    let aside = |(config, error): (DeviceConfig, anyhow::Error)| {
        // Its name is said beside it everywhere.
        let causes: Vec<String> = error.chain().skip(1).map(ToString::to_string).collect();
        let reason = causes.join(": ");
        tracing::error!(device = config.name, reason, "the node starts without this device");
        Absent { config, reason }
    };
    Ok(absent.into_iter().map(aside).collect())
}

/// This part of a GPU is left to its driver where more is lent than there is, unless told: each
/// session's context takes some, which no account has.
const DRIVERS_PART: u64 = 8;

/// What the device that `config` names is. Of a GPU, the memory that vGPUs may have is noted in
/// `config`: as much as configured, but not more than there is.
pub(crate) fn identify(config: &mut DeviceConfig) -> anyhow::Result<DeviceInfo> {
    let mut info = spawn::probe(config).with_context(|| {
        let (name, kind) = (&config.name, config.backend.kind());
        format!(
            "device `{name}`: kind = \"{kind}\" is unusable (`weft doctor` lists what is there)"
        )
    })?;
    if let Some(asked) = config.memory {
        info.memory_bytes = info.memory_bytes.min(asked.0);
    } else if config.lends_sessions() {
        info.memory_bytes -= info.memory_bytes / DRIVERS_PART;
    }
    config.memory = Some(ByteSize(info.memory_bytes));
    Ok(info)
}

impl Device {
    /// The pages of an earlier daemon's worker, or new ones.
    fn open(
        key: DeviceKey,
        mut config: DeviceConfig,
        survivor: Option<&Survivor>,
    ) -> anyhow::Result<Self> {
        if let Some(survivor) = survivor {
            keep_memory(&mut config, survivor.adoption.start.device.memory_bytes);
        }
        let info = identify(&mut config)?;
        let geometry = match survivor {
            Some(survivor) => survivor.adoption.start.device.geometry,
            None => config.geometry().map_err(anyhow::Error::msg)?,
        };
        let page_file = match survivor {
            Some(survivor) => survivor.files.device_page.try_clone()?,
            None => MemoryFile::create("weft-device", DEVICE_PAGE_BYTES)?,
        };
        let page = DevicePage::open(&page_file.map(Access::ReadWrite)?)?;
        Ok(Self { key, name: config.name.clone(), config, info, geometry, page_file, page })
    }

    /// The device, as a worker needs it.
    pub(crate) fn spec(&self) -> DeviceSpec {
        let (memory_bytes, backend) = (self.config.memory_bytes(), self.config.backend.clone());
        let (name, geometry) = (self.name.clone(), self.geometry);
        DeviceSpec { key: self.key.0, name, memory_bytes, geometry, backend }
    }

    /// What it is, for the log.
    pub(crate) fn in_words(&self) -> String {
        let DeviceReport { name, product, clock, .. } = self.report("", 0, MemoryReport::default());
        format!("{name}: {product}, clock {clock}")
    }

    /// Removes a dead session from the device's queue.
    pub(crate) fn repair(&self, session: u32) {
        self.page.repair(session);
    }

    /// Counts device time that a session occupied and did not live to report, in ns.
    pub(crate) fn count_abandoned(&self, ns: u64) {
        self.page.count_abandoned(ns);
    }

    /// The device as administrators see it; `policy` is in force there.
    pub(crate) fn report(
        &self,
        policy: &str,
        memory_used_bytes: u64,
        memory: MemoryReport,
    ) -> DeviceReport {
        let totals = self.page.totals();
        DeviceReport {
            name: self.name.clone(),
            pool: self.config.pool.clone(),
            in_service: true,
            failure: None,
            product: self.info.name.clone(),
            backend: self.info.backend.clone(),
            clock: self.config.backend.clock().to_owned(),
            processors: self.config.processors.to_string(),
            policy: policy.to_owned(),
            memory_bytes: self.info.memory_bytes,
            memory_used_bytes,
            memory,
            busy_ns: totals.busy_ns,
            overruns: totals.overruns,
            late: totals.late,
            executions: totals.executions,
        }
    }
}

fn keep_on(processors: &Processors, worker: &WorkerProcess) {
    if let Err(error) = worker.keep_on(processors) {
        tracing::warn!(pid = worker.pid, %processors, %error, "a worker runs elsewhere");
    }
}

/// Leaves the devices' own processors to their workers: this daemon, what it starts from here on
/// and the programs of `weft run` have the others.
///
/// # Errors
/// As of [`other_processors`].
pub(crate) fn leave_processors(config: &NodeConfig) -> anyhow::Result<()> {
    if let Some(others) = other_processors(config)? {
        others.keep(None)?;
    }
    Ok(())
}

/// Those that are no device's own, where some are.
///
/// # Errors
/// In words: processors that are not there, none left, or workers that it cannot put there.
pub(crate) fn other_processors(config: &NodeConfig) -> anyhow::Result<Option<Processors>> {
    let own = Processors::of_this_thread()?;
    let taken = Processors::union(config.devices.iter().map(|device| &device.processors));
    if taken.is_empty() {
        return Ok(None);
    }
    let strange = taken.without(&own);
    if !strange.is_empty() {
        bail!("device.processors: {strange} are none of this daemon's, which are {own}");
    }
    let others = own.without(&taken);
    if others.is_empty() {
        bail!(
            "device.processors: the devices have {taken}, all that this daemon may use; leave one \
             to it and to programs"
        );
    }
    if config.worker.user_of(0).is_some() && !may_order_threads() {
        bail!(
            "device.processors: this daemon may not say where its workers run, which are users of \
             their own (worker.user); give it CAP_SYS_NICE, or set worker.user=0"
        );
    }
    Ok(Some(others))
}

/// While sessions of an earlier daemon live the device's memory stays as large as it was: their
/// tables and files are.
fn keep_memory(config: &mut DeviceConfig, memory_bytes: u64) {
    if config.memory.is_some_and(|asked| asked.0 != memory_bytes) {
        let device = &config.name;
        tracing::warn!(device, memory_bytes, "the memory stays as it was: adopted sessions use it");
    }
    config.memory = Some(ByteSize(memory_bytes));
}

impl Devices {
    /// Opens the configured devices. Those of `survivors` keep their keys and pages; of `absent`
    /// ones is said why they are not there.
    pub(crate) fn open(
        config: &NodeConfig,
        survivors: &[Survivor],
        absent: Vec<Absent>,
    ) -> anyhow::Result<Self> {
        let named =
            |survivor: &Survivor| (survivor.adoption.start.device.name.clone(), survivor.device());
        let kept = survivors.iter().map(named).collect();
        let names: Vec<&str> = config.devices.iter().map(|device| device.name.as_str()).collect();
        let mut devices = BTreeMap::new();
        for (key, device) in keys(&names, &kept).into_iter().zip(&config.devices) {
            let survivor = survivors.iter().find(|survivor| survivor.device() == key);
            devices.insert(key, Device::open(key, device.clone(), survivor)?);
        }
        let has_own = config.devices.iter().any(|device| !device.processors.is_empty());
        let others = has_own.then(Processors::of_this_thread).transpose()?;
        Ok(Self { open: devices, absent, others })
    }

    /// Has a worker execute on the processors of its device, or where this daemon runs; where it
    /// likes if no device has its own.
    pub(crate) fn put_on(&self, device: DeviceKey, worker: &WorkerProcess) {
        let Some(others) = &self.others else { return };
        let own = self.open.get(&device).map(|device| &device.config.processors);
        keep_on(own.filter(|own| !own.is_empty()).unwrap_or(others), worker);
    }

    /// Has a worker that does not execute run where this daemon does.
    pub(crate) fn put_away(&self, worker: &WorkerProcess) {
        if let Some(others) = &self.others {
            keep_on(others, worker);
        }
    }

    /// Whether a device has processors of its own.
    pub(crate) fn has_processors(&self, device: DeviceKey) -> bool {
        self.find(device).is_some_and(|device| !device.config.processors.is_empty())
    }

    /// How many processors the workers of a device that has its own execute on, or all others.
    pub(crate) fn processors_of(&self, own_of: Option<DeviceKey>) -> u64 {
        let own = own_of.and_then(|key| self.find(key)).map(|device| &device.config.processors);
        let all = || std::thread::available_parallelism().map_or(1, usize::from);
        own.or(self.others.as_ref()).map_or_else(all, Processors::count) as u64
    }

    /// Writes into the node's configuration how much memory each device has.
    pub(crate) fn note_memory(&self, config: &mut NodeConfig) {
        for device in &mut config.devices {
            if let Some(opened) = self.named(&device.name) {
                device.memory = opened.config.memory;
            }
        }
    }

    /// The device of a key that this node gave out.
    pub(crate) fn get(&self, key: DeviceKey) -> &Device {
        self.find(key).expect("a device's key is the node's own")
    }

    /// The device of a key that somebody says.
    pub(crate) fn find(&self, key: DeviceKey) -> Option<&Device> {
        self.open.get(&key)
    }

    /// The device of that name.
    pub(crate) fn named(&self, name: &str) -> Option<&Device> {
        self.iter().find(|device| device.name == name)
    }

    /// Those that were not usable when the node started.
    pub(crate) fn absent(&self) -> &[Absent] {
        &self.absent
    }

    /// Why there is no device of that name, if it is configured and was not usable.
    pub(crate) fn why_absent(&self, name: &str) -> Option<&str> {
        let found = self.absent.iter().find(|absent| absent.config.name == name);
        found.map(|absent| absent.reason.as_str())
    }

    /// All that are open, by key.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Device> {
        self.open.values()
    }
}

/// The keys of the devices of these names: those that some have already, and for each other one the
/// lowest that is free.
fn keys(names: &[&str], kept: &BTreeMap<String, DeviceKey>) -> Vec<DeviceKey> {
    let mut given: BTreeSet<DeviceKey> = kept.values().copied().collect();
    let mut key = |name: &&str| {
        let unused = || (0..).map(DeviceKey).find(|key| !given.contains(key));
        let key = kept.get(*name).copied().or_else(unused).unwrap_or(DeviceKey(u32::MAX));
        given.insert(key);
        key
    };
    names.iter().map(&mut key).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_with_living_sessions_keeps_its_key_and_others_get_free_ones() {
        let kept =
            BTreeMap::from([("b".to_owned(), DeviceKey(0)), ("gone".to_owned(), DeviceKey(2))]);
        let keys = keys(&["a", "b", "c"], &kept);
        assert_eq!(keys, [DeviceKey(1), DeviceKey(0), DeviceKey(3)]);
    }
}
