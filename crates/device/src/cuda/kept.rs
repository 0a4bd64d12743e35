//! Where the contents of saved pieces are: in the frames that paid for them, which the node keeps
//! in host memory or in a file.

use std::sync::Arc;

use weft_ring::{SharedMemory, SharedSpan};

use super::backing::Piece;
use crate::{DeviceError, FrameRun, PAGE};

/// The memory of a vGPU's frames.
#[derive(Debug, Clone)]
pub(super) struct Kept(Arc<SharedMemory>);

/// So many bytes of a piece, from an offset in it, in host memory.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) offset: u64,
    pub(super) memory: SharedSpan,
}

impl Kept {
    pub(super) fn new(frames: Arc<SharedMemory>) -> Self {
        Self(frames)
    }

    /// Where a piece of a chunk lies that begins at `base` and was paid for with these frames.
    ///
    /// # Errors
    /// [`DeviceError::Lost`]: whoever deals out frames gave too few, or such as there are none.
    pub(super) fn places(
        &self,
        base: u64,
        piece: &Piece,
        frames: &[FrameRun],
    ) -> Result<Vec<Place>, DeviceError> {
        self.range(base, (piece.address, piece.size as u64), frames)
    }

    /// The same of some bytes of a chunk.
    pub(super) fn range(
        &self,
        base: u64,
        (address, bytes): (u64, u64),
        frames: &[FrameRun],
    ) -> Result<Vec<Place>, DeviceError> {
        let mut places = Vec::new();
        let (first, end) = (address - base, address - base + bytes);
        let mut at = 0;
        for run in frames {
            let (begin, after) = (at, at + run.count * PAGE);
            at = after;
            let (from, to) = (first.max(begin), end.min(after));
            if from < to {
                let memory = self.span(run.first * PAGE + (from - begin), to - from)?;
                places.push(Place { offset: from - first, memory });
            }
        }
        let found: u64 = places.iter().map(|place| place.memory.len() as u64).sum();
        if found == bytes { Ok(places) } else { Err(lost()) }
    }

    /// Gives the pages of frames back to the system: whoever has them next finds zeros.
    pub(super) fn discard(&self, frames: &[FrameRun]) {
        for run in frames {
            let [offset, len] =
                [run.first, run.count].map(|pages| usize::try_from(pages * PAGE).unwrap_or(0));
            if let Err(error) = self.0.discard(offset, len) {
                tracing::debug!(%error, "frames are not given back to the system");
            }
        }
    }

    fn span(&self, offset: u64, bytes: u64) -> Result<SharedSpan, DeviceError> {
        let [offset, len] =
            [offset, bytes].map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
        self.0.span(offset, len).map_err(|_| lost())
    }
}

fn lost() -> DeviceError {
    DeviceError::Lost("memory was paid for with frames that there are not".to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::backing::Held;
    use super::*;

    #[test]
    fn a_piece_lies_where_its_frames_are() {
        let kept = Kept::new(SharedMemory::anonymous(64 << 12).unwrap());
        let frames = [FrameRun { first: 40, count: 3 }, FrameRun { first: 8, count: 5 }];
        let piece = |address, pages: usize| Piece {
            address,
            size: pages << 12,
            held: Held::Frames,
            is_kept: true,
        };
        let base = 0x10_0000;
        let of = |piece: &Piece| {
            let places = kept.places(base, piece, &frames).unwrap();
            let of = |place: &Place| (place.offset, place.memory.offset(), place.memory.len());
            places.iter().map(of).collect::<Vec<_>>()
        };
        assert_eq!(of(&piece(base, 2)), [(0, 40 << 12, 2 << 12)]);
        let across = of(&piece(base + (2 << 12), 3));
        assert_eq!(across, [(0, 42 << 12, 1 << 12), (1 << 12, 8 << 12, 2 << 12)]);
        let beyond = kept.places(base, &piece(base + (6 << 12), 3), &frames);
        assert!(matches!(beyond, Err(DeviceError::Lost(_))), "{beyond:?}");
        let nowhere = [FrameRun { first: 63, count: 2 }];
        kept.places(base, &piece(base, 2), &nowhere).unwrap_err();
    }
}
