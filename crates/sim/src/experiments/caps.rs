//! Hard caps on idle and busy devices: never over the allowances and what was in flight, and the
//! rest of the device not idle because of them.

use weft_sched::Cap;

use super::lab::{Lab, RunError, min_max_ratio};
use crate::checks::Bearer;
use crate::kernel::{Kernel, MS, SECOND, US};
use crate::outcome::{Outcome, PlotKind};
use crate::program::{Behaviour, Step, View};
use crate::worker::Source;
use crate::world::World;

const QUANTUM_NS: u64 = MS;

/// What a vGPU does.
#[derive(Clone, Copy, Debug)]
enum Habit {
    /// It always has kernels of so many µs.
    Busy(u64),
    /// 10 ms of work, then 10 ms of sleep: unused allowances must not be saved.
    Bursts,
}

#[derive(Clone, Copy, Debug)]
struct Vgpu {
    weight: u32,
    /// Thousandths of the device's time.
    cap_permille: Option<u32>,
    habit: Habit,
}

const fn free(weight: u32, us: u64) -> Vgpu {
    Vgpu { weight, cap_permille: None, habit: Habit::Busy(us) }
}

const fn capped(permille: u32, weight: u32, us: u64) -> Vgpu {
    Vgpu { cap_permille: Some(permille), ..free(weight, us) }
}

struct Case {
    name: &'static str,
    period_ns: u64,
    vgpus: &'static [Vgpu],
}

const fn case(name: &'static str, period_ns: u64, vgpus: &'static [Vgpu]) -> Case {
    Case { name, period_ns, vgpus }
}

const CASES: [Case; 9] = [
    case("alone_2ms", 2 * MS, &[capped(250, 1, 102)]),
    case("alone_10ms", 10 * MS, &[capped(250, 1, 207)]),
    case("alone_100ms", 100 * MS, &[capped(250, 1, 391)]),
    case("beside", 10 * MS, &[capped(100, 4, 207), free(1, 285), free(2, 51)]),
    case("beside_100ms", 100 * MS, &[capped(300, 10, 207), free(1, 285), free(2, 51)]),
    case("above_its_share", 10 * MS, &[capped(600, 1, 207), free(1, 285), free(2, 51)]),
    case("all_capped", 10 * MS, &[capped(100, 1, 207), capped(200, 1, 285), capped(300, 1, 51)]),
    // Kernels of two periods, which cannot be cut: what one overruns is owed.
    case("long", 10 * MS, &[capped(100, 4, 20_000), free(1, 285), free(2, 51)]),
    case(
        "bursts",
        10 * MS,
        &[Vgpu { habit: Habit::Bursts, ..capped(200, 4, 0) }, free(1, 285), free(2, 51)],
    ),
];

/// 10 ms of work, then 10 ms of sleep.
#[derive(Clone, Copy, Debug, Default)]
struct Bursts {
    place: u64,
}

impl Behaviour for Bursts {
    fn next(&mut self, _view: &View) -> Step {
        let place = self.place;
        self.place = (place + 1) % 52;
        match place {
            50 => Step::Sync,
            51 => Step::Sleep(10 * MS),
            _ => Step::Launch(Kernel::new(0, 200 * US)),
        }
    }
}

/// What a case came to.
struct Run {
    /// Share of the device of each vGPU.
    shares: Vec<f64>,
    /// The largest excess over the allowances, in ns, and over what is allowed.
    excess_ns: f64,
    excess: f64,
    violations: u64,
}

