//! The scheduling core from outside: its protocol, and whole histories on model devices with every
//! invariant checked. One program, so that the models are compiled and linked once.

#![expect(clippy::unwrap_used, reason = "a panic here is the test's report")]

mod caps;
mod cheats;
mod classes;
mod debts;
mod driver;
mod fairness;
mod journal;
#[path = "../model/mod.rs"]
mod model;
mod moments;
mod moves;
mod pausers;
mod placement;
mod pool;
mod pool_sizes;
mod preference;
mod protocol;
mod random;
mod soak;
mod strategies;
mod switches;
