//! The ledger of host memory: what each session's worker takes of the machine, and how much a
//! tenant's sessions and all sessions may take together.
//!
//! Pure: the caller measures. While a session loads a promise stands for what it is about to take.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// What a worker takes before it has loaded anything, in bytes: promised at its start.
const WORKER_BYTES: u64 = 4 << 20;

/// Bytes that lowering takes for each byte of an image, and besides.
const LOWERED_PER_BYTE: u64 = 32;
const LOWERED_BYTES: u64 = 1 << 20;

/// A session is measured for the sake of others this often at most.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Host memory of all sessions.
#[derive(Debug)]
pub(crate) struct HostLedger {
    limit: u64,
    sessions: BTreeMap<u32, Held>,
}

#[derive(Debug, Clone, Copy)]
struct Held {
    /// The user whose tenant pays.
    payer: u32,
    /// The key of the vGPU, if it was granted to somebody else, as clouds do: it leaves room for
    /// others.
    lent: Option<u32>,
    /// As measured last, in bytes.
    measured: u64,
    /// What it may take besides until it is measured again, in bytes.
    promised: u64,
    /// It takes what it was promised right now: another measurement would not be all of it.
    is_loading: bool,
    /// Pinned memory, in bytes: what it may touch whenever it likes.
    pinned: u64,
    /// What its tables, queues and graphs may take beyond what they took when it asked, in bytes.
    ahead: u64,
    /// When it was measured last for the sake of others.
    looked_at: Option<Instant>,
}

/// Who has no more host memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HostError {
    /// The tenant of a user.
    #[error(
        "user {uid}'s sessions take {taken} MiB of host memory and may take {limit} MiB \
         (limits.users.*.host_memory); end one of them"
    )]
    User {
        /// Who.
        uid: u32,
        /// In MiB.
        taken: u64,
        /// In MiB.
        limit: u64,
    },
    /// A vGPU that was granted, beside others of the same user.
    #[error(
        "this vGPU's sessions would take {taken} MiB of host memory, more than the {left} MiB that \
         are left for other vGPUs of user {uid} (limits.users.*.host_memory, limits.host_memory)"
    )]
    Lent {
        /// Whose it is.
        uid: u32,
        /// In MiB.
        taken: u64,
        /// In MiB.
        left: u64,
    },
    /// The node.
    #[error(
        "all sessions take {taken} MiB of host memory and may take {limit} MiB \
         (limits.host_memory)"
    )]
    Node {
        /// In MiB.
        taken: u64,
        /// In MiB.
        limit: u64,
    },
}

impl Held {
    fn bytes(&self) -> u64 {
        // Pinned memory that was touched is measured, too: it counts once.
        let ahead = self.promised.saturating_add(self.ahead);
        self.measured.max(self.pinned).saturating_add(ahead)
    }
}

impl HostLedger {
    /// A machine whose sessions may take `limit` bytes.
    pub(crate) fn new(limit: u64) -> Self {
        Self { limit, sessions: BTreeMap::new() }
    }

    /// Whether there is room for the worker of another session of a tenant.
    pub(crate) fn check_room(
        &self,
        payer: u32,
        lent: Option<u32>,
        limit: u64,
    ) -> Result<(), HostError> {
        self.check(payer, lent, WORKER_BYTES, limit)
    }

    /// A session of a tenant is there, of a vGPU that was granted to somebody else perhaps.
    pub(crate) fn begin(&mut self, session: u32, payer: u32, lent: Option<u32>) {
        let held = Held {
            payer,
            lent,
            measured: 0,
            promised: WORKER_BYTES,
            is_loading: false,
            pinned: 0,
            ahead: 0,
            looked_at: None,
        };
        self.sessions.insert(session, held);
    }

    /// A session is over.
    pub(crate) fn end(&mut self, session: u32) {
        self.sessions.remove(&session);
    }

    /// A session takes so much now, and has taken what it was promised.
    pub(crate) fn measure(&mut self, session: u32, bytes: u64) {
        if let Some(held) = self.sessions.get_mut(&session) {
            (held.measured, held.promised, held.is_loading) = (bytes, 0, false);
        }
    }

    /// Sessions whose last measurement may be more than they take by now, for who would be refused:
    /// those of its tenant, or of all. They are to be measured, and are not named again for a
    /// while: who asks in a loop has nobody look at `/proc` all the time.
    pub(crate) fn stale(&mut self, refused: HostError, now: Instant) -> Vec<u32> {
        let is_of = |held: &Held| match refused {
            HostError::User { uid, .. } | HostError::Lent { uid, .. } => held.payer == uid,
            HostError::Node { .. } => true,
        };
        let is_due = |held: &Held| {
            held.looked_at.is_none_or(|at| now.saturating_duration_since(at) >= LOOK_EVERY)
        };
        let sessions = self.sessions.iter_mut();
        let stale = sessions.filter(|(_, held)| is_of(held) && !held.is_loading && is_due(held));
        stale
            .map(|(session, held)| {
                held.looked_at = Some(now);
                *session
            })
            .collect()
    }

