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
