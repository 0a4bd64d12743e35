//! A virtual machine's server and agent, with hostile peers and with each other.
#![no_main]

#[path = "../../crates/guest/tests/frames/harness/mod.rs"]
mod harness;

libfuzzer_sys::fuzz_target!(|data: &[u8]| harness::hear(data));
