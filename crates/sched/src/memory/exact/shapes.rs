//! Layouts with one shared run: those that share lie in it, at most one sticks out at either end,
//! the rest are alone.
//!
//! They are ranked by copies at most: a slot alone saves its owner's rate, so for a given length of
//! the run this is a knapsack whose items may be taken whole, cut at most twice, or, if they fit
//! into the run, left. That one shared run is enough for that measure is not proved; it agrees with
//! exhaustive search wherever that ends.
//!
//! The dynamic program takes `lengths x vGPUs x slots` steps. Beyond [`STEPS_MAX`] the best of a
//! bounded number of greedy layouts is taken.

use alloc::vec;
use alloc::vec::Vec;

use super::super::layout::Layout;
use super::super::{Demand, Problem};

/// Steps of the dynamic program, about 1 ns each.
const STEPS_MAX: usize = 1_000_000;
/// Lengths of the shared run that the greedy search tries.
const GREEDY_LENGTHS: usize = 32;
/// A knapsack that cannot be filled that way.
const NONE: i64 = -1;

/// How one vGPU lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lies {
    /// In the shared run.
    Inside,
    /// With nobody else.
    Alone,
    /// So many slots stick out of the shared run.
    Out(usize),
}

/// A shared run of that length, and who lies how.
struct Shape {
    length: usize,
    lies: Vec<Lies>,
}

/// The best of them, or what comes near it where there are too many.
pub(super) fn place(problem: &Problem<'_>) -> Layout {
    let shape = if is_small(problem) { program(problem) } else { greedy(problem) };
    lay(problem, &shape)
}

fn is_small(problem: &Problem<'_>) -> bool {
    let largest = problem.demands.iter().map(|demand| demand.slots).max().unwrap_or(0);
    let states = problem.region.saturating_mul(problem.total()).saturating_mul(3);
    states.saturating_mul(largest) <= STEPS_MAX
}

fn program(problem: &Problem<'_>) -> Shape {
    let largest = problem.demands.iter().map(|demand| demand.slots).max().unwrap_or(1);
    let saved = |length: usize| knapsack(problem, length, None).into_iter().max();
    let best = (1..=largest).max_by_key(|length| (saved(*length), -signed(*length)));
    let length = best.unwrap_or(largest);
    let mut takes = Vec::new();
    let values = knapsack(problem, length, Some(&mut takes));
    Shape { length, lies: follow(problem, length, &values, &takes) }
}

/// For each vGPU and state: how many slots it takes there.
type Takes = Vec<Vec<usize>>;

/// Copies saved per 1,000 rounds with a shared run of that length, for each state: how many stick
/// out, and slots used beside the run.
fn knapsack(problem: &Problem<'_>, length: usize, mut takes: Option<&mut Takes>) -> Vec<i64> {
    let width = problem.region - length + 1;
    let mut best = vec![NONE; 3 * width];
    best[0] = 0;
    for demand in problem.demands {
        let mut took = vec![0; if takes.is_some() { 3 * width } else { 0 }];
        // Downwards, so that what is read is still without this vGPU.
        for state in (0..3 * width).rev() {
            let (value, taken) = step(demand, length, &best, state, width);
            best[state] = value;
            if let Some(took) = took.get_mut(state) {
                *took = taken;
            }
        }
        if let Some(takes) = takes.as_deref_mut() {
            takes.push(took);
        }
    }
    best
}

/// The best that one more vGPU makes of a state, and how many slots it takes for that.
fn step(demand: &Demand, length: usize, best: &[i64], state: usize, width: usize) -> (i64, usize) {
    let (pieces, used) = (state / width, state % width);
    let rate = i64::from(demand.rate);
    let mut found = if demand.slots <= length { (best[state], 0) } else { (NONE, 0) };
    let mut offer = |before: i64, slots: usize| {
        if before != NONE && before + rate * signed(slots) > found.0 {
            found = (before + rate * signed(slots), slots);
        }
    };
    if demand.slots <= used {
        offer(best[state - demand.slots], demand.slots);
    }
    if pieces > 0 {
        let least = demand.slots.saturating_sub(length).max(1);
        for slots in least..=used.min(demand.slots - 1) {
            offer(best[state - width - slots], slots);
        }
    }
    found
}

