//! What each call does: no HTTP here, and no more threads than the caller's.

mod endpoints;
mod instances;
mod metrics;
mod nodes;
mod overview;
mod projects;

pub use overview::Overview;

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use weft_api::v1::{self, Call, Kind, Method, PAGE_DEFAULT, PAGE_MAX, Page, Problem, Role};

use crate::allocate::broken;
use crate::clock;
use crate::engine::Engine;
use crate::execute::World;
use crate::identity::Identity;
use crate::news::News;
use crate::places::{AT_ONCE_MAX, Places};
use crate::random;
use crate::refusals::{Refusals, Source};
use crate::store::{Audit, Leading, Part, Store, StoreError, TokenRow};
use crate::words::counted;

/// A request, after HTTP.
#[derive(Debug, Clone, Default)]
pub struct Ask {
    /// What stands in the path's braces.
    pub target: String,
    /// `limit` of the query.
    pub limit: Option<u32>,
    /// `after` of the query.
    pub after: Option<String>,
    /// `project` of the query.
    pub project: Option<String>,
    /// The bearer's token.
    pub token: Option<String>,
    /// Where the request came from, if that is known.
    pub from: Option<IpAddr>,
    /// `wait_ms` of the query: whoever answers waits so long for what comes of itself.
    pub wait_ms: u64,
    /// The idempotency key.
    pub key: Option<String>,
    /// The body.
    pub body: Vec<u8>,
}

/// Who stands in the audit for whoever showed no token that is good: no token has this name.
const NOBODY: &str = "(nobody)";

/// What is answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// Nothing but that it was done.
    Nothing,
    /// JSON.
    Json(Vec<u8>),
    /// JSON of something that will be another way of itself.
    Passing(Vec<u8>),
    /// Plain text.
    Text(String),
}

/// Who asks.
#[derive(Debug, Clone)]
struct Actor {
    token: TokenRow,
    call: Call,
}

/// The control plane's calls.
#[derive(Debug, Clone)]
pub struct Service {
    engine: Arc<Engine>,
    document: Arc<str>,
    identity: Option<Arc<dyn Identity>>,
    is_over_tls: bool,
    refusals: Arc<Mutex<Refusals>>,
    places: Arc<Places>,
    launches_per_day: Option<u32>,
}

type Answer = Result<Reply, Problem>;

impl Service {
    /// Over an engine that works.
    #[must_use]
    pub fn new(engine: Arc<Engine>) -> Self {
        let document = v1::document().into();
        let (identity, is_over_tls, refusals) = (None, false, Arc::default());
        let (places, launches_per_day) = (Arc::new(Places::new(AT_ONCE_MAX)), None);
        Self { engine, document, identity, is_over_tls, refusals, places, launches_per_day }
    }

    /// That knows the tokens of somebody else too.
    #[must_use]
    pub fn with_identity(self, identity: Arc<dyn Identity>) -> Self {
        Self { identity: Some(identity), ..self }
    }

    /// That is asked over TLS.
    #[must_use]
    pub fn over_tls(self, is_over_tls: bool) -> Self {
        Self { is_over_tls, ..self }
    }

    /// That answers so many requests at once.
    #[must_use]
    pub fn with_places(self, at_once: usize) -> Self {
        Self { places: Arc::new(Places::new(at_once)), ..self }
    }

    /// That lets each project make so many instances in a day (UTC), or any number.
    #[must_use]
    pub fn with_launches(self, launches_per_day: Option<u32>) -> Self {
        Self { launches_per_day, ..self }
    }

    /// Requests that are answered at once.
    #[must_use]
    pub fn at_once(&self) -> usize {
        self.places.most()
    }

    pub(crate) fn is_over_tls(&self) -> bool {
        self.is_over_tls
    }

    /// Rings when something that was [`Reply::Passing`] is no longer so.
    #[must_use]
    pub fn news(&self) -> &News {
        self.engine.news()
    }

    /// Whether it is this replica that makes and removes.
    #[must_use]
    pub fn leads(&self) -> bool {
        self.store().leading() == Leading::Here
    }

    fn world(&self) -> &World {
        self.engine.world()
    }

    fn store(&self) -> &dyn Store {
        self.world().store.as_ref()
    }

    /// Answers a call.
    ///
    /// # Errors
    /// Why it was not done.
    pub fn call(&self, call: Call, ask: &Ask) -> Answer {
        let Some(least) = call.role() else { return self.open(call) };
        let actor = Actor { token: self.bearer(call, ask)?, call };
        let _place = self.places.take(actor.token.project.as_deref())?;
        if call.method() != Method::Get
            && let Leading::Elsewhere(leader) = self.store().leading()
        {
            return Err(broken(StoreError::NotLeader(leader)));
        }
        let answer = actor.may(least).and_then(|()| self.act(call, &actor, ask));
        let source = Source::Token(&actor.token.name);
        if let Err(problem) = &answer
            && call.method() != Method::Get
            && let Some(before) = self.counted(source)
        {
            let audit = actor.audit(&with_rest(&ask.target, before), problem.status);
            self.store().note(&audit).map_err(|error| {
                self.refusals().give_back(source, before);
                broken(error)
            })?;
        }
        answer
    }

