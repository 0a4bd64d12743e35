//! The page for people: GPUs and who shares them, grants, queue, projects, usage and audit.
//!
//! It is written on the server and needs no script: without one it loads itself every five seconds,
//! with one its content is replaced every two. It only shows; whatever changes something goes over
//! the REST interface. Who logs in with a token gets a cookie that stands for it in this process's
//! memory, and sees what the token may see, for as long as it is not taken back.

mod page;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, COOKIE, HOST, LOCATION, ORIGIN,
    REFERRER_POLICY, SET_COOKIE, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::Response;
use axum::routing::{get, post};
use tokio::sync::Semaphore;
use weft_api::v1::{Kind, Problem};

use crate::service::{Overview, Service};
use crate::{clock, http, random};

/// Sessions at once; the one that ends first goes when there are more.
const SESSIONS_MAX: usize = 1_000;

/// How long a session lasts.
const SESSION: Duration = Duration::from_secs(12 * 3600);

/// Bytes of a session's name, which nobody can guess.
const NAME_BYTES: usize = 24;

/// The longest form.
const FORM_BYTES_MAX: usize = 1024;

/// A form is there within this time.
const FORM_LIMIT: Duration = Duration::from_secs(10);

/// The cookie.
const SESSION_COOKIE: &str = "weft_session";

/// Nothing of others, nothing within the page's text, and no frame.
const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src \
                      'self'; img-src 'self'; form-action 'self'; base-uri 'none'; \
                      frame-ancestors 'none'";

const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Who has logged in: tokens by the digests of sessions' names.
#[derive(Debug, Default)]
struct Sessions(Mutex<BTreeMap<[u8; 32], (Instant, String)>>);

impl Sessions {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<[u8; 32], (Instant, String)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins one for a token; its name.
    fn begin(&self, token: &str, now: Instant) -> std::io::Result<String> {
        let name = random::hex(NAME_BYTES)?;
        let mut all = self.lock();
        all.retain(|_, (end, _)| *end > now);
        if all.len() >= SESSIONS_MAX {
            let first = all.iter().min_by_key(|(_, (end, _))| *end).map(|(name, _)| *name);
            first.and_then(|first| all.remove(&first));
        }
        all.insert(random::digest(name.as_bytes()), (now + SESSION, token.to_owned()));
        Ok(name)
    }

    fn token(&self, name: &str, now: Instant) -> Option<String> {
        let all = self.lock();
        let (end, token) = all.get(&random::digest(name.as_bytes()))?;
        (*end > now).then(|| token.clone())
    }

    fn end(&self, name: &str) {
        self.lock().remove(&random::digest(name.as_bytes()));
    }
}

#[derive(Debug, Clone)]
struct Web {
    service: Arc<Service>,
    sessions: Arc<Sessions>,
    room: Arc<Semaphore>,
}

/// The page's routes; `room` is how many requests are answered at once, with others.
pub(crate) fn router(service: &Arc<Service>, room: &Arc<Semaphore>) -> Router {
    let (service, room) = (Arc::clone(service), Arc::clone(room));
    let web = Web { service, sessions: Arc::default(), room };
    let (of_login, of_logout) = (web.clone(), web.clone());
    Router::new()
        .route("/", get(move |request: Request| web.show(request)))
        .route("/login", post(move |request: Request| async move { of_login.login(request).await }))
        .route("/logout", post(move |request: Request| async move { of_logout.logout(&request) }))
        .route("/web/style.css", get(|| file("text/css", include_str!("style.css"))))
        .route("/web/live.js", get(|| file("text/javascript", include_str!("live.js"))))
}

async fn file(kind: &'static str, text: &'static str) -> Response {
    answer(StatusCode::OK, kind, text.to_owned())
}

/// Where no place is free.
fn too_many() -> Response {
    let words = "Too many requests are being answered. Try again in a moment.";
    html(StatusCode::SERVICE_UNAVAILABLE, page::login(Some(words)))
}

impl Web {
    /// What a token sees, unless too much is asked for at once. The place is taken until it is
    /// found, also when whoever asked has hung up.
    async fn overview(
        &self,
        token: String,
        from: Option<IpAddr>,
    ) -> Option<Result<Overview, Problem>> {
        let place = http::place(Arc::clone(&self.room)).await?;
        let service = Arc::clone(&self.service);
        let looking = move || {
            let _place = place;
            service.overview(&token, from)
        };
        let seen = tokio::task::spawn_blocking(looking).await;
        let ended = |_| Err(Problem::new(Kind::Internal, "the request's thread ended"));
        Some(seen.unwrap_or_else(ended))
    }

    async fn show(self, request: Request) -> Response {
        let (parts, _) = request.into_parts();
        let (headers, from) = (&parts.headers, http::from(&parts.extensions));
        let Some(name) = session(headers) else { return html(StatusCode::OK, page::login(None)) };
        let Some(token) = self.sessions.token(&name, Instant::now()) else {
            let words = "The session has ended.";
            return html(StatusCode::UNAUTHORIZED, page::login(Some(words)));
        };
        let Some(seen) = self.overview(token, from).await else { return too_many() };
        match seen {
            Ok(seen) => html(StatusCode::OK, page::overview(&seen, clock::now_ms())),
            Err(problem) => {
                let status = StatusCode::from_u16(problem.status).unwrap_or_default();
                if status == StatusCode::UNAUTHORIZED {
                    self.sessions.end(&name);
                }
                html(status, page::login(Some(&problem.detail)))
            }
        }
    }

