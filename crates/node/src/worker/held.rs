//! Commands that wait before they are taken.

use weft_ring::AnswerTo;

/// A command that compiles waits this long for what flies on a device that nobody else wants.
pub(super) const LOAD_WAITS_NS: u64 = 50_000_000;

/// And where others want it, who would wait for the compilation.
const LOAD_WAITS_BESIDE_NS: u64 = 2_000_000_000;

/// A command that waits.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) bytes: Vec<u8>,
    pub(super) answer: Option<AnswerTo>,
    /// It waits until nothing flies and the turn is given back.
    pub(super) loads: bool,
    /// Device clock when it first waited for what flies.
    pub(super) waits_since_ns: Option<u64>,
}

impl Held {
    /// Whether a command that compiles goes on waiting for what flies. Not for ever: a kernel may
    /// wait for what the program does after the load; then it pays for the compilation.
    pub(super) fn waits_on(&mut self, now_ns: u64, is_alone: bool) -> bool {
        let since_ns = *self.waits_since_ns.get_or_insert(now_ns);
        let limit_ns = if is_alone { LOAD_WAITS_NS } else { LOAD_WAITS_BESIDE_NS };
        self.loads && now_ns.saturating_sub(since_ns) < limit_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_waits_for_what_flies_from_its_own_first_wait_on() {
        let held = |loads| Held { bytes: Vec::new(), answer: None, loads, waits_since_ns: None };
        let mut load = held(true);
        assert!(load.waits_on(7_000_000_000, true), "however late it becomes the first");
        assert!(load.waits_on(7_000_000_000 + LOAD_WAITS_NS - 1, true));
        assert!(!load.waits_on(7_000_000_000 + LOAD_WAITS_NS, true));
        // Others would wait for the compilation.
        assert!(load.waits_on(7_000_000_000 + LOAD_WAITS_NS, false));
        assert!(!load.waits_on(7_000_000_000 + LOAD_WAITS_BESIDE_NS, false));
        assert!(!held(false).waits_on(0, false));
    }
}
