//! Nodes as the control plane sees them: what they have, when they were heard, what it sweeps.

use serde_json::{Value, json};
use weft_api::v1::{Call, Kind};
use weft_control::provision::Failure;
use weft_control::sweep::{self, Swept};

use crate::service::{People, shared};
use crate::support::{Cloud, all, eventually};

#[test]
fn nodes_are_asked_what_they_have_and_forgotten_when_nobody_uses_them() {
    let people = People::new(&[1]);
    let put = |admin: &str| {
        let body = json!({"admin": admin});
        people.call(Call::NodePut, &people.admin, "node0", &body)
    };
    let unknown = put("nowhere").unwrap_err();
    assert!(unknown.detail.contains("no node at nowhere"), "{unknown}");
    assert_eq!(put("node0").unwrap()["gpus"], 1);
    let id = people.create(&people.member, &shared(1, 1)).unwrap();
    people.wait(&id, "ready");
    let delete = || people.call(Call::NodeDelete, &people.admin, "node0", &Value::Null);
    assert_eq!(delete().unwrap_err().kind, Kind::Conflict);
    people.delete(&id);
    delete().unwrap();
    let full = people.create(&people.member, &shared(1, 1)).unwrap_err();
    assert_eq!(full.kind, Kind::NoCapacity);
}

#[test]
fn a_sweep_removes_what_nobody_knows_and_restores_what_is_missing() {
    let people = People::new(&[1]);
    let cloud = &people.cloud;
    let [stays, lost] = [0, 1].map(|_| people.create(&people.member, &shared(1, 1)).unwrap());
    [&stays, &lost].into_iter().for_each(|id| people.wait(id, "ready"));
    assert_eq!(sweep::sweep(&cloud.engine).unwrap(), Swept::default());
    // Left by a store that was restored from an old copy.
    let world = cloud.engine.world();
    let stranger = weft_control::provision::VmSpec {
        id: "i-stranger".into(),
        name: "i-stranger".into(),
        project: "a".into(),
        cgpus: 0,
        slot: 99,
        host: None,
        environment: Vec::new(),
        gateways: Vec::new(),
        nodes: std::collections::BTreeMap::new(),
        user_data: String::new(),
        machine: weft_control::store::Machine::default(),
    };
    world.provisioner.create(&stranger).unwrap();
    world.endpoint.put("i-stranger", &[]).unwrap();
    let left = format!("cgpu-i{}0123456789-0", cloud.store.plane());
    // One of another control plane is not this one's to remove.
    let foreign = "cgpu-i------0123456789-0";
    add_vgpus(cloud, &[&left, foreign]);
    world.endpoint.withdraw(&stays, None).unwrap();
    // What cannot be ended, or listed, keeps nothing else from being looked at, and is later.
    for act in ["terminate", "inventory"] {
        cloud.fake.fail(act, 1, Failure::passing("busy"));
        assert_eq!(sweep::sweep(&cloud.engine).unwrap_err().words, "busy");
        assert_eq!(cloud.fake.rules(&stays).len(), 1);
        world.endpoint.withdraw(&stays, None).unwrap();
    }
    cloud.fake.lose(&lost);
    let expected = Swept { vms: 1, foreign: 1, lost: 1, restored: 1, ..Swept::default() };
    assert_eq!(sweep::sweep(&cloud.engine).unwrap(), expected);
    world.nodes.revoke("node0", &[foreign.to_owned()], &|_| Ok(()), &|| {}).unwrap();
    people.wait(&lost, "failed");
    people.wait(&stays, "ready");
    assert_eq!(cloud.fake.rules(&stays).len(), 1);
    eventually("only what stays to be there", || {
        cloud.fake.remains().iter().all(|what| what.contains(&stays))
    });
    assert_eq!(people.held(), [(1, 1)]);
}

#[test]
fn a_gateway_that_listens_elsewhere_after_a_restart_is_found_again() {
    let people = People::new(&[1]);
    let cloud = &people.cloud;
    let id = people.create(&people.member, &shared(1, 1)).unwrap();
    people.wait(&id, "ready");
    let led_to = || cloud.fake.rules(&id)[0].node.clone();
    assert_eq!(led_to(), "node0.example:7600");
    cloud.fake.move_gateway("node0", "node0.example:7601");
    assert_eq!(sweep::sweep(&cloud.engine).unwrap(), Swept { restored: 1, ..Swept::default() });
    assert_eq!(led_to(), "node0.example:7601");
    // What somebody said of where it is reached stays.
    let mut node = cloud.store.node("node0").unwrap().unwrap();
    (node.gateway, node.gateway_given) = ("led.example:1".to_owned(), true);
    cloud.store.put_node(&node, &[], None).unwrap();
    sweep::sweep(&cloud.engine).unwrap();
    assert_eq!(led_to(), "led.example:1");
}

/// Makes vGPUs on the first node past the control plane.
fn add_vgpus(cloud: &Cloud, names: &[&str]) {
    let vgpu = |name: &&str| weft_control::nodes::VgpuSpec {
        name: (*name).to_owned(),
        device: "gpu0".into(),
        weight: 1,
        memory_mib: 1,
        sla_us: 0,
    };
    let vgpus: Vec<_> = names.iter().map(vgpu).collect();
    cloud.engine.world().nodes.make("node0", &vgpus, &|| {}).unwrap();
}

