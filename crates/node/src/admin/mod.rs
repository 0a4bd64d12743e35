//! The admin socket: one JSON object per line in, one per line out.
//!
//! [`Request`] and [`Answer`] are the whole protocol; [`Client`] speaks it for `weft`.

mod client;
mod types;

pub use client::{AdminError, Client};
pub use types::{
    Answer, Closure, CoschedulingReport, DeviceReport, DoctorCheck, DoctorReport, Finding,
    NodeReport, Recording, Request, Share, Stats, Timeline, Turn, VgpuReport, VgpuState, shares,
};
