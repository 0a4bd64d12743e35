//! A model of gScale's scores (DymGPU §2.1): each vGPU, when it is created, gets the leftmost run
//! whose slots have the least score. A slot's score is one weight *for each occupant*; counted once
//! for all of them, Figure 4's 24 copies a round do not come out.

use alloc::vec;

use super::layout::{Layout, Place, Run};
use super::{Demand, Problem};

pub(super) fn place(problem: &Problem<'_>) -> Layout {
    let mut layout = Layout { region: problem.region, ..Layout::default() };
    for demand in problem.demands {
        add(&mut layout, demand);
    }
    layout
}

/// One more vGPU; the others stay where they are.
pub(super) fn add(layout: &mut Layout, demand: &Demand) {
    let scores = layout.occupants();
    let mut score: usize = scores[..demand.slots].iter().sum();
    let mut best = (score, 0);
    for start in 1..=layout.region - demand.slots {
        score = score + scores[start + demand.slots - 1] - scores[start - 1];
        best = best.min((score, start));
    }
    layout.order.push(layout.places.len());
    let runs = vec![Run { start: best.1, len: demand.slots }];
    layout.places.push(Place { vgpu: demand.vgpu, runs });
}
