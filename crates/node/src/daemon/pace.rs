//! How often a tenant may attach, and who of its sessions may compile: work of processors for which
//! nobody has a turn.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

const SECOND_NS: u64 = 1_000_000_000;

/// A tenant may attach this many seconds' worth of sessions at once.
const BURST_S: u64 = 6;

/// A session that waits to compile looks this often whether it still has to.
const LOOK: Duration = Duration::from_millis(100);

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

/// One session of each tenant that compiles.
#[derive(Debug, Default)]
pub(crate) struct Loads {
    compiling: Mutex<BTreeMap<u32, u32>>,
    done: Condvar,
}

impl Loads {
    /// Returns when the session may compile: no other of its tenant does. False if `is_gone` says
    /// meanwhile that it never will. However long that takes: the other one compiles, or its end
    /// lets this one go on.
    pub(crate) fn begin(&self, tenant: u32, session: u32, is_gone: impl Fn() -> bool) -> bool {
        let mut compiling = self.compiling.lock().unwrap_or_else(PoisonError::into_inner);
        while compiling.get(&tenant).is_some_and(|other| *other != session) {
            if is_gone() {
                return false;
            }
            let waited = self.done.wait_timeout(compiling, LOOK);
            (compiling, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
        compiling.insert(tenant, session);
        true
    }

    /// The session does not compile any more.
    pub(crate) fn end(&self, session: u32) {
        let mut compiling = self.compiling.lock().unwrap_or_else(PoisonError::into_inner);
        compiling.retain(|_, other| *other != session);
        drop(compiling);
        self.done.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

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

    #[test]
    fn one_session_of_a_tenant_compiles_at_a_time() {
        let loads = Loads::default();
        assert!(loads.begin(1, 10, || false));
        // Another tenant's does not wait.
        assert!(loads.begin(2, 20, || false));
        std::thread::scope(|scope| {
            let second = scope.spawn(|| loads.begin(1, 11, || false));
            while !second.is_finished() {
                loads.end(10);
                std::thread::yield_now();
            }
        });
        assert_eq!(*loads.compiling.lock().unwrap(), BTreeMap::from([(1, 11), (2, 20)]));
    }

    #[test]
    fn who_waits_to_compile_waits_as_long_as_it_lives() {
        let loads = Loads::default();
        assert!(loads.begin(1, 10, || false));
        let looks = Cell::new(0);
        let dies_later = || looks.replace(looks.get() + 1) == 2;
        assert!(!loads.begin(1, 11, dies_later));
        assert_eq!(*loads.compiling.lock().unwrap(), BTreeMap::from([(1, 10)]));
        // Its end takes nothing from the one that compiles.
        loads.end(11);
        assert_eq!(*loads.compiling.lock().unwrap(), BTreeMap::from([(1, 10)]));
    }
}
