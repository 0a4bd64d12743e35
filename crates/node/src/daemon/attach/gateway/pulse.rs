//! Whether a gateway is well: it is asked again and again, and the loop in which it lets endpoints
//! in answers. Looks are counted, and not time: where the daemon itself was stopped there were
//! none. Pure.

use std::time::Duration;

/// From one look at a gateway to the next.
pub(super) const LOOK_EVERY: Duration = Duration::from_secs(1);

/// After so many looks without an answer that is told, and the gateway counts as one that does not
/// listen.
const TOLD_AFTER: u32 = 5;

/// After so many it is ended, and its sessions with it. Longer than endpoints take for a
/// connection (8 s), and half of the usual grace time: one that was held up goes on with them.
pub(super) const ENDED_AFTER: u32 = 15;

/// What a gateway has answered.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Pulse {
    answers: u64,
    /// Answers at the last look.
    seen: u64,
    /// Looks since it has not answered.
    silent: u32,
}

/// What is to be done at a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    /// It has answered: it is to be asked again.
    Ask,
    /// It has not, or does not know the question.
    Wait,
    /// The same, which is to be told.
    Tell,
    /// It is to be ended.
    End,
}

impl Pulse {
    /// It says that it is well: when it starts, unless it does not know the question, and when it
    /// was asked.
    pub(super) fn answer(&mut self) {
        self.answers += 1;
    }

    /// Looks at it.
    pub(super) fn look(&mut self) -> Look {
        if self.answers > self.seen {
            (self.seen, self.silent) = (self.answers, 0);
            return Look::Ask;
        }
        if self.answers == 0 {
            return Look::Wait;
        }
        self.silent += 1;
        match self.silent {
            TOLD_AFTER => Look::Tell,
            ENDED_AFTER.. => Look::End,
            _ => Look::Wait,
        }
    }

    /// For how many looks it has not answered, if that is told; else 0.
    pub(super) fn silent(&self) -> u32 {
        if self.silent < TOLD_AFTER { 0 } else { self.silent }
    }

    /// How often it has answered.
    #[cfg(test)]
    pub(super) fn answers(&self) -> u64 {
        self.answers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_does_not_answer_is_told_and_ended() {
        let mut pulse = Pulse::default();
        pulse.answer();
        assert_eq!(pulse.look(), Look::Ask);
        let looks: Vec<Look> = (0..ENDED_AFTER).map(|_| pulse.look()).collect();
        let mut expected = vec![Look::Wait; 15];
        (expected[4], expected[14]) = (Look::Tell, Look::End);
        assert_eq!(looks, expected);
    }

    /// However late it answers within its time, and how often at once.
    #[test]
    fn one_that_answers_is_asked_again_and_left_alone() {
        for late in 0..ENDED_AFTER {
            let mut pulse = Pulse::default();
            for _ in 0..100 {
                pulse.answer();
                pulse.answer();
                assert_eq!(pulse.look(), Look::Ask);
                let looks: Vec<Look> = (0..late).map(|_| pulse.look()).collect();
                assert!(!looks.contains(&Look::End) && !looks.contains(&Look::Ask), "{late}");
                assert_eq!(pulse.silent(), if late < TOLD_AFTER { 0 } else { late });
            }
        }
    }

    #[test]
    fn one_that_does_not_know_the_question_is_not_asked() {
        let mut pulse = Pulse::default();
        assert!((0..100).all(|_| pulse.look() == Look::Wait));
        assert_eq!(pulse.silent(), 0);
    }
}
