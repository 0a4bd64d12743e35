#![forbid(unsafe_code)]
//! `weft-control`: the control plane of a cloud with GPUs.

mod args;
mod local;
mod serve;
mod tokens;

use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use weft_api::v1::{Client, ClientError, Kind, read_token, token_warning};
use weft_control::bench;
use weft_control::deployment::{self, Plan};
use weft_control::provision::local::{guest, region, relay};

use crate::args::{Arguments, DeploymentOptions, What};

fn main() -> ExitCode {
    // What somebody left open is not for VMs. It must not be there at all before Linux 5.11.
    let _ = weft_ring::peer::close_rest_on_exec();
    let done = match Arguments::read().what {
        What::Serve(options) => serve::serve(&options),
        What::Local(options) => local::local(&options),
        What::Token(options) => tokens::token(&options),
        What::Tokens(options) => tokens::list(&options),
        What::Openapi => line(weft_api::v1::document().trim_end()),
        What::Bench { seconds, guest, json } => {
            let found = bench::run(Duration::from_secs(seconds), guest.as_deref());
            found.and_then(|found| line(&found.text(json)?))
        }
        What::Deployment(options) => measure_deployment(&options),
        What::Guest { folder } => guest::guest(&folder),
        What::Inside { folder } => guest::inside(&folder),
        What::Region { folder } => region::region(&folder),
        What::Relay { folder } => relay::relay(&folder),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&error),
    }
}

/// Exit code where a project has no quota, or the cloud no room, as `gsaas` has it.
const NO_ROOM: u8 = 3;

fn failed(error: &anyhow::Error) -> ExitCode {
    note(&format!("error: {error:#}"));
    let Some(ClientError::Refused(problem)) = error.downcast_ref() else {
        return ExitCode::FAILURE;
    };
    if let Some(hint) = &problem.hint {
        note(&format!("hint: {hint}"));
    }
    let is_full = [Kind::Quota, Kind::NoCapacity].contains(&problem.kind);
    if is_full { ExitCode::from(NO_ROOM) } else { ExitCode::FAILURE }
}

/// `weft-control deployment`
fn measure_deployment(options: &DeploymentOptions) -> Result<()> {
    token_warning(&options.token_file)
        .iter()
        .for_each(|words| note(&format!("weft-control: {words}")));
    let client = Client::new(&options.url, &read_token(&options.token_file)?)?;
    // Not after an hour of VMs.
    let baselines = options.baselines.as_deref().map(deployment::baselines).transpose()?;
    let plan = Plan {
        cgpus: options.cgpus.clone(),
        vms: options.vms.iter().copied().map(usize::from).collect(),
        pace: Duration::from_millis(options.pace_ms),
        memory_mib: options.memory_mib,
        repeats: options.repeats.into(),
    };
    let mut found = deployment::run(&client, &plan, format!("real, VMs are {}", options.what))?;
    found.baselines = baselines.unwrap_or_default();
    if let Some(path) = &options.drawing {
        std::fs::write(path, deployment::drawing(&plan, &found))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    line(&found.text(options.json)?)
}

/// A line of what was asked for.
fn line(text: &str) -> Result<()> {
    Ok(writeln!(std::io::stdout(), "{text}")?)
}

/// A line about it.
#[expect(clippy::print_stderr, reason = "for people")]
fn note(text: &str) {
    eprintln!("{text}");
}
