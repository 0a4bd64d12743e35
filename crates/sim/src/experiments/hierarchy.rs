//! Weights at every level: tenants of a device, vGPUs of a tenant, sessions of a vGPU.

use super::lab::{Lab, RunError, min_max_ratio};
use crate::kernel::{Kernel, MS, SECOND, US};
use crate::outcome::{Outcome, PlotKind};
use crate::program::{Behaviour, Step, View};
use crate::random::Random;
use crate::worker::Source;
use crate::world::World;

const QUANTUM_NS: u64 = MS;
/// Kernels that a program has submitted and not finished, at most.
const AHEAD: u64 = 16;
/// A bursting program's kernels between two sleeps: 4 ms of work.
const BURST: u64 = 20;
const PAUSE_NS: u64 = 40 * MS;
/// At the beginning of a phase what was submitted before is still executed.
const SETTLE_NS: u64 = SECOND;

/// A vGPU of the deployment.
struct Vgpu {
    tenant: usize,
    weight: u32,
    /// Its sessions' weights.
    sessions: &'static [u32],
    kernel_us: u64,
    /// It sleeps between bursts, so that it wants less than its share.
    bursts: bool,
}

const fn vgpu(tenant: usize, weight: u32, sessions: &'static [u32], kernel_us: u64) -> Vgpu {
    Vgpu { tenant, weight, sessions, kernel_us, bursts: false }
}

const TENANTS: [u32; 3] = [1, 2, 3];
/// Tenant 0 has the least weight, the most vGPUs and large weights for them: they count inside the
/// tenant alone.
const VGPUS: [Vgpu; 10] = [
    vgpu(0, 4, &[1], 102),
    vgpu(0, 4, &[1], 285),
    vgpu(0, 4, &[1, 1], 51),
    vgpu(0, 4, &[1], 391),
    vgpu(1, 1, &[1], 207),
    vgpu(1, 2, &[1, 3], 46),
    vgpu(1, 3, &[1], 803),
    vgpu(2, 1, &[1], 171),
    vgpu(2, 4, &[2, 1], 102),
    Vgpu { bursts: true, ..vgpu(2, 5, &[1], 200) },
];
/// Phases, and the vGPUs that sleep through them.
const PHASES: [(&str, &[usize]); 3] =
    [("all", &[]), ("vgpu_asleep", &[6]), ("tenant_asleep", &[7, 8, 9])];

/// Launches kernels all the time, or in bursts, and sleeps through some phases.
#[derive(Clone, Debug)]
struct Tenant {
    random: Random,
    kernel_ns: u64,
    bursts: bool,
    /// From and to, in ns.
    nights: Vec<(u64, u64)>,
    submitted: u64,
    place: u64,
}

impl Behaviour for Tenant {
    fn next(&mut self, view: &View) -> Step {
        let night = |night: &&(u64, u64)| (night.0..night.1).contains(&view.now_ns);
        if let Some((_, end_ns)) = self.nights.iter().find(night) {
            return Step::Sleep(end_ns - view.now_ns);
        }
        if self.bursts {
            let place = self.place;
            self.place = (place + 1) % (BURST + 2);
            match place {
                BURST => return Step::Sync,
                place if place > BURST => return Step::Sleep(PAUSE_NS),
                _ => {}
            }
        } else if self.submitted - view.finished >= AHEAD {
            return Step::Compute(MS / 4);
        }
        self.submitted += 1;
        Step::Launch(Kernel::new(0, self.random.jitter(self.kernel_ns, 50)))
    }
}

/// How the levels are told to the scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Nested,
    /// Every vGPU belongs to one tenant, and sessions have no weights.
    Flat,
}

