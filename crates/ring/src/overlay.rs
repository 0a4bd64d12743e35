//! Shared memory in the place of a process's own pages, with their content.
//!
//! A program may ask that memory which it has already (of its heap, say) be used by the device in
//! place. Only shared memory can be, so shared pages take the place of the private ones. The
//! process notices nothing: the content is kept, also what other threads write meanwhile, since a
//! page's old content is looked at again after it was replaced.

use core::ffi::c_void;
use core::ptr;
use core::slice;
use core::sync::atomic::{AtomicU64, Ordering};
use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MremapFlags};
use rustix::pipe::{IoSliceRaw, PipeFlags, SpliceFlags};
use thiserror::Error;

use crate::cells::Cells;
use crate::map::{MapError, PAGE};
use crate::pages;
use crate::span::SharedSpan;

/// Bytes replaced at once: what a pipe holds by default.
const PIECE: usize = 16 * PAGE;

/// Why pages cannot be replaced. The text is for the program's user.
#[derive(Debug, Error)]
pub enum OverlayError {
    /// Nothing is mapped there.
    #[error("nothing is mapped at {0:#x}")]
    Unmapped(usize),
    /// The program may not write there.
    #[error("the memory at {0:#x} is not writable")]
    NotWritable(usize),
    /// Others see the memory too: a shared mapping of a file.
    #[error("the memory at {0:#x} is shared with other processes or is a file's")]
    Shared(usize),
    /// The calling thread's own stack lies there.
    #[error("the memory at {0:#x} is the calling thread's stack")]
    Stack(usize),
    /// Not whole pages, or outside of the shared memory.
    #[error(transparent)]
    Map(#[from] MapError),
    /// The shared memory is no memory file's but a device's, of which the system makes no second
    /// mapping.
    #[error("the vGPU's memory is a device's, which cannot take the place of pages ({0})")]
    Device(io::Error),
    /// The system refused.
    #[error("the system refuses to replace pages: {0}")]
    Os(#[from] io::Error),
    /// The system refused in the middle, and then to undo what was done: the shared pages stay in
    /// the place of some of the process's for ever.
    #[error("the system refuses to replace pages, and to put back those that it replaced: {0}")]
    Left(io::Error),
}

/// Pages of the process that shared memory has taken the place of.
#[derive(Debug)]
pub struct Overlay {
    shared: SharedSpan,
    address: usize,
}

impl Overlay {
    /// Puts the shared pages in the place of as many of the process's private pages from `address`
    /// on, and their content into them.
    ///
    /// # Errors
    /// [`OverlayError`]; the process's memory is then as it was, unless it is
    /// [`OverlayError::Left`].
    pub fn lay(shared: SharedSpan, address: usize) -> Result<Self, OverlayError> {
        let pages = address.is_multiple_of(PAGE) && shared.len().is_multiple_of(PAGE);
        if !pages || !shared.as_ptr().addr().is_multiple_of(PAGE) || shared.is_empty() {
            return Err(MapError::Misaligned.into());
        }
        check_private(address, shared.len())?;
        check_twice(&shared)?;
        let pipe = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).ok();
        let mut scratch = Scratch::new()?;
        Self::lay_by(shared, address, |piece, at| replace(piece, at, pipe.as_ref(), &mut scratch))
    }

    /// Replaces all pages piece by piece, or none: what was replaced before a failure is put back.
    fn lay_by(
        shared: SharedSpan,
        address: usize,
        mut replace: impl FnMut(&SharedSpan, usize) -> Result<usize, OverlayError>,
    ) -> Result<Self, OverlayError> {
        let mut done = 0;
        while done < shared.len() {
            let piece = shared.part(done, PIECE.min(shared.len() - done))?;
            match replace(&piece, address + done) {
                Ok(replaced) => done += replaced,
                Err(error) if done == 0 => return Err(error),
                Err(error) => {
                    let laid = Self { shared: shared.part(0, done)?, address };
                    let left = |error| OverlayError::Left(io::Error::other(error));
                    laid.lift().map_err(left)?;
                    return Err(error);
                }
            }
        }
        Ok(Self { shared, address })
    }

    /// Puts private pages back in the place of the shared ones, as far as they are still there,
    /// with their content. The shared pages stay.
    ///
    /// # Errors
    /// [`OverlayError::Os`] when the system refuses; the pages are then shared for ever.
    pub fn lift(self) -> Result<(), OverlayError> {
        let Self { shared, address } = self;
        let mut scratch = Scratch::new()?;
        for (start, len) in in_place(&shared, address)? {
            let mut done = 0;
            while done < len {
                let piece = PIECE.min(len - done);
                let part = shared.part(start - address + done, piece)?;
                make_private(&part, start + done, &mut scratch)?;
                done += piece;
            }
        }
        Ok(())
    }

    /// In a child made by `fork`: gives it pages of its own, so that it does not write into its
    /// parent's. Takes no lock and does not allocate.
    pub fn leave_in_child(&self) {
        let at = ptr::with_exposed_provenance_mut::<c_void>(self.address);
        let len = self.shared.len();
        // SAFETY: an old length of 0 makes another mapping of the same pages where there is room,
        // and fails when they are not shared: then they are the child's own already.
        let twin = unsafe { rustix::mm::mremap(at, 0, len, MremapFlags::MAYMOVE) };
        let Ok(twin) = twin else { return };
        if let Ok(fresh) = pages::anonymous(len, MapFlags::PRIVATE) {
            // SAFETY: both are mappings of `len` bytes made just now, writable and readable.
            unsafe { ptr::copy_nonoverlapping(twin.cast::<u8>(), fresh.cast::<u8>(), len) };
            // SAFETY: `fresh` belongs to this function and takes the place of the shared pages with
            // their own content, in a process of one thread.
            let moved = unsafe { move_over(fresh, len, at) };
            debug_assert!(moved.is_ok(), "the pages at {at:?} stay the parent's");
        }
        // SAFETY: the mapping was made above and nothing refers to it any more.
        unsafe { pages::unmap(twin, len) };
    }

    /// The first of the process's pages.
    #[must_use]
    pub fn address(&self) -> usize {
        self.address
    }

    /// How many bytes of the process's pages are shared.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shared.len()
    }

