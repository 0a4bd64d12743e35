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

/// Whoever loads a module, or has not said since a daemon's restart what it has, keeps what others
/// need for so long at most, or for as long as a kernel may take.
const SILENT_LIMIT: Duration = Duration::from_secs(600);

/// Who waits looks again after this time, and tells those that owe again.
const LOOK: Duration = Duration::from_millis(20);

/// Who waits for one that loads a module is told to come later after this time: it has the turn.
const LOADER_LIMIT: Duration = Duration::from_millis(200);

/// A load that took longer has the session's memory saved before the next one, if others need it.
const LONG_LOAD: Duration = Duration::from_secs(1);

/// For so long.
const LONG_LOADS_LAST: Duration = Duration::from_secs(600);

/// So have images of so many bytes.
const LONG_IMAGES: u64 = 1 << 20;

/// What a vGPU's loads of modules have others save takes one part in so many of the time at most,
/// and the next one that has others save waits for so long at most.
const LOADS_PART: u32 = 16;
const LOADS_PAUSE: Duration = Duration::from_secs(10);

/// A session brings its memory within this time, and a second for each GB, or nobody waits for it.
const BRING_LIMIT: Duration = Duration::from_secs(60);

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
    /// Sessions whose memory is about to come, which have their turns meanwhile.
    exchanges: BTreeMap<u32, Exchange>,
    /// Since when sessions load modules, with their vGPUs, and the vGPUs whose loads take long.
    loading: BTreeMap<u32, (Instant, u32)>,
    slow: BTreeMap<u32, Instant>,
    /// Since when sessions wait for what others have to save for their modules.
    displacing: BTreeMap<u32, Instant>,
    /// Sessions of an earlier daemon that have not said yet what of theirs stays on the device.
    unheard: BTreeMap<u32, Instant>,
    /// When each vGPU's loads may have others save again.
    loads_again: BTreeMap<u32, Instant>,
    /// What moving takes of late, in ps a byte.
    ps: u64,
    totals: Totals,
    last: Option<(u32, u64, u64)>,
}

/// The memory of a session is about to come.
#[derive(Debug, Clone, Copy)]
struct Exchange {
    since: Instant,
    /// When it had room.
    granted: Option<Instant>,
    /// What is moved for it, by others and by itself, in bytes.
    bytes: u64,
}

impl Exchange {
    /// Whether it has its room, and time to bring its memory.
    fn comes(&self) -> bool {
        let limit = BRING_LIMIT + Duration::from_nanos(self.bytes);
        self.granted.is_some_and(|granted| granted.elapsed() < limit)
    }
}

