//! Attacks on the worker's side: the fuzzer's corpus, random inputs, and a writer that never stops.

mod harness;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use weft_ring::{AtomicU64, ClientOptions, ClientSide, Segment, Violation, WorkerSide};

/// Numbers that look random and are the same in every run.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

#[test]
fn the_corpus_is_survived() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/ring_hostile");
    let mut inputs = 0;
    for entry in std::fs::read_dir(corpus).unwrap() {
        harness::attack(&std::fs::read(entry.unwrap().path()).unwrap());
        inputs += 1;
    }
    assert!(inputs > 0, "the corpus is empty");
}

#[test]
fn random_attacks_are_survived() {
    let cases = if cfg!(miri) { 20 } else { 2_000 };
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
    for _ in 0..cases {
        let len = numbers.next() % 60;
        let input: Vec<u8> = (0..len).flat_map(|_| numbers.next().to_le_bytes()).collect();
        harness::attack(&input);
    }
}

/// The harness names places by number; this holds them against the layout.
#[test]
fn the_harness_hits_the_lane() {
    let segment = Segment::anonymous(1 << 16).unwrap();
    let words = segment.memory().cells::<AtomicU64>(0, segment.memory().len() / 8).unwrap();
    let client =
        ClientSide::open(segment.clone(), ClientOptions::default(), Box::new(|| true)).unwrap();
    client.submit(b"x").unwrap();
    assert_ne!(words[0x112_000 / 8].load(Ordering::Relaxed), 0);
    let mut worker = WorkerSide::open(segment).unwrap();
    assert_eq!(worker.take().unwrap().unwrap().bytes, b"x");
    assert_eq!(words[512].load(Ordering::Relaxed), 1);
}

/// One thread writes over the whole segment while another takes what it finds.
#[test]
fn a_writer_that_never_stops_is_survived() {
    let rounds = if cfg!(miri) { 2 } else { 50 };
    for round in 1..=rounds {
        let segment = Segment::anonymous(1 << 16).unwrap();
        let words = segment.memory().cells::<AtomicU64>(0, segment.memory().len() / 8).unwrap();
        let mut worker = WorkerSide::open(segment).unwrap();
        words[16].store(16, Ordering::Relaxed);
        let stop = Arc::new(AtomicBool::new(false));
        let writer = thread::spawn({
            let stop = Arc::clone(&stop);
            move || {
                let mut numbers = Numbers(round);
                while !stop.load(Ordering::Relaxed) {
                    let at = usize::try_from(numbers.next()).unwrap() % words.len();
                    // Headers of plausible commands most of the time, anything at all sometimes.
                    let mask = if numbers.next().is_multiple_of(64) {
                        u64::MAX
                    } else {
                        0x8000_0000_0000_01ff
                    };
                    words[at & !7].store(numbers.next() & mask, Ordering::Relaxed);
                }
            }
        });
        let mut outcome = Ok(0);
        for _ in 0..10_000 {
            match worker.take() {
                Ok(record) => outcome = outcome.map(|n| n + record.map_or(0, |r| r.bytes.len())),
                Err(violation) => outcome = Err(violation),
            }
        }
        stop.store(true, Ordering::Relaxed);
        writer.join().unwrap();
        if let Err(Violation::Arena) = outcome {
            panic!("taking commands does not touch the arena");
        }
    }
}
