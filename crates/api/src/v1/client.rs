//! The blocking client.

mod waiting;

use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;
use ureq::http::{Request, Response, Uri};
use ureq::{Agent, AsSendBody, Body};

use super::names::{BadKey, check_key, is_word};
use super::problem::{Kind, Problem};
use super::reach::{Limits, agent, tls, trusted, was_sent, why};
use super::resources::{
    Attachment, AuditEntry, Batch, Cgpu, CreatedToken, Endpoint, EndpointChange, Gpu, GpuChange,
    Instance, NewBatch, NewInstance, NewNode, NewToken, Node, Operation, Page, Project,
    ProjectChange, Token, UsageRecord,
};
use super::{IDEMPOTENCY_HEADER, VERSION, VERSION_HEADER, VERSION_MIN};

/// The control plane answers within this time or the call failed.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// Whoever is asked has at least so long for it, however little patience is left.
const ATTEMPT_MIN: Duration = Duration::from_secs(1);

/// Who waits for a replica to lead asks again after this time, if nobody says how long it may take.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// And not sooner, whatever is said.
const PAUSE_MIN: Duration = Duration::from_millis(100);

/// Bytes of a key that nobody else has.
const KEY_BYTES: usize = 16;

/// The longest answer.
const ANSWER_BYTES_MAX: u64 = 64 << 20;

/// A connection to a control plane, kept between calls. Of several replicas it may know any, or
/// more than one: what only another one does is asked of that one.
#[derive(Debug, Clone)]
pub struct Client {
    agent: Agent,
    bases: Vec<String>,
    /// Which of them answered last.
    answered: Arc<AtomicUsize>,
    /// The microversion that is asked for: the oldest one of those that answered, because newer
    /// ones speak that too.
    minor: Arc<AtomicU32>,
    token: String,
    patience: Option<Duration>,
}

/// A key for a creation, which nobody else has: with it, it may be asked for again.
///
/// # Errors
/// The system's.
pub fn new_key() -> std::io::Result<String> {
    let mut bytes = [0; KEY_BYTES];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Why a call has no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The address cannot be one.
    #[error("`{0}` is no address of a control plane: write http://HOST:PORT or https://HOST:PORT")]
    Address(String),
    /// The token cannot be sent.
    #[error(
        "the token is none: a token is one word of letters, digits and signs; was more copied into \
         its file than the token?"
    )]
    Token,
    /// The key of a creation cannot be sent.
    #[error("{0}")]
    Key(BadKey),
    /// Whose word is to be taken for who answers is not known.
    #[error("{0}")]
    Authorities(String),
    /// Nobody answers.
    #[error("no control plane answers at {base}: {why}")]
    Unreachable {
        /// Where.
        base: String,
        /// The system's words.
        why: String,
    },
    /// The request went out and its answer did not come.
    #[error("the control plane at {base} did not answer{}: {why}", may_have_done(*.may_be_done))]
    Unanswered {
        /// Where.
        base: String,
        /// The system's words.
        why: String,
        /// Whether it was to change something, which may be done.
        may_be_done: bool,
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

fn may_have_done(may_be_done: bool) -> &'static str {
    if may_be_done { ", and may have done it" } else { "" }
}

impl Client {
    /// A client of the control plane at `http://HOST:PORT` or `https://HOST:PORT`, which shows a
    /// token; of several replicas there may be more addresses, with commas between. Over TLS the
    /// authorities are trusted that the system trusts.
    ///
    /// # Errors
    /// [`ClientError::Address`], [`ClientError::Token`], [`ClientError::Authorities`].
    pub fn new(address: &str, token: &str) -> Result<Self, ClientError> {
        Self::with_authorities(address, token, None)
    }

