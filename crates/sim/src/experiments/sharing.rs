//! The same program in several VMs (FairGV Figures 8 and 9).

use super::lab::{Lab, RunError, Shares, System, measure, systems};
use super::standalone::rate_alone;
use crate::kernel::SECOND;
use crate::outcome::{Outcome, PlotKind};
use crate::table3::Profile;
use crate::world::World;

/// What an experiment deploys.
struct Deployment {
    weights: &'static [u32],
    /// Each VM's core.
    cores: &'static [usize],
    programs: &'static [&'static str],
    /// What the paper says of FairGV's MMR and overhead.
    paper: [(f64, &'static str); 2],
}

const THREE: Deployment = Deployment {
    weights: &[1, 2, 3],
    cores: &[0, 0, 0],
    programs: &["MM", "HS", "BS", "SRD1"],
    paper: [(0.99, "paper, FairGV: ≥ 0.99"), (1.0, "ideal (paper, FairGV: the least of all)")],
};
const SIX: Deployment = Deployment {
    weights: &[1, 2, 2, 3, 3, 4],
    cores: &[0, 0, 1, 1, 2, 2],
    programs: &["BS", "SRD1"],
    paper: [(0.97, "paper, FairGV: ≥ 0.97"), (1.02, "paper, FairGV: ≤ 1.02")],
};

pub(super) fn figure8(lab: &mut Lab<'_>) -> Result<Outcome, RunError> {
    compare(lab, "figure8", "Three VMs on one core, weights 1:2:3", &THREE)
}

pub(super) fn figure9(lab: &mut Lab<'_>) -> Result<Outcome, RunError> {
    compare(lab, "figure9", "Six VMs on three cores, weights 1:2:2:3:3:4", &SIX)
}

fn compare(
    lab: &mut Lab<'_>,
    name: &str,
    title: &str,
    deployment: &Deployment,
) -> Result<Outcome, RunError> {
    let (windows, window_ns) = if lab.quick { (2, SECOND) } else { (5, 10 * SECOND) };
    let window = format!("{windows} windows of {} s after one second", window_ns / SECOND);
    let mut outcome = Outcome::new(name, title, window);
    let (mut mmr_min, mut overhead_max) = (f64::MAX, 0.0_f64);
    let mut table: Vec<(System, Vec<Shares>)> = systems().map(|one| (one, Vec::new())).collect();
    for &program in deployment.programs {
        let profile = Profile::named(program).unwrap_or_else(|| Profile::table3().remove(0));
        let alone =
            rate_alone(lab, Box::new(profile.program(lab.seed)), lab.native(), lab.seconds(4, 1))?;
        for (system, results) in &mut table {
            lab.say(&format!("{program} under {}", system.name));
            let shares = share(lab, system, deployment, &profile, alone, (windows, window_ns))?;
            let (mmr, overhead) = (shares.median(), shares.overhead);
            let key = system.name.replace(", no cosched", "_plain");
            if system.policy == "unmanaged" || system.policy == "round_robin" {
                outcome.control(format!("mmr_{key}_{program}"), mmr);
            } else {
                outcome.figure(format!("mmr_{key}_{program}"), mmr);
                outcome.figure(format!("overhead_{key}_{program}"), overhead);
            }
            if system.name == "fair" {
                outcome.figure(format!("mmr_least_{program}"), shares.least());
                mmr_min = mmr_min.min(mmr);
                overhead_max = overhead_max.max(overhead);
            }
            results.push(shares);
        }
        completion(&mut outcome, program, deployment, &table, alone);
    }
    outcome.figure("mmr_min", mmr_min);
    outcome.figure("overhead_max", overhead_max);
    for what in ["MMR", "aggregated overhead"] {
        let value = |shares: &Shares| {
            if what == "MMR" { shares.median() } else { shares.overhead.min(3.0) }
        };
        let plot = outcome.plot(PlotKind::Bars, &format!("{what}, by program"), "", what);
        plot.groups(deployment.programs.iter().copied());
        let (at, text) = deployment.paper[usize::from(what != "MMR")];
        plot.line_at(at, text);
        for (system, results) in &table {
            plot.bars(system.name, results.iter().map(value));
        }
    }
    outcome.note(
        "The CPU weights of the VMs are those of their vGPUs (FairGV §5.4.2). Competitors run on a \
         model of CFS as in the paper, fair on a model of EEVDF, today's scheduler.",
    );
    outcome.note(
        "credit_poll, credit_hs and strict_co are models of the paper's re-implementations, which \
         are not published.",
    );
    Ok(outcome)
}

/// What ten seconds of the program's own time take, as the paper's completion times: at the
/// measured rates, as if all went on for so long.
fn completion(
    outcome: &mut Outcome,
    program: &str,
    deployment: &Deployment,
    table: &[(System, Vec<Shares>)],
    alone: f64,
) {
    let names: Vec<String> = (1..=deployment.weights.len()).map(|vm| format!("VM{vm}")).collect();
    let title = format!("Completion time, {program}");
    let plot = outcome.plot(PlotKind::Bars, &title, "", "s for 10 s of its own");
    plot.groups(names.iter().map(String::as_str));
    let total: f64 = deployment.weights.iter().copied().map(f64::from).sum();
    for (system, results) in table {
        if let Some(shares) = results.last() {
            let times = shares.rates.iter().map(|rate| (10.0 * alone / rate.max(1e-9)).min(200.0));
            plot.bars(system.name, times);
        }
    }
    let ideal = deployment.weights.iter().map(|weight| 10.0 * total / f64::from(*weight));
    plot.bars("ideal", ideal);
}

fn share(
    lab: &mut Lab<'_>,
    system: &System,
    deployment: &Deployment,
    profile: &Profile,
    alone: f64,
    (windows, window_ns): (usize, u64),
) -> Result<Shares, RunError> {
    let mut world = World::new(lab.system(system))?;
    for (weight, core) in deployment.weights.iter().zip(deployment.cores) {
        let vgpu = world.vgpu(*weight);
        let cpu_weight = 1_024 * u64::from(*weight);
        let program = Box::new(profile.program(lab.seed + 1 + vgpu as u64));
        world.program(vgpu, program, lab.rings(), Some(*core), cpu_weight);
    }
    world.run_for(SECOND);
    let shares = measure(&mut world, deployment.weights, alone, windows, window_ns);
    lab.close(&mut world, &format!("{} under {}", profile.name, system.name));
    Ok(shares)
}
