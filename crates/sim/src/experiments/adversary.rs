//! What a tenant gains by cheating: service over its fair share, minus one.

use super::lab::{Lab, RunError};
use crate::kernel::{Kernel, MS, SECOND, US};
use crate::outcome::{Outcome, PlotKind};
use crate::program::{Behaviour, Step, View};
use crate::random::Random;
use crate::worker::Source;
use crate::world::World;

/// A way to cheat; sizes are drawn anew for each burst.
#[derive(Clone, Debug)]
struct Strategy {
    name: String,
    sessions: u64,
    /// Kernel size, from and to, in ns.
    kernel_ns: (u64, u64),
    /// Kernels in a burst.
    burst: (u64, u64),
    /// Sleep after a burst, in ns.
    sleep_ns: (u64, u64),
    /// Waits for its burst before it sleeps.
    waits: bool,
    /// Every kernel is a new one, so that nothing is known of it.
    renames: bool,
    /// What it claims that a kernel takes, in thousandths of the truth.
    declares_permille: Option<u64>,
}

impl Strategy {
    /// Always something to do, nothing to hide.
    fn honest() -> Self {
        Self {
            name: "honest".to_owned(),
            sessions: 1,
            kernel_ns: (MS, MS),
            burst: (64, 64),
            sleep_ns: (0, 0),
            waits: false,
            renames: false,
            declares_permille: None,
        }
    }

    fn all() -> Vec<Self> {
        let named = |name: &str| Self { name: name.to_owned(), ..Self::honest() };
        let (short, long) = ((20 * US, 20 * US), (5 * MS, 20 * MS));
        vec![
            Self::honest(),
            Self { burst: (1, 12), sleep_ns: (0, 12 * MS), waits: true, ..named("sleeps") },
            Self { burst: (40, 60), sleep_ns: (MS, 40 * MS), waits: true, ..named("bursts") },
            Self { kernel_ns: short, burst: (2_000, 2_000), ..named("tiny kernels") },
            Self { sessions: 8, ..named("eight sessions") },
            Self { kernel_ns: long, declares_permille: Some(1), ..named("declares too little") },
            Self { declares_permille: Some(10_000), ..named("declares too much") },
            Self {
                kernel_ns: long,
                renames: true,
                declares_permille: Some(1),
                ..named("new names")
            },
            Self {
                burst: (1, 6),
                sleep_ns: (90 * US, 110 * US),
                waits: true,
                ..named("pauses at the yield limit")
            },
        ]
    }

    fn random(random: &mut Random, number: u64) -> Self {
        let range = |random: &mut Random, low: u64, high: u64| {
            let from = random.between(low, high);
            (from, random.between(from, high))
        };
        let sleeps = random.chance(700);
        Self {
            name: format!("random {number}"),
            sessions: if random.chance(300) { random.between(2, 12) } else { 1 },
            kernel_ns: if random.chance(500) {
                range(random, 30 * US, MS)
            } else {
                range(random, 500 * US, 25 * MS)
            },
            burst: range(random, 1, 80),
            sleep_ns: if sleeps { range(random, 10 * US, 30 * MS) } else { (0, 0) },
            waits: sleeps && random.chance(700),
            renames: random.chance(250),
            declares_permille: random.chance(400).then(|| random.between(1, 20_000)),
        }
    }
}

#[derive(Clone, Debug)]
struct Cheat {
    strategy: Strategy,
    random: Random,
    left: u64,
    after: u8,
    key: u32,
}