    /// A session, just measured, is about to load images of so many bytes, or has loaded them and
    /// loads 0.
    pub(crate) fn promise(
        &mut self,
        session: u32,
        images: u64,
        limit: u64,
    ) -> Result<(), HostError> {
        let Some(held) = self.sessions.get(&session).copied() else { return Ok(()) };
        if images == 0 {
            self.sessions.insert(session, Held { promised: 0, is_loading: false, ..held });
            return Ok(());
        }
        let more = images.saturating_mul(LOWERED_PER_BYTE).saturating_add(LOWERED_BYTES);
        self.check(held.payer, held.lent, more, limit)?;
        self.sessions.insert(session, Held { promised: more, is_loading: true, ..held });
        Ok(())
    }

    /// A session, just measured, lets its tables, queues and graphs take so much more.
    pub(crate) fn grow(&mut self, session: u32, more: u64, limit: u64) -> Result<(), HostError> {
        let Some(held) = self.sessions.get_mut(&session) else { return Ok(()) };
        // What it was allowed before it has taken, and that was measured, or asks for now.
        let before = std::mem::take(&mut held.ahead);
        let (payer, lent) = (held.payer, held.lent);
        let checked = self.check(payer, lent, more, limit);
        if let Some(held) = self.sessions.get_mut(&session) {
            held.ahead = if checked.is_ok() { more } else { before };
        }
        checked
    }

    /// A session's new total of pinned memory.
    pub(crate) fn pin(&mut self, session: u32, bytes: u64, limit: u64) -> Result<(), HostError> {
        let Some(held) = self.sessions.get(&session).copied() else { return Ok(()) };
        let after = Held { pinned: bytes, ..held };
        let more = after.bytes().saturating_sub(held.bytes());
        if more > 0 {
            self.check(held.payer, held.lent, more, limit)?;
        }
        self.sessions.insert(session, after);
        Ok(())
    }

    /// What all sessions take, in bytes.
    fn total(&self) -> u64 {
        self.sessions.values().map(Held::bytes).sum()
    }

