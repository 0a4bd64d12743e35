//! What the calls do, without HTTP and with nothing real outside.

use serde_json::{Value, json};
use weft_api::v1::{Call, Kind, Problem, Quota, Role};
use weft_control::plan::Step;
use weft_control::provision::Failure;
use weft_control::service::{Ask, Reply, Service};

use crate::support::{Cloud, all, eventually, quota};

/// A token's secret.
fn token(cloud: &Cloud, name: &str, role: Role, project: Option<&str>) -> String {
    let secret = format!("secret of {name}");
    cloud.token((name, &secret), role, project);
    secret
}

fn ask(token: &str, target: &str, body: &Value) -> Ask {
    let body = if body.is_null() { Vec::new() } else { serde_json::to_vec(body).unwrap() };
    Ask { token: Some(token.to_owned()), target: target.to_owned(), body, ..Ask::default() }
}

fn json_of(reply: Result<Reply, Problem>) -> Result<Value, Problem> {
    reply.map(|reply| match reply {
        Reply::Json(bytes) | Reply::Passing(bytes) => serde_json::from_slice(&bytes).unwrap(),
        Reply::Text(text) => Value::String(text),
        Reply::Nothing => Value::Null,
    })
}

/// Who may do what is tried with these.
pub(crate) struct People {
    pub(crate) cloud: Cloud,
    pub(crate) admin: String,
    pub(crate) member: String,
    reader: String,
    other: String,
}

impl People {
    pub(crate) fn new(nodes: &[usize]) -> Self {
        let cloud = Cloud::new(nodes);
        cloud.project("a");
        cloud.project("b");
        let admin = token(&cloud, "root", Role::Admin, None);
        let member = token(&cloud, "ann", Role::Member, Some("a"));
        let reader = token(&cloud, "ray", Role::Reader, Some("a"));
        let other = token(&cloud, "ben", Role::Member, Some("b"));
        Self { cloud, admin, member, reader, other }
    }

    pub(crate) fn call(
        &self,
        call: Call,
        who: &str,
        target: &str,
        body: &Value,
    ) -> Result<Value, Problem> {
        json_of(self.cloud.service.call(call, &ask(who, target, body)))
    }

    pub(crate) fn create(&self, who: &str, body: &Value) -> Result<String, Problem> {
        let made = self.call(Call::InstanceCreate, who, "", body)?;
        Ok(made["id"].as_str().unwrap().to_owned())
    }

    pub(crate) fn state(&self, id: &str) -> Value {
        match self.call(Call::InstanceShow, &self.admin, id, &Value::Null) {
            Ok(found) => found["state"].clone(),
            Err(problem) => panic!("{problem}"),
        }
    }

    pub(crate) fn wait(&self, id: &str, state: &str) {
        eventually(&format!("{id} to be {state}"), || self.state(id) == state);
    }

    pub(crate) fn delete(&self, id: &str) {
        self.call(Call::InstanceDelete, &self.admin, id, &Value::Null).unwrap();
        self.wait(id, "terminated");
    }

    pub(crate) fn held(&self) -> Vec<(u64, u64)> {
        let gpus = self.call(Call::GpuList, &self.admin, "", &Value::Null).unwrap();
        let number = |gpu: &Value, name: &str| gpu[name].as_u64().unwrap();
        let gpus = gpus["items"].as_array().unwrap().clone();
        gpus.iter().map(|gpu| (number(gpu, "held_mib"), number(gpu, "cgpus"))).collect()
    }
}

pub(crate) fn shared(cgpus: u32, memory_mib: u64) -> Value {
    json!({"cgpus": cgpus, "memory_mib": memory_mib, "mode": "shared"})
}

#[test]
fn an_instance_gets_what_was_asked_and_gives_it_back() {
    let people = People::new(&[2, 2]);
    let id = people.create(&people.member, &shared(3, 4096)).unwrap();
    people.wait(&id, "ready");
    assert_eq!(people.held(), [(8192, 2), (4096, 1), (0, 0), (0, 0)]);
    let rows = people.cloud.fake.rules(&id);
    let ways: Vec<_> = rows.iter().map(|row| (row.masked.as_str(), row.node.as_str())).collect();
    assert_eq!(ways, [("169.254.77.1:18515", "node0.example:7600")], "one node, one address");
    let vm = people.cloud.fake.vm(&id).unwrap();
    let of = |name: &str| {
        let found = vm.environment.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.clone()).unwrap_or_default()
    };
    assert_eq!(of("CGPU_2"), "169.254.77.1:18515");
    assert_eq!(of("WEFT_VGPU_0").split(',').count(), 3);
    assert_eq!(vm.gateways[0].1.len(), 3, "a grant for each cGPU");
    people.delete(&id);
    assert_eq!(people.held(), [(0, 0); 4]);
    assert!(people.cloud.fake.remains().is_empty());
    let usage = people.call(Call::UsageList, &people.reader, "", &Value::Null).unwrap();
    let records = usage["items"].as_array().unwrap();
    assert_eq!(records.len(), 3);
    assert!(records.iter().all(|one| one["to_ms"].is_u64() && one["used_ns"] == 1));
}

