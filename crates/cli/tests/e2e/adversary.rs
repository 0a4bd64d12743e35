//! Tenants that compete by foul means beside an honest victim: short versions of `weft bench
//! adversary`, as ratios to what the victim gets beside an honest competitor, each with a control
//! that must fail.

use std::cell::RefCell;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use serde::Deserialize;
use serde_json::Value;

use crate::support::{Conversation, Node, eventually, nice_of, program, root, success, weft};

/// The victim's user, and the first of the attackers'.
const VICTIM_USER: u32 = 64_001;
const ATTACK_USER: u32 = 64_100;
/// How long an attack lasts.
const SECONDS: u32 = 2;
/// A victim keeps at least this part of its fair share: the rest is for a noisy machine, and for
/// the kernel that cannot be cut and runs when the attack ends.
const KEPT: f64 = 0.6;
/// A victim that waits for each kernel has this part of its fair share in one run of several: how
/// soon it comes back is up to the machine (where a hypervisor took a fifth of the processors away
/// it kept a third). One that loses what it is owed at some of its pauses had 0.469 of an equal
/// share, one that loses it at each a twelfth at most.
const KEPT_WAITING: f64 = 0.6;
/// A control leaves it less than this.
const LOST: f64 = 0.5;

/// A victim stands still for so many times as long as beside an honest tenant at most, once an
/// operation is over that cannot be cut: figures of seconds of a machine that others use.
const HELD_UP: f64 = 3.0;
/// A kernel takes so many times as long as its steps let expect: another processor, another moment.
const LONGER: f64 = 1.3;

/// A node on the paced device with kernels a tenth as long as the benchmark's: an attack needs
/// many of them.
fn node(settings: &[&str]) -> Node {
    let model = std::fs::read_to_string(root().join("crates/cli/models/adversary.toml")).unwrap();
    let model = model.replace("1000000000", "100000000").replace("1600000000", "160000000");
    // Other processes of this suite write the same, and nobody may read half of it.
    let half = program("adversary").with_file_name(format!("e2e-{}.toml", std::process::id()));
    let file = half.with_file_name("e2e-adversary.toml");
    std::fs::write(&half, model).unwrap();
    std::fs::rename(&half, &file).unwrap();
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

/// `adversary` as a user, ready to begin.
fn tenant(node: &Node, user: u32, name: &str, arguments: &[&str]) -> Conversation {
    tenant_for(SECONDS, node, user, name, arguments)
}

fn tenant_for(
    seconds: u32,
    node: &Node,
    user: u32,
    name: &str,
    arguments: &[&str],
) -> Conversation {
    start(Command::new("setpriv"), seconds, node, user, name, arguments)
}

/// The same by what executes `setpriv`.
fn start(
    mut command: Command,
    seconds: u32,
    node: &Node,
    user: u32,
    name: &str,
    arguments: &[&str],
) -> Conversation {
    let (what, options) = arguments.split_first().unwrap();
    command.arg(format!("--reuid={user}")).arg(format!("--regid={user}")).arg("--clear-groups");
    command.arg(program("adversary")).arg(what).arg(seconds.to_string());
    command.args(options).args(["--start", "-"]);
    command.env("WEFT_SOCKET", node.path().join("tenant.sock")).env("WEFT_VGPU", name);
    command.env("LD_LIBRARY_PATH", node.path().join("lib"));
    let tenant = Conversation::start(command);
    assert_eq!(tenant.line(), "ready");
    tenant
}

fn report(tenant: &mut Conversation) -> Value {
    let line = tenant.line();
    tenant.wait();
    let report: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(report["verified"], true, "{report}");
    report
}

/// What a victim completes beside so many users who do something else.
fn completed(node: &Node, victim: &[&str], users: u32, others: &[&str]) -> f64 {
    observed(node, victim, users, others).completed
}

/// What a victim says of itself.
#[derive(Clone, Copy, Deserialize)]
struct Observed {
    completed: f64,
    /// The longest time in which nothing of it came to its end, in seconds.
    longest_gap: f64,
    /// For how long its kernels were on the device.
    device_seconds: f64,
}

impl Observed {
    /// How long one of its kernels takes, in seconds.
    fn kernel(&self) -> f64 {
        self.device_seconds / self.completed
    }
}

/// What a victim sees beside so many users who do something else.
fn observed(node: &Node, victim: &[&str], users: u32, others: &[&str]) -> Observed {
    let mut victim = tenant(node, VICTIM_USER, "victim", victim);
    let mut others: Vec<_> = (0..users)
        .map(|number| tenant(node, ATTACK_USER + number, &format!("other{number}"), others))
        .collect();
    others.iter_mut().chain([&mut victim]).for_each(|tenant| tenant.say("begin"));
    let observed = serde_json::from_value(report(&mut victim)).unwrap();
    for other in &mut others {
        report(other);
    }
    observed
}

/// What attacks leave of what the victim completes beside an honest competitor.
struct Victim<'a> {
    arguments: &'a [&'a str],
    fair: Observed,
}

