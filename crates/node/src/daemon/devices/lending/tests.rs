use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

const CAPACITY: u64 = 100;
const NOW_NS: u64 = 1;

/// What happened to those that owe.
#[derive(Default)]
struct Seen {
    paused: Mutex<Vec<u32>>,
    ended: Mutex<Vec<u32>>,
    over: AtomicBool,
}

impl Pressure for Seen {
    fn pause(&self, session: u32, _number: u64) {
        self.paused.lock().unwrap().push(session);
    }

    fn end(&self, session: u32) {
        self.ended.lock().unwrap().push(session);
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }
}

fn wish(total: u64) -> Wish {
    Wish { total, ..Wish::default() }
}

fn asked(lender: &Lender, session: u32, total: u64, stands: bool) -> Option<u64> {
    lender.ask(session, wish(total), stands)
}

fn lender(pause_limit: Duration) -> Lender {
    let lender = Lender::new((CAPACITY, 4 * CAPACITY), 1_000, pause_limit, 0);
    lender.begin(NOW_NS, 1, 1, 80);
    lender.begin(NOW_NS, 2, 2, 0);
    lender
}

#[test]
fn who_waits_is_served_when_the_other_has_saved() {
    let (lender, seen) = (lender(Duration::from_secs(600)), Seen::default());
    assert_eq!(asked(&lender, 2, 50, true), Some((50 + 30) * FIRST_PS / 1_000));
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| lender.wait(|| NOW_NS, 2, true, &seen));
        while seen.paused.lock().unwrap().is_empty() {
            std::thread::yield_now();
        }
        assert_eq!(lender.debt(1), Some(30));
        lender.holds(1, 50, 0);
        assert_eq!(waits.join().unwrap(), Room::Granted);
    });
    assert_eq!(lender.debt(1), None);
    assert!(seen.ended.lock().unwrap().is_empty());
    assert!(lender.is_exchanging(2) && !lender.is_exchanging(1));
    lender.note_brought(2, 2);
    assert!(!lender.is_exchanging(2));
    let mut report = MemoryReport::default();
    lender.describe(&mut report, |vgpu| vgpu.to_string());
    assert_eq!((report.switches, report.moved_bytes), (1, 80));
    assert!(report.copying_ns > 0);
}

#[test]
fn who_does_not_save_is_ended_and_its_memory_is_free() {
    let (lender, seen) = (lender(Duration::ZERO), Seen::default());
    asked(&lender, 2, 50, true);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| lender.wait(|| NOW_NS, 2, true, &seen));
        while seen.ended.lock().unwrap().is_empty() {
            std::thread::yield_now();
        }
        lender.end(1);
        assert_eq!(waits.join().unwrap(), Room::Granted);
    });
    assert_eq!(*seen.ended.lock().unwrap(), [1], "once");
}

#[test]
fn what_stays_on_the_device_is_a_vgpus_part_of_it() {
    let lender = lender(Duration::from_secs(600));
    lender.begin(NOW_NS, 3, 1, 0);
    lender.holds(3, 20, 10);
    // A quarter of the quota, as all of the device is of what is lent.
    assert!(lender.may_fix(1, 1, 15, 100) && !lender.may_fix(1, 1, 16, 100));
    assert!(lender.may_fix(2, 2, 25, 100) && !lender.may_fix(2, 2, 26, 100));
}

#[test]
fn who_cannot_wait_is_told_so_and_asks_anew() {
    let (lender, seen) = (lender(Duration::from_secs(600)), Seen::default());
    assert!(asked(&lender, 2, 50, false).is_some());
    assert_eq!(lender.wait(|| NOW_NS, 2, false, &seen), Room::Waits);
    assert_eq!(lender.debt(1), None, "nobody waits for it");
    asked(&lender, 2, 20, false);
    assert_eq!(lender.wait(|| NOW_NS, 2, false, &seen), Room::Granted);
    assert_eq!(asked(&lender, 2, CAPACITY + 1, true), None);
    assert_eq!(lender.wait(|| NOW_NS, 2, true, &seen), Room::Refused);
    seen.over.store(true, Ordering::SeqCst);
    asked(&lender, 2, 90, true);
    assert_eq!(lender.wait(|| NOW_NS, 2, true, &seen), Room::Waits, "it is gone");
}

