//! House rules that no compiler checks.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::shell::{cargo, root};

/// Most lines of a hand-written Rust file.
const FILE_LINES_MAX: usize = 800;
/// Longest line of a comment, in characters.
const LINE_CHARACTERS_MAX: usize = 100;

/// Who may depend on whom, as in `docs/architecture.md`. `xtask tidy` holds `cargo metadata`
/// against it. Development dependencies are free.
const DEPENDENCIES: &[(&str, &[&str])] = &[
    ("weft-wire", &[]),
    ("weft-ring", &[]),
    ("weft-ptx", &[]),
    ("weft-sched", &[]),
    ("weft-api", &["weft-ring"]),
    ("weft-control", &["weft-api", "weft-ring", "weft-sched"]),
    ("weft-gsaas", &["weft-api"]),
    ("weft-device", &["weft-ptx", "weft-ring"]),
    ("weft-exec", &["weft-device", "weft-ring", "weft-wire"]),
    ("weft-turn", &["weft-sched"]),
    ("weft-gate", &["weft-ring", "weft-turn"]),
    ("weft-client", &["weft-ring", "weft-wire"]),
    ("weft-cuda", &["weft-client", "weft-wire"]),
    ("weft-endpoint", &["weft-api", "weft-ring", "weft-wire"]),
    ("weft-guest", &["weft-ring", "weft-wire"]),
    ("weft-tasks", &["weft-ring"]),
    ("weft-tasks-c", &["weft-tasks"]),
    ("weft-direct", &["weft-device", "weft-exec", "weft-ring", "weft-wire"]),
    (
        "weft-node",
        &[
            "weft-api",
            "weft-client",
            "weft-device",
            "weft-exec",
            "weft-gate",
            "weft-ptx",
            "weft-ring",
            "weft-sched",
            "weft-tasks",
            "weft-turn",
            "weft-wire",
        ],
    ),
    ("weft-sim", &["weft-sched", "weft-turn"]),
    ("weft-cli", &["weft-api", "weft-device", "weft-node", "weft-sched", "weft-sim", "weft-tasks"]),
    ("xtask", &["weft-wire"]),
];

/// Dependencies that are there for the library that they build, not for their items.
const BUILT: &[(&str, &str)] = &[("weft-cuda", "weft-direct")];

/// Checks everything and reports all that is wrong at once.
pub(crate) fn check() -> Result<()> {
    let mut problems = Vec::new();
    check_sources(&mut problems)?;
    let metadata = metadata()?;
    let packages = metadata["packages"].as_array().context("cargo metadata lists no packages")?;
    check_dependencies(packages, &mut problems);
    check_unused(packages, &mut problems)?;
    if problems.is_empty() {
        return Ok(());
    }
    bail!("{} house rules broken:\n  {}", problems.len(), problems.join("\n  "))
}

fn check_sources(problems: &mut Vec<String>) -> Result<()> {
    let listed = Command::new("git")
        .args(["ls-files", "*.rs"])
        .current_dir(root())
        .output()
        .context("cannot start git")?;
    // Spelled in halves, so that this file does not break its own rule.
    let markers = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];
    for name in String::from_utf8(listed.stdout)?.lines() {
        let Ok(text) = fs::read_to_string(root().join(name)) else {
            continue; // Deleted in the working tree.
        };
        let generated = text.starts_with("// @generated");
        let lines = text.lines().count();
        if lines > FILE_LINES_MAX && !generated {
            problems.push(format!("{name}: {lines} lines, more than {FILE_LINES_MAX}"));
        }
        for (number, line) in text.lines().enumerate() {
            let place = format!("{name}:{}", number + 1);
            if line.chars().count() > LINE_CHARACTERS_MAX && !generated && is_prose(line) {
                problems.push(format!("{place}: longer than {LINE_CHARACTERS_MAX} characters"));
            }
            if markers.iter().any(|marker| line.contains(marker)) {
                problems.push(format!("{place}: a leftover marker; file an issue instead"));
            }
        }
    }
    Ok(())
}

/// Comments, but for rows of tables. Code is rustfmt's business.
fn is_prose(line: &str) -> bool {
    let line = line.trim_start();
    line.starts_with("//") && !line.starts_with("//! |") && !line.starts_with("/// |")
}

fn metadata() -> Result<serde_json::Value> {
    let output = cargo()
        .args(["metadata", "--format-version", "1", "--no-deps", "--locked"])
        .current_dir(root())
        .output()
        .context("cannot start cargo metadata")?;
    serde_json::from_slice(&output.stdout).context("cargo metadata printed no JSON")
}

fn check_dependencies(packages: &[serde_json::Value], problems: &mut Vec<String>) {
    let seen: BTreeSet<&str> = packages.iter().filter_map(|p| p["name"].as_str()).collect();
    for (name, _) in DEPENDENCIES {
        if !seen.contains(name) {
            problems.push(format!("the dependency table names {name}, which does not exist"));
        }
    }
    for package in packages {
        let name = package["name"].as_str().unwrap_or_default();
        let Some((_, allowed)) = DEPENDENCIES.iter().find(|(known, _)| *known == name) else {
            problems.push(format!("{name} is missing in the dependency table"));
            continue;
        };
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let target = dependency["name"].as_str().unwrap_or_default();
            if dependency["kind"].is_null() && seen.contains(target) && !allowed.contains(&target) {
                problems.push(format!("{name} must not depend on {target}"));
            }
        }
    }
}

/// A dependency that no source of its package names is not needed, or is needed for what it builds
/// ([`BUILT`]).
fn check_unused(packages: &[serde_json::Value], problems: &mut Vec<String>) -> Result<()> {
    for package in packages {
        let name = package["name"].as_str().unwrap_or_default();
        let manifest = package["manifest_path"].as_str().context("a package without a path")?;
        let folder = Path::new(manifest).parent().context("a manifest without a folder")?;
        let mut words = BTreeSet::new();
        for file in rust_files(folder)? {
            let text = fs::read_to_string(&file)?;
            let is_part = |c: char| c.is_alphanumeric() || c == '_';
            words.extend(text.split(|c| !is_part(c)).map(str::to_owned));
        }
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let target = dependency["name"].as_str().unwrap_or_default();
            let is_named = words.contains(&target.replace('-', "_"));
            if !is_named && !BUILT.contains(&(name, target)) {
                problems.push(format!("{name} does not use its dependency {target}"));
            }
        }
    }
    Ok(())
}

/// The Rust files of a package.
fn rust_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            files.extend(rust_files(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_repository_keeps_its_rules() {
        super::check().unwrap();
    }
}
