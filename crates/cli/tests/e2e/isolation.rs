//! What one tenant leaves behind or holds, no other can read.

use crate::support::{Conversation, Node, program, success};

#[test]
fn freed_memory_is_zero_for_the_next_tenant() {
    // Device and quota are the same size, so that the next tenant gets the same frames.
    let node = Node::start(&["device.memory=64MiB"]);
    for _ in 0..2 {
        let mut first =
            Conversation::start(node.run(&["--name", "first"], &program("hostile"), &["secret"]));
        assert!(first.line().starts_with("ready"));
        first.say("end");
        assert!(first.wait().success());
        node.wait_until_empty();
        let text = success(node.run(&["--name", "second"], &program("hostile"), &["leftovers"]));
        assert!(text.contains("found 0 words"), "{text}");
        node.wait_until_empty();
    }
}

#[test]
fn memory_of_a_killed_tenant_is_zero_for_the_next() {
    let node = Node::start(&["device.memory=64MiB"]);
    let mut first =
        Conversation::start(node.run(&["--name", "first"], &program("hostile"), &["secret"]));
    first.line();
    first.kill();
    node.wait_until_empty();
    let text = success(node.run(&["--name", "second"], &program("hostile"), &["leftovers"]));
    assert!(text.contains("found 0 words"), "{text}");
}

#[test]
fn a_scan_of_the_address_space_finds_nothing() {
    let node = Node::start(&[]);
    let mut other = Conversation::start(node.run(
        &["--name", "other", "--memory", "64MiB"],
        &program("hostile"),
        &["secret"],
    ));
    other.line();
    let scan = node.run(&["--name", "scan"], &program("hostile"), &["scan"]);
    let text = success(scan);
    assert!(text.contains(" 0 found"), "{text}");
    other.say("end");
    assert!(other.wait().success());
}

#[test]
fn a_tenant_sees_its_own_quota() {
    let node = Node::start(&[]);
    let flags = ["--name", "small", "--memory", "48MiB"];
    let text = success(node.run(&flags, &program("hostile"), &["over_quota"]));
    assert!(text.contains("of 48 MiB"), "{text}");
    // A neighbour's full quota is not one's own.
    success(node.run(&["--name", "other", "--memory", "48MiB"], &program("vector_add"), &[]));
}
