//! Where vGPUs' memory lies on the device, so that switches copy little.
//!
//! A device has a *high region* of equal slots, and a *low region* that all vGPUs share. A vGPU has
//! so many slots of the high region; several may have the same one. Whoever runs owns all its
//! slots: a switch writes the private entries of those that somebody else had ([`Table`]). A
//! placement decides who lies where (one file each, one line in the registry below), a
//! [`Monitor`] tells it who is idle and how often the others run, and a [`Manager`] puts the three
//! together. The result is a list of [`Step`]s that names no device.
//!
//! # The rules, and where they come from
//!
//! | rule | source |
//! |---|---|
//! | Slots of 64 MiB, a contiguous run for each vGPU | gScale, DymGPU §2.1 |
//! | A slot costs its weight once for each occupant (`scores`) | DymGPU §2.1, read cumulatively |
//! | Everybody alone while there is room, the rest in one pile (`size`, `utilization`) | Algorithms 1, 2 |
//! | Idle after 20 s, utilisation over 20 s | DymGPU §3.1 |
//! | Nobody with work or with the turn is idle, nobody moves in its turn | Weft |
//! | When somebody moves ([`Rule`]) | `Dymgpu`: a model of §3.2; `Gain`: Weft |
//! | An idle vGPU is placed like a new one when it wakes | Weft: the paper does not say |
//! | More slots than the region has are refused | Weft: the paper does not say |
//! | Least expected copies for unequal rates (`exact`), several runs (`scattered`) | Weft |
//! | Everybody from the first slot, all of it (`whole`) | a model of nvshare |
//! | A part comes when it is met, the slot used longest ago goes ([`Pager`]) | demand paging |
//! | Of its slots, what comes gets the one used longest ago ([`arrange()`]) | Weft |
//! | All of a session, and whoever had its turn last gives ([`Lending`]) | Weft: drivers' devices have no table |
//! | The next vGPU's slots are written while the current one runs (`pipelined`) | Weft |
//!
//! Times are in ns and come with each event. `docs/memory.md` explains it with pictures.

mod ahead;
mod arrange;
pub mod contents;
mod dynamic;
mod exact;
pub mod exhaustive;
mod expected;
mod layout;
mod ledger;
mod lending;
mod manager;
mod monitor;
mod order;
mod paging;
pub mod paper;
mod pipelined;
mod scattered;
mod scores;
mod size;
mod succession;
mod table;
#[cfg(test)]
mod tests;
mod utilization;
mod whole;
mod working;

use alloc::string::String;
use alloc::vec::Vec;

use crate::key::VgpuKey;

pub use ahead::{Ahead, Waiting};
pub use arrange::{HeldSlot, arrange};
pub use exact::{PROVED_MAX, SEARCHED_MAX, is_proven, searched};
pub use layout::{Layout, Place, Run};
pub use ledger::{Ledger, LedgerError, Pages};
pub use lending::{Lending, Room, Wish};
pub use manager::{Manager, ManagerConfig, PERIOD_NS, Replaced, Rule, Search};
pub use monitor::{Monitor, MonitorConfig};
pub use order::TurnOrder;
pub use paging::{DEMAND, PageIn, Pager};
pub use succession::{Candidate, successor};
pub use table::{Broken, Step, Table};
pub use working::{Learned, WorkingSet};

/// Turns of a vGPU that is never idle, in [`Demand::rate`]'s unit.
pub const EVERY_ROUND: u32 = 1_000;

/// The most slots of a region: 1 PiB, so that no sum of slots and rates overflows.
pub const REGION_MAX: usize = 1 << 24;

/// Declares the registry: the order is the order of [`NAMES`].
macro_rules! registry {
    ($($name:literal: $module:ident, $cost:path, $moves:ident, $brings:ident, $summary:literal;)+) => {
        const REGISTRY: &[Entry] = &[$(Entry {
            name: $name,
            summary: $summary,
            place: $module::place,
            cost: $cost,
            moves: Moves::$moves,
            brings: Brings::$brings,
        }),+];

        /// The names of all placements, for help texts and error messages.
        pub const NAMES: &[&str] = &[$($name),+];
    };
}

registry! {
    "scores": scores, expected_copies, Never, Touched, "a model of gScale: in order of creation, where the fewest others lie";
    "size": size, expected_copies, BySize, Touched, "a model of DymGPU's Algorithm 1: the largest alone, the rest in one pile";
    "utilization": utilization, expected_copies, ByUtilization, Touched, "a model of DymGPU's Algorithm 2: the most used alone";
    "exact": exact, expected_copies, IfItPays, Touched, "the least expected copies for the rates there are, each vGPU in one run";
    "scattered": scattered, expected_copies, IfItPays, Touched, "the fewest copies at most where slots need not lie together";
    "pipelined": pipelined, pipelined::cost, IfItPays, Ahead, "two piles, so that the next one's slots are written in time";
    "whole": whole, expected_copies, Always, Everything, "a model of nvshare: all of a vGPU, in the place of those before";
}

struct Entry {
    name: &'static str,
    summary: &'static str,
    place: fn(&Problem<'_>) -> Layout,
    /// What a manager weighs.
    cost: fn(&Problem<'_>, &Layout) -> u64,
    /// When the placement's own rule moves vGPUs.
    moves: Moves,
    brings: Brings,
}

/// What of a vGPU's memory is brought into slots for its turn, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Brings {
    /// What it touched lately, at its switch.
    Touched,
    /// The same, as far as that can be while another has the turn.
    Ahead,
    /// All of it, as far as there are slots, at its switch.
    Everything,
}

/// When vGPUs that have a place are moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moves {
    Never,
    /// DymGPU's §3.2.1, or where it pays.
    BySize,
    /// DymGPU's §3.2.2, or where it pays.
    ByUtilization,
    IfItPays,
    /// With every change.
    Always,
}

