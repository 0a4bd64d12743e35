//! Whose result comes next, as a worker tells its daemon.

use weft_ring::AnswerTo;

/// A caller that waits for a result of the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Due {
    /// Where it waits.
    pub awaited: AnswerTo,
    /// The result comes within the time that a wake-up takes.
    pub soon: bool,
}

/// What a session's worker tells its daemon of results, beside showing whose is due.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Telling {
    /// Nothing.
    #[default]
    Nothing,
    /// That a result comes soon.
    Soon,
    /// That, and that the next call has come: the caller runs, and cannot say so itself.
    SoonAndNext,
}

impl Telling {
    pub(crate) fn pack(self) -> u32 {
        match self {
            Self::Nothing => 0,
            Self::Soon => 1,
            Self::SoonAndNext => 2,
        }
    }

    pub(crate) fn unpack(word: u32) -> Self {
        match word {
            0 => Self::Nothing,
            1 => Self::Soon,
            _ => Self::SoonAndNext,
        }
    }

    /// Whether the daemon is told of a change from `before` to `now`.
    pub(crate) fn wants(self, before: Option<Due>, now: Option<Due>) -> bool {
        let Some(now) = now else { return false };
        let is_next = before.is_none_or(|before| before.awaited != now.awaited);
        match self {
            Self::Nothing => false,
            Self::Soon => now.soon,
            Self::SoonAndNext => now.soon || is_next,
        }
    }
}

const WAITING: u64 = 1 << 62;
const SOON: u64 = 1 << 63;

impl Due {
    /// As a word; 0 stands for nobody.
    pub(crate) fn pack(due: Option<Self>) -> u64 {
        due.map_or(0, |due| {
            let soon = if due.soon { SOON } else { 0 };
            WAITING | soon | u64::from(due.awaited.slot) << 32 | u64::from(due.awaited.call)
        })
    }

    pub(crate) fn unpack(word: u64) -> Option<Self> {
        let [c0, c1, c2, c3, s0, s1, _, _] = word.to_le_bytes();
        let awaited = AnswerTo {
            slot: u16::from_le_bytes([s0, s1]),
            call: u32::from_le_bytes([c0, c1, c2, c3]),
        };
        (word & WAITING != 0).then_some(Self { awaited, soon: word & SOON != 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_daemon_is_told_what_it_wants_to_hear() {
        let due = |call, soon| Some(Due { awaited: AnswerTo { slot: 1, call }, soon });
        let changes = [
            (None, due(1, false), [false, false, true]),
            (due(1, false), due(1, true), [false, true, true]),
            (due(1, true), None, [false; 3]),
            (due(1, true), due(2, false), [false, false, true]),
        ];
        for (before, now, told) in changes {
            let all = [Telling::Nothing, Telling::Soon, Telling::SoonAndNext];
            assert_eq!(all.map(|telling| telling.wants(before, now)), told, "{before:?} {now:?}");
            assert_eq!(all.map(|telling| Telling::unpack(telling.pack())), all);
        }
    }

    #[test]
    fn every_due_caller_survives_its_word() {
        assert_eq!(Due::unpack(Due::pack(None)), None);
        for soon in [false, true] {
            for (slot, call) in [(0, 0), (255, u32::MAX), (u16::MAX, 1)] {
                let due = Some(Due { awaited: AnswerTo { slot, call }, soon });
                assert_eq!(Due::unpack(Due::pack(due)), due);
            }
        }
    }
}
