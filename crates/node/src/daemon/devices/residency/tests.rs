//! The oracle: vGPUs with software devices of their own keep their identity in their memory, on a
//! device with too few slots, and check all of it in every turn. Copies to and from the device are
//! operations: they go by its physical table.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use weft_device::soft::{Clock, FrameStore, MemoryConfig, SoftConfig, SoftDevice, Translation};
use weft_device::{
    Brought, CopyShape, Device, DeviceError, Endpoint, ForeignFrames, FrameRun, FrameSource,
    MemoryUse, Op, Outcome, PAGE, Place, QueueId, Wanted,
};
use weft_ring::{Access, MemoryFile, SharedMemory};

use weft_sched::VgpuKey;
use weft_sched::memory::{DEMAND, PERIOD_NS};

use super::board::{Fault, Killed};
use super::*;
use crate::daemon::devices::exports::Export;
use crate::daemon::devices::frames::{Frames, VgpuFiles};

const SLOT_PAGES: u64 = 16;
const SLOTS: u64 = 5;
/// More than the device has: one vGPU alone may have so much.
const LENT: u64 = 12 * SLOT_PAGES * PAGE;
const VGPUS: u32 = 4;
const SECOND_NS: u64 = 1_000_000_000;

/// What a worker has instead of the link.
#[derive(Debug)]
struct Source {
    session: u32,
    vgpu: u32,
    frames: Arc<Mutex<Frames>>,
    requests: u32,
    now_ns: Arc<Mutex<u64>>,
    terms: Terms,
}

impl FrameSource for Source {
    fn take(&mut self, frames: u64) -> Result<Vec<FrameRun>, DeviceError> {
        self.requests += 1;
        let taken = self.frames.lock().unwrap().take(self.session, frames, self.requests, false);
        let runs = taken.map_err(|_| DeviceError::OutOfMemory { requested: frames * PAGE })?;
        Ok(runs.into_iter().map(|(first, count)| FrameRun { first, count }).collect())
    }

    fn give_back(&mut self, runs: &[FrameRun]) {
        let runs: Vec<Pages> = runs.iter().map(|run| (run.first, run.count)).collect();
        let mut frames = self.frames.lock().unwrap();
        let dirty = frames.give_back(self.session, self.vgpu, &runs, false).unwrap();
        frames.recycle(&dirty.clear());
    }

    fn usage(&self) -> MemoryUse {
        let (free, total) = self.frames.lock().unwrap().usage(self.vgpu);
        MemoryUse { free, total }
    }

    fn make_resident(&self, wanted: &Wanted) -> Brought {
        loop {
            let residency = Arc::clone(self.frames.lock().unwrap().residency());
            let now_ns = *self.now_ns.lock().unwrap();
            let bring = || residency.make_resident(now_ns, self.vgpu, wanted);
            // A worker whose daemon died asks its successor again.
            if let Some(Exchange { wait_ns, .. }) = survives(bring, &self.frames, self.terms) {
                return Brought { wait_ns };
            }
        }
    }

    fn export(&mut self, bytes: u64, runs: &[FrameRun]) -> Result<[u8; 16], DeviceError> {
        let runs = runs.iter().map(|run| (run.first, run.count)).collect();
        let (session, vgpu) = (self.session, self.vgpu);
        let export = Export { session, vgpu, bytes, runs, imports: 0 };
        let key = self.frames.lock().unwrap().export([7; 16], export);
        Ok(key.unwrap().unwrap())
    }

    fn import(&mut self, key: [u8; 16]) -> Result<ForeignFrames, DeviceError> {
        let mut frames = self.frames.lock().unwrap();
        let found = frames.import(key, self.session, self.vgpu).ok_or(DeviceError::NotExported)?;
        let run = |&(first, count): &Pages| FrameRun { first, count };
        let runs = found.runs.iter().map(run).collect();
        let (owner, bytes, number) = (found.session, found.bytes, found.imports);
        Ok(ForeignFrames { owner, bytes, runs, number })
    }
}

/// What a thread of the daemon comes to; nothing if it was killed in the middle, and then there is
/// another daemon.
fn survives<T>(act: impl FnOnce() -> T, frames: &Mutex<Frames>, terms: Terms) -> Option<T> {
    let result = catch_unwind(AssertUnwindSafe(act));
    result.map_err(|end| assert!(end.is::<Killed>(), "{end:?}")).ok().or_else(|| {
        succeed(frames, terms);
        None
    })
}

