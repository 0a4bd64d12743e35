//! What things cost, and which measurement says so.

use serde::{Deserialize, Serialize};

/// The figures that are compiled in.
const DEFAULT: &str = include_str!("../calibration.toml");

/// A cost and its source.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cost {
    /// The cost in ns.
    pub ns: u64,
    /// The run that measured it, or the word `estimate` and what it estimates.
    pub from: String,
}

/// A calibration file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CalibrationError {
    /// It is not TOML of this shape.
    #[error("calibration: {0}")]
    Syntax(#[from] toml::de::Error),
}

macro_rules! costs {
    ($($(#[$doc:meta])* $name:ident,)+) => {
        /// All costs of a simulated run.
        #[derive(Clone, Debug, Serialize)]
        pub struct Calibration {
            $($(#[$doc])* pub $name: Cost,)+
        }

        /// A file, which may leave things out.
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Partial {
            $($name: Option<Cost>,)+
        }

        impl Calibration {
            fn with(self, partial: Partial) -> Self {
                Self { $($name: partial.$name.unwrap_or(self.$name),)+ }
            }

            /// As if nothing cost anything: a control.
            pub fn free() -> Self {
                let nothing = || Cost { ns: 0, from: "nothing costs anything".to_owned() };
                Self { $($name: nothing(),)+ }
            }

            /// Every cost with its name, in the order of the file.
            pub fn list(&self) -> Vec<(&'static str, &Cost)> {
                vec![$((stringify!($name), &self.$name),)+]
            }
        }

        impl Default for Calibration {
            fn default() -> Self {
                let full: Partial = toml::from_str(DEFAULT).expect("the compiled-in file is whole");
                Self { $($name: full.$name.expect("the compiled-in file is whole"),)+ }
            }
        }
    };
}

costs! {
    /// Processor time of an asynchronous call over shared memory.
    submit,
    /// From the call to its answer over shared memory, both sides polling.
    round_trip,
    /// The same in the program's own process: what the native driver's calls cost at least.
    native_call,
    /// A call over a transport that makes four system calls a request: assumed to take no longer
    /// than an echo of them.
    trapping_call,
    /// Processor time of sending one request over TCP.
    tcp_send,
    /// From the call to its answer over TCP.
    tcp_round_trip,
    /// A core takes up another vCPU.
    vcpu_switch,
    /// A blocked vCPU becomes runnable after its wake-up.
    wake,
    /// The same, for one that is boosted.
    boost,
    /// A sleeping worker looks at its control page after it was rung.
    worker_wake,
    /// A polling worker looks at its control page.
    worker_notice,
    /// The sleeping daemon looks at the control pages after it was rung.
    daemon_wake,
    /// The daemon's timers end this late.
    timer_late,
    /// Idle time of the device before each command.
    launch,
    /// Idle time of the device when the next command is another session's.
    device_switch,
    /// `launch`, where the device is not a paced one: the software device on the real clock.
    real_launch,
    /// `device_switch` of the same.
    real_switch,
    /// A program that starts, until its session can take commands.
    attach,
    /// A worker compiles a small module.
    module_load,
    /// Idle time of the device before each piece of a sliced kernel but the first.
    slice,
}

impl Calibration {
    /// The compiled-in figures, replaced where `text` (TOML) has others.
    ///
    /// # Errors
    /// If the text is not of that shape, or names a cost that there is not.
    pub fn parse(text: &str) -> Result<Self, CalibrationError> {
        Ok(Self::default().with(toml::from_str(text)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_compiled_in_figure_has_a_source() {
        for (name, cost) in Calibration::default().list() {
            assert!(!cost.from.is_empty(), "{name}");
        }
    }

    #[test]
    fn a_file_replaces_what_it_names() {
        let text = "[wake]\nns = 7\nfrom = \"a test\"\n";
        let calibration = Calibration::parse(text).unwrap();
        assert_eq!((calibration.wake.ns, calibration.submit.ns), (7, 125));
        Calibration::parse("[wale]\nns = 7\nfrom = \"a test\"\n").unwrap_err();
    }
}
