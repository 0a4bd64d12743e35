//! The exact actions of small histories: what a driver sees.

use weft_sched::{
    Action, Actions, Cap, Config, DeviceKey, Event, EventError, Node, SessionKey, TenantKey,
    TimerReason, UNLIMITED, Usage, VgpuKey, Weight, policy,
};

pub(crate) const D: DeviceKey = DeviceKey(0);
pub(crate) const A: SessionKey = SessionKey(0);
pub(crate) const B: SessionKey = SessionKey(1);
pub(crate) const MS: u64 = 1_000_000;
pub(crate) const US: u64 = 1_000;

/// A node with one device and two vGPUs of weight 1 with one session each.
pub(crate) fn node() -> Node {
    let mut node = Node::new();
    feed(&mut node, 0, up(D, terms()));
    for key in 0..2 {
        let (vgpu, session) = (VgpuKey(key), SessionKey(key));
        let (tenant, weight) = (TenantKey::DEFAULT, Weight::ONE);
        feed(&mut node, 0, Event::AddVgpu { vgpu, tenant, device: D, weight });
        feed(&mut node, 0, Event::AddSession { session, vgpu });
    }
    node
}

/// Round times, whatever the defaults are.
fn terms() -> Config {
    Config { overlap_ns: 100 * US, prepare_lead_ns: 200 * US, ..Config::default() }
}

fn up(device: DeviceKey, config: Config) -> Event {
    Event::DeviceUp { device, config }
}

pub(crate) fn feed(node: &mut Node, now_ns: u64, event: Event) -> Vec<Action> {
    let mut actions = Actions::new();
    node.handle(now_ns, event, &mut actions).unwrap();
    actions.drain().collect()
}

pub(crate) fn grant(session: SessionKey, epoch: u64, budget_ns: u64) -> Action {
    Action::Grant { session, device: D, epoch, budget_ns }
}

fn revoke(session: SessionKey, epoch: u64) -> Action {
    Action::Revoke { session, device: D, epoch }
}

fn timer(at_ns: u64, why: TimerReason) -> Action {
    Action::Timer { at_ns, why }
}

pub(crate) fn runnable(session: SessionKey) -> Event {
    Event::Runnable { session, estimate_ns: 0 }
}

pub(crate) fn released(session: SessionKey, epoch: u64, used_ns: u64, in_flight_ns: u64) -> Event {
    Event::Released { session, epoch, usage: Usage { used_ns, in_flight_ns, idle_ns: 0 } }
}

#[test]
fn a_lone_tenant_is_granted_once() {
    let mut node = node();
    assert_eq!(feed(&mut node, 0, runnable(A)), [grant(A, 1, UNLIMITED)]);
    // Pauses and new work of its own need no decision.
    let idle = feed(&mut node, 9 * MS, Event::Idle { session: A });
    assert_eq!(idle, [Action::DeviceIdle { device: D }]);
    assert_eq!(feed(&mut node, 50 * MS, runnable(A)), []);
}

#[test]
fn a_lone_tenant_keeps_the_rest_of_its_quantum() {
    let mut node = node();
    feed(&mut node, 0, runnable(A));
    assert_eq!(
        feed(&mut node, 2 * MS, runnable(B)),
        [grant(A, 1, 6 * MS), timer(5_800 * US, TimerReason::Prepare)]
    );
    assert_eq!(
        feed(&mut node, 5_800 * US, Event::Timer),
        [Action::Prepare { session: B, device: D }, timer(6_100 * US, TimerReason::Revoke)]
    );
    assert_eq!(
        feed(&mut node, 6 * MS, released(A, 1, 6 * MS, 0)),
        [grant(B, 2, 6 * MS), timer(11_800 * US, TimerReason::Prepare)]
    );
}

#[test]
fn a_lone_tenant_past_its_quantum_is_revoked_at_once() {
    let mut node = node();
    feed(&mut node, 0, runnable(A));
    assert_eq!(
        feed(&mut node, 60 * MS, runnable(B)),
        [
            revoke(A, 1),
            Action::Prepare { session: B, device: D },
            timer(10_060 * MS, TimerReason::Overdue)
        ]
    );
}

/// A's turn ended with more than a quantum in flight, B left, A got the device back alone: when B
/// returns, A has nothing left of a quantum.
#[test]
fn a_turn_begun_with_a_quantum_in_flight_ends_when_another_comes() {
    let mut node = node();
    feed(&mut node, 0, runnable(A));
    feed(&mut node, 0, runnable(B));
    feed(&mut node, 0, released(A, 1, 0, 7 * MS));
    let idle = feed(&mut node, 100 * US, Event::Idle { session: B });
    assert_eq!(idle[0], grant(A, 2, UNLIMITED));
    let back = feed(&mut node, 100 * US, runnable(B));
    assert_eq!(back[0], revoke(A, 2));
}

