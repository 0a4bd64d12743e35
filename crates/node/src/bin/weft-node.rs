//! The node daemon alone, for containers and tests: `weft-node [--config FILE] [KEY=VALUE]…`.

use std::io::Write as _;
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

/// What `--help` says.
const USAGE: &str = "\
Runs the node daemon in the foreground, as `weft node` does, which has more options.

Usage: weft-node [--config FILE] [KEY=VALUE]...

  --config FILE  configuration file (TOML)
  KEY=VALUE      a key of the configuration, such as scheduling.policy=unmanaged; it wins over
                 the file and the environment (docs/operations.md has all of them)
  --help         this text
  --version      the version
";

/// What `--version` says.
const VERSION: &str = concat!("weft-node ", env!("CARGO_PKG_VERSION"), "\n");

fn say(text: &str) -> anyhow::Result<()> {
    Ok(std::io::stdout().write_all(text.as_bytes())?)
}

fn run() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let mut file = None;
    let mut settings = Vec::new();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "worker" => return weft_node::run_worker(),
            "runner" => return weft_node::run_runner(),
            "watchdog" => return weft_node::run_watchdog(),
            "--help" | "-h" => return say(USAGE),
            "--version" | "-V" => return say(VERSION),
            "--config" => {
                file = Some(PathBuf::from(arguments.next().context("--config needs a file")?));
                continue;
            }
            _ => {}
        }
        let Some((key, value)) = argument.split_once('=') else {
            bail!("`{argument}` is neither --config FILE nor KEY=VALUE; `--help` says more");
        };
        settings.push((key.to_owned(), value.to_owned()));
    }
    let variable = |name: &str| std::env::var(name).ok();
    weft_node::run_node(NodeConfig::load(file.as_deref(), variable, &settings)?)
}
