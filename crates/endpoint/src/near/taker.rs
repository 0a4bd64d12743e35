//! Takes a program's commands and sends them, with the bytes that they bring along.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use weft_ring::lending::Lending;
use weft_ring::{AnswerTo, ArenaRef, Loss, SPIN, SharedSpan, WorkerArena, WorkerSide, relay};
use weft_wire::Command;
use weft_wire::command::Block;
use weft_wire::id::StreamId;

use super::session::{Session, Write};
use crate::frame::{Bulk, Frame, PIECE};
use crate::link::{HEARTBEAT, LookedBack};
use crate::lock;
use crate::outbox::BATCH;
use crate::packing::Packer;
use crate::pinned::{self, Counts, Rows, Touched, Until, Watched, Window};

/// How often words are looked at that a stream waits for and the program writes.
const WATCH: Duration = Duration::from_micros(200);

/// Why a session cannot go on.
#[derive(Debug)]
pub(super) struct Broken;

/// A command that reads the window and may not have ended.
#[derive(Debug)]
struct Read {
    /// Place among those that touch the window.
    order: u64,
    until: Until,
    touched: Touched,
}

/// A word that a stream waits for, as it was sent last.
#[derive(Debug)]
struct Watching {
    word: Watched,
    until: Until,
    sent: Vec<u8>,
}

/// The sending direction.
#[derive(Debug)]
pub(super) struct Taker {
    side: WorkerSide,
    forwarder: Forwarder,
    /// Taken, but not forwarded.
    kept: Option<(Option<AnswerTo>, Vec<u8>)>,
    /// The last command's answer is awaited, so the next one is not soon to come.
    is_awaited: bool,
    /// One of the last commands lent a block: the processors are wanted for its bytes.
    is_bulk: bool,
}

/// Takes commands until the session is over.
pub(super) fn run(session: &Session, taking: &Lending<Taker>) -> Loss {
    let mut taker = taking.own();
    while !session.link.is_over() && taker.take_all().is_ok() {
        taker.wait(|| taking.is_wanted());
        taker = taking.lend(taker);
    }
    Loss::Worker
}

impl Taker {
    pub(super) fn new(session: Arc<Session>, side: WorkerSide) -> Self {
        let forwarder = Forwarder::new(session);
        Self { side, forwarder, kept: None, is_awaited: false, is_bulk: false }
    }

    /// Returns when a command came, time has passed or something is over: all is looked at again.
    fn wait(&self, is_wanted: impl Fn() -> bool) {
        let forwarder = &self.forwarder;
        let limit = if forwarder.watching.is_empty() { HEARTBEAT } else { WATCH };
        let over = || (is_wanted() || forwarder.session.link.is_over()).then_some(());
        let spin = if self.is_awaited || self.is_bulk { Duration::ZERO } else { SPIN };
        let _ = self.side.wait(spin, Some(limit), over);
    }

    fn take_all(&mut self) -> Result<(), Broken> {
        let Self { side, forwarder, kept, is_awaited, is_bulk } = self;
        let arena = side.arena().clone();
        let mut lends = false;
        if let Some((answer, bytes)) = kept.take() {
            lends |= forwarder.forward(&arena, answer, &bytes)?;
        }
        while let Some(record) = side.take().map_err(|_| Broken)? {
            *is_awaited = record.answer.is_some();
            lends |= forwarder.forward(&arena, record.answer, record.bytes)?;
            if forwarder.out.len() >= BATCH {
                forwarder.hand_over()?;
            }
        }
        *is_bulk = lends && !relay::leaves_processors();
        forwarder.look_at_words()?;
        forwarder.hand_over()
    }

    /// For the thread that reads: passes on commands that bring nothing along and for which there
    /// is room. The last of those that came at once is followed by more, unless somebody awaits
    /// its answer; so they go together, when another look has found no more.
    pub(super) fn take_light(&mut self) -> Result<LookedBack, Broken> {
        let Self { side, forwarder, kept, is_awaited, is_bulk } = self;
        let is_busy = kept.is_some() || !forwarder.watching.is_empty();
        if !is_busy && forwarder.out.is_empty() && !side.has_command() {
            return Ok(LookedBack::Nothing);
        }
        if is_busy || !forwarder.session.link.is_free(BATCH) {
            return Ok(LookedBack::NotNow);
        }
        *is_bulk = false;
        let (had, arena) = (forwarder.out.len(), side.arena().clone());
        while let Some(record) = side.take().map_err(|_| Broken)? {
            *is_awaited = record.answer.is_some();
            let command = Command::decode(record.bytes).map_err(|_| Broken)?;
            if forwarder.out.len() >= BATCH || !forwarder.is_light(&command, record.answer) {
                *kept = Some((record.answer, record.bytes.to_vec()));
                return Ok(LookedBack::NotNow);
            }
            forwarder.forward(&arena, record.answer, record.bytes)?;
        }
        if forwarder.out.is_empty() || (forwarder.out.len() > had && !*is_awaited) {
            return Ok(LookedBack::Nothing);
        }
        let Forwarder { session, out, .. } = forwarder;
        session.link.pass_on(out).map_err(|_| Broken)?;
        Ok(LookedBack::Passed)
    }
}

