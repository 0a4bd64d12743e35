//! The worker's end of the link, which outlives the daemon.
//!
//! A watcher thread notices that the tenant or the daemon is gone. When the daemon is, it waits at
//! the door for the next one and hands over what that needs; the event loop goes on meanwhile and
//! stands still only in a request.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags};
use weft_ring::WakeFlag;
use weft_ring::peer::{self, Process};

use crate::link::{self, Adoption, Ask, Descriptors, Reply, Start};

/// A request waits this long for an answer before it looks whether the session is over.
const PATIENCE: Duration = Duration::from_millis(200);

/// The session is over: the tenant is gone, or no daemon came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the session is over")]
pub(crate) struct Over;

/// The link, shared by the event loop and the watcher.
#[derive(Debug)]
pub(crate) struct Link {
    socket: Mutex<Option<Arc<OwnedFd>>>,
    changed: Condvar,
    over: AtomicBool,
    /// For how long the device was busy with the vGPU's memory, in ns.
    exchanged_ns: AtomicU64,
}

/// What the watcher watches and hands over.
#[derive(Debug)]
pub(crate) struct Watch {
    /// What the next daemon needs.
    pub(crate) handover: Handover,
    /// The worker's own process id.
    pub(crate) pid: u32,
    /// Where the next daemon connects.
    pub(crate) door: OwnedFd,
    /// Hangs up when the tenant closes the session.
    pub(crate) lifeline: OwnedFd,
    /// The tenant.
    pub(crate) tenant: Process,
    /// Wakes the event loop.
    pub(crate) doorbell: WakeFlag,
}

/// What the next daemon needs to go on with the session.
#[derive(Debug, Clone)]
pub(crate) struct Handover(Arc<Mutex<(Start, Descriptors)>>);

impl Handover {
    /// What the worker was started with, and its memory.
    pub(crate) fn new(start: Start, files: Descriptors) -> Self {
        Self(Arc::new(Mutex::new((start, files))))
    }

    /// As of now.
    pub(crate) fn lock(&self) -> MutexGuard<'_, (Start, Descriptors)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn session(&self) -> u64 {
        self.lock().0.session
    }
}

impl Link {
    /// A link through `socket`.
    pub(crate) fn new(socket: OwnedFd) -> Arc<Self> {
        Arc::new(Self {
            socket: Mutex::new(Some(Arc::new(socket))),
            changed: Condvar::new(),
            over: AtomicBool::new(false),
            exchanged_ns: AtomicU64::new(0),
        })
    }

    /// Whether the session is over.
    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// The device was busy with the vGPU's memory for so long.
    pub(crate) fn note_exchange(&self, took_ns: u64) {
        self.exchanged_ns.fetch_add(took_ns, Ordering::Relaxed);
    }

    /// For how long it was so far, in ns.
    pub(crate) fn exchanged_ns(&self) -> u64 {
        self.exchanged_ns.load(Ordering::Relaxed)
    }

    /// Asks the daemon, whichever it is by then. After a change of daemon the request is repeated,
    /// marked as such.
    pub(crate) fn ask(&self, ask: &Ask) -> Result<Reply, Over> {
        self.ask_for_files(ask).map(|(reply, _)| reply)
    }

    /// The same, with the descriptors that come with the answer.
    pub(crate) fn ask_for_files(&self, ask: &Ask) -> Result<(Reply, Vec<OwnedFd>), Over> {
        let mut repeated = false;
        loop {
            let socket = self.wait_for_socket()?;
            let asked = if repeated { ask.again() } else { ask.clone() };
            if link::send(&*socket, &asked, &[]).is_ok() {
                self.wait_for_answer(&socket)?;
                if let Ok(Some(answer)) = link::receive::<Reply>(&*socket) {
                    return Ok(answer);
                }
            }
            repeated = true;
            self.lose(&socket);
        }
    }

