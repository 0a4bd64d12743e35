//! Threads that carry out what is planned, instance by instance, until there is nothing to do.
//!
//! An instance is in the hands of one thread at a time. A step that fails is tried again later and
//! later; while an instance is made, only so often ([`crate::patience`]), and then it is undone.
//! Undoing never gives up.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use weft_api::v1::{Event, EventKind};

use crate::clock;
use crate::execute::{Executed, Outcome, World};
use crate::news::News;
use crate::patience::{PAUSE_MAX, Tries, Verdict};
use crate::plan::{self, Step};
use crate::provision::{Failure, Notice};
use crate::store::{InstanceRow, StoreError, Wanted};

/// The step of events that tell what a removal means for the project's quota.
pub const QUOTA: &str = "quota";

/// What such an event says.
pub const GIVEN_BACK: &str = "the project's quota is given back; the GPUs stay taken";

/// Works off what is to be done.
#[derive(Debug)]
pub struct Engine {
    world: World,
    queue: Mutex<Queue>,
    /// Where the thread waits that only removes, and where the others do: one of each is enough for
    /// an instance, and sixteen that wake would take the processors from the VM that boots.
    remover: Condvar,
    others: Condvar,
    /// A thread is done with something.
    done: Condvar,
    news: News,
}

/// What is to be done about an instance. One thread does nothing but remove: a cloud that takes a
/// minute to make each VM keeps nobody from taking access away. The others do either by turns:
/// however many removals wait for who does not answer, something is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    Remove,
    Make,
}

/// What is due, by time and then in order.
type Due = BTreeMap<(Instant, u64), String>;

#[derive(Debug, Clone, Default)]
struct Queue {
    /// Removals that are due, and the rest.
    removals: Due,
    others: Due,
    number: u64,
    /// Where each instance that is due stands.
    at: BTreeMap<String, (Work, (Instant, u64))>,
    /// Those that are removed.
    removed: BTreeSet<String>,
    /// In a thread's hands.
    busy: BTreeSet<String>,
    /// Those of them that are to be looked at again.
    again: BTreeSet<String>,
    /// Failed attempts at the step that an instance is at.
    tries: BTreeMap<String, Tries>,
    /// Nothing more is begun.
    has_stopped: bool,
}

impl Queue {
    /// An instance is looked at then, or earlier.
    fn push(&mut self, instance: &str, when: Instant) {
        let is_removed = self.removed.contains(instance);
        let work = if is_removed { Work::Remove } else { Work::Make };
        let mut when = when;
        if let Some((known, place)) = self.at.get(instance).copied() {
            if known == work && place.0 <= when {
                return;
            }
            when = when.min(place.0);
            self.due(known).remove(&place);
        }
        self.number += 1;
        let place = (when, self.number);
        self.due(work).insert(place, instance.to_owned());
        self.at.insert(instance.to_owned(), (work, place));
    }

    fn due(&mut self, work: Work) -> &mut Due {
        match work {
            Work::Remove => &mut self.removals,
            Work::Make => &mut self.others,
        }
    }

    /// One that is due and of one of these works, or when the next one is.
    fn pop(&mut self, works: &[Work], now: Instant) -> Result<String, Option<Instant>> {
        if self.has_stopped {
            return Err(None);
        }
        let mut next: Option<Instant> = None;
        for work in works {
            let Some(first) = self.due(*work).first_entry() else { continue };
            let at = first.key().0;
            if at <= now {
                let instance = first.remove();
                self.at.remove(&instance);
                self.busy.insert(instance.clone());
                return Ok(instance);
            }
            next = Some(next.map_or(at, |next| next.min(at)));
        }
        Err(next)
    }
}

impl Engine {
    /// Starts so many threads.
    ///
    /// # Errors
    /// The system's.
    pub fn start(world: World, threads: usize) -> std::io::Result<Arc<Self>> {
        let [remover, others, done] = std::array::from_fn(|_| Condvar::new());
        let (queue, news) = (Mutex::default(), News::default());
        let engine = Arc::new(Self { world, queue, remover, others, done, news });
        let told = Arc::downgrade(&engine);
        let notice = move |instance: &str| {
            if let Some(engine) = told.upgrade() {
                engine.hurry(instance);
            }
        };
        engine.world.provisioner.notify(Notice::new(notice));
        for number in 0..threads {
            let engine = Arc::clone(&engine);
            let thread = thread::Builder::new().name(format!("engine-{number}"));
            let is_kept = number == 0 && threads > 1;
            thread.spawn(move || {
                let mut works = [Work::Remove, Work::Make];
                let count = if is_kept { 1 } else { works.len() };
                loop {
                    engine.work(&works[..count]);
                    works[..count].reverse();
                }
            })?;
        }
        Ok(engine)
    }

    /// The world that it works on.
    #[must_use]
    pub fn world(&self) -> &World {
        &self.world
    }

    /// Rings when nothing is left to be done about an instance.
    #[must_use]
    pub fn news(&self) -> &News {
        &self.news
    }

    /// Something is to be done about an instance.
    pub fn kick(&self, instance: &str) {
        self.look_now(&mut self.lock(), instance);
    }

