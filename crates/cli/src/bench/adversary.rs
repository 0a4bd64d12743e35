//! `bench adversary`: what a victim loses to tenants that compete by foul means.
//!
//! A victim and an attacker of equal weight share a device. What the victim should get is what it
//! got beside an honest competitor in the same bench, who takes all that it can have; of an
//! attacker that asks for less, what that one leaves. It counts and verifies its own work. Attacks
//! on the device's time run on the paced device, those on processors and predictions on the real
//! clock. There a virtual machine's processors are a tenth slower for seconds on end, so honest
//! competitor and attacker follow each other in short rounds, and figures are the rounds' medians;
//! beside the work stands the time for which the victim's kernels were on the device by their own
//! stamps, which a slower processor does not change. Where the attack is one of many users, victim
//! and attackers are users of their own, which only root can make them: without it these attacks
//! are left out, and their figures with them.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde::Deserialize;
use serde_json::json;
use weft_node::admin::Stats;

use super::document::Document;
use super::tenant::{Host, LEAD, Tenant, common_start};
use super::{Context, least, median, most};

/// Times of the attacks' kernels on the paced device.
const MODEL: &str = include_str!("../../models/adversary.toml");
/// The honest kernel on the real clock takes about this long.
const KERNEL_S: f64 = 0.002;
/// The quantum of a software device.
const QUANTUM_MS: f64 = 6.0;
/// The victim's user, and the first of the attackers'.
const VICTIM_USER: u32 = 64_001;
const ATTACK_USER: u32 = 64_100;
/// A round on the real clock, and how many there are.
const ROUND_S: u64 = 6;
const ROUNDS: u64 = 10;
/// An attack's time on the paced device, which is as fast at any time.
const PACED_S: u64 = ROUND_S * ROUNDS;
/// What a control shows it shows soon.
const CONTROL_S: u64 = 10;
/// Programs end this long after their time at the latest, in seconds: the longest kernel, and what
/// else an attack queued. In a control, what has not ended by then has lost.
const DRAIN: Duration = Duration::from_secs(120);
const DRAIN_CONTROL: Duration = Duration::from_secs(10);

/// An attack, as `adversary` is told to do it.
struct Attack {
    name: &'static str,
    paced: bool,
    arguments: &'static [&'static str],
    /// Length of its kernels on the real clock, in thousandths of the honest kernel's.
    permille: u32,
    /// The longest of its operations that cannot be cut, in ms.
    uncut_ms: u32,
    /// The victim waits for each of its launches.
    sync_victim: bool,
    /// Processes of it, each of a user of its own.
    users: u32,
    settings: &'static [(&'static str, &'static str)],
    /// What makes a control of it, which must fail.
    control: &'static [(&'static str, &'static str)],
    /// As many programs that take processors and ask for nothing of the device; empty where that is
    /// not measured.
    without_device: &'static [&'static str],
}

const UNMANAGED: &[(&str, &str)] = &[("scheduling.policy", "unmanaged")];
/// What is not a kernel's own execution is charged to nobody.
const FREE_LAUNCHES: &[(&str, &str)] = &[("device.free_launches", "true")];
/// Compiling takes as much of the processors as it gets.
const UNBOUNDED: &[(&str, &str)] = &[("worker.compiling", "unbounded")];
/// A session compiles in its turn, and what it holds by that moves no tag that anybody looks at.
const IN_TURN: &[(&str, &str)] =
    &[("worker.compiling", "in_turn"), ("scheduling.policy", "round_robin")];
/// What a vGPU brings is dear, and there is room for all.
const DEAR: &[(&str, &str)] =
    &[("device.memory", "512MiB"), ("device.switch_entry_ns", "512"), ("defaults.memory", "64MiB")];
/// Whoever holds the device keeps it, and nobody pays.
const KEPT_FREE: &[(&str, &str)] =
    &[("scheduling.policy", "round_robin"), ("scheduling.yield_us", "6000")];
/// The attackers' users are one tenant's.
const MAPPED: &[(&str, &str)] =
    &[("scheduling.share", "user"), ("scheduling.tenants.64100", "64100-64199")];
const UNMAPPED: &[(&str, &str)] = &[("scheduling.tenants.64100", "64100")];
const BY_USER: &[(&str, &str)] = &[("scheduling.share", "user")];

