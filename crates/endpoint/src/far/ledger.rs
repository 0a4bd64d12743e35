//! What a session's worker owes its client: answers, blocks, and what commands write to the window.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use weft_ring::{ANSWER_SLOTS, ARENA_BLOCKS, AnswerTo, RelayOut, SharedSpan};
use weft_wire::Command;
use weft_wire::command::Block;
use weft_wire::progress::{STREAM_WORDS, event_word};

use crate::lock;
use crate::pinned::{Rows, Touched, Until};

/// Most bytes of the copies that tell what kernels have changed of a session's allocations.
const SHADOWS_MAX: usize = 256 << 20;

/// Most bytes of those of all sessions together.
const ALL_SHADOWS_MAX: usize = 1 << 30;

/// Most rows that commands in flight write, but for those of a single command.
const ROWS_MAX: usize = 1 << 18;

/// A block that the worker has.
#[derive(Debug, Clone, Copy)]
struct Lent {
    release: u32,
    /// Offset and bytes of what the worker writes there.
    output: Option<(u64, u64)>,
}

/// A command that writes, or may write, to the window.
#[derive(Debug)]
pub(super) struct Writing {
    /// Its number among those.
    pub(super) number: u64,
    until: Until,
    /// What it writes.
    pub(super) rows: Vec<Rows>,
    /// Allocations that a kernel may have written to.
    pub(super) given: Vec<Rows>,
}

impl Writing {
    fn count(&self) -> usize {
        self.rows.len() + self.given.len()
    }
}

/// How many bytes of copies the sessions of each vGPU have together.
#[derive(Debug, Default)]
pub(super) struct Shadowed(Mutex<BTreeMap<String, usize>>);

impl Shadowed {
    /// Whether a vGPU's sessions may have so many more. As many as they then have stay free:
    /// however many vGPUs take all they can, the next one has room.
    fn take(&self, vgpu: &str, bytes: usize) -> bool {
        let mut every = lock(&self.0);
        let all = every.values().sum::<usize>().saturating_add(bytes);
        let own = every.get(vgpu).map_or(bytes, |own| own.saturating_add(bytes));
        let has_room = own <= ALL_SHADOWS_MAX.saturating_sub(all);
        if has_room {
            every.insert(vgpu.to_owned(), own);
        }
        has_room
    }

    fn give_back(&self, vgpu: &str, bytes: usize) {
        let mut every = lock(&self.0);
        if let Some(own) = every.get_mut(vgpu) {
            *own = own.saturating_sub(bytes);
        }
        every.retain(|_, own| *own > 0);
    }
}

/// An allocation that kernels in flight were given, as its client knows it.
#[derive(Debug)]
struct Shadow {
    /// Nothing where there was no room when the first of them got it: what they have changed since
    /// nobody knows, so it stays so until all of them have ended.
    bytes: Option<Vec<u8>>,
    /// What it counts for, also while whoever compares has the bytes.
    kept: usize,
    users: usize,
}

/// The debts.
#[derive(Debug)]
pub(super) struct Ledger {
    /// The call that is awaited in each slot.
    calls: Vec<Option<u32>>,
    awaited: usize,
    lent: Vec<Lent>,
    /// By release word. Who lends one twice would have the ledger grow without end.
    is_lent: Vec<bool>,
    writing: Vec<Writing>,
    /// Of all that is written.
    rows: usize,
    writes: u64,
    shadows: BTreeMap<Rows, Shadow>,
    /// How many bytes those have.
    kept: usize,
    /// Its vGPU, and what all have.
    vgpu: String,
    shadowed: Arc<Shadowed>,
    /// Progress words below these may change: streams', and events' behind them.
    pub(super) streams: u32,
    pub(super) events: u32,
}

/// What came due at once.
#[derive(Debug, Default)]
pub(super) struct Due {
    /// Calls with an answer.
    pub(super) answers: Vec<AnswerTo>,
    /// Released blocks: word, and offset and bytes of what was written there.
    pub(super) released: Vec<(u32, Option<(u64, u64)>)>,
    /// Commands that have written.
    pub(super) written: Vec<Writing>,
}

