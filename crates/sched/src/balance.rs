//! Which vGPU goes to another device of its pool, so that no device idles beside a crowded one.
//!
//! What a vGPU gets is worked out as the fair policies divide a device: tenants by their weights, a
//! tenant's vGPUs by theirs, and what somebody does not want among the others. A vGPU is
//! *stretched* by what it wants over what it gets: so many times longer its work takes than alone.
//! A move is worth its pause if the mean stretch of all, by weight, shrinks clearly (the least
//! potential delay of Massoulié and Roberts, "Bandwidth sharing: objectives and algorithms").

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

use crate::{DeviceKey, VgpuKey};

/// A move must make the mean stretch smaller than this part of what it was.
const WORTH: f64 = 0.9;

/// What a vGPU asks of a device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Demand {
    /// The tenant that its device time is divided to first; those without one are one tenant.
    pub tenant: Option<u32>,
    /// The tenant's weight.
    pub tenant_weight: u32,
    /// The part of a device that the tenant may use, 0–1.
    pub tenant_most: f64,
    /// The vGPU's weight among those of its tenant.
    pub weight: u32,
    /// The part of a device that it would use if it were alone, 0–1.
    pub wants: f64,
}

/// A device of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Which.
    pub device: DeviceKey,
    /// Memory that nobody has, in bytes.
    pub free_bytes: u64,
}

/// A vGPU that uses a device of the pool.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Resident {
    /// Which.
    pub vgpu: VgpuKey,
    /// Where it lives.
    pub device: DeviceKey,
    /// What it asks of its device.
    pub demand: Demand,
    /// Memory that it would take along, in bytes.
    pub memory_bytes: u64,
    /// It may go elsewhere.
    pub may_move: bool,
}

/// A move that is worth it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Move {
    /// Who goes.
    pub vgpu: VgpuKey,
    /// Where it goes.
    pub to: DeviceKey,
    /// The mean stretch of the pool's vGPUs before, and after it.
    pub stretch: (f64, f64),
}

/// Looks at a pool from time to time and has one vGPU at a time move.
#[derive(Clone, Debug, Default)]
pub struct Balancer {
    /// What would have been best at the last look.
    last: Option<(VgpuKey, DeviceKey)>,
    /// Until when vGPUs that were moved, or could not be, stay, in ns.
    rests: BTreeMap<VgpuKey, u64>,
}

impl Balancer {
    /// The move to be made at `now_ns`, by what was seen since the last look: one that is the best
    /// a second time. Whoever is moved, or was tried to be, then stays for `rest_ns`.
    pub fn look(
        &mut self,
        now_ns: u64,
        rest_ns: u64,
        rooms: &[Room],
        residents: &[Resident],
    ) -> Option<Move> {
        self.rests.retain(|_, until_ns| *until_ns > now_ns);
        let rested = |resident: &Resident| Resident {
            may_move: resident.may_move && !self.rests.contains_key(&resident.vgpu),
            ..*resident
        };
        let residents: Vec<Resident> = residents.iter().map(rested).collect();
        let best = best_move(rooms, &residents);
        let wanted = best.map(|best| (best.vgpu, best.to));
        let again = best.filter(|_| wanted == self.last);
        self.last = wanted.filter(|_| again.is_none());
        if let Some(best) = again {
            self.rests.insert(best.vgpu, now_ns.saturating_add(rest_ns));
        }
        again
    }
}

/// The move that shrinks the mean stretch most, if any is worth its pause. Of equal ones it is the
/// first by resident and room.
pub fn best_move(rooms: &[Room], residents: &[Resident]) -> Option<Move> {
    let of_device = |device: DeviceKey| -> Vec<Demand> {
        let there = residents.iter().filter(|resident| resident.device == device);
        there.map(|resident| resident.demand).collect()
    };
    let crowds: BTreeMap<DeviceKey, Vec<Demand>> =
        rooms.iter().map(|room| (room.device, of_device(room.device))).collect();
    let sums: BTreeMap<DeviceKey, f64> =
        crowds.iter().map(|(device, crowd)| (*device, stretch(crowd))).collect();
    let whole: f64 = sums.values().sum();
    let weights: f64 = crowds.values().flatten().map(weight_of).sum();
    let mut best: Option<Move> = None;
    for resident in residents.iter().filter(|resident| resident.may_move) {
        let Some(left) = crowds.get(&resident.device) else { continue };
        let mut left = left.clone();
        if let Some(place) = left.iter().position(|demand| *demand == resident.demand) {
            left.swap_remove(place);
        }
        let before = whole - sums[&resident.device] + stretch(&left);
        for room in rooms {
            if room.device == resident.device || room.free_bytes < resident.memory_bytes {
                continue;
            }
            let mut joined = crowds[&room.device].clone();
            joined.push(resident.demand);
            let after = before - sums[&room.device] + stretch(&joined);
            if after < whole * WORTH && best.is_none_or(|best| after / weights < best.stretch.1) {
                let stretch = (whole / weights, after / weights);
                best = Some(Move { vgpu: resident.vgpu, to: room.device, stretch });
            }
        }
    }
    best
}

