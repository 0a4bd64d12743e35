//! TLS 1.3 before HTTP: a connection of the bounded listener greets first, in its own task, and as
//! long as it has not, it has said nothing.

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::serve::Listener;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::server::TlsStream;
use tokio_rustls::{Accept, TlsAcceptor};
use weft_api::files::{self, PEM_BYTES_MAX};

use crate::bounded::{Bounded, Connection};

/// Why there is no TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The file cannot be read, or has not what it should have.
    #[error("{path}: {why}")]
    File {
        /// Which.
        path: String,
        /// What is wrong.
        why: String,
    },
    /// Certificate and key do not go together, say.
    #[error("the certificate and the key cannot be used: {0}")]
    Refused(#[from] rustls::Error),
}

/// How often to look whether the files were renewed.
pub const LOOK_EVERY: Duration = Duration::from_secs(5);

/// What is shown to whoever connects: a certificate, those of who vouches for it behind it, and the
/// key, all as PEM. The files may be renewed: connections that greet later are shown what is there
/// then.
#[derive(Debug)]
pub struct Certificates {
    chain: PathBuf,
    key: PathBuf,
    shown: RwLock<Arc<CertifiedKey>>,
    /// As they were before they were read last.
    seen: Mutex<[Stamp; 2]>,
}

/// What another content of a file changes.
type Stamp = Option<(u64, u64, i64, i64)>;

fn stamp(path: &Path) -> Stamp {
    let found = std::fs::metadata(path).ok()?;
    Some((found.ino(), found.len(), found.mtime(), found.mtime_nsec()))
}

impl Certificates {
    /// Those in these files.
    ///
    /// # Errors
    /// What is wrong with the files.
    pub fn load(chain: &Path, key: &Path) -> Result<Arc<Self>, TlsError> {
        let seen = Mutex::new([stamp(chain), stamp(key)]);
        let shown = RwLock::new(Arc::new(read(chain, key)?));
        Ok(Arc::new(Self { chain: chain.to_owned(), key: key.to_owned(), shown, seen }))
    }

    /// Reads the files again. What was shown before is shown on if they cannot be used.
    ///
    /// # Errors
    /// What is wrong with the files.
    pub fn reload(&self) -> Result<(), TlsError> {
        // What is written while they are read is seen the next time.
        let seen = [stamp(&self.chain), stamp(&self.key)];
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = seen;
        let found = Arc::new(read(&self.chain, &self.key)?);
        *self.shown.write().unwrap_or_else(PoisonError::into_inner) = found;
        Ok(())
    }

    /// Whether the files are others than those that were read last.
    #[must_use]
    pub fn were_renewed(&self) -> bool {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        *seen != [stamp(&self.chain), stamp(&self.key)]
    }

    /// What a server speaks with them.
    ///
    /// # Errors
    /// The library's.
    pub fn settings(self: &Arc<Self>) -> Result<Arc<ServerConfig>, TlsError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider);
        let builder = builder.with_protocol_versions(&[&rustls::version::TLS13])?;
        let mut config = builder.with_no_client_auth().with_cert_resolver(Arc::clone(self) as _);
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.shown.read().unwrap_or_else(PoisonError::into_inner)))
    }
}

fn read(chain: &Path, key: &Path) -> Result<CertifiedKey, TlsError> {
    let failed =
        |path: &Path, why: String| TlsError::File { path: path.display().to_string(), why };
    let pem = |path: &Path| {
        files::read(path, PEM_BYTES_MAX).map_err(|error| failed(path, error.to_string()))
    };
    let text = pem(chain)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let found = found.map_err(|error| failed(chain, error.to_string()))?;
    if found.is_empty() {
        return Err(failed(chain, "there is no certificate in it".to_owned()));
    }
    let private = PrivateKeyDer::from_pem_slice(&pem(key)?);
    let private = private.map_err(|error| failed(key, error.to_string()))?;
    Ok(CertifiedKey::from_der(found, private, &rustls::crypto::ring::default_provider())?)
}

/// A bounded listener whose connections speak TLS.
pub struct Secured {
    listener: Bounded,
    acceptor: TlsAcceptor,
}

impl std::fmt::Debug for Secured {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Secured").field("listener", &self.listener).finish_non_exhaustive()
    }
}

impl Secured {
    /// With these settings.
    #[must_use]
    pub fn new(listener: Bounded, settings: Arc<ServerConfig>) -> Self {
        Self { listener, acceptor: settings.into() }
    }
}

impl Listener for Secured {
    type Io = Greeted;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Greeted, SocketAddr) {
        let (mut connection, address) = self.listener.accept().await;
        connection.set_greeting(true);
        (Greeted::Greeting(Box::new(self.acceptor.accept(connection))), address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection that greets, or has done so.
pub enum Greeted {
    /// It has not said anything yet.
    Greeting(Box<Accept<Connection>>),
    /// It may ask.
    Open(Box<TlsStream<Connection>>),
    /// It speaks something else.
    Closed,
}

impl std::fmt::Debug for Greeted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Greeting(_) => "Greeting",
            Self::Open(_) => "Open",
            Self::Closed => "Closed",
        })
    }
}

impl Greeted {
    /// The connection when it has greeted.
    fn open(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<Pin<&mut TlsStream<Connection>>>> {
        if let Self::Greeting(accept) = self {
            match ready!(Pin::new(accept.as_mut()).poll(context)) {
                Ok(mut stream) => {
                    stream.get_mut().0.set_greeting(false);
                    *self = Self::Open(Box::new(stream));
                }
                Err(error) => {
                    *self = Self::Closed;
                    return Poll::Ready(Err(error));
                }
            }
        }
        match self {
            Self::Open(stream) => Poll::Ready(Ok(Pin::new(stream.as_mut()))),
            Self::Greeting(_) | Self::Closed => {
                Poll::Ready(Err(io::ErrorKind::NotConnected.into()))
            }
        }
    }
}

impl AsyncRead for Greeted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.open(context))?.poll_read(context, buffer)
    }
}

impl AsyncWrite for Greeted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.open(context))?.poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.as_mut().get_mut() {
            Self::Open(stream) => Pin::new(stream.as_mut()).poll_flush(context),
            // Nothing was written.
            Self::Greeting(_) | Self::Closed => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.as_mut().get_mut() {
            Self::Open(stream) => Pin::new(stream.as_mut()).poll_shutdown(context),
            Self::Greeting(accept) => match accept.get_mut() {
                Some(connection) => Pin::new(connection).poll_shutdown(context),
                None => Poll::Ready(Ok(())),
            },
            Self::Closed => Poll::Ready(Ok(())),
        }
    }
}
