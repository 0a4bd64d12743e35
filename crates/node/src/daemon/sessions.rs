//! A session from its opening to its end.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use weft_gate::{ControlPage, GateDaemon};
use weft_ring::peer::{self, Process};
use weft_ring::{Access, Loss, MemoryFile, PAGE, Segment};
use weft_sched::{Cap, TenantKey, Weight};
use weft_wire::handshake::{HelloBody, RefusalCode};

use super::cosched::{Waiters, began_at};
use super::driver::{Beginning, Order, Place};
use super::exports::Export;
use super::frames::Dirty;
use super::host::{self, HostError, HostLedger};
use super::ledger::LedgerError;
use super::log::{LogLimit, printable};
use super::registry::{self, RegistryError, Vgpu, Wanted};
use super::spawn::Worker;
use super::{Core, Daemon};
use crate::config::{Choice, LimitError, ShareConfig, UserLimits};
use crate::link::{self, Ask, DeviceSpec, LINE_BYTES_MAX, Reply, Run, Severity, Start, Times};

/// Lines about sessions that did not open, which a tenant can cause.
static FAILURES: LogLimit = LogLimit::per_second(10);

/// Characters of a program's name, as the tenant says it.
const PROGRAM_CHARS_MAX: usize = 64;

/// A session, as the daemon's other parts see it.
#[derive(Debug)]
pub(crate) struct Entry {
    /// Key of its vGPU.
    pub(crate) vgpu: u32,
    /// The tenant's user.
    pub(crate) uid: u32,
    /// The tenant's process.
    pub(crate) pid: u32,
    /// The tenant's program.
    pub(crate) program: String,
    /// Its worker, once it runs.
    pub(crate) worker: Option<Process>,
    /// Its segment, once its worker runs.
    pub(crate) segment: Option<Segment>,
}

impl Entry {
    /// Tells the tenant why its session ends, before its worker does.
    pub(crate) fn tell(&self, loss: Loss) {
        if let Some(Err(error)) = self.segment.as_ref().map(|segment| segment.declare_lost(loss)) {
            tracing::error!(pid = self.pid, %error, "the tenant could not be told");
        }
    }
}

/// An open session, owned by the thread that serves its worker.
#[derive(Debug)]
pub(crate) struct Session {
    /// Its key.
    pub(crate) key: u32,
    /// What its worker was started with.
    pub(crate) start: Start,
    /// Key of its vGPU.
    pub(crate) vgpu: u32,
    /// Its worker.
    pub(crate) worker: Worker,
    /// Its segment.
    pub(crate) segment: Segment,
}

/// Where a session comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A tenant has just attached.
    New,
    /// An earlier daemon began it.
    Adopted,
}

/// Why a tenant gets no session.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Refusal {
    /// What kind.
    pub(crate) code: RefusalCode,
    /// For people.
    pub(crate) message: String,
}

/// What the tenant gets besides the welcome.
#[derive(Debug)]
pub(crate) struct TenantFiles {
    /// The segment.
    pub(crate) segment: MemoryFile,
    /// The pinned window.
    pub(crate) pinned: MemoryFile,
    /// One end of the lifeline.
    pub(crate) lifeline: OwnedFd,
}

/// What a user asks for a vGPU of its own; 0 where it leaves that to the node.
pub(crate) struct Asked<'a> {
    /// Its name.
    pub(crate) name: String,
    /// Weight.
    pub(crate) weight: u32,
    /// Memory quota, in bytes.
    pub(crate) memory_bytes: u64,
    /// Attach token; none if empty.
    pub(crate) token: &'a str,
}

/// A seat in the tables, taken before the worker starts.
#[derive(Debug, Clone)]
pub(crate) struct Seat {
    key: u32,
    id: u64,
    vgpu: Vgpu,
    /// The vGPU was created for this session.
    is_new: bool,
}

