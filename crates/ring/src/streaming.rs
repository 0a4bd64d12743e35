//! Copies that leave the caches alone.
//!
//! A large copy that is written in pieces of cache size fetches every line it is about to overwrite
//! and evicts what others need: a third of the memory's bandwidth for nothing. Non-temporal stores
//! write around the caches, as a C library's `memcpy` does for a copy that is large in one call.

/// Copies `len` bytes around the caches where the processor can.
///
/// # Safety
/// As [`std::ptr::copy_nonoverlapping`]; concurrent writers change only which bytes arrive.
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    use std::ptr::copy_nonoverlapping;

    /// A cache line, which four stores fill.
    const LINE: usize = 64;
    let head = to.align_offset(LINE).min(len);
    let lines = (len - head) / LINE;
    let tail = head + lines * LINE;
    // SAFETY: `head <= len`.
    unsafe { copy_nonoverlapping(from, to, head) };
    for line in 0..lines {
        for part in 0..LINE / 16 {
            let at = head + line * LINE + part * 16;
            // SAFETY: `at + 16 <= tail <= len`.
            let source = unsafe { from.add(at) }.cast::<__m128i>();
            // SAFETY: 16 readable bytes, at any alignment.
            let bytes = unsafe { _mm_loadu_si128(source) };
            // SAFETY: `at + 16 <= tail <= len`.
            let target = unsafe { to.add(at) }.cast::<__m128i>();
            // SAFETY: 16 writable bytes; `head` aligned them to the line.
            unsafe { _mm_stream_si128(target, bytes) };
        }
    }
    // SAFETY: every x86-64 processor has it. Later stores of this thread, such as the word that
    // says that the copy is done, must not overtake the ones above.
    unsafe { _mm_sfence() };
    // SAFETY: `tail <= len`.
    let source = unsafe { from.add(tail) };
    // SAFETY: `tail <= len`.
    let target = unsafe { to.add(tail) };
    // SAFETY: `len - tail` bytes are left on both sides.
    unsafe { copy_nonoverlapping(source, target, len - tail) };
}

/// The same where no such stores are known.
///
/// # Safety
/// As [`std::ptr::copy_nonoverlapping`].
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: as this function's.
    unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_length_and_alignment_arrives_and_nothing_else() {
        let source: Vec<u8> = (0..1000_u32).map(|at| (at % 251) as u8 + 1).collect();
        for len in [0, 1, 15, 16, 63, 64, 65, 127, 128, 500] {
            for (from, to) in [(0, 0), (1, 0), (0, 1), (7, 60), (64, 3), (5, 63)] {
                let mut target = vec![0_u8; 700];
                let (read, written) = (&source[from..from + len], &mut target[to..to + len]);
                // SAFETY: both slices have `len` bytes.
                unsafe { super::copy(read.as_ptr(), written.as_mut_ptr(), len) };
                assert_eq!(target[to..to + len], source[from..from + len], "{from} {to} {len}");
                assert!(target[..to].iter().chain(&target[to + len..]).all(|byte| *byte == 0));
            }
        }
    }
}
