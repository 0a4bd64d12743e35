//! The device that `WEFT_DEVICE` names, in the program's own process.

use std::path::Path;

use weft_device::LocalFrames;
use weft_device::soft::HostWindow;
use weft_device::soft::{
    Clock, FrameStore, MemoryConfig, ModelError, PacedModel, SoftClock, SoftConfig, SoftDevice,
};
use weft_device::{BackendConfig, DeviceName, DevicePage, NameError};

use crate::open::{Ground, OpenError};

/// Device memory unless the program's user asks for another amount (`WEFT_MEMORY`).
const MEMORY_BYTES: u64 = 4 << 30;

/// A participant's number on a page that has one.
const ALONE: u32 = 1;

/// Memory of the device, if so much was asked for: 0 is nothing said.
pub(crate) const fn or_default(memory_bytes: u64) -> u64 {
    if memory_bytes == 0 { MEMORY_BYTES } else { memory_bytes }
}

/// A software device to build.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SoftSpec {
    /// Modelled times; `None` for a device that is as fast as the CPU allows.
    pub model: Option<PacedModel>,
    /// As [`weft_device::soft::MemoryConfig::exact_bounds`].
    pub exact_bounds: bool,
}

/// Why there is no such device in the process.
#[derive(Debug, thiserror::Error)]
pub enum DirectSpecError {
    /// The name is not understood.
    #[error("WEFT_DEVICE: {0}")]
    Name(#[from] NameError),
    /// Nor is the model.
    #[error("WEFT_MODEL: {0}")]
    Model(#[from] ModelError),
    /// A genuine GPU needs none of this.
    #[error(
        "WEFT_DEVICE={0}: direct attachment executes on the software GPU; the baseline on a \
         genuine GPU is its own driver: `weft run --direct --device {0} -- PROGRAM`"
    )]
    Genuine(String),
}

impl SoftSpec {
    /// Reads a device's name. `soft:paced` without a file takes the model from `model_file` if
    /// there is one (`WEFT_MODEL`), else the default model.
    ///
    /// # Errors
    /// [`DirectSpecError`], whose text is for the program's user.
    pub fn parse(text: &str, model_file: Option<&Path>) -> Result<Self, DirectSpecError> {
        let name = DeviceName::parse(text)?;
        let has_model = name.settings.contains_key("model");
        let BackendConfig::Soft(soft) = name.with_defaults()? else {
            return Err(DirectSpecError::Genuine(text.to_owned()));
        };
        let model = match (soft.clock, model_file) {
            (SoftClock::Real, _) => None,
            (SoftClock::Paced, Some(file)) if !has_model => Some(PacedModel::read(file)?),
            (SoftClock::Paced, _) => Some(soft.model),
        };
        Ok(Self { model, exact_bounds: soft.exact_bounds })
    }

    /// The device, which this process has to itself. A paced one has its timeline and its totals on
    /// `page`, if there is one, on which whoever made it reads how it kept to its model.
    ///
    /// # Errors
    /// [`OpenError::Device`] when the system gives no memory.
    pub fn build(self, ground: Ground, page: Option<DevicePage>) -> Result<SoftDevice, OpenError> {
        let Ground { device_base, device_bytes, memory_bytes, pinned_base, pinned, managed_bytes } =
            ground;
        let memory_bytes = or_default(memory_bytes);
        let memory = MemoryConfig {
            store: FrameStore::local(memory_bytes)?,
            source: Box::new(LocalFrames::new(memory_bytes)),
            base: device_base,
            len: device_bytes,
            window: Some(HostWindow { base: pinned_base, memory: pinned, managed_bytes }),
            exact_bounds: self.exact_bounds,
        };
        // On the real clock a page is a queue of processes, and this one waits for nobody.
        let page = page.filter(|_| self.model.is_some()).map(|page| (page, ALONE));
        let clock = self.model.map_or(Clock::Real, Clock::Paced);
        Ok(SoftDevice::new(SoftConfig { memory, memory_bytes, clock, page }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_software_devices_are_built_and_a_genuine_one_is_named() {
        assert_eq!(SoftSpec::parse("", None).unwrap().model, None);
        assert_eq!(SoftSpec::parse("soft:real", None).unwrap().model, None);
        let paced = SoftSpec::parse("soft:paced", None).unwrap();
        assert_eq!(paced.model, Some(PacedModel::default()));
        let error = SoftSpec::parse("cuda:1", None).unwrap_err().to_string();
        assert!(error.contains("weft run --direct --device cuda:1"), "{error}");
        let error = SoftSpec::parse("quick", None).unwrap_err().to_string();
        assert!(error.contains("WEFT_DEVICE") && error.contains("quick"), "{error}");
    }

    #[test]
    fn a_model_file_beside_the_name_counts() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("model.toml");
        std::fs::write(&file, "base_ns = 7\n").unwrap();
        let model = SoftSpec::parse("soft:paced", Some(&file)).unwrap().model.unwrap();
        assert_eq!(model.base_ns, 7);
        std::fs::write(&file, "bass_ns = 7").unwrap();
        let error = SoftSpec::parse("soft:paced", Some(&file)).unwrap_err();
        assert!(error.to_string().contains("bass_ns"), "{error}");
    }
}
