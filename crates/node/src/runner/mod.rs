//! The task runner: one process for each virtual accelerator in use, so one tenant and one fault
//! domain. It takes tasks from the tenant's programs, looks at them, holds a session with the
//! accelerator's vGPU on every device of the pool, and runs there what the daemon tells it to.
//!
//! The daemon starts it with the link as standard input, as it starts workers. It ends with the
//! link, or when no program is connected for a while. Threads: the first one hears the daemon; each
//! device and each connection has one, each connection one more that writes to it.

mod connection;
mod device;
mod execute;
pub(crate) mod messages;
mod module;
mod task;
mod validate;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::net::sockopt::{self, Timeout};
use weft_ring::peer;
use weft_tasks::protocol::Event;

use self::device::{Attached, Device, Job};
use self::messages::{Begin, Order, Owed, Report, Run};
use self::module::Module;
use self::task::Tasks;
use self::validate::Limits;
use crate::link::{self, PACKET_BYTES_MAX};
use crate::worker::log;
use crate::worker::sandbox::Sandbox;

/// How often an idle runner looks whether it is still of use.
const LOOK: Duration = Duration::from_secs(1);

/// Stack of its threads.
const STACK_BYTES: usize = 1 << 20;

/// Locks a mutex whose content stays meaningful when a holder panicked.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the threads share.
#[derive(Debug)]
struct Runner {
    link: Arc<OwnedFd>,
    begin: Begin,
    devices: Vec<Device>,
    tasks: Mutex<Tasks>,
    modules: Mutex<BTreeMap<u64, Weak<Module>>>,
    next_module: AtomicU64,
    owed: Mutex<Owed>,
    /// Connections, and since when there are none.
    connections: Mutex<(u32, Instant)>,
    /// A device was attached to, or could not be; taken with `settled`.
    attached: Condvar,
    settled: Mutex<u64>,
    /// What every device that it was attached to takes.
    limits: Mutex<Option<Limits>>,
}

/// Runs the task runner of the accelerator that the daemon hands over on standard input.
pub(crate) fn run() -> anyhow::Result<()> {
    let link = io::stdin().as_fd().try_clone_to_owned()?;
    let begin: Begin = link::receive_plain(&link)
        .context("standard input is not a link to a daemon: `weft runner` is started by one")?
        .context("the daemon went away")?;
    let link = Arc::new(link);
    let told = Arc::clone(&link);
    log::init(&begin.log, move |severity, text| {
        // Without a daemon nobody reads it.
        let _ = link::send(&*told, &Report::Log { severity, text }, &[]);
    });
    let sandbox = Sandbox::of_runner();
    sandbox.restrict_process(begin.user, begin.bounds.host_bytes)?;
    let (devices, ends) = devices(&begin);
    let runner = Arc::new(Runner {
        link,
        owed: Mutex::new(begin.owed),
        begin,
        devices,
        tasks: Mutex::default(),
        modules: Mutex::default(),
        next_module: AtomicU64::new(1),
        connections: Mutex::new((0, Instant::now())),
        attached: Condvar::new(),
        settled: Mutex::default(),
        limits: Mutex::default(),
    });
    sandbox.restrict_calls()?;
    for (index, (jobs, sockets)) in ends.into_iter().enumerate() {
        let serving = Arc::clone(&runner);
        let thread = thread::Builder::new().name("device".to_owned()).stack_size(STACK_BYTES);
        thread.spawn(move || device::serve(&serving, index, &jobs, &sockets))?;
    }
    runner.report(&Report::Ready);
    for device in runner.devices.iter().filter(|device| device.place.in_service) {
        // Its thread has just begun.
        let _ = device.jobs.send(Job::Attach);
    }
    runner.listen()
}

/// What a device's thread has of its channels.
type Ends = (Receiver<Job>, Receiver<OwnedFd>);

fn devices(begin: &Begin) -> (Vec<Device>, Vec<Ends>) {
    let device = |place: &messages::Place| {
        let (jobs, received) = channel();
        let (sockets, given) = channel();
        let attached = Mutex::default();
        (Device { place: place.clone(), jobs, sockets, attached }, (received, given))
    };
    begin.devices.iter().map(device).unzip()
}

