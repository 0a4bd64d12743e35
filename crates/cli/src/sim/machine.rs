//! What things cost on this machine, for the simulator: waking and sleeping by themselves, and what
//! a node loses of its device at a switch and at a piece of a long kernel, in runs that nobody
//! judges.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use weft_sim::predict::{Configuration, Figures, Load, Model, Seen, Tenant, simulate};
use weft_sim::{Calibration, Cost};

/// Between two wake-ups, and how long is slept.
const PAUSE: Duration = Duration::from_millis(2);
/// The beginning and the end of a run are not looked at: its node and programs start, and end.
const EDGES: (Duration, Duration) = (Duration::from_millis(2_500), Duration::from_millis(1_500));

/// A delay, and when it was seen.
type Sample = (Instant, Duration);

/// What waking and sleeping took beside a node's processes, in ns.
#[derive(Debug)]
struct Delays {
    /// From waking a sleeping thread to its running.
    wake: Vec<u64>,
    /// By how much a thread without timer slack sleeps longer than it should: a daemon's, a
    /// worker's.
    timer: Vec<u64>,
    /// The same of a thread with the usual slack: a program's. In order.
    sleep: Vec<u64>,
}

/// The costs with this machine's wake-ups and timers in the place of those that were measured on
/// another one, beside what `load` runs; and by how much programs slept longer than they should.
pub(super) fn measured<T>(
    costs: Calibration,
    load: impl FnOnce() -> Result<T>,
) -> Result<(Calibration, Vec<u64>)> {
    measured_between(EDGES, costs, load)
}

fn measured_between<T>(
    edges: (Duration, Duration),
    mut costs: Calibration,
    load: impl FnOnce() -> Result<T>,
) -> Result<(Calibration, Vec<u64>)> {
    let delays = delays_beside(edges, load)?;
    let cost = |ns: &[u64], what: &str| {
        let ns = middle(ns);
        let from = format!("{what}, median beside a node at work on this machine before the runs");
        Cost { ns, from }
    };
    let wake = || cost(&delays.wake, "a thread that sleeps is woken by another one");
    (costs.wake, costs.worker_wake, costs.daemon_wake) = (wake(), wake(), wake());
    costs.timer_late = cost(&delays.timer, "a sleep of 2 ms without slack ends late");
    Ok((costs, delays.sleep))
}

/// Says to the samplers that the run is over, also where it panics.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

fn delays_beside<T>(
    edges: (Duration, Duration),
    load: impl FnOnce() -> Result<T>,
) -> Result<Delays> {
    let (began, is_over) = (Instant::now(), AtomicBool::new(false));
    let is_over = &is_over;
    let sampled = thread::scope(|scope| {
        let over = Over(is_over);
        let wake = scope.spawn(move || Ok(wakes(is_over)));
        let timer = scope.spawn(move || -> Result<Vec<Sample>> {
            // Without it this is what the usual slack makes of it: more than is asked for.
            rustix::thread::set_current_timer_slack(NonZeroU64::new(1))
                .context("a thread keeps the usual timer slack")?;
            Ok(sleeps(is_over))
        });
        let sleep = scope.spawn(move || Ok(sleeps(is_over)));
        let run = load();
        drop(over);
        run.map(|_| [wake.join(), timer.join(), sleep.join()])
    })?;
    let ended = Instant::now();
    let [wake, timer, sleep] = sampled.map(|samples| {
        let samples = samples.map_err(|_| anyhow!("a sampler failed"))??;
        looked_at(&samples, edges, (began, ended))
    });
    Ok(Delays { wake: wake?, timer: timer?, sleep: sleep? })
}

