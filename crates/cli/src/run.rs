//! `weft run`: a program on a vGPU.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail};
use weft_device::cuda;
use weft_device::{BackendConfig, DeviceName};
use weft_node::admin::{AdminError, Client, DeviceReport, Request};
use weft_node::{NodeConfig, Processors};

use crate::args::{RunOptions, Sockets, VgpuSettings};
use crate::daemon::Found;
use crate::{cpu_weight, daemon, output, programs, remote};

/// `weft run`
pub(crate) fn run(sockets: &Sockets, options: &RunOptions) -> Result<ExitCode> {
    if options.direct {
        return run_direct(options);
    }
    check_names(&options.names)?;
    if let Some(host) = &options.remote {
        return remote::run(host, sockets, options);
    }
    let Found { config, client } = sockets.find()?;
    let mut admin = match client {
        Ok(mut client) => match sockets.named_socket() {
            Some(socket) if Path::new(&client.node()?.tenant_socket) != socket => {
                return at_socket(&socket, options);
            }
            Some(_) | None => Some(client),
        },
        // The tenant socket may be open to users who must not even look.
        Err(AdminError::Permission { .. }) => None,
        Err(error @ AdminError::NotRunning { .. }) => {
            if let Some(socket) = sockets.named_socket() {
                return at_socket(&socket, options);
            }
            let socket = config.tenant_socket();
            if socket.exists() {
                bail!(
                    "the node daemon is not there, but its socket {} is: it was killed or is being \
                     restarted; start it again with `weft node`, or name another --runtime-dir for \
                     a daemon of this run's own",
                    socket.display()
                );
            }
            if options.no_spawn {
                return Err(error.into());
            }
            let named = sockets.is_flag().then_some(config.sockets.runtime_dir.as_path());
            return run_with_own_daemon(named, options);
        }
        Err(error) => return Err(error.into()),
    };
    if let Some(device) = &options.device {
        bail!(
            "a node daemon runs already and has its device; --device {device} is for a daemon that \
             this run starts: choose another --runtime-dir, or start the daemon with \
             `weft node --device {device}`"
        );
    }
    let runtime_dir = &config.sockets.runtime_dir;
    let mut socket = config.tenant_socket();
    match &mut admin {
        Some(admin) => {
            let node = admin.node()?;
            let one = |device: &DeviceReport| format!("{} ({})", device.product, device.clock);
            let devices: Vec<String> = node.devices.iter().map(one).collect();
            let (dir, devices) = (runtime_dir.display(), devices.join(", "));
            output::note(&format!("weft: on node {dir}, device {devices}"));
            socket = node.tenant_socket.into();
            leave_processors(&node.devices);
            settle(admin, options)?;
        }
        // Nor does it say which processors are a device's.
        None => without_admin_socket(&config, options)?,
    }
    let mut command = program(options, runtime_dir)?;
    command.env("WEFT_SOCKET", socket);
    become_weighed(command, runtime_dir, options)
}

/// At a tenant socket whose node is not known here: an endpoint's (`weft remote`), say.
fn at_socket(socket: &Path, options: &RunOptions) -> Result<ExitCode> {
    let path = socket.display();
    if !socket.exists() {
        bail!(
            "WEFT_SOCKET is {path}, where nothing is: start the node or the endpoint (`weft remote`) \
             that listens there, or unset WEFT_SOCKET"
        );
    }
    let VgpuSettings { weight, memory } = options.settings;
    let wants_node = options.device.is_some() || options.cpu_weight.is_some();
    if wants_node || weight.is_some() || memory.is_some() {
        bail!(
            "--weight, --memory, --cpu-weight and --device need the node itself, and WEFT_SOCKET \
             names the socket {path}, whose node is not known here: leave them out, or name the \
             node with --runtime-dir"
        );
    }
    output::note(&format!("weft: at the socket {path} (WEFT_SOCKET)"));
    let mut command = program(options, &programs::own_dir())?;
    command.env("WEFT_SOCKET", socket);
    Ok(become_program(command))
}

/// Refuses before the program starts what it would be refused.
fn check_names(names: &[String]) -> Result<()> {
    let most = usize::from(weft_node::PROCESS_DEVICES_MAX);
    if names.len() > most {
        bail!("--name has {} vGPUs, and a program has at most {most} devices", names.len());
    }
    match names.iter().enumerate().find(|(at, name)| names[..*at].contains(name)) {
        Some((_, twice)) => {
            bail!("--name has `{twice}` twice: each of a program's devices is another")
        }
        None => Ok(()),
    }
}

/// Devices may have processors of their own: the program runs on the others.
fn leave_processors(devices: &[DeviceReport]) {
    let of = |device: &DeviceReport| device.processors.parse().ok();
    let taken: Vec<Processors> = devices.iter().filter_map(of).collect();
    let taken = Processors::union(&taken);
    if taken.is_empty() {
        return;
    }
    let others = Processors::of_this_thread().map(|own| own.without(&taken));
    if others.and_then(|others| others.keep(None)).is_err() {
        output::note(&format!(
            "weft: the program may use no other processors than {taken}, which are devices' own"
        ));
    }
}