/// Sends commands, with the bytes that they bring along.
#[derive(Debug)]
struct Forwarder {
    session: Arc<Session>,
    /// Frames that are not handed over yet.
    out: Vec<u8>,
    packer: Packer,
    window: Window,
    counts: Counts,
    /// Commands so far that touch the window, and that may write there.
    touching: u64,
    writing: u64,
    reads: Vec<Read>,
    watching: Vec<Watching>,
    /// The streams of host functions that have not returned.
    calls: BTreeMap<u64, StreamId>,
}

impl Forwarder {
    fn new(session: Arc<Session>) -> Self {
        let window = Window::new(session.pinned_base, session.pinned.len() as u64);
        let packer = Packer::new(session.packs);
        Self {
            session,
            out: Vec::new(),
            packer,
            window,
            counts: Counts::default(),
            touching: 0,
            writing: 0,
            reads: Vec::new(),
            watching: Vec::new(),
            calls: BTreeMap::new(),
        }
    }

    /// Whether a command surely brings no bytes along but its own.
    fn is_light(&self, command: &Command<'_>, answer: Option<AnswerTo>) -> bool {
        let is_launch = matches!(command, Command::Launch { .. });
        // They read the window, or have it read again.
        let may_bring =
            matches!(command, Command::CopySync { .. } | Command::HostFunctionDone { .. });
        let is_plain = match answer {
            Some(_) => !may_bring,
            None => is_launch && !self.window.has_allocations(),
        };
        is_plain && command.try_for_each_block(&mut |_| Err(())).is_ok()
    }

    fn push(&mut self) -> Result<(), Broken> {
        self.session.link.push(&mut self.out).map_err(|_| Broken)
    }

    fn hand_over(&mut self) -> Result<(), Broken> {
        if !self.out.is_empty() {
            self.push()?;
            self.session.link.flush();
        }
        Ok(())
    }

    /// Sends a command, and before it what it brings along; whether it lends a block.
    fn forward(
        &mut self,
        arena: &WorkerArena,
        answer: Option<AnswerTo>,
        bytes: &[u8],
    ) -> Result<bool, Broken> {
        let command = Command::decode(bytes).map_err(|_| Broken)?;
        let output = command.output_block().cloned();
        let mut lends = false;
        command.try_for_each_block(&mut |block| {
            lends = true;
            if output.as_ref() == Some(block) { Ok(()) } else { self.send_block(arena, block) }
        })?;
        let read = |block: &Block| Some(span_of(arena, block).ok()?.to_vec());
        let pending = pinned::pending(&mut self.window, &mut self.counts, &command, &read);
        let pending = pending.map_err(|why| {
            self.session.give_up(&why);
            Broken
        })?;
        if let Some((until, touched)) = pending {
            self.touch(until, touched)?;
        }
        if let Command::HostFunction { stream, call } = &command {
            self.calls.insert(*call, *stream);
        } else if let Command::HostFunctionDone { call } = &command {
            // It may have written what later commands read.
            let stream = self.calls.remove(call);
            self.send_reads_again(stream)?;
        }
        Frame::Command { answer, bytes }.encode(&mut self.out);
        Ok(lends)
    }

    /// Sends what a command reads of the window, and notes what it does there.
    fn touch(&mut self, until: Until, touched: Touched) -> Result<(), Broken> {
        self.forget_ended();
        self.touching += 1;
        let order = self.touching;
        self.send_touched(&touched, order, true)?;
        if let Some(word) = touched.watched {
            let sent = self.bytes_of(word).ok_or(Broken)?;
            Frame::Pinned { address: word.address, bytes: &sent }.encode(&mut self.out);
            self.watching.push(Watching { word, until, sent });
        }
        if touched.may_write() {
            self.writing += 1;
            let rows = touched.writes.iter().chain(&touched.given).copied().collect();
            lock(&self.session.writes).push(Write { number: self.writing, order, rows });
        }
        if !touched.reads.is_empty() || !touched.given.is_empty() {
            self.reads.push(Read { order, until, touched });
        }
        Ok(())
    }

