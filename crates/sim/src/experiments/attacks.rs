//! What victims lose to tenants that rob the device: the simulated side of `weft bench adversary`.

use super::lab::{Lab, RunError};
use crate::kernel::{Kernel, MS, SECOND, US};
use crate::outcome::{Outcome, PlotKind};
use crate::program::{Behaviour, Return, Step, View};
use crate::random::Random;
use crate::world::{Setup, World};

/// The honest kernel.
const WORK: Kernel = Kernel { key: 0, ns: 400 * US, sliceable: false, declared_ns: None };
/// Kernels of an honest tenant in flight.
const AHEAD: u64 = 16;
/// How exactly the ends of stalls are known.
const SEE_NS: u64 = MS;
/// A victim whose last kernel is so much longer ago than the attacker's longest takes is not behind
/// one: its own turn should have come.
const STARVED_NS: u64 = 20 * MS;
/// One that dies looks at what its kernels have done this often.
const LOOK_NS: u64 = 500 * US;

/// What an attacker does.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// What the victim does.
    Honest,
    /// Launches so many kernels of that time and is killed when the device has done so many
    /// thousandths of the first.
    Dies { kernels: u64, ns: u64, permille: u64, back: Return },
    /// A short kernel, then a module to compile.
    Storms,
    /// A short kernel, then a pause.
    Pauses { ns: u64, pause_ns: (u64, u64) },
    /// So many short kernels, so many long ones of the same name.
    Grows { kernels: u64, short_ns: u64, long_ns: u64 },
    /// Keeps so many kernels of that time queued.
    Queues { kernels: u64, ns: u64 },
}

/// An attack.
#[derive(Clone, Copy, Debug)]
struct Attack {
    name: &'static str,
    way: Way,
    sessions: u64,
    /// Each session is of a tenant of its own; otherwise all are of one.
    tenants: bool,
    /// The victim waits for each of its kernels.
    sync_victim: bool,
    /// `bench adversary` has it on the paced device, which tells when a kernel will end.
    paced: bool,
    /// Its longest kernel that cannot be cut, in ns.
    uncut_ns: u64,
    /// What is missing in its control, in which the victim must lose.
    control: Defence,
}

const fn attack(name: &'static str, way: Way, sessions: u64, control: Defence) -> Attack {
    let (tenants, sync_victim, paced) = (false, false, false);
    Attack { name, way, sessions, tenants, sync_victim, paced, uncut_ns: 0, control }
}

/// The same on the paced device, with a kernel that cannot be cut.
const fn paced(attack: Attack, uncut_ns: u64) -> Attack {
    Attack { paced: true, uncut_ns, ..attack }
}

const fn dies(kernels: u64, permille: u64, back: Return) -> Way {
    Way::Dies { kernels, ns: SECOND, permille, back }
}

const fn queues(name: &'static str, kernels: u64) -> Attack {
    attack(name, Way::Queues { kernels, ns: 1_600 * MS }, 1, Defence::Unmanaged)
}

const ATTACKS: &[Attack] = &[
    paced(attack("kill", dies(1, 970, Return::SameVgpu), 1, Defence::Off), SECOND),
    paced(attack("rename", dies(1, 970, Return::NewVgpu), 1, Defence::Off), SECOND),
    paced(attack("leave", dies(2, 20, Return::SameVgpu), 1, Defence::Off), SECOND),
    Attack { tenants: true, ..attack("storm", Way::Storms, 64, Defence::RoundRobin) },
    Attack {
        tenants: true,
        ..attack(
            "pauses",
            Way::Pauses { ns: 2 * US, pause_ns: (MS, 3 * MS) },
            64,
            Defence::RoundRobin,
        )
    },
    Attack {
        uncut_ns: 100 * MS,
        ..attack(
            "grow",
            Way::Grows { kernels: 200, short_ns: 2 * US, long_ns: 100 * MS },
            1,
            Defence::Unmanaged,
        )
    },
    Attack { tenants: true, ..paced(attack("users", Way::Honest, 4, Defence::Off), 0) },
    Attack { sync_victim: true, ..paced(queues("uncut_one", 1), 1_600 * MS) },
    Attack { sync_victim: true, ..paced(queues("uncut_eight", 8), 1_600 * MS) },
];