thread_local! {
    /// For the negative control: a daemon takes over what a dead one noted of its slots, too.
    static BELIEVES: Cell<bool> = const { Cell::new(false) };
}

/// A daemon takes over from a dead one: it has nothing but what workers have.
fn succeed(frames: &Mutex<Frames>, terms: Terms) {
    let mut frames = frames.lock().unwrap();
    let left: Vec<_> = (1..=VGPUS).map(|vgpu| (vgpu, frames.files(vgpu).unwrap())).collect();
    let physical = left[0].1.physical.try_clone().unwrap();
    let physical = MemoryFile::received(physical).unwrap();
    let mut next = Frames::new(terms, 3 * LENT, Some(physical), None).unwrap();
    for (vgpu, files) in left {
        next.set_quota(vgpu, LENT);
        next.add_session(vgpu, 100 + u64::from(vgpu), vgpu);
        let table = MemoryFile::received(files.table).unwrap();
        next.adopt_files(vgpu, files.frames, &table).unwrap();
    }
    next.rebuild(&(1..=VGPUS).collect::<Vec<u32>>()).unwrap();
    if BELIEVES.get() {
        let dead = frames.residency().lock();
        next.residency().lock().board.believe(&dead.board);
    }
    *frames = next;
}

/// A session, of a vGPU of the same key unless it is said to be of another.
struct Tenant {
    key: u32,
    device: SoftDevice,
    host: Arc<SharedMemory>,
    /// Address, pages, and what they are filled with.
    memory: Vec<(u64, u64, u64)>,
    filled: u64,
}

struct Bed {
    frames: Arc<Mutex<Frames>>,
    now_ns: Arc<Mutex<u64>>,
    tenants: Vec<Tenant>,
    seed: u64,
    terms: Terms,
}

/// Somebody did not find what was its own.
#[derive(Debug, PartialEq, Eq)]
struct Lost;

/// What an entry is said to take where slots are too dear to be written for nothing, in ns.
const DEAR_NS: u64 = 10_000;

fn bed(placement: &str, slots: u64) -> Bed {
    bed_of(placement, slots, 0)
}

fn bed_of(placement: &str, slots: u64, entry_ns: u64) -> Bed {
    Bed::new(terms_of(placement, slots, entry_ns))
}

fn terms_of(placement: &str, slots: u64, entry_ns: u64) -> Terms {
    let slot_bytes = SLOT_PAGES * PAGE;
    Terms {
        geometry: Geometry::new(slots * slot_bytes, LENT, slot_bytes).unwrap(),
        dealing: Dealing::by_name(placement).unwrap(),
        entry_ns,
        quantum_ns: 6_000_000,
        monitor: MonitorConfig::default(),
        period_ns: PERIOD_NS,
    }
}

impl Tenant {
    fn new(
        key: u32,
        vgpu: u32,
        frames: &Arc<Mutex<Frames>>,
        now_ns: &Arc<Mutex<u64>>,
        terms: Terms,
    ) -> Self {
        let geometry = terms.geometry;
        let files = {
            let mut frames = frames.lock().unwrap();
            frames.set_quota(vgpu, LENT);
            frames.add_session(key, 100 + u64::from(key), vgpu);
            frames.files(vgpu).unwrap()
        };
        let VgpuFiles { frames: file, table, physical } = files;
        let view = |fd| MemoryFile::received(fd).unwrap().map(Access::ReadOnly).unwrap();
        let table = Translation::open(&view(table), &view(physical), geometry, key).unwrap();
        let (frames, now_ns) = (Arc::clone(frames), Arc::clone(now_ns));
        let source = Source { session: key, vgpu, frames, requests: 0, now_ns, terms };
        let memory = MemoryConfig {
            store: FrameStore::map(file, Some(table)).unwrap(),
            source: Box::new(source),
            base: 1 << 40,
            len: 1 << 34,
            window: None,
            exact_bounds: false,
        };
        let config = SoftConfig { memory, memory_bytes: LENT, clock: Clock::Real, page: None };
        let host = SharedMemory::anonymous(usize::try_from(LENT).unwrap()).unwrap();
        Self { key, device: SoftDevice::new(config), host, memory: Vec::new(), filled: 0 }
    }