#[test]
fn a_holder_that_stays_idle_yields() {
    let mut node = node();
    feed(&mut node, 0, runnable(A));
    feed(&mut node, 0, runnable(B));
    assert_eq!(
        feed(&mut node, MS, Event::Idle { session: A }),
        // B is alone now, but A holds the device.
        [timer(1_100 * US, TimerReason::Yield)]
    );
    // Work in time keeps the turn.
    assert_eq!(feed(&mut node, 1_099 * US, runnable(A)), [timer(5_800 * US, TimerReason::Prepare)]);
    feed(&mut node, 2 * MS, Event::Idle { session: A });
    let yielded = feed(&mut node, 2_100 * US, Event::Timer);
    assert_eq!(yielded[0], revoke(A, 1));
}

/// B works through its turns, and A has nothing to do in its own for a millisecond each. It is as
/// with anybody at first; then A's turns are not expected to last.
#[test]
fn the_successor_of_who_wastes_its_turns_is_awake_when_they_begin() {
    let mut node = node();
    feed(&mut node, 0, runnable(B));
    feed(&mut node, 0, runnable(A));
    let (mut now_ns, mut used_ns, mut at_once) = (0, 0, Vec::new());
    for turn in 0..8 {
        // A little less than A is thought to take: B comes before another turn of A's.
        (now_ns, used_ns) = (now_ns + 6 * MS, used_ns + 5_900 * US);
        let begun = feed(&mut node, now_ns, released(B, 2 * turn + 1, used_ns, 0));
        assert_eq!(begun[0], grant(A, 2 * turn + 2, 6 * MS));
        at_once.push(begun.contains(&Action::Prepare { session: B, device: D }));
        now_ns += MS;
        feed(&mut node, now_ns, Event::Idle { session: A });
        feed(&mut node, now_ns, released(A, 2 * turn + 2, 0, 0));
        // It is not back in the moment for which it is waited for.
        now_ns += 100 * US;
        feed(&mut node, now_ns, Event::Timer);
        feed(&mut node, now_ns, runnable(A));
    }
    assert_eq!(at_once, [false, false, false, false, false, false, true, true]);
    // One of A's turns lasts after all: B, which is awake for a moment only, is told again.
    (now_ns, used_ns) = (now_ns + 6 * MS, used_ns + 5_900 * US);
    let begun = feed(&mut node, now_ns, released(B, 17, used_ns, 0));
    let prepare = Action::Prepare { session: B, device: D };
    assert!(begun.contains(&grant(A, 18, 6 * MS)) && begun.contains(&prepare), "{begun:?}");
    assert_eq!(begun.last(), Some(&timer(now_ns + 100 * US, TimerReason::Prepare)));
    let asleep = feed(&mut node, now_ns + 100 * US, Event::Timer);
    assert!(!asleep.contains(&prepare), "{asleep:?}");
    let later = feed(&mut node, now_ns + 5_800 * US, Event::Timer);
    assert!(later.contains(&prepare), "{later:?}");
}

#[test]
fn work_in_flight_delays_the_successor_until_it_all_but_drained() {
    let mut node = node();
    feed(&mut node, 0, runnable(A));
    feed(&mut node, 0, runnable(B));
    // All submitted after 1 ms: 5 ms are left on the device, B may queue 100 µs before.
    assert_eq!(
        feed(&mut node, MS, released(A, 1, MS, 5 * MS)),
        [Action::Prepare { session: B, device: D }, timer(5_900 * US, TimerReason::Handover)]
    );
    // It finishes sooner than predicted.
    let used = Usage { used_ns: 3 * MS, in_flight_ns: 50 * US, idle_ns: 0 };
    let early = feed(&mut node, 3 * MS, Event::Used { session: A, usage: used });
    assert_eq!(early[0], grant(B, 2, 6 * MS));
    assert_eq!(node.vgpu(VgpuKey(0)).unwrap().used_ns, 3 * MS);
    assert_eq!(node.vgpu(VgpuKey(0)).unwrap().held_ns, 3_050 * US);
}

/// What a switch of memory takes is no time of the turn: it ends later, with the same budget.
#[test]
fn a_switch_of_memory_lengthens_the_turn_and_not_its_budget() {
    let mut node = node();
    feed(&mut node, 0, runnable(A));
    feed(&mut node, 0, runnable(B));
    let switched = |session| Event::Switched { session, switch_ns: 5 * MS, ahead_ns: 0 };
    let later = feed(&mut node, 100 * US, switched(A));
    assert_eq!(later, [timer(10_800 * US, TimerReason::Prepare)]);
    // Once: what it makes the device lack within its turn is the turn's own time.
    assert_eq!(feed(&mut node, 150 * US, switched(A)), []);
    // One that has no turn gets none by it.
    assert_eq!(feed(&mut node, 200 * US, switched(B)), []);
    feed(&mut node, 10_800 * US, Event::Timer);
    assert!(!feed(&mut node, 11_099 * US, Event::Timer).contains(&revoke(A, 1)));
    let used = Usage { used_ns: 5 * MS, in_flight_ns: 0, idle_ns: 0 };
    feed(&mut node, 11_099 * US, Event::Used { session: A, usage: used });
    assert_eq!(feed(&mut node, 11_100 * US, Event::Timer)[0], revoke(A, 1));
    feed(&mut node, 11_100 * US, released(A, 1, 5 * MS, 0));
    // The five ms of the switch are on nobody's account.
    let [a, b] = [0, 1].map(|key| node.vgpu(VgpuKey(key)).unwrap());
    assert_eq!((a.held_ns, b.held_ns), (5 * MS, 0));
    // And however long a switch is said to be, a turn ends.
    feed(&mut node, 11_200 * US, Event::Switched { session: B, switch_ns: u64::MAX, ahead_ns: 0 });
    let at_ns = 11_200 * US + terms().overdue_ns + 7 * MS;
    let ended = feed(&mut node, at_ns, Event::Timer);
    assert!(ended.contains(&revoke(B, 2)), "{ended:?}");
}

