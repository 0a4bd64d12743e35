//! What kernels print, until the program asks for it.

use std::collections::VecDeque;

use weft_device::Device;
use weft_wire::{Status, progress};

use crate::output::{Caller, Output};
use crate::session::{REPLY_BYTES_MAX, Session};

/// Bytes kept: CUDA's default for `CU_LIMIT_PRINTF_FIFO_SIZE`. Newer output replaces the oldest, as
/// there.
const KEPT_BYTES: usize = 1 << 20;

/// Output of kernels.
#[derive(Debug, Default)]
pub(crate) struct Printed {
    bytes: VecDeque<u8>,
    /// Bytes printed ever.
    total: u64,
}

impl Printed {
    fn add(&mut self, bytes: &[u8]) {
        self.total = self.total.saturating_add(bytes.len() as u64);
        self.bytes.extend(bytes);
        self.bytes.drain(..self.bytes.len().saturating_sub(KEPT_BYTES));
    }

    fn take(&mut self, most: usize) -> Vec<u8> {
        self.bytes.drain(..self.bytes.len().min(most)).collect()
    }
}

impl<D: Device> Session<D> {
    /// Takes the device's output, and tells the client that there is some, before the client can
    /// see that the kernel has ended.
    pub(crate) fn collect_output(&mut self, out: &mut dyn Output) {
        let bytes = self.device.take_output();
        if !bytes.is_empty() {
            self.printed.add(&bytes);
            out.notice(progress::NOTICE_PRINTED, self.printed.total);
        }
    }

    pub(crate) fn take_output(&mut self, caller: Caller, out: &mut dyn Output) {
        let bytes = self.printed.take(REPLY_BYTES_MAX);
        out.reply(caller, Status::SUCCESS, &bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_output_is_kept() {
        let mut printed = Printed::default();
        printed.add(&vec![b'a'; KEPT_BYTES]);
        printed.add(b"xyz");
        assert_eq!(printed.total, KEPT_BYTES as u64 + 3);
        let all = printed.take(usize::MAX);
        assert_eq!((all.len(), all.ends_with(b"aaxyz")), (KEPT_BYTES, true));
        printed.add(b"hello");
        assert_eq!((printed.take(2), printed.take(9)), (b"he".to_vec(), b"llo".to_vec()));
    }
}
