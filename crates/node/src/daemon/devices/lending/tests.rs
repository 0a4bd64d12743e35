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

fn may_fix(lender: &Lender, who: (u32, u32), fixed: u64, quota: u64, largest: u64) -> Fixing {
    lender.may_be_fixed(&lender.lock(), who, fixed, quota, largest)
}

/// How long anybody may keep what others need.
fn silent_limit() -> Duration {
    keep_limit(Duration::ZERO)
}

fn wish(total: u64) -> Wish {
    Wish { total, ..Wish::default() }
}

fn asked(lender: &Lender, session: u32, total: u64, stands: bool) -> Option<u64> {
    lender.ask(session, wish(total), stands)
}

/// As if a session had begun to compile so long ago.
fn compiles_since(lender: &Lender, session: u32, ago: Duration) {
    let since = Instant::now().checked_sub(ago).unwrap();
    let load = Load { since, payer: session, compiles: true, is_awaited: false };
    lender.lock().loading.insert(session, load);
}

/// As if others had saved for so long for a session's module.
fn displaces_since(lender: &Lender, session: u32, ago: Duration) {
    let since = Instant::now().checked_sub(ago);
    lender.lock().displacing.insert(session, Displacing { payer: session, since });
}

fn due(lender: &Lender, session: u32) -> Option<(u64, Instant, bool)> {
    let state = lender.lock();
    state.dues.of(session).map(|due| (due.number, due.until, due.stood))
}

fn lender(pause_limit: Duration) -> Lender {
    let lender = Lender::new((CAPACITY, 4 * CAPACITY, 1), 1_000, pause_limit, 0);
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
    let may_fix = |who, fixed, largest| may_fix(&lender, who, fixed, 100, largest);
    assert_eq!(may_fix((1, 1), 15, 0), Fixing::Allowed);
    assert_eq!(may_fix((1, 1), 16, 0), Fixing::Refused);
    assert_eq!(may_fix((2, 2), 25, 65), Fixing::Allowed);
    assert_eq!(may_fix((2, 2), 25, 66), Fixing::Refused, "beside the largest of the others");
    assert_eq!(may_fix((2, 2), 26, 0), Fixing::Refused);
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
    lender.pause_load(1, 1);
    asked(&lender, 2, 50, true);
    assert_eq!(lender.lock().lending.look(NOW_NS, 2, true), Room::Waits);
    assert_eq!(lender.begin_load((1, 1), 1, (80, 0)), Some(30), "what it owes comes first");
    assert_eq!(lender.debt(1), Some(30));
    assert_eq!(lender.resume_load(1, 1, true), Some(30), "also before it compiles");
    lender.holds(1, 50, 0);
    assert_eq!(lender.resume_load(1, 1, true), None);
    compiles_since(&lender, 1, 2 * LONG_LOAD);
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
    compiles_since(&lender, 1, 2 * silent_limit());
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
    lender.lock().unheard.insert(3, Instant::now() - 2 * silent_limit());
    assert_eq!(wait(50), Room::Waits);
    assert_eq!(ended(), [1, 3]);
}

/// Whoever waited is gone: another one's wait gives it no more time, unless it has stood still.
#[test]
fn who_was_told_to_stand_still_has_its_time_once() {
    let (lender, seen) = (lender(Duration::from_secs(600)), Seen::default());
    let press = || {
        asked(&lender, 2, 50, true);
        lender.lock().lending.look(NOW_NS, 2, true);
        assert!(lender.lock().press(&seen, Duration::from_secs(600)).is_empty());
        due(&lender, 1).unwrap()
    };
    let first = press();
    seen.over.store(true, Ordering::SeqCst);
    assert_eq!(lender.wait(|| NOW_NS, 2, true, &seen), Room::Waits);
    assert_eq!(lender.debt(2), None, "another one");
    assert_eq!(press(), first);
    lender.lock().lending.cancel(2);
    assert_eq!(lender.debt(1), None, "it stands, and owes nothing");
    assert_ne!(press().0, first.0);
}

/// A load that begins while something of it flies: what it owed others are asked for meanwhile,
/// and afterwards it has as much time as before.
#[test]
fn a_load_that_does_not_stand_gains_no_time() {
    let (lender, seen) = (lender(Duration::from_secs(600)), Seen::default());
    let press = || {
        asked(&lender, 2, 50, true);
        lender.lock().lending.look(NOW_NS, 2, true);
        lender.lock().press(&seen, Duration::from_secs(600));
        due(&lender, 1).unwrap()
    };
    let first = press();
    assert_eq!(lender.resume_load(1, 1, false), None);
    assert!(lender.lock().lending.debtors().is_empty());
    let loads_for = Duration::from_secs(100);
    compiles_since(&lender, 1, loads_for);
    lender.end_load(1);
    let (number, until, _) = press();
    let gained = until.duration_since(first.1);
    assert_eq!(number, first.0);
    assert!(gained >= loads_for && gained < 2 * loads_for, "{gained:?}");
}

