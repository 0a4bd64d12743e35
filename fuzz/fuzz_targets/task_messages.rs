//! What is said about tasks: to the daemon, to a runner, and back.
#![no_main]

#[path = "../../crates/tasks/tests/messages/harness.rs"]
mod harness;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    harness::hear(data);
});
