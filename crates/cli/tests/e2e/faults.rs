//! Misbehaving programs, killed processes, wrong input: the right error for one, nothing for
//! others.

use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command};

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::support::{Conversation, Node, eventually, finish, program, success, text_of};

fn hostile(node: &Node, case: &str) -> String {
    success(node.run(&["--memory", "64MiB"], &program("hostile"), &[case]))
}

#[test]
fn every_misbehaviour_gets_its_error() {
    let node = Node::start(&["limits.kernel_ms=300"]);
    for case in [
        "trap",
        "misaligned",
        "out_of_bounds",
        "use_after_free",
        "null_pointer",
        "stale",
        "garbage",
        "forked",
        "over_quota",
    ] {
        hostile(&node, case);
    }
    node.wait_until_empty();
    let log = node.log();
    assert!(log.contains("out_of_bounds") && log.contains("line"), "no kernel and line in: {log}");
}

#[test]
fn an_endless_kernel_is_killed_and_hurts_nobody() {
    let node = Node::start(&["limits.kernel_ms=500"]);
    let bad = node.run(&["--name", "bad"], &program("hostile"), &["endless"]);
    let bad = std::thread::spawn(move || success(bad));
    for _ in 0..3 {
        success(node.run(&["--name", "good"], &program("matrix_mul"), &["64"]));
    }
    assert!(bad.join().unwrap().contains("CUDA_ERROR_LAUNCH_TIMEOUT"));
}

#[test]
fn without_a_limit_an_endless_kernel_ends_with_its_program() {
    let node = Node::start(&["scheduling.overdue_ms=500"]);
    let bad = node.run(&["--name", "bad"], &program("hostile"), &["endless"]);
    let mut bad = Conversation::start(bad);
    eventually("the kernel to run", || {
        node.admin().list().unwrap().iter().any(|vgpu| vgpu.memory_used_bytes > 0)
    });
    bad.kill();
    success(node.run(&["--name", "good"], &program("matrix_mul"), &["64"]));
    node.wait_until_empty();
}

/// Others that wait, and a kernel of one thread block that takes so many seconds when its worker
/// has a processor to itself, which it has not where it shares one with `hogs`; whether it lived.
fn lives_through_a_block(seconds: f64, hogs: usize) -> bool {
    // A worker that executes goes before the hogs otherwise.
    let node = Node::start(&["limits.block_ms=500", "scheduling.overdue_ms=500", "worker.nice=0"]);
    let calibrated = success(node.run(
        &["--name", "calibrated"],
        &program("adversary"),
        &["calibrate", &seconds.to_string()],
    ));
    let line = calibrated.lines().find(|line| line.starts_with('{')).unwrap();
    let calibrated: serde_json::Value = serde_json::from_str(line).unwrap();
    let steps = calibrated["steps"].as_u64().unwrap().to_string();
    let honest = ["honest", "1", "--start", "-", "--ahead", "1", "--kernel", "uncut"];
    let long = [&honest, ["--steps", &steps].as_slice()].concat();
    let mut long = Conversation::start(node.run(&["--name", "long"], &program("adversary"), &long));
    assert_eq!(long.line(), "ready");
    let hogs = Hogs::beside_workers(&node, hogs);
    let short = ["honest", "3", "--start", "-", "--steps", "5000"];
    let mut short =
        Conversation::start(node.run(&["--name", "short"], &program("adversary"), &short));
    assert_eq!(short.line(), "ready");
    [&mut long, &mut short].into_iter().for_each(|tenant| tenant.say("begin"));
    let lived = long.child.wait().unwrap().success();
    drop(hogs);
    short.line();
    short.wait();
    lived
}

/// The number of a processor that may be used.
fn first_processor() -> usize {
    let allowed = sched_getaffinity(None).unwrap();
    (0..1024).find(|processor| allowed.is_set(*processor)).unwrap()
}

