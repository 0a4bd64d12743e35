//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand, ValueEnum};
use weft_api::v1::{CGPUS_MAX, Role, TOKEN_VALID_S_MAX, check_address};
use weft_sched::placement::AMOUNT_MAX;

/// Hands GPUs out to VMs across a cloud.
#[derive(Debug, Parser)]
#[command(name = "weft-control", version)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) what: What,
}

#[derive(Debug, Subcommand)]
pub(crate) enum What {
    /// Serve the REST interface, and see to the instances.
    Serve(Box<ServeOptions>),
    /// A whole cloud on this machine: a node with software GPUs, VMs that are processes, and this.
    Local(LocalOptions),
    /// Make a token, also before the first start; the secret is printed once. Or take one back.
    Token(TokenOptions),
    /// List tokens, without their secrets.
    Tokens(TokensOptions),
    /// Print the OpenAPI document.
    Openapi,
    /// Measure the control plane alone, with VMs and nodes in memory.
    Bench {
        /// Seconds of each throughput.
        #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=60))]
        seconds: u64,
        /// Measure also what cGPUs add to a VM's boot: boot what `examples/guest/make-image` has
        /// made in this folder, with a node of its own.
        #[arg(long, value_name = "FOLDER")]
        guest: Option<PathBuf>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Measure how long VMs take at a control plane that runs, part for part.
    Deployment(DeploymentOptions),
    /// A VM of this host; started by the local provisioner.
    #[command(hide = true)]
    Guest {
        /// Its folder.
        #[arg(long)]
        folder: PathBuf,
    },
    /// The same, within its namespaces.
    #[command(hide = true)]
    Inside {
        /// Its folder.
        #[arg(long)]
        folder: PathBuf,
    },
    /// The memory that a VM shares with nodes of this host; started by the local provisioner.
    #[command(hide = true)]
    Region {
        /// The VM's folder.
        #[arg(long)]
        folder: PathBuf,
    },
    /// The endpoint of a VM of this host; started by the local provisioner.
    #[command(hide = true)]
    Relay {
        /// The VM's folder.
        #[arg(long)]
        folder: PathBuf,
    },
}

/// Where VMs come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProvisionerName {
    /// Processes of this host.
    Local,
    /// Servers of an OpenStack cloud, which the OS_… variables name.
    Openstack,
    /// Jobs of Slurm, whose prolog asks for cGPUs.
    Slurm,
    /// Nowhere: they are only said to be there. For trying the interface.
    Fake,
}

