//! Mappings, spans, messages between processes and the turnstile, on the real system.

#![cfg(not(miri))]
#![expect(clippy::unwrap_used, reason = "a panic is the report")]

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use rustix::fs::{MemfdFlags, SealFlags};
use weft_ring::{
    Access, MapError, MemoryFile, PAGE, Patience, Reservation, Segment, SegmentError, SharedMemory,
    Standing, TURNSTILE_BYTES, Turnstile, Unready, Window, peer,
};

fn unsealed(len: u64) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = rustix::fs::memfd_create("test", flags).unwrap();
    rustix::fs::ftruncate(&fd, len).unwrap();
    fd
}

#[test]
fn a_file_that_may_shrink_is_refused() {
    assert!(matches!(MemoryFile::received(unsealed(4096)), Err(MapError::NotSealed)));
    let plain = tempfile::tempfile().unwrap();
    assert!(matches!(MemoryFile::received(plain.into()), Err(MapError::NotSealed)));
    for len in [0, 1, 4097] {
        let fd = unsealed(len);
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
        assert!(matches!(MemoryFile::received(fd), Err(MapError::Size(found)) if found == len));
    }
}

#[test]
fn a_created_file_cannot_be_resized_by_anybody() {
    let file = MemoryFile::create("test", 10).unwrap();
    assert_eq!(file.len(), PAGE);
    let received = MemoryFile::received(file.try_clone().unwrap().into()).unwrap();
    assert!(rustix::fs::ftruncate(received.as_fd(), 0).is_err());
    assert!(rustix::fs::ftruncate(received.as_fd(), 1 << 20).is_err());
}

#[test]
fn two_mappings_show_the_same_bytes_and_respect_access() {
    let file = MemoryFile::create("test", 2 * PAGE).unwrap();
    let (a, b) = (file.map(Access::ReadWrite).unwrap(), file.map(Access::ReadOnly).unwrap());
    a.span(PAGE - 2, 4).unwrap().write_from(b"abcd").unwrap();
    assert_eq!(b.span(PAGE - 2, 4).unwrap().to_vec(), b"abcd");
    assert!(matches!(b.span(0, 1).unwrap().write_from(b"x"), Err(MapError::ReadOnly)));
    assert!(matches!(b.span(0, 1).unwrap().fill(0), Err(MapError::ReadOnly)));
    assert!(matches!(b.cell::<AtomicU64>(0), Err(MapError::ReadOnly)));
    a.cell::<AtomicU64>(8).unwrap().store(77, Ordering::Release);
    let words = b.read_cells::<AtomicU64>(0, 4).unwrap();
    assert_eq!((words.load(1), words.load(4)), (Some(77), None));
    file.punch(0, PAGE).unwrap();
    assert_eq!(words.load(1), Some(0));
}

#[test]
fn ranges_are_checked_without_overflow() {
    let memory = SharedMemory::anonymous(PAGE).unwrap();
    for (offset, len) in [(PAGE, 1), (0, PAGE + 1), (usize::MAX, 1), (1, usize::MAX)] {
        assert!(matches!(memory.span(offset, len), Err(MapError::OutOfBounds)), "{offset} {len}");
    }
    assert!(matches!(memory.cells::<AtomicU64>(0, usize::MAX), Err(MapError::OutOfBounds)));
    assert!(matches!(memory.cell::<AtomicU64>(4), Err(MapError::Misaligned)));
    let span = memory.span(100, 50).unwrap();
    assert!(matches!(span.read_at(49, &mut [0; 2]), Err(MapError::OutOfBounds)));
    assert!(matches!(span.part(50, 1), Err(MapError::OutOfBounds)));
    assert_eq!(span.part(10, 40).unwrap().offset(), 110);
}

#[test]
fn reservations_and_fixed_mappings_replace_nothing() {
    let reservation = Reservation::search(0x2000_0000_0000, 1 << 32, 16, 4 * PAGE).unwrap();
    let address = reservation.address();
    let file = MemoryFile::create("test", 4 * PAGE).unwrap();
    file.map_at(address, Access::ReadWrite).unwrap_err();
    Reservation::at(address + PAGE, PAGE).unwrap_err();
    let mapping = file.map_over(reservation, Access::ReadWrite).unwrap();
    assert_eq!(mapping.address(), address);
    mapping.span_at(address + 5, 3).unwrap().write_from(b"xyz").unwrap();
    assert_eq!(mapping.span(5, 3).unwrap().to_vec(), b"xyz");
    mapping.span_at(address - 1, 2).unwrap_err();
    drop(mapping);
    assert_eq!(file.map_at(address, Access::ReadOnly).unwrap().address(), address);
}

#[test]
fn overlapping_copies_keep_their_bytes() {
    let memory = SharedMemory::anonymous(PAGE).unwrap();
    memory.span(0, 6).unwrap().write_from(b"abcdef").unwrap();
    memory.span(0, 4).unwrap().copy_to(&memory.span(2, 4).unwrap()).unwrap();
    assert_eq!(memory.span(0, 6).unwrap().to_vec(), b"ababcd");
}

#[test]
fn a_segment_of_another_layout_is_refused() {
    let memory = SharedMemory::anonymous(Segment::size(PAGE)).unwrap();
    assert!(matches!(Segment::open(memory), Err(SegmentError::Layout { found: 0 })));
    let small = SharedMemory::anonymous(PAGE).unwrap();
    assert!(matches!(Segment::open(small), Err(SegmentError::TooSmall(_))));
}