impl<'a> Victim<'a> {
    fn beside_an_honest_tenant(arguments: &'a [&'a str]) -> Self {
        Self::beside(arguments, &node(&[]), &["honest"])
    }

    /// Beside somebody who is as honest, on this node.
    fn beside(arguments: &'a [&'a str], node: &Node, other: &[&str]) -> Self {
        let fair = observed(node, arguments, 1, other);
        assert!(fair.completed > 0.0, "nothing was completed beside an honest tenant");
        Self { arguments, fair }
    }

    /// The part that it keeps beside an attack by so many users.
    fn kept(&self, node: &Node, users: u32, attack: &[&str]) -> f64 {
        self.part(&observed(node, self.arguments, users, attack), users, attack)
    }

    /// The part of its fair share that it has completed.
    fn part(&self, seen: &Observed, users: u32, attack: &[&str]) -> f64 {
        let kept = seen.completed / self.fair.completed;
        let (fair, gap, fair_gap) = (self.fair.completed, seen.longest_gap, self.fair.longest_gap);
        eprintln!(
            "{attack:?} by {users}: the victim kept {kept:.3} of {fair}, and stood still for {gap} s \
             where an honest tenant holds it up for {fair_gap} s"
        );
        kept
    }

    /// For how long it may stand still: as long as an honest tenant holds it up, in which there are
    /// a quantum, a kernel and whatever the machine does, times [`HELD_UP`]; and an operation of
    /// the attack that cannot be cut, which is as long as so many of its own kernels.
    fn longest_stall(&self, uncut_kernels: f64) -> f64 {
        HELD_UP * self.fair.longest_gap + LONGER * uncut_kernels * self.fair.kernel()
    }
}

#[test]
fn dying_or_leaving_before_the_bill_is_not_free() {
    let victim = Victim::beside_an_honest_tenant(&["honest"]);
    let attacks: [&[&str]; 3] = [
        &["kill", "--kernel", "second", "--length", "0.1"],
        // Under a new vGPU each time.
        &["kill", "--kernel", "second", "--length", "0.1", "--names"],
        &["leave", "--kernel", "second", "--length", "0.1", "--fraction", "0.1"],
    ];
    for attack in attacks {
        let kept = victim.kept(&node(&[]), 1, attack);
        assert!(kept > KEPT, "{attack:?} left the victim {kept}");
    }
    // Without the gate the same attack robs it, with two kernels a process: sixteen would leave the
    // device work for many times as long as the attack lasts, and the victim waits for its end.
    let few = ["kill", "--kernel", "second", "--length", "0.1", "--ahead", "2"];
    let robbed = victim.kept(&node(&["scheduling.policy=unmanaged"]), 1, &few);
    assert!(robbed < LOST, "unmanaged, the victim kept {robbed}");
}