    /// An instance is to be removed.
    pub fn remove(&self, instance: &str) {
        let mut queue = self.lock();
        queue.removed.insert(instance.to_owned());
        self.look_now(&mut queue, instance);
    }

    /// Somebody asks again for what is known already: it is looked at, unless it failed and waits
    /// for its pause.
    pub fn remind(&self, instance: &str) {
        let mut queue = self.lock();
        if !queue.tries.contains_key(instance) {
            self.look_now(&mut queue, instance);
        }
    }

    /// Something came of itself that an instance may be waiting for. One that is tried again after
    /// a failure waits for its pause all the same.
    fn hurry(&self, instance: &str) {
        let mut queue = self.lock();
        let waits = queue.at.contains_key(instance) && !queue.tries.contains_key(instance);
        if waits || queue.busy.contains(instance) {
            self.look_now(&mut queue, instance);
        }
    }

    fn look_now(&self, queue: &mut Queue, instance: &str) {
        if queue.busy.contains(instance) {
            queue.again.insert(instance.to_owned());
        } else {
            queue.push(instance, Instant::now());
            self.wake();
        }
    }

    /// Something is due, or will be.
    fn wake(&self) {
        self.remover.notify_one();
        self.others.notify_one();
    }

    /// Begins nothing more, and waits for what is being done, for so long at most; whether all of
    /// it is done.
    pub fn stop(&self, limit: Duration) -> bool {
        let mut queue = self.lock();
        queue.has_stopped = true;
        let is_busy = |queue: &mut Queue| !queue.busy.is_empty();
        let waited = self.done.wait_timeout_while(queue, limit, is_busy);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for an instance and does what it can about it.
    fn work(&self, works: &[Work]) {
        let mut queue = self.lock();
        let same = if works.contains(&Work::Make) { &self.others } else { &self.remover };
        let instance = loop {
            match queue.pop(works, Instant::now()) {
                Ok(instance) => break instance,
                Err(next) => {
                    let wait = next.map_or(PAUSE_MAX, |at| at.duration_since(Instant::now()));
                    let waited = same.wait_timeout(queue, wait);
                    queue = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
            }
        };
        if !(queue.removals.is_empty() && queue.others.is_empty()) {
            // What this thread would have waited for somebody else waits for.
            same.notify_one();
        }
        drop(queue);
        let later = self.advance(&instance);
        if later.is_none() {
            self.news.tell(&instance);
        }
        let mut queue = self.lock();
        queue.busy.remove(&instance);
        if queue.again.remove(&instance) {
            queue.push(&instance, Instant::now());
            self.wake();
        } else if let Some(pause) = later {
            queue.push(&instance, Instant::now() + pause);
            self.wake();
        } else {
            queue.removed.remove(&instance);
        }
        self.done.notify_all();
    }

    /// Does step after step; when to go on, if there is more.
    fn advance(&self, id: &str) -> Option<Duration> {
        loop {
            let instance = match self.world.store.instance(id) {
                Ok(Some(instance)) if instance.ended_ms.is_none() => instance,
                Ok(_) => return None,
                Err(error) => {
                    tracing::error!(instance = id, %error, "the store cannot be read");
                    return Some(PAUSE_MAX);
                }
            };
            if instance.wanted == Wanted::Absent {
                self.lock().removed.insert(id.to_owned());
            }
            let steps = instance.plan();
            if steps.is_empty() {
                self.lock().tries.remove(id);
                return None;
            }
            if self.lock().has_stopped {
                return None;
            }
            let (executed, beside) = self.attempt(&instance, plan::together(&steps));
            let Executed { step, outcome, advanced } = executed;
            if advanced {
                self.lock().tries.remove(id);
            }
            // What failed beside a step that was done is not asked again at once: where a node
            // hangs, that is as long again.
            let (step, outcome, beside) = match (outcome, beside.split_first()) {
                (Outcome::Done, Some(((step, failure), rest))) => {
                    (*step, Outcome::Failed(failure.clone()), rest.to_vec())
                }
                (outcome, _) => (step, outcome, beside),
            };
            match outcome {
                Outcome::Done => tracing::debug!(instance = id, step = step.name(), "done"),
                Outcome::NotYet(pause) => return Some(pause),
                Outcome::Failed(failure) => match self.failed(&instance, step, &failure, &beside) {
                    Ok(None) => {}
                    Ok(Some(pause)) => return Some(pause),
                    Err(error) => {
                        tracing::error!(instance = id, %error, "the store cannot be written");
                        return Some(PAUSE_MAX);
                    }
                },
            }
        }
    }

    /// Carries out steps that are kept together, and of a removal at the same time those that do
    /// not wait for it: an endpoint that hangs keeps no node from ending sessions. What failed
    /// besides comes with it.
    fn attempt(&self, instance: &InstanceRow, steps: &[Step]) -> (Executed, Vec<(Step, Failure)>) {
        let beside = steps.first().and_then(|step| plan::beside(*step, instance.marks));
        let beside = beside.filter(|_| instance.wanted == Wanted::Absent);
        let ([Step::Unrule], Some(beside)) = (steps, beside) else {
            let executed = self.world.execute(instance, steps);
            let has_failed = matches!(executed.outcome, Outcome::Failed(_));
            let next = beside.filter(|_| has_failed);
            return (executed, next.map_or_else(Vec::new, |next| self.chain(instance, next)));
        };
        thread::scope(|scope| {
            let other = scope.spawn(|| self.chain(instance, beside));
            let executed = self.world.execute(instance, steps);
            (executed, other.join().unwrap_or_default())
        })
    }

    /// Carries out a step of a removal and, if it fails, what is done all the same; what failed.
    fn chain(&self, instance: &InstanceRow, step: Step) -> Vec<(Step, Failure)> {
        let mut failed = Vec::new();
        let mut next = Some(step);
        while let Some(step) = next.take() {
            if let Outcome::Failed(failure) = self.world.execute(instance, &[step]).outcome {
                failed.push((step, failure));
                next = plan::beside(step, instance.marks);
            }
        }
        failed
    }

    /// What to do about a failure: wait, or go on to undo.
    fn failed(
        &self,
        instance: &InstanceRow,
        step: Step,
        failure: &Failure,
        beside: &[(Step, Failure)],
    ) -> Result<Option<Duration>, StoreError> {
        let is_making = instance.wanted == Wanted::Present;
        let (attempts, verdict, is_long) = {
            let (mut queue, now) = (self.lock(), Instant::now());
            let tries = queue.tries.entry(instance.id.clone()).or_default();
            let verdict = tries.failed(failure, is_making, now);
            (tries.attempts, verdict, tries.are_long(now))
        };
        let gives_up = matches!(verdict, Verdict::GiveUp(_));
        let kind = if gives_up { EventKind::Failed } else { EventKind::Retry };
        let (words, name) = (&failure.words, step.name());
        tracing::warn!(instance = instance.id, step = name, attempts, gives_up, why = words);
        // A step that is tried for days does not fill the disk.
        if gives_up || attempts.is_power_of_two() {
            let beside = beside.iter().map(|(step, failure)| (step.name(), &failure.words));
            for (step, words) in std::iter::once((name, words)).chain(beside) {
                let (at_ms, step, detail) = (clock::now_ms(), step.to_owned(), words.clone());
                let event = Event { at_ms, step, kind, took_us: 0, detail: Some(detail) };
                self.world.store.tell(&instance.id, &event)?;
            }
        }
        if !is_making && is_long {
            self.settle_quota(instance)?;
        }
        match verdict {
            Verdict::Again(pause) => Ok(Some(pause)),
            Verdict::GiveUp(why) => {
                self.lock().tries.remove(&instance.id);
                let why = format!("{name}: {why}");
                self.world.store.renounce(&instance.id, Some(&why), None)?;
                Ok(None)
            }
        }
    }

    /// The project has its quota back from an instance that cannot be removed, once somebody has
    /// said that it has ended: else it would have more than its quota for as long as it likes.
    fn settle_quota(&self, instance: &InstanceRow) -> Result<(), StoreError> {
        let store = &self.world.store;
        // A step may have been done beside the one that fails.
        let Some(now) = store.instance(&instance.id)? else { return Ok(()) };
        if !self.world.has_ended(&now) {
            let found = store.operation(&now.operation)?;
            let is_given = |event: &Event| event.step == QUOTA;
            // What has its quota back is not asked about again.
            if found.is_none_or(|(_, events)| events.iter().any(is_given)) {
                return Ok(());
            }
            if !self.world.is_cut_off(&now) {
                return Ok(());
            }
        }
        let (at_ms, step, detail) = (clock::now_ms(), QUOTA.to_owned(), GIVEN_BACK.to_owned());
        let kind = EventKind::Done;
        let event = Event { at_ms, step, kind, took_us: 0, detail: Some(detail) };
        store.give_quota_back(&instance.id, &event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_only_removes_and_others_do_either_by_turns() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        let (kept, others) = ([Work::Remove], [Work::Remove, Work::Make]);
        let later = now + Duration::from_secs(1);
        queue.push("made", now);
        queue.push("ended", later);
        assert_eq!(queue.pop(&kept, now), Err(None));
        // What is removed from here on stands where it stood.
        queue.removed.insert("ended".to_owned());
        queue.push("ended", now);
        queue.push("ended", later);
        let mut both = queue.clone();
        assert_eq!(both.pop(&[Work::Make, Work::Remove], now).as_deref(), Ok("made"));
        assert_eq!(queue.pop(&others, now).as_deref(), Ok("ended"), "though it came later");
        queue.push("ended", later);
        assert_eq!(queue.pop(&kept, now), Err(Some(later)));
        assert_eq!(queue.pop(&others, now).as_deref(), Ok("made"));
        assert_eq!(queue.pop(&others, now), Err(Some(later)));
        assert_eq!(queue.pop(&kept, later).as_deref(), Ok("ended"));
        assert!(queue.at.is_empty() && queue.removals.is_empty() && queue.others.is_empty());
    }
}
