//! What became of the victim, and what it lost by that.

use weft_api::figures::median_error;

use super::super::{median, most};

/// What became of the victim.
#[derive(Clone, Copy)]
pub(super) struct Outcome {
    /// Launches that it completed a second.
    pub(super) rate: f64,
    /// The part of the time for which its kernels were on the device by their own stamps.
    pub(super) on_device: f64,
    pub(super) stall_ms: f64,
    /// Device time that was busy per wall time.
    pub(super) utilization: f64,
    /// Wall time that was charged to nobody per wall time.
    pub(super) unpaid: f64,
    /// Device time that was charged to the victim per wall time.
    pub(super) charged: f64,
    /// What moved its tag per wall time: the same, and what it held the device for without using
    /// it.
    pub(super) held: f64,
    /// The same of everybody else whose vGPU was there at the end.
    pub(super) held_by_others: f64,
    /// Wall time that was charged to nobody, by turns, in µs.
    pub(super) switch_us: f64,
}

impl Outcome {
    /// What is the victim's, max-min, in parts of what it had beside an honest competitor
    /// (`fair`): at least that, and of an attacker that has less than its half what is left of the
    /// time that the device was busy then.
    fn due(&self, fair: &Self) -> f64 {
        let attacker = (self.utilization - self.charged).max(0.0);
        let left = (fair.utilization - attacker) / fair.charged;
        // Nothing was charged in a window in which nothing ran: no attack tells anything then.
        if left.is_finite() { left.max(1.0) } else { 1.0 }
    }

    /// What it lost of the work of its share; below 0 if it did more.
    pub(super) fn loss(&self, fair: &Self) -> f64 {
        1.0 - self.rate / (fair.rate * self.due(fair))
    }

    /// What of its loss it had beside an honest competitor: its own half.
    pub(super) fn own_loss(&self, fair: &Self) -> f64 {
        (1.0 - self.rate / fair.rate).max(0.0) / self.due(fair)
    }

    /// What of its loss is of the other half, which the attacker does not use: where it holds that
    /// half all the same, turns are fair and the device idles in them. Below 0 if the victim did
    /// more than its share.
    pub(super) fn idle_loss(&self, fair: &Self) -> f64 {
        self.loss(fair) - self.own_loss(fair)
    }

    /// What it lost of the device's time. What it lost beyond that is no turn that somebody else
    /// had, but a slower processor.
    pub(super) fn time_loss(&self, fair: &Self) -> f64 {
        1.0 - self.on_device / (fair.on_device * self.due(fair))
    }

    /// What it lost of what it is charged. Beside some attackers a launch costs less than beside an
    /// honest competitor, with whom the victim shares caches and processors: that is no gain here.
    pub(super) fn charge_loss(&self, fair: &Self) -> f64 {
        1.0 - self.charged / (fair.charged * self.due(fair))
    }
}

/// A figure beside an honest competitor and beside the attacker.
pub(super) struct Sides {
    pub(super) fair: f64,
    pub(super) robbed: f64,
}

/// What became of it beside an honest competitor and, in the same round, beside the attacker or
/// what stands in its place.
pub(super) struct Rounds(Vec<(Outcome, Outcome)>);

impl Rounds {
    /// Of pairs, the honest competitor's first.
    pub(super) fn new(rounds: impl IntoIterator<Item = (Outcome, Outcome)>) -> Self {
        Self(rounds.into_iter().collect())
    }

    pub(super) fn each(&self, of: impl Fn(&Outcome, &Outcome) -> f64) -> Vec<f64> {
        self.0.iter().map(|(fair, robbed)| of(fair, robbed)).collect()
    }

    /// What it lost by this measure, which takes what was, and what was beside an honest
    /// competitor.
    pub(super) fn loss(&self, of: impl Fn(&Outcome, &Outcome) -> f64) -> Loss {
        Loss(self.each(|fair, robbed| of(robbed, fair)))
    }

    /// What it completed, over what it completed beside an honest competitor.
    pub(super) fn rate(&self) -> f64 {
        median(&self.each(|fair, robbed| robbed.rate / fair.rate))
    }

    fn sides(&self, of: impl Fn(&Outcome) -> f64, sum_up: impl Fn(&[f64]) -> f64) -> Sides {
        Sides {
            fair: sum_up(&self.each(|fair, _| of(fair))),
            robbed: sum_up(&self.each(|_, robbed| of(robbed))),
        }
    }

    pub(super) fn medians(&self, of: impl Fn(&Outcome) -> f64) -> Sides {
        self.sides(of, median)
    }

    pub(super) fn most(&self, of: impl Fn(&Outcome) -> f64) -> Sides {
        self.sides(of, most)
    }
}

/// A loss in each round.
pub(super) struct Loss(Vec<f64>);

impl Loss {
    pub(super) fn rounds(&self) -> &[f64] {
        &self.0
    }

    pub(super) fn median(&self) -> f64 {
        median(&self.0)
    }

    /// The median's standard error by the distance of the rounds' quartiles, which one odd round
    /// does not move. Of less than four rounds nothing is known.
    pub(super) fn error(&self) -> Option<f64> {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let half = sorted.len() / 2;
        let (low, high) = (sorted.get(..half)?, sorted.get(sorted.len() - half..)?);
        (half >= 2).then(|| median_error(median(low), median(high), sorted.len()))
    }
}

