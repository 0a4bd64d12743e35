//! The shared object as a program sees it: its symbols and the calls that need no device.

use std::collections::BTreeSet;
use std::ffi::{CStr, c_char, c_void};
use std::path::PathBuf;
use std::process::Command;

use libloading::Library;
use weft_wire::table;

/// The library that cargo built beside this test.
fn path() -> PathBuf {
    let exe = std::env::current_exe().expect("a test knows itself");
    let folders = exe.ancestors().skip(1).take(2).map(|folder| folder.join("libcuda.so"));
    folders.into_iter().find(|path| path.is_file()).expect("cargo builds libcuda.so first")
}

fn library() -> Library {
    // SAFETY: the library has no initialisers.
    unsafe { Library::new(path()) }.expect("libcuda.so loads")
}

#[test]
fn the_exported_symbols_are_those_of_the_table() {
    let Ok(output) = Command::new("nm").args(["-D", "--defined-only"]).arg(path()).output() else {
        println!("not run: no nm");
        return;
    };
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    let exported: BTreeSet<_> = text.lines().filter_map(|line| line.split(' ').nth(2)).collect();
    let expected: BTreeSet<_> = table::calls().map(|call| call.symbol).collect();
    let missing: Vec<_> = expected.difference(&exported).collect();
    let extra: Vec<_> = exported.difference(&expected).collect();
    assert!(missing.is_empty() && extra.is_empty(), "missing {missing:?}, extra {extra:?}");
}

type Init = unsafe extern "C" fn(u32) -> i32;
type Number = unsafe extern "C" fn(*mut i32) -> i32;
type Name = unsafe extern "C" fn(i32, *mut *const c_char) -> i32;
type ProcAddress = unsafe extern "C" fn(*const c_char, *mut *mut c_void, i32, u64) -> i32;
type ProcAddress2 =
    unsafe extern "C" fn(*const c_char, *mut *mut c_void, i32, u64, *mut u32) -> i32;

#[test]
fn calls_before_init_say_so() {
    let library = library();
    // SAFETY: the type is the header's.
    let count = unsafe { library.get::<Number>(b"cuDeviceGetCount") }.unwrap();
    let mut value = 7;
    // SAFETY: the place is writable.
    assert_eq!(unsafe { count(&raw mut value) }, 3);
    assert_eq!(value, 7);
    // SAFETY: the type is the header's.
    let init = unsafe { library.get::<Init>(b"cuInit") }.unwrap();
    // SAFETY: takes no pointer.
    assert_eq!(unsafe { init(1) }, 1, "flags must be zero");
}

#[test]
fn version_and_error_texts_need_no_init() {
    let library = library();
    // SAFETY: the type is the header's.
    let version = unsafe { library.get::<Number>(b"cuDriverGetVersion") }.unwrap();
    let mut value = 0;
    // SAFETY: the place is writable.
    assert_eq!(unsafe { version(&raw mut value) }, 0);
    assert_eq!(value, 13050);
    // SAFETY: null is allowed and answered.
    assert_eq!(unsafe { version(core::ptr::null_mut()) }, 1);

    // SAFETY: the type is the header's.
    let name = unsafe { library.get::<Name>(b"cuGetErrorName") }.unwrap();
    let mut text = core::ptr::null();
    // SAFETY: the place is writable.
    assert_eq!(unsafe { name(700, &raw mut text) }, 0);
    // SAFETY: a success leaves a static C string.
    assert_eq!(unsafe { CStr::from_ptr(text) }, c"CUDA_ERROR_ILLEGAL_ADDRESS");
    // SAFETY: the place is writable.
    assert_eq!(unsafe { name(12345, &raw mut text) }, 1);
    assert!(text.is_null());
}

#[test]
fn functions_are_found_by_name_and_version() {
    let library = library();
    // SAFETY: the type is the header's.
    let find = unsafe { library.get::<ProcAddress2>(b"cuGetProcAddress_v2") }.unwrap();
    let mut function = core::ptr::null_mut();
    let mut status = 9;
    let mut look = |name: &CStr, version, flags| {
        // SAFETY: all places are writable, the name is terminated.
        let code =
            unsafe { find(name.as_ptr(), &raw mut function, version, flags, &raw mut status) };
        (code, status, function as usize)
    };
    for (name, version, flags, symbol) in [
        (c"cuMemAlloc", 12000, 0, &b"cuMemAlloc_v2"[..]),
        (c"cuCtxGetDevice", 12090, 0, b"cuCtxGetDevice"),
        (c"cuCtxGetDevice", 13000, 0, b"cuCtxGetDevice_v2"),
        (c"cuLaunchKernel", 12000, 2, b"cuLaunchKernel_ptsz"),
        (c"cuLaunchKernel", 12000, 1, b"cuLaunchKernel"),
    ] {
        // SAFETY: only the address is looked at.
        let exported = unsafe { library.get::<Init>(symbol) }.unwrap();
        assert_eq!(look(name, version, flags), (0, 0, *exported as usize), "{name:?}");
    }
    assert_eq!(look(c"cuNothing", 12000, 0), (0, 1, 0));
    assert_eq!(look(c"cuLaunchKernelEx", 11000, 0), (0, 2, 0));
    assert_eq!(look(c"cuInit", 99999, 0).0, 1, "newer than the driver");

    // SAFETY: the type is the header's.
    let find = unsafe { library.get::<ProcAddress>(b"cuGetProcAddress") }.unwrap();
    // SAFETY: all places are writable, the name is terminated.
    let code = unsafe { find(c"cuNothing".as_ptr(), &raw mut function, 12000, 0) };
    assert_eq!((code, function.is_null()), (500, true));
}

/// How NVIDIA's runtime begins its question for the table that authenticates the driver.
const HANDSHAKE: [u8; 16] = [0xd4, 0x08, 0x20, 0x55, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

#[test]
#[ignore = "the child of the test below"]
fn asks_for_private_tables() {
    type ExportTable = unsafe extern "C" fn(*mut *const c_void, *const u8) -> i32;
    let library = library();
    // SAFETY: the type is the header's.
    let find = unsafe { library.get::<ExportTable>(b"cuGetExportTable") }.unwrap();
    let first = std::env::var_os("FIRST_IS_THE_HANDSHAKE").map_or([7; 16], |_| HANDSHAKE);
    for id in [first, [8; 16], HANDSHAKE, HANDSHAKE] {
        let mut table = core::ptr::dangling();
        // SAFETY: the place is writable, the id has sixteen bytes.
        assert_eq!(unsafe { find(&raw mut table, id.as_ptr()) }, 500);
        assert!(table.is_null(), "no table is ever given out");
    }
}

#[test]
fn a_program_on_the_runtime_is_told_once_what_to_do() {
    // Its versions ask for different tables first.
    for first in [None, Some("FIRST_IS_THE_HANDSHAKE")] {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["asks_for_private_tables", "--exact", "--ignored", "--nocapture"]);
        let output = command.envs(first.map(|name| (name, "1"))).output().unwrap();
        assert!(output.status.success());
        let told = String::from_utf8(output.stderr).unwrap();
        let lines: Vec<_> = told.lines().filter(|line| line.starts_with("weft:")).collect();
        assert_eq!(lines.len(), 1, "{told}");
        assert!(lines[0].contains("NVIDIA's CUDA runtime"), "{told}");
        assert!(lines[0].contains("interposed mode"), "{told}");
    }
}
