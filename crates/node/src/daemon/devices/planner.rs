//! A thread that decides where vGPUs lie, as their turns end: what is counted of each, and the
//! search for a better layout, which takes milliseconds where there are many vGPUs.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use super::residency::Residency;

/// Turns whose end waits to be counted; one beyond that is not counted.
const ENDS_MAX: usize = 1024;

/// A turn that is over.
#[derive(Debug)]
pub(crate) struct TurnEnd {
    /// The device's slots.
    pub(crate) slots: Arc<Residency>,
    /// When, in ns.
    pub(crate) now_ns: u64,
    /// Whose turn.
    pub(crate) vgpu: u32,
    /// For how long it used the device, in ns.
    pub(crate) used_ns: u64,
}

/// The thread. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Planner {
    ends: SyncSender<TurnEnd>,
}

impl Planner {
    /// Starts it; without one, vGPUs lie where they came to lie first.
    pub(crate) fn start() -> Option<Self> {
        let (sender, ends) = sync_channel(ENDS_MAX);
        let thread = std::thread::Builder::new().name("weft-planner".to_owned());
        match thread.spawn(move || run(&ends)) {
            Ok(_) => Some(Self { ends: sender }),
            Err(error) => {
                tracing::warn!(%error, "device memory is not placed anew");
                None
            }
        }
    }

    /// Counts a turn.
    pub(crate) fn end_turn(&self, end: TurnEnd) {
        // Full: it counts as not used.
        let _ = self.ends.try_send(end);
    }
}

fn run(ends: &Receiver<TurnEnd>) {
    while let Ok(TurnEnd { slots, now_ns, vgpu, used_ns }) = ends.recv() {
        slots.end_turn(now_ns, vgpu, used_ns);
    }
}