/// What is left behind on a device that cannot take it back is executed, and nobody beside it:
/// what all are charged is no more than the time that passed.
#[test]
fn what_is_left_behind_occupies_the_device_until_it_is_over() {
    // Longer than a worker's patience with a timeline that nobody vouches for (ADR 16).
    let (node, seconds) = (node(&[]), 8);
    let leaves = ["leave", "--kernel", "second", "--length", "0.1", "--fraction", "0.1"];
    let mut victim = tenant_for(seconds, &node, VICTIM_USER, "victim", &["honest"]);
    let mut attacker = tenant_for(seconds, &node, ATTACK_USER, "other", &leaves);
    let began = Instant::now();
    [&mut attacker, &mut victim].into_iter().for_each(|tenant| tenant.say("begin"));
    report(&mut victim);
    report(&mut attacker);
    node.wait_until_empty();
    let passed_ns = began.elapsed().as_nanos() as f64;
    let charged_ns: u64 = node.admin().list().unwrap().iter().map(|vgpu| vgpu.used_ns).sum();
    assert!(charged_ns as f64 <= 1.02 * passed_ns, "charged {charged_ns} ns in {passed_ns} ns");
    assert!(charged_ns as f64 >= 0.5 * passed_ns, "the device idled");
}

#[test]
fn who_waits_for_each_kernel_keeps_its_share_beside_kernels_that_cannot_be_cut() {
    let victim = Victim::beside_an_honest_tenant(&["honest", "--sync"]);
    let attack = |ahead| ["honest", "--kernel", "uncut", "--ahead", ahead];
    for ahead in ["1", "8"] {
        let kept = (0..5).any(|_| victim.kept(&node(&[]), 1, &attack(ahead)) > KEPT_WAITING);
        assert!(kept, "{ahead} queued left the victim less than {KEPT_WAITING} five times");
        // The control has the same turns, and nobody is owed anything in it: what a kernel took
        // that could not be cut is lost at the first pause.
        let owed_nothing = node(&["scheduling.policy=round_robin"]);
        let lost = victim.kept(&owed_nothing, 1, &attack(ahead));
        assert!(lost < 0.2, "owed nothing, the victim kept {lost} beside {ahead} queued");
    }
    let robbed = victim.kept(&node(&["scheduling.policy=unmanaged"]), 1, &attack("8"));
    assert!(robbed < 0.1, "unmanaged, the victim kept {robbed}");
}

/// An attack on the real clock.
struct RealAttack {
    arguments: &'static [&'static str],
    /// It leaves the victim more than this part of its fair share.
    kept: f64,
    /// What takes the defence away, beside that nobody goes before programs, and less than what it
    /// leaves the victim then.
    control: (&'static [&'static str], f64),
    /// Its longest operation that cannot be cut, in kernels of the victim.
    uncut_kernels: f64,
    /// Whether the victim stands still for longer than it may, too, where the defence is away.
    stalls: bool,
}

impl RealAttack {
    const fn new(arguments: &'static [&'static str], kept: f64) -> Self {
        Self { arguments, kept, control: UNMANAGED, uncut_kernels: 0.0, stalls: false }
    }
}

/// What is left to a victim of one that asks for next to nothing is nearly all of the device, twice
/// what it has beside an honest competitor. Less than this is left where the device idles a third.
const KEPT_OF_ALL: f64 = 1.4;

const UNMANAGED: (&[&str], f64) = (&["scheduling.policy=unmanaged"], LOST);
/// Neither turns nor processors are anybody's in particular.
const UNBOUNDED: [&str; 2] = ["scheduling.policy=unmanaged", "worker.compiling=unbounded"];

const REAL_ATTACKS: [RealAttack; 9] = [
    // Who gives its turns up leaves the victim more than an honest competitor does. Without the
    // gate, too, where its launches are in the way and little else; not if it compiles as much as
    // it likes.
    RealAttack {
        control: (&UNBOUNDED, KEPT_OF_ALL),
        ..RealAttack::new(&["storm", "--sessions", "8"], KEPT_OF_ALL)
    },
    RealAttack {
        stalls: true,
        ..RealAttack::new(&["fills", "--sessions", "1", "--rows", "250000000"], KEPT)
    },
    // Each row is the first touch of a page.
    RealAttack {
        stalls: true,
        ..RealAttack::new(
            &["fills", "--sessions", "1", "--rows", "100000", "--pitch", "4096"],
            KEPT,
        )
    },
    RealAttack {
        stalls: true,
        ..RealAttack::new(
            &["copies", "--sessions", "1", "--rows", "100000", "--pitch", "4096"],
            KEPT,
        )
    },
    // Ordinary memory, to the device and back, and nothing else.
    RealAttack::new(&["pageable", "--sessions", "4", "--rows", "16777216"], KEPT),
    // As long as 25 of the victim's, where the others were nothing.
    RealAttack {
        uncut_kernels: 25.0,
        ..RealAttack::new(&["grow", "--sessions", "1", "--ahead", "60", "--steps", "125000"], KEPT)
    },
    RealAttack {
        stalls: true,
        ..RealAttack::new(
            &["tiny", "--kernel", "tiny", "--sessions", "32", "--steps", "5"],
            KEPT_OF_ALL,
        )
    },
    // Compiling wants no device: without the gate nothing is different.
    RealAttack {
        control: (&["worker.compiling=unbounded"], LOST),
        ..RealAttack::new(&["modules", "--sessions", "16"], 0.9)
    },
    // Without the gate kernels go in the order in which they come, and these are the shortest.
    // Half of what they take is their launch.
    RealAttack {
        control: (&["device.free_launches=true"], 0.65),
        ..RealAttack::new(
            &["graph", "--sessions", "1", "--kernel", "nothing", "--kernels", "1000"],
            0.7,
        )
    },
];

