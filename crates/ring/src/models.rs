//! Loom models: every interleaving of the protocols between two processes, up to a few preemptions.
//!
//! `RUSTFLAGS="--cfg loom" LOOM_MAX_PREEMPTIONS=2 cargo test -p weft-ring --release --lib models`

use std::ops::ControlFlow;
use std::sync::Arc;

use loom::thread;

use crate::answer::{AnswerWords, CallSlot};
use crate::cells::Cell;
use crate::duty::Duty;
use crate::lane::{AnswerTo, Consumer, LaneWords, MAX_COMMAND, Producer};
use crate::lanes::Lanes;
use crate::lending::Lending;
use crate::lock::{Standing, Turnstile};
use crate::serial::{self, Serial};
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Mutex, Ordering};
use crate::wait::model::Marks;
use crate::wait::{Patience, Unready, WakeFlag};
use crate::wait_page::WaitPage;

// Loom remembers only the last access of each word, so a thread that first loads a word and then
// stores it hides its conflict with another thread's load. That is why both sides are made before
// the threads.

/// Slots of a modelled lane: three records of a slot fill it.
const SLOTS: usize = 4;

fn patience<'a>() -> Patience<'a> {
    Patience::while_alive(&|| true)
}

fn push_waiting(producer: &Producer, room: &WakeFlag, ticket: u64, command: &[u8]) {
    let ready = || producer.has_room(command.len()).then_some(());
    room.wait(&patience(), ready).unwrap();
    producer.try_push(ticket, None, command).unwrap();
}

/// A lane carries every record once, whole and in order, through a ring shorter than the stream;
/// neither the consumer's nor the producer's wake-up is lost.
#[test]
fn models_lane() {
    loom::model(|| {
        const RECORDS: u64 = 5;
        let words = LaneWords::modelled(SLOTS);
        let (doorbell, room) = (WakeFlag::modelled(), WakeFlag::modelled());
        let producer = thread::spawn({
            let (doorbell, room) = (doorbell.clone(), room.clone());
            let producer = Producer::new(words.clone());
            move || {
                for ticket in 0..RECORDS {
                    push_waiting(&producer, &room, ticket, &ticket.to_le_bytes());
                    doorbell.wake();
                }
            }
        });
        let mut consumer = Consumer::new(0, words, 1);
        let mut buffer = [0; MAX_COMMAND];
        for ticket in 0..RECORDS {
            let front = doorbell.wait(&patience(), || consumer.peek().unwrap()).unwrap();
            assert_eq!((front.ticket, front.len), (ticket, 8));
            if consumer.take(&front, &mut buffer) {
                room.wake();
            }
            assert_eq!(buffer[..8], ticket.to_le_bytes());
        }
        producer.join().unwrap();
    });
}

/// A relay's collector sleeps on one flag for answers, progress and whoever stops it: none of what
/// was published before its ring is missed, and an answer is whole when it is seen.
#[test]
fn models_relay() {
    loom::model(|| {
        let (answer, news) = (AnswerWords::modelled(1), WakeFlag::modelled());
        let progress = Cell::<AtomicU64>::zeroed();
        let stopped = Cell::<AtomicU32>::zeroed();
        let worker = thread::spawn({
            let (answer, news, progress) = (answer.clone(), news.clone(), progress.clone());
            move || {
                progress.store(1, Ordering::Release);
                news.wake();
                answer.complete(5, -7, b"abc").unwrap();
                news.wake();
            }
        });
        let stopping = thread::spawn({
            let (news, stopped) = (news.clone(), stopped.clone());
            move || {
                stopped.store(1, Ordering::Release);
                news.wake();
            }
        });
        let mut bytes = [0; 8];
        let answered = news.wait(&patience(), || answer.take(5, &mut bytes)).unwrap();
        assert_eq!((answered.status, &bytes[..answered.len]), (-7, &b"abc"[..]));
        assert_eq!(progress.load(Ordering::Acquire), 1, "published before the answer");
        let ended = || (stopped.load(Ordering::Acquire) == 1).then_some(());
        news.wait(&patience(), ended).unwrap();
        worker.join().unwrap();
        stopping.join().unwrap();
    });
}

