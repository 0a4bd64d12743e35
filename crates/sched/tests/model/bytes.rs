//! Numbers out of any bytes, for fuzz targets.

/// Bytes that are not used up yet.
#[derive(Debug)]
pub struct Bytes<'a>(pub &'a [u8]);

impl Bytes<'_> {
    /// A number below `limit`, of as many bytes as that is long; zeros after the last byte.
    pub fn number(&mut self, limit: u64) -> u64 {
        let len = (64 - limit.leading_zeros()).div_ceil(8) as usize;
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken.iter().fold(0u64, |sum, byte| (sum << 8) | u64::from(*byte)) % limit
    }

    /// Whether they are used up.
    pub fn is_used_up(&self) -> bool {
        self.0.is_empty()
    }
}
