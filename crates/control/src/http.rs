//! HTTP: one route for each call of the table, and the page's.

use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::connect_info::Connected;
use axum::extract::{ConnectInfo, Query, RawPathParams, Request};
use axum::http::header::{
    AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, HeaderName, RETRY_AFTER, WWW_AUTHENTICATE,
};
use axum::http::{Extensions, HeaderMap, HeaderValue, StatusCode};
use axum::response::Response;
use axum::routing::{MethodFilter, MethodRouter, on};
use axum::serve::IncomingStream;
use serde::Deserialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use weft_api::v1::{
    Call, IDEMPOTENCY_HEADER, Kind, Method, PAGE_MAX, Problem, VERSION, VERSION_HEADER,
    VERSION_MIN, WAIT_MS_MAX,
};

use crate::bounded::Bounded;
use crate::places::busy;
use crate::service::{Ask, Reply, Service};
use crate::tls::Secured;
use crate::web;

/// The longest body of a request.
const BODY_BYTES_MAX: usize = 128 << 10;

/// A request is there within this time, or gives its place to another.
const HEARD_LIMIT: Duration = Duration::from_secs(10);

/// A place is waited for so long: who will be refused because their project has its part has one
/// until it is known who they are.
const PLACE_LIMIT: Duration = Duration::from_secs(1);

/// How often to look again for whoever waits; and of what another replica does, of which nobody
/// hears here.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
const LOOK_AT_OTHERS: Duration = Duration::from_millis(500);

const VERSION_NAME: HeaderName = HeaderName::from_static(VERSION_HEADER);

/// What may stand behind the question mark.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    limit: Option<String>,
    after: Option<String>,
    project: Option<String>,
    wait_ms: Option<String>,
}

/// Where a connection comes from.
#[derive(Debug, Clone, Copy)]
pub struct Peer(IpAddr);

impl Connected<IncomingStream<'_, Bounded>> for Peer {
    fn connect_info(stream: IncomingStream<'_, Bounded>) -> Self {
        Self(stream.remote_addr().ip())
    }
}

impl Connected<IncomingStream<'_, Secured>> for Peer {
    fn connect_info(stream: IncomingStream<'_, Secured>) -> Self {
        Self(stream.remote_addr().ip())
    }
}

/// Where a request comes from, if the listener says so.
pub(crate) fn from(extensions: &Extensions) -> Option<IpAddr> {
    extensions.get::<ConnectInfo<Peer>>().map(|ConnectInfo(Peer(address))| *address)
}

/// The routes.
pub fn router(service: &Arc<Service>) -> Router {
    let room = Arc::new(Semaphore::new(service.at_once()));
    let mut router = Router::new();
    for call in Call::ALL {
        router = router.route(call.path(), route(*call, service, &room));
    }
    let unknown = |request: Request| async move {
        let words = format!("there is no path {}", request.uri().path());
        refused(&Problem::new(Kind::NotFound, words).hint("the paths are in /openapi.json"))
    };
    let other_method = |request: Request| async move {
        let words = format!("{} does not know {}", request.uri().path(), request.method());
        refused(&Problem::new(Kind::Method, words).hint("the methods are in /openapi.json"))
    };
    router = router.merge(web::router(service, &room));
    router.fallback(unknown).method_not_allowed_fallback(other_method)
}

fn route(call: Call, service: &Arc<Service>, room: &Arc<Semaphore>) -> MethodRouter {
    let filter = match call.method() {
        Method::Get => MethodFilter::GET,
        Method::Post => MethodFilter::POST,
        Method::Put => MethodFilter::PUT,
        Method::Patch => MethodFilter::PATCH,
        Method::Delete => MethodFilter::DELETE,
    };
    let (service, room) = (Arc::clone(service), Arc::clone(room));
    on(filter, move |path: RawPathParams, request: Request| {
        let (service, room) = (Arc::clone(&service), Arc::clone(&room));
        async move {
            let answered = answer(call, &service, room, &path, request).await;
            answered.unwrap_or_else(|problem| refused(&problem))
        }
    })
}

