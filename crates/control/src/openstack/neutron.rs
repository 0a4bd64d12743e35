//! Ports and networks.

use serde::Deserialize;

use super::http::ApiError;
use super::keystone::Scope;
use super::{Call, Cloud, PAGE, PageLink, Service, has_next, plain};

/// A server's port.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct NetworkPort {
    /// Its id.
    pub id: String,
    /// Its network's id.
    pub network_id: String,
    /// The server that it is of, as its owner may say of another one, too.
    #[serde(default)]
    pub device_id: String,
    /// Its project's id.
    #[serde(default)]
    pub tenant_id: String,
    /// `ACTIVE` when its host has it.
    pub status: String,
    /// The hardware address.
    pub mac_address: String,
    /// The addresses that Neutron gave it.
    #[serde(default)]
    pub fixed_ips: Vec<FixedIp>,
    /// The compute host.
    #[serde(default, rename = "binding:host_id")]
    pub host: String,
}

/// An address of a port.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct FixedIp {
    /// The address.
    pub ip_address: String,
}

#[derive(Debug, Deserialize)]
struct Ports {
    ports: Vec<NetworkPort>,
    #[serde(default)]
    ports_links: Vec<PageLink>,
}

#[derive(Debug, Deserialize)]
struct Networks {
    networks: Vec<Network>,
}

#[derive(Debug, Deserialize)]
struct Network {
    id: String,
    #[serde(default)]
    tenant_id: String,
    /// With whoever asks.
    #[serde(default)]
    shared: bool,
}

impl Cloud {
    /// The ports of servers.
    ///
    /// # Errors
    /// Neutron's.
    pub fn ports(&self, servers: &[String]) -> Result<Vec<NetworkPort>, ApiError> {
        let of = |server: &String| Ok(format!("device_id={}", plain(server)?));
        let of: Vec<String> = servers.iter().map(of).collect::<Result<_, ApiError>>()?;
        let of = of.join("&");
        let mut found: Vec<NetworkPort> = Vec::new();
        loop {
            let after = found.last().map(|last| format!("&marker={}", last.id)).unwrap_or_default();
            let path = format!("/ports?{of}&limit={PAGE}{after}");
            let Ports { mut ports, ports_links } = self.get(Service::Network, &path)?;
            let is_last = ports.is_empty() || !has_next(&ports_links);
            found.append(&mut ports);
            if is_last {
                return Ok(found);
            }
        }
    }

    /// Whether there is a network with this id.
    ///
    /// # Errors
    /// Neutron's.
    pub fn has_network(&self, id: &str) -> Result<bool, ApiError> {
        Ok(self.network(id, &Scope::Own)?.is_some())
    }

    /// Whether there is a network with this id that a project may use: its own, or one that is
    /// shared with it, which is why it is asked for in the project's name. Whoever administrates
    /// sees all of them there, too.
    ///
    /// # Errors
    /// Neutron's, and Keystone's if the control plane has no role in the project.
    pub fn lends_network(&self, id: &str, project: &str) -> Result<bool, ApiError> {
        let found = self.network(id, &Scope::Project(project.to_owned()))?;
        Ok(found.is_some_and(|network| network.shared || network.tenant_id == project))
    }

    /// The network with this id, as it is shown in that scope.
    fn network(&self, id: &str, scope: &Scope) -> Result<Option<Network>, ApiError> {
        let path = format!("/networks?id={}", plain(id)?);
        let call = Call { method: "GET", service: Service::Network, path: &path };
        let Networks { networks } = self.call(scope, call, None)?.json()?;
        Ok(networks.into_iter().find(|network| network.id == id))
    }
}
