//! OpenStack's part, against a cloud that answers as the real one did.

mod crash;
mod fake;
mod identity;
mod machines;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use weft_api::v1::{InstanceState, NewInstance, Problem};
use weft_control::allocate::Allocator;
use weft_control::crash::Crash;
use weft_control::engine::Engine;
use weft_control::execute::World;
use weft_control::openstack::Credentials;
use weft_control::provision::openstack::{Key, OpenStack, Settings};
use weft_control::provision::{Failure, Provisioner, VmSpec, VmState};
use weft_control::service::{Ask, Service};
use weft_control::store::{InstanceRow, Machine, TokenRow};
use weft_control::sweep::{self, Swept};

use self::fake::{FakeCloud, Mishap, OTHER, TENANT};
use crate::support::{Cloud, eventually, shared};

/// A VM of a tenant's.
fn vm(id: &str) -> VmSpec {
    VmSpec {
        id: id.to_owned(),
        name: "my-vm".to_owned(),
        project: TENANT.to_owned(),
        slot: 0,
        cgpus: 2,
        host: None,
        environment: vec![("CGPU_0".to_owned(), "169.254.77.1:18515".to_owned())],
        gateways: vec![("169.254.77.1:18515".to_owned(), vec!["grant".to_owned()])],
        nodes: std::collections::BTreeMap::new(),
        user_data: "true".to_owned(),
        machine: Machine::default(),
    }
}

fn vms(cloud: &FakeCloud) -> OpenStack {
    let folder = tempfile::tempdir().unwrap();
    let key = Key::at(&folder.path().join("key")).unwrap();
    OpenStack::new(cloud.client(), settings(), key)
}

fn settings() -> Settings {
    let [image, flavor, network] = ["image1", "m1", "net1"].map(str::to_owned);
    let settings = Settings::new(image, flavor, network, PathBuf::from("/usr/local/lib/weft"));
    Settings { look_again: Duration::from_millis(5), ..settings }
}

#[test]
fn a_server_is_made_once_in_its_project_and_found_again() {
    let cloud = FakeCloud::start();
    let vms = vms(&cloud);
    assert!(vms.check().unwrap().contains("0 now"));
    assert_eq!(vms.state("i1").unwrap(), VmState::Absent);
    assert_eq!(vms.port("i1").unwrap(), None);
    vms.create(&vm("i1")).unwrap();
    vms.create(&vm("i1")).unwrap();
    assert_eq!(cloud.asked("POST /servers"), 1);
    let server = cloud.lock().servers[0].clone();
    assert_eq!(
        (server["tenant_id"].as_str(), server["name"].as_str()),
        (Some(TENANT), Some("my-vm"))
    );
    assert_eq!((server["flavorRef"].as_str(), &server["host"]), (Some("f1"), &json!(null)));
    assert_eq!(vms.state("i1").unwrap(), VmState::Active);
    let (host, port) = vms.port("i1").unwrap().unwrap();
    assert_eq!((host.as_str(), port.tap.as_str()), ("compute1", "tap0123456789a"));
    assert_eq!((port.mac.as_str(), port.ip.as_str()), ("fa:16:3e:00:00:01", "10.0.0.5"));
    assert_eq!(vms.inventory().unwrap(), ["i1"]);
    assert!(vms.console("i1").unwrap().contains("console of"));
    assert!(!vms.terminate("i1").unwrap(), "Nova was asked");
    assert!(vms.terminate("i1").unwrap(), "and has done it");
    assert!(cloud.lock().servers.is_empty());
}

/// Local cGPUs: the host that was chosen, and the flavor with which Nova counts them.
#[test]
fn a_local_server_is_on_its_gpus_host() {
    let cloud = FakeCloud::start();
    let vms = vms(&cloud);
    vms.create(&VmSpec { host: Some("compute1".to_owned()), ..vm("i1") }).unwrap();
    let server = cloud.lock().servers[0].clone();
    assert_eq!(
        (server["flavorRef"].as_str(), server["host"].as_str()),
        (Some("f2"), Some("compute1"))
    );
    let three = VmSpec { host: Some("compute1".to_owned()), cgpus: 3, ..vm("i2") };
    let failure = vms.create(&three).unwrap_err();
    assert!(failure.is_permanent && failure.words.contains("m1.cgpu3"), "{failure}");
}