/// It says that it stands again and again, and saves nothing: its time is over all the same.
#[test]
fn who_stands_and_saves_nothing_gains_no_time() {
    let (lender, seen) = (lender(Duration::from_secs(600)), Seen::default());
    asked(&lender, 2, 50, true);
    lender.lock().lending.look(NOW_NS, 2, true);
    assert!(lender.lock().press(&seen, Duration::from_secs(600)).is_empty());
    assert_eq!(lender.debt(1), Some(30));
    let first = due(&lender, 1).unwrap();
    assert_eq!(lender.debt(1), Some(30));
    lender.holds(1, 80, 0);
    assert_eq!(due(&lender, 1), Some(first));
    lender.holds(1, 70, 0);
    let (.., until, stood) = due(&lender, 1).unwrap();
    assert!(stood && until > first.1, "it gets on");
    lender.holds(1, 50, 0);
    assert_eq!(due(&lender, 1), None);
}

/// The first has nothing to save, and the second has what it needs: as long as that one waits it
/// can save. Another one compiles, and has the rest.
#[test]
fn two_that_wait_for_room_for_modules_do_not_block_each_other() {
    let (lender, seen) = (lender(Duration::from_secs(600)), Seen::default());
    lender.holds(1, 0, 0);
    lender.begin(NOW_NS, 3, 3, 60);
    lender.begin(NOW_NS, 4, 4, 30);
    for who in [1, 3, 4] {
        assert_eq!(lender.begin_load((who, who), 100, (60, 0)), None);
    }
    let ask = |who, held, fixed| {
        lender.pause_load(who, who);
        let wish = Wish { total: held + fixed, fixed, missing: 0, gives: true };
        lender.ask(who, wish, true);
    };
    ask(1, 0, 25);
    ask(3, 60, 10);
    assert_eq!(lender.lock().lending.look(NOW_NS, 1, true), Room::Waits);
    assert_eq!(lender.wait(|| NOW_NS, 3, true, &seen), Room::Save { bytes: 15 });
    lender.holds(3, 45, 0);
    ask(3, 45, 10);
    assert_eq!(lender.wait(|| NOW_NS, 1, true, &seen), Room::Granted);
    assert!(lender.lock().lending.loads(1), "it compiles");
    assert_eq!(lender.wait(|| NOW_NS, 3, true, &seen), Room::Save { bytes: 10 });
    lender.holds(3, 35, 0);
    ask(3, 35, 10);
    assert_eq!(lender.wait(|| NOW_NS, 3, true, &seen), Room::Granted);
}

/// A wait that is in vain only since somebody began to compile goes on for as long as any other.
#[test]
fn a_compiler_has_its_time_from_when_somebody_waits_for_it_alone() {
    let (lender, seen) = (lender(Duration::from_secs(600)), Seen::default());
    asked(&lender, 2, 50, true);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| lender.wait(|| NOW_NS, 2, true, &seen));
        while seen.paused.lock().unwrap().is_empty() {
            std::thread::yield_now();
        }
        // The time that it has waited so far is that of one that saves.
        let began = Instant::now();
        while began.elapsed() < LOADER_LIMIT {
            std::thread::yield_now();
        }
        let since = Instant::now();
        assert_eq!(lender.resume_load(1, 1, false), None);
        assert_eq!(waits.join().unwrap(), Room::Waits);
        assert!(since.elapsed() >= LOADER_LIMIT, "others had saved for it");
    });
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
    let lender = Lender::new((1 << 40, 1 << 42, 1), 1_000, Duration::from_secs(600), 0);
    lender.begin(NOW_NS, 1, 1, 1 << 40);
    lender.begin(NOW_NS, 2, 2, 0);
    let load = Wish { total: 1 << 38, fixed: 1 << 38, missing: 0, gives: true };
    let must_pause = |vgpu| lender.must_pause((2, vgpu), &load, true).is_some();
    assert!(!must_pause(2));
    lender.ask(2, load, true);
    assert_eq!(lender.lock().lending.look(NOW_NS, 2, true), Room::Waits);
    displaces_since(&lender, 2, Duration::from_secs(1));
    lender.holds(1, (1 << 40) - (1 << 38), 0);
    assert_eq!(lender.wait(|| NOW_NS, 2, true, &Seen::default()), Room::Granted);
    let again = lender.lock().loads_again[&2];
    assert!(again > Instant::now() && !must_pause(3));
    assert!(!must_pause(2), "it has its room");
    lender.holds(2, 0, 0);
    lender.holds(1, 1 << 40, 0);
    assert!(must_pause(2) && !must_pause(3));
    // Also whose load comes to nothing, or who ends before it has its room.
    for ends in [Lender::give_up, Lender::end_load, Lender::end] {
        lender.lock().loads_again.clear();
        displaces_since(&lender, 2, Duration::from_secs(1));
        ends(&lender, 2);
        lender.begin(NOW_NS, 2, 2, 0);
        assert!(must_pause(2) && !must_pause(3));
        // `must_pause` has registered the other one.
        lender.give_up(2);
    }
}

