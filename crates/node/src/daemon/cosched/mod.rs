//! Coscheduling, GPU-centric (FairGV §3.2.3): who waits for the device runs when its result comes.
//!
//! A thread that waits for a result sleeps; when the result comes and other work has its processor,
//! the ordinary wake-up takes milliseconds, and the device waits for the thread's next command or
//! goes to somebody else. So when an interactive vGPU has the device, its waiting thread is helped,
//! by the best means that there is:
//!
//! - *boost*: shortly before the result comes the thread becomes real-time, until its first command
//!   or for [`watchdog::BOOST_LIMIT`]. The [`watchdog`] ends what nobody else ends, and a
//!   [`budget`] bounds what tenants can make of it.
//! - *slice*: the thread gets a short slice of its own, which is served sooner.
//! - *wake*: the thread is woken when the device switches to it, so that it queues for its
//!   processor while its kernel runs.
//!
//! The worker tells whose result is due ([`weft_gate::Due`]), the tenant which thread waits there
//! ([`weft_ring::Callers`]); [`tenant`] makes sure that it is a thread of that tenant. At most one
//! thread of a node is boosted at a time: results come one after the other, as the device works.
//!
//! A program in a virtual machine waits on a processor of that machine, which is a thread of QEMU:
//! that is the thread that is helped. It cannot make itself ordinary, so the worker tells when the
//! next call has come, and the boost is ended here.

mod ability;
mod budget;
mod tenant;
mod waiters;
mod watchdog;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::mpsc::{Receiver, TryRecvError, channel};

use weft_gate::{DaemonSide, Due, Telling};
use weft_ring::priority::{self, Class, Treatment};
use weft_ring::{AnswerTo, MemoryFile, Waking};

use self::ability::Ability;
pub(crate) use self::ability::serve_soon;
use self::budget::{Budget, TurnBudget};
use self::tenant::NotTheirs;
use self::watchdog::{BOOST_LIMIT, BOOST_PRIORITY, Boosted, Watchdog};
use crate::admin::{CoschedulingReport, DoctorCheck, Finding};
use crate::config::CoschedulingConfig;

pub(crate) use self::tenant::began_at;
pub(crate) use self::waiters::{Waiters, end_boosts};
pub(crate) use self::watchdog::run as run_watchdog;

/// Watchdogs that may die before boosting is given up.
const WATCHDOGS_MAX: u32 = 4;

/// What is done for a waiting thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Means {
    Off,
    Wake,
    Slice,
    Boost,
}

impl Means {
    fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Wake => "wake",
            Self::Slice => "slice",
            Self::Boost => "boost",
        }
    }
}

/// The watchdog, as far as it has come. It is started when the first thread is to be boosted.
#[derive(Debug)]
enum Guard {
    Absent,
    Starting(Receiver<anyhow::Result<Watchdog>>),
    Watching(Watchdog),
    /// There will be none.
    Refused(String),
}

/// The boost that is on.
#[derive(Debug)]
struct Boost {
    session: u32,
    boosted: Boosted,
    /// The thread as the tenant counts.
    claimed: u32,
    began_ns: u64,
    ran_before_ns: u64,
}

