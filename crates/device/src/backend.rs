//! What a kind of device is to a node: how its user names it, what it is told, how it is found and
//! opened, and what its worker needs of the system.
//!
//! A backend is a folder of this crate with a [`Backend`] in it, and its line in [`BackendConfig`].

use std::path::PathBuf;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use toml::Table;
use weft_ring::{MemoryFile, SharedMemory};

use crate::cuda::CudaBackend;
use crate::soft::{Geometry, HostWindow, SoftBackend};
use crate::{Device, DeviceInfo, DevicePage, FrameSource};

/// A kind of device, as the settings that are its own.
///
/// In a configuration they are keys of the device's table, beside those that every device has.
pub trait Backend: std::fmt::Debug + Clone + Default + Serialize + DeserializeOwned {
    /// Its name: what `kind` says, and the first word of a device's name.
    const KIND: &'static str;
    /// How such a device may be named, in words.
    const SPELLINGS: &'static str;
    /// The keys of its settings.
    const KEYS: &'static [&'static str];
    /// What executes.
    type Device: Device;

    /// The settings that a device's name says; `rest` is what follows the kind's colon. Nothing if
    /// it is not understood.
    ///
    /// # Errors
    /// [`NameError::Settings`]: what the name refers to is no settings.
    fn parse(rest: Option<&str>) -> Result<Option<Table>, NameError>;

    /// Checks what the settings' types leave open.
    ///
    /// # Errors
    /// A text that begins with the key and names the values it may have.
    fn check(&self) -> Result<(), String> {
        Ok(())
    }

    /// The key by which both are one piece of hardware, and which, in words: a node cannot have it
    /// twice.
    fn conflict(&self, _other: &Self) -> Option<(&'static str, String)> {
        None
    }

    /// Whether a worker on a device of these settings may go on under the others.
    fn outlives(&self, other: &Self) -> bool;

    /// Whether a session of a device of the other settings can go on here ([`Device::begin_move`]).
    fn receives(&self, _other: &Self) -> bool {
        false
    }

    /// What its clock is called.
    fn clock(&self) -> &'static str;

    /// Whether work in flight occupies the device for as long as it would have when its worker
    /// dies; otherwise it ends there and then.
    fn keeps_abandoned(&self) -> bool {
        false
    }

    /// How a node lends more memory of it than it has, and keeps in a file what does not fit.
    fn lends(&self) -> Lends {
        Lends::Nothing
    }

    /// What its worker may do beyond what every worker may.
    fn needs(&self) -> Needs {
        Needs::default()
    }

    /// What its worker's environment has, and (`None`) does not have.
    fn environment(&self) -> &'static [(&'static str, Option<&'static str>)] {
        &[]
    }

    /// Whether [`Self::probe`] loads a driver, which leaves threads and files in its process.
    const LOADS_DRIVER: bool;

    /// Looks at the device. `memory_bytes` is what it is to have if that is a matter of choice;
    /// `trusting` means that no tenant of the node is hostile.
    ///
    /// # Errors
    /// Why no node executes on it, for its administrator.
    fn probe(&self, memory_bytes: u64, trusting: bool) -> Result<DeviceInfo, String>;

    /// Opens the device for a session.
    ///
    /// # Errors
    /// [`OpenError`].
    fn open(&self, parts: Parts) -> Result<Self::Device, OpenError>;
}

/// How a device's memory is lent more than once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lends {
    /// Not at all.
    Nothing,
    /// In slots: a table says what is in each, also while an operation runs.
    Slots,
    /// Session by session: an operation has all of its session's memory there
    /// ([`FrameSource::room`]).
    Sessions,
}

/// What a worker needs of the system for its device. The default is nothing at all.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Needs {
    /// A driver lives in its process: it opens files, makes threads and executable memory.
    pub driver: bool,
    /// Folders and files that it reads.
    pub reads: Vec<PathBuf>,
    /// Device files that it opens.
    pub devices: Vec<PathBuf>,
    /// Folders whose files it writes to.
    pub writes: &'static [&'static str],
    /// System calls.
    pub calls: &'static [i64],
    /// Commands of `fcntl`.
    pub fcntl: &'static [i32],
}

