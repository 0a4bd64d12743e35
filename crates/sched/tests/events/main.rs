//! The corpus of the fuzz target `sched_events`, and random bytes, against the core.
#![allow(unreachable_pub, reason = "the harness is included by the fuzz target too")]

mod harness;

use std::fs;
use std::path::Path;

use proptest::prelude::*;

#[test]
fn the_corpus_breaks_nothing() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/sched_events");
    let mut inputs = 0;
    for entry in fs::read_dir(corpus).expect("the corpus is there") {
        let path = entry.expect("an entry").path();
        harness::attack(&fs::read(path).expect("a file"));
        inputs += 1;
    }
    assert!(inputs > 0);
}

proptest! {
    #[test]
    fn no_bytes_break_anything(data in prop::collection::vec(any::<u8>(), 0..1_500)) {
        harness::attack(&data);
    }
}