/// A guest's sleepers, on two flags of one session, wait for the count of its marks, and whoever
/// gets a mark raises it: no mark is missed, whichever flag it was for.
#[test]
fn models_wait_page() {
    loom::model(|| {
        let wait_page = WaitPage::modelled();
        let flags = [0, 1].map(|_| WakeFlag::modelled_at(wait_page.clone()));
        let published = [0, 1].map(|_| Cell::<AtomicU64>::zeroed());
        let host = thread::spawn({
            let (flags, published) = (flags.clone(), published.clone());
            move || {
                for (flag, word) in flags.iter().zip(&published) {
                    word.store(1, Ordering::Release);
                    flag.wake();
                }
            }
        });
        let [first, second] = flags;
        let [word, other] = published;
        let sleeper = thread::spawn(move || {
            let ready = || (other.load(Ordering::Acquire) == 1).then_some(());
            second.wait(&patience(), ready).unwrap();
        });
        let ready = || (word.load(Ordering::Acquire) == 1).then_some(());
        first.wait(&patience(), ready).unwrap();
        host.join().unwrap();
        sleeper.join().unwrap();
    });
}

/// What a program of one kernel does for a sleeper of the other: publishes and wakes, twice; a mark
/// that does not fit is dropped. `deliver` is what the carrier of marks does for each.
fn wake_across(flag: &WakeFlag, deliver: impl Fn() + Send + 'static) {
    let marks = Arc::new(Marks::default());
    let published = Cell::<AtomicU64>::zeroed();
    let waker = thread::spawn({
        let (flag, published, marks) = (flag.across(&marks), published.clone(), marks.clone());
        move || {
            for value in 1..=2 {
                published.store(value, Ordering::Release);
                flag.wake();
            }
            marks.close();
        }
    });
    let carrier = thread::spawn(move || {
        while marks.take() {
            deliver();
        }
    });
    let ready = || (published.load(Ordering::Acquire) == 2).then_some(());
    flag.wait(&patience(), ready).unwrap();
    waker.join().unwrap();
    carrier.join().unwrap();
}

/// A guest wakes its host: the server takes the mark and wakes whose flag was taken back.
#[test]
fn models_marks_to_the_host() {
    loom::model(|| {
        let flag = WakeFlag::modelled();
        let host = flag.clone();
        wake_across(&flag, move || host.wake_marked());
    });
}

/// A host wakes its guest: the agent takes the mark and raises the count of the wait page.
#[test]
fn models_marks_to_the_guest() {
    loom::model(|| {
        let wait_page = WaitPage::modelled();
        let flag = WakeFlag::modelled_at(wait_page.clone());
        wake_across(&flag, move || wait_page.wake_all());
    });
}

/// Two producers ring one sleeper: whatever was published before a ring is seen after it.
#[test]
fn models_wake_flag() {
    loom::model(|| {
        let flag = WakeFlag::modelled();
        let published = Cell::<AtomicU64>::zeroed();
        let producers = [1, 2].map(|bit| {
            let (flag, published) = (flag.clone(), published.clone());
            thread::spawn(move || {
                published.fetch_or(bit, Ordering::Release);
                flag.wake();
            })
        });
        let all = || (published.load(Ordering::Acquire) == 3).then_some(());
        flag.wait(&patience(), all).unwrap();
        for producer in producers {
            producer.join().unwrap();
        }
    });
}

/// A command submitted after another one returned, in another lane, is never taken before it.
#[test]
fn models_ticket_order() {
    loom::model(|| {
        let words = [LaneWords::modelled(SLOTS), LaneWords::modelled(SLOTS)];
        let used = Cell::<AtomicU32>::zeroed();
        used.store(2, Ordering::Relaxed);
        // Two threads that tell each other, seen as one that uses both lanes: what counts is the
        // order.
        let client = thread::spawn({
            let [first, second] = words.clone().map(Producer::new);
            move || {
                first.try_push(0, None, b"1").unwrap();
                second.try_push(1, None, b"2").unwrap();
            }
        });
        let consumers = words
            .into_iter()
            .enumerate()
            .map(|(lane, words)| (Consumer::new(lane, words, 1), WakeFlag::modelled()));
        let mut lanes = Lanes::new(consumers, used);
        let early = lanes.next().unwrap().map(|record| record.bytes[0]);
        assert_ne!(early, Some(b'2'));
        client.join().unwrap();
        let mut taken = Vec::from_iter(early);
        while let Some(record) = lanes.next().unwrap() {
            taken.push(record.bytes[0]);
        }
        assert_eq!(taken, b"12");
    });
}