/// By how much the vGPUs of a device are stretched, each by its weight, together.
fn stretch(crowd: &[Demand]) -> f64 {
    let parts = divide_device(crowd);
    let stretched = crowd.iter().zip(parts).map(|(demand, part)| {
        let stretch = if part > 0.0 { demand.wants / part } else { 1.0 };
        weight_of(demand) * stretch
    });
    stretched.sum()
}

fn weight_of(demand: &Demand) -> f64 {
    f64::from(demand.weight)
}

/// The part of a device that each gets: tenants divide it by their weights, a tenant's vGPUs its
/// part by theirs, and what somebody does not want is the others'.
#[must_use]
pub fn divide_device(demands: &[Demand]) -> Vec<f64> {
    let mut tenants: BTreeMap<Option<u32>, Vec<usize>> = BTreeMap::new();
    for (place, demand) in demands.iter().enumerate() {
        tenants.entry(demand.tenant).or_default().push(place);
    }
    let wants = |places: &Vec<usize>| {
        let sum: f64 = places.iter().map(|place| demands[*place].wants).sum();
        let first = demands[places[0]];
        (f64::from(first.tenant_weight), sum.min(first.tenant_most))
    };
    let of_tenants = divide(1.0, &tenants.values().map(wants).collect::<Vec<_>>());
    let mut parts = vec![0.0; demands.len()];
    for (places, part) in tenants.values().zip(of_tenants) {
        let wants = |place: &usize| (weight_of(&demands[*place]), demands[*place].wants);
        let of_vgpus = divide(part, &places.iter().map(wants).collect::<Vec<_>>());
        for (place, part) in places.iter().zip(of_vgpus) {
            parts[*place] = part;
        }
    }
    parts
}

