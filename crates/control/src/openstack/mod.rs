//! OpenStack: the calls of Keystone, Nova, Neutron, Glance and Placement that are needed.
//!
//! [`http`] sends requests, [`keystone`] has the tokens for them. Nothing here decides anything:
//! [`crate::provision::openstack`] does.

pub mod glance;
pub mod http;
pub mod keystone;
pub mod neutron;
pub mod nova;
pub mod placement;
pub mod settings;
mod time;

use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde_json::Value;

pub use self::http::ApiError;
use self::http::{Asked, Http, Said};
use self::keystone::{Keystone, Scope};
pub use self::settings::{Credentials, Settings};

/// A cloud, as a service user sees it.
#[derive(Debug, Clone)]
pub struct Cloud {
    http: Arc<Http>,
    keystone: Arc<Keystone>,
}

/// A call of a service: what [`Cloud::call`] needs to know of it.
#[derive(Debug, Clone, Copy)]
struct Call<'a> {
    method: &'static str,
    service: Service,
    /// Behind the service's address, with its query.
    path: &'a str,
}

/// The services, by their types in Keystone's catalogue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Service {
    Compute,
    Image,
    Network,
    Placement,
}

impl Service {
    fn catalogue_type(self) -> &'static str {
        match self {
            Self::Compute => "compute",
            Self::Image => "image",
            Self::Network => "network",
            Self::Placement => "placement",
        }
    }

    /// The version in the path; Nova's stands in the catalogue, Placement has none.
    fn version_path(self) -> &'static str {
        match self {
            Self::Compute | Self::Placement => "",
            Self::Image => "/v2",
            Self::Network => "/v2.0",
        }
    }

    /// The microversion whose answers are understood here.
    fn microversion(self) -> Option<&'static str> {
        match self {
            Self::Compute => Some("compute 2.52"),
            Self::Placement => Some("placement 1.28"),
            Self::Image | Self::Network => None,
        }
    }
}

impl Cloud {
    /// A cloud with these settings. Nobody is asked for anything yet.
    ///
    /// # Errors
    /// If the file with certificates cannot be read.
    pub fn new(settings: Settings) -> Result<Self, ApiError> {
        let http = Arc::new(Http::new(&settings)?);
        let keystone = Arc::new(Keystone::new(Arc::clone(&http), settings));
        Ok(Self { http, keystone })
    }

    /// Who people are.
    #[must_use]
    pub fn keystone(&self) -> &Arc<Keystone> {
        &self.keystone
    }

    /// The id of the project that the service user's own token is of.
    ///
    /// # Errors
    /// Keystone's.
    pub fn own_project(&self) -> Result<String, ApiError> {
        Ok(self.keystone.authorization(&Scope::Own)?.project.clone())
    }

    /// Whether the control plane's user is an administrator in a project.
    ///
    /// # Errors
    /// Keystone's, also if it has no role there.
    pub fn administrates(&self, project: &str) -> Result<bool, ApiError> {
        Ok(self.keystone.authorization(&Scope::Project(project.to_owned()))?.administrates)
    }

    fn get<T: DeserializeOwned>(&self, service: Service, path: &str) -> Result<T, ApiError> {
        self.call(&Scope::Own, Call { method: "GET", service, path }, None)?.json()
    }

    fn call(&self, scope: &Scope, call: Call<'_>, body: Option<&Value>) -> Result<Said, ApiError> {
        self.call_at(scope, call, body, None)
    }

    /// A call with a token of that scope.
    fn call_at(
        &self,
        scope: &Scope,
        call: Call<'_>,
        body: Option<&Value>,
        microversion: Option<&'static str>,
    ) -> Result<Said, ApiError> {
        self.keystone.with_authorization(scope, |authorization| {
            let base = authorization.endpoint(call.service.catalogue_type())?;
            let version = call.service.version_path();
            let version = if base.ends_with(version) { "" } else { version };
            self.http.send(&Asked {
                method: call.method,
                url: format!("{base}{version}{}", call.path),
                token: Some(&authorization.token),
                subject: None,
                microversion: microversion.or_else(|| call.service.microversion()),
                body,
            })
        })
    }
}

/// What is asked for of one page of a list.
const PAGE: usize = 500;

/// Where a list goes on, or what was before.
#[derive(Debug, serde::Deserialize)]
struct PageLink {
    rel: String,
}

fn has_next(links: &[PageLink]) -> bool {
    links.iter().any(|link| link.rel == "next")
}

/// What may stand in a path or a query as it is: ids, names and tags that are made here or were
/// checked.
fn plain(text: &str) -> Result<&str, ApiError> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) && !text.starts_with('.') {
        return Ok(text);
    }
    Err(ApiError::Strange(format!("`{text}` is no id")))
}
