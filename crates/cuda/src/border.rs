//! What every export does before and after its body: is the driver ready, and no panic passes.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU8, Ordering};

use weft_wire::Status;

use crate::abi::CUresult;

/// `cuInit` has not succeeded in this process.
const UNINITIALISED: u8 = 0;
/// Calls may go through.
const READY: u8 = 1;
/// This process is the child of one that had called `cuInit`: it does not own the lanes.
const FORKED: u8 = 2;

static STATE: AtomicU8 = AtomicU8::new(UNINITIALISED);

/// Runs a call that needs no `cuInit`.
pub(crate) fn anytime(call: impl FnOnce() -> Result<(), Status>) -> CUresult {
    // A body leaves the client's tables consistent at every point that can panic: each is guarded by
    // its own lock, and a poisoned lock is taken over.
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(result) => Status::of(&result).code(),
        Err(payload) => {
            // Dropping a foreign payload could panic again.
            core::mem::forget(payload);
            Status::UNKNOWN.code()
        }
    }
}

/// Runs a call that needs `cuInit` to have succeeded in this very process.
#[inline]
pub(crate) fn ready(call: impl FnOnce() -> Result<(), Status>) -> CUresult {
    if STATE.load(Ordering::Relaxed) == READY {
        anytime(call)
    } else {
        Status::NOT_INITIALIZED.code()
    }
}

/// The answer of a call that Weft refuses.
pub(crate) fn refused(symbol: &'static str) -> CUresult {
    if std::env::var_os("WEFT_LOG").is_some_and(|level| level == "trace") {
        tell(&format!("{symbol}: not supported"));
    }
    Status::NOT_SUPPORTED.code()
}

/// Whether a parent of this process owns the driver's state.
pub(crate) fn is_forked() -> bool {
    STATE.load(Ordering::Relaxed) == FORKED
}

/// Lets calls through from here on; a child of this process will be refused.
pub(crate) fn open() {
    static HOOK: std::sync::Once = std::sync::Once::new();
    HOOK.call_once(|| {
        // SAFETY: `closed_in_child` only stores to an atomic, which is allowed after a fork.
        let outcome = unsafe { libc::pthread_atfork(None, None, Some(closed_in_child)) };
        if outcome != 0 {
            tell("weft: no memory to notice forks; do not use CUDA in forked children");
        }
    });
    STATE.store(READY, Ordering::Release);
}

unsafe extern "C" fn closed_in_child() {
    if STATE.load(Ordering::Relaxed) == READY {
        STATE.store(FORKED, Ordering::Relaxed);
    }
}

/// Says one line to the person who runs the program.
#[expect(clippy::print_stderr, reason = "a library has no other way to reach the person")]
pub(crate) fn tell(line: &str) {
    eprintln!("{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_a_code() {
        let code = anytime(|| panic!("on purpose"));
        assert_eq!(code, Status::UNKNOWN.code());
    }

    #[test]
    fn a_failure_keeps_its_code() {
        assert_eq!(anytime(|| Err(Status::NOT_FOUND)), 500);
        assert_eq!(anytime(|| Ok(())), 0);
    }
}