#[test]
fn a_node_that_does_not_answer_costs_no_other_nodes_usage() {
    let people = People::new(&[2, 2]);
    let id = people.create(&people.member, &shared(4, 8192)).unwrap();
    people.wait(&id, "ready");
    assert_eq!(people.held(), [(8192, 1); 4]);
    people.cloud.fake.fail("revoke", 1, Failure::passing("not now"));
    people.delete(&id);
    let usage = people.call(Call::UsageList, &people.reader, "", &Value::Null).unwrap();
    let used: Vec<&Value> = usage["items"].as_array().unwrap().iter().collect();
    assert_eq!(used.len(), 4);
    assert!(used.iter().all(|one| one["used_ns"] == 1), "{used:?}");
}

#[test]
fn exclusive_gpus_are_nobody_elses_and_local_ones_are_on_one_host() {
    let people = People::new(&[1, 2]);
    let exclusive = json!({"cgpus": 2, "locality": "local"});
    let id = people.create(&people.member, &exclusive).unwrap();
    people.wait(&id, "ready");
    assert_eq!(people.held(), [(0, 0), (8192, 1), (8192, 1)]);
    let found = people.call(Call::InstanceShow, &people.admin, &id, &Value::Null).unwrap();
    assert_eq!(found["host"], "node1", "the VM is where its GPUs are");
    let full = people.create(&people.member, &json!({"cgpus": 2})).unwrap_err();
    assert!(full.kind == Kind::NoCapacity && full.detail.contains("1 of 2"), "{full}");
    let large = people.create(&people.member, &shared(1, 8193)).unwrap_err();
    assert!(large.hint.unwrap().contains("more than 8192 MiB"), "waiting makes no GPU larger");
    let seen = people.call(Call::InstanceShow, &people.member, &id, &Value::Null).unwrap();
    assert!(seen["host"].is_null(), "tenants do not see hosts");
}

#[test]
fn quotas_are_checked_before_anything_is_made() {
    let people = People::new(&[4]);
    let quota = Quota::from(quota(3, 4096, 0));
    people.cloud.store.put_project("a", quota, None).unwrap();
    for (body, words) in [
        (shared(4, 1), "4 cGPUs"),
        (shared(2, 4096), "8192 MiB"),
        (json!({"cgpus": 1}), "1 exclusive GPUs"),
    ] {
        let refused = people.create(&people.member, &body).unwrap_err();
        assert_eq!(refused.kind, Kind::Quota);
        assert!(refused.detail.contains(words), "{refused}");
    }
    let id = people.create(&people.member, &shared(3, 1)).unwrap();
    people.wait(&id, "ready");
    let refused = people.create(&people.member, &shared(1, 1)).unwrap_err();
    assert_eq!(refused.kind, Kind::Quota);
    people.create(&people.other, &shared(1, 1)).unwrap();
    people.delete(&id);
    people.create(&people.member, &shared(1, 1)).unwrap();
}

/// Who has a member's token takes no more of a shared GPU than an administrator gave the project.
#[test]
fn weight_and_the_user_facing_class_are_within_the_quota() {
    let people = People::new(&[4]);
    let put = |body: Value| {
        people.call(Call::ProjectPut, &people.admin, "a", &json!({"quota": body})).unwrap()
    };
    let more = |name: &str, value: u32| {
        let mut body = shared(2, 1);
        body[name] = value.into();
        people.create(&people.member, &body)
    };
    let seen = put(json!({"cgpus": 6, "memory_mib": 65536, "exclusive_gpus": 2}));
    assert_eq!((&seen["quota"]["weight"], &seen["quota"]["user_facing"]), (&json!(6), &json!(0)));
    for (name, value, words) in [
        ("weight", 10_000, "20000 of weight in shared cGPUs, and its quota is 6"),
        ("weight", 4, "8 of weight"),
        ("sla_us", 20_000, "2 user-facing cGPUs, and its quota is 0"),
    ] {
        let refused = more(name, value).unwrap_err();
        assert_eq!(refused.kind, Kind::Quota);
        assert!(refused.detail.contains(words), "{refused}");
    }
    let heavy = more("weight", 3).unwrap();
    people.create(&people.member, &shared(1, 1)).unwrap_err();
    // One that has its GPU alone has no weight against anybody, and takes none of the quota.
    let alone = people.create(&people.member, &json!({"cgpus": 1, "weight": 10_000})).unwrap_err();
    assert!(alone.kind == Kind::Invalid && alone.detail.contains("nobody else has"));
    people.create(&people.member, &json!({"cgpus": 1})).unwrap();
    people.wait(&heavy, "ready");
    people.delete(&heavy);
    let given = json!({"cgpus": 6, "memory_mib": 65536, "exclusive_gpus": 2, "weight": 100,
                       "user_facing": 2});
    put(given);
    people.create(&people.member, &shared(1, 1)).unwrap();
    let facing = more("sla_us", 20_000).unwrap();
    people.create(&people.member, &json!({"cgpus": 1, "sla_us": 20_000})).unwrap_err();
    people.wait(&facing, "ready");
    let seen = people.call(Call::ProjectShow, &people.member, "a", &Value::Null).unwrap();
    assert_eq!((&seen["used"]["weight"], &seen["used"]["user_facing"]), (&json!(3), &json!(2)));
}

