//! Memory files and mappings.
//!
//! A [`MemoryFile`] is created and sealed by the daemon; everybody else receives its descriptor. A
//! mapping is only made of a file that can no longer shrink, so a peer cannot turn an access into a
//! `SIGBUS`. A file on a disk cannot be sealed: it is mapped by those only who trust all that have
//! its descriptor ([`MemoryFile::trusted`]).

use core::ffi::c_void;
use core::fmt;
use core::ptr::{self, NonNull};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags, SeekFrom};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use thiserror::Error;

use crate::bell::Bell;
use crate::cells::{Cell, Cells, ReadCells, Word};
use crate::pages;
use crate::span::SharedSpan;

/// The page size that layouts are rounded to, in bytes.
pub const PAGE: usize = 4096;

/// Why memory could not be created, mapped or viewed.
#[derive(Debug, Error)]
pub enum MapError {
    /// The system refused.
    #[error("{what} failed")]
    Os {
        /// The operation.
        what: &'static str,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// The file may still shrink, so its owner could fault whoever maps it.
    #[error("memory file is not sealed against shrinking")]
    NotSealed,
    /// The file is empty, not a whole number of pages, or larger than the address space.
    #[error("memory file has an unusable size of {0} bytes")]
    Size(u64),
    /// The range does not lie inside the mapping.
    #[error("range lies outside the mapping")]
    OutOfBounds,
    /// The range starts at an address that its words cannot have.
    #[error("range is misaligned")]
    Misaligned,
    /// A writable view of a read-only mapping was asked for.
    #[error("mapping is read-only")]
    ReadOnly,
}

fn os(what: &'static str) -> impl FnOnce(Errno) -> MapError {
    move |errno| MapError::Os { what, source: errno.into() }
}

fn no_address(what: &'static str) -> MapError {
    MapError::Os { what, source: io::ErrorKind::AddrNotAvailable.into() }
}

/// Whether a file can no longer shrink.
fn is_sealed(fd: &OwnedFd) -> bool {
    rustix::fs::fcntl_get_seals(fd).is_ok_and(|seals| seals.contains(SealFlags::SHRINK))
}

/// Memory of a file whose size is fixed for ever: all of it, or a part.
#[derive(Debug)]
pub struct MemoryFile {
    fd: OwnedFd,
    /// Where the memory starts in the file, in bytes; whole pages.
    start: u64,
    len: usize,
    bell: Option<Arc<Bell>>,
}

impl MemoryFile {
    /// Creates a zeroed, lazily committed file of `len` bytes (rounded up to pages) and seals its
    /// size.
    ///
    /// # Errors
    /// [`MapError::Os`] when the system refuses, [`MapError::Size`] for a length of zero.
    pub fn create(name: &str, len: usize) -> Result<Self, MapError> {
        let len = len
            .checked_next_multiple_of(PAGE)
            .filter(|len| *len > 0)
            .ok_or(MapError::Size(len as u64))?;
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create(name, flags).map_err(os("memfd_create"))?;
        rustix::fs::ftruncate(&fd, len as u64).map_err(os("ftruncate"))?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&fd, seals).map_err(os("sealing a memory file"))?;
        Ok(Self { fd, start: 0, len, bell: None })
    }

    /// Creates a zeroed file without a name in a directory. It takes room there where that is
    /// reserved ([`Self::reserve`]) or written to. Its size is not sealed: who has its descriptor
    /// can shrink it, and fault whoever has it mapped.
    ///
    /// # Errors
    /// As [`Self::create`].
    pub fn create_in(dir: &Path, len: usize) -> Result<Self, MapError> {
        let len = len
            .checked_next_multiple_of(PAGE)
            .filter(|len| *len > 0)
            .ok_or(MapError::Size(len as u64))?;
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let fd = rustix::fs::open(dir, flags, Mode::RUSR | Mode::WUSR)
            .map_err(os("creating a file without a name"))?;
        rustix::fs::ftruncate(&fd, len as u64).map_err(os("ftruncate"))?;
        Ok(Self { fd, start: 0, len, bell: None })
    }

    /// Takes a descriptor, sealed or not, from somebody who is trusted not to shrink the file.
    ///
    /// # Errors
    /// [`MapError::Size`].
    pub fn trusted(fd: OwnedFd) -> Result<Self, MapError> {
        Self::whole(fd)
    }