/// Switches, operations that are long or turn long, compilations and launches: on the real clock,
/// where the worker's own time is the device's.
#[test]
fn what_is_no_execution_of_a_kernel_is_not_free() {
    let real = |settings: &[&str]| {
        let mut all = vec!["scheduling.share=user"];
        all.extend_from_slice(settings);
        open(Node::start(&all))
    };
    let honest = ["honest", "--steps", "5000"];
    let measured = || Victim::beside(&honest, &real(&[]), &honest);
    let mut victim = measured();
    // A machine that is taken away for a moment must not decide, nor one that was slower when the
    // victim's fair share was measured.
    let mut is_seen =
        |attempts: u32,
         settings: &[&str],
         attack,
         is_right: &dyn Fn(f64, &Victim<'_>, &Observed) -> bool| {
            (0..attempts).any(|attempt| {
                if attempt > 0 {
                    victim = measured();
                }
                let seen = observed(&real(settings), &honest, 1, attack);
                is_right(victim.part(&seen, 1, attack), &victim, &seen)
            })
        };
    for RealAttack { arguments, kept: least, control, uncut_kernels, stalls } in REAL_ATTACKS {
        let is_held_up = |victim: &Victim<'_>, seen: &Observed| {
            seen.longest_gap > victim.longest_stall(uncut_kernels)
        };
        let kept = is_seen(3, &[], arguments, &|kept, victim, seen| {
            kept > least && !is_held_up(victim, seen)
        });
        assert!(
            kept,
            "{arguments:?} left the victim less than {least}, or held it up, three times"
        );
        let (control, most) = control;
        // What an attack takes on a machine of which others have a part varies more.
        let parts = RefCell::new(Vec::new());
        let settings = [control, ["worker.nice=0"].as_slice()].concat();
        let lost = is_seen(6, &settings, arguments, &|kept, victim, seen| {
            parts.borrow_mut().push(kept);
            kept < most && (!stalls || is_held_up(victim, seen))
        });
        assert!(lost, "with {control:?} {arguments:?} left the victim {most} each time: {parts:?}");
    }
}

/// What a vGPU brings is dear: this much a slot of 4 MiB takes half a millisecond.
const DEAR: [&str; 4] = [
    "device.switch_entry_ns=512",
    "device.slot=4MiB",
    "defaults.memory=64MiB",
    "device.oversubscribe=4",
];
/// Whoever holds the device keeps it, and nobody pays.
const KEPT_FREE: [&str; 2] = ["scheduling.policy=round_robin", "scheduling.yield_us=6000"];

