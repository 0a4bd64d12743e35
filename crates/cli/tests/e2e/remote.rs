//! Programs on a vGPU of another host, over TLS on this host's loopback.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use weft_node::admin::{Answer, GrantRequest, Request};

use crate::support::{
    Conversation, Node, eventually, finish, program, python, root, success, text_of, weft,
};

const EXAMPLES: [&str; 5] = ["vector_add", "matrix_mul", "reduction", "histogram", "pipeline"];

/// A node that lets endpoints in.
pub(crate) fn node(settings: &[&str]) -> Node {
    // The test's folder is its user's alone.
    let mut all = vec!["remote.listen=127.0.0.1:0", "remote.user=0"];
    all.extend_from_slice(settings);
    Node::start(&all)
}

/// A grant for a vGPU, and where the gateway listens.
pub(crate) fn grant(node: &Node, flags: &[&str]) -> (String, String) {
    let mut found = None;
    eventually("the gateway to listen", || {
        let mut command = weft();
        command.arg("--runtime-dir").arg(node.path()).arg("token").args(flags).arg("--json");
        let report: serde_json::Value = serde_json::from_str(&success(command)).unwrap();
        let text = |name: &str| report[name].as_str().map(str::to_owned);
        found = text("grant").zip(text("listen"));
        found.is_some()
    });
    found.unwrap()
}

/// `weft run --remote` with a grant.
pub(crate) fn run(
    address: &str,
    grant: &str,
    program: &std::path::Path,
    arguments: &[&str],
) -> Command {
    let mut command = weft();
    command.env("WEFT_TOKEN", grant).args(["run", "--remote", address, "--"]);
    command.arg(program).args(arguments);
    command
}

#[test]
fn unmodified_programs_run_on_another_hosts_vgpu() {
    let node = node(&[]);
    let (token, address) = grant(&node, &["far", "--uses", "100", "--weight", "3"]);
    for name in EXAMPLES {
        let text = success(run(&address, &token, &program(name), &[]));
        assert!(text.contains("PASSED"), "{name}: {text}");
    }
    for (name, arguments) in [("relay", &["10"][..]), ("managed", &["8", "6"][..])] {
        let text = success(run(&address, &token, &program(name), arguments));
        assert!(text.contains("PASSED"), "{name}: {text}");
    }
    node.wait_until_empty();
    let vgpus = node.admin().list().unwrap();
    let far = vgpus.iter().find(|vgpu| vgpu.name == "far").unwrap();
    assert_eq!((far.weight, far.used_ns > 0), (3, true), "its use is its own");
}

#[test]
fn tinygrad_runs_on_another_hosts_vgpu() {
    let node = node(&[]);
    let (token, address) = grant(&node, &["far"]);
    let script = root().join("tests/programs/tinygrad_ops.py");
    let mut command = run(&address, &token, &python(), &[script.to_str().unwrap()]);
    command.env("DEV", "CUDA:PTX").env("CACHELEVEL", "0");
    let text = success(command);
    assert!(text.contains("all operations agree"), "{text}");
}

/// What a program says that gets no vGPU.
fn refused(address: &str, grant: &str) -> String {
    let output = finish(run(address, grant, &program("vector_add"), &[]));
    assert!(!output.status.success(), "{}", text_of(&output));
    text_of(&output)
}

/// The grant with another digit at a place.
fn forged(grant: &str, at: usize) -> String {
    let digit = if grant.as_bytes()[at] == b'0' { "1" } else { "0" };
    format!("{}{digit}{}", &grant[..at], &grant[at + 1..])
}

