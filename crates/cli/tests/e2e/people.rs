//! Who may do what, and what people are told. Needs root, to be several users.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use weft_node::admin::{Answer, Request};

use crate::support::{
    Conversation, Node, as_user, eventually, finish, has_mounts, is_root, program, success,
    text_of, weft,
};

/// Users besides the one who runs the tests.
const USER: u32 = 65_534;
const OTHER_USER: u32 = 65_533;

/// A node that users can get at.
fn open_node(settings: &[&str]) -> Node {
    let node = Node::start(settings);
    std::fs::set_permissions(node.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    node
}

/// `weft` on the node, as a user in these groups besides its own.
fn weft_as(node: &Node, user: u32, groups: &[u32], arguments: &[&str]) -> Output {
    let mut command = as_user(user, groups, &weft());
    command.arg("--runtime-dir").arg(node.path()).args(arguments);
    finish(command)
}

#[track_caller]
fn refused(output: &Output, words: &[&str]) {
    let text = text_of(output);
    assert!(!output.status.success(), "{text}");
    for word in words {
        assert!(text.contains(word), "no `{word}` in {text}");
    }
}

#[track_caller]
fn done(output: &Output) -> String {
    let text = text_of(output);
    assert!(output.status.success(), "{text}");
    text
}

#[test]
fn users_see_all_change_their_own_and_no_more() {
    if !is_root() {
        return;
    }
    let node = open_node(&["sockets.admin_group=54321"]);
    node.admin().create("roots", Some(2), None).unwrap();
    let user = |arguments: &[&str]| weft_as(&node, USER, &[], arguments);
    assert!(done(&user(&["ls"])).contains("roots"));
    for seen in [&["usage"][..], &["policy"], &["metrics"], &["doctor"]] {
        done(&user(seen));
    }
    done(&user(&["create", "mine", "--memory", "64MB"]));
    done(&user(&["set", "mine", "--cap", "50%"]));
    refused(&user(&["set", "mine", "--sla", "100ms"]), &["administrators", "--sla"]);
    refused(&user(&["create", "quick", "--sla", "100ms"]), &["administrators", "--sla"]);
    done(&user(&["set", "mine", "--sla", "none"]));
    done(&user(&["rm", "mine"]));
    refused(&user(&["set", "roots", "--weight", "1"]), &["roots", "user 0"]);
    refused(&user(&["rm", "roots", "--force"]), &["roots", "user 0"]);
    refused(&user(&["create", "x", "--owner", "root"]), &["administrators"]);
    refused(&user(&["set", "--tenant", "root", "--weight", "1"]), &["administrators"]);
    for kept in [&["policy", "unmanaged"][..], &["stop"], &["stop", "--force"]] {
        refused(&user(kept), &["administrators", "sockets.admin_group"]);
    }
    // What an administrator gives is what the owner may have at most.
    let given = ["create", "given", "--owner", "65534", "--weight", "3", "--cap", "25%"];
    let member = |arguments: &[&str]| weft_as(&node, OTHER_USER, &[54_321], arguments);
    done(&member(&given));
    done(&user(&["set", "given", "--weight", "2"]));
    refused(&user(&["set", "given", "--weight", "4"]), &["weight 3"]);
    refused(&user(&["set", "given", "--cap", "none"]), &["25%"]);
    refused(&user(&["rm", "given"]), &["administrator"]);
    done(&member(&["policy", "round_robin"]));
    done(&member(&["rm", "given"]));
    assert_eq!(node.admin().node().unwrap().policy, "round_robin");
    done(&member(&["stop"]));
}

/// Everybody sees who uses the device, and nobody but an administrator how somebody else's turns
/// went.
#[test]
fn a_user_looks_at_all_and_traces_its_own() {
    if !is_root() {
        return;
    }
    let node = open_node(&[]);
    success(node.run(&["--name", "first"], &program("vector_add"), &[]));
    let tenants: Vec<Conversation> = [(USER, "mine"), (OTHER_USER, "theirs")]
        .into_iter()
        .map(|(user, name)| {
            let mut command = as_user(user, &[], &Command::new(program("relay")));
            command.arg("100000000").env("WEFT_SOCKET", node.path().join("tenant.sock"));
            command.env("WEFT_VGPU", name).env("LD_LIBRARY_PATH", node.path().join("lib"));
            Conversation::start(command)
        })
        .collect();
    tenants.iter().for_each(|tenant| drop(tenant.line()));
    let mut command = as_user(USER, &[], &weft());
    command.arg("--runtime-dir").arg(node.path()).args(["top", "--json"]);
    let mut top = Conversation::start(command);
    let look: Value = serde_json::from_str(&top.line()).unwrap();
    let seen = look["vgpus"].to_string();
    assert!(seen.contains("mine") && seen.contains("theirs"), "{look}");
    top.kill();
    let scratch = tempfile::tempdir().unwrap();
    std::fs::set_permissions(scratch.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let traced = |user: u32| {
        let file = scratch.path().join(user.to_string());
        let output = file.display().to_string();
        done(&weft_as(&node, user, &[], &["trace", "--seconds", "1", "--output", &output]));
        std::fs::read_to_string(file).unwrap()
    };
    let (own, all) = (traced(USER), traced(0));
    assert!(own.contains("mine") && !own.contains("theirs"), "{own}");
    assert!(all.contains("mine") && all.contains("theirs"), "{all}");
}

#[test]
fn users_do_not_crowd_administrators_out() {
    if !is_root() {
        return;
    }
    let node = open_node(&[]);
    let holds = "import socket, sys\nheld = []\nfor n in range(300):\n s = \
                 socket.socket(socket.AF_UNIX)\n s.connect(sys.argv[1])\n held.append(s)\n\
                 print('held', flush=True)\nsys.stdin.read()";
    let mut python = as_user(USER, &[], &Command::new("/usr/bin/python3"));
    python.arg("-c").arg(holds).arg(node.path().join("admin.sock"));
    let crowd = Conversation::start(python);
    assert_eq!(crowd.line(), "held");
    refused(&weft_as(&node, USER, &[], &["ls"]), &["16 connections"]);
    done(&weft_as(&node, OTHER_USER, &[], &["ls"]));
    node.admin().list().unwrap();
    let threads = std::fs::read_dir(format!("/proc/{}/task", node.pid())).unwrap().count();
    assert!(threads < 64, "{threads} threads");
}

#[test]
fn a_program_says_nothing_to_another_users_node() {
    if !is_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let listens = "import socket, sys\ns = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n\
                   s.bind(sys.argv[1])\ns.listen()\nprint('listens', flush=True)\n\
                   print(len(s.accept()[0].recv(65536)), flush=True)";
    let path = folder.path().join("tenant.sock");
    let mut python = as_user(USER, &[], &Command::new("/usr/bin/python3"));
    python.arg("-c").arg(listens).arg(&path);
    let squatter = Conversation::start(python);
    assert_eq!(squatter.line(), "listens");
    let node = Node::start(&[]);
    // The shim's folder is there after a run.
    success(node.run(&[], &program("vector_add"), &[]));
    let mut tenant = Command::new(program("vector_add"));
    tenant.env("LD_LIBRARY_PATH", node.path().join("lib")).env("WEFT_SOCKET", &path);
    refused(&finish(tenant), &["user 65534", "tenant.sock"]);
    assert_eq!(squatter.line(), "0", "bytes that it was told");
    // Nor does `weft`.
    let mut users_node = as_user(USER, &[], &weft());
    let dir = folder.path().join("node");
    users_node.args(["node", "--runtime-dir"]).arg(&dir).arg("--set");
    users_node.arg(format!("state_dir={}", dir.join("state").display()));
    let mut users_node = Conversation::start(users_node);
    eventually("the user's node to listen", || dir.join("admin.sock").exists());
    let mut list = weft();
    list.arg("--runtime-dir").arg(&dir).arg("ls");
    refused(&finish(list), &["user 65534"]);
    users_node.kill();
}

/// Runs a shell script in a mount namespace with an empty `/run`, with `$WEFT` and `$ADD` in its
/// environment; `None` where that is not allowed.
fn with_own_run(script: &str) -> Option<Output> {
    if !has_mounts() {
        return None;
    }
    let mut command = Command::new("unshare");
    let script = format!("mount -t tmpfs -o mode=755 tmpfs /run\n{script}");
    command.args(["--mount", "--pid", "--fork", "--kill-child", "sh", "-c", &script]);
    command.env("WEFT", weft().get_program()).env("ADD", program("vector_add"));
    for variable in ["WEFT_SOCKET", "WEFT_RUNTIME_DIR", "WEFT_STATE_DIR"] {
        command.env_remove(variable);
    }
    Some(finish(command))
}

#[test]
fn a_user_finds_the_machines_node_before_starting_one() {
    let script = r#"
        mkdir -p /run/user/0
        export XDG_RUNTIME_DIR=/run/user/0
        "$WEFT" node --set state_dir=/run/state 2>/run/log &
        tries=0
        until [ -S /run/weft/admin.sock ]; do
            sleep 0.05; tries=$((tries + 1)); [ $tries -lt 2000 ] || { cat /run/log; exit 9; }
        done
        as="setpriv --reuid=65534 --regid=65534 --clear-groups env XDG_RUNTIME_DIR=/run/user/9"
        $as "$WEFT" run -- "$ADD" || exit 1
        # A program by itself looks in the same places.
        LD_LIBRARY_PATH=$(ls -d /tmp/weft-65534/lib) $as "$ADD" || exit 2
        "$WEFT" ls
        "$WEFT" stop
        $as "$WEFT" run --no-spawn -- "$ADD" && exit 3
        exit 0
    "#;
    let Some(output) = with_own_run(script) else { return };
    let text = done(&output);
    assert!(text.contains("weft: on node /run/weft, device "), "{text}");
    assert!(!text.contains("starting one"), "{text}");
    assert!(text.contains("user-65534"), "{text}");
    assert!(text.contains("/run/weft/admin.sock or /run/user/9/weft/admin.sock"), "{text}");
}

#[test]
fn a_node_in_use_is_stopped_only_by_force_and_programs_are_told() {
    let mut node = Node::start(&[]);
    let errors = node.path().join("tenant.err");
    let mut tenant = node.run(&["--name", "busy"], &program("idle"), &["60"]);
    tenant.stderr(std::fs::File::create(&errors).unwrap());
    let mut tenant = Conversation::start(tenant);
    eventually("the tenant to attach", || {
        node.admin().list().unwrap().iter().any(|vgpu| vgpu.sessions == 1)
    });
    let stop = |arguments: &[&str]| {
        let mut command = weft();
        command.arg("--runtime-dir").arg(node.path()).arg("stop").args(arguments);
        finish(command)
    };
    let pid = tenant.child.id().to_string();
    refused(&stop(&[]), &["idle", &pid, "busy", "--force"]);
    assert_eq!(node.admin().list().unwrap()[0].sessions, 1);
    done(&stop(&["--force"]));
    // It is told to end when `stop` returns; a program's calls fail when it has.
    node.wait_until_ended();
    assert!(!tenant.wait().success());
    let text = std::fs::read_to_string(&errors).unwrap();
    assert_eq!(
        text.matches("weft: the node was stopped by its administrator").count(),
        1,
        "{text}"
    );
}

#[test]
fn a_program_whose_vgpu_is_removed_is_told() {
    let node = Node::start(&[]);
    let errors = node.path().join("tenant.err");
    let mut tenant = node.run(&["--name", "gone"], &program("idle"), &["60"]);
    tenant.stderr(std::fs::File::create(&errors).unwrap());
    let mut tenant = Conversation::start(tenant);
    eventually("the tenant to attach", || {
        node.admin().list().unwrap().iter().any(|vgpu| vgpu.sessions == 1)
    });
    node.admin().remove("gone", true).unwrap();
    assert!(!tenant.wait().success());
    let text = std::fs::read_to_string(&errors).unwrap();
    assert!(text.contains("vGPU was removed"), "{text}");
}

/// As the control plane asks before it removes vGPUs: nothing that they use is lost.
#[test]
fn a_vgpu_that_is_closed_ends_its_programs_and_lets_nobody_in_until_it_is_removed() {
    let mut node = Node::start(&[]);
    let errors = node.path().join("tenant.err");
    let mut tenant = node.run(&["--name", "gone"], &program("relay"), &["100000000"]);
    tenant.stderr(std::fs::File::create(&errors).unwrap());
    let mut tenant = Conversation::start(tenant);
    let used_ns = |node: &Node| {
        let vgpus = node.admin().list().unwrap();
        vgpus.iter().find(|vgpu| vgpu.name == "gone").map_or(0, |vgpu| vgpu.used_ns)
    };
    eventually("the program to use the device", || used_ns(&node) > 0);
    let close = |node: &Node| {
        let closing = Request::Close { name: "gone".to_owned() };
        let Answer::Vgpu(closed) = node.admin().call(&closing).unwrap() else { panic!() };
        assert_eq!(closed.sessions, 0);
        closed.used_ns
    };
    let before_ns = used_ns(&node);
    let closed_ns = close(&node);
    assert!(closed_ns >= before_ns, "{before_ns} {closed_ns}");
    assert!(!tenant.wait().success());
    let text = std::fs::read_to_string(&errors).unwrap();
    assert!(text.contains("vGPU was removed"), "{text}");
    let run = |node: &Node| finish(node.run(&["--name", "gone"], &program("vector_add"), &[]));
    refused(&run(&node), &["`gone` is being removed", "weft rm gone"]);
    assert_eq!((close(&node), used_ns(&node)), (closed_ns, closed_ns), "nothing was added");
    // Who is started again does not know of it, and whoever asked asks again.
    node.kill();
    node.launch();
    assert_eq!(used_ns(&node), closed_ns);
    assert!(done(&run(&node)).contains("PASSED"));
    node.wait_until_empty();
    assert!(close(&node) > closed_ns);
    node.admin().remove("gone", false).unwrap();
    assert!(done(&run(&node)).contains("PASSED"), "another one of its name");
}

#[test]
fn what_a_run_asks_of_a_vgpu_is_done_or_refused() {
    let node = open_node(&[]);
    let echo = Path::new("echo");
    let run = |flags: &[&str]| finish(node.run(flags, echo, &["started"]));
    done(&run(&["--name", "a", "--weight", "3", "--memory", "64MB"]));
    done(&run(&["--weight", "4"]));
    done(&run(&["--name", "a", "--weight", "5"]));
    let vgpus = || node.admin().list().unwrap();
    let seen = || -> Vec<(u32, u64)> {
        vgpus().iter().map(|vgpu| (vgpu.weight, vgpu.memory_bytes >> 20)).collect()
    };
    assert_eq!(seen(), [(5, 64), (4, 4096)], "{:?}", vgpus());
    done(&run(&["--name", "a", "--memory", "96MiB"]));
    assert_eq!(seen(), [(5, 96), (4, 4096)], "{:?}", vgpus());
    if is_root() {
        let flags = ["run", "--name", "a", "--weight", "9", "--", "echo", "started"];
        let output = weft_as(&node, USER, &[], &flags);
        refused(&output, &["used as it is", "another --name", "user 0"]);
        assert!(!text_of(&output).contains("started"), "{}", text_of(&output));
    }
    let output = run(&["--name", "a b"]);
    refused(&output, &["--name", "team-a"]);
    assert!(output.stdout.is_empty(), "{}", text_of(&output));
}

#[test]
fn turns_and_held_time_outlive_daemons() {
    let mut node = Node::paced(&[]);
    let work = ["step_285us", "0", "--count", "400"];
    let runs: Vec<_> = ["a", "b"]
        .map(|name| node.run(&["--name", name], &program("share"), &work))
        .into_iter()
        .map(|command| std::thread::spawn(move || success(command)))
        .collect();
    for run in runs {
        run.join().unwrap();
    }
    node.wait_until_empty();
    let held = |node: &Node| -> Vec<(u64, u64)> {
        node.admin().list().unwrap().iter().map(|vgpu| (vgpu.held_ns, vgpu.turns)).collect()
    };
    let before = held(&node);
    assert!(before.iter().all(|(held_ns, turns)| *held_ns > 0 && *turns > 0), "{before:?}");
    node.admin().shutdown().unwrap();
    eventually("the daemon to end", || node.client().is_none());
    node.kill();
    node.launch();
    assert_eq!(held(&node), before);
    success(node.run(&["--name", "a"], &program("share"), &work));
    node.wait_until_empty();
    let later = held(&node);
    assert!(later[0].1 > before[0].1 && later[1] == before[1], "{before:?} {later:?}");
    // A killed daemon's last counts are in its saved state.
    let new_turns = later[0].1 - before[0].1;
    eventually("the state to be saved", || {
        let text = std::fs::read(node.path().join("schedule.json")).unwrap_or_default();
        let Ok(state) = serde_json::from_slice::<Value>(&text) else { return false };
        let vgpus = state["core"]["vgpus"].as_array().cloned().unwrap_or_default();
        vgpus.iter().any(|vgpu| vgpu["turns"] == new_turns)
    });
    node.kill();
    node.launch();
    assert_eq!(held(&node), later);
}

#[test]
fn what_is_printed_is_json_where_asked_for() {
    let node = Node::start(&[]);
    let mut tenant = Conversation::start(node.run(&["--name", "seen"], &program("idle"), &["60"]));
    eventually("the tenant to attach", || {
        node.admin().list().unwrap().iter().any(|vgpu| vgpu.sessions == 1)
    });
    let json = |arguments: &[&str]| -> Value {
        let mut command = weft();
        command.arg("--runtime-dir").arg(node.path()).args(arguments);
        serde_json::from_slice(&finish(command).stdout).unwrap()
    };
    let seen = json(&["ls", "--json"])[0].clone();
    assert_eq!(seen["processes"][0]["pid"], tenant.child.id(), "{seen}");
    assert!(seen["share"]["of_device"].is_number(), "{seen}");
    assert_eq!(json(&["policy", "--json"])["policy"], "fair");
    assert!(json(&["doctor", "--json"])["checks"].is_array());
    let metrics = json(&["metrics", "--json"]);
    let of_vgpu = |sample: &&Value| sample["labels"]["vgpu"] == "seen";
    assert!(metrics.as_array().unwrap().iter().find(of_vgpu).is_some(), "{metrics}");
    let mut command = weft();
    command.arg("--runtime-dir").arg(node.path()).args(["top", "--json", "--interval-ms", "50"]);
    let mut top = Conversation::start(command);
    let look: Value = serde_json::from_str(&top.line()).unwrap();
    assert_eq!(look["vgpus"][0]["name"], "seen", "{look}");
    top.kill();
    tenant.kill();
}

#[test]
fn wrong_words_are_answered_with_right_ones() {
    let node = Node::start(&[]);
    let weft = |arguments: &[&str]| {
        let mut command = weft();
        command.arg("--runtime-dir").arg(node.path()).args(arguments);
        finish(command)
    };
    let output = weft(&["policy", "fiar"]);
    refused(&output, &["fiar"]);
    assert_eq!(text_of(&output).matches("round_robin").count(), 1, "{}", text_of(&output));
    refused(&weft(&["create", "a", "--owner", "no-such-user"]), &["no-such-user", "name"]);
    done(&weft(&["create", "a", "--owner", "root", "--memory", "512mb"]));
    refused(&weft(&["create", "b", "--memory", "900GiB"]), &["900GiB", "4GiB"]);
    // Who is refused is in the log.
    done(&weft(&["create", "closed", "--token", "secret"]));
    assert!(!finish(node.run(&["--name", "closed"], &program("vector_add"), &[])).status.success());
    let own = rustix::process::getuid().as_raw();
    let log = node.log();
    let line = log.lines().find(|line| line.contains("tenant refused")).unwrap();
    assert!(line.contains(&format!("uid={own} pid=")), "{line}");
    assert!(node.log().contains("devices=\"gpu0: Weft"), "{}", node.log());
}

#[test]
fn a_configuration_is_checked_without_starting_anything() {
    let node = Node::start(&[]);
    let check = |settings: &[&str]| {
        let mut command = node.command();
        command.arg("--check");
        settings.iter().for_each(|setting| {
            command.args(["--set", setting]);
        });
        finish(command)
    };
    // Beside the daemon that runs there.
    let text = done(&check(&["sockets.admin_mode=660", "sockets.tenant_mode=0600"]));
    for word in ["admin_mode = \"0660\"", "tenant_mode = \"0600\"", "quantum_us = 6000"] {
        assert!(text.contains(word), "no `{word}` in {text}");
    }
    let (open, listen) = ("# warning: sockets.tenant_mode = 0666", "remote.listen=127.0.0.1:0");
    assert!(done(&check(&[listen])).contains(open), "whoever needs no grant is told");
    assert!(!done(&check(&[listen, "sockets.tenant_mode=0600"])).contains(open));
    assert!(!done(&check(&[])).contains(open));
    // 16 TiB are lent, which no disk of a test's has room for.
    let lent = ["device.memory=256GiB", "device.slot=1GiB", "device.oversubscribe=64"];
    let text = done(&check(&[&lent[..], &["device.swap_dir=/tmp"]].concat()));
    for word in ["# warning: device.swap_dir = /tmp", "16TiB are lent", "slack_us = 1000000"] {
        assert!(text.contains(word), "no `{word}` in {text}");
    }
    refused(&check(&[listen, "remote.program=/no/such"]), &["/no/such", "remote.program"]);
    let strange = done(&check(&["remote.listen=192.0.2.1:7600", "sockets.tenant_mode=0600"]));
    assert!(strange.contains("192.0.2.1:7600 is no address of this host"), "{strange}");
    refused(&check(&["metrics.listen=9464"]), &["127.0.0.1:9464"]);
    let slot = check(&["device.memory=64MiB", "device.slot=128MiB"]);
    refused(&slot, &["device.slot", "128MiB", "the device's memory, 64MiB"]);
    refused(&check(&["journal.dir=/etc/passwd"]), &["journal.dir", "is no directory"]);
    refused(&check(&["sockets.admin_group=no-such-group"]), &["no-such-group"]);
    refused(&check(&["journal.dir=/proc/weft"]), &["journal.dir", "cannot write to /proc"]);
    let long = format!("sockets.runtime_dir=/tmp/{}", "d".repeat(100));
    refused(&check(&[&long]), &["105 bytes", "at most 73"]);
    node.admin().node().unwrap();
}
