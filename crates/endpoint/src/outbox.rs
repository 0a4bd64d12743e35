//! Frames on their way: kept until the peer has handled them, so that a new connection goes on
//! where the last one ended. Bounded, and who adds to a full one waits: that is the flow control.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::frame::{Front, front};

/// Bytes of frames that are not acknowledged.
pub const WINDOW: usize = 4 << 20;

/// Bytes of frames that are sent at once, about.
const BATCH: usize = 128 << 10;

/// The session takes nothing more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the session is over")]
pub struct Closed;

/// The peer says that it has handled frames which it cannot have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the peer acknowledges frame {0}, which it was not sent or has acknowledged before")]
pub struct Impossible(pub u64);

/// The frames.
#[derive(Debug, Default)]
pub struct Outbox {
    state: Mutex<State>,
    room: Condvar,
}

#[derive(Debug, Default)]
struct State {
    bytes: VecDeque<u8>,
    /// Lengths of the frames in `bytes`.
    lengths: VecDeque<u32>,
    /// Frames acknowledged so far.
    acknowledged: u64,
    /// How many of `lengths` were sent on the present connection, and their bytes.
    sent: (usize, usize),
    /// Most that were ever sent: frames from the beginning.
    ever_sent: u64,
    closed: bool,
}

impl Outbox {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds whole frames, waiting while there is no room for them.
    ///
    /// # Errors
    /// [`Closed`].
    pub fn push(&self, frames: &[u8]) -> Result<(), Closed> {
        let mut state = self.state();
        while !state.closed && !state.bytes.is_empty() && state.bytes.len() + frames.len() > WINDOW
        {
            state = self.room.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.closed {
            return Err(Closed);
        }
        let mut rest = frames;
        while let Front::Whole(_, length) = front(rest) {
            state.lengths.push_back(u32::try_from(length).unwrap_or(u32::MAX));
            rest = rest.get(length..).unwrap_or_default();
        }
        debug_assert!(rest.is_empty(), "only whole frames are added");
        state.bytes.extend(frames);
        Ok(())
    }

    /// Whether so many bytes could be added without waiting.
    #[must_use]
    pub fn has_room(&self, bytes: usize) -> bool {
        let state = self.state();
        state.bytes.is_empty() || state.bytes.len() + bytes <= WINDOW
    }

    /// Whether something was not sent yet.
    #[must_use]
    pub fn has_unsent(&self) -> bool {
        let state = self.state();
        state.sent.0 < state.lengths.len()
    }

    /// Whether everything was acknowledged.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.state().lengths.is_empty()
    }

    /// Appends unsent frames to `batch` and counts them as sent; whether there were any.
    pub fn take_unsent(&self, batch: &mut Vec<u8>) -> bool {
        let mut state = self.state();
        let (frames, bytes) = state.sent;
        let mut end = (frames, bytes);
        while end.1 - bytes < BATCH
            && let Some(length) = state.lengths.get(end.0)
        {
            end = (end.0 + 1, end.1 + usize::try_from(*length).unwrap_or(0));
        }
        let (front, back) = state.bytes.as_slices();
        let at = front.len();
        batch.extend_from_slice(front.get(bytes.min(at)..end.1.min(at)).unwrap_or_default());
        let behind = bytes.saturating_sub(at)..end.1.saturating_sub(at);
        batch.extend_from_slice(back.get(behind).unwrap_or_default());
        state.sent = end;
        let sent = state.acknowledged + end.0 as u64;
        state.ever_sent = state.ever_sent.max(sent);
        end.0 > frames
    }

    /// The peer has handled `count` frames from the beginning on.
    ///
    /// # Errors
    /// [`Impossible`].
    pub fn acknowledge(&self, count: u64) -> Result<(), Impossible> {
        let mut state = self.state();
        if count > state.ever_sent || count < state.acknowledged {
            return Err(Impossible(count));
        }
        while state.acknowledged < count
            && let Some(length) = state.lengths.pop_front()
        {
            let length = usize::try_from(length).unwrap_or(0);
            drop(state.bytes.drain(..length));
            state.acknowledged += 1;
            // What an earlier connection sent may not have been sent on this one.
            state.sent = match state.sent {
                (0, _) => (0, 0),
                (frames, bytes) => (frames - 1, bytes - length),
            };
        }
        drop(state);
        self.room.notify_all();
        Ok(())
    }

