//! What an endpoint on another host and the node's gateway say before they relay a session, and
//! the grant that lets it in. `docs/remote.md` and ADR 30.
//!
//! A grant is text: [`GRANT_MARK`] and the hexadecimal digits of an encoded [`GrantBody`] with the
//! node's authentication code behind it. The endpoint reads it for the vGPU and for the key that
//! the gateway must prove to have; only the node can tell whether it is genuine.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crate::codec::{DecodeError, EncodeError, Field, Reader, Writer, decode_all, message};
use crate::handshake::{HelloBody, MAGIC, PROTOCOL_VERSION, Welcome};

/// How the text of a grant begins.
pub const GRANT_MARK: &str = "weft1";

/// A line in which a node's daemon asks its gateway whether it is well.
pub const WELL: &str = "well?";

/// The line in which the gateway says so: when it starts, by which the daemon learns that it knows
/// the question, and for each question.
pub const ALIVE: &str = "alive";

/// Bytes of the authentication code at the end of a grant (HMAC-SHA-256).
pub const CODE_BYTES: usize = 32;

/// Most bytes of one message before frames.
pub const OPENING_BYTES_MAX: usize = 32 * 1024;

/// Longest grant, in characters.
const GRANT_CHARS_MAX: usize = 2048;

/// Bytes of a grant that logs and refusals show, of the number by which it is told from others.
const SHOWN_BYTES: usize = 4;

message! {
    /// What a grant grants.
    pub struct GrantBody {
        /// Tells grants apart.
        id: [u8; 16],
        /// The vGPU. Nobody is let in while it is not there, or is another user's.
        vgpu: String,
        /// The user of the node whose sessions these become.
        owner: u32,
        /// Its weight when the grant was made, 1–10,000; 0 in a grant ahead of it that names none.
        weight: u32,
        /// Its memory quota then, in bytes; 0 likewise.
        memory_bytes: u64,
        /// Endpoints that may use it: each is known by a key of its own.
        uses: u32,
        /// When no session can begin with it any more, in seconds since 1970.
        expires_s: u64,
        /// SHA-256 of the gateway's public key (SubjectPublicKeyInfo, DER).
        server: [u8; 32],
    }
}

message! {
    /// Asks for a session.
    pub struct Open {
        /// The grant's text.
        grant: String,
        /// The endpoint's own secret: a grant that another one has used is not to be had with it.
        key: [u8; 32],
        /// What the program asks for.
        hello: HelloBody,
    }
}

message! {
    /// Goes on with a session whose connection was lost.
    pub struct Resume {
        /// Which one.
        session: [u8; 16],
        /// What the gateway said when it began.
        secret: [u8; 32],
        /// Frames received so far.
        received: u64,
    }
}

message! {
    /// The session has begun.
    pub struct Opened {
        /// Its name for [`Resume`].
        session: [u8; 16],
        /// Who knows it may resume the session.
        secret: [u8; 32],
        /// The arena's size, in bytes.
        arena_bytes: u64,
        /// How long the session outlives its connection, in ms.
        grace_ms: u32,
        /// What the program is told.
        welcome: Welcome,
    }
}

/// An endpoint's first message.
#[derive(Debug, Clone, PartialEq)]
pub enum Opening {
    /// A new session.
    Open(Open),
    /// One that goes on.
    Resume(Resume),
}

/// The gateway's answer.
#[derive(Debug, Clone, PartialEq)]
pub enum Reception {
    /// A new session.
    Opened(Box<Opened>),
    /// The session goes on; so many frames were received.
    Resumed(u64),
    /// It does not.
    Refused {
        /// One of [`crate::handshake::RefusalCode`]'s numbers.
        code: u16,
        /// What happened and what to do next.
        message: String,
    },
}

/// Why an opening message was not understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpeningError {
    /// The peer speaks something else.
    #[error("the peer does not speak the weft protocol")]
    NotWeft,
    /// The peer is older or newer.
    #[error("the peer speaks protocol {0}, this is {PROTOCOL_VERSION}; update the older one")]
    Version(u16),
    /// The bytes are malformed.
    #[error("malformed message: {0}")]
    Malformed(#[from] DecodeError),
}

