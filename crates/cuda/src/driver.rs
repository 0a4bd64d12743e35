//! Initialisation and version: the one client of the process.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use weft_client::{Attach, AttachError, Client, Config};
use weft_wire::Status;
use weft_wire::table::DRIVER_VERSION;

use crate::args::Out;
use crate::{border, direct, fork};

static CLIENT: OnceLock<Arc<Client>> = OnceLock::new();

/// The client of this process.
///
/// # Errors
/// `NOT_INITIALIZED` before `cuInit` and in a forked child, which does not own the lanes.
#[inline]
pub(crate) fn client() -> Result<&'static Client, Status> {
    let client = CLIENT.get().ok_or(Status::NOT_INITIALIZED)?;
    if client.is_forked() { Err(Status::NOT_INITIALIZED) } else { Ok(client) }
}

/// The client, also of a forked child.
pub(crate) fn attached() -> Option<&'static Client> {
    CLIENT.get().map(Arc::as_ref)
}

/// `cuInit`: attaches. A failure is explained on stderr, and may be tried again.
pub(crate) fn init(flags: u32) -> Result<(), Status> {
    static ATTACHING: Mutex<()> = Mutex::new(());

    if flags != 0 {
        return Err(Status::INVALID_VALUE);
    }
    if CLIENT.get().is_none() {
        let _one = ATTACHING.lock().unwrap_or_else(PoisonError::into_inner);
        if CLIENT.get().is_none() {
            fork::watch();
            let attached = attach().map_err(|error| explain(&error))?;
            // Only the holder of the lock sets it.
            let _ = CLIENT.set(attached);
        }
    }
    if client()?.device_count() == 0 { Err(Status::NO_DEVICE) } else { Ok(()) }
}

fn attach() -> Result<Arc<Client>, AttachError> {
    let config = Config::from_env()?;
    match config.attach {
        Attach::Direct => direct::attach(&config),
        Attach::Isolated => Client::attach(&config),
    }
}

/// Tells the person what went wrong, and the program what its code is.
fn explain(error: &AttachError) -> Status {
    border::tell(&format!("weft: {error}"));
    match error {
        AttachError::Config(_)
        | AttachError::NoDaemon(_)
        | AttachError::Permission(_)
        | AttachError::Stranger { .. }
        | AttachError::Path(_) => Status::NO_DEVICE,
        AttachError::Refused(_) => Status::DEVICE_UNAVAILABLE,
        AttachError::Handshake(_) => Status::SYSTEM_DRIVER_MISMATCH,
        AttachError::Memory(_) => Status::OUT_OF_MEMORY,
        AttachError::Connection { .. }
        | AttachError::Descriptors { .. }
        | AttachError::Segment(_)
        | AttachError::Direct(_) => Status::SYSTEM_NOT_READY,
    }
}

/// `cuDriverGetVersion`.
pub(crate) fn version(version: Out<i32>) -> Result<(), Status> {
    version.required()?.set(i32::try_from(DRIVER_VERSION).unwrap_or(i32::MAX));
    Ok(())
}
