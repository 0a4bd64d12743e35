//! A production cluster: a queue of jobs in front of GPUs that the placement core gives away.
//!
//! As in GSaaS §V a job asks for so many nodes with one GPU each, for some time, all at once. A
//! *slot* is a cGPU; a GPU has one (exclusive) or several (shared parts of its memory). Sharing
//! makes every job longer by a factor, the paper's *sharing factor overhead*.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use weft_sched::placement::invariants::Audit;
use weft_sched::placement::{Cluster, GrantKey, Mode, Request, by_name};

use super::swf::Job;

/// Memory of a GPU in MiB (GSaaS §IV-A: Quadro M4000).
pub(super) const GPU_MIB: u64 = 8_192;

/// Who goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discipline {
    /// First come, first served: nobody overtakes (GSaaS §V).
    Fcfs,
    /// EASY backfilling: who delays the first in the queue by nothing may overtake.
    Easy,
    /// Conservative backfilling: who delays nobody in the queue may overtake.
    Conservative,
}

impl Discipline {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Fcfs, Self::Easy, Self::Conservative];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Fcfs => "fcfs",
            Self::Easy => "easy",
            Self::Conservative => "conservative",
        }
    }
}

/// What a run is of.
#[derive(Clone, Copy, Debug)]
pub struct Production {
    /// GPUs, one for each host.
    pub gpus: u32,
    /// cGPUs of each: 1 is exclusive.
    pub cgpus_of_gpu: u32,
    /// Every job takes this many thousandths of its time.
    pub factor_permille: u64,
    /// Who goes first.
    pub discipline: Discipline,
    /// A policy of the placement registry.
    pub policy: &'static str,
}

/// What a run found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ran {
    /// From the first arrival to the last end, in seconds.
    pub makespan_s: u64,
    /// Mean time from arrival to start, in seconds.
    pub wait_s: f64,
    /// Mean of (wait + run) / max(run, 10 s), the archive's bounded slowdown.
    pub slowdown: f64,
    /// Slots in use over the makespan.
    pub utilization: f64,
    /// No order of these jobs ends before this, in seconds.
    pub bound_s: u64,
    /// Jobs that asked for more than there is.
    pub refused: usize,
    /// The first rule of placement that was broken.
    pub violation: Option<String>,
    /// When each job began, in seconds; none for those refused.
    pub starts: Vec<Option<u64>>,
}

struct World<'a> {
    of: Production,
    jobs: &'a [Job],
    cluster: Cluster,
    audit: Audit,
    free: u32,
    now_s: u64,
    /// Jobs that wait, by arrival.
    queue: Vec<usize>,
    /// Ends of running jobs, soonest first.
    ends: BinaryHeap<Reverse<(u64, usize)>>,
    /// When running jobs end as far as anybody knows.
    expected: BTreeMap<usize, u64>,
    /// Conservative: when each job in the queue begins at the latest.
    reserved: BTreeMap<usize, u64>,
    /// Conservative: free slots from now on.
    profile: Option<Profile>,
    ran: Ran,
}

/// Runs jobs, which are by arrival.
///
/// # Panics
/// If the policy's name is none of the registry, or a GPU has no cGPU.
#[must_use]
pub fn run(of: &Production, jobs: &[Job]) -> Ran {
    let mut cluster = Cluster::new(by_name(of.policy).expect("a name of the registry"));
    for _ in 0..of.gpus {
        cluster.add_host(0, 0, 0, &[GPU_MIB]).expect("a small host");
    }
    let mut world = World {
        of: *of,
        jobs,
        cluster,
        audit: Audit::default(),
        free: of.gpus * of.cgpus_of_gpu,
        now_s: 0,
        queue: Vec::new(),
        ends: BinaryHeap::new(),
        expected: BTreeMap::new(),
        reserved: BTreeMap::new(),
        profile: None,
        ran: Ran { starts: vec![None; jobs.len()], ..Ran::default() },
    };
    world.go();
    world.finish()
}