fn begin(kind: u16, writer: &mut Writer<'_>) -> Result<(), EncodeError> {
    writer.bytes(&MAGIC)?;
    PROTOCOL_VERSION.encode(writer)?;
    kind.encode(writer)
}

fn kind(reader: &mut Reader<'_>) -> Result<u16, OpeningError> {
    if reader.bytes(4).map_err(|_| OpeningError::NotWeft)? != MAGIC {
        return Err(OpeningError::NotWeft);
    }
    match u16::decode(reader)? {
        PROTOCOL_VERSION => Ok(u16::decode(reader)?),
        other => Err(OpeningError::Version(other)),
    }
}

fn written(
    kind: u16,
    fields: impl FnOnce(&mut Writer<'_>) -> Result<(), EncodeError>,
) -> Result<Vec<u8>, EncodeError> {
    let mut bytes = alloc::vec![0; OPENING_BYTES_MAX];
    let mut writer = Writer::new(&mut bytes);
    begin(kind, &mut writer)?;
    fields(&mut writer)?;
    let length = writer.len();
    bytes.truncate(length);
    Ok(bytes)
}

impl Opening {
    /// Encodes: magic, version, kind, fields.
    ///
    /// # Errors
    /// [`EncodeError`] when a name is too long.
    pub fn to_bytes(&self) -> Result<Vec<u8>, EncodeError> {
        match self {
            Self::Open(open) => written(0, |writer| open.encode(writer)),
            Self::Resume(resume) => written(1, |writer| resume.encode(writer)),
        }
    }

    /// Decodes exactly one.
    ///
    /// # Errors
    /// [`OpeningError`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, OpeningError> {
        let mut reader = Reader::new(bytes);
        let opening = match kind(&mut reader)? {
            0 => Self::Open(Open::decode(&mut reader)?),
            1 => Self::Resume(Resume::decode(&mut reader)?),
            other => return Err(DecodeError::UnknownKind(other).into()),
        };
        reader.finish()?;
        Ok(opening)
    }
}

impl Reception {
    /// Encodes: magic, version, kind, fields.
    ///
    /// # Errors
    /// [`EncodeError`] when a name is too long.
    pub fn to_bytes(&self) -> Result<Vec<u8>, EncodeError> {
        match self {
            Self::Opened(opened) => written(0, |writer| opened.encode(writer)),
            Self::Resumed(received) => written(1, |writer| received.encode(writer)),
            Self::Refused { code, message } => written(2, |writer| {
                code.encode(writer)?;
                message.encode(writer)
            }),
        }
    }

    /// Decodes exactly one.
    ///
    /// # Errors
    /// [`OpeningError`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, OpeningError> {
        let mut reader = Reader::new(bytes);
        let reception = match kind(&mut reader)? {
            0 => Self::Opened(Box::new(Opened::decode(&mut reader)?)),
            1 => Self::Resumed(u64::decode(&mut reader)?),
            2 => Self::Refused {
                code: u16::decode(&mut reader)?,
                message: String::decode(&mut reader)?,
            },
            other => return Err(DecodeError::UnknownKind(other).into()),
        };
        reader.finish()?;
        Ok(reception)
    }
}

/// A grant's text is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "this is not a grant, or only a part of one: it is the one word that `weft token` prints, and \
     begins with {GRANT_MARK}"
)]
pub struct NoGrant;

/// A grant's bytes: its body, encoded, and the code over that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// An encoded [`GrantBody`].
    pub body: Vec<u8>,
    /// The node's code over it.
    pub code: [u8; CODE_BYTES],
}