impl Attack {
    const fn paced(name: &'static str, arguments: &'static [&'static str]) -> Self {
        Self {
            name,
            paced: true,
            arguments,
            permille: 1_000,
            uncut_ms: 0,
            sync_victim: false,
            users: 0,
            settings: &[],
            control: UNMANAGED,
            without_device: &[],
        }
    }

    const fn real(name: &'static str, permille: u32, arguments: &'static [&'static str]) -> Self {
        Self { paced: false, permille, ..Self::paced(name, arguments) }
    }

    /// What the victim loses in the control. As of the attack, who asks for next to nothing owes
    /// the rest; but where launches are charged to nobody it is not known how much an attacker had.
    fn loss_of_control(&self, seen: &Outcome, fair: &Outcome) -> f64 {
        if self.control == FREE_LAUNCHES { 1.0 - seen.rate / fair.rate } else { seen.loss(fair) }
    }

    /// The same with an operation that cannot be cut.
    const fn uncut(self, uncut_ms: u32) -> Self {
        Self { uncut_ms, ..self }
    }
}

const ATTACKS: &[Attack] = &[
    Attack::paced("kill", &["kill", "--kernel", "second"]).uncut(1_000),
    Attack::real("kill_real", 500_000, &["kill"]).uncut(1_000),
    Attack::paced("leave", &["leave", "--kernel", "second", "--ahead", "2", "--fraction", "0.02"])
        .uncut(1_000),
    Attack {
        users: 1,
        settings: BY_USER,
        ..Attack::paced("rename", &["kill", "--kernel", "second", "--names"]).uncut(1_000)
    },
    Attack::real("storm", 1, &["storm", "--sessions", "8"]),
    Attack {
        // Without turns nobody holds one while it compiles.
        control: IN_TURN,
        ..Attack::real(
            "storm_launch",
            1,
            &["storm", "--sessions", "1", "--launch", "--kernels", "2000"],
        )
    },
    Attack::real(
        "storm_uncut",
        100_000,
        &["storm", "--sessions", "1", "--launch", "--kernel", "uncut", "--kernels", "2000"],
    )
    .uncut(200),
    Attack {
        // Without turns the device goes to who comes first, and most of its time to long kernels.
        control: FREE_LAUNCHES,
        ..Attack::real(
            "graph",
            1,
            &["graph", "--sessions", "1", "--kernel", "nothing", "--kernels", "4000"],
        )
    },
    Attack::real("fills", 1, &["fills", "--sessions", "1", "--rows", "1073741822"]),
    // Each row is the first touch of a page.
    Attack::real("pages", 1, &["fills", "--sessions", "1", "--rows", "250000", "--pitch", "4096"]),
    Attack::real(
        "copies",
        1,
        &["copies", "--sessions", "1", "--rows", "250000", "--pitch", "4096"],
    ),
    // Ordinary memory: staging is work of the worker's that wants a processor and no kernel.
    Attack {
        without_device: &["memory", "--sessions", "8", "--rows", "16777216"],
        ..Attack::real("pageable", 1, &["pageable", "--sessions", "8", "--rows", "16777216"])
    },
    Attack::real("grow", 50_000, &["grow", "--sessions", "1", "--ahead", "1000"]).uncut(100),
    Attack {
        sync_victim: true,
        ..Attack::paced("uncut_one", &["honest", "--kernel", "uncut", "--ahead", "1"]).uncut(1_600)
    },
    Attack {
        sync_victim: true,
        ..Attack::paced("uncut_eight", &["honest", "--kernel", "uncut", "--ahead", "8"])
            .uncut(1_600)
    },
    Attack::real("tiny", 1, &["tiny", "--kernel", "tiny", "--sessions", "32"]),
    Attack {
        // Longer than a turn is, so that whoever kept its turn would idle all of it.
        settings: DEAR,
        control: KEPT_FREE,
        ..Attack::real(
            "pauses",
            1,
            &["tiny", "--kernel", "tiny", "--sessions", "3", "--parts", "5", "--pause", "0.007"],
        )
    },
    Attack {
        // Compiling wants no turn.
        control: UNBOUNDED,
        ..Attack::real("modules", 1, &["modules", "--sessions", "16"])
    },
    Attack {
        users: 1,
        settings: BY_USER,
        control: &[("limits.attaches_per_second", "100000")],
        ..Attack::real("attaches", 1, &["attaches", "--rate", "300"])
    },
    Attack { users: 4, settings: MAPPED, control: UNMAPPED, ..Attack::paced("users", &["honest"]) },
];

pub(crate) fn run(context: &Context) -> Result<Document> {
    let window = if context.quick {
        format!("{ROUND_S} s per attack; one victim, one attacker, equal weights")
    } else {
        format!(
            "{PACED_S} s per attack, on the real clock in {ROUNDS} rounds beside an honest tenant's; \
             controls {CONTROL_S} s; one victim, one attacker, equal weights"
        )
    };
    let mut document = Document::new("adversary", "paced and real", &window);
    context.check_only(ATTACKS.iter().map(|attack| attack.name))?;
    let attacks = ATTACKS.iter().filter(|attack| context.wants(attack.name));
    let bench = Bench { context, steps: calibrate(context)? };
    let mut summary = Summary::default();
    let mut some_void = false;
    let is_root = rustix::process::geteuid().is_root();
    let (able, left_out): (Vec<&Attack>, Vec<&Attack>) =
        attacks.partition(|attack| attack.users == 0 || is_root);
    for attack in able {
        let figures = ["loss", "stall_ms", "stall_beyond_ms", "utilization", "unpaid", "charged"];
        let figures = figures.map(|figure| format!("{figure}_{}", attack.name));
        let Some(rounds) = document.held(bench.rounds(attack, Side::Attack), figures)? else {
            some_void = true;
            continue;
        };
        let control = bench.run(attack, Side::Control, bench.seconds_of_control())?;
        summary.tell(&mut document, attack, &rounds, &control);
        if !attack.without_device.is_empty() {
            let without = bench.rounds(attack, Side::WithoutDevice)?;
            document.figure(format!("rate_{}", attack.name), rounds.rate());
            document.baseline(format!("rate_without_device_{}", attack.name), without.rate());
        }
    }
    summary.sum_up(&mut document);
    if some_void {
        document.void_with_rows(OF_ALL);
    }
    for attack in &left_out {
        let name = format!("loss_{}", attack.name);
        document.leave_out([name.as_str()], "it is of several users, which only root can make");
    }
    if !left_out.is_empty() {
        let of_all = OF_ALL.into_iter().chain(OF_REAL);
        document.leave_out(of_all, "an attack that they are of was left out");
    }
    Ok(document)
}

/// What is said of all attacks together, those on a paced device included.
const OF_ALL: [&str; 5] = [
    "victim_loss_max",
    "victim_loss_median",
    "utilization_min",
    "stall_beyond_ms_max",
    "victim_loss_control",
];

/// What is said of all attacks on the real clock.
const OF_REAL: [&str; 3] = ["victim_time_loss_max", "switch_us", "launch_us"];

/// What the attacks have in common, one value an attack.
#[derive(Default)]
struct Summary {
    losses: Vec<f64>,
    time_losses: Vec<f64>,
    switches_us: Vec<f64>,
    launches_us: Vec<f64>,
    utilizations: Vec<f64>,
    stalls_beyond_ms: Vec<f64>,
    controls: Vec<f64>,
}

impl Summary {
    fn tell(
        &mut self,
        document: &mut Document,
        attack: &Attack,
        rounds: &Rounds,
        control: &Outcome,
    ) {
        let name = attack.name;
        let losses = rounds.each(|fair, robbed| robbed.loss(fair));
        self.losses.push(median(&losses));
        document.figure(format!("loss_{name}"), median(&losses));
        if !attack.paced {
            document.row(json!({ "attack": name, "losses": losses }));
            let of_time = median(&rounds.each(|fair, robbed| robbed.time_loss(fair)));
            self.time_losses.push(of_time);
            self.switches_us.push(rounds.medians(|seen| seen.switch_us).fair);
            self.launches_us.push(rounds.medians(|seen| seen.launch_us).fair);
            document.figure(format!("time_loss_{name}"), of_time);
        }
        let stall_ms = rounds.most(|seen| seen.stall_ms);
        let beyond_ms = stall_ms.robbed - f64::from(attack.uncut_ms) - QUANTUM_MS;
        self.stalls_beyond_ms.push(beyond_ms);
        document.figure(format!("stall_ms_{name}"), stall_ms.robbed);
        document.baseline(format!("stall_ms_{name}"), stall_ms.fair);
        document.figure(format!("stall_beyond_ms_{name}"), beyond_ms);
        let utilization = rounds.medians(|seen| seen.utilization);
        self.utilizations.push(utilization.robbed);
        document.figure(format!("utilization_{name}"), utilization.robbed);
        document.baseline(format!("utilization_{name}"), utilization.fair);
        document.figure(format!("unpaid_{name}"), rounds.medians(|seen| seen.unpaid).robbed);
        let charged = rounds.medians(|seen| seen.charged);
        document.figure(format!("charged_{name}"), charged.robbed);
        document.baseline(format!("charged_{name}"), charged.fair);
        let lost = median(&rounds.each(|fair, _| attack.loss_of_control(control, fair)));
        self.controls.push(lost);
        document.control(format!("loss_{name}"), lost);
    }

    fn sum_up(&self, document: &mut Document) {
        document.figure("victim_loss_max", most(&self.losses));
        document.figure("victim_loss_median", median(&self.losses));
        if !self.time_losses.is_empty() {
            document.figure("victim_time_loss_max", most(&self.time_losses));
            // The simulator's `real_switch` and `real_launch`.
            document.baseline("switch_us", median(&self.switches_us));
            document.baseline("launch_us", median(&self.launches_us));
        }
        document.figure("utilization_min", least(&self.utilizations));
        document.figure("stall_beyond_ms_max", most(&self.stalls_beyond_ms));
        document.figure("victim_loss_control", least(&self.controls));
    }
}

/// Steps of the honest kernel on the real clock.
fn calibrate(context: &Context) -> Result<u64> {
    #[derive(Deserialize)]
    struct Calibrated {
        steps: u64,
    }
    let host = Host::node(false, &[])?;
    let mut command = context.program("adversary");
    command.arg("calibrate").arg(KERNEL_S.to_string());
    let lines = host.start("calibrate", 1, command)?.finish()?;
    let last = lines.into_iter().last().context("the calibration printed nothing")?;
    Ok(serde_json::from_value::<Calibrated>(last)?.steps)
}

/// The vGPU that is robbed.
const VICTIM: &str = "victim";

/// Whom the victim competes with.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Honest,
    Attack,
    Control,
    WithoutDevice,
}

/// What became of the victim.
struct Outcome {
    /// Launches that it completed a second.
    rate: f64,
    /// The part of the time for which its kernels were on the device by their own stamps.
    on_device: f64,
    stall_ms: f64,
    /// Device time that was busy per wall time.
    utilization: f64,
    /// Wall time that was charged to nobody per wall time.
    unpaid: f64,
    /// Device time that was charged to the victim per wall time.
    charged: f64,
    /// Wall time that was charged to nobody, by turns, in µs.
    switch_us: f64,
    /// What was charged for one of the victim's kernels beyond the time for which it was on the
    /// device by its own stamps, in µs.
    launch_us: f64,
}

impl Outcome {
    /// What is the victim's, max-min, in parts of what it had beside an honest competitor
    /// (`fair`): at least that, and of an attacker that has less than its half what is left of the
    /// time that the device was busy then.
    fn due(&self, fair: &Self) -> f64 {
        let attacker = (self.utilization - self.charged).max(0.0);
        let left = (fair.utilization - attacker) / fair.charged;
        // Nothing was charged in a window in which nothing ran: no attack tells anything then.
        if left.is_finite() { left.max(1.0) } else { 1.0 }
    }