    fn copy(&mut self, dst: Place, src: Place, width: u64) -> Result<(), Lost> {
        let end = |place| Endpoint { place, pitch: width, slice: width };
        let (dst, src) = (end(dst), end(src));
        let shape = CopyShape { width, height: 1, depth: 1 };
        self.device.start(QueueId(0), Op::Copy { dst, src, shape }, None).unwrap();
        let completion = loop {
            self.device.drive(1_000_000);
            if let Some(completion) = self.device.poll() {
                break completion;
            }
        };
        match completion.outcome {
            Outcome::Done => Ok(()),
            Outcome::Fault(_) | Outcome::Partial { .. } => Err(Lost),
        }
    }

    /// What page `page` of its fill `id` has.
    fn words(&self, id: u64, page: u64) -> [u64; 2] {
        [u64::from(self.key) << 32 | id, page]
    }

    fn alloc(&mut self, pages: u64) -> Result<(), Lost> {
        let Ok(address) = self.device.alloc(pages * PAGE) else { return Ok(()) };
        self.filled += 1;
        self.memory.push((address, pages, self.filled));
        self.fill(address, pages, self.filled)
    }

    fn fill(&mut self, address: u64, pages: u64, id: u64) -> Result<(), Lost> {
        let page = |page| {
            let words = self.words(id, page).into_iter().cycle().take(512);
            words.flat_map(u64::to_le_bytes).collect::<Vec<u8>>()
        };
        let bytes: Vec<u8> = (0..pages).flat_map(page).collect();
        self.copy(Place::Device(address), Place::Inline(bytes), pages * PAGE)
    }

    /// Whether all of its memory is as it was filled.
    fn check(&mut self) -> Result<(), Lost> {
        for (address, pages, id) in self.memory.clone() {
            let bytes = usize::try_from(pages * PAGE).unwrap();
            let span = self.host.span(0, bytes).unwrap();
            self.copy(Place::Host(span.clone()), Place::Device(address), pages * PAGE)?;
            let seen = span.to_vec();
            let (words, _) = seen.as_chunks::<8>();
            let is_own = |(at, word): (usize, &[u8; 8])| {
                let (page, place) = (at as u64 / 512, at % 2);
                u64::from_le_bytes(*word) == self.words(id, page)[place]
            };
            if !words.iter().enumerate().all(is_own) {
                return Err(Lost);
            }
        }
        Ok(())
    }
}

impl Bed {
    fn new(terms: Terms) -> Self {
        let frames = Arc::new(Mutex::new(Frames::new(terms, 3 * LENT, None, None).unwrap()));
        let now_ns = Arc::new(Mutex::new(SECOND_NS));
        let of = |key| Tenant::new(key, key, &frames, &now_ns, terms);
        Self { tenants: (1..=VGPUS).map(of).collect(), frames, now_ns, seed: 7, terms }
    }

    /// A turn of a vGPU is over in this second, in which it used the device for so long.
    fn end_turn(&self, second: u64, vgpu: u32, used_ns: u64) {
        let residency = Arc::clone(self.frames.lock().unwrap().residency());
        residency.end_turn(second * SECOND_NS, vgpu, used_ns);
    }

    /// Slots that a vGPU has in its turns, and those that nobody else has.
    fn slots_of(&self, name: &str) -> (usize, usize) {
        let slots = self.report().slots;
        let own = slots.iter().filter(|slot| slot.users.iter().any(|user| user == name));
        let alone = own.clone().filter(|slot| slot.users.len() == 1);
        (own.count(), alone.count())
    }