    /// Never: there is at least a page.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.shared.is_empty()
    }

    /// Where the shared pages lie in their own mapping.
    #[must_use]
    pub fn shared(&self) -> &SharedSpan {
        &self.shared
    }
}

/// Two buffers in pages of their own: those of the heap may lie in the pages that are replaced.
struct Scratch(*mut u8);

impl Scratch {
    fn new() -> Result<Self, OverlayError> {
        let base = pages::anonymous(2 * PIECE, MapFlags::PRIVATE).map_err(io::Error::from)?;
        Ok(Self(base.cast()))
    }

    fn buffers(&mut self, len: usize) -> (&mut [u8], &mut [u8]) {
        // SAFETY: the pages belong to this value, which is borrowed, and are zeroed or written.
        let both = unsafe { slice::from_raw_parts_mut(self.0, 2 * PIECE) };
        let (before, after) = both.split_at_mut(PIECE);
        (&mut before[..len], &mut after[..len])
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // SAFETY: the pages were mapped by `new`, and no borrow of them is left.
        unsafe { pages::unmap(self.0.cast(), 2 * PIECE) };
    }
}

/// Replaces pages from `address` on; returns how many bytes, at least a page and at most the
/// piece.
fn replace(
    piece: &SharedSpan,
    address: usize,
    pipe: Option<&(OwnedFd, OwnedFd)>,
    scratch: &mut Scratch,
) -> Result<usize, OverlayError> {
    let at = ptr::with_exposed_provenance_mut::<c_void>(address);
    own(address, piece.len())?;
    // The pipe keeps the old pages beyond their replacement.
    let kept = pipe.and_then(|(_, entry)| keep(entry, address, piece.len()));
    let len = kept.unwrap_or(piece.len());
    let piece = piece.part(0, len)?;
    let (before, after) = scratch.buffers(len);
    // SAFETY: the process has `len` readable bytes there; other threads may write them, which
    // changes only which bytes arrive. The buffer has pages of its own.
    unsafe { ptr::copy_nonoverlapping(at.cast::<u8>(), before.as_mut_ptr(), len) };
    piece.write_from(before)?;
    // SAFETY: the old mapping is shared memory, of which an old length of 0 makes another mapping;
    // it takes the place of private pages with the same content.
    unsafe {
        rustix::mm::mremap_fixed(piece.as_ptr().cast(), 0, len, MremapFlags::MAYMOVE, at)
            .map_err(io::Error::from)?
    };
    if let (Some((exit, _)), Some(_)) = (pipe, kept)
        && read_all(exit, after).is_ok()
    {
        let words = piece.mapping().cells::<AtomicU64>(piece.offset(), len / 8)?;
        catch_up(&words, before, after);
    }
    Ok(len)
}