#[test]
fn who_loads_a_module_is_not_ended_and_not_waited_for() {
    let (lender, seen) = (lender(Duration::ZERO), Seen::default());
    assert_eq!(lender.begin_load((1, 1), 100, (80, 70)), None);
    assert_eq!(asked(&lender, 2, 50, true), None, "it comes later");
    assert_eq!(lender.wait(|| NOW_NS, 2, true, &seen), Room::Waits);
    assert!(seen.ended.lock().unwrap().is_empty());
    lender.end_load(1);
    assert!(lender.lock().slow.contains_key(&1), "somebody waited for it in vain");
    lender.lock().slow.clear();
    // One whose images are large gives first what others lack.
    assert_eq!(lender.begin_load((1, 1), LONG_IMAGES, (80, 70)), Some(70));
    lender.holds(1, 10, 0);
    assert_eq!(lender.begin_load((1, 1), LONG_IMAGES, (80, 70)), None, "it has");
    // Who waits to compile can save.
    lender.holds(1, 80, 0);
    lender.pause_load(1);
    asked(&lender, 2, 50, true);
    assert_eq!(lender.lock().lending.look(NOW_NS, 2, true), Room::Waits);
    assert_eq!(lender.begin_load((1, 1), 1, (80, 0)), Some(30), "what it owes comes first");
    assert_eq!(lender.debt(1), Some(30));
    lender.resume_load(1, 1);
    lender.lock().loading.insert(1, (Instant::now() - 2 * LONG_LOAD, 1));
    lender.end_load(1);
    assert!(lender.lock().slow.contains_key(&1));
}

#[test]
fn who_loads_for_ever_keeps_what_others_need_for_a_while_only() {
    let (lender, seen) = (lender(Duration::ZERO), Seen::default());
    assert_eq!(lender.begin_load((1, 1), 100, (80, 70)), None);
    let wait = |total| {
        asked(&lender, 2, total, true);
        lender.wait(|| NOW_NS, 2, true, &seen)
    };
    let ended = || seen.ended.lock().unwrap().clone();
    assert_eq!(wait(50), Room::Waits);
    assert!(ended().is_empty());
    lender.lock().loading.insert(1, (Instant::now() - 2 * SILENT_LIMIT, 1));
    assert_eq!(wait(20), Room::Granted, "nobody needs what it has");
    assert!(ended().is_empty());
    assert_eq!(wait(50), Room::Waits);
    assert_eq!(ended(), [1]);
    // So long is also what a session of an earlier daemon has that says nothing.
    lender.end(1);
    lender.begin(NOW_NS, 3, 3, 0);
    lender.adopt(3, 80);
    assert_eq!(wait(50), Room::Waits);
    assert_eq!(ended(), [1]);
    lender.lock().unheard.insert(3, Instant::now() - 2 * SILENT_LIMIT);
    assert_eq!(wait(50), Room::Waits);
    assert_eq!(ended(), [1, 3]);
}

/// Somebody has it asked and is gone before it stands; whoever asks later gives it its time.
#[test]
fn what_nobody_waits_for_any_more_is_no_debt() {
    let (lender, seen) = (lender(Duration::from_secs(600)), Seen::default());
    let press = |limit| {
        asked(&lender, 2, 50, true);
        lender.lock().lending.look(NOW_NS, 2, true);
        let late = lender.lock().press(&seen, limit);
        (late, lender.lock().due[&1])
    };
    let (late, first) = press(Duration::ZERO);
    assert_eq!(late, [1]);
    seen.over.store(true, Ordering::SeqCst);
    assert_eq!(lender.wait(|| NOW_NS, 2, true, &seen), Room::Waits);
    assert!(lender.lock().due.is_empty());
    let (late, second) = press(Duration::from_secs(600));
    assert!(late.is_empty() && second.number != first.number, "{first:?} {second:?}");
}