    /// A new connection begins: the peer has handled `count` frames, and the rest is sent again.
    ///
    /// # Errors
    /// [`Impossible`].
    pub fn rewind(&self, count: u64) -> Result<(), Impossible> {
        self.acknowledge(count)?;
        self.state().sent = (0, 0);
        Ok(())
    }

    /// Takes nothing more, and ends all waiting.
    pub fn close(&self) {
        self.state().closed = true;
        self.room.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;

    use proptest::prelude::*;

    use super::*;
    use crate::frame::Frame;

    fn frame(number: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        let data = vec![0; usize::try_from(number % 90).unwrap()];
        Frame::Block { offset: number, bytes: &data }.encode(&mut bytes);
        bytes
    }

    fn numbers(mut stream: &[u8]) -> Vec<u64> {
        let mut numbers = Vec::new();
        while let Front::Whole(frame, length) = front(stream) {
            let Some(Frame::Block { offset, .. }) = Frame::decode(frame) else { panic!("a block") };
            numbers.push(offset);
            stream = &stream[length..];
        }
        numbers
    }

    proptest! {
        /// However often the connection is cut, and whatever was on its way, the peer gets every
        /// frame once and in order.
        #[test]
        fn cuts_lose_and_repeat_nothing(steps in prop::collection::vec(0_u8..5, 1..200)) {
            let outbox = Outbox::default();
            let (mut pushed, mut handled) = (0_u64, Vec::new());
            let mut wire = Vec::new();
            for step in steps {
                match step {
                    0 | 1 => {
                        outbox.push(&frame(pushed)).unwrap();
                        pushed += 1;
                    }
                    2 => {
                        outbox.take_unsent(&mut wire);
                    }
                    // The peer handles some of what is on its way.
                    3 => {
                        let half = numbers(&wire).len().div_ceil(2);
                        for _ in 0..half {
                            let Front::Whole(_, length) = front(&wire) else { break };
                            handled.extend(numbers(&wire[..length]));
                            wire.drain(..length);
                        }
                        if pushed % 2 == 0 {
                            outbox.acknowledge(handled.len() as u64).unwrap();
                        }
                    }
                    _ => {
                        wire.clear();
                        outbox.rewind(handled.len() as u64).unwrap();
                    }
                }
            }
            wire.clear();
            outbox.rewind(handled.len() as u64).unwrap();
            while outbox.take_unsent(&mut wire) {}
            handled.extend(numbers(&wire));
            prop_assert_eq!(handled, (0..pushed).collect::<Vec<_>>());
        }
    }

    #[test]
    fn who_lies_about_what_it_handled_is_noticed() {
        let outbox = Outbox::default();
        outbox.push(&frame(0)).unwrap();
        outbox.push(&frame(1)).unwrap();
        assert_eq!(outbox.acknowledge(1), Err(Impossible(1)), "nothing was sent");
        outbox.take_unsent(&mut Vec::new());
        outbox.acknowledge(1).unwrap();
        assert_eq!(outbox.rewind(0), Err(Impossible(0)), "it is not kept any more");
        assert_eq!(outbox.rewind(3), Err(Impossible(3)));
        outbox.rewind(2).unwrap();
        assert!(outbox.is_empty());
    }

    #[test]
    fn a_full_one_waits_for_the_peer_or_for_the_end() {
        let outbox = Arc::new(Outbox::default());
        let mut large = Vec::new();
        Frame::Block { offset: 0, bytes: &[0; crate::frame::PIECE] }.encode(&mut large);
        let count = WINDOW / large.len();
        (0..count).for_each(|_| outbox.push(&large).unwrap());
        assert!(!outbox.has_room(large.len()));
        let waiting = Arc::clone(&outbox);
        let pushing = thread::spawn(move || (waiting.push(&large), waiting.push(&large)));
        while outbox.take_unsent(&mut Vec::new()) {}
        outbox.acknowledge(1).unwrap();
        // The second one of the thread has no room, and ends.
        while outbox.has_room(large_len()) {
            thread::yield_now();
        }
        outbox.close();
        assert_eq!(pushing.join().unwrap().1, Err(Closed));
    }

    fn large_len() -> usize {
        crate::frame::PIECE + 13
    }
}