    fn random(&mut self, below: u64) -> u64 {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.seed >> 33) % below
    }

    /// A turn of somebody: it checks what it has, and then changes something.
    fn turn(&mut self) -> Result<(), Lost> {
        let who = usize::try_from(self.random(u64::from(VGPUS))).unwrap();
        let (what, pages, which) = (self.random(4), 1 + self.random(40), self.random(1 << 20));
        let step_ns = if self.random(20) == 0 { 25 * SECOND_NS } else { SECOND_NS / 50 };
        *self.now_ns.lock().unwrap() += step_ns;
        let now_ns = *self.now_ns.lock().unwrap();
        let tenant = &mut self.tenants[who];
        tenant.check()?;
        let which = usize::try_from(which).unwrap() % tenant.memory.len().max(1);
        match (what, tenant.memory.get(which).copied()) {
            (0 | 1, _) if tenant.memory.len() < 6 => tenant.alloc(pages)?,
            (2, Some((address, pages, _))) => {
                tenant.filled += 1;
                tenant.memory[which].2 = tenant.filled;
                tenant.fill(address, pages, tenant.filled)?;
            }
            (_, Some((address, ..))) => {
                tenant.memory.remove(which);
                tenant.device.free(address).unwrap();
            }
            (_, None) => {}
        }
        let key = tenant.key;
        let residency = Arc::clone(self.frames.lock().unwrap().residency());
        let end = || residency.end_turn(now_ns, key, 6_000_000);
        if survives(end, &self.frames, self.terms).is_none() {
            return Ok(());
        }
        residency.lock().dealer.check().map_err(|_| Lost)
    }

    /// Slots of everybody else are written ahead while the one has the device that had it last.
    fn write_ahead(&self) {
        let residency = Arc::clone(self.frames.lock().unwrap().residency());
        for (holder, next) in (1..=VGPUS).flat_map(|holder| (1..=VGPUS).map(move |o| (holder, o))) {
            let write = || while writes(&residency, holder, next) {};
            if survives(write, &self.frames, self.terms).is_none() {
                return;
            }
        }
    }

    fn report(&self) -> MemoryReport {
        self.frames.lock().unwrap().residency().report(SECOND_NS, |key| Some(format!("v{key}")))
    }
}

#[test]
fn nothing_is_lost_or_seen_by_others_under_any_placement() {
    let all = weft_sched::memory::NAMES.iter().copied().chain([DEMAND]);
    for (placement, entry_ns) in all.flat_map(|name| [(name, 0), (name, DEAR_NS)]) {
        let mut bed = bed_of(placement, SLOTS, entry_ns);
        for turn in 0..300 {
            assert_eq!(bed.turn(), Ok(()), "{placement}, turn {turn}");
        }
        let report = bed.report();
        assert!(report.copied_slots > 50 && report.replaced_parts > 0, "{placement}: {report:?}");
    }
}

/// The negative control: whichever slot it is whose copies are skipped, the vGPU whose entries they
/// were notices.
#[test]
fn skipped_copies_of_one_slot_are_noticed() {
    for skipped in 0..6 {
        let mut bed = bed("exact", 8);
        bed.tenants.iter_mut().for_each(|tenant| tenant.alloc(3 * SLOT_PAGES).unwrap());
        let mut round = || bed.tenants.iter_mut().position(|tenant| tenant.check().is_err());
        assert_eq!((round(), round()), (None, None));
        for before in 0..=skipped {
            assert_eq!(bed.tenants[before % 4].check(), Ok(()));
        }
        let copied = bed.report().copied_slots;
        bed.frames.lock().unwrap().residency().lock().board.fault = Fault::Next;
        let noticed = (0..16).any(|turn| bed.tenants[turn % 4].check() == Err(Lost));
        assert!(noticed, "copies after {copied} were skipped and nobody noticed");
    }
}

/// The daemon is killed in the middle of a switch, between any two words that it writes for workers
/// to read, and while it writes ahead; its successor has only what workers have. In every turn
/// everybody finds all of its memory, whoever's switch it was.
#[test]
fn a_daemon_that_is_killed_anywhere_in_a_switch_loses_nothing() {
    let all = weft_sched::memory::NAMES.iter().copied().chain([DEMAND]);
    for (placement, slots) in all.flat_map(|name| [(name, SLOTS), (name, 1)]) {
        let mut bed = bed(placement, slots);
        (0..20).for_each(|turn| assert_eq!(bed.turn(), Ok(()), "{placement}, turn {turn}"));
        for point in 0..60 {
            let first = Arc::clone(bed.frames.lock().unwrap().residency());
            first.lock().board.fault = Fault::Kill(point);
            let is_killed =
                |bed: &Bed| !Arc::ptr_eq(&first, bed.frames.lock().unwrap().residency());
            for turn in 0.. {
                assert!(turn < 100, "{placement}: no switch passes {point} points in {turn} turns");
                assert_eq!(bed.turn(), Ok(()), "{placement}, killed at {point}, turn {turn}");
                bed.write_ahead();
                if is_killed(&bed) {
                    break;
                }
            }
            (0..4).for_each(|who| assert_eq!(bed.tenants[who].check(), Ok(()), "{placement}"));
        }
    }
}

