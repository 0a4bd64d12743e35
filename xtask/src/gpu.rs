//! What only a genuine GPU can show: conformance, the unmodified programs and the benchmarks on it.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result};

use crate::shell::{cargo, profile_dir, run, target};
use crate::{programs, setup};

/// The profile of everything here: benchmarks among it.
const PROFILE: &str = "release";

/// Tests of the unmodified programs on a node that may be on any device.
const PROGRAMS: [&str; 6] = [
    "programs::the_c_examples_pass_on_a_node",
    "programs::tinygrad",
    "programs::cudarc_and_nvrtc_agree_with_the_host",
    "programs::several_processes_share_one_vgpu",
    "programs::functions_with_the_c_abi_are_linked_and_called",
    "programs::kernels_print_to_the_programs_output",
];

/// Benchmarks that run on any device. The others pace a modelled one.
const BENCHMARKS: [&str; 8] =
    ["call", "copy", "engine", "overhead", "fairness", "conserve", "reweight", "latency"];

/// Where their documents go.
const RESULTS: &str = "gpu";

/// Runs everything on the first GPU, or says that there is none.
pub(crate) fn run_all() -> Result<()> {
    programs::build(PROFILE)?;
    let weft = profile_dir(PROFILE).join("weft");
    let doctor = Command::new(&weft).arg("doctor").output().context("cannot start weft")?;
    let report = String::from_utf8_lossy(&doctor.stdout).into_owned();
    let gpus: Vec<&str> = report.lines().filter(|line| line.contains("gpu: ")).collect();
    for line in &gpus {
        say(line);
    }
    if !gpus.iter().any(|line| line.contains("cuda:0") && !line.contains("unusable")) {
        say("not run: no GPU");
        return Ok(());
    }
    let python = setup::all()?;
    let examples = programs::compile_examples(PROFILE, &python)?;
    let environment = [
        ("WEFT_TEST_BIN", profile_dir(PROFILE)),
        ("WEFT_TEST_PROGRAMS", examples.clone()),
        ("WEFT_TEST_PYTHON", python.interpreter()),
        ("WEFT_TEST_TOOLKIT", python.toolkit()?),
        ("WEFT_TEST_CUDARC", programs::build_cudarc_program()?),
    ];
    let test = || {
        let mut test = cargo();
        test.args(["test", "--locked", "--release"]).envs(environment.clone());
        test.env("WEFT_TEST_DEVICE", "cuda");
        test
    };
    say("conformance");
    run(test().args(["--package", "weft-device", "--lib", "cuda::", "--", "--nocapture"]))?;
    say("programs");
    let mut tests = test();
    tests.args(["--package", "weft-cli", "--test", "e2e", "--", "--test-threads=1"]);
    run(tests.args(PROGRAMS))?;
    let results = target().join(RESULTS);
    fs::create_dir_all(&results)?;
    for name in BENCHMARKS {
        let file = results.join(format!("{name}.json"));
        say(&format!("bench {name} → {}", file.display()));
        let mut bench = Command::new(&weft);
        bench.args(["bench", name, "--json", "--programs"]).arg(&examples);
        bench.env("WEFT_DEVICE", "cuda").stdout(fs::File::create(&file)?);
        run(&mut bench)?;
    }
    Ok(())
}

#[expect(clippy::print_stdout, reason = "the task's own report")]
fn say(line: &str) {
    println!("{line}");
}