/// Makes every page the process's own, as a write to it would: the page that is kept is then the
/// one that its threads write to, not the zeroed one or one that a parent still has. The system
/// does it (Linux 5.14); a write of what a page holds already is one that compilers leave out.
fn own(address: usize, len: usize) -> Result<(), OverlayError> {
    let at = ptr::with_exposed_provenance_mut(address);
    // SAFETY: the process has these pages and may write them, and their content stays.
    let done = unsafe { pages::advise(at, len, Advice::LinuxPopulateWrite) };
    done.map_err(|errno| io::Error::from(errno).into())
}

/// Puts pages themselves, not their content, into an empty pipe: whole pages, as many as fit.
fn keep(entry: &OwnedFd, address: usize, len: usize) -> Option<usize> {
    // SAFETY: the process has these bytes, and only the system looks at the slice.
    let bytes = unsafe { slice::from_raw_parts(ptr::with_exposed_provenance(address), len) };
    let slice = IoSliceRaw::from_slice(bytes);
    // SAFETY: the pages are not given away (`GIFT`), only read later.
    let kept = unsafe { rustix::pipe::vmsplice(entry, &[slice], SpliceFlags::NONBLOCK) }.ok()?;
    debug_assert!(kept.is_multiple_of(PAGE), "the pipe was empty");
    (kept > 0).then_some(kept)
}

fn read_all(exit: &OwnedFd, mut into: &mut [u8]) -> io::Result<()> {
    while !into.is_empty() {
        let read = rustix::io::read(exit, &mut *into)?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        into = &mut into[read..];
    }
    Ok(())
}

/// Brings words that changed between `before` and `after` to where they are now, unless they have
/// changed there since.
fn catch_up(words: &Cells<AtomicU64>, before: &[u8], after: &[u8]) {
    let pairs = before.chunks_exact(8).zip(after.chunks_exact(8)).enumerate();
    for (i, (before, after)) in pairs.filter(|(_, (before, after))| before != after) {
        let (before, after) = (word(before), word(after));
        let _changed =
            words[i].compare_exchange(before, after, Ordering::AcqRel, Ordering::Relaxed);
    }
}

fn word(bytes: &[u8]) -> u64 {
    bytes.try_into().map(u64::from_ne_bytes).unwrap_or_default()
}

/// Puts private pages with the piece's content in the place of its mapping at `address`.
fn make_private(
    piece: &SharedSpan,
    address: usize,
    scratch: &mut Scratch,
) -> Result<(), OverlayError> {
    let at = ptr::with_exposed_provenance_mut::<c_void>(address);
    let len = piece.len();
    let (before, after) = scratch.buffers(len);
    piece.read_into(before)?;
    let fresh = pages::anonymous(len, MapFlags::PRIVATE).map_err(io::Error::from)?;
    // SAFETY: the mapping was made just now with `len` bytes.
    unsafe { ptr::copy_nonoverlapping(before.as_ptr(), fresh.cast::<u8>(), len) };
    // SAFETY: `fresh` belongs to this function and takes the place of pages with its content.
    unsafe { move_over(fresh, len, at)? };
    piece.read_into(after)?;
    let pairs = before.chunks_exact(8).zip(after.chunks_exact(8)).enumerate();
    for (i, (before, after)) in pairs.filter(|(_, (before, after))| before != after) {
        let place = ptr::with_exposed_provenance_mut::<u64>(address + 8 * i);
        // SAFETY: the process's own page, mapped, writable and aligned.
        let place = unsafe { AtomicU64::from_ptr(place) };
        let (before, after) = (word(before), word(after));
        let _changed = place.compare_exchange(before, after, Ordering::AcqRel, Ordering::Relaxed);
    }
    Ok(())
}

