//! Objects that graphs keep: destroyed once, when the last holder is gone and nothing runs.

use core::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::api::{Driver, Handle, UpdateInfo};
use super::{COUNT, INVALID_VALUE, SUCCESS, additions, alloc, count_up, instantiate, load};

/// `CU_USER_OBJECT_NO_DESTRUCTOR_SYNC`.
const NO_SYNC: u32 = 1;
/// `CU_GRAPH_USER_OBJECT_MOVE`.
const MOVE: u32 = 1;

/// An object with `count` references, whose destructor counts up.
fn object(driver: &Driver, destroyed: &AtomicU32, count: u32) -> Handle {
    let (mut object, place) = (0, core::ptr::from_ref(destroyed).cast_mut().cast::<c_void>());
    assert_eq!(driver.object_create(&mut object, place, count_up, count, NO_SYNC), SUCCESS);
    object
}

fn eventually(destroyed: &AtomicU32, count: u32, what: &str) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while destroyed.load(Ordering::SeqCst) < count {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(destroyed.load(Ordering::SeqCst), count, "{what}");
}

/// Destructors had the chance to run: one that is due later has.
fn let_destructors_run(driver: &Driver) {
    let destroyed = AtomicU32::new(0);
    let last = object(driver, &destroyed, 1);
    assert_eq!(driver.object_release(last, 1), SUCCESS);
    eventually(&destroyed, 1, "an object that nobody holds");
}

pub(super) fn body(driver: &Driver) {
    references(driver);
    graphs(driver);
    updates(driver);
}

fn references(driver: &Driver) {
    let (destroyed, mut none) = (AtomicU32::new(0), 0);
    let nowhere = core::ptr::null_mut();
    assert_eq!(driver.object_create(&mut none, nowhere, count_up, 1, 0), INVALID_VALUE);
    assert_eq!(driver.object_create(&mut none, nowhere, count_up, 0, NO_SYNC), INVALID_VALUE);
    let object = object(driver, &destroyed, 2);
    assert_eq!(driver.object_retain(object, 3), SUCCESS);
    assert_eq!(driver.object_retain(object, 0), INVALID_VALUE);
    assert_eq!(driver.object_release(object, 6), INVALID_VALUE, "there are five");
    assert_eq!(driver.object_release(object, 4), SUCCESS);
    assert_eq!(destroyed.load(Ordering::SeqCst), 0);
    assert_eq!(driver.object_release(object, 1), SUCCESS);
    eventually(&destroyed, 1, "the last reference is gone");
    assert_eq!(driver.object_release(object, 1), INVALID_VALUE);
    assert_eq!(driver.object_retain(object, 1), INVALID_VALUE);
}

/// Clones and instances hold what their graph held; an instance until its launches have ended.
fn graphs(driver: &Driver) {
    let (destroyed, module, data) = (AtomicU32::new(0), load(driver), alloc(driver, COUNT * 4));
    let function = driver.function_named(module, c"add_scalar");
    let graph = additions(driver, function, data, &[1]);
    let object = object(driver, &destroyed, 1);
    assert_eq!(driver.graph_retain(graph, object, 1, 2), INVALID_VALUE);
    assert_eq!(driver.graph_retain(graph, object, 1, MOVE), SUCCESS);
    assert_eq!(driver.graph_retain(graph, object, 2, 0), SUCCESS);
    assert_eq!(driver.graph_release(graph, object, 4), INVALID_VALUE, "it has three");
    assert_eq!(driver.graph_release(graph, object, 2), SUCCESS);
    let (mut clone, mut stream) = (0, 0);
    assert_eq!(driver.graph_clone(&mut clone, graph), SUCCESS);
    assert_eq!(driver.graph_destroy(graph), SUCCESS);
    let exec = instantiate(driver, clone);
    assert_eq!(driver.graph_destroy(clone), SUCCESS);
    let word = alloc(driver, 4);
    assert_eq!(driver.fill_words(word, 0, 1), SUCCESS);
    assert_eq!(driver.stream_create(&mut stream, 1), SUCCESS);
    assert_eq!(driver.wait_value(stream, word, 7, 1), SUCCESS);
    assert_eq!(driver.graph_launch(exec, stream), SUCCESS);
    assert_eq!(driver.graph_exec_destroy(exec), SUCCESS);
    let_destructors_run(driver);
    assert_eq!(destroyed.load(Ordering::SeqCst), 0, "it has not run yet");
    assert_eq!(driver.write_value(0, word, 7, 0), SUCCESS);
    assert_eq!(driver.stream_synchronize(stream), SUCCESS);
    eventually(&destroyed, 1, "the launch has ended");
    assert_eq!(driver.stream_destroy(stream), SUCCESS);
    for address in [word, data] {
        assert_eq!(driver.free(address), SUCCESS);
    }
    assert_eq!(driver.unload(module), SUCCESS);
}

/// What an instance held goes with the update that replaces it: its own, and its child's.
fn updates(driver: &Driver) {
    let [own, child, new] = [(); 3].map(|()| AtomicU32::new(0));
    let (module, data) = (load(driver), alloc(driver, COUNT * 4));
    let function = driver.function_named(module, c"add_scalar");
    let holder = |destroyed: &AtomicU32| {
        let graph = additions(driver, function, data, &[1]);
        let object = object(driver, destroyed, 1);
        assert_eq!(driver.graph_retain(graph, object, 1, MOVE), SUCCESS);
        graph
    };
    let (inner, outer, newer) = (holder(&child), holder(&own), holder(&new));
    let (mut node, mut info) = (0, UpdateInfo::default());
    assert_eq!(driver.graph_add_child(&mut node, outer, core::ptr::null(), 0, inner), SUCCESS);
    let exec = instantiate(driver, outer);
    let plain = instantiate(driver, inner);
    for graph in [inner, outer] {
        assert_eq!(driver.graph_destroy(graph), SUCCESS);
    }
    assert_eq!(driver.graph_launch(exec, 0), SUCCESS);
    assert_eq!(driver.graph_exec_set_child(exec, node, newer), SUCCESS);
    assert_eq!(driver.synchronize(), SUCCESS);
    let_destructors_run(driver);
    assert_eq!(child.load(Ordering::SeqCst), 0, "another instance still holds it");
    assert_eq!(driver.graph_exec_update(plain, newer, &mut info), SUCCESS);
    eventually(&child, 1, "both instances were updated");
    assert_eq!(driver.graph_destroy(newer), SUCCESS);
    assert_eq!((own.load(Ordering::SeqCst), new.load(Ordering::SeqCst)), (0, 0));
    for exec in [exec, plain] {
        assert_eq!(driver.graph_exec_destroy(exec), SUCCESS);
    }
    eventually(&own, 1, "the instance is gone");
    eventually(&new, 1, "both instances are gone");
    assert_eq!(driver.free(data), SUCCESS);
    assert_eq!(driver.unload(module), SUCCESS);
}
