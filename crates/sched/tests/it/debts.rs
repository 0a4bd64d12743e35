//! vGPUs of several users that compete for themselves: what one of them overdrew stays its
//! owner's, under whatever name it goes on.

use crate::model::{DEVICE, Habits, Load, MS, Model, SECOND, US, vgpu_key};
use weft_sched::invariants::audit;
use weft_sched::{Event, Node, policy};

const LONG: u64 = 50 * MS;

/// What an attacker does when its long kernel has been executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    /// It goes on with the next one.
    GoesOn,
    /// Its program ends, its vGPU is removed and made anew.
    MadeAnew,
    /// Its program ends, and another one begins under a name that nobody had.
    AnotherName,
}

/// The part of the device that an attacker with kernels of 50 ms has beside a victim of its weight
/// with kernels of 100 µs.
fn part(owner: Option<u32>, then: Then) -> f64 {
    let mut model = Model::new("fair", Habits::default());
    let victim = model.tenant(1, Load::Saturating(vec![100 * US]));
    if let Some(owner) = owner {
        model.own(victim, owner + 1);
    }
    let begin = |model: &mut Model| {
        let vgpu = model.vgpu(1);
        if let Some(owner) = owner {
            model.own(vgpu, owner);
        }
        let session = model.session(vgpu, Load::Manual);
        model.offer(session, LONG);
        (vgpu, session)
    };
    let (mut vgpu, mut session) = begin(&mut model);
    let mut had = vec![vgpu];
    while model.now < 6 * SECOND {
        let before = model.served_ns(vgpu);
        while model.served_ns(vgpu) < before + LONG && model.now < 6 * SECOND {
            model.run_for(50 * US);
        }
        if then == Then::GoesOn {
            model.offer(session, LONG);
            continue;
        }
        model.kill(session);
        if then == Then::MadeAnew {
            model.remove_vgpu(vgpu);
        }
        (vgpu, session) = begin(&mut model);
        had.push(vgpu);
    }
    audit(&model.node).unwrap();
    let [own, other]: [u64; 2] =
        [had.iter().map(|vgpu| model.served_ns(*vgpu)).sum(), model.served_ns(victim)];
    #[expect(clippy::cast_precision_loss, reason = "a ratio")]
    let (own, other) = (own as f64, other as f64);
    own / (own + other)
}

#[test]
fn neither_another_name_nor_the_same_one_made_anew_sheds_a_debt() {
    for then in [Then::GoesOn, Then::MadeAnew, Then::AnotherName] {
        let had = part(Some(1000), then);
        assert!((0.45..0.53).contains(&had), "{then:?}: {had:.3} of the device");
    }
    // The controls: without an owner each name begins without a debt.
    for then in [Then::MadeAnew, Then::AnotherName] {
        let had = part(None, then);
        assert!(had > 0.8, "{then:?}: {had:.3} of the device");
    }
}

/// How long the first command of a new vGPU waits beside one that saturates the device, after an
/// earlier vGPU has overdrawn and `meanwhile_ns` have passed.
fn first_wait_ns(earlier: u32, owner: u32, meanwhile_ns: u64) -> u64 {
    let mut model = Model::new("fair", Habits::default());
    model.tenant(1, Load::Saturating(vec![100 * US]));
    let old = model.vgpu(1);
    model.own(old, earlier);
    let session = model.session(old, Load::Manual);
    model.offer(session, LONG);
    model.run_for(LONG + 10 * MS);
    model.kill(session);
    model.remove_vgpu(old);
    model.run_for(meanwhile_ns);
    let vgpu = model.vgpu(1);
    model.own(vgpu, owner);
    let session = model.session(vgpu, Load::Manual);
    model.offer(session, 100 * US);
    model.run_for(SECOND);
    model.longest_wait_ns(session)
}

#[test]
fn a_debt_is_its_owners_alone_and_over_when_the_others_have_had_as_much() {
    let [own, others, late] = [
        first_wait_ns(1000, 1000, 0),
        first_wait_ns(1000, 1001, 0),
        first_wait_ns(1000, 1000, 2 * LONG),
    ];
    assert!(own >= LONG / 2, "{own} ns");
    assert!(others <= 8 * MS, "somebody else's: {others} ns");
    assert!(late <= 8 * MS, "an old debt: {late} ns");
}

/// An owner's vGPU that has work pays for itself: another one has a share of its own at once.
#[test]
fn a_vgpu_beside_one_of_its_owners_that_works_waits_for_nobodys_debt() {
    let mut model = Model::new("fair", Habits::default());
    model.tenant(1, Load::Saturating(vec![100 * US]));
    let busy = model.vgpu(1);
    model.own(busy, 1000);
    model.session(busy, Load::Saturating(vec![LONG]));
    model.run_for(LONG + 20 * MS);
    let other = model.vgpu(1);
    model.own(other, 1000);
    let session = model.session(other, Load::Manual);
    model.offer(session, 100 * US);
    model.run_for(SECOND);
    let waited_ns = model.longest_wait_ns(session);
    assert!(waited_ns <= LONG + 8 * MS, "{waited_ns} ns");
}

/// A debt outlives the daemon, and a change of policy that keeps tags.
#[test]
fn a_debt_outlives_a_restart_and_other_settings() {
    let mut model = Model::new("fair", Habits::default());
    model.tenant(1, Load::Saturating(vec![100 * US]));
    let old = model.vgpu(1);
    model.own(old, 1000);
    let session = model.session(old, Load::Manual);
    model.offer(session, LONG);
    model.run_for(LONG + 10 * MS);
    model.kill(session);
    let owed = model.node.vgpu(vgpu_key(old)).unwrap().ahead;
    model.remove_vgpu(old);
    let snapshot = model.node.snapshot();
    let left: Vec<_> = snapshot.left.iter().map(|left| (left.owner, left.ahead)).collect();
    assert_eq!(left, [(1000, owed)]);
    assert_eq!(Node::restore(&snapshot).unwrap().snapshot(), snapshot);

    let mut config = *model.node.config(DEVICE).unwrap();
    config.quantum_ns /= 2;
    model.tell(Event::DeviceUp { device: DEVICE, config });
    let kept = model.node.snapshot().left;
    assert_eq!(kept.iter().map(|left| left.ahead).collect::<Vec<_>>(), [owed]);
    // Through a policy without tags all start equal again.
    let without = policy::by_name("round_robin").unwrap();
    model.tell(Event::SetPolicy { device: DEVICE, policy: without });
    assert_eq!(model.node.snapshot().left, []);
}
