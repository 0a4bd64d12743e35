//! Building Weft and the programs that run on it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use anyhow::{Context, Result};

use crate::dist;
use crate::setup::{self, Python};
use crate::shell::{cargo, profile_dir, root, run, target};

/// What ships: the command, the shim, the in-process device, the task library, the endpoint, what
/// serves virtual machines, and the control plane with its command.
const PACKAGES: [&str; 8] = [
    "weft-cli",
    "weft-cuda",
    "weft-direct",
    "weft-tasks-c",
    "weft-endpoint",
    "weft-guest",
    "weft-control",
    "weft-gsaas",
];

/// Programs of the virtual machine that the tests boot, beside the scripts.
const GUEST_PROGRAMS: [&str; 13] = [
    "vector_add",
    "matrix_mul",
    "reduction",
    "histogram",
    "pipeline",
    "relay",
    "registered",
    "share",
    "call",
    "copy",
    "cosched",
    "scribble",
    "trap",
];

/// Scripts of the virtual machine.
const GUEST_SCRIPTS: [&str; 7] = [
    "guest-again.sh",
    "guest-examples.sh",
    "guest-idle.sh",
    "guest-node.sh",
    "guest-panic.sh",
    "guest-scribble.sh",
    "guest-sizes.sh",
];

/// Builds the command alone, in a profile.
pub(crate) fn build_weft(profile: &str) -> Result<()> {
    build_packages(profile, &PACKAGES[..1])
}

fn build_packages(profile: &str, packages: &[&str]) -> Result<()> {
    let mut command = cargo();
    command.args(["build", "--locked", "--profile", profile]);
    for package in packages {
        command.args(["--package", package]);
    }
    run(&mut command)
}

/// Builds what ships, in a profile.
pub(crate) fn build(profile: &str) -> Result<()> {
    build_packages(profile, &PACKAGES)?;
    // The Rust example of the task library.
    let mut example = cargo();
    example.args(["build", "--locked", "--profile", profile]);
    run(example.args(["--package", "weft-tasks", "--example", "tasks"]))
}

/// Builds what ships together with all tests: the same packages with the features that only tests
/// want are others to cargo, which would compile most of them once more for the tests.
pub(crate) fn build_with_tests(profile: &str) -> Result<()> {
    run(cargo().args(["build", "--locked", "--profile", profile, "--workspace"]).args([
        "--lib",
        "--bins",
        "--tests",
        "--examples",
    ]))
}

/// Builds `weft-guest` without a need for any library, for guests of any distribution; returns its
/// path. Only the program itself is linked otherwise, so nothing else is built twice for it but for
/// the target's name.
pub(crate) fn build_static_guest(profile: &str) -> Result<PathBuf> {
    let target_name = format!("{}-unknown-linux-gnu", env::consts::ARCH);
    run(cargo()
        .args(["rustc", "--locked", "--profile", profile, "--package", "weft-guest"])
        .args(["--bin", "weft-guest", "--target", &target_name])
        .args(["--", "-C", "target-feature=+crt-static"]))?;
    let folder = profile_dir(profile);
    let name = folder.file_name().context("a profile has a folder")?;
    Ok(target().join(target_name).join(name).join("weft-guest"))
}

/// Makes what the benchmarks' virtual machines boot: with a node and a device of their own for what
/// is compared, and the endpoint, which says what TCP does there; returns its folder.
pub(crate) fn bench_guest_image(programs: &Path) -> Result<PathBuf> {
    let profile = profile_dir(dist::PROFILE);
    let weft = target().join("guest/weft");
    fs::create_dir_all(&weft)?;
    fs::copy(profile.join("libweft_direct.so"), weft.join("libweft_direct.so"))?;
    let more = ["weft", "weft-endpoint"].map(|name| profile.join(name));
    guest_image_with(dist::PROFILE, programs, &more)
}

/// Makes what the tests' virtual machines boot; returns its folder.
pub(crate) fn guest_image(profile: &str, programs: &Path) -> Result<PathBuf> {
    guest_image_with(profile, programs, &[])
}

fn guest_image_with(profile: &str, programs: &Path, more: &[PathBuf]) -> Result<PathBuf> {
    let folder = target().join("guest");
    let weft = folder.join("weft");
    fs::create_dir_all(&weft)?;
    fs::copy(build_static_guest(profile)?, weft.join("weft-guest"))?;
    fs::copy(profile_dir(profile).join("libcuda.so"), weft.join("libcuda.so.1"))?;
    let mut command = Command::new(root().join("examples/guest/make-image"));
    command.arg(&folder).arg(&weft);
    command.args(GUEST_PROGRAMS.map(|name| programs.join(name)));
    let scripts = root().join("tests/programs");
    command.args(GUEST_SCRIPTS.map(|name| scripts.join(name))).args(more);
    run(&mut command)?;
    Ok(folder)
}

