//! `cargo xtask benchmarks control`: what the cloud's services measure, as one document; and
//! `cargo xtask cloud`: their runs on a real OpenStack and a real Slurm, whose logs are kept.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};
use clap::ValueEnum;
use serde_json::Value;

use crate::benchmarks::document_of;
use crate::shell::{profile_dir, root, run, target};
use crate::{dist, programs, setup};

/// What the control plane makes VMs with in a run that is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Real {
    /// OpenStack: a quarter of an hour for all of its scenarios, once it is built.
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

/// The parts of a document that are figures by name.
const PARTS: [&str; 3] = ["figures", "baselines", "controls"];

/// Runs all of them; `guest` is what virtual machines boot, `programs` has the compiled programs.
pub(crate) fn measure(guest: &Path, programs: &Path) -> Result<Value> {
    let program = |name: &str| Command::new(profile_dir(dist::PROFILE).join(name));
    let mut found =
        document_of(program("weft-control").args(["bench", "--json", "--guest"]).arg(guest))?;
    let mut host = program("weft-endpoint");
    host.args(["bench-host", "--json", "--programs"]).arg(programs);
    merge(&mut found, &document_of(&mut host)?);
    merge(&mut found, &Cloud::start()?.deployment()?);
    Ok(found)
}

/// Puts the figures of another document behind one's own, and says what they are of.
fn merge(into: &mut Value, other: &Value) {
    for part in PARTS {
        let more = other[part].as_object().cloned().unwrap_or_default();
        if let Some(figures) = into[part].as_object_mut() {
            figures.extend(more);
        }
    }
    for words in ["mode", "window"] {
        let name = other["name"].as_str().unwrap_or_default();
        let [own, more] = [&*into, other].map(|one| one[words].as_str().unwrap_or_default());
        into[words] = format!("{own}; {name}: {more}").into();
    }
    // Whoever reads it wants to know of the worst.
    let [own, more] = [&*into, other].map(|one| one["stolen"].as_f64());
    into["stolen"] = own.zip(more).map(|(own, more)| own.max(more)).into();
}

/// A cloud on this machine, in which VMs are processes.
struct Cloud {
    control: Child,
    state: PathBuf,
    url: String,
}

impl Cloud {
    fn start() -> Result<Self> {
        let state = target().join("cloud");
        let mut command = Self::command();
        // Users of the VMs' own may not get to what is built here.
        command.args(["local", "--listen", "127.0.0.1:0", "--guest-user", "0", "--state-dir"]);
        command.arg(&state);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut control = command.spawn().context("cannot start weft-control")?;
        let mut line = String::new();
        BufReader::new(control.stdout.take().context("a pipe")?).read_line(&mut line)?;
        let url = line.split_whitespace().last().unwrap_or_default().to_owned();
        Ok(Self { control, state, url })
    }

    fn command() -> Command {
        Command::new(profile_dir(dist::PROFILE).join("weft-control"))
    }

    /// What a VM's boot takes there, part for part, with a real node and real relays.
    fn deployment(&self) -> Result<Value> {
        let mut command = Self::command();
        command.args(["deployment", "--json", "--what", "processes of this host", "--vms", "15"]);
        command.arg("--url").arg(&self.url);
        document_of(command.arg("--token-file").arg(self.state.join("demo.token")))
    }
}

impl Drop for Cloud {
    fn drop(&mut self) {
        // It leaves its node and its VMs running, which the next command ends.
        let _ = self.control.kill();
        let _ = self.control.wait();
        let mut down = Self::command();
        down.args(["local", "--down", "--guest-user", "0", "--state-dir"]).arg(&self.state);
        let _ = run(&mut down);
        let _ = fs::remove_dir_all(&self.state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_become_one_that_says_what_it_is_of() {
        let document = |name: &str, stolen: f64| {
            serde_json::json!({"name": name, "mode": "real", "window": name, "stolen": stolen,
                "figures": {name: 1.0}, "baselines": {}, "controls": {"x": 2.0}})
        };
        let mut found = document("a", 0.25);
        merge(&mut found, &document("b", 0.125));
        assert_eq!(found["figures"], serde_json::json!({"a": 1.0, "b": 1.0}));
        assert_eq!(found["window"], "a; b: b");
        assert_eq!(found["stolen"], 0.25);
        found["stolen"] = Value::Null;
        merge(&mut found, &document("c", 0.5));
        assert!(found["stolen"].is_null(), "what nobody looked at is not known");
    }
}