impl Daemon {
    /// Opens a session for a tenant that has a seat: makes the shared memory, starts the worker.
    pub(crate) fn open_session(
        &self,
        hello: &HelloBody,
        tenant: &peer::Credentials,
        seat: &Seat,
    ) -> Result<(Session, TenantFiles, Vgpu), Refusal> {
        let vgpu = seat.vgpu.clone();
        // The next daemon must know the vGPU of a session that it adopts. The disk works while the
        // worker starts.
        let saving = seat.is_new.then(|| self.begin_saving());
        let started = self.start_session(hello, tenant, seat);
        if saving.is_some_and(|saving| self.saved(&saving).is_err()) {
            tracing::warn!(vgpu = vgpu.name, "a new vGPU is not on disk");
        }
        match started {
            Ok((session, files)) => Ok((session, files, vgpu)),
            Err(error) => {
                if let Some(suppressed) = FAILURES.line(Instant::now()) {
                    let (session, error) = (seat.id, format!("{error:#}"));
                    tracing::error!(session, error, suppressed, "session did not open");
                }
                self.give_back_seat(seat);
                let message = format!("the node could not start a worker: {error:#}");
                Err(Refusal { code: RefusalCode::Worker, message })
            }
        }
    }

    /// A session that did not open leaves the tables.
    pub(crate) fn give_back_seat(&self, seat: &Seat) {
        let (key, vgpu) = (seat.key, seat.vgpu.key);
        self.runtime.remove_door(seat.id);
        let frames = {
            let mut core = self.core();
            core.registry.close_session(vgpu, seat.id, 0);
            core.frames.remove_session(key, vgpu)
        };
        self.leave(key, vgpu, frames);
    }

    /// Takes a place in the tables, for as long as the session lasts.
    pub(crate) fn take_seat(
        &self,
        hello: &HelloBody,
        tenant: &peer::Credentials,
    ) -> Result<Seat, Refusal> {
        let mut core = self.core();
        self.check_room(&core, tenant.uid)?;
        let (vgpu, is_new) = self.find_or_create(&mut core, hello, tenant)?;
        let key = (0..).find(|key| !core.sessions.contains_key(key)).unwrap_or(0);
        let limits = self.user_limits(tenant.uid);
        let begun = core.host.begin(key, tenant.uid, limits.host_memory_bytes);
        begun.map_err(|error| Refusal {
            code: RefusalCode::Exhausted,
            message: error.to_string(),
        })?;
        let id = core.registry.open_session(vgpu.key);
        core.frames.set_quota(vgpu.key, vgpu.memory_bytes);
        core.frames.set_owner(vgpu.key, tenant.uid, limits.memory_total_bytes);
        core.frames.add_session(key, id, vgpu.key);
        let entry = Entry {
            vgpu: vgpu.key,
            uid: tenant.uid,
            pid: tenant.pid.unwrap_or(0),
            program: printable(&hello.program, PROGRAM_CHARS_MAX),
            worker: None,
            segment: None,
        };
        self.tenancy.note(vgpu.key, entry.pid);
        core.sessions.insert(key, entry);
        self.place(&mut core, &vgpu);
        Ok(Seat { key, id, vgpu, is_new })
    }

    /// Whether a user may have another session. A further one must leave as many places free as
    /// the user has, unless the user administrates the node.
    fn check_room(&self, core: &Core, uid: u32) -> Result<(), Refusal> {
        let exhausted = |message| Err(Refusal { code: RefusalCode::Exhausted, message });
        let configured = self.config.limits.sessions;
        let room = configured.min(self.room.sessions);
        let of_user = core.sessions.values().filter(|entry| entry.uid == uid).count();
        let free = room.saturating_sub(core.sessions.len());
        if free == 0 {
            let why = self.room.bound_by(configured);
            return exhausted(format!("the node has its {room} sessions ({why})"));
        }
        let limit = self.user_limits(uid).sessions;
        if of_user >= limit {
            let why = "limits.sessions_per_user, limits.users.*.sessions";
            return exhausted(format!("user {uid} has its {limit} sessions ({why})"));
        }
        if of_user >= free && of_user > 0 && !self.config.is_own_user(uid) {
            return exhausted(format!(
                "user {uid} has {of_user} sessions, and the {free} places that are left of {room} \
                 are for others"
            ));
        }
        Ok(())
    }

