//! A device whose memory is lent session by session: who has how much of it there.
//!
//! Who gives is decided in [`weft_sched::memory::Lending`]. Here those that ask wait until others
//! have saved, for so long as they may take ([`dues`]).

mod dues;

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use weft_sched::VgpuKey;
use weft_sched::memory::{Lending, Room, Wish};

use self::dues::Dues;
use crate::admin::{LENT_BY_SESSIONS, LastSwitch, MemoryReport};

/// Whoever loads a module, or has not said since a daemon's restart what it has, keeps what others
/// need for so long at most, or for as long as a kernel may take.
const SILENT_LIMIT: Duration = Duration::from_secs(600);

/// Who waits looks again after this time.
const LOOK: Duration = Duration::from_millis(20);

/// Who waits for one that loads a module is told to come later after this time: it has the turn.
const LOADER_LIMIT: Duration = Duration::from_millis(200);

/// A load that took longer has the session's memory saved before the next one, if others need it.
const LONG_LOAD: Duration = Duration::from_secs(1);

/// For so long.
const LONG_LOADS_LAST: Duration = Duration::from_secs(600);

/// So have images of so many bytes.
const LONG_IMAGES: u64 = 1 << 20;

/// What a payer's loads of modules have others save takes one part in so many of the time at most,
/// and the next one that has others save waits for so long at most.
const LOADS_PART: u32 = 16;
const LOADS_PAUSE: Duration = Duration::from_secs(10);

/// A session brings its memory within this time in each turn, and a second for each GB, or nobody
/// waits for it.
const BRING_LIMIT: Duration = Duration::from_secs(60);

/// What moving takes before anything was moved, in ps a byte: 5 GB/s.
const FIRST_PS: u64 = 200;

/// The most that it is expected to take.
const MOST_PS: u64 = FIRST_PS * 1_000;

/// An exchange leaves of those before it all but this part.
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
    dues: Dues,
    /// What sessions bring in their turns.
    exchanges: BTreeMap<u32, Exchange>,
    loading: BTreeMap<u32, Load>,
    /// Payers whose loads take long.
    slow: BTreeMap<u32, Instant>,
    displacing: BTreeMap<u32, Displacing>,
    /// Sessions of an earlier daemon that have not said yet what of theirs stays on the device.
    unheard: BTreeMap<u32, Instant>,
    /// When each payer's loads may have others save again.
    loads_again: BTreeMap<u32, Instant>,
    rate: Rate,
    totals: Totals,
    last: Option<(u32, u64, u64)>,
}

/// A session loads a module.
#[derive(Debug, Clone, Copy)]
struct Load {
    since: Instant,
    payer: u32,
    /// It compiles, so that it can save nothing. Else it waits for that or for room.
    compiles: bool,
}

/// Others may have to save for a session's module.
#[derive(Debug, Clone, Copy)]
struct Displacing {
    payer: u32,
    /// Since when they do.
    since: Option<Instant>,
}

/// The memory of a session in its turn.
#[derive(Debug, Clone, Copy)]
struct Exchange {
    /// When it asked for room.
    since: Instant,
    /// What is moved for it, by others and by itself, in bytes.
    bytes: u64,
    stage: Stage,
    /// What it had of its time in this turn before.
    spent: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// It waits for room.
    Waits,
    /// It has it since then, and brings its memory.
    Brings(Instant),
    Rests,
}

impl Exchange {
    fn fresh() -> Self {
        Self { since: Instant::now(), bytes: 0, stage: Stage::Rests, spent: Duration::ZERO }
    }

    /// What is left of its time in this turn to bring its memory, if that is what it does.
    fn left(&self) -> Option<Duration> {
        let Stage::Brings(since) = self.stage else { return None };
        let limit = BRING_LIMIT + Duration::from_nanos(self.bytes);
        limit.checked_sub(self.spent.saturating_add(since.elapsed())).filter(|left| !left.is_zero())
    }

    fn rest(&mut self) {
        if let Stage::Brings(since) = self.stage {
            self.spent = self.spent.saturating_add(since.elapsed());
        }
        self.stage = Stage::Rests;
    }
}

