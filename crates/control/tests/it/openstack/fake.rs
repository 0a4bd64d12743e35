//! Keystone, Nova, Neutron, Glance and Placement over HTTP, with nothing behind them but lists.
//! They do what the real ones were seen to do, and fail when they are told to. Bodies in chunks are
//! refused: a server of Python's need not read them.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use weft_control::openstack::{Cloud, Credentials, Settings};

/// Ids as Keystone's.
pub(super) const OWN: &str = "00000000000000000000000000000001";
pub(super) const TENANT: &str = "00000000000000000000000000000002";
pub(super) const OTHER: &str = "00000000000000000000000000000003";

/// How long a service takes that does not answer in time.
const LONG: Duration = Duration::from_secs(18);

/// What a call of a service comes to, instead of what it should.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mishap {
    /// The connection is closed without an answer, and nothing was done.
    Down,
    /// The same, but it was done.
    AnswerLost,
    /// The connection is closed without an answer, and it is done later.
    DoneLate,
    /// Nothing is heard for long.
    Hangs,
    /// Nova: the project has no room for more servers.
    Quota,
    /// Nova: no host takes the server.
    NoHost,
    /// The token is refused, though it is good.
    Revoked,
}

#[derive(Debug, Default)]
pub(super) struct Inner {
    pub(super) servers: Vec<Value>,
    ports: Vec<Value>,
    /// Good tokens of the control plane's user, with their projects.
    tokens: BTreeMap<String, String>,
    /// Tokens of people: what Keystone says of them.
    pub(super) people: BTreeMap<String, Value>,
    providers: BTreeMap<String, Value>,
    pub(super) inventories: BTreeMap<String, Value>,
    mishaps: BTreeMap<&'static str, (Mishap, u32)>,
    /// How often what was asked.
    pub(super) asked: BTreeMap<String, u32>,
    number: u32,
}

/// A cloud.
#[derive(Debug, Clone)]
pub(super) struct FakeCloud {
    inner: Arc<Mutex<Inner>>,
    base: String,
}

struct Request {
    method: String,
    path: String,
    query: BTreeMap<String, String>,
    headers: BTreeMap<String, String>,
    /// Its body was of unknown length.
    is_chunked: bool,
    body: Value,
}

/// Servers of one page, whatever is asked for.
const MAX_LIMIT: usize = 400;

type Reply = (u16, Value, Option<String>);

impl FakeCloud {
    pub(super) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let cloud = Self { inner: Arc::default(), base };
        cloud.lock().providers.insert("host-uuid".into(), json!({"name": "compute1"}));
        let serving = cloud.clone();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let cloud = serving.clone();
                thread::spawn(move || cloud.serve(&stream));
            }
        });
        cloud
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap()
    }

    /// The next `times` calls of `what` (as `POST /servers`) end so.
    pub(super) fn fail(&self, what: &'static str, mishap: Mishap, times: u32) {
        self.lock().mishaps.insert(what, (mishap, times));
    }

    pub(super) fn asked(&self, what: &str) -> u32 {
        self.lock().asked.get(what).copied().unwrap_or(0)
    }

    /// The control plane's own tokens are good no more.
    pub(super) fn forget_tokens(&self) {
        self.lock().tokens.clear();
    }

    /// What a control plane's environment says.
    pub(super) fn variables(&self) -> Vec<(&'static str, String)> {
        vec![
            ("OS_AUTH_URL", format!("{}/identity", self.base)),
            ("OS_USERNAME", "weft".to_owned()),
            ("OS_PASSWORD", "right".to_owned()),
            ("OS_PROJECT_NAME", "service".to_owned()),
        ]
    }

    pub(super) fn settings(&self) -> Settings {
        let of = |name: &str| {
            let found = self.variables().into_iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| value)
        };
        // A machine that stalls for a moment is not a cloud that hangs: that lasts much longer.
        Settings { timeout: LONG / 3, ..Settings::read(of).unwrap() }
    }

    pub(super) fn client(&self) -> Cloud {
        Cloud::new(self.settings()).unwrap()
    }

    pub(super) fn client_with(&self, credentials: Credentials) -> Cloud {
        Cloud::new(Settings { credentials, ..self.settings() }).unwrap()
    }

    fn serve(&self, stream: &TcpStream) {
        let mut reader = BufReader::new(stream);
        while let Some(request) = read(&mut reader) {
            let what = format!("{} {}", request.method, short(&request.path));
            let mishap = self.mishap(&what);
            match mishap {
                Some(Mishap::Down) => return,
                Some(Mishap::Hangs) => return thread::sleep(LONG),
                Some(Mishap::DoneLate) => {
                    let cloud = self.clone();
                    thread::spawn(move || {
                        // Until whoever asked has asked again, and got an answer.
                        while cloud.asked(&what) < 2 || cloud.lock().servers.is_empty() {
                            thread::sleep(Duration::from_millis(1));
                        }
                        let mut inner = cloud.lock();
                        answer(&mut inner, &request, None, &cloud.base);
                    });
                    return;
                }
                Some(Mishap::AnswerLost | Mishap::Quota | Mishap::NoHost | Mishap::Revoked)
                | None => {}
            }
            let (status, body, token) = answer(&mut self.lock(), &request, mishap, &self.base);
            if mishap == Some(Mishap::AnswerLost) || write(stream, status, &body, token).is_none() {
                return;
            }
        }
    }

    fn mishap(&self, what: &str) -> Option<Mishap> {
        let mut inner = self.lock();
        *inner.asked.entry(what.to_owned()).or_default() += 1;
        let (mishap, times) = inner.mishaps.get_mut(what)?;
        *times = times.checked_sub(1)?;
        Some(*mishap)
    }
}

