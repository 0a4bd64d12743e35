//! What `gsaas` makes of answers that do not come, against servers that are a socket and a script.

#![expect(clippy::unwrap_used, reason = "a panic is a test's report")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Output};
use std::thread::{self, JoinHandle};

/// What a server does about a request, after the ones before.
#[derive(Clone, Copy)]
enum Act {
    /// Closes the connection.
    Hang,
    /// Says nothing until whoever asked has gone.
    Wait,
    /// Answers with a status and a body.
    Say(u16, &'static str),
}

const READY: &str = r#"{"id":"i1","name":"n","project":"p","state":"ready","cgpus":1,
    "memory_mib":1,"mode":"shared","locality":"remote","weight":1,"operation":"o","created_ms":0}"#;

const BUILDING: &str = r#"{"id":"i1","name":"n","project":"p","state":"building","cgpus":1,
    "memory_mib":1,"mode":"shared","locality":"remote","weight":1,"operation":"o","created_ms":0}"#;

const BEGUN: &str = r#"{"instances":[
    {"id":"i1","name":"n-1","project":"p","state":"ready","cgpus":1,"memory_mib":1,"mode":"shared",
     "locality":"remote","weight":1,"operation":"o1","created_ms":0},
    {"id":"i2","name":"n-2","project":"p","state":"building","cgpus":1,"memory_mib":1,
     "mode":"shared","locality":"remote","weight":1,"operation":"o2","created_ms":0}]}"#;

const SECOND_READY: &str = r#"{"id":"i2","name":"n-2","project":"p","state":"ready","cgpus":1,
    "memory_mib":1,"mode":"shared","locality":"remote","weight":1,"operation":"o2",
    "created_ms":0}"#;

const SECOND_FAILED: &str = r#"{"id":"i2","name":"n-2","project":"p","state":"failed","cgpus":1,
    "memory_mib":1,"mode":"shared","locality":"remote","weight":1,"operation":"o2","created_ms":0,
    "failure":"no disk"}"#;

/// As a control plane of microversion 1.5 says it.
const NO_PATH: &str = r#"{"type":"urn:weft:not-found","title":"there is no such thing","status":404,
    "detail":"there is no path /v1/batches","hint":"the paths are in /openapi.json"}"#;

const GPUS: &str = r#"{"items":[
    {"id":1,"node":"a","device":"d","product":"p","memory_mib":9,"held_mib":2,"cgpus":2,
     "exclusive":false,"in_service":true,"generation":1},
    {"id":2,"node":"b","device":"d","product":"p","memory_mib":9,"held_mib":2,"cgpus":2,
     "exclusive":false,"in_service":true,"generation":1},
    {"id":3,"node":"a","device":"e","product":"p","memory_mib":9,"held_mib":2,"cgpus":2,
     "exclusive":false,"in_service":false,"generation":1,"lost_ms":7}]}"#;

const DRAINED: &str = r#"{"id":1,"node":"a","device":"d","product":"p","memory_mib":9,"held_mib":2,
    "cgpus":2,"exclusive":false,"in_service":false,"generation":2}"#;

const NO_LEADER: &str = r#"{"type":"urn:weft:not-leader","title":"t","status":503,"detail":"none",
    "retry_after_s":0}"#;

const NOT_FOUND: &str = r#"{"type":"urn:weft:not-found","title":"t","status":404,
    "detail":"there is no GPU `1`"}"#;

/// A request: its first line, and the idempotency key.
type Heard = (String, Option<String>);

fn hear(stream: &TcpStream) -> Heard {
    let mut reader = BufReader::new(stream);
    let (mut first, mut key, mut length) = (String::new(), None, 0);
    reader.read_line(&mut first).unwrap();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        let Some((name, value)) = line.trim().split_once(": ") else { break };
        match name.to_ascii_lowercase().as_str() {
            "idempotency-key" => key = Some(value.to_owned()),
            "content-length" => length = value.parse().unwrap(),
            _ => {}
        }
    }
    reader.read_exact(&mut vec![0; length]).unwrap();
    (first.trim().to_owned(), key)
}

/// Does all of it, one connection each; what it heard.
fn serve(acts: Vec<Act>) -> (String, JoinHandle<Vec<Heard>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let thread = thread::spawn(move || {
        let mut heard = Vec::new();
        for act in acts {
            let (mut stream, _) = listener.accept().unwrap();
            heard.push(hear(&stream));
            match act {
                Act::Hang => {}
                // It is over when the other side has closed it.
                Act::Wait => drop(stream.read(&mut [0])),
                Act::Say(status, body) => {
                    let length = body.len();
                    let head = format!("HTTP/1.1 {status} x\r\nContent-Length: {length}\r\n");
                    write!(stream, "{head}Connection: close\r\n\r\n{body}").unwrap();
                }
            }
        }
        heard
    });
    (url, thread)
}

