//! One single-producer single-consumer ring of records.
//!
//! A record starts at a 64-byte slot: a header word, its ticket and the command's bytes, in as many
//! slots as they need; it may wrap around the end of the ring. The header is published last, so one
//! line crosses for a small command. Before it publishes a record, the producer clears the header
//! behind it: the consumer, which knows where the next record starts, never takes old bytes for a
//! header.
//!
//! The consumer trusts nothing that it reads: its position is private, every shared word is loaded
//! once, and a record is copied out before anybody looks inside.

use std::sync::atomic::AtomicU64 as PrivateU64;

use thiserror::Error;

use crate::cells::{Cell, Cells, prefetch_for_write};
use crate::sync::{AtomicU64, Ordering};

/// The longest command, in bytes.
pub const MAX_COMMAND: usize = 512;
/// Slots of a lane, unless a test wants fewer.
pub const LANE_SLOTS: usize = 512;
/// Words of a 64-byte slot.
pub(crate) const SLOT_WORDS: usize = 8;
/// How far ahead of a record the producer fetches the line that it will write. A longest record
/// ahead: the worker read that line a lap ago, and taking it back costs about 100 ns.
const PREFETCH_SLOTS: u64 = 8;
/// Words of a record before the command's bytes.
const HEADER_WORDS: usize = 2;

/// What the peer did that no correct peer does. The session is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Violation {
    /// A record claims more bytes than a command may have.
    #[error("lane {lane} has a record of {len} bytes")]
    Length {
        /// The lane.
        lane: usize,
        /// The claimed length in bytes.
        len: usize,
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
    /// Written by the consumer: slots consumed so far.
    pub(crate) head: Cell<AtomicU64>,
    /// A power of two of slots.
    pub(crate) slots: Cells<AtomicU64>,
}

impl LaneWords {
    #[cfg(loom)]
    pub(crate) fn modelled(slots: usize) -> Self {
        Self { head: Cell::<AtomicU64>::zeroed(), slots: Cells::zeroed(slots * SLOT_WORDS) }
    }

    fn capacity(&self) -> u64 {
        (self.slots.len() / SLOT_WORDS) as u64
    }

    /// The word `offset` words behind the start of slot `position`.
    fn word(&self, position: u64, offset: usize) -> &AtomicU64 {
        &self.slots[word_index(position, offset, self.slots.len())]
    }
}

/// The submitting side. One thread at a time; whoever shares it holds a lock.
///
/// Its position is an atomic so that the lane can pass to another thread, for which a release and
/// an acquire are enough.
#[derive(Debug)]
pub(crate) struct Producer {
    words: LaneWords,
    /// Where the next record starts; nobody else writes it.
    next: PrivateU64,
    /// The consumer's position when last looked at.
    consumed: PrivateU64,
}

impl Producer {
    /// The producer of a lane that was never used.
    pub(crate) fn new(words: LaneWords) -> Self {
        Self { words, next: 0.into(), consumed: 0.into() }
    }

    /// Whether a record of `len` bytes fits.
    pub(crate) fn has_room(&self, len: usize) -> bool {
        let next = self.next.load(Ordering::Acquire);
        // One slot more, for the cleared header behind the record.
        let needed = slots_of(len) + 1;
        let fits =
            |consumed| next.wrapping_sub(consumed).wrapping_add(needed) <= self.words.capacity();
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
        let next = position.wrapping_add(slots_of(command.len()));
        let put = |offset, word| self.words.word(position, offset).store(word, Ordering::Relaxed);
        self.words.word(next, 0).store(0, Ordering::Relaxed);
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
        let header = Header { len: command.len(), answer }.encode();
        // SYNC: publishes the record, and the cleared header behind it, to `Consumer::peek`.
        self.words.word(position, 0).store(header, Ordering::Release);
        self.next.store(next, Ordering::Release);
        prefetch_for_write(self.words.word(next.wrapping_add(PREFETCH_SLOTS), 0));
        Ok(())
    }
}

/// The first word of a record: length in bits 0–15, answer slot + 1 in bits 16–31, call in bits
/// 32–62; the last bit is always set.
struct Header {
    len: usize,
    answer: Option<AnswerTo>,
}

const PUBLISHED: u64 = 1 << 63;
/// The largest number of a call; the next one is 0 again.
pub(crate) const MAX_CALL: u32 = u32::MAX >> 1;

impl Header {
    fn encode(&self) -> u64 {
        let answer = self.answer.map_or(0, |answer| {
            (u64::from(answer.slot) + 1) << 16 | u64::from(answer.call & MAX_CALL) << 32
        });
        PUBLISHED | self.len as u64 | answer
    }

    #[expect(clippy::cast_possible_truncation, reason = "takes the fields of the word apart")]
    fn decode(word: u64) -> Self {
        let slot = (word >> 16) as u16;
        let call = (word >> 32) as u32 & MAX_CALL;
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
        self.words.word(self.next, 0).load(Ordering::Relaxed) & PUBLISHED != 0
    }

    /// Looks at the header of the first record, once.
    pub(crate) fn peek(&self) -> Result<Option<Front>, Violation> {
        // SYNC: acquires what `Producer::try_push` published.
        let header = self.words.word(self.next, 0).load(Ordering::Acquire);
        if header & PUBLISHED == 0 {
            return Ok(None);
        }
        let Header { len, answer } = Header::decode(header);
        if len > MAX_COMMAND {
            return Err(Violation::Length { lane: self.lane, len });
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
        self.words.word(self.next, offset).load(Ordering::Relaxed)
    }
}