    fn has_ended(&self, until: Until) -> bool {
        let word = usize::try_from(until.word).ok();
        let seen = word.and_then(|word| self.session.progress.get(word));
        seen.is_none_or(|seen| seen.load(Ordering::Acquire) >= until.value)
    }

    fn forget_ended(&mut self) {
        let ended: Vec<bool> = self.reads.iter().map(|read| self.has_ended(read.until)).collect();
        let mut marks = ended.iter();
        self.reads.retain(|_| !marks.next().copied().unwrap_or(false));
    }

    /// Sends what commands that have not ended will read. What kernels were given is only sent to
    /// those behind the host function in its own stream: others may be writing there.
    fn send_reads_again(&mut self, stream: Option<StreamId>) -> Result<(), Broken> {
        self.forget_ended();
        let reads: Vec<(u64, Until, Touched)> =
            self.reads.iter().map(|read| (read.order, read.until, read.touched.clone())).collect();
        for (order, until, touched) in reads {
            let same = stream.is_some_and(|stream| stream.index == until.word);
            self.send_touched(&touched, order, same)?;
        }
        Ok(())
    }

    /// Sends what a command reads, but for what an earlier one writes: there the gateway has the
    /// newest bytes.
    fn send_touched(&mut self, touched: &Touched, order: u64, given: bool) -> Result<(), Broken> {
        let earlier: Vec<Rows> = lock(&self.session.writes)
            .iter()
            .filter(|write| write.order < order)
            .flat_map(|write| write.rows.clone())
            .collect();
        let given = if given { touched.given.as_slice() } else { &[] };
        for rows in touched.reads.iter().chain(given) {
            if !earlier.iter().any(|write| write.overlaps(rows)) {
                self.send_rows(*rows)?;
            }
        }
        Ok(())
    }

    fn send_rows(&mut self, rows: Rows) -> Result<(), Broken> {
        for (address, bytes) in rows.runs() {
            let offset = self.window.offset(address, bytes).ok_or(Broken)?;
            let (offset, bytes) = (size(offset)?, size(bytes)?);
            let span = self.session.pinned.span(offset, bytes).map_err(|_| Broken)?;
            self.send_span(&span, Bulk::Pinned(address))?;
        }
        Ok(())
    }

    fn send_block(&mut self, arena: &WorkerArena, block: &Block) -> Result<(), Broken> {
        let span = span_of(arena, block)?;
        self.send_span(&span, Bulk::Block(block.offset))
    }

    fn send_span(&mut self, span: &SharedSpan, bulk: Bulk) -> Result<(), Broken> {
        for at in (0..span.len()).step_by(PIECE) {
            let length = PIECE.min(span.len() - at);
            let encoded = bulk.encode(span, at, length, &mut self.packer, &mut self.out);
            encoded.map_err(|_| Broken)?;
            if self.out.len() >= BATCH {
                self.hand_over()?;
            }
        }
        Ok(())
    }

    fn bytes_of(&self, word: Watched) -> Option<Vec<u8>> {
        let offset = usize::try_from(self.window.offset(word.address, word.bytes)?).ok()?;
        let span = self.session.pinned.span(offset, usize::try_from(word.bytes).ok()?).ok()?;
        Some(span.to_vec())
    }

    /// Sends words that streams wait for when the program has written them, and before them what it
    /// may have written beside.
    fn look_at_words(&mut self) -> Result<(), Broken> {
        let watching = std::mem::take(&mut self.watching);
        for mut one in watching {
            if self.has_ended(one.until) {
                continue;
            }
            let now = self.bytes_of(one.word).ok_or(Broken)?;
            if now != one.sent {
                self.send_reads_again(None)?;
                Frame::Pinned { address: one.word.address, bytes: &now }.encode(&mut self.out);
                one.sent = now;
            }
            self.watching.push(one);
        }
        Ok(())
    }
}

fn span_of(arena: &WorkerArena, block: &Block) -> Result<SharedSpan, Broken> {
    let named = ArenaRef { block: block.release, offset: block.offset, len: block.bytes };
    arena.span(&named).map_err(|_| Broken)
}

fn size(bytes: u64) -> Result<usize, Broken> {
    usize::try_from(bytes).map_err(|_| Broken)
}
