//! Where a session's answers and signals go.

use std::sync::Arc;

use weft_exec::{Caller, Finished, Output};
use weft_ring::{AnswerTo, ArenaRef, WorkerSide};
use weft_wire::Status;

use super::link::Link;
use crate::link::{Ask, Reply};

/// Callers that wait, and operations that ended and are not charged yet.
#[derive(Debug)]
pub(crate) struct Answers {
    link: Arc<Link>,
    waiting: Vec<Waiting>,
    finished: Vec<Finished>,
}

#[derive(Debug)]
struct Waiting {
    caller: Caller,
    /// It waits for the device, not for a host function that may never come.
    for_device: bool,
}

impl Answers {
    /// Nobody waits yet; the daemon at the other end of `link` counts the host's memory.
    pub(crate) fn new(link: Arc<Link>) -> Self {
        Self { link, waiting: Vec::new(), finished: Vec::new() }
    }

    /// Notes that an answer will be due; `for_device` when the device's work decides when.
    pub(crate) fn expect(&mut self, answer: AnswerTo, for_device: bool) -> Caller {
        let caller = Caller(u64::from(answer.slot) << 32 | u64::from(answer.call));
        self.waiting.push(Waiting { caller, for_device });
        caller
    }

    /// The command was not taken after all.
    pub(crate) fn forget(&mut self, caller: Option<Caller>) {
        self.waiting.retain(|waiting| Some(waiting.caller) != caller);
    }

    /// Answers a call that never reached the session.
    pub(crate) fn refuse(&self, side: &WorkerSide, answer: AnswerTo, status: Status) {
        // An empty answer fits.
        let _ = side.complete(answer, status.code(), &[]);
    }

    /// Whether this caller waits, and for the device.
    pub(crate) fn waits_for_result(&self, caller: Caller) -> bool {
        self.waiting.iter().any(|waiting| waiting.caller == caller && waiting.for_device)
    }

    /// The caller that has waited for the device the longest: its result is due first.
    pub(crate) fn first_waiting(&self) -> Option<AnswerTo> {
        let first = self.waiting.iter().find(|waiting| waiting.for_device)?;
        Some(answer_of(first.caller))
    }

    /// Wakes the callers that wait for the device and sleep, so that they poll when their answers
    /// come. Cheap while nobody sleeps: repeat it until the answers are there.
    pub(crate) fn announce(&self, side: &WorkerSide) {
        for waiting in self.waiting.iter().filter(|waiting| waiting.for_device) {
            side.announce(answer_of(waiting.caller));
        }
    }

    /// Operations that ended since the last call.
    pub(crate) fn take_finished(&mut self) -> Vec<Finished> {
        std::mem::take(&mut self.finished)
    }

    /// The session's way out to `side`.
    pub(crate) fn output<'a>(&'a mut self, side: &'a WorkerSide) -> SideOutput<'a> {
        SideOutput { answers: self, side }
    }
}

/// The session's way out.
#[derive(Debug)]
pub(crate) struct SideOutput<'a> {
    answers: &'a mut Answers,
    side: &'a WorkerSide,
}

impl Output for SideOutput<'_> {
    fn reply(&mut self, caller: Caller, status: Status, body: &[u8]) {
        self.answers.forget(Some(caller));
        if let Err(error) = self.side.complete(answer_of(caller), status.code(), body) {
            tracing::error!(%error, "an answer is too long");
            // The caller must not wait for ever; an empty answer fits.
            let _ = self.side.complete(answer_of(caller), Status::UNKNOWN.code(), &[]);
        }
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

    fn finished(&mut self, finished: &Finished) {
        self.answers.finished.push(*finished);
    }

    fn may_keep(&mut self, _bytes: u64, more: u64) -> bool {
        self.answers.link.ask(&Ask::Tables { more }) == Ok(Reply::Done)
    }
}

fn answer_of(caller: Caller) -> AnswerTo {
    // `Answers::expect` put 16 and 32 bits there.
    let slot = u16::try_from(caller.0 >> 32).unwrap_or(u16::MAX);
    let call = u32::try_from(caller.0 & u64::from(u32::MAX)).unwrap_or(0);
    AnswerTo { slot, call }
}
