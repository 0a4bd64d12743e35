//! Programs of virtual machines: with the agent on this kernel, which is quick and can be killed,
//! and in machines that QEMU interprets.

use std::collections::BTreeSet;
use std::fs::{File, Permissions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use weft_ring::peer;
use weft_ring::priority::Treatment;
use weft_wire::guest::{Begin, GuestFrame, HelloFrame};

use crate::node::assert_share;
use crate::remote;
use crate::support::{
    Conversation, Node, driver, eventually, finish, program, provided, python, root, success,
    text_of, weft,
};

const EXAMPLES: [&str; 5] = ["vector_add", "matrix_mul", "reduction", "histogram", "pipeline"];

/// A program of Weft's beside `weft`.
fn guest() -> Command {
    Command::new(provided("WEFT_TEST_BIN").join("weft-guest"))
}

/// A server, and an agent that has the region's file in place of a device and sockets in place of
/// ports.
struct Stand {
    folder: TempDir,
    server: Conversation,
    agent: Conversation,
    region: PathBuf,
}

impl Stand {
    fn start(node: &Node, flags: &[&str]) -> Self {
        let folder = tempfile::Builder::new().prefix("weft-vm-").tempdir().unwrap();
        let mut command = guest();
        command.args(["serve", "machine", "--folder"]).arg(folder.path().join("vm"));
        command.arg("--node").arg(node.path().join("tenant.sock")).args(flags);
        command.stderr(File::create(folder.path().join("server.log")).unwrap());
        let server = Conversation::start(command);
        let mut region = None;
        loop {
            let line = server.line();
            if let Some((_, path)) = line.split_once("mem-path=") {
                region = path.strip_suffix(",share=on").map(PathBuf::from);
            }
            if line == "ready" {
                break;
            }
        }
        let region = region.unwrap();
        let agent = Conversation::start(agent(&folder, &region));
        symlink(driver(), folder.path().join("libcuda.so.1")).unwrap();
        let stand = Self { folder, server, agent, region };
        wait_for_agent(&stand.socket());
        stand
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("guest.sock")
    }

    /// A program of the "guest".
    fn run(&self, name: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(program(name));
        command.env("WEFT_SOCKET", self.socket()).env_remove("WEFT_VGPU").args(arguments);
        command.env_remove("WEFT_ATTACH").env("LD_LIBRARY_PATH", self.folder.path());
        command
    }
}

/// Until an agent listens, which it does a moment after its socket is there.
fn wait_for_agent(socket: &Path) {
    eventually("the agent", || peer::connect_plain(socket).is_ok());
}

fn agent(folder: &TempDir, region: &Path) -> Command {
    let vm = folder.path().join("vm");
    let mut command = guest();
    command.arg("agent").arg("--socket").arg(folder.path().join("guest.sock"));
    command.arg("--region").arg(region).arg("--control").arg(vm.join("control.sock"));
    command.arg("--marks").arg(vm.join("marks.sock"));
    command
}

#[test]
fn programs_share_a_machines_region_one_after_the_other_and_at_once() {
    let node = Node::start(&[]);
    let stand = Stand::start(&node, &["--region", "64MiB", "--sessions", "2", "--weight", "3"]);
    for name in EXAMPLES {
        let text = success(stand.run(name, &[]));
        assert!(text.contains("PASSED"), "{name}: {text}");
    }
    let first = Conversation::start(stand.run("relay", &["100000"]));
    first.line();
    assert!(success(stand.run("relay", &["5"])).contains("PASSED"));
    let second = Conversation::start(stand.run("relay", &["100000"]));
    second.line();
    let output = finish(stand.run("vector_add", &[]));
    let text = text_of(&output);
    assert!(!output.status.success() && text.contains("--sessions"), "{text}");
    let mut other = stand.run("vector_add", &[]);
    other.env("WEFT_VGPU", "other");
    let output = finish(other);
    let text = text_of(&output);
    assert!(!output.status.success() && text.contains("leave WEFT_VGPU out"), "{text}");
    let vgpus = node.admin().list().unwrap();
    let machine = vgpus.iter().find(|vgpu| vgpu.name == "machine").unwrap();
    assert_eq!((machine.weight, machine.sessions), (3, 2));
    drop((first, second));
    node.wait_until_empty();
    assert!(success(stand.run("vector_add", &[])).contains("PASSED"), "places are free again");
}

#[test]
fn regions_that_cannot_be_had_are_refused_in_words() {
    let node = Node::start(&["guests.machines=1", "guests.region=256MiB"]);
    let refused = |flags: &[&str], words: &str| {
        let mut command = guest();
        command.args(["serve", "machine"]);
        command.arg("--node").arg(node.path().join("tenant.sock")).args(flags);
        let output = finish(command);
        let text = text_of(&output);
        assert!(!output.status.success() && text.contains(words), "{flags:?}: {text}");
    };
    refused(&["--region", "48MiB"], "power of two");
    refused(&["--region", "512MiB"], "guests.region");
    refused(&["--region", "16MiB", "--sessions", "8"], "--sessions");
    let stand = Stand::start(&node, &[]);
    refused(&[], "guests.machines");
    drop(stand);
    eventually("the machine to be gone", || node.log().contains("a virtual machine is gone"));
    Stand::start(&node, &[]);
}

#[test]
fn sessions_outlive_the_daemon_and_new_ones_begin_at_the_next() {
    let mut node = Node::start(&[]);
    let stand = Stand::start(&node, &["--sessions", "2"]);
    let mut lives = Conversation::start(stand.run("relay", &["400"]));
    lives.line();
    node.kill();
    node.launch();
    eventually("a second program to run", || {
        let output = finish(stand.run("vector_add", &[]));
        text_of(&output).contains("PASSED")
    });
    assert!(lives.wait().success(), "it noticed nothing");
    node.wait_until_empty();
}

/// A region that no session kept is gone with its daemon: programs are told what to do about it.
#[test]
fn a_region_that_is_lost_is_said_to_programs() {
    let mut node = Node::start(&[]);
    let stand = Stand::start(&node, &[]);
    assert!(success(stand.run("vector_add", &[])).contains("PASSED"));
    node.wait_until_empty();
    node.kill();
    node.launch();
    eventually("programs to be told", || {
        text_of(&finish(stand.run("vector_add", &[]))).contains("start the machine again")
    });
}

#[test]
fn a_machine_that_dies_ends_its_sessions_and_no_others() {
    let node = Node::start(&[]);
    let (mut stand, other) = (Stand::start(&node, &[]), Stand::start(&node, &[]));
    let mut lives = Conversation::start(other.run("relay", &["200"]));
    lives.line();
    // Its guest is reset: another agent begins.
    let mut lost = [0; 2].map(|_| Conversation::start(stand.run("relay", &["100000"])));
    lost.iter().for_each(|lost| drop(lost.line()));
    stand.agent.kill();
    for lost in &mut lost {
        let status = lost.wait();
        assert_eq!(status.code(), Some(2), "a CUDA error: {status}");
    }
    stand.agent = Conversation::start(agent(&stand.folder, &stand.region));
    eventually("the next agent", || {
        text_of(&finish(stand.run("vector_add", &[]))).contains("PASSED")
    });
    // Its server dies.
    let mut lost = Conversation::start(stand.run("relay", &["100000"]));
    lost.line();
    stand.server.kill();
    let status = lost.wait();
    assert_eq!(status.code(), Some(2), "a CUDA error: {status}");
    let text = text_of(&finish(stand.run("vector_add", &[])));
    assert!(text.contains("does not serve it at the moment"), "{text}");
    // A machine that is started again has another region.
    let again = Stand::start(&node, &[]);
    assert!(success(again.run("vector_add", &[])).contains("PASSED"));
    drop(again);
    assert!(lives.wait().success());
    node.wait_until_empty();
}

/// The bytes by which an agent knows its server's region are any program's to write.
#[test]
fn a_region_whose_name_was_overwritten_serves_the_next_agent() {
    let node = Node::start(&[]);
    let mut stand = Stand::start(&node, &[]);
    assert!(success(stand.run("vector_add", &[])).contains("PASSED"));
    stand.agent.kill();
    File::options().write(true).open(&stand.region).unwrap().write_all(&[0xff; 16]).unwrap();
    stand.agent = Conversation::start(agent(&stand.folder, &stand.region));
    eventually("the next agent", || {
        text_of(&finish(stand.run("vector_add", &[]))).contains("PASSED")
    });
}

/// What `weft-guest lend` serves, started with these grants.
fn lend(node: &Node, folder: &Path, grants: &[&str]) -> Conversation {
    let mut command = guest();
    command.arg("lend").arg("--node").arg(node.path().join("tenant.sock"));
    command.arg("--folder").arg(folder).args(["--region", "64MiB", "--sessions", "2"]);
    let mut lender = Conversation::start(command);
    lender.say(&format!("{}\n\n", grants.join("\n")));
    lender
}

/// A machine with these grants, whose programs find its agent's socket in the folder.
fn lent(node: &Node, grants: &[&str]) -> (TempDir, [Conversation; 2]) {
    let folder = tempfile::Builder::new().prefix("weft-vm-").tempdir().unwrap();
    let lender = lend(node, &folder.path().join("vm"), grants);
    while lender.line() != "ready" {}
    let agent = Conversation::start(agent(&folder, &folder.path().join("vm/region.sock")));
    wait_for_agent(&folder.path().join("guest.sock"));
    symlink(driver(), folder.path().join("libcuda.so.1")).unwrap();
    (folder, [agent, lender])
}

fn within_lent(folder: &TempDir, name: &str, vgpu: &str) -> Command {
    let mut command = Command::new(program(name));
    command.env("WEFT_SOCKET", folder.path().join("guest.sock")).env_remove("WEFT_ATTACH");
    command.env("WEFT_VGPU", vgpu).env("LD_LIBRARY_PATH", folder.path());
    command
}

/// A cloud's machine: its server never gets to the node, and the node judges by the grants.
#[test]
fn a_region_that_grants_open_is_for_their_vgpus_alone() {
    let node = remote::node(&[]);
    let (one, _) = remote::grant(&node, &["one", "--uses", "8", "--weight", "3"]);
    let (two, _) = remote::grant(&node, &["two", "--uses", "8"]);
    let (folder, machine) = lent(&node, &[&one, &two]);
    let vm = folder.path().join("vm");
    let run = |vgpu: &str| text_of(&finish(within_lent(&folder, "vector_add", vgpu)));
    for vgpu in ["", "one", "two"] {
        let text = run(vgpu);
        assert!(text.contains("PASSED"), "{vgpu}: {text}");
    }
    let vgpus = node.admin().list().unwrap();
    assert!(vgpus.len() == 2 && vgpus.iter().all(|vgpu| vgpu.used_ns > 0), "{vgpus:?}");
    assert_eq!(vgpus.iter().find(|vgpu| vgpu.name == "one").unwrap().weight, 3);
    let text = run("three");
    assert!(text.contains("has vGPU `one,two`"), "{text}");
    node.admin().remove("two", true).unwrap();
    let text = run("two");
    assert!(text.contains("was removed since the grant was made"), "{text}");
    assert!(run("one").contains("PASSED"), "the other one is there");
    drop(machine);
    eventually("the machine to be gone", || node.log().contains("a virtual machine is gone"));
    // What is no grant, or not this node's, opens nothing.
    let mut forged = one.clone().into_bytes();
    let last = forged.last_mut().unwrap();
    *last = if *last == b'0' { b'1' } else { b'0' };
    let forged = String::from_utf8(forged).unwrap();
    for refused in ["", "secret", forged.as_str()] {
        let mut lender = lend(&node, &vm, &[refused]);
        assert!(!lender.wait().success(), "{refused}");
    }
    assert!(node.log().contains("not genuine"), "{}", node.log());
}

/// What a granted vGPU leaves for others it leaves under the next daemon, too.
#[test]
fn a_restarted_node_knows_which_of_its_sessions_were_granted() {
    let mut node = remote::node(&[]);
    let (one, _) = remote::grant(&node, &["one"]);
    let (folder, _machine) = lent(&node, &[&one]);
    let (mut relay, own) = (within_lent(&folder, "relay", "one"), program("relay"));
    relay.arg("100000");
    let programs = [relay, node.run(&[], &own, &["100000"])].map(Conversation::start);
    assert!(programs.iter().all(|program| program.line_if_any().is_some()));
    node.kill();
    node.launch();
    assert_eq!(node.admin().node().unwrap().adopted_sessions, 2);
    let log = node.log();
    let granted = |line: &&str| line.contains("granted=true");
    assert_eq!(log.lines().filter(granted).count(), 1, "{log}");
}

/// Somebody in the guest writes random words all over the region.
#[test]
fn a_region_full_of_lies_hurts_its_own_machine_alone() {
    let node = Node::start(&[]);
    let (stand, other) = (Stand::start(&node, &["--sessions", "2"]), Stand::start(&node, &[]));
    let mut lives = Conversation::start(other.run("relay", &["200"]));
    lives.line();
    for _ in 0..3 {
        let mut victim = Conversation::start(stand.run("relay", &["100000"]));
        victim.line();
        let mut scribble = Command::new(program("scribble"));
        scribble.arg("0.5").arg(&stand.region);
        success(scribble);
        // Whatever it reads is made up: it may end in any way, or never.
        victim.kill();
    }
    assert!(lives.wait().success(), "another machine's program noticed nothing");
    drop(stand);
    node.wait_until_empty();
    assert!(success(other.run("vector_add", &[])).contains("PASSED"));
}

/// A guest writes into its ports whatever it likes, faster than anybody reads, and reads nothing:
/// its server keeps little of it, says little about it, and serves the next agent.
#[test]
fn floods_of_a_machines_ports_are_forgotten() {
    let node = Node::start(&[]);
    let (mut stand, other) = (Stand::start(&node, &[]), Stand::start(&node, &[]));
    let mut lives = Conversation::start(other.run("relay", &["200"]));
    lives.line();
    stand.agent.kill();
    let server = stand.server.child.id();
    let before_kib = resident_kib(server);
    let begin = GuestFrame::Begin(Begin { version: 77, nonce: 1 }).to_bytes().unwrap();
    let hello = GuestFrame::Hello(HelloFrame { request: 7, hello: b"hello" }).to_bytes().unwrap();
    let marks: Vec<u8> = (0..=255).collect();
    for (port, what) in
        [("marks", &marks), ("control", &marks), ("control", &begin), ("control", &hello)]
    {
        let folder = stand.folder.path().join("vm");
        flood(&folder.join(format!("{port}.sock")), &what.repeat((64 << 10) / what.len()));
        let kib = resident_kib(server);
        assert!(kib < before_kib + (16 << 10), "{port}: {before_kib} KiB became {kib}");
    }
    stand.agent = Conversation::start(agent(&stand.folder, &stand.region));
    eventually("the next agent", || {
        text_of(&finish(stand.run("vector_add", &[]))).contains("PASSED")
    });
    assert!(lives.wait().success(), "another machine's program noticed nothing");
    stand.server.kill();
    let said = std::fs::read_to_string(stand.folder.path().join("server.log")).unwrap();
    assert!(said.contains("speaks protocol 77"), "{said}");
    assert!(said.len() < 4096, "it said {} bytes", said.len());
}

/// Writes up to 32 MiB into a port, until it takes no more.
fn flood(socket: &Path, bytes: &[u8]) {
    let mut port = UnixStream::connect(socket).unwrap();
    port.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
    for _ in 0..(32 << 20) / bytes.len() {
        if port.write_all(bytes).is_err() {
            return;
        }
    }
}

/// What a process has in memory.
fn resident_kib(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Who says that it is QEMU and does not map the machine's region: its threads are not touched.
#[test]
fn only_a_process_that_maps_the_region_has_processors() {
    let node = Node::start(&["scheduling.coscheduling=boost"]);
    let stand = Stand::start(&node, &[]);
    let pretend = |threads: &str| {
        let socket = UnixStream::connect(stand.folder.path().join("vm/monitor.sock")).unwrap();
        let mut lines = BufReader::new(socket.try_clone().unwrap()).lines();
        let say = |text: &str| (&socket).write_all(text.as_bytes()).unwrap();
        say("{\"QMP\": {}}\n");
        assert!(lines.next().unwrap().unwrap().contains("qmp_capabilities"));
        say("{\"return\": {}}\n");
        assert!(lines.next().unwrap().unwrap().contains("query-cpus-fast"));
        say(&format!("{{\"return\": [{{\"cpu-index\": 0, \"thread-id\": {threads}}}]}}\n"));
        socket
    };
    let _monitor = pretend("1");
    eventually("the node to refuse", || node.log().contains("does not map the machine's region"));
    assert!(!node.log().contains("processors are known"));
    // One that says nonsense is let go, and the machine is served all the same.
    drop(pretend("\"one\""));
    assert!(success(stand.run("vector_add", &[])).contains("PASSED"));
    assert_eq!(node.admin().stats().unwrap().coscheduling.boosts, 0);
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

/// Told to end by a signal, servers end what they started and remove their temporary folders; they
/// end by that signal.
#[test]
fn a_server_that_is_told_to_end_leaves_nothing_behind() {
    let node = Node::start(&[]);
    let folder = tempfile::tempdir().unwrap();
    let (qemu, file) = (folder.path().join("qemu"), folder.path().join("file"));
    std::fs::write(&qemu, "#!/bin/sh\necho started\nexec sleep 1000\n").unwrap();
    std::fs::set_permissions(&qemu, Permissions::from_mode(0o755)).unwrap();
    File::create(&file).unwrap();
    let left = || std::fs::read_dir(folder.path()).unwrap().count() - 2;
    for (what, signal) in [("run", Signal::TERM), ("run", Signal::INT), ("serve", Signal::TERM)] {
        let mut command = weft();
        command.arg("--runtime-dir").arg(node.path()).args(["vm", what, "machine"]);
        command.env("TMPDIR", folder.path());
        if what == "run" {
            command.arg("--qemu").arg(&qemu).arg("--kernel").arg(&file).arg("--initrd").arg(&file);
        }
        let mut server = Conversation::start(command);
        while !["started", "ready"].contains(&server.line().as_str()) {}
        assert_eq!(left(), 1, "its folder of sockets");
        let pid = server.child.id();
        let machine = (what == "run").then(|| child_of(pid));
        kill_process(Pid::from_child(&server.child), signal).unwrap();
        assert_eq!(server.wait().signal(), Some(signal.as_raw()), "{what}");
        assert_eq!(left(), 0, "{what} left its folder");
        eventually("QEMU to end", || {
            machine.is_none_or(|machine| !Path::new(&format!("/proc/{machine}")).exists())
        });
        node.wait_until_empty();
    }
}

/// A machine has its vGPU as that is, or does not begin.
#[test]
fn a_vgpu_that_is_not_as_the_machine_wants_it_is_refused_in_words() {
    let mut node = Node::start(&[]);
    let create = |arguments: &[&str]| {
        let mut command = weft();
        command.arg("--runtime-dir").arg(node.path()).arg("create").args(arguments);
        success(command);
    };
    create(&["machine", "--weight", "2", "--memory", "256MiB"]);
    create(&["others", "--owner", "4242"]);
    let refused = |name: &str, flags: &[&str], words: &str| {
        let mut command = guest();
        command.args(["serve", name]).arg("--node").arg(node.path().join("tenant.sock"));
        command.args(flags);
        let text = text_of(&finish(command));
        let begins = text.lines().any(|line| line == "ready");
        assert!(text.contains(words) && !begins, "{name} {flags:?}: {text}");
    };
    refused("machine", &["--weight", "3"], "weft set machine");
    refused("machine", &["--memory", "1GiB"], "with weight 2 and 256MiB of memory");
    refused("others", &[], "belongs to another user");
    let stand = Stand::start(&node, &["--weight", "2", "--memory", "256MiB"]);
    assert!(success(stand.run("vector_add", &[])).contains("PASSED"));
    // One that was changed meanwhile is the running machine's all the same, and at the next daemon.
    let mut lives = Conversation::start(stand.run("relay", &["400"]));
    lives.line();
    node.admin().set("machine", Some(5), None).unwrap();
    node.kill();
    node.launch();
    eventually("a second program to run", || {
        text_of(&finish(stand.run("vector_add", &[]))).contains("PASSED")
    });
    assert!(lives.wait().success());
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
    // transport's own.
    let polled = (0..6).map(|_| marks_per_call(&node, "polled")).find(|marks| *marks < 0.05);
    assert!(polled.is_some(), "calls cross the border");
    // How many waits sleep is up to the machine: on a quiet one a third did, on a busy one all.
    let blocked = (0..3).map(|_| marks_per_call(&node, "blocked")).find(|marks| *marks > 0.15);
    assert!(blocked.is_some(), "waits that sleep are woken without a mark");
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

/// The only child of a process.
fn child_of(parent: u32) -> i32 {
    let path = format!("/proc/{parent}/task/{parent}/children");
    let mut found = None;
    eventually("a child", || {
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        found = text.split_whitespace().next().and_then(|pid| pid.parse().ok());
        found.is_some()
    });
    found.unwrap()
}