/// The negative control: the dead daemon notes whose a slot is before it has written all of its
/// entries, and a successor that went by that would not write them.
#[test]
fn a_successor_that_believed_a_dead_daemon_would_lose_memory() {
    BELIEVES.set(true);
    let loses = |point| {
        // Where there is one slot, the successor deals out the same one.
        let mut bed = bed("scores", 1);
        (0..20).for_each(|turn| assert_eq!(bed.turn(), Ok(()), "turn {turn}"));
        let first = Arc::clone(bed.frames.lock().unwrap().residency());
        first.lock().board.fault = Fault::Kill(point);
        (0..40).any(|_| bed.turn().is_err())
    };
    assert!((0..30).any(loses), "no kill at any of 30 points was noticed");
}

/// A turn begins with an operation on some part, which is drawn: nothing is learned from turns, and
/// what the operation names is brought with it. Of a second one in the same turn it is met.
#[test]
fn what_an_operation_names_is_not_met() {
    let met = |operations: usize| {
        let mut bed = bed_of("exact", SLOTS, DEAR_NS);
        bed.tenants.iter_mut().for_each(|tenant| {
            (0..4).for_each(|_| tenant.alloc(SLOT_PAGES).unwrap());
        });
        let all: Vec<_> = bed.tenants.iter().map(|tenant| tenant.memory.clone()).collect();
        let before = bed.report().faults;
        for turn in 0..80 {
            let who = turn % 4;
            let first = usize::try_from(bed.random(4)).unwrap();
            let parts = all[who].iter().cycle().skip(first).take(operations);
            bed.tenants[who].memory = parts.copied().collect();
            assert_eq!(bed.tenants[who].check(), Ok(()), "turn {turn}");
        }
        bed.report().faults - before
    };
    let (one, two) = (met(1), met(2));
    assert!(one == 0 && two > 20, "{one} parts met in 80 operations, {two} in twice as many");
}

/// A new daemon takes over programs whose turns began before it: the first that it hears of one is
/// a page that it met.
#[test]
fn the_first_that_is_heard_of_a_vgpu_may_be_a_page_that_it_met() {
    let mut bed = bed("exact", SLOTS);
    let address = bed.tenants[0].device.alloc(SLOT_PAGES * PAGE).unwrap();
    let page = Some((address - (1 << 40)) / PAGE);
    let residency = Arc::clone(bed.frames.lock().unwrap().residency());
    residency.make_resident(SECOND_NS, 1, &Wanted { page, touched: vec![], named: vec![] });
    assert_eq!(bed.report().faults, 1);
}

/// A program that goes through its memory, a part of it in each turn: what it passed is brought for
/// nothing where that is cheap, and not where it is dear.
#[test]
fn what_is_dear_is_brought_only_where_it_is_expected() {
    let copied = |entry_ns| {
        let mut bed = bed_of("exact", SLOTS, entry_ns);
        bed.tenants.iter_mut().for_each(|tenant| {
            (0..4).for_each(|_| tenant.alloc(SLOT_PAGES).unwrap());
        });
        let all: Vec<_> = bed.tenants.iter().map(|tenant| tenant.memory.clone()).collect();
        let before = bed.report().copied_slots;
        for turn in 0..24 {
            let who = turn % 4;
            bed.tenants[who].memory = vec![all[who][turn / 4 % 4]];
            assert_eq!(bed.tenants[who].check(), Ok(()), "turn {turn}");
        }
        bed.report().copied_slots - before
    };
    let (cheap, dear) = (copied(0), copied(DEAR_NS));
    // A part and sometimes its neighbour in each turn, or all four.
    assert!(dear <= 24 * 2 && cheap >= 24 * 3, "{dear} slots beside {cheap}");
}

