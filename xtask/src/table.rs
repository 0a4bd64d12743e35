//! The rows of the table of driver calls, from NVIDIA's headers and `xtask/table/calls.txt`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::setup;
use crate::shell::{root, run};

/// The packages with the headers, oldest first, and where the headers lie in them.
const HEADERS: [(&str, &str); 2] = [
    ("nvidia-cuda-runtime-cu12==12.9.79", "nvidia/cuda_runtime/include"),
    ("nvidia-cuda-runtime==13.5.37", "nvidia/cu13/include"),
];

/// Writes the rows anew, or only compares them with what is there.
pub(crate) fn generate(check: bool) -> Result<()> {
    let python = setup::all()?;
    let folder = root().join("target/headers");
    let mut command = Command::new(python.interpreter());
    command.arg(root().join("xtask/table/generate.py"));
    for (package, include) in HEADERS {
        command.arg("--headers").arg(unpacked(&python, package, &folder)?.join(include));
    }
    if check {
        command.arg("--check");
    }
    run(&mut command)
}

/// A package's files, in a folder of their own.
fn unpacked(python: &setup::Python, package: &str, folder: &Path) -> Result<PathBuf> {
    let target = folder.join(package.replace("==", "-"));
    if !target.exists() {
        // Whole, or not there: the next run tries again.
        let partial = target.with_extension("partial");
        let _ = fs::remove_dir_all(&partial);
        run(Command::new(python.interpreter())
            .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"])
            .arg("--target")
            .arg(&partial)
            .arg(package))?;
        fs::rename(&partial, &target).with_context(|| format!("cannot keep {package}"))?;
    }
    Ok(target)
}
