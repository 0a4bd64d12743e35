//! Copies and fills in short pieces, and what is said of those that cannot go on.

use crate::clock;
use crate::{DeviceError, Fault, FaultKind, Outcome};

/// A copy or a fill looks at the clock after so many bytes: some 20 µs of work, and several ms
/// where memory is touched for the first time.
pub(super) const WATCHED_BYTES: u64 = 256 << 10;

/// And after so many pieces, of which a short one takes as long as a look.
const UNWATCHED: u32 = 16;

/// When a copy or a fill is left alone; both of the device's clock, in ns.
#[derive(Debug, Clone, Copy)]
pub(super) struct Until {
    /// For now.
    pub(super) deadline: u64,
    /// To go on later, if it stops before its end.
    pub(super) stop_at: Option<u64>,
}

/// Does one piece after the other until `moved` is `all` bytes; each says how many it moved, at
/// least one. The outcome, if this was the end.
pub(super) fn in_pieces(
    until: Until,
    all: u64,
    moved: &mut u64,
    mut piece: impl FnMut() -> Result<u64, DeviceError>,
) -> Option<Outcome> {
    let (mut unwatched, mut seen) = (0, *moved);
    while *moved < all {
        match piece() {
            Ok(bytes) => *moved += bytes,
            Err(error) => return Some(copy_fault(&error)),
        }
        unwatched += 1;
        if *moved == all || unwatched < UNWATCHED && *moved - seen < WATCHED_BYTES {
            continue;
        }
        (unwatched, seen) = (0, *moved);
        let now = clock::now_ns();
        if until.stop_at.is_some_and(|at| now >= at) {
            return Some(Outcome::Partial { reached: *moved });
        }
        if now >= until.deadline {
            return None;
        }
    }
    Some(Outcome::Done)
}

fn copy_fault(error: &DeviceError) -> Outcome {
    let mut fault = plain_fault(FaultKind::IllegalAddress, &error.to_string());
    if let DeviceError::BadRange { address, .. } = error {
        fault.address = Some(*address);
    }
    Outcome::Fault(fault)
}

pub(super) fn plain_fault(kind: FaultKind, detail: &str) -> Box<Fault> {
    Box::new(Fault {
        kind,
        kernel: String::new(),
        block: [0; 3],
        thread: [0; 3],
        address: None,
        line: 0,
        detail: detail.to_owned(),
    })
}
