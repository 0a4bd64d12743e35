//! Memory shared with the tenant: every offset, address and length is checked here.

use std::sync::Arc;

use weft_ring::SharedSpan;
use weft_wire::Status;
use weft_wire::command::{Block, Payload};

use crate::error::{Reject, Violation};
use crate::ranges::Ranges;

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
    /// What of it the tenant has taken.
    pub(crate) ranges: Ranges,
}

impl Shared {
    /// An arena with so many release words, and a pinned window that begins at a host address, of
    /// which nothing is taken.
    pub fn new(arena: SharedSpan, arena_blocks: u32, pinned: SharedSpan, pinned_base: u64) -> Self {
        Self { arena, arena_blocks, pinned, pinned_base, ranges: Ranges::default() }
    }

    /// The bytes of an arena block.
    pub(crate) fn block(&self, block: &Block) -> Result<SharedSpan, Violation> {
        let &Block { offset, bytes, release } = block;
        let outside = Violation::Block { offset, bytes, release };
        if release >= self.arena_blocks {
            return Err(outside);
        }
        part(&self.arena, offset, bytes).ok_or(outside)
    }

    /// The bytes at a host address of the pinned window, if the tenant has taken them.
    pub(crate) fn pinned(&self, address: u64, bytes: u64) -> Result<SharedSpan, Reject> {
        let span = self.window(address, bytes)?;
        match self.ranges.contains(address, bytes) {
            true => Ok(span),
            false => Err(Status::INVALID_VALUE.into()),
        }
    }

    /// The bytes at a host address of the pinned window, whoever has them.
    pub(crate) fn window(&self, address: u64, bytes: u64) -> Result<SharedSpan, Violation> {
        let offset = address.checked_sub(self.pinned_base);
        offset
            .and_then(|offset| part(&self.pinned, offset, bytes))
            .ok_or(Violation::Pinned { address, bytes })
    }

    /// Whether bytes that lay in the window when they were found are still taken.
    pub(crate) fn is_taken(&self, span: &SharedSpan) -> bool {
        if !Arc::ptr_eq(span.mapping(), self.pinned.mapping()) {
            return true;
        }
        let offset = span.offset().checked_sub(self.pinned.offset());
        offset.is_some_and(|offset| {
            self.ranges.contains(self.pinned_base + offset as u64, span.len() as u64)
        })
    }

    /// Gives the system back what the tenant gave back and nothing uses any more.
    pub(crate) fn discard_leaving(&mut self) {
        for (address, bytes) in self.ranges.take_leaving() {
            let discarded = self
                .window(address, bytes)
                .map(|span| span.mapping().discard(span.offset(), span.len()));
            if !matches!(discarded, Ok(Ok(()))) {
                tracing::warn!(address, bytes, ?discarded, "pinned memory stays with the system");
            }
        }
    }

    /// Whether an address lies in the pinned window.
    pub(crate) fn is_pinned(&self, address: u64) -> bool {
        let offset = address.checked_sub(self.pinned_base);
        offset.and_then(|x| usize::try_from(x).ok()).is_some_and(|x| x < self.pinned.len())
    }

    /// A private copy of a payload; a block among it is the caller's to release.
    pub(crate) fn copied(&self, payload: &Payload<'_>) -> Result<Vec<u8>, Reject> {
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
