//! How long a step that fails is tried again: pure.

use std::time::{Duration, Instant};

use crate::provision::Failure;

/// Attempts at a step of making an instance.
const ATTEMPTS_MAX: u32 = 6;

/// Where nobody answers that is asked on a VM's host may be starting again, and is waited for so
/// long while an instance is made: the VM boots meanwhile.
pub const AWAY_LIMIT: Duration = Duration::from_secs(60);

/// How long the first pause is; each next one is twice as long.
const PAUSE: Duration = Duration::from_millis(50);

/// The longest pause.
pub const PAUSE_MAX: Duration = Duration::from_secs(15);

/// The longest pause before somebody is asked again who is waited for.
const AWAY_PAUSE_MAX: Duration = Duration::from_secs(1);

/// A removal that fails for so long, by time or by attempts, is not waited for with the quota of
/// what has ended: what cannot be reached is no fault of the project's.
const QUOTA_LIMIT: (Duration, u32) = (Duration::from_secs(3), 8);

/// Failed attempts at the step that an instance is at.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tries {
    /// All of them.
    pub attempts: u32,
    /// Of those the ones that somebody answered.
    answered: u32,
    /// Since when nobody answers.
    away_since: Option<Instant>,
    /// When the first one failed.
    since: Option<Instant>,
    /// Whether they were at making it.
    is_making: bool,
}

/// What to do about a failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Try again after so long.
    Again(Duration),
    /// Undo what was made, for this reason.
    GiveUp(String),
}

impl Tries {
    /// One more attempt failed. Undoing never gives up.
    pub fn failed(&mut self, failure: &Failure, is_making: bool, now: Instant) -> Verdict {
        if self.is_making != is_making {
            *self = Self { is_making, ..Self::default() };
        }
        self.attempts += 1;
        self.since.get_or_insert(now);
        let pause = (PAUSE * 2_u32.saturating_pow(self.attempts.min(16) - 1)).min(PAUSE_MAX);
        if !is_making {
            return Verdict::Again(pause);
        }
        if failure.is_away {
            let since = *self.away_since.get_or_insert(now);
            if now.saturating_duration_since(since) < AWAY_LIMIT {
                return Verdict::Again(pause.min(AWAY_PAUSE_MAX));
            }
            let limit_s = AWAY_LIMIT.as_secs();
            return Verdict::GiveUp(format!("{}; it was waited for {limit_s} s", failure.words));
        }
        (self.answered, self.away_since) = (self.answered + 1, None);
        if failure.is_permanent || self.answered >= ATTEMPTS_MAX {
            return Verdict::GiveUp(failure.words.clone());
        }
        Verdict::Again(pause)
    }

    /// Whether quota is not to wait for them: each may last as long as somebody hangs.
    #[must_use]
    pub fn are_long(&self, now: Instant) -> bool {
        let (limit, attempts) = QUOTA_LIMIT;
        let since = self.since.map(|since| now.saturating_duration_since(since));
        self.attempts >= attempts || since.is_some_and(|since| since >= limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_answers_is_asked_six_times_and_who_is_away_for_a_minute() {
        let begun = Instant::now();
        let (passing, away) = (Failure::passing("not now"), Failure::away("nobody answers"));
        let mut tries = Tries::default();
        for _ in 1..ATTEMPTS_MAX {
            assert!(matches!(tries.failed(&passing, true, begun), Verdict::Again(_)));
        }
        assert_eq!(tries.failed(&passing, true, begun), Verdict::GiveUp("not now".to_owned()));

        let (mut tries, mut now) = (Tries::default(), begun);
        let why = loop {
            match tries.failed(&away, true, now) {
                Verdict::Again(pause) => now += pause,
                Verdict::GiveUp(why) => break why,
            }
        };
        let waited = now - begun;
        assert!((AWAY_LIMIT..AWAY_LIMIT + AWAY_PAUSE_MAX).contains(&waited), "{waited:?}");
        assert_eq!(why, "nobody answers; it was waited for 60 s");
    }

    #[test]
    fn who_answers_again_is_waited_for_anew() {
        let mut now = Instant::now();
        let mut tries = Tries::default();
        for _ in 1..ATTEMPTS_MAX {
            for failure in [Failure::away("nobody answers"), Failure::passing("not now")] {
                now += AWAY_LIMIT / 2;
                assert!(matches!(tries.failed(&failure, true, now), Verdict::Again(_)));
            }
        }
        let never = Failure::permanent("never");
        assert_eq!(tries.failed(&never, true, now), Verdict::GiveUp("never".to_owned()));
    }

    #[test]
    fn undoing_never_gives_up() {
        let mut tries = Tries::default();
        tries.failed(&Failure::away("nobody answers"), true, Instant::now());
        let mut last = Duration::ZERO;
        for _ in 0..1_000 {
            let verdict = tries.failed(&Failure::permanent("never"), false, Instant::now());
            let Verdict::Again(pause) = verdict else { panic!("{verdict:?}") };
            assert!(pause >= last && pause <= PAUSE_MAX);
            last = pause;
        }
        assert_eq!((tries.attempts, last), (1_000, PAUSE_MAX));
    }
}