    /// What it lost of the work of its share; below 0 if it did more.
    fn loss(&self, fair: &Self) -> f64 {
        1.0 - self.rate / (fair.rate * self.due(fair))
    }

    /// What it lost of the device's time. What it lost beyond that is no turn that somebody else
    /// had, but a slower processor.
    fn time_loss(&self, fair: &Self) -> f64 {
        1.0 - self.on_device / (fair.on_device * self.due(fair))
    }
}

/// A figure beside an honest competitor and beside the attacker.
struct Sides {
    fair: f64,
    robbed: f64,
}

/// What became of it beside an honest competitor and, right after that, beside the attacker.
struct Rounds(Vec<(Outcome, Outcome)>);

impl Rounds {
    fn each(&self, of: impl Fn(&Outcome, &Outcome) -> f64) -> Vec<f64> {
        self.0.iter().map(|(fair, robbed)| of(fair, robbed)).collect()
    }

    /// What it completed, over what it completed beside an honest competitor.
    fn rate(&self) -> f64 {
        median(&self.each(|fair, robbed| robbed.rate / fair.rate))
    }

    fn sides(&self, of: impl Fn(&Outcome) -> f64, sum_up: impl Fn(&[f64]) -> f64) -> Sides {
        Sides {
            fair: sum_up(&self.each(|fair, _| of(fair))),
            robbed: sum_up(&self.each(|_, robbed| of(robbed))),
        }
    }