/// A path without its service, version and ids.
fn short(path: &str) -> String {
    let path = path.trim_start_matches("/identity/v3").trim_start_matches("/compute/v2.1");
    let path = path.trim_start_matches("/network/v2.0").trim_start_matches("/image/v2");
    let path = path.trim_start_matches("/placement");
    let mut parts = path.split('/').skip(1);
    let first = parts.next().unwrap_or_default();
    let is_id = parts.next().is_some_and(|part| part != "detail" && part != "tokens");
    if is_id { format!("/{first}/ID") } else { format!("/{first}") }
}

fn read(reader: &mut BufReader<&TcpStream>) -> Option<Request> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
    let mut words = line.split_ascii_whitespace();
    let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let pair = |part: &str| {
        let (name, value) = part.split_once('=').unwrap_or((part, ""));
        (name.to_owned(), value.to_owned())
    };
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim().split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let is_chunked = headers.contains_key("transfer-encoding");
    let bytes = if is_chunked { read_chunks(reader)? } else { read_sized(reader, &headers)? };
    let body = if bytes.is_empty() { Value::Null } else { serde_json::from_slice(&bytes).unwrap() };
    let mut all: BTreeMap<String, String> = BTreeMap::new();
    for (name, value) in query.split('&').filter(|part| !part.is_empty()).map(pair) {
        // One that comes again is a list, as for Neutron.
        all.entry(name).and_modify(|before| *before += &format!(",{value}")).or_insert(value);
    }
    let query = all;
    Some(Request { method, path: path.to_owned(), query, headers, is_chunked, body })
}

fn read_sized(
    reader: &mut BufReader<&TcpStream>,
    headers: &BTreeMap<String, String>,
) -> Option<Vec<u8>> {
    let length = headers.get("content-length").map_or(0, |text| text.parse().unwrap());
    let mut bytes = vec![0; length];
    reader.read_exact(&mut bytes).ok()?;
    Some(bytes)
}

/// A body in chunks, to its end: what is left of one is taken for the next request, and a
/// connection that is closed with bytes unread is reset while its client sends.
fn read_chunks(reader: &mut BufReader<&TcpStream>) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let begun = bytes.len();
        let length = usize::from_str_radix(line.trim(), 16).unwrap();
        bytes.resize(begun + length, 0);
        reader.read_exact(&mut bytes[begun..]).ok()?;
        reader.read_line(&mut line).ok()?;
        if length == 0 {
            return Some(bytes);
        }
    }
}

