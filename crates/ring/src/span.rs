//! Bulk bytes in shared memory.

use core::fmt;
use core::ptr::{self, NonNull};
use core::sync::atomic::{Ordering, compiler_fence};
use std::sync::Arc;

use rustix::mm::Advice;

use crate::map::{Access, MapError, PAGE, SharedMemory};
use crate::pages;
use crate::streaming;

/// Bytes of a mapping, to copy in and out; keeps the mapping alive.
///
/// A peer may write the same bytes at any time. A copy then holds some mix of old and new bytes,
/// never anything outside the span. Copy first and look at the copy: nothing here hands out a
/// reference.
#[derive(Clone)]
pub struct SharedSpan {
    first: NonNull<u8>,
    len: usize,
    offset: usize,
    mapping: Arc<SharedMemory>,
}

// SAFETY: a pointer into a mapping that its `Arc` keeps alive and that belongs to the process.
unsafe impl Send for SharedSpan {}
// SAFETY: the bytes are only reached by copies, which tolerate concurrent writers.
unsafe impl Sync for SharedSpan {}

impl SharedSpan {
    pub(crate) fn new(
        mapping: &Arc<SharedMemory>,
        offset: usize,
        len: usize,
    ) -> Result<Self, MapError> {
        let first = mapping.checked_ptr::<u8>(offset, len)?;
        Ok(Self { first, len, offset, mapping: Arc::clone(mapping) })
    }

    /// The size in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where the span starts in its mapping, in bytes.
    #[must_use]
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// The mapping that the span lies in.
    #[must_use]
    pub fn mapping(&self) -> &Arc<SharedMemory> {
        &self.mapping
    }

