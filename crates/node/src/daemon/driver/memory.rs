//! What turns mean for the devices' slots: whoever deals them out is told who uses what, and where
//! a placement writes slots ahead, who is next.

use std::collections::BTreeMap;
use std::sync::Arc;

use weft_sched::DeviceKey;

use super::Driver;
use crate::daemon::devices::ahead::{Next, Writer};
use crate::daemon::devices::frames::Frames;
use crate::daemon::devices::planner::{Planner, TurnEnd};
use crate::daemon::devices::residency::Residency;

/// The slots of the devices.
#[derive(Debug, Default)]
pub(super) struct Memory {
    devices: BTreeMap<DeviceKey, Arc<Residency>>,
    /// Where a device's placement writes ahead.
    writer: Option<Writer>,
    planner: Option<Planner>,
}

impl Driver {
    /// Tells who deals out these devices' slots what vGPUs use.
    pub(crate) fn watching(mut self, memory: &BTreeMap<DeviceKey, Frames>) -> Self {
        let residency = |(key, own): (&DeviceKey, &Frames)| (*key, Arc::clone(own.residency()));
        let devices: BTreeMap<_, _> = memory.iter().map(residency).collect();
        let writer = devices.values().any(|own| own.writes_ahead()).then(Writer::start).flatten();
        self.memory = Memory { devices, writer, planner: Planner::start() };
        self
    }
}

impl Memory {
    /// A turn begins; `next` says who is likely to follow.
    pub(super) fn begin_turn(
        &self,
        device: DeviceKey,
        vgpu: u32,
        next: impl FnOnce() -> Option<u32>,
    ) {
        let (Some(own), Some(writer)) = (self.devices.get(&device), &self.writer) else { return };
        if own.writes_ahead() {
            let next = next();
            writer.order(Next { device, slots: Arc::clone(own), holder: vgpu, next });
        }
    }

    /// A turn is over in which the vGPU used the device for so long.
    pub(super) fn end_turn(&self, device: DeviceKey, now_ns: u64, vgpu: u32, used_ns: u64) {
        if let (Some(own), Some(planner)) = (self.devices.get(&device), &self.planner) {
            planner.end_turn(TurnEnd { slots: Arc::clone(own), now_ns, vgpu, used_ns });
        }
    }
}
