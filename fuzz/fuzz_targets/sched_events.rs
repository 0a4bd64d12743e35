//! Any history of events against the scheduling core, with its invariants checked.
#![no_main]

#[path = "../../crates/sched/tests/events/harness.rs"]
mod harness;

libfuzzer_sys::fuzz_target!(|data: &[u8]| harness::attack(data));