/// What the largest of medians with these standard errors is in half of all cases, where all of
/// them are of noise and of nothing else. `None` of none.
pub(super) fn largest_by_noise(errors: &[f64]) -> Option<f64> {
    /// Each makes the interval that it is in half as long.
    const STEPS: u32 = 40;
    /// No median is so many standard errors off.
    const SURE: f64 = 10.0;

    let (mut low, mut high) = (0.0, SURE * errors.iter().copied().reduce(f64::max)?);
    for _ in 0..STEPS {
        let middle = f64::midpoint(low, high);
        let all_below: f64 = errors.iter().map(|error| part_below(middle / error)).product();
        if all_below < 0.5 {
            low = middle;
        } else {
            high = middle;
        }
    }
    Some(high)
}

/// The part of normal noise that is less than so many standard deviations, to a thousandth.
fn part_below(deviations: f64) -> f64 {
    use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};

    let bent = deviations + 0.044_715 * deviations.powi(3);
    f64::midpoint(1.0, (FRAC_2_SQRT_PI * FRAC_1_SQRT_2 * bent).tanh())
}

#[cfg(test)]
impl Outcome {
    /// Of a victim that has this part of the device, and does as much of its work.
    pub(super) fn seen(victim: f64, utilization: f64) -> Self {
        Self {
            rate: 500.0 * victim,
            on_device: victim,
            stall_ms: 6.0,
            utilization,
            unpaid: 0.0,
            charged: victim,
            held: victim,
            held_by_others: utilization - victim,
            switch_us: 30.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What becomes of a victim.
    fn seen(victim: f64, utilization: f64) -> Outcome {
        Outcome::seen(victim, utilization)
    }

    /// Short kernels between pauses idle a third of the device: more than half is left, and less
    /// than is due.
    #[test]
    fn who_idles_the_device_robs_the_victim_though_it_has_more_than_half() {
        let fair = seen(0.495, 0.99);
        let (idled, modest) = (seen(0.645, 0.65), seen(0.89, 0.99));
        for loss in [idled.loss(&fair), idled.time_loss(&fair), idled.charge_loss(&fair)] {
            assert!(loss > 0.3, "{loss}");
        }
        // The control: it has what it asks for and idles nothing.
        assert!(modest.loss(&fair).abs() < 0.01, "{}", modest.loss(&fair));
        assert!(seen(0.3, 0.99).loss(&fair) > 0.39, "an attacker that has more than half");
    }

    #[test]
    fn a_loss_is_of_the_victims_half_and_of_what_idles() {
        let fair = seen(0.48, 0.96);
        let split = |robbed: Outcome| {
            let (own, idle) = (robbed.own_loss(&fair), robbed.idle_loss(&fair));
            assert!((own + idle - robbed.loss(&fair)).abs() < 1e-9, "{own} and {idle}");
            (own, idle)
        };
        // The attacker uses a third and holds a half: an eighth of the victim's half goes, too.
        let (own, idle) = split(seen(0.42, 0.74));
        assert!((own - 0.0937).abs() < 0.001 && (idle - 0.25).abs() < 0.001, "{own} and {idle}");
        // It has its half, and what idles is all that it loses.
        let (own, idle) = split(seen(0.48, 0.74));
        assert!(own == 0.0 && (idle - 0.314).abs() < 0.001, "{own} and {idle}");
        // Who uses more than its half idles nothing of the victim's.
        let (own, idle) = split(seen(0.36, 0.96));
        assert!((own - 0.25).abs() < 1e-9 && idle.abs() < 1e-9, "{own} and {idle}");
    }

    /// As where caches are not shared: as much is charged, and more is done for it.
    #[test]
    fn a_launch_that_costs_less_is_no_gain_of_what_is_charged() {
        let fair = seen(0.48, 0.96);
        let cheaper = Outcome { rate: 1.1 * fair.rate, ..fair };
        assert!((cheaper.loss(&fair) + 0.1).abs() < 1e-9 && cheaper.charge_loss(&fair) == 0.0);
    }

    #[test]
    fn rounds_say_by_how_much_their_median_may_be_off() {
        let error = |rounds: &[f64]| Loss(rounds.to_vec()).error();
        assert_eq!(error(&[0.1]), None, "the paced device's only one");
        assert_eq!(error(&[0.1, 0.2, 0.3]), None);
        assert_eq!(error(&[0.25; 8]), Some(0.0));
        // Quartiles as normal noise of a hundredth has them.
        let normal = [0.014, -0.014, 0.0085, -0.0085, 0.0047, -0.0047, 0.0015, -0.0015];
        let usual = error(&normal).unwrap();
        assert!((0.004..0.005).contains(&usual), "{usual}");
        let odd = [0.53, -0.014, 0.0085, -0.0085, 0.0047, -0.0047, 0.0015, -0.0015];
        assert_eq!(error(&odd), Some(usual), "one round stood still");
        // The control: what differs more is known less well.
        let twice = error(&normal.map(|loss| 2.0 * loss)).unwrap();
        assert!((twice / usual - 2.0).abs() < 1e-9, "{twice}");
    }

    #[test]
    fn the_largest_of_many_medians_is_above_nought_by_noise() {
        assert_eq!(largest_by_noise(&[]), None);
        let one = largest_by_noise(&[0.02]).unwrap();
        assert!(one.abs() < 1e-6, "one is as often below: {one}");
        // Of fourteen, all are below 1.66 deviations in half of all cases.
        let many = largest_by_noise(&[0.02; 14]).unwrap();
        assert!((many / 0.02 - 1.66).abs() < 0.01, "{many}");
        let uneven = largest_by_noise(&[0.02, 0.001, 0.001]).unwrap();
        assert!(uneven < many / 4.0, "the small ones hardly count: {uneven}");
        assert_eq!(largest_by_noise(&[0.0, 0.0]), Some(0.0));
        assert!((part_below(1.0) - 0.8413).abs() < 0.001 && part_below(f64::INFINITY) == 1.0);
    }
}
