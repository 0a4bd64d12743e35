//! Memory shared with the tenant: every offset, address and length is checked here.

use weft_ring::SharedSpan;
use weft_wire::command::{Block, Payload};

use crate::error::Violation;

/// The memory that a session shares with its tenant.
#[derive(Debug, Clone)]
pub struct Shared {
    /// The segment's arena.
    pub arena: SharedSpan,
    /// How many release words the arena has.
    pub arena_blocks: u32,
    /// The pinned window.
    pub pinned: SharedSpan,
    /// Host address of the window's first byte (the same on both sides).
    pub pinned_base: u64,
}

impl Shared {
    /// The bytes of an arena block.
    pub(crate) fn block(&self, block: &Block) -> Result<SharedSpan, Violation> {
        let &Block { offset, bytes, release } = block;
        let outside = Violation::Block { offset, bytes, release };
        if release >= self.arena_blocks {
            return Err(outside);
        }
        part(&self.arena, offset, bytes).ok_or(outside)
    }

    /// The bytes of the pinned window at a host address.
    pub(crate) fn pinned(&self, address: u64, bytes: u64) -> Result<SharedSpan, Violation> {
        let offset = address.checked_sub(self.pinned_base);
        offset
            .and_then(|offset| part(&self.pinned, offset, bytes))
            .ok_or(Violation::Pinned { address, bytes })
    }

    /// Whether an address lies in the pinned window.
    pub(crate) fn is_pinned(&self, address: u64) -> bool {
        let offset = address.checked_sub(self.pinned_base);
        offset.and_then(|x| usize::try_from(x).ok()).is_some_and(|x| x < self.pinned.len())
    }

    /// A private copy of a payload; a block among it is the caller's to release.
    pub(crate) fn copied(&self, payload: &Payload<'_>) -> Result<Vec<u8>, Violation> {
        match payload {
            Payload::Inline(bytes) => Ok(bytes.to_vec()),
            Payload::Arena(block) => Ok(self.block(block)?.to_vec()),
            Payload::Pinned { address, bytes } => Ok(self.pinned(*address, *bytes)?.to_vec()),
        }
    }
}

fn part(span: &SharedSpan, offset: u64, bytes: u64) -> Option<SharedSpan> {
    span.part(usize::try_from(offset).ok()?, usize::try_from(bytes).ok()?).ok()
}

/// The release word of a payload's block.
pub(crate) fn release_word(payload: &Payload<'_>) -> Option<u32> {
    match payload {
        Payload::Arena(block) => Some(block.release),
        Payload::Inline(_) | Payload::Pinned { .. } => None,
    }
}

/// Claimed length of a payload.
pub(crate) fn payload_bytes(payload: &Payload<'_>) -> u64 {
    match payload {
        Payload::Inline(bytes) => bytes.len() as u64,
        Payload::Arena(block) => block.bytes,
        Payload::Pinned { bytes, .. } => *bytes,
    }
}
