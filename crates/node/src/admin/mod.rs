//! The admin socket: one JSON object per line in, one per line out.
//!
//! [`Request`] and [`Answer`] are the whole protocol; [`Client`] speaks it for `weft` and the
//! control plane. They are `weft_api`'s.

mod share;

pub use share::{Share, shares};
pub(crate) use share::{demand_of, own_cap_ppm, ratio_of};
pub use weft_api::node::{
    AcceleratorReport, AdminError, Answer, AskedAccelerator, Attainment, Client, Closure,
    CoschedulingReport, DeviceReport, DoctorCheck, DoctorReport, Finding, GatewayHealth,
    GrantReport, GrantRequest, LENT_BY_SESSIONS, LastSwitch, MemoryReport, MoveReport,
    NOT_UNDERSTOOD, NodeReport, PoolReport, ProcessReport, Recording, Request, SlotReport, Stats,
    TaskCounts, Timeline, TurnReport, VgpuMemoryReport, VgpuReport, VgpuState,
};