impl Runner {
    /// Hears the daemon until it is gone or nobody needs the runner any more.
    fn listen(self: &Arc<Self>) -> anyhow::Result<()> {
        sockopt::set_socket_timeout(&*self.link, Timeout::Recv, Some(LOOK))?;
        loop {
            match peer::receive(&*self.link, PACKET_BYTES_MAX) {
                Ok(Some(message)) => {
                    let order = serde_json::from_slice(&message.bytes)?;
                    self.act(&order, message.descriptors);
                }
                Ok(None) => return Ok(()),
                Err(error) if is_timeout(&error) => {
                    if self.is_idle() {
                        tracing::debug!(accelerator = self.begin.accelerator, "runner ends");
                        return Ok(());
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn is_idle(&self) -> bool {
        let (count, since) = *lock(&self.connections);
        count == 0
            && since.elapsed() >= Duration::from_millis(self.begin.idle_ms)
            && lock(&self.tasks).len() == 0
    }

    fn act(self: &Arc<Self>, order: &Order, mut descriptors: Vec<OwnedFd>) {
        match *order {
            Order::Connection => {
                if let Some(socket) = descriptors.pop() {
                    connection::begin(self, socket);
                }
            }
            Order::Attach { device } => {
                if let (Some(device), Some(socket)) = (self.device(device), descriptors.pop()) {
                    // Its thread lives as long as the runner.
                    let _ = device.sockets.send(socket);
                }
            }
            Order::Run { run, whole_ns_max } => {
                // An earlier run of it, which was reset, ends from now on.
                if let Some(task) = lock(&self.tasks).get(run.task) {
                    task.state().begin(run);
                }
                if let Some(device) = self.device(run.device) {
                    let _ = device.jobs.send(Job::Run { run, whole_ns_max });
                }
            }
            Order::Yield { run, at_ns } => self.stop_at(run, at_ns),
            Order::Owed(owed) => *lock(&self.owed) = owed,
            Order::Cancelled { task } => {
                let cancelled = lock(&self.tasks).remove(task);
                if let Some(task) = cancelled {
                    task.state().over = true;
                    task.outbox.say(Event::Cancelled { task: task.id });
                }
            }
        }
    }

    fn stop_at(&self, run: Run, at_ns: u64) {
        let task = lock(&self.tasks).get(run.task);
        if let Some(task) = task {
            let mut state = task.state();
            if state.run == Some(run) {
                state.stop_at_ns = Some(at_ns);
            }
        }
    }

    fn device(&self, key: u32) -> Option<&Device> {
        self.devices.iter().find(|device| device.place.key == key)
    }

    fn owed(&self) -> Owed {
        *lock(&self.owed)
    }

    /// Tells the daemon. One that is gone has nobody who listens; the first thread notices.
    fn report(&self, report: &Report) {
        let _ = link::send(&*self.link, report, &[]);
    }

    /// Whether anybody still has the module of that number.
    fn has_module(&self, number: u64) -> bool {
        lock(&self.modules).get(&number).is_some_and(|module| module.strong_count() > 0)
    }

    /// An attempt to attach is over.
    fn note_attached(&self, limits: Option<Limits>) {
        if let Some(limits) = limits {
            let mut all = lock(&self.limits);
            *all = Some(all.map_or(limits, |all| all.and(limits)));
        }
        *lock(&self.settled) += 1;
        self.attached.notify_all();
    }

    /// A session on any device; waits for the first one for at most `limit`.
    fn any_session(&self, limit: Duration) -> Option<Arc<Attached>> {
        let deadline = Instant::now() + limit;
        let find = || self.devices.iter().find_map(Device::session);
        if find().is_none() {
            for device in &self.devices {
                // Its thread lives as long as the runner.
                let _ = device.jobs.send(Job::Attach);
            }
        }
        let mut settled = lock(&self.settled);
        loop {
            if let Some(session) = find() {
                return Some(session);
            }
            let left = deadline.checked_duration_since(Instant::now())?;
            let waited = self.attached.wait_timeout(settled, left);
            settled = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn number_of_module(&self) -> u64 {
        self.next_module.fetch_add(1, Ordering::Relaxed)
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}
