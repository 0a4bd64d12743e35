//! `weft run` and the other commands as parts of a shell's lines: signals, exit codes, pipes.

use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::support::{Conversation, Node, eventually, finish, program, success, text_of, weft};

/// A shell program that says `ready`, and ends with 9 at a SIGTERM.
const PATIENT: &str = "trap 'exit 9' TERM; echo ready; while :; do sleep 0.02; done";

/// `weft run` with a daemon of its own, whose directory is in the folder.
fn own(folder: &TempDir, program: &[&str]) -> Command {
    let mut command = weft();
    command.env("TMPDIR", folder.path()).arg("--runtime-dir").arg(folder.path().join("none"));
    command.arg("run").args(program);
    command
}

fn signal(process: u32, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(process).unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

/// Waits until nothing is left of a daemon that was started for one run.
fn wait_until_gone(folder: &TempDir) {
    eventually("the run's daemon to end and its directory to go", || {
        std::fs::read_dir(folder.path()).unwrap().next().is_none()
    });
}

#[test]
fn a_run_is_its_program_and_its_daemon_ends_with_it() {
    let folder = tempfile::tempdir().unwrap();
    for (sent, code) in [(Signal::TERM, Some(9)), (Signal::KILL, None)] {
        let mut run = Conversation::start(own(&folder, &["--", "sh", "-c", PATIENT]));
        assert_eq!(run.line(), "ready");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "no daemon");
        signal(run.child.id(), sent);
        assert_eq!(run.wait().code(), code, "{sent:?}");
        wait_until_gone(&folder);
    }
    // The daemon is not the program's child, for which it might wait.
    let waits = "import os\ntry: os.wait()\nexcept ChildProcessError: print('none')";
    let said = success(own(&folder, &["--", "python3", "-c", waits]));
    assert!(said.starts_with("none\n"), "{said}");
    success(own(&folder, &["--", &program("vector_add").display().to_string()]));
    wait_until_gone(&folder);
}

#[test]
fn a_weighed_run_is_its_program_too() {
    let node = Node::start(&[]);
    let log = node.path().join("run.log");
    node.admin().create("heavy", Some(3), None).unwrap();
    for (sent, code) in [(Signal::TERM, Some(9)), (Signal::KILL, None)] {
        let flags = ["--name", "heavy", "--cpu-weight", "auto"];
        let mut command = node.run(&flags, "sh".as_ref(), &["-c", PATIENT]);
        command.stderr(std::fs::File::create(&log).unwrap());
        let mut run = Conversation::start(command);
        assert_eq!(run.line(), "ready");
        eventually("the program to be weighed", || {
            std::fs::read_to_string(&log).unwrap().contains("processor share of vGPU heavy")
        });
        signal(run.child.id(), sent);
        assert_eq!(run.wait().code(), code, "{sent:?}");
    }
    // The guardian ends with the program, or the output would not.
    let folder = tempfile::tempdir().unwrap();
    let waits = "import os\ntry: os.wait()\nexcept ChildProcessError: print('none')";
    let said = success(own(&folder, &["--cpu-weight", "auto", "--", "python3", "-c", waits]));
    assert!(said.starts_with("none\n"), "{said}");
    wait_until_gone(&folder);
}

#[test]
fn what_cannot_be_run_is_said_with_the_codes_of_shells() {
    let folder = tempfile::tempdir().unwrap();
    for (arguments, code, word) in [
        (&["--", "no-such-program"][..], 127, "PATH"),
        (&["--", "/etc/passwd"], 126, "executable"),
        (&["--wieght", "3", "--", "true"], 2, "--weight"),
        (&["--name", "", "--", "true"], 2, "--name"),
        (&["--memory", "0", "--", "true"], 2, "4KiB"),
        (&["--device", "sofft", "--", "true"], 1, "soft:paced"),
        (&["--", "sh", "-c", "exit 7"], 7, "no node daemon is running in /"),
    ] {
        let output = finish(own(&folder, arguments));
        let text = text_of(&output);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {text}");
        assert!(text.contains(word), "{arguments:?}: no `{word}` in {text}");
        wait_until_gone(&folder);
    }
}

#[test]
fn a_reader_that_has_seen_enough_is_no_fault() {
    let node = Node::start(&[]);
    let mut command = weft();
    command.arg("--runtime-dir").arg(node.path()).args(["top", "--plain", "--interval-ms", "50"]);
    let mut top = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(top.stdout.take());
    let output = top.wait_with_output().unwrap();
    assert_eq!((output.status.code(), text_of(&output).as_str()), (Some(141), ""));
}

#[test]
fn without_a_command_the_help_is_shown_and_nothing_hidden() {
    let mut command = weft();
    command.env("WEFT_RUNTIME_DIR", "/nowhere");
    let output = finish(command);
    let text = text_of(&output);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("Run a program on a vGPU") && !text.contains("own-node"), "{text}");
}
