//! Nodes with several paced devices of one model.

use std::path::PathBuf;

use anyhow::Result;
use tempfile::TempDir;

/// A model on disk, for as long as a node uses it.
#[derive(Debug)]
pub(crate) struct Model {
    directory: TempDir,
}

impl Model {
    /// Keeps a model (TOML).
    pub(crate) fn new(text: &str) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("weft-bench-").tempdir()?;
        let model = Self { directory };
        std::fs::write(model.path(), text)?;
        Ok(model)
    }

    /// A folder that is there for as long.
    pub(crate) fn folder(&self) -> PathBuf {
        self.directory.path().to_owned()
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("model.toml")
    }

    /// Settings of a node of so many paced devices with it, in a pool or not.
    pub(crate) fn settings(&self, devices: u32, pool: Option<&str>) -> Vec<(String, String)> {
        let device = format!("soft:paced:{}", self.path().display());
        let all = vec![device; devices as usize].join(",");
        let pools = pool.into_iter().flat_map(|pool| {
            // One device is set without a number.
            let key = |device| match devices {
                1 => "device.pool".to_owned(),
                _ => format!("device.{device}.pool"),
            };
            (0..devices).map(move |device| (key(device), pool.to_owned()))
        });
        std::iter::once(("device".to_owned(), all)).chain(pools).collect()
    }
}

/// Settings as nodes are started with.
pub(crate) fn borrowed(settings: &[(String, String)]) -> Vec<(&str, &str)> {
    settings.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect()
}