async fn answer(
    call: Call,
    service: &Arc<Service>,
    room: Arc<Semaphore>,
    path: &RawPathParams,
    request: Request,
) -> Result<Response, Problem> {
    let late = |_| {
        let seconds = HEARD_LIMIT.as_secs();
        Problem::new(Kind::Malformed, format!("the request was not there within {seconds} s"))
    };
    let heard = tokio::time::timeout(HEARD_LIMIT, understood(call, path, request)).await;
    let ask = Arc::new(heard.map_err(late)??);
    let until = Instant::now() + Duration::from_millis(ask.wait_ms);
    let mut last = None;
    loop {
        // Listening before looking: what happens in between is heard.
        let mut news = pin!(service.news().of(&ask.target).notified());
        news.as_mut().enable();
        let reply = match reply(call, service, Arc::clone(&room), Arc::clone(&ask)).await {
            // Where all who wait look at once there are no places for some.
            Err(problem) if problem.kind == Kind::Busy => last.take().ok_or(problem)?,
            reply => reply?,
        };
        let left = until.saturating_duration_since(Instant::now());
        if !matches!(reply, Reply::Passing(_)) || left.is_zero() {
            return Ok(shown(call.status(), reply));
        }
        last = Some(reply);
        // Whoever waits has no place. That it rang or that it is time to look is all one.
        let pause = if service.leads() { LOOK_AGAIN } else { LOOK_AT_OTHERS };
        let _ = tokio::time::timeout(left.min(pause), news).await;
    }
}

async fn reply(
    call: Call,
    service: &Arc<Service>,
    room: Arc<Semaphore>,
    ask: Arc<Ask>,
) -> Result<Reply, Problem> {
    // Who is still speaking has no place: anybody could take them all. Connections are bounded.
    let place = place(room).await.ok_or_else(|| busy(service.at_once()))?;
    let service = Arc::clone(service);
    // Whoever hangs up is answered all the same, and the place is taken until then.
    let answering = move || {
        let _place = place;
        service.call(call, &ask)
    };
    let answered = tokio::task::spawn_blocking(answering).await;
    answered.map_err(|_| Problem::new(Kind::Internal, "the request's thread ended"))?
}

/// A place in which somebody is answered, if one is free soon.
pub(crate) async fn place(room: Arc<Semaphore>) -> Option<OwnedSemaphorePermit> {
    tokio::time::timeout(PLACE_LIMIT, room.acquire_owned()).await.ok()?.ok()
}

async fn understood(call: Call, path: &RawPathParams, request: Request) -> Result<Ask, Problem> {
    let (parts, body) = request.into_parts();
    spoken(&parts.headers)?;
    let malformed = |words: String| Problem::new(Kind::Malformed, words);
    let Query(Asked { limit, after, project, wait_ms }) = Query::<Asked>::try_from_uri(&parts.uri)
        .map_err(|error| {
            let why = error.body_text();
            let why = why.rsplit("query string: ").next().unwrap_or_default();
            malformed(format!("what is behind the question mark is not understood: {why}"))
        })?;
    let number = |text: String| {
        let wrong = |_| malformed(format!("limit={text}: a page has 1 to {PAGE_MAX} items"));
        text.parse::<u32>().map_err(wrong)
    };
    let limit = limit.map(number).transpose()?;
    let wait = |text: String| {
        let number = text.parse::<u64>().ok().filter(|wait_ms| *wait_ms <= WAIT_MS_MAX);
        let words = || format!("wait_ms={text}: an answer waits for 0 to {WAIT_MS_MAX} ms");
        number.ok_or_else(|| malformed(words()))
    };
    let wait_ms = wait_ms.map(wait).transpose()?.unwrap_or_default();
    let header = |name: &HeaderName| one(&parts.headers, name);
    let is_bearer = |(scheme, _): &(&str, &str)| scheme.eq_ignore_ascii_case("bearer");
    let credentials = header(&AUTHORIZATION)?.and_then(|value| value.split_once(' '));
    let bearer = credentials.filter(is_bearer).map(|(_, token)| token.trim_start());
    // As OpenStack's clients show theirs.
    let token = bearer.or(header(&HeaderName::from_static("x-auth-token"))?);
    let key = header(&HeaderName::from_static(IDEMPOTENCY_HEADER))?;
    if !call.body().is_empty() {
        readable(&parts.headers)?;
    }
    let large =
        |_| Problem::new(Kind::TooLarge, format!("a body has up to {BODY_BYTES_MAX} bytes"));
    Ok(Ask {
        target: path.iter().next().map(|(_, value)| value.to_owned()).unwrap_or_default(),
        limit,
        after,
        project,
        wait_ms,
        token: token.map(str::to_owned),
        from: from(&parts.extensions),
        key: key.map(str::to_owned),
        body: to_bytes(body, BODY_BYTES_MAX).await.map_err(large)?.to_vec(),
    })
}