    /// Whether the size is fixed for ever.
    #[must_use]
    pub fn is_sealed(&self) -> bool {
        is_sealed(&self.fd)
    }

    /// Takes a received descriptor after checking its seals and its size.
    ///
    /// # Errors
    /// [`MapError::NotSealed`] or [`MapError::Size`] when it cannot be mapped safely.
    pub fn received(fd: OwnedFd) -> Result<Self, MapError> {
        if is_sealed(&fd) { Self::whole(fd) } else { Err(MapError::NotSealed) }
    }

    /// The same for memory that a virtual machine's host lends it: there it is a resource of a PCI
    /// device (`/sys/bus/pci/devices/*/resource2`), whose size is the device's.
    ///
    /// # Errors
    /// As [`Self::received`].
    pub fn lent(fd: OwnedFd) -> Result<Self, MapError> {
        /// `SYSFS_MAGIC` of `linux/magic.h`.
        const SYSFS: i64 = 0x6265_6572;

        let system = rustix::fs::fstatfs(&fd).map_err(os("fstatfs"))?;
        let is_device = system.f_type == SYSFS;
        if is_device || is_sealed(&fd) { Self::whole(fd) } else { Err(MapError::NotSealed) }
    }

    fn whole(fd: OwnedFd) -> Result<Self, MapError> {
        let stat = rustix::fs::fstat(&fd).map_err(os("fstat"))?;
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        let len = usize::try_from(size).map_err(|_| MapError::Size(size))?;
        if len == 0 || !len.is_multiple_of(PAGE) || isize::try_from(len).is_err() {
            return Err(MapError::Size(size));
        }
        Ok(Self { fd, start: 0, len, bell: None })
    }

    /// The `len` bytes from `offset` on, both of whole pages: mapped, punched and measured as if
    /// they were all.
    ///
    /// # Errors
    /// [`MapError::OutOfBounds`] or [`MapError::Size`] when they are no such part.
    pub fn part(self, offset: u64, len: u64) -> Result<Self, MapError> {
        let end = offset.checked_add(len).ok_or(MapError::OutOfBounds)?;
        if end > self.len as u64 {
            return Err(MapError::OutOfBounds);
        }
        let len = usize::try_from(len).map_err(|_| MapError::Size(len))?;
        if len == 0 || !len.is_multiple_of(PAGE) || !offset.is_multiple_of(PAGE as u64) {
            return Err(MapError::Size(len as u64));
        }
        Ok(Self { start: self.start + offset, len, ..self })
    }

    /// The same memory for who shares it with another kernel: mappings made of it wake sleepers
    /// there, too.
    #[must_use]
    pub fn with_bell(self, bell: Bell) -> Self {
        Self { bell: Some(Arc::new(bell)), ..self }
    }

    /// Another descriptor of the same file, to send or to map again.
    ///
    /// # Errors
    /// [`MapError::Os`] when no descriptor is left.
    pub fn try_clone(&self) -> Result<Self, MapError> {
        let fd = self
            .fd
            .try_clone()
            .map_err(|source| MapError::Os { what: "duplicating a memory file", source })?;
        Ok(Self { fd, start: self.start, len: self.len, bell: self.bell.clone() })
    }

