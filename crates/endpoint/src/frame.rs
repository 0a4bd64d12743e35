//! What goes over a relayed session's connection once it is open.
//!
//! A frame is a 32-bit length of what follows, a kind, fixed fields and bytes, all little-endian.
//! Acknowledgements tell how many of the other frames were handled and do not count themselves.

use weft_ring::{AnswerTo, MAX_ANSWER, MAX_COMMAND, MapError, SharedSpan};

use crate::packing::{Packer, Piece};

/// Most bytes of a payload that one frame carries.
pub const PIECE: usize = 64 << 10;

/// Most bytes of a frame behind its length.
pub const FRAME_BYTES_MAX: usize = PIECE + 64;

/// Bytes of a frame's length.
const LENGTH: usize = 4;

/// The kinds of frames with bulk bytes, and of those with compressed ones.
const BLOCK: u8 = 2;
const PINNED: u8 = 3;
const PACKED_BLOCK: u8 = 11;
const PACKED_PINNED: u8 = 12;

/// Bytes of a block's frame between its length and the block.
const BLOCK_HEAD: usize = 1 + size_of::<u64>();

/// No answer slot.
const UNANSWERED: u16 = u16::MAX;

/// One frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frame<'a> {
    /// So many frames were handled; also says that the peer lives.
    Ack(u64),
    /// A command, exactly as the client gave it.
    Command {
        /// Where it awaits the answer.
        answer: Option<AnswerTo>,
        /// The command.
        bytes: &'a [u8],
    },
    /// Bytes of the arena, from this offset on.
    Block {
        /// Offset from the start of the arena.
        offset: u64,
        /// The bytes.
        bytes: &'a [u8],
    },
    /// Bytes of the pinned window, from this address on.
    Pinned {
        /// Address in the client's process.
        address: u64,
        /// The bytes.
        bytes: &'a [u8],
    },
    /// The client is gone.
    Bye,
    /// The answer to a command.
    Answer {
        /// Where it is awaited.
        to: AnswerTo,
        /// Its status.
        status: i32,
        /// Its bytes.
        bytes: &'a [u8],
    },
    /// The worker has released a block.
    Released(u32),
    /// A progress word.
    Progress {
        /// Which.
        word: u32,
        /// Its value.
        value: u64,
    },
    /// A notice word.
    Notice {
        /// Which.
        word: u32,
        /// Its value.
        value: u64,
    },
    /// What the command with this number wrote to the pinned window has been sent.
    Written(u64),
    /// The session is over; one of [`weft_ring::Loss`]'s numbers.
    Lost(u32),
    /// Bytes of the arena or the window, compressed: nobody sends them but where both ends agreed.
    Packed {
        /// Where they go.
        to: Bulk,
        /// How many they are.
        length: u32,
        /// What they became.
        bytes: &'a [u8],
    },
}

/// Everything of a frame but its last `bytes`.
fn put_head(out: &mut Vec<u8>, kind: u8, fields: &[&[u8]], bytes: usize) {
    let length = 1 + fields.iter().map(|field| field.len()).sum::<usize>() + bytes;
    debug_assert!(length <= FRAME_BYTES_MAX, "a frame is bounded");
    out.extend_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes());
    out.push(kind);
    fields.iter().for_each(|field| out.extend_from_slice(field));
}

fn put(out: &mut Vec<u8>, kind: u8, fields: &[&[u8]], bytes: &[u8]) {
    put_head(out, kind, fields, bytes.len());
    out.extend_from_slice(bytes);
}

/// Shared memory that is sent in pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bulk {
    /// Of the arena, from this offset on.
    Block(u64),
    /// Of the pinned window, from this address on.
    Pinned(u64),
}

impl Bulk {
    /// The same so many bytes behind it.
    #[must_use]
    fn behind(self, at: usize) -> Self {
        match self {
            Self::Block(from) => Self::Block(from + at as u64),
            Self::Pinned(from) => Self::Pinned(from + at as u64),
        }
    }

    /// A frame of bytes that go there.
    #[must_use]
    pub fn frame(self, bytes: &[u8]) -> Frame<'_> {
        match self {
            Self::Block(offset) => Frame::Block { offset, bytes },
            Self::Pinned(address) => Frame::Pinned { address, bytes },
        }
    }

    fn put_piece(self, length: usize, piece: Piece<'_>, out: &mut Vec<u8>) {
        match piece {
            Piece::Packed(bytes) => {
                let length = u32::try_from(length).unwrap_or(u32::MAX);
                Frame::Packed { to: self, length, bytes }.encode(out);
            }
            Piece::Plain(bytes) => self.frame(bytes).encode(out),
        }
    }

    /// Appends a frame with these bytes, no more than a piece.
    pub(crate) fn encode_bytes(self, bytes: &[u8], packer: &mut Packer, out: &mut Vec<u8>) {
        if packer.tries(bytes.len()) {
            packer.plain().extend_from_slice(bytes);
            self.put_piece(bytes.len(), packer.pack(), out);
        } else {
            self.frame(bytes).encode(out);
        }
    }

    /// Appends a frame with `length` bytes of `span` from `at` on, which is `at` bytes behind where
    /// this begins. They may be changed meanwhile, which is their owner's doing.
    ///
    /// # Errors
    /// When the span has not so many; nothing is appended then.
    pub(crate) fn encode(
        self,
        span: &SharedSpan,
        at: usize,
        length: usize,
        packer: &mut Packer,
        out: &mut Vec<u8>,
    ) -> Result<(), MapError> {
        let to = self.behind(at);
        if packer.tries(length) {
            span.append_to(at, length, packer.plain())?;
            to.put_piece(length, packer.pack(), out);
            return Ok(());
        }
        let before = out.len();
        let (kind, from) = match to {
            Self::Block(from) => (BLOCK, from),
            Self::Pinned(from) => (PINNED, from),
        };
        put_head(out, kind, &[&from.to_le_bytes()], length);
        let appended = span.append_to(at, length, out);
        if appended.is_err() {
            out.truncate(before);
        }
        appended
    }
}