/// Those of a run's delays that were seen between its edges, in ns, in order.
fn looked_at(
    samples: &[Sample],
    (starts, ends): (Duration, Duration),
    (began, ended): (Instant, Instant),
) -> Result<Vec<u64>> {
    let inside = samples.iter().filter(|(at, _)| *at >= began + starts && *at + ends <= ended);
    #[expect(clippy::cast_possible_truncation, reason = "short times")]
    let mut ns: Vec<u64> = inside.map(|(_, delay)| delay.as_nanos() as u64).collect();
    ensure!(
        !ns.is_empty(),
        "a run of {:?} has nothing left without its first {starts:?} and its last {ends:?}",
        ended - began
    );
    ns.sort_unstable();
    Ok(ns)
}

/// From waking a sleeping thread to its running, again and again.
fn wakes(is_over: &AtomicBool) -> Vec<Sample> {
    let (wake, woken) = channel::<Instant>();
    thread::scope(|scope| {
        let sleeper = scope.spawn(move || woken.iter().map(|at| (at, at.elapsed())).collect());
        wake_until(is_over, &wake);
        drop(wake);
        sleeper.join().unwrap_or_default()
    })
}

fn wake_until(is_over: &AtomicBool, wake: &Sender<Instant>) {
    while !is_over.load(Ordering::Acquire) {
        thread::sleep(PAUSE);
        if wake.send(Instant::now()).is_err() {
            return;
        }
    }
}

/// By how much sleeps take longer than they should.
fn sleeps(is_over: &AtomicBool) -> Vec<Sample> {
    let mut samples = Vec::new();
    while !is_over.load(Ordering::Acquire) {
        let began = Instant::now();
        thread::sleep(PAUSE);
        samples.push((began, began.elapsed().saturating_sub(PAUSE)));
    }
    samples
}

/// What the machine is as busy with as with a judged configuration, and is not judged: two devices
/// with two tenants that work without end each, and a service.
pub(super) fn busy() -> Configuration {
    let on = |device| {
        let tenant = |user_facing, load| Tenant { device, weight: 1, user_facing, load };
        let load = Load::Requests { us: 285, launches: 2, period_us: 12_000, seed: 1 };
        let endless = |us| tenant(false, Load::Kernels { us });
        [endless(172), endless(391), tenant(true, load)]
    };
    let tenants = [on(0), on(1)].concat();
    Configuration { devices: 2, quantum_us: 3_000, tenants }
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

fn middle(delays_ns: &[u64]) -> u64 {
    delays_ns.get(delays_ns.len() / 2).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_measured_replaces_what_was_measured_elsewhere() {
        let whole = (Duration::ZERO, Duration::ZERO);
        let load = || {
            (0..20).for_each(|_| thread::sleep(PAUSE));
            Ok(())
        };
        let (costs, lateness_ns) = measured_between(whole, Calibration::default(), load).unwrap();
        assert!(costs.wake.ns > 0 && costs.timer_late.ns > 0);
        assert!(costs.wake.from.contains("this machine"));
        assert_eq!(costs.submit.ns, Calibration::default().submit.ns);
        assert!(lateness_ns.len() > 1 && lateness_ns.is_sorted(), "{lateness_ns:?}");
        measured(Calibration::default(), || Err::<(), _>(anyhow!("no node"))).unwrap_err();
    }

    /// Of a run that ends within its edges nothing is known, and what is not known is not 0.
    #[test]
    fn a_run_too_short_to_be_looked_at_costs_something_unknown() {
        let error = measured(Calibration::default(), || Ok(())).unwrap_err();
        assert!(error.to_string().contains("nothing left"), "{error}");
    }

    #[test]
    #[should_panic(expected = "the load's own")]
    fn a_run_that_panics_ends_the_samplers() {
        let whole = (Duration::ZERO, Duration::ZERO);
        let _never = measured_between(whole, Calibration::default(), || -> Result<()> {
            panic!("the load's own");
        });
    }

    /// A machine that loses more than the simulator makes switches and pieces dearer, and
    /// one that loses less makes nothing cheaper.
    #[test]
    fn what_a_device_idles_is_laid_on_what_happens() {
        let costs = Calibration::default();
        let policy = "fair";
        let mut model = Model::new(costs.clone(), policy);
        model.window_s = 1;
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
