//! Memory of a device whose driver moves it: who has how much there, and who gives some back.
//!
//! An operation needs all of its session's memory on the device, since a kernel that met an address
//! without memory would end its context, and nobody says what it touched before. So whoever begins
//! to work asks for room for all that it has. Those who ask are served one after the other: who is
//! first has others save what it lacks, and nobody saves who does not stand still.
//!
//! Who gives: whoever was idle for longest, and among those that work, whoever had its turn last,
//! because its next one is furthest away where turns go round. Other sessions of the same vGPU come
//! last, since they work in the same turns. Weft's; a model of nvshare would take all of everybody.

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
    /// Bytes of those that it is to save.
    owes: u64,
    /// When it had its last turn, or was given room.
    served_ns: u64,
}

#[derive(Clone, Copy, Debug)]
struct Asked {
    session: u32,
    /// Bytes that it is to have on the device.
    total: u64,
    /// Bytes that others may have there at most for that.
    others_max: u64,
}

impl Lending {
    /// A device of so many bytes. Who had no turn for `idle_ns` is idle.
    pub const fn new(capacity: u64, idle_ns: u64) -> Self {
        Self { capacity, idle_ns, members: BTreeMap::new(), queue: VecDeque::new() }
    }

    /// A session begins, with so many bytes on the device.
    pub fn begin(&mut self, now_ns: u64, session: u32, vgpu: VgpuKey, held: u64) {
        let member = Member { vgpu, held, owes: 0, served_ns: now_ns };
        self.members.insert(session, member);
    }

    /// A session is over, and so is what it had and wanted.
    pub fn end(&mut self, session: u32) {
        self.members.remove(&session);
        self.cancel(session);
    }

    /// A session wants no room any more.
    pub fn cancel(&mut self, session: u32) {
        self.queue.retain(|asked| asked.session != session);
    }

    /// A session has so many bytes on the device now. What it has less than before, it has saved.
    pub fn holds(&mut self, session: u32, bytes: u64) {
        let Some(member) = self.members.get_mut(&session) else { return };
        let saved = member.held.saturating_sub(bytes);
        member.owes = member.owes.saturating_sub(saved).min(bytes);
        member.held = bytes;
    }

    /// A vGPU's turn is over: its sessions were served.
    pub fn end_turn(&mut self, now_ns: u64, vgpu: VgpuKey) {
        for member in self.members.values_mut().filter(|member| member.vgpu == vgpu) {
            member.served_ns = member.served_ns.max(now_ns);
        }
    }

    /// A session asks for room for `total` bytes in all. Asked again, it keeps its place.
    /// `missing`: bytes that the driver did not have, though there was room by this account: others
    /// are to save so much more.
    pub fn ask(&mut self, session: u32, total: u64, missing: u64) {
        let others = self.held_beside(session);
        let left = self.capacity.saturating_sub(total);
        let others_max = if missing == 0 { left } else { left.min(others.saturating_sub(missing)) };
        // What nobody has, nobody can save.
        let is_hopeless = total > self.capacity || (missing > 0 && others == 0);
        let total = if is_hopeless { u64::MAX } else { total };
        let asked = Asked { session, total, others_max };
        match self.queue.iter_mut().find(|other| other.session == session) {
            Some(own) => *own = asked,
            None => self.queue.push_back(asked),
        }
    }

