//! Default directories.

use std::path::PathBuf;

use weft_ring::place;

/// Where a node of this user puts its sockets: [`place::own_dir`].
#[must_use]
pub fn default_runtime_dir() -> PathBuf {
    place::own_dir(directory, rustix::process::getuid().as_raw())
}

/// Directories in which this user looks for a node, in order: [`place::search`].
#[must_use]
pub fn search_places() -> Vec<PathBuf> {
    place::search(directory, rustix::process::getuid().as_raw())
}

/// `$WEFT_STATE_DIR`, else `/var/lib/weft` for root, else `$XDG_STATE_HOME/weft`, else
/// `$HOME/.local/state/weft`, else `state` in the runtime directory.
#[must_use]
pub fn default_state_dir() -> PathBuf {
    if let Some(dir) = directory("WEFT_STATE_DIR") {
        return dir;
    }
    if rustix::process::getuid().is_root() {
        return PathBuf::from("/var/lib/weft");
    }
    if let Some(dir) = directory("XDG_STATE_HOME") {
        return dir.join("weft");
    }
    match directory("HOME") {
        Some(home) => home.join(".local/state/weft"),
        None => default_runtime_dir().join("state"),
    }
}

fn directory(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from)
}
