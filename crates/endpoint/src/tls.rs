//! TLS 1.3 between an endpoint and a gateway, and nothing older. The gateway is known by its public
//! key alone (RFC 7250): the grant names the key's digest, so no certificate authority, name or
//! clock is trusted.

use std::fs;
use std::io::{self, BufRead as _, ErrorKind, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use ring::signature::Ed25519KeyPair;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, recv, sendmsg};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls13_signature_with_raw_key,
};
use rustls::pki_types::{
    CertificateDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime,
};
use rustls::server::{AlwaysResolvesServerRawPublicKeys, NoServerSessionStorage};
use rustls::sign::CertifiedKey;
use rustls::{
    CertificateError, ClientConfig, ClientConnection, Connection, DigitallySignedStruct, Error,
    PeerIncompatible, ServerConfig, SignatureScheme,
};
use weft_api::files;

use crate::lock;

/// What both sides say that they speak: plainly, or with bulk bytes compressed where it pays. A
/// gateway of an earlier version knows the first alone, and an endpoint names the second where its
/// user asked for it.
const ALPN: &[u8] = b"weft/1";
const ALPN_PACKED: &[u8] = b"weft/1+lz4";

/// Whether that is one of them.
pub(crate) fn is_spoken(alpn: Option<&[u8]>) -> bool {
    [Some(ALPN), Some(ALPN_PACKED)].contains(&alpn)
}

/// Ciphertext that is read at once, in bytes: some records.
const READ_BYTES: usize = 128 << 10;

/// The longest file with this side's own key, which has some 80.
const KEY_BYTES_MAX: usize = 4 << 10;

/// Bytes from the system's source of randomness.
///
/// # Errors
/// When there is none.
pub fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    let filled = ring::rand::SecureRandom::fill(&ring::rand::SystemRandom::new(), &mut bytes);
    filled.map_err(|_| anyhow::anyhow!("the system gives no random bytes"))?;
    Ok(bytes)
}

/// SHA-256.
#[must_use]
pub fn digest(bytes: &[u8]) -> [u8; 32] {
    let mut digest = [0; 32];
    digest.copy_from_slice(ring::digest::digest(&ring::digest::SHA256, bytes).as_ref());
    digest
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// The gateway's key.
#[derive(Debug)]
pub struct Identity {
    key: Arc<CertifiedKey>,
    digest: [u8; 32],
}

impl Identity {
    /// The key in the file, which is made if it is not there.
    ///
    /// # Errors
    /// When the file cannot be read or written, or is no key.
    pub fn at(path: &Path) -> Result<Self> {
        let shown = path.display();
        match files::read(path, KEY_BYTES_MAX) {
            Ok(der) => Self::from_pkcs8(&der)
                .with_context(|| format!("{shown} is no key; move it away to have one made")),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let made = Ed25519KeyPair::generate_pkcs8(&ring::rand::SystemRandom::new());
                let made = made.map_err(|_| anyhow::anyhow!("no key could be made"))?;
                // Under its name it is whole, or a crash would leave what is no key for ever.
                let fresh = path.with_extension("new");
                let mut options = fs::File::options();
                let file = options.write(true).create(true).truncate(true).mode(0o600).open(&fresh);
                let written = file.and_then(|mut file| {
                    file.write_all(made.as_ref())?;
                    file.sync_all()?;
                    fs::rename(&fresh, path)
                });
                written.with_context(|| format!("cannot write the gateway's key to {shown}"))?;
                Self::from_pkcs8(made.as_ref())
            }
            Err(error) => Err(error).with_context(|| format!("cannot read {shown}")),
        }
    }

    /// The key with this private half.
    ///
    /// # Errors
    /// When it is none.
    pub fn from_pkcs8(der: &[u8]) -> Result<Self> {
        let private = PrivatePkcs8KeyDer::from(der.to_vec());
        let key = provider().key_provider.load_private_key(private.into())?;
        let public = key.public_key().context("the key has no public half")?.to_vec();
        let digest = digest(&public);
        let key = CertifiedKey::new(vec![CertificateDer::from(public)], key);
        Ok(Self { key: Arc::new(key), digest })
    }

    /// What grants name.
    #[must_use]
    pub fn digest(&self) -> [u8; 32] {
        self.digest
    }

    /// How the gateway greets.
    ///
    /// # Errors
    /// Never with the provider that is built in.
    pub fn server_config(&self) -> Result<Arc<ServerConfig>> {
        let builder = ServerConfig::builder_with_provider(provider());
        let builder = builder.with_protocol_versions(&[&rustls::version::TLS13])?;
        let resolver = AlwaysResolvesServerRawPublicKeys::new(Arc::clone(&self.key));
        let mut config = builder.with_no_client_auth().with_cert_resolver(Arc::new(resolver));
        config.alpn_protocols = vec![ALPN_PACKED.to_vec(), ALPN.to_vec()];
        // A session resumes by itself, with what was lost; TLS has nothing to remember.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Arc::new(config))
    }
}