/// A node that is gone has the GPUs, and the project does not pay for that.
#[test]
fn what_cannot_be_removed_does_not_hold_the_projects_quota() {
    let people = People::new(&[1, 1]);
    let cloud = &people.cloud;
    cloud.store.put_project("a", quota(1, 8192, 0).into(), None).unwrap();
    let lost = people.create(&people.member, &shared(1, 8192)).unwrap();
    people.wait(&lost, "ready");
    cloud.fake.fail("revoke", u32::MAX, Failure::passing("no route to host"));
    people.call(Call::InstanceDelete, &people.member, &lost, &Value::Null).unwrap();
    let refused = people.create(&people.member, &shared(1, 8192)).unwrap_err();
    assert_eq!(refused.kind, Kind::Quota);
    let used = || cloud.store.project("a").unwrap().unwrap().1;
    eventually("the project to have its quota back", || used() == Quota::default());
    assert_eq!(
        (people.state(&lost), people.held()),
        (json!("terminating"), vec![(8192, 1), (0, 0)])
    );
    assert!(cloud.fake.vm(&lost).is_none(), "its VM is ended all the same");
    let told =
        people.call(Call::OperationShow, &people.admin, &format!("op-{lost}-end"), &Value::Null);
    assert!(told.unwrap().to_string().contains("quota is given back"));
    let next = people.create(&people.member, &shared(1, 8192)).unwrap();
    people.wait(&next, "ready");
    cloud.store.recount().unwrap();
    let one = Quota { user_facing: 0, ..Quota::from(quota(1, 8192, 0)) };
    assert_eq!(used(), one, "counted anew, it is not the lost one's");
    cloud.fake.fail("revoke", 0, Failure::passing(""));
    people.wait(&lost, "terminated");
    assert_eq!(people.held(), [(0, 0), (8192, 1)]);
    assert_eq!(used(), one, "nothing is given back twice");
}

/// A VM's sessions end at the node though the endpoint of its host is away, and only who says that
/// they did gives the project its quota back.
#[test]
fn quota_comes_back_when_somebody_says_that_the_sessions_have_ended() {
    let people = People::new(&[1]);
    let cloud = &people.cloud;
    let used = || cloud.store.project("a").unwrap().unwrap().1;
    let show = |who: &str, id: &str| {
        people.call(Call::InstanceShow, who, id, &Value::Null).unwrap()["ending"].clone()
    };
    cloud.store.put_endpoints(&[("fake".to_owned(), "/nowhere".to_owned())]).unwrap();
    let id = people.create(&people.member, &shared(1, 1024)).unwrap();
    people.wait(&id, "ready");
    assert_eq!(show(&people.admin, &id), Value::Null);
    cloud.fake.fail("withdraw", u32::MAX, Failure::away("host h: no endpoint answers"));
    cloud.fake.fail("revoke", u32::MAX, Failure::passing("no route"));
    cloud.fake.fail("terminate", u32::MAX, Failure::passing("no hypervisor"));
    people.call(Call::InstanceDelete, &people.member, &id, &Value::Null).unwrap();
    let kept = "host h: no endpoint answers; node node0: no route; no hypervisor; it may compute \
                on, and the project's quota stays taken";
    eventually("the quota to be said to stay", || {
        show(&people.admin, &id).as_str().is_some_and(|words| words.contains(kept))
    });
    let told = show(&people.member, &id).as_str().unwrap().to_owned();
    assert!(told.starts_with("somebody does not answer (an administrator sees who); it may"));
    assert!(told.contains("quota stays taken") && !told.contains("node0"), "{told}");
    assert_eq!(used().cgpus, 1, "it may compute on");
    // The node answers again, and the endpoint does not.
    cloud.fake.fail("revoke", 0, Failure::passing(""));
    cloud.engine.kick(&id);
    eventually("the project to have its quota back", || used() == Quota::default());
    assert_eq!(people.state(&id), "terminating");
    assert!(cloud.fake.vm(&id).is_some(), "its port is no other VM's before the rules are gone");
    let told = show(&people.admin, &id).as_str().unwrap().to_owned();
    assert!(told.contains("host h: no endpoint answers; the project's quota is given back"));
    assert!(!told.contains("node0"), "it has answered: {told}");
    let told = show(&people.member, &id).as_str().unwrap().to_owned();
    assert!(told.contains("; the project's quota is given back"), "{told}");
    cloud.fake.fail("terminate", 0, Failure::passing(""));
    cloud.fake.fail("withdraw", 0, Failure::passing(""));
    cloud.engine.kick(&id);
    people.wait(&id, "terminated");
    assert!(cloud.fake.remains().is_empty());
    assert_eq!(used(), Quota::default(), "nothing is given back twice");
}

