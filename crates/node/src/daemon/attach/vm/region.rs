//! The memory that a virtual machine shares with this host: one file per machine, divided into
//! places of equal size, each for one session at a time.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use weft_ring::peer::{self, Credentials};
use weft_ring::{Access, MapError, MemoryFile, PAGE, Segment, bell};

use super::processors::Inode;
use super::{Processors, RegionError, kept};
use crate::daemon::attach::grants;
use crate::link::RegionPart;

/// The least arena and the least pinned window of a place, in bytes.
const HALF_MIN: u64 = 1 << 20;

/// The first page has the region's name, by which the agent in the guest knows whose it is.
const HEAD: u64 = PAGE as u64;

/// The most places of a region: each has a mark of one byte.
const PLACES_MAX: u8 = 64;

/// Who asks for a place while all are taken waits so long for one, and looks so often.
const LEAVE_LIMIT: Duration = Duration::from_secs(1);
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Keys of regions in the ledger of host memory, beyond those of sessions.
const HOST_KEYS: u32 = 1 << 31;

/// How a region is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Layout {
    /// Bytes of the whole.
    pub(super) bytes: u64,
    /// Sessions at once.
    pub(super) places: u8,
}

impl Layout {
    /// A region of so many bytes for so many sessions, within a limit.
    pub(super) fn new(bytes: u64, places: u8, limit: u64) -> Result<Self, RegionError> {
        if !bytes.is_power_of_two() || bytes > limit {
            return Err(RegionError::Size { bytes, limit });
        }
        if !(1..=PLACES_MAX).contains(&places) {
            return Err(RegionError::Places(places));
        }
        let layout = Self { bytes, places };
        let least = Segment::size(0) as u64 + 2 * HALF_MIN;
        if layout.place_bytes() < least {
            return Err(RegionError::Narrow { bytes, places, least });
        }
        Ok(layout)
    }

    fn place_bytes(self) -> u64 {
        (self.bytes - HEAD) / u64::from(self.places) / PAGE as u64 * PAGE as u64
    }

    /// Where a session lies: half of what its control words leave is arena, half pinned window.
    fn part(self, region: [u8; 16], place: u8) -> RegionPart {
        let start = HEAD + self.place_bytes() * u64::from(place);
        let fixed = Segment::size(0) as u64;
        let half = (self.place_bytes() - fixed) / 2 / PAGE as u64 * PAGE as u64;
        RegionPart {
            region,
            region_bytes: self.bytes,
            places: self.places,
            place,
            segment_at: start,
            segment_bytes: fixed + half,
            pinned_at: start + fixed + half,
            pinned_bytes: half,
        }
    }
}

/// What a place is used for.
#[derive(Debug)]
enum Place {
    Free,
    Taken,
    /// The session is over, and its client in the guest may still write there: until the other end
    /// of this is closed.
    Leaving(OwnedFd),
}

/// A region.
#[derive(Debug)]
pub(crate) struct Region {
    /// Its name, known to the machine's server alone.
    pub(super) id: [u8; 16],
    /// Whose it is.
    pub(super) uid: u32,
    /// The memory.
    pub(super) file: MemoryFile,
    pub(super) layout: Layout,
    places: Mutex<Places>,
    /// A server is connected.
    is_served: AtomicBool,
    /// As the machine's server told last.
    processors: Mutex<Option<Processors>>,
}

/// What each place is used for, and which was given last.
#[derive(Debug)]
struct Places {
    all: Vec<Place>,
    last: usize,
}

/// The connection of a region's server: there is one at a time.
#[derive(Debug)]
pub(super) struct Served(pub(super) Arc<Region>);

impl Served {
    /// Of a region that has none.
    pub(super) fn begin(region: Arc<Region>) -> Option<Self> {
        let was_served = region.is_served.swap(true, Ordering::AcqRel);
        (!was_served).then_some(Self(region))
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.0.is_served.store(false, Ordering::Release);
    }
}

impl Region {
    fn new(id: [u8; 16], uid: u32, file: MemoryFile, layout: Layout) -> Self {
        let all: Vec<Place> = (0..layout.places).map(|_| Place::Free).collect();
        let places = Mutex::new(Places { last: all.len().saturating_sub(1), all });
        let (is_served, processors) = (AtomicBool::new(false), Mutex::default());
        Self { id, uid, file, layout, places, is_served, processors }
    }

