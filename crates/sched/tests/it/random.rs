//! Random histories on the model device. The model checks at every step: the lag bound, work
//! conservation, rising epochs, a virtual time that never falls; here: bills, starvation, ends.

use crate::model::steps::take;
use crate::model::{DEVICE, Habits, Load, MS, Model, US, vgpu_key};
use crate::strategies::{config, habits, step};
use proptest::prelude::*;
use weft_sched::invariants::{nested_wait_limit_ns, wait_limit_ns};
use weft_sched::{Node, Weight, policy};

fn check_end(model: &mut Model) {
    model.check_bills();
    assert!(model.kills.is_empty(), "nobody was overdue");
    for worker in model.sessions_alive() {
        model.kill(worker);
    }
    model.run_for(MS);
    assert_eq!(model.node.holders(DEVICE), []);
    assert_eq!(model.node.poll_timeout(), None, "an idle node has no timer");
}

proptest! {
    #[test]
    fn fair_keeps_every_invariant(
        config in config(),
        habits in habits(),
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let mut model = Model::with_config(config, habits);
        steps.iter().for_each(|step| take(&mut model, step));
        check_end(&mut model);
    }

    #[test]
    fn every_policy_bills_and_conserves(
        name in prop::sample::select(policy::NAMES),
        habits in habits(),
        steps in prop::collection::vec(step(), 1..80),
    ) {
        let mut model = Model::new(name, habits);
        steps.iter().for_each(|step| take(&mut model, step));
        check_end(&mut model);
    }

    /// Policies change and the device comes and goes under load; afterwards the shares are right.
    #[test]
    fn nothing_is_lost_over_changes(
        habits in habits(),
        steps in prop::collection::vec((step(), 0usize..12), 1..60),
    ) {
        let mut model = Model::new("fair", habits);
        for (step, change) in &steps {
            take(&mut model, step);
            match change {
                10 => model.set_device(false),
                11 => model.set_device(true),
                change => {
                    if let Some(name) = policy::NAMES.get(*change) {
                        model.set_policy(name);
                    }
                }
            }
        }
        model.set_device(true);
        model.set_policy("fair");
        for session in model.sessions_alive() {
            model.kill(session);
        }
        // A cap stops both in each of its periods, which costs who is behind up to the error of
        // a prediction each time.
        model.set_group_cap(0, None);
        let tenants = [1, 2].map(|weight| model.tenant(weight, Load::Saturating(vec![100 * US])));
        model.run_for(200 * MS);
        let before = model.served();
        model.run_for(3_000 * MS);
        let [one, two] = tenants.map(|tenant| model.served_ns(tenant) - before[tenant]);
        prop_assert!((2 * one).abs_diff(two) <= 40 * MS, "{one} and {two}");
        check_end(&mut model);
    }

    /// A restart keeps tags, weights, totals: the snapshot of the restored node is the same.
    #[test]
    fn a_snapshot_restores_to_itself(
        habits in habits(),
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let mut model = Model::new("fair", habits);
        steps.iter().for_each(|step| take(&mut model, step));
        let snapshot = model.node.snapshot();
        let restored = Node::restore(&snapshot).unwrap();
        prop_assert_eq!(restored.snapshot(), snapshot);
    }

    /// The longest a backlogged tenant waits follows from the lag bound.
    #[test]
    fn nobody_starves(
        mine in 1u32..20,
        others in prop::collection::vec((1u32..20, 10 * US..3 * MS), 1..8),
    ) {
        let mut model = Model::new("fair", Habits::default());
        let me = model.tenant(mine, Load::Saturating(vec![100 * US]));
        for (weight, size_ns) in &others {
            model.tenant(*weight, Load::Saturating(vec![*size_ns]));
        }
        let pieces: Vec<(Weight, u64)> =
            others.iter().map(|(weight, ns)| (Weight::new(*weight).unwrap(), *ns)).collect();
        let limit_ns = wait_limit_ns(6 * MS, (Weight::new(mine).unwrap(), 100 * US), &pieces);
        let limit_ns = u64::try_from(limit_ns).unwrap();
        for _ in 0..10 {
            let before = model.served_ns(me);
            model.run_for(limit_ns + 1);
            prop_assert!(model.served_ns(me) > before, "starved for {} ns", limit_ns);
        }
    }
}

/// In the hierarchy the wait follows from the bounds of both levels.
#[test]
fn nobody_starves_in_a_tenant_among_tenants() {
    let weight = |weight| Weight::new(weight).unwrap();
    for (own, sibling, tenant, other) in [(1, 1, 1, 1), (1, 9, 1, 9), (5, 2, 3, 1), (1, 20, 2, 7)] {
        let mut model = Model::new("fair", Habits::default());
        let groups = [tenant, other].map(|weight| model.group(weight));
        let steady = || Load::Saturating(vec![100 * US]);
        let vgpus = [(groups[0], own), (groups[0], sibling), (groups[1], 1)]
            .map(|(group, weight)| model.vgpu_of(group, weight));
        for vgpu in vgpus {
            model.session(vgpu, steady());
        }
        let piece = 100 * US;
        let limit_ns = nested_wait_limit_ns(
            6 * MS,
            (weight(own), piece),
            &[(weight(sibling), piece)],
            (weight(tenant), piece),
            &[(weight(other), piece)],
        );
        for _ in 0..10 {
            let before = model.served_ns(vgpus[0]);
            model.run_for(u64::try_from(limit_ns).unwrap() + 1);
            assert!(model.served_ns(vgpus[0]) > before, "starved for {limit_ns} ns");
        }
    }
}

#[test]
fn a_removed_vgpu_leaves_its_key() {
    let mut model = Model::new("fair", Habits::default());
    let vgpu = model.tenant(3, Load::Saturating(vec![US]));
    model.run_for(MS);
    model.remove_vgpu(vgpu);
    assert_eq!(model.node.vgpu(vgpu_key(vgpu)), None);
    let weight = Weight::ONE;
    let tenant = weft_sched::TenantKey::DEFAULT;
    let vgpu_key = vgpu_key(vgpu);
    model.tell(weft_sched::Event::AddVgpu { vgpu: vgpu_key, tenant, device: DEVICE, weight });
    assert_eq!(model.node.vgpu(vgpu_key).unwrap().used_ns, 0);
}