fn only(processor: usize) -> CpuSet {
    let mut only = CpuSet::new();
    only.set(processor);
    only
}

/// By the number of a process or of a thread; `None` would be the one that calls.
fn pid(number: u32) -> Option<Pid> {
    Some(Pid::from_raw(number.try_into().unwrap()).unwrap())
}

/// Binds all threads of a process, and so those that they start, to a processor. Threads may end
/// meanwhile, and begin while others are bound.
fn pin(process: u32, processor: usize) {
    let only = only(processor);
    eventually("all threads to be on one processor", || {
        let mut all = true;
        for thread in std::fs::read_dir(format!("/proc/{process}/task")).unwrap() {
            let Some(number) = thread.ok().and_then(|thread| thread.file_name().into_string().ok())
            else {
                continue;
            };
            let thread = pid(number.parse().unwrap());
            if sched_getaffinity(thread).is_ok_and(|allowed| allowed != only) {
                all = false;
                // One that has ended in between needs nothing.
                let _ = sched_setaffinity(thread, &only);
            }
        }
        all
    });
}

/// Processes that spin on one processor.
struct Hogs(Vec<Child>);

impl Hogs {
    /// On the processor to which the node's workers are bound from now on.
    fn beside_workers(node: &Node, hogs: usize) -> Self {
        let processor = first_processor();
        for worker in node.workers() {
            sched_setaffinity(pid(worker), &only(processor)).unwrap();
        }
        let spin = ["-c", &processor.to_string(), "sh", "-c", "while :; do :; done"];
        Self((0..hogs).map(|_| Command::new("taskset").args(spin).spawn().unwrap()).collect())
    }
}

impl Drop for Hogs {
    fn drop(&mut self) {
        for hog in &mut self.0 {
            hog.kill().unwrap();
            hog.wait().unwrap();
        }
    }
}

/// What a tenant does in a fixed time beside so many spinning processes, as it counts that, and
/// what each of it was charged in ns.
fn done_and_its_charge(program_of: &[&str], counts: &str, hogs: usize) -> (f64, f64) {
    // A worker that executes goes before them otherwise.
    let node = Node::start(&["worker.nice=0"]);
    let arguments = [program_of, ["--start", "-"].as_slice()].concat();
    let mut tenant =
        Conversation::start(node.run(&["--name", "one"], &program("adversary"), &arguments));
    assert_eq!(tenant.line(), "ready");
    tenant.say("begin");
    eventually("its worker", || !node.workers().is_empty());
    let hogs = Hogs::beside_workers(&node, hogs);
    let report: serde_json::Value = serde_json::from_str(&tenant.line()).unwrap();
    assert!(tenant.wait().success(), "{report}");
    drop(hogs);
    node.wait_until_empty();
    let charged_ns = node.admin().list().unwrap()[0].used_ns;
    let done = report[counts].as_f64().unwrap();
    (done, charged_ns as f64 / done)
}

/// On one processor workers are in between all the time while the driver looks at what they said.
#[test]
fn honest_workers_that_share_a_processor_are_not_taken_for_liars() {
    let node = Node::start(&[]);
    let processor = first_processor();
    pin(node.pid(), processor);
    for _ in 0..3 {
        let run = |vgpu| {
            let run = node.run(&["--name", vgpu], &program("relay"), &["150"]);
            let mut pinned = Command::new("taskset");
            pinned.args(["-c", &processor.to_string()]).arg(run.get_program()).args(run.get_args());
            let set = run.get_envs().filter_map(|(name, value)| Some((name, value?)));
            Conversation::start({
                pinned.envs(set);
                pinned
            })
        };
        for mut run in ["a", "b", "c"].map(run) {
            assert!(run.wait().success());
        }
    }
    assert!(!node.log().contains("news that are not marked"), "{}", node.log());
}

