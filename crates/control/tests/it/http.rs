//! Over HTTP, with the typed client and with bytes that no client sends.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::pin::pin;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use rustls::ServerConfig;
use weft_api::v1::{
    Client, ClientError, InstanceState, Kind, NewToken, Problem, ProjectChange, Role,
};
use weft_control::bounded::Bounded;
use weft_control::http;
use weft_control::provision::Failure;
use weft_control::service::Service;
use weft_control::tls::Secured;

use crate::support::{Cloud, DEADLINE, eventually, quota, shared};

/// Connections to it at once.
const CONNECTIONS: usize = 16;

/// How long one may say nothing where that is what is tried.
const IDLE: Duration = Duration::from_secs(2);

/// Serves a cloud; an administrator's client of it, and where it is.
pub(crate) fn serve(cloud: &Cloud) -> (Client, SocketAddr) {
    serve_for(cloud, weft_control::bounded::IDLE_LIMIT)
}

/// The same, with connections that may say nothing for so long.
fn serve_for(cloud: &Cloud, idle: Duration) -> (Client, SocketAddr) {
    cloud.token(("root", "root"), Role::Admin, None);
    let address = serve_with(&cloud.service, idle, None);
    (Client::new(&address.to_string(), "root").unwrap(), address)
}

/// The same without a token, perhaps over TLS; where it is.
pub(crate) fn serve_with(
    service: &Arc<Service>,
    idle: Duration,
    tls: Option<Arc<ServerConfig>>,
) -> SocketAddr {
    serve_up_to(CONNECTIONS, service, idle, tls)
}

/// The same with so many connections at once.
fn serve_up_to(
    connections: usize,
    service: &Arc<Service>,
    idle: Duration,
    tls: Option<Arc<ServerConfig>>,
) -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    let service = Arc::clone(service);
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            let listener = Bounded::new(listener, connections, idle);
            let router = http::router(&service);
            match tls {
                Some(tls) => axum::serve(Secured::new(listener, tls), router).await.unwrap(),
                None => {
                    let router = router.into_make_service_with_connect_info::<http::Peer>();
                    axum::serve(listener, router).await.unwrap();
                }
            }
        });
    });
    address
}

#[test]
fn the_client_does_all_that_the_interface_can() {
    let cloud = Cloud::new(&[2]);
    let (admin, address) = serve(&cloud);
    admin.ready().unwrap();
    let quota = quota(2, 4096, 1);
    admin.put_project("team", &ProjectChange { quota }).unwrap();
    let name = "team-token".to_owned();
    let asked = NewToken { name, project: Some("team".into()), role: Role::Member, valid_s: None };
    let made = admin.create_token(&asked).unwrap();
    let again = admin.create_token(&asked).unwrap_err().to_string();
    assert!(again.contains("there already"), "{again}");
    let team = Client::new(&format!("http://{address}/"), &made.secret).unwrap();
    let begun = team.create_instance(Some("once"), &shared(2, 1024)).unwrap();
    eventually("the instance to be ready", || {
        team.instance(&begun.id).unwrap().state == InstanceState::Ready
    });
    assert_eq!(team.create_instance(Some("once"), &shared(2, 1024)).unwrap().id, begun.id);
    assert_eq!(team.instance_cgpus(&begun.id).unwrap().len(), 2);
    assert_eq!(team.instances().unwrap().len(), 1);
    assert_eq!(admin.cgpus().unwrap().len(), 2);
    let operation = team.operation(&begun.operation).unwrap();
    let steps: Vec<&str> = operation.events.iter().map(|event| event.step.as_str()).collect();
    let order = ["address", "sign", "create", "port", "grant", "rules", "active", "confirm"];
    assert_eq!(steps, order);
    assert_eq!(team.project("team").unwrap().used.memory_mib, 2048);
    assert_eq!(team.console(&begun.id).unwrap(), "");
    // What fails of it names hosts.
    cloud.fake.fail("console", 2, Failure::passing("host-7 does not answer"));
    let [own, told] = [&team, &admin].map(|who| who.console(&begun.id).unwrap_err().to_string());
    assert!(own.contains("an administrator sees why") && !own.contains("host-7"), "{own}");
    assert!(told.contains("host-7"), "{told}");
    let Err(ClientError::Refused(Problem { kind, hint, .. })) =
        team.create_instance(None, &shared(1, 1))
    else {
        panic!("more than the quota")
    };
    assert!(kind == Kind::Quota && hint.is_some());
    team.delete_instance(&begun.id).unwrap();
    eventually("the instance to be gone", || admin.cgpus().unwrap().is_empty());
    assert!(admin.gpus().unwrap().iter().all(|gpu| gpu.held_mib == 0));
    assert!(!admin.set_gpu(1, false).unwrap().in_service);
    assert_eq!(admin.nodes().unwrap().len(), 1);
    cloud.store.put_endpoints(&[("c1".to_owned(), "/nowhere".to_owned())]).unwrap();
    let [endpoint] = &*admin.endpoints().unwrap() else { panic!("one endpoint") };
    assert!(endpoint.in_service && endpoint.unreachable.is_some(), "{endpoint:?}");
    assert!(!admin.set_endpoint("c1", false).unwrap().in_service);
    admin.delete_endpoint("c1").unwrap();
    assert!(admin.endpoints().unwrap().is_empty());
    assert_eq!(admin.tokens().unwrap().len(), 2);
    assert_eq!(admin.usage().unwrap().len(), 2);
    assert!(admin.audit().unwrap().len() >= 5);
    assert!(admin.metrics().unwrap().contains("weft_cloud_gpus 2"));
    admin.delete_token("team-token").unwrap();
    assert!(matches!(team.instances(), Err(ClientError::Refused(_))));
}

