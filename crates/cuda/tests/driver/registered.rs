//! Host memory that kernels use in place: allocated for it, or registered.

use core::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use super::api::{Driver, Handle};
use super::{Arguments, COUNT, INVALID_VALUE, SUCCESS, load, read};

const ALREADY_REGISTERED: i32 = 712;
const NOT_REGISTERED: i32 = 713;
const NOT_SUPPORTED: i32 = 801;
/// `CU_MEMHOSTREGISTER_DEVICEMAP`.
const DEVICE_MAP: u32 = 2;

pub(super) fn body(driver: &Driver) {
    let module = load(driver);
    let function = driver.function_named(module, c"add_scalar");
    allocated(driver, function);
    large(driver, function);
    neighbours(driver, function);
    refused(driver);
    in_a_child(driver, function);
    assert_eq!(driver.unload(module), SUCCESS);
}

/// Adds to `COUNT` words by a kernel and waits.
fn add(driver: &Driver, function: Handle, data: Handle, value: u32) {
    let arguments = Arguments { data, value, count: 1000 };
    let (list, none) = (arguments.list(), ptr::null());
    assert_eq!(driver.launch(function, 4, 1, 1, 256, 1, 1, 0, 0, list.as_ptr(), none), SUCCESS);
    assert_eq!(driver.synchronize(), SUCCESS);
}

/// What the host sees now: a kernel of another process may have written it.
fn words(memory: &[AtomicU32]) -> Vec<u32> {
    memory.iter().map(|word| word.load(Ordering::Acquire)).collect()
}

fn place(memory: &[AtomicU32]) -> *mut u8 {
    memory.as_ptr().cast_mut().cast()
}

fn device_pointer(driver: &Driver, memory: *mut u8) -> Handle {
    let mut address = 0;
    assert_eq!(driver.host_device_pointer(&mut address, memory, 0), SUCCESS);
    address
}

/// Pinned and managed memory, with and without the flag that asks for a mapping.
fn allocated(driver: &Driver, function: Handle) {
    for flags in [0, 2, 7] {
        let mut memory = ptr::null_mut();
        assert_eq!(driver.host_alloc(&mut memory, COUNT * 4, flags), SUCCESS);
        // SAFETY: the driver gave zeroed words that live until they are freed below.
        let host = unsafe { core::slice::from_raw_parts(memory.cast::<AtomicU32>(), COUNT) };
        host.iter().for_each(|word| word.store(5, Ordering::Release));
        add(driver, function, device_pointer(driver, memory), 2);
        assert_eq!(words(host), [7; COUNT], "flags {flags}");
        assert_eq!(driver.host_free(memory), SUCCESS);
    }
    let mut address = 0;
    assert_eq!(driver.managed_alloc(&mut address, COUNT * 4, 1), SUCCESS);
    let memory = ptr::with_exposed_provenance::<AtomicU32>(usize::try_from(address).unwrap_or(0));
    // SAFETY: as above.
    let host = unsafe { core::slice::from_raw_parts(memory, COUNT) };
    host.iter().for_each(|word| word.store(1, Ordering::Release));
    add(driver, function, address, 2);
    assert_eq!(words(host), [3; COUNT]);
    assert_eq!(driver.free(address), SUCCESS);
}

/// Whole pages and parts of pages, from an address that no page begins at.
fn large(driver: &Driver, function: Handle) {
    let memory: Vec<AtomicU32> = (0..400_000).map(AtomicU32::new).collect();
    let (start, bytes) = (place(&memory[1..]), (memory.len() - 2) * 4);
    assert_eq!(driver.host_register(start, bytes, DEVICE_MAP), SUCCESS);
    assert_eq!(driver.host_register(start, 4, 0), ALREADY_REGISTERED);
    assert!(words(&memory).iter().zip(0..).all(|(word, i)| *word == i), "the content stays");
    let mut flags = 0;
    assert_eq!(driver.host_flags(&mut flags, start), SUCCESS);
    assert_eq!(flags & DEVICE_MAP, DEVICE_MAP);
    // By the pointer of a place in the middle, over the boundary of pages.
    let middle = 200_003;
    add(driver, function, device_pointer(driver, place(&memory[middle..])), 7);
    let expected =
        |i: u32| if (middle..middle + COUNT).contains(&(i as usize)) { i + 7 } else { i };
    assert!(words(&memory).iter().zip(0..).all(|(word, i)| *word == expected(i)));
    // The device's copies see the same bytes, and the host's stores are seen by the next kernel.
    assert_eq!(read(driver, device_pointer(driver, place(&memory[middle..])), 1), [200_010]);
    memory[1].store(1000, Ordering::Release);
    add(driver, function, device_pointer(driver, start), 1);
    assert_eq!(words(&memory[..3]), [0, 1001, 3]);
    assert_eq!(driver.host_unregister(start), SUCCESS);
    assert_eq!(driver.host_unregister(start), NOT_REGISTERED);
    assert_eq!(words(&memory[..3]), [0, 1001, 3], "what kernels wrote stays");
    memory[2].store(6, Ordering::Release);
    assert_eq!(driver.host_register(start, bytes, 0), SUCCESS);
    add(driver, function, device_pointer(driver, start), 1);
    assert_eq!(words(&memory[..3]), [0, 1002, 7]);
    assert_eq!(driver.host_unregister(start), SUCCESS);
}

