//! Machines that QEMU interprets.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use weft_ring::priority::Treatment;

use super::child_of;
use crate::node::assert_share;
use crate::support::{
    Conversation, Node, eventually, finish, program, provided, python, root, success, text_of, weft,
};

/// `weft vm run` with a guest that QEMU interprets.
fn machine(node: &Node, name: &str, flags: &[&str], words: &[&str]) -> Command {
    machine_of(node, name, &provided("WEFT_TEST_GUEST").join("initrd"), flags, words)
}

/// The same with another initial file system.
fn machine_of(node: &Node, name: &str, initrd: &Path, flags: &[&str], words: &[&str]) -> Command {
    let image = provided("WEFT_TEST_GUEST");
    let mut command = weft();
    command.arg("--runtime-dir").arg(node.path()).args(["vm", "run", name, "--accel", "tcg"]);
    command.arg("--kernel").arg(image.join("vmlinuz")).arg("--initrd").arg(initrd);
    let unpacked = image.join("qemu");
    if unpacked.exists() {
        command.arg("--qemu").arg(unpacked);
    }
    command.args(flags).arg("--").args(words);
    command
}

/// QEMU goes with its server, however that ends.
#[test]
fn a_machine_whose_server_is_killed_ends_with_it() {
    let node = Node::start(&[]);
    let mut run = Conversation::start(machine(&node, "vm", &[], &["relay", "100000"]));
    run.line();
    let qemu = child_of(run.child.id());
    run.kill();
    // Or nothing is left of it but a status that nobody reads.
    eventually("QEMU to end", || {
        let stat = std::fs::read_to_string(format!("/proc/{qemu}/stat"));
        stat.is_err() || stat.is_ok_and(|stat| stat.contains(") Z "))
    });
    node.wait_until_empty();
}

#[test]
fn unmodified_programs_run_in_a_machine_as_an_ordinary_user() {
    let node = Node::start(&[]);
    let flags = ["--sessions", "2", "--weight", "2", "--counts"];
    let text = success(machine(&node, "vm", &flags, &["guest-examples.sh"]));
    assert!(text.contains("ran as 1000: ALL PASSED"), "{text}");
    node.wait_until_empty();
    let vgpus = node.admin().list().unwrap();
    let vm = vgpus.iter().find(|vgpu| vgpu.name == "vm").unwrap();
    assert_eq!((vm.weight, vm.used_ns > 0), (2, true));
    let failed = finish(machine(&node, "vm", &[], &["false"]));
    assert_eq!(failed.status.code(), Some(1), "the program's own status");
}

/// What a machine cannot be is said before, or in words of the part that found out.
#[test]
fn machines_that_cannot_be_are_refused_in_words() {
    let node = Node::start(&[]);
    let refused = |flags: &[&str], program: &[&str], words: &str| {
        let output = finish(machine(&node, "vm", flags, program));
        let text = text_of(&output);
        assert!(!output.status.success() && text.contains(words), "{flags:?}: {text}");
    };
    refused(&["--region", "48MiB"], &["true"], "power of two");
    refused(&["--ram", "16MiB"], &["true"], "at least");
    refused(&["--sessions", "0"], &["true"], "--sessions");
    refused(&["--processors", "0"], &["true"], "--processors");
    refused(&["--qemu-arg=-nonsense"], &["true"], "-nonsense");
    // It has connected its monitor by then.
    let odd = finish(machine(&node, "vm", &["--qemu-arg=-device", "--qemu-arg=odd"], &["true"]));
    let text = text_of(&odd);
    assert!(text.contains("odd") && !text.contains("monitor told"), "{text}");
    refused(&[], &["sh", "-c", "exit 3"], "words without spaces");
    refused(&[], &["no-such-program"], "not found");
    let missing = Path::new("/no/such/initrd");
    let text = text_of(&finish(machine_of(&node, "vm", missing, &[], &["true"])));
    assert!(text.contains("cannot read /no/such/initrd") && text.contains("make-image"), "{text}");
    let mut stranger = machine(&node, "a b", &[], &["true"]);
    let text = text_of(&stranger.output().unwrap());
    assert!(text.contains("a vGPU's name is"), "{text}");
    node.wait_until_empty();
}

