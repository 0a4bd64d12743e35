//! Tenants that compete by foul means beside an honest victim: short versions of `weft bench
//! adversary`, as ratios to the fair share, each with a control that must fail.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use serde_json::Value;

use crate::support::{Conversation, Node, eventually, program, root, success};

/// The victim's user, and the first of the attackers'.
const VICTIM_USER: u32 = 64_001;
const ATTACK_USER: u32 = 64_100;
/// How long an attack lasts.
const SECONDS: u32 = 5;
/// The honest kernel of the model.
const WORK_NS: u64 = 400_000;
/// A victim keeps at least this part of its fair share: the rest is for a noisy machine, and for
/// the kernel that cannot be cut and runs when the attack ends.
const KEPT: f64 = 0.6;
/// A control leaves it less than this.
const LOST: f64 = 0.5;

/// A node on the paced device with kernels a tenth as long as the benchmark's: an attack needs
/// many of them.
fn node(settings: &[&str]) -> Node {
    let model = std::fs::read_to_string(root().join("crates/cli/models/adversary.toml")).unwrap();
    let model = model.replace("1000000000", "100000000").replace("1600000000", "160000000");
    let file = program("adversary").with_file_name(format!("e2e-{}.toml", std::process::id()));
    std::fs::write(&file, model).unwrap();
    let device = format!("device=soft:paced:{}", file.display());
    let mut all = vec![device.as_str(), "scheduling.share=user"];
    all.extend_from_slice(settings);
    open(Node::start(&all))
}

