//! Memory that a session's tables, queues and graphs take of the host, and room for more.
//!
//! Each of them has a bound of its own; all sessions together have less than the sum of these. So a
//! session asks for room before it grows, in steps, and is refused what the host has not.

use weft_device::Device;
use weft_wire::{Command, Status};

use crate::output::Output;
use crate::session::{Session, kept_bytes};

/// What a session may keep without asking, in bytes.
const FREE_BYTES: u64 = 1 << 20;

/// What an entry of a table or a queue takes, with what it points to, in bytes: a command that
/// waits, a stream, an event, an allocation.
const ENTRY_BYTES: u64 = 512;

/// A refusal stands for so long, in ns.
const REFUSED_NS: u64 = 10_000_000;

/// Room that a session has.
#[derive(Debug)]
pub(crate) struct Room {
    bytes: u64,
    /// What is kept for the session outside of it, in bytes.
    beside: u64,
    /// What it was refused last, in bytes, and when (device clock, ns).
    refused: Option<(u64, u64)>,
}

impl Room {
    /// Whether as much was refused just now: who asks in a loop keeps nobody busy with it.
    fn was_refused(&self, bytes: u64, now_ns: u64) -> bool {
        self.refused.is_some_and(|(refused, at_ns)| {
            bytes >= refused && now_ns.saturating_sub(at_ns) < REFUSED_NS
        })
    }
}

impl Default for Room {
    fn default() -> Self {
        Self { bytes: FREE_BYTES, beside: 0, refused: None }
    }
}

impl<D: Device> Session<D> {
    /// Host memory that the session's tables, queues and graphs take, about, in bytes; what its
    /// modules take is not among it.
    pub fn kept_bytes(&self) -> u64 {
        let entries = [
            self.streams.depth,
            self.streams.slots(),
            self.events.slots(),
            self.allocations.count(),
            self.shared.ranges.count(),
            self.waits.len(),
        ];
        let entries: usize = entries.into_iter().sum();
        let entries = u64::try_from(entries).unwrap_or(u64::MAX).saturating_mul(ENTRY_BYTES);
        [self.graph_bytes, self.streams.bytes, self.room.beside]
            .into_iter()
            .fold(entries, u64::saturating_add)
    }

    /// Counts `bytes` that are kept for the session outside of it.
    ///
    /// # Errors
    /// `CUDA_ERROR_OUT_OF_MEMORY` when the host has no room for that many.
    pub fn keep_beside(&mut self, bytes: u64, out: &mut dyn Output) -> Result<(), Status> {
        let more = bytes.saturating_sub(self.room.beside);
        self.make_room(more, out)?;
        self.room.beside = bytes;
        Ok(())
    }

    /// Makes room for a command and what comes of it; graphs are asked about when it is known how
    /// large they are.
    pub(crate) fn make_room_for(
        &mut self,
        command: &Command<'_>,
        out: &mut dyn Output,
    ) -> Result<(), Status> {
        let grows = command.stream().is_some()
            || matches!(
                command,
                Command::StreamCreate { .. }
                    | Command::EventCreate { .. }
                    | Command::MemAlloc { .. }
                    | Command::ManagedAlloc { .. }
                    | Command::GraphInstantiate { .. }
            );
        if !grows {
            return Ok(());
        }
        self.make_room(ENTRY_BYTES.saturating_add(kept_bytes(command)), out)
    }

    /// Makes room for `more` bytes, asking for some beyond them.
    pub(crate) fn make_room(&mut self, more: u64, out: &mut dyn Output) -> Result<(), Status> {
        let kept = self.kept_bytes();
        let wanted = kept.saturating_add(more);
        if more == 0 || wanted <= self.room.bytes {
            return Ok(());
        }
        let now_ns = self.device.now_ns();
        for beyond in [FREE_BYTES.max(wanted / 4), FREE_BYTES / 16, 0] {
            let bytes = wanted.saturating_add(beyond);
            if self.room.was_refused(bytes, now_ns) {
                continue;
            }
            if out.may_keep(bytes, bytes - kept) {
                self.room.bytes = bytes;
                return Ok(());
            }
            self.room.refused = Some((bytes, now_ns));
        }
        Err(Status::OUT_OF_MEMORY)
    }
}
