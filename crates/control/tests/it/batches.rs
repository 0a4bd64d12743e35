//! Several equal VMs that are launched as one: all of them or none.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::{Value, json};
use weft_api::v1::{
    Batch, Call, Client, ClientError, InstanceState, Kind, NewBatch, NewInstance, Problem, Quota,
};
use weft_control::provision::Failure;
use weft_control::service::{Ask, Reply, Service};

use crate::crash::{assert_empty, set_up, terminate, wait_for, wait_gone};
use crate::service::{People, shared};
use crate::support::{self, Program, eventually, quota};

fn batch(count: u32, instance: &Value) -> Value {
    json!({"count": count, "instance": instance})
}

/// What somebody asks for under a key, or without one.
fn ask(who: &str, key: Option<&str>, body: &Value) -> Ask {
    let body = serde_json::to_vec(body).unwrap();
    Ask { token: Some(who.to_owned()), key: key.map(str::to_owned), body, ..Ask::default() }
}

/// A member's launch: the ids.
fn launch(people: &People, key: Option<&str>, body: &Value) -> Result<Vec<String>, Problem> {
    let asked = ask(&people.member, key, body);
    let Reply::Json(bytes) = people.cloud.service.call(Call::BatchCreate, &asked)? else {
        panic!("a batch is JSON")
    };
    Ok(ids(&serde_json::from_slice(&bytes).unwrap()))
}

fn ids(batch: &Batch) -> Vec<String> {
    batch.instances.iter().map(|one| one.id.clone()).collect()
}

/// Nobody has anything.
fn assert_nothing(people: &People, what: &Value) {
    let store = &people.cloud.store;
    assert!(store.live().unwrap().is_empty(), "{what}");
    assert!(people.held().iter().all(|held| *held == (0, 0)), "{what}");
    assert_eq!(store.project("a").unwrap().unwrap().1, Quota::default(), "{what}");
}

#[test]
fn a_batch_that_fits_is_launched_wholly_and_each_vm_is_one_of_its_own() {
    let people = People::new(&[2, 2]);
    let mut vm = shared(2, 4096);
    vm["name"] = "job".into();
    let made = people.call(Call::BatchCreate, &people.member, "", &batch(4, &vm)).unwrap();
    let made: Batch = serde_json::from_value(made).unwrap();
    let names: Vec<&str> = made.instances.iter().map(|one| one.name.as_str()).collect();
    assert_eq!(names, ["job-1", "job-2", "job-3", "job-4"]);
    let operations = made.instances.iter().map(|one| one.operation.as_str());
    assert_eq!(operations.collect::<BTreeSet<_>>().len(), 4);
    let ids = ids(&made);
    ids.iter().for_each(|id| people.wait(id, "ready"));
    assert_eq!(people.held(), [(8192, 2); 4]);
    people.delete(&ids[1]);
    assert_eq!(people.held(), [(8192, 2), (0, 0), (8192, 2), (8192, 2)]);
    for id in [&ids[0], &ids[2], &ids[3]] {
        assert_eq!(people.state(id), "ready");
    }
    let audit = people.call(Call::AuditList, &people.admin, "", &Value::Null).unwrap();
    let is_of = |entry: &&Value| entry["action"] == "BatchCreate" && entry["status"] == 202;
    let told = audit["items"].as_array().unwrap().iter().filter(is_of);
    let targets: Vec<&str> = told.map(|entry| entry["target"].as_str().unwrap()).collect();
    assert_eq!(targets, ids);
}

#[test]
fn a_batch_of_which_only_a_part_would_fit_is_refused_and_nothing_is_reserved() {
    let people = People::new(&[2, 2]);
    let mut local = shared(3, 4096);
    local["locality"] = "local".into();
    for (vm, fitting) in [
        (shared(3, 4096), 2),
        (local, 2),
        (json!({"cgpus": 2, "locality": "local"}), 2),
        (json!({"cgpus": 1}), 4),
    ] {
        let refused = launch(&people, None, &batch(fitting + 1, &vm)).unwrap_err();
        assert_eq!(refused.kind, Kind::NoCapacity, "{refused}");
        let words = format!("there is room for {fitting} of {} VMs with ", fitting + 1);
        assert!(refused.detail.starts_with(&words), "{refused}");
        assert_nothing(&people, &vm);
        // The part alone fits.
        let made = launch(&people, None, &batch(fitting, &vm)).unwrap();
        made.iter().for_each(|id| people.wait(id, "ready"));
        made.iter().for_each(|id| people.delete(id));
    }
}

