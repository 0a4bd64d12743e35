//! Memory of a device whose driver moves it: who has how much there, and who gives some back.
//!
//! An operation needs all of its session's memory on the device, since a kernel that met an address
//! without memory would end its context, and nobody says what it touched before. So whoever begins
//! to work asks for room for all that it has. Those who ask are served one after the other: who is
//! first has others save what it lacks, and nobody saves who does not stand still.
//!
//! Some of what a session has cannot be saved (variables of modules, which the driver keeps). What
//! all have of that is room that nobody gets: whoever needs more than the rest is refused, and each
//! vGPU's part is bounded. Who wants more of it outside its turn gives its own other memory first.
//!
//! Who gives: whoever was idle for longest, and among those that work, whoever had its turn last,
//! because its next one is furthest away where turns go round. Other sessions of the same vGPU come
//! after them, since they work in the same turns, then whoever has its turn and would bring the
//! same again in it, and whoever brings its own memory just then last, since that takes its time.
//! Nobody asks one that loads a module: it cannot stand still, and whoever needs what it has comes
//! later. Weft's; a model of nvshare would take all of everybody.
//!
//! The device idles while the one that has the turn waits: it goes before whoever has none.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::cmp::Reverse;

use crate::key::VgpuKey;

/// What a session that asks for room is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// There is room for all of its memory.
    Granted,
    /// It is to save so many bytes first, and to ask again.
    Save {
        /// How many, at least.
        bytes: u64,
    },
    /// Others have to save theirs first, or were here before.
    Waits,
    /// There is no such room, whatever others save.
    Refused,
}

/// The sessions of a device that lends more memory than it has, by their keys. Times are in ns.
#[derive(Clone, Debug)]
pub struct Lending {
    capacity: u64,
    idle_ns: u64,
    members: BTreeMap<u32, Member>,
    /// Those that asked for room, in the order in which they are served.
    queue: VecDeque<Asked>,
}

#[derive(Clone, Debug)]
struct Member {
    vgpu: VgpuKey,
    /// Bytes that it has on the device.
    held: u64,
    /// Bytes of those that it cannot save.
    fixed: u64,
    /// Bytes of those that it is to save.
    owes: u64,
    /// When it had its last turn, or was given room.
    served_ns: u64,
    /// Its vGPU has the turn.
    in_turn: bool,
    /// It loads a module: it cannot stand still before that is done.
    loads: bool,
    /// It was given room, and brings its memory.
    brings: bool,
}

#[derive(Clone, Copy, Debug)]
struct Asked {
    session: u32,
    /// Bytes that it is to have on the device.
    total: u64,
    /// Bytes of those that it will not be able to save.
    fixed: u64,
    /// Bytes that others may have there at most for that.
    others_max: u64,
    /// It has no turn: its own memory need not be there.
    gives: bool,
}

/// What a session asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wish {
    /// Bytes that it is to have on the device in all.
    pub total: u64,
    /// Bytes of those that it will not be able to save.
    pub fixed: u64,
    /// Bytes that the driver did not have, though there was room by this account: others are to
    /// save so much more.
    pub missing: u64,
    /// It is not about to work: its own memory need not be there.
    pub gives: bool,
}

impl Lending {
    /// A device of so many bytes. Who had no turn for `idle_ns` is idle.
    pub const fn new(capacity: u64, idle_ns: u64) -> Self {
        Self { capacity, idle_ns, members: BTreeMap::new(), queue: VecDeque::new() }
    }

    /// A session begins, with so many bytes on the device.
    pub fn begin(&mut self, now_ns: u64, session: u32, vgpu: VgpuKey, held: u64) {
        let member = Member {
            vgpu,
            held,
            fixed: 0,
            owes: 0,
            served_ns: now_ns,
            in_turn: false,
            loads: false,
            brings: false,
        };
        self.members.insert(session, member);
    }

    /// A session is over, and so is what it had and wanted.
    pub fn end(&mut self, session: u32) {
        self.members.remove(&session);
        self.cancel(session);
    }

    /// A session wants no room any more.
    pub fn cancel(&mut self, session: u32) {
        if let Some(place) = self.place(session) {
            self.leave(place);
        }
    }

    fn place(&self, session: u32) -> Option<usize> {
        self.queue.iter().position(|asked| asked.session == session)
    }

    /// One leaves the queue. What others owe they owe the first: its successor says anew what it
    /// lacks.
    fn leave(&mut self, place: usize) {
        self.queue.remove(place);
        if place == 0 {
            self.forgive();
        }
    }

