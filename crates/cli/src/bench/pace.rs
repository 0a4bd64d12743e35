//! How long the benchmarks' kernels last: as the paced device's model says, or as many steps as a
//! genuine GPU does in that time.

use std::process::Command;

use anyhow::Result;

use super::Context;
use super::document::Document;
use super::tenant::{Host, ShareReport, kernel};

/// What the programs are told (`examples/cuda/common.h`, `bench/programs/long.c`).
const STEPS_PER_US: &str = "STEPS_PER_US";
const STEPS_PER_BLOCK: &str = "STEPS_PER_BLOCK";

/// The kernel that tells how fast a GPU is, so many launches of it, and the steps that it does for
/// each microsecond of its name.
const TRIAL_US: u64 = 1000;
const TRIAL_LAUNCHES: &str = "400";
const TRIAL_PER_US: f64 = 1000.0;

/// Blocks of a long kernel on a GPU, and how long one lasts alone. Some hundred run at a time.
pub(super) const GPU_BLOCKS: u64 = 132_000;
const GPU_BLOCK_ALONE_US: f64 = 400.0;

/// How long kernels last.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Pace {
    /// As their names say: the paced device has a model.
    Modelled,
    /// As long as a genuine GPU takes for their work.
    Measured(Steps),
}

impl Pace {
    /// Whether the device is paced.
    pub(super) fn is_modelled(self) -> bool {
        matches!(self, Self::Modelled)
    }

    /// The mode of figures, as documents say it.
    pub(super) fn mode(self) -> &'static str {
        if self.is_modelled() { "paced" } else { "real" }
    }

    /// µs of the device per block of a long kernel.
    pub(super) fn block_us(self, modelled: u64) -> f64 {
        match self {
            #[expect(clippy::cast_precision_loss, reason = "some microseconds")]
            Self::Modelled => modelled as f64,
            Self::Measured(steps) => steps.block_us,
        }
    }

    /// Blocks of a long kernel.
    pub(super) fn blocks(self, modelled: u64) -> u64 {
        if self.is_modelled() { modelled } else { GPU_BLOCKS }
    }

    /// Has a program's kernels last as they should.
    pub(super) fn tell(self, command: &mut Command) {
        if let Self::Measured(steps) = self {
            steps.tell(command);
        }
    }

    /// What the kernels were made of.
    pub(super) fn document(self, document: &mut Document) {
        if let Self::Measured(steps) = self {
            document.baseline("steps_per_us", steps.per_us);
            document.baseline("long_block_us", steps.block_us);
        }
    }
}

/// What a genuine GPU does, measured on its own driver with nothing beside it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Steps {
    /// Steps of each thread of `step_*us` per µs.
    per_us: f64,
    /// µs of the device per block of a long kernel.
    block_us: f64,
}

impl Steps {
    /// Measures the GPU that `WEFT_DEVICE` names.
    pub(super) fn measure(context: &Context) -> Result<Self> {
        let driver = Host::direct(false)?;
        let mut steps = Self { per_us: TRIAL_PER_US, block_us: 0.0 };
        // The first run only wakes the device: its clock rises with work.
        for _ in 0..2 {
            let mut command = context.program("share");
            command.args([&kernel(TRIAL_US), "0", "--count", TRIAL_LAUNCHES]);
            command.env(STEPS_PER_US, TRIAL_PER_US.to_string());
            #[expect(clippy::cast_precision_loss, reason = "a microsecond's kernel")]
            let named_us = TRIAL_US as f64;
            steps.per_us = TRIAL_PER_US * named_us / each_us(&driver, command, 1)?;
        }
        let mut command = context.program("long");
        command.args(["2", "--blocks", &GPU_BLOCKS.to_string()]);
        steps.tell(&mut command);
        steps.block_us = each_us(&driver, command, GPU_BLOCKS)?;
        Ok(steps)
    }

    fn tell(self, command: &mut Command) {
        let per_block = self.per_us * GPU_BLOCK_ALONE_US;
        command.env(STEPS_PER_US, self.per_us.to_string());
        command.env(STEPS_PER_BLOCK, format!("{per_block:.0}"));
    }
}

/// How long a part of a launch takes that has so many, in µs.
fn each_us(driver: &Host, command: Command, parts: u64) -> Result<f64> {
    let report = ShareReport::parse(driver.start("alone", 1, command)?.finish()?)?;
    #[expect(clippy::cast_precision_loss, reason = "some million")]
    let all = (report.launches * parts) as f64;
    Ok(1e6 * report.drained_seconds / all)
}
