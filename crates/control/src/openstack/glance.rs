//! Images.

use serde::Deserialize;
use serde_json::Value;

use super::http::ApiError;
use super::{Cloud, Service, plain};

/// An image.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Image {
    /// Its id.
    pub id: String,
    /// `active` when it can be used.
    pub status: String,
    /// `public`, `community`, `shared` or `private`.
    #[serde(default)]
    visibility: String,
    /// Whose it is.
    #[serde(default)]
    owner: Option<String>,
    /// The image that its kernel is in, and that of its first file system.
    #[serde(default)]
    kernel_id: Option<String>,
    #[serde(default)]
    ramdisk_id: Option<String>,
    /// Volumes and snapshots that it is booted with, as anybody may write into an image of theirs.
    #[serde(default)]
    block_device_mapping: Option<Value>,
    #[serde(default)]
    mappings: Option<Value>,
}

impl Image {
    /// Whether a project may use it as anybody may, or because it is its own. That others shared
    /// theirs with it is not asked.
    #[must_use]
    pub fn is_for(&self, project: &str) -> bool {
        ["public", "community"].contains(&self.visibility.as_str())
            || self.owner.as_deref() == Some(project)
    }

    /// The other images that it is booted with.
    pub fn parts(&self) -> impl Iterator<Item = &str> {
        [&self.kernel_id, &self.ramdisk_id].into_iter().flatten().map(String::as_str)
    }

    /// Whether it names volumes or snapshots, which may be anybody's.
    #[must_use]
    pub fn has_volumes(&self) -> bool {
        [&self.block_device_mapping, &self.mappings].into_iter().any(Option::is_some)
    }
}

impl Cloud {
    /// The image with this id.
    ///
    /// # Errors
    /// Glance's.
    pub fn image(&self, id: &str) -> Result<Option<Image>, ApiError> {
        match self.get(Service::Image, &format!("/images/{}", plain(id)?)) {
            Ok(image) => Ok(Some(image)),
            Err(error) if error.is_missing() => Ok(None),
            Err(error) => Err(error),
        }
    }
}
