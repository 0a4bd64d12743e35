//! Files that somebody names: with tokens, keys, and certificates.

use std::fs::File;
use std::io::{self, ErrorKind, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

/// The longest file with keys or certificates: a system's list of authorities has some 300 KiB.
pub const PEM_BYTES_MAX: usize = 4 << 20;

/// What is in a file, of which no more is read than it may have: a path may be that of something
/// without an end.
///
/// # Errors
/// The system's; [`ErrorKind::FileTooLarge`] if there is more.
pub fn read(path: &Path, most: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(most as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > most {
        let words = format!("it has more than {most} bytes, and is taken for another file");
        return Err(io::Error::new(ErrorKind::FileTooLarge, words));
    }
    Ok(bytes)
}

/// What to say of a file with a secret that others than its user can read; `risk` is what they
/// could do with it.
#[must_use]
pub fn warning(path: &Path, risk: &str) -> Option<String> {
    let found = std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file)?;
    let is_open = found.permissions().mode() & 0o077 != 0;
    let path = path.display();
    is_open.then(|| format!("others can read {path}, and {risk}: chmod 600 {path}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_read_than_a_file_may_have() {
        let error = read(Path::new("/dev/zero"), 8).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::FileTooLarge);
        assert!(error.to_string().contains("more than 8 bytes"), "{error}");
        let path = std::env::temp_dir().join(format!("weft-api-file-{}", std::process::id()));
        std::fs::write(&path, "12345678").unwrap();
        assert_eq!(read(&path, 8).unwrap(), b"12345678");
        read(&path, 7).unwrap_err();
        for (mode, is_told) in [(0o600, false), (0o400, false), (0o644, true), (0o640, true)] {
            let mode = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(&path, mode.clone()).unwrap();
            let said = warning(&path, "whoever has it may act as you");
            assert_eq!(said.is_some(), is_told, "{mode:?}");
            assert!(said.is_none_or(|said| said.ends_with(&path.display().to_string())));
        }
        std::fs::remove_file(&path).unwrap();
        assert_eq!(warning(&path, ""), None);
        assert_eq!(warning(Path::new("/dev/null"), ""), None, "it has no secret");
    }
}