/// Sweeps of which a turn makes two parts or three: of the guesses what is next some must be wrong,
/// and demand paging makes none. Little is copied for nothing.
#[test]
fn a_sweep_copies_hardly_more_than_demand_paging() {
    let copied = |placement| {
        let mut bed = bed_of(placement, SLOTS, DEAR_NS);
        bed.tenants.iter_mut().for_each(|tenant| {
            (0..4).for_each(|_| tenant.alloc(SLOT_PAGES).unwrap());
        });
        let all: Vec<_> = bed.tenants.iter().map(|tenant| tenant.memory.clone()).collect();
        let (before, mut at) = (bed.report().copied_slots, [0; VGPUS as usize]);
        for turn in 0..240 {
            let (who, count) = (turn % 4, 2 + turn / 4 % 2);
            let parts = all[who].iter().cycle().skip(at[who]).take(count);
            bed.tenants[who].memory = parts.copied().collect();
            at[who] = (at[who] + count) % 4;
            assert_eq!(bed.tenants[who].check(), Ok(()), "{placement}, turn {turn}");
        }
        bed.report().copied_slots - before
    };
    let (own, demand) = (copied("exact"), copied(DEMAND));
    assert!(demand > 500 && own * 8 <= demand * 9, "{own} slots beside {demand}");
}

/// Sweeps at one pace, half a part in each turn: nobody writes over what another is in the middle
/// of, though everybody has all slots.
#[test]
fn sweeps_at_one_pace_leave_each_other_what_they_are_in_the_middle_of() {
    const PARTS: usize = 5;

    let copied = |placement| {
        let mut bed = bed_of(placement, SLOTS, DEAR_NS);
        bed.tenants.iter_mut().for_each(|tenant| {
            (0..2 * PARTS).for_each(|_| tenant.alloc(SLOT_PAGES / 2).unwrap());
        });
        let all: Vec<_> = bed.tenants.iter().map(|tenant| tenant.memory.clone()).collect();
        let before = bed.report().copied_slots;
        for turn in 0..400 {
            let (who, half) = (turn % 4, turn / 4 % (2 * PARTS));
            bed.tenants[who].memory = vec![all[who][half]];
            assert_eq!(bed.tenants[who].check(), Ok(()), "{placement}, turn {turn}");
        }
        bed.report().copied_slots - before
    };
    let (own, demand) = (copied("exact"), copied(DEMAND));
    // One for each part that a turn enters.
    assert!(demand <= 205 && own * 4 <= demand * 5, "{own} slots beside {demand}");
}

/// One that needed three slots and needs one now, beside three that need two each: eight slots are
/// enough, once it is asked as well, though it lacks nothing.
#[test]
fn who_lacks_nothing_does_not_keep_what_it_needs_no_more() {
    let mut bed = bed_of("exact", 8, DEAR_NS);
    let rounds = |bed: &mut Bed, count: usize| {
        let before = bed.report().copied_slots;
        for turn in 0..4 * count {
            let tenant = &mut bed.tenants[turn % 4];
            assert_eq!(tenant.check(), Ok(()), "turn {turn}");
            let key = tenant.key;
            bed.end_turn(1, key, 6_000_000);
        }
        bed.report().copied_slots - before
    };
    for _ in 0..3 {
        bed.tenants[0].alloc(SLOT_PAGES).unwrap();
    }
    rounds(&mut bed, 8);
    bed.tenants[0].memory.truncate(1);
    for tenant in &mut bed.tenants[1..] {
        (0..2).for_each(|_| tenant.alloc(SLOT_PAGES).unwrap());
    }
    // Until it is asked, and the others lie beside each other.
    rounds(&mut bed, 100);
    assert_eq!(rounds(&mut bed, 50), 0);
}

#[test]
fn a_vgpu_is_idle_after_as_long_as_the_monitor_is_told() {
    for (idle, is_placed) in [(5, false), (20, true)] {
        let monitor = MonitorConfig { idle_ns: idle * SECOND_NS, ..MonitorConfig::default() };
        let mut bed = Bed::new(Terms { monitor, ..terms_of("exact", SLOTS, 0) });
        (0..2).for_each(|who| bed.tenants[who].alloc(SLOT_PAGES).unwrap());
        (1..=2).for_each(|vgpu| bed.end_turn(1, vgpu, 6_000_000));
        bed.end_turn(10, 2, 6_000_000);
        assert_eq!(bed.slots_of("v1").0 > 0, is_placed, "idle after {idle} s, looked at after 9");
        assert!(bed.slots_of("v2").0 > 0, "it has just had a turn");
    }
}

