//! tinygrad's own test files on Weft. They are in no package, so a checkout must be given.

#![expect(clippy::print_stderr, reason = "progress for people")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::shell::{profile_dir, run};
use crate::{programs, setup};

/// What the files import beside tinygrad and NumPy.
const PACKAGES: [&str; 3] = ["pytest==9.*", "pytest-timeout==2.*", "hypothesis==6.*"];
/// `Test2DShard` needs four devices, and a vGPU is one. `TestBitcastBufferView` loads eight bytes
/// from an address that four divides when it is compiled by NVRTC: a fault on every CUDA device,
/// and as faults stick, the end of its session.
const DESELECTED: &str = "not Test2DShard and not TestBitcastBufferView";

/// Runs every file of `checkout/test/backend` that needs no other framework, as one tenant.
pub(crate) fn tinygrad(checkout: &Path, profile: &str, dev: &str) -> Result<()> {
    let files = test_files(&checkout.join("test/backend"))?;
    eprintln!("{} files need no other framework", files.len());
    setup::clang()?;
    let python = setup::all()?;
    python.install(&PACKAGES)?;
    programs::build(profile)?;
    let scratch = profile_dir(profile).join("tinygrad");
    fs::create_dir_all(&scratch)?;
    let checkout = checkout.canonicalize()?;
    run(Command::new(profile_dir(profile).join("weft"))
        .arg("--runtime-dir")
        .arg(&scratch)
        .args(["run", "--"])
        .arg(python.interpreter())
        .args(["-m", "pytest", "--quiet", "--timeout=600", "-p", "no:cacheprovider"])
        .args(["-k", DESELECTED, "--rootdir"])
        .arg(&checkout)
        .args(files)
        .env("DEV", dev)
        .env("CI", "1")
        .env("CACHELEVEL", "0")
        .env("CUDA_PATH", python.toolkit()?)
        .env("LD_LIBRARY_PATH", python.toolkit()?.join("lib"))
        .env("PYTHONPATH", &checkout))
}

fn test_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let entries = fs::read_dir(folder).with_context(|| {
        format!("cannot list {}; --checkout wants a clone of tinygrad", folder.display())
    })?;
    for entry in entries {
        let file = entry?.path();
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        let is_test = name.starts_with("test_") && name.ends_with(".py");
        if is_test && !fs::read_to_string(&file)?.contains("import torch") {
            files.push(file.canonicalize()?);
        }
    }
    if files.is_empty() {
        bail!("{} holds no test file that needs no other framework", folder.display());
    }
    files.sort();
    Ok(files)
}
