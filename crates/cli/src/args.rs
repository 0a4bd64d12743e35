//! The command line, as typed.

mod workload;

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};
use weft_node::config::{ByteSize, NAME_RULE, is_vgpu_name};

pub(crate) use self::workload::{
    GpuTraceOptions, GpuTracePart, JobLimit, LublinOptions, WorkloadCommand, WorkloadFormat,
    WorkloadOptions,
};
use crate::{remote, users};

/// Shares GPUs among tenants: unmodified CUDA programs, weighted fairness, quotas, isolation.
#[derive(Debug, Parser)]
#[command(name = "weft", version, propagate_version = true, arg_required_else_help = true)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) sockets: Sockets,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Where the node daemon is.
#[derive(Debug, Clone, Args)]
pub(crate) struct Sockets {
    /// Directory of the node daemon's sockets.
    #[arg(
        long,
        global = true,
        env = "WEFT_RUNTIME_DIR",
        value_name = "DIR",
        // An empty variable is one that is not set.
        value_parser = OsStringValueParser::new().map(PathBuf::from)
    )]
    pub(crate) runtime_dir: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a program on a vGPU (starts a node daemon for this run if none is there).
    Run(RunOptions),
    /// Run the node daemon.
    Node(NodeOptions),
    /// Start a daemon that ends with the process OWNER, and return when it is ready.
    #[command(hide = true)]
    OwnNode {
        owner: i32,
        directory: PathBuf,
        #[arg(long)]
        device: Option<String>,
    },
    /// Start a guardian that weighs the processes of OWNER as the vGPU NAME, until OWNER ends.
    #[command(hide = true)]
    Weigh {
        owner: i32,
        name: String,
        /// Be the guardian.
        #[arg(long)]
        stay: bool,
    },
    /// Execute one session; started by the daemon.
    #[command(hide = true)]
    Worker,
    /// Run the tasks of one virtual accelerator; started by the daemon.
    #[command(hide = true)]
    Runner,
    /// End boosts that nobody else ends; started by the daemon.
    #[command(hide = true)]
    Watchdog,
    /// List vGPUs and who uses them.
    Ls {
        /// List the devices instead.
        #[arg(long)]
        devices: bool,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Show what each vGPU has used over its life.
    Usage {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Create a vGPU.
    Create {
        /// Its name.
        #[arg(value_parser = vgpu_name)]
        name: String,
        /// Make it a virtual accelerator, which takes tasks and no programs: any device of the pool
        /// that `--device` names runs them.
        #[arg(long, requires = "device", conflicts_with = "cap")]
        tasks: bool,
        #[command(flatten)]
        settings: VgpuSettings,
        #[command(flatten)]
        bound: BoundSettings,
        #[command(flatten)]
        access: AccessSettings,
    },
    /// Let programs of another host use a vGPU, created if it is not there: prints a grant.
    Token(TokenOptions),
    /// Serve this user's programs with a vGPU of another host, until stopped.
    Remote(RemoteOptions),
    /// Start a virtual machine whose programs have a vGPU (`weft vm run`), or serve one of your own
    /// (`weft vm serve`): `weft vm --help` says how.
    #[command(disable_help_flag = true)]
    Vm(OthersOptions),
    /// Run the cloud's control plane, which hands vGPUs out to VMs: what `weft-control` does.
    #[command(disable_help_flag = true)]
    Control(OthersOptions),
    /// Lead programs or virtual machines to GPUs of other hosts: what `weft-endpoint` does.
    #[command(disable_help_flag = true)]
    Endpoint(OthersOptions),
    /// Change a vGPU or virtual accelerator while it runs, or the weight of a user or of a process.
    Set(SetOptions),
    /// Remove a vGPU.
    Rm {
        /// Its name.
        name: String,
        /// End its sessions first.
        #[arg(long)]
        force: bool,
    },
    /// Move a vGPU to another device while its programs run.
    Move {
        /// The vGPU.
        name: String,
        /// The device, or a pool of which it is to be another one.
        device: String,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Take a device out of service, or put it back: its vGPUs move to others of its pool, with the
    /// programs that use them where they can.
    Device {
        /// What to do.
        #[arg(value_enum)]
        action: DeviceAction,
        /// The device.
        name: String,
        /// End the programs on it that cannot go to another device.
        #[arg(long)]
        force: bool,
    },
    /// Show the scheduling policy, or change it.
    Policy {
        /// The new policy.
        name: Option<String>,
        /// Of this device; of all without it.
        #[arg(long, requires = "name")]
        device: Option<String>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Watch who uses the devices.
    Top {
        /// Time between two looks.
        #[arg(long, default_value_t = 500, value_name = "MS",
              value_parser = clap::value_parser!(u64).range(10..=3_600_000))]
        interval_ms: u64,
        /// Print lines, also on a terminal.
        #[arg(long)]
        plain: bool,
        /// Print a JSON object per look, each on a line.
        #[arg(long, conflicts_with = "plain")]
        json: bool,
        /// Print one look, and end.
        #[arg(long)]
        once: bool,
    },
    /// Show who has which slots of the devices' memory.
    Memory {
        /// Of this device; of all without it.
        device: Option<String>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Check this machine, its devices and the daemon.
    Doctor {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Print the daemon's metrics (Prometheus text).
    Metrics {
        /// Print the same as JSON.
        #[arg(long)]
        json: bool,
    },
    /// Stop the node daemon and its workers.
    Stop {
        /// End the programs that run on it.
        #[arg(long)]
        force: bool,
    },
    /// Three programs share one software GPU by weight; then the same without Weft.
    Demo(DemoOptions),
    /// Hold the scheduling core against a journal, to the first difference.
    Replay {
        /// A file of a journal, or its folder.
        journal: PathBuf,
        /// The longest command that the device could not cut: with it, a lag beyond the bound is an
        /// error.
        #[arg(long, value_name = "US")]
        longest_us: Option<u64>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Write a timeline that Perfetto or chrome://tracing shows.
    Trace(TraceOptions),
    /// Measure; `weft bench --help` lists the benchmarks.
    Bench(BenchOptions),
    /// Simulate; the scheduling core is the daemon's. `weft sim --help` lists the experiments.
    Sim(SimOptions),
    /// Generate or import a workload of tasks.
    Workload {
        #[command(subcommand)]
        what: WorkloadCommand,
    },
}

/// Weight and quota of a vGPU.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct VgpuSettings {
    /// Weight, 1 to 10,000.
    #[arg(long, allow_hyphen_values = true, value_parser = weight)]
    pub(crate) weight: Option<u32>,
    /// Memory quota, such as 512MiB.
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true, value_parser = quota)]
    pub(crate) memory: Option<ByteSize>,
}

/// What bounds and hurries a vGPU's use of the device.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct BoundSettings {
    /// The most of the device that it may use, even if nobody else wants it, such as 25% or none.
    #[arg(long, value_name = "PERCENT", allow_hyphen_values = true)]
    pub(crate) cap: Option<weft_node::config::CapSetting>,
    /// Make it user-facing: its work should be done within this time, such as 200ms, and goes
    /// before batch work while its weight allows; none makes it batch. For administrators.
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub(crate) sla: Option<weft_node::config::SlaSetting>,
}

