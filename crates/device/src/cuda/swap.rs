//! Swap plans on a GPU: contents go to host memory and come back under their addresses.
//!
//! A part that is saved has no memory on the device: its addresses stay reserved and nothing is
//! mapped there. A kernel that met them would end its context, so no operation begins before all
//! of the session's memory is there. What the driver took by itself (variables of modules) stays.

use super::backing::{Held, Memory, Piece, Range};
use super::driver::{Code, OUT_OF_MEMORY, SUCCESS};
use super::{Chunk, CudaDevice};
use crate::{DeviceError, PartUse, SwapError, SwapStep, Swapping};

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
                Held::Host(_) => last.saved_bytes += piece.size as u64,
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
}

/// The pieces of a chunk.
fn pieces((memory, _): &Chunk) -> &[Piece] {
    match memory {
        Memory::Allocated => &[],
        Memory::Pieces(pieces) => pieces,
    }
}

impl CudaDevice {
    /// Has everything brought that is in host memory: an operation may use any of it.
    pub(super) fn bring_all(&mut self) -> Result<(), DeviceError> {
        let is_saved = |piece: &Piece| matches!(piece.held, Held::Host(_));
        if !self.heap.backings().flat_map(pieces).any(is_saved) {
            return Ok(());
        }
        self.each_of(None, Self::bring).map(|_| ())
    }

    /// What a range holds, if that is in host memory.
    pub(super) fn saved(&mut self, address: u64, bytes: usize) -> Option<&mut [u8]> {
        let (memory, _) = self.heap.backing_at(address)?;
        let Memory::Pieces(pieces) = memory else { return None };
        let piece = pieces.iter_mut().rfind(|piece| piece.address <= address)?;
        let Held::Host(saved) = &mut piece.held else { return None };
        let start = usize::try_from(address - piece.address).ok()?;
        saved.get_mut(start..start.checked_add(bytes)?)
    }

    /// Does something to each piece, of one part if there is one; the bytes that were copied.
    fn each_of(
        &mut self,
        part: Option<u64>,
        act: fn(&Self, Range, &Piece) -> Result<Option<Held>, DeviceError>,
    ) -> Result<u64, DeviceError> {
        let Some(range) = self.backing.range() else {
            return Err(DeviceError::Unsupported("memory that moves under its addresses"));
        };
        self.make_current()?;
        let mut copied = 0;
        // Whatever happens, each piece is where it says: it is changed when its move is done.
        let mut heap = std::mem::replace(&mut self.heap, super::Heap::new());
        let mut moved = Ok(());
        for (memory, _) in heap.backings_mut() {
            let Memory::Pieces(pieces) = memory else { continue };
            let wanted = |piece: &&mut Piece| {
                part.is_none_or(|part| range.part_of(piece.address) == part) && moved.is_ok()
            };
            for piece in pieces.iter_mut().filter(wanted).collect::<Vec<_>>() {
                match act(self, range, piece) {
                    Ok(None) => {}
                    Ok(Some(held)) => {
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
        moved.map(|()| copied)
    }

    /// Copies a piece to host memory and gives its memory on the device back.
    fn save(&self, range: Range, piece: &Piece) -> Result<Option<Held>, DeviceError> {
        let Held::Device(handle) = piece.held else { return Ok(None) };
        if !self.in_flight.is_empty() {
            return Err(DeviceError::Refused("operations are in flight".to_owned()));
        }
        let requested = piece.size as u64;
        let mut saved: Vec<u8> = Vec::new();
        let room = saved.try_reserve_exact(piece.size);
        room.map_err(|_| DeviceError::OutOfMemory { requested })?;
        saved.resize(piece.size, 0);
        // SAFETY: `saved` has `size` bytes, and so many are mapped at the piece's address.
        let code =
            unsafe { (self.driver.copy_out)(saved.as_mut_ptr().cast(), piece.address, piece.size) };
        self.done("cuMemcpyDtoH", code)?;
        self.done("cuMemUnmap", range.unmap(piece.address, piece.size, handle))?;
        Ok(Some(Held::Host(saved)))
    }

    /// Maps memory at a piece's addresses again and copies what it held there.
    fn bring(&self, range: Range, piece: &Piece) -> Result<Option<Held>, DeviceError> {
        let Held::Host(saved) = &piece.held else { return Ok(None) };
        let requested = piece.size as u64;
        let mapped = range.map(piece.address, piece.size);
        let handle = mapped.map_err(|code| self.unmapped(code, requested))?;
        // SAFETY: `saved` has `size` bytes, and so many are mapped at the piece's address.
        let code =
            unsafe { (self.driver.copy_in)(piece.address, saved.as_ptr().cast(), piece.size) };
        if code != SUCCESS {
            // Nobody sees memory that was not written.
            let _ = range.unmap(piece.address, piece.size, handle);
            self.done("cuMemcpyHtoD", code)?;
        }
        Ok(Some(Held::Device(handle)))
    }

    fn unmapped(&self, code: Code, requested: u64) -> DeviceError {
        let full = DeviceError::OutOfMemory { requested };
        if code == OUT_OF_MEMORY {
            return full;
        }
        self.done("cuMemCreate", code).err().unwrap_or(full)
    }
}
