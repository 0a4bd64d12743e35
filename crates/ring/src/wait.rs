//! Hybrid waiting: poll for a bounded time, then sleep on a flag.
//!
//! The futex word is the sleeping flag itself. The sleeper sets it to 1 and looks again before it
//! sleeps while the flag is 1; the waker publishes, swaps the flag to 0 and wakes if it was 1.
//! Waiting on anything else (a ring's tail, say) loses wake-ups. The order is fixed by a full fence
//! on each side: either the waker sees the flag or the sleeper sees what was published.

use std::time::{Duration, Instant};

#[cfg(not(loom))]
use crate::bell::Bell;
use crate::cells::Cell;
use crate::sync::{AtomicU32, Ordering, fence};
#[cfg(loom)]
use crate::wait_page::WaitPage;

/// How long a client polls at the ring before it sleeps (design: 50 µs).
pub const SPIN: Duration = Duration::from_micros(50);

/// Whoever polls gives up after this much when the peer was last seen on the same processor: in
/// that time a woken peer has run elsewhere and said so, or it waits for this very processor.
pub(crate) const SAME_PROCESSOR: Duration = Duration::from_micros(10);

/// How often a sleeper makes sure that its peer lives.
pub const CHECK_EVERY: Duration = Duration::from_millis(100);

/// How long and under which conditions somebody waits.
#[derive(Clone, Copy)]
pub struct Patience<'a> {
    /// How long to poll before sleeping; zero to sleep at once.
    pub spin: Duration,
    /// How long to poll again after a wake that came before anything was ready: a waker announces
    /// what comes at once.
    pub announced: Duration,
    /// When to give up, if ever.
    pub deadline: Option<Instant>,
    /// How often to ask `peer_alive` while asleep.
    pub check_every: Duration,
    /// Whether the one who must end the wait still can.
    pub peer_alive: &'a dyn Fn() -> bool,
    /// Whether polling may go on after it has lasted so long; asked about once per microsecond.
    pub may_poll: &'a dyn Fn(Duration) -> bool,
}

impl core::fmt::Debug for Patience<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Patience")
            .field("spin", &self.spin)
            .field("deadline", &self.deadline)
            .field("check_every", &self.check_every)
            .finish_non_exhaustive()
    }
}

impl<'a> Patience<'a> {
    /// Polls for [`SPIN`], then sleeps for as long as the peer lives.
    #[must_use]
    pub fn while_alive(peer_alive: &'a dyn Fn() -> bool) -> Self {
        let (deadline, check_every) = (None, CHECK_EVERY);
        let may_poll = &|_| true;
        Self { spin: SPIN, announced: SPIN, deadline, check_every, peer_alive, may_poll }
    }

    /// The same, but no longer than until `deadline`.
    #[must_use]
    pub fn until(self, deadline: Instant) -> Self {
        Self { deadline: Some(deadline), ..self }
    }

    /// The same, but polling for `spin` first, and again when something is announced.
    #[must_use]
    pub fn spinning(self, spin: Duration) -> Self {
        Self { spin, announced: spin, ..self }
    }
}

/// A wait that ended without what was awaited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unready {
    /// The deadline passed.
    #[error("deadline passed")]
    TimedOut,
    /// The peer died.
    #[error("peer died")]
    PeerLost,
}

/// A sleeping flag in shared memory: at most one thread sleeps on it, anybody wakes it.
#[derive(Debug, Clone)]
pub struct WakeFlag {
    word: Cell<AtomicU32>,
    #[cfg(loom)]
    model: std::sync::Arc<model::Futex>,
    /// Where its sleepers wait instead, and are woken by whoever gets the marks at once.
    #[cfg(loom)]
    wait_page: Option<WaitPage>,
    /// Where its wakers leave marks instead, for whoever carries them to the sleeper.
    #[cfg(loom)]
    marks: Option<std::sync::Arc<model::Marks>>,
}

impl WakeFlag {
    /// The flag in `word`, where 0 means awake and 1 asleep.
    #[cfg(not(loom))]
    #[must_use]
    pub fn new(word: Cell<AtomicU32>) -> Self {
        Self { word }
    }

    #[cfg(loom)]
    pub fn modelled() -> Self {
        Self {
            word: Cell::<AtomicU32>::zeroed(),
            model: std::sync::Arc::new(model::Futex::default()),
            wait_page: None,
            marks: None,
        }
    }

    /// The same flag as another kernel has it: its wakes are marks.
    #[cfg(loom)]
    pub(crate) fn across(&self, marks: &std::sync::Arc<model::Marks>) -> Self {
        Self { marks: Some(marks.clone()), ..self.clone() }
    }

