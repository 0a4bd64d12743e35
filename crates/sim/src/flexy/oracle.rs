//! What orders that know every task's time reach, without the pool core: list scheduling of the
//! user-facing tasks alone, as if batch work took no room.
//!
//! None of the orders is optimal (to maximise tasks in time on several devices is NP-hard, and jobs
//! submit as tasks end), so their maximum is a reference point and no bound.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::workload::Job;

/// Which task that can still meet its SLA goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// The one of the earliest deadline.
    Earliest,
    /// The shortest.
    Shortest,
    /// The earliest of those that are left after the longest were put behind until the rest is in
    /// time (Moore 1968, by list scheduling on several devices).
    MooreHodgson,
}

impl Rule {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Earliest, Self::Shortest, Self::MooreHodgson];
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    submitted_ns: u64,
    length_ns: u64,
    done_ns: u64,
    job: usize,
}

impl Waiting {
    fn rest_ns(&self) -> u64 {
        self.length_ns - self.done_ns
    }
}

#[derive(Clone, Copy, Debug)]
struct Running {
    task: Waiting,
    since_ns: u64,
    is_late: bool,
}

struct World<'a> {
    jobs: &'a [Job],
    sla_ns: u64,
    rule: Rule,
    horizon_ns: u64,
    next_task: Vec<usize>,
    waiting: Vec<Waiting>,
    devices: Vec<Option<Running>>,
    /// Counts what a device began, so that an end that was overtaken is known.
    runs: Vec<u64>,
    /// (when, device or job, run number; none for an arrival).
    queue: BinaryHeap<Reverse<(u64, usize, Option<u64>)>>,
    user: (u64, u64),
}

/// User-facing tasks that are due by the last arrival, and how many of them met their SLA under
/// `rule` on `devices` devices. A task that cannot meet it any more has what is left over, the
/// shortest first, and is stopped at once when it is in the way.
#[must_use]
pub fn clairvoyant(jobs: &[Job], devices: u32, sla_ns: u64, rule: Rule) -> (u64, u64) {
    let mut world = World {
        jobs,
        sla_ns,
        rule,
        horizon_ns: jobs.iter().map(|job| job.arrival_ns).max().unwrap_or(0),
        next_task: vec![0; jobs.len()],
        waiting: Vec::new(),
        devices: vec![None; devices as usize],
        runs: vec![0; devices as usize],
        queue: BinaryHeap::new(),
        user: (0, 0),
    };
    for (place, job) in jobs.iter().enumerate().filter(|(_, job)| job.user_facing) {
        world.queue.push(Reverse((job.arrival_ns, place, None)));
    }
    while let Some(Reverse((now_ns, place, run))) = world.queue.pop() {
        match run {
            None => {
                let most = jobs[place].tasks.len();
                let outstanding = 0..jobs[place].outstanding as usize;
                outstanding.take(most).for_each(|_| world.submit(now_ns, place));
            }
            Some(run) if world.runs[place] == run => world.end(now_ns, place),
            Some(_) => continue,
        }
        // What happens at one instant is known before anything is begun.
        if world.queue.peek().is_none_or(|Reverse((at_ns, ..))| *at_ns > now_ns) {
            world.dispatch(now_ns);
        }
    }
    world.user
}