    /// The same, but over TLS those authorities are trusted whose certificates are in a file (PEM).
    ///
    /// # Errors
    /// The same.
    pub fn with_authorities(
        address: &str,
        token: &str,
        authorities: Option<&Path>,
    ) -> Result<Self, ClientError> {
        let bases: Vec<String> = address.split(',').map(base).collect::<Result<_, _>>()?;
        // Without one, what anybody may ask is asked.
        if !token.is_empty() && !is_word(token) {
            return Err(ClientError::Token);
        }
        let is_secure = bases[0].starts_with("https://");
        // The token is shown to all of them.
        if bases.iter().any(|base| base.starts_with("https://") != is_secure) {
            return Err(ClientError::Address(address.to_owned()));
        }
        let mut config = Agent::config_builder()
            .timeout_global(Some(ANSWER_TIMEOUT))
            .http_status_as_error(false)
            // A token is shown to whom it was meant for.
            .max_redirects(0)
            .proxy(None)
            .max_idle_connections_per_host(64);
        if is_secure {
            config = config.tls_config(tls(&trusted(authorities)?));
        }
        Ok(Self {
            agent: agent(config.build()),
            bases,
            answered: Arc::default(),
            minor: Arc::new(AtomicU32::new(VERSION.1)),
            token: token.to_owned(),
            patience: None,
        })
    }

    /// The same, but what is not answered, or refused because no replica leads or the store is
    /// away, is asked again for so long, if it may be asked twice. No call takes longer than that,
    /// or than a second if that is more.
    #[must_use]
    pub fn patient(self, patience: Duration) -> Self {
        Self { patience: Some(patience), ..self }
    }

    /// Asks; and again, as long as nobody who could do it has answered and this client is patient.
    fn send(&self, asked: &Asked<'_>) -> Result<Vec<u8>, ClientError> {
        let deadline = Instant::now() + self.patience.unwrap_or_default();
        // Whether an attempt before may have done it.
        let mut may_be_done = false;
        loop {
            let left = self.patience.map(|_| deadline.saturating_duration_since(Instant::now()));
            let answered = self.send_round(asked, left, &mut may_be_done);
            let Err(error) = &answered else { return answered };
            if may_be_done && asked.is_done_as(error) {
                return Ok(Vec::new());
            }
            let pause = match error {
                // Where nobody else is known there may be nobody at all.
                ClientError::Unreachable { base, .. }
                    if self.bases.len() > 1 || !self.bases.contains(base) =>
                {
                    ASK_AGAIN
                }
                ClientError::Unanswered { .. } if asked.may_be_repeated() => ASK_AGAIN,
                ClientError::Refused(problem) if asked.is_passing(problem) => {
                    problem.retry_after_s.map_or(ASK_AGAIN, Duration::from_secs).max(PAUSE_MIN)
                }
                ClientError::Unreachable { .. }
                | ClientError::Unanswered { .. }
                | ClientError::Refused(_)
                | ClientError::Address(_)
                | ClientError::Token
                | ClientError::Key(_)
                | ClientError::Authorities(_)
                | ClientError::Strange { .. } => return answered,
            };
            if Instant::now() + pause > deadline {
                return answered;
            }
            thread::sleep(pause);
        }
    }

    /// Asks one replica after the other, beginning with the one that answered last, until one has
    /// done it, refused it, or may have done what must not be done twice. Of the time that is left,
    /// one that hangs takes its part only. Says, too, if one may have done it that did not answer.
    fn send_round(
        &self,
        asked: &Asked<'_>,
        left: Option<Duration>,
        may_be_done: &mut bool,
    ) -> Result<Vec<u8>, ClientError> {
        let first = self.answered.load(Ordering::Relaxed);
        let end = left.map(|left| Instant::now() + left);
        let mut last: Option<ClientError> = None;
        for step in 0..self.bases.len() {
            let at = (first + step) % self.bases.len();
            let others = u32::try_from(self.bases.len() - step).unwrap_or(u32::MAX);
            let limit = end.map_or(ANSWER_TIMEOUT, |end| {
                let part = end.saturating_duration_since(Instant::now()) / others;
                part.clamp(ATTEMPT_MIN, ANSWER_TIMEOUT)
            });
            match self.send_led(&self.bases[at], asked, Instant::now() + limit) {
                Err(error) if asked.may_go_to_another(&error) => {
                    *may_be_done |= may_have_been_done(&error);
                    // What one said that answers is more than that another one does not.
                    if !matches!(last, Some(ClientError::Refused(_))) {
                        last = Some(error);
                    }
                }
                answered => {
                    self.answered.store(at, Ordering::Relaxed);
                    return answered;
                }
            }
        }
        Err(last.unwrap_or_else(|| ClientError::Address(String::new())))
    }

