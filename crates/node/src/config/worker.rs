//! The processes that execute.

use serde::{Deserialize, Serialize};

use super::CompilingConfig;

/// The processes that execute.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WorkerConfig {
    /// User and group of the first worker; each has a number of its own from here on. Only a
    /// daemon that is root can give them; 0 leaves workers the daemon's user.
    pub user: u32,
    /// Nice levels by which whoever has a device or is next, and the thread that hands it out, go
    /// before the daemon's other threads: -20 to 0, which is not at all, nor does anybody go after
    /// them for what it does outside of turns. Only a daemon with `CAP_SYS_NICE` can give them.
    pub nice: i32,
    /// What compiling modules may take of others; the default bounds it.
    pub compiling: CompilingConfig,
}

impl Default for WorkerConfig {
    fn default() -> Self {
        // A user that is nobody's: between what containers and what the system hand out. As heavy
        // as eighty-six ordinary threads.
        Self { user: 1_900_000_000, nice: -20, compiling: CompilingConfig::default() }
    }
}

impl WorkerConfig {
    pub(super) fn check(&self) -> Result<(), String> {
        match self.nice {
            -20..=0 => Ok(()),
            nice => Err(format!("worker.nice: {nice} is outside -20..=0")),
        }
    }

    /// The user that the worker of a session becomes; `None` when it stays what it is.
    #[must_use]
    pub fn user_of(&self, session: u32) -> Option<u32> {
        let may = rustix::process::geteuid().is_root() && self.user != 0;
        may.then(|| self.user.saturating_add(session))
    }
}
