//! What is said about a virtual machine: by its server on the host to the node daemon, and between
//! that server and the agent in the guest. `docs/guests.md` and ADR 36.
//!
//! The server opens a region at the node's tenant socket ([`OpenRegion`], [`Reception`]). From then
//! on it passes on the programs' hellos there, and the daemon's answers back.
//!
//! Server and agent exchange frames over a serial port: a kind, a length and a body. A guest may be
//! reset in the middle of a frame, so each side first sends [`filler`], which completes whatever
//! was cut, and then says that it begins.

use alloc::string::String;
use alloc::vec::Vec;

use crate::codec::{DecodeError, EncodeError, Field, Reader, decode_all, message};
use crate::handshake::{PROTOCOL_VERSION, to_vec};

/// First bytes of an [`OpenRegion`].
pub const REGION_MAGIC: [u8; 4] = *b"WEFV";

/// First bytes of [`Processors`].
pub const PROCESSORS_MAGIC: [u8; 4] = *b"WEFP";

/// Most processors of a machine whose threads are told.
pub const PROCESSORS_MAX: usize = 512;

/// Name of the serial port for frames.
pub const CONTROL_PORT: &str = "weft.control";

/// Name of the serial port for the guest's marks.
pub const MARKS_PORT: &str = "weft.marks";

/// Most bytes of a frame's body.
const BODY_BYTES_MAX: usize = 0xffff;

/// Kind, and length of the body.
const HEADER_BYTES: usize = 3;

message! {
    /// Asks for the region of a virtual machine.
    pub struct OpenRegion {
        /// [`PROTOCOL_VERSION`] of who asks.
        version: u16,
        /// The region that this machine has already, of an earlier daemon; zeros for a new one.
        region: [u8; 16],
        /// The vGPU of all of its programs; empty for the user's own.
        vgpu: String,
        /// Weight wanted if the vGPU is created, 1–10,000; 0 for the default.
        weight: u32,
        /// Memory quota wanted if the vGPU is created, in bytes; 0 for the default.
        memory_bytes: u64,
        /// Attach token, or empty. Or grants, each with the digest of its bearer's key as an
        /// endpoint shows it, and spaces between: then the machine has their vGPUs, as they are.
        token: String,
        /// Size of the region, in bytes: a power of two, as a PCI device's memory is.
        region_bytes: u64,
        /// Sessions that it has room for at once.
        sessions: u8,
    }
}

impl OpenRegion {
    /// Whether a tenant's first message is meant to be one.
    #[must_use]
    pub fn is_one(said: &[u8]) -> bool {
        said.starts_with(&REGION_MAGIC)
    }

    /// Encodes: magic, fields.
    ///
    /// # Errors
    /// [`EncodeError`] when a name is too long.
    pub fn to_bytes(&self) -> Result<Vec<u8>, EncodeError> {
        let mut bytes = REGION_MAGIC.to_vec();
        bytes.extend(to_vec(self)?);
        Ok(bytes)
    }

    /// Decodes exactly one.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        if reader.bytes(4)? != REGION_MAGIC {
            return Err(DecodeError::UnknownKind(0));
        }
        // Of another version only this is known.
        let mut ahead = reader.clone();
        let version = u16::decode(&mut ahead)?;
        if version != PROTOCOL_VERSION {
            return Err(DecodeError::InvalidValue(version.into()));
        }
        let open = Self::decode(&mut reader)?;
        reader.finish()?;
        Ok(open)
    }
}

message! {
    /// The region is there; its memory file travels beside it.
    pub struct Region {
        /// Its name for a later daemon. Who knows it has the region.
        region: [u8; 16],
        /// Its size, in bytes.
        region_bytes: u64,
        /// Sessions that it has room for at once.
        sessions: u8,
    }
}

/// The daemon's answer to an [`OpenRegion`].
#[derive(Debug, Clone, PartialEq)]
pub enum Reception {
    /// The region.
    Region(Region),
    /// There is none.
    Refused {
        /// One of [`crate::handshake::RefusalCode`]'s numbers.
        code: u16,
        /// What happened and what to do next.
        message: String,
    },
}

