//! A device whose memory is lent session by session: who has how much of it there.
//!
//! Who gives is decided in [`weft_sched::memory::Lending`]. Here those that ask wait until others
//! have saved, for so long as they may take ([`dues`]).

mod dues;
mod exchange;

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use weft_sched::VgpuKey;
use weft_sched::memory::{Lending, Room, Wish};

use self::dues::{Dues, time_to_move};
use self::exchange::{Exchange, Stage};
use crate::admin::{LENT_BY_SESSIONS, LastSwitch, MemoryReport};
use crate::link::keep_limit;

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
    /// How long sessions have compiled while others waited in vain for what they have, and since
    /// then they have not stood still and given it.
    compiled: BTreeMap<u32, Duration>,
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
    /// Somebody waited in vain for what it has.
    is_awaited: bool,
}

/// Others may have to save for a session's module.
#[derive(Debug, Clone, Copy)]
struct Displacing {
    payer: u32,
    /// Since when they do.
    since: Option<Instant>,
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
            compiled: BTreeMap::new(),
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
        state.compiled.remove(&session);
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
            0 => {
                if saved > 0 && state.dues.has_stood(session) {
                    state.compiled.remove(&session);
                }
                state.dues.pay(session, saved);
            }
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
        if save == 0 {
            state.compiled.remove(&session);
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
        if let Some(Load { since, payer, compiles: true, .. }) = own
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
        let (now, limit) = (Instant::now(), state.dues.limit());
        let own = state.exchanges.get(&session);
        // However many save to one disk, they have no more there than the device has.
        let all_saved = limit.saturating_add(time_to_move(self.capacity));
        let may_save = own.is_none_or(|own| own.may_save(now, all_saved));
        // Of an earlier daemon's it may come, and nobody knows how much.
        let may_come = |since: &Instant| now.duration_since(*since) < limit;
        (may_save && state.dues.saves(session, now))
            || own.is_some_and(|own| own.comes(now))
            || state.unheard.get(&session).is_some_and(may_come)
    }

    /// Bytes that other sessions cannot save.
    pub(crate) fn all_fixed_beside(&self, session: u32) -> u64 {
        self.lock().lending.all_fixed_beside(session)
    }

    /// What a session can say of itself stays on the device, and does so from now on: what it was
    /// allowed, and more if that could be. A session of an earlier daemon was allowed what that
    /// knew: all that may be fixed, but what others have may have grown since.
    pub(crate) fn fixed_of(
        &self,
        (session, vgpu): (u32, u32),
        said: u64,
        quota: u64,
        largest: u64,
    ) -> u64 {
        let mut state = self.lock();
        let (held, known) = (state.lending.held(session), state.lending.fixed(session));
        let said = said.min(held);
        if state.unheard.remove(&session).is_some() {
            let most = self.fixed_max(&state, (session, vgpu), quota);
            state.lending.holds(session, held, said.min(most));
            let compiles = state.loading.get(&session).is_some_and(|load| load.compiles);
            state.lending.set_loads(session, compiles);
            return said.min(most);
        }
        if said <= known {
            return said;
        }
        match self.may_be_fixed(&state, (session, vgpu), said, quota, largest) {
            Fixing::Allowed => {
                state.lending.holds(session, held, said);
                said
            }
            Fixing::Unknown | Fixing::Refused => known,
        }
    }

    /// Asks for room for a session's module, if what it wishes may stay on the device: the next one
    /// that wishes so sees what it is promised.
    pub(crate) fn ask_to_fix(
        &self,
        who: (u32, u32),
        (wish, stands): (Wish, bool),
        quota: u64,
        largest: u64,
    ) -> Fixing {
        let mut state = self.lock();
        let may_fix = self.may_be_fixed(&state, who, wish.fixed, quota, largest);
        if may_fix == Fixing::Allowed {
            state.ask(who.0, wish, stands);
        }
        may_fix
    }

    /// Other sessions of an earlier daemon that have not said for longer than anybody may keep what
    /// others need what of theirs stays on the device.
    pub(crate) fn silent_beside(&self, session: u32) -> Vec<u32> {
        let (state, limit) = (self.lock(), keep_limit(self.pause_limit));
        let others = state.unheard.iter().filter(|(other, _)| **other != session);
        let silent = others.filter(|(_, since)| since.elapsed() >= limit).map(|(other, _)| *other);
        silent.filter(|other| state.lending.movable(*other) > 0).collect()
    }