/// What a request of these bytes is answered.
pub(crate) fn raw(address: SocketAddr, request: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let status = text.split(' ').nth(1).unwrap().parse().unwrap();
    (status, text)
}

#[test]
fn whatever_is_wrong_is_a_problem_in_json() {
    let cloud = Cloud::new(&[1]);
    let (client, address) = serve(&cloud);
    let end = "Host: a\r\nConnection: close\r\nAuthorization: Bearer root\r\n";
    for (line, more, status, words) in [
        ("GET /nothing", "", 404, "urn:weft:not-found"),
        ("DELETE /v1/nodes", "", 405, "urn:weft:method"),
        ("GET /v1/instances?limit=x", "", 400, "urn:weft:malformed"),
        ("GET /v1/instances?page=2", "", 400, "page"),
        ("GET /v1/instances?limit=0", "", 422, "1 to 1000"),
        ("GET /v1/instances?after=x", "", 404, "go on"),
        ("GET /v1/instances/none", "", 404, "no instance `none`"),
        ("GET /v1/gpus/first", "", 404, "numbers"),
        ("GET /v1/nodes", "Weft-Api-Version: 9.9\r\n", 406, "1.0 to 1.8"),
        ("GET /v1/nodes", "Weft-Api-Version: new\r\n", 406, "urn:weft:version"),
        ("POST /v1/instances", "Content-Length: 3\r\n", 400, "not understood"),
        ("POST /v1/instances", "Content-Length: 200000\r\n", 413, "urn:weft:too-large"),
    ] {
        let length: usize =
            more.strip_prefix("Content-Length: ").map_or(0, |n| n.trim().parse().unwrap());
        let body = "{".repeat(length);
        let (found, text) = raw(address, &format!("{line} HTTP/1.1\r\n{end}{more}\r\n{body}"));
        assert_eq!(found, status, "{line} {more}: {text}");
        assert!(text.contains("application/problem+json"), "{line}: {text}");
        assert!(text.contains(words), "{line}: {text}");
    }
    let (status, text) = raw(address, "GET /v1/nodes HTTP/1.0\r\n\r\n");
    assert!(status == 401 && text.contains("www-authenticate: Bearer realm="), "{text}");
    let audit = client.audit().unwrap();
    assert_eq!(audit.last().unwrap().target, "from 127.0.0.1", "{audit:?}");
    let (status, text) = raw(address, &format!("GET /v1/nodes HTTP/1.1\r\n{end}\r\n"));
    assert!(status == 200 && text.contains("weft-api-version: 1.8"), "{text}");
    let (status, text) = raw(address, "GET /openapi.json HTTP/1.0\r\n\r\n");
    assert!(status == 200 && text.contains("\"openapi\": \"3.1.0\""), "{text}");
    assert!(text.contains("content-type: application/json"), "{text}");
}

