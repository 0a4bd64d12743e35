//! Where the installed pieces lie: the shim, the in-process device, the example programs.

use std::fs;
use std::os::unix::fs::symlink;
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
            "the shim is missing: neither {} nor {} exists; build it with \
             `cargo build --release --package weft-cuda`",
            installed.join(SHIM_SONAME).display(),
            built.display()
        );
    }
    let folder = scratch.join("lib");
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
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
