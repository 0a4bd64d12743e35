//! User-facing vGPUs beside batch ones on a model device: how long they wait, and that their share
//! stays what their weight says.

use crate::model::{DEVICE, Habits, Load, MS, Model, SECOND, US};
use proptest::prelude::*;
use weft_sched::invariants::wait_limit_ns;
use weft_sched::{Class, Config, SessionKey, Weight};

const USER_FACING: Class = Class::UserFacing { sla_ns: 200 * MS };
/// What batch sessions offer: always more commands of this size.
const COMMAND_NS: u64 = 500 * US;
/// Device time that a batch worker has in flight.
const SLICE_NS: u64 = 2 * MS;
const HABITS: Habits = Habits {
    pipelined: true,
    window_ns: SLICE_NS,
    error_permille: 0,
    settle_delay_ns: 0,
    switch_ns: 0,
};

/// A request of 2 ms every 20 ms or so: a tenth of the device.
const REQUESTS: Load = Load::Pausing { size_ns: 2 * MS, pause_ns: 18_300 * US };

fn batch() -> Load {
    Load::Saturating(vec![COMMAND_NS])
}

/// Tenants of one vGPU each, of weight 1.
fn tenant(model: &mut Model, class: Class, load: Load) -> usize {
    let group = model.group(1);
    let vgpu = model.vgpu_of(group, 1);
    model.set_class(vgpu, class);
    model.session(vgpu, load);
    vgpu
}

#[test]
fn who_is_user_facing_waits_for_a_slice_and_others_for_turns() {
    let longest_wait = |class| {
        let mut model = Model::with_config(Config::default(), HABITS);
        let service = tenant(&mut model, class, REQUESTS);
        let others = [(); 2].map(|()| tenant(&mut model, Class::Batch, batch()));
        model.run_for(20 * SECOND);
        model.check_bills();
        let [one, two] = others.map(|vgpu| model.served_ns(vgpu));
        assert!(one.abs_diff(two) <= 20 * MS, "batch tenants share what is left: {one}, {two}");
        // Who is done keeps the device for the yield time, at its own expense.
        assert!(model.busy_ns > 19_800 * MS, "all of the device is used: {}", model.busy_ns);
        (model.longest_wait_ns(0), model.served_ns(service))
    };
    let (wait_ns, served_ns) = longest_wait(USER_FACING);
    let overlap_ns = Config::default().overlap_ns;
    assert!(wait_ns <= SLICE_NS + COMMAND_NS + overlap_ns, "waited {wait_ns}");
    assert!(served_ns > 1_700 * MS, "{served_ns}");
    let (control_ns, _) = longest_wait(Class::Batch);
    assert!(control_ns > 2 * wait_ns, "as batch {control_ns}, as user-facing {wait_ns}");
}

#[test]
fn who_always_wants_more_gets_its_share_and_no_more() {
    let mut model = Model::with_config(Config::default(), HABITS);
    let hog = tenant(&mut model, USER_FACING, batch());
    let batch = tenant(&mut model, Class::Batch, batch());
    let borrow_ns = Config::default().borrow_ns;
    model.run_for(10 * SECOND);
    let [hog_ns, batch_ns] = [hog, batch].map(|vgpu| model.served_ns(vgpu));
    let most_ns = borrow_ns + 4 * (6 * MS + COMMAND_NS);
    assert!(hog_ns.abs_diff(batch_ns) <= most_ns, "{hog_ns} and {batch_ns}");
}