impl World<'_> {
    fn submit(&mut self, now_ns: u64, job: usize) {
        let Some(&(_, length_ns)) = self.jobs[job].tasks.get(self.next_task[job]) else { return };
        self.next_task[job] += 1;
        self.waiting.push(Waiting { submitted_ns: now_ns, length_ns, done_ns: 0, job });
    }

    fn end(&mut self, now_ns: u64, device: usize) {
        let Some(ran) = self.devices[device].take() else { return };
        let due_ns = ran.task.submitted_ns.saturating_add(self.sla_ns);
        if due_ns <= self.horizon_ns {
            self.user.0 += 1;
            self.user.1 += u64::from(now_ns <= due_ns);
        }
        self.submit(now_ns, ran.task.job);
    }

    fn dispatch(&mut self, now_ns: u64) {
        while let Some(device) = self.device_for(now_ns) {
            let hopeful = self.hopeful(now_ns);
            let (place, is_late) = match self.choose(now_ns, &hopeful) {
                Some(place) => (place, false),
                None => match self.shortest(0..self.waiting.len()) {
                    Some(place) => (place, true),
                    None => return,
                },
            };
            let task = self.waiting.swap_remove(place);
            self.runs[device] += 1;
            let end_ns = now_ns + task.rest_ns();
            self.devices[device] = Some(Running { task, since_ns: now_ns, is_late });
            self.queue.push(Reverse((end_ns, device, Some(self.runs[device]))));
        }
    }

    /// A device that is free; or one whose late task goes back to wait for a hopeful one.
    fn device_for(&mut self, now_ns: u64) -> Option<usize> {
        if self.waiting.is_empty() {
            return None;
        }
        if let Some(free) = self.devices.iter().position(Option::is_none) {
            return Some(free);
        }
        let late = self.devices.iter().position(|ran| ran.is_some_and(|ran| ran.is_late))?;
        if self.hopeful(now_ns).is_empty() {
            return None;
        }
        let ran = self.devices[late].take()?;
        let done_ns = ran.task.done_ns + now_ns - ran.since_ns;
        self.waiting.push(Waiting { done_ns, ..ran.task });
        Some(late)
    }

    /// Places of the tasks that can meet their SLA, by deadline.
    fn hopeful(&self, now_ns: u64) -> Vec<usize> {
        let can = |task: &Waiting| now_ns + task.rest_ns() <= task.submitted_ns + self.sla_ns;
        let mut places: Vec<usize> =
            (0..self.waiting.len()).filter(|place| can(&self.waiting[*place])).collect();
        places.sort_by_key(|place| {
            let task = &self.waiting[*place];
            (task.submitted_ns, task.rest_ns(), task.job)
        });
        places
    }

    fn shortest(&self, places: impl Iterator<Item = usize>) -> Option<usize> {
        places.min_by_key(|place| {
            let task = &self.waiting[*place];
            (task.rest_ns(), task.submitted_ns, task.job)
        })
    }

    fn choose(&self, now_ns: u64, hopeful: &[usize]) -> Option<usize> {
        match self.rule {
            Rule::Earliest => hopeful.first().copied(),
            Rule::Shortest => self.shortest(hopeful.iter().copied()),
            Rule::MooreHodgson => self.moore_hodgson(now_ns, hopeful),
        }
    }

    /// The first of the tasks that stay when, by deadline, each that would be late puts the longest
    /// so far behind.
    fn moore_hodgson(&self, now_ns: u64, hopeful: &[usize]) -> Option<usize> {
        let mut kept: Vec<usize> = Vec::new();
        for place in hopeful {
            kept.push(*place);
            if !self.is_in_time(now_ns, &kept) {
                let longest = (0..kept.len()).max_by_key(|at| self.waiting[kept[*at]].rest_ns())?;
                kept.remove(longest);
            }
        }
        kept.first().copied()
    }

    /// Whether tasks in that order are all in time on the devices as they become free.
    fn is_in_time(&self, now_ns: u64, places: &[usize]) -> bool {
        let free_ns = |ran: &Option<Running>| match ran {
            Some(ran) if !ran.is_late => ran.since_ns + ran.task.rest_ns(),
            _ => now_ns,
        };
        let mut free: BinaryHeap<Reverse<u64>> =
            self.devices.iter().map(|ran| Reverse(free_ns(ran))).collect();
        places.iter().all(|place| {
            let task = &self.waiting[*place];
            let Some(Reverse(at_ns)) = free.pop() else { return false };
            let end_ns = at_ns + task.rest_ns();
            free.push(Reverse(end_ns));
            end_ns <= task.submitted_ns + self.sla_ns
        })
    }
}
