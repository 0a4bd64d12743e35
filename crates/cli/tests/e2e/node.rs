//! What an operator does: list, create, set, remove, persist, watch.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;

use serde_json::Value;

use crate::support::{Conversation, Node, eventually, finish, program, success, text_of, weft};

fn ctl(node: &Node, arguments: &[&str]) -> std::process::Command {
    let mut command = weft();
    command.arg("--runtime-dir").arg(node.path()).args(arguments);
    command
}

#[test]
fn vgpus_are_created_listed_changed_and_removed() {
    let node = Node::start(&[]);
    success(ctl(&node, &["create", "a", "--weight", "3", "--memory", "512MiB"]));
    let list = success(ctl(&node, &["ls"]));
    assert!(list.contains('a') && list.contains("512MiB"), "{list}");
    success(ctl(&node, &["set", "a", "--weight", "5"]));
    let vgpus = node.admin().list().unwrap();
    assert_eq!((vgpus[0].weight, vgpus[0].memory_bytes), (5, 512 << 20));
    success(ctl(&node, &["rm", "a"]));
    assert!(node.admin().list().unwrap().is_empty());
    let output = finish(ctl(&node, &["rm", "a"]));
    assert!(!output.status.success() && text_of(&output).contains('a'), "{}", text_of(&output));
}

#[test]
fn a_vgpu_made_for_somebody_is_theirs_and_wants_its_token() {
    let node = Node::start(&[]);
    let own = rustix::process::getuid().as_raw();
    success(ctl(&node, &["create", "theirs", "--owner", &(own + 1).to_string()]));
    success(ctl(&node, &["create", "locked", "--token", "secret"]));
    for (flags, word) in [
        (&["--name", "theirs"][..], "another user"),
        (&["--name", "locked"], "WEFT_TOKEN"),
        (&["--name", "locked", "--token", "secre"], "WEFT_TOKEN"),
    ] {
        let output = finish(node.run(flags, &program("vector_add"), &[]));
        let text = text_of(&output);
        assert!(!output.status.success() && text.contains(word), "{flags:?}: {text}");
    }
    let right = ["--name", "locked", "--token", "secret"];
    success(node.run(&right, &program("vector_add"), &[]));
}

#[test]
fn wrong_commands_say_what_is_allowed() {
    let node = Node::start(&[]);
    for (arguments, word) in [
        (&["set", "a"][..], "--weight"),
        (&["create", "a", "--weight", "0"], "`0` is not a weight: a whole number, 1 to 10000"),
        (&["create", "a", "--weight", "-1"], "`-1` is not a weight"),
        (&["create", "a", "--memory", "-5MiB"], "`-5MiB` is not a size"),
        (&["create", "a", "--memory", "lots"], "512MiB"),
        (&["create", "a", "--sla", "-5ms"], "`-5ms` is not an SLA"),
        (&["create", "not a name"], "name"),
        (&["policy", "fairest"], "unmanaged"),
    ] {
        let output = finish(ctl(&node, arguments));
        let text = text_of(&output);
        assert!(!output.status.success(), "{arguments:?}");
        assert!(text.contains(word), "{arguments:?}: no `{word}` in {text}");
    }
}

#[test]
fn a_node_may_be_started_once_weft_stop_is_over() {
    let mut node = Node::start(&[]);
    for _ in 0..10 {
        success(ctl(&node, &["stop"]));
        node.launch_at_once();
    }
}

#[test]
fn a_look_at_who_uses_the_devices_ends_if_asked_to() {
    let node = Node::start(&[]);
    let one = success(ctl(&node, &["top", "--once", "--interval-ms", "50"]));
    assert!(one.starts_with("busy ") && one.lines().count() == 1, "{one}");
    let one = success(ctl(&node, &["top", "--once", "--json", "--interval-ms", "50"]));
    let look: Value = serde_json::from_str(&one).unwrap();
    assert!(look["devices"].is_array(), "{one}");
}

#[test]
fn an_empty_directory_names_no_node() {
    let mut weft = weft();
    weft.args(["--runtime-dir", "", "ls"]);
    let output = finish(weft);
    let text = text_of(&output);
    assert!(!output.status.success() && text.contains("--runtime-dir is empty"), "{text}");
}

#[test]
fn whoever_takes_the_last_device_away_is_told_what_that_means() {
    let node = Node::start(&[]);
    let output = finish(ctl(&node, &["device", "down", "gpu0"]));
    let text = text_of(&output);
    assert!(output.status.success() && text.contains("weft device up gpu0"), "{text}");
    success(ctl(&node, &["device", "up", "gpu0"]));
}

#[test]
fn vgpus_and_their_usage_survive_a_restart() {
    let mut node = Node::paced(&[]);
    success(node.run(
        &["--name", "kept", "--weight", "7"],
        &program("share"),
        &["step_285us", "0", "--count", "200"],
    ));
    node.wait_until_empty();
    let before = node.admin().list().unwrap();
    assert!(before[0].used_ns >= 200 * 285_000, "{before:?}");
    node.admin().shutdown().unwrap();
    eventually("the daemon to end", || node.client().is_none());
    node.kill();
    node.launch();
    let after = node.admin().list().unwrap();
    assert_eq!((after[0].weight, after[0].used_ns), (7, before[0].used_ns));
    let usage = success(ctl(&node, &["usage"]));
    assert!(usage.contains("kept"), "{usage}");
}

