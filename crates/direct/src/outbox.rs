//! Where a session in this process puts its answers and signals.

use std::collections::BTreeMap;

use weft_exec::{Caller, Finished, Output};
use weft_ring::{ArenaRef, WorkerSide};
use weft_wire::Status;

/// An answer on its way to its caller.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: Status,
    pub(crate) body: Vec<u8>,
}

/// Answers nobody fetched yet, and the segment's words.
#[derive(Debug)]
pub(crate) struct Outbox {
    side: WorkerSide,
    replies: BTreeMap<u64, Reply>,
    /// Answers that were added since the last look.
    fresh: usize,
}

impl Outbox {
    pub(crate) fn new(side: WorkerSide) -> Self {
        Self { side, replies: BTreeMap::new(), fresh: 0 }
    }

    /// The answer to `caller`, if it is there.
    pub(crate) fn take(&mut self, caller: Caller) -> Option<Reply> {
        let reply = self.replies.remove(&caller.0)?;
        self.fresh = self.fresh.saturating_sub(1);
        Some(reply)
    }

    /// Whether answers of other callers were added since the last look.
    pub(crate) fn has_news(&mut self) -> bool {
        std::mem::take(&mut self.fresh) > 0
    }
}

impl Output for Outbox {
    fn reply(&mut self, caller: Caller, status: Status, body: &[u8]) {
        self.replies.insert(caller.0, Reply { status, body: body.to_vec() });
        self.fresh += 1;
    }

    fn progress(&mut self, word: u32, value: u64) {
        self.side.set_progress(word as usize, value);
    }

    fn notice(&mut self, word: u32, value: u64) {
        self.side.set_notice(word as usize, value);
    }

    fn release(&mut self, word: u32) {
        let block = ArenaRef { block: word, offset: 0, len: 0 };
        // The session checked the word when it took the command.
        let _ = self.side.arena().release(&block);
    }

    fn finished(&mut self, _finished: &Finished) {}
}
