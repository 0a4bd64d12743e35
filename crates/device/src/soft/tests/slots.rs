//! Several vGPUs on slots of one device: each fills its memory with its identity and checks it
//! after every switch. A device that skips one copy must be caught.

use std::sync::{Arc, Mutex};

use weft_ring::{Access, MemoryFile, SharedMemory};

use super::super::{
    FrameStore, Geometry, HostWindow, MemoryConfig, PhysicalTable, PrivateTable, SoftConfig,
    Translation, physical,
};
use super::faults::kernel;
use super::*;
use crate::{
    Brought, DEVICE_PAGE_BYTES, DeviceError, DevicePage, FaultKind, FrameRun, FrameSource,
    LocalFrames, MemoryUse, PAGE, Wanted,
};

/// Memory of a device that one vGPU has to itself, all of whose pages its one session has.
pub(super) struct OneVgpu {
    pub(super) geometry: Geometry,
    pub(super) frames: MemoryFile,
    pub(super) private_file: MemoryFile,
    pub(super) physical_file: MemoryFile,
    pub(super) page: DevicePage,
    private: PrivateTable,
    physical: Mutex<PhysicalTable>,
    session: u32,
}

/// One session's memory on a device of its own.
pub(super) fn vgpu_of(geometry: Geometry, session: u32) -> OneVgpu {
    let frames = MemoryFile::create("frames", geometry.frame_bytes()).unwrap();
    let private_file = MemoryFile::create("private", geometry.private_bytes()).unwrap();
    let physical_file = MemoryFile::create("physical", geometry.physical_bytes()).unwrap();
    let writable = |file: &MemoryFile| file.map(Access::ReadWrite).unwrap();
    let private = PrivateTable::open(&writable(&private_file), geometry).unwrap();
    let physical = PhysicalTable::open(&writable(&physical_file), geometry).unwrap();
    let page = MemoryFile::create("page", DEVICE_PAGE_BYTES).unwrap();
    let page = DevicePage::open(&writable(&page)).unwrap();
    let physical = Mutex::new(physical);
    let one =
        OneVgpu { geometry, frames, private_file, physical_file, page, private, physical, session };
    one.private.set_base(0, Some(0));
    one.hand_to(physical::entry(session));
    one
}

impl OneVgpu {
    /// Gives all pages another entry, and says so before as the daemon does.
    pub(super) fn hand_to(&self, entry: u64) {
        self.private.note_taken();
        (0..self.geometry.pages()).for_each(|page| self.private.store(page, entry));
        let used = self.geometry.slot_pages() as usize;
        self.physical.lock().unwrap().copy(0, 0, used, &self.private);
    }

    fn store(&self) -> FrameStore {
        let view = |file: &MemoryFile| file.map(Access::ReadOnly).unwrap();
        let (private, physical) = (view(&self.private_file), view(&self.physical_file));
        let table = Translation::open(&private, &physical, self.geometry, self.session).unwrap();
        FrameStore::map(self.frames.try_clone().unwrap(), Some(table)).unwrap()
    }

    pub(super) fn session(&self) -> SoftDevice {
        let source = Box::new(LocalFrames::new(self.geometry.pages() * PAGE));
        soft(self.store(), source, None, Some((self.page.clone(), self.session)))
    }
}

fn soft(
    store: FrameStore,
    source: Box<dyn FrameSource>,
    window: Option<HostWindow>,
    page: Option<(DevicePage, u32)>,
) -> SoftDevice {
    let memory =
        MemoryConfig { store, source, base: BASE, len: 1 << 30, window, exact_bounds: false };
    SoftDevice::new(SoftConfig { memory, memory_bytes: 1 << 20, clock: Clock::Real, page })
}

/// Pages of a slot in these tests, and words of what a vGPU fills: a little more than one slot.
const SLOT_PAGES: u64 = 16;
const WORDS: u32 = (SLOT_PAGES as u32 + 5) * 1024;