/// A turn that began with a switch is worth waiting for as long as that took.
#[test]
fn a_pause_shorter_than_its_switch_ends_no_turn() {
    let mut node = node();
    feed(&mut node, 0, runnable(A));
    feed(&mut node, 0, runnable(B));
    feed(&mut node, 0, Event::Switched { session: A, switch_ns: 2 * MS, ahead_ns: 0 });
    feed(&mut node, MS, Event::Paged { session: A, paged_ns: MS });
    let idle = feed(&mut node, 3 * MS, Event::Idle { session: A });
    assert_eq!(idle, [timer(6 * MS, TimerReason::Yield)]);
    let yielded = feed(&mut node, 6 * MS, Event::Timer);
    assert_eq!(yielded[0], revoke(A, 1));
}

#[test]
fn an_overdue_holder_is_killed_once_and_its_turn_passes_on() {
    let mut node = node();
    feed(&mut node, 0, runnable(A));
    feed(&mut node, 0, runnable(B));
    let revoked = feed(&mut node, 6_100 * US, Event::Timer);
    assert_eq!(revoked[0], revoke(A, 1));
    let at_ns = 10_006_100 * US;
    let kill = Action::Kill { session: A, device: D, epoch: 1 };
    assert_eq!(feed(&mut node, at_ns, Event::Timer), [kill]);
    assert_eq!(feed(&mut node, at_ns + 1, Event::Timer), []);
    let removed = feed(&mut node, at_ns + 2, Event::RemoveSession { session: A });
    assert_eq!(removed, [grant(B, 2, UNLIMITED)]);
}

#[test]
fn unmanaged_grants_everybody_without_end() {
    let mut node = node();
    let policy = policy::by_name("unmanaged").unwrap();
    feed(&mut node, 0, Event::SetPolicy { device: D, policy });
    assert_eq!(feed(&mut node, 0, runnable(A)), [grant(A, 1, UNLIMITED)]);
    assert_eq!(feed(&mut node, 0, runnable(B)), [grant(B, 2, UNLIMITED)]);
    // Back to `fair`: both give back, then one is granted.
    let policy = policy::by_name("fair").unwrap();
    let switched = feed(&mut node, MS, Event::SetPolicy { device: D, policy });
    assert_eq!(switched[..2], [revoke(A, 1), revoke(B, 2)]);
    feed(&mut node, MS, released(A, 1, MS, 0));
    assert_eq!(node.holders(D), [B]);
    let last = feed(&mut node, MS, released(B, 2, 0, 0));
    assert_eq!(last[0], grant(A, 3, 6 * MS));
}

#[test]
fn a_device_that_is_down_is_not_granted() {
    let mut node = node();
    feed(&mut node, 0, runnable(A));
    let down = feed(&mut node, MS, Event::DeviceDown { device: D });
    assert_eq!(down[0], revoke(A, 1));
    assert_eq!(feed(&mut node, MS, released(A, 1, MS, 0)), [Action::CancelTimer]);
    assert_eq!(feed(&mut node, 2 * MS, runnable(B)), []);
    let up = feed(&mut node, 3 * MS, up(D, terms()));
    assert_eq!(up[0], grant(B, 2, 6 * MS), "what A used alone is no debt, and B has just woken");
}

#[test]
fn a_restarted_daemon_adopts_the_holder_and_charges_the_gap() {
    let mut old = node();
    feed(&mut old, 0, runnable(A));
    feed(&mut old, 0, runnable(B));
    let mut new = Node::restore(&old.snapshot()).unwrap();
    feed(&mut new, MS, up(D, terms()));
    let adopt = Event::Adopt { session: A, epoch: 1, budget_ns: 6 * MS };
    feed(&mut new, MS, adopt);
    feed(&mut new, MS, runnable(A));
    feed(&mut new, MS, runnable(B));
    assert_eq!(new.holders(D), [A]);
    let second = Event::Adopt { session: B, epoch: 1, budget_ns: MS };
    let refused = new.handle(MS, second, &mut Actions::new());
    assert_eq!(refused, Err(EventError::AlreadyHeld(B)));
    let next = feed(&mut new, 5 * MS, released(A, 1, 6 * MS, 0));
    assert_eq!(next[0], grant(B, 2, 6 * MS), "epochs go on");
    assert_eq!(new.vgpu(VgpuKey(0)).unwrap().used_ns, 6 * MS);
}

