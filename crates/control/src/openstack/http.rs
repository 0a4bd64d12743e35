//! JSON over HTTP(S).

use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::Value;
use ureq::Agent;
use ureq::http::Request;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};
use weft_api::files::{self, PEM_BYTES_MAX};

use super::settings::Settings;
use crate::provision::Failure;

/// A service takes a connection within this time.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The longest answer.
const ANSWER_BYTES_MAX: u64 = 64 << 20;

/// What is told of an answer that is no use.
const WORDS_MAX: usize = 300;

/// Why a call came to nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ApiError {
    /// Nobody answered, or not in time. It may have been done all the same.
    #[error("{url} does not answer: {why}")]
    Unreachable {
        /// What was asked.
        url: String,
        /// The system's words.
        why: String,
    },
    /// The service said no.
    #[error("{url} answers {status}: {words}")]
    Refused {
        /// What was asked.
        url: String,
        /// The HTTP status.
        status: u16,
        /// The service's words.
        words: String,
    },
    /// Settings or an answer make no sense.
    #[error("{0}")]
    Strange(String),
}

impl ApiError {
    /// Whether the service said that there is no such thing.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Refused { status: 404, .. })
    }

    /// Whether the service said that it is so already, or just being changed.
    #[must_use]
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Refused { status: 409, .. })
    }
}

impl From<ApiError> for Failure {
    /// What the service understood and refused will not be done next time either.
    fn from(error: ApiError) -> Self {
        let is_permanent = match &error {
            ApiError::Unreachable { .. } | ApiError::Strange(_) => false,
            ApiError::Refused { status, .. } => matches!(status, 400 | 403 | 404 | 413 | 422),
        };
        Self { is_permanent, is_away: false, words: error.to_string() }
    }
}

/// A request.
#[derive(Debug)]
pub(super) struct Asked<'a> {
    pub(super) method: &'static str,
    pub(super) url: String,
    /// Who asks.
    pub(super) token: Option<&'a str>,
    /// Of whose token something is asked.
    pub(super) subject: Option<&'a str>,
    pub(super) microversion: Option<&'static str>,
    pub(super) body: Option<&'a Value>,
}

/// An answer that is no refusal.
#[derive(Debug)]
pub(super) struct Said {
    /// Keystone's new token.
    pub(super) subject: Option<String>,
    url: String,
    body: Vec<u8>,
}

impl Said {
    /// The body.
    pub(super) fn json<T: DeserializeOwned>(&self) -> Result<T, ApiError> {
        let strange = |error| ApiError::Strange(format!("{} is not understood: {error}", self.url));
        serde_json::from_slice(&self.body).map_err(strange)
    }
}

/// Connections to services, kept between calls.
#[derive(Debug)]
pub(super) struct Http {
    agent: Agent,
}

