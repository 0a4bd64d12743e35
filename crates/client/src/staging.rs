//! Pageable host memory reaches the device in pieces, through blocks of the arena.
//!
//! A few pieces are in flight at a time, so that this process copies one while the worker copies
//! another. They are few so that their blocks stay in the processors' caches.

use std::collections::VecDeque;
use std::thread;
use std::time::{Duration, Instant};

use weft_ring::{ArenaError, ArenaRef, Block, ClientSide, Patience};
use weft_wire::command::{self, Endpoint, Payload, Place, Shape};
use weft_wire::{Command, Status};

use crate::copy::{Layout, Remote};
use crate::stream::StreamState;

/// Bytes of a piece. Large enough to hide a submission, small enough for the cache.
const PIECE: u64 = 512 << 10;
/// Pieces in flight of one copy, and of one whose pieces take long: whoever executes them is on
/// another host, or waits for its turn, so that their blocks are in no cache anyway.
const WINDOW: usize = 4;
const FAR_WINDOW: usize = 16;
/// Copies longer than this reach pageable memory around the caches, which do not hold them anyway.
const STREAM_BYTES: u64 = 16 << 20;
/// How long to poll for a piece: longer ones take long.
const POLL: Duration = Duration::from_micros(60);
/// How often, and for how long, one that takes long is looked at before sleeping until it is done,
/// for so long at most. Waiting properly is for all that is in flight: nothing would be on its way
/// then, and a worker whose turn comes late gives it up for want of work. Where nothing is behind
/// it, there is nothing to keep on its way.
const NAP: Duration = Duration::from_micros(100);
const NAPS: Duration = Duration::from_millis(2);
const SLEEP: Duration = Duration::from_millis(100);
/// Longest source that travels inside the command, in bytes.
pub(crate) const INLINE_MAX: usize = 384;

/// A block as a command names it.
pub(crate) fn named(block: &ArenaRef) -> command::Block {
    command::Block { offset: block.offset, bytes: block.len, release: block.block }
}

/// A box of a copy that fits into one block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    /// First byte of the row, row, slice.
    pub(crate) at: [u64; 3],
    /// Bytes per row, rows, slices.
    pub(crate) size: [u64; 3],
}

impl Piece {
    pub(crate) fn bytes(&self) -> u64 {
        self.size.iter().product()
    }

    /// Where its first byte lies on a side.
    pub(crate) fn offset(&self, pitch: u64, slice: u64) -> u64 {
        self.at[0] + self.at[1] * pitch + self.at[2] * slice
    }

    /// Offsets of its rows on a host side, and in the packed block.
    pub(crate) fn rows(&self, pitch: u64, slice: u64) -> impl Iterator<Item = (u64, u64)> {
        let Self { at, size } = *self;
        (0..size[2]).flat_map(move |z| {
            (0..size[1]).map(move |y| {
                let host = at[0] + (at[1] + y) * pitch + (at[2] + z) * slice;
                (host, (z * size[1] + y) * size[0])
            })
        })
    }
}

/// Cuts a shape into pieces of at most `limit` bytes: rows, or parts of long rows.
pub(crate) fn pieces(shape: &Shape, limit: u64) -> impl Iterator<Item = Piece> {
    let Shape { width, height, depth } = *shape;
    let columns = width.min(limit).max(1);
    let rows = if columns < width { 1 } else { (limit / columns).clamp(1, height.max(1)) };
    steps(depth, 1).flat_map(move |(z, _)| {
        steps(height, rows).flat_map(move |(y, rows)| {
            steps(width, columns)
                .map(move |(x, columns)| Piece { at: [x, y, z], size: [columns, rows, 1] })
        })
    })
}

/// `0, step, 2·step, …` below `end`, each with what is left of the step.
fn steps(end: u64, step: u64) -> impl Iterator<Item = (u64, u64)> {
    (0..end.div_ceil(step)).map(move |i| (i * step, step.min(end - i * step)))
}

/// A block that the worker was told of. Dropped, it goes back to the arena when the worker is done.
#[derive(Debug)]
struct Posted {
    block: Option<Block>,
    piece: Piece,
}

impl Posted {
    fn is_released(&self) -> bool {
        self.block.as_ref().is_none_or(Block::is_released)
    }

