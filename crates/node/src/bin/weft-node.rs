//! The node daemon alone, for containers and tests: `weft-node [--config FILE] [KEY=VALUE]…`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use weft_node::NodeConfig;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            fail(&format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

#[expect(clippy::print_stderr, reason = "the log may not be there yet")]
fn fail(message: &str) {
    eprintln!("{message}");
}

fn run() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let mut file = None;
    let mut settings = Vec::new();
    while let Some(argument) = arguments.next() {
        if argument == "worker" {
            return weft_node::run_worker();
        }
        if argument == "runner" {
            return weft_node::run_runner();
        }
        if argument == "watchdog" {
            return weft_node::run_watchdog();
        }
        if argument == "--config" {
            file = Some(PathBuf::from(arguments.next().context("--config needs a file")?));
            continue;
        }
        let Some((key, value)) = argument.split_once('=') else {
            bail!("`{argument}` is neither --config FILE nor KEY=VALUE");
        };
        settings.push((key.to_owned(), value.to_owned()));
    }
    let variable = |name: &str| std::env::var(name).ok();
    weft_node::run_node(NodeConfig::load(file.as_deref(), variable, &settings)?)
}