    /// Asks a replica, and the one that makes changes if this one does not.
    fn send_led(
        &self,
        base: &str,
        asked: &Asked<'_>,
        end: Instant,
    ) -> Result<Vec<u8>, ClientError> {
        let answered = self.send_to(base, asked, end);
        let Err(ClientError::Refused(Problem { kind: Kind::NotLeader, leader, .. })) = &answered
        else {
            return answered;
        };
        // What is said under TLS here is said under TLS there.
        let is_as_safe =
            |leader: &&String| leader.starts_with("https://") || base.starts_with("http://");
        match leader.as_ref().filter(is_as_safe) {
            Some(leader) => self.send_to(leader.trim_end_matches('/'), asked, end),
            None => answered,
        }
    }

    /// Asks one; again, for the version that it speaks, if it is an older one.
    fn send_to(&self, base: &str, asked: &Asked<'_>, end: Instant) -> Result<Vec<u8>, ClientError> {
        let minor = self.minor.load(Ordering::Relaxed);
        let (answered, spoken) = self.send_as(minor, base, asked, end)?;
        let is_other =
            matches!(answered, Err(ClientError::Refused(Problem { kind: Kind::Version, .. })));
        match spoken {
            Some(older) if is_other && (VERSION_MIN.1..minor).contains(&older) => {
                self.minor.fetch_min(older, Ordering::Relaxed);
                self.send_as(older, base, asked, end)?.0
            }
            Some(_) | None => answered,
        }
    }

    /// Asks for a microversion; what was answered until then, and the newest one that is spoken
    /// there.
    fn send_as(
        &self,
        minor: u32,
        base: &str,
        asked: &Asked<'_>,
        end: Instant,
    ) -> Result<Sent, ClientError> {
        let limits = Limits::of(end.saturating_duration_since(Instant::now()).max(PAUSE_MIN));
        let mut response = self.run(minor, base, asked, limits)?.map_err(|error| {
            let (base, why) = (base.to_owned(), why(&error, limits));
            match was_sent(&error) {
                false => ClientError::Unreachable { base, why },
                true => ClientError::Unanswered { base, why, may_be_done: asked.changes() },
            }
        })?;
        let status = response.status();
        let spoken = response.headers().get(VERSION_HEADER).and_then(|value| value.to_str().ok());
        let spoken = spoken.and_then(minor_of);
        let body = response.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_vec();
        let lost = |error: ureq::Error| {
            let (base, why) = (base.to_owned(), why(&error, limits));
            ClientError::Unanswered { base, why, may_be_done: asked.changes() }
        };
        let body = body.map_err(lost)?;
        if status.is_success() {
            return Ok((Ok(body), spoken));
        }
        let refused = match serde_json::from_slice(&body) {
            Ok(problem) => ClientError::Refused(problem),
            Err(_) => self.strange(format!("it answers {status} without a problem")),
        };
        Ok((Err(refused), spoken))
    }

    /// Sends a request; what came of it within time limits.
    fn run(
        &self,
        minor: u32,
        base: &str,
        asked: &Asked<'_>,
        limits: Limits,
    ) -> Result<Result<Response<Body>, ureq::Error>, ClientError> {
        let Asked { method, path, key, body, .. } = *asked;
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{base}{path}"))
            .header(VERSION_HEADER, format!("{}.{minor}", VERSION.0));
        if !self.token.is_empty() {
            request = request.header("authorization", format!("Bearer {}", self.token));
        }
        if let Some(key) = key {
            request = request.header(IDEMPOTENCY_HEADER, key);
        }
        let bad = |_| ClientError::Address(format!("{base}{path}"));
        Ok(if let Some(body) = body {
            let request = request.header("content-type", "application/json").body(body);
            self.run_within(request.map_err(bad)?, limits)
        } else {
            self.run_within(request.body(()).map_err(bad)?, limits)
        })
    }

