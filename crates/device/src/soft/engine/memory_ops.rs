//! Loads and stores of memory that lies in windows: global, constant, shared, generic.
//!
//! Warps mostly touch consecutive addresses or a single one, so those two patterns are recognised
//! with a few vector instructions and then served by one copy.

use std::marker::PhantomData;

use super::address::{Access, AddressRow, Space};
use super::cx::Cx;
use super::handler::{Handler, Op};
use super::rows::{Elem, LANES, lanes_of, or_all64};
use crate::FaultKind;

/// What lies in memory, and the row it is kept in.
pub(crate) trait Cell: Copy + Default {
    type Row: Elem;
    const BYTES: u64;
    fn to_row(self) -> <Self::Row as Elem>::Raw;
    fn from_row(raw: <Self::Row as Elem>::Raw) -> Self;
    fn from_bits(bits: u64) -> Self;
    fn bits(self) -> u64;
}

macro_rules! cell {
    ($($t:ty, $row:ty, $raw:ty;)*) => {$(
        impl Cell for $t {
            type Row = $row;
            const BYTES: u64 = size_of::<$t>() as u64;
            #[inline(always)]
            fn to_row(self) -> $raw { self as $raw }
            #[inline(always)]
            fn from_row(raw: $raw) -> Self { raw as $t }
            #[inline(always)]
            fn from_bits(bits: u64) -> Self { bits as $t }
            #[inline(always)]
            fn bits(self) -> u64 { self as u64 }
        }
    )*};
}

cell! {
    u8, u32, u32;
    u16, u32, u32;
    u32, u32, u32;
    u64, u64, u64;
}

/// Lanes of half a warp; blocks 16 threads wide are common, and their halves are regular.
const HALF: usize = LANES / 2;

/// How the active lanes' addresses relate in each half of the warp.
#[derive(Clone, Copy)]
enum Pattern {
    /// All equal to this one.
    Same([u64; 2]),
    /// Lane `i` of the half at this plus `i × stride`, for active lanes.
    Sequence([u64; 2]),
    Any,
}

/// The pattern when all lanes are active.
#[inline(always)]
fn full_pattern(addresses: &[u64; LANES], stride: u64) -> Pattern {
    let base = [addresses[0], addresses[HALF]];
    let mut same = [0; LANES];
    let mut sequence = [0; LANES];
    for i in 0..LANES {
        let (half, step) = (i / HALF, (i % HALF) as u64);
        let offset = addresses[i].wrapping_sub(base[half]);
        same[i] = offset;
        sequence[i] = offset ^ (stride * step);
    }
    if or_all64(&sequence) == 0 {
        Pattern::Sequence(base)
    } else if or_all64(&same) == 0 {
        Pattern::Same(base)
    } else {
        Pattern::Any
    }
}

#[inline(always)]
fn pattern(cx: &Cx, addresses: &[u64; LANES], stride: u64) -> Pattern {
    if cx.mask == u32::MAX {
        return full_pattern(addresses, stride);
    }
    let lanes = cx.lanes.0;
    let (low, high) = (cx.mask & 0xffff, cx.mask >> 16);
    // An empty half takes part in whatever the other one does.
    let first = cx.first_lane() as usize % LANES;
    let low = if low == 0 { first } else { low.trailing_zeros() as usize % HALF };
    let high = if high == 0 { first } else { HALF + high.trailing_zeros() as usize % HALF };
    let base = [addresses[low], addresses[high]];
    let back = [low % HALF, high % HALF];
    let origin = [
        base[0].wrapping_sub(stride * back[0] as u64),
        base[1].wrapping_sub(stride * back[1] as u64),
    ];
    let mut same = [0; LANES];
    let mut sequence = [0; LANES];
    for i in 0..LANES {
        let keep = u64::from(lanes[i]) | (u64::from(lanes[i]) << 32);
        let (half, step) = (i / HALF, (i % HALF) as u64);
        same[i] = (addresses[i] ^ base[half]) & keep;
        sequence[i] = (addresses[i].wrapping_sub(origin[half]) ^ (stride * step)) & keep;
    }
    if or_all64(&sequence) == 0 {
        Pattern::Sequence(origin)
    } else if or_all64(&same) == 0 {
        Pattern::Same(base)
    } else {
        Pattern::Any
    }
}

