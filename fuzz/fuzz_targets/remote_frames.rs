//! What comes over a remote session's connection, at both ends, and what a grant's text may be.
#![no_main]

#[path = "../../crates/endpoint/tests/frames/harness.rs"]
mod harness;

libfuzzer_sys::fuzz_target!(|data: &[u8]| harness::hear(data));
