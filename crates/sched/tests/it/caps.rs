//! A tenant's cap: never exceeded by all of its vGPUs together, whatever one of them leaves is
//! there for the others, and they divide it by their weights.

use crate::model::{Habits, Load, MS, Model, US};
use proptest::prelude::*;
use weft_sched::Cap;

/// What a vGPU of the tenant does.
#[derive(Clone, Copy, Debug)]
enum Habit {
    Busy {
        size_ns: u64,
    },
    Pausing {
        size_ns: u64,
        pause_ns: u64,
    },
    /// It has a session and never a command.
    Idle,
}

impl Habit {
    fn load(self) -> Load {
        match self {
            Self::Busy { size_ns } => Load::Saturating(vec![size_ns]),
            Self::Pausing { size_ns, pause_ns } => Load::Pausing { size_ns, pause_ns },
            Self::Idle => Load::Manual,
        }
    }
}

fn habit() -> impl Strategy<Value = Habit> {
    let size = || 20 * US..2 * MS;
    prop_oneof![
        size().prop_map(|size_ns| Habit::Busy { size_ns }),
        (size(), US..5 * MS).prop_map(|(size_ns, pause_ns)| Habit::Pausing { size_ns, pause_ns }),
        Just(Habit::Idle),
    ]
}

/// vGPUs of one tenant, with weights.
fn siblings() -> impl Strategy<Value = Vec<(u32, Habit)>> {
    prop::collection::vec((1u32..5, habit()), 0..5)
}

/// A model whose tenant 1 has these vGPUs and a cap that they have together.
fn capped(habits: Habits, siblings: &[(u32, Habit)], cap: Cap) -> (Model, Vec<usize>) {
    let mut model = Model::new("fair", habits);
    let group = model.group(1);
    model.set_group_cap(group, Some(cap));
    let vgpus = siblings.iter().map(|(weight, habit)| {
        let vgpu = model.vgpu_of(group, *weight);
        model.session(vgpu, habit.load());
        vgpu
    });
    let vgpus = vgpus.collect();
    (model, vgpus)
}

fn served_ns(model: &Model, vgpus: &[usize]) -> u64 {
    vgpus.iter().map(|vgpu| model.served_ns(*vgpu)).sum()
}

fn in_flight_habits() -> impl Strategy<Value = Habits> {
    (any::<bool>(), 200 * US..6 * MS).prop_map(|(pipelined, window_ns)| Habits {
        pipelined,
        window_ns,
        error_permille: 0,
        settle_delay_ns: 0,
        switch_ns: 0,
    })
}

proptest! {
    /// One vGPU is always busy, the others are what they are. That the cap is never exceeded is
    /// checked by the model at every step; here it is that all of it is used.
    #[test]
    fn what_siblings_leave_of_a_cap_is_used(
        habits in in_flight_habits(),
        mut siblings in siblings(),
        size_ns in 20 * US..2 * MS,
        share_ppm in 50_000u32..600_000,
        period_ns in 20 * MS..200 * MS,
        beside in any::<bool>(),
    ) {
        siblings.push((1, Habit::Busy { size_ns }));
        let cap = Cap { share_ppm, period_ns };
        let (mut model, vgpus) = capped(habits, &siblings, cap);
        if beside {
            // Its tenant is owed more than the cap leaves the other.
            let group = model.group(1);
            let vgpu = model.vgpu_of(group, 1);
            model.set_group_cap(group, Some(Cap { share_ppm: 300_000, period_ns }));
            model.session(vgpu, Load::Saturating(vec![MS]));
        }
        let periods = 20;
        model.run_for(periods * period_ns);
        let (got, due) = (served_ns(&model, &vgpus), periods * cap.allowance_ns());
        // Who pauses for less than a yield keeps its turn: that idles the device, which with the
        // other tenant has no more than an eighth to spare.
        let idled: u64 = vgpus.iter().map(|vgpu| model.idled_ns(*vgpu)).sum();
        // What is in flight at the end was counted and is not served yet.
        prop_assert!(got + idled + 10 * MS >= due, "{got} ns and {idled} ns idle of {due} ns");
        model.check_bills();
    }

    /// With allowances of less than a turn, too, and however time passes for others meanwhile.
    #[test]
    fn siblings_divide_a_cap_by_weight(
        habits in in_flight_habits(),
        weights in prop::collection::vec(1u32..5, 2..5),
        size_ns in 20 * US..2 * MS,
        share_ppm in 20_000u32..400_000,
        period_ns in 5 * MS..50 * MS,
    ) {
        let busy: Vec<_> =
            weights.iter().map(|weight| (*weight, Habit::Busy { size_ns })).collect();
        let (mut model, vgpus) = capped(habits, &busy, Cap { share_ppm, period_ns });
        let other = model.group(1);
        let beside = model.vgpu_of(other, 1);
        model.session(beside, Load::Saturating(vec![MS]));
        model.run_for(4_000 * MS);
        let parts = vgpus.iter().zip(&weights).map(|(vgpu, weight)| {
            model.served_ns(*vgpu) / u64::from(*weight)
        });
        let parts: Vec<u64> = parts.collect();
        let (most, least) = (parts.iter().max().unwrap(), parts.iter().min().unwrap());
        // A turn and its last command, of each of two.
        prop_assert!(most - least <= 2 * (6 + 2) * MS, "{parts:?} at weights {weights:?}");
        model.check_bills();
    }
}

