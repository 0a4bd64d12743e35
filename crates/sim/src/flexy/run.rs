//! One run: jobs, devices and the pool core, on a virtual clock.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use weft_sched::pool::invariants::{Limits, Trace};
use weft_sched::pool::{Class, Pool, PoolAction, PoolConfig, PoolError, PoolEvent};
use weft_sched::{DeviceKey, TaskKey, TenantKey, VgpuKey, Weight};

use super::workload::Job;
use crate::outcome::{Span, SpanKind};
use crate::random::Random;

/// How a run is done.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Devices.
    pub devices: u32,
    /// Settings of the pool.
    pub pool: PoolConfig,
    /// Estimates are the tasks' times; otherwise those of the last run of the same kernel, none
    /// before.
    pub clairvoyant: bool,
    /// Estimates are off by up to so many thousandths.
    pub error_permille: u64,
    /// What to check.
    pub limits: Limits,
    /// Keep the time series (Figure 8).
    pub series: bool,
    /// Devices that go away, and when they do, in ns.
    pub down: Option<(u32, u64)>,
    /// Service is also told by so many windows; none if 0.
    pub windows: u32,
    /// What a device is taken for beside a task's kernel each time that it begins or goes on with
    /// one, in ns: bringing buffers there and back, telling. A part of no task's progress.
    pub overhead_ns: u64,
    /// What passes from a task's end until its job's next one is submitted, in ns.
    pub round_trip_ns: u64,
    /// What a device is really away for when it is reset, in ns; otherwise as long as the pool
    /// thinks.
    pub reset_ns: Option<u64>,
}

impl Options {
    /// Four devices, and nothing checked beyond what holds of every policy.
    pub fn new(pool: PoolConfig) -> Self {
        Self {
            devices: 4,
            pool,
            clairvoyant: false,
            error_permille: 0,
            limits: Limits::default(),
            series: false,
            down: None,
            windows: 0,
            overhead_ns: 0,
            round_trip_ns: 0,
            reset_ns: None,
        }
    }
}

/// What a run found.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// User-facing tasks that were due by the last arrival, as utilisation counts, and how many of
    /// them met their SLA.
    pub user: (u64, u64),
    /// Latency of each of these, in ns.
    pub latencies_ns: Vec<u64>,
    /// Busy device time until the last arrival over all device time until then, 0 to 1. A device
    /// that is reset is not busy.
    pub utilization: f64,
    /// Resets, and the device time that they threw away, in ns.
    pub resets: (u64, u64),
    /// Device time until the last arrival that went to kernels and was not thrown away, over all
    /// until then, 0 to 1: utilisation as those see it who wait for results.
    pub useful: f64,
    /// The longest time that batch tasks waited while no device ran one, in ns.
    pub batch_dry_ns: u64,
    /// The longest time that one batch task waited without being served, in ns.
    pub batch_wait_ns: u64,
    /// The longest time from a batch task's submission to its end, in ns.
    pub batch_longest_ns: u64,
    /// What batch vGPUs had together while one waited, in thousandths of its bound.
    pub turn_permille: u64,
    /// The largest lag between two batch vGPUs, in thousandths of its bound.
    pub lag_permille: u64,
    /// The same of user-facing vGPUs.
    pub user_lag_permille: u64,
    /// The first invariant that was broken.
    pub violation: Option<String>,
    /// Events that the pool took.
    pub events: u64,
    /// Device time of each job, in ns, until the last arrival.
    pub service_ns: Vec<u64>,
    /// The same in each of [`Options::windows`] equal parts of that time, by part.
    pub windows_ns: Vec<Vec<u64>>,
    /// Of the time series: (s, devices for user-facing tasks, devices that run batch tasks).
    pub devices: Vec<(f64, u32, u32)>,
    /// Of the time series: (s, latency in ms) of user-facing tasks by their end.
    pub served: Vec<(f64, f64)>,
    /// Of the time series: what each device did.
    pub spans: Vec<Span>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    /// Of a device, its run number, and whether the task is done.
    Ends(u32, u64, bool),
    Back(u32, u64),
    Goes(u32),
    Arrives(usize),
    Submits(usize),
}

#[derive(Clone, Copy, Debug)]
struct Running {
    task: TaskKey,
    since_ns: u64,
    end_ns: u64,
    /// It is not cut, whatever it is told.
    is_whole: bool,
}