    #[cfg(loom)]
    pub fn modelled_at(wait_page: WaitPage) -> Self {
        Self { wait_page: Some(wait_page), ..Self::modelled() }
    }

    /// Wakes the sleeper, if any. Call it after publishing what it waits for.
    ///
    /// Costs a fence and a load while nobody sleeps.
    pub fn wake(&self) {
        // SYNC: the publication is ordered before the load of the flag; pairs with the fence in
        // `wait`.
        fence(Ordering::SeqCst);
        if self.word.load(Ordering::Relaxed) != 0 && self.word.swap(0, Ordering::AcqRel) != 0 {
            self.futex_wake();
        }
    }

    /// Wakes the sleeper, if any, also where somebody took its flag back who does not wake it: on
    /// another kernel a program can end between the two, and its mark never comes.
    pub fn wake_surely(&self) {
        // SYNC: as in `wake`.
        fence(Ordering::SeqCst);
        self.word.swap(0, Ordering::AcqRel);
        self.futex_wake();
    }

    /// Wakes the sleeper whose flag somebody on another kernel has taken back: the mark came.
    pub fn wake_marked(&self) {
        // SYNC: the flag was taken back before the mark was sent.
        if self.word.load(Ordering::SeqCst) == 0 {
            // A wake of nobody is cheap.
            self.wake_here();
        }
    }

    /// Whether polling can end a wait: the peer runs on another processor, maybe one that this
    /// process may not use. A guest's peer does, on its host, however few processors the guest has.
    #[cfg(not(loom))]
    fn has_processor_for_peer(&self) -> bool {
        machine_processors() > 1 || self.word.memory().is_lent()
    }

    /// A model has as many as it likes.
    #[cfg(loom)]
    fn has_processor_for_peer(&self) -> bool {
        true
    }

    /// Waits until `ready` gives something: polls for `patience.spin`, then sleeps.
    ///
    /// A wake without anything ready makes it poll again before it sleeps again, so a waker may
    /// announce itself shortly beforehand.
    ///
    /// # Errors
    /// [`Unready`] when the deadline passed or the peer died; `ready` was asked once more after
    /// that.
    pub fn wait<T>(
        &self,
        patience: &Patience<'_>,
        mut ready: impl FnMut() -> Option<T>,
    ) -> Result<T, Unready> {
        let polls = self.has_processor_for_peer();
        let mut spin = patience.spin;
        loop {
            let spin_now = if polls { spin } else { Duration::ZERO };
            if let Some(value) = poll_while(spin_now, patience.may_poll, &mut ready) {
                return Ok(value);
            }
            spin = patience.announced;
            loop {
                match self.sleep(patience, &mut ready)? {
                    Nap::Ready(value) => return Ok(value),
                    Nap::Woken => break,
                    Nap::Checked => {}
                }
            }
        }
    }

    fn sleep<T>(
        &self,
        patience: &Patience<'_>,
        ready: &mut impl FnMut() -> Option<T>,
    ) -> Result<Nap<T>, Unready> {
        // SYNC: a waker's late swap is behind this one or before it, never beside it.
        self.word.swap(1, Ordering::AcqRel);
        // SYNC: the flag is ordered before the look at what is published; pairs with the fence in
        // `wake`.
        fence(Ordering::SeqCst);
        if let Some(value) = ready() {
            self.word.store(0, Ordering::Relaxed);
            return Ok(Nap::Ready(value));
        }
        let now = now();
        let left = match (patience.deadline, now) {
            (Some(deadline), Some(now)) => deadline.saturating_duration_since(now),
            (Some(_), None) | (None, _) => patience.check_every,
        };
        let nap = left.min(patience.check_every);
        let woken = !nap.is_zero() && self.futex_wait(nap);
        if woken {
            return Ok(Nap::Woken);
        }
        if left <= patience.check_every && patience.deadline.is_some() {
            return self.last_look(ready, Unready::TimedOut);
        }
        if (patience.peer_alive)() {
            return Ok(Nap::Checked);
        }
        self.last_look(ready, Unready::PeerLost)
    }

    /// What was published just before the end of the wait still counts.
    fn last_look<T>(
        &self,
        ready: &mut impl FnMut() -> Option<T>,
        otherwise: Unready,
    ) -> Result<Nap<T>, Unready> {
        self.word.store(0, Ordering::Relaxed);
        ready().map(Nap::Ready).ok_or(otherwise)
    }

