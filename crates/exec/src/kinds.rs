//! What kinds of commands have in common: their stream, their blocks, whether a fault stops them.
#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "each function is about the few kinds that it names"
)]

use weft_wire::Command;
use weft_wire::command::{Block, Payload, Place};
use weft_wire::id::StreamId;

use crate::border::{Shared, payload_bytes};
use crate::error::Violation;

/// Commands that keep both sides' tables alike, and those that end a fault.
pub(crate) fn works_after_fault(command: &Command<'_>) -> bool {
    matches!(
        command,
        Command::ContextCreate { .. }
            | Command::ContextDestroy { .. }
            | Command::StreamCreate { .. }
            | Command::StreamDestroy { .. }
            | Command::EventCreate { .. }
            | Command::EventDestroy { .. }
            | Command::GraphDestroy { .. }
            | Command::ModuleUnload { .. }
            | Command::MemInfo {}
            | Command::TakeOutput {}
            | Command::PinnedRange { .. }
            | Command::HostUnmap { .. }
            | Command::HostFunctionDone { .. }
    )
}

/// The stream whose progress word counts the command.
pub(crate) fn stream_of(command: &Command<'_>) -> Option<StreamId> {
    match *command {
        Command::Copy { stream, .. }
        | Command::CopySync { stream, .. }
        | Command::Fill { stream, .. }
        | Command::Launch { stream, .. }
        | Command::StreamWaitEvent { stream, .. }
        | Command::StreamWaitValue { stream, .. }
        | Command::StreamWriteValue { stream, .. }
        | Command::EventRecord { stream, .. }
        | Command::SharedEventRecord { stream, .. }
        | Command::SharedEventWait { stream, .. }
        | Command::HostFunction { stream, .. }
        | Command::GraphLaunch { stream, .. }
        | Command::MemFreeAsync { stream, .. } => Some(stream),
        _ => None,
    }
}

/// Bytes that a queued command keeps.
pub(crate) fn payload_of(command: &Command<'_>) -> u64 {
    match command {
        Command::Launch { launch, .. } => payload_bytes(&launch.params),
        _ => 0,
    }
}

pub(crate) fn block_of<'a>(place: &'a Place<'_>) -> Option<&'a Block> {
    match place {
        Place::Host(Payload::Arena(block)) => Some(block),
        Place::Host(Payload::Inline(_) | Payload::Pinned { .. }) | Place::Device(_) => None,
    }
}

pub(crate) fn check_blocks(shared: &Shared, command: &Command<'_>) -> Result<(), Violation> {
    for_each_block(command, &mut |block| shared.block(block).map(drop))
}

pub(crate) fn for_each_block(
    command: &Command<'_>,
    visit: &mut dyn FnMut(&Block) -> Result<(), Violation>,
) -> Result<(), Violation> {
    match command {
        Command::Copy { dst, src, .. } | Command::CopySync { dst, src, .. } => {
            let sides = [block_of(&dst.place), block_of(&src.place)];
            sides.into_iter().flatten().try_for_each(visit)
        }
        Command::Launch { launch, .. } | Command::GraphSetKernel { launch, .. } => {
            match &launch.params {
                Payload::Arena(block) => visit(block),
                Payload::Inline(_) | Payload::Pinned { .. } => Ok(()),
            }
        }
        Command::ModuleLoad { images, answer, .. } => {
            images.iter().try_for_each(&mut *visit)?;
            visit(answer)
        }
        Command::GraphInstantiate { nodes, .. } => visit(nodes),
        Command::GraphSetNode { node_bytes, .. } => visit(node_bytes),
        _ => Ok(()),
    }
}