    /// The size in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never: a memory file has at least a page.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Gives `offset..offset + len` (whole pages) back to the system; it reads as zero afterwards.
    ///
    /// # Errors
    /// [`MapError::OutOfBounds`], or [`MapError::Os`] when the system refuses.
    pub fn punch(&self, offset: usize, len: usize) -> Result<(), MapError> {
        let end = offset.checked_add(len).ok_or(MapError::OutOfBounds)?;
        if end > self.len {
            return Err(MapError::OutOfBounds);
        }
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&self.fd, mode, self.start + offset as u64, len as u64)
            .map_err(os("punching a hole"))
    }

    /// Takes room for `offset..offset + len`, so that no later access finds none.
    ///
    /// # Errors
    /// [`MapError::OutOfBounds`], or [`MapError::Os`] when there is no room.
    pub fn reserve(&self, offset: usize, len: usize) -> Result<(), MapError> {
        let end = offset.checked_add(len).ok_or(MapError::OutOfBounds)?;
        if end > self.len {
            return Err(MapError::OutOfBounds);
        }
        let mode = FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&self.fd, mode, self.start + offset as u64, len as u64)
            .map_err(os("taking room in a file"))
    }

    /// How many bytes of the file were ever written or touched, in whole pages.
    ///
    /// # Errors
    /// [`MapError::Os`] when the system does not tell.
    pub fn touched_bytes(&self) -> Result<u64, MapError> {
        /// What `st_blocks` counts in (stat(2)).
        const BLOCK_BYTES: u64 = 512;

        let stat = rustix::fs::fstat(&self.fd).map_err(os("fstat"))?;
        Ok(u64::try_from(stat.st_blocks).unwrap_or(0) * BLOCK_BYTES)
    }

    /// The first page from `start` on that was ever written or touched, if there is one; those
    /// before it are zero.
    ///
    /// # Errors
    /// [`MapError::Os`] when the system does not tell.
    pub fn next_data(&self, start: u64) -> Result<Option<u64>, MapError> {
        // Where data ends is not asked for: the system would look at all pages up to there.
        let from = self.start.saturating_add(start);
        match rustix::fs::seek(&self.fd, SeekFrom::Data(from)) {
            Ok(at) => Ok(Some(at - self.start).filter(|at| *at < self.len as u64)),
            Err(Errno::NXIO) => Ok(None),
            Err(errno) => Err(os("looking for data")(errno)),
        }
    }

    /// Maps the whole file wherever the system likes.
    ///
    /// # Errors
    /// [`MapError::Os`] when the system refuses.
    pub fn map(&self, access: Access) -> Result<Arc<SharedMemory>, MapError> {
        self.map_with(ptr::null_mut(), MapFlags::SHARED, access)
    }

    /// Maps the whole file at `address`, which nothing may occupy.
    ///
    /// # Errors
    /// [`MapError::Os`] with `EEXIST` when the range is taken.
    pub fn map_at(&self, address: usize, access: Access) -> Result<Arc<SharedMemory>, MapError> {
        let flags = MapFlags::SHARED | MapFlags::FIXED_NOREPLACE;
        let mapping = self.map_with(ptr::without_provenance_mut(address), flags, access)?;
        if mapping.address() == address {
            return Ok(mapping);
        }
        // Kernels before 4.17 take the address as a mere hint.
        Err(MapError::Os {
            what: "mapping at a fixed address",
            source: io::ErrorKind::AddrInUse.into(),
        })
    }

    /// Maps the whole file over a reservation of the same length.
    ///
    /// # Errors
    /// [`MapError::Size`] when the lengths differ, [`MapError::Os`] when the system refuses.
    pub fn map_over(
        &self,
        reservation: Reservation,
        access: Access,
    ) -> Result<Arc<SharedMemory>, MapError> {
        if reservation.len() != self.len {
            return Err(MapError::Size(self.len as u64));
        }
        let address = ptr::without_provenance_mut(reservation.address());
        let mapping = self.map_with(address, MapFlags::SHARED | MapFlags::FIXED, access)?;
        // The new mapping took the reservation's place and unmaps the range itself.
        core::mem::forget(reservation);
        Ok(mapping)
    }

    /// `MapFlags::FIXED` only with an address whose range the caller owns.
    fn map_with(
        &self,
        address: *mut c_void,
        flags: MapFlags,
        access: Access,
    ) -> Result<Arc<SharedMemory>, MapError> {
        // SAFETY: a null address or `FIXED_NOREPLACE` replaces nothing; `FIXED` comes from
        // `map_over` alone, which owns the reservation that it replaces.
        let base = unsafe {
            rustix::mm::mmap(address, self.len, access.prot(), flags, &self.fd, self.start)
        };
        let mut memory = SharedMemory::adopt(base, self.len, access)?;
        memory.bell.clone_from(&self.bell);
        Ok(Arc::new(memory))
    }
}

impl AsFd for MemoryFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl From<MemoryFile> for OwnedFd {
    fn from(file: MemoryFile) -> Self {
        file.fd
    }
}

/// What a mapping may be used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Loads only: a store would fault, so no writable view is given out.
    ReadOnly,
    /// Loads and stores.
    ReadWrite,
}

impl Access {
    fn prot(self) -> ProtFlags {
        match self {
            Self::ReadOnly => ProtFlags::READ,
            Self::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
        }
    }
}

/// A mapping that other processes may share; unmapped when the last view of it goes.
pub struct SharedMemory {
    base: NonNull<u8>,
    len: usize,
    access: Access,
    bell: Option<Arc<Bell>>,
}

