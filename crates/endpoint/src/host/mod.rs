//! The endpoint of a compute host (the paper's RODVR): leads the masked addresses of VMs to the
//! gateways of GPU nodes, in nftables.
//!
//! [`table`] is what the control plane wants, parsed; [`ruleset`] and [`network`] say, purely, what
//! the system must hold for it: one nftables transaction, and routes, neighbours and rules of
//! `iproute2`. [`flows`] says which connections must end. [`system`] asks `nft`, `ip` and
//! `conntrack`; [`agent`] keeps the table over restarts and puts right what somebody changed;
//! [`serve`] is its socket. See `docs/cloud.md` and ADR 37.

pub mod agent;
pub mod bench;
pub mod flows;
pub mod lab;
pub mod lock;
pub mod network;
pub mod ruleset;
pub mod serve;
pub mod session;
pub mod system;
pub mod table;

use std::net::Ipv4Addr;

/// Masked addresses are of this network: link-local, so that no router of a tenant carries them.
pub const MASKED_NETWORK: Ipv4Addr = Ipv4Addr::new(169, 254, 77, 0);

/// Bits of the network's name.
pub const MASKED_BITS: u8 = 24;

/// The address that nodes of the same host see VMs at.
pub const MASKED_SELF: Ipv4Addr = Ipv4Addr::new(169, 254, 77, 254);

/// Marks of packets of ports, their routing tables too, are this and the port's number.
pub const MARK: u32 = 0x5745_0000;

/// What of a mark says that it is one of ours.
pub const MARK_MASK: u32 = 0xffff_0000;

/// The nftables table.
pub const TABLE: &str = "weft";

/// Connections of one port at once. A remote program has one, and one more for bulk copies; the
/// system's table of connections has a quarter of a million entries for all.
pub const CONNECTIONS_MAX: u32 = 256;

/// Why something is not in force.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// What is wanted makes no sense.
    #[error("row of {instance}: {words}")]
    Malformed {
        /// Whose.
        instance: String,
        /// What is wrong with it.
        words: String,
    },
    /// There are too many.
    #[error("this endpoint has {limit} {what}, and no room for more")]
    Full {
        /// What there are too many of.
        what: &'static str,
        /// How many there are.
        limit: usize,
    },
    /// The port is not there, perhaps not yet.
    #[error("there is no interface {0} on this host")]
    NoPort(String),
    /// Another instance has the port, and is newer.
    #[error("the interface {0} is a newer instance's")]
    Superseded(String),
    /// A program of the system failed.
    #[error("{program}: {words}")]
    Program {
        /// Which.
        program: &'static str,
        /// What it said.
        words: String,
    },
    /// The system failed.
    #[error("{what}")]
    Io {
        /// What was tried.
        what: String,
        /// The system's answer.
        #[source]
        source: std::io::Error,
    },
}

impl Failure {
    /// Trying again does not help.
    #[must_use]
    pub fn is_permanent(&self) -> bool {
        match self {
            Self::Malformed { .. } | Self::Superseded(_) => true,
            Self::Full { .. } | Self::NoPort(_) | Self::Program { .. } | Self::Io { .. } => false,
        }
    }
}
