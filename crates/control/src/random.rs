//! Bytes that nobody can guess, and digests of them.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read};

use sha2::{Digest, Sha256};

/// So many of them, as hexadecimal digits.
///
/// # Errors
/// The system's.
pub fn hex(bytes: usize) -> io::Result<String> {
    let mut found = vec![0; bytes];
    File::open("/dev/urandom")?.read_exact(&mut found)?;
    Ok(hex_of(&found))
}

/// Bytes as hexadecimal digits.
#[must_use]
pub fn hex_of(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // A string takes everything.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// A digest of some bytes.
#[must_use]
pub fn digest(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}
