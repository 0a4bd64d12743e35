//! What every store does: all of it is tried on each.

use std::path::PathBuf;
use std::sync::Arc;

use postgres::NoTls;
use tempfile::TempDir;
use weft_api::v1::{Event, EventKind, Mode, OperationState, Quota, Role};
use weft_control::allocate::Allocator;
use weft_control::plan::Step;
use weft_control::store::postgres::{Access, Postgres};
use weft_control::store::sqlite::Sqlite;
use weft_control::store::{
    Audit, Counts, Done, Effects, Found, GpuFound, Key, Leading, Machine, NodeRow, Part, Port,
    Reservation, Spec, Store, StoreError, Taken, TokenRow, Wanted,
};

use crate::database::Cluster;
use crate::support::quota;

/// Where a store is, that may be opened more than once.
enum Place {
    Sqlite(TempDir),
    Postgres(String),
}

impl Place {
    fn sqlite() -> Self {
        Self::Sqlite(tempfile::tempdir().unwrap())
    }

    fn open(&self) -> Result<Arc<dyn Store>, StoreError> {
        Ok(match self {
            Self::Sqlite(folder) => Arc::new(Sqlite::open(&folder.path().join("db"))?),
            Self::Postgres(url) => Arc::new(Postgres::open(Access::new(url, None)?, None)?),
        })
    }

    /// Does what no store would.
    fn directly(&self, change: &str) -> Result<(), String> {
        match self {
            Self::Sqlite(folder) => {
                let path: PathBuf = folder.path().join("db");
                let connection = rusqlite::Connection::open(path).unwrap();
                connection.execute_batch(change).map_err(|error| error.to_string())
            }
            Self::Postgres(url) => {
                let mut client = postgres::Client::connect(url, NoTls).unwrap();
                client.batch_execute(change).map_err(|error| format!("{error:?}"))
            }
        }
    }

    /// What its schema's version is set to.
    fn set_version(&self, by: i32) {
        let change = match self {
            Self::Sqlite(folder) => {
                let connection = rusqlite::Connection::open(folder.path().join("db")).unwrap();
                let known = "PRAGMA user_version";
                let known: i32 = connection.query_row(known, [], |row| row.get(0)).unwrap();
                format!("PRAGMA user_version = {}", known + by)
            }
            Self::Postgres(_) => format!("UPDATE schema_version SET version = version + {by}"),
        };
        self.directly(&change).unwrap();
    }
}

/// Each case is a test with SQLite, and all of them are one with a PostgreSQL.
macro_rules! on_every_store {
    ($($case:ident,)+) => {
        mod sqlite {
            $(#[test]
            fn $case() {
                super::$case(&super::Place::sqlite());
            })+
        }

        #[test]
        fn postgres_does_all_that_sqlite_does() {
            let Some(cluster) = Cluster::start() else { return };
            $($case(&Place::Postgres(cluster.database(stringify!($case))));)+
        }
    };
}

on_every_store! {
    a_gpu_is_taken_only_as_it_was_decided_on,
    two_allocators_of_one_store_never_give_the_same_twice,
    a_store_of_a_newer_version_is_left_alone,
    nobody_changes_the_audit,
    a_node_that_loses_a_gpu_gets_nothing_new_on_it,
    a_node_is_known_by_one_name,
    an_instance_lives_and_ends,
    an_instance_that_fails_stays_to_be_seen,
    a_request_is_carried_out_once,
    several_are_reserved_as_one_or_not_at_all,
    a_quota_is_of_all_that_a_project_has,
    a_project_of_before_keeps_the_weight_and_the_class_that_it_has,
    a_quota_of_an_earlier_version_is_one,
    what_an_earlier_version_counted_is_counted_anew,
    tokens_come_and_go,
    endpoints_stay_until_they_are_taken_out_of_service,
    lists_come_in_parts,
    what_cannot_be_shown_is_kept_all_the_same,
    what_ended_long_ago_is_forgotten,
    what_is_tried_again_without_end_keeps_its_last_retries,
    a_project_makes_so_many_instances_in_a_day,
}

pub(crate) fn audit() -> Audit {
    Audit {
        at_ms: 1,
        actor: "a".into(),
        project: None,
        action: "InstanceCreate".into(),
        target: "i".into(),
        status: 202,
    }
}

pub(crate) fn reservation(
    id: &str,
    gpu: u32,
    memory_mib: u64,
    mode: Mode,
    generation: u64,
) -> Reservation {
    let spec = Spec {
        cgpus: 1,
        memory_mib,
        mode,
        locality: weft_api::v1::Locality::Remote,
        weight: 1,
        sla_us: 0,
        user_data: String::new(),
        machine: Machine::default(),
        host: None,
    };
    Reservation {
        id: id.into(),
        name: id.into(),
        project: "p".into(),
        spec,
        operation: format!("op-{id}"),
        taken: vec![Taken { instance: id.into(), gpu, memory_mib, mode, generation }],
        key: None,
        launches_per_day: None,
        audit: audit(),
    }
}

pub(crate) fn part() -> Part {
    Part { limit: 100, after: None, project: None }
}

fn opened(place: &Place) -> Arc<dyn Store> {
    let store = place.open().unwrap();
    stocked(store.as_ref());
    store
}

/// Gives it a project and a node with two GPUs.
pub(crate) fn stocked(store: &dyn Store) {
    let quota = Quota::from(quota(100, 100_000, 100));
    store.put_project("p", quota, None).unwrap();
    store.put_node(&node("n", "one"), &[gpu("a"), gpu("b")], None).unwrap();
}