#[derive(Debug, Args)]
pub(crate) struct DeploymentOptions {
    /// The control plane.
    #[arg(long, env = "GSAAS_URL", default_value = "http://127.0.0.1:7610")]
    pub(crate) url: String,
    /// File with the token of a project that may have all of it.
    #[arg(long, env = "GSAAS_TOKEN_FILE")]
    pub(crate) token_file: PathBuf,
    /// cGPUs of one VM, each number in turn.
    #[arg(long, value_delimiter = ',', default_value = "1,25,50,75",
        value_parser = clap::value_parser!(u32).range(1..=i64::from(CGPUS_MAX)))]
    pub(crate) cgpus: Vec<u32>,
    /// VMs with one cGPU each, each number in turn.
    #[arg(long, value_delimiter = ',', default_value = "15,30,45,60,75,90",
        value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) vms: Vec<u16>,
    /// Milliseconds between the beginnings of those VMs; 0 for all at once.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=60_000))]
    pub(crate) pace_ms: u64,
    /// Memory of each cGPU, in MiB.
    #[arg(long, default_value_t = 100,
        value_parser = clap::value_parser!(u64).range(1..=AMOUNT_MAX))]
    pub(crate) memory_mib: u64,
    /// Times that each number of cGPUs is measured.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u8).range(1..))]
    pub(crate) repeats: u8,
    /// What makes its VMs, for the record: `local`, `openstack`.
    #[arg(long)]
    pub(crate) what: String,
    /// Draw one VM's boot into this file (SVG).
    #[arg(long)]
    pub(crate) drawing: Option<PathBuf>,
    /// Figures of VMs without cGPUs that somebody else has measured, to stand beside these: JSON of
    /// names (`boot_ms_0`, `boot_ms_median_of_15_vms`) and milliseconds.
    #[arg(long, value_name = "FILE")]
    pub(crate) baselines: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct State {
    /// Folder of what is kept; `/var/lib/weft-control` for root, else
    /// `~/.local/state/weft-control`.
    #[arg(long, env = "WEFT_CONTROL_STATE_DIR")]
    pub(crate) state_dir: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Database {
    /// Keep everything in this PostgreSQL database (postgres://USER@HOST/NAME) and not in a file;
    /// several replicas may share it.
    #[arg(long, value_name = "URL", env = "WEFT_CONTROL_DATABASE", hide_env_values = true,
        value_parser = database)]
    pub(crate) database: Option<String>,
    /// Reach the database over TLS, and take the word of these authorities (PEM) for who it is.
    #[arg(long, value_name = "FILE", env = "WEFT_CONTROL_DATABASE_CA", requires = "database")]
    pub(crate) database_ca: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct ReplicaOptions {
    #[command(flatten)]
    pub(crate) database: Database,
    /// With a database: another replica takes over when this one has not been heard of for so many
    /// seconds.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(2..=300),
        requires = "database")]
    pub(crate) lease_s: u64,
    /// With a database: where this replica answers, as the others say to their clients; if absent,
    /// where it listens.
    #[arg(long, value_name = "URL", requires = "database", value_parser = address)]
    pub(crate) advertise: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct ServeOptions {
    #[command(flatten)]
    pub(crate) state: State,
    #[command(flatten)]
    pub(crate) replica: ReplicaOptions,
    #[command(flatten)]
    pub(crate) service: ServiceOptions,
    /// Where VMs come from.
    #[arg(long, value_enum, default_value = "local")]
    pub(crate) provisioner: ProvisionerName,
    #[command(flatten)]
    pub(crate) openstack: OpenstackOptions,
    /// Take Keystone's tokens too, of the cloud that the OS_… variables name. Always so with
    /// OpenStack's VMs.
    #[arg(long)]
    pub(crate) keystone: bool,
    /// Slurm's `squeue`.
    #[arg(long, default_value = "squeue")]
    pub(crate) squeue: PathBuf,
    /// Socket of a compute host's `weft-endpoint host`, on this host or led here; may be repeated.
    /// VMs of this host (`--provisioner local`) have a relay each, or with `local=PATH` a port that
    /// this host's endpoint leads.
    #[arg(long, value_name = "HOST=PATH", value_parser = host_socket)]
    pub(crate) host_endpoint: Vec<(String, PathBuf)>,
}

