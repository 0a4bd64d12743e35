//! The devices: which backend each has, and what it is told.

use std::path::PathBuf;

use serde::Serialize;
use toml::{Table, Value};
use weft_device::soft::{Geometry, SoftBackend};
use weft_device::{Backend as _, BackendConfig, DeviceName, Lends};
use weft_sched::memory::{Brings, DEMAND, MonitorConfig, PERIOD_NS, PlacementId, UnknownPlacement};

use super::{
    ByteSize, ConfigError, NAME_RULE, NodeConfig, Processors, check, check_size, invalid,
    is_vgpu_name, machine_memory_bytes,
};

/// The most that a vGPU goes on for where switches are dear, on a device that lends more memory
/// than it has, in µs.
const OVERSUBSCRIBED_SLACK_US: u64 = 1_000_000;

/// The same where memory is lent session by session: gigabytes go and come within seconds.
const LENT_BY_SESSIONS_SLACK_US: u64 = 10_000_000;

/// Memory of a software device unless configured otherwise, in bytes.
const SOFT_MEMORY_BYTES: u64 = 4 << 30;

/// A slot unless configured otherwise, in bytes: gScale's.
const SLOT_BYTES: u64 = 64 << 20;

/// Most bytes of memory for each byte that a device has.
const OVERSUBSCRIBE_MAX: u64 = 64;

/// The longest time that its memory's monitor may be told, in seconds: a day.
const WATCHED_MAX_S: u64 = 86_400;

/// An entry that takes longer than a millisecond is a mistake of units.
const ENTRY_NS_MAX: u64 = 1_000_000;

/// The placement unless configured otherwise.
const PLACEMENT: &str = "exact";

/// The kind of a device of which none is said.
const KIND_UNLESS_TOLD: &str = SoftBackend::KIND;

/// Devices that a node may have.
const DEVICES_MAX: usize = 64;

/// Who says which part is in which slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dealing {
    /// Each vGPU has its place.
    Placed(PlacementId),
    /// Nobody has: demand paging.
    OnDemand,
}

impl Dealing {
    /// The one of that name.
    ///
    /// # Errors
    /// [`UnknownPlacement`] lists the names there are.
    pub(crate) fn by_name(name: &str) -> Result<Self, UnknownPlacement> {
        match name {
            DEMAND => Ok(Self::OnDemand),
            name => weft_sched::memory::by_name(name).map(Self::Placed),
        }
    }

    /// Whether slots are written ahead of a switch.
    pub(crate) fn writes_ahead(self) -> bool {
        match self {
            Self::Placed(placement) => placement.brings() == Brings::Ahead,
            Self::OnDemand => false,
        }
    }

    /// What a configuration calls it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Placed(placement) => placement.name(),
            Self::OnDemand => DEMAND,
        }
    }
}

/// A device. In a configuration its backend's settings are keys beside the others.
#[derive(Debug, Clone, Default, Serialize)]
pub struct DeviceConfig {
    /// What it is called: `gpu0`, `gpu1`, … unless configured.
    pub name: String,
    /// Which kind of device, with the settings of its own.
    #[serde(flatten)]
    pub backend: BackendConfig,
    /// The pool that it is in, if any: vGPUs can be created on a pool.
    pub pool: Option<String>,
    /// Device memory that the vGPUs may have in all: 4 GiB of a software device if absent, all that
    /// a GPU has.
    pub memory: Option<ByteSize>,
    /// No tenant of this node is hostile, so a GPU is allowed whose kernels reach all memory of
    /// their worker: what keeps tenants apart lies open to them there.
    pub trust_tenants: bool,
    /// Its policy; `scheduling.policy` if absent.
    pub policy: Option<String>,
    /// Its quantum; `scheduling.quantum_us` if absent.
    pub quantum_us: Option<u64>,
    /// Its memory is dealt out in slots of so much: 64 MiB unless configured.
    pub slot: Option<ByteSize>,
    /// Who lies in which slots; `exact` unless configured. `demand`: nobody has a place.
    pub placement: Option<String>,
    /// All vGPUs together may have so many times the device's memory; 1 unless configured.
    pub oversubscribe: Option<u64>,
    /// What each entry that a switch copies is said to take, in ns; 0 for what it takes.
    pub switch_entry_ns: u64,
    /// A vGPU without work that used the device last so long ago has no place, in seconds; 20
    /// unless configured.
    pub idle_s: Option<u64>,
    /// How much each vGPU uses the device is averaged over so long, in seconds; 20 unless
    /// configured.
    pub window_s: Option<u64>,
    /// So often somebody looks whether another layout is better, in seconds; 20 unless configured.
    pub period_s: Option<u64>,
    /// Processors on which nothing but its workers runs of what the node and `weft run` start; if
    /// none is named, its workers run where the daemon does.
    pub processors: Processors,
    /// Where the system swaps device memory to that the host has no room for; it stays in the
    /// host's memory if absent.
    pub swap_dir: Option<PathBuf>,
}