/// A caller gets its own answer, whole, and is woken for it, also after an announcement.
#[test]
fn models_answer() {
    loom::model(|| {
        let answer = AnswerWords::modelled(1);
        let (words, doorbell) = (LaneWords::modelled(SLOTS), WakeFlag::modelled());
        let worker = thread::spawn({
            let (answer, doorbell) = (answer.clone(), doorbell.clone());
            let mut consumer = Consumer::new(0, words.clone(), 1);
            move || {
                let front = doorbell.wait(&patience(), || consumer.peek().unwrap()).unwrap();
                consumer.take(&front, &mut [0; MAX_COMMAND]);
                answer.flag.wake();
                let to = front.answer.unwrap();
                answer.complete(to.call, -7, b"abc").unwrap();
            }
        });
        let (slot, producer) = (CallSlot::new(answer), Producer::new(words));
        let call = slot.begin();
        producer.try_push(0, Some(AnswerTo { slot: 0, call }), b"x").unwrap();
        doorbell.wake();
        let mut bytes = [0; 8];
        let serial = Serial::open(Cell::<AtomicU32>::zeroed());
        let answer = slot.wait(call, &patience(), (|| false, &serial), &mut bytes).unwrap();
        assert_eq!((answer.status, &bytes[..answer.len]), (-7, &b"abc"[..]));
        worker.join().unwrap();
    });
}

/// A program that outlived its session waits there for an answer while the place is zeroed and
/// given again, and the next session has the same call. It gets its own session's answer, whole, or
/// none, and never the other's; nor does it sleep through.
#[test]
fn models_reused_place() {
    loom::model(|| {
        let answer = AnswerWords::modelled(1);
        let word = Cell::<AtomicU32>::zeroed();
        word.store(1, Ordering::Relaxed);
        let (serial, slot) = (Serial::open(word.clone()), CallSlot::new(answer.clone()));
        let call = slot.begin();
        let host = thread::spawn(move || {
            answer.complete(call, 1, b"mine").unwrap();
            serial::renew(&word, 2);
            // The place is zeroed, in any order.
            for zeroed in [&answer.result, &answer.bytes[0]] {
                zeroed.store(0, Ordering::Relaxed);
            }
            answer.done.store(0, Ordering::Relaxed);
            answer.complete(call, 2, b"other's").unwrap();
        });
        let mut bytes = [0; 8];
        match slot.wait(call, &patience(), (|| serial.is_over(), &serial), &mut bytes) {
            Ok(answer) => {
                assert_eq!((answer.status, &bytes[..answer.len]), (1, &b"mine"[..]));
            }
            Err(unready) => assert_eq!(unready, Unready::PeerLost),
        }
        host.join().unwrap();
    });
}

/// A program of a guest takes a sleeper's flag back and ends before it sends the mark; whoever
/// serves its session sees the end, publishes it and wakes surely.
#[test]
fn models_wake_surely() {
    loom::model(|| {
        let flag = WakeFlag::modelled();
        let ended = Cell::<AtomicU32>::zeroed();
        let program = thread::spawn({
            // Its marks are nobody's any more.
            let flag = flag.across(&Arc::new(Marks::default()));
            move || flag.wake()
        });
        let server = thread::spawn({
            let (flag, ended) = (flag.clone(), ended.clone());
            move || {
                ended.store(1, Ordering::Release);
                flag.wake_surely();
            }
        });
        let ready = || (ended.load(Ordering::Acquire) == 1).then_some(());
        flag.wait(&patience(), ready).unwrap();
        program.join().unwrap();
        server.join().unwrap();
    });
}

/// The turnstile excludes, passes the holder's writes on and wakes who sleeps.
#[test]
fn models_turnstile() {
    loom::model(|| {
        let turnstile = Turnstile::modelled(2);
        let counter = Cell::<AtomicU64>::zeroed();
        let enter = |me: u32| {
            let (turnstile, counter) = (turnstile.clone(), counter.clone());
            move || {
                turnstile.acquire(me, &patience()).unwrap();
                let before = counter.load(Ordering::Relaxed);
                counter.store(before + 1, Ordering::Relaxed);
                turnstile.release(me);
            }
        };
        let other = thread::spawn(enter(1));
        enter(0)();
        other.join().unwrap();
        assert_eq!(counter.load(Ordering::Relaxed), 2);
    });
}

/// A participant that dies in the queue or as the holder, and is repaired, does not block the
/// others.
#[test]
fn models_turnstile_repair() {
    loom::model(|| {
        let turnstile = Turnstile::modelled(2);
        let mortal = thread::spawn({
            let turnstile = turnstile.clone();
            move || {
                turnstile.enter(1);
                let held = turnstile.turn(1) == Standing::Mine;
                // Dies here, holding or not; the daemon notices.
                turnstile.repair(1);
                held
            }
        });
        turnstile.acquire(0, &patience()).unwrap();
        turnstile.release(0);
        mortal.join().unwrap();
    });
}

