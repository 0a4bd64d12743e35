//! GSaaS §V: a workload of jobs on four GPUs that have one or several cGPUs each (Table 3, Figure
//! 13), and what backfilling does that the paper's queue does not.

use super::lublin::{Limit, Lublin};
use super::queue::{Discipline, Production, Ran, run};
use super::swf::Job;
use super::{Inputs, Setup};
use crate::outcome::{Outcome, PlotKind};

/// GPUs of the paper's machine.
const GPUS: u32 = 4;
/// cGPUs of each GPU; the paper's Figure 13 goes up to 4, its text on Table 3 to 8.
const PARTS: [u32; 5] = [1, 2, 3, 4, 8];
/// Sharing factors in thousandths, with their names.
const FACTORS: [(u64, &str); 3] = [(1_000, "1x"), (1_500, "1_5x"), (2_000, "2x")];
/// With this no sharing can pay: the negative control.
const FACTOR_CONTROL: u64 = 8_000;
/// The largest machine that the model's constants are of.
const MODEL_NODES: u32 = 128;
/// Jobs of a log that are replayed.
const LOG_JOBS: usize = 3_000;

fn jobs(setup: &Setup, limit: Limit) -> Vec<Job> {
    let jobs = if setup.quick { 150 } else { 1_000 };
    let (nodes, seed) = (MODEL_NODES, setup.seed);
    Lublin { jobs, nodes, nodes_max: GPUS, limit, typed: false, seed }.generate()
}

/// All of them submitted at once.
fn at_once(jobs: &[Job]) -> Vec<Job> {
    jobs.iter().map(|job| Job { arrival_s: 0, ..*job }).collect()
}

fn machine(cgpus_of_gpu: u32, factor_permille: u64, discipline: Discipline) -> Production {
    Production { gpus: GPUS, cgpus_of_gpu, factor_permille, discipline, policy: "least_load" }
}

fn go(outcome: &mut Outcome, of: &Production, jobs: &[Job]) -> Ran {
    let ran = run(of, jobs);
    outcome.decisions += jobs.len() as u64;
    if let Some(violation) = &ran.violation {
        outcome.other_violations += 1;
        outcome.first_violation.get_or_insert_with(|| format!("{of:?}: {violation}"));
    }
    ran
}

/// Table 3 and Figure 13 in every reading.
pub(super) fn sharing(setup: &Setup) -> Outcome {
    let count = jobs(setup, Limit::Clamp).len();
    let window = format!("{count} jobs of the Lublin-Feitelson model, until the last one ends");
    let mut outcome = Outcome::new("sharing", "Table 3 and Figure 13: sharing GPUs", window);
    for limit in Limit::ALL {
        let arriving = jobs(setup, limit);
        let queued = at_once(&arriving);
        for (how, jobs) in [("queued", &queued), ("arriving", &arriving)] {
            reading(&mut outcome, limit, how, jobs);
        }
    }
    for (_, factor) in FACTORS {
        let value = outcome.figures[&format!("speedup_{factor}_clamp_queued_16")];
        outcome.figure(format!("speedup_{factor}"), value);
    }
    let queued = at_once(&jobs(setup, Limit::Clamp));
    let alone = go(&mut outcome, &machine(1, 1_000, Discipline::Fcfs), &queued);
    let slow = go(&mut outcome, &machine(4, FACTOR_CONTROL, Discipline::Fcfs), &queued);
    outcome.control("speedup_8x", alone.makespan_s as f64 / slow.makespan_s as f64);
    outcome.figure("fcfs_over_bound_4", alone.makespan_s as f64 / alone.bound_s as f64);
    figure_13(&mut outcome);
    outcome.note(
        "`speedup_1x`, `_1_5x` and `_2x` are of 16 cGPUs on 4 GPUs against 4 exclusive GPUs, first come \
         first served, larger jobs clamped to 4 nodes, all jobs queued at once (the paper: \"a batch of \
         jobs which compete\"); every other reading stands beside them by name.",
    );
    outcome.note(
        "`bound` is the total work over the GPUs, or the longest job: no order ends sooner. Sharing \
         gains more than the number of cGPUs because jobs of four nodes no longer wait for all GPUs.",
    );
    outcome
}

