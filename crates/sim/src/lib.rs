#![forbid(unsafe_code)]
//! A discrete-event simulator of a node around the real scheduling core.
mod calibration;
mod checks;
mod clock;
mod cores;
mod cpu;
mod daemon;
mod device;
mod execution;
pub mod experiments;
mod gate;
pub mod import;
mod kernel;
mod meter;
mod outcome;
mod program;
mod random;
pub mod report;
mod table3;
mod worker;
mod world;

pub use calibration::{Calibration, CalibrationError, Cost};
pub use cpu::CpuScheduler;
pub use kernel::{Kernel, MS, SECOND, US};
pub use meter::Accounting;
pub use outcome::{Comparison, Outcome, Plot, PlotKind, Series};
pub use program::{Behaviour, Hog, Step, Transport, View};
pub use random::Random;
pub use table3::{Loop, Profile};
pub use worker::Source;
pub use world::{Setup, SetupError, Verdict, World};
