//! Servers.

use serde::Deserialize;
use serde_json::{Value, json};

use super::http::ApiError;
use super::keystone::Scope;
use super::{Call, Cloud, PAGE, PageLink, Service, has_next, plain};

/// Lines of a console that are asked for.
const CONSOLE_LINES: u32 = 2_000;

/// Nova's version for a server on a host of one's choice (`host`), for whoever may.
const WITH_HOST: &str = "compute 2.74";

/// A server.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Server {
    /// Its id.
    pub id: String,
    /// Its project's id.
    pub tenant_id: String,
    /// `BUILD`, `ACTIVE`, `ERROR`, …
    pub status: String,
    /// When it was asked for.
    #[serde(default)]
    pub created: String,
    /// What was said of it when it was made.
    #[serde(default)]
    pub metadata: std::collections::BTreeMap<String, String>,
    /// What Nova is doing to it.
    #[serde(default, rename = "OS-EXT-STS:task_state")]
    pub task: Option<String>,
    /// Why it is in error; lists do not say it, [`Cloud::fault`] does.
    #[serde(default)]
    fault: Option<Fault>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
struct Fault {
    #[serde(default)]
    message: String,
}

/// A server to make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewServer<'a> {
    /// What people call it.
    pub name: &'a str,
    /// The image's id.
    pub image: &'a str,
    /// The flavor's id.
    pub flavor: &'a str,
    /// The network's id.
    pub network: &'a str,
    /// The compute host that it must be on.
    pub host: Option<&'a str>,
    /// Tags, by which it is found.
    pub tags: &'a [String],
    /// What is said of it.
    pub metadata: Vec<(&'static str, String)>,
    /// What runs in it, base64.
    pub user_data: String,
}

#[derive(Debug, Deserialize)]
struct Listed {
    servers: Vec<Server>,
    #[serde(default)]
    servers_links: Vec<PageLink>,
}

#[derive(Debug, Deserialize)]
struct Flavors {
    flavors: Vec<Flavor>,
}

/// What a server may be like.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Flavor {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Whether it is for everybody.
    #[serde(default, rename = "os-flavor-access:is_public")]
    pub is_public: bool,
}

impl Cloud {
    /// The servers of all projects with one of some tags.
    ///
    /// # Errors
    /// Nova's.
    pub fn servers(&self, tags: &[String]) -> Result<Vec<Server>, ApiError> {
        let tags: Vec<&str> = tags.iter().map(|tag| plain(tag)).collect::<Result<_, _>>()?;
        let tags = tags.join(",");
        let mut found: Vec<Server> = Vec::new();
        loop {
            let after = found.last().map(|last| format!("&marker={}", last.id)).unwrap_or_default();
            let path = format!("/servers/detail?all_tenants=1&tags-any={tags}&limit={PAGE}{after}");
            let Listed { mut servers, servers_links } = self.get(Service::Compute, &path)?;
            // Nova may have pages that are shorter than was asked for (`max_limit`).
            let is_last = servers.is_empty() || !has_next(&servers_links);
            found.append(&mut servers);
            if is_last {
                return Ok(found);
            }
        }
    }

    /// Why a server is in error, if Nova says it.
    ///
    /// # Errors
    /// Nova's.
    pub fn fault(&self, id: &str) -> Result<Option<String>, ApiError> {
        #[derive(Deserialize)]
        struct Shown {
            server: Server,
        }
        let path = format!("/servers/{}", plain(id)?);
        let Shown { server } = self.get(Service::Compute, &path)?;
        Ok(server.fault.map(|fault| fault.message))
    }

    /// Asks for a server. It may be made even if this fails.
    ///
    /// # Errors
    /// Nova's.
    pub fn create_server(&self, project: &str, server: &NewServer<'_>) -> Result<(), ApiError> {
        let metadata: serde_json::Map<String, Value> =
            server.metadata.iter().map(|(k, v)| ((*k).to_owned(), json!(v))).collect();
        let mut asked = json!({
            "name": server.name,
            "imageRef": server.image,
            "flavorRef": server.flavor,
            "networks": [{"uuid": server.network}],
            "config_drive": true,
            "tags": server.tags,
            "metadata": metadata,
            "user_data": server.user_data,
        });
        if let Some(host) = server.host {
            asked["host"] = json!(host);
        }
        let call = Call { method: "POST", service: Service::Compute, path: "/servers" };
        let scope = Scope::Project(project.to_owned());
        let version = server.host.map(|_| WITH_HOST);
        self.call_at(&scope, call, Some(&json!({"server": asked})), version).map(drop)
    }

    /// Asks for a server's end. It is none if it is not there.
    ///
    /// # Errors
    /// Nova's.
    pub fn delete_server(&self, id: &str) -> Result<(), ApiError> {
        let path = format!("/servers/{}", plain(id)?);
        let call = Call { method: "DELETE", service: Service::Compute, path: &path };
        match self.call(&Scope::Own, call, None) {
            Err(error) if !error.is_missing() => Err(error),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// What a server printed last; nothing before it has a console.
    ///
    /// # Errors
    /// Nova's.
    pub fn console(&self, id: &str) -> Result<String, ApiError> {
        #[derive(Deserialize)]
        struct Output {
            output: String,
        }
        let path = format!("/servers/{}/action", plain(id)?);
        let call = Call { method: "POST", service: Service::Compute, path: &path };
        let body = json!({"os-getConsoleOutput": {"length": CONSOLE_LINES}});
        match self.call(&Scope::Own, call, Some(&body)) {
            Ok(said) => Ok(said.json::<Output>()?.output),
            Err(error) if error.is_missing() || error.is_conflict() => Ok(String::new()),
            Err(error) => Err(error),
        }
    }

    /// Flavors, also those that are not for everybody.
    ///
    /// # Errors
    /// Nova's.
    pub fn flavors(&self) -> Result<Vec<Flavor>, ApiError> {
        let Flavors { flavors } = self.get(Service::Compute, "/flavors/detail?is_public=None")?;
        Ok(flavors)
    }
}
