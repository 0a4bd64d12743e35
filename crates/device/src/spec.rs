//! Which device a user names: `WEFT_DEVICE`, `weft node --device`, the key `device` of a setting.

use std::path::Path;

use crate::soft::{ModelError, PacedModel};

/// What may be written.
pub const SPELLINGS: &str = "soft, soft:real, soft:paced, soft:paced:MODEL.toml, cuda or cuda:N";

/// A device as its user wrote it down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeviceSpec {
    /// The software GPU.
    Soft {
        /// Its clock, if one was named.
        clock: Option<SoftClock>,
        /// The model file's content, if one was named.
        model: Option<PacedModel>,
    },
    /// A genuine GPU.
    Cuda {
        /// Its place among those that the driver lists, if it was named.
        ordinal: Option<u32>,
    },
}

/// A clock of the software GPU, by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SoftClock {
    /// As fast as the CPU allows.
    Real,
    /// By a model.
    Paced,
}

/// Why a device's name is not understood. The text is for the user.
#[derive(Debug, thiserror::Error)]
pub enum SpecError {
    /// No such device.
    #[error("device `{0}` is not understood: expected {SPELLINGS}")]
    Unknown(String),
    /// The model.
    #[error(transparent)]
    Model(#[from] ModelError),
}

impl DeviceSpec {
    /// Reads a device's name; the empty one is `soft`.
    ///
    /// # Errors
    /// [`SpecError`].
    pub fn parse(text: &str) -> Result<Self, SpecError> {
        let unknown = || SpecError::Unknown(text.to_owned());
        let mut parts = text.splitn(3, ':');
        match (parts.next().unwrap_or(""), parts.next(), parts.next()) {
            ("" | "soft", None, None) => Ok(Self::Soft { clock: None, model: None }),
            ("soft", Some("real"), None) => {
                Ok(Self::Soft { clock: Some(SoftClock::Real), model: None })
            }
            ("soft", Some("paced"), file) => {
                let model = file.map(|file| PacedModel::read(Path::new(file))).transpose()?;
                Ok(Self::Soft { clock: Some(SoftClock::Paced), model })
            }
            ("cuda", None, None) => Ok(Self::Cuda { ordinal: None }),
            ("cuda", Some(ordinal), None) => {
                let ordinal = ordinal.parse().ok().filter(|ordinal| *ordinal < 64);
                Ok(Self::Cuda { ordinal: Some(ordinal.ok_or_else(unknown)?) })
            }
            _ => Err(unknown()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_known_spellings_are_understood() {
        let soft = |clock| DeviceSpec::Soft { clock, model: None };
        assert_eq!(DeviceSpec::parse("").unwrap(), soft(None));
        assert_eq!(DeviceSpec::parse("soft").unwrap(), soft(None));
        assert_eq!(DeviceSpec::parse("soft:real").unwrap(), soft(Some(SoftClock::Real)));
        assert_eq!(DeviceSpec::parse("soft:paced").unwrap(), soft(Some(SoftClock::Paced)));
        assert_eq!(DeviceSpec::parse("cuda").unwrap(), DeviceSpec::Cuda { ordinal: None });
        assert_eq!(DeviceSpec::parse("cuda:1").unwrap(), DeviceSpec::Cuda { ordinal: Some(1) });
    }

    #[test]
    fn everything_else_is_refused_by_name() {
        for text in
            ["quick", "soft:fast", "soft:real:file", "soft::", "cuda:", "cuda:x", "cuda:0:1"]
        {
            let error = DeviceSpec::parse(text).unwrap_err().to_string();
            assert!(error.contains(text) && error.contains("soft:paced"), "{error}");
        }
        let error = DeviceSpec::parse("soft:paced:/does/not/exist").unwrap_err();
        assert!(matches!(error, SpecError::Model(ModelError::Read { .. })), "{error}");
    }

    #[test]
    fn a_model_file_is_read_and_its_mistakes_are_named() {
        let file = std::env::temp_dir().join(format!("weft-model-{}.toml", std::process::id()));
        let text = format!("soft:paced:{}", file.display());
        let read = |content: &str| {
            std::fs::write(&file, content).unwrap();
            DeviceSpec::parse(&text)
        };
        let spec = read("base_ns = 7\n[[kernels]]\nkernel = \"mm*\"\nns = 21000\n").unwrap();
        let DeviceSpec::Soft { model: Some(model), .. } = spec else { panic!("{spec:?}") };
        assert_eq!((model.base_ns, model.kernels[0].ns), (7, 21_000));
        for (content, word) in [("bass_ns = 7", "bass_ns"), ("copy_bytes_per_us = 0", "at least 1")]
        {
            let error = read(content).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
        std::fs::remove_file(&file).unwrap();
    }
}
