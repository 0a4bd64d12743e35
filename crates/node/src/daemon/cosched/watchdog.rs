//! Ends a boost that nobody else ends: a tiny process of its own.
//!
//! It survives the daemon. A page in shared memory names the boosted thread, and a timer that both
//! processes hold is armed before the thread is boosted, so whatever happens to the daemon after
//! that, the watchdog wakes and ends the boost: after the limit, or at once when the daemon is
//! gone. It is real-time itself, above every boosted thread, and always asleep otherwise.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::event::{PollFd, PollFlags};
use rustix::net::sockopt::{self, Timeout};
use rustix::process::{Resource, Rlimit};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use serde::{Deserialize, Serialize};
use weft_gate::NodePage;
use weft_ring::peer::{self, Process};
use weft_ring::priority::{self, Class, Treatment};
use weft_ring::{Access, AtomicU64, Cell, MemoryFile, Ordering, PAGE, SharedMemory};

use crate::link;

/// Priority of a boosted thread: the lowest that is above every ordinary thread.
pub(crate) const BOOST_PRIORITY: u32 = 1;
/// Priority of the watchdog.
const WATCHDOG_PRIORITY: u32 = BOOST_PRIORITY + 1;

/// A boost lasts at most this long.
pub(crate) const BOOST_LIMIT: Duration = Duration::from_millis(1);

/// The watchdog is ready within this time.
const READY_LIMIT: Duration = Duration::from_secs(10);

/// It may run this long without sleeping, in µs, before the system ends it: ending a boost takes
/// some ten.
const RUN_LIMIT_US: u64 = 100_000;

const THREAD: usize = 0;
const ENDED: usize = 64;

/// A thread that is boosted: process and thread, as the daemon counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Boosted {
    /// Its process.
    pub(crate) pid: u32,
    /// The thread.
    pub(crate) thread: u32,
}

impl Boosted {
    fn pack(self) -> u64 {
        u64::from(self.pid) << 32 | u64::from(self.thread)
    }

    fn unpack(word: u64) -> Option<Self> {
        let [t0, t1, t2, t3, p0, p1, p2, p3] = word.to_le_bytes();
        let thread = u32::from_le_bytes([t0, t1, t2, t3]);
        (word != 0).then_some(Self { pid: u32::from_le_bytes([p0, p1, p2, p3]), thread })
    }

    /// Makes the thread ordinary if a boost of ours is on it; whether one was.
    pub(crate) fn end(self) -> bool {
        let there = std::fs::exists(format!("/proc/{}/task/{}", self.pid, self.thread));
        if !there.unwrap_or(false) {
            return false;
        }
        let Ok(treatment) = Treatment::of(self.thread) else { return false };
        match treatment.class {
            Class::Realtime(BOOST_PRIORITY) if treatment.resets_on_fork => {
                priority::make_normal(self.thread, false).is_ok()
            }
            // It ended the boost itself, and could not remove the mark.
            Class::Normal if treatment.resets_on_fork => {
                let _unmarked = priority::make_normal(self.thread, false);
                false
            }
            // The program has arranged something else meanwhile.
            Class::Normal | Class::Realtime(_) | Class::Other => false,
        }
    }
}

/// What the two processes share.
#[derive(Debug)]
struct Record {
    boosted: Cell<AtomicU64>,
    /// Boosts that the watchdog ended.
    ended: Cell<AtomicU64>,
}

impl Record {
    fn open(file: &MemoryFile) -> anyhow::Result<Self> {
        let memory: std::sync::Arc<SharedMemory> = file.map(Access::ReadWrite)?;
        Ok(Self { boosted: memory.cell(THREAD)?, ended: memory.cell(ENDED)? })
    }

    fn end(&self) {
        let word = self.boosted.load(Ordering::SeqCst);
        let Some(boosted) = Boosted::unpack(word) else { return };
        if !boosted.end() {
            // A late expiration of an earlier boost's timer: this thread may be about to be
            // boosted, and its own expiration must find it here.
            return;
        }
        self.ended.fetch_add(1, Ordering::Relaxed);
        let (was, now) = (Ordering::SeqCst, Ordering::Relaxed);
        // The next boost may have begun; its own end comes later.
        let _next = self.boosted.compare_exchange(word, 0, was, now);
    }
}

/// What the watchdog says when it is ready.
#[derive(Debug, Serialize, Deserialize)]
struct Ready {
    /// Why it cannot watch, if so.
    refused: Option<String>,
}

/// The daemon's side.
#[derive(Debug)]
pub(crate) struct Watchdog {
    record: Record,
    timer: OwnedFd,
    process: Process,
    /// Closed first, so that the watchdog ends before it is waited for.
    link: Option<OwnedFd>,
    child: Child,
}

impl Watchdog {
    /// Starts one; `node_page` is where it wakes the daemon after it ended a boost.
    pub(crate) fn start(node_page: &MemoryFile) -> anyhow::Result<Self> {
        let page = MemoryFile::create("weft-boost", PAGE)?;
        let timer = timerfd_create(
            TimerfdClockId::Monotonic,
            TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK,
        )?;
        let (ours, theirs) = peer::pair()?;
        let child = Command::new("/proc/self/exe")
            .arg0(std::env::args_os().next().unwrap_or_else(|| "weft".into()))
            .arg("watchdog")
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            // It must outlive the signal that ends the daemon.
            .process_group(0)
            .spawn()
            .context("cannot start the watchdog")?;
        let process = Process::open(child.id())?;
        let record = Record::open(&page)?;
        let watchdog = Self { record, timer, process, link: Some(ours), child };
        watchdog.prepare(&page, node_page)?;
        Ok(watchdog)
    }

