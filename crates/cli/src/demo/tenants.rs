//! The demo's tenants: ordinary programs that do not know of Weft.

use std::cell::RefCell;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::time::{ClockId, clock_gettime};
use serde::Deserialize;

use crate::args::DemoOptions;
use crate::daemon::OwnDaemon;
use crate::programs;

/// When all tenants are ready they begin together after this time.
const LEAD: Duration = Duration::from_millis(200);
/// How long a tenant runs alone for its baseline.
const ALONE_SECONDS: u64 = 3;

/// A tenant to be.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) name: &'static str,
    pub(crate) weight: u32,
    pub(crate) description: String,
    program: PathBuf,
    /// Before the number of seconds.
    arguments: Vec<String>,
    environment: Vec<(&'static str, &'static str)>,
}

/// What a tenant did.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) name: String,
    pub(crate) weight: u32,
    /// Units of verified work per second, counted by the program.
    pub(crate) throughput: f64,
    pub(crate) verified: bool,
}

/// The JSON line that a tenant prints last.
#[derive(Debug, Deserialize)]
struct Report {
    #[serde(alias = "steps", alias = "completed")]
    work: u64,
    seconds: f64,
    verified: bool,
}

/// Tenants that run at this moment.
#[derive(Debug)]
pub(crate) struct Running {
    children: RefCell<Vec<Child>>,
    begin: Duration,
    seconds: u64,
}

/// The three tenants, as far as this machine has what they need.
pub(crate) fn plans(folder: &Path, options: &DemoOptions) -> Vec<Plan> {
    let first = match (&options.python, &options.train) {
        (Some(python), Some(train)) => Plan {
            name: "training",
            weight: 1,
            description: "tinygrad trains a network in Python".to_owned(),
            program: python.clone(),
            arguments: vec![train.display().to_string()],
            environment: vec![("DEV", "CUDA:PTX")],
        },
        _ => step(folder, "small", 1, "step_102us"),
    };
    vec![first, step(folder, "medium", 2, "step_391us"), step(folder, "large", 3, "step_1605us")]
}

fn step(folder: &Path, name: &'static str, weight: u32, kernel: &str) -> Plan {
    Plan {
        name,
        weight,
        description: format!("a C program that launches {kernel} in batches"),
        program: folder.join("share"),
        arguments: vec![kernel.to_owned()],
        environment: Vec::new(),
    }
}

/// Throughput of each tenant alone on an in-process device, without daemon and gate.
pub(crate) fn alone(plans: &[Plan]) -> Result<Vec<f64>> {
    let scratch = tempfile::Builder::new().prefix("weft-demo-").tempdir()?;
    let model = scratch.path().join("model.toml");
    std::fs::write(&model, super::MODEL)?;
    let libraries = programs::library_dir(scratch.path())?;
    let mut throughputs = Vec::new();
    for plan in plans {
        let mut command = plan.command(ALONE_SECONDS, &libraries);
        command.env("WEFT_ATTACH", "direct");
        command.env("WEFT_DEVICE", format!("soft:paced:{}", model.display()));
        throughputs.push(plan.outcome(command.spawn().context(plan.name)?)?.throughput);
    }
    Ok(throughputs)
}

/// Starts all tenants. They attach and load, each as fast as it can, and begin their work at the
/// same instant.
pub(crate) fn start(plans: &[Plan], daemon: &OwnDaemon, seconds: u64) -> Result<Running> {
    let libraries = programs::library_dir(daemon.path())?;
    let mut children = Vec::new();
    for plan in plans {
        let mut command = plan.command(seconds, &libraries);
        command.args(["--start", "-"]).stdin(Stdio::piped());
        command.env("WEFT_SOCKET", daemon.tenant_socket());
        command.env("WEFT_VGPU", plan.name);
        command.env("WEFT_WEIGHT", plan.weight.to_string());
        children.push(command.spawn().with_context(|| {
            format!("cannot start {} for tenant {}", plan.program.display(), plan.name)
        })?);
    }
    for (child, plan) in children.iter_mut().zip(plans) {
        wait_until_ready(child).with_context(|| format!("tenant {} did not begin", plan.name))?;
    }
    let begin = monotonic() + LEAD;
    for (child, plan) in children.iter_mut().zip(plans) {
        let mut input = child.stdin.take().context("a tenant takes no input")?;
        writeln!(input, "{:.6}", begin.as_secs_f64())
            .with_context(|| format!("tenant {} did not begin", plan.name))?;
    }
    Ok(Running { children: RefCell::new(children), begin, seconds })
}

/// Reads a tenant's first line, and no more: what comes after it is for [`Plan::outcome`].
fn wait_until_ready(child: &mut Child) -> Result<()> {
    let output = child.stdout.as_mut().context("a tenant's output is not read")?;
    let mut byte = [0];
    while output.read(&mut byte)? == 1 {
        if byte == *b"\n" {
            return Ok(());
        }
    }
    bail!("it ended with {}", child.wait()?)
}

impl Plan {
    fn command(&self, seconds: u64, libraries: &Path) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).arg(seconds.to_string());
        command.envs(self.environment.iter().copied());
        for variable in ["WEFT_ATTACH", "WEFT_DEVICE", "WEFT_TOKEN", "WEFT_MEMORY"] {
            command.env_remove(variable);
        }
        programs::use_shim(&mut command, libraries);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        command
    }

    fn outcome(&self, child: Child) -> Result<Outcome> {
        let output = child.wait_with_output().context(self.name)?;
        let text = String::from_utf8_lossy(&output.stdout);
        let last = text.lines().rev().find(|line| line.starts_with('{'));
        let Some(report) = last.and_then(|line| serde_json::from_str::<Report>(line).ok()) else {
            bail!("tenant {} ended with {} and without a result", self.name, output.status);
        };
        #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
        let throughput = report.work as f64 / report.seconds;
        Ok(Outcome {
            name: self.name.to_owned(),
            weight: self.weight,
            throughput,
            verified: report.verified && output.status.success(),
        })
    }
}

impl Running {
    /// When the tenants begin, in ns of `CLOCK_MONOTONIC`.
    pub(crate) fn begin_ns(&self) -> u64 {
        u64::try_from(self.begin.as_nanos()).unwrap_or(u64::MAX)
    }

    /// Whether they are all at work.
    pub(crate) fn at_work(&self) -> bool {
        let now = monotonic();
        now > self.begin && now < self.begin + Duration::from_secs(self.seconds)
    }

    /// Whether all have ended.
    pub(crate) fn finished(&self) -> bool {
        self.children.borrow_mut().iter_mut().all(|child| !matches!(child.try_wait(), Ok(None)))
    }

    /// Collects what they did, and the length of the window in seconds.
    pub(crate) fn finish(self, plans: &[Plan]) -> Result<(Vec<Outcome>, f64)> {
        let outcomes = self
            .children
            .into_inner()
            .into_iter()
            .zip(plans)
            .map(|(child, plan)| plan.outcome(child))
            .collect::<Result<Vec<_>>>()?;
        #[expect(clippy::cast_precision_loss, reason = "a few seconds")]
        let window_s = self.seconds as f64;
        Ok((outcomes, window_s))
    }
}

fn monotonic() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    let nanoseconds = u32::try_from(now.tv_nsec).unwrap_or(0);
    Duration::new(seconds, nanoseconds)
}
