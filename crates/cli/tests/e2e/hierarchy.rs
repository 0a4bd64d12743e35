//! Tenants, vGPUs and sessions; caps; policies that change under load.

use std::process::Command;
use std::time::Instant;

use crate::support::{Conversation, Node, eventually, finish, program, success, text_of, weft};

/// A user besides the one who runs the tests.
const OTHER_USER: u32 = 65_534;

pub(crate) fn control(node: &Node, arguments: &[&str]) -> Command {
    let mut command = weft();
    command.arg("--runtime-dir").arg(node.path()).args(arguments);
    command
}

/// A saturating tenant.
pub(crate) fn worker(node: &Node, name: &str, weight: &str) -> Conversation {
    let share = ["step_285us", "60", "--window", "0.2"];
    let tenant = Conversation::start(node.run(
        &["--name", name, "--weight", weight],
        &program("share"),
        &share,
    ));
    tenant.line();
    tenant
}

/// The same as another user; the shim's folder must be there already.
fn worker_of_other_user(node: &Node, name: &str) -> Conversation {
    use std::os::unix::fs::PermissionsExt;

    std::fs::set_permissions(node.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = Command::new("setpriv");
    let user = OTHER_USER.to_string();
    command.args([&format!("--reuid={user}"), &format!("--regid={user}"), "--clear-groups"]);
    command.arg(program("share")).args(["step_285us", "60", "--window", "0.2"]);
    command.env("WEFT_SOCKET", node.path().join("tenant.sock")).env("WEFT_VGPU", name);
    command.env("LD_LIBRARY_PATH", node.path().join("lib"));
    let tenant = Conversation::start(command);
    tenant.line();
    tenant
}

/// Waits for a window of a second in which these vGPUs have these shares, within 5 points. A noisy
/// machine may spoil some windows; a wrong scheduler spoils all.
pub(crate) fn expect_shares(node: &Node, expected: &[(&str, f64)]) {
    let mut seen = Vec::new();
    for _ in 0..6 {
        let before = node.admin().stats().unwrap();
        let target_ns = before.closure.busy_ns + 800_000_000;
        let mut after = before.clone();
        eventually("the device to work", || {
            after = node.admin().stats().unwrap();
            after.closure.busy_ns >= target_ns
        });
        let shares = weft_node::admin::shares(&before, &after);
        let of = |name: &str| shares.iter().find(|share| share.vgpu == name).unwrap();
        if expected.iter().all(|(name, part)| (of(name).measured - part).abs() < 0.05) {
            for (name, part) in expected {
                assert!((of(name).expected - part).abs() < 1e-6, "{name}: {shares:?}");
            }
            return;
        }
        seen.push(expected.iter().map(|(name, _)| of(name).measured).collect::<Vec<_>>());
    }
    panic!("never {expected:?} but {seen:?}");
}

#[test]
fn users_divide_the_device_before_their_vgpus_do() {
    let mut node = Node::paced(&["scheduling.share=user"]);
    let mut tenants = vec![worker(&node, "a", "1"), worker(&node, "b", "3")];
    // Of one user alone, vGPUs have the shares of their weights.
    expect_shares(&node, &[("a", 0.25), ("b", 0.75)]);
    tenants.push(worker_of_other_user(&node, "c"));
    // Two vGPUs of one user are no more than one of another's.
    expect_shares(&node, &[("a", 0.125), ("b", 0.375), ("c", 0.5)]);
    let other = OTHER_USER.to_string();
    success(control(&node, &["set", "--tenant", &other, "--weight", "3"]));
    expect_shares(&node, &[("a", 0.0625), ("b", 0.1875), ("c", 0.75)]);
    let listed = success(control(&node, &["ls"]));
    assert!(listed.contains("(w3)"), "{listed}");
    // The weights outlive the daemon, and so do the tags of those who go on.
    node.kill();
    node.launch();
    expect_shares(&node, &[("a", 0.0625), ("b", 0.1875), ("c", 0.75)]);
}

#[test]
fn a_cap_holds_even_on_an_idle_device_and_is_lifted_live() {
    let node = Node::paced(&[]);
    success(control(&node, &["create", "capped", "--cap", "25%"]));
    let _tenant = worker(&node, "capped", "1");
    let used_of_wall = || {
        let (began, before) = (Instant::now(), node.admin().stats().unwrap());
        eventually("a second to pass", || began.elapsed().as_millis() >= 1_000);
        let after = node.admin().stats().unwrap();
        #[expect(clippy::cast_precision_loss, reason = "a ratio")]
        let (used, wall) = (
            (after.vgpus[0].used_ns - before.vgpus[0].used_ns) as f64,
            (after.now_ns - before.now_ns) as f64,
        );
        used / wall
    };
    // A period more or less falls into the second.
    let capped = used_of_wall();
    assert!((0.15..0.32).contains(&capped), "a cap of 25 % left it {capped}");
    assert!(success(control(&node, &["ls"])).contains("25%"));
    success(control(&node, &["set", "capped", "--cap", "none"]));
    eventually("the whole device to be its own", || used_of_wall() > 0.6);
    let wrong = finish(control(&node, &["set", "capped", "--cap", "half"]));
    assert!(!wrong.status.success() && text_of(&wrong).contains("100%"), "{}", text_of(&wrong));
}

/// Who is held back by the cap of its user sees it, whether the user is a tenant of the core or
/// each vGPU has a part of the cap.
#[test]
fn a_vgpu_that_its_users_cap_holds_back_says_so() {
    for (share, field) in [("user", "tenant_cap_ppm"), ("vgpu", "cap_part_ppm")] {
        let uid = rustix::process::getuid().as_raw();
        let cap = format!("limits.users.{uid}.cap=20%");
        let node = Node::paced(&[&format!("scheduling.share={share}"), &cap]);
        success(control(&node, &["create", "asleep"]));
        let _tenant = worker(&node, "held", "1");
        let listed = |arguments: &[&str]| success(control(&node, arguments));
        let mut seen = String::new();
        eventually("a look at a vGPU that waits for its user's next allowance", || {
            seen = listed(&["ls"]);
            seen.contains("capped")
        });
        assert!(seen.contains("20% of user"), "{seen}");
        assert!(seen.find("held") < seen.find("asleep"), "who uses the device first: {seen}");
        let json: serde_json::Value = serde_json::from_str(&listed(&["ls", "--json"])).unwrap();
        assert_eq!((&json[0]["name"], &json[1]["name"]), (&"asleep".into(), &"held".into()));
        assert_eq!(json[1][field], 200_000, "{json}");
        assert!(json[1]["share"]["capped"].is_boolean(), "{json}");
    }
}

#[test]
fn a_process_may_get_more_of_its_vgpu_than_its_siblings() {
    let node = Node::paced(&[]);
    let (first, second) = (worker(&node, "v", "1"), worker(&node, "v", "1"));
    let pid = first.child.id().to_string();
    success(control(&node, &["set", "--process", &pid, "--weight", "3"]));
    // Windows of the two programs themselves: they are of one vGPU, so only they know.
    let launches = |tenant: &Conversation| {
        let line = tenant.line();
        let line: serde_json::Value = serde_json::from_str(&line).unwrap();
        line["window"].as_u64().unwrap()
    };
    eventually("the first to get three times as much", || {
        let (mut one, mut other) = (0, 0);
        for _ in 0..4 {
            one += launches(&first);
            other += launches(&second);
        }
        (2 * other..5 * other).contains(&one)
    });
    let nobody = finish(control(&node, &["set", "--process", "1", "--weight", "3"]));
    assert!(!nobody.status.success() && text_of(&nobody).contains("no session"));
}

#[test]
fn policies_change_under_load_and_nothing_is_lost() {
    const LAUNCHES: u64 = 3000;
    let node = Node::paced(&[]);
    let runs: Vec<_> = [("a", "1"), ("b", "2"), ("c", "3")]
        .iter()
        .map(|(name, weight)| {
            let command = node.run(
                &["--name", name, "--weight", weight],
                &program("share"),
                &["step_285us", "0", "--count", &LAUNCHES.to_string()],
            );
            std::thread::spawn(move || success(command))
        })
        .collect();
    let policies = node.admin().node().unwrap().policies;
    assert!(policies.iter().all(|policy| policy != "strict_co"), "{policies:?}");
    for policy in policies.iter().cycle() {
        if runs.iter().all(std::thread::JoinHandle::is_finished) {
            break;
        }
        assert_eq!(node.admin().set_policy(policy, None).unwrap().policy, *policy);
        let before_ns = node.admin().stats().unwrap().closure.busy_ns;
        eventually("the device to work on, or all to be done", || {
            node.admin().stats().unwrap().closure.busy_ns > before_ns + 50_000_000
                || runs.iter().all(std::thread::JoinHandle::is_finished)
        });
    }
    for run in runs {
        run.join().unwrap();
    }
    node.wait_until_empty();
    let stats = node.admin().stats().unwrap();
    for vgpu in &stats.vgpus {
        assert!(vgpu.used_ns >= LAUNCHES * 285_000, "{vgpu:?}");
    }
    assert!(stats.closure.error() < 0.005, "{:?}", stats.closure);
}

#[test]
fn a_policy_of_the_simulator_is_refused_with_its_reason() {
    let node = Node::start(&[]);
    let output = finish(control(&node, &["policy", "strict_co"]));
    let text = text_of(&output);
    assert!(!output.status.success(), "{text}");
    assert!(text.contains("strict_co") && text.contains("CPU scheduler"), "{text}");
}
