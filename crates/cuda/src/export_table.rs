//! `cuGetExportTable`: private tables that Weft does not have.

use core::ffi::c_void;
use std::sync::Once;

use weft_wire::Status;

use crate::abi::CUuuid;
use crate::args::{In, Out};
use crate::border;

/// `cuGetExportTable`. No table is known. Only NVIDIA's own libraries ask for any, the runtime's
/// versions for different ones first, so the first question of a process is explained on stderr;
/// the table by which they authenticate the genuine driver is never answered.
pub(crate) fn find(table: Out<*const c_void>, id: In<CUuuid>) -> Result<(), Status> {
    static TOLD: Once = Once::new();

    let table = table.required()?;
    id.required()?;
    table.set(core::ptr::null());
    TOLD.call_once(|| {
        border::tell(
            "weft: this program uses NVIDIA's CUDA runtime, which accepts only the genuine \
             driver; it needs interposed mode on a host with an NVIDIA GPU, which this version \
             of weft does not have",
        );
    });
    Err(Status::NOT_FOUND)
}
