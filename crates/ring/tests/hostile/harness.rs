//! A client that owns its side of the segment and does with it whatever the input says.
//!
//! Whatever it writes, the worker must not panic, read out of bounds or run away: it sees commands
//! that are garbage, or a violation, and after a violation nothing else. The fuzz target
//! `ring_hostile` and the replay of its corpus both call [`attack`].

use std::os::fd::OwnedFd;
use std::time::Duration;

use weft_ring::{
    ANSWER_SLOTS, Access, ArenaRef, AtomicU64, Bell, Cells, ClientOptions, ClientSide, MAX_COMMAND,
    MapError, MemoryFile, Ordering, PAGE, Segment, SegmentError, WaitPage, WorkerSide,
    bell::{marks, take_marks},
};

const ARENA: usize = 64 << 10;
/// Commands that the worker takes at once: a lane of full slots would keep it busy for ever.
const TAKEN_AT_ONCE: usize = 64;

/// Places worth hitting, in words: ticket, lanes in use, doorbell, worker lost, arena flag; lane
/// controls; lane slots. A wrong place makes the attack weaker, not wrong.
const PLACES: [usize; 8] = [8, 16, 24, 32, 40, 512, 520, LANE_SLOTS_AT / 8];
const LANE_SLOTS_AT: usize = 0x112_000;
const LANE_BYTES: usize = 512 * 64;

struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    fn word(&mut self) -> u64 {
        let mut word = [0; 8];
        let (now, later) = self.0.split_at(self.0.len().min(8));
        word[..now.len()].copy_from_slice(now);
        self.0 = later;
        u64::from_le_bytes(word)
    }
}

/// Plays one input, on memory of the session alone and on its part of a machine's region.
///
/// # Panics
/// When the worker's side breaks a promise.
pub(crate) fn attack(data: &[u8]) {
    if let Ok(segment) = Segment::anonymous(ARENA) {
        play(&segment, &segment, data);
    }
    // Miri has no memory files.
    if !cfg!(miri)
        && let Ok(part) = Part::create()
    {
        play(&part.guest, &part.host, data);
        part.check();
    }
}

/// A session of a virtual machine: both sides map a part of one region, each with its own bell.
struct Part {
    guest: Segment,
    host: Segment,
    region: MemoryFile,
    to_guest: OwnedFd,
    /// Marks that nobody takes out, as of a server that does not come to it.
    _to_host: OwnedFd,
}

impl Part {
    const MARK: u8 = 7;

    fn create() -> Result<Self, SegmentError> {
        let len = Segment::size(ARENA);
        let region = MemoryFile::create("region", len + 2 * PAGE)?;
        let part = || region.try_clone()?.part(PAGE as u64, len as u64);
        let no_pipe = |source| MapError::Os { what: "pipe", source };
        let (to_guest, host_out) = marks().map_err(no_pipe)?;
        let (to_host, guest_out) = marks().map_err(no_pipe)?;
        let (wait_page, _page) = WaitPage::create()?;
        let host = part()?.with_bell(Bell::of_host(host_out, Self::MARK));
        let guest = part()?.with_bell(Bell::of_guest(guest_out, Self::MARK, wait_page));
        let host = Segment::create_in(host.map(Access::ReadWrite)?, 1)?;
        let guest = Segment::open(guest.map(Access::ReadWrite)?)?;
        Ok(Self { guest, host, region, to_guest, _to_host: to_host })
    }

    /// What is beside the part is as it was, and the guest got no marks but its own.
    fn check(&self) {
        let beside = [0, self.region.len() - PAGE];
        let whole = self.region.map(Access::ReadWrite).expect("mapped before");
        for at in beside {
            let words = whole.cells::<AtomicU64>(at, PAGE / 8).expect("within the region");
            let is_zero = |at: usize| words[at].load(Ordering::Relaxed) == 0;
            assert!((0..PAGE / 8).all(is_zero), "written beside the part");
        }
        let mut came = [0; 4096];
        while let Ok(count @ 1..) = take_marks(&self.to_guest, &mut came) {
            assert!(came[..count].iter().all(|mark| *mark == Self::MARK), "another's mark");
        }
    }
}

