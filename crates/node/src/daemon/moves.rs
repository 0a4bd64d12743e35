//! vGPUs that go to another device while their programs run.
//!
//! All sessions of a vGPU go together, in these steps, of which each is begun when all sessions
//! have made the one before:
//!
//! 0. The other device's file gets its pages, while they still run.
//! 1. They stand still: nothing of theirs is in flight, and they have no turn ([`Ask::Paused`]).
//! 2. Frames of the other device are theirs too; they copy what they have ([`Ask::Copied`]).
//! 3. The vGPU lives there from now on, and so do they ([`Reply::Switch`], [`Ask::Moved`]).
//! 4. What they had is cleared for others.
//!
//! Before the third step anything that fails leaves them where they are. A daemon that dies leaves
//! its successor sessions that are here or there, each whole: those that are still here are told to
//! stay if all are, and to go on if any has gone ([`adopt_moves`]).
//!
//! [`Ask::Paused`]: crate::link::Ask::Paused
//! [`Ask::Copied`]: crate::link::Ask::Copied
//! [`Ask::Moved`]: crate::link::Ask::Moved

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use weft_ring::peer;
use weft_ring::{Access, MemoryFile};
use weft_sched::DeviceKey;

use super::adopt::Survivor;
use super::devices::Device;
use super::devices::frames::{Dirty, VgpuFiles};
use super::driver::Order;
use super::registry::{Registry, Vgpu};
use super::sessions::Session;
use super::{Daemon, Tables};
use crate::admin::MoveReport;
use crate::link::{DeviceSpec, MovedFrames, Passed, Reply};

/// Sessions stand still within this time, or the vGPU stays: a kernel may be as long.
const PAUSE_LIMIT: Duration = Duration::from_secs(10);

/// Sessions have copied their memory within this time, or the vGPU stays.
const COPY_LIMIT: Duration = Duration::from_secs(120);

/// Sessions that have copied go within this time, or are ended.
const GO_LIMIT: Duration = Duration::from_secs(10);

/// Pages are asked for in pieces of so many bytes: nobody else gets into the system's way for long.
const PREPARED_BYTES: usize = 4 << 20;

/// Who waits looks again after this time.
const LOOK: Duration = Duration::from_millis(20);

/// Programs that wait for the end of one move to attach.
const WAITING_MAX: usize = 64;

/// A move in progress.
#[derive(Debug)]
pub(crate) struct Move {
    /// Numbers the moves of a node, also those of earlier daemons: when it began.
    number: u64,
    phase: Phase,
    /// How far each session has come.
    stages: BTreeMap<u32, Stage>,
    /// When the first session stood still.
    paused: Option<Instant>,
    /// Programs that wait for its end to attach.
    waiting: usize,
}

/// What all sessions do.
#[derive(Debug, Clone)]
enum Phase {
    Pausing,
    Copying(Arc<Luggage>),
    Going,
    Cancelled,
}

/// What a session has done.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Stage {
    Paused,
    Copied,
    Failed(String),
    Moved,
}

/// What a worker needs of the other device.
#[derive(Debug)]
struct Luggage {
    device: DeviceSpec,
    page: MemoryFile,
    frames: MemoryFile,
    table: OwnedFd,
    physical: OwnedFd,
    moved: MemoryFile,
    count: u64,
}

/// From where to where.
#[derive(Debug, Clone, Copy)]
struct Way<'a> {
    vgpu: u32,
    from: &'a Device,
    to: &'a Device,
}

impl Daemon {
    /// Moves a vGPU for an administrator. One that is moved to a device by its name stays there;
    /// one that is moved to a pool may be moved within that again.
    pub(crate) fn move_by_hand(&self, name: &str, wanted: &str) -> anyhow::Result<MoveReport> {
        let moved = self.move_vgpu(name, wanted)?;
        let mut tables = self.tables();
        let pinned = tables.registry.is_device(wanted);
        tables.registry.pin(name, pinned);
        drop(tables);
        self.keep()?;
        Ok(moved)
    }

