//! Copies and fills in short pieces, and what is said of those that cannot go on.

use crate::clock;
use crate::{DeviceError, Fault, FaultKind, Outcome};

/// Short pieces of a copy or a fill between two looks at the clock, which takes as long as one.
pub(super) const UNWATCHED: u32 = 16;

/// Does one piece after the other until `deadline`, `unwatched` of them between two looks at the
/// clock; the outcome if that was all of it.
pub(super) fn in_pieces(
    deadline: u64,
    unwatched: u32,
    mut piece: impl FnMut() -> Result<bool, DeviceError>,
) -> Option<Outcome> {
    loop {
        for _ in 0..unwatched {
            match piece() {
                Ok(true) => return Some(Outcome::Done),
                Ok(false) => {}
                Err(error) => return Some(copy_fault(&error)),
            }
        }
        if clock::now_ns() >= deadline {
            return None;
        }
    }
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