/// Who lies how in the best layout, from the last vGPU back.
fn follow(problem: &Problem<'_>, length: usize, values: &[i64], takes: &Takes) -> Vec<Lies> {
    let width = problem.region - length + 1;
    let mut state = (0..values.len()).max_by_key(|state| values[*state]).unwrap_or(0);
    let mut lies = Vec::with_capacity(takes.len());
    for (demand, took) in problem.demands.iter().zip(takes).rev() {
        let slots = took[state];
        if slots == 0 {
            lies.push(Lies::Inside);
        } else if slots == demand.slots {
            lies.push(Lies::Alone);
            state -= slots;
        } else {
            lies.push(Lies::Out(slots));
            state -= width + slots;
        }
    }
    lies.reverse();
    lies
}

/// For each of some lengths: what must stick out does, then whoever runs most is alone.
fn greedy(problem: &Problem<'_>) -> Shape {
    let mut lengths: Vec<usize> = problem.demands.iter().map(|demand| demand.slots).collect();
    lengths.sort_unstable();
    lengths.dedup();
    let order = problem.largest_first(|demand| u64::from(demand.rate));
    let fits = |length: usize| fill(problem, &order, length).is_some();
    let first = lengths.partition_point(|length| !fits(*length));
    let stride = (lengths.len() - first).div_ceil(GREEDY_LENGTHS).max(1);
    let tried = lengths.iter().skip(first).step_by(stride);
    let shapes = tried.filter_map(|length| fill(problem, &order, *length));
    shapes
        .max_by_key(|(saved, shape)| (*saved, -signed(shape.length)))
        .map(|(_, shape)| shape)
        .unwrap_or_else(|| {
            let length = lengths.last().copied().unwrap_or(0);
            Shape { length, lies: vec![Lies::Inside; problem.demands.len()] }
        })
}

/// A layout with a run of that length and what it saves, `None` where those that must be alone do
/// not fit.
fn fill(problem: &Problem<'_>, order: &[usize], length: usize) -> Option<(u64, Shape)> {
    let mut left = problem.region.checked_sub(length)?;
    let mut lies = vec![Lies::Inside; problem.demands.len()];
    let mut saved = 0;
    for (demand, lies) in problem.demands.iter().zip(&mut lies) {
        if demand.slots > length {
            left = left.checked_sub(demand.slots)?;
            saved += u64::from(demand.rate) * demand.slots as u64;
            *lies = Lies::Alone;
        }
    }
    for &index in order.iter().filter(|index| problem.demands[**index].slots <= length) {
        let demand = &problem.demands[index];
        let taken = demand.slots.min(left);
        left -= taken;
        saved += u64::from(demand.rate) * taken as u64;
        lies[index] = match taken {
            0 => break,
            all if all == demand.slots => Lies::Alone,
            some => Lies::Out(some),
        };
    }
    Some((saved, Shape { length, lies }))
}

/// From the left: those alone, the run with what sticks out of it at either end.
fn lay(problem: &Problem<'_>, shape: &Shape) -> Layout {
    let pieces = || shape.lies.iter().enumerate().filter(|(_, lies)| matches!(lies, Lies::Out(_)));
    let left = pieces().next();
    let out = |piece: Option<(usize, &Lies)>| match piece {
        Some((_, Lies::Out(slots))) => *slots,
        Some((_, Lies::Inside | Lies::Alone)) | None => 0,
    };
    let alone = problem.demands.iter().zip(&shape.lies).filter(|(_, lies)| **lies == Lies::Alone);
    let run = alone.map(|(demand, _)| demand.slots).sum::<usize>() + out(left);
    let mut next = 0;
    let mut starts = Vec::with_capacity(problem.demands.len());
    for (index, (demand, lies)) in problem.demands.iter().zip(&shape.lies).enumerate() {
        starts.push(match lies {
            Lies::Inside => run,
            Lies::Alone => {
                next += demand.slots;
                next - demand.slots
            }
            Lies::Out(slots) if left.is_some_and(|(first, _)| first == index) => run - slots,
            Lies::Out(slots) => run + shape.length + slots - demand.slots,
        });
    }
    Layout::contiguous(problem, &starts)
}

fn signed(slots: usize) -> i64 {
    i64::try_from(slots).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