/// Work goes to whoever asks for it and back: both never have it at once, its owner goes on where
/// the borrower ended, and nobody waits for ever, also when the borrower gave up before it had it.
#[test]
fn models_lending() {
    loom::model(|| {
        let (lending, news) = (Arc::new(Lending::new(0_u32)), WakeFlag::modelled());
        let owner = thread::spawn({
            let (lending, news) = (lending.clone(), news.clone());
            move || {
                let mut work = lending.own();
                while *work < 2 {
                    let ready = || lending.is_wanted().then_some(());
                    news.wait(&patience(), ready).unwrap();
                    work = lending.lend(work);
                }
            }
        });
        let mut borrowed = lending.borrow(|| news.wake());
        if let Some(work) = borrowed.work() {
            *work += 1;
        }
        drop(borrowed);
        let mut borrowed = lending.borrow(|| news.wake());
        loop {
            if let Some(work) = borrowed.work() {
                *work += 2;
                break;
            }
            thread::yield_now();
        }
        drop(borrowed);
        owner.join().unwrap();
        assert!(*lending.own() >= 2);
    });
}

/// Two threads ask for something each and attend to it: whoever finds the other at it leaves, and
/// nothing is left when both have.
#[test]
fn models_duty() {
    loom::model(|| {
        let duty = Arc::new((Duty::new(0_u32), Mutex::new(0_u32), AtomicBool::new(false)));
        let attend = {
            let duty = duty.clone();
            move || {
                let (sending, frames, due) = &*duty;
                let send = |sent: &mut u32| {
                    *sent += std::mem::take(&mut *frames.lock().unwrap());
                    due.swap(false, Ordering::AcqRel);
                    ControlFlow::<()>::Continue(())
                };
                let is_left = || due.load(Ordering::Acquire) || *frames.lock().unwrap() > 0;
                sending.attend(send, is_left);
            }
        };
        let beating = thread::spawn({
            let (duty, attend) = (duty.clone(), attend.clone());
            move || {
                duty.2.store(true, Ordering::Release);
                attend();
            }
        });
        *duty.1.lock().unwrap() += 1;
        attend();
        beating.join().unwrap();
        assert_eq!(*duty.0.hold(), 1, "a frame is left");
        assert!(!duty.2.load(Ordering::Acquire), "a sign of life is left");
    });
}

/// Who breaks off for want of a connection and who brings one miss nothing of each other: what was
/// to be sent is sent by one of them.
#[test]
fn models_a_duty_that_breaks_off() {
    loom::model(|| {
        let duty = Arc::new((Duty::new(0_u32), AtomicBool::new(false)));
        let attend = {
            let duty = duty.clone();
            move || {
                let (sending, is_connected) = &*duty;
                let send = |sent: &mut u32| {
                    if !is_connected.load(Ordering::Acquire) {
                        return ControlFlow::Break(());
                    }
                    *sent = 1;
                    ControlFlow::Continue(())
                };
                sending.attend(send, || false);
            }
        };
        let connecting = thread::spawn({
            let (duty, attend) = (duty.clone(), attend.clone());
            move || {
                let held = duty.0.hold();
                duty.1.store(true, Ordering::Release);
                drop(held);
                attend();
            }
        });
        attend();
        connecting.join().unwrap();
        assert_eq!(*duty.0.hold(), 1, "a frame is left");
    });
}

/// The control of the model before: with a mere store at its end, whoever did it and whoever found
/// it taken miss each other.
#[test]
#[should_panic(expected = "something is left")]
fn models_a_duty_that_ends_with_a_store() {
    loom::model(|| {
        let words = Arc::new((AtomicBool::new(false), AtomicBool::new(false)));
        let attend = {
            let words = words.clone();
            move || {
                let (is_taken, due) = &*words;
                due.store(true, Ordering::Release);
                while !is_taken.swap(true, Ordering::AcqRel) {
                    due.swap(false, Ordering::AcqRel);
                    is_taken.store(false, Ordering::Release);
                    if !due.load(Ordering::Acquire) {
                        break;
                    }
                }
            }
        };
        let other = thread::spawn(attend.clone());
        attend();
        other.join().unwrap();
        assert!(!words.1.load(Ordering::Acquire), "something is left");
    });
}
