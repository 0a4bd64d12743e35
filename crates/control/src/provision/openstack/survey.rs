//! Instances that wait for something of the cloud's are asked about together. A cloud that answers
//! slowly would else be asked by each of them, and answer the more slowly the more there are.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::super::Failure;

/// Nobody waits any longer who has not asked for so long.
const WAITS: Duration = Duration::from_secs(10);

/// The most that one question is about: a list of more makes a long address.
const TOGETHER_MAX: usize = 50;

/// What is known of those that wait, by whom it is of.
#[derive(Debug)]
pub(super) struct Survey<T> {
    /// An answer is as good as a new one for so long.
    fresh: Duration,
    inner: Mutex<Inner<T>>,
}

#[derive(Debug)]
struct Inner<T> {
    waiting: BTreeMap<String, Waiting<T>>,
    /// The last failure is of those that waited for it: a cloud that hangs is not asked once for
    /// each of them, and whoever tries again later asks anew.
    failed: Option<(Instant, Failure)>,
}

#[derive(Debug)]
struct Waiting<T> {
    /// When it asked last.
    asked: Instant,
    /// What was answered last, and when.
    answer: Option<(Instant, Option<T>)>,
}

impl<T: Clone> Survey<T> {
    pub(super) fn new(fresh: Duration) -> Self {
        let inner = Inner { waiting: BTreeMap::new(), failed: None };
        Self { fresh, inner: Mutex::new(inner) }
    }

    fn lock(&self) -> MutexGuard<'_, Inner<T>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was answered of `who` is not so any longer: somebody here has changed it.
    pub(super) fn forget(&self, who: &str) {
        if let Some(one) = self.lock().waiting.get_mut(who) {
            one.answer = None;
        }
    }

    /// What is known of `who`, by an answer that is fresh or by `ask`, which is asked about others
    /// that wait, too. They wait for it meanwhile.
    pub(super) fn of(
        &self,
        who: &str,
        ask: impl Fn(&[String]) -> Result<BTreeMap<String, T>, Failure>,
    ) -> Result<Option<T>, Failure> {
        let came = Instant::now();
        let mut inner = self.lock();
        let now = Instant::now();
        let fresh = Waiting { asked: now, answer: None };
        let one = inner.waiting.entry(who.to_owned()).or_insert(fresh);
        one.asked = now;
        if let Some((at, found)) = &one.answer
            && now.saturating_duration_since(*at) < self.fresh
        {
            return Ok(found.clone());
        }
        if let Some((at, failure)) = &inner.failed
            && *at >= came
        {
            return Err(failure.clone());
        }
        let about = inner.chosen(who, now);
        let mut found = ask(&about);
        let mut about = about.as_slice();
        if about.len() > 1 && found.as_ref().is_err_and(|failure| failure.is_permanent) {
            // What is wrong may be somebody else's.
            about = &about[..1];
            found = ask(about);
        }
        let at = Instant::now();
        let mut found = found.inspect_err(|failure| {
            inner.failed = Some((at, failure.clone())).filter(|_| !failure.is_permanent);
        })?;
        let mut of_who = None;
        for id in about {
            let one = found.remove(id);
            if id == who {
                of_who.clone_from(&one);
            }
            if let Some(waiting) = inner.waiting.get_mut(id) {
                waiting.answer = Some((at, one));
            }
        }
        Ok(of_who)
    }
}

impl<T> Inner<T> {
    /// `who`, and of those that wait those whose answers are the oldest.
    fn chosen(&mut self, who: &str, now: Instant) -> Vec<String> {
        self.waiting.retain(|_, one| now.saturating_duration_since(one.asked) < WAITS);
        let others = self.waiting.iter().filter(|(id, _)| *id != who);
        let answered = |one: &Waiting<T>| one.answer.as_ref().map(|(at, _)| *at);
        let mut others: Vec<_> = others.map(|(id, one)| (answered(one), id)).collect();
        others.sort();
        let others = others.into_iter().take(TOGETHER_MAX - 1).map(|(_, id)| id.clone());
        [who.to_owned()].into_iter().chain(others).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn so_many_that_wait_cost_one_question_more_of_them_no_more_than_they_must() {
        let survey = Survey::new(Duration::ZERO);
        let asked = Cell::new(0);
        let ask = |about: &[String]| {
            assert!(about.len() <= TOGETHER_MAX, "{}", about.len());
            asked.set(asked.get() + 1);
            Ok(about.iter().map(|id| (id.clone(), id.clone())).collect())
        };
        let all: Vec<String> = (0..3 * TOGETHER_MAX).map(|number| format!("i{number}")).collect();
        for id in &all {
            assert_eq!(survey.of(id, ask).unwrap().as_ref(), Some(id));
        }
        // All wait now, and what was answered of them is old.
        let survey = Survey { fresh: LONG, ..survey };
        all.iter().for_each(|id| survey.forget(id));
        asked.set(0);
        for id in all.iter().chain(&all) {
            assert_eq!(survey.of(id, ask).unwrap().as_ref(), Some(id));
        }
        assert_eq!(asked.get(), 3);
        // Of one that was changed here it is asked anew, and of no other.
        survey.forget("i7");
        all.iter().for_each(|id| drop(survey.of(id, ask).unwrap()));
        assert_eq!(asked.get(), 4);
    }

    #[test]
    fn an_answer_grows_old_and_who_is_not_there_is_not_asked_about_all_the_time() {
        let asked = Cell::new(0);
        let none = |_: &[String]| {
            asked.set(asked.get() + 1);
            Ok(BTreeMap::new())
        };
        for (fresh, questions) in [(Duration::ZERO, 2), (LONG, 1)] {
            asked.set(0);
            let survey = Survey::<()>::new(fresh);
            assert_eq!(
                (survey.of("a", none).unwrap(), survey.of("a", none).unwrap()),
                (None, None)
            );
            assert_eq!(asked.get(), questions);
        }
    }

    /// Whoever tries again has another answer, and what is refused for good is asked for one alone.
    #[test]
    fn a_failure_is_of_those_that_waited_for_it() {
        let survey = Survey::<()>::new(LONG);
        survey.of("a", |_| Err(Failure::passing("away"))).unwrap_err();
        assert_eq!(survey.of("a", |_| Ok(BTreeMap::from([("a".into(), ())]))).unwrap(), Some(()));
        let survey = Survey::new(LONG);
        let refused = |about: &[String]| match about {
            [one] => Ok(BTreeMap::from([(one.clone(), ())])),
            _ => Err(Failure::permanent("one of them")),
        };
        assert_eq!(survey.of("a", refused).unwrap(), Some(()));
        assert_eq!(survey.of("b", refused).unwrap(), Some(()));
        let failure = survey.of("c", |_| Err(Failure::permanent("it"))).unwrap_err();
        assert_eq!(failure, Failure::permanent("it"));
    }
}
