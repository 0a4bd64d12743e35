//! How often a tenant may attach: work of processors for which nobody has a turn.

use std::collections::BTreeMap;

const SECOND_NS: u64 = 1_000_000_000;

/// A tenant may attach this many seconds' worth of sessions at once.
const BURST_S: u64 = 6;

/// Attaches per tenant: a bucket each, of which only the time is kept at which it is full again.
#[derive(Debug, Default)]
pub(crate) struct AttachPace {
    full_at_ns: BTreeMap<u32, u64>,
}

impl AttachPace {
    /// A tenant attaches at `now_ns` where it may do so `per_second` times a second: how long it
    /// waits first, in ns.
    pub(crate) fn wait_ns(&mut self, tenant: u32, now_ns: u64, per_second: u32) -> u64 {
        // Who has not attached for a while is as if it never had.
        self.full_at_ns.retain(|_, full_at_ns| *full_at_ns > now_ns);
        let full_at_ns = self.full_at_ns.entry(tenant).or_insert(now_ns);
        *full_at_ns = full_at_ns.saturating_add(SECOND_NS / u64::from(per_second.max(1)));
        full_at_ns.saturating_sub(now_ns).saturating_sub(BURST_S * SECOND_NS)
    }

    /// It did not attach after all.
    pub(crate) fn give_back(&mut self, tenant: u32, per_second: u32) {
        if let Some(full_at_ns) = self.full_at_ns.get_mut(&tenant) {
            *full_at_ns = full_at_ns.saturating_sub(SECOND_NS / u64::from(per_second.max(1)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_that_attaches_too_often_waits_and_others_do_not() {
        let mut pace = AttachPace::default();
        let waits: Vec<u64> = (0..100).map(|_| pace.wait_ns(1, 0, 10)).collect();
        assert!(waits[..60].iter().all(|wait_ns| *wait_ns == 0), "{waits:?}");
        assert_eq!(waits[99], 4 * SECOND_NS);
        assert_eq!(pace.wait_ns(2, 0, 10), 0);
        pace.give_back(1, 10);
        assert_eq!(pace.wait_ns(1, 0, 10), 4 * SECOND_NS);
        // As time passes it may again; one that stayed away is forgotten.
        assert_eq!(pace.wait_ns(1, 5 * SECOND_NS, 10), 0);
        assert_eq!(pace.wait_ns(1, 100 * SECOND_NS, 10), 0);
        assert_eq!(pace.full_at_ns.len(), 1);
    }
}
