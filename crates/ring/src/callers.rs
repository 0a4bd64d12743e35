//! Which threads of the tenant wait for an answer, and which one of them is boosted.
//!
//! A thread that waits publishes its id beside its answer slot. The daemon, which maps the segment
//! too, verifies whose thread that is before it does anything to it: the tenant may have written
//! any number. It then names the boosted thread in one word, so that the thread itself ends its
//! boost at its next command and never polls under it.
//!
//! A thread in a virtual machine has a number of another kernel. It says on which of the machine's
//! processors it waits, counted from one: the host has a thread for each, and knows which.

use crate::answer::ANSWER_SLOTS;
use crate::cells::{Cell, Cells};
use crate::lane::AnswerTo;
use crate::map::MapError;
use crate::pool;
use crate::priority;
use crate::segment::Segment;
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::sys;

/// What is known of how a session's waiting threads are woken, which says how long to poll first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Waking {
    /// A wake-up takes what it takes.
    Usual = 0,
    /// They are boosted in time, and need not poll for what takes longer than usual.
    Prompt = 1,
    /// Answers are brought by threads that want the processor which polling would take from them.
    Relayed = 2,
}

impl Waking {
    fn of(word: u32) -> Self {
        match word {
            1 => Self::Prompt,
            2 => Self::Relayed,
            _ => Self::Usual,
        }
    }
}

/// The daemon's view of a session's callers.
#[derive(Debug)]
pub struct Callers {
    waiting: Cells<AtomicU64>,
    boosted: Cell<AtomicU32>,
    waking: Cell<AtomicU32>,
    segment: Segment,
}

impl Callers {
    /// Of a segment.
    ///
    /// # Errors
    /// Never for an opened segment.
    pub fn open(segment: &Segment) -> Result<Self, MapError> {
        Ok(Self {
            waiting: segment.waiting()?,
            boosted: segment.boosted()?,
            waking: segment.waking()?,
            segment: segment.clone(),
        })
    }

    /// The id that the thread which awaits this answer claims to have, in the tenant's own count of
    /// processes; `None` when nobody awaits it any more.
    #[must_use]
    pub fn thread_of(&self, awaited: AnswerTo) -> Option<u32> {
        let word = self.waiting.get(usize::from(awaited.slot))?.load(Ordering::Acquire);
        let Waiting { thread, call } = Waiting::unpack(word);
        (thread != 0 && call == awaited.call).then_some(thread)
    }

    /// Wakes the thread that awaits this answer, if it sleeps; it looks and polls again.
    pub fn wake(&self, awaited: AnswerTo) {
        if awaited.slot < ANSWER_SLOTS
            && let Ok(answer) = self.segment.answer(awaited.slot)
        {
            answer.flag.wake();
        }
    }

    /// Tells the tenant how its waiting threads are woken.
    pub fn set_waking(&self, waking: Waking) {
        self.waking.store(waking as u32, Ordering::Relaxed);
    }

    /// Tells the tenant which thread is boosted, in its own count.
    pub fn set_boosted(&self, thread: u32) {
        self.boosted.store(thread, Ordering::SeqCst);
    }

    /// Whether the tenant has not ended the boost of `thread` yet.
    #[must_use]
    pub fn is_boosted(&self, thread: u32) -> bool {
        self.boosted.load(Ordering::SeqCst) == thread
    }

    /// The boost of `thread` is over; another one's stays.
    pub fn clear_boosted(&self, thread: u32) {
        let (was, now) = (Ordering::SeqCst, Ordering::Relaxed);
        // It has ended the boost itself when this finds something else.
        let _ended = self.boosted.compare_exchange(thread, 0, was, now);
    }
}

/// A word of the table of waiting threads; 0 when nobody waits there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Waiting {
    thread: u32,
    call: u32,
}

impl Waiting {
    fn pack(self) -> u64 {
        u64::from(self.call) << 32 | u64::from(self.thread)
    }

    fn unpack(word: u64) -> Self {
        let [t0, t1, t2, t3, c0, c1, c2, c3] = word.to_le_bytes();
        Self {
            thread: u32::from_le_bytes([t0, t1, t2, t3]),
            call: u32::from_le_bytes([c0, c1, c2, c3]),
        }
    }
}

