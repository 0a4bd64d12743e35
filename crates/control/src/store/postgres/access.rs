//! How the database is reached.

use std::error::Error as _;
use std::future::Future;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use postgres::config::{Host, SslMode};
use postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use postgres::{Client, Config, NoTls, Socket};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, InvalidDnsNameError, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::TlsConnector;
use weft_api::files::{self, PEM_BYTES_MAX};

use crate::store::StoreError;

/// A database that does not take a connection, or what is sent to it, within this time is away.
const PATIENCE: Duration = Duration::from_secs(10);

/// An address, and whose word is taken for who answers there.
#[derive(Clone)]
pub struct Access {
    config: Config,
    tls: Option<Tls>,
}

impl std::fmt::Debug for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The address may have a password in it.
        let is_over_tls = self.tls.is_some();
        f.debug_struct("Access").field("is_over_tls", &is_over_tls).finish_non_exhaustive()
    }
}

impl Access {
    /// To the database at an address such as `postgres://USER@HOST/DATABASE`; over TLS and no other
    /// way if there is a file with the certificates of authorities (PEM).
    ///
    /// # Errors
    /// If the address is none, it asks for TLS without a file, or there is nothing in the file.
    pub fn new(url: &str, authorities: Option<&Path>) -> Result<Self, StoreError> {
        let wrong = |error: postgres::Error| {
            let why = error.source().map_or_else(|| error.to_string(), ToString::to_string);
            StoreError::Broken(format!("this is no address of a PostgreSQL database: {why}"))
        };
        let mut config: Config = url.parse().map_err(wrong)?;
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(PATIENCE);
        }
        if config.get_tcp_user_timeout().is_none() {
            config.tcp_user_timeout(PATIENCE);
        }
        if config.get_application_name().is_none() {
            config.application_name("weft-control");
        }
        let Some(authorities) = authorities else {
            if config.get_ssl_mode() == SslMode::Require {
                let words = "its address asks for TLS: name the certificates of who may vouch for \
                             the database with --database-ca";
                return Err(StoreError::Broken(words.to_owned()));
            }
            return Ok(Self { config, tls: None });
        };
        config.ssl_mode(SslMode::Require);
        Ok(Self { config, tls: Some(Tls::new(authorities)?) })
    }

    /// The hosts that it leads to.
    #[must_use]
    pub fn place(&self) -> String {
        let hosts = self.config.get_hosts().iter().map(|host| match host {
            Host::Tcp(name) => name.clone(),
            Host::Unix(folder) => folder.display().to_string(),
        });
        let addresses = self.config.get_hostaddrs().iter().map(ToString::to_string);
        hosts.chain(addresses).collect::<Vec<_>>().join(", ")
    }

    pub(super) fn connect(&self) -> Result<Client, postgres::Error> {
        match &self.tls {
            Some(tls) => self.config.connect(tls.clone()),
            None => self.config.connect(NoTls),
        }
    }
}

/// TLS as `rustls` speaks it.
#[derive(Clone)]
struct Tls(TlsConnector);

impl Tls {
    fn new(authorities: &Path) -> Result<Self, StoreError> {
        let failed = |why: String| StoreError::Broken(format!("{}: {why}", authorities.display()));
        let text = files::read(authorities, PEM_BYTES_MAX);
        let text = text.map_err(|error| failed(error.to_string()))?;
        let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
        let mut trusted = RootCertStore::empty();
        trusted.add_parsable_certificates(found.map_err(|error| failed(error.to_string()))?);
        if trusted.is_empty() {
            return Err(failed("there is no certificate in it".to_owned()));
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|error| failed(error.to_string()))?
            .with_root_certificates(trusted)
            .with_no_client_auth();
        Ok(Self(Arc::new(config).into()))
    }
}

impl MakeTlsConnect<Socket> for Tls {
    type Stream = Secured;
    type TlsConnect = Greeting;
    type Error = InvalidDnsNameError;

    fn make_tls_connect(&mut self, name: &str) -> Result<Greeting, InvalidDnsNameError> {
        // A socket of this host has no name, which is refused later.
        let name = if name.is_empty() { "localhost" } else { name };
        let name = ServerName::try_from(name.to_owned())?;
        Ok(Greeting { connector: self.0.clone(), name })
    }
}

/// One connection that is to be made.
struct Greeting {
    connector: TlsConnector,
    name: ServerName<'static>,
}

impl TlsConnect<Socket> for Greeting {
    type Stream = Secured;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Secured>> + Send>>;

    fn connect(self, socket: Socket) -> Self::Future {
        Box::pin(async move { self.connector.connect(self.name, socket).await.map(Secured) })
    }
}

/// A connection over TLS.
struct Secured(tokio_rustls::client::TlsStream<Socket>);

impl TlsStream for Secured {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl AsyncRead for Secured {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for Secured {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
