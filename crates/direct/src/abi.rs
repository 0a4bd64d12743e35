//! The C functions of `libweft_direct.so`, which the shim looks up by name.
//!
//! ```c
//! /* Changes with every change of these functions. */
//! uint32_t weft_direct_version(void);
//!
//! /* Opens a session. `hello` is an encoded handshake hello; `device` is WEFT_DEVICE (UTF-8, null
//!    for "soft"). `answer` gets the encoded handshake answer, a welcome or a refusal in words.
//!    Returns 0 with a welcome: then `out` holds the session and two descriptors, which the caller
//!    owns. */
//! int32_t weft_direct_open(const uint8_t *hello, size_t hello_len, const char *device,
//!                          uint8_t *answer, size_t answer_room, size_t *answer_len,
//!                          struct { void *session; int32_t segment_fd; int32_t pinned_fd; } *out);
//!
//! /* Executes an asynchronous command. Returns a CUresult: 0, or 46 when the session is over. */
//! int32_t weft_direct_submit(void *session, const uint8_t *command, size_t len);
//!
//! /* Executes a synchronous command and returns its CUresult. `body` gets as much of the answer's
//!    body as there is room for, `body_len` how much that was. */
//! int32_t weft_direct_call(void *session, const uint8_t *command, size_t len,
//!                          uint8_t *body, size_t body_room, size_t *body_len);
//!
//! /* Closes a session that no thread is in. */
//! void weft_direct_close(void *session);
//! ```
//!
//! `WEFT_DIRECT_PAGE` names a file of a zeroed device page on which a paced device has its timeline
//! and its totals: whoever made it sees how the device kept to its model.
//!
//! Every thread may submit and call at any time. A forked child must not.

use std::ffi::{CStr, c_char};
use std::os::fd::IntoRawFd;
use std::path::PathBuf;
use std::slice;

use weft_device::DevicePage;
use weft_device::soft::SoftDevice;
use weft_wire::Status;
use weft_wire::handshake::{Answer, Hello, RefusalCode};

use crate::device::{DirectSpecError, SoftSpec};
use crate::direct::Direct;
use crate::open::{OpenError, Opened, open};

/// Version of the C functions.
pub const VERSION: u32 = 1;

/// What [`weft_direct_open`] did: a welcome, a refusal, or nothing because an argument is null.
const WELCOME: i32 = 0;
const REFUSED: i32 = 1;
const BAD_ARGUMENT: i32 = 2;

/// What an opened session consists of.
#[derive(Debug)]
#[repr(C)]
pub struct SessionParts {
    /// The session, for the other functions.
    pub session: *mut Direct<SoftDevice>,
    /// The segment's memory file.
    pub segment_fd: i32,
    /// The pinned window's memory file.
    pub pinned_fd: i32,
}

/// Version of the C functions.
#[unsafe(no_mangle)]
pub extern "C" fn weft_direct_version() -> u32 {
    VERSION
}

/// Opens a session. See the module's documentation.
///
/// # Safety
/// `hello` has `hello_len` readable bytes, `answer` has `answer_room` writable ones, `device` is
/// null or a C string, and `answer_len` and `out` are null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_direct_open(
    hello: *const u8,
    hello_len: usize,
    device: *const c_char,
    answer: *mut u8,
    answer_room: usize,
    answer_len: *mut usize,
    out: *mut SessionParts,
) -> i32 {
    if out.is_null() || answer_len.is_null() {
        return BAD_ARGUMENT;
    }
    // SAFETY: the caller vouches for `hello` and its length.
    let hello = unsafe { bytes(hello, hello_len) };
    // SAFETY: the caller vouches for `answer` and its room.
    let answer = unsafe { bytes_mut(answer, answer_room) };
    let spec = if device.is_null() {
        String::new()
    } else {
        // SAFETY: `device` is not null, so the caller vouches for a C string.
        unsafe { CStr::from_ptr(device) }.to_string_lossy().into_owned()
    };
    let opened = open_soft(hello, &spec);
    let (told, opened) = match opened {
        Ok(opened) => (Answer::Welcome(opened.welcome.clone()), Some(opened)),
        Err((code, message)) => (Answer::Refused { code: code as u16, message }, None),
    };
    let encoded = told.to_bytes().unwrap_or_default();
    let Some(target) = answer.get_mut(..encoded.len()) else { return BAD_ARGUMENT };
    target.copy_from_slice(&encoded);
    // SAFETY: it is not null, so the caller vouches for it.
    unsafe { answer_len.write(encoded.len()) };
    let Some(Opened { direct, segment, pinned, .. }) = opened else { return REFUSED };
    let session = SessionParts {
        session: Box::into_raw(Box::new(direct)),
        segment_fd: segment.into_raw_fd(),
        pinned_fd: pinned.into_raw_fd(),
    };
    // SAFETY: it is not null, so the caller vouches for it.
    unsafe { out.write(session) };
    WELCOME
}