/// A tenant, honest or not.
#[derive(Clone, Debug)]
struct Tenant {
    way: Way,
    sync: bool,
    random: Random,
    launched: u64,
    compile_ns: u64,
    step: u8,
}

impl Tenant {
    /// Keeps so many kernels of that time in flight.
    fn keep(&mut self, view: &View, kernels: u64, kernel: Kernel) -> Step {
        if self.launched < view.finished + kernels {
            self.launched += 1;
            return Step::Launch(kernel);
        }
        if kernels == 1 {
            return Step::Sync;
        }
        // It looks again before what is in flight has ended.
        Step::Sleep(kernel.ns / 4)
    }

    fn die(&mut self, view: &View, (kernels, ns, permille): (u64, u64, u64), back: Return) -> Step {
        if self.launched < kernels {
            self.launched += 1;
            return Step::Launch(Kernel::new(1, ns));
        }
        if view.executed_ns * 1_000 >= ns * permille {
            self.launched = 0;
            return Step::Die(back);
        }
        Step::Sleep(LOOK_NS)
    }

    fn grow(&mut self, (kernels, short_ns, long_ns): (u64, u64, u64)) -> Step {
        self.launched += 1;
        match self.launched % (2 * kernels + 2) {
            0 => Step::Sync,
            place if place == kernels + 1 => Step::Sync,
            place if place <= kernels => Step::Launch(Kernel::new(2, short_ns)),
            _ => Step::Launch(Kernel::new(2, long_ns)),
        }
    }
}

impl Behaviour for Tenant {
    fn next(&mut self, view: &View) -> Step {
        self.step = (self.step + 1) % 3;
        match self.way {
            Way::Honest => self.keep(view, if self.sync { 1 } else { AHEAD }, WORK),
            Way::Queues { kernels, ns } => self.keep(view, kernels, Kernel::new(1, ns)),
            Way::Dies { kernels, ns, permille, back } => {
                self.die(view, (kernels, ns, permille), back)
            }
            Way::Grows { kernels, short_ns, long_ns } => self.grow((kernels, short_ns, long_ns)),
            Way::Storms => match self.step {
                1 => Step::Launch(Kernel::new(3, US)),
                2 => Step::Sync,
                _ => Step::Compute(self.compile_ns),
            },
            Way::Pauses { ns, pause_ns } => match self.step {
                1 => Step::Launch(Kernel::new(4, ns)),
                2 => Step::Sync,
                _ => Step::Sleep(self.random.between(pause_ns.0, pause_ns.1)),
            },
        }
    }
}

/// What there was of a run so far.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    at_ns: u64,
    victim_ns: u64,
    /// Device time that somebody had.
    busy_ns: u64,
}

impl Count {
    fn since(self, earlier: Self) -> Self {
        Self {
            at_ns: self.at_ns - earlier.at_ns,
            victim_ns: self.victim_ns - earlier.victim_ns,
            busy_ns: self.busy_ns - earlier.busy_ns,
        }
    }

    fn part(self, ns: u64) -> f64 {
        ns as f64 / self.at_ns.max(1) as f64
    }

    /// The part of the time that is the victim's, max-min: as much as beside an honest competitor
    /// (`fair`), who takes all that it can have, and of an attacker that asks for less what is left
    /// of the time that the device had to give then.
    fn due(self, fair: Self) -> f64 {
        let attacker_ns = self.busy_ns.saturating_sub(self.victim_ns);
        let left = fair.part(fair.busy_ns) - self.part(attacker_ns);
        fair.part(fair.victim_ns).max(left).max(f64::MIN_POSITIVE)
    }