/// Where programs of these tests have their window: a page of it is pinned memory.
const WINDOW: u64 = 0x2000_0000_0000;

/// A device of three slots, of which each of three vGPUs has two.
struct Shared {
    physical: PhysicalTable,
    tables: Vec<PrivateTable>,
    /// Whose entries, and of which part, each slot has.
    owners: [Option<(usize, usize)>; 3],
    /// Copies left until one is skipped.
    skip: Option<usize>,
    copies: usize,
    written: usize,
    /// Who takes its slots back whenever another has been answered: as if it executed at the same
    /// time, and always were quicker.
    rival: Option<usize>,
    asked: usize,
    /// What operations named that began.
    named: Vec<Vec<u64>>,
}

/// The slots of each vGPU's parts.
const BASES: [[usize; 2]; 3] = [[0, 1], [1, 2], [2, 0]];

#[derive(Debug)]
struct Daemon {
    vgpu: usize,
    frames: LocalFrames,
    shared: Arc<Mutex<Shared>>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Shared")
    }
}

impl Shared {
    fn set(&mut self, vgpu: usize, runs: &[FrameRun], claim: u64) {
        for page in runs.iter().flat_map(FrameRun::frames) {
            self.tables[vgpu].store(page, claim);
            let part = (page / SLOT_PAGES) as usize;
            let slot = BASES[vgpu][part];
            if self.owners[slot] == Some((vgpu, part)) {
                self.physical.store(slot, page, self.tables[vgpu].load(page));
            }
        }
    }

    fn switch_to(&mut self, vgpu: usize) {
        for (part, slot) in BASES[vgpu].into_iter().enumerate() {
            if self.owners[slot] == Some((vgpu, part)) {
                continue;
            }
            if let Some((other, _)) = self.owners[slot].replace((vgpu, part)) {
                self.tables[other].set_lacks(true);
            }
            let skipped = self.skip == Some(0);
            self.skip = self.skip.and_then(|left| left.checked_sub(1));
            if !skipped {
                let table = self.tables[vgpu].clone();
                self.written += self.physical.copy(slot, part, SLOT_PAGES as usize, &table);
                self.copies += 1;
            }
        }
        self.tables[vgpu].set_lacks(false);
    }
}

impl FrameSource for Daemon {
    fn take(&mut self, frames: u64) -> Result<Vec<FrameRun>, DeviceError> {
        let runs = self.frames.take(frames)?;
        self.shared.lock().unwrap().set(self.vgpu, &runs, physical::entry(self.vgpu as u32 + 1));
        Ok(runs)
    }

    fn give_back(&mut self, runs: &[FrameRun]) {
        self.shared.lock().unwrap().set(self.vgpu, runs, 0);
        self.frames.give_back(runs);
    }

    fn usage(&self) -> MemoryUse {
        self.frames.usage()
    }

    fn make_resident(&self, wanted: &Wanted) -> Brought {
        let mut shared = self.shared.lock().unwrap();
        shared.named.push(wanted.named.clone());
        shared.switch_to(self.vgpu);
        shared.asked += 1;
        if let Some(rival) = shared.rival.filter(|rival| *rival != self.vgpu) {
            shared.switch_to(rival);
        }
        Brought::default()
    }
}