impl Reception {
    /// Encodes: kind, fields.
    ///
    /// # Errors
    /// [`EncodeError`] when a message is too long.
    pub fn to_bytes(&self) -> Result<Vec<u8>, EncodeError> {
        match self {
            Self::Region(region) => to_vec(&Tagged { kind: 0, body: to_vec(region)? }),
            Self::Refused { code, message } => {
                let refusal = RefusalBody { code: *code, message: message.clone() };
                to_vec(&Tagged { kind: 1, body: to_vec(&refusal)? })
            }
        }
    }

    /// Decodes exactly one.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, DecodeError> {
        let Tagged { kind, body } = decode_all(bytes)?;
        match kind {
            0 => Ok(Self::Region(decode_all(&body)?)),
            1 => {
                let RefusalBody { code, message } = decode_all(&body)?;
                Ok(Self::Refused { code, message })
            }
            other => Err(DecodeError::UnknownKind(other)),
        }
    }
}

message! {
    struct Tagged {
        kind: u16,
        body: Vec<u8>,
    }
}

message! {
    struct RefusalBody {
        code: u16,
        message: String,
    }
}

message! {
    /// Which threads of the host run the machine's processors; said by its server once it has its
    /// region, and again when they change. There is no answer.
    pub struct Processors {
        /// The process that they belong to, as the server's host counts.
        process: u32,
        /// Of each processor, in the order of the guest's numbers.
        threads: Vec<u32>,
    }
}

impl Processors {
    /// Whether a message of a machine's server is meant to be one.
    #[must_use]
    pub fn is_one(said: &[u8]) -> bool {
        said.starts_with(&PROCESSORS_MAGIC)
    }

    /// Encodes: magic, fields.
    ///
    /// # Errors
    /// [`EncodeError`] when there are too many.
    pub fn to_bytes(&self) -> Result<Vec<u8>, EncodeError> {
        let mut bytes = PROCESSORS_MAGIC.to_vec();
        bytes.extend(to_vec(self)?);
        Ok(bytes)
    }

    /// Decodes exactly one, of [`PROCESSORS_MAX`] processors at most.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        if reader.bytes(4)? != PROCESSORS_MAGIC {
            return Err(DecodeError::UnknownKind(0));
        }
        let processors = Self::decode(&mut reader)?;
        reader.finish()?;
        match processors.threads.len() {
            0..=PROCESSORS_MAX => Ok(processors),
            count => Err(DecodeError::InvalidValue(count as u64)),
        }
    }
}

message! {
    /// The agent has started: programs of an earlier one are gone.
    pub struct Begin {
        /// Comes back in [`HostFrame::Begun`].
        nonce: u64,
        /// [`PROTOCOL_VERSION`] of the agent.
        version: u16,
    }
}

message! {
    /// The server has heard that the agent has started.
    pub struct Begun {
        /// The nonce of the agent's [`Begin`].
        nonce: u64,
        /// Name of the server's region, which stands at the beginning of that.
        region: [u8; 16],
    }
}

message! {
    /// A program in the guest says hello.
    pub struct HelloFrame<'a> {
        /// Comes back in [`AnswerFrame`].
        request: u32,
        /// The bytes of its [`crate::handshake::Hello`].
        hello: &'a [u8],
    }
}

message! {
    /// What the daemon answered.
    pub struct AnswerFrame<'a> {
        /// Which hello.
        request: u32,
        /// The bytes of the [`crate::handshake::Answer`].
        answer: &'a [u8],
    }
}

/// What the agent says.
#[derive(Debug, Clone, PartialEq)]
pub enum GuestFrame<'a> {
    /// It has started.
    Begin(Begin),
    /// A program wants a session.
    Hello(HelloFrame<'a>),
    /// The program of the session with this mark is gone.
    Close(u8),
    /// The program that the machine was started for has ended with this status.
    Exited(i32),
}

