//! A hostile tenant's commands against a session on the software device.
#![no_main]

#[path = "../../crates/exec/tests/hostile/harness.rs"]
mod harness;

libfuzzer_sys::fuzz_target!(|data: &[u8]| harness::attack(data));