impl Frame<'_> {
    /// Whether it is a call whose answer somebody awaits, or such an answer.
    #[must_use]
    pub fn is_of_a_call(&self) -> bool {
        matches!(self, Self::Command { answer: Some(_), .. } | Self::Answer { .. })
    }

    /// Appends the frame.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Ack(count) => put(out, 0, &[&count.to_le_bytes()], &[]),
            Self::Command { answer, bytes } => {
                let slot = answer.map_or(UNANSWERED, |answer| answer.slot);
                let call = answer.map_or(0, |answer| answer.call);
                put(out, 1, &[&slot.to_le_bytes(), &call.to_le_bytes()], bytes);
            }
            Self::Block { offset, bytes } => put(out, BLOCK, &[&offset.to_le_bytes()], bytes),
            Self::Pinned { address, bytes } => put(out, PINNED, &[&address.to_le_bytes()], bytes),
            Self::Bye => put(out, 4, &[], &[]),
            Self::Answer { to, status, bytes } => {
                let (slot, call) = (to.slot.to_le_bytes(), to.call.to_le_bytes());
                put(out, 5, &[&slot, &call, &status.to_le_bytes()], bytes);
            }
            Self::Released(block) => put(out, 6, &[&block.to_le_bytes()], &[]),
            Self::Progress { word, value } => {
                put(out, 7, &[&word.to_le_bytes(), &value.to_le_bytes()], &[]);
            }
            Self::Notice { word, value } => {
                put(out, 8, &[&word.to_le_bytes(), &value.to_le_bytes()], &[]);
            }
            Self::Written(number) => put(out, 9, &[&number.to_le_bytes()], &[]),
            Self::Lost(why) => put(out, 10, &[&why.to_le_bytes()], &[]),
            Self::Packed { to, length, bytes } => {
                let (kind, from) = match to {
                    Bulk::Block(from) => (PACKED_BLOCK, from),
                    Bulk::Pinned(from) => (PACKED_PINNED, from),
                };
                put(out, kind, &[&from.to_le_bytes(), &length.to_le_bytes()], bytes);
            }
        }
    }
}

/// Takes fields off the front.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*field)
    }

    fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    /// All that is left, which is at most `most` bytes.
    fn bytes(self, most: usize) -> Option<&'a [u8]> {
        (self.0.len() <= most).then_some(self.0)
    }

    fn end(self) -> Option<()> {
        self.0.is_empty().then_some(())
    }
}

impl<'a> Frame<'a> {
    /// The frame behind a length; `None` for anything that is not exactly one.
    #[must_use]
    pub fn decode(frame: &'a [u8]) -> Option<Self> {
        let (kind, fields) = frame.split_first()?;
        let mut fields = Fields(fields);
        let decoded = match *kind {
            0 => Self::Ack(fields.u64()?),
            1 => {
                let (slot, call) = (fields.u16()?, fields.u32()?);
                let answer = (slot != UNANSWERED).then_some(AnswerTo { slot, call });
                return Some(Self::Command { answer, bytes: fields.bytes(MAX_COMMAND)? });
            }
            BLOCK => {
                return Some(Self::Block { offset: fields.u64()?, bytes: fields.bytes(PIECE)? });
            }
            PINNED => {
                return Some(Self::Pinned { address: fields.u64()?, bytes: fields.bytes(PIECE)? });
            }
            4 => Self::Bye,
            5 => {
                let to = AnswerTo { slot: fields.u16()?, call: fields.u32()? };
                let status = i32::from_le_bytes(fields.take()?);
                return Some(Self::Answer { to, status, bytes: fields.bytes(MAX_ANSWER)? });
            }
            6 => Self::Released(fields.u32()?),
            7 => Self::Progress { word: fields.u32()?, value: fields.u64()? },
            8 => Self::Notice { word: fields.u32()?, value: fields.u64()? },
            9 => Self::Written(fields.u64()?),
            10 => Self::Lost(fields.u32()?),
            PACKED_BLOCK | PACKED_PINNED => {
                let (from, length) = (fields.u64()?, fields.u32()?);
                let to = if *kind == PACKED_BLOCK { Bulk::Block } else { Bulk::Pinned }(from);
                return Some(Self::Packed { to, length, bytes: fields.bytes(PIECE)? });
            }
            _ => return None,
        };
        fields.end().map(|()| decoded)
    }
}