impl Http {
    pub(super) fn new(settings: &Settings) -> Result<Self, ApiError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = TlsConfig::builder()
            .root_certs(RootCerts::new_with_certs(&certificates(settings)?))
            .unversioned_rustls_crypto_provider(provider)
            .build();
        let config = Agent::config_builder()
            .timeout_global(Some(settings.timeout))
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .http_status_as_error(false)
            .max_redirects(0)
            .proxy(None)
            .tls_config(tls);
        Ok(Self { agent: config.build().new_agent() })
    }

    pub(super) fn send(&self, asked: &Asked<'_>) -> Result<Said, ApiError> {
        let mut request = Request::builder()
            .method(asked.method)
            .uri(&asked.url)
            .header("accept", "application/json");
        let tokens = [("x-auth-token", asked.token), ("x-subject-token", asked.subject)];
        for (name, value) in
            tokens.into_iter().chain([("openstack-api-version", asked.microversion)])
        {
            if let Some(value) = value {
                request = request.header(name, value);
            }
        }
        let bad = |error| ApiError::Strange(format!("{} cannot be asked: {error}", asked.url));
        let response = if let Some(body) = asked.body {
            let bytes =
                serde_json::to_vec(body).map_err(|error| ApiError::Strange(error.to_string()))?;
            let request = request.header("content-type", "application/json").body(bytes);
            self.agent.run(request.map_err(bad)?)
        } else if matches!(asked.method, "PUT" | "POST") {
            // Nothing, of length 0. A PUT with no body at all is sent by `ureq` as one of unknown
            // length, in chunks, which not every service reads: what it leaves stands before the
            // next request of the connection.
            self.agent.run(request.body(Vec::new()).map_err(bad)?)
        } else {
            self.agent.run(request.body(()).map_err(bad)?)
        };
        let url = asked.url.clone();
        let unreachable = |error: ureq::Error| ApiError::Unreachable {
            url: asked.url.clone(),
            why: error.to_string(),
        };
        let mut response = response.map_err(unreachable)?;
        let status = response.status().as_u16();
        let subject = response.headers().get("x-subject-token");
        let subject = subject.and_then(|value| value.to_str().ok()).map(str::to_owned);
        let body = response.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_vec();
        let body = body.map_err(unreachable)?;
        if (200..300).contains(&status) {
            return Ok(Said { subject, url, body });
        }
        Err(ApiError::Refused { url, status, words: words(&body) })
    }
}

/// The message somewhere in a refusal: each service wraps it in another way.
fn words(body: &[u8]) -> String {
    fn find(value: &Value) -> Option<&str> {
        match value {
            Value::Object(fields) => ["message", "detail"]
                .iter()
                .find_map(|name| fields.get(*name)?.as_str())
                .or_else(|| fields.values().find_map(find)),
            Value::Array(items) => items.iter().find_map(find),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
        }
    }
    let parsed: Option<Value> = serde_json::from_slice(body).ok();
    let text = match parsed.as_ref().and_then(find) {
        Some(found) => found.to_owned(),
        None => String::from_utf8_lossy(body).into_owned(),
    };
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    text.chars().take(WORDS_MAX).collect()
}

fn certificates(settings: &Settings) -> Result<Vec<Certificate<'static>>, ApiError> {
    let Some(path) = settings.ca_path() else { return Ok(Vec::new()) };
    let bytes = files::read(&path, PEM_BYTES_MAX)
        .map_err(|error| ApiError::Strange(format!("cannot read {}: {error}", path.display())))?;
    let mut found = Vec::new();
    for item in parse_pem(&bytes) {
        match item {
            Ok(PemItem::Certificate(certificate)) => found.push(certificate),
            Ok(_) => {}
            Err(error) => {
                return Err(ApiError::Strange(format!("{}: {error}", path.display())));
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_services_refusals_are_put_into_its_words() {
        for (body, expected) in [
            (r#"{"forbidden": {"message": "Quota exceeded", "code": 403}}"#, "Quota exceeded"),
            (r#"{"NeutronError": {"type": "X", "message": "no  port", "detail": ""}}"#, "no port"),
            (r#"{"errors": [{"status": 409, "detail": "generation"}]}"#, "generation"),
            (r#"{"error": {"code": 401, "message": "no", "title": "Unauthorized"}}"#, "no"),
            ("<html>bad\ngateway</html>", "<html>bad gateway</html>"),
            ("", ""),
        ] {
            assert_eq!(words(body.as_bytes()), expected);
        }
        assert_eq!(words(&vec![b'x'; 9999]).len(), WORDS_MAX);
    }

    #[test]
    fn what_was_refused_for_good_is_not_tried_again() {
        let refused = |status| ApiError::Refused { url: "u".into(), status, words: "w".into() };
        for (status, is_permanent) in
            [(400, true), (401, false), (403, true), (404, true), (409, false), (503, false)]
        {
            assert_eq!(Failure::from(refused(status)).is_permanent, is_permanent, "{status}");
        }
    }
}
