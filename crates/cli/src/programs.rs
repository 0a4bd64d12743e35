//! Where the installed pieces lie: the shim, the in-process device, the example programs.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use weft_device::cuda::LIBRARY_VARIABLE;

/// Name that CUDA programs load.
const SHIM_SONAME: &str = "libcuda.so.1";

/// The folder of this executable.
pub(crate) fn executable_dir() -> Result<PathBuf> {
    let executable = std::env::current_exe().context("cannot find this executable")?;
    Ok(executable.parent().map(Path::to_owned).unwrap_or_default())
}

/// A folder that holds the shim as `libcuda.so.1`: the installed one (`../lib/weft`), or one made
/// in `scratch` for a build tree.
pub(crate) fn library_dir(scratch: &Path) -> Result<PathBuf> {
    let beside = executable_dir()?;
    let installed = beside.join("../lib/weft");
    if installed.join(SHIM_SONAME).exists() {
        return Ok(installed);
    }
    let built = beside.join("libcuda.so");
    if !built.exists() {
        bail!(
            "the shim is missing: neither {} nor {} exists; copy it there, or build it with \
             `cargo build --release`",
            installed.join(SHIM_SONAME).display(),
            built.display()
        );
    }
    let folder = scratch.join("lib");
    create_dir(&folder)?;
    for place in [scratch, &folder] {
        check_owner(place)?;
    }
    // Triton and others look for the plain name too.
    for name in [SHIM_SONAME, "libcuda.so"] {
        link(&built, &folder.join(name))?;
    }
    let direct = beside.join("libweft_direct.so");
    if direct.exists() {
        link(&direct, &folder.join("libweft_direct.so"))?;
    }
    Ok(folder)
}

/// This user's folder for links to libraries.
pub(crate) fn own_dir() -> PathBuf {
    std::env::temp_dir().join(format!("weft-{}", rustix::process::getuid().as_raw()))
}

/// Creates a folder that only its user may write to, whatever the umask.
fn create_dir(folder: &Path) -> Result<()> {
    let created = fs::DirBuilder::new().recursive(true).mode(0o755).create(folder);
    created.with_context(|| format!("cannot create {}", folder.display()))
}

/// Refuses a folder in which another user could put a library for our programs to load.
fn check_owner(folder: &Path) -> Result<()> {
    let seen = fs::symlink_metadata(folder)
        .with_context(|| format!("cannot look at {}", folder.display()))?;
    let (owner, own) = (seen.uid(), rustix::process::getuid().as_raw());
    if !seen.is_dir() || (owner != own && owner != 0) || seen.mode() & 0o022 != 0 {
        bail!(
            "{} is not safe to load libraries from: it must be a folder of yours that nobody else \
             may write to, and it is user {owner}'s with mode {:o}; remove it",
            folder.display(),
            seen.mode() & 0o7777
        );
    }
    Ok(())
}

/// Makes `place` a link to `target`, also when several runs do so at once.
fn link(target: &Path, place: &Path) -> Result<()> {
    if fs::read_link(place).is_ok_and(|existing| existing == target) {
        return Ok(());
    }
    let unique = place.with_extension(format!("new.{}", std::process::id()));
    let _ = fs::remove_file(&unique);
    symlink(target, &unique)
        .and_then(|()| fs::rename(&unique, place))
        .with_context(|| format!("cannot create {}", place.display()))
}

/// Makes a command load the libcuda in `library_dir` before any other.
pub(crate) fn use_shim(command: &mut Command, library_dir: &Path) {
    let mut paths = library_dir.as_os_str().to_owned();
    if let Some(existing) = std::env::var_os("LD_LIBRARY_PATH").filter(|path| !path.is_empty()) {
        paths.push(":");
        paths.push(existing);
    }
    command.env("LD_LIBRARY_PATH", paths);
}

/// Makes a command load the genuine driver: the system's, or the library that `WEFT_CUDA_LIBRARY`
/// names.
pub(crate) fn use_driver(command: &mut Command, scratch: &Path) -> Result<()> {
    if let Some(library) = std::env::var_os(LIBRARY_VARIABLE) {
        create_dir(scratch)?;
        check_owner(scratch)?;
        link(Path::new(&library), &scratch.join(SHIM_SONAME))?;
        use_shim(command, scratch);
    }
    Ok(())
}

/// The compiled example programs: `given`, or `programs` beside this executable.
pub(crate) fn example_dir(given: Option<&Path>) -> Result<PathBuf> {
    let folder = match given {
        Some(folder) => folder.to_owned(),
        None => executable_dir()?.join("programs"),
    };
    if folder.join("share").exists() {
        return Ok(folder);
    }
    bail!(
        "the example programs are not in {}; compile them with `cargo xtask examples`",
        folder.display()
    )
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_folder_that_others_may_write_to_gives_no_libraries() {
        let folder = tempfile::tempdir().unwrap();
        check_owner(folder.path()).unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let error = check_owner(folder.path()).unwrap_err().to_string();
        assert!(error.contains("777"), "{error}");
        let beside = folder.path().join("link");
        symlink("/", &beside).unwrap();
        check_owner(&beside).unwrap_err();
    }
}
