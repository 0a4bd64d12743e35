//! One single-producer single-consumer ring of records.
//!
//! Positions count 64-byte slots and only grow. A record is a header of two words — length, answer
//! slot and call number in the first, ticket in the second — and the command's bytes, in as many
//! slots as they need; it may wrap around the end of the ring.
//!
//! The consumer trusts nothing that it reads: its own position is private, every shared word is
//! loaded once, and a record is copied out before anybody looks inside.

use std::sync::atomic::AtomicU64 as PrivateU64;

use thiserror::Error;

use crate::cells::{Cell, Cells};
use crate::sync::{AtomicU64, Ordering};

/// The longest command, in bytes.
pub const MAX_COMMAND: usize = 512;
/// Slots of a lane, unless a test wants fewer.
pub const LANE_SLOTS: usize = 512;
/// Words of a 64-byte slot.
pub(crate) const SLOT_WORDS: usize = 8;
/// Words of a record before the command's bytes.
const HEADER_WORDS: usize = 2;

/// What the peer did that no correct peer does. The session is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Violation {
    /// The producer's position runs further ahead than the ring is long.
    #[error("lane {lane} runs {ahead} slots ahead")]
    Overrun {
        /// The lane.
        lane: usize,
        /// How far it claims to be ahead, in slots.
        ahead: u64,
    },
    /// A record claims more bytes than a command may have.
    #[error("lane {lane} has a record of {len} bytes")]
    Length {
        /// The lane.
        lane: usize,
        /// The claimed length in bytes.
        len: usize,
    },
    /// A record claims more slots than are published.
    #[error("lane {lane} has a truncated record")]
    Truncated {
        /// The lane.
        lane: usize,
    },
    /// A record asks for its answer in a slot that does not exist.
    #[error("lane {lane} asks for an answer in slot {slot}")]
    AnswerSlot {
        /// The lane.
        lane: usize,
        /// The claimed slot.
        slot: u16,
    },
    /// A command names bytes outside the arena.
    #[error("command names bytes outside the arena")]
    Arena,
}

/// Where and under which number the answer to a synchronous call is awaited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AnswerTo {
    /// The answer slot, below [`crate::answer::ANSWER_SLOTS`].
    pub slot: u16,
    /// The number of the call in that slot.
    pub call: u32,
}

/// The lane has no room for the record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NoRoom;

fn slots_of(len: usize) -> u64 {
    let words = HEADER_WORDS + len.div_ceil(8);
    words.div_ceil(SLOT_WORDS) as u64
}

/// The word `offset` words behind slot `position` of a ring of `words` words (a power of two).
#[expect(clippy::cast_possible_truncation, reason = "masked to the ring's length")]
fn word_index(position: u64, offset: usize, words: usize) -> usize {
    (position as usize).wrapping_mul(SLOT_WORDS).wrapping_add(offset) & (words - 1)
}

/// The words of a lane that both sides see.
#[derive(Debug, Clone)]
pub(crate) struct LaneWords {
    /// Written by the producer: slots published so far.
    pub(crate) tail: Cell<AtomicU64>,
    /// Written by the consumer: slots consumed so far.
    pub(crate) head: Cell<AtomicU64>,
    /// A power of two of slots.
    pub(crate) slots: Cells<AtomicU64>,
}

impl LaneWords {
    #[cfg(loom)]
    pub(crate) fn modelled(slots: usize) -> Self {
        Self {
            tail: Cell::<AtomicU64>::zeroed(),
            head: Cell::<AtomicU64>::zeroed(),
            slots: Cells::zeroed(slots * SLOT_WORDS),
        }
    }

    fn capacity(&self) -> u64 {
        (self.slots.len() / SLOT_WORDS) as u64
    }
}

/// The submitting side. One thread at a time; whoever shares it holds a lock.
///
/// Its own position is an atomic only so that handing the lane to another thread needs no `unsafe`.
#[derive(Debug)]
pub(crate) struct Producer {
    words: LaneWords,
    /// Slots published; nobody else writes it.
    next: PrivateU64,
    /// The consumer's position when last looked at.
    consumed: PrivateU64,
}

impl Producer {
    pub(crate) fn new(words: LaneWords) -> Self {
        let producer = Self { words, next: 0.into(), consumed: 0.into() };
        producer.resume();
        producer
    }

    /// Takes over from the thread that used the lane before.
    pub(crate) fn resume(&self) {
        self.next.store(self.words.tail.load(Ordering::Acquire), Ordering::Relaxed);
        self.consumed.store(self.words.head.load(Ordering::Acquire), Ordering::Relaxed);
    }

    /// Whether a record of `len` bytes fits.
    pub(crate) fn has_room(&self, len: usize) -> bool {
        let next = self.next.load(Ordering::Relaxed);
        let fits = |consumed| {
            let ahead = next.wrapping_sub(consumed).wrapping_add(slots_of(len));
            ahead <= self.words.capacity()
        };
        if fits(self.consumed.load(Ordering::Relaxed)) {
            return true;
        }
        // SYNC: the consumer has copied the slots that it releases here.
        let consumed = self.words.head.load(Ordering::Acquire);
        self.consumed.store(consumed, Ordering::Relaxed);
        fits(consumed)
    }

