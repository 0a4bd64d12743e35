//! Sessions: many at once, what their workers may do, what is booked when they end.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Signal, kill_process};

use crate::hierarchy::control;
use crate::support::{Conversation, Node, eventually, program, success};

/// More than one turnstile word's worth of everything that is kept in bit sets of 64, and more than
/// fit a byte.
const MANY: usize = 260;

/// Private memory that an idle worker may have, in KiB.
const IDLE_KIB_MAX: u64 = 4096;

/// The sum of the fields of `/proc/PID/FILE` that begin with one of `names`, in their unit.
fn fields(pid: u32, file: &str, names: &[&str]) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
    let wanted = |line: &&str| names.iter().any(|name| line.starts_with(name));
    let value =
        |line: &str| line.split_whitespace().nth(1).and_then(|word| word.parse::<u64>().ok());
    text.lines().filter(wanted).filter_map(value).sum()
}

#[test]
fn hundreds_of_idle_vgpus_cost_little_and_work() {
    let node = Node::start(&[]);
    let mut tenants: Vec<Conversation> = (0..MANY)
        .map(|index| {
            let name = format!("v{index}");
            Conversation::start(node.run(
                &["--name", &name, "--memory", "16MiB"],
                &program("idle"),
                &[],
            ))
        })
        .collect();
    for tenant in &tenants {
        assert!(tenant.line().contains("attach_us"), "{}", node.log());
    }
    let workers = node.workers();
    assert_eq!(workers.len(), MANY, "each vGPU has a worker");
    let largest = workers
        .iter()
        .map(|pid| fields(*pid, "smaps_rollup", &["Private_Clean:", "Private_Dirty:"]))
        .max()
        .unwrap();
    assert!((1..=IDLE_KIB_MAX).contains(&largest), "an idle worker has {largest} KiB of its own");
    for tenant in &mut tenants {
        assert!(tenant.wait().success(), "{}", node.log());
    }
    node.wait_until_empty();
}

#[test]
fn a_worker_has_no_capability_and_no_user_of_others() {
    let node = Node::start(&[]);
    let mut tenant = Conversation::start(node.run(&[], &program("idle"), &[]));
    tenant.line();
    let workers = node.workers();
    assert_eq!(workers.len(), 1);
    let status = std::fs::read_to_string(format!("/proc/{}/status", workers[0])).unwrap();
    let value = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_else(|| panic!("no {name} in {status}")).trim().to_owned()
    };
    for set in ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"] {
        if set == "CapBnd:" && !rustix::process::geteuid().is_root() {
            // Who may not use the bounding set may not change it either.
            continue;
        }
        assert_eq!(u64::from_str_radix(&value(set), 16), Ok(0), "{set} of {status}");
    }
    assert_eq!((value("NoNewPrivs:"), value("Seccomp:")), ("1".to_owned(), "2".to_owned()));
    if rustix::process::geteuid().is_root() {
        assert!(value("Uid:").split_whitespace().all(|uid| uid != "0"), "{status}");
        assert!(value("Gid:").split_whitespace().all(|gid| gid != "0"), "{status}");
        assert_eq!(value("Groups:"), "");
    }
    assert!(tenant.wait().success());
}

#[test]
fn usage_never_falls_while_sessions_end() {
    let node = Node::paced(&[]);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let (mut admin, mut last_ns, mut looks) = (node.admin(), 0, 0_u64);
            while !done.load(Ordering::Relaxed) {
                let used_ns = admin.list().unwrap().first().map_or(0, |vgpu| vgpu.used_ns);
                assert!(used_ns >= last_ns, "usage fell from {last_ns} to {used_ns}");
                (last_ns, looks) = (used_ns, looks + 1);
            }
            (last_ns, looks)
        });
        for _ in 0..12 {
            let command = node.run(
                &["--name", "v"],
                &program("share"),
                &["step_285us", "0", "--count", "40"],
            );
            success(command);
        }
        node.wait_until_empty();
        done.store(true, Ordering::Relaxed);
        let (_, looks) = watcher.join().unwrap();
        assert!(looks > 50, "only {looks} looks");
    });
    assert!(node.admin().list().unwrap()[0].used_ns >= 12 * 40 * 285_000);
}

/// Whether a process has ended, reaped or not.
fn has_ended(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.is_empty() || status.lines().any(|line| line.starts_with("State:\tZ"))
}

/// What the daemon last saved of its sessions' use.
fn saved_use(node: &Node) -> Vec<u64> {
    let bytes = std::fs::read(node.path().join("schedule.json")).unwrap_or_default();
    let saved: serde_json::Value = serde_json::from_slice(&bytes).unwrap_or_default();
    let sessions = saved["core"]["sessions"].as_array().cloned().unwrap_or_default();
    sessions.iter().filter_map(|session| session["used_ns"].as_u64()).collect()
}

#[test]
fn what_is_used_while_no_daemon_runs_is_booked_by_the_next() {
    let mut node = Node::paced(&[]);
    let start = |name: &str| {
        let share = ["step_285us", "60", "--window", "0.2"];
        let tenant = Conversation::start(node.run(&["--name", name], &program("share"), &share));
        tenant.line();
        tenant
    };
    let mut leaves = start("leaves");
    let mut killed = start("killed");
    let workers = node.workers();
    assert_eq!(workers.len(), 2);
    eventually("both sessions' use to be saved", || {
        saved_use(&node).iter().filter(|used_ns| **used_ns > 50_000_000).count() == 2
    });
    node.kill();
    // One tenant leaves; its worker ends in order. The other's worker dies at once.
    leaves.kill();
    eventually("the first worker to end", || has_ended(workers[0]));
    let pid = rustix::process::Pid::from_raw(workers[1].cast_signed()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    eventually("the second worker to end", || has_ended(workers[1]));
    killed.kill();
    let used = |node: &Node| -> Vec<(String, u64)> {
        let vgpus = node.admin().list().unwrap();
        vgpus.into_iter().map(|vgpu| (vgpu.name, vgpu.used_ns)).collect()
    };
    node.launch();
    let booked = used(&node);
    assert!(booked.len() == 2 && booked.iter().all(|(_, ns)| *ns > 50_000_000), "{booked:?}");
    node.kill();
    node.launch();
    assert_eq!(used(&node), booked, "it is booked once");
}

#[test]
fn nobody_is_refused_because_of_a_program_that_has_ended() {
    let node = Node::start(&[]);
    let mut tenant = Conversation::start(node.run(&["--name", "a"], &program("idle"), &[]));
    tenant.line();
    let worker = rustix::process::Pid::from_raw(node.workers()[0].cast_signed()).unwrap();
    // Its worker does not notice yet that the program is gone.
    kill_process(worker, Signal::STOP).unwrap();
    tenant.kill();
    let mut removal = control(&node, &["rm", "a"]).spawn().unwrap();
    let patience = Instant::now() + Duration::from_millis(500);
    let mut refused = None;
    while refused.is_none() && Instant::now() < patience {
        refused = removal.try_wait().unwrap();
        std::thread::sleep(Duration::from_millis(5));
    }
    kill_process(worker, Signal::CONT).unwrap();
    assert_eq!(refused, None, "{}", node.log());
    assert!(removal.wait().unwrap().success(), "{}", node.log());
}