pub(crate) fn node(name: &str, identity: &str) -> NodeRow {
    NodeRow {
        name: name.into(),
        admin: String::new(),
        gateway: String::new(),
        gateway_given: false,
        host: name.into(),
        created_ms: 0,
        gpus: 0,
        identity: identity.into(),
    }
}

pub(crate) fn gpu(device: &str) -> GpuFound {
    GpuFound { device: device.into(), product: String::new(), memory_mib: 1000 }
}

pub(crate) fn event(step: Step) -> Event {
    let (step, kind) = (step.name().to_owned(), EventKind::Done);
    Event { at_ms: 5, step, kind, took_us: 7, detail: None }
}

fn a_gpu_is_taken_only_as_it_was_decided_on(place: &Place) {
    let store = opened(place);
    let take = |id: &str, memory, mode, generation| {
        store.reserve(reservation(id, 1, memory, mode, generation)).wait().map(|_| ())
    };
    take("i1", 600, Mode::Shared, 0).unwrap();
    assert_eq!(take("i2", 100, Mode::Shared, 0), Err(StoreError::Changed), "an old generation");
    assert_eq!(take("i2", 600, Mode::Shared, 1), Err(StoreError::Changed), "more than is free");
    assert_eq!(take("i2", 1000, Mode::Exclusive, 1), Err(StoreError::Changed), "in use");
    take("i2", 400, Mode::Shared, 1).unwrap();
    let gpu = store.gpu(1).unwrap().unwrap();
    assert_eq!((gpu.held_mib, gpu.cgpus, gpu.generation), (1000, 2, 2));
    // What was refused has left nothing: not even in the project's account.
    let (_, used) = store.project("p").unwrap().unwrap();
    assert_eq!((used.cgpus, used.memory_mib), (2, 1000));
    assert_eq!(store.audit(&part()).unwrap().len(), 2);
}

fn two_allocators_of_one_store_never_give_the_same_twice(place: &Place) {
    let store: Arc<dyn Store> = opened(place);
    let policy = weft_sched::placement::by_name("first_fit").unwrap();
    let allocators = [0, 1].map(|_| Allocator::new(Arc::clone(&store), policy));
    let got = std::thread::scope(|scope| {
        let some = |number: usize| {
            let allocator = &allocators[number];
            scope.spawn(move || {
                let one = |at: usize| {
                    let id = format!("i{number}-{at}");
                    let wanted = reservation(&id, 0, 100, Mode::Shared, 0);
                    usize::from(allocator.reserve(&wanted).is_ok())
                };
                (0..15).map(one).sum::<usize>()
            })
        };
        let threads = [some(0), some(1)];
        threads.map(|thread| thread.join().unwrap())
    });
    let gpus = store.gpus(&part()).unwrap();
    let held: u64 = gpus.iter().map(|(_, gpu)| gpu.held_mib).sum();
    assert_eq!(held, 100 * (got[0] + got[1]) as u64, "{got:?}");
    assert_eq!(got[0] + got[1], 20, "all of it was given: {got:?}");
}

fn a_store_of_a_newer_version_is_left_alone(place: &Place) {
    let plane = opened(place).plane().to_owned();
    place.set_version(999);
    let error = place.open().unwrap_err().to_string();
    assert!(error.contains("newer version"), "{error}");
    place.set_version(-999);
    let store = place.open().unwrap();
    assert_eq!(store.gpus(&part()).unwrap().len(), 2, "opened again, it has what it had");
    assert_eq!(store.plane(), plane);
    assert!(plane.len() == 6 && u32::from_str_radix(&plane, 16).is_ok(), "{plane}");
}

fn nobody_changes_the_audit(place: &Place) {
    let store = opened(place);
    store.note(&audit()).unwrap();
    for change in ["DELETE FROM audit", "UPDATE audit SET actor = 'b'"] {
        let error = place.directly(change).unwrap_err();
        assert!(error.contains("only added to"), "{error}");
    }
    assert_eq!(store.audit(&part()).unwrap().len(), 1);
    assert_eq!(store.newest_audit(9).unwrap()[0].actor, "a");
}

fn a_node_that_loses_a_gpu_gets_nothing_new_on_it(place: &Place) {
    let store = opened(place);
    let node = store.node("n").unwrap().unwrap();
    let only = GpuFound { device: "b".into(), product: "new".into(), memory_mib: 2000 };
    store.put_node(&node, &[only], None).unwrap();
    let gpus = store.gpus(&part()).unwrap();
    let seen: Vec<_> =
        gpus.iter().map(|(_, gpu)| (gpu.lost_ms.is_some(), gpu.found.memory_mib)).collect();
    assert_eq!(seen, [(true, 1000), (false, 2000)]);
    let taken = store.reserve(reservation("i", 1, 1, Mode::Shared, gpus[0].1.generation)).wait();
    assert_eq!(taken.unwrap_err(), StoreError::Changed);
    let has = |device: &str, memory_mib| GpuFound {
        device: device.into(),
        product: "p".into(),
        memory_mib,
    };
    let see = |gpus: &[GpuFound]| store.see_gpus("n", gpus, 9).unwrap();
    let b = has("b", 2000);
    assert!(!see(std::slice::from_ref(&b)), "that is known");
    assert!(!see(&[has("a", 1001), b.clone()]), "another one in its place is not taken for it");
    assert!(see(&[has("a", 1000), b.clone()]));
    assert!(!see(&[has("a", 1001), b.clone()]), "what is sold is there");
    assert!(see(&[has("a", 999), b.clone()]), "what is sold is not there any longer");
    assert_eq!(store.gpu(1).unwrap().unwrap().lost_ms, Some(9));
    // It is another one for whoever makes the node known again.
    store.put_node(&node, &[has("a", 999), b.clone()], None).unwrap();
    let gpu = store.gpu(1).unwrap().unwrap();
    assert_eq!((gpu.lost_ms, gpu.found.memory_mib), (None, 999));
    let refused = store.remove_gpu(1, &audit()).unwrap_err();
    assert!(matches!(refused, StoreError::Refused(_)), "{refused}");
    assert!(see(&[b]));
    assert_eq!(store.gpu(1).unwrap().unwrap().lost_ms, Some(9));
    store.remove_gpu(1, &audit()).unwrap();
    assert_eq!(store.gpu(1).unwrap(), None);
}

