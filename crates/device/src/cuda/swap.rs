//! Swap plans on a GPU: contents go to the frames that paid for them and come back under their
//! addresses.
//!
//! A piece that is saved has no memory on the device: its addresses stay reserved and nothing is
//! mapped there. A kernel that met them would end its context, so no operation begins before all
//! of the session's memory is there. What the driver took by itself (variables of modules) stays.
//!
//! On a device that lends more than it has, memory comes with the first operation after it was
//! allocated, and whoever begins to work asks for room ([`crate::FrameSource::room`]).

use std::time::Duration;

use super::backing::{Held, Memory, Piece, Range};
use super::driver::{Code, OUT_OF_MEMORY};
use super::kept::Place;
use super::timeline::monotonic_ns;
use super::{Chunk, CudaDevice, bytes_of};
use crate::{DeviceError, PartUse, Room, RoomWanted, SwapError, SwapStep, Swapping};

/// What a module needs waits so long for what is in flight, in ns. A kernel may wait for what the
/// program does after the load.
const LOAD_WAITS_NS: u64 = 2_000_000_000;

/// And for others so much longer than anybody may keep what others need, in ns.
const LOAD_WAITS_BEYOND_NS: u64 = 60_000_000_000;

/// An ask for room that took longer than this waited for others that gave, each within its limits:
/// that does not count. For one that gives nothing it would have been told to come later.
const ASK_NS: u64 = 1_000_000_000;

/// While memory comes it is told how far that is after this time, in ns: whoever waits sees that it
/// gets on.
const TELL_NS: u64 = 1_000_000_000;

/// It looks again after this time: while something is in flight, and for others.
const LOOK: Duration = Duration::from_micros(100);
const LOOK_FOR_OTHERS: Duration = Duration::from_millis(5);

/// The wait of a module for room.
#[derive(Debug, Clone, Copy)]
struct LoadWait {
    /// How long others may keep what it needs.
    keep_limit_ns: u64,
    /// Nothing is in flight.
    stands: bool,
    /// Since when nothing has changed for it.
    since_ns: u64,
}

impl LoadWait {
    fn new(keep_limit_ns: u64, stands: bool, now_ns: u64) -> Self {
        Self { keep_limit_ns, stands, since_ns: now_ns }
    }

    /// How long to wait before it asks again that asked at `asked_ns`; nothing if it has waited
    /// long enough. What it waited for what was in flight does not count when it waits for others.
    fn next(&mut self, stands: bool, asked_ns: u64, now_ns: u64) -> Option<Duration> {
        let took_ns = now_ns.saturating_sub(asked_ns);
        if stands != self.stands {
            *self = Self::new(self.keep_limit_ns, stands, now_ns);
        } else if took_ns > ASK_NS {
            self.since_ns = self.since_ns.saturating_add(took_ns);
        }
        let (limit_ns, look) = match stands {
            true => (self.keep_limit_ns.saturating_add(LOAD_WAITS_BEYOND_NS), LOOK_FOR_OTHERS),
            false => (LOAD_WAITS_NS, LOOK),
        };
        (now_ns.saturating_sub(self.since_ns) < limit_ns).then_some(look)
    }
}

/// What is done with a piece: where it is then, if that is elsewhere.
type Act = fn(&CudaDevice, Range, &Piece, &[Place]) -> Result<Option<Held>, DeviceError>;

impl Swapping for CudaDevice {
    fn part_bytes(&self) -> u64 {
        self.backing.range().map_or(0, |range| range.part_bytes)
    }

    fn parts(&self) -> Vec<PartUse> {
        let mut parts: Vec<PartUse> = Vec::new();
        let Some(range) = self.backing.range() else { return parts };
        for piece in self.heap.backings().flat_map(pieces) {
            let part = range.part_of(piece.address);
            if parts.last().is_none_or(|last| last.part != part) {
                parts.push(PartUse { part, resident_bytes: 0, saved_bytes: 0 });
            }
            let Some(last) = parts.last_mut() else { continue };
            match piece.held {
                Held::Device(_) => last.resident_bytes += piece.size as u64,
                Held::Frames | Held::Nowhere => last.saved_bytes += piece.size as u64,
            }
        }
        parts
    }

    fn swap(&mut self, steps: &[SwapStep]) -> Result<u64, SwapError> {
        let mut copied = 0;
        for (step, wanted) in steps.iter().enumerate() {
            let moved = match *wanted {
                SwapStep::Save { part } => self.each_of(Some(part), Self::save),
                SwapStep::Bring { part } => self.each_of(Some(part), Self::bring),
            };
            copied += moved.map_err(|error| SwapError { step, error })?;
        }
        Ok(copied)
    }

