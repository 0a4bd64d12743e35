//! Options of the just-in-time compiler: log buffers and the limit of registers are served, the
//! others are accepted.

use core::ffi::c_void;

use weft_wire::Status;

use crate::args::{Arg as _, HostTarget, In, Out, Place};

/// `CU_JIT_MAX_REGISTERS`.
const MAX_REGISTERS: u32 = 0;
/// `CU_JIT_WALL_TIME`.
const WALL_TIME: u32 = 2;
/// `CU_JIT_INFO_LOG_BUFFER`.
const INFO_LOG_BUFFER: u32 = 3;
/// `CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES`.
const INFO_LOG_BUFFER_SIZE_BYTES: u32 = 4;
/// `CU_JIT_ERROR_LOG_BUFFER`.
const ERROR_LOG_BUFFER: u32 = 5;
/// `CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES`.
const ERROR_LOG_BUFFER_SIZE_BYTES: u32 = 6;
/// Most options of one call: the header has fewer than a hundred.
const OPTIONS_MAX: usize = 256;

/// A log that the application wants to read.
#[derive(Debug, Default)]
struct Log {
    buffer: Option<HostTarget>,
    bytes: usize,
    /// Where the application looks for how much was written.
    written: Option<Place<*mut c_void>>,
}

impl Log {
    /// Writes as much of `text` as fits, terminated.
    fn write(&mut self, text: &str) {
        let mut written = 0;
        if let Some(buffer) = self.buffer.as_mut().filter(|_| self.bytes > 0)
            && let Ok(target) = buffer.bytes(self.bytes)
        {
            let len = text.floor_char_boundary(self.bytes - 1);
            for (place, byte) in target.iter_mut().zip(text.bytes().take(len).chain([0])) {
                *place = byte;
            }
            written = len;
        }
        if let Some(place) = self.written {
            place.set(core::ptr::without_provenance_mut(written));
        }
    }
}

/// The options of one call.
#[derive(Debug, Default)]
pub(crate) struct Options {
    info: Log,
    error: Log,
    wall_time: Option<Place<*mut c_void>>,
    /// Most registers of a thread.
    pub(crate) registers: Option<u32>,
}

// SAFETY: the application keeps the places valid until the call, or the link, that got them ends.
unsafe impl Send for Options {}

impl Options {
    /// Reads `count` options and their values.
    pub(crate) fn read(
        count: u32,
        options: &In<u32>,
        values: &In<*mut c_void>,
    ) -> Result<Self, Status> {
        let count = usize::try_from(count).map_err(|_| Status::INVALID_VALUE)?;
        if count > OPTIONS_MAX {
            return Err(Status::INVALID_VALUE);
        }
        let (names, given) = (options.slice(count)?, values.slice(count)?);
        let mut read = Self::default();
        for (index, (name, value)) in names.iter().zip(given).enumerate() {
            let place = values.place(index);
            // SAFETY: a log buffer is writable for the size that its own option tells.
            let buffer = || Some(unsafe { HostTarget::from_c(*value) });
            match *name {
                MAX_REGISTERS => read.registers = u32::try_from(low_word(*value)).ok(),
                WALL_TIME => read.wall_time = place,
                INFO_LOG_BUFFER => read.info.buffer = buffer(),
                ERROR_LOG_BUFFER => read.error.buffer = buffer(),
                INFO_LOG_BUFFER_SIZE_BYTES => {
                    (read.info.bytes, read.info.written) = (low_word(*value), place);
                }
                ERROR_LOG_BUFFER_SIZE_BYTES => {
                    (read.error.bytes, read.error.written) = (low_word(*value), place);
                }
                _ => {}
            }
        }
        Ok(read)
    }

    /// Fills the logs after a compilation that took no time worth telling.
    pub(crate) fn finish(&mut self, error: Option<&str>) {
        self.info.write("");
        self.error.write(error.unwrap_or(""));
        if let Some(place) = self.wall_time {
            place.set(core::ptr::null_mut());
        }
    }
}

/// Sizes are passed as `unsigned int` in a pointer's bytes; the upper half may hold anything.
fn low_word(value: *mut c_void) -> usize {
    value.addr() & 0xffff_ffff
}

impl In<*mut c_void> {
    /// The place of one value: the driver writes some options back.
    fn place(&self, index: usize) -> Option<Place<*mut c_void>> {
        // SAFETY: `index` is below the count for which the list was read.
        let place = unsafe { self.raw().add(index) };
        // SAFETY: option values are in-out by the C API.
        unsafe { Out::from_c(place.cast_mut()) }.optional()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_log_is_written_and_measured() {
        let mut buffer = [1_u8; 8];
        let names = [ERROR_LOG_BUFFER, ERROR_LOG_BUFFER_SIZE_BYTES, 7];
        let mut values: [*mut c_void; 3] = [
            buffer.as_mut_ptr().cast(),
            core::ptr::without_provenance_mut(buffer.len()),
            core::ptr::without_provenance_mut(4),
        ];
        // SAFETY: the list has three entries.
        let names: In<u32> = unsafe { In::from_c(names.as_ptr()) };
        // SAFETY: the list has three entries.
        let given: In<*mut c_void> = unsafe { In::from_c(values.as_mut_ptr()) };
        let mut options = Options::read(3, &names, &given).unwrap();
        options.finish(Some("line 3: no such thing"));
        assert_eq!(&buffer, b"line 3:\0");
        assert_eq!(values[1].addr(), 7);
    }

    #[test]
    fn options_without_a_list_are_an_error() {
        // SAFETY: null is allowed.
        let names: In<u32> = unsafe { In::from_c(core::ptr::null::<u32>()) };
        // SAFETY: null is allowed.
        let given: In<*mut c_void> = unsafe { In::from_c(core::ptr::null::<*mut c_void>()) };
        Options::read(0, &names, &given).unwrap();
        assert!(matches!(Options::read(1, &names, &given), Err(Status::INVALID_VALUE)));
    }
}
