//! The cloud's REST interface, version 1. `docs/openapi.json` is made of what is here.
//!
//! WHEN CHANGING IT: a new field of an answer, an optional field of a request or a new call raises
//! the minor number of [`VERSION`]; anything else needs a `v2`. Answers may have fields that a
//! client does not know; requests may not have fields that the server does not know.

mod calls;
#[cfg(feature = "client")]
mod client;
mod names;
#[cfg(feature = "openapi")]
mod openapi;
mod problem;
#[cfg(feature = "client")]
mod reach;
mod resources;

pub use calls::{Call, Method, Query};
#[cfg(feature = "client")]
pub use client::{Client, ClientError, check_address, new_key};
pub use names::{BadKey, BadName, check_key, check_name};
#[cfg(feature = "client")]
pub use names::{BadTokenFile, read_token, token_warning};
#[cfg(feature = "openapi")]
pub use openapi::document;
pub use problem::{Kind, Problem};
pub use resources::{
    Attachment, AuditEntry, Batch, Cgpu, CgpuState, CreatedToken, Endpoint, EndpointChange, Event,
    EventKind, Gateway, Gpu, GpuChange, Instance, InstanceState, Locality, Mode, NewBatch,
    NewInstance, NewNode, NewQuota, NewToken, Node, Operation, OperationKind, OperationState, Page,
    Project, ProjectChange, Quota, Role, Token, UsageRecord, Variable,
};

/// The newest microversion, which [`VERSION_HEADER`] may ask for and every answer names.
pub const VERSION: (u32, u32) = (1, 8);

/// The oldest one that is understood.
pub const VERSION_MIN: (u32, u32) = (1, 0);

/// The header of the microversion, as in `Weft-Api-Version: 1.0`.
pub const VERSION_HEADER: &str = "weft-api-version";

/// The header under which a creation is repeated without being done twice.
pub const IDEMPOTENCY_HEADER: &str = "idempotency-key";

/// The longest idempotency key.
pub const IDEMPOTENCY_KEY_BYTES_MAX: usize = 128;

/// The most cGPUs of an instance, and of all instances of a batch together.
pub const CGPUS_MAX: u32 = 4_096;

/// The most instances of a batch.
pub const BATCH_MAX: u32 = 64;

/// Weights of shared cGPUs.
pub const WEIGHTS: std::ops::RangeInclusive<u32> = 1..=10_000;

/// SLAs of cGPUs, in microseconds: what a node can be told.
pub const SLA_US: std::ops::RangeInclusive<u64> = 100..=3_600_000_000;

const _: () = assert!(*SLA_US.start() * 1_000 == *crate::node::SLA_NS.start());
const _: () = assert!(*SLA_US.end() * 1_000 == *crate::node::SLA_NS.end());

/// The most items of a page, and how many there are if nobody says.
pub const PAGE_MAX: u32 = 1_000;
/// Items of a page for which no number was asked.
pub const PAGE_DEFAULT: u32 = 100;

/// The longest time, in ms, for which an answer about an instance waits that is being made or
/// removed.
pub const WAIT_MS_MAX: u64 = 30_000;

/// The longest time for which a token may be good, in seconds: ten years.
pub const TOKEN_VALID_S_MAX: u64 = 10 * 365 * 24 * 3_600;

/// The longest user-data.
pub const USER_DATA_BYTES_MAX: usize = 48 << 10;

/// Where the control plane listens if nobody says.
pub const DEFAULT_ADDRESS: &str = "127.0.0.1:7610";
