//! The worker: one process, one session, one thread that works.
//!
//! The daemon starts it with the link as standard input and sends it everything it will ever have.
//! It sets the session up, gives up every other right ([`sandbox`]) and only then looks at what the
//! tenant writes.

mod event_loop;
mod flights;
mod frames;
mod held;
mod link;
pub(crate) mod log;
mod moving;
mod output;
mod privileges;
pub(crate) mod sandbox;

use std::fs::File;
use std::io::Write;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::process::Pid;
use weft_device::soft::HostWindow;
use weft_device::{Capabilities, Device, DevicePage, Parts, WithDevice};
use weft_exec::{Limits, Session, Shared};
use weft_gate::{ControlPage, GateWorker, HolderSide, NodePage};
use weft_ring::peer::Process;
use weft_ring::{
    ARENA_BLOCKS, Access, ArenaRef, Bell, MemoryFile, Segment, SharedMemory, WorkerSide,
};

use self::event_loop::{Ended, EventLoop};
use self::frames::LedgerFrames;
use self::link::{Handover, Link, Watch};
use self::moving::Moving;
use self::sandbox::Sandbox;
use crate::link::{Ask, Assignment, Descriptors, Passed, Reply, Start};

/// A session that is over has ended within this time.
const END_GRACE: Duration = Duration::from_secs(10);

/// Memory of so many bytes takes some milliseconds to go back to the system.
const LONG_RELEASE_BYTES: u64 = 16 << 20;

/// Stack of the watcher thread.
const WATCHER_STACK_BYTES: usize = 256 << 10;

/// Runs the worker of the session that the daemon hands over on standard input.
pub(crate) fn run() -> anyhow::Result<()> {
    let socket = std::io::stdin().as_fd().try_clone_to_owned()?;
    let (assignment, fds): (Assignment, Vec<OwnedFd>) = crate::link::receive(&socket)
        .context("standard input is not a link to a daemon: `weft worker` is started by one")?
        .context("the daemon went away")?;
    let (start, files) = match assignment {
        Assignment::Work { start, passed } => (start, Descriptors::received(&passed, fds)?),
        Assignment::Probe { backend, memory_bytes, trusting } => {
            let probed = backend.probe(memory_bytes, trusting);
            return Ok(crate::link::send(&socket, &probed, &[])?);
        }
    };
    let link = Link::new(socket);
    let told = Arc::clone(&link);
    log::init(&start.log, move |severity, text| told.tell(&Ask::Log { severity, text }));
    let session = start.session;
    let ended = work(&start, files, link).inspect_err(|error| {
        tracing::error!(session, error = format!("{error:#}"), "worker does not work");
    })?;
    match ended {
        Ended::Over => tracing::debug!(session, "worker ends"),
        Ended::Stuck | Ended::Lost => {
            tracing::warn!(session, %ended, "worker ends");
            // A driver's own clean-up at exit may wait for the kernel that never ends.
            std::process::abort();
        }
        Ended::Violation(_) | Ended::Lanes(_) | Ended::Command(_) => {
            tracing::warn!(session, %ended, "worker ends");
        }
    }
    Ok(())
}

/// What the next daemon needs.
const FOR_ADOPTION: &[Passed] = &[
    Passed::Segment,
    Passed::Control,
    Passed::NodePage,
    Passed::DevicePage,
    Passed::Frames,
    Passed::Table,
    Passed::Physical,
    Passed::Marks,
];

fn work(start: &Start, mut files: Descriptors, link: Arc<Link>) -> anyhow::Result<Ended> {
    let sandbox = Sandbox::of(&start.device.backend);
    let landlock = sandbox.restrict_process(start.user, start.times.worker_memory_bytes)?;
    let kept = files.copies(FOR_ADOPTION)?;
    let (segment, pinned) = shared_memory(start, &mut files)?;
    let segment = Segment::open(segment.map(Access::ReadWrite)?)?;
    let doorbell = segment.doorbell()?;
    let pinned = pinned
        .map_at(usize::try_from(start.pinned_base)?, Access::ReadWrite)
        .context("the tenant's pinned window is not free in the worker")?;
    let control = ControlPage::open(&map(files.take(Passed::Control)?, Access::ReadWrite)?)?;
    let node = NodePage::open(&map(files.take(Passed::NodePage)?, Access::ReadWrite)?)?;
    let gate = GateWorker::new(HolderSide::new(control.clone(), node, start.key));
    let handover = Handover::new(start.clone(), kept);
    let watch = Watch {
        pid: own_pid(),
        door: files.take(Passed::Door)?,
        lifeline: files.take(Passed::Lifeline)?,
        tenant: Process::from_descriptor(files.take(Passed::Tenant)?),
        doorbell,
        handover: handover.clone(),
    };
    let watched = Arc::clone(&link);
    let (started, has_started) = std::sync::mpsc::channel();
    thread::Builder::new().name("watcher".to_owned()).stack_size(WATCHER_STACK_BYTES).spawn(
        move || {
            // The thread has made its own stack and signal stack by now: calls that the sandbox
            // forbids.
            let told = started.send(());
            debug_assert!(told.is_ok(), "the worker waits for its watcher");
            link::watch(&watched, &watch);
            // The event loop ends now, and the process with it, unless it stands in a call of a
            // driver that waits for a kernel without end.
            thread::sleep(END_GRACE);
            tracing::error!("the worker does not end by itself");
            std::process::abort();
        },
    )?;
    has_started.recv()?;
    let (turns, moving) = (control.clone(), Moving::new(handover, control.clone()));
    let page = DevicePage::open(&map(files.take(Passed::DevicePage)?, Access::ReadWrite)?)?;
    let parts = Parts {
        session: start.key,
        page: page.with_turns(move || turns.turn(), doubt_page),
        frames: MemoryFile::trusted(files.take(Passed::Frames)?)?,
        table: map(files.take(Passed::Table)?, Access::ReadOnly)?,
        physical: map(files.take(Passed::Physical)?, Access::ReadOnly)?,
        geometry: start.device.geometry,
        source: Box::new(LedgerFrames::new(Arc::clone(&link), start.times.kernel_ms)),
        memory_bytes: start.memory_bytes,
        range: (start.device_base, start.device_bytes),
        window: HostWindow {
            base: start.pinned_base,
            memory: Arc::clone(&pinned),
            managed_bytes: start.managed_bytes,
        },
        staging: Arc::clone(segment.memory()),
        kernel_ns: start.times.kernel_ms.map(|ms| ms * 1_000_000),
    };
    let record = files.take(Passed::Record)?;
    let service = Service { start, segment, pinned, gate, record, sandbox, landlock, link, moving };
    start.device.backend.open(parts, service)?
}

