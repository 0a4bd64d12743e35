//! `weft run`: a program on a vGPU.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail};
use weft_device::DeviceSpec;
use weft_device::cuda;
use weft_node::admin::AdminError;

use crate::args::{RunOptions, Sockets};
use crate::{cpu_weight, daemon, output, programs};

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
            Some(AdminError::NotRunning { .. }) => {
                let socket = config.tenant_socket();
                if !socket.exists() {
                    return run_with_own_daemon(options);
                }
                bail!(
                    "the node daemon is not there, but its socket {} is: it was killed or is being \
                     restarted; start it again with `weft node`, or name another --runtime-dir for \
                     a daemon of this run's own",
                    socket.display()
                );
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
    if options.cpu_weight.is_some() && admin.is_none() {
        bail!(
            "--cpu-weight needs the weights of all vGPUs, and the node daemon's admin socket {} is \
             not open to you: run as the daemon's user, let it widen sockets.admin_mode, or leave \
             --cpu-weight out",
            config.admin_socket().display()
        );
    }
    become_weighed(command, &config.sockets.runtime_dir, options)
}

/// The daemon ends with this process, which becomes the program: signals, exit code and terminal
/// are the program's own.
fn run_with_own_daemon(options: &RunOptions) -> Result<ExitCode> {
    output::note("weft: no node daemon is running; starting one for this run");
    let directory = daemon::own_directory()?;
    let mut launcher =
        Command::new(std::env::current_exe().context("cannot find this executable")?);
    launcher.arg("own-node").arg(std::process::id().to_string()).arg(directory.path());
    launcher.args(options.device.iter().map(|device| format!("--device={device}")));
    let launched = launcher.stdin(Stdio::null()).output().context("cannot start a node daemon")?;
    if !launched.status.success() {
        let said = String::from_utf8_lossy(&launched.stderr);
        bail!("{}", said.trim_end().trim_start_matches("error: "));
    }
    // The daemon removes it.
    let directory = directory.keep();
    let mut command = program(options, &directory)?;
    attach(&mut command, &directory);
    become_weighed(command, &directory, options)
}

/// Makes a command attach to the daemon of this runtime directory.
fn attach(command: &mut Command, directory: &Path) {
    command.env("WEFT_SOCKET", directory.join("tenant.sock"));
    command.env("WEFT_RUNTIME_DIR", directory);
}

/// Returns only if the program cannot be run, with the exit codes that shells have for it.
fn become_program(mut command: Command) -> ExitCode {
    let error = command.exec();
    let name = command.get_program().display();
    let is_missing = error.kind() == io::ErrorKind::NotFound;
    let (code, hint) = if is_missing && Path::new(command.get_program()).exists() {
        (126, "the interpreter that its first line names is missing")
    } else if is_missing {
        (127, "give a path, or a program that lies in a folder of PATH")
    } else {
        (
            126,
            "it must be an executable file for this machine; a script may be given to its \
               interpreter: `python3 FILE`",
        )
    };
    output::note(&format!("error: cannot run {name}: {error}\nhint: {hint}"));
    ExitCode::from(code)
}

/// Becomes the program, with a guardian of its processor share if one is asked for.
fn become_weighed(command: Command, directory: &Path, options: &RunOptions) -> Result<ExitCode> {
    if options.cpu_weight.is_some() {
        let own = format!("user-{}", rustix::process::getuid().as_raw());
        if !cpu_weight::watch_own(directory, options.name.as_deref().unwrap_or(&own))? {
            return Ok(ExitCode::from(1));
        }
    }
    Ok(become_program(command))
}

/// Without a daemon: on a software device in the program, or on the genuine driver.
fn run_direct(options: &RunOptions) -> Result<ExitCode> {
    let device = options.device.as_deref().unwrap_or_default();
    if let DeviceSpec::Cuda { ordinal } = DeviceSpec::parse(device)? {
        return Ok(become_program(on_driver(options, ordinal)?));
    }
    let mut command = program(options, &programs::own_dir())?;
    command.env("WEFT_ATTACH", "direct");
    if !device.is_empty() {
        command.env("WEFT_DEVICE", device);
    }
    Ok(become_program(command))
}

/// The program on the genuine driver, with nothing of Weft in it: see [`programs::use_driver`].
fn on_driver(options: &RunOptions, ordinal: Option<u32>) -> Result<Command> {
    let found = cuda::devices(None).context("there is no GPU to run on")?;
    let wanted = ordinal.unwrap_or(0);
    if !found.iter().any(|device| device.ordinal == wanted) {
        bail!("there is no device cuda:{wanted}: the driver lists {}", found.len());
    }
    let mut command = Command::new(&options.program[0]);
    command.args(&options.program[1..]);
    programs::use_driver(&mut command, &programs::own_dir().join("driver"))?;
    if let Some(ordinal) = ordinal {
        command.env("CUDA_VISIBLE_DEVICES", ordinal.to_string());
    }
    Ok(command)
}

fn program(options: &RunOptions, scratch: &Path) -> Result<Command> {
    // A user who may not write into the daemon's directory gets a folder of their own.
    let libraries = programs::library_dir(scratch)
        .or_else(|error| programs::library_dir(&programs::own_dir()).map_err(|_| error))?;
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
