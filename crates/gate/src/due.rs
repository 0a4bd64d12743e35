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
