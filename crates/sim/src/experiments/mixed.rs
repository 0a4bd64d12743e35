//! Kernels of different sizes side by side (FairGV Figure 11).

use super::lab::{Lab, RunError, SYSTEMS, System};
use super::standalone::rate_alone;
use crate::kernel::SECOND;
use crate::outcome::{Outcome, PlotKind};
use crate::table3::{Loop, Profile};
use crate::world::World;

const BACKGROUND_US: [u64; 8] = [21, 51, 102, 207, 391, 803, 1_204, 1_605];

pub(super) fn figure11(lab: &mut Lab<'_>) -> Result<Outcome, RunError> {
    let duration_ns = lab.seconds(20, 2);
    let window = format!("{} s per point", duration_ns / SECOND);
    let mut outcome = Outcome::new("figure11", "Run time beside kernels of another size", window);
    let systems: Vec<System> = SYSTEMS
        .into_iter()
        .filter(|one| ["fair", "credit_poll", "unmanaged"].contains(&one.name))
        .filter(|one| weft_sched::policy::by_name(one.policy).is_ok())
        .collect();
    let mut worst = 0.0_f64;
    for name in ["MM", "HS"] {
        let Some(profile) = Profile::named(name) else { continue };
        let alone =
            rate_alone(lab, Box::new(profile.program(lab.seed)), lab.native(), lab.seconds(4, 1))?;
        let mut lines = Vec::new();
        for system in &systems {
            lab.say(&format!("{name} under {}", system.name));
            let mut line = Vec::new();
            for us in BACKGROUND_US {
                let time = alone / rate(lab, system, &profile, us, duration_ns)?;
                line.push((us as f64, time));
                if system.name == "fair" {
                    worst = worst.max((time / 2.0 - 1.0).abs());
                }
            }
            let key = format!("run_time_{}_{name}", system.name);
            let ends = [("21us", line[0].1), ("1605us", line[BACKGROUND_US.len() - 1].1)];
            for (end, time) in ends {
                if system.name == "unmanaged" {
                    outcome.control(format!("{key}_{end}"), time);
                } else {
                    outcome.figure(format!("{key}_{end}"), time);
                }
            }
            lines.push((system.name, line));
        }
        let title = format!("Normalised run time of {name}");
        let plot = outcome.plot(PlotKind::Lines, &title, "background kernel, µs", "run time");
        plot.line_at(2.0, "paper, FairGV: 2.0");
        for (name, line) in lines {
            plot.series(name, line.into_iter().map(|(us, time)| (us, time.min(4.0))));
        }
    }
    outcome.figure("deviation_max", worst);
    outcome.note("Equal weights, each VM on its own core. Values above 4 are cut in the plot.");
    Ok(outcome)
}

fn rate(
    lab: &mut Lab<'_>,
    system: &System,
    profile: &Profile,
    background_us: u64,
    duration_ns: u64,
) -> Result<f64, RunError> {
    let mut world = World::new(lab.system(system))?;
    let (front, back) = (world.vgpu(1), world.vgpu(1));
    world.program(front, Box::new(profile.program(lab.seed)), lab.rings(), None, 1_024);
    let background = Box::new(Loop::simple(background_us, false));
    world.program(back, background, lab.rings(), None, 1_024);
    world.run_for(SECOND / 2);
    let before = world.work_ns()[front];
    world.run_for(duration_ns);
    let work_ns = world.work_ns()[front] - before;
    lab.close(&mut world, &format!("{} against {background_us} µs", profile.name));
    Ok(work_ns as f64 / duration_ns as f64)
}