/// Whatever is left of its tenant's cap, and whether others of its vGPU have work.
#[test]
fn a_turn_is_adopted_whose_tenant_used_up_its_cap() {
    let mut node = node();
    let (other, vgpu) = (SessionKey(2), VgpuKey(0));
    feed(&mut node, 0, Event::AddSession { session: other, vgpu });
    let cap = Some(Cap { share_ppm: 100_000, period_ns: 100 * MS });
    feed(&mut node, 0, Event::SetTenantCap { tenant: TenantKey::DEFAULT, cap });
    feed(&mut node, 0, runnable(A));
    feed(&mut node, 20 * MS, Event::Idle { session: A });
    feed(&mut node, 20 * MS, released(A, 1, 20 * MS, 0));
    feed(&mut node, 20 * MS, runnable(other));
    assert!(node.vgpu(vgpu).unwrap().is_throttled);
    feed(&mut node, 21 * MS, Event::Adopt { session: A, epoch: 2, budget_ns: 6 * MS });
    assert_eq!(node.holders(D), [A]);
    feed(&mut node, 22 * MS, released(A, 2, 21 * MS, 0));
    assert_eq!(node.holders(D), [], "the cap holds again");
}

#[test]
fn events_that_do_not_fit_change_nothing() {
    let mut node = node();
    let before = node.snapshot();
    let mut actions = Actions::new();
    let (tenant, weight) = (TenantKey::DEFAULT, Weight::ONE);
    let no_quantum = Config { quantum_ns: 0, ..terms() };
    for (event, error) in [
        (runnable(SessionKey(7)), EventError::UnknownSession(SessionKey(7))),
        (Event::RemoveVgpu { vgpu: VgpuKey(7) }, EventError::UnknownVgpu(VgpuKey(7))),
        (Event::AddSession { session: A, vgpu: VgpuKey(1) }, EventError::SessionExists(A)),
        (
            Event::AddVgpu { vgpu: VgpuKey(0), tenant, device: D, weight },
            EventError::VgpuExists(VgpuKey(0)),
        ),
        (
            Event::AddVgpu { vgpu: VgpuKey(9), tenant, device: DeviceKey(3), weight },
            EventError::UnknownDevice(DeviceKey(3)),
        ),
        (up(DeviceKey(u32::MAX), terms()), EventError::KeyTooLarge(u32::MAX)),
        (up(D, no_quantum), no_quantum.validate().unwrap_err().into()),
    ] {
        assert_eq!(node.handle(0, event, &mut actions), Err(error));
        assert_eq!(actions.as_slice(), []);
    }
    assert_eq!(node.snapshot(), before);
}

#[test]
fn a_late_release_of_an_old_epoch_only_reports() {
    let mut node = node();
    feed(&mut node, 0, runnable(A));
    assert_eq!(feed(&mut node, MS, released(A, 99, MS, 0)), []);
    assert_eq!(node.holders(D), [A]);
    assert_eq!(node.vgpu(VgpuKey(0)).unwrap().used_ns, MS);
}

/// The driver should have reported when B came; use from before costs A nothing all the same.
#[test]
fn use_from_before_anybody_waited_is_billed_but_not_held_against_one() {
    let mut node = node();
    feed(&mut node, 0, runnable(A));
    feed(&mut node, 60 * MS, runnable(B));
    feed(&mut node, 61 * MS, released(A, 1, 61 * MS, 0));
    let view = node.vgpu(VgpuKey(0)).unwrap();
    assert_eq!((view.used_ns, view.held_ns), (61 * MS, MS));
}

/// Holding an idle device costs while somebody waits, and only then.
#[test]
fn idle_time_is_held_but_not_billed() {
    let mut node = node();
    feed(&mut node, 0, runnable(A));
    let usage = |used_ns, idle_ns| Usage { used_ns, in_flight_ns: 0, idle_ns };
    feed(&mut node, 9 * MS, Event::Used { session: A, usage: usage(MS, 8 * MS) });
    assert_eq!(node.vgpu(VgpuKey(0)).unwrap().held_ns, MS);
    feed(&mut node, 9 * MS, runnable(B));
    let last = usage(2 * MS, 8_100 * US);
    feed(&mut node, 11 * MS, Event::Released { session: A, epoch: 1, usage: last });
    let view = node.vgpu(VgpuKey(0)).unwrap();
    assert_eq!((view.used_ns, view.held_ns), (2 * MS, 2_100 * US));
}

