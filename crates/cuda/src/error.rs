//! Names and texts of results.

use core::ffi::c_char;

use weft_wire::Status;

use crate::abi::CUresult;
use crate::args::Out;

/// `cuGetErrorName`.
pub(crate) fn name(error: CUresult, text: Out<*const c_char>) -> Result<(), Status> {
    answer(error, text, |status| status.name().as_ptr())
}

/// `cuGetErrorString`.
pub(crate) fn string(error: CUresult, text: Out<*const c_char>) -> Result<(), Status> {
    answer(error, text, |status| status.description().as_ptr())
}

fn answer(
    error: CUresult,
    text: Out<*const c_char>,
    choose: impl Fn(Status) -> *const c_char,
) -> Result<(), Status> {
    let text = text.required()?;
    let Some(status) = Status::from_code(error) else {
        text.set(core::ptr::null());
        return Err(Status::INVALID_VALUE);
    };
    text.set(choose(status));
    Ok(())
}