fn a_node_is_known_by_one_name(place: &Place) {
    let store = opened(place);
    let twice = store.put_node(&node("m", "one"), &[gpu("a")], None).unwrap_err();
    assert!(matches!(twice, StoreError::Exists(_)), "{twice}");
    store.put_node(&node("m", "two"), &[gpu("a")], None).unwrap();
    // Looked at again, it keeps its numbers.
    store.put_node(&node("n", "one"), &[gpu("a"), gpu("b")], None).unwrap();
    let gpus = store.gpus(&part()).unwrap();
    let numbers: Vec<_> = gpus.iter().map(|(_, gpu)| (gpu.id, gpu.node.as_str())).collect();
    assert_eq!(numbers, [(1, "n"), (2, "n"), (3, "m")]);
    store.set_gateway("n", "n:1").unwrap();
    assert_eq!(store.node("n").unwrap().unwrap().gateway, "n:1");
    let with_gpus = store.inventory().wait().unwrap();
    let seen: Vec<_> = with_gpus.iter().map(|(node, gpus)| (&*node.name, gpus.len())).collect();
    assert_eq!(seen, [("m", 1), ("n", 2)]);
    store.reserve(reservation("i", 3, 1, Mode::Shared, 0)).wait().unwrap();
    let in_use = store.remove_node("m", &audit()).unwrap_err();
    assert!(matches!(in_use, StoreError::InUse(_)), "{in_use}");
    store.remove_node("n", &audit()).unwrap();
    assert_eq!(store.nodes(&part()).unwrap().len(), 1);
    let missing = store.remove_node("n", &audit()).unwrap_err();
    assert!(matches!(missing, StoreError::Missing(_)), "{missing}");
}

fn done(step: Step, effects: Effects) -> Done {
    Done { step, effects, event: event(step) }
}

fn an_instance_lives_and_ends(place: &Place) {
    let store = opened(place);
    assert_eq!(store.leading(), Leading::Here);
    store.check().unwrap();
    let made = store.reserve(reservation("i", 1, 600, Mode::Shared, 0)).wait().unwrap();
    assert_eq!((made.wanted, made.created_ms), (Wanted::Present, 1));
    assert_eq!(store.unsettled().unwrap(), ["i"]);
    let masked = vec![("i-0".to_owned(), "169.254.77.2:1".to_owned())];
    let tokens = vec![("i-0".to_owned(), "secret".to_owned())];
    let effects = Effects { masked, tokens, ..Effects::default() };
    store.mark("i", &[done(Step::Grant, effects)]).unwrap();
    let found = Found { host: Some("h".into()), port: None };
    let effects = Effects { found: Some(found.clone()), ready_ms: Some(9), ..Effects::default() };
    store.mark("i", &[done(Step::Confirm, effects)]).unwrap();
    let now = store.instance("i").unwrap().unwrap();
    assert!(now.marks.has(Step::Grant) && now.marks.has(Step::Confirm));
    assert!(!now.marks.has(Step::Create));
    assert_eq!((now.ready_ms, &now.found), (Some(9), &found));
    let (operation, events) = store.operation("op-i").unwrap().unwrap();
    assert_eq!(operation.state, OperationState::Succeeded);
    assert_eq!(events, [event(Step::Grant), event(Step::Confirm)]);
    let cgpu = &store.instance_cgpus("i").unwrap()[0];
    assert_eq!((cgpu.gpu, cgpu.memory_mib, cgpu.token.as_deref()), (1, 600, Some("secret")));
    let held = store.taken().wait().unwrap();
    assert_eq!((held.len(), held[0].gpu, held[0].memory_mib), (1, 1, 600));
    let too_early = store.release("i", 11, &event(Step::Release)).wait().unwrap_err();
    assert!(matches!(too_early, StoreError::InUse(_)), "{too_early}");
    store.renounce("i", None, Some(&audit())).unwrap();
    assert_eq!(store.unsettled().unwrap(), ["i"]);
    store.keep_used(&[("i-0".to_owned(), u64::MAX)]).unwrap();
    for _ in 0..2 {
        store.release("i", 11, &event(Step::Release)).wait().unwrap();
    }
    assert_eq!(store.unsettled().unwrap(), Vec::<String>::new());
    assert_eq!(store.live().unwrap(), Vec::<String>::new());
    assert!(
        store.instances(&part()).unwrap().is_empty() && store.cgpus(&part()).unwrap().is_empty()
    );
    let gpu = store.gpu(1).unwrap().unwrap();
    assert_eq!((gpu.held_mib, gpu.cgpus, gpu.generation), (0, 0, 2), "released once");
    assert_eq!(store.project("p").unwrap().unwrap().1, Quota::default());
    let used = &store.usage(&part()).unwrap()[0].1;
    assert_eq!(
        (used.to_ms, &used.token, used.used_ns),
        (Some(11), &None, Some(u64::try_from(i64::MAX).unwrap()))
    );
    assert_eq!(store.newest_usage(Some("p"), 5).unwrap().len(), 1);
    let (end, events) = store.operation("op-i-end").unwrap().unwrap();
    assert_eq!((end.state, events.len()), (OperationState::Succeeded, 1));
    let counts = store.counts().unwrap();
    let expected = Counts { gpus: 2, memory_mib: 2000, ..Counts::default() };
    assert_eq!(counts, expected);
}

