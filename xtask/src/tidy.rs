//! House rules that no compiler checks.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::shell::{cargo, root};

/// Most lines of a hand-written Rust file.
const FILE_LINES_MAX: usize = 800;
/// Longest line of a comment, in characters.
const LINE_CHARACTERS_MAX: usize = 100;

/// The page that says who may depend on whom.
const PAGE: &str = "docs/architecture.md";
/// The first line of its table.
const TABLE: &str = "| crate | what it is | depends on |";

/// Dependencies that are there for the library that they build, not for their items.
const BUILT: &[(&str, &str)] = &[("weft-cuda", "weft-direct")];

/// Checks everything and reports all that is wrong at once.
pub(crate) fn check() -> Result<()> {
    let mut problems = Vec::new();
    check_sources(&mut problems)?;
    let metadata = metadata()?;
    let packages = metadata["packages"].as_array().context("cargo metadata lists no packages")?;
    let page = fs::read_to_string(root().join(PAGE)).with_context(|| format!("no {PAGE}"))?;
    check_dependencies(&page, packages, &mut problems)?;
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

/// What each crate depends on, by the table of a page. Development dependencies are not in it.
///
/// # Errors
/// If the page has no such table, or one with a row that cannot be read.
fn table_of(page: &str) -> Result<BTreeMap<String, BTreeSet<String>>> {
    let rows = page.lines().skip_while(|line| *line != TABLE).skip(2);
    let mut table = BTreeMap::new();
    for row in rows.take_while(|line| line.starts_with('|')) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [name, _, dependencies] = cells[..] else { bail!("{PAGE}: not three cells: {row}") };
        let dependencies = dependencies.split(", ").filter(|name| *name != "–");
        table.insert(package_of(name.trim_matches('`')), dependencies.map(package_of).collect());
    }
    if table.is_empty() {
        bail!("{PAGE} has no table that begins with {TABLE}");
    }
    Ok(table)
}

/// The package of a crate that the page names.
fn package_of(name: &str) -> String {
    if name == "xtask" { name.to_owned() } else { format!("weft-{name}") }
}

/// Holds the page's table against the packages, both ways.
fn check_dependencies(
    page: &str,
    packages: &[serde_json::Value],
    problems: &mut Vec<String>,
) -> Result<()> {
    let table = table_of(page)?;
    let seen: BTreeSet<&str> = packages.iter().filter_map(|p| p["name"].as_str()).collect();
    for name in table.keys().filter(|name| !seen.contains(name.as_str())) {
        problems.push(format!("{PAGE} names {name}, which does not exist"));
    }
    for package in packages {
        let name = package["name"].as_str().unwrap_or_default();
        let Some(allowed) = table.get(name) else {
            problems.push(format!("{name} is missing in the table of {PAGE}"));
            continue;
        };
        let all = package["dependencies"].as_array().into_iter().flatten();
        let targets = all.filter(|of| of["kind"].is_null()).filter_map(|of| of["name"].as_str());
        let targets: BTreeSet<&str> = targets.filter(|target| seen.contains(target)).collect();
        for target in targets.iter().filter(|target| !allowed.contains(**target)) {
            problems.push(format!("{name} must not depend on {target}: see {PAGE}"));
        }
        for target in allowed.iter().filter(|target| !targets.contains(target.as_str())) {
            problems.push(format!("{PAGE} says that {name} depends on {target}"));
        }
    }
    Ok(())
}

fn check_unused(packages: &[serde_json::Value], problems: &mut Vec<String>) -> Result<()> {
    for package in packages {
        let manifest = package["manifest_path"].as_str().context("a package without a path")?;
        let folder = Path::new(manifest).parent().context("a manifest without a folder")?;
        let files = rust_files(folder)?;
        let sources = files.iter().map(fs::read_to_string).collect::<Result<Vec<_>, _>>()?;
        let name = package["name"].as_str().unwrap_or_default();
        for target in unused(package, &sources) {
            problems.push(format!("{name} does not use its dependency {target}"));
        }
    }
    Ok(())
}