#[derive(Debug, Args)]
pub(crate) struct OpenstackOptions {
    /// Id of the image of OpenStack's VMs; `weft-endpoint` and `libcuda.so.1` are in it.
    #[arg(long, value_name = "ID", required_if_eq("provisioner", "openstack"))]
    pub(crate) image: Option<String>,
    /// Name of their flavor; VMs with N local cGPUs have the flavor NAME.cgpuN.
    #[arg(long, value_name = "NAME", required_if_eq("provisioner", "openstack"))]
    pub(crate) flavor: Option<String>,
    /// Id of their network, which the projects share.
    #[arg(long, value_name = "ID", required_if_eq("provisioner", "openstack"))]
    pub(crate) network: Option<String>,
    /// Folder with `libcuda.so.1` in the image.
    #[arg(long, value_name = "FOLDER", default_value = "/usr/local/lib/weft")]
    pub(crate) image_libraries: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct ServiceOptions {
    /// Where to listen. Tokens are secrets: any other address than loopback is for TLS.
    #[arg(long, default_value = weft_api::v1::DEFAULT_ADDRESS)]
    pub(crate) listen: SocketAddr,
    /// Speak TLS, with this certificate and those behind it (PEM).
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// The certificate's private key (PEM).
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
    /// How GPUs are chosen.
    #[arg(long, default_value = "fragmentation", value_parser = placement)]
    pub(crate) placement: weft_sched::placement::PolicyId,
    /// Instances that are worked on at once.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) workers: u16,
    /// Seconds between two looks for what should not be there; 0 for one at the start only.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(0..=86_400))]
    pub(crate) sweep_s: u64,
    /// Days for which usage, operations and events of instances are kept that ended; 0 for ever.
    #[arg(long, default_value_t = 400,
        value_parser = clap::value_parser!(u32).range(0..=36_500))]
    pub(crate) keep_days: u32,
    /// Instances that a project may make in a day (UTC); 0 for any number.
    #[arg(long, default_value_t = 10_000)]
    pub(crate) launches_per_day: u32,
    /// Keep the VMs of this host in plain processes even if namespaces are permitted.
    #[arg(long)]
    pub(crate) plain_processes: bool,
    /// First of a million users that the programs in VMs of this host are, another one for each VM;
    /// 0 for root.
    #[arg(long, default_value_t = 3_000_000_000, value_name = "UID")]
    pub(crate) guest_user: u32,
    /// `weft-endpoint` for VMs of this host; the one beside this program if absent.
    #[arg(long)]
    pub(crate) endpoint: Option<PathBuf>,
    /// VMs of this host are virtual machines that boot this kernel. They have no network, and so
    /// local cGPUs only.
    #[arg(long, value_name = "FILE", requires = "vm_initrd")]
    pub(crate) vm_kernel: Option<PathBuf>,
    /// Their initial file system, as `examples/guest/make-image` makes it.
    #[arg(long, value_name = "FILE", requires = "vm_kernel")]
    pub(crate) vm_initrd: Option<PathBuf>,
    /// The program of QEMU.
    #[arg(long, value_name = "FILE", default_value = "qemu-system-x86_64", requires = "vm_kernel")]
    pub(crate) vm_qemu: PathBuf,
    /// QEMU's accelerators, in the order in which they are tried.
    #[arg(long, default_value = "kvm:tcg", requires = "vm_kernel")]
    pub(crate) vm_accel: String,
    /// Memory of a virtual machine, in MiB.
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u64).range(64..=1 << 20),
        requires = "vm_kernel")]
    pub(crate) vm_ram: u64,
    /// `weft-guest` for VMs of this host with local cGPUs; the one beside this program if absent.
    #[arg(long)]
    pub(crate) guest: Option<PathBuf>,
    /// Folder with `libcuda.so.1` for VMs of this host; the installed one if absent.
    #[arg(long)]
    pub(crate) libraries: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct LocalOptions {
    #[command(flatten)]
    pub(crate) state: State,
    #[command(flatten)]
    pub(crate) service: ServiceOptions,
    /// Software GPUs of the node.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=16))]
    pub(crate) gpus: u16,
    /// End the node and all VMs of an earlier run, and with them what they were doing.
    #[arg(long)]
    pub(crate) down: bool,
}

