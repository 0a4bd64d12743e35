//! A task runner, as the daemon sees it: started, told, heard, and ended.

use std::os::fd::{AsFd, OwnedFd};
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rustix::event::{PollFd, PollFlags, Timespec};
use weft_ring::peer::{self, Credentials, Process};
use weft_sched::DeviceKey;

use super::dispatch::Impossible;
use super::{Record, member_name};
use crate::daemon::log::printable;
use crate::daemon::process::WorkerProcess;
use crate::daemon::registry::{Change, Wanted};
use crate::daemon::{Daemon, STACK_BYTES, attach, now_ns, spawn};
use crate::link::{self, LINE_BYTES_MAX, Severity};
use crate::runner::messages::{Begin, Bounds, Order, Owed, Place, Report};

/// Orders that a runner may leave unread.
const UNREAD_MAX: usize = 16 << 10;

/// Host memory of a runner besides its tasks' buffers, in bytes.
const HOST_BYTES: u64 = 1 << 30;

/// Runners are users of their own behind those of the workers.
const USERS_BEHIND: u32 = 1 << 20;

/// A runner.
#[derive(Debug)]
pub(super) struct RunnerHandle {
    process: WorkerProcess,
    /// No other runner of this daemon has it.
    number: u64,
    orders: Sender<(Order, Option<OwnedFd>)>,
    unread: Arc<AtomicUsize>,
    /// Programs that are connected.
    pub(super) connections: u32,
}

impl RunnerHandle {
    /// Has an order sent. Never waits; a runner that reads nothing is ended.
    pub(super) fn tell(&self, order: Order, descriptor: Option<OwnedFd>) {
        let unread = self.unread.fetch_add(1, Ordering::Relaxed);
        if unread >= UNREAD_MAX || self.orders.send((order, descriptor)).is_err() {
            self.kill();
        }
    }

    /// Ends it. Its thread notices.
    pub(super) fn kill(&self) {
        // One that is gone has been noticed.
        let _ = self.process.kill();
    }

    /// Its process.
    pub(super) fn pid(&self) -> u32 {
        self.process.pid
    }
}

impl Daemon {
    /// Starts the runner of an accelerator unless it runs.
    pub(super) fn ensure_runner(self: &Arc<Self>, record: &Record) -> anyhow::Result<()> {
        let starting = self.tasks.starting.lock();
        if self.tasks.inner().runners.contains_key(&record.key) {
            return Ok(());
        }
        self.ensure_members(record)?;
        let begin = self.begin_of(record);
        let (link, child) = spawn::spawn_process("runner", &[])?;
        let pid = child.id();
        let process = WorkerProcess::new(Process::open(pid)?, pid);
        link::send(&link, &begin, &[])?;
        let link = Arc::new(link);
        let (orders, unsent) = channel();
        let unread = Arc::new(AtomicUsize::new(0));
        let number = {
            let mut inner = self.tasks.inner();
            inner.next_runner += 1;
            let number = inner.next_runner;
            let unread = Arc::clone(&unread);
            let runner = RunnerHandle { process, number, orders, unread, connections: 0 };
            inner.runners.insert(record.key, runner);
            number
        };
        drop(starting);
        let thread =
            |name: &str| thread::Builder::new().name(name.to_owned()).stack_size(STACK_BYTES);
        let writing = Arc::clone(&link);
        thread("runner-orders").spawn(move || write(&writing, &unsent, &unread))?;
        let (daemon, record) = (Arc::clone(self), record.clone());
        thread("runner").spawn(move || {
            let heard = Heard { daemon: &daemon, record: &record, number };
            heard.hear(&link);
            heard.end(child);
        })?;
        Ok(())
    }

    /// The devices of an accelerator's pool.
    pub(super) fn places(&self, record: &Record) -> Vec<Place> {
        let in_pool = self
            .devices
            .iter()
            .filter(|device| device.config.pool.as_deref() == Some(record.pool.as_str()));
        let tables = self.tables();
        let place = in_pool.map(|device| Place {
            key: device.key.0,
            name: device.name.clone(),
            vgpu: member_name(&record.name, &device.name),
            in_service: tables.registry.is_in_service(&device.name),
        });
        place.collect()
    }

