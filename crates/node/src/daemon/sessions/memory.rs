//! The memory of a session that a tenant and its worker share.

use weft_ring::{MemoryFile, PAGE, Segment};

use crate::config::LimitsConfig;
use crate::daemon::attach::Client;
use crate::daemon::attach::vm::{Held, Marks};

/// A new session's memory.
#[derive(Debug)]
pub(super) struct SessionMemory {
    /// Lanes and arena.
    pub(super) segment: MemoryFile,
    /// The pinned window.
    pub(super) pinned: MemoryFile,
    /// Where in a virtual machine's region both are.
    pub(super) place: Option<Held>,
    /// What carries marks to that machine.
    pub(super) marks: Option<Marks>,
}

impl SessionMemory {
    /// Files of its own, or a place in its machine's region. A program gets no larger window than
    /// it has addresses for.
    pub(super) fn make(
        client: &Client,
        pinned_bytes: u64,
        limits: &LimitsConfig,
    ) -> anyhow::Result<Self> {
        if let Client::Guest { region, .. } = client {
            let (place, marks) = region.take()?;
            let all = place.part.pinned_bytes;
            let pinned_bytes = (pinned_bytes / PAGE as u64 * PAGE as u64).clamp(PAGE as u64, all);
            let (segment, pinned) = (place.segment()?, place.pinned()?.part(0, pinned_bytes)?);
            return Ok(Self { segment, pinned, place: Some(place), marks: Some(marks) });
        }
        let segment = Segment::create(usize::try_from(limits.arena.0)?)?;
        let pinned_bytes = usize::try_from(pinned_bytes.min(limits.pinned.0))?.max(PAGE);
        let pinned = MemoryFile::create("weft-pinned", pinned_bytes)?;
        Ok(Self { segment, pinned, place: None, marks: None })
    }
}