    fn run_within(
        &self,
        request: Request<impl AsSendBody>,
        limits: Limits,
    ) -> Result<Response<Body>, ureq::Error> {
        let request = self.agent.configure_request(request).timeout_global(Some(limits.whole));
        let request = request.timeout_resolve(Some(limits.resolve));
        self.agent.run(request.timeout_connect(Some(limits.connect)).build())
    }

    fn strange(&self, why: String) -> ClientError {
        ClientError::Strange { base: self.bases.join(","), why }
    }

    fn read<T: DeserializeOwned>(&self, bytes: &[u8]) -> Result<T, ClientError> {
        serde_json::from_slice(bytes).map_err(|error| self.strange(error.to_string()))
    }

    fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.read(&self.look("GET", path)?)
    }

    fn put<T: DeserializeOwned>(
        &self,
        method: &str,
        path: &str,
        key: Option<&str>,
        body: &impl Serialize,
    ) -> Result<T, ClientError> {
        key.map_or(Ok(()), check_key).map_err(ClientError::Key)?;
        let body = serde_json::to_vec(body).map_err(|error| self.strange(error.to_string()))?;
        let (body, is_removal) = (Some(&*body), false);
        self.read(&self.send(&Asked { method, path, key, body, is_removal })?)
    }

    fn look(&self, method: &str, path: &str) -> Result<Vec<u8>, ClientError> {
        self.send(&Asked { method, path, key: None, body: None, is_removal: false })
    }

    fn remove(&self, path: &str) -> Result<(), ClientError> {
        let method = "DELETE";
        self.send(&Asked { method, path, key: None, body: None, is_removal: true }).map(drop)
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

/// An answer, and the microversion that whoever answered names.
type Sent = (Result<Vec<u8>, ClientError>, Option<u32>);

/// The minor number of a version of this interface.
fn minor_of(text: &str) -> Option<u32> {
    let (major, minor) = text.split_once('.')?;
    (major.parse() == Ok(VERSION.0)).then(|| minor.parse().ok())?
}

/// A request.
#[derive(Debug, Clone, Copy)]
struct Asked<'a> {
    method: &'a str,
    path: &'a str,
    key: Option<&'a str>,
    body: Option<&'a [u8]>,
    /// Whether what it names is not there any longer once it was done, and nothing is answered.
    is_removal: bool,
}

impl Asked<'_> {
    /// Whether it is to change something.
    fn changes(&self) -> bool {
        self.method != "GET"
    }

    /// Whether it does nothing a second time.
    fn may_be_repeated(&self) -> bool {
        self.method != "POST" || self.key.is_some()
    }

    /// Whether another replica may be asked after such an answer.
    fn may_go_to_another(&self, error: &ClientError) -> bool {
        match error {
            ClientError::Unreachable { .. } => true,
            ClientError::Unanswered { .. } => self.may_be_repeated(),
            ClientError::Refused(problem) => self.is_passing(problem),
            ClientError::Address(_)
            | ClientError::Token
            | ClientError::Key(_)
            | ClientError::Authorities(_)
            | ClientError::Strange { .. } => false,
        }
    }

    /// Whether it may be done if it is asked again. A store that went away may have kept it.
    fn is_passing(&self, problem: &Problem) -> bool {
        let may_be_kept = problem.kind == Kind::StoreAway;
        matches!(problem.kind, Kind::NotLeader | Kind::Busy)
            || (may_be_kept && self.may_be_repeated())
    }

    /// Whether an attempt before has done it, if it may have, when another one ends so.
    fn is_done_as(&self, error: &ClientError) -> bool {
        let is_gone = |problem: &Problem| problem.kind == Kind::NotFound;
        self.is_removal && matches!(error, ClientError::Refused(problem) if is_gone(problem))
    }
}

/// Whether an attempt that ended so may have done what was asked.
fn may_have_been_done(error: &ClientError) -> bool {
    let may_be_kept = |problem: &Problem| problem.kind == Kind::StoreAway;
    matches!(error, ClientError::Unanswered { .. })
        || matches!(error, ClientError::Refused(problem) if may_be_kept(problem))
}

