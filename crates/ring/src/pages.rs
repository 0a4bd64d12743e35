//! Pages of the process. Under Miri, which has no mappings to share, they come from the allocator,
//! so that everything above is checked all the same.

#[cfg(miri)]
pub(crate) use modelled::{advise, anonymous, unmap};
#[cfg(not(miri))]
pub(crate) use system::{advise, anonymous, unmap};

#[cfg(not(miri))]
mod system {
    use core::ffi::c_void;
    use core::ptr;

    use rustix::io::Result;
    use rustix::mm::{Advice, MapFlags, ProtFlags};

    /// Maps `len` zeroed bytes, writable, wherever the system likes.
    pub(crate) fn anonymous(len: usize, sharing: MapFlags) -> Result<*mut c_void> {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a null address replaces no mapping.
        unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), len, prot, sharing) }
    }

    /// # Safety
    /// The caller owns exactly these pages, and nothing refers to them any more.
    pub(crate) unsafe fn unmap(base: *mut c_void, len: usize) {
        // SAFETY: passed on to the caller.
        let unmapped = unsafe { rustix::mm::munmap(base, len) };
        debug_assert!(unmapped.is_ok(), "munmap of own pages failed");
    }

    /// # Safety
    /// The caller owns these pages, and only reaches them in ways that allow their bytes to change.
    pub(crate) unsafe fn advise(base: *mut c_void, len: usize, advice: Advice) -> Result<()> {
        // SAFETY: passed on to the caller.
        unsafe { rustix::mm::madvise(base, len, advice) }
    }
}

#[cfg(miri)]
mod modelled {
    use core::alloc::Layout;
    use core::ffi::c_void;

    use rustix::io::{Errno, Result};
    use rustix::mm::{Advice, MapFlags};

    use crate::map::PAGE;

    pub(crate) fn anonymous(len: usize, _sharing: MapFlags) -> Result<*mut c_void> {
        let layout = Layout::from_size_align(len, PAGE).map_err(|_| Errno::INVAL)?;
        // SAFETY: the callers ask for at least a page.
        Ok(unsafe { std::alloc::alloc_zeroed(layout) }.cast())
    }

    /// # Safety
    /// As for the system's.
    pub(crate) unsafe fn unmap(base: *mut c_void, len: usize) {
        let Ok(layout) = Layout::from_size_align(len, PAGE) else { return };
        // SAFETY: only `anonymous` makes pages here, with this layout.
        unsafe { std::alloc::dealloc(base.cast(), layout) };
    }

    /// # Safety
    /// As for the system's.
    pub(crate) unsafe fn advise(_base: *mut c_void, _len: usize, _advice: Advice) -> Result<()> {
        Ok(())
    }
}
