//! Both sides of a segment in one process, each with its own mapping.

#![expect(clippy::unwrap_used, reason = "a panic is the report")]
#![expect(clippy::cast_possible_truncation, reason = "small numbers")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use weft_ring::{
    Access, ArenaError, CallError, ClientOptions, ClientSide, LANES, MAX_ANSWER, MAX_COMMAND,
    Patience, SPIN, Segment, Violation, WorkerSide,
};

/// Two mappings of one segment, or one under Miri, which has no files to map.
fn mappings() -> (Segment, Segment) {
    if cfg!(miri) {
        let segment = Segment::anonymous(1 << 12).unwrap();
        return (segment.clone(), segment);
    }
    let file = Segment::create(1 << 20).unwrap();
    let map = || Segment::open(file.map(Access::ReadWrite).unwrap()).unwrap();
    (map(), map())
}

/// How often a test repeats: Miri is some hundred times slower.
fn times(n: u32) -> u32 {
    if cfg!(miri) { n.div_ceil(200) } else { n }
}

fn sides(options: ClientOptions) -> (Arc<ClientSide>, WorkerSide) {
    let (client, worker) = mappings();
    let client = ClientSide::open(client, options, Box::new(|| true)).unwrap();
    (Arc::new(client), WorkerSide::open(worker).unwrap())
}

/// Executes until told to stop: answers each call with its own bytes reversed; the commands in
/// order.
fn echo(mut worker: WorkerSide, stop: &AtomicBool) -> Vec<Vec<u8>> {
    let mut seen = Vec::new();
    loop {
        if let Some(record) = worker.take().unwrap() {
            let (answer, mut bytes) = (record.answer, record.bytes.to_vec());
            seen.push(bytes.clone());
            bytes.reverse();
            if let Some(answer) = answer {
                worker.complete(answer, 7, &bytes).unwrap();
            }
            continue;
        }
        if stop.load(Ordering::Acquire) && !worker.has_command() {
            return seen;
        }
        let stopped = || stop.load(Ordering::Acquire).then_some(());
        worker.wait(SPIN, None, stopped).unwrap();
    }
}

/// Runs `clients` against an echoing worker; what the worker saw.
fn with_echo(options: ClientOptions, clients: impl FnOnce(&Arc<ClientSide>)) -> Vec<Vec<u8>> {
    let (client, worker) = sides(options);
    let stop = Arc::new(AtomicBool::new(false));
    let doorbell = worker.doorbell().clone();
    let worker = thread::spawn({
        let stop = Arc::clone(&stop);
        move || echo(worker, &stop)
    });
    clients(&client);
    stop.store(true, Ordering::Release);
    doorbell.wake();
    worker.join().unwrap()
}

fn ask(client: &ClientSide, text: &[u8]) {
    let mut bytes = [0; MAX_COMMAND];
    let answer = client.call(text, &mut bytes).unwrap();
    let reversed: Vec<u8> = text.iter().rev().copied().collect();
    assert_eq!((answer.status, &bytes[..answer.len]), (7, reversed.as_slice()));
}

#[test]
fn commands_of_every_length_arrive_whole() {
    let texts: Vec<Vec<u8>> = (0..=MAX_COMMAND)
        .step_by(if cfg!(miri) { 37 } else { 1 })
        .map(|len| vec![len as u8 ^ 0x5a; len])
        .collect();
    let seen = with_echo(ClientOptions::default(), |client| {
        for text in &texts {
            ask(client, text);
        }
        let long = [0; MAX_COMMAND + 1];
        assert_eq!(client.submit(&long), Err(CallError::TooLong(MAX_COMMAND + 1)));
    });
    assert_eq!(seen, texts);
}

#[test]
fn a_burst_longer_than_the_lane_arrives_in_order() {
    let seen = with_echo(ClientOptions::default(), |client| {
        for i in 0..times(100_000) {
            client.submit(&i.to_le_bytes()).unwrap();
        }
        ask(client, b"end");
    });
    let numbers =
        seen[..seen.len() - 1].iter().map(|text| u32::from_le_bytes(text[..].try_into().unwrap()));
    assert!(numbers.eq(0..times(100_000)));
}

