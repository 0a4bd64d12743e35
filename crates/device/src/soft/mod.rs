//! The software GPU: executes PTX on the CPU, so that every machine runs the main job.
//!
//! [`SoftDevice`] implements [`crate::Device`]. `engine` executes kernels, `memory` translates
//! and allocates, `model` says how long things take on the paced clock.

mod backend;
mod device;
mod engine;
mod heap;
mod info;
mod memory;
mod model;
mod module;
mod pieces;
mod timing;

pub use backend::{SoftBackend, SoftClock};
pub use device::{Clock, SoftConfig, SoftDevice};
pub use info::device_info;
pub use memory::{
    FrameStore, Geometry, HostWindow, MemoryConfig, PhysicalTable, PrivateTable, Translation,
    physical,
};
pub use model::{KernelModel, ModelError, PacedModel};

#[cfg(test)]
mod tests;