#[derive(Clone, Copy, Debug)]
struct Live {
    job: usize,
    kernel: u32,
    length_ns: u64,
    done_ns: u64,
    submitted_ns: u64,
    /// Since when it waits.
    since_ns: u64,
}

struct World<'a> {
    jobs: &'a [Job],
    options: &'a Options,
    pool: Pool,
    trace: Trace,
    actions: Vec<PoolAction>,
    queue: BinaryHeap<Reverse<(u64, u64, What)>>,
    order: u64,
    now_ns: u64,
    /// Until here device time counts.
    horizon_ns: u64,
    busy_ns: u64,
    /// Of that, what was thrown away, and what went to no kernel.
    useless_ns: u64,
    devices: Vec<Option<Running>>,
    /// Counts what a device was told, so that an end that was overtaken is known.
    runs: Vec<u64>,
    tasks: Vec<Live>,
    free_keys: Vec<u32>,
    next_task: Vec<usize>,
    /// The last time of each kernel; 0 before.
    known_ns: Vec<u64>,
    random: Random,
    found: Found,
}

/// Runs the jobs to their end.
///
/// # Errors
/// If the pool refuses an event, which is an error of the simulator.
pub fn run(jobs: &[Job], options: &Options, seed: u64) -> Result<Found, PoolError> {
    let mut world = World::new(jobs, options, seed);
    for device in 0..options.devices {
        world.feed(PoolEvent::DeviceUp { device: DeviceKey(device) })?;
    }
    if let Some((count, at_ns)) = options.down {
        (0..count).for_each(|device| world.later(at_ns, What::Goes(device)));
    }
    for (place, job) in jobs.iter().enumerate() {
        world.later(job.arrival_ns, What::Arrives(place));
    }
    while let Some(Reverse((at_ns, _, what))) = world.queue.pop() {
        world.now_ns = at_ns;
        world.happen(what)?;
    }
    Ok(world.end())
}

impl<'a> World<'a> {
    fn new(jobs: &'a [Job], options: &'a Options, seed: u64) -> Self {
        let kernels = jobs.iter().flat_map(|job| &job.tasks).map(|task| task.0 + 1).max();
        Self {
            jobs,
            options,
            pool: Pool::new(options.pool),
            trace: Trace::new(options.limits),
            actions: Vec::new(),
            queue: BinaryHeap::new(),
            order: 0,
            now_ns: 0,
            horizon_ns: jobs.last().map_or(0, |job| job.arrival_ns),
            busy_ns: 0,
            useless_ns: 0,
            devices: vec![None; options.devices as usize],
            runs: vec![0; options.devices as usize],
            tasks: Vec::new(),
            free_keys: Vec::new(),
            next_task: vec![0; jobs.len()],
            known_ns: vec![0; kernels.unwrap_or(0) as usize],
            random: Random::part(seed, 8),
            found: Found {
                service_ns: vec![0; jobs.len()],
                windows_ns: vec![vec![0; jobs.len()]; options.windows as usize],
                ..Found::default()
            },
        }
    }

    fn later(&mut self, at_ns: u64, what: What) {
        self.order += 1;
        self.queue.push(Reverse((at_ns, self.order, what)));
    }

    fn happen(&mut self, what: What) -> Result<(), PoolError> {
        match what {
            What::Arrives(job) => self.arrive(job),
            What::Submits(job) => self.submit(job),
            What::Ends(device, run, is_done) if self.runs[device as usize] == run => {
                self.end_of_run(device, is_done)
            }
            What::Back(device, run) if self.runs[device as usize] == run => {
                self.feed(PoolEvent::ResetDone { device: DeviceKey(device) })
            }
            What::Ends(..) | What::Back(..) => Ok(()),
            What::Goes(device) => {
                self.runs[device as usize] += 1;
                self.lose(device);
                self.feed(PoolEvent::DeviceDown { device: DeviceKey(device) })
            }
        }
    }

    fn arrive(&mut self, place: usize) -> Result<(), PoolError> {
        let job = &self.jobs[place];
        let sla_ns = self.options.pool.sla_ns;
        let class = if job.user_facing { Class::UserFacing { sla_ns } } else { Class::Batch };
        let weight = Weight::new(job.weight).unwrap_or_default();
        // Each job is a user of its own.
        let (vgpu, tenant) = (vgpu(place), TenantKey(vgpu(place).0));
        self.feed(PoolEvent::AddVgpu { vgpu, tenant, class, weight })?;
        // A job may be allowed more than it has.
        (0..job.outstanding as usize).take(job.tasks.len()).try_for_each(|_| self.submit(place))
    }

