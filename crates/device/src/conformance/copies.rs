//! Copies and fills.

use super::{Behaviour, done, download, row, run_for, upload, words};
use crate::{CopyShape, Device, Endpoint, Fill, Op, Outcome, Place};

pub(super) fn behaviours<D: Device>() -> Vec<Behaviour<D>> {
    vec![
        ("bytes survive a round trip", bytes_survive_a_round_trip),
        ("device to device", device_to_device),
        ("rows with pitch", rows_with_pitch),
        ("fills of every element", fills_of_every_element),
        ("a copy that stops goes on", a_copy_that_stops_goes_on),
        ("a fill that stops goes on", a_fill_that_stops_goes_on),
        ("narrow rows that stop go on", narrow_rows_that_stop_go_on),
    ]
}

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| u8::try_from(i * 31 % 251).unwrap()).collect()
}

fn bytes_survive_a_round_trip<D: Device>(device: &mut D) {
    for bytes in [1, 4095, 4097, 3 << 20] {
        let address = device.alloc(bytes as u64).unwrap();
        upload(device, address, pattern(bytes));
        assert!(download(device, address, bytes) == pattern(bytes), "{bytes} bytes");
    }
}

fn device_to_device<D: Device>(device: &mut D) {
    let bytes = 300_000usize;
    let width = bytes as u64;
    let (a, b) = (device.alloc(width).unwrap(), device.alloc(width).unwrap());
    upload(device, a, pattern(bytes));
    let (dst, src) = (row(Place::Device(b), width), row(Place::Device(a), width));
    done(device, Op::Copy { dst, src, shape: CopyShape { width, height: 1, depth: 1 } });
    assert!(download(device, b, bytes) == pattern(bytes));
}

fn rows_with_pitch<D: Device>(device: &mut D) {
    let address = device.alloc(4096).unwrap();
    let source = pattern(2 * 3 * 5);
    let src = Endpoint { place: Place::Inline(source.clone()), pitch: 5, slice: 15 };
    let dst = Endpoint { place: Place::Device(address), pitch: 16, slice: 64 };
    done(device, Op::Copy { dst, src, shape: CopyShape { width: 5, height: 3, depth: 2 } });
    let got = download(device, address, 128);
    for (i, byte) in source.iter().enumerate() {
        let (z, y, x) = (i / 15, i / 5 % 3, i % 5);
        assert_eq!(got[z * 64 + y * 16 + x], *byte, "byte {i}");
    }
    assert_eq!(got[5], 0, "between rows");
}

fn fills_of_every_element<D: Device>(device: &mut D) {
    let address = device.alloc(1 << 20).unwrap();
    let fill = |element: u8, value: u32, width: u64, height: u64| {
        Op::Fill(Fill { address, pitch: 1024, width, height, element, value })
    };
    done(device, fill(4, 0x0102_0304, 200_000, 1));
    assert!(words(device, address, 200_000).iter().all(|w| *w == 0x0102_0304));
    done(device, fill(2, 0xaaaa_beef, 3, 2));
    assert_eq!(words(device, address, 2), [0xbeef_beef, 0x0102_beef]);
    assert_eq!(words(device, address + 1024, 2), [0xbeef_beef, 0x0102_beef]);
    done(device, fill(1, 0x77, 5, 1));
    assert_eq!(words(device, address, 2), [0x7777_7777, 0x0102_be77]);
}

/// Does `op` of what is left of `bytes`, in as many goes as the device needs with a limit of 1 ns:
/// each as it says how far it got. One that can stop must have done so.
fn in_goes<D: Device>(device: &mut D, bytes: u64, op: impl Fn(u64) -> Op) {
    let mut at = 0;
    loop {
        match run_for(device, op(at), Some(1)).outcome {
            Outcome::Done => {
                // Where times are a model's, so are the places where operations stop, and a device
                // with a queue of its own is not asked between them.
                let is_modelled = device.estimate_ns(&op(0)).is_some();
                let stops = !device.info().capabilities.runs_ahead && !is_modelled;
                assert!(at > 0 || !stops, "{bytes} bytes at once");
                return;
            }
            Outcome::Partial { reached } => {
                assert!(reached > 0 && at + reached < bytes, "{reached} bytes from {at} on");
                at += reached;
            }
            Outcome::Fault(fault) => panic!("{fault:?}"),
        }
    }
}

fn a_copy_that_stops_goes_on<D: Device>(device: &mut D) {
    let bytes = 3 << 20;
    let (a, b) = (device.alloc(bytes).unwrap(), device.alloc(bytes).unwrap());
    let source = pattern(usize::try_from(bytes).unwrap());
    upload(device, a, source.clone());
    in_goes(device, bytes, |at| {
        let width = bytes - at;
        let (dst, src) = (row(Place::Device(b + at), width), row(Place::Device(a + at), width));
        Op::Copy { dst, src, shape: CopyShape { width, height: 1, depth: 1 } }
    });
    assert!(download(device, b, source.len()) == source);
}

/// One byte of each of a thousand pages: any of them may be the first touch of its page.
fn narrow_rows_that_stop_go_on<D: Device>(device: &mut D) {
    const ROWS: u64 = 1000;
    const PITCH: u64 = 4096;
    let address = device.alloc(ROWS * PITCH).unwrap();
    in_goes(device, ROWS, |at| {
        let (address, height) = (address + at * PITCH, ROWS - at);
        Op::Fill(Fill { address, pitch: PITCH, width: 1, height, element: 1, value: 7 })
    });
    let gathered = device.alloc(ROWS).unwrap();
    in_goes(device, ROWS, |at| {
        let endpoint = |address, pitch| Endpoint { place: Place::Device(address), pitch, slice: 0 };
        let (dst, src) = (endpoint(gathered + at, 1), endpoint(address + at * PITCH, PITCH));
        Op::Copy { dst, src, shape: CopyShape { width: 1, height: ROWS - at, depth: 1 } }
    });
    assert!(
        download(device, gathered, usize::try_from(ROWS).unwrap()).iter().all(|byte| *byte == 7)
    );
}

fn a_fill_that_stops_goes_on<D: Device>(device: &mut D) {
    let bytes = 3 << 20;
    let address = device.alloc(bytes).unwrap();
    in_goes(device, bytes, |at| {
        let (address, width) = (address + at, (bytes - at) / 4);
        Op::Fill(Fill { address, pitch: 0, width, height: 1, element: 4, value: 0x0102_0304 })
    });
    let words = words(device, address, usize::try_from(bytes / 4).unwrap());
    assert!(words.iter().all(|word| *word == 0x0102_0304));
}