/// An idle time is told when it is over. Whoever comes to wait meanwhile has its holder report, and
/// takes nothing off what that one pays.
#[test]
fn idle_time_is_held_whoever_comes_meanwhile() {
    let mut node = node();
    feed(&mut node, 0, Event::AddSession { session: SessionKey(2), vgpu: VgpuKey(1) });
    feed(&mut node, 0, runnable(A));
    feed(&mut node, 0, runnable(B));
    feed(
        &mut node,
        MS,
        Event::Used { session: A, usage: Usage { used_ns: MS, ..Usage::default() } },
    );
    feed(
        &mut node,
        5 * MS,
        Event::Used { session: A, usage: Usage { used_ns: MS, ..Usage::default() } },
    );
    feed(&mut node, 5 * MS, runnable(SessionKey(2)));
    let usage = Usage { used_ns: MS, in_flight_ns: 0, idle_ns: 4_500 * US };
    feed(&mut node, 5_500 * US, Event::Released { session: A, epoch: 1, usage });
    assert_eq!(node.vgpu(VgpuKey(0)).unwrap().held_ns, 5_500 * US);
}

/// Twelve synchronous calls in 10 ms of turns: the thread that waits is woken with the next grant.
#[test]
fn an_interactive_vgpu_is_woken_at_its_grant() {
    let mut node = node();
    feed(&mut node, 0, runnable(A));
    feed(&mut node, 0, runnable(B));
    feed(&mut node, 6 * MS, Event::SyncCalls { session: A, calls: 7 });
    feed(&mut node, 6 * MS, released(A, 1, 6 * MS, 0));
    let again = feed(&mut node, 12 * MS, released(B, 2, 6 * MS, 0));
    assert_eq!(again[0], grant(A, 3, 6 * MS), "6 ms are too short to tell");
    feed(&mut node, 17 * MS, Event::SyncCalls { session: A, calls: 12 });
    assert!(node.vgpu(VgpuKey(0)).unwrap().is_interactive);
    feed(&mut node, 18 * MS, released(A, 3, 12 * MS, 0));
    let woken = feed(&mut node, 24 * MS, released(B, 4, 12 * MS, 0));
    let wake = Action::Wake { session: A, device: D, epoch: 5 };
    assert_eq!(woken[..2], [wake, grant(A, 5, 6 * MS)]);
}

/// A tenth of the device in periods of 20 ms: 2 ms at once, then nothing until the period ends.
#[test]
fn a_cap_holds_on_an_idle_device() {
    let mut node = node();
    let cap = Some(Cap { share_ppm: 100_000, period_ns: 20 * MS });
    feed(&mut node, 0, Event::SetCap { vgpu: VgpuKey(0), cap });
    assert_eq!(
        feed(&mut node, 0, runnable(A)),
        [grant(A, 1, 2 * MS), timer(5_800 * US, TimerReason::Prepare)]
    );
    let spent = feed(&mut node, 2 * MS, released(A, 1, 2 * MS, 0));
    assert_eq!(spent, [timer(20 * MS, TimerReason::Refill)]);
    assert!(node.vgpu(VgpuKey(0)).unwrap().is_throttled);
    assert_eq!(feed(&mut node, 3 * MS, runnable(B)), [grant(B, 2, UNLIMITED)]);
    let refilled = feed(&mut node, 20 * MS, Event::Timer);
    assert_eq!(refilled[0], revoke(B, 2), "B had its quantum");
    assert_eq!(feed(&mut node, 20 * MS, released(B, 2, 17 * MS, 0))[0], grant(A, 3, 2 * MS));
}

/// A late driver: what else happens does not wake the vGPU at a virtual time that is not current.
#[test]
fn a_cap_refills_by_the_timer_alone() {
    let mut node = node();
    let cap = Some(Cap { share_ppm: 100_000, period_ns: 20 * MS });
    feed(&mut node, 0, Event::SetCap { vgpu: VgpuKey(0), cap });
    feed(&mut node, 0, runnable(A));
    feed(&mut node, 2 * MS, released(A, 1, 2 * MS, 0));
    feed(&mut node, 3 * MS, runnable(B));
    assert_eq!(feed(&mut node, 21 * MS, Event::SyncCalls { session: B, calls: 1 }), []);
    assert!(node.vgpu(VgpuKey(0)).unwrap().is_throttled);
    assert_eq!(node.poll_timeout(), Some((20 * MS, TimerReason::Refill)));
    assert_eq!(feed(&mut node, 21 * MS, Event::Timer)[0], revoke(B, 2));
}