/// What a session's device is made of.
#[derive(Debug)]
pub struct Parts {
    /// The session's dense key: owner of its frames, its place on the device page.
    pub session: u32,
    /// The page that all sessions on the device share.
    pub page: DevicePage,
    /// The vGPU's frames.
    pub frames: MemoryFile,
    /// The vGPU's private table, read-only.
    pub table: Arc<SharedMemory>,
    /// The device's physical table, read-only.
    pub physical: Arc<SharedMemory>,
    /// How the device's memory is divided.
    pub geometry: Geometry,
    /// Pays for memory.
    pub source: Box<dyn FrameSource>,
    /// Quota of the vGPU, in bytes.
    pub memory_bytes: u64,
    /// Device addresses that the tenant has reserved: first, length in bytes.
    pub range: (u64, u64),
    /// The pinned window with what is behind it; its address in the tenant is its address here.
    pub window: HostWindow,
    /// Memory that copies are staged in.
    pub staging: Arc<SharedMemory>,
    /// How long one kernel may run, in ns, if that is limited.
    pub kernel_ns: Option<u64>,
}

/// Why a device does not open for a session.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct OpenError(Box<dyn std::error::Error + Send + Sync>);

impl OpenError {
    pub(crate) fn new(error: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self(Box::new(error))
    }
}

/// Why a device's name is not understood. The text is for the user.
#[derive(Debug, thiserror::Error)]
pub enum NameError {
    /// No such device.
    #[error("device `{0}` is not understood: expected {all}", all = spellings())]
    Unknown(String),
    /// What the name refers to.
    #[error(transparent)]
    Settings(Box<dyn std::error::Error + Send + Sync>),
}

/// A device as its user wrote it down: `WEFT_DEVICE`, `weft node --device`, the setting `device`.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceName {
    /// Its kind.
    pub kind: &'static str,
    /// What else was said; the other settings are as configured.
    pub settings: Table,
}

impl NameError {
    pub(crate) fn settings(error: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::Settings(Box::new(error))
    }
}

impl DeviceName {
    /// Reads a device's name; the empty one is the software GPU.
    ///
    /// # Errors
    /// [`NameError`].
    pub fn parse(text: &str) -> Result<Self, NameError> {
        let (word, rest) = match text.split_once(':') {
            Some((word, rest)) => (word, Some(rest)),
            None if text.is_empty() => (SoftBackend::KIND, None),
            None => (text, None),
        };
        let unknown = || NameError::Unknown(text.to_owned());
        let kind = KINDS.iter().find(|kind| kind.name == word).ok_or_else(unknown)?;
        let settings = (kind.parse)(rest)?.ok_or_else(unknown)?;
        Ok(Self { kind: kind.name, settings })
    }

    /// The device, with the defaults for everything that its name leaves open.
    ///
    /// # Errors
    /// [`NameError::Settings`] if that is no device.
    pub fn with_defaults(self) -> Result<BackendConfig, NameError> {
        BackendConfig::new(self.kind, self.settings).map_err(NameError::settings)
    }
}

/// What is known of a backend without its settings.
struct Kind {
    name: &'static str,
    spellings: &'static str,
    keys: &'static [&'static str],
    parse: fn(Option<&str>) -> Result<Option<Table>, NameError>,
}

const fn kind<B: Backend>() -> Kind {
    Kind { name: B::KIND, spellings: B::SPELLINGS, keys: B::KEYS, parse: B::parse }
}

/// The names of all kinds.
pub fn kinds() -> impl Iterator<Item = &'static str> {
    KINDS.iter().map(|kind| kind.name)
}

/// The keys of all kinds' settings.
pub fn keys() -> impl Iterator<Item = &'static str> {
    KINDS.iter().flat_map(|kind| kind.keys).copied()
}

