//! What is one version apart works together, and what is further apart is refused in words. The
//! version before is played by what it said, recorded at sockets of real programs of that version
//! (`crates/api/fixtures`).

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use weft_api::endpoint::{Client as EndpointClient, EndpointError};
use weft_api::v1::{
    Client, ClientError, InstanceState, Kind, NewNode, ProjectChange, VERSION, VERSION_MIN,
};
use weft_api::{endpoint, node};
use weft_control::allocate::Allocator;
use weft_control::crash::Crash;
use weft_control::engine::Engine;
use weft_control::execute::World;
use weft_control::hosts::Hosts;
use weft_control::nodes::Sockets;
use weft_control::service::Service;
use weft_control::sweep;

use crate::http::{raw, serve, serve_with};
use crate::support::{Cloud, eventually, quota, shared};

const NODE: &str = include_str!("../../../api/fixtures/node-1.jsonl");
const ENDPOINT: &str = include_str!("../../../api/fixtures/endpoint-1.jsonl");

/// A daemon or an endpoint of the version before, at a socket.
struct Before {
    /// What it was asked, with what was answered.
    recorded: Vec<(Value, Value)>,
    /// The field that says what is asked.
    verb: &'static str,
    /// What it says of the versions that it speaks, if it can.
    says: Mutex<Option<Value>>,
    /// vGPUs or instances that are there.
    there: Mutex<BTreeSet<String>>,
}

impl Before {
    fn start(socket: &Path, recorded: &str, verb: &'static str) -> Arc<Self> {
        let lines: Vec<&str> = recorded.lines().collect();
        let said = |line: &str, mark| serde_json::from_str(line.strip_prefix(mark).unwrap());
        let pairs = lines
            .chunks(2)
            .map(|pair| (said(pair[0], "> ").unwrap(), said(pair[1], "< ").unwrap()));
        let (says, there) = (Mutex::default(), Mutex::default());
        let before = Arc::new(Self { recorded: pairs.collect(), verb, says, there });
        let (listener, serving) = (UnixListener::bind(socket).unwrap(), Arc::clone(&before));
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let serving = Arc::clone(&serving);
                thread::spawn(move || serving.converse(&stream));
            }
        });
        before
    }

    fn converse(&self, mut stream: &UnixStream) {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            let answer = self.answer(&serde_json::from_str(&line).unwrap());
            // Whoever asked may have gone.
            let _ = writeln!(stream, "{answer}");
        }
    }

    /// As it was answered; what was never asked, or with other fields, is not understood.
    fn answer(&self, request: &Value) -> Value {
        let asked = &request[self.verb];
        let fields = |value: &Value| {
            value.as_object().unwrap().keys().cloned().collect::<BTreeSet<String>>()
        };
        let found = self.recorded.iter().rev().find(|(before, _)| before[self.verb] == *asked);
        let Some((before, answer)) = found else {
            return self.refusal(&format!("unknown variant `{asked}`"));
        };
        if fields(request) != fields(before) || request.get("version") != before.get("version") {
            return self.refusal("unknown field");
        }
        let mut answer = answer.clone();
        let mut there = self.there.lock().unwrap();
        let name = request.get("name").or_else(|| request.get("instance")).and_then(Value::as_str);
        let name = name.unwrap_or_default().to_owned();
        match asked.as_str().unwrap() {
            "create" => {
                answer["body"]["name"] = json!(name);
                there.insert(name);
            }
            "put" => drop(there.insert(name)),
            "remove" | "withdraw" => drop(there.remove(&name)),
            "list" => {
                let report = answer["body"][0].clone();
                let named = |name: &String| {
                    let mut report = report.clone();
                    report["name"] = json!(name);
                    report
                };
                answer["body"] = there.iter().map(named).collect();
            }
            "instances" => answer["instances"] = there.iter().cloned().collect(),
            "node" => {
                if let Some(says) = &*self.says.lock().unwrap() {
                    answer["body"]["admin"] = says.clone();
                }
            }
            "grant" | "holds" | "metrics" => {}
            other => panic!("{other} is in the recording"),
        }
        answer
    }

    fn refusal(&self, why: &str) -> Value {
        if self.verb == "op" {
            let message = format!("the request is not understood: {why}");
            return json!({"answer": "error", "body": {"message": message}});
        }
        json!({"answer": "refused", "is_permanent": true, "words": format!("not understood: {why}")})
    }

    fn there(&self) -> Vec<String> {
        self.there.lock().unwrap().iter().cloned().collect()
    }
}

/// A control plane with a node and a compute host of the version before.
struct Apart {
    node: Arc<Before>,
    host: Arc<Before>,
    engine: Arc<Engine>,
    admin: Client,
    folder: TempDir,
    _cloud: Cloud,
}

