//! Who had how much of the device, and who should have had, between two looks.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use weft_api::node::{DeviceReport, Stats, VgpuReport, VgpuState, ratio};
use weft_sched::balance::{Demand, divide_device};
use weft_sched::{PolicyId, policy};

use crate::config::PPM;

/// A vGPU's part of the device over a window.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Share {
    /// Which.
    pub vgpu: String,
    /// Its weight.
    pub weight: u32,
    /// Its state at the end of the window.
    pub state: VgpuState,
    /// It is being removed, and gets no session any more.
    pub is_closing: bool,
    /// Device time used in the window.
    pub used_ns: u64,
    /// Part of all that was used in the window, 0–1.
    pub measured: f64,
    /// Part by the weights of tenant and vGPU among the vGPUs that used the device or wait for
    /// it, 0–1. Caps are not looked at.
    pub expected: f64,
    /// Part of the device's time in the window, 0–1.
    pub of_device: f64,
    /// Part of the device's time that it may have beside the others that used it or wait for it: by
    /// weights, within caps; what one may not have is the others'. 0–1.
    pub entitled: f64,
    /// It had clearly less than it is entitled to, and the policy gives whoever asks what it is
    /// entitled to: its programs slept. Who waits from the one end of the window to the other wants
    /// all of it.
    pub asks_for_less: bool,
    /// It waits for the device or has it, and all that its caps leave it: it would have more if its
    /// own cap, or its user's, were higher.
    pub capped: bool,
}

/// Parts of the device that differ by less are taken for the same: what a turn more or less makes
/// in a window of half a second.
const TOLERANCE: f64 = 0.04;

/// A device that is used for more than this, with what its memory took to bring, has no time that
/// somebody did not ask for: what is missing went into switching.
const SATURATED: f64 = 0.85;

/// Each vGPU's part of its device between two [`Stats`], in the order of `after`.
#[must_use]
pub fn shares(before: &Stats, after: &Stats) -> Vec<Share> {
    let devices: BTreeSet<&str> = after.vgpus.iter().map(|vgpu| vgpu.device.as_str()).collect();
    let of_devices = devices.into_iter().flat_map(|device| shares_of(device, before, after));
    let mut shares: BTreeMap<String, Share> =
        of_devices.map(|share| (share.vgpu.clone(), share)).collect();
    after.vgpus.iter().filter_map(|vgpu| shares.remove(&vgpu.name)).collect()
}