    /// Moves a vGPU, with the sessions that it has, to the device of that name or to one of the
    /// pool of that name.
    pub(crate) fn move_vgpu(&self, name: &str, wanted: &str) -> anyhow::Result<MoveReport> {
        ensure!(
            !super::tasks::is_member(name),
            "vGPU `{name}` is part of a virtual accelerator, which has one on each device"
        );
        ensure!(
            !self.tasks.is_accelerator(name),
            "`{name}` is a virtual accelerator: its tasks run on every device of its pool, so that \
             nothing is to be moved"
        );
        let mut tables = self.tables();
        let vgpu = tables.registry.find(name)?.clone();
        let target = tables.registry.place_for(&vgpu, wanted)?;
        let from = self.devices.named(&vgpu.device).with_context(|| {
            format!(
                "vGPU `{name}` lives on device `{}`, which this node does not have",
                vgpu.device
            )
        })?;
        let to = self.devices.named(&target).context("the device is not open")?;
        let way = Way { vgpu: vgpu.key, from, to };
        ensure!(
            to.config.backend.receives(&from.config.backend),
            "sessions cannot go from device `{}` to `{}`: {}",
            from.name,
            to.name,
            "software devices of the same kind exchange sessions, genuine GPUs do not"
        );
        ensure!(!tables.moves.contains_key(&vgpu.key), "vGPU `{name}` is being moved already");
        let number = super::now_ns();
        let (phase, stages) = (Phase::Pausing, BTreeMap::new());
        let begun = Move { number, phase, stages, paused: None, waiting: 0 };
        tables.moves.insert(vgpu.key, begun);
        tables.registry.begin_move(name, &target);
        drop(tables);
        let carried = self.keep().and_then(|()| self.carry(&vgpu, way));
        if carried.is_err() {
            self.cancel_move(way, name);
        }
        let mut tables = self.tables();
        tables.moves.remove(&vgpu.key);
        drop(tables);
        self.moving.notify_all();
        let report = carried?;
        let MoveReport { from, to, sessions, bytes, pause_ns } = &report;
        tracing::info!(vgpu = name, from, to, sessions, bytes, pause_ns, "a vGPU has moved");
        Ok(report)
    }

