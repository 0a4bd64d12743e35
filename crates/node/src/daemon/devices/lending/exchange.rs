//! The memory that a session brings in its turn, and how long that may take.
//!
//! It has a limit, and what comes gives it more, as much as that takes at the least rate, but never
//! more than the limit at once: a minute for a device that is stuck, and hours for a slow disk. In
//! a turn no byte counts twice, so a turn has an end, whatever its worker says.

use std::time::{Duration, Instant};

use super::dues::time_to_move;

/// The memory of a session in its turn.
#[derive(Debug, Clone, Copy)]
pub(super) struct Exchange {
    /// When it asked for room.
    pub(super) since: Instant,
    /// What is moved for it, by others and by itself, in bytes.
    pub(super) bytes: u64,
    pub(super) stage: Stage,
    /// What it had left of its time in this turn when the stage began.
    left: Duration,
    /// The most that it wanted to have, and what of that has not come in this turn, by its word.
    total: u64,
    absent: u64,
    /// It was told in this turn to come later: from then on its waits count, too.
    is_put_off: bool,
    /// When it was first to save something in this turn.
    saves_since: Option<Instant>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// It waits for room.
    Waits,
    /// It has it since then, or said then how far it is, and brings its memory.
    Brings(Instant),
    Rests,
}

impl Exchange {
    /// Of a session whose turn begins, and which may bring memory for so long.
    pub(super) fn fresh(now: Instant, limit: Duration) -> Self {
        Self {
            since: now,
            bytes: 0,
            stage: Stage::Rests,
            left: limit,
            total: 0,
            absent: 0,
            is_put_off: false,
            saves_since: None,
        }
    }

    /// Of a session of an earlier daemon that may be bringing all of so many bytes.
    pub(super) fn adopted(now: Instant, limit: Duration, total: u64) -> Self {
        let stage = Stage::Brings(now);
        Self { stage, total, absent: total, ..Self::fresh(now, limit) }
    }

    /// The turn is over, or the next one begins, in which it has its time anew.
    pub(super) fn renew(&mut self, limit: Duration) {
        (self.left, self.absent) = (limit, self.total);
        (self.is_put_off, self.saves_since) = (false, None);
    }

    /// It asks for room for so much in all, of which so many bytes are to be moved.
    pub(super) fn ask(&mut self, now: Instant, total: u64, bytes: u64) {
        if self.stage != Stage::Waits {
            self.rest(now);
            (self.since, self.bytes, self.stage) = (now, 0, Stage::Waits);
        }
        self.bytes = self.bytes.max(bytes);
        self.absent = self.absent.saturating_add(total.saturating_sub(self.total));
        self.total = self.total.max(total);
    }

    /// It has the room that it waited for.
    pub(super) fn grant(&mut self, now: Instant) {
        if self.stage == Stage::Waits {
            self.rest(now);
            self.stage = Stage::Brings(now);
        }
    }

    /// It comes later, and in this turn it has waited once.
    pub(super) fn put_off(&mut self, now: Instant) {
        self.rest(now);
        self.is_put_off = true;
    }

    pub(super) fn rest(&mut self, now: Instant) {
        self.left = self.left_at(now);
        self.stage = Stage::Rests;
    }

    /// So many bytes of it are not there yet: how much more time it has for that than before, if
    /// some have come.
    pub(super) fn bring(&mut self, now: Instant, absent: u64, limit: Duration) -> Option<Duration> {
        let came = self.absent.saturating_sub(absent);
        if came == 0 || !matches!(self.stage, Stage::Brings(_)) {
            return None;
        }
        let left = self.left_at(now);
        let more = left.saturating_add(time_to_move(came)).min(limit).max(left);
        (self.left, self.absent, self.stage) = (more, absent, Stage::Brings(now));
        Some(more - left)
    }

    fn left_at(&self, now: Instant) -> Duration {
        let counts_from = match self.stage {
            Stage::Brings(since) => since,
            Stage::Waits if self.is_put_off => self.since,
            Stage::Waits | Stage::Rests => now,
        };
        self.left.saturating_sub(now.duration_since(counts_from))
    }

