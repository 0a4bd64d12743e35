//! What turns mean for the devices' slots: whoever deals them out is told who uses what, and where
//! a placement writes slots ahead, who is next; there it says itself who should be.

use std::collections::BTreeMap;
use std::sync::Arc;

use weft_sched::{DeviceKey, Node, VgpuKey};

use super::Driver;
use crate::daemon::devices::ahead::{Next, Writer};
use crate::daemon::devices::frames::Frames;
use crate::daemon::devices::lending::Lender;
use crate::daemon::devices::planner::{Planner, TurnEnd};
use crate::daemon::devices::residency::Residency;

/// The slots of the devices.
#[derive(Debug, Default)]
pub(super) struct Memory {
    devices: BTreeMap<DeviceKey, Arc<Residency>>,
    /// Devices whose memory is lent session by session.
    lenders: BTreeMap<DeviceKey, Arc<Lender>>,
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
        let lender = |(key, own): (&DeviceKey, &Frames)| Some((*key, Arc::clone(own.lender()?)));
        let lenders = memory.iter().filter_map(lender).collect();
        self.memory = Memory { devices, lenders, writer, planner: Planner::start() };
        self
    }
}

impl Memory {
    /// A turn of a vGPU begins. Where slots are written ahead: who should be next, since it is
    /// that one's that are written.
    pub(super) fn begin_turn(
        &self,
        node: &Node,
        device: DeviceKey,
        vgpu: VgpuKey,
    ) -> Option<VgpuKey> {
        if let Some(lender) = self.lenders.get(&device) {
            lender.begin_turn(vgpu.0);
        }
        let own = self.devices.get(&device).filter(|own| own.writes_ahead())?;
        let writer = self.writer.as_ref()?;
        let likely = node.upcoming(device);
        let (mut among, order) = (node.within_reach(device), own.order());
        // Who is next whatever is preferred is user-facing, or the only one.
        let is_free = likely.is_none_or(|likely| among.contains(&likely));
        let preferred = if is_free { order.next(vgpu, &among) } else { None };
        let first = preferred.or(likely);
        among.retain(|one| Some(*one) != first);
        let second = first.and_then(|first| order.next(first, &among));
        let next = [first, second].into_iter().flatten().map(|vgpu| vgpu.0).collect();
        writer.order(Next { device, slots: Arc::clone(own), holder: vgpu.0, next });
        preferred
    }

    /// Whether a session's memory is about to come, so that it has not had its turn yet.
    pub(super) fn is_exchanging(&self, device: DeviceKey, session: u32) -> bool {
        self.lenders.get(&device).is_some_and(|lender| lender.is_exchanging(session))
    }

    /// A turn is over in which the vGPU used the device for so long.
    pub(super) fn end_turn(&self, device: DeviceKey, now_ns: u64, vgpu: u32, used_ns: u64) {
        if let Some(lender) = self.lenders.get(&device) {
            lender.end_turn(now_ns, vgpu);
        }
        if let (Some(own), Some(planner)) = (self.devices.get(&device), &self.planner) {
            planner.end_turn(TurnEnd { slots: Arc::clone(own), now_ns, vgpu, used_ns });
        }
    }
}
