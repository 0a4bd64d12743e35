//! Compiling beside others: it happens outside turns, so nothing but the processor bounds it.
//!
//! A session has an allowance of processor time for small modules. What goes beyond it is compiled
//! when the daemon says so: one session of the tenant at a time, at the lowest priority that the
//! system has for ordinary threads, so that a tenant takes a sixtieth of a processor that a kernel
//! wants, however many sessions load modules. An idle processor compiles as fast as ever.

use weft_device::thread_cpu_ns;

use super::link::Link;
use crate::link::Ask;

/// The allowance: so much processor time at once, and so much of each second.
const ALLOWANCE_NS: u64 = 4_000_000;
const REFILL_PER_SECOND_NS: u64 = 4_000_000;
const SECOND_NS: u64 = 1_000_000_000;

/// What a byte of a module takes until something was measured.
const BYTE_NS: u64 = 100;

/// What it takes at least: bytes of comments take less, and say nothing of the next module.
const BYTE_MIN_NS: u64 = 20;

/// What a session may compile at the usual priority.
#[derive(Debug)]
pub(crate) struct Compiling {
    /// Below 0 where a module took longer than its bytes let expect: what was taken is paid back.
    left_ns: i64,
    refilled_at_ns: u64,
    byte_ns: u64,
}

impl Default for Compiling {
    fn default() -> Self {
        Self { left_ns: signed(ALLOWANCE_NS), refilled_at_ns: 0, byte_ns: BYTE_NS }
    }
}

/// A module being compiled.
#[derive(Debug)]
pub(crate) struct Load {
    bytes: u64,
    began_cpu_ns: u64,
    is_low: bool,
}

impl Compiling {
    /// Before a module of this size is compiled.
    pub(crate) fn begin(&mut self, bytes: u64, now_ns: u64, link: &Link) -> Load {
        let is_low = !self.allows(bytes, now_ns);
        if is_low {
            // A daemon that does not answer has died: then nobody compiles in its order.
            let _ = link.ask(&Ask::Load);
        }
        Load { bytes, began_cpu_ns: thread_cpu_ns(), is_low }
    }

    /// After it was.
    pub(crate) fn end(&mut self, load: &Load, link: &Link) {
        let took_ns = thread_cpu_ns().saturating_sub(load.began_cpu_ns);
        self.spend(load, took_ns);
        if load.is_low {
            let _ = link.ask(&Ask::Loaded);
        }
    }

    fn allows(&mut self, bytes: u64, now_ns: u64) -> bool {
        let passed_ns = now_ns.saturating_sub(self.refilled_at_ns);
        let more_ns = u128::from(passed_ns) * u128::from(REFILL_PER_SECOND_NS);
        let more_ns = u64::try_from(more_ns / u128::from(SECOND_NS)).unwrap_or(u64::MAX);
        self.left_ns = self.left_ns.saturating_add(signed(more_ns)).min(signed(ALLOWANCE_NS));
        self.refilled_at_ns = now_ns;
        signed(bytes.saturating_mul(self.byte_ns)) <= self.left_ns
    }

    fn spend(&mut self, load: &Load, took_ns: u64) {
        // Bad news at once, and of good news half each time: modules differ.
        let byte_ns = took_ns / load.bytes.max(1);
        self.byte_ns = byte_ns.max(u64::midpoint(self.byte_ns, byte_ns)).max(BYTE_MIN_NS);
        if !load.is_low {
            self.left_ns = self.left_ns.saturating_sub(signed(took_ns));
        }
    }
}

fn signed(ns: u64) -> i64 {
    i64::try_from(ns).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_modules_are_compiled_at_once_until_there_are_too_many() {
        let mut compiling = Compiling::default();
        let small = Load { bytes: 2_000, began_cpu_ns: 0, is_low: false };
        let mut at_once = 0;
        for _ in 0..1_000 {
            if compiling.allows(small.bytes, SECOND_NS) {
                compiling.spend(&small, 200_000);
                at_once += 1;
            }
        }
        assert!((15..=20).contains(&at_once), "{at_once}");
        assert!(compiling.allows(small.bytes, 2 * SECOND_NS));
        assert!(!compiling.allows(10_000_000, 100 * SECOND_NS));
    }

    #[test]
    fn empty_modules_buy_no_long_one() {
        let mut compiling = Compiling::default();
        // Comments without end, which take next to nothing.
        for second in 1..=20 {
            let comment = Load { bytes: 2_000_000, began_cpu_ns: 0, is_low: true };
            compiling.allows(comment.bytes, second * SECOND_NS);
            compiling.spend(&comment, 1_000_000);
        }
        assert!(!compiling.allows(1_800_000, 21 * SECOND_NS), "{compiling:?}");
        // One that is small enough and takes a second all the same is paid for.
        assert!(compiling.allows(50_000, 22 * SECOND_NS));
        let dense = Load { bytes: 50_000, began_cpu_ns: 0, is_low: false };
        compiling.spend(&dense, SECOND_NS);
        let again = (23..1_000).find(|second| compiling.allows(50, second * SECOND_NS));
        assert!(again.is_some_and(|second| second > 22 + 200), "{again:?}");
    }
}
