//! Finds what a worker has published and sends it, in an order in which its client may see it.

use std::time::Duration;

use weft_ring::{MAX_ANSWER, NOTICE_WORDS, PROGRESS_WORDS, SPIN};
use weft_wire::progress::STREAM_WORDS;

use super::ledger::Due;
use super::session::Session;
use crate::frame::{Frame, PIECE};
use crate::link::HEARTBEAT;
use crate::lock;
use crate::outbox::Closed;
use crate::pinned::{Rows, Window};

/// Frames that are handed over at once, in bytes.
const BATCH: usize = 128 << 10;

/// What is compared of an allocation at once, in bytes.
const GRAIN: usize = 64;

/// A client that was told of the end hangs up within this time.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// The direction from the worker.
pub(super) struct Collector<'a> {
    session: &'a Session,
    window: Window,
    /// The last answer is on its way and nothing else is awaited, so no news is soon to come.
    is_idle: bool,
    /// Frames that are not handed over yet.
    out: Vec<u8>,
    /// Scratch space.
    piece: Vec<u8>,
    progress: Vec<u64>,
    notices: [u64; NOTICE_WORDS],
}

impl<'a> Collector<'a> {
    pub(super) fn new(session: &'a Session) -> Self {
        Self {
            session,
            window: Window::new(session.pinned_base, session.pinned.len() as u64),
            is_idle: false,
            out: Vec::new(),
            piece: Vec::new(),
            progress: vec![0; PROGRESS_WORDS],
            notices: [0; NOTICE_WORDS],
        }
    }

    /// Sends until the session is over.
    pub(super) fn run(mut self) {
        let session = self.session;
        loop {
            let spin = if self.is_idle { Duration::ZERO } else { SPIN };
            let found = session.out.wait(spin, HEARTBEAT, || {
                if session.link.is_over() {
                    return Some(Err(Closed));
                }
                match self.collect() {
                    Ok(false) => None,
                    Ok(true) => Some(Ok(())),
                    Err(closed) => Some(Err(closed)),
                }
            });
            let handed = match found {
                Some(Ok(())) => self.hand_over(),
                Some(Err(closed)) => Err(closed),
                None => {
                    session.link.beat();
                    Ok(())
                }
            };
            if handed.is_err() {
                return;
            }
            if let Some(loss) = session.loss() {
                Frame::Lost(loss as u32).encode(&mut self.out);
                if self.hand_over().is_ok() {
                    session.link.drain(LAST_WORDS);
                }
                return session.end();
            }
        }
    }

    fn hand_over(&mut self) -> Result<(), Closed> {
        if !self.out.is_empty() {
            self.session.link.push(&self.out)?;
            self.out.clear();
            self.session.link.flush();
        }
        Ok(())
    }

    /// Looks at everything once; whether there was any news.
    ///
    /// A client that sees an answer, a word or a release may rely on all that the worker did before
    /// it. So answers are looked at first and sent last, and words are second in both.
    fn collect(&mut self) -> Result<bool, Closed> {
        let session = self.session;
        let mut ledger = lock(&session.ledger);
        let mut due = ledger.answered(&session.out);
        let words = self.changed(ledger.streams, ledger.events);
        let seen = &self.progress;
        let progress = |word: u32| {
            usize::try_from(word).ok().and_then(|word| seen.get(word)).copied().unwrap_or(0)
        };
        ledger.add_ended(&mut due, &session.out, progress);
        let is_owed = ledger.is_owed();
        drop(ledger);
        let notices = self.changed_notices();
        if session.out.loss().is_some() && words.is_empty() && due.is_empty() {
            return Ok(true);
        }
        if words.is_empty() && due.is_empty() && notices.is_empty() {
            return Ok(false);
        }
        self.is_idle = !due.answers.is_empty() && !is_owed;
        self.send_blocks(&due)?;
        self.send_written(&due)?;
        for (word, value) in notices {
            Frame::Notice { word, value }.encode(&mut self.out);
        }
        for (word, value) in words {
            Frame::Progress { word, value }.encode(&mut self.out);
        }
        let mut bytes = [0; MAX_ANSWER];
        for to in due.answers {
            if let Some(answer) = session.out.answer(to, &mut bytes) {
                let bytes = bytes.get(..answer.len).unwrap_or_default();
                Frame::Answer { to, status: answer.status, bytes }.encode(&mut self.out);
            }
        }
        Ok(true)
    }

    /// Progress words with a new value. Events are looked at before the streams that they are in:
    /// what an event stands behind is then seen to have ended, and its bytes are sent first.
    fn changed(&mut self, streams: u32, events: u32) -> Vec<(u32, u64)> {
        let mut changed = Vec::new();
        for word in (STREAM_WORDS..events).chain(0..streams) {
            let Ok(index) = usize::try_from(word) else { continue };
            let now = self.session.out.progress(index);
            if let (Some(now), Some(last)) = (now, self.progress.get_mut(index))
                && now != *last
            {
                *last = now;
                changed.push((word, now));
            }
        }
        changed
    }