    /// The most that a session of a vGPU with this quota may have that stays on the device: of that
    /// all vGPUs together have no more than there is.
    fn fixed_max(&self, state: &State, (session, vgpu): (u32, u32), quota: u64) -> u64 {
        let all = state.lending.all_fixed_beside(session);
        let own = state.lending.fixed_beside(VgpuKey(vgpu), session);
        let part = u128::from(quota) * u128::from(self.capacity) / u128::from(self.lent.max(1));
        let part = u64::try_from(part).unwrap_or(u64::MAX);
        self.capacity.saturating_sub(all).min(part.saturating_sub(own))
    }

    /// Whether a session of a vGPU may have so much on the device that stays there, and beside it
    /// there is room for the `largest` of the others.
    fn may_be_fixed(
        &self,
        state: &State,
        (session, vgpu): (u32, u32),
        fixed: u64,
        quota: u64,
        largest: u64,
    ) -> Fixing {
        let lending = &state.lending;
        let most = self.fixed_max(state, (session, vgpu), quota);
        let all = lending.all_fixed_beside(session).saturating_add(fixed);
        // All that somebody has may be of that kind before it has said what is.
        let others = || state.unheard.keys().filter(|other| **other != session);
        let unknown: u64 = others().map(|other| lending.movable(*other)).sum();
        let is_own = |other: &&u32| lending.vgpu(**other) == Some(VgpuKey(vgpu));
        let own_unknown: u64 = others().filter(is_own).map(|other| lending.movable(*other)).sum();
        let may = |unknown: u64, own_unknown: u64| {
            all.saturating_add(unknown).saturating_add(largest) <= self.capacity
                && fixed.saturating_add(own_unknown) <= most
        };
        match may(0, 0) {
            false => Fixing::Refused,
            true if may(unknown, own_unknown) => Fixing::Allowed,
            true => Fixing::Unknown,
        }
    }

    /// A vGPU's turn begins.
    pub(crate) fn begin_turn(&self, vgpu: u32) {
        let mut state = self.lock();
        state.lending.begin_turn(VgpuKey(vgpu));
        state.renew(vgpu);
    }