/// Takes exactly the key with this digest for the gateway's.
#[derive(Debug)]
struct Pinned {
    digest: [u8; 32],
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if digest(end_entity) == self.digest {
            return Ok(ServerCertVerified::assertion());
        }
        Err(CertificateError::ApplicationVerificationFailure.into())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(PeerIncompatible::Tls12NotOffered.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let key = SubjectPublicKeyInfoDer::from(cert.as_ref());
        verify_tls13_signature_with_raw_key(message, &key, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

/// How an endpoint greets the gateway whose key has this digest, and whether it would compress.
///
/// # Errors
/// Never with the provider that is built in.
pub fn client_config(digest: [u8; 32], compresses: bool) -> Result<Arc<ClientConfig>> {
    let provider = provider();
    let algorithms = provider.signature_verification_algorithms;
    let builder = ClientConfig::builder_with_provider(provider);
    let builder = builder.with_protocol_versions(&[&rustls::version::TLS13])?;
    let verifier = Arc::new(Pinned { digest, algorithms });
    let builder = builder.dangerous().with_custom_certificate_verifier(verifier);
    let mut config = builder.with_no_client_auth();
    let packed = compresses.then_some(ALPN_PACKED);
    config.alpn_protocols = packed.into_iter().chain([ALPN]).map(<[u8]>::to_vec).collect();
    config.enable_sni = false;
    config.resumption = rustls::client::Resumption::disabled();
    Ok(Arc::new(config))
}

/// Says or hears some bytes of a handshake.
fn go_on(tls: &mut ClientConnection, socket: &mut TcpStream) -> io::Result<()> {
    if tls.wants_write() {
        return again_if_interrupted(tls.write_tls(socket)).map(drop);
    }
    match again_if_interrupted(tls.read_tls(socket))? {
        Some(0) => Err(ErrorKind::UnexpectedEof.into()),
        Some(_) => {
            let processed = tls.process_new_packets();
            processed.map(drop).map_err(|error| {
                // The other side is told why, if it listens.
                let _ = tls.write_tls(socket);
                io::Error::new(ErrorKind::InvalidData, error)
            })
        }
        None => Ok(()),
    }
}

/// `None` for what a signal, or a time limit that is looked at elsewhere, has ended.
fn again_if_interrupted(done: io::Result<usize>) -> io::Result<Option<usize>> {
    match done {
        Ok(count) => Ok(Some(count)),
        Err(error) if error.kind() == ErrorKind::Interrupted || is_timeout(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether [`Channel::connect`] failed because the other side is not who it should be, or speaks
/// something else; a connection that breaks off or stays silent says nothing of that.
#[must_use]
pub fn is_proof_missing(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<io::Error>()
        .is_none_or(|error| error.get_ref().is_some_and(|inner| inner.is::<Error>()))
}

/// What came of reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heard {
    /// Some bytes, or none yet that make sense.
    Some,
    /// Nothing within the socket's time limit.
    Nothing,
    /// The peer has closed the connection.
    End,
}

/// Whether a sender may be kept waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waits {
    /// As long as it takes.
    Yes,
    /// Not at all: it is the one that reads.
    No,
}

/// A connection whose handshake is done. Two threads use it: one reads, whoever has something
/// sends.
pub struct Channel {
    /// Both ends agreed to compress.
    packs: bool,
    tls: Mutex<Connection>,
    socket: TcpStream,
    /// Held by whoever sends, or one's records would come between another's.
    sending: Mutex<()>,
    /// Read, and given back.
    early: Mutex<Vec<u8>>,
    /// A peer that takes nothing for so long is lost.
    stall_max: OnceLock<Duration>,
    /// Since when one that does not wait could send nothing.
    blocked: Mutex<Option<Instant>>,
}

impl Channel {
    /// Greets the gateway.
    ///
    /// # Errors
    /// The system's or TLS's; in words for people.
    pub fn connect(
        socket: TcpStream,
        config: Arc<ClientConfig>,
        deadline: Instant,
    ) -> Result<Self> {
        let name = ServerName::try_from("weft").context("a name")?;
        let mut tls = ClientConnection::new(config, name)?;
        let mut socket = socket;
        while tls.is_handshaking() || tls.wants_write() {
            // Who says a byte now and then does not hold it up for longer.
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::Error::from(ErrorKind::TimedOut).into());
            }
            socket.set_read_timeout(Some(left))?;
            socket.set_write_timeout(Some(left))?;
            go_on(&mut tls, &mut socket)?;
        }
        ensure!(is_spoken(tls.alpn_protocol()), "the other side does not speak {ALPN:?}");
        Self::new(socket, tls.into())
    }

    /// Takes over a connection whose handshake is done.
    ///
    /// # Errors
    /// The system's.
    pub fn new(socket: TcpStream, mut tls: Connection) -> Result<Self> {
        socket.set_nodelay(true)?;
        socket.set_nonblocking(false)?;
        tls.set_buffer_limit(None);
        let packs = tls.alpn_protocol() == Some(ALPN_PACKED);
        Ok(Self {
            packs,
            tls: Mutex::new(tls),
            socket,
            sending: Mutex::default(),
            early: Mutex::default(),
            stall_max: OnceLock::new(),
            blocked: Mutex::default(),
        })
    }

    /// Whether both ends agreed to compress.
    pub(crate) fn packs(&self) -> bool {
        self.packs
    }

    /// Has sending fail when the peer takes nothing for so long: one that always reads.
    pub(crate) fn expect_reader(&self, stall_max: Duration) {
        // Said twice it is the same.
        let _ = self.stall_max.set(stall_max);
    }

    /// For how long the peer may take nothing, if it always reads.
    pub(crate) fn stall_max(&self) -> Option<Duration> {
        self.stall_max.get().copied()
    }

    /// How long [`Self::receive`] waits.
    ///
    /// # Errors
    /// The system's.
    pub fn set_patience(&self, limit: Duration) -> io::Result<()> {
        self.socket.set_read_timeout(Some(limit))
    }

    /// Sends these bytes, however long the peer lets it wait.
    ///
    /// # Errors
    /// The system's or TLS's; the connection is then of no more use.
    pub fn send(&self, bytes: &[u8]) -> io::Result<()> {
        self.send_parts(&[IoSlice::new(bytes)], Waits::Yes).map(|_| ())
    }

    /// Sends several parts, one behind the other, after what is left of earlier ones. What the
    /// socket has no room for is left, if nobody `waits`; whether nothing is.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub(crate) fn send_parts(&self, parts: &[IoSlice<'_>], waits: Waits) -> io::Result<bool> {
        let _sending = lock(&self.sending);
        let mut tls = lock(&self.tls);
        if !parts.is_empty() {
            // There is no limit to what it keeps.
            let _all = tls.writer().write_vectored(parts)?;
        }
        while tls.wants_write() {
            match tls.write_tls(&mut WithoutWaiting(&self.socket)) {
                Ok(_) => *lock(&self.blocked) = None,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if waits == Waits::No {
                        return self.check_stall().map(|()| false);
                    }
                    // Meanwhile others may read, or two that both send much wait for each other.
                    drop(tls);
                    if !self.await_socket(PollFlags::OUT, self.stall_max())? {
                        return Err(ErrorKind::TimedOut.into());
                    }
                    tls = lock(&self.tls);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Who does not wait looks again and again: the peer has as long as where somebody waits.
    fn check_stall(&self) -> io::Result<()> {
        let since = *lock(&self.blocked).get_or_insert_with(Instant::now);
        match self.stall_max() {
            Some(most) if since.elapsed() >= most => Err(ErrorKind::TimedOut.into()),
            _ => Ok(()),
        }
    }

    /// Waits until there is something to read or room to send, or `limit` has passed.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn await_either(&self, limit: Duration) -> io::Result<()> {
        self.await_socket(PollFlags::IN | PollFlags::OUT, Some(limit)).map(drop)
    }

    /// Whether it came to one of them.
    fn await_socket(&self, events: PollFlags, limit: Option<Duration>) -> io::Result<bool> {
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        let mut polled = [PollFd::new(&self.socket, events)];
        Ok(rustix::io::retry_on_intr(|| poll(&mut polled, limit.as_ref()))? > 0)
    }

    /// Has [`Self::receive`] give these bytes once more, before others.
    pub fn give_back(&self, bytes: &[u8]) {
        lock(&self.early).extend_from_slice(bytes);
    }

    /// Appends what has come to `plain`; `room` is scratch space.
    ///
    /// # Errors
    /// The system's or TLS's; the connection is then of no more use.
    pub fn receive(&self, room: &mut Room, plain: &mut Vec<u8>) -> io::Result<Heard> {
        if self.take_early(plain) {
            return Ok(Heard::Some);
        }
        let read = self.read(room);
        self.decipher(read, room, |bytes| plain.extend_from_slice(bytes))
    }

    /// What has come into `room`, within [`Self::set_patience`]'s limit; for [`Self::decipher`].
    pub(crate) fn read(&self, room: &mut Room) -> io::Result<usize> {
        (&self.socket).read(&mut room.0)
    }

    /// Appends what was given back to `plain`; whether there was any.
    pub(crate) fn take_early(&self, plain: &mut Vec<u8>) -> bool {
        let early = std::mem::take(&mut *lock(&self.early));
        plain.extend_from_slice(&early);
        !early.is_empty()
    }

    /// What has come into `room`, if anything has; for [`Self::decipher`].
    pub(crate) fn try_read(&self, room: &mut Room) -> Option<io::Result<usize>> {
        match recv(&self.socket, &mut room.0[..], RecvFlags::DONTWAIT) {
            Ok((count, _)) => Some(Ok(count)),
            Err(Errno::AGAIN | Errno::INTR) => None,
            Err(error) => Some(Err(error.into())),
        }
    }

    /// Gives `on` what was read into `room`, record for record. Nobody sends meanwhile, so `on` may
    /// not wait for anybody.
    ///
    /// # Errors
    /// As [`Self::receive`].
    pub(crate) fn decipher(
        &self,
        read: io::Result<usize>,
        room: &Room,
        mut on: impl FnMut(&[u8]),
    ) -> io::Result<Heard> {
        let count = match read {
            Ok(0) => return Ok(Heard::End),
            Ok(count) => count,
            Err(error) if is_timeout(&error) => return Ok(Heard::Nothing),
            Err(error) if error.kind() == ErrorKind::Interrupted => return Ok(Heard::Some),
            Err(error) => return Err(error),
        };
        let mut cipher = room.0.get(..count).unwrap_or_default();
        let mut tls = lock(&self.tls);
        while !cipher.is_empty() {
            tls.read_tls(&mut cipher)?;
            let state = tls.process_new_packets().map_err(io::Error::other)?;
            let mut waiting = state.plaintext_bytes_to_read();
            let mut reader = tls.reader();
            while waiting > 0 {
                let bytes = reader.fill_buf()?;
                let count = bytes.len();
                on(bytes);
                reader.consume(count);
                waiting = waiting.saturating_sub(count.max(1));
            }
            if state.peer_has_closed() {
                return Ok(Heard::End);
            }
        }
        Ok(Heard::Some)
    }

    /// Ends the connection, also for threads that wait in it.
    pub fn close(&self) {
        // One that is closed already needs nothing.
        let _ = self.socket.shutdown(Shutdown::Both);
    }

    /// Whether the peer, or the network, has ended the connection; bytes may be unread.
    #[must_use]
    pub fn has_hung_up(&self) -> bool {
        weft_ring::peer::has_hung_up(&self.socket)
    }
}

impl std::fmt::Debug for Channel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Channel").field("socket", &self.socket).finish_non_exhaustive()
    }
}

/// A socket of which a write takes what it has room for.
struct WithoutWaiting<'a>(&'a TcpStream);

impl Write for WithoutWaiting<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, bytes: &[IoSlice<'_>]) -> io::Result<usize> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        Ok(sendmsg(self.0, bytes, &mut SendAncillaryBuffer::default(), flags)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Where ciphertext is read to.
#[derive(Debug)]
pub struct Room(Vec<u8>);

impl Default for Room {
    fn default() -> Self {
        Self(vec![0; READ_BYTES])
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}
