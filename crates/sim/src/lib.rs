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
mod gate;
mod kernel;
mod meter;
mod program;
mod random;
mod worker;
mod world;

pub use calibration::{Calibration, CalibrationError, Cost};
pub use cpu::CpuScheduler;
pub use kernel::{Kernel, MS, SECOND, US};
pub use meter::Accounting;
pub use program::{Behaviour, Hog, Step, Transport, View};
pub use random::Random;
pub use worker::Source;
pub use world::{Setup, SetupError, Verdict, World};
