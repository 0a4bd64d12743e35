//! What a fresh machine lacks: a C compiler, Python, tools of the network, and the packages of the
//! example programs.

#![expect(clippy::print_stderr, reason = "progress for people")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::shell::{root, run, succeeds};

/// A Python environment with everything the programs import.
#[derive(Debug)]
pub(crate) struct Python {
    directory: PathBuf,
}

impl Python {
    /// The interpreter.
    pub(crate) fn interpreter(&self) -> PathBuf {
        self.directory.join("bin/python3")
    }

    /// The folder that holds NVIDIA's packages (`include/cuda.h`, `lib/libnvrtc.so.13`).
    pub(crate) fn toolkit(&self) -> Result<PathBuf> {
        let lib = self.directory.join("lib");
        for entry in fs::read_dir(&lib).with_context(|| format!("cannot list {}", lib.display()))? {
            let toolkit = entry?.path().join("site-packages/nvidia/cu13");
            if toolkit.join("include/cuda.h").is_file() {
                return Ok(toolkit);
            }
        }
        bail!("{} holds no nvidia/cu13/include/cuda.h; remove it and try again", lib.display())
    }

    /// Installs the task library's package as a program's author would, and checks its types and
    /// those of its examples.
    pub(crate) fn install_task_package(&self) -> Result<()> {
        let package = root().join("python");
        run(Command::new(self.interpreter())
            .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"])
            // What builds it is there already, and its version says nothing of its content.
            .args(["--no-build-isolation", "--no-deps", "--force-reinstall"])
            .arg(&package))?;
        run(Command::new(self.interpreter())
            .args(["-m", "mypy", "--strict", "weft_tasks", "examples"])
            .current_dir(&package))
    }

    /// Installs what programs of the tests import and those of the demo do not.
    fn install_test_packages(&self) -> Result<()> {
        let requirements = root().join("tests/programs/requirements.txt");
        let stamp = self.directory.join("test-requirements.installed");
        if same_content(&requirements, &stamp) {
            return Ok(());
        }
        eprintln!("installing the test programs' Python packages into .venv");
        let file = requirements.to_str().context("the repository's path is not UTF-8")?;
        // Some want libraries that nothing here loads: what they need is in the list.
        self.install(&["--no-deps", "--requirement", file])?;
        fs::copy(&requirements, &stamp)?;
        Ok(())
    }

    /// Installs more packages.
    pub(crate) fn install(&self, packages: &[&str]) -> Result<()> {
        run(Command::new(self.interpreter())
            .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"])
            .args(packages))
    }
}

/// Where Debian's package of PostgreSQL looks for what it does when it is installed.
const CLUSTERS: &str = "/etc/postgresql-common/createcluster.d";

/// Installs all that is missing and returns the Python environment.
pub(crate) fn all() -> Result<Python> {
    system_packages()?;
    python_environment()
}

/// The same with what only tests need.
pub(crate) fn for_tests() -> Result<Python> {
    let python = all()?;
    python.install_test_packages()?;
    database()?;
    offloading()?;
    hashcat()?;
    browser()?;
    Ok(python)
}

fn system_packages() -> Result<()> {
    let mut missing = Vec::new();
    if !succeeds(Command::new("cc").arg("--version")) {
        missing.extend(["gcc", "libc6-dev"]);
    }
    if !succeeds(Command::new("python3").args(["-c", "import venv, ensurepip"])) {
        missing.extend(["python3", "python3-venv"]);
    }
    // The end-to-end tests count system calls.
    if !succeeds(Command::new("strace").arg("--version")) {
        missing.push("strace");
    }
    // A compute host's endpoint works with these, in tests and benchmarks in network namespaces.
    for (program, version, package) in [
        ("ip", "-V", "iproute2"),
        ("nft", "--version", "nftables"),
        ("conntrack", "--version", "conntrack"),
    ] {
        if !succeeds(Command::new(program).arg(version)) {
            missing.push(package);
        }
    }
    if missing.is_empty() { Ok(()) } else { install_packages(&missing) }
}

/// Replicas of the control plane share a database, which tests start themselves.
fn database() -> Result<()> {
    if has_postgres() { Ok(()) } else { install_packages(&["postgresql"]) }
}

/// Whether the database's programs are there: Debian has them outside `PATH`.
pub(crate) fn has_postgres() -> bool {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let of_debian = versions.map(|version| version.path().join("bin"));
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let mut folders = of_debian.chain(std::env::split_paths(&paths));
    folders.any(|folder| folder.join("initdb").exists() && folder.join("postgres").exists())
}

/// What the C compiler needs to compile parts of a program for NVIDIA GPUs.
fn offloading() -> Result<()> {
    // The compiler names a file that it has by its path.
    let named = Command::new("cc").arg("-print-file-name=accel/nvptx-none/mkoffload").output();
    let found = named.is_ok_and(|file| file.stdout.starts_with(b"/"));
    if found { Ok(()) } else { install_packages(&["gcc-offload-nvptx"]) }
}

/// A program with kernels of its own for each kind of password.
fn hashcat() -> Result<()> {
    let found = succeeds(Command::new("hashcat").arg("--version"));
    if found { Ok(()) } else { install_packages(&["hashcat"]) }
}

/// A browser for the cloud's page. Other distributions of Linux bring it as no package of theirs:
/// there its test runs only where it is installed already.
fn browser() -> Result<()> {
    let system = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let is_debian = system.lines().any(|line| line == "ID=debian");
    if has_browser() || !is_debian { Ok(()) } else { install_packages(&[BROWSER]) }
}

/// Debian's name of the package and of the program.
const BROWSER: &str = "chromium";

/// Whether a browser is there.
pub(crate) fn has_browser() -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths).any(|folder| folder.join(BROWSER).exists())
}

/// What tinygrad's own tests need beyond the rest: its CPU device compiles with clang.
pub(crate) fn clang() -> Result<()> {
    let found = succeeds(Command::new("clang").arg("--version"));
    if found { Ok(()) } else { install_packages(&["clang"]) }
}

fn install_packages(missing: &[&str]) -> Result<()> {
    let wanted = missing.join(" ");
    if !rustix::process::geteuid().is_root() {
        bail!("these packages are missing: {wanted}\nhint: sudo apt-get install {wanted}");
    }
    eprintln!("installing {wanted}");
    if missing.contains(&"postgresql") {
        // Tests start databases of their own: the package need not start one.
        fs::create_dir_all(CLUSTERS)?;
        fs::write(Path::new(CLUSTERS).join("weft.conf"), "create_main_cluster = false\n")?;
    }
    run(Command::new("apt-get").args(["update", "-qq"]))?;
    run(Command::new("apt-get")
        .args(["install", "-y", "-qq", "--no-install-recommends"])
        .args(missing)
        .env("DEBIAN_FRONTEND", "noninteractive"))
}

fn python_environment() -> Result<Python> {
    let python = Python { directory: root().join(".venv") };
    let requirements = root().join("examples/python/requirements.txt");
    let stamp = python.directory.join("requirements.installed");
    if same_content(&requirements, &stamp) {
        return Ok(python);
    }
    eprintln!("installing the example programs' Python packages into .venv");
    run(Command::new("python3").args(["-m", "venv"]).arg(&python.directory))?;
    let file = requirements.to_str().context("the repository's path is not UTF-8")?;
    python.install(&["--requirement", file])?;
    fs::copy(&requirements, &stamp)?;
    Ok(python)
}

fn same_content(a: &Path, b: &Path) -> bool {
    matches!((fs::read(a), fs::read(b)), (Ok(a), Ok(b)) if a == b)
}
