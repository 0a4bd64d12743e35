//! Instances that wait for something of the cloud's are asked about together. A cloud that answers
//! slowly would else be asked by each of them, and answer the more slowly the more there are.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::super::Failure;

/// Nobody waits any longer who has not asked for so long.
const WAITS: Duration = Duration::from_secs(10);

/// The most that one question is about: a list of more makes a long address.
const TOGETHER_MAX: usize = 100;

/// What is known of those that wait, by whom it is of.
#[derive(Debug)]
pub(super) struct Survey<T> {
    /// An answer is as good as a new one for so long.
    fresh: Duration,
    inner: Mutex<Inner<T>>,
}

#[derive(Debug)]
struct Inner<T> {
    /// Who waits, and when it asked last.
    waiting: BTreeMap<String, Instant>,
    last: Option<Answer<T>>,
}

#[derive(Debug)]
struct Answer<T> {
    at: Instant,
    about: BTreeSet<String>,
    /// A failure is everybody's: a cloud that hangs is not asked once for each.
    found: Result<BTreeMap<String, T>, Failure>,
}

impl<T: Clone> Survey<T> {
    pub(super) fn new(fresh: Duration) -> Self {
        let inner = Inner { waiting: BTreeMap::new(), last: None };
        Self { fresh, inner: Mutex::new(inner) }
    }

    /// What was answered is not so any longer: somebody here has changed it.
    pub(super) fn forget(&self) {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).last = None;
    }

    /// What is known of `who`, by an answer that is fresh or by `ask`, which is asked about all
    /// that wait. Others wait for the answer meanwhile.
    pub(super) fn of(
        &self,
        who: &str,
        ask: impl FnOnce(&[String]) -> Result<BTreeMap<String, T>, Failure>,
    ) -> Result<Option<T>, Failure> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        inner.waiting.insert(who.to_owned(), now);
        let is_fresh = |last: &&Answer<T>| {
            now.saturating_duration_since(last.at) < self.fresh && last.about.contains(who)
        };
        if inner.last.as_ref().filter(is_fresh).is_none() {
            inner.waiting.retain(|_, at| now.saturating_duration_since(*at) < WAITS);
            let others = inner.waiting.keys().filter(|other| *other != who);
            let about: BTreeSet<String> =
                others.take(TOGETHER_MAX - 1).cloned().chain([who.to_owned()]).collect();
            let found = ask(&about.iter().cloned().collect::<Vec<_>>());
            inner.last = Some(Answer { at: Instant::now(), about, found });
        }
        match inner.last.as_ref().map(|last| &last.found) {
            Some(Ok(found)) => Ok(found.get(who).cloned()),
            Some(Err(failure)) => Err(failure.clone()),
            None => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn all_that_wait_are_asked_about_at_once_and_no_oftener_than_one() {
        let survey = Survey::new(Duration::from_secs(60));
        let asked = Cell::new(0);
        let ask = |about: &[String]| {
            asked.set(asked.get() + 1);
            Ok(about.iter().map(|who| (who.clone(), format!("{who} of {}", about.len()))).collect())
        };
        assert_eq!(survey.of("a", ask).unwrap().unwrap(), "a of 1");
        // Nobody asked about it.
        assert_eq!(survey.of("b", ask).unwrap().unwrap(), "b of 2");
        for _ in 0..5 {
            assert_eq!(survey.of("a", ask).unwrap().unwrap(), "a of 2");
            assert_eq!(survey.of("b", ask).unwrap().unwrap(), "b of 2");
        }
        assert_eq!(asked.get(), 2);
    }

    #[test]
    fn an_answer_grows_old_and_a_failure_is_everybodys() {
        let survey = Survey::<()>::new(Duration::ZERO);
        let asked = Cell::new(0);
        let none = |_: &[String]| {
            asked.set(asked.get() + 1);
            Ok(BTreeMap::new())
        };
        assert_eq!((survey.of("a", none).unwrap(), survey.of("a", none).unwrap()), (None, None));
        assert_eq!(asked.get(), 2, "nothing is fresh");
        let survey = Survey::<()>::new(Duration::from_secs(60));
        let fails = |_: &[String]| Err(Failure::passing("away"));
        survey.of("a", |_| Ok(BTreeMap::new())).unwrap();
        survey.of("b", fails).unwrap_err();
        assert_eq!(survey.of("a", |_| unreachable!()).unwrap_err(), Failure::passing("away"));
    }

    #[test]
    fn one_question_is_about_so_many_and_whoever_asks_is_among_them() {
        let survey = Survey::new(Duration::from_secs(60));
        for number in 0..3 * TOGETHER_MAX {
            let who = format!("z{number}");
            let ask = |about: &[String]| {
                assert!(about.len() <= TOGETHER_MAX, "{}", about.len());
                Ok(about.iter().map(|who| (who.clone(), ())).collect())
            };
            assert_eq!(survey.of(&who, ask).unwrap(), Some(()), "{who}");
        }
    }
}
