//! Taking over the workers of an earlier daemon.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::net::sockopt::{self, Timeout};
use weft_device::{DevicePage, Lends};
use weft_gate::{ControlPage, NODE_SESSIONS, NodePage};
use weft_ring::peer::{self, Process};
use weft_ring::{Access, MemoryFile, Segment};
use weft_sched::{Actions, DeviceKey, Event, Node, RestoreError, Usage, VgpuKey};

use super::Daemon;
use super::devices::Devices;
use super::devices::frames::Frames;
use super::devices::lending::Lender;
use super::devices::residency::Terms;
use super::persist::Schedule;
use super::registry::Registry;
use super::runtime::Runtime;
use super::sessions::{Entry, Origin, Session, is_relayed};
use super::spawn::Worker;
use crate::config::NodeConfig;
use crate::link::{Adoption, Descriptors, PACKET_BYTES_MAX, Passed, Start, pause_limit};

/// A worker answers at its door within this time, or is left to die.
const ANSWER_LIMIT: Duration = Duration::from_millis(500);

/// A device's key is below this, whatever a worker says.
const DEVICE_KEYS: u32 = 1024;

/// A worker that outlived its daemon.
#[derive(Debug)]
pub(crate) struct Survivor {
    /// What it says about itself.
    pub(crate) adoption: Adoption,
    /// The new link.
    pub(crate) link: OwnedFd,
    /// Its process, as the system names it.
    pub(crate) process: Process,
    /// Its shared memory.
    pub(crate) files: Files,
    /// Its session's segment.
    segment: Segment,
    /// Its control page.
    page: ControlPage,
}

impl Survivor {
    /// The device that it began on.
    pub(crate) fn device(&self) -> DeviceKey {
        DeviceKey(self.adoption.start.device.key)
    }
}

/// Shared memory of a survivor.
#[derive(Debug)]
pub(crate) struct Files {
    /// The node page.
    pub(crate) node_page: MemoryFile,
    /// The device page.
    pub(crate) device_page: MemoryFile,
    /// Its vGPU's frames.
    pub(crate) frames: MemoryFile,
    /// Its vGPU's private table.
    pub(crate) table: MemoryFile,
    /// The device's physical table.
    pub(crate) physical: MemoryFile,
    /// The region of its virtual machine, and where marks for that are written.
    region: Option<(MemoryFile, OwnedFd)>,
}

/// Finds the workers that live.
pub(crate) fn find_survivors(runtime: &Runtime) -> anyhow::Result<Vec<Survivor>> {
    let mut survivors = Vec::new();
    for (session, link) in runtime.open_doors()? {
        match identify(session, link) {
            Ok(survivor) => survivors.push(survivor),
            Err(error) => {
                tracing::warn!(session, error = format!("{error:#}"), "worker not adopted");
                runtime.remove_door(session);
            }
        }
    }
    Ok(survivors)
}

/// What the worker behind the door of `session` says. One that cannot be adopted is ended: what it
/// has must be free before anybody else gets it.
fn identify(session: u64, link: OwnedFd) -> anyhow::Result<Survivor> {
    let own = rustix::process::getuid().as_raw();
    let credentials = peer::credentials(&link)?;
    if credentials.uid != own && credentials.uid != 0 {
        bail!("it runs as user {}", credentials.uid);
    }
    sockopt::set_socket_timeout(&link, Timeout::Recv, Some(ANSWER_LIMIT))?;
    let message = peer::receive(&link, PACKET_BYTES_MAX)?.context("it hung up")?;
    sockopt::set_socket_timeout(&link, Timeout::Recv, None)?;
    // Whom the system names may be ended; what a message says may be anybody.
    let process = Process::open(message.sender.context("its process is unknown")?)?;
    match introduced(session, message) {
        Ok((adoption, files, segment, page)) => {
            Ok(Survivor { adoption, link, process, files, segment, page })
        }
        Err(error) => {
            process.kill()?;
            anyhow::ensure!(process.wait_exit(ANSWER_LIMIT), "it does not end: {error:#}");
            Err(error)
        }
    }
}