    fn forgive(&mut self) {
        self.members.values_mut().for_each(|member| member.owes = 0);
    }

    /// A session has so many bytes on the device now, of which it cannot save so many. What it has
    /// less than before, it has saved.
    pub fn holds(&mut self, session: u32, bytes: u64, fixed: u64) {
        let Some(member) = self.members.get_mut(&session) else { return };
        let saved = member.held.saturating_sub(bytes);
        (member.held, member.fixed) = (bytes, fixed.min(bytes));
        member.owes = member.owes.saturating_sub(saved).min(member.movable());
    }

    /// A session loads a module from now on, or not any more. What it owed others are asked for.
    pub fn set_loads(&mut self, session: u32, loads: bool) {
        if let Some(member) = self.members.get_mut(&session) {
            member.loads = loads;
            member.owes = if loads { 0 } else { member.owes };
        }
    }

    /// A session's memory is there that it was given room for, or it wants it no more.
    pub fn end_bringing(&mut self, session: u32) {
        if let Some(member) = self.members.get_mut(&session) {
            member.brings = false;
        }
    }

    /// Whether a session loads a module.
    pub fn loads(&self, session: u32) -> bool {
        self.members.get(&session).is_some_and(|member| member.loads)
    }

    /// A vGPU's turn begins.
    pub fn begin_turn(&mut self, vgpu: VgpuKey) {
        for member in self.members.values_mut() {
            member.in_turn = member.vgpu == vgpu;
        }
    }

    /// A vGPU's turn is over: its sessions were served.
    pub fn end_turn(&mut self, now_ns: u64, vgpu: VgpuKey) {
        for member in self.members.values_mut().filter(|member| member.vgpu == vgpu) {
            member.served_ns = member.served_ns.max(now_ns);
            // Who brings its memory in a turn has brought it, or has lost the turn.
            (member.in_turn, member.brings) = (false, false);
        }
    }

    /// A session asks for room. Asked again, it keeps its place.
    pub fn ask(&mut self, session: u32, wish: Wish) {
        let Wish { total, fixed, missing, gives } = wish;
        let (others, fixed_beside) = self.beside(session);
        // What nobody has, nobody can save; what there is they may as well.
        let movable = others.saturating_sub(fixed_beside);
        let is_hopeless = total > self.capacity || (missing > 0 && movable == 0);
        let missing = missing.min(movable);
        let total = if is_hopeless { u64::MAX } else { total };
        let left = self.capacity.saturating_sub(total);
        let others_max = if missing == 0 { left } else { left.min(others.saturating_sub(missing)) };
        let asked = Asked { session, total, fixed, others_max, gives };
        match self.queue.iter_mut().find(|other| other.session == session) {
            Some(own) => *own = asked,
            None if gives => self.queue.push_back(asked),
            None => {
                let has_no_turn = |other: &Asked| other.gives;
                let place = self.queue.iter().position(has_no_turn).unwrap_or(self.queue.len());
                if place == 0 {
                    // It says anew what it lacks.
                    self.forgive();
                }
                self.queue.insert(place, asked);
            }
        }
    }

    /// Whether a session is the one that others save for.
    pub fn is_first(&self, session: u32) -> bool {
        self.place(session) == Some(0)
    }

    /// Whether a session that has asked waits for one that loads a module: what the others could
    /// save is not enough.
    pub fn waits_for_loader(&self, session: u32) -> bool {
        let lacks = self.lacks(session);
        lacks > 0 && lacks > self.movable_of_others(session)
    }

    /// Bytes that others can save that load no module.
    fn movable_of_others(&self, session: u32) -> u64 {
        let can = |(other, member): &(&u32, &Member)| **other != session && !member.loads;
        self.members.iter().filter(can).map(|(_, member)| member.movable()).sum()
    }

    /// Bytes that others have beyond what they may if a session had what it wishes.
    pub fn would_lack(&self, session: u32, wish: &Wish) -> u64 {
        self.beside(session).0.saturating_sub(self.capacity.saturating_sub(wish.total))
    }

    /// Whose a session is.
    pub fn vgpu(&self, session: u32) -> Option<VgpuKey> {
        self.members.get(&session).map(|member| member.vgpu)
    }

    /// Bytes that a session cannot save.
    pub fn fixed(&self, session: u32) -> u64 {
        self.members.get(&session).map_or(0, |member| member.fixed)
    }

