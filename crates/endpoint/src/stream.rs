//! A connection's bytes, taken apart into frames. Those of memory are handed on as they come: a
//! frame of it may be far longer than what was just deciphered, which is still in the processor's
//! caches.

use std::mem;

use crate::frame::{Frame, Front, Opened, front};

/// Memory is handed on in pieces that end where this many bytes of it do, but for a frame's last:
/// a word that somebody polls appears as a whole.
const WORD: usize = 64;

/// What is handed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part<'a> {
    /// A frame, or a piece of one.
    pub(crate) frame: Frame<'a>,
    /// Bytes of the stream that the frame takes, if this is its last piece, or all of it.
    pub(crate) ends: Option<usize>,
}

/// Why a stream is of no more use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Nonsense {
    #[error("the peer sent a frame that is too long")]
    TooLong,
    #[error("the peer sent what is no frame")]
    NoFrame,
}

/// What has come and was not handed on yet.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    /// Whole frames and the front of one; of an open frame less than a [`WORD`].
    kept: Vec<u8>,
    open: Option<Opened>,
}

impl Stream {
    /// Takes bytes that wait for [`Self::frames`].
    pub(crate) fn kept(&mut self) -> &mut Vec<u8> {
        debug_assert!(self.open.is_none(), "what is given back comes first");
        &mut self.kept
    }