#[test]
fn an_instance_that_lost_a_vgpu_fails_and_says_why() {
    let people = People::new(&[1]);
    let id = people.create(&people.member, &shared(2, 1)).unwrap();
    people.wait(&id, "ready");
    let engine = &people.cloud.engine;
    let gone = format!("cgpu-{id}-1");
    engine.world().nodes.revoke("node0", std::slice::from_ref(&gone), &|_| Ok(()), &|| {}).unwrap();
    assert_eq!(sweep::sweep(engine).unwrap(), Swept { lost: 1, ..Swept::default() });
    people.wait(&id, "failed");
    let seen = people.call(Call::InstanceShow, &people.admin, &id, &Value::Null).unwrap();
    assert!(seen["failure"].as_str().unwrap().contains(&gone), "{seen}");
    eventually("its GPU to be free", || people.held() == [(0, 0)]);
    assert!(people.cloud.fake.remains().is_empty());
}

#[test]
fn a_node_is_sold_once() {
    let people = People::new(&[1]);
    let put =
        |name: &str| people.call(Call::NodePut, &people.admin, name, &json!({"admin": "node0"}));
    put("node0").unwrap();
    let again = put("other").unwrap_err();
    assert_eq!(again.kind, Kind::Conflict);
    assert!(again.detail.contains("as node0"), "{again}");
    // Nor by two control planes.
    add_vgpus(&people.cloud, &["cgpu-i------0123456789-0"]);
    let used = put("node0").unwrap_err();
    assert_eq!(used.kind, Kind::Conflict);
    assert!(used.detail.contains("another control plane"), "{used}");
}

#[test]
fn what_a_node_no_longer_has_is_lost_and_can_be_forgotten() {
    let people = People::new(&[2]);
    let cloud = &people.cloud;
    let gpu = |call, id: &str, body: Value| people.call(call, &people.admin, id, &body);
    let first = |count: usize| cloud.store.gpus(&all()).unwrap()[..count].to_vec();
    let found: Vec<_> = first(2).into_iter().map(|(_, gpu)| gpu.found).collect();
    let in_use = gpu(Call::GpuDelete, "2", Value::Null).unwrap_err();
    assert!(in_use.kind == Kind::Conflict && in_use.detail.contains("in service"), "{in_use}");
    cloud.fake.add_gpus("node0", found[..1].to_vec());
    sweep::sweep(&cloud.engine).unwrap();
    let shown = gpu(Call::GpuShow, "2", Value::Null).unwrap();
    assert!(shown["lost_ms"].is_u64() && shown["in_service"] == false, "{shown}");
    let refused = gpu(Call::GpuChange, "2", json!({"in_service": true})).unwrap_err();
    assert!(refused.detail.contains("node0 does not have GPU 2"), "{refused}");
    assert_eq!(
        people.create(&people.member, &json!({"cgpus": 2})).unwrap_err().kind,
        Kind::NoCapacity
    );
    // What comes back is used again by itself.
    cloud.fake.add_gpus("node0", found.clone());
    sweep::sweep(&cloud.engine).unwrap();
    assert!(gpu(Call::GpuShow, "2", Value::Null).unwrap()["in_service"] == true);
    cloud.fake.add_gpus("node0", found[..1].to_vec());
    sweep::sweep(&cloud.engine).unwrap();
    gpu(Call::GpuDelete, "2", Value::Null).unwrap();
    assert_eq!(gpu(Call::GpuShow, "2", Value::Null).unwrap_err().kind, Kind::NotFound);
}

#[test]
fn a_gateway_that_does_not_listen_is_shown_until_it_does() {
    let people = People::new(&[1]);
    let seen = || {
        sweep::sweep(&people.cloud.engine).unwrap();
        people.call(Call::NodeShow, &people.admin, "node0", &Value::Null).unwrap()
    };
    assert!(seen()["gateway_failure"].is_null());
    people.cloud.fake.move_gateway("node0", "");
    let shown = seen();
    assert!(shown["gateway_failure"].as_str().unwrap().contains("does not listen"), "{shown}");
    let metrics = people.call(Call::Metrics, &people.admin, "", &Value::Null).unwrap();
    assert!(metrics.as_str().unwrap().contains("weft_cloud_nodes_without_gateway 1"), "{metrics}");
    people.cloud.fake.move_gateway("node0", "node0.example:7600");
    assert!(seen()["gateway_failure"].is_null());
}

#[test]
fn nodes_that_do_not_answer_get_nothing_new_until_they_do() {
    let people = People::new(&[1, 1]);
    let fake = &people.cloud.fake;
    let world = people.cloud.engine.world();
    fake.fail("vgpus", 1, Failure::passing("connection refused"));
    sweep::sweep(&people.cloud.engine).unwrap();
    let nodes = people.call(Call::NodeList, &people.admin, "", &Value::Null).unwrap();
    let unreachable = nodes["items"][0]["unreachable"].as_str();
    assert_eq!(unreachable, Some("connection refused"), "{nodes}");
    assert!(nodes["items"][1]["unreachable"].is_null(), "{nodes}");
    let gpus = people.call(Call::GpuList, &people.admin, "", &Value::Null).unwrap();
    assert!(gpus["items"][0]["unheard_ms"].is_u64(), "{gpus}");
    assert!(gpus["items"][1]["unheard_ms"].is_null(), "{gpus}");
    let metrics = people.call(Call::Metrics, &people.admin, "", &Value::Null).unwrap();
    assert!(metrics.as_str().unwrap().contains("weft_cloud_nodes_unreachable 1"), "{metrics}");
    people.create(&people.member, &shared(1, 8192)).unwrap();
    assert_eq!(people.held(), [(0, 0), (8192, 1)]);
    let full = people.create(&people.member, &shared(1, 1)).unwrap_err();
    assert!(full.detail.contains("the node that does not answer"), "{full}");
    assert!(sweep::ask_unreachable(world), "it answers again");
    assert!(!sweep::ask_unreachable(world), "there is none to ask");
    people.create(&people.member, &shared(1, 1)).unwrap();
    assert_eq!(people.held(), [(1, 1), (8192, 1)]);
}
