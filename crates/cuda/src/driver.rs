//! Initialisation and version.

use weft_wire::Status;
use weft_wire::table::DRIVER_VERSION;

use crate::args::Out;
use crate::border;

/// `cuInit`.
pub(crate) fn init(flags: u32) -> Result<(), Status> {
    if flags != 0 {
        return Err(Status::INVALID_VALUE);
    }
    if border::is_forked() {
        return Err(Status::NOT_INITIALIZED);
    }
    border::open();
    Ok(())
}

/// `cuDriverGetVersion`.
pub(crate) fn version(version: Out<i32>) -> Result<(), Status> {
    version.required()?.set(i32::try_from(DRIVER_VERSION).unwrap_or(i32::MAX));
    Ok(())
}
