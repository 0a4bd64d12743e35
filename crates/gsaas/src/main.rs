#![forbid(unsafe_code)]
//! `gsaas`: VMs with cGPUs, from the command line.
//!
//! The options are those of the paper (GSaaS §III-D), word for word, and more in the same manner.

mod arguments;
mod commands;
mod completion;
mod show;

use std::io::Write as _;
use std::process::ExitCode;

use weft_api::v1::{BadTokenFile, Client, ClientError, Kind};

use crate::arguments::{Arguments, NoToken};

/// Exit codes by kind of failure, for scripts.
mod code {
    /// It was not done.
    pub(crate) const FAILED: u8 = 1;
    /// The command line is wrong.
    pub(crate) const USAGE: u8 = 2;
    /// There is no room, or no quota.
    pub(crate) const NO_ROOM: u8 = 3;
    /// Nobody answers.
    pub(crate) const UNREACHABLE: u8 = 4;
}

fn main() -> ExitCode {
    let arguments = match Arguments::read(std::env::args_os().skip(1)) {
        Ok(arguments) => arguments,
        Err(words) => return usage(&words),
    };
    if let Some(text) = arguments.command.said_here() {
        return printed(&out(text.trim_end()));
    }
    let done = arguments.token().and_then(|token| {
        let client =
            Client::with_authorities(&arguments.url, &token, arguments.authorities.as_deref())?;
        let client = client.patient(arguments.patience);
        commands::run(&client, &arguments)
    });
    match done {
        Ok(code) => code,
        Err(error) => failed(&error),
    }
}

/// A line of what was asked for.
fn out(text: &str) -> std::io::Result<()> {
    writeln!(std::io::stdout(), "{text}")
}

/// A line about it.
#[expect(clippy::print_stderr, reason = "for people")]
fn note(text: &str) {
    eprintln!("{text}");
}

fn printed(written: &std::io::Result<()>) -> ExitCode {
    if written.is_ok() { ExitCode::SUCCESS } else { ExitCode::from(code::FAILED) }
}

fn usage(words: &str) -> ExitCode {
    note(&format!("error: {words}\nhint: gsaas -help lists all options"));
    ExitCode::from(code::USAGE)
}

fn failed(error: &anyhow::Error) -> ExitCode {
    let is_closed = |error: &std::io::Error| error.kind() == std::io::ErrorKind::BrokenPipe;
    if error.downcast_ref().is_some_and(is_closed) {
        // Whoever reads has enough.
        return ExitCode::SUCCESS;
    }
    note(&format!("error: {error:#}"));
    match error.downcast_ref::<ClientError>() {
        Some(ClientError::Refused(problem)) => {
            if let Some(hint) = &problem.hint {
                note(&format!("hint: {hint}"));
            }
            let is_full = [Kind::Quota, Kind::NoCapacity].contains(&problem.kind);
            ExitCode::from(if is_full { code::NO_ROOM } else { code::FAILED })
        }
        Some(ClientError::Unanswered { may_be_done, .. }) => {
            note(if *may_be_done {
                "hint: gsaas -list and -show say if it was done; -patience=SECONDS waits longer"
            } else {
                "hint: ask again; -patience=SECONDS waits longer"
            });
            ExitCode::from(code::UNREACHABLE)
        }
        Some(ClientError::Unreachable { .. }) => {
            note(
                "hint: name the control plane with -url=http://HOST:PORT (or https://, with -ca) or GSAAS_URL",
            );
            ExitCode::from(code::UNREACHABLE)
        }
        Some(
            ClientError::Address(_)
            | ClientError::Token
            | ClientError::Key(_)
            | ClientError::Authorities(_),
        ) => ExitCode::from(code::USAGE),
        Some(ClientError::Strange { .. }) => ExitCode::from(code::FAILED),
        None if error.is::<BadTokenFile>() || error.is::<NoToken>() => ExitCode::from(code::USAGE),
        None => ExitCode::from(code::FAILED),
    }
}
