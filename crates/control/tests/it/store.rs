//! The store: what is there twice, what is old, and what is newer.

use std::sync::Arc;

use weft_api::v1::{Mode, Quota};
use weft_control::allocate::Allocator;
use weft_control::store::sqlite::Sqlite;
use weft_control::store::{
    Audit, GpuFound, NodeRow, Part, Reservation, Spec, Store, StoreError, Taken,
};

fn audit() -> Audit {
    Audit {
        at_ms: 1,
        actor: "a".into(),
        project: None,
        action: "InstanceCreate".into(),
        target: "i".into(),
        status: 202,
    }
}

fn reservation(id: &str, gpu: u32, memory_mib: u64, mode: Mode, generation: u64) -> Reservation {
    let spec = Spec {
        cgpus: 1,
        memory_mib,
        mode,
        locality: weft_api::v1::Locality::Remote,
        weight: 1,
        sla_us: 0,
        user_data: String::new(),
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
        audit: audit(),
    }
}

fn part() -> Part {
    Part { limit: 100, after: None, project: None }
}

fn opened(folder: &tempfile::TempDir) -> Sqlite {
    let store = Sqlite::open(&folder.path().join("db")).unwrap();
    let quota = Quota { cgpus: 100, memory_mib: 100_000, exclusive_gpus: 100 };
    store.put_project("p", quota, None).unwrap();
    let node = NodeRow {
        name: "n".into(),
        admin: String::new(),
        gateway: String::new(),
        gateway_given: true,
        host: "n".into(),
        created_ms: 0,
        gpus: 0,
        identity: "one".into(),
    };
    let gpu =
        |device: &str| GpuFound { device: device.into(), product: String::new(), memory_mib: 1000 };
    store.put_node(&node, &[gpu("a"), gpu("b")], None).unwrap();
    store
}

#[test]
fn a_gpu_is_taken_only_as_it_was_decided_on() {
    let folder = tempfile::tempdir().unwrap();
    let store = opened(&folder);
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

#[test]
fn two_allocators_of_one_store_never_give_the_same_twice() {
    let folder = tempfile::tempdir().unwrap();
    let store: Arc<dyn Store> = Arc::new(opened(&folder));
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

#[test]
fn a_store_of_a_newer_version_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("db");
    drop(opened(&folder));
    let connection = rusqlite::Connection::open(&path).unwrap();
    let known: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0)).unwrap();
    connection.pragma_update(None, "user_version", 999).unwrap();
    let error = Sqlite::open(&path).unwrap_err().to_string();
    assert!(error.contains("newer version"), "{error}");
    connection.pragma_update(None, "user_version", known).unwrap();
    let store = Sqlite::open(&path).unwrap();
    assert_eq!(store.gpus(&part()).unwrap().len(), 2, "opened again, it has what it had");
}

#[test]
fn nobody_changes_the_audit() {
    let folder = tempfile::tempdir().unwrap();
    let store = opened(&folder);
    store.note(&audit()).unwrap();
    let connection = rusqlite::Connection::open(folder.path().join("db")).unwrap();
    for change in ["DELETE FROM audit", "UPDATE audit SET actor = 'b'"] {
        let error = connection.execute(change, []).unwrap_err().to_string();
        assert!(error.contains("only added to"), "{error}");
    }
    assert_eq!(store.audit(&part()).unwrap().len(), 1);
}

#[test]
fn a_node_that_loses_a_gpu_gets_nothing_new_on_it() {
    let folder = tempfile::tempdir().unwrap();
    let store = opened(&folder);
    let node = store.node("n").unwrap().unwrap();
    let only = GpuFound { device: "b".into(), product: "new".into(), memory_mib: 2000 };
    store.put_node(&node, &[only], None).unwrap();
    let gpus = store.gpus(&part()).unwrap();
    let seen: Vec<_> = gpus.iter().map(|(_, gpu)| (gpu.in_service, gpu.found.memory_mib)).collect();
    assert_eq!(seen, [(false, 1000), (true, 2000)]);
    let taken = store.reserve(reservation("i", 1, 1, Mode::Shared, gpus[0].1.generation)).wait();
    assert_eq!(taken.unwrap_err(), StoreError::Changed);
}