/// The same for a tenant: what A used up is used up for B, and B, who waited, goes first.
#[test]
fn a_tenants_cap_is_one_allowance_for_all_its_vgpus() {
    let mut node = node();
    let (tenant, weight) = (TenantKey::DEFAULT, Weight::ONE);
    let cap = Some(Cap { share_ppm: 100_000, period_ns: 20 * MS });
    feed(&mut node, 0, Event::SetTenantCap { tenant, cap });
    assert_eq!(node.tenant_cap(tenant), cap);
    assert_eq!(feed(&mut node, 0, runnable(A))[0], grant(A, 1, 2 * MS));
    feed(&mut node, 0, runnable(B));
    assert_eq!(
        feed(&mut node, 2 * MS, released(A, 1, 2 * MS, 0)),
        [timer(20 * MS, TimerReason::Refill)]
    );
    assert!([0, 1].iter().all(|key| node.vgpu(VgpuKey(*key)).unwrap().is_throttled));
    // Another tenant has the device meanwhile.
    let (other, vgpu, session) = (TenantKey(1), VgpuKey(2), SessionKey(2));
    feed(&mut node, 3 * MS, Event::AddTenant { tenant: other, weight });
    feed(&mut node, 3 * MS, Event::AddVgpu { vgpu, tenant: other, device: D, weight });
    feed(&mut node, 3 * MS, Event::AddSession { session, vgpu });
    assert_eq!(feed(&mut node, 3 * MS, runnable(session)), [grant(session, 2, UNLIMITED)]);
    assert_eq!(feed(&mut node, 20 * MS, Event::Timer)[0], revoke(session, 2));
    let next = feed(&mut node, 20 * MS, released(session, 2, 17 * MS, 0));
    assert_eq!(next[0], grant(B, 3, 2 * MS));
    // Nobody waits any more, so nothing is waited for.
    feed(&mut node, 22 * MS, released(B, 3, 2 * MS, 0));
    for session in [A, B, session] {
        feed(&mut node, 22 * MS, Event::Idle { session });
    }
    assert_eq!(node.snapshot().tenants[0].cap, cap);
}

#[test]
fn each_device_is_shared_by_its_own_settings() {
    let mut node = node();
    let other = DeviceKey(1);
    let round_robin = policy::by_name("round_robin").unwrap();
    let config = Config { policy: round_robin, quantum_ns: 2 * MS, ..terms() };
    feed(&mut node, 0, up(other, config));
    for key in 2..4 {
        let (vgpu, session) = (VgpuKey(key), SessionKey(key));
        let (tenant, weight) = (TenantKey::DEFAULT, Weight::ONE);
        feed(&mut node, 0, Event::AddVgpu { vgpu, tenant, device: other, weight });
        feed(&mut node, 0, Event::AddSession { session, vgpu });
    }
    let budget = |node: &mut Node, first: SessionKey, second: SessionKey| {
        feed(node, 0, runnable(first));
        let actions = feed(node, 0, runnable(second));
        let grants = actions.iter().filter_map(|action| {
            let Action::Grant { session, budget_ns, .. } = action else { return None };
            Some((*session, *budget_ns))
        });
        grants.collect::<Vec<_>>()
    };
    assert_eq!(budget(&mut node, A, B), [(A, 6 * MS)]);
    assert_eq!(budget(&mut node, SessionKey(2), SessionKey(3)), [(SessionKey(2), 2 * MS)]);
    assert_eq!(node.policy(other), Some(round_robin));
    assert_eq!(node.devices().collect::<Vec<_>>(), [D, other]);
    assert_eq!(node.device_of(SessionKey(3)), Some(other));
}

#[test]
fn a_device_that_comes_up_again_keeps_its_policy_and_takes_its_new_settings() {
    let mut node = node();
    let round_robin = policy::by_name("round_robin").unwrap();
    feed(&mut node, 0, Event::SetPolicy { device: D, policy: round_robin });
    feed(&mut node, 0, runnable(A));
    feed(&mut node, 0, runnable(B));
    let config = Config { quantum_ns: 2 * MS, ..terms() };
    // Whose turn began under the old ones gives it back.
    assert_eq!(feed(&mut node, MS, up(D, config))[0], revoke(A, 1));
    assert_eq!(node.policy(D), Some(round_robin));
    let next = feed(&mut node, MS, released(A, 1, MS, 0));
    assert!(next.contains(&grant(A, 2, 2 * MS)), "{next:?}");
}

/// Tenants of equal weight, one with one vGPU and one with two: the lone one gets every other turn.
#[test]
fn tenants_share_before_their_vgpus_do() {
    let mut node = Node::new();
    feed(&mut node, 0, up(D, terms()));
    let weight = Weight::ONE;
    for tenant in [TenantKey(1), TenantKey(2)] {
        feed(&mut node, 0, Event::AddTenant { tenant, weight });
    }
    for (key, tenant) in [(0, TenantKey(1)), (1, TenantKey(2)), (2, TenantKey(2))] {
        let (vgpu, session) = (VgpuKey(key), SessionKey(key));
        feed(&mut node, 0, Event::AddVgpu { vgpu, tenant, device: D, weight });
        feed(&mut node, 0, Event::AddSession { session, vgpu });
        feed(&mut node, 0, runnable(session));
    }
    let mut used = [0; 3];
    let mut order = Vec::new();
    for turn in 1..=8 {
        let session = node.holders(D)[0];
        used[session.0 as usize] += 6 * MS;
        order.push(session.0);
        feed(&mut node, turn * 6 * MS, released(session, turn, used[session.0 as usize], 0));
    }
    assert_eq!(order, [0, 1, 0, 2, 0, 1, 0, 2]);
    feed(&mut node, 60 * MS, Event::RemoveTenant { tenant: TenantKey(2) });
    assert_eq!(node.vgpu(VgpuKey(1)), None);
    assert_eq!(node.tenant(TenantKey(2)), None);
}

