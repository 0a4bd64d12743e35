//! Memory that leaves the device and comes back. A device without that has nothing to show here.

use super::{Behaviour, download, launch, load, run, upload, words};
use crate::{Device, Op, Outcome, PartUse, SwapStep};

pub(super) fn behaviours<D: Device>() -> Vec<Behaviour<D>> {
    vec![
        ("what was saved comes back", what_was_saved_comes_back),
        ("an operation finds what was saved", an_operation_finds_what_was_saved),
        ("words of saved parts", words_of_saved_parts),
        ("what is saved is freed", what_is_saved_is_freed),
    ]
}

fn pattern(bytes: usize, seed: usize) -> Vec<u8> {
    (0..bytes).map(|i| u8::try_from((i * 31 + i / 4096 + seed) % 251).unwrap()).collect()
}

/// The parts, if the device moves memory.
fn parts<D: Device>(device: &mut D) -> Option<Vec<PartUse>> {
    Some(device.swapping()?.parts())
}

fn saves(parts: &[PartUse]) -> Vec<SwapStep> {
    parts.iter().map(|used| SwapStep::Save { part: used.part }).collect()
}

fn sum(parts: &[PartUse]) -> (u64, u64) {
    let add =
        |(on, off): (u64, u64), used: &PartUse| (on + used.resident_bytes, off + used.saved_bytes);
    parts.iter().fold((0, 0), add)
}

fn what_was_saved_comes_back<D: Device>(device: &mut D) {
    let bytes = 9 << 20;
    let address = device.alloc(bytes as u64).unwrap();
    upload(device, address, pattern(bytes, 1));
    let Some(before) = parts(device) else { return };
    let (held, none) = sum(&before);
    assert!(held >= bytes as u64 && none == 0, "{before:?}");
    let usage = device.memory_use();
    let swapping = device.swapping().unwrap();
    assert_eq!(swapping.swap(&saves(&before)), Ok(held));
    assert_eq!(sum(&swapping.parts()), (0, held), "nothing is left on the device");
    assert_eq!(swapping.swap(&saves(&before)), Ok(0), "saved once");
    // One part after the other, the last one first.
    for used in before.iter().rev() {
        let step = SwapStep::Bring { part: used.part };
        assert_eq!(swapping.swap(&[step, step]), Ok(used.resident_bytes));
    }
    assert_eq!(swapping.parts(), before);
    assert_eq!(swapping.swap(&[SwapStep::Save { part: u64::MAX }]), Ok(0), "no such part");
    assert_eq!(device.memory_use(), usage, "the quota counts what is paid for, not where it is");
    assert!(download(device, address, bytes) == pattern(bytes, 1));
}

fn an_operation_finds_what_was_saved<D: Device>(device: &mut D) {
    let module = load(device);
    let bytes = 4 << 20;
    let (kept, out) = (device.alloc(bytes as u64).unwrap(), device.alloc(4 << 20).unwrap());
    upload(device, kept, pattern(bytes, 2));
    let Some(before) = parts(device) else { return };
    device.swapping().unwrap().swap(&saves(&before)).unwrap();
    let op = Op::Launch(launch(&module, "iota", 1 << 12, 256, &[out, 5]));
    assert_eq!(run(device, op).outcome, Outcome::Done);
    assert_eq!(parts(device).unwrap(), before);
    let found = words(device, out, 1 << 20);
    assert!(found.iter().zip(5..).all(|(word, expected)| *word == expected));
    assert!(download(device, kept, bytes) == pattern(bytes, 2));
}

fn words_of_saved_parts<D: Device>(device: &mut D) {
    let address = device.alloc(64).unwrap();
    device.write_word(address + 8, 0x1122_3344_5566_7788, true).unwrap();
    let Some(before) = parts(device) else { return };
    device.swapping().unwrap().swap(&saves(&before)).unwrap();
    assert_eq!(device.read_word(address + 8, true), Ok(0x1122_3344_5566_7788));
    device.write_word(address + 12, 0x99aa_bbcc, false).unwrap();
    assert_eq!(sum(&parts(device).unwrap()).0, 0, "a word brings nothing");
    assert_eq!(words(device, address + 8, 2), [0x5566_7788, 0x99aa_bbcc]);
}

fn what_is_saved_is_freed<D: Device>(device: &mut D) {
    let usage = device.memory_use();
    let bytes = 4 << 20;
    let address = device.alloc(bytes as u64).unwrap();
    upload(device, address, pattern(bytes, 3));
    let Some(before) = parts(device) else { return };
    device.swapping().unwrap().swap(&saves(&before)).unwrap();
    device.free(address).unwrap();
    assert_eq!(parts(device).unwrap(), []);
    assert_eq!(device.memory_use(), usage);
    let again = device.alloc(bytes as u64).unwrap();
    assert!(download(device, again, bytes).iter().all(|byte| *byte == 0));
}
