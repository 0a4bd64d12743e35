//! Functions that the driver provides to kernels.

use super::address::{Access, Generic, Space};
use super::cx::Cx;
use super::frame_copy::{argument, result};
use super::handler::{Op, event};
use super::program::{Builtin, ParamHome};
use super::rows::{LANES, lanes_of};
use crate::FaultKind;

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
            for lane in lanes_of(cx.mask) {
                print(cx, lane, formats[lane], arguments[lane]);
            }
            give(cx, call.returns.first(), 1);
            true
        }
        Builtin::Malloc => {
            give(cx, call.returns.first(), 0);
            true
        }
        Builtin::Free => true,
        Builtin::AssertFail => {
            let mut texts = Vec::new();
            let lane = cx.first_lane() as usize;
            for home in call.args.iter().take(4) {
                texts.push(argument(cx, *home)[lane]);
            }
            let text = |cx: &mut Cx, i: usize| {
                texts.get(i).map(|a| string(cx, lane, *a)).unwrap_or_default()
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

fn give(cx: &mut Cx, home: Option<&ParamHome>, value: u64) {
    if let Some(home) = home {
        result(cx, *home, &[value; LANES]);
    }
}

fn load(cx: &mut Cx, lane: usize, address: u64, bytes: u64) -> Option<u64> {
    let op = Op { exec: nothing, d: 0, a: 0, b: 0, c: SLOT, imm: 0 };
    Generic::load(cx, &op, Access { lane, address, bytes, write: false }).ok()
}

fn nothing(_: &mut Cx, _: &Op, pc: u32) -> u32 {
    pc
}

fn string(cx: &mut Cx, lane: usize, address: u64) -> String {
    let mut bytes = Vec::new();
    for i in 0..STRING_MAX {
        match load(cx, lane, address.wrapping_add(i), 1) {
            Some(0) | None => break,
            Some(byte) => bytes.push(byte as u8),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Formats like C's `printf`; each argument lies aligned to its size in the buffer.
fn print(cx: &mut Cx, lane: usize, format: u64, arguments: u64) {
    let format = string(cx, lane, format);
    let mut at = arguments;
    let mut text = String::new();
    let mut rest = format.chars().peekable();
    while let Some(c) = rest.next() {
        if c != '%' {
            text.push(c);
            continue;
        }
        let mut spec = String::new();
        let mut conversion = '%';
        for c in rest.by_ref() {
            if c.is_ascii_alphabetic() && !matches!(c, 'l' | 'h' | 'z' | 'j' | 't') || c == '%' {
                conversion = c;
                break;
            }
            spec.push(c);
        }
        if conversion == '%' {
            text.push('%');
            continue;
        }
        let long = matches!(conversion, 's' | 'p' | 'e' | 'E' | 'f' | 'F' | 'g' | 'G' | 'a' | 'A')
            || spec.contains(['l', 'z', 'j', 't']);
        let size = if long { 8 } else { 4 };
        at = at.next_multiple_of(size);
        let Some(value) = load(cx, lane, at, size) else { break };
        at += size;
        text.push_str(&one(cx, lane, &spec, conversion, value, long));
    }
    let room = OUTPUT_MAX.saturating_sub(cx.output.len());
    cx.output.extend(text.bytes().take(room));
}

fn one(cx: &mut Cx, lane: usize, spec: &str, conversion: char, value: u64, long: bool) -> String {
    let plain: String = spec.chars().filter(|c| !c.is_ascii_alphabetic()).collect();
    let (flags, precision) = match plain.split_once('.') {
        Some((flags, precision)) => (flags, precision.parse::<usize>().ok()),
        None => (plain.as_str(), None),
    };
    let signed = if long { value as i64 } else { i64::from(value as i32) };
    let float = f64::from_bits(value);
    let body = match conversion {
        'd' | 'i' => signed.to_string(),
        'u' => value.to_string(),
        'x' => format!("{value:x}"),
        'X' => format!("{value:X}"),
        'o' => format!("{value:o}"),
        'c' => (value as u8 as char).to_string(),
        's' => string(cx, lane, value),
        'p' => format!("{value:#x}"),
        'e' => format!("{float:.*e}", precision.unwrap_or(6)),
        'g' | 'G' => format!("{float}"),
        _ => format!("{float:.*}", precision.unwrap_or(6)),
    };
    let width: usize = flags.trim_start_matches(['-', '+', ' ', '#', '0']).parse().unwrap_or(0);
    if flags.starts_with('-') {
        format!("{body:<width$}")
    } else if flags.starts_with('0') {
        match body.strip_prefix('-') {
            Some(digits) => format!("-{digits:0>rest$}", rest = width.saturating_sub(1)),
            None => format!("{body:0>width$}"),
        }
    } else {
        format!("{body:>width$}")
    }
}
