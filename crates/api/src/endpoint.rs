//! What is said to the endpoint of a compute host: rows of JSON over a Unix socket, an answer for
//! each request.
//!
//! A request names its version. A connection begins with [`Request::Versions`], which is the same
//! in every version; then both speak the newest one that they have in common. Each side speaks its
//! own and the one before ([`VERSIONS`]), so that they may be one version apart.
//!
//! WHEN CHANGING IT: raise [`VERSION`], by one in a release, and keep what the version before says
//! and is answered: `fixtures/endpoint-N.jsonl` has that of version N as it was recorded, for the
//! tests of both sides.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use weft_ring::peer;

use crate::versions::Versions;

/// The newest version. Version 2 brought [`Request::Versions`].
pub const VERSION: u32 = 2;

/// The versions that are spoken here.
pub const VERSIONS: Versions = Versions::up_to(VERSION);

/// What the opening names as its version, whatever is spoken: one that the oldest endpoints read.
pub const OPENING: u32 = 1;

/// The longest request or answer, in bytes.
pub const LINE_BYTES_MAX: u64 = 16 << 20;

/// An endpoint answers within this time: 10,000 rows are in force in a fraction of a second. One
/// that hangs delays whoever asks it by so much.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

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
    /// Which versions are spoken, asked first; it is understood whatever version is named.
    Versions,
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
    /// Which versions are spoken.
    Versions(Versions),
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
    /// It and this side have no version in common.
    #[error(
        "the endpoint speaks {theirs} of its interface and this side {VERSIONS}: {}",
        VERSIONS.advice(*.theirs)
    )]
    Version {
        /// What it speaks.
        theirs: Versions,
    },
    /// Its answer is not one of the version that it speaks.
    #[error("the endpoint's answer is not understood: {0}")]
    Unexpected(String),
}

/// A connection to an endpoint.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<UnixStream>,
    /// What both speak.
    version: u32,
}

impl Client {
    /// Connects to the socket of an endpoint, and finds the version that both speak.
    ///
    /// # Errors
    /// [`EndpointError::NotRunning`], [`EndpointError::Stranger`], [`EndpointError::Version`], and
    /// those of [`Self::call`].
    pub fn connect(path: &Path) -> Result<Self, EndpointError> {
        let stream = peer::connect_within(path, ANSWER_TIMEOUT).map_err(|source| {
            // It takes nobody in: it hangs, and runs.
            if source.kind() == io::ErrorKind::WouldBlock {
                EndpointError::Io(source)
            } else {
                EndpointError::NotRunning { path: path.to_owned(), source }
            }
        })?;
        if let Some(uid) = peer::stranger(&stream, true)? {
            return Err(EndpointError::Stranger { path: path.to_owned(), uid });
        }
        let mut client = Self { stream: BufReader::new(stream), version: OPENING };
        let theirs = client.versions()?;
        client.version = VERSIONS.common(theirs).ok_or(EndpointError::Version { theirs })?;
        Ok(client)
    }

    /// What the endpoint speaks.
    fn versions(&mut self) -> Result<Versions, EndpointError> {
        match self.call(Request::Versions) {
            Ok(Answer::Versions(theirs)) => Ok(theirs),
            // It does not know the question.
            Err(EndpointError::Refused { .. }) => Ok(Versions::UNSAID),
            Ok(other) => Err(EndpointError::Unexpected(format!("{other:?}"))),
            Err(error) => Err(error),
        }
    }

    /// The version that both speak.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Sends one request; its answer.
    ///
    /// # Errors
    /// [`EndpointError::Io`], [`EndpointError::Refused`], [`EndpointError::Unexpected`].
    pub fn call(&mut self, request: Request) -> Result<Answer, EndpointError> {
        let unexpected = |error: serde_json::Error| EndpointError::Unexpected(error.to_string());
        let mut line =
            serde_json::to_vec(&Asked { version: self.version, request }).map_err(unexpected)?;
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
