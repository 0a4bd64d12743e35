//! Bytes on their way into a port that may be full.

use std::io;
use std::os::fd::AsFd;

use rustix::io::Errno;

/// More than this waits for nobody: who has so much to say hears no more until it is said.
const BYTES_MAX: usize = 1 << 20;

/// Bytes that are not written yet.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    bytes: Vec<u8>,
    written: usize,
}

impl Outbox {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        // A port that always takes a part and never all would have everything kept for good.
        if self.written > BYTES_MAX {
            self.bytes.drain(..self.written);
            self.written = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Whether what would be said next has to wait.
    pub(crate) fn is_full(&self) -> bool {
        self.bytes.len() - self.written > BYTES_MAX
    }

    /// What the port has not taken yet.
    pub(crate) fn unwritten(&self) -> &[u8] {
        &self.bytes[self.written..]
    }

    /// The port took so many bytes of that.
    pub(crate) fn handle_written(&mut self, count: usize) {
        self.written = (self.written + count).min(self.bytes.len());
        if self.written == self.bytes.len() {
            self.bytes.clear();
            self.written = 0;
        }
    }

    /// Writes as much as the port takes now.
    pub(crate) fn flush(&mut self, port: impl AsFd) -> io::Result<()> {
        while !self.is_empty() {
            match rustix::io::write(&port, self.unwritten()) {
                Ok(count) => self.handle_written(count),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_slow_port_has_taken_is_not_kept() {
        let mut out = Outbox::default();
        let frame = [7; 4096];
        out.push(&frame);
        for _ in 0..16 * BYTES_MAX / frame.len() {
            out.push(&frame);
            out.handle_written(frame.len());
            assert_eq!(out.unwritten(), frame);
        }
        assert!(out.bytes.capacity() <= 4 * BYTES_MAX, "{} bytes", out.bytes.capacity());
    }
}