/// Lets other users reach a node and its library.
fn open(node: Node) -> Node {
    std::fs::set_permissions(node.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    success(node.run(&["--name", "first"], &program("vector_add"), &[]));
    node
}

/// `adversary` as a user.
fn tenant(node: &Node, user: u32, name: &str, start: &str, arguments: &[&str]) -> Conversation {
    let mut command = Command::new("setpriv");
    let (what, options) = arguments.split_first().unwrap();
    command.arg(format!("--reuid={user}")).arg(format!("--regid={user}")).arg("--clear-groups");
    command.arg(program("adversary")).arg(what).arg(SECONDS.to_string());
    command.args(options).arg("--start").arg(start);
    command.env("WEFT_SOCKET", node.path().join("tenant.sock")).env("WEFT_VGPU", name);
    command.env("LD_LIBRARY_PATH", node.path().join("lib"));
    Conversation::start(command)
}

/// A moment of the clock that programs wait for, when all have attached.
fn soon() -> String {
    let now = Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap();
    format!("{:.6}", (now + Duration::from_millis(1500)).as_secs_f64())
}

fn report(tenant: &mut Conversation) -> Value {
    let line = tenant.line();
    tenant.wait();
    let report: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(report["verified"], true, "{report}");
    report
}

/// The victim's part of its fair share, half of the device, beside an attack by so many users.
fn kept(node: &Node, victim: &[&str], users: u32, attack: &[&str]) -> f64 {
    let start = soon();
    let mut victim = tenant(node, VICTIM_USER, "victim", &start, victim);
    let mut attackers: Vec<_> = (0..users)
        .map(|number| {
            tenant(node, ATTACK_USER + number, &format!("attacker{number}"), &start, attack)
        })
        .collect();
    let completed = report(&mut victim)["completed"].as_u64().unwrap();
    for attacker in &mut attackers {
        report(attacker);
    }
    let fair = u64::from(SECONDS) * 1_000_000_000 / 2 / WORK_NS;
    #[expect(clippy::cast_precision_loss, reason = "a ratio")]
    let kept = completed as f64 / fair as f64;
    kept
}

#[test]
fn dying_or_leaving_before_the_bill_is_not_free() {
    let attacks: [&[&str]; 3] = [
        &["kill", "--kernel", "second", "--length", "0.1"],
        // Under a new vGPU each time.
        &["kill", "--kernel", "second", "--length", "0.1", "--names"],
        &["leave", "--kernel", "second", "--length", "0.1", "--fraction", "0.1"],
    ];
    for attack in attacks {
        let kept = kept(&node(&[]), &["honest"], 1, attack);
        assert!(kept > KEPT, "{attack:?} left the victim {kept}");
    }
    // Without the gate the same attack robs it.
    let robbed = kept(&node(&["scheduling.policy=unmanaged"]), &["honest"], 1, attacks[0]);
    assert!(robbed < LOST, "unmanaged, the victim kept {robbed}");
}

#[test]
fn who_waits_for_each_kernel_keeps_its_share_beside_kernels_that_cannot_be_cut() {
    for ahead in ["1", "8"] {
        let attack = ["honest", "--kernel", "uncut", "--ahead", ahead];
        let kept = kept(&node(&[]), &["honest", "--sync"], 1, &attack);
        assert!(kept > KEPT, "{ahead} queued left the victim {kept}");
    }
}

#[test]
fn unmanaged_who_waits_for_each_kernel_loses_its_share() {
    let unmanaged = node(&["scheduling.policy=unmanaged"]);
    let attack = ["honest", "--kernel", "uncut", "--ahead", "8"];
    let robbed = kept(&unmanaged, &["honest", "--sync"], 1, &attack);
    assert!(robbed < 0.1, "unmanaged, the victim kept {robbed}");
}

#[test]
fn users_that_one_user_made_are_one_tenant() {
    let scratch = tempfile::tempdir().unwrap();
    let subuid = scratch.path().join("subuid");
    std::fs::write(&subuid, format!("{ATTACK_USER}:{}:100\n", ATTACK_USER + 1)).unwrap();
    let subuid = format!("scheduling.subuid={}", subuid.display());
    let mapped = format!("scheduling.tenants.7={ATTACK_USER}-{}", ATTACK_USER + 99);
    let none = "scheduling.subuid=";
    for settings in [[subuid.as_str()].as_slice(), &[none, &mapped]] {
        let kept = kept(&node(settings), &["honest"], 4, &["honest"]);
        assert!(kept > KEPT, "with {settings:?} the victim kept {kept}");
    }
    let split = kept(&node(&[none]), &["honest"], 4, &["honest"]);
    assert!(split < LOST, "as one of five users the victim kept {split}");
}

#[test]
fn a_tenant_attaches_only_so_often_while_others_have_sessions() {
    let attaches = |rate: &str| {
        let node = node(&[rate]);
        let start = soon();
        let victim = tenant(&node, VICTIM_USER, "victim", &start, &["honest"]);
        let flood = ["attaches", "--rate", "100", "--sessions", "4"];
        let mut flood = tenant(&node, ATTACK_USER, "flood", &start, &flood);
        let attached = report(&mut flood)["rounds"].as_u64().unwrap();
        drop(victim);
        attached
    };
    // Six seconds' worth at once, and so many a second.
    let bound = 2 * (6 + u64::from(SECONDS)) + 2;
    let bounded = attaches("limits.attaches_per_second=2");
    assert!(bounded <= bound, "{bounded} sessions began, {bound} were allowed");
    let free = attaches("limits.attaches_per_second=100000");
    assert!(free > bound, "only {free} sessions began without the limit");
}

/// The nice value of a process's first thread.
fn nice_of(pid: u32) -> Option<i32> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // After the name in parentheses, which may hold anything: state and 15 more.
    text.rsplit_once(')')?.1.split_whitespace().nth(16)?.parse().ok()
}

#[test]
fn large_modules_are_compiled_at_the_lowest_priority_one_at_a_time() {
    let node = open(Node::start(&[]));
    let attack = ["modules", "--sessions", "4"];
    let mut attacker = tenant(&node, ATTACK_USER, "attacker", &soon(), &attack);
    let (mut seen, mut most) = (0, 0);
    eventually("a hundred looks at workers that compile", || {
        let nices: Vec<i32> = node.workers().into_iter().filter_map(nice_of).collect();
        let low = nices.iter().filter(|nice| **nice == 19).count();
        assert!(nices.iter().all(|nice| [0, 19].contains(nice)), "{nices:?}");
        most = most.max(low);
        seen += usize::from(low > 0);
        seen >= 100 || attacker.child.try_wait().unwrap().is_some()
    });
    assert!(seen > 0, "nobody compiled at the lowest priority");
    // Workers are looked at one after the other: one ends compiling while another begins.
    assert!(most <= 2, "{most} sessions of one tenant compiled at once");
    report(&mut attacker);
}
