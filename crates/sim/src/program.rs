//! What a program does on its vCPU.

use core::fmt;

use crate::kernel::Kernel;

/// One step of a program.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// Work on the processor, in ns.
    Compute(u64),
    /// Launch a kernel; asynchronous.
    Launch(Kernel),
    /// An asynchronous call without work for the device.
    Call,
    /// Wait for everything that was launched.
    Sync,
    /// A synchronous call that needs no device.
    Query,
    /// Sleep, in ns.
    Sleep(u64),
    /// Be killed with everything in flight, and come back as another process.
    Die(Return),
    /// The program is over.
    End,
}

/// As what a program comes back that was killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Return {
    /// A new session of its vGPU.
    SameVgpu,
    /// The first session of a new vGPU of its tenant.
    NewVgpu,
}

/// What a program sees when it is asked for its next step.
#[derive(Clone, Copy, Debug)]
pub struct View {
    /// The time, in ns.
    pub now_ns: u64,
    /// Its kernels that have finished.
    pub finished: u64,
    /// Device time that its session's kernels got so far, in ns, finished or not.
    pub executed_ns: u64,
}

/// A program: the next step each time the last one is over.
pub trait Behaviour: fmt::Debug {
    /// The next step.
    fn next(&mut self, view: &View) -> Step;
}

/// A processor hog: it never calls the device.
#[derive(Clone, Copy, Debug)]
pub struct Hog;

impl Behaviour for Hog {
    fn next(&mut self, _view: &View) -> Step {
        Step::Compute(crate::kernel::SECOND)
    }
}

/// How calls reach the worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transport {
    /// Processor time of an asynchronous call, in ns.
    pub submit_ns: u64,
    /// A synchronous call beyond the work it waits for, in ns.
    pub round_trip_ns: u64,
    /// Every call is answered before the next one: nothing is queued ahead.
    pub lock_step: bool,
}

impl Transport {
    /// From the end of the work to the caller's knowing.
    pub(crate) fn answer_ns(&self) -> u64 {
        // In lock step the request's own cost is all that the paper's system pays.
        if self.lock_step { 0 } else { self.round_trip_ns / 2 }
    }
}
