//! Sessions that are to give memory: what each was told, and until when it has time.
//!
//! A session has its time to stand still from the first order on, whoever it is that waits and
//! however often that changes, and time to save from when it stands, or saves what an earlier order
//! was about. What it saves gives it more, as much as that takes at the least rate. Only who has
//! stood still and owes nothing begins anew. Those that save at once share a disk, and so its rate.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Who stands still has saved something within this time at least, or is ended.
const SAVE_LIMIT: Duration = Duration::from_secs(60);

/// The least rate at which memory is moved, in bytes a second: a tenth of what one disk writes.
const LEAST_RATE: u64 = 8 << 20;

/// What could not be saved is tried again after this time.
const SAVE_AGAIN: Duration = Duration::from_secs(1);

/// It is told again after this time, however many wait for it and however often they look.
const TELL_AGAIN: Duration = Duration::from_millis(20);

/// What a session that owes was told.
#[derive(Debug, Clone, Copy)]
pub(super) struct Due {
    /// It stands still once for each number.
    pub(super) number: u64,
    /// It is ended then.
    pub(super) until: Instant,
    /// It has stood still and was told what it owes.
    pub(super) stood: bool,
    sent: Option<Instant>,
    /// Its save failed: it is to stand still again then.
    again: Option<Instant>,
}

/// What is to be done about a session that owes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Pressed {
    /// It is told to stand still, with this number.
    pub(super) tells: Option<u64>,
    /// It is ended.
    pub(super) ends: bool,
}

/// All sessions that were told to stand still and have not settled what they owe.
#[derive(Debug)]
pub(super) struct Dues {
    each: BTreeMap<u32, Due>,
    next: u64,
    save_limit: Duration,
    /// What a part takes at the least rate.
    part_time: Duration,
}

impl Dues {
    /// No earlier daemon's orders have numbers from `first_number` on. Of a session's memory so
    /// many bytes are saved at once, before which nobody hears of any, and perhaps behind others'
    /// kernels, which may take `kernels`.
    pub(super) fn new(first_number: u64, part_bytes: u64, kernels: Duration) -> Self {
        let part_time = time_to_move(part_bytes);
        let save_limit = SAVE_LIMIT.max(kernels).max(2 * part_time);
        Self { each: BTreeMap::new(), next: first_number, save_limit, part_time }
    }

    /// How long nothing of a session's memory may move, in either direction.
    pub(super) fn limit(&self) -> Duration {
        self.save_limit
    }

    pub(super) fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    #[cfg(test)]
    pub(super) fn of(&self, session: u32) -> Option<&Due> {
        self.each.get(&session)
    }

    /// Somebody waits for a session that owes: unless it was told so, it has time until then.
    pub(super) fn press(&mut self, session: u32, now: Instant, until: Instant) -> Pressed {
        let due = self.told(session, until);
        let ends = now >= self.ends_at(session, &due);
        let until = if ends { now + self.save_limit } else { due.until };
        let is_again = due.again.is_some_and(|again| now >= again);
        let number = if is_again { self.number() } else { due.number };
        let again = if is_again { None } else { due.again };
        let is_silent = |sent| now.duration_since(sent) >= TELL_AGAIN;
        let tells = is_again || due.sent.is_none_or(is_silent);
        let sent = if tells { Some(now) } else { due.sent };
        // Ended once: its end is noticed by its thread.
        self.each.insert(session, Due { number, until, sent, again, ..due });
        Pressed { tells: tells.then_some(number), ends }
    }

    /// How many others stand still to save.
    fn save_beside(&self, session: u32) -> u32 {
        let others = self.each.iter().filter(|(other, due)| **other != session && due.stood);
        u32::try_from(others.count()).unwrap_or(u32::MAX)
    }

    /// When a session is ended: each other one that stands may save a part meanwhile.
    fn ends_at(&self, session: u32, due: &Due) -> Instant {
        let beside = if due.stood { self.save_beside(session) } else { 0 };
        due.until + self.part_time.saturating_mul(beside)
    }

    fn told(&mut self, session: u32, until: Instant) -> Due {
        if let Some(due) = self.each.get(&session) {
            return *due;
        }
        Due { number: self.number(), until, stood: false, sent: None, again: None }
    }

