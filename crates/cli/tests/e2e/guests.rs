//! Programs of virtual machines: with the agent on this kernel, which is quick and can be killed,
//! and in [`machines`] that QEMU interprets.

mod machines;

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
use weft_wire::guest::{Begin, GuestFrame, HelloFrame, OpenRegion, Reception};
use weft_wire::handshake::{HANDSHAKE_BYTES_MAX, PROTOCOL_VERSION};

use crate::remote;
use crate::support::{
    Conversation, Node, driver, eventually, finish, program, provided, success, text_of, weft,
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
    // Whatever server has the folder, so a machine's definition can name it.
    assert_eq!(stand.region, stand.folder.path().join("vm/region"));
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

/// What of host memory a machine's programs have in its region, and what they learn that they do
/// not have: where the region is a device, its pages cannot take the place of a program's own.
#[test]
fn managed_memory_lies_in_a_machines_region_and_none_is_registered_there() {
    let node = Node::start(&[]);
    let stand = Stand::start(&node, &[]);
    let text = success(stand.run("managed", &["8", "4"]));
    assert!(text.contains("PASSED"), "{text}");
    // What the docs say: the region's 256 MiB among four, half of that, less a mebibyte.
    let output = finish(stand.run("managed", &["32", "1"]));
    let text = text_of(&output);
    assert!(!output.status.success() && text.contains("OUT_OF_MEMORY"), "{text}");
    let text = success(stand.run("registered", &[]));
    // CUDA_ERROR_NOT_SUPPORTED.
    assert!(text.contains("supported 0, registered 801"), "{text}");
    node.wait_until_empty();
}

/// A region in which nobody has a session is kept by its machine's server, or by who opened it for
/// that one.
#[test]
fn a_region_without_a_session_outlives_the_daemon() {
    let mut node = remote::node(&[]);
    let (grant, _) = remote::grant(&node, &["lent", "--uses", "8"]);
    let stand = Stand::start(&node, &["--sessions", "2"]);
    let lent = Lent::start(&node, &[&grant]);
    let passes = |command: Command| text_of(&finish(command)).contains("PASSED");
    for again in [true, true, false] {
        assert!(passes(stand.run("vector_add", &[])) && passes(lent.run("vector_add", "")));
        node.wait_until_empty();
        eventually("all workers to end", || node.workers().is_empty());
        if again {
            node.kill();
            node.launch();
            eventually("programs to run", || {
                passes(stand.run("vector_add", &[])) && passes(lent.run("vector_add", ""))
            });
        }
    }
    assert!(!node.log().contains("is lost"), "{}", node.log());
}

/// Who names a region and does not have it is told what to do about it.
#[test]
fn a_region_that_nobody_keeps_is_lost_in_words() {
    let node = Node::start(&[]);
    let open = OpenRegion {
        version: PROTOCOL_VERSION,
        region: [7; 16],
        vgpu: String::new(),
        weight: 0,
        memory_bytes: 0,
        token: String::new(),
        region_bytes: 64 << 20,
        sessions: 1,
    };
    let socket = peer::connect_plain(&node.path().join("tenant.sock")).unwrap();
    peer::send(&socket, &open.to_bytes().unwrap(), &[]).unwrap();
    let said = peer::receive(&socket, HANDSHAKE_BYTES_MAX).unwrap().unwrap();
    let Reception::Refused { message, .. } = Reception::from_bytes(&said.bytes).unwrap() else {
        panic!("it has a region: {said:?}")
    };
    assert!(message.contains("start the machine again"), "{message}");
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

/// A machine of a cloud, with the vGPUs of these grants.
struct Lent {
    folder: TempDir,
    _lender: Conversation,
    _agent: Conversation,
}

impl Lent {
    fn start(node: &Node, grants: &[&str]) -> Self {
        let folder = tempfile::Builder::new().prefix("weft-vm-").tempdir().unwrap();
        let vm = folder.path().join("vm");
        let lender = lend(node, &vm, grants);
        while lender.line() != "ready" {}
        let agent = Conversation::start(agent(&folder, &vm.join("region.sock")));
        wait_for_agent(&folder.path().join("guest.sock"));
        symlink(driver(), folder.path().join("libcuda.so.1")).unwrap();
        Self { folder, _lender: lender, _agent: agent }
    }

    /// A program of the machine on this vGPU, or with no name on the only one.
    fn run(&self, name: &str, vgpu: &str) -> Command {
        let mut command = Command::new(program(name));
        command.env("WEFT_SOCKET", self.folder.path().join("guest.sock"));
        command.env("WEFT_VGPU", vgpu).env_remove("WEFT_ATTACH");
        command.env("LD_LIBRARY_PATH", self.folder.path());
        command
    }
}

/// A cloud's machine: its server never gets to the node, and the node judges by the grants.
#[test]
fn a_region_that_grants_open_is_for_their_vgpus_alone() {
    let node = remote::node(&[]);
    let (one, _) = remote::grant(&node, &["one", "--uses", "8", "--weight", "3"]);
    let (two, _) = remote::grant(&node, &["two", "--uses", "8"]);
    let machine = Lent::start(&node, &[&one, &two]);
    let run = |vgpu: &str| text_of(&finish(machine.run("vector_add", vgpu)));
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
    assert!(text.contains("was removed"), "{text}");
    node.admin().create("two", None, None).unwrap();
    let text = run("two");
    assert!(text.contains("was removed"), "another one has its name, and not its grants: {text}");
    assert!(run("one").contains("PASSED"), "the other one is there");
    drop(machine);
    eventually("the machine to be gone", || node.log().contains("a virtual machine is gone"));
    // What is no grant, or not this node's, opens nothing.
    let mut forged = one.clone().into_bytes();
    let last = forged.last_mut().unwrap();
    *last = if *last == b'0' { b'1' } else { b'0' };
    let forged = String::from_utf8(forged).unwrap();
    let scratch = tempfile::tempdir().unwrap();
    for refused in ["", "secret", forged.as_str()] {
        let mut lender = lend(&node, &scratch.path().join("vm"), &[refused]);
        assert!(!lender.wait().success(), "{refused}");
    }
    assert!(node.log().contains("not genuine"), "{}", node.log());
}

/// What a granted vGPU leaves for others it leaves under the next daemon, too.
#[test]
fn a_restarted_node_knows_which_of_its_sessions_were_granted() {
    let mut node = remote::node(&[]);
    let (one, _) = remote::grant(&node, &["one"]);
    let machine = Lent::start(&node, &[&one]);
    let (mut relay, own) = (machine.run("relay", "one"), program("relay"));
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