/// Kernels pay for the processor that they had, not for the time in which others had it; so do
/// launches, which are all that empty kernels are.
#[test]
fn who_takes_the_processor_raises_nobodys_bill() {
    let honest = ["honest", "2", "--ahead", "2", "--steps", "200000"];
    let graph = ["graph", "2", "--sessions", "1", "--kernel", "nothing", "--kernels", "4000"];
    for (what, counts) in [(honest.as_slice(), "launches"), (&graph, "rounds")] {
        let (alone, charge) = done_and_its_charge(what, counts, 0);
        let (beside, charge_beside) = done_and_its_charge(what, counts, 3);
        eprintln!("{alone} {counts} at {charge} ns, {beside} at {charge_beside} ns beside others");
        // By the clock each would cost as many times more as there are fewer of them. Beside others
        // a processor is slower, too, by its caches, which is not theirs to pay.
        let fewer = alone / beside;
        assert!(fewer > 1.6, "others took no processor: {beside} {counts} of {alone}");
        let dearer = charge_beside / charge;
        assert!(dearer < fewer.sqrt(), "{fewer:.2} times fewer, each {dearer:.2} times as dear");
    }
}

/// A limit of a second counts what the block had, not what other load had of its processor: by the
/// clock it takes four times what it takes alone, and two busy processors are slower than one.
#[test]
fn a_block_is_not_ended_for_time_that_others_had() {
    assert!(lives_through_a_block(0.35, 3), "it was ended for others' time");
    assert!(!lives_through_a_block(4.0, 0), "a block of seconds keeps others waiting");
}

#[test]
fn ten_thousand_threads_come_and_go() {
    hostile(&Node::start(&[]), "threads");
}

#[test]
fn a_killed_tenant_returns_its_memory_and_its_turn() {
    let node = Node::paced(&[]);
    for _ in 0..3 {
        let mut tenant = Conversation::start(node.run(
            &["--name", "victim"],
            &program("share"),
            &["step_285us", "60", "--window", "0.2"],
        ));
        tenant.line();
        tenant.kill();
        node.wait_until_empty();
        let vgpus = node.admin().list().unwrap();
        assert_eq!(vgpus[0].memory_used_bytes, 0, "{vgpus:?}");
        success(node.run(&["--name", "next"], &program("vector_add"), &[]));
    }
}