#[test]
fn the_window_hands_out_zeroed_disjoint_pages() {
    let window = Window::new(SharedMemory::anonymous(8 * PAGE).unwrap());
    let first = window.alloc(PAGE + 1).unwrap();
    let second = window.alloc(1).unwrap();
    assert_eq!(second, first + 2 * PAGE);
    window.memory().span_at(first, PAGE).unwrap().fill(9).unwrap();
    assert_eq!(window.find(first + PAGE), Some((first, PAGE + 1)));
    assert_eq!(window.find(first + PAGE + 1), None);
    assert!(window.contains(first) && !window.contains(first + 8 * PAGE));
    assert_eq!(window.alloc(6 * PAGE), None);
    assert_eq!((window.free(first), window.free(first)), (Some(PAGE + 1), None));
    assert_eq!(window.alloc(2 * PAGE), Some(first));
    assert_eq!(window.memory().span_at(first, PAGE).unwrap().to_vec(), vec![0; PAGE]);
    assert_eq!(window.alloc(0), None);
}

#[test]
fn messages_carry_bytes_and_descriptors() {
    let (a, b) = peer::pair().unwrap();
    let file = MemoryFile::create("test", PAGE).unwrap();
    let memory = file.map(Access::ReadWrite).unwrap();
    peer::send(&a, b"hello", &[file.as_fd(), file.as_fd()]).unwrap();
    let message = peer::receive(&b, 64).unwrap().unwrap();
    assert_eq!((message.bytes.as_slice(), message.descriptors.len()), (&b"hello"[..], 2));
    let received = message.descriptors.into_iter().next().unwrap();
    let other = MemoryFile::received(received).unwrap().map(Access::ReadWrite).unwrap();
    other.span(0, 1).unwrap().fill(5).unwrap();
    assert_eq!(memory.span(0, 1).unwrap().to_vec(), [5]);
    peer::send(&a, &[0; 65], &[]).unwrap();
    assert_eq!(peer::receive(&b, 64).unwrap_err().kind(), io::ErrorKind::InvalidData);
    let own = peer::credentials(&b).unwrap();
    assert_eq!(own.pid, Some(std::process::id()));
    assert!(!peer::has_hung_up(&b));
    drop(a);
    assert!(peer::has_hung_up(&b));
    assert!(peer::receive(&b, 64).unwrap().is_none());
    assert!(peer::send(&b, b"x", &[]).is_err());
}

#[test]
fn a_process_is_seen_to_exit() {
    let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
    let process = peer::Process::open(child.id()).unwrap();
    assert!(!process.has_exited());
    process.kill().unwrap();
    child.wait().unwrap();
    assert!(process.has_exited());
}

fn turnstiles() -> (Turnstile, Turnstile) {
    let file = MemoryFile::create("test", TURNSTILE_BYTES).unwrap();
    let view = || Turnstile::view(&file.map(Access::ReadWrite).unwrap(), 0).unwrap();
    (view(), view())
}

#[test]
fn the_turnstile_excludes_many() {
    let (view, _) = turnstiles();
    let (view, counter) = (Arc::new(view), Arc::new(AtomicU64::new(0)));
    let threads: Vec<_> = (0..6)
        .map(|me| {
            let (view, counter) = (Arc::clone(&view), Arc::clone(&counter));
            thread::spawn(move || {
                for _ in 0..2_000 {
                    view.acquire(me, &Patience::while_alive(&|| true)).unwrap();
                    let before = counter.load(Ordering::Relaxed);
                    counter.store(before + 1, Ordering::Relaxed);
                    view.release(me);
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(counter.load(Ordering::Relaxed), 12_000);
    assert!(!view.is_contended(u32::MAX));
}

#[test]
fn the_turnstile_serves_in_order_and_survives_deaths() {
    let (a, b) = turnstiles();
    let alive = || true;
    let soon = Patience::while_alive(&alive).until(Instant::now());
    assert!(a.try_acquire(3));
    assert!(!b.try_acquire(1));
    b.enter(2);
    b.enter(1);
    assert_eq!(b.acquire(0, &soon), Err(Unready::TimedOut));
    assert_eq!((b.turn(2), b.turn(1)), (Standing::Waiting, Standing::Waiting));
    // The holder dies, then the first in the queue.
    b.repair(3);
    assert_eq!((b.turn(2), b.turn(1)), (Standing::Mine, Standing::Waiting));
    b.repair(2);
    assert_eq!(a.turn(1), Standing::Mine);
    a.release(1);
    assert!(b.try_acquire(255));
}

#[test]
fn a_sleeper_at_the_turnstile_is_woken_by_a_repair() {
    let (a, b) = turnstiles();
    assert!(a.try_acquire(0));
    let entered = Arc::new(AtomicBool::new(false));
    let sleeper = thread::spawn({
        let entered = Arc::clone(&entered);
        move || {
            b.enter(1);
            entered.store(true, Ordering::Release);
            let patience = Patience::while_alive(&|| true).spinning(std::time::Duration::ZERO);
            b.wait(1, &patience)
        }
    });
    while !entered.load(Ordering::Acquire) {
        thread::yield_now();
    }
    a.repair(0);
    assert_eq!(sleeper.join().unwrap(), Ok(()));
}