    /// Whether the worker is done with it by now, or soon.
    fn is_released_soon(&self) -> bool {
        weft_ring::wait::spin(POLL, || self.is_released().then_some(())).is_some()
    }

    /// The same, for one that takes long.
    fn is_released_later(&self, side: &ClientSide) -> bool {
        let began = Instant::now();
        let nap = || {
            while !self.is_released() && began.elapsed() < NAPS {
                thread::sleep(NAP);
            }
        };
        if !side.sleeps_at_once() {
            nap();
        }
        let alive = || side.is_alive();
        let patience = Patience::while_alive(&alive).spinning(Duration::ZERO).until(began + SLEEP);
        if self.block.as_ref().is_none_or(|block| block.await_release(&patience)) {
            return true;
        }
        // Another thread sleeps there.
        nap();
        self.is_released()
    }
}

/// The pieces of a copy that are in flight, the oldest first.
#[derive(Debug)]
struct Flight {
    posted: VecDeque<Posted>,
    /// So many at once, and when they take long.
    most: usize,
    far: usize,
}

impl Flight {
    /// In a session's arena, of which others have some, too.
    fn through(side: &ClientSide) -> Self {
        let share = side.arena().len() as u64 / (4 * PIECE);
        let far = FAR_WINDOW.min(usize::try_from(share).unwrap_or(usize::MAX)).max(WINDOW);
        let most = if side.sleeps_at_once() { far } else { WINDOW };
        Self { posted: VecDeque::with_capacity(most), most, far }
    }

    /// Whether another one may go. Where the oldest takes long, more may.
    fn has_room(&mut self) -> bool {
        if self.posted.len() < self.most {
            return true;
        }
        if self.most < self.far && !self.posted.front().is_none_or(Posted::is_released_soon) {
            self.most = self.far;
        }
        self.posted.len() < self.most
    }
}

impl Drop for Posted {
    fn drop(&mut self) {
        if let Some(block) = self.block.take() {
            // The reference is already in the command.
            let _named = block.hand_over();
        }
    }
}

impl StreamState {
    /// Copies pageable bytes to the device. Returns when they may be overwritten.
    pub(crate) fn stage_in(&self, dst: &Remote, src: &[u8], layout: &Layout) -> Result<(), Status> {
        let mut flight = Flight::through(&self.session.side);
        for piece in pieces(&layout.shape, self.piece_bytes()) {
            let block = loop {
                if flight.has_room()
                    && let Some(block) = self.spare_block(&piece, flight.posted.is_empty())?
                {
                    break block;
                }
                if let Some(oldest) = flight.posted.pop_front() {
                    self.await_release(oldest, !flight.posted.is_empty())?;
                }
            };
            let span = block.span().map_err(|_| Status::UNKNOWN)?;
            for (from, to) in piece.rows(layout.src_pitch, layout.src_slice) {
                let (from, to, width) = (size(from)?, size(to)?, size(piece.size[0])?);
                let end = from.checked_add(width).ok_or(Status::INVALID_VALUE)?;
                let row = src.get(from..end).ok_or(Status::INVALID_VALUE)?;
                span.write_at(to, row).map_err(|_| Status::UNKNOWN)?;
            }
            let command = Command::Copy {
                stream: self.id,
                dst: dst.piece(&piece, layout.dst_pitch, layout.dst_slice),
                src: packed(&block, &piece),
                shape: shape_of(&piece),
            };
            self.send(&command)?;
            flight.posted.push_back(Posted { block: Some(block), piece });
        }
        Ok(())
    }

    /// Copies from the device to pageable bytes. Returns when they have arrived.
    pub(crate) fn stage_out(
        &self,
        dst: &mut [u8],
        src: &Remote,
        layout: &Layout,
    ) -> Result<(), Status> {
        let mut left = pieces(&layout.shape, self.piece_bytes()).peekable();
        let Some(first) = left.next() else { return Ok(()) };
        if left.peek().is_none() {
            return self.stage_out_at_once(dst, src, layout, first);
        }
        let Shape { width, height, depth } = layout.shape;
        let streaming = width.saturating_mul(height).saturating_mul(depth) > STREAM_BYTES;
        let mut flight = Flight::through(&self.session.side);
        let mut next = Some(first);
        loop {
            while let Some(piece) = next
                && flight.has_room()
                && let Some(block) = self.spare_block(&piece, flight.posted.is_empty())?
            {
                flight.posted.push_back(self.request(src, layout, piece, block)?);
                next = left.next();
            }
            let Some(oldest) = flight.posted.pop_front() else { break };
            let piece = oldest.piece;
            let block = self.await_release(oldest, !flight.posted.is_empty())?;
            unpack(&block, dst, &piece, layout, streaming)?;
        }
        self.session.healthy()
    }