    /// What anybody may ask.
    fn open(&self, call: Call) -> Answer {
        if call == Call::Document {
            return Ok(Reply::Json(self.document.as_bytes().to_vec()));
        }
        if call == Call::Readiness {
            self.store().check().map_err(broken)?;
        }
        Ok(Reply::Nothing)
    }

    fn refusals(&self) -> MutexGuard<'_, Refusals> {
        self.refusals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether one more refusal of a source is to be written into the audit, and how many were left
    /// out before it.
    fn counted(&self, source: Source<'_>) -> Option<u64> {
        self.refusals().count(source, Instant::now())
    }

    /// Whoever asks; that somebody showed no token that is good stands in the audit.
    fn bearer(&self, call: Call, ask: &Ask) -> Result<TokenRow, Problem> {
        let found = self.known(ask);
        if let Err(problem) = &found
            && problem.kind == Kind::Unauthenticated
        {
            let source = Source::Nobody(ask.from);
            if let Some(before) = self.counted(source) {
                let from = ask.from.map_or_else(|| "somewhere".to_owned(), |from| from.to_string());
                tracing::warn!(from, before, why = problem.detail, "a login was refused");
                if !self.note_login(call, &with_rest(&format!("from {from}"), before)) {
                    self.refusals().give_back(source, before);
                }
            }
        }
        found
    }

    /// Whoever leads writes it; that it cannot be written is not the asker's concern. Whether it
    /// stands in the audit.
    fn note_login(&self, call: Call, target: &str) -> bool {
        if self.store().leading() != Leading::Here {
            return false;
        }
        let audit = Audit {
            at_ms: clock::now_ms(),
            actor: NOBODY.to_owned(),
            project: None,
            action: call.name().to_owned(),
            target: target.to_owned(),
            status: Kind::Unauthenticated.status(),
        };
        let kept = self.store().note(&audit);
        if let Err(error) = &kept {
            tracing::warn!(%error, "a refused login is not in the audit");
        }
        kept.is_ok()
    }

    fn known(&self, ask: &Ask) -> Result<TokenRow, Problem> {
        let refused = |words: &str| {
            Problem::new(Kind::Unauthenticated, words)
                .hint("show a token: `Authorization: Bearer SECRET`; administrators make them")
        };
        let token = ask.token.as_ref().ok_or_else(|| refused("there is no token"))?;
        let digest = random::digest(token.as_bytes());
        let mut found = self.store().token(&digest).map_err(broken)?;
        if let (None, Some(identity)) = (&found, &self.identity) {
            found = identity.bearer(token, ask.from).map_err(|failure| {
                tracing::warn!(why = failure.words, "a token cannot be checked");
                Problem::new(Kind::Busy, "the identity service does not answer")
                    .hint("try again in a moment")
            })?;
        }
        let found = found.ok_or_else(|| refused("the token is not known, or was taken back"))?;
        if found.has_expired(clock::now_ms()) {
            return Err(refused("the token has expired"));
        }
        Ok(found)
    }

    fn act(&self, call: Call, actor: &Actor, ask: &Ask) -> Answer {
        match call {
            Call::Health | Call::Readiness | Call::Document => self.open(call),
            Call::Metrics => self.metrics(),
            Call::NodeList => self.node_list(ask),
            Call::NodePut => self.node_put(actor, ask),
            Call::NodeShow => self.node_show(ask),
            Call::NodeDelete => self.node_delete(actor, ask),
            Call::GpuList => self.gpu_list(ask),
            Call::GpuShow => self.gpu_show(ask),
            Call::GpuChange => self.gpu_change(actor, ask),
            Call::GpuDelete => self.gpu_delete(actor, ask),
            Call::EndpointList => self.endpoint_list(ask),
            Call::EndpointChange => self.endpoint_change(actor, ask),
            Call::EndpointDelete => self.endpoint_delete(actor, ask),
            Call::CgpuList => self.cgpu_list(actor, ask),
            Call::InstanceList => self.instance_list(actor, ask),
            Call::InstanceCreate => self.instance_create(actor, ask),
            Call::BatchCreate => self.batch_create(actor, ask),
            Call::InstanceShow => self.instance_show(actor, ask),
            Call::InstanceCgpus => self.instance_cgpus(actor, ask),
            Call::InstanceAttachment => self.instance_attachment(actor, ask),
            Call::InstanceConsole => self.instance_console(actor, ask),
            Call::InstanceDelete => self.instance_delete(actor, ask),
            Call::OperationShow => self.operation_show(actor, ask),
            Call::ProjectList => self.project_list(ask),
            Call::ProjectPut => self.project_put(actor, ask),
            Call::ProjectShow => self.project_show(actor, ask),
            Call::UsageList => self.usage_list(actor, ask),
            Call::AuditList => self.audit_list(ask),
            Call::TokenList => self.token_list(ask),
            Call::TokenCreate => self.token_create(actor, ask),
            Call::TokenDelete => self.token_delete(actor, ask),
        }
    }
}