    /// Tells the daemon something that needs no answer, unless there is none or it does not listen:
    /// nobody waits for a log.
    pub(crate) fn tell(&self, what: &Ask) {
        // Whoever holds the lock does not log meanwhile.
        let Some(socket) = self.lock().clone() else { return };
        if let Ok(bytes) = serde_json::to_vec(what) {
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            let (parts, mut nothing) = ([IoSlice::new(&bytes)], SendAncillaryBuffer::default());
            // The sandbox knows no other way to send.
            let _ = rustix::net::sendmsg(&*socket, &parts, &mut nothing, flags);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<OwnedFd>>> {
        self.socket.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_for_socket(&self) -> Result<Arc<OwnedFd>, Over> {
        let mut socket = self.lock();
        loop {
            if self.is_over() {
                return Err(Over);
            }
            if let Some(socket) = &*socket {
                return Ok(Arc::clone(socket));
            }
            let waited = self.changed.wait_timeout(socket, PATIENCE);
            socket = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits until the socket has something to say, or its other end is gone.
    fn wait_for_answer(&self, socket: &OwnedFd) -> Result<(), Over> {
        let patience = Timespec::try_from(PATIENCE).ok();
        loop {
            let mut polled = [PollFd::new(socket, PollFlags::IN)];
            match poll(&mut polled, patience.as_ref()) {
                // What a broken socket has to say is that.
                Ok(1..) => return Ok(()),
                Ok(0) | Err(Errno::INTR) if self.is_over() => return Err(Over),
                Ok(0) | Err(Errno::INTR) => {}
                Err(_) => return Ok(()),
            }
        }
    }

    /// Forgets a socket whose other end is gone, unless it was replaced already.
    fn lose(&self, socket: &Arc<OwnedFd>) {
        let mut current = self.lock();
        if current.as_ref().is_some_and(|current| Arc::ptr_eq(current, socket)) {
            *current = None;
        }
    }

    fn install(&self, socket: OwnedFd) {
        *self.lock() = Some(Arc::new(socket));
        self.changed.notify_all();
    }

    fn end(&self, doorbell: &WakeFlag) {
        self.over.store(true, Ordering::Release);
        self.changed.notify_all();
        doorbell.wake_surely();
    }
}

/// Watches until the session is over. Runs in a thread of its own.
pub(crate) fn watch(link: &Link, watch: &Watch) {
    loop {
        let socket = link.lock().clone();
        let outcome = match &socket {
            Some(socket) => wait_with_daemon(watch, socket.as_fd()),
            None => wait_at_door(link, watch),
        };
        match outcome {
            Ok(Event::TenantGone) => {
                tracing::debug!(session = watch.handover.session(), "the tenant is gone");
                return link.end(&watch.doorbell);
            }
            Ok(Event::DaemonGone) => {
                tracing::info!(session = watch.handover.session(), "the daemon is gone");
                if let Some(socket) = &socket {
                    link.lose(socket);
                }
            }
            Ok(Event::Adopted) => {
                tracing::info!(session = watch.handover.session(), "a new daemon is there");
            }
            Err(error) => {
                tracing::error!(session = watch.handover.session(), %error, "worker gives up");
                return link.end(&watch.doorbell);
            }
        }
    }
}

enum Event {
    TenantGone,
    DaemonGone,
    Adopted,
}

fn wait_with_daemon(watch: &Watch, socket: BorrowedFd<'_>) -> io::Result<Event> {
    let mut polled = [
        PollFd::new(&watch.lifeline, PollFlags::RDHUP),
        PollFd::new(&watch.tenant, PollFlags::IN),
        PollFd::from_borrowed_fd(socket, PollFlags::RDHUP),
    ];
    rustix::io::retry_on_intr(|| poll(&mut polled, None))?;
    let [lifeline, tenant, _] = polled.map(|fd| !fd.revents().is_empty());
    Ok(if lifeline || tenant { Event::TenantGone } else { Event::DaemonGone })
}

fn wait_at_door(link: &Link, watch: &Watch) -> io::Result<Event> {
    let limit = Duration::from_millis(watch.handover.lock().0.times.orphan_ms);
    let deadline = Instant::now() + limit;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "no daemon came"));
        }
        let left = Timespec::try_from(left).map_err(io::Error::other)?;
        let mut polled = [
            PollFd::new(&watch.lifeline, PollFlags::RDHUP),
            PollFd::new(&watch.tenant, PollFlags::IN),
            PollFd::new(&watch.door, PollFlags::IN),
        ];
        rustix::io::retry_on_intr(|| poll(&mut polled, Some(&left)))?;
        let [lifeline, tenant, door] = polled.map(|fd| !fd.revents().is_empty());
        if lifeline || tenant {
            return Ok(Event::TenantGone);
        }
        if !door {
            continue;
        }
        let socket = peer::accept(&watch.door)?;
        match introduce(watch, &socket) {
            Ok(()) => {
                link.install(socket);
                return Ok(Event::Adopted);
            }
            Err(error) => tracing::warn!(%error, "somebody at the door is no daemon"),
        }
    }
}

/// Tells the new daemon who this is. The door lies in a directory that only the daemon's user may
/// enter; whoever comes as somebody else is turned away.
fn introduce(watch: &Watch, socket: &OwnedFd) -> io::Result<()> {
    let credentials = peer::credentials(socket)?;
    let handover = watch.handover.lock();
    let (start, files) = &*handover;
    if credentials.uid != 0 && credentials.uid != start.daemon_uid {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let (passed, files) = files.to_send();
    let adoption = Adoption { start: start.clone(), pid: watch.pid, passed };
    link::send(socket, &adoption, &files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_nobody_answers_ends_with_the_session() {
        let (socket, daemon) = peer::pair().unwrap();
        let link = Link::new(socket);
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| link.ask(&Ask::Usage));
            let (ask, _) = link::receive::<Ask>(&daemon).unwrap().unwrap();
            assert_eq!(ask, Ask::Usage);
            link.over.store(true, Ordering::Release);
            assert_eq!(asked.join().unwrap(), Err(Over));
        });
        // And nothing is asked any more.
        assert_eq!(link.ask(&Ask::Usage), Err(Over));
    }
}
