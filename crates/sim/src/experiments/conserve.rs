//! Work conservation (FairGV Figure 10).

use super::lab::{Lab, RunError};
use super::standalone::rate_alone;
use crate::kernel::{Kernel, SECOND, US};
use crate::outcome::{Outcome, PlotKind};
use crate::program::{Behaviour, Step, View};
use crate::table3::Profile;
use crate::world::World;

/// Matrix products with sleeps in between, so that it sleeps for that part of its time alone.
#[derive(Clone, Debug)]
struct Sleeper {
    sleep_ns: u64,
    place: usize,
}

/// Kernels of MM between two sleeps.
const BURST: usize = 20;

impl Sleeper {
    fn new(percent: u64) -> Self {
        let work_ns = BURST as u64 * 207 * US;
        Self { sleep_ns: work_ns * percent / (100 - percent), place: 0 }
    }
}

impl Behaviour for Sleeper {
    fn next(&mut self, _view: &View) -> Step {
        let place = self.place;
        self.place = (place + 1) % (BURST + 2);
        match place {
            BURST => Step::Sync,
            place if place > BURST => Step::Sleep(self.sleep_ns),
            _ => Step::Launch(Kernel::new(0, 207 * US)),
        }
    }
}

pub(super) fn figure10(lab: &mut Lab<'_>) -> Result<Outcome, RunError> {
    let duration_ns = lab.seconds(20, 2);
    let window = format!("{} s per point", duration_ns / SECOND);
    let mut outcome = Outcome::new("figure10", "Utilisation beside a sleeper", window);
    let transport = lab.rings();
    let alone = match Profile::named("BS") {
        Some(profile) => {
            rate_alone(lab, Box::new(profile.program(lab.seed)), transport, duration_ns)?
        }
        None => 1.0,
    };
    outcome.baseline("utilization_alone", alone);
    let (mut lines, mut least) = (vec![Vec::new(); 2], [f64::MAX; 2]);
    for percent in [50, 60, 70, 80] {
        for (place, hold_idle) in [false, true].into_iter().enumerate() {
            let utilisation = utilisation(lab, percent, hold_idle, duration_ns)? / alone;
            lines[place].push((percent as f64, utilisation));
            least[place] = least[place].min(utilisation);
            if hold_idle {
                outcome.control(format!("utilization_{percent}"), utilisation);
            } else {
                outcome.figure(format!("utilization_{percent}"), utilisation);
            }
        }
    }
    outcome.figure("utilization_min", least[0]);
    outcome.control("utilization_min", least[1]);
    let plot = outcome.plot(
        PlotKind::Lines,
        "Device utilisation beside a co-runner that sleeps",
        "co-runner sleeps, %",
        "utilisation over BS alone",
    );
    for (name, line) in ["work-conserving", "holds while idle"].into_iter().zip(lines) {
        plot.series(name, line);
    }
    outcome.note("BS beside MM with sleeps, each on its own core, equal weights; over what BS reaches alone.");
    Ok(outcome)
}

fn utilisation(
    lab: &mut Lab<'_>,
    percent: u64,
    hold_idle: bool,
    duration_ns: u64,
) -> Result<f64, RunError> {
    let mut setup = lab.setup("fair");
    setup.hold_idle = hold_idle;
    let mut world = World::new(setup)?;
    let (busy, sleeper) = (world.vgpu(1), world.vgpu(1));
    if let Some(profile) = Profile::named("BS") {
        world.program(busy, Box::new(profile.program(lab.seed)), lab.rings(), None, 1_024);
    }
    world.program(sleeper, Box::new(Sleeper::new(percent)), lab.rings(), None, 1_024);
    world.run_for(SECOND / 5);
    let before_ns = world.busy_ns();
    world.run_for(duration_ns);
    let busy_ns = world.busy_ns() - before_ns;
    lab.close(&mut world, &format!("{percent} % sleep"));
    Ok(busy_ns as f64 / duration_ns as f64)
}
