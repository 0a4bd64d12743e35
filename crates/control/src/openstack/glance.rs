//! Images.

use serde::Deserialize;

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
}

impl Image {
    /// Whether a project may use it as anybody may, or because it is its own. That others shared
    /// theirs with it is not asked.
    #[must_use]
    pub fn is_for(&self, project: &str) -> bool {
        ["public", "community"].contains(&self.visibility.as_str())
            || self.owner.as_deref() == Some(project)
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
