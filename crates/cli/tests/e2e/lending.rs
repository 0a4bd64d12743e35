//! A driver's device whose memory is lent session by session: programs of more memory than it has
//! take turns and find all of theirs, whoever is killed meanwhile.
//!
//! The driver is Weft's own shim, and each worker has a device of its own in it: what all of them
//! have there together is no driver's account, so it is summed from what the system says that they
//! have in memory.

use rustix::process::{Pid, Signal, kill_process};

use crate::support::{Conversation, Node, eventually, finish, program, success, text_of, weft};
use crate::swap::Disk;

/// What the device has, and lends four times.
const MEMORY: u64 = 24 << 20;
/// What each program has, of MiB, and two for a variable: more than half of that.
const EACH: &str = "12";
/// Short kernels, so that nobody waits for long.
const SETTINGS: [&str; 5] = [
    "device.memory=24MiB",
    "device.slot=2MiB",
    "device.oversubscribe=4",
    // Turns of a tenth of a second where switches are dear, so that there are many of both.
    "scheduling.slack_us=100000",
    // The least that a laggard has beyond its longest kernel is ten seconds.
    "limits.kernel_ms=500",
];

struct Tenant {
    name: &'static str,
    program: Conversation,
    worker: u32,
}

fn start(node: &Node, name: &'static str) -> Tenant {
    let before = node.workers();
    let flags = ["--name", name, "--memory", "16MiB"];
    let program = Conversation::start(node.run(&flags, &program("resident"), &[EACH]));
    assert!(program.line().contains("copy_ms"), "{}", node.log());
    let worker = node.workers().into_iter().find(|pid| !before.contains(pid)).unwrap();
    Tenant { name, program, worker }
}

fn is_intact(mut tenant: Tenant) {
    tenant.program.say("end");
    let said: serde_json::Value = serde_json::from_str(&tenant.program.line()).unwrap();
    assert!(tenant.program.wait().success(), "{said}");
    assert!(said["rounds"].as_u64() > Some(0), "{said}");
}

/// Exchanges so far.
fn exchanges(node: &Node) -> u64 {
    node.admin().stats().unwrap().devices[0].memory.switches
}

fn some_exchanges(node: &Node) {
    let before = exchanges(node);
    eventually("some exchanges", || exchanges(node) > before + 5);
}

/// Bytes that a worker's device has in memory: of what it may have (gigabytes), what the system
/// says is there.
fn device_bytes(worker: u32) -> u64 {
    let Ok(maps) = std::fs::read_to_string(format!("/proc/{worker}/smaps")) else { return 0 };
    let mut bytes = 0;
    let mut is_device = false;
    for line in maps.lines() {
        if let Some(kib) = line.strip_prefix("Rss:").filter(|_| is_device) {
            bytes += kib.trim_end_matches("kB").trim().parse::<u64>().unwrap() << 10;
        } else if let Some((first, rest)) = line.split_once('-')
            && let (Ok(first), Some(last)) = (
                u64::from_str_radix(first, 16),
                rest.split(' ').next().and_then(|last| u64::from_str_radix(last, 16).ok()),
            )
        {
            is_device = line.contains("weft-frames") && last - first >= 1 << 30;
        }
    }
    bytes
}

#[test]
fn programs_of_more_memory_than_a_driver_has_take_turns_and_find_all_of_theirs() {
    let node = Node::on_driver(&SETTINGS);
    let tenants: Vec<Tenant> = ["a", "b", "c"].iter().map(|name| start(&node, name)).collect();
    let mut most = 0;
    for _ in 0..3 {
        some_exchanges(&node);
        most = most.max(tenants.iter().map(|tenant| device_bytes(tenant.worker)).sum());
        let memory = &node.admin().stats().unwrap().devices[0].memory;
        let (used, there) = memory
            .vgpus
            .iter()
            .fold((0, 0), |(used, there), own| (used + own.used_bytes, there + own.resident_bytes));
        assert!(used > MEMORY && there <= MEMORY, "{there} of {used}: {memory:?}");
        assert!(memory.moved_bytes > 0 && memory.copying_ns > 0, "{memory:?}");
    }
    // While somebody saves and another one brings, both may have a piece of 2 MiB.
    assert!(most > MEMORY / 2 && most <= MEMORY + (4 << 20), "{most} bytes are on the device");
    let mut command = weft();
    command.arg("--runtime-dir").arg(node.path()).arg("memory");
    let shown = success(command);
    assert!(shown.contains("lent session by session") && shown.contains("SWAPPED"), "{shown}");
    tenants.into_iter().for_each(is_intact);
    node.wait_until_empty();
    let memory = &node.admin().stats().unwrap().devices[0].memory;
    assert!(memory.vgpus.iter().all(|own| own.resident_bytes == 0), "{memory:?}");
}

