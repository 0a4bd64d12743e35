//! What kernels print: a driver writes it to its process's standard output, when somebody waits.

use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, SealFlags, SeekFrom};
use rustix::io::Errno;

/// Bytes that are kept between two looks, as many as the driver's own buffer has. A tenant's format
/// makes more of a few bytes; what is beyond is not written.
const BYTES: u64 = 1 << 20;

/// The process's standard output, caught.
#[derive(Debug)]
pub(super) struct Printed {
    file: OwnedFd,
}

impl Printed {
    /// From now on what this process prints is kept in memory.
    pub(super) fn catch() -> Result<Self, Errno> {
        let printed = Self::new()?;
        rustix::stdio::dup2_stdout(&printed.file)?;
        Ok(printed)
    }

    fn new() -> Result<Self, Errno> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("weft-printed", flags)?;
        rustix::fs::ftruncate(&file, BYTES)?;
        rustix::fs::fcntl_add_seals(&file, SealFlags::GROW | SealFlags::SHRINK)?;
        Ok(Self { file })
    }

    /// What was printed since the last call.
    pub(super) fn take(&self) -> Vec<u8> {
        // SAFETY: null means all streams of the C library, through which a driver prints.
        let _ = unsafe { libc::fflush(std::ptr::null_mut()) };
        self.read().unwrap_or_else(|error| {
            tracing::debug!(%error, "what kernels printed is lost");
            Vec::new()
        })
    }

    fn read(&self) -> Result<Vec<u8>, Errno> {
        let end = rustix::fs::seek(&self.file, SeekFrom::Current(0))?;
        let mut text = vec![0; usize::try_from(end.min(BYTES)).unwrap_or(0)];
        if text.is_empty() {
            return Ok(text);
        }
        let read = rustix::io::pread(&self.file, &mut *text, 0)?;
        text.truncate(read);
        // The next begins at the file's start again: both descriptors have one place in it.
        rustix::fs::seek(&self.file, SeekFrom::Start(0))?;
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_beyond_the_bound_is_lost_and_the_next_is_kept() {
        let printed = Printed::new().unwrap();
        let write = |bytes: &[u8]| {
            let (mut rest, mut failed) = (bytes, false);
            while !rest.is_empty() && !failed {
                match rustix::io::write(&printed.file, rest) {
                    Ok(count) => rest = &rest[count..],
                    Err(_) => failed = true,
                }
            }
            failed
        };
        assert!(!write(b"hello"));
        assert_eq!(printed.read().unwrap(), b"hello");
        assert_eq!(printed.read().unwrap(), b"");
        assert!(write(&vec![b'a'; 3 << 20]), "a tenant's padding takes no more memory");
        assert!(printed.read().unwrap().len() <= 1 << 20);
        assert!(!write(b"again"));
        assert_eq!(printed.read().unwrap(), b"again");
    }
}