/// The same events give the same actions, bit for bit.
#[test]
fn a_journal_replays() {
    let mut journal = Vec::new();
    let (mut one, mut other) = (node(), node());
    let mut used = [0, 0];
    feed(&mut one, 0, runnable(A));
    feed(&mut other, 0, runnable(A));
    for step in 1..2_000u64 {
        let (now_ns, choice) = (step * 700 * US, step.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 60);
        let session = SessionKey(u32::try_from(choice % 2).unwrap());
        let event = match choice {
            0..4 => runnable(session),
            4..6 => Event::Idle { session },
            6..8 => Event::Timer,
            8 => Event::Reweight { vgpu: VgpuKey(session.0), weight: Weight::new(3).unwrap() },
            _ => {
                used[session.0 as usize] += 650 * US;
                released(session, step / 9, used[session.0 as usize], choice * 10 * US)
            }
        };
        journal.push((now_ns, event, feed(&mut one, now_ns, event)));
    }
    assert!(journal.iter().any(|(_, _, actions)| actions.len() > 2), "it decided something");
    for (now_ns, event, actions) in journal {
        assert_eq!(feed(&mut other, now_ns, event), actions);
    }
    assert_eq!(one.snapshot(), other.snapshot());
}

/// Counters of a broken or hostile worker: backwards, or at the end of their range.
#[test]
fn wild_readings_do_no_harm_to_others() {
    let mut node = node();
    feed(&mut node, 0, runnable(A));
    let wild = Usage { used_ns: u64::MAX, in_flight_ns: u64::MAX, idle_ns: u64::MAX };
    feed(&mut node, MS, Event::Used { session: A, usage: wild });
    feed(&mut node, MS, Event::Used { session: A, usage: Usage::default() });
    feed(&mut node, 2 * MS, runnable(B));
    let usage = wild;
    feed(&mut node, 6 * MS, Event::Released { session: A, epoch: 1, usage });
    // The claimed work in flight is believed for a quantum and the overdue time, then B runs.
    let (at_ns, why) = node.poll_timeout().unwrap();
    assert_eq!((at_ns, why), (10_011_900 * US, TimerReason::Handover));
    let next = feed(&mut node, at_ns, Event::Timer);
    assert_eq!(next[0], grant(B, 2, 6 * MS));
}

#[cfg(feature = "serde")]
#[test]
fn policies_and_snapshots_are_written_by_name() {
    let node = node();
    let text = serde_json::to_string(&node.snapshot()).unwrap();
    assert!(text.contains("\"policy\":\"fair\""), "{text}");
    let back: weft_sched::Snapshot = serde_json::from_str(&text).unwrap();
    assert_eq!(back, node.snapshot());
    let error = serde_json::from_str::<Config>("{\"policy\":\"fare\"}").unwrap_err();
    assert!(error.to_string().contains("fair, unmanaged"), "{error}");
}

fn used(session: SessionKey, used_ns: u64, idle_ns: u64) -> Event {
    Event::Used { session, usage: Usage { used_ns, in_flight_ns: 0, idle_ns } }
}

/// A turn of `A` in which `used_ns` are used, then one of `B` that lasts for `long_ns`: `A` is owed
/// the difference, and has a turn again.
fn node_that_owes_a(used_ns: u64, long_ns: u64) -> (Node, u64) {
    let mut node = node();
    feed(&mut node, 0, runnable(A));
    feed(&mut node, 0, runnable(B));
    feed(&mut node, 6 * MS, released(A, 1, used_ns, 0));
    let granted = feed(&mut node, 6 * MS + long_ns, released(B, 2, long_ns, 0));
    assert_eq!(granted[0], grant(A, 3, 6 * MS));
    (node, 6 * MS + long_ns)
}

/// A program that waits for each result is without a command for a moment, and at its turn's end as
/// at any other: it keeps what it is owed.
#[test]
fn a_moment_of_idleness_at_a_turns_end_loses_nothing() {
    let (mut node, now) = node_that_owes_a(6 * MS, 1_600 * MS);
    let end = now + 6 * MS;
    feed(&mut node, end, Event::Idle { session: A });
    let waits = feed(&mut node, end, released(A, 3, 12 * MS, 0));
    // It is owed 1.6 s, of which a 64th is more than a quantum.
    assert!(waits.contains(&timer(end + 6 * MS, TimerReason::Yield)), "{waits:?}");
    assert!(!waits.iter().any(|action| matches!(action, Action::Grant { .. })), "{waits:?}");
    let next = feed(&mut node, end + 30 * US, runnable(A));
    assert!(next.contains(&grant(A, 4, 6 * MS)), "{next:?}");
    // The pause was at its expense.
    assert_eq!(node.vgpu(VgpuKey(0)).unwrap().held_ns, 12 * MS + 30 * US);
}

