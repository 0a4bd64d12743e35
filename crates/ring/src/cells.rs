//! Views of atomic words inside a mapping.
//!
//! Everything two processes touch at once is a word of these views, so that a concurrent writer,
//! hostile or not, can produce any value but never undefined behaviour. Under loom the same views
//! are backed by loom's atomics, so the lanes, flags and turnstile are checked as they are.

#[cfg(not(loom))]
pub use mapped::{Cell, Cells, ReadCells, Word};
#[cfg(loom)]
pub use modelled::{Cell, Cells};

/// Starts to fetch a word's line for writing.
#[cfg(all(not(loom), target_arch = "x86_64"))]
pub(crate) fn prefetch_for_write<T>(word: &T) {
    use core::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
    use core::ptr;

    // SAFETY: a prefetch has no effect that a program could see.
    unsafe { _mm_prefetch::<_MM_HINT_ET0>(ptr::from_ref(word).cast()) };
}

/// Nothing to do where it is not known how.
#[cfg(any(loom, not(target_arch = "x86_64")))]
pub(crate) fn prefetch_for_write<T>(_word: &T) {}

#[cfg(not(loom))]
mod mapped {
    use core::fmt;
    use core::ops::Deref;
    use core::ptr::NonNull;
    use core::slice;
    use std::sync::Arc;

    use crate::map::{Access, MapError, SharedMemory};
    use crate::sync::{AtomicU32, AtomicU64, Ordering};

    mod sealed {
        pub trait Sealed {}
        impl Sealed for crate::sync::AtomicU32 {}
        impl Sealed for crate::sync::AtomicU64 {}
    }

