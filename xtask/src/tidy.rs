//! House rules that no compiler checks.

use std::collections::BTreeSet;
use std::fs;
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
    ("weft-device", &["weft-ptx", "weft-ring"]),
    ("weft-exec", &["weft-device", "weft-ptx", "weft-ring", "weft-wire"]),
    ("weft-turn", &["weft-sched"]),
    ("weft-gate", &["weft-ring", "weft-turn"]),
    ("weft-client", &["weft-ring", "weft-wire"]),
    ("weft-cuda", &["weft-client", "weft-gate", "weft-wire"]),
    ("weft-direct", &["weft-device", "weft-exec", "weft-ring", "weft-wire"]),
    (
        "weft-node",
        &[
            "weft-device",
            "weft-exec",
            "weft-gate",
            "weft-ring",
            "weft-sched",
            "weft-turn",
            "weft-wire",
        ],
    ),
    ("weft-sim", &["weft-sched", "weft-turn"]),
    ("weft-cli", &["weft-device", "weft-node", "weft-sched", "weft-sim"]),
    ("xtask", &["weft-wire"]),
];

/// Checks everything and reports all that is wrong at once.
pub(crate) fn check() -> Result<()> {
    let mut problems = Vec::new();
    check_sources(&mut problems)?;
    check_dependencies(&mut problems)?;
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

fn check_dependencies(problems: &mut Vec<String>) -> Result<()> {
    let output = cargo()
        .args(["metadata", "--format-version", "1", "--no-deps", "--locked"])
        .current_dir(root())
        .output()
        .context("cannot start cargo metadata")?;
    let metadata: serde_json::Value =
        serde_json::from_slice(&output.stdout).context("cargo metadata printed no JSON")?;
    let packages = metadata["packages"].as_array().context("cargo metadata lists no packages")?;
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
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_repository_keeps_its_rules() {
        super::check().unwrap();
    }
}
