//! Programs that are installed beside `weft` and that it becomes: `weft vm`, `weft control`,
//! `weft endpoint`.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::args::Sockets;
use crate::programs;

/// The program that serves machines.
pub(crate) const GUEST: &str = "weft-guest";

/// The control plane.
pub(crate) const CONTROL: &str = "weft-control";

/// The endpoint of programs and of compute hosts.
pub(crate) const ENDPOINT: &str = "weft-endpoint";

/// One of them.
///
/// # Errors
/// If it is not installed.
pub(crate) fn program(name: &str) -> Result<Command> {
    let program = programs::executable_dir()?.join(name);
    if !program.exists() {
        bail!("{} is missing: it is installed beside `weft`", program.display());
    }
    Ok(Command::new(program))
}

/// `weft vm`: becomes the server of a machine, at this user's node.
pub(crate) fn serve_machine(sockets: &Sockets, arguments: &[OsString]) -> Result<()> {
    let mut command = program(GUEST)?;
    if std::env::var_os("WEFT_SOCKET").is_none() {
        command.env("WEFT_SOCKET", sockets.config()?.tenant_socket());
    }
    become_program(command, "weft vm", arguments)
}

/// `weft control` and `weft endpoint`.
pub(crate) fn serve(name: &str, shown: &str, arguments: &[OsString]) -> Result<()> {
    become_program(program(name)?, shown, arguments)
}

fn become_program(mut command: Command, shown: &str, arguments: &[OsString]) -> Result<()> {
    let what = command.get_program().display().to_string();
    command.arg0(shown).args(arguments);
    Err(command.exec()).with_context(|| format!("cannot start {what}"))
}
