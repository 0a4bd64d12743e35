//! The daemon: one process per node that hands out vGPUs, keeps the ledger and decides who runs.
//!
//! Threads: the main one accepts connections and hears hellos; the driver schedules; the saver
//! writes files; each session has one that serves its worker; each admin connection has one. All
//! sleep while nothing happens.

mod admin;
mod admin_connections;
mod adopt;
mod attach;
mod balance;
mod clock;
mod compiling;
mod cosched;
mod cpu_weight;
mod devices;
mod doctor;
mod driver;
mod health;
mod host;
mod lending;
mod log;
mod moves;
mod pace;
mod pending;
mod persist;
mod precedence;
mod process;
mod recorder;
mod recording;
mod registry;
mod roles;
mod room;
mod runtime;
mod service;
mod sessions;
mod spawn;
mod starts;
mod tasks;
mod tenancy;
mod trace;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::event::{PollFd, PollFlags, Timespec};
use weft_device::Capabilities;
use weft_gate::NodePage;
use weft_ring::peer::{self, Credentials};
use weft_ring::{Access, Loss, MemoryFile};
use weft_sched::{Config as SchedConfig, DeviceKey, Node, VgpuKey};
use weft_wire::handshake::RefusalCode;

use self::admin_connections::AdminConnections;
use self::attach::gateway;
use self::attach::remote::Remote;
use self::attach::vm::Regions;
use self::compiling::Loads;
use self::cosched::Coscheduler;
use self::cpu_weight::CpuWeights;
use self::devices::frames::Frames;
use self::devices::{Device, Devices};
use self::driver::{DrivenDevice, Driver, Handle, Order};
use self::health::Health;
use self::host::HostLedger;
use self::log::TenantLines;
use self::moves::Move;
use self::pace::AttachPace;
use self::pending::{Connection, Pending};
use self::persist::{Saved, Saver, Schedule};
use self::precedence::Ranks;
use self::recorder::Files;
use self::registry::{Holding, Home, Registry};
use self::room::Room;
use self::runtime::{Listeners, Runtime};
use self::sessions::Entry;
use self::starts::Starts;
use self::tenancy::Tenancy;
use self::trace::Archive;
use crate::config::{DeviceConfig, NodeConfig};

pub(crate) use self::clock::now_ns;
pub(crate) use self::cosched::run_watchdog;
pub(crate) use self::doctor::{gpu_checks, local_checks};

/// After a connection that could not be accepted (no descriptor is left, say) the next one waits
/// this long: it would fail alike.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Stack of a thread that serves one connection.
const STACK_BYTES: usize = 512 << 10;

/// Sessions must be over within this time of a shutdown.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(15);

/// What the daemon's threads share.
#[derive(Debug)]
pub(crate) struct Daemon {
    /// As it was told.
    pub(crate) config: NodeConfig,
    /// Sessions that the system has room for.
    pub(crate) room: Room,
    /// The priorities that it can give workers.
    ranks: Option<Ranks>,
    /// Directory and sockets.
    pub(crate) runtime: Runtime,
    /// The devices.
    pub(crate) devices: Devices,
    /// One doorbell for the daemon and a mark per session.
    pub(crate) node_page: MemoryFile,
    /// The scheduling thread.
    pub(crate) driver: Handle,
    /// Turns that it has told of.
    archive: Mutex<Archive>,
    /// Who belongs to which tenant.
    tenancy: Tenancy,
    attach_pace: Mutex<AttachPace>,
    loads: Loads,
    cpu_weights: CpuWeights,
    starts: Starts,
    tables: Mutex<Tables>,
    /// Frames were cleared.
    cleared: Condvar,
    /// A session is over.
    ended: Condvar,
    /// A vGPU that moves, or one of its sessions, has come further.
    moving: Condvar,
    saver: Saver,
    /// Pools, and the virtual accelerators on them.
    pub(crate) tasks: tasks::Tasks,
    /// Programs of other hosts.
    pub(crate) remote: Remote,
    /// Memory that virtual machines share with this host.
    pub(crate) regions: Regions,
    /// Whose devices are suspected of failing.
    health: Health,
    /// Bounds what tenants can have written to the log.
    pub(crate) lines: TenantLines,
    /// Connections to the admin socket.
    admin_connections: Mutex<AdminConnections>,
    /// The group whose members administrate.
    admin_group: Option<u32>,
    stop: UnixStream,
}