fn write(mut stream: &TcpStream, status: u16, body: &Value, token: Option<String>) -> Option<()> {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let token = token.map(|token| format!("X-Subject-Token: {token}\r\n")).unwrap_or_default();
    let head = format!("HTTP/1.1 {status} Said\r\nContent-Length: {}\r\n{token}\r\n", body.len());
    stream.write_all(format!("{head}{body}").as_bytes()).ok()
}

fn answer(inner: &mut Inner, request: &Request, mishap: Option<Mishap>, base: &str) -> Reply {
    let path = request.path.as_str();
    if request.is_chunked {
        return (411, json!({"error": {"message": "a length is required"}}), None);
    }
    if let Some(rest) = path.strip_prefix("/identity/v3") {
        return identity(inner, request, rest, base);
    }
    let token = request.headers.get("x-auth-token").cloned().unwrap_or_default();
    if mishap == Some(Mishap::Revoked) {
        inner.tokens.remove(&token);
    }
    let Some(project) = inner.tokens.get(&token).cloned() else {
        return (
            401,
            json!({"error": {"message": "The request you have made requires auth"}}),
            None,
        );
    };
    let (status, body) = if let Some(rest) = path.strip_prefix("/compute/v2.1") {
        compute(inner, request, rest, &project, mishap)
    } else if let Some(rest) = path.strip_prefix("/network/v2.0") {
        network(inner, request, rest, &project)
    } else if let Some(rest) = path.strip_prefix("/image/v2/images/") {
        image(rest)
    } else if let Some(rest) = path.strip_prefix("/placement") {
        placement(inner, request, rest)
    } else {
        missing()
    };
    (status, body, None)
}

/// By the id: `image2` to `image5` are a project's own, everybody's, another's, and not done.
/// `image6` is everybody's in another way, and `image7` is shared with whom its owner likes.
fn image(id: &str) -> (u16, Value) {
    let (visibility, owner, status) = match id {
        "image1" => ("private", OWN, "active"),
        "image2" => ("private", TENANT, "active"),
        "image3" => ("public", OTHER, "active"),
        "image4" => ("private", OTHER, "active"),
        "image5" => ("private", TENANT, "queued"),
        "image6" => ("community", OTHER, "active"),
        "image7" => ("shared", OTHER, "active"),
        _ => return missing(),
    };
    (200, json!({"id": id, "status": status, "visibility": visibility, "owner": owner}))
}

fn missing() -> (u16, Value) {
    (404, json!({"itemNotFound": {"message": "there is none"}}))
}

fn identity(inner: &mut Inner, request: &Request, path: &str, base: &str) -> Reply {
    assert_eq!(path, "/auth/tokens");
    if request.method == "GET" {
        if !inner.tokens.contains_key(&request.headers["x-auth-token"]) {
            return (401, json!({"error": {"message": "who are you"}}), None);
        }
        return match inner.people.get(&request.headers["x-subject-token"]) {
            Some(token) => (200, json!({"token": token}), None),
            None => (404, json!({"error": {"message": "no such token"}}), None),
        };
    }
    let auth = &request.body["auth"];
    let methods = &auth["identity"]["methods"][0];
    let is_known = if methods == "password" {
        auth["identity"]["password"]["user"]["password"] == "right"
    } else {
        auth["identity"]["application_credential"] == json!({"id": "app", "secret": "right"})
    };
    let project = match auth["scope"]["project"]["id"].as_str() {
        Some(id) if [OWN, TENANT, OTHER].contains(&id) => id,
        Some(_) => "",
        None => OWN,
    };
    if !is_known || project.is_empty() {
        return (401, json!({"error": {"message": "requires authentication"}}), None);
    }
    inner.number += 1;
    let token = format!("token-{}", inner.number);
    inner.tokens.insert(token.clone(), project.to_owned());
    let services = [
        ("compute", "/compute/v2.1"),
        ("network", "/network"),
        ("image", "/image"),
        ("placement", "/placement"),
    ];
    let entry = |(kind, path): (&str, &str)| {
        json!({"type": kind, "endpoints": [
            {"interface": "internal", "region_id": "r", "url": "http://nowhere.invalid"},
            {"interface": "public", "region_id": "r", "url": format!("{base}{path}")},
        ]})
    };
    let role = if project == TENANT { "member" } else { "admin" };
    let said = json!({"token": {
        "project": {"id": project}, "user": {"id": "weft-user"}, "roles": [{"name": role}],
        "issued_at": "2026-01-01T00:00:00.000000Z", "expires_at": "2026-01-01T01:00:00.000000Z",
        "catalog": services.map(entry),
    }});
    (201, said, Some(token))
}