/// The dependencies that no source of their package names, but for those that are needed for what
/// they build ([`BUILT`]). A comment names nothing.
fn unused<'a>(package: &'a serde_json::Value, sources: &[String]) -> Vec<&'a str> {
    let name = package["name"].as_str().unwrap_or_default();
    let lines = sources.iter().flat_map(|source| source.lines());
    let code = lines.filter(|line| !line.trim_start().starts_with("//"));
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let words: BTreeSet<&str> = code.flat_map(|line| line.split(|c| !is_part(c))).collect();
    let all = package["dependencies"].as_array().into_iter().flatten();
    let unnamed = all.filter(|dependency| !words.contains(name_in_code(dependency).as_str()));
    let targets = unnamed.filter_map(|dependency| dependency["name"].as_str());
    targets.filter(|target| !BUILT.contains(&(name, *target))).collect()
}

/// What a package's sources call a dependency.
fn name_in_code(dependency: &serde_json::Value) -> String {
    let rename = dependency["rename"].as_str();
    let name = rename.or_else(|| dependency["name"].as_str());
    name.unwrap_or_default().replace('-', "_")
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
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn the_repository_keeps_its_rules() {
        check().unwrap();
    }

    const MADE_UP: &str = "| crate | what it is | depends on |\n|---|---|---|\n\
                           | `wire` | messages | – |\n| `ring` | memory | wire |\n\
                           | `xtask` | chores | wire |\n\n| x |";

    fn problems(page: &str, packages: &[Value]) -> Vec<String> {
        let mut problems = Vec::new();
        check_dependencies(page, packages, &mut problems).unwrap();
        problems
    }

    fn package(name: &str, dependencies: &[(&str, Value)]) -> Value {
        let one = |(name, kind): &(&str, Value)| json!({ "name": name, "kind": kind });
        let dependencies: Vec<Value> = dependencies.iter().map(one).collect();
        json!({ "name": name, "dependencies": dependencies })
    }

    #[test]
    fn the_table_of_the_page_is_what_the_packages_are_held_against() {
        let wire = || package("weft-wire", &[("serde", Value::Null), ("weft-ring", json!("dev"))]);
        let ring = |on: &str| package("weft-ring", &[(on, Value::Null)]);
        let xtask = || package("xtask", &[("weft-wire", Value::Null)]);
        assert!(problems(MADE_UP, &[wire(), ring("weft-wire"), xtask()]).is_empty());
        let unlike = problems(MADE_UP, &[wire(), ring("xtask"), xtask(), package("weft-x", &[])]);
        assert_eq!(
            unlike,
            [
                "weft-ring must not depend on xtask: see docs/architecture.md",
                "docs/architecture.md says that weft-ring depends on weft-wire",
                "weft-x is missing in the table of docs/architecture.md",
            ]
        );
        let gone = problems(MADE_UP, &[wire(), ring("weft-wire")]);
        assert_eq!(gone, ["docs/architecture.md names xtask, which does not exist"]);
        table_of("no table").unwrap_err();
    }

    #[test]
    fn a_dependency_that_only_a_comment_names_is_unused() {
        let dependencies = ["serde", "serde-json", "weft-ring"].map(|name| (name, Value::Null));
        let made_up = package("weft-x", &dependencies);
        let sources = ["//! See serde.\nuse serde_json::Value;", "    // weft_ring is not used"];
        assert_eq!(unused(&made_up, &sources.map(str::to_owned)), ["serde", "weft-ring"]);
        let mut renamed = package("weft-y", &[("weft-ring", Value::Null)]);
        renamed["dependencies"][0]["rename"] = json!("ring");
        assert!(unused(&renamed, &["use ring::Lane;".to_owned()]).is_empty());
        // What is there for its library needs no name.
        let built = package("weft-cuda", &[("weft-direct", json!("dev"))]);
        assert!(unused(&built, &[]).is_empty());
    }
}
