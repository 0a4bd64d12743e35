//! Random histories on the model device. The model checks at every step: the lag bound, work
//! conservation, rising epochs, a virtual time that never falls; here: bills, starvation, ends.

mod model;

use model::{Habits, Load, MS, Model, US, vgpu_key};
use proptest::prelude::*;
use weft_sched::invariants::wait_limit_ns;
use weft_sched::{Config, Node, Weight, policy};

#[derive(Clone, Debug)]
enum Step {
    AddVgpu { weight: u32 },
    AddSession { vgpu: usize, load: Load },
    Burst { session: usize, commands: Vec<u64> },
    Kill { session: usize },
    RemoveVgpu { vgpu: usize },
    Reweight { vgpu: usize, weight: u32 },
    Pass { ns: u64 },
    Settle,
}

fn weight() -> impl Strategy<Value = u32> {
    prop_oneof![4 => 1u32..5, 1 => 1u32..=10_000]
}

fn size() -> impl Strategy<Value = u64> {
    prop_oneof![6 => US..2 * MS, 1 => 1u64..2_000, 1 => 2 * MS..40 * MS]
}

fn load() -> impl Strategy<Value = Load> {
    prop_oneof![
        prop::collection::vec(size(), 1..5).prop_map(Load::Saturating),
        (size(), US..5 * MS).prop_map(|(size_ns, pause_ns)| Load::Pausing { size_ns, pause_ns }),
        Just(Load::Manual),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => weight().prop_map(|weight| Step::AddVgpu { weight }),
        6 => (any::<usize>(), load()).prop_map(|(vgpu, load)| Step::AddSession { vgpu, load }),
        6 => (any::<usize>(), prop::collection::vec(size(), 1..20))
            .prop_map(|(session, commands)| Step::Burst { session, commands }),
        2 => any::<usize>().prop_map(|session| Step::Kill { session }),
        1 => any::<usize>().prop_map(|vgpu| Step::RemoveVgpu { vgpu }),
        2 => (any::<usize>(), weight()).prop_map(|(vgpu, weight)| Step::Reweight { vgpu, weight }),
        12 => prop_oneof![0..200 * US, 0..100 * MS].prop_map(|ns| Step::Pass { ns }),
        1 => Just(Step::Settle),
    ]
}

fn habits() -> impl Strategy<Value = Habits> {
    (any::<bool>(), 200 * US..6 * MS, prop_oneof![Just(0i64), -300i64..300], 0..2 * MS).prop_map(
        |(pipelined, window_ns, error_permille, settle_delay_ns)| Habits {
            pipelined,
            window_ns,
            error_permille: if pipelined { error_permille } else { 0 },
            settle_delay_ns,
        },
    )
}

fn choose(from: &[usize], number: usize) -> Option<usize> {
    (!from.is_empty()).then(|| from[number % from.len()])
}

fn take(model: &mut Model, step: &Step) {
    match step {
        Step::AddVgpu { weight } => {
            model.vgpu(*weight);
        }
        Step::AddSession { vgpu, load } => {
            if let Some(vgpu) = choose(&model.vgpus_alive(), *vgpu) {
                model.session(vgpu, load.clone());
            }
        }
        Step::Burst { session, commands } => {
            if let Some(session) = choose(&model.sessions_alive(), *session) {
                commands.iter().for_each(|size_ns| model.offer(session, *size_ns));
            }
        }
        Step::Kill { session } => {
            if let Some(session) = choose(&model.sessions_alive(), *session) {
                model.kill(session);
            }
        }
        Step::RemoveVgpu { vgpu } => {
            if let Some(vgpu) = choose(&model.vgpus_alive(), *vgpu) {
                model.remove_vgpu(vgpu);
            }
        }
        Step::Reweight { vgpu, weight } => {
            if let Some(vgpu) = choose(&model.vgpus_alive(), *vgpu) {
                model.reweight(vgpu, *weight);
            }
        }
        Step::Pass { ns } => model.run_for(*ns),
        Step::Settle => model.settle(),
    }
}

fn check_end(model: &mut Model) {
    model.check_bills();
    assert!(model.kills.is_empty(), "nobody was overdue");
    for worker in model.sessions_alive() {
        model.kill(worker);
    }
    model.run_for(MS);
    assert_eq!(model.node.holders(model::DEVICE), []);
    assert_eq!(model.node.poll_timeout(), None, "an idle node has no timer");
}

proptest! {
    #[test]
    fn fair_keeps_every_invariant(
        habits in habits(),
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let mut model = Model::new("fair", habits);
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
        steps in prop::collection::vec((step(), 0usize..8), 1..60),
    ) {
        let mut model = Model::new("fair", habits);
        for (step, change) in &steps {
            take(&mut model, step);
            match change {
                0 => model.set_policy("unmanaged"),
                1 => model.set_policy("round_robin"),
                2 => model.set_policy("fair"),
                3 => model.set_policy("priority"),
                4 => model.set_device(false),
                5 => model.set_device(true),
                _ => {}
            }
        }
        model.set_device(true);
        model.set_policy("fair");
        for session in model.sessions_alive() {
            model.kill(session);
        }
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
        let restored = Node::restore(Config::default(), &snapshot).unwrap();
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
    model.tell(weft_sched::Event::AddVgpu {
        vgpu: vgpu_key,
        tenant,
        device: model::DEVICE,
        weight,
    });
    assert_eq!(model.node.vgpu(vgpu_key).unwrap().used_ns, 0);
}
