//! What tenants' workers weigh on the processors outside of turns.
//!
//! Outside of turns workers take commands and answer calls, for which nobody is charged, and a
//! tenant may have as many as it likes. So each tenant has an allowance of processor time, whatever
//! the number of its sessions: within it, workers go before ordinary threads outside of turns, too,
//! for a program that asks for little does not wait for what others execute. The workers of who is
//! beyond it go after ordinary threads, by so much that all of them together weigh as half a thread
//! for each processor. What counts is how long a worker had or wanted a processor while it neither
//! had the device nor was next nor compiled at the lowest priority, by the system's word. An idle
//! processor serves all as fast as ever.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use weft_sched::DeviceKey;

use super::precedence::{LOWEST, Outside};
use super::process::WorkerProcess;
use super::sessions::debtor;
use super::{Daemon, STACK_BYTES};
use crate::config::ShareConfig;

/// How often it is looked at what workers had and wanted.
const LOOK: Duration = Duration::from_millis(100);

/// A part of each processor's time.
type Part = (u64, u64);

/// What the allowances of all are, by weight among those that have not all of theirs.
const ALLOWED: Part = (2, 100);

/// What a tenant has of its allowance when it has used none for long, in ns: a program that starts
/// takes some milliseconds.
const FULL_NS: i64 = 50_000_000;

/// Who goes after others is so far beyond its allowance at most, in ns, for what it uses then:
/// others lose next to nothing by that.
const BEYOND_NS: i64 = 20_000_000;

/// What a tenant has of it that was not known before, in ns.
const NEW_NS: i64 = 1_000_000;

/// What those that are beyond weigh as, in threads.
const WEIGHT: Part = (1, 2);

/// Of what a tenant wanted so much counts at the next look, if it wanted less since.
const REMEMBERED: Part = (3, 4);

/// Whose workers use the same processors: those of a device that has its own, or all others.
type Group = Option<DeviceKey>;

/// Who has an allowance: where vGPUs compete each for itself, what a user made has one in all, for
/// it may make as many as it likes. What root made, or the daemon's own user, may be for others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Payer {
    Vgpu(u32),
    User(u32),
}

/// An allowance, on these processors.
type Key = (Group, Payer);

/// How tenants' workers go outside of turns.
#[derive(Debug, Default)]
pub(crate) struct CpuWeights {
    /// Tells of workers; nobody where the daemon may not order threads.
    begun: OnceLock<Sender<Began>>,
    /// As of the last look.
    tenants: Mutex<BTreeMap<Key, Outside>>,
}

/// A worker begins to execute on a device, or goes on on another.
#[derive(Debug)]
struct Began {
    worker: Arc<WorkerProcess>,
    key: Key,
    /// What it had of the processors before, in ns, which is another matter.
    before_ns: u64,
}

