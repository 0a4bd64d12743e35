//! Module images: how long is what an application points to.
//!
//! The driver API passes images without a length. PTX text ends at a zero byte; a cubin and a
//! fatbin tell their size in a header. The worker parses; here only the extent is found.

use core::ffi::{CStr, c_char, c_void};
use std::borrow::Cow;

use weft_wire::{Status, container};

use crate::args::Arg;

/// The first bytes of an ELF file (a cubin).
const ELF: [u8; 4] = *b"\x7fELF";
/// The first bytes of a fatbin: `0xBA55ED50`, little-endian.
const FATBIN: [u8; 4] = 0xba55_ed50_u32.to_le_bytes();
/// The first bytes of the wrapper that compilers emit around a fatbin.
const WRAPPER: [u8; 4] = 0x4662_43b1_u32.to_le_bytes();

/// Largest image that is believed.
const IMAGE_BYTES_MAX: u64 = 1 << 32;
/// Most fatbins behind one wrapper.
const FATBINS_MAX: usize = 1 << 16;

/// The header of a fatbin.
#[repr(C)]
#[derive(Clone, Copy)]
struct FatbinHeader {
    magic: [u8; 4],
    version: u16,
    header_bytes: u16,
    bytes: u64,
}

/// What compilers leave in a program's data.
#[repr(C)]
#[derive(Clone, Copy)]
struct Wrapper {
    magic: [u8; 4],
    version: u32,
    data: *const c_void,
    /// Version 1: a file name. Version 2: fatbins, the last one null.
    more: *const *const c_void,
}

/// The fields of a 64-bit ELF header that bound the file.
#[repr(C)]
#[derive(Clone, Copy)]
struct ElfHeader {
    ident: [u8; 16],
    kind: u16,
    machine: u16,
    version: u32,
    entry: u64,
    segments_offset: u64,
    sections_offset: u64,
    flags: u32,
    header_bytes: u16,
    segment_bytes: u16,
    segments: u16,
    section_bytes: u16,
    sections: u16,
    names: u16,
}

/// An image that the application points to.
#[derive(Debug)]
pub(crate) struct Image(*const c_void);

impl Arg<*const c_void> for Image {
    unsafe fn from_c(raw: *const c_void) -> Self {
        Self(raw)
    }
}

impl Image {
    /// The images: one, or several for a wrapper of linked fatbins.
    pub(crate) fn parts(&self) -> Result<Vec<&[u8]>, Status> {
        if self.0.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        if !self.begins_with(WRAPPER) {
            return Ok(vec![self.bytes()?]);
        }
        let wrapper: Wrapper = self.header();
        if wrapper.version < 2 || wrapper.more.is_null() {
            return Ok(vec![self.fatbin(wrapper.data)?]);
        }
        let mut parts = Vec::new();
        for index in 0..FATBINS_MAX {
            // SAFETY: the list of a version 2 wrapper ends with a null pointer, not yet met.
            let entry = unsafe { wrapper.more.add(index) };
            // SAFETY: `entry` lies within the list, by the line above.
            let data = unsafe { entry.read_unaligned() };
            if data.is_null() {
                return Ok(parts);
            }
            parts.push(self.fatbin(data)?);
        }
        Err(Status::INVALID_IMAGE)
    }