/// How the daemon ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// With its sessions.
    Stop,
    /// Alone: its workers wait for the next daemon.
    Leave,
}

/// Programs that a refusal to stop names.
const NAMED_MAX: usize = 8;

/// The tables.
#[derive(Debug)]
pub(crate) struct Tables {
    /// vGPUs.
    pub(crate) registry: Registry,
    /// The devices' memory.
    frames: BTreeMap<DeviceKey, Frames>,
    /// Host memory.
    pub(crate) host: HostLedger,
    /// Sessions by key.
    pub(crate) sessions: BTreeMap<u32, Entry>,
    /// Sessions taken over from an earlier daemon.
    pub(crate) adopted: u64,
    /// vGPUs on their way to another device, by key.
    moves: BTreeMap<u32, Move>,
    /// Names of vGPUs whose sessions are ended because they are being removed, and how many ask for
    /// that.
    removals: BTreeMap<String, usize>,
    /// Names of vGPUs that get no session until they are removed, or this daemon ends: what they
    /// have used was told as final.
    closed: BTreeSet<String>,
}

/// Runs the daemon until it is told to stop.
pub(crate) fn run(config: NodeConfig) -> anyhow::Result<()> {
    log::init(&config.log);
    cosched::serve_soon();
    devices::leave_processors(&config)?;
    let runtime = Runtime::claim(&config)?;
    let schedule_path = config.sockets.runtime_dir.join("schedule.json");
    let saver = Saver::default();
    let saver_thread = spawn_saver(saver.clone(), schedule_path.clone())?;
    let ended = match Setup::new(config, runtime, saver.clone(), &schedule_path) {
        Ok(setup) => setup.serve(),
        Err(error) => Err(error),
    };
    // Threads that still serve somebody end with the process; what they would save comes too late.
    saver.end();
    if saver_thread.join().is_err() {
        tracing::error!("the saving thread panicked");
    }
    ended
}

/// Whether a daemon could start with this configuration, which is answered whole, as TOML, after
/// comments on what may not be meant.
pub(crate) fn check(config: &NodeConfig) -> anyhow::Result<String> {
    runtime::check_dirs(config)?;
    config.sockets.admin_group_id()?;
    devices::other_processors(config)?;
    let mut config = config.clone();
    let (mut slacks, mut comments) = (BTreeSet::new(), String::new());
    if let Some(listen) = config.remote.listen {
        gateway::program(&config.remote)?;
        let warning = gateway::warning(listen);
        warning.into_iter().for_each(|words| comments.push_str(&format!("# warning: {words}\n")));
        let mode = config.sockets.tenant_mode;
        if mode & 0o006 != 0 {
            comments.push_str(&format!(
                "# warning: sockets.tenant_mode = {mode:04o}: every user of this host attaches \
                 without a grant, programs of weft-control's VMs here too; 0600 lets in the \
                 gateway alone\n"
            ));
        }
    }
    for place in 0..config.devices.len() {
        let can = devices::identify(&mut config.devices[place])?.capabilities;
        let settings = terms(&config, &config.devices[place], can)?;
        config.devices[place].quantum_us = Some(settings.quantum_ns / 1000);
        slacks.insert(settings.slack_ns / 1000);
        if let Some(dir) = &config.devices[place].swap_dir {
            let short = devices::frames::ensure_swaps(dir, config.devices[place].lent_bytes())?;
            short.into_iter().for_each(|short| comments.push_str(&format!("# warning: {short}\n")));
        }
    }
    // It is a setting of the node; devices that have different ones by default go on doing so.
    if let (Some(slack_us), 1) = (slacks.first(), slacks.len()) {
        config.scheduling.slack_us = Some(*slack_us);
    }
    if config.state_dir.exists() {
        open_registry(&config)?;
    }
    Ok(comments + &toml::to_string(&config)?)
}