fn gsaas(url: &str, options: &[&str]) -> (Output, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gsaas"));
    command.args(options).env("GSAAS_URL", url).env("GSAAS_TOKEN", "t");
    let output = command.env_remove("GSAAS_TOKEN_FILE").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output, said)
}

const LAUNCH: [&str; 4] = ["-l", "-ncgpus=1", "-poolmem=1", "-mode=shared"];

#[test]
fn a_launch_whose_answer_was_lost_is_asked_for_again_with_the_same_key() {
    let (url, server) = serve(vec![Act::Hang, Act::Say(202, READY)]);
    let (output, said) = gsaas(&url, &LAUNCH);
    assert!(output.status.success(), "{said}");
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "i1");
    let heard = server.join().unwrap();
    assert_eq!(heard.len(), 2);
    assert!(heard[0].1.is_some() && heard[0].1 == heard[1].1, "{heard:?}");
}

#[test]
fn a_launch_that_nobody_knows_of_is_not_said_to_have_failed() {
    let (url, server) = serve(vec![Act::Hang]);
    let (output, said) = gsaas(&url, &[&LAUNCH[..], &["-patience=0", "-key=k7"]].concat());
    server.join().unwrap();
    assert_eq!(output.status.code(), Some(4), "{said}");
    for words in ["not known whether", "-key=k7", "gsaas -list"] {
        assert!(said.contains(words), "{said}");
    }
    assert!(!said.contains("no control plane answers"), "{said}");
}

#[test]
fn a_launch_that_was_accepted_is_named_though_nobody_answers_any_longer() {
    let (url, server) = serve(vec![Act::Say(202, BUILDING), Act::Hang]);
    let (output, said) = gsaas(&url, &[&LAUNCH[..], &["-patience=0"]].concat());
    server.join().unwrap();
    assert_eq!(output.status.code(), Some(4), "{said}");
    assert!(said.contains("VM i1 was accepted; gsaas -show -id=i1"), "{said}");
}

#[test]
fn a_vm_that_was_accepted_is_waited_for_over_an_answer_that_is_lost() {
    let acts = vec![Act::Say(202, BUILDING), Act::Hang, Act::Say(200, READY)];
    let (url, server) = serve(acts);
    let (output, said) = gsaas(&url, &LAUNCH);
    server.join().unwrap();
    assert!(output.status.success(), "{said}");
}