/// Who may attach to a vGPU.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct AccessSettings {
    /// The user who owns it, by name or number; you without it.
    #[arg(long, value_name = "USER", value_parser = users::number)]
    pub(crate) owner: Option<u32>,
    /// The device that it lives on, or the pool of devices; where there is room without it.
    #[arg(long, value_name = "DEVICE|POOL")]
    pub(crate) device: Option<String>,
    /// A token that programs must show (`WEFT_TOKEN`) to attach, or to submit tasks.
    #[arg(long)]
    pub(crate) token: Option<String>,
}

/// `weft set`
#[derive(Debug, Args)]
pub(crate) struct SetOptions {
    /// The vGPU.
    #[arg(required_unless_present_any = ["tenant", "process"])]
    pub(crate) name: Option<String>,
    #[command(flatten)]
    pub(crate) settings: VgpuSettings,
    #[command(flatten)]
    pub(crate) bound: BoundSettings,
    /// Set the weight of this user (name or number), whose vGPUs share one part, instead.
    #[arg(
        long,
        value_name = "USER",
        value_parser = users::number,
        requires = "weight",
        conflicts_with_all = ["name", "memory", "cap", "sla", "process"]
    )]
    pub(crate) tenant: Option<u32>,
    /// Set the weight of this process within its vGPU's part instead.
    #[arg(
        long,
        value_name = "PID",
        requires = "weight",
        conflicts_with_all = ["name", "memory", "cap", "sla"]
    )]
    pub(crate) process: Option<u32>,
}