/// Has the registry count what this core's vGPUs hold on top of what the last one's did; the core's
/// number.
fn begin_core(registry: &mut Registry, last: Option<&Schedule>, node: &Node) -> u64 {
    registry.begin_core(
        |vgpu| last.map_or_else(Holding::default, |last| last.holding(vgpu)),
        |vgpu| {
            node.vgpu(VgpuKey(vgpu)).map_or_else(Holding::default, |view| Holding {
                held_ns: view.held_ns,
                turns: view.turns,
            })
        },
    )
}

/// The registry of a node whose devices are known with their memory.
fn open_registry(config: &NodeConfig) -> anyhow::Result<Registry> {
    let home = |device: &DeviceConfig| Home {
        name: device.name.clone(),
        kind: device.backend.kind(),
        memory_bytes: device.lent_bytes(),
        pool: device.pool.clone(),
    };
    let devices = config.devices.iter().map(home).collect();
    Registry::open(&config.state_dir, config.limits.vgpus, devices)
        .with_context(|| format!("cannot use {}", config.state_dir.display()))
}

fn spawn_saver(saver: Saver, schedule_path: PathBuf) -> io::Result<JoinHandle<()>> {
    thread::Builder::new()
        .name("saver".to_owned())
        .spawn(move || persist::run(&saver, &schedule_path))
}

/// Starts the configured journal.
fn start_journal(
    config: &NodeConfig,
    driver: &mut Driver,
) -> anyhow::Result<Option<JoinHandle<()>>> {
    let journal = &config.journal;
    let Some(dir) = &journal.dir else { return Ok(None) };
    let files = Files::open(dir.clone(), journal.files)
        .with_context(|| format!("cannot keep a journal in {}", dir.display()))?;
    let (sender, chunks) = recorder::queue();
    driver.record(0, sender, files.trouble(), journal.max_bytes.0 / journal.files as u64);
    let thread = thread::Builder::new().name("journal".to_owned());
    Ok(Some(thread.spawn(move || files.run(&chunks))?))
}

/// What the core knows keeps its tenant, whatever the configuration says by now.
fn settle_known(tenancy: &Tenancy, node: &Node, registry: &Registry) {
    for state in node.snapshot().vgpus {
        if let Some(uid) = registry.user_of_key(state.tenant.0) {
            tenancy.settle(state.vgpu.0, uid);
        }
    }
}

/// A daemon that is ready to serve.
struct Setup {
    daemon: Arc<Daemon>,
    driver: Driver,
    journal: Option<JoinHandle<()>>,
    stop: UnixStream,
    leave: UnixStream,
    survivors: Vec<adopt::Survivor>,
}