/// Who pauses keeps its turn for as long as its memory took to bring, at its own expense. Where
/// memory fits nothing is brought, and beside three who pause for longer than a turn a victim has
/// most of what it does alone: 0.79 on a quiet machine, and 0.63 to 0.68 on one on which waking
/// somebody takes long.
#[test]
fn who_pauses_where_memory_fits_keeps_no_turn() {
    const PAUSES: [&str; 9] =
        ["tiny", "--kernel", "tiny", "--sessions", "3", "--parts", "5", "--pause", "0.007"];
    let honest = ["honest", "--steps", "5000"];
    let start = |settings: &[&str]| {
        open(Node::start(&[&DEAR[..], &["device.memory=512MiB"], settings].concat()))
    };
    // The machine may be taken away for a moment.
    let kept = |settings: &[&str], is_right: &dyn Fn(f64) -> bool| {
        (0..5).any(|_| {
            let alone = observed(&start(&[]), &honest, 0, &[]);
            let victim = Victim { arguments: &honest, fair: alone };
            is_right(victim.kept(&start(settings), 1, &PAUSES))
        })
    };
    assert!(kept(&[], &|kept| kept > KEPT), "less than {KEPT} five times");
    assert!(kept(&KEPT_FREE, &|kept| kept < LOST), "{KEPT_FREE:?} left it {LOST} five times");
}

/// A program beside a victim, and what lets it begin.
#[derive(Debug)]
struct Other<'a> {
    program: &'a str,
    arguments: &'a [&'a str],
    begin: &'a str,
}

/// The blocks that a program does that works on three quarters of the device, beside so many
/// others.
fn blocks_beside(settings: &[&str], count: u32, other: &Other<'_>) -> f64 {
    let node = Node::start(&[&DEAR[..], &["device.memory=64MiB"], settings].concat());
    let run = |vgpu: &str, name: &str, arguments: &[&str]| {
        let arguments = [arguments, &["--start", "-"]].concat();
        let flags = ["--name", vgpu, "--weight", "1"];
        let program = Conversation::start(node.run(&flags, &program(name), &arguments));
        assert!(program.line().contains("ready"));
        program
    };
    let mut victim = run("victim", "working", &["48", "48", "3"]);
    let attacker = |number| run(&format!("attacker{number}"), other.program, other.arguments);
    let mut attackers: Vec<_> = (0..count).map(attacker).collect();
    attackers.iter_mut().for_each(|attacker| attacker.say(other.begin));
    victim.say("0");
    let said: Value = serde_json::from_str(&victim.line()).unwrap();
    assert_eq!(said["verified"], true, "{said}");
    attackers.iter_mut().for_each(Conversation::kill);
    victim.wait();
    eprintln!("{settings:?} {count} of {other:?}: {said}");
    said["blocks"].as_f64().unwrap()
}

/// Where memory does not fit, a victim does more beside one who pauses than beside one who works as
/// it does. An idle time that was told in the turn after the one that had it left 0.46 of that.
/// Beside three it does as much as beside three who work: while the switches of those who pause
/// were nobody's, they left 0.58 to 0.69 of that.
#[test]
fn who_pauses_where_memory_does_not_fit_pays_for_what_it_keeps() {
    let works = Other { program: "working", arguments: &["48", "48", "4"], begin: "0" };
    let tiny = ["tiny", "4", "--steps", "1000", "--sessions", "1", "--parts", "15"];
    let arguments = [&tiny[..], &["--pause", "0.007"]].concat();
    let pauses = Other { program: "adversary", arguments: &arguments, begin: "begin" };
    let kept = |settings: &[&str], count, is_right: &dyn Fn(f64) -> bool| {
        (0..3).any(|_| {
            let fair = blocks_beside(&[], count, &works);
            is_right(blocks_beside(settings, count, &pauses) / fair)
        })
    };
    assert!(kept(&[], 1, &|kept| kept > 1.0), "less than beside an honest one three times");
    assert!(kept(&KEPT_FREE, 1, &|kept| kept < 0.8), "{KEPT_FREE:?} left it 0.8 three times");
    assert!(kept(&[], 3, &|kept| kept > 0.95), "less than beside three honest ones three times");
    assert!(kept(&KEPT_FREE, 3, &|kept| kept < 0.8), "{KEPT_FREE:?} left it 0.8 of that");
}

