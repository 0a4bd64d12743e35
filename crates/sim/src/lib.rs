#![forbid(unsafe_code)]
//! A discrete-event simulator of a node around the real scheduling core.
//!
//! [`World`] has a virtual clock and drives `weft_sched::Node`, the very state machine that the
//! daemon runs. Around it are models: a device with a first-come-first-served queue, workers that
//! gate, charge and release as the node's do, the daemon's driver, processor cores with a fair
//! scheduler, vCPUs that poll and block, and transports. What they cost comes from a
//! [`Calibration`]. The core's invariants are checked at every step from what the device executed,
//! and the same seed gives the same run. [`experiments`] has FairGV's evaluation and what goes past
//! it, [`report`] writes it down.

mod calibration;
mod checks;
pub mod claims;
mod clock;
mod cores;
mod cpu;
mod daemon;
mod device;
pub mod dymgpu;
mod execution;
pub mod experiments;
pub mod flexy;
pub mod gsaas;
pub mod import;
mod kernel;
mod kill;
mod outcome;
pub mod predict;
mod preempt;
mod program;
mod random;
pub mod report;
pub mod seeds;
mod table3;
mod worker;
mod world;

pub use calibration::{Calibration, CalibrationError, Cost};
pub use checks::Bearer;
pub use cpu::CpuScheduler;
pub use kernel::{Kernel, MS, SECOND, US};
pub use outcome::{Comparison, Dot, MadeOn, Outcome, Plot, PlotKind, Series};
pub use preempt::{Preemption, Stopper};
pub use program::{Behaviour, Hog, Step, Transport, View};
pub use random::Random;
pub use table3::{Loop, Profile};
pub use weft_turn::Accounting;
pub use worker::Source;
pub use world::{Setup, SetupError, Verdict, World};
