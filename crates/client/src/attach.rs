//! Attaching: reserve addresses, say hello, map what the daemon hands over.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::sockopt::Timeout;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};
use weft_ring::{
    Access, Bell, ClientOptions, ClientSide, MapError, MemoryFile, Reservation, Segment,
    SegmentError, SharedMemory, WaitPage, peer,
};
use weft_wire::handshake::{
    self, GUEST_FDS, HANDSHAKE_BYTES_MAX, HandshakeError, Hello, HelloBody, PROTOCOL_VERSION,
    Placement, WELCOME_FDS, Welcome,
};

use crate::client::lock;
use crate::config::{Config, ConfigError};
use crate::transport::Transport;

/// Device addresses reserved if the system lets us; halved down to [`DEVICE_RANGE_MIN`] otherwise.
const DEVICE_RANGE: usize = 1 << 40;
/// The least range of device addresses that is worth having.
const DEVICE_RANGE_MIN: usize = 1 << 34;
/// Where the search for the device range starts, and its steps: a driver in the worker reserves the
/// same range there, so it must be free in both.
const DEVICE_SEARCH: usize = 0x3000_0000_0000;
const DEVICE_STEP: usize = 1 << 40;
/// Candidates for the device range.
const DEVICE_TRIES: usize = 32;
/// Pinned host memory asked for. Only what is used costs memory.
const PINNED_WINDOW: usize = 16 << 30;
/// Where the search for the pinned window starts: far from where Linux places programs, libraries
/// and stacks, so that the same range is free in the worker.
const PINNED_SEARCH: usize = 0x2000_0000_0000;
/// From one candidate for the window to the next.
const PINNED_STEP: usize = 1 << 38;
/// Candidates for the window.
const PINNED_TRIES: usize = 64;
/// Bytes that the path of a Unix socket may have.
pub const SOCKET_PATH_MAX: usize = 107;
/// Descriptors that come with a welcome, at most.
const FDS_MAX: usize = if GUEST_FDS > WELCOME_FDS { GUEST_FDS } else { WELCOME_FDS };
/// How long the daemon, or an endpoint that asks it, may take to start a worker.
const ANSWER_LIMIT: Duration = Duration::from_secs(90);
/// How long it may take to accept a connection.
const CONNECT_LIMIT: Duration = Duration::from_secs(20);