fn endpoints_stay_until_they_are_taken_out_of_service(place: &Place) {
    let store = opened(place);
    let named = |socket: &str| vec![("h".to_owned(), socket.to_owned())];
    store.put_endpoints(&named("/a")).unwrap();
    store.reserve(reservation("i", 1, 600, Mode::Shared, 0)).wait().unwrap();
    let found = Some(Found { host: Some("h".into()), port: None });
    let effects = Effects { found, ..Effects::default() };
    store.mark("i", &[done(Step::Port, effects)]).unwrap();
    // A VM that had a relay before the endpoint was there is not led by it.
    store.reserve(reservation("j", 2, 600, Mode::Shared, 0)).wait().unwrap();
    let (tap, mac, ip) = (String::new(), Port::RELAYED.to_owned(), String::new());
    let found = Some(Found { host: Some("h".into()), port: Some(Port { tap, mac, ip }) });
    let effects = Effects { found, ..Effects::default() };
    store.mark("j", &[done(Step::Port, effects)]).unwrap();
    assert_eq!(store.placed().unwrap(), [("i".to_owned(), "h".to_owned())]);
    let used = store.remove_endpoint("h", &audit()).unwrap_err();
    assert!(matches!(used, StoreError::InUse(_)), "{used}");
    assert!(!store.set_endpoint("h", false, &audit()).unwrap().in_service);
    drop(store);
    // A start that does not name it knows it, one that does leaves it drained.
    let store = place.open().unwrap();
    store.put_endpoints(&[]).unwrap();
    assert_eq!(store.endpoints(&part()).unwrap().len(), 1);
    store.put_endpoints(&named("/b")).unwrap();
    let known = store.endpoint("h").unwrap().unwrap();
    assert_eq!((known.socket.as_str(), known.in_service), ("/b", false));
    assert_eq!(store.remove_endpoint("h", &audit()).unwrap(), ["i"]);
    assert_eq!(store.instance("i").unwrap().unwrap().wanted, Wanted::Absent);
    assert_eq!(store.instance("j").unwrap().unwrap().wanted, Wanted::Present);
    assert_eq!((store.endpoint("h").unwrap(), store.placed().unwrap().len()), (None, 1));
    for gone in [
        store.remove_endpoint("h", &audit()).map(drop),
        store.set_endpoint("h", true, &audit()).map(drop),
    ] {
        assert!(matches!(gone, Err(StoreError::Missing(_))), "{gone:?}");
    }
}

fn an_instance_that_fails_stays_to_be_seen(place: &Place) {
    let store = opened(place);
    let mut asked = reservation("i", 1, 1000, Mode::Exclusive, 0);
    asked.spec.user_data = "a secret".to_owned();
    store.reserve(asked).wait().unwrap();
    assert_eq!(store.instance("i").unwrap().unwrap().spec.user_data, "a secret");
    store.tell("i", &Event { detail: Some("no".into()), ..event(Step::Create) }).unwrap();
    store.renounce("i", Some("create: no"), None).unwrap();
    store.release("i", 11, &event(Step::Release)).wait().unwrap();
    let seen = store.instances(&part()).unwrap();
    assert_eq!(seen[0].1.failure.as_deref(), Some("create: no"));
    assert_eq!(seen[0].1.spec.user_data, "", "nobody needs it any longer");
    assert_eq!(store.operation("op-i").unwrap().unwrap().0.state, OperationState::Failed);
    assert!(!store.gpu(1).unwrap().unwrap().exclusive);
    store.hide("i", &audit()).unwrap();
    assert!(store.instances(&part()).unwrap().is_empty());
    let written = store.audit(&part()).unwrap().len();
    store.hide("i", &audit()).unwrap();
    assert_eq!(store.audit(&part()).unwrap().len(), written, "there is nothing to do");
}