/// What `weft device` does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DeviceAction {
    /// Take it out of service.
    Down,
    /// Put it back.
    Up,
}

/// `weft run`
#[derive(Debug, Args)]
#[command(override_usage = "weft run [OPTIONS] [--] PROGRAM [ARGUMENTS]...")]
pub(crate) struct RunOptions {
    /// vGPU to use, or several with commas between them, which the program sees as its devices;
    /// created if they are not there. Without it: `user-UID`, the user's own.
    #[arg(long = "name", value_name = "NAME,…", value_delimiter = ',', value_parser = vgpu_name)]
    pub(crate) names: Vec<String>,
    #[command(flatten)]
    pub(crate) settings: VgpuSettings,
    /// Attach token of the vGPU.
    #[arg(long, env = "WEFT_TOKEN", hide_env_values = true)]
    pub(crate) token: Option<String>,
    /// Give the program's processes the processor share that its device share needs.
    #[arg(long, value_enum, value_name = "HOW", conflicts_with = "direct")]
    pub(crate) cpu_weight: Option<CpuWeight>,
    /// Run without a daemon, the native baseline: on a software device inside the program, or with
    /// `--device cuda` on the genuine driver itself.
    #[arg(long, conflicts_with_all = ["names", "weight", "memory", "token"])]
    pub(crate) direct: bool,
    /// Fail if no node daemon is there, instead of starting one for this run.
    #[arg(long, conflicts_with = "direct")]
    pub(crate) no_spawn: bool,
    /// Device of the daemon that is started for this run, or of a direct run: soft, soft:paced,
    /// soft:paced:MODEL.toml, soft:check, cuda, cuda:N.
    #[arg(long, value_name = "DEVICE")]
    pub(crate) device: Option<String>,
    /// Use a vGPU of another host, whose gateway is there.
    #[arg(long, value_name = "HOST:PORT", value_parser = remote::address,
          conflicts_with_all = ["direct", "device", "cpu_weight", "no_spawn"])]
    pub(crate) remote: Option<String>,
    /// Compress what is copied, where it shrinks: for networks that are slower than the processors.
    #[arg(long, requires = "remote")]
    pub(crate) compress: bool,
    /// File with the grant for it, that `weft token` printed there; several, one a line, for
    /// several vGPUs.
    #[arg(long, value_name = "FILE", requires = "remote")]
    pub(crate) token_file: Option<PathBuf>,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true)]
    pub(crate) program: Vec<String>,
}

/// `weft token`
#[derive(Debug, Args)]
pub(crate) struct TokenOptions {
    /// The vGPU.
    #[arg(value_parser = vgpu_name)]
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) settings: VgpuSettings,
    /// For how long sessions may begin with the grant: 90s, 15m, 2h, 7d.
    #[arg(long = "for", value_name = "TIME", default_value = "1h", value_parser = weft_api::times::duration,
          allow_hyphen_values = true)]
    pub(crate) valid: Duration,
    /// How many endpoints may use it: the first that do.
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) uses: u32,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// `weft remote`
#[derive(Debug, Args)]
pub(crate) struct RemoteOptions {
    /// The other host's gateway.
    #[arg(value_name = "HOST:PORT", value_parser = remote::address)]
    pub(crate) remote: String,
    /// File with the grant that `weft token` printed there; several, one a line, for several vGPUs.
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: PathBuf,
    /// Compress what is copied, where it shrinks: for networks that are slower than the processors.
    #[arg(long)]
    pub(crate) compress: bool,
    /// Socket for the programs: name it to them as WEFT_SOCKET.
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: PathBuf,
}

/// What a program is told that `weft` becomes: `weft vm`, `weft control`, `weft endpoint`.
#[derive(Debug, Args)]
pub(crate) struct OthersOptions {
    /// Passed on as they are.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) arguments: Vec<std::ffi::OsString>,
}

/// How a program's processes are weighed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum CpuWeight {
    /// As its vGPU is among those in use, live.
    Auto,
}

