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
    /// The pinned window, and behind it what managed memory may have.
    pub(super) pinned: MemoryFile,
    /// Bytes that it may have.
    pub(super) managed_bytes: u64,
    /// Where in a virtual machine's region both are.
    pub(super) place: Option<Held>,
    /// What carries marks to that machine.
    pub(super) marks: Option<Marks>,
}

impl SessionMemory {
    /// Files of its own, or a place in its machine's region. A program gets no larger window than
    /// it has addresses for: what is left of them behind it is for managed memory, of which a
    /// machine's programs have none.
    pub(super) fn make(
        client: &Client,
        pinned_bytes: u64,
        managed_bytes: u64,
        limits: &LimitsConfig,
    ) -> anyhow::Result<Self> {
        if let Client::Guest { region, .. } = client {
            let (place, marks) = region.take()?;
            let all = place.part.pinned_bytes;
            let pinned_bytes = (pinned_bytes / PAGE as u64 * PAGE as u64).clamp(PAGE as u64, all);
            let (segment, pinned) = (place.segment()?, place.pinned()?.part(0, pinned_bytes)?);
            let (place, marks) = (Some(place), Some(marks));
            return Ok(Self { segment, pinned, managed_bytes: 0, place, marks });
        }
        let segment = Segment::create(usize::try_from(limits.arena.0)?)?;
        let addresses = pinned_bytes;
        let page = PAGE as u64;
        let pinned_bytes = addresses.min(limits.pinned.0).next_multiple_of(page);
        let managed_bytes = managed_bytes.min(addresses.saturating_sub(pinned_bytes)) / page * page;
        let window_bytes = usize::try_from(pinned_bytes + managed_bytes)?.max(PAGE);
        let pinned = MemoryFile::create("weft-pinned", window_bytes)?;
        Ok(Self { segment, pinned, managed_bytes, place: None, marks: None })
    }
}