/// Why no thread was boosted; numbers and the log tell.
#[derive(Debug, thiserror::Error)]
enum NoBoost {
    #[error("nobody waits any more")]
    Answered,
    #[error(transparent)]
    Refused(#[from] NotTheirs),
    #[error("the bound on boosted time is reached")]
    Capped,
    #[error("the thread has arranged its own scheduling")]
    NotOrdinary,
    #[error(transparent)]
    System(#[from] std::io::Error),
}

/// The part of the driver that helps waiting threads.
#[derive(Debug)]
pub(crate) struct Coscheduler {
    wanted: CoschedulingConfig,
    ability: Ability,
    guard: Guard,
    node_page: MemoryFile,
    sessions: BTreeMap<u32, Waiters>,
    boost: Option<Boost>,
    budget: Budget,
    report: CoschedulingReport,
    watchdogs: u32,
}

impl Coscheduler {
    /// Of a node; `node_page` is where the driver sleeps.
    pub(crate) fn new(wanted: CoschedulingConfig, node_page: MemoryFile, now_ns: u64) -> Self {
        Self {
            wanted,
            ability: Ability::probe(),
            guard: Guard::Absent,
            node_page,
            sessions: BTreeMap::new(),
            boost: None,
            budget: Budget::new(now_ns),
            report: CoschedulingReport::default(),
            watchdogs: 0,
        }
    }

    /// A session begins; without waiters it is never helped.
    pub(crate) fn begin(&mut self, session: u32, waiters: Option<Waiters>, gate: &DaemonSide) {
        gate.set_telling(Telling::Nothing);
        if let Some(waiters) = waiters {
            waiters.callers.set_waking(Waking::Usual);
            self.sessions.insert(session, waiters);
        }
    }

    /// It has become known whom to help for a session that has begun, if nobody is yet.
    pub(crate) fn help(&mut self, session: u32, waiters: Waiters) {
        if let Entry::Vacant(place) = self.sessions.entry(session) {
            waiters.callers.set_waking(Waking::Usual);
            // An earlier daemon's mark.
            waiters.callers.set_boosted(0);
            place.insert(waiters);
        }
    }

    /// A session ended.
    pub(crate) fn end(&mut self, session: u32, now_ns: u64) {
        if self.boost.as_ref().is_some_and(|boost| boost.session == session) {
            self.end_boost(now_ns);
        }
        self.sessions.remove(&session);
    }

    /// A turn of the session begins.
    pub(crate) fn begin_turn(&mut self, session: u32, now_ns: u64, quantum_ns: u64) {
        if let Some(waiters) = self.sessions.get_mut(&session) {
            waiters.turn = TurnBudget::begin(now_ns, quantum_ns);
        }
    }

    /// The device switches to an interactive vGPU's session (FairGV, Algorithm 3).
    pub(crate) fn switch_in(&mut self, session: u32, gate: &DaemonSide, now_ns: u64) {
        if self.means_for(session, now_ns) != Means::Wake {
            // The others act when the result is due.
            return;
        }
        let contended_only = self.wanted == CoschedulingConfig::Auto;
        let (Some(waiters), Some(due)) = (self.sessions.get_mut(&session), gate.due()) else {
            return;
        };
        if !contended_only || waiters.is_contended(due.awaited, now_ns) {
            waiters.callers.wake(due.awaited);
            self.report.wakes += 1;
        }
    }

    /// Something changed in a session, perhaps that a result is due.
    pub(crate) fn observe(
        &mut self,
        session: u32,
        gate: &DaemonSide,
        is_interactive: bool,
        now_ns: u64,
    ) {
        self.settle(now_ns);
        let means = self.means();
        if means == Means::Off {
            return;
        }
        let own = self.means_for(session, now_ns);
        let Some(waiters) = self.sessions.get_mut(&session) else { return };
        let Some(due) = gate.due() else { return };
        let contended_only = self.wanted == CoschedulingConfig::Auto;
        let helped = is_interactive
            && own == means
            && (!contended_only || waiters.is_contended(due.awaited, now_ns));
        match means {
            Means::Boost => self.prepare_boost(session, gate, helped.then_some(due), now_ns),
            Means::Slice if helped => {
                if let Err(why) = waiters.slice(due.awaited) {
                    tracing::warn!(session, why, "threads get no slice: plain wake-ups from now");
                    self.ability.slice = Err(why);
                }
            }
            Means::Slice => waiters.unslice(),
            Means::Wake | Means::Off => {}
        }
    }

    fn prepare_boost(&mut self, session: u32, gate: &DaemonSide, due: Option<Due>, now_ns: u64) {
        let Some(waiters) = self.sessions.get_mut(&session) else { return };
        if due.is_some() != waiters.is_told {
            waiters.is_told = due.is_some();
            gate.set_telling(match (waiters.is_told, waiters.tenant.is_machine()) {
                (false, _) => Telling::Nothing,
                (true, false) => Telling::Soon,
                // A guest cannot make its processor ordinary.
                (true, true) => Telling::SoonAndNext,
            });
            waiters.callers.set_waking(match waiters.is_told {
                true => Waking::Prompt,
                false => Waking::Usual,
            });
        }
        let Some(due) = due.filter(|due| due.soon && waiters.last != Some(due.awaited)) else {
            return;
        };
        if !self.is_guarded() {
            return;
        }
        if let Some(waiters) = self.sessions.get_mut(&session) {
            waiters.last = Some(due.awaited);
            waiters.note_due(now_ns);
        }
        // One thread at a time: the earlier result has come by now.
        self.end_boost(now_ns);
        match self.begin_boost(session, due.awaited, now_ns) {
            Ok(()) => self.report.boosts += 1,
            Err(
                NoBoost::Answered | NoBoost::NotOrdinary | NoBoost::Refused(NotTheirs::Searched),
            ) => {}
            Err(NoBoost::Capped) => self.report.capped += 1,
            Err(NoBoost::Refused(why)) => {
                self.report.refused += 1;
                tracing::warn!(session, %why, "no boost");
            }
            Err(NoBoost::System(error)) => {
                tracing::warn!(session, %error, "boosting does not work");
                self.ability.boost = Err(error.to_string());
            }
        }
    }

    fn begin_boost(&mut self, session: u32, awaited: AnswerTo, now_ns: u64) -> Result<(), NoBoost> {
        let Guard::Watching(watchdog) = &self.guard else { return Err(NoBoost::Answered) };
        let Some(waiters) = self.sessions.get_mut(&session) else { return Err(NoBoost::Answered) };
        if !self.budget.allows(now_ns) || !waiters.turn.allows(now_ns) {
            return Err(NoBoost::Capped);
        }
        let claimed = waiters.callers.thread_of(awaited).ok_or(NoBoost::Answered)?;
        let pid = waiters.tenant.pid();
        let thread = waiters.tenant.thread(claimed)?;
        let boosted = Boosted { pid, thread: thread.id };
        let times = thread.times().ok_or(NoBoost::Answered)?;
        if Treatment::of(boosted.thread)?.class != Class::Normal {
            return Err(NoBoost::NotOrdinary);
        }
        watchdog.arm(boosted)?;
        waiters.callers.set_boosted(claimed);
        let ran_before_ns = times.ran_ns;
        self.boost = Some(Boost { session, boosted, claimed, began_ns: now_ns, ran_before_ns });
        if let Err(error) = priority::make_realtime(boosted.thread, BOOST_PRIORITY) {
            self.end_boost(now_ns);
            return Err(error.into());
        }
        let is_late = !waiters.callers.is_boosted(claimed)
            || waiters.callers.thread_of(awaited) != Some(claimed)
            || watchdog.has_ended();
        if is_late {
            // It has its result, or has ended the boost before it began.
            self.end_boost(now_ns);
            return Err(NoBoost::Answered);
        }
        Ok(())
    }

    /// Ends the boost if it has served its purpose or outlived its limit.
    pub(crate) fn settle(&mut self, now_ns: u64) {
        let Some(boost) = &self.boost else { return };
        let callers = self.sessions.get(&boost.session).map(|waiters| &waiters.callers);
        let used = callers.is_none_or(|callers| !callers.is_boosted(boost.claimed));
        let expired = u128::from(now_ns.saturating_sub(boost.began_ns)) > BOOST_LIMIT.as_nanos();
        let ended = match &self.guard {
            Guard::Watching(watchdog) => watchdog.has_ended(),
            Guard::Absent | Guard::Starting(_) | Guard::Refused(_) => true,
        };
        if used || expired || ended {
            self.end_boost(now_ns);
        }
    }

    fn end_boost(&mut self, _now_ns: u64) {
        let Some(boost) = self.boost.take() else { return };
        if boost.boosted.end() {
            self.report.ended_by_daemon += 1;
        }
        if let Guard::Watching(watchdog) = &self.guard {
            watchdog.disarm();
        }
        let Some(waiters) = self.sessions.get_mut(&boost.session) else { return };
        waiters.callers.clear_boosted(boost.claimed);
        let times = waiters.tenant.thread(boost.claimed).ok().and_then(|thread| thread.times());
        // Of a thread that is gone nobody knows; it ran no longer than its boost lasted.
        let ran_ns = times.map_or_else(limit_ns, |times| {
            times.ran_ns.saturating_sub(boost.ran_before_ns).min(limit_ns())
        });
        waiters.turn.spend(ran_ns);
        self.budget.spend(ran_ns);
        self.report.boosted_ns = self.report.boosted_ns.saturating_add(ran_ns);
    }

    /// When [`Self::settle`] must be called although nothing happens, in ns: the second line of
    /// defence behind the watchdog.
    pub(crate) fn deadline_ns(&self) -> Option<u64> {
        self.boost.as_ref().map(|boost| boost.began_ns + 2 * limit_ns())
    }

    /// Whether a watchdog watches; starts one if not, without waiting for it.
    fn is_guarded(&mut self) -> bool {
        if let Guard::Starting(started) = &self.guard {
            match started.try_recv() {
                Ok(Ok(watchdog)) => self.guard = Guard::Watching(watchdog),
                Ok(Err(error)) => self.guard = Guard::Refused(format!("{error:#}")),
                Err(TryRecvError::Empty) => return false,
                Err(TryRecvError::Disconnected) => {
                    self.guard = Guard::Refused("the watchdog's starter panicked".to_owned());
                }
            }
        }
        match &self.guard {
            Guard::Watching(watchdog) if watchdog.is_alive() => return true,
            Guard::Refused(_) | Guard::Starting(_) => return false,
            Guard::Watching(_) => {
                tracing::warn!("the watchdog of boosts has died: another one is started");
            }
            Guard::Absent => {}
        }
        self.guard = match (self.watchdogs < WATCHDOGS_MAX, self.node_page.try_clone()) {
            (true, Ok(node_page)) => start_watchdog(node_page),
            (true, Err(error)) => Guard::Refused(error.to_string()),
            (false, _) => Guard::Refused("its watchdogs keep dying".to_owned()),
        };
        self.watchdogs += 1;
        false
    }

    fn means(&self) -> Means {
        let boost = self.ability.boost.is_ok() && !matches!(self.guard, Guard::Refused(_));
        let slice = self.ability.slice.is_ok();
        match self.wanted {
            CoschedulingConfig::Off => Means::Off,
            CoschedulingConfig::Auto | CoschedulingConfig::Boost if boost => Means::Boost,
            CoschedulingConfig::Auto | CoschedulingConfig::Boost | CoschedulingConfig::Slice
                if slice =>
            {
                Means::Slice
            }
            CoschedulingConfig::Auto
            | CoschedulingConfig::Boost
            | CoschedulingConfig::Slice
            | CoschedulingConfig::Wake => Means::Wake,
        }
    }

    /// The means for one session. Where results come sooner than a boost is worth, `auto` wakes.
    fn means_for(&self, session: u32, now_ns: u64) -> Means {
        let means = self.means();
        let is_auto = self.wanted == CoschedulingConfig::Auto;
        let is_rapid = |waiters: &Waiters| waiters.is_rapid(now_ns);
        match self.sessions.get(&session).is_some_and(is_rapid) {
            true if is_auto && means == Means::Boost => Means::Wake,
            _ => means,
        }
    }

    /// What is done, how often, and why not more.
    pub(crate) fn report(&self) -> CoschedulingReport {
        let guard = match &self.guard {
            Guard::Watching(watchdog) => Some(watchdog),
            Guard::Absent | Guard::Starting(_) | Guard::Refused(_) => None,
        };
        CoschedulingReport {
            wanted: self.wanted.name().to_owned(),
            means: self.means().name().to_owned(),
            why: self.why(),
            ended_by_watchdog: guard.map_or(0, Watchdog::ended_total),
            watchdog: guard.map(Watchdog::pid),
            ..self.report.clone()
        }
    }

    /// Why it is not done by the best means.
    fn why(&self) -> Option<String> {
        let (wanted, means) = (self.wanted, self.means());
        let asks_for_boost = matches!(wanted, CoschedulingConfig::Auto | CoschedulingConfig::Boost);
        let asks_for_slice = asks_for_boost || wanted == CoschedulingConfig::Slice;
        let mut reasons = Vec::new();
        if asks_for_boost && means != Means::Boost {
            reasons.extend(self.ability.boost.as_ref().err().cloned());
            if let Guard::Refused(why) = &self.guard {
                reasons.push(format!("no watchdog: {why}"));
            }
        }
        if asks_for_slice && means == Means::Wake {
            reasons.extend(self.ability.slice.as_ref().err().cloned());
        }
        (!reasons.is_empty()).then(|| reasons.join("; "))
    }
}

impl Drop for Coscheduler {
    fn drop(&mut self) {
        self.end_boost(0);
    }
}

fn start_watchdog(node_page: MemoryFile) -> Guard {
    let (say, started) = channel();
    let starter = std::thread::Builder::new().name("watchdog".to_owned());
    let spawned = starter.spawn(move || {
        // Nobody listens when the daemon is ending: the watchdog ends with this value then.
        let _ = say.send(Watchdog::start(&node_page));
    });
    match spawned {
        Ok(_) => Guard::Starting(started),
        Err(error) => Guard::Refused(error.to_string()),
    }
}

fn limit_ns() -> u64 {
    u64::try_from(BOOST_LIMIT.as_nanos()).unwrap_or(u64::MAX)
}

/// What `weft doctor` says of coscheduling: of a running daemon's `report`, or of this process.
pub(crate) fn check(report: Option<&CoschedulingReport>) -> DoctorCheck {
    let subject = "coscheduling".to_owned();
    let Some(report) = report else {
        let ability = Ability::probe();
        let (finding, detail) = match (ability.boost, ability.slice) {
            (Ok(()), _) => (Finding::Good, "boost: real-time priority can be lent".to_owned()),
            (Err(why), Ok(())) => (Finding::Warning, format!("slice only: {why}")),
            (Err(why), Err(also)) => (Finding::Warning, format!("plain wake only: {why}; {also}")),
        };
        return DoctorCheck { subject, finding, detail };
    };
    match &report.why {
        Some(why) => {
            let detail = format!("{} instead of {}: {why}", report.means, report.wanted);
            DoctorCheck { subject, finding: Finding::Warning, detail }
        }
        None => {
            let detail = format!("{} ({} wanted)", report.means, report.wanted);
            DoctorCheck { subject, finding: Finding::Good, detail }
        }
    }
}