    /// Carries a move out. Before it returns, all of it has happened or, if it fails, nothing that
    /// [`Self::cancel_move`] does not undo.
    fn carry(&self, vgpu: &Vgpu, way: Way<'_>) -> anyhow::Result<MoveReport> {
        if let Err(error) = self.prepare(vgpu, way) {
            // The copy takes longer.
            tracing::debug!(vgpu = vgpu.name, error = format!("{error:#}"), "not prepared");
        }
        let paused = |stage: &Stage| *stage == Stage::Paused;
        let mut tables = self.await_sessions(way, PAUSE_LIMIT, "stand still", paused)?;
        tables.registry.find(&vgpu.name).context("it was removed meanwhile")?;
        let bytes = tables.memory(way.from.key).used_bytes(vgpu.key);
        let deadline = Instant::now() + PAUSE_LIMIT;
        while tables.memory(way.to.key).must_clear(bytes) && Instant::now() < deadline {
            let waited = self.cleared.wait_timeout(tables, LOOK);
            tables = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let (luggage, bytes) = self.pack(&mut tables, vgpu, way)?;
        self.begin_phase(&mut tables, way, Phase::Copying(Arc::new(luggage)));
        drop(tables);
        let copied = |stage: &Stage| *stage == Stage::Copied;
        let mut tables = self.await_sessions(way, COPY_LIMIT, "copy their memory", copied)?;
        let outage = tables.registry.outage(&way.to.name).cloned();
        ensure!(outage.is_none(), "device `{}` went out of service meanwhile", way.to.name);
        // From here on it lives there.
        tables.registry.turn_move(&vgpu.name);
        for entry in tables.sessions.values_mut().filter(|entry| entry.vgpu == way.vgpu) {
            entry.device = way.to.key;
        }
        let (vgpu_key, device) = (way.vgpu, way.to.key);
        // The answer is that it was done; none, that the daemon ends.
        let _ = self.driver.ask(|answer| Order::Relocate { vgpu: vgpu_key, device, answer });
        if let Some(vgpu) = tables.registry.by_key(way.vgpu).cloned() {
            let payer = self.tenancy.payer(vgpu.key, vgpu.owner);
            self.place_capped(&mut tables, payer);
        }
        self.begin_phase(&mut tables, way, Phase::Going);
        let paused = tables.moves.get(&way.vgpu).and_then(|own| own.paused);
        let pause_ns = paused.map_or(0, |since| since.elapsed().as_nanos());
        let sessions = tables.sessions.values().filter(|entry| entry.vgpu == way.vgpu).count();
        drop(tables);
        let moved = |stage: &Stage| *stage == Stage::Moved;
        match self.await_sessions(way, GO_LIMIT, "go", moved) {
            Ok(tables) => drop(tables),
            // Nothing is in its way but workers that do not answer.
            Err(error) => {
                tracing::error!(vgpu = vgpu.name, error = format!("{error:#}"), "sessions end");
                self.end_laggards(way);
            }
        }
        self.clear_out(way.vgpu, way.to.key);
        self.tables().registry.end_move(&vgpu.name);
        if !self.save_registry() {
            tracing::warn!(vgpu = vgpu.name, "that it moved is not on disk");
        }
        Ok(MoveReport {
            from: way.from.name.clone(),
            to: way.to.name.clone(),
            sessions,
            bytes,
            pause_ns: u64::try_from(pause_ns).unwrap_or(u64::MAX),
        })
    }

    /// Has the system give the other device's file its pages while the programs still run: clearing
    /// them takes longer than the copy does. Only what has no holes is prepared, or a program that
    /// uses little of what it has would be given all of it.
    fn prepare(&self, vgpu: &Vgpu, way: Way<'_>) -> anyhow::Result<()> {
        let mut tables = self.tables();
        let bytes = tables.memory(way.from.key).used_bytes(vgpu.key);
        let touched = tables.frames(way.from.key).files(vgpu.key)?.frames.touched_bytes()?;
        let taken = tables.memory(way.to.key).used_bytes_total();
        if touched < bytes || taken.saturating_add(bytes) > way.to.info.memory_bytes {
            return Ok(());
        }
        // It lives on one device, so that what it gets there are the first frames.
        let file = tables.frames(way.to.key).files(vgpu.key)?.frames;
        drop(tables);
        let memory = file.map(Access::ReadWrite)?;
        let bytes = usize::try_from(bytes)?.min(memory.len());
        for at in (0..bytes).step_by(PREPARED_BYTES) {
            memory.span(at, PREPARED_BYTES.min(bytes - at))?.populate()?;
        }
        Ok(())
    }

    fn begin_phase(&self, tables: &mut Tables, way: Way<'_>, phase: Phase) {
        if let Some(own) = tables.moves.get_mut(&way.vgpu) {
            own.phase = phase;
        }
        self.moving.notify_all();
    }

    /// Waits until all sessions of the vGPU have come so far; `what` they do says it.
    fn await_sessions(
        &self,
        way: Way<'_>,
        limit: Duration,
        what: &str,
        is_there: impl Fn(&Stage) -> bool,
    ) -> anyhow::Result<MutexGuard<'_, Tables>> {
        let deadline = Instant::now() + limit;
        let mut tables = self.tables();
        loop {
            let Some(own) = tables.moves.get(&way.vgpu) else { bail!("the move is over") };
            if let Some(Stage::Failed(why)) =
                own.stages.values().find(|stage| matches!(stage, Stage::Failed(_)))
            {
                bail!("a session cannot go: {why}");
            }
            let of_it = || tables.sessions.iter().filter(|(_, entry)| entry.vgpu == way.vgpu);
            let late = |key: &u32| !own.stages.get(key).is_some_and(&is_there);
            let late: Vec<u32> = of_it().map(|(key, _)| *key).filter(late).collect();
            if late.is_empty() {
                return Ok(tables);
            }
            if Instant::now() >= deadline {
                let entries = late.iter().filter_map(|key| tables.sessions.get(key));
                let who = tables.in_words(entries);
                bail!("programs do not {what} within {} s: {who}", limit.as_secs());
            }
            if matches!(own.phase, Phase::Pausing) {
                // Also those that have begun since. Asked twice is asked once.
                for session in late {
                    self.driver.send(Order::Pause { session, number: own.number });
                }
            }
            let waited = self.moving.wait_timeout(tables, LOOK);
            tables = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Takes frames of the other device for what the sessions have.
    fn pack(
        &self,
        tables: &mut Tables,
        vgpu: &Vgpu,
        way: Way<'_>,
    ) -> anyhow::Result<(Luggage, u64)> {
        let payer = self.tenancy.payer(vgpu.key, vgpu.owner);
        let limits = self.tenant_limits(vgpu.owner, payer);
        let of_it = tables.sessions.iter().filter(|(_, entry)| entry.vgpu == way.vgpu);
        let sessions: Vec<u32> = of_it.map(|(key, _)| *key).collect();
        let bytes = tables.memory(way.from.key).used_bytes(vgpu.key);
        let there = tables.frames(way.to.key);
        // What it has may be more than its quota by now.
        there.set_quota(vgpu.key, vgpu.memory_bytes.max(bytes));
        there.set_owner(vgpu.key, payer, limits.memory_total_bytes);
        let mut moved: Vec<MovedFrames> = Vec::new();
        for session in sessions {
            let held = tables.frames(way.from.key).holding(session);
            let received = tables.frames(way.to.key).receive(session, vgpu.key, held);
            moved.extend(received.map_err(|error| {
                anyhow::anyhow!(
                    "device `{}` has no room for vGPU `{}`: {error}",
                    way.to.name,
                    vgpu.name
                )
            })?);
        }
        moved.sort_unstable();
        let exports = tables.frames(way.from.key).exports_of(vgpu.key);
        tables.frames(way.to.key).take_over(exports, &moved);
        let there = tables.frames(way.to.key);
        there.set_quota(vgpu.key, vgpu.memory_bytes);
        let VgpuFiles { frames, table, physical } = there.files(vgpu.key)?;
        let luggage = Luggage {
            device: way.to.spec(),
            page: way.to.page_file.try_clone()?,
            frames,
            table,
            physical,
            moved: written(&moved)?,
            count: moved.len() as u64,
        };
        Ok((luggage, bytes))
    }

    /// The vGPU stays where it is; its sessions go on.
    fn cancel_move(&self, way: Way<'_>, name: &str) {
        let mut tables = self.tables();
        self.begin_phase(&mut tables, way, Phase::Cancelled);
        tables.registry.end_move(name);
        drop(tables);
        self.clear_out(way.vgpu, way.from.key);
        if !self.save_registry() {
            tracing::warn!(vgpu = name, "that it did not move is not on disk");
        }
    }

    /// Clears what sessions of a vGPU have on other devices than this one.
    fn clear_out(&self, vgpu: u32, home: DeviceKey) {
        let others = self.devices.iter().filter(|device| device.key != home);
        for device in others {
            let mut tables = self.tables();
            let of_it = tables.sessions.iter().filter(|(_, entry)| entry.vgpu == vgpu);
            let sessions: Vec<u32> = of_it.map(|(key, _)| *key).collect();
            let frames = tables.frames(device.key);
            let dirty: Vec<Dirty> =
                sessions.iter().map(|session| frames.remove_session(*session, vgpu)).collect();
            frames.remove_vgpu(vgpu);
            drop(tables);
            for dirty in dirty {
                let cleared = dirty.clear();
                self.tables().frames(device.key).recycle(&cleared);
            }
        }
        self.cleared.notify_all();
    }

    fn end_laggards(&self, way: Way<'_>) {
        let mut tables = self.tables();
        let Some(own) = tables.moves.get(&way.vgpu) else { return };
        let there = |key: &u32| own.stages.get(key) == Some(&Stage::Moved);
        let gone: Vec<u32> = own.stages.keys().copied().filter(|key| !there(key)).collect();
        for session in gone {
            if let Some(worker) = tables.sessions.get_mut(&session).and_then(|e| e.worker.take()) {
                // One that is gone already has been noticed by its thread.
                let _ = worker.kill();
            }
        }
    }

    // What workers ask.

    /// A worker stands still: where it is to copy its memory, or that it may go on.
    pub(crate) fn answer_paused(
        &self,
        session: &Session,
        works: bool,
    ) -> anyhow::Result<(Reply, Files)> {
        if works {
            self.driver.send(Order::Stands { session: session.key });
        }
        if let Some(bytes) = self.debt_of(session) {
            return Ok((Reply::Save { bytes }, Vec::new()));
        }
        let reached = self.reach(session, &Stage::Paused);
        let Some(Phase::Copying(luggage)) = reached else { return Ok((Reply::Stay, Vec::new())) };
        let files = vec![
            (Passed::DevicePage, luggage.page.as_fd().try_clone_to_owned()?),
            (Passed::Frames, luggage.frames.as_fd().try_clone_to_owned()?),
            (Passed::Table, luggage.table.try_clone()?),
            (Passed::Physical, luggage.physical.try_clone()?),
            (Passed::Moved, luggage.moved.as_fd().try_clone_to_owned()?),
        ];
        let passed = files.iter().map(|(what, _)| *what).collect();
        let (device, frames) = (Box::new(luggage.device.clone()), luggage.count);
        Ok((Reply::Move { device, frames, passed }, files))
    }

    /// A worker has copied its memory, or could not: whether it goes.
    pub(crate) fn answer_copied(&self, session: &Session, failure: Option<String>) -> Reply {
        let stage = failure.map_or(Stage::Copied, Stage::Failed);
        let is_copied = stage == Stage::Copied;
        if !self.tables().moves.contains_key(&session.vgpu) {
            // An earlier daemon's move, which is decided: where its vGPU lives says how.
            let goes = is_copied && self.is_away(session);
            return if goes { Reply::Switch } else { Reply::Stay };
        }
        match self.reach(session, &stage) {
            Some(Phase::Going) if is_copied => Reply::Switch,
            _ => Reply::Stay,
        }
    }

    /// A worker is on the device that its vGPU lives on by now.
    pub(crate) fn answer_moved(&self, session: &Session, device: u32) -> Reply {
        let mut tables = self.tables();
        let vgpu = tables.registry.by_key(session.vgpu).cloned();
        let home = vgpu.as_ref().and_then(|vgpu| self.devices.named(&vgpu.device));
        let Some(home) = home.map(|home| home.key).filter(|home| home.0 == device) else {
            let message = format!("its vGPU does not live on device {device}");
            return Reply::Refused { message };
        };
        if let Some(entry) = tables.sessions.get_mut(&session.key) {
            entry.device = home;
        }
        self.devices.put_on(home, &session.worker.process);
        self.weigh(home, (session.vgpu, session.payer), &session.worker.process);
        if let Some(own) = tables.moves.get_mut(&session.vgpu) {
            own.stages.insert(session.key, Stage::Moved);
            drop(tables);
            self.moving.notify_all();
            return Reply::Done;
        }
        let of_it = |entry: &&super::Entry| entry.vgpu == session.vgpu;
        let is_over = tables.sessions.values().filter(of_it).all(|entry| entry.device == home);
        drop(tables);
        if is_over && let Some(vgpu) = vgpu {
            self.clear_out(vgpu.key, home);
            self.tables().registry.end_move(&vgpu.name);
            if !self.save_registry() {
                tracing::warn!(vgpu = vgpu.name, "that it moved is not on disk");
            }
        }
        Reply::Done
    }

    /// Whether a session is on another device than its vGPU.
    fn is_away(&self, session: &Session) -> bool {
        let tables = self.tables();
        let home = tables.registry.by_key(session.vgpu).map(|vgpu| &vgpu.device);
        let home = home.and_then(|name| self.devices.named(name)).map(|home| home.key);
        home.is_some() && tables.sessions.get(&session.key).map(|entry| entry.device) != home
    }

    /// A session has come so far; what comes next for all, unless the move or the worker is over.
    fn reach(&self, session: &Session, stage: &Stage) -> Option<Phase> {
        let is_before = |phase: &Phase| match stage {
            Stage::Paused => matches!(phase, Phase::Pausing),
            Stage::Copied | Stage::Failed(_) | Stage::Moved => matches!(phase, Phase::Copying(_)),
        };
        let mut tables = self.tables();
        let own = tables.moves.get_mut(&session.vgpu).filter(|own| is_before(&own.phase))?;
        own.paused.get_or_insert_with(Instant::now);
        own.stages.insert(session.key, stage.clone());
        self.moving.notify_all();
        loop {
            let own = tables.moves.get(&session.vgpu)?;
            if !is_before(&own.phase) {
                return Some(own.phase.clone());
            }
            if peer::has_hung_up(&session.worker.link) {
                return None;
            }
            let waited = self.moving.wait_timeout(tables, LOOK);
            tables = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    // Programs that come meanwhile.

    /// Whether programs that attach to that vGPU must wait for the end of its move.
    ///
    /// # Errors
    /// Too many do.
    pub(crate) fn must_wait(&self, name: &str) -> Result<Option<u32>, &'static str> {
        let mut tables = self.tables();
        let Some(key) = tables.registry.find(name).ok().map(|vgpu| vgpu.key) else {
            return Ok(None);
        };
        let Some(own) = tables.moves.get_mut(&key) else { return Ok(None) };
        if own.waiting >= WAITING_MAX {
            return Err("the vGPU is being moved to another device, and many programs wait for it");
        }
        own.waiting += 1;
        Ok(Some(key))
    }

    /// Waits until a vGPU is not being moved.
    pub(crate) fn await_move(&self, vgpu: u32) {
        let mut tables = self.tables();
        while tables.moves.contains_key(&vgpu) {
            tables = self.moving.wait(tables).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Descriptors beside an answer.
pub(crate) type Files = Vec<(Passed, OwnedFd)>;

/// The list of frames in a file of its own: a packet is too small.
fn written(moved: &[MovedFrames]) -> anyhow::Result<MemoryFile> {
    let bytes: Vec<u8> = moved.iter().flatten().flat_map(|word| word.to_le_bytes()).collect();
    let file = MemoryFile::create("weft-moved", bytes.len().max(1))?;
    let memory = file.map(Access::ReadWrite)?;
    memory.span(0, bytes.len())?.write_from(&bytes)?;
    Ok(file)
}

/// Decides moves that an earlier daemon did not end: they go on where any session has gone.
pub(crate) fn adopt_moves(registry: &mut Registry, survivors: &[Survivor]) {
    registry.settle_moves(|vgpu, device| {
        let starts = survivors.iter().map(|survivor| &survivor.adoption.start);
        starts.into_iter().any(|start| start.vgpu_key == vgpu && start.device.name == device)
    });
}