/// One used the device much and another, of late, a little: who counts as the most used, and so
/// lies alone, is a matter of the window; from when on, of the period.
#[test]
fn who_is_most_used_is_a_matter_of_the_window_and_the_period() {
    let alone = |window: u64, period: u64| {
        let monitor = MonitorConfig { window_ns: window * SECOND_NS, ..MonitorConfig::default() };
        let terms = Terms { monitor, ..terms_of("exact", SLOTS, 0) };
        let mut bed = Bed::new(Terms { period_ns: period * SECOND_NS, ..terms });
        for who in 0..3 {
            (0..2).for_each(|_| bed.tenants[who].alloc(SLOT_PAGES).unwrap());
        }
        // Everybody has a turn in each second, and uses so many thousandths of it.
        let mut second = |second: u64, used: [u64; 3]| {
            *bed.now_ns.lock().unwrap() = second * SECOND_NS;
            for (who, used) in used.into_iter().enumerate() {
                assert_eq!(bed.tenants[who].check(), Ok(()));
                bed.end_turn(second, bed.tenants[who].key, used * SECOND_NS / 1_000);
            }
        };
        (2..=20).for_each(|now| second(now, [900, 0, 0]));
        (21..=50).for_each(|now| second(now, [0, 50, 10]));
        ["v1", "v2", "v3"].map(|name| bed.slots_of(name).1)
    };
    let (long, short, never) = (alone(200, 5), alone(20, 5), alone(20, 500));
    assert_eq!((long, short), ([2, 1, 1], [1, 2, 1]));
    assert_eq!(never, long, "nobody looked since they came");
}

#[test]
fn one_slot_is_enough_for_everybody() {
    let mut bed = bed("scores", 1);
    for turn in 0..100 {
        assert_eq!(bed.turn(), Ok(()), "turn {turn}");
    }
}

#[test]
fn where_everything_fits_nothing_is_copied_after_the_first_time() {
    let mut bed = bed("exact", SLOTS);
    for tenant in &mut bed.tenants {
        tenant.alloc(SLOT_PAGES).unwrap();
    }
    let before = bed.report();
    assert_eq!((before.slots.len(), before.faults), (5, 0), "the first fill names its part");
    for _ in 0..10 {
        bed.tenants.iter_mut().for_each(|tenant| tenant.check().unwrap());
    }
    assert_eq!(bed.report(), before);
    let owners: Vec<String> = before.slots.iter().filter_map(|slot| slot.owner.clone()).collect();
    assert_eq!(owners.len(), 4, "{owners:?}");
}

#[test]
fn only_entries_that_are_in_use_are_copied_and_others_are_cleared() {
    let mut bed = bed("scores", 1);
    bed.tenants[0].alloc(10).unwrap();
    bed.tenants[1].alloc(3).unwrap();
    let before = bed.report().copied_entries;
    bed.tenants[0].check().unwrap();
    // Ten of its own over three.
    assert_eq!(bed.report().copied_entries - before, 10);
    bed.tenants[1].check().unwrap();
    // Three of its own, and seven of the other's are cleared.
    assert_eq!(bed.report().copied_entries - before, 20);
    bed.tenants[1].check().unwrap();
    assert_eq!(bed.report().copied_entries - before, 20);
}

#[test]
fn a_modelled_switch_takes_what_is_said() {
    let mut bed = bed_of("scores", 1, 1_000_000);
    bed.tenants[0].alloc(10).unwrap();
    bed.tenants[1].alloc(3).unwrap();
    let began = Instant::now();
    bed.tenants[0].check().unwrap();
    let took = began.elapsed().as_nanos();
    assert!(took >= 9_000_000, "ten entries of 1 ms took {took} ns");
    let report = bed.report();
    assert!(report.copying_ns >= 13_000_000, "{report:?}");
    assert!(report.last_switch.is_some_and(|last| last.ns >= 9_000_000), "what is shown of it");
}

