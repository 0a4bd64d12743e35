//! The gateway, as an endpoint reaches it.

use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use weft_wire::handshake::{HelloBody, RefusalCode};
use weft_wire::remote::{OPENING_BYTES_MAX, Open, Opened, Opening, Reception, Resume};

use super::Refusal;
use crate::lock;
use crate::tls::{self, Channel, Heard, Room};

/// A connection must be there within this time.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// The node may take so long to start a worker; the gateway waits a little less, the program more.
const OPEN_LIMIT: Duration = Duration::from_secs(80);

/// A session that goes on is answered within this time.
const RESUME_LIMIT: Duration = Duration::from_secs(10);

/// Addresses of a host that are tried.
const ADDRESSES_MAX: usize = 16;

/// Where the gateway is, and what its key is.
#[derive(Debug)]
pub struct Gateway {
    /// Host and port.
    pub remote: String,
    /// Digest of its public key.
    pub digest: [u8; 32],
    /// Bulk bytes are to be compressed where it pays, if the gateway can.
    pub compresses: bool,
    /// Its host's addresses, the one where it was found last first. A session goes on there, or at
    /// another one of them, without asking a name service again.
    addresses: Mutex<Vec<SocketAddr>>,
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
    pub(super) fn new(remote: &str, digest: [u8; 32], compresses: bool) -> Self {
        let (remote, addresses) = (remote.to_owned(), Mutex::default());
        Self { remote, digest, compresses, addresses }
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
        let channel = self.reach(deadline)?;
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

    /// A connection to the gateway at the first of its host's addresses where it proves to be that.
    /// The first one, where it was last, has half of the time if it needs that; those that are left
    /// always have a part.
    fn reach(&self, deadline: Instant) -> Result<Channel> {
        let addresses = self.addresses()?;
        let mut last = match addresses.is_empty() {
            true => anyhow::anyhow!("`{}` has no address", self.remote),
            false => anyhow::anyhow!("the time to reach {} was over", self.remote),
        };
        for (tried, address) in addresses.iter().copied().enumerate() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let part = left / u32::try_from(addresses.len() - tried)?;
            let part = if tried == 0 { part.max(CONNECT_LIMIT.min(left / 2)) } else { part };
            match self.greet(address, part) {
                Ok(channel) => {
                    let others = addresses.iter().copied().filter(|other| *other != address);
                    *lock(&self.addresses) = std::iter::once(address).chain(others).collect();
                    return Ok(channel);
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn addresses(&self) -> Result<Vec<SocketAddr>> {
        let known = lock(&self.addresses).clone();
        if !known.is_empty() {
            return Ok(known);
        }
        let remote = &self.remote;
        let found = remote
            .to_socket_addrs()
            .with_context(|| format!("`{remote}` is not HOST:PORT of a host that is known"))?;
        Ok(found.take(ADDRESSES_MAX).collect())
    }

    fn greet(&self, address: SocketAddr, limit: Duration) -> Result<Channel> {
        let remote = &self.remote;
        let deadline = Instant::now() + limit;
        let socket = TcpStream::connect_timeout(&address, limit.min(CONNECT_LIMIT));
        let socket = socket.with_context(|| {
            format!(
                "no weft gateway answers at {remote} ({address}): check the address, that the node \
                 runs with remote.listen, and firewalls between"
            )
        })?;
        let config = tls::client_config(self.digest, self.compresses)?;
        let greeted = deadline.min(Instant::now() + CONNECT_LIMIT);
        Channel::connect(socket, config, greeted).map_err(|error| {
            let why = match tls::is_proof_missing(&error) {
                true => format!(
                    "{remote} ({address}) did not prove to be the gateway that the grant names: \
                     check the address, and that the grant is of that node"
                ),
                false => format!(
                    "whoever listens at {remote} ({address}) broke the connection off, or says \
                     nothing: check the address, firewalls between, and whether the gateway is \
                     full (the node's log says so)"
                ),
            };
            error.context(why)
        })
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
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;
    use std::thread;

    use ring::rand::SystemRandom;
    use ring::signature::Ed25519KeyPair;
    use rustls::ServerConnection;

    use super::*;
    use crate::tls::Identity;

    /// Whoever has the gateway's address says a byte of a record now and then, and never all of it.
    fn dribble(listener: &TcpListener) {
        for mut socket in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || {
                let record = [22, 3, 3, 0x40, 0];
                let mut bytes = record.into_iter().chain(std::iter::repeat(2));
                while bytes.next().is_some_and(|byte| socket.write_all(&[byte]).is_ok()) {
                    thread::sleep(Duration::from_millis(5));
                }
            });
        }
    }

    fn resume() -> Resume {
        Resume { session: [0; 16], secret: [0; 32], received: 0 }
    }

    #[test]
    fn who_dribbles_is_not_listened_to_beyond_the_grace_time() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let remote = listener.local_addr().unwrap().to_string();
        thread::spawn(move || dribble(&listener));
        let gateway = Gateway::new(&remote, [0; 32], false);
        let began = Instant::now();
        for limit in [0, 200] {
            let deadline = Instant::now() + Duration::from_millis(limit);
            gateway.resume(resume(), deadline).unwrap_err();
        }
        assert!(began.elapsed() < CONNECT_LIMIT, "{:?}", began.elapsed());
    }

    /// Says to each of so many endpoints that its session goes on, and listens no longer.
    fn serve(listener: &TcpListener, identity: &Identity, endpoints: usize) {
        for socket in listener.incoming().take(endpoints) {
            let mut socket = socket.unwrap();
            let mut tls = ServerConnection::new(identity.server_config().unwrap()).unwrap();
            while tls.is_handshaking() {
                tls.complete_io(&mut socket).unwrap();
            }
            let mut stream = rustls::Stream::new(&mut tls, &mut socket);
            let mut length = [0; 4];
            stream.read_exact(&mut length).unwrap();
            let length = usize::try_from(u32::from_le_bytes(length)).unwrap();
            stream.read_exact(&mut vec![0; length]).unwrap();
            let answer = Reception::Resumed(7).to_bytes().unwrap();
            let length = u32::try_from(answer.len()).unwrap().to_le_bytes();
            stream.write_all(&[&length[..], &answer].concat()).unwrap();
        }
    }

    #[test]
    fn every_address_of_the_gateways_host_is_tried() {
        let made = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        let identity = Identity::from_pkcs8(made.as_ref()).unwrap();
        let listeners = [(); 4].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let addresses = listeners.each_ref().map(|one| one.local_addr().unwrap());
        let [closed, other, first, second] = listeners;
        drop(closed);
        thread::spawn(move || other.incoming().for_each(drop));
        let gateway = Gateway::new("unused:0", identity.digest(), false);
        *lock(&gateway.addresses) = addresses.to_vec();
        let resumed = || {
            let resumed = gateway.resume(resume(), Instant::now() + 4 * CONNECT_LIMIT);
            assert!(matches!(resumed, Ok(Resumption::Resumed(_, 7))), "{resumed:?}");
            lock(&gateway.addresses).clone()
        };
        let [closed, no_gateway, one, other] = addresses;
        thread::scope(|scope| {
            let identity = &identity;
            let serving = scope.spawn(move || serve(&first, identity, 1));
            // The ones before it are one where nobody listens, and one who is no gateway.
            assert_eq!(resumed(), [one, closed, no_gateway, other]);
            serving.join().unwrap();
            // The gateway is at another one of its addresses now.
            scope.spawn(move || serve(&second, identity, 2));
            assert_eq!(resumed(), [other, one, closed, no_gateway]);
            assert_eq!(resumed(), [other, one, closed, no_gateway]);
        });
    }
}
