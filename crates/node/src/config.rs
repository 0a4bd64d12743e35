//! What a node is told when it starts.
//!
//! One TOML document. A file, the environment and `key=value` settings (flags) are merged into one
//! table, later ones winning, and parsed once, so that every source is checked alike. An error
//! names the key and the values it may have.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use toml::{Table, Value};
use tracing_subscriber::filter::{LevelFilter, Targets};
use weft_device::Capabilities;
use weft_ring::place::{ADMIN_SOCKET, TENANT_SOCKET};

mod cap;
mod choices;
mod decimal;
mod device;
mod guests;
mod limits;
mod paths;
mod pool;
mod processors;
mod remote;
mod size;
mod sla;
mod tenants;
mod text;
mod worker;

pub use cap::CapSetting;
pub use choices::{
    AccountingConfig, CompilingConfig, CoschedulingConfig, ShareConfig, SlicingConfig,
};
pub(crate) use device::Dealing;
pub use device::DeviceConfig;
pub use guests::GuestsConfig;
pub use limits::{Choice, LimitError, UserLimits, UserLimitsConfig};
pub use paths::{default_runtime_dir, default_state_dir, search_places};
pub use pool::PoolSettings;
pub use processors::Processors;
pub use remote::RemoteConfig;
pub use size::ByteSize;
pub use sla::SlaSetting;
pub use tenants::{Member, Members};
pub use weft_wire::name::{NAME_RULE, is_vgpu_name};
pub use worker::WorkerConfig;

/// Lowest and highest weight of a vGPU.
pub const WEIGHTS: std::ops::RangeInclusive<u32> = 1..=10_000;

/// A whole, in the millionths that caps are given in.
pub const PPM: u32 = 1_000_000;

/// Sessions that a node can have: places on the device page's turnstile.
pub const SESSIONS_MAX: u64 = weft_ring::PARTICIPANTS as u64;

/// Bytes that a Unix socket's path may have.
const SOCKET_PATH_MAX: usize = 107;

/// Environment variables that set a key, with the key.
pub const ENVIRONMENT: &[(&str, &str)] = &[
    ("WEFT_RUNTIME_DIR", "sockets.runtime_dir"),
    ("WEFT_SOCKET", "sockets.tenant"),
    ("WEFT_ADMIN_SOCKET", "sockets.admin"),
    ("WEFT_STATE_DIR", "state_dir"),
    ("WEFT_POLICY", "scheduling.policy"),
    ("WEFT_METRICS", "metrics.listen"),
    ("WEFT_LOG", "log.level"),
];

/// A node's configuration.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NodeConfig {
    /// Where the node listens.
    pub sockets: SocketConfig,
    /// Where vGPUs and their usage are kept.
    pub state_dir: PathBuf,
    /// The devices.
    #[serde(rename = "device", with = "device::list")]
    pub devices: Vec<DeviceConfig>,
    /// How the tasks of a pool of devices are run, by the pool's name.
    #[serde(rename = "pool")]
    pub pools: BTreeMap<String, PoolSettings>,
    /// Policy and times.
    pub scheduling: SchedulingConfig,
    /// What a vGPU gets when nobody says otherwise.
    pub defaults: DefaultsConfig,
    /// Bounds.
    pub limits: LimitsConfig,
    /// The processes that execute.
    pub worker: WorkerConfig,
    /// The record of all that the scheduling core was told and answered.
    pub journal: JournalConfig,
    /// Prometheus metrics over HTTP.
    pub metrics: MetricsConfig,
    /// Programs of other hosts.
    pub remote: RemoteConfig,
    /// Virtual machines of this host.
    pub guests: GuestsConfig,
    /// The log, on standard error.
    pub log: LogConfig,
}

/// Where the node listens.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SocketConfig {
    /// Directory of sockets and the lock.
    pub runtime_dir: PathBuf,
    /// Tenant socket; `runtime_dir/tenant.sock` if absent.
    pub tenant: Option<PathBuf>,
    /// Admin socket; `runtime_dir/admin.sock` if absent.
    pub admin: Option<PathBuf>,
    /// Permissions of the tenant socket.
    #[serde(with = "text::mode")]
    pub tenant_mode: u32,
    /// Permissions of the admin socket: who may ask at all. What is answered depends on who asks.
    #[serde(with = "text::mode")]
    pub admin_mode: u32,
    /// Group, by name or number, whose members administrate the node, besides root and the user
    /// who runs it.
    #[serde(deserialize_with = "text::group")]
    pub admin_group: Option<String>,
}

