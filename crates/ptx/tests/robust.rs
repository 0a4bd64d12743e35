//! No input makes the readers panic.
#![expect(clippy::unwrap_used, reason = "a panic is the report of a test")]

use std::path::{Path, PathBuf};

use proptest::prelude::*;

fn files(folder: &Path, out: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { files(&path, out) } else { out.push(path) }
    }
}

/// Everything that a fuzz target does with an input.
fn exercise(bytes: &[u8]) {
    if let Ok(module) = weft_ptx::parse(bytes) {
        for function in &module.functions {
            let body = function.body.as_deref().unwrap_or_default();
            let cfg = weft_ptx::cfg::Cfg::new(body);
            assert_eq!(cfg.block_of.len(), body.len());
        }
        let sliced = weft_ptx::slice::rewrite(bytes).unwrap();
        let copy = weft_ptx::parse(&sliced.text).unwrap();
        for piece in sliced.kernels.values().flatten() {
            assert!(copy.kernel(&piece.name).is_some(), "{}", piece.name);
        }
    }
    if let Ok(image) = weft_ptx::image::read(bytes) {
        drop(weft_ptx::link(&image.texts));
    }
    let _ = weft_ptx::image::extent(bytes);
}

fn sample() -> Vec<u8> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
    std::fs::read(root.join("hand/families.ptx")).unwrap()
}

#[test]
fn the_corpus_of_the_fuzz_targets_is_survived() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    let mut all = Vec::new();
    for target in ["ptx_parse", "image_read"] {
        files(&root.join(target), &mut all);
    }
    assert!(!all.is_empty());
    for path in all {
        exercise(&std::fs::read(path).unwrap());
    }
}

const HEAD: &str = ".version 7.5\n.target sm_75\n.address_size 64\n";

#[test]
fn aliases_copy_no_more_than_their_limit() {
    let body = "bar.sync 0;\n".repeat(20_000);
    let alias = |n| format!(".func a{n};\n.alias a{n}, f;\n");
    let text = |n| format!("{HEAD}.func f {{ {body} }}\n{}", (0..n).map(alias).collect::<String>());
    weft_ptx::parse(text(10).as_bytes()).unwrap();
    let error = weft_ptx::parse(text(1000).as_bytes()).unwrap_err();
    assert!(error.to_string().contains("size of aliases"), "{error}");
}

#[test]
fn a_long_name_is_not_repeated_in_every_variable() {
    let name = "f".repeat(10_000);
    let variables: String = (0..1000).map(|n| format!(".shared .b8 s{n}[1];\n")).collect();
    let module =
        weft_ptx::parse(format!("{HEAD}.func {name} {{ {variables} }}").as_bytes()).unwrap();
    let bytes: usize = module.variables.iter().map(|v| v.name.len()).sum();
    assert!(bytes < 1_000_000, "{bytes} bytes of names");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        exercise(&bytes);
    }

    #[test]
    fn any_tokens(words in proptest::collection::vec(prop_oneof![
        Just("ld"), Just(".param"), Just(".u32"), Just("%r1"), Just("["), Just("]"), Just("{"),
        Just("}"), Just(","), Just(";"), Just("@"), Just("!"), Just(":"), Just("call"), Just("("),
        Just(")"), Just(".reg"), Just(".b64"), Just("mov"), Just("0x10"), Just("-"), Just("x"),
        Just("<"), Just(">"), Just("bra"), Just("|"), Just(".shared"), Just("="), Just("1.5"),
        Just("cvt"), Just("setp"), Just(".lt"), Just("%tid"), Just(".x"), Just(".local"), Just("+"),
    ], 0..80)) {
        let text = format!(".version 7.5\n.entry k (.param .u64 x) {{ .reg .b32 %r<4>; {}", words.join(" "));
        exercise(text.as_bytes());
    }

    #[test]
    fn mutations_of_a_text(edits in proptest::collection::vec((any::<usize>(), any::<u8>(), 0..3u8), 1..8)) {
        let mut bytes = sample();
        for (at, byte, kind) in edits {
            let at = at % bytes.len();
            match kind {
                0 => bytes[at] = byte,
                1 => { bytes.remove(at); }
                _ => bytes.insert(at, byte & 0x7F),
            }
        }
        exercise(&bytes);
    }

    #[test]
    fn headers_of_fat_binaries(tail in proptest::collection::vec(any::<u8>(), 0..300), flags in any::<u16>()) {
        let mut bytes = vec![0x50, 0xED, 0x55, 0xBA, 1, 0, 16, 0];
        bytes.extend_from_slice(&(64 + tail.len() as u64).to_le_bytes());
        let mut entry = vec![0u8; 64];
        entry[0] = 1;
        entry[4] = 64;
        entry[8..16].copy_from_slice(&(tail.len() as u64).to_le_bytes());
        entry[16] = u8::try_from(tail.len().min(255)).unwrap();
        entry[40..42].copy_from_slice(&flags.to_le_bytes());
        entry[56..58].copy_from_slice(&flags.to_le_bytes());
        bytes.extend_from_slice(&entry);
        bytes.extend_from_slice(&tail);
        exercise(&bytes);
    }
}
