//! Which thread submits through which lane.
//!
//! Every thread leases a lane at its first call and keeps it while it lives. The last lane is
//! shared, under a lock, by the threads that found no other. A dead thread leaves its lane as it
//! is: the next thread that needs one asks the system whether the owner still exists. That needs no
//! destructor in the application's threads, and only the first call of a thread pays for it.

use core::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::sys;

/// A thread, for as long as the process lives: its number is never used again, its id may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ThreadKey {
    /// Counts the threads that ever came here, from 1.
    number: u32,
    /// The system's id.
    id: u32,
}

impl ThreadKey {
    fn pack(self) -> u64 {
        u64::from(self.number) << 32 | u64::from(self.id)
    }

    #[expect(clippy::cast_possible_truncation, reason = "takes the halves apart")]
    fn unpack(packed: u64) -> Option<Self> {
        (packed != 0).then_some(Self { number: (packed >> 32) as u32, id: packed as u32 })
    }
}

/// The last leases that a thread used: a process holds few sessions.
const REMEMBERED: usize = 4;
/// A thread in the shared lane looks for a lane of its own at every so many-th call.
const RETRY_EVERY: u32 = 256;

#[derive(Clone, Copy)]
struct Lease {
    pool: u32,
    lane: u32,
    /// Calls until a thread in the shared lane looks again; 0 for an own lane.
    retry: u32,
}

thread_local! {
    static KEY: Cell<u64> = const { Cell::new(0) };
    static LEASES: Cell<[Lease; REMEMBERED]> =
        const { Cell::new([Lease { pool: 0, lane: 0, retry: 0 }; REMEMBERED]) };
}

static THREADS: AtomicU32 = AtomicU32::new(1);
static POOLS: AtomicU32 = AtomicU32::new(1);

fn this_thread() -> ThreadKey {
    KEY.with(|key| {
        ThreadKey::unpack(key.get()).unwrap_or_else(|| {
            let number = THREADS.fetch_add(1, Ordering::Relaxed);
            let own = ThreadKey { number, id: sys::thread_id() };
            key.set(own.pack());
            own
        })
    })
}

/// The calling thread's id, which is asked for once.
pub(crate) fn thread_id() -> u32 {
    this_thread().id
}

/// How the calling thread may use its lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Leased {
    /// Alone; `fresh` at the first use, when the lane must be taken over from its last owner.
    Own { lane: usize, fresh: bool },
    /// Together with others, under the lane's lock.
    Shared { lane: usize },
}

/// The lanes of one session, seen from its threads.
#[derive(Debug)]
pub(crate) struct LanePool {
    id: u32,
    owners: Vec<AtomicU64>,
}

impl LanePool {
    /// A pool of `lanes` lanes, the last of which is shared.
    pub(crate) fn new(lanes: usize) -> Self {
        let owners = (1..lanes).map(|_| AtomicU64::new(0)).collect();
        Self { id: POOLS.fetch_add(1, Ordering::Relaxed), owners }
    }

    /// The calling thread's lane.
    pub(crate) fn lease(&self) -> Leased {
        let mut leases = LEASES.with(Cell::get);
        let at = leases.iter().position(|lease| lease.pool == self.id);
        if let Some(at) = at {
            let lease = &mut leases[at];
            let lane = lease.lane as usize;
            if lease.retry == 0 {
                return Leased::Own { lane, fresh: false };
            }
            lease.retry -= 1;
            if lease.retry > 0 {
                LEASES.with(|all| all.set(leases));
                return Leased::Shared { lane };
            }
        }
        // The oldest lease makes room; its lane stays owned and is found again by its owner's key.
        let at = at.unwrap_or(REMEMBERED - 1);
        leases[..=at].rotate_right(1);
        let (lane, retry, leased) = match self.own_lane() {
            Some(lane) => (lane, 0, Leased::Own { lane, fresh: true }),
            None => {
                let lane = self.owners.len();
                (lane, RETRY_EVERY, Leased::Shared { lane })
            }
        };
        let lane = u32::try_from(lane).unwrap_or(u32::MAX);
        leases[0] = Lease { pool: self.id, lane, retry };
        LEASES.with(|all| all.set(leases));
        leased
    }

    /// Finds the thread's lane again, or takes a dead thread's, or one that nobody had yet.
    fn own_lane(&self) -> Option<usize> {
        let me = this_thread();
        let owned = |owner: &AtomicU64| owner.load(Ordering::Relaxed) == me.pack();
        self.owners.iter().position(owned).or_else(|| {
            self.owners.iter().position(|owner| {
                let before = owner.load(Ordering::Acquire);
                let vacant = ThreadKey::unpack(before).is_none_or(|owner| is_dead(owner, me));
                vacant
                    && owner
                        .compare_exchange(before, me.pack(), Ordering::AcqRel, Ordering::Relaxed)
                        .is_ok()
            })
        })
    }
}

fn is_dead(owner: ThreadKey, me: ThreadKey) -> bool {
    // An id of mine under another number: the system gave me a dead thread's id.
    owner.id == me.id || !sys::thread_exists(owner.id)
}
