//! Both halves over pages in plain memory.

#![expect(clippy::unwrap_used, reason = "a panic is a test's report")]

use std::cell::Cell;
use std::rc::Rc;

use weft_sched::{Class, Config, DeviceKey, Event, Node, SessionKey, TenantKey, VgpuKey, Weight};
use weft_turn::{
    Admission, Decision, Effect, Gate, Holder, Host, Length, PREDICTED_DEPTH, PlainPage, Signal,
    Terms, Turns, WaitFor,
};

const DEVICE: DeviceKey = DeviceKey(0);
const A: SessionKey = SessionKey(0);
const B: SessionKey = SessionKey(1);
const KERNEL_NS: u64 = 1_000_000;

/// A clock, and what the core was told.
#[derive(Default)]
struct Bench {
    now_ns: Rc<Cell<u64>>,
    told: Vec<Event>,
}

impl Host for Bench {
    fn now_ns(&self) -> u64 {
        self.now_ns.get()
    }

    fn decided(&mut self, decision: &Decision<'_>) {
        decision.result.unwrap();
        self.told.push(decision.event);
    }
}

/// Two sessions, of a vGPU each.
fn two() -> (Bench, Turns<PlainPage>, [Holder<PlainPage>; 2]) {
    let mut bench = Bench::default();
    let mut turns = Turns::new(Node::new());
    turns.tell(&mut bench, Event::DeviceUp { device: DEVICE, config: Config::default() });
    let holders = [A, B].map(|session| {
        let vgpu = VgpuKey(session.0);
        let (tenant, weight) = (TenantKey::DEFAULT, Weight::ONE);
        turns.tell(&mut bench, Event::AddVgpu { vgpu, device: DEVICE, tenant, weight });
        let page = PlainPage::new(Terms::default(), Rc::clone(&bench.now_ns));
        turns.begin(&mut bench, session, vgpu, Gate::new(page.clone()));
        Holder::new(page)
    });
    bench.told.clear();
    turns.take_effects();
    (bench, turns, holders)
}

#[test]
fn a_turn_goes_from_one_session_to_the_next() {
    let (mut bench, mut turns, [mut a, mut b]) = two();
    a.set_runnable(KERNEL_NS);
    assert_eq!(a.admit(KERNEL_NS), Admission::Wait(WaitFor::Grant));
    assert_eq!(a.page().take_signal(), Signal::Ring);
    turns.refresh(&mut bench, A);
    assert!(matches!(a.admit(KERNEL_NS), Admission::Admitted { .. }), "alone it has the device");
    b.set_runnable(KERNEL_NS);
    turns.refresh(&mut bench, B);
    assert_eq!(b.admit(KERNEL_NS), Admission::Wait(WaitFor::Grant));
    // The lone tenant's turn has an end now: it works until its budget is used up.
    let mut worked_ns = 0;
    let charged = |holder: &mut Holder<PlainPage>| {
        bench.now_ns.set(bench.now_ns.get() + KERNEL_NS);
        holder.charge(KERNEL_NS, KERNEL_NS);
        KERNEL_NS
    };
    worked_ns += charged(&mut a);
    while matches!(a.admit(KERNEL_NS), Admission::Admitted { .. }) {
        worked_ns += charged(&mut a);
    }
    assert!(a.try_release(0), "after {worked_ns} ns");
    assert!(worked_ns <= 2 * Config::default().quantum_ns, "{worked_ns}");
    turns.take_effects();
    turns.refresh(&mut bench, A);
    let effects = turns.take_effects();
    assert!(effects.contains(&Effect::Ended { session: A, used_ns: worked_ns }), "{effects:?}");
    assert!(effects.contains(&Effect::Granted { session: B, begins: true }), "{effects:?}");
    assert!(matches!(b.admit(KERNEL_NS), Admission::Admitted { .. }));
}

