//! Local memory, which is interleaved by words: word `w` of all lanes is one row.

use std::marker::PhantomData;

use super::address::{Access, AddressRow, load_local, store_local};
use super::cx::Cx;
use super::handler::{Handler, Op};
use super::memory_ops::Cell;
use super::rows::{Elem, LANES, lanes_of, or_all64};
use crate::FaultKind;

/// The word that all active lanes address, if they address the same one.
#[inline(always)]
fn same_word(cx: &Cx, addresses: &[u64; LANES], bytes: u64) -> Option<usize> {
    let base = addresses[cx.first_lane() as usize % LANES];
    let lanes = cx.lanes.0;
    let mut differ = [0; LANES];
    for i in 0..LANES {
        differ[i] = (addresses[i] ^ base) & (u64::from(lanes[i]) | (u64::from(lanes[i]) << 32));
    }
    let end = base.checked_add(bytes)?;
    let inside = end <= u64::from(cx.frame.local_top) && base.is_multiple_of(bytes.max(4));
    (inside && or_all64(&differ) == 0).then_some((base / 4) as usize)
}

fn lane_load<M: Cell>(cx: &mut Cx, addresses: &[u64; LANES]) -> Result<[M; LANES], u32> {
    let mut out = [M::default(); LANES];
    for lane in lanes_of(cx.mask) {
        let address = addresses[lane];
        let access = Access { lane, address, bytes: M::BYTES, write: false };
        match load_local(cx, access) {
            Ok(bits) => out[lane] = M::from_bits(bits),
            Err(kind) => return Err(cx.fail(kind, lane as u32, Some(address))),
        }
    }
    Ok(out)
}

fn lane_store<M: Cell>(
    cx: &mut Cx,
    addresses: &[u64; LANES],
    values: &[M; LANES],
) -> Result<(), u32> {
    for lane in lanes_of(cx.mask) {
        let address = addresses[lane];
        let access = Access { lane, address, bytes: M::BYTES, write: true };
        if let Err(kind) = store_local(cx, access, values[lane].bits()) {
            return Err(cx.fail(kind, lane as u32, Some(address)));
        }
    }
    Ok(())
}

#[inline(always)]
fn load<M: Cell>(cx: &mut Cx, addresses: &[u64; LANES]) -> Result<[M; LANES], u32> {
    if let Some(word) = same_word(cx, addresses, M::BYTES) {
        let mut out = [M::default(); LANES];
        if M::BYTES == 8
            && let Some([low, high]) = cx.warp.local.get(word..word + 2)
        {
            for i in 0..LANES {
                out[i] = M::from_bits(u64::from(low.0[i]) | (u64::from(high.0[i]) << 32));
            }
            return Ok(out);
        }
        if M::BYTES <= 4
            && let Some(row) = cx.warp.local.get(word)
        {
            for i in 0..LANES {
                out[i] = M::from_bits(u64::from(row.0[i]));
            }
            return Ok(out);
        }
    }
    lane_load(cx, addresses)
}

#[inline(always)]
fn store<M: Cell>(cx: &mut Cx, addresses: &[u64; LANES], values: &[M; LANES]) -> Result<(), u32> {
    let lanes = cx.lanes.0;
    if M::BYTES >= 4
        && let Some(word) = same_word(cx, addresses, M::BYTES)
        && let Some(rows) = cx.warp.local.get_mut(word..word + (M::BYTES / 4) as usize)
    {
        for (n, row) in rows.iter_mut().enumerate() {
            for i in 0..LANES {
                let bits = (values[i].bits() >> (32 * n)) as u32;
                row.0[i] = (bits & lanes[i]) | (row.0[i] & !lanes[i]);
            }
        }
        return Ok(());
    }
    lane_store(cx, addresses, values)
}

/// `d = [a + imm]`
pub(crate) struct LoadLocal<A, M>(PhantomData<(A, M)>);

impl<A: AddressRow, M: Cell> Handler for LoadLocal<A, M> {
    #[inline(always)]
    fn run(cx: &mut Cx, op: &Op, pc: u32) -> u32 {
        let addresses = A::addresses(cx, op);
        match load::<M>(cx, &addresses) {
            Ok(values) => {
                let mut raw = <M::Row as Elem>::zero();
                for i in 0..LANES {
                    raw[i] = values[i].to_row();
                }
                <M::Row as Elem>::put(cx, op.d, raw);
                pc + 1
            }
            Err(event) => event,
        }
    }
}

/// `[a + imm] = d`
pub(crate) struct StoreLocal<A, M>(PhantomData<(A, M)>);

impl<A: AddressRow, M: Cell> Handler for StoreLocal<A, M> {
    #[inline(always)]
    fn run(cx: &mut Cx, op: &Op, pc: u32) -> u32 {
        let addresses = A::addresses(cx, op);
        let raw = <M::Row as Elem>::row(cx, op.d);
        let mut values = [M::default(); LANES];
        for i in 0..LANES {
            values[i] = M::from_row(raw[i]);
        }
        match store::<M>(cx, &addresses, &values) {
            Ok(()) => pc + 1,
            Err(event) => event,
        }
    }
}

/// `alloca`: 64-bit row `d` = the address of `a` bytes, aligned to `imm`, that the frame grows by.
/// The lanes of a split have one frame, so it grows by what the greediest of them wants.
pub(crate) struct Alloca;

impl Handler for Alloca {
    fn run(cx: &mut Cx, op: &Op, pc: u32) -> u32 {
        let sizes = cx.row64(op.a);
        let bytes = lanes_of(cx.mask).map(|lane| sizes[lane]).max().unwrap_or(0);
        let start = u64::from(cx.frame.local_top).next_multiple_of(op.imm.max(1));
        let top = start.checked_add(bytes).and_then(|top| u32::try_from(top).ok());
        let Some(top) = top.filter(|top| cx.warp.grow_local(*top)) else {
            return cx.fail(FaultKind::StackOverflow, cx.first_lane(), None);
        };
        cx.frame.local_top = top;
        cx.put64(op.d, [start; LANES]);
        pc + 1
    }
}

/// `stacksave`: 64-bit row `d` = where the frame ends.
pub(crate) struct StackSave;

impl Handler for StackSave {
    fn run(cx: &mut Cx, op: &Op, pc: u32) -> u32 {
        cx.put64(op.d, [cx.frame.local_top.into(); LANES]);
        pc + 1
    }
}

/// `stackrestore`: the frame ends again where row `a` says, not before its variables do.
pub(crate) struct StackRestore;

impl Handler for StackRestore {
    fn run(cx: &mut Cx, op: &Op, pc: u32) -> u32 {
        let wanted = cx.row64(op.a);
        let wanted = lanes_of(cx.mask).map(|lane| wanted[lane]).max().unwrap_or(0);
        let own = cx.program.functions[cx.frame.function as usize].frame_bytes;
        let least = cx.frame.local_base.saturating_add(own);
        let top = cx.frame.local_top;
        cx.frame.local_top = u32::try_from(wanted).unwrap_or(top).max(least).min(top);
        pc + 1
    }
}