fn compute(
    inner: &mut Inner,
    request: &Request,
    path: &str,
    project: &str,
    mishap: Option<Mishap>,
) -> (u16, Value) {
    let id = path.split('/').nth(2).unwrap_or_default();
    match (request.method.as_str(), path) {
        ("GET", "/servers/detail") => {
            let any: Vec<&str> = request.query["tags-any"].split(',').collect();
            let is_one = |tag: &Value| any.contains(&tag.as_str().unwrap());
            let has = |server: &&Value| server["tags"].as_array().unwrap().iter().any(is_one);
            let all = request.query.get("all_tenants").is_some_and(|all| all == "1");
            let seen = |server: &&Value| all && project == OWN || server["tenant_id"] == project;
            let limit: usize = request.query["limit"].parse().unwrap();
            let mut found: Vec<Value> =
                inner.servers.iter().filter(has).filter(seen).cloned().collect();
            if let Some(marker) = request.query.get("marker") {
                let at = found.iter().position(|server| server["id"] == *marker).unwrap();
                found.drain(..=at);
            }
            // Nova's pages may be shorter than was asked for, and its lists name no faults.
            let limit = limit.min(MAX_LIMIT);
            let links = (found.len() > limit).then(|| json!({"rel": "next", "href": "there"}));
            found.truncate(limit);
            found.iter_mut().for_each(|server| server["fault"] = Value::Null);
            let links: Vec<Value> = links.into_iter().collect();
            (200, json!({"servers": found, "servers_links": links}))
        }
        ("POST", "/servers") => {
            if mishap == Some(Mishap::Quota) {
                let words = "Quota exceeded for instances: Requested 1, but already used 10 of 10";
                return (403, json!({"forbidden": {"message": words, "code": 403}}));
            }
            add_server(inner, &request.body["server"], project, mishap == Some(Mishap::NoHost));
            (202, json!({"server": {"id": "see the list"}}))
        }
        ("GET", path) if path.starts_with("/servers/") => {
            match inner.servers.iter().find(|server| server["id"] == id) {
                Some(server) => (200, json!({"server": server})),
                None => missing(),
            }
        }
        ("DELETE", _) => {
            let before = inner.servers.len();
            inner.servers.retain(|server| server["id"] != id);
            inner.ports.retain(|port| port["device_id"] != id);
            if inner.servers.len() < before { (204, Value::Null) } else { missing() }
        }
        ("POST", _) => (200, json!({"output": format!("console of {id}")})),
        ("GET", "/flavors/detail") => {
            let public = ["m2", "m2.cgpu4"];
            let all = [("f1", "m1"), ("f2", "m1.cgpu2"), ("f3", "m2"), ("f4", "m2.cgpu2")];
            let shown = all.into_iter().chain([("f5", "m3"), ("f6", "m2.cgpu4")]);
            let shown: Vec<Value> = shown
                .map(|(id, name)| {
                    let is_public = public.contains(&name);
                    json!({"id": id, "name": name, "os-flavor-access:is_public": is_public})
                })
                .collect();
            (200, json!({"flavors": shown}))
        }
        _ => missing(),
    }
}