    /// The image as one: several become a container.
    pub(crate) fn joined(&self) -> Result<Cow<'_, [u8]>, Status> {
        let parts = self.parts()?;
        match parts[..] {
            [only] => Ok(Cow::Borrowed(only)),
            _ => Ok(Cow::Owned(container::pack(parts.into_iter()))),
        }
    }

    /// A fatbin that a wrapper points to; it lives as long as the wrapper.
    fn fatbin(&self, data: *const c_void) -> Result<&[u8], Status> {
        let fatbin = Self(data);
        if data.is_null() || !fatbin.begins_with(FATBIN) {
            return Err(Status::INVALID_IMAGE);
        }
        let len = fatbin.len()?;
        // SAFETY: the header says that `len` bytes follow, and the application owns them while it
        // owns the wrapper, whose borrow `self` is.
        Ok(unsafe { core::slice::from_raw_parts(data.cast::<u8>(), len) })
    }

    fn bytes(&self) -> Result<&[u8], Status> {
        let len = self.len()?;
        // SAFETY: the image's own header, or its terminating zero, bounds it to `len` bytes.
        Ok(unsafe { core::slice::from_raw_parts(self.0.cast::<u8>(), len) })
    }

    /// Bytes of the image; for text without its terminating zero.
    fn len(&self) -> Result<usize, Status> {
        let bytes = if self.begins_with(container::MAGIC) {
            // SAFETY: the magic promises a header of sixteen bytes.
            let header = unsafe { core::slice::from_raw_parts(self.0.cast::<u8>(), 16) };
            container::container_bytes(header)
        } else if self.begins_with(FATBIN) {
            let header: FatbinHeader = self.header();
            u64::from(header.header_bytes).checked_add(header.bytes)
        } else if self.begins_with(ELF) {
            let header: ElfHeader = self.header();
            elf_end(&header)
        } else {
            // SAFETY: neither binary magic, so by the C API a terminated text.
            let text = unsafe { CStr::from_ptr(self.0.cast::<c_char>()) };
            return Ok(text.count_bytes());
        };
        let believable = bytes.filter(|bytes| *bytes <= IMAGE_BYTES_MAX);
        believable.and_then(|bytes| usize::try_from(bytes).ok()).ok_or(Status::INVALID_IMAGE)
    }

    /// Compares byte by byte, so that nothing behind the end of a short text is read.
    fn begins_with<const N: usize>(&self, magic: [u8; N]) -> bool {
        magic.into_iter().enumerate().all(|(index, expected)| {
            // SAFETY: all bytes before `index` are non-zero, so a text goes on to `index` at least.
            let place = unsafe { self.0.cast::<u8>().add(index) };
            // SAFETY: readable by the line above.
            unsafe { place.read() == expected }
        })
    }

    /// The header behind a magic that was found.
    fn header<T: Copy>(&self) -> T {
        // SAFETY: the magic promises the header, and all headers are plain numbers and pointers.
        unsafe { self.0.cast::<T>().read_unaligned() }
    }
}

fn elf_end(header: &ElfHeader) -> Option<u64> {
    let table = |offset: u64, entry: u16, count: u16| {
        offset.checked_add(u64::from(entry) * u64::from(count))
    };
    let sections = table(header.sections_offset, header.section_bytes, header.sections)?;
    let segments = table(header.segments_offset, header.segment_bytes, header.segments)?;
    Some(sections.max(segments).max(u64::from(header.header_bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image<T>(value: &T) -> Image {
        Image(core::ptr::from_ref(value).cast())
    }

    #[test]
    fn text_ends_at_its_zero() {
        let text = *b".version 7.5\0junk";
        assert_eq!(image(&text).parts().unwrap(), [b".version 7.5"]);
        let empty = *b"\0";
        assert_eq!(image(&empty).parts().unwrap(), [b""]);
        assert_eq!(Image(core::ptr::null()).parts(), Err(Status::INVALID_VALUE));
    }

    fn fatbin() -> [u8; 20] {
        let mut bytes = [7; 20];
        bytes[..4].copy_from_slice(&FATBIN);
        bytes[4..8].copy_from_slice(&[1, 0, 16, 0]);
        bytes[8..16].copy_from_slice(&4_u64.to_le_bytes());
        bytes
    }

    #[test]
    fn a_fatbin_tells_its_size() {
        let mut bytes = fatbin();
        assert_eq!(image(&bytes).parts().unwrap(), [&bytes[..]]);
        bytes[8..16].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(image(&bytes).parts(), Err(Status::INVALID_IMAGE));
    }

    #[test]
    fn a_wrapper_leads_to_its_fatbins() {
        let bytes = fatbin();
        let data = core::ptr::from_ref(&bytes).cast::<c_void>();
        let list = [data, data, core::ptr::null()];
        let mut wrapper = Wrapper { magic: WRAPPER, version: 1, data, more: list.as_ptr() };
        assert_eq!(image(&wrapper).parts().unwrap(), [&bytes[..]]);
        wrapper.version = 2;
        assert_eq!(image(&wrapper).parts().unwrap(), [&bytes[..], &bytes[..]]);
        wrapper.version = 1;
        wrapper.data = core::ptr::null();
        assert_eq!(image(&wrapper).parts(), Err(Status::INVALID_IMAGE));
    }

    #[test]
    fn a_cubin_ends_with_its_last_table() {
        let mut bytes = [0_u8; 200];
        bytes[..4].copy_from_slice(&ELF);
        bytes[0x28..0x30].copy_from_slice(&72_u64.to_le_bytes());
        bytes[0x3a..0x3e].copy_from_slice(&[64, 0, 2, 0]);
        assert_eq!(image(&bytes).parts().unwrap()[0].len(), 200);
    }
}
