//! What a tenant's turns that end early cost the device.

use crate::codec::codec;

/// Of a tenant, as its turns that it gives up early while others wait keep the device from being
/// used. They pay for that time. A turn in which more of it goes unused than used counts here with
/// what it is more: beyond one part in [`Waste::PART`] of all time that costs [`Waste::PRICE`]
/// times as much. So who does nothing but take turns and give them up cannot idle the device for
/// its whole share, and a program that waits for each of its results pays no more than the time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Waste {
    /// What time has not made up for yet, in ns.
    ns: u64,
    at_ns: u64,
}

impl Waste {
    const PART: u64 = 128;
    const PRICE: u64 = 64;
    /// What is cheap in a row, in ns.
    const DEPTH_NS: u64 = 10_000_000;

    /// What another `ns` cost beyond themselves, in ns.
    pub(crate) fn surcharge_ns(&mut self, now_ns: u64, ns: u64) -> u64 {
        let made_up_ns = self.made_up_ns(now_ns);
        // What is too little to count stays for the next look.
        self.at_ns = self.at_ns.saturating_add(made_up_ns.saturating_mul(Self::PART));
        self.ns = self.ns.saturating_sub(made_up_ns);
        if self.ns.saturating_add(ns) > Self::DEPTH_NS {
            return ns.saturating_mul(Self::PRICE - 1);
        }
        self.ns += ns;
        0
    }

    /// Whether so much of it is used up that a turn is likely to be given up early, too.
    pub(crate) fn is_high(&self, now_ns: u64) -> bool {
        self.ns.saturating_sub(self.made_up_ns(now_ns)) > Self::DEPTH_NS / 2
    }

    /// What time has made up for since the last look, in ns.
    fn made_up_ns(&self, now_ns: u64) -> u64 {
        now_ns.saturating_sub(self.at_ns) / Self::PART
    }
}

codec!(struct Waste { ns, at_ns });

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_little_is_cheap_and_more_is_dear() {
        let (mut waste, mut cheap_ns, mut dear) = (Waste::default(), 0, 0);
        let (second, step, each) = (1_000_000_000, 200_000, 150_000);
        for now_ns in (0..second).step_by(step) {
            match waste.surcharge_ns(now_ns, each) {
                0 => cheap_ns += each,
                ns => {
                    assert_eq!(ns, (Waste::PRICE - 1) * each);
                    dear += 1;
                }
            }
        }
        assert!(cheap_ns <= second / Waste::PART + Waste::DEPTH_NS, "{cheap_ns}");
        assert!(cheap_ns >= second / Waste::PART, "{cheap_ns}");
        assert!(dear > 0);
    }

    #[test]
    fn it_is_high_while_it_is_most_of_what_is_cheap_and_time_makes_up_for_it() {
        let mut waste = Waste::default();
        assert!(!waste.is_high(0));
        waste.surcharge_ns(0, Waste::DEPTH_NS / 2);
        assert!(!waste.is_high(0));
        waste.surcharge_ns(0, 1_000);
        assert!(waste.is_high(0) && waste.is_high(999 * Waste::PART));
        assert!(!waste.is_high(1_000 * Waste::PART));
    }
}
