//! `weft bench control`: the cloud's services, each of which measures itself against real others,
//! as one document.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;
use weft_api::lines;

use super::Context;
use super::document::Document;
use crate::services;

/// Seconds of each rate in a quick run.
const QUICK_SECONDS: &str = "1";

/// VMs at once in the local cloud (GSaaS, Figure 8).
const VMS: &str = "15,30,45,60,75,90";

/// The same in a quick run.
const QUICK_VMS: &str = "15";

/// GPUs of the local cloud, of 4 GiB each: room for that many VMs with 100 MiB each.
const GPUS: &str = "4";

pub(crate) fn run(context: &Context) -> Result<Document> {
    if !rustix::process::geteuid().is_root() {
        bail!("only root can measure it: a compute host and its VMs are network namespaces");
    }
    let mut control = services::program(services::CONTROL)?;
    control.args(["bench", "--json"]);
    if context.quick {
        control.args(["--seconds", QUICK_SECONDS]);
    }
    if let Some(guest) = &context.guest {
        control.arg("--guest").arg(guest);
    }
    let mut host = services::program(services::ENDPOINT)?;
    host.args(["bench-host", "--json", "--programs"]).arg(&context.programs);
    let mut parts = Vec::new();
    for command in [&mut control, &mut host] {
        parts.push(document_of(command)?);
    }
    parts.push(Cloud::start()?.deployment(context.quick)?);
    Ok(one_of(&parts))
}

/// The document that a service prints.
fn document_of(command: &mut Command) -> Result<Value> {
    let what = command.get_program().display().to_string();
    let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output();
    let output = output.with_context(|| format!("cannot start {what}"))?;
    if !output.status.success() {
        bail!("{what} did not measure: {}", output.status);
    }
    serde_json::from_slice(&output.stdout).with_context(|| format!("{what} printed no document"))
}

/// All figures of documents, with what each is of.
fn one_of(parts: &[Value]) -> Document {
    let text = |part: &Value, name: &str| part[name].as_str().unwrap_or_default().to_owned();
    let of_one = |part: &Value| {
        let [name, mode, window] = ["name", "mode", "window"].map(|word| text(part, word));
        format!("{name}: {mode}, {window}")
    };
    let window: Vec<String> = parts.iter().map(of_one).collect();
    let mut document = Document::new("control", "real", &window.join("; "));
    for part in parts {
        for (name, value) in figures(part, "figures") {
            document.figure(name, value);
        }
        for (name, value) in figures(part, "baselines") {
            document.baseline(name, value);
        }
        for (name, value) in figures(part, "controls") {
            document.control(name, value);
        }
    }
    document
}

fn figures<'a>(part: &'a Value, name: &str) -> impl Iterator<Item = (String, f64)> + use<'a> {
    let all = part[name].as_object().into_iter().flatten();
    all.filter_map(|(name, value)| Some((name.clone(), value.as_f64()?)))
}

/// A cloud on this machine, in which VMs are processes.
struct Cloud {
    control: Child,
    state: PathBuf,
    url: String,
}

impl Cloud {
    fn start() -> Result<Self> {
        let state = std::env::temp_dir().join(format!("weft-bench-cloud-{}", std::process::id()));
        let mut command = services::program(services::CONTROL)?;
        // Users of the VMs' own may not get to what is measured here.
        command.args(["local", "--listen", "127.0.0.1:0", "--guest-user", "0", "--state-dir"]);
        command.arg(&state).args(["--gpus", GPUS]);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut control = command.spawn().context("cannot start the control plane")?;
        let output = control.stdout.take().context("a pipe")?;
        let mut cloud = Self { control, state, url: String::new() };
        let said = lines::first(output)?;
        cloud.url = said.split_whitespace().last().context("it did not start")?.to_owned();
        Ok(cloud)
    }

    /// What a VM's boot takes there, part for part, with a real node and real relays.
    fn deployment(&self, is_quick: bool) -> Result<Value> {
        let mut command = services::program(services::CONTROL)?;
        command.args(["deployment", "--json", "--what", "processes of this host", "--vms"]);
        if is_quick {
            command.args([QUICK_VMS, "--repeats", "1"]);
        } else {
            command.arg(VMS);
        }
        command.arg("--url").arg(&self.url);
        document_of(command.arg("--token-file").arg(self.state.join("demo.token")))
    }
}

impl Drop for Cloud {
    fn drop(&mut self) {
        // It leaves its node and its VMs running, which the next command ends.
        let _ = self.control.kill();
        let _ = self.control.wait();
        let _ = down(&self.state);
        let _ = fs::remove_dir_all(&self.state);
    }
}

fn down(state: &Path) -> Result<()> {
    let mut down = services::program(services::CONTROL)?;
    down.args(["local", "--down", "--guest-user", "0", "--state-dir"]).arg(state);
    down.output()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_become_one_that_says_what_it_is_of() {
        let part = |name: &str| {
            serde_json::json!({"name": name, "mode": "real", "window": name,
                "figures": {name: 1.0}, "baselines": {}, "controls": {"x": 2.0}})
        };
        let one = serde_json::to_value(one_of(&[part("a"), part("b")])).unwrap();
        assert_eq!(one["figures"], serde_json::json!({"a": 1.0, "b": 1.0}));
        assert_eq!(one["controls"], serde_json::json!({"x": 2.0}));
        assert_eq!(one["window"], "a: real, a; b: real, b");
    }
}