/// Policy and its times.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SchedulingConfig {
    /// Policy; one of [`crate::policy_names`].
    pub policy: String,
    /// Device time a vGPU may use before it must yield; 30 ms if absent on a device that preempts
    /// by itself, where a switch costs more, 6 ms on others.
    pub quantum_us: Option<u64>,
    /// How long an idle holder keeps the device before it yields, as far as it has earned that by
    /// work; with a whole quantum or more, always.
    pub yield_us: u64,
    /// How long before its predecessor's work has drained a vGPU may queue its own: what hides the
    /// switch. It enters the fairness bound like a longer quantum.
    pub overlap_us: u64,
    /// How long the holder's worker polls the lanes before it blocks.
    pub ring_wait_us: u64,
    /// How long past its budget an unresponsive holder may stay before its worker is killed.
    pub overdue_ms: u64,
    /// How device time is measured.
    pub accounting: AccountingConfig,
    /// How long kernels are cut.
    pub slicing: SlicingConfig,
    /// Whose weights compete.
    pub share: ShareConfig,
    /// Weights of users, by their numbers; 1 for the others. One set with `weft set --tenant` wins.
    pub users: BTreeMap<String, u32>,
    /// Who belongs to the tenant of a user besides the user, by the user's number.
    pub tenants: BTreeMap<String, Members>,
    /// Whom users were made by: `/etc/subuid`, another file of its form, or none (empty).
    pub subuid: Option<PathBuf>,
    /// The period over which caps are kept.
    pub cap_period_ms: u64,
    /// Service, at most a quantum, that a vGPU keeps a claim to while it sleeps.
    pub sleeper_credit_us: u64,
    /// σ: service that a vGPU whose turn ended may be ahead of the others and go on, at most, so
    /// that there are fewer switches where they are dear. Absent: a second on a device that
    /// lends more memory than it has, nothing on others.
    pub slack_us: Option<u64>,
    /// Service that a user-facing vGPU may be ahead of its weight's part when it goes before batch
    /// ones: over a window of `T` it gets at most this much more than its part.
    pub borrow_ms: u64,
    /// The most device time that batch vGPUs have in flight while a user-facing one is attached:
    /// whoever wakes waits for no more.
    pub slice_us: u64,
    /// How threads that wait for the device are helped to run when their result comes.
    pub coscheduling: CoschedulingConfig,
}

/// What a vGPU gets when nobody says otherwise.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DefaultsConfig {
    /// Weight.
    pub weight: u32,
    /// Memory quota; the device's memory if absent.
    pub memory: Option<ByteSize>,
}

impl DefaultsConfig {
    fn check(&self) -> Result<(), ConfigError> {
        let least = weft_device::PAGE;
        self.memory.map_or(Ok(()), |size| check_size("defaults.memory", size.0, least, 1 << 50))?;
        check("defaults.weight", self.weight.into(), 1, 10_000)
    }
}

/// Bounds.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LimitsConfig {
    /// Sessions at once.
    pub sessions: usize,
    /// Sessions at once of one user.
    pub sessions_per_user: usize,
    /// vGPUs in the registry.
    pub vgpus: usize,
    /// vGPUs that a user may create by attaching: they stay, and their number is bounded for all.
    pub vgpus_per_user: usize,
    /// One kernel may run this long (its own device time) before it is killed. Absent: for ever on
    /// a device that stops kernels between blocks, 10 s on a genuine GPU.
    pub kernel_ms: Option<u64>,
    /// A block of a kernel without a limit may take this long while others wait, waits for a
    /// processor not counted: blocks cannot be stopped in the middle.
    pub block_ms: u64,
    /// Pinned host memory of one session.
    pub pinned: ByteSize,
    /// Arena of one session.
    pub arena: ByteSize,
    /// Host memory of one worker, its mappings of shared memory not counted.
    pub worker_memory: ByteSize,
    /// A tenant must say hello within this time.
    pub attach_ms: u64,
    /// A worker without a daemon ends after this time.
    pub orphan_ms: u64,
    /// A tenant may attach so often while others have sessions: attaching takes processor time
    /// that kernels want.
    pub attaches_per_second: u32,
    /// Host memory of all sessions: arenas, pinned memory, and what workers take for modules and
    /// tables. Half of the machine's if absent.
    pub host_memory: Option<ByteSize>,
    /// Bounds of one user, by number, or of everybody (`default`).
    pub users: BTreeMap<String, UserLimitsConfig>,
}