/// The core grants before it has looked at everybody's page. Who wants nothing any more and does
/// not look, because it compiles, holds nobody up.
#[test]
fn a_turn_that_comes_too_late_is_the_next_ones() {
    let (mut bench, mut turns, [mut a, mut b]) = two();
    for (session, holder) in [(A, &mut a), (B, &mut b)] {
        holder.set_runnable(KERNEL_NS);
        turns.refresh(&mut bench, session);
    }
    let quantum_ns = Config::default().quantum_ns;
    assert!(matches!(a.admit(quantum_ns), Admission::Admitted { .. }), "it has the device");
    bench.now_ns.set(quantum_ns);
    a.charge(quantum_ns, quantum_ns);
    assert!(a.try_release(0));
    b.set_idle();
    turns.refresh(&mut bench, A);
    assert!(turns.session(B).unwrap().has_turn(), "nobody has looked at what it wants");
    turns.refresh(&mut bench, B);
    let yields = |bench: &mut Bench, turns: &mut Turns<PlainPage>| {
        bench.now_ns.set(turns.timer_ns().unwrap());
        assert!(turns.keep_time(bench));
    };
    yields(&mut bench, &mut turns);
    let effects = turns.take_effects();
    assert!(effects.contains(&Effect::Reclaimed { session: B }), "{effects:?}");
    turns.refresh(&mut bench, B);
    yields(&mut bench, &mut turns);
    assert!(a.left_ns() > 0, "it waits for who wants nothing");
}

/// Whoever brought its memory has it in what follows, until somebody else has had a turn.
#[test]
fn a_grant_says_whether_what_was_brought_is_there() {
    let (mut bench, mut turns, [mut a, mut b]) = two();
    let follows = |holder: &mut Holder<PlainPage>| {
        assert!(holder.left_ns() > 0, "it has the device");
        holder.grant().unwrap().follows
    };
    a.set_runnable(KERNEL_NS);
    turns.refresh(&mut bench, A);
    assert!(!follows(&mut a), "nobody had a turn before");
    b.set_runnable(KERNEL_NS);
    turns.refresh(&mut bench, B);
    assert!(follows(&mut a), "the turn has an end now, and goes on");
    a.set_idle();
    turns.refresh(&mut bench, A);
    assert!(!follows(&mut b), "the other one had it");
    b.set_idle();
    b.release();
    turns.refresh(&mut bench, B);
    b.set_runnable(KERNEL_NS);
    turns.refresh(&mut bench, B);
    assert!(follows(&mut b), "nobody had a turn meanwhile");
    b.set_idle();
    b.release();
    turns.refresh(&mut bench, B);
    a.set_runnable(KERNEL_NS);
    turns.refresh(&mut bench, A);
    assert!(!follows(&mut a), "its second turn, and not the device's");
}

/// What has happened since a timer was due happened after it: the core is told in that order, and
/// what the holder used until then before both.
#[test]
fn a_timer_that_is_due_is_told_first() {
    let (mut bench, mut turns, [mut a, mut b]) = two();
    a.set_runnable(KERNEL_NS);
    turns.refresh(&mut bench, A);
    b.set_runnable(KERNEL_NS);
    turns.refresh(&mut bench, B);
    let due_ns = turns.timer_ns().expect("a holder beside whom somebody waits has a limit");
    b.count_sync_call();
    bench.told.clear();
    bench.now_ns.set(due_ns - 1);
    turns.refresh(&mut bench, B);
    assert!(!bench.told.contains(&Event::Timer), "{:?}", bench.told);
    b.count_sync_call();
    bench.told.clear();
    bench.now_ns.set(due_ns);
    turns.refresh(&mut bench, B);
    assert!(matches!(bench.told[0], Event::Used { session: A, .. }), "{:?}", bench.told);
    assert_eq!(bench.told[1], Event::Timer);
    assert_eq!(bench.told[2], Event::SyncCalls { session: B, calls: 2 });
    assert!(!turns.keep_time(&mut bench), "it is told once");
}