    /// What a user may have.
    pub(crate) fn user_limits(&self, uid: u32) -> UserLimits {
        self.config.limits_of(uid, self.config.is_own_user(uid))
    }

    fn find_or_create(
        &self,
        core: &mut Core,
        hello: &HelloBody,
        tenant: &peer::Credentials,
    ) -> Result<(Vgpu, bool), Refusal> {
        let name = match hello.vgpu.as_str() {
            "" => registry::name_of_user(tenant.uid),
            name => name.to_owned(),
        };
        match core.registry.admit(&name, tenant.uid, &hello.token) {
            Ok(vgpu) => return Ok((vgpu.clone(), false)),
            Err(RegistryError::Unknown(_)) => {}
            Err(error) => return Err(refusal(&error)),
        }
        let (weight, memory_bytes) = (hello.weight, hello.memory_bytes);
        let asked = Asked { name, weight, memory_bytes, token: &hello.token };
        let wanted = self.wanted(core, asked, tenant.uid)?;
        let created = core.registry.create(&wanted).cloned();
        created.map(|vgpu| (vgpu, true)).map_err(|error| refusal(&error))
    }

    /// The vGPU that a user asks for, if it may have it.
    pub(crate) fn wanted(
        &self,
        core: &Core,
        asked: Asked<'_>,
        owner: u32,
    ) -> Result<Wanted, Refusal> {
        let limits = self.user_limits(owner);
        let denied = |error: LimitError| Refusal {
            code: RefusalCode::Permission,
            message: error.to_string(),
        };
        if !limits.create {
            return Err(denied(LimitError::Create(owner)));
        }
        let exhausted = |message| Err(Refusal { code: RefusalCode::Exhausted, message });
        let limit = limits.vgpus;
        if core.registry.of(owner).count() >= limit {
            return exhausted(format!(
                "user {owner} has its {limit} vGPUs (limits.vgpus_per_user, limits.users.*.vgpus); \
                 attach to one of them (WEFT_VGPU) or have one removed with `weft rm`"
            ));
        }
        if !self.config.is_own_user(owner) && !core.registry.has_room_for(owner) {
            return exhausted(format!(
                "the places that are left of the node's {} vGPUs (limits.vgpus) are for users who \
                 have fewer than user {owner}; attach to one of yours (WEFT_VGPU)",
                self.config.limits.vgpus
            ));
        }
        let weight = match asked.weight {
            0 => self.config.defaults.weight.min(limits.weight),
            weight => weight,
        };
        let memory_bytes = match asked.memory_bytes {
            0 => self.config.default_memory_bytes().min(limits.memory_bytes),
            bytes => bytes,
        };
        let (name, token) = (asked.name, asked.token.to_owned());
        let wanted = Wanted { name, owner, weight, memory_bytes, token, cap_ppm: None };
        // What nobody may have is refused as that.
        core.registry.check_wanted(&wanted).map_err(|error| refusal(&error))?;
        let others_weight = core.registry.of(owner).map(|vgpu| u64::from(vgpu.weight)).sum();
        let (weight, memory_bytes) = (Some(weight), Some(memory_bytes));
        limits.check(&Choice { weight, memory_bytes, others_weight }).map_err(denied)?;
        Ok(wanted)
    }