/// The record of all that the scheduling core was told and answered.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct JournalConfig {
    /// Folder of its files; off if absent.
    pub dir: Option<PathBuf>,
    /// Bytes of all its files.
    pub max_bytes: ByteSize,
    /// Files that these are divided into; the oldest goes when a new one is begun.
    pub files: usize,
}

/// Prometheus metrics over HTTP.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MetricsConfig {
    /// Address to listen on; off if absent.
    #[serde(deserialize_with = "text::address")]
    pub listen: Option<SocketAddr>,
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object per line.
    Json,
}

/// The log, on standard error.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LogConfig {
    /// How lines look.
    pub format: LogFormat,
    /// What is logged: `error`, `warn`, `info`, `debug`, `trace`, or
    /// `weft_node::daemon=debug,info`.
    pub level: String,
}

impl Default for NodeConfig {
    fn default() -> Self {
        Self {
            sockets: SocketConfig::default(),
            state_dir: default_state_dir(),
            devices: vec![DeviceConfig::default()],
            pools: BTreeMap::new(),
            scheduling: SchedulingConfig::default(),
            defaults: DefaultsConfig::default(),
            limits: LimitsConfig::default(),
            worker: WorkerConfig::default(),
            journal: JournalConfig::default(),
            metrics: MetricsConfig::default(),
            remote: RemoteConfig::default(),
            guests: GuestsConfig::default(),
            log: LogConfig::default(),
        }
    }
}

impl Default for SocketConfig {
    fn default() -> Self {
        Self {
            runtime_dir: default_runtime_dir(),
            tenant: None,
            admin: None,
            tenant_mode: 0o666,
            admin_mode: 0o666,
            admin_group: None,
        }
    }
}

impl Default for SchedulingConfig {
    /// The core's own, which the simulator runs with as well.
    fn default() -> Self {
        let core = weft_sched::Config::default();
        Self {
            policy: core.policy.name().to_owned(),
            quantum_us: None,
            yield_us: core.yield_ns / 1_000,
            overlap_us: core.overlap_ns / 1_000,
            ring_wait_us: 50,
            overdue_ms: 2_000,
            accounting: AccountingConfig::Every,
            slicing: SlicingConfig::Time,
            share: ShareConfig::User,
            users: BTreeMap::new(),
            tenants: BTreeMap::new(),
            subuid: Some(PathBuf::from("/etc/subuid")),
            cap_period_ms: 100,
            sleeper_credit_us: core.sleeper_credit_ns / 1_000,
            slack_us: None,
            borrow_ms: core.borrow_ns / 1_000_000,
            slice_us: core.slice_ns / 1_000,
            coscheduling: CoschedulingConfig::Auto,
        }
    }
}

impl Default for DefaultsConfig {
    fn default() -> Self {
        Self { weight: 1, memory: None }
    }
}

impl Default for LimitsConfig {
    fn default() -> Self {
        Self {
            sessions: 2048,
            sessions_per_user: 1024,
            vgpus: 4096,
            vgpus_per_user: 1024,
            kernel_ms: None,
            block_ms: 10_000,
            pinned: ByteSize(1 << 30),
            arena: ByteSize(64 << 20),
            worker_memory: ByteSize(2 << 30),
            attach_ms: 2_000,
            orphan_ms: 30_000,
            attaches_per_second: 10,
            host_memory: None,
            users: BTreeMap::new(),
        }
    }
}

impl Default for JournalConfig {
    fn default() -> Self {
        Self { dir: None, max_bytes: ByteSize(256 << 20), files: 8 }
    }
}

