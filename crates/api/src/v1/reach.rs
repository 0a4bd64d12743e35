//! How a control plane is reached: names, connections, and whether anything was said at all.

use std::io::{self, ErrorKind};
use std::time::Duration;

use rustls::InvalidMessage;
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{DefaultConnector, NextTimeout};
use ureq::{Agent, Timeout};

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

/// Why nobody answered within a time limit, in words.
pub(super) fn why(error: &ureq::Error, limit: Duration) -> String {
    if let ureq::Error::Other(error) = error {
        return error.to_string();
    }
    if let ureq::Error::Timeout(_) = error {
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