/// Linux makes one mapping of a device's memory: registering is refused before it touches a page,
/// and a program that registers all the same has its memory.
#[test]
fn memory_cannot_be_registered_in_a_machine_and_is_said_to() {
    let node = Node::start(&[]);
    let text = success(machine(&node, "vm", &[], &["registered"]));
    // CUDA_ERROR_NOT_SUPPORTED.
    assert!(text.contains("supported 0, registered 801"), "{text}");
    assert!(text.contains("registered: PASSED"), "{text}");
    node.wait_until_empty();
}

/// Python with tinygrad and NumPy in the machine, as it is on the host.
#[test]
fn tinygrad_trains_in_a_machine() {
    let node = Node::start(&[]);
    let (folder, image) = (tempfile::tempdir().unwrap(), provided("WEFT_TEST_GUEST"));
    let (more, initrd) = (folder.path().join("python"), folder.path().join("initrd"));
    let mut make = Command::new(root().join("tests/programs/python-initrd"));
    make.arg(image.join("base/bin/busybox")).arg(python()).arg(&more);
    make.arg(root().join("examples/python/train.py"));
    success(make);
    let mut all = std::fs::read(image.join("initrd")).unwrap();
    all.extend(std::fs::read(&more).unwrap());
    std::fs::write(&initrd, all).unwrap();
    let words =
        ["env", "DEV=CUDA:PTX", "PYTHONHOME=/python", "/python/bin/python3", "/bin/train.py", "1"];
    let text = success(machine_of(&node, "vm", &initrd, &["--ram", "1GiB"], &words));
    assert!(text.contains("\"verified\": true"), "{text}");
    node.wait_until_empty();
}

/// Marks across the machine's border for each call of a phase of the program `call`.
fn marks_per_call(node: &Node, phase: &str) -> f64 {
    let text = success(machine(node, "vm", &["--counts"], &["call", phase]));
    let lines: Vec<serde_json::Value> =
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let number = |name: &str| lines.iter().find_map(|line| line[name].as_f64()).unwrap();
    (number("marks_in") + number("marks_out")) / number("calls")
}

/// Calls that both sides poll for leave nothing at the machine's ports; waits that outlast the
/// polling do, so they are counted.
#[test]
fn a_call_that_is_polled_for_does_not_cross_the_machines_border() {
    let node = Node::start(&[]);
    // A side that has to wait for a processor is one that sleeps: the least of some boots is the
    // transport's own, and on two busy cores even that has 0.03 to 0.13.
    let mut seen = Vec::new();
    let polled = (0..6).any(|_| {
        seen.push(marks_per_call(&node, "polled"));
        seen.last().is_some_and(|marks| *marks < 0.2)
    });
    assert!(polled, "calls cross the border, with so many marks each: {seen:?}");
    let blocked = marks_per_call(&node, "blocked");
    assert!(blocked > 0.9, "waits that sleep are woken with {blocked} marks each");
}

#[test]
fn two_machines_share_the_device_by_their_weights() {
    let node = Node::paced(&[]);
    let start = |name: &str, weight: &str| {
        let words = ["share", "step_285us", "600", "--window", "0.2"];
        Conversation::start(machine(&node, name, &["--weight", weight], &words))
    };
    let (light, heavy) = (start("light", "1"), start("heavy", "3"));
    light.line();
    heavy.line();
    assert_share(&node, "light", 0.25);
    assert_share(&node, "heavy", 0.75);
}

#[test]
fn a_killed_machine_leaves_nothing_behind() {
    let node = Node::start(&[]);
    let mut run = Conversation::start(machine(&node, "vm", &[], &["relay", "100000"]));
    run.line();
    let qemu = child_of(run.child.id());
    kill_process(Pid::from_raw(qemu).unwrap(), Signal::KILL).unwrap();
    assert_eq!(run.wait().code(), Some(128 + 9));
    node.wait_until_empty();
    assert!(success(machine(&node, "vm", &[], &["vector_add"])).contains("PASSED"));
}

/// The guest's kernel panics: the machine ends, and that is no success of its program.
#[test]
fn a_machine_whose_kernel_panics_ends_and_says_so() {
    let node = Node::start(&[]);
    let output = finish(machine(&node, "vm", &["--append", "weft.root"], &["guest-panic.sh"]));
    let text = text_of(&output);
    assert!(text.contains("ready"), "its program had a session: {text}");
    assert!(!output.status.success() && text.contains("ended before its program did"), "{text}");
    node.wait_until_empty();
}