/// The control: a device that lends no more than it has refuses the second.
#[test]
fn a_driver_that_lends_no_more_than_it_has_refuses_them() {
    let node = Node::on_driver(&["device.memory=24MiB", "device.slot=2MiB"]);
    let first = start(&node, "a");
    let flags = ["--name", "b", "--memory", "16MiB"];
    let refused = finish(node.run(&flags, &program("resident"), &[EACH]));
    assert!(!refused.status.success(), "{}", text_of(&refused));
    is_intact(first);
}

#[test]
fn one_that_has_more_than_the_device_is_out_of_memory() {
    let node = Node::on_driver(&SETTINGS);
    let flags = ["--name", "large", "--memory", "48MiB"];
    let refused = finish(node.run(&flags, &program("resident"), &["24"]));
    let text = text_of(&refused);
    assert!(!refused.status.success() && text.contains("MEMORY"), "{text}");
    is_intact(start(&node, "a"));
}

fn signal(worker: u32, signal: Signal) {
    kill_process(Pid::from_raw(worker.cast_signed()).unwrap(), signal).unwrap();
}

/// Takes out a tenant whose worker is stopped in the middle of an exchange: by the daemon's account
/// it has more on the device than the system says is there, for it brings that, or has not said yet
/// that it gave it.
fn stopped_in_an_exchange(node: &Node, tenants: &mut Vec<Tenant>) -> Tenant {
    let mut found = None;
    eventually("an exchange", || {
        found = tenants.iter().position(|Tenant { name, worker, .. }| {
            signal(*worker, Signal::STOP);
            let memory = node.admin().stats().unwrap().devices[0].memory.clone();
            let account = memory.vgpus.iter().find(|own| own.name == *name);
            let account = account.map_or(0, |own| own.resident_bytes);
            // Of the slot with the variable a page is used, and two are partly moved at a time.
            let is_found = account >= device_bytes(*worker) + (6 << 20);
            if !is_found {
                signal(*worker, Signal::CONT);
            }
            is_found
        });
        found.is_some()
    });
    tenants.remove(found.unwrap())
}

#[test]
fn who_is_killed_in_an_exchange_takes_nothing_from_others() {
    let mut node = Node::on_driver(&SETTINGS);
    let names = ["a", "b", "c", "d", "e"];
    let mut tenants: Vec<Tenant> = names.iter().map(|name| start(&node, name)).collect();
    for _ in 0..2 {
        let stopped = stopped_in_an_exchange(&node, &mut tenants);
        // The system ends who is stopped when its parent dies; an exchange lasts for longer.
        signal(stopped.worker, Signal::CONT);
        node.kill();
        node.launch();
        tenants.push(stopped);
        some_exchanges(&node);
    }
    let mut killed = stopped_in_an_exchange(&node, &mut tenants);
    killed.program.kill();
    signal(killed.worker, Signal::CONT);
    some_exchanges(&node);
    let mut worker = stopped_in_an_exchange(&node, &mut tenants);
    signal(worker.worker, Signal::KILL);
    assert!(!worker.program.wait().success(), "a program without a worker goes on");
    some_exchanges(&node);
    tenants.into_iter().for_each(is_intact);
    node.wait_until_empty();
}

/// A worker that stands where it is and gives nothing back is ended, and not who waits for it. It
/// has no work, so that no turn is what it is ended for.
#[test]
fn who_gives_nothing_back_is_ended() {
    let node = Node::on_driver(&[&SETTINGS[..], &["limits.block_ms=60000"]].concat());
    let flags = ["--name", "a", "--memory", "16MiB"];
    let idle = ["12", "12", "1", "--start", "-"];
    let mut stopped = Conversation::start(node.run(&flags, &program("working"), &idle));
    stopped.line();
    let worker = node.workers()[0];
    signal(worker, Signal::STOP);
    let waits = start(&node, "b");
    eventually("it to be ended", || !node.workers().contains(&worker));
    assert!(node.log().contains("does not give device memory back"), "{}", node.log());
    is_intact(waits);
    stopped.kill();
}

/// What is not on the device lies in files of a disk: when it is full, whoever asks is out of
/// memory, and the others keep theirs.
#[test]
fn what_is_not_on_the_device_lies_on_a_disk() {
    if !crate::support::is_root() {
        return;
    }
    let disk = Disk::new(48);
    let dir = format!("device.swap_dir={}", disk.path().display());
    let node = Node::on_driver(&[&SETTINGS[..], &[&dir]].concat());
    let tenants: Vec<Tenant> = ["a", "b", "c"].iter().map(|name| start(&node, name)).collect();
    some_exchanges(&node);
    // Its room was taken when the memory was.
    assert!(disk.used_bytes() > 3 * (12 << 20), "{}", disk.used_bytes());
    let flags = ["--name", "d", "--memory", "16MiB"];
    let refused = finish(node.run(&flags, &program("resident"), &["14"]));
    assert!(!refused.status.success(), "{}", text_of(&refused));
    tenants.into_iter().for_each(is_intact);
    node.wait_until_empty();
    eventually("room on the disk", || disk.used_bytes() < 1 << 20);
}
