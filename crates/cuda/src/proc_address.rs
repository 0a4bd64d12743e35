//! `cuGetProcAddress`: functions by base name and version.

use core::ffi::c_void;

use weft_wire::Status;
use weft_wire::table::{self, LookupError};

use crate::args::{Out, Text};
use crate::exports;

/// The flag that asks for per-thread default stream spellings.
const PER_THREAD_DEFAULT_STREAM: u64 = 2;
/// All flags of the header.
const KNOWN_FLAGS: u64 = 3;

/// `CUdriverProcAddressQueryResult`.
const FOUND: u32 = 0;
const SYMBOL_NOT_FOUND: u32 = 1;
const VERSION_NOT_SUFFICIENT: u32 = 2;

/// `cuGetProcAddress` of CUDA 11.3: a failure is the result code.
pub(crate) fn find(
    symbol: Text,
    function: Out<*mut c_void>,
    version: i32,
    flags: u64,
) -> Result<(), Status> {
    search(symbol, function, version, flags)?.map(drop).map_err(|_| Status::NOT_FOUND)
}

/// `cuGetProcAddress` of CUDA 12: a failure is told by `status` where the caller gave one, with a
/// null function and success; without one it is the result code.
pub(crate) fn find_with_status(
    symbol: Text,
    function: Out<*mut c_void>,
    version: i32,
    flags: u64,
    status: Out<u32>,
) -> Result<(), Status> {
    let outcome = search(symbol, function, version, flags)?;
    let code = match outcome {
        Ok(()) => FOUND,
        Err(LookupError::UnknownName) => SYMBOL_NOT_FOUND,
        Err(LookupError::VersionTooOld) => VERSION_NOT_SUFFICIENT,
    };
    match status.optional() {
        Some(place) => {
            place.set(code);
            Ok(())
        }
        None => outcome.map_err(|_| Status::NOT_FOUND),
    }
}

fn search(
    symbol: Text,
    function: Out<*mut c_void>,
    version: i32,
    flags: u64,
) -> Result<Result<(), LookupError>, Status> {
    let symbol = symbol.required()?;
    let function = function.required()?;
    let version = u32::try_from(version).map_err(|_| Status::INVALID_VALUE)?;
    if symbol.is_empty() || version > table::DRIVER_VERSION || flags & !KNOWN_FLAGS != 0 {
        return Err(Status::INVALID_VALUE);
    }
    function.set(core::ptr::null_mut());
    let Ok(symbol) = symbol.to_str() else { return Ok(Err(LookupError::UnknownName)) };
    let per_thread = flags & PER_THREAD_DEFAULT_STREAM != 0;
    Ok(table::lookup(symbol, version, per_thread).map(|call| {
        function.set(exports::address(call.symbol).unwrap_or(core::ptr::null_mut()));
    }))
}