/// An endpoint that was taken out of service while it was away is not waited for, and has cut
/// nothing off; that it is known again does not say so either.
#[test]
fn an_endpoint_is_asked_before_quota_comes_back_on_its_word() {
    let people = People::new(&[1]);
    let cloud = &people.cloud;
    let id = people.create(&people.member, &shared(1, 1024)).unwrap();
    people.wait(&id, "ready");
    cloud.fake.fail("withdraw", u32::MAX, Failure::away("host fake: no endpoint answers"));
    cloud.fake.fail("revoke", u32::MAX, Failure::passing("no route"));
    cloud.fake.fail("terminate", u32::MAX, Failure::passing("no hypervisor"));
    people.call(Call::InstanceDelete, &people.member, &id, &Value::Null).unwrap();
    let row = || cloud.store.instance(&id).unwrap().unwrap();
    eventually("its rules not to be waited for", || row().marks.has(Step::Unrule));
    cloud.store.put_endpoints(&[("fake".to_owned(), "/nowhere".to_owned())]).unwrap();
    let attempts = || {
        cloud.engine.kick(&id);
        let (_, events) = cloud.store.operation(&row().operation).unwrap().unwrap();
        let is_it = |event: &&weft_api::v1::Event| event.step == "revoke";
        1 << events.iter().filter(is_it).count()
    };
    eventually("more attempts than quota waits for", || attempts() > 16);
    let used = || cloud.store.project("a").unwrap().unwrap().1;
    assert_eq!(used().cgpus, 1, "it may compute on");
    cloud.fake.fail("withdraw", 0, Failure::passing(""));
    eventually("the project to have its quota back", || attempts() > 0 && used().cgpus == 0);
    assert_eq!(people.state(&id), "terminating");
}

#[test]
fn sessions_end_while_an_endpoint_hangs() {
    let people = People::new(&[1]);
    let cloud = &people.cloud;
    let id = people.create(&people.member, &shared(1, 1024)).unwrap();
    people.wait(&id, "ready");
    cloud.fake.hang("withdraw", true);
    people.call(Call::InstanceDelete, &people.member, &id, &Value::Null).unwrap();
    let marks = || cloud.store.instance(&id).unwrap().unwrap().marks;
    eventually("the node to have ended its sessions", || marks().has(Step::Revoke));
    assert!(!marks().has(Step::Unrule) && cloud.fake.vm(&id).is_some());
    cloud.fake.hang("withdraw", false);
    people.wait(&id, "terminated");
}

/// Where neither the endpoint nor the node answers, the VM's end is what gives the quota back.
#[test]
fn a_vm_is_ended_though_endpoint_and_node_are_away() {
    let people = People::new(&[1]);
    let cloud = &people.cloud;
    cloud.store.put_endpoints(&[("fake".to_owned(), "/nowhere".to_owned())]).unwrap();
    let id = people.create(&people.member, &shared(1, 1024)).unwrap();
    people.wait(&id, "ready");
    cloud.fake.fail("withdraw", u32::MAX, Failure::away("host h: no endpoint answers"));
    cloud.fake.fail("revoke", u32::MAX, Failure::passing("no route"));
    people.call(Call::InstanceDelete, &people.member, &id, &Value::Null).unwrap();
    eventually("the VM to be ended", || cloud.fake.vm(&id).is_none());
    let used = || cloud.store.project("a").unwrap().unwrap().1;
    eventually("the project to have its quota back", || used() == Quota::default());
}