impl DeviceConfig {
    /// Device memory in bytes, once the daemon knows what a GPU has.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.memory.map_or(SOFT_MEMORY_BYTES, |memory| memory.0)
    }

    /// What all vGPUs may have together, in bytes.
    #[must_use]
    pub fn lent_bytes(&self) -> u64 {
        self.memory_bytes().saturating_mul(self.oversubscribe.unwrap_or(1))
    }

    /// Whether it lends more memory than it has, session by session.
    pub(crate) fn lends_sessions(&self) -> bool {
        let is_lent = self.oversubscribe.is_some_and(|times| times > 1);
        is_lent && self.backend.lends() == Lends::Sessions
    }

    /// The most that a vGPU goes on for where switches are dear, unless configured, in µs.
    pub(super) fn slack_us(&self) -> u64 {
        match self.oversubscribe {
            Some(2..) if self.lends_sessions() => LENT_BY_SESSIONS_SLACK_US,
            Some(2..) => OVERSUBSCRIBED_SLACK_US,
            Some(_) | None => 0,
        }
    }

    /// How its memory is divided.
    pub(crate) fn geometry(&self) -> Result<Geometry, String> {
        let slot_bytes = self.slot.map_or(SLOT_BYTES, |slot| slot.0);
        Geometry::new(self.memory_bytes(), self.lent_bytes(), slot_bytes)
    }

    /// When a vGPU is idle, and over how long its use is averaged.
    pub(crate) fn monitor(&self) -> MonitorConfig {
        let MonitorConfig { idle_ns, window_ns } = MonitorConfig::default();
        MonitorConfig {
            idle_ns: self.idle_s.map_or(idle_ns, in_ns),
            window_ns: self.window_s.map_or(window_ns, in_ns),
        }
    }

    /// Time between two looks whether another layout is better, in ns.
    pub(crate) fn period_ns(&self) -> u64 {
        self.period_s.map_or(PERIOD_NS, in_ns)
    }

    /// Who lies in which of its slots.
    pub(crate) fn dealing(&self) -> Result<Dealing, UnknownPlacement> {
        Dealing::by_name(self.placement.as_deref().unwrap_or(PLACEMENT))
    }
}

const fn in_ns(seconds: u64) -> u64 {
    seconds.saturating_mul(1_000_000_000)
}

/// What the devices of a node are called that have no name of their own: `gpu0`, `gpu1`, …
pub(super) fn name_all(devices: &mut [DeviceConfig]) {
    for (number, device) in devices.iter_mut().enumerate() {
        if device.name.is_empty() {
            device.name = format!("gpu{number}");
        }
    }
}