fn add_server(inner: &mut Inner, asked: &Value, project: &str, is_nowhere: bool) {
    inner.number += 1;
    let number = inner.number;
    let id = format!("server-{number}");
    let mut server = json!({
        "id": id, "tenant_id": project, "tags": asked["tags"], "metadata": asked["metadata"],
        "created": format!("2026-01-01T00:00:{:02}Z", number % 60), "status": "ACTIVE",
        "name": asked["name"], "flavorRef": asked["flavorRef"], "host": asked["host"],
        "user_data": asked["user_data"], "imageRef": asked["imageRef"],
    });
    let network = &asked["networks"][0]["uuid"];
    if is_nowhere {
        server["status"] = json!("ERROR");
        server["fault"] = json!({"code": 500, "message": "No valid host was found."});
    } else {
        // Another project says of a port of its own that it is this server's.
        inner.ports.push(json!({
            "id": format!("fedcba9876543210-{number}"), "network_id": network, "status": "ACTIVE",
            "mac_address": "fa:16:3e:ff:ff:ff", "fixed_ips": [{"ip_address": "10.0.0.66"}],
            "binding:host_id": "compute1", "device_id": id, "tenant_id": "another",
        }));
        inner.ports.push(json!({
            "id": format!("0123456789abcdef-{number}"), "network_id": network, "status": "ACTIVE",
            "mac_address": "fa:16:3e:00:00:01", "fixed_ips": [{"ip_address": "10.0.0.5"}],
            "binding:host_id": "compute1", "device_id": id, "tenant_id": project,
        }));
    }
    inner.servers.push(server);
}

fn network(inner: &Inner, request: &Request, path: &str, project: &str) -> (u16, Value) {
    match path {
        "/ports" => {
            let servers: Vec<&str> = request.query["device_id"].split(',').collect();
            let of = |port: &&Value| servers.contains(&port["device_id"].as_str().unwrap());
            (200, json!({"ports": inner.ports.iter().filter(of).collect::<Vec<_>>()}))
        }
        "/networks" => {
            // `net4` is shared with one project, and `net5` with the control plane's own.
            let id = request.query["id"].as_str();
            let (owner, is_shared) = match id {
                "net1" => (OWN, true),
                "net2" => (TENANT, false),
                "net3" => (OTHER, false),
                "net4" => ("another", project == TENANT),
                "net5" => ("another", project == OWN),
                _ => return (200, json!({"networks": []})),
            };
            let known = json!({"id": id, "tenant_id": owner, "shared": is_shared});
            (200, json!({"networks": [known]}))
        }
        _ => missing(),
    }
}

fn placement(inner: &mut Inner, request: &Request, path: &str) -> (u16, Value) {
    let id = path.split('/').nth(2).unwrap_or_default();
    match (request.method.as_str(), path) {
        ("PUT", "/resource_classes/CUSTOM_WEFT_CGPU") => (204, Value::Null),
        ("GET", "/resource_providers") => {
            let named = inner.providers.iter().filter(|(_, p)| p["name"] == request.query["name"]);
            let found: Vec<Value> = named.map(|(uuid, _)| json!({"uuid": uuid})).collect();
            (200, json!({"resource_providers": found}))
        }
        ("POST", "/resource_providers") => {
            let taken: BTreeSet<String> =
                inner.providers.values().map(|known| known["name"].to_string()).collect();
            if taken.contains(&request.body["name"].to_string()) {
                return (409, json!({"errors": [{"detail": "it is there"}]}));
            }
            assert_eq!(request.body["parent_provider_uuid"], "host-uuid");
            inner.providers.insert("gpus-uuid".into(), request.body.clone());
            (201, Value::Null)
        }
        ("GET", _) => {
            let empty = json!({"resource_provider_generation": 0, "inventories": {}});
            (200, inner.inventories.get(id).cloned().unwrap_or(empty))
        }
        ("PUT", _) => {
            let now = inner.inventories.get(id);
            let generation =
                now.map_or(0, |now| now["resource_provider_generation"].as_u64().unwrap());
            if request.body["resource_provider_generation"] != generation {
                return (409, json!({"errors": [{"detail": "another generation"}]}));
            }
            let mut next = request.body.clone();
            next["resource_provider_generation"] = json!(generation + 1);
            inner.inventories.insert(id.to_owned(), next);
            (200, Value::Null)
        }
        _ => missing(),
    }
}
