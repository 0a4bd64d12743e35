//! A turnstile between processes that serves in order of arrival and survives anybody's death.
//!
//! Lamport's bakery: everybody takes a number above all others and goes when no smaller one is
//! left. All that a participant ever holds is its own word, so clearing that word repairs its death
//! at any instant, as holder, as waiter or in the doorway. The participants trust each other; the
//! one who repairs (the daemon) knows that the participant is dead.

use crate::cells::{Cell, Cells};
#[cfg(not(loom))]
use crate::map::{MapError, SharedMemory};
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};
use crate::wait::{Patience, Unready, WakeFlag};

/// Participants of a turnstile.
pub const PARTICIPANTS: u32 = 4096;
/// The shared memory that a turnstile takes, in bytes, from a multiple of 64 on.
pub const TURNSTILE_BYTES: usize = FLAGS + PARTICIPANTS as usize * 4;

const SLOTS: usize = 64;
const FLAGS: usize = SLOTS + PARTICIPANTS as usize * 8;

const ABSENT: u64 = 0;
const CHOOSING: u64 = 1;
const FIRST_NUMBER: u64 = 2;

/// Whether it is a participant's turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// It holds the turnstile.
    Mine,
    /// Somebody is before it.
    Waiting,
}

/// A view of a turnstile in shared memory.
#[derive(Debug, Clone)]
pub struct Turnstile {
    /// Participants below this ever came.
    limit: Cell<AtomicU32>,
    /// Per participant: absent, choosing, or its number.
    slots: Cells<AtomicU64>,
    #[cfg(not(loom))]
    flags: Cells<AtomicU32>,
    #[cfg(loom)]
    flags: Vec<WakeFlag>,
}

impl Turnstile {
    /// Views the turnstile at byte `offset` of `memory`; zeroed memory is a free turnstile.
    ///
    /// # Errors
    /// [`MapError`] when it does not lie inside, aligned, in a writable mapping.
    #[cfg(not(loom))]
    pub fn view(memory: &std::sync::Arc<SharedMemory>, offset: usize) -> Result<Self, MapError> {
        let at = |inner: usize| offset.checked_add(inner).ok_or(MapError::OutOfBounds);
        Ok(Self {
            limit: memory.cell(offset)?,
            slots: memory.cells(at(SLOTS)?, PARTICIPANTS as usize)?,
            flags: memory.cells(at(FLAGS)?, PARTICIPANTS as usize)?,
        })
    }

    #[cfg(loom)]
    pub(crate) fn modelled(participants: usize) -> Self {
        Self {
            limit: Cell::<AtomicU32>::zeroed(),
            slots: Cells::zeroed(participants),
            flags: (0..participants).map(|_| WakeFlag::modelled()).collect(),
        }
    }

    /// Waits for `me`'s turn and takes it.
    ///
    /// # Errors
    /// [`Unready`] when it was not its turn within `patience`; it no longer queues then.
    pub fn acquire(&self, me: u32, patience: &Patience<'_>) -> Result<(), Unready> {
        self.enter(me);
        let waited = self.wait(me, patience);
        if waited.is_err() {
            self.release(me);
        }
        waited
    }

    /// Takes the turn if nobody is before `me`; queues otherwise not.
    #[must_use]
    pub fn try_acquire(&self, me: u32) -> bool {
        self.enter(me);
        match self.turn(me) {
            Standing::Mine => true,
            Standing::Waiting => {
                self.release(me);
                false
            }
        }
    }

    /// Queues `me` without waiting; [`Self::turn`] tells when it is its turn, [`Self::release`]
    /// leaves.
    pub fn enter(&self, me: u32) {
        debug_assert!(me < PARTICIPANTS, "participants are numbered by the daemon");
        if self.limit.load(Ordering::Relaxed) <= me {
            self.limit.fetch_max(me + 1, Ordering::AcqRel);
        }
        let mine = &self.slots[me as usize];
        mine.store(CHOOSING, Ordering::Relaxed);
        // SYNC: whoever takes a number that this look misses sees the word above; pairs with both
        // fences here.
        fence(Ordering::SeqCst);
        let largest = self.numbers().map(|(_, number)| number).max();
        let number = largest.map_or(FIRST_NUMBER, |largest| largest.saturating_add(1));
        mine.store(number, Ordering::Release);
        fence(Ordering::SeqCst);
        // Somebody may have gone to sleep because `me` was still choosing.
        self.wake_first(Some(me));
    }

    /// Whether it is `me`'s turn; it must have entered.
    #[must_use]
    pub fn turn(&self, me: u32) -> Standing {
        let mine = (self.slots[me as usize].load(Ordering::Relaxed), me);
        let before = self.present().any(|(other, slot)| {
            other != me && (slot == CHOOSING || slot != ABSENT && (slot, other) < mine)
        });
        if before { Standing::Waiting } else { Standing::Mine }
    }

    /// Waits for the turn of `me`, which entered and keeps queueing when the wait ends early.
    ///
    /// # Errors
    /// [`Unready`] when it was not its turn within `patience`.
    pub fn wait(&self, me: u32, patience: &Patience<'_>) -> Result<(), Unready> {
        let Some(flag) = self.flag(me) else { return Err(Unready::PeerLost) };
        flag.wait(patience, || (self.turn(me) == Standing::Mine).then_some(()))
    }

    /// Leaves: gives the turn to the next, or stops queueing.
    pub fn release(&self, me: u32) {
        // SYNC: what the holder did is visible to the next one, who loads this word in `turn`.
        self.slots[me as usize].store(ABSENT, Ordering::Release);
        fence(Ordering::SeqCst);
        self.wake_first(None);
    }

    /// Removes a participant that is dead, whatever it was doing.
    pub fn repair(&self, dead: u32) {
        self.release(dead);
    }

    /// Whether somebody besides `me` queues or holds.
    #[must_use]
    pub fn is_contended(&self, me: u32) -> bool {
        self.present().any(|(other, slot)| other != me && slot != ABSENT)
    }

    /// Wakes the participant with the smallest number other than `except`, if it sleeps.
    ///
    /// The holder keeps its number and is awake, so this costs a system call only when somebody's
    /// turn came.
    fn wake_first(&self, except: Option<u32>) {
        let first = self
            .numbers()
            .filter(|(other, _)| Some(*other) != except)
            .min_by_key(|&(other, number)| (number, other));
        if let Some(flag) = first.and_then(|(other, _)| self.flag(other)) {
            flag.wake();
        }
    }

    /// Made when needed: a view of every participant's would be memory that most never use.
    #[cfg(not(loom))]
    fn flag(&self, of: u32) -> Option<WakeFlag> {
        self.flags.cell(of as usize).map(WakeFlag::new)
    }

    #[cfg(loom)]
    fn flag(&self, of: u32) -> Option<WakeFlag> {
        self.flags.get(of as usize).cloned()
    }

    fn numbers(&self) -> impl Iterator<Item = (u32, u64)> {
        self.present().filter(|(_, slot)| *slot >= FIRST_NUMBER)
    }

    fn present(&self) -> impl Iterator<Item = (u32, u64)> {
        let limit = self.limit.load(Ordering::Acquire);
        (0..limit).zip(self.slots.iter().map(|slot| slot.load(Ordering::Acquire)))
    }
}