/// Where each active lane's `bytes` lie in the window (lane 0's place for inactive lanes), if all
/// do.
#[inline(always)]
fn offsets(
    cx: &Cx,
    addresses: &[u64; LANES],
    window: &crate::soft::memory::tlb::Window,
    bytes: u64,
) -> Option<[u64; LANES]> {
    if window.len < bytes {
        return None;
    }
    let limit = window.len - bytes;
    let lanes = cx.lanes.0;
    let mut offsets = [0; LANES];
    let mut bad = [0; LANES];
    for i in 0..LANES {
        let keep = u64::from(lanes[i]) | (u64::from(lanes[i]) << 32);
        let offset = addresses[i].wrapping_sub(window.lo) & keep;
        offsets[i] = offset;
        bad[i] = u64::from(offset > limit) | (addresses[i] & (bytes - 1) & keep);
    }
    (or_all64(&bad) == 0).then_some(offsets)
}

#[inline(always)]
fn read<T: Copy>(place: *const u8) -> T {
    // SAFETY: callers pass a place that a window holds for the size of `T`. Others may write the
    // bytes meanwhile; any bits are a valid `T`, which is an integer or an array of them.
    unsafe { place.cast::<T>().read_unaligned() }
}

#[inline(always)]
fn write<T: Copy>(place: *mut u8, value: T) {
    // SAFETY: callers pass a place that a window holds for the size of `T`.
    unsafe { place.cast::<T>().write_unaligned(value) };
}

/// Loads one element per lane from `addresses`; an event on a fault.
#[inline(always)]
fn gather<S: Space, M: Cell>(
    cx: &mut Cx,
    op: &Op,
    addresses: &[u64; LANES],
) -> Result<[M; LANES], u32> {
    let window = S::window(cx, op);
    let mut out = [M::default(); LANES];
    let aligned = |[a, b]: [u64; 2]| (a | b).is_multiple_of(M::BYTES);
    match pattern(cx, addresses, M::BYTES) {
        Pattern::Sequence(origin) if cx.mask == u32::MAX && aligned(origin) => {
            let bytes = M::BYTES * HALF as u64;
            let low = window.place(origin[0], bytes);
            if let (Some(low), Some(high)) = (low, window.place(origin[1], bytes)) {
                out[..HALF].copy_from_slice(&read::<[M; HALF]>(low));
                out[HALF..].copy_from_slice(&read::<[M; HALF]>(high));
                return Ok(out);
            }
        }
        Pattern::Same(base) if aligned(base) => {
            let low = window.place(base[0], M::BYTES);
            if let (Some(low), Some(high)) = (low, window.place(base[1], M::BYTES)) {
                out[..HALF].fill(read::<M>(low));
                out[HALF..].fill(read::<M>(high));
                return Ok(out);
            }
        }
        Pattern::Same(_) | Pattern::Sequence(_) | Pattern::Any => {
            if let Some(offsets) = offsets(cx, addresses, &window, M::BYTES) {
                for i in 0..LANES {
                    out[i] = read::<M>(window.host.wrapping_add(offsets[i] as usize));
                }
                return Ok(out);
            }
        }
    }
    for lane in lanes_of(cx.mask) {
        let address = addresses[lane];
        let access = Access { lane, address, bytes: M::BYTES, write: false };
        match S::load(cx, op, access) {
            Ok(bits) => out[lane] = M::from_bits(bits),
            Err(kind) => return Err(cx.fail(kind, lane as u32, Some(address))),
        }
    }
    Ok(out)
}

/// Stores one element per lane to `addresses`; an event on a fault.
#[inline(always)]
fn scatter<S: Space, M: Cell>(
    cx: &mut Cx,
    op: &Op,
    addresses: &[u64; LANES],
    values: &[M; LANES],
) -> Result<(), u32> {
    let window = S::window(cx, op);
    if let Pattern::Sequence(origin) = pattern(cx, addresses, M::BYTES)
        && cx.mask == u32::MAX
        && (origin[0] | origin[1]).is_multiple_of(M::BYTES)
        && let Some(low) = window.place(origin[0], M::BYTES * HALF as u64)
        && let Some(high) = window.place(origin[1], M::BYTES * HALF as u64)
    {
        let mut half = [M::default(); HALF];
        half.copy_from_slice(&values[..HALF]);
        write::<[M; HALF]>(low, half);
        half.copy_from_slice(&values[HALF..]);
        write::<[M; HALF]>(high, half);
        return Ok(());
    }
    if let Some(offsets) = offsets(cx, addresses, &window, M::BYTES) {
        for lane in lanes_of(cx.mask) {
            write::<M>(window.host.wrapping_add(offsets[lane] as usize), values[lane]);
        }
        return Ok(());
    }
    for lane in lanes_of(cx.mask) {
        let address = addresses[lane];
        let access = Access { lane, address, bytes: M::BYTES, write: true };
        if let Err(kind) = S::store(cx, op, access, values[lane].bits()) {
            return Err(cx.fail(kind, lane as u32, Some(address)));
        }
    }
    Ok(())
}

