//! Frames on their way: kept until the peer has handled them, so that a new connection goes on
//! where the last one ended. Bounded, and who adds to a full one waits: that is the flow control.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::frame::{Front, front};

/// Bytes of frames that are not acknowledged.
pub const WINDOW: usize = 4 << 20;

/// Frames are handed over when they are so many, in bytes, or when no more are to come.
pub const BATCH: usize = 128 << 10;

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

/// Frames that are sent at once.
#[derive(Debug)]
struct Chunk {
    bytes: Arc<Vec<u8>>,
    /// Where the first frame begins that is not acknowledged.
    start: usize,
    /// Frames that are not acknowledged.
    frames: u64,
}

/// Frames to send; nobody else sends them on this connection.
#[derive(Debug)]
pub struct Unsent {
    bytes: Arc<Vec<u8>>,
    start: usize,
}

impl Unsent {
    /// The frames.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(self.start..).unwrap_or_default()
    }
}

#[derive(Debug, Default)]
struct State {
    chunks: VecDeque<Chunk>,
    /// Of all that are not acknowledged.
    bytes: usize,
    /// Frames acknowledged so far.
    acknowledged: u64,
    /// How many of `chunks` were sent on the present connection, and their frames.
    sent: (usize, u64),
    /// Most that were ever sent: frames from the beginning.
    ever_sent: u64,
    /// Emptied ones of full size.
    spare: Vec<Vec<u8>>,
    closed: bool,
}

impl State {
    fn has_room(&self, bytes: usize) -> bool {
        self.bytes == 0 || self.bytes + bytes <= WINDOW
    }

    /// Takes the bytes, leaving an empty vector. Full ones are not copied; others join those that
    /// wait, so that they are sent at once.
    fn add(&mut self, frames: &mut Vec<u8>) {
        let count = count(frames);
        self.bytes += frames.len();
        let waits = self.chunks.len() > self.sent.0;
        let last = self.chunks.back_mut().filter(|_| waits);
        if let Some(last) = last
            && let Some(bytes) = Arc::get_mut(&mut last.bytes)
            && bytes.len() + frames.len() <= BATCH
        {
            bytes.extend_from_slice(frames);
            last.frames += count;
            frames.clear();
            return;
        }
        let bytes = if frames.len() >= BATCH / 2 {
            std::mem::replace(frames, self.spare.pop().unwrap_or_default())
        } else {
            // Not with all the room that is behind a few bytes.
            let bytes = frames.as_slice().to_vec();
            frames.clear();
            bytes
        };
        self.chunks.push_back(Chunk { bytes: Arc::new(bytes), start: 0, frames: count });
    }

    /// The first frame that was not acknowledged is; whether there was one.
    fn acknowledge_one(&mut self) -> bool {
        let Some(first) = self.chunks.front_mut() else { return false };
        let Front::Whole(_, length) = front(first.bytes.get(first.start..).unwrap_or_default())
        else {
            return false;
        };
        first.start += length;
        first.frames -= 1;
        let is_over = first.frames == 0;
        self.bytes -= length;
        self.acknowledged += 1;
        // What an earlier connection sent may not have been sent on this one.
        if self.sent.0 > 0 {
            self.sent.1 -= 1;
            self.sent.0 -= usize::from(is_over);
        }
        if is_over && let Some(over) = self.chunks.pop_front() {
            self.keep(over.bytes);
        }
        true
    }

    fn keep(&mut self, emptied: Arc<Vec<u8>>) {
        if let Some(mut bytes) = Arc::into_inner(emptied)
            && bytes.capacity() >= BATCH
            && self.spare.len() < WINDOW / BATCH
        {
            bytes.clear();
            self.spare.push(bytes);
        }
    }
}

/// How many frames that is.
fn count(frames: &[u8]) -> u64 {
    let (mut rest, mut count) = (frames, 0);
    while let Front::Whole(_, length) = front(rest) {
        count += 1;
        rest = rest.get(length..).unwrap_or_default();
    }
    debug_assert!(rest.is_empty(), "only whole frames are added");
    count
}

impl Outbox {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds whole frames, waiting while there is no room for them, and leaves `frames` empty.
    ///
    /// # Errors
    /// [`Closed`].
    pub fn push(&self, frames: &mut Vec<u8>) -> Result<(), Closed> {
        self.push_while(frames, Duration::MAX, || true)
    }

    /// The same for as long as it is worth while, which is asked every so often.
    ///
    /// # Errors
    /// [`Closed`].
    pub fn push_while(
        &self,
        frames: &mut Vec<u8>,
        every: Duration,
        is_worth_while: impl Fn() -> bool,
    ) -> Result<(), Closed> {
        let mut state = self.state();
        while !state.closed && !state.has_room(frames.len()) {
            let waited = self.room.wait_timeout(state, every);
            let waited = waited.unwrap_or_else(PoisonError::into_inner);
            state = waited.0;
            if waited.1.timed_out() {
                // Who is asked may look at what was acknowledged.
                drop(state);
                if !is_worth_while() {
                    return Err(Closed);
                }
                state = self.state();
            }
        }
        if state.closed {
            return Err(Closed);
        }
        if !frames.is_empty() {
            state.add(frames);
        }
        Ok(())
    }

