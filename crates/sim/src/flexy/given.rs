//! What every policy makes of given jobs: an imported trace, or a workload that was written down.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use super::run::Options;
use super::study::{Bench, ENTRIES, Entry, Point};
use super::workload::Job;
use crate::outcome::Outcome;

/// Policies that a workload worth looking at tells from better ones.
const CONTROLS: [&str; 2] = ["fifo", "round_robin"];

/// What the jobs run on.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    /// Devices of the pool.
    pub devices: u32,
    /// The SLA of user-facing tasks, in ns.
    pub sla_ns: u64,
}

/// Runs the jobs under every policy with every K, under the orders that know all, and with resets.
/// Figures are named by policy: the part of the user-facing tasks in time that are due by the last
/// arrival, utilisation until then, latencies and waits in s, resets. `progress` is told what
/// begins.
#[must_use]
pub fn compare(jobs: &[Job], machine: Machine, progress: &mut dyn FnMut(&str)) -> Outcome {
    let last_ns = jobs.iter().map(|job| job.arrival_ns).max().unwrap_or(0);
    let window =
        format!("{} jobs until the last arrival at {} s", jobs.len(), last_ns as f64 / 1e9);
    let mut all = Outcome::new("flexy", "Given jobs under every policy", window);
    describe(&mut all, jobs, machine, last_ns);
    let bench = Bench::new(1, 1);
    let user = jobs.iter().filter(|job| job.user_facing).flat_map(|job| &job.tasks);
    let longest_ns = user.map(|task| task.1).max().unwrap_or(0);
    progress(&format!("{} jobs under {} policies", jobs.len(), ENTRIES.len()));
    let points = bench.all(ENTRIES.len(), |place| {
        let entry = &ENTRIES[place];
        let options = entry.options_for(machine.sla_ns, longest_ns);
        let options = Options { devices: machine.devices, ..options };
        bench.point_of(entry, &options, [(1, jobs)].into_iter())
    });
    for (entry, point) in ENTRIES.iter().zip(&points) {
        tell(&mut all, entry, point);
    }
    let violations = bench.violations.load(Ordering::Relaxed);
    all.figure("invariant_violations", violations as f64);
    all.figure("events", bench.events.load(Ordering::Relaxed) as f64);
    all.other_violations = violations as u64;
    all.first_violation = bench.first.lock().unwrap_or_else(PoisonError::into_inner).clone();
    all
}

/// What the jobs are, whoever runs them.
fn describe(all: &mut Outcome, jobs: &[Job], machine: Machine, last_ns: u64) {
    let of = |user_facing: bool| jobs.iter().filter(move |job| job.user_facing == user_facing);
    let work_ns: f64 = jobs.iter().flat_map(|job| &job.tasks).map(|task| task.1 as f64).sum();
    let tasks = |user_facing| of(user_facing).map(|job| job.tasks.len()).sum::<usize>();
    all.figure("jobs_user_facing", of(true).count() as f64);
    all.figure("jobs_batch", of(false).count() as f64);
    all.figure("tasks_user_facing", tasks(true) as f64);
    all.figure("tasks_batch", tasks(false) as f64);
    all.figure("devices", f64::from(machine.devices));
    all.figure("sla_s", machine.sla_ns as f64 / 1e9);
    // Above 1 the devices cannot keep up.
    let room_ns = last_ns as f64 * f64::from(machine.devices);
    all.figure("load", work_ns / room_ns.max(1.0));
}

fn tell(all: &mut Outcome, entry: &Entry, point: &Point) {
    let name = entry.name;
    let sla = point.sla / 100.0;
    if CONTROLS.contains(&name) {
        all.control(format!("{name}_sla"), sla);
    } else if entry.is_clairvoyant() {
        all.baseline(format!("{name}_sla"), sla);
    } else {
        all.figure(format!("{name}_sla"), sla);
    }
    // Of the ceiling only the tasks in time are the best of several runs.
    if entry.is_clairvoyant() {
        return;
    }
    for (what, value) in [
        ("utilization", point.utilization),
        ("latency_p50_s", point.user_p50_ns as f64 / 1e9),
        ("latency_p99_s", point.user_p99_ns as f64 / 1e9),
        ("latency_max_s", point.user_longest_ns as f64 / 1e9),
        ("batch_wait_max_s", point.batch_wait_ns as f64 / 1e9),
        ("resets", point.resets),
    ] {
        all.figure(format!("{name}_{what}"), value);
    }
}