    fn save_some(&mut self, bytes: u64) -> Result<u64, SwapError> {
        let (mut steps, mut saved) = (Vec::new(), 0);
        for used in self.parts().iter().rev().filter(|used| used.resident_bytes > 0) {
            if saved >= bytes {
                break;
            }
            steps.push(SwapStep::Save { part: used.part });
            saved += used.resident_bytes;
        }
        if steps.is_empty() {
            // Who keeps the account knows less than that.
            self.tell_held();
        }
        let mut copied = 0;
        for (step, one) in steps.iter().enumerate() {
            // Part by part: whoever waits sees that it gets on.
            let moved = self.swap(std::slice::from_ref(one));
            self.tell_held();
            copied += moved.map_err(|SwapError { error, .. }| SwapError { step, error })?;
        }
        Ok(copied)
    }
}

/// The pieces of a chunk.
fn pieces((memory, _): &Chunk) -> &[Piece] {
    match memory {
        Memory::Allocated => &[],
        Memory::Pieces(pieces) => pieces,
    }
}

impl CudaDevice {
    /// Has everything brought that is not on the device: an operation may use any of it.
    pub(super) fn bring_all(&mut self) -> Result<(), DeviceError> {
        if self.is_whole {
            return Ok(());
        }
        let began_ns = monotonic_ns();
        let mut missing_bytes = 0;
        loop {
            if self.absent_bytes() == 0 {
                break;
            }
            self.have_room(Self::absent_bytes, missing_bytes, false)?;
            match self.bring_by_parts() {
                Ok(()) => {}
                Err(DeviceError::OutOfMemory { .. }) => {
                    // The driver has less than was thought. What came stays.
                    self.tell_held();
                    missing_bytes = self.absent_bytes();
                }
                Err(error) => {
                    self.tell_held();
                    return Err(error);
                }
            }
        }
        self.is_whole = true;
        self.source.note_brought(monotonic_ns().saturating_sub(began_ns));
        Ok(())
    }

    fn bring_by_parts(&mut self) -> Result<(), DeviceError> {
        let parts = self.parts();
        let mut told_ns = monotonic_ns();
        for used in parts.iter().filter(|used| used.saved_bytes > 0) {
            self.each_of(Some(used.part), Self::bring)?;
            let now_ns = monotonic_ns();
            if now_ns.saturating_sub(told_ns) >= TELL_NS {
                self.source.note_bringing(self.absent_bytes());
                told_ns = now_ns;
            }
        }
        self.each_of(None, Self::bring).map(|_| ())
    }

    /// Asks for room for more beside what is there, which is said anew when some of that was saved.
    pub(super) fn have_room(
        &mut self,
        more: impl Fn(&Self) -> u64,
        missing_bytes: u64,
        loads: bool,
    ) -> Result<(), DeviceError> {
        loop {
            let stands = self.in_flight.is_empty();
            if !stands && self.waits_for_end {
                return Err(DeviceError::QueueFull);
            }
            self.waits_for_end = false;
            let more_bytes = more(self);
            let wanted = RoomWanted {
                bytes: self.held_bytes() + more_bytes,
                fixed_bytes: self.fixed_bytes() + if loads { more_bytes } else { 0 },
                missing_bytes,
                stands,
                loads,
            };
            match self.source.room(&wanted) {
                Room::Granted => return Ok(()),
                Room::Save { bytes } if stands => match self.save_some(bytes) {
                    // Whoever keeps the account knows better now, or asks for it another time.
                    Ok(0) => return Err(DeviceError::QueueFull),
                    Ok(_) => {}
                    Err(SwapError { error: error @ DeviceError::Lost(_), .. }) => {
                        return Err(error);
                    }
                    // It is all where it was, and may be saved another time.
                    Err(error) => {
                        tracing::debug!(%error, bytes, "memory is not given back");
                        return Err(DeviceError::QueueFull);
                    }
                },
                Room::Later if stands => return Err(DeviceError::QueueFull),
                Room::Save { .. } | Room::Later => self.waits_for_end = true,
                Room::Refused => {
                    return Err(DeviceError::OutOfMemory { requested: more_bytes });
                }
            }
        }
    }

    /// The same for what a module takes, which cannot be tried again later.
    pub(super) fn have_room_for_module(
        &mut self,
        bytes: u64,
        missing_bytes: u64,
    ) -> Result<(), DeviceError> {
        let keep_limit_ns = self.source.keep_limit_ns();
        let mut wait = LoadWait::new(keep_limit_ns, self.in_flight.is_empty(), monotonic_ns());
        loop {
            let asked_ns = monotonic_ns();
            match self.have_room(|_| bytes, missing_bytes, true) {
                Err(DeviceError::QueueFull) => {}
                other => return other,
            }
            let Some(look) = wait.next(self.in_flight.is_empty(), asked_ns, monotonic_ns()) else {
                return Err(DeviceError::OutOfMemory { requested: bytes });
            };
            std::thread::sleep(look);
            self.collect();
        }
    }

