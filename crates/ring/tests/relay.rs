//! A session whose client is elsewhere: its commands and answers keep their numbers.

#![cfg(not(loom))]
#![expect(clippy::unwrap_used, reason = "a panic is a test's report")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use weft_ring::{
    AnswerTo, ArenaRef, CallError, Loss, MAX_ANSWER, RelayIn, RelayOut, SPIN, Segment, Violation,
    WorkerSide,
};

const ARENA: usize = 1 << 16;
const CALLS: u32 = 20_000;
const LIMIT: Duration = Duration::from_secs(20);

fn relayed() -> Segment {
    let segment = Segment::anonymous(ARENA).unwrap();
    segment.mark_relayed().unwrap();
    segment
}

/// Wait for the answer on the relay's own flag alone: the worker rings it.
fn answered(out: &RelayOut, to: AnswerTo) -> (i32, Vec<u8>) {
    let mut bytes = [0; MAX_ANSWER];
    let ready = || out.answer(to, &mut bytes);
    let answer = out.wait(Duration::ZERO, LIMIT, ready).expect("an answer in time");
    (answer.status, bytes[..answer.len].to_vec())
}

#[test]
fn commands_and_answers_keep_the_clients_numbers() {
    let segment = relayed();
    let mut worker = WorkerSide::open(segment.clone()).unwrap();
    let (mut relay, out) = (RelayIn::open(&segment).unwrap(), RelayOut::open(&segment).unwrap());
    let stop = Arc::new(AtomicBool::new(false));
    let ending = Arc::clone(&stop);
    let executing = thread::spawn(move || {
        let mut seen = 0_u32;
        while !ending.load(Ordering::Relaxed) {
            let _ = worker.wait(SPIN, Some(Duration::from_millis(10)), || None::<()>);
            while let Some(record) = worker.take().unwrap() {
                assert_eq!(record.bytes, seen.to_le_bytes(), "in order, and each once");
                seen += 1;
                let (answer, bytes) = (record.answer, record.bytes.to_vec());
                worker.set_progress(3, u64::from(seen));
                if let Some(answer) = answer {
                    worker.complete(answer, 7, &bytes).unwrap();
                }
            }
        }
        seen
    });
    for i in 0..CALLS {
        let to = AnswerTo { slot: u16::try_from(i % 200).unwrap(), call: 1_000_000 + i };
        let awaited = i % 8 == 0;
        relay.submit(awaited.then_some(to), &i.to_le_bytes(), &|| true).unwrap();
        if awaited {
            assert_eq!(answered(&out, to), (7, i.to_le_bytes().to_vec()));
            assert!(out.progress(3).unwrap() > u64::from(i), "published before the answer");
        }
    }
    let all = || (out.progress(3) == Some(u64::from(CALLS))).then_some(());
    out.wait(Duration::ZERO, LIMIT, all).expect("progress rings as well");
    stop.store(true, Ordering::Relaxed);
    assert_eq!(executing.join().unwrap(), CALLS);
}

#[test]
fn a_block_is_released_by_the_worker_and_rings() {
    let segment = relayed();
    let worker = WorkerSide::open(segment.clone()).unwrap();
    let (relay, out) = (RelayIn::open(&segment).unwrap(), RelayOut::open(&segment).unwrap());
    relay.lend(5).unwrap();
    relay.span(64, 4).unwrap().write_from(b"abcd").unwrap();
    assert!(!out.is_released(5));
    let block = ArenaRef { block: 5, offset: 64, len: 4 };
    let replies = worker.replies().clone();
    let releasing = thread::spawn(move || {
        replies.arena().span(&block).unwrap().write_from(b"dcba").unwrap();
        replies.arena().release(&block).unwrap();
    });
    out.wait(Duration::ZERO, LIMIT, || out.is_released(5).then_some(())).expect("a release");
    let mut bytes = [0; 4];
    out.span(64, 4).unwrap().read_at(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"dcba");
    releasing.join().unwrap();
}

#[test]
fn what_the_other_side_says_is_checked() {
    let segment = relayed();
    let (mut relay, out) = (RelayIn::open(&segment).unwrap(), RelayOut::open(&segment).unwrap());
    assert_eq!(relay.lend(u32::MAX), Err(Violation::Arena));
    for (offset, len) in [(0, ARENA as u64 + 1), (u64::MAX, 2), (ARENA as u64, 1)] {
        assert!(matches!(relay.span(offset, len), Err(Violation::Arena)));
        assert!(matches!(out.span(offset, len), Err(Violation::Arena)));
    }
    assert!(!RelayOut::is_answerable(AnswerTo { slot: 256, call: 1 }));
    let none = AnswerTo { slot: u16::MAX, call: 0 };
    assert!(out.answer(none, &mut [0; MAX_ANSWER]).is_none());
    let long = [0; 513];
    assert_eq!(relay.submit(None, &long, &|| true), Err(CallError::TooLong(513)));
    assert!(!out.is_released(u32::MAX) && out.progress(usize::MAX).is_none());
    RelayOut::open(&Segment::anonymous(ARENA).unwrap()).unwrap_err();
}

#[test]
fn a_full_lane_ends_with_the_session() {
    let segment = relayed();
    let (mut relay, out) = (RelayIn::open(&segment).unwrap(), RelayOut::open(&segment).unwrap());
    let telling = segment.clone();
    let ending = thread::spawn(move || telling.declare_lost(Loss::VgpuRemoved).unwrap());
    let ended = loop {
        match relay.submit(None, &[0; 64], &|| true) {
            Ok(()) => {}
            Err(error) => break error,
        }
    };
    assert_eq!(ended, CallError::WorkerLost);
    assert_eq!(out.loss(), Some(Loss::VgpuRemoved));
    ending.join().unwrap();
}
