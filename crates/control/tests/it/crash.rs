//! `kill -9` at every step, with the real program and real processes as VMs.

use std::sync::Mutex;
use std::thread;

use weft_api::v1::{
    Client, ClientError, Instance, InstanceState, Kind, NewInstance, NewNode, ProjectChange, Quota,
};
use weft_control::plan::Step;

use crate::support::{
    CLOSED_VGPU_USED_NS, Program, SimulatedNode, eventually, new, processes_with, quota, shared,
};

/// Where the program is killed: before a step, in the middle, when it was done and is not kept, and
/// when it was kept.
fn places(steps: &[Step]) -> Vec<String> {
    let mut places = Vec::new();
    for step in steps {
        for when in ["before", "after", "kept"] {
            places.push(format!("{when}:{}", step.name()));
        }
        if [Step::Grant, Step::Revoke].contains(step) {
            places.push(format!("inside:{}", step.name()));
        }
    }
    places
}

const MAKING: &[Step] = &[
    Step::Address,
    Step::Sign,
    Step::Create,
    Step::Port,
    Step::Grant,
    Step::Rules,
    Step::Active,
    Step::Confirm,
];

const UNDOING: &[Step] = &[Step::Unrule, Step::Revoke, Step::Terminate, Step::Release];

pub(crate) fn set_up(program: &Program) {
    let client = program.client();
    put_node(&client, "n", &program.node);
    let quota = quota(100, 1 << 20, 4);
    client.put_project("p", &ProjectChange { quota }).unwrap();
}

/// The same with both nodes, and quota for GPUs of either.
fn set_up_two(program: &Program) {
    set_up(program);
    let client = program.client();
    put_node(&client, "o", &program.other);
    let quota = quota(100, 1 << 20, 6);
    client.put_project("p", &ProjectChange { quota }).unwrap();
}

fn put_node(client: &Client, name: &str, node: &SimulatedNode) {
    let (admin, gateway) = (node.socket.display().to_string(), None);
    client.put_node(name, &NewNode { admin, gateway, host: None }).unwrap();
}

/// What is made, and on which nodes.
struct Case {
    set_up: fn(&Program),
    asked: NewInstance,
}

/// Parts of GPUs of one node.
fn on_one_node() -> Case {
    Case { set_up, asked: of_project(shared(3, 512)) }
}

/// Six GPUs, of which a node has four.
fn on_two_nodes() -> Case {
    Case { set_up: set_up_two, asked: of_project(new(6)) }
}

fn of_project(new: NewInstance) -> NewInstance {
    NewInstance { project: Some("p".to_owned()), ..new }
}

/// How many vGPUs the nodes have, in the order in which they are asked.
fn vgpus(program: &Program) -> [usize; 2] {
    [&program.node, &program.other].map(|node| node.names().len())
}

/// What was done, and what was not, when it was killed between the nodes.
fn assert_between(program: &Program, place: &str) {
    let [first, second] = vgpus(program);
    let is_so = match place {
        "between:sign" => (first, second) == (0, 0),
        "between:grant" => first > 0 && second == 0,
        "between:revoke" => first == 0 && second > 0,
        _ => true,
    };
    assert!(is_so, "{place}: {first} and {second} vGPUs");
}

pub(crate) fn wait_for(program: &Program, id: &str, state: InstanceState) {
    let client = program.client();
    let mut last = None;
    eventually(&format!("{id} to be {state:?}"), || {
        let found = client.instance(id).ok();
        last = found.as_ref().map(|one| one.state);
        let failed = last == Some(InstanceState::Failed) && state != InstanceState::Failed;
        assert!(!failed, "{found:?}");
        last == Some(state)
    });
}

/// Nothing is left anywhere.
pub(crate) fn assert_empty(program: &Program, place: &str) {
    let client = program.client();
    eventually(&format!("{place}: no vGPU"), || vgpus(program) == [0, 0]);
    eventually(&format!("{place}: no process"), || program.processes().is_empty());
    let folders = || std::fs::read_dir(program.vms()).unwrap().count();
    eventually(&format!("{place}: no folder"), || folders() == 0);
    assert!(client.cgpus().unwrap().is_empty(), "{place}");
    for gpu in client.gpus().unwrap() {
        assert_eq!((gpu.held_mib, gpu.cgpus, gpu.exclusive), (0, 0, false), "{place}");
    }
    assert_eq!(client.project("p").unwrap().used, Quota::default(), "{place}");
}

pub(crate) fn begin(program: &Program) -> Instance {
    program.client().create_instance(Some("key"), &on_one_node().asked).unwrap()
}

pub(crate) fn terminate(program: &Program, id: &str) {
    match program.client().delete_instance(id) {
        Ok(_) => {}
        // It may be killed before it answers.
        Err(ClientError::Unreachable { .. } | ClientError::Unanswered { .. }) => {}
        Err(error) => panic!("{error}"),
    }
}

