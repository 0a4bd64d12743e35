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
    let lines = path(folder.path(), "lines");
    std::fs::write(&lines, "secret\nsecret\n").unwrap();
    without(&lines, "is no token");
    without("/dev/zero", "what is in /dev/zero is no token");
    with(&["--cgpus", "4097"], 2, "4097 is not in 1..=4096");
    with(&["--memory-mib", "18446744073709551615"], 2, "is not in 1..=4294967296");
    with(&["--url", "http://127.0.0.1:99999"], 1, "is no address of a control plane");
    with(&["--url", "http://nonexistent.invalid:1"], 1, "no control plane answers at");
    with(&["--cgpus", "0"], 2, "0 is not in 1..");
    with(&["--cgpus", "many"], 2, "invalid digit");
    with(&["--vms", "0"], 2, "0 is not in 1..");
    with(&["--vms", "70000"], 2, "70000 is not in 1..");
    with(&["--memory-mib", "0"], 2, "0 is not in 1..");
    with(&["--repeats", "0"], 2, "0 is not in 1..");
    with(&["--baselines", &missing], 1, "cannot read");
    with(&["--baselines", &token], 1, "there are no figures");
    with(&["--url", "ftp://127.0.0.1"], 1, "ftp://127.0.0.1");
    // Nobody listens at the port that asks for a free one.
    with(&["--url", "http://127.0.0.1:1"], 1, "127.0.0.1:1");
}

#[test]
fn a_serving_that_would_ignore_something_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let state = path(folder.path(), "state");
    let serve = |more: &[&str], code: i32, words: &str| {
        let all = ["serve", "--listen", "127.0.0.1:0", "--state-dir", &state];
        refused(&[&all, more].concat(), code, words);
    };
    serve(&["--sweep-s", "18446744073709551615"], 2, "is not in 0..=86400");
    serve(&["--keep-days", "36501"], 2, "is not in 0..=36500");
    serve(&["--lease-s", "5"], 2, "--database");
    serve(&["--advertise", "http://a:1"], 2, "--database");
    let database = ["--database", "postgres://a/b"];
    for address in ["foo", "ftp://a", "http://a:99999"] {
        serve(&[&database[..], &["--advertise", address]].concat(), 2, "http://HOST:PORT");
    }
    serve(&["--database", ""], 2, "postgres://USER@HOST/NAME");
    serve(&["--vm-ram", "512"], 2, "--vm-kernel");
    for (option, value, of) in [
        ("--image", "x", "openstack"),
        ("--image-libraries", "x", "openstack"),
        ("--squeue", "/nonexistent", "slurm"),
        ("--guest", "/nonexistent", "local"),
        ("--guest-user", "0", "local"),
    ] {
        let words = format!("{option} means nothing to `--provisioner fake`: it is of {of}");
        serve(&["--provisioner", "fake", option, value], 2, &words);
    }
    let vm = ["--provisioner", "fake", "--vm-kernel", "/a", "--vm-initrd", "/b"];
    serve(&vm, 2, "--vm-kernel means nothing to");
    serve(&["--provisioner", "slurm", "--host-endpoint", "a=/x"], 2, "--host-endpoint means");
    let twice = ["--provisioner", "fake", "--host-endpoint", "a=/x", "--host-endpoint", "a=/y"];
    serve(&twice, 2, "names the host `a` twice");
    let local = ["--guest-user", "0", "--plain-processes"];
    for option in ["--guest", "--endpoint"] {
        let words = format!("{option} /nonexistent: there is no such program");
        serve(&[&local[..], &[option, "/nonexistent"]].concat(), 1, &words);
    }
    let slurm = ["--provisioner", "slurm", "--squeue", "/bin/false"];
    serve(&slurm, 1, "/bin/false ended with exit status: 1: it said nothing");
    std::fs::remove_dir_all(&state).unwrap();
    std::fs::create_dir_all(path(Path::new(&state), "control.db")).unwrap();
    serve(&["--provisioner", "fake"], 1, "control.db: Is a directory");
}

/// What cannot be measured is refused before anything is measured.
#[test]
fn a_benchmark_of_boots_without_an_image_is_refused() {
    let bench = ["bench", "--seconds", "60", "--guest", "/nonexistent"];
    refused(&bench, 1, "/nonexistent/vmlinuz is missing");
}

#[test]
fn a_cloud_that_has_no_address_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let state = path(folder.path(), "state");
    let flags = ["--image", "i", "--flavor", "f", "--network", "n", "--state-dir", &state];
    let mut command = Command::new(env!("CARGO_BIN_EXE_weft-control"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--provisioner", "openstack"]).args(flags);
    command.env("OS_AUTH_URL", "foo").env("OS_USERNAME", "u").env("OS_PASSWORD", "p");
    let output = command.env("OS_PROJECT_NAME", "p").output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && text.contains("OS_AUTH_URL=foo"), "{text}");
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
    token("alice", &["--role", "member"], 2, "--project");
    token("alice", &["--role", "admin", "--project", "p"], 1, "an admin is one of all");
    token("", &["--role", "admin"], 1, "name");
    token("a b", &["--role", "admin"], 1, "name");
    token("alice", &["--role", "member", "--project", "no/such"], 1, "is no name");
    token("alice", &["--role", "admin"], 1, "there is no such folder");
    assert!(!Path::new(&state).exists());
    std::fs::create_dir(&state).unwrap();
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
