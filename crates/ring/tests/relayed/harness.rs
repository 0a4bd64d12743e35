//! A session whose client is elsewhere: what that client says comes as bytes and numbers and is
//! relayed, whatever it is.
//!
//! Commands come to the worker once and in order, answers and releases come back under the client's
//! own numbers, and nothing outside the arena is touched. Once the input has written into the
//! segment itself, as a worker that has gone mad would, nothing holds but that nobody panics, reads
//! out of bounds or waits. The fuzz target `relay_hostile` and the replay of its corpus call
//! [`carry`].

use std::collections::VecDeque;
use std::time::Duration;

use weft_ring::{
    AnswerTo, ArenaRef, AtomicU64, CallError, Cells, MAX_ANSWER, MAX_COMMAND, Ordering, RelayIn,
    RelayOut, Segment, SegmentError, WorkerSide,
};

const ARENA: usize = 64 << 10;
/// Commands that a worker which finds a spoilt lane takes at once.
const TAKEN_AT_ONCE: usize = 64;

struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    fn number<const BYTES: usize>(&mut self) -> u64 {
        let mut word = [0; 8];
        for byte in &mut word[..BYTES] {
            *byte = self.byte().unwrap_or(0);
        }
        u64::from_le_bytes(word)
    }

    fn half(&mut self) -> u16 {
        u16::try_from(self.number::<2>()).unwrap_or(0)
    }

    fn index(&mut self) -> u32 {
        u32::try_from(self.number::<4>()).unwrap_or(0)
    }

    fn answer(&mut self) -> AnswerTo {
        AnswerTo { slot: self.half() % 300, call: self.index() }
    }
}

/// The two sides, and what is on its way between them.
struct Relayed {
    words: Cells<AtomicU64>,
    relay: RelayIn,
    out: RelayOut,
    worker: WorkerSide,
    submitted: VecDeque<(Option<AnswerTo>, Vec<u8>)>,
    /// The input has written into the segment.
    is_spoilt: bool,
}

/// Plays one input.
///
/// # Panics
/// When a side breaks a promise.
pub(crate) fn carry(data: &[u8]) {
    let Ok(mut relayed) = Relayed::open() else { return };
    let mut input = Input(data);
    while let Some(step) = input.byte() {
        match step % 8 {
            0 => relayed.submit(step, &mut input),
            1 => relayed.take(input.byte().unwrap_or(0)),
            2 => relayed.write(&mut input),
            3 => relayed.lend(&mut input),
            4 => relayed.publish(&mut input),
            5 => relayed.ask(&mut input),
            6 if step > 200 => relayed.spoil(&mut input),
            _ => {
                let ready = || None::<()>;
                assert!(relayed.out.wait(Duration::ZERO, Duration::ZERO, ready).is_none());
            }
        }
    }
    for _ in 0..TAKEN_AT_ONCE {
        relayed.take(0);
    }
}

impl Relayed {
    fn open() -> Result<Self, SegmentError> {
        let segment = Segment::anonymous(ARENA)?;
        segment.mark_relayed()?;
        Ok(Self {
            words: segment.memory().cells(0, segment.memory().len() / 8)?,
            relay: RelayIn::open(&segment)?,
            out: RelayOut::open(&segment)?,
            worker: WorkerSide::open(segment)?,
            submitted: VecDeque::new(),
            is_spoilt: false,
        })
    }

    /// The client says a command. As who relays does, nothing is submitted that awaits its answer
    /// where none can come.
    fn submit(&mut self, step: u8, input: &mut Input<'_>) {
        let answer = (step >= 128).then(|| input.answer());
        if answer.is_some_and(|answer| !RelayOut::is_answerable(answer)) {
            return;
        }
        let len = usize::from(input.half()) % (MAX_COMMAND + 2);
        let command = vec![step; len];
        let has_room = self.relay.has_room(len);
        let submitted = self.relay.submit(answer, &command, &|| false);
        if self.is_spoilt {
            return;
        }
        match submitted {
            Ok(()) => {
                assert!(has_room && len <= MAX_COMMAND, "it went where no room was");
                self.submitted.push_back((answer, command));
            }
            Err(CallError::TooLong(long)) => assert!(long == len && len > MAX_COMMAND),
            Err(_) => assert!(!has_room, "refused where room was"),
        }
    }