impl Behaviour for Cheat {
    fn next(&mut self, _view: &View) -> Step {
        let (random, strategy) = (&mut self.random, &self.strategy);
        if self.left > 0 {
            self.left -= 1;
            let (low, high) = strategy.kernel_ns;
            let ns = random.between(low, high);
            if strategy.renames {
                self.key += 1;
            }
            let declared_ns = strategy.declares_permille.map(|permille| ns / 1_000 * permille);
            return Step::Launch(Kernel { declared_ns, ..Kernel::new(self.key, ns) });
        }
        self.after = (self.after + 1) % 3;
        match self.after {
            1 if strategy.waits => Step::Sync,
            2 if strategy.sleep_ns.1 > 0 => {
                Step::Sleep(random.between(strategy.sleep_ns.0, strategy.sleep_ns.1))
            }
            1 | 2 => Step::Call,
            _ => {
                self.left = random.between(strategy.burst.0, strategy.burst.1);
                Step::Call
            }
        }
    }
}

/// Honest tenants beside the cheat, of equal weight.
const HONEST: usize = 3;

pub(super) fn adversary(lab: &mut Lab<'_>) -> Result<Outcome, RunError> {
    let duration_ns = lab.seconds(600, 20);
    let window = format!("{} s per strategy", duration_ns / SECOND);
    let mut outcome = Outcome::new("adversary", "What cheating gains", window);
    let mut random = Random::part(lab.seed, 99);
    let mut strategies = Strategy::all();
    let searched = if lab.quick { 4 } else { 24 };
    strategies.extend((0..searched).map(|number| Strategy::random(&mut random, number)));
    let (mut worst, mut rows) = (f64::MIN, Vec::new());
    for strategy in &strategies {
        lab.say(&strategy.name);
        let gain = gain(lab, "fair", strategy, duration_ns)?;
        outcome.figure(format!("gain_{}", strategy.name.replace(' ', "_")), gain);
        worst = worst.max(gain);
        rows.push((strategy.name.clone(), gain));
    }
    outcome.figure("gain_max", worst);
    for policy in ["unmanaged", "round_robin"] {
        let mut most = f64::MIN;
        for strategy in strategies.iter().take(9) {
            most = most.max(gain(lab, policy, strategy, duration_ns.min(60 * SECOND))?);
        }
        outcome.control(format!("gain_max_{policy}"), most);
    }
    let ours = format!("at most {:.4} % over the fair share", 100.0 * worst);
    outcome.compare("gain by cheating", "not measured", ours);
    let plot = outcome.plot(PlotKind::Bars, "Gain over the fair share", "", "%");
    plot.groups(rows.iter().map(|(name, _)| name.as_str())).mark(0.1);
    plot.bars("gain", rows.iter().map(|(_, gain)| 100.0 * gain.max(-0.002)));
    outcome.note(
        "The fair share is a quarter of what the device executed; three honest tenants of the same \
         weight always have work. Launches and switches cost what they do on the real clock \
         (calibration.toml). A strategy that sleeps may not reach its share; bars below \
         −0.2 % are cut.",
    );
    super::attacks::attacks(lab, &mut outcome)?;
    Ok(outcome)
}

fn gain(
    lab: &mut Lab<'_>,
    policy: &'static str,
    strategy: &Strategy,
    duration_ns: u64,
) -> Result<f64, RunError> {
    let mut world = World::new(lab.real_setup(policy))?;
    for _ in 0..HONEST {
        let vgpu = world.vgpu(1);
        let kernels = vec![Kernel::new(0, 700 * US)];
        world.session(vgpu, Source::Endless { kernels, jitter_permille: 100 });
    }
    let cheat = world.vgpu(1);
    for session in 0..strategy.sessions {
        let behaviour = Cheat {
            strategy: strategy.clone(),
            random: Random::part(lab.seed, 1_000 + session),
            left: 0,
            after: 0,
            key: 0,
        };
        world.program(cheat, Box::new(behaviour), lab.rings(), None, 1_024);
    }
    world.run_for(duration_ns);
    let share = world.work_ns()[cheat] as f64 * (HONEST + 1) as f64 / world.busy_ns() as f64;
    lab.close(&mut world, &format!("{} under {policy}", strategy.name));
    Ok(share - 1.0)
}