    /// A session stands still and is told what it owes: it has time to save from the first time on.
    pub(super) fn stand(&mut self, session: u32, now: Instant) {
        let due = self.told(session, now);
        let until = if due.stood { due.until } else { now + self.save_limit };
        self.each.insert(session, Due { until, stood: true, ..due });
    }

    /// A session has saved so many bytes of what it owes, or could not save any.
    pub(super) fn save(&mut self, session: u32, now: Instant, bytes: u64) {
        let sharing = self.save_beside(session).saturating_add(1);
        let Some(due) = self.each.get_mut(&session) else { return };
        if bytes == 0 {
            if due.stood {
                due.again.get_or_insert(now + SAVE_AGAIN);
            }
            return;
        }
        let most = now + self.save_limit;
        let more = time_to_move(bytes).saturating_mul(sharing);
        if due.stood {
            due.until += more.min(most.saturating_duration_since(due.until));
        } else {
            // It was told to by an order before this one, and hears of this one when that is done.
            (due.stood, due.until) = (true, most);
        }
        due.again = None;
    }

    /// A session that was bringing its own memory is done with it: it has time until then.
    pub(super) fn end_bringing(&mut self, session: u32, until: Instant) {
        if let Some(due) = self.each.get_mut(&session).filter(|due| !due.stood) {
            due.until = due.until.min(until);
        }
    }

    /// A session that brings its own memory has so much more time for that.
    pub(super) fn bring(&mut self, session: u32, time: Duration) {
        if let Some(due) = self.each.get_mut(&session).filter(|due| !due.stood) {
            due.until += time;
        }
    }

    /// A session could not stand still for so long: it loaded a module.
    pub(super) fn extend(&mut self, session: u32, time: Duration) {
        if let Some(due) = self.each.get_mut(&session) {
            due.until += time;
        }
    }

    /// A session owes nothing, and has saved so many bytes: all that it owed, or what it was told
    /// to before others waited no longer.
    pub(super) fn pay(&mut self, session: u32, bytes: u64) {
        self.each.retain(|own, due| *own != session || (!due.stood && bytes == 0));
    }

    /// A session has stood still and owes nothing, or is over.
    pub(super) fn settle(&mut self, session: u32) {
        self.each.remove(&session);
    }

    /// Whether a session stands still to save, and has time for it.
    pub(super) fn saves(&self, session: u32, now: Instant) -> bool {
        let own = self.each.get(&session).filter(|due| due.stood);
        own.is_some_and(|due| now < self.ends_at(session, due))
    }

    /// Whether a session has stood still for what it owes.
    pub(super) fn has_stood(&self, session: u32) -> bool {
        self.each.get(&session).is_some_and(|due| due.stood)
    }
}