/// What the front of a stream holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Front<'a> {
    /// A frame, and how many bytes of the stream it takes.
    Whole(&'a [u8], usize),
    /// Not all of one yet.
    Part,
    /// No frame is so long.
    TooLong,
}

/// Looks at the front of a stream.
#[must_use]
pub fn front(stream: &[u8]) -> Front<'_> {
    let Some((length, rest)) = stream.split_first_chunk::<LENGTH>() else { return Front::Part };
    let length = usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX);
    if length > FRAME_BYTES_MAX {
        return Front::TooLong;
    }
    rest.get(..length).map_or(Front::Part, |frame| Front::Whole(frame, LENGTH + length))
}

/// A frame of the arena that a stream has begun.
#[derive(Debug, Clone, Copy)]
pub struct OpenBlock {
    /// Where the next byte goes.
    offset: u64,
    left: usize,
    length: usize,
}

impl OpenBlock {
    /// The one at the front of a stream that has its head and may have more of it, and how many
    /// bytes the head takes. `None` for anything else, for one without any bytes too.
    #[must_use]
    pub fn at(stream: &[u8]) -> Option<(Self, usize)> {
        let (length, rest) = stream.split_first_chunk::<LENGTH>()?;
        let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
        let (kind, fields) = rest.split_first()?;
        let offset = Fields(fields).u64()?;
        let left = length.checked_sub(BLOCK_HEAD).filter(|left| (1..=PIECE).contains(left))?;
        offset.checked_add(left as u64)?;
        let block = Self { offset, left, length: LENGTH + length };
        (*kind == BLOCK).then_some((block, LENGTH + BLOCK_HEAD))
    }

    /// Bytes that are yet to come.
    #[must_use]
    pub fn left(&self) -> usize {
        self.left
    }

    /// Bytes of the stream that all of it takes.
    #[must_use]
    pub fn length(&self) -> usize {
        self.length
    }

    /// The next bytes, of which there are no more than are left, as a frame of their own.
    pub fn piece<'a>(&mut self, bytes: &'a [u8]) -> Frame<'a> {
        let offset = self.offset;
        self.offset = offset.saturating_add(bytes.len() as u64);
        self.left = self.left.saturating_sub(bytes.len());
        Frame::Block { offset, bytes }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn samples(bytes: &[u8]) -> [Frame<'_>; 13] {
        let to = AnswerTo { slot: 3, call: 4 };
        [
            Frame::Ack(1 << 40),
            Frame::Command { answer: Some(to), bytes: &bytes[..bytes.len().min(MAX_COMMAND)] },
            Frame::Block { offset: 5, bytes },
            Frame::Pinned { address: 6 << 44, bytes },
            Frame::Bye,
            Frame::Answer { to, status: -7, bytes: &bytes[..bytes.len().min(MAX_ANSWER)] },
            Frame::Released(8),
            Frame::Progress { word: 9, value: 10 },
            Frame::Notice { word: 11, value: 12 },
            Frame::Written(13),
            Frame::Lost(14),
            Frame::Packed { to: Bulk::Block(15), length: 16, bytes },
            Frame::Packed { to: Bulk::Pinned(17), length: 18, bytes },
        ]
    }

    #[test]
    fn frames_come_back_from_a_stream_and_parts_wait() {
        for length in [0, 1, 600, PIECE] {
            let bytes = vec![0xa5; length];
            let mut stream = Vec::new();
            samples(&bytes).iter().for_each(|frame| frame.encode(&mut stream));
            let mut rest = &stream[..];
            for sample in samples(&bytes) {
                let Front::Whole(frame, taken) = front(rest) else { panic!("a whole frame") };
                assert_eq!(Frame::decode(frame), Some(sample));
                assert_eq!(front(&rest[..taken - 1]), Front::Part);
                rest = &rest[taken..];
            }
            assert!(rest.is_empty());
        }
        let unanswered = Frame::Command { answer: None, bytes: b"x" };
        let mut stream = Vec::new();
        unanswered.encode(&mut stream);
        assert_eq!(Frame::decode(&stream[LENGTH..]), Some(unanswered));
        assert_eq!(front(&u32::MAX.to_le_bytes()), Front::TooLong);
    }

    proptest! {
        /// Garbage is refused or is a frame that would be written the same way.
        #[test]
        fn any_bytes_are_one_frame_or_none(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            if let Some(frame) = Frame::decode(&bytes) {
                let mut again = Vec::new();
                frame.encode(&mut again);
                // A command that awaits nothing has a call number that nobody reads.
                if !matches!(frame, Frame::Command { answer: None, .. }) {
                    prop_assert_eq!(&again[LENGTH..], &bytes[..]);
                }
            }
        }
    }
}