pub(crate) fn wait_gone(program: &Program, id: &str) {
    let client = program.client();
    eventually("the instance to be gone", || {
        let gone = |error: &ClientError| matches!(error, ClientError::Refused(problem) if problem.kind == Kind::NotFound);
        let found = client.instance(id);
        // One that could not be made is only put away.
        let is_failed = found.as_ref().is_ok_and(|one| one.state == InstanceState::Failed);
        if is_failed && client.delete_instance(id).is_ok() {
            return true;
        }
        let is_asked =
            |state| matches!(state, InstanceState::Terminating | InstanceState::Terminated);
        if found.as_ref().is_ok_and(|one| !is_asked(one.state)) {
            // The request was lost with the process, or before it came to it.
            terminate(program, id);
        }
        found.as_ref().is_ok_and(|one| one.state == InstanceState::Terminated)
            || found.as_ref().is_err_and(gone)
    });
}

/// The same while it may be killed: the id, unless the answer is lost with the process.
fn try_to_begin(program: &Program, asked: &NewInstance) -> Option<String> {
    match program.client().create_instance(Some("key"), asked) {
        Ok(made) => Some(made.id),
        Err(ClientError::Unreachable { .. } | ClientError::Unanswered { .. }) => None,
        Err(error) => panic!("{error}"),
    }
}

/// Asks again after a restart; the key says that it is the same one. A store that has lost what was
/// acknowledged would make another one.
fn begin_again(program: &Program, asked: &NewInstance, acknowledged: Option<String>) -> String {
    let id = program.client().create_instance(Some("key"), asked).unwrap().id;
    assert!(acknowledged.is_none_or(|before| before == id), "another one than before the kill");
    id
}

/// Killed at a place of making one, and started again; and the id, if it was said before.
fn killed_while_making(place: &str, flags: &[&str], case: &Case) -> (Program, Option<String>) {
    let mut program = Program::new();
    program.start(None, flags);
    (case.set_up)(&program);
    program.kill();
    program.start(Some(place), flags);
    let acknowledged = try_to_begin(&program, &case.asked);
    program.wait_killed();
    assert_between(&program, place);
    program.start(None, flags);
    (program, acknowledged)
}

/// Killed at a place of making one, a restart finishes it; and then it can be removed.
fn finishes_what_it_is_killed_at(place: &str, flags: &[&str], case: &Case) {
    let (program, acknowledged) = killed_while_making(place, flags, case);
    let id = begin_again(&program, &case.asked, acknowledged);
    wait_for(&program, &id, InstanceState::Ready);
    assert_eq!(program.client().instances().unwrap().len(), 1, "{place}: one, and no second");
    let made: usize = vgpus(&program).iter().sum();
    assert_eq!(u32::try_from(made), Ok(case.asked.cgpus), "{place}");
    let folder = program.vms().join(&id);
    assert!(folder.join("rows.json").exists(), "{place}");
    terminate(&program, &id);
    wait_gone(&program, &id);
    assert_empty(&program, place);
}

/// Killed while it is made, and then not wanted any more: what was begun is undone.
fn rolls_back_what_it_is_killed_at(place: &str, case: &Case) {
    let (program, acknowledged) = killed_while_making(place, &[], case);
    // Nobody works on instances while the removal is asked for: it is the first that is seen.
    let id = begin_again(&program, &case.asked, acknowledged);
    terminate(&program, &id);
    wait_gone(&program, &id);
    assert_empty(&program, place);
}

/// Killed at a place of removing one, a restart removes it, and knows what it has used.
fn removes_what_it_is_killed_at(place: &str, case: &Case) {
    let mut program = Program::new();
    program.start(Some(place), &[]);
    (case.set_up)(&program);
    let id = begin_again(&program, &case.asked, None);
    wait_for(&program, &id, InstanceState::Ready);
    terminate(&program, &id);
    program.wait_killed();
    assert_between(&program, place);
    program.start(None, &[]);
    wait_gone(&program, &id);
    assert_empty(&program, place);
    // What they used to the end of their programs is known, which their nodes have forgotten.
    let usage = program.client().usage().unwrap();
    let used: Vec<Option<u64>> = usage.iter().map(|record| record.used_ns).collect();
    assert_eq!(used, vec![Some(CLOSED_VGPU_USED_NS); case.asked.cgpus as usize], "{place}");
}

/// User-data may have secrets in it, and everybody sees the arguments of processes.
#[test]
fn what_a_vm_runs_is_not_seen_among_its_processes() {
    for flags in [&[][..], &["--plain-processes"]] {
        let mut program = Program::new();
        program.start(None, flags);
        set_up(&program);
        let mut new = shared(1, 512);
        new.project = Some("p".to_owned());
        let secret = format!("hush-{}", program.pid());
        new.user_data = Some(format!("word={secret}\necho \"$word said\"\nsleep 1000\n"));
        let client = program.client();
        let id = client.create_instance(None, &new).unwrap().id;
        eventually("the user-data to run", || {
            client.console(&id).unwrap().contains(&format!("{secret} said"))
        });
        let seen = processes_with(&secret);
        assert!(seen.is_empty(), "{seen:?}");
        terminate(&program, &id);
        wait_gone(&program, &id);
    }
}

