//! The tenant socket: a program of this node says hello, and the system says whose it is.

use std::os::fd::OwnedFd;

use weft_ring::{PAGE, peer};
use weft_wire::handshake::{HANDSHAKE_BYTES_MAX, HandshakeError, Hello, HelloBody, RefusalCode};

use super::no_hello;
use crate::daemon::sessions::Refusal;

/// Where the addresses of a program end on x86-64 with page tables of four levels.
const USER_ADDRESSES_END: u64 = 1 << 47;

/// What a connection says, which must be there.
pub(super) fn hear(socket: &OwnedFd) -> Result<Vec<u8>, Refusal> {
    let malformed = |why: &str| no_hello(RefusalCode::Malformed, why);
    peer::receive_bytes(socket, HANDSHAKE_BYTES_MAX, false)
        .map_err(|error| malformed(&error.to_string()))?
        .ok_or_else(|| malformed("the tenant hung up"))
}

/// The hello in it.
pub(super) fn understand(said: &[u8]) -> Result<HelloBody, Refusal> {
    let hello = Hello::from_bytes(said).map_err(|error| {
        let code = match error {
            HandshakeError::Version(_) => RefusalCode::Version,
            HandshakeError::NotWeft | HandshakeError::Malformed(_) => RefusalCode::Malformed,
        };
        Refusal { code, message: error.to_string() }
    })?;
    let body = hello.body;
    let ranges = [(body.device_base, body.device_bytes), (body.pinned_base, body.pinned_bytes)];
    if !ranges.into_iter().all(|(base, bytes)| is_range(base, bytes)) {
        return Err(no_hello(RefusalCode::Malformed, "it reserved addresses that no program has"));
    }
    Ok(body)
}

/// Whether a program can have reserved these addresses.
fn is_range(base: u64, bytes: u64) -> bool {
    base.is_multiple_of(PAGE as u64)
        && base.checked_add(bytes).is_some_and(|end| end <= USER_ADDRESSES_END)
}
