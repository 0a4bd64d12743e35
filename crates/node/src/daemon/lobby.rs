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
pub(crate) struct Guest<S> {
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
pub(crate) struct Lobby<S> {
    guests: Vec<Guest<S>>,
    room: usize,
    room_per_tenant: usize,
    patience: Duration,
}

impl<S> Lobby<S> {
    /// A lobby in which everybody may be silent for `patience`; `files` is the limit on open files,
    /// of which it takes an eighth at most.
    pub(crate) fn new(files: u64, patience: Duration) -> Self {
        let share = usize::try_from(files / 8).unwrap_or(usize::MAX);
        let room = ALL.min(share).max(4);
        Self { guests: Vec::new(), room, room_per_tenant: PER_TENANT.min(room / 4), patience }
    }

    /// Lets a newcomer in. Who has to go for it: itself when its tenant has its places, else the
    /// oldest of the tenant that has most.
    pub(crate) fn enter(&mut self, guest: Guest<S>) -> Option<Guest<S>> {
        if self.count(guest.payer) >= self.room_per_tenant {
            return Some(guest);
        }
        self.guests.push(guest);
        if self.guests.len() <= self.room {
            return None;
        }
        let payers = || self.guests.iter().map(|guest| guest.payer);
        let crowd = payers().max_by_key(|payer| self.count(*payer))?;
        let oldest = payers().position(|payer| payer == crowd)?;
        Some(self.guests.remove(oldest))
    }

    fn count(&self, payer: u32) -> usize {
        self.guests.iter().filter(|guest| guest.payer == payer).count()
    }

    /// The connections, in the order of [`Self::leave`]'s marks.
    pub(crate) fn sockets(&self) -> impl Iterator<Item = &S> {
        self.guests.iter().map(|guest| &guest.socket)
    }

    /// Those who go: the marked ones, who have something to say.
    pub(crate) fn leave(&mut self, marked: &[bool]) -> Vec<Guest<S>> {
        let mut marks = marked.iter();
        self.guests.extract_if(.., |_| marks.next().is_some_and(|marked| *marked)).collect()
    }

    /// Those who have been silent for too long.
    pub(crate) fn take_silent(&mut self, now: Instant) -> Vec<Guest<S>> {
        let patience = self.patience;
        let is_late = |guest: &mut Guest<S>| now.saturating_duration_since(guest.came) >= patience;
        self.guests.extract_if(.., is_late).collect()
    }

    /// How long until somebody has been silent for too long.
    pub(crate) fn patience_left(&self, now: Instant) -> Option<Duration> {
        let first = self.guests.iter().map(|guest| guest.came).min()?;
        Some((first + self.patience).saturating_duration_since(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(2);

    /// A connection of a user whom a tenant has made; each comes as another one.
    fn guest(payer: u32, socket: u32, came: Instant) -> Guest<u32> {
        let tenant = Credentials { pid: None, uid: 100_000 + socket, gid: 0 };
        Guest { socket, tenant, payer, came }
    }

    #[test]
    fn silent_connections_of_one_tenant_keep_nobody_else_out() {
        let mut lobby = Lobby::new(128, PATIENCE);
        let start = Instant::now();
        let refused: Vec<u32> =
            (0..10).filter_map(|i| lobby.enter(guest(1, i, start))).map(|g| g.socket).collect();
        assert_eq!(refused, [4, 5, 6, 7, 8, 9], "a tenant has a quarter of the places");
        for (uid, name) in [(2, 20), (3, 30)] {
            assert!((0..4).all(|i| lobby.enter(guest(uid, name + i, start)).is_none()));
        }
        assert!((0..3).all(|i| lobby.enter(guest(4, 40 + i, start)).is_none()));
        assert!(lobby.enter(guest(5, 50, start)).is_none());
        let gone = lobby.enter(guest(6, 60, start)).unwrap();
        assert!(gone.payer <= 3, "one of those who have most goes, not {gone:?}");
        let waiting: Vec<u32> = lobby.sockets().copied().collect();
        assert!(waiting.contains(&50) && waiting.contains(&60));
    }

    #[test]
    fn who_speaks_leaves_and_who_is_silent_for_long_is_told() {
        let mut lobby = Lobby::new(1024, PATIENCE);
        let start = Instant::now();
        for i in 0..4 {
            let came = start + Duration::from_millis(u64::from(i));
            assert!(lobby.enter(guest(1, i, came)).is_none());
        }
        let speaking = lobby.leave(&[false, true, false, true]);
        assert_eq!(speaking.iter().map(|guest| guest.socket).collect::<Vec<_>>(), [1, 3]);
        assert_eq!(lobby.patience_left(start), Some(PATIENCE));
        let silent = lobby.take_silent(start + PATIENCE);
        assert_eq!(silent.iter().map(|guest| guest.socket).collect::<Vec<_>>(), [0]);
        let silent = lobby.take_silent(start + 2 * PATIENCE);
        assert_eq!(silent.len(), 1);
        assert_eq!(lobby.patience_left(start), None);
    }
}
