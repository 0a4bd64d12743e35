//! `cuGetExportTable`: private tables that Weft does not have.

use core::ffi::c_void;
use std::sync::Once;

use weft_wire::Status;

use crate::abi::CUuuid;
use crate::args::{In, Out};
use crate::border;

/// What NVRTC asks for, at each compilation in a process that has loaded the driver, and can do
/// without.
const COMPILER: [u8; 16] = [
    0xda, 0x91, 0x51, 0xd3, 0x3a, 0xe6, 0xcc, 0x41, 0xa5, 0xc0, 0x4f, 0x26, 0xd5, 0x33, 0xe3, 0x28,
];

/// `cuGetExportTable`. No table is known. Only NVIDIA's own libraries ask for any, the runtime's
/// versions for different ones first, so the first question of a process that is not the
/// compiler's is explained on stderr; the table by which they authenticate the genuine driver is
/// never answered.
pub(crate) fn find(table: Out<*const c_void>, id: In<CUuuid>) -> Result<(), Status> {
    static TOLD: Once = Once::new();

    let table = table.required()?;
    let id = id.required()?;
    table.set(core::ptr::null());
    if id.bytes == COMPILER {
        return Err(Status::NOT_FOUND);
    }
    TOLD.call_once(|| {
        border::tell(
            "weft: this program uses NVIDIA's CUDA runtime, which accepts only the genuine \
             driver; it needs interposed mode on a host with an NVIDIA GPU, which this version \
             of weft does not have",
        );
    });
    Err(Status::NOT_FOUND)
}
