//! The part of the time in which the device runs somebody, with copies in the open and hidden.

use weft_sched::memory::Demand;

use super::copies::round_robin;
use super::machine::{Machine, Ran};
use super::{COUNTS, OTHER_NS, QUANTUM_NS, SLOT_ENTRIES, SLOT_NS, Setup, demands, mixed, place};
use crate::outcome::{Outcome, PlotKind};
use crate::random::Random;

/// A machine that writes ahead, in the order of turns that suits the placement.
pub(super) fn ahead(name: &str, demands: &[Demand], rounds: u64, slot_ns: u64) -> Ran {
    bending(name, demands, rounds, slot_ns, None)
}

fn bending(
    name: &str,
    demands: &[Demand],
    rounds: u64,
    slot_ns: u64,
    sigma_ns: Option<u64>,
) -> Ran {
    let machine = Machine { ahead: true, sigma_ns, ..Machine::in_turn(slot_ns) };
    machine.run(&place(name, demands), demands, rounds, &mut Random::new(0))
}

pub(super) fn pipeline(setup: &Setup) -> Outcome {
    let rounds = if setup.quick { 20 } else { 1_000 };
    let window = format!("{rounds} rounds after the first, quanta of 16 ms, 1.22 ms a slot");
    let title = "Efficiency of the device with hidden copies";
    let mut outcome = Outcome::new("pipeline", title, window);
    let fifteen = mixed(15);
    let scores = round_robin("scores", &fifteen, rounds, SLOT_NS);
    let size = round_robin("size", &fifteen, rounds, SLOT_NS);
    let one_pile = ahead("size", &fifteen, rounds, SLOT_NS);
    let pipelined = ahead("pipelined", &fifteen, rounds, SLOT_NS);
    outcome.figure("scores_efficiency", scores.efficiency());
    outcome.figure("size_efficiency", size.efficiency());
    outcome.figure("one_pile_ahead_efficiency", one_pile.efficiency());
    outcome.figure("pipelined_efficiency", pipelined.efficiency());
    let switch_ns = SLOT_NS + OTHER_NS;
    outcome.figure("scores_efficiency_with_low", scores.efficiency_with(switch_ns));
    outcome.figure("pipelined_efficiency_with_low", pipelined.efficiency_with(switch_ns));
    let most = QUANTUM_NS as f64 / (QUANTUM_NS + switch_ns) as f64;
    outcome.baseline("efficiency_ceiling_with_low", most);
    outcome.figure("pipelined_copies_per_turn", pipelined.copies_per_turn());
    outcome.figure("pipelined_stall_ms_max", pipelined.stall_max_ns as f64 / 1e6);
    outcome.figure("scores_stall_ms_max", scores.stall_max_ns as f64 / 1e6);
    lag(&mut outcome, &fifteen, rounds, scores.lag_quanta);
    let share = |ran: &Ran| {
        let (least, most) = (ran.of_each.iter().min(), ran.of_each.iter().max());
        super::part(least.copied().unwrap_or(0) as f64, most.copied().unwrap_or(0) as f64)
    };
    outcome.figure("pipelined_mmr", share(&pipelined));
    let three = [&scores, &size, &pipelined];
    let shares = three.map(|ran| format!("{:.3}", share(ran))).join(", ");
    let used =
        three.map(|ran| format!("{:.0} %", ran.efficiency_with(switch_ns) * 100.0)).join(", ");
    outcome.compare(
        "Figure 13: use of the device, 15 VMs that are always busy",
        "similar, 80 to 90 %",
        format!("{used} (scores, size, pipelined)"),
    );
    outcome.compare("the same: least over most turns of a VM", "not in the paper", shares);
    // Without a second pile to write into there is nothing to hide behind.
    let control = ahead("scores", &demands([super::REGION; 4]), rounds.min(100), SLOT_NS);
    outcome.control("efficiency_all_as_large_as_the_region", control.efficiency());
    for ran in [scores, size, one_pile, pipelined, control] {
        outcome.other_violations += ran.violations;
        outcome.first_violation = outcome.first_violation.or(ran.broken);
    }
    against_count(&mut outcome, rounds.min(100));
    against_cost(&mut outcome, rounds.min(100));
    compare(&mut outcome);
    outcome.note(
        "`pipelined` keeps to its order in every round (`fixed`). Where the order may bend \
         (`bends_0`: among equal tags, `bends_1q`: within a quantum), the next is whoever leaves least \
         to write, and the one that ran last may be that. `lag_quanta_over` is beside round robin.",
    );
    outcome.note(
        "`modelled` costs: the slot's entries are written at 74 ns each, during a turn as fast as at \
         a switch and at no cost to whoever runs. The low region's slot cannot be written ahead, \
         because everybody uses it: `with_low` counts it and the switch's other work, and \
         `efficiency_ceiling_with_low` is what no placement exceeds then.",
    );
    outcome
}

