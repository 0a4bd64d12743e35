//! What kernels print: a driver writes it to its process's standard output, when somebody waits.

use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, SeekFrom};
use rustix::io::Errno;

/// Most bytes that are taken at a time: the driver's own buffer has no more.
const BYTES_MAX: usize = 1 << 20;

/// The process's standard output, caught.
#[derive(Debug)]
pub(super) struct Printed {
    file: OwnedFd,
}

impl Printed {
    /// From now on what this process prints is kept in memory.
    pub(super) fn catch() -> Result<Self, Errno> {
        let file = rustix::fs::memfd_create("weft-printed", MemfdFlags::CLOEXEC)?;
        rustix::stdio::dup2_stdout(&file)?;
        Ok(Self { file })
    }

    /// What was printed since the last call; the first of it if that is too much.
    pub(super) fn take(&self) -> Vec<u8> {
        // SAFETY: null means all streams of the C library, through which a driver prints.
        let _ = unsafe { libc::fflush(std::ptr::null_mut()) };
        self.read().unwrap_or_else(|error| {
            tracing::debug!(%error, "what kernels printed is lost");
            Vec::new()
        })
    }

    fn read(&self) -> Result<Vec<u8>, Errno> {
        let bytes = usize::try_from(rustix::fs::seek(&self.file, SeekFrom::Current(0))?);
        let mut text = vec![0; bytes.unwrap_or(BYTES_MAX).min(BYTES_MAX)];
        if text.is_empty() {
            return Ok(text);
        }
        let read = rustix::io::pread(&self.file, &mut *text, 0)?;
        text.truncate(read);
        // The next begins at the file's start again: both descriptors have one place in it.
        rustix::fs::seek(&self.file, SeekFrom::Start(0))?;
        rustix::fs::ftruncate(&self.file, 0)?;
        Ok(text)
    }
}
