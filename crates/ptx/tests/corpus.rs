//! Every text of the corpus parses, and what comes out has the right outline.

#![expect(clippy::unwrap_used, reason = "a panic is the report of a test")]

use std::path::{Path, PathBuf};

fn corpus(folder: &str, extension: &str) -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus").join(folder);
    let mut all: Vec<PathBuf> = std::fs::read_dir(root)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == extension))
        .collect();
    all.sort();
    assert!(!all.is_empty(), "no .{extension} files in {folder}");
    all
}

#[test]
fn texts_of_compilers_parse() {
    let mut failures = Vec::new();
    for folder in ["cuda", "tinygrad", "hand"] {
        for path in corpus(folder, "ptx") {
            let text = std::fs::read(&path).unwrap();
            match weft_ptx::parse(&text) {
                Ok(module) => {
                    let kernels = String::from_utf8_lossy(&text).matches(".entry ").count();
                    assert_eq!(module.kernels().count(), kernels, "{}", path.display());
                }
                Err(error) => failures.push(format!("{}: {error}", path.display())),
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Parses every `.ptx` below a folder named by `WEFT_PTX_CORPUS`: for texts too many to commit.
#[test]
fn external_corpus_parses() {
    let Some(root) = std::env::var_os("WEFT_PTX_CORPUS") else { return };
    let mut failures = Vec::new();
    for entry in std::fs::read_dir(root).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "ptx") {
            let text = std::fs::read(&path).unwrap();
            if let Err(error) = weft_ptx::parse(&text) {
                failures.push(format!("{}: {error}", path.display()));
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
