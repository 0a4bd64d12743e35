//! What things cost on this machine, for the simulator: waking and sleeping by themselves, and what
//! a node loses of its device at a switch and at a piece of a long kernel, in runs that nobody
//! judges.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use weft_sim::predict::{Configuration, Figures, Load, Model, Seen, Tenant, simulate};
use weft_sim::seeds::median;
use weft_sim::{Calibration, Cost};

/// Samples of each.
const SAMPLES: usize = 400;
/// Between two wake-ups, and how long is slept.
const PAUSE: Duration = Duration::from_millis(2);

/// The costs with this machine's wake-ups and timers in the place of those that were measured on
/// another one.
pub(super) fn measured(mut costs: Calibration) -> Result<Calibration> {
    let (wake_ns, late_ns) = (wake_ns()?, late_ns());
    let cost = |ns, what: &str| {
        let from = format!("{what}, median of {SAMPLES} on this machine before the runs");
        Cost { ns, from }
    };
    let wake = || cost(wake_ns, "a thread that sleeps is woken by another one");
    (costs.wake, costs.worker_wake, costs.daemon_wake) = (wake(), wake(), wake());
    costs.timer_late = cost(late_ns, "a sleep of 2 ms ends late");
    Ok(costs)
}

/// From waking a sleeping thread to its running.
fn wake_ns() -> Result<u64> {
    let (wake, woken): (Sender<Instant>, Receiver<Instant>) = channel();
    let sleeper = thread::Builder::new().name("sleeper".to_owned());
    let sleeper = sleeper.spawn(move || woken.iter().map(|at| at.elapsed()).collect::<Vec<_>>())?;
    for _ in 0..SAMPLES {
        thread::sleep(PAUSE);
        wake.send(Instant::now()).context("the sleeper has ended")?;
    }
    drop(wake);
    let delays = sleeper.join().map_err(|_| anyhow::anyhow!("the sleeper failed"))?;
    Ok(middle(&delays))
}

/// By how much a sleep takes longer than it should.
fn late_ns() -> u64 {
    let late = |_| {
        let began = Instant::now();
        thread::sleep(PAUSE);
        began.elapsed().saturating_sub(PAUSE)
    };
    middle(&(0..SAMPLES).map(late).collect::<Vec<_>>())
}

/// A run of a node by which a cost is fitted: what the device idles more than the simulated one is
/// laid on each event of a kind.
struct Fit {
    configuration: Configuration,
    /// Time between two of the events, in ns.
    every_ns: f64,
    what: &'static str,
    cost: fn(&mut Calibration) -> &mut Cost,
}

/// The costs with what is fitted to runs on this machine.
pub(super) fn fitted(
    mut costs: Calibration,
    mut real: impl FnMut(&Configuration) -> Result<Seen>,
    model: &Model,
) -> Result<Calibration> {
    for fit in fits() {
        let idle = |seen: &Seen| {
            #[expect(clippy::cast_precision_loss, reason = "a few seconds")]
            let window_s = model.window_s as f64;
            1.0 - Figures::of(&fit.configuration, seen, window_s).shares.iter().sum::<f64>()
        };
        let model = Model { costs: costs.clone(), ..model.clone() };
        let more = idle(&real(&fit.configuration)?) - idle(&simulate(&fit.configuration, &model)?);
        let cost = (fit.cost)(&mut costs);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "short")]
        let more_ns = (more.max(0.0) * fit.every_ns) as u64;
        cost.ns += more_ns;
        cost.from = format!("{}; {} on this machine before the runs", cost.from, fit.what);
    }
    Ok(costs)
}

fn fits() -> [Fit; 2] {
    let endless = |weight, us| {
        let load = Load::Kernels { us };
        Tenant { device: 0, weight, user_facing: false, load }
    };
    let load = Load::Requests { us: 172, launches: 1, period_us: 200_000, seed: 1 };
    let service = Tenant { user_facing: true, load, ..endless(1, 172) };
    let on = |quantum_us, tenants| Configuration { devices: 1, quantum_us, tenants };
    let long = Tenant { load: Load::Long, ..endless(1, 0) };
    [
        Fit {
            configuration: on(3_000, vec![endless(1, 172), endless(1, 172)]),
            every_ns: 3e6,
            what: "idle time of a device at the end of turns of 3 ms",
            cost: |costs| &mut costs.device_switch,
        },
        Fit {
            configuration: on(6_000, vec![long, service]),
            every_ns: 2e6,
            what: "idle time between pieces of 2 ms",
            cost: |costs| &mut costs.slice,
        },
    ]
}

fn middle(delays: &[Duration]) -> u64 {
    let ns: Vec<f64> = delays.iter().map(|delay| delay.as_secs_f64() * 1e9).collect();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a short time")]
    let middle = median(&ns) as u64;
    middle
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_measured_replaces_what_was_measured_elsewhere() {
        let costs = measured(Calibration::default()).unwrap();
        assert!(costs.wake.ns > 0 && costs.timer_late.ns > 0);
        assert!(costs.wake.from.contains("this machine"));
        assert_eq!(costs.submit.ns, Calibration::default().submit.ns);
    }

    /// A machine that loses more than the simulator makes switches and pieces dearer, and
    /// one that loses less makes nothing cheaper.
    #[test]
    fn what_a_device_idles_is_laid_on_what_happens() {
        let costs = Calibration::default();
        let policy = "fair";
        let model = Model { costs: costs.clone(), policy, warm_up_s: 1, window_s: 1, phase: 0 };
        let lossy = |configuration: &Configuration| {
            let mut seen = simulate(configuration, &model)?;
            seen.work_s[0] -= 0.01;
            Ok(seen)
        };
        let fit = fitted(costs.clone(), lossy, &model).unwrap();
        let (switch_ns, slice_ns) = (fit.device_switch.ns, fit.slice.ns);
        assert!((25_000..35_000).contains(&switch_ns), "1 % of 3 ms: {switch_ns}");
        assert!((15_000..25_000).contains(&slice_ns), "1 % of 2 ms: {slice_ns}");
        let busy = |configuration: &Configuration| {
            let mut seen = simulate(configuration, &model)?;
            seen.work_s[0] += 0.01;
            Ok(seen)
        };
        let fit = fitted(costs.clone(), busy, &model).unwrap();
        assert_eq!(fit.device_switch.ns, costs.device_switch.ns);
    }
}