fn shares_of(device: &str, before: &Stats, after: &Stats) -> Vec<Share> {
    let vgpus: Vec<&VgpuReport> = after.vgpus.iter().filter(|vgpu| vgpu.device == device).collect();
    let earlier = |vgpu: &VgpuReport| before.vgpus.iter().find(|other| other.name == vgpu.name);
    let waits = |vgpu: &VgpuReport| vgpu.state == VgpuState::Waiting;
    let used_by = |vgpu: &&VgpuReport| {
        vgpu.used_ns.saturating_sub(earlier(vgpu).map_or(0, |earlier| earlier.used_ns))
    };
    let used: Vec<u64> = vgpus.iter().map(used_by).collect();
    let is_active = |vgpu: &VgpuReport, used: u64| {
        used > 0 || matches!(vgpu.state, VgpuState::Waiting | VgpuState::Running)
    };
    let active: Vec<&VgpuReport> = vgpus
        .iter()
        .zip(&used)
        .filter(|(vgpu, used)| is_active(vgpu, **used))
        .map(|(vgpu, _)| *vgpu)
        .collect();
    let (expected, entitled) = (parts(&active, |_| 1.0), parts(&active, ratio_of));
    let total: u64 = used.iter().sum();
    // Counters are read a little after the clock.
    let wall_ns = after.now_ns.saturating_sub(before.now_ns).max(total);
    let is_this = |report: &&DeviceReport| report.name == device;
    let policy = after.devices.iter().find(is_this).map(|report| policy::by_name(&report.policy));
    let is_fair = policy.is_some_and(|policy| policy.is_ok_and(PolicyId::promises_lag_bound));
    let exchanging = |stats: &Stats| {
        stats.devices.iter().find(is_this).map_or(0, |report| report.memory.copying_ns)
    };
    let exchanged_ns = exchanging(after).saturating_sub(exchanging(before));
    let of = |vgpu: &VgpuReport, parts: &[f64]| {
        let place = active.iter().position(|other| other.name == vgpu.name);
        place.and_then(|place| parts.get(place)).copied().unwrap_or(0.0)
    };
    let of_tenant = |tenant: Option<u32>| -> f64 {
        let all = vgpus.iter().zip(&used).filter(|(vgpu, _)| vgpu.tenant == tenant);
        all.map(|(_, used)| ratio(*used, wall_ns)).sum()
    };
    let share = |(vgpu, &used): (&&VgpuReport, &u64)| {
        let (of_device, entitled) = (ratio(used, wall_ns), of(vgpu, &entitled));
        let measured = ratio(used, total);
        let is_full = ratio(total.saturating_add(exchanged_ns), wall_ns) > SATURATED;
        let had = if is_full { measured } else { of_device };
        // It pays back what it had before, as after a kernel that could not be cut.
        let waited = used == 0 && waits(vgpu) && earlier(vgpu).is_some_and(waits);
        Share {
            vgpu: vgpu.name.clone(),
            weight: vgpu.weight,
            state: vgpu.state,
            is_closing: vgpu.is_closing,
            used_ns: used,
            measured,
            expected: of(vgpu, &expected),
            of_device,
            entitled,
            asks_for_less: is_fair && !waited && had + TOLERANCE < entitled,
            capped: matches!(vgpu.state, VgpuState::Waiting | VgpuState::Running)
                && (reaches(of_device, own_cap_ppm(vgpu))
                    || reaches(of_tenant(vgpu.tenant), vgpu.tenant_cap_ppm)),
        }
    };
    vgpus.iter().zip(&used).map(share).collect()
}

/// Whether somebody had all that a cap leaves it: nine tenths, as a window begins and ends anywhere
/// in the periods that a cap is kept over.
fn reaches(of_device: f64, cap_ppm: Option<u32>) -> bool {
    cap_ppm.is_some_and(|ppm| of_device >= 0.9 * ratio_of(Some(ppm)))
}

/// A cap, in parts of the device.
pub(crate) fn ratio_of(cap_ppm: Option<u32>) -> f64 {
    cap_ppm.map_or(1.0, |ppm| ratio(ppm.into(), PPM.into()))
}

/// The parts of vGPUs that all want as much as `bound` makes of their caps.
fn parts(vgpus: &[&VgpuReport], bound: impl Fn(Option<u32>) -> f64) -> Vec<f64> {
    let demands = vgpus.iter().map(|vgpu| Demand {
        tenant_most: bound(vgpu.tenant_cap_ppm),
        ..demand_of(vgpu, bound(own_cap_ppm(vgpu)))
    });
    divide_device(&demands.collect::<Vec<_>>())
}

/// The most that a vGPU may use by itself, in millionths of its device's time.
pub(crate) fn own_cap_ppm(vgpu: &VgpuReport) -> Option<u32> {
    vgpu.cap_ppm.into_iter().chain(vgpu.cap_part_ppm).min()
}

