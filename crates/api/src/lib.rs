#![forbid(unsafe_code)]
//! What is said between Weft's services.
//!
//! [`v1`] is the cloud's REST interface: its types, the table of its calls, and, with the features
//! `openapi` and `client`, its OpenAPI document and a blocking client. [`node`] is the admin socket
//! of a node daemon, [`endpoint`] the socket of a compute host's endpoint; [`versions`] is how the
//! sides of those two are upgraded one after the other. [`figures`] is what benchmarks say,
//! [`stolen`] how much of the time they had, [`files`] how what somebody names is read, [`lines`]
//! how what another process says is, and [`times`] how times are written.

pub mod endpoint;
pub mod figures;
pub mod files;
pub mod levels;
pub mod lines;
pub mod node;
pub mod stolen;
pub mod times;
pub mod v1;
pub mod versions;