/// `weft node`
#[derive(Debug, Args)]
pub(crate) struct NodeOptions {
    /// Configuration file (TOML).
    #[arg(long, env = "WEFT_CONFIG")]
    pub(crate) config: Option<PathBuf>,
    /// Device to execute on: soft, soft:paced, soft:paced:MODEL.toml, soft:check, cuda, cuda:N;
    /// several with commas between them.
    #[arg(long, value_name = "DEVICE")]
    pub(crate) device: Option<String>,
    /// Check the configuration and what it needs, print it whole, and start nothing.
    #[arg(long)]
    pub(crate) check: bool,
    /// Keep a journal in this folder (`journal.dir`).
    #[arg(long, value_name = "DIR")]
    pub(crate) journal: Option<PathBuf>,
    /// End with this process, and remove the runtime directory: a daemon for one run.
    #[arg(long, hide = true, value_name = "PID")]
    pub(crate) owner: Option<i32>,
    /// Set one key of the configuration, such as `scheduling.policy=unmanaged`.
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = key_value)]
    pub(crate) settings: Vec<(String, String)>,
}

/// `weft trace`
#[derive(Debug, Args)]
pub(crate) struct TraceOptions {
    /// How long to record what the node does.
    #[arg(
        long,
        default_value_t = 5,
        conflicts_with = "journal",
        value_parser = clap::value_parser!(u32).range(1..=600)
    )]
    pub(crate) seconds: u32,
    /// Show this file of a journal, or its folder, instead.
    #[arg(long, value_name = "PATH")]
    pub(crate) journal: Option<PathBuf>,
    /// Where to write it.
    #[arg(short, long, default_value = "weft-trace.json", value_name = "FILE")]
    pub(crate) output: PathBuf,
}

/// `weft demo`
#[derive(Debug, Args)]
pub(crate) struct DemoOptions {
    /// Folder of the compiled example programs.
    #[arg(long)]
    pub(crate) programs: Option<PathBuf>,
    /// Python with tinygrad and NumPy; without it all three tenants are C programs.
    #[arg(long)]
    pub(crate) python: Option<PathBuf>,
    /// The training program for Python.
    #[arg(long, requires = "python")]
    pub(crate) train: Option<PathBuf>,
    /// How long each of the two runs lasts.
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u64).range(3..=600))]
    pub(crate) seconds: u64,
    /// Where to write the timeline page.
    #[arg(long, default_value = "weft-demo.html")]
    pub(crate) page: PathBuf,
}

/// `weft bench`
#[derive(Debug, Args)]
pub(crate) struct BenchOptions {
    /// Which benchmark.
    #[arg(value_enum)]
    pub(crate) name: crate::bench::Name,
    /// Print one JSON document instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
    /// Folder of the compiled programs.
    #[arg(long)]
    pub(crate) programs: Option<PathBuf>,
    /// A shorter, coarser run (for checking that it works).
    #[arg(long)]
    pub(crate) quick: bool,
    /// `scale`: how many vGPUs are attached at once; 1,024, or 64 if quick.
    #[arg(long, value_parser = clap::value_parser!(u32).range(4..=4000))]
    pub(crate) vgpus: Option<u32>,
    /// Reach the vGPU another way: `tls` for `call`, `copy` and `overhead`; `vm` for these, and
    /// `fairness`, `fairgv` and `cosched`.
    #[arg(long, value_enum, value_name = "WAY")]
    pub(crate) via: Option<crate::bench::via::Via>,
    /// `adversary`: the device has the last of the processors to itself, as a GPU has its own; the
    /// daemon and all programs have the others.
    #[arg(long)]
    pub(crate) apart: bool,
    /// Of `--via vm` and `control`: folder that examples/guest/make-image made, with the programs
    /// in it.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) guest: Option<PathBuf>,
    /// `memory`: Python with tinygrad and NumPy; without it its clients are compiled programs.
    #[arg(long, value_name = "PATH", requires = "train")]
    pub(crate) python: Option<PathBuf>,
    /// The training program for Python.
    #[arg(long, value_name = "FILE", requires = "python")]
    pub(crate) train: Option<PathBuf>,
    /// Only these attacks of `adversary`, these runs of `flexy` (`deadline_80_20`), these programs
    /// of `fairgv --via vm` (`MM`, `figure2`), these applications of `remote`, these sets of
    /// `fairness`, these runs of `latency`, or these parts of `memory`; a wrong name lists them.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) only: Vec<String>,
}