    /// What the victim lost of that; below 0 is a gain.
    fn loss(self, fair: Self) -> f64 {
        1.0 - self.part(self.victim_ns) / self.due(fair)
    }
}

/// What a run with this attacker came to.
#[derive(Clone, Copy, Debug)]
struct Run {
    whole: Count,
    /// From the end of the victim's first stall behind a kernel that cannot be cut to that of its
    /// last: at both it is owed as much. The whole run where there are none, or where the victim
    /// never came back from one.
    cycles: Count,
    /// The longest time in which nothing of the victim was executed, to the run's end.
    stall_ns: u64,
}

impl Run {
    /// The part of the time in which somebody had the device.
    fn utilization(&self) -> f64 {
        self.whole.part(self.whole.busy_ns)
    }
}

/// Finds the ends of a victim's stalls.
#[derive(Debug)]
struct Stalls {
    /// The longest kernel that cannot be cut, in ns; 0 where nothing stalls anybody.
    uncut_ns: u64,
    /// When something of the victim's was executed last.
    last: Count,
    first_end: Option<Count>,
    last_end: Option<Count>,
}

impl Stalls {
    fn behind(uncut_ns: u64) -> Self {
        Self { uncut_ns, last: Count::default(), first_end: None, last_end: None }
    }

    fn see(&mut self, now: Count) {
        if now.victim_ns == self.last.victim_ns {
            return;
        }
        if self.uncut_ns > 0 && now.at_ns - self.last.at_ns >= self.uncut_ns / 2 {
            self.first_end.get_or_insert(now);
            self.last_end = Some(now);
        }
        self.last = now;
    }

    /// What there was between the first and the last end, if there are two and the victim does not
    /// starve at the end of the run; else of the whole of it.
    fn cycles(&self, whole: Count) -> Count {
        let starves = whole.at_ns - self.last.at_ns > self.uncut_ns + STARVED_NS;
        match self.first_end.zip(self.last_end) {
            Some((first, last)) if !starves && last.at_ns > first.at_ns => last.since(first),
            _ => whole,
        }
    }
}

/// Whether the mechanisms that the attacks meet are on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Defence {
    On,
    /// Dying is free, and every user is a tenant.
    Off,
    /// Turns are taken, and nobody is charged for anything.
    RoundRobin,
    Unmanaged,
}

impl Defence {
    const fn name(self) -> &'static str {
        match self {
            Self::On => "on",
            Self::Off => "off",
            Self::RoundRobin => "round_robin",
            Self::Unmanaged => "unmanaged",
        }
    }

    const fn policy(self) -> &'static str {
        match self {
            Self::On | Self::Off => "fair",
            Self::RoundRobin => "round_robin",
            Self::Unmanaged => "unmanaged",
        }
    }
}