#[test]
fn sleeping_at_once_loses_nothing() {
    let options = ClientOptions { spin: Duration::ZERO, ..ClientOptions::default() };
    let seen = with_echo(options, |client| {
        for i in 0..times(2_000) {
            ask(client, &i.to_le_bytes());
        }
    });
    assert_eq!(seen.len(), times(2_000) as usize);
}

#[test]
fn more_threads_than_lanes_call_at_once() {
    const THREADS: u32 = 3 * LANES as u32;
    let calls_each = times(300);
    let seen = with_echo(ClientOptions::default(), |client| {
        thread::scope(|scope| {
            for thread in 0..THREADS {
                scope.spawn(move || {
                    for call in 0..calls_each {
                        client.submit(&[9; 100]).unwrap();
                        ask(client, &(thread << 16 | call).to_le_bytes());
                    }
                });
            }
        });
    });
    assert_eq!(seen.len(), 2 * (THREADS * calls_each) as usize);
    for thread in 0..THREADS {
        let calls = seen
            .iter()
            .filter(|text| text.len() == 4)
            .map(|text| u32::from_le_bytes(text[..].try_into().unwrap()))
            .filter(|number| number >> 16 == thread);
        assert!(calls.map(|number| number & 0xffff).eq(0..calls_each), "thread {thread}");
    }
}

#[test]
fn ten_thousand_short_threads_are_served() {
    let seen = with_echo(ClientOptions::default(), |client| {
        for batch in 0..times(400) {
            thread::scope(|scope| {
                for thread in 0..25 {
                    scope.spawn(move || ask(client, &(batch * 25 + thread).to_le_bytes()));
                }
            });
        }
    });
    assert_eq!(seen.len(), 25 * times(400) as usize);
}

#[test]
fn threads_that_wait_for_each_other_keep_their_order() {
    let turn = AtomicU64::new(0);
    let seen = with_echo(ClientOptions::default(), |client| {
        thread::scope(|scope| {
            for me in 0..4 {
                let turn = &turn;
                scope.spawn(move || {
                    for round in 0..u64::from(times(500)) {
                        let mine = round * 4 + me;
                        while turn.load(Ordering::Acquire) != mine {
                            thread::yield_now();
                        }
                        client.submit(&mine.to_le_bytes()).unwrap();
                        turn.store(mine + 1, Ordering::Release);
                    }
                });
            }
        });
    });
    let numbers = seen.iter().map(|text| u64::from_le_bytes(text[..].try_into().unwrap()));
    assert!(numbers.eq(0..4 * u64::from(times(500))));
}

#[test]
fn a_full_lane_is_full_after_its_limit_and_drains_again() {
    let options =
        ClientOptions { full_limit: Some(Duration::from_millis(5)), ..ClientOptions::default() };
    let (client, mut worker) = sides(options);
    let mut sent = 0;
    while client.submit(&[1; 64]).is_ok() {
        sent += 1;
    }
    assert_eq!(client.submit(&[1; 64]), Err(CallError::Full));
    let mut taken = 0;
    while worker.take().unwrap().is_some() {
        taken += 1;
    }
    assert_eq!(taken, sent);
    client.submit(&[2; 64]).unwrap();
    assert_eq!(worker.take().unwrap().unwrap().bytes, [2; 64]);
}

#[test]
fn a_lost_worker_ends_every_wait() {
    let (client, worker) = sides(ClientOptions::default());
    let segment = worker.segment().clone();
    let waiting: Vec<_> = (0..4)
        .map(|_| {
            let client = Arc::clone(&client);
            thread::spawn(move || client.call(b"never answered", &mut []))
        })
        .collect();
    // Lost once all calls are in: whoever sleeps then must be woken.
    let mut worker = worker;
    for _ in 0..4 {
        worker.wait(SPIN, None, || None::<()>).unwrap();
        worker.take().unwrap().unwrap();
    }
    segment.declare_worker_lost().unwrap();
    for waiter in waiting {
        assert_eq!(waiter.join().unwrap(), Err(CallError::WorkerLost));
    }
    assert_eq!(client.submit(b"late"), Err(CallError::WorkerLost));
}

