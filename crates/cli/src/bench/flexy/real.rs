//! One real run: jobs arrive, submit tasks and check what comes back.

use std::collections::BTreeSet;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rustix::time::{ClockId, clock_gettime};
use weft_node::admin::{AskedAccelerator, Request, TaskCounts};
use weft_sim::flexy::Job;
use weft_tasks::{Accelerator, Done, Module, Options, Pending, Task};

use super::work::{self, POOL, SLA_NS, Work};
use crate::daemon::OwnDaemon;

/// Tasks that are not over so long after the last arrival are lost.
const DRAIN: Duration = Duration::from_secs(180);
/// Rounds in which every device of the pool has to take one of a job's first tasks.
const WARM_ROUNDS: u32 = 20;
/// Blocks of those tasks.
const WARM_BLOCKS: u32 = 20;
/// Tasks of a device, and their blocks, by which it is known what a task costs beside its kernel.
const LONE_TASKS: u32 = 8;
const LONE_BLOCKS: u32 = 20;
/// Times that they run.
const LONE_ROUNDS: u32 = 5;
/// Buffers of the longest task, and room for the runner's progress.
const MEMORY_BYTES: u64 = 4 << 20;

/// A task that was submitted within the window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Ran {
    pub(super) job: usize,
    pub(super) submitted_ns: u64,
    /// None if it is lost.
    pub(super) done_ns: Option<u64>,
    /// When each of its blocks ran, by block; before the begin of the window a 0.
    pub(super) stamps_ns: Vec<u64>,
    /// How often it was on a device.
    pub(super) runs: u32,
}

/// A run as those saw it who submitted.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) tasks: Vec<Ran>,
    /// What the node says of stops and resets; it is held against the tasks' own runs.
    pub(super) told: TaskCounts,
    pub(super) costs: Costs,
}

/// What tasks took beside their kernels, before the window and alone, in ns.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Costs {
    /// Of its device.
    pub(super) overhead_ns: u64,
    /// From its end, as the node knows it, until the next one of the same job has come there.
    pub(super) round_trip_ns: u64,
    /// What a device was away for when it was reset, by the journal of the whole run.
    pub(super) reset_ns: Option<u64>,
}

/// A job's accelerator, ready to work.
#[derive(Debug)]
struct Ready {
    accelerator: Accelerator,
    module: Module,
    kernel: String,
}

/// Accelerators whose code and memory are on every device that may take their tasks.
#[derive(Debug)]
pub(super) struct Prepared {
    ready: Vec<Ready>,
    costs: Costs,
}

/// Makes the jobs' accelerators on a daemon that has a pool, of which so many devices take no batch
/// task, and runs each job's kernel once on each of its devices.
pub(super) fn prepare(daemon: &OwnDaemon, work: &Work, reserved: u32) -> Result<Prepared> {
    let mut admin = daemon.sockets().connect()?;
    let mut ready = Vec::new();
    for (place, job) in work.jobs.iter().enumerate() {
        admin.call(&Request::CreateAccelerator(AskedAccelerator {
            name: name_of(place),
            pool: POOL.to_owned(),
            weight: Some(job.weight),
            memory_bytes: Some(MEMORY_BYTES),
            sla_ns: job.user_facing.then_some(SLA_NS),
            ..AskedAccelerator::default()
        }))?;
        let devices = super::DEVICES - if job.user_facing { 0 } else { reserved };
        ready.push(warm(daemon, place, job, devices as usize)?);
    }
    let costs = ready.first().context("there are no jobs")?.costs()?;
    Ok(Prepared { ready, costs })
}

/// Runs the jobs.
pub(super) fn run(daemon: &OwnDaemon, work: &Work, prepared: &Prepared) -> Result<Seen> {
    let mut admin = daemon.sockets().connect()?;
    let counts = |stats: weft_node::admin::Stats| sum(stats.accelerators.iter().map(|of| of.tasks));
    let before = counts(admin.stats()?);
    let tasks = Submitter::new(work, &prepared.ready).run()?;
    let after = counts(admin.stats()?);
    let told = TaskCounts {
        stops: after.stops - before.stops,
        losses: after.losses - before.losses,
        resets: after.resets - before.resets,
        ..after
    };
    let again: u64 = tasks.iter().map(|task| u64::from(task.runs.saturating_sub(1))).sum();
    let is_whole = tasks.iter().all(|task| task.done_ns.is_some());
    let ended = told.stops + told.losses;
    // A run that was reset while its runner attached to the device anew had not begun.
    ensure!(
        !is_whole || (ended.saturating_sub(told.resets)..=ended).contains(&again),
        "tasks were begun again {again} times, and the node tells of {} stops and {} losses",
        told.stops,
        told.losses
    );
    Ok(Seen { tasks, told, costs: prepared.costs })
}