#[test]
fn grants_that_are_not_good_let_nobody_in() {
    let node = node(&[]);
    let (token, address) = grant(&node, &["far"]);
    // Another digit of the code, and of what it says.
    for at in [token.len() - 1, 8] {
        let text = refused(&address, &forged(&token, at));
        assert!(text.contains("not genuine"), "{text}");
    }
    let text = refused(&address, &token[..token.len() / 2]);
    assert!(text.contains("weft token"), "{text}");
    // One endpoint may use it as often as it likes; another one that shows it later may not.
    let folder = tempfile::tempdir().unwrap();
    let (file, socket) = (folder.path().join("grant"), folder.path().join("tenant.sock"));
    std::fs::write(&file, &token).unwrap();
    let mut endpoint = weft();
    endpoint.args(["remote", &address]).arg("--token-file").arg(&file);
    let endpoint = Conversation::start({
        endpoint.arg("--socket").arg(&socket);
        endpoint
    });
    assert_eq!(endpoint.line(), "ready");
    // Whatever node is there besides.
    for directory in [None, Some(node.path())] {
        let mut command = weft();
        command.env("WEFT_SOCKET", &socket).args(["run", "--"]).arg(program("vector_add"));
        command.envs(directory.map(|path| ("WEFT_RUNTIME_DIR", path)));
        let text = success(command);
        assert!(text.contains("PASSED"), "{text}");
    }
    let text = refused(&address, &token);
    assert!(text.contains("used up: it was made for one endpoint"), "{text}");
    // Two cannot listen at one socket, and one that was killed leaves it to the next.
    let again = || {
        let mut command = weft();
        command.args(["remote", &address, "--token-file"]).arg(&file).arg("--socket").arg(&socket);
        command
    };
    let text = text_of(&finish(again()));
    assert!(text.contains("somebody listens at"), "{text}");
    drop(endpoint);
    assert!(socket.exists());
    let endpoint = Conversation::start(again());
    assert_eq!(endpoint.line(), "ready");
    drop(endpoint);
    // The next daemon knows it too, and grants of another node are worth nothing here.
    let (short, address) = grant(&node, &["far", "--for", "1s"]);
    eventually("the grant to expire", || {
        let attempt = finish(run(&address, &short, &program("vector_add"), &[]));
        text_of(&attempt).contains("expired")
    });
    let other = self::node(&[]);
    let (foreign, _) = grant(&other, &["far"]);
    let text = refused(&address, &foreign);
    assert!(text.contains("did not prove"), "{text}");
    node.wait_until_empty();
}

#[test]
fn more_sessions_than_the_gateway_has_are_refused_and_hurt_none() {
    let node = node(&["remote.sessions=1"]);
    let (token, address) = grant(&node, &["far", "--uses", "9"]);
    let mut first = Conversation::start(run(&address, &token, &program("relay"), &["200"]));
    while first.line() != "ready" {}
    let text = refused(&address, &token);
    assert!(text.contains("try again when one has ended"), "{text}");
    assert!(first.wait().success(), "the one that was there goes on");
    eventually("its place to be free", || {
        text_of(&finish(run(&address, &token, &program("vector_add"), &[]))).contains("PASSED")
    });
}

#[test]
fn a_node_lets_nobody_in_from_elsewhere_unless_told_to() {
    let node = Node::start(&[]);
    let mut command = weft();
    command.arg("--runtime-dir").arg(node.path()).args(["token", "far"]);
    let output = finish(command);
    assert!(!output.status.success());
    assert!(text_of(&output).contains("remote.listen"), "{}", text_of(&output));
    assert_eq!(listeners(&node), 0, "nothing listens where nothing was asked for");
    let open = self::node(&[]);
    grant(&open, &["far"]);
    assert_eq!(listeners(&open), 1, "the gateway alone where it was");
    let text = refused("127.0.0.1:1", "weft1");
    assert!(text.contains("weft token"), "{text}");
}

/// A server hello of TLS 1.2: a cipher of that version, and no word of a newer one.
const OLDER_HELLO: &[u8] = &[
    22, 3, 3, 0, 42, 2, 0, 0, 38, 3, 3, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 0, 0xc0, 0x2f, 0,
];

