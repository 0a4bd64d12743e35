//! Tokens: the control plane's own, one for each project in which it makes servers, and the checks
//! of those that people show.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::{Value, json};

use super::http::{ApiError, Asked, Http, Said};
use super::settings::{Credentials, Settings};
use super::time;

/// A token is renewed so long before it ends.
const RENEW_BEFORE: Duration = Duration::from_secs(60);

/// The role that the services take for an administrator's unless they are told otherwise.
const ADMIN: &str = "admin";

/// How long a token lasts whose times are not understood.
const LIFE_UNKNOWN: Duration = Duration::from_secs(300);

/// Of what project a token is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// The service user's own.
    Own,
    /// Another one, by its id.
    Project(String),
}

/// A token and what it opens.
#[derive(Debug)]
pub(super) struct Authorization {
    pub(super) token: String,
    pub(super) project: String,
    /// Whether the services take its bearer for an administrator.
    pub(super) administrates: bool,
    endpoints: BTreeMap<String, String>,
    until: Instant,
}

impl Authorization {
    /// Where a service is, without a slash at the end.
    pub(super) fn endpoint(&self, kind: &str) -> Result<&str, ApiError> {
        self.endpoints.get(kind).map(String::as_str).ok_or_else(|| {
            ApiError::Strange(format!(
                "Keystone's catalogue has no {kind} service here: look at OS_REGION_NAME and \
                 OS_INTERFACE"
            ))
        })
    }
}

/// Who shows a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bearer {
    /// The user's id.
    pub user: String,
    /// The project's id; none for a token of the whole system.
    pub project: Option<String>,
    /// Whether it is a token of the whole system.
    pub is_of_system: bool,
    /// Names of roles.
    pub roles: Vec<String>,
    /// For how long it is valid yet.
    pub lasts: Duration,
}

/// The identity service.
#[derive(Debug)]
pub struct Keystone {
    http: Arc<Http>,
    settings: Settings,
    authorizations: Mutex<BTreeMap<Scope, Arc<Authorization>>>,
}

#[derive(Debug, Deserialize)]
struct Wrapped {
    token: Token,
}

