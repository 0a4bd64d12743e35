//! `kill -9` of the real program at every step, with OpenStack outside.

use weft_api::v1::{InstanceState, NewNode, ProjectChange, Quota};
use weft_control::plan::Step;

use super::fake::{FakeCloud, TENANT};
use crate::support::{Program, eventually, shared};

const FLAGS: &[&str] =
    &["--provisioner", "openstack", "--image", "image1", "--flavor", "m1", "--network", "net1"];

fn program(cloud: &FakeCloud) -> Program {
    let mut program = Program::new();
    program.environment = cloud.variables();
    program
}

fn set_up(program: &Program) {
    let client = program.client();
    let admin = program.node.socket.display().to_string();
    client.put_node("n", &NewNode { admin, gateway: None, host: None }).unwrap();
    let quota = Quota { cgpus: 100, memory_mib: 1 << 20, exclusive_gpus: 4 };
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
    let of_step =
        |step: &Step| ["before", "after", "kept"].map(|when| format!("{when}:{}", step.name()));
    steps.iter().flat_map(of_step).collect()
}

#[test]
fn a_restart_finishes_whatever_step_of_making_a_server_it_was_killed_at() {
    use Step::{Active, Address, Confirm, Create, Grant, Port, Rules};
    for place in places(&[Address, Grant, Create, Port, Rules, Active, Confirm]) {
        let cloud = FakeCloud::start();
        let mut program = program(&cloud);
        program.start(None, FLAGS);
        set_up(&program);
        program.kill();
        program.start(Some(&place), FLAGS);
        let _ = begin(&program);
        program.wait_killed();
        program.start(None, FLAGS);
        let id = begin(&program).unwrap();
        eventually(&format!("{place}: {id} to be ready"), || {
            program.client().instance(&id).unwrap().state == InstanceState::Ready
        });
        assert_eq!(cloud.lock().servers.len(), 1, "{place}");
        assert_eq!(program.node.names().len(), 2, "{place}");
        remove(&program, &cloud, &id, &place);
    }
}

#[test]
fn a_restart_removes_whatever_step_of_removing_a_server_it_was_killed_at() {
    use Step::{Release, Revoke, Terminate, Unrule};
    for place in places(&[Unrule, Revoke, Terminate, Release]) {
        let cloud = FakeCloud::start();
        let mut program = program(&cloud);
        program.start(Some(&place), FLAGS);
        set_up(&program);
        let id = begin(&program).unwrap();
        eventually(&format!("{place}: {id} to be ready"), || {
            program.client().instance(&id).unwrap().state == InstanceState::Ready
        });
        let _ = program.client().delete_instance(&id);
        program.wait_killed();
        program.start(None, FLAGS);
        remove(&program, &cloud, &id, &place);
    }
}