    /// Publishes a record; the caller rings the doorbell.
    pub(crate) fn try_push(
        &self,
        ticket: u64,
        answer: Option<AnswerTo>,
        command: &[u8],
    ) -> Result<(), NoRoom> {
        debug_assert!(command.len() <= MAX_COMMAND, "the caller bounds commands");
        if !self.has_room(command.len()) {
            return Err(NoRoom);
        }
        let position = self.next.load(Ordering::Relaxed);
        let words = &self.words.slots;
        let put = |offset, word| {
            words[word_index(position, offset, words.len())].store(word, Ordering::Relaxed);
        };
        put(0, Header { len: command.len(), answer }.encode());
        put(1, ticket);
        let mut chunks = command.chunks_exact(8);
        let mut offset = HEADER_WORDS;
        for chunk in chunks.by_ref() {
            let mut word = [0; 8];
            word.copy_from_slice(chunk);
            put(offset, u64::from_le_bytes(word));
            offset += 1;
        }
        let rest = chunks.remainder();
        if !rest.is_empty() {
            let mut word = [0; 8];
            word[..rest.len()].copy_from_slice(rest);
            put(offset, u64::from_le_bytes(word));
        }
        let next = position.wrapping_add(slots_of(command.len()));
        self.next.store(next, Ordering::Relaxed);
        // SYNC: publishes the record's words to `Consumer::peek`.
        self.words.tail.store(next, Ordering::Release);
        Ok(())
    }
}

/// The first word of a record: length in bits 0–15, answer slot + 1 in bits 16–31, call above.
struct Header {
    len: usize,
    answer: Option<AnswerTo>,
}

impl Header {
    fn encode(&self) -> u64 {
        let answer = self
            .answer
            .map_or(0, |answer| (u64::from(answer.slot) + 1) << 16 | u64::from(answer.call) << 32);
        self.len as u64 | answer
    }

    #[expect(clippy::cast_possible_truncation, reason = "takes the fields of the word apart")]
    fn decode(word: u64) -> Self {
        let slot = (word >> 16) as u16;
        let call = (word >> 32) as u32;
        Self {
            len: usize::from(word as u16),
            answer: slot.checked_sub(1).map(|slot| AnswerTo { slot, call }),
        }
    }
}

/// What the consumer knows of the first record that it has not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Front {
    pub(crate) ticket: u64,
    pub(crate) answer: Option<AnswerTo>,
    pub(crate) len: usize,
}

/// The executing side.
#[derive(Debug)]
pub(crate) struct Consumer {
    lane: usize,
    words: LaneWords,
    answer_slots: u16,
    next: u64,
}

impl Consumer {
    pub(crate) fn new(lane: usize, words: LaneWords, answer_slots: u16) -> Self {
        Self { lane, words, answer_slots, next: 0 }
    }

    /// Whether something is published. A hint: it says nothing about validity.
    pub(crate) fn has_published(&self) -> bool {
        self.words.tail.load(Ordering::Acquire) != self.next
    }

    /// Looks at the header of the first record, once.
    pub(crate) fn peek(&self) -> Result<Option<Front>, Violation> {
        // SYNC: acquires the words that `Producer::try_push` published.
        let ahead = self.words.tail.load(Ordering::Acquire).wrapping_sub(self.next);
        if ahead == 0 {
            return Ok(None);
        }
        if ahead > self.words.capacity() {
            return Err(Violation::Overrun { lane: self.lane, ahead });
        }
        let Header { len, answer } = Header::decode(self.word(0));
        if len > MAX_COMMAND {
            return Err(Violation::Length { lane: self.lane, len });
        }
        if slots_of(len) > ahead {
            return Err(Violation::Truncated { lane: self.lane });
        }
        if let Some(AnswerTo { slot, .. }) = answer
            && slot >= self.answer_slots
        {
            return Err(Violation::AnswerSlot { lane: self.lane, slot });
        }
        Ok(Some(Front { ticket: self.word(1), answer, len }))
    }

    /// Copies the record that `peek` saw into `buffer` and frees its slots.
    ///
    /// True when the producer, should it sleep for room, must be woken now.
    pub(crate) fn take(&mut self, front: &Front, buffer: &mut [u8; MAX_COMMAND]) -> bool {
        let (words, rest) = buffer.as_chunks_mut::<8>();
        debug_assert!(rest.is_empty(), "a command is at most a whole number of words");
        for (i, word) in words.iter_mut().take(front.len.div_ceil(8)).enumerate() {
            *word = self.word(HEADER_WORDS + i).to_le_bytes();
        }
        let before = self.next;
        self.next = before.wrapping_add(slots_of(front.len));
        // SYNC: the copies above are done before the producer may overwrite the slots.
        self.words.head.store(self.next, Ordering::Release);
        // A producer that sleeps has a full lane ahead of it, so the consumer passes a quarter of
        // it, or runs it empty, before anybody could wait in vain.
        let quarter = (self.words.capacity() / 4).max(1);
        before / quarter != self.next / quarter || !self.has_published()
    }

    fn word(&self, offset: usize) -> u64 {
        let words = &self.words.slots;
        words[word_index(self.next, offset, words.len())].load(Ordering::Relaxed)
    }
}