    /// A vGPU's turn is over.
    pub(crate) fn end_turn(&self, now_ns: u64, vgpu: u32) {
        let mut state = self.lock();
        state.lending.end_turn(now_ns, VgpuKey(vgpu));
        state.renew(vgpu);
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
        self.lock().ask(session, wish, stands)
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
            let limit = keep_limit(self.pause_limit);
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

    /// So many bytes of what a session asked room for are not there yet.
    pub(crate) fn note_bringing(&self, session: u32, absent: u64) {
        let mut state = self.lock();
        let (now, limit) = (Instant::now(), state.dues.limit());
        let State { exchanges, unheard, lending, dues, .. } = &mut *state;
        let adopted = unheard.get_mut(&session);
        if adopted.is_some() {
            let held = lending.held(session);
            exchanges.entry(session).or_insert_with(|| Exchange::adopted(now, limit, held));
        }
        let own = exchanges.get_mut(&session);
        let Some(gained) = own.and_then(|own| own.bring(now, absent, limit)) else { return };
        dues.bring(session, gained);
        if let Some(since) = adopted {
            *since = now;
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
        let (now, limit) = (Instant::now(), self.dues.limit());
        self.dues.stand(session, now);
        let own = self.exchanges.entry(session);
        own.or_insert_with(|| Exchange::fresh(now, limit)).begin_saving(now);
        Some(bytes)
    }

    /// A session asks for room: see [`Lender::ask`].
    fn ask(&mut self, session: u32, wish: Wish, stands: bool) -> Option<u64> {
        self.lending.ask(session, wish);
        let bytes = self.lending.to_move(session);
        let expected_ns = self.rate.expected_ns(bytes);
        if stands && !wish.gives {
            let (now, limit) = (Instant::now(), self.dues.limit());
            let own = self.exchanges.entry(session);
            own.or_insert_with(|| Exchange::fresh(now, limit)).ask(now, wish.total, bytes);
        }
        let will_have = self.lending.may_have(session) && !self.lending.waits_for_loader(session);
        will_have.then_some(expected_ns)
    }

    /// A vGPU's turn is over, or its next one begins, in which its sessions have their time anew.
    fn renew(&mut self, vgpu: u32) {
        let Self { exchanges, lending, dues, .. } = self;
        exchanges.retain(|session, own| {
            let is_of_it = lending.vgpu(*session) == Some(VgpuKey(vgpu));
            if is_of_it {
                own.renew(dues.limit());
            }
            !is_of_it || own.stage != Stage::Rests
        });
    }

    /// A session that loads a module compiles it from now on, or does not. The time to stand still
    /// that it had before it has afterwards. Who says so again has begun when it first did.
    fn set_compiles(&mut self, session: u32, payer: u32, compiles: bool) {
        let before = self.loading.get(&session).filter(|before| before.compiles).copied();
        let fresh = Load { since: Instant::now(), payer, compiles, is_awaited: false };
        let load = before.filter(|_| compiles).unwrap_or(fresh);
        self.loading.insert(session, Load { payer, ..load });
        if let (Some(before), false) = (before, compiles) {
            let took = before.since.elapsed();
            self.dues.extend(session, took);
            if before.is_awaited {
                *self.compiled.entry(session).or_default() += took;
            }
        }
        self.lending.set_loads(session, compiles);
    }

    /// A session that was given room does not bring its memory any more.
    fn end_bringing(&mut self, session: u32, pause_limit: Duration) {
        let now = Instant::now();
        self.lending.end_bringing(session);
        if let Some(own) = self.exchanges.get_mut(&session) {
            own.rest(now);
            self.dues.end_bringing(session, now + pause_limit);
        }
    }

    /// A session that asked has its answer.
    fn answer(&mut self, session: u32, room: Room, stands: bool) {
        if stands {
            // As long as it saves it has its time for that, and without a debt it needs none.
            self.debt(session);
        }
        let now = Instant::now();
        match room {
            Room::Granted => {
                if let Some(own) = self.exchanges.get_mut(&session) {
                    own.grant(now);
                }
                if let Some(Load { payer, .. }) = self.loading.get(&session).copied() {
                    // What others took for it is not how long it compiles.
                    self.set_compiles(session, payer, true);
                }
            }
            // It asks again when it has, and has its time for that.
            Room::Save { .. } => {
                if let Some(own) = self.exchanges.get_mut(&session) {
                    own.rest(now);
                }
                return;
            }
            Room::Waits | Room::Refused => {
                if let Some(own) = self.exchanges.get_mut(&session) {
                    own.put_off(now);
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
        let Self { loading, compiled, slow, lending, unheard, .. } = self;
        let has_some = |other: u32| other != session && lending.movable(other) > 0;
        let awaited = loading.iter_mut().filter(|(other, _)| has_some(**other));
        awaited.for_each(|(_, load)| load.is_awaited = true);
        let compiling = || loading.iter().filter(|(_, load)| load.compiles);
        let is_slow = |(other, load): &(&u32, &Load)| {
            has_some(**other) && load.since.elapsed() >= LOADER_LIMIT
        };
        let payers = compiling().filter(is_slow).map(|(_, load)| load.payer);
        slow.extend(payers.map(|payer| (payer, Instant::now())));
        let before = |other: &u32| compiled.get(other).copied().unwrap_or_default();
        let loads = compiling()
            .map(|(other, load)| (*other, load.since.elapsed().saturating_add(before(other))));
        let silent = loads.chain(unheard.iter().map(|(other, since)| (*other, since.elapsed())));
        let keeps = |(other, kept): &(u32, Duration)| has_some(*other) && *kept >= limit;
        silent.filter(keeps).map(|(other, _)| other).collect()
    }

    /// Has those stand still that owe; who has had its time.
    fn press(&mut self, pressure: &impl Pressure, pause_limit: Duration) -> Vec<u32> {
        let now = Instant::now();
        let mut late = Vec::new();
        for debtor in self.lending.debtors() {
            // Bringing gigabytes takes its time.
            let own = self.exchanges.get(&debtor);
            let brings = own.and_then(|own| own.left(now)).unwrap_or_default();
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
