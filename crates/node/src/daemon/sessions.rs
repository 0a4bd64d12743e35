//! A session from its opening to its end.

mod caps;
mod ending;
mod entry;
mod loads;
mod memory;
mod reservation;
mod starts;

use std::fs::File;
use std::io::Read as _;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use anyhow::Context;
use weft_device::Wanted;
use weft_gate::{ControlPage, DaemonSide, GateDaemon};
use weft_ring::peer::{self, Process};
use weft_ring::{Access, Segment};
use weft_sched::memory::LedgerError;
use weft_sched::{Cap, Class, DeviceKey, TenantKey, Weight};
use weft_wire::handshake::RefusalCode;

pub(crate) use self::entry::{Entry, is_relayed, program_name};
use self::memory::SessionMemory;
pub(crate) use self::reservation::{Asked, Reservation, name_asked, refusal};
use super::attach::no_hello;
use super::attach::vm::{Held, RegionError};
use super::attach::{Attachment, Client};
use super::clock;
use super::cosched::{Waiters, began_at};
use super::devices::exports::Export;
use super::devices::frames::VgpuFiles;
use super::devices::residency::Exchange;
use super::driver::{Beginning, Order, Place};
use super::host::{HostError, HostLedger};
use super::log::{LogLimit, printable};
use super::moves::Files;
use super::process::Resident;
use super::registry::Vgpu;
use super::spawn::Worker;
use super::{Daemon, Tables};
use crate::config::ShareConfig;
use crate::link::{self, Ask, Awaited, LINE_BYTES_MAX, Passed, Reply, Run, Severity, Start, Times};

/// A switch of memory that takes less is not worth telling the driver of, in ns: a turn may last
/// `yield_us` longer anyway.
pub(super) const SWITCH_MIN_NS: u64 = 50_000;

/// Lines about sessions that did not open, which a tenant can cause.
static FAILURES: LogLimit = LogLimit::per_second(10);

/// An open session, owned by the thread that serves its worker.
#[derive(Debug)]
pub(crate) struct Session {
    /// Its key.
    pub(crate) key: u32,
    /// What its worker was started with.
    pub(crate) start: Start,
    /// Key of its vGPU.
    pub(crate) vgpu: u32,
    /// The user whose tenant pays.
    pub(crate) payer: u32,
    /// Its worker.
    pub(crate) worker: Worker,
    /// Its segment.
    pub(crate) segment: Segment,
    /// Its place in the region of its virtual machine.
    pub(crate) place: Option<Held>,
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
pub(crate) struct TenantFiles(pub(crate) Vec<OwnedFd>);

/// What of a worker's memory its session pays for as the host's: device memory that it has mapped
/// is another ledger's, and what lies in the region of a virtual machine is that machine's.
fn counted_bytes(resident: Resident, in_region: bool, device_bytes: u64) -> u64 {
    match in_region {
        // Which of the shared pages are the region's is not told: all of them are others'.
        true => resident.own_bytes(),
        false => resident.all_bytes.saturating_sub(device_bytes),
    }
}

/// What a worker is told that cannot have what it asked for.
pub(super) fn refused(session: &Session, error: LedgerError) -> Reply {
    match error {
        LedgerError::Quota
        | LedgerError::Device
        | LedgerError::Pinned
        | LedgerError::Host
        | LedgerError::Swap => Reply::Exhausted,
        LedgerError::NotTheirs(..) | LedgerError::Unknown | LedgerError::Clearing => {
            let id = session.start.session;
            tracing::error!(session = id, %error, "the worker asked for the impossible");
            Reply::Refused { message: error.to_string() }
        }
    }
}

impl Tables {
    /// What `ask` says of host memory. Before it refuses, sessions that may have given some back
    /// are measured.
    fn find_host_room(
        &mut self,
        ask: impl Fn(&mut HostLedger) -> Result<(), HostError>,
    ) -> Result<(), HostError> {
        let Err(refused) = ask(&mut self.host) else { return Ok(()) };
        for session in self.host.stale(refused, Instant::now()) {
            let Some(entry) = self.sessions.get(&session) else { continue };
            // One that starts takes what it was promised.
            let Some(worker) = &entry.worker else { continue };
            let device_bytes = self.memory(entry.device).session_bytes(session);
            let bytes = counted_bytes(worker.resident(), entry.region.is_some(), device_bytes);
            self.host.measure(session, bytes);
        }
        ask(&mut self.host)
    }
}

impl Daemon {
    /// Opens a session for a tenant that has a reservation: makes the shared memory, starts the
    /// worker.
    pub(crate) fn open_session(
        &self,
        attachment: &Attachment,
        reservation: &Reservation,
    ) -> Result<(Session, TenantFiles, Vgpu), Refusal> {
        let vgpu = reservation.vgpu.clone();
        // The next daemon must know the vGPU of a session that it adopts. The disk works while the
        // worker starts.
        let saving = reservation.is_new.then(|| self.begin_saving());
        let started = self.start_session(attachment, reservation);
        if saving.is_some_and(|saving| self.saved(&saving).is_err()) {
            tracing::warn!(vgpu = vgpu.name, "a new vGPU is not on disk");
        }
        match started {
            Ok((session, files)) => Ok((session, files, vgpu)),
            // Not the device's fault, nor the worker's.
            Err(error) if error.is::<RegionError>() => {
                self.cancel_reservation(reservation);
                Err(error.downcast::<RegionError>().map_or_else(
                    |error| no_hello(RefusalCode::Worker, &error.to_string()),
                    Refusal::from,
                ))
            }
            Err(error) => {
                if let Some(suppressed) = FAILURES.line(Instant::now()) {
                    let (session, error) = (reservation.id, format!("{error:#}"));
                    tracing::error!(session, error, suppressed, "session did not open");
                }
                self.cancel_reservation(reservation);
                self.health.suspect(reservation.device);
                let message = format!("the node could not start a worker: {error:#}");
                Err(Refusal { code: RefusalCode::Worker, message })
            }
        }
    }

