//! Where the lanes of an access lie: address rows, the windows of the generic address space, and
//! the slow path of translation.

use super::cx::Cx;
use super::handler::Op;
use super::rows::LANES;
use crate::FaultKind;
use crate::soft::memory::tlb::{SLOTS, Window};

/// Generic addresses of shared memory: bit 48, above all user addresses.
pub(crate) const SHARED_WINDOW: u64 = 1 << 48;
/// Generic addresses of local memory.
pub(crate) const LOCAL_WINDOW: u64 = 2 << 48;
/// Generic addresses of the kernel's parameters.
pub(crate) const PARAM_WINDOW: u64 = 3 << 48;
/// Function pointers: this plus the number of the function.
pub(crate) const FUNCTION_WINDOW: u64 = 4 << 48;
/// Bytes of each window (the whole range that its high bits select).
pub(crate) const WINDOW_BYTES: u64 = 1 << 48;

/// How an operation names its addresses: row `a` plus the immediate.
pub(crate) trait AddressRow {
    fn addresses(cx: &Cx, op: &Op) -> [u64; LANES];
}

/// A 64-bit row.
pub(crate) struct A64;
/// A 32-bit row: of a space whose addresses have 32 bits, so that the sum wraps there.
pub(crate) struct A32;

impl AddressRow for A64 {
    #[inline(always)]
    fn addresses(cx: &Cx, op: &Op) -> [u64; LANES] {
        let mut a = cx.row64(op.a);
        for x in &mut a {
            *x = x.wrapping_add(op.imm);
        }
        a
    }
}

impl AddressRow for A32 {
    #[inline(always)]
    fn addresses(cx: &Cx, op: &Op) -> [u64; LANES] {
        let a = cx.row32(op.a);
        let mut wide = [0; LANES];
        for i in 0..LANES {
            wide[i] = u64::from(a[i].wrapping_add(op.imm as u32));
        }
        wide
    }
}

/// A space whose bytes lie in windows.
pub(crate) trait Space {
    /// The window that the operation's fast path tries.
    fn window(cx: &Cx, op: &Op) -> Window;
    /// Loads one lane the slow way.
    fn load(cx: &mut Cx, op: &Op, access: Access) -> Result<u64, FaultKind>;
    /// Stores one lane the slow way.
    fn store(cx: &mut Cx, op: &Op, access: Access, value: u64) -> Result<(), FaultKind>;
    /// Where the bytes of one lane lie, if they lie in one piece, and whether others write them.
    fn place(cx: &mut Cx, op: &Op, access: Access) -> Result<(*mut u8, bool), FaultKind>;
}

/// One lane's access, of 1, 2, 4 or 8 bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Access {
    pub(crate) lane: usize,
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) write: bool,
}

/// Set in `Op::b` of an access that names `.global` or `.const`: it may not reach other windows.
pub(crate) const STRICT: u32 = 1 << 31;

/// `.global`, `.const`, and generic addresses.
pub(crate) struct Generic;
/// `.shared`
pub(crate) struct Shared;

impl Space for Generic {
    #[inline(always)]
    fn window(cx: &Cx, op: &Op) -> Window {
        cx.tlb.windows[op.c as usize % SLOTS]
    }

    #[inline(never)]
    fn load(cx: &mut Cx, op: &Op, access: Access) -> Result<u64, FaultKind> {
        if let Some(lane) = local_access(op, access) {
            return load_local(cx, lane);
        }
        let (place, _) = Self::place(cx, op, access)?;
        Ok(read_bytes(place, access.bytes))
    }

    #[inline(never)]
    fn store(cx: &mut Cx, op: &Op, access: Access, value: u64) -> Result<(), FaultKind> {
        if let Some(lane) = local_access(op, access) {
            return store_local(cx, lane, value);
        }
        let (place, _) = Self::place(cx, op, access)?;
        write_bytes(place, access.bytes, value);
        Ok(())
    }

    fn place(cx: &mut Cx, op: &Op, access: Access) -> Result<(*mut u8, bool), FaultKind> {
        let Access { lane, address, bytes, .. } = access;
        if !address.is_multiple_of(bytes) {
            return Err(FaultKind::MisalignedAddress);
        }
        let cached = Self::window(cx, op);
        if let Some(place) = cached.place(address, bytes) {
            return Ok((place, cached.shared));
        }
        let offset = address % WINDOW_BYTES;
        let inner = Access { address: offset, ..access };
        let special = match address - offset {
            SHARED_WINDOW => Shared::place(cx, op, inner),
            LOCAL_WINDOW if bytes <= 4 => local_word(cx, lane, offset, bytes),
            LOCAL_WINDOW => Err(FaultKind::InvalidAddressSpace),
            PARAM_WINDOW => param_place(cx, inner),
            _ => {
                let window = window_around(cx, address).ok_or(FaultKind::IllegalAddress)?;
                cx.tlb.windows[op.c as usize % SLOTS] = window;
                let place = window.place(address, bytes).ok_or(FaultKind::IllegalAddress)?;
                return Ok((place, window.shared));
            }
        };
        if op.b & STRICT != 0 {
            return Err(FaultKind::InvalidAddressSpace);
        }
        special
    }
}

impl Space for Shared {
    #[inline(always)]
    fn window(cx: &Cx, _: &Op) -> Window {
        let len = cx.shared_bytes();
        Window { lo: 0, len, host: cx.shared_host, shared: false }
    }