fn reading(outcome: &mut Outcome, limit: Limit, how: &str, jobs: &[Job]) {
    let alone = go(outcome, &machine(1, 1_000, Discipline::Fcfs), jobs);
    for parts in PARTS {
        let cgpus = GPUS * parts;
        for (factor_permille, factor) in FACTORS {
            let of =
                machine(parts, if parts == 1 { 1_000 } else { factor_permille }, Discipline::Fcfs);
            let ran = go(outcome, &of, jobs);
            let name = format!("{}_{how}_{cgpus}", limit.name());
            let speedup = alone.makespan_s as f64 / ran.makespan_s as f64;
            outcome.figure(format!("speedup_{factor}_{name}"), speedup);
            if factor_permille == 1_000 {
                outcome.figure(format!("hours_{name}"), ran.makespan_s as f64 / 3_600.0);
            }
        }
    }
}

fn figure_13(outcome: &mut Outcome) {
    let value = |name: &str| outcome.figures.get(name).copied().unwrap_or(0.0);
    let cgpus = [4, 8, 12, 16];
    let line = |factor: &str| {
        cgpus.map(|cgpus| {
            (f64::from(cgpus), value(&format!("speedup_{factor}_clamp_queued_{cgpus}")))
        })
    };
    let lines = FACTORS.map(|(_, factor)| (factor, line(factor)));
    let hours = [4, 8, 16, 32];
    let bars: Vec<(&str, Vec<f64>)> = Limit::ALL
        .iter()
        .map(|limit| {
            let of = |cgpus: &u32| value(&format!("hours_{}_queued_{cgpus}", limit.name()));
            (limit.name(), hours.iter().map(of).collect())
        })
        .collect();
    let plot = outcome.plot(
        PlotKind::Lines,
        "Figure 13: speed-up over 4 exclusive GPUs (clamp, queued at once)",
        "cGPUs on 4 GPUs",
        "times as fast",
    );
    for (factor, points) in lines {
        plot.series(factor.replace('_', "."), points);
    }
    let plot = outcome.plot(
        PlotKind::Bars,
        "Table 3: time of the workload without overhead (queued at once)",
        "cGPUs",
        "hours",
    );
    plot.groups(["4", "8", "16", "32"]);
    for (name, values) in bars {
        plot.bars(name, values);
    }
}

/// The paper's statements beside the medians.
pub(super) fn compare(outcome: &mut Outcome) {
    let value = |name: String| outcome.figures.get(&name).copied().unwrap_or(0.0);
    let mut rows = Vec::new();
    for limit in Limit::ALL {
        for how in ["queued", "arriving"] {
            let name = format!("{}_{how}", limit.name());
            let hours = |cgpus: u32| value(format!("hours_{name}_{cgpus}"));
            let saved = |from, to| format!("{:.1} %", 100.0 * (1.0 - hours(to) / hours(from)));
            rows.push((
                format!("Table 3, {name}: less time with twice the cGPUs (4→8, 8→16, 16→32)"),
                "50 %".to_owned(),
                format!("{}, {}, {}", saved(4, 8), saved(8, 16), saved(16, 32)),
            ));
            let speedups = FACTORS
                .map(|(_, factor)| format!("{:.2}", value(format!("speedup_{factor}_{name}_16"))));
            rows.push((
                format!("Figure 13, {name}: speed-up of 16 cGPUs at factors 1, 1.5, 2"),
                "2 to 4".to_owned(),
                speedups.join(", "),
            ));
        }
    }
    rows.iter().for_each(|(what, paper, ours)| outcome.compare(what, paper, ours.clone()));
}

