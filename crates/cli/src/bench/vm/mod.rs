//! Benchmarks of programs in virtual machines: `--via vm`. QEMU interprets their processors, so
//! times of a guest's own say what they are beside other times of an interpreted processor, and
//! nothing else.

mod call;
mod copy;
mod cosched;
mod overhead;
mod share;

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use super::document::Document;
use super::tenant::Tenant;
use super::{Context, Name};
use crate::daemon::OwnDaemon;
use crate::services;

/// Runs the benchmark of that name.
pub(super) fn run(context: &Context, name: Name) -> Result<Document> {
    match name {
        Name::Call => call::run(context),
        Name::Copy => copy::run(context),
        Name::Overhead => overhead::run(context),
        Name::Fairness => share::fairness(context),
        Name::Fairgv => share::fairgv(context),
        Name::Cosched => cosched::run(context),
        Name::Conserve
        | Name::Engine
        | Name::Accounting
        | Name::Decision
        | Name::Scale
        | Name::Reweight
        | Name::Adversary
        | Name::Latency
        | Name::Flexy
        | Name::Move
        | Name::Memory
        | Name::Remote
        | Name::Control => {
            bail!(
                "--via vm is for `bench call`, `copy`, `overhead`, `fairness`, `fairgv` and \
                 `cosched`"
            )
        }
    }
}

/// Programs that wait for each other inside a machine need a processor each.
const TWO: [&str; 2] = ["--processors", "2"];

/// A machine that runs one program.
struct Machine<'a> {
    /// Its vGPU.
    name: &'a str,
    weight: u32,
    /// More words for `weft vm run`.
    flags: &'a [&'a str],
    /// The program, and its arguments.
    words: &'a [&'a str],
}

impl Machine<'_> {
    /// What boots it.
    fn command(&self, context: &Context, daemon: &OwnDaemon) -> Result<Command> {
        let image = image(context)?;
        let mut command = services::program(services::GUEST)?;
        command.args(["run", self.name, "--weight", &self.weight.to_string(), "--accel", "tcg"]);
        command.args(["--sessions", "2", "--node"]).arg(daemon.tenant_socket());
        command
            .arg("--kernel")
            .arg(image.join("vmlinuz"))
            .arg("--initrd")
            .arg(image.join("initrd"));
        let unpacked = image.join("qemu");
        if unpacked.exists() {
            command.arg("--qemu").arg(unpacked);
        }
        command.args(self.flags).arg("--").args(self.words);
        Ok(command)
    }

    /// Boots it.
    fn start(&self, context: &Context, daemon: &OwnDaemon) -> Result<Child> {
        spawn(self.command(context, daemon)?)
    }

    /// Boots it, as a tenant whose program's JSON lines are heard.
    fn tenant(&self, context: &Context, daemon: &OwnDaemon) -> Result<Tenant> {
        Ok(Tenant::new(self.name, self.start(context, daemon)?))
    }

    /// Boots it and waits for its end; all JSON lines that were printed.
    fn run(&self, context: &Context, daemon: &OwnDaemon) -> Result<Vec<Value>> {
        let output = self.start(context, daemon)?.wait_with_output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        if !output.status.success() {
            bail!("the machine failed ({}): {text}", output.status);
        }
        let lines: Vec<Value> =
            text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        if lines.iter().any(|line| line["verified"] == Value::Bool(false)) {
            bail!("the machine's program computed something wrong: {text}");
        }
        Ok(lines)
    }
}

fn spawn(mut command: Command) -> Result<Child> {
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let what = command.get_program().display().to_string();
    command.spawn().with_context(|| format!("cannot start {what}"))
}

/// Folder of what machines boot.
fn image(context: &Context) -> Result<PathBuf> {
    context.guest.clone().context(
        "--via vm needs --guest FOLDER, which examples/guest/make-image makes with the programs \
         `call`, `copy`, `share`, `cosched` and `trap`, tests/programs/guest-*.sh, `weft` and \
         `weft-endpoint` in it",
    )
}

/// What TCP does alone on the guest's loopback: a boot of a machine with a processor for each end.
struct Tcp {
    echo_us: f64,
    gb_per_s: f64,
}

impl Tcp {
    fn measure(context: &Context, daemon: &OwnDaemon) -> Result<Self> {
        let words = ["weft-endpoint", "measure", "--plain"];
        let machine = Machine { name: "vm", weight: 1, flags: &TWO, words: &words };
        let lines = machine.run(context, daemon)?;
        let found = line(&lines, "tcp_echo_us_p50")?;
        Ok(Self {
            echo_us: number(found, "tcp_echo_us_p50")?,
            gb_per_s: number(found, "tcp_gb_per_s")?,
        })
    }
}

/// The line that has this key.
fn line<'a>(lines: &'a [Value], key: &str) -> Result<&'a Value> {
    let found = lines.iter().find(|value| value.get(key).is_some());
    found.with_context(|| format!("the machine printed no {key}"))
}

/// A number of a program's report.
fn number(value: &Value, name: &str) -> Result<f64> {
    value[name].as_f64().with_context(|| format!("{name} is missing"))
}