/// Checks what each device is told, and that no two are the same.
pub(super) fn check_all(devices: &[DeviceConfig]) -> Result<(), ConfigError> {
    if devices.is_empty() || devices.len() > DEVICES_MAX {
        let count = devices.len();
        return Err(invalid(&format!("device: {count} devices; 1 to {DEVICES_MAX} are allowed")));
    }
    for (number, device) in devices.iter().enumerate() {
        let key = match devices.len() {
            1 => "device".to_owned(),
            _ => format!("device.{number}"),
        };
        let earlier = &devices[..number];
        if !is_vgpu_name(&device.name) {
            return Err(invalid(&format!("{key}.name: `{}` is no name: {NAME_RULE}", device.name)));
        }
        if let Some(pool) = &device.pool {
            if !is_vgpu_name(pool) {
                return Err(invalid(&format!("{key}.pool: `{pool}` is no name: {NAME_RULE}")));
            }
            if devices.iter().any(|other| other.name == *pool) {
                return Err(invalid(&format!("{key}.pool: a device is called `{pool}`")));
            }
        }
        if earlier.iter().any(|other| other.name == device.name) {
            return Err(invalid(&format!("{key}.name: two devices are called `{}`", device.name)));
        }
        let same = |other: &DeviceConfig| {
            let (same, what) = device.backend.conflict(&other.backend)?;
            Some(format!("{key}.{same}: `{}` and `{}` are {what}", other.name, device.name))
        };
        if let Some(message) = earlier.iter().find_map(same) {
            return Err(invalid(&message));
        }
        if let Some(policy) = &device.policy
            && let Err(error) = weft_sched::policy::for_node(policy)
        {
            return Err(invalid(&format!("{key}.{error}")));
        }
        if let Some(quantum_us) = device.quantum_us {
            check(&format!("{key}.quantum_us"), quantum_us, 100, 1_000_000)?;
        }
        let meets = |other: &&DeviceConfig| other.processors.meets(&device.processors);
        if let Some(other) = earlier.iter().find(meets) {
            return Err(invalid(&format!(
                "{key}.processors: `{}` and `{}` have one in common; each device has its own",
                other.name, device.name
            )));
        }
        check_size(&format!("{key}.memory"), device.memory_bytes(), 1 << 20, 1 << 40)?;
        device.backend.check().map_err(|message| invalid(&format!("{key}.{message}")))?;
        check_slots(&key, device)?;
    }
    Ok(())
}

impl NodeConfig {
    /// Refuses devices that lend what the host has no memory for. Of a GPU without a configured
    /// size that is known when it was looked at.
    pub(crate) fn check_host(&self) -> Result<(), ConfigError> {
        check_host(&self.devices, machine_memory_bytes())
    }
}

/// Memory that devices lend and do not have lies in the host's, unless it is swapped to files: no
/// more is lent than there is. Less may be free when it is touched; then the system decides.
fn check_host(devices: &[DeviceConfig], host_bytes: u64) -> Result<(), ConfigError> {
    let is_in_memory = |device: &&DeviceConfig| {
        device.oversubscribe.is_some_and(|times| times > 1) && device.swap_dir.is_none()
    };
    let lent = devices.iter().filter(is_in_memory).map(DeviceConfig::lent_bytes);
    let lent_bytes = lent.fold(0, u64::saturating_add);
    if lent_bytes > host_bytes {
        let [lent, host] = [lent_bytes, host_bytes].map(ByteSize);
        return Err(invalid(&format!(
            "device.oversubscribe: {lent} would be lent, and the host has {host}; lend less, or \
             set device.swap_dir to a directory on a disk"
        )));
    }
    Ok(())
}