/// First come first served beside EASY and conservative backfilling.
pub(super) fn backfilling(setup: &Setup) -> Outcome {
    let arriving = jobs(setup, Limit::Clamp);
    let window = format!("{} jobs as they arrive, clamped to 4 nodes", arriving.len());
    let mut outcome = Outcome::new("backfilling", "Backfilling, which the paper has not", window);
    let queued = at_once(&arriving);
    for (what, jobs, parts) in
        [("4_gpus", &arriving, 1), ("16_cgpus", &arriving, 4), ("4_gpus_queued", &queued, 1)]
    {
        disciplines(&mut outcome, what, jobs, |discipline| machine(parts, 1_000, discipline));
    }
    let fcfs = outcome.figures["wait_h_16_cgpus_fcfs"];
    let easy = outcome.figures["wait_h_16_cgpus_easy"];
    outcome.figure("easy_wait_over_fcfs", easy / fcfs.max(1e-9));
    let groups = ["4_gpus", "16_cgpus"];
    let bars = Discipline::ALL.map(|discipline| {
        let of = |what: &str| outcome.figures[&format!("wait_h_{what}_{}", discipline.name())];
        (discipline.name(), groups.map(of))
    });
    let plot = outcome.plot(PlotKind::Bars, "Mean wait", "", "hours");
    plot.groups(["4 GPUs", "16 cGPUs"]);
    bars.into_iter().for_each(|(name, values)| {
        plot.bars(name, values);
    });
    outcome
}

fn disciplines(
    outcome: &mut Outcome,
    what: &str,
    jobs: &[Job],
    of: impl Fn(Discipline) -> Production,
) {
    for discipline in Discipline::ALL {
        let ran = go(outcome, &of(discipline), jobs);
        let name = format!("{what}_{}", discipline.name());
        outcome.figure(format!("wait_h_{name}"), ran.wait_s / 3_600.0);
        outcome.figure(format!("slowdown_{name}"), ran.slowdown);
        outcome.figure(format!("over_bound_{name}"), ran.makespan_s as f64 / ran.bound_s as f64);
    }
}

/// Logs in the standard workload format, on a machine as large as their largest job.
pub(super) fn logs(setup: &Setup, inputs: &Inputs) -> Option<Outcome> {
    if inputs.logs.is_empty() {
        return None;
    }
    let most = if setup.quick { 300 } else { LOG_JOBS };
    let window = format!("the first {most} jobs of each log, a GPU for each node");
    let mut outcome = Outcome::new("logs", "Logs of real machines", window);
    for (name, jobs) in &inputs.logs {
        let jobs = &jobs[..jobs.len().min(most)];
        let nodes = jobs.iter().map(|job| job.nodes).max().unwrap_or(1).next_power_of_two();
        let busy = jobs.iter().map(|job| job.run_s * u64::from(job.nodes)).sum::<u64>() as f64;
        let last_s = jobs.last().map_or(1, |job| job.arrival_s.max(1));
        outcome.figure(format!("{name}_nodes"), f64::from(nodes));
        outcome.figure(format!("{name}_load"), busy / (f64::from(nodes) * last_s as f64));
        let of = |cgpus_of_gpu, factor_permille, discipline| Production {
            gpus: nodes,
            cgpus_of_gpu,
            factor_permille,
            discipline,
            policy: "least_load",
        };
        disciplines(&mut outcome, name, jobs, |discipline| of(1, 1_000, discipline));
        // Half as many GPUs with two cGPUs each, every job half as long again.
        let half = |discipline| Production { gpus: nodes / 2, ..of(2, 1_500, discipline) };
        disciplines(&mut outcome, &format!("{name}_half"), jobs, half);
    }
    outcome.note(
        "`half` has half as many GPUs with two cGPUs each and a sharing factor of 1.5. Estimates are \
         the users' where the log has them, else exact.",
    );
    Some(outcome)
}
