//! Where a test wants this process to be killed, as by `kill -9`, or to be stopped.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::{Signal, getpid, kill_process};

use crate::plan::Step;

/// The variable that names the place: `before:grant`, `inside:grant` (when the first vGPU of a node
/// is made), `between:grant` (when a node is done, before the next one, if any), `after:grant` or
/// `kept:grant`. `inside` is a place of `grant` and `revoke`, and of `sign` where the VM is on the
/// node's host; `between` one of those three.
pub const VARIABLE: &str = "WEFT_CONTROL_CRASH_AT";

/// The variable that names the place at which it is stopped, once, as by `kill -STOP`.
pub const STOP_VARIABLE: &str = "WEFT_CONTROL_STOP_AT";

/// Places, or none.
#[derive(Debug, Clone, Default)]
pub struct Crash {
    kill: Option<Arc<str>>,
    stop: Option<Arc<str>>,
    was_stopped: Arc<AtomicBool>,
}

impl Crash {
    /// What the environment says.
    #[must_use]
    pub fn from_environment() -> Self {
        let place = |variable| std::env::var(variable).ok().map(Arc::from);
        Self { kill: place(VARIABLE), stop: place(STOP_VARIABLE), was_stopped: Arc::default() }
    }

    /// Kills or stops this process if this is the place.
    pub fn at(&self, when: &str, step: Step) {
        let here = |place: &Option<Arc<str>>| {
            let place = place.as_ref().and_then(|place| place.split_once(':'));
            place == Some((when, step.name()))
        };
        if here(&self.kill) {
            // A process may kill itself.
            let _ = kill_process(getpid(), Signal::KILL);
        }
        if here(&self.stop) && !self.was_stopped.swap(true, Ordering::Relaxed) {
            let _ = kill_process(getpid(), Signal::STOP);
        }
    }
}
