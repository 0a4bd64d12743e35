//! Where requests go under the product's own policy: what was asked for before decides with.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;

use weft_api::v1::{Kind, Mode, Quota};
use weft_control::allocate::Allocator;
use weft_control::plan::Step;
use weft_control::store::sqlite::Sqlite;
use weft_control::store::{GpuFound, Reservation, Store};

use crate::store::{event, gpu, node, reservation};
use crate::support::quota;

/// The GPU that a request of 400 MiB gets where nobody knows what is usually asked for: it is on
/// the fullest node, and 200 MiB are left on it.
const FULLEST: u32 = 1;

/// The one that it gets where most ask for 600 MiB: 400 MiB are free on it, which no such request
/// could use.
const OF_LEAST_USE: u32 = 3;

/// Two nodes with two GPUs of 1,000 MiB each, three of which somebody has a part of, and one with a
/// large GPU.
fn nodes(folder: &Path) -> Arc<dyn Store> {
    let store = Sqlite::open(&folder.join("db")).unwrap();
    store.put_project("p", Quota::from(quota(1_000, 1 << 20, 100)), None).unwrap();
    store.put_project("none", Quota::from(quota(0, 0, 0)), None).unwrap();
    store.put_node(&node("full", "one"), &[gpu("a"), gpu("b")], None).unwrap();
    store.put_node(&node("roomy", "two"), &[gpu("a"), gpu("b")], None).unwrap();
    for (id, gpu, memory_mib) in [("i1", FULLEST, 400), ("i2", 2, 1000), ("i3", OF_LEAST_USE, 600)]
    {
        store.reserve(reservation(id, gpu, memory_mib, Mode::Shared, 0)).wait().unwrap();
    }
    Arc::new(store)
}

fn allocator(store: &Arc<dyn Store>) -> Allocator {
    let policy = weft_sched::placement::by_name("fragmentation").unwrap();
    Allocator::new(Arc::clone(store), policy)
}

/// The GPU that a request gets, and gives back.
fn given(allocator: &Allocator, store: &dyn Store, id: &str, memory_mib: u64) -> u32 {
    allocator.reserve(&reservation(id, 0, memory_mib, Mode::Shared, 0)).unwrap();
    let gpu = store.instance_cgpus(id).unwrap()[0].gpu;
    store.renounce(id, None, None).unwrap();
    allocator.release(id, 9, &event(Step::Release)).unwrap();
    gpu
}

#[test]
fn what_was_asked_for_outlives_what_is_read_of_the_store() {
    let folder = tempfile::tempdir().unwrap();
    let store = nodes(folder.path());
    let allocator = allocator(&store);
    assert_eq!(given(&allocator, store.as_ref(), "first", 400), FULLEST);
    for number in 0..64 {
        let memory_mib = if number % 4 == 3 { 300 } else { 600 };
        given(&allocator, store.as_ref(), &format!("ask{number}"), memory_mib);
        // Everything is read anew after each request, as where a node comes and goes.
        allocator.note_answer("roomy", Some("it is away"));
        allocator.note_answer("roomy", None);
    }
    assert_eq!(given(&allocator, store.as_ref(), "last", 400), OF_LEAST_USE);
}

#[test]
fn a_batch_that_finds_no_room_is_one_request() {
    let folder = tempfile::tempdir().unwrap();
    let store = nodes(folder.path());
    let allocator = allocator(&store);
    let ask = |number: u32| {
        let one = |at| reservation(&format!("ask{number}-{at}"), 0, 600, Mode::Shared, 0);
        let batch: Vec<_> = (0..4).map(one).collect();
        let refused = allocator.reserve_all(&batch).unwrap_err();
        assert!(refused.detail.contains("room for 2 of 4 VMs"), "{refused}");
    };
    (0..16).for_each(ask);
    // Of 64 VMs nothing is learnt yet, for nobody knows how many an emptied cloud would have held.
    assert_eq!(given(&allocator, store.as_ref(), "first", 400), FULLEST);
    (16..64).for_each(ask);
    assert_eq!(given(&allocator, store.as_ref(), "last", 400), OF_LEAST_USE);
}

#[test]
fn a_batch_that_finds_room_is_as_many_requests_as_it_has_vms() {
    let folder = tempfile::tempdir().unwrap();
    let store = nodes(folder.path());
    let allocator = allocator(&store);
    for number in 0..32 {
        let ids = [0, 1].map(|at| format!("ask{number}-{at}"));
        let batch = ids.each_ref().map(|id| reservation(id, 0, 600, Mode::Shared, 0));
        allocator.reserve_all(&batch).unwrap();
        for id in &ids {
            store.renounce(id, None, None).unwrap();
            allocator.release(id, 9, &event(Step::Release)).unwrap();
        }
        if number == 15 {
            // The control: as many requests as batches teach nothing yet.
            assert_eq!(given(&allocator, store.as_ref(), "first", 400), FULLEST);
        }
    }
    assert_eq!(given(&allocator, store.as_ref(), "last", 400), OF_LEAST_USE);
}

