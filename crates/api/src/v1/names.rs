//! Names of projects, nodes, instances and tokens, keys of creations, and what tokens look like.

#[cfg(feature = "client")]
use std::path::{Path, PathBuf};

use super::IDEMPOTENCY_KEY_BYTES_MAX;
#[cfg(feature = "client")]
use crate::files;

/// Longest name.
const BYTES_MAX: usize = 48;

/// A name that cannot be one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no name: a name has 1 to {BYTES_MAX} lower-case letters, digits, `-`, `_` or `.`, and begins with a letter or digit"
)]
pub struct BadName(pub String);

/// Whether a text may be a name.
///
/// # Errors
/// What a name looks like.
pub fn check_name(text: &str) -> Result<(), BadName> {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let fits = text.len() <= BYTES_MAX
        && text.starts_with(is_plain)
        && text.chars().all(|c| is_plain(c) || "-_.".contains(c));
    if fits { Ok(()) } else { Err(BadName(text.chars().take(BYTES_MAX).collect())) }
}

/// A key that cannot be one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "an idempotency key has 1 to {IDEMPOTENCY_KEY_BYTES_MAX} letters, digits and signs of ASCII"
)]
pub struct BadKey;

/// Whether a text may be the key of a creation.
///
/// # Errors
/// What a key looks like.
pub fn check_key(text: &str) -> Result<(), BadKey> {
    if text.len() <= IDEMPOTENCY_KEY_BYTES_MAX && is_word(text) { Ok(()) } else { Err(BadKey) }
}

/// Whether it is one word that a header can have.
pub(super) fn is_word(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_graphic())
}

/// The longest file with a token: Keystone's are some hundred bytes.
#[cfg(feature = "client")]
const TOKEN_BYTES_MAX: usize = 64 << 10;

/// A file without a token.
#[cfg(feature = "client")]
#[derive(Debug, thiserror::Error)]
pub enum BadTokenFile {
    /// The system does not read it.
    #[error("cannot read {}: {why}", path.display())]
    Unread {
        /// The file.
        path: PathBuf,
        /// The system's words.
        why: std::io::Error,
    },
    /// There is nothing in it.
    #[error("there is no token in {}", .0.display())]
    Empty(PathBuf),
    /// What is in it is none.
    #[error(
        "what is in {} is no token: a token is one word of letters, digits and signs, and nothing \
         else is in the file",
        .0.display()
    )]
    Strange(PathBuf),
}

/// What to say of a file with a token that others can read.
#[cfg(feature = "client")]
#[must_use]
pub fn token_warning(path: &Path) -> Option<String> {
    files::warning(path, "whoever has a token may do all that you may")
}

/// The token in a file.
///
/// # Errors
/// Why there is none; what is in the file is not told.
#[cfg(feature = "client")]
pub fn read_token(path: &Path) -> Result<String, BadTokenFile> {
    let strange = || BadTokenFile::Strange(path.to_owned());
    let bytes = files::read(path, TOKEN_BYTES_MAX).map_err(|why| {
        let is_long = why.kind() == std::io::ErrorKind::FileTooLarge;
        if is_long { strange() } else { BadTokenFile::Unread { path: path.to_owned(), why } }
    })?;
    let text = String::from_utf8(bytes).map_err(|_| strange())?;
    match text.trim() {
        "" => Err(BadTokenFile::Empty(path.to_owned())),
        token if is_word(token) => Ok(token.to_owned()),
        _ => Err(strange()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_one_word() {
        let (most, more) = ("k".repeat(IDEMPOTENCY_KEY_BYTES_MAX), "k".repeat(129));
        for key in ["k7", "a-b_c.d:e/f", &most] {
            check_key(key).unwrap();
        }
        for key in ["", "a b", "a\r\nX: y", "\u{43a}\u{43b}", &more] {
            let error = check_key(key).unwrap_err().to_string();
            assert!(error.contains("1 to 128"), "{error}");
        }
    }

    /// The last one has no end.
    #[cfg(feature = "client")]
    #[test]
    fn a_file_has_one_token_or_is_refused_by_its_name() {
        let path = std::env::temp_dir().join(format!("weft-api-token-{}", std::process::id()));
        let read = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            read_token(&path)
        };
        assert_eq!(read(b" secret\n").unwrap(), "secret");
        assert!(matches!(read(b"\n").unwrap_err(), BadTokenFile::Empty(_)));
        for bytes in [&b"one\ntwo\n"[..], b"a b", b"\xff", "\u{2026}".as_bytes()] {
            let error = read(bytes).unwrap_err();
            assert!(matches!(error, BadTokenFile::Strange(_)), "{error}");
            assert!(error.to_string().contains(&path.display().to_string()), "{error}");
        }
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(read_token(&path).unwrap_err(), BadTokenFile::Unread { .. }));
        let endless = read_token(Path::new("/dev/zero")).unwrap_err().to_string();
        assert!(endless.contains("/dev/zero"), "{endless}");
    }

    #[test]
    fn names_are_plain() {
        for name in ["a", "team-a", "0", "gpu1.rack_2"] {
            check_name(name).unwrap();
        }
        let long = "a".repeat(BYTES_MAX + 1);
        for name in ["", "A", "-a", ".", "a b", "a/b", "ä", "a\n", &long] {
            let error = check_name(name).unwrap_err().to_string();
            assert!(error.contains("1 to 48"), "{error}");
        }
    }
}
