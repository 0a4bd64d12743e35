//! The worker's view of the node's device.

use std::path::PathBuf;
use std::sync::Arc;

use weft_device::cuda::{self, CudaConfig, CudaDevice, Found};
use weft_device::soft::{
    Clock, FrameStore, MemoryConfig, PacedModel, PhysicalTable, SoftConfig, SoftDevice,
};
use weft_device::{DevicePage, PAGE};
use weft_gate::ControlPage;
use weft_ring::{MemoryFile, SharedMemory};

use super::frames::LedgerFrames;
use super::link::Link;
use crate::link::{Backend, Probe, Probed, Start};

/// The shared memory that a device is made of.
pub(crate) struct Parts {
    /// The device page.
    pub(crate) page: Arc<SharedMemory>,
    /// The session's control page.
    pub(crate) control: ControlPage,
    /// The vGPU's frames.
    pub(crate) frames: MemoryFile,
    /// The physical table, read-only.
    pub(crate) table: Arc<SharedMemory>,
    /// The pinned window.
    pub(crate) pinned: Arc<SharedMemory>,
    /// The session's segment, in which copies are staged.
    pub(crate) segment: Arc<SharedMemory>,
}

/// The software GPU as this session sees it.
pub(crate) fn open_soft(
    start: &Start,
    model: Option<&PacedModel>,
    parts: Parts,
    link: &Arc<Link>,
) -> anyhow::Result<SoftDevice> {
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
    let control = parts.control;
    let page = DevicePage::open(&parts.page)?.with_turns(move || control.turn());
    Ok(SoftDevice::new(SoftConfig {
        memory,
        memory_bytes: start.memory_bytes,
        clock: model.map_or(Clock::Real, |model| Clock::Paced(model.clone())),
        page: Some((page, start.key)),
    }))
}

/// A context on a genuine GPU. Frames of the ledger pay for its memory; the frame file and the
/// physical table have no other meaning here.
pub(crate) fn open_cuda(
    start: &Start,
    library: Option<PathBuf>,
    ordinal: u32,
    parts: Parts,
    link: &Arc<Link>,
) -> anyhow::Result<CudaDevice> {
    Ok(CudaDevice::open(CudaConfig {
        library,
        ordinal,
        source: Box::new(LedgerFrames::new(Arc::clone(link))),
        range: (start.device_base, start.device_bytes),
        window: Some((start.pinned_base, parts.pinned)),
        staging: Some(parts.segment),
        kernel_ns: start.times.kernel_ms.map(|ms| ms * 1_000_000),
        page: Some(DevicePage::open(&parts.page)?),
    })?)
}

/// Looks at a device without a context on it.
pub(crate) fn probe(backend: &Backend) -> Probed {
    let Backend::Cuda { library, ordinal, trust_tenants } = backend else {
        return Err("a software device needs no look".to_owned());
    };
    let found = cuda::devices(library.as_deref()).map_err(|error| error.to_string())?;
    let count = found.len();
    let device = found.into_iter().find(|device| device.ordinal == *ordinal);
    let device =
        device.ok_or_else(|| format!("there is no device {ordinal}: the driver lists {count}"))?;
    if let Some(reason) = refusal(&device, *trust_tenants) {
        return Err(format!("{}: {reason}", device.info.name));
    }
    let info = device.info;
    Ok(Probe {
        name: info.name,
        uuid: info.uuid,
        capability: info.compute_capability,
        memory_bytes: info.memory_bytes,
        attributes: info.attributes,
        capabilities: info.capabilities,
    })
}

/// Why a node does not execute on this device.
fn refusal(device: &Found, trust_tenants: bool) -> Option<String> {
    let exposed = device.reaches_host && !trust_tenants;
    let exposes = || {
        "its kernels reach all memory of the process that launches them (`Addressing Mode` in \
         nvidia-smi -q), and with it what keeps tenants apart; load nvidia_uvm with \
         uvm_disable_hmm=1, or set device.trust_tenants = true if no tenant is hostile"
            .to_owned()
    };
    device.unusable.clone().or_else(|| exposed.then(exposes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_device::soft::device_info;

    #[test]
    fn a_device_that_exposes_the_worker_needs_trust() {
        let mut device =
            Found { ordinal: 0, info: device_info(1 << 20), unusable: None, reaches_host: false };
        assert_eq!(refusal(&device, false), None);
        device.reaches_host = true;
        assert!(refusal(&device, false).unwrap().contains("device.trust_tenants"));
        assert_eq!(refusal(&device, true), None);
        device.unusable = Some("it is prohibited".to_owned());
        assert_eq!(refusal(&device, true).unwrap(), "it is prohibited");
    }
}