#[test]
fn an_endpoint_is_taken_out_of_service_by_an_administrator_and_not_while_it_is_used() {
    let people = People::new(&[2]);
    let (store, fake) = (&people.cloud.store, &people.cloud.fake);
    store.put_endpoints(&[("fake".to_owned(), "/nowhere".to_owned())]).unwrap();
    let call = |call, who: &str, body: &Value| people.call(call, who, "fake", body);
    let id = people.create(&people.member, &shared(1, 1024)).unwrap();
    people.wait(&id, "ready");
    let listed = people.call(Call::EndpointList, &people.admin, "", &Value::Null).unwrap();
    let listed = listed["items"][0].clone();
    let seen = (&listed["host"], &listed["instances"], &listed["in_service"]);
    assert_eq!(seen, (&json!("fake"), &json!(1), &json!(true)));
    assert!(listed["unreachable"].as_str().unwrap().contains("no endpoint answers at /nowhere"));
    for what in [Call::EndpointList, Call::EndpointChange, Call::EndpointDelete] {
        let refused = call(what, &people.member, &json!({"in_service": false})).unwrap_err();
        assert_eq!(refused.kind, Kind::Forbidden);
    }
    let refused = call(Call::EndpointDelete, &people.admin, &Value::Null).unwrap_err();
    assert_eq!(refused.kind, Kind::Conflict);
    let words = "the endpoint of host fake (VMs that it leads: 1) is in use";
    assert_eq!((refused.detail.as_str(), refused.hint.is_some()), (words, true));

    // One that is drained leads what it led, and nothing new.
    let drained = call(Call::EndpointChange, &people.admin, &json!({"in_service": false}));
    assert_eq!(drained.unwrap()["in_service"], false);
    let refused = people.create(&people.member, &shared(1, 1024)).unwrap_err();
    assert_eq!(refused.kind, Kind::NoCapacity, "{refused}");
    assert!(refused.detail.contains("no compute host takes new VMs now"), "{refused}");
    assert_eq!(people.held(), [(1024, 1), (0, 0)], "nothing was made");
    // Another host could lead one, and it came to this one.
    store.put_endpoints(&[("other".to_owned(), "/nowhere".to_owned())]).unwrap();
    let next = people.create(&people.member, &shared(1, 1024)).unwrap();
    people.wait(&next, "failed");
    let failure = people.call(Call::InstanceShow, &people.admin, &next, &Value::Null).unwrap();
    assert!(failure["failure"].as_str().unwrap().contains("is drained"), "{failure}");
    let failure = people.call(Call::InstanceShow, &people.member, &next, &Value::Null).unwrap();
    let told = "the VM's host takes no new VMs for now; launch it again later";
    assert_eq!(failure["failure"], told);
    assert_eq!((people.state(&id), fake.rules(&id).len()), (json!("ready"), 1));
    // A start names it again, and it stays as it was.
    store.put_endpoints(&[("fake".to_owned(), "/elsewhere".to_owned())]).unwrap();
    assert!(!store.endpoint("fake").unwrap().unwrap().in_service);

    // It does not answer, and what it led ends all the same.
    fake.fail("withdraw", u32::MAX, Failure::away("host fake: no endpoint answers"));
    call(Call::EndpointDelete, &people.admin, &Value::Null).unwrap_or(Value::Null);
    people.wait(&id, "failed");
    let failure = people.call(Call::InstanceShow, &people.admin, &id, &Value::Null).unwrap();
    assert_eq!(failure["failure"], "the endpoint of host fake was taken out of service");
    assert_eq!(people.held(), [(0, 0); 2]);
    let gone = call(Call::EndpointDelete, &people.admin, &Value::Null).unwrap_err();
    assert_eq!(gone.kind, Kind::NotFound);
    let audit = people.call(Call::AuditList, &people.admin, "", &Value::Null).unwrap();
    let audit = audit["items"].as_array().unwrap().clone();
    let of = |status: u64| {
        let is_it = |one: &&Value| one["action"] == "EndpointDelete" && one["status"] == status;
        audit.iter().filter(is_it).count()
    };
    assert_eq!([of(204), of(403), of(409), of(404)], [1, 1, 1, 1]);
}

