//! Direct attachment: the execution code and a software device inside the program, without daemon,
//! worker, gate or lanes.
//!
//! `WEFT_ATTACH=direct` makes the shim load `libweft_direct.so` (this crate) and call the C
//! functions of [`abi`]. The session's segment and pinned window are memory files as ever, so arena
//! blocks, progress words and notices mean the same to the client; only the lanes stay empty. It is
//! the native baseline of benchmarks, and the "genuine driver" on which interposed mode is tested
//! without a GPU.
//!
//! All `unsafe` code lies in [`abi`].

pub mod abi;
mod device;
mod direct;
mod open;
mod outbox;

pub use device::{DirectSpecError, SoftSpec};
pub use direct::Direct;
pub use open::{Ground, OpenError, Opened, open};
