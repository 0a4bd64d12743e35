//! How long things take on a paced device.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The modelled time of kernels whose name matches: `ns`, or `ns_per_block`, or the sum.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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

/// The times of a paced device. In TOML (a model file, or `device.model` of a node's
/// configuration) every key may be left out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PacedModel {
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

impl Default for PacedModel {
    /// A device that starts a kernel in 5 µs and copies 10 GB/s.
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

/// Why a file is no model.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// It cannot be read.
    #[error("the device model {path} cannot be read: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: std::io::Error,
    },
    /// It is not understood.
    #[error("the device model {path} is not understood: {message}")]
    Text {
        /// The file.
        path: PathBuf,
        /// Line, key and what was expected.
        message: String,
    },
}

impl PacedModel {
    /// Reads a model file (TOML).
    ///
    /// # Errors
    /// [`ModelError`] names the file, and the line or key.
    pub fn read(path: &Path) -> Result<Self, ModelError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ModelError::Read { path: path.to_owned(), source })?;
        let wrong = |message: String| ModelError::Text { path: path.to_owned(), message };
        let model: Self = toml::from_str(&text).map_err(|error| wrong(error.to_string()))?;
        model.check().map_err(wrong)?;
        Ok(model)
    }

    /// Checks what the types leave open.
    ///
    /// # Errors
    /// A text that names the key and the values it may have.
    pub fn check(&self) -> Result<(), String> {
        if self.copy_bytes_per_us == 0 {
            return Err("copy_bytes_per_us: 0 is out of range; at least 1".to_owned());
        }
        Ok(())
    }

    fn rule(&self, name: &str) -> (u64, u64) {
        self.kernels
            .iter()
            .find(|k| matches(&k.kernel, name))
            .map_or((self.base_ns, self.ns_per_block), |k| (k.ns, k.ns_per_block))
    }

    /// Time of blocks `first..first + blocks` of a launch of `total` blocks.
    ///
    /// The time of a whole launch is shared out over its blocks without rounding loss: the pieces
    /// of any division add up to it.
    #[must_use]
    pub fn blocks_ns(&self, name: &str, first: u64, blocks: u64, total: u64) -> u64 {
        let whole = self.kernel_ns(name, total);
        let until = |block: u64| {
            let part = u128::from(whole) * u128::from(block.min(total)) / u128::from(total.max(1));
            u64::try_from(part).unwrap_or(u64::MAX)
        };
        until(first.saturating_add(blocks)) - until(first)
    }

    /// Time of a launch of `total` blocks.
    #[must_use]
    pub fn kernel_ns(&self, name: &str, total: u64) -> u64 {
        let (fixed, per_block) = self.rule(name);
        fixed.saturating_add(per_block.saturating_mul(total)).max(1)
    }

    /// How many blocks from `first` on fit `max_ns`; at least one.
    #[must_use]
    pub fn blocks_within(&self, name: &str, first: u64, total: u64, max_ns: u64) -> u64 {
        let whole = u128::from(self.kernel_ns(name, total));
        let fit = u128::from(max_ns) * u128::from(total) / whole.max(1);
        u64::try_from(fit).unwrap_or(u64::MAX).clamp(1, (total - first).max(1))
    }

    /// Time of a copy or fill.
    #[must_use]
    pub fn copy_ns(&self, bytes: u64) -> u64 {
        let moving = u128::from(bytes) * 1000 / u128::from(self.copy_bytes_per_us.max(1));
        self.copy_base_ns.saturating_add(u64::try_from(moving).unwrap_or(u64::MAX)).max(1)
    }
}

/// Whether a name matches a pattern in which `*` stands for any run of characters.
fn matches(pattern: &str, name: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(mut name) = name.strip_prefix(head) else { return false };
    if rest.is_empty() {
        return true;
    }
    loop {
        if matches(rest, name) {
            return true;
        }
        let mut chars = name.chars();
        if chars.next().is_none() {
            return false;
        }
        name = chars.as_str();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        assert!(matches("gemm", "gemm"));
        assert!(!matches("gemm", "gemm_nt"));
        assert!(matches("*", ""));
        assert!(matches("g*m", "gemm"));
        assert!(matches("*emm*", "gemm_nt"));
        assert!(!matches("*x", "gemm"));
    }

    #[test]
    fn pieces_add_up_to_the_launch() {
        let model = PacedModel { base_ns: 21_003, ns_per_block: 7, ..PacedModel::default() };
        let whole = model.kernel_ns("k", 100);
        let mut sum = 0;
        let mut first = 0;
        for blocks in [1, 13, 50, 36] {
            sum += model.blocks_ns("k", first, blocks, 100);
            first += blocks;
        }
        assert_eq!(sum, whole);
    }

    #[test]
    fn a_piece_fits_its_limit_or_is_one_block() {
        let model = PacedModel {
            kernels: vec![KernelModel { kernel: "k".into(), ns: 1000, ns_per_block: 0 }],
            ..PacedModel::default()
        };
        assert_eq!(model.blocks_within("k", 0, 100, 255), 25);
        assert_eq!(model.blocks_within("k", 90, 100, 255), 10);
        assert_eq!(model.blocks_within("k", 0, 100, 1), 1);
    }
}