/// What cannot be done without the daemon's admin socket is refused.
fn without_admin_socket(config: &NodeConfig, options: &RunOptions) -> Result<()> {
    let (settings, socket) = (&options.settings, config.admin_socket());
    let socket = socket.display();
    if settings.weight.is_some() || settings.memory.is_some() {
        bail!(
            "--weight and --memory are set through the node's admin socket {socket}, which is not \
             open to you: leave them out, or ask an administrator (`weft create`, `weft set`, or a \
             wider sockets.admin_mode)"
        );
    }
    if options.cpu_weight.is_some() {
        bail!(
            "--cpu-weight needs the weights of all vGPUs, and the node's admin socket {socket} is \
             not open to you: leave it out, or ask an administrator for a wider sockets.admin_mode"
        );
    }
    output::note(&format!("weft: on node {}", config.sockets.runtime_dir.display()));
    Ok(())
}

/// Gives the run's vGPUs the weight and the quota that were asked for, or says why not. One that is
/// not there is created with them.
fn settle(admin: &mut Client, options: &RunOptions) -> Result<()> {
    if options.settings.weight.is_none() && options.settings.memory.is_none() {
        return Ok(());
    }
    vgpus_of(options).iter().try_for_each(|name| settle_one(admin, options, name))
}

fn settle_one(admin: &mut Client, options: &RunOptions, name: &str) -> Result<()> {
    let VgpuSettings { weight, memory } = options.settings;
    let memory_bytes = memory.map(|size| size.0);
    let is_there = |admin: &mut Client| -> Result<bool> {
        Ok(admin.list()?.iter().any(|vgpu| vgpu.name == name))
    };
    if !is_there(admin)? {
        let (owner, token, cap_ppm, sla_ns) = (None, options.token.clone(), None, None);
        let (name, device) = (name.to_owned(), None);
        let create =
            Request::Create { name, device, weight, memory_bytes, owner, token, cap_ppm, sla_ns };
        match admin.call(&create) {
            // Another run may have been quicker.
            Err(AdminError::Refused(_)) if is_there(admin)? => {}
            created => return Ok(created.map(|_| ())?),
        }
    }
    let set = admin.set(name, weight, memory_bytes);
    set.with_context(|| {
        format!(
            "vGPU {name} is there already and cannot be changed so; it is used as it is without \
             --weight and --memory, and another --name is another one"
        )
    })?;
    Ok(())
}

/// The names of the run's vGPUs.
fn vgpus_of(options: &RunOptions) -> Vec<String> {
    if options.names.is_empty() {
        return vec![format!("user-{}", rustix::process::getuid().as_raw())];
    }
    options.names.clone()
}

/// The daemon ends with this process, which becomes the program: signals, exit code and terminal
/// are the program's own. Where a node was said to be, `named`, there is none.
fn run_with_own_daemon(named: Option<&Path>, options: &RunOptions) -> Result<ExitCode> {
    if let Some(device) = &options.device {
        DeviceName::parse(device)?;
    }
    let device = options.device.as_deref().unwrap_or("the software GPU");
    let place = named.map_or_else(String::new, |dir| format!(" in {}", dir.display()));
    output::note(&format!(
        "weft: no node daemon is running{place}; starting one for this run, on {device}"
    ));
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
    let sockets = Sockets { runtime_dir: Some(directory.clone()) };
    settle(&mut sockets.connect()?, options)?;
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
pub(crate) fn become_program(mut command: Command) -> ExitCode {
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
        let vgpus = vgpus_of(options);
        let [vgpu] = vgpus.as_slice() else {
            bail!("--cpu-weight follows one vGPU, and --name has {}: leave one out", vgpus.len());
        };
        if !cpu_weight::watch_own(directory, vgpu)? {
            return Ok(ExitCode::from(1));
        }
    }
    Ok(become_program(command))
}

/// Without a daemon: on a software device in the program, or on the genuine driver.
fn run_direct(options: &RunOptions) -> Result<ExitCode> {
    let device = options.device.as_deref().unwrap_or_default();
    let name = DeviceName::parse(device)?;
    let is_numbered = name.settings.contains_key("ordinal");
    if let BackendConfig::Cuda(gpu) = name.with_defaults()? {
        return Ok(become_program(on_driver(options, is_numbered.then_some(gpu.ordinal))?));
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

/// The command, with the shim and what the options say for it.
pub(crate) fn program(options: &RunOptions, scratch: &Path) -> Result<Command> {
    // A user who may not write into the daemon's directory gets a folder of their own.
    let libraries = programs::library_dir(scratch)
        .or_else(|error| programs::library_dir(&programs::own_dir()).map_err(|_| error))?;
    let mut command = Command::new(&options.program[0]);
    command.args(&options.program[1..]);
    programs::use_shim(&mut command, &libraries);
    if !options.names.is_empty() {
        command.env("WEFT_VGPU", options.names.join(","));
    }
    if let Some(token) = &options.token {
        command.env("WEFT_TOKEN", token);
    }
    Ok(command)
}
