//! The gateway, as an endpoint reaches it.

use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use weft_wire::handshake::{HelloBody, RefusalCode};
use weft_wire::remote::{OPENING_BYTES_MAX, Open, Opened, Opening, Reception, Resume};

use super::Refusal;
use crate::tls::{self, Channel, Heard, Room};

/// A connection must be there within this time.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// The node may take so long to start a worker; the gateway waits a little less, the program more.
const OPEN_LIMIT: Duration = Duration::from_secs(80);

/// A session that goes on is answered within this time.
const RESUME_LIMIT: Duration = Duration::from_secs(10);

/// Where the gateway is, and what its key is.
#[derive(Debug, Clone)]
pub struct Gateway {
    /// Host and port.
    pub remote: String,
    /// Digest of its public key.
    pub digest: [u8; 32],
}

/// What came of trying to go on.
#[derive(Debug)]
pub(super) enum Resumption {
    /// The peer has handled so many frames.
    Resumed(Box<Channel>, u64),
    /// The session is not there any more.
    Refused(String),
}

impl Gateway {
    /// Begins a session.
    ///
    /// # Errors
    /// [`Refusal`], in words for the program's user.
    pub(super) fn open(
        &self,
        grant: &str,
        key: [u8; 32],
        hello: &HelloBody,
    ) -> Result<(Channel, Opened), Refusal> {
        let open = Open { grant: grant.to_owned(), key, hello: hello.clone() };
        let unreachable =
            |error: anyhow::Error| Refusal::of(RefusalCode::Exhausted, format!("{error:#}"));
        let (channel, reception) =
            self.say(&Opening::Open(open), OPEN_LIMIT).map_err(unreachable)?;
        match reception {
            Reception::Opened(opened) => Ok((channel, *opened)),
            Reception::Refused { code, message } => Err(Refusal { code, message }),
            Reception::Resumed(_) => {
                let why = "the gateway resumes what was not begun";
                Err(Refusal::of(RefusalCode::Malformed, why))
            }
        }
    }

    /// Goes on with a session.
    ///
    /// # Errors
    /// When the gateway cannot be reached now.
    pub(super) fn resume(&self, resume: Resume) -> Result<Resumption> {
        let (channel, reception) = self.say(&Opening::Resume(resume), RESUME_LIMIT)?;
        match reception {
            Reception::Resumed(handled) => Ok(Resumption::Resumed(Box::new(channel), handled)),
            Reception::Refused { message, .. } => Ok(Resumption::Refused(message)),
            Reception::Opened(_) => bail!("the gateway began what was to go on"),
        }
    }

    fn say(&self, opening: &Opening, limit: Duration) -> Result<(Channel, Reception)> {
        let remote = &self.remote;
        let socket = self.connect()?;
        socket.set_read_timeout(Some(CONNECT_LIMIT))?;
        socket.set_write_timeout(Some(CONNECT_LIMIT))?;
        let config = tls::client_config(self.digest)?;
        let channel = Channel::connect(socket, config).map_err(|error| {
            let why = match tls::is_proof_missing(&error) {
                true => format!(
                    "{remote} did not prove to be the gateway that the grant names: check the \
                     address, and that the grant is of that node"
                ),
                false => format!(
                    "whoever listens at {remote} broke the connection off, or says nothing: check \
                     the address, firewalls between, and whether the gateway is full (the node's \
                     log says so)"
                ),
            };
            error.context(why)
        })?;
        let bytes = opening.to_bytes()?;
        let length = u32::try_from(bytes.len())?.to_le_bytes();
        let asked = channel.send(&length).and_then(|()| channel.send(&bytes));
        asked.with_context(|| {
            format!(
                "the connection to the gateway at {remote} broke before it was asked: try again"
            )
        })?;
        channel.set_patience(limit)?;
        let reception = hear(&channel).with_context(|| {
            format!(
                "the gateway at {remote} gave no answer: try again, and see whether its node runs \
                 and the network between does not lose everything"
            )
        })?;
        Ok((channel, Reception::from_bytes(&reception)?))
    }

    fn connect(&self) -> Result<TcpStream> {
        let remote = &self.remote;
        let addresses = remote
            .to_socket_addrs()
            .with_context(|| format!("`{remote}` is not HOST:PORT of a host that is known"))?;
        let mut last = anyhow::anyhow!("`{remote}` has no address");
        for address in addresses {
            match TcpStream::connect_timeout(&address, CONNECT_LIMIT) {
                Ok(socket) => return Ok(socket),
                Err(error) => {
                    last = anyhow::Error::new(error).context(format!(
                        "no weft gateway answers at {remote} ({address}): check the address, that \
                         the node runs with remote.listen, and firewalls between"
                    ));
                }
            }
        }
        Err(last)
    }
}

/// One message with its length before it.
fn hear(channel: &Channel) -> Result<Vec<u8>> {
    let (mut room, mut plain) = (Room::default(), Vec::new());
    let began = Instant::now();
    loop {
        match channel.receive(&mut room, &mut plain)? {
            Heard::Some if began.elapsed() < OPEN_LIMIT => {}
            Heard::Some | Heard::Nothing => bail!("nothing came in time"),
            Heard::End => bail!("it hung up"),
        }
        let Some((length, message)) = plain.split_first_chunk::<4>() else { continue };
        let length = usize::try_from(u32::from_le_bytes(*length))?;
        ensure!(length <= OPENING_BYTES_MAX, "its answer is too long");
        if message.len() >= length {
            let (message, frames) = message.split_at(length);
            channel.give_back(frames);
            return Ok(message.to_vec());
        }
    }
}