#[test]
fn shares_follow_the_weights_and_change_live() {
    let node = Node::paced(&[]);
    let tenant = |name: &str, weight: &str| {
        Conversation::start(node.run(
            &["--name", name, "--weight", weight],
            &program("share"),
            &["step_285us", "12", "--window", "0.5"],
        ))
    };
    let mut tenants = [tenant("a", "1"), tenant("b", "3")];
    for tenant in &tenants {
        tenant.line();
    }
    assert_share(&node, "b", 0.75);
    node.admin().set("b", Some(1), None).unwrap();
    assert_share(&node, "b", 0.5);
    node.admin().set_policy("unmanaged", None).unwrap();
    node.admin().set_policy("fair", None).unwrap();
    assert_share(&node, "b", 0.5);
    for tenant in &mut tenants {
        assert!(tenant.wait().success());
    }
}

/// The share of `name` over some window of a second or more comes close to `expected`. A noisy
/// machine may spoil a window, so several are looked at; a wrong scheduler spoils all.
pub(crate) fn assert_share(node: &Node, name: &str, expected: f64) {
    let mut seen = Vec::new();
    for _ in 0..6 {
        let before = node.admin().stats().unwrap();
        let target = before.closure.busy_ns + 700_000_000;
        let mut after = before.clone();
        eventually("the device to work", || {
            after = node.admin().stats().unwrap();
            after.closure.busy_ns >= target
        });
        let shares = weft_node::admin::shares(&before, &after);
        let share = shares.iter().find(|share| share.vgpu == name).unwrap().measured;
        if (share - expected).abs() < 0.05 {
            return;
        }
        seen.push(share);
    }
    panic!("{name} never had a share near {expected}: {seen:?}");
}

#[test]
fn charges_add_up_to_the_devices_busy_time() {
    let node = Node::paced(&[]);
    let runs: Vec<_> = ["a", "b"]
        .iter()
        .map(|name| {
            let command = node.run(
                &["--name", name],
                &program("share"),
                &["step_285us", "0", "--count", "2000"],
            );
            std::thread::spawn(move || success(command))
        })
        .collect();
    for run in runs {
        run.join().unwrap();
    }
    node.wait_until_empty();
    let stats = node.admin().stats().unwrap();
    assert!(stats.closure.busy_ns >= 4000 * 285_000, "{stats:?}");
    assert!(stats.closure.error() < 0.005, "{:?}", stats.closure);
}

#[test]
fn top_metrics_and_doctor_speak() {
    let node = Node::start(&[]);
    success(node.run(&["--name", "seen"], &program("vector_add"), &[]));
    let metrics = success(ctl(&node, &["metrics"]));
    for wanted in ["{vgpu=\"seen\",device=\"gpu0\"}", "\nweft_journal_lost_records_total 0\n"] {
        assert!(metrics.contains(wanted), "{metrics}");
    }
    let doctor = success(ctl(&node, &["doctor"]));
    assert!(doctor.contains("shim"), "{doctor}");
    let mut top = Conversation::start(ctl(&node, &["top", "--interval-ms", "50"]));
    assert!(top.line().contains("busy"));
    top.kill();
}

/// Whether all that is told in `before` is told in `now` too, as values of the same kinds.
fn assert_told(before: &Value, now: &Value, place: &str) {
    match (before, now) {
        (Value::Object(before), Value::Object(now)) => {
            for (name, value) in before {
                let place = format!("{place}.{name}");
                let told = now.get(name).unwrap_or_else(|| panic!("{place} is not told any more"));
                assert_told(value, told, &place);
            }
        }
        (Value::Array(before), Value::Array(now)) => {
            let each = before.iter().flat_map(|before| now.iter().map(move |now| (before, now)));
            each.for_each(|(before, now)| assert_told(before, now, place));
        }
        _ => {
            let is_same = std::mem::discriminant(before) == std::mem::discriminant(now);
            let is_none = before.is_null() || now.is_null();
            assert!(is_same || is_none, "{place}: {before} before and {now} now");
        }
    }
}

#[test]
fn a_control_plane_of_the_version_before_is_answered_as_it_was() {
    let node = Node::start(&["remote.listen=127.0.0.1:0", "remote.user=0"]);
    eventually("its gateway to listen", || {
        node.admin().node().unwrap().gateway.is_some_and(|gateway| gateway.listen.is_some())
    });
    let recorded = include_str!("../../../api/fixtures/node-1.jsonl");
    let mut stream = BufReader::new(UnixStream::connect(node.path().join("admin.sock")).unwrap());
    let lines: Vec<&str> = recorded.lines().collect();
    for pair in lines.chunks(2) {
        let asked = pair[0].strip_prefix("> ").unwrap();
        let before: Value = serde_json::from_str(pair[1].strip_prefix("< ").unwrap()).unwrap();
        writeln!(stream.get_mut(), "{asked}").unwrap();
        let mut line = String::new();
        stream.read_line(&mut line).unwrap();
        let now: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(now["answer"], before["answer"], "{asked}: {line}");
        assert_told(&before, &now, asked);
    }
    assert_eq!(lines.len(), 12);
    assert_eq!(node.admin().node().unwrap().admin, weft_api::node::VERSIONS);
}
