//! A session of the node: opened at its tenant socket, as any program would.

use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use rustix::fs::{Access, access};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use weft_ring::{Access as MapAccess, MemoryFile, Segment, SharedMemory, peer};
use weft_wire::handshake::{
    Answer, HANDSHAKE_BYTES_MAX, Hello, HelloBody, PROTOCOL_VERSION, RefusalCode, WELCOME_FDS,
    Welcome,
};
use weft_wire::remote::{Open, to_hex};

use crate::tls::digest;

/// The daemon answers within this time, the start of a worker included.
const ANSWER_LIMIT: Duration = Duration::from_secs(75);

/// What the daemon handed over.
#[derive(Debug)]
pub(super) struct Door {
    pub(super) welcome: Welcome,
    pub(super) segment: Segment,
    pub(super) pinned: Arc<SharedMemory>,
    /// Closed when the session is over; its other end is closed when the worker is.
    pub(super) lifeline: OwnedFd,
}

/// Why an endpoint gets no session.
#[derive(Debug)]
pub(super) struct Refusal {
    /// One of [`RefusalCode`]'s numbers.
    pub(super) code: u16,
    /// For people.
    pub(super) message: String,
}

impl Refusal {
    pub(super) fn of(code: RefusalCode, message: impl Into<String>) -> Self {
        Self { code: code as u16, message: message.into() }
    }
}

impl Door {
    /// Asks the daemon for the session that an endpoint of that host wants.
    pub(super) fn open(socket: &Path, open: &Open, from: IpAddr) -> Result<Self, Refusal> {
        let failed = |error: anyhow::Error| {
            let why = format!("the node does not answer its gateway: {error:#}");
            Refusal::of(RefusalCode::Exhausted, why)
        };
        let (answer, descriptors) = ask(socket, open, from).map_err(failed)?;
        let answer = Answer::from_bytes(&answer).map_err(|error| failed(error.into()))?;
        match answer {
            Answer::Refused { code, message } => Err(Refusal { code, message }),
            Answer::Welcome(welcome) => Self::new(welcome, descriptors).map_err(failed),
        }
    }

    fn new(welcome: Welcome, descriptors: Vec<OwnedFd>) -> anyhow::Result<Self> {
        let found = descriptors.len();
        let [segment, pinned, lifeline] = <[OwnedFd; WELCOME_FDS]>::try_from(descriptors)
            .map_err(|_| anyhow::anyhow!("it passed {found} descriptors"))?;
        let segment = Segment::open(MemoryFile::received(segment)?.map(MapAccess::ReadWrite)?)?;
        let pinned = MemoryFile::received(pinned)?.map(MapAccess::ReadWrite)?;
        Ok(Self { welcome, segment, pinned, lifeline })
    }
}

/// Finds out whether this process may open the node's socket; whether anybody listens there yet is
/// another matter. Nobody is connected to, who would take it for a tenant that says nothing.
pub(super) fn ensure_allowed(socket: &Path) -> anyhow::Result<()> {
    match access(socket, Access::WRITE_OK) {
        Err(Errno::ACCESS) => {
            let (user, path) = (rustix::process::geteuid().as_raw(), socket.display());
            bail!(
                "the gateway's user {user} may not open {path}: let others pass all folders above \
                 it (chmod o+x), or set remote.user"
            )
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

fn ask(socket: &Path, open: &Open, from: IpAddr) -> anyhow::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let node = peer::connect_plain(socket)
        .with_context(|| format!("no node listens at {}", socket.display()))?;
    let stranger = peer::stranger(&node, true)?;
    ensure!(stranger.is_none(), "{} is another user's", socket.display());
    for limited in [Timeout::Recv, Timeout::Send] {
        set_socket_timeout(&node, limited, Some(ANSWER_LIMIT))?;
    }
    // The daemon learns which endpoint it is, not the endpoint's secret.
    let token = format!("{from}@{}.{}", open.grant.trim(), to_hex(&digest(&open.key)));
    let body = HelloBody { token, ..open.hello.clone() };
    let hello = Hello { version: PROTOCOL_VERSION, body }.to_bytes()?;
    peer::send(&node, &hello, &[])?;
    let message = peer::receive(&node, HANDSHAKE_BYTES_MAX)?.context("it hung up")?;
    Ok((message.bytes, message.descriptors))
}