pub(super) fn attacks(lab: &mut Lab<'_>, outcome: &mut Outcome) -> Result<(), RunError> {
    let duration_ns = lab.seconds(60, 20);
    let (mut loss_max, mut utilization_min) = (f64::MIN, f64::MAX);
    let mut control_min = f64::MAX;
    let mut rows = Vec::new();
    for attack in ATTACKS {
        lab.say(attack.name);
        let honest =
            Attack { way: Way::Honest, sessions: 1, tenants: false, uncut_ns: 0, ..*attack };
        let fair = run(lab, &honest, Defence::On, duration_ns)?;
        let robbed = run(lab, attack, Defence::On, duration_ns)?;
        let name = attack.name;
        // A kernel that cannot be cut may run when the window ends, and is paid for after it.
        let lost = robbed.cycles.loss(fair.whole);
        outcome.figure(format!("loss_{name}"), robbed.whole.loss(fair.whole));
        outcome.figure(format!("loss_between_stalls_{name}"), lost);
        let stall_ns = robbed.stall_ns.saturating_sub(attack.uncut_ns);
        outcome.figure(format!("stall_beyond_kernel_ms_{name}"), stall_ns as f64 / 1e6);
        let utilization = robbed.utilization();
        outcome.figure(format!("utilization_{name}"), utilization);
        outcome.figure(format!("utilization_honest_{name}"), fair.utilization());
        loss_max = loss_max.max(lost);
        utilization_min = utilization_min.min(utilization);
        let without = run(lab, attack, attack.control, duration_ns)?.cycles.loss(fair.whole);
        control_min = control_min.min(without);
        outcome.control(format!("loss_{name}_{}", attack.control.name()), without);
        if matches!(attack.way, Way::Pauses { .. }) {
            let one = Attack { sessions: 1, tenants: false, ..*attack };
            let lost = run(lab, &one, Defence::On, duration_ns)?.cycles.loss(fair.whole);
            outcome.control(format!("loss_{name}_one_honest"), lost);
        }
        rows.push((name, lost));
    }
    outcome.figure("victim_loss_max", loss_max);
    outcome.figure("utilization_min", utilization_min);
    outcome.control("victim_loss_control", control_min);
    let judged = |is_met| if is_met { "met" } else { "missed" };
    let ours = format!(
        "at most {:.3} % of its fair share (goal 0.1 %: {}); the device is used {:.1} % at least \
         (goal 97 %: {})",
        100.0 * loss_max,
        judged(loss_max <= 0.001),
        100.0 * utilization_min,
        judged(utilization_min >= 0.97),
    );
    outcome.compare("what an attack takes from a victim", "not measured", ours);
    let plot = outcome.plot(PlotKind::Bars, "What a victim loses of its fair share", "", "%");
    plot.groups(rows.iter().map(|(name, _)| *name)).mark(0.1);
    plot.bars("loss", rows.iter().map(|(_, loss)| 100.0 * loss));
    outcome.note(
        "The victim's fair share is what it gets beside an honest tenant of the same weight, or, if \
         that is more, what the device executed there less what the attacker had: who asks for \
         little leaves the rest. \
         Launches, switches, attaching and compiling cost about what they cost on the software \
         device on the real clock (calibration.toml says which of that was measured). A loss below 0 \
         is a gain. A kernel that cannot be cut may run when the window ends, and what it takes is \
         paid back after it: loss_between_stalls, which stands in the plot and in victim_loss_max, \
         is of the time from the end of the victim's first stall behind such a kernel to the end of \
         its last, when as much is owed; of the whole window where it did not come back from the last \
         one. So are the controls. loss is of the whole window. utilization_honest is with an honest \
         tenant in the attacker's place. loss_pauses_one_honest is what one program takes that has a \
         pause after each of its short kernels and means no harm.",
    );
    Ok(())
}