/// Signed before its vGPU is there, it lets nobody in until then; and makes no vGPU of its own.
#[test]
fn a_grant_ahead_of_its_vgpu_is_good_once_that_is_there() {
    let node = node(&[]);
    let (_, address) = grant(&node, &["other"]);
    let (name, uses) = ("far".to_owned(), 9);
    let asked = GrantRequest { name, weight: None, memory_bytes: None, valid_s: 60, uses };
    let Ok(Answer::Grant(report)) = node.admin().call(&Request::GrantAhead(asked)) else {
        panic!("no grant");
    };
    let text = refused(&address, &report.grant);
    assert!(text.contains("not made yet"), "{text}");
    assert!(node.admin().list().unwrap().iter().all(|vgpu| vgpu.name != "far"));
    let mut create = weft();
    create.arg("--runtime-dir").arg(node.path()).args(["create", "far", "--weight", "3"]);
    success(create);
    let text = success(run(&address, &report.grant, &program("vector_add"), &[]));
    assert!(text.contains("PASSED"), "{text}");
    let vgpus = node.admin().list().unwrap();
    assert_eq!(vgpus.iter().find(|vgpu| vgpu.name == "far").unwrap().weight, 3);
    node.wait_until_empty();
}

#[test]
fn a_gateway_that_speaks_an_older_tls_gets_no_session() {
    let node = node(&[]);
    let (token, _) = grant(&node, &["far"]);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (said, heard) = std::sync::mpsc::channel();
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let (mut hello, mut after) = ([0; 5], Vec::new());
            stream.read_exact(&mut hello).unwrap();
            let mut rest = vec![0; usize::from(u16::from_be_bytes([hello[3], hello[4]]))];
            stream.read_exact(&mut rest).unwrap();
            stream.write_all(OLDER_HELLO).unwrap();
            let _cut = stream.read_to_end(&mut after);
            said.send(after).unwrap();
        }
    });
    let text = refused(&address, &token);
    assert!(text.contains("did not prove to be the gateway"), "{text}");
    // All that it hears is an alert (21) that the version is wrong (70).
    let after = heard.recv().unwrap();
    assert_eq!((after.first(), after.last()), (Some(&21), Some(&70)), "{after:?}");
    node.wait_until_empty();
}

/// TCP sockets on which a node's processes listen.
fn listeners(node: &Node) -> usize {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(std::fs::read_to_string);
    let tables = tables.map(Result::unwrap_or_default).concat();
    let listening: Vec<String> = tables
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .filter(|fields| fields.get(3) == Some(&"0A"))
        .map(|fields| format!("socket:[{}]", fields[9]))
        .collect();
    let descriptors = node.processes().into_iter().flat_map(|pid| {
        std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten()
    });
    let targets = descriptors.filter_map(|fd| std::fs::read_link(fd.path()).ok());
    let targets: std::collections::BTreeSet<_> = targets.collect();
    targets.iter().filter(|target| listening.iter().any(|one| target.as_os_str() == &**one)).count()
}

