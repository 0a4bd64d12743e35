//! Connections of tenants that have not said hello yet.
//!
//! They cost a descriptor each and no thread, and each tenant has a bounded number: whoever
//! connects and says nothing only keeps its own tenant waiting. Pure: who reads, and when, is told.

use std::time::{Duration, Instant};

use weft_ring::peer::Credentials;

/// Silent connections of one tenant.
const PER_TENANT: usize = 64;

/// Silent connections of all tenants.
const ALL: usize = 512;

/// A connection that has said nothing yet.
#[derive(Debug)]
pub(crate) struct Connection<S> {
    /// The connection.
    pub(crate) socket: S,
    /// Who it is, as the system says.
    pub(crate) tenant: Credentials,
    /// The user whose tenant it belongs to.
    pub(crate) payer: u32,
    /// When it came.
    pub(crate) came: Instant,
}

/// All of them, in the order in which they came.
#[derive(Debug)]
pub(crate) struct Pending<S> {
    connections: Vec<Connection<S>>,
    room: usize,
    room_per_tenant: usize,
    patience: Duration,
}

impl<S> Pending<S> {
    /// A table in which everybody may be silent for `patience`; `files` is the limit on open files,
    /// of which it takes an eighth at most.
    pub(crate) fn new(files: u64, patience: Duration) -> Self {
        let share = usize::try_from(files / 8).unwrap_or(usize::MAX);
        let room = ALL.min(share).max(4);
        Self { connections: Vec::new(), room, room_per_tenant: PER_TENANT.min(room / 4), patience }
    }

    /// Lets a newcomer in. Who has to go for it: itself when its tenant has its places, else the
    /// oldest of the tenant that has most.
    pub(crate) fn admit(&mut self, connection: Connection<S>) -> Option<Connection<S>> {
        if self.count(connection.payer) >= self.room_per_tenant {
            return Some(connection);
        }
        self.connections.push(connection);
        if self.connections.len() <= self.room {
            return None;
        }
        let payers = || self.connections.iter().map(|connection| connection.payer);
        let crowd = payers().max_by_key(|payer| self.count(*payer))?;
        let oldest = payers().position(|payer| payer == crowd)?;
        Some(self.connections.remove(oldest))
    }

    fn count(&self, payer: u32) -> usize {
        self.connections.iter().filter(|connection| connection.payer == payer).count()
    }

    /// The connections, in the order of [`Self::take_marked`]'s marks.
    pub(crate) fn sockets(&self) -> impl Iterator<Item = &S> {
        self.connections.iter().map(|connection| &connection.socket)
    }

    /// Those who go: the marked ones, who have something to say.
    pub(crate) fn take_marked(&mut self, marked: &[bool]) -> Vec<Connection<S>> {
        let mut marks = marked.iter();
        self.connections.extract_if(.., |_| marks.next().is_some_and(|marked| *marked)).collect()
    }

    /// Those who have been silent for too long.
    pub(crate) fn take_silent(&mut self, now: Instant) -> Vec<Connection<S>> {
        let patience = self.patience;
        let is_late = |connection: &mut Connection<S>| {
            now.saturating_duration_since(connection.came) >= patience
        };
        self.connections.extract_if(.., is_late).collect()
    }

    /// How long until somebody has been silent for too long.
    pub(crate) fn patience_left(&self, now: Instant) -> Option<Duration> {
        let first = self.connections.iter().map(|connection| connection.came).min()?;
        Some((first + self.patience).saturating_duration_since(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(2);

    /// A connection of a user whom a tenant has made; each comes as another one.
    fn connection(payer: u32, socket: u32, came: Instant) -> Connection<u32> {
        let tenant = Credentials { pid: None, uid: 100_000 + socket, gid: 0 };
        Connection { socket, tenant, payer, came }
    }

    #[test]
    fn silent_connections_of_one_tenant_keep_nobody_else_out() {
        let mut pending = Pending::new(128, PATIENCE);
        let start = Instant::now();
        let refused: Vec<u32> = (0..10)
            .filter_map(|i| pending.admit(connection(1, i, start)))
            .map(|g| g.socket)
            .collect();
        assert_eq!(refused, [4, 5, 6, 7, 8, 9], "a tenant has a quarter of the places");
        for (uid, name) in [(2, 20), (3, 30)] {
            assert!((0..4).all(|i| pending.admit(connection(uid, name + i, start)).is_none()));
        }
        assert!((0..3).all(|i| pending.admit(connection(4, 40 + i, start)).is_none()));
        assert!(pending.admit(connection(5, 50, start)).is_none());
        let gone = pending.admit(connection(6, 60, start)).unwrap();
        assert!(gone.payer <= 3, "one of those who have most goes, not {gone:?}");
        let waiting: Vec<u32> = pending.sockets().copied().collect();
        assert!(waiting.contains(&50) && waiting.contains(&60));
    }

    #[test]
    fn who_speaks_leaves_and_who_is_silent_for_long_is_told() {
        let mut pending = Pending::new(1024, PATIENCE);
        let start = Instant::now();
        for i in 0..4 {
            let came = start + Duration::from_millis(u64::from(i));
            assert!(pending.admit(connection(1, i, came)).is_none());
        }
        let speaking = pending.take_marked(&[false, true, false, true]);
        assert_eq!(speaking.iter().map(|connection| connection.socket).collect::<Vec<_>>(), [1, 3]);
        assert_eq!(pending.patience_left(start), Some(PATIENCE));
        let silent = pending.take_silent(start + PATIENCE);
        assert_eq!(silent.iter().map(|connection| connection.socket).collect::<Vec<_>>(), [0]);
        let silent = pending.take_silent(start + 2 * PATIENCE);
        assert_eq!(silent.len(), 1);
        assert_eq!(pending.patience_left(start), None);
    }
}
