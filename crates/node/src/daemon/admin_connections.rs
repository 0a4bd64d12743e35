//! Who is connected to the admin socket. Everybody may be, so tenants are bounded, each and all
//! together, and administrators have places of their own. Pure.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::roles::Caller;
use super::tenancy;

/// Administrators that may be connected at once (every `weft run --name` is one for a moment).
const ADMINISTRATORS_MAX: usize = 1024;

/// Connections of other users at once.
const USERS_MAX: usize = 256;

/// Connections of one tenant's users at once.
const PER_TENANT_MAX: usize = 16;

/// Requests that a tenant's users may make in a burst, on all connections together, and the time
/// after which they may make another one: what they ask must not keep the tables and the scheduling
/// thread busy.
const BURST: u32 = 20;
const INTERVAL: Duration = Duration::from_millis(50);

/// The connections of the admin socket.
#[derive(Debug, Default)]
pub(crate) struct AdminConnections {
    administrators: usize,
    /// Of users, by their tenants.
    tenants: BTreeMap<u32, usize>,
    /// When the last request of a tenant's users would have come at the pace that they may keep up.
    due: BTreeMap<u32, Instant>,
}

impl AdminConnections {
    /// Takes a place, or says which limit is met.
    pub(crate) fn enter(&mut self, caller: Caller) -> Result<(), String> {
        if caller.administrates() {
            if self.administrators >= ADMINISTRATORS_MAX {
                return Err(format!("the node serves {ADMINISTRATORS_MAX} administrators already"));
            }
            self.administrators += 1;
            return Ok(());
        }
        let Caller { uid, payer, .. } = caller;
        if self.tenants.get(&payer).is_some_and(|count| *count >= PER_TENANT_MAX) {
            return Err(format!(
                "{} has {PER_TENANT_MAX} connections to the node's admin socket already; end some \
                 of them",
                tenancy::in_words(payer, uid)
            ));
        }
        if self.tenants.values().sum::<usize>() >= USERS_MAX {
            return Err(format!("the node answers {USERS_MAX} users already; try again"));
        }
        *self.tenants.entry(payer).or_default() += 1;
        Ok(())
    }

    /// How long a request that came at `now` waits until it is answered. A tenant is remembered for
    /// as long as its pace is, whether its users are connected or not.
    pub(crate) fn wait(&mut self, caller: Caller, now: Instant) -> Duration {
        if caller.administrates() {
            return Duration::ZERO;
        }
        self.due.retain(|_, due| *due > now);
        let due = self.due.entry(caller.payer).or_insert(now);
        *due += INTERVAL;
        due.saturating_duration_since(now + BURST * INTERVAL)
    }

    /// Gives a place back.
    pub(crate) fn leave(&mut self, caller: Caller) {
        if caller.administrates() {
            self.administrators = self.administrators.saturating_sub(1);
        } else if let Some(count) = self.tenants.get_mut(&caller.payer) {
            *count -= 1;
            if *count == 0 {
                self.tenants.remove(&caller.payer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::roles::Role;

    #[test]
    fn users_crowd_out_neither_each_other_nor_administrators() {
        let mut admin_connections = AdminConnections::default();
        let user = |uid| Caller { uid, payer: uid, role: Role::User };
        let root = Caller { uid: 0, payer: 0, role: Role::Administrator };
        // Users whom user 7 has made are its tenant's.
        let made = |uid| Caller { payer: 7, ..user(uid) };
        let taken = (7000..7100).filter(|uid| admin_connections.enter(made(*uid)).is_ok()).count();
        assert_eq!(taken, PER_TENANT_MAX);
        admin_connections.enter(user(8)).unwrap();
        for uid in 100..1000 {
            let _ = admin_connections.enter(user(uid));
        }
        assert_eq!(admin_connections.tenants.values().sum::<usize>(), USERS_MAX);
        admin_connections.enter(root).unwrap();
        admin_connections.leave(user(7));
        admin_connections.enter(user(9)).unwrap();
        assert!(admin_connections.enter(user(10)).is_err());
    }

    #[test]
    fn who_connects_anew_for_each_request_asks_no_more_often() {
        let mut admin_connections = AdminConnections::default();
        let now = Instant::now();
        let ask = |admin_connections: &mut AdminConnections, uid, payer, now| {
            let caller = Caller { uid, payer, role: Role::User };
            admin_connections.enter(caller).unwrap();
            let wait = admin_connections.wait(caller, now);
            admin_connections.leave(caller);
            wait
        };
        // As different users of one tenant, too.
        let waits: Vec<_> = (0..30).map(|uid| ask(&mut admin_connections, uid, 7, now)).collect();
        assert!(waits[..20].iter().all(Duration::is_zero), "{waits:?}");
        assert_eq!(waits[29], 10 * INTERVAL);
        assert_eq!(ask(&mut admin_connections, 8, 8, now), Duration::ZERO);
        let root = Caller { uid: 0, payer: 0, role: Role::Administrator };
        assert!((0..100).all(|_| admin_connections.wait(root, now).is_zero()));
        assert_eq!(ask(&mut admin_connections, 9, 7, now + 31 * INTERVAL), Duration::ZERO);
        assert_eq!(admin_connections.due.len(), 1, "who has not asked for a while is forgotten");
    }
}