pub(super) fn hierarchy(lab: &mut Lab<'_>) -> Result<Outcome, RunError> {
    let phase_ns = lab.seconds(20, 4);
    let window = format!("{} s per phase after one, quantum 1 ms", phase_ns / SECOND);
    let title = "Weights of tenants, their vGPUs, and their sessions";
    let mut outcome = Outcome::new("hierarchy", title, window);
    lab.say("nested");
    let nested = run(lab, "fair", Shape::Nested, phase_ns)?;
    let mut least = [f64::MAX; 3];
    for (phase, levels) in PHASES.iter().zip(&nested) {
        for (level, (name, mmr)) in LEVELS.iter().zip(levels.mmr).enumerate() {
            outcome.figure(format!("mmr_{name}_{}", phase.0), mmr);
            least[level] = least[level].min(mmr);
        }
    }
    for (name, mmr) in LEVELS.iter().zip(least) {
        outcome.figure(format!("mmr_{name}_min"), mmr);
    }
    let worst = least.into_iter().fold(f64::MAX, f64::min);
    outcome.figure("mmr_min", worst);
    let ours = format!("MMR at least {worst:.4}");
    outcome.compare("shares of tenants, of their vGPUs, of sessions", "one level", ours);
    outcome.figure("share_error_max", nested.iter().map(Levels::error).fold(0.0, f64::max));
    lab.say("controls");
    let flat = run(lab, "fair", Shape::Flat, phase_ns)?;
    let unmanaged = run(lab, "unmanaged", Shape::Nested, phase_ns)?;
    for (name, phases) in [("flat", &flat), ("unmanaged", &unmanaged)] {
        for (level, mmr) in LEVELS.iter().zip(phases[0].mmr) {
            // Flat weights of vGPUs are right inside a tenant: there it is no control.
            if !(name == "flat" && *level == "vgpus") {
                outcome.control(format!("mmr_{level}_{name}"), mmr);
            }
        }
    }
    for (shape, name) in [(Shape::Nested, "split_gain"), (Shape::Flat, "split_gain_flat")] {
        let gain = split(lab, shape, 8, phase_ns)? / split(lab, shape, 1, phase_ns)? - 1.0;
        if shape == Shape::Nested {
            outcome.figure(name, gain);
        } else {
            outcome.control(name, gain);
        }
    }
    draw(&mut outcome, &nested[0]);
    outcome.note(
        "Tenants 1:2:3; ten vGPUs with weights 1 to 5, three of them with two sessions (1:1, 1:3, \
         2:1), one that bursts and wants less than its share. Then a vGPU sleeps, whose tenant's \
         other vGPUs get its part, and then a tenant. MMR per level: least over largest service \
         per weight of those that always have work, in the worst group of the level.",
    );
    outcome.note(
        "Holding an idle device is charged: tenant 3's bursting vGPU holds the device for up to 100 µs \
         after each burst before it yields.",
    );
    outcome.note(
        "flat: all vGPUs in one tenant and no weights of sessions. split_gain is what a tenant \
         gains with eight vGPUs in place of one beside a tenant of the same weight.",
    );
    Ok(outcome)
}

const LEVELS: [&str; 3] = ["tenants", "vgpus", "sessions"];

/// A phase, measured.
struct Levels {
    /// By level: the worst group's.
    mmr: [f64; 3],
    /// By vGPU that always had work: expected and measured share of the device.
    shares: Vec<(usize, f64, f64)>,
}

impl Levels {
    fn error(&self) -> f64 {
        let errors = self.shares.iter().map(|(_, expected, share)| (share / expected - 1.0).abs());
        errors.fold(0.0, f64::max)
    }
}

fn run(
    lab: &mut Lab<'_>,
    policy: &'static str,
    shape: Shape,
    phase_ns: u64,
) -> Result<Vec<Levels>, RunError> {
    let mut world = World::new(lab.setup(policy).quantum(QUANTUM_NS))?;
    let tenants: Vec<usize> = match shape {
        Shape::Nested => TENANTS.iter().map(|weight| world.tenant(*weight)).collect(),
        Shape::Flat => vec![0; TENANTS.len()],
    };
    let whole_ns = SETTLE_NS + phase_ns;
    let mut sessions = Vec::new();
    for (number, spec) in VGPUS.iter().enumerate() {
        let vgpu = world.vgpu_of(tenants[spec.tenant], spec.weight);
        let nights = (0_u64..).zip(PHASES).filter(|(_, (_, asleep))| asleep.contains(&number));
        let nights: Vec<_> =
            nights.map(|(phase, _)| (phase * whole_ns, (phase + 1) * whole_ns)).collect();
        for weight in spec.sessions {
            let program = Tenant {
                random: Random::part(lab.seed, 500 + sessions.len() as u64),
                kernel_ns: spec.kernel_us * US,
                bursts: spec.bursts,
                nights: nights.clone(),
                submitted: 0,
                place: 0,
            };
            let session = world.program(vgpu, Box::new(program), lab.rings(), None, 1_024);
            if shape == Shape::Nested {
                world.reweight_session(session, *weight);
            }
            sessions.push((number, *weight, session));
        }
    }
    let mut phases = Vec::new();
    for (_, asleep) in PHASES {
        world.run_for(SETTLE_NS);
        let before = world.session_work_ns();
        world.run_for(phase_ns);
        let after = world.session_work_ns();
        let served: Vec<f64> =
            after.iter().zip(&before).map(|(after, before)| (after - before) as f64).collect();
        phases.push(levels(asleep, &sessions, &served));
    }
    lab.close(&mut world, &format!("{policy}, {shape:?}"));
    Ok(phases)
}