/// An answer that is lost makes no second server, and a second one that comes late goes.
#[test]
fn a_lost_answer_makes_no_second_server() {
    let cloud = FakeCloud::start();
    let vms = vms(&cloud);
    cloud.fail("POST /servers", Mishap::AnswerLost, 1);
    assert!(!vms.create(&vm("i1")).unwrap_err().is_permanent);
    vms.create(&vm("i1")).unwrap();
    assert_eq!((cloud.asked("POST /servers"), cloud.lock().servers.len()), (1, 1));
    // Nova works on the first request while the second is made.
    let cloud = FakeCloud::start();
    let vms = self::vms(&cloud);
    cloud.fail("POST /servers", Mishap::DoneLate, 1);
    assert!(!vms.create(&vm("i2")).unwrap_err().is_permanent);
    vms.create(&vm("i2")).unwrap();
    let first = cloud.lock().servers[0]["id"].clone();
    eventually("the late one to be there", || cloud.lock().servers.len() == 2);
    assert_eq!(vms.state("i2").unwrap(), VmState::Active);
    let left: Vec<_> = cloud.lock().servers.iter().map(|server| server["id"].clone()).collect();
    assert_eq!(left, [first], "the oldest stays");
}

/// Tags and metadata are a tenant's to write, a seal is not.
#[test]
fn a_tenants_server_is_not_taken_for_anothers_instance() {
    let cloud = FakeCloud::start();
    let vms = vms(&cloud);
    vms.create(&vm("i1")).unwrap();
    let mut copied = cloud.lock().servers[0].clone();
    copied["id"] = json!("forged");
    copied["tenant_id"] = json!(OTHER);
    copied["created"] = json!("2000-01-01T00:00:00Z");
    cloud.lock().servers.insert(0, copied);
    let (_, port) = vms.port("i1").unwrap().unwrap();
    assert_eq!(port.ip, "10.0.0.5", "not the older one");
    // Nor one of another control plane in the same cloud.
    let stranger = self::vms(&cloud);
    assert!(stranger.inventory().unwrap().is_empty());
    assert!(stranger.terminate("i1").unwrap());
    assert!(!vms.terminate("i1").unwrap());
    let left = cloud.lock().servers.clone();
    assert_eq!((left.len(), &left[0]["id"]), (1, &json!("forged")), "it is the tenant's own");
    assert!(vms.terminate("i1").unwrap());
}

#[test]
fn lists_are_read_to_their_end() {
    let cloud = FakeCloud::start();
    let vms = vms(&cloud);
    vms.create(&vm("i1")).unwrap();
    let mut inner = cloud.lock();
    for number in 0..1_200 {
        let mut server = inner.servers[0].clone();
        server["id"] = json!(format!("more-{number}"));
        server["metadata"] = json!({});
        inner.servers.insert(0, server);
    }
    drop(inner);
    assert_eq!(vms.inventory().unwrap(), ["i1"]);
    assert_eq!(cloud.asked("GET /servers"), 1 + 4);
}

#[test]
fn what_is_refused_for_good_is_told_from_what_may_pass() {
    let cloud = FakeCloud::start();
    let vms = vms(&cloud);
    let failed = |mishap| -> Failure {
        cloud.fail("POST /servers", mishap, 1);
        vms.create(&vm("i1")).unwrap_err()
    };
    let quota = failed(Mishap::Quota);
    assert!(quota.is_permanent && quota.words.contains("already used 10 of 10"), "{quota}");
    for passing in [Mishap::Down, Mishap::Hangs] {
        let failure = failed(passing);
        assert!(!failure.is_permanent && failure.words.contains("does not answer"), "{failure}");
    }
    let nowhere = VmSpec { project: "4".repeat(32), ..vm("i1") };
    let failure = vms.create(&nowhere).unwrap_err();
    assert!(failure.is_permanent && failure.words.contains("no role in project"), "{failure}");
    let large = VmSpec { user_data: "x".repeat(48 << 10), ..vm("i1") };
    let failure = vms.create(&large).unwrap_err();
    assert!(failure.is_permanent && failure.words.contains("OpenStack takes 65535"), "{failure}");
    cloud.fail("POST /servers", Mishap::NoHost, 1);
    vms.create(&vm("i1")).unwrap();
    let broken = VmState::Broken("Nova: No valid host was found.".to_owned());
    assert_eq!(vms.state("i1").unwrap(), broken);
}

