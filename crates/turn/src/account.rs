//! What device time a turn is charged when not every request is timed. Pure: no clock, no device.
//!
//! Timing every request costs more than short requests take. So the first requests of a turn are
//! timed singly, the others are charged what their kernel is predicted to take, and the turn as a
//! whole is settled with the exact time at its end: the charges of a turn sum up to its measured
//! time. A settlement also corrects the predictions of the kernels that were not timed.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// Requests that are timed singly at the start of a turn (FairGV's number).
pub const TIMED_PER_TURN: u32 = 5;
/// Kernels that are remembered; when more come, those not seen for longest are forgotten.
pub const MAX_KERNELS: usize = 4096;

/// Requests that a mean is taken over: older ones fade.
const WINDOW: u64 = 64;
/// Timed requests in a row that stray from the mean before it is given up: one may be an accident.
const STRAYS: u64 = 2;

/// What requests are predicted by: the kernel and what scales its time (its launch shape, say).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestKey(pub u64);

/// Whether a request of a turn must be timed singly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Timing {
    /// Measure it and report it with [`Account::timed`].
    Timed,
    /// Do not; its charge is this many ns for now.
    Predicted(u64),
}

#[derive(Debug, Clone, Copy)]
struct Known {
    /// In 1/16 ns, so that slow drifts are not rounded away.
    mean_16ths: u64,
    /// Requests in the mean, up to [`WINDOW`].
    weight: u64,
    /// Timed requests in a row that were far from the mean, and their sum.
    strays: u64,
    strays_16ths: u64,
    last_use: u64,
}

impl Known {
    /// Takes `count` requests into the mean that took `each_16ths` on average.
    fn take_in(&mut self, each_16ths: u64, count: u64) {
        let (old, new) = (u128::from(self.weight), u128::from(count));
        let sum = u128::from(self.mean_16ths) * old + u128::from(each_16ths) * new;
        self.mean_16ths = u64::try_from(sum / (old + new).max(1)).unwrap_or(u64::MAX);
        self.weight = self.weight.saturating_add(count).min(WINDOW);
    }

    /// A timed request; several in a row that are more than a quarter off mean that the kernel
    /// changed.
    fn time(&mut self, took_16ths: u64) {
        if self.mean_16ths.abs_diff(took_16ths) <= self.mean_16ths / 4 {
            self.strays = 0;
            self.strays_16ths = 0;
            return self.take_in(took_16ths, 1);
        }
        self.strays += 1;
        self.strays_16ths = self.strays_16ths.saturating_add(took_16ths);
        if self.strays == STRAYS {
            self.mean_16ths = self.strays_16ths / STRAYS;
            self.weight = STRAYS;
            self.strays = 0;
            self.strays_16ths = 0;
        }
    }
}

/// Predicts requests, charges them and settles turns.
#[derive(Debug, Default)]
pub struct Account {
    kernels: BTreeMap<RequestKey, Known>,
    uses: u64,
    turn: TurnBill,
    charged_ns: i128,
}

#[derive(Debug, Default)]
struct TurnBill {
    requests: u32,
    timed_ns: u64,
    predicted_ns: u64,
    /// How often each kernel was predicted.
    predicted: BTreeMap<RequestKey, u64>,
}

/// What the end of a turn changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settlement {
    /// What the turn was charged before it was settled, in ns.
    pub charged_ns: u64,
    /// What it took, in ns: its charge from now on.
    pub exact_ns: u64,
}

impl Settlement {
    /// What must be added to the charges so that they sum up, in ns.
    #[must_use]
    pub fn correction_ns(&self) -> i128 {
        i128::from(self.exact_ns) - i128::from(self.charged_ns)
    }
}

impl Account {
    /// An account that knows no kernel.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// What a request is expected to take, in ns; `otherwise` for an unknown kernel.
    #[must_use]
    pub fn predict(&self, key: RequestKey, otherwise: u64) -> u64 {
        self.kernels.get(&key).map_or(otherwise, |known| known.mean_16ths / 16)
    }