/// Builds the program over cudarc, a workspace of its own; returns its path.
pub(crate) fn build_cudarc_program() -> Result<PathBuf> {
    let folder = target().join("cudarc");
    run(cargo()
        .args(["build", "--locked", "--quiet", "--manifest-path", "tests/cudarc/Cargo.toml"])
        .arg("--target-dir")
        .arg(&folder))?;
    Ok(folder.join("debug/cudarc-programs"))
}

/// Compiles the C programs of `examples/cuda` and `bench/programs` against the shim; returns the
/// folder of the programs.
pub(crate) fn compile_examples(profile: &str, python: &Python) -> Result<PathBuf> {
    let output = profile_dir(profile).join("programs");
    fs::create_dir_all(&output)?;
    for folder in ["examples/cuda", "bench/programs", "tests/programs"] {
        for entry in fs::read_dir(root().join(folder))? {
            let file = entry?.path();
            if file.extension().is_some_and(|extension| extension == "c") {
                compile(&file, &output, profile, python)?;
            }
        }
    }
    compile_task_example(&output, profile)?;
    Ok(output)
}

/// Compiles the C example of the task library.
fn compile_task_example(output: &Path, profile: &str) -> Result<()> {
    let folder = root().join("examples/tasks");
    run(Command::new("cc")
        .args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror"])
        .arg("-I")
        .arg(root().join("crates/tasks-c/include"))
        .arg(format!("-Wa,-I{}", folder.display()))
        .arg("-o")
        .arg(output.join("tasks"))
        .arg(folder.join("tasks.c"))
        .arg("-L")
        .arg(profile_dir(profile))
        .arg("-lweft_tasks"))
}

/// Compiles the OpenMP program into a folder; GCC makes PTX of what it hands to a device.
pub(crate) fn compile_offloading(output: &Path) -> Result<()> {
    run(Command::new("cc")
        .args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-no-pie"])
        .args(["-fopenmp", "-foffload=nvptx-none", "-foffload-options=-lm"])
        .arg("-o")
        .arg(output.join("offload"))
        .arg(root().join("tests/openmp/offload.c"))
        .arg("-lm"))
}

fn compile(file: &Path, output: &Path, profile: &str, python: &Python) -> Result<()> {
    let name = file.file_stem().context("a source file without a name")?;
    run(Command::new("cc")
        .args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror"])
        .arg("-I")
        .arg(python.toolkit()?.join("include"))
        .arg(format!("-Wa,-I{}", root().join("examples/cuda").display()))
        .arg("-o")
        .arg(output.join(name))
        .arg(file)
        .arg("-L")
        .arg(profile_dir(profile))
        // Some attack the system and need no driver.
        .args(["-Wl,--as-needed", "-lcuda", "-lm", "-lpthread"]))
}

/// Has a text state the version that it needs, not that of its compiler.
fn for_any_driver(text: &Path) -> Result<()> {
    let ptx = fs::read_to_string(text)?;
    let stated = ptx.lines().find(|line| line.starts_with(".version "));
    let stated = stated.with_context(|| format!("{} states no version", text.display()))?;
    Ok(fs::write(text, ptx.replacen(stated, PTX_VERSION, 1))?)
}

/// Sets up, builds and runs the demo.
pub(crate) fn demo(arguments: &[String]) -> Result<()> {
    let python = setup::all()?;
    build("release")?;
    let programs = compile_examples("release", &python)?;
    run(Command::new(profile_dir("release").join("weft"))
        .arg("demo")
        .arg("--programs")
        .arg(programs)
        .arg("--python")
        .arg(python.interpreter())
        .arg("--train")
        .arg(root().join("examples/python/train.py"))
        .args(arguments))
}

/// What the kernels' text says of its version: a driver takes no text newer than itself, and these
/// need nothing newer.
const PTX_VERSION: &str = ".version 7.0";

/// Compiles `examples/cuda/kernels/*.cu` to PTX with the compiler from PyPI.
pub(crate) fn regenerate_ptx() -> Result<()> {
    let python = setup::all()?;
    python.install(&[
        "nvidia-cuda-nvcc==13.*",
        "nvidia-nvvm==13.*",
        "nvidia-cuda-crt==13.*",
        "nvidia-cuda-cccl==13.*",
    ])?;
    let compiler = python.toolkit()?.join("bin/nvcc");
    let path = env::var("PATH").unwrap_or_default();
    for entry in fs::read_dir(root().join("examples/cuda/kernels"))? {
        let file = entry?.path();
        if file.extension().is_some_and(|extension| extension == "cu") {
            let text = file.with_extension("ptx");
            run(Command::new(&compiler)
                .args(["-ptx", "-arch=compute_75", "-o"])
                .arg(&text)
                .arg(&file)
                .env("PATH", &path))?;
            for_any_driver(&text)?;
        }
    }
    Ok(())
}
