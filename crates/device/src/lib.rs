//! Devices that execute tenants' work: the trait [`Device`] and its backends.
//!
//! Validation is the caller's job (`weft-exec` checks everything a tenant sends, once, at the
//! border). A backend's errors cover only what the caller cannot foresee: memory running out, an
//! image that does not load, a device that is lost. A *kernel* that misbehaves is no error of the
//! device: it is the [`Outcome::Fault`] of its operation.
//!
//! A backend is one folder: [`soft`] executes PTX on the CPU and is always there, [`cuda`] drives a
//! genuine GPU where its driver is installed.

mod backend;
mod clock;
#[cfg(test)]
mod conformance;
mod device;
mod frames;
mod info;
mod op;
mod page;

pub mod cuda;
pub mod soft;

pub use backend::{
    Backend, BackendConfig, DeviceName, Lends, NameError, Needs, OpenError, Parts, WithDevice,
    keys, kinds,
};
pub use clock::thread_cpu_ns;
pub use device::{
    Destination, Device, DeviceError, Driven, Import, LoadError, MemoryUse, PartUse, SwapError,
    SwapStep, Swapping, VirtualMemory,
};
pub use frames::{
    Brought, ForeignFrames, FrameRun, FrameSource, LocalFrames, MovedRun, PAGE, Room, RoomWanted,
    Wanted,
};
pub use info::{Attribute, Capabilities, DeviceInfo};
pub use op::{
    Completion, CopyShape, Endpoint, Fault, FaultKind, Fill, FunctionInfo, GlobalInfo, Launch,
    LoadedModule, ModuleId, Op, OpId, Outcome, ParamInfo, Place, QueueId,
};
pub use page::{DEVICE_PAGE_BYTES, DevicePage, DeviceTotals};