/// Three vGPUs with a kernel that fills and one that counts what is not as it was filled.
fn vgpus(skip: Option<usize>) -> (Vec<Bench>, Arc<Mutex<Shared>>) {
    let geometry =
        Geometry::new(3 * SLOT_PAGES * PAGE, 2 * SLOT_PAGES * PAGE, SLOT_PAGES * PAGE).unwrap();
    let physical_file = MemoryFile::create("physical", geometry.physical_bytes()).unwrap();
    let files: Vec<MemoryFile> = BASES
        .iter()
        .map(|_| MemoryFile::create("private", geometry.private_bytes()).unwrap())
        .collect();
    let table = |file: &MemoryFile| {
        PrivateTable::open(&file.map(Access::ReadWrite).unwrap(), geometry).unwrap()
    };
    let physical = physical_file.map(Access::ReadWrite).unwrap();
    let tables: Vec<PrivateTable> = files.iter().map(table).collect();
    for (table, bases) in tables.iter().zip(BASES) {
        table.forget_bases();
        bases.into_iter().enumerate().for_each(|(part, slot)| table.set_base(part, Some(slot)));
    }
    let physical = PhysicalTable::open(&physical, geometry).unwrap();
    let (owners, copies, written) = ([None; 3], 0, 0);
    let (rival, asked, named) = (None, 0, Vec::new());
    let shared = Shared { physical, tables, owners, skip, copies, written, rival, asked, named };
    let shared = Arc::new(Mutex::new(shared));
    let benches = files.iter().enumerate().map(|(vgpu, file)| {
        let view = |file: &MemoryFile| file.map(Access::ReadOnly).unwrap();
        let (private, physical) = (view(file), view(&physical_file));
        let key = vgpu as u32 + 1;
        let table = Translation::open(&private, &physical, geometry, key).unwrap();
        let frames = MemoryFile::create("frames", geometry.frame_bytes()).unwrap();
        let store = FrameStore::map(frames, Some(table)).unwrap();
        let local = LocalFrames::new(geometry.pages() * PAGE);
        let source = Daemon { vgpu, frames: local, shared: Arc::clone(&shared) };
        let managed_bytes = u64::from(WORDS) * 4;
        let memory = SharedMemory::anonymous((PAGE + managed_bytes) as usize).unwrap();
        let window = HostWindow { base: WINDOW, memory, managed_bytes };
        let mut device = soft(store, Box::new(source), Some(window), None);
        let module = device.load(&[ORACLE.as_bytes()]).unwrap();
        Bench { device, module }
    });
    (benches.collect(), shared)
}

/// `fill(p, id)` writes `id ^ i` to word `i`; `check` counts words at `p` that are otherwise.
const ORACLE: &str = "
.version 6.0
.target sm_70
.address_size 64
.visible .global .align 4 .u32 wrong;
.visible .entry fill(.param .u64 p, .param .u32 id)
{
    .reg .b64 %rd<4>;
    .reg .b32 %r<6>;
    ld.param.u64 %rd1, [p];
    ld.param.u32 %r1, [id];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.u32 %r2, %r2, 1024, %r3;
    mul.wide.u32 %rd2, %r2, 4;
    add.u64 %rd1, %rd1, %rd2;
    xor.b32 %r1, %r1, %r2;
    st.global.u32 [%rd1], %r1;
    ret;
}
.visible .entry check(.param .u64 p, .param .u32 id)
{
    .reg .pred %p1;
    .reg .b64 %rd<4>;
    .reg .b32 %r<6>;
    ld.param.u64 %rd1, [p];
    ld.param.u32 %r1, [id];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.u32 %r2, %r2, 1024, %r3;
    mul.wide.u32 %rd2, %r2, 4;
    add.u64 %rd1, %rd1, %rd2;
    xor.b32 %r1, %r1, %r2;
    ld.global.u32 %r4, [%rd1];
    setp.ne.u32 %p1, %r1, %r4;
    @%p1 red.global.add.u32 [wrong], 1;
    ret;
}
";

/// What a run of turns in this order ends with: the outcomes, and words that were not the vGPU's.
fn oracle(benches: &mut [Bench], turns: impl Iterator<Item = usize>) -> (Vec<Outcome>, u32) {
    let memory: Vec<_> = benches.iter_mut().map(|b| b.alloc(u64::from(WORDS) * 4)).collect();
    oracle_in(&memory, benches, turns)
}

/// The same with managed memory.
fn oracle_of_managed(
    benches: &mut [Bench],
    turns: impl Iterator<Item = usize>,
) -> (Vec<Outcome>, u32) {
    let memory = |bench: &mut Bench| {
        bench.device.manage(WINDOW + PAGE, u64::from(WORDS) * 4).unwrap();
        WINDOW + PAGE
    };
    let memory: Vec<_> = benches.iter_mut().map(memory).collect();
    oracle_in(&memory, benches, turns)
}