fn check_slots(key: &str, device: &DeviceConfig) -> Result<(), ConfigError> {
    if let Some(slot) = device.slot {
        check_size(&format!("{key}.slot"), slot.0, 1 << 20, 1 << 30)?;
        if !slot.0.is_power_of_two() {
            return Err(invalid(&format!(
                "{key}.slot: {slot} is no power of two, 64MiB for example"
            )));
        }
        if slot.0 > device.memory_bytes() {
            let memory = ByteSize(device.memory_bytes());
            return Err(invalid(&format!(
                "{key}.slot: {slot} is more than the device's memory, {memory}"
            )));
        }
    }
    if let Some(times) = device.oversubscribe {
        check(&format!("{key}.oversubscribe"), times, 1, OVERSUBSCRIBE_MAX)?;
        if times > 1 && device.backend.lends() == Lends::Nothing {
            let kind = device.backend.kind();
            return Err(invalid(&format!(
                "{key}.oversubscribe: a `{kind}` device has no more than its memory"
            )));
        }
    }
    check(&format!("{key}.switch_entry_ns"), device.switch_entry_ns, 0, ENTRY_NS_MAX)?;
    let watched =
        [("idle_s", device.idle_s), ("window_s", device.window_s), ("period_s", device.period_s)];
    for (name, seconds) in watched {
        if let Some(seconds) = seconds {
            check(&format!("{key}.{name}"), seconds, 1, WATCHED_MAX_S)?;
        }
    }
    if device.swap_dir.is_some() {
        let kind = device.backend.kind();
        match device.backend.lends() {
            Lends::Nothing => {
                return Err(invalid(&format!(
                    "{key}.swap_dir: the memory of a `{kind}` device is not swapped to a file"
                )));
            }
            Lends::Sessions if !device.lends_sessions() => {
                return Err(invalid(&format!(
                    "{key}.swap_dir: a `{kind}` device that lends no more than it has keeps all of \
                     it; set {key}.oversubscribe above 1"
                )));
            }
            Lends::Sessions | Lends::Slots => {}
        }
    }
    device.geometry().map_err(|message| invalid(&format!("{key}.slot: {message}")))?;
    device.dealing().map_err(|error| invalid(&format!("{key}: {error}")))?;
    Ok(())
}

/// Reads a device's table. By hand, because the keys that belong to a backend are known only with
/// its kind; a key that no device has is refused where it stands, so that the message has its line.
mod table {
    use std::fmt;

    use serde::de::{Error, MapAccess, Visitor};
    use serde::{Deserialize, Deserializer};
    use toml::{Table, Value};

    use super::{BackendConfig, DeviceConfig, KIND_UNLESS_TOLD};

    /// Keys of every device, besides those of backends.
    const COMMON: [&str; 16] = [
        "idle_s",
        "kind",
        "memory",
        "name",
        "oversubscribe",
        "period_s",
        "placement",
        "policy",
        "pool",
        "processors",
        "quantum_us",
        "slot",
        "swap_dir",
        "switch_entry_ns",
        "trust_tenants",
        "window_s",
    ];

    struct Key(String);

    impl<'de> Deserialize<'de> for Key {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            let key = String::deserialize(deserializer)?;
            let known = || COMMON.into_iter().chain(weft_device::keys());
            if known().any(|known| known == key) {
                return Ok(Self(key));
            }
            let names: Vec<String> = known().map(|known| format!("`{known}`")).collect();
            let names = names.join(", ");
            Err(D::Error::custom(format!("unknown field `{key}`, expected one of {names}")))
        }
    }

    impl<'de> Deserialize<'de> for DeviceConfig {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            deserializer.deserialize_map(Keys)
        }
    }

    struct Keys;

    impl<'de> Visitor<'de> for Keys {
        type Value = DeviceConfig;

        fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            formatter.write_str("a table of a device")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut device = DeviceConfig::default();
            let (mut kind, mut settings) = (KIND_UNLESS_TOLD.to_owned(), Table::new());
            while let Some(Key(key)) = map.next_key()? {
                match key.as_str() {
                    "idle_s" => device.idle_s = map.next_value()?,
                    "kind" => kind = map.next_value()?,
                    "memory" => device.memory = map.next_value()?,
                    "name" => device.name = map.next_value()?,
                    "oversubscribe" => device.oversubscribe = map.next_value()?,
                    "period_s" => device.period_s = map.next_value()?,
                    "placement" => device.placement = map.next_value()?,
                    "policy" => device.policy = map.next_value()?,
                    "pool" => device.pool = map.next_value()?,
                    "processors" => device.processors = map.next_value()?,
                    "quantum_us" => device.quantum_us = map.next_value()?,
                    "slot" => device.slot = map.next_value()?,
                    "swap_dir" => device.swap_dir = map.next_value()?,
                    "switch_entry_ns" => device.switch_entry_ns = map.next_value()?,
                    "trust_tenants" => device.trust_tenants = map.next_value()?,
                    "window_s" => device.window_s = map.next_value()?,
                    _ => {
                        settings.insert(key, map.next_value::<Value>()?);
                    }
                }
            }
            device.backend = BackendConfig::new(&kind, settings).map_err(A::Error::custom)?;
            Ok(device)
        }
    }
}