impl Apart {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let node = Before::start(&at("node"), NODE, "op");
        let host = Before::start(&at("host"), ENDPOINT, "do");
        let cloud = Cloud::new(&[]);
        let policy = weft_sched::placement::by_name("first_fit").unwrap();
        let world = World {
            store: Arc::clone(&cloud.store),
            allocator: Arc::new(Allocator::new(Arc::clone(&cloud.store), policy)),
            provisioner: Arc::clone(&cloud.fake) as _,
            endpoint: Arc::new(Hosts::new([("fake".to_owned(), at("host"))])),
            nodes: Arc::new(Sockets),
            crash: Crash::default(),
        };
        let engine = Engine::start(world, 2).unwrap();
        // It makes the administrator's token too.
        serve(&cloud);
        let service = Arc::new(Service::new(Arc::clone(&engine)));
        let address = serve_with(&service, weft_control::bounded::IDLE_LIMIT, None);
        let admin = Client::new(&address.to_string(), "root").unwrap();
        let quota = quota(8, 8192, 0);
        admin.put_project("team", &ProjectChange { quota }).unwrap();
        Self { node, host, engine, admin, folder, _cloud: cloud }
    }

    fn put_node(&self) -> Result<(), ClientError> {
        let socket: PathBuf = self.folder.path().join("node");
        let (admin, gateway) = (socket.display().to_string(), None);
        self.admin.put_node("n", &NewNode { admin, gateway, host: None }).map(drop)
    }

    fn begin(&self) -> Result<String, ClientError> {
        let mut new = shared(2, 512);
        new.project = Some("team".to_owned());
        self.admin.create_instance(None, &new).map(|made| made.id)
    }

    fn wait(&self, id: &str, state: InstanceState) {
        eventually(&format!("{id} to be {state:?}"), || {
            let found = self.admin.instance(id).unwrap();
            assert_ne!(found.state, InstanceState::Failed, "{:?}", found.failure);
            found.state == state
        });
    }
}

#[test]
fn nodes_and_endpoints_of_the_version_before_do_all_that_is_asked() {
    let apart = Apart::new();
    apart.put_node().unwrap();
    let id = apart.begin().unwrap();
    apart.wait(&id, InstanceState::Ready);
    assert_eq!(apart.node.there().len(), 2);
    assert_eq!(apart.host.there(), std::slice::from_ref(&id));
    // A sweep finds everything as it should be.
    assert_eq!(sweep::sweep(&apart.engine).unwrap(), sweep::Swept::default());
    apart.admin.delete_instance(&id).unwrap();
    apart.wait(&id, InstanceState::Terminated);
    assert!(apart.node.there().is_empty() && apart.host.there().is_empty());
}

#[test]
fn a_node_that_is_further_away_is_refused_and_gets_nothing_new() {
    let apart = Apart::new();
    let says = |newest: u32| {
        let versions = json!({"oldest": newest - 1, "newest": newest});
        *apart.node.says.lock().unwrap() = Some(versions);
    };
    says(node::VERSION + 2);
    let words = apart.put_node().unwrap_err().to_string();
    assert!(words.contains("versions 3 to 4 of its admin interface"), "{words}");
    assert!(words.contains("versions 1 to 2: upgrade this side first"), "{words}");
    says(node::VERSION + 1);
    apart.put_node().unwrap();
    // It is upgraded twice while this control plane stays.
    says(node::VERSION + 2);
    sweep::sweep(&apart.engine).unwrap();
    let why = apart.admin.nodes().unwrap()[0].unreachable.clone().unwrap();
    assert!(why.contains("upgrade this side first"), "{why}");
    let Err(ClientError::Refused(problem)) = apart.begin() else { panic!("it got a cGPU") };
    assert_eq!(problem.kind, Kind::NoCapacity, "{problem}");
    // And now the control plane has followed.
    says(node::VERSION + 1);
    sweep::sweep(&apart.engine).unwrap();
    apart.wait(&apart.begin().unwrap(), InstanceState::Ready);
}

#[test]
fn an_endpoint_is_spoken_to_in_the_newest_common_version() {
    let folder = tempfile::tempdir().unwrap();
    let before = folder.path().join("before");
    Before::start(&before, ENDPOINT, "do");
    assert_eq!(EndpointClient::connect(&before).unwrap().version(), endpoint::VERSION - 1);
    for (newest, spoken) in [(endpoint::VERSION + 1, true), (endpoint::VERSION + 2, false)] {
        let path = folder.path().join(newest.to_string());
        let listener = UnixListener::bind(&path).unwrap();
        let answering = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut line = String::new();
            BufReader::new(&stream).read_line(&mut line).unwrap();
            let (oldest, answer) = (newest - 1, "versions");
            let answer = json!({"answer": answer, "oldest": oldest, "newest": newest});
            writeln!(stream, "{answer}").unwrap();
            line
        });
        match EndpointClient::connect(&path) {
            Ok(client) => assert!(spoken && client.version() == endpoint::VERSION),
            Err(error @ EndpointError::Version { .. }) => {
                let words = error.to_string();
                assert!(!spoken && words.contains("versions 3 to 4"), "{words}");
                assert!(words.contains("versions 1 to 2: upgrade this side first"), "{words}");
            }
            Err(error) => panic!("{error}"),
        }
        // The same words as ever, which an endpoint of any version understands.
        assert_eq!(answering.join().unwrap(), "{\"version\":1,\"do\":\"versions\"}\n");
    }
}

