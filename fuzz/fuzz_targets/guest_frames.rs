//! What a virtual machine's guest says over its serial port, and its server at the tenant socket.
#![no_main]

#[path = "../../crates/wire/tests/frames/harness.rs"]
mod harness;

libfuzzer_sys::fuzz_target!(|data: &[u8]| harness::hear(data));
