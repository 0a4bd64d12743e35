//! A device whose memory is lent session by session: who has how much of it there.
//!
//! Who gives is decided in [`weft_sched::memory::Lending`]. Here those that ask wait until others
//! have saved, for so long as they may take.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use weft_sched::VgpuKey;
use weft_sched::memory::{Lending, Room, Wish};

use crate::admin::{LENT_BY_SESSIONS, LastSwitch, MemoryReport};

/// Sessions have saved what they owe within this time after they stand still, or are ended: a
/// GPU's whole memory takes some seconds.
const SAVE_LIMIT: Duration = Duration::from_secs(60);

/// Who waits looks again after this time.
const LOOK: Duration = Duration::from_millis(20);

/// What moving takes before anything was moved, in ps a byte: 5 GB/s.
const FIRST_PS: u64 = 200;

/// Of what an exchange took, this part enters what the next is expected to take.
const PART: u64 = 4;

/// The memory of a device that is lent session by session.
#[derive(Debug)]
pub(crate) struct Lender {
    capacity: u64,
    /// What all vGPUs together may have.
    lent: u64,
    /// How long a session that owes has to stand still: its longest kernel, and some grace.
    pause_limit: Duration,
    state: Mutex<State>,
    /// Somebody has saved, is gone or has room.
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    lending: Lending,
    /// What each that owes was told.
    due: BTreeMap<u32, Due>,
    /// Numbers what they are told.
    next: u64,
    /// What each that was promised room has to move for it, with others, in bytes.
    moves: BTreeMap<u32, u64>,
    /// What moving takes of late, in ps a byte.
    ps: u64,
    totals: Totals,
    last: Option<(u32, u64, u64)>,
}

/// A session that owes is to stand still, once for each number, and has time until then.
#[derive(Debug, Clone, Copy)]
struct Due {
    number: u64,
    until: Instant,
}

#[derive(Debug, Default)]
struct Totals {
    exchanges: u64,
    bytes: u64,
    ns: u64,
}

/// What a session that waits for room may do to those that owe.
pub(crate) trait Pressure {
    /// Has a session stand still, once for each number.
    fn pause(&self, session: u32, number: u64);

    /// Ends a session that does not give back what it owes.
    fn end(&self, session: u32);

    /// Whether whoever waits is gone itself.
    fn is_over(&self) -> bool;
}