    /// A session that did not open leaves the tables.
    pub(crate) fn cancel_reservation(&self, reservation: &Reservation) {
        let (key, vgpu) = (reservation.key, reservation.vgpu.key);
        self.runtime.remove_door(reservation.id);
        let frames = {
            let mut tables = self.tables();
            tables.registry.close_session(vgpu, reservation.id, 0);
            tables.host.end(key);
            tables.frames(reservation.device).remove_session(key, vgpu)
        };
        self.give_memory_back([(reservation.device, frames)]);
        self.leave(key, vgpu, Some(reservation.device));
    }

    fn start_session(
        &self,
        attachment: &Attachment,
        reservation: &Reservation,
    ) -> anyhow::Result<(Session, TenantFiles)> {
        let (vgpu, device) = (&reservation.vgpu, self.devices.get(reservation.device));
        let Attachment { hello, tenant, client } = attachment;
        self.pace_attach(reservation.payer)?;
        let _starting = self.begin_start(reservation);
        let limits = &self.config.limits;
        let managed_bytes = if device.info.capabilities.managed { vgpu.memory_bytes } else { 0 };
        let SessionMemory { segment: segment_file, pinned, managed_bytes, place, marks } =
            SessionMemory::make(client, hello.pinned_bytes, managed_bytes, limits)?;
        let control = ControlPage::create()?;
        let VgpuFiles { frames, table, physical } =
            self.tables().frames(device.key).files(vgpu.key)?;
        let (workers_end, lifeline) = peer::lifeline()?;
        let tenant_process = Process::open(tenant.pid.context("the tenant's process is unknown")?)
            .context("the tenant is gone")?;
        let door = self.runtime.make_door(reservation.id)?;
        let record = self.runtime.make_record(reservation.id)?;
        let segment = Segment::open(segment_file.map(Access::ReadWrite)?)?;
        if matches!(client, Client::Elsewhere { .. }) {
            segment.mark_relayed()?;
        }
        let page = ControlPage::open(&control.map(Access::ReadWrite)?)?;
        let pinned_bytes = pinned.len() as u64 - managed_bytes;
        let window = (pinned_bytes, managed_bytes);
        let mut start = self.start_of(attachment, reservation, window);
        start.part = place.as_ref().map(|place| place.part);
        let mut fds = vec![
            (Passed::Segment, segment_file.as_fd()),
            (Passed::Control, control.as_fd()),
            (Passed::NodePage, self.node_page.as_fd()),
            (Passed::DevicePage, device.page_file.as_fd()),
            (Passed::Frames, frames.as_fd()),
            (Passed::Table, table.as_fd()),
            (Passed::Physical, physical.as_fd()),
            (Passed::Door, door.as_fd()),
            (Passed::Pinned, pinned.as_fd()),
            (Passed::Lifeline, workers_end.as_fd()),
            (Passed::Tenant, tenant_process.as_fd()),
            (Passed::Record, record.as_fd()),
        ];
        fds.extend(marks.as_ref().map(|marks| (Passed::Marks, marks.writer.as_fd())));
        let worker = Worker::spawn(&start, &fds, self.ranks)?;
        let (key, payer) = (reservation.key, reservation.payer);
        let session = Session { key, start, vgpu: vgpu.key, payer, worker, segment, place };
        if let Err(error) = self.begin(&session, page, Origin::New) {
            session.worker.end();
            return Err(error);
        }
        let files = match marks {
            // Its server has the region.
            Some(marks) => vec![lifeline, marks.reader],
            None => vec![segment_file.into(), pinned.into(), lifeline],
        };
        Ok((session, TenantFiles(files)))
    }