    /// Tells who keeps the account what is on the device.
    pub(super) fn tell_held(&self) {
        self.source.holds(self.held_bytes(), self.fixed_bytes());
    }

    /// Bytes that the driver took for variables, and what it did not take back.
    fn fixed_bytes(&self) -> u64 {
        let modules = self.modules.values().map(|module| bytes_of(&module.frames));
        modules.sum::<u64>() + self.unreleased_bytes.get()
    }

    /// The driver did not take so many bytes back.
    pub(super) fn note_unreleased(&self, bytes: u64) {
        self.unreleased_bytes.set(self.unreleased_bytes.get() + bytes);
    }

    /// Bytes of the session's on the device, with what the driver took for variables.
    pub(super) fn held_bytes(&self) -> u64 {
        let chunks = self.heap.backings().map(|chunk| resident_bytes(pieces(chunk)));
        chunks.sum::<u64>() + self.fixed_bytes()
    }

    fn absent_bytes(&self) -> u64 {
        let is_absent = |piece: &&Piece| !matches!(piece.held, Held::Device(_));
        let absent = self.heap.backings().flat_map(pieces).filter(is_absent);
        absent.map(|piece| piece.size as u64).sum()
    }

    /// The word at an address whose memory is not on the device, if it is not.
    pub(super) fn saved_word(&self, address: u64, bytes: usize) -> Option<[u8; 8]> {
        let (base, (memory, frames)) = self.heap.backing_at(address)?;
        let piece = piece_at(memory, address)?;
        let mut word = [0; 8];
        match piece.held {
            Held::Device(_) => return None,
            Held::Nowhere => {}
            Held::Frames => {
                let places =
                    self.kept.as_ref()?.range(base, (address, bytes as u64), frames).ok()?;
                places.first()?.memory.read_into(word.get_mut(..bytes)?).ok()?;
            }
        }
        Some(word)
    }

    /// Writes a word whose memory is not on the device; whether it is not.
    pub(super) fn write_saved_word(&mut self, address: u64, word: &[u8]) -> bool {
        let Some((base, (memory, frames))) = self.heap.backing_at_mut(address) else {
            return false;
        };
        let range = (address, word.len() as u64);
        let kept = self.kept.as_ref();
        let place = kept.and_then(|kept| kept.range(base, range, frames).ok()?.pop());
        let (Some(piece), Some(place)) = (piece_at_mut(memory, address), place) else {
            return false;
        };
        if matches!(piece.held, Held::Device(_)) || place.memory.write_from(word).is_err() {
            return false;
        }
        // Frames that nobody has written to are zero.
        (piece.held, piece.is_kept) = (Held::Frames, true);
        true
    }

    /// Does something to each piece, of one part if there is one; the bytes that were moved.
    fn each_of(&mut self, part: Option<u64>, act: Act) -> Result<u64, DeviceError> {
        let (Some(range), Some(kept)) = (self.backing.range(), self.kept.clone()) else {
            return Err(DeviceError::Unsupported("memory that moves under its addresses"));
        };
        self.make_current()?;
        let mut copied = 0;
        // Whatever happens, each piece is where it says: it is changed when its move is done.
        let mut heap = std::mem::replace(&mut self.heap, super::Heap::new());
        let mut moved = Ok(());
        for (base, (memory, frames)) in heap.backings_mut() {
            let Memory::Pieces(pieces) = memory else { continue };
            let wanted = |piece: &&mut Piece| {
                part.is_none_or(|part| range.part_of(piece.address) == part) && moved.is_ok()
            };
            for piece in pieces.iter_mut().filter(wanted).collect::<Vec<_>>() {
                let places = kept.places(base, piece, frames);
                match places.and_then(|places| act(self, range, piece, &places)) {
                    Ok(None) => {}
                    Ok(Some(held)) => {
                        piece.is_kept |= held == Held::Frames;
                        piece.held = held;
                        copied += piece.size as u64;
                    }
                    Err(error) => {
                        moved = Err(error);
                        break;
                    }
                }
            }
        }
        self.heap = heap;
        self.is_whole = self.absent_bytes() == 0;
        moved.map(|()| copied)
    }

    /// Copies a piece to its frames and gives its memory on the device back.
    fn save(
        &self,
        range: Range,
        piece: &Piece,
        places: &[Place],
    ) -> Result<Option<Held>, DeviceError> {
        let Held::Device(handle) = piece.held else { return Ok(None) };
        if !self.in_flight.is_empty() {
            return Err(DeviceError::Refused("operations are in flight".to_owned()));
        }
        // What a lost device had cannot be read any more, nor used.
        let places = if self.lost.is_some() { &[] } else { places };
        for Place { offset, memory } in places {
            let (to, from) = (memory.as_ptr().cast(), piece.address + offset);
            // SAFETY: `memory` has `len` bytes, and so many are mapped from there on: the places of
            // a piece are as long as it is together.
            let code = unsafe { (self.driver.copy_out)(to, from, memory.len()) };
            self.done("cuMemcpyDtoH", code)?;
        }
        self.done("cuMemUnmap", range.unmap(piece.address, piece.size, handle))?;
        Ok(Some(Held::Frames))
    }