/// A request with these headers and this body, of an administrator.
fn ask(address: SocketAddr, line: &str, headers: &str, body: &str) -> (u16, String) {
    let length = body.len();
    let text = format!(
        "{line} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nAuthorization: Bearer root\r\n\
         Content-Length: {length}\r\n{headers}\r\n{body}"
    );
    raw(address, &text)
}

#[test]
fn a_body_is_a_json_object_and_says_nothing_else_of_itself() {
    let cloud = Cloud::new(&[8]);
    let (_, address) = serve(&cloud);
    cloud.project("p");
    let vm = r#"{"cgpus":1,"project":"p"}"#;
    for (headers, body, status, words) in [
        ("", vm, 202, ""),
        ("Content-Type: application/json\r\n", vm, 202, ""),
        ("Content-Type: Application/JSON; charset=\"UTF-8\"\r\n", vm, 202, ""),
        // As `curl -d` does.
        ("Content-Type: application/x-www-form-urlencoded\r\n", vm, 202, ""),
        ("Content-Encoding: identity\r\n", vm, 202, ""),
        ("", r#"{"cgpus":1,"project":"p","weight":1}"#, 202, ""),
        ("Content-Type: text/plain\r\n", vm, 415, "text/plain"),
        ("Content-Type: application/json; charset=utf-16\r\n", vm, 415, "utf-16"),
        ("Content-Encoding: gzip\r\n", vm, 415, "urn:weft:media-type"),
        ("Content-Type: text/plain\r\nContent-Type: application/json\r\n", vm, 400, "twice"),
        ("Idempotency-Key: a\r\nIdempotency-Key: b\r\n", vm, 400, "idempotency-key is there"),
        ("Weft-Api-Version: 1.0\r\nWeft-Api-Version: 1.0\r\n", vm, 400, "twice"),
        ("Weft-Api-Version:\r\n", vm, 400, "is empty"),
        ("", r#"[null,"p",1,64,"shared",null,null,null,null]"#, 400, "it is no object"),
        ("", "7", 400, "it is no object"),
        ("", r#"{"cgpus":1,"cgpus":2,"project":"p"}"#, 400, "duplicate field"),
        ("", r#"{"cgpus":1,"project":"p","weight":5}"#, 422, "a weight of 5"),
    ] {
        let (found, text) = ask(address, "POST /v1/instances", headers, body);
        assert!(found == status && text.contains(words), "{headers}{body}: {text}");
    }
    assert_eq!(cloud.store.live().unwrap().len(), 6);
    let lists = r#"{"quota":[1,1,1,null,null]}"#;
    let (status, text) = ask(address, "PUT /v1/projects/q", "", lists);
    assert!(status == 400 && text.contains("`quota` is a list"), "{text}");
    let (status, text) = ask(address, "PUT /v1/nodes/n", "", r#"{"admin":""}"#);
    assert!(status == 422 && text.contains("/run/weft/admin.sock"), "{text}");
}

#[test]
fn refusals_name_what_was_asked_as_it_was_asked() {
    let cloud = Cloud::new(&[1]);
    let (admin, address) = serve(&cloud);
    cloud.project("p");
    let asked = NewToken {
        name: "rd".into(),
        project: Some("p".into()),
        role: Role::Reader,
        valid_s: None,
    };
    let reader = admin.create_token(&asked).unwrap().secret;
    let reader = Client::new(&address.to_string(), &reader).unwrap();
    let refused = reader.create_instance(None, &shared(1, 1)).unwrap_err().to_string();
    let words = "POST /v1/instances is for the role member, and token `rd` is a reader's";
    assert_eq!(refused, words);
    let asked = NewToken { name: "no".into(), project: None, role: Role::Reader, valid_s: None };
    let refused = admin.create_token(&asked).unwrap_err().to_string();
    assert_eq!(refused, "a reader is one of a project");
    for (query, status, words) in [
        ("limit=abc", 400, "limit=abc: a page has 1 to 1000 items"),
        ("limit=-1", 400, "limit=-1: a page has 1 to 1000 items"),
        ("page=2", 400, "is not understood: page: unknown field `page`"),
        ("after=", 404, "after=: the item behind which the list is to go on is not there"),
    ] {
        let (found, text) = ask(address, &format!("GET /v1/instances?{query}"), "", "");
        assert!(found == status && text.contains(words), "{query}: {text}");
    }
}

#[test]
fn bodies_that_do_not_come_keep_nobody_from_being_answered() {
    let cloud = Cloud::new(&[1]);
    serve(&cloud);
    let idle = weft_control::bounded::IDLE_LIMIT;
    let address = serve_up_to(400, &cloud.service, idle, None);
    let head = "POST /v1/instances HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n{";
    let begin = |_| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(head.as_bytes()).unwrap();
        stream
    };
    // More than are answered at once.
    let slow: Vec<TcpStream> = (0..300).map(begin).collect();
    let end = "Host: a\r\nConnection: close\r\nAuthorization: Bearer root\r\n";
    for _ in 0..20 {
        let (status, text) = raw(address, &format!("GET /v1/nodes HTTP/1.1\r\n{end}\r\n"));
        assert_eq!(status, 200, "{text}");
    }
    drop(slow);
}

/// Half of all places are one project's at most, and those who are refused take none.
#[test]
fn a_project_whose_requests_hang_leaves_places_for_others() {
    let cloud = Cloud::new(&[1]);
    for (secret, project) in [("ann", "a"), ("ben", "b")] {
        cloud.project(project);
        cloud.token((secret, secret), Role::Member, Some(project));
    }
    cloud.token(("root", "root"), Role::Admin, None);
    let service = Arc::new(Service::new(Arc::clone(&cloud.engine)).with_places(8));
    let address = serve_with(&service, weft_control::bounded::IDLE_LIMIT, None);
    let client = Client::new(&address.to_string(), "ann").unwrap();
    let vm = client.create_instance(None, &shared(1, 1)).unwrap().id;
    let get = move |secret: &str, path: &str| {
        let end = format!("Host: a\r\nConnection: close\r\nAuthorization: Bearer {secret}\r\n");
        raw(address, &format!("GET {path} HTTP/1.1\r\n{end}\r\n"))
    };
    cloud.fake.hang("console", true);
    let (tell, told) = mpsc::channel();
    for _ in 0..8 {
        let (tell, path) = (tell.clone(), format!("/v1/instances/{vm}/console"));
        thread::spawn(move || tell.send(get("ann", &path)));
    }
    let next = || told.recv_timeout(DEADLINE).unwrap();
    for _ in 0..4 {
        let (status, text) = next();
        assert!(status == 503 && text.contains("project a has 4 of the 8 requests"), "{text}");
    }
    for secret in ["ben", "root"] {
        let (status, text) = get(secret, "/v1/instances");
        assert_eq!(status, 200, "{secret}: {text}");
    }
    // Its own are still refused, and are not once the others have been answered.
    assert_eq!(get("ann", "/v1/instances").0, 503);
    cloud.fake.hang("console", false);
    for _ in 0..4 {
        let (status, text) = next();
        assert_eq!(status, 200, "{text}");
    }
    assert_eq!(get("ann", "/v1/instances").0, 200);
}

/// Whoever waits for a VM hears of it at once, is answered when its time is over, and takes no
/// place meanwhile.
#[test]
fn an_answer_waits_for_what_becomes_of_a_vm() {
    let cloud = Cloud::new(&[1]);
    cloud.project("a");
    cloud.token(("ann", "ann"), Role::Member, Some("a"));
    cloud.token(("root", "root"), Role::Admin, None);
    let service = Arc::new(Service::new(Arc::clone(&cloud.engine)).with_places(8));
    let address = serve_with(&service, weft_control::bounded::IDLE_LIMIT, None);
    // The first looks of all that wait may be more than a project has places.
    let client = Client::new(&address.to_string(), "ann").unwrap().patient(DEADLINE);
    cloud.fake.hang("port", true);
    let vm = client.create_instance(None, &shared(1, 1)).unwrap().id;
    let (short, begun) = (Duration::from_millis(200), Instant::now());
    assert_eq!(client.instance_within(&vm, short).unwrap().state, InstanceState::Building);
    assert!(begun.elapsed() >= short, "{:?}", begun.elapsed());
    let wait = |vm: &str| {
        let (client, vm) = (client.clone(), vm.to_owned());
        thread::spawn(move || {
            let mut looks = 0;
            let deadline = Instant::now() + DEADLINE;
            while Instant::now() < deadline {
                looks += 1;
                match client.instance_within(&vm, DEADLINE) {
                    Ok(one) if one.state == InstanceState::Building => {}
                    Ok(one) if one.state == InstanceState::Terminating => {}
                    Err(ClientError::Refused(problem)) if problem.kind == Kind::NotFound => break,
                    answered => return (answered.map(|one| one.state), looks),
                }
            }
            (Ok(InstanceState::Terminated), looks)
        })
    };
    let mut bell = pin!(service.news().of(&vm).notified());
    bell.as_mut().enable();
    let waiting: Vec<_> = (0..6).map(|_| wait(&vm)).collect();
    eventually("all to be waiting, and others answered", || {
        client.instances().is_ok_and(|instances| instances.len() == 1)
    });
    cloud.fake.hang("port", false);
    for waiting in waiting {
        let (state, looks) = waiting.join().unwrap();
        assert_eq!(state.unwrap(), InstanceState::Ready);
        assert!(looks <= 2, "it was asked {looks} times");
    }
    // They would have looked again without it, later.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(DEADLINE, bell).await }).unwrap();
    let begun = Instant::now();
    assert_eq!(client.instance_within(&vm, DEADLINE).unwrap().state, InstanceState::Ready);
    assert!(begun.elapsed() < DEADLINE / 2, "there is nothing to wait for");
    client.delete_instance(&vm).unwrap();
    assert_eq!(wait(&vm).join().unwrap().0.unwrap(), InstanceState::Terminated);
    for wrong in ["30001", "-1", "soon", ""] {
        let line = format!("GET /v1/instances/{vm}?wait_ms={wrong}");
        let (status, text) = ask(address, &line, "", "");
        assert!(status == 400 && text.contains("0 to 30000 ms"), "{text}");
    }
}

#[test]
fn connections_that_say_nothing_give_their_places_up() {
    let cloud = Cloud::new(&[1]);
    let (admin, address) = serve_for(&cloud, IDLE);
    let silent: Vec<TcpStream> =
        (0..CONNECTIONS).map(|_| TcpStream::connect(address).unwrap()).collect();
    admin.ready().unwrap();
    let mut closed = 0;
    for mut stream in silent {
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        closed += usize::from(stream.read(&mut [0]).unwrap() == 0);
    }
    assert_eq!(closed, CONNECTIONS);
}

#[test]
fn a_newcomer_gets_the_place_of_who_says_least() {
    let cloud = Cloud::new(&[1]);
    // Nobody's time runs out meanwhile.
    let (admin, address) = serve(&cloud);
    let connect = || TcpStream::connect(address).unwrap();
    let mut asks = connect();
    asks.write_all(b"GET /v1/nodes HTTP/1.0\r\n").unwrap();
    let mut silent: Vec<TcpStream> = (0..4 * CONNECTIONS).map(|_| connect()).collect();
    admin.ready().unwrap();
    // The first of the silent ones has gone, and who had begun to ask has not.
    silent[0].set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    assert_eq!(silent[0].read(&mut [0]).unwrap(), 0);
    asks.write_all(b"Authorization: Bearer root\r\n\r\n").unwrap();
    let mut text = String::new();
    asks.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.0 200"), "{text}");
}