    /// The job's next task, if there is one.
    fn submit(&mut self, place: usize) -> Result<(), PoolError> {
        let next = self.next_task[place];
        let Some(&(kernel, length_ns)) = self.jobs[place].tasks.get(next) else { return Ok(()) };
        self.next_task[place] += 1;
        let (submitted_ns, since_ns) = (self.now_ns, self.now_ns);
        let live = Live { job: place, kernel, length_ns, done_ns: 0, submitted_ns, since_ns };
        let key = self.free_keys.pop().unwrap_or_else(|| {
            self.tasks.push(live);
            u32::try_from(self.tasks.len() - 1).unwrap_or(u32::MAX)
        });
        self.tasks[key as usize] = live;
        let known_ns =
            if self.options.clairvoyant { length_ns } else { self.known_ns[kernel as usize] };
        let estimate_ns = self.random.jitter(known_ns, self.options.error_permille);
        self.feed(PoolEvent::Submit { task: TaskKey(key), vgpu: vgpu(place), estimate_ns })
    }

    fn end_of_run(&mut self, device: u32, is_done: bool) -> Result<(), PoolError> {
        let Some(ran) = self.account(device) else { return Ok(()) };
        let used_ns = self.now_ns - ran.since_ns;
        let (task, key) = (ran.task, DeviceKey(device));
        let live = &mut self.tasks[task.0 as usize];
        live.done_ns += used_ns.saturating_sub(self.options.overhead_ns);
        if !is_done {
            return self.feed(PoolEvent::Stopped { device: key, task });
        }
        let live = *live;
        self.known_ns[live.kernel as usize] = live.length_ns;
        self.count(&live);
        self.feed(PoolEvent::Finished { device: key, task })?;
        self.free_keys.push(task.0);
        if self.options.round_trip_ns == 0 {
            return self.submit(live.job);
        }
        self.later(self.now_ns + self.options.round_trip_ns, What::Submits(live.job));
        Ok(())
    }

    fn count(&mut self, live: &Live) {
        let took_ns = self.now_ns - live.submitted_ns;
        if !self.jobs[live.job].user_facing {
            self.found.batch_longest_ns = self.found.batch_longest_ns.max(took_ns);
            return;
        }
        if live.submitted_ns.saturating_add(self.options.pool.sla_ns) > self.horizon_ns {
            return;
        }
        self.found.user.0 += 1;
        self.found.user.1 += u64::from(took_ns <= self.options.pool.sla_ns);
        self.found.latencies_ns.push(took_ns);
        if self.options.series {
            self.found.served.push((seconds(self.now_ns), took_ns as f64 / 1e6));
        }
    }

    /// The device's task is not there any more: its time is counted.
    fn account(&mut self, device: u32) -> Option<Running> {
        let ran = self.devices[device as usize].take()?;
        let busy_ns = self.now_ns.min(self.horizon_ns).saturating_sub(ran.since_ns);
        self.busy_ns += busy_ns;
        self.useless_ns += busy_ns.min(self.options.overhead_ns);
        let live = &mut self.tasks[ran.task.0 as usize];
        live.since_ns = self.now_ns;
        let job = live.job;
        if self.options.series {
            let is_late = self.now_ns - live.submitted_ns > self.options.pool.sla_ns;
            let kind = match (self.jobs[job].user_facing, is_late) {
                (false, _) => SpanKind::Batch,
                (true, false) => SpanKind::InTime,
                (true, true) => SpanKind::Late,
            };
            let who = format!("job {job}");
            self.found.spans.push(span(device, ran.since_ns, self.now_ns, kind, who));
        }
        self.found.service_ns[job] += busy_ns;
        let length_ns = (self.horizon_ns / u64::from(self.options.windows.max(1))).max(1);
        for (place, window) in (0u64..).zip(&mut self.found.windows_ns) {
            let begin_ns = ran.since_ns.max(place * length_ns);
            let end_ns = self.now_ns.min((place + 1) * length_ns);
            window[job] += end_ns.saturating_sub(begin_ns);
        }
        Some(ran)
    }