/// `weft sim`
#[derive(Clone, Debug, Args)]
#[command(after_help = sim_names())]
pub(crate) struct SimOptions {
    /// Which experiment.
    pub(crate) name: String,
    /// What makes this run differ from others; the same seed gives the same figures.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Run the paper's experiments with so many seeds from SEED on: medians, least and largest.
    /// [default: 10 for all experiments together, else 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) seeds: Option<u32>,
    /// Print one JSON document instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
    /// Shorter and coarser (for checking that it works).
    #[arg(long)]
    pub(crate) quick: bool,
    /// What things cost (TOML); what it lacks is as compiled in.
    #[arg(long, value_name = "FILE")]
    pub(crate) calibration: Option<PathBuf>,
    /// Write index.html, report.json and README.md there.
    #[arg(long, value_name = "DIR")]
    pub(crate) report: Option<PathBuf>,
    /// JSON documents of `weft bench` to stand beside in the report.
    #[arg(long, value_name = "DIR", requires = "report")]
    pub(crate) real: Option<PathBuf>,
    /// Folder of the compiled programs that `predict` runs.
    #[arg(long, value_name = "DIR")]
    pub(crate) programs: Option<PathBuf>,
    /// A tenant of the experiment `profiles`: its weight and its launches (CSV or JSON).
    #[arg(long = "profile", value_name = "WEIGHT:FILE", value_parser = weighted_file)]
    pub(crate) profiles: Vec<(u32, PathBuf)>,
    /// Jobs that `flexy` runs under every policy instead: what `weft workload flexy` printed, or
    /// `-` for standard input.
    #[arg(long, value_name = "FILE",
          conflicts_with_all = ["seeds", "quick", "report", "calibration"])]
    pub(crate) jobs: Option<PathBuf>,
    /// Devices for those jobs.
    #[arg(long, value_name = "N", requires = "jobs", default_value_t = 4,
          value_parser = clap::value_parser!(u32).range(1..=1_024))]
    pub(crate) devices: u32,
    /// SLA of their user-facing tasks, such as 10s.
    #[arg(
        long,
        value_name = "TIME",
        requires = "jobs",
        default_value = "200ms",
        allow_hyphen_values = true
    )]
    pub(crate) sla: weft_node::config::SlaSetting,
    /// Pods of Alibaba's GPU trace (`openb_pod_list_default.csv`), for `gsaas`.
    #[arg(long, value_name = "FILE", requires = "nodes")]
    pub(crate) pods: Option<PathBuf>,
    /// Its hosts (`openb_node_list_gpu_node.csv`), for `gsaas`.
    #[arg(long, value_name = "FILE", requires = "pods")]
    pub(crate) nodes: Option<PathBuf>,
    /// A log of jobs in the standard workload format, for `gsaas`; may be given several times.
    #[arg(long, value_name = "FILE")]
    pub(crate) swf: Vec<PathBuf>,
}

/// The smallest quota: a page.
const QUOTA_MIN: ByteSize = ByteSize(4096);

fn quota(text: &str) -> Result<ByteSize, String> {
    let size: ByteSize = text.parse()?;
    if size < QUOTA_MIN {
        return Err(format!("a quota is at least {QUOTA_MIN}"));
    }
    Ok(size)
}

fn weight(text: &str) -> Result<u32, String> {
    let weight = text.parse().ok().filter(|weight| (1..=10_000).contains(weight));
    weight.ok_or_else(|| format!("`{text}` is not a weight: a whole number, 1 to 10000"))
}

fn vgpu_name(text: &str) -> Result<String, String> {
    match is_vgpu_name(text) {
        true => Ok(text.to_owned()),
        false => Err(format!("a vGPU's name is {NAME_RULE}")),
    }
}

fn sim_names() -> String {
    format!("Experiments: {}", crate::sim::names())
}

fn weighted_file(text: &str) -> Result<(u32, PathBuf), String> {
    let (weight, path) =
        text.split_once(':').ok_or_else(|| format!("`{text}` is not WEIGHT:FILE"))?;
    Ok((self::weight(weight)?, path.into()))
}

fn key_value(text: &str) -> Result<(String, String), String> {
    text.split_once('=')
        .map(|(key, value)| (key.trim().to_owned(), value.trim().to_owned()))
        .ok_or_else(|| format!("`{text}` is not KEY=VALUE"))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::Arguments;

    /// Every option and argument of a command and of those below it says what it is.
    fn check(command: &clap::Command) {
        for argument in command.get_arguments() {
            let (name, of) = (argument.get_id(), command.get_name());
            let is_hidden = command.is_hide_set() || argument.is_hide_set();
            assert!(is_hidden || argument.get_help().is_some(), "`{of}` has no help for {name}");
        }
        command.get_subcommands().for_each(check);
    }

    #[test]
    fn every_option_is_documented() {
        let mut command = Arguments::command();
        command.build();
        check(&command);
    }
}