impl Setup {
    fn new(
        mut config: NodeConfig,
        runtime: Runtime,
        saver: Saver,
        schedule_path: &std::path::Path,
    ) -> anyhow::Result<Self> {
        let survivors = adopt::find_survivors(&runtime)?;
        let absent = devices::set_aside(&mut config)?;
        let survivors = adopt::of_known_devices(survivors, &config);
        let devices = Devices::open(&config, &survivors, absent)?;
        devices.note_memory(&mut config);
        // What a GPU has is known only now.
        config.check_host()?;
        let frames = adopt::frames(&config, &devices, &survivors)?;
        let mut registry = open_registry(&config)?;
        moves::adopt_moves(&mut registry, &survivors);
        let survivors = adopt::of_known_vgpus(survivors, &registry);
        let schedule = persist::read_schedule(schedule_path);
        let ended = adopt::settle_ended(&mut registry, &runtime, schedule.as_ref(), &survivors);
        let last = schedule.clone().filter(|schedule| schedule.number == registry.core());
        // A device without survivors is a new one, and so are its tags.
        let schedule = schedule.map(|schedule| adopt::of_living_devices(schedule, &survivors));
        let driven = devices.iter().map(|device| driven(&config, device));
        let driven = driven.collect::<anyhow::Result<Vec<_>>>()?;
        let node = scheduling_core(schedule.as_ref(), &ended, &survivors);
        let number = begin_core(&mut registry, last.as_ref(), &node);
        let tenancy = Tenancy::of(&config.scheduling);
        settle_known(&tenancy, &node, &registry);
        let node_page = adopt::node_page(&survivors)?;
        let page = NodePage::open(&node_page.map(Access::ReadWrite)?)?;
        let (orders, received) = mpsc::channel();
        let handle = Handle::new(orders, page.doorbell().clone());
        let wanted = config.scheduling.coscheduling;
        let coscheduler = Coscheduler::new(wanted, node_page.try_clone()?, now_ns());
        let tables = (number, schedule.map_or_else(BTreeMap::new, |saved| saved.forgotten_ns));
        let mut driver =
            Driver::new(node, page, received, saver.clone(), tables, coscheduler, driven)
                .watching(&frames);
        let journal = start_journal(&config, &mut driver)?;
        let (suspicions, suspected) = mpsc::channel();
        let Ends { stop, stopper, leave } = Ends::by_signals()?;
        let host = HostLedger::new(config.limits.host_memory_bytes());
        let (sessions, moves) = (BTreeMap::new(), BTreeMap::new());
        let tasks = tasks::Tasks::open(&config, &devices, &tenancy, &mut registry)?;
        let (removals, closed, adopted) = (BTreeMap::new(), BTreeSet::new(), 0);
        let tables = Tables { registry, frames, host, sessions, adopted, moves, removals, closed };
        let daemon = Arc::new(Daemon {
            remote: Remote::open(&config)?,
            regions: Regions::default(),
            admin_group: config.sockets.admin_group_id()?,
            ranks: Ranks::probe(config.worker.nice),
            room: Room::make(config.limits.sessions),
            config,
            runtime,
            devices,
            node_page,
            driver: handle,
            archive: Mutex::default(),
            tenancy,
            attach_pace: Mutex::default(),
            loads: Loads::default(),
            cpu_weights: CpuWeights::default(),
            starts: Starts::default(),
            tables: Mutex::new(tables),
            cleared: Condvar::new(),
            ended: Condvar::new(),
            moving: Condvar::new(),
            saver,
            tasks,
            health: Health::new(suspicions),
            lines: TenantLines::default(),
            admin_connections: Mutex::default(),
            stop: stopper,
        });
        health::start(&daemon, suspected)?;
        balance::start(&daemon)?;
        cpu_weight::start(&daemon)?;
        Ok(Self { daemon, driver, journal, stop, leave, survivors })
    }

    fn serve(self) -> anyhow::Result<()> {
        let Self { daemon, driver, journal, stop, leave, survivors } = self;
        // Their use is on disk before their records go.
        if daemon.save_registry() {
            let living = survivors.iter().map(|survivor| survivor.adoption.start.session);
            daemon.runtime.remove_others(&living.collect::<Vec<_>>())?;
        }
        let ranks = daemon.ranks;
        let driver_thread =
            thread::Builder::new().name("driver".to_owned()).spawn(move || driver.run(ranks))?;
        daemon.adopt(survivors)?;
        let listeners = daemon.runtime.listen(&daemon.config)?;
        if let Some(address) = daemon.config.metrics.listen {
            crate::metrics::serve(address, &daemon)?;
        }
        gateway::start(&daemon)?;
        let socket = daemon.config.tenant_socket();
        let devices: Vec<String> = daemon.devices.iter().map(Device::in_words).collect();
        let devices = devices.join("; ");
        tracing::info!(socket = %socket.display(), devices, "node daemon is ready");
        let end = daemon.accept(&listeners, &stop, &leave)?;
        drop(listeners);
        daemon.shut_down(end);
        if driver_thread.join().is_err() {
            tracing::error!("the scheduling thread panicked");
        }
        // It ends with the driver.
        if journal.is_some_and(|journal| journal.join().is_err()) {
            tracing::error!("the thread that writes the journal panicked");
        }
        daemon.runtime.remove_sockets();
        Ok(())
    }
}

