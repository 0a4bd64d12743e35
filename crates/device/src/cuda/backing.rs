//! Where chunks of device memory come from.
//!
//! With the driver's virtual memory management, a vGPU's memory lies in the range of addresses that
//! its client reserved, so host and device pointers never coincide, and comes and goes under its
//! addresses ([`super::swap`]). Where the driver reserves other addresses, or has no virtual memory
//! management and chooses them for each allocation, the client holds what it can of them.

use std::ffi::{c_int, c_ushort};

use super::driver::{Address, Code, Driver, OUT_OF_MEMORY, SUCCESS, VirtualMemory};
use super::extents::Extents;

/// Least chunk and unit of chunks, in bytes; a multiple of every granularity known of GPUs.
pub(super) const CHUNK_BYTES: u64 = 2 << 20;

/// `CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED`
pub(super) const VIRTUAL_MEMORY_SUPPORTED: c_int = 102;

/// `CU_MEM_ALLOCATION_TYPE_PINNED`, `CU_MEM_LOCATION_TYPE_DEVICE`
const TYPE_PINNED: c_int = 1;
const LOCATION_DEVICE: c_int = 1;
/// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`
const READ_WRITE: c_int = 3;

/// `CUmemLocation`
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct Location {
    kind: c_int,
    id: c_int,
}

/// `CUmemAllocationProp`
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct Properties {
    kind: c_int,
    handle_types: c_int,
    location: Location,
    win32: *const std::ffi::c_void,
    compression: u8,
    rdma: u8,
    usage: c_ushort,
    reserved: [u8; 4],
}

/// `CUmemAccessDesc`
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct Access {
    location: Location,
    flags: c_int,
}

/// What backs a chunk.
#[derive(Debug)]
pub(super) enum Memory {
    /// `cuMemAlloc`
    Allocated,
    /// `cuMemCreate`, mapped into the reserved range: a piece for each part of the range.
    Pieces(Vec<Piece>),
}

/// What of a chunk lies in one part of the range.
#[derive(Debug)]
pub(super) struct Piece {
    pub(super) address: Address,
    pub(super) size: usize,
    pub(super) held: Held,
    /// Its frames have been written to.
    pub(super) is_kept: bool,
}

/// Where a piece's contents are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Held {
    /// On the device: the driver's handle.
    Device(u64),
    /// In the frames that paid for it; nothing is mapped at its addresses.
    Frames,
    /// Nowhere: all of it is zero, and nothing is mapped at its addresses.
    Nowhere,
}

/// A range of addresses and the calls that map memory there.
#[derive(Debug, Clone, Copy)]
pub(super) struct Range {
    pub(super) calls: VirtualMemory,
    device: c_int,
    base: Address,
    bytes: usize,
    /// Bytes of a part; parts begin at the range's first address.
    pub(super) part_bytes: u64,
}

/// How chunks are had.
#[derive(Debug)]
pub(super) enum Backing {
    /// The driver chooses addresses.
    Driver,
    /// Within a reserved range, of which so much is free.
    Range(Range, Extents),
}

impl Backing {
    /// A range of `bytes`, at `base` if the driver lets it be there.
    pub(super) fn reserve(
        calls: Option<VirtualMemory>,
        device: c_int,
        (base, bytes): (u64, u64),
        part_bytes: u64,
    ) -> Self {
        let Some(calls) = calls else { return Self::Driver };
        let bytes = bytes / CHUNK_BYTES * CHUNK_BYTES;
        let (Ok(size), Ok(align)) = (usize::try_from(bytes), usize::try_from(CHUNK_BYTES)) else {
            return Self::Driver;
        };
        let mut address = 0;
        // SAFETY: `address` is a valid place for a device pointer; the hint is only a wish.
        let code = unsafe { (calls.reserve)(&raw mut address, size, align, base, 0) };
        if code != SUCCESS {
            tracing::warn!(code, "no range of device addresses; the driver chooses them");
            return Self::Driver;
        }
        if address != base {
            tracing::warn!(base, address, "the client's range is taken; the driver chose another");
        }
        let part_bytes = part_bytes.max(CHUNK_BYTES) / CHUNK_BYTES * CHUNK_BYTES;
        let range = Range { calls, device, base: address, bytes: size, part_bytes };
        Self::Range(range, Extents::of(address, bytes))
    }

    /// The range, if there is one.
    pub(super) fn range(&self) -> Option<Range> {
        match self {
            Self::Driver => None,
            Self::Range(range, _) => Some(*range),
        }
    }

    /// Memory for a chunk of `bytes` (a multiple of [`CHUNK_BYTES`]), of unknown content; if it is
    /// to come `later`, addresses alone where that is possible.
    pub(super) fn acquire(
        &mut self,
        driver: &Driver,
        bytes: u64,
        later: bool,
    ) -> Result<(Address, Memory), Code> {
        let size = usize::try_from(bytes).map_err(|_| OUT_OF_MEMORY)?;
        match self {
            Self::Driver => {
                let mut address = 0;
                // SAFETY: `address` is a valid place for a device pointer.
                let code = unsafe { (driver.memory_alloc)(&raw mut address, size) };
                if code == SUCCESS { Ok((address, Memory::Allocated)) } else { Err(code) }
            }
            Self::Range(range, free) => {
                let address = free.take(bytes).ok_or(OUT_OF_MEMORY)?;
                let mapped = range.pieces(address, bytes, later);
                if mapped.is_err() {
                    free.put(address, bytes);
                }
                mapped.map(|pieces| (address, Memory::Pieces(pieces)))
            }
        }
    }