    fn start_session(
        &self,
        hello: &HelloBody,
        tenant: &peer::Credentials,
        seat: &Seat,
    ) -> anyhow::Result<(Session, TenantFiles)> {
        let vgpu = &seat.vgpu;
        self.pace_attach(vgpu, tenant)?;
        let limits = &self.config.limits;
        let segment_file = Segment::create(usize::try_from(limits.arena.0)?)?;
        let pinned_bytes = usize::try_from(hello.pinned_bytes.min(limits.pinned.0))?.max(PAGE);
        let pinned = MemoryFile::create("weft-pinned", pinned_bytes)?;
        let control = ControlPage::create()?;
        let (frames, table) = {
            let mut core = self.core();
            (core.frames.file(vgpu.key)?, core.frames.table()?)
        };
        let (workers_end, lifeline) = peer::lifeline()?;
        let tenant_process = Process::open(tenant.pid.context("the tenant's process is unknown")?)
            .context("the tenant is gone")?;
        let door = self.runtime.make_door(seat.id)?;
        let record = self.runtime.make_record(seat.id)?;
        let segment = Segment::open(segment_file.map(Access::ReadWrite)?)?;
        let page = ControlPage::open(&control.map(Access::ReadWrite)?)?;
        let start = self.start_of(hello, tenant, seat, pinned.len() as u64);
        let fds = [
            segment_file.as_fd(),
            control.as_fd(),
            self.memory.node_page.as_fd(),
            self.memory.device_page.as_fd(),
            frames.as_fd(),
            table.as_fd(),
            door.as_fd(),
            pinned.as_fd(),
            workers_end.as_fd(),
            tenant_process.as_fd(),
            record.as_fd(),
        ];
        let worker = Worker::spawn(&start, &fds)?;
        let session = Session { key: seat.key, start, vgpu: vgpu.key, worker, segment };
        if let Err(error) = self.begin(&session, page, Origin::New) {
            session.worker.end();
            return Err(error);
        }
        Ok((session, TenantFiles { segment: segment_file, pinned, lifeline }))
    }

    fn start_of(
        &self,
        hello: &HelloBody,
        tenant: &peer::Credentials,
        seat: &Seat,
        pinned_bytes: u64,
    ) -> Start {
        let (config, vgpu) = (&self.config, &seat.vgpu);
        Start {
            session: seat.id,
            key: seat.key,
            vgpu: vgpu.name.clone(),
            vgpu_key: vgpu.key,
            uid: tenant.uid,
            daemon_uid: rustix::process::getuid().as_raw(),
            user: config.worker.user_of(seat.key),
            pid: tenant.pid.unwrap_or(0),
            began: tenant.pid.and_then(|pid| began_at(pid).ok()).unwrap_or(0),
            program: printable(&hello.program, PROGRAM_CHARS_MAX),
            uuid: vgpu.uuid,
            memory_bytes: vgpu.memory_bytes,
            device_base: hello.device_base,
            device_bytes: hello.device_bytes,
            pinned_base: hello.pinned_base,
            pinned_bytes,
            device: DeviceSpec::of(config),
            times: Times::of(config),
            log: config.log.clone(),
        }
    }

    /// Makes the session known to the driver and to who may have to end it.
    pub(crate) fn begin(
        &self,
        session: &Session,
        page: ControlPage,
        origin: Origin,
    ) -> anyhow::Result<()> {
        let gate = GateDaemon::new(page, session.segment.doorbell()?);
        let worker = session.worker.process()?;
        if let Some(entry) = self.core().sessions.get_mut(&session.key) {
            entry.worker = Some(session.worker.process()?);
            entry.segment = Some(session.segment.clone());
        }
        let (key, vgpu, id) = (session.key, session.vgpu, session.start.session);
        let waiters = Waiters::open(&session.segment, &session.start, origin == Origin::Adopted);
        if let Err(error) = &waiters {
            tracing::debug!(session = id, %error, "the tenant's threads cannot be helped");
        }
        let (pid, waiters) = (session.worker.pid, waiters.ok());
        let beginning = Beginning { session: key, id, vgpu, gate, worker, pid, waiters };
        self.driver.send(Order::Begin(Box::new(beginning)));
        Ok(())
    }