    /// The device's task begins anew elsewhere.
    fn lose(&mut self, device: u32) -> u64 {
        let Some(ran) = self.account(device) else { return 0 };
        let live = &mut self.tasks[ran.task.0 as usize];
        let lost_ns = live.done_ns + self.now_ns - ran.since_ns;
        live.done_ns = 0;
        if self.now_ns <= self.horizon_ns {
            // The overhead is among it already.
            self.useless_ns += lost_ns.saturating_sub(self.options.overhead_ns);
        }
        lost_ns
    }

    fn feed(&mut self, event: PoolEvent) -> Result<(), PoolError> {
        let mut actions = std::mem::take(&mut self.actions);
        self.pool.handle(self.now_ns, event, &mut actions)?;
        self.found.events += 1;
        if let Err(broken) = self.trace.step(self.now_ns, &event, &actions) {
            let at = seconds(self.now_ns);
            self.found.violation.get_or_insert_with(|| format!("at {at} s: {broken}"));
        }
        for action in actions.drain(..) {
            self.act(action);
        }
        self.actions = actions;
        if self.options.series {
            let (user, batch) = (self.pool.user_devices(), self.pool.batch_devices());
            self.found.devices.push((seconds(self.now_ns), user, batch));
        }
        Ok(())
    }

    fn act(&mut self, action: PoolAction) {
        match action {
            PoolAction::Run { device, task } => {
                let live = self.tasks[task.0 as usize];
                if !self.jobs[live.job].user_facing {
                    let waited_ns = self.now_ns - live.since_ns;
                    self.found.batch_wait_ns = self.found.batch_wait_ns.max(waited_ns);
                }
                let rest_ns = live.length_ns - live.done_ns;
                let end_ns = self.now_ns + self.options.overhead_ns + rest_ns;
                self.runs[device.0 as usize] += 1;
                let since_ns = self.now_ns;
                // What is left of a kernel that was cut can only be run by pieces.
                let is_whole = live.done_ns == 0 && rest_ns <= self.pool.whole_ns_max(device);
                let running = Running { task, since_ns, end_ns, is_whole };
                self.devices[device.0 as usize] = Some(running);
                self.later(end_ns, What::Ends(device.0, self.runs[device.0 as usize], true));
            }
            PoolAction::Yield { device, at_ns } => {
                let Some(ran) = self.devices[device.0 as usize] else { return };
                if ran.is_whole {
                    return;
                }
                let slice_ns = self.options.pool.slice_ns.max(1);
                let past_ns = at_ns.max(self.now_ns) - ran.since_ns;
                let stop_ns = ran.since_ns + past_ns.next_multiple_of(slice_ns);
                if stop_ns < ran.end_ns {
                    self.runs[device.0 as usize] += 1;
                    let run = self.runs[device.0 as usize];
                    self.later(stop_ns, What::Ends(device.0, run, false));
                }
            }
            PoolAction::Reset { device } => {
                self.found.resets.0 += 1;
                self.found.resets.1 += self.lose(device.0);
                let back_ns =
                    self.now_ns + self.options.reset_ns.unwrap_or(self.options.pool.reset_ns);
                if self.options.series {
                    let who = "nobody".to_owned();
                    let reset = span(device.0, self.now_ns, back_ns, SpanKind::Reset, who);
                    self.found.spans.push(reset);
                }
                self.runs[device.0 as usize] += 1;
                let run = self.runs[device.0 as usize];
                self.later(back_ns, What::Back(device.0, run));
            }
        }
    }

    fn end(mut self) -> Found {
        let all_ns = self.horizon_ns * u64::from(self.options.devices);
        self.found.utilization = self.busy_ns as f64 / all_ns.max(1) as f64;
        let useful_ns = self.busy_ns.saturating_sub(self.useless_ns);
        self.found.useful = useful_ns as f64 / all_ns.max(1) as f64;
        self.found.batch_dry_ns = self.trace.batch_wait_max_ns();
        self.found.turn_permille = self.trace.turn_share_permille();
        self.found.lag_permille = self.trace.lag_share_permille();
        self.found.user_lag_permille = self.trace.user_lag_share_permille();
        if let Err(lost) = self.trace.end() {
            self.found.violation.get_or_insert_with(|| lost.to_string());
        }
        self.found
    }
}

fn vgpu(job: usize) -> VgpuKey {
    VgpuKey(u32::try_from(job).unwrap_or(u32::MAX))
}

fn span(device: u32, from_ns: u64, to_ns: u64, kind: SpanKind, who: String) -> Span {
    Span { lane: device as usize, from_s: seconds(from_ns), to_s: seconds(to_ns), kind, who }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}
