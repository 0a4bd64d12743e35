//! Arguments of the C border as safe values.
//!
//! The exports turn every raw pointer into one of these types, trusting the caller for exactly what
//! the C API demands of it: that a pointer is null or good for its direction and length. The bodies
//! behind are safe Rust, and a null pointer becomes `CUDA_ERROR_INVALID_VALUE` when it is opened.

use core::ffi::{CStr, c_char, c_void};

use weft_wire::Status;

use crate::abi::CUstream;

/// What an export makes of one C argument of type `C`.
pub(crate) trait Arg<C> {
    /// Takes the argument.
    ///
    /// # Safety
    /// A pointer is null or valid for its direction and for the length that the call states, and
    /// stays so until the call returns.
    unsafe fn from_c(raw: C) -> Self;
}

/// Values go through as they are.
impl<T> Arg<T> for T {
    unsafe fn from_c(raw: T) -> Self {
        raw
    }
}

/// Where the caller wants an answer.
#[derive(Debug)]
pub(crate) struct Out<T>(*mut T);

impl<T> Arg<*mut T> for Out<T> {
    unsafe fn from_c(raw: *mut T) -> Self {
        Self(raw)
    }
}

impl<T: Copy> Out<T> {
    /// The place, or an error when the caller gave none.
    pub(crate) fn required(self) -> Result<Place<T>, Status> {
        self.optional().ok_or(Status::INVALID_VALUE)
    }

    /// The place if the caller gave one.
    pub(crate) fn optional(self) -> Option<Place<T>> {
        (!self.0.is_null()).then_some(Place(self.0))
    }

    /// Stores the answer if the caller wants it.
    pub(crate) fn set_if_wanted(self, value: T) {
        if let Some(place) = self.optional() {
            place.set(value);
        }
    }

    /// A place for up to `len` values; null is fine for none.
    pub(crate) fn slice(self, len: usize) -> Result<Places<T>, Status> {
        if self.0.is_null() && len != 0 {
            return Err(Status::INVALID_VALUE);
        }
        Ok(Places { start: self.0, len })
    }
}

impl<T> Out<T> {
    /// A place of this library.
    pub(crate) fn to(place: &mut T) -> Self {
        Self(place)
    }

    /// An answer that nobody wants.
    pub(crate) fn nowhere() -> Self {
        Self(core::ptr::null_mut())
    }

    /// Whether the caller passed nothing.
    pub(crate) fn is_null(&self) -> bool {
        self.0.is_null()
    }
}

impl<T> From<Place<T>> for Out<T> {
    fn from(place: Place<T>) -> Self {
        Self(place.0)
    }
}

/// A place for one answer, known not to be null.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place<T>(*mut T);

impl<T: Copy> Place<T> {
    /// Stores the answer.
    pub(crate) fn set(self, value: T) {
        // SAFETY: not null (`Out::optional`), and `Arg::from_c` was promised a writable place.
        unsafe { self.0.write_unaligned(value) }
    }

    /// Reads what the caller left there (in-out parameters).
    pub(crate) fn value(self) -> T {
        // SAFETY: not null (`Out::optional`), and in-out parameters are readable by the C API.
        unsafe { self.0.read_unaligned() }
    }
}

/// A place for several answers.
#[derive(Debug)]
pub(crate) struct Places<T> {
    start: *mut T,
    len: usize,
}

impl<T: Copy> Places<T> {
    /// Stores as many values as fit and says how many that were.
    pub(crate) fn fill(&self, values: impl IntoIterator<Item = T>) -> usize {
        let mut stored = 0;
        for (index, value) in values.into_iter().take(self.len).enumerate() {
            // SAFETY: `index < len`, and the caller promised `len` places.
            let place = unsafe { self.start.add(index) };
            Place(place).set(value);
            stored = index + 1;
        }
        stored
    }
}

/// What the caller wants read.
#[derive(Debug)]
pub(crate) struct In<T>(*const T);

impl<T> Arg<*const T> for In<T> {
    unsafe fn from_c(raw: *const T) -> Self {
        Self(raw)
    }
}

impl<T> Arg<*mut T> for In<T> {
    unsafe fn from_c(raw: *mut T) -> Self {
        Self(raw.cast_const())
    }
}

impl<T: Copy> In<T> {
    /// Wraps a pointer found inside a struct that the caller passed.
    ///
    /// # Safety
    /// As for [`Arg::from_c`].
    pub(crate) unsafe fn nested(raw: *const T) -> Self {
        Self(raw)
    }

    /// The value, or an error when the pointer is null.
    pub(crate) fn required(&self) -> Result<T, Status> {
        self.optional().ok_or(Status::INVALID_VALUE)
    }

    /// The value if there is one.
    pub(crate) fn optional(&self) -> Option<T> {
        if self.0.is_null() {
            return None;
        }
        // SAFETY: not null, and `Arg::from_c` was promised a readable value.
        Some(unsafe { self.0.read_unaligned() })
    }

