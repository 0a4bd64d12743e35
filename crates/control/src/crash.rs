//! Where a test wants this process to be killed, as by `kill -9`.

use std::sync::Arc;

use rustix::process::{Signal, getpid, kill_process};

use crate::plan::Step;

/// The variable that names the place: `before:grant`, `inside:grant`, `after:grant` or
/// `kept:grant`.
pub const VARIABLE: &str = "WEFT_CONTROL_CRASH_AT";

/// A place, or none.
#[derive(Debug, Clone, Default)]
pub struct Crash(Option<Arc<str>>);

impl Crash {
    /// What the environment says.
    #[must_use]
    pub fn from_environment() -> Self {
        Self(std::env::var(VARIABLE).ok().map(Arc::from))
    }

    /// Kills this process if this is the place.
    pub fn at(&self, when: &str, step: Step) {
        let Some(place) = &self.0 else { return };
        if place.split_once(':') == Some((when, step.name())) {
            // A process may kill itself.
            let _ = kill_process(getpid(), Signal::KILL);
        }
    }
}
