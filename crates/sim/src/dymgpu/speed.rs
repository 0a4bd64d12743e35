//! What a decision costs on this machine, in real time.

use std::hint::black_box;
use std::time::Instant;

use weft_sched::VgpuKey;
use weft_sched::memory::{self, Demand, Manager, ManagerConfig, MonitorConfig, Problem, Rule};

use super::{MANAGED, REGION, Setup, mixed, problem, settings};
use crate::outcome::Outcome;
use crate::random::Random;
use crate::seeds::median;

const S: u64 = 1_000_000_000;
/// What a manager decides on.
const EVENTS: [&str; 4] = ["look", "wake", "destroy", "create"];

/// How many vGPUs there are, on ten slots each.
struct Size {
    vgpus: u32,
    region: usize,
    runs: u32,
}

pub(super) fn speed(setup: &Setup) -> Outcome {
    let size = match setup.quick {
        true => Size { vgpus: 100, region: 1_000, runs: 5 },
        false => Size { vgpus: 1_000, region: 10_000, runs: 51 },
    };
    let Size { vgpus, region, runs } = size;
    let window = format!("real time: median of {runs}; {vgpus} vGPUs of 1 to 40 slots on {region}");
    let mut outcome = Outcome::new("speed", "Cost of a decision (real time)", window);
    let mut random = Random::part(setup.seed, 3);
    let demands = draw(&size, &mut random);
    let (mut most, mut worst): (f64, f64) = (0.0, 0.0);
    for (label, name, rule) in MANAGED {
        let Costs { events, search, take } = decisions(name, rule, &size, &demands, &mut random);
        for (event, costs) in EVENTS.iter().zip(events) {
            let cost = median(&costs);
            outcome.figure(format!("decision_us_{event}_{label}"), cost);
            most = most.max(cost);
            worst = costs.into_iter().fold(worst, f64::max);
        }
        // `scores` moves nobody, and the models of DymGPU's rules search at once.
        if !search.is_empty() {
            outcome.figure(format!("search_us_{label}"), median(&search));
            outcome.figure(format!("take_us_{label}"), median(&take));
        }
    }
    outcome.figure("decision_us_max", most);
    outcome.figure("decision_us_worst", worst);
    let fifteen = mixed(15);
    for (label, problem) in [
        ("place_all", Problem { region, demands: &demands, hidden: super::HIDDEN }),
        ("place_15", problem(&fifteen)),
    ] {
        for name in memory::NAMES {
            let placement = memory::by_name(name).expect("a name of the registry");
            let place = || drop(black_box(placement.place(black_box(&problem))));
            let costs: Vec<f64> = (0..runs.min(15)).map(|_| micros(place)).collect();
            outcome.figure(format!("{label}_us_{name}"), median(&costs));
        }
    }
    let is_proven = memory::is_proven(&Problem { region, demands: &demands, hidden: 0 });
    outcome.baseline("exact_is_proven_at_that_size", f64::from(u8::from(is_proven)));
    outcome.note(&format!(
        "The one experiment that is real time on this machine. A decision is one call of the \
         manager, with the plan that comes of it, as a node makes it: it takes the layout in \
         which nobody moves, and a better one is searched for by a thread of its own, for whose \
         search nobody waits (`search_us`), and taken when it is found (`take_us`, with what is \
         copied for the search). The models of DymGPU's rules place anew in the call. `look` is \
         the periodic one in which a vGPU is found idle, `wake` is that vGPU's, `destroy` and \
         `create` are another's. `decision_us_max` is the largest median of all events and \
         placements, `decision_us_worst` the longest single call, with whatever else the machine \
         ran in its middle. Beyond {} vGPUs `exact` takes the best of a bounded number of \
         layouts, without a search or a proof. `place_15` is 15 vGPUs on {REGION} slots; \
         `place_all` of `scores` is no decision that anybody takes.",
        memory::SEARCHED_MAX
    ));
    outcome
}