/// One that does not begin anew after it keeps its sessions and nothing else: others run meanwhile,
/// and its end is QEMU's.
#[test]
fn a_machine_whose_kernel_hangs_holds_nobody_up() {
    let node = Node::start(&[]);
    let flags = ["--append", "weft.root panic=0"];
    let mut run = Conversation::start(machine(&node, "vm", &flags, &["guest-panic.sh"]));
    while !run.line().contains("ready") {}
    let of_machine = || {
        let vgpus = node.admin().list().unwrap();
        let vm = vgpus.iter().find(|vgpu| vgpu.name == "vm").unwrap();
        (vm.sessions, vm.used_ns)
    };
    eventually("its kernel to stop", || {
        let before = of_machine();
        let text = success(node.run(&["--name", "beside"], &program("relay"), &["50"]));
        assert!(text.contains("PASSED"), "{text}");
        before.0 == 1 && of_machine() == before
    });
    let qemu = child_of(run.child.id());
    kill_process(Pid::from_raw(qemu).unwrap(), Signal::KILL).unwrap();
    run.wait();
    node.wait_until_empty();
}

/// The machine is reset as by its button: its session ends, its kernel boots again, and the program
/// that begins then passes.
#[test]
fn a_machine_that_is_reset_begins_anew() {
    let node = Node::start(&[]);
    let folder = tempfile::Builder::new().prefix("weft-vm-").tempdir().unwrap();
    let monitor = folder.path().join("qmp.sock");
    let qmp = format!("--qemu-arg=unix:{},server=on,wait=off", monitor.display());
    let flags = ["--qemu-arg=-action", "--qemu-arg=reboot=reset", "--qemu-arg=-qmp", &qmp];
    let mut run = Conversation::start(machine(&node, "vm", &flags, &["relay", "200"]));
    let until = |said: &str| while !run.line().contains(said) {};
    until("ready");
    reset(&monitor);
    until("ready");
    until("relay: PASSED");
    assert!(run.wait().success());
    node.wait_until_empty();
}

/// Says to QEMU's monitor that the machine is to be reset.
fn reset(monitor: &Path) {
    let mut stream = UnixStream::connect(monitor).unwrap();
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
    let mut say = |words: &str| stream.write_all(words.as_bytes()).unwrap();
    let mut hear = |what: &str| while !lines.next().unwrap().unwrap().contains(what) {};
    hear("QMP");
    say("{\"execute\": \"qmp_capabilities\"}\n");
    hear("return");
    say("{\"execute\": \"system_reset\"}\n");
    hear("RESET");
}

/// A session of the machine goes on under the next daemon, and lets others begin there.
#[test]
fn a_machine_goes_on_when_the_daemon_is_started_again() {
    let mut node = Node::start(&[]);
    let run = Conversation::start(machine(&node, "vm", &[], &["guest-again.sh"]));
    while !run.line().contains("PASSED") {}
    let sessions = |node: &Node| {
        let vgpus = node.admin().list().unwrap();
        vgpus.iter().find(|vgpu| vgpu.name == "vm").map_or(0, |vgpu| vgpu.sessions)
    };
    node.kill();
    node.launch();
    eventually("the session that was there to go on", || sessions(&node) == 1);
    eventually("another one beside it", || sessions(&node) == 2);
    eventually("its end", || sessions(&node) == 1);
}

/// A machine that nobody computes in at that moment has its region at the next daemon all the same.
#[test]
fn an_idle_machine_goes_on_when_the_daemon_is_started_again() {
    let mut node = Node::start(&[]);
    let mut run = Conversation::start(machine(&node, "vm", &[], &["guest-idle.sh"]));
    let until = |said: &str| while !run.line().contains(said) {};
    until("guest: idle");
    node.wait_until_empty();
    eventually("its worker to end", || node.workers().is_empty());
    node.kill();
    until("guest: no node");
    node.launch();
    let said = loop {
        let line = run.line();
        if line.contains("PASSED") || line.contains("the machine again") {
            break line;
        }
    };
    assert!(said.contains("PASSED"), "{said}");
    assert!(run.wait().success());
}