/// What each level's members got; `sessions` are (vGPU, weight, number), `served` is by number.
fn levels(asleep: &[usize], sessions: &[(usize, u32, usize)], served: &[f64]) -> Levels {
    let of = |vgpu: usize| sessions.iter().filter(move |session| session.0 == vgpu);
    let vgpu_served: Vec<f64> = (0..VGPUS.len())
        .map(|vgpu| of(vgpu).map(|(_, _, session)| served[*session]).sum())
        .collect();
    let busy = |vgpu: usize| !asleep.contains(&vgpu) && !VGPUS[vgpu].bursts;
    let (mut tenants, mut vgpus, mut inside) = (Vec::new(), f64::MAX, f64::MAX);
    let (mut shares, total) = (Vec::new(), served.iter().sum::<f64>());
    let awake =
        |tenant: usize| (0..VGPUS.len()).any(|vgpu| VGPUS[vgpu].tenant == tenant && busy(vgpu));
    let weights: u32 = (0..TENANTS.len()).filter(|t| awake(*t)).map(|t| TENANTS[t]).sum();
    for tenant in (0..TENANTS.len()).filter(|tenant| awake(*tenant)) {
        let its = || (0..VGPUS.len()).filter(|vgpu| VGPUS[*vgpu].tenant == tenant);
        let got: f64 = its().map(|vgpu| vgpu_served[vgpu]).sum();
        tenants.push(got / f64::from(TENANTS[tenant]));
        let per_weight = |vgpu: usize| vgpu_served[vgpu] / f64::from(VGPUS[vgpu].weight);
        let members: Vec<f64> = its().filter(|vgpu| busy(*vgpu)).map(per_weight).collect();
        vgpus = vgpus.min(min_max_ratio(&members));
        // What a bursting vGPU leaves of its part is its siblings'.
        let bursts: f64 = its().filter(|vgpu| !busy(*vgpu)).map(|vgpu| vgpu_served[vgpu]).sum();
        let part = f64::from(TENANTS[tenant]) / f64::from(weights) - bursts / total;
        let parts: u32 = its().filter(|vgpu| busy(*vgpu)).map(|vgpu| VGPUS[vgpu].weight).sum();
        for vgpu in its().filter(|vgpu| busy(*vgpu)) {
            let expected = part * f64::from(VGPUS[vgpu].weight) / f64::from(parts);
            shares.push((vgpu, expected, vgpu_served[vgpu] / total));
            let members =
                of(vgpu).map(|(_, weight, session)| served[*session] / f64::from(*weight));
            inside = inside.min(min_max_ratio(&members.collect::<Vec<_>>()));
        }
    }
    Levels { mmr: [min_max_ratio(&tenants), vgpus, inside], shares }
}

/// The share of a tenant with so many vGPUs beside one with a single vGPU, all tenants and vGPUs of
/// the same weight.
fn split(lab: &mut Lab<'_>, shape: Shape, vgpus: usize, duration_ns: u64) -> Result<f64, RunError> {
    let mut world = World::new(lab.setup("fair").quantum(QUANTUM_NS))?;
    let mut tenant = || if shape == Shape::Nested { world.tenant(1) } else { 0 };
    let (one, other) = (tenant(), tenant());
    for tenant in std::iter::once(other).chain(std::iter::repeat_n(one, vgpus)) {
        let vgpu = world.vgpu_of(tenant, 1);
        let kernels = vec![Kernel::new(0, 207 * US)];
        world.session(vgpu, Source::Endless { kernels, jitter_permille: 50 });
    }
    world.run_for(duration_ns);
    let work_ns = world.work_ns();
    let share = 1.0 - work_ns[0] as f64 / work_ns.iter().sum::<u64>() as f64;
    lab.close(&mut world, &format!("{shape:?}, {vgpus} vGPUs"));
    Ok(share)
}

fn draw(outcome: &mut Outcome, phase: &Levels) {
    let plot = outcome.plot(
        PlotKind::Bars,
        "Shares of the vGPUs that always have work, all tenants awake",
        "",
        "share of the device",
    );
    let name = |vgpu: usize| format!("{}.{}", VGPUS[vgpu].tenant + 1, vgpu + 1);
    let names: Vec<String> = phase.shares.iter().map(|(vgpu, ..)| name(*vgpu)).collect();
    plot.groups(names.iter().map(String::as_str));
    plot.bars("expected", phase.shares.iter().map(|(_, expected, _)| *expected));
    plot.bars("measured", phase.shares.iter().map(|(_, _, share)| *share));
}
