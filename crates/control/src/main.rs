#![forbid(unsafe_code)]
//! `weft-control`: the control plane of a cloud with GPUs.

mod args;
mod local;
mod serve;

use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Parser;
use weft_control::bench;
use weft_control::provision::local::{guest, relay};

use crate::args::{Arguments, What};

fn main() -> ExitCode {
    // What somebody left open is not for VMs. It must not be there at all before Linux 5.11.
    let _ = weft_ring::peer::close_rest_on_exec();
    let done = match Arguments::parse().what {
        What::Serve(options) => serve::serve(&options),
        What::Local(options) => local::local(&options),
        What::Token(options) => serve::token(&options),
        What::Openapi => line(weft_api::v1::document().trim_end()),
        What::Bench { seconds, json } => {
            bench::run(Duration::from_secs(seconds)).and_then(|found| line(&found.text(json)?))
        }
        What::Guest { folder } => guest::guest(&folder),
        What::Inside { folder } => guest::inside(&folder),
        What::Relay { folder } => relay::relay(&folder),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            note(&format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
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
