//! Sockets that a process left when it was killed.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

/// Removes a socket at which nobody listens any more; `connect` tries whether somebody does.
pub(crate) fn remove<T>(socket: &Path, connect: impl FnOnce() -> io::Result<T>) -> Result<()> {
    let Ok(found) = fs::symlink_metadata(socket) else { return Ok(()) };
    let path = socket.display();
    ensure!(
        found.file_type().is_socket(),
        "{path} is there already and no socket: name another --socket"
    );
    match connect() {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            fs::remove_file(socket).with_context(|| format!("cannot remove {path}"))
        }
        Ok(_) | Err(_) => bail!(
            "somebody listens at {path} already: end that endpoint or node, or name another \
             --socket"
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    #[test]
    fn only_a_socket_without_a_listener_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let clear = || remove(&path, || UnixStream::connect(&path));
        clear().unwrap();
        let listener = UnixListener::bind(&path).unwrap();
        assert!(clear().unwrap_err().to_string().contains("somebody listens"));
        drop(listener);
        clear().unwrap();
        assert!(!path.exists());
        fs::write(&path, "a file").unwrap();
        assert!(clear().unwrap_err().to_string().contains("no socket"));
        assert!(path.exists());
    }
}