/// Opens all that an earlier version laid out otherwise, or that a tenant can write to.
fn introduced(
    session: u64,
    message: peer::Message,
) -> anyhow::Result<(Adoption, Files, Segment, ControlPage)> {
    let adoption: Adoption = serde_json::from_slice(&message.bytes)?;
    if (Some(adoption.pid), adoption.start.session) != (message.sender, session) {
        bail!("it says that it is process {} of another session", adoption.pid);
    }
    let mut came = Descriptors::received(&adoption.passed, message.descriptors)?;
    let mut file = |what| anyhow::Ok(MemoryFile::received(came.take(what)?)?);
    let whole = file(Passed::Segment)?;
    let region = adoption.start.part.is_some().then(|| whole.try_clone()).transpose()?;
    let segment = match adoption.start.part {
        Some(part) => whole.part(part.segment_at, part.segment_bytes)?,
        None => whole,
    };
    let segment = Segment::open(segment.map(Access::ReadWrite)?)?;
    let page = ControlPage::open(&file(Passed::Control)?.map(Access::ReadWrite)?)?;
    let (node_page, device_page) = (file(Passed::NodePage)?, file(Passed::DevicePage)?);
    let (table, physical) = (file(Passed::Table)?, file(Passed::Physical)?);
    // The daemon does not map them, and other workers of that vGPU are of the same tenant.
    let frames = MemoryFile::trusted(came.take(Passed::Frames)?)?;
    let region = region.map(|file| anyhow::Ok((file, came.take(Passed::Marks)?))).transpose()?;
    NodePage::open(&node_page.map(Access::ReadWrite)?)?;
    DevicePage::open(&device_page.map(Access::ReadWrite)?)?;
    let files = Files { node_page, device_page, frames, table, physical, region };
    Ok((adoption, files, segment, page))
}

/// Those whose vGPU the registry knows. The others are ended: nobody would ever give them a turn.
pub(crate) fn of_known_vgpus(survivors: Vec<Survivor>, registry: &Registry) -> Vec<Survivor> {
    keep(survivors, "its vGPU is gone", |survivor| {
        let start = &survivor.adoption.start;
        let known = registry.by_key(start.vgpu_key);
        known.is_some_and(|vgpu| vgpu.name == start.vgpu && vgpu.lives_on(&start.device.name))
    })
}

/// Those whose device the node still has, under the name and the key that the first of them says.
/// The others are ended.
pub(crate) fn of_known_devices(survivors: Vec<Survivor>, config: &NodeConfig) -> Vec<Survivor> {
    let mut keys: BTreeMap<String, u32> = BTreeMap::new();
    for spec in survivors.iter().map(|survivor| &survivor.adoption.start.device) {
        if !keys.values().any(|key| *key == spec.key) {
            keys.entry(spec.name.clone()).or_insert(spec.key);
        }
    }
    keep(survivors, "the node has no such device", |survivor| {
        let spec = &survivor.adoption.start.device;
        let found = config.devices.iter().find(|device| device.name == spec.name);
        let is_same = found.is_some_and(|device| spec.backend.outlives(&device.backend));
        is_same && spec.key < DEVICE_KEYS && keys.get(&spec.name) == Some(&spec.key)
    })
}

/// What an earlier daemon's schedule says of devices on which sessions live.
pub(crate) fn of_living_devices(mut schedule: Schedule, survivors: &[Survivor]) -> Schedule {
    let living: BTreeSet<DeviceKey> = survivors.iter().map(Survivor::device).collect();
    let core = &mut schedule.core;
    core.devices.retain(|state| living.contains(&state.device));
    core.debts.retain(|debt| living.contains(&debt.device));
    core.vgpus.retain(|state| living.contains(&state.device));
    let vgpus: BTreeSet<VgpuKey> = core.vgpus.iter().map(|state| state.vgpu).collect();
    core.sessions.retain(|state| vgpus.contains(&state.vgpu));
    schedule.forgotten_ns.retain(|device, _| living.contains(&DeviceKey(*device)));
    schedule
}

fn keep(
    survivors: Vec<Survivor>,
    why_not: &str,
    is_known: impl Fn(&Survivor) -> bool,
) -> Vec<Survivor> {
    let (known, others): (Vec<_>, Vec<_>) = survivors.into_iter().partition(is_known);
    for survivor in others {
        let start = &survivor.adoption.start;
        let (session, vgpu, device) = (start.session, &start.vgpu, &start.device.name);
        tracing::warn!(session, vgpu, device, why_not, "worker not adopted");
        // One that is gone already needs no end.
        let _ = survivor.process.kill();
    }
    known
}

/// The earlier daemon's node page, or a new one.
pub(crate) fn node_page(survivors: &[Survivor]) -> anyhow::Result<MemoryFile> {
    match survivors.first() {
        Some(survivor) => Ok(survivor.files.node_page.try_clone()?),
        None => Ok(NodePage::create()?),
    }
}