    /// Maps memory at a piece's addresses again and copies what it held there, or clears it.
    fn bring(
        &self,
        range: Range,
        piece: &Piece,
        places: &[Place],
    ) -> Result<Option<Held>, DeviceError> {
        if matches!(piece.held, Held::Device(_)) {
            return Ok(None);
        }
        let requested = piece.size as u64;
        let mapped = range.map(piece.address, piece.size);
        let handle = mapped.map_err(|code| self.unmapped(code, requested))?;
        let written = match piece.held {
            Held::Frames => self.write_back(piece, places),
            Held::Nowhere | Held::Device(_) => self.clear(piece.address, requested),
        };
        if written.is_err() {
            // Nobody sees memory that was not written.
            if self.done("cuMemUnmap", range.unmap(piece.address, piece.size, handle)).is_err() {
                self.note_unreleased(requested);
            }
        }
        written.map(|()| Some(Held::Device(handle)))
    }

    fn write_back(&self, piece: &Piece, places: &[Place]) -> Result<(), DeviceError> {
        for Place { offset, memory } in places {
            let (to, from) = (piece.address + offset, memory.as_ptr().cast_const().cast());
            // SAFETY: `memory` has `len` bytes, and so many are mapped from there on: the places of
            // a piece are as long as it is together.
            let code = unsafe { (self.driver.copy_in)(to, from, memory.len()) };
            self.done("cuMemcpyHtoD", code)?;
        }
        self.settle()
    }

    fn unmapped(&self, code: Code, requested: u64) -> DeviceError {
        let full = DeviceError::OutOfMemory { requested };
        if code == OUT_OF_MEMORY {
            return full;
        }
        self.done("cuMemCreate", code).err().unwrap_or(full)
    }
}

/// Bytes of pieces that are on the device.
pub(super) fn resident_bytes(pieces: &[Piece]) -> u64 {
    let is_there = |piece: &&Piece| matches!(piece.held, Held::Device(_));
    pieces.iter().filter(is_there).map(|piece| piece.size as u64).sum()
}

fn piece_at(memory: &Memory, address: u64) -> Option<&Piece> {
    let Memory::Pieces(pieces) = memory else { return None };
    pieces.iter().rfind(|piece| piece.address <= address)
}

fn piece_at_mut(memory: &mut Memory, address: u64) -> Option<&mut Piece> {
    let Memory::Pieces(pieces) = memory else { return None };
    pieces.iter_mut().rfind(|piece| piece.address <= address)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEEP_LIMIT_NS: u64 = 3_600_000_000_000;

    #[test]
    fn a_modules_wait_for_others_begins_when_nothing_flies() {
        let mut wait = LoadWait::new(KEEP_LIMIT_NS, false, 0);
        let mut next = |stands, now_ns| wait.next(stands, now_ns, now_ns);
        assert_eq!(next(false, LOAD_WAITS_NS - 1), Some(LOOK));
        assert_eq!(next(true, LOAD_WAITS_NS - 1), Some(LOOK_FOR_OTHERS));
        let limit_ns = LOAD_WAITS_NS + KEEP_LIMIT_NS + LOAD_WAITS_BEYOND_NS;
        assert_eq!(next(true, limit_ns - 2), Some(LOOK_FOR_OTHERS));
        assert_eq!(next(true, limit_ns - 1), None);
        let mut wait = LoadWait::new(KEEP_LIMIT_NS, false, 0);
        assert_eq!(wait.next(false, LOAD_WAITS_NS, LOAD_WAITS_NS), None);
    }

    #[test]
    fn a_modules_wait_counts_while_nobody_gives() {
        let mut wait = LoadWait::new(KEEP_LIMIT_NS, true, 0);
        let limit_ns = KEEP_LIMIT_NS + LOAD_WAITS_BEYOND_NS;
        // Others saved for an hour, and then somebody compiles.
        let hour_ns = 3_600_000_000_000;
        assert_eq!(wait.next(true, 0, hour_ns), Some(LOOK_FOR_OTHERS));
        let ask = |wait: &mut LoadWait, now_ns| wait.next(true, now_ns - ASK_NS / 5, now_ns);
        assert_eq!(ask(&mut wait, hour_ns + limit_ns - 1), Some(LOOK_FOR_OTHERS));
        assert_eq!(ask(&mut wait, hour_ns + limit_ns), None);
    }
}