    /// Takes bytes, and hands on what is memory's and has nothing before it that waits; the rest
    /// waits for [`Self::frames`].
    ///
    /// # Errors
    /// What `on` says; the stream is then of no more use.
    pub(crate) fn take<E>(
        &mut self,
        mut bytes: &[u8],
        on: &mut impl FnMut(Part<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        while !bytes.is_empty() {
            if let Some(opened) = &mut self.open {
                let taken = go_on(opened, &mut self.kept, bytes, on)?;
                bytes = bytes.get(taken..).unwrap_or_default();
                self.open = self.open.filter(|opened| opened.left() > 0);
            } else if let Some((opened, head)) = self.opened(bytes) {
                self.open = Some(opened);
                bytes = bytes.get(head..).unwrap_or_default();
            } else {
                self.kept.extend_from_slice(bytes);
                break;
            }
        }
        Ok(())
    }

    /// The frame of memory that these bytes begin, behind which nothing waits.
    fn opened(&self, bytes: &[u8]) -> Option<(Opened, usize)> {
        if self.kept.is_empty() { Opened::at(bytes) } else { None }
    }

    /// Hands on all whole frames, and what there is of one of memory behind them.
    ///
    /// # Errors
    /// What `on` says, or [`Nonsense`]; the stream is then of no more use.
    pub(crate) fn frames<E: From<Nonsense>>(
        &mut self,
        on: &mut impl FnMut(Part<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        if self.open.is_some() || self.kept.is_empty() {
            return Ok(());
        }
        let mut kept = mem::take(&mut self.kept);
        let mut rest = &kept[..];
        loop {
            match front(rest) {
                Front::Whole(bytes, length) => {
                    let frame = Frame::decode(bytes).ok_or(Nonsense::NoFrame)?;
                    on(Part { frame, ends: Some(length) })?;
                    rest = rest.get(length..).unwrap_or_default();
                }
                Front::Part => break,
                Front::TooLong => return Err(Nonsense::TooLong.into()),
            }
        }
        let waiting = rest.len();
        if Opened::at(rest).is_some() {
            self.take(rest, on)?;
            kept.clear();
            kept.append(&mut self.kept);
        } else {
            kept.drain(..kept.len() - waiting);
        }
        self.kept = kept;
        Ok(())
    }
}

/// Hands on what there is of an open frame, of which less than a [`WORD`] is kept; how many bytes
/// were taken.
fn go_on<E>(
    opened: &mut Opened,
    kept: &mut Vec<u8>,
    bytes: &[u8],
    on: &mut impl FnMut(Part<'_>) -> Result<(), E>,
) -> Result<usize, E> {
    let mut hand_on = |opened: &mut Opened, bytes: &[u8]| {
        let frame = opened.piece(bytes);
        let ends = (opened.left() == 0).then_some(opened.length());
        on(Part { frame, ends })
    };
    let word = WORD - opened.offset_in(WORD);
    if kept.is_empty() {
        let whole = match bytes.len().checked_sub(opened.left()) {
            Some(_) => opened.left(),
            // Up to the end of the last word that is whole.
            None => bytes.len().checked_sub(word).map_or(0, |more| word + more / WORD * WORD),
        };
        if whole > 0 {
            hand_on(opened, bytes.get(..whole).unwrap_or_default())?;
            return Ok(whole);
        }
    }
    let wanted = word.min(opened.left());
    let taken = bytes.len().min(wanted.saturating_sub(kept.len()));
    kept.extend_from_slice(bytes.get(..taken).unwrap_or_default());
    if kept.len() == wanted {
        hand_on(opened, kept)?;
        kept.clear();
    }
    Ok(taken)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::frame::{FRAME_BYTES_MAX, PIECE};

    /// A frame: memory's with so many bytes from there on, or another.
    #[derive(Debug, Clone, PartialEq, Eq)]
    enum Sent {
        Memory { is_pinned: bool, at: u64, bytes: Vec<u8> },
        Other(u32),
    }

    impl Sent {
        fn encode(&self, out: &mut Vec<u8>) {
            match self {
                Self::Memory { is_pinned: false, at, bytes } => {
                    Frame::Block { offset: *at, bytes }.encode(out);
                }
                Self::Memory { is_pinned: true, at, bytes } => {
                    Frame::Pinned { address: *at, bytes }.encode(out);
                }
                Self::Other(number) => Frame::Released(*number).encode(out),
            }
        }
    }

    /// Puts pieces together again.
    #[derive(Default)]
    struct Heard {
        whole: Vec<Sent>,
        open: Option<(bool, u64, Vec<u8>)>,
        bytes: usize,
        pieces: usize,
    }

    impl Heard {
        fn hear(&mut self, part: &Part<'_>) -> Result<(), Nonsense> {
            self.bytes += part.ends.unwrap_or(0);
            self.pieces += 1;
            let (is_pinned, at, bytes) = match part.frame {
                Frame::Block { offset, bytes } => (false, offset, bytes),
                Frame::Pinned { address, bytes } => (true, address, bytes),
                Frame::Released(number) => {
                    assert!(self.open.is_none() && part.ends.is_some(), "{part:?}");
                    self.whole.push(Sent::Other(number));
                    return Ok(());
                }
                other => panic!("{other:?} was not sent"),
            };
            let (kind, from, all) = self.open.get_or_insert_with(|| (is_pinned, at, Vec::new()));
            assert_eq!((*kind, *from + all.len() as u64), (is_pinned, at), "they come in order");
            all.extend_from_slice(bytes);
            if part.ends.is_none() {
                assert_eq!((at + bytes.len() as u64) % WORD as u64, 0, "a word is cut");
            } else if let Some((is_pinned, at, bytes)) = self.open.take() {
                self.whole.push(Sent::Memory { is_pinned, at, bytes });
            }
            Ok(())
        }
    }

    fn sent() -> impl Strategy<Value = Sent> {
        let lengths = prop_oneof![0..3_usize, 60..70_usize, 0..3000_usize, Just(PIECE)];
        let memory = (any::<bool>(), 0..1_u64 << 40, lengths, any::<u8>());
        prop_oneof![
            3 => memory.prop_map(|(is_pinned, at, length, first)| Sent::Memory {
                is_pinned,
                at,
                bytes: (0..length).map(|number| first.wrapping_add(number as u8)).collect(),
            }),
            1 => any::<u32>().prop_map(Sent::Other),
        ]
    }

    proptest! {
        /// However a stream is cut, and however often what waits is looked at.
        #[test]
        fn frames_come_whole_and_in_order(
            all in prop::collection::vec(sent(), 0..12),
            cuts in prop::collection::vec((1..20_000_usize, any::<bool>()), 1..40),
        ) {
            let mut bytes = Vec::new();
            all.iter().for_each(|one| one.encode(&mut bytes));
            let (mut stream, mut heard) = (Stream::default(), Heard::default());
            let mut hear = |part: Part<'_>| heard.hear(&part);
            let (mut rest, mut cuts) = (&bytes[..], cuts.iter().cycle());
            while let (false, Some((length, is_looked))) = (rest.is_empty(), cuts.next()) {
                let (some, others) = rest.split_at(rest.len().min(*length));
                rest = others;
                stream.take(some, &mut hear).unwrap();
                if *is_looked {
                    stream.frames(&mut hear).unwrap();
                }
            }
            stream.frames(&mut hear).unwrap();
            prop_assert_eq!(heard.whole, all);
            prop_assert_eq!(heard.bytes, bytes.len());
        }

        /// Garbage is handed on as frames, kept for a while, or refused, and never more of it than
        /// a frame.
        #[test]
        fn nonsense_is_bounded(
            parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..40),
        ) {
            let mut stream = Stream::default();
            for part in parts {
                if stream.take(&part, &mut |_| Ok::<_, Nonsense>(())).is_err()
                    || stream.frames(&mut |_| Ok::<_, Nonsense>(())).is_err()
                {
                    break;
                }
                prop_assert!(stream.kept.len() <= FRAME_BYTES_MAX);
            }
        }
    }

    /// What is memory's does not wait for the rest of its frame.
    #[test]
    fn memory_is_handed_on_as_it_comes() {
        let mut bytes = Vec::new();
        Frame::Block { offset: 0, bytes: &[7; PIECE] }.encode(&mut bytes);
        let (mut stream, mut heard) = (Stream::default(), Heard::default());
        for some in bytes.chunks(16 << 10) {
            stream.take(some, &mut |part| heard.hear(&part)).unwrap();
        }
        assert_eq!((heard.pieces, heard.whole.len(), stream.kept.len()), (8, 1, 0));
    }
}
