//! Default directories.

use std::path::PathBuf;

/// `$WEFT_RUNTIME_DIR`, else `$XDG_RUNTIME_DIR/weft`, else `/run/weft` for root, else
/// `/tmp/weft-UID`.
#[must_use]
pub fn default_runtime_dir() -> PathBuf {
    if let Some(dir) = directory("WEFT_RUNTIME_DIR") {
        return dir;
    }
    if let Some(dir) = directory("XDG_RUNTIME_DIR") {
        return dir.join("weft");
    }
    let uid = rustix::process::getuid();
    if uid.is_root() {
        return PathBuf::from("/run/weft");
    }
    PathBuf::from(format!("/tmp/weft-{}", uid.as_raw()))
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
