//! What is installed: programs without debug information and symbols, which lie beside them.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::programs;
use crate::shell::{profile_dir, run, target};

/// The profile, with debug information for who wants it. What is measured is built so, too.
pub(crate) const PROFILE: &str = "dist";

/// What is installed.
const FILES: [&str; 7] = [
    "weft",
    "weft-endpoint",
    "weft-control",
    "gsaas",
    "libcuda.so",
    "libweft_direct.so",
    "libweft_tasks.so",
];

/// What is copied into guests, too: it needs no library there.
const GUEST: &str = "weft-guest";

/// The most that `weft` may take on disk.
const WEFT_BYTES_MAX: u64 = 15_000_000;

/// What it takes more when it is built together with the rest, which want more features of the
/// libraries that they share.
const SHARED_BYTES: u64 = 100_000;

/// Builds what is installed, or of it `weft` alone, into `target/install`, the debug information of
/// each file in `FILE.debug`.
pub(crate) fn build(weft_only: bool) -> Result<()> {
    let (built, folder) = (profile_dir(PROFILE), target().join("install"));
    fs::create_dir_all(&folder)?;
    let weft = folder.join(FILES[0]);
    if weft_only {
        programs::build_weft(PROFILE)?;
        split(&built.join(FILES[0]), &weft)?;
        check_size(&weft, WEFT_BYTES_MAX - SHARED_BYTES)
    } else {
        programs::build(PROFILE)?;
        for name in FILES {
            split(&built.join(name), &folder.join(name))?;
        }
        split(&programs::build_static_guest(PROFILE)?, &folder.join(GUEST))?;
        check_size(&weft, WEFT_BYTES_MAX)
    }
}

/// Writes a program without debug information and symbols to `place`, and these into a file beside
/// it, which debuggers find. What cargo built stays as it is.
fn split(built: &Path, place: &Path) -> Result<()> {
    let debug = place.with_added_extension("debug");
    run(Command::new("objcopy").arg("--only-keep-debug").arg(built).arg(&debug))?;
    let link = format!("--add-gnu-debuglink={}", debug.display());
    run(Command::new("objcopy").args(["--strip-all", &link]).arg(built).arg(place))
}

fn check_size(program: &Path, most: u64) -> Result<()> {
    let found = fs::metadata(program);
    let bytes = found.with_context(|| format!("there is no {}", program.display()))?.len();
    ensure!(
        bytes <= most,
        "{} has {bytes} bytes, and {most} are allowed: see what grew (cargo bloat)",
        program.display()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_too_large_fails_the_build() {
        let file = std::env::temp_dir().join(format!("weft-dist-{}", std::process::id()));
        fs::write(&file, [0; 16]).unwrap();
        check_size(&file, 16).unwrap();
        let error = check_size(&file, 15).unwrap_err().to_string();
        fs::remove_file(&file).unwrap();
        assert!(error.contains("16 bytes"), "{error}");
    }
}
