//! The map of a device's slots at an instant: whose each is, who else has it, what is in it, and
//! what the last switch wrote. What `weft memory` draws of a node, for the page.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use weft_sched::VgpuKey;
use weft_sched::memory::{Layout, Step, Table};

/// Width and height of a slot in the drawing.
const WIDTH: usize = 10;
const ROW: usize = 12;
/// Height of the mark under what the last switch wrote.
const MARK: usize = 3;

/// The slots after some turns.
pub(super) struct Slots<'a> {
    layout: &'a Layout,
    owners: Vec<Option<VgpuKey>>,
    /// Who had the last turn.
    last: usize,
    /// What its switch wrote.
    copied: BTreeSet<usize>,
}

impl<'a> Slots<'a> {
    /// Everybody had two turns in the layout's order.
    pub(super) fn after_two_rounds(layout: &'a Layout) -> Self {
        let mut table = Table::new(layout.region);
        let mut steps = Vec::new();
        table.set_layout(layout, &mut steps);
        let mut last = 0;
        for &index in layout.order.iter().chain(&layout.order) {
            steps.clear();
            table.switch_to(layout.places[index].vgpu, &mut steps);
            last = index;
        }
        let written = steps.iter().filter_map(|step| match step {
            Step::Copy { slot, .. } => Some(*slot),
            Step::Save { .. } => None,
        });
        let copied = written.collect();
        Self { layout, owners: table.owners().collect(), last, copied }
    }

    /// Slots' worth of memory that is in slots, and of memory that is swapped out.
    fn held(&self) -> (usize, usize) {
        let places = &self.layout.places;
        let all = places.iter().map(|place| place.slots().count()).sum::<usize>();
        let inside = self.owners.iter().flatten().count();
        (inside, all - inside)
    }

    /// A row for each vGPU, a column for each slot.
    pub(super) fn drawn(&self, name: &str) -> String {
        let Self { layout, last, copied, .. } = self;
        let (wide, high) = (layout.region * WIDTH, layout.places.len() * ROW);
        let (inside, outside) = self.held();
        let mut svg = format!(
            "<figure><figcaption>{name}: {} copies a round. After a turn of vGPU {last}: {inside} \
             slots in use, as much as {outside} swapped out, {} written by the last switch\
             </figcaption><svg viewBox=\"0 0 {wide} {high}\" role=\"img\" aria-label=\"{name}\">",
            layout.copies_per_round(),
            copied.len(),
        );
        let occupants = layout.occupants();
        for (row, place) in layout.places.iter().enumerate() {
            for (part, slot) in place.slots().enumerate() {
                let is_shared = occupants[slot] > 1;
                let is_in = self.owners[slot] == Some(place.vgpu);
                let is_copied = is_in && row == *last && copied.contains(&slot);
                self.cell(&mut svg, (row, part, slot), is_shared, is_in);
                if is_copied {
                    let (x, y) = (slot * WIDTH, row * ROW + ROW - 2 - MARK);
                    let _ = write!(
                        svg,
                        "<rect class=\"f0\" x=\"{x}\" y=\"{y}\" width=\"{}\" height=\"{MARK}\"/>",
                        WIDTH - 1
                    );
                }
            }
        }
        svg.push_str("</svg><div class=\"legend\"><span><i class=\"b2\"></i>alone</span>");
        svg.push_str(
            "<span><i class=\"b4\"></i>shared</span><span><i class=\"b0\"></i>written by ",
        );
        svg.push_str("the last switch</span><span>pale: swapped out</span></div></figure>\n");
        svg
    }

    fn cell(
        &self,
        svg: &mut String,
        (row, part, slot): (usize, usize, usize),
        is_shared: bool,
        is_in: bool,
    ) {
        let (colour, what) = if is_shared { (4, "shared") } else { (2, "alone") };
        let owner = self.owners[slot]
            .map_or_else(|| "nobody has it".to_owned(), |vgpu| format!("vGPU {} has it", vgpu.0));
        let state = if is_in { "in the slot".to_owned() } else { format!("swapped out: {owner}") };
        let pale = if is_in { "" } else { " fill-opacity=\"0.3\"" };
        let _ = write!(
            svg,
            "<rect class=\"f{colour}\"{pale} x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"><title>\
             vGPU {row}, part {part}, slot {slot}, {what}, {state}</title></rect>",
            slot * WIDTH,
            row * ROW,
            WIDTH - 1,
            ROW - 2
        );
    }
}

#[cfg(test)]
mod tests {
    use weft_sched::memory::paper::{demands, mixed};

    use super::super::place;
    use super::*;

    #[test]
    fn a_slot_is_in_one_row_only_and_what_was_written_is_the_last_ones() {
        for name in weft_sched::memory::NAMES {
            let layout = place(name, &mixed(15));
            let slots = Slots::after_two_rounds(&layout);
            let text = slots.drawn(name);
            let count = |what: &str| text.matches(what).count();
            let (inside, outside) = slots.held();
            let dealt = layout.occupants().into_iter().filter(|count| *count > 0).count();
            assert_eq!(inside, dealt, "{name}: a slot that somebody has is somebody's");
            assert_eq!(count(", in the slot<"), inside, "{name}");
            assert_eq!(count(", swapped out: vGPU "), outside, "{name}");
            assert_eq!(inside + outside, 165, "{name}: 5 of each size");
            assert_eq!(count("class=\"f0\""), slots.copied.len(), "{name}");
            // Whoever ran last has all of its memory in slots.
            let own = layout.places[slots.last].slots().count();
            assert_eq!(count(&format!(">vGPU {}, part", slots.last)), own, "{name}");
            let out = text.split("<title>").filter(|cell| cell.contains(", swapped out: "));
            assert!(out.clone().all(|cell| !cell.starts_with(&format!("vGPU {},", slots.last))));
        }
    }

    #[test]
    fn who_shares_nothing_is_never_written_again() {
        let layout = place("exact", &demands([6, 6]));
        let slots = Slots::after_two_rounds(&layout);
        assert_eq!((slots.held(), slots.copied.len()), ((12, 0), 0));
        let text = slots.drawn("exact");
        assert!(!text.contains("shared, ") && !text.contains("0.3"), "{text}");
    }
}
