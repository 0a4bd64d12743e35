//! Keystone's tokens at the control plane's door.

use serde_json::{Value, json};
use weft_api::v1::{Call, Kind, Problem};
use weft_control::identity::KeystoneTokens;
use weft_control::service::{Ask, Reply};

use super::fake::{FakeCloud, Mishap, OTHER, OWN, TENANT};
use super::{Plane, Service};

use std::sync::Arc;

/// What Keystone says of somebody with a role in a project.
fn person(user: &str, project: &str, role: &str) -> Value {
    json!({
        "user": {"id": user}, "project": {"id": project}, "roles": [{"name": role}],
        "issued_at": "2026-01-01T00:00:00.000000Z", "expires_at": "2099-01-01T00:00:00.000000Z",
    })
}

fn plane() -> (Plane, Service) {
    let plane = Plane::new();
    for (token, user, project, role) in [
        ("admins", "root", OWN, "admin"),
        ("members", "ann", TENANT, "member"),
        ("readers", "ray", TENANT, "reader"),
        ("others", "ben", OTHER, "admin"),
        ("nobodys", "nil", TENANT, "guest"),
    ] {
        plane.cloud.lock().people.insert(token.to_owned(), person(user, project, role));
    }
    let service = serve(&plane, &plane.cloud);
    (plane, service)
}

fn serve(plane: &Plane, cloud: &FakeCloud) -> Service {
    let identity = Arc::new(KeystoneTokens::new(cloud.client()));
    Service::new(Arc::clone(&plane.engine)).with_identity(identity)
}

fn call(service: &Service, call: Call, token: &str, body: &Value) -> Result<Reply, Problem> {
    let body = if body.is_null() { Vec::new() } else { serde_json::to_vec(body).unwrap() };
    service.call(call, &Ask { token: Some(token.to_owned()), body, ..Ask::default() })
}

fn kind(reply: Result<Reply, Problem>) -> Kind {
    reply.unwrap_err().kind
}

#[test]
fn people_may_what_keystone_lets_them() {
    let (plane, service) = plane();
    let new = json!({"cgpus": 1, "memory_mib": 512, "mode": "shared"});
    let list = |token| call(&service, Call::InstanceList, token, &Value::Null);
    let create = |token| call(&service, Call::InstanceCreate, token, &new);
    let Reply::Json(bytes) = create("members").unwrap() else { panic!("no instance") };
    let made: Value = serde_json::from_slice(&bytes).unwrap();
    assert_eq!(made["project"], TENANT, "a project is called by its id");
    assert_eq!(kind(create("readers")), Kind::Forbidden);
    // In charge of another project: neither of all, nor of this one, and there is no quota for it.
    assert_eq!(kind(create("others")), Kind::NotFound);
    assert_eq!(kind(call(&service, Call::NodeList, "others", &Value::Null)), Kind::Forbidden);
    call(&service, Call::NodeList, "admins", &Value::Null).unwrap();
    for (token, count) in [("members", 1), ("readers", 1), ("others", 0), ("admins", 1)] {
        let Reply::Json(bytes) = list(token).unwrap() else { panic!("no list") };
        let found: Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(found["items"].as_array().unwrap().len(), count, "{token}");
    }
    for token in ["nobodys", "unknown", "", "with space", "new\nline"] {
        assert_eq!(kind(list(token)), Kind::Unauthenticated, "{token:?}");
    }
    // Tokens of the control plane's own go on.
    list("ann").unwrap();
    let audit = plane.inside.store.audit(&weft_control::store::Part {
        limit: 100,
        after: None,
        project: None,
    });
    let actors: Vec<String> = audit.unwrap().into_iter().map(|(_, entry)| entry.actor).collect();
    assert!(actors.contains(&format!("ann@{TENANT}")), "{actors:?}");
}

#[test]
fn keystone_is_asked_once_and_what_it_said_holds_while_it_is_away() {
    let (plane, service) = plane();
    let list = |token| call(&service, Call::InstanceList, token, &Value::Null);
    for _ in 0..5 {
        list("members").unwrap();
        list("unknown").unwrap_err();
    }
    assert_eq!(plane.cloud.asked("GET /auth"), 2);
    plane.cloud.fail("GET /auth", Mishap::Down, u32::MAX);
    list("members").unwrap();
    let problem = list("readers").unwrap_err();
    assert_eq!((problem.kind, problem.status), (Kind::Busy, 503));
    assert!(!problem.detail.contains("http"), "where Keystone is, nobody is told: {problem}");
}

/// The control plane's own token may be taken back at any time.
#[test]
fn a_token_is_checked_also_after_the_own_one_was_taken_back() {
    let (plane, service) = plane();
    call(&service, Call::InstanceList, "members", &Value::Null).unwrap();
    plane.cloud.forget_tokens();
    call(&service, Call::InstanceList, "readers", &Value::Null).unwrap();
}