/// Plays one input on both sides' views of one session.
fn play(segment: &Segment, host: &Segment, data: &[u8]) {
    let words = segment.memory().len() / 8;
    let Ok(words) = segment.memory().cells::<AtomicU64>(0, words) else { return };
    let options = ClientOptions { spin: Duration::ZERO, full_limit: Some(Duration::ZERO) };
    let client = ClientSide::open(segment.clone(), options, Box::new(|| true));
    let (Ok(client), Ok(mut worker)) = (client, WorkerSide::open(host.clone())) else { return };
    let mut input = Input(data);
    while let Some(step) = input.byte() {
        match step % 6 {
            0 => poke_place(&words, &mut input),
            1 => poke(&words, input.word(), input.word()),
            2 => scribble(&words, &mut input),
            3 => {
                let len = usize::from(step / 6) * 13 % (MAX_COMMAND + 1);
                let command = vec![step; len];
                // A client that spoilt its own words may find the lane full or the worker lost.
                let _outcome = client.submit(&command);
            }
            4 => drain(&mut worker),
            _ => {
                let seen = worker.wait(Duration::ZERO, Some(Duration::ZERO), || None::<()>);
                assert!(seen.is_ok() || !worker.has_command(), "a command was overlooked");
            }
        }
    }
    drain(&mut worker);
}

fn poke(words: &Cells<AtomicU64>, at: u64, value: u64) {
    let len = words.len() as u64;
    let at = usize::try_from(at % len).unwrap_or(0);
    words[at].store(value, Ordering::Relaxed);
}

fn poke_place(words: &Cells<AtomicU64>, input: &mut Input<'_>) {
    let (place, lane) = (input.byte().unwrap_or(0), input.byte().unwrap_or(0));
    let lane = usize::from(lane % 16);
    let place = PLACES[usize::from(place) % PLACES.len()];
    let at = match place {
        512.. if place >= LANE_SLOTS_AT / 8 => place + lane * LANE_BYTES / 8,
        512.. => place + lane * 16,
        _ => place,
    };
    poke(words, at as u64, input.word());
}

/// Fills a lane from some slot on.
fn scribble(words: &Cells<AtomicU64>, input: &mut Input<'_>) {
    let (lane, slot) = (input.byte().unwrap_or(0), input.byte().unwrap_or(0));
    let start = LANE_SLOTS_AT + usize::from(lane % 16) * LANE_BYTES + usize::from(slot) * 64;
    for i in 0..8 {
        poke(words, (start / 8 + i) as u64, input.word());
    }
}

fn drain(worker: &mut WorkerSide) {
    for _ in 0..TAKEN_AT_ONCE {
        let (answer, named) = match worker.take() {
            Ok(None) => return,
            Ok(Some(record)) => {
                assert!(record.bytes.len() <= MAX_COMMAND, "an overlong command");
                (record.answer, arena_ref(record.bytes))
            }
            Err(violation) => {
                assert_eq!(worker.take().err(), Some(violation), "a violation was forgiven");
                return;
            }
        };
        if let Some(answer) = answer {
            assert!(answer.slot < ANSWER_SLOTS, "a slot that does not exist");
            worker.announce(answer);
            assert_eq!(worker.complete(answer, 0, &[0; 32]), Ok(()));
        }
        if let Ok(span) = worker.arena().span(&named) {
            assert!(span.to_vec().len() <= ARENA, "bytes outside the arena");
            assert_eq!(worker.arena().release(&named), Ok(()));
        }
    }
}

/// Takes a command's first bytes for the name of a block.
fn arena_ref(bytes: &[u8]) -> ArenaRef {
    let mut input = Input(bytes);
    let block = u32::try_from(input.word() & 0xffff_ffff).unwrap_or(0);
    ArenaRef { block, offset: input.word(), len: input.word() }
}