    /// Copies one piece, with one command that is awaited.
    fn stage_out_at_once(
        &self,
        dst: &mut [u8],
        src: &Remote,
        layout: &Layout,
        piece: Piece,
    ) -> Result<(), Status> {
        let block = self.session.block(size(piece.bytes())?)?;
        self.call(&Command::CopySync {
            stream: self.id,
            dst: packed(&block, &piece),
            src: src.piece(&piece, layout.src_pitch, layout.src_slice),
            shape: shape_of(&piece),
        })?;
        unpack(&block, dst, &piece, layout, false)
    }

    /// Bytes of a piece in this session's arena.
    fn piece_bytes(&self) -> u64 {
        PIECE.min(self.session.side.arena().len() as u64 / 4).max(1)
    }

    /// A block for a piece. Whoever holds other blocks (`alone` is false) must not wait for room:
    /// two copies that did would wait for each other.
    fn spare_block(&self, piece: &Piece, alone: bool) -> Result<Option<Block>, Status> {
        let bytes = size(piece.bytes())?;
        if alone {
            return self.session.block(bytes).map(Some);
        }
        match self.session.side.arena().try_alloc(bytes) {
            Ok(block) => Ok(Some(block)),
            Err(ArenaError::Full) => Ok(None),
            Err(ArenaError::TooLarge(_) | ArenaError::PeerLost) => Err(Status::OUT_OF_MEMORY),
        }
    }

    /// Asks for a piece without waiting for it.
    fn request(
        &self,
        src: &Remote,
        layout: &Layout,
        piece: Piece,
        block: Block,
    ) -> Result<Posted, Status> {
        self.send(&Command::Copy {
            stream: self.id,
            dst: packed(&block, &piece),
            src: src.piece(&piece, layout.src_pitch, layout.src_slice),
            shape: shape_of(&piece),
        })?;
        Ok(Posted { block: Some(block), piece })
    }

    /// Waits until the worker is done with a block, and takes it back; others may be behind it.
    fn await_release(&self, mut posted: Posted, are_behind: bool) -> Result<Block, Status> {
        let side = &self.session.side;
        let is_soon = !side.sleeps_at_once() && posted.is_released_soon();
        let is_released = is_soon || (are_behind && posted.is_released_later(side));
        if !is_released {
            self.session.call(&Command::StreamSynchronize { stream: self.id })?;
        }
        // All of the stream's commands have ended, and a command that ended has released its
        // blocks.
        let done = posted.block.take_if(|block| block.is_released());
        done.ok_or(Status::UNKNOWN)
    }
}

/// Copies a piece's rows out of its block, around the caches if it is `streaming`.
fn unpack(
    block: &Block,
    dst: &mut [u8],
    piece: &Piece,
    layout: &Layout,
    streaming: bool,
) -> Result<(), Status> {
    let span = block.span().map_err(|_| Status::UNKNOWN)?;
    for (to, from) in piece.rows(layout.dst_pitch, layout.dst_slice) {
        let (to, from, width) = (size(to)?, size(from)?, size(piece.size[0])?);
        let end = to.checked_add(width).ok_or(Status::INVALID_VALUE)?;
        let row = dst.get_mut(to..end).ok_or(Status::INVALID_VALUE)?;
        let read = if streaming { span.read_streaming(from, row) } else { span.read_at(from, row) };
        read.map_err(|_| Status::UNKNOWN)?;
    }
    Ok(())
}

fn packed(block: &Block, piece: &Piece) -> Endpoint<'static> {
    Endpoint {
        place: Place::Host(Payload::Arena(named(&block.reference()))),
        pitch: piece.size[0],
        slice: piece.size[0] * piece.size[1],
    }
}

fn shape_of(piece: &Piece) -> Shape {
    let [width, height, depth] = piece.size;
    Shape { width, height, depth }
}

pub(crate) fn size(bytes: u64) -> Result<usize, Status> {
    usize::try_from(bytes).map_err(|_| Status::INVALID_VALUE)
}
