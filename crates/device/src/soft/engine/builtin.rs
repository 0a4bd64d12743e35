//! Functions that the driver provides to kernels.

use super::address::{Access, Generic, Space};
use super::cx::Cx;
use super::format::Conversion;
use super::frame_copy::{argument, result};
use super::handler::{Op, event};
use super::program::Builtin;
use super::rows::{LANES, lanes_of};
use crate::FaultKind;
use crate::soft::heap::Freed;

/// Most characters taken from a string of a kernel.
const STRING_MAX: u64 = 1024;
/// Most bytes of output kept until somebody takes them.
const OUTPUT_MAX: usize = 1 << 20;
/// The translation slot of built-in functions.
const SLOT: u32 = 63;

/// Performs the call at `site` for the active lanes; false on a fault.
pub(crate) fn run(cx: &mut Cx, which: Builtin, site: u32) -> bool {
    let program = std::sync::Arc::clone(&cx.program);
    let call = &program.calls[site as usize];
    match which {
        Builtin::Printf => {
            let (Some(format), Some(arguments)) = (call.args.first(), call.args.get(1)) else {
                return true;
            };
            let formats = argument(cx, *format);
            let arguments = argument(cx, *arguments);
            let mut counts = [0; LANES];
            for lane in lanes_of(cx.mask) {
                counts[lane] = print(cx, lane, formats[lane], arguments[lane]);
            }
            if let Some(home) = call.returns.first() {
                result(cx, *home, &counts);
            }
            true
        }
        Builtin::Malloc => {
            let sizes = call.args.first().map(|home| argument(cx, *home)).unwrap_or_default();
            let mut given = [0; LANES];
            for lane in lanes_of(cx.mask) {
                given[lane] = cx.heap.take(&mut cx.mem, sizes[lane]).unwrap_or(0);
            }
            if let Some(home) = call.returns.first() {
                result(cx, *home, &given);
            }
            true
        }
        Builtin::Free => {
            let all = call.args.first().map(|home| argument(cx, *home)).unwrap_or_default();
            lanes_of(cx.mask).all(|lane| free(cx, lane, all[lane]))
        }
        Builtin::AssertFail => {
            let mut texts = Vec::new();
            let lane = cx.first_lane() as usize;
            for home in call.args.iter().take(4) {
                texts.push(argument(cx, *home)[lane]);
            }
            let text = |cx: &mut Cx, i: usize| {
                let text = texts.get(i).map(|a| string(cx, lane, *a)).unwrap_or_default();
                String::from_utf8_lossy(&text).into_owned()
            };
            let (what, file, function) = (text(cx, 0), text(cx, 1), text(cx, 3));
            let line = texts.get(2).copied().unwrap_or(0) as u32;
            let message = format!("assertion `{what}` failed in {function} at {file}:{line}");
            let raised = cx.fail_with(FaultKind::Assert, lane as u32, None, message);
            debug_assert_eq!(raised, event::FAULT, "a failure is a fault");
            false
        }
    }
}

/// Frees what a lane got from `malloc`; false on a fault.
fn free(cx: &mut Cx, lane: usize, address: u64) -> bool {
    if address == 0 {
        return true;
    }
    match cx.heap.give_back(&mut cx.mem, address) {
        Freed::Object => true,
        Freed::Mapping => {
            cx.tlb.flush();
            true
        }
        Freed::Unknown => {
            let message = "free of an address that malloc did not give".to_owned();
            cx.fail_with(FaultKind::IllegalAddress, lane as u32, Some(address), message);
            false
        }
    }
}

fn load(cx: &mut Cx, lane: usize, address: u64, bytes: u64) -> Option<u64> {
    let op = Op { exec: nothing, d: 0, a: 0, b: 0, c: SLOT, imm: 0 };
    Generic::load(cx, &op, Access { lane, address, bytes, write: false }).ok()
}

fn nothing(_: &mut Cx, _: &Op, pc: u32) -> u32 {
    pc
}

fn string(cx: &mut Cx, lane: usize, address: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    for i in 0..STRING_MAX {
        match load(cx, lane, address.wrapping_add(i), 1) {
            Some(0) | None => break,
            Some(byte) => bytes.push(byte as u8),
        }
    }
    bytes
}

/// Formats like C's `printf`, each argument aligned to its size in the buffer; what the call
/// returns: the number of arguments, or -1 without a format.
fn print(cx: &mut Cx, lane: usize, format: u64, arguments: u64) -> u64 {
    if format == 0 {
        return u64::MAX;
    }
    let format = string(cx, lane, format);
    let mut at = arguments;
    let mut count = 0;
    let mut text = Vec::new();
    let mut rest = format.as_slice();
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        let conversion = if *first == b'%' { Conversion::parse(after) } else { None };
        let Some((conversion, used)) = conversion else {
            text.push(*first);
            continue;
        };
        rest = after.get(used..).unwrap_or_default();
        let size = conversion.argument_bytes();
        let mut value = 0;
        if size > 0 {
            let place = at.checked_next_multiple_of(size);
            let Some(loaded) = place.and_then(|place| load(cx, lane, place, size)) else { break };
            value = loaded;
            at = place.unwrap_or(at).wrapping_add(size);
            count += 1;
        }
        text.extend(conversion.text(value, || string(cx, lane, value)));
    }
    let room = OUTPUT_MAX.saturating_sub(cx.output.len());
    text.truncate(room);
    cx.output.append(&mut text);
    count
}