    /// The worker takes a command and answers it.
    fn take(&mut self, len: u8) {
        let Ok(taken) = self.worker.take() else {
            assert!(self.is_spoilt, "what a relay submits is right");
            return;
        };
        let taken = taken.map(|record| (record.answer, record.bytes.to_vec()));
        if !self.is_spoilt {
            assert_eq!(taken, self.submitted.pop_front(), "once, in order, as it was said");
        }
        let Some((Some(to), bytes)) = taken else { return };
        let answer = vec![len; usize::from(len) % (MAX_ANSWER + 1)];
        let status = i32::try_from(bytes.len()).unwrap_or(0);
        self.worker.complete(to, status, &answer).expect("it is short enough");
        let mut came = [0; MAX_ANSWER];
        let found = self.out.answer(to, &mut came);
        if !self.is_spoilt {
            assert!(self.out.is_answered(to));
            let found = found.map(|found| (found.status, came[..found.len].to_vec()));
            assert_eq!(found, Some((status, answer)), "under the client's own number");
        }
    }

    /// Both sides name bytes of the arena.
    fn write(&self, input: &mut Input<'_>) {
        let (offset, len) = (input.number::<8>(), input.number::<3>());
        let (one, other) = (self.relay.span(offset, len), self.out.span(offset, len));
        let end = offset.checked_add(len);
        assert_eq!(one.is_ok(), end.is_some_and(|end| end <= ARENA as u64), "outside the arena");
        assert_eq!(one.is_ok(), other.is_ok());
        if let (Ok(one), Ok(other)) = (one, other) {
            let bytes = vec![7; usize::try_from(len).unwrap_or(0)];
            assert_eq!(one.write_from(&bytes).is_ok(), one.len() == bytes.len());
            assert_eq!(other.to_vec(), bytes);
        }
    }

    /// A block goes to the worker and comes back.
    fn lend(&self, input: &mut Input<'_>) {
        let block = input.index();
        let lent = self.relay.lend(block);
        assert!(!self.out.is_released(block), "released before the worker had it");
        let named = ArenaRef { block, offset: 0, len: 0 };
        let released = self.worker.arena().release(&named);
        assert_eq!(released.is_ok(), lent.is_ok(), "there is such a block, or there is none");
        assert_eq!(self.out.is_released(block), lent.is_ok());
    }

    /// The worker says how far it is.
    fn publish(&self, input: &mut Input<'_>) {
        let (index, value) = (usize::from(input.half()), input.number::<8>());
        self.worker.set_progress(index, value);
        self.worker.set_notice(index, value);
        assert!(self.out.progress(index).is_none_or(|found| found == value));
        assert!(self.out.notice(index).is_none_or(|found| found == value));
    }

    /// The client asks for what it may not have asked for.
    fn ask(&self, input: &mut Input<'_>) {
        let to = AnswerTo { slot: input.half(), call: input.index() };
        let mut came = [0; MAX_ANSWER];
        if let Some(answer) = self.out.answer(to, &mut came) {
            assert!(answer.len <= MAX_ANSWER, "more than an answer has room for");
        }
        let (index, loss) = (input.number::<8>(), self.out.loss());
        let _words = (self.out.progress(usize::try_from(index).unwrap_or(usize::MAX)), loss);
    }

    /// Whoever has the segment writes anywhere.
    fn spoil(&mut self, input: &mut Input<'_>) {
        self.is_spoilt = true;
        let at = input.number::<8>() % self.words.len() as u64;
        self.words[usize::try_from(at).unwrap_or(0)].store(input.number::<8>(), Ordering::Relaxed);
    }
}