fn printed(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

#[test]
fn several_vms_are_one_request_and_one_id_a_line() {
    let batch = [&LAUNCH[..], &["-count=2"]].concat();
    let acts = vec![Act::Hang, Act::Say(202, BEGUN), Act::Say(200, SECOND_READY)];
    let (url, server) = serve(acts);
    let (output, words) = gsaas(&url, &batch);
    assert!(output.status.success(), "{words}");
    assert_eq!(printed(&output), "i1\ni2");
    let heard = server.join().unwrap();
    assert_eq!(heard[1].0, "POST /v1/batches HTTP/1.1");
    assert!(heard[0].1.is_some() && heard[0].1 == heard[1].1, "the same key: {heard:?}");
    let asked = &heard[2].0;
    assert!(asked.starts_with("GET /v1/instances/i2?wait_ms="), "the first one is ready: {asked}");
    let (url, server) = serve(vec![Act::Say(202, BEGUN)]);
    let (output, words) = gsaas(&url, &[&batch[..], &["-nowait", "-json"]].concat());
    assert!(output.status.success(), "{words}");
    let list: serde_json::Value = serde_json::from_str(&printed(&output)).unwrap();
    assert!(list[0]["id"] == "i1" && list[1]["state"] == "building", "{list}");
    server.join().unwrap();
}

#[test]
fn what_becomes_of_one_vm_of_several_is_told_with_those_that_are_ready() {
    let batch = [&LAUNCH[..], &["-count=2", "-patience=0"]].concat();
    let (url, server) = serve(vec![Act::Say(202, BEGUN), Act::Say(200, SECOND_FAILED)]);
    let (output, words) = gsaas(&url, &batch);
    server.join().unwrap();
    assert_eq!((output.status.code(), printed(&output).as_str()), (Some(1), "i1"), "{words}");
    let told = "1 of 2 VMs are ready; i2 came to nothing: no disk";
    assert!(words.contains(told), "{words}");
    // Nobody answers any longer: what is ready is told, and the rest is named.
    let begun = BEGUN.replacen("ready", "building", 1);
    for (begun, ready, told) in [
        (BEGUN, "i1", "1 of 2 VMs are ready: VM i2 was accepted; gsaas -show -id=i2"),
        (begun.leak(), "", "0 of 2 VMs are ready; not waited for: i2: VM i1 was accepted; "),
    ] {
        let (url, server) = serve(vec![Act::Say(202, begun), Act::Hang]);
        let (output, words) = gsaas(&url, &batch);
        server.join().unwrap();
        assert_eq!((output.status.code(), printed(&output).as_str()), (Some(4), ready), "{words}");
        assert!(words.contains(told), "{words}");
    }
    // One that is refused keeps nobody from hearing of the other.
    let both = BEGUN.replacen("ready", "building", 1);
    let acts =
        vec![Act::Say(202, both.leak()), Act::Say(404, NOT_FOUND), Act::Say(200, SECOND_READY)];
    let (url, server) = serve(acts);
    let (output, words) = gsaas(&url, &batch);
    server.join().unwrap();
    assert_eq!((output.status.code(), printed(&output).as_str()), (Some(1), "i2"), "{words}");
    assert!(words.contains("1 of 2 VMs are ready: VM i1 was accepted"), "{words}");
}

#[test]
fn an_older_control_plane_is_said_to_launch_no_several_vms() {
    let (url, server) = serve(vec![Act::Say(404, NO_PATH)]);
    let (output, words) = gsaas(&url, &[&LAUNCH[..], &["-count=2"]].concat());
    server.join().unwrap();
    assert_eq!(output.status.code(), Some(1), "{words}");
    assert!(words.contains("leave -count out"), "{words}");
    // Another thing that is not there is not taken for it.
    let (url, server) = serve(vec![Act::Say(404, NOT_FOUND)]);
    let (_, words) = gsaas(&url, &[&LAUNCH[..], &["-count=2"]].concat());
    server.join().unwrap();
    assert!(!words.contains("-count"), "{words}");
}

/// GPUs 1 and 3 are of the node that is drained, which has lost the second of them.
#[test]
fn a_node_is_drained_gpu_by_gpu() {
    let requests = |options: &[&str], changed: usize| {
        let mut acts = vec![Act::Say(200, GPUS)];
        acts.extend((0..changed).map(|_| Act::Say(200, DRAINED)));
        let (url, server) = serve(acts);
        let (output, said) = gsaas(&url, options);
        let heard = server.join().unwrap();
        (output.status.code(), said, heard.into_iter().map(|(first, _)| first).collect::<Vec<_>>())
    };
    let (code, said, heard) = requests(&["-drain", "-node=a"], 2);
    assert_eq!((code, said.as_str()), (Some(0), "gsaas: 4 cGPUs are still on its GPUs\n"));
    assert_eq!(heard[1..], ["PATCH /v1/gpus/1 HTTP/1.1", "PATCH /v1/gpus/3 HTTP/1.1"]);
    let (code, said, heard) = requests(&["-undrain", "-node=a"], 1);
    assert_eq!(
        (code, said.as_str(), heard.len()),
        (Some(0), "", 2),
        "it has lost GPU 3: {heard:?}"
    );
    let (code, said, _) = requests(&["-drain", "-node=c"], 0);
    assert!(code == Some(1) && said.contains("no GPU of a node c: gsaas -gpus"), "{said}");
}

#[test]
fn what_is_gone_when_it_is_removed_again_was_removed() {
    let (url, server) = serve(vec![Act::Hang, Act::Say(404, NOT_FOUND)]);
    let (output, said) = gsaas(&url, &["-remove", "-gpu=1"]);
    assert!(output.status.success(), "{said}");
    assert_eq!(server.join().unwrap().len(), 2);
    let (url, server) = serve(vec![Act::Say(404, NOT_FOUND)]);
    let (output, said) = gsaas(&url, &["-remove", "-gpu=1"]);
    assert!(output.status.code() == Some(1) && said.contains("no GPU `1`"), "{said}");
    server.join().unwrap();
}

/// The words name the limit that was waited for, which is not the library's own.
#[test]
fn patience_bounds_the_wait_for_one_answer_too() {
    let (url, server) = serve(vec![Act::Wait]);
    let (output, said) = gsaas(&url, &["-list", "-patience=2"]);
    assert_eq!(output.status.code(), Some(4), "{said}");
    assert!(said.contains("did not answer: nothing came within 2 s"), "{said}");
    assert!(!said.contains("may have done it"), "nothing was to be done: {said}");
    server.join().unwrap();
    let (url, server) = serve(vec![Act::Wait]);
    let (_, said) = gsaas(&url, &["-t", "-id=i1", "-patience=1"]);
    assert!(said.contains("may have done it: nothing came within 1 s"), "{said}");
    server.join().unwrap();
}

/// One that hangs does not have the time of another one.
#[test]
fn a_replica_that_hangs_leaves_time_for_another() {
    let ((hangs, waits), (answers, says)) =
        (serve(vec![Act::Wait]), serve(vec![Act::Say(202, READY)]));
    let options = [&LAUNCH[..], &["-patience=4"]].concat();
    let (output, said) = gsaas(&format!("{hangs},{answers}"), &options);
    assert!(output.status.success(), "{said}");
    waits.join().unwrap();
    says.join().unwrap();
}

#[test]
fn who_lets_others_read_a_token_is_warned() {
    use std::os::unix::fs::PermissionsExt as _;
    let path = std::env::temp_dir().join(format!("weft-gsaas-token-{}", std::process::id()));
    std::fs::write(&path, "t\n").unwrap();
    let file = format!("-tokenfile={}", path.display());
    for (mode, is_warned) in [(0o644, true), (0o600, false)] {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        let (_, said) = gsaas("http://127.0.0.1:1", &["-list", &file]);
        assert_eq!(said.contains("others can read"), is_warned, "{mode:o}: {said}");
    }
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn what_was_never_sent_is_not_said_to_be_unknown() {
    let nowhere = "http://nonexistent.invalid:7610";
    let (output, said) = gsaas(nowhere, &LAUNCH);
    assert_eq!(output.status.code(), Some(4), "{said}");
    assert!(said.contains("no control plane answers at http://nonexistent.invalid"), "{said}");
    assert!(!said.contains("not known whether"), "{said}");
}

/// Exit code 2, and words that name what is wrong; nobody is asked.
#[test]
fn what_cannot_be_sent_is_told_as_what_it_is() {
    let folder = std::env::temp_dir().join(format!("weft-gsaas-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let lines = folder.join("token");
    std::fs::write(&lines, "one\ntwo\n").unwrap();
    let file = format!("-tokenfile={}", lines.display());
    for (url, options, words) in [
        ("http://a", vec!["-list", &file], lines.to_str().unwrap()),
        ("http://a", vec!["-list", "-tokenfile=/dev/zero"], "what is in /dev/zero is no token"),
        ("http://a", [&LAUNCH[..], &["-key=a\r\nX: y"]].concat(), "-key: an idempotency key"),
        ("http://a", [&LAUNCH[..], &["-key=a b"]].concat(), "-key: an idempotency key"),
        ("http://127.0.0.1:99999", vec!["-list"], "is no address of a control plane"),
        ("http://127.0.0.1:1?x=y", vec!["-list"], "is no address of a control plane"),
    ] {
        let (output, said) = gsaas(url, &options);
        assert!(output.status.code() == Some(2) && said.contains(words), "{options:?}: {said}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_gsaas"));
    command.env_remove("GSAAS_TOKEN").env_remove("GSAAS_TOKEN_FILE");
    let output = command.args(["-list", "-url=http://127.0.0.1:1"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && said.contains("`weft-control token`"), "{said}");
}

/// What bash offers for the last of these words.
fn offered(words: &[&str]) -> String {
    let last = words.len() - 1;
    let script = format!(
        "source <({:?} -completion=bash); COMP_WORDS=({}); COMP_CWORD={last}; \
         _gsaas gsaas '{}' '{}'; echo \"${{COMPREPLY[*]}}\"",
        env!("CARGO_BIN_EXE_gsaas"),
        words.join(" "),
        words[last],
        words[last - 1],
    );
    let output = Command::new("bash").args(["-c", &script]).output().unwrap();
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

#[test]
fn bash_completes_options_as_they_are_documented() {
    for (words, expected) in [
        (&["gsaas", "-nc"][..], "-ncgpus"),
        (&["gsaas", "-l", "-cou"], "-count"),
        (&["gsaas", "--nc"], "--ncgpus"),
        (&["gsaas", "-l", "-mode", "sh"], "shared"),
        (&["gsaas", "-l", "--mode", "sh"], "shared"),
        (&["gsaas", "-l", "-mode", "=", "sh"], "shared"),
        (&["gsaas", "-l", "-mode", "="], "exclusive shared"),
        (&["gsaas", "-l", "-locality", "X"], "Xlocal"),
    ] {
        assert_eq!(offered(words), expected, "{words:?}");
    }
}

#[test]
fn of_several_replicas_one_that_does_it_is_found() {
    let gone = {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        format!("http://{}", listener.local_addr().unwrap())
    };
    // Nobody leads at first.
    let (stands_by, first) = serve(vec![Act::Say(503, NO_LEADER), Act::Say(202, READY)]);
    let (output, said) = gsaas(&format!("{gone},{stands_by}"), &LAUNCH);
    assert!(output.status.success(), "{said}");
    assert_eq!(first.join().unwrap().len(), 2);
    // Whoever knows one address only is told at once that nobody is there.
    let (output, said) = gsaas(&gone, &["-list"]);
    assert_eq!(output.status.code(), Some(4));
    assert!(said.contains("no control plane answers"), "{said}");
}