#[test]
fn a_payers_loads_have_others_save_one_after_the_other() {
    let lender = lender(Duration::from_secs(600));
    lender.begin(NOW_NS, 3, 3, 0);
    let load = Wish { total: 30, fixed: 30, missing: 0, gives: true };
    let must_pause = |session, payer| lender.must_pause((session, payer), &load, true);
    assert_eq!(must_pause(2, 7), None);
    assert_eq!(must_pause(2, 7), None, "it is the one");
    assert_eq!(must_pause(3, 7), Some(None), "however many vGPUs it has");
    assert_eq!(must_pause(3, 8), None);
    lender.give_up(2);
    assert_eq!(must_pause(3, 7), None, "nobody has saved for it");
}

/// Asking again and again gives no more time in a turn than asking once.
#[test]
fn a_turn_has_its_time_to_bring_once() {
    let (lender, seen) = (lender(Duration::from_secs(600)), Seen::default());
    let bring = || {
        asked(&lender, 2, 20, true);
        assert_eq!(lender.wait(|| NOW_NS, 2, true, &seen), Room::Granted);
    };
    bring();
    assert!(lender.is_exchanging(2));
    let began = Instant::now().checked_sub(2 * lender.lock().dues.limit()).unwrap();
    lender.lock().exchanges.get_mut(&2).unwrap().stage = Stage::Brings(began);
    assert!(!lender.is_exchanging(2));
    bring();
    assert!(!lender.is_exchanging(2), "it had its time");
    lender.holds(2, 20, 0);
    bring();
    assert!(!lender.is_exchanging(2));
    lender.note_brought(2, 2);
    lender.end_turn(NOW_NS, 2);
    bring();
    assert!(lender.is_exchanging(2), "the next turn");
}

#[test]
fn what_moving_takes_is_weighed_by_bytes() {
    let mut rate = Rate::FIRST;
    assert_eq!(rate.expected_ns(1 << 30), (1 << 30) * FIRST_PS / 1_000);
    // Sixteen GB at 10 GB/s, and small ones between them that take a millisecond each.
    for _ in 0..16 {
        rate.note(1_000_000_000, 100_000_000);
        rate.note(1_000, 1_000_000);
    }
    let ns = rate.expected_ns(1_000_000_000);
    assert!((100_000_000..110_000_000).contains(&ns), "{ns}");
    (0..64).for_each(|_| rate.note(1, u64::MAX / 2));
    assert_eq!(rate.expected_ns(1_000), MOST_PS, "and bounded");
}

/// What it has may be of any kind until it has said so: who depends on that waits for it.
#[test]
fn what_a_session_of_an_earlier_daemon_has_is_unknown_until_it_says() {
    let lender = lender(Duration::from_secs(600));
    lender.adopt(1, 80);
    let may_fix = |who, fixed, largest| may_fix(&lender, who, fixed, 400, largest);
    assert_eq!(may_fix((2, 2), 20, 0), Fixing::Allowed, "whatever that is");
    assert_eq!(may_fix((2, 2), 20, 1), Fixing::Unknown);
    assert_eq!(may_fix((2, 1), 20, 0), Fixing::Allowed);
    let own_part = lender.may_be_fixed(&lender.lock(), (2, 1), 20, 100, 0);
    assert_eq!(own_part, Fixing::Unknown, "its vGPU's part");
    assert_eq!(may_fix((2, 2), 20, 81), Fixing::Refused);
    assert_eq!(lender.fixed_of((1, 1), 30, 400, 0), 30);
    assert_eq!(may_fix((2, 2), 20, 50), Fixing::Allowed);
    assert_eq!(may_fix((2, 2), 20, 51), Fixing::Refused);
}

#[test]
fn a_session_of_an_earlier_daemon_says_once_what_stays() {
    let lender = lender(Duration::from_secs(600));
    let fixed_of = |said, largest| lender.fixed_of((1, 1), said, 200, largest);
    assert_eq!(fixed_of(30, 71), 0, "it may have nothing of that kind beside another");
    lender.adopt(1, 80);
    let paused = Mutex::new(Vec::new());
    lender.hear(|session, _| paused.lock().unwrap().push(session));
    assert_eq!(*paused.lock().unwrap(), [1]);
    assert_eq!(lender.debt(1), Some(0), "it says what it has");
    assert_eq!(fixed_of(30, 71), 30, "others may have grown since it was allowed that");
    assert_eq!(lender.debt(1), None);
    assert_eq!(fixed_of(50, 71), 30, "once");
}