    /// Sleeps while the flag is 1, at most for `limit`; false when the time ran out.
    #[cfg(not(loom))]
    fn futex_wait(&self, limit: Duration) -> bool {
        use rustix::thread::{Timespec, futex};

        if let Some(wait_page) = self.word.memory().bell().and_then(Bell::wait_page) {
            return wait_page.wait_while(|| self.word.load(Ordering::SeqCst) == 1, limit);
        }
        let timeout = Timespec {
            tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(limit.subsec_nanos()),
        };
        // An interrupted wait counts as a wake: the caller looks again.
        futex::wait(&self.word, futex::Flags::empty(), 1, Some(&timeout))
            != Err(rustix::io::Errno::TIMEDOUT)
    }

    #[cfg(not(loom))]
    fn futex_wake(&self) {
        if let Some(bell) = self.word.memory().bell() {
            bell.ring();
            if bell.wait_page().is_some() {
                return;
            }
        }
        self.wake_here();
    }

    /// Wakes the sleeper in this kernel.
    #[cfg(not(loom))]
    fn wake_here(&self) {
        use rustix::thread::futex;

        // Waking can only fail for a bad address, and the word is mapped.
        let woken = futex::wake(&self.word, futex::Flags::empty(), 1);
        debug_assert!(woken.is_ok(), "futex wake of a mapped word failed");
    }

    #[cfg(loom)]
    fn futex_wait(&self, limit: Duration) -> bool {
        if let Some(wait_page) = &self.wait_page {
            return wait_page.wait_while(|| self.word.load(Ordering::SeqCst) == 1, limit);
        }
        self.model.wait_while_one(&self.word);
        true
    }

    #[cfg(loom)]
    fn futex_wake(&self) {
        match (&self.marks, &self.wait_page) {
            (Some(marks), _) => marks.ring(),
            (None, Some(wait_page)) => wait_page.wake_all(),
            (None, None) => self.wake_here(),
        }
    }

    #[cfg(loom)]
    fn wake_here(&self) {
        self.model.wake();
    }
}

enum Nap<T> {
    Ready(T),
    Woken,
    Checked,
}

#[cfg(not(loom))]
fn now() -> Option<Instant> {
    Some(Instant::now())
}

/// A model has no clock: nothing times out in it.
#[cfg(loom)]
fn now() -> Option<Instant> {
    None
}

/// Polls `ready` for at most `limit`, without a system call.
///
/// Gives up early on a machine with one processor, and when the thread evidently lost its processor
/// to somebody else: polling is hopeless there.
pub fn spin<T>(limit: Duration, ready: impl FnMut() -> Option<T>) -> Option<T> {
    spin_while(limit, &|_| true, ready)
}

/// The same, but only while `may_poll` says so.
pub fn spin_while<T>(
    limit: Duration,
    may_poll: &dyn Fn(Duration) -> bool,
    ready: impl FnMut() -> Option<T>,
) -> Option<T> {
    let limit = if several_processors() { limit } else { Duration::ZERO };
    poll_while(limit, may_poll, ready)
}

#[cfg(not(loom))]
fn poll_while<T>(
    limit: Duration,
    may_poll: &dyn Fn(Duration) -> bool,
    mut ready: impl FnMut() -> Option<T>,
) -> Option<T> {
    /// Polls between two looks at the clock, about a microsecond.
    const POLLS: u32 = 32;
    /// Between two looks this much passes only if the thread did not run.
    const DESCHEDULED: Duration = Duration::from_micros(500);

    if let Some(value) = ready() {
        return Some(value);
    }
    if limit.is_zero() || !may_poll(Duration::ZERO) {
        return None;
    }
    let start = Instant::now();
    let mut last = Duration::ZERO;
    loop {
        for _ in 0..POLLS {
            core::hint::spin_loop();
            if let Some(value) = ready() {
                return Some(value);
            }
        }
        let elapsed = start.elapsed();
        let lost = elapsed.saturating_sub(last) > DESCHEDULED;
        if elapsed >= limit || lost || !may_poll(elapsed) {
            return None;
        }
        last = elapsed;
    }
}

#[cfg(loom)]
fn poll_while<T>(
    _limit: Duration,
    _may_poll: &dyn Fn(Duration) -> bool,
    mut ready: impl FnMut() -> Option<T>,
) -> Option<T> {
    ready()
}

#[cfg(loom)]
fn several_processors() -> bool {
    true
}

#[cfg(not(loom))]
fn several_processors() -> bool {
    processors() > 1
}

/// Looks now at what waits ask for once, and with files.
#[cfg(not(loom))]
pub fn warm_up() {
    processors();
    machine_processors();
}

/// Processors that this process may use, looked up once: a sandbox may forbid to ask again.
#[cfg(not(loom))]
pub(crate) fn processors() -> usize {
    use std::num::NonZero;
    use std::sync::OnceLock;

    static PROCESSORS: OnceLock<usize> = OnceLock::new();
    *PROCESSORS.get_or_init(|| std::thread::available_parallelism().map_or(1, NonZero::get))
}