/// Whatever names a capped user attaches under. What those leave that have a session and no work
/// is the others'; where the cap is divided, as among vGPUs that compete each for itself, it is
/// nobody's.
#[test]
fn a_users_cap_binds_all_its_vgpus_together() {
    let used = |settings: &[&str], idle: usize| {
        let node = node(settings);
        let names = ["one", "two", "three"];
        let honest = |name: &&str| tenant(&node, ATTACK_USER, name, &["honest"]);
        let mut tenants: Vec<_> = names.iter().map(honest).collect();
        let _idle = tenants.split_off(names.len() - idle);
        let began = Instant::now();
        let charged_ns =
            || -> u64 { node.admin().list().unwrap().iter().map(|vgpu| vgpu.used_ns).sum() };
        let before_ns = charged_ns();
        tenants.iter_mut().for_each(|tenant| tenant.say("begin"));
        for tenant in &mut tenants {
            report(tenant);
        }
        (charged_ns() - before_ns) as f64 / began.elapsed().as_nanos() as f64
    };
    let cap = format!("limits.users.{ATTACK_USER}.cap=20%");
    for idle in [0, 2] {
        let capped = used(&[&cap], idle);
        // They may have an allowance when they begin, and what was in flight.
        assert!((0.15..0.26).contains(&capped), "{idle} idle beside a cap of 20%: {capped}");
    }
    let divided = used(&[&cap, "scheduling.share=vgpu"], 2);
    assert!(divided < 0.12, "a third of a cap of 20%: {divided}");
    let free = used(&[], 0);
    assert!(free > 0.6, "without a cap: {free}");
}

/// What dies before the bill counts for the cap, too: processes killed near the end of their own
/// kernel, under another name each time. A victim that may have all of the device sees it.
#[test]
fn dying_before_the_bill_escapes_no_cap() {
    let dies = ["kill", "--kernel", "second", "--length", "0.1", "--names"];
    let cap = format!("limits.users.{ATTACK_USER}.cap=20%");
    let victim = |settings: &[&str], users| completed(&node(settings), &["honest"], users, &dies);
    let alone = victim(&[], 0);
    let (capped, free) = (victim(&[&cap], 1) / alone, victim(&[], 1) / alone);
    eprintln!("beside a cap of 20 % the victim has {capped} of the device, without it {free}");
    assert!(capped > 0.7, "{capped} beside a cap of 20 %");
    assert!(free < 0.65, "{free} without a cap");
}

#[test]
fn users_that_one_user_made_are_one_tenant() {
    let scratch = tempfile::tempdir().unwrap();
    let subuid = scratch.path().join("subuid");
    std::fs::write(&subuid, format!("{ATTACK_USER}:{}:100\n", ATTACK_USER + 1)).unwrap();
    let subuid = format!("scheduling.subuid={}", subuid.display());
    let mapped = format!("scheduling.tenants.7={ATTACK_USER}-{}", ATTACK_USER + 99);
    let none = "scheduling.subuid=";
    let victim = Victim::beside_an_honest_tenant(&["honest"]);
    for settings in [[subuid.as_str()].as_slice(), &[none, &mapped]] {
        let kept = victim.kept(&node(settings), 4, &["honest"]);
        assert!(kept > KEPT, "with {settings:?} the victim kept {kept}");
    }
    let lost = (0..3).any(|_| victim.kept(&node(&[none]), 6, &["honest"]) < LOST);
    assert!(lost, "as one of seven users the victim kept {LOST} three times");
}

/// A control group of its own, which is removed when nobody is in it any more. None where the
/// system makes none, as in a container without the privilege: that is said, and a failure where
/// `WEFT_TEST_NETWORK` asks for what takes privileges.
struct ControlGroup(PathBuf);

impl ControlGroup {
    fn make(path: &str) -> Option<Self> {
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        let hierarchies = mounts.lines().filter_map(|line| {
            let mut words = line.split(' ').skip(1);
            let folder = words.next()?;
            words.next().filter(|kind| kind.starts_with("cgroup")).map(|_| folder)
        });
        let folders = hierarchies.map(|hierarchy| Path::new(hierarchy).join(path));
        let made = folders.into_iter().find(|folder| std::fs::create_dir_all(folder).is_ok());
        let is_required = std::env::var_os("WEFT_TEST_NETWORK").is_some();
        assert!(made.is_some() || !is_required, "the system makes no control group {path}");
        if made.is_none() {
            eprintln!("not tested: the system makes no control group {path}");
        }
        made.map(Self)
    }

