//! Virtual machines with vGPUs: `weft vm` becomes the server of one.

use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::args::{Sockets, VmOptions};
use crate::programs;

/// The program that serves machines.
const GUEST: &str = "weft-guest";

/// `weft vm`: becomes the server of a machine.
pub(crate) fn serve(sockets: &Sockets, options: &VmOptions) -> Result<()> {
    let mut command = guest()?;
    command.arg0("weft vm").args(&options.arguments);
    if std::env::var_os("WEFT_SOCKET").is_none() {
        command.env("WEFT_SOCKET", sockets.config()?.tenant_socket());
    }
    Err(command.exec()).context("cannot start the machine's server")
}

/// The program of servers and agents.
pub(crate) fn guest() -> Result<Command> {
    let program = programs::executable_dir()?.join(GUEST);
    if !program.exists() {
        bail!("{} is missing: it is installed beside `weft`", program.display());
    }
    Ok(Command::new(program))
}