#[derive(Debug, Args)]
pub(crate) struct TokenOptions {
    #[command(flatten)]
    pub(crate) state: State,
    #[command(flatten)]
    pub(crate) database: Database,
    /// What it is for.
    pub(crate) name: String,
    /// What its bearer may.
    #[arg(long, value_parser = role, required_unless_present = "revoke")]
    pub(crate) role: Option<Role>,
    /// How long it is good, such as 12h or 30d, up to ten years; for ever if absent.
    #[arg(long = "for", value_name = "TIME", value_parser = validity)]
    pub(crate) valid: Option<Duration>,
    /// Take it back: it opens nothing from here on.
    #[arg(long, conflicts_with_all = ["role", "project", "valid"])]
    pub(crate) revoke: bool,
    /// The project; it is made without any quota if it is not there.
    #[arg(long, required_if_eq_any([("role", "reader"), ("role", "member")]))]
    pub(crate) project: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct TokensOptions {
    #[command(flatten)]
    pub(crate) state: State,
    #[command(flatten)]
    pub(crate) database: Database,
}

/// Options of `serve` that one kind of VMs has, with who makes those. Their values have defaults,
/// so clap cannot say which of them mean nothing together.
const OF_PROVISIONERS: [(&[&str], &[ProvisionerName]); 4] = [
    (&["image", "flavor", "network", "image_libraries"], &[ProvisionerName::Openstack]),
    (&["squeue"], &[ProvisionerName::Slurm]),
    (
        &[
            "plain_processes",
            "guest_user",
            "endpoint",
            "guest",
            "libraries",
            "vm_kernel",
            "vm_initrd",
            "vm_qemu",
            "vm_accel",
            "vm_ram",
        ],
        &[ProvisionerName::Local],
    ),
    // Jobs of Slurm connect to gateways themselves.
    (
        &["host_endpoint"],
        &[ProvisionerName::Local, ProvisionerName::Openstack, ProvisionerName::Fake],
    ),
];

impl Arguments {
    /// Reads the command line. What cannot be, or means nothing, ends the process in words.
    pub(crate) fn read() -> Self {
        let matches = Self::command().get_matches();
        let arguments = Self::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
        if let What::Serve(options) = &arguments.what
            && let Some(given) = matches.subcommand_matches("serve")
        {
            let is_given = |id: &str| given.value_source(id) == Some(ValueSource::CommandLine);
            if let Err((kind, words)) = options.check(is_given) {
                Self::command().error(kind, words).exit();
            }
        }
        arguments
    }
}

impl ServiceOptions {
    /// For how long it is kept what ended; for ever if nothing is said.
    pub(crate) fn keep(&self) -> Option<Duration> {
        let days = Some(self.keep_days).filter(|days| *days > 0)?;
        Some(Duration::from_secs(u64::from(days) * 24 * 3_600))
    }
}

impl ServeOptions {
    /// Refuses what would be ignored.
    fn check(&self, is_given: impl Fn(&str) -> bool) -> Result<(), (ErrorKind, String)> {
        let name = |provisioner: ProvisionerName| {
            let value = provisioner.to_possible_value();
            value.map(|value| value.get_name().to_owned()).unwrap_or_default()
        };
        for (options, of) in OF_PROVISIONERS {
            let is_read = of.contains(&self.provisioner);
            if let Some(option) = options.iter().find(|option| !is_read && is_given(option)) {
                let of: Vec<String> = of.iter().copied().map(name).collect();
                let words = format!(
                    "--{} means nothing to `--provisioner {}`: it is of {}",
                    option.replace('_', "-"),
                    name(self.provisioner),
                    of.join(", ")
                );
                return Err((ErrorKind::ArgumentConflict, words));
            }
        }
        let hosts = || self.host_endpoint.iter().map(|(host, _)| host);
        let twice = hosts().enumerate().find(|(at, host)| hosts().take(*at).any(|h| h == *host));
        match twice {
            Some((_, host)) => {
                let words =
                    format!("--host-endpoint names the host `{host}` twice: say one socket");
                Err((ErrorKind::ArgumentConflict, words))
            }
            None => Ok(()),
        }
    }
}

fn database(text: &str) -> Result<String, String> {
    if text.trim().is_empty() {
        return Err("it is empty: say postgres://USER@HOST/NAME, or leave it out (and \
                    WEFT_CONTROL_DATABASE unset) to keep everything in a file"
            .to_owned());
    }
    Ok(text.to_owned())
}

fn address(text: &str) -> Result<String, String> {
    check_address(text).map_err(|error| error.to_string())?;
    Ok(text.trim_end_matches('/').to_owned())
}

fn placement(name: &str) -> Result<weft_sched::placement::PolicyId, String> {
    weft_sched::placement::by_name(name).map_err(|error| error.to_string())
}

fn host_socket(text: &str) -> Result<(String, PathBuf), String> {
    match text.split_once('=') {
        Some((host, path)) if !host.is_empty() && !path.is_empty() => {
            Ok((host.to_owned(), path.into()))
        }
        _ => Err("say HOST=PATH, such as compute1=/run/weft/compute1.sock".to_owned()),
    }
}

/// How long a token is good.
fn validity(text: &str) -> Result<Duration, String> {
    let time = weft_api::times::duration(text)?;
    if (1..=TOKEN_VALID_S_MAX).contains(&time.as_secs()) {
        Ok(time)
    } else {
        Err(format!("`{text}`: a token is good for a second to ten years"))
    }
}

fn role(text: &str) -> Result<Role, String> {
    match text {
        "reader" => Ok(Role::Reader),
        "member" => Ok(Role::Member),
        "admin" => Ok(Role::Admin),
        _ => Err(format!("`{text}` is no role: it is one of reader, member, admin")),
    }
}