/// `d = [a + imm]`; `c` is the translation slot.
pub(crate) struct Load<S, A, M>(PhantomData<(S, A, M)>);

impl<S: Space, A: AddressRow, M: Cell> Handler for Load<S, A, M> {
    #[inline(always)]
    fn run(cx: &mut Cx, op: &Op, pc: u32) -> u32 {
        let addresses = A::addresses(cx, op);
        let values = match gather::<S, M>(cx, op, &addresses) {
            Ok(values) => values,
            Err(event) => return event,
        };
        let mut raw = <M::Row as Elem>::zero();
        for i in 0..LANES {
            raw[i] = values[i].to_row();
        }
        <M::Row as Elem>::put(cx, op.d, raw);
        pc + 1
    }
}

/// `[a + imm] = d`
pub(crate) struct Store<S, A, M>(PhantomData<(S, A, M)>);

impl<S: Space, A: AddressRow, M: Cell> Handler for Store<S, A, M> {
    #[inline(always)]
    fn run(cx: &mut Cx, op: &Op, pc: u32) -> u32 {
        let addresses = A::addresses(cx, op);
        let raw = <M::Row as Elem>::row(cx, op.d);
        let mut values = [M::default(); LANES];
        for i in 0..LANES {
            values[i] = M::from_row(raw[i]);
        }
        match scatter::<S, M>(cx, op, &addresses, &values) {
            Ok(()) => pc + 1,
            Err(event) => event,
        }
    }
}

/// Checks that each active lane's vector is aligned to its whole size.
fn check_alignment(cx: &mut Cx, addresses: &[u64; LANES], bytes: u64) -> Result<(), u32> {
    for lane in lanes_of(cx.mask) {
        if !addresses[lane].is_multiple_of(bytes) {
            let kind = FaultKind::MisalignedAddress;
            return Err(cx.fail(kind, lane as u32, Some(addresses[lane])));
        }
    }
    Ok(())
}

/// Elements of a vector access, and the rows behind its list in `Op::d`: count, then rows.
#[inline(always)]
fn vector_rows(cx: &Cx, op: &Op) -> ([u32; 8], usize) {
    let list: [u32; 9] = cx.program.list(u64::from(op.d));
    let mut rows = [0; 8];
    rows.copy_from_slice(&list[1..]);
    (rows, (list[0] as usize).min(8))
}

/// `{d…} = [a + imm]`
pub(crate) struct LoadVector<S, A, M>(PhantomData<(S, A, M)>);

impl<S: Space, A: AddressRow, M: Cell> Handler for LoadVector<S, A, M> {
    #[inline(always)]
    fn run(cx: &mut Cx, op: &Op, pc: u32) -> u32 {
        let mut addresses = A::addresses(cx, op);
        let (rows, count) = vector_rows(cx, op);
        if let Err(event) = check_alignment(cx, &addresses, M::BYTES * count as u64) {
            return event;
        }
        // All elements are loaded before the first row is written: a destination may be the
        // address.
        let mut loaded = [[M::default(); LANES]; 8];
        for element in loaded.iter_mut().take(count) {
            *element = match gather::<S, M>(cx, op, &addresses) {
                Ok(values) => values,
                Err(event) => return event,
            };
            for a in &mut addresses {
                *a = a.wrapping_add(M::BYTES);
            }
        }
        for (element, row) in loaded.iter().zip(rows).take(count) {
            let mut raw = <M::Row as Elem>::zero();
            for i in 0..LANES {
                raw[i] = element[i].to_row();
            }
            <M::Row as Elem>::put(cx, row, raw);
        }
        pc + 1
    }
}

/// `[a + imm] = {d…}`
pub(crate) struct StoreVector<S, A, M>(PhantomData<(S, A, M)>);

impl<S: Space, A: AddressRow, M: Cell> Handler for StoreVector<S, A, M> {
    #[inline(always)]
    fn run(cx: &mut Cx, op: &Op, pc: u32) -> u32 {
        let mut addresses = A::addresses(cx, op);
        let (rows, count) = vector_rows(cx, op);
        if let Err(event) = check_alignment(cx, &addresses, M::BYTES * count as u64) {
            return event;
        }
        for row in rows.iter().take(count) {
            let raw = <M::Row as Elem>::row(cx, *row);
            let mut values = [M::default(); LANES];
            for i in 0..LANES {
                values[i] = M::from_row(raw[i]);
            }
            if let Err(event) = scatter::<S, M>(cx, op, &addresses, &values) {
                return event;
            }
            for a in &mut addresses {
                *a = a.wrapping_add(M::BYTES);
            }
        }
        pc + 1
    }
}