    fn medians(&self, of: impl Fn(&Outcome) -> f64) -> Sides {
        self.sides(of, median)
    }

    fn most(&self, of: impl Fn(&Outcome) -> f64) -> Sides {
        self.sides(of, most)
    }
}

/// What `adversary honest` reports.
#[derive(Deserialize)]
struct Victim {
    completed: u64,
    longest_gap: f64,
    device_seconds: f64,
}

struct Bench<'a> {
    context: &'a Context,
    steps: u64,
}

impl Bench<'_> {
    /// Rounds beside an honest competitor and, right after it, beside this side.
    fn rounds(&self, attack: &Attack, side: Side) -> Result<Rounds> {
        let (rounds, seconds) = match (self.context.quick, attack.paced) {
            (true, _) => (1, ROUND_S),
            (false, true) => (1, PACED_S),
            (false, false) => (ROUNDS, ROUND_S),
        };
        let both = |_| {
            let fair = self.run(attack, Side::Honest, seconds)?;
            Ok((fair, self.run(attack, side, seconds)?))
        };
        (0..rounds).map(both).collect::<Result<_>>().map(Rounds)
    }

    const fn seconds_of_control(&self) -> u64 {
        if self.context.quick { ROUND_S } else { CONTROL_S }
    }

    /// On a paced device it counts only if the device kept to its model; a control's need not.
    fn run(&self, attack: &Attack, side: Side, seconds: u64) -> Result<Outcome> {
        let start = || Self::host(attack, side);
        let observe = |host: &Host| self.observe(host, attack, side, seconds);
        if attack.paced && side != Side::Control {
            return Host::again(self.context, start, observe);
        }
        observe(&start()?)
    }

    fn host(attack: &Attack, side: Side) -> Result<Host> {
        let mut settings = attack.settings.to_vec();
        if side == Side::Control {
            settings.extend_from_slice(attack.control);
        }
        let host = Host::node_with(attack.paced.then_some(MODEL), &settings)?;
        if attack.users > 0 {
            // So that other users reach its socket.
            let everyone = std::fs::Permissions::from_mode(0o755);
            std::fs::set_permissions(host.daemon()?.path(), everyone)?;
        }
        Ok(host)
    }

    fn observe(&self, host: &Host, attack: &Attack, side: Side, seconds: u64) -> Result<Outcome> {
        let start = common_start();
        let begins = Instant::now() + LEAD;
        let time = Time { start: &start, seconds };
        let victim = self.start_victim(host, attack, time)?;
        let others = self.start_others(host, attack, side, time)?;
        let (before, after) = watch(host, begins, Duration::from_secs(seconds))?;
        let limit = if side == Side::Control { DRAIN_CONTROL } else { DRAIN };
        let victim = match victim.finish_within(limit) {
            Ok(lines) => {
                let last = lines.into_iter().last().context("the victim printed nothing")?;
                serde_json::from_value(last)?
            }
            // Without the defence its queue may be behind minutes of abandoned work.
            Err(_) if side == Side::Control => Victim {
                completed: 0,
                longest_gap: Duration::from_secs(seconds).as_secs_f64(),
                device_seconds: 0.0,
            },
            Err(error) => return Err(error),
        };
        for other in others {
            other.finish_within(DRAIN)?;
        }
        Ok(outcome(&victim, Duration::from_secs(seconds), &before, &after))
    }

    fn start_victim(&self, host: &Host, attack: &Attack, time: Time<'_>) -> Result<Tenant> {
        let sync: &[&str] = if attack.sync_victim { &["--sync"] } else { &[] };
        let mut command = self.command(attack, &["honest"], 1_000, time);
        command.args(sync);
        if attack.users > 0 {
            command.uid(VICTIM_USER).gid(VICTIM_USER);
        }
        host.start(VICTIM, 1, command)
    }

    fn start_others(
        &self,
        host: &Host,
        attack: &Attack,
        side: Side,
        time: Time<'_>,
    ) -> Result<Vec<Tenant>> {
        let processes = if side == Side::Honest { 1 } else { attack.users.max(1) };
        (0..processes)
            .map(|number| {
                let mut command = match side {
                    Side::Honest => self.command(attack, &["honest"], 1_000, time),
                    Side::Attack | Side::Control => {
                        self.command(attack, attack.arguments, attack.permille, time)
                    }
                    Side::WithoutDevice => {
                        self.command(attack, attack.without_device, attack.permille, time)
                    }
                };
                if attack.users > 0 {
                    command.uid(ATTACK_USER + number).gid(ATTACK_USER + number);
                }
                host.start(&format!("attacker{number}"), 1, command)
            })
            .collect()
    }

    /// `adversary` with what it does, for how long, and how long its kernels are.
    fn command(
        &self,
        attack: &Attack,
        arguments: &[&str],
        permille: u32,
        time: Time<'_>,
    ) -> Command {
        let steps = self.steps * u64::from(permille) / 1_000;
        let steps = if attack.paced { 1 } else { steps.max(1) };
        let mut command = self.context.program("adversary");
        command.args(arguments.first()).arg(time.seconds.to_string());
        command.args(arguments.get(1..).unwrap_or_default());
        command.arg("--start").arg(time.start).arg("--steps").arg(steps.to_string());
        command
    }
}