/// What a control plane before 1.7 says of a VM.
const INSTANCE: &str = r#"{"id":"i","name":"i","project":"p","state":"ready","cgpus":1,
    "memory_mib":1,"mode":"shared","locality":"remote","weight":1,"operation":"op-i",
    "created_ms":1}"#;

/// A control plane that speaks microversions up to this one, lists no instances, shows one, and
/// knows nothing that stands behind a question mark.
fn plane(newest: (u32, u32)) -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let asked: Arc<Mutex<Vec<String>>> = Arc::default();
    let kept = Arc::clone(&asked);
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let head: Vec<String> = BufReader::new(&stream)
                .lines()
                .map_while(Result::ok)
                .take_while(|line| !line.is_empty())
                .collect();
            let version = head.iter().find_map(|line| line.strip_prefix("weft-api-version: "));
            let version = version.unwrap().to_owned();
            let (major, minor) = version.split_once('.').unwrap();
            let asked: (u32, u32) = (major.parse().unwrap(), minor.parse().unwrap());
            let is_spoken = asked <= newest;
            kept.lock().unwrap().push(version.clone());
            let (status, body) = if is_spoken && head[0].contains('?') {
                let known = head[0].contains("limit=");
                let problem = r#"{"type":"urn:weft:malformed","title":"malformed","status":400,"detail":"unknown field"}"#;
                if known { (200, r#"{"items":[],"next":null}"#) } else { (400, problem) }
            } else if is_spoken && head[0].contains("/instances/") {
                (200, INSTANCE)
            } else if is_spoken {
                (200, r#"{"items":[],"next":null}"#)
            } else {
                // As version 1.2 was recorded, without its numbers.
                (406, r#"{"type":"urn:weft:version","title":"version","status":406,"detail":"no"}"#)
            };
            let (major, minor) = newest;
            let length = body.len();
            let answer = format!(
                "HTTP/1.1 {status} Said\r\nWeft-Api-Version: {major}.{minor}\r\n\
                 Connection: close\r\nContent-Length: {length}\r\n\r\n{body}"
            );
            stream.write_all(answer.as_bytes()).unwrap();
        }
    });
    (address, asked)
}

#[test]
fn a_client_asks_an_older_control_plane_for_what_that_speaks() {
    let before = (VERSION.0, VERSION.1 - 1);
    let (address, asked) = plane(before);
    let client = Client::new(&address, "x").unwrap();
    for _ in 0..2 {
        assert!(client.instances().unwrap().is_empty());
    }
    let [own, older] = [VERSION, before].map(|(major, minor)| format!("{major}.{minor}"));
    // It is asked for what it does not speak once.
    assert_eq!(*asked.lock().unwrap(), [own, older.clone(), older]);
    // What it cannot wait for is asked again.
    let patient = Client::new(&plane((1, 6)).0, "x").unwrap();
    for _ in 0..2 {
        let found = patient.instance_within("i", Duration::from_millis(1)).unwrap();
        assert_eq!(found.state, InstanceState::Ready);
    }
    // There is nothing to be asked of another major version.
    let (address, asked) = plane((VERSION.0 - 1, 9));
    let error = Client::new(&address, "x").unwrap().instances().unwrap_err();
    assert!(matches!(&error, ClientError::Refused(problem) if problem.kind == Kind::Version));
    assert_eq!(asked.lock().unwrap().len(), 1);
}

#[test]
fn clients_of_all_older_microversions_are_answered() {
    let cloud = Cloud::new(&[1]);
    let (_, address) = serve(&cloud);
    let (major, newest) = VERSION;
    for minor in VERSION_MIN.1..=newest + 1 {
        let request = format!(
            "GET /v1/nodes HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\
             Authorization: Bearer root\r\nWeft-Api-Version: {major}.{minor}\r\n\r\n"
        );
        let (status, text) = raw(address, &request);
        assert_eq!(status, if minor > newest { 406 } else { 200 }, "{text}");
        assert_eq!(text.contains(&format!("1.0 to 1.{newest} are")), minor > newest, "{text}");
    }
}
