//! Finds what a worker has published and sends it, in an order in which its client may see it.

use std::sync::Arc;
use std::time::Duration;

use weft_ring::lending::Lending;
use weft_ring::{MAX_ANSWER, NOTICE_WORDS, PROGRESS_WORDS, SPIN, SharedSpan, relay};
use weft_wire::progress::STREAM_WORDS;

use super::ledger::Due;
use super::session::Session;
use crate::frame::{Bulk, Frame, PIECE};
use crate::link::{HEARTBEAT, LookedBack};
use crate::lock;
use crate::outbox::{BATCH, Closed};
use crate::packing::Packer;
use crate::pinned::{Rows, Window};

/// What is compared of an allocation at once, in bytes.
const GRAIN: usize = 64;

/// The direction from the worker.
#[derive(Debug)]
pub(super) struct Collector {
    session: Arc<Session>,
    window: Window,
    /// The last answer is on its way and nothing else is awaited, so no news is soon to come; or
    /// the processors are wanted for bytes.
    is_idle: bool,
    /// Frames that are not handed over yet.
    out: Vec<u8>,
    packer: Packer,
    progress: Vec<u64>,
    notices: [u64; NOTICE_WORDS],
}

/// Collects until the session is over.
pub(super) fn run(session: &Session, collecting: &Lending<Collector>) {
    let mut collector = collecting.own();
    loop {
        let spin = if collector.is_idle { Duration::ZERO } else { SPIN };
        let found = session.out.wait(spin, HEARTBEAT, || {
            if session.link.is_over() {
                return Some(Err(Closed));
            }
            match collector.collect() {
                Ok(false) => collecting.is_wanted().then_some(Ok(())),
                Ok(true) => Some(Ok(())),
                Err(closed) => Some(Err(closed)),
            }
        });
        let handed = match found {
            Some(Ok(())) => collector.hand_over(),
            Some(Err(closed)) => Err(closed),
            None => {
                session.link.beat();
                Ok(())
            }
        };
        if handed.is_err() {
            // Its endpoint was waited for in vain, if it is not over already.
            return session.end();
        }
        if let Some(loss) = session.loss() {
            Frame::Lost(loss as u32).encode(&mut collector.out);
            if collector.hand_over().is_ok() {
                session.link.drain(session.limits.last_words);
            }
            return session.end();
        }
        collector = collecting.lend(collector);
    }
}

impl Collector {
    /// Of a session whose ends have agreed to compress, or not.
    pub(super) fn new(session: Arc<Session>, packs: bool) -> Self {
        let window = Window::new(session.pinned_base, session.pinned.len() as u64);
        let packer = Packer::new(packs);
        Self {
            session,
            window,
            is_idle: false,
            out: Vec::new(),
            packer,
            progress: vec![0; PROGRESS_WORDS],
            notices: [0; NOTICE_WORDS],
        }
    }

    /// For the thread that reads: sends what is there, if no bytes belong to it and there is room.
    pub(super) fn collect_light(&mut self) -> Result<LookedBack, Closed> {
        let session = Arc::clone(&self.session);
        let is_bulk = lock(&session.ledger).owes_bytes();
        if is_bulk || session.out.loss().is_some() || !session.link.is_free(BATCH) {
            return Ok(LookedBack::NotNow);
        }
        if !self.collect()? {
            return Ok(LookedBack::Nothing);
        }
        session.link.pass_on(&mut self.out)?;
        Ok(LookedBack::Passed)
    }

    fn hand_over(&mut self) -> Result<(), Closed> {
        if !self.out.is_empty() {
            let session = &self.session;
            session.link.push_while(&mut self.out, || session.is_worth_while())?;
            session.link.flush();
        }
        Ok(())
    }

    /// Looks at everything once; whether there was any news.
    ///
    /// A client that sees an answer, a word or a release may rely on all that the worker did before
    /// it. So answers are looked at first and sent last, and words are second in both.
    fn collect(&mut self) -> Result<bool, Closed> {
        let session = Arc::clone(&self.session);
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
        // Who moves many bytes wants the processor that polling takes.
        let is_bulk = !due.released.is_empty() && !relay::leaves_processors();
        self.is_idle = is_bulk || (!due.answers.is_empty() && !is_owed);
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
            self.hand_over_batch()?;
        }
        Ok(())
    }

    fn send_block(&mut self, offset: u64, bytes: u64) -> Result<(), Closed> {
        // It was looked at when the command came.
        let Ok(span) = self.session.out.span(offset, bytes) else { return Ok(()) };
        self.send_span(&span, Bulk::Block(offset))
    }

    fn send_span(&mut self, span: &SharedSpan, bulk: Bulk) -> Result<(), Closed> {
        for at in (0..span.len()).step_by(PIECE) {
            let length = PIECE.min(span.len() - at);
            if bulk.encode(span, at, length, &mut self.packer, &mut self.out).is_err() {
                return Ok(());
            }
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
        let whole = Rows::linear(address, bytes);
        let Some(span) = self.session.span(&self.window, &whole) else { return Ok(()) };
        self.send_span(&span, Bulk::Pinned(address))
    }

    /// What a kernel has changed of an allocation that it was given; all of it if nobody knows.
    fn send_changed(&mut self, rows: &Rows) -> Result<(), Closed> {
        let session = Arc::clone(&self.session);
        let Some(span) = session.span(&self.window, rows) else { return Ok(()) };
        let mut known = lock(&session.ledger).take_shadow(rows);
        match &mut known {
            Some(before) => self.send_difference(rows.address, &span, before)?,
            None => self.send_span(&span, Bulk::Pinned(rows.address))?,
        }
        lock(&session.ledger).give_up(rows, known);
        Ok(())
    }

    /// What is other than before, which then says what is there now. A piece at a time: of what is
    /// in the gateway's memory meanwhile its client has the length to say.
    fn send_difference(
        &mut self,
        address: u64,
        span: &SharedSpan,
        before: &mut [u8],
    ) -> Result<(), Closed> {
        let mut now = [0; PIECE];
        for (number, before) in before.chunks_mut(PIECE).enumerate() {
            let (at, now) = (number * PIECE, &mut now[..before.len()]);
            if span.read_at(at, now).is_err() {
                return Ok(());
            }
            for (start, end) in runs(before, now) {
                let to = Bulk::Pinned(address + (at + start) as u64);
                to.encode_bytes(&now[start..end], &mut self.packer, &mut self.out);
                self.hand_over_batch()?;
            }
            before.copy_from_slice(now);
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