// SAFETY: the mapping belongs to the process, not to a thread; its bytes are reached through
// atomics or copies only.
unsafe impl Send for SharedMemory {}
// SAFETY: as above; no method hands out a plain reference into the mapping.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// Shared anonymous memory of `len` bytes (rounded up to pages), for one process and its
    /// children.
    ///
    /// # Errors
    /// [`MapError::Size`] for zero, [`MapError::Os`] when the system refuses.
    pub fn anonymous(len: usize) -> Result<Arc<Self>, MapError> {
        let rounded = len.checked_next_multiple_of(PAGE).filter(|len| *len > 0);
        let rounded = rounded.ok_or(MapError::Size(len as u64))?;
        let base = pages::anonymous(rounded, MapFlags::SHARED);
        Self::adopt(base, rounded, Access::ReadWrite).map(Arc::new)
    }

    fn adopt(
        base: rustix::io::Result<*mut c_void>,
        len: usize,
        access: Access,
    ) -> Result<Self, MapError> {
        let base = base.map_err(os("mmap"))?;
        let base = NonNull::new(base.cast::<u8>()).ok_or_else(|| no_address("mmap"))?;
        Ok(Self { base, len, access, bell: None })
    }

    /// The size in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never: a mapping has at least a page.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How sleepers on another kernel are woken, if one maps it too.
    pub(crate) fn bell(&self) -> Option<&Bell> {
        self.bell.as_deref()
    }

    /// Whether the peer is on another kernel: processors and threads have other numbers there.
    pub(crate) fn is_lent(&self) -> bool {
        self.bell().is_some_and(|bell| bell.wait_page().is_some())
    }

    /// What the mapping may be used for.
    #[must_use]
    pub fn access(&self) -> Access {
        self.access
    }

    /// The address of its first byte in this process.
    #[must_use]
    pub fn address(&self) -> usize {
        self.base.as_ptr().addr()
    }

    /// Its first byte. Whoever dereferences it must expect concurrent writers.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// The bytes `offset..offset + len`, to copy in and out.
    ///
    /// # Errors
    /// [`MapError::OutOfBounds`] when they do not all lie inside.
    pub fn span(self: &Arc<Self>, offset: usize, len: usize) -> Result<SharedSpan, MapError> {
        SharedSpan::new(self, offset, len)
    }

    /// `count` atomic words from byte `offset` on.
    ///
    /// # Errors
    /// [`MapError`] when they do not lie inside, aligned, in a writable mapping.
    pub fn cells<T: Word>(
        self: &Arc<Self>,
        offset: usize,
        count: usize,
    ) -> Result<Cells<T>, MapError> {
        Cells::new(self, offset, count)
    }

    /// The atomic word at byte `offset`.
    ///
    /// # Errors
    /// [`MapError`] when it does not lie inside, aligned, in a writable mapping.
    pub fn cell<T: Word>(self: &Arc<Self>, offset: usize) -> Result<Cell<T>, MapError> {
        Cell::new(self, offset)
    }

    /// `count` atomic words from byte `offset` on, to load only.
    ///
    /// # Errors
    /// [`MapError`] when they do not lie inside, aligned.
    pub fn read_cells<T: Word>(
        self: &Arc<Self>,
        offset: usize,
        count: usize,
    ) -> Result<ReadCells<T>, MapError> {
        ReadCells::new(self, offset, count)
    }

    /// Gives whole pages back to the system; they read as zero afterwards, in every process.
    ///
    /// # Errors
    /// [`MapError::OutOfBounds`], or [`MapError::Os`] when the range is not of whole pages.
    pub fn discard(&self, offset: usize, len: usize) -> Result<(), MapError> {
        self.advise(offset, len, Advice::LinuxRemove, "discarding pages")
    }

    /// Keeps the mapping out of children made by `fork`.
    ///
    /// # Errors
    /// [`MapError::Os`] when the system refuses.
    pub fn keep_from_children(&self) -> Result<(), MapError> {
        self.advise(0, self.len, Advice::LinuxDontFork, "keeping a mapping from children")
    }

    fn advise(
        &self,
        offset: usize,
        len: usize,
        advice: Advice,
        what: &'static str,
    ) -> Result<(), MapError> {
        let first = self.checked_ptr::<u8>(offset, len)?;
        // SAFETY: the range lies inside this mapping, whose bytes are only reached through atomics
        // and copies, so zeroing them is a write like a peer's.
        unsafe { pages::advise(first.as_ptr().cast(), len, advice) }.map_err(os(what))
    }

    /// A pointer to `count` values of `T` from byte `offset` on, checked to lie inside and aligned.
    pub(crate) fn checked_ptr<T>(
        &self,
        offset: usize,
        count: usize,
    ) -> Result<NonNull<T>, MapError> {
        let bytes = size_of::<T>().checked_mul(count).ok_or(MapError::OutOfBounds)?;
        let end = offset.checked_add(bytes).ok_or(MapError::OutOfBounds)?;
        if end > self.len {
            return Err(MapError::OutOfBounds);
        }
        // SAFETY: `offset <= end <= len`, so the pointer stays inside the mapping or just behind
        // it.
        let first = unsafe { self.base.add(offset) }.cast::<T>();
        if first.is_aligned() { Ok(first) } else { Err(MapError::Misaligned) }
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: the range was mapped for this value, and every view holds an `Arc` of it, so none
        // is left.
        unsafe { pages::unmap(self.base.as_ptr().cast(), self.len) };
    }
}