    /// The threads of the machine's processors are these; whether none were known before.
    pub(super) fn learn(&self, processors: Processors) -> bool {
        let mut known = self.processors.lock().unwrap_or_else(PoisonError::into_inner);
        known.replace(processors).is_none()
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place that nobody in the guest uses any more, zeroed, and makes a segment there.
    pub(crate) fn take(self: &Arc<Self>) -> Result<(Held, Marks), RegionError> {
        let (reader, writer) = bell::marks()?;
        let kept = writer.try_clone()?;
        let place = self.find_place()?;
        let part = self.layout.part(self.id, place);
        let held = Held { region: Arc::clone(self), part, marks: Some(kept) };
        // A program that outlived its agent may still map the place, and look there.
        let serial = u32::from_le_bytes(grants::random()?);
        let segment = held.segment()?.map(Access::ReadWrite)?;
        Segment::renew(&segment, serial)?;
        let all = self.memory(part.segment_at, part.segment_bytes + part.pinned_bytes)?;
        all.punch(0, all.len())?;
        Segment::create_in(segment, serial)?;
        Ok((held, Marks { reader, writer }))
    }

    /// Waits a moment for who has just ended: the guest and its server let go of a place after the
    /// program is gone.
    fn find_place(&self) -> Result<u8, RegionError> {
        let deadline = Instant::now() + LEAVE_LIMIT;
        loop {
            match self.free_place() {
                Err(RegionError::Full(_)) if Instant::now() < deadline => thread::sleep(LOOK_EVERY),
                found => return found,
            }
        }
    }

    fn free_place(&self) -> Result<u8, RegionError> {
        let mut places = self.places();
        let usable = |place: &Place| match place {
            Place::Free => true,
            Place::Taken => false,
            Place::Leaving(marks) => peer::has_hung_up(marks),
        };
        let full = || RegionError::Full(self.layout.places);
        // One after the other: the guest may not have let go of the one that was tried last.
        let count = places.all.len();
        let mut order = (1..=count).map(|step| (places.last + step) % count);
        let found = order.find(|at| usable(&places.all[*at])).ok_or_else(full)?;
        places.all[found] = Place::Taken;
        places.last = found;
        u8::try_from(found).map_err(|_| full())
    }

    fn memory(&self, offset: u64, len: u64) -> Result<MemoryFile, MapError> {
        self.file.try_clone()?.part(offset, len)
    }
}

/// What carries marks from a session's worker to the machine's server.
#[derive(Debug)]
pub(crate) struct Marks {
    /// The server's end.
    pub(crate) reader: OwnedFd,
    /// The worker's.
    pub(crate) writer: OwnedFd,
}

/// A place that a session has, given back when this is dropped.
#[derive(Debug)]
pub(crate) struct Held {
    region: Arc<Region>,
    /// Where it is.
    pub(crate) part: RegionPart,
    marks: Option<OwnedFd>,
}

impl Held {
    /// The threads of the machine's processors, if its server has told.
    pub(crate) fn processors(&self) -> Option<Processors> {
        self.region.processors.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The session's segment.
    pub(crate) fn segment(&self) -> Result<MemoryFile, MapError> {
        self.region.memory(self.part.segment_at, self.part.segment_bytes)
    }

    /// Its pinned window.
    pub(crate) fn pinned(&self) -> Result<MemoryFile, MapError> {
        self.region.memory(self.part.pinned_at, self.part.pinned_bytes)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut places = self.region.places();
        if let Some(place) = places.all.get_mut(usize::from(self.part.place)) {
            *place = self.marks.take().map_or(Place::Free, Place::Leaving);
        }
    }
}

/// The regions of all machines.
#[derive(Debug, Default)]
pub(crate) struct Regions {
    known: Mutex<BTreeMap<[u8; 16], Known>>,
    /// How many there ever were.
    entered: AtomicU32,
}

#[derive(Debug)]
struct Known {
    /// Lives as long as its machine's server is connected or a session is in it.
    region: Weak<Region>,
    /// Its key in the ledger of host memory.
    host: u32,
}

impl Regions {
    fn known(&self) -> MutexGuard<'_, BTreeMap<[u8; 16], Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A user's region of that name.
    pub(super) fn find(&self, id: [u8; 16], uid: u32) -> Option<Arc<Region>> {
        let region = self.known().get(&id)?.region.upgrade()?;
        (region.uid == uid).then_some(region)
    }