/// Keystone takes tokens back, and a token is asked for once as long as it is good.
#[test]
fn a_token_is_kept_and_renewed() {
    let cloud = FakeCloud::start();
    let vms = vms(&cloud);
    for _ in 0..3 {
        vms.inventory().unwrap();
    }
    assert_eq!(cloud.asked("POST /auth"), 1);
    cloud.fail("GET /servers", Mishap::Revoked, 1);
    vms.inventory().unwrap();
    assert_eq!(cloud.asked("POST /auth"), 2);
    let wrong = Credentials::Application { id: "app".to_owned(), secret: "wrong".to_owned() };
    let error = cloud.client_with(wrong).own_project().unwrap_err().to_string();
    assert!(error.contains("401") && !error.contains("wrong"), "{error}");
    let app = Credentials::Application { id: "app".to_owned(), secret: "right".to_owned() };
    let client = cloud.client_with(app);
    assert_eq!(client.own_project().unwrap(), fake::OWN);
    let folder = tempfile::tempdir().unwrap();
    let vms = OpenStack::new(client, settings(), Key::at(&folder.path().join("k")).unwrap());
    let failure = vms.create(&vm("i1")).unwrap_err();
    assert!(failure.words.contains("use a password"), "{failure}");
}

#[test]
fn what_is_configured_wrongly_is_said_at_the_start() {
    let cloud = FakeCloud::start();
    let with = |change: &dyn Fn(&mut Settings)| {
        let mut settings = settings();
        change(&mut settings);
        let folder = tempfile::tempdir().unwrap();
        let key = Key::at(&folder.path().join("key")).unwrap();
        OpenStack::new(cloud.client(), settings, key).check().unwrap_err()
    };
    for (failure, words) in [
        (with(&|s| s.image = "none".into()), "no image none"),
        (with(&|s| s.network = "none".into()), "no network none"),
        (with(&|s| s.flavor = "none".into()), "no flavor `none`"),
    ] {
        assert!(failure.is_permanent && failure.words.contains(words), "{failure}");
    }
    cloud.fail("POST /auth", Mishap::Down, 1);
    assert!(!vms(&cloud).check().unwrap_err().is_permanent);
}

#[test]
fn placement_is_told_once_how_many_cgpus_a_host_has() {
    let cloud = FakeCloud::start();
    let vms = vms(&cloud);
    let total = || {
        cloud.lock().inventories["gpus-uuid"]["inventories"]["CUSTOM_WEFT_CGPU"]["total"].clone()
    };
    let offer = |host: &str, cgpus| vms.offer(host, cgpus).unwrap();
    offer("compute1", 16);
    assert_eq!(total(), 16);
    offer("compute1", 16);
    offer("compute1", 8);
    assert_eq!(total(), 8);
    assert_eq!(cloud.asked("POST /resource_providers"), 1);
    offer("no-compute-host", 4);
    assert_eq!(cloud.lock().inventories.len(), 1);
}

/// The whole control plane over the cloud: steps, failures, and what is left.
struct Plane {
    cloud: FakeCloud,
    inside: Cloud,
    engine: Arc<Engine>,
    service: Service,
}

impl Plane {
    fn new() -> Self {
        let cloud = FakeCloud::start();
        let inside = Cloud::new(&[2]);
        inside.project(TENANT);
        let policy = weft_sched::placement::by_name("first_fit").unwrap();
        let world = World {
            store: Arc::clone(&inside.store),
            allocator: Arc::new(Allocator::new(Arc::clone(&inside.store), policy)),
            provisioner: Arc::new(vms(&cloud)),
            endpoint: Arc::clone(&inside.fake) as _,
            nodes: Arc::clone(&inside.fake) as _,
            crash: Crash::default(),
        };
        let engine = Engine::start(world, 4).unwrap();
        let token = TokenRow {
            name: "ann".into(),
            project: Some(TENANT.into()),
            role: weft_api::v1::Role::Member,
            created_ms: 0,
            expires_ms: None,
        };
        let digest = weft_control::random::digest(b"ann");
        inside.store.add_token(&token, digest, None).unwrap();
        let service = Service::new(Arc::clone(&engine));
        Self { cloud, inside, engine, service }
    }

    fn ask(&self, new: &NewInstance) -> Result<(), Problem> {
        let body = serde_json::to_vec(new).unwrap();
        let ask = Ask { token: Some("ann".into()), body, ..Ask::default() };
        self.service.call(weft_api::v1::Call::InstanceCreate, &ask).map(drop)
    }