impl Default for LogConfig {
    fn default() -> Self {
        Self { format: LogFormat::Text, level: "info".to_owned() }
    }
}

/// Why a configuration was not accepted.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error("cannot read the configuration {path} (without `--config` the defaults apply)")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: std::io::Error,
    },
    /// The text is not TOML, or has a key or a value that is not allowed.
    #[error("{origin}: {message}")]
    Syntax {
        /// Where the text came from.
        origin: String,
        /// What is wrong and where.
        message: String,
    },
    /// A key or value is not allowed; the message names both and what is allowed.
    #[error("{0}")]
    Invalid(String),
}

/// Where nothing stops a kernel alone it may run this long unless configured, in ms.
const KERNEL_MS: u64 = 10_000;

impl NodeConfig {
    /// How long one kernel may run on a device, in ms of its own device time, if that is limited.
    #[must_use]
    pub fn kernel_ms(&self, device: Capabilities) -> Option<u64> {
        let otherwise = (!device.cancel).then_some(KERNEL_MS);
        self.limits.kernel_ms.or(otherwise)
    }

    /// A device's quantum, in µs, if it can do this.
    #[must_use]
    pub fn quantum_us(&self, device: &DeviceConfig, can: Capabilities) -> u64 {
        let otherwise_ns = if can.preemptive {
            weft_sched::PREEMPTIVE_QUANTUM_NS
        } else {
            weft_sched::Config::default().quantum_ns
        };
        device.quantum_us.or(self.scheduling.quantum_us).unwrap_or(otherwise_ns / 1_000)
    }

    /// What a vGPU of a device may be ahead and go on where switches are dear, at most, in µs.
    #[must_use]
    pub fn slack_us(&self, device: &DeviceConfig) -> u64 {
        self.scheduling.slack_us.unwrap_or_else(|| device.slack_us())
    }

    /// Merges `file`, the environment (through `variable`) and `settings` (`("device.clock",
    /// "paced")`; later ones win) over the defaults.
    ///
    /// # Errors
    /// [`ConfigError`] names the file or the key, and the values it may have.
    pub fn load(
        file: Option<&Path>,
        variable: impl Fn(&str) -> Option<String>,
        settings: &[(String, String)],
    ) -> Result<Self, ConfigError> {
        let mut table = match file {
            Some(path) => read_table(path)?,
            None => Table::new(),
        };
        device::normalize(&mut table);
        for (name, key) in ENVIRONMENT {
            if let Some(value) = variable(name).filter(|value| !value.is_empty()) {
                insert(&mut table, key, Value::String(value))?;
            }
        }
        if let Some(device) = variable("WEFT_DEVICE").filter(|value| !value.is_empty()) {
            device::set(&mut table, &device)?;
        }
        for (key, value) in settings {
            if key == "device" {
                device::set(&mut table, value)?;
            } else {
                insert(&mut table, key, literal(key, value))?;
            }
        }
        Self::from_table(table)
    }

    fn from_table(table: Table) -> Result<Self, ConfigError> {
        let mut config: Self = table.try_into().map_err(|error: toml::de::Error| {
            let message = error.to_string();
            let message = message.trim();
            invalid(text::number_in_words(message).as_deref().unwrap_or(message))
        })?;
        device::name_all(&mut config.devices);
        config.validate()?;
        Ok(config)
    }

    /// Path of the tenant socket.
    #[must_use]
    pub fn tenant_socket(&self) -> PathBuf {
        self.sockets.tenant.clone().unwrap_or_else(|| self.sockets.runtime_dir.join(TENANT_SOCKET))
    }

    /// The user that the gateway becomes, if there is one and it is not to stay this process's.
    #[must_use]
    pub fn gateway_user(&self) -> Option<u32> {
        let is_other = self.remote.user != 0 && rustix::process::geteuid().is_root();
        (is_other && self.remote.listen.is_some()).then_some(self.remote.user)
    }

    /// Path of the admin socket.
    #[must_use]
    pub fn admin_socket(&self) -> PathBuf {
        self.sockets.admin.clone().unwrap_or_else(|| self.sockets.runtime_dir.join(ADMIN_SOCKET))
    }

