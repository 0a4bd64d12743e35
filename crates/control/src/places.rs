//! Places for requests that are being served: however many a project takes, others have some left.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use weft_api::v1::{Kind, Problem};

/// Requests that are answered at once; more are told to come back.
pub(crate) const AT_ONCE_MAX: usize = 256;

/// Who takes places: a project, or all administrators, who have none.
type Taker = Option<String>;

/// The places, and how many of them everybody has.
#[derive(Debug)]
pub(crate) struct Places {
    most: usize,
    taken: Mutex<BTreeMap<Taker, usize>>,
}

/// One that is taken, until this is dropped.
#[derive(Debug)]
pub(crate) struct Place<'a> {
    of: &'a Places,
    taker: Taker,
}

impl Places {
    /// So many.
    pub(crate) fn new(most: usize) -> Self {
        Self { most, taken: Mutex::default() }
    }

    /// How many there are.
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    /// How many are taken.
    pub(crate) fn taken(&self) -> usize {
        self.lock().values().sum()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Taker, usize>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes one for a project. As many as it has stay free: whoever takes all they can, the next
    /// one has a place.
    ///
    /// # Errors
    /// That it has its part, or that there is none left.
    pub(crate) fn take(&self, project: Option<&str>) -> Result<Place<'_>, Problem> {
        let most = self.most;
        let taker = project.map(str::to_owned);
        let mut taken = self.lock();
        let free = most.saturating_sub(taken.values().sum());
        let own = taken.get(&taker).copied().unwrap_or_default();
        if free == 0 {
            return Err(busy(most));
        }
        if own > 0 && own >= free {
            let who = match project {
                Some(project) => format!("project {project} has"),
                None => "administrators have".to_owned(),
            };
            let words = format!(
                "{who} {own} of the {most} requests that are answered at once, and the {free} that \
                 are left are for others"
            );
            let hint = "try again when some of them were answered";
            return Err(Problem::new(Kind::Busy, words).hint(hint));
        }
        taken.insert(taker.clone(), own + 1);
        Ok(Place { of: self, taker })
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut taken = self.of.lock();
        let left = taken.get(&self.taker).map_or(0, |own| own.saturating_sub(1));
        if left == 0 {
            taken.remove(&self.taker);
        } else {
            taken.insert(self.taker.clone(), left);
        }
    }
}

/// Where no place is free.
pub(crate) fn busy(most: usize) -> Problem {
    let words = format!("{most} requests are being answered");
    Problem::new(Kind::Busy, words).hint("try again in a moment")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All that somebody gets.
    fn all<'a>(places: &'a Places, project: Option<&str>) -> Vec<Place<'a>> {
        std::iter::from_fn(|| places.take(project).ok()).collect()
    }

    #[test]
    fn whoever_takes_all_places_leaves_some_for_the_next_one() {
        let places = Places::new(16);
        let held = ["a", "b", "c"].map(|project| all(&places, Some(project)));
        assert_eq!(held.each_ref().map(Vec::len), [8, 4, 2]);
        let refused = places.take(Some("a")).unwrap_err();
        let words = "project a has 8 of the 16 requests that are answered at once, and the 2 that";
        assert!(refused.kind == Kind::Busy && refused.detail.starts_with(words), "{refused}");
        let administrators = all(&places, None);
        assert_eq!((administrators.len(), places.taken()), (1, 15));
        let words = places.take(None).unwrap_err().detail;
        assert!(words.starts_with("administrators have 1 of the 16"), "{words}");
        let last = places.take(Some("d")).unwrap();
        // Without a place there is none, also for who has none yet.
        assert_eq!(places.take(Some("e")).unwrap_err().detail, "16 requests are being answered");
        drop((held, administrators, last));
        assert!(places.lock().is_empty());
    }

    #[test]
    fn a_place_that_was_given_back_may_be_taken_again() {
        let places = Places::new(4);
        let mut held = all(&places, Some("a"));
        assert_eq!(held.len(), 2);
        held.pop();
        held.push(places.take(Some("a")).unwrap());
        places.take(Some("a")).unwrap_err();
        assert_eq!(places.taken(), 2);
    }
}
