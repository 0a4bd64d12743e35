//! A connection's bytes, taken apart into frames. What goes to the arena is handed on as it comes:
//! a frame of it may be far longer than what was just deciphered, which is still in the processor's
//! caches. Nobody looks at a block before the command that names it, which comes behind it. Pinned
//! memory is handed on frame by frame, for there programs and kernels wait for words.

use std::mem;

use crate::frame::{Frame, Front, OpenBlock, front};
use crate::packing::unpack;

/// What is handed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part<'a> {
    /// A frame, or a piece of a block's with the offset that it has.
    pub frame: Frame<'a>,
    /// Bytes of the stream that the frame takes, if this is its last piece, or all of it.
    pub ends: Option<usize>,
}

/// Why a stream is of no more use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Nonsense {
    /// No frame is so long.
    #[error("the peer sent a frame that is too long")]
    TooLong,
    /// What is to be restored cannot be.
    #[error("the peer sent compressed bytes that are none")]
    NotPacked,
    /// What has a frame's length is none.
    #[error("the peer sent what is no frame")]
    NoFrame,
}

/// What has come and was not handed on yet.
#[derive(Debug, Default)]
pub struct Stream {
    /// Whole frames, and the front of one; nothing while a block is open.
    kept: Vec<u8>,
    open: Option<OpenBlock>,
    /// What compressed bytes were.
    unpacked: Vec<u8>,
}

impl Stream {
    /// Where bytes go that came before any that is taken.
    pub(crate) fn kept(&mut self) -> &mut Vec<u8> {
        &mut self.kept
    }

