//! The blocking client.

use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use ureq::Agent;
use ureq::http::{Request, Uri};

use super::problem::Problem;
use super::resources::{
    Attachment, AuditEntry, Cgpu, CreatedToken, Gpu, GpuChange, Instance, NewInstance, NewNode,
    NewToken, Node, Operation, Page, Project, ProjectChange, Token, UsageRecord,
};
use super::{IDEMPOTENCY_HEADER, VERSION, VERSION_HEADER};

/// The control plane answers within this time or the call failed.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// The longest answer.
const ANSWER_BYTES_MAX: u64 = 64 << 20;

/// A connection to a control plane, kept between calls.
#[derive(Debug, Clone)]
pub struct Client {
    agent: Agent,
    base: String,
    token: String,
}

/// Why a call has no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The address cannot be one.
    #[error("`{0}` is no address of a control plane: write http://HOST:PORT")]
    Address(String),
    /// It says `https`.
    #[error("{0}: TLS is not spoken here; use http, over a tunnel where others could listen")]
    Tls(String),
    /// Nobody answers.
    #[error("no control plane answers at {base}: {why}")]
    Unreachable {
        /// Where.
        base: String,
        /// The system's words.
        why: String,
    },
    /// It answered, and did not do it.
    #[error("{0}")]
    Refused(Problem),
    /// The answer is not understood.
    #[error("{base} is no control plane of this version: {why}")]
    Strange {
        /// Where.
        base: String,
        /// What was not understood.
        why: String,
    },
}

impl Client {
    /// A client of the control plane at `http://HOST:PORT`, which shows a token.
    ///
    /// # Errors
    /// [`ClientError::Address`], [`ClientError::Tls`].
    pub fn new(address: &str, token: &str) -> Result<Self, ClientError> {
        let base = if address.contains("://") {
            address.trim_end_matches('/').to_owned()
        } else {
            format!("http://{address}")
        };
        let uri: Uri = base.parse().map_err(|_| ClientError::Address(address.to_owned()))?;
        if uri.scheme_str() == Some("https") {
            return Err(ClientError::Tls(base));
        }
        let is_plain = uri.scheme_str() == Some("http") && uri.path() == "/";
        if !is_plain || uri.host().is_none_or(str::is_empty) {
            return Err(ClientError::Address(address.to_owned()));
        }
        let config = Agent::config_builder()
            .timeout_global(Some(ANSWER_TIMEOUT))
            .http_status_as_error(false)
            .proxy(None)
            .max_idle_connections_per_host(64);
        Ok(Self { agent: config.build().new_agent(), base, token: token.to_owned() })
    }

    fn send(
        &self,
        method: &str,
        path: &str,
        key: Option<&str>,
        body: Option<Vec<u8>>,
    ) -> Result<Vec<u8>, ClientError> {
        let (major, minor) = VERSION;
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.base))
            .header(VERSION_HEADER, format!("{major}.{minor}"));
        if !self.token.is_empty() {
            request = request.header("authorization", format!("Bearer {}", self.token));
        }
        if let Some(key) = key {
            request = request.header(IDEMPOTENCY_HEADER, key);
        }
        let bad = |_| ClientError::Address(format!("{}{path}", self.base));
        let response = if let Some(body) = body {
            let request = request.header("content-type", "application/json").body(body);
            self.agent.run(request.map_err(bad)?)
        } else {
            self.agent.run(request.body(()).map_err(bad)?)
        };
        let unreachable = |error: ureq::Error| ClientError::Unreachable {
            base: self.base.clone(),
            why: error.to_string(),
        };
        let mut response = response.map_err(unreachable)?;
        let status = response.status();
        let body = response.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_vec();
        let body = body.map_err(unreachable)?;
        if status.is_success() {
            return Ok(body);
        }
        Err(match serde_json::from_slice(&body) {
            Ok(problem) => ClientError::Refused(problem),
            Err(_) => self.strange(format!("it answers {status} without a problem")),
        })
    }

    fn strange(&self, why: String) -> ClientError {
        ClientError::Strange { base: self.base.clone(), why }
    }

    fn read<T: DeserializeOwned>(&self, bytes: &[u8]) -> Result<T, ClientError> {
        serde_json::from_slice(bytes).map_err(|error| self.strange(error.to_string()))
    }

    fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.read(&self.send("GET", path, None, None)?)
    }

    fn put<T: DeserializeOwned>(
        &self,
        method: &str,
        path: &str,
        key: Option<&str>,
        body: &impl Serialize,
    ) -> Result<T, ClientError> {
        let body = serde_json::to_vec(body).map_err(|error| self.strange(error.to_string()))?;
        self.read(&self.send(method, path, key, Some(body))?)
    }

    /// All items of a list, page by page.
    fn all<T: DeserializeOwned>(&self, path: &str) -> Result<Vec<T>, ClientError> {
        let mut items = Vec::new();
        let (mut after, joint) = (String::new(), if path.contains('?') { '&' } else { '?' });
        loop {
            let mut page: Page<T> = self.get(&format!("{path}{joint}limit=1000{after}"))?;
            items.append(&mut page.items);
            let Some(next) = page.next else { return Ok(items) };
            after = format!("&after={next}");
        }
    }
}