/// Moves a mapping to `to`, over what is there.
///
/// # Safety
/// The caller owns `fresh`, and what is at `to` may be replaced by it.
unsafe fn move_over(fresh: *mut c_void, len: usize, to: *mut c_void) -> Result<(), OverlayError> {
    // SAFETY: passed on to the caller.
    let moved = unsafe { rustix::mm::mremap_fixed(fresh, len, len, MremapFlags::MAYMOVE, to) };
    if let Err(errno) = moved {
        // SAFETY: the mapping is still the caller's, who gave it away to this function.
        unsafe { pages::unmap(fresh, len) };
        return Err(io::Error::from(errno).into());
    }
    Ok(())
}

// What is mapped where.

/// A line of `/proc/self/maps`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Area {
    start: usize,
    end: usize,
    writable: bool,
    private: bool,
    offset: u64,
    inode: u64,
}

impl Area {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_ascii_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let rights = words.next()?.as_bytes();
        Some(Self {
            start: usize::from_str_radix(start, 16).ok()?,
            end: usize::from_str_radix(end, 16).ok()?,
            writable: rights.starts_with(b"rw"),
            private: rights.get(3) == Some(&b'p'),
            offset: u64::from_str_radix(words.next()?, 16).ok()?,
            inode: words.nth(1)?.parse().ok()?,
        })
    }
}

/// What is mapped in `start..start + len`, in order.
fn areas(start: usize, len: usize) -> Result<Vec<Area>, OverlayError> {
    let end = start.checked_add(len).ok_or(MapError::OutOfBounds)?;
    let maps = std::fs::read("/proc/self/maps")?;
    let maps = String::from_utf8_lossy(&maps);
    let all = maps.lines().filter_map(Area::parse);
    Ok(all.filter(|area| area.end > start && area.start < end).collect())
}

/// Whether all of the range is the process's own writable memory.
fn check_private(start: usize, len: usize) -> Result<(), OverlayError> {
    let here = ptr::from_ref(&len).addr();
    if here >= start && here - start < len {
        return Err(OverlayError::Stack(here));
    }
    let mut at = start;
    for area in areas(start, len)? {
        if area.start > at {
            return Err(OverlayError::Unmapped(at));
        }
        if !area.private {
            return Err(OverlayError::Shared(at));
        }
        if !area.writable {
            return Err(OverlayError::NotWritable(at));
        }
        at = area.end;
    }
    if at < start + len { Err(OverlayError::Unmapped(at)) } else { Ok(()) }
}

/// Whether the system makes a second mapping of the shared pages, asked where nothing is: over
/// other pages it removes those first and then finds out that it cannot. It cannot of a device's
/// memory, which is what a virtual machine has.
fn check_twice(shared: &SharedSpan) -> Result<(), OverlayError> {
    // SAFETY: an old length of 0 leaves the old mapping as it is, and no place is named, so the
    // new one replaces nothing.
    let twin = unsafe { rustix::mm::mremap(shared.as_ptr().cast(), 0, PAGE, MremapFlags::MAYMOVE) };
    let twin = twin.map_err(|errno| match errno {
        Errno::FAULT | Errno::INVAL => OverlayError::Device(errno.into()),
        errno => OverlayError::Os(errno.into()),
    })?;
    // SAFETY: the mapping was made just now and nothing refers to it.
    unsafe { pages::unmap(twin, PAGE) };
    Ok(())
}