impl Due {
    /// Whether there is nothing.
    pub(super) fn is_empty(&self) -> bool {
        self.answers.is_empty() && self.released.is_empty() && self.written.is_empty()
    }
}

impl Ledger {
    /// One without debts, of a vGPU's session.
    pub(super) fn new(vgpu: String, shadowed: Arc<Shadowed>) -> Self {
        Self {
            calls: vec![None; usize::from(ANSWER_SLOTS)],
            awaited: 0,
            lent: Vec::new(),
            is_lent: vec![false; ARENA_BLOCKS as usize],
            writing: Vec::new(),
            rows: 0,
            writes: 0,
            shadows: BTreeMap::new(),
            kept: 0,
            vgpu,
            shadowed,
            streams: 1,
            events: STREAM_WORDS,
        }
    }

    /// Notes a command that is about to be submitted; whether each block that it lends is one, and
    /// the client's to lend: a client gets a block back before it lends it again.
    #[must_use]
    pub(super) fn note(
        &mut self,
        command: &Command<'_>,
        answer: Option<AnswerTo>,
        pending: Option<(Until, Touched)>,
        read: impl Fn(&Rows) -> Option<SharedSpan>,
    ) -> bool {
        self.note_words(command);
        if let Some(AnswerTo { slot, call }) = answer
            && let Some(place) = self.calls.get_mut(usize::from(slot))
        {
            self.awaited += usize::from(place.is_none());
            *place = Some(call);
        }
        let output = command.output_block();
        let lent = command.try_for_each_block(&mut |block: &Block| {
            let place = usize::try_from(block.release).ok();
            let is_lent = place.and_then(|place| self.is_lent.get_mut(place)).ok_or(())?;
            if std::mem::replace(is_lent, true) {
                return Err(());
            }
            let output = (output == Some(block)).then_some((block.offset, block.bytes));
            self.lent.push(Lent { release: block.release, output });
            Ok(())
        });
        if lent.is_err() {
            return false;
        }
        if let Some((until, touched)) = pending.filter(|(_, touched)| touched.may_write()) {
            self.writes += 1;
            for rows in &touched.given {
                self.keep(*rows, &read);
            }
            let Touched { writes, given, .. } = touched;
            let writing = Writing { number: self.writes, until, rows: writes, given };
            self.rows += writing.count();
            self.writing.push(writing);
        }
        true
    }

    /// Whether a command that writes so many rows may be noted now: else others have to end first.
    pub(super) fn has_room(&self, rows: usize) -> bool {
        self.rows == 0 || self.rows.saturating_add(rows) <= ROWS_MAX
    }

    fn note_words(&mut self, command: &Command<'_>) {
        if let Command::StreamCreate { stream, .. } = command {
            self.streams = self.streams.max(stream.index.saturating_add(1)).min(STREAM_WORDS);
        } else if let Command::EventCreate { event, .. } = command
            && let Some(word) = event_word(*event)
        {
            self.events = self.events.max(word.saturating_add(1));
        }
    }

    /// Keeps a copy of an allocation that a kernel gets, if there is room; without one all of it is
    /// sent back.
    fn keep(&mut self, rows: Rows, read: &impl Fn(&Rows) -> Option<SharedSpan>) {
        if let Some(shadow) = self.shadows.get_mut(&rows) {
            shadow.users += 1;
            return;
        }
        let Some(span) = read(&rows) else { return };
        let is_within = self.kept.saturating_add(span.len()) <= SHADOWS_MAX;
        let has_room = is_within && self.shadowed.take(&self.vgpu, span.len());
        let bytes = has_room.then(|| span.to_vec());
        let kept = bytes.as_ref().map_or(0, Vec::len);
        self.kept += kept;
        self.shadows.insert(rows, Shadow { bytes, kept, users: 1 });
    }

    /// Takes the copy of an allocation that a kernel got and has ended, to be compared without
    /// keeping others from the debts; it is brought back by [`Self::give_up`].
    pub(super) fn take_shadow(&mut self, rows: &Rows) -> Option<Vec<u8>> {
        self.shadows.get_mut(rows)?.bytes.take()
    }

