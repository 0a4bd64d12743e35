//! What kernels print goes to the program's standard output, at the calls where CUDA says so: those
//! that wait for the device.

use core::ffi::{c_int, c_void};

use weft_client::Client;
use weft_wire::Status;

/// A C stream; opaque.
#[repr(C)]
struct File {
    _private: [u8; 0],
}

unsafe extern "C" {
    static stdout: *mut File;
    fn fwrite(bytes: *const c_void, size: usize, count: usize, file: *mut File) -> usize;
    fn fflush(file: *mut File) -> c_int;
}

/// Passes the result of a call that waited on, after writing what kernels have printed. The
/// program's own C stream is used, so that its output and that of its kernels keep their order.
pub(crate) fn after(client: &Client, waited: Result<(), Status>) -> Result<(), Status> {
    let mut any = false;
    client.take_output(|bytes| {
        any = true;
        // SAFETY: `stdout` is set by the C library before any code of the program runs.
        let file = unsafe { stdout };
        // SAFETY: `bytes` is readable for its length, and `file` is an open stream of the C
        // library, which locks it.
        let _written = unsafe { fwrite(bytes.as_ptr().cast(), 1, bytes.len(), file) };
    });
    if any {
        // SAFETY: as above; a stream may be flushed at any time.
        let file = unsafe { stdout };
        // SAFETY: `file` is an open stream.
        let _flushed = unsafe { fflush(file) };
    }
    waited
}