    /// Counts the next request of the turn and says how to charge it. The first requests of a turn
    /// are timed, and so is one of an unknown kernel.
    pub fn next_request(&mut self, key: RequestKey) -> Timing {
        self.turn.requests = self.turn.requests.saturating_add(1);
        let Some(known) = self.kernels.get(&key) else {
            return Timing::Timed;
        };
        if self.turn.requests <= TIMED_PER_TURN {
            return Timing::Timed;
        }
        let predicted_ns = known.mean_16ths / 16;
        *self.turn.predicted.entry(key).or_insert(0) += 1;
        self.turn.predicted_ns = self.turn.predicted_ns.saturating_add(predicted_ns);
        self.charged_ns += i128::from(predicted_ns);
        Timing::Predicted(predicted_ns)
    }

    /// Charges a timed request and learns from it.
    pub fn timed(&mut self, key: RequestKey, took_ns: u64) {
        self.turn.timed_ns = self.turn.timed_ns.saturating_add(took_ns);
        self.charged_ns += i128::from(took_ns);
        let took_16ths = took_ns.saturating_mul(16);
        self.known(key, took_16ths).time(took_16ths);
    }

    /// Charges a part of an operation, that the device timed: it says nothing of the whole.
    pub fn timed_part(&mut self, took_ns: u64) {
        self.turn.timed_ns = self.turn.timed_ns.saturating_add(took_ns);
        self.charged_ns += i128::from(took_ns);
    }

    /// Ends the turn, which took `exact_ns` of device time in all, and starts the next one.
    pub fn settle(&mut self, exact_ns: u64) -> Settlement {
        let turn = core::mem::take(&mut self.turn);
        let charged_ns = turn.timed_ns.saturating_add(turn.predicted_ns);
        let settlement = Settlement { charged_ns, exact_ns };
        self.charged_ns += settlement.correction_ns();
        // What was not timed singly took the rest; its kernels share the error in proportion. At
        // most a factor of two at once: the error may be another kernel's.
        let predicted_ns = turn.predicted_ns.max(1);
        let rest_ns = exact_ns
            .saturating_sub(turn.timed_ns)
            .clamp(predicted_ns / 2, predicted_ns.saturating_mul(2));
        for (key, count) in turn.predicted {
            let Some(known) = self.kernels.get_mut(&key) else { continue };
            let scaled =
                u128::from(known.mean_16ths) * u128::from(rest_ns) / u128::from(predicted_ns);
            known.take_in(u64::try_from(scaled).unwrap_or(u64::MAX), count);
        }
        settlement
    }

    /// Device time charged so far, in ns; after a settlement exactly the sum of what the turns
    /// took.
    #[must_use]
    pub fn charged_ns(&self) -> i128 {
        self.charged_ns
    }

    /// What is known of a kernel; that it takes `first_16ths` if it is new.
    fn known(&mut self, key: RequestKey, first_16ths: u64) -> &mut Known {
        if self.kernels.len() >= MAX_KERNELS && !self.kernels.contains_key(&key) {
            self.forget();
        }
        self.uses += 1;
        let new =
            Known { mean_16ths: first_16ths, weight: 0, strays: 0, strays_16ths: 0, last_use: 0 };
        let known = self.kernels.entry(key).or_insert(new);
        known.last_use = self.uses;
        known
    }

