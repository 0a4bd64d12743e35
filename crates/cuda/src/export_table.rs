//! `cuGetExportTable`: private tables that Weft does not have.

use core::ffi::c_void;
use std::sync::Once;

use weft_wire::Status;

use crate::abi::CUuuid;
use crate::args::{In, Out};
use crate::border;

/// How the table begins by which NVIDIA's runtime authenticates the genuine driver.
const RUNTIME_HANDSHAKE: [u8; 4] = [0xd4, 0x08, 0x20, 0x55];

/// `cuGetExportTable`. No table is known; the runtime's question is explained on stderr, once.
pub(crate) fn find(table: Out<*const c_void>, id: In<CUuuid>) -> Result<(), Status> {
    let table = table.required()?;
    let id = id.required()?;
    table.set(core::ptr::null());
    if id.bytes.starts_with(&RUNTIME_HANDSHAKE) {
        static TOLD: Once = Once::new();
        TOLD.call_once(|| {
            border::tell(
                "weft: this program uses NVIDIA's CUDA runtime, which accepts only the genuine \
                 driver; it needs interposed mode on a host with an NVIDIA GPU, which this version \
                 of weft does not have",
            );
        });
    }
    Err(Status::NOT_FOUND)
}
