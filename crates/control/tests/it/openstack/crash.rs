//! `kill -9` of the real program at every step, with OpenStack outside.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;

use weft_api::endpoint::{Answer, Asked, GrantRow, Request, VERSIONS};
use weft_api::v1::{InstanceState, NewNode, ProjectChange};
use weft_control::plan::Step;

use super::fake::{FakeCloud, TENANT};
use crate::support::{Program, eventually, quota, shared};

/// The program's options, the compute host's endpoint among them.
fn flags(host: &SimulatedHost) -> Vec<String> {
    let words = "--provisioner openstack --image image1 --flavor m1 --network net1 --host-endpoint";
    let mut flags: Vec<String> = words.split(' ').map(str::to_owned).collect();
    flags.push(format!("compute1={}", host.socket.display()));
    flags
}

/// The endpoint of a compute host, with nothing behind its socket but rows.
struct SimulatedHost {
    socket: PathBuf,
    rows: Arc<Mutex<BTreeMap<String, Vec<GrantRow>>>>,
}

impl SimulatedHost {
    fn start(folder: &Path) -> Self {
        let socket = folder.join("host.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let rows: Arc<Mutex<BTreeMap<String, Vec<GrantRow>>>> = Arc::default();
        let of_thread = Arc::clone(&rows);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let rows = Arc::clone(&of_thread);
                thread::spawn(move || converse(stream, &rows));
            }
        });
        Self { socket, rows }
    }
}

fn converse(stream: UnixStream, rows: &Mutex<BTreeMap<String, Vec<GrantRow>>>) {
    let mut out = stream.try_clone().unwrap();
    for line in BufReader::new(stream).lines().map_while(Result::ok) {
        let Asked { request, .. } = serde_json::from_str(&line).unwrap();
        let mut rows = rows.lock().unwrap();
        let answer = match request {
            Request::Versions => Answer::Versions(VERSIONS),
            Request::Put { instance, rows: put } => {
                rows.insert(instance, put);
                Answer::Done
            }
            Request::Holds { instance, rows: asked } => {
                Answer::Holds { holds: rows.get(&instance) == Some(&asked) }
            }
            Request::Withdraw { instance } => {
                rows.remove(&instance);
                Answer::Done
            }
            Request::Instances => Answer::Instances { instances: rows.keys().cloned().collect() },
            Request::Metrics => Answer::Metrics { text: String::new() },
        };
        drop(rows);
        let mut text = serde_json::to_vec(&answer).unwrap();
        text.push(b'\n');
        // The program was killed.
        let _ = out.write_all(&text);
    }
}

fn program(cloud: &FakeCloud) -> Program {
    let mut program = Program::new();
    program.environment = cloud.variables();
    program
}

fn set_up(program: &Program) {
    let client = program.client();
    let admin = program.node.socket.display().to_string();
    client.put_node("n", &NewNode { admin, gateway: None, host: None }).unwrap();
    let quota = quota(100, 1 << 20, 4);
    client.put_project(TENANT, &ProjectChange { quota }).unwrap();
}

/// Asks for the instance; its id, once somebody answers.
fn begin(program: &Program) -> Option<String> {
    let mut new = shared(2, 512);
    new.project = Some(TENANT.to_owned());
    program.client().create_instance(Some("key"), &new).ok().map(|made| made.id)
}

fn assert_empty(program: &Program, cloud: &FakeCloud, place: &str) {
    assert!(cloud.lock().servers.is_empty(), "{place}: {:?}", cloud.lock().servers);
    assert!(program.node.names().is_empty(), "{place}: {:?}", program.node.names());
    assert!(program.client().gpus().unwrap().iter().all(|gpu| gpu.held_mib == 0), "{place}");
}

fn remove(program: &Program, cloud: &FakeCloud, id: &str, place: &str) {
    // It may be gone.
    let _ = program.client().delete_instance(id);
    eventually(&format!("{place}: {id} to be gone"), || {
        program.client().instance(id).unwrap().state == InstanceState::Terminated
    });
    assert_empty(program, cloud, place);
}

fn places(steps: &[Step]) -> Vec<String> {
    let mut places = Vec::new();
    for step in steps {
        let is_of_parts = [Step::Grant, Step::Revoke].contains(step);
        let inside = is_of_parts.then_some("inside");
        let all = ["before", "after", "kept"].into_iter().chain(inside);
        places.extend(all.map(|when| format!("{when}:{}", step.name())));
    }
    places
}

#[test]
fn a_restart_finishes_whatever_step_of_making_a_server_it_was_killed_at() {
    use Step::{Active, Address, Confirm, Create, Grant, Port, Rules, Sign};
    for place in places(&[Address, Sign, Create, Port, Grant, Rules, Active, Confirm]) {
        let cloud = FakeCloud::start();
        let mut program = program(&cloud);
        let host = SimulatedHost::start(program.folder.path());
        let flags = flags(&host);
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        program.start(None, &flags);
        set_up(&program);
        program.kill();
        program.start(Some(&place), &flags);
        let acknowledged = begin(&program);
        program.wait_killed();
        program.start(None, &flags);
        let id = begin(&program).unwrap();
        assert!(acknowledged.is_none_or(|before| before == id), "{place}: not the same one");
        eventually(&format!("{place}: {id} to be ready"), || {
            program.client().instance(&id).unwrap().state == InstanceState::Ready
        });
        assert_eq!(cloud.lock().servers.len(), 1, "{place}");
        assert_eq!(program.node.names().len(), 2, "{place}");
        let rows = host.rows.lock().unwrap().get(&id).cloned().unwrap();
        assert_eq!((rows.len(), rows[0].tap.as_str()), (1, "tap0123456789a"), "{place}");
        remove(&program, &cloud, &id, &place);
        assert!(host.rows.lock().unwrap().is_empty(), "{place}");
    }
}

#[test]
fn a_restart_removes_whatever_step_of_removing_a_server_it_was_killed_at() {
    use Step::{Release, Revoke, Terminate, Unrule};
    for place in places(&[Unrule, Revoke, Terminate, Release]) {
        let cloud = FakeCloud::start();
        let mut program = program(&cloud);
        let host = SimulatedHost::start(program.folder.path());
        let flags = flags(&host);
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        program.start(Some(&place), &flags);
        set_up(&program);
        let id = begin(&program).unwrap();
        eventually(&format!("{place}: {id} to be ready"), || {
            program.client().instance(&id).unwrap().state == InstanceState::Ready
        });
        let _ = program.client().delete_instance(&id);
        program.wait_killed();
        program.start(None, &flags);
        remove(&program, &cloud, &id, &place);
        assert!(host.rows.lock().unwrap().is_empty(), "{place}");
    }
}