    /// A kernel that got an allocation has ended, which is as these bytes say now.
    pub(super) fn give_up(&mut self, rows: &Rows, bytes: Option<Vec<u8>>) {
        let Some(shadow) = self.shadows.get_mut(rows) else { return };
        shadow.bytes = bytes;
        shadow.users = shadow.users.saturating_sub(1);
        if shadow.users == 0 {
            let kept = shadow.kept;
            self.shadows.remove(rows);
            self.kept -= kept;
            self.shadowed.give_back(&self.vgpu, kept);
        }
    }

    /// Whether an answer or a block is still to come.
    pub(super) fn is_owed(&self) -> bool {
        self.awaited > 0 || !self.lent.is_empty() || !self.writing.is_empty()
    }

    /// Whether what is to come may have bytes with it.
    pub(super) fn owes_bytes(&self) -> bool {
        !self.lent.is_empty() || !self.writing.is_empty()
    }

    /// Calls that were answered. Looked at before everything else: what the worker published before
    /// an answer is then found too.
    pub(super) fn answered(&mut self, out: &RelayOut) -> Due {
        let mut due = Due::default();
        if self.awaited > 0 {
            for (slot, place) in (0..).zip(&mut self.calls) {
                let Some(call) = *place else { continue };
                let to = AnswerTo { slot, call };
                if out.is_answered(to) {
                    due.answers.push(to);
                    *place = None;
                    self.awaited -= 1;
                }
            }
        }
        due
    }

    /// Adds the commands that have ended, as the progress words say, and released blocks.
    pub(super) fn add_ended(
        &mut self,
        due: &mut Due,
        out: &RelayOut,
        progress: impl Fn(u32) -> u64,
    ) {
        let has_ended = |one: &mut Writing| progress(one.until.word) >= one.until.value;
        due.written = self.writing.extract_if(.., has_ended).collect();
        self.rows -= due.written.iter().map(Writing::count).sum::<usize>();
        let is_released = |one: &mut Lent| out.is_released(one.release);
        let released = self.lent.extract_if(.., is_released);
        due.released = released.map(|one| (one.release, one.output)).collect();
        for (release, _) in &due.released {
            self.is_lent[*release as usize] = false;
        }
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        self.shadowed.give_back(&self.vgpu, self.kept);
    }
}

#[cfg(test)]
mod invariants;

#[cfg(test)]
mod tests {
    use weft_ring::SharedMemory;
    use weft_wire::id::StreamId;

    use super::*;

    #[test]
    fn who_has_many_rows_in_flight_waits_and_one_command_never_does() {
        let mut ledger = Ledger::new("v".into(), Arc::default());
        let writes = vec![Rows::linear(0, 8); ROWS_MAX + 1];
        assert!(ledger.has_room(writes.len()), "nothing else could end");
        let command = Command::StreamSynchronize { stream: StreamId::LEGACY };
        let touched = Touched { writes, ..Touched::default() };
        let until = Until { word: 0, value: 1 };
        let _ = ledger.note(&command, None, Some((until, touched)), |_| None);
        assert!(!ledger.has_room(1));
        let file = weft_ring::Segment::create(1 << 16).unwrap();
        let map = file.map(weft_ring::Access::ReadWrite).unwrap();
        let segment = weft_ring::Segment::open(map).unwrap();
        segment.mark_relayed().unwrap();
        let out = RelayOut::open(&segment).unwrap();
        ledger.add_ended(&mut Due::default(), &out, |_| 1);
        assert!(ledger.has_room(ROWS_MAX));
    }