/// What so many bytes take at the least rate.
pub(super) fn time_to_move(bytes: u64) -> Duration {
    let ns = u128::from(bytes) * 1_000_000_000 / u128::from(LEAST_RATE);
    Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PART: u64 = 64 << 20;

    fn dues() -> Dues {
        Dues::new(0, PART, Duration::ZERO)
    }

    fn after(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// Until when a session is let be that saves so many bytes each so many seconds.
    fn lasts(bytes: u64, each: u64, most: u64) -> u64 {
        let (mut dues, began) = (dues(), Instant::now());
        dues.press(1, began, began + after(10));
        dues.stand(1, began);
        for second in 1..most {
            let now = began + after(second);
            if dues.press(1, now, now + after(10)).ends {
                return second;
            }
            if second % each == 0 {
                dues.save(1, now, bytes);
            }
        }
        most
    }

    #[test]
    fn who_saves_slower_than_the_least_rate_is_ended() {
        let limit = SAVE_LIMIT.as_secs();
        assert_eq!(lasts(1, 59, 100_000), limit + 1, "a byte a minute");
        assert_eq!(lasts(0, 1, 100_000), limit);
        assert!(lasts(PART, 59, 100_000) < 2 * limit);
        assert_eq!(lasts(PART, 8, 10_000), 10_000);
        // Who was fast has no time to spare for that.
        let (mut dues, began) = (dues(), Instant::now());
        dues.stand(1, began);
        (0..1_000).for_each(|_| dues.save(1, began + after(1), PART));
        assert!(dues.press(1, began + after(1) + SAVE_LIMIT, began).ends);
    }

    #[test]
    fn a_save_that_failed_is_tried_again_and_each_second_at_most() {
        let (mut dues, began) = (dues(), Instant::now());
        let press = |dues: &mut Dues, ms| {
            let now = began + Duration::from_millis(ms);
            dues.press(1, now, now + after(10)).tells
        };
        assert_eq!(press(&mut dues, 0), Some(1));
        assert_eq!((press(&mut dues, 1), press(&mut dues, 20)), (None, Some(1)));
        dues.stand(1, began);
        dues.save(1, began, 0);
        dues.save(1, began + Duration::from_millis(500), 0);
        assert_eq!(press(&mut dues, 990), Some(1));
        assert_eq!(press(&mut dues, 1_000), Some(2), "it stands still once more");
        assert_eq!(press(&mut dues, 5_000), Some(2), "it has not failed since");
        // What it saves is no failure.
        dues.save(1, began + after(5), 0);
        dues.save(1, began + after(5), PART);
        assert_eq!(press(&mut dues, 10_000), Some(2));
    }

    #[test]
    fn time_to_stand_still_counts_from_the_first_order_and_not_while_it_loads() {
        let (mut dues, began) = (dues(), Instant::now());
        dues.press(1, began, began + after(10));
        assert!(!dues.press(1, began + after(9), began + after(19)).ends, "another one waits");
        dues.extend(1, after(100));
        assert!(!dues.press(1, began + after(109), began + after(119)).ends);
        assert!(dues.press(1, began + after(110), began + after(120)).ends);
        assert!(!dues.press(1, began + after(111), began + after(121)).ends, "once");
        dues.settle(1);
        assert!(!dues.press(1, began + after(1_000), began + after(1_010)).ends);
        // Who brings its memory has more time, and less when that is done.
        dues.end_bringing(1, began + after(1_001));
        assert!(dues.press(1, began + after(1_001), began).ends);
    }

    /// Who saves what an earlier order was about hears of no other before that is done.
    #[test]
    fn who_saves_when_it_is_told_anew_has_its_time_for_that() {
        let (mut dues, began) = (dues(), Instant::now());
        let late = |dues: &mut Dues, second| {
            dues.press(1, began + after(second), began + after(second + 10)).ends
        };
        assert!(!late(&mut dues, 0));
        dues.stand(1, began);
        // Nobody waits any longer, and then somebody else does.
        dues.pay(1, PART);
        assert!(!late(&mut dues, 1));
        dues.save(1, began + after(8), PART);
        for second in 9..100 {
            assert!(!late(&mut dues, second), "{second}");
            dues.save(1, began + after(second), PART);
        }
        assert!(late(&mut dues, 99 + 60), "and no longer");
        // An order that was never needed says nothing of a later one.
        dues.settle(1);
        assert!(!late(&mut dues, 200));
        dues.pay(1, PART);
        assert!(!late(&mut dues, 300));
        dues.pay(1, 0);
        assert!(late(&mut dues, 310), "who does nothing has no other time");
    }

    /// Ten that save to one disk of ten times the least rate, and others on one of just that.
    #[test]
    fn those_that_save_at_once_share_the_least_rate() {
        for (count, each) in [(10, 80), (64, 512)] {
            let (mut dues, began) = (dues(), Instant::now());
            (0..count).for_each(|session| dues.stand(session, began));
            // Each part of theirs is written while a part of all others is.
            for second in 1..10_000 {
                let now = began + after(second);
                let late = |session: &u32| dues.press(*session, now, now).ends;
                let late: Vec<u32> = (0..count).filter(late).collect();
                assert!(late.is_empty(), "{late:?} of {count} after {second} s");
                if second % each == 0 {
                    (0..count).for_each(|session| dues.save(session, now, PART));
                }
            }
            // Those that only stand give each other the time for a part, once.
            let now = began + after(10_000 + 8 * u64::from(count)) + SAVE_LIMIT;
            assert!((0..count).all(|session| dues.press(session, now, now).ends));
        }
    }

    #[test]
    fn a_large_part_has_the_time_that_it_takes_at_the_least_rate() {
        let (mut dues, began) = (Dues::new(0, 1 << 30, Duration::ZERO), Instant::now());
        dues.stand(1, began);
        for part in 1..10 {
            assert!(!dues.press(1, began + after(128 * part), began).ends, "{part}");
            dues.save(1, began + after(128 * part), 1 << 30);
        }
        let mut dues = Dues::new(0, PART, after(3_600));
        dues.stand(1, began);
        assert!(!dues.press(1, began + after(3_599), began).ends, "behind a kernel");
    }
}