impl World<'_> {
    fn go(&mut self) {
        let mut next = 0;
        loop {
            let arrival_s = self.jobs.get(next).map(|job| job.arrival_s);
            let end_s = self.ends.peek().map(|Reverse((end_s, _))| *end_s);
            let Some(now_s) = [arrival_s, end_s].into_iter().flatten().min() else { break };
            self.now_s = now_s;
            let mut early = false;
            while let Some(Reverse((end_s, job))) = self.ends.peek().copied() {
                if end_s > now_s {
                    break;
                }
                self.ends.pop();
                early |= self.end(job);
            }
            while let Some(job) = self.jobs.get(next).filter(|job| job.arrival_s <= now_s) {
                if job.nodes > self.of.gpus * self.of.cgpus_of_gpu {
                    self.ran.refused += 1;
                } else {
                    self.queue.push(next);
                }
                next += 1;
            }
            match self.of.discipline {
                Discipline::Fcfs => self.start_first(),
                Discipline::Easy => self.easy(),
                Discipline::Conservative => self.conservative(early),
            }
        }
    }

    /// How long a job runs here.
    fn run_s(&self, job: usize) -> u64 {
        longer(self.jobs[job].run_s, self.of.factor_permille)
    }

    fn estimate_s(&self, job: usize) -> u64 {
        longer(self.jobs[job].estimate_s, self.of.factor_permille)
    }

    fn request(&self, job: usize) -> Request {
        let (nodes, parts) = (self.jobs[job].nodes, self.of.cgpus_of_gpu);
        let mode = if parts == 1 { Mode::Exclusive } else { Mode::Shared };
        Request::new(nodes, GPU_MIB / u64::from(parts), mode)
    }

    fn start(&mut self, job: usize) {
        let (request, grant) = (self.request(job), GrantKey(job as u64));
        self.free -= self.jobs[job].nodes;
        let (run_s, estimate_s) = (self.run_s(job), self.estimate_s(job));
        self.ends.push(Reverse((self.now_s + run_s, job)));
        self.expected.insert(job, self.now_s + estimate_s);
        self.reserved.remove(&job);
        self.ran.starts[job] = Some(self.now_s);
        let placed = self.cluster.place(&request).map_err(|error| error.to_string());
        let placed = placed.and_then(|placement| {
            let asked = self.audit.committed(&self.cluster, grant, &request, &placement);
            asked.map_err(|error| error.to_string())?;
            self.cluster.commit(grant, placement).map_err(|error| error.to_string())
        });
        self.broken(job, placed);
        let checked = self.audit.check(&self.cluster).map_err(|error| error.to_string());
        self.broken(job, checked);
    }

    /// Whether it ended before it was expected to.
    fn end(&mut self, job: usize) -> bool {
        self.free += self.jobs[job].nodes;
        let released = self.cluster.release(GrantKey(job as u64));
        self.broken(job, released.map(|_| ()).map_err(|error| error.to_string()));
        self.audit.released(GrantKey(job as u64));
        self.expected.remove(&job).is_some_and(|end_s| end_s > self.now_s)
    }

    fn broken(&mut self, job: usize, result: Result<(), String>) {
        if let Err(error) = result {
            let when = self.now_s;
            self.ran.violation.get_or_insert_with(|| format!("job {job} at {when} s: {error}"));
        }
    }

    /// Starts jobs from the front of the queue while they fit.
    fn start_first(&mut self) {
        while let Some(&job) = self.queue.first().filter(|job| self.fits(**job)) {
            self.queue.remove(0);
            self.start(job);
        }
    }

    fn fits(&self, job: usize) -> bool {
        self.jobs[job].nodes <= self.free
    }

    /// Jobs that end before the first one could begin, or that leave it what it needs then, go.
    fn easy(&mut self) {
        self.start_first();
        let Some(&head) = self.queue.first() else { return };
        let (begin_s, mut extra) = self.shadow(head);
        let mut place = 1;
        while let Some(&job) = self.queue.get(place) {
            let is_over = self.now_s + self.estimate_s(job) <= begin_s;
            let nodes = self.jobs[job].nodes;
            if self.fits(job) && (is_over || nodes <= extra) {
                extra -= if is_over { 0 } else { nodes };
                self.queue.remove(place);
                self.start(job);
            } else {
                place += 1;
            }
        }
    }

    /// When a job can begin as far as anybody knows, and the slots that it leaves free then.
    fn shadow(&self, job: usize) -> (u64, u32) {
        let nodes = self.jobs[job].nodes;
        let mut ends: Vec<(u64, u32)> =
            self.expected.iter().map(|(job, end_s)| (*end_s, self.jobs[*job].nodes)).collect();
        ends.sort_unstable();
        let (mut free, mut begin_s) = (self.free, self.now_s);
        for (end_s, freed) in ends {
            // Who ends at the same time is free too.
            if free >= nodes && end_s > begin_s {
                break;
            }
            free += freed;
            begin_s = end_s;
        }
        (begin_s, free.saturating_sub(nodes))
    }

    /// Every job has a reservation from its arrival on. Where a job ended early all are made anew,
    /// in the order of arrival.
    fn conservative(&mut self, early: bool) {
        if early {
            self.reserved.clear();
            self.profile = None;
        }
        let mut profile = match self.profile.take() {
            Some(profile) => profile.from(self.now_s),
            None => self.profile(),
        };
        for job in self.queue.clone() {
            if self.reserved.contains_key(&job) {
                continue;
            }
            let (nodes, estimate_s) = (self.jobs[job].nodes, self.estimate_s(job));
            let begin_s = profile.earliest(nodes, estimate_s);
            profile.take(begin_s, begin_s + estimate_s, nodes);
            self.reserved.insert(job, begin_s);
        }
        self.profile = Some(profile);
        let due: Vec<usize> =
            self.queue.iter().copied().filter(|job| self.reserved[job] <= self.now_s).collect();
        self.queue.retain(|job| !due.contains(job));
        due.into_iter().for_each(|job| self.start(job));
    }

    /// Free slots from now on, with what runs and what is reserved.
    fn profile(&self) -> Profile {
        let mut profile = Profile(vec![(self.now_s, self.of.gpus * self.of.cgpus_of_gpu)]);
        for (job, end_s) in &self.expected {
            profile.take(self.now_s, *end_s, self.jobs[*job].nodes);
        }
        for (job, begin_s) in &self.reserved {
            profile.take(*begin_s, begin_s + self.estimate_s(*job), self.jobs[*job].nodes);
        }
        profile
    }

    fn finish(mut self) -> Ran {
        let slots = u64::from(self.of.gpus * self.of.cgpus_of_gpu);
        let (mut work_s, mut first_s, mut last_s) = (0, u64::MAX, 0);
        let (mut wait_s, mut slowdown, mut count) = (0.0, 0.0, 0.0);
        for (number, job) in self.jobs.iter().enumerate() {
            let Some(start_s) = self.ran.starts[number] else { continue };
            let run_s = self.run_s(number);
            let waited_s = start_s - job.arrival_s;
            first_s = first_s.min(job.arrival_s);
            last_s = last_s.max(start_s + run_s);
            work_s += run_s * u64::from(job.nodes);
            self.ran.bound_s = self.ran.bound_s.max(job.arrival_s + run_s);
            wait_s += waited_s as f64;
            slowdown += ((waited_s + run_s) as f64 / (run_s as f64).max(10.0)).max(1.0);
            count += 1.0;
        }
        let ran = &mut self.ran;
        ran.makespan_s = last_s.saturating_sub(first_s);
        let bound_s = ran.bound_s.saturating_sub(first_s);
        ran.bound_s = bound_s.max(work_s.div_ceil(slots.max(1)));
        (ran.wait_s, ran.slowdown) =
            (wait_s / f64::max(count, 1.0), slowdown / f64::max(count, 1.0));
        ran.utilization = work_s as f64 / (slots * ran.makespan_s).max(1) as f64;
        if !self.queue.is_empty() || self.free != self.of.gpus * self.of.cgpus_of_gpu {
            ran.violation
                .get_or_insert_with(|| "jobs were left or slots not given back".to_owned());
        }
        self.ran
    }
}

