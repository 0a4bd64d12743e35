//! The set-up of DymGPU's evaluation (§2.1, §4.1, §4.2.1), for tests and simulations.

use alloc::vec::Vec;

use super::{Demand, EVERY_ROUND};
use crate::key::VgpuKey;

/// Slots of the high region: 3,840 MiB less the host's 384 MiB, in slots of 64 MiB.
pub const REGION: usize = 54;
/// One vGPU's quantum, in ns.
pub const QUANTUM_NS: u64 = 16_000_000;
/// Entries of a slot of 64 MiB: one for each page of 4 KiB.
pub const SLOT_ENTRIES: u64 = 16_384;
/// Writing the entries of a slot, in ns: 74 ns each, in the middle of what Figure 3 gives.
pub const SLOT_NS: u64 = 1_220_000;
/// Slots that are written during a quantum: 16 ms at 1.22 ms each.
pub const HIDDEN: usize = 13;
/// MiB of a VM, and its slots.
pub const SIZES: [(usize, usize); 3] = [(384, 6), (704, 11), (1_024, 16)];

/// vGPUs of these sizes that always have work, with the keys 0, 1, 2 …
pub fn demands(slots: impl IntoIterator<Item = usize>) -> Vec<Demand> {
    let demand = |(key, slots)| Demand { vgpu: VgpuKey(key), slots, rate: EVERY_ROUND };
    (0..).zip(slots).map(demand).collect()
}

/// 384, 704 and 1,024 MiB in turn ("with the same ratio").
pub fn mixed(count: usize) -> Vec<Demand> {
    demands(SIZES.iter().map(|(_, slots)| *slots).cycle().take(count))
}

/// The placements of [`REDERIVED`]'s columns.
pub const REDERIVED_NAMES: [&str; 5] = ["scores", "size", "utilization", "exact", "scattered"];

/// Copies per round of so many [`mixed`] vGPUs on [`REGION`] slots, derived anew from the paper's
/// text with independent scripts: what the placements are held against.
pub const REDERIVED: [(usize, [usize; 5]); 5] = [
    (3, [0, 0, 0, 0, 0]),
    (6, [24, 18, 24, 18, 15]),
    (9, [90, 56, 61, 56, 51]),
    (12, [132, 89, 94, 89, 86]),
    (15, [165, 127, 127, 127, 120]),
];