#[test]
fn a_session_that_goes_leaves_its_turn_to_the_next() {
    let (mut bench, mut turns, [mut a, mut b]) = two();
    a.set_runnable(KERNEL_NS);
    turns.refresh(&mut bench, A);
    a.admit(KERNEL_NS);
    b.set_runnable(KERNEL_NS);
    turns.refresh(&mut bench, B);
    turns.take_effects();
    // It dies with a kernel in flight, of which half was executed.
    turns.end(&mut bench, A, |session| {
        let report = session.gate.report();
        assert_eq!(report.in_flight_ns, KERNEL_NS);
        weft_turn::Report { used_ns: KERNEL_NS / 2, in_flight_ns: 0, ..report }
    });
    let effects = turns.take_effects();
    assert!(effects.contains(&Effect::Ended { session: A, used_ns: KERNEL_NS / 2 }), "{effects:?}");
    assert!(effects.contains(&Effect::Granted { session: B, begins: true }), "{effects:?}");
    assert!(turns.session(A).is_none());
    assert_eq!(turns.node().vgpu(VgpuKey(0)).unwrap().used_ns, KERNEL_NS / 2);
}

/// Operations that were stopped and go on, and such that were taken back before they began.
/// Beside a user-facing vGPU a turn has no more in flight than a slice, and goes on when that has
/// completed; a lone one, too.
#[test]
fn a_slice_bounds_what_flies() {
    let (mut bench, mut turns, [mut a, mut b]) = two();
    let class = Class::UserFacing { sla_ns: 200_000_000 };
    turns.tell(&mut bench, Event::SetClass { vgpu: VgpuKey(B.0), class });
    a.set_runnable(KERNEL_NS);
    turns.refresh(&mut bench, A);
    assert_eq!(a.admit(KERNEL_NS), Admission::Admitted { left_ns: 2 * KERNEL_NS });
    assert_eq!(a.admit(KERNEL_NS), Admission::Admitted { left_ns: KERNEL_NS });
    assert_eq!(a.admit(KERNEL_NS), Admission::Wait(WaitFor::Completion));
    b.set_runnable(KERNEL_NS);
    turns.refresh(&mut bench, B);
    assert_eq!(a.admit(KERNEL_NS), Admission::Wait(WaitFor::Handover), "it is preempted");
    let two_ns = 2 * KERNEL_NS;
    bench.now_ns.set(bench.now_ns.get() + two_ns);
    a.charge(KERNEL_NS, KERNEL_NS);
    a.charge(KERNEL_NS, KERNEL_NS);
    assert!(a.try_release(0));
    turns.refresh(&mut bench, A);
    let quantum_ns = Config::default().quantum_ns;
    assert_eq!(b.admit(KERNEL_NS), Admission::Admitted { left_ns: quantum_ns });
}

/// What flies may turn out as long as anything unless its length is told.
#[test]
fn few_of_predicted_length_fly_and_a_guess_flies_alone() {
    let (.., [holder, _]) = two();
    let may = |flying, length| holder.may_join(flying, false, length, PREDICTED_DEPTH);
    assert!(may(PREDICTED_DEPTH - 1, Length::Predicted));
    assert!(!may(PREDICTED_DEPTH, Length::Predicted));
    assert!(holder.may_join(0, false, Length::Predicted, 1));
    assert!(!holder.may_join(1, false, Length::Predicted, 1));
    assert!(may(100, Length::Told));
    assert!(may(0, Length::Guessed) && !may(1, Length::Guessed));
    assert!(!holder.may_join(1, true, Length::Told, PREDICTED_DEPTH), "something joins a guess");
    let terms = Terms { unmanaged: true, ..Terms::default() };
    let free = Holder::new(PlainPage::new(terms, Rc::new(Cell::new(0))));
    assert!(free.may_join(100, false, Length::Predicted, 1));
}