impl Lender {
    /// A device of so many bytes, which are lent as so many. Who had no turn for `idle_ns` is idle. No earlier daemon's pauses
    /// have numbers from `first_number` on.
    pub(crate) fn new(
        (capacity, lent): (u64, u64),
        idle_ns: u64,
        pause_limit: Duration,
        first_number: u64,
    ) -> Self {
        let state = State {
            lending: Lending::new(capacity, idle_ns),
            due: BTreeMap::new(),
            next: first_number,
            moves: BTreeMap::new(),
            ps: FIRST_PS,
            totals: Totals::default(),
            last: None,
        };
        Self { capacity, lent, pause_limit, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Each change is made whole before anything can fail.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Most bytes that one session can have.
    pub(crate) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// A session begins, with so many bytes on the device.
    pub(crate) fn begin(&self, now_ns: u64, session: u32, vgpu: u32, held: u64) {
        self.lock().lending.begin(now_ns, session, VgpuKey(vgpu), held);
    }

    /// A session is over.
    pub(crate) fn end(&self, session: u32) {
        let mut state = self.lock();
        state.lending.end(session);
        state.due.remove(&session);
        state.moves.remove(&session);
        drop(state);
        self.changed.notify_all();
    }

    /// A session has so many bytes on the device now, of which so many stay there.
    pub(crate) fn holds(&self, session: u32, bytes: u64, fixed: u64) {
        let mut state = self.lock();
        state.lending.holds(session, bytes, fixed);
        // Who owes still is told so again.
        state.due.remove(&session);
        drop(state);
        self.changed.notify_all();
    }

    /// A session loads a module from now on, or not any more.
    pub(crate) fn set_loads(&self, session: u32, loads: bool) {
        self.lock().lending.set_loads(session, loads);
    }

    /// Whether a session of a vGPU with this quota may have so much on the device that stays there:
    /// of that all vGPUs together may have no more than there is.
    pub(crate) fn may_fix(&self, session: u32, vgpu: u32, fixed: u64, quota: u64) -> bool {
        let all = self.lock().lending.fixed_beside(VgpuKey(vgpu), session).saturating_add(fixed);
        u128::from(all) * u128::from(self.lent) <= u128::from(quota) * u128::from(self.capacity)
    }

    /// A vGPU's turn is over.
    pub(crate) fn end_turn(&self, now_ns: u64, vgpu: u32) {
        self.lock().lending.end_turn(now_ns, VgpuKey(vgpu));
    }

    /// What a session that stands still has to save, if anything: it has its time from now on.
    pub(crate) fn debt(&self, session: u32) -> Option<u64> {
        let mut state = self.lock();
        let bytes = Some(state.lending.owes(session)).filter(|bytes| *bytes > 0)?;
        state.extend(session);
        Some(bytes)
    }

    /// A session asks for room: how long the exchange is expected to take, in ns.
    pub(crate) fn ask(&self, session: u32, wish: Wish) -> u64 {
        let mut state = self.lock();
        state.lending.ask(session, wish);
        let bytes = state.lending.to_move(session);
        let moves = state.moves.entry(session).or_default();
        *moves = (*moves).max(bytes);
        bytes.saturating_mul(state.ps) / 1_000
    }

    /// Waits until a session that has asked has its room, or is to save itself, or there is none.
    /// One of which something is in flight waits for nobody ([`Room::Waits`]).
    pub(crate) fn wait(
        &self,
        now_ns: impl Fn() -> u64,
        session: u32,
        stands: bool,
        pressure: &impl Pressure,
    ) -> Room {
        let mut state = self.lock();
        loop {
            let room = state.lending.look(now_ns(), session, stands);
            let over = pressure.is_over();
            if room != Room::Waits || over || !stands {
                // It asks anew when it stands.
                state.lending.cancel(session);
                if let Room::Save { .. } = room {
                    state.extend(session);
                }
                drop(state);
                self.changed.notify_all();
                return room;
            }
            let now = Instant::now();
            let debtors = state.lending.debtors();
            state.due.retain(|session, _| debtors.contains(session));
            let mut late = Vec::new();
            for debtor in debtors {
                let Due { number, until } = state.told(debtor, now + self.pause_limit);
                if state.lending.loads(debtor) {
                    // A compiler takes as long as it takes.
                    state.due.insert(debtor, Due { number, until: now + self.pause_limit });
                } else if now >= until {
                    late.push(debtor);
                    // Once: its end is noticed by its thread.
                    state.due.insert(debtor, Due { number, until: now + SAVE_LIMIT });
                }
                pressure.pause(debtor, number);
            }
            if !late.is_empty() {
                drop(state);
                late.into_iter().for_each(|session| pressure.end(session));
                state = self.lock();
                continue;
            }
            let waited = self.changed.wait_timeout(state, LOOK);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// What a session asked for is there, so long after it asked.
    pub(crate) fn note_brought(&self, session: u32, vgpu: u32, took_ns: u64) {
        let mut state = self.lock();
        let Some(bytes) = state.moves.remove(&session).filter(|bytes| *bytes > 0) else { return };
        let ps = u128::from(took_ns) * 1_000 / u128::from(bytes);
        let ps = u64::try_from(ps).unwrap_or(u64::MAX).min(FIRST_PS * 1_000);
        state.ps = state.ps - state.ps / PART + ps / PART;
        let totals = &mut state.totals;
        totals.exchanges += 1;
        totals.bytes = totals.bytes.saturating_add(bytes);
        totals.ns = totals.ns.saturating_add(took_ns);
        state.last = Some((vgpu, bytes, took_ns));
    }

    /// Bytes that a vGPU has on the device.
    pub(crate) fn held_by_vgpu(&self, vgpu: u32) -> u64 {
        self.lock().lending.held_by_vgpu(VgpuKey(vgpu))
    }

    /// What exchanges cost, in `report`.
    pub(crate) fn describe(&self, report: &mut MemoryReport, name_of: impl Fn(u32) -> String) {
        let state = self.lock();
        let Totals { exchanges, bytes, ns } = state.totals;
        report.placement = LENT_BY_SESSIONS.to_owned();
        report.slots.clear();
        (report.switches, report.moved_bytes, report.copying_ns) = (exchanges, bytes, ns);
        report.last_switch = state.last.map(|(vgpu, bytes, ns)| LastSwitch {
            vgpu: name_of(vgpu),
            moved_bytes: bytes,
            ns,
            ..LastSwitch::default()
        });
    }
}

impl State {
    /// A session that owes is told so: unless it was, it has time until then.
    fn told(&mut self, session: u32, until: Instant) -> Due {
        if let Some(due) = self.due.get(&session) {
            return *due;
        }
        self.next += 1;
        let due = Due { number: self.next, until };
        self.due.insert(session, due);
        due
    }

    /// A session that owes stands still: it has time to save.
    fn extend(&mut self, session: u32) {
        let until = Instant::now() + SAVE_LIMIT;
        let Due { number, .. } = self.told(session, until);
        self.due.insert(session, Due { number, until });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    const CAPACITY: u64 = 100;
    const NOW_NS: u64 = 1;

    /// What happened to those that owe.
    #[derive(Default)]
    struct Seen {
        paused: Mutex<Vec<u32>>,
        ended: Mutex<Vec<u32>>,
        over: AtomicBool,
    }

    impl Pressure for Seen {
        fn pause(&self, session: u32, _number: u64) {
            self.paused.lock().unwrap().push(session);
        }

        fn end(&self, session: u32) {
            self.ended.lock().unwrap().push(session);
        }

        fn is_over(&self) -> bool {
            self.over.load(Ordering::SeqCst)
        }
    }

    fn wish(total: u64) -> Wish {
        Wish { total, ..Wish::default() }
    }

    fn lender(pause_limit: Duration) -> Lender {
        let lender = Lender::new((CAPACITY, 4 * CAPACITY), 1_000, pause_limit, 0);
        lender.begin(NOW_NS, 1, 1, 80);
        lender.begin(NOW_NS, 2, 2, 0);
        lender
    }

    #[test]
    fn who_waits_is_served_when_the_other_has_saved() {
        let (lender, seen) = (lender(Duration::from_secs(600)), Seen::default());
        assert_eq!(lender.ask(2, wish(50)), (50 + 30) * FIRST_PS / 1_000);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| lender.wait(|| NOW_NS, 2, true, &seen));
            while seen.paused.lock().unwrap().is_empty() {
                std::thread::yield_now();
            }
            assert_eq!(lender.debt(1), Some(30));
            lender.holds(1, 50, 0);
            assert_eq!(waits.join().unwrap(), Room::Granted);
        });
        assert_eq!(lender.debt(1), None);
        assert!(seen.ended.lock().unwrap().is_empty());
        lender.note_brought(2, 2, 80_000);
        let mut report = MemoryReport::default();
        lender.describe(&mut report, |vgpu| vgpu.to_string());
        assert_eq!((report.switches, report.moved_bytes, report.copying_ns), (1, 80, 80_000));
    }

    #[test]
    fn who_does_not_save_is_ended_and_its_memory_is_free() {
        let (lender, seen) = (lender(Duration::ZERO), Seen::default());
        lender.ask(2, wish(50));
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| lender.wait(|| NOW_NS, 2, true, &seen));
            while seen.ended.lock().unwrap().is_empty() {
                std::thread::yield_now();
            }
            lender.end(1);
            assert_eq!(waits.join().unwrap(), Room::Granted);
        });
        assert_eq!(*seen.ended.lock().unwrap(), [1], "once");
    }

    #[test]
    fn what_stays_on_the_device_is_a_vgpus_part_of_it() {
        let lender = lender(Duration::from_secs(600));
        lender.begin(NOW_NS, 3, 1, 0);
        lender.holds(3, 20, 10);
        // A quarter of the quota, as all of the device is of what is lent.
        assert!(lender.may_fix(1, 1, 15, 100) && !lender.may_fix(1, 1, 16, 100));
        assert!(lender.may_fix(2, 2, 25, 100) && !lender.may_fix(2, 2, 26, 100));
    }

    #[test]
    fn who_cannot_wait_is_told_so_and_asks_anew() {
        let (lender, seen) = (lender(Duration::from_secs(600)), Seen::default());
        lender.ask(2, wish(50));
        assert_eq!(lender.wait(|| NOW_NS, 2, false, &seen), Room::Waits);
        lender.ask(2, wish(20));
        assert_eq!(lender.wait(|| NOW_NS, 2, false, &seen), Room::Granted);
        lender.ask(2, wish(CAPACITY + 1));
        assert_eq!(lender.wait(|| NOW_NS, 2, true, &seen), Room::Refused);
        seen.over.store(true, Ordering::SeqCst);
        lender.ask(2, wish(90));
        assert_eq!(lender.wait(|| NOW_NS, 2, true, &seen), Room::Waits, "it is gone");
    }
}