#[test]
fn a_machine_that_scribbles_hurts_no_other() {
    let node = Node::start(&[]);
    let run = node.run(&["--name", "beside"], &program("relay"), &["300"]);
    let mut beside = Conversation::start(run);
    beside.line();
    let flags = ["--append", "weft.root"];
    let text = text_of(&finish(machine(&node, "vm", &flags, &["guest-scribble.sh"])));
    assert!(text.contains("scribbled") && text.contains("vector_add ended with"), "{text}");
    assert!(!text.contains("ended with 124"), "it hangs: {text}");
    assert!(beside.wait().success(), "{text}");
    node.wait_until_empty();
    assert!(success(machine(&node, "vm", &[], &["vector_add"])).contains("PASSED"));
}

/// A program of a machine waits for its kernels: the thread of QEMU that runs its processor is
/// helped, and ordinary again when it has ended.
#[test]
fn the_processor_of_a_machine_that_waits_is_boosted() {
    let node = Node::paced(&["scheduling.coscheduling=boost"]);
    let report = || node.admin().stats().unwrap().coscheduling;
    if !has_means(&node, "boost") {
        return;
    }
    let words = ["cosched", "tenant", "step_285us", "4", "-", "0"];
    let mut run = Conversation::start(machine(&node, "vm", &[], &words));
    eventually("a boost", || report().boosts > 0);
    assert!(node.log().contains("a virtual machine's processors are known"), "{}", node.log());
    let qemu = child_of(run.child.id());
    eventually("no thread of QEMU to be real-time", || {
        let tasks = std::fs::read_dir(format!("/proc/{qemu}/task"));
        let Ok(tasks) = tasks else { return true };
        tasks.flatten().all(|task| {
            let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            // The 41st word: the class; those before the name's end are two.
            let class = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(38));
            !matches!(class, Some("1" | "2"))
        })
    });
    assert!(run.wait().success());
    node.wait_until_empty();
    assert_eq!(report().refused, 0);
}

/// The same with a slice of 0.1 ms, which stays with the thread while its program waits often.
#[test]
fn the_processor_of_a_machine_that_waits_gets_a_short_slice() {
    let node = Node::paced(&["scheduling.coscheduling=slice"]);
    if !has_means(&node, "slice") {
        return;
    }
    let words = ["cosched", "tenant", "step_285us", "4", "-", "0"];
    let mut run = Conversation::start(machine(&node, "vm", &[], &words));
    let qemu = child_of(run.child.id());
    let mut sliced = BTreeSet::new();
    eventually("a thread of QEMU with a short slice", || {
        for entry in std::fs::read_dir(format!("/proc/{qemu}/task")).into_iter().flatten().flatten()
        {
            let thread = entry.file_name().to_str().and_then(|name| name.parse().ok()).unwrap();
            let found = Treatment::of(thread);
            if found.is_ok_and(|found| found.slice == Duration::from_micros(100)) {
                let name = std::fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
                sliced.insert(name.trim().to_owned());
            }
        }
        !sliced.is_empty()
    });
    assert!(run.wait().success());
    assert!(sliced.iter().all(|name| name.starts_with("CPU 0/")), "threads {sliced:?}");
    node.wait_until_empty();
}

/// A session that went on under another daemon is helped there once the machine's server has told
/// it which threads run the processors.
#[test]
fn the_processor_of_a_machine_is_boosted_under_the_next_daemon_too() {
    let mut node = Node::paced(&["scheduling.coscheduling=boost"]);
    if !has_means(&node, "boost") {
        return;
    }
    let boosts = |node: &Node| node.admin().stats().unwrap().coscheduling.boosts;
    let words = ["cosched", "tenant", "step_285us", "600", "-", "0"];
    let _run = Conversation::start(machine(&node, "vm", &[], &words));
    eventually("a boost", || boosts(&node) > 0);
    node.kill();
    node.launch();
    assert_eq!(node.admin().node().unwrap().adopted_sessions, 1);
    eventually("a boost of the session that went on", || boosts(&node) > 0);
}

/// Whether waiting threads are helped by that means. That a test has not run is said, and root in
/// CI must be able to.
fn has_means(node: &Node, means: &str) -> bool {
    let report = node.admin().stats().unwrap().coscheduling;
    let can = report.means == means;
    if !can {
        let is_ci = std::env::var_os("CI").is_some_and(|value| value == "true");
        assert!(!is_ci, "CI=true, but threads are not helped by {means}: {:?}", report.why);
        eprintln!("not run: {:?}", report.why);
    }
    can
}