/// When a tenant begins, as its program is told, and for how long it works.
#[derive(Clone, Copy)]
struct Time<'a> {
    start: &'a str,
    seconds: u64,
}

/// The node's totals when the window begins and when it ends.
fn watch(host: &Host, begins: Instant, window: Duration) -> Result<(Stats, Stats)> {
    let mut node = host.daemon()?.sockets().connect()?;
    std::thread::sleep(begins.saturating_duration_since(Instant::now()));
    let before = node.stats()?;
    std::thread::sleep((begins + window).saturating_duration_since(Instant::now()));
    Ok((before, node.stats()?))
}

#[expect(clippy::cast_precision_loss, reason = "ratios of minutes")]
fn outcome(victim: &Victim, window: Duration, before: &Stats, after: &Stats) -> Outcome {
    let wall_ns = after.now_ns.saturating_sub(before.now_ns).max(1) as f64;
    let busy_ns = after.closure.busy_ns.saturating_sub(before.closure.busy_ns) as f64;
    let charged_ns = after.closure.charged_ns.saturating_sub(before.closure.charged_ns) as f64;
    let turns = |stats: &Stats| stats.vgpus.iter().map(|vgpu| vgpu.turns).sum::<u64>();
    let turns = turns(after).saturating_sub(turns(before)).max(1) as f64;
    let of_victim = |stats: &Stats| {
        let victim = stats.vgpus.iter().find(|vgpu| vgpu.name == VICTIM);
        victim.map_or(0, |victim| victim.used_ns)
    };
    let of_victim_ns = of_victim(after).saturating_sub(of_victim(before)) as f64;
    let (completed, device_s) = (victim.completed as f64, victim.device_seconds);
    Outcome {
        rate: completed / window.as_secs_f64(),
        on_device: device_s / window.as_secs_f64(),
        stall_ms: victim.longest_gap * 1e3,
        utilization: busy_ns / wall_ns,
        unpaid: 1.0 - charged_ns / wall_ns,
        charged: of_victim_ns / wall_ns,
        switch_us: (wall_ns - charged_ns) / turns / 1e3,
        launch_us: (of_victim_ns / 1e3 - device_s * 1e6) / completed.max(1.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A victim that has this part of the device, and does as much of its work.
    fn seen(victim: f64, utilization: f64) -> Outcome {
        let (stall_ms, unpaid, switch_us, launch_us) = (6.0, 0.0, 30.0, 2.0);
        let (rate, on_device, charged) = (500.0 * victim, victim, victim);
        Outcome { rate, on_device, stall_ms, utilization, unpaid, charged, switch_us, launch_us }
    }

    /// Short kernels between pauses idle a third of the device: more than half is left, and less
    /// than is due.
    #[test]
    fn who_idles_the_device_robs_the_victim_though_it_has_more_than_half() {
        let fair = seen(0.495, 0.99);
        let (idled, modest) = (seen(0.645, 0.65), seen(0.89, 0.99));
        for loss in [idled.loss(&fair), idled.time_loss(&fair)] {
            assert!(loss > 0.3, "{loss}");
        }
        // The control: it has what it asks for and idles nothing.
        assert!(modest.loss(&fair).abs() < 0.01, "{}", modest.loss(&fair));
        assert!(seen(0.3, 0.99).loss(&fair) > 0.39, "an attacker that has more than half");
    }
}
