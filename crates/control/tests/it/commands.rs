//! Bad input of `weft-control`'s commands: each is refused, in words that say what to do.

use std::path::Path;
use std::process::{Command, Output};

fn run(arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weft-control"));
    for variable in ["GSAAS_URL", "GSAAS_TOKEN_FILE", "WEFT_CONTROL_STATE_DIR"] {
        command.env_remove(variable);
    }
    let Output { status, stdout, stderr } = command.args(arguments).output().unwrap();
    let text = [stdout, stderr].concat();
    (status.code(), String::from_utf8_lossy(&text).into_owned())
}

/// `code` is 2 for what the command line cannot say, 1 for what cannot be done.
fn refused(arguments: &[&str], code: i32, words: &str) {
    let (found, text) = run(arguments);
    assert!(found == Some(code) && text.contains(words), "{arguments:?}: {found:?}: {text}");
    assert!(!text.contains("panicked"), "{text}");
}

fn path(folder: &Path, name: &str) -> String {
    folder.join(name).display().to_string()
}

#[test]
fn a_deployment_that_cannot_be_measured_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (token, empty) = (path(folder.path(), "token"), path(folder.path(), "empty"));
    std::fs::write(&token, "secret\n").unwrap();
    std::fs::write(&empty, "\n").unwrap();
    let with = |more: &[&str], code, words| {
        let all = ["deployment", "--what", "local", "--token-file", &token];
        refused(&[&all, more].concat(), code, words);
    };
    refused(&["deployment", "--token-file", &token], 2, "--what");
    refused(&["deployment", "--what", "local"], 2, "--token-file");
    let missing = path(folder.path(), "missing");
    let without = |file: &str, words| {
        refused(&["deployment", "--what", "local", "--token-file", file], 1, words);
    };
    without(&missing, "cannot read");
    without(&empty, "no token");
    with(&["--cgpus", "0"], 2, "0 is not in 1..");
    with(&["--cgpus", "many"], 2, "invalid digit");
    with(&["--vms", "0"], 2, "0 is not in 1..");
    with(&["--vms", "70000"], 2, "70000 is not in 1..");
    with(&["--memory-mib", "0"], 2, "0 is not in 1..");
    with(&["--repeats", "0"], 2, "0 is not in 1..");
    with(&["--url", "ftp://127.0.0.1"], 1, "ftp://127.0.0.1");
    // Nobody listens at the port that asks for a free one.
    with(&["--url", "http://127.0.0.1:1"], 1, "127.0.0.1:1");
}

#[test]
fn a_token_that_would_be_nobodys_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let state = path(folder.path(), "state");
    let token = |name: &str, more: &[&str], code, words| {
        refused(&[&["token", name, "--state-dir", &state], more].concat(), code, words);
    };
    token("alice", &[], 2, "--role");
    token("alice", &["--role", "king"], 2, "it is one of reader, member, admin");
    token("alice", &["--role", "member"], 1, "project");
    token("", &["--role", "admin"], 1, "name");
    token("a b", &["--role", "admin"], 1, "name");
    token("alice", &["--role", "member", "--project", "no/such"], 1, "is no name");
    let (code, text) = run(&["token", "alice", "--role", "admin", "--state-dir", &state]);
    assert!(code == Some(0) && text.trim().len() > 20, "{text}");
    token("alice", &["--role", "admin"], 1, "alice");
    let file = path(folder.path(), "file");
    std::fs::write(&file, "").unwrap();
    refused(&["token", "bob", "--role", "admin", "--state-dir", &file], 1, "cannot make");
}

#[test]
fn a_local_cloud_that_cannot_be_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let state = path(folder.path(), "state");
    let local = |more: &[&str], code, words| {
        refused(&[&["local", "--state-dir", &state], more].concat(), code, words);
    };
    local(&["--gpus", "0"], 2, "0 is not in 1..=16");
    local(&["--gpus", "17"], 2, "17 is not in 1..=16");
    local(&["--listen", "somewhere"], 2, "invalid socket address");
    local(&["--placement", "worst"], 2, "worst");
    local(&["--vm-kernel", "/boot/vmlinuz"], 2, "--vm-initrd");
    local(&["--vm-ram", "1"], 2, "1 is not in 64..");
    local(&["--tls-cert", "cert.pem"], 2, "--tls-key");
    local(&["--down"], 1, "no control plane was ever run in");
    assert!(!Path::new(&state).exists(), "what was refused has left nothing");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    std::fs::write(path(folder.path(), "libcuda.so.1"), "").unwrap();
    let libraries = folder.path().display().to_string();
    let all = ["--guest-user", "0", "--libraries", &libraries, "--listen", &address];
    local(&all, 1, &address);
    let file = path(folder.path(), "file");
    std::fs::write(&file, "").unwrap();
    refused(&["local", "--state-dir", &file], 1, "cannot make");
}