    #[inline(never)]
    fn load(cx: &mut Cx, op: &Op, access: Access) -> Result<u64, FaultKind> {
        let (place, _) = Self::place(cx, op, access)?;
        Ok(read_bytes(place, access.bytes))
    }

    #[inline(never)]
    fn store(cx: &mut Cx, op: &Op, access: Access, value: u64) -> Result<(), FaultKind> {
        let (place, _) = Self::place(cx, op, access)?;
        write_bytes(place, access.bytes, value);
        Ok(())
    }

    fn place(cx: &mut Cx, op: &Op, access: Access) -> Result<(*mut u8, bool), FaultKind> {
        let Access { address, bytes, .. } = access;
        if !address.is_multiple_of(bytes) {
            return Err(FaultKind::MisalignedAddress);
        }
        let window = Self::window(cx, op);
        let place = window.place(address, bytes).ok_or(FaultKind::IllegalAddress)?;
        Ok((place, false))
    }
}

/// The window around a device address: one that was made lately, or a new one.
fn window_around(cx: &mut Cx, address: u64) -> Option<Window> {
    cx.tlb.recent(address).or_else(|| {
        let window = cx.mem.window(address)?;
        cx.tlb.note(window);
        Some(window)
    })
}

/// The access relative to local memory, if its generic address lies there.
fn local_access(op: &Op, access: Access) -> Option<Access> {
    let offset = access.address % WINDOW_BYTES;
    (access.address - offset == LOCAL_WINDOW && op.b & STRICT == 0)
        .then_some(Access { address: offset, ..access })
}

fn local_word(cx: &mut Cx, lane: usize, at: u64, bytes: u64) -> Result<(*mut u8, bool), FaultKind> {
    let end = at.checked_add(bytes).ok_or(FaultKind::IllegalAddress)?;
    if end > u64::from(cx.frame.local_top) {
        return Err(FaultKind::IllegalAddress);
    }
    let row = cx.warp.local.get_mut((at / 4) as usize).ok_or(FaultKind::IllegalAddress)?;
    let byte = (lane % LANES) * 4 + (at % 4) as usize;
    Ok((row.0.as_mut_ptr().cast::<u8>().wrapping_add(byte), false))
}

/// Loads from one lane's local memory, which is interleaved by words.
pub(crate) fn load_local(cx: &mut Cx, access: Access) -> Result<u64, FaultKind> {
    let Access { lane, address, bytes, .. } = access;
    if !address.is_multiple_of(bytes) {
        return Err(FaultKind::MisalignedAddress);
    }
    if bytes <= 4 {
        return Ok(read_bytes(local_word(cx, lane, address, bytes)?.0, bytes));
    }
    let low = read_bytes(local_word(cx, lane, address, 4)?.0, 4);
    let high = read_bytes(local_word(cx, lane, address + 4, 4)?.0, 4);
    Ok(low | (high << 32))
}

/// Stores to one lane's local memory.
pub(crate) fn store_local(cx: &mut Cx, access: Access, value: u64) -> Result<(), FaultKind> {
    let Access { lane, address, bytes, .. } = access;
    if !address.is_multiple_of(bytes) {
        return Err(FaultKind::MisalignedAddress);
    }
    if bytes <= 4 {
        write_bytes(local_word(cx, lane, address, bytes)?.0, bytes, value);
        return Ok(());
    }
    write_bytes(local_word(cx, lane, address, 4)?.0, 4, value & 0xffff_ffff);
    write_bytes(local_word(cx, lane, address + 4, 4)?.0, 4, value >> 32);
    Ok(())
}

fn param_place(cx: &mut Cx, access: Access) -> Result<(*mut u8, bool), FaultKind> {
    let Access { address, bytes, write, .. } = access;
    let end = address.checked_add(bytes).ok_or(FaultKind::IllegalAddress)?;
    if write || end > cx.launch.params.len() as u64 {
        return Err(FaultKind::IllegalAddress);
    }
    Ok((cx.launch.params.as_mut_ptr().wrapping_add(address as usize), false))
}

/// Reads 1, 2, 4 or 8 bytes that translation found.
#[inline(always)]
pub(crate) fn read_bytes(place: *const u8, bytes: u64) -> u64 {
    match bytes {
        // SAFETY: `place` came from a window or array that holds this many bytes.
        1 => u64::from(unsafe { place.read() }),
        // SAFETY: as above.
        2 => u64::from(unsafe { place.cast::<u16>().read_unaligned() }),
        // SAFETY: as above.
        4 => u64::from(unsafe { place.cast::<u32>().read_unaligned() }),
        // SAFETY: as above.
        _ => unsafe { place.cast::<u64>().read_unaligned() },
    }
}

/// Writes 1, 2, 4 or 8 bytes that translation found.
#[inline(always)]
pub(crate) fn write_bytes(place: *mut u8, bytes: u64, value: u64) {
    match bytes {
        // SAFETY: `place` came from a window or array that holds this many bytes.
        1 => unsafe { place.write(value as u8) },
        // SAFETY: as above.
        2 => unsafe { place.cast::<u16>().write_unaligned(value as u16) },
        // SAFETY: as above.
        4 => unsafe { place.cast::<u32>().write_unaligned(value as u32) },
        // SAFETY: as above.
        _ => unsafe { place.cast::<u64>().write_unaligned(value) },
    }
}
