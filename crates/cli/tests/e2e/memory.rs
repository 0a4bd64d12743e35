//! Devices that lend more memory than they have, to unmodified programs that keep watch over
//! theirs: `resident` changes and checks its memory until it is told to end.

use weft_node::admin::MemoryReport;

use crate::support::{Conversation, Node, eventually, program, success};

/// A device of 16 slots that lends four times as much.
const SMALL: &[&str] = &[
    "device.memory=16MiB",
    "device.slot=1MiB",
    "device.oversubscribe=4",
    "device.placement=exact",
];

/// A program with so many MiB.
fn resident(node: &Node, vgpu: &str, mebibytes: u32) -> Conversation {
    let flags = ["--name", vgpu, "--memory", "48MiB"];
    let mut command = node.run(&flags, &program("resident"), &[&mebibytes.to_string()]);
    command.stderr(std::process::Stdio::inherit());
    let program = Conversation::start(command);
    assert!(program.line().contains("copy_ms"));
    program
}

/// Ends it, and holds it to what it says about its memory.
fn is_intact(program: &mut Conversation) {
    program.say("end");
    let said: serde_json::Value = serde_json::from_str(&program.line()).unwrap();
    assert!(program.wait().success(), "{said}");
    assert!(said["rounds"].as_u64().unwrap() > 0, "{said}");
}

fn memory(node: &Node) -> MemoryReport {
    node.admin().stats().unwrap().devices[0].memory.clone()
}

fn run_until_copied(node: &Node, slots: u64) {
    let before = memory(node).copied_slots;
    eventually("slots to be copied", || memory(node).copied_slots > before + slots);
}

#[test]
fn four_programs_with_three_times_the_devices_memory_lose_nothing() {
    let node = Node::start(SMALL);
    let mut programs: Vec<Conversation> =
        ["a", "b", "c", "d"].iter().map(|vgpu| resident(&node, vgpu, 12)).collect();
    run_until_copied(&node, 500);
    let report = memory(&node);
    assert_eq!((report.slots.len(), report.slot_bytes), (16, 1 << 20));
    assert!(report.slots.iter().any(|slot| slot.users.len() > 1), "{report:?}");
    programs.iter_mut().for_each(is_intact);
    node.wait_until_empty();
    eventually("its slots to be nobody's", || {
        memory(&node).slots.iter().all(|slot| slot.owner.is_none() && slot.users.is_empty())
    });
}

#[test]
fn a_program_with_more_memory_than_the_device_has_it() {
    let node = Node::start(SMALL);
    let mut program = resident(&node, "large", 40);
    eventually("parts to give way", || memory(&node).replaced_parts > 100);
    is_intact(&mut program);
}

#[test]
fn what_is_not_lent_is_a_clear_error() {
    let node = Node::start(SMALL);
    let flags = ["--name", "small", "--memory", "48MiB"];
    let text = success(node.run(&flags, &program("hostile"), &["over_quota"]));
    assert!(text.contains("of 48 MiB"), "{text}");
    let mut holder = resident(&node, "holder", 40);
    let text = success(node.run(&flags, &program("vector_add"), &[]));
    assert!(!text.is_empty());
    is_intact(&mut holder);
}

#[test]
fn who_dies_while_memory_is_switched_takes_nothing_from_others() {
    let mut node = Node::start(SMALL);
    let mut programs: Vec<Conversation> =
        ["a", "b", "c", "d"].iter().map(|vgpu| resident(&node, vgpu, 12)).collect();
    for _ in 0..3 {
        run_until_copied(&node, 50);
        node.kill();
        node.launch();
    }
    run_until_copied(&node, 50);
    programs.remove(1).kill();
    run_until_copied(&node, 20);
    let sessions = |node: &Node| {
        let list = node.admin().list().unwrap();
        list.iter().map(|vgpu| vgpu.sessions).sum::<u32>()
    };
    eventually("the dead one to be gone", || sessions(&node) == 3);
    run_until_copied(&node, 20);
    programs.iter_mut().for_each(is_intact);
}