/// Nor does a pause that is longer than a holder may make, for one who is owed much.
#[test]
fn who_is_owed_much_may_pause_in_the_middle_of_a_turn() {
    for (pause, owes) in [(MS, true), (3 * MS, false)] {
        let (mut node, now) = node_that_owes_a(6 * MS, 134 * MS);
        let end = now + 400 * US;
        feed(&mut node, end, Event::Idle { session: A });
        let waits = feed(&mut node, end, released(A, 3, 6 * MS + 400 * US, 0));
        // 6 ms + 134 ms less the two turns, by 64.
        let owed = 134 * MS - 6 * MS - 400 * US;
        assert!(waits.contains(&timer(end + owed / 64, TimerReason::Yield)), "{waits:?}");
        let mut actions = feed(&mut node, (end + pause).min(end + owed / 64), Event::Timer);
        actions.extend(feed(&mut node, end + pause, runnable(A)));
        assert_eq!(actions.contains(&grant(A, 4, 6 * MS)), owes, "{actions:?}");
        let cost = if owes { pause } else { owed / 64 + 50 * US };
        assert_eq!(node.vgpu(VgpuKey(0)).unwrap().held_ns, 6 * MS + 400 * US + cost);
    }
}

#[test]
fn who_does_not_come_back_is_asleep() {
    let (mut node, now) = node_that_owes_a(6 * MS, 640 * MS);
    let end = now + 6 * MS;
    feed(&mut node, end, Event::Idle { session: A });
    feed(&mut node, end, released(A, 3, 12 * MS, 0));
    let later = feed(&mut node, end + 6 * MS, Event::Timer);
    assert_eq!(later[0], grant(B, 4, UNLIMITED));
    feed(&mut node, end + 20 * MS, used(B, 660 * MS, 0));
    // Sleeping earned nothing: it does not come before its time.
    feed(&mut node, end + 20 * MS, runnable(A));
    assert_eq!(node.vgpu(VgpuKey(0)).unwrap().ahead.to_ns(), 0);
}

/// Who gives a turn up early bears the switch: the wall time that nobody else could use.
#[test]
fn a_turn_given_up_early_is_charged_for_the_switch() {
    for (is_over, expected) in [(false, 300 * US + 50 * US), (true, 2 * US)] {
        let mut node = node();
        feed(&mut node, 0, runnable(A));
        feed(&mut node, 0, runnable(B));
        if !is_over {
            feed(&mut node, 300 * US, Event::Idle { session: A });
        }
        feed(&mut node, 300 * US, released(A, 1, 2 * US, 0));
        assert_eq!(node.vgpu(VgpuKey(0)).unwrap().held_ns, expected);
        assert_eq!(node.vgpu(VgpuKey(0)).unwrap().used_ns, 2 * US, "bills are of device time");
    }
}

/// Sessions that do nothing but take turns and give them up pay for an idle device many times over,
/// after a little of it.
#[test]
fn a_storm_of_early_turns_does_not_idle_the_device() {
    const STORM: u32 = 8;
    for sessions in [1, STORM] {
        let mut node = node();
        let stormers: Vec<_> = (0..sessions).map(|i| SessionKey(2 + i)).collect();
        for &session in &stormers {
            feed(&mut node, 0, Event::AddSession { session, vgpu: VgpuKey(0) });
            feed(&mut node, 0, runnable(session));
        }
        feed(&mut node, 0, runnable(B));
        let mut actions = vec![grant(stormers[0], 1, 6 * MS)];
        let (mut now, mut b_ns, mut storms) = (0, 0, 0_u64);
        while now < 2_000 * MS {
            let is_grant = |action: &&Action| matches!(action, Action::Grant { .. });
            let Some(&Action::Grant { session, epoch, .. }) = actions.iter().find(is_grant) else {
                panic!("{actions:?}");
            };
            if session == B {
                (now, b_ns) = (now + 6 * MS, b_ns + 6 * MS);
                actions = feed(&mut node, now, released(B, epoch, b_ns, 0));
                continue;
            }
            // A command of no time, and the way to the next turn.
            now += 150 * US;
            storms += 1;
            feed(&mut node, now, Event::Idle { session });
            actions = feed(&mut node, now, released(session, epoch, 0, 0));
            actions.extend(feed(&mut node, now, runnable(session)));
        }
        // As many turns as B has, and a little more at first.
        assert!(b_ns * 100 > now * 96, "B used {b_ns} of {now} ns beside {storms} turns");
        assert!(storms > 100, "{storms} turns");
    }
}

/// A driver reports what a session had in flight when it ended as used.
#[test]
fn a_session_that_dies_in_its_turn_leaves_its_debt_to_its_vgpu() {
    let mut node = node();
    feed(&mut node, 0, runnable(A));
    feed(&mut node, 0, runnable(B));
    feed(&mut node, 970 * MS, used(A, 970 * MS, 0));
    feed(&mut node, 970 * MS, Event::RemoveSession { session: A });
    feed(&mut node, 970 * MS, Event::AddSession { session: A, vgpu: VgpuKey(0) });
    feed(&mut node, 970 * MS, runnable(A));
    // B catches up before its vGPU has another turn.
    let mut now = 970 * MS;
    for epoch in 2..150 {
        now += 6 * MS;
        let actions = feed(&mut node, now, released(B, epoch, (epoch - 1) * 6 * MS, 0));
        assert_eq!(actions[0], grant(B, epoch + 1, 6 * MS), "{epoch}");
    }
}
