//! Addresses without memory, memory without addresses, and mappings of one at the other.

use core::ptr;

use super::api::{Access, Driver, Handle, MemoryProperties};
use super::{INVALID_VALUE, SUCCESS};

/// `CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED`
const SUPPORTED: u32 = 102;
/// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`
const READ_WRITE: u32 = 3;
const OUT_OF_MEMORY: i32 = 2;
/// Device 0, as a location.
const DEVICE: [i32; 2] = [1, 0];

const fn on_device() -> MemoryProperties {
    let (location, security) = (DEVICE, ptr::null());
    MemoryProperties { kind: 1, handle_types: 0, location, security, flags: [0; 8] }
}

pub(super) fn body(driver: &Driver) {
    let mut supported = 0;
    assert_eq!(driver.device_attribute(&mut supported, SUPPORTED, 0), SUCCESS);
    assert_eq!(supported, 1, "drivers have it since CUDA 10.2");
    let mut unit = 0;
    assert_eq!(driver.granularity(&mut unit, &on_device(), 0), SUCCESS);
    assert!(unit.is_power_of_two());
    contents_stay_with_the_memory(driver, unit);
    what_is_wrong_is_refused(driver, unit);
}

fn reserve(driver: &Driver, bytes: usize, alignment: usize) -> Handle {
    let mut address = 0;
    assert_eq!(driver.address_reserve(&mut address, bytes, alignment, 0, 0), SUCCESS);
    address
}

fn create(driver: &Driver, bytes: usize) -> Handle {
    let mut handle = 0;
    assert_eq!(driver.memory_create(&mut handle, bytes, &on_device(), 0), SUCCESS);
    handle
}

fn allow(driver: &Driver, address: Handle, bytes: usize) -> i32 {
    driver.set_access(address, bytes, &Access { location: DEVICE, flags: READ_WRITE }, 1)
}

fn free_bytes(driver: &Driver) -> usize {
    let (mut free, mut total) = (0, 0);
    assert_eq!(driver.memory_info(&mut free, &mut total), SUCCESS);
    free
}

fn is_filled(driver: &Driver, address: Handle, bytes: usize, value: u8) -> bool {
    let mut found = vec![!value; bytes];
    assert_eq!(driver.to_host(found.as_mut_ptr(), address, bytes), SUCCESS);
    found.iter().all(|byte| *byte == value)
}

/// Two pieces of memory side by side: a copy crosses them, they change places, and one that is
/// released stays until it is unmapped.
fn contents_stay_with_the_memory(driver: &Driver, unit: usize) {
    let free = free_bytes(driver);
    let step = unit as u64;
    let start = reserve(driver, 4 * unit, 0);
    assert!(start.is_multiple_of(step));
    assert_eq!(free_bytes(driver), free, "addresses are no memory");
    let (first, second) = (create(driver, unit), create(driver, unit));
    assert_eq!(driver.memory_map(start, unit, 0, first, 0), SUCCESS);
    assert_eq!(driver.memory_map(start + step, unit, 0, second, 0), SUCCESS);
    assert!(free_bytes(driver) <= free - 2 * unit);
    assert_ne!(driver.fill_bytes(start, 1, unit), SUCCESS, "nobody may access it yet");
    assert_eq!(allow(driver, start, 2 * unit), SUCCESS);
    let mut flags = 0;
    assert_eq!(driver.access(&mut flags, &DEVICE, start + step), SUCCESS);
    assert_eq!(flags, u64::from(READ_WRITE));
    assert_eq!(driver.fill_bytes(start, 0x11, unit), SUCCESS);
    assert_eq!(driver.fill_bytes(start + step, 0x22, unit), SUCCESS);
    assert_eq!(driver.fill_bytes(start + step - 64, 0x33, 128), SUCCESS, "across both");
    assert_eq!(driver.memory_unmap(start, 2 * unit), SUCCESS);
    assert_ne!(driver.fill_bytes(start, 1, unit), SUCCESS, "nothing is mapped there");
    assert_eq!(driver.memory_map(start + 2 * step, unit, 0, second, 0), SUCCESS);
    assert_eq!(driver.memory_map(start + 3 * step, unit, 0, first, 0), SUCCESS);
    assert_eq!(allow(driver, start + 2 * step, 2 * unit), SUCCESS);
    assert_eq!(driver.memory_release(first), SUCCESS);
    assert_ne!(driver.memory_release(first), SUCCESS, "released once");
    let (moved, other) = (start + 2 * step, start + 3 * step);
    assert!(is_filled(driver, moved, 64, 0x33) && is_filled(driver, moved + 64, unit - 64, 0x22));
    assert!(is_filled(driver, other, unit - 64, 0x11));
    assert!(is_filled(driver, other + step - 64, 64, 0x33));
    assert_eq!(driver.memory_unmap(start + 2 * step, 2 * unit), SUCCESS);
    assert_eq!(driver.memory_release(second), SUCCESS);
    assert_eq!(driver.address_free(start, 4 * unit), SUCCESS);
    assert_eq!(free_bytes(driver), free);
}

fn what_is_wrong_is_refused(driver: &Driver, unit: usize) {
    let step = unit as u64;
    let (mut address, mut handle) = (0, 0);
    assert_eq!(driver.address_reserve(&mut address, unit + 1, 0, 0, 0), INVALID_VALUE);
    assert_eq!(driver.address_reserve(&mut address, unit, 3, 0, 0), INVALID_VALUE);
    assert_eq!(driver.memory_create(&mut handle, unit + 1, &on_device(), 0), INVALID_VALUE);
    let huge = driver.memory_create(&mut handle, 1 << 50, &on_device(), 0);
    assert_eq!(huge, OUT_OF_MEMORY);
    let aligned = reserve(driver, 2 * unit, 8 * unit);
    assert!(aligned.is_multiple_of(8 * step));
    let memory = create(driver, unit);
    assert_ne!(driver.memory_map(aligned + 1, unit, 0, memory, 0), SUCCESS);
    assert_ne!(driver.memory_map(aligned, 2 * unit, 0, memory, 0), SUCCESS, "longer than it is");
    assert_ne!(driver.memory_map(aligned + 2 * step, unit, 0, memory, 0), SUCCESS, "not reserved");
    assert_ne!(driver.memory_map(aligned, unit, 0, memory ^ 0x77, 0), SUCCESS, "no such memory");
    assert_eq!(driver.memory_map(aligned, unit, 0, memory, 0), SUCCESS);
    assert_ne!(driver.memory_map(aligned, unit, 0, memory, 0), SUCCESS, "taken");
    assert_ne!(allow(driver, aligned, 2 * unit), SUCCESS, "half of it is not mapped");
    assert_ne!(driver.memory_unmap(aligned + step, unit), SUCCESS);
    assert_ne!(driver.address_free(aligned, 2 * unit), SUCCESS, "something is mapped there");
    assert_eq!(driver.memory_release(memory), SUCCESS);
    assert_eq!(driver.memory_unmap(aligned, unit), SUCCESS);
    assert_ne!(driver.address_free(aligned + step, unit), SUCCESS);
    assert_eq!(driver.address_free(aligned, 2 * unit), SUCCESS);
}
