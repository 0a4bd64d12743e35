//! Which device `WEFT_DEVICE` names: `soft`, `soft:paced` or `soft:paced:MODEL.toml`.

use std::path::{Path, PathBuf};

use serde::Deserialize;

/// A device as its user wrote it down.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeviceSpec {
    /// Modelled times; `None` for a device that is as fast as the CPU allows.
    pub model: Option<Model>,
}

/// Modelled times of a paced device. The keys are those of `device.model` in the node's configuration.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Model {
    /// Kernels; the first match wins.
    pub kernels: Vec<KernelModel>,
    /// A kernel that no rule names: fixed part, in ns.
    pub base_ns: u64,
    /// A kernel that no rule names: part per thread block, in ns.
    pub ns_per_block: u64,
    /// Copies and fills: fixed part, in ns.
    pub copy_base_ns: u64,
    /// Copies and fills: bytes per µs.
    pub copy_bytes_per_us: u64,
}

/// The modelled time of the kernels that a name matches: `ns`, or `ns_per_block`, or the sum.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KernelModel {
    /// Kernel name; `*` matches any run of characters.
    pub kernel: String,
    /// Fixed part, in ns.
    #[serde(default)]
    pub ns: u64,
    /// Part per thread block, in ns.
    #[serde(default)]
    pub ns_per_block: u64,
}

impl Default for Model {
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
    /// Reads a specification. `soft:paced` without a file takes the model from `model_file` if there is one
    /// (`WEFT_MODEL`), else the default model.
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
                Ok(Self { model: Some(model) })
            }
            Some(_) | None => Err(unknown()),
        }
    }
}

fn read_model(path: &Path) -> Result<Model, SpecError> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| SpecError::Read { path: path.to_owned(), source })?;
    let wrong = |message: String| SpecError::Model { path: path.to_owned(), message };
    let model: Model = toml::from_str(&text).map_err(|error| wrong(error.to_string()))?;
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
        assert_eq!(paced.model, Some(Model::default()));
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
