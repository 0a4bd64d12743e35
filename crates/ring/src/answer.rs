//! Answers to synchronous calls.
//!
//! An answer slot is a 64-byte line — the number of the last answered call, the caller's sleeping
//! flag, status and length — followed by the answer's bytes, whose first 48 share that line. A
//! caller owns a slot from its submission to its answer, so commands of other callers may be
//! answered in between.

use std::sync::atomic::AtomicU32 as PrivateU32;

use thiserror::Error;

use crate::cells::{Cell, Cells};
use crate::lane::MAX_CALL;
use crate::serial::Serial;
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::wait::{Patience, Unready, WakeFlag};

/// The longest answer, in bytes; longer ones go to a block of the arena that the command names.
pub const MAX_ANSWER: usize = 4096;
/// Answer slots of a session: one per lane, the others for threads that share a lane.
pub const ANSWER_SLOTS: u16 = 256;

/// The answer does not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("answer of {0} bytes is longer than an answer slot")]
pub struct AnswerTooLong(pub usize);

/// What a synchronous call came back with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// The status, in the terms of the command.
    pub status: i32,
    /// The bytes that the worker sent; at most what the caller had room for was copied.
    pub len: usize,
}

/// The words of an answer slot that both sides see.
#[derive(Debug, Clone)]
pub(crate) struct AnswerWords {
    /// Written by the worker: the last answered call.
    pub(crate) done: Cell<AtomicU32>,
    /// The caller's sleeping flag.
    pub(crate) flag: WakeFlag,
    /// Written by the worker: status in the low half, length in bytes above.
    pub(crate) result: Cell<AtomicU64>,
    /// Written by the worker: the answer's bytes.
    pub(crate) bytes: Cells<AtomicU64>,
}

impl AnswerWords {
    #[cfg(loom)]
    pub(crate) fn modelled(words: usize) -> Self {
        Self {
            done: Cell::<AtomicU32>::zeroed(),
            flag: WakeFlag::modelled(),
            result: Cell::<AtomicU64>::zeroed(),
            bytes: Cells::zeroed(words),
        }
    }

    /// Publishes the answer to `call` and wakes its caller.
    pub(crate) fn complete(
        &self,
        call: u32,
        status: i32,
        bytes: &[u8],
    ) -> Result<(), AnswerTooLong> {
        if bytes.len() > self.bytes.len() * 8 {
            return Err(AnswerTooLong(bytes.len()));
        }
        for (target, chunk) in self.bytes.iter().zip(bytes.chunks(8)) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            target.store(u64::from_le_bytes(word), Ordering::Relaxed);
        }
        let result = u64::from(status.cast_unsigned()) | (bytes.len() as u64) << 32;
        self.result.store(result, Ordering::Relaxed);
        // SYNC: publishes result and bytes to `CallSlot::wait`.
        self.done.store(call, Ordering::Release);
        self.flag.wake();
        Ok(())
    }
}

#[cfg(any(not(loom), test))]
impl AnswerWords {
    /// The answer to `call`, if it is there, and as much of its bytes as fits into `target`.
    pub(crate) fn take(&self, call: u32, target: &mut [u8]) -> Option<Answer> {
        // SYNC: acquires what `complete` published.
        (self.done.load(Ordering::Acquire) == call).then(|| self.read(target))
    }
}

impl AnswerWords {
    /// Reads an answer that is there.
    fn read(&self, target: &mut [u8]) -> Answer {
        let result = self.result.load(Ordering::Relaxed);
        let [s0, s1, s2, s3, l0, l1, l2, l3] = result.to_le_bytes();
        let status = i32::from_le_bytes([s0, s1, s2, s3]);
        let claimed = usize::try_from(u32::from_le_bytes([l0, l1, l2, l3])).unwrap_or(usize::MAX);
        let len = claimed.min(self.bytes.len() * 8);
        let room = len.min(target.len());
        for (word, chunk) in self.bytes.iter().zip(target[..room].chunks_mut(8)) {
            let bytes = word.load(Ordering::Relaxed).to_le_bytes();
            chunk.copy_from_slice(&bytes[..chunk.len()]);
        }
        Answer { status, len }
    }
}

/// The caller's side of an answer slot.
#[derive(Debug)]
pub(crate) struct CallSlot {
    words: AnswerWords,
    last: PrivateU32,
}

impl CallSlot {
    pub(crate) fn new(words: AnswerWords) -> Self {
        let last = words.done.load(Ordering::Acquire);
        Self { words, last: PrivateU32::new(last) }
    }

    /// Numbers the next call in this slot; only its present owner calls this.
    pub(crate) fn begin(&self) -> u32 {
        let call = self.last.load(Ordering::Relaxed).wrapping_add(1) & MAX_CALL;
        self.last.store(call, Ordering::Relaxed);
        call
    }

    /// Waits for the answer to `call` and copies as much of it as fits into `target`. What another
    /// session answered, which has the memory by now and the same call, is none.
    pub(crate) fn wait(
        &self,
        call: u32,
        patience: &Patience<'_>,
        (lost, serial): (impl Fn() -> bool, &Serial),
        target: &mut [u8],
    ) -> Result<Answer, Unready> {
        // SYNC: acquires what `AnswerWords::complete` published.
        let is_done = || self.words.done.load(Ordering::Acquire) == call;
        let ready = || if is_done() { Some(true) } else { lost().then_some(false) };
        if !self.words.flag.wait(patience, ready)? && !is_done() {
            return Err(Unready::PeerLost);
        }
        let answer = self.words.read(target);
        if serial.is_over() { Err(Unready::PeerLost) } else { Ok(answer) }
    }
}