/// It says that it stands again and again, and saves nothing: its time is over all the same.
#[test]
fn who_stands_and_saves_nothing_gains_no_time() {
    let (lender, seen) = (lender(Duration::from_secs(600)), Seen::default());
    asked(&lender, 2, 50, true);
    assert!(lender.lock().press(&seen, Duration::from_secs(600)).is_empty());
    lender.lock().lending.look(NOW_NS, 2, true);
    lender.lock().press(&seen, Duration::from_secs(600));
    let due = || lender.lock().due[&1];
    assert_eq!(lender.debt(1), Some(30));
    let first = due();
    assert_eq!(lender.debt(1), Some(30));
    lender.holds(1, 80, 0);
    assert_eq!((due().until, due().number), (first.until, first.number));
    lender.holds(1, 70, 0);
    assert!(due().until > first.until && due().number != first.number, "it gets on");
    lender.holds(1, 50, 0);
    assert!(lender.lock().due.is_empty());
}

/// Its memory takes longer to come than it would have to stand still.
#[test]
fn who_brings_its_memory_is_not_late_with_what_it_owes() {
    let (lender, seen) = (lender(Duration::ZERO), Seen::default());
    asked(&lender, 2, 20, true);
    assert_eq!(lender.wait(|| NOW_NS, 2, true, &seen), Room::Granted);
    asked(&lender, 1, 100, true);
    lender.lock().lending.look(NOW_NS, 1, true);
    assert!(lender.lock().press(&seen, Duration::ZERO).is_empty());
    lender.note_brought(2, 2);
    assert_eq!(lender.lock().press(&seen, Duration::ZERO), [2]);
}

#[test]
fn loads_have_others_save_for_a_part_of_the_time_only() {
    let lender = Lender::new((1 << 40, 1 << 42), 1_000, Duration::from_secs(600), 0);
    lender.begin(NOW_NS, 1, 1, 1 << 40);
    lender.begin(NOW_NS, 2, 2, 0);
    let load = Wish { total: 1 << 38, fixed: 1 << 38, missing: 0, gives: true };
    let must_pause = |vgpu| lender.must_pause((2, vgpu), &load, true).is_some();
    assert!(!must_pause(2));
    lender.ask(2, load, true);
    assert_eq!(lender.lock().lending.look(NOW_NS, 2, true), Room::Waits);
    // As if it had waited for others for a second.
    lender.lock().displacing.insert(2, Instant::now() - Duration::from_secs(1));
    lender.holds(1, (1 << 40) - (1 << 38), 0);
    assert_eq!(lender.wait(|| NOW_NS, 2, true, &Seen::default()), Room::Granted);
    let again = lender.lock().loads_again[&2];
    assert!(again > Instant::now() && !must_pause(3));
    assert!(!must_pause(2), "it has its room");
    lender.holds(2, 0, 0);
    lender.holds(1, 1 << 40, 0);
    assert!(must_pause(2) && !must_pause(3));
    // Also who ends before it has its room.
    lender.lock().displacing.insert(2, Instant::now() - Duration::from_secs(1));
    lender.lock().loads_again.clear();
    lender.end(2);
    lender.begin(NOW_NS, 2, 2, 0);
    assert!(must_pause(2) && !must_pause(3));
}

#[test]
fn a_session_of_an_earlier_daemon_says_once_what_stays() {
    let lender = lender(Duration::from_secs(600));
    assert_eq!(lender.fixed_of(1, 30), 0, "it was allowed nothing");
    lender.adopt(1, 80);
    let paused = Mutex::new(Vec::new());
    lender.hear(|session, _| paused.lock().unwrap().push(session));
    assert_eq!(*paused.lock().unwrap(), [1]);
    assert_eq!(lender.debt(1), Some(0), "it says what it has");
    assert_eq!(lender.fixed_of(1, 30), 30);
    assert_eq!(lender.debt(1), None);
    assert_eq!(lender.fixed_of(1, 50), 30, "once");
}