    /// Makes a new one, if fewer than `machines` are there; and its key in the ledger of host
    /// memory.
    pub(super) fn create(
        &self,
        uid: u32,
        layout: Layout,
        machines: usize,
    ) -> Result<(Arc<Region>, u32), RegionError> {
        let id = grants::random()?;
        let bytes = usize::try_from(layout.bytes).unwrap_or(usize::MAX);
        let file = MemoryFile::create(kept::NAME, bytes)?;
        let head = file.try_clone()?.part(0, HEAD)?.map(Access::ReadWrite)?;
        head.span(0, id.len())?.write_from(&id)?;
        let region = Arc::new(Region::new(id, uid, file, layout));
        let known = self.known();
        let is_own = |known: &&Known| known.region.upgrade().is_some_and(|of| of.uid == uid);
        let own = known.values().filter(is_own).count();
        let free = machines.saturating_sub(known.len());
        if free > 0 && own > 0 && own >= free {
            return Err(RegionError::Share(own));
        }
        let host = self.enter(known, &region, machines)?;
        Ok((region, host))
    }

    /// A region of that name that an earlier daemon made, from the process that keeps it; and its
    /// key in the ledger of host memory. No user's share of machines is looked at: which of them
    /// come back first is chance.
    pub(super) fn take_over(
        &self,
        (id, uid): ([u8; 16], u32),
        layout: Layout,
        server: &Credentials,
        machines: usize,
    ) -> Result<(Arc<Region>, u32), RegionError> {
        let file =
            kept::find(server, |file| file.len() as u64 == layout.bytes && !self.has_file(file))?;
        let region = Arc::new(Region::new(id, uid, file, layout));
        let known = self.known();
        if known.get(&id).is_some_and(|known| known.region.strong_count() > 0) {
            return Err(kept::NotKept::None.into());
        }
        let host = self.enter(known, &region, machines)?;
        Ok((region, host))
    }

    /// Whether a file is a region's here.
    fn has_file(&self, file: &MemoryFile) -> bool {
        let Ok(file) = Inode::of(file) else { return true };
        let regions = self.known();
        let mut living = regions.values().filter_map(|known| known.region.upgrade());
        living.any(|region| Inode::of(&region.file).is_ok_and(|other| other == file))
    }

    fn enter(
        &self,
        mut known: MutexGuard<'_, BTreeMap<[u8; 16], Known>>,
        region: &Arc<Region>,
        machines: usize,
    ) -> Result<u32, RegionError> {
        if known.len() >= machines {
            return Err(RegionError::Machines(machines));
        }
        // None is used twice: whoever ends an old one does so when it comes to it.
        let host = HOST_KEYS + self.entered.fetch_add(1, Ordering::Relaxed) % HOST_KEYS;
        known.insert(region.id, Known { region: Arc::downgrade(region), host });
        Ok(host)
    }

    /// The place of a session that an earlier daemon began, with its key in the ledger of host
    /// memory and size if the region is not known yet.
    pub(crate) fn adopt(
        &self,
        part: RegionPart,
        uid: u32,
        file: MemoryFile,
        marks: OwnedFd,
    ) -> Result<(Held, Option<(u32, u64)>), RegionError> {
        let (layout, len) =
            (Layout { bytes: part.region_bytes, places: part.places }, file.len() as u64);
        let fits = part.place < part.places && layout.part(part.region, part.place) == part;
        if !fits || len != part.region_bytes {
            return Err(RegionError::Size { bytes: part.region_bytes, limit: len });
        }
        let (region, new) = match self.find(part.region, uid) {
            Some(region) => (region, None),
            None => {
                let region = Arc::new(Region::new(part.region, uid, file, layout));
                let host = self.enter(self.known(), &region, usize::MAX)?;
                (region, Some((host, layout.bytes)))
            }
        };
        region.places().all[usize::from(part.place)] = Place::Taken;
        Ok((Held { region, part, marks: Some(marks) }, new))
    }

