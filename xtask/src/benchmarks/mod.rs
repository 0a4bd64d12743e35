//! `cargo xtask benchmarks`: runs the benchmarks, keeps their JSON, writes docs/benchmarks.md.

#![expect(clippy::print_stderr, reason = "progress for people")]

mod attacks;
mod page;
mod rows;

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::{Value, json};

use self::rows::{APART, BENCHES, CONTROL, MEMORY, PREDICT, VIA_TLS, VIA_VM};
use crate::setup::Python;
use crate::shell::{profile_dir, root};
use crate::{dist, programs, setup};

/// Where the documents lie, one per benchmark.
const RESULTS: &str = "docs/evaluation/real";
/// The page whose middle part is written.
const PAGE: &str = "docs/benchmarks.md";

/// What `weft` is told to measure.
fn command(name: &str) -> Vec<&str> {
    for (end, via) in [(VIA_TLS, "tls"), (VIA_VM, "vm")] {
        if let Some(plain) = name.strip_suffix(end) {
            return vec!["bench", plain, "--via", via];
        }
    }
    if let Some(plain) = name.strip_suffix(APART) {
        return vec!["bench", plain, "--apart"];
    }
    if name == PREDICT { vec!["sim", name] } else { vec!["bench", name] }
}

fn in_words(name: &str) -> String {
    command(name).join(" ")
}

/// Runs the benchmarks that are named, or all, and writes the page from all documents there are;
/// or only writes that.
pub(crate) fn run(only: &[String], page_alone: bool) -> Result<()> {
    if page_alone {
        return page::write(&root().join(RESULTS));
    }
    if let Some(unknown) = only.iter().find(|name| BENCHES.iter().all(|b| b.name != *name)) {
        let known: Vec<_> = BENCHES.iter().map(|bench| bench.name).collect();
        bail!("no benchmark is called {unknown}; there are {}", known.join(", "));
    }
    ensure!(is_committed()?, "there are changes: commit them first, for figures name their commit");
    let built = commit()?;
    let python = setup::all()?;
    programs::build(dist::PROFILE)?;
    let examples = programs::compile_examples(dist::PROFILE, &python)?;
    let results = root().join(RESULTS);
    fs::create_dir_all(&results)?;
    let mut failures = Vec::new();
    for bench in &BENCHES {
        if only.is_empty() || only.iter().any(|name| name == bench.name) {
            eprintln!("{} …", bench.name);
            let document = document(bench.name, &examples, &python).unwrap_or_else(|error| {
                eprintln!("{} failed: {error:#}", bench.name);
                failures.push(bench.name);
                failure(bench.name, &built, &error)
            });
            // A document names the commit that is checked out when it is made.
            ensure!(
                is_committed()? && commit()? == built,
                "the checkout changed while {} was measured: nobody knows what it is of",
                bench.name
            );
            let text = serde_json::to_string_pretty(&document)? + "\n";
            fs::write(document_path(&results, bench.name), text)?;
        }
    }
    page::write(&results)?;
    ensure!(failures.is_empty(), "failed, which {PAGE} says: {}", failures.join(", "));
    Ok(())
}

/// What a benchmark measures here.
fn document(name: &str, examples: &Path, python: &Python) -> Result<Value> {
    if name == CONTROL || name.ends_with(VIA_VM) {
        let guest = programs::bench_guest_image(examples)?;
        return measure(name, examples, &["--guest".as_ref(), guest.as_os_str()]);
    }
    if name == MEMORY {
        let train = root().join("examples/python/train.py");
        let interpreter = python.interpreter();
        let more =
            ["--python".as_ref(), interpreter.as_os_str(), "--train".as_ref(), train.as_os_str()];
        return measure(name, examples, &more);
    }
    measure(name, examples, &[])
}

/// What stands in the place of figures that were to be measured anew and could not be: those of an
/// earlier commit would pass for this one's.
fn failure(name: &str, commit: &str, error: &anyhow::Error) -> Value {
    json!({
        "name": name, "commit": commit, "failed": format!("{error:#}"),
        "mode": "none", "window": "none", "figures": {},
    })
}

fn commit() -> Result<String> {
    let head = output_of(Command::new("git").args(["rev-parse", "--short=12", "HEAD"]))?;
    Ok(head.trim().to_owned())
}

/// Whether the checkout is its commit, but for what this writes.
fn is_committed() -> Result<bool> {
    let mut status = Command::new("git");
    status.args(["status", "--porcelain", "--untracked-files=no", "--", "."]);
    status.args([RESULTS, PAGE].map(|written| format!(":(exclude){written}")));
    Ok(output_of(&mut status)?.is_empty())
}

/// What a command says that is run at the checkout's root.
fn output_of(command: &mut Command) -> Result<String> {
    let output = command.current_dir(root()).output();
    let output = output.with_context(|| format!("cannot start {command:?}"))?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn measure(name: &str, examples: &Path, more: &[&OsStr]) -> Result<Value> {
    let mut weft = Command::new(profile_dir(dist::PROFILE).join("weft"));
    document_of(weft.args(command(name)).args(["--json", "--programs"]).arg(examples).args(more))
}

/// The document that a benchmark prints; without one, the last that it said.
fn document_of(command: &mut Command) -> Result<Value> {
    let started = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = started.with_context(|| format!("cannot start {command:?}"))?;
    let said = child.stderr.take().context("a pipe")?;
    let listening = thread::spawn(move || {
        let (mut last, mut line) = (String::new(), Vec::new());
        let mut said = BufReader::new(said);
        // To the end, whatever comes: programs write there, too.
        while said.read_until(b'\n', &mut line).is_ok_and(|bytes| bytes > 0) {
            last = String::from_utf8_lossy(&line).trim_end().to_owned();
            eprintln!("{last}");
            line.clear();
        }
        last
    });
    let output = child.wait_with_output()?;
    let last = listening.join().unwrap_or_default();
    serde_json::from_slice(&output.stdout)
        .map_err(|_| anyhow!("no document was printed ({}): {last}", output.status))
}

fn document_path(results: &Path, name: &str) -> PathBuf {
    results.join(name).with_extension("json")
}