    /// What executes `setpriv` in it.
    fn setpriv(&self) -> Command {
        let mut command = Command::new("sh");
        let script = "echo $$ > \"$0/cgroup.procs\" && exec setpriv \"$@\"";
        command.args(["-c", script]).arg(&self.0);
        command
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        eventually("the control group to be empty", || std::fs::remove_dir(&self.0).is_ok());
    }
}

/// Users whose processes are in one control group, or in one container's, are one tenant where the
/// configuration maps it, as users are that are mapped by number.
#[test]
fn users_in_one_control_group_are_one_tenant() {
    let id = format!("{:012x}", 0x4f1c_0000_0000_u64 + u64::from(std::process::id()));
    let path = format!("docker-{id}.scope");
    let Some(group) = ControlGroup::make(&path) else { return };
    let none = "scheduling.subuid=";
    let victim = Victim::beside_an_honest_tenant(&["honest"]);
    let kept = |mapping: &str, users| {
        let node = node(&[none, mapping]);
        let mut robbed = tenant(&node, VICTIM_USER, "victim", victim.arguments);
        let mut others: Vec<_> = (0..users)
            .map(|number| {
                let (user, name) = (ATTACK_USER + number, format!("other{number}"));
                start(group.setpriv(), SECONDS, &node, user, &name, &["honest"])
            })
            .collect();
        others.iter_mut().chain([&mut robbed]).for_each(|tenant| tenant.say("begin"));
        let seen = serde_json::from_value(report(&mut robbed)).unwrap();
        others.iter_mut().for_each(|other| drop(report(other)));
        victim.part(&seen, users, &[mapping])
    };
    for member in [format!("container:{id}"), format!("cgroup:/{path}")] {
        let kept = kept(&format!("scheduling.tenants.7={member}"), 4);
        assert!(kept > KEPT, "as {member} the others left the victim {kept}");
    }
    // The control: a mapping of another container.
    let other = "scheduling.tenants.7=container:ffffffffffff";
    let lost = (0..3).any(|_| kept(other, 6) < LOST);
    assert!(lost, "as one of seven users the victim kept {LOST} three times");
}

