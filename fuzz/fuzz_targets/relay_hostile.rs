//! A relay between a session's worker and a client elsewhere, either of which does anything.
#![no_main]

#[path = "../../crates/ring/tests/relayed/harness.rs"]
mod harness;

libfuzzer_sys::fuzz_target!(|data: &[u8]| harness::carry(data));