/// Processors that the machine has, looked up once: a sandbox may forbid to ask again.
#[cfg(not(loom))]
fn machine_processors() -> usize {
    use std::sync::OnceLock;

    static PROCESSORS: OnceLock<usize> = OnceLock::new();
    *PROCESSORS.get_or_init(|| {
        // SAFETY: takes an integer and touches no memory of this process.
        let online = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
        usize::try_from(online).unwrap_or(1)
    })
}

#[cfg(loom)]
pub(crate) mod model {
    use crate::sync::{AtomicU32, Ordering};

    /// The kernel's side of a futex: compares and sleeps in one step, as seen by wakers.
    #[derive(Debug, Default)]
    pub(super) struct Futex {
        queue: loom::sync::Mutex<()>,
        sleepers: loom::sync::Condvar,
    }

    /// A descriptor with room for one mark, which any further one is dropped for.
    #[derive(Debug, Default)]
    pub(crate) struct Marks {
        /// Whether a mark waits, and whether all writers are gone.
        state: loom::sync::Mutex<(bool, bool)>,
        changed: loom::sync::Condvar,
    }

    impl Marks {
        pub(super) fn ring(&self) {
            self.state.lock().unwrap().0 = true;
            self.changed.notify_one();
        }

        pub(crate) fn close(&self) {
            self.state.lock().unwrap().1 = true;
            self.changed.notify_one();
        }

        /// Takes the mark out, waiting for one; false at the end of all.
        pub(crate) fn take(&self) -> bool {
            let mut state = self.state.lock().unwrap();
            while *state == (false, false) {
                state = self.changed.wait(state).unwrap();
            }
            std::mem::take(&mut state.0)
        }
    }

    impl Futex {
        pub(super) fn wait_while_one(&self, word: &AtomicU32) {
            let queue = self.queue.lock().unwrap();
            if word.load(Ordering::SeqCst) == 1 {
                drop(self.sleepers.wait(queue).unwrap());
            }
        }

        pub(super) fn wake(&self) {
            let _queue = self.queue.lock().unwrap();
            self.sleepers.notify_one();
        }
    }
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU32 as Count, Ordering};

    use super::*;
    use crate::map::{PAGE, SharedMemory};

    /// Who does not poll before it sleeps polls all the same for what is announced.
    #[test]
    fn an_announcement_makes_a_sleeper_poll() {
        let memory = SharedMemory::anonymous(PAGE).unwrap();
        let flag = || WakeFlag::new(memory.cell(0).unwrap());
        let (polls, done) = (Count::new(0), AtomicBool::new(false));
        let (own, waker) = (flag(), flag());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let may_poll = |_| {
                    polls.fetch_add(1, Ordering::SeqCst);
                    true
                };
                let alive = || true;
                let patience = Patience {
                    may_poll: &may_poll,
                    spin: Duration::ZERO,
                    announced: Duration::from_secs(20),
                    ..Patience::while_alive(&alive)
                };
                let ready = || done.load(Ordering::SeqCst).then_some(());
                own.wait(&patience, ready).unwrap();
            });
            let deadline = Instant::now() + Duration::from_secs(10);
            while polls.load(Ordering::SeqCst) == 0 && Instant::now() < deadline {
                waker.wake();
                std::thread::yield_now();
            }
            done.store(true, Ordering::SeqCst);
            waker.wake();
        });
        // One processor polls for nobody.
        assert!(polls.load(Ordering::SeqCst) > 0 || machine_processors() == 1);
    }

    /// A program of a virtual machine takes the flag back, and ends before its mark is sent.
    #[test]
    fn a_sleeper_whose_flag_was_taken_back_by_the_dead_is_woken() {
        let memory = SharedMemory::anonymous(PAGE).unwrap();
        let flag = || WakeFlag::new(memory.cell(0).unwrap());
        let (own, waker) = (flag(), flag());
        let (done, naps) = (AtomicBool::new(false), Count::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // What it would find by itself, it finds too late.
                let alive = || naps.fetch_add(1, Ordering::SeqCst) < 100;
                let patience = Patience {
                    spin: Duration::ZERO,
                    check_every: Duration::from_secs(20),
                    ..Patience::while_alive(&alive)
                };
                own.wait(&patience, || done.load(Ordering::SeqCst).then_some(())).unwrap();
            });
            while waker.word.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            waker.word.store(0, Ordering::SeqCst);
            done.store(true, Ordering::SeqCst);
            waker.wake_surely();
        });
        assert_eq!(naps.load(Ordering::SeqCst), 0, "nobody woke it");
    }
}
