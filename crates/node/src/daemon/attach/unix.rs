//! The tenant socket: a program of this node says hello, and the system says whose it is.

use std::os::fd::OwnedFd;

use weft_ring::peer;
use weft_wire::handshake::{HANDSHAKE_BYTES_MAX, HandshakeError, Hello, HelloBody, RefusalCode};

use super::no_hello;
use crate::daemon::sessions::Refusal;

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
    Ok(hello.body)
}