    /// What is left of its time to bring its memory, if that is what it does.
    pub(super) fn left(&self, now: Instant) -> Option<Duration> {
        let brings = matches!(self.stage, Stage::Brings(_));
        brings.then(|| self.left_at(now)).filter(|left| !left.is_zero())
    }

    /// Whether its memory is about to come. Others, for whom it waits the first time, have their
    /// limits.
    pub(super) fn comes(&self, now: Instant) -> bool {
        match self.stage {
            Stage::Waits => !self.is_put_off || !self.left_at(now).is_zero(),
            Stage::Brings(_) => !self.left_at(now).is_zero(),
            Stage::Rests => false,
        }
    }

    /// It is to save something.
    pub(super) fn begin_saving(&mut self, now: Instant) {
        self.saves_since.get_or_insert(now);
    }

    /// Whether it may be saving yet in this turn, which takes so long at most.
    pub(super) fn may_save(&self, now: Instant, limit: Duration) -> bool {
        self.saves_since.is_none_or(|since| now.duration_since(since) < limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);
    const MB: u64 = 1_000_000;

    fn after(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// For how many seconds a session of 25 GB may bring what comes at this rate.
    fn lasts(bytes_each_second: u64) -> u64 {
        let (began, total) = (Instant::now(), 25_000 * MB);
        let mut own = Exchange::fresh(began, LIMIT);
        own.ask(began, total, total);
        own.grant(began);
        for second in 1.. {
            let now = began + after(second);
            let absent = total.saturating_sub(second * bytes_each_second);
            if !own.comes(now) || absent == 0 {
                return second;
            }
            own.bring(now, absent, LIMIT);
        }
        0
    }

    #[test]
    fn what_comes_gives_more_time_at_the_least_rate() {
        assert_eq!(lasts(200 * MB), 125, "a disk of 200 MB/s has brought all");
        assert_eq!(lasts(9 * MB), 25_000 / 9 + 1, "as slowly as it may save");
        assert_eq!(lasts(0), 60);
        assert_eq!(lasts(1), 61, "a byte a second");
    }

    #[test]
    fn no_byte_counts_twice_in_a_turn() {
        let (began, total) = (Instant::now(), 1_000 * MB);
        let mut own = Exchange::fresh(began, LIMIT);
        let mut again = |second| {
            let now = began + after(second);
            own.ask(now, total, total);
            own.grant(now);
            let gained = own.bring(now + after(50), 0, LIMIT);
            (gained, own.comes(now + after(50)))
        };
        assert_eq!(again(0), (Some(after(50)), true));
        assert_eq!(again(50), (None, true));
        assert_eq!(again(100), (None, false), "it gave all of it away and brings it again");
        own.rest(began + after(200));
        own.renew(LIMIT);
        own.ask(began + after(200), total, total);
        own.grant(began + after(200));
        assert!(own.bring(began + after(210), 0, LIMIT).is_some(), "the next turn");
    }

    #[test]
    fn who_was_told_to_come_later_has_its_time_for_waiting_in_that_turn() {
        let began = Instant::now();
        let mut own = Exchange::fresh(began, LIMIT);
        own.ask(began, 1, 1);
        assert!(own.comes(began + after(3_600)), "it waits for others");
        own.put_off(began + after(3_600));
        for round in 0..3 {
            own.ask(began + after(3_600 + 20 * round), 1, 1);
            assert!(own.comes(began + after(3_619 + 20 * round)), "{round}");
            own.put_off(began + after(3_620 + 20 * round));
        }
        own.ask(began + after(3_660), 1, 1);
        assert!(!own.comes(began + after(3_660)));
        own.renew(LIMIT);
        assert!(own.comes(began + after(3_660)), "the next turn");
    }

    #[test]
    fn a_turn_does_not_save_for_ever() {
        let began = Instant::now();
        let mut own = Exchange::fresh(began, LIMIT);
        assert!(own.may_save(began + after(200), after(100)));
        own.begin_saving(began + after(200));
        own.begin_saving(began + after(290));
        assert!(own.may_save(began + after(299), after(100)));
        assert!(!own.may_save(began + after(300), after(100)), "from the first time on");
        own.renew(LIMIT);
        assert!(own.may_save(began + after(300), after(100)));
    }
}