    /// The memory of the largest device, in bytes.
    #[must_use]
    pub fn largest_memory_bytes(&self) -> u64 {
        self.devices.iter().map(DeviceConfig::lent_bytes).max().unwrap_or(0)
    }

    /// The settings of the pool of that name.
    #[must_use]
    pub fn pool_settings(&self, pool: &str) -> PoolSettings {
        self.pools.get(pool).cloned().unwrap_or_default()
    }

    /// The memory quota, in bytes, of a vGPU that asks for none, where a device has so much.
    #[must_use]
    pub fn default_memory_bytes(&self, device_bytes: u64) -> u64 {
        self.defaults.memory.map_or(device_bytes, |memory| memory.0)
    }

    /// Paths of sockets are short: the workers' doors have the longest ones.
    fn check_paths(&self) -> Result<(), ConfigError> {
        let dir = &self.sockets.runtime_dir;
        let door = dir.join("workers").join(format!("{}.sock", u64::MAX));
        let beyond = |path: &Path| path.as_os_str().len().saturating_sub(SOCKET_PATH_MAX);
        let long = beyond(&door);
        if long > 0 {
            let bytes = dir.as_os_str().len();
            return Err(invalid(&format!(
                "sockets.runtime_dir: {} is {bytes} bytes long; at most {}, because a socket's path \
                 has {SOCKET_PATH_MAX} (WEFT_RUNTIME_DIR; of `weft run` without a node, TMPDIR)",
                dir.display(),
                bytes.saturating_sub(long)
            )));
        }
        for (key, path) in
            [("sockets.tenant", self.tenant_socket()), ("sockets.admin", self.admin_socket())]
        {
            if beyond(&path) > 0 {
                return Err(invalid(&format!(
                    "{key}: {} is {} bytes long; a socket's path has {SOCKET_PATH_MAX} at most",
                    path.display(),
                    path.as_os_str().len()
                )));
            }
        }
        Ok(())
    }

