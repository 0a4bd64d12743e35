//! The worker's view of the node's device.

use std::sync::Arc;

use weft_device::soft::{
    Clock, DevicePage, FrameStore, KernelModel, MemoryConfig, PAGE, PacedModel, PhysicalTable,
    SoftConfig, SoftDevice,
};
use weft_ring::{MemoryFile, SharedMemory};

use super::frames::LedgerFrames;
use super::link::Link;
use crate::config::ModelConfig;
use crate::link::{DeviceSpec, Start};

/// The shared memory that a device is made of.
pub(crate) struct Parts {
    /// The device page.
    pub(crate) page: Arc<SharedMemory>,
    /// The vGPU's frames.
    pub(crate) frames: MemoryFile,
    /// The physical table, read-only.
    pub(crate) table: Arc<SharedMemory>,
    /// The pinned window.
    pub(crate) pinned: Arc<SharedMemory>,
}

/// The software GPU as this session sees it.
pub(crate) fn open(start: &Start, parts: Parts, link: &Arc<Link>) -> anyhow::Result<SoftDevice> {
    let entries = usize::try_from(start.device.memory_bytes / PAGE)?;
    // Frames belong to sessions, so that sessions of one vGPU are kept apart as well.
    let entries = parts.table.read_cells(0, entries)?;
    let table = PhysicalTable { entries, owner: start.key };
    let memory = MemoryConfig {
        store: FrameStore::map(parts.frames, Some(table))?,
        source: Box::new(LedgerFrames::new(Arc::clone(link))),
        base: start.device_base,
        len: start.device_bytes,
        window: Some((start.pinned_base, parts.pinned)),
    };
    let page = DevicePage::open(&parts.page)?;
    Ok(SoftDevice::new(SoftConfig {
        memory,
        memory_bytes: start.memory_bytes,
        clock: clock(&start.device),
        page: Some((page, start.key)),
    }))
}

fn clock(spec: &DeviceSpec) -> Clock {
    if spec.paced { Clock::Paced(model(&spec.model)) } else { Clock::Real }
}

fn model(config: &ModelConfig) -> PacedModel {
    let kernels = config.kernels.iter().map(|rule| KernelModel {
        kernel: rule.kernel.clone(),
        ns: rule.ns,
        ns_per_block: rule.ns_per_block,
    });
    PacedModel {
        kernels: kernels.collect(),
        base_ns: config.base_ns,
        ns_per_block: config.ns_per_block,
        copy_base_ns: config.copy_base_ns,
        copy_bytes_per_us: config.copy_bytes_per_us,
    }
}