    fn check(&self, payer: u32, lent: Option<u32>, more: u64, limit: u64) -> Result<(), HostError> {
        let of_tenant = self.sessions.values().filter(|held| held.payer == payer);
        let of_tenant: u64 = of_tenant.map(Held::bytes).sum();
        if of_tenant.saturating_add(more) > limit {
            return Err(HostError::User { uid: payer, taken: of_tenant >> 20, limit: limit >> 20 });
        }
        let total = self.total();
        if total.saturating_add(more) > self.limit {
            return Err(HostError::Node { taken: total >> 20, limit: self.limit >> 20 });
        }
        let Some(vgpu) = lent else { return Ok(()) };
        // Whoever has one such vGPU knows nothing of the others' limits: as much as one has stays
        // free, so that there is something for the next one however many take all they can.
        let of_vgpu = self.sessions.values().filter(|held| held.lent == Some(vgpu));
        let taken = of_vgpu.map(Held::bytes).sum::<u64>().saturating_add(more);
        let left = (limit - of_tenant).min(self.limit - total) - more;
        if taken > left {
            let (taken, left) = (taken >> 20, left >> 20);
            return Err(HostError::Lent { uid: payer, taken, left });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// As a reservation is taken: a session begins if there is room.
    fn begin(
        ledger: &mut HostLedger,
        session: u32,
        payer: u32,
        limit: u64,
    ) -> Result<(), HostError> {
        ledger.check_room(payer, None, limit)?;
        ledger.begin(session, payer, None);
        Ok(())
    }

    #[test]
    fn sessions_of_a_user_share_what_the_user_may_take_and_users_what_the_node_may() {
        let mut ledger = HostLedger::new(200 * MIB);
        begin(&mut ledger, 1, 1000, 100 * MIB).unwrap();
        ledger.measure(1, 60 * MIB);
        begin(&mut ledger, 2, 1000, 100 * MIB).unwrap();
        ledger.measure(2, 40 * MIB);
        let refused = begin(&mut ledger, 3, 1000, 100 * MIB).unwrap_err();
        assert_eq!(refused, HostError::User { uid: 1000, taken: 100, limit: 100 });
        begin(&mut ledger, 3, 1001, 150 * MIB).unwrap();
        ledger.measure(3, 98 * MIB);
        let refused = begin(&mut ledger, 4, 1002, 100 * MIB).unwrap_err();
        assert_eq!(refused, HostError::Node { taken: 198, limit: 200 });
        ledger.end(1);
        begin(&mut ledger, 4, 1002, 100 * MIB).unwrap();
    }

    /// A cloud's vGPUs are all one user's, and each is another customer's.
    #[test]
    fn a_granted_vgpu_leaves_as_much_for_others_as_it_has() {
        let (one, other) = (Some(1), Some(2));
        let mut ledger = HostLedger::new(160 * MIB);
        for (session, vgpu) in [(1, one), (2, one), (3, other)] {
            ledger.check_room(0, vgpu, 1 << 40).unwrap();
            ledger.begin(session, 0, vgpu);
            ledger.measure(session, 10 * MIB);
        }
        ledger.pin(1, 55 * MIB, 1 << 40).unwrap();
        let refused = ledger.pin(2, 25 * MIB, 1 << 40).unwrap_err();
        assert_eq!(refused, HostError::Lent { uid: 0, taken: 80, left: 70 }, "{refused}");
    }

    #[test]
    fn modules_that_load_at_once_are_counted_before_they_are_there() {
        let mut ledger = HostLedger::new(1 << 40);
        for session in 0..4 {
            begin(&mut ledger, session, 1000, 200 * MIB).unwrap();
            ledger.measure(session, 10 * MIB);
        }
        let images = 2 * MIB;
        ledger.promise(0, images, 200 * MIB).unwrap();
        ledger.promise(1, images, 200 * MIB).unwrap();
        assert!(ledger.promise(2, images, 200 * MIB).is_err());
        // The first one's took less.
        ledger.measure(0, 30 * MIB);
        ledger.promise(2, images, 200 * MIB).unwrap();
        assert!(ledger.promise(3, u64::MAX, u64::MAX - 1).is_err());
    }

    #[test]
    fn a_promise_stands_for_as_long_as_the_load_and_what_is_idle_is_measured_before_a_refusal() {
        let mut ledger = HostLedger::new(1 << 40);
        for session in 0..3 {
            begin(&mut ledger, session, 1000, 200 * MIB).unwrap();
            ledger.measure(session, 10 * MIB);
        }
        begin(&mut ledger, 3, 1001, 200 * MIB).unwrap();
        ledger.promise(0, 4 * MIB, 200 * MIB).unwrap();
        // It has loaded, and took less than was promised.
        ledger.measure(0, 70 * MIB);
        ledger.promise(0, 0, 200 * MIB).unwrap();
        ledger.promise(1, 2 * MIB, 200 * MIB).unwrap();
        let refused = ledger.promise(2, 4 * MIB, 200 * MIB).unwrap_err();
        let now = Instant::now();
        assert_eq!(ledger.stale(refused, now), [0, 2], "one loads, and one is another tenant's");
        assert!(ledger.stale(refused, now).is_empty(), "they were looked at");
        assert_eq!(ledger.stale(refused, now + LOOK_EVERY), [0, 2]);
        let of_node = HostError::Node { taken: 0, limit: 0 };
        assert_eq!(ledger.stale(of_node, now), [3]);
        // It has unloaded what it had, and has said nothing since.
        ledger.measure(0, MIB);
        ledger.promise(2, 3 * MIB, 200 * MIB).unwrap();
    }

    #[test]
    fn what_tables_may_take_counts_before_they_take_it() {
        let mut ledger = HostLedger::new(1 << 40);
        for session in 0..3 {
            begin(&mut ledger, session, 1000, 100 * MIB).unwrap();
            ledger.measure(session, 10 * MIB);
        }
        ledger.grow(0, 40 * MIB, 100 * MIB).unwrap();
        let refused = ledger.grow(1, 31 * MIB, 100 * MIB).unwrap_err();
        assert_eq!(refused, HostError::User { uid: 1000, taken: 70, limit: 100 });
        // It has taken them, and asks for a few more.
        ledger.measure(0, 50 * MIB);
        ledger.grow(0, 5 * MIB, 100 * MIB).unwrap();
        ledger.grow(1, 25 * MIB, 100 * MIB).unwrap();
        assert!(ledger.grow(2, MIB, 100 * MIB).is_err());
        ledger.end(0);
        ledger.grow(2, MIB, 100 * MIB).unwrap();
    }

    #[test]
    fn pinned_memory_counts_once_and_goes() {
        let mut ledger = HostLedger::new(1 << 40);
        begin(&mut ledger, 1, 1000, 100 * MIB).unwrap();
        ledger.measure(1, 10 * MIB);
        ledger.pin(1, 90 * MIB, 100 * MIB).unwrap();
        ledger.measure(1, 95 * MIB);
        assert!(ledger.pin(1, 101 * MIB, 100 * MIB).is_err());
        ledger.pin(1, 0, 100 * MIB).unwrap();
        ledger.measure(1, 10 * MIB);
        begin(&mut ledger, 2, 1000, 100 * MIB).unwrap();
    }
}
