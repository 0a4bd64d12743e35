//! Bytes that are sent compressed (LZ4), where both ends were told to and it pays.
//!
//! How long a compressed frame is says something of what is in it, which TLS does not hide: so only
//! who asks for it has it (`--compress`).

use lz4_flex::block::{compress_into, decompress_into, get_maximum_output_size};

use crate::frame::PIECE;

/// Fewer bytes are sent as they are.
const LEAST: usize = 4 << 10;

/// What becomes of pieces that do not shrink: after each in a row twice as many are not tried, up
/// to so many.
const SKIPPED_MAX: u32 = 64;

/// Compresses one direction of a session, if it is to be.
#[derive(Debug, Default)]
pub(crate) struct Packer {
    is_on: bool,
    /// The piece as it is, and what it became.
    plain: Vec<u8>,
    packed: Vec<u8>,
    /// Pieces that are not tried after the next that does not shrink, and now.
    skips: u32,
    skipped: u32,
}

impl Packer {
    /// One that compresses, or does not.
    pub(crate) fn new(is_on: bool) -> Self {
        Self { is_on, skips: 1, ..Self::default() }
    }

    /// Whether a piece of so many bytes is to be tried.
    pub(crate) fn tries(&mut self, length: usize) -> bool {
        if !self.is_on || !(LEAST..=PIECE).contains(&length) {
            return false;
        }
        let tries = self.skipped == 0;
        self.skipped = self.skipped.saturating_sub(1);
        tries
    }

    /// Where the bytes of a piece go that is tried.
    pub(crate) fn plain(&mut self) -> &mut Vec<u8> {
        self.plain.clear();
        &mut self.plain
    }

    /// That piece: compressed if that saves a quarter of it.
    pub(crate) fn pack(&mut self) -> Piece<'_> {
        self.packed.resize(get_maximum_output_size(self.plain.len()), 0);
        let packed = compress_into(&self.plain, &mut self.packed);
        match packed {
            Ok(bytes) if bytes <= self.plain.len() / 4 * 3 => {
                self.skips = 1;
                Piece::Packed(self.packed.get(..bytes).unwrap_or_default())
            }
            Ok(_) | Err(_) => {
                self.skipped = self.skips;
                self.skips = (self.skips * 2).min(SKIPPED_MAX);
                Piece::Plain(&self.plain)
            }
        }
    }
}

/// How a piece is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Piece<'a> {
    /// Compressed.
    Packed(&'a [u8]),
    /// As it is.
    Plain(&'a [u8]),
}

/// What compressed bytes were: `length` bytes, put into `plain`. `None` if they are not.
pub(crate) fn unpack<'a>(packed: &[u8], length: usize, plain: &'a mut Vec<u8>) -> Option<&'a [u8]> {
    if !(1..=PIECE).contains(&length) {
        return None;
    }
    plain.resize(PIECE, 0);
    let plain = plain.get_mut(..length)?;
    (decompress_into(packed, plain).ok()? == length).then_some(plain)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn counting(count: u32) -> Vec<u8> {
        (0..count).flat_map(|at| (at.wrapping_mul(7) % 1000).to_le_bytes()).collect()
    }

    /// Bytes that nothing makes shorter: Knuth's generator.
    fn noise(bytes: usize) -> Vec<u8> {
        let mut state = 1_u64;
        let next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            state.to_le_bytes()[7]
        };
        std::iter::repeat_with(next).take(bytes).collect()
    }

    #[test]
    fn what_shrinks_is_packed_and_comes_back() {
        let (mut packer, bytes) = (Packer::new(true), counting(1 << 14));
        assert!(packer.tries(bytes.len()));
        packer.plain().extend_from_slice(&bytes);
        let Piece::Packed(packed) = packer.pack() else { panic!("it shrinks") };
        assert!(packed.len() < bytes.len() / 4, "{}", packed.len());
        let mut plain = Vec::new();
        assert_eq!(unpack(packed, bytes.len(), &mut plain), Some(&bytes[..]));
        assert_eq!(unpack(packed, bytes.len() - 1, &mut plain), None);
        assert_eq!(unpack(packed, bytes.len() + 1, &mut plain), None);
        assert_eq!(unpack(&packed[1..], bytes.len(), &mut plain), None);
        assert_eq!(unpack(packed, 0, &mut plain), None);
    }

    #[test]
    fn what_does_not_shrink_is_hardly_tried() {
        let (mut packer, bytes) = (Packer::new(true), noise(PIECE));
        let mut tried = 0;
        for _ in 0..1_000 {
            if packer.tries(bytes.len()) {
                packer.plain().extend_from_slice(&bytes);
                assert_eq!(packer.pack(), Piece::Plain(&bytes));
                tried += 1;
            }
        }
        assert!((10..30).contains(&tried), "{tried}");
        // The first that shrinks again has the next ones tried.
        let bytes = counting(1 << 14);
        let mut packed = 0;
        for _ in 0..100 {
            if packer.tries(bytes.len()) {
                packer.plain().extend_from_slice(&bytes);
                packed += usize::from(matches!(packer.pack(), Piece::Packed(_)));
            }
        }
        assert!(packed >= 100 - usize::try_from(SKIPPED_MAX).unwrap(), "{packed}");
    }

    #[test]
    fn who_was_not_told_to_compresses_nothing_and_few_bytes_are_not_worth_it() {
        assert!(!Packer::new(false).tries(PIECE));
        assert!(!Packer::new(true).tries(LEAST - 1));
        assert!(!Packer::new(true).tries(PIECE + 1));
    }

    proptest! {
        /// Whatever a peer sends, no more comes of it than it says.
        #[test]
        fn any_bytes_are_so_many_or_none(
            packed in prop::collection::vec(any::<u8>(), 0..200),
            length in 0..PIECE + 2,
        ) {
            let mut plain = Vec::new();
            if let Some(bytes) = unpack(&packed, length, &mut plain) {
                prop_assert_eq!(bytes.len(), length);
            }
            prop_assert!(plain.len() <= PIECE);
        }
    }
}