fn oracle_in(
    memory: &[u64],
    benches: &mut [Bench],
    turns: impl Iterator<Item = usize>,
) -> (Vec<Outcome>, u32) {
    let id = |vgpu: usize| 0x1111_0000 * (vgpu as u32 + 1);
    let blocks = WORDS / 1024;
    let mut outcomes = Vec::new();
    let mut run = |bench: &mut Bench, name: &str, vgpu: usize| {
        let args = [Arg::U64(memory[vgpu]), Arg::U32(id(vgpu))];
        bench.start(bench.launch(name, blocks, 1024, &args));
        outcomes.extend(finish(&mut bench.device));
    };
    for (vgpu, bench) in benches.iter_mut().enumerate() {
        run(bench, "fill", vgpu);
    }
    for vgpu in turns {
        run(&mut benches[vgpu], "check", vgpu);
        run(&mut benches[vgpu], "fill", vgpu);
    }
    let wrong = benches.iter_mut().map(|bench| {
        let wrong = bench.module.globals.iter().find(|global| global.name == "wrong").unwrap();
        bench.words(wrong.address, 1)[0]
    });
    (outcomes, wrong.sum())
}

fn turns(count: usize) -> impl Iterator<Item = usize> {
    let mut x = 9_u32;
    (0..count).map(move |_| {
        x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (x >> 16) as usize % 3
    })
}

#[test]
fn everybody_finds_its_own_memory_after_every_switch() {
    let (mut benches, shared) = vgpus(None);
    let (outcomes, wrong) = oracle(&mut benches, turns(200));
    assert!(outcomes.iter().all(|outcome| *outcome == Outcome::Done), "{outcomes:?}");
    assert_eq!(wrong, 0);
    let shared = shared.lock().unwrap();
    assert!(shared.copies > 100, "only {} copies: nothing was at stake", shared.copies);
    // The kernels' argument is where the memory begins, which lies in both parts.
    let (both, begun) = (shared.named.iter().filter(|named| **named == [0, 1]).count(), 200 / 3);
    assert!(both > begun, "{both} launches named their memory: {:?}", shared.named);
}

#[test]
fn managed_memory_has_slots_and_is_found_after_every_switch() {
    let (mut benches, shared) = vgpus(None);
    let (outcomes, wrong) = oracle_of_managed(&mut benches, turns(200));
    assert!(outcomes.iter().all(|outcome| *outcome == Outcome::Done), "{outcomes:?}");
    assert_eq!(wrong, 0);
    let copies = shared.lock().unwrap().copies;
    assert!(copies > 100, "only {copies} copies: it has no slots");
    for bench in &mut benches {
        let free = bench.device.memory_use().free;
        bench.device.free(WINDOW + PAGE).unwrap();
        assert_eq!(bench.device.memory_use().free, free + u64::from(WORDS) * 4, "was paid for");
    }
    // What is freed is not there any more.
    let args = [Arg::U64(WINDOW + PAGE), Arg::U32(0)];
    let bench = &mut benches[0];
    bench.start(bench.launch("check", 1, 1024, &args));
    assert!(matches!(finish(&mut bench.device)[..], [Outcome::Fault(_)]));
}

/// The negative control: an entry that nobody wrote is not the vGPU's, wherever the bytes lie.
#[test]
fn a_device_that_skips_one_copy_of_managed_memory_is_caught() {
    for skipped in [3, 8, 21, 40] {
        let (mut benches, _shared) = vgpus(Some(skipped));
        let (outcomes, _) = oracle_of_managed(&mut benches, turns(60));
        let faults = outcomes.iter().filter(|outcome| **outcome != Outcome::Done).count();
        assert!(faults > 0, "copy {skipped} was skipped and nobody noticed");
    }
}