    /// Answers the worker's requests until it is gone, then ends the session.
    pub(crate) fn serve_session(self: &Arc<Self>, session: Session) {
        let id = session.start.session;
        loop {
            let answered = match link::receive_plain::<Ask>(&session.worker.link) {
                Ok(Some(Ask::Log { severity, text })) => {
                    self.relay(&session.start, severity, &text);
                    true
                }
                Ok(Some(ask)) => {
                    let reply = self.answer(&session, ask);
                    let refused = matches!(reply, Reply::Refused { .. });
                    link::send(&session.worker.link, &reply, &[]).is_ok() && !refused
                }
                Ok(None) => false,
                Err(error) => {
                    tracing::warn!(session = id, %error, "the worker's request is no request");
                    false
                }
            };
            if !answered {
                break;
            }
        }
        self.end_session(session);
    }

    /// Whether a session, whose worker is measured first, may take what `ask` asks the ledger for.
    fn may_take_host_memory(
        &self,
        session: &Session,
        ask: impl FnOnce(&mut HostLedger, u64) -> Result<(), HostError>,
    ) -> Result<(), LedgerError> {
        let (key, uid) = (session.key, session.start.uid);
        let resident = host::resident_bytes(session.worker.pid);
        let of_user = self.user_limits(uid).host_memory_bytes;
        let mut core = self.core();
        // Device memory that the worker has mapped is another ledger's.
        let device = core.frames.ledger().session_bytes(key);
        core.host.measure(key, resident.saturating_sub(device));
        let asked = ask(&mut core.host, of_user);
        drop(core);
        asked.map_err(|error| {
            if let Some(suppressed) = self.lines.line(uid, Instant::now()) {
                tracing::warn!(session = session.start.session, %error, suppressed, "refused");
            }
            LedgerError::Host
        })
    }

    /// Writes a worker's line to the log, as that worker's, unless its user has had enough lines.
    fn relay(&self, start: &Start, severity: Severity, text: &str) {
        let Start { session, vgpu, uid, .. } = start;
        let Some(suppressed) = self.lines.line(*uid, Instant::now()) else { return };
        let text = printable(text, LINE_BYTES_MAX);
        match severity {
            Severity::Error => tracing::error!(session, vgpu, uid, suppressed, "worker: {text}"),
            Severity::Warn => tracing::warn!(session, vgpu, uid, suppressed, "worker: {text}"),
            Severity::Info => tracing::info!(session, vgpu, uid, suppressed, "worker: {text}"),
            Severity::Debug => tracing::debug!(session, vgpu, uid, suppressed, "worker: {text}"),
        }
    }