fn expected_copies(problem: &Problem<'_>, layout: &Layout) -> u64 {
    layout.copies_expected_milli(problem.demands) / 1_000
}

/// What one vGPU asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// Whose.
    pub vgpu: VgpuKey,
    /// Slots of the high region.
    pub slots: usize,
    /// Turns per 1,000 rounds of the device, 1,000 ([`EVERY_ROUND`]) for one that always has work.
    pub rate: u32,
}

/// What is to be placed.
#[derive(Clone, Copy, Debug)]
pub struct Problem<'a> {
    /// Slots of the high region.
    pub region: usize,
    /// In order of creation.
    pub demands: &'a [Demand],
    /// Slots that can be written during one quantum; only `pipelined` asks.
    pub hidden: usize,
}

/// Why nothing was placed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlaceError {
    /// A vGPU could never run.
    #[error("{vgpu:?} asks for {slots} slots and the region has {region}: lower its memory")]
    TooLarge {
        /// Which.
        vgpu: VgpuKey,
        /// What it asked for.
        slots: usize,
        /// What there is.
        region: usize,
    },
    /// A vGPU without memory needs no place.
    #[error("{vgpu:?} asks for no slot: a vGPU has at least one")]
    Empty {
        /// Which.
        vgpu: VgpuKey,
    },
    /// A vGPU is there twice.
    #[error("{vgpu:?} is placed already: destroy it first")]
    Twice {
        /// Which.
        vgpu: VgpuKey,
    },
    /// A rate is more than a turn in every round.
    #[error(
        "{vgpu:?} has a rate of {rate}: a rate is at most {EVERY_ROUND} turns per 1,000 rounds"
    )]
    Rate {
        /// Whose.
        vgpu: VgpuKey,
        /// The rate.
        rate: u32,
    },
    /// There is no such device.
    #[error("the region has {region} slots: it has at most {REGION_MAX}")]
    Region {
        /// Its slots.
        region: usize,
    },
    /// A vGPU is not there.
    #[error("{vgpu:?} is not known: create it first")]
    Unknown {
        /// Which.
        vgpu: VgpuKey,
    },
}

/// A name that is no placement.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("placement = {name:?} is not known: placement is one of {}, {DEMAND}", NAMES.join(", "))]
pub struct UnknownPlacement {
    /// The name refused.
    pub name: String,
}

/// A placement of the registry.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PlacementId(usize);

/// The placement of that name; the error lists the names there are.
pub fn by_name(name: &str) -> Result<PlacementId, UnknownPlacement> {
    let found = NAMES.iter().position(|known| *known == name);
    found.map(PlacementId).ok_or_else(|| UnknownPlacement { name: name.into() })
}

impl PlacementId {
    /// Its name.
    pub fn name(self) -> &'static str {
        REGISTRY[self.0].name
    }

    /// What it does, in half a line.
    pub fn summary(self) -> &'static str {
        REGISTRY[self.0].summary
    }

    /// Places everybody anew.
    ///
    /// # Errors
    /// If a vGPU asks for no slot, for more than the region has, has a rate above [`EVERY_ROUND`]
    /// or is there twice, or if the region has more than [`REGION_MAX`] slots.
    pub fn place(self, problem: &Problem<'_>) -> Result<Layout, PlaceError> {
        check(problem)?;
        Ok((REGISTRY[self.0].place)(problem))
    }

    /// What a manager weighs, in slots per 1,000 rounds: expected copies, or for `pipelined` those
    /// that no quantum hides. Demands and places must be in the same order.
    pub fn cost(self, problem: &Problem<'_>, layout: &Layout) -> u64 {
        (REGISTRY[self.0].cost)(problem, layout)
    }

    /// What is brought into slots for a turn, and when.
    pub fn brings(self) -> Brings {
        REGISTRY[self.0].brings
    }

    fn moves(self) -> Moves {
        REGISTRY[self.0].moves
    }
}

impl core::fmt::Debug for PlacementId {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.name())
    }
}

/// Adds one vGPU, the last of the demands, to a layout that stays as it is: on the run where the
/// fewest others lie. This is the decision of gScale when a VM is created.
///
/// # Errors
/// As [`PlacementId::place`].
pub fn add_last(problem: &Problem<'_>, layout: &mut Layout) -> Result<(), PlaceError> {
    check(problem)?;
    if let Some(demand) = problem.demands.last() {
        scores::add(layout, demand);
    }
    Ok(())
}

fn check(problem: &Problem<'_>) -> Result<(), PlaceError> {
    if problem.region > REGION_MAX {
        return Err(PlaceError::Region { region: problem.region });
    }
    let mut seen = alloc::collections::BTreeSet::new();
    for &Demand { vgpu, slots, rate } in problem.demands {
        if rate > EVERY_ROUND {
            return Err(PlaceError::Rate { vgpu, rate });
        }
        if slots == 0 {
            return Err(PlaceError::Empty { vgpu });
        }
        if slots > problem.region {
            return Err(PlaceError::TooLarge { vgpu, slots, region: problem.region });
        }
        if !seen.insert(vgpu) {
            return Err(PlaceError::Twice { vgpu });
        }
    }
    Ok(())
}

impl Problem<'_> {
    /// Slots of all together.
    fn total(&self) -> usize {
        self.demands.iter().map(|demand| demand.slots).sum()
    }

    /// Indices of the demands, those first of which `key` is largest; of equals the earlier.
    fn largest_first(&self, key: impl Fn(&Demand) -> u64) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.demands.len()).collect();
        order.sort_by_key(|index| core::cmp::Reverse(key(&self.demands[*index])));
        order
    }
}
