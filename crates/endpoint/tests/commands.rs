//! Bad input of `weft-endpoint host`: it is refused, in words that say what to do.

#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "a panic is a test's report")]

use std::process::Command;

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
        assert!(!is_required, "WEFT_TEST_NETWORK is set, and there is no network namespace");
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
    std::fs::remove_file(&state).unwrap();
    std::fs::create_dir(&state).unwrap();
    known(&["--uplink", "lo"], "endpoint.json");
    let file = path("file");
    std::fs::write(&file, "").unwrap();
    let beneath = format!("{file}/endpoint.sock");
    refused(&["--socket", &beneath, "--state", &path("other.json")], 1, "cannot make");
}