#[test]
fn managed_memory_is_whole_free_pages_behind_the_window_within_the_quota() {
    let (at, all, quota) = (WINDOW + PAGE, 16 * PAGE, 8 * PAGE);
    let memory = SharedMemory::anonymous((PAGE + all) as usize).unwrap();
    let window = HostWindow { base: WINDOW, memory, managed_bytes: all };
    let (store, source) = (FrameStore::local(quota).unwrap(), LocalFrames::new(quota));
    let mut device = soft(store, Box::new(source), Some(window), None);
    device.manage(at + PAGE, 2 * PAGE).unwrap();
    for (address, bytes) in [
        (WINDOW, PAGE),
        (WINDOW, 2 * PAGE),
        (at, 2 * PAGE),
        (at + PAGE, PAGE),
        (at + 2 * PAGE, PAGE),
        (at + 3 * PAGE, all),
        (at + all, PAGE),
        (at + 8, PAGE),
        (at, 8),
        (at, 0),
        (u64::MAX - PAGE + 1, PAGE),
    ] {
        let refused = device.manage(address, bytes);
        assert!(matches!(refused, Err(DeviceError::BadRange { .. })), "{address:#x} {bytes:#x}");
    }
    device.manage(at, PAGE).unwrap();
    device.manage(at + 3 * PAGE, PAGE).unwrap();
    assert!(device.export(at).is_err(), "the program's bytes are no other session's");
    device.alloc(3 * PAGE).unwrap();
    for bytes in [2 * PAGE, 9 * PAGE] {
        let refused = device.manage(at + 4 * PAGE, bytes);
        assert!(matches!(refused, Err(DeviceError::OutOfMemory { .. })), "{refused:?}");
    }
    device.manage(at + 4 * PAGE, PAGE).unwrap();
    assert_eq!(device.memory_use().free, 0);
}

/// Two that execute at the same time and share a slot: the one whose slots are taken after every
/// answer gets on all the same, after a bounded number of questions, and finds its own memory.
#[test]
fn two_that_take_each_others_slots_both_get_on() {
    for (loser, rival) in [(0, 1), (1, 0), (2, 1)] {
        let (mut benches, shared) = vgpus(None);
        let asked = {
            let mut shared = shared.lock().unwrap();
            shared.rival = Some(rival);
            shared.asked
        };
        let (outcomes, wrong) = oracle(&mut benches[loser..=loser], (0..5).map(|_| 0));
        assert!(outcomes.iter().all(|outcome| *outcome == Outcome::Done), "{outcomes:?}");
        assert_eq!(wrong, 0);
        let asked = shared.lock().unwrap().asked - asked;
        // 11 operations, each with fewer windows than pages: 8 questions for each at most.
        let most = 11 * 2 * SLOT_PAGES as usize * 8;
        assert!((8..=most).contains(&asked), "{asked} questions");
    }
}

/// The negative control: whichever copy is skipped, somebody does not find its memory.
#[test]
fn a_device_that_skips_one_copy_is_caught() {
    for skipped in [3, 8, 21, 40] {
        let (mut benches, _shared) = vgpus(Some(skipped));
        let (outcomes, wrong) = oracle(&mut benches, turns(60));
        let faults = outcomes.iter().filter(|outcome| **outcome != Outcome::Done).count();
        assert!(faults > 0 || wrong > 0, "copy {skipped} was skipped and nobody noticed");
    }
}

#[test]
fn what_is_written_while_switched_out_stays_private() {
    let (mut benches, shared) = vgpus(None);
    let first = benches[0].upload(&[1, 2, 3]);
    let theirs = benches[1].upload(&[4]);
    benches[1].run("fill", 1, 1, &[Arg::U64(theirs), Arg::U32(7)]);
    let (copies, owners) = {
        let shared = shared.lock().unwrap();
        (shared.copies, shared.owners)
    };
    // Slot 1 is the second one's now: what the first one does there needs no device.
    let global = benches[0].device.alloc(20 * PAGE).unwrap();
    benches[0].device.write_word(global + 19 * PAGE, 77, false).unwrap();
    assert_eq!(benches[0].device.read_word(first, false).unwrap(), 1);
    {
        let shared = shared.lock().unwrap();
        assert_eq!((shared.copies, shared.owners), (copies, owners));
    }
    benches[0].run("check", 1, 1, &[Arg::U64(global + 19 * PAGE), Arg::U32(77)]);
    assert_eq!(oracle_count(&mut benches[0]), 0);
}