/// What ends the daemon.
struct Ends {
    /// Readable when the daemon and all sessions are to end: at `SIGINT`, or once something was
    /// written to `stopper`.
    stop: UnixStream,
    stopper: UnixStream,
    /// Readable at `SIGTERM`: the daemon is to end and leave its sessions to the next one.
    leave: UnixStream,
}

impl Ends {
    fn by_signals() -> anyhow::Result<Self> {
        let (stop, stopper) = UnixStream::pair()?;
        let (leave, leaver) = UnixStream::pair()?;
        signal_hook::low_level::pipe::register(signal_hook::consts::SIGINT, stopper.try_clone()?)?;
        signal_hook::low_level::pipe::register(signal_hook::consts::SIGTERM, leaver)?;
        Ok(Self { stop, stopper, leave })
    }
}

/// How long a kernel may make its session hold a device, in ms of wall time: a limit counts the
/// kernel's own time, and other load may take most of the processor that stops it.
fn holding_ms(config: &NodeConfig, can: Capabilities) -> u64 {
    let block_ms = config.limits.block_ms;
    match config.kernel_ms(can) {
        Some(kernel_ms) if can.cancel => kernel_ms.saturating_mul(4).max(block_ms),
        Some(kernel_ms) => kernel_ms,
        None => block_ms,
    }
}

/// Of a device whose switches are dear, at most a seventeenth of the time goes into them, within
/// the slack that is allowed.
const SLACK_SWITCHES: u64 = 16;

/// How a device that can do this is shared.
fn terms(
    config: &NodeConfig,
    device: &DeviceConfig,
    can: Capabilities,
) -> anyhow::Result<SchedConfig> {
    let times = &config.scheduling;
    let policy = weft_sched::policy::for_node(device.policy.as_deref().unwrap_or(&times.policy))?;
    let quantum_ns = config.quantum_us(device, can) * 1000;
    let settings = SchedConfig {
        policy,
        quantum_ns,
        yield_ns: times.yield_us * 1000,
        // The device must have had the chance to end an endless kernel, or a long block, by itself.
        overdue_ns: (times.overdue_ms + holding_ms(config, can)) * 1_000_000,
        sleeper_credit_ns: times.sleeper_credit_us * 1000,
        slack_ns: config.slack_us(device) * 1000,
        slack_switches: SLACK_SWITCHES,
        reach_ns: if device.dealing()?.writes_ahead() { quantum_ns } else { 0 },
        borrow_ns: times.borrow_ms * 1_000_000,
        slice_ns: times.slice_us * 1000,
        ..SchedConfig::default().overlap(times.overlap_us * 1000)
    };
    settings.validate().with_context(|| format!("device `{}`: scheduling", device.name))?;
    Ok(settings)
}

fn driven(config: &NodeConfig, device: &Device) -> anyhow::Result<DrivenDevice> {
    let settings = terms(config, &device.config, device.info.capabilities)?;
    let abandoned = device.spec().abandoned();
    Ok(DrivenDevice { key: device.key, config: settings, abandoned })
}

