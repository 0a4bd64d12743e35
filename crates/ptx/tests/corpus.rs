//! Every text of the corpus parses, and what comes out has the right outline.

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
