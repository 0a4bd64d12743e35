//! Running other programs, with errors that name them.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// The repository's root.
pub(crate) fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest).to_owned()
}

/// Cargo's target directory.
pub(crate) fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// Where cargo puts the artefacts of a profile.
pub(crate) fn profile_dir(profile: &str) -> PathBuf {
    target().join(if profile == "dev" { "debug" } else { profile })
}

/// Runs a command, in the repository's root unless it has another folder; anything but success is
/// an error that shows it.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    if command.get_current_dir().is_none() {
        command.current_dir(root());
    }
    let shown = format!("{command:?}");
    let status = command.status().with_context(|| format!("cannot start {shown}"))?;
    if !status.success() {
        bail!("{shown} failed: {status}");
    }
    Ok(())
}

/// Whether a command can be started and succeeds, its output thrown away.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    command.output().is_ok_and(|output| output.status.success())
}

/// This cargo, as a shell starts it: without what `cargo xtask` says of xtask's own package, which
/// build scripts ask for, so that cargo would build anew what they are of, and all that uses it.
pub(crate) fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (name, _) in std::env::vars_os() {
        if is_of_a_package(&name) {
            cargo.env_remove(name);
        }
    }
    cargo
}

/// Whether cargo sets this variable for the package that it builds or runs.
fn is_of_a_package(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cargo_is_not_told_of_this_package() {
        let cargo = cargo();
        let removed: Vec<_> = cargo.get_envs().filter(|(_, value)| value.is_none()).collect();
        let of_here = std::env::vars_os().filter(|(name, _)| is_of_a_package(name)).count();
        assert!(of_here > 0, "a test is run by cargo, which tells it of its package");
        assert_eq!(removed.len(), of_here, "{removed:?}");
        assert!(is_of_a_package("CARGO_PKG_NAME".as_ref()));
        assert!(is_of_a_package("CARGO_MANIFEST_DIR".as_ref()));
        assert!(!is_of_a_package("CARGO_TARGET_DIR".as_ref()), "that is for whoever builds");
    }
}
