//! How a control plane is reached: names, connections, and whether anything was said at all.

use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::InvalidMessage;
use ureq::config::Config;
use ureq::http::Uri;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{DefaultConnector, NextTimeout};
use ureq::{Agent, Timeout};

use super::client::ClientError;
use crate::files::{self, PEM_BYTES_MAX};

/// Whoever is asked is there for it within this time, and found before within as much.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The authorities that the system trusts, where distributions keep them.
const SYSTEM_AUTHORITIES: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];

/// How long a request may take, and what comes before anything is said. That is over earlier than
/// the whole: else nobody could tell afterwards whether anything was said.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) whole: Duration,
    pub(super) resolve: Duration,
    /// With the greeting of TLS.
    pub(super) connect: Duration,
}

impl Limits {
    pub(super) fn of(whole: Duration) -> Self {
        let (resolve, connect) = (whole * 3 / 8, whole / 2);
        let [resolve, connect] = [resolve, connect].map(|part| part.min(CONNECT_TIMEOUT));
        Self { whole, resolve, connect }
    }
}

/// The system's resolver. Its failures are an [`io::Error`] that says nothing of where it is from,
/// and so would be taken for one of a request that was sent: here they are told apart.
#[derive(Debug, Default)]
struct Names(DefaultResolver);

impl Resolver for Names {
    fn resolve(
        &self,
        uri: &Uri,
        config: &Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, ureq::Error> {
        match self.0.resolve(uri, config, timeout) {
            Err(ureq::Error::Io(error)) => Err(ureq::Error::Other(Box::new(error))),
            resolved => resolved,
        }
    }
}

/// Connections with these settings.
pub(super) fn agent(config: Config) -> Agent {
    Agent::with_parts(config, DefaultConnector::default(), Names::default())
}

/// TLS with whoever is vouched for by one of these authorities.
pub(super) fn tls(trusted: &[Certificate<'static>]) -> TlsConfig {
    TlsConfig::builder()
        .root_certs(RootCerts::new_with_certs(trusted))
        .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .build()
}

/// The certificates of authorities, in a file of one's own or the system's.
pub(super) fn trusted(file: Option<&Path>) -> Result<Vec<Certificate<'static>>, ClientError> {
    let of_system = || SYSTEM_AUTHORITIES.iter().map(Path::new).find(|path| path.exists());
    let path = file.or_else(of_system).ok_or_else(|| {
        let words = "the system has no list of authorities: name a file with certificates";
        ClientError::Authorities(words.to_owned())
    })?;
    let failed = |why: String| ClientError::Authorities(format!("{}: {why}", path.display()));
    let bytes = files::read(path, PEM_BYTES_MAX).map_err(|error| failed(error.to_string()))?;
    let mut found = Vec::new();
    for item in parse_pem(&bytes) {
        match item {
            Ok(PemItem::Certificate(certificate)) => found.push(certificate),
            Ok(_) => {}
            Err(error) => return Err(failed(error.to_string())),
        }
    }
    if found.is_empty() {
        return Err(failed("there is no certificate in it".to_owned()));
    }
    Ok(found)
}

/// What TLS found wrong with whoever answered, if it did.
fn greeting(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref().and_then(|inner| inner.downcast_ref())
}

/// Whether a request may have come to somebody whose answer did not come.
pub(super) fn was_sent(error: &ureq::Error) -> bool {
    if let ureq::Error::Io(error) = error {
        let is_refused = matches!(
            error.kind(),
            ErrorKind::ConnectionRefused
                | ErrorKind::HostUnreachable
                | ErrorKind::NetworkUnreachable
                | ErrorKind::AddrNotAvailable
        );
        // These end a greeting, before anything is said.
        let is_unsafe = greeting(error).is_some_and(|error| {
            matches!(
                error,
                rustls::Error::InvalidCertificate(_)
                    | rustls::Error::PeerIncompatible(_)
                    | rustls::Error::InvalidMessage(_)
            )
        });
        return !is_refused && !is_unsafe;
    }
    !matches!(
        error,
        ureq::Error::Timeout(Timeout::Resolve | Timeout::Connect)
            | ureq::Error::HostNotFound
            // A name that is not found, as above.
            | ureq::Error::Other(_)
            | ureq::Error::ConnectionFailed
            | ureq::Error::Tls(_)
            | ureq::Error::Rustls(_)
    )
}

/// Why nobody answered within time limits, in words.
pub(super) fn why(error: &ureq::Error, limits: Limits) -> String {
    if let ureq::Error::Other(error) = error {
        return error.to_string();
    }
    if let ureq::Error::Timeout(what) = error {
        let limit = if *what == Timeout::Resolve {
            limits.resolve
        } else if *what == Timeout::Connect {
            limits.connect
        } else {
            limits.whole
        };
        return format!("nothing came within {:.0} s", limit.as_secs_f64().ceil());
    }
    let ureq::Error::Io(io) = error else { return error.to_string() };
    match greeting(io) {
        Some(rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType)) => {
            format!("{io}: it does not speak TLS there; does http:// do, or another port?")
        }
        Some(_) | None => error.to_string(),
    }
}