    fn answer(&self, session: &Session, ask: Ask) -> Reply {
        let (key, vgpu) = (session.key, session.vgpu);
        let outcome = match ask {
            Ask::Ready | Ask::Log { .. } => Ok(Reply::Done),
            Ask::Take { frames, request, again } => {
                let taken =
                    self.wait_for_clearing(|core| core.frames.take(key, frames, request, again));
                taken.map(|runs| Reply::Frames { runs })
            }
            Ask::GiveBack { runs, again } => {
                let given_back = self.core().frames.give_back(key, vgpu, &runs, again);
                given_back.map(|dirty| {
                    let cleared = dirty.clear();
                    self.core().frames.recycle(&cleared);
                    self.cleared.notify_all();
                    Reply::Done
                })
            }
            Ask::Load => {
                // The worker ends when its tenant does, also while it waits for this answer.
                let is_gone = || peer::has_hung_up(&session.worker.link);
                if self.loads.begin(self.payer(session), key, is_gone) {
                    session.worker.set_background(true);
                }
                Ok(Reply::Done)
            }
            Ask::Loaded => {
                session.worker.set_background(false);
                self.loads.end(key);
                Ok(Reply::Done)
            }
            Ask::Usage => {
                let (free, total) = self.core().frames.ledger().usage(vgpu);
                Ok(Reply::Usage { free, total })
            }
            Ask::Export { bytes, runs } => self.export(key, vgpu, bytes, runs),
            Ask::Import { key: wanted } => Ok(self.core().frames.import(wanted, key, vgpu).map_or(
                Reply::NotExported,
                |export| Reply::Imported {
                    owner: export.session,
                    bytes: export.bytes,
                    runs: export.runs.clone(),
                    number: export.imports,
                },
            )),
            Ask::Pinned { bytes } => {
                let limit = session.start.pinned_bytes;
                self.may_take_host_memory(session, |host, of_user| host.pin(key, bytes, of_user))
                    .and_then(|()| self.core().frames.set_pinned(key, bytes, limit))
                    .map(|()| Reply::Done)
            }
            Ask::Images { bytes } => self
                .may_take_host_memory(session, |host, of_user| host.promise(key, bytes, of_user))
                .map(|()| Reply::Done),
        };
        match outcome {
            Ok(reply) => reply,
            Err(
                LedgerError::Quota | LedgerError::Device | LedgerError::Pinned | LedgerError::Host,
            ) => Reply::Exhausted,
            Err(
                error @ (LedgerError::NotTheirs(..) | LedgerError::Unknown | LedgerError::Clearing),
            ) => {
                let id = session.start.session;
                tracing::error!(session = id, %error, "the worker asked for the impossible");
                Reply::Refused { message: error.to_string() }
            }
        }
    }

    fn export(
        &self,
        session: u32,
        vgpu: u32,
        bytes: u64,
        runs: Vec<Run>,
    ) -> Result<Reply, LedgerError> {
        let mut key = [0; 16];
        let random = File::open("/dev/urandom").and_then(|mut source| source.read_exact(&mut key));
        if let Err(error) = random {
            tracing::error!(%error, "no random numbers for the key of shared memory");
            return Ok(Reply::Exhausted);
        }
        let export = Export { session, vgpu, bytes, runs, imports: 0 };
        let key = self.core().frames.export(key, export)?;
        Ok(key.map_or(Reply::Exhausted, |key| Reply::Exported { key }))
    }

    /// The worker is gone or must go: its turn, its memory and its tenant's hope end here.
    pub(crate) fn end_session(&self, session: Session) {
        let Session { key, start, vgpu, worker, segment } = session;
        worker.end();
        self.loads.end(key);
        self.memory.repair(key);
        if let Err(error) = segment.declare_worker_lost() {
            tracing::error!(session = start.session, %error, "the tenant could not be told");
        }
        let (used_ns, frames) = {
            // In one step for whoever reads totals: what the driver no longer counts is booked.
            let mut core = self.core();
            let ended = self.driver.ask(|answer| Order::End { session: key, answer });
            let ended = ended.flatten();
            let used_ns = ended.map_or(0, |ended| ended.used_ns);
            self.memory.count_abandoned(ended.map_or(0, |ended| ended.abandoned_ns));
            core.registry.close_session(vgpu, start.session, used_ns);
            (used_ns, core.frames.remove_session(key, vgpu))
        };
        self.leave(key, vgpu, frames);
        // Only when it is on disk: a daemon that finds the record books it, once.
        if self.save_registry() {
            self.runtime.remove_door(start.session);
        }
        if let Some(suppressed) = self.lines.line(start.uid, Instant::now()) {
            let (session, vgpu) = (start.session, start.vgpu);
            tracing::info!(session, vgpu, used_ns, suppressed, "session ended");
        }
    }

    /// What `operation` answers when it need not wait for frames that are being cleared.
    fn wait_for_clearing<T>(
        &self,
        operation: impl Fn(&mut Core) -> Result<T, LedgerError>,
    ) -> Result<T, LedgerError> {
        let mut core = self.core();
        loop {
            match operation(&mut core) {
                Err(LedgerError::Clearing) => {
                    core = self.cleared.wait(core).unwrap_or_else(PoisonError::into_inner);
                }
                outcome => return outcome,
            }
        }
    }

