//! Two piles, so that the next vGPU's slots are written while the current one runs (Weft).
//!
//! One pile lies at the left end of the region, one at the right, those alone between them; one
//! vGPU of each pile sticks out into what is left there. Turns alternate between the piles, and
//! those alone run where two of one pile would follow each other, or before one with more shared
//! slots than a quantum hides. Lengths of the piles are tried and judged by what stays visible.

use alloc::vec;
use alloc::vec::Vec;

use super::layout::{Layout, Place, Run};
use super::{Problem, exact};

/// Lengths that are tried for each pile.
const LENGTHS: usize = 8;

/// Where one vGPU lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Left,
    Right,
    Alone,
}

pub(super) fn place(problem: &Problem<'_>) -> Layout {
    if problem.total() <= problem.region {
        return Layout::side_by_side(problem);
    }
    let lengths = lengths(problem);
    let pairs = lengths.iter().flat_map(|left| lengths.iter().map(move |right| (*left, *right)));
    let tried = pairs.filter(|(left, right)| right <= left && left + right <= problem.region);
    let split = tried.filter_map(|(left, right)| deal(problem, left, right));
    // One pile is what is left where two have no room.
    let piled = split.map(|parts| lay(problem, &parts)).chain([exact::place(problem)]);
    let best = piled.min_by_key(|layout| cost(problem, layout));
    best.unwrap_or_else(|| exact::place(problem))
}

/// Copies per 1,000 rounds that no quantum hides: the shared slots beyond `hidden`, and all shared
/// slots of those that must follow one of their own pile.
pub(super) fn cost(problem: &Problem<'_>, layout: &Layout) -> u64 {
    let shared = layout.shared();
    let piles = piles(layout, &shared);
    let (mut rates, mut copies, mut beyond) = ([0_u64; 3], [0_u64; 3], 0);
    for (index, demand) in problem.demands.iter().enumerate() {
        let (rate, slots) = (u64::from(demand.rate), shared[index]);
        let pile = piles[index];
        rates[pile] += rate;
        copies[pile] += rate * slots.min(problem.hidden) as u64;
        beyond += rate * slots.saturating_sub(problem.hidden) as u64;
    }
    let larger = usize::from(rates[1] > rates[0]);
    let clash = rates[larger].saturating_sub(rates[1 - larger] + rates[2]);
    // Each turn of one alone also doubles the time for the copies after it.
    let idle = rates[2].saturating_sub(rates[larger] - rates[1 - larger].min(rates[larger]));
    let helped = (idle * problem.hidden as u64).min(beyond);
    beyond - helped + clash * copies[larger] / rates[larger].max(1)
}

/// The longest shared runs worth trying: sizes, evenly chosen, and what a quantum hides.
fn lengths(problem: &Problem<'_>) -> Vec<usize> {
    let mut sizes: Vec<usize> = problem.demands.iter().map(|demand| demand.slots).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let stride = sizes.len().div_ceil(LENGTHS).max(1);
    let mut tried: Vec<usize> = sizes.iter().rev().step_by(stride).copied().collect();
    tried.dedup();
    tried
}

/// Who lies where with piles of at most those lengths; `None` where some do not fit.
fn deal(problem: &Problem<'_>, left: usize, right: usize) -> Option<Vec<Part>> {
    let mut room = problem.region - left - right;
    let mut parts = vec![Part::Left; problem.demands.len()];
    // Most is visible of those with many slots, then of those that run often.
    let order = problem.largest_first(|demand| {
        let beyond = demand.slots.saturating_sub(problem.hidden) as u64;
        (beyond + 1) * u64::from(demand.rate) + u64::from(demand.slots > left) * (1 << 48)
    });
    let mut piled = Vec::new();
    for index in order {
        let slots = problem.demands[index].slots;
        if slots <= room {
            room -= slots;
            parts[index] = Part::Alone;
        } else if slots > left {
            return None;
        } else {
            piled.push(index);
        }
    }
    // Those that fit into one pile only go first, the others balance the turns.
    piled.sort_by_key(|index| problem.demands[*index].slots <= right);
    let mut rates = [0_u64; 2];
    for index in piled {
        let demand = &problem.demands[index];
        let to_right = demand.slots <= right && rates[1] <= rates[0];
        parts[index] = if to_right { Part::Right } else { Part::Left };
        rates[usize::from(to_right)] += u64::from(demand.rate);
    }
    Some(parts)
}

fn lay(problem: &Problem<'_>, parts: &[Part]) -> Layout {
    let slots = |index: usize| problem.demands[index].slots;
    let of = |part: Part| (0..parts.len()).filter(move |index| parts[*index] == part);
    let lengths = [Part::Left, Part::Right].map(|part| two_longest(of(part).map(slots)));
    let alone: usize = of(Part::Alone).map(slots).sum();
    let mut left = problem.region.saturating_sub(alone + lengths[0].1 + lengths[1].1);
    // The longest of a pile sticks out as far as there is room, and the others share less.
    let out = lengths.map(|(longest, second)| {
        let out = (longest - second).min(left);
        left -= out;
        out
    });
    let mut next = lengths[0].1 + out[0];
    let mut starts = Vec::with_capacity(parts.len());
    for (index, part) in parts.iter().enumerate() {
        starts.push(match part {
            Part::Left => 0,
            Part::Right => problem.region - slots(index),
            Part::Alone => {
                next += slots(index);
                next - slots(index)
            }
        });
    }
    let mut layout = Layout::contiguous(problem, &starts);
    layout.order = alternate(problem, &layout);
    layout
}

/// The two largest of some numbers, 0 where there are fewer.
fn two_longest(numbers: impl Iterator<Item = usize>) -> (usize, usize) {
    numbers.fold(
        (0, 0),
        |(first, second), number| {
            if number > first { (number, first) } else { (first, second.max(number)) }
        },
    )
}

/// For each place: 0 or 1, the pile that it shares slots with, or 2 where it shares none.
fn piles(layout: &Layout, shared: &[usize]) -> Vec<usize> {
    let touches_left = |place: &Place| place.runs.iter().any(|run: &Run| run.start == 0);
    let pile = |(place, shared): (&Place, &usize)| match (shared, touches_left(place)) {
        (0, _) => 2,
        (_, true) => 0,
        (_, false) => 1,
    };
    layout.places.iter().zip(shared).map(pile).collect()
}

/// An order in which the piles alternate as far as they can.
fn alternate(problem: &Problem<'_>, layout: &Layout) -> Vec<usize> {
    let shared = layout.shared();
    let piles = piles(layout, &shared);
    let mut groups: [Vec<usize>; 3] = Default::default();
    // From the back, so that those with most copies are taken first.
    let mut by_shared: Vec<usize> = (0..problem.demands.len()).collect();
    by_shared.sort_by_key(|index| shared[*index]);
    for index in by_shared {
        groups[piles[index]].push(index);
    }
    let [mut long, mut short, mut alone] = groups;
    if short.len() > long.len() {
        core::mem::swap(&mut long, &mut short);
    }
    let mut spare = alone.len().saturating_sub(long.len() - short.len());
    let mut order = Vec::with_capacity(problem.demands.len());
    while let Some(index) = long.pop() {
        order.push(index);
        let lacks = short.is_empty();
        order.extend(short.pop().or_else(|| alone.pop()));
        let heavy = long.last().is_some_and(|next| shared[*next] > problem.hidden);
        if !lacks && spare > 0 && heavy {
            spare -= 1;
            order.extend(alone.pop());
        }
    }
    order.extend(alone);
    order
}
