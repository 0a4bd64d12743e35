//! The software GPU: executes PTX on the CPU, so that every machine runs the main job.
//!
//! [`SoftDevice`] implements [`crate::Device`]. `engine` executes kernels, `memory` translates
//! and allocates, `device_page` is what the workers of one device share, `model` says how long
//! things take on the paced clock.

mod clock;
mod device;
mod device_page;
mod engine;
mod heap;
mod info;
mod memory;
mod model;
mod module;
mod patience;

pub use clock::thread_cpu_ns;
pub use device::{Clock, SoftConfig, SoftDevice};
pub use device_page::{DEVICE_PAGE_BYTES, DevicePage, DeviceTotals};
pub use info::device_info;
pub use memory::{
    ForeignFrames, FrameRun, FrameSource, FrameStore, LocalFrames, MemoryConfig, PAGE,
    PhysicalTable, physical,
};
pub use model::{KernelModel, ModelError, PacedModel};

#[cfg(test)]
mod tests;
