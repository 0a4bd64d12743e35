//! What a run came to, from what its tasks say of themselves.

use super::real::{Costs, Ran, Seen};
use super::work::{BLOCK_NS, SLA_NS, Work};
use super::{count, percent};

/// Figures of a run.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Verdict {
    /// User-facing tasks that were due by the last arrival, and those within their SLA.
    pub(super) user: (u64, u64),
    /// Latency of 99 of 100 of them, in ms.
    pub(super) p99_ms: f64,
    /// Time of the blocks that ran until the last arrival, over all devices' until then.
    pub(super) utilization: f64,
    /// The longest that a batch task waited for its next block until then, in s.
    pub(super) batch_wait_s: f64,
    pub(super) lost: u64,
    pub(super) stops: u64,
    pub(super) resets: u64,
    pub(super) costs: Costs,
    /// From when a device is to yield until it is free, of 99 of 100 such orders, by the journal of
    /// the whole run.
    pub(super) free_p99_ns: Option<u64>,
}

impl Verdict {
    pub(super) fn of(seen: &Seen, work: &Work, devices: u32) -> Self {
        let horizon_ns = work.horizon_ns;
        let (mut latencies_ns, mut in_time) = (Vec::new(), 0);
        let (mut busy_ns, mut wait_ns) = (0, 0);
        for task in &seen.tasks {
            let is_user = work.jobs[task.job].user_facing;
            if is_user && task.submitted_ns.saturating_add(SLA_NS) <= horizon_ns {
                // A lost one is late for ever.
                let done_ns = task.done_ns.unwrap_or(u64::MAX);
                let took_ns = done_ns.saturating_sub(task.submitted_ns);
                in_time += u64::from(took_ns <= SLA_NS);
                latencies_ns.push(took_ns);
            }
            busy_ns += busy_before(task, horizon_ns);
            if !is_user {
                wait_ns = wait_ns.max(longest_wait(task, horizon_ns));
            }
        }
        latencies_ns.sort_unstable();
        let rank = (latencies_ns.len() * 99).div_ceil(100).saturating_sub(1);
        let p99_ns = latencies_ns.get(rank).copied().unwrap_or(0);
        Self {
            user: (latencies_ns.len() as u64, in_time),
            p99_ms: count(p99_ns) / 1e6,
            utilization: count(busy_ns) / count(horizon_ns.max(1) * u64::from(devices)),
            batch_wait_s: count(wait_ns) / 1e9,
            lost: seen.tasks.iter().filter(|task| task.done_ns.is_none()).count() as u64,
            stops: seen.told.stops,
            resets: seen.told.resets,
            costs: seen.costs,
            free_p99_ns: None,
        }
    }

    pub(super) fn sla_pct(&self) -> f64 {
        percent(self.user)
    }
}

/// Device time of a task until the horizon. A block says when its kernel, or the piece that it was
/// in, began: the device executes them at once and is then occupied as long as the model says.
fn busy_before(task: &Ran, horizon_ns: u64) -> u64 {
    let mut stamps_ns = task.stamps_ns.clone();
    stamps_ns.sort_unstable();
    let (mut free_ns, mut busy_ns) = (0, 0);
    for stamp_ns in stamps_ns {
        let begin_ns = stamp_ns.max(free_ns);
        busy_ns += horizon_ns.saturating_sub(begin_ns).min(BLOCK_NS);
        free_ns = begin_ns + BLOCK_NS;
    }
    busy_ns
}

/// The longest time of a batch task between two of its blocks, or before the first, that began
/// before the horizon. A task that was begun anew tells of its last life only.
fn longest_wait(task: &Ran, horizon_ns: u64) -> u64 {
    let mut stamps_ns = task.stamps_ns.clone();
    stamps_ns.sort_unstable();
    let before = std::iter::once(task.submitted_ns).chain(stamps_ns.iter().copied());
    let gaps = before.zip(&stamps_ns).filter(|(from, _)| *from < horizon_ns);
    gaps.map(|(from, to)| to.min(&horizon_ns).saturating_sub(from)).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use weft_sched::pool::PoolConfig;
    use weft_sim::flexy::COLUMNS;

    use super::*;

    const MS: u64 = 1_000_000;

    fn ran(job: usize, submitted_ms: u64, done_ms: Option<u64>, stamps_ms: &[u64]) -> Ran {
        let stamps_ns = stamps_ms.iter().map(|ms| ms * MS).collect();
        let done_ns = done_ms.map(|ms| ms * MS);
        Ran { job, submitted_ns: submitted_ms * MS, done_ns, stamps_ns, runs: 1 }
    }

    #[test]
    fn a_run_is_judged_by_its_tasks() {
        let mut work = Work::at(COLUMNS[0], 1, 20, 0.5, PoolConfig::default()).unwrap();
        let user = work.jobs.iter().position(|job| job.user_facing).unwrap();
        let batch = work.jobs.iter().position(|job| !job.user_facing).unwrap();
        work.horizon_ns = 1_000 * MS;
        let tasks = vec![
            ran(user, 0, Some(199), &[100; 100]),
            ran(user, 100, Some(301), &[200; 100]),
            ran(user, 200, None, &[]),
            // Not due within the window, and half of it executes within.
            ran(user, 900, Some(1_010), &[975; 100]),
            ran(batch, 0, Some(2_000), &[50, 60, 900, 1_500]),
        ];
        let verdict = Verdict::of(&Seen { tasks, ..Seen::default() }, &work, 4);
        assert_eq!((verdict.user, verdict.lost), ((3, 1), 1));
        let busy_ns = (50 + 50 + 25) * MS + 3 * BLOCK_NS;
        assert_eq!(verdict.utilization, count(busy_ns) / count(4_000 * MS));
        assert_eq!(verdict.batch_wait_s, 0.84);
    }
}
