#![forbid(unsafe_code)]
//! `weft-guest`: the server of a virtual machine on its host, and the agent in the guest. `weft vm`
//! starts the server.

use std::io::Write as _;
use std::num::NonZeroI32;
use std::os::fd::AsFd as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, Parser, Subcommand};
use rustix::process::{Pid, Signal};
use weft_guest::ends::{Ends, end_by};
use weft_guest::folder::Folder;
use weft_guest::opener::{Opener, Wanted};
use weft_guest::qemu::Machine;
use weft_guest::server::Server;
use weft_guest::{agent, devices, lender};
use weft_wire::name::{NAME_RULE, is_vgpu_name};
use weft_wire::size;

/// How often a server looks whether its machine has ended.
const PAUSE: Duration = Duration::from_millis(50);

/// Memory in which Linux and its first file system start.
const RAM_MIN_MIB: u64 = 64;

/// How long a machine whose program has ended has to switch itself off.
const OFF_LIMIT: Duration = Duration::from_secs(10);

/// vGPUs of virtual machines.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Serve the programs of this virtual machine; runs in the guest, as root.
    Agent(AgentOptions),
    /// Serve one virtual machine of your own; runs on its host.
    Serve(ServeOptions),
    /// Start a virtual machine and serve it, until it ends.
    Run {
        #[command(flatten)]
        serve: ServeOptions,
        #[command(flatten)]
        machine: MachineOptions,
    },
    /// Say which devices this virtual machine has.
    Devices,
    /// Open the region of a cloud's machine, with the grants on standard input, and serve it.
    #[command(hide = true)]
    Lend(LendOptions),
    /// Serve one machine whose region is opened by whoever is at standard input.
    #[command(hide = true)]
    Lent {
        /// Folder for the sockets of the machine's serial ports.
        #[arg(long)]
        folder: PathBuf,
    },
    /// Start a cloud's machine, with the devices that another server prints, until it ends.
    #[command(hide = true)]
    Boot {
        /// QEMU's arguments for the devices, one a line.
        #[arg(long)]
        devices: PathBuf,
        #[command(flatten)]
        machine: MachineOptions,
    },
    /// Become a program that ends with the process that started this one.
    #[command(hide = true)]
    Become {
        /// The process that started this one.
        parent: i32,
        /// The program and its arguments.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        program: Vec<std::ffi::OsString>,
    },
}

#[derive(Debug, Args)]
struct AgentOptions {
    /// Socket for the programs (WEFT_SOCKET).
    #[arg(long, value_name = "PATH", default_value = "/run/weft/tenant.sock")]
    socket: PathBuf,
    /// Its permissions, in octal digits.
    #[arg(long, value_name = "OCTAL", default_value = "666", value_parser = octal)]
    mode: u32,
    /// Memory of the ivshmem device, if there are several.
    #[arg(long, value_name = "FILE")]
    region: Option<PathBuf>,
    /// Serial port for frames, if it has another name.
    #[arg(long, value_name = "FILE")]
    control: Option<PathBuf>,
    /// Serial port for marks, if it has another name.
    #[arg(long, value_name = "FILE")]
    marks: Option<PathBuf>,
    /// A program to run; when it ends, the agent does, and the server is told how.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    program: Vec<String>,
}

#[derive(Debug, Args)]
struct ServeOptions {
    /// vGPU of all of the machine's programs, created if it is not there.
    #[arg(value_name = "VGPU", value_parser = vgpu)]
    name: String,
    /// The node's tenant socket.
    #[arg(long, value_name = "PATH", default_value = "/run/weft/tenant.sock", env = "WEFT_SOCKET")]
    node: PathBuf,
    /// Folder for the sockets of the machine's serial ports, which only its user should reach;
    /// a temporary one without it.
    #[arg(long, value_name = "PATH")]
    folder: Option<PathBuf>,
    /// Weight if the vGPU is created, else the node's default; one that is there must have it.
    #[arg(long, value_name = "1-10000", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    weight: Option<u32>,
    /// Memory quota if the vGPU is created; one that is there must have it.
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    memory: Option<u64>,
    /// Attach token of the vGPU.
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        env = "WEFT_TOKEN",
        hide_env_values = true
    )]
    token: String,
    /// Memory that the machine shares with the node: a power of two.
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = bytes)]
    region: u64,
    /// Sessions that this is divided among: programs at once.
    #[arg(
        long, value_name = "1-64", default_value_t = 4,
        value_parser = clap::value_parser!(u8).range(1..=64),
    )]
    sessions: u8,
    /// At the end, print what crossed the machine's border, as JSON.
    #[arg(long)]
    counts: bool,
}