/// The scheduling core, as the earlier daemon left it if it left sessions.
fn scheduling_core(
    schedule: Option<&Schedule>,
    ended: &BTreeMap<u64, u64>,
    survivors: &[adopt::Survivor],
) -> Node {
    match schedule.map(|schedule| adopt::restore(schedule, ended, survivors)) {
        Some(Ok(node)) => node,
        Some(Err(error)) => {
            tracing::warn!(%error, "the saved scheduling state does not fit; tags start afresh");
            Node::new()
        }
        None => Node::new(),
    }
}

impl Tables {
    /// Whether a vGPU is being removed, or closed to be removed: it gets no session any more.
    pub(crate) fn is_being_removed(&self, name: &str) -> bool {
        self.removals.contains_key(name) || self.closed.contains(name)
    }

    /// Somebody ends the vGPU's sessions to remove it.
    fn begin_removal(&mut self, name: &str) {
        *self.removals.entry(name.to_owned()).or_default() += 1;
    }

    /// One who did so no longer does.
    fn give_removal_up(&mut self, name: &str) {
        if let Some(others) = self.removals.get_mut(name) {
            *others = others.saturating_sub(1);
            self.removals.retain(|_, others| *others > 0);
        }
    }

    /// A vGPU gets no session until it is removed; whether it might have until now.
    fn close(&mut self, name: &str) -> bool {
        self.closed.insert(name.to_owned())
    }

    /// A vGPU is gone: another one may have its name.
    fn free_name(&mut self, name: &str) {
        self.removals.remove(name);
        self.closed.remove(name);
    }

    /// Which programs these sessions are of; of many a few.
    pub(crate) fn in_words<'a>(&self, sessions: impl Iterator<Item = &'a Entry>) -> String {
        let one = |entry: &Entry| {
            let vgpu = self.registry.by_key(entry.vgpu).map_or("?", |vgpu| vgpu.name.as_str());
            let Entry { program, uid, .. } = entry;
            format!("{program} ({}, user {uid}, on vGPU {vgpu})", entry.whereabouts())
        };
        let mut running: Vec<String> = sessions.map(one).collect();
        let more = running.len().saturating_sub(NAMED_MAX);
        running.truncate(NAMED_MAX);
        match more {
            0 => running.join(", "),
            more => format!("{} and {more} more", running.join(", ")),
        }
    }

    /// The memory of a device of this node.
    pub(crate) fn frames(&mut self, device: DeviceKey) -> &mut Frames {
        self.frames.get_mut(&device).expect("a device's key is the node's own")
    }

    /// The same, to read.
    pub(crate) fn memory(&self, device: DeviceKey) -> &Frames {
        self.frames.get(&device).expect("a device's key is the node's own")
    }
}

impl Daemon {
    /// The tables. A panic of another thread leaves them as they were between two operations.
    pub(crate) fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Saves the registry if it changed, and waits until it is on disk; whether it is. The log says
    /// why not.
    #[must_use]
    pub(crate) fn save_registry(&self) -> bool {
        let saving = self.begin_saving();
        self.saved(&saving).is_ok()
    }

    /// Begins to save the registry if it changed. [`Self::saved`] waits for the end.
    pub(crate) fn begin_saving(&self) -> Receiver<Saved> {
        let (done, written) = mpsc::channel();
        // Sent while the tables are locked, so that a newer document never comes first.
        let mut tables = self.tables();
        match tables.registry.unsaved() {
            // Without news the answer is about what another thread is saving. A saver that is gone
            // answers nobody.
            Ok(document) => self.saver.registry(document, done),
            Err(error) => tracing::error!(%error, "the vGPUs could not be written"),
        }
        written
    }

    /// Whether the registry came to disk. If not, the next save tries again.
    pub(crate) fn saved(&self, saving: &Receiver<Saved>) -> Saved {
        let saved = saving.recv().unwrap_or_else(|_| Err("the daemon is ending".to_owned()));
        if saved.is_err() {
            self.tables().registry.mark_unsaved();
        }
        saved
    }