/// A batch tenant that waits for each of its commands, and so has none for an instant after each,
/// keeps its place among those who borrow: it would have a fortieth of the device otherwise.
#[test]
fn who_waits_for_each_command_is_not_put_back_by_a_greedy_one() {
    let beside = |class| {
        let mut model = Model::with_config(Config::default(), HABITS);
        tenant(&mut model, class, batch());
        let victim = tenant(
            &mut model,
            Class::Batch,
            Load::Pausing { size_ns: 391 * US, pause_ns: 20 * US },
        );
        model.run_for(10 * SECOND);
        model.served_ns(victim)
    };
    let (beside_batch_ns, beside_user_facing_ns) = (beside(Class::Batch), beside(USER_FACING));
    let least_ns = beside_batch_ns * 9 / 10;
    assert!(beside_user_facing_ns >= least_ns, "{beside_user_facing_ns}, {beside_batch_ns}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    /// A batch tenant that sleeps for milliseconds between its commands, beside greedy ones of one
    /// weight. They borrow once; from then on a command waits for a turn of each and for what their
    /// weights give them for it, and not for all that may be borrowed each time.
    #[test]
    fn who_sleeps_between_its_commands_lends_once(
        (weight, greedy) in (1u32..5, 1u32..4),
        size_ns in 100 * US..4 * MS,
        pause_ns in MS..20 * MS,
    ) {
        let config = Config::default();
        let mut model = Model::with_config(config, HABITS);
        for _ in 0..greedy {
            let group = model.group(weight);
            let vgpu = model.vgpu_of(group, 1);
            model.set_class(vgpu, USER_FACING);
            model.session(vgpu, batch());
        }
        let victim = tenant(&mut model, Class::Batch, Load::Pausing { size_ns, pause_ns });
        let lent_ns = u64::from(greedy) * (config.borrow_ns + config.quantum_ns);
        model.run_for(lent_ns + 4 * SECOND);
        let theirs_ns = u64::from(weight * greedy) * size_ns;
        let turn_ns = config.quantum_ns + config.yield_ns + COMMAND_NS + config.overlap_ns;
        let cycle_ns = size_ns + pause_ns + theirs_ns + u64::from(greedy) * turn_ns;
        let wanted_ns = 4 * SECOND / cycle_ns * size_ns;
        let (served_ns, least_ns) = (model.served_ns(victim), wanted_ns * 9 / 10);
        prop_assert!(served_ns >= least_ns, "{served_ns} of {least_ns}");
    }
}

/// One that has borrowed more than a turn stands in no other one's way.
#[test]
fn a_greedy_one_spoils_no_other_ones_answers() {
    let mut model = Model::with_config(Config::default(), HABITS);
    tenant(&mut model, USER_FACING, batch());
    tenant(&mut model, Class::Batch, batch());
    model.run_for(2 * SECOND);
    tenant(&mut model, USER_FACING, REQUESTS);
    model.run_for(20 * SECOND);
    let (wait_ns, overlap_ns) = (model.longest_wait_ns(2), Config::default().overlap_ns);
    assert!(wait_ns <= SLICE_NS + COMMAND_NS + overlap_ns, "waited {wait_ns}");
}

/// A tenant's batch vGPU gives way to its own user-facing one; the tenant's share stays.
#[test]
fn inside_a_tenant_it_is_the_same() {
    let mut model = Model::with_config(Config::default(), HABITS);
    let groups = [model.group(1), model.group(1)];
    let vgpus = [(groups[0], 1), (groups[0], 1), (groups[1], 1)]
        .map(|(group, weight)| model.vgpu_of(group, weight));
    model.set_class(vgpus[0], USER_FACING);
    model.session(vgpus[0], REQUESTS);
    model.session(vgpus[1], batch());
    model.session(vgpus[2], batch());
    model.run_for(20 * SECOND);
    let wait_ns = model.longest_wait_ns(0);
    let overlap_ns = Config::default().overlap_ns;
    assert!(wait_ns <= SLICE_NS + COMMAND_NS + overlap_ns, "waited {wait_ns}");
    let served = vgpus.map(|vgpu| model.served_ns(vgpu));
    let [one, two] = [served[0] + served[1], served[2]];
    assert!(one.abs_diff(two) <= 200 * MS, "tenants share as before: {one}, {two}");
}

/// Those who borrow delay others by what they may borrow, each of them once.
#[test]
fn nobody_starves_beside_borrowers() {
    let (mut model, config) = (Model::with_config(Config::default(), HABITS), Config::default());
    let victim = tenant(&mut model, Class::Batch, batch());
    for _ in 0..3 {
        tenant(&mut model, USER_FACING, batch());
    }
    let turn_ns = config.quantum_ns + config.overlap_ns;
    let borrower = (Weight::ONE, COMMAND_NS + config.borrow_ns);
    let limit_ns = wait_limit_ns(turn_ns, (Weight::ONE, COMMAND_NS), &[borrower; 3]);
    let limit_ns = u64::try_from(limit_ns).unwrap_or(u64::MAX);
    for _ in 0..20 {
        let before_ns = model.served_ns(victim);
        model.run_for(limit_ns + 1);
        assert!(model.served_ns(victim) > before_ns, "starved for {limit_ns} ns");
    }
}

#[test]
fn a_slice_is_stated_where_somebody_may_come() {
    let mut model = Model::with_config(Config::default(), HABITS);
    let service = tenant(&mut model, Class::Batch, Load::Manual);
    tenant(&mut model, Class::Batch, Load::Manual);
    let slices = |model: &Model| [0, 1].map(|key| model.node.slice_ns(SessionKey(key)));
    assert_eq!(slices(&model), [None, None]);
    model.set_class(service, USER_FACING);
    assert_eq!(slices(&model), [None, Some(SLICE_NS)], "it does not wait for itself");
    model.set_policy("round_robin");
    assert_eq!(slices(&model), [None, None], "this policy knows no classes");
    model.set_policy("fair");
    assert_eq!(model.node.config(DEVICE).map(|config| config.slice_ns), Some(SLICE_NS));
    model.kill(0);
    assert_eq!(slices(&model), [None, None], "nobody can come");
}