    fn start_of(
        &self,
        attachment: &Attachment,
        reservation: &Reservation,
        (pinned_bytes, managed_bytes): (u64, u64),
    ) -> Start {
        let (config, vgpu) = (&self.config, &reservation.vgpu);
        let Attachment { hello, tenant, client } = attachment;
        let device = self.devices.get(reservation.device);
        Start {
            session: reservation.id,
            key: reservation.key,
            vgpu: vgpu.name.clone(),
            vgpu_key: vgpu.key,
            granted: client.is_granted(),
            uid: tenant.uid,
            daemon_uid: rustix::process::getuid().as_raw(),
            user: config.worker.user_of(reservation.key),
            pid: tenant.pid.unwrap_or(0),
            began: tenant.pid.and_then(|pid| began_at(pid).ok()).unwrap_or(0),
            elsewhere: attachment.elsewhere(),
            program: program_name(&hello.program),
            uuid: vgpu.uuid,
            memory_bytes: vgpu.memory_bytes,
            device_base: hello.device_base,
            device_bytes: hello.device_bytes,
            pinned_base: hello.pinned_base,
            pinned_bytes,
            managed_bytes,
            part: None,
            device: device.spec(),
            times: Times::of(config, device.info.capabilities),
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
        let gate = GateDaemon::new(DaemonSide::new(page, session.segment.doorbell()?));
        let worker = Arc::clone(&session.worker.process);
        if let Some(entry) = self.tables().sessions.get_mut(&session.key) {
            self.devices.put_on(entry.device, &worker);
            self.weigh(entry.device, (session.vgpu, session.payer), &worker);
            entry.worker = Some(Arc::clone(&worker));
            entry.segment = Some(session.segment.clone());
            entry.region = session.place.as_ref().map(|place| place.part.region);
        }
        let (key, vgpu, id) = (session.key, session.vgpu, session.start.session);
        let waiters = self.waiters(session, origin);
        let is_machines = session.place.is_some() && waiters.is_none();
        let beginning = Beginning { session: key, id, vgpu, gate, worker, waiters };
        self.driver.send(Order::Begin(Box::new(beginning)));
        // Its server may have said meanwhile who runs the machine's processors, and what was
        // ordered then came before the driver knew the session.
        if is_machines && let Some(waiters) = self.waiters(session, origin) {
            self.driver.send(Order::Help { session: key, waiters: Box::new(waiters) });
        }
        Ok(())
    }

    /// Whom to help to run: the program's threads, or those that run its machine's processors.
    fn waiters(&self, session: &Session, origin: Origin) -> Option<Waiters> {
        let (segment, start) = (&session.segment, &session.start);
        let waiters = match &session.place {
            // Whoever relays for a program does not wait in its stead.
            None if start.elsewhere.is_some() => return None,
            None => Waiters::open(segment, start, origin == Origin::Adopted),
            // Of one that was adopted nobody knows yet who runs the machine's processors: those
            // are helped from when its server says so.
            Some(place) => Waiters::of_machine(segment, start.uid, place.processors()?),
        };
        if let Err(error) = &waiters {
            let id = session.start.session;
            tracing::debug!(session = id, %error, "the tenant's threads cannot be helped");
        }
        waiters.ok()
    }

    /// Answers the worker's requests until it is gone, then ends the session. What a request costs
    /// is an ordinary thread's; others wait for the device until the end is noticed.
    pub(crate) fn serve_session(self: &Arc<Self>, session: Session) {
        let id = session.start.session;
        loop {
            self.go_first(true);
            if link::await_message(&session.worker.link) == Awaited::Message {
                self.go_first(false);
            }
            let answered = match link::receive_plain::<Ask>(&session.worker.link) {
                Ok(Some(Ask::Log { severity, text })) => {
                    self.relay(&session, severity, &text);
                    true
                }
                Ok(Some(ask)) => {
                    let (reply, files) = self.answer(&session, ask);
                    let refused = matches!(reply, Reply::Refused { .. });
                    let fds: Vec<_> = files.iter().map(|(_, fd)| fd.as_fd()).collect();
                    link::send(&session.worker.link, &reply, &fds).is_ok() && !refused
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
        ask: impl Fn(&mut HostLedger, u64) -> Result<(), HostError>,
    ) -> Result<(), LedgerError> {
        let Session { key, payer, .. } = *session;
        let device = self.device_of(key).ok_or(LedgerError::Unknown)?;
        let resident = session.worker.process.resident();
        let of_user = self.tenant_limits(session.start.uid, payer).host_memory_bytes;
        let mut tables = self.tables();
        let device_bytes = tables.memory(device).session_bytes(key);
        let bytes = counted_bytes(resident, session.place.is_some(), device_bytes);
        tables.host.measure(key, bytes);
        let asked = tables.find_host_room(|host| ask(host, of_user));
        drop(tables);
        asked.map_err(|error| {
            if let Some(suppressed) = self.lines.line(payer, Instant::now()) {
                tracing::warn!(session = session.start.session, %error, suppressed, "refused");
            }
            LedgerError::Host
        })
    }

    /// Writes a worker's line to the log, as that worker's, unless its tenant has had enough.
    fn relay(&self, session: &Session, severity: Severity, text: &str) {
        let Some(suppressed) = self.lines.line(session.payer, Instant::now()) else { return };
        let Start { session, vgpu, uid, .. } = &session.start;
        let text = printable(text, LINE_BYTES_MAX);
        match severity {
            Severity::Error => tracing::error!(session, vgpu, uid, suppressed, "worker: {text}"),
            Severity::Warn => tracing::warn!(session, vgpu, uid, suppressed, "worker: {text}"),
            Severity::Info => tracing::info!(session, vgpu, uid, suppressed, "worker: {text}"),
            Severity::Debug => tracing::debug!(session, vgpu, uid, suppressed, "worker: {text}"),
        }
    }

    /// The device that executes a session; none if it is in no table, and so over.
    pub(super) fn device_of(&self, key: u32) -> Option<DeviceKey> {
        self.tables().sessions.get(&key).map(|entry| entry.device)
    }

    fn answer(&self, session: &Session, ask: Ask) -> (Reply, Files) {
        match ask {
            Ask::Paused { works } => self.answer_paused(session, works).unwrap_or_else(|error| {
                let id = session.start.session;
                tracing::error!(session = id, %error, "a session stays: no descriptors");
                (Reply::Stay, Vec::new())
            }),
            Ask::Copied { failure } => (self.answer_copied(session, failure), Vec::new()),
            Ask::Moved { device } => (self.answer_moved(session, device), Vec::new()),
            ask @ (Ask::Room { .. } | Ask::Holds { .. } | Ask::Brought { .. }) => {
                (self.answer_about_room(session, &ask), Vec::new())
            }
            ask @ (Ask::Ready
            | Ask::Log { .. }
            | Ask::Take { .. }
            | Ask::GiveBack { .. }
            | Ask::Usage
            | Ask::Reside { .. }
            | Ask::Export { .. }
            | Ask::Import { .. }
            | Ask::Load { .. }
            | Ask::Loaded { .. }
            | Ask::Pinned { .. }
            | Ask::Tables { .. }
            | Ask::Images { .. }) => (self.answer_about_resources(session, ask), Vec::new()),
        }
    }

    fn answer_about_resources(&self, session: &Session, ask: Ask) -> Reply {
        let Session { key, vgpu, .. } = *session;
        let Some(device) = self.device_of(key) else {
            return refused(session, LedgerError::Unknown);
        };
        let outcome = match ask {
            Ask::Ready
            | Ask::Log { .. }
            | Ask::Paused { .. }
            | Ask::Copied { .. }
            | Ask::Moved { .. }
            | Ask::Room { .. }
            | Ask::Holds { .. }
            | Ask::Brought { .. } => Ok(Reply::Done),
            Ask::Take { frames, request, again } => {
                let taken = self.wait_for_clearing(|tables| {
                    tables.frames(device).take(key, frames, request, again)
                });
                taken.map(|runs| Reply::Frames { runs })
            }
            Ask::GiveBack { runs, again } => {
                let given_back = self.tables().frames(device).give_back(key, vgpu, &runs, again);
                given_back.map(|dirty| {
                    let cleared = dirty.clear();
                    self.tables().frames(device).recycle(&cleared);
                    self.cleared.notify_all();
                    Reply::Done
                })
            }
            Ask::Load { bytes, stands } => Ok(self.begin_load(session, bytes, stands)),
            Ask::Loaded { took_ns } => {
                self.end_load(session, took_ns);
                Ok(Reply::Done)
            }
            Ask::Reside { page, touched, named } => {
                Ok(self.make_resident(session, device, &Wanted { page, touched, named }))
            }
            Ask::Usage => {
                let (free, total) = self.tables().memory(device).usage(vgpu);
                Ok(Reply::Usage { free, total })
            }
            Ask::Export { bytes, runs } => self.export(session, device, bytes, runs),
            Ask::Import { key: wanted } => Ok(self
                .tables()
                .frames(device)
                .import(wanted, key, vgpu)
                .map_or(Reply::NotExported, |export| Reply::Imported {
                    owner: export.session,
                    bytes: export.bytes,
                    runs: export.runs.clone(),
                    number: export.imports,
                })),
            Ask::Pinned { bytes } => self.pin(session, device, bytes).map(|()| Reply::Done),
            Ask::Tables { more } => self
                .may_take_host_memory(session, |host, of_user| host.grow(key, more, of_user))
                .map(|()| Reply::Done),
            Ask::Images { bytes, stands } => self
                .may_take_host_memory(session, |host, of_user| host.promise(key, bytes, of_user))
                .map(|()| self.note_loading(session, bytes, stands)),
        };
        outcome.unwrap_or_else(|error| {
            if matches!(error, LedgerError::Swap)
                && let Some(suppressed) = self.lines.line(session.payer, Instant::now())
            {
                let (session, vgpu) = (session.start.session, session.start.vgpu.as_str());
                tracing::warn!(session, vgpu, suppressed, "out of memory: device.swap_dir is full");
            }
            refused(session, error)
        })
    }

    /// Brings parts of a vGPU's memory into slots; nobody waits for the tables meanwhile.
    fn make_resident(&self, session: &Session, device: DeviceKey, wanted: &Wanted) -> Reply {
        let residency = Arc::clone(self.tables().memory(device).residency());
        let began = Instant::now();
        let Exchange { wait_ns, ahead_ns, is_own } =
            residency.make_resident(clock::now_ns(), session.vgpu, wanted);
        let took_ns = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let switch_ns = wait_ns.saturating_add(took_ns);
        let key = session.key;
        match wanted.page {
            _ if switch_ns.max(ahead_ns) < SWITCH_MIN_NS => {}
            None => self.driver.send(Order::Switched { session: key, switch_ns, ahead_ns }),
            // What an operation meets in its middle is its own time. What it drove out of its own
            // has nothing to do with others.
            Some(_) if is_own => {}
            Some(_) => self.driver.send(Order::Paged { session: key, paged_ns: switch_ns }),
        }
        Reply::Resident { wait_ns, ahead_ns }
    }

    /// A worker's new total of pinned memory. What its window cannot hold is refused first: the
    /// ledger of host memory would keep it.
    fn pin(&self, session: &Session, device: DeviceKey, bytes: u64) -> Result<(), LedgerError> {
        let (key, limit) = (session.key, session.start.pinned_bytes);
        self.tables().memory(device).check_pinned(key, bytes, limit)?;
        // A region counts as a whole, touched or not.
        if session.place.is_none() {
            self.may_take_host_memory(session, |host, of_tenant| host.pin(key, bytes, of_tenant))?;
        }
        self.tables().frames(device).set_pinned(key, bytes, limit)
    }

    fn export(
        &self,
        session: &Session,
        device: DeviceKey,
        bytes: u64,
        runs: Vec<Run>,
    ) -> Result<Reply, LedgerError> {
        let mut key = [0; 16];
        let random = File::open("/dev/urandom").and_then(|mut source| source.read_exact(&mut key));
        if let Err(error) = random {
            tracing::error!(%error, "no random numbers for the key of shared memory");
            return Ok(Reply::Exhausted);
        }
        let Session { key: owner, vgpu, .. } = *session;
        let export = Export { session: owner, vgpu, bytes, runs, imports: 0 };
        let key = self.tables().frames(device).export(key, export)?;
        Ok(key.map_or(Reply::Exhausted, |key| Reply::Exported { key }))
    }

    /// What `operation` answers when it need not wait for frames that are being cleared.
    fn wait_for_clearing<T>(
        &self,
        operation: impl Fn(&mut Tables) -> Result<T, LedgerError>,
    ) -> Result<T, LedgerError> {
        let mut tables = self.tables();
        loop {
            match operation(&mut tables) {
                Err(LedgerError::Clearing) => {
                    tables = self.cleared.wait(tables).unwrap_or_else(PoisonError::into_inner);
                }
                outcome => return outcome,
            }
        }
    }

    /// Tells the driver where a vGPU stands whose tenant is settled.
    pub(crate) fn place(&self, tables: &mut Tables, vgpu: &Vgpu) {
        let weight = |weight: u32| Weight::new(weight).unwrap_or_default();
        let scheduling = &self.config.scheduling;
        let period_ns = scheduling.cap_period_ms * 1_000_000;
        let cap = |share_ppm: u32| Cap { share_ppm, period_ns };
        // Without users' parts every vGPU belongs to the tenant that is always there.
        let payer = self.tenancy.payer(vgpu.key, vgpu.owner);
        let (tenant, owner, tenant_weight, tenant_cap) = match scheduling.share {
            ShareConfig::Vgpu => (TenantKey::DEFAULT.0, debtor(payer), Weight::ONE, None),
            ShareConfig::User => {
                let user = tables.registry.user(payer);
                let set = user.weight.unwrap_or_else(|| scheduling.user_weight(payer));
                (user.key, None, weight(set), self.user_cap(payer).map(cap))
            }
        };
        // One whose device is gone has no sessions to place.
        let Some(device) = self.devices.named(&vgpu.device).map(|device| device.key) else {
            return;
        };
        let cap = self.cap_ppm(tables, vgpu).map(cap);
        let class = match vgpu.sla_ns {
            0 => Class::Batch,
            sla_ns => Class::UserFacing { sla_ns },
        };
        let (vgpu, weight) = (vgpu.key, weight(vgpu.weight));
        let place =
            Place { vgpu, device, tenant, owner, tenant_weight, tenant_cap, weight, cap, class };
        self.driver.send(Order::Place(place));
    }
}

/// Who answers for what a vGPU of this user overdrew. Nobody does for what root or the daemon's own
/// user made, which may be for somebody else.
pub(super) fn debtor(user: u32) -> Option<u32> {
    let own = rustix::process::geteuid().as_raw();
    (user != 0 && user != own).then_some(user)
}

#[cfg(test)]
mod tests;