/// The calls. Each fails as [`ClientError`] says.
#[expect(clippy::missing_errors_doc, reason = "said above, once for all")]
impl Client {
    /// Whether it is ready.
    pub fn ready(&self) -> Result<(), ClientError> {
        self.send("GET", "/ready", None, None).map(|_| ())
    }

    /// Prometheus text.
    pub fn metrics(&self) -> Result<String, ClientError> {
        Ok(String::from_utf8_lossy(&self.send("GET", "/metrics", None, None)?).into_owned())
    }

    /// GPU nodes.
    pub fn nodes(&self) -> Result<Vec<Node>, ClientError> {
        self.all("/v1/nodes")
    }

    /// Uses a GPU node, or looks at its GPUs again.
    pub fn put_node(&self, name: &str, node: &NewNode) -> Result<Node, ClientError> {
        self.put("PUT", &format!("/v1/nodes/{name}"), None, node)
    }

    /// Forgets a GPU node on which nobody has a cGPU.
    pub fn delete_node(&self, name: &str) -> Result<(), ClientError> {
        self.send("DELETE", &format!("/v1/nodes/{name}"), None, None).map(|_| ())
    }

    /// GPUs.
    pub fn gpus(&self) -> Result<Vec<Gpu>, ClientError> {
        self.all("/v1/gpus")
    }

    /// A GPU.
    pub fn gpu(&self, id: u32) -> Result<Gpu, ClientError> {
        self.get(&format!("/v1/gpus/{id}"))
    }

    /// Drains a GPU, or puts it back into service.
    pub fn set_gpu(&self, id: u32, in_service: bool) -> Result<Gpu, ClientError> {
        self.put("PATCH", &format!("/v1/gpus/{id}"), None, &GpuChange { in_service })
    }

    /// cGPUs that somebody has.
    pub fn cgpus(&self) -> Result<Vec<Cgpu>, ClientError> {
        self.all("/v1/cgpus")
    }

    /// Instances that are not gone.
    pub fn instances(&self) -> Result<Vec<Instance>, ClientError> {
        self.all("/v1/instances")
    }

    /// Begins to make an instance. With the same `key` it is made once, however often it is asked.
    pub fn create_instance(
        &self,
        key: Option<&str>,
        instance: &NewInstance,
    ) -> Result<Instance, ClientError> {
        self.put("POST", "/v1/instances", key, instance)
    }

    /// An instance.
    pub fn instance(&self, id: &str) -> Result<Instance, ClientError> {
        self.get(&format!("/v1/instances/{id}"))
    }

    /// An instance's cGPUs.
    pub fn instance_cgpus(&self, id: &str) -> Result<Vec<Cgpu>, ClientError> {
        self.all(&format!("/v1/instances/{id}/cgpus"))
    }

    /// What an instance printed.
    pub fn console(&self, id: &str) -> Result<String, ClientError> {
        let bytes = self.send("GET", &format!("/v1/instances/{id}/console"), None, None)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// What an instance must know to reach its cGPUs, where it was not made with it.
    pub fn attachment(&self, id: &str) -> Result<Attachment, ClientError> {
        self.get(&format!("/v1/instances/{id}/attachment"))
    }

    /// Begins to take an instance away.
    pub fn delete_instance(&self, id: &str) -> Result<Instance, ClientError> {
        self.read(&self.send("DELETE", &format!("/v1/instances/{id}"), None, None)?)
    }

    /// How far an operation is.
    pub fn operation(&self, id: &str) -> Result<Operation, ClientError> {
        self.get(&format!("/v1/operations/{id}"))
    }

    /// Projects.
    pub fn projects(&self) -> Result<Vec<Project>, ClientError> {
        self.all("/v1/projects")
    }

    /// A project.
    pub fn project(&self, name: &str) -> Result<Project, ClientError> {
        self.get(&format!("/v1/projects/{name}"))
    }

    /// Makes a project, or changes its quota.
    pub fn put_project(&self, name: &str, change: &ProjectChange) -> Result<Project, ClientError> {
        self.put("PUT", &format!("/v1/projects/{name}"), None, change)
    }

    /// Who had how much for how long.
    pub fn usage(&self) -> Result<Vec<UsageRecord>, ClientError> {
        self.all("/v1/usage")
    }

    /// Who did what.
    pub fn audit(&self) -> Result<Vec<AuditEntry>, ClientError> {
        self.all("/v1/audit")
    }

    /// Tokens, without secrets.
    pub fn tokens(&self) -> Result<Vec<Token>, ClientError> {
        self.all("/v1/tokens")
    }

    /// Makes a token.
    pub fn create_token(&self, token: &NewToken) -> Result<CreatedToken, ClientError> {
        self.put("POST", "/v1/tokens", None, token)
    }

    /// Takes a token back.
    pub fn delete_token(&self, name: &str) -> Result<(), ClientError> {
        self.send("DELETE", &format!("/v1/tokens/{name}"), None, None).map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_one_of_a_host() {
        for address in ["127.0.0.1:7610", "http://gpu.example:1", "http://[::1]:7610/"] {
            Client::new(address, "").unwrap();
        }
        for address in ["", "http://", "ftp://a", "http://a/b", "a b"] {
            let error = Client::new(address, "").unwrap_err().to_string();
            assert!(error.contains("http://HOST:PORT"), "{address}: {error}");
        }
        let error = Client::new("https://a", "").unwrap_err().to_string();
        assert!(error.contains("TLS"), "{error}");
    }
}
