//! A hostile client against the worker's side of a segment.
#![no_main]

#[path = "../../crates/ring/tests/hostile/harness.rs"]
mod harness;

libfuzzer_sys::fuzz_target!(|data: &[u8]| harness::attack(data));