#[test]
fn a_peer_that_dies_silently_is_noticed() {
    let client = Segment::anonymous(1 << 16).unwrap();
    let client = ClientSide::open(client, ClientOptions::default(), Box::new(|| false)).unwrap();
    assert_eq!(client.call(b"anybody?", &mut []), Err(CallError::WorkerLost));
}

#[test]
fn answers_come_in_any_order_and_are_bounded() {
    let (client, mut worker) = sides(ClientOptions::default());
    let calls: Vec<_> = [b"first", b"secon"]
        .map(|text| {
            let client = Arc::clone(&client);
            thread::spawn(move || {
                let mut bytes = [0; 2];
                (text, client.call(text, &mut bytes).unwrap(), bytes)
            })
        })
        .into();
    let mut pending = Vec::new();
    while pending.len() < 2 {
        worker.wait(SPIN, None, || None::<()>).unwrap();
        if let Some(record) = worker.take().unwrap() {
            pending.push((record.answer.unwrap(), record.bytes.to_vec()));
        }
    }
    assert!(worker.complete(pending[0].0, 0, &[0; MAX_ANSWER + 1]).is_err());
    for (answer, text) in pending.into_iter().rev() {
        worker.announce(answer);
        worker.complete(answer, i32::MIN, &text).unwrap();
    }
    for call in calls {
        let (text, answer, bytes) = call.join().unwrap();
        assert_eq!((answer.status, answer.len, &bytes), (i32::MIN, 5, text.first_chunk().unwrap()));
    }
}

#[test]
fn a_full_arena_waits_for_a_release() {
    let (client, worker) = sides(ClientOptions::default());
    let all = client.arena().len();
    let alive = || true;
    let soon = Patience::while_alive(&alive).until(Instant::now());
    let block = client.arena().alloc(all, &soon).unwrap();
    block.span().unwrap().fill(3).unwrap();
    assert_eq!(client.arena().alloc(1, &soon).unwrap_err(), ArenaError::Full);
    assert_eq!(client.arena().alloc(all + 1, &soon).unwrap_err(), ArenaError::TooLarge(all + 1));
    let named = block.hand_over();
    let waiter = thread::spawn({
        let client = Arc::clone(&client);
        move || client.arena().alloc(all, &Patience::while_alive(&|| true)).map(|block| block.len())
    });
    assert_eq!(worker.arena().span(&named).unwrap().to_vec(), vec![3; all]);
    worker.arena().release(&named).unwrap();
    assert_eq!(waiter.join().unwrap(), Ok(all));
    assert_eq!(client.arena().free_bytes(), all);
}

#[test]
fn a_command_that_names_foreign_bytes_is_a_violation() {
    let (client, worker) = sides(ClientOptions::default());
    let alive = || true;
    let block = client.arena().alloc(100, &Patience::while_alive(&alive)).unwrap();
    let good = block.reference();
    worker.arena().span(&good).unwrap();
    let len = client.arena().len() as u64;
    for (offset, size, number) in
        [(len, 1, 0), (0, len + 1, 0), (u64::MAX, 2, 0), (1, u64::MAX, 0), (0, 1, u32::MAX)]
    {
        let bad = weft_ring::ArenaRef { block: number, offset, len: size };
        assert_eq!(worker.arena().span(&bad).unwrap_err(), Violation::Arena);
    }
}

#[test]
fn progress_and_notices_cross() {
    let (client, worker) = sides(ClientOptions::default());
    worker.set_progress(5, 42);
    worker.set_notice(1, 43);
    assert!(client.poll_progress(5, 42));
    assert!(!client.poll_progress(5, 43));
    assert_eq!((client.progress(5), client.notice(1)), (Some(42), Some(43)));
    assert_eq!((client.progress(1 << 20), client.notice(1 << 20)), (None, None));
}