fn a_request_is_carried_out_once(place: &Place) {
    let store = opened(place);
    let key = Key { owner: "a".into(), key: "k".into(), digest: [1; 32] };
    let with_key = |id: &str, key: &Key| Reservation {
        key: Some(key.clone()),
        ..reservation(id, 1, 1, Mode::Shared, 0)
    };
    assert_eq!(store.repeated(&key, 1).unwrap(), Vec::<String>::new());
    store.reserve(with_key("i", &key)).wait().unwrap();
    assert_eq!(store.repeated(&key, 1).unwrap(), ["i"]);
    let again = store.reserve(with_key("j", &key)).wait().unwrap_err();
    assert_eq!(again, StoreError::Repeated(vec!["i".into()]));
    let other = Key { digest: [2; 32], ..key.clone() };
    assert_eq!(store.repeated(&other, 1).unwrap_err(), StoreError::KeyReused);
    // It may come again after a day, whether or not another request came in between.
    let later = 24 * 3_600_000 + 2;
    assert!(store.repeated(&key, later).unwrap().is_empty());
    assert!(store.repeated(&other, later).unwrap().is_empty());
    let mut late = Reservation { taken: Vec::new(), ..with_key("l", &key) };
    late.audit.at_ms = later;
    store.reserve(late).wait().unwrap();
    assert_eq!(store.repeated(&key, later).unwrap(), ["l"]);
}

/// What one of them lacks keeps the others from everything, the key too.
fn several_are_reserved_as_one_or_not_at_all(place: &Place) {
    let store = opened(place);
    let key = Key { owner: "a".into(), key: "k".into(), digest: [1; 32] };
    let one = |id: &str, gpu, memory_mib, generation| Reservation {
        key: Some(key.clone()),
        launches_per_day: Some(3),
        ..reservation(id, gpu, memory_mib, Mode::Shared, generation)
    };
    let ask = |wanted: Vec<Reservation>| store.reserve_all(wanted).wait();
    let three = || vec![one("i", 1, 1, 0), one("j", 1, 1, 0), one("k", 2, 1, 0)];
    let nothing = || {
        assert!(store.live().unwrap().is_empty() && store.audit(&part()).unwrap().is_empty());
        assert!(store.repeated(&key, 1).unwrap().is_empty());
        let gpu = store.gpu(1).unwrap().unwrap();
        assert_eq!((gpu.held_mib, gpu.cgpus, gpu.generation), (0, 0, 0));
        let (_, used) = store.project("p").unwrap().unwrap();
        assert_eq!((used, store.launches("p", 1).unwrap()), (Quota::default(), 0));
    };
    let no_room = ask(vec![one("i", 1, 600, 0), one("j", 1, 600, 0)]).unwrap_err();
    assert_eq!(no_room, StoreError::Changed);
    nothing();
    let old = ask(vec![one("i", 1, 600, 0), one("j", 2, 600, 7)]).unwrap_err();
    assert_eq!(old, StoreError::Changed);
    nothing();
    let many = ask(three().into_iter().chain([one("l", 2, 1, 0)]).collect()).unwrap_err();
    assert!(matches!(&many, StoreError::Quota(words) if words.contains("3 in a day")), "{many}");
    nothing();
    store.put_project("p", quota(2, 9_000, 1).into(), None).unwrap();
    let sum = ask(three()).unwrap_err();
    assert!(matches!(&sum, StoreError::Quota(words) if words.contains("3 cGPUs")), "{sum}");
    nothing();
    store.put_project("p", quota(3, 9_000, 1).into(), None).unwrap();
    let made = ask(three()).unwrap();
    let ids: Vec<&str> = made.iter().map(|one| one.id.as_str()).collect();
    assert_eq!(ids, ["i", "j", "k"]);
    assert!(made[0].slot != made[1].slot && made[1].slot != made[2].slot);
    assert_eq!(store.repeated(&key, 1).unwrap(), ids);
    let again = ask(vec![one("l", 2, 1, 1)]).unwrap_err();
    assert_eq!(again, StoreError::Repeated(ids.iter().map(|id| (*id).to_owned()).collect()));
    let gpu = store.gpu(1).unwrap().unwrap();
    assert_eq!((gpu.held_mib, gpu.cgpus, gpu.generation), (2, 2, 1), "one change of the GPU");
    let (_, used) = store.project("p").unwrap().unwrap();
    assert_eq!((used.cgpus, used.memory_mib, store.launches("p", 1).unwrap()), (3, 3, 3));
    assert_eq!(store.audit(&part()).unwrap().len(), 3, "each can be found in it");
    // From here on each is one of its own.
    store.renounce("j", None, Some(&audit())).unwrap();
    store.release("j", 11, &event(Step::Release)).wait().unwrap();
    assert_eq!(store.live().unwrap(), ["i", "k"]);
    assert_eq!(store.operation("op-k").unwrap().unwrap().0.state, OperationState::Running);
    assert!(ask(Vec::new()).unwrap().is_empty());
}

fn a_quota_is_of_all_that_a_project_has(place: &Place) {
    let store = opened(place);
    let quota = Quota::from(quota(2, 1500, 1));
    store.put_project("p", quota, Some(&audit())).unwrap();
    store.reserve(reservation("i", 1, 1000, Mode::Exclusive, 0)).wait().unwrap();
    let much = store.reserve(reservation("j", 2, 501, Mode::Shared, 0)).wait().unwrap_err();
    assert!(matches!(&much, StoreError::Quota(words) if words.contains("MiB")), "{much}");
    let alone = store.reserve(reservation("j", 2, 1, Mode::Exclusive, 0)).wait().unwrap_err();
    assert!(matches!(&alone, StoreError::Quota(words) if words.contains("exclusive")), "{alone}");
    store.reserve(reservation("j", 2, 500, Mode::Shared, 0)).wait().unwrap();
    let (_, used) = store.project("p").unwrap().unwrap();
    let (weight, user_facing) = (1, 0);
    let all = Quota { cgpus: 2, memory_mib: 1500, exclusive_gpus: 1, weight, user_facing };
    assert_eq!(used, all);
    let nobody = Reservation { project: "x".into(), ..reservation("k", 2, 1, Mode::Shared, 1) };
    assert!(matches!(store.reserve(nobody).wait(), Err(StoreError::Missing(_))));
}