#[test]
fn a_tenant_attaches_only_so_often_while_others_have_sessions() {
    let attaches = |rate: &str| {
        let node = node(&[rate]);
        // It has a session while it is ready.
        let victim = tenant(&node, VICTIM_USER, "victim", &["honest"]);
        let flood = ["attaches", "--rate", "100", "--sessions", "4"];
        let mut flood = tenant(&node, ATTACK_USER, "flood", &flood);
        flood.say("begin");
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

#[test]
fn large_modules_are_compiled_at_the_lowest_priority_one_at_a_time() {
    let node = open(Node::start(&[]));
    let attack = ["modules", "--sessions", "4"];
    let mut attacker = tenant(&node, ATTACK_USER, "attacker", &attack);
    attacker.say("begin");
    let (mut seen, mut most) = (0, 0);
    eventually("a hundred looks at workers that compile", || {
        let nices: Vec<i32> = node.workers().into_iter().filter_map(nice_of).collect();
        let low = nices.iter().filter(|nice| **nice == 19).count();
        most = most.max(low);
        seen += usize::from(low > 0);
        seen >= 100 || attacker.child.try_wait().unwrap().is_some()
    });
    assert!(seen > 0, "nobody compiled at the lowest priority");
    // Workers are looked at one after the other: one ends compiling while another begins.
    assert!(most <= 2, "{most} sessions of one tenant compiled at once");
    report(&mut attacker);
}

/// Programs that keep all processors busy, or their workers, and ask for no device take nothing of
/// it: who has it goes before them.
#[test]
fn who_has_the_device_goes_before_whoever_does_not_ask_for_it() {
    let sessions = (8 * std::thread::available_parallelism().unwrap().get()).to_string();
    // Its program waits for a processor as others do, and has enough queued for that.
    let honest = ["honest", "--steps", "40000"];
    let real = |settings: &[&str]| open(Node::start(settings));
    let victim = Victim::beside(&honest, &real(&[]), &honest);
    for (what, more) in [("memory", ["--rows", "16777216"].as_slice()), ("calls", &[])] {
        let busy = [&[what, "--sessions", &sessions], more].concat();
        let kept = (0..3).any(|_| victim.kept(&real(&[]), 1, &busy) > KEPT_OF_ALL);
        assert!(kept, "{what} left the victim less than {KEPT_OF_ALL} three times");
        let lost = victim.kept(&real(&["worker.nice=0"]), 1, &busy);
        assert!(lost < 1.0, "{what} left it {lost} without precedence");
    }
}

/// How many of a node's workers have not become ready yet: until then they are the daemon's user's.
fn starting(node: &Node) -> usize {
    let is_root = |pid: &u32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        status.lines().any(|line| line.starts_with("Uid:\t0\t"))
    };
    node.workers().iter().filter(|pid| is_root(pid)).count()
}

/// Sixteen workers that start at once take the processors for as long as all of that lasts.
#[test]
fn a_tenants_workers_start_one_after_the_other_while_others_have_sessions() {
    let most_at_once = |has_others: bool| {
        let node = open(Node::start(&["scheduling.share=user"]));
        let other = has_others.then(|| tenant(&node, VICTIM_USER, "victim", &["honest"]));
        // For as long as it takes until all of them have started.
        let attack = ["modules", "--sessions", "16"];
        let mut attacker = tenant_for(SECONDS + 1, &node, ATTACK_USER, "attacker", &attack);
        attacker.say("begin");
        let mut most = 0;
        eventually("all sixteen to start", || {
            most = most.max(starting(&node));
            node.workers().len() == 16 + usize::from(has_others)
        });
        report(&mut attacker);
        drop(other);
        most
    };
    let beside = most_at_once(true);
    assert_eq!(beside, 1, "{beside} workers of one tenant started at once beside another");
    // The control: alone it may start as many as the machine has room for.
    let alone = (0..3).map(|_| most_at_once(false)).max();
    assert!(alone > Some(1), "{alone:?} started at once without others");
}

/// A launch and a module in one batch: the launch waits for a turn, which would come while its
/// worker compiles and sees nothing.
#[test]
fn a_program_that_compiles_holds_no_turn() {
    // Some of a turn is the way to it and from it, and how long that is is up to the machine: one
    // run in three will do. Held while it compiles, it would be as much as the victim's each time.
    let held: Vec<(f64, f64)> = (0..3).map_while(|_| held_beside_a_compiler(&[]).err()).collect();
    assert!(held.len() < 3, "µs held by who compiles, and by the victim: {held:?}");
    // The control: it compiles in its turn.
    let in_turn = ["worker.compiling=in_turn", "scheduling.policy=round_robin"];
    let kept = (0..3).any(|_| held_beside_a_compiler(&in_turn).is_err());
    assert!(kept, "compiling in its turn it held no more than otherwise three times");
}

/// Lets a program that launches and compiles compete with a victim; how long either held the
/// device, in µs, if the former did for more than a third of the latter's time.
fn held_beside_a_compiler(settings: &[&str]) -> Result<(), (f64, f64)> {
    let settings = [&["scheduling.share=user"], settings].concat();
    let node = open(Node::start(&settings));
    let mut victim = tenant(&node, VICTIM_USER, "victim", &["honest", "--steps", "5000"]);
    let storm = ["storm", "--sessions", "1", "--launch", "--steps", "50"];
    let mut attacker = tenant(&node, ATTACK_USER, "attacker", &storm);
    for tenant in [&mut victim, &mut attacker] {
        tenant.say("begin");
    }
    let scratch = tempfile::tempdir().unwrap();
    let file = scratch.path().join("trace.json");
    let mut trace = weft();
    trace.arg("--runtime-dir").arg(node.path()).args(["trace", "--seconds", "2", "--output"]);
    trace.arg(&file);
    success(trace);
    report(&mut victim);
    report(&mut attacker);
    let trace: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let held_us = |name: &str| -> f64 {
        let turns = events.iter().filter(|event| event["name"] == name && event["ph"] == "X");
        turns.filter_map(|turn| turn["dur"].as_f64()).sum()
    };
    let (attacker_us, victim_us) = (held_us("attacker"), held_us("victim"));
    assert!(attacker_us > 0.0 && victim_us > 0.0, "{} events", events.len());
    if 3.0 * attacker_us < victim_us { Ok(()) } else { Err((attacker_us, victim_us)) }
}