/// Whether a text is the address of one control plane, written out: `http://HOST:PORT` or
/// `https://HOST:PORT`.
///
/// # Errors
/// [`ClientError::Address`].
pub fn check_address(text: &str) -> Result<(), ClientError> {
    if !text.contains("://") {
        return Err(ClientError::Address(text.to_owned()));
    }
    base(text).map(drop)
}

/// The address of a control plane as calls begin with it.
fn base(address: &str) -> Result<String, ClientError> {
    let address = address.trim();
    let base = if address.contains("://") {
        address.trim_end_matches('/').to_owned()
    } else {
        format!("http://{address}")
    };
    let wrong = || ClientError::Address(address.to_owned());
    let uri: Uri = base.parse().map_err(|_| wrong())?;
    let is_known = matches!(uri.scheme_str(), Some("http" | "https"));
    // What is no number of a port is none to `Uri` either, and the scheme's would be taken.
    let has_port = uri.authority().is_some_and(|authority| {
        let text = authority.as_str();
        let behind_ipv6 = text.rsplit_once(']').map_or(text, |(_, rest)| rest);
        let port = behind_ipv6.rsplit_once(':').map(|(_, port)| port.parse::<u16>());
        port.is_none_or(|port| port.is_ok_and(|port| port > 0))
    });
    let is_bare = uri.path() == "/" && uri.query().is_none() && !base.contains('#');
    if !is_known || !has_port || !is_bare || uri.host().is_none_or(str::is_empty) {
        return Err(wrong());
    }
    Ok(base)
}

/// The calls. Each fails as [`ClientError`] says.
#[expect(clippy::missing_errors_doc, reason = "said above, once for all")]
impl Client {
    /// Whether it is ready.
    pub fn ready(&self) -> Result<(), ClientError> {
        self.look("GET", "/ready").map(|_| ())
    }