    /// The first `len` values; null is fine for none.
    pub(crate) fn slice(&self, len: usize) -> Result<&[T], Status> {
        if len == 0 {
            return Ok(&[]);
        }
        if self.0.is_null() || !self.0.is_aligned() || len > isize::MAX as usize / size_of::<T>() {
            return Err(Status::INVALID_VALUE);
        }
        // SAFETY: not null, aligned, not larger than an address space, readable by the caller's
        // promise in `Arg::from_c`.
        Ok(unsafe { core::slice::from_raw_parts(self.0, len) })
    }
}

impl<T> In<T> {
    /// Whether the caller passed nothing.
    pub(crate) fn is_null(&self) -> bool {
        self.0.is_null()
    }

    /// The pointer itself.
    pub(crate) fn raw(&self) -> *const T {
        self.0
    }
}

/// A C string.
#[derive(Debug)]
pub(crate) struct Text(*const c_char);

impl Arg<*const c_char> for Text {
    unsafe fn from_c(raw: *const c_char) -> Self {
        Self(raw)
    }
}

impl Text {
    /// The string, or an error when the pointer is null.
    pub(crate) fn required(&self) -> Result<&CStr, Status> {
        if self.0.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        // SAFETY: not null, and `Arg::from_c` was promised a terminated string.
        Ok(unsafe { CStr::from_ptr(self.0) })
    }

    /// The same as UTF-8.
    pub(crate) fn utf8(&self) -> Result<&str, Status> {
        self.required()?.to_str().map_err(|_| Status::INVALID_VALUE)
    }
}

/// Host memory that a copy reads.
#[derive(Debug)]
pub(crate) struct HostSource(*const c_void);

impl Arg<*const c_void> for HostSource {
    unsafe fn from_c(raw: *const c_void) -> Self {
        Self(raw)
    }
}

impl Arg<*mut c_void> for HostSource {
    unsafe fn from_c(raw: *mut c_void) -> Self {
        Self(raw.cast_const())
    }
}

impl HostSource {
    /// Host memory by its address, as the calls with unified addresses name it.
    ///
    /// # Safety
    /// As for [`Arg::from_c`].
    pub(crate) unsafe fn at(address: u64) -> Self {
        let address = usize::try_from(address).unwrap_or(0);
        Self(core::ptr::with_exposed_provenance(address))
    }

    /// The bytes to read.
    pub(crate) fn bytes(&self, len: usize) -> Result<&[u8], Status> {
        In(self.0.cast::<u8>()).leak(len)
    }
}

/// Host memory that a copy writes.
#[derive(Debug)]
pub(crate) struct HostTarget(*mut c_void);

impl Arg<*mut c_void> for HostTarget {
    unsafe fn from_c(raw: *mut c_void) -> Self {
        Self(raw)
    }
}

impl HostTarget {
    /// Host memory by its address, as the calls with unified addresses name it.
    ///
    /// # Safety
    /// As for [`Arg::from_c`].
    pub(crate) unsafe fn at(address: u64) -> Self {
        let address = usize::try_from(address).unwrap_or(0);
        Self(core::ptr::with_exposed_provenance_mut(address))
    }

    /// The bytes to write.
    pub(crate) fn bytes(&mut self, len: usize) -> Result<&mut [u8], Status> {
        if len == 0 {
            return Ok(&mut []);
        }
        if self.0.is_null() || isize::try_from(len).is_err() {
            return Err(Status::INVALID_VALUE);
        }
        // SAFETY: not null, not larger than an address space, writable and not read by others until
        // the call returns, by the caller's promise in `Arg::from_c`.
        Ok(unsafe { core::slice::from_raw_parts_mut(self.0.cast::<u8>(), len) })
    }

    /// Stores one value at the start, for attributes whose type depends on their number.
    pub(crate) fn store<T: Copy>(&self, value: T) -> Result<(), Status> {
        Out(self.0.cast::<T>()).required()?.set(value);
        Ok(())
    }

    /// Reads one value from the start, for attributes whose type depends on their number.
    pub(crate) fn load<T: Copy>(&self) -> Result<T, Status> {
        Ok(Out(self.0.cast::<T>()).required()?.value())
    }
}

impl In<u8> {
    fn leak<'a>(&self, len: usize) -> Result<&'a [u8], Status> {
        if len == 0 {
            return Ok(&[]);
        }
        if self.0.is_null() || isize::try_from(len).is_err() {
            return Err(Status::INVALID_VALUE);
        }
        // SAFETY: not null, not larger than an address space, readable until the call returns by
        // the caller's promise in `Arg::from_c`; the callers bound the lifetime by their own.
        Ok(unsafe { core::slice::from_raw_parts(self.0, len) })
    }
}

/// Which default stream the called spelling means by a null stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DefaultStream {
    /// The context's legacy stream.
    Legacy,
    /// The calling thread's own.
    PerThread,
}

impl DefaultStream {
    /// The stream that the application means by `stream`.
    pub(crate) fn named(self, stream: CUstream) -> CUstream {
        if stream.is_null() { self.stream() } else { stream }
    }

    /// The default stream itself, for calls without a stream parameter.
    pub(crate) fn stream(self) -> CUstream {
        match self {
            Self::Legacy => CUstream::LEGACY,
            Self::PerThread => CUstream::PER_THREAD,
        }
    }
}
