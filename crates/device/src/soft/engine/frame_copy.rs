//! Arguments and results: bytes and rows that pass between two frames of a warp.

use super::address::{Access, load_local, store_local};
use super::cx::Cx;
use super::program::ParamHome;
use super::rows::{LANES, R32, lanes_of};
use super::warp::Frame;

/// Copies values of the active lanes from homes in one frame to homes in another.
pub(crate) fn pass(
    cx: &mut Cx,
    from: Frame,
    to: Frame,
    source: &[ParamHome],
    target: &[ParamHome],
) {
    for (source, target) in source.iter().zip(target) {
        match (*source, *target) {
            (ParamHome::Slot { offset: a, bytes }, ParamHome::Slot { offset: b, .. }) => {
                let top = cx.frame.local_top;
                cx.frame.local_top = from.local_top.max(to.local_top);
                copy_bytes(cx, from.local_base + a, to.local_base + b, bytes);
                cx.frame.local_top = top;
            }
            (source, target) => {
                let values = read(cx, from, source);
                write(cx, to, target, &values);
            }
        }
    }
}

/// Whole words are rows.
fn copy_bytes(cx: &mut Cx, from: u32, to: u32, bytes: u32) {
    if from.is_multiple_of(4) && to.is_multiple_of(4) && bytes.is_multiple_of(4) {
        let lanes = cx.lanes.0;
        for word in 0..bytes / 4 {
            let (a, b) = ((from / 4 + word) as usize, (to / 4 + word) as usize);
            let Some(row) = cx.warp.local.get(a).copied() else { return };
            let Some(target) = cx.warp.local.get_mut(b) else { return };
            for i in 0..LANES {
                target.0[i] = (row.0[i] & lanes[i]) | (target.0[i] & !lanes[i]);
            }
        }
        return;
    }
    for lane in lanes_of(cx.mask) {
        for i in 0..u64::from(bytes) {
            let address = u64::from(from) + i;
            let value = load_local(cx, Access { lane, address, bytes: 1, write: false });
            let address = u64::from(to) + i;
            let access = Access { lane, address, bytes: 1, write: true };
            let stored = value.and_then(|v| store_local(cx, access, v));
            debug_assert!(stored.is_ok(), "frames lie in local memory");
        }
    }
}

fn read(cx: &mut Cx, frame: Frame, home: ParamHome) -> [u64; LANES] {
    let current = cx.frame;
    cx.frame = frame;
    cx.bind_frame();
    let values = match home {
        ParamHome::Row32 { row, bytes } => {
            let keep = if bytes >= 4 { u32::MAX } else { (1 << (8 * bytes)) - 1 };
            cx.row32(row).map(|x| u64::from(x & keep))
        }
        ParamHome::Row64 { row, .. } => cx.row64(row),
        ParamHome::Pred { row } => {
            let bits = cx.pred(row);
            std::array::from_fn(|i| u64::from(bits >> i & 1))
        }
        ParamHome::Slot { offset, bytes } => {
            let mut values = [0; LANES];
            for lane in lanes_of(cx.mask) {
                for i in 0..u64::from(bytes.min(8)) {
                    let address = u64::from(frame.local_base + offset) + i;
                    let access = Access { lane, address, bytes: 1, write: false };
                    values[lane] |= load_local(cx, access).unwrap_or(0) << (8 * i);
                }
            }
            values
        }
    };
    cx.frame = current;
    cx.bind_frame();
    values
}

fn write(cx: &mut Cx, frame: Frame, home: ParamHome, values: &[u64; LANES]) {
    let current = cx.frame;
    cx.frame = frame;
    cx.bind_frame();
    match home {
        ParamHome::Row32 { row, .. } => cx.put32(row, R32(values.map(|x| x as u32)).0),
        ParamHome::Row64 { row, .. } => cx.put64(row, *values),
        ParamHome::Pred { row } => {
            let bits = (0..LANES).fold(0, |b, i| b | (((values[i] & 1) as u32) << i));
            cx.put_pred(row, bits);
        }
        ParamHome::Slot { offset, bytes } => {
            for lane in lanes_of(cx.mask) {
                for i in 0..u64::from(bytes.min(8)) {
                    let address = u64::from(frame.local_base + offset) + i;
                    let access = Access { lane, address, bytes: 1, write: true };
                    let stored = store_local(cx, access, values[lane] >> (8 * i) & 0xff);
                    debug_assert!(stored.is_ok(), "frames lie in local memory");
                }
            }
        }
    }
    cx.frame = current;
    cx.bind_frame();
}

/// The 64-bit values of an argument in the current frame.
pub(crate) fn argument(cx: &mut Cx, home: ParamHome) -> [u64; LANES] {
    let frame = cx.frame;
    read(cx, frame, home)
}

/// Writes a result into the current frame.
pub(crate) fn result(cx: &mut Cx, home: ParamHome, values: &[u64; LANES]) {
    let frame = cx.frame;
    write(cx, frame, home, values);
}