/// A session that owes is to stand still, once for each number, and has time until then.
#[derive(Debug, Clone, Copy)]
struct Due {
    number: u64,
    until: Instant,
    /// It stands still.
    stood: bool,
    /// When it was told last.
    sent: Option<Instant>,
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
    /// A device of so many bytes, which are lent as so many. Who had no turn for `idle_ns` is idle.
    /// No earlier daemon's pauses have numbers from `first_number` on.
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
            exchanges: BTreeMap::new(),
            loading: BTreeMap::new(),
            slow: BTreeMap::new(),
            displacing: BTreeMap::new(),
            unheard: BTreeMap::new(),
            loads_again: BTreeMap::new(),
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
        // What its module had others save its vGPU's next one waits for all the same.
        state.end_displacing(session);
        state.lending.end(session);
        state.due.remove(&session);
        state.exchanges.remove(&session);
        state.loading.remove(&session);
        state.unheard.remove(&session);
        state.settle();
        drop(state);
        self.changed.notify_all();
    }

    /// A session has so many bytes on the device now, of which so many stay there.
    pub(crate) fn holds(&self, session: u32, bytes: u64, fixed: u64) {
        let mut state = self.lock();
        let shrinks = bytes < state.lending.held(session);
        state.lending.holds(session, bytes, fixed);
        // Who owes still is told so again, and has as long for the next part.
        if shrinks && let Some(due) = state.due.remove(&session) {
            let until = if due.stood { Instant::now() + SAVE_LIMIT } else { due.until };
            state.next += 1;
            let number = state.next;
            state.due.insert(session, Due { number, until, sent: None, ..due });
        }
        // Whoever says what it has is not about to bring any, whatever became of that.
        state.lending.end_bringing(session);
        state.exchanges.remove(&session);
        state.settle();
        drop(state);
        self.changed.notify_all();
    }

    /// Bytes that a session has on the device by this account.
    pub(crate) fn held(&self, session: u32) -> u64 {
        self.lock().lending.held(session)
    }

    /// A session is about to load a module of so many bytes. What it is to save before: as long as
    /// it compiles it cannot save what others need. `own` is all that it has, and `lacking` what
    /// the device lacks for all.
    pub(crate) fn begin_load(
        &self,
        (session, vgpu): (u32, u32),
        bytes: u64,
        (own, lacking): (u64, u64),
    ) -> Option<u64> {
        let mut state = self.lock();
        // What it owes it owes first: others have waited for it.
        let owes = state.lending.owes(session);
        if owes > 0 {
            state.extend(session);
            return Some(owes);
        }
        state.slow.retain(|_, since| since.elapsed() < LONG_LOADS_LAST);
        let is_long = bytes >= LONG_IMAGES || state.slow.contains_key(&vgpu);
        let absent = own.saturating_sub(state.lending.held(session));
        let save = lacking.saturating_sub(absent).min(state.lending.movable(session));
        if is_long && save > 0 {
            return Some(save);
        }
        state.lending.set_loads(session, true);
        state.loading.insert(session, (Instant::now(), vgpu));
        None
    }

    /// A session that loads a module waits for its turn to compile it: meanwhile it can save.
    pub(crate) fn pause_load(&self, session: u32) {
        self.lock().lending.set_loads(session, false);
    }

    /// It compiles it now.
    pub(crate) fn resume_load(&self, session: u32, vgpu: u32) {
        let mut state = self.lock();
        state.lending.set_loads(session, true);
        state.loading.insert(session, (Instant::now(), vgpu));
    }

    /// A session does not load a module any more.
    pub(crate) fn end_load(&self, session: u32) {
        let mut state = self.lock();
        state.lending.set_loads(session, false);
        if let Some((since, vgpu)) = state.loading.remove(&session)
            && since.elapsed() > LONG_LOAD
        {
            state.slow.insert(vgpu, Instant::now());
        }
        drop(state);
        self.changed.notify_all();
    }

    /// A session of an earlier daemon may load one: it is not asked for anything before it says
    /// something. All that it has may be on the device.
    pub(crate) fn adopt(&self, session: u32, held: u64) {
        let mut state = self.lock();
        state.lending.holds(session, held, 0);
        state.lending.set_loads(session, true);
        state.unheard.insert(session, Instant::now());
    }

    /// Has the sessions of an earlier daemon say what of theirs is on the device.
    pub(crate) fn hear(&self, pause: impl Fn(u32, u64)) {
        let mut state = self.lock();
        let unheard: Vec<u32> = state.unheard.keys().copied().collect();
        for session in unheard {
            state.next += 1;
            pause(session, state.next);
        }
    }

    /// Whether the session's memory is about to come, so that its turn is not used yet.
    pub(crate) fn is_exchanging(&self, session: u32) -> bool {
        let state = self.lock();
        let saves = |due: &Due| due.stood && Instant::now() < due.until;
        let comes = |exchange: &Exchange| exchange.granted.is_none() || exchange.comes();
        state.due.get(&session).is_some_and(saves)
            || state.exchanges.get(&session).is_some_and(comes)
    }

    /// Bytes that other sessions cannot save.
    pub(crate) fn all_fixed_beside(&self, session: u32) -> u64 {
        self.lock().lending.all_fixed_beside(session)
    }

    /// What a session can say of itself stays on the device: no more than it was allowed. A session
    /// of an earlier daemon was allowed what that knew.
    pub(crate) fn fixed_of(&self, session: u32, said: u64) -> u64 {
        let mut state = self.lock();
        if state.unheard.remove(&session).is_some() {
            let held = state.lending.held(session);
            state.lending.holds(session, held, said);
            let loads = state.loading.contains_key(&session);
            state.lending.set_loads(session, loads);
        }
        said.min(state.lending.fixed(session))
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
        let bytes = state.lending.owes(session);
        if bytes == 0 {
            // One that has not been heard saves nothing, and says what it has.
            return state.unheard.contains_key(&session).then_some(0);
        }
        state.extend(session);
        Some(bytes)
    }

    /// Whether a session's wish for a module has to wait, since its vGPU's modules had others save
    /// of late and this one would too; what it is to save meanwhile, if anything.
    pub(crate) fn must_pause(
        &self,
        (session, vgpu): (u32, u32),
        wish: &Wish,
        stands: bool,
    ) -> Option<Option<u64>> {
        let state = self.lock();
        let displaces = state.lending.would_lack(session, wish) > state.lending.movable(session);
        let is_early = state.loads_again.get(&vgpu).is_some_and(|again| Instant::now() < *again);
        if !displaces || !is_early {
            return None;
        }
        drop(state);
        Some(if stands { self.debt(session) } else { None })
    }

    /// A session asks for room: how long the exchange is expected to take, in ns; nothing if there
    /// is none, or it has to save first, or waits for a compiler.
    pub(crate) fn ask(&self, session: u32, wish: Wish, stands: bool) -> Option<u64> {
        let mut state = self.lock();
        state.lending.ask(session, wish);
        let bytes = state.lending.to_move(session);
        let expected_ns = bytes.saturating_mul(state.ps) / 1_000;
        if wish.gives {
            if stands && state.lending.lacks(session) > state.lending.movable(session) {
                state.displacing.entry(session).or_insert_with(Instant::now);
            }
        } else if stands {
            let fresh = Exchange { since: Instant::now(), granted: None, bytes: 0 };
            let exchange = state.exchanges.entry(session).or_insert(fresh);
            if exchange.granted.is_some() {
                *exchange = fresh;
            }
            exchange.bytes = exchange.bytes.max(bytes);
        }
        let will_have = state.lending.may_have(session) && !state.lending.waits_for_loader(session);
        will_have.then_some(expected_ns)
    }

    /// Waits until a session that has asked has its room, or is to save itself, or there is none.
    /// One of which something is in flight waits for nobody ([`Room::Waits`]), nor does one for
    /// long that waits for a compiler.
    pub(crate) fn wait(
        &self,
        now_ns: impl Fn() -> u64,
        session: u32,
        stands: bool,
        pressure: &impl Pressure,
    ) -> Room {
        let began = Instant::now();
        let mut state = self.lock();
        loop {
            let room = state.lending.look(now_ns(), session, stands);
            let waits_in_vain =
                state.lending.waits_for_loader(session) && began.elapsed() >= LOADER_LIMIT;
            let limit = SILENT_LIMIT.max(self.pause_limit);
            let silent = if waits_in_vain { state.note_vain(session, limit) } else { Vec::new() };
            if room != Room::Waits || pressure.is_over() || !stands || waits_in_vain {
                // It asks anew when it stands.
                state.lending.cancel(session);
                state.answer(session, room);
                state.settle();
                drop(state);
                self.changed.notify_all();
                silent.into_iter().for_each(|session| pressure.end(session));
                return room;
            }
            let late = state.press(pressure, self.pause_limit);
            if !late.is_empty() {
                drop(state);
                // One that has saved meanwhile is not ended.
                let owes = |session: &u32| self.lock().lending.owes(*session) > 0;
                late.into_iter().filter(owes).for_each(|session| pressure.end(session));
                state = self.lock();
                continue;
            }
            let waited = self.changed.wait_timeout(state, LOOK);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// What a session asked room for is there.
    pub(crate) fn note_brought(&self, session: u32, vgpu: u32) {
        let mut state = self.lock();
        state.lending.end_bringing(session);
        let Some(Exchange { since, bytes, .. }) = state.exchanges.remove(&session) else { return };
        if bytes == 0 {
            return;
        }
        let took_ns = u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
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
        let due = Due { number: self.next, until, stood: false, sent: None };
        self.due.insert(session, due);
        due
    }

    /// A session that owes stands still: it has time to save, once for each time that it is told.
    fn extend(&mut self, session: u32) {
        let until = Instant::now() + SAVE_LIMIT;
        let due = self.told(session, until);
        if !due.stood {
            self.due.insert(session, Due { until, stood: true, ..due });
        }
    }

    /// Who owes nothing any more is not late with it.
    fn settle(&mut self) {
        let Self { due, lending, .. } = self;
        due.retain(|session, _| lending.owes(*session) > 0);
    }

    /// A session that asked has its answer.
    fn answer(&mut self, session: u32, room: Room) {
        match room {
            Room::Granted => {
                if let Some(exchange) = self.exchanges.get_mut(&session) {
                    exchange.granted.get_or_insert_with(Instant::now);
                }
                if let Some((since, _)) = self.loading.get_mut(&session) {
                    // What others took for it is not how long it compiles.
                    *since = Instant::now();
                }
                self.end_displacing(session);
            }
            Room::Save { .. } => self.extend(session),
            Room::Waits | Room::Refused => {
                self.exchanges.remove(&session);
                self.displacing.remove(&session);
                self.lending.end_bringing(session);
            }
        }
    }

    /// Others save nothing more for a session's module: for that its vGPU's loads wait a while.
    fn end_displacing(&mut self, session: u32) {
        let Some(since) = self.displacing.remove(&session) else { return };
        let pause = since.elapsed().saturating_mul(LOADS_PART).min(LOADS_PAUSE);
        if let Some(vgpu) = self.lending.vgpu(session) {
            self.loads_again.insert(vgpu.0, Instant::now() + pause);
        }
    }

    /// A session waited in vain for those that load modules: their loads take long, whatever they
    /// say. Those that have kept what others need for longer than anybody may.
    fn note_vain(&mut self, session: u32, limit: Duration) -> Vec<u32> {
        let Self { loading, slow, lending, unheard, .. } = self;
        let is_waited_for = |(other, (since, _)): &(&u32, &(Instant, u32))| {
            **other != session && lending.movable(**other) > 0 && since.elapsed() >= LOADER_LIMIT
        };
        let vgpus = loading.iter().filter(is_waited_for).map(|(_, (_, vgpu))| *vgpu);
        slow.extend(vgpus.map(|vgpu| (vgpu, Instant::now())));
        let loads = loading.iter().map(|(other, (since, _))| (*other, *since));
        let silent = loads.chain(unheard.iter().map(|(other, since)| (*other, *since)));
        let keeps = |(other, since): &(u32, Instant)| {
            *other != session && lending.movable(*other) > 0 && since.elapsed() >= limit
        };
        silent.filter(keeps).map(|(other, _)| other).collect()
    }

    /// Has those stand still that owe; who has had its time.
    fn press(&mut self, pressure: &impl Pressure, pause_limit: Duration) -> Vec<u32> {
        self.settle();
        let (now, debtors) = (Instant::now(), self.lending.debtors());
        let mut late = Vec::new();
        for debtor in debtors {
            let mut due = self.told(debtor, now + pause_limit);
            // Bringing gigabytes takes its time.
            if self.exchanges.get(&debtor).is_some_and(Exchange::comes) {
                due.until = now + pause_limit;
            } else if now >= due.until {
                late.push(debtor);
                // Once: its end is noticed by its thread.
                due.until = now + SAVE_LIMIT;
            }
            // However many wait for it, and however often they look.
            if due.sent.is_none_or(|sent| now.duration_since(sent) >= LOOK) {
                due.sent = Some(now);
                pressure.pause(debtor, due.number);
            }
            self.due.insert(debtor, due);
        }
        late
    }
}

#[cfg(test)]
mod tests;
