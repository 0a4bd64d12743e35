//! What the segment's progress and notice words say, so that a client knows without a call.
//!
//! **Stream words.** Word [`stream_word`] belongs to a *slot* of streams (`StreamId::index`), not
//! to one stream: it holds how many of the slot's stream commands have ended. Each of these
//! commands counts one, in the order in which it was sent: `Copy`, `CopySync`, `Fill`, `Launch`,
//! `StreamWaitEvent`, `StreamWaitValue`, `StreamWriteValue`, `EventRecord`, `HostFunction`,
//! `GraphLaunch` (one, whatever its nodes) and `MemFreeAsync`. A command that is refused, or
//! dropped after a fault, counts too. The client counts what it sends in the same way and goes on
//! counting when the slot gets a new owner; a new owner's `StreamCreate` sets the word to the count
//! of all commands sent before it. So a stream is idle exactly when its word equals the client's
//! count.
//!
//! **Event words.** Word [`event_word`] belongs to a slot of events (`EventId::index`): the highest
//! record that has completed. The client numbers a slot's records from 1 and goes on when the slot
//! gets a new owner. `GraphLaunch` records each event of its event-record nodes once, in node
//! order; the client counts those too.
//!
//! **Notice words.** [`NOTICE_FAULT`] holds the code of the session's sticky [`crate::Status`], 0
//! while there is none. [`NOTICE_REFUSED`] counts asynchronous commands that were refused: when it
//! moves, the next synchronous command brings the reason (see `weft-exec`, "errors").
//! [`NOTICE_PRINTED`] counts bytes that kernels have printed: when it moves, `TakeOutput` brings
//! them.

use crate::id::{EventId, StreamId};

/// Progress words of a segment.
pub const WORDS: u32 = 4096;
/// How many of them belong to streams. Streams of higher slots are asked with `StreamQuery`.
pub const STREAM_WORDS: u32 = 1024;
/// How many of them belong to events. Events of higher slots are asked with `EventQuery`.
pub const EVENT_WORDS: u32 = WORDS - STREAM_WORDS;

/// Notice word with the code of the sticky status, 0 while there is none.
pub const NOTICE_FAULT: u32 = 0;
/// Notice word that counts refused asynchronous commands.
pub const NOTICE_REFUSED: u32 = 1;
/// Notice word that counts bytes printed by kernels.
pub const NOTICE_PRINTED: u32 = 2;

/// The progress word of a stream's slot.
#[must_use]
pub fn stream_word(stream: StreamId) -> Option<u32> {
    (stream.index < STREAM_WORDS).then_some(stream.index)
}

/// The progress word of an event's slot.
#[must_use]
pub fn event_word(event: EventId) -> Option<u32> {
    (event.index < EVENT_WORDS).then(|| STREAM_WORDS + event.index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_and_events_share_no_word() {
        let stream = |index| stream_word(StreamId { index, generation: 1 });
        let event = |index| event_word(EventId { index, generation: 1 });
        assert_eq!(stream(STREAM_WORDS - 1), Some(STREAM_WORDS - 1));
        assert_eq!(stream(STREAM_WORDS), None);
        assert_eq!(event(0), Some(STREAM_WORDS));
        assert_eq!(event(EVENT_WORDS - 1), Some(WORDS - 1));
        assert_eq!(event(EVENT_WORDS), None);
    }
}