/// Refuses settings that other kinds of devices have, by name.
fn refuse_foreign<B: Backend>(settings: &Table) -> Result<(), toml::de::Error> {
    let Some(key) = settings.keys().find(|key| !B::KEYS.contains(&key.as_str())) else {
        return Ok(());
    };
    let (kind, own) = (B::KIND, B::KEYS.join(", "));
    let message = format!("a `{kind}` device has no `{key}`; what it has of its own: {own}");
    Err(serde::de::Error::custom(message))
}

fn spellings() -> String {
    let all: Vec<&str> = KINDS.iter().map(|kind| kind.spellings).collect();
    all.join(", ")
}

/// What is done with a device whose kind is known only at run time.
pub trait WithDevice {
    /// What comes of it.
    type Output;

    /// Does it.
    fn with<D: Device>(self, device: D) -> Self::Output;
}

/// Makes the registry: an enum of all backends' settings that hands each question to its backend.
macro_rules! backends {
    ($($(#[$doc:meta])* $Kind:ident($Backend:ty),)*) => {
        /// A kind of device with its settings.
        #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(tag = "kind", rename_all = "snake_case")]
        pub enum BackendConfig {
            $($(#[$doc])* $Kind($Backend),)*
        }

        const KINDS: &[Kind] = &[$(kind::<$Backend>(),)*];

        impl BackendConfig {
            /// The device of this kind with these settings, and the defaults for the others.
            ///
            /// # Errors
            /// There is no such kind, or it has no such setting. The text names the key.
            pub fn new(kind: &str, settings: Table) -> Result<Self, toml::de::Error> {
                $(if kind == <$Backend>::KIND {
                    refuse_foreign::<$Backend>(&settings)?;
                    return settings.try_into().map(Self::$Kind);
                })*
                let names: Vec<&str> = kinds().collect();
                let names = names.join(", ");
                Err(serde::de::Error::custom(format!("kind: there is no `{kind}`; one of {names}")))
            }

            /// [`Backend::KIND`].
            #[must_use]
            pub fn kind(&self) -> &'static str {
                match self { $(Self::$Kind(_) => <$Backend>::KIND,)* }
            }

            /// [`Backend::check`].
            ///
            /// # Errors
            /// As there.
            pub fn check(&self) -> Result<(), String> {
                match self { $(Self::$Kind(backend) => backend.check(),)* }
            }

            /// [`Backend::conflict`].
            #[must_use]
            pub fn conflict(&self, other: &Self) -> Option<(&'static str, String)> {
                match (self, other) {
                    $((Self::$Kind(own), Self::$Kind(other)) => own.conflict(other),)*
                    _ => None,
                }
            }

            /// [`Backend::outlives`].
            #[must_use]
            pub fn outlives(&self, other: &Self) -> bool {
                match (self, other) {
                    $((Self::$Kind(own), Self::$Kind(other)) => own.outlives(other),)*
                    _ => false,
                }
            }

            /// [`Backend::receives`].
            #[must_use]
            pub fn receives(&self, other: &Self) -> bool {
                match (self, other) {
                    $((Self::$Kind(own), Self::$Kind(other)) => own.receives(other),)*
                    _ => false,
                }
            }

            /// [`Backend::clock`].
            #[must_use]
            pub fn clock(&self) -> &'static str {
                match self { $(Self::$Kind(backend) => backend.clock(),)* }
            }

            /// [`Backend::keeps_abandoned`].
            #[must_use]
            pub fn keeps_abandoned(&self) -> bool {
                match self { $(Self::$Kind(backend) => backend.keeps_abandoned(),)* }
            }

            /// [`Backend::lends`].
            #[must_use]
            pub fn lends(&self) -> Lends {
                match self { $(Self::$Kind(backend) => backend.lends(),)* }
            }

            /// [`Backend::needs`].
            #[must_use]
            pub fn needs(&self) -> Needs {
                match self { $(Self::$Kind(backend) => backend.needs(),)* }
            }

            /// [`Backend::environment`].
            #[must_use]
            pub fn environment(&self) -> &'static [(&'static str, Option<&'static str>)] {
                match self { $(Self::$Kind(backend) => backend.environment(),)* }
            }

            /// [`Backend::LOADS_DRIVER`].
            #[must_use]
            pub fn loads_driver(&self) -> bool {
                match self { $(Self::$Kind(_) => <$Backend>::LOADS_DRIVER,)* }
            }

            /// [`Backend::probe`].
            ///
            /// # Errors
            /// As there.
            pub fn probe(&self, memory_bytes: u64, trusting: bool) -> Result<DeviceInfo, String> {
                match self { $(Self::$Kind(backend) => backend.probe(memory_bytes, trusting),)* }
            }

            /// [`Backend::open`], and something done with the device.
            ///
            /// # Errors
            /// As there.
            pub fn open<W: WithDevice>(&self, parts: Parts, to: W) -> Result<W::Output, OpenError> {
                match self { $(Self::$Kind(backend) => Ok(to.with(backend.open(parts)?)),)* }
            }
        }
    };
}

backends! {
    /// The software GPU.
    Soft(SoftBackend),
    /// A genuine GPU, through its driver's `libcuda`.
    Cuda(CudaBackend),
}

impl Default for BackendConfig {
    fn default() -> Self {
        Self::Soft(SoftBackend::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(text: &str) -> (&'static str, String) {
        let name = DeviceName::parse(text).unwrap();
        (name.kind, name.settings.to_string().replace('\n', " ").trim().to_owned())
    }

    #[test]
    fn the_known_spellings_are_understood() {
        for (text, kind, said) in [
            ("", "soft", ""),
            ("soft", "soft", ""),
            ("soft:real", "soft", "clock = \"real\""),
            ("soft:paced", "soft", "clock = \"paced\""),
            ("soft:check", "soft", "exact_bounds = true"),
            ("cuda", "cuda", ""),
            ("cuda:1", "cuda", "ordinal = 1"),
        ] {
            assert_eq!(settings(text), (kind, said.to_owned()));
        }
    }

    #[test]
    fn everything_else_is_refused_by_name() {
        for text in
            ["quick", "soft:fast", "soft:real:file", "soft::", "cuda:", "cuda:x", "cuda:0:1"]
        {
            let error = DeviceName::parse(text).unwrap_err().to_string();
            assert!(error.contains(text) && error.contains("soft:paced"), "{error}");
        }
        let error = DeviceName::parse("soft:paced:/does/not/exist").unwrap_err();
        assert!(matches!(error, NameError::Settings(_)), "{error}");
        assert!(error.to_string().contains("/does/not/exist"), "{error}");
    }

    #[test]
    fn every_backends_keys_are_those_of_its_settings() {
        for name in kinds() {
            let config = DeviceName::parse(name).unwrap().with_defaults().unwrap();
            let table = Table::try_from(&config).unwrap();
            let known = KINDS.iter().find(|kind| kind.name == name).unwrap().keys;
            assert_eq!(config.kind(), name);
            for key in table.keys().filter(|key| *key != "kind") {
                assert!(known.contains(&key.as_str()), "{name} does not list {key}");
            }
        }
    }

    #[test]
    fn a_model_file_is_read_and_its_mistakes_are_named() {
        let file = std::env::temp_dir().join(format!("weft-model-{}.toml", std::process::id()));
        let text = format!("soft:paced:{}", file.display());
        let read = |content: &str| {
            std::fs::write(&file, content).unwrap();
            DeviceName::parse(&text).and_then(DeviceName::with_defaults)
        };
        let spec = read("base_ns = 7\n[[kernels]]\nkernel = \"mm*\"\nns = 21000\n").unwrap();
        let BackendConfig::Soft(soft) = spec else { panic!("{spec:?}") };
        assert_eq!((soft.model.base_ns, soft.model.kernels[0].ns), (7, 21_000));
        for (content, word) in [("bass_ns = 7", "bass_ns"), ("copy_bytes_per_us = 0", "at least 1")]
        {
            let error = read(content).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
        std::fs::remove_file(&file).unwrap();
    }
}
