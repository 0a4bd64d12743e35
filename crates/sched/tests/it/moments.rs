//! Moments of idleness while nobody waits.

use weft_sched::{
    Action, Cap, Class, Event, Node, SessionKey, TenantKey, UNLIMITED, VgpuKey, Weight,
};

use crate::protocol::{A, B, D, MS, US, feed, grant, node, released, runnable};

/// A session that owes nobody anything.
const C: SessionKey = SessionKey(2);

/// A node whose `B` had a turn of 1.6 s and sleeps. `A`, which is owed it, has done 0.4 ms since
/// then and has nothing to do; and when that was. It was told that at the beginning.
fn paused(told: &[Event]) -> (Node, u64) {
    let mut node = node();
    let (tenant, vgpu) = (TenantKey::DEFAULT, VgpuKey(2));
    feed(&mut node, 0, Event::AddVgpu { vgpu, tenant, device: D, weight: Weight::ONE });
    feed(&mut node, 0, Event::AddSession { session: C, vgpu });
    told.iter().for_each(|event| drop(feed(&mut node, 0, *event)));
    feed(&mut node, 0, runnable(A));
    feed(&mut node, 0, runnable(B));
    feed(&mut node, 6 * MS, released(A, 1, 6 * MS, 0));
    let mut now = 1_606 * MS;
    feed(&mut node, now, Event::Idle { session: B });
    let granted = feed(&mut node, now, released(B, 2, 1_600 * MS, 0));
    assert_eq!(granted[0], grant(A, 3, UNLIMITED));
    now += 400 * US;
    feed(&mut node, now, Event::Idle { session: A });
    feed(&mut node, now, released(A, 3, 6 * MS + 400 * US, 0));
    (node, now)
}

/// Two programs that wait for each result race for the device where the one's long command has
/// ended and the other's first one has, too. Nobody waits at the instant of that pause; whoever is
/// owed keeps it all the same.
#[test]
fn a_pause_while_nobody_waits_loses_nothing() {
    for (pause, comes, keeps) in [(3 * MS, B, true), (3 * MS, C, false), (9 * MS, B, false)] {
        let (mut node, now) = paused(&[]);
        let came = feed(&mut node, now + 50 * US, runnable(comes));
        let is_grant = |action: &Action| matches!(action, Action::Grant { .. });
        // Who is no further ahead than A waits for nobody.
        assert_eq!(came.iter().any(is_grant), comes == C, "{came:?}");
        let mut actions = feed(&mut node, now + pause.min(6 * MS), Event::Timer);
        actions.extend(feed(&mut node, now + pause, runnable(A)));
        assert_eq!(actions.contains(&grant(A, 4, 6 * MS)), keeps, "{actions:?}");
        if comes == B {
            // It pays for the time for which somebody waited, and nothing else.
            let cost = if keeps { pause } else { 6 * MS } - 50 * US;
            assert_eq!(node.vgpu(VgpuKey(0)).unwrap().held_ns, 6 * MS + 400 * US + cost);
            let owed = if keeps { 1_594 * MS - 400 * US - cost } else { 0 };
            let ahead = node.vgpu(VgpuKey(1)).unwrap().ahead.to_ns();
            assert_eq!(ahead / 1_000, u128::from(owed / US), "what B is ahead of A");
        }
    }
}

/// A batch program's pause keeps nobody from the device who goes before batch programs.
#[test]
fn who_is_user_facing_waits_for_nobodys_pause() {
    let (vgpu, class) = (VgpuKey(2), Class::UserFacing { sla_ns: 50 * MS });
    let (mut node, now) = paused(&[Event::SetClass { vgpu, class }]);
    let came = feed(&mut node, now + 50 * US, runnable(C));
    assert_eq!(came[0], grant(C, 4, UNLIMITED), "{came:?}");
}

/// Nor does a vGPU whose cap is spent end it, which could not use the device.
#[test]
fn who_may_not_run_yet_ends_nobodys_pause() {
    let cap = Some(Cap { share_ppm: 1_000, period_ns: 1_000 * MS });
    let (mut node, now) = paused(&[Event::SetCap { vgpu: VgpuKey(1), cap }]);
    feed(&mut node, now + 50 * US, runnable(B));
    let came = feed(&mut node, now + 3 * MS, runnable(A));
    assert_eq!(came[0], grant(A, 4, UNLIMITED), "{came:?}");
    assert_eq!(node.vgpu(VgpuKey(0)).unwrap().held_ns, 6 * MS + 400 * US, "nobody waited");
}