/// What bending the order costs in lag, and what it brings.
fn lag(outcome: &mut Outcome, demands: &[Demand], rounds: u64, plain: i64) {
    let orders = [("fixed", None), ("bends_0", Some(0)), ("bends_1q", Some(QUANTUM_NS))];
    for (text, sigma_ns) in orders {
        let ran = bending("pipelined", demands, rounds, SLOT_NS, sigma_ns);
        let over = (ran.lag_quanta - plain) as f64;
        outcome.figure(format!("lag_quanta_over_{text}"), over);
        outcome.figure(format!("pipelined_efficiency_{text}"), ran.efficiency());
        outcome.figure(format!("pipelined_copies_per_turn_{text}"), ran.copies_per_turn());
        if sigma_ns.is_none() {
            outcome.figure("lag_quanta_over", over);
        }
    }
    outcome.baseline("lag_quanta_round_robin", plain as f64);
}

fn against_count(outcome: &mut Outcome, rounds: u64) {
    let mut lines = vec![Vec::new(); 4];
    for count in COUNTS {
        let demands = mixed(count);
        let runs = [
            round_robin("scores", &demands, rounds, SLOT_NS),
            round_robin("size", &demands, rounds, SLOT_NS),
            ahead("size", &demands, rounds, SLOT_NS),
            ahead("pipelined", &demands, rounds, SLOT_NS),
        ];
        for (line, ran) in lines.iter_mut().zip(runs) {
            line.push((count as f64, ran.efficiency()));
        }
    }
    let names = ["scores", "size", "size, written ahead", "pipelined"];
    let plot = outcome.plot(PlotKind::Lines, "Efficiency, 1.22 ms a slot", "vGPUs", "efficiency");
    plot.line_at(0.9, "goal");
    for (name, line) in names.into_iter().zip(lines) {
        plot.series(name, line);
    }
}

/// Entries cost 52 to 91 ns in Figure 3.
fn against_cost(outcome: &mut Outcome, rounds: u64) {
    let demands = mixed(15);
    let mut lines = vec![Vec::new(); 3];
    for entry_ns in [52, 60, 67, 74, 82, 91] {
        let slot_ns = SLOT_ENTRIES * entry_ns;
        let runs = [
            round_robin("scores", &demands, rounds, slot_ns),
            round_robin("size", &demands, rounds, slot_ns),
            ahead("pipelined", &demands, rounds, slot_ns),
        ];
        for (line, ran) in lines.iter_mut().zip(runs) {
            line.push((entry_ns as f64, ran.efficiency()));
        }
    }
    for (place, end) in [(0, "52ns"), (5, "91ns")] {
        outcome.figure(format!("pipelined_efficiency_{end}"), lines[2][place].1);
        outcome.figure(format!("scores_efficiency_{end}"), lines[0][place].1);
    }
    let title = "Efficiency, 15 vGPUs, against the cost of an entry";
    let plot = outcome.plot(PlotKind::Lines, title, "ns per entry", "efficiency");
    for (name, line) in ["scores", "size", "pipelined"].into_iter().zip(lines) {
        plot.series(name, line);
    }
}

fn compare(outcome: &mut Outcome) {
    let of = |outcome: &Outcome, name: &str| format!("{:.3}", outcome.figures[name]);
    let rows = [
        ("scores, copies at the switch", "0.54 (estimate)", "scores_efficiency"),
        ("Algorithm 1, copies at the switch", "0.61 (estimate)", "size_efficiency"),
        ("Algorithm 1, written ahead", "0.71 (estimate)", "one_pile_ahead_efficiency"),
        ("two piles, written ahead", "0.94 (estimate)", "pipelined_efficiency"),
    ];
    for (what, estimate, name) in rows {
        let ours = of(outcome, name);
        outcome.compare(&format!("efficiency, 15 vGPUs: {what}"), estimate, ours);
    }
}