/// What the server says.
#[derive(Debug, Clone, PartialEq)]
pub enum HostFrame<'a> {
    /// It has forgotten all that was.
    Begun(Begun),
    /// A program's hello was answered.
    Answer(AnswerFrame<'a>),
    /// The worker of the session with this mark is gone.
    Over(u8),
    /// The session's sleepers are to look at their flags.
    Mark(u8),
}

/// A frame with this body.
fn frame<'a>(kind: u8, body: &impl Field<'a>) -> Result<Vec<u8>, EncodeError> {
    let body = crate::codec::encode_to_vec(body, BODY_BYTES_MAX)?;
    // No longer than the buffer that it was encoded into.
    let length = u16::try_from(body.len()).unwrap_or(u16::MAX);
    let mut bytes = Vec::with_capacity(HEADER_BYTES + body.len());
    bytes.push(kind);
    bytes.extend(length.to_le_bytes());
    bytes.extend(body);
    Ok(bytes)
}

impl<'a> GuestFrame<'a> {
    /// Encodes.
    ///
    /// # Errors
    /// [`EncodeError`] when a hello is too long.
    pub fn to_bytes(&self) -> Result<Vec<u8>, EncodeError> {
        match self {
            Self::Begin(begin) => frame(1, begin),
            Self::Hello(hello) => frame(2, hello),
            Self::Close(mark) => frame(3, mark),
            Self::Exited(status) => frame(4, status),
        }
    }

    /// Decodes the body of a frame of that kind.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn from_parts(kind: u8, body: &'a [u8]) -> Result<Self, DecodeError> {
        match kind {
            1 => decode_all(body).map(Self::Begin),
            2 => decode_all(body).map(Self::Hello),
            3 => decode_all(body).map(Self::Close),
            4 => decode_all(body).map(Self::Exited),
            other => Err(DecodeError::UnknownKind(other.into())),
        }
    }
}

impl<'a> HostFrame<'a> {
    /// Encodes.
    ///
    /// # Errors
    /// [`EncodeError`] when an answer is too long.
    pub fn to_bytes(&self) -> Result<Vec<u8>, EncodeError> {
        match self {
            Self::Begun(begun) => frame(0x81, begun),
            Self::Answer(answer) => frame(0x82, answer),
            Self::Over(mark) => frame(0x83, mark),
            Self::Mark(mark) => frame(0x84, mark),
        }
    }

    /// Decodes the body of a frame of that kind.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn from_parts(kind: u8, body: &'a [u8]) -> Result<Self, DecodeError> {
        match kind {
            0x81 => decode_all(body).map(Self::Begun),
            0x82 => decode_all(body).map(Self::Answer),
            0x83 => decode_all(body).map(Self::Over),
            0x84 => decode_all(body).map(Self::Mark),
            other => Err(DecodeError::UnknownKind(other.into())),
        }
    }
}

/// Bytes that say nothing by themselves and complete any frame that was cut.
#[must_use]
pub fn filler() -> Vec<u8> {
    // A header that was cut names at most the longest body.
    alloc::vec![0; HEADER_BYTES + BODY_BYTES_MAX]
}

/// Takes a stream of bytes apart into frames. Never holds more than one that is not complete.
#[derive(Debug, Default)]
pub struct FrameReader {
    bytes: Vec<u8>,
    at: usize,
}

impl FrameReader {
    /// Takes bytes that came. **Take out all frames before the next ones.**
    pub fn push(&mut self, came: &[u8]) {
        self.bytes.drain(..self.at);
        self.at = 0;
        self.bytes.extend_from_slice(came);
    }

