//! Who is killed in the middle of a switch of device memory: daemon, tenant, worker. Nothing of a
//! survivor is lost, under each way to deal slots out, in memory and on a disk.
//!
//! Entries are said to take so long that a kill falls within a switch for certain: its worker waits
//! for that time, in which the test sees the switch and kills.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::support::{Conversation, Node, eventually, is_root, program};
use crate::swap::Disk;

/// What a copied entry is said to take, in ns: a slot of 256 takes 26 ms.
const ENTRY_NS: u64 = 100_000;

/// A tenant at work, and the process of its worker.
struct Tenant {
    name: &'static str,
    program: Conversation,
    worker: u32,
}

/// A device of four slots that lends four times as much.
fn node(placement: &str, disk: Option<&Disk>) -> Node {
    let mut settings = vec![
        "device.memory=4MiB".to_owned(),
        "device.slot=1MiB".to_owned(),
        "device.oversubscribe=4".to_owned(),
        format!("device.switch_entry_ns={ENTRY_NS}"),
        format!("device.placement={placement}"),
    ];
    settings.extend(disk.map(|disk| format!("device.swap_dir={}", disk.path().display())));
    Node::start(&settings.iter().map(String::as_str).collect::<Vec<_>>())
}

fn start(node: &Node, name: &'static str) -> Tenant {
    let before = node.workers();
    let flags = ["--name", name, "--memory", "4MiB"];
    let program = Conversation::start(node.run(&flags, &program("resident"), &["2"]));
    assert!(program.line().contains("copy_ms"));
    let worker = node.workers().into_iter().find(|pid| !before.contains(pid)).unwrap();
    Tenant { name, program, worker }
}

/// A switch that has begun: whose, when at the earliest, and how long it is said to take.
fn begun(node: &Node) -> (String, Instant, Duration) {
    let seen = || node.admin().stats().unwrap().devices[0].memory.clone();
    let (before, mut asked) = (seen().switches, Instant::now());
    let mut last = None;
    eventually("a switch", || {
        let now = Instant::now();
        let report = seen();
        if report.switches == before {
            asked = now;
            return false;
        }
        last = report.last_switch;
        true
    });
    let last = last.unwrap();
    (last.vgpu, asked, Duration::from_nanos(last.entries * ENTRY_NS))
}

/// Kills within a switch, and says how many had to die for it: who was killed too late for that is
/// not counted. `kill` says whether there was somebody to kill: a dead one's worker may switch yet.
fn kill_within_a_switch(node: &mut Node, mut kill: impl FnMut(&mut Node, &str) -> bool) -> usize {
    let mut killed = 0;
    eventually("a kill within a switch", || {
        if node.pid() == 0 {
            // The daemon was killed, and too late.
            node.launch();
        }
        let (whose, began, takes) = begun(node);
        if began.elapsed() > takes / 2 || !kill(node, &whose) {
            return false;
        }
        killed += 1;
        began.elapsed() < takes
    });
    killed
}

fn sessions(node: &Node) -> u32 {
    node.admin().list().unwrap().iter().map(|vgpu| vgpu.sessions).sum()
}

/// The tenant of a vGPU, taken out, if it lives.
fn take(tenants: &mut Vec<Tenant>, name: &str) -> Option<Tenant> {
    let place = tenants.iter().position(|tenant| tenant.name == name)?;
    Some(tenants.remove(place))
}

fn all_are_killed_in_switches(placement: &str, disk: Option<&Disk>) {
    let mut node = node(placement, disk);
    let mut tenants: Vec<Tenant> =
        ["a", "b", "c", "d", "e"].into_iter().map(|name| start(&node, name)).collect();
    for _ in 0..2 {
        kill_within_a_switch(&mut node, |node, _| {
            node.kill();
            true
        });
        node.launch();
    }
    // The program whose switch it is, and the worker that waits for it.
    kill_within_a_switch(&mut node, |_, name| {
        take(&mut tenants, name).is_some_and(|mut tenant| {
            tenant.program.kill();
            true
        })
    });
    eventually("the dead to be gone", || sessions(&node) as usize == tenants.len());
    let mut told = Vec::new();
    let killed = kill_within_a_switch(&mut node, |_, name| {
        let Some(tenant) = take(&mut tenants, name) else { return false };
        kill_process(Pid::from_raw(tenant.worker.cast_signed()).unwrap(), Signal::KILL).unwrap();
        told.push(tenant.program);
        true
    });
    assert_eq!(told.len(), killed);
    for program in &mut told {
        assert!(!program.wait().success(), "{placement}: a program without a worker goes on");
    }
    eventually("the dead to be gone", || sessions(&node) as usize == tenants.len());
    assert!(tenants.len() >= 2, "{placement}: too many kills came late");
    tenants.iter_mut().for_each(|tenant| tenant.program.say("end"));
    for Tenant { name, program, .. } in &mut tenants {
        let said: serde_json::Value = serde_json::from_str(&program.line()).unwrap();
        assert!(program.wait().success(), "{placement}: {name}: {said}");
        assert!(said["rounds"].as_u64() > Some(0), "{placement}: {name}: {said}");
    }
    node.wait_until_empty();
}

#[test]
fn who_is_killed_in_a_switch_of_placed_slots_takes_nothing_from_others() {
    all_are_killed_in_switches("exact", None);
}

#[test]
fn who_is_killed_in_a_switch_of_slots_written_ahead_takes_nothing_from_others() {
    all_are_killed_in_switches("pipelined", None);
}

#[test]
fn who_is_killed_in_a_switch_on_demand_takes_nothing_from_others() {
    all_are_killed_in_switches("demand", None);
}

#[test]
fn who_is_killed_in_a_switch_on_a_disk_takes_nothing_from_others_and_leaves_room() {
    if !is_root() {
        return;
    }
    for placement in ["exact", "pipelined", "demand"] {
        let disk = Disk::new(32);
        all_are_killed_in_switches(placement, Some(&disk));
        eventually("room on the disk", || disk.used_bytes() < 1 << 20);
    }
}