fn longer(seconds: u64, permille: u64) -> u64 {
    (seconds * permille).div_ceil(1_000)
}

/// Free slots from each of these times on.
#[derive(Clone, Debug)]
struct Profile(Vec<(u64, u32)>);

impl Profile {
    /// The same without what is over.
    fn from(mut self, now_s: u64) -> Self {
        let over = self.0.partition_point(|step| step.0 <= now_s).saturating_sub(1);
        self.0.drain(..over);
        if let Some(first) = self.0.first_mut() {
            first.0 = first.0.max(now_s);
        }
        self
    }

    /// The first time from which so many slots are free for so long.
    fn earliest(&self, nodes: u32, length_s: u64) -> u64 {
        let Self(steps) = self;
        let mut begin = 0;
        for (at, &(_, free)) in steps.iter().enumerate() {
            if free < nodes {
                begin = at + 1;
            } else if steps.get(at + 1).is_none_or(|next| next.0 >= steps[begin].0 + length_s) {
                break;
            }
        }
        steps.get(begin).map_or(0, |step| step.0)
    }

    /// Takes slots from one time to another.
    fn take(&mut self, from_s: u64, to_s: u64, nodes: u32) {
        let (from, to) = (self.split(from_s), self.split(to_s));
        for step in &mut self.0[from..to] {
            step.1 = step.1.saturating_sub(nodes);
        }
    }

