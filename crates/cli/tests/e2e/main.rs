//! End to end: the real daemon, its workers, the real shim, and unmodified programs.
//!
//! `cargo xtask test` builds the programs and says where they are (`WEFT_TEST_*`); without that
//! these tests fail with a message that says so.

#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "a panic is a test's report")]

mod accounting;
mod adversary;
mod benchmark;
mod classes;
mod cloud;
mod compute_host;
mod containers;
mod devices;
mod faults;
mod genuine;
mod guests;
mod hierarchy;
mod hostile;
mod ipc;
mod isolation;
mod journal;
mod lending;
mod localities;
mod memory;
mod moves;
mod network;
mod node;
mod people;
mod pool_shares;
mod pools;
mod processors;
mod programs;
mod quiet;
mod registry;
mod remote;
mod run;
mod sessions;
mod shares;
mod slurm;
mod support;
mod swap;
mod switching;
mod tasks;
mod units;
