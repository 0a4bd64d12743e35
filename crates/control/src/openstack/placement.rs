//! What Placement knows of cGPUs, so that Nova puts a VM with local ones where they are.
//!
//! Each compute host with GPUs has a resource provider of its own below the host's, with a number
//! of [`RESOURCE_CLASS`]; flavors ask for some (`resources:CUSTOM_WEFT_CGPU=2`). Nova takes and
//! frees them with the server.

use serde::Deserialize;
use serde_json::json;

use super::http::ApiError;
use super::keystone::Scope;
use super::{Call, Cloud, Service, plain};

/// cGPUs, as a resource class.
pub const RESOURCE_CLASS: &str = "CUSTOM_WEFT_CGPU";

/// Another one changed a provider at the same time so often.
const ATTEMPTS_MAX: u32 = 5;

#[derive(Debug, Deserialize)]
struct Providers {
    resource_providers: Vec<Provider>,
}

#[derive(Debug, Deserialize)]
struct Provider {
    uuid: String,
}

#[derive(Debug, Deserialize)]
struct Inventories {
    resource_provider_generation: u64,
    inventories: std::collections::BTreeMap<String, Inventory>,
}

#[derive(Debug, Deserialize)]
struct Inventory {
    total: u32,
}

impl Cloud {
    /// A compute host has so many cGPUs to give. Repeated, it does nothing; nor for a host that is
    /// none of Nova's, on which there are no VMs.
    ///
    /// # Errors
    /// Placement's.
    pub fn publish(&self, host: &str, cgpus: u32) -> Result<(), ApiError> {
        let Some(parent) = self.provider(plain(host)?)? else { return Ok(()) };
        self.put(&format!("/resource_classes/{RESOURCE_CLASS}"), None)?;
        let name = format!("{host}_weft");
        let provider = match self.provider(&name)? {
            Some(known) => known,
            None => self.add_provider(&parent, &name)?,
        };
        let path = format!("/resource_providers/{provider}/inventories");
        for _ in 0..ATTEMPTS_MAX {
            let now: Inventories = self.get(Service::Placement, &path)?;
            if now.inventories.get(RESOURCE_CLASS).is_some_and(|known| known.total == cgpus) {
                return Ok(());
            }
            let wanted = json!({
                "resource_provider_generation": now.resource_provider_generation,
                "inventories": {RESOURCE_CLASS: {"total": cgpus, "max_unit": cgpus}},
            });
            match self.put(&path, Some(&wanted)) {
                Err(error) if error.is_conflict() => {}
                done => return done,
            }
        }
        Err(ApiError::Strange(format!("others change the resources of {host} all the time")))
    }

    fn provider(&self, name: &str) -> Result<Option<String>, ApiError> {
        let path = format!("/resource_providers?name={name}");
        let Providers { resource_providers } = self.get(Service::Placement, &path)?;
        Ok(resource_providers.into_iter().next().map(|provider| provider.uuid))
    }

    fn add_provider(&self, parent: &str, name: &str) -> Result<String, ApiError> {
        let body = json!({"name": name, "parent_provider_uuid": parent});
        let call =
            Call { method: "POST", service: Service::Placement, path: "/resource_providers" };
        match self.call(&Scope::Own, call, Some(&body)) {
            // Another one was quicker.
            Err(error) if !error.is_conflict() => return Err(error),
            Ok(_) | Err(_) => {}
        }
        let gone = || ApiError::Strange(format!("{name} was removed at once"));
        self.provider(name)?.ok_or_else(gone)
    }

    fn put(&self, path: &str, body: Option<&serde_json::Value>) -> Result<(), ApiError> {
        let call = Call { method: "PUT", service: Service::Placement, path };
        self.call(&Scope::Own, call, body).map(drop)
    }
}
