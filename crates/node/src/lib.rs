#![forbid(unsafe_code)]
//! The node: a daemon that hands out vGPUs and schedules them, and the workers that execute.
//!
//! [`run_node`] is the daemon, [`run_worker`] the process that executes one session's commands
//! (the daemon starts it as the hidden subcommand `worker` of its own program), [`admin::Client`]
//! is how tools talk to a daemon.

pub mod admin;
pub mod config;
mod daemon;
pub mod journal;
mod link;
mod metrics;
mod runner;
mod worker;

pub use config::{NodeConfig, Processors};
pub use weft_wire::id::DEVICES_MAX as PROCESS_DEVICES_MAX;

/// Runs the daemon until it is told to stop.
///
/// # Errors
/// When the node cannot start: the sockets are taken, the device cannot be created.
pub fn run_node(config: NodeConfig) -> anyhow::Result<()> {
    abort_on_panic();
    // What this process was started with is no business of the workers that it starts. A kernel
    // before 5.11 cannot do it at once; what Weft opens itself is marked anyway.
    let _ = weft_ring::peer::close_rest_on_exec();
    daemon::run(config)
}

/// Checks what a daemon would need before it starts, without starting it or disturbing one that
/// runs: directories, vGPUs, groups, the device. Answers the whole configuration as TOML.
///
/// # Errors
/// What would keep it from starting.
pub fn check_node(config: &NodeConfig) -> anyhow::Result<String> {
    daemon::check(config)
}

/// Runs one session's worker; the daemon hands over the session on standard input.
///
/// # Errors
/// When the session cannot be set up.
pub fn run_worker() -> anyhow::Result<()> {
    abort_on_panic();
    worker::run()
}

/// Runs the task runner of one virtual accelerator; the daemon hands it over on standard input.
///
/// # Errors
/// When it cannot be set up.
pub fn run_runner() -> anyhow::Result<()> {
    abort_on_panic();
    runner::run()
}

/// Runs the process that ends boosts which nobody else ends; the daemon hands everything over on
/// standard input.
///
/// # Errors
/// When it cannot watch.
pub fn run_watchdog() -> anyhow::Result<()> {
    daemon::run_watchdog()
}

/// A thread that is gone would leave the others waiting for what it did. The process is made to be
/// replaced: the next daemon adopts the workers, and a worker's end is an error for its tenant.
fn abort_on_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        std::process::abort();
    }));
}

/// Names of the policies that a node can run.
#[must_use]
pub fn policy_names() -> Vec<&'static str> {
    weft_sched::policy::node_names().collect()
}

/// What of this machine matters to a node, for `weft doctor` without a daemon.
#[must_use]
pub fn local_checks() -> Vec<admin::DoctorCheck> {
    daemon::local_checks()
}

/// The GPUs of this machine, for `weft doctor`. Loads their driver into this process.
#[must_use]
pub fn gpu_checks() -> Vec<admin::DoctorCheck> {
    daemon::gpu_checks()
}
