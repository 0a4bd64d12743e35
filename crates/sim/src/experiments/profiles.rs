//! Programs from profiles beside each other.

use super::lab::{Lab, RunError, measure, min_max_ratio};
use super::standalone::rate_alone;
use crate::import::{Launch, Replay};
use crate::kernel::SECOND;
use crate::outcome::Outcome;
use crate::world::World;

/// Runs imported programs as tenants of these weights, each on its own core.
///
/// # Errors
/// If the core refuses the set-up.
pub fn profiles(lab: &mut Lab<'_>, tenants: &[(u32, Vec<Launch>)]) -> Result<Outcome, RunError> {
    lab.begin("profiles");
    let (windows, window_ns) = if lab.quick { (2, SECOND) } else { (5, 10 * SECOND) };
    let window = format!("{windows} windows of {} s after one second", window_ns / SECOND);
    let mut outcome = Outcome::new("profiles", "Imported programs beside each other", window);
    let weights: Vec<u32> = tenants.iter().map(|tenant| tenant.0).collect();
    let mut alone = Vec::new();
    for (_, launches) in tenants {
        alone.push(rate_alone(lab, Box::new(Replay::new(launches)), lab.native(), window_ns)?);
    }
    for policy in ["fair", "unmanaged"] {
        let mut world = World::new(lab.setup(policy))?;
        for (weight, launches) in tenants {
            let vgpu = world.vgpu(*weight);
            world.program(vgpu, Box::new(Replay::new(launches)), lab.rings(), None, 1_024);
        }
        world.run_for(SECOND);
        let shares = measure(&mut world, &weights, 1.0, windows, window_ns);
        lab.close(&mut world, policy);
        let normalised: Vec<f64> = shares
            .rates
            .iter()
            .zip(&alone)
            .zip(&weights)
            .map(|((rate, alone), weight)| rate / alone / f64::from(*weight))
            .collect();
        let mmr = min_max_ratio(&normalised);
        if policy == "unmanaged" {
            outcome.control("mmr_unmanaged", mmr);
            continue;
        }
        outcome.figure("mmr", mmr);
        for (number, (rate, alone)) in shares.rates.iter().zip(&alone).enumerate() {
            outcome.figure(format!("slowdown_{}", number + 1), alone / rate.max(1e-12));
            outcome.figure(format!("device_share_{}", number + 1), *rate);
        }
    }
    outcome.note(
        "Throughput over what each program has alone; a program that does not need its \
                  share leaves it to the others, so an MMR below one need not be unfair.",
    );
    lab.end(&mut outcome);
    Ok(outcome)
}