#[test]
fn a_killed_worker_is_an_error_for_its_tenant_alone() {
    let node = Node::paced(&[]);
    let victim = node.run(
        &["--name", "victim"],
        &program("share"),
        &["step_285us", "60", "--window", "0.2"],
    );
    let mut victim = Conversation::start(victim);
    victim.line();
    let workers = node.workers();
    assert_eq!(workers.len(), 1, "{workers:?}");
    let other =
        node.run(&["--name", "other"], &program("share"), &["step_102us", "3", "--window", "0.2"]);
    let mut other = Conversation::start(other);
    other.line();
    let pid = Pid::from_raw(workers[0].cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    let status = victim.wait();
    assert_eq!(status.code(), Some(2), "the tenant must see an error code and exit by itself");
    assert!(other.wait().success());
    eventually("the reason in the log", || node.log().contains("worker died"));
}

#[test]
fn a_killed_daemon_is_replaced_without_a_tenant_noticing() {
    let mut node = Node::paced(&[]);
    let mut tenants: Vec<_> = [("a", "1"), ("b", "3")]
        .iter()
        .map(|(name, weight)| {
            Conversation::start(node.run(
                &["--name", name, "--weight", weight],
                &program("share"),
                &["step_285us", "6", "--window", "0.5"],
            ))
        })
        .collect();
    for tenant in &tenants {
        tenant.line();
    }
    node.kill();
    node.launch();
    eventually("both sessions to be adopted", || {
        let vgpus = node.admin().list().unwrap();
        vgpus.iter().filter(|vgpu| vgpu.sessions == 1).count() == 2
    });
    let vgpus = node.admin().list().unwrap();
    assert_eq!(vgpus.iter().map(|vgpu| vgpu.weight).collect::<Vec<_>>(), [1, 3]);
    assert!(vgpus.iter().all(|vgpu| vgpu.memory_used_bytes > 0), "{vgpus:?}");
    for tenant in &mut tenants {
        assert!(tenant.wait().success(), "{}", node.log());
    }
    node.wait_until_empty();
}

#[test]
fn sixty_four_tenants_at_once() {
    let node = Node::start(&[]);
    let runs: Vec<_> = (0..64)
        .map(|index| {
            let name = format!("t{index}");
            let command =
                node.run(&["--name", &name, "--memory", "16MiB"], &program("reduction"), &["4096"]);
            std::thread::spawn(move || success(command))
        })
        .collect();
    for run in runs {
        assert!(run.join().unwrap().contains("PASSED"));
    }
    node.wait_until_empty();
}

#[test]
fn a_second_daemon_on_the_same_sockets_is_refused() {
    let node = Node::start(&[]);
    let output = finish(node.command());
    let text = text_of(&output);
    assert!(!output.status.success());
    assert!(text.contains("already"), "{text}");
    success(node.run(&[], &program("vector_add"), &[]));
}

#[test]
fn a_socket_without_permission_says_so() {
    let node = Node::start(&[]);
    let socket = node.path().join("tenant.sock");
    std::fs::set_permissions(&socket, std::fs::Permissions::from_mode(0o600)).unwrap();
    std::fs::set_permissions(node.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    // As nobody, who is not root and not the owner.
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    command.arg(program("vector_add"));
    command.env("WEFT_SOCKET", &socket).env("LD_LIBRARY_PATH", node.path().join("lib"));
    success(node.run(&[], &program("vector_add"), &[])); // Makes the library folder.
    let output = finish(command);
    let text = text_of(&output);
    assert!(!output.status.success(), "{text}");
    assert!(text.contains("ermission") && text.contains("tenant.sock"), "{text}");
}

#[test]
fn a_program_without_a_daemon_is_told_what_to_do() {
    let node = Node::start(&[]);
    success(node.run(&[], &program("vector_add"), &[]));
    let mut command = Command::new(program("vector_add"));
    command.env("WEFT_SOCKET", node.path().join("nobody.sock"));
    command.env("LD_LIBRARY_PATH", node.path().join("lib"));
    let output = finish(command);
    let text = text_of(&output);
    assert!(!output.status.success());
    assert!(text.contains("nobody.sock") && text.contains("weft node"), "{text}");
}

#[test]
fn wrong_settings_name_the_key_and_the_allowed_values() {
    for (setting, words) in [
        ("scheduling.policy=fairest", ["scheduling.policy", "unmanaged"]),
        ("scheduling.quantum_us=5", ["scheduling.quantum_us", "1000000"]),
        ("device.clock=fast", ["clock", "paced"]),
        ("limits.sesions=5", ["sesions", "sessions_per_user"]),
    ] {
        let scratch = tempfile::tempdir().unwrap();
        let mut command = crate::support::weft();
        command.arg("node").arg("--runtime-dir").arg(scratch.path()).args(["--set", setting]);
        let output = finish(command);
        let text = text_of(&output);
        assert!(!output.status.success(), "{setting}: {text}");
        for word in words {
            assert!(text.contains(word), "{setting}: no `{word}` in {text}");
        }
    }
}

#[test]
fn a_stopped_node_gives_its_tenants_an_error_and_ends() {
    let node = Node::paced(&[]);
    let command = node.run(&[], &program("share"), &["step_285us", "60", "--window", "0.2"]);
    let mut tenant = Conversation::start(command);
    tenant.line();
    node.admin().shutdown().unwrap();
    assert_eq!(tenant.wait().code(), Some(2));
    eventually("the daemon to end", || node.client().is_none());
}