/// Beside a user-facing vGPU a kernel that is not cut starts behind another one when a request
/// would wait for no more than a slice of both.
#[test]
fn a_long_kernel_waits_until_there_is_room_for_it() {
    let (mut bench, mut turns, [mut a, _b]) = two();
    let class = Class::UserFacing { sla_ns: 200_000_000 };
    turns.tell(&mut bench, Event::SetClass { vgpu: VgpuKey(B.0), class });
    let long_ns = 1_600_000;
    a.set_runnable(long_ns);
    turns.refresh(&mut bench, A);
    assert_eq!(a.room_in_ns(10 * long_ns, 0), 0, "nothing flies");
    assert!(matches!(a.admit(long_ns), Admission::Admitted { .. }));
    assert_eq!(a.room_in_ns(100_000, 0), 0, "both are less than a slice");
    assert_eq!(a.room_in_ns(long_ns, 0), 1_200_000);
    assert_eq!(a.room_in_ns(long_ns, 1_200_000), 0);
    assert_eq!(a.room_in_ns(10 * long_ns, 1_200_000), long_ns - 1_200_000, "it flies alone");
    assert!(matches!(a.admit(300_000), Admission::Admitted { .. }));
    assert_eq!(a.room_in_ns(300_000, 0), 200_000);
    assert_eq!(a.room_in_ns(200_000, 0), 0, "a short one goes beyond the slice by little");
    let (mut bench, mut turns, [mut a, _b]) = two();
    a.set_runnable(long_ns);
    turns.refresh(&mut bench, A);
    assert!(matches!(a.admit(long_ns), Admission::Admitted { .. }));
    assert_eq!(a.room_in_ns(10 * long_ns, 0), 0, "nobody goes first");
}

#[test]
fn what_was_in_flight_before_a_turn_is_not_the_turns() {
    let (mut bench, mut turns, [mut a, _]) = two();
    a.set_runnable(KERNEL_NS);
    turns.refresh(&mut bench, A);
    a.admit(4 * KERNEL_NS);
    a.admit(KERNEL_NS);
    a.withdraw(KERNEL_NS);
    assert_eq!(a.in_flight_ns(), 4 * KERNEL_NS);
    a.release();
    turns.refresh(&mut bench, A);
    assert!(a.is_holder(), "the next turn has begun");
    // Prolonged by one kernel's time: only that is the new turn's.
    a.admit(KERNEL_NS);
    a.charge(5 * KERNEL_NS, 5 * KERNEL_NS);
    assert_eq!((a.used_ns(), a.in_flight_ns()), (5 * KERNEL_NS, 0));
}

/// The other device.
const ELSEWHERE: DeviceKey = DeviceKey(1);

#[test]
fn who_moves_has_its_turns_where_it_went_and_leaves_none_behind() {
    let (mut bench, mut turns, [mut a, mut b]) = two();
    turns.tell(&mut bench, Event::DeviceUp { device: ELSEWHERE, config: Config::default() });
    for (holder, session) in [(&mut a, A), (&mut b, B)] {
        holder.set_runnable(KERNEL_NS);
        turns.refresh(&mut bench, session);
    }
    assert!(matches!(a.admit(KERNEL_NS), Admission::Admitted { .. }));
    a.charge(KERNEL_NS, KERNEL_NS);
    // It did not give its turn back: it is over all the same, and the other one has the device.
    turns.relocate(&mut bench, VgpuKey(0), ELSEWHERE);
    assert!(!turns.session(A).unwrap().has_turn());
    assert_eq!(turns.session(A).unwrap().device, ELSEWHERE);
    assert!(matches!(b.admit(KERNEL_NS), Admission::Admitted { .. }));
    // Both work at once now, each alone on its device.
    assert!(matches!(a.admit(KERNEL_NS), Admission::Wait(_)));
    assert!(a.try_release(0));
    turns.refresh(&mut bench, A);
    assert!(matches!(a.admit(KERNEL_NS), Admission::Admitted { .. }));
    assert_eq!(turns.node().holders(DEVICE), [B]);
    assert_eq!(turns.node().holders(ELSEWHERE), [A]);
    // A place that nobody knows changes nothing.
    bench.told.clear();
    let node = turns.node().snapshot();
    let mut refused = Refused::default();
    turns.relocate(&mut refused, VgpuKey(0), DeviceKey(9));
    assert!(refused.0);
    assert_eq!(turns.node().snapshot().vgpus, node.vgpus);
    assert!(turns.session(A).unwrap().has_turn());
}

/// A host that notes whether the core refused something.
#[derive(Default)]
struct Refused(bool);

impl Host for Refused {
    fn now_ns(&self) -> u64 {
        0
    }

    fn decided(&mut self, decision: &Decision<'_>) {
        self.0 |= decision.result.is_err();
    }
}