/// The control: where the cap is divided beforehand, as it was, what a sibling leaves is nobody's.
#[test]
fn a_cap_divided_beforehand_is_half_used_beside_an_idle_sibling() {
    let cap = Cap { share_ppm: 400_000, period_ns: 50 * MS };
    let part = Cap { share_ppm: 200_000, ..cap };
    let siblings = [(1, Habit::Busy { size_ns: MS }), (1, Habit::Idle)];
    let used = |divided: bool| {
        let (mut model, vgpus) = capped(Habits::default(), &siblings, cap);
        if divided {
            model.set_group_cap(1, None);
            vgpus.iter().for_each(|vgpu| model.set_cap(*vgpu, Some(part)));
        }
        model.run_for(1_000 * MS);
        served_ns(&model, &vgpus)
    };
    assert!((390 * MS..=410 * MS).contains(&used(false)), "{} ns", used(false));
    assert!((190 * MS..=210 * MS).contains(&used(true)), "{} ns", used(true));
}

/// Policies without tags take siblings in turn: the first does not get every allowance.
#[test]
fn allowances_of_less_than_a_turn_go_round() {
    for policy in ["round_robin", "fair"] {
        let mut model = Model::new(policy, Habits::default());
        let group = model.group(1);
        model.set_group_cap(group, Some(Cap { share_ppm: 100_000, period_ns: 10 * MS }));
        let vgpus = [(); 3].map(|()| model.vgpu_of(group, 1));
        for vgpu in vgpus {
            model.session(vgpu, Load::Saturating(vec![500 * US]));
        }
        let other = model.vgpu(1);
        model.session(other, Load::Saturating(vec![MS]));
        model.run_for(3_000 * MS);
        for vgpu in vgpus {
            let got = model.served_ns(vgpu);
            assert!((80 * MS..=120 * MS).contains(&got), "{policy}: {got} ns of a third of 300 ms");
        }
    }
}

/// A cap of one vGPU holds besides its tenant's, and what it leaves is its sibling's.
#[test]
fn a_vgpus_own_cap_holds_besides() {
    let cap = Cap { share_ppm: 400_000, period_ns: 50 * MS };
    let busy = (1, Habit::Busy { size_ns: MS });
    let (mut model, vgpus) = capped(Habits::default(), &[busy, busy], cap);
    model.set_cap(vgpus[0], Some(Cap { share_ppm: 100_000, ..cap }));
    model.run_for(1_000 * MS);
    let got = [0, 1].map(|place| model.served_ns(vgpus[place]) / MS);
    assert!((95..=105).contains(&got[0]) && (290..=310).contains(&got[1]), "{got:?} ms");
}

/// Another cap forgives nothing, and none lets everybody go.
#[test]
fn a_cap_that_is_set_again_begins_no_new_allowance() {
    let cap = Cap { share_ppm: 100_000, period_ns: 100 * MS };
    let busy = (1, Habit::Busy { size_ns: MS });
    let (mut model, vgpus) = capped(Habits::default(), &[busy, busy], cap);
    for round in 0..100_u32 {
        model.run_for(10 * MS);
        model.set_group_cap(1, Some(Cap { share_ppm: 100_000 + round, ..cap }));
    }
    let got = served_ns(&model, &vgpus);
    assert!(got <= 130 * MS, "{got} ns of a tenth of a second");
    model.set_group_cap(1, None);
    model.run_for(100 * MS);
    assert!(served_ns(&model, &vgpus) - got >= 99 * MS, "nothing holds them back");
}