    fn validate(&self) -> Result<(), ConfigError> {
        if let Err(error) = weft_sched::policy::for_node(&self.scheduling.policy) {
            return Err(invalid(&format!("scheduling.{error}")));
        }
        self.log.check().map_err(|message| invalid(&message))?;
        pool::check_all(&self.pools, &self.devices)?;
        self.check_paths()?;
        self.worker.check().map_err(|message| invalid(&message))?;
        let scheduling = &self.scheduling;
        for (user, weight) in &scheduling.users {
            let key = format!("scheduling.users.{user}");
            if user.parse::<u32>().is_err() {
                return Err(invalid(&format!("{key}: `{user}` is not the number of a user")));
            }
            check(&key, (*weight).into(), 1, 10_000)?;
        }
        let is_number = |tenant: &&String| tenant.parse::<u32>().is_ok();
        if let Some(tenant) = scheduling.tenants.keys().find(|tenant| !is_number(tenant)) {
            let key = format!("scheduling.tenants.{tenant}");
            return Err(invalid(&format!("{key}: `{tenant}` is not the number of a user")));
        }
        check("remote.sessions", self.remote.sessions as u64, 1, 1 << 20)?;
        check("remote.pending", self.remote.pending as u64, 1, 1 << 20)?;
        check("remote.grace_ms", self.remote.grace_ms.into(), 0, 3_600_000)?;
        check("remote.patience_ms", self.remote.patience_ms.into(), 100, 60_000)?;
        check("scheduling.cap_period_ms", scheduling.cap_period_ms, 1, 3_600_000)?;
        if let Some(quantum_us) = scheduling.quantum_us {
            check("scheduling.quantum_us", quantum_us, 100, 1_000_000)?;
            check("scheduling.sleeper_credit_us", scheduling.sleeper_credit_us, 0, quantum_us)?;
        }
        if let Some(slack_us) = scheduling.slack_us {
            check("scheduling.slack_us", slack_us, 0, 10_000_000)?;
        }
        check("scheduling.yield_us", scheduling.yield_us, 1, 1_000_000)?;
        check("scheduling.overlap_us", scheduling.overlap_us, 0, 100_000)?;
        check("scheduling.ring_wait_us", scheduling.ring_wait_us, 0, 1_000_000)?;
        check("scheduling.borrow_ms", scheduling.borrow_ms, 0, 60_000)?;
        check("scheduling.slice_us", scheduling.slice_us, 100, 10_000_000)?;
        check("scheduling.overdue_ms", scheduling.overdue_ms, 10, 3_600_000)?;
        self.defaults.check()?;
        let limits = &self.limits;
        check("limits.sessions", limits.sessions as u64, 1, SESSIONS_MAX)?;
        check("limits.sessions_per_user", limits.sessions_per_user as u64, 1, 4096)?;
        check("limits.vgpus", limits.vgpus as u64, 1, 65_536)?;
        check("limits.vgpus_per_user", limits.vgpus_per_user as u64, 1, 65_536)?;
        if let Some(kernel_ms) = limits.kernel_ms {
            check("limits.kernel_ms", kernel_ms, 1, 86_400_000)?;
        }
        check("limits.block_ms", limits.block_ms, 1, 86_400_000)?;
        check("limits.attach_ms", limits.attach_ms, 10, 600_000)?;
        check("limits.attaches_per_second", limits.attaches_per_second.into(), 1, 1_000_000)?;
        check("limits.orphan_ms", limits.orphan_ms, 1_000, 86_400_000)?;
        check_size("limits.pinned", limits.pinned.0, 0, 1 << 40)?;
        check_size("limits.arena", limits.arena.0, 1 << 20, 1 << 32)?;
        check_size("limits.worker_memory", limits.worker_memory.0, 64 << 20, 1 << 40)?;
        if let Some(memory) = limits.host_memory {
            check_size("limits.host_memory", memory.0, 256 << 20, 1 << 50)?;
        }
        self.check_user_limits()?;
        check("journal.files", self.journal.files as u64, 2, 10_000)?;
        check_size("journal.max_bytes", self.journal.max_bytes.0, 64 << 10, 1 << 40)?;
        check("worker.user", self.worker.user.into(), 0, 4_000_000_000)?;
        device::check_all(&self.devices)?;
        self.check_host()?;
        match self.metrics.listen {
            Some(address) if !address.ip().is_loopback() => Err(invalid(&format!(
                "metrics.listen: {address} is not a loopback address; one of 127.0.0.1:PORT, \
                 [::1]:PORT"
            ))),
            Some(_) | None => Ok(()),
        }
    }
}

impl SocketConfig {
    /// The number of [`Self::admin_group`].
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] when there is no such group.
    pub fn admin_group_id(&self) -> Result<Option<u32>, ConfigError> {
        let Some(group) = &self.admin_group else { return Ok(None) };
        if let Ok(number) = group.parse() {
            return Ok(Some(number));
        }
        let wrong = |why: String| invalid(&format!("sockets.admin_group: {why}"));
        match nix::unistd::Group::from_name(group) {
            Ok(Some(found)) => Ok(Some(found.gid.as_raw())),
            Ok(None) => Err(wrong(format!("there is no group `{group}`; `groupadd {group}`"))),
            Err(error) => Err(wrong(format!("the group `{group}` cannot be looked up: {error}"))),
        }
    }
}

impl SchedulingConfig {
    /// A user's configured weight.
    #[must_use]
    pub fn user_weight(&self, uid: u32) -> u32 {
        self.users.get(&uid.to_string()).copied().unwrap_or(1)
    }
}

impl LogConfig {
    /// Which lines are wanted.
    pub(crate) fn filter(&self) -> Targets {
        let wanted = weft_api::levels::directives(&self.level).and_then(|text| text.parse().ok());
        wanted.unwrap_or_else(|| Targets::new().with_default(LevelFilter::INFO))
    }

    fn check(&self) -> Result<(), String> {
        let is_level = |text: &str| text.parse::<LevelFilter>().is_ok();
        // `tracing` takes a word alone for a target, and would log nothing else.
        let is_known = |directive: &str| {
            let directive = directive.trim();
            match directive.rsplit_once('=') {
                Some((target, level)) => !target.is_empty() && is_level(level),
                None => is_level(directive),
            }
        };
        let Some(wrong) = self.level.split(',').find(|directive| !is_known(directive)) else {
            return Ok(());
        };
        Err(format!(
            "log.level (WEFT_LOG): `{wrong}` is not a level; one of off, error, warn, info, debug, \
             trace, or TARGET=LEVEL for a part, such as weft_node::daemon=debug,info"
        ))
    }
}

