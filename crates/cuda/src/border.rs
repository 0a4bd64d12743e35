//! What every export does before and after its body: is the driver ready, and no panic passes.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use weft_client::{Client, Loss};
use weft_wire::Status;

use crate::abi::CUresult;
use crate::driver;

/// Runs a call that needs no `cuInit`.
pub(crate) fn anytime(call: impl FnOnce() -> Result<(), Status>) -> CUresult {
    // A body leaves the client's tables consistent at every point that can panic: each is guarded
    // by its own lock, and a poisoned lock is taken over.
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
pub(crate) fn ready(call: impl FnOnce(&Client) -> Result<(), Status>) -> CUresult {
    match driver::client() {
        Ok(client) => {
            let code = anytime(|| call(client));
            if code == Status::DEVICE_UNAVAILABLE.code() {
                explain_loss(client);
            }
            code
        }
        Err(status) => status.code(),
    }
}

/// The code cannot say that somebody ended the session: the person is told, once.
#[cold]
fn explain_loss(client: &Client) {
    static TOLD: Once = Once::new();

    let line = match client.loss() {
        Some(Loss::NodeStopped) => "weft: the node was stopped by its administrator",
        Some(Loss::VgpuRemoved) => "weft: this program's vGPU was removed from its node",
        Some(Loss::DeviceWithdrawn) => {
            "weft: the device of this program's vGPU was taken out of service by its administrator"
        }
        Some(Loss::DeviceFailed) => {
            "weft: the device of this program's vGPU failed; the node's log says how"
        }
        Some(Loss::Worker) => {
            "weft: what executes this program's calls ended before it: its worker on the node, or \
             the endpoint to another host; their logs say why"
        }
        None => return,
    };
    TOLD.call_once(|| tell(line));
}

/// The answer of a call that Weft refuses.
pub(crate) fn refused(symbol: &'static str) -> CUresult {
    if std::env::var_os("WEFT_LOG").is_some_and(|level| level == "trace") {
        tell(&format!("weft: {symbol} is not supported"));
    }
    Status::NOT_SUPPORTED.code()
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
