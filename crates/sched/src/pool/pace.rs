//! How long a vGPU's tasks take on each device, as parts of their estimates: a pool's devices may
//! differ in speed, and an estimate is one for all of them.
//!
//! What is learnt is one vGPU's: estimates may be its tenant's word, and nobody else's tasks are
//! judged by that.

use alloc::vec::Vec;

use crate::codec::codec;
use crate::key::DeviceKey;

/// Time per time of the estimate, in units of 2⁻¹⁰.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Pace {
    units: u32,
}

codec!(struct Pace { units });

impl Pace {
    const ONE: Self = Self { units: 1 << 10 };
    /// Devices differ by no more: an estimate that does was wrong.
    const LIMIT: u128 = 16;

    /// What an estimate comes to at this pace, in ns; at least 1 of one that is not 0.
    pub(crate) fn times(self, estimate_ns: u64) -> u64 {
        let ns = (u128::from(estimate_ns) * u128::from(self.units)) >> 10;
        u64::try_from(ns).unwrap_or(u64::MAX).max(u64::from(estimate_ns > 0))
    }

    /// The estimate that comes to so many ns.
    pub(crate) fn divides(self, ns: u64) -> u64 {
        let estimate_ns = (u128::from(ns) << 10) / u128::from(self.units.max(1));
        u64::try_from(estimate_ns).unwrap_or(u64::MAX)
    }

    /// What a task says that was thought to take `estimate_ns` and took `took_ns`.
    fn seen(estimate_ns: u64, took_ns: u64) -> Self {
        let one = u128::from(Self::ONE.units);
        let ratio = u128::from(took_ns) * one / u128::from(estimate_ns.max(1));
        let within = ratio.clamp(one / Self::LIMIT, one * Self::LIMIT);
        Self { units: u32::try_from(within).unwrap_or(Self::ONE.units) }
    }

    /// An eighth of what was seen: tasks differ, and estimates are no better than that.
    fn toward(self, seen: Self) -> Self {
        Self { units: (7 * self.units + seen.units) / 8 }
    }

    /// Devices are taken for equal that differ by less than half: their tasks do as well.
    fn is_beyond(self, least: Self) -> bool {
        2 * self.units >= 3 * least.units
    }
}

/// The paces of one vGPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Paces {
    /// By device; none where no task was done yet.
    known: Vec<Option<Pace>>,
    /// The least of the devices that are up, if they are not taken for equal.
    least: Option<Pace>,
}

codec!(struct Paces { known, least });

impl Paces {
    /// None for a vGPU that was not served yet.
    pub(crate) fn new() -> Self {
        Self { known: Vec::new(), least: None }
    }

    /// The pace of the fastest device that is up.
    pub(crate) fn fastest(&self) -> Pace {
        self.least.unwrap_or(Pace::ONE)
    }

    /// The pace of a device. One that is not known yet counts as the fastest, so that it is tried.
    pub(crate) fn of(&self, device: DeviceKey) -> Pace {
        let known = || self.known.get(device.index()).copied().flatten();
        self.least.map_or(Pace::ONE, |least| known().unwrap_or(least))
    }

    /// A task that was thought to take `estimate_ns` took `took_ns` on a device.
    pub(crate) fn learn(&mut self, device: DeviceKey, estimate_ns: u64, took_ns: u64) {
        if self.known.len() <= device.index() {
            self.known.resize(device.index() + 1, None);
        }
        let known = &mut self.known[device.index()];
        *known = Some(known.unwrap_or(Pace::ONE).toward(Pace::seen(estimate_ns, took_ns)));
    }

    /// Finds the least pace of the devices that are up.
    pub(crate) fn look(&mut self, is_up: impl Fn(u32) -> bool) {
        let up = (0u32..).zip(&self.known).filter(|(key, _)| is_up(*key));
        let up = up.filter_map(|(_, pace)| *pace);
        let ends = up.fold(None, |ends: Option<(Pace, Pace)>, pace| {
            let (least, most) = ends.unwrap_or((pace, pace));
            Some((least.min(pace), most.max(pace)))
        });
        self.least = ends.filter(|(least, most)| most.is_beyond(*least)).map(|(least, _)| least);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICES: [DeviceKey; 3] = [DeviceKey(0), DeviceKey(1), DeviceKey(2)];

    fn taught(times: [u64; 2], rounds: u32) -> Paces {
        let mut paces = Paces::new();
        for _ in 0..rounds {
            for (device, took_ns) in DEVICES.into_iter().zip(times) {
                paces.learn(device, 1_000, took_ns);
                paces.look(|_| true);
            }
        }
        paces
    }

    #[test]
    fn a_device_is_as_slow_as_tasks_that_were_done_there() {
        let mut paces = taught([1_000, 4_000], 40);
        let on = |paces: &Paces| DEVICES.map(|key| paces.of(key).times(500).div_ceil(100));
        assert_eq!(on(&paces), [5, 20, 5], "the third is tried");
        assert_eq!(paces.of(DEVICES[1]).divides(2_000).div_ceil(100), 6);
        // Of one device that is up there is nothing to tell apart.
        paces.look(|key| key == 1);
        assert_eq!(on(&paces), [5, 5, 5]);
    }

    #[test]
    fn devices_whose_tasks_differ_by_less_than_half_are_equal() {
        for (times, is_equal) in [([1_000, 1_400], true), ([1_000, 1_600], false)] {
            let paces = taught(times, 100);
            assert_eq!(paces.of(DEVICES[1]) == Pace::ONE, is_equal, "{paces:?}");
        }
        // One odd task does not make a device slow.
        let mut paces = taught([1_000, 1_000], 100);
        paces.learn(DEVICES[1], 1_000, 4_000);
        paces.look(|_| true);
        assert_eq!(paces.of(DEVICES[1]), Pace::ONE);
    }

    #[test]
    fn no_word_moves_a_pace_beyond_its_limit() {
        let most = u32::try_from(Pace::LIMIT).unwrap() << 10;
        for (estimate_ns, took_ns) in [(1, u64::MAX), (u64::MAX, 1), (u64::MAX, u64::MAX), (1, 0)] {
            let mut paces = Paces::new();
            (0..200).for_each(|_| paces.learn(DEVICES[0], estimate_ns, took_ns));
            let pace = paces.known[0].unwrap();
            assert!((1..=most).contains(&pace.units), "{pace:?}");
            assert!(pace.times(u64::MAX) > 0 && pace.divides(u64::MAX) > 0);
        }
        assert_eq!(Pace::ONE.times(u64::MAX), u64::MAX);
    }
}