/// Quota and GPUs are taken together: whoever asks at the same time does not get more.
#[test]
fn many_at_once_get_what_there_is_and_no_more() {
    let people = People::new(&[4]);
    let quota = Quota::from(quota(20, 1 << 30, 0));
    people.cloud.store.put_project("a", quota, None).unwrap();
    let outcomes: Vec<Result<String, Problem>> = std::thread::scope(|scope| {
        let one = || scope.spawn(|| people.create(&people.member, &shared(1, 1024)));
        let all: Vec<_> = (0..48).map(|_| one()).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let made = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
    assert_eq!(made, 20, "{outcomes:?}");
    for refused in outcomes.iter().filter_map(|outcome| outcome.as_ref().err()) {
        assert!([Kind::Quota, Kind::Busy].contains(&refused.kind), "{refused}");
    }
    let held: u64 = people.held().iter().map(|(held, _)| held).sum();
    assert_eq!(held, 20 * 1024);
    for id in outcomes.into_iter().flatten() {
        people.wait(&id, "ready");
    }
}

#[test]
fn what_asks_for_nonsense_is_told_so() {
    let people = People::new(&[1]);
    for (body, words) in [
        (json!({"cgpus": 0}), "1 to 4096"),
        (json!({"cgpus": 5000}), "1 to 4096"),
        (json!({"cgpus": 1, "mode": "shared"}), "how much memory"),
        (json!({"cgpus": 1, "weight": 0}), "1 to 10000"),
        (json!({"cgpus": 1, "memory_mib": u64::MAX}), "no GPU has more"),
        (json!({"cgpus": 1, "name": "A b"}), "is no name"),
        (json!({"cgpus": 1, "user_data": "x".repeat(60_000)}), "bytes of user-data"),
        (json!({"cgpus": 1, "user_data": "echo a\0b"}), "a NUL byte"),
        (json!({"cgpus": 1, "sla_us": u64::MAX}), "can be met"),
        (json!({"cgpus": 1, "sla_us": 1}), "100 to 3600000000 us"),
        (json!({"cgpus": 1, "sla_us": 0}), "an SLA of 0 us: 100 to 3600000000 us can be met"),
        (json!({"cgpus": 1, "image": "i"}), "`image` is of OpenStack's VMs"),
        (json!({"cgpus": 1, "flavor": "large"}), "`flavor` is of OpenStack's VMs"),
        (json!({"cgpus": 1, "network": "a b"}), "the network `a b` is no id"),
        (json!({"cgpus": 1, "flavor": ""}), "the flavor `` is no name"),
        (json!({"cgpus": 1, "project": "b"}), "project a's"),
        (json!({"cgpus": -1}), "not understood"),
        (json!({"cgpus": 1, "wait": true}), "wait"),
        (json!({}), "cgpus"),
        (Value::Null, "not understood"),
    ] {
        let refused = people.create(&people.member, &body).unwrap_err();
        assert!(refused.detail.contains(words), "{body} says: {refused}");
    }
    let nowhere = people.create(&people.admin, &json!({"cgpus": 1})).unwrap_err();
    assert!(nowhere.detail.contains("no project"), "{nowhere}");
    assert!(people.cloud.fake.remains().is_empty());
}

#[test]
fn a_token_lets_its_bearer_do_what_its_role_says_in_its_project() {
    fn kind<T: std::fmt::Debug>(answer: Result<T, Problem>) -> Kind {
        answer.unwrap_err().kind
    }
    let people = People::new(&[1]);
    let id = people.create(&people.member, &shared(1, 1)).unwrap();
    people.wait(&id, "ready");
    let none = Value::Null;
    assert_eq!(kind(people.create(&people.reader, &shared(1, 1))), Kind::Forbidden);
    people.call(Call::InstanceShow, &people.reader, &id, &none).unwrap();
    assert_eq!(
        kind(people.call(Call::InstanceDelete, &people.reader, &id, &none)),
        Kind::Forbidden
    );
    // Another project's things are not there.
    for call in
        [Call::InstanceShow, Call::InstanceDelete, Call::InstanceConsole, Call::InstanceCgpus]
    {
        assert_eq!(kind(people.call(call, &people.other, &id, &none)), Kind::NotFound, "{call:?}");
    }
    let operation = format!("op-{id}");
    let seen = people.call(Call::OperationShow, &people.other, &operation, &none);
    assert_eq!(kind(seen), Kind::NotFound);
    assert_eq!(kind(people.call(Call::ProjectShow, &people.other, "a", &none)), Kind::NotFound);
    let list = people.call(Call::InstanceList, &people.other, "", &none).unwrap();
    assert_eq!(list["items"], json!([]));
    for call in [Call::NodeList, Call::GpuList, Call::AuditList, Call::TokenList, Call::Metrics] {
        assert_eq!(kind(people.call(call, &people.member, "", &none)), Kind::Forbidden, "{call:?}");
    }
    assert_eq!(kind(people.call(Call::InstanceList, "wrong", "", &none)), Kind::Unauthenticated);
    let cgpus = people.call(Call::CgpuList, &people.member, "", &none).unwrap();
    assert!(cgpus["items"][0]["node"].is_null() && cgpus["items"][0]["masked"].is_string());
    // One that was taken back is nobody's.
    people.call(Call::TokenDelete, &people.admin, "ann", &none).unwrap();
    let gone = people.call(Call::InstanceList, &people.member, "", &none);
    assert_eq!(kind(gone), Kind::Unauthenticated);
}

#[test]
fn the_same_request_with_the_same_key_is_carried_out_once() {
    let people = People::new(&[1]);
    let create = |key: &str, body: &Value| {
        let asked = Ask { key: Some(key.to_owned()), ..ask(&people.member, "", body) };
        json_of(people.cloud.service.call(Call::InstanceCreate, &asked))
    };
    // All of the GPU: a second one would find no room.
    let first = create("k", &json!({"cgpus": 1})).unwrap();
    let again = create("k", &json!({"cgpus": 1})).unwrap();
    assert_eq!(first["id"], again["id"]);
    let other = create("k", &json!({"cgpus": 1, "memory_mib": 2})).unwrap_err();
    assert!(other.detail.contains("another request"), "{other}");
    create("", &json!({"cgpus": 1})).unwrap_err();
    // Another token's key is another key.
    let asked = Ask { key: Some("k".into()), ..ask(&people.other, "", &shared(1, 1)) };
    let theirs = json_of(people.cloud.service.call(Call::InstanceCreate, &asked));
    assert_eq!(theirs.unwrap_err().kind, Kind::NoCapacity);
}

#[test]
fn what_fails_for_a_while_is_tried_again_and_what_fails_for_good_is_undone() {
    let people = People::new(&[2]);
    let fake = &people.cloud.fake;
    for what in ["sign", "create", "port", "make", "put", "state", "holds"] {
        fake.fail(what, 2, Failure::passing("not now"));
        let id = people.create(&people.member, &shared(2, 1024)).unwrap();
        people.wait(&id, "ready");
        let operation = format!("op-{id}");
        let seen = people.call(Call::OperationShow, &people.admin, &operation, &Value::Null);
        let events = seen.unwrap()["events"].as_array().unwrap().clone();
        assert!(events.iter().any(|event| event["kind"] == "retry"), "{what}: {events:?}");
        people.delete(&id);

        fake.fail(what, 1, Failure::permanent("never, on node7"));
        let id = people.create(&people.member, &shared(2, 1024)).unwrap();
        people.wait(&id, "failed");
        assert!(fake.remains().is_empty(), "{what}: {:?}", fake.remains());
        assert_eq!(people.held(), [(0, 0); 2], "{what}");
        let seen = people.call(Call::InstanceShow, &people.admin, &id, &Value::Null).unwrap();
        assert!(seen["failure"].as_str().unwrap().contains("node7"), "{seen}");
        let told = people.call(Call::InstanceShow, &people.member, &id, &Value::Null).unwrap();
        assert!(!told["failure"].as_str().unwrap().contains("node7"), "{told}");
        people.call(Call::InstanceDelete, &people.member, &id, &Value::Null).unwrap();
        let list = people.call(Call::InstanceList, &people.member, "", &Value::Null).unwrap();
        assert_eq!(list["items"], json!([]), "{what}");
    }
}

/// An endpoint that is started again takes longer than six attempts do.
#[test]
fn an_endpoint_that_is_away_is_waited_for_while_the_vm_boots() {
    let people = People::new(&[1]);
    for what in ["put", "holds"] {
        people.cloud.fake.fail(what, 7, Failure::away("host fake: no endpoint answers"));
        let id = people.create(&people.member, &shared(1, 1024)).unwrap();
        people.wait(&id, "ready");
        assert_eq!(people.cloud.fake.rules(&id).len(), 1, "{what}");
        people.delete(&id);
    }
    // Nobody waits for what was terminated meanwhile.
    people.cloud.fake.fail("put", u32::MAX, Failure::away("host fake: no endpoint answers"));
    let id = people.create(&people.member, &shared(1, 1024)).unwrap();
    let operation = format!("op-{id}");
    eventually("a retry", || {
        let seen = people.call(Call::OperationShow, &people.admin, &operation, &Value::Null);
        seen.unwrap().to_string().contains("no endpoint answers")
    });
    people.delete(&id);
    assert!(people.cloud.fake.remains().is_empty());
}

#[test]
fn removing_never_gives_up() {
    let people = People::new(&[1]);
    let id = people.create(&people.member, &shared(1, 1024)).unwrap();
    people.wait(&id, "ready");
    for what in ["withdraw", "revoke", "terminate"] {
        people.cloud.fake.fail(what, 3, Failure::permanent("not reachable"));
    }
    people.delete(&id);
    assert!(people.cloud.fake.remains().is_empty());
}

#[test]
fn a_drained_gpu_gets_nothing_new() {
    let people = People::new(&[2]);
    let id = people.create(&people.member, &shared(1, 1024)).unwrap();
    people.wait(&id, "ready");
    let drain = |is: bool| {
        let gpus = people.call(Call::GpuList, &people.admin, "", &Value::Null).unwrap();
        let id = gpus["items"][0]["id"].to_string();
        people.call(Call::GpuChange, &people.admin, &id, &json!({"in_service": is})).unwrap()
    };
    assert_eq!(drain(false)["in_service"], false);
    people.create(&people.member, &shared(1, 1024)).unwrap();
    assert_eq!(people.held(), [(1024, 1), (1024, 1)]);
    drain(true);
    people.create(&people.member, &shared(1, 1024)).unwrap();
    assert_eq!(people.held(), [(2048, 2), (1024, 1)]);
}

#[test]
fn a_project_makes_no_more_instances_in_a_day_than_it_may() {
    let people = People::new(&[1]);
    let make = |most| {
        let engine = std::sync::Arc::clone(&people.cloud.engine);
        let service = Service::new(engine).with_launches(most);
        service.call(Call::InstanceCreate, &ask(&people.member, "", &shared(1, 1))).map(drop)
    };
    // Whatever time of the day it is.
    let refused = make(Some(0)).unwrap_err();
    assert!(refused.kind == Kind::Quota && refused.detail.contains("0 in a day"), "{refused}");
    assert!(people.cloud.store.live().unwrap().is_empty());
    make(Some(1)).unwrap();
    make(None).unwrap();
}

#[test]
fn lists_come_in_pages_that_are_whole_together() {
    let people = People::new(&[4]);
    let made: Vec<String> =
        (0..7).map(|_| people.create(&people.member, &shared(1, 1)).unwrap()).collect();
    let (mut found, mut after, mut pages) = (Vec::new(), None, 0);
    loop {
        let asked = Ask { limit: Some(3), after, ..ask(&people.reader, "", &Value::Null) };
        let page = json_of(people.cloud.service.call(Call::InstanceList, &asked)).unwrap();
        let items = page["items"].as_array().unwrap();
        found.extend(items.iter().map(|item| item["id"].as_str().unwrap().to_owned()));
        pages += 1;
        after = page["next"].as_str().map(str::to_owned);
        if after.is_none() {
            break;
        }
    }
    assert_eq!((found, pages), (made, 3));
    for limit in [0, 1001] {
        let asked = Ask { limit: Some(limit), ..ask(&people.reader, "", &Value::Null) };
        json_of(people.cloud.service.call(Call::InstanceList, &asked)).unwrap_err();
    }
}

#[test]
fn who_did_what_stands_in_the_audit_refusals_too() {
    let people = People::new(&[1]);
    let id = people.create(&people.member, &shared(1, 1)).unwrap();
    people.wait(&id, "ready");
    people.create(&people.reader, &shared(1, 1)).unwrap_err();
    people.delete(&id);
    let audit = people.call(Call::AuditList, &people.admin, "", &Value::Null).unwrap();
    let line =
        |entry: &Value| format!("{} {} {}", entry["actor"], entry["action"], entry["status"]);
    let lines: Vec<String> = audit["items"].as_array().unwrap().iter().map(line).collect();
    let expected = [
        r#""ann" "InstanceCreate" 202"#,
        r#""ray" "InstanceCreate" 403"#,
        r#""root" "InstanceDelete" 202"#,
    ];
    assert_eq!(lines, expected);
}

/// Rules are withdrawn at once, and the node hangs: that is told after one attempt.
#[test]
fn what_fails_beside_a_step_that_is_done_is_told_at_once() {
    let people = People::new(&[1]);
    let id = people.create(&people.member, &shared(1, 1)).unwrap();
    people.wait(&id, "ready");
    people.cloud.fake.fail("revoke", 1, Failure::passing("it hangs"));
    people.delete(&id);
    people.wait(&id, "terminated");
    let seen = people.cloud.store.instance(&id).unwrap().unwrap().operation;
    let (_, events) = people.cloud.store.operation(&seen).unwrap().unwrap();
    let retry = |event: &&weft_api::v1::Event| event.kind == weft_api::v1::EventKind::Retry;
    assert_eq!(events.iter().filter(retry).count(), 1, "{events:?}");
}

#[test]
fn a_token_ends_and_refused_logins_stand_in_the_audit_within_bounds() {
    let people = People::new(&[1]);
    let made = people.call(
        Call::TokenCreate,
        &people.admin,
        "",
        &json!({"name": "short", "project": "a", "role": "reader", "valid_s": 1}),
    );
    let made = made.unwrap();
    let secret = made["secret"].as_str().unwrap().to_owned();
    assert_eq!(made["expires_ms"].as_u64(), made["created_ms"].as_u64().map(|ms| ms + 1_000));
    let list = |who: &str| people.call(Call::InstanceList, who, "", &Value::Null);
    eventually("the token to end", || list(&secret).is_err());
    let ended = list(&secret).unwrap_err();
    assert!(ended.kind == Kind::Unauthenticated && ended.detail.contains("expired"), "{ended}");
    for guess in 0..200 {
        assert_eq!(list(&format!("guess {guess}")).unwrap_err().kind, Kind::Unauthenticated);
    }
    let refused = |entry: &&(String, weft_api::v1::AuditEntry)| entry.1.status == 401;
    let audit = people.cloud.store.audit(&weft_control::store::Part { limit: 1_000, ..all() });
    let audit = audit.unwrap();
    let refused: Vec<_> = audit.iter().filter(refused).collect();
    assert!((1..=20).contains(&refused.len()), "{refused:?}");
    assert_eq!(refused[0].1.actor, "(nobody)");
    let long = json!({"name": "long", "role": "admin", "valid_s": 400_000_000});
    let refused = people.call(Call::TokenCreate, &people.admin, "", &long).unwrap_err();
    assert_eq!(refused.kind, Kind::Invalid);
}

#[test]
fn the_last_administrator_stays() {
    let people = People::new(&[1]);
    let remove = |name: &str| people.call(Call::TokenDelete, &people.admin, name, &Value::Null);
    let refused = remove("root").unwrap_err();
    assert!(refused.detail.contains("last administrator"), "{refused}");
    token(&people.cloud, "second", Role::Admin, None);
    remove("root").unwrap();
}

#[test]
fn metrics_say_how_much_there_is() {
    let people = People::new(&[2]);
    let id = people.create(&people.member, &shared(2, 100)).unwrap();
    people.wait(&id, "ready");
    let text = people.call(Call::Metrics, &people.admin, "", &Value::Null).unwrap();
    let text = text.as_str().unwrap();
    for line in
        ["weft_cloud_cgpus 2", "weft_cloud_gpus 2", "weft_cloud_memory_held_bytes 209715200"]
    {
        assert!(text.lines().any(|found| found == line), "{line} in {text}");
    }
}
