//! Attach tokens, of which only digests are kept, and what grants are signed with.

use sha2::{Digest as _, Sha256};

use super::{Registry, RegistryError};

/// SHA-256 of a text.
pub(super) fn digest(text: &str) -> [u8; 32] {
    Sha256::digest(text.as_bytes()).into()
}

/// What is kept of a token; nothing of an empty one, which is none.
pub(crate) fn kept(token: &str) -> Option<[u8; 32]> {
    (!token.is_empty()).then(|| digest(token))
}

/// Whether who shows a token may enter where that is kept. Takes as long for every wrong one.
pub(crate) fn opens(kept: Option<&[u8; 32]>, shown: &str) -> bool {
    let Some(kept) = kept else { return true };
    let digest = digest(shown);
    kept.iter().zip(&digest).fold(0, |differs, (left, right)| differs | (left ^ right)) == 0
}

impl Registry {
    /// What grants of a vGPU are signed with: the present one, or `fresh` if there is none yet. It
    /// goes with the vGPU, so that grants of a removed one are worth nothing when another one has
    /// its name.
    ///
    /// # Errors
    /// When there is no such vGPU.
    pub(crate) fn seal(&mut self, name: &str, fresh: [u8; 16]) -> Result<[u8; 16], RegistryError> {
        let unknown = || RegistryError::Unknown(name.to_owned());
        let vgpu = self.by_name.get_mut(name).ok_or_else(unknown)?;
        if vgpu.seal.is_none() {
            self.changed.vgpus.insert(name.to_owned());
        }
        Ok(*vgpu.seal.get_or_insert(fresh))
    }
}