#[test]
fn the_sum_of_a_batch_is_within_the_quota_or_nothing_is_made() {
    let people = People::new(&[4]);
    let may = Quota::from(quota(5, 1 << 20, 0));
    people.cloud.store.put_project("a", may, None).unwrap();
    // Each of them alone is within it.
    let two = batch(2, &shared(3, 1));
    let refused = launch(&people, None, &two).unwrap_err();
    assert_eq!(refused.kind, Kind::Quota);
    assert!(refused.detail.contains("6 cGPUs, and its quota is 5"), "{refused}");
    assert_nothing(&people, &two);
    // So are the launches of a day.
    let bounded = Service::new(Arc::clone(&people.cloud.engine)).with_launches(Some(2));
    let of = |count| {
        let asked = ask(&people.member, None, &batch(count, &shared(1, 1)));
        bounded.call(Call::BatchCreate, &asked).map(drop)
    };
    let refused = of(3).unwrap_err();
    assert!(refused.kind == Kind::Quota && refused.detail.contains("2 in a day"), "{refused}");
    assert_nothing(&people, &two);
    of(2).unwrap();
    assert_eq!(launch(&people, None, &batch(1, &shared(3, 1))).unwrap().len(), 1);
    let used = people.cloud.store.project("a").unwrap().unwrap().1;
    assert_eq!(used.cgpus, 5);
}