/// Ranges that share their pages with each other and with what is not registered.
fn neighbours(driver: &Driver, function: Handle) {
    let memory: Vec<AtomicU32> = (0..3 * 1100).map(AtomicU32::new).collect();
    let part = |i: usize| &memory[i * 1100..][..COUNT];
    for i in [0, 2, 1] {
        assert_eq!(driver.host_register(place(part(i)), COUNT * 4, DEVICE_MAP), SUCCESS);
    }
    for (i, by) in [10_000, 20_000, 30_000].into_iter().enumerate() {
        add(driver, function, device_pointer(driver, place(part(i))), by);
    }
    assert_eq!(driver.host_unregister(place(part(1))), SUCCESS);
    add(driver, function, device_pointer(driver, place(part(0))), 100_000);
    add(driver, function, device_pointer(driver, place(part(2))), 100_000);
    for i in [2, 0] {
        assert_eq!(driver.host_unregister(place(part(i))), SUCCESS);
    }
    let added = [110_000, 20_000, 130_000];
    for (word, i) in words(&memory).into_iter().zip(0..) {
        let inside = i % 1100 < 1000;
        let expected = i + if inside { added[i as usize / 1100] } else { 0 };
        assert_eq!(word, expected, "word {i}");
    }
}

fn refused(driver: &Driver) {
    let mut address = 0;
    let memory = [const { AtomicU32::new(0) }; 4];
    let own = place(&memory);
    assert_eq!(driver.host_device_pointer(&mut address, own, 0), INVALID_VALUE);
    assert_eq!(driver.host_register(ptr::null_mut(), 64, 0), INVALID_VALUE);
    assert_eq!(driver.host_register(own, 0, 0), INVALID_VALUE);
    assert_eq!(driver.host_register(own, 16, 0x10), INVALID_VALUE);
    // Read-only registration is claimed by attribute 113 alone.
    let mut read_only = 0;
    assert_eq!(driver.device_attribute(&mut read_only, 113, 0), SUCCESS);
    let code = driver.host_register(own, 16, 8);
    assert_eq!(code == SUCCESS, read_only == 1);
    assert!(code == SUCCESS || code == NOT_SUPPORTED);
    let nothing = ptr::without_provenance_mut(4096);
    assert_ne!(driver.host_register(nothing, 64, 0), SUCCESS, "nothing is mapped there");
}

/// A child made by `fork` has its own copy and does not write into its parent's.
fn in_a_child(driver: &Driver, function: Handle) {
    let memory: Vec<AtomicU32> = (0..3000).map(|_| AtomicU32::new(1)).collect();
    assert_eq!(driver.host_register(place(&memory), memory.len() * 4, DEVICE_MAP), SUCCESS);
    // SAFETY: the child looks at its memory, writes there and leaves at once.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let same = memory.iter().all(|word| word.swap(9, Ordering::AcqRel) == 1);
        // SAFETY: leaves without running anything of the parent's.
        unsafe { libc::_exit(i32::from(!same)) };
    }
    let mut status = -1;
    // SAFETY: the place is writable, and the child is ours.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child has the content");
    assert_eq!(words(&memory), [1; 3000]);
    add(driver, function, device_pointer(driver, place(&memory)), 4);
    assert_eq!(words(&memory[..COUNT]), [5; COUNT]);
    assert_eq!(driver.host_unregister(place(&memory)), SUCCESS);
}
