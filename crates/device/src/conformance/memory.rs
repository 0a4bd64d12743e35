//! Allocation.

use super::{Behaviour, download, upload};
use crate::{Device, DeviceError};

pub(super) fn behaviours<D: Device>() -> Vec<Behaviour<D>> {
    vec![
        ("allocations are aligned and apart", allocations_are_aligned_and_apart),
        ("use is counted", use_is_counted),
        ("too much is refused", too_much_is_refused),
        ("only allocations are freed", only_allocations_are_freed),
        ("freed memory comes back as zero", freed_memory_comes_back_as_zero),
        ("ranges are checked", ranges_are_checked),
        ("words are read and written", words_are_read_and_written),
    ]
}

fn allocations_are_aligned_and_apart<D: Device>(device: &mut D) {
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for bytes in [1, 512, 4096, 100_000] {
        let address = device.alloc(bytes).unwrap();
        assert_eq!(address % 512, 0);
        for (start, len) in &ranges {
            assert!(address >= start + len || address + bytes <= *start);
        }
        ranges.push((address, bytes));
    }
}

fn use_is_counted<D: Device>(device: &mut D) {
    let before = device.memory_use();
    let address = device.alloc(8 << 20).unwrap();
    let during = device.memory_use();
    assert!(before.free - during.free >= 8 << 20);
    assert_eq!(before.total, during.total);
    device.free(address).unwrap();
    assert_eq!(device.memory_use().free, before.free);
}

fn too_much_is_refused<D: Device>(device: &mut D) {
    let total = device.memory_use().total;
    for bytes in [total + 1, u64::MAX] {
        let refused = device.alloc(bytes).unwrap_err();
        assert!(matches!(refused, DeviceError::OutOfMemory { .. }), "{refused:?}");
    }
    device.alloc(1 << 20).unwrap();
}

fn only_allocations_are_freed<D: Device>(device: &mut D) {
    let address = device.alloc(4096).unwrap();
    assert!(device.free(address + 256).is_err());
    device.free(address).unwrap();
    assert_eq!(device.free(address), Err(DeviceError::NotAnAllocation { address }));
}

fn freed_memory_comes_back_as_zero<D: Device>(device: &mut D) {
    let bytes = 32usize << 20;
    let first = device.alloc(bytes as u64).unwrap();
    upload(device, first, vec![0xa5; bytes]);
    device.free(first).unwrap();
    let second = device.alloc(bytes as u64).unwrap();
    assert!(download(device, second, bytes).iter().all(|b| *b == 0));
}

fn ranges_are_checked<D: Device>(device: &mut D) {
    let address = device.alloc(10_000).unwrap();
    assert_eq!(device.check_range(address, 10_000), Ok(()));
    assert_eq!(device.check_range(address + 9_999, 1), Ok(()));
    assert!(device.check_range(address, 1 << 20).is_err());
    assert!(device.check_range(address + 1, u64::MAX).is_err());
    device.free(address).unwrap();
    assert!(device.check_range(address, 1).is_err());
}

fn words_are_read_and_written<D: Device>(device: &mut D) {
    let address = device.alloc(64).unwrap();
    device.write_word(address + 8, 0x1122_3344_5566_7788, true).unwrap();
    device.write_word(address + 8, 0x99aa_bbcc, false).unwrap();
    assert_eq!(device.read_word(address + 8, true), Ok(0x1122_3344_99aa_bbcc));
    assert_eq!(device.read_word(address + 12, false), Ok(0x1122_3344));
}