#[test]
fn a_restart_finishes_whatever_step_of_making_it_was_killed_at() {
    for place in places(MAKING) {
        finishes_what_it_is_killed_at(&place, &[], &on_one_node());
    }
}

#[test]
fn a_restart_finishes_what_one_node_has_and_the_other_has_not() {
    for place in ["between:sign", "inside:grant", "between:grant"] {
        finishes_what_it_is_killed_at(place, &[], &on_two_nodes());
    }
}

#[test]
fn a_restart_finishes_also_where_namespaces_are_not_permitted() {
    finishes_what_it_is_killed_at("after:create", &["--plain-processes"], &on_one_node());
}

#[test]
fn a_restart_removes_whatever_step_of_removing_it_was_killed_at() {
    for place in places(UNDOING) {
        removes_what_it_is_killed_at(&place, &on_one_node());
    }
}

#[test]
fn a_restart_removes_what_one_node_has_and_the_other_has_not() {
    for place in ["inside:revoke", "between:revoke"] {
        removes_what_it_is_killed_at(place, &on_two_nodes());
    }
}

#[test]
fn a_restart_rolls_back_what_is_not_wanted_any_more() {
    for place in places(MAKING) {
        rolls_back_what_it_is_killed_at(&place, &on_one_node());
    }
}

#[test]
fn a_restart_rolls_back_what_one_node_has_and_the_other_has_not() {
    for place in ["between:sign", "inside:grant", "between:grant"] {
        rolls_back_what_it_is_killed_at(place, &on_two_nodes());
    }
}

/// Launches from many clients at once share commits. Killed amid them, at moments that a seed
/// chooses by how many have been answered, the program has lost none that it acknowledged.
#[test]
fn nothing_acknowledged_is_lost_when_it_is_killed_amid_many_launches() {
    const CLIENTS: usize = 16;
    const ROUNDS: usize = 3;
    let mut seed: u64 = 11;
    for _ in 0..ROUNDS {
        // Knuth's multiplier: any would do.
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let answers = usize::try_from(seed >> 60).unwrap() + 1;
        let mut program = Program::new();
        program.start(None, &[]);
        set_up(&program);
        let (client, acknowledged) = (program.client(), Mutex::new(Vec::new()));
        thread::scope(|scope| {
            for _ in 0..CLIENTS {
                scope.spawn(|| launch_until_killed(&client, &acknowledged));
            }
            eventually("answers", || acknowledged.lock().unwrap().len() >= answers);
            program.kill();
        });
        let acknowledged = acknowledged.into_inner().unwrap();
        program.start(None, &[]);
        let client = program.client();
        for id in &acknowledged {
            let found = client.instance(id);
            assert!(found.is_ok(), "{id} was acknowledged: {found:?}");
            let cgpus = client.cgpus().unwrap();
            assert!(cgpus.iter().any(|cgpu| cgpu.instance == *id), "{id} has none: {cgpus:?}");
        }
    }
}

/// Some launches, one after the other. More would only be removed again.
fn launch_until_killed(client: &Client, acknowledged: &Mutex<Vec<String>>) {
    let mut new = shared(1, 16);
    new.project = Some("p".to_owned());
    for _ in 0..4 {
        match client.create_instance(None, &new) {
            Ok(made) => acknowledged.lock().unwrap().push(made.id),
            Err(ClientError::Unreachable { .. } | ClientError::Unanswered { .. }) => return,
            Err(error) => panic!("{error}"),
        }
    }
}

/// A VM outlives its control plane, and is found again.
#[test]
fn vms_outlive_the_control_plane_and_one_that_ends_gives_its_gpus_back() {
    let mut program = Program::new();
    program.start(None, &[]);
    set_up(&program);
    let id = begin(&program).id;
    wait_for(&program, &id, InstanceState::Ready);
    let before = program.processes();
    assert!(before.iter().any(|line| line.contains("guest")), "{before:?}");
    program.kill();
    program.start(None, &[]);
    wait_for(&program, &id, InstanceState::Ready);
    assert_eq!(program.processes(), before, "the same processes");
    // The machine's user kills the VM.
    let lock = std::fs::read_to_string(program.vms().join(&id).join("guest.lock")).unwrap();
    let guest: i32 = lock.split(' ').next().unwrap().parse().unwrap();
    let guest = rustix::process::Pid::from_raw(guest).unwrap();
    rustix::process::kill_process(guest, rustix::process::Signal::KILL).unwrap();
    program.kill();
    program.start(None, &[]);
    wait_for(&program, &id, InstanceState::Failed);
    let failure = program.client().instance(&id).unwrap().failure.unwrap();
    assert!(failure.contains("the VM is gone"), "{failure}");
    assert_empty(&program, "a VM that ended");
    program.client().delete_instance(&id).unwrap();
    assert!(program.client().instances().unwrap().is_empty());
}