    /// Clears the session's memory and gives it and the session's place back.
    fn leave(&self, key: u32, vgpu: u32, frames: Dirty) {
        let cleared = frames.clear();
        let mut core = self.core();
        core.frames.recycle(&cleared);
        core.sessions.remove(&key);
        core.host.end(key);
        let is_last = !core.sessions.values().any(|entry| entry.vgpu == vgpu);
        let file = is_last.then(|| core.frames.forget_file(vgpu));
        drop(core);
        self.cleared.notify_all();
        // What is left of it goes without the lock, too.
        drop(file);
    }

    /// Keeps a tenant from attaching more often than it may while others have sessions.
    fn pace_attach(&self, vgpu: &Vgpu, tenant: &peer::Credentials) -> anyhow::Result<()> {
        let payer = self.tenancy.payer(vgpu.key, tenant.uid);
        let others = |entry: &Entry| self.tenancy.payer(entry.vgpu, entry.uid) != payer;
        if !self.core().sessions.values().any(others) {
            return Ok(());
        }
        let limits = &self.config.limits;
        let rate = limits.attaches_per_second;
        let mut pace = self.attach_pace.lock().unwrap_or_else(PoisonError::into_inner);
        let wait = Duration::from_nanos(pace.wait_ns(payer, super::now_ns(), rate));
        if wait > limits.attach() {
            pace.give_back(payer, rate);
            bail!(
                "user {payer} attaches more than {rate} times a second while others work \
                 (limits.attaches_per_second); try again later"
            );
        }
        drop(pace);
        std::thread::sleep(wait);
        Ok(())
    }

    /// Who pays for a session's processor time: its tenant, or its vGPU where these compete.
    fn payer(&self, session: &Session) -> u32 {
        match self.config.scheduling.share {
            ShareConfig::Vgpu => session.vgpu,
            ShareConfig::User => self.tenancy.payer(session.vgpu, session.start.uid),
        }
    }

    /// Tells the driver where a vGPU stands.
    pub(crate) fn place(&self, core: &mut Core, vgpu: &Vgpu) {
        let weight = |weight: u32| Weight::new(weight).unwrap_or_default();
        let scheduling = &self.config.scheduling;
        // Without users' parts every vGPU belongs to the tenant that is always there.
        let (tenant, tenant_weight) = match scheduling.share {
            ShareConfig::Vgpu => (TenantKey::DEFAULT.0, Weight::ONE),
            ShareConfig::User => {
                let payer = self.tenancy.payer(vgpu.key, vgpu.owner);
                let user = core.registry.user(payer);
                let set = user.weight.unwrap_or_else(|| scheduling.user_weight(payer));
                (user.key, weight(set))
            }
        };
        let period_ns = scheduling.cap_period_ms * 1_000_000;
        let cap = vgpu.cap_ppm.map(|share_ppm| Cap { share_ppm, period_ns });
        let place =
            Place { vgpu: vgpu.key, tenant, tenant_weight, weight: weight(vgpu.weight), cap };
        self.driver.send(Order::Place(place));
    }
}

fn refusal(error: &RegistryError) -> Refusal {
    let code = match error {
        RegistryError::Owner(_) | RegistryError::Token(_) | RegistryError::Reserved { .. } => {
            RefusalCode::Permission
        }
        RegistryError::Full(_) => RefusalCode::Exhausted,
        RegistryError::Name(_)
        | RegistryError::Weight(_)
        | RegistryError::Cap(_)
        | RegistryError::Memory(..)
        | RegistryError::Exists(_)
        | RegistryError::Unknown(_) => RefusalCode::Malformed,
    };
    Refusal { code, message: error.to_string() }
}
