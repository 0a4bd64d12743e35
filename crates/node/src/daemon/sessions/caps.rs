//! Caps of users: the most of a device that all vGPUs of one may use together.
//!
//! Where users compete, a user is a tenant of the scheduling core, and the cap is the tenant's.
//! Where every vGPU competes for itself, the core knows no users. There the cap is divided by
//! weight among those of the user's vGPUs that have sessions on a device: who attaches under
//! another name divides what it has into smaller parts.

use std::collections::BTreeSet;

use crate::config::{PPM, ShareConfig};
use crate::daemon::registry::Vgpu;
use crate::daemon::{Daemon, Tables};

impl Daemon {
    /// The most of its device that a vGPU may use by itself, in millionths: its own cap, or its
    /// part of its user's.
    pub(super) fn cap_ppm(&self, tables: &Tables, vgpu: &Vgpu) -> Option<u32> {
        vgpu.cap_ppm.into_iter().chain(self.cap_part_ppm(tables, vgpu)).min()
    }

    /// Its part of its user's cap, in millionths, where that is divided.
    pub(crate) fn cap_part_ppm(&self, tables: &Tables, vgpu: &Vgpu) -> Option<u32> {
        let payer = self.tenancy.payer(vgpu.key, vgpu.owner);
        let limit_ppm = self.user_cap(payer).filter(|_| self.divides_caps())?;
        let others = self.competing(tables, payer).into_iter();
        let others = others.filter(|other| other.key != vgpu.key);
        let others = others.filter(|other| other.device == vgpu.device);
        let others: u64 = others.map(|other| u64::from(other.weight)).sum();
        Some(part_ppm(limit_ppm, vgpu.weight, others))
    }

    /// Tells the driver where the vGPUs of a tenant stand that have sessions, if each has a part of
    /// the tenant's cap: the parts change when another one comes or goes.
    pub(crate) fn place_capped(&self, tables: &mut Tables, payer: u32) {
        if !self.divides_caps() || self.user_cap(payer).is_none() {
            return;
        }
        let competing: Vec<Vgpu> = self.competing(tables, payer).into_iter().cloned().collect();
        for vgpu in &competing {
            self.place(tables, vgpu);
        }
    }

    /// The most of each device that all vGPUs of a tenant may use together, in millionths.
    pub(crate) fn user_cap(&self, payer: u32) -> Option<u32> {
        Some(self.tenant_limits(payer, payer).cap_ppm).filter(|ppm| *ppm < PPM)
    }

    fn divides_caps(&self) -> bool {
        self.config.scheduling.share == ShareConfig::Vgpu
    }

    /// The vGPUs of a tenant that have sessions.
    fn competing<'a>(&'a self, tables: &'a Tables, payer: u32) -> Vec<&'a Vgpu> {
        let live: BTreeSet<u32> = tables.sessions.values().map(|entry| entry.vgpu).collect();
        self.vgpus_of(tables, payer).filter(|vgpu| live.contains(&vgpu.key)).collect()
    }
}

/// The part of a cap that a vGPU of this weight has beside others of these, in millionths of the
/// device; one millionth at least.
fn part_ppm(limit_ppm: u32, weight: u32, others: u64) -> u32 {
    let all = others.saturating_add(weight.into()).max(1);
    let part = u64::from(limit_ppm) * u64::from(weight) / all;
    u32::try_from(part).unwrap_or(limit_ppm).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_cap_are_no_more_than_the_cap() {
        assert_eq!(part_ppm(250_000, 3, 0), 250_000);
        let weights = [1_u32, 3, 4, 10_000];
        let all: u64 = weights.iter().map(|weight| u64::from(*weight)).sum();
        let parts = weights.map(|weight| part_ppm(250_000, weight, all - u64::from(weight)));
        assert!(parts.iter().sum::<u32>() <= 250_000, "{parts:?}");
        assert!(parts[3] > 249_000, "{parts:?}");
        assert_eq!(part_ppm(1, 1, 10_000), 1);
    }
}