    fn changed_notices(&mut self) -> Vec<(u32, u64)> {
        let mut changed = Vec::new();
        for (index, last) in self.notices.iter_mut().enumerate() {
            if let Some(now) = self.session.out.notice(index)
                && now != *last
            {
                *last = now;
                changed.push((u32::try_from(index).unwrap_or(u32::MAX), now));
            }
        }
        changed
    }

    /// Blocks that the worker has released, with what it wrote there but for the zeros at the end.
    fn send_blocks(&mut self, due: &Due) -> Result<(), Closed> {
        for (block, output) in &due.released {
            if let Some((offset, bytes)) = output {
                self.send_block(*offset, *bytes)?;
            }
            Frame::Released(*block).encode(&mut self.out);
        }
        Ok(())
    }

    fn send_block(&mut self, offset: u64, bytes: u64) -> Result<(), Closed> {
        // It was looked at when the command came.
        let Ok(span) = self.session.out.span(offset, bytes) else { return Ok(()) };
        let mut at = 0;
        while at < span.len() {
            let length = PIECE.min(span.len() - at);
            self.piece.resize(length, 0);
            if span.read_at(at, &mut self.piece).is_err() {
                return Ok(());
            }
            let offset = offset + at as u64;
            Frame::Block { offset, bytes: &self.piece }.encode(&mut self.out);
            at += length;
            self.hand_over_batch()?;
        }
        Ok(())
    }

    fn hand_over_batch(&mut self) -> Result<(), Closed> {
        if self.out.len() >= BATCH { self.hand_over() } else { Ok(()) }
    }

    /// What commands have written to the window.
    fn send_written(&mut self, due: &Due) -> Result<(), Closed> {
        for writing in &due.written {
            for rows in &writing.rows {
                for (address, bytes) in rows.runs() {
                    self.send_window(address, bytes)?;
                }
            }
            for rows in &writing.given {
                self.send_changed(rows)?;
            }
            Frame::Written(writing.number).encode(&mut self.out);
        }
        Ok(())
    }

    fn send_window(&mut self, address: u64, bytes: u64) -> Result<(), Closed> {
        let (mut at, whole) = (0, Rows::linear(address, bytes));
        let Some(span) = self.session.span(&self.window, &whole) else { return Ok(()) };
        while at < span.len() {
            let length = PIECE.min(span.len() - at);
            self.piece.resize(length, 0);
            if span.read_at(at, &mut self.piece).is_err() {
                return Ok(());
            }
            let address = address + at as u64;
            Frame::Pinned { address, bytes: &self.piece }.encode(&mut self.out);
            at += length;
            self.hand_over_batch()?;
        }
        Ok(())
    }

    /// What a kernel has changed of an allocation that it was given; all of it if nobody knows.
    fn send_changed(&mut self, rows: &Rows) -> Result<(), Closed> {
        let session = self.session;
        let Some(span) = session.span(&self.window, rows) else { return Ok(()) };
        let now = span.to_vec();
        let changed = {
            let mut ledger = lock(&session.ledger);
            let changed = ledger.shadow(rows).map(|shadow| {
                let changed = runs(&shadow.bytes, &now);
                shadow.bytes.clone_from(&now);
                changed
            });
            ledger.give_up(rows);
            changed
        };
        for (start, end) in changed.unwrap_or_else(|| vec![(0, now.len())]) {
            for at in (start..end).step_by(PIECE) {
                let bytes = now.get(at..end.min(at + PIECE)).unwrap_or_default();
                Frame::Pinned { address: rows.address + at as u64, bytes }.encode(&mut self.out);
                self.hand_over_batch()?;
            }
        }
        Ok(())
    }
}

/// Where two texts of one length differ: starts and ends.
fn runs(before: &[u8], now: &[u8]) -> Vec<(usize, usize)> {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for (i, (old, new)) in before.chunks(GRAIN).zip(now.chunks(GRAIN)).enumerate() {
        if old == new {
            continue;
        }
        // A byte that stayed is its client's: it may have changed there meanwhile.
        for (j, _) in old.iter().zip(new).enumerate().filter(|(_, (old, new))| old != new) {
            let at = i * GRAIN + j;
            match runs.last_mut() {
                Some((_, end)) if *end == at => *end += 1,
                _ => runs.push((at, at + 1)),
            }
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_changed_is_sent_back() {
        let before = vec![1; 200];
        let mut now = before.clone();
        assert_eq!(runs(&before, &now), []);
        now[0] = 2;
        now[63..66].fill(3);
        now[199] = 4;
        assert_eq!(runs(&before, &now), [(0, 1), (63, 66), (199, 200)]);
    }
}
