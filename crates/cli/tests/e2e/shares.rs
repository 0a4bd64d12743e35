//! Long kernels, graphs and extended launches get the share of their tenant, and no more.

use std::collections::BTreeMap;

use crate::node::assert_share;
use crate::support::{Conversation, Node, eventually, program};

/// The default quantum, in ns.
const QUANTUM_NS: u64 = 6_000_000;

fn tenant(node: &Node, name: &str, weight: &str, binary: &str, arguments: &[&str]) -> Conversation {
    let flags = ["--name", name, "--weight", weight];
    Conversation::start(node.run(&flags, &program(binary), arguments))
}

/// The longest turn of each vGPU since all of them compete, in ns of device time; waits until each
/// has had `count`.
fn longest_turns(node: &Node, names: &[&str], count: usize) -> BTreeMap<String, u64> {
    let mut longest = BTreeMap::new();
    eventually("turns", || {
        let turns = node.admin().timeline(0).unwrap().turns;
        let first = |name: &&str| turns.iter().find(|turn| turn.vgpu == **name);
        let Some(starts) = names.iter().map(first).collect::<Option<Vec<_>>>() else {
            return false;
        };
        let since_ns = starts.iter().map(|turn| turn.start_ns).max().unwrap();
        longest.clear();
        let mut over = BTreeMap::new();
        for turn in turns.iter().filter(|turn| turn.start_ns > since_ns && turn.end_ns.is_some()) {
            let longest = longest.entry(turn.vgpu.clone()).or_insert(0);
            *longest = turn.used_ns.max(*longest);
            *over.entry(turn.vgpu.as_str()).or_insert(0) += 1;
        }
        names.iter().all(|name| over.get(name).is_some_and(|turns| *turns >= count))
    });
    longest
}

#[test]
fn kernels_of_two_seconds_do_not_move_the_others_shares() {
    let node = Node::paced(&[]);
    let short = ["step_285us", "30", "--window", "0.2"];
    let tenants = [
        tenant(&node, "short", "1", "share", &short),
        tenant(&node, "long", "1", "long", &["30", "--blocks", "19000", "--window", "0.2"]),
        tenant(&node, "heavy", "2", "share", &short),
    ];
    for tenant in &tenants {
        tenant.line();
    }
    // Windows much shorter than one of the long kernels.
    assert_share(&node, "short", 0.25);
    assert_share(&node, "long", 0.25);
    assert_share(&node, "heavy", 0.5);
    let longest = longest_turns(&node, &["short", "long", "heavy"], 20);
    assert!(longest["long"] < 2 * QUANTUM_NS, "{longest:?}");
}

#[test]
fn unsliced_the_same_kernels_take_the_device() {
    let node = Node::paced(&["scheduling.slicing=never"]);
    let short = ["step_285us", "30", "--window", "0.2"];
    let long = tenant(&node, "long", "1", "long", &["30", "--blocks", "19000", "--window", "0.2"]);
    let other = tenant(&node, "short", "1", "share", &short);
    long.line();
    other.line();
    let longest = longest_turns(&node, &["long", "short"], 1);
    assert!(longest["long"] > 100 * QUANTUM_NS, "{longest:?}");
}

#[test]
fn graphs_and_extended_launches_get_what_single_launches_get() {
    let node = Node::paced(&[]);
    // 64 kernels of 285 µs: three quanta and more.
    let tenants = [
        tenant(
            &node,
            "graphs",
            "1",
            "share",
            &["step_285us", "30", "--window", "0.2", "--graph", "64"],
        ),
        tenant(&node, "single", "1", "share", &["step_285us", "30", "--window", "0.2"]),
        tenant(&node, "extended", "1", "share", &["step_285us", "30", "--window", "0.2", "--ex"]),
    ];
    for tenant in &tenants {
        tenant.line();
    }
    for name in ["graphs", "single", "extended"] {
        assert_share(&node, name, 1.0 / 3.0);
    }
    let longest = longest_turns(&node, &["graphs", "single", "extended"], 20);
    assert!(longest["graphs"] < 2 * QUANTUM_NS, "a graph is not cut: {longest:?}");
}