/// Divides `whole` by weights among who wants at most so much each (weight, most): what somebody
/// does not want is divided among the others.
fn divide(whole: f64, wants: &[(f64, f64)]) -> Vec<f64> {
    let mut parts: Vec<Option<f64>> = vec![None; wants.len()];
    loop {
        let left = whole - parts.iter().flatten().sum::<f64>();
        let open = || (0..wants.len()).filter(|place| parts[*place].is_none());
        let weights: f64 = open().map(|place| wants[place].0).sum();
        let part = |place: usize| left * wants[place].0 / weights;
        let full: Vec<usize> = open().filter(|place| wants[*place].1 <= part(*place)).collect();
        if full.is_empty() {
            let rest: Vec<f64> = (0..wants.len()).map(part).collect();
            return parts.iter().zip(rest).map(|(part, rest)| part.unwrap_or(rest)).collect();
        }
        for place in full {
            parts[place] = Some(wants[place].1);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GIB: u64 = 1 << 30;

    fn room(device: u32) -> Room {
        Room { device: DeviceKey(device), free_bytes: 8 * GIB }
    }

    fn resident(vgpu: u32, device: u32, weight: u32, wants: f64) -> Resident {
        let (tenant, tenant_weight, tenant_most) = (Some(vgpu), weight, 1.0);
        let demand = Demand { tenant, tenant_weight, tenant_most, weight, wants };
        let (vgpu, device) = (VgpuKey(vgpu), DeviceKey(device));
        Resident { vgpu, device, demand, memory_bytes: GIB, may_move: true }
    }

    fn moved(rooms: &[Room], residents: &[Resident]) -> Option<(u32, u32)> {
        best_move(rooms, residents).map(|best| (best.vgpu.0, best.to.0))
    }

    #[test]
    fn a_device_is_divided_by_weights_and_what_somebody_does_not_want_is_the_others() {
        let demand = |tenant, weight, wants| Demand {
            tenant: Some(tenant),
            tenant_weight: 1,
            tenant_most: 1.0,
            weight,
            wants,
        };
        let parts = divide_device(&[demand(1, 1, 1.0), demand(1, 3, 1.0), demand(2, 1, 0.2)]);
        let expected = [0.2, 0.6, 0.2];
        assert!(parts.iter().zip(expected).all(|(part, expected)| (part - expected).abs() < 1e-12));
        assert!(divide_device(&[]).is_empty());
    }

    #[test]
    fn an_idle_device_takes_one_of_a_crowd() {
        let rooms = [room(0), room(1)];
        assert_eq!(moved(&rooms, &[resident(1, 0, 1, 1.0), resident(2, 0, 1, 1.0)]), Some((1, 1)));
        // Three beside one are two beside two; three beside two are as good as two beside three.
        let three = [resident(1, 0, 1, 1.0), resident(2, 0, 1, 1.0), resident(3, 0, 1, 1.0)];
        let one = [resident(4, 1, 1, 1.0)];
        assert_eq!(moved(&rooms, &[&three[..], &one[..]].concat()), Some((1, 1)));
        let two = [resident(4, 1, 1, 1.0), resident(5, 1, 1, 1.0)];
        assert_eq!(moved(&rooms, &[&three[..], &two[..]].concat()), None);
    }

    #[test]
    fn nobody_moves_for_nothing() {
        let rooms = [room(0), room(1)];
        // All get what they want.
        assert_eq!(moved(&rooms, &[resident(1, 0, 1, 0.5), resident(2, 0, 1, 0.4)]), None);
        assert_eq!(moved(&rooms, &[resident(1, 0, 1, 1.0)]), None);
        assert_eq!(moved(&rooms, &[]), None);
        assert_eq!(moved(&[room(0)], &[resident(1, 0, 1, 1.0), resident(2, 0, 1, 1.0)]), None);
        // There is no room, and those that live there by choice stay.
        let full = [room(0), Room { free_bytes: GIB - 1, ..room(1) }];
        let crowd = [resident(1, 0, 1, 1.0), resident(2, 0, 1, 1.0)];
        assert_eq!(moved(&full, &crowd), None);
        let stays = crowd.map(|resident| Resident { may_move: false, ..resident });
        assert_eq!(moved(&rooms, &stays), None);
    }

    #[test]
    fn the_light_ones_leave_the_heavy_one() {
        let rooms = [room(0), room(1)];
        let crowd = [resident(1, 0, 3, 1.0), resident(2, 0, 1, 1.0), resident(3, 1, 1, 1.0)];
        assert_eq!(moved(&rooms, &crowd), Some((2, 1)));
    }

    #[test]
    fn only_what_is_best_twice_is_done_and_whoever_moved_stays_for_a_while() {
        let rooms = [room(0), room(1)];
        let crowd = [resident(1, 0, 1, 1.0), resident(2, 0, 1, 1.0)];
        let mut balancer = Balancer::default();
        assert_eq!(balancer.look(0, 100, &rooms, &crowd), None);
        // A moment in which one sleeps begins the wait anew.
        assert_eq!(balancer.look(10, 100, &rooms, &crowd[..1]), None);
        assert_eq!(balancer.look(20, 100, &rooms, &crowd), None);
        let first = balancer.look(30, 100, &rooms, &crowd);
        assert_eq!(first.map(|first| first.vgpu), Some(VgpuKey(1)));
        // It could not: the other one is tried before it is again.
        assert_eq!(balancer.look(40, 100, &rooms, &crowd), None);
        let second = balancer.look(50, 100, &rooms, &crowd);
        assert_eq!(second.map(|second| second.vgpu), Some(VgpuKey(2)));
        assert_eq!(balancer.look(60, 100, &rooms, &crowd), None);
        assert_eq!(balancer.look(129, 100, &rooms, &crowd), None);
        assert_eq!(balancer.look(130, 100, &rooms, &crowd), None);
        let third = balancer.look(140, 100, &rooms, &crowd);
        assert_eq!(third.map(|third| third.vgpu), Some(VgpuKey(1)));
    }

    fn residents() -> impl Strategy<Value = Vec<Resident>> {
        let one = (0_u32..4, 1_u32..5, 1_u32..=10);
        proptest::collection::vec(one, 0..12).prop_map(|all| {
            let resident = |(vgpu, (device, weight, tenths)): (usize, (u32, u32, u32))| {
                let vgpu = u32::try_from(vgpu).unwrap();
                resident(vgpu, device, weight, f64::from(tenths) / 10.0)
            };
            all.into_iter().enumerate().map(resident).collect()
        })
    }

    proptest! {
        /// Each move shrinks what it says it shrinks, no move leads back, and they end: demands
        /// that do not change are not moved about.
        #[test]
        fn moves_shrink_the_stretch_and_end(mut residents in residents()) {
            let rooms: Vec<Room> = (0..4).map(room).collect();
            let mut last = f64::INFINITY;
            let mut moves = 0;
            while let Some(best) = best_move(&rooms, &residents) {
                let (before, after) = best.stretch;
                prop_assert!(after < before * WORTH + 1e-9 && before <= last + 1e-9);
                prop_assert!(after >= 1.0 - 1e-9);
                last = after;
                let who = residents.iter_mut().find(|resident| resident.vgpu == best.vgpu).unwrap();
                prop_assert_ne!(who.device, best.to);
                who.device = best.to;
                moves += 1;
                // From the worst start each move takes a tenth of the mean, which never is below 1.
                prop_assert!(moves <= 40);
            }
        }

        /// No device is divided beyond itself, and nobody gets more than it wants; a device that is
        /// not wholly used has given everybody what it wants.
        #[test]
        fn a_device_is_divided_wholly_and_no_further(residents in residents()) {
            let demands: Vec<Demand> = residents.iter().map(|resident| resident.demand).collect();
            let parts = divide_device(&demands);
            let used: f64 = parts.iter().sum();
            prop_assert!(used <= 1.0 + 1e-9);
            for (demand, part) in demands.iter().zip(&parts) {
                prop_assert!(*part <= demand.wants + 1e-9);
                prop_assert!(used > 1.0 - 1e-9 || (part - demand.wants).abs() < 1e-9);
            }
        }
    }
}