pub(super) fn caps(lab: &mut Lab<'_>) -> Result<Outcome, RunError> {
    let duration_ns = lab.seconds(30, 5);
    let window = format!("{} s per case, quantum 1 ms", duration_ns / SECOND);
    let mut outcome = Outcome::new("caps", "Hard caps", window);
    let (mut rows, mut use_min, mut use_max) = (Vec::new(), f64::MAX, 0.0_f64);
    let (mut rest_min, mut busy_min) = (f64::MAX, f64::MAX);
    let (mut excess_ns, mut excess) = (f64::MIN, f64::MIN);
    for case in &CASES {
        lab.say(case.name);
        let result = run(lab, case, duration_ns, true)?;
        let utilisation: f64 = result.shares.iter().sum();
        outcome.figure(format!("utilization_{}", case.name), utilisation);
        (excess_ns, excess) = (excess_ns.max(result.excess_ns), excess.max(result.excess));
        let spare = case.vgpus.iter().any(|vgpu| vgpu.cap_permille.is_none());
        if spare {
            busy_min = busy_min.min(utilisation);
            rest_min = rest_min.min(mmr(case, &result.shares));
        }
        for (number, (vgpu, share)) in case.vgpus.iter().zip(&result.shares).enumerate() {
            let Some(permille) = vgpu.cap_permille else { continue };
            let part = share / (f64::from(permille) / 1e3);
            use_max = use_max.max(part);
            // Where it would get more without: the cap decides what it gets.
            let binds = case.name != "above_its_share";
            if binds && matches!(vgpu.habit, Habit::Busy(_)) {
                use_min = use_min.min(part);
            }
            if number == 0 {
                rows.push((case.name, part));
                outcome.figure(format!("share_over_cap_{}", case.name), part);
            }
        }
    }
    outcome.figure("share_over_cap_max", use_max);
    outcome.figure("share_over_cap_min", use_min);
    outcome.figure("excess_ms_max", excess_ns / MS as f64);
    outcome.figure("excess_over_bound_max", excess);
    outcome.figure("utilization_min", busy_min);
    outcome.figure("mmr_rest_min", rest_min);
    let ours =
        format!("at most {use_max:.4} of the cap; others keep the device {busy_min:.4} busy");
    outcome.compare("hard caps", "none", ours);
    lab.say("without caps");
    let mut uncapped = Vec::new();
    for case in CASES.iter().filter(|case| case.name != "above_its_share") {
        let result = run(lab, case, duration_ns, false)?;
        let cap = f64::from(case.vgpus[0].cap_permille.unwrap_or(1_000)) / 1e3;
        uncapped.push((case.name, result.shares[0] / cap, result.violations));
    }
    let least = |values: &mut dyn Iterator<Item = f64>| values.fold(f64::MAX, f64::min);
    outcome.control("share_over_cap_uncapped", least(&mut uncapped.iter().map(|row| row.1)));
    let found = least(&mut uncapped.iter().map(|row| row.2 as f64));
    outcome.control("violations_uncapped", found);
    siblings(lab, &mut outcome, duration_ns)?;
    let plot = outcome.plot(PlotKind::Bars, "Share over cap", "", "share / cap");
    plot.groups(rows.iter().map(|row| row.0)).mark(1.0);
    plot.bars("capped", rows.iter().map(|row| row.1));
    let without = |name: &str| uncapped.iter().find(|row| row.0 == name).map_or(0.0, |row| row.1);
    plot.bars("the same without caps", rows.iter().map(|row| without(row.0)));
    outcome.note(
        "The first vGPU of each case: alone with a quarter of the device, beside two others, with a \
         cap above its share (which changes nothing), beside other capped ones, with kernels of 20 \
         ms that cannot be cut (the allowances that pass while one executes are lost), and with bursts between sleeps. excess is the most by which any run \
         of periods exceeded its allowances; the bound is a turn and what was in flight.",
    );
    outcome.note(
        "utilization_min and mmr_rest_min: the device beside uncapped vGPUs, and how they share the \
         rest by weight. violations_uncapped: steps at which the same check fails \
         when nobody tells the scheduler of the cap, the least of all cases.",
    );
    Ok(outcome)
}