fn open_soft(hello: &[u8], spec: &str) -> Result<Opened<SoftDevice>, (RefusalCode, String)> {
    let hello = Hello::from_bytes(hello).map_err(|e| (RefusalCode::Version, e.to_string()))?;
    let model_file = std::env::var_os("WEFT_MODEL").map(PathBuf::from);
    let spec = SoftSpec::parse(spec, model_file.as_deref());
    let spec =
        spec.map_err(|error: DirectSpecError| (RefusalCode::Malformed, error.to_string()))?;
    let page_file = std::env::var_os("WEFT_DIRECT_PAGE").map(PathBuf::from);
    let page = page_file
        .map(|file| DevicePage::of_file(&file).map_err(|source| OpenError::Page { file, source }));
    let build = |ground| spec.build(ground, page.transpose()?);
    open(&hello, build).map_err(|error: OpenError| {
        let code = match &error {
            OpenError::Spec(_) | OpenError::Hello(_) | OpenError::Page { .. } => {
                RefusalCode::Malformed
            }
            OpenError::Memory(_) | OpenError::Segment(_) | OpenError::Device(_) => {
                RefusalCode::Exhausted
            }
            OpenError::Thread(_) => RefusalCode::Worker,
        };
        (code, error.to_string())
    })
}

/// Executes an asynchronous command. See the module's documentation.
///
/// # Safety
/// `session` comes from [`weft_direct_open`] and was not closed; `command` has `len` readable
/// bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_direct_submit(
    session: *const Direct<SoftDevice>,
    command: *const u8,
    len: usize,
) -> i32 {
    // SAFETY: the caller vouches for a live session, which only `weft_direct_close` ends.
    let Some(session) = (unsafe { session.as_ref() }) else {
        return Status::NOT_INITIALIZED.code();
    };
    // SAFETY: the caller vouches for `command` and its length.
    let command = unsafe { bytes(command, len) };
    Status::of(&session.submit(command)).code()
}

/// Executes a synchronous command. See the module's documentation.
///
/// # Safety
/// `session` comes from [`weft_direct_open`] and was not closed; `command` has `len` readable and
/// `body` has `body_room` writable bytes; `body_len` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_direct_call(
    session: *const Direct<SoftDevice>,
    command: *const u8,
    len: usize,
    body: *mut u8,
    body_room: usize,
    body_len: *mut usize,
) -> i32 {
    // SAFETY: the caller vouches for a live session, which only `weft_direct_close` ends.
    let Some(session) = (unsafe { session.as_ref() }) else {
        return Status::NOT_INITIALIZED.code();
    };
    // SAFETY: the caller vouches for `command` and its length.
    let command = unsafe { bytes(command, len) };
    // SAFETY: the caller vouches for `body` and its room.
    let body = unsafe { bytes_mut(body, body_room) };
    let (status, copied) = match session.call(command, body) {
        Ok((status, length)) => (status, length.min(body_room)),
        Err(status) => (status, 0),
    };
    // SAFETY: the caller vouches for it unless it is null.
    if let Some(body_len) = unsafe { body_len.as_mut() } {
        *body_len = copied;
    }
    status.code()
}

/// Closes a session. See the module's documentation.
///
/// # Safety
/// `session` is null, or comes from [`weft_direct_open`], was not closed, and no thread uses it any
/// more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_direct_close(session: *mut Direct<SoftDevice>) {
    if !session.is_null() {
        // SAFETY: `weft_direct_open` made it with `Box::into_raw`, and this is its only end.
        drop(unsafe { Box::from_raw(session) });
    }
}

/// # Safety
/// `first` is null or has `len` readable bytes that nobody writes while the slice lives.
unsafe fn bytes<'a>(first: *const u8, len: usize) -> &'a [u8] {
    if first.is_null() {
        return &[];
    }
    // SAFETY: as this function's.
    unsafe { slice::from_raw_parts(first, len) }
}

/// # Safety
/// `first` is null or has `len` bytes that nobody else uses while the slice lives.
unsafe fn bytes_mut<'a>(first: *mut u8, len: usize) -> &'a mut [u8] {
    if first.is_null() {
        return &mut [];
    }
    // SAFETY: as this function's.
    unsafe { slice::from_raw_parts_mut(first, len) }
}