/// Why a program has no vGPU, in words for people: what happened, and what to do next.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The environment makes no sense.
    #[error("{0}")]
    Config(#[from] ConfigError),
    /// Nobody listens on these sockets.
    #[error(
        "no weft node or endpoint listens on {}: start one with `weft node` or `weft remote`, or \
         run the program with `weft run -- PROGRAM`",
        either(.0)
    )]
    NoDaemon(Vec<PathBuf>),
    /// Somebody else listens on the socket.
    #[error(
        "the weft socket {path} is user {uid}'s, who could read and change all that this program \
         computes: only nodes of your own user and of root are used; set WEFT_SOCKET to the socket \
         of such a node"
    )]
    Stranger {
        /// The socket.
        path: PathBuf,
        /// Who listens there.
        uid: u32,
    },
    /// The socket's path cannot be one.
    #[error(
        "the path of the weft socket {} is {} bytes long, and a socket's may have {SOCKET_PATH_MAX}: \
         set WEFT_SOCKET to a shorter one (a symbolic link will do)",
        .0.display(),
        .0.as_os_str().len()
    )]
    Path(PathBuf),
    /// The socket is not this user's to open.
    #[error(
        "no permission to open the weft socket {0}: ask its owner for access, or set WEFT_SOCKET to \
         the socket of a node of your own"
    )]
    Permission(PathBuf),
    /// The connection failed otherwise.
    #[error("connecting to the weft node at {path} failed: {source}; is the node still running?")]
    Connection {
        /// The socket.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// The daemon refused.
    #[error("this program gets no vGPU: {0}")]
    Refused(String),
    /// The daemon's answer makes no sense, or is one of another version.
    #[error("the weft node's answer is not understood: {0}")]
    Handshake(#[from] HandshakeError),
    /// The daemon did not pass what belongs to a welcome.
    #[error("the weft node passed {found} file descriptors instead of {expected}; update the node")]
    Descriptors {
        /// How many came.
        found: usize,
        /// How many belong to the welcome.
        expected: usize,
    },
    /// Addresses or shared memory could not be had.
    #[error("no room in this program's address space for a vGPU: {0}; raise `ulimit -v`")]
    Memory(#[from] MapError),
    /// The session's segment cannot be used.
    #[error(
        "the session's shared memory cannot be used: {0}; client and node must be of one build"
    )]
    Segment(#[from] SegmentError),
    /// Direct attachment failed.
    #[error("direct attachment failed: {0}; unset WEFT_ATTACH to use a weft node")]
    Direct(String),
}

/// Addresses that a client sets aside before it says hello.
#[derive(Debug)]
pub struct Addresses {
    device: Reservation,
    pinned: Reservation,
    /// The window's reservation is given up shortly before the window is mapped there; nobody else
    /// in the process may reserve meanwhile.
    _alone: MutexGuard<'static, ()>,
}

static ATTACHING: Mutex<()> = Mutex::new(());

impl Addresses {
    /// Reserves both ranges.
    ///
    /// # Errors
    /// [`AttachError::Memory`] when the address space has no room.
    pub fn reserve() -> Result<Self, AttachError> {
        let alone = lock(&ATTACHING);
        let pinned = Reservation::search(PINNED_SEARCH, PINNED_STEP, PINNED_TRIES, PINNED_WINDOW)?;
        let mut bytes = DEVICE_RANGE;
        loop {
            match Reservation::search(DEVICE_SEARCH, DEVICE_STEP, DEVICE_TRIES, bytes) {
                Ok(device) => return Ok(Self { device, pinned, _alone: alone }),
                Err(_) if bytes > DEVICE_RANGE_MIN => bytes /= 2,
                Err(refusal) => return Err(refusal.into()),
            }
        }
    }

    /// The hello of this process to a vGPU.
    #[must_use]
    pub fn hello(&self, config: &Config, vgpu: &str) -> Hello {
        let program = std::env::args_os().next().unwrap_or_default();
        let program = Path::new(&program).file_name().unwrap_or_default();
        Hello {
            version: PROTOCOL_VERSION,
            body: HelloBody {
                vgpu: vgpu.to_owned(),
                weight: config.weight,
                memory_bytes: config.memory_bytes,
                token: config.token.clone(),
                pid: std::process::id(),
                program: program.to_string_lossy().chars().take(255).collect(),
                device_base: self.device.address() as u64,
                device_bytes: self.device.len() as u64,
                pinned_base: self.pinned.address() as u64,
                pinned_bytes: self.pinned.len() as u64,
            },
        }
    }
}

/// What a welcome brings.
#[derive(Debug)]
pub struct Established {
    /// The vGPU.
    pub welcome: Welcome,
    /// The client's side of the segment.
    pub side: ClientSide,
    /// The pinned window, mapped at the address that the hello named.
    pub pinned: Arc<SharedMemory>,
    /// Keeps the device range reserved.
    pub device: Reservation,
    /// Tells the worker that this process lives.
    pub lifeline: Arc<Lifeline>,
}

/// One end of a socket pair whose other end the worker holds: each side learns of the other's
/// death.
#[derive(Debug)]
pub struct Lifeline(Mutex<Option<OwnedFd>>);

impl Lifeline {
    /// Whether the worker may still live.
    fn holds(&self) -> bool {
        lock(&self.0).as_ref().is_none_or(|end| !hung_up(end))
    }

    /// Closes this end, unless somebody is looking at it.
    pub(crate) fn cut(&self) {
        if let Ok(mut end) = self.0.try_lock() {
            drop(end.take());
        }
    }
}

/// A session's memory, not mapped yet, and how its worker's end is known.
#[derive(Debug)]
struct Parts {
    segment: MemoryFile,
    pinned: MemoryFile,
    lifeline: Option<OwnedFd>,
}

impl Parts {
    /// What the descriptors of a welcome are.
    fn of(welcome: &Welcome, descriptors: Vec<OwnedFd>) -> Result<Self, AttachError> {
        let found = descriptors.len();
        if let Some(placement) = &welcome.placement {
            let wrong = |_| AttachError::Descriptors { found, expected: GUEST_FDS };
            let descriptors = <[OwnedFd; GUEST_FDS]>::try_from(descriptors).map_err(wrong)?;
            return Self::in_region(placement, welcome.pinned_bytes, descriptors);
        }
        let wrong = |_| AttachError::Descriptors { found, expected: WELCOME_FDS };
        let [segment, pinned, lifeline] =
            <[OwnedFd; WELCOME_FDS]>::try_from(descriptors).map_err(wrong)?;
        Ok(Self {
            segment: MemoryFile::received(segment)?,
            pinned: MemoryFile::received(pinned)?,
            lifeline: Some(lifeline),
        })
    }

    /// In a virtual machine: parts of the region that its host lends it.
    fn in_region(
        placement: &Placement,
        pinned_bytes: u64,
        [region, wait_page, lifeline, marks]: [OwnedFd; GUEST_FDS],
    ) -> Result<Self, AttachError> {
        let region = MemoryFile::lent(region)?;
        let wait_page = WaitPage::open(&MemoryFile::received(wait_page)?.map(Access::ReadWrite)?)?;
        let pinned = region.try_clone()?.part(placement.pinned_at, pinned_bytes)?;
        let bell = Bell::of_guest(marks, placement.mark, wait_page);
        let segment = region.part(placement.segment_at, placement.segment_bytes)?.with_bell(bell);
        Ok(Self { segment, pinned, lifeline: Some(lifeline) })
    }
}

impl Established {
    /// Maps what came with a welcome. `lifeline` hangs up when the worker is gone; a session in
    /// this process has none.
    ///
    /// # Errors
    /// [`AttachError`] when a descriptor is not what it must be.
    pub fn new(
        addresses: Addresses,
        welcome: Welcome,
        segment: OwnedFd,
        pinned: OwnedFd,
        lifeline: Option<OwnedFd>,
    ) -> Result<Self, AttachError> {
        let (segment, pinned) = (MemoryFile::received(segment)?, MemoryFile::received(pinned)?);
        Self::map(addresses, welcome, Parts { segment, pinned, lifeline })
    }

    fn map(addresses: Addresses, welcome: Welcome, parts: Parts) -> Result<Self, AttachError> {
        let Parts { segment, pinned, lifeline } = parts;
        let segment = Segment::open(segment.map(Access::ReadWrite)?)?;
        let lifeline = Arc::new(Lifeline(Mutex::new(lifeline)));
        let watched = Arc::clone(&lifeline);
        let alive = Box::new(move || watched.holds());
        let side = ClientSide::open(segment, ClientOptions::default(), alive)?;
        let base = addresses.pinned.address();
        // The daemon may grant less than the whole window; the reservation must be as long as the
        // file.
        drop(addresses.pinned);
        let pinned = pinned.map_at(base, Access::ReadWrite)?;
        Ok(Self { welcome, side, pinned, device: addresses.device, lifeline })
    }
}

/// What code that executes commands in this process gives for a hello.
#[derive(Debug)]
pub struct DirectSession {
    /// The bytes of its [`handshake::Answer`].
    pub answer: Vec<u8>,
    /// The segment's memory file.
    pub segment: OwnedFd,
    /// The pinned window's.
    pub pinned: OwnedFd,
    /// Executes the commands.
    pub transport: Arc<dyn Transport>,
}

/// Attaches to execution code in this process: `open` gets the bytes of a [`Hello`].
pub(crate) fn connect_direct(
    config: &Config,
    open: impl FnOnce(&[u8]) -> Result<DirectSession, String>,
) -> Result<(Established, Arc<dyn Transport>), AttachError> {
    let addresses = Addresses::reserve()?;
    let hello = addresses.hello(config, &config.vgpu).to_bytes();
    let hello = hello.map_err(|error| AttachError::Direct(error.to_string()))?;
    let DirectSession { answer, segment, pinned, transport } =
        open(&hello).map_err(AttachError::Direct)?;
    match handshake::Answer::from_bytes(&answer)? {
        handshake::Answer::Refused { code: _, message } => Err(AttachError::Direct(message)),
        handshake::Answer::Welcome(welcome) => {
            let established = Established::new(addresses, welcome, segment, pinned, None)?;
            Ok((established, transport))
        }
    }
}

/// Attaches to the first node daemon that listens at one of `config.sockets`.
pub(crate) fn connect(config: &Config, vgpu: &str) -> Result<Established, AttachError> {
    let addresses = Addresses::reserve()?;
    let (path, socket) = find(config)?;
    greet(config, vgpu, addresses, &socket, &path)
}

/// Attaches over a connection to a node daemon that somebody else made.
///
/// # Errors
/// [`AttachError`].
pub fn connect_over(
    socket: &OwnedFd,
    config: &Config,
    vgpu: &str,
) -> Result<Established, AttachError> {
    greet(config, vgpu, Addresses::reserve()?, socket, Path::new("the node"))
}

/// Says hello on a connection to `path`, and maps what the answer brings.
fn greet(
    config: &Config,
    vgpu: &str,
    addresses: Addresses,
    socket: &OwnedFd,
    path: &Path,
) -> Result<Established, AttachError> {
    let failed = |errno: Errno| connection_error(path, errno);
    let hello = addresses.hello(config, vgpu).to_bytes().map_err(|_| {
        AttachError::Refused("names in the WEFT_ variables are too long; shorten them".into())
    })?;
    rustix::net::send(socket, &hello, SendFlags::NOSIGNAL).map_err(failed)?;
    let (answer, descriptors) = receive(socket).map_err(failed)?;
    match handshake::Answer::from_bytes(&answer)? {
        handshake::Answer::Refused { code: _, message } => Err(AttachError::Refused(message)),
        handshake::Answer::Welcome(welcome) => {
            let parts = Parts::of(&welcome, descriptors)?;
            Established::map(addresses, welcome, parts)
        }
    }
}

/// The first socket at which somebody listens whom this program's user trusts. One that is not the
/// user's to open is passed over for a later one.
fn find(config: &Config) -> Result<(PathBuf, OwnedFd), AttachError> {
    let mut refused = None;
    for path in &config.sockets {
        match open(path, config.named) {
            Ok(socket) => return Ok((path.clone(), socket)),
            Err(AttachError::NoDaemon(_)) => {}
            Err(error @ AttachError::Permission(_)) => refused = refused.or(Some(error)),
            Err(error) => return Err(error),
        }
    }
    Err(refused.unwrap_or_else(|| AttachError::NoDaemon(config.sockets.clone())))
}

/// Connects to the socket at `path`. Nothing is said before it is known who listens.
fn open(path: &Path, named: bool) -> Result<OwnedFd, AttachError> {
    let failed = |errno: Errno| connection_error(path, errno);
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .map_err(failed)?;
    let address = SocketAddrUnix::new(path).map_err(failed)?;
    // A daemon that stands still lets nobody in once its queue is full.
    let limit = Some(CONNECT_LIMIT);
    rustix::net::sockopt::set_socket_timeout(&socket, Timeout::Send, limit).map_err(failed)?;
    rustix::io::retry_on_intr(|| rustix::net::connect(&socket, &address)).map_err(failed)?;
    match peer::stranger(&socket, named) {
        Ok(None) => Ok(socket),
        Ok(Some(uid)) => Err(AttachError::Stranger { path: path.to_owned(), uid }),
        Err(source) => Err(AttachError::Connection { path: path.to_owned(), source }),
    }
}

fn either(paths: &[PathBuf]) -> String {
    let shown: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    shown.join(" or ")
}

fn connection_error(path: &Path, errno: Errno) -> AttachError {
    let path = path.to_owned();
    match errno {
        Errno::NOENT | Errno::CONNREFUSED | Errno::NOTDIR => AttachError::NoDaemon(vec![path]),
        Errno::NAMETOOLONG => AttachError::Path(path),
        Errno::ACCESS | Errno::PERM => AttachError::Permission(path),
        other => AttachError::Connection { path, source: other.into() },
    }
}

fn receive(socket: &OwnedFd) -> Result<(Vec<u8>, Vec<OwnedFd>), Errno> {
    let timeout = rustix::time::Timespec {
        tv_sec: i64::try_from(ANSWER_LIMIT.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: 0,
    };
    let mut ready = [PollFd::new(socket, PollFlags::IN)];
    let count = rustix::io::retry_on_intr(|| poll(&mut ready, Some(&timeout)))?;
    if count == 0 {
        return Err(Errno::TIMEDOUT);
    }
    let mut bytes = vec![0; HANDSHAKE_BYTES_MAX];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::io::retry_on_intr(|| {
        let mut parts = [io::IoSliceMut::new(&mut bytes)];
        rustix::net::recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    if received.bytes == 0 {
        return Err(Errno::CONNRESET);
    }
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(passed) = message {
            descriptors.extend(passed);
        }
    }
    bytes.truncate(received.bytes);
    Ok((bytes, descriptors))
}

/// Whether the other end of the lifeline is closed. Nothing is ever sent on it.
fn hung_up(lifeline: &OwnedFd) -> bool {
    let mut end = [PollFd::new(lifeline, PollFlags::RDHUP)];
    let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
    let gone = PollFlags::HUP | PollFlags::RDHUP | PollFlags::ERR | PollFlags::NVAL;
    match poll(&mut end, Some(&now)) {
        Ok(0) | Err(_) => false,
        Ok(_) => end.iter().any(|end| end.revents().intersects(gone)),
    }
}