impl fmt::Debug for SharedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedMemory")
            .field("address", &self.base)
            .field("len", &self.len)
            .field("access", &self.access)
            .finish()
    }
}

/// A range of addresses that nothing else in the process gets and that faults when touched.
#[derive(Debug)]
pub struct Reservation {
    base: NonNull<c_void>,
    len: usize,
}

// SAFETY: address space belongs to the process, not to a thread.
unsafe impl Send for Reservation {}
// SAFETY: a reservation has no accessible bytes.
unsafe impl Sync for Reservation {}

impl Reservation {
    /// Reserves `len` bytes (rounded up to pages) wherever the system likes.
    ///
    /// # Errors
    /// [`MapError`] when the system refuses.
    pub fn anywhere(len: usize) -> Result<Self, MapError> {
        Self::reserve(0, len, MapFlags::empty())
    }

    /// Reserves `len` bytes at `address`, which nothing may occupy.
    ///
    /// # Errors
    /// [`MapError::Os`] when the range is taken.
    pub fn at(address: usize, len: usize) -> Result<Self, MapError> {
        let reservation = Self::reserve(address, len, MapFlags::FIXED_NOREPLACE)?;
        if reservation.address() == address {
            return Ok(reservation);
        }
        Err(MapError::Os { what: "reserving addresses", source: io::ErrorKind::AddrInUse.into() })
    }

    /// Reserves `len` bytes at the first free one of `base`, `base + step`, …, trying `tries` of
    /// them.
    ///
    /// Two processes that must agree on an address search far from where the system places its own
    /// mappings.
    ///
    /// # Errors
    /// The last refusal when all are taken.
    pub fn search(base: usize, step: usize, tries: usize, len: usize) -> Result<Self, MapError> {
        let mut last = MapError::OutOfBounds;
        for i in 0..tries {
            let Some(address) = step.checked_mul(i).and_then(|x| base.checked_add(x)) else {
                break;
            };
            match Self::at(address, len) {
                Ok(reservation) => return Ok(reservation),
                Err(refusal) => last = refusal,
            }
        }
        Err(last)
    }

    fn reserve(address: usize, len: usize, placement: MapFlags) -> Result<Self, MapError> {
        let rounded = len.checked_next_multiple_of(PAGE).filter(|len| *len > 0);
        let rounded = rounded.ok_or(MapError::Size(len as u64))?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | placement;
        let address = ptr::without_provenance_mut(address);
        // SAFETY: neither a null address nor `FIXED_NOREPLACE` replaces a mapping.
        let base =
            unsafe { rustix::mm::mmap_anonymous(address, rounded, ProtFlags::empty(), flags) };
        let base = NonNull::new(base.map_err(os("reserving addresses"))?)
            .ok_or_else(|| no_address("reserving addresses"))?;
        Ok(Self { base, len: rounded })
    }

    /// The first reserved address.
    #[must_use]
    pub fn address(&self) -> usize {
        self.base.as_ptr().addr()
    }

    /// The size in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never: a reservation has at least a page.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // SAFETY: the range was reserved by this value and never handed out as memory.
        unsafe { pages::unmap(self.base.as_ptr(), self.len) };
    }
}