#[derive(Debug, Deserialize)]
struct Token {
    #[serde(default)]
    user: Named,
    project: Option<Named>,
    system: Option<Value>,
    #[serde(default)]
    roles: Vec<Named>,
    #[serde(default)]
    catalog: Vec<Entry>,
    expires_at: Option<String>,
    issued_at: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
struct Named {
    #[serde(default)]
    id: String,
    #[serde(default)]
    name: String,
}

#[derive(Debug, Deserialize)]
struct Entry {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    endpoints: Vec<Endpoint>,
}

#[derive(Debug, Deserialize)]
struct Endpoint {
    interface: String,
    #[serde(default)]
    region: Option<String>,
    #[serde(default)]
    region_id: Option<String>,
    url: String,
}

impl Keystone {
    pub(super) fn new(http: Arc<Http>, settings: Settings) -> Self {
        Self { http, settings, authorizations: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Scope, Arc<Authorization>>> {
        self.authorizations.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A token of that scope: one that is there, or a new one.
    pub(super) fn authorization(&self, scope: &Scope) -> Result<Arc<Authorization>, ApiError> {
        if let Some(known) = self.lock().get(scope)
            && known.until > Instant::now()
        {
            return Ok(Arc::clone(known));
        }
        // Two at once get two tokens, and keep one.
        let fresh = Arc::new(self.authenticate(scope)?);
        self.lock().insert(scope.clone(), Arc::clone(&fresh));
        Ok(fresh)
    }

    /// A token was refused.
    fn forget(&self, scope: &Scope, token: &str) {
        let mut authorizations = self.lock();
        if authorizations.get(scope).is_some_and(|known| known.token == token) {
            authorizations.remove(scope);
        }
    }

    fn authenticate(&self, scope: &Scope) -> Result<Authorization, ApiError> {
        let body = request(&self.settings.credentials, scope);
        let asked = Asked {
            method: "POST",
            url: format!("{}/auth/tokens", self.settings.auth_url),
            token: None,
            subject: None,
            microversion: None,
            body: Some(&body),
        };
        let said = self.http.send(&asked)?;
        let Wrapped { token } = said.json()?;
        let project = token.project.as_ref().map(|project| project.id.clone()).unwrap_or_default();
        if let Scope::Project(wanted) = scope
            && *wanted != project
        {
            return Err(ApiError::Strange(format!(
                "{:?} gives tokens of project {project} only, not of {wanted}: use a password",
                self.settings.credentials
            )));
        }
        let secret = said.subject.clone();
        Ok(Authorization {
            project,
            administrates: token.roles.iter().any(|role| role.name == ADMIN),
            endpoints: endpoints(&token.catalog, &self.settings),
            until: Instant::now() + lasts(&token).saturating_sub(RENEW_BEFORE),
            token: secret.ok_or_else(|| ApiError::Strange("Keystone sent no token".to_owned()))?,
        })
    }

    /// Whose a token is that somebody shows; nobody's if Keystone does not know it.
    ///
    /// # Errors
    /// If Keystone cannot be asked.
    pub fn validate(&self, shown: &str) -> Result<Option<Bearer>, ApiError> {
        let said = self.with_authorization(&Scope::Own, |authorization| {
            self.http.send(&Asked {
                method: "GET",
                url: format!("{}/auth/tokens?nocatalog", self.settings.auth_url),
                token: Some(&authorization.token),
                subject: Some(shown),
                microversion: None,
                body: None,
            })
        });
        match said {
            Ok(said) => {
                let Wrapped { token } = said.json()?;
                Ok(Some(bearer(&token)))
            }
            // The one that is shown.
            Err(ApiError::Refused { status: 404, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Asks with a token of that scope. One that is refused is renewed once: Keystone may have
    /// taken it back before its time.
    pub(super) fn with_authorization(
        &self,
        scope: &Scope,
        ask: impl Fn(&Authorization) -> Result<Said, ApiError>,
    ) -> Result<Said, ApiError> {
        let authorization = self.authorization(scope)?;
        match ask(&authorization) {
            Err(ApiError::Refused { status: 401, .. }) => {
                self.forget(scope, &authorization.token);
                ask(&*self.authorization(scope)?)
            }
            said => said,
        }
    }
}

fn request(credentials: &Credentials, scope: &Scope) -> Value {
    match credentials {
        Credentials::Application { id, secret } => json!({"auth": {"identity": {
            "methods": ["application_credential"],
            "application_credential": {"id": id, "secret": secret},
        }}}),
        Credentials::Password { user, user_domain, password, project, project_domain } => {
            let project = match scope {
                Scope::Own => json!({"name": project, "domain": {"name": project_domain}}),
                Scope::Project(id) => json!({"id": id}),
            };
            json!({"auth": {
                "identity": {"methods": ["password"], "password": {"user": {
                    "name": user, "domain": {"name": user_domain}, "password": password,
                }}},
                "scope": {"project": project},
            }})
        }
    }
}

fn endpoints(catalogue: &[Entry], settings: &Settings) -> BTreeMap<String, String> {
    let is_here = |endpoint: &&Endpoint| {
        let region = endpoint.region_id.as_ref().or(endpoint.region.as_ref());
        endpoint.interface == settings.interface
            && settings.region.as_ref().is_none_or(|wanted| region == Some(wanted))
    };
    let of_one = |entry: &Entry| {
        let endpoint = entry.endpoints.iter().find(is_here)?;
        Some((entry.kind.clone(), endpoint.url.trim_end_matches('/').to_owned()))
    };
    catalogue.iter().filter_map(of_one).collect()
}

/// A token's whole life, by Keystone's clock alone.
fn lasts(token: &Token) -> Duration {
    let seconds = |text: &Option<String>| time::seconds(text.as_deref()?);
    let life = seconds(&token.expires_at).zip(seconds(&token.issued_at));
    let life = life.and_then(|(to, from)| u64::try_from(to - from).ok());
    life.map_or(LIFE_UNKNOWN, Duration::from_secs)
}

fn bearer(token: &Token) -> Bearer {
    let now = i64::try_from(crate::clock::now_ms() / 1_000).unwrap_or(i64::MAX);
    let until = token.expires_at.as_deref().and_then(time::seconds).unwrap_or(now);
    Bearer {
        user: token.user.id.clone(),
        project: token.project.as_ref().map(|project| project.id.clone()),
        is_of_system: token.system.is_some(),
        roles: token.roles.iter().map(|role| role.name.clone()).collect(),
        lasts: Duration::from_secs(u64::try_from(until - now).unwrap_or(0)),
    }
}