/// What a header says that is there once: of two, another one might be read behind a proxy.
fn one<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, Problem> {
    let malformed = |words: String| Problem::new(Kind::Malformed, words);
    let mut all = headers.get_all(name).iter();
    let Some(value) = all.next() else { return Ok(None) };
    if all.next().is_some() {
        return Err(malformed(format!("the header {name} is there twice")));
    }
    let text = value.to_str();
    text.map(Some).map_err(|_| malformed(format!("the header {name} is not plain text")))
}

/// Whether a body is JSON as it is read here. What says nothing is taken for it, and what says that
/// it is a form too: that is what `curl -d` says of everything.
fn readable(headers: &HeaderMap) -> Result<(), Problem> {
    let unread = |words: String| {
        let hint = "send JSON in UTF-8, as it is: `Content-Type: application/json`";
        Problem::new(Kind::MediaType, words).hint(hint)
    };
    if let Some(coding) = one(headers, &CONTENT_ENCODING)?
        && !coding.trim().eq_ignore_ascii_case("identity")
    {
        return Err(unread(format!("a body in `{coding}` is not read here")));
    }
    let Some(kind) = one(headers, &CONTENT_TYPE)? else { return Ok(()) };
    let mut parts = kind.split(';').map(|part| part.trim().to_ascii_lowercase());
    let name = parts.next().unwrap_or_default();
    let is_json = ["application/json", "application/x-www-form-urlencoded"].contains(&&*name);
    let is_utf8 = |part: String| match part.split_once('=') {
        Some(("charset", set)) => ["utf-8", "us-ascii"].contains(&set.trim_matches('"')),
        Some(_) | None => true,
    };
    if is_json && parts.all(is_utf8) {
        return Ok(());
    }
    Err(unread(format!("a body of `{kind}` is not read here")))
}

/// Whether the version that is asked for is spoken here.
fn spoken(headers: &HeaderMap) -> Result<(), Problem> {
    let Some(asked) = one(headers, &VERSION_NAME)? else { return Ok(()) };
    if asked.trim().is_empty() {
        let words = format!("the header {VERSION_HEADER} is empty");
        return Err(Problem::new(Kind::Malformed, words).hint("leave it out, or say a version"));
    }
    let number = |text: &str| text.parse::<u32>().ok();
    let pair = |text: &str| text.split_once('.').and_then(|(a, b)| Some((number(a)?, number(b)?)));
    let found = pair(asked);
    if found.is_some_and(|found| (VERSION_MIN..=VERSION).contains(&found)) {
        return Ok(());
    }
    let ((low, low_minor), (high, high_minor)) = (VERSION_MIN, VERSION);
    let words = format!("{VERSION_HEADER}: {asked:?} is not spoken here");
    let hint = format!("{low}.{low_minor} to {high}.{high_minor} are");
    Err(Problem::new(Kind::Version, words).hint(hint))
}

fn shown(status: u16, reply: Reply) -> Response {
    let (kind, body) = match reply {
        Reply::Nothing => ("text/plain; charset=utf-8", Body::empty()),
        Reply::Json(bytes) | Reply::Passing(bytes) => ("application/json", bytes.into()),
        Reply::Text(text) => ("text/plain; charset=utf-8", text.into()),
    };
    response(status, kind, body)
}

fn refused(problem: &Problem) -> Response {
    // A problem of strings and a number can be written.
    let bytes = serde_json::to_vec(problem).unwrap_or_default();
    let mut response = response(problem.status, "application/problem+json", bytes.into());
    if problem.kind == Kind::Unauthenticated {
        let challenge = HeaderValue::from_static("Bearer realm=\"weft\"");
        response.headers_mut().insert(WWW_AUTHENTICATE, challenge);
    }
    if let Some(seconds) = problem.retry_after_s {
        response.headers_mut().insert(RETRY_AFTER, seconds.into());
    }
    response
}

fn response(status: u16, kind: &'static str, body: Body) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or_default();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    let (major, minor) = VERSION;
    if let Ok(version) = HeaderValue::from_str(&format!("{major}.{minor}")) {
        headers.insert(VERSION_NAME, version);
    }
    response
}