    /// Takes bytes, and hands on what is a block's and has nothing before it that waits; the rest
    /// waits for [`Self::frames`].
    ///
    /// # Errors
    /// What `on` says; the stream is then of no more use.
    pub fn take<E>(
        &mut self,
        mut bytes: &[u8],
        on: &mut impl FnMut(Part<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        while !bytes.is_empty() {
            if let Some(block) = &mut self.open {
                let (piece, rest) = bytes.split_at(bytes.len().min(block.left()));
                bytes = rest;
                let frame = block.piece(piece);
                let ends = (block.left() == 0).then_some(block.length());
                if ends.is_some() {
                    self.open = None;
                }
                on(Part { frame, ends })?;
            } else if let Some((block, head)) = self.opened(bytes) {
                self.open = Some(block);
                bytes = bytes.get(head..).unwrap_or_default();
            } else {
                self.kept.extend_from_slice(bytes);
                break;
            }
        }
        Ok(())
    }

    /// The block that these bytes begin, before which nothing waits, and how long its head is.
    fn opened(&self, bytes: &[u8]) -> Option<(OpenBlock, usize)> {
        if self.kept.is_empty() { OpenBlock::at(bytes) } else { None }
    }

    /// Hands on all whole frames, and what there is of a block behind them.
    ///
    /// # Errors
    /// What `on` says, or [`Nonsense`]; the stream is then of no more use.
    pub fn frames<E: From<Nonsense>>(
        &mut self,
        on: &mut impl FnMut(Part<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut kept = mem::take(&mut self.kept);
        let mut rest = &kept[..];
        loop {
            match front(rest) {
                Front::Whole(bytes, length) => {
                    let mut frame = Frame::decode(bytes).ok_or(Nonsense::NoFrame)?;
                    if let Frame::Packed { to, length, bytes } = frame {
                        let length = usize::try_from(length).unwrap_or(usize::MAX);
                        let plain = unpack(bytes, length, &mut self.unpacked);
                        frame = to.frame(plain.ok_or(Nonsense::NotPacked)?);
                    }
                    on(Part { frame, ends: Some(length) })?;
                    rest = rest.get(length..).unwrap_or_default();
                }
                Front::Part => break,
                Front::TooLong => return Err(Nonsense::TooLong.into()),
            }
        }
        let waiting = if OpenBlock::at(rest).is_some() {
            self.take(rest, on)?;
            0
        } else {
            rest.len()
        };
        kept.drain(..kept.len() - waiting);
        self.kept = kept;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::frame::{Bulk, FRAME_BYTES_MAX, PIECE};

    /// What frames say, each encoded again, and why they end.
    #[derive(Debug, Default, PartialEq, Eq)]
    struct Heard {
        frames: Vec<Vec<u8>>,
        /// Bytes that they took of the stream.
        taken: usize,
        error: Option<Nonsense>,
    }

    impl Heard {
        fn hear(&mut self, frame: Frame<'_>) {
            let mut encoded = Vec::new();
            frame.encode(&mut encoded);
            self.frames.push(encoded);
        }

        /// As frames are taken from a stream that is all there.
        fn at_once(mut stream: &[u8]) -> Self {
            let mut heard = Self::default();
            loop {
                match front(stream) {
                    Front::Whole(bytes, length) => {
                        let Some(mut frame) = Frame::decode(bytes) else {
                            heard.error = Some(Nonsense::NoFrame);
                            break;
                        };
                        let mut plain = Vec::new();
                        if let Frame::Packed { to, length, bytes } = frame {
                            let length = usize::try_from(length).unwrap();
                            let Some(plain) = unpack(bytes, length, &mut plain) else {
                                heard.error = Some(Nonsense::NotPacked);
                                break;
                            };
                            frame = to.frame(plain);
                        }
                        heard.hear(frame);
                        heard.taken += length;
                        stream = &stream[length..];
                    }
                    Front::Part => break,
                    Front::TooLong => {
                        heard.error = Some(Nonsense::TooLong);
                        break;
                    }
                }
            }
            heard
        }

        /// As they come in parts; after each it is said whether what waits is looked at.
        fn in_parts(bytes: &[u8], cuts: &[(usize, bool)]) -> Self {
            let (mut stream, mut heard) = (Stream::default(), Self::default());
            let mut joined: Option<(u64, Vec<u8>)> = None;
            let mut counted = 0;
            let mut hear = |part: Part<'_>| {
                counted += part.ends.unwrap_or(0);
                let Frame::Block { offset, bytes } = part.frame else {
                    assert!(joined.is_none() && part.ends.is_some(), "{part:?}");
                    heard.hear(part.frame);
                    return Ok(());
                };
                let (from, all) = joined.get_or_insert_with(|| (offset, Vec::new()));
                assert_eq!(*from + all.len() as u64, offset, "pieces come in order");
                all.extend_from_slice(bytes);
                assert!(!bytes.is_empty() || part.ends.is_some(), "an empty piece");
                if part.ends.is_some()
                    && let Some((offset, bytes)) = joined.take()
                {
                    heard.hear(Frame::Block { offset, bytes: &bytes });
                }
                Ok(())
            };
            let (mut rest, mut cuts) = (bytes, cuts.iter().cycle());
            let mut ended: Result<(), Nonsense> = Ok(());
            while let (Ok(()), false, Some((length, is_looked))) =
                (ended, rest.is_empty(), cuts.next())
            {
                let (some, others) = rest.split_at(rest.len().min(*length));
                rest = others;
                ended = stream.take(some, &mut hear);
                if *is_looked {
                    ended = ended.and_then(|()| stream.frames(&mut hear));
                    let waits = OpenBlock::at(&stream.kept).is_some();
                    assert!(ended.is_err() || !waits, "a block waits behind nothing");
                }
                assert!(stream.open.is_none() || stream.kept.is_empty(), "it keeps an open block");
                let most = FRAME_BYTES_MAX + size_of::<u32>();
                assert!(!*is_looked || stream.kept.len() < most, "{}", stream.kept.len());
            }
            ended = ended.and_then(|()| stream.frames(&mut hear));
            heard.error = ended.err();
            heard.taken = counted;
            heard
        }
    }

    /// A frame's length, kind, first field and bytes, right or wrong.
    fn raw() -> impl Strategy<Value = Vec<u8>> {
        let [piece, most] = [PIECE, FRAME_BYTES_MAX].map(|bytes| u32::try_from(bytes).unwrap());
        let lengths = prop_oneof![
            30 => 9..700_u32,
            3 => Just(piece + 9),
            3 => 0..10_u32,
            1 => piece..most + 3,
            1 => any::<u32>(),
        ];
        let kinds = prop_oneof![6 => Just(2_u8), 2 => Just(3), 2 => 0..14_u8];
        let fields = prop_oneof![0..1_u64 << 20, u64::MAX - 70_000..=u64::MAX];
        (lengths, kinds, fields, any::<u8>()).prop_map(|(length, kind, field, fill)| {
            let mut raw = length.to_le_bytes().to_vec();
            let bytes = usize::try_from(length).unwrap().min(FRAME_BYTES_MAX + 3);
            let mut body = vec![kind];
            body.extend_from_slice(&field.to_le_bytes());
            body.resize(bytes.max(body.len()), fill);
            raw.extend_from_slice(&body[..bytes]);
            raw
        })
    }

    /// A frame of bytes that shrink, packed.
    fn packed() -> impl Strategy<Value = Vec<u8>> {
        (0..1_u64 << 20, 1..PIECE, any::<bool>()).prop_map(|(at, length, is_block)| {
            let plain: Vec<u8> =
                (0..length).map(|at| u8::try_from(at / 100 % 7).unwrap()).collect();
            let bytes = lz4_flex::block::compress(&plain);
            let to = if is_block { Bulk::Block(at) } else { Bulk::Pinned(at) };
            let mut frame = Vec::new();
            Frame::Packed { to, length: u32::try_from(length).unwrap(), bytes: &bytes }
                .encode(&mut frame);
            frame
        })
    }

    proptest! {
        /// However a stream is cut, whatever is in it and however often what waits is looked at.
        #[test]
        fn parts_are_what_the_whole_is(
            all in prop::collection::vec(prop_oneof![4 => raw(), 1 => packed()], 0..12),
            cuts in prop::collection::vec((1..20_000_usize, any::<bool>()), 1..40),
            end in 0..100_usize,
        ) {
            let bytes = all.concat();
            let bytes = &bytes[..bytes.len().saturating_sub(end)];
            prop_assert_eq!(Heard::in_parts(bytes, &cuts), Heard::at_once(bytes));
        }
    }

    /// What is the arena's does not wait for the rest of its frame, behind another one neither.
    #[test]
    fn blocks_are_handed_on_as_they_come() {
        let mut bytes = Vec::new();
        Frame::Released(3).encode(&mut bytes);
        Frame::Block { offset: 0, bytes: &[7; PIECE] }.encode(&mut bytes);
        let (mut stream, mut pieces) = (Stream::default(), 0);
        for some in bytes.chunks(16 << 10) {
            let mut on = |_: Part<'_>| {
                pieces += 1;
                Ok::<_, Nonsense>(())
            };
            stream.take(some, &mut on).unwrap();
            stream.frames(&mut on).unwrap();
        }
        assert_eq!((pieces, stream.kept.len(), stream.open.is_none()), (6, 0, true));
    }
}