    /// Forgets those that nobody uses; their keys in the ledger of host memory.
    pub(crate) fn sweep(&self) -> Vec<u32> {
        let mut gone = Vec::new();
        self.known().retain(|_, known| {
            let lives = known.region.strong_count() > 0;
            if !lives {
                gone.push(known.host);
            }
            lives
        });
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn places_lie_side_by_side_within_the_region() {
        for (bytes, places) in [(16 * MIB, 1), (64 * MIB, 3), (256 * MIB, 8), (1 << 30, 64)] {
            let layout = Layout::new(bytes, places, 1 << 30).unwrap();
            let mut end = HEAD;
            for place in 0..places {
                let part = layout.part([0; 16], place);
                assert!(part.segment_at >= end, "{part:?}");
                assert_eq!(part.pinned_at, part.segment_at + part.segment_bytes);
                assert!(part.pinned_bytes >= HALF_MIN, "{part:?}");
                end = part.pinned_at + part.pinned_bytes;
            }
            assert!(end <= bytes);
        }
    }

    #[test]
    fn regions_that_no_device_could_have_are_refused() {
        for (bytes, places) in
            [(0, 1), (48 * MIB, 1), (2 << 30, 1), (64 * MIB, 0), (1 << 30, 65), (16 * MIB, 8)]
        {
            Layout::new(bytes, places, 1 << 30).unwrap_err();
        }
    }

    #[test]
    fn a_place_is_given_again_when_the_guest_has_let_go_and_is_zero_then() {
        let regions = Regions::default();
        let layout = Layout::new(16 * MIB, 1, 1 << 30).unwrap();
        let (region, host) = regions.create(0, layout, 1).unwrap();
        let refused = regions.create(0, layout, 1);
        assert!(matches!(refused, Err(RegionError::Machines(1))), "{refused:?}");
        let (held, marks) = region.take().unwrap();
        assert!(matches!(region.take(), Err(RegionError::Full(1))));
        let pinned = held.pinned().unwrap().map(Access::ReadWrite).unwrap();
        pinned.span(0, 4).unwrap().write_from(b"left").unwrap();
        drop(held);
        assert!(matches!(region.take(), Err(RegionError::Full(1))), "its program may still write");
        drop(marks.reader);
        let (held, marks) = region.take().unwrap();
        assert_eq!(pinned.span(0, 4).unwrap().to_vec(), [0; 4]);
        Segment::open(held.segment().unwrap().map(Access::ReadWrite).unwrap()).unwrap();
        drop((held, marks));
        assert_eq!(regions.sweep(), [0; 0]);
        drop(region);
        assert_eq!(regions.sweep(), [host]);
    }

    #[test]
    fn the_next_daemon_finds_a_region_through_its_sessions() {
        let (before, after) = (Regions::default(), Regions::default());
        let layout = Layout::new(32 * MIB, 2, 1 << 30).unwrap();
        let (region, _) = before.create(7, layout, 1).unwrap();
        let (held, marks) = region.take().unwrap();
        let file = || region.file.try_clone().unwrap();
        let writer = marks.writer.try_clone().unwrap();
        let (adopted, new) = after.adopt(held.part, 7, file(), writer).unwrap();
        assert_eq!(new.map(|(_, bytes)| bytes), Some(layout.bytes));
        assert!(after.find(region.id, 8).is_none(), "it is another user's");
        let found = after.find(region.id, 7).unwrap();
        let (other, _marks) = found.take().unwrap();
        assert_ne!(other.part.place, adopted.part.place);
        let part = RegionPart { segment_at: 0, place: 1, ..held.part };
        after.adopt(part, 7, file(), marks.writer).unwrap_err();
    }

    #[test]
    fn the_next_daemon_finds_a_region_without_a_session_at_its_server() {
        let (before, after) = (Regions::default(), Regions::default());
        let uid = rustix::process::geteuid().as_raw();
        let server = Credentials { pid: Some(std::process::id()), uid, gid: 0 };
        let layout = Layout::new(128 * MIB, 2, 1 << 30).unwrap();
        let (region, _) = before.create(7, layout, 1).unwrap();
        let take_over =
            |id: [u8; 16], machines| after.take_over((id, 7), layout, &server, machines);
        let full = take_over(region.id, 0);
        assert!(matches!(full, Err(RegionError::Machines(0))), "{full:?}");
        let (found, _) = take_over(region.id, 2).unwrap();
        assert_eq!(Inode::of(&found.file).unwrap(), Inode::of(&region.file).unwrap());
        let (_held, _marks) = found.take().unwrap();
        assert!(after.find(region.id, 7).is_some());
        // The file is one machine's, and the name too.
        for id in [[9; 16], region.id] {
            let again = take_over(id, 2);
            assert!(matches!(again, Err(RegionError::Lost(_))), "{again:?}");
        }
    }
}
