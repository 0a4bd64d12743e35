//! Direct attachment: the execution code of `libweft_direct.so` in this process.
//!
//! The library is loaded when `WEFT_ATTACH=direct` asks for it, from beside this one or from where
//! the system finds libraries. Its C functions are described in the crate `weft-direct`.

use core::ffi::c_char;
use core::ffi::c_void;
use std::error::Error as _;
use std::ffi::CString;
use std::fmt;
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use libloading::Library;
use weft_client::{Answer, AttachError, Client, Config, DirectSession, Transport};
use weft_wire::Status;
use weft_wire::handshake::HANDSHAKE_BYTES_MAX;

/// The version of the C functions that this file calls.
const VERSION: u32 = 1;
/// The library's file name.
const FILE: &str = "libweft_direct.so";

type VersionFn = unsafe extern "C" fn() -> u32;
type OpenFn = unsafe extern "C" fn(
    hello: *const u8,
    hello_bytes: usize,
    device: *const c_char,
    answer: *mut u8,
    answer_room: usize,
    answer_bytes: *mut usize,
    out: *mut Opened,
) -> i32;
type SubmitFn = unsafe extern "C" fn(session: *mut c_void, command: *const u8, bytes: usize) -> i32;
type CallFn = unsafe extern "C" fn(
    session: *mut c_void,
    command: *const u8,
    bytes: usize,
    body: *mut u8,
    body_room: usize,
    body_bytes: *mut usize,
) -> i32;

/// What an opened session consists of.
#[repr(C)]
struct Opened {
    session: *mut c_void,
    segment: i32,
    pinned: i32,
}

/// Attaches to a device in this process.
pub(crate) fn attach(config: &Config) -> Result<Arc<Client>, AttachError> {
    Client::attach_direct(config, |hello| open(hello, &config.device))
}

fn open(hello: &[u8], device: &str) -> Result<DirectSession, String> {
    let library = load()?;
    // SAFETY: the type is the one that the crate `weft-direct` documents for this name.
    let version = unsafe { library.get::<VersionFn>(c"weft_direct_version".to_bytes()) };
    let version = version.map_err(|error| error.to_string())?;
    // SAFETY: takes nothing.
    let version = unsafe { version() };
    if version != VERSION {
        return Err(format!("{FILE} is of version {version}, and this program needs {VERSION}"));
    }
    // SAFETY: the type is the one of this version.
    let open = unsafe { library.get::<OpenFn>(c"weft_direct_open".to_bytes()) };
    let open = *open.map_err(|error| error.to_string())?;
    let device = CString::new(device).map_err(|error| error.to_string())?;
    let mut answer = vec![0; HANDSHAKE_BYTES_MAX];
    let mut answer_bytes = 0;
    let mut opened = Opened { session: core::ptr::null_mut(), segment: -1, pinned: -1 };
    // SAFETY: all places are writable and as long as stated, the device is terminated.
    let outcome = unsafe {
        open(
            hello.as_ptr(),
            hello.len(),
            device.as_ptr(),
            answer.as_mut_ptr(),
            answer.len(),
            &raw mut answer_bytes,
            &raw mut opened,
        )
    };
    answer.truncate(answer_bytes);
    if outcome != 0 {
        return Err(refusal(&answer).unwrap_or_else(|| format!("{FILE} answered {outcome}")));
    }
    let transport = Direct::over(library, opened.session)?;
    // SAFETY: a session that opened hands this descriptor over.
    let segment = unsafe { OwnedFd::from_raw_fd(opened.segment) };
    // SAFETY: a session that opened hands this descriptor over.
    let pinned = unsafe { OwnedFd::from_raw_fd(opened.pinned) };
    Ok(DirectSession { answer, segment, pinned, transport: Arc::new(transport) })
}

