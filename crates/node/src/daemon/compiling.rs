//! Who of a tenant's sessions may compile, and how: it happens outside turns, so nothing but the
//! processor bounds it.
//!
//! A tenant has an allowance of processor time for small modules, whatever the number of its
//! sessions. What goes beyond it is compiled by one session of the tenant at a time, at the lowest
//! priority that the system has for ordinary threads, so that a tenant takes a sixtieth of a
//! processor that a kernel wants. An idle processor compiles as fast as ever.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A session that waits to compile looks this often whether it still has to.
const LOOK: Duration = Duration::from_millis(100);

/// The allowance of a tenant of mean weight: so much processor time at once, and so much of each
/// second.
pub(crate) const ALLOWANCE_NS: u64 = 4_000_000;
const SECOND_NS: u64 = 1_000_000_000;

/// What a byte of a module takes until something was measured.
const BYTE_NS: u64 = 100;

/// What it takes at least: bytes of comments take less, and say nothing of the next module.
const BYTE_MIN_NS: u64 = 20;

/// How a session compiles a module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Priority {
    /// Within its tenant's allowance, at the usual one.
    Usual,
    /// Beyond it, at the lowest.
    Lowest,
}

/// Who compiles.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Compiler {
    pub(crate) tenant: u32,
    pub(crate) session: u32,
    /// The tenant's allowance, at once and of each second.
    pub(crate) allowance_ns: u64,
}

/// Sessions that compile, and what their tenants may compile at the usual priority.
#[derive(Debug, Default)]
pub(crate) struct Loads {
    tenants: Mutex<BTreeMap<u32, Tenant>>,
    done: Condvar,
}

#[derive(Debug, Default)]
struct Tenant {
    allowance: Allowance,
    /// Modules that sessions of it compile at the usual priority.
    usual: BTreeMap<u32, Load>,
    /// The session that compiles at the lowest one, and the module's bytes.
    lowest: Option<(u32, u64)>,
}

/// A module that was taken out of an allowance.
#[derive(Debug)]
struct Load {
    bytes: u64,
    expected_ns: i64,
    began_ns: u64,
}

