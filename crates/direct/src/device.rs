//! Which device `WEFT_DEVICE` names: `soft`, `soft:paced` or `soft:paced:MODEL.toml`.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use weft_device::soft::{
    Clock, FrameStore, KernelModel, LocalFrames, MemoryConfig, PacedModel, SoftConfig, SoftDevice,
};

use crate::open::{Ground, OpenError};

/// Device memory unless the program's user asks for another amount (`WEFT_MEMORY`).
const MEMORY_BYTES: u64 = 4 << 30;

/// A device as its user wrote it down.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeviceSpec {
    /// Modelled times; `None` for a device that is as fast as the CPU allows.
    pub model: Option<PacedModel>,
}

/// A model file. The keys and what they default to are those of `device.model` in the node's
/// configuration.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct ModelFile {
    kernels: Vec<KernelRule>,
    base_ns: u64,
    ns_per_block: u64,
    copy_base_ns: u64,
    copy_bytes_per_us: u64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct KernelRule {
    kernel: String,
    #[serde(default)]
    ns: u64,
    #[serde(default)]
    ns_per_block: u64,
}

impl Default for ModelFile {
    fn default() -> Self {
        Self {
            kernels: Vec::new(),
            base_ns: 5_000,
            ns_per_block: 200,
            copy_base_ns: 2_000,
            copy_bytes_per_us: 10_000,
        }
    }
}

impl From<ModelFile> for PacedModel {
    fn from(file: ModelFile) -> Self {
        let ModelFile { kernels, base_ns, ns_per_block, copy_base_ns, copy_bytes_per_us } = file;
        let rule =
            |KernelRule { kernel, ns, ns_per_block }| KernelModel { kernel, ns, ns_per_block };
        let kernels = kernels.into_iter().map(rule).collect();
        Self { kernels, base_ns, ns_per_block, copy_base_ns, copy_bytes_per_us }
    }
}

/// Why a device specification is not understood.
#[derive(Debug, thiserror::Error)]
pub enum SpecError {
    /// No such device.
    #[error(
        "WEFT_DEVICE={0} is not understood: expected soft, soft:paced or soft:paced:MODEL.toml"
    )]
    Unknown(String),
    /// The model's file cannot be read.
    #[error("the device model {path} cannot be read: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: std::io::Error,
    },
    /// The model's file is no model.
    #[error("the device model {path} is not understood: {message}")]
    Model {
        /// The file.
        path: PathBuf,
        /// Line, key and what was expected.
        message: String,
    },
}

impl DeviceSpec {
    /// Reads a specification. `soft:paced` without a file takes the model from `model_file` if
    /// there is one (`WEFT_MODEL`), else the default model.
    ///
    /// # Errors
    /// [`SpecError`], whose text is for the program's user.
    pub fn parse(spec: &str, model_file: Option<&Path>) -> Result<Self, SpecError> {
        let mut parts = spec.splitn(3, ':');
        let (kind, clock, file) = (parts.next().unwrap_or(""), parts.next(), parts.next());
        let unknown = || SpecError::Unknown(spec.to_owned());
        if !matches!(kind, "" | "soft") {
            return Err(unknown());
        }
        match clock {
            None | Some("real") if file.is_none() => Ok(Self { model: None }),
            Some("paced") => {
                let file = file.map(Path::new).or(model_file);
                let model = file.map(read_model).transpose()?.unwrap_or_default();
                Ok(Self { model: Some(model.into()) })
            }
            Some(_) | None => Err(unknown()),
        }
    }

    /// The device, which this process has to itself.
    ///
    /// # Errors
    /// [`OpenError::Device`] when the system gives no memory.
    pub fn build(self, ground: Ground) -> Result<SoftDevice, OpenError> {
        let Ground { device_base, device_bytes, memory_bytes, pinned_base, pinned } = ground;
        let memory_bytes = if memory_bytes == 0 { MEMORY_BYTES } else { memory_bytes };
        let memory = MemoryConfig {
            store: FrameStore::local(memory_bytes)?,
            source: Box::new(LocalFrames::new(memory_bytes)),
            base: device_base,
            len: device_bytes,
            window: Some((pinned_base, pinned)),
        };
        let clock = self.model.map_or(Clock::Real, Clock::Paced);
        Ok(SoftDevice::new(SoftConfig { memory, memory_bytes, clock, page: None }))
    }
}

fn read_model(path: &Path) -> Result<ModelFile, SpecError> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| SpecError::Read { path: path.to_owned(), source })?;
    let wrong = |message: String| SpecError::Model { path: path.to_owned(), message };
    let model: ModelFile = toml::from_str(&text).map_err(|error| wrong(error.to_string()))?;
    if model.copy_bytes_per_us == 0 {
        return Err(wrong("copy_bytes_per_us: 0 is out of range; at least 1".to_owned()));
    }
    Ok(model)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_known_spellings_are_understood() {
        assert_eq!(DeviceSpec::parse("soft", None).unwrap().model, None);
        assert_eq!(DeviceSpec::parse("", None).unwrap().model, None);
        assert_eq!(DeviceSpec::parse("soft:real", None).unwrap().model, None);
        let paced = DeviceSpec::parse("soft:paced", None).unwrap();
        assert_eq!(paced.model, Some(ModelFile::default().into()));
    }

    #[test]
    fn everything_else_is_refused_by_name() {
        for spec in ["cuda", "soft:fast", "soft:real:file", "soft::"] {
            let error = DeviceSpec::parse(spec, None).unwrap_err();
            assert!(error.to_string().contains(spec), "{error}");
        }
        let error = DeviceSpec::parse("soft:paced:/does/not/exist", None).unwrap_err();
        assert!(matches!(error, SpecError::Read { .. }), "{error}");
    }

    #[test]
    fn a_model_file_is_read_and_its_mistakes_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("model.toml");
        std::fs::write(&file, "base_ns = 7\n[[kernels]]\nkernel = \"mm*\"\nns = 21000\n").unwrap();
        let spec = format!("soft:paced:{}", file.display());
        let model = DeviceSpec::parse(&spec, None).unwrap().model.unwrap();
        assert_eq!((model.base_ns, model.kernels[0].ns), (7, 21_000));
        assert_eq!(DeviceSpec::parse("soft:paced", Some(&file)).unwrap().model, Some(model));
        std::fs::write(&file, "bass_ns = 7").unwrap();
        let error = DeviceSpec::parse(&spec, None).unwrap_err();
        assert!(error.to_string().contains("bass_ns"), "{error}");
    }
}