    /// What becomes of a session that has asked. `stands`: nothing of it is in flight, so that it
    /// can save.
    pub fn look(&mut self, now_ns: u64, session: u32, stands: bool) -> Room {
        let Some(place) = self.queue.iter().position(|asked| asked.session == session) else {
            return Room::Refused;
        };
        let Some(asked) = self.queue.get(place).copied() else { return Room::Refused };
        if asked.total > self.capacity {
            self.queue.remove(place);
            return Room::Refused;
        }
        let owes = self.owes(session);
        if owes > 0 && stands {
            self.queue.remove(place);
            return Room::Save { bytes: owes };
        }
        if place > 0 || owes > 0 {
            return Room::Waits;
        }
        if self.held_beside(session) > asked.others_max {
            self.demand(now_ns, asked);
            return Room::Waits;
        }
        self.queue.remove(place);
        if let Some(member) = self.members.get_mut(&session) {
            member.held = member.held.max(asked.total);
            member.served_ns = member.served_ns.max(now_ns);
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

    /// Bytes that are to be moved before a session that has asked has its room, its own included.
    pub fn to_move(&self, session: u32) -> u64 {
        let asked = self.queue.iter().find(|asked| asked.session == session);
        let Some(asked) = asked.filter(|asked| asked.total <= self.capacity) else { return 0 };
        let others = self.held_beside(session).saturating_sub(asked.others_max);
        others.saturating_add(asked.total.saturating_sub(self.held(session)))
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

    fn held_beside(&self, session: u32) -> u64 {
        let others = self.members.iter().filter(|(other, _)| **other != session);
        others.map(|(_, member)| member.held).sum()
    }

    /// Has others save what is still lacking when all have saved what they owe.
    fn demand(&mut self, now_ns: u64, asked: Asked) {
        let own = self.members.get(&asked.session).map(|member| member.vgpu);
        let waits: Vec<u32> = self.queue.iter().map(|asked| asked.session).collect();
        let rank = |session: u32, member: &Member| {
            let is_idle = now_ns.saturating_sub(member.served_ns) >= self.idle_ns;
            // Of the idle ones the earliest, of the others the latest.
            let order = if is_idle { member.served_ns } else { u64::MAX - member.served_ns };
            (Some(member.vgpu) == own, waits.contains(&session), Reverse(is_idle), order, session)
        };
        let others = self.members.iter().filter(|(other, _)| **other != asked.session);
        let mut givers: Vec<_> =
            others.clone().map(|(session, member)| rank(*session, member)).collect();
        givers.sort_unstable();
        let stays: u64 = others.map(|(_, member)| member.held.saturating_sub(member.owes)).sum();
        let mut lacking = stays.saturating_sub(asked.others_max);
        for (.., session) in givers {
            let Some(member) = self.members.get_mut(&session) else { continue };
            let more = member.held.saturating_sub(member.owes).min(lacking);
            member.owes += more;
            lacking -= more;
        }
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

    #[test]
    fn who_had_its_turn_last_gives_and_idle_ones_before_it() {
        let mut own = lending(100, &[40, 40, 0]);
        own.end_turn(10, VgpuKey(0));
        own.end_turn(20, VgpuKey(1));
        own.ask(2, 30, 0);
        assert_eq!(own.look(30, 2, true), Room::Waits);
        assert_eq!((own.owes(0), own.owes(1)), (0, 10), "1 had its turn last");
        own.holds(1, 30);
        assert_eq!(own.look(30, 2, true), Room::Granted);
        // Long after, 0 is idle: it is the first to give.
        own.end_turn(5_000, VgpuKey(1));
        own.end_turn(5_000, VgpuKey(2));
        own.ask(2, 40, 0);
        assert_eq!(own.look(5_001, 2, true), Room::Waits);
        assert_eq!((own.owes(0), own.owes(1)), (10, 0));
    }

    #[test]
    fn what_nobody_can_give_is_refused() {
        let mut own = lending(100, &[0, 0]);
        own.ask(0, 101, 0);
        assert_eq!(own.look(0, 0, true), Room::Refused);
        own.ask(0, 50, 10);
        assert_eq!(own.look(0, 0, true), Room::Refused, "the driver lacks what nobody has");
        own.ask(1, 40, 0);
        assert_eq!(own.look(0, 1, true), Room::Granted);
        own.ask(0, 50, 10);
        assert_eq!(own.look(0, 0, true), Room::Waits);
        assert_eq!(own.owes(1), 10, "by the account there is room, and the driver has none");
        own.holds(1, 30);
        assert_eq!(own.look(0, 0, true), Room::Granted);
    }

    #[test]
    fn who_waits_and_cannot_save_keeps_its_place() {
        let mut own = lending(100, &[60, 40, 0]);
        own.ask(2, 80, 0);
        assert_eq!(own.look(0, 2, true), Room::Waits);
        own.ask(0, 90, 0);
        assert_eq!(own.look(0, 0, false), Room::Waits);
        let Room::Save { bytes } = own.look(0, 0, true) else { panic!("it stands still") };
        assert_eq!(bytes, own.owes(0));
        own.end(2);
        own.holds(0, 60 - bytes);
        assert_eq!(own.owes(0), 0);
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
            // What each has in all, and the truth of what is on the device.
            let mut all: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
            let mut asking: Vec<u32> = Vec::new();
            for (now_ns, deed) in (0..).map(|step| step * 300).zip(deeds) {
                match deed {
                    Deed::Resize(who, bytes) => {
                        let (total, held) = all.entry(who).or_insert_with(|| {
                            own.begin(now_ns, who, VgpuKey(who / 2), 0);
                            (0, 0)
                        });
                        (*total, *held) = (bytes, (*held).min(bytes));
                        own.holds(who, *held);
                        if asking.contains(&who) {
                            own.ask(who, bytes, 0);
                        }
                    }
                    Deed::Die(who) => {
                        all.remove(&who);
                        asking.retain(|other| *other != who);
                        own.end(who);
                    }
                    Deed::Work(who) if all.contains_key(&who) && !asking.contains(&who) => {
                        own.ask(who, all[&who].0, 0);
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
                                own.holds(who, held - bytes);
                                own.ask(who, total, 0);
                                asking.push(who);
                            }
                            Room::Waits => asking.push(who),
                            Room::Refused => prop_assert!(false, "{who} fits: {own:?}"),
                        }
                    }
                    // Whoever owes and does not ask stands still as soon as it is told.
                    for who in own.debtors() {
                        if !asking.contains(&who) {
                            let (total, held) = all[&who];
                            let bytes = own.owes(who);
                            all.insert(who, (total, held - bytes));
                            own.holds(who, held - bytes);
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