/// Whoever had more than is given without being asked for keeps as much, and no more.
fn a_project_of_before_keeps_the_weight_and_the_class_that_it_has(place: &Place) {
    let store = opened(place);
    let most = Quota { weight: 90_000, user_facing: 9, ..quota(4, 9_000, 1).into() };
    store.put_project("p", most, None).unwrap();
    store.put_project("plain", quota(4, 100, 1).into(), None).unwrap();
    let mut greedy = reservation("i", 1, 100, Mode::Shared, 0);
    (greedy.spec.weight, greedy.spec.sla_us) = (10_000, 20_000);
    store.reserve(greedy).wait().unwrap();
    store.reserve(reservation("j", 2, 1000, Mode::Exclusive, 0)).wait().unwrap();
    drop(store);
    let before = "ALTER TABLE projects DROP COLUMN quota_weight;
                  ALTER TABLE projects DROP COLUMN quota_user_facing;
                  ALTER TABLE projects DROP COLUMN used_weight;
                  ALTER TABLE projects DROP COLUMN used_user_facing;
                  ALTER TABLE instances DROP COLUMN uncharged;
                  DROP TABLE endpoints;
                  ALTER TABLE tokens DROP COLUMN expires_ms;
                  ALTER TABLE gpus DROP COLUMN lost_ms;
                  ALTER TABLE projects DROP COLUMN launch_day;
                  ALTER TABLE projects DROP COLUMN launches;
                  DROP INDEX instances_ended;
                  DROP INDEX instances_shown_all;";
    place.directly(before).unwrap();
    place.set_version(-5);
    let store = place.open().unwrap();
    let (may, has) = store.project("p").unwrap().unwrap();
    assert_eq!((may.weight, may.user_facing), (10_000, 1));
    let (weight, user_facing) = (10_000, 1);
    let all = Quota { cgpus: 2, memory_mib: 1100, exclusive_gpus: 1, weight, user_facing };
    assert_eq!(has, all);
    let (may, has) = store.project("plain").unwrap().unwrap();
    assert_eq!((may, has), (quota(4, 100, 1).into(), Quota::default()));
}

/// A replica of the version before makes projects without the columns that it does not know.
fn a_quota_of_an_earlier_version_is_one(place: &Place) {
    let store = opened(place);
    let made = "INSERT INTO projects (name, quota_cgpus, quota_memory, quota_exclusive)
                VALUES ('old', 3, 900, 1)";
    place.directly(made).unwrap();
    let (had, used) = store.project("old").unwrap().unwrap();
    assert_eq!((had, used), (quota(3, 900, 1).into(), Quota::default()));
    let mut heavy = reservation("i", 1, 1, Mode::Shared, 0);
    heavy.project = "old".into();
    heavy.spec.weight = 4;
    let refused = store.reserve(heavy.clone()).wait().unwrap_err();
    assert!(matches!(&refused, StoreError::Quota(words) if words.contains("weight")), "{refused}");
    heavy.spec.weight = 3;
    store.reserve(heavy).wait().unwrap();
}

fn what_an_earlier_version_counted_is_counted_anew(place: &Place) {
    let store = opened(place);
    let most = Quota { user_facing: 9, ..quota(9, 9_000, 9).into() };
    store.put_project("p", most, None).unwrap();
    let mut facing = reservation("i", 1, 100, Mode::Shared, 0);
    facing.spec.sla_us = 20_000;
    store.reserve(facing).wait().unwrap();
    store.reserve(reservation("j", 2, 1000, Mode::Exclusive, 0)).wait().unwrap();
    let (_, used) = store.project("p").unwrap().unwrap();
    let expected =
        Quota { cgpus: 2, memory_mib: 1100, exclusive_gpus: 1, weight: 1, user_facing: 1 };
    assert_eq!(used, expected);
    place
        .directly("UPDATE projects SET used_weight = 0, used_user_facing = 0, used_cgpus = -1")
        .unwrap();
    store.recount().unwrap();
    assert_eq!(store.project("p").unwrap().unwrap().1, expected);
    for id in ["i", "j"] {
        store.renounce(id, None, None).unwrap();
        store.release(id, 11, &event(Step::Release)).wait().unwrap();
    }
    assert_eq!(store.project("p").unwrap().unwrap().1, Quota::default());
}

