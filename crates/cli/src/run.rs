//! `weft run`: a program on a vGPU.

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, ExitCode, ExitStatus};

use anyhow::{Context, Result, bail};
use weft_device::DeviceSpec;
use weft_device::cuda;
use weft_node::admin::AdminError;

use crate::args::{RunOptions, Sockets};
use crate::daemon::OwnDaemon;
use crate::{cpu_weight, output, programs};

/// `weft run`
pub(crate) fn run(sockets: &Sockets, options: &RunOptions) -> Result<ExitCode> {
    if options.direct {
        return run_direct(options);
    }
    let config = sockets.config()?;
    let mut admin = match sockets.connect() {
        Ok(client) => Some(client),
        Err(error) => match error.downcast_ref::<AdminError>() {
            // The tenant socket may be open to users who must not administrate.
            Some(AdminError::Permission { .. }) => None,
            Some(AdminError::NotRunning { .. }) if !config.tenant_socket().exists() => {
                return run_with_own_daemon(options);
            }
            _ => return Err(error),
        },
    };
    if let Some(device) = &options.device {
        bail!(
            "a node daemon runs already and has its device; --device {device} is for a daemon that \
             this run starts: choose another --runtime-dir, or start the daemon with \
             `weft node --device {device}`"
        );
    }
    if let (Some(admin), Some(name)) = (&mut admin, &options.name)
        && admin.list()?.iter().any(|vgpu| vgpu.name == *name)
        && (options.settings.weight.is_some() || options.settings.memory.is_some())
    {
        admin.set(name, options.settings.weight, options.settings.memory.map(|size| size.0))?;
    }
    let mut command = program(options, &config.sockets.runtime_dir)?;
    command.env("WEFT_SOCKET", config.tenant_socket());
    if options.cpu_weight.is_some() {
        if admin.is_none() {
            bail!("--cpu-weight needs the admin socket: the weights of all vGPUs");
        }
        return weighed(command, sockets, options);
    }
    let error = command.exec();
    Err(error).with_context(|| format!("cannot run {}", options.program[0]))
}

fn run_with_own_daemon(options: &RunOptions) -> Result<ExitCode> {
    output::note("weft: no node daemon is running; starting one for this run");
    let device = options.device.as_deref().map(|device| ("device", device));
    let daemon = OwnDaemon::start(device.as_slice())?;
    let mut command = program(options, daemon.path())?;
    command.env("WEFT_SOCKET", daemon.tenant_socket());
    command.env("WEFT_RUNTIME_DIR", daemon.path());
    if options.cpu_weight.is_some() {
        return weighed(command, &daemon.sockets(), options);
    }
    wait(command, options)
}

fn weighed(command: Command, sockets: &Sockets, options: &RunOptions) -> Result<ExitCode> {
    let own = format!("user-{}", rustix::process::getuid().as_raw());
    let status = cpu_weight::run(command, sockets, options.name.as_deref().unwrap_or(&own))?;
    Ok(ExitCode::from(exit_code(status)))
}

/// Without a daemon: on a software device in the program, or on the genuine driver.
fn run_direct(options: &RunOptions) -> Result<ExitCode> {
    let scratch = tempfile::Builder::new().prefix("weft-direct-").tempdir()?;
    let device = options.device.as_deref().unwrap_or_default();
    if let DeviceSpec::Cuda { ordinal } = DeviceSpec::parse(device)? {
        return wait(on_driver(options, ordinal, scratch.path())?, options);
    }
    let mut command = program(options, scratch.path())?;
    command.env("WEFT_ATTACH", "direct");
    if !device.is_empty() {
        command.env("WEFT_DEVICE", device);
    }
    wait(command, options)
}

/// The program on the genuine driver, with nothing of Weft in it: see [`programs::use_driver`].
fn on_driver(options: &RunOptions, ordinal: Option<u32>, scratch: &Path) -> Result<Command> {
    let found = cuda::devices(None).context("there is no GPU to run on")?;
    let wanted = ordinal.unwrap_or(0);
    if !found.iter().any(|device| device.ordinal == wanted) {
        bail!("there is no device cuda:{wanted}: the driver lists {}", found.len());
    }
    let mut command = Command::new(&options.program[0]);
    command.args(&options.program[1..]);
    programs::use_driver(&mut command, scratch)?;
    if let Some(ordinal) = ordinal {
        command.env("CUDA_VISIBLE_DEVICES", ordinal.to_string());
    }
    Ok(command)
}

fn program(options: &RunOptions, scratch: &Path) -> Result<Command> {
    // A user who may not write into the daemon's directory gets a folder of their own.
    let libraries = programs::library_dir(scratch).or_else(|error| {
        let own = std::env::temp_dir().join(format!("weft-{}", rustix::process::getuid().as_raw()));
        programs::library_dir(&own).map_err(|_| error)
    })?;
    let mut command = Command::new(&options.program[0]);
    command.args(&options.program[1..]);
    programs::use_shim(&mut command, &libraries);
    if let Some(name) = &options.name {
        command.env("WEFT_VGPU", name);
    }
    if let Some(weight) = options.settings.weight {
        command.env("WEFT_WEIGHT", weight.to_string());
    }
    if let Some(memory) = options.settings.memory {
        command.env("WEFT_MEMORY", memory.0.to_string());
    }
    if let Some(token) = &options.token {
        command.env("WEFT_TOKEN", token);
    }
    Ok(command)
}

fn wait(mut command: Command, options: &RunOptions) -> Result<ExitCode> {
    let status = command.status().with_context(|| format!("cannot run {}", options.program[0]))?;
    Ok(ExitCode::from(exit_code(status)))
}

/// The program's own code; 128 + the signal that ended it, as shells say it.
fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    u8::try_from(code & 0xff).unwrap_or(1)
}