    /// The first byte. Whoever dereferences it must expect concurrent writers and respect the
    /// access.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.first.as_ptr()
    }

    /// The bytes `offset..offset + len` of this span.
    ///
    /// # Errors
    /// [`MapError::OutOfBounds`] when they do not all lie inside.
    pub fn part(&self, offset: usize, len: usize) -> Result<Self, MapError> {
        self.check(offset, len)?;
        let offset = self.offset.checked_add(offset).ok_or(MapError::OutOfBounds)?;
        Self::new(&self.mapping, offset, len)
    }

    /// Copies all of `target.len()` bytes from the start of the span out.
    ///
    /// # Errors
    /// [`MapError::OutOfBounds`] when the span is shorter.
    pub fn read_into(&self, target: &mut [u8]) -> Result<(), MapError> {
        self.read_at(0, target)
    }

    /// Copies `target.len()` bytes from byte `offset` on out.
    ///
    /// # Errors
    /// [`MapError::OutOfBounds`] when they do not all lie inside.
    pub fn read_at(&self, offset: usize, target: &mut [u8]) -> Result<(), MapError> {
        let source = self.check(offset, target.len())?;
        // SAFETY: `check` says that the source has the bytes; the target is a private exclusive
        // slice, so they do not overlap. A concurrent writer in another process changes only which
        // bytes arrive.
        unsafe { ptr::copy_nonoverlapping(source, target.as_mut_ptr(), target.len()) };
        // Forbids the compiler to go back to the shared bytes for what was copied.
        compiler_fence(Ordering::SeqCst);
        Ok(())
    }

    /// Appends `length` bytes from byte `offset` on to `target`.
    ///
    /// # Errors
    /// [`MapError::OutOfBounds`] when they do not all lie inside.
    pub fn append_to(
        &self,
        offset: usize,
        length: usize,
        target: &mut Vec<u8>,
    ) -> Result<(), MapError> {
        let source = self.check(offset, length)?;
        target.reserve(length);
        let room = target.spare_capacity_mut().as_mut_ptr().cast::<u8>();
        // SAFETY: `check` says that the source has the bytes; `reserve` has made as much room
        // behind the vector's own, which nobody else has. A concurrent writer in another process
        // changes only which bytes arrive.
        unsafe { ptr::copy_nonoverlapping(source, room, length) };
        compiler_fence(Ordering::SeqCst);
        // SAFETY: the bytes behind the old length were just written, and lie within the capacity.
        unsafe { target.set_len(target.len() + length) };
        Ok(())
    }

    /// The same around the caches: for a part of a copy that is larger than they are.
    ///
    /// # Errors
    /// As [`Self::read_at`].
    pub fn read_streaming(&self, offset: usize, target: &mut [u8]) -> Result<(), MapError> {
        let source = self.check(offset, target.len())?;
        // SAFETY: as in `read_at`.
        unsafe { streaming::copy(source, target.as_mut_ptr(), target.len()) };
        compiler_fence(Ordering::SeqCst);
        Ok(())
    }

    /// A private copy of all the bytes.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut copy = vec![0; self.len];
        let copied = self.read_into(&mut copy);
        debug_assert!(copied.is_ok(), "a span holds its own length");
        copy
    }

    /// Copies `source` to the start of the span.
    ///
    /// # Errors
    /// [`MapError::OutOfBounds`] when the span is shorter, [`MapError::ReadOnly`].
    pub fn write_from(&self, source: &[u8]) -> Result<(), MapError> {
        self.write_at(0, source)
    }

    /// Copies `source` to byte `offset`.
    ///
    /// # Errors
    /// [`MapError::OutOfBounds`] when it does not fit, [`MapError::ReadOnly`].
    pub fn write_at(&self, offset: usize, source: &[u8]) -> Result<(), MapError> {
        let target = self.writable(offset, source.len())?;
        // SAFETY: `writable` says that the target has the room and is writable; `source` is a live
        // Rust slice, which no span aliases.
        unsafe { ptr::copy_nonoverlapping(source.as_ptr(), target, source.len()) };
        compiler_fence(Ordering::SeqCst);
        Ok(())
    }

    /// Copies all bytes of this span to the start of `target`; the two may overlap.
    ///
    /// # Errors
    /// [`MapError::OutOfBounds`] when the target is shorter, [`MapError::ReadOnly`].
    pub fn copy_to(&self, target: &Self) -> Result<(), MapError> {
        let to = target.writable(0, self.len)?;
        // SAFETY: both sides have `len` bytes inside live mappings; `copy` allows overlap.
        unsafe { ptr::copy(self.as_ptr(), to, self.len) };
        compiler_fence(Ordering::SeqCst);
        Ok(())
    }

    /// The same around the caches: for a part of a copy that is larger than they are.
    ///
    /// # Errors
    /// As [`Self::copy_to`].
    pub fn copy_streaming(&self, target: &Self) -> Result<(), MapError> {
        let to = target.writable(0, self.len)?;
        if self.as_ptr().addr().abs_diff(to.addr()) < self.len {
            return self.copy_to(target);
        }
        // SAFETY: both sides have `len` bytes inside live mappings, and they do not overlap.
        unsafe { streaming::copy(self.as_ptr(), to, self.len) };
        compiler_fence(Ordering::SeqCst);
        Ok(())
    }

    /// Makes pages be there for the bytes that the span is about to get, all at once: that is
    /// cheaper than by a fault for each, and a system that has none says so.
    ///
    /// # Errors
    /// [`MapError::Os`] when the system has no memory (or is older than Linux 5.14).
    pub fn populate(&self) -> Result<(), MapError> {
        let before = self.as_ptr().addr() % PAGE;
        let first = self.as_ptr().wrapping_sub(before);
        // SAFETY: the pages lie in a live mapping, whose bytes anybody may change at any time.
        let done =
            unsafe { pages::advise(first.cast(), self.len + before, Advice::LinuxPopulateWrite) };
        done.map_err(|errno| MapError::Os { what: "populating memory", source: errno.into() })
    }

    /// Sets every byte to `value`.
    ///
    /// # Errors
    /// [`MapError::ReadOnly`].
    pub fn fill(&self, value: u8) -> Result<(), MapError> {
        let to = self.writable(0, self.len)?;
        // SAFETY: the span's `len` bytes lie in a live writable mapping.
        unsafe { ptr::write_bytes(to, value, self.len) };
        compiler_fence(Ordering::SeqCst);
        Ok(())
    }

    fn writable(&self, offset: usize, len: usize) -> Result<*mut u8, MapError> {
        match self.mapping.access() {
            Access::ReadWrite => self.check(offset, len),
            Access::ReadOnly => Err(MapError::ReadOnly),
        }
    }

    fn check(&self, offset: usize, len: usize) -> Result<*mut u8, MapError> {
        let end = offset.checked_add(len).ok_or(MapError::OutOfBounds)?;
        if end > self.len {
            return Err(MapError::OutOfBounds);
        }
        // SAFETY: `offset <= end <= self.len`, inside the span or just behind it.
        Ok(unsafe { self.first.add(offset) }.as_ptr())
    }
}

impl fmt::Debug for SharedSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedSpan")
            .field("offset", &self.offset)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}
