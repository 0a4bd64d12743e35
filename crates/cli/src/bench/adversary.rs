//! `bench adversary`: what a victim loses to tenants that compete by foul means.
//!
//! A victim and an attacker of equal weight share a device. What the victim should get is what it
//! got beside an honest competitor in the same bench, who takes all that it can have; of an
//! attacker that asks for less, what that one leaves. It counts and verifies its own work. Attacks
//! on the device's time run on the paced device, those on processors and predictions on the real
//! clock. There a virtual machine's processors are a tenth slower for seconds on end, so honest
//! competitor and attacker follow each other in short rounds, every second one the other way round,
//! and figures are the rounds' medians with their standard errors; beside the work stands the time
//! for which the victim's kernels were on the device by their own stamps, which a slower processor
//! does not change. An honest tenant in the attacker's place (`none`) is measured as attacks are:
//! what the victim loses to it is the method's. Where the attack is one of many users, victim
//! and attackers are users of their own, which only root can make them: without it these attacks
//! are left out, and their figures with them.

mod attacks;
mod losses;
mod summary;

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use rustix::thread::CpuSet;
use serde::Deserialize;
use serde_json::Value;
use weft_node::admin::{Stats, VgpuReport};

use self::attacks::{ATTACKS, Attack, HONEST, NOBODY_FIRST, StandIn};
use self::losses::{Outcome, Rounds};
use self::summary::{OF_ALL, OF_EACH, OF_REAL, Summary, tell_stand_in};
use super::Context;
use super::affinity::{on, processors};
use super::document::Document;
use super::tenant::{Host, LEAD, Tenant, common_start};

/// Times of the attacks' kernels on the paced device.
const MODEL: &str = include_str!("../../models/adversary.toml");
/// The honest kernel on the real clock takes about this long.
const KERNEL_S: f64 = 0.002;
/// The quantum of a software device.
const QUANTUM_MS: f64 = 6.0;
/// The victim's user, and the first of the attackers'.
const VICTIM_USER: u32 = 64_001;
const ATTACK_USER: u32 = 64_100;
/// A round on the real clock, and how many there are: as many either way round.
const ROUND_S: u64 = 6;
const ROUNDS: u64 = 8;
/// An attack's time on the paced device, which is as fast at any time.
const PACED_S: u64 = 60;
/// For how long launches are counted that are nothing else.
const LAUNCHES_S: u64 = 3;
/// What a control shows it shows soon.
const CONTROL_S: u64 = 10;
/// Programs end this long after their time at the latest, in seconds: the longest kernel, and what
/// else an attack queued. In a control, what has not ended by then has lost.
const DRAIN: Duration = Duration::from_secs(120);
const DRAIN_CONTROL: Duration = Duration::from_secs(10);