fn micros(decide: impl FnOnce()) -> f64 {
    let begin = Instant::now();
    decide();
    begin.elapsed().as_secs_f64() * 1e6
}

fn draw(size: &Size, random: &mut Random) -> Vec<Demand> {
    let mut number = |most| random.between(1, most);
    let demand = |key| Demand {
        vgpu: VgpuKey(key),
        slots: usize::try_from(number(40)).unwrap_or(1),
        rate: u32::try_from(number(1_000)).unwrap_or(1),
    };
    (0..size.vgpus).map(demand).collect()
}

/// What was measured, in µs.
#[derive(Default)]
struct Costs {
    /// Of each event.
    events: [Vec<f64>; EVENTS.len()],
    /// Searches for a better layout.
    search: Vec<f64>,
    /// What the manager does before and after them.
    take: Vec<f64>,
}

/// One of each event in every period.
fn decisions(
    name: &str,
    rule: Rule,
    size: &Size,
    demands: &[Demand],
    random: &mut Random,
) -> Costs {
    let settings = settings(name, rule, MonitorConfig::default(), size.region);
    let mut manager = Manager::new(ManagerConfig { defers: true, ..settings });
    let mut steps = Vec::new();
    for demand in demands {
        let created = manager.create(0, demand.vgpu, demand.slots, &mut steps);
        created.expect("each fits into the region");
        manager.wake(0, demand.vgpu, &mut steps).expect("it was created");
        steps.clear();
    }
    let mut costs = Costs::default();
    for period in 1..=size.runs {
        let now = u64::from(period) * 20 * S;
        let sleeper = demands[(2 * period) as usize % demands.len()].vgpu;
        let other = demands[(2 * period + 1) as usize % demands.len()];
        manager.rest(now - 20 * S, sleeper);
        let busy = demands.iter().filter(|demand| demand.vgpu != sleeper);
        let mut turns = busy.map(|demand| (demand.vgpu, random.between(1, 40 * S)));
        use_device(&mut manager, now - S, &mut turns, demands.len());
        let (vgpu, slots) = (other.vgpu, other.slots);
        for (number, event) in EVENTS.iter().enumerate() {
            let cost = micros(|| match *event {
                "look" => drop(black_box(manager.handle_timeout(now, &mut steps))),
                "wake" => drop(black_box(manager.wake(now, sleeper, &mut steps))),
                "destroy" => drop(black_box(manager.destroy(now, vgpu, &mut steps))),
                _ => drop(black_box(manager.create(now, vgpu, slots, &mut steps))),
            });
            costs.events[number].push(cost);
            let is_placed = manager.table().place(sleeper).is_some();
            assert_eq!(is_placed, *event != "look", "only who is idle wakes up");
            search(&mut manager, &mut costs);
        }
        manager.wake(now, vgpu, &mut steps).expect("it was created");
        steps.clear();
    }
    costs
}

/// What a node's planner does after a change.
fn search(manager: &mut Manager, costs: &mut Costs) {
    let (mut wanted, mut found, mut steps) = (None, None, Vec::new());
    let before = micros(|| wanted = manager.search());
    let Some(search) = wanted else { return };
    costs.search.push(micros(|| found = black_box(search.run())));
    let mut take = |found| _ = black_box(manager.take(&search, found, &mut steps));
    let after = found.map_or(0.0, |found| micros(|| take(found)));
    costs.take.push(before + after);
}

/// A turn of each of those, of its part of so long.
fn use_device(
    manager: &mut Manager,
    now: u64,
    turns: &mut dyn Iterator<Item = (VgpuKey, u64)>,
    count: usize,
) {
    let mut steps = Vec::new();
    for (vgpu, long_ns) in turns {
        manager.switch_to(vgpu, &mut steps);
        steps.clear();
        manager.charge(now, vgpu, long_ns / count as u64);
    }
    manager.end_turn(&mut steps).expect("accepted demands are placed");
}