/// The memory of each device, in the earlier daemon's physical table if it left sessions there.
pub(crate) fn frames(
    config: &NodeConfig,
    devices: &Devices,
    survivors: &[Survivor],
) -> anyhow::Result<BTreeMap<DeviceKey, Frames>> {
    let frames = devices.iter().map(|device| {
        let began_on = |survivor: &&Survivor| survivor.device() == device.key;
        let survivor = survivors.iter().find(began_on);
        let physical = survivor.map(|survivor| survivor.files.physical.try_clone()).transpose()?;
        let terms = Terms {
            geometry: device.geometry,
            dealing: device.config.dealing()?,
            entry_ns: device.config.switch_entry_ns,
            quantum_ns: config.quantum_us(&device.config, device.info.capabilities) * 1_000,
            monitor: device.config.monitor(),
            period_ns: device.config.period_ns(),
        };
        let swap_dir = device.config.swap_dir.clone();
        // As the workers know it that are there already, whatever is configured by now.
        let by_sessions = device.config.backend.lends() == Lends::Sessions;
        let lends = by_sessions && device.geometry.lends();
        let is_lent_once = by_sessions && !lends;
        let lent_bytes = match is_lent_once {
            true => device.info.memory_bytes,
            false => device.config.lent_bytes().max(device.info.memory_bytes),
        };
        let frames = Frames::new(terms, lent_bytes, physical, swap_dir)?;
        if !lends {
            return Ok((device.key, frames));
        }
        let pause_limit = pause_limit(config.kernel_ms(device.info.capabilities));
        let part = device.geometry.slot_pages() * weft_device::PAGE;
        let bytes = (device.info.memory_bytes, lent_bytes, part);
        let idle_ns = device.config.monitor().idle_ns;
        let lender = Lender::new(bytes, idle_ns, pause_limit, super::now_ns());
        Ok((device.key, frames.lent_by(lender)))
    });
    frames.collect()
}

/// Sessions that ended while no daemon ran, with the device time they used: what their workers
/// left, or what the earlier daemon saw last of a worker that was killed.
pub(crate) fn settle_ended(
    registry: &mut Registry,
    runtime: &Runtime,
    schedule: Option<&Schedule>,
    survivors: &[Survivor],
) -> BTreeMap<u64, u64> {
    let mut ended = BTreeMap::new();
    for (vgpu, session) in registry.open_sessions() {
        if survivors.iter().any(|survivor| survivor.adoption.start.session == session) {
            continue;
        }
        let seen_ns = schedule.and_then(|schedule| schedule.used_ns(session)).unwrap_or(0);
        let used_ns = runtime.read_record(session).unwrap_or(0).max(seen_ns);
        tracing::info!(session, used_ns, "session ended while no daemon ran");
        registry.close_session(vgpu, session, used_ns);
        ended.insert(session, used_ns);
    }
    ended
}

/// The scheduling core as the earlier daemon left it, without the sessions that are over: what
/// those used is charged to their vGPUs.
pub(crate) fn restore(
    schedule: &Schedule,
    ended: &BTreeMap<u64, u64>,
    survivors: &[Survivor],
) -> Result<Node, RestoreError> {
    let mut node = Node::restore(&schedule.core)?;
    let mut actions = Actions::new();
    for state in &schedule.core.sessions {
        let session = state.session;
        if survivors.iter().any(|survivor| survivor.adoption.start.key == session.0) {
            continue;
        }
        let number = schedule.sessions.get(&session.0);
        let used_ns = number.and_then(|number| ended.get(number)).copied().unwrap_or(0);
        let usage = Usage { used_ns, idle_ns: state.idle_ns, in_flight_ns: 0 };
        for event in [Event::Used { session, usage }, Event::RemoveSession { session }] {
            // The device is not up yet: there is nothing to do, and the snapshot has the session.
            let handled = node.handle(0, event, &mut actions);
            debug_assert!(handled.is_ok(), "{handled:?}");
            actions.clear();
        }
    }
    Ok(node)
}