    /// The next complete frame: its kind and its body, whatever they are.
    pub fn poll_frame(&mut self) -> Option<(u8, &[u8])> {
        let rest = &self.bytes[self.at..];
        let filling = rest.iter().take_while(|byte| **byte == 0).count();
        self.at += filling;
        let (header, body) = rest[filling..].split_first_chunk::<HEADER_BYTES>()?;
        let [kind, low, high] = *header;
        let length = usize::from(u16::from_le_bytes([low, high]));
        let body = body.get(..length)?;
        self.at += HEADER_BYTES + length;
        Some((kind, body))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello() -> Vec<u8> {
        GuestFrame::Hello(HelloFrame { request: 7, hello: &[9; 300] }).to_bytes().unwrap()
    }

    fn frames(reader: &mut FrameReader) -> Vec<(u8, Vec<u8>)> {
        core::iter::from_fn(|| reader.poll_frame().map(|(kind, body)| (kind, body.to_vec())))
            .collect()
    }

    #[test]
    fn frames_come_back_byte_by_byte() {
        let mut bytes = GuestFrame::Begin(Begin { nonce: 5, version: 4 }).to_bytes().unwrap();
        bytes.extend(hello());
        bytes.extend(GuestFrame::Close(3).to_bytes().unwrap());
        let mut reader = FrameReader::default();
        let mut came = Vec::new();
        for byte in bytes {
            reader.push(&[byte]);
            came.extend(frames(&mut reader));
        }
        let read: Vec<GuestFrame<'_>> =
            came.iter().map(|(kind, body)| GuestFrame::from_parts(*kind, body).unwrap()).collect();
        let wanted = [
            GuestFrame::Begin(Begin { nonce: 5, version: 4 }),
            GuestFrame::Hello(HelloFrame { request: 7, hello: &[9; 300] }),
            GuestFrame::Close(3),
        ];
        assert_eq!(read, wanted);
        let begun = HostFrame::Begun(Begun { nonce: 1, region: [2; 16] });
        for frame in [begun, HostFrame::Over(2), HostFrame::Mark(3)] {
            let bytes = frame.to_bytes().unwrap();
            assert_eq!(HostFrame::from_parts(bytes[0], &bytes[3..]).unwrap(), frame);
        }
    }

    #[test]
    fn a_frame_that_a_reset_cut_anywhere_does_not_hide_what_comes_after_it() {
        let whole = hello();
        for cut in 0..whole.len() {
            let mut reader = FrameReader::default();
            reader.push(&whole[..cut]);
            frames(&mut reader);
            reader.push(&filler());
            frames(&mut reader);
            reader.push(&GuestFrame::Close(3).to_bytes().unwrap());
            let last = frames(&mut reader).pop();
            assert_eq!(last, Some((3, alloc::vec![3])), "cut at {cut}");
        }
    }

    #[test]
    fn processors_come_back_and_too_many_do_not() {
        let mut processors = Processors { process: 7, threads: alloc::vec![8, 9] };
        let bytes = processors.to_bytes().unwrap();
        assert!(Processors::is_one(&bytes) && !OpenRegion::is_one(&bytes));
        assert_eq!(Processors::from_bytes(&bytes).unwrap(), processors);
        Processors::from_bytes(&bytes[..bytes.len() - 1]).unwrap_err();
        processors.threads = alloc::vec![1; PROCESSORS_MAX + 1];
        Processors::from_bytes(&processors.to_bytes().unwrap()).unwrap_err();
    }

    #[test]
    fn openings_come_back_and_other_versions_do_not() {
        let mut open = OpenRegion {
            version: PROTOCOL_VERSION,
            region: [1; 16],
            vgpu: "a".into(),
            weight: 2,
            memory_bytes: 3,
            token: "t".into(),
            region_bytes: 4,
            sessions: 5,
        };
        let bytes = open.to_bytes().unwrap();
        assert!(OpenRegion::is_one(&bytes) && !OpenRegion::is_one(b"WEFT"));
        assert_eq!(OpenRegion::from_bytes(&bytes).unwrap(), open);
        open.version += 1;
        OpenRegion::from_bytes(&open.to_bytes().unwrap()).unwrap_err();
        let region = Region { region: [1; 16], region_bytes: 2, sessions: 3 };
        let refused = Reception::Refused { code: 3, message: "no".into() };
        for reception in [Reception::Region(region), refused] {
            let bytes = reception.to_bytes().unwrap();
            assert_eq!(Reception::from_bytes(&bytes).unwrap(), reception);
        }
    }
}