#[derive(Debug, Args)]
struct LendOptions {
    /// The node's tenant socket.
    #[arg(long)]
    node: PathBuf,
    /// Folder for the sockets of the machine's serial ports; it becomes the user's.
    #[arg(long)]
    folder: PathBuf,
    /// User that the server is; this one's if absent.
    #[arg(long)]
    user: Option<u32>,
    /// Memory that the machine shares with the node: a power of two.
    #[arg(long, value_parser = bytes)]
    region: u64,
    /// Sessions that this is divided among.
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=64))]
    sessions: u8,
}

#[derive(Debug, Args)]
struct MachineOptions {
    /// Kernel to boot.
    #[arg(long, value_name = "FILE", value_parser = boot_file)]
    kernel: PathBuf,
    /// Its initial file system, with `weft-guest` and `libcuda.so.1` in it.
    #[arg(long, value_name = "FILE", value_parser = boot_file)]
    initrd: PathBuf,
    /// More words for the kernel's command line.
    #[arg(long, value_name = "WORDS", default_value = "", allow_hyphen_values = true)]
    append: String,
    /// Memory of the guest's own.
    #[arg(long, value_name = "SIZE", default_value = "512MiB", value_parser = ram)]
    ram: u64,
    /// Processors of the guest.
    #[arg(
        long, value_name = "1-255", default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=255),
    )]
    processors: u32,
    /// QEMU's accelerators, in the order in which they are tried.
    #[arg(long, value_name = "NAME[:NAME]", default_value = "kvm:tcg")]
    accel: String,
    /// QEMU's program.
    #[arg(long, value_name = "PROGRAM", default_value = "qemu-system-x86_64")]
    qemu: PathBuf,
    /// One more argument for QEMU.
    #[arg(long = "qemu-arg", value_name = "ARGUMENT", allow_hyphen_values = true)]
    arguments: Vec<String>,
    /// The program to run in the guest, with its arguments: words without spaces, given to the
    /// guest's init.
    #[arg(last = true, value_parser = word)]
    program: Vec<String>,
}

fn octal(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
    mode.ok_or_else(|| format!("`{text}` are no permissions: write 666 or 660"))
}

fn bytes(text: &str) -> Result<u64, String> {
    let bytes = size::parse(text).filter(|bytes| *bytes > 0);
    bytes.ok_or_else(|| format!("`{text}` is no size: write 256MiB or 1GiB"))
}

fn ram(text: &str) -> Result<u64, String> {
    let enough = bytes(text)?;
    let rule = || format!("{text}: a guest with these programs needs {RAM_MIN_MIB}MiB at least");
    (enough >= RAM_MIN_MIB << 20).then_some(enough).ok_or_else(rule)
}

/// A file that QEMU boots from: what it says of one that is not there names no file.
fn boot_file(text: &str) -> Result<PathBuf, String> {
    let cannot = |error| {
        format!(
            "cannot read {text}: {error}; examples/guest/make-image makes a kernel and an initrd"
        )
    };
    let file = std::fs::File::open(text).map_err(cannot)?;
    let is_file = file.metadata().map_err(cannot)?.is_file();
    is_file.then(|| text.into()).ok_or_else(|| format!("{text} is no file"))
}

/// A word of a kernel's command line, and then of a shell's.
fn word(text: &str) -> Result<String, String> {
    let is_one = !text.is_empty()
        && !text.contains(|c: char| c.is_whitespace() || "\"'\\`$*?[](){}<>;&|#~!".contains(c));
    let rule = || {
        "a guest's init gets words without spaces, quotes and what else a shell reads otherwise: \
         put a script into the image"
            .to_owned()
    };
    is_one.then(|| text.to_owned()).ok_or_else(rule)
}

