//! The gateway, as an endpoint reaches it.

use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::OnceLock;
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
    /// Where it was found: a session goes on there, without asking a name service again.
    found: OnceLock<SocketAddr>,
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
    /// A gateway that was not looked for yet.
    pub(super) fn new(remote: &str, digest: [u8; 32]) -> Self {
        Self { remote: remote.to_owned(), digest, found: OnceLock::new() }
    }

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
            self.say(&Opening::Open(open), Instant::now() + OPEN_LIMIT).map_err(unreachable)?;
        match reception {
            Reception::Opened(opened) => Ok((channel, *opened)),
            Reception::Refused { code, message } => Err(Refusal { code, message }),
            Reception::Resumed(_) => {
                let why = "the gateway resumes what was not begun";
                Err(Refusal::of(RefusalCode::Malformed, why))
            }
        }
    }

    /// Goes on with a session; whatever the other side does, it is known by `deadline`.
    ///
    /// # Errors
    /// When the gateway cannot be reached now.
    pub(super) fn resume(&self, resume: Resume, deadline: Instant) -> Result<Resumption> {
        let deadline = deadline.min(Instant::now() + RESUME_LIMIT);
        let (channel, reception) = self.say(&Opening::Resume(resume), deadline)?;
        match reception {
            Reception::Resumed(handled) => Ok(Resumption::Resumed(Box::new(channel), handled)),
            Reception::Refused { message, .. } => Ok(Resumption::Refused(message)),
            Reception::Opened(_) => bail!("the gateway began what was to go on"),
        }
    }

    fn say(&self, opening: &Opening, deadline: Instant) -> Result<(Channel, Reception)> {
        let remote = &self.remote;
        let socket = self.connect(deadline)?;
        let config = tls::client_config(self.digest)?;
        let greeted = deadline.min(Instant::now() + CONNECT_LIMIT);
        let channel = Channel::connect(socket, config, greeted).map_err(|error| {
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
        let reception = hear(&channel, deadline).with_context(|| {
            format!(
                "the gateway at {remote} gave no answer: try again, and see whether its node runs \
                 and the network between does not lose everything"
            )
        })?;
        Ok((channel, Reception::from_bytes(&reception)?))
    }

    fn connect(&self, deadline: Instant) -> Result<TcpStream> {
        let remote = &self.remote;
        let addresses: Vec<SocketAddr> = match self.found.get() {
            Some(found) => vec![*found],
            None => remote
                .to_socket_addrs()
                .with_context(|| format!("`{remote}` is not HOST:PORT of a host that is known"))?
                .collect(),
        };
        let mut last = anyhow::anyhow!("`{remote}` has no address");
        for address in addresses {
            let left = deadline.saturating_duration_since(Instant::now()).min(CONNECT_LIMIT);
            if left.is_zero() {
                break;
            }
            match TcpStream::connect_timeout(&address, left) {
                Ok(socket) => {
                    // The first one that was found stays.
                    let _ = self.found.set(address);
                    return Ok(socket);
                }
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
fn hear(channel: &Channel, deadline: Instant) -> Result<Vec<u8>> {
    let (mut room, mut plain) = (Room::default(), Vec::new());
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        ensure!(!left.is_zero(), "nothing came in time");
        channel.set_patience(left)?;
        match channel.receive(&mut room, &mut plain)? {
            Heard::Some | Heard::Nothing => {}
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

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    /// Whoever has the gateway's address says a byte of a record now and then, and never all of it.
    #[test]
    fn who_dribbles_is_not_listened_to_beyond_the_grace_time() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let remote = listener.local_addr().unwrap().to_string();
        thread::spawn(move || {
            for mut socket in listener.incoming().map_while(Result::ok) {
                thread::spawn(move || {
                    let record = [22, 3, 3, 0x40, 0];
                    let mut bytes = record.into_iter().chain(std::iter::repeat(2));
                    while bytes.next().is_some_and(|byte| socket.write_all(&[byte]).is_ok()) {
                        thread::sleep(Duration::from_millis(5));
                    }
                });
            }
        });
        let gateway = Gateway::new(&remote, [0; 32]);
        let began = Instant::now();
        for limit in [0, 200] {
            let resume = Resume { session: [0; 16], secret: [0; 32], received: 0 };
            let resumed = gateway.resume(resume, Instant::now() + Duration::from_millis(limit));
            resumed.unwrap_err();
        }
        assert!(began.elapsed() < CONNECT_LIMIT, "{:?}", began.elapsed());
    }
}