fn tokens_come_and_go(place: &Place) {
    let store = opened(place);
    let token = |name: &str, project: Option<&str>| TokenRow {
        name: name.into(),
        project: project.map(str::to_owned),
        role: Role::Member,
        created_ms: 3,
        expires_ms: None,
    };
    store.add_token(&token("t", Some("p")), [1; 32], Some(&audit())).unwrap();
    assert_eq!(store.token(&[1; 32]).unwrap(), Some(token("t", Some("p"))));
    assert_eq!(store.token(&[2; 32]).unwrap(), None);
    let same_name = store.add_token(&token("t", None), [2; 32], None).unwrap_err();
    assert!(matches!(same_name, StoreError::Exists(_)));
    let same_secret = store.add_token(&token("u", None), [1; 32], None).unwrap_err();
    assert!(matches!(same_secret, StoreError::Exists(_)));
    let nowhere = store.add_token(&token("u", Some("x")), [2; 32], None).unwrap_err();
    assert!(matches!(nowhere, StoreError::Missing(_)));
    store.remove_token("t", &audit()).unwrap();
    assert!(matches!(store.remove_token("t", &audit()), Err(StoreError::Missing(_))));
    assert_eq!(store.token(&[1; 32]).unwrap(), None);
    let admin = |name: &str| TokenRow { role: Role::Admin, ..token(name, None) };
    store.add_token(&admin("root"), [3; 32], None).unwrap();
    let last = StoreError::LastAdmin("root".into());
    assert_eq!(store.remove_token("root", &audit()).unwrap_err(), last);
    store.replace_token(&admin("root"), [4; 32], &audit()).unwrap();
    assert_eq!(store.token(&[3; 32]).unwrap(), None);
    assert_eq!(store.token(&[4; 32]).unwrap(), Some(admin("root")));
    let ended = TokenRow { expires_ms: Some(audit().at_ms), ..admin("ended") };
    store.add_token(&ended, [6; 32], None).unwrap();
    assert_eq!(store.token(&[6; 32]).unwrap(), Some(ended));
    assert_eq!(store.remove_token("root", &audit()).unwrap_err(), last, "one has expired");
    store.add_token(&admin("other"), [5; 32], None).unwrap();
    store.remove_token("root", &audit()).unwrap();
    assert_eq!(store.audit(&part()).unwrap().len(), 4, "what was refused is not in it");
}

fn lists_come_in_parts(place: &Place) {
    let store = opened(place);
    // In the order of bytes, whatever the language is.
    for name in ["b", "B", "a", "a-1", "a_1"] {
        store.put_project(name, Quota::default(), None).unwrap();
    }
    let mut seen = Vec::new();
    let mut after = None;
    loop {
        let some = store.projects(&Part { limit: 2, after, project: None }).unwrap();
        seen.extend(some.iter().map(|(cursor, _)| cursor.clone()));
        after = some.last().map(|(cursor, _)| cursor.clone());
        if some.len() < 2 {
            break;
        }
    }
    assert_eq!(seen, ["B", "a", "a-1", "a_1", "b", "p"]);
    for at in 0..5 {
        store.reserve(reservation(&format!("i{at}"), 1, 1, Mode::Shared, at)).wait().unwrap();
    }
    let of = |project: &str, after: Option<&String>| Part {
        limit: 3,
        after: after.cloned(),
        project: Some(project.to_owned()),
    };
    let first = store.instances(&of("p", None)).unwrap();
    let rest = store.instances(&of("p", Some(&first[2].0))).unwrap();
    let names: Vec<&str> = first.iter().chain(&rest).map(|(_, one)| one.id.as_str()).collect();
    assert_eq!(names, ["i0", "i1", "i2", "i3", "i4"]);
    assert!(store.instances(&of("a", None)).unwrap().is_empty());
    let cgpus = store.cgpus(&of("p", None)).unwrap();
    assert_eq!(store.cgpus(&of("p", Some(&cgpus[2].0))).unwrap().len(), 2);
    let slots: std::collections::BTreeSet<u32> =
        first.iter().chain(&rest).map(|(_, one)| one.slot).collect();
    assert_eq!(slots.len(), 5, "each has a slot of its own");
    let wrong = Part { limit: 1, after: Some("x".into()), project: None };
    assert!(matches!(store.instances(&wrong), Err(StoreError::Missing(_))));
}

fn what_ended_long_ago_is_forgotten(place: &Place) {
    let store = opened(place);
    for (generation, id) in ["i", "j", "k", "l"].into_iter().enumerate() {
        let generation = u64::try_from(generation).unwrap();
        store.reserve(reservation(id, 1, 1, Mode::Shared, generation)).wait().unwrap();
    }
    // In another order than they were made in; the last one stays.
    for (id, at_ms) in [("i", 30), ("j", 10), ("k", 20)] {
        store.renounce(id, None, Some(&audit())).unwrap();
        store.release(id, at_ms, &event(Step::Release)).wait().unwrap();
    }
    let known = || {
        let usage = store.usage(&part()).unwrap();
        let instances = usage.into_iter().map(|(_, cgpu)| cgpu.instance);
        instances.collect::<Vec<String>>()
    };
    let written = store.audit(&part()).unwrap();
    assert_eq!(store.forget(10, 9).unwrap(), 0, "nothing ended before");
    assert_eq!(known(), ["i", "j", "k", "l"]);
    assert_eq!(store.forget(30, 1).unwrap(), 1, "the first one");
    assert_eq!(known(), ["i", "k", "l"]);
    for operation in ["op-j", "op-j-end"] {
        assert_eq!(store.operation(operation).unwrap(), None);
    }
    assert_eq!(store.instance("j").unwrap(), None);
    assert_eq!(store.operation("op-k-end").unwrap().unwrap().1.len(), 1);
    // What is kept for 15 ms, 45 ms after the beginning.
    let keep = std::time::Duration::from_millis(15);
    let forgotten = weft_control::sweep::forget(store.as_ref(), keep, 45).unwrap();
    assert_eq!(forgotten, weft_control::sweep::Forgotten { instances: 1, is_all: true });
    assert_eq!(known(), ["i", "l"]);
    assert_eq!(store.forget(u64::from(u32::MAX), 9).unwrap(), 1);
    assert_eq!(known(), ["l"], "what has not ended is not forgotten");
    assert_eq!(store.live().unwrap(), ["l"]);
    assert_eq!(store.audit(&part()).unwrap(), written, "the audit stays whole");
    // Numbers of those that are made later are their own.
    let begun_ms = 1_000_000;
    let began = Audit { at_ms: begun_ms, ..audit() };
    let late = Reservation { audit: began, ..reservation("m", 2, 1, Mode::Shared, 0) };
    assert_eq!(store.reserve(late).wait().unwrap().generation, 5);
    // A clock that was behind said that it ended before it began.
    store.renounce("m", None, Some(&audit())).unwrap();
    store.release("m", 12, &event(Step::Release)).wait().unwrap();
    assert_eq!(store.forget(begun_ms, 9).unwrap(), 0, "it is as new as its beginning");
    assert_eq!(store.forget(begun_ms + 1, 9).unwrap(), 1);
}