    fn prepare(&self, page: &MemoryFile, node_page: &MemoryFile) -> anyhow::Result<()> {
        let link = self.link.as_ref().context("the link is open")?;
        let fds = [self.timer.as_fd(), page.as_fd(), node_page.as_fd()];
        sockopt::set_socket_timeout(link, Timeout::Recv, Some(READY_LIMIT))?;
        link::send(link, &(), &fds)?;
        match link::receive::<Ready>(link)? {
            Some((Ready { refused: None }, _)) => Ok(()),
            Some((Ready { refused: Some(why) }, _)) => bail!(why),
            None => bail!("the watchdog ended"),
        }
    }

    /// Whether it watches.
    pub(crate) fn is_alive(&self) -> bool {
        !self.process.has_exited()
    }

    /// From now on the watchdog ends the boost of this thread. Call it before boosting.
    pub(crate) fn arm(&self, boosted: Boosted) -> io::Result<()> {
        self.record.boosted.store(boosted.pack(), Ordering::SeqCst);
        self.set_timer(BOOST_LIMIT)
    }

    /// The boost is over.
    pub(crate) fn disarm(&self) {
        self.record.boosted.store(0, Ordering::SeqCst);
        if let Err(error) = self.set_timer(Duration::ZERO) {
            tracing::debug!(%error, "the watchdog wakes once more");
        }
    }

    /// Whether the watchdog has ended the boost that was armed last.
    pub(crate) fn has_ended(&self) -> bool {
        self.record.boosted.load(Ordering::SeqCst) == 0
    }

    /// How many boosts it ended.
    pub(crate) fn ended_total(&self) -> u64 {
        self.record.ended.load(Ordering::Relaxed)
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    fn set_timer(&self, after: Duration) -> io::Result<()> {
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        let it_value = Timespec::try_from(after).unwrap_or(none);
        let once = Itimerspec { it_interval: none, it_value };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once)?;
        Ok(())
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.link = None;
        if let Err(error) = self.child.wait() {
            tracing::debug!(%error, "the watchdog was not reaped");
        }
    }
}

/// The watchdog's process; the daemon hands everything over on standard input.
pub(crate) fn run() -> anyhow::Result<()> {
    let link = io::stdin().as_fd().try_clone_to_owned()?;
    let received: Option<((), Vec<OwnedFd>)> =
        link::receive(&link).context("standard input is not a link: a daemon starts this")?;
    let (_, fds) = received.context("the daemon went away")?;
    let [timer, page, node_page] = <[OwnedFd; 3]>::try_from(fds)
        .map_err(|fds| anyhow::anyhow!("the daemon sent {} descriptors, not 3", fds.len()))?;
    let record = Record::open(&MemoryFile::received(page)?)?;
    let node = NodePage::open(&MemoryFile::received(node_page)?.map(Access::ReadWrite)?)?;
    let refused = become_watchdog().err().map(|error| format!("{error:#}"));
    let is_refused = refused.is_some();
    link::send(&link, &Ready { refused }, &[])?;
    if is_refused {
        return Ok(());
    }
    loop {
        let mut polled = [PollFd::new(&timer, PollFlags::IN), PollFd::new(&link, PollFlags::IN)];
        rustix::io::retry_on_intr(|| rustix::event::poll(&mut polled, None))?;
        let [fired, gone] = polled.map(|fd| !fd.revents().is_empty());
        // The daemon may have set the timer anew since: then there is nothing to read yet.
        let expired = fired && rustix::io::read(&timer, &mut [0; 8]).is_ok();
        if expired || gone {
            record.end();
        }
        if gone {
            return Ok(());
        }
        node.doorbell().wake();
    }
}

fn become_watchdog() -> anyhow::Result<()> {
    let limit = Rlimit { current: Some(RUN_LIMIT_US), maximum: Some(2 * RUN_LIMIT_US) };
    rustix::process::setrlimit(Resource::Rttime, limit).context("limiting its run time")?;
    priority::make_realtime(0, WATCHDOG_PRIORITY)
        .context("real-time priority (CAP_SYS_NICE; in a control group, real-time run time)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_boosted_thread_survives_its_word() {
        assert_eq!(Boosted::unpack(0), None);
        let boosted = Boosted { pid: 4_194_303, thread: 7 };
        assert_eq!(Boosted::unpack(boosted.pack()), Some(boosted));
    }

    #[test]
    fn a_thread_that_nobody_boosted_is_left_alone() {
        let me = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        let before = Treatment::of(me).unwrap();
        assert!(!Boosted { pid: std::process::id(), thread: me }.end());
        assert_eq!(Treatment::of(me).unwrap(), before);
        assert!(!Boosted { pid: 1, thread: me }.end(), "not a thread of that process");
    }
}
