//! Compares every struct with what a C compiler makes of the header.

use std::path::PathBuf;
use std::process::Command;

use super::{Layout, copy, graph, launch, memory};

fn layouts() -> impl Iterator<Item = &'static Layout> {
    [copy::LAYOUTS, graph::LAYOUTS, launch::LAYOUTS, memory::LAYOUTS].into_iter().flatten()
}

/// The directory of `cuda.h` (13.x): `WEFT_CUDA_HEADERS`, or where the toolkit installs it.
fn headers() -> Option<PathBuf> {
    let asked = std::env::var_os("WEFT_CUDA_HEADERS").map(PathBuf::from);
    let usual = PathBuf::from("/usr/local/cuda/include");
    asked.into_iter().chain([usual]).find(|dir| dir.join("cuda.h").is_file())
}

#[test]
fn layouts_are_those_of_the_header() {
    let Some(headers) = headers() else {
        println!("not run: no cuda.h; set WEFT_CUDA_HEADERS to its directory");
        return;
    };
    let mut source = String::from("#include <stddef.h>\n#include <cuda.h>\n");
    for layout in layouts() {
        let name = layout.name;
        source += &format!("_Static_assert(sizeof({name}) == {}, \"{name}\");\n", layout.size);
        for (field, offset) in layout.fields {
            source += &format!(
                "_Static_assert(offsetof({name}, {field}) == {offset}, \"{name}.{field}\");\n"
            );
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("layout.c");
    std::fs::write(&file, source).unwrap();
    let output = Command::new("cc")
        .args(["-std=c11", "-fsyntax-only", "-I"])
        .arg(headers)
        .arg(file)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