impl Grant {
    /// The text.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = String::from(GRANT_MARK);
        text.push_str(&to_hex(&self.body));
        text.push_str(&to_hex(&self.code));
        text
    }

    /// Takes a text apart. Says nothing about its being genuine.
    ///
    /// # Errors
    /// [`NoGrant`].
    pub fn from_text(text: &str) -> Result<Self, NoGrant> {
        let digits = text.trim().strip_prefix(GRANT_MARK).ok_or(NoGrant)?;
        if digits.len() > GRANT_CHARS_MAX {
            return Err(NoGrant);
        }
        let mut body = from_hex(digits).ok_or(NoGrant)?;
        let at = body.len().checked_sub(CODE_BYTES).ok_or(NoGrant)?;
        let code = body.split_off(at).try_into().map_err(|_| NoGrant)?;
        Ok(Self { body, code })
    }

    /// How its text begins: enough to tell it from others, and nothing that lets anybody in.
    #[must_use]
    pub fn beginning(&self) -> String {
        let shown = self.body.len().min(SHOWN_BYTES);
        format!("{GRANT_MARK}{}…", to_hex(&self.body[..shown]))
    }

    /// What it says, genuine or not.
    ///
    /// # Errors
    /// [`NoGrant`].
    pub fn claims(&self) -> Result<GrantBody, NoGrant> {
        decode_all(&self.body).map_err(|_| NoGrant)
    }
}

const DIGITS: &[u8; 16] = b"0123456789abcdef";

/// Two digits a byte.
#[must_use]
pub fn to_hex(bytes: &[u8]) -> String {
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 0xf]);
    digits.map(|digit| char::from(DIGITS[usize::from(digit)])).collect()
}

/// The bytes; `None` for anything but pairs of digits.
#[must_use]
pub fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    if !digits.len().is_multiple_of(2) || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    let byte = |pair: &[u8]| u8::from_str_radix(core::str::from_utf8(pair).ok()?, 16).ok();
    digits.chunks(2).map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body() -> GrantBody {
        GrantBody {
            id: [7; 16],
            vgpu: "alice".into(),
            owner: 1000,
            weight: 3,
            memory_bytes: 1 << 30,
            uses: 1,
            expires_s: 1_900_000_000,
            server: [9; 32],
        }
    }

    #[test]
    fn a_grant_is_one_word_and_a_part_of_one_is_none() {
        let encoded = crate::handshake::to_vec(&body()).unwrap();
        let grant = Grant { body: encoded, code: [5; CODE_BYTES] };
        let text = grant.to_text();
        assert!(text.chars().all(|c| c.is_ascii_alphanumeric()));
        let read = Grant::from_text(&alloc::format!("{text}\n")).unwrap();
        assert_eq!((read.claims().unwrap(), &read), (body(), &grant));
        for end in 0..text.len() {
            let part = Grant::from_text(&text[..end]).and_then(|grant| grant.claims());
            assert_eq!(part, Err(NoGrant), "{end}");
        }
        let long = alloc::format!("{text}{}", "00".repeat(2000));
        assert_eq!(Grant::from_text(&long), Err(NoGrant));
        assert_eq!(Grant::from_text("weft1é0"), Err(NoGrant));
    }

    #[test]
    fn openings_and_receptions_come_back_and_other_versions_are_told() {
        let resume = Resume { session: [1; 16], secret: [2; 32], received: 3 };
        let opening = Opening::Resume(resume);
        let mut bytes = opening.to_bytes().unwrap();
        assert_eq!(Opening::from_bytes(&bytes).unwrap(), opening);
        bytes[4] ^= 0x80;
        let version = PROTOCOL_VERSION ^ 0x80;
        assert_eq!(Opening::from_bytes(&bytes), Err(OpeningError::Version(version)));
        assert_eq!(Opening::from_bytes(b"GET / HTTP/1.1"), Err(OpeningError::NotWeft));
        for reception in
            [Reception::Resumed(9), Reception::Refused { code: 2, message: "no".into() }]
        {
            let bytes = reception.to_bytes().unwrap();
            assert_eq!(Reception::from_bytes(&bytes).unwrap(), reception);
            for end in 0..bytes.len() {
                Reception::from_bytes(&bytes[..end]).unwrap_err();
            }
        }
    }
}