    fn begin_of(&self, record: &Record) -> Begin {
        let settings = self.config.pool_settings(&record.pool);
        let devices = self.places(record);
        let bytes = settings.task_memory.0;
        let host_bytes = HOST_BYTES.saturating_add(bytes.saturating_mul(2));
        Begin {
            accelerator: record.name.clone(),
            bounds: Bounds {
                tasks: settings.tasks,
                bytes,
                host_bytes: host_bytes.saturating_add(self.bytes_of(&devices)),
            },
            devices,
            owed: owed(record),
            slice_ns: settings.slice_us * 1000,
            idle_ms: settings.idle_ms,
            user: self.config.worker.user_of(record.key.saturating_add(USERS_BEHIND)),
            log: self.config.log.clone(),
        }
    }

    /// Memory of devices together, in bytes. What a task that was stopped has in one waits in its
    /// runner, and quotas may change while that runs.
    fn bytes_of(&self, devices: &[Place]) -> u64 {
        let bytes = |place: &Place| {
            let device = self.devices.find(DeviceKey(place.key));
            device.map_or(0, |device| device.config.memory_bytes())
        };
        devices.iter().map(bytes).fold(0, u64::saturating_add)
    }

    /// Makes the accelerator's vGPUs on devices that have none: the pool may have grown.
    pub(super) fn ensure_members(&self, record: &Record) -> anyhow::Result<()> {
        let places = self.places(record);
        {
            let mut tables = self.tables();
            for place in places {
                if tables.registry.find(&place.vgpu).is_ok() {
                    continue;
                }
                let name = place.vgpu.clone();
                tables.registry.create(&Wanted {
                    name: place.vgpu,
                    owner: record.owner,
                    device: place.name,
                    weight: record.weight,
                    memory_bytes: record.memory_bytes,
                    sla_ns: record.sla_ns,
                    ..Wanted::default()
                })?;
                if record.is_granted {
                    let (weight, memory_bytes) = (Some(record.weight), Some(record.memory_bytes));
                    let given = Change { weight, memory_bytes, ..Change::default() };
                    tables.registry.grant(&name, &given);
                }
            }
        }
        self.keep()
    }

    /// Gives a runner a socket on which it attaches to a device, and a session there.
    fn attach_runner(self: &Arc<Self>, record: &Record, device: u32) -> anyhow::Result<()> {
        let found = self.devices.find(DeviceKey(device)).context("no device of that key")?;
        let vgpu = member_name(&record.name, &found.name);
        let (ours, theirs) = peer::pair()?;
        let runner = {
            let mut inner = self.tasks.inner();
            anyhow::ensure!(
                inner.attaching.insert((record.key, device)),
                "it asks for a second session"
            );
            let runner = inner.runners.get(&record.key).context("it is gone")?;
            runner.tell(Order::Attach { device }, Some(theirs));
            Credentials { pid: Some(runner.pid()), uid: record.owner, gid: 0 }
        };
        let (daemon, key) = (Arc::clone(self), record.key);
        let thread = thread::Builder::new().name("tenant".to_owned()).stack_size(STACK_BYTES);
        let spawned = thread.spawn(move || {
            let came = await_hello(&ours, daemon.config.limits.attach());
            daemon.tasks.inner().attaching.remove(&(key, device));
            if came {
                attach::serve_runner(&daemon, ours, &runner, &vgpu);
            }
        });
        if spawned.is_err() {
            self.tasks.inner().attaching.remove(&(record.key, device));
        }
        spawned.map(drop).context("no thread for a session")
    }
}

/// What a runner must know of what its accelerator is owed.
pub(super) fn owed(record: &Record) -> Owed {
    Owed { memory_bytes: record.memory_bytes }
}

/// Waits for a message; whether one came.
fn await_hello(socket: &OwnedFd, limit: Duration) -> bool {
    let mut polled = [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN)];
    let limit = Timespec::try_from(limit).ok();
    rustix::io::retry_on_intr(|| rustix::event::poll(&mut polled, limit.as_ref()))
        .is_ok_and(|count| count > 0)
}

