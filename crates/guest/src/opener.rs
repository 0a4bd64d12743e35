//! Who opens a machine's region at the node: its server itself, or somebody who lends it to a
//! server that may not get to the node.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use weft_ring::peer;
use weft_wire::guest::{OpenRegion, Reception};
use weft_wire::handshake::{HANDSHAKE_BYTES_MAX, PROTOCOL_VERSION};

/// The daemon answers the first message within this time.
const OPEN_LIMIT: Duration = Duration::from_secs(20);

/// What a machine is to have.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// The node's tenant socket.
    pub node: PathBuf,
    /// The vGPU of all of its programs; of no meaning with grants.
    pub vgpu: String,
    /// Weight if the vGPU is created; 0 for the node's default.
    pub weight: u32,
    /// Memory quota if the vGPU is created, in bytes; 0 for the node's default.
    pub memory_bytes: u64,
    /// Attach token, or grants; empty if none.
    pub token: String,
    /// Size of the region, in bytes.
    pub region_bytes: u64,
    /// Sessions at once.
    pub sessions: u8,
}

/// A region of a node.
#[derive(Debug)]
pub struct Opened {
    /// The connection on which its programs' hellos are said.
    pub node: OwnedFd,
    /// The region's file, the first time.
    pub region: Option<OwnedFd>,
    /// The region's name for the daemon.
    pub name: [u8; 16],
}

/// Who opens it.
#[derive(Debug)]
pub enum Opener {
    /// The server.
    Own(Wanted),
    /// Whoever is at the other end.
    Lent(OwnedFd),
}

/// The node has refused the region: it would do so again.
#[derive(Debug)]
pub struct Refused(String);

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the node refused: {}", self.0)
    }
}

impl std::error::Error for Refused {}

impl Opener {
    /// Opens a region, or the one of that name again; zeros are nobody's name.
    ///
    /// # Errors
    /// [`Refused`], or that there is no node, or nobody who could ask it.
    pub fn open(&self, region: [u8; 16]) -> Result<Opened> {
        match self {
            Self::Own(wanted) => wanted.open(region),
            Self::Lent(lender) => {
                peer::send(lender, &region, &[])?;
                let limit = Some(OPEN_LIMIT + OPEN_LIMIT);
                set_socket_timeout(lender, Timeout::Recv, limit)?;
                let answer = peer::receive(lender, HANDSHAKE_BYTES_MAX)?;
                let peer::Message { bytes, descriptors, .. } =
                    answer.context("who opens the region has ended")?;
                understand(&bytes, descriptors)
            }
        }
    }
}

/// How an answer of a lender begins.
const OPENED: u8 = 0;
const REFUSED: u8 = 1;
const FAILED: u8 = 2;

/// Sends a server what came of its asking.
pub(crate) fn lend(server: &OwnedFd, opened: Result<Opened>) -> Result<()> {
    use std::os::fd::AsFd as _;
    match opened {
        Ok(Opened { node, region, name }) => {
            let mut bytes = vec![OPENED];
            bytes.extend(name);
            let mut fds = vec![node.as_fd()];
            fds.extend(region.iter().map(OwnedFd::as_fd));
            Ok(peer::send(server, &bytes, &fds)?)
        }
        Err(error) => {
            let (kind, words) = match error.downcast::<Refused>() {
                Ok(Refused(words)) => (REFUSED, words),
                Err(error) => (FAILED, format!("{error:#}")),
            };
            let mut bytes = vec![kind];
            bytes.extend(words.bytes().take(HANDSHAKE_BYTES_MAX - 1));
            Ok(peer::send(server, &bytes, &[])?)
        }
    }
}

fn understand(bytes: &[u8], descriptors: Vec<OwnedFd>) -> Result<Opened> {
    let (kind, rest) = bytes.split_first().context("who opens the region said nothing")?;
    let words = || String::from_utf8_lossy(rest).into_owned();
    match *kind {
        OPENED => {
            let name = rest.try_into().context("who opens the region sent no name of it")?;
            let mut descriptors = descriptors.into_iter();
            let node = descriptors.next().context("who opens the region sent no connection")?;
            Ok(Opened { node, region: descriptors.next(), name })
        }
        REFUSED => Err(Refused(words()).into()),
        _ => bail!("{}", words()),
    }
}

impl Wanted {
    /// Opens the region at the node.
    ///
    /// # Errors
    /// [`Refused`], or that there is no node.
    pub fn open(&self, region: [u8; 16]) -> Result<Opened> {
        let path = self.node.display();
        let node = peer::connect_plain(&self.node).with_context(|| {
            format!(
                "no weft node listens on {path}: start one with `weft node`, or set --runtime-dir"
            )
        })?;
        if let Some(uid) = peer::stranger(&node, true)? {
            bail!(
                "the weft socket {path} is user {uid}'s: only nodes of your own user and of root \
                 are used"
            );
        }
        let open = OpenRegion {
            version: PROTOCOL_VERSION,
            region,
            vgpu: self.vgpu.clone(),
            weight: self.weight,
            memory_bytes: self.memory_bytes,
            token: self.token.clone(),
            region_bytes: self.region_bytes,
            sessions: self.sessions,
        };
        peer::send(&node, &open.to_bytes()?, &[])?;
        set_socket_timeout(&node, Timeout::Recv, Some(OPEN_LIMIT))?;
        let message = peer::receive(&node, HANDSHAKE_BYTES_MAX)?.context("the node hung up")?;
        match Reception::from_bytes(&message.bytes)? {
            Reception::Region(opened) => {
                let region = message.descriptors.into_iter().next();
                Ok(Opened { node, region, name: opened.region })
            }
            Reception::Refused { code: _, message } => Err(Refused(message).into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lent(opened: Result<Opened>) -> Result<Opened> {
        let (lender, server) = peer::pair().unwrap();
        lend(&lender, opened).unwrap();
        Opener::Lent(server).open([0; 16])
    }

    #[test]
    fn what_is_lent_arrives() {
        let fd = || peer::pair().unwrap().0;
        let opened = lent(Ok(Opened { node: fd(), region: Some(fd()), name: [7; 16] })).unwrap();
        assert_eq!((opened.name, opened.region.is_some()), ([7; 16], true));
        let again = lent(Ok(Opened { node: fd(), region: None, name: [7; 16] })).unwrap();
        assert!(again.region.is_none());
    }

    #[test]
    fn a_refusal_is_told_from_what_may_go_better() {
        let refused = lent(Err(Refused("no room".to_owned()).into())).unwrap_err();
        assert_eq!(refused.downcast::<Refused>().unwrap().to_string(), "the node refused: no room");
        let failed = lent(Err(anyhow::anyhow!("no node"))).unwrap_err();
        assert!(!failed.is::<Refused>() && failed.to_string() == "no node", "{failed}");
        let (lender, server) = peer::pair().unwrap();
        drop(lender);
        Opener::Lent(server).open([0; 16]).unwrap_err();
    }
}
