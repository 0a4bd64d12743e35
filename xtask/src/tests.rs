//! The whole test suite: unit, property, conformance, end to end, unmodified programs.

use std::process::Command;

use anyhow::Result;

use crate::shell::{cargo, profile_dir, run, succeeds};
use crate::{programs, setup};

/// The profile the tests run in: optimised enough to be quick, with assertions on.
const PROFILE: &str = "dev";

/// Sets up, builds and runs all tests whose name contains `filter`.
pub(crate) fn run_all(filter: Option<&str>) -> Result<()> {
    let python = setup::for_tests()?;
    python.install_task_package()?;
    programs::build_with_tests(PROFILE)?;
    let examples = programs::compile_examples(PROFILE, &python)?;
    programs::compile_offloading(&examples)?;
    let guest = programs::guest_image(PROFILE, &examples)?;
    let environment = [
        ("WEFT_TEST_BIN", profile_dir(PROFILE)),
        ("WEFT_TEST_PROGRAMS", examples),
        ("WEFT_TEST_GUEST", guest),
        ("WEFT_TEST_PYTHON", python.interpreter()),
        ("WEFT_TEST_TOOLKIT", python.toolkit()?),
        // The CUDA backend's "genuine driver" on a machine without a GPU: the shim, in process.
        ("WEFT_CUDA_LIBRARY", profile_dir(PROFILE).join("libcuda.so")),
        ("WEFT_TEST_CUDARC", programs::build_cudarc_program()?),
    ];
    let mut tests = cargo();
    if succeeds(cargo().args(["nextest", "--version"])) {
        tests.args(["nextest", "run", "--locked", "--workspace", "--no-fail-fast"]);
        // Half of the time tests wait.
        let threads = 2 * std::thread::available_parallelism()?.get();
        tests.args(["--test-threads", &threads.to_string()]);
    } else {
        tests.args(["test", "--locked", "--workspace", "--quiet", "--lib", "--bins", "--tests"]);
    }
    tests.args(filter).envs(environment);
    // The same drawn cases everywhere, or a gate refuses what it let through the day before. Others
    // are for whoever asks for them.
    if std::env::var_os(DRAWN_BY).is_none() {
        tests.env(DRAWN_BY, "1");
    }
    // Where they can run, tests in network namespaces must.
    if succeeds(Command::new("unshare").args(["--net", "nft", "list", "ruleset"])) {
        tests.env("WEFT_TEST_NETWORK", "require");
    }
    // The same with a database of a test's own.
    if setup::has_postgres() {
        tests.env("WEFT_TEST_POSTGRES", "require");
    }
    // And with a browser.
    if setup::has_browser() {
        tests.env("WEFT_TEST_BROWSER", "require");
    }
    run(&mut tests)?;
    if filter.is_none() {
        run(cargo().args(["test", "--locked", "--workspace", "--quiet", "--doc"]))?;
    }
    Ok(())
}

/// Where property tests take the seed of the cases that they draw from.
const DRAWN_BY: &str = "PROPTEST_RNG_SEED";

/// Random histories of the scheduling core, optimised, `decisions` of them in all.
pub(crate) fn soak(decisions: u64, seed: u64) -> Result<()> {
    let mut soak = cargo();
    soak.args(["run", "--locked", "--release", "-p", "weft-sched", "--example", "soak", "--"]);
    run(soak.args([decisions.to_string(), seed.to_string()]))
}