    #[test]
    fn a_block_is_lent_once_until_it_is_released() {
        let mut ledger = Ledger::new("v".into(), Arc::default());
        let lends = |ledger: &mut Ledger, release| {
            let nodes = Block { offset: 0, bytes: 8, release };
            let graph = weft_wire::id::GraphExecId { index: 0, generation: 1 };
            let context = weft_wire::id::ContextId { index: 0, generation: 1 };
            let command = Command::GraphInstantiate { context, graph, nodes };
            ledger.note(&command, None, None, |_| None)
        };
        assert!(lends(&mut ledger, 3) && lends(&mut ledger, 4));
        assert!(!lends(&mut ledger, 3), "it is lent");
        assert!(!lends(&mut ledger, ARENA_BLOCKS), "there is no such block");
        assert_eq!(ledger.lent.len(), 2);
        let file = weft_ring::Segment::create(1 << 16).unwrap();
        let map = file.map(weft_ring::Access::ReadWrite).unwrap();
        let segment = weft_ring::Segment::open(map).unwrap();
        segment.mark_relayed().unwrap();
        let out = RelayOut::open(&segment).unwrap();
        let worker = weft_ring::WorkerSide::open(segment).unwrap();
        worker.arena().release(&weft_ring::ArenaRef { block: 3, offset: 0, len: 8 }).unwrap();
        let mut due = Due::default();
        ledger.add_ended(&mut due, &out, |_| 0);
        assert_eq!(due.released, [(3, None)]);
        assert!(lends(&mut ledger, 3) && !lends(&mut ledger, 4));
    }

    #[test]
    fn however_many_vgpus_keep_copies_the_next_one_has_room() {
        let shadowed = Shadowed::default();
        let fill = |vgpu: &str| (0..).take_while(|_| shadowed.take(vgpu, 1 << 16)).count() << 16;
        let taken = ["a", "b", "c", "d"].map(fill);
        assert_eq!(taken, [512 << 20, 256 << 20, 128 << 20, 64 << 20]);
        assert_eq!(fill("a"), 0, "it has all that it may");
        shadowed.give_back("a", taken[0]);
        assert!(fill("e") >= 256 << 20, "what ended gives its part back");
    }

    /// A copy that is made while a kernel may have written already says nothing of that.
    #[test]
    fn what_was_not_copied_before_the_first_kernel_is_sent_whole_until_the_last_has_ended() {
        let shadowed = Arc::new(Shadowed::default());
        assert!(shadowed.take("w", ALL_SHADOWS_MAX / 2), "somebody else has all that it may");
        assert!(shadowed.take("x", ALL_SHADOWS_MAX / 4));
        let mut ledger = Ledger::new("v".into(), Arc::clone(&shadowed));
        let memory = SharedMemory::anonymous(SHADOWS_MAX).unwrap();
        let rows = Rows::linear(0, SHADOWS_MAX as u64);
        let read = |_: &Rows| memory.span(0, SHADOWS_MAX).ok();
        ledger.keep(rows, &read);
        shadowed.give_back("w", ALL_SHADOWS_MAX / 2);
        ledger.keep(rows, &read);
        assert!(ledger.take_shadow(&rows).is_none(), "the first kernel may have written");
        ledger.give_up(&rows, None);
        assert!(ledger.take_shadow(&rows).is_none(), "and so for the second");
        ledger.give_up(&rows, None);
        ledger.keep(rows, &read);
        let bytes = ledger.take_shadow(&rows);
        assert!(bytes.is_some(), "no kernel had it any more");
        ledger.give_up(&rows, bytes);
        assert_eq!(lock(&shadowed.0).get("v"), None);
    }

    #[test]
    fn a_session_that_ends_gives_its_copies_back() {
        let shadowed = Arc::new(Shadowed::default());
        let mut ledger = Ledger::new("v".into(), Arc::clone(&shadowed));
        let memory = SharedMemory::anonymous(1 << 20).unwrap();
        let rows = [Rows::linear(0, 1 << 16), Rows::linear(1 << 16, 1 << 16)];
        for rows in rows {
            ledger.keep(rows, &|rows| {
                let (at, len) = rows.runs().next()?;
                memory.span(at.try_into().ok()?, len.try_into().ok()?).ok()
            });
        }
        let has = || lock(&shadowed.0).get("v").copied();
        assert_eq!(has(), Some(1 << 17));
        ledger.give_up(&rows[0], None);
        assert_eq!(has(), Some(1 << 16));
        drop(ledger);
        assert_eq!(has(), None);
    }
}