impl LimitsConfig {
    /// [`Self::attach_ms`] as a duration.
    #[must_use]
    pub fn attach(&self) -> Duration {
        Duration::from_millis(self.attach_ms)
    }

    /// Host memory of all sessions, in bytes.
    #[must_use]
    pub fn host_memory_bytes(&self) -> u64 {
        self.host_memory.map_or_else(|| machine_memory_bytes() / 2, |memory| memory.0)
    }

    /// Host memory of the sessions of a user for whom nothing else is said: half of the node's, so
    /// that no user takes all of it.
    #[must_use]
    pub fn host_memory_per_user(&self) -> u64 {
        self.host_memory_bytes() / 2
    }
}

/// Memory of this machine, in bytes.
fn machine_memory_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    let unit = u64::from(info.mem_unit.max(1));
    info.totalram.saturating_mul(unit)
}

fn invalid(message: &str) -> ConfigError {
    ConfigError::Invalid(message.to_owned())
}

fn check(key: &str, value: u64, low: u64, high: u64) -> Result<(), ConfigError> {
    if (low..=high).contains(&value) {
        return Ok(());
    }
    Err(invalid(&format!("{key}: {value} is out of range; {low} to {high}")))
}

fn check_size(key: &str, bytes: u64, low: u64, high: u64) -> Result<(), ConfigError> {
    if (low..=high).contains(&bytes) {
        return Ok(());
    }
    let [bytes, low, high] = [bytes, low, high].map(ByteSize);
    Err(invalid(&format!("{key}: {bytes} is out of range; {low} to {high}")))
}

fn read_table(path: &Path) -> Result<Table, ConfigError> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
    let syntax = |error: toml::de::Error| ConfigError::Syntax {
        origin: path.display().to_string(),
        message: error.to_string(),
    };
    // By itself first: so the message shows the line.
    toml::from_str::<NodeConfig>(&text).map_err(syntax)?;
    text.parse().map_err(syntax)
}

/// A setting's text as TOML if it is a number or boolean, else as a string. The digits of
/// permissions are octal.
fn literal(key: &str, text: &str) -> Value {
    if key.ends_with("_mode") {
        return Value::String(text.to_owned());
    }
    if let Ok(number) = text.parse::<i64>() {
        return Value::Integer(number);
    }
    match text {
        "true" => Value::Boolean(true),
        "false" => Value::Boolean(false),
        other => Value::String(other.to_owned()),
    }
}

fn insert(table: &mut Table, key: &str, value: Value) -> Result<(), ConfigError> {
    let Some((head, tail)) = key.split_once('.') else {
        table.insert(key.to_owned(), value);
        return Ok(());
    };
    let entry = table.entry(head.to_owned()).or_insert_with(|| Value::Table(Table::new()));
    if let Some(list) = entry.as_array_mut() {
        return insert_in_list(list, key, tail, &value);
    }
    match entry.as_table_mut() {
        Some(inner) => insert(inner, tail, value),
        None => Err(invalid(&format!("{head}: expected a table, because {key} is set"))),
    }
}

/// Sets a key of one table of a list (`device.1.memory`), or of all (`device.memory`).
fn insert_in_list(
    list: &mut [Value],
    key: &str,
    tail: &str,
    value: &Value,
) -> Result<(), ConfigError> {
    let one = tail.split_once('.').and_then(|(head, rest)| Some((head.parse().ok()?, rest)));
    let count = list.len();
    let (chosen, tail) = match one {
        Some((number, rest)) => (list.get_mut::<usize>(number).map(std::slice::from_mut), rest),
        None => (Some(list), tail),
    };
    let chosen = chosen
        .ok_or_else(|| invalid(&format!("{key}: there are {count} of them, numbered from 0")))?;
    for table in chosen.iter_mut().filter_map(Value::as_table_mut) {
        insert(table, tail, value.clone())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
