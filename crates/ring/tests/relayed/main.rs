//! A relay with a client that says anything: the fuzzer's corpus, and random inputs.

#![cfg(not(loom))]

mod harness;

use std::path::PathBuf;

fn corpus() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/relay_hostile")
}

#[test]
fn the_corpus_is_survived() {
    let mut inputs = 0;
    for entry in std::fs::read_dir(corpus()).unwrap() {
        harness::carry(&std::fs::read(entry.unwrap().path()).unwrap());
        inputs += 1;
    }
    assert!(inputs > 0, "the corpus is empty");
}

#[test]
fn random_inputs_are_survived() {
    let mut number = 1_u32;
    for _ in 0..if cfg!(miri) { 10 } else { 1000 } {
        let mut next = || {
            number = number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            number.to_be_bytes()[0]
        };
        let input: Vec<u8> = (0..400).map(|_| next()).collect();
        harness::carry(&input);
    }
}