impl Loads {
    /// A session is about to compile a module of so many bytes, at `now_ns`: returns when it may,
    /// and how. None if `is_gone` says meanwhile that it never will. However long that takes: the
    /// session that it waits for compiles, or its end lets this one go on. Bytes that nobody knows
    /// are more than any allowance. Who has leave to compile already keeps it.
    pub(crate) fn begin(
        &self,
        Compiler { tenant, session, allowance_ns }: Compiler,
        bytes: Option<u64>,
        now_ns: u64,
        is_gone: impl Fn() -> bool,
    ) -> Option<Priority> {
        let mut tenants = self.lock();
        // Who has all of its allowance is as if it had never compiled.
        tenants.retain(|_, tenant| !tenant.is_as_new(now_ns));
        let entry = tenants.entry(tenant).or_default();
        if entry.usual.contains_key(&session) {
            return Some(Priority::Usual);
        }
        if let Some(load) =
            bytes.and_then(|bytes| entry.allowance.take(bytes, allowance_ns, now_ns))
        {
            entry.usual.insert(session, load);
            return Some(Priority::Usual);
        }
        loop {
            let entry = tenants.entry(tenant).or_default();
            if entry.lowest.is_none_or(|(other, _)| other == session) {
                entry.lowest = Some((session, bytes.unwrap_or(u64::MAX)));
                return Some(Priority::Lowest);
            }
            if is_gone() {
                return None;
            }
            let waited = self.done.wait_timeout(tenants, LOOK);
            (tenants, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The session does not compile any more at `now_ns`; if it tells, what that took of the
    /// processor. One that died is charged the time that passed.
    pub(crate) fn end(&self, session: u32, took_ns: Option<u64>, now_ns: u64) {
        for tenant in self.lock().values_mut() {
            tenant.end(session, took_ns, now_ns);
        }
        self.done.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u32, Tenant>> {
        self.tenants.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tenant {
    fn is_as_new(&mut self, now_ns: u64) -> bool {
        self.usual.is_empty() && self.lowest.is_none() && self.allowance.is_full(now_ns)
    }

    fn end(&mut self, session: u32, took_ns: Option<u64>, now_ns: u64) {
        if let Some(load) = self.usual.remove(&session) {
            let passed_ns = now_ns.saturating_sub(load.began_ns);
            self.allowance.settle(&load, took_ns.unwrap_or(passed_ns));
        }
        if let Some((_, bytes)) = self.lowest.take_if(|(other, _)| *other == session)
            && let Some(took_ns) = took_ns
        {
            self.allowance.learn(bytes, took_ns);
        }
    }
}

/// Processor time that a tenant's sessions may use for modules at the usual priority.
#[derive(Debug)]
struct Allowance {
    /// Below 0 where a module took longer than its bytes let expect: what was taken is paid back.
    left_ns: i64,
    /// What it was when it was last used.
    most_ns: u64,
    refilled_at_ns: u64,
    byte_ns: u64,
}

impl Default for Allowance {
    fn default() -> Self {
        Self { left_ns: 0, most_ns: 0, refilled_at_ns: 0, byte_ns: BYTE_NS }
    }
}

impl Allowance {
    /// Takes a module of this size out, if it is within the allowance.
    fn take(&mut self, bytes: u64, most_ns: u64, now_ns: u64) -> Option<Load> {
        self.refill(now_ns);
        self.left_ns = self.left_ns.saturating_add(signed(most_ns) - signed(self.most_ns));
        self.most_ns = most_ns;
        let expected_ns = signed(bytes.saturating_mul(self.byte_ns));
        if expected_ns > self.left_ns {
            return None;
        }
        self.left_ns -= expected_ns;
        Some(Load { bytes, expected_ns, began_ns: now_ns })
    }

    /// A module that was taken out took so long.
    fn settle(&mut self, load: &Load, took_ns: u64) {
        let left_ns = self.left_ns.saturating_add(load.expected_ns);
        self.left_ns = left_ns.saturating_sub(signed(took_ns));
        self.learn(load.bytes, took_ns);
    }

    fn learn(&mut self, bytes: u64, took_ns: u64) {
        // Bad news at once, and of good news half each time: modules differ.
        let byte_ns = took_ns / bytes.max(1);
        self.byte_ns = byte_ns.max(u64::midpoint(self.byte_ns, byte_ns)).max(BYTE_MIN_NS);
    }

    fn is_full(&mut self, now_ns: u64) -> bool {
        self.refill(now_ns);
        self.left_ns == signed(self.most_ns)
    }

    fn refill(&mut self, now_ns: u64) {
        let passed_ns = now_ns.saturating_sub(self.refilled_at_ns);
        let more_ns = u128::from(passed_ns) * u128::from(self.most_ns);
        let more_ns = u64::try_from(more_ns / u128::from(SECOND_NS)).unwrap_or(u64::MAX);
        self.left_ns = self.left_ns.saturating_add(signed(more_ns)).min(signed(self.most_ns));
        self.refilled_at_ns = self.refilled_at_ns.max(now_ns);
    }
}

fn signed(ns: u64) -> i64 {
    i64::try_from(ns).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const SMALL: Option<u64> = Some(2_000);

    fn by(tenant: u32, session: u32) -> Compiler {
        Compiler { tenant, session, allowance_ns: ALLOWANCE_NS }
    }

    /// Loads one module, which takes so long.
    fn load(loads: &Loads, of: (u32, u32), bytes: u64, took_ns: u64, now_ns: u64) -> Priority {
        let priority = loads.begin(by(of.0, of.1), Some(bytes), now_ns, || false).unwrap();
        loads.end(of.1, Some(took_ns), now_ns);
        priority
    }

    #[test]
    fn small_modules_are_compiled_at_once_until_there_are_too_many() {
        let loads = Loads::default();
        let usual = |now_ns| {
            let small = || load(&loads, (1, 10), 2_000, 200_000, now_ns) == Priority::Usual;
            (0..1_000).filter(|_| small()).count()
        };
        assert!((15..=20).contains(&usual(SECOND_NS)));
        assert!((15..=20).contains(&usual(2 * SECOND_NS)));
        assert_eq!(load(&loads, (1, 10), 10_000_000, 1, 100 * SECOND_NS), Priority::Lowest);
    }

    #[test]
    fn sessions_of_a_tenant_have_one_allowance() {
        let loads = Loads::default();
        let usual = |tenant, session| {
            load(&loads, (tenant, session), 2_000, 200_000, SECOND_NS) == Priority::Usual
        };
        let many = (0..64).filter(|session| usual(1, *session)).count();
        assert!((15..=20).contains(&many), "{many}");
        // Nor do they have more by beginning all at once.
        let loads = Loads::default();
        let begun = (0..20)
            .filter_map(|session| loads.begin(by(1, session), SMALL, SECOND_NS, || true))
            .filter(|priority| *priority == Priority::Usual);
        assert_eq!(begun.count(), 20);
        // One that asks again has no more taken out.
        assert_eq!(loads.begin(by(1, 7), SMALL, SECOND_NS, || true), Some(Priority::Usual));
        assert_eq!(loads.begin(by(1, 20), SMALL, SECOND_NS, || true), Some(Priority::Lowest));
        assert_eq!(loads.begin(by(1, 21), SMALL, SECOND_NS, || true), None);
        // Another tenant has its own.
        assert_eq!(loads.begin(by(2, 30), SMALL, SECOND_NS, || true), Some(Priority::Usual));
    }

    #[test]
    fn an_allowance_may_change_and_what_was_used_of_it_stays_used() {
        let loads = Loads::default();
        let usual = |part: u64, now_ns| {
            let compiler = Compiler { allowance_ns: part * ALLOWANCE_NS / 4, ..by(1, 10) };
            let load = || {
                let priority = loads.begin(compiler, SMALL, now_ns, || false);
                loads.end(10, Some(200_000), now_ns);
                priority == Some(Priority::Usual)
            };
            (0..1_000).take_while(|_| load()).count()
        };
        let now_ns = 100 * SECOND_NS;
        let quarter = usual(1, now_ns);
        assert!((4..=6).contains(&quarter), "{quarter}");
        // Three times as much of it is new, and going back and forth makes none.
        let whole = usual(4, now_ns);
        assert!((15..=16).contains(&whole), "{whole}");
        assert_eq!((usual(1, now_ns), usual(4, now_ns)), (0, 0));
        let later = usual(2, now_ns + 10 * SECOND_NS);
        assert!((8..=11).contains(&later), "{later}");
    }

    #[test]
    fn empty_modules_buy_no_long_one() {
        let loads = Loads::default();
        // Comments without end, which take next to nothing.
        for second in 1..=20 {
            load(&loads, (1, 10), 2_000_000, 1_000_000, second * SECOND_NS);
        }
        assert_eq!(load(&loads, (1, 10), 1_800_000, 0, 21 * SECOND_NS), Priority::Lowest);
        // One that is small enough and takes a second all the same is paid for.
        assert_eq!(load(&loads, (1, 10), 30_000, SECOND_NS, 22 * SECOND_NS), Priority::Usual);
        let is_usual =
            |second: &u64| load(&loads, (1, 10), 50, 0, second * SECOND_NS) == Priority::Usual;
        let again = (23..1_000).find(is_usual);
        assert!(again.is_some_and(|second| second > 22 + 200), "{again:?}");
    }

    #[test]
    fn dying_before_the_end_is_not_free() {
        let loads = Loads::default();
        let dies_after = |begin_s: u64, took_ns| {
            let begin_ns = begin_s * SECOND_NS;
            let priority = loads.begin(by(1, 10), SMALL, begin_ns, || false);
            loads.end(10, None, begin_ns + took_ns);
            priority == Some(Priority::Usual)
        };
        assert!(dies_after(1, SECOND_NS));
        let again = (3..1_000).find(|second| dies_after(*second, 0));
        assert!(again.is_some_and(|second| second > 200), "{again:?}");
    }

    #[test]
    fn who_has_not_compiled_for_a_while_is_forgotten() {
        let loads = Loads::default();
        for tenant in 0..100 {
            load(&loads, (tenant, tenant), 2_000, 200_000, SECOND_NS);
        }
        load(&loads, (1, 1), 2_000, 200_000, 3 * SECOND_NS);
        assert_eq!(loads.lock().len(), 1);
    }

    #[test]
    fn one_session_of_a_tenant_compiles_large_modules_at_a_time() {
        let loads = Loads::default();
        let lowest = |tenant, session| loads.begin(by(tenant, session), None, 0, || false);
        assert_eq!(lowest(1, 10), Some(Priority::Lowest));
        // Another tenant's does not wait.
        assert_eq!(lowest(2, 20), Some(Priority::Lowest));
        std::thread::scope(|scope| {
            let second = scope.spawn(|| lowest(1, 11));
            while !second.is_finished() {
                loads.end(10, None, 0);
                std::thread::yield_now();
            }
        });
        let compiles = |tenant| loads.lock()[&tenant].lowest.map(|(session, _)| session);
        assert_eq!((compiles(1), compiles(2)), (Some(11), Some(20)));
    }

    #[test]
    fn who_waits_to_compile_waits_as_long_as_it_lives() {
        let loads = Loads::default();
        assert_eq!(loads.begin(by(1, 10), None, 0, || false), Some(Priority::Lowest));
        let looks = Cell::new(0);
        let dies_later = || looks.replace(looks.get() + 1) == 2;
        assert_eq!(loads.begin(by(1, 11), None, 0, dies_later), None);
        // Its end takes nothing from the one that compiles.
        loads.end(11, None, 0);
        assert!(loads.lock()[&1].lowest.is_some_and(|(session, _)| session == 10));
    }
}
