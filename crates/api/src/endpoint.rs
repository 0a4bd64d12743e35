//! What is said to the endpoint of a compute host: rows of JSON over a Unix socket, an answer for
//! each request.
//!
//! A request names its version. An endpoint answers [`VERSION_MIN`] to [`VERSION`], so that it and
//! its control plane may be one version apart.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use weft_ring::peer;

/// The version that is spoken here. Raise it when a request changes, and keep the one before.
pub const VERSION: u32 = 1;

/// The oldest version that is understood.
pub const VERSION_MIN: u32 = 1;

/// The longest request or answer, in bytes.
pub const LINE_BYTES_MAX: u64 = 16 << 20;

/// An endpoint answers within this time: 10,000 rows are in force in a tenth of a second.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// A VM's port may reach a masked address, which leads to a node's gateway.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct GrantRow {
    /// The instance.
    pub instance: String,
    /// Its compute host.
    pub host: String,
    /// The interface of its port on the host.
    pub tap: String,
    /// The VM's hardware address.
    pub mac: String,
    /// The VM's address.
    pub ip: String,
    /// Where the VM connects to, `address:port`.
    pub masked: String,
    /// Where that leads, `host:port`.
    pub node: String,
    /// Of two instances with the same port the one with the larger number has it.
    pub generation: u64,
}

/// What is asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum Request {
    /// Rows of an instance, in the place of those that it had.
    Put {
        /// The instance.
        instance: String,
        /// All of its rows.
        rows: Vec<GrantRow>,
    },
    /// Whether exactly these rows of an instance are in force.
    Holds {
        /// The instance.
        instance: String,
        /// All of its rows.
        rows: Vec<GrantRow>,
    },
    /// No rows of an instance, and no connection that they let through.
    Withdraw {
        /// The instance.
        instance: String,
    },
    /// Instances with rows.
    Instances,
    /// Prometheus text.
    Metrics,
}

/// A request with the version of whoever asks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    /// The version.
    pub version: u32,
    /// What is asked.
    #[serde(flatten)]
    pub request: Request,
}

/// What is answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum Answer {
    /// It was done.
    Done,
    /// Whether the rows are in force.
    Holds {
        /// They are.
        holds: bool,
    },
    /// Instances with rows.
    Instances {
        /// Their ids.
        instances: Vec<String>,
    },
    /// Prometheus text.
    Metrics {
        /// The text.
        text: String,
    },
    /// It was not done.
    Refused {
        /// Trying again does not help.
        is_permanent: bool,
        /// Why.
        words: String,
    },
}

/// Why an endpoint did not do as asked.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// Nobody listens there.
    #[error("no endpoint answers at {}", .path.display())]
    NotRunning {
        /// The socket.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// Somebody else listens there.
    #[error("the socket {} is user {uid}'s", .path.display())]
    Stranger {
        /// The socket.
        path: PathBuf,
        /// Who listens there.
        uid: u32,
    },
    /// The connection broke.
    #[error("the endpoint went away")]
    Io(#[from] io::Error),
    /// It refused.
    #[error("{words}")]
    Refused {
        /// Trying again does not help.
        is_permanent: bool,
        /// Why.
        words: String,
    },
    /// It is of another version.
    #[error("the endpoint is of another version: {0}")]
    Unexpected(String),
}

/// A connection to an endpoint.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<UnixStream>,
}

impl Client {
    /// Connects to the socket of an endpoint.
    ///
    /// # Errors
    /// [`EndpointError::NotRunning`], [`EndpointError::Stranger`].
    pub fn connect(path: &Path) -> Result<Self, EndpointError> {
        let stream = UnixStream::connect(path)
            .map_err(|source| EndpointError::NotRunning { path: path.to_owned(), source })?;
        if let Some(uid) = peer::stranger(&stream, true)? {
            return Err(EndpointError::Stranger { path: path.to_owned(), uid });
        }
        stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
        Ok(Self { stream: BufReader::new(stream) })
    }

    /// Sends one request; its answer.
    ///
    /// # Errors
    /// [`EndpointError::Io`], [`EndpointError::Refused`], [`EndpointError::Unexpected`].
    pub fn call(&mut self, request: Request) -> Result<Answer, EndpointError> {
        let unexpected = |error: serde_json::Error| EndpointError::Unexpected(error.to_string());
        let mut line =
            serde_json::to_vec(&Asked { version: VERSION, request }).map_err(unexpected)?;
        line.push(b'\n');
        self.stream.get_mut().write_all(&line)?;
        let mut text = String::new();
        if (&mut self.stream).take(LINE_BYTES_MAX).read_line(&mut text)? == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        let answer = serde_json::from_str(&text).map_err(unexpected)?;
        if let Answer::Refused { is_permanent, words } = answer {
            return Err(EndpointError::Refused { is_permanent, words });
        }
        Ok(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_what_version_1_says() {
        let row = GrantRow {
            instance: "i1".to_owned(),
            host: "h".to_owned(),
            tap: "tap0".to_owned(),
            mac: "02:00:00:00:00:01".to_owned(),
            ip: "10.0.0.2".to_owned(),
            masked: "169.254.77.1:18515".to_owned(),
            node: "192.168.50.2:7001".to_owned(),
            generation: 3,
        };
        let request = Request::Put { instance: "i1".to_owned(), rows: vec![row] };
        let said = serde_json::to_string(&Asked { version: 1, request }).unwrap();
        let golden = r#"{"version":1,"do":"put","instance":"i1","rows":[{"instance":"i1","host":"h","tap":"tap0","mac":"02:00:00:00:00:01","ip":"10.0.0.2","masked":"169.254.77.1:18515","node":"192.168.50.2:7001","generation":3}]}"#;
        assert_eq!(said, golden);
        let answer = Answer::Refused { is_permanent: true, words: "no".to_owned() };
        let said = serde_json::to_string(&answer).unwrap();
        assert_eq!(said, r#"{"answer":"refused","is_permanent":true,"words":"no"}"#);
    }
}
