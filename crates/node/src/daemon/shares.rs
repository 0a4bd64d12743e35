//! Whose weights compete: effective weights from vGPUs' own.
//!
//! Under [`ShareConfig::User`] users compete equally and a user's vGPUs divide the user's part by
//! their weights, so that a user gains nothing by splitting. While only one user has sessions, the
//! weights are the vGPUs' own.

use std::collections::BTreeMap;

use weft_sched::Weight;

use crate::config::ShareConfig;

/// The weight of a user: divided among the user's vGPUs. Large, so that rounding stays below 0.1 %
/// for up to ten equal vGPUs.
const USER_WEIGHT: u64 = 10_000;

/// A vGPU that has sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Active {
    /// Its key.
    pub(crate) vgpu: u32,
    /// Its user.
    pub(crate) owner: u32,
    /// Its own weight.
    pub(crate) weight: u32,
}

/// The effective weight of each vGPU in `active`, in the same order.
pub(crate) fn effective(share: ShareConfig, active: &[Active]) -> Vec<Weight> {
    let mut users: BTreeMap<u32, u64> = BTreeMap::new();
    for vgpu in active {
        *users.entry(vgpu.owner).or_default() += u64::from(vgpu.weight);
    }
    let split = share == ShareConfig::User && users.len() > 1;
    let weight_of = |vgpu: &Active| {
        if !split {
            return vgpu.weight;
        }
        let total = users.get(&vgpu.owner).copied().unwrap_or(1).max(1);
        let part = (USER_WEIGHT * u64::from(vgpu.weight)).div_ceil(total);
        u32::try_from(part).unwrap_or(u32::MAX)
    };
    active
        .iter()
        .map(|vgpu| Weight::new(weight_of(vgpu).clamp(1, 10_000)).unwrap_or_default())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weights(share: ShareConfig, active: &[(u32, u32)]) -> Vec<u32> {
        let active: Vec<Active> = (0..)
            .zip(active)
            .map(|(vgpu, &(owner, weight))| Active { vgpu, owner, weight })
            .collect();
        effective(share, &active).into_iter().map(Weight::get).collect()
    }

    #[test]
    fn one_users_weights_are_their_own() {
        let active = [(7, 1), (7, 2), (7, 3)];
        assert_eq!(weights(ShareConfig::User, &active), [1, 2, 3]);
    }

    #[test]
    fn splitting_gains_nothing() {
        let active = [(7, 5), (7, 5), (8, 1)];
        assert_eq!(weights(ShareConfig::User, &active), [5000, 5000, 10_000]);
        assert_eq!(weights(ShareConfig::Vgpu, &active), [5, 5, 1]);
    }
}
