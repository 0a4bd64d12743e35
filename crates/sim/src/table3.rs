//! The twelve programs of FairGV's Table 3, and others described the same way.
//!
//! The table gives averages: a kernel's size and the calls in 10 ms. From them follows a loop of
//! one kernel launch with its share of the other calls and of the processor time. Where the table
//! does not fit 10 ms (SRD1, HG and NW: size times asynchronous calls exceed it), only so many of
//! the calls launch kernels as the device can execute; the others carry no work for the device.

use serde::{Deserialize, Serialize};

use crate::kernel::{Kernel, US};
use crate::program::{Behaviour, Step, View};
use crate::random::Random;

/// A program as a profile describes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Its name.
    pub name: String,
    /// Average device time of a kernel, in µs.
    pub kernel_us: f64,
    /// Asynchronous calls in 10 ms.
    pub async_per_10ms: f64,
    /// Synchronous calls in 10 ms.
    pub sync_per_10ms: f64,
}

/// The profiles of Table 3 in its order.
const TABLE: [(&str, f64, f64, f64); 12] = [
    ("CFD", 198.0, 49.761, 87.130),
    ("HW", 10_201.0, 0.794, 11.233),
    ("HS", 133.0, 59.520, 0.014),
    // The table rounds to 0.002; one launch in its run time of 3.4 s is 0.00294.
    ("LMD", 1_908_357.0, 0.002_94, 0.061),
    ("NW", 11_032.0, 2.666, 0.076),
    ("PF", 592.0, 0.027, 0.078),
    ("SRD1", 46.0, 247.525, 643.589),
    ("BS", 377.0, 26.318, 26.355),
    ("CS", 391.0, 19.223, 19.281),
    ("HG", 431.0, 39.561, 39.588),
    ("MM", 207.0, 44.241, 0.033),
    ("SCAN", 171.0, 54.705, 54.757),
];

/// What the device can be busy of 10 ms when the program runs alone, in µs.
const BUSY_MAX_US: f64 = 9_850.0;
const PERIOD_US: f64 = 10_000.0;

impl Profile {
    /// All programs of Table 3.
    pub fn table3() -> Vec<Self> {
        let profile = |(name, kernel_us, async_per_10ms, sync_per_10ms): (&str, f64, f64, f64)| {
            Self { name: name.to_owned(), kernel_us, async_per_10ms, sync_per_10ms }
        };
        TABLE.into_iter().map(profile).collect()
    }

    /// One program of Table 3.
    pub fn named(name: &str) -> Option<Self> {
        Self::table3().into_iter().find(|profile| profile.name == name)
    }

    /// More than 10 synchronous calls in 10 ms (FairGV §3.2.3).
    pub fn is_interactive(&self) -> bool {
        self.sync_per_10ms > 10.0
    }

    /// Kernel launches in 10 ms.
    fn launches(&self) -> f64 {
        self.async_per_10ms.min(BUSY_MAX_US / self.kernel_us)
    }

    /// The program. Its kernels vary by 2 % and its processor times by 20 %, differently for each
    /// seed: programs in lock step with a scheduler's slices show what no real ones do.
    pub fn program(&self, seed: u64) -> Loop {
        let launches = self.launches();
        let syncs = self.sync_per_10ms / launches;
        let period_us = PERIOD_US / launches;
        // A program that rarely waits works on the processor while the device executes.
        let overlaps = syncs < 0.5 && launches * self.kernel_us > 0.75 * PERIOD_US;
        let host_us = if overlaps { 2.0 } else { (period_us - self.kernel_us).max(1.0) };
        Loop {
            kernel: Kernel::new(0, ns(self.kernel_us)),
            host_ns: ns(host_us),
            random: Random::new(seed),
            calls: Rate::per_launch((self.async_per_10ms - launches) / launches),
            syncs: Rate::per_launch(syncs),
            todo: Todo::default(),
        }
    }
}

/// Microseconds as whole nanoseconds.
fn ns(us: f64) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a program's times are a few seconds"
    )]
    let ns = (us.max(0.0) * 1e3).round() as u64;
    ns
}

/// How often something is due per launch, spread evenly: millionths.
#[derive(Clone, Copy, Debug, Default)]
struct Rate {
    millionths: u64,
    credit: u64,
}

impl Rate {
    fn per_launch(rate: f64) -> Self {
        Self { millionths: ns(rate * 1e3), credit: 0 }
    }

    /// How many are due with this launch.
    fn due(&mut self) -> u64 {
        self.credit += self.millionths;
        let due = self.credit / 1_000_000;
        self.credit %= 1_000_000;
        due
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Todo {
    calls: u64,
    sync: bool,
    queries: u64,
    host: bool,
}

/// A loop of a launch, the calls around it, a wait for it if one is due, and processor time.
#[derive(Clone, Debug)]
pub struct Loop {
    kernel: Kernel,
    host_ns: u64,
    random: Random,
    calls: Rate,
    syncs: Rate,
    todo: Todo,
}

impl Loop {
    /// Device time of one launch, in ns.
    pub fn kernel_ns(&self) -> u64 {
        self.kernel.ns
    }

    /// A loop that launches a kernel and waits for it each time, or only every 1,000 times.
    pub fn simple(kernel_us: u64, waits: bool) -> Self {
        Self {
            kernel: Kernel::new(0, kernel_us * US),
            host_ns: 1_000,
            random: Random::new(kernel_us),
            calls: Rate::default(),
            syncs: Rate::per_launch(if waits { 1.0 } else { 0.001 }),
            todo: Todo::default(),
        }
    }
}

impl Behaviour for Loop {
    fn next(&mut self, _view: &View) -> Step {
        let todo = &mut self.todo;
        if todo.calls > 0 {
            todo.calls -= 1;
            return Step::Call;
        }
        if std::mem::take(&mut todo.sync) {
            return Step::Sync;
        }
        if todo.queries > 0 {
            todo.queries -= 1;
            return Step::Query;
        }
        if std::mem::take(&mut todo.host) {
            return Step::Compute(self.random.jitter(self.host_ns, 200));
        }
        let syncs = self.syncs.due();
        self.todo = Todo {
            calls: self.calls.due(),
            sync: syncs > 0,
            queries: syncs.saturating_sub(1),
            host: true,
        };
        Step::Launch(Kernel { ns: self.random.jitter(self.kernel.ns, 20), ..self.kernel })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_tells_interactive_programs_as_the_paper_does() {
        let interactive: Vec<String> = Profile::table3()
            .into_iter()
            .filter(Profile::is_interactive)
            .map(|profile| profile.name)
            .collect();
        assert_eq!(interactive, ["CFD", "HW", "SRD1", "BS", "CS", "HG", "SCAN"]);
    }

    #[test]
    fn a_loop_makes_the_calls_of_the_table() {
        let profile = Profile::named("SRD1").unwrap();
        let mut program = profile.program(1);
        let (mut launches, mut syncs) = (0.0, 0.0);
        for _ in 0..100_000 {
            match program.next(&View { now_ns: 0, finished: 0, executed_ns: 0 }) {
                Step::Launch(_) => launches += 1.0,
                Step::Sync | Step::Query => syncs += 1.0,
                Step::Compute(_) | Step::Call | Step::Sleep(_) | Step::Die(_) | Step::End => {}
            }
        }
        let expected: f64 = profile.sync_per_10ms / profile.launches();
        assert!((syncs / launches - expected).abs() < 0.01, "{}", syncs / launches);
    }
}
