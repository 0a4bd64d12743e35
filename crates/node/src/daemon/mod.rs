//! The daemon.

mod ledger;
mod registry;
