//! What a tenant and the node daemon say when the tenant attaches.
//!
//! The client connects to the node's tenant socket (`SOCK_SEQPACKET`) and sends one [`Hello`]. The
//! daemon answers with one [`Answer`]: a [`Welcome`] with the session's file descriptors (segment,
//! pinned window, lifeline: [`WELCOME_FDS`], in this order), or a refusal in words. The first 8
//! bytes of a `Hello` and of an answer never change between versions, so that peers of different
//! age refuse each other clearly.
//!
//! Both sides close the tenant socket after the answer: a session outlives its daemon, so the
//! daemon's death says nothing about the session. The *lifeline* is the writing end of a pipe whose
//! reading end only the worker holds. It never carries a byte. The client keeps it open
//! (close-on-exec) as long as it uses the session; its hang-up (`POLLERR`) tells the client that
//! the worker is gone, and closing it tells the worker that the client is gone. A client that
//! waits on a futex also learns of a dead worker through the segment's worker-lost word, which the
//! daemon sets and wakes; because there may be no daemon at that moment, it waits at most 100 ms at
//! a time and then polls the lifeline. A forked child closes its copy.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crate::codec::{self, DecodeError, EncodeError, Field, Reader, Writer, message};

/// First four bytes of every handshake message.
pub const MAGIC: [u8; 4] = *b"WEFT";

/// Version of everything in this crate that crosses a process border.
///
/// WHEN CHANGING ANY MESSAGE (command, reply, handshake): raise this number and renew the golden
/// bytes (`tests/golden.rs`).
pub const PROTOCOL_VERSION: u16 = 7;

/// File descriptors that accompany a [`Welcome`]: segment, pinned window, lifeline.
pub const WELCOME_FDS: usize = 3;

/// File descriptors that accompany a [`Welcome`] with a [`Placement`], in the virtual machine: the
/// shared region, the page to sleep on, the lifeline, and where marks for the host are written.
pub const GUEST_FDS: usize = 4;

/// Most bytes of one handshake message.
pub const HANDSHAKE_BYTES_MAX: usize = 16 * 1024;

message! {
    /// A tenant's request to attach.
    pub struct HelloBody {
        /// vGPU to attach to; empty for one of the tenant's own, created on demand.
        vgpu: String,
        /// Weight wanted if the vGPU is created, 1–10,000; 0 for the default.
        weight: u32,
        /// Memory quota wanted if the vGPU is created, in bytes; 0 for the default.
        memory_bytes: u64,
        /// Attach token; empty if none.
        token: String,
        /// Process id as the tenant sees it (for names in logs only).
        pid: u32,
        /// Program name (for logs and `weft ls` only).
        program: String,
        /// Start of the address range that the client reserved for device memory.
        device_base: u64,
        /// Its length in bytes.
        device_bytes: u64,
        /// Start of the address range reserved for pinned host memory.
        pinned_base: u64,
        /// Its length in bytes.
        pinned_bytes: u64,
    }
}

impl HelloBody {
    /// One that reserves no addresses: it asks only whether a grant lets it in to a vGPU (empty:
    /// the grant's). The answer is always a refusal, of [`RefusalCode::OnlyAsked`] if so.
    #[must_use]
    pub fn question(vgpu: &str) -> Self {
        Self {
            vgpu: vgpu.into(),
            weight: 0,
            memory_bytes: 0,
            token: String::new(),
            pid: 0,
            program: String::new(),
            device_base: 0,
            device_bytes: 0,
            pinned_base: 0,
            pinned_bytes: 0,
        }
    }

    /// Whether it is one.
    #[must_use]
    pub fn is_question(&self) -> bool {
        self.device_bytes == 0 && self.pinned_bytes == 0
    }
}

message! {
    /// One device attribute.
    pub struct Attribute {
        /// `CUdevice_attribute` number.
        number: u32,
        /// Its value.
        value: i32,
    }
}

message! {
    /// Where a session's memory lies in the region that a virtual machine shares with its host.
    /// Offsets and lengths are bytes, of whole pages.
    pub struct Placement {
        /// Where the segment starts.
        segment_at: u64,
        /// Its length.
        segment_bytes: u64,
        /// Where the pinned window starts; it is as long as the welcome says.
        pinned_at: u64,
        /// What each side tells the other to have it look at the session's flags.
        mark: u8,
    }
}

message! {
    /// What the tenant needs to know about its vGPU.
    pub struct Welcome {
        /// Number of the session on this node.
        session: u64,
        /// Name of the vGPU.
        vgpu: String,
        /// Device name for `cuDeviceGetName`.
        device_name: String,
        /// Identity of the vGPU for `cuDeviceGetUuid`.
        uuid: [u8; 16],
        /// Compute capability, major.
        capability_major: u32,
        /// Compute capability, minor.
        capability_minor: u32,
        /// Memory quota in bytes: what `cuDeviceTotalMem` shows.
        memory_bytes: u64,
        /// Bytes of the pinned window actually granted (≤ what was asked).
        pinned_bytes: u64,
        /// Bytes behind it in the same file, for managed memory; 0 where that is pinned memory.
        managed_bytes: u64,
        /// Device attributes.
        attributes: Vec<Attribute>,
        /// For a program of a virtual machine: the descriptors are then [`GUEST_FDS`] others.
        placement: Option<Placement>,
    }
}

/// What says that a device uses memory of the program's own in place:
/// `CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM` and `_HOST_REGISTER_SUPPORTED`.
const OF_REGISTERED_MEMORY: [u32; 2] = [91, 99];