#[test]
fn the_same_batch_with_the_same_key_is_launched_once() {
    let people = People::new(&[6]);
    let whole = batch(2, &json!({"cgpus": 2}));
    let first = launch(&people, Some("k"), &whole).unwrap();
    // There would be no room for it a second time.
    assert_eq!(launch(&people, Some("k"), &whole).unwrap(), first);
    assert_eq!(people.cloud.store.live().unwrap(), first);
    for count in [1, 3] {
        let other = batch(count, &json!({"cgpus": 2}));
        let refused = launch(&people, Some("k"), &other).unwrap_err();
        assert!(refused.detail.contains("another request"), "{refused}");
    }
    let single = ask(&people.member, Some("k"), &json!({"cgpus": 2}));
    let refused = people.cloud.service.call(Call::InstanceCreate, &single).unwrap_err();
    assert!(refused.detail.contains("another request"), "{refused}");
    // Many of the same at once.
    let small = batch(3, &shared(1, 1));
    let answers: Vec<Vec<String>> = thread::scope(|scope| {
        let one = || scope.spawn(|| launch(&people, Some("many"), &small).unwrap());
        let all: Vec<_> = (0..8).map(|_| one()).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
    assert_eq!(people.cloud.store.live().unwrap().len(), 5);
}

/// Who comes second finds all the room taken by the first of the same, which may not be answered
/// yet.
#[test]
fn the_same_batch_is_launched_once_also_where_it_takes_the_last_room_or_quota() {
    for may in [4, 100] {
        let people = People::new(&[4]);
        people.cloud.store.put_project("a", Quota::from(quota(may, 1 << 20, may)), None).unwrap();
        let whole = batch(4, &json!({"cgpus": 1}));
        for round in 0..20 {
            let key = format!("k{round}");
            let answers: Vec<_> = thread::scope(|scope| {
                let one = || scope.spawn(|| launch(&people, Some(&key), &whole));
                let all: Vec<_> = (0..8).map(|_| one()).collect();
                all.into_iter().map(|one| one.join().unwrap()).collect()
            });
            let first = answers[0].as_ref().unwrap();
            assert!(answers.iter().all(|one| one.as_ref().ok() == Some(first)), "{answers:?}");
            first.iter().for_each(|id| people.wait(id, "ready"));
            first.iter().for_each(|id| people.delete(id));
        }
    }
}

#[test]
fn a_vm_that_fails_later_is_that_vms_failure_only() {
    let people = People::new(&[1]);
    people.cloud.fake.fail("create", 1, Failure::permanent("no disk"));
    let made = launch(&people, None, &batch(3, &shared(1, 1024))).unwrap();
    let count = |state: &str| made.iter().filter(|id| people.state(id) == state).count();
    eventually("one to fail and two to be ready", || (count("failed"), count("ready")) == (1, 2));
    assert_eq!(people.held(), [(2048, 2)]);
}

#[test]
fn a_batch_that_cannot_be_is_told_so() {
    let people = People::new(&[1]);
    let one = json!({"cgpus": 1});
    let long = json!({"cgpus": 1, "name": "a".repeat(47)});
    for (body, words) in [
        (batch(0, &one), "a batch of 0: a batch has 1 to 64 instances"),
        (batch(65, &one), "a batch of 65: a batch has 1 to 64 instances"),
        (batch(64, &shared(65, 1)), "64 instances with 65 cGPUs: a batch has up to 4096 in all"),
        (batch(2, &json!({"cgpus": 0})), "an instance has 1 to 4096"),
        (batch(2, &long), "is no name"),
        (batch(2, &json!({"cgpus": 1, "project": "b"})), "project a's"),
        (json!({"count": -1, "instance": one}), "not understood"),
        (json!({"count": 2}), "missing field `instance`"),
        (json!({"instance": one}), "missing field `count`"),
        (json!({"count": 2, "cgpus": 1}), "unknown field `cgpus`"),
        (json!({"count": 2, "instance": {"cgpus": 1, "count": 2}}), "unknown field `count`"),
        (json!({"count": 2, "instance": [1]}), "`instance` is a list"),
    ] {
        let refused = launch(&people, None, &body).unwrap_err();
        assert!(refused.detail.contains(words), "{body} says: {refused}");
        assert_nothing(&people, &body);
    }
    // Nor is one VM several, as to a control plane that knows no batches.
    let several = people.create(&people.member, &json!({"cgpus": 1, "count": 2})).unwrap_err();
    assert!(several.detail.contains("unknown field `count`"), "{several}");
}

/// VMs like this one, of the project of a real program.
fn like(name: &str, vm: NewInstance, count: u32) -> NewBatch {
    let (name, project) = (Some(name.to_owned()), Some("p".to_owned()));
    NewBatch { count, instance: NewInstance { name, project, ..vm } }
}

/// Killed after the GPUs were reserved, before any VM or at a step of one of them, a restart
/// finishes all.
#[test]
fn a_restart_finishes_all_vms_of_a_batch_whatever_step_of_one_it_was_killed_at() {
    let three = like("v", support::shared(2, 512), 3);
    for place in ["before:address", "after:create", "inside:grant", "kept:confirm"] {
        let mut program = Program::new();
        program.start(None, &[]);
        set_up(&program);
        program.kill();
        program.start(Some(place), &[]);
        let acknowledged = match program.client().create_batch(Some("key"), &three) {
            Ok(made) => Some(ids(&made)),
            Err(ClientError::Unreachable { .. } | ClientError::Unanswered { .. }) => None,
            Err(error) => panic!("{error}"),
        };
        program.wait_killed();
        program.start(None, &[]);
        let client = program.client();
        let there = client.instances().unwrap();
        let there: Vec<String> = there.into_iter().map(|one| one.id).collect();
        assert_eq!(there.len(), 3, "{place}: all of them");
        let again = ids(&client.create_batch(Some("key"), &three).unwrap());
        assert_eq!(again, there, "{place}: the same ones");
        assert!(acknowledged.is_none_or(|before| before == there), "{place}");
        there.iter().for_each(|id| wait_for(&program, id, InstanceState::Ready));
        assert_eq!(client.instances().unwrap().len(), 3, "{place}: and no more");
        assert_eq!(program.node.names().len(), 6, "{place}");
        there.iter().for_each(|id| terminate(&program, id));
        there.iter().for_each(|id| wait_gone(&program, id));
        assert_empty(&program, place);
    }
}

/// Killed amid the batches of many clients, of each batch all VMs are there or none is.
#[test]
fn of_each_batch_all_or_none_is_there_when_it_is_killed_amid_many() {
    const CLIENTS: usize = 6;
    for answers in [1, 4, 8] {
        let mut program = Program::new();
        program.start(None, &[]);
        set_up(&program);
        let (client, acknowledged) = (program.client(), Mutex::new(Vec::new()));
        thread::scope(|scope| {
            let (client, acknowledged) = (&client, &acknowledged);
            for number in 0..CLIENTS {
                scope.spawn(move || launch_until_killed(client, number, acknowledged));
            }
            eventually("answers", || acknowledged.lock().unwrap().len() >= answers);
            program.kill();
        });
        program.start(None, &[]);
        let mut vms: BTreeMap<String, usize> = BTreeMap::new();
        for one in program.client().instances().unwrap() {
            let (batch, _) = one.name.rsplit_once('-').unwrap();
            *vms.entry(batch.to_owned()).or_default() += 1;
        }
        assert!(vms.values().all(|count| *count == 3), "{vms:?}");
        for name in acknowledged.into_inner().unwrap() {
            assert!(vms.contains_key(&name), "{name} was acknowledged: {vms:?}");
        }
    }
}

/// Some batches, one after the other.
fn launch_until_killed(client: &Client, number: usize, acknowledged: &Mutex<Vec<String>>) {
    for round in 0..3 {
        let name = format!("c{number}r{round}");
        match client.create_batch(None, &like(&name, support::shared(1, 16), 3)) {
            Ok(_) => acknowledged.lock().unwrap().push(name),
            Err(ClientError::Unreachable { .. } | ClientError::Unanswered { .. }) => return,
            Err(error) => panic!("{error}"),
        }
    }
}