    /// An atomic word that may lie in shared memory: every bit pattern is a value of it.
    pub trait Word: sealed::Sealed + 'static {
        /// The plain value of the word.
        type Value: Copy;
        /// Loads it, acquiring what its writer released.
        fn load_acquire(&self) -> Self::Value;
    }

    impl Word for AtomicU32 {
        type Value = u32;
        fn load_acquire(&self) -> u32 {
            self.load(Ordering::Acquire)
        }
    }

    impl Word for AtomicU64 {
        type Value = u64;
        fn load_acquire(&self) -> u64 {
            self.load(Ordering::Acquire)
        }
    }

    /// A slice of atomic words in a writable mapping; keeps the mapping alive.
    pub struct Cells<T> {
        first: NonNull<T>,
        count: usize,
        mapping: Arc<SharedMemory>,
    }

    // SAFETY: the view is a pointer into a mapping that lives as long as its `Arc`, which is
    // `Send`; the words are atomics.
    unsafe impl<T: Word> Send for Cells<T> {}
    // SAFETY: a shared view only hands out `&[T]` of atomics, which any thread may use.
    unsafe impl<T: Word> Sync for Cells<T> {}

    impl<T: Word> Cells<T> {
        pub(crate) fn new(
            mapping: &Arc<SharedMemory>,
            offset: usize,
            count: usize,
        ) -> Result<Self, MapError> {
            if mapping.access() != Access::ReadWrite {
                return Err(MapError::ReadOnly);
            }
            let first = mapping.checked_ptr::<T>(offset, count)?;
            Ok(Self { first, count, mapping: Arc::clone(mapping) })
        }

        /// The words `from..from + count` of this view as a view of their own.
        ///
        /// # Errors
        /// [`MapError::OutOfBounds`] when they do not all lie inside.
        pub fn part(&self, from: usize, count: usize) -> Result<Self, MapError> {
            let end = from.checked_add(count).ok_or(MapError::OutOfBounds)?;
            let part = self.get(from..end).ok_or(MapError::OutOfBounds)?;
            Ok(Self {
                first: NonNull::from(part).cast(),
                count,
                mapping: Arc::clone(&self.mapping),
            })
        }
    }

    impl<T: Word> Cells<T> {
        /// The word `index` as a view of its own; `None` beyond the end.
        #[must_use]
        pub fn cell(&self, index: usize) -> Option<Cell<T>> {
            self.part(index, 1).ok().map(Cell)
        }
    }

    impl<T: Word> Deref for Cells<T> {
        type Target = [T];
        fn deref(&self) -> &[T] {
            // SAFETY: `new` checked that the words lie inside the mapping, aligned; `mapping` keeps
            // it mapped, and atomics tolerate concurrent writers.
            unsafe { slice::from_raw_parts(self.first.as_ptr(), self.count) }
        }
    }

    impl<T: Word> Clone for Cells<T> {
        fn clone(&self) -> Self {
            Self { first: self.first, count: self.count, mapping: Arc::clone(&self.mapping) }
        }
    }

    impl<T> fmt::Debug for Cells<T> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.debug_struct("Cells").field("count", &self.count).finish_non_exhaustive()
        }
    }

    /// One atomic word in a writable mapping; keeps the mapping alive.
    pub struct Cell<T>(Cells<T>);

    impl<T: Word> Cell<T> {
        pub(crate) fn new(mapping: &Arc<SharedMemory>, offset: usize) -> Result<Self, MapError> {
            Cells::new(mapping, offset, 1).map(Self)
        }

        /// The memory that it lies in.
        pub(crate) fn memory(&self) -> &SharedMemory {
            &self.0.mapping
        }
    }

    impl<T: Word> Deref for Cell<T> {
        type Target = T;
        fn deref(&self) -> &T {
            // SAFETY: as in `Cells::deref`; the view has exactly one word.
            unsafe { self.0.first.as_ref() }
        }
    }

    impl<T: Word> Clone for Cell<T> {
        fn clone(&self) -> Self {
            Self(self.0.clone())
        }
    }

    impl<T> fmt::Debug for Cell<T> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("Cell")
        }
    }

    /// A slice of atomic words that may be loaded only: for mappings without write access.
    pub struct ReadCells<T> {
        first: NonNull<T>,
        count: usize,
        _mapping: Arc<SharedMemory>,
    }

    // SAFETY: as for `Cells`.
    unsafe impl<T: Word> Send for ReadCells<T> {}
    // SAFETY: as for `Cells`.
    unsafe impl<T: Word> Sync for ReadCells<T> {}

    impl<T: Word> ReadCells<T> {
        pub(crate) fn new(
            mapping: &Arc<SharedMemory>,
            offset: usize,
            count: usize,
        ) -> Result<Self, MapError> {
            let first = mapping.checked_ptr::<T>(offset, count)?;
            Ok(Self { first, count, _mapping: Arc::clone(mapping) })
        }

        /// How many words the view has.
        #[must_use]
        pub fn count(&self) -> usize {
            self.count
        }

        /// The word `index`, with acquire ordering; `None` beyond the end.
        #[must_use]
        pub fn load(&self, index: usize) -> Option<T::Value> {
            if index >= self.count {
                return None;
            }
            // SAFETY: `index < count`, and `new` checked that `count` words lie inside the mapping.
            let word = unsafe { self.first.add(index) };
            // SAFETY: the word lies in a live mapping, aligned; it is only loaded, which a
            // read-only page allows.
            Some(unsafe { word.as_ref() }.load_acquire())
        }
    }

    impl<T> fmt::Debug for ReadCells<T> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.debug_struct("ReadCells").field("count", &self.count).finish_non_exhaustive()
        }
    }
}

#[cfg(loom)]
mod modelled {
    use core::ops::Deref;
    use std::sync::Arc;

    use crate::sync::{AtomicU32, AtomicU64};

    /// A slice of loom's atomic words.
    #[derive(Debug)]
    pub struct Cells<T>(Arc<Vec<T>>);

    impl Cells<AtomicU64> {
        pub fn zeroed(count: usize) -> Self {
            Self(Arc::new((0..count).map(|_| AtomicU64::new(0)).collect()))
        }
    }

    impl<T> Clone for Cells<T> {
        fn clone(&self) -> Self {
            Self(Arc::clone(&self.0))
        }
    }

    impl<T> Deref for Cells<T> {
        type Target = [T];
        fn deref(&self) -> &[T] {
            &self.0
        }
    }

    /// One of loom's atomic words.
    #[derive(Debug)]
    pub struct Cell<T>(Arc<T>);

    impl Cell<AtomicU32> {
        pub fn zeroed() -> Self {
            Self(Arc::new(AtomicU32::new(0)))
        }
    }

    impl Cell<AtomicU64> {
        pub fn zeroed() -> Self {
            Self(Arc::new(AtomicU64::new(0)))
        }
    }

    impl<T> Clone for Cell<T> {
        fn clone(&self) -> Self {
            Self(Arc::clone(&self.0))
        }
    }

    impl<T> Deref for Cell<T> {
        type Target = T;
        fn deref(&self) -> &T {
            &self.0
        }
    }
}