    /// Gives a chunk's memory back to the driver; how many bytes of it that keeps.
    pub(super) fn release(
        &mut self,
        driver: &Driver,
        address: Address,
        bytes: u64,
        memory: &Memory,
    ) -> (Code, u64) {
        match (self, memory) {
            (Self::Range(range, free), Memory::Pieces(pieces)) => {
                let (mut code, mut kept_bytes) = (SUCCESS, 0);
                for piece in pieces {
                    let Held::Device(handle) = piece.held else { continue };
                    let unmapped = range.unmap(piece.address, piece.size, handle);
                    if unmapped != SUCCESS {
                        kept_bytes += piece.size as u64;
                        code = if code == SUCCESS { unmapped } else { code };
                    }
                }
                // Addresses that something is still mapped at are not used again.
                if code == SUCCESS {
                    free.put(address, bytes);
                }
                (code, kept_bytes)
            }
            (Self::Driver | Self::Range(..), _) => {
                // SAFETY: `address` came from `cuMemAlloc` and was not freed since.
                let code = unsafe { (driver.memory_free)(address) };
                (code, if code == SUCCESS { 0 } else { bytes })
            }
        }
    }

    /// Gives the reserved addresses back; nothing is mapped there any more.
    pub(super) fn unreserve(&mut self) {
        if let Self::Range(range, _) = self {
            // SAFETY: reserved by `reserve` with this size. What is still mapped the driver
            // refuses to give back.
            let _ = unsafe { (range.calls.unreserve)(range.base, range.bytes) };
            *self = Self::Driver;
        }
    }
}

impl Range {
    /// The part that an address lies in.
    pub(super) fn part_of(&self, address: Address) -> u64 {
        address.saturating_sub(self.base) / self.part_bytes
    }

    /// Pieces for a chunk, none of which crosses a part's border: mapped ones, unless that comes
    /// `later`.
    fn pieces(&self, address: Address, bytes: u64, later: bool) -> Result<Vec<Piece>, Code> {
        let end = address + bytes;
        let mut pieces: Vec<Piece> = Vec::new();
        let mut at = address;
        while at < end {
            let border = self.base + (self.part_of(at) + 1) * self.part_bytes;
            let size = usize::try_from(border.min(end) - at).map_err(|_| OUT_OF_MEMORY)?;
            let held = if later { Ok(Held::Nowhere) } else { self.map(at, size).map(Held::Device) };
            match held {
                Ok(held) => pieces.push(Piece { address: at, size, held, is_kept: false }),
                Err(code) => {
                    for piece in &pieces {
                        let Held::Device(handle) = piece.held else { continue };
                        let _ = self.unmap(piece.address, piece.size, handle);
                    }
                    return Err(code);
                }
            }
            at = border.min(end);
        }
        Ok(pieces)
    }

    /// Maps memory of unknown content at free addresses of the range; the driver's handle.
    pub(super) fn map(&self, address: Address, size: usize) -> Result<u64, Code> {
        let Self { calls, device, .. } = *self;
        let location = Location { kind: LOCATION_DEVICE, id: device };
        let properties = Properties {
            kind: TYPE_PINNED,
            handle_types: 0,
            location,
            win32: std::ptr::null(),
            compression: 0,
            rdma: 0,
            usage: 0,
            reserved: [0; 4],
        };
        let mut handle = 0;
        // SAFETY: a valid place for a handle and complete properties.
        let code = unsafe { (calls.create)(&raw mut handle, size, &raw const properties, 0) };
        if code != SUCCESS {
            return Err(code);
        }
        // SAFETY: the range is reserved and free, the handle is as long.
        let mut code = unsafe { (calls.map)(address, size, 0, handle, 0) };
        if code == SUCCESS {
            let access = Access { location, flags: READ_WRITE };
            // SAFETY: the range was mapped just above; one description.
            code = unsafe { (calls.access)(address, size, &raw const access, 1) };
            if code == SUCCESS {
                return Ok(handle);
            }
            // SAFETY: mapped just above.
            let _ = unsafe { (calls.unmap)(address, size) };
        }
        // SAFETY: created just above, not mapped.
        let _ = unsafe { (calls.release)(handle) };
        Err(code)
    }

    /// Takes memory from its addresses and gives it back to the driver. With an error it is mapped
    /// as it was.
    pub(super) fn unmap(&self, address: Address, size: usize, handle: u64) -> Code {
        // SAFETY: `map` mapped exactly this range.
        let code = unsafe { (self.calls.unmap)(address, size) };
        if code == SUCCESS {
            // SAFETY: the handle came from `cuMemCreate` and is released once. What a driver does
            // not take back is lost to it, and to nobody else.
            let _ = unsafe { (self.calls.release)(handle) };
        }
        code
    }
}
