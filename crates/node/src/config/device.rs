//! The devices: which backend each has, and what it is told.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use toml::{Table, Value};
use weft_device::soft::PacedModel;
use weft_device::{DeviceSpec, SoftClock};

use super::{ByteSize, ConfigError, NAME_RULE, check, check_size, invalid, is_vgpu_name};

/// Memory of a software device unless configured otherwise, in bytes.
const SOFT_MEMORY_BYTES: u64 = 4 << 30;

/// Which clock a software device runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClockConfig {
    /// As fast as the CPU allows.
    Real,
    /// By the configured model.
    Paced,
}

/// Which kind of device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceKind {
    /// The software GPU.
    Soft,
    /// A genuine GPU, through its driver's `libcuda`.
    Cuda,
}

/// Devices that a node may have.
const DEVICES_MAX: usize = 64;

/// A device.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DeviceConfig {
    /// What it is called: `gpu0`, `gpu1`, … unless configured.
    pub name: String,
    /// Backend.
    pub kind: DeviceKind,
    /// Clock of a software device.
    pub clock: ClockConfig,
    /// Device memory that the vGPUs may have in all: 4 GiB of a software device if absent, all that
    /// a GPU has.
    pub memory: Option<ByteSize>,
    /// Times of a paced device.
    pub model: PacedModel,
    /// The genuine driver's library; `libcuda.so.1` where the system finds it if absent.
    pub library: Option<PathBuf>,
    /// Which of the driver's devices.
    pub ordinal: u32,
    /// No tenant of this node is hostile, so a GPU is allowed whose kernels reach all memory of
    /// their worker: what keeps tenants apart lies open to them there.
    pub trust_tenants: bool,
    /// Its policy; `scheduling.policy` if absent.
    pub policy: Option<String>,
    /// Its quantum; `scheduling.quantum_us` if absent.
    pub quantum_us: Option<u64>,
}

impl Default for DeviceConfig {
    fn default() -> Self {
        Self {
            name: String::new(),
            kind: DeviceKind::Soft,
            clock: ClockConfig::Real,
            memory: None,
            model: PacedModel::default(),
            library: None,
            ordinal: 0,
            trust_tenants: false,
            policy: None,
            quantum_us: None,
        }
    }
}

impl DeviceConfig {
    /// Device memory in bytes, once the daemon knows what a GPU has.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.memory.map_or(SOFT_MEMORY_BYTES, |memory| memory.0)
    }
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
        if earlier.iter().any(|other| other.name == device.name) {
            return Err(invalid(&format!("{key}.name: two devices are called `{}`", device.name)));
        }
        let same =
            |other: &&DeviceConfig| other.kind == device.kind && other.ordinal == device.ordinal;
        if device.kind == DeviceKind::Cuda
            && let Some(other) = earlier.iter().find(same)
        {
            return Err(invalid(&format!(
                "{key}.ordinal: `{}` and `{}` are the same GPU, {}",
                other.name, device.name, device.ordinal
            )));
        }
        if let Some(policy) = &device.policy
            && let Err(error) = weft_sched::policy::for_node(policy)
        {
            return Err(invalid(&format!("{key}.{error}")));
        }
        if let Some(quantum_us) = device.quantum_us {
            check(&format!("{key}.quantum_us"), quantum_us, 100, 1_000_000)?;
        }
        check_size(&format!("{key}.memory"), device.memory_bytes(), 1 << 20, 1 << 40)?;
        let model = device.model.check();
        model.map_err(|message| invalid(&format!("{key}.model.{message}")))?;
    }
    Ok(())
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

/// Writes a device's name (`soft:paced:MODEL.toml`, `cuda:1`) out as keys of its table.
fn apply(device: &mut Table, text: &str) -> Result<(), ConfigError> {
    let spec = DeviceSpec::parse(text).map_err(|error| invalid(&error.to_string()))?;
    let mut set = |key: &str, value: Value| {
        device.insert(key.to_owned(), value);
    };
    let text = |word: &str| Value::String(word.to_owned());
    match spec {
        DeviceSpec::Soft { clock, model } => {
            set("kind", text("soft"));
            match clock {
                Some(SoftClock::Real) => set("clock", text("real")),
                Some(SoftClock::Paced) => set("clock", text("paced")),
                None => {}
            }
            if let Some(model) = model {
                set("model", Value::try_from(model).map_err(|error| invalid(&error.to_string()))?);
            }
        }
        DeviceSpec::Cuda { ordinal } => {
            set("kind", text("cuda"));
            if let Some(ordinal) = ordinal {
                set("ordinal", Value::Integer(ordinal.into()));
            }
        }
    }
    Ok(())
}

/// The names in `soft:paced,cuda:0,…`. A model's file may have commas in its name.
fn names(text: &str) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for part in text.split(',') {
        let begins = ["soft", "cuda"].iter().any(|kind| part.starts_with(kind));
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