/// Sends a runner its orders.
fn write(link: &OwnedFd, orders: &Receiver<(Order, Option<OwnedFd>)>, unread: &AtomicUsize) {
    while let Ok((order, descriptor)) = orders.recv() {
        let descriptors = descriptor.as_ref().map(AsFd::as_fd);
        if link::send(link, &order, descriptors.as_slice()).is_err() {
            return;
        }
        unread.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Who hears a runner.
struct Heard<'a> {
    daemon: &'a Arc<Daemon>,
    record: &'a Record,
    number: u64,
}

impl Heard<'_> {
    /// Takes reports until the runner is gone, or says what cannot be.
    fn hear(&self, link: &OwnedFd) {
        loop {
            let report = match link::receive_plain::<Report>(link) {
                Ok(Some(report)) => report,
                Ok(None) => return,
                Err(error) => {
                    tracing::warn!(accelerator = self.record.name, %error, "no report");
                    return;
                }
            };
            if let Err(error) = self.act(report) {
                let error = format!("{error:#}");
                tracing::error!(accelerator = self.record.name, error, "a runner is ended");
                return;
            }
        }
    }

    fn act(&self, report: Report) -> anyhow::Result<()> {
        let (daemon, key) = (self.daemon, self.record.key);
        let mut refused: Option<Impossible> = None;
        match report {
            Report::Ready => tracing::debug!(accelerator = self.record.name, "runner is ready"),
            Report::Wanted { device } => daemon.attach_runner(self.record, device)?,
            Report::Submit { task, estimate_ns } => daemon.with_tasks(|inner| {
                let submitted = inner.dispatch.submit(now_ns(), key, task, estimate_ns);
                submitted.unwrap_or_else(|error| {
                    refused = Some(error);
                    Vec::new()
                })
            }),
            Report::Finished { run, outcome } => {
                daemon.with_tasks(|inner| inner.dispatch.finished(now_ns(), key, run, outcome));
            }
            Report::Stopped { run } => {
                daemon.with_tasks(|inner| inner.dispatch.stopped(now_ns(), key, run));
            }
            Report::Lost { run } => {
                daemon.with_tasks(|inner| inner.dispatch.lost(now_ns(), key, run));
            }
            Report::Cancel { task } => {
                daemon.with_tasks(|inner| inner.dispatch.cancel(now_ns(), key, task));
            }
            Report::Connections { count } => {
                if let Some(runner) = daemon.tasks.inner().runners.get_mut(&key) {
                    runner.connections = count;
                }
            }
            Report::Log { severity, text } => self.relay(severity, &text),
        }
        refused.map_or(Ok(()), |error| Err(error.into()))
    }

    /// Writes a runner's line to the log, unless its tenant has had enough.
    fn relay(&self, severity: Severity, text: &str) {
        let payer = self.daemon.tenancy.of_user(self.record.owner);
        let Some(suppressed) = self.daemon.lines.line(payer, Instant::now()) else { return };
        let accelerator = &self.record.name;
        let text = printable(text, LINE_BYTES_MAX);
        match severity {
            Severity::Error => tracing::error!(accelerator, suppressed, "runner: {text}"),
            Severity::Warn => tracing::warn!(accelerator, suppressed, "runner: {text}"),
            Severity::Info => tracing::info!(accelerator, suppressed, "runner: {text}"),
            Severity::Debug => tracing::debug!(accelerator, suppressed, "runner: {text}"),
        }
    }

    /// The runner is gone or must go, and its tasks with it.
    fn end(&self, mut child: Child) {
        let key = self.record.key;
        // It may be gone.
        let _ = child.kill();
        let status = child.wait();
        tracing::debug!(accelerator = self.record.name, ?status, "runner ended");
        self.daemon.with_tasks(|inner| {
            if inner.runners.get(&key).is_none_or(|runner| runner.number != self.number) {
                return Vec::new();
            }
            inner.runners.remove(&key);
            inner.dispatch.runner_gone(now_ns(), key)
        });
    }
}