    /// Prometheus text.
    pub fn metrics(&self) -> Result<String, ClientError> {
        Ok(String::from_utf8_lossy(&self.look("GET", "/metrics")?).into_owned())
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
        self.remove(&format!("/v1/nodes/{name}"))
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

    /// Forgets a GPU that its node does not have any longer.
    pub fn delete_gpu(&self, id: u32) -> Result<(), ClientError> {
        self.remove(&format!("/v1/gpus/{id}"))
    }

    /// Endpoints of compute hosts.
    pub fn endpoints(&self) -> Result<Vec<Endpoint>, ClientError> {
        self.all("/v1/endpoints")
    }

    /// Drains the endpoint of a compute host, or puts it back into service.
    pub fn set_endpoint(&self, host: &str, in_service: bool) -> Result<Endpoint, ClientError> {
        self.put("PATCH", &format!("/v1/endpoints/{host}"), None, &EndpointChange { in_service })
    }

    /// Takes an endpoint out of service.
    pub fn delete_endpoint(&self, host: &str) -> Result<(), ClientError> {
        self.remove(&format!("/v1/endpoints/{host}"))
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

    /// Begins to make several equal instances, all of them or none. With the same `key` they are
    /// made once, however often it is asked.
    pub fn create_batch(&self, key: Option<&str>, batch: &NewBatch) -> Result<Batch, ClientError> {
        self.put("POST", "/v1/batches", key, batch)
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
        let bytes = self.look("GET", &format!("/v1/instances/{id}/console"))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// What an instance must know to reach its cGPUs, where it was not made with it.
    pub fn attachment(&self, id: &str) -> Result<Attachment, ClientError> {
        self.get(&format!("/v1/instances/{id}/attachment"))
    }

    /// Begins to take an instance away.
    pub fn delete_instance(&self, id: &str) -> Result<Instance, ClientError> {
        self.read(&self.look("DELETE", &format!("/v1/instances/{id}"))?)
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
        self.remove(&format!("/v1/tokens/{name}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_one_of_a_host() {
        for address in
            ["127.0.0.1:7610", "http://gpu.example:1", "http://[::1]:7610/", "a:1,http://b:2"]
        {
            Client::new(address, "").unwrap();
        }
        for address in [
            "",
            "http://",
            "ftp://a",
            "http://a/b",
            "a b",
            "https://a/b",
            "a,",
            "https://a,http://b",
            "http://a:99999",
            "http://a:0",
            "http://a:",
            "http://[::1]:x",
            "http://a?x=y",
            "http://a:1?x=y",
            "http://a#b",
        ] {
            let error = Client::new(address, "").unwrap_err().to_string();
            assert!(error.contains("http://HOST:PORT"), "{address}: {error}");
        }
    }

    #[test]
    fn what_no_header_can_have_is_told_as_what_it_is() {
        for token in ["a\nb", "a b", "\u{2026}", "a\r\nX: y"] {
            let error = Client::new("a", token).unwrap_err();
            assert!(matches!(error, ClientError::Token), "{token:?}: {error}");
            assert!(!error.to_string().contains(token), "it is a secret: {error}");
        }
        let client = Client::new("127.0.0.1:1", "t").unwrap();
        let role = super::super::Role::Admin;
        let token = NewToken { name: "a".to_owned(), project: None, role, valid_s: None };
        for key in ["", "a b", "a\r\nX: y", "\u{43a}"] {
            let made: Result<Token, _> = client.put("POST", "/v1/tokens", Some(key), &token);
            let error = made.unwrap_err();
            assert!(matches!(error, ClientError::Key(_)), "{key:?}: {error}");
        }
    }

    /// A name under `.invalid` is nobody's (RFC 6761), whether there is a network or not.
    #[test]
    fn who_is_not_found_was_sent_nothing() {
        let client = Client::new("http://nonexistent.invalid:7610", "t").unwrap();
        let error = client.ready().unwrap_err();
        assert!(matches!(error, ClientError::Unreachable { .. }), "{error}");
    }

    /// A client that trusts nobody.
    fn over_tls(address: std::net::SocketAddr) -> Client {
        let config = Agent::config_builder().tls_config(tls(&[])).build();
        let plain = Client::new(&address.to_string(), "t").unwrap();
        let bases = vec![format!("https://{address}")];
        Client { agent: agent(config), bases, ..plain }
    }

    /// The system takes the connection in, and nobody greets.
    #[test]
    fn who_does_not_end_the_greeting_was_sent_nothing() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let client = over_tls(listener.local_addr().unwrap()).patient(Duration::from_secs(2));
        let error = client.ready().unwrap_err();
        assert!(matches!(error, ClientError::Unreachable { .. }), "{error}");
        assert!(error.to_string().contains("nothing came within 1 s"), "{error}");
    }

    #[test]
    fn who_speaks_no_tls_is_said_to_speak_none() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = thread::spawn(move || {
            use std::io::Write as _;
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
            // The client ends it.
            let _ = stream.read_to_end(&mut Vec::new());
        });
        let client = over_tls(address);
        let error = client.ready().unwrap_err();
        server.join().unwrap();
        assert!(matches!(error, ClientError::Unreachable { .. }), "{error}");
        assert!(error.to_string().contains("does not speak TLS"), "{error}");
    }

    #[test]
    fn what_may_have_been_kept_is_asked_for_again_only_if_that_does_nothing() {
        let asked = |method, key| Asked { method, path: "", key, body: None, is_removal: false };
        let of = |kind| Problem::new(kind, "not now");
        assert!(!asked("POST", None).is_passing(&of(Kind::StoreAway)));
        assert!(asked("POST", Some("k")).is_passing(&of(Kind::StoreAway)));
        assert!(asked("DELETE", None).is_passing(&of(Kind::StoreAway)));
        assert!(asked("POST", None).is_passing(&of(Kind::Busy)), "nothing was done");
    }

    #[test]
    fn whose_word_is_taken_must_be_in_the_file() {
        let client = |file: &str| Client::with_authorities("https://a", "", Some(Path::new(file)));
        let missing = client("/nowhere/ca.pem").unwrap_err().to_string();
        assert!(missing.contains("/nowhere/ca.pem"), "{missing}");
        let empty = client("/dev/null").unwrap_err().to_string();
        assert!(empty.contains("no certificate"), "{empty}");
        let endless = client("/dev/zero").unwrap_err().to_string();
        assert!(endless.contains("/dev/zero: it has more than"), "{endless}");
    }
}