    async fn login(&self, request: Request) -> Response {
        if is_foreign(request.headers()) {
            return html(StatusCode::FORBIDDEN, page::login(Some("Another site sent this form.")));
        }
        let from = http::from(request.extensions());
        let read = tokio::time::timeout(FORM_LIMIT, to_bytes(request.into_body(), FORM_BYTES_MAX));
        let Ok(Ok(form)) = read.await else {
            return html(StatusCode::BAD_REQUEST, page::login(Some("The form did not arrive.")));
        };
        let token = token_of(&form);
        let Some(seen) = self.overview(token.clone(), from).await else { return too_many() };
        if let Err(problem) = seen {
            let status = StatusCode::from_u16(problem.status).unwrap_or_default();
            return html(status, page::login(Some(&problem.detail)));
        }
        let Ok(name) = self.sessions.begin(&token, Instant::now()) else {
            let words = "No session can be begun.";
            return html(StatusCode::INTERNAL_SERVER_ERROR, page::login(Some(words)));
        };
        self.to_page(&name, SESSION.as_secs())
    }

    fn logout(&self, request: &Request) -> Response {
        if is_foreign(request.headers()) {
            return html(StatusCode::FORBIDDEN, page::login(Some("Another site sent this form.")));
        }
        if let Some(name) = session(request.headers()) {
            self.sessions.end(&name);
        }
        self.to_page("", 0)
    }

    /// To the page, with a cookie.
    fn to_page(&self, name: &str, seconds: u64) -> Response {
        let mut response = answer(StatusCode::SEE_OTHER, "text/plain", String::new());
        let secure = if self.service.is_over_tls() { "; Secure" } else { "" };
        let cookie = format!(
            "{SESSION_COOKIE}={name}; Path=/; HttpOnly; SameSite=Strict; Max-Age={seconds}{secure}"
        );
        let headers = response.headers_mut();
        headers.insert(LOCATION, HeaderValue::from_static("/"));
        if let Ok(cookie) = HeaderValue::from_str(&cookie) {
            headers.insert(SET_COOKIE, cookie);
        }
        response
    }
}

/// A secret of letters and digits, as they are made; anything else is nobody's.
fn token_of(form: &[u8]) -> String {
    let text = String::from_utf8_lossy(form);
    let value = text.split('&').find_map(|pair| pair.strip_prefix("token="));
    value.unwrap_or_default().trim_matches('+').to_owned()
}

/// Whether a browser says that a page of somebody else sent this: one that does not say from which
/// site says which origin.
fn is_foreign(headers: &HeaderMap) -> bool {
    if let Some(site) = headers.get(FETCH_SITE) {
        return site != "same-origin" && site != "none";
    }
    let Some(origin) = headers.get(ORIGIN) else { return false };
    let host = headers.get(HOST).and_then(|host| host.to_str().ok());
    let of_origin = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
    match (of_origin, host) {
        (Some((_, origin)), Some(host)) => !origin.eq_ignore_ascii_case(host),
        (None, _) | (_, None) => true,
    }
}

fn session(headers: &HeaderMap) -> Option<String> {
    let cookies = headers.get_all(COOKIE).into_iter().filter_map(|value| value.to_str().ok());
    let mut pairs = cookies.flat_map(|text| text.split(';'));
    pairs.find_map(|pair| {
        let (name, value) = pair.trim().split_once('=')?;
        (name == SESSION_COOKIE && !value.is_empty()).then(|| value.to_owned())
    })
}

fn html(status: StatusCode, text: String) -> Response {
    answer(status, "text/html; charset=utf-8", text)
}

fn answer(status: StatusCode, kind: &'static str, text: String) -> Response {
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    for (name, value) in [
        (CONTENT_TYPE, kind),
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (X_FRAME_OPTIONS, "DENY"),
        (REFERRER_POLICY, "no-referrer"),
        (CACHE_CONTROL, "no-store"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_ends_with_its_time_and_with_the_logout() {
        let (sessions, now) = (Sessions::default(), Instant::now());
        let name = sessions.begin("secret", now).unwrap();
        assert_eq!(sessions.token(&name, now).as_deref(), Some("secret"));
        assert_eq!(sessions.token(&name, now + SESSION), None);
        assert_eq!(sessions.token("another", now), None);
        sessions.end(&name);
        assert_eq!(sessions.token(&name, now), None);
    }

    #[test]
    fn sessions_are_bounded() {
        let (sessions, now) = (Sessions::default(), Instant::now());
        let first = sessions.begin("secret", now).unwrap();
        for later in 1..=SESSIONS_MAX {
            let at = now + Duration::from_millis(u64::try_from(later).unwrap());
            sessions.begin("secret", at).unwrap();
        }
        assert_eq!(sessions.lock().len(), SESSIONS_MAX);
        assert_eq!(sessions.token(&first, now), None);
    }

    #[test]
    fn a_cookie_is_found_among_others() {
        let mut headers = HeaderMap::new();
        headers.insert(COOKIE, HeaderValue::from_static("a=b; weft_session=cafe; c=d"));
        assert_eq!(session(&headers).as_deref(), Some("cafe"));
        headers.insert(COOKIE, HeaderValue::from_static("xweft_session=cafe"));
        assert_eq!(session(&headers), None);
    }
}
