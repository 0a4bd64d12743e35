//! Programs of other hosts.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::text;

/// Programs of other hosts.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RemoteConfig {
    /// Address at which endpoints are let in, over TLS and with a grant; nowhere if absent.
    #[serde(deserialize_with = "text::address")]
    pub listen: Option<SocketAddr>,
    /// How long a session outlives its connection.
    pub grace_ms: u32,
    /// Sessions at once.
    pub sessions: usize,
    /// Connections at once that have not said what they want.
    pub pending: usize,
    /// How long they have for it.
    pub patience_ms: u32,
    /// User and group of the gateway. Only a daemon that is root can give it one; 0 leaves it the
    /// daemon's user.
    pub user: u32,
    /// The gateway's program; `weft-endpoint` beside the daemon's if absent.
    pub program: Option<PathBuf>,
}

impl Default for RemoteConfig {
    fn default() -> Self {
        Self {
            listen: None,
            grace_ms: 30_000,
            sessions: 256,
            pending: 256,
            patience_ms: 5000,
            user: 65_534,
            program: None,
        }
    }
}