fn oracle_count(bench: &mut Bench) -> u32 {
    let wrong = bench.module.globals.iter().find(|global| global.name == "wrong").unwrap();
    bench.words(wrong.address, 1)[0]
}

/// What reads or writes a word of memory, and takes its place from the physical table.
const ACCESSES: [(&str, &str); 4] = [
    ("store", "st.global.u32 [%rd1], 1;"),
    ("load", "ld.global.u32 %r1, [%rd1]; st.global.u32 [%rd1], %r1;"),
    ("atomic", "atom.global.add.u32 %r1, [%rd1], 1;"),
    ("vector", "ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%rd1]; st.global.u32 [%rd1], %r2;"),
];

/// What a copy of a page of device memory to another one comes to.
fn copied(device: &mut SoftDevice, from: u64, to: u64) -> Outcome {
    let at = |address| Endpoint { place: Place::Device(address), pitch: PAGE, slice: PAGE };
    let shape = CopyShape { width: PAGE, height: 1, depth: 1 };
    device.start(QueueId(0), Op::Copy { dst: at(to), src: at(from), shape }, None).unwrap();
    finish(device).remove(0)
}

#[test]
fn a_forged_entry_of_another_session_faults() {
    let geometry = Geometry::new(1 << 20, 1 << 20, 1 << 20).unwrap();
    for (access, body) in ACCESSES {
        let home = vgpu_of(geometry, 5);
        let mut device = home.session();
        let module = device.load(&[kernel("", body).as_bytes()]).unwrap();
        let mut bench = Bench { device, module };
        let [address, other] = [bench.alloc(PAGE), bench.alloc(PAGE)];
        bench.run("k", 1, 1, &[Arg::U64(address)]);
        assert_eq!(copied(&mut bench.device, address, other), Outcome::Done);
        // The private table still says that the page is the session's: the device's word counts.
        let mine = home.private.load(1);
        let forge = |entry| {
            home.private.note_taken();
            for page in 0..geometry.pages() {
                home.physical.lock().unwrap().store(0, page, entry);
            }
        };
        for forged in [physical::entry(6), 0, mine & !physical::VALID] {
            forge(forged);
            let fault = bench.fault("k", 1, 1, &[Arg::U64(address)]);
            assert_eq!(fault.kind, FaultKind::IllegalAddress, "{access} by {forged:#x}");
            for (from, to) in [(address, other), (other, address)] {
                let came_to = copied(&mut bench.device, from, to);
                assert!(matches!(came_to, Outcome::Fault(_)), "{came_to:?} by {forged:#x}");
            }
        }
        // An entry that is its own leads where it says, and never out of the vGPU's memory.
        forge(physical::at(mine, 9));
        let fault = bench.fault("k", 1, 1, &[Arg::U64(address)]);
        assert_eq!(fault.kind, FaultKind::IllegalAddress, "{access}");
    }
}

#[test]
fn slots_are_powers_of_two_and_countable() {
    for (memory, vgpu, slot) in
        [(1 << 20, 1 << 20, 3 << 20), (1 << 20, 0, 2048), (1 << 40, 0, 4096)]
    {
        assert!(Geometry::new(memory, vgpu, slot).is_err(), "{memory} {vgpu} {slot}");
    }
    let geometry = Geometry::new(100 << 20, 400 << 20, 64 << 20).unwrap();
    assert_eq!((geometry.slots(), geometry.pages()), (2, 7 * 16_384));
    assert_eq!((geometry.part_of(16_383), geometry.part_of(16_384)), (0, 1));
    assert_eq!(geometry.pages_of(1), 16_384..32_768);
}
