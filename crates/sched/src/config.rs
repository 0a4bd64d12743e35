//! The core's settings, their ranges, and errors that say both.

use core::ops::RangeInclusive;

use crate::policy::PolicyId;

/// Settings of the scheduling core. Times are ns. The default is what a node has where its
/// configuration says nothing, and what the simulator runs: there is no other place for these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
pub struct Config {
    /// The policy of a device that comes up.
    pub policy: PolicyId,
    /// Held time of one turn. FairGV: 6 ms, 30 ms on preemptive devices.
    pub quantum_ns: u64,
    /// A holder with nothing to do for this long gives way to those who wait.
    pub yield_ns: u64,
    /// The successor is woken this long before the turn is expected to end.
    pub prepare_lead_ns: u64,
    /// The successor is granted this long before the predecessor's work in flight drains, so that a
    /// switch leaves no gap on the device.
    pub overlap_ns: u64,
    /// A revoked holder that has not released for this long is killed. It must exceed the longest
    /// command that the device cannot interrupt.
    pub overdue_ns: u64,
    /// Service, at most a quantum, that a vGPU or tenant may be behind the virtual time when it
    /// wakes under `fair`, as if it had slept less long. It enters the lag bound like a quantum.
    pub sleeper_credit_ns: u64,
    /// σ of `fair`: whose turn ended goes on while it is at most this much service (at its own
    /// weight) beyond the smallest tag, for fewer switches. It enters the lag bound like a quantum.
    pub slack_ns: u64,
    /// σ is this many times what a switch between vGPUs takes for their memory, as a mean of late,
    /// and at most `slack_ns`. With 0 it is `slack_ns` at any time.
    pub slack_switches: u64,
    /// Service, at its own weight, that the vGPU which [`Event::Prefer`](crate::Event::Prefer)
    /// names may be beyond the smallest tag and be next under `fair`. It enters the lag bound like
    /// `slack_ns`, of which the larger one counts.
    pub reach_ns: u64,
    /// What it costs to give the device to another session. Who gives a turn up early, with others
    /// waiting, is charged for it.
    pub switch_ns: u64,
    /// Service that a user-facing vGPU may be ahead of its weight's part when it goes before batch
    /// vGPUs (the warp of borrowed virtual time: Duda and Cheriton, SOSP 1999). Over a window of
    /// `T` it gets at most `borrow_ns / T` more than its part. It enters the lag bound.
    pub borrow_ns: u64,
    /// The most device time that a batch vGPU has in flight while a user-facing one is attached to
    /// the device: who wakes waits for no more than that.
    pub slice_ns: u64,
}

/// A successor's worker is woken this long before its turn begins, in ns: what a wake-up takes,
/// with some room.
const PREPARE_LEAD_NS: u64 = 200_000;

/// The quantum on devices that preempt, where a switch is dear (FairGV §3.2.1).
pub const PREEMPTIVE_QUANTUM_NS: u64 = 30_000_000;

const RANGES: [(&str, RangeInclusive<u64>); 12] = [
    ("quantum_ns", 10_000..=10_000_000_000),
    ("yield_ns", 0..=1_000_000_000),
    ("prepare_lead_ns", 0..=1_000_000_000),
    ("overlap_ns", 0..=1_000_000_000),
    ("overdue_ns", 1_000_000..=3_600_000_000_000),
    ("sleeper_credit_ns", 0..=10_000_000_000),
    ("slack_ns", 0..=10_000_000_000),
    ("slack_switches", 0..=1_000),
    ("reach_ns", 0..=10_000_000_000),
    ("switch_ns", 0..=1_000_000_000),
    ("borrow_ns", 0..=60_000_000_000),
    ("slice_ns", 100_000..=10_000_000_000),
];

impl Default for Config {
    fn default() -> Self {
        Self {
            policy: PolicyId::default(),
            quantum_ns: 6_000_000,
            yield_ns: 100_000,
            prepare_lead_ns: 0,
            overlap_ns: 0,
            overdue_ns: 10_000_000_000,
            sleeper_credit_ns: 0,
            slack_ns: 0,
            slack_switches: 0,
            reach_ns: 0,
            switch_ns: 50_000,
            borrow_ns: 20_000_000,
            slice_ns: 2_000_000,
        }
        .overlap(250_000)
    }
}

impl Config {
    /// Another overlap, in ns, with the successor woken as long before it as a wake-up takes.
    #[must_use]
    pub fn overlap(self, overlap_ns: u64) -> Self {
        let prepare_lead_ns = overlap_ns.saturating_add(PREPARE_LEAD_NS);
        Self { overlap_ns, prepare_lead_ns, ..self }
    }

    /// σ of the lag bound, in ns: how far beyond the smallest tag anybody may be and be next.
    pub fn sigma_ns(&self) -> u64 {
        self.slack_ns.max(self.reach_ns)
    }

    /// σ until the first switches tell what they take, in ns.
    pub(crate) fn slack_at_first_ns(&self) -> u64 {
        if self.slack_switches == 0 { self.slack_ns } else { 0 }
    }

    /// Checks every value against its range; the error names the first that is outside.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let values = [
            self.quantum_ns,
            self.yield_ns,
            self.prepare_lead_ns,
            self.overlap_ns,
            self.overdue_ns,
            self.sleeper_credit_ns,
            self.slack_ns,
            self.slack_switches,
            self.reach_ns,
            self.switch_ns,
            self.borrow_ns,
            self.slice_ns,
        ];
        for ((key, range), value) in RANGES.iter().zip(values) {
            if !range.contains(&value) {
                let (min, max) = (*range.start(), *range.end());
                return Err(ConfigError { key, value, min, max });
            }
        }
        if self.sleeper_credit_ns > self.quantum_ns {
            let (key, value) = ("sleeper_credit_ns", self.sleeper_credit_ns);
            return Err(ConfigError { key, value, min: 0, max: self.quantum_ns });
        }
        Ok(())
    }
}

/// A setting outside its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key} = {value} is not allowed: {key} is {min} to {max}")]
pub struct ConfigError {
    /// The setting's name, as in the configuration file.
    pub key: &'static str,
    /// The value refused.
    pub value: u64,
    /// The smallest value allowed.
    pub min: u64,
    /// The largest value allowed.
    pub max: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_valid() {
        Config::default().validate().unwrap();
    }

    #[test]
    fn a_sleeper_is_credited_a_quantum_at_most() {
        let config = Config { sleeper_credit_ns: 6_000_001, ..Config::default() };
        assert_eq!(
            config.validate().unwrap_err().to_string(),
            "sleeper_credit_ns = 6000001 is not allowed: sleeper_credit_ns is 0 to 6000000"
        );
    }

    #[test]
    fn an_error_names_the_key_and_the_range() {
        let config = Config { quantum_ns: 5, ..Config::default() };
        assert_eq!(
            config.validate().unwrap_err().to_string(),
            "quantum_ns = 5 is not allowed: quantum_ns is 10000 to 10000000000"
        );
    }
}