fn run(
    lab: &mut Lab<'_>,
    attack: &Attack,
    defence: Defence,
    duration_ns: u64,
) -> Result<Run, RunError> {
    let mut setup: Setup = lab.real_setup(defence.policy());
    (setup.runs_ahead, setup.tells_ends) = (false, attack.paced);
    setup.charges_killed = defence == Defence::On;
    let compile_ns = setup.costs.module_load.ns;
    let mut world = World::new(setup)?;
    let tenant = |way, sync, number| Tenant {
        way,
        sync,
        random: Random::part(lab.seed, 2_000 + number),
        launched: 0,
        compile_ns,
        step: 0,
    };
    let victims = world.tenant(1);
    let victim = world.vgpu_of(victims, 1);
    let behaviour = Box::new(tenant(Way::Honest, attack.sync_victim, 0));
    world.program(victim, behaviour, lab.rings(), None, 1_024);
    let mut attacker = world.tenant(1);
    let mut vgpu = world.vgpu_of(attacker, 1);
    for session in 0..attack.sessions {
        if attack.tenants && session > 0 {
            // Users that are mapped to one tenant have vGPUs of their own there.
            if defence != Defence::On {
                attacker = world.tenant(1);
            }
            vgpu = world.vgpu_of(attacker, 1);
        }
        let behaviour = Box::new(tenant(attack.way, false, 1 + session));
        world.program(vgpu, behaviour, lab.rings(), None, 1_024);
    }
    let mut stalls = Stalls::behind(attack.uncut_ns);
    let mut whole = Count::default();
    while whole.at_ns < duration_ns {
        world.run_for(SEE_NS);
        let (victim_ns, busy_ns) = (world.work_ns()[victim], world.busy_ns());
        whole = Count { at_ns: whole.at_ns + SEE_NS, victim_ns, busy_ns };
        stalls.see(whole);
    }
    let open_ns = whole.at_ns - stalls.last.at_ns;
    let stall_ns = world.take_gap_max_ns(victim).max(open_ns.saturating_sub(SEE_NS));
    let run = Run { whole, cycles: stalls.cycles(whole), stall_ns };
    lab.close(&mut world, &format!("{} with the defence {defence:?}", attack.name));
    Ok(run)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(victim_ns: u64, busy_ns: u64) -> Count {
        Count { at_ns: 1_000, victim_ns, busy_ns }
    }

    /// Sessions of kernels of 2 µs with pauses idle a third of the device. The victim had more than
    /// half of it all the same, and is robbed.
    #[test]
    fn who_idles_the_device_robs_the_victim_though_it_has_more_than_half() {
        let fair = count(496, 992);
        let idled = count(645, 650);
        assert!((idled.due(fair) - 0.987).abs() < 1e-9);
        assert!(idled.loss(fair) > 0.3, "{}", idled.loss(fair));
        // The control: an attacker that has what it asks for, and idles nothing.
        let modest = count(890, 992);
        assert!(modest.loss(fair).abs() < 0.01, "{}", modest.loss(fair));
        // And one that has more than its half.
        assert!(count(300, 992).loss(fair) > 0.39);
    }

    /// A kernel of 100 and then 100 of the victim's, again and again, which is fair. The window
    /// ends in the middle of such a kernel, or the victim has a tenth less each time.
    #[test]
    fn what_is_owed_at_the_end_is_no_loss_and_what_is_never_paid_is() {
        let fair = count(500, 1_000);
        let lost = |paid: u64| {
            let (mut stalls, mut now) = (Stalls::behind(100), Count::default());
            for step in 0..1_950 {
                now.at_ns += 1;
                now.busy_ns += 1;
                now.victim_ns += u64::from(step % (100 + paid) >= 100);
                stalls.see(now);
            }
            (now.loss(fair), stalls.cycles(now).loss(fair))
        };
        let (whole, between) = lost(100);
        assert!(whole > 0.02 && between.abs() < 0.001, "{whole} {between}");
        let (_, between) = lost(90);
        assert!(between > 0.04, "{between}");
    }

    /// It has its half until it is never served again, and loses half of that. The control: one
    /// whose last stall is no longer than the kernel behind which it waits.
    #[test]
    fn who_never_comes_back_from_a_stall_has_lost_what_it_waits_for() {
        let fair = Count { at_ns: 40 * SECOND, victim_ns: 20 * SECOND, busy_ns: 40 * SECOND };
        let lost = |served_s: u64, whole_s: u64| {
            let (mut stalls, mut now) = (Stalls::behind(SECOND), Count::default());
            while now.at_ns < whole_s * SECOND {
                let served = now.at_ns < served_s * SECOND && now.at_ns / SECOND % 2 == 1;
                now.at_ns += SEE_NS;
                now.busy_ns += SEE_NS;
                now.victim_ns += if served { SEE_NS } else { 0 };
                stalls.see(now);
            }
            stalls.cycles(now).loss(fair)
        };
        let starved = lost(20, 40);
        assert!((starved - 0.5).abs() < 0.01, "{starved}");
        let waits = lost(20, 21);
        assert!(waits.abs() < 0.01, "{waits}");
    }
}