    /// The same without waiting, for the one that reads: only what it reads makes room. It asks
    /// before it collects anything, so this is a little more than there is room for at most.
    ///
    /// # Errors
    /// [`Closed`].
    pub fn push_without_waiting(&self, frames: &mut Vec<u8>) -> Result<(), Closed> {
        let mut state = self.state();
        if state.closed {
            return Err(Closed);
        }
        if !frames.is_empty() {
            state.add(frames);
        }
        Ok(())
    }

    /// Whether so many bytes could be added without waiting.
    #[must_use]
    pub fn has_room(&self, bytes: usize) -> bool {
        self.state().has_room(bytes)
    }

    /// Whether something was not sent yet.
    #[must_use]
    pub fn has_unsent(&self) -> bool {
        let state = self.state();
        state.sent.0 < state.chunks.len()
    }

    /// Whether everything was acknowledged.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.state().chunks.is_empty()
    }

    /// How many frames were acknowledged from the beginning on.
    #[must_use]
    pub fn acknowledged(&self) -> u64 {
        self.state().acknowledged
    }

    /// Frames that were not sent, which are counted as sent; `None` when there are none.
    #[must_use]
    pub fn take_unsent(&self) -> Option<Unsent> {
        let mut state = self.state();
        let (chunks, frames) = state.sent;
        let next = state.chunks.get(chunks)?;
        let unsent = Unsent { bytes: Arc::clone(&next.bytes), start: next.start };
        state.sent = (chunks + 1, frames + next.frames);
        state.ever_sent = state.ever_sent.max(state.acknowledged + state.sent.1);
        Some(unsent)
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
        while state.acknowledged < count && state.acknowledge_one() {}
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
                        // Some fill a chunk of their own, others join.
                        let mut frames = frame(pushed);
                        if pushed % 7 == 0 {
                            (0..800).for_each(|more| frames.extend(frame(pushed + more + 1)));
                            pushed += 800;
                        }
                        outbox.push(&mut frames).unwrap();
                        pushed += 1;
                    }
                    2 => {
                        wire.extend(outbox.take_unsent().iter().flat_map(Unsent::bytes));
                    }
                    // The peer handles some of what is on its way.
                    3 => {
                        let half = numbers(&wire).len().div_ceil(2);
                        let mut end = 0;
                        for _ in 0..half {
                            let Front::Whole(_, length) = front(&wire[end..]) else { break };
                            end += length;
                        }
                        handled.extend(numbers(&wire[..end]));
                        wire.drain(..end);
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
            while let Some(unsent) = outbox.take_unsent() {
                wire.extend(unsent.bytes());
            }
            handled.extend(numbers(&wire));
            prop_assert_eq!(handled, (0..pushed).collect::<Vec<_>>());
        }
    }

    #[test]
    fn who_lies_about_what_it_handled_is_noticed() {
        let outbox = Outbox::default();
        outbox.push(&mut frame(0)).unwrap();
        outbox.push(&mut frame(1)).unwrap();
        assert_eq!(outbox.acknowledge(1), Err(Impossible(1)), "nothing was sent");
        assert!(outbox.take_unsent().is_some());
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
        (0..count).for_each(|_| outbox.push(&mut large.clone()).unwrap());
        assert!(!outbox.has_room(large.len()));
        // Who reads is not kept waiting even then.
        outbox.push_without_waiting(&mut frame(1)).unwrap();
        let waiting = Arc::clone(&outbox);
        let pushing = thread::spawn(move || {
            (waiting.push(&mut large.clone()), waiting.push(&mut large.clone()))
        });
        while outbox.take_unsent().is_some() {}
        outbox.acknowledge(1).unwrap();
        // The second one of the thread has no room, and ends.
        while outbox.has_room(large_len()) {
            thread::yield_now();
        }
        outbox.close();
        assert_eq!(pushing.join().unwrap().1, Err(Closed));
    }

    #[test]
    fn who_is_waited_for_in_vain_is_given_up() {
        let outbox = Outbox::default();
        let mut large = Vec::new();
        Frame::Block { offset: 0, bytes: &[0; crate::frame::PIECE] }.encode(&mut large);
        let asked = std::cell::Cell::new(0);
        while outbox.has_room(large.len()) {
            outbox.push(&mut large.clone()).unwrap();
        }
        let pushed = outbox.push_while(&mut large, Duration::from_millis(1), || {
            asked.set(asked.get() + 1);
            asked.get() < 3
        });
        assert_eq!((pushed, asked.get()), (Err(Closed), 3));
    }

    fn large_len() -> usize {
        crate::frame::PIECE + 13
    }
}