pub(crate) fn run(context: &Context) -> Result<Document> {
    let window = if context.quick {
        format!("{ROUND_S} s per attack; one victim, one attacker, equal weights")
    } else {
        format!(
            "{PACED_S} s per attack, on the real clock {ROUNDS} rounds of {ROUND_S} s before or \
             after an honest tenant's; controls {CONTROL_S} s; one victim, one attacker, equal \
             weights"
        )
    };
    let mut document = Document::new("adversary", "paced and real", &window);
    context.check_only(ATTACKS.iter().map(|attack| attack.name))?;
    let attacks = ATTACKS.iter().filter(|attack| context.wants(attack.name));
    let apart = if context.apart { Some(Apart::of_this_process()?) } else { None };
    let bench = Bench { context, steps: calibrate(context)?, apart };
    document.baseline("launch_us", launch_us(context)?);
    let mut summary = Summary::default();
    let mut some_void = false;
    let is_root = rustix::process::geteuid().is_root();
    let (able, left_out): (Vec<&Attack>, Vec<&Attack>) =
        attacks.partition(|attack| attack.users == 0 || is_root);
    for attack in able {
        let figures = OF_EACH.map(|figure| format!("{figure}_{}", attack.name));
        let Some(seen) = document.held(bench.rounds(attack), figures)? else {
            some_void = true;
            continue;
        };
        summary.tell(&mut document, attack, &seen.attack);
        if !attack.is_none() {
            let control = bench.run(attack, Side::Control, bench.seconds_of_control())?;
            summary.tell_control(&mut document, attack, &seen.attack, &control);
        }
        for (stand_in, rounds) in &seen.stand_ins {
            tell_stand_in(&mut document, attack, *stand_in, rounds);
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

/// What a launch costs beyond its kernel, in µs: what a program that has the device alone is
/// charged for the shortest kernels, less the time for which they were there by their own stamps.
/// The simulator's `real_launch`.
#[expect(clippy::cast_precision_loss, reason = "a ratio")]
fn launch_us(context: &Context) -> Result<f64> {
    let host = Host::node(false, &[])?;
    let mut command = context.program("adversary");
    command.args(HONEST).arg(LAUNCHES_S.to_string()).args(["--steps", "1"]);
    let lines = host.start(VICTIM, 1, command)?.finish()?;
    let last = lines.into_iter().last().context("the program printed nothing")?;
    // What it is charged is of all its launches, and its stamps are of those within its time.
    let launches = last.get("launches").and_then(Value::as_u64).unwrap_or_default().max(1) as f64;
    let seen: Victim = serde_json::from_value(last)?;
    let stats = host.daemon()?.sockets().connect()?.stats()?;
    let used_ns: u64 = stats.vgpus.iter().map(|vgpu| vgpu.used_ns).sum();
    Ok(used_ns as f64 / 1e3 / launches - seen.device_seconds * 1e6 / seen.completed.max(1) as f64)
}

/// The vGPU that is robbed.
const VICTIM: &str = "victim";

/// Whom the victim competes with.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Honest,
    Attack,
    Control,
    StandIn(StandIn),
}

/// What became of the victim beside an attacker, and beside what stands in its place, in the same
/// rounds.
struct Seen {
    attack: Rounds,
    stand_ins: Vec<(StandIn, Rounds)>,
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
    apart: Option<Apart>,
}

/// A device with a processor of its own.
struct Apart {
    processor: String,
    others: CpuSet,
}

impl Apart {
    fn of_this_process() -> Result<Self> {
        let (others, last) = processors()?;
        Ok(Self { processor: last.to_string(), others })
    }
}

impl Bench<'_> {
    /// Rounds beside an honest competitor and, one after the other, beside the attacker and what
    /// stands in its place.
    fn rounds(&self, attack: &Attack) -> Result<Seen> {
        let (rounds, seconds) = match (self.context.quick, attack.paced) {
            (true, _) => (1, ROUND_S),
            (false, true) => (1, PACED_S),
            (false, false) => (ROUNDS, ROUND_S),
        };
        let stand_ins = attack.stand_ins.iter().copied();
        let mut sides = vec![Side::Honest, Side::Attack];
        sides.extend(stand_ins.clone().map(Side::StandIn));
        let all: Vec<Vec<Outcome>> = (0..rounds)
            .map(|round| each_way(round, &sides, |side| self.run(attack, side, seconds)))
            .collect::<Result<_>>()?;
        let beside = |place: usize| {
            Rounds::new(all.iter().filter_map(|seen| Some((*seen.first()?, *seen.get(place)?))))
        };
        Ok(Seen { attack: beside(1), stand_ins: stand_ins.zip((2..).map(beside)).collect() })
    }

    const fn seconds_of_control(&self) -> u64 {
        if self.context.quick { ROUND_S } else { CONTROL_S }
    }

    /// On a paced device it counts only if the device kept to its model; a control's need not.
    fn run(&self, attack: &Attack, side: Side, seconds: u64) -> Result<Outcome> {
        let start = || self.host(attack, side);
        let observe = |host: &Host| self.observe(host, attack, side, seconds);
        if attack.paced && side != Side::Control {
            return Host::again(self.context, start, observe);
        }
        observe(&start()?)
    }

    fn host(&self, attack: &Attack, side: Side) -> Result<Host> {
        let mut settings = attack.settings.to_vec();
        if let Some(apart) = self.apart(side) {
            settings.push(("device.processors", &apart.processor));
        }
        if side == Side::Control {
            settings.extend_from_slice(attack.control);
            settings.extend_from_slice(NOBODY_FIRST);
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
        let victim = self.start_victim(host, attack, side, time)?;
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

    fn start_victim(
        &self,
        host: &Host,
        attack: &Attack,
        side: Side,
        time: Time<'_>,
    ) -> Result<Tenant> {
        let sync: &[&str] = if attack.sync_victim { &["--sync"] } else { &[] };
        let mut command = self.command(attack, HONEST, 1_000, time);
        command.args(sync);
        if attack.users > 0 {
            command.uid(VICTIM_USER).gid(VICTIM_USER);
        }
        self.start(host, side, VICTIM, command)
    }

    /// The processor that the device has to itself. In a control nothing is anybody's.
    fn apart(&self, side: Side) -> Option<&Apart> {
        self.apart.as_ref().filter(|_| side != Side::Control)
    }

    /// Starts a program where the device is not, if it has a processor of its own.
    fn start(&self, host: &Host, side: Side, name: &str, command: Command) -> Result<Tenant> {
        match self.apart(side) {
            Some(apart) => on(&apart.others, || host.start(name, 1, command)),
            None => host.start(name, 1, command),
        }
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
                    Side::Honest => self.command(attack, HONEST, 1_000, time),
                    Side::Attack | Side::Control => {
                        self.command(attack, attack.arguments, attack.permille, time)
                    }
                    Side::StandIn(stand_in) => {
                        self.command(attack, stand_in.arguments, attack.permille, time)
                    }
                };
                if attack.users > 0 {
                    command.uid(ATTACK_USER + number).gid(ATTACK_USER + number);
                }
                self.start(host, side, &format!("attacker{number}"), command)
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

/// What comes of this with each side, one after the other; in every second round the last one comes
/// first, so that what changes with time is on no side.
fn each_way<S: Copy, T>(
    round: u64,
    sides: &[S],
    mut run: impl FnMut(S) -> Result<T>,
) -> Result<Vec<T>> {
    if round.is_multiple_of(2) {
        return sides.iter().copied().map(run).collect();
    }
    let mut seen = sides.iter().rev().map(|side| run(*side)).collect::<Result<Vec<T>>>()?;
    seen.reverse();
    Ok(seen)
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
    let of = |is_victim: bool, of: fn(&VgpuReport) -> u64| {
        let sum = |stats: &Stats| {
            let vgpus = stats.vgpus.iter().filter(|vgpu| (vgpu.name == VICTIM) == is_victim);
            vgpus.map(of).sum::<u64>()
        };
        sum(after).saturating_sub(sum(before)) as f64
    };
    let of_victim_ns = of(true, |vgpu| vgpu.used_ns);
    let (completed, device_s) = (victim.completed as f64, victim.device_seconds);
    Outcome {
        rate: completed / window.as_secs_f64(),
        on_device: device_s / window.as_secs_f64(),
        stall_ms: victim.longest_gap * 1e3,
        utilization: busy_ns / wall_ns,
        unpaid: 1.0 - charged_ns / wall_ns,
        charged: of_victim_ns / wall_ns,
        held: of(true, |vgpu| vgpu.held_ns) / wall_ns,
        held_by_others: of(false, |vgpu| vgpu.held_ns) / wall_ns,
        switch_us: (wall_ns - charged_ns) / turns / 1e3,
    }
}

#[cfg(test)]
mod tests {
    use anyhow::bail;

    use super::*;

    #[test]
    fn every_second_round_goes_the_other_way_round() {
        let orders = (0..3).map(|round| {
            let mut order = Vec::new();
            let seen = each_way(round, &["honest", "attack", "pinned"], |side| {
                order.push(side);
                Ok(side.len())
            });
            assert_eq!(seen.unwrap(), [6, 6, 6], "in the order of the sides");
            order
        });
        let forth = vec!["honest", "attack", "pinned"];
        let back = vec!["pinned", "attack", "honest"];
        assert_eq!(orders.collect::<Vec<_>>(), [forth.clone(), back, forth]);
        let seen = each_way(1, &[1, 2, 3], |side| Ok(10 * side)).unwrap();
        assert_eq!(seen, [10, 20, 30]);
    }

    #[test]
    fn a_run_that_fails_ends_its_round() {
        let mut runs = 0;
        let failed = each_way(1, &[1, 2, 3], |side| {
            runs += 1;
            if side == 2 { bail!("no side {side}") } else { Ok(()) }
        });
        assert!(failed.is_err() && runs == 2, "{runs} runs");
    }
}