/// All other events stand beside them.
fn what_is_tried_again_without_end_keeps_its_last_retries(place: &Place) {
    let store = opened(place);
    store.reserve(reservation("i", 1, 1, Mode::Shared, 0)).wait().unwrap();
    store.tell("i", &event(Step::Address)).unwrap();
    let retries = "INSERT INTO events (operation, at_ms, step, kind, took_us)
                   WITH RECURSIVE n (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < 1200)
                   SELECT 'op-i', x, 'create', 'retry', 0 FROM n";
    place.directly(retries).unwrap();
    let kinds = || {
        let (_, events) = store.operation("op-i").unwrap().unwrap();
        let count = |kind: EventKind| events.iter().filter(|event| event.kind == kind).count();
        (count(EventKind::Done), count(EventKind::Retry), events.last().unwrap().at_ms)
    };
    assert_eq!(kinds(), (0, 1000, 1200), "so many are shown");
    let (step, kind) = (Step::Create.name().to_owned(), EventKind::Retry);
    store.tell("i", &Event { at_ms: 1201, step, kind, took_us: 0, detail: None }).unwrap();
    assert_eq!(kinds(), (1, 500, 1201));
}

fn a_project_makes_so_many_instances_in_a_day(place: &Place) {
    let store = opened(place);
    store.put_project("q", quota(9, 9_000, 9).into(), None).unwrap();
    let day_ms = 24 * 3_600_000;
    let make = |id: &str, project: &str, at_ms: u64, most: Option<u32>| {
        let generation = store.gpu(1).unwrap().unwrap().generation;
        let mut asked = reservation(id, 1, 1, Mode::Shared, generation);
        (asked.project, asked.audit.at_ms) = (project.to_owned(), at_ms);
        store.reserve(Reservation { launches_per_day: most, ..asked }).wait().map(drop)
    };
    make("i", "p", day_ms, Some(2)).unwrap();
    make("j", "p", day_ms + 1, Some(2)).unwrap();
    let refused = make("k", "p", 2 * day_ms - 1, Some(2)).unwrap_err();
    let StoreError::Quota(words) = &refused else { panic!("{refused}") };
    assert!(words.contains("project p has made 2 instances today"), "{words}");
    // Another project's, one where they are not bounded, and those of the next day.
    make("k", "q", 2 * day_ms - 1, Some(2)).unwrap();
    make("l", "p", 2 * day_ms - 1, None).unwrap();
    make("m", "p", 2 * day_ms, Some(2)).unwrap();
    let made = |project, at_ms| store.launches(project, at_ms).unwrap();
    assert_eq!((made("p", 2 * day_ms), made("q", day_ms), made("q", 2 * day_ms)), (1, 1, 0));
    // A request whose time was read just before midnight counts for the day that has begun.
    make("n", "p", 2 * day_ms - 1, Some(2)).unwrap();
    assert_eq!((made("p", 2 * day_ms), made("p", 2 * day_ms - 1)), (2, 2));
    make("o", "p", 2 * day_ms, Some(2)).unwrap_err();
    make("o", "p", 2 * day_ms - 1, Some(2)).unwrap_err();
    // What somebody counted whose clock was ahead, by a day or by more, is not gone on with.
    for ahead in [1, 2, 900] {
        let (id, now_ms) = (format!("o{ahead}"), (10 * ahead + 1) * day_ms);
        make(&format!("{id}a"), "p", now_ms + ahead * day_ms, Some(2)).unwrap();
        make(&format!("{id}b"), "p", now_ms + ahead * day_ms, Some(2)).unwrap();
        make(&format!("{id}c"), "p", now_ms, Some(2)).unwrap();
        assert_eq!(made("p", now_ms), 1);
    }
}

/// A character that PostgreSQL does not have is neither an error nor lost with what is around it.
fn what_cannot_be_shown_is_kept_all_the_same(place: &Place) {
    let store = opened(place);
    store.note(&Audit { target: "a\0b".into(), ..audit() }).unwrap();
    let kept = &store.newest_audit(1).unwrap()[0];
    assert!(kept.target.starts_with('a') && kept.target.ends_with('b'), "{kept:?}");
    assert_eq!(store.node("n\0").unwrap(), None);
    assert_eq!(store.instance("n\0").unwrap(), None);
    assert_eq!(store.project("n\0").unwrap(), None);
    store.reserve(reservation("i", 1, 1, Mode::Shared, 0)).wait().unwrap();
    store.renounce("i", Some("it said \0"), None).unwrap();
    let why = store.instance("i").unwrap().unwrap().failure.unwrap();
    assert!(why.starts_with("it said "), "{why}");
}