    /// The step that begins at a time; it is made if there is none.
    fn split(&mut self, at_s: u64) -> usize {
        match self.0.binary_search_by_key(&at_s, |step| step.0) {
            Ok(place) => place,
            Err(place) => {
                let free = place.checked_sub(1).map_or(self.0[0].1, |before| self.0[before].1);
                self.0.insert(place, (at_s, free));
                place
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gsaas::lublin::{Limit, Lublin};

    fn job(arrival_s: u64, nodes: u32, run_s: u64) -> Job {
        Job { arrival_s, nodes, run_s, estimate_s: run_s }
    }

    fn of(discipline: Discipline) -> Production {
        Production {
            gpus: 4,
            cgpus_of_gpu: 1,
            factor_permille: 1_000,
            discipline,
            policy: "first_fit",
        }
    }

    fn starts(discipline: Discipline, jobs: &[Job]) -> Vec<u64> {
        let ran = run(&of(discipline), jobs);
        assert_eq!(ran.violation, None);
        ran.starts.into_iter().map(|start| start.expect("it fits")).collect()
    }

    /// Three nodes run; a job of four waits; a short and a long one of a single node come after.
    #[test]
    fn backfilling_overtakes_where_nobody_is_delayed() {
        let jobs = [job(0, 3, 100), job(1, 4, 50), job(2, 1, 98), job(3, 1, 99)];
        assert_eq!(starts(Discipline::Fcfs, &jobs), [0, 100, 150, 150]);
        assert_eq!(starts(Discipline::Easy, &jobs), [0, 100, 2, 150]);
        assert_eq!(starts(Discipline::Conservative, &jobs), [0, 100, 2, 150]);
    }

    /// EASY protects the first in the queue only: the second is delayed, which conservative
    /// backfilling does not do.
    #[test]
    fn easy_delays_the_second_and_conservative_does_not() {
        let jobs = [job(0, 3, 10), job(1, 3, 10), job(2, 4, 10), job(3, 1, 30)];
        assert_eq!(starts(Discipline::Easy, &jobs), [0, 10, 33, 3]);
        assert_eq!(starts(Discipline::Conservative, &jobs), [0, 10, 20, 30]);
    }

    #[test]
    fn an_early_end_moves_reservations_forward() {
        let early = Job { estimate_s: 100, ..job(0, 4, 10) };
        let jobs = [early, job(1, 4, 10), job(2, 1, 5)];
        assert_eq!(starts(Discipline::Conservative, &jobs), [0, 10, 20]);
    }

    #[test]
    fn twice_the_cgpus_halve_the_time_and_the_factor_takes_it_back() {
        let jobs: Vec<Job> = (0..64).map(|_| job(0, 1, 1_000)).collect();
        let alone = run(&of(Discipline::Fcfs), &jobs);
        let shared = |cgpus_of_gpu, factor_permille| {
            let of = Production { cgpus_of_gpu, factor_permille, ..of(Discipline::Fcfs) };
            run(&of, &jobs).makespan_s
        };
        assert_eq!((alone.makespan_s, alone.bound_s), (16_000, 16_000));
        assert_eq!((shared(2, 1_000), shared(4, 1_000), shared(4, 4_000)), (8_000, 4_000, 16_000));
    }

    #[test]
    fn jobs_that_never_fit_are_refused_and_the_rest_runs() {
        let jobs = [job(0, 5, 10), job(1, 4, 10)];
        for discipline in Discipline::ALL {
            let ran = run(&of(discipline), &jobs);
            assert_eq!((ran.refused, ran.starts), (1, vec![None, Some(1)]));
        }
    }

    /// On generated jobs: nobody is left, nothing is broken, nothing ends before it can, and under
    /// conservative backfilling with exact times no job begins later than under first come first
    /// served.
    #[test]
    fn disciplines_keep_their_promises_on_generated_jobs() {
        for seed in 0..5 {
            let limit = Limit::Clamp;
            let spec = Lublin { jobs: 200, nodes: 128, nodes_max: 4, limit, typed: false, seed };
            let jobs = spec.generate();
            let runs = Discipline::ALL.map(|discipline| run(&of(discipline), &jobs));
            for ran in &runs {
                assert_eq!(ran.violation, None);
                assert!(ran.makespan_s >= ran.bound_s && ran.utilization <= 1.0);
            }
            let [fcfs, _, conservative] = &runs;
            let later =
                fcfs.starts.iter().zip(&conservative.starts).filter(|(one, other)| one < other);
            assert_eq!(later.count(), 0, "seed {seed}");
        }
    }
}