impl Actor {
    fn may(&self, least: Role) -> Result<(), Problem> {
        if self.token.role >= least {
            return Ok(());
        }
        let (name, role, least) = (&self.token.name, self.token.role.name(), least.name());
        let call = format!("{} {}", self.call.method().name(), self.call.path());
        let words = format!("{call} is for the role {least}, and token `{name}` is a {role}'s");
        Err(Problem::new(Kind::Forbidden, words))
    }

    fn administrates(&self) -> bool {
        self.token.role == Role::Admin
    }

    /// Whether what is of a project may be seen and, with the role for it, changed.
    fn reaches(&self, project: &str) -> bool {
        self.administrates() || self.token.project.as_deref() == Some(project)
    }

    fn audit(&self, target: &str, status: u16) -> Audit {
        Audit {
            at_ms: clock::now_ms(),
            actor: self.token.name.clone(),
            project: self.token.project.clone(),
            action: self.call.name().to_owned(),
            target: target.chars().take(200).collect(),
            status,
        }
    }

    /// Of something that was done.
    fn did(&self, target: &str) -> Audit {
        self.audit(target, self.call.status())
    }

    /// The part of a list that is asked for and may be seen.
    fn part(&self, ask: &Ask) -> Result<Part, Problem> {
        let part = part(ask)?;
        if self.administrates() {
            return Ok(part);
        }
        let own = self.token.project.clone();
        match (&ask.project, &own) {
            (Some(asked), Some(own)) if asked != own => {
                Err(Problem::new(Kind::Forbidden, format!("the token is project {own}'s")))
            }
            _ => Ok(Part { project: own, ..part }),
        }
    }
}

/// What a refusal was about, and how many are not in the audit that came before.
fn with_rest(target: &str, before: u64) -> String {
    match before {
        0 => target.to_owned(),
        _ => {
            let target: String = target.chars().take(100).collect();
            let more = counted(before, "more refusal");
            format!("{target} (in the minutes before, of all sources: {more})")
        }
    }
}

fn part(ask: &Ask) -> Result<Part, Problem> {
    let limit = ask.limit.unwrap_or(PAGE_DEFAULT);
    if !(1..=PAGE_MAX).contains(&limit) {
        let words = format!("limit={limit}: a page has 1 to {PAGE_MAX} items");
        return Err(Problem::new(Kind::Invalid, words));
    }
    Ok(Part { limit, after: ask.after.clone(), project: ask.project.clone() })
}

/// A page of what the store found, each item as it is to be seen.
fn page<T, U: Serialize>(part: &Part, found: Vec<(String, T)>, show: impl Fn(T) -> U) -> Answer {
    let is_full = found.len() >= part.limit as usize;
    let next = found.last().map(|(cursor, _)| cursor.clone()).filter(|_| is_full);
    json(&Page { items: found.into_iter().map(|(_, item)| show(item)).collect(), next })
}

fn json(value: &impl Serialize) -> Answer {
    written(value).map(Reply::Json)
}

fn written(value: &impl Serialize) -> Result<Vec<u8>, Problem> {
    let failed = |error: serde_json::Error| Problem::new(Kind::Internal, error.to_string());
    serde_json::to_vec(value).map_err(failed)
}

fn parse<T: DeserializeOwned>(ask: &Ask) -> Result<T, Problem> {
    let wrong = |why: String| {
        Problem::new(Kind::Malformed, format!("the body is not understood: {why}")).hint(format!(
            "send JSON as in /openapi.json, version {}.{}",
            v1::VERSION.0,
            v1::VERSION.1
        ))
    };
    let value: Value =
        serde_json::from_slice(&ask.body).map_err(|error| wrong(error.to_string()))?;
    let Value::Object(fields) = &value else { return Err(wrong("it is no object".to_owned())) };
    // Nothing that is asked for is a list, and one would be taken for fields without their names.
    if let Some((name, _)) = fields.iter().find(|(_, value)| value.is_array()) {
        return Err(wrong(format!("`{name}` is a list")));
    }
    // Not from what was parsed: a field that is there twice is none there.
    serde_json::from_slice(&ask.body).map_err(|error| wrong(error.to_string()))
}

fn missing(what: &str, name: &str) -> Problem {
    let name: String = name.chars().take(80).collect();
    Problem::new(Kind::NotFound, format!("there is no {what} `{name}`"))
}

fn named(name: &str) -> Result<(), Problem> {
    v1::check_name(name).map_err(|error| Problem::new(Kind::Invalid, error.to_string()))
}
