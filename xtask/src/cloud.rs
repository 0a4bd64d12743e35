//! `cargo xtask cloud`: the cloud's services on a real OpenStack and a real Slurm, whose logs are
//! kept.

use std::process::Command;

use anyhow::Result;
use clap::ValueEnum;

use crate::shell::{profile_dir, root, run};
use crate::{programs, setup};

/// What the control plane makes VMs with in a run that is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Real {
    /// OpenStack: two hours for all of its scenarios, once it is built, most of them `fake`'s.
    Openstack,
    /// Slurm: seconds, once it is built.
    Slurm,
}

/// Builds what a run needs and runs it, all or some of its steps: from the real thing's packages to
/// the logs in `docs/evaluation/cloud`.
pub(crate) fn record(real: Real, steps: &[String]) -> Result<()> {
    let python = setup::all()?;
    programs::build("dev")?;
    programs::compile_examples("dev", &python)?;
    let name = match real {
        Real::Openstack => "openstack",
        Real::Slurm => "slurm",
    };
    let script = root().join("tests").join(name).join("record.sh");
    run(Command::new(script).args(steps).env("BUILD", profile_dir("dev")))
}