/// Passes bytes on to a gateway and cuts connections.
pub(crate) struct Proxy {
    pub(crate) address: String,
    cuts: Arc<AtomicU64>,
    dead: Arc<AtomicBool>,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl Proxy {
    /// Cuts each connection after so many bytes in either direction as `after` says next.
    pub(crate) fn new(gateway: String, after: impl Fn(u64) -> u64 + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (cuts, dead) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let open = Arc::new(Mutex::new(Vec::new()));
        let (counted, ended, kept) = (Arc::clone(&cuts), Arc::clone(&dead), Arc::clone(&open));
        thread::spawn(move || {
            for (number, endpoint) in (0..).zip(listener.incoming()) {
                let endpoint = endpoint.unwrap();
                if ended.load(Ordering::Relaxed) {
                    continue;
                }
                let gateway = TcpStream::connect(&gateway).unwrap();
                let bytes = AtomicU64::new(after(number));
                let budget = Arc::new(Budget { bytes, is_cut: AtomicBool::new(false) });
                for (from, to) in [(&endpoint, &gateway), (&gateway, &endpoint)] {
                    kept.lock().unwrap().push(from.try_clone().unwrap());
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let (budget, counted) = (Arc::clone(&budget), Arc::clone(&counted));
                    thread::spawn(move || pass(from, to, &budget, &counted));
                }
            }
        });
        Self { address, cuts, dead, open }
    }

    /// Lets nothing through any more.
    fn end(&self) {
        self.dead.store(true, Ordering::Relaxed);
        for one in self.open.lock().unwrap().drain(..) {
            let _ = one.shutdown(Shutdown::Both);
        }
    }
}

/// What a connection may carry before it is cut.
struct Budget {
    bytes: AtomicU64,
    is_cut: AtomicBool,
}

fn pass(mut from: TcpStream, mut to: TcpStream, budget: &Budget, cuts: &AtomicU64) {
    let mut bytes = [0; 16 << 10];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        let left = budget.bytes.load(Ordering::Relaxed);
        let some = count.min(usize::try_from(left).unwrap_or(usize::MAX));
        budget.bytes.store(left.saturating_sub(count as u64), Ordering::Relaxed);
        if to.write_all(&bytes[..some]).is_err() {
            break;
        }
        if some < count {
            // Both ways share the connection, which is cut once.
            if !budget.is_cut.swap(true, Ordering::Relaxed) {
                cuts.fetch_add(1, Ordering::Relaxed);
            }
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

/// A generator that needs no crate: the constants are Knuth's.
pub(crate) fn random(seed: u64, number: u64) -> u64 {
    let mut x = seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for _ in 0..4 {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        x ^= x >> 29;
    }
    x
}

/// Whatever is lost on its way is sent again, and nothing is executed twice: the program checks
/// each launch and each byte.
#[test]
fn programs_survive_a_hundred_cut_connections() {
    let node = node(&[]);
    let (token, address) = grant(&node, &["far", "--uses", "100"]);
    let mut cuts = 0;
    for seed in 0.. {
        let proxy = Proxy::new(address.clone(), move |number| {
            // Long enough for a handshake most of the time; some are cut in the middle of one.
            2_000 + random(seed, number) % 600_000
        });
        let text = success(run(&proxy.address, &token, &program("relay"), &["12"]));
        assert!(text.contains("PASSED"), "seed {seed}: {text}");
        cuts += proxy.cuts.load(Ordering::Relaxed);
        if cuts >= 100 {
            break;
        }
    }
    node.wait_until_empty();
}

/// A connection that does not come back is a CUDA error after the grace time, and the node's
/// session ends.
#[test]
fn a_connection_that_stays_lost_is_an_error_and_no_hang() {
    let node = node(&["remote.grace_ms=1000"]);
    let (token, address) = grant(&node, &["far"]);
    let proxy = Proxy::new(address, |_| u64::MAX);
    let mut run = Conversation::start({
        let mut command = run(&proxy.address, &token, &program("relay"), &["1000000"]);
        command.stderr(std::process::Stdio::null());
        command
    });
    assert_eq!(run.line(), "ready");
    proxy.end();
    assert_eq!(run.wait().code(), Some(2), "a CUDA error");
    node.wait_until_empty();
}

/// Whoever breaks a handshake off is not called an impostor, and nothing is started for an address
/// that cannot be one.
#[test]
fn what_is_wrong_with_a_gateway_is_said() {
    let node = node(&[]);
    let (token, _) = grant(&node, &["far"]);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    // Ends with the process.
    thread::spawn(move || listener.incoming().for_each(drop));
    let text = refused(&address, &token);
    assert!(text.contains("broke the connection off") && !text.contains("prove"), "{text}");
    for wrong in ["127.0.0.1", "127.0.0.1:99999"] {
        let text = refused(wrong, &token);
        assert!(text.contains("is not HOST:PORT") && !text.contains("gets no vGPU"), "{text}");
    }
}

/// Whoever says nothing, nonsense, or a part of something, costs the gateway a bounded time and
/// place, and those who are let in nothing.
#[test]
fn garbage_and_silence_hurt_nobody() {
    let node = node(&["remote.pending=64", "remote.patience_ms=1000"]);
    let (token, address) = grant(&node, &["far", "--uses", "10"]);
    let connect = || TcpStream::connect(&address).unwrap();
    let silent: Vec<TcpStream> = (0..300).map(|_| connect()).collect();
    for number in 0..40 {
        let mut garbage = connect();
        let bytes: Vec<u8> = (0..4000).map(|at| random(number, at).to_le_bytes()[0]).collect();
        let _ = garbage.write_all(if number % 2 == 0 { &bytes } else { b"GET / HTTP/1.1\r\n\r\n" });
        garbage.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        // An alert at most, then the end.
        let mut rest = Vec::new();
        let _ = garbage.read_to_end(&mut rest);
        assert!(rest.len() < 100, "{rest:?}");
    }
    // A handshake's beginning, and TLS 1.2 at most: a client hello without the extension that
    // offers more.
    let mut old = connect();
    old.write_all(&old_hello()).unwrap();
    old.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut answer = Vec::new();
    let _ = old.read_to_end(&mut answer);
    assert_eq!(answer.first(), Some(&21), "an alert and no server hello: {answer:?}");
    let text = success(run(&address, &token, &program("vector_add"), &[]));
    assert!(text.contains("PASSED"), "{text}");
    for mut one in silent {
        one.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        assert!(matches!(one.read(&mut [0]), Ok(0) | Err(_)), "it was told something");
    }
}

/// A client hello of TLS 1.2 with one usual cipher suite.
fn old_hello() -> Vec<u8> {
    let mut body = vec![3, 3];
    body.extend([7; 32]);
    body.extend([0, 0, 2, 0xc0, 0x2f, 1, 0]);
    // Groups and signature schemes.
    let extensions = [0, 10, 0, 4, 0, 2, 0, 29, 0, 13, 0, 4, 0, 2, 4, 3];
    body.extend([0, u8::try_from(extensions.len()).unwrap()]);
    body.extend(extensions);
    let length = u8::try_from(body.len()).unwrap();
    let mut hello = vec![22, 3, 1, 0, length + 4, 1, 0, 0, length];
    hello.extend(body);
    hello
}

/// A daemon that is killed takes no remote session with it.
#[test]
fn remote_sessions_outlive_their_daemon() {
    let mut node = node(&[]);
    let (token, address) = grant(&node, &["far"]);
    let mut run = Conversation::start(run(&address, &token, &program("relay"), &["60"]));
    assert_eq!(run.line(), "ready");
    node.kill();
    node.launch();
    assert_eq!(run.line(), "relay: PASSED");
    assert!(run.wait().success());
    node.wait_until_empty();
}

/// Whoever registers memory of their own learns that they cannot, by the attribute beforehand and
/// by the call itself, and goes on; beside the node both say that they can.
#[test]
fn memory_cannot_be_registered_with_another_hosts_vgpu_and_is_said_to() {
    let node = node(&[]);
    let (token, address) = grant(&node, &["far"]);
    let far = success(run(&address, &token, &program("registered"), &[]));
    // CUDA_ERROR_NOT_SUPPORTED.
    assert!(far.contains("supported 0, registered 801"), "{far}");
    let near = success(node.run(&[], &program("registered"), &[]));
    assert!(near.contains("supported 1, registered 0"), "{near}");
    node.wait_until_empty();
}

/// Runs a program that leaves a trace, which must not be there: what is wrong was said before.
fn refused_before(address: &str, grant: &str, flags: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace");
    let mut command = weft();
    command.env("WEFT_TOKEN", grant).args(["run", "--remote", address]).args(flags);
    command.args(["--", "touch"]).arg(&trace);
    let output = finish(command);
    let text = text_of(&output);
    assert!(!output.status.success() && !trace.exists(), "the program has started: {text}");
    assert!(!text.contains("on the vGPU of") && !text.contains("panicked"), "{text}");
    text
}

/// Whatever is wrong with a grant is known before the program starts, which is told nothing then.
#[test]
fn a_grant_that_is_not_good_is_refused_before_the_program_starts() {
    let node = node(&[]);
    let (token, address) = grant(&node, &["far", "--uses", "2"]);
    let text = refused_before(&address, "weft1f00", &[]);
    assert!(text.contains("weft token"), "{text}");
    let text = refused_before(&address, &forged(&token, token.len() - 1), &[]);
    assert!(text.contains("not genuine"), "{text}");
    let text = refused_before(&address, &token, &["--name", "other"]);
    assert!(text.contains("only for far"), "{text}");
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let text = refused_before(&nobody, &token, &[]);
    assert!(text.contains("no weft gateway answers"), "{text}");
    // What was refused so far has used nothing, and two may use it.
    for _ in 0..2 {
        let text = success(run(&address, &token, &program("vector_add"), &[]));
        assert!(text.contains("on the vGPU of") && text.contains("PASSED"), "{text}");
    }
    let text = refused_before(&address, &token, &[]);
    assert!(text.contains("used up") && text.contains("2 endpoints"), "{text}");
    let (short, _) = grant(&node, &["far", "--for", "1s"]);
    eventually("the grant to expire", || {
        let attempt = finish(run(&address, &short, std::path::Path::new("true"), &[]));
        text_of(&attempt).contains("has expired")
    });
    let text = refused_before(&address, &short, &[]);
    assert!(text.contains("has expired"), "{text}");
    node.wait_until_empty();
}

/// Options that a run on another host's vGPU would ignore are refused in words.
#[test]
fn options_of_a_node_are_refused_beside_another_hosts_vgpu() {
    let node = node(&[]);
    let (token, address) = grant(&node, &["far"]);
    let folder = node.path().to_str().unwrap().to_owned();
    let file = node.path().join("grant");
    std::fs::write(&file, &token).unwrap();
    let file = file.to_str().unwrap();
    for (flags, word) in [
        (&["--runtime-dir", &folder][..], "--runtime-dir"),
        (&["--weight", "3"], "--weight"),
        (&["--memory", "1GiB"], "--memory"),
        (&["--device", "soft"], "--device"),
        (&["--no-spawn"], "--no-spawn"),
        (&["--token", "other", "--token-file", file], "--token-file"),
    ] {
        let text = refused_before(&address, &token, flags);
        assert!(text.contains(word), "{word}: {text}");
    }
    // What is only set for all programs is no mistake.
    let mut command = run(&address, &token, &program("vector_add"), &[]);
    command.env("WEFT_RUNTIME_DIR", node.path());
    let text = success(command);
    assert!(text.contains("PASSED"), "{text}");
}

/// The daemon's log has nobody in it who was refused, before anybody came.
#[test]
fn a_gateway_is_no_refused_tenant_of_its_node() {
    let node = node(&[]);
    let (token, address) = grant(&node, &["far", "--uses", "2"]);
    let text = success(run(&address, &token, &program("vector_add"), &[]));
    assert!(text.contains("PASSED"), "{text}");
    node.wait_until_empty();
    assert!(!node.log().contains("tenant refused"), "{}", node.log());
    // Whoever is refused is seen there.
    let text = refused(&address, &forged(&token, token.len() - 1));
    assert!(text.contains("not genuine"), "{text}");
    eventually("a line about it", || node.log().contains("tenant refused"));
}

/// An operator sees the other host, and the program's number there; not the gateway's.
#[test]
fn who_another_hosts_program_is_is_shown() {
    let node = node(&[]);
    let (token, address) = grant(&node, &["far"]);
    let script = "echo $$; exec \"$0\" 1000000";
    let relay = program("relay").display().to_string();
    let mut run =
        Conversation::start(run(&address, &token, "sh".as_ref(), &["-c", script, &relay]));
    let pid = run.line();
    assert_eq!(run.line(), "ready");
    let words = format!("relay (host 127.0.0.1, says it is process {pid})");
    let vgpus = node.admin().list().unwrap();
    let far = vgpus.iter().find(|vgpu| vgpu.name == "far").unwrap();
    assert_eq!(far.programs, std::slice::from_ref(&words));
    assert_eq!(Some(far.processes[0].pid), node.gateway(), "it comes through that");
    let asked = |arguments: &[&str]| {
        let mut command = weft();
        command.arg("--runtime-dir").arg(node.path()).args(arguments);
        text_of(&finish(command))
    };
    assert!(asked(&["ls"]).contains(&words), "{}", asked(&["ls"]));
    for refused in [["rm", "far"].as_slice(), &["stop"]] {
        let text = asked(refused);
        assert!(text.contains(&format!("host 127.0.0.1, says it is process {pid}")), "{text}");
    }
    let json: serde_json::Value = serde_json::from_str(&asked(&["ls", "--json"])).unwrap();
    assert!(json.to_string().contains(r#""address":"127.0.0.1""#), "{json}");
    assert!(node.log().contains("host 127.0.0.1, says it is process"), "{}", node.log());
    run.kill();
}

/// A free port of this host; somebody may take it before it is used.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// A gateway that is killed takes its sessions with it, which are told; the next one has its port
/// at once, and lets programs in.
#[test]
fn a_killed_gateway_ends_its_sessions_and_the_next_one_has_its_port() {
    let listen = format!("remote.listen=127.0.0.1:{}", free_port());
    let node = Node::start(&[&listen, "remote.user=0"]);
    let (token, address) = grant(&node, &["far", "--uses", "100"]);
    let start = || {
        let mut command = run(&address, &token, &program("relay"), &["1000000"]);
        command.stderr(std::process::Stdio::null());
        Conversation::start(command)
    };
    let (mut first, mut second) = (start(), start());
    assert_eq!((first.line(), second.line()), ("ready".into(), "ready".into()));
    let gateway = node.gateway().expect("a gateway");
    kill_process(Pid::from_raw(gateway.cast_signed()).unwrap(), Signal::KILL).unwrap();
    for run in [&mut first, &mut second] {
        assert_eq!(run.wait().code(), Some(2), "a CUDA error");
    }
    node.wait_until_empty();
    eventually("the next gateway to let a program in", || {
        text_of(&finish(run(&address, &token, &program("vector_add"), &[]))).contains("PASSED")
    });
    assert_ne!(node.gateway(), Some(gateway));
}

/// One that is stopped for a while goes on with its sessions; one that stays stopped is told of,
/// ended, and followed by another one.
#[test]
fn a_stopped_gateway_is_noticed_and_ended() {
    let listen = format!("remote.listen=127.0.0.1:{}", free_port());
    let node = Node::start(&[&listen, "remote.user=0"]);
    let (token, address) = grant(&node, &["far", "--uses", "100"]);
    let start = |rounds: &str| {
        let mut command = run(&address, &token, &program("relay"), &[rounds]);
        command.stderr(std::process::Stdio::null());
        let begun = Conversation::start(command);
        assert_eq!(begun.line(), "ready");
        begun
    };
    let doctor = || {
        let mut command = weft();
        command.arg("--runtime-dir").arg(node.path()).arg("doctor");
        text_of(&finish(command))
    };
    let gateway = node.gateway().expect("a gateway");
    let signal = |signal| kill_process(Pid::from_raw(gateway.cast_signed()).unwrap(), signal);
    assert!(doctor().contains("gateway: it lets programs of other hosts in"), "{}", doctor());
    let mut goes_on = start("400");
    signal(Signal::STOP).unwrap();
    eventually("the gateway to be missed", || doctor().contains("it has not answered for"));
    signal(Signal::CONT).unwrap();
    assert_eq!(goes_on.line(), "relay: PASSED");
    assert!(goes_on.wait().success());
    assert!(node.gateway() == Some(gateway) && !node.log().contains("it is ended"));
    let mut ends = start("1000000");
    signal(Signal::STOP).unwrap();
    eventually("the gateway to be ended", || node.log().contains("has not answered for 15 s"));
    assert_eq!(ends.wait().code(), Some(2), "a CUDA error");
    node.wait_until_empty();
    eventually("the next gateway to let a program in", || {
        text_of(&finish(run(&address, &token, &program("vector_add"), &[]))).contains("PASSED")
    });
    assert_ne!(node.gateway(), Some(gateway));
    assert!(doctor().contains("started: 1, for want of an answer: 1"), "{}", doctor());
}

/// Two nodes whose gateways are to listen at one address: the second one's log says what is wrong,
/// `weft token` does, and the first one's sessions go on.
#[test]
fn a_second_gateway_at_an_address_says_that_it_is_taken() {
    let first = node(&[]);
    let (token, address) = grant(&first, &["far"]);
    let mut run = Conversation::start(run(&address, &token, &program("relay"), &["60"]));
    assert_eq!(run.line(), "ready");
    let listen = format!("remote.listen={address}");
    let second = Node::start(&[&listen, "remote.user=0"]);
    eventually("the second node's log to say so", || {
        let log = second.log();
        log.contains("the gateway ended") && log.contains("another gateway or program listens")
    });
    let mut command = weft();
    command.arg("--runtime-dir").arg(second.path()).args(["token", "far"]);
    let text = success(command);
    assert!(text.contains("not listening yet"), "{text}");
    assert_eq!(run.line(), "relay: PASSED");
    assert!(run.wait().success());
}

/// An endpoint that is killed takes its own programs along and nobody else's.
#[test]
fn a_killed_endpoint_ends_its_own_sessions_only() {
    let node = node(&["remote.grace_ms=1000"]);
    let (token, address) = grant(&node, &["far", "--uses", "100"]);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("grant");
    std::fs::write(&file, &token).unwrap();
    let endpoint = |name: &str| {
        let socket = folder.path().join(name);
        let mut command = weft();
        command.args(["remote", &address]).arg("--token-file").arg(&file);
        let endpoint = Conversation::start({
            command.arg("--socket").arg(&socket);
            command
        });
        assert_eq!(endpoint.line(), "ready");
        (endpoint, socket)
    };
    let start = |socket: &std::path::Path, rounds: &str| {
        let mut command = weft();
        command.env("WEFT_SOCKET", socket).args(["run", "--"]).arg(program("relay")).arg(rounds);
        command.stderr(std::process::Stdio::null());
        let run = Conversation::start(command);
        assert_eq!(run.line(), "ready");
        run
    };
    let (mut killed, at_killed) = endpoint("killed.sock");
    let (_lives, at_living) = endpoint("lives.sock");
    let own = [start(&at_killed, "1000000"), start(&at_killed, "1000000")];
    let mut other = start(&at_living, "100");
    let mut beside = Conversation::start(node.run(&[], &program("relay"), &["100"]));
    assert_eq!(beside.line(), "ready");
    killed.kill();
    for mut run in own {
        assert_eq!(run.wait().code(), Some(2), "a CUDA error");
    }
    for run in [&mut other, &mut beside] {
        assert_eq!(run.line(), "relay: PASSED");
        assert!(run.wait().success());
    }
    node.wait_until_empty();
}
