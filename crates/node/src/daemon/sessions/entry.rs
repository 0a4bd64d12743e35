//! A session, as the daemon's other parts see it.

use std::sync::Arc;

use weft_api::node::{Elsewhere, Place, Whereabouts};
use weft_ring::{Loss, Segment};
use weft_sched::DeviceKey;

use crate::daemon::log::printable;
use crate::daemon::process::WorkerProcess;

/// Characters of a program's name, as the tenant says it.
const PROGRAM_CHARS_MAX: usize = 64;

/// A session, as the daemon's other parts see it.
#[derive(Debug)]
pub(crate) struct Entry {
    /// Key of its vGPU.
    pub(crate) vgpu: u32,
    /// The device that executes it.
    pub(crate) device: DeviceKey,
    /// The tenant's user.
    pub(crate) uid: u32,
    /// The user whose tenant pays: what bounds are about.
    pub(crate) payer: u32,
    /// The tenant's process; of a program that is elsewhere the one that relays for it.
    pub(crate) pid: u32,
    /// Where its program is, if it is no process of this node.
    pub(crate) elsewhere: Option<Elsewhere>,
    /// The tenant's program.
    pub(crate) program: String,
    /// Its worker, once it runs.
    pub(crate) worker: Option<Arc<WorkerProcess>>,
    /// Its segment, once its worker runs.
    pub(crate) segment: Option<Segment>,
    /// The region of a virtual machine in which its lanes and pinned memory lie, and which pays for
    /// all of that; known once its worker runs.
    pub(crate) region: Option<[u8; 16]>,
    /// When it ends nobody waits for what it leaves on the device.
    pub(crate) ends_at_once: bool,
}

impl Entry {
    /// Ends the session: its tenant is told why, its worker is killed, and nobody waits for what it
    /// leaves on the device.
    pub(super) fn end(&mut self, loss: Loss) {
        self.ends_at_once = true;
        if let Some(worker) = self.worker.take() {
            self.tell(loss);
            // One that is gone already has been noticed by its thread.
            let _ = worker.kill();
        }
    }

    fn tell(&self, loss: Loss) {
        if let Some(Err(error)) = self.segment.as_ref().map(|segment| segment.declare_lost(loss)) {
            tracing::error!(pid = self.pid, %error, "the tenant could not be told");
        }
    }

    /// Which program it is of, for people.
    pub(crate) fn whereabouts(&self) -> Whereabouts<'_> {
        Whereabouts { pid: self.pid, elsewhere: self.elsewhere.as_ref() }
    }

    /// Whether its program is that process, or in that process's virtual machine. The gateway is
    /// no tenant's.
    pub(crate) fn is_of_process(&self, pid: u32) -> bool {
        self.pid == pid && !is_of_host(self.elsewhere.as_ref())
    }
}

/// A program's name by its own word: whatever is written around names in lists is none of it.
pub(crate) fn program_name(claimed: &str) -> String {
    printable(claimed, PROGRAM_CHARS_MAX).replace(['(', ')', ','], "_")
}

/// Whether a program came through the node's gateway, which serves everybody and pays for nobody.
pub(crate) fn is_relayed(elsewhere: Option<&Elsewhere>) -> bool {
    elsewhere.is_some_and(|elsewhere| elsewhere.address.is_some())
}

/// Whether a program is another host's: the process through which it comes says nothing about it.
fn is_of_host(elsewhere: Option<&Elsewhere>) -> bool {
    elsewhere.is_some_and(|elsewhere| elsewhere.place == Place::Host)
}