    /// Bytes that a session can save.
    pub fn movable(&self, session: u32) -> u64 {
        self.members.get(&session).map_or(0, Member::movable)
    }

    /// Bytes that all sessions cannot save or have asked for so, but for one of them.
    pub fn all_fixed_beside(&self, session: u32) -> u64 {
        let others = self.members.iter().filter(|(other, _)| **other != session);
        others.map(|(other, member)| self.promised(*other, member)).sum()
    }

    /// The same of the sessions of a vGPU.
    pub fn fixed_beside(&self, vgpu: VgpuKey, session: u32) -> u64 {
        let of_it = |(other, member): &(&u32, &Member)| member.vgpu == vgpu && **other != session;
        let others = self.members.iter().filter(of_it);
        others.map(|(other, member)| self.promised(*other, member)).sum()
    }

    fn promised(&self, session: u32, member: &Member) -> u64 {
        let asked = self.place(session).and_then(|place| self.queue.get(place));
        asked.map_or(member.fixed, |asked| member.fixed.max(asked.fixed))
    }

    /// What becomes of a session that has asked. `stands`: nothing of it is in flight, so that it
    /// can save.
    pub fn look(&mut self, now_ns: u64, session: u32, stands: bool) -> Room {
        let Some(place) = self.place(session) else { return Room::Refused };
        let Some(asked) = self.queue.get(place).copied() else { return Room::Refused };
        let (others, fixed_beside) = self.beside(session);
        if asked.total > self.capacity || fixed_beside > asked.others_max {
            self.leave(place);
            return Room::Refused;
        }
        let owes = self.owes(session);
        if owes > 0 && stands {
            // Who is first owes nobody.
            self.queue.remove(place);
            return Room::Save { bytes: owes };
        }
        if place > 0 || owes > 0 {
            return Room::Waits;
        }
        if others > asked.others_max {
            let own = self.members.get(&session).map_or(0, Member::movable);
            let bytes = own.min(others - asked.others_max);
            if asked.gives && stands && bytes > 0 {
                self.leave(place);
                return Room::Save { bytes };
            }
            // One that cannot wait for it has nobody save; nor is a part of it of any use.
            if stands && !self.waits_for_loader(session) {
                self.demand(now_ns, asked);
            }
            return Room::Waits;
        }
        self.leave(place);
        if let Some(member) = self.members.get_mut(&session) {
            member.held = member.held.max(asked.total);
            member.fixed = asked.fixed.min(member.held);
            member.served_ns = member.served_ns.max(now_ns);
            member.brings = !asked.gives;
        }
        Room::Granted
    }

    /// Bytes that a session is to save.
    pub fn owes(&self, session: u32) -> u64 {
        self.members.get(&session).map_or(0, |member| member.owes)
    }

    /// Those that are to save something.
    pub fn debtors(&self) -> Vec<u32> {
        let owing = self.members.iter().filter(|(_, member)| member.owes > 0);
        owing.map(|(session, _)| *session).collect()
    }

    /// Whether a session that has asked will have room: not if it owes some, or there is none.
    pub fn may_have(&self, session: u32) -> bool {
        let asked = self.place(session).and_then(|place| self.queue.get(place));
        let fits = |asked: &Asked| {
            asked.total <= self.capacity && self.beside(session).1 <= asked.others_max
        };
        self.owes(session) == 0 && asked.is_some_and(fits)
    }

    /// Bytes that others have beyond what a session that has asked leaves them.
    pub fn lacks(&self, session: u32) -> u64 {
        let asked = self.place(session).and_then(|place| self.queue.get(place));
        asked.map_or(0, |asked| self.beside(session).0.saturating_sub(asked.others_max))
    }

    /// Bytes that are to be moved before a session that has asked has its room, its own included.
    pub fn to_move(&self, session: u32) -> u64 {
        let asked = self.queue.iter().find(|asked| asked.session == session);
        let Some(asked) = asked.filter(|asked| asked.total <= self.capacity) else { return 0 };
        self.lacks(session).saturating_add(asked.total.saturating_sub(self.held(session)))
    }

    /// Bytes that a session has on the device.
    pub fn held(&self, session: u32) -> u64 {
        self.members.get(&session).map_or(0, |member| member.held)
    }

    /// Bytes that a vGPU's sessions have there.
    pub fn held_by_vgpu(&self, vgpu: VgpuKey) -> u64 {
        let own = self.members.values().filter(|member| member.vgpu == vgpu);
        own.map(|member| member.held).sum()
    }