fn name_of(job: usize) -> String {
    format!("job{job}")
}

fn sum(counts: impl Iterator<Item = TaskCounts>) -> TaskCounts {
    counts.fold(TaskCounts::default(), |all, one| TaskCounts {
        stops: all.stops + one.stops,
        losses: all.losses + one.losses,
        resets: all.resets + one.resets,
        ..all
    })
}

/// Opens a job's accelerator and runs its kernel on each of so many devices that may take it: from
/// then on the code is loaded, the memory of its longest task is used, and the node knows what a
/// block takes.
fn warm(daemon: &OwnDaemon, place: usize, job: &Job, wanted: usize) -> Result<Ready> {
    let options = Options::at(&daemon.tenant_socket());
    let accelerator = Accelerator::open_with(&name_of(place), options)?;
    let kernel = work::kernel(job.tasks.first().context("a job has no task")?.0);
    let module = accelerator.load(work::module(&kernel).as_bytes())?;
    let longest_ns = job.tasks.iter().map(|(_, ns)| *ns).max().unwrap_or(0);
    let most = work::blocks(longest_ns).max(WARM_BLOCKS);
    let ready = Ready { accelerator, module, kernel };
    let mut devices = BTreeSet::new();
    for _ in 0..WARM_ROUNDS {
        let warm = |_| ready.submit_within(0, WARM_BLOCKS, most);
        let tasks: Vec<Pending> = (0..super::DEVICES).map(warm).collect::<Result<_>>()?;
        for pending in tasks {
            let done = pending.wait()?;
            check(&done, 0, WARM_BLOCKS)?;
            devices.insert(done.device().to_owned());
        }
        if devices.len() >= wanted {
            return Ok(ready);
        }
    }
    anyhow::bail!("{} used no devices but {devices:?}", name_of(place))
}

impl Ready {
    fn submit(&self, number: u32, blocks: u32) -> Result<Pending> {
        self.submit_within(number, blocks, blocks)
    }

    /// Submits a task of so many blocks with the buffers of one of `most`.
    fn submit_within(&self, number: u32, blocks: u32, most: u32) -> Result<Pending> {
        let words: Vec<u32> = (0..most).map(|block| work::before(number, block)).collect();
        let task = Task::new(&self.module, &self.kernel).grid([blocks, 1, 1]).in_out(&words);
        Ok(self.accelerator.submit(&task.output::<u64>(most as usize))?)
    }
}

impl Ready {
    /// What tasks take beside their kernels: those that follow each other on all devices, and those
    /// that are submitted when the one before is over.
    fn costs(&self) -> Result<Costs> {
        let kernel = Duration::from_nanos(u64::from(LONE_BLOCKS) * work::BLOCK_NS);
        let all_devices = || {
            let began = Instant::now();
            self.lone_tasks(LONE_TASKS * super::DEVICES)?;
            Ok((began.elapsed() / LONE_TASKS).saturating_sub(kernel))
        };
        let outside = || {
            let began = Instant::now();
            let inside_ns = (0..LONE_TASKS).map(|_| self.lone_tasks(1)).sum::<Result<u64>>()?;
            Ok(began.elapsed().saturating_sub(Duration::from_nanos(inside_ns)) / LONE_TASKS)
        };
        let (overhead_ns, round_trip_ns) = (least_of(all_devices)?, least_of(outside)?);
        Ok(Costs { overhead_ns, round_trip_ns, reset_ns: None })
    }

    /// Submits so many tasks at once and waits for them; their latencies, as the accelerator knows
    /// them, together.
    fn lone_tasks(&self, count: u32) -> Result<u64> {
        let submit = |_| self.submit(0, LONE_BLOCKS);
        let tasks = (0..count).map(submit).collect::<Result<Vec<_>>>()?;
        let wait = |pending: Pending| {
            let done = pending.wait()?;
            check(&done, 0, LONE_BLOCKS)?;
            Ok(done.latency_ns())
        };
        tasks.into_iter().map(wait).sum()
    }
}

/// The least of several times in ns, since what disturbs a machine only adds.
fn least_of(run: impl Fn() -> Result<Duration>) -> Result<u64> {
    let mut least = Duration::MAX;
    for _ in 0..LONE_ROUNDS {
        least = least.min(run()?);
    }
    Ok(u64::try_from(least.as_nanos())?)
}