#[test]
fn a_restart_knows_what_those_asked_for_who_are_there() {
    let folder = tempfile::tempdir().unwrap();
    let store = nodes(folder.path());
    let large = GpuFound { memory_mib: 64 * 600, ..gpu("a") };
    store.put_node(&node("large", "three"), &[large], None).unwrap();
    for number in 0..64 {
        let wanted = reservation(&format!("kept{number}"), 5, 600, Mode::Shared, number);
        store.reserve(wanted).wait().unwrap();
    }
    assert_eq!(given(&allocator(&store), store.as_ref(), "first", 400), OF_LEAST_USE);
}

/// Asks for three cGPUs on any GPUs again and again.
fn ask_for_three(allocator: &Allocator, project: &str, memory_mib: u64, times: u32) -> Vec<Kind> {
    let ask = |number: u32| {
        let mut wanted = reservation(&format!("{number}"), 0, memory_mib, Mode::Shared, 0);
        project.clone_into(&mut wanted.project);
        wanted.spec.cgpus = 3;
        allocator.reserve(&wanted).unwrap_err().kind
    };
    let mut kinds: Vec<Kind> = (0..times).map(ask).collect();
    kinds.dedup();
    kinds
}

#[test]
fn what_finds_no_room_is_what_room_is_kept_for() {
    let folder = tempfile::tempdir().unwrap();
    let store = nodes(folder.path());
    let allocator = allocator(&store);
    // Four GPUs could hold three, and two can now.
    assert_eq!(ask_for_three(&allocator, "p", 600, 64), [Kind::NoCapacity]);
    assert_eq!(given(&allocator, store.as_ref(), "first", 400), OF_LEAST_USE);
}

#[test]
fn what_finds_no_room_and_would_have_no_quota_does_not_change_where_others_go() {
    let folder = tempfile::tempdir().unwrap();
    let store = nodes(folder.path());
    // Enough cGPUs, and a MiB less than three of them have.
    store.put_project("scant", Quota::from(quota(100, 1_799, 100)), None).unwrap();
    let allocator = allocator(&store);
    for project in ["none", "scant", "unknown"] {
        assert_eq!(ask_for_three(&allocator, project, 600, 64), [Kind::NoCapacity]);
    }
    assert_eq!(given(&allocator, store.as_ref(), "first", 400), FULLEST);
}

#[test]
fn what_no_gpu_can_hold_does_not_change_where_others_go() {
    let folder = tempfile::tempdir().unwrap();
    let store = nodes(folder.path());
    let allocator = allocator(&store);
    assert_eq!(ask_for_three(&allocator, "p", 600, 64), [Kind::NoCapacity]);
    // If these counted, the mix would be of nothing else: 95 % of all are of them.
    assert_eq!(ask_for_three(&allocator, "p", 1_001, 20 * 64), [Kind::NoCapacity]);
    assert_eq!(given(&allocator, store.as_ref(), "last", 400), OF_LEAST_USE);
}

#[test]
fn who_has_no_quota_does_not_change_where_others_go() {
    let folder = tempfile::tempdir().unwrap();
    let store = nodes(folder.path());
    let allocator = allocator(&store);
    for number in 0..64 {
        let mut wanted = reservation(&format!("ask{number}"), 0, 600, Mode::Shared, 0);
        wanted.project = "none".to_owned();
        let refused = allocator.reserve(&wanted).unwrap_err();
        assert_eq!(refused.kind, Kind::Quota, "{refused}");
    }
    assert_eq!(given(&allocator, store.as_ref(), "first", 400), FULLEST);
}

/// What others ask for takes room until the store refuses it: nobody is told that there is none.
#[test]
fn whoever_finds_room_is_not_refused_for_what_others_are_refused() {
    const ROUNDS: u32 = 60;

    let folder = tempfile::tempdir().unwrap();
    let store = nodes(folder.path());
    let allocator = allocator(&store);
    let is_over = AtomicBool::new(false);
    let refused = AtomicU32::new(0);
    let made = thread::scope(|scope| {
        for number in 0..4 {
            let (allocator, is_over, refused) = (&allocator, &is_over, &refused);
            scope.spawn(move || {
                let mut asked = 0;
                while !is_over.load(Ordering::Relaxed) {
                    asked += 1;
                    let id = format!("greedy{number}-{asked}");
                    let plain = reservation(&id, 0, 1000, Mode::Shared, 0);
                    let none = Reservation { project: "none".to_owned(), ..plain };
                    allocator.reserve(&none).unwrap_err();
                    refused.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let mut made = 0;
        for round in 0..ROUNDS {
            let id = format!("one{round}");
            match allocator.reserve(&reservation(&id, 0, 1000, Mode::Shared, 0)) {
                Ok(_) => {
                    store.renounce(&id, None, None).unwrap();
                    allocator.release(&id, 9, &event(Step::Release)).unwrap();
                    made += 1;
                }
                // It is told to come back.
                Err(problem) => assert_eq!(problem.kind, Kind::Busy, "{problem:?}"),
            }
        }
        is_over.store(true, Ordering::Relaxed);
        made
    });
    assert!(refused.into_inner() > 0, "nobody else asked");
    assert!(made > ROUNDS / 2, "{made} of {ROUNDS}");
}
