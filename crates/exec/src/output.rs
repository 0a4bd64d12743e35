//! What a session says to the outside.

use weft_wire::Status;

/// Who waits for an answer; opaque to the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Caller(pub u64);

/// A device operation, or a piece of one, has ended: what the accountant charges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Finished {
    /// Which kind of operation, as [`crate::Ready::key`] said.
    pub key: u64,
    /// Thread blocks or bytes that this piece covered, as far as they are known.
    pub units: u64,
    /// Device clock when the device began, in ns.
    pub start_ns: u64,
    /// Device clock when it ended, in ns.
    pub end_ns: u64,
    /// Whether the rest of the operation is still to come.
    pub partial: bool,
}

impl Finished {
    /// Device time that the piece occupied, in ns.
    #[must_use]
    pub fn device_ns(&self) -> u64 {
        self.end_ns.saturating_sub(self.start_ns)
    }
}

/// Where a session's answers and signals go. Methods are called in the order in which they must
/// become visible: a progress word never after the answer that depends on it.
pub trait Output {
    /// Answers a synchronous command; exactly once per caller.
    fn reply(&mut self, caller: Caller, status: Status, body: &[u8]);
    /// Stores `value` into progress word `word` (`weft_wire::progress`); words only grow.
    fn progress(&mut self, word: u32, value: u64);
    /// Stores `value` into notice word `word` (`weft_wire::progress`).
    fn notice(&mut self, word: u32, value: u64);
    /// Gives the arena block with this release word back to the client.
    fn release(&mut self, word: u32);
    /// Reports a device operation, or a piece of one, that has ended.
    fn finished(&mut self, finished: &Finished);
    /// Whether the session may keep `bytes` of tables, queues and graphs, `more` of them beyond
    /// what it has now. Where nobody counts it may.
    fn may_keep(&mut self, _bytes: u64, _more: u64) -> bool {
        true
    }
}