/// One device is a table, several are a list of tables.
pub(super) mod list {
    use std::fmt;

    use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
    use serde::de::{MapAccess, SeqAccess, Visitor};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::DeviceConfig;

    pub(crate) fn serialize<S: Serializer>(
        devices: &[DeviceConfig],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match devices {
            [device] => device.serialize(serializer),
            devices => devices.serialize(serializer),
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<DeviceConfig>, D::Error> {
        deserializer.deserialize_any(OneOrMore)
    }

    /// By what is there, so that errors name key and line.
    struct OneOrMore;

    impl<'de> Visitor<'de> for OneOrMore {
        type Value = Vec<DeviceConfig>;

        fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            formatter.write_str("a table [device], or several [[device]]")
        }

        fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
            Ok(vec![DeviceConfig::deserialize(MapAccessDeserializer::new(map))?])
        }

        fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Self::Value, A::Error> {
            Vec::deserialize(SeqAccessDeserializer::new(list))
        }
    }
}

/// Writes a device's name (`soft:paced:MODEL.toml`, `cuda:1`) out as keys of its table. What was
/// set for another kind of device goes.
fn apply(device: &mut Table, text: &str) -> Result<(), ConfigError> {
    let name = DeviceName::parse(text).map_err(|error| invalid(&error.to_string()))?;
    let configured = device.get("kind").and_then(Value::as_str);
    if configured.unwrap_or(KIND_UNLESS_TOLD) != name.kind {
        device.retain(|key, _| !weft_device::keys().any(|own| own == key));
    }
    device.insert("kind".to_owned(), name.kind.into());
    device.extend(name.settings);
    Ok(())
}

/// The names in `soft:paced,cuda:0,…`. A model's file may have commas in its name.
fn names(text: &str) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for part in text.split(',') {
        let begins = weft_device::kinds().any(|kind| part.starts_with(kind));
        match names.last_mut() {
            Some(last) if !begins => *last = format!("{last},{part}"),
            Some(_) | None => names.push(part.to_owned()),
        }
    }
    names
}

/// Makes the devices a list of tables: a file may have a single one, or none.
pub(super) fn normalize(table: &mut Table) {
    let list = match table.remove("device") {
        Some(Value::Array(list)) => Value::Array(list),
        Some(device) => Value::Array(vec![device]),
        None => Value::Array(vec![Value::Table(Table::new())]),
    };
    table.insert("device".to_owned(), list);
}

/// Makes the configured devices what `text` names. One that is configured, or none, is what each
/// of several begins with.
pub(super) fn set(table: &mut Table, text: &str) -> Result<(), ConfigError> {
    let Some(devices) = table.get_mut("device").and_then(Value::as_array_mut) else {
        return Err(invalid("device: expected a table [device], or several [[device]]"));
    };
    let names = names(text);
    let (given, count) = (names.len(), devices.len());
    if count <= 1 {
        let base = devices.pop().unwrap_or_else(|| Value::Table(Table::new()));
        devices.resize(given, base);
    } else if given != count {
        return Err(invalid(&format!(
            "device: {given} named for the {count} that are configured; name as many, or \
             configure none"
        )));
    }
    for (device, name) in devices.iter_mut().filter_map(Value::as_table_mut).zip(&names) {
        apply(device, name)?;
    }
    Ok(())
}
