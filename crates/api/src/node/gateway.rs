//! What a node tells of its gateway.

use serde::{Deserialize, Serialize};

/// The gateway of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GatewayReport {
    /// Where it listens, once it does, and while it answers.
    pub listen: Option<String>,
    /// SHA-256 of its public key, in hex: a node's own. Empty until it is known.
    pub key: String,
}

/// How the gateway does.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GatewayHealth {
    /// Whether it listens and answers.
    pub listens: bool,
    /// For how many seconds it has not answered the daemon; 0 if it does.
    pub silent_s: u32,
    /// Times that it ended since the daemon started.
    pub ends: u64,
    /// Those times that it was ended because it did not answer.
    pub hangs: u64,
}