/// Every block ran once, as far as its word tells; when each did, in ns of `CLOCK_REALTIME`.
fn check(done: &Done, number: u32, blocks: u32) -> Result<Vec<u64>> {
    let words = done.output::<u32>(0);
    let expected = |block: u32| match work::before(number, block) {
        word if block < blocks => work::after(word),
        // Nobody's block: what was there stays.
        word => word,
    };
    let right = |(block, word): (u32, &u32)| *word == expected(block);
    ensure!(
        words.len() >= blocks as usize && (0..).zip(&words).all(right),
        "a task's output is wrong: a thread block did not run exactly once"
    );
    Ok(done.output::<u64>(1))
}

/// A task on its way.
#[derive(Debug)]
struct Outstanding {
    pending: Pending,
    blocks: u32,
    /// Its place among all tasks.
    place: usize,
}

/// Submits jobs' tasks as they arrive and as tasks end.
struct Submitter<'a> {
    work: &'a Work,
    ready: &'a [Ready],
    next: Vec<usize>,
    outstanding: Vec<Option<Outstanding>>,
    ran: Vec<Ran>,
    begin: Instant,
    /// The same in ns of `CLOCK_REALTIME`.
    begin_ns: u64,
    /// Tells which task is over, and since when.
    tell: Sender<(usize, Instant)>,
    ended: Receiver<(usize, Instant)>,
}

impl<'a> Submitter<'a> {
    fn new(work: &'a Work, ready: &'a [Ready]) -> Self {
        let wall = clock_gettime(ClockId::Realtime);
        let (tell, ended) = channel();
        Self {
            work,
            ready,
            next: vec![0; ready.len()],
            outstanding: Vec::new(),
            ran: Vec::new(),
            begin: Instant::now(),
            begin_ns: wall.tv_sec.unsigned_abs() * 1_000_000_000 + wall.tv_nsec.unsigned_abs(),
            tell,
            ended,
        }
    }

    fn run(mut self) -> Result<Vec<Ran>> {
        let mut arrivals = self.work.jobs.iter().enumerate().peekable();
        let horizon = Duration::from_nanos(self.work.horizon_ns);
        let end = self.begin + horizon + DRAIN;
        let mut left = 0_usize;
        loop {
            let due = arrivals.peek().map(|(_, job)| Duration::from_nanos(job.arrival_ns));
            if due.is_none() && left == 0 {
                return Ok(self.ran);
            }
            let until = due.map_or(end, |due| self.begin + due);
            let limit = until.saturating_duration_since(Instant::now());
            match self.ended.recv_timeout(limit) {
                Ok((place, at)) => {
                    left -= 1;
                    let job = self.finish(place, at)?;
                    // What is submitted after the last arrival would count nowhere.
                    if self.begin.elapsed() <= horizon {
                        left += usize::from(self.submit(job)?);
                    }
                }
                Err(RecvTimeoutError::Timeout) => match arrivals.next() {
                    Some((job, of)) => {
                        for _ in 0..of.outstanding {
                            left += usize::from(self.submit(job)?);
                        }
                    }
                    None => return Ok(self.ran),
                },
                Err(RecvTimeoutError::Disconnected) => return Ok(self.ran),
            }
        }
    }

    /// Submits a job's next task; whether it had one.
    fn submit(&mut self, job: usize) -> Result<bool> {
        let next = self.next[job];
        let Some(&(_, task_ns)) = self.work.jobs[job].tasks.get(next) else { return Ok(false) };
        self.next[job] += 1;
        let place = self.ran.len();
        let blocks = work::blocks(task_ns);
        let submitted_ns = self.since(Instant::now());
        let pending = self.ready[job].submit(u32::try_from(place)?, blocks)?;
        let tell = self.tell.clone();
        pending.on_done(move || {
            // Nobody listens once the run is over.
            let _ = tell.send((place, Instant::now()));
        });
        self.outstanding.push(Some(Outstanding { pending, blocks, place }));
        let (done_ns, stamps_ns) = (None, Vec::new());
        self.ran.push(Ran { job, submitted_ns, done_ns, stamps_ns, runs: 0 });
        Ok(true)
    }

    /// Checks a task that is over; whose it was.
    fn finish(&mut self, place: usize, at: Instant) -> Result<usize> {
        let over = self.outstanding[place].take().context("a task was over twice")?;
        let done = over.pending.wait()?;
        let stamps = check(&done, u32::try_from(over.place)?, over.blocks)?;
        let done_ns = Some(self.since(at));
        let begin_ns = self.begin_ns;
        let ran = &mut self.ran[place];
        ran.done_ns = done_ns;
        ran.runs = done.runs();
        ran.stamps_ns = stamps.iter().map(|stamp| stamp.saturating_sub(begin_ns)).collect();
        Ok(ran.job)
    }

    fn since(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.begin).as_nanos()).unwrap_or(u64::MAX)
    }
}
