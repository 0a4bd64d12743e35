//! What programs gain: Figure 8 in spirit.

use super::copies::round_robin;
use super::pipeline::ahead;
use super::{COUNTS, OTHER_NS, SLOT_ENTRIES, SLOT_NS, Setup, mixed};
use crate::outcome::{Outcome, PlotKind};

pub(super) fn performance(setup: &Setup) -> Outcome {
    let rounds = if setup.quick { 20 } else { 200 };
    let window = format!("{rounds} rounds after the first; low region and other work included");
    let title = "What programs that only need the device gain over `scores`";
    let mut outcome = Outcome::new("performance", title, window);
    let names = ["size", "utilization", "exact", "scattered", "pipelined"];
    let mut lines = vec![Vec::new(); names.len()];
    for count in COUNTS {
        let demands = mixed(count);
        let switch_ns = SLOT_NS + OTHER_NS;
        let scores = round_robin("scores", &demands, rounds, SLOT_NS).efficiency_with(switch_ns);
        for (name, line) in names.iter().zip(&mut lines) {
            let ran = match *name {
                "pipelined" => ahead(name, &demands, rounds, SLOT_NS),
                _ => round_robin(name, &demands, rounds, SLOT_NS),
            };
            line.push((count as f64, ran.efficiency_with(switch_ns) / scores));
        }
    }
    let most = |line: &[(f64, f64)]| line.iter().map(|point| point.1).fold(0.0, f64::max);
    for (name, line) in names.iter().zip(&lines) {
        outcome.figure(format!("speedup_{name}_max"), most(line));
        for (count, (_, speedup)) in COUNTS.iter().zip(line) {
            outcome.figure(format!("speedup_{name}_{count}"), *speedup);
        }
    }
    let dear = |name: &str, count: usize, is_ahead: bool| {
        let (demands, slot_ns) = (mixed(count), SLOT_ENTRIES * 91);
        let switch_ns = slot_ns + OTHER_NS;
        let ran = if is_ahead {
            ahead(name, &demands, rounds, slot_ns)
        } else {
            round_robin(name, &demands, rounds, slot_ns)
        };
        ran.efficiency_with(switch_ns)
            / round_robin("scores", &demands, rounds, slot_ns).efficiency_with(switch_ns)
    };
    let best = COUNTS.into_iter().map(|count| dear("size", count, false)).fold(0.0, f64::max);
    outcome.figure("speedup_size_91ns_max", best);
    outcome.figure("speedup_pipelined_91ns_15", dear("pipelined", 15, true));
    let ours = format!(
        "+{:.0} % (size), +{:.0} % (size at 91 ns an entry), +{:.0} % (pipelined)",
        (outcome.figures["speedup_size_max"] - 1.0) * 100.0,
        (best - 1.0) * 100.0,
        (outcome.figures["speedup_pipelined_max"] - 1.0) * 100.0
    );
    outcome.compare("Figure 8: performance of programs, at best, equal use", "+39 %", ours);
    let ahead_by = |count: usize| {
        let of = |name: &str| outcome.figures[&format!("speedup_{name}_{count}")];
        format!("{:.1} %", (of("size") / of("utilization") - 1.0) * 100.0)
    };
    let ours = [6, 9, 12, 15].map(ahead_by).join(", ");
    let what = "Figure 8: size ahead of utilization, equal use, 6, 9, 12, 15 vGPUs";
    outcome.compare(what, "7 %, 4 %, 2 %, 1 %", ours);
    let plot = outcome.plot(PlotKind::Lines, "Speed over `scores`", "vGPUs", "times");
    for (name, line) in names.into_iter().zip(lines) {
        plot.series(name, line);
    }
    outcome.note(
        "Programs here do nothing but use the device, so that their speed is the device's efficiency. \
         The paper's also wait for the CPU and the display, and its VMs are switched before their \
         quantum ends when they have nothing to do, which makes switches dearer beside shorter turns.",
    );
    outcome
}
