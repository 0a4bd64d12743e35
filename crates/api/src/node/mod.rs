//! A node's admin socket: one JSON object per line in, one per line out.
//!
//! [`Request`] and [`Answer`] are the whole protocol; [`Client`] speaks it.

mod client;
mod elsewhere;
mod gateway;
mod types;

pub use client::{AdminError, Client, NOT_UNDERSTOOD};
pub use elsewhere::{Elsewhere, Place, Whereabouts};
pub use gateway::{GatewayHealth, GatewayReport};
pub use types::{
    AcceleratorReport, Answer, AskedAccelerator, Attainment, Closure, CoschedulingReport,
    DeviceReport, DoctorCheck, DoctorReport, Finding, GrantReport, GrantRequest, LENT_BY_SESSIONS,
    LastSwitch, MemoryReport, MoveReport, NodeReport, PoolReport, ProcessReport, Recording,
    Request, SLA_NS, SlotReport, Stats, TaskCounts, Timeline, TurnReport, VERSION, VERSIONS,
    VgpuMemoryReport, VgpuReport, VgpuState, ratio,
};
