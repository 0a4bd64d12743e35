//! What `weft-endpoint` refuses at once, in words that say what to do: bad input of `host`, and an
//! address of `serve` that is taken. What a gateway says to its daemon.

#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "a panic is a test's report")]

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use weft_wire::remote::{ALIVE, WELL};

/// Longest wait for a gateway to say something.
const LIMIT: Duration = Duration::from_secs(60);

/// In a network namespace of its own: whatever it does it does there.
fn host(arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new("unshare");
    command.args(["--net", env!("CARGO_BIN_EXE_weft-endpoint"), "host"]).args(arguments);
    let output = command.output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8_lossy(&text).into_owned())
}

fn can_be_root() -> bool {
    let trial = Command::new("unshare").args(["--net", "nft", "list", "ruleset"]).output();
    let can = trial.is_ok_and(|output| output.status.success());
    if !can {
        let is_required = std::env::var_os("WEFT_TEST_NETWORK").is_some();
        let is_ci = std::env::var_os("CI").is_some_and(|value| value == "true");
        assert!(
            !is_required && !is_ci,
            "WEFT_TEST_NETWORK or CI=true is set, and there is no network namespace"
        );
        eprintln!("not run: no network namespace can be made here");
    }
    can
}

#[test]
fn a_host_that_cannot_be_led_is_refused() {
    if !can_be_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (socket, state) = (path("endpoint.sock"), path("endpoint.json"));
    let refused = |arguments: &[&str], code: i32, words: &str| {
        let (found, text) = host(arguments);
        assert!(found == Some(code) && text.contains(words), "{arguments:?}: {found:?}: {text}");
        assert!(!text.contains("panicked"), "{text}");
    };
    refused(&["--uplink"], 2, "--uplink");
    refused(&["--interface", "gpu0"], 2, "--interface");
    let known = |more: &[&str], words: &str| {
        refused(&[&["--socket", &socket, "--state", &state], more].concat(), 1, words);
    };
    refused(&["--uplink", "a\"; flush ruleset"], 2, "is no interface");
    refused(&["--uplink", "much-too-long-for-one"], 2, "is no interface");
    refused(&["--uplink", ""], 2, "is no interface");
    std::fs::write(&state, "no rows\n").unwrap();
    known(&["--uplink", "lo"], "endpoint.json");
    known(&["--uplink", "gpu7"], "there is no interface gpu7");
    std::fs::remove_file(&state).unwrap();
    std::fs::create_dir(&state).unwrap();
    known(&["--uplink", "lo"], "endpoint.json");
    let file = path("file");
    std::fs::write(&file, "").unwrap();
    let beneath = format!("{file}/endpoint.sock");
    refused(&["--socket", &beneath, "--state", &path("other.json")], 1, "there is no folder");
    let nowhere = path("nowhere/endpoint.sock");
    refused(&["--socket", &nowhere, "--state", &path("other.json")], 1, "there is no folder");
    assert!(!Path::new(&path("nowhere")).exists());
}