impl Daemon {
    /// A worker executes from now on for a session of this vGPU, for which this user's tenant pays,
    /// on a device.
    pub(crate) fn weigh(
        &self,
        device: DeviceKey,
        (vgpu, user): (u32, u32),
        worker: &Arc<WorkerProcess>,
    ) {
        let weights = &self.cpu_weights;
        let Some(begun) = weights.begun.get() else { return };
        let own_of = Some(device).filter(|device| self.devices.has_processors(*device));
        let payer = match (self.config.scheduling.share, debtor(user)) {
            (ShareConfig::Vgpu, None) => Payer::Vgpu(vgpu),
            _ => Payer::User(user),
        };
        let key = (own_of, payer);
        let known = lock(&weights.tenants).get(&key).copied();
        // One that nobody knows has done nothing yet, but has no allowance either.
        worker.does(|doing| doing.outside = known.unwrap_or_default());
        let before_ns = worker.outside_ns();
        // The thread ends with the daemon.
        let _ = begun.send(Began { worker: Arc::clone(worker), key, before_ns });
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Looks at workers in a thread of its own while there are any, for as long as the daemon lives and
/// if it may order threads.
pub(super) fn start(daemon: &Arc<Daemon>) -> anyhow::Result<()> {
    if let Some(ranks) = daemon.ranks.filter(|ranks| ranks.order()) {
        let (sender, begun) = mpsc::channel();
        daemon.cpu_weights.begun.get_or_init(|| sender);
        let daemon = Arc::downgrade(daemon);
        let thread = thread::Builder::new().name("cpu-weight".to_owned()).stack_size(STACK_BYTES);
        thread.spawn(move || {
            // Those that it is to set back do not hold it up.
            if let Err(error) = ranks.put_caller(true) {
                tracing::warn!(%error, "who looks at workers keeps its priority");
            }
            watch(&daemon, &begun);
        })?;
    }
    Ok(())
}

fn watch(daemon: &Weak<Daemon>, begun: &Receiver<Began>) {
    let mut ledger = Ledger::default();
    while let Ok(first) = begun.recv() {
        ledger.take(first);
        let mut last = Instant::now();
        while !ledger.is_empty() {
            thread::sleep(LOOK);
            begun.try_iter().for_each(|more| ledger.take(more));
            let Some(daemon) = daemon.upgrade() else { return };
            let passed = last.elapsed();
            last += passed;
            ledger.look(&daemon, u64::try_from(passed.as_nanos()).unwrap_or(u64::MAX));
        }
    }
}

/// What is had and wanted, from look to look.
#[derive(Debug, Default)]
struct Ledger {
    workers: Vec<Known>,
    tenants: BTreeMap<Key, Tenant>,
    /// As they were when the tables were free last.
    weights: BTreeMap<Payer, u32>,
}

#[derive(Debug)]
struct Known {
    worker: Arc<WorkerProcess>,
    key: Key,
    /// What it had outside of turns until the last look, in ns.
    had_ns: u64,
    /// How long it had waited for a processor when it had some last, in ns.
    waited_ns: Option<u64>,
}

impl Ledger {
    fn is_empty(&self) -> bool {
        self.workers.is_empty() && self.tenants.is_empty()
    }

    fn take(&mut self, Began { worker, key, before_ns }: Began) {
        let known = self.workers.iter_mut().find(|known| Arc::ptr_eq(&known.worker, &worker));
        match known {
            Some(known) => known.key = key,
            None => {
                let known = Known { worker, key, had_ns: before_ns, waited_ns: None };
                self.workers.push(known);
            }
        }
    }

    /// Looks at all workers, `passed_ns` after the last time, and says how they go from now on.
    fn look(&mut self, daemon: &Daemon, passed_ns: u64) {
        self.note();
        // Whoever has the tables may be among those that wait for a processor.
        if let Ok(tables) = daemon.tables.try_lock() {
            let payer = match daemon.config.scheduling.share {
                ShareConfig::Vgpu => Payer::Vgpu,
                ShareConfig::User => Payer::User,
            };
            let weights = daemon.weights(&tables).into_iter();
            self.weights = weights.map(|(key, weight)| (payer(key), weight)).collect();
        }
        let groups: BTreeSet<Group> = self.tenants.keys().map(|(group, _)| *group).collect();
        for group in groups {
            let processors_ns = passed_ns.saturating_mul(daemon.devices.processors_of(group));
            let own = self.tenants.iter_mut().filter(|((of, _), _)| *of == group);
            let mut own: BTreeMap<Payer, &mut Tenant> =
                own.map(|((_, payer), tenant)| (*payer, tenant)).collect();
            settle(&mut own, &self.weights, processors_ns);
        }
        for known in &self.workers {
            let outside = self.tenants[&known.key].outside;
            known.worker.does(|doing| doing.outside = outside);
        }
        let outside = self.tenants.iter().map(|(key, tenant)| (*key, tenant.outside)).collect();
        *lock(&daemon.cpu_weights.tenants) = outside;
    }

    /// Adds up what tenants had and wanted since the last look. Who has all of its allowance and no
    /// worker is forgotten.
    fn note(&mut self) {
        let live: BTreeSet<Key> = self.workers.iter().map(|known| known.key).collect();
        self.tenants.retain(|key, tenant| tenant.left_ns < FULL_NS || live.contains(key));
        let (part, whole) = REMEMBERED;
        for tenant in self.tenants.values_mut() {
            (tenant.had_ns, tenant.wanted_ns) = (0, tenant.wanted_ns / whole * part);
            tenant.is_live = false;
        }
        let mut wanted = BTreeMap::<Key, u64>::new();
        for known in &mut self.workers {
            let tenant = self.tenants.entry(known.key).or_default();
            let had_ns = known.note_had();
            tenant.is_live = true;
            tenant.had_ns += had_ns;
            *wanted.entry(known.key).or_default() += had_ns + known.note_waited(had_ns);
        }
        for (key, wanted_ns) in wanted {
            let tenant = self.tenants.entry(key).or_default();
            tenant.wanted_ns = tenant.wanted_ns.max(wanted_ns);
        }
        self.workers.retain(|known| !known.worker.is_over());
    }
}

impl Known {
    /// What it had outside of turns since the last look, in ns.
    fn note_had(&mut self) -> u64 {
        let had_ns = self.worker.outside_ns();
        had_ns.saturating_sub(std::mem::replace(&mut self.had_ns, had_ns))
    }

    /// How long it has waited for a processor since it had some last, in ns; one that had none
    /// since the last look is not asked.
    fn note_waited(&mut self, had_ns: u64) -> u64 {
        if had_ns == 0 {
            return 0;
        }
        let Some(waited_ns) = self.worker.waited_ns() else { return 0 };
        waited_ns.saturating_sub(self.waited_ns.replace(waited_ns).unwrap_or(waited_ns))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Tenant {
    /// Of its allowance; below 0 where it is beyond.
    left_ns: i64,
    /// What its workers had of the processors since the last look.
    had_ns: u64,
    /// What they want from look to look.
    wanted_ns: u64,
    /// Whether it has workers.
    is_live: bool,
    outside: Outside,
}

impl Default for Tenant {
    fn default() -> Self {
        let outside = Outside::default();
        Self { left_ns: NEW_NS, had_ns: 0, wanted_ns: 0, is_live: true, outside }
    }
}

impl Tenant {
    /// Takes what it had out of its allowance, after it got this part of all. Of processors that
    /// were there for so long it cannot have had more.
    fn pay(&mut self, part_ns: u64, processors_ns: u64) {
        self.left_ns = self.left_ns.saturating_add(signed(part_ns)).min(FULL_NS);
        let had_ns = signed(self.had_ns.min(processors_ns));
        let least_ns = match self.outside {
            Outside::AtOnce => i64::MIN,
            Outside::After(_) => self.left_ns.min(-BEYOND_NS),
        };
        self.left_ns = self.left_ns.saturating_sub(had_ns).max(least_ns);
    }
}

/// What tenants of one group, with these weights, had and wanted of processors that were there for
/// so long: how their workers go from now on.
fn settle(
    tenants: &mut BTreeMap<Payer, &mut Tenant>,
    weights: &BTreeMap<Payer, u32>,
    processors_ns: u64,
) {
    let of_processors = |(part, whole): Part| processors_ns / whole * part;
    let missing =
        |tenant: &Tenant| u64::try_from(FULL_NS.saturating_sub(tenant.left_ns)).unwrap_or(0);
    // Those that have no workers take nothing from the others, and have as much among themselves.
    let allowed = [true, false].map(|is_live| {
        let of_them = tenants.iter().filter(|(_, tenant)| tenant.is_live == is_live);
        let missing = of_them.map(|(key, tenant)| (*key, missing(tenant))).collect();
        parts(&missing, weights, of_processors(ALLOWED))
    });
    for (key, part_ns) in allowed.into_iter().flatten() {
        if let Some(tenant) = tenants.get_mut(&key) {
            tenant.pay(part_ns, processors_ns);
        }
    }
    let beyond = tenants.iter().filter(|(_, tenant)| tenant.left_ns <= 0);
    let beyond = beyond.map(|(key, tenant)| (*key, tenant.wanted_ns)).collect();
    let weigh_as = parts(&beyond, weights, of_processors(WEIGHT));
    for (key, tenant) in tenants.iter_mut() {
        let after = |part_ns: &u64| Outside::After(levels(tenant.wanted_ns, *part_ns));
        tenant.outside = weigh_as.get(key).map_or(Outside::AtOnce, after);
    }
}

/// What each tenant may have of a room, in ns: by weight, and what one does not want is the
/// others'.
fn parts<K: Ord + Copy>(
    wanted: &BTreeMap<K, u64>,
    weights: &BTreeMap<K, u32>,
    mut room_ns: u64,
) -> BTreeMap<K, u64> {
    let weight = |tenant: K| u64::from(weights.get(&tenant).copied().unwrap_or(1));
    let mut by_need: Vec<(K, u64)> = wanted.iter().map(|(tenant, ns)| (*tenant, *ns)).collect();
    by_need
        .sort_by_key(|(tenant, ns)| (u128::from(*ns) << 32) / u128::from(weight(*tenant).max(1)));
    let mut weights_left: u64 = wanted.keys().copied().map(weight).sum();
    let mut parts = BTreeMap::new();
    for (tenant, wanted_ns) in by_need {
        let part_ns = u128::from(room_ns) * u128::from(weight(tenant));
        let part_ns = part_ns / u128::from(weights_left.max(1));
        let part_ns = u64::try_from(part_ns).unwrap_or(u64::MAX);
        parts.insert(tenant, part_ns);
        weights_left -= weight(tenant);
        room_ns -= wanted_ns.min(part_ns);
    }
    parts
}

/// By how many nice levels threads that want so much weigh as those that want this part of it: each
/// makes a thread lighter by a fifth (`sched_prio_to_weight` of Linux).
fn levels(wanted_ns: u64, mut part_ns: u64) -> i32 {
    let mut levels = 0;
    while part_ns < wanted_ns && levels < LOWEST {
        part_ns += part_ns / 4;
        levels += 1;
    }
    levels
}

fn signed(ns: u64) -> i64 {
    i64::try_from(ns).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks at one processor.
    const LOOK_NS: u64 = 100_000_000;
    /// What all may have at once in one.
    const ALLOWED_NS: u64 = LOOK_NS / ALLOWED.1 * ALLOWED.0;

    fn by_key<T: Copy>(each: &[(u32, T)]) -> BTreeMap<u32, T> {
        each.iter().copied().collect()
    }

    /// Tenants by what their workers had and wanted of the processor in each look.
    struct Tenants(BTreeMap<Payer, Tenant>);

    impl Tenants {
        fn new(number: u32) -> Self {
            let rested = Tenant { left_ns: FULL_NS, outside: Outside::AtOnce, ..Tenant::default() };
            Self((1..=number).map(|key| (Payer::User(key), rested)).collect())
        }

        fn look(&mut self, used: &[(u32, u64, u64)]) -> Vec<Outside> {
            self.look_weighted(used, &[])
        }

        fn look_weighted(
            &mut self,
            used: &[(u32, u64, u64)],
            weights: &[(u32, u32)],
        ) -> Vec<Outside> {
            for (key, had_ns, wanted_ns) in used {
                let tenant = self.0.get_mut(&Payer::User(*key)).unwrap();
                (tenant.had_ns, tenant.wanted_ns) = (*had_ns, *wanted_ns);
            }
            let mut all = self.0.iter_mut().map(|(key, tenant)| (*key, tenant)).collect();
            let weights = weights.iter().map(|(key, weight)| (Payer::User(*key), *weight));
            settle(&mut all, &weights.collect(), LOOK_NS);
            self.0.values().map(|tenant| tenant.outside).collect()
        }
    }

    #[test]
    fn who_uses_little_goes_first_and_so_does_a_program_that_starts() {
        let mut tenants = Tenants::new(1);
        assert_eq!(tenants.look(&[(1, 40_000_000, 40_000_000)]), [Outside::AtOnce]);
        for _ in 0..1_000 {
            assert_eq!(tenants.look(&[(1, ALLOWED_NS, 2 * ALLOWED_NS)]), [Outside::AtOnce]);
        }
    }

    #[test]
    fn in_the_long_run_nobody_has_more_at_once_than_its_allowance() {
        let mut tenants = Tenants::new(1);
        let (mut had_ns, mut is_first) = (0, true);
        for _ in 0..100_000 {
            // As much as there is while it goes first, and nothing while it does not.
            let had = if is_first { LOOK_NS } else { 0 };
            had_ns += had;
            is_first = tenants.look(&[(1, had, 16 * had)]) == [Outside::AtOnce];
        }
        let allowed_ns = 100_000 * ALLOWED_NS;
        assert!(had_ns < allowed_ns + 2 * LOOK_NS, "{had_ns} ns of {allowed_ns}");
        assert!(had_ns > allowed_ns / 10 * 9, "{had_ns} ns of {allowed_ns}");
    }

    #[test]
    fn who_is_beyond_weighs_as_half_a_thread_and_comes_back_soon() {
        let mut tenants = Tenants::new(1);
        let hog = |tenants: &mut Tenants, wanted_ns| tenants.look(&[(1, LOOK_NS, wanted_ns)]);
        // A half is within three levels and four: 1.25³ is 1.95.
        assert_eq!(hog(&mut tenants, LOOK_NS), [Outside::After(4)]);
        // 1.25¹⁵ is 28.4, and 1.25¹⁶ 35.5.
        assert_eq!(hog(&mut tenants, 16 * LOOK_NS), [Outside::After(16)]);
        assert_eq!(hog(&mut tenants, 10_000 * LOOK_NS), [Outside::After(LOWEST)]);
        // For as long as it goes on.
        (0..1_000).for_each(|_| assert_ne!(hog(&mut tenants, LOOK_NS), [Outside::AtOnce]));
        let until_first = (1..1_000).find(|_| tenants.look(&[(1, 0, 0)]) == [Outside::AtOnce]);
        assert!(until_first.is_some_and(|looks| looks < 130), "{until_first:?}");
    }

    #[test]
    fn what_one_does_not_use_of_an_allowance_the_others_have() {
        let mut tenants = Tenants::new(3);
        let use_of = |part: u64| [(1, 0, 0), (2, part, part), (3, part, part)];
        tenants.look(&use_of(49_000_000));
        for _ in 0..1_000 {
            assert_eq!(tenants.look(&use_of(ALLOWED_NS / 2 - 1)), [Outside::AtOnce; 3]);
        }
        // The levels of one that is beyond do not go by those that are not.
        let outside = tenants.look(&[(2, LOOK_NS, 16 * LOOK_NS), (3, 0, 0)]);
        assert_eq!(outside, [Outside::AtOnce, Outside::After(16), Outside::AtOnce]);
    }

    #[test]
    fn a_new_name_has_no_allowance_saved() {
        let mut tenants = Tenants([(Payer::User(1), Tenant::default())].into());
        assert_eq!(tenants.look(&[(1, 3_000_000, 3_000_000)]), [Outside::After(0)]);
        let again = (1..10).find(|_| tenants.look(&[(1, 0, 0)]) == [Outside::AtOnce]);
        assert!(again.is_some(), "it is within it in less than a second");
    }

    #[test]
    fn parts_follow_the_weights() {
        let weights = by_key(&[(1, 1), (2, 3)]);
        let of = |wanted: &[(u32, u64)]| parts(&by_key(wanted), &weights, 400);
        assert_eq!(of(&[(1, 1_000), (2, 1_000)]), by_key(&[(1, 100), (2, 300)]));
        assert_eq!(of(&[(1, 1_000), (2, 200)]), by_key(&[(1, 200), (2, 300)]));
        assert_eq!(of(&[(1, 0), (2, 1_000)]), by_key(&[(1, 100), (2, 400)]));
        let mut tenants = Tenants::new(2);
        let hogs = [(1, LOOK_NS, 8 * LOOK_NS), (2, LOOK_NS, 8 * LOOK_NS)];
        let weighted = |tenants: &mut Tenants| tenants.look_weighted(&hogs, &[(1, 1), (2, 3)]);
        assert_eq!(weighted(&mut tenants), [Outside::After(LOWEST), Outside::After(14)]);
    }
}