/// A tenant has a cap for three vGPUs of weights 1, 2 and 3, of which the last never has work;
/// another tenant always does. The control is the same cap divided among the three beforehand.
fn siblings(lab: &mut Lab<'_>, outcome: &mut Outcome, duration_ns: u64) -> Result<(), RunError> {
    let cap = Cap { share_ppm: 300_000, period_ns: 10 * MS };
    let kernels =
        |us: u64| Source::Endless { kernels: vec![Kernel::new(0, us * US)], jitter_permille: 50 };
    let run = |lab: &mut Lab<'_>, divided: bool| -> Result<(f64, f64, f64), RunError> {
        lab.say(if divided { "siblings, divided" } else { "siblings" });
        let mut world = World::new(lab.setup("fair").quantum(QUANTUM_NS))?;
        let tenant = world.tenant(1);
        let own = [1, 2, 3].map(|weight| world.vgpu_of(tenant, weight));
        let other = world.vgpu(1);
        for (vgpu, us) in [(own[0], 207), (own[1], 51), (other, 285)] {
            world.session(vgpu, kernels(us));
        }
        for (vgpu, sixths) in own.into_iter().zip(1..).filter(|_| divided) {
            let part = Cap { share_ppm: cap.share_ppm * sixths / 6, ..cap };
            world.set_cap(Bearer::Vgpu(vgpu), Some(part));
        }
        if divided {
            world.hold_against(Bearer::Tenant(tenant), Some(cap));
        } else {
            world.set_cap(Bearer::Tenant(tenant), Some(cap));
        }
        world.run_for(duration_ns);
        let share = |ns: &u64| *ns as f64 / duration_ns as f64;
        let shares: Vec<f64> = world.work_ns().iter().map(share).collect();
        let used = own.iter().map(|vgpu| shares[*vgpu]).sum::<f64>() / 0.3;
        let (busy, mmr) =
            (shares.iter().sum(), min_max_ratio(&[shares[own[0]], shares[own[1]] / 2.0]));
        lab.close(&mut world, "siblings");
        Ok((used, mmr, busy))
    };
    let (used, mmr, busy) = run(lab, false)?;
    outcome.figure("tenant_share_over_cap", used);
    outcome.figure("tenant_mmr", mmr);
    outcome.figure("tenant_utilization", busy);
    let (divided, ..) = run(lab, true)?;
    outcome.control("tenant_share_over_cap_divided", divided);
    outcome.note(
        "tenant_share_over_cap: a tenant's cap of 30 % for three vGPUs of weights 1, 2 and 3, of \
         which the last never has work. tenant_mmr: how evenly the two others divide it by weight. \
         The control divides the cap by weight beforehand, so half of it is nobody's.",
    );
    Ok(())
}

/// Of those whose cap does not decide what they get.
fn mmr(case: &Case, shares: &[f64]) -> f64 {
    let loose = case.name == "above_its_share";
    let its =
        case.vgpus.iter().zip(shares).filter(|(vgpu, _)| vgpu.cap_permille.is_none() || loose);
    min_max_ratio(&its.map(|(vgpu, share)| share / f64::from(vgpu.weight)).collect::<Vec<_>>())
}

fn run(lab: &mut Lab<'_>, case: &Case, duration_ns: u64, enforced: bool) -> Result<Run, RunError> {
    let mut world = World::new(lab.setup("fair").quantum(QUANTUM_NS))?;
    for vgpu in case.vgpus {
        let number = world.vgpu(vgpu.weight);
        let cap = vgpu
            .cap_permille
            .map(|permille| Cap { share_ppm: 1_000 * permille, period_ns: case.period_ns });
        if enforced {
            world.set_cap(Bearer::Vgpu(number), cap);
        } else {
            world.hold_against(Bearer::Vgpu(number), cap);
        }
        match vgpu.habit {
            Habit::Busy(us) => {
                let kernels = vec![Kernel::new(0, us * US)];
                world.session(number, Source::Endless { kernels, jitter_permille: 50 });
            }
            Habit::Bursts => {
                world.program(number, Box::new(Bursts::default()), lab.rings(), None, 1_024);
            }
        }
    }
    world.run_for(duration_ns);
    let shares = world.work_ns().iter().map(|ns| *ns as f64 / duration_ns as f64).collect();
    let excesses = (0..case.vgpus.len()).filter_map(|vgpu| world.cap_excess(Bearer::Vgpu(vgpu)));
    let (excess_ns, excess) = excesses
        .map(|(excess_ns, slack_ns)| (excess_ns as f64, excess_ns as f64 / slack_ns as f64))
        .fold((f64::MIN, f64::MIN), |most, one| (most.0.max(one.0), most.1.max(one.1)));
    // Without caps the check must fail, which is nobody's fault.
    let verdict = if enforced { lab.close(&mut world, case.name) } else { world.finish() };
    Ok(Run { shares, excess_ns, excess, violations: verdict.other_violations })
}
