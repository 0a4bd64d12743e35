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
const LENGTHS: usize = 5;

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
    // Most is visible of those with many slots, then of those that run often.
    let order = problem.largest_first(|demand| {
        let beyond = demand.slots.saturating_sub(problem.hidden) as u64;
        (beyond + 1) * u64::from(demand.rate)
    });
    let lengths = lengths(problem);
    let pairs = lengths.iter().flat_map(|left| lengths.iter().map(move |right| (*left, *right)));
    let tried = pairs.filter(|(left, right)| right <= left && left + right <= problem.region);
    let splits = tried.filter_map(|(left, right)| Split::deal(problem, &order, left, right));
    // One pile is what is left where two have no room.
    splits
        .min_by_key(|split| {
            visible(problem, |index| (split.shared(problem, index), split.pile(index)))
        })
        .map_or_else(|| exact::place(problem), |split| split.lay(problem))
}

pub(super) fn cost(problem: &Problem<'_>, layout: &Layout) -> u64 {
    let shared = layout.shared();
    let piles = piles(layout, &shared);
    visible(problem, |index| (shared[index], piles[index]))
}

/// Copies per 1,000 rounds that no quantum hides: the shared slots beyond `hidden`, and all shared
/// slots of those that must follow one of their own pile. Of each vGPU its shared slots and its
/// pile: 0, 1, or 2 for none.
fn visible(problem: &Problem<'_>, of: impl Fn(usize) -> (usize, usize)) -> u64 {
    let (mut rates, mut copies, mut beyond) = ([0_u64; 3], [0_u64; 3], 0);
    for (index, demand) in problem.demands.iter().enumerate() {
        let (rate, (slots, pile)) = (u64::from(demand.rate), of(index));
        rates[pile] += rate;
        copies[pile] += rate * slots.min(problem.hidden) as u64;
        beyond += rate * slots.saturating_sub(problem.hidden) as u64;
    }
    let larger = usize::from(rates[1] > rates[0]);
    let ahead = rates[larger] - rates[1 - larger];
    let clash = ahead.saturating_sub(rates[2]);
    // Turns of those alone that no clash needs double the time for the copies after them.
    let spare = rates[2].saturating_sub(ahead);
    let helped = (spare * problem.hidden as u64).min(beyond);
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

/// Two piles.
struct Split {
    parts: Vec<Part>,
    /// Of each pile the slots of the longest vGPU and of the second.
    longest: [(usize, usize); 2],
    /// Of each pile the slots of the longest vGPU that nobody else has.
    out: [usize; 2],
}

impl Split {
    /// Piles of at most those lengths; `None` where some vGPU does not fit.
    fn deal(problem: &Problem<'_>, order: &[usize], left: usize, right: usize) -> Option<Self> {
        let mut room = problem.region - left - right;
        let mut parts = vec![Part::Left; problem.demands.len()];
        let slots = |index: &usize| problem.demands[*index].slots;
        // Those that fit into neither pile are alone, or there is no such split.
        for &index in order.iter().filter(|index| slots(index) > left) {
            room = room.checked_sub(slots(&index))?;
            parts[index] = Part::Alone;
        }
        for &index in order.iter().filter(|index| slots(index) <= left) {
            if slots(&index) <= room {
                room -= slots(&index);
                parts[index] = Part::Alone;
            }
        }
        // Those that fit into one pile only go first, the others balance the turns.
        let mut rates = [0_u64; 2];
        let piled = |index: &&usize| parts[**index] != Part::Alone;
        let (only_left, either): (Vec<usize>, Vec<usize>) =
            order.iter().filter(piled).partition(|index| slots(index) > right);
        for index in only_left.iter().chain(&either) {
            let to_right = slots(index) <= right && rates[1] <= rates[0];
            parts[*index] = if to_right { Part::Right } else { Part::Left };
            rates[usize::from(to_right)] += u64::from(problem.demands[*index].rate);
        }
        Some(Self::of(problem, parts))
    }

    fn of(problem: &Problem<'_>, parts: Vec<Part>) -> Self {
        let of = |part: Part| {
            let all = problem.demands.iter().zip(&parts).filter(move |(_, own)| **own == part);
            all.map(|(demand, _)| demand.slots)
        };
        let longest = [two_longest(of(Part::Left)), two_longest(of(Part::Right))];
        let used = of(Part::Alone).sum::<usize>() + longest[0].1 + longest[1].1;
        let mut left = problem.region.saturating_sub(used);
        // The longest sticks out as far as there is room, and the others share less.
        let out = longest.map(|(first, second)| {
            let out = (first - second).min(left);
            left -= out;
            out
        });
        Self { parts, longest, out }
    }

    /// Slots of a vGPU that others have too.
    fn shared(&self, problem: &Problem<'_>, index: usize) -> usize {
        let slots = problem.demands[index].slots;
        match self.pile(index) {
            2 => 0,
            pile if slots == self.longest[pile].0 => slots - self.out[pile],
            _ => slots,
        }
    }

    fn pile(&self, index: usize) -> usize {
        match self.parts[index] {
            Part::Left => 0,
            Part::Right => 1,
            Part::Alone => 2,
        }
    }

    fn lay(&self, problem: &Problem<'_>) -> Layout {
        let mut next = self.longest[0].1 + self.out[0];
        let mut starts = Vec::with_capacity(self.parts.len());
        for (demand, part) in problem.demands.iter().zip(&self.parts) {
            starts.push(match part {
                Part::Left => 0,
                Part::Right => problem.region - demand.slots,
                Part::Alone => {
                    next += demand.slots;
                    next - demand.slots
                }
            });
        }
        let mut layout = Layout::contiguous(problem, &starts);
        layout.order = alternate(problem, &layout);
        layout
    }
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