/// The tenant's side: what its threads say about themselves.
#[derive(Debug)]
pub(crate) struct OwnCallers {
    /// Its threads are another kernel's: they go by the processor on which they are.
    is_guest: bool,
    waiting: Cells<AtomicU64>,
    boosted: Cell<AtomicU32>,
    waking: Cell<AtomicU32>,
}

impl OwnCallers {
    pub(crate) fn open(segment: &Segment) -> Result<Self, MapError> {
        Ok(Self {
            is_guest: segment.memory().is_lent(),
            waiting: segment.waiting()?,
            boosted: segment.boosted()?,
            waking: segment.waking()?,
        })
    }

    /// What the calling thread goes by; 0 where nobody knows.
    pub(crate) fn own_name(&self) -> u32 {
        if self.is_guest { sys::processor() } else { pool::thread_id() }
    }

    /// The calling thread, which goes by `thread`, awaits an answer from now on.
    pub(crate) fn begin(&self, awaited: AnswerTo, thread: u32) {
        if let Some(word) = self.waiting.get(usize::from(awaited.slot)) {
            word.store(Waiting { thread, call: awaited.call }.pack(), Ordering::Release);
        }
    }

    /// It awaits nothing any more.
    pub(crate) fn end(&self, awaited: AnswerTo) {
        if let Some(word) = self.waiting.get(usize::from(awaited.slot)) {
            word.store(0, Ordering::Release);
        }
    }

    /// Whether any thread of the session is boosted. A load.
    #[inline]
    pub(crate) fn any_boosted(&self) -> bool {
        self.boosted.load(Ordering::Relaxed) != 0
    }

    /// How waiting threads are woken. Those of a guest poll in any case: to sleep costs them exits.
    #[inline]
    pub(crate) fn waking(&self) -> Waking {
        match self.is_guest {
            true => Waking::Usual,
            false => Waking::of(self.waking.load(Ordering::Relaxed)),
        }
    }

    /// Whether `thread` is boosted: it must not poll then.
    #[inline]
    pub(crate) fn is_boosted(&self, thread: u32) -> bool {
        self.boosted.load(Ordering::Relaxed) == thread
    }

    /// Ends the boost of the calling thread, `thread`, if it is the boosted one.
    #[cold]
    pub(crate) fn end_boost(&self, thread: u32) {
        let (was, now) = (Ordering::SeqCst, Ordering::Relaxed);
        let is_ended = self.boosted.compare_exchange(thread, 0, was, now).is_ok();
        if is_ended && !self.is_guest {
            // A guest's processor is made ordinary by the host, which sees the word. Giving
            // privilege up is always allowed; where it fails the daemon does it.
            let _given_up = priority::make_normal(0, true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_waiting_thread_is_found_under_its_own_call_only() {
        let segment = Segment::anonymous(1 << 16).unwrap();
        let (own, daemon) = (OwnCallers::open(&segment).unwrap(), Callers::open(&segment).unwrap());
        let awaited = AnswerTo { slot: 3, call: 7 };
        assert_eq!(daemon.thread_of(awaited), None);
        own.begin(awaited, 4711);
        assert_eq!(daemon.thread_of(awaited), Some(4711));
        assert_eq!(daemon.thread_of(AnswerTo { slot: 3, call: 6 }), None);
        assert_eq!(daemon.thread_of(AnswerTo { slot: u16::MAX, call: 7 }), None);
        own.end(awaited);
        assert_eq!(daemon.thread_of(awaited), None);
    }

    #[test]
    fn only_the_boosted_thread_ends_its_boost() {
        let segment = Segment::anonymous(1 << 16).unwrap();
        let (own, daemon) = (OwnCallers::open(&segment).unwrap(), Callers::open(&segment).unwrap());
        daemon.set_boosted(5);
        own.end_boost(6);
        assert!(own.any_boosted() && own.is_boosted(5) && daemon.is_boosted(5));
        own.end_boost(5);
        assert!(!own.any_boosted() && !daemon.is_boosted(5));
        daemon.set_boosted(6);
        daemon.clear_boosted(5);
        assert!(daemon.is_boosted(6), "another thread's boost stays");
    }
}
