//! The software GPU as a node has it.

use std::path::Path;

use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use super::{
    Clock, FrameStore, MemoryConfig, PacedModel, SoftConfig, SoftDevice, Translation, device_info,
};
use crate::{Backend, DeviceInfo, Lends, NameError, OpenError, Parts};

/// `CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED`.
const IPC_EVENT_SUPPORTED: u32 = 125;

/// Which clock a software device runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SoftClock {
    /// As fast as the CPU allows.
    #[default]
    Real,
    /// By the configured model.
    Paced,
}

/// What a software device is told.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SoftBackend {
    /// Its clock.
    pub clock: SoftClock,
    /// Times of a paced device.
    pub model: PacedModel,
    /// Allocations and blocks' shared memory end at the byte that was asked for: a checking mode
    /// for programs that on a GPU only seem to work.
    pub exact_bounds: bool,
    /// What launching an operation takes is charged to nobody: a negative control for benchmarks.
    pub free_launches: bool,
}

impl SoftBackend {
    pub(super) fn clock_of_device(&self) -> Clock {
        match self.clock {
            SoftClock::Real => Clock::Real,
            SoftClock::Paced => Clock::Paced(self.model.clone()),
        }
    }
}

impl Backend for SoftBackend {
    const KIND: &'static str = "soft";
    const SPELLINGS: &'static str =
        "soft, soft:real, soft:paced, soft:paced:MODEL.toml, soft:check";
    const KEYS: &'static [&'static str] = &["clock", "exact_bounds", "free_launches", "model"];
    const LOADS_DRIVER: bool = false;
    type Device = SoftDevice;

    fn parse(rest: Option<&str>) -> Result<Option<Table>, NameError> {
        let mut settings = Table::new();
        let Some(rest) = rest else { return Ok(Some(settings)) };
        let (clock, file) = match rest.split_once(':') {
            Some((clock, file)) => (clock, Some(file)),
            None => (rest, None),
        };
        match (clock, file) {
            ("real" | "paced", None) => {}
            ("check", None) => {
                settings.insert("exact_bounds".to_owned(), true.into());
                return Ok(Some(settings));
            }
            ("paced", Some(file)) => {
                let model = PacedModel::read(Path::new(file)).map_err(NameError::settings)?;
                let model = Value::try_from(model).map_err(NameError::settings)?;
                settings.insert("model".to_owned(), model);
            }
            _ => return Ok(None),
        }
        settings.insert("clock".to_owned(), clock.into());
        Ok(Some(settings))
    }

    fn check(&self) -> Result<(), String> {
        self.model.check().map_err(|message| format!("model.{message}"))
    }

    fn outlives(&self, other: &Self) -> bool {
        // The model of a paced one may be another.
        (self.clock, self.exact_bounds) == (other.clock, other.exact_bounds)
    }

    fn receives(&self, other: &Self) -> bool {
        // Allocations keep their ends.
        self.exact_bounds == other.exact_bounds
    }

    fn clock(&self) -> &'static str {
        match self.clock {
            SoftClock::Real => "real",
            SoftClock::Paced => "paced",
        }
    }

    fn lends(&self) -> Lends {
        // Its workers' translation table says where each slot is.
        Lends::Slots
    }

    fn keeps_abandoned(&self) -> bool {
        // Time on a paced device is reserved when an operation starts.
        self.clock == SoftClock::Paced
    }

    fn probe(&self, memory_bytes: u64, _trusting: bool) -> Result<DeviceInfo, String> {
        let mut info = device_info(memory_bytes);
        // Sessions on a node share memory, and so events.
        info.attributes.insert(IPC_EVENT_SUPPORTED, 1);
        Ok(info)
    }

    fn open(&self, parts: Parts) -> Result<SoftDevice, OpenError> {
        // Frames belong to sessions, so that sessions of one vGPU are kept apart as well.
        let (private, physical) = (&parts.table, &parts.physical);
        let table = Translation::open(private, physical, parts.geometry, parts.session)
            .map_err(OpenError::new)?;
        let (base, len) = parts.range;
        let memory = MemoryConfig {
            store: FrameStore::map(parts.frames, Some(table)).map_err(OpenError::new)?,
            source: parts.source,
            base,
            len,
            window: Some(parts.window),
            exact_bounds: self.exact_bounds,
        };
        let mut device = SoftDevice::new(SoftConfig {
            memory,
            memory_bytes: parts.memory_bytes,
            clock: self.clock_of_device(),
            page: Some((parts.page, parts.session)),
        });
        if self.free_launches {
            device.make_launches_free();
        }
        Ok(device)
    }
}