    /// Bytes that all have there.
    pub fn held_total(&self) -> u64 {
        self.members.values().map(|member| member.held).sum()
    }

    /// Bytes that others have on the device, and those of them that they cannot save.
    fn beside(&self, session: u32) -> (u64, u64) {
        let others = self.members.iter().filter(|(other, _)| **other != session);
        others.fold((0_u64, 0_u64), |(held, fixed), (_, own)| {
            (held.saturating_add(own.held), fixed.saturating_add(own.fixed))
        })
    }

    /// Has others save what is still lacking when all have saved what they owe.
    fn demand(&mut self, now_ns: u64, asked: Asked) {
        let own = self.members.get(&asked.session).map(|member| member.vgpu);
        let waits: Vec<u32> = self.queue.iter().map(|asked| asked.session).collect();
        let rank = |session: u32, member: &Member| {
            let is_idle = now_ns.saturating_sub(member.served_ns) >= self.idle_ns;
            // Of the idle ones the earliest, of the others the latest.
            let order = if is_idle { member.served_ns } else { u64::MAX - member.served_ns };
            let waits = waits.contains(&session);
            let works = (member.brings, member.in_turn, Some(member.vgpu) == own);
            (works, waits, Reverse(is_idle), order, session)
        };
        let others = self.members.iter().filter(|(other, _)| **other != asked.session);
        let can_stand = others.clone().filter(|(_, member)| !member.loads);
        let mut givers: Vec<_> =
            can_stand.map(|(session, member)| rank(*session, member)).collect();
        givers.sort_unstable();
        let stays: u64 = others.map(|(_, member)| member.held.saturating_sub(member.owes)).sum();
        let mut lacking = stays.saturating_sub(asked.others_max);
        for (.., session) in givers {
            let Some(member) = self.members.get_mut(&session) else { continue };
            let more = member.movable().saturating_sub(member.owes).min(lacking);
            member.owes += more;
            lacking -= more;
        }
    }
}