/// A gateway, of which the folder is its own.
fn serve(folder: &Path, listen: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weft-endpoint"));
    command.args(["serve", "--listen", listen, "--socket"]).arg(folder.join("tenant.sock"));
    command.arg("--key").arg(folder.join("gateway.key"));
    command.args(["--grace-ms", "1000", "--sessions", "1", "--pending", "1"]);
    command.args(["--patience-ms", "1000"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    command.stderr(Stdio::piped());
    command
}

#[test]
fn a_second_gateway_at_a_port_is_refused_and_a_killed_ones_port_is_free_at_once() {
    let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut running = serve(first.path(), "127.0.0.1:0").spawn().unwrap();
    let mut lines = BufReader::new(running.stdout.take().unwrap()).lines();
    let mut next = || lines.next().unwrap().unwrap();
    assert!(next().starts_with("key "));
    assert_eq!(next(), ALIVE);
    let address = next().strip_prefix("listening ").unwrap().to_owned();
    // Whoever is connected when the gateway is killed keeps the port busy on its behalf.
    let connected = TcpStream::connect(&address).unwrap();
    let output = serve(second.path(), &address).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    let words = format!("cannot listen at {address} (remote.listen)");
    assert!(text.contains(&words) && text.contains("another gateway or program listens"), "{text}");
    running.kill().unwrap();
    running.wait().unwrap();
    let mut again = serve(second.path(), &address).spawn().unwrap();
    let lines = BufReader::new(again.stdout.take().unwrap()).lines();
    let said: Vec<String> = lines.take(3).map_while(Result::ok).collect();
    assert_eq!(said.last(), Some(&format!("listening {address}")), "{said:?}");
    drop(connected);
    again.kill().unwrap();
    again.wait().unwrap();
}

/// A gateway that was started: what it says, line by line, and where it is asked.
fn started(folder: &Path) -> (Child, Receiver<String>, ChildStdin) {
    let mut gateway = serve(folder, "127.0.0.1:0").stderr(Stdio::inherit()).spawn().unwrap();
    let (say, said) = channel();
    let output = BufReader::new(gateway.stdout.take().unwrap());
    thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| say.send(line)));
    let asks = gateway.stdin.take().unwrap();
    assert!(said.recv_timeout(LIMIT).unwrap().starts_with("key "));
    assert_eq!(said.recv_timeout(LIMIT).unwrap(), ALIVE);
    (gateway, said, asks)
}

/// Also while it waits for the end of another one, of an earlier daemon; not while it is stopped.
#[test]
fn a_gateway_that_is_asked_says_that_it_is_well() {
    let folder = tempfile::tempdir().unwrap();
    let (mut first, said_first, mut asks_first) = started(folder.path());
    // At once: what comes in two parts may be answered twice.
    let question = format!("{WELL}\n");
    let answers = |said: &Receiver<String>, asks: &mut ChildStdin| {
        asks.write_all(question.as_bytes()).unwrap();
        assert_eq!(said.recv_timeout(LIMIT).unwrap(), ALIVE);
    };
    assert!(said_first.recv_timeout(LIMIT).unwrap().starts_with("listening "));
    let (mut second, said_second, mut asks_second) = started(folder.path());
    for _ in 0..3 {
        answers(&said_first, &mut asks_first);
        answers(&said_second, &mut asks_second);
    }
    let pid = Pid::from_child(&first);
    kill_process(pid, Signal::STOP).unwrap();
    // A signal is on its way until each thread has taken it, and one that has not still answers.
    let stopped = waitpid(Some(pid), WaitOptions::UNTRACED).unwrap().unwrap().1;
    assert!(stopped.stopped(), "{stopped:?}");
    asks_first.write_all(question.as_bytes()).unwrap();
    said_first.recv_timeout(Duration::from_millis(200)).unwrap_err();
    kill_process(pid, Signal::CONT).unwrap();
    assert_eq!(said_first.recv_timeout(LIMIT).unwrap(), ALIVE);
    // The first one ends with its daemon, and the second one takes its place.
    drop(asks_first);
    assert!(first.wait().unwrap().success());
    assert!(said_second.recv_timeout(LIMIT).unwrap().starts_with("listening "));
    answers(&said_second, &mut asks_second);
    drop(asks_second);
    assert!(second.wait().unwrap().success());
}

#[test]
fn what_is_no_file_of_grants_is_refused_and_a_benchmark_without_its_program() {
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weft-endpoint"));
        let output = command.args(arguments).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let connect = ["connect", "--remote", "127.0.0.1:1", "--socket", "/nonexistent/s"];
    for (file, words) in [
        ("/dev/zero", "--token-file /dev/zero: files with grants have up to 8 MiB"),
        ("/nonexistent", "cannot read /nonexistent"),
    ] {
        let (code, text) = run(&[&connect[..], &["--token-file", file]].concat());
        assert!(code == Some(1) && text.contains(words), "{text}");
    }
    let (code, text) = run(&["bench-host", "--programs", "/nonexistent"]);
    assert!(code == Some(1) && text.contains("/nonexistent/relay is missing"), "{text}");
}