impl Welcome {
    /// Says that memory of the program's own cannot be registered: where the window is no memory
    /// file of the program's host, its pages cannot take the place of the program's.
    pub fn refuse_registering(&mut self) {
        self.attributes.retain(|attribute| !OF_REGISTERED_MEMORY.contains(&attribute.number));
        let refused = OF_REGISTERED_MEMORY.map(|number| Attribute { number, value: 0 });
        self.attributes.extend(refused);
    }
}

/// A tenant's first message.
#[derive(Debug, Clone, PartialEq)]
pub struct Hello {
    /// Protocol version the client speaks.
    pub version: u16,
    /// The request.
    pub body: HelloBody,
}

/// The daemon's answer.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// Attached; the [`WELCOME_FDS`] file descriptors travel beside it.
    Welcome(Welcome),
    /// Refused, with the reason and what to do, for people.
    Refused {
        /// Why, as one of [`RefusalCode`]'s numbers.
        code: u16,
        /// What happened and what to do next.
        message: String,
    },
}

/// Why the daemon refused a tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum RefusalCode {
    /// The two sides speak different protocol versions.
    Version = 1,
    /// No such vGPU, or not this tenant's.
    Permission = 2,
    /// The node has no room: sessions, memory, device.
    Exhausted = 3,
    /// The request itself makes no sense.
    Malformed = 4,
    /// The worker did not start.
    Worker = 5,
    /// Nothing: the hello asked only whether it would be let in, and it would.
    OnlyAsked = 6,
}

impl Hello {
    /// Encodes: magic, version, two zero bytes, body.
    pub fn to_bytes(&self) -> Result<Vec<u8>, EncodeError> {
        let mut bytes = alloc::vec![0; HANDSHAKE_BYTES_MAX];
        let mut writer = Writer::new(&mut bytes);
        writer.bytes(&MAGIC)?;
        self.version.encode(&mut writer)?;
        0_u16.encode(&mut writer)?;
        self.body.encode(&mut writer)?;
        let length = writer.len();
        bytes.truncate(length);
        Ok(bytes)
    }

    /// Decodes. A peer of another version is reported before its body is looked at.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, HandshakeError> {
        let mut reader = Reader::new(bytes);
        let version = read_preamble(&mut reader)?;
        check_version(version, "client", "node daemon")?;
        let body = HelloBody::decode(&mut reader)?;
        reader.finish()?;
        Ok(Self { version, body })
    }
}

impl Answer {
    /// Encodes: magic, version, kind (0 welcome, 1 refused), body.
    pub fn to_bytes(&self) -> Result<Vec<u8>, EncodeError> {
        let mut bytes = alloc::vec![0; HANDSHAKE_BYTES_MAX];
        let mut writer = Writer::new(&mut bytes);
        writer.bytes(&MAGIC)?;
        PROTOCOL_VERSION.encode(&mut writer)?;
        match self {
            Self::Welcome(welcome) => {
                0_u16.encode(&mut writer)?;
                welcome.encode(&mut writer)?;
            }
            Self::Refused { code, message } => {
                1_u16.encode(&mut writer)?;
                code.encode(&mut writer)?;
                message.encode(&mut writer)?;
            }
        }
        let length = writer.len();
        bytes.truncate(length);
        Ok(bytes)
    }

    /// Decodes. A refusal is understood from a daemon of any version.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, HandshakeError> {
        let mut reader = Reader::new(bytes);
        let magic = reader.bytes(4)?;
        if magic != MAGIC {
            return Err(HandshakeError::NotWeft);
        }
        let version = u16::decode(&mut reader)?;
        let answer = match u16::decode(&mut reader)? {
            0 => {
                check_version(version, "node daemon", "client")?;
                Self::Welcome(Welcome::decode(&mut reader)?)
            }
            1 => Self::Refused {
                code: u16::decode(&mut reader)?,
                message: String::decode(&mut reader)?,
            },
            other => return Err(DecodeError::InvalidValue(other.into()).into()),
        };
        reader.finish()?;
        Ok(answer)
    }
}

/// Why a handshake message was not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// The peer does not speak Weft at all.
    #[error("the peer does not speak the weft protocol")]
    NotWeft,
    /// The peer is older or newer.
    #[error("{0}")]
    Version(String),
    /// The bytes are malformed.
    #[error("malformed handshake: {0}")]
    Malformed(#[from] DecodeError),
}

fn read_preamble(reader: &mut Reader<'_>) -> Result<u16, HandshakeError> {
    if reader.bytes(4).map_err(|_| HandshakeError::NotWeft)? != MAGIC {
        return Err(HandshakeError::NotWeft);
    }
    let version = u16::decode(reader)?;
    let _reserved = u16::decode(reader)?;
    Ok(version)
}

fn check_version(theirs: u16, peer: &str, own: &str) -> Result<(), HandshakeError> {
    if theirs == PROTOCOL_VERSION {
        return Ok(());
    }
    let (age, advice) = if theirs < PROTOCOL_VERSION { ("older", peer) } else { ("newer", own) };
    Err(HandshakeError::Version(format!(
        "the {peer} is {age}: it speaks protocol {theirs}, the {own} speaks {PROTOCOL_VERSION}; \
         update the {advice}"
    )))
}

/// Encodes any message of this crate into a vector.
pub fn to_vec<'a, T: Field<'a>>(value: &T) -> Result<Vec<u8>, EncodeError> {
    codec::encode_to_vec(value, HANDSHAKE_BYTES_MAX)
}