/// The earlier daemon allowed no more than this one.
#[test]
fn a_session_of_an_earlier_daemon_says_no_more_than_may_stay() {
    let lender = lender(Duration::from_secs(600));
    lender.adopt(1, 80);
    assert_eq!(lender.fixed_of((1, 1), 80, 40, 0), 10, "its vGPU's part of the device");
    lender.begin(NOW_NS, 3, 3, 0);
    lender.adopt(3, 95);
    assert_eq!(lender.fixed_of((3, 3), 95, 400, 0), 90, "beside what others have");
}

#[test]
fn of_two_that_say_at_once_what_stays_the_second_sees_the_first() {
    let lender = lender(Duration::from_secs(600));
    lender.holds(1, 40, 0);
    lender.begin(NOW_NS, 3, 3, 40);
    assert_eq!(lender.fixed_of((1, 1), 40, 200, 50), 40);
    // The first one has not said yet how much it has in all.
    assert_eq!(lender.fixed_of((3, 3), 40, 200, 50), 0);
    assert_eq!(lender.fixed_of((3, 3), 10, 200, 50), 10);
    let load = Wish { total: 20, fixed: 20, missing: 0, gives: true };
    assert_eq!(lender.ask_to_fix((2, 2), (load, true), 200, 30), Fixing::Allowed);
    assert_eq!(lender.fixed_of((3, 3), 11, 200, 30), 10, "the rest was promised");
}

/// Nobody may load what depends on it.
#[test]
fn who_says_nothing_after_a_restart_is_ended_for_loads_too() {
    let lender = lender(Duration::ZERO);
    lender.adopt(1, 80);
    assert_eq!(may_fix(&lender, (2, 2), 20, 400, 1), Fixing::Unknown);
    assert!(lender.silent_beside(2).is_empty());
    lender.lock().unheard.insert(1, Instant::now() - 2 * silent_limit());
    assert_eq!(lender.silent_beside(2), [1]);
    assert!(lender.silent_beside(1).is_empty());
    lender.end(1);
    assert!(lender.silent_beside(2).is_empty());
}

#[test]
fn who_compiles_again_and_again_has_its_time_once() {
    let (lender, seen) = (lender(Duration::ZERO), Seen::default());
    let wait = || {
        asked(&lender, 2, 50, true);
        assert_eq!(lender.wait(|| NOW_NS, 2, true, &seen), Room::Waits);
        std::mem::take(&mut *seen.ended.lock().unwrap())
    };
    // It says so once more.
    compiles_since(&lender, 1, 2 * silent_limit());
    assert_eq!(lender.resume_load(1, 1, false), None);
    assert_eq!(wait(), [1]);
    lender.lock().loading.clear();
    // Or loads one module after the other, while nobody waits and while somebody does.
    for waits in [false, false, true, true] {
        assert_eq!(lender.resume_load(1, 1, false), None);
        compiles_since(&lender, 1, silent_limit() / 3);
        assert!(!waits || wait().is_empty());
        lender.end_load(1);
    }
    assert_eq!(lender.lock().compiled[&1].as_secs(), 2 * silent_limit().as_secs() / 3);
}

/// Its disk is slow, and it comes all the same: neither is its turn over nor is it late.
#[test]
fn what_comes_slowly_gives_time_to_come() {
    let (lender, seen) = (lender(Duration::ZERO), Seen::default());
    let bring_since = |ago| {
        let since = Instant::now().checked_sub(ago).unwrap();
        lender.lock().exchanges.get_mut(&2).unwrap().stage = Stage::Brings(since);
    };
    lender.end(1);

    asked(&lender, 2, 20, true);
    assert_eq!(lender.wait(|| NOW_NS, 2, true, &seen), Room::Granted);
    let limit = lender.lock().dues.limit();
    bring_since(limit * 9 / 10);
    lender.note_bringing(2, 19);
    assert!(lender.is_exchanging(2));
    bring_since(limit);
    assert!(!lender.is_exchanging(2), "a byte is not much");
    // After a restart nobody knows how much it may be.
    lender.begin(NOW_NS, 3, 3, 0);
    lender.adopt(3, 80);
    let long_ago = Instant::now().checked_sub(2 * limit).unwrap();
    lender.lock().unheard.insert(3, long_ago);
    assert!(!lender.is_exchanging(3));
    lender.note_bringing(3, 40);
    assert!(lender.is_exchanging(3));
    lender.lock().unheard.insert(3, long_ago);
    lender.note_bringing(3, 40);
    assert_eq!(lender.lock().unheard[&3], long_ago, "nothing has come");
}