/// What a vGPU asks of its device if it wants that part of it.
pub(crate) fn demand_of(vgpu: &VgpuReport, wants: f64) -> Demand {
    let VgpuReport { tenant, tenant_weight, tenant_cap_ppm, weight, .. } = *vgpu;
    Demand { tenant, tenant_weight, tenant_most: ratio_of(tenant_cap_ppm), weight, wants }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_api::node::{Closure, CoschedulingReport, MemoryReport};

    fn vgpu(name: &str, weight: u32, used_ns: u64, state: VgpuState) -> VgpuReport {
        VgpuReport {
            name: name.to_owned(),
            owner: 0,
            device: "gpu0".to_owned(),
            tenant: None,
            tenant_weight: 1,
            tenant_cap_ppm: None,
            cap_part_ppm: None,
            weight,
            cap_ppm: None,
            sla_ns: 0,
            attainment: crate::admin::Attainment::default(),
            memory_bytes: 0,
            memory_used_bytes: 0,
            pinned_bytes: 0,
            state,
            is_closing: false,
            sessions: 1,
            programs: Vec::new(),
            processes: Vec::new(),
            used_ns,
            held_ns: 0,
            turns: 0,
            sessions_total: 1,
        }
    }

    fn device(name: &str) -> DeviceReport {
        DeviceReport {
            pool: None,
            in_service: true,
            failure: None,
            name: name.to_owned(),
            product: String::new(),
            backend: "soft".to_owned(),
            clock: "real".to_owned(),
            processors: String::new(),
            policy: "fair".to_owned(),
            memory_bytes: 0,
            memory_used_bytes: 0,
            memory: MemoryReport::default(),
            busy_ns: 0,
            overruns: 0,
            late: 0,
            executions: 0,
        }
    }

    fn stats(vgpus: Vec<VgpuReport>) -> Stats {
        Stats {
            accelerators: Vec::new(),
            pools: Vec::new(),
            now_ns: 0,
            policy: "fair".to_owned(),
            holders: Vec::new(),
            waiting: 0,
            devices: ["gpu0", "gpu1"].map(device).to_vec(),
            vgpus,
            coscheduling: CoschedulingReport::default(),
            gateway: None,
            closure: Closure { charged_ns: 995, busy_ns: 1000 },
            lost_records: 3,
        }
    }

    #[test]
    fn devices_are_divided_each_by_its_own_vgpus() {
        let on = |device: &str, vgpu: VgpuReport| VgpuReport { device: device.to_owned(), ..vgpu };
        let vgpus = |used| {
            vec![
                on("gpu1", vgpu("a", 1, used, VgpuState::Running)),
                on("gpu0", vgpu("b", 1, used, VgpuState::Running)),
                on("gpu1", vgpu("c", 3, 3 * used, VgpuState::Running)),
            ]
        };
        let (before, mut after) = (stats(vgpus(0)), stats(vgpus(100)));
        after.now_ns = 400;
        let shares = shares(&before, &after);
        let parts =
            shares.iter().map(|share| (share.vgpu.as_str(), share.expected, share.measured));
        assert_eq!(
            parts.collect::<Vec<_>>(),
            [("a", 0.25, 0.25), ("b", 1.0, 1.0), ("c", 0.75, 0.75)]
        );
        assert!(shares[1].asks_for_less, "b had a quarter of a device of its own");
    }

    #[test]
    fn shares_count_only_the_window_and_only_the_active() {
        let before = stats(vec![vgpu("a", 1, 100, VgpuState::Idle)]);
        let after = stats(vec![
            vgpu("a", 1, 200, VgpuState::Running),
            vgpu("b", 3, 300, VgpuState::Waiting),
            vgpu("c", 6, 0, VgpuState::Idle),
        ]);
        let shares = shares(&before, &after);
        assert_eq!(shares[0].measured, 0.25);
        assert_eq!(shares[1].expected, 0.75);
        assert_eq!(shares[2].expected, 0.0);
        assert!((after.closure.error() - 0.005).abs() < 1e-12);
    }

    #[test]
    fn tenants_share_before_their_vgpus_do() {
        let of = |name, tenant, tenant_weight, weight| VgpuReport {
            tenant: Some(tenant),
            tenant_weight,
            ..vgpu(name, weight, 1, VgpuState::Running)
        };
        let before = stats(Vec::new());
        let after = stats(vec![of("a", 7, 3, 1), of("b", 7, 3, 2), of("c", 8, 1, 5)]);
        let expected: Vec<f64> = shares(&before, &after).iter().map(|s| s.expected).collect();
        assert_eq!(expected, [0.25, 0.5, 0.25]);
    }

    #[test]
    fn a_tenants_cap_bounds_what_is_due_to_all_of_it() {
        let of = |name, tenant, weight, tenant_cap_ppm| VgpuReport {
            tenant: Some(tenant),
            tenant_cap_ppm,
            ..vgpu(name, weight, 1, VgpuState::Running)
        };
        let vgpus =
            vec![of("a", 7, 1, Some(200_000)), of("b", 7, 3, Some(200_000)), of("c", 8, 1, None)];
        let with = |used| {
            let vgpus = vgpus.iter().cloned();
            vgpus.map(|vgpu| VgpuReport { used_ns: used, ..vgpu }).collect::<Vec<_>>()
        };
        // 20 % of the device together, in a window of a second.
        for (used_ns, capped) in [(100_000_000, true), (50_000_000, false)] {
            let after = Stats { now_ns: 1_000_000_000, ..stats(with(used_ns)) };
            let shares = shares(&stats(Vec::new()), &after);
            let seen: Vec<bool> = shares.iter().map(|share| share.capped).collect();
            assert_eq!(seen, [capped, capped, false], "{used_ns}");
        }
        let shares = shares(&stats(Vec::new()), &stats(vgpus));
        let entitled: Vec<f64> = shares.iter().map(|share| share.entitled).collect();
        for (got, expected) in entitled.iter().zip([0.05, 0.15, 0.8]) {
            assert!((got - expected).abs() < 1e-9, "{entitled:?}");
        }
    }

    #[test]
    fn a_part_of_a_users_cap_bounds_what_is_due() {
        let parted =
            VgpuReport { cap_part_ppm: Some(100_000), ..vgpu("a", 1, 1, VgpuState::Running) };
        let own = VgpuReport { cap_ppm: Some(50_000), ..parted.clone() };
        for (capped, due) in [(parted, 0.1), (own, 0.05)] {
            let other = vgpu("b", 1, 1, VgpuState::Running);
            let shares = shares(&stats(Vec::new()), &stats(vec![capped, other]));
            assert!((shares[0].entitled - due).abs() < 1e-9, "{shares:?}");
            assert!((shares[1].entitled - (1.0 - due)).abs() < 1e-9, "{shares:?}");
        }
    }

    #[test]
    fn a_share_is_a_part_of_the_device_and_a_cap_bounds_what_is_due() {
        let capped = VgpuReport { cap_ppm: Some(250_000), ..vgpu("a", 1, 250, VgpuState::Running) };
        let before = stats(Vec::new());
        let alone = Stats { now_ns: 1000, ..stats(vec![capped.clone()]) };
        let share = &shares(&before, &alone)[0];
        assert_eq!((share.measured, share.of_device, share.entitled), (1.0, 0.25, 0.25));
        assert!(!share.asks_for_less && share.capped);
        // What the cap leaves is the others', who sleep.
        let other = vgpu("b", 1, 300, VgpuState::Idle);
        let both = Stats { now_ns: 1000, ..stats(vec![capped, other]) };
        let share = &shares(&before, &both)[1];
        assert_eq!((share.expected, share.entitled, share.of_device), (0.5, 0.75, 0.3));
        assert!(share.asks_for_less);
        // Both had what was to be had; the rest went into switches.
        let even = |name| vgpu(name, 1, 450, VgpuState::Waiting);
        let full = Stats { now_ns: 1000, ..stats(vec![even("a"), even("b")]) };
        assert!(!shares(&before, &full).iter().any(|share| share.asks_for_less));
        // The same where bringing their memory took most of the time.
        let swapping = |copying_ns| {
            let mut stats = Stats {
                now_ns: 1000,
                ..stats(vec![
                    vgpu("a", 1, 100, VgpuState::Idle),
                    vgpu("b", 1, 100, VgpuState::Waiting),
                ])
            };
            stats.devices.iter_mut().for_each(|device| device.memory.copying_ns = copying_ns);
            stats
        };
        let asks =
            |after| shares(&before, &after).iter().filter(|share| share.asks_for_less).count();
        assert_eq!([asks(swapping(700)), asks(swapping(0))], [0, 2]);
        // Who waits from one end of the window to the other wants all of it.
        let waiting = |now_ns, used_ns| Stats {
            now_ns,
            ..stats(vec![
                vgpu("a", 1, 0, VgpuState::Waiting),
                vgpu("b", 1, used_ns, VgpuState::Running),
            ])
        };
        let asked = shares(&waiting(0, 0), &waiting(1000, 500));
        assert!(!asked[0].asks_for_less, "{asked:?}");
        let mut raced = both;
        raced.devices.iter_mut().for_each(|device| device.policy = "unmanaged".to_owned());
        assert!(!shares(&before, &raced)[1].asks_for_less, "there nothing is due to anybody");
    }
}