    /// Forgets the half of the kernels that was not seen for longest.
    fn forget(&mut self) {
        let mut uses: Vec<u64> = self.kernels.values().map(|known| known.last_use).collect();
        let middle = uses.len() / 2;
        let (_, &mut median, _) = uses.select_nth_unstable(middle);
        self.kernels.retain(|_, known| known.last_use >= median);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const A: RequestKey = RequestKey(1);
    const B: RequestKey = RequestKey(2);

    struct Played {
        settlement: Settlement,
        /// The largest error while the turn ran, in ns.
        worst: i128,
        /// What the predictions were off by, without regard to sign.
        off: i128,
    }

    fn turn(account: &mut Account, requests: &[(RequestKey, u64)]) -> Played {
        let (mut truth, start, mut worst, mut off) = (0, account.charged_ns(), 0, 0);
        for &(key, took_ns) in requests {
            match account.next_request(key) {
                Timing::Timed => account.timed(key, took_ns),
                Timing::Predicted(ns) => off += i128::from(ns.abs_diff(took_ns)),
            }
            truth += took_ns;
            worst = worst.max((account.charged_ns() - start - i128::from(truth)).abs());
        }
        Played { settlement: account.settle(truth), worst, off }
    }

    #[test]
    fn the_first_requests_and_unknown_kernels_are_timed() {
        let mut account = Account::new();
        let timed = |account: &mut Account, key, took| {
            let timing = account.next_request(key);
            if timing == Timing::Timed {
                account.timed(key, took);
            }
            timing == Timing::Timed
        };
        let first: Vec<bool> = (0..8).map(|_| timed(&mut account, A, 100)).collect();
        assert_eq!(first, [true, true, true, true, true, false, false, false]);
        assert!(timed(&mut account, B, 900));
        assert!(!timed(&mut account, B, 900));
        assert_eq!(account.settle(5 * 100 + 3 * 100 + 2 * 900).correction_ns(), 0);
        assert!(timed(&mut account, A, 100));
    }

    #[test]
    fn steady_kernels_are_charged_exactly() {
        let mut account = Account::new();
        for _ in 0..20 {
            let played = turn(&mut account, &[(A, 21_000); 200]);
            assert_eq!((played.settlement.correction_ns(), played.worst), (0, 0));
        }
    }

    #[test]
    fn a_kernel_that_changes_its_pace_is_learnt_from_settlements() {
        let mut account = Account::new();
        turn(&mut account, &[(A, 50_000); 100]);
        // The timed ones at the start of each turn still show the old pace: only the settlement
        // tells.
        let mut requests = vec![(A, 50_000); TIMED_PER_TURN as usize];
        requests.extend([(B, 80_000); 5]);
        requests.extend([(B, 20_000); 200]);
        let errors: Vec<i128> = (0..12)
            .map(|_| turn(&mut account, &requests).settlement)
            .map(|settlement| {
                settlement.correction_ns().abs() * 100 / i128::from(settlement.exact_ns)
            })
            .collect();
        assert!(errors[0] > 10, "{errors:?}");
        assert!(errors[11] <= 1, "{errors:?}");
    }

    #[test]
    fn memory_is_bounded() {
        let mut account = Account::new();
        for key in 0..3 * MAX_KERNELS as u64 {
            account.next_request(RequestKey(key));
            account.timed(RequestKey(key), 1_000);
        }
        assert!(account.kernels.len() <= MAX_KERNELS);
        assert_eq!(account.predict(RequestKey(3 * MAX_KERNELS as u64 - 1), 0), 1_000);
        assert_eq!(account.predict(RequestKey(0), 7), 7);
    }

    proptest! {
        /// Whatever the requests take, settled charges are the truth, and in between the error is
        /// no larger than what the predictions were off by.
        #[test]
        fn charges_sum_up_at_each_settlement(
            turns in prop::collection::vec(
                prop::collection::vec((0..6_u64, 1_000..2_000_000_u64), 0..60), 1..12),
        ) {
            let mut account = Account::new();
            let mut truth = 0_i128;
            for requests in turns {
                let requests: Vec<_> = requests.into_iter().map(|(k, t)| (RequestKey(k), t)).collect();
                let played = turn(&mut account, &requests);
                truth += i128::from(played.settlement.exact_ns);
                prop_assert_eq!(account.charged_ns(), truth);
                prop_assert!(played.worst <= played.off, "{} > {}", played.worst, played.off);
            }
        }

        /// Requests that vary around a mean are charged within 1 % over a run, before any
        /// settlement is counted in.
        #[test]
        fn varying_requests_are_predicted_within_one_percent(
            base in 10_000..1_000_000_u64,
            noise in prop::collection::vec(-50..=50_i64, 400),
        ) {
            let mut account = Account::new();
            let (mut error, mut truth) = (0_i128, 0_i128);
            for _ in 0..30 {
                let requests: Vec<_> = noise
                    .iter()
                    .map(|permille| (A, base.saturating_add_signed(base.cast_signed() / 1000 * permille)))
                    .collect();
                let settlement = turn(&mut account, &requests).settlement;
                error += settlement.correction_ns();
                truth += i128::from(settlement.exact_ns);
            }
            prop_assert!(error.abs() * 100 <= truth, "{} of {}", error, truth);
        }
    }
}