/// As many parts as before, of which one is another: the plan, which knows numbers, is the same.
#[test]
fn a_working_set_that_moves_on_is_found_where_it_is() {
    let mut bed = bed("exact", 2);
    // Two allocations of a part each, and one of somebody else's, so that there are switches.
    for (who, parts) in [(0, 2), (1, 1)] {
        (0..parts).for_each(|_| bed.tenants[who].alloc(SLOT_PAGES).unwrap());
    }
    let first = bed.tenants[0].memory[0];
    let second = bed.tenants[0].memory[1];
    bed.tenants[0].memory = vec![first];
    for _ in 0..16 {
        assert_eq!((bed.tenants[0].check(), bed.tenants[1].check()), (Ok(()), Ok(())));
    }
    // The part that was not touched for sixteen turns goes in the same turn as it comes back.
    for at in [second, first, second] {
        bed.tenants[0].memory = vec![at];
        for _ in 0..17 {
            assert_eq!((bed.tenants[0].check(), bed.tenants[1].check()), (Ok(()), Ok(())));
        }
    }
}

/// Whether a slot of who is next was written.
fn writes(residency: &Residency, holder: u32, next: u32) -> bool {
    matches!(residency.write_ahead(holder, &[next]), Written::Slot { .. })
}

/// Slots of who is next are written while another has the device: its switch writes nothing.
#[test]
fn what_is_written_ahead_is_not_written_at_the_switch() {
    for (placement, ahead) in [("pipelined", true), ("exact", false)] {
        let mut bed = bed(placement, 3);
        bed.tenants.iter_mut().for_each(|tenant| tenant.alloc(SLOT_PAGES).unwrap());
        let residency = Arc::clone(bed.frames.lock().unwrap().residency());
        assert_eq!(residency.writes_ahead(), ahead);
        let (mut written, mut copied) = (0, 0);
        for turn in 0..40 {
            let (holder, next) = (turn % 4, (turn + 1) % 4);
            let before = bed.report();
            assert_eq!(bed.tenants[holder].check(), Ok(()), "{placement}, turn {turn}");
            copied += bed.report().copied_slots - before.copied_slots;
            let (holder, next) = (bed.tenants[holder].key, bed.tenants[next].key);
            let first = residency.order().next(VgpuKey(holder), &[VgpuKey(next)]);
            // Who has not been heard of yet has no place in it.
            assert!(turn < 4 || first.is_some() == ahead, "{placement}, turn {turn}");
            while writes(&residency, holder, next) {}
            written = bed.report().ahead_slots;
            // Nothing of who has the device was written over.
            assert_eq!(bed.tenants[turn % 4].check(), Ok(()), "{placement}, turn {turn}");
        }
        assert_eq!(written > 5, ahead, "{placement}: {written} slots");
        assert!(copied > 4, "{placement}: {copied} slots, so nothing was shared");
    }
}

/// A page that one session of a vGPU imported from another is freed, and a third one of that vGPU
/// gets it, while the plan moves the part from slot to slot and back without bringing it there.
#[test]
fn an_imported_page_that_is_anothers_now_is_not_found_in_a_slot_that_it_was_in_before() {
    let mut bed = bed_of("exact", SLOTS, DEAR_NS);
    let session = |key| Tenant::new(key, 1, &bed.frames, &bed.now_ns, bed.terms);
    let (mut importer, mut third) = (session(11), session(12));
    let exporter = &mut bed.tenants[0];
    // The second one keeps the part in use.
    (0..2).for_each(|_| exporter.alloc(1).unwrap());
    let (address, _, id) = exporter.memory[0];
    let key = exporter.device.export(address).unwrap();
    let import = importer.device.import(key).unwrap();
    let mut read = || {
        let span = importer.host.span(0, 4096).unwrap();
        importer.copy(Place::Host(span.clone()), Place::Device(import.address), PAGE)?;
        Ok::<_, Lost>(span.to_vec())
    };
    assert_eq!(read().unwrap()[..8], exporter.words(id, 0)[0].to_le_bytes());
    let residency = Arc::clone(bed.frames.lock().unwrap().residency());
    {
        let board = &mut residency.lock().board;
        assert!(board.is_in(1, 0, 0), "the first part is in the first slot");
        board.publish(1, BTreeMap::from([(0, 3)]));
        board.copy(1, 0, 3);
        // Its place is slot 0 again, and nobody has it brought there.
        board.publish(1, BTreeMap::from([(0, 0)]));
    }
    exporter.device.free(address).unwrap();
    third.device.alloc(PAGE).unwrap();
    assert_eq!(bed.frames.lock().unwrap().session_bytes(12), PAGE);
    let before = bed.report().faults;
    assert_eq!(read(), Err(Lost), "what is another session's is not read");
    assert_eq!(bed.report().faults, before, "nobody asks for what is not theirs");
}