/// What moving takes of late, by bytes: of two exchanges the larger one says more.
#[derive(Debug, Clone, Copy)]
struct Rate {
    bytes: u64,
    ns: u64,
}

impl Rate {
    /// As if a GB had been moved.
    const FIRST: Self = Self { bytes: 1_000_000_000, ns: FIRST_PS * 1_000_000 };

    fn note(&mut self, bytes: u64, ns: u64) {
        self.bytes = (self.bytes - self.bytes / PART).saturating_add(bytes);
        self.ns = (self.ns - self.ns / PART).saturating_add(ns);
    }

    /// What so many bytes will take, in ns.
    fn expected_ns(&self, bytes: u64) -> u64 {
        let ps = u128::from(self.ns) * 1_000 / u128::from(self.bytes.max(1));
        let ns = u128::from(bytes) * ps.min(MOST_PS.into()) / 1_000;
        u64::try_from(ns).unwrap_or(u64::MAX)
    }
}

#[derive(Debug, Default)]
struct Totals {
    exchanges: u64,
    bytes: u64,
    ns: u64,
}

/// Whether a session may have more on the device that stays there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fixing {
    /// It may.
    Allowed,
    /// That depends on what sessions of an earlier daemon have, which are about to say it.
    Unknown,
    /// It may not.
    Refused,
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
    /// A device of so many bytes, which are lent as so many, in parts of so many. Who had no turn
    /// for `idle_ns` is idle. No earlier daemon's pauses have numbers from `first_number` on.
    pub(crate) fn new(
        (capacity, lent, part): (u64, u64, u64),
        idle_ns: u64,
        pause_limit: Duration,
        first_number: u64,
    ) -> Self {
        let state = State {
            lending: Lending::new(capacity, idle_ns),
            dues: Dues::new(first_number, part, pause_limit),
            exchanges: BTreeMap::new(),
            loading: BTreeMap::new(),
            slow: BTreeMap::new(),
            displacing: BTreeMap::new(),
            unheard: BTreeMap::new(),
            loads_again: BTreeMap::new(),
            rate: Rate::FIRST,
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
        // What its module had others save its payer's next one waits for all the same.
        state.end_displacing(session);
        state.lending.end(session);
        state.dues.settle(session);
        state.exchanges.remove(&session);
        state.loading.remove(&session);
        state.unheard.remove(&session);
        drop(state);
        self.changed.notify_all();
    }

    /// A session has so many bytes on the device now, of which so many stay there.
    pub(crate) fn holds(&self, session: u32, bytes: u64, fixed: u64) {
        let mut state = self.lock();
        let saved = state.lending.held(session).saturating_sub(bytes);
        state.lending.holds(session, bytes, fixed);
        match state.lending.owes(session) {
            0 => state.dues.pay(session, saved),
            _ => state.dues.save(session, Instant::now(), saved),
        }
        // Whoever says what it has is not about to bring any, whatever became of that.
        state.end_bringing(session, self.pause_limit);
        drop(state);
        self.changed.notify_all();
    }

    /// Bytes that a session has on the device by this account.
    pub(crate) fn held(&self, session: u32) -> u64 {
        self.lock().lending.held(session)
    }

    /// A session that stands still is about to load a module of so many bytes. What it is to save
    /// before: as long as it compiles it cannot save what others need. `own` is all that it has,
    /// and `lacking` what the device lacks for all.
    pub(crate) fn begin_load(
        &self,
        (session, payer): (u32, u32),
        bytes: u64,
        (own, lacking): (u64, u64),
    ) -> Option<u64> {
        let mut state = self.lock();
        // What it owes it owes first: others have waited for it.
        if let Some(owes) = state.debt(session) {
            return Some(owes);
        }
        state.slow.retain(|_, since| since.elapsed() < LONG_LOADS_LAST);
        let is_long = bytes >= LONG_IMAGES || state.slow.contains_key(&payer);
        let absent = own.saturating_sub(state.lending.held(session));
        let save = lacking.saturating_sub(absent).min(state.lending.movable(session));
        if is_long && save > 0 {
            return Some(save);
        }
        state.set_compiles(session, payer, true);
        None
    }

    /// A session that stands still and loads a module waits for its turn to compile it, or for
    /// room: meanwhile it can save.
    pub(crate) fn pause_load(&self, session: u32, payer: u32) {
        self.lock().set_compiles(session, payer, false);
    }

    /// It compiles it now, unless it is to save something before and stands still for that.
    pub(crate) fn resume_load(&self, session: u32, payer: u32, stands: bool) -> Option<u64> {
        let mut state = self.lock();
        let debt = if stands { state.debt(session) } else { None };
        if debt.is_none() {
            state.set_compiles(session, payer, true);
        }
        debt
    }

    /// A session does not load a module any more.
    pub(crate) fn end_load(&self, session: u32) {
        let mut state = self.lock();
        let own = state.loading.get(&session).copied();
        if let Some(Load { since, payer, compiles: true }) = own
            && since.elapsed() > LONG_LOAD
        {
            state.slow.insert(payer, Instant::now());
        }
        state.set_compiles(session, 0, false);
        state.loading.remove(&session);
        state.end_displacing(session);
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
            pause(session, state.dues.number());
        }
    }

    /// Whether the session's memory is about to come, so that its turn is not used yet.
    pub(crate) fn is_exchanging(&self, session: u32) -> bool {
        let state = self.lock();
        let comes = |own: &Exchange| own.stage == Stage::Waits || own.left().is_some();
        // Of an earlier daemon's it may come, and nobody knows how much.
        let limit = BRING_LIMIT + Duration::from_nanos(state.lending.held(session));
        let may_come = |since: &Instant| since.elapsed() < limit;
        state.dues.saves(session, Instant::now())
            || state.exchanges.get(&session).is_some_and(comes)
            || state.unheard.get(&session).is_some_and(may_come)
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
            let compiles = state.loading.get(&session).is_some_and(|load| load.compiles);
            state.lending.set_loads(session, compiles);
        }
        said.min(state.lending.fixed(session))
    }

    /// Whether a session of a vGPU with this quota may have so much on the device that stays there:
    /// of that all vGPUs together may have no more than there is, and beside it there is room for
    /// the `largest` of the others.
    pub(crate) fn may_fix(
        &self,
        (session, vgpu): (u32, u32),
        fixed: u64,
        quota: u64,
        largest: u64,
    ) -> Fixing {
        let state = self.lock();
        let lending = &state.lending;
        let all = lending.all_fixed_beside(session).saturating_add(fixed);
        let own = lending.fixed_beside(VgpuKey(vgpu), session).saturating_add(fixed);
        // All that somebody has may be of that kind before it has said what is.
        let others = || state.unheard.keys().filter(|other| **other != session);
        let unknown: u64 = others().map(|other| lending.movable(*other)).sum();
        let is_own = |other: &&u32| lending.vgpu(**other) == Some(VgpuKey(vgpu));
        let own_unknown: u64 = others().filter(is_own).map(|other| lending.movable(*other)).sum();
        let may = |all: u64, own: u64| {
            all.saturating_add(largest) <= self.capacity
                && u128::from(own) * u128::from(self.lent)
                    <= u128::from(quota) * u128::from(self.capacity)
        };
        match may(all, own) {
            false => Fixing::Refused,
            true if may(all.saturating_add(unknown), own.saturating_add(own_unknown)) => {
                Fixing::Allowed
            }
            true => Fixing::Unknown,
        }
    }

    /// A vGPU's turn begins.
    pub(crate) fn begin_turn(&self, vgpu: u32) {
        self.lock().lending.begin_turn(VgpuKey(vgpu));
    }

    /// A vGPU's turn is over.
    pub(crate) fn end_turn(&self, now_ns: u64, vgpu: u32) {
        let mut state = self.lock();
        state.lending.end_turn(now_ns, VgpuKey(vgpu));
        let State { exchanges, lending, .. } = &mut *state;
        exchanges.retain(|session, own| {
            let is_of_it = lending.vgpu(*session) == Some(VgpuKey(vgpu));
            own.spent = if is_of_it { Duration::ZERO } else { own.spent };
            !is_of_it || own.stage != Stage::Rests
        });
    }

    /// What a session that stands still has to save, if anything.
    pub(crate) fn debt(&self, session: u32) -> Option<u64> {
        let mut state = self.lock();
        let debt = state.debt(session);
        // One that has not been heard saves nothing, and says what it has.
        debt.or_else(|| state.unheard.contains_key(&session).then_some(0))
    }

    /// Whether a session's wish for a module has to wait, since it would have others save, and its
    /// payer's modules did of late or do so now; what it is to save meanwhile, if anything.
    pub(crate) fn must_pause(
        &self,
        (session, payer): (u32, u32),
        wish: &Wish,
        stands: bool,
    ) -> Option<Option<u64>> {
        let mut state = self.lock();
        if state.lending.would_lack(session, wish) <= state.lending.movable(session) {
            return None;
        }
        let is_early = state.loads_again.get(&payer).is_some_and(|again| Instant::now() < *again);
        let mut others = state.displacing.iter().filter(|(other, _)| **other != session);
        if is_early || others.any(|(_, other)| other.payer == payer) {
            return Some(if stands { state.debt(session) } else { None });
        }
        if stands {
            state.displacing.entry(session).or_insert(Displacing { payer, since: None });
        }
        None
    }

    /// A session does not wait for room for its module: it may not have it.
    pub(crate) fn give_up(&self, session: u32) {
        self.lock().end_displacing(session);
    }

    /// A session asks for room: how long the exchange is expected to take, in ns; nothing if there
    /// is none, or it has to save first, or waits for a compiler.
    pub(crate) fn ask(&self, session: u32, wish: Wish, stands: bool) -> Option<u64> {
        let mut state = self.lock();
        state.lending.ask(session, wish);
        let bytes = state.lending.to_move(session);
        let expected_ns = state.rate.expected_ns(bytes);
        if stands && !wish.gives {
            let own = state.exchanges.entry(session).or_insert_with(Exchange::fresh);
            if own.stage != Stage::Waits {
                own.rest();
                *own = Exchange { spent: own.spent, stage: Stage::Waits, ..Exchange::fresh() };
            }
            own.bytes = own.bytes.max(bytes);
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
        let mut vain_since = None;
        let mut state = self.lock();
        loop {
            let room = state.lending.look(now_ns(), session, stands);
            let now = Instant::now();
            // A compiler has its time from when somebody waits for nobody else.
            let waits_for_loader = state.lending.waits_for_loader(session);
            vain_since = if waits_for_loader { vain_since.or(Some(now)) } else { None };
            let in_vain = vain_since.is_some_and(|since| now - since >= LOADER_LIMIT);
            let limit = SILENT_LIMIT.max(self.pause_limit);
            let silent = if in_vain { state.note_vain(session, limit) } else { Vec::new() };
            if room != Room::Waits || pressure.is_over() || !stands || in_vain {
                // It asks anew when it stands.
                state.lending.cancel(session);
                state.answer(session, room, stands);
                drop(state);
                self.changed.notify_all();
                silent.into_iter().for_each(|session| pressure.end(session));
                return room;
            }
            state.note_displacing(session, now);
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
        let own = state.exchanges.get(&session).copied();
        state.end_bringing(session, self.pause_limit);
        let Some(Exchange { since, bytes, stage: Stage::Brings(_), .. }) = own else { return };
        if bytes == 0 {
            return;
        }
        let took_ns = u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
        state.rate.note(bytes, took_ns);
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
    /// What a session that stands still has to save, if anything.
    fn debt(&mut self, session: u32) -> Option<u64> {
        let bytes = self.lending.owes(session);
        if bytes == 0 {
            self.dues.settle(session);
            return None;
        }
        self.dues.stand(session, Instant::now());
        Some(bytes)
    }

    /// A session that loads a module compiles it from now on, or does not. The time to stand still
    /// that it had before it has afterwards.
    fn set_compiles(&mut self, session: u32, payer: u32, compiles: bool) {
        let load = Load { since: Instant::now(), payer, compiles };
        if let Some(before) = self.loading.insert(session, load)
            && before.compiles
        {
            self.dues.extend(session, before.since.elapsed());
        }
        self.lending.set_loads(session, compiles);
    }

    /// A session that was given room does not bring its memory any more.
    fn end_bringing(&mut self, session: u32, pause_limit: Duration) {
        self.lending.end_bringing(session);
        if let Some(own) = self.exchanges.get_mut(&session) {
            own.rest();
            self.dues.end_bringing(session, Instant::now() + pause_limit);
        }
    }

    /// A session that asked has its answer.
    fn answer(&mut self, session: u32, room: Room, stands: bool) {
        if stands {
            // As long as it saves it has its time for that, and without a debt it needs none.
            self.debt(session);
        }
        match room {
            Room::Granted => {
                if let Some(own) = self.exchanges.get_mut(&session)
                    && own.stage == Stage::Waits
                {
                    own.stage = Stage::Brings(Instant::now());
                }
                if let Some(Load { payer, .. }) = self.loading.get(&session).copied() {
                    // What others took for it is not how long it compiles.
                    self.set_compiles(session, payer, true);
                }
            }
            // It asks again when it has, and has its time for that.
            Room::Save { .. } => {
                if let Some(own) = self.exchanges.get_mut(&session) {
                    own.rest();
                }
                return;
            }
            Room::Waits | Room::Refused => {
                if let Some(own) = self.exchanges.get_mut(&session) {
                    own.rest();
                }
                self.lending.end_bringing(session);
            }
        }
        self.end_displacing(session);
    }

    /// Others save for a session's module from now on, if they do.
    fn note_displacing(&mut self, session: u32, now: Instant) {
        let have_to = self.lending.is_first(session) && !self.lending.debtors().is_empty();
        if let Some(own) = self.displacing.get_mut(&session).filter(|_| have_to) {
            own.since.get_or_insert(now);
        }
    }

    /// Others save nothing more for a session's module: for that its payer's loads wait a while.
    fn end_displacing(&mut self, session: u32) {
        let Some(Displacing { payer, since: Some(since) }) = self.displacing.remove(&session)
        else {
            return;
        };
        let pause = since.elapsed().saturating_mul(LOADS_PART).min(LOADS_PAUSE);
        self.loads_again.insert(payer, Instant::now() + pause);
    }

    /// A session waited in vain for those that load modules: their loads take long, whatever they
    /// say. Those that have kept what others need for longer than anybody may.
    fn note_vain(&mut self, session: u32, limit: Duration) -> Vec<u32> {
        let Self { loading, slow, lending, unheard, .. } = self;
        let compiling = || loading.iter().filter(|(_, load)| load.compiles);
        let has_some = |other: u32| other != session && lending.movable(other) > 0;
        let is_slow = |(other, load): &(&u32, &Load)| {
            has_some(**other) && load.since.elapsed() >= LOADER_LIMIT
        };
        let payers = compiling().filter(is_slow).map(|(_, load)| load.payer);
        slow.extend(payers.map(|payer| (payer, Instant::now())));
        let loads = compiling().map(|(other, load)| (*other, load.since));
        let silent = loads.chain(unheard.iter().map(|(other, since)| (*other, *since)));
        let keeps = |(other, since): &(u32, Instant)| has_some(*other) && since.elapsed() >= limit;
        silent.filter(keeps).map(|(other, _)| other).collect()
    }

    /// Has those stand still that owe; who has had its time.
    fn press(&mut self, pressure: &impl Pressure, pause_limit: Duration) -> Vec<u32> {
        let now = Instant::now();
        let mut late = Vec::new();
        for debtor in self.lending.debtors() {
            // Bringing gigabytes takes its time.
            let brings = self.exchanges.get(&debtor).and_then(Exchange::left).unwrap_or_default();
            let pressed = self.dues.press(debtor, now, now + pause_limit + brings);
            if pressed.ends {
                late.push(debtor);
            }
            if let Some(number) = pressed.tells {
                pressure.pause(debtor, number);
            }
        }
        late
    }
}

#[cfg(test)]
mod tests;