impl Daemon {
    /// Makes the survivors this daemon's sessions and serves them.
    pub(crate) fn adopt(self: &Arc<Self>, survivors: Vec<Survivor>) -> anyhow::Result<()> {
        for survivor in &survivors {
            self.enter(survivor);
        }
        for device in self.devices.iter() {
            // Those that are to come have frames there already.
            let comes = |start: &Start| self.home_of_key(start.vgpu_key) == Some(device.key);
            let there = survivors.iter().filter(|survivor| {
                survivor.device() == device.key || comes(&survivor.adoption.start)
            });
            let keys: Vec<u32> = there.map(|survivor| survivor.adoption.start.key).collect();
            self.tables().frames(device.key).rebuild(&keys)?;
            // A worker that died while no daemon ran may stand in the device's queue.
            for gone in (0..NODE_SESSIONS).filter(|key| !keys.contains(key)) {
                device.repair(gone);
            }
        }
        for survivor in survivors {
            self.resume(survivor)?;
        }
        self.hear_of_memory();
        Ok(())
    }

    /// The device that a vGPU lives on.
    fn home_of_key(&self, vgpu: u32) -> Option<DeviceKey> {
        let tables = self.tables();
        let vgpu = tables.registry.by_key(vgpu)?;
        self.devices.named(&vgpu.device).map(|device| device.key)
    }

    fn enter(&self, survivor: &Survivor) {
        let start = &survivor.adoption.start;
        let known_home = self.home_of_key(start.vgpu_key);
        let mut tables = self.tables();
        let known = tables.registry.by_key(start.vgpu_key);
        let quota = known.map_or(start.memory_bytes, |vgpu| vgpu.memory_bytes);
        // Before the vGPU is placed, which is for good.
        let payer = match is_relayed(start.elsewhere.as_ref()) {
            true => self.tenancy.of_user(start.uid),
            false => self.tenancy.of_process(start.uid, start.pid),
        };
        let payer = self.tenancy.settle(start.vgpu_key, payer);
        let limits = self.tenant_limits(start.uid, payer);
        let home = known_home;
        for device in [Some(survivor.device()), home].into_iter().flatten() {
            let frames = tables.frames(device);
            frames.set_quota(start.vgpu_key, quota);
            frames.set_owner(start.vgpu_key, payer, limits.memory_total_bytes);
            frames.add_session(start.key, start.session, start.vgpu_key);
        }
        let frames = tables.frames(survivor.device());
        let adopted = survivor.files.frames.try_clone().map_err(anyhow::Error::from);
        let adopted = adopted
            .and_then(|file| frames.adopt_files(start.vgpu_key, file, &survivor.files.table));
        if let Err(error) = adopted {
            let error = format!("{error:#}");
            tracing::error!(vgpu = start.vgpu, error, "the memory of a vGPU was not taken over");
        }
        tables.host.begin(start.key, payer, start.granted.then_some(start.vgpu_key));
        let entry = Entry {
            device: survivor.device(),
            vgpu: start.vgpu_key,
            uid: start.uid,
            payer,
            pid: start.pid,
            elsewhere: start.elsewhere.clone(),
            program: start.program.clone(),
            worker: None,
            segment: None,
            region: None,
            ends_at_once: false,
        };
        tables.sessions.insert(start.key, entry);
        tables.registry.note_session(start.vgpu_key, start.session);
        if let Some(vgpu) = tables.registry.by_key(start.vgpu_key).cloned() {
            self.place_capped(&mut tables, payer);
            self.place(&mut tables, &vgpu);
        }
        tables.adopted += 1;
    }

    fn resume(self: &Arc<Self>, survivor: Survivor) -> anyhow::Result<()> {
        let Survivor { adoption, link, process, segment, page, files } = survivor;
        let start = adoption.start;
        let placed = start.part.zip(files.region);
        let place = placed.and_then(|(part, files)| self.adopt_place(&start, part, files));
        let Start { session, vgpu, granted, .. } = &start;
        tracing::info!(session, vgpu, granted, "worker adopted");
        // As of a worker of this daemon's own: see `spawn`.
        let _refuses = peer::refuse_descriptors(&link);
        let session = Session {
            key: start.key,
            vgpu: start.vgpu_key,
            payer: self.tenancy.payer(start.vgpu_key, start.uid),
            worker: Worker::adopted(process, link, adoption.pid, self.ranks),
            segment,
            place,
            start,
        };
        self.begin(&session, page, Origin::Adopted)?;
        let daemon = Arc::clone(self);
        thread::Builder::new()
            .name("tenant".to_owned())
            .stack_size(super::STACK_BYTES)
            .spawn(move || daemon.serve_session(session))?;
        Ok(())
    }
}