impl Member {
    /// Bytes that it can save.
    fn movable(&self) -> u64 {
        self.held.saturating_sub(self.fixed)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const IDLE_NS: u64 = 1_000;

    fn lending(capacity: u64, held: &[u64]) -> Lending {
        let mut lending = Lending::new(capacity, IDLE_NS);
        for (session, bytes) in (0..).zip(held) {
            lending.begin(0, session, VgpuKey(session), *bytes);
        }
        lending
    }

    fn wish(total: u64, missing: u64) -> Wish {
        Wish { total, missing, ..Wish::default() }
    }

    #[test]
    fn who_had_its_turn_last_gives_and_idle_ones_before_it() {
        let mut own = lending(100, &[40, 40, 0]);
        own.end_turn(10, VgpuKey(0));
        own.end_turn(20, VgpuKey(1));
        own.ask(2, wish(30, 0));
        assert_eq!(own.look(30, 2, true), Room::Waits);
        assert_eq!((own.owes(0), own.owes(1)), (0, 10), "1 had its turn last");
        own.holds(1, 30, 0);
        assert_eq!(own.look(30, 2, true), Room::Granted);
        // Long after, 0 is idle: it is the first to give.
        own.end_turn(5_000, VgpuKey(1));
        own.end_turn(5_000, VgpuKey(2));
        own.ask(2, wish(40, 0));
        assert_eq!(own.look(5_001, 2, true), Room::Waits);
        assert_eq!((own.owes(0), own.owes(1)), (10, 0));
    }

    #[test]
    fn what_nobody_can_give_is_refused() {
        let mut own = lending(100, &[0, 0]);
        own.ask(0, wish(101, 0));
        assert_eq!(own.look(0, 0, true), Room::Refused);
        own.ask(0, wish(50, 10));
        assert_eq!(own.look(0, 0, true), Room::Refused, "the driver lacks what nobody has");
        own.ask(1, wish(40, 0));
        assert_eq!(own.look(0, 1, true), Room::Granted);
        own.ask(0, wish(50, 10));
        assert_eq!(own.look(0, 0, true), Room::Waits);
        assert_eq!(own.owes(1), 10, "by the account there is room, and the driver has none");
        own.holds(1, 30, 0);
        assert_eq!(own.look(0, 0, true), Room::Granted);
        own.ask(0, wish(50, 1_000));
        assert_eq!(own.look(0, 0, true), Room::Waits);
        assert_eq!(own.owes(1), 30, "all that there is, which may be enough");
    }

    #[test]
    fn who_waits_and_cannot_save_keeps_its_place() {
        let mut own = lending(100, &[60, 40, 0]);
        own.ask(2, wish(80, 0));
        assert_eq!(own.look(0, 2, true), Room::Waits);
        own.ask(0, wish(90, 0));
        assert_eq!(own.look(0, 0, false), Room::Waits);
        let Room::Save { bytes } = own.look(0, 0, true) else { panic!("it stands still") };
        assert_eq!(bytes, own.owes(0));
        own.end(2);
        own.holds(0, 60 - bytes, 0);
        assert_eq!(own.owes(0), 0);
    }

    #[test]
    fn what_cannot_be_saved_is_asked_of_nobody() {
        let mut own = lending(100, &[60, 40, 0]);
        own.holds(0, 60, 50);
        own.holds(1, 40, 5);
        own.ask(2, wish(46, 0));
        assert_eq!(own.look(0, 2, true), Room::Refused, "55 stay, whatever they save");
        own.ask(2, wish(45, 0));
        assert_eq!(own.look(0, 2, true), Room::Waits);
        assert_eq!((own.owes(0), own.owes(1)), (10, 35));
        own.holds(0, 50, 50);
        own.holds(1, 5, 5);
        assert_eq!(own.look(0, 2, true), Room::Granted);
        assert_eq!(own.fixed_beside(VgpuKey(0), 1), 50);
    }

    #[test]
    fn who_is_not_about_to_work_gives_its_own() {
        let mut own = lending(100, &[60, 40]);
        own.ask(0, Wish { total: 70, fixed: 10, gives: true, ..Wish::default() });
        assert_eq!(own.look(0, 0, true), Room::Save { bytes: 10 });
        assert_eq!(own.owes(1), 0);
        own.holds(0, 50, 0);
        own.ask(0, Wish { total: 60, fixed: 10, gives: true, ..Wish::default() });
        assert_eq!(own.look(0, 0, true), Room::Granted);
    }

    #[test]
    fn who_has_the_turn_gives_last_and_is_served_first() {
        let gives = |total| Wish { total, gives: true, ..Wish::default() };
        let mut own = lending(100, &[40, 40, 0, 0]);
        own.end_turn(10, VgpuKey(1));
        own.end_turn(20, VgpuKey(0));
        own.begin_turn(VgpuKey(0));
        // A module of 2, which has no turn: 0 would have to bring the same again in its turn.
        own.ask(2, gives(40));
        assert_eq!(own.look(30, 2, true), Room::Waits);
        assert_eq!((own.owes(0), own.owes(1)), (0, 20));
        // 0 has more by now, and goes first.
        own.ask(3, gives(10));
        own.ask(0, wish(50, 0));
        assert_eq!(own.look(30, 0, true), Room::Granted);
        assert_eq!(own.look(30, 2, true), Room::Waits);
        assert_eq!((own.owes(0), own.owes(1)), (0, 30));
        own.holds(1, 10, 0);
        assert_eq!(own.look(30, 2, true), Room::Granted);
        assert_eq!(own.look(30, 3, true), Room::Waits);
        assert_eq!((own.owes(0), own.owes(1), own.owes(2)), (0, 0, 10), "2 was served last");
    }

    #[test]
    fn who_was_given_room_and_says_nothing_gives_last_for_one_turn() {
        let mut own = lending(100, &[0, 50, 0]);
        own.begin_turn(VgpuKey(0));
        own.ask(0, wish(50, 0));
        assert_eq!(own.look(10, 0, true), Room::Granted);
        let owe = |own: &mut Lending| {
            own.ask(2, wish(20, 0));
            assert_eq!(own.look(20, 2, true), Room::Waits);
            let owes = (own.owes(0), own.owes(1));
            own.cancel(2);
            owes
        };
        assert_eq!(owe(&mut own), (0, 20));
        own.end_turn(10, VgpuKey(0));
        assert_eq!(owe(&mut own), (20, 0), "its turn was the last");
    }

    #[test]
    fn nobody_owes_who_is_gone() {
        let mut own = lending(100, &[60, 40, 0, 0]);
        own.ask(2, wish(80, 0));
        own.ask(3, wish(10, 0));
        assert_eq!(own.look(0, 2, true), Room::Waits);
        assert_eq!(own.debtors(), [0, 1]);
        own.end(2);
        assert!(own.debtors().is_empty());
        assert_eq!(own.look(0, 3, false), Room::Waits);
        assert!(own.debtors().is_empty(), "it cannot wait for them");
        assert_eq!(own.look(0, 3, true), Room::Waits);
        assert_eq!(own.debtors().len(), 1);
    }

    /// What a session of the model does.
    #[derive(Clone, Copy, Debug)]
    enum Deed {
        /// Works, which needs all that it has.
        Work(u32),
        /// Has so many bytes from now on, fewer of them on the device than before if it shrinks.
        Resize(u32, u64),
        /// Dies.
        Die(u32),
    }

    fn deeds() -> impl Strategy<Value = Vec<Deed>> {
        let session = 0..6_u32;
        let deed = prop_oneof![
            6 => session.clone().prop_map(Deed::Work),
            3 => (session.clone(), 0..=100_u64).prop_map(|(who, bytes)| Deed::Resize(who, bytes)),
            1 => session.prop_map(Deed::Die),
        ];
        prop::collection::vec(deed, 1..200)
    }

    proptest! {
        /// Sessions of a device, of which all that ask at once are answered in the end: whoever has
        /// room finds no more on the device than fits, and whoever fits is not refused.
        #[test]
        fn all_who_fit_are_served_and_no_more_is_there_than_fits(deeds in deeds()) {
            const CAPACITY: u64 = 100;
            let mut own = Lending::new(CAPACITY, IDLE_NS);
            // What each has in all, of which an eighth cannot be saved once it is there, and the
            // truth of what is on the device.
            let mut all: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
            let wish = |total| Wish { total, fixed: total / 8, ..Wish::default() };
            let mut asking: Vec<u32> = Vec::new();
            for (now_ns, deed) in (0..).map(|step| step * 300).zip(deeds) {
                match deed {
                    Deed::Resize(who, bytes) => {
                        let (total, held) = all.entry(who).or_insert_with(|| {
                            own.begin(now_ns, who, VgpuKey(who / 2), 0);
                            (0, 0)
                        });
                        (*total, *held) = (bytes, (*held).min(bytes));
                        own.holds(who, *held, bytes / 8);
                        if asking.contains(&who) {
                            own.ask(who, wish(bytes));
                        }
                    }
                    Deed::Die(who) => {
                        all.remove(&who);
                        asking.retain(|other| *other != who);
                        own.end(who);
                    }
                    Deed::Work(who) if all.contains_key(&who) && !asking.contains(&who) => {
                        own.ask(who, wish(all[&who].0));
                        asking.push(who);
                    }
                    Deed::Work(_) => {}
                }
                // Two ask at once now and then; then all are served.
                if asking.len() < 2 {
                    continue;
                }
                for round in 0.. {
                    prop_assert!(round < 64, "somebody waits for ever: {own:?}");
                    for who in std::mem::take(&mut asking) {
                        match own.look(now_ns, who, true) {
                            Room::Granted => {
                                let total = all[&who].0;
                                all.insert(who, (total, total));
                                own.end_turn(now_ns, VgpuKey(who / 2));
                                let there: u64 = all.values().map(|(_, held)| held).sum();
                                prop_assert!(there <= CAPACITY, "{there}: {own:?}");
                                prop_assert_eq!(there, own.held_total());
                            }
                            Room::Save { bytes } => {
                                let (total, held) = all[&who];
                                all.insert(who, (total, held - bytes));
                                own.holds(who, held - bytes, total / 8);
                                own.ask(who, wish(total));
                                asking.push(who);
                            }
                            Room::Waits => asking.push(who),
                            Room::Refused => {
                                let others = all.iter().filter(|(other, _)| **other != who);
                                let stays = others.map(|(_, (all, held))| (all / 8).min(*held));
                                let needs = all[&who].0 + stays.sum::<u64>();
                                prop_assert!(needs > CAPACITY, "{who} fits: {own:?}");
                            }
                        }
                    }
                    // Whoever owes and does not ask stands still as soon as it is told.
                    for who in own.debtors() {
                        if !asking.contains(&who) {
                            let (total, held) = all[&who];
                            let bytes = own.owes(who);
                            all.insert(who, (total, held - bytes));
                            own.holds(who, held - bytes, total / 8);
                        }
                    }
                    if asking.is_empty() {
                        break;
                    }
                }
            }
        }
    }
}