    /// Makes the daemon end.
    pub(crate) fn stop(&self) {
        // The pipe is full only when somebody else has said so already.
        let _ = io::Write::write(&mut &self.stop, &[0]);
    }

    /// Lets tenants and administrators in until it is told to end.
    fn accept(
        self: &Arc<Self>,
        listeners: &Listeners,
        stop: &UnixStream,
        leave: &UnixStream,
    ) -> anyhow::Result<End> {
        let mut pending = Pending::new(self.room.files, self.config.limits.attach());
        loop {
            let doors = [stop.as_fd(), leave.as_fd(), listeners.tenant.as_fd()];
            let doors = doors.into_iter().chain([listeners.admin.as_fd()]);
            let all = doors.chain(pending.sockets().map(AsFd::as_fd));
            let mut polled: Vec<PollFd<'_>> =
                all.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
            let limit = pending.patience_left(Instant::now());
            let limit = limit.map(Timespec::try_from).transpose()?;
            rustix::io::retry_on_intr(|| rustix::event::poll(&mut polled, limit.as_ref()))?;
            let ready: Vec<bool> = polled.iter().map(|fd| !fd.revents().is_empty()).collect();
            let [stopped, left, tenant, admin] = [ready[0], ready[1], ready[2], ready[3]];
            if stopped {
                return Ok(End::Stop);
            }
            if left {
                return Ok(End::Leave);
            }
            for connection in pending.take_marked(&ready[4..]) {
                attach::greet(self, connection);
            }
            if tenant && let Some((socket, tenant)) = let_in(&listeners.tenant) {
                let came = Instant::now();
                let payer = self.tenancy.of_process(tenant.uid, tenant.pid.unwrap_or(0));
                if let Some(connection) = pending.admit(Connection { socket, tenant, payer, came })
                {
                    let why = "too many connections of this user's tenant have said nothing yet";
                    let refusal = attach::no_hello(RefusalCode::Exhausted, why);
                    attach::refuse(&connection.socket, &connection.tenant, refusal);
                }
            }
            for connection in pending.take_silent(Instant::now()) {
                let why = "nothing came within limits.attach_ms";
                let refusal = attach::no_hello(RefusalCode::Malformed, why);
                attach::refuse(&connection.socket, &connection.tenant, refusal);
            }
            if admin && let Some((socket, caller)) = let_in(&listeners.admin) {
                self.serve_administrator(socket, &caller);
            }
        }
    }

    /// Ends all sessions, unless they are left to the next daemon, then the driver.
    fn shut_down(&self, end: End) {
        tracing::info!(?end, "node daemon ends");
        self.tasks.end();
        if end == End::Stop {
            self.end_sessions();
        }
        if let Some(view) = self.driver.ask(Order::View) {
            self.tables().registry.note_holdings(|vgpu| view.holding(vgpu));
        }
        if !self.save_registry() {
            tracing::error!("what changed last about the vGPUs is lost");
        }
        self.driver.send(Order::Stop);
    }

    fn end_sessions(&self) {
        let deadline = Instant::now() + SHUTDOWN_LIMIT;
        let mut tables = self.tables();
        while self.end_those(&mut tables, Loss::NodeStopped, |_| true) {
            if Instant::now() > deadline {
                tracing::warn!(count = tables.sessions.len(), "sessions did not end");
                break;
            }
            tables = self.await_end(tables);
        }
    }
}

/// A new connection and who made it.
fn let_in(listener: impl AsFd) -> Option<(OwnedFd, Credentials)> {
    let accepted = peer::accept(listener).and_then(|socket| {
        let caller = peer::credentials(&socket)?;
        Ok((socket, caller))
    });
    match accepted {
        Ok(accepted) => Some(accepted),
        Err(error) => {
            tracing::warn!(%error, "a connection could not be accepted");
            thread::sleep(ACCEPT_PAUSE);
            None
        }
    }
}

#[cfg(test)]
mod tests;