/// A refusal's own words.
fn refusal(answer: &[u8]) -> Option<String> {
    match weft_wire::handshake::Answer::from_bytes(answer) {
        Ok(weft_wire::handshake::Answer::Refused { message, .. }) => Some(message),
        Ok(weft_wire::handshake::Answer::Welcome(_)) | Err(_) => None,
    }
}

fn load() -> Result<Library, String> {
    let beside = own_path().map(|own| own.with_file_name(FILE)).filter(|path| path.is_file());
    let path = beside.unwrap_or_else(|| PathBuf::from(FILE));
    // SAFETY: our own library; its initialisers are Rust's.
    let library = unsafe { Library::new(&path) };
    library.map_err(|error| {
        // The system's own words are in the cause.
        let cause = error.source().map_or_else(|| error.to_string(), ToString::to_string);
        not_loaded(&path, own_path().as_deref().and_then(Path::parent), &cause)
    })
}

fn not_loaded(path: &Path, folder: Option<&Path>, cause: &str) -> String {
    let place = folder.map_or_else(|| "its folder".to_owned(), |dir| dir.display().to_string());
    format!(
        "{} cannot be loaded ({cause}): a run without a daemon needs it beside Weft's libcuda, in \
         {place}; copy it there from the same build, or make both with `cargo build --release -p \
         weft-cuda -p weft-direct`",
        path.display()
    )
}

/// The file that this library was loaded from: whose mapping holds one of its functions.
fn own_path() -> Option<PathBuf> {
    let own = (own_path as *const ()).addr();
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    maps.lines().find_map(|line| {
        let (range, rest) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let start = usize::from_str_radix(start, 16).ok()?;
        let end = usize::from_str_radix(end, 16).ok()?;
        let path = rest.get(rest.find('/')?..)?;
        (start..end).contains(&own).then(|| Path::new(path).to_owned())
    })
}

/// The session's functions. It is never closed: the driver lives as long as the process.
struct Direct {
    session: *mut c_void,
    submit: SubmitFn,
    call: CallFn,
    _library: Library,
}

// SAFETY: every thread may submit and call at any time, says the library.
unsafe impl Send for Direct {}
// SAFETY: every thread may submit and call at any time, says the library.
unsafe impl Sync for Direct {}

impl fmt::Debug for Direct {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Direct").finish_non_exhaustive()
    }
}

impl Direct {
    fn over(library: Library, session: *mut c_void) -> Result<Self, String> {
        // SAFETY: the type is the one of the checked version.
        let submit = unsafe { library.get::<SubmitFn>(c"weft_direct_submit".to_bytes()) };
        let submit = *submit.map_err(|error| error.to_string())?;
        // SAFETY: the type is the one of the checked version.
        let call = unsafe { library.get::<CallFn>(c"weft_direct_call".to_bytes()) };
        let call = *call.map_err(|error| error.to_string())?;
        Ok(Self { session, submit, call, _library: library })
    }
}

impl Transport for Direct {
    fn submit(&self, command: &[u8]) -> Result<(), Status> {
        // SAFETY: the session is open, and the command is as long as stated.
        let code = unsafe { (self.submit)(self.session, command.as_ptr(), command.len()) };
        Status::from_peer(code).into_result()
    }

    fn call(&self, command: &[u8], body: &mut [u8]) -> Result<Answer, Status> {
        let mut len = 0;
        // SAFETY: the session is open, command and body are as long as stated.
        let code = unsafe {
            (self.call)(
                self.session,
                command.as_ptr(),
                command.len(),
                body.as_mut_ptr(),
                body.len(),
                &raw mut len,
            )
        };
        Ok(Answer { status: Status::from_peer(code), len: len.min(body.len()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_missing_is_said_to_be_and_where_it_belongs() {
        let text = not_loaded(Path::new(FILE), Some(Path::new("/opt/weft")), "no such file");
        for wanted in [FILE, "/opt/weft", "no such file", "cargo build"] {
            assert!(text.contains(wanted), "no `{wanted}` in {text}");
        }
    }
}