/// A session that lacks nothing but its device.
struct Service<'a> {
    start: &'a Start,
    segment: Segment,
    pinned: Arc<SharedMemory>,
    gate: GateWorker,
    record: OwnedFd,
    sandbox: Sandbox,
    landlock: bool,
    link: Arc<Link>,
    moving: Moving,
}

impl WithDevice for Service<'_> {
    type Output = anyhow::Result<Ended>;

    fn with<D: Device>(self, device: D) -> Self::Output {
        serve(device, self)
    }
}

/// Gives up the last rights and executes until the session is over.
fn serve<D: Device>(device: D, service: Service<'_>) -> anyhow::Result<Ended> {
    let Service { start, segment, pinned, gate, record, sandbox, landlock, link, moving } = service;
    let side = WorkerSide::open(segment)?;
    let limits = limits(start, device.info().capabilities);
    let session = Session::new(device, shared(&side, start, &pinned)?, limits);
    sandbox.restrict_calls()?;
    tracing::debug!(session = start.session, landlock, "worker is ready");
    match link.ask(&Ask::Ready) {
        Ok(Reply::Done) => {}
        Ok(other) => bail!("the daemon answered {other:?} to a ready worker"),
        Err(over) => return Err(over.into()),
    }
    let mut event_loop = EventLoop::new(session, side, gate, link, &start.times, moving);
    let ended = event_loop.run();
    leave_record(record, event_loop.owed_ns());
    if sandbox.has_driver() && event_loop.is_busy() {
        // A driver's own clean-up at exit may wait for what runs; the end of the process does not.
        tracing::debug!(session = start.session, %ended, "worker ends with work in flight");
        std::process::abort();
    }
    // The process ends here: the daemon frees all frames at once, which is faster than one by one.
    std::mem::forget(event_loop);
    Ok(ended)
}

/// Leaves the session's last counter for a daemon that is not there to read it.
fn leave_record(record: OwnedFd, used_ns: u64) {
    if let Err(error) = File::from(record).write_all(used_ns.to_string().as_bytes()) {
        tracing::warn!(%error, used_ns, "the session's last counter could not be left");
    }
}

/// The segment and the pinned window: files of their own, or parts of a virtual machine's region.
fn shared_memory(
    start: &Start,
    files: &mut Descriptors,
) -> anyhow::Result<(MemoryFile, MemoryFile)> {
    let segment = MemoryFile::received(files.take(Passed::Segment)?)?;
    let pinned = MemoryFile::received(files.take(Passed::Pinned)?)?;
    let Some(part) = start.part else { return Ok((segment, pinned)) };
    let bell = Bell::of_host(files.take(Passed::Marks)?, part.place);
    let segment = segment.part(part.segment_at, part.segment_bytes)?.with_bell(bell);
    Ok((segment, pinned.part(part.pinned_at, start.pinned_bytes)?))
}

fn map(fd: OwnedFd, access: Access) -> anyhow::Result<Arc<SharedMemory>> {
    Ok(MemoryFile::received(fd)?.map(access)?)
}

fn own_pid() -> u32 {
    Pid::as_raw(Some(rustix::process::getpid())).unsigned_abs()
}

fn shared(side: &WorkerSide, start: &Start, pinned: &Arc<SharedMemory>) -> anyhow::Result<Shared> {
    let bytes = side.segment().memory().len() - Segment::size(0);
    let whole = ArenaRef { block: 0, offset: 0, len: bytes as u64 };
    let arena =
        side.arena().span(&whole).map_err(|_| anyhow::anyhow!("the segment has no arena"))?;
    Ok(Shared::new(arena, ARENA_BLOCKS, pinned.span(0, pinned.len())?, start.pinned_base))
}

/// Where the worker executes what its session does, releasing memory takes its time.
fn limits(start: &Start, capabilities: Capabilities) -> Limits {
    let kernel_ns = start.times.kernel_ms.and_then(|ms| NonZeroU64::new(ms * 1_000_000));
    let long_release_bytes = (!capabilities.runs_ahead).then_some(LONG_RELEASE_BYTES);
    Limits { kernel_ns, long_release_bytes, ..Limits::default() }
}

/// What stands on the shared device page cannot be waited for. Whoever wrote it has left no name
/// there.
fn doubt_page() {
    tracing::warn!(
        "the page of the device is not believed any longer, and this worker goes on without it: \
         what was predicted of others' kernels is far off, or somebody has taken over a worker"
    );
}