/// The parts of the process's pages where the shared ones are still mapped: starts and lengths.
fn in_place(shared: &SharedSpan, address: usize) -> Result<Vec<(usize, usize)>, OverlayError> {
    let (len, own) = (shared.len(), shared.as_ptr().addr());
    let Some(own) = areas(own, 1)?.first().map(|area| (*area, own)) else { return Ok(Vec::new()) };
    let (file, own) = own;
    let file_offset = |area: &Area, at: usize| area.offset + (at - area.start) as u64;
    let first = file_offset(&file, own);
    let ours = areas(address, len)?.into_iter().filter_map(|area| {
        let (start, end) = (area.start.max(address), area.end.min(address + len));
        let expected = first + (start - address) as u64;
        let same = area.inode == file.inode && file_offset(&area, start) == expected;
        (!area.private && same).then_some((start, end - start))
    });
    Ok(ours.collect())
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::AtomicBool;

    use crate::map::SharedMemory;

    use super::*;

    /// Pages of the process, of which some are to be replaced.
    fn own_pages(count: usize) -> (usize, impl Fn(usize) -> &'static AtomicU64) {
        let base = pages::anonymous(count * PAGE, MapFlags::PRIVATE).unwrap();
        let address = base.expose_provenance();
        let at = move |word: usize| {
            let place = ptr::with_exposed_provenance_mut::<u64>(address + 8 * word);
            // SAFETY: the tests leave their pages mapped and ask for words inside.
            unsafe { AtomicU64::from_ptr(place) }
        };
        (address, at)
    }

    fn load(word: &AtomicU64) -> u64 {
        word.load(Ordering::Acquire)
    }

    #[test]
    fn both_sides_see_the_same_memory_and_the_content_stays() {
        let pages = 40;
        let shared = SharedMemory::anonymous(64 * PAGE).unwrap();
        let (address, own) = own_pages(pages);
        let words = pages * PAGE / 8;
        (0..words).for_each(|i| own(i).store(i as u64, Ordering::Release));
        let span = shared.span(3 * PAGE, pages * PAGE).unwrap();
        let overlay = Overlay::lay(span, address).unwrap();
        assert_eq!((overlay.address(), overlay.len()), (address, pages * PAGE));
        let cells = shared.cells::<AtomicU64>(3 * PAGE, words).unwrap();
        assert!((0..words).all(|i| load(own(i)) == i as u64 && load(&cells[i]) == i as u64));
        own(7).store(1007, Ordering::Release);
        cells[9000].store(1009, Ordering::Release);
        assert_eq!((load(&cells[7]), load(own(9000))), (1007, 1009));
        overlay.lift().unwrap();
        assert_eq!((load(own(7)), load(own(9000)), load(own(8))), (1007, 1009, 8));
        own(7).store(0, Ordering::Release);
        assert_eq!(load(&cells[7]), 1007, "the process has pages of its own again");
    }

    #[test]
    fn what_fails_in_the_middle_is_undone() {
        let pages = 40;
        let shared = SharedMemory::anonymous(pages * PAGE).unwrap();
        let (address, own) = own_pages(pages);
        let words = pages * PAGE / 8;
        (0..words).for_each(|i| own(i).store(i as u64, Ordering::Release));
        let mut scratch = Scratch::new().unwrap();
        let span = shared.span(0, pages * PAGE).unwrap();
        let laid = Overlay::lay_by(span.clone(), address, |piece, at| {
            if at >= address + 2 * PIECE {
                return Err(io::Error::from(io::ErrorKind::OutOfMemory).into());
            }
            replace(piece, at, None, &mut scratch)
        });
        assert!(matches!(laid, Err(OverlayError::Os(_))), "{laid:?}");
        assert_eq!(in_place(&span, address).unwrap(), []);
        // Whoever gets the shared pages next clears them.
        shared.span(0, pages * PAGE).unwrap().fill(0).unwrap();
        assert!((0..words).all(|i| load(own(i)) == i as u64));
    }

    #[test]
    fn what_others_write_meanwhile_is_kept() {
        let shared = SharedMemory::anonymous(2 * PAGE).unwrap();
        let (address, own) = own_pages(2);
        let words = 2 * PAGE / 8;
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let mut round = 0_u64;
                while !over.load(Ordering::Acquire) {
                    round += 1;
                    (0..words).for_each(|i| own(i).store(round, Ordering::Release));
                }
                round
            });
            for _ in 0..200 {
                let span = shared.span(0, 2 * PAGE).unwrap();
                Overlay::lay(span, address).unwrap().lift().unwrap();
            }
            over.store(true, Ordering::Release);
            let last = writer.join().unwrap();
            let lost = (0..words).find(|i| load(own(*i)) != last);
            assert_eq!(lost.map(|i| (i, load(own(i)))), None, "not {last}");
        });
    }

    /// Of a page that nobody has written yet, the pipe would otherwise keep the zeroed one that all
    /// processes share.
    #[test]
    fn a_page_that_was_kept_is_the_one_that_threads_write() {
        let (address, at) = own_pages(1);
        assert_eq!(load(at(5)), 0);
        own(address, PAGE).unwrap();
        let (exit, entry) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).unwrap();
        assert_eq!(keep(&entry, address, PAGE), Some(PAGE));
        at(5).store(7, Ordering::Release);
        let mut kept = [0; PAGE];
        read_all(&exit, &mut kept).unwrap();
        assert_eq!(word(&kept[40..48]), 7);
    }

    #[test]
    fn pages_of_the_heap_are_as_good() {
        let shared = SharedMemory::anonymous(PAGE).unwrap();
        for i in 0..200_u64 {
            let mut numbers: Vec<u64> = (i..i + 40).collect();
            let page = numbers.as_ptr().addr() / PAGE * PAGE;
            let overlay = Overlay::lay(shared.span(0, PAGE).unwrap(), page).unwrap();
            assert!(numbers.iter().copied().eq(i..i + 40));
            numbers[3] = 1;
            overlay.lift().unwrap();
            assert_eq!((numbers[2], numbers[3], numbers[4]), (i + 2, 1, i + 4));
            numbers.push(std::hint::black_box(i));
        }
    }

    #[test]
    fn memory_that_is_not_the_processs_own_is_refused() {
        let shared = SharedMemory::anonymous(2 * PAGE).unwrap();
        let lay = |address| Overlay::lay(shared.span(0, PAGE).unwrap(), address).unwrap_err();
        let other = SharedMemory::anonymous(PAGE).unwrap();
        assert!(matches!(lay(other.address()), OverlayError::Shared(_)));
        let nothing = crate::map::Reservation::anywhere(PAGE).unwrap();
        assert!(matches!(lay(nothing.address()), OverlayError::NotWritable(_)));
        let free = nothing.address();
        drop(nothing);
        assert!(matches!(lay(free), OverlayError::Unmapped(_)));
        let (address, own) = own_pages(1);
        assert!(matches!(lay(address + 8), OverlayError::Map(MapError::Misaligned)));
        own(0).store(5, Ordering::Release);
        assert!(matches!(lay(PAGE), OverlayError::Unmapped(_)));
        assert_eq!(load(own(0)), 5);
    }

    /// Private pages stand for a device's: of either the system makes no second mapping, and says
    /// so only when it has removed what was there.
    #[test]
    fn memory_that_cannot_be_mapped_twice_leaves_the_processs_own_alone() {
        let shared = SharedMemory::anonymous(2 * PAGE).unwrap();
        let device = pages::anonymous(2 * PAGE, MapFlags::PRIVATE).unwrap();
        let place = ptr::with_exposed_provenance_mut::<c_void>(shared.address());
        // SAFETY: both are mappings of this test, to which nothing refers.
        unsafe { move_over(device, 2 * PAGE, place).unwrap() };
        let (address, own) = own_pages(2);
        own(3).store(7, Ordering::Release);
        let refused = Overlay::lay(shared.span(0, 2 * PAGE).unwrap(), address).unwrap_err();
        assert!(matches!(refused, OverlayError::Device(_)), "{refused}");
        assert_eq!(areas(address, 2 * PAGE).unwrap().len(), 1, "the pages are there");
        assert_eq!(load(own(3)), 7);
    }

    #[test]
    fn pages_that_the_process_gave_up_are_left_alone() {
        let shared = SharedMemory::anonymous(4 * PAGE).unwrap();
        let (address, own) = own_pages(3);
        let overlay = Overlay::lay(shared.span(0, 3 * PAGE).unwrap(), address).unwrap();
        let middle = ptr::with_exposed_provenance_mut::<c_void>(address + PAGE);
        // SAFETY: a page of this test, to which nothing refers.
        unsafe { pages::unmap(middle, PAGE) };
        own(0).store(1, Ordering::Release);
        overlay.lift().unwrap();
        assert_eq!(load(own(0)), 1);
        assert_eq!(areas(address + PAGE, PAGE).unwrap(), []);
    }
}