    fn begin(&self) -> String {
        self.begin_with(&shared(2, 1024))
    }

    fn begin_with(&self, new: &NewInstance) -> String {
        self.ask(new).unwrap();
        let part = weft_control::store::Part { limit: 1_000, after: None, project: None };
        self.inside.store.instances(&part).unwrap().last().unwrap().1.id.clone()
    }

    fn row(&self, id: &str) -> InstanceRow {
        self.inside.store.instance(id).unwrap().unwrap()
    }

    fn wait(&self, id: &str, state: InstanceState) {
        eventually(&format!("{id} to be {state:?}"), || self.row(id).state() == state);
    }

    fn delete(&self, id: &str) {
        self.inside.store.renounce(id, None, None).unwrap();
        self.engine.kick(id);
    }

    /// Nothing anywhere.
    fn assert_empty(&self) {
        assert!(self.cloud.lock().servers.is_empty(), "{:?}", self.cloud.lock().servers);
        assert!(self.inside.fake.remains().is_empty(), "{:?}", self.inside.fake.remains());
        assert_eq!(self.inside.store.counts().unwrap().held_mib, 0);
    }
}

#[test]
fn an_instance_comes_and_goes() {
    let plane = Plane::new();
    let id = plane.begin();
    plane.wait(&id, InstanceState::Ready);
    let rules = plane.inside.fake.rules(&id);
    assert_eq!(rules.len(), 1);
    assert_eq!((rules[0].tap.as_str(), rules[0].host.as_str()), ("tap0123456789a", "compute1"));
    plane.delete(&id);
    plane.wait(&id, InstanceState::Terminated);
    plane.assert_empty();
}

#[test]
fn whatever_fails_leaves_nothing() {
    for (what, mishap, words) in [
        ("POST /servers", Mishap::Quota, "already used 10 of 10"),
        ("POST /servers", Mishap::NoHost, "No valid host"),
        ("POST /servers", Mishap::Down, "does not answer"),
        ("GET /servers", Mishap::Down, "does not answer"),
        ("GET /ports", Mishap::Down, "does not answer"),
        ("POST /auth", Mishap::Down, "does not answer"),
    ] {
        let plane = Plane::new();
        // As often as it is tried.
        plane.cloud.fail(what, mishap, 6);
        let id = plane.begin();
        plane.wait(&id, InstanceState::Failed);
        let failure = plane.row(&id).failure.unwrap();
        assert!(failure.contains(words), "{what} {mishap:?}: {failure}");
        plane.assert_empty();
    }
}

#[test]
fn what_passes_is_waited_for() {
    for (what, mishap) in [
        ("POST /servers", Mishap::AnswerLost),
        ("POST /servers", Mishap::DoneLate),
        ("POST /servers", Mishap::Hangs),
        ("GET /ports", Mishap::Hangs),
        ("POST /auth", Mishap::Down),
        ("GET /servers", Mishap::Revoked),
    ] {
        let plane = Plane::new();
        plane.cloud.fail(what, mishap, 1);
        let id = plane.begin();
        plane.wait(&id, InstanceState::Ready);
        if mishap == Mishap::DoneLate {
            // A look at a ready instance removes the second one too.
            eventually("the late one to be there and gone", || {
                sweep::sweep(&plane.engine).unwrap();
                plane.cloud.asked("DELETE /servers/ID") > 0 && plane.cloud.lock().servers.len() == 1
            });
        }
        // What takes away is tried as long as it takes.
        plane.cloud.fail("DELETE /servers/ID", Mishap::Down, 3);
        plane.delete(&id);
        plane.wait(&id, InstanceState::Terminated);
        plane.assert_empty();
    }
}

/// A server that its owner deleted takes its cGPUs along.
#[test]
fn a_sweep_finds_servers_that_are_gone_and_that_nobody_wants() {
    let plane = Plane::new();
    let id = plane.begin();
    plane.wait(&id, InstanceState::Ready);
    assert_eq!(sweep::sweep(&plane.engine).unwrap(), Swept::default());
    plane.engine.world().provisioner.create(&vm("i-nobodys")).unwrap();
    plane.cloud.lock().servers.retain(|server| server["metadata"]["weft_instance"] != id);
    let swept = sweep::sweep(&plane.engine).unwrap();
    assert_eq!((swept.vms, swept.lost), (1, 1));
    plane.wait(&id, InstanceState::Failed);
    plane.assert_empty();
}