fn vgpu(text: &str) -> Result<String, String> {
    let rule = || format!("a vGPU's name is {NAME_RULE}");
    is_vgpu_name(text).then(|| text.to_owned()).ok_or_else(rule)
}

fn main() -> ExitCode {
    let done = match Arguments::parse().what {
        What::Agent(options) => run_agent(options),
        What::Serve(options) => serve(options),
        What::Run { serve, machine } => run_machine(serve, machine),
        What::Devices => say_devices(),
        What::Lend(options) => run_lender(options),
        What::Lent { folder } => serve_lent(folder),
        What::Boot { devices, machine } => boot(&devices, machine),
        What::Become { parent, program } => become_program(parent, &program),
    };
    match done {
        Ok(status) => ExitCode::from(u8::try_from(status).unwrap_or(u8::MAX)),
        Err(error) => {
            tell(&format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

#[expect(clippy::print_stderr, reason = "the program's only log")]
fn tell(line: &str) {
    eprintln!("{line}");
}

fn answer(line: &str) -> Result<()> {
    let mut out = std::io::stdout();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

fn run_agent(options: AgentOptions) -> Result<i32> {
    let AgentOptions { socket, mode, region, control, marks, program } = options;
    agent::run(&agent::Settings { socket, mode, region, control, marks, program })
}

fn say_devices() -> Result<i32> {
    let (control, marks) = (weft_wire::guest::CONTROL_PORT, weft_wire::guest::MARKS_PORT);
    answer(&format!("region: {}", devices::region()?.display()))?;
    for name in [control, marks] {
        answer(&format!("{name}: {}", devices::port(name)?.display()))?;
    }
    Ok(0)
}

fn open(options: ServeOptions) -> Result<(Server, Folder, bool)> {
    // Before there is something to put away.
    let ends = Ends::by_signals()?;
    let ServeOptions { name, node, folder, weight, memory, token, region, sessions, counts } =
        options;
    let folder = match folder {
        Some(folder) => Folder::given(folder)?,
        None => Folder::temporary(&name)?,
    };
    let wanted = Wanted {
        node,
        vgpu: name,
        weight: weight.unwrap_or(0),
        memory_bytes: memory.unwrap_or(0),
        token,
        region_bytes: region,
        sessions,
    };
    let server = Server::open(Opener::Own(wanted), ends, folder.path().to_owned())?;
    Ok((server, folder, counts))
}

/// `weft-guest serve`
fn serve(options: ServeOptions) -> Result<i32> {
    let (server, folder, _) = open(options)?;
    let signal = serve_always(server)?;
    drop(folder);
    Ok(end_by(signal)?)
}

/// `weft-guest lend`
fn run_lender(options: LendOptions) -> Result<i32> {
    let LendOptions { node, folder, user, region, sessions } = options;
    let (vgpu, token) = lender::grants()?;
    let (weight, memory_bytes) = (0, 0);
    let wanted = Wanted { node, vgpu, weight, memory_bytes, token, region_bytes: region, sessions };
    lender::run(&wanted, &folder, user)
}

/// `weft-guest lent`
fn serve_lent(folder: PathBuf) -> Result<i32> {
    let folder = Folder::given(folder)?;
    let lender = std::io::stdin().as_fd().try_clone_to_owned()?;
    let ends = Ends::by_signals()?;
    let signal = serve_always(Server::open(Opener::Lent(lender), ends, folder.path().to_owned())?)?;
    drop(folder);
    Ok(end_by(signal)?)
}

/// Serves until a signal ends it, which it returns. What QEMU needs is printed, an argument a line.
fn serve_always(mut server: Server) -> Result<i32> {
    for argument in server.devices() {
        answer(&argument)?;
    }
    answer("ready")?;
    loop {
        server.step(Duration::from_secs(3600))?;
        if let Some(signal) = server.told_to_end() {
            return Ok(signal);
        }
    }
}

fn run_machine(options: ServeOptions, machine: MachineOptions) -> Result<i32> {
    let (mut server, folder, wants_counts) = open(options)?;
    let mut child = start(machine, &server.devices())?;
    let end = attend(&mut server, &mut child)?;
    drop((child, folder));
    if wants_counts {
        let counts = server.counts();
        answer(&format!(
            "{{\"sessions\": {}, \"marks_in\": {}, \"marks_out\": {}}}",
            counts.sessions, counts.marks_in, counts.marks_out
        ))?;
    }
    match end {
        End::Status(status) => Ok(status),
        End::Signal(signal) => Ok(end_by(signal)?),
    }
}

/// `weft-guest boot`
fn boot(devices: &Path, machine: MachineOptions) -> Result<i32> {
    let devices = std::fs::read_to_string(devices)
        .with_context(|| format!("cannot read {}", devices.display()))?;
    let devices: Vec<String> = devices.lines().map(str::to_owned).collect();
    let status = start(machine, &devices)?.0.wait()?;
    Ok(status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(-1))
}

/// Starts QEMU with these devices besides.
fn start(machine: MachineOptions, devices: &[String]) -> Result<Qemu> {
    let machine = Machine {
        qemu: machine.qemu,
        accel: machine.accel,
        memory_mib: machine.ram >> 20,
        processors: machine.processors,
        kernel: machine.kernel,
        initrd: machine.initrd,
        append: machine.append,
        arguments: machine.arguments,
        program: machine.program,
    };
    let child = bound(&machine.command(devices))?.stdin(Stdio::null()).spawn();
    Ok(Qemu(child.context("cannot start QEMU")?))
}

/// The same command as a process that ends with this one, however this one ends.
fn bound(command: &Command) -> Result<Command> {
    let mut bound = Command::new(std::env::current_exe()?);
    bound.arg("become").arg(std::process::id().to_string()).arg("--");
    bound.arg(command.get_program()).args(command.get_args());
    Ok(bound)
}

/// Becomes a program that is killed when the parent of this process ends.
fn become_program(parent: i32, program: &[std::ffi::OsString]) -> Result<i32> {
    let (name, arguments) = program.split_first().context("no program")?;
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    if rustix::process::getppid().map(Pid::as_raw_nonzero) != NonZeroI32::new(parent) {
        bail!("the process that started this one has ended");
    }
    let error = Command::new(name).args(arguments).exec();
    Err(error).with_context(|| {
        format!(
            "cannot start {}: install qemu-system-x86, or name it with --qemu",
            name.to_string_lossy()
        )
    })
}

/// A machine that ends with this value.
struct Qemu(Child);

impl Drop for Qemu {
    fn drop(&mut self) {
        // One that has ended is reaped.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// How a machine ended.
enum End {
    /// Its program, with this status.
    Status(i32),
    /// This process is to end by this signal.
    Signal(i32),
}

/// Serves a machine until it ends, or this process is to end.
///
/// # Errors
/// If it ended before its program did: QEMU ends well when a kernel stops and starts again.
fn attend(server: &mut Server, qemu: &mut Qemu) -> Result<End> {
    let mut over_at = None;
    loop {
        server.step(PAUSE)?;
        if let Some(signal) = server.told_to_end() {
            return Ok(End::Signal(signal));
        }
        if let Some(status) = qemu.0.try_wait()? {
            if let Some(signal) = status.signal() {
                tell(&format!("weft-guest: QEMU was ended by signal {signal}"));
            }
            let of_qemu = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
            let ended = server.exited().or_else(|| of_qemu.filter(|status| *status != 0));
            return ended.map(End::Status).context(
                "the machine ended before its program did: its kernel or its init stopped, of which \
                 its console above may say more (--append \"loglevel=7\")",
            );
        }
        if let Some(status) = server.exited() {
            let since = *over_at.get_or_insert_with(std::time::Instant::now);
            if since.elapsed() > OFF_LIMIT {
                return Ok(End::Status(status));
            }
        }
    }
}
