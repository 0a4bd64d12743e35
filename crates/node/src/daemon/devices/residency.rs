//! Which parts of vGPUs' memory are in slots of a device, and the tables that say so.
//!
//! Where they lie is decided in [`weft_sched::memory`]: by a placement ([`Placed`]), or by
//! nobody, with demand paging ([`Paged`]). A part gets a slot when an operation meets it first;
//! whoever has had slots of others' parts meanwhile asks for its own before the first operation of
//! its turn, when the device is its own ([`Residency::make_resident`]).

mod board;
mod paged;
mod placed;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use weft_device::Wanted;
use weft_device::soft::{Geometry, PhysicalTable, PrivateTable};
use weft_sched::memory::{Layout, MonitorConfig, Pages, Search, TurnOrder};

use self::board::Board;
use self::paged::Paged;
use self::placed::Placed;
use crate::admin::MemoryReport;
use crate::config::Dealing;

/// How a device's slots are dealt out.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Terms {
    /// How its memory is divided.
    pub(crate) geometry: Geometry,
    /// By what.
    pub(crate) dealing: Dealing,
    /// What a copied entry is said to take, in ns; 0 for what it takes.
    pub(crate) entry_ns: u64,
    /// A quantum of the device.
    pub(crate) quantum_ns: u64,
    /// When a vGPU is idle, and over how long its use is averaged.
    pub(crate) monitor: MonitorConfig,
    /// Time between two looks whether another layout is better, in ns.
    pub(crate) period_ns: u64,
}

/// A question of a worker, when the device is its own.
#[derive(Debug, Clone, Copy)]
struct Question<'a> {
    now_ns: u64,
    vgpu: u32,
    wanted: &'a Wanted,
}

/// What a try to write a slot ahead came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Written {
    /// One was written, which is said to take so long, in ns.
    Slot {
        /// How long.
        ns: u64,
    },
    /// Who has the device has yet to ask for its own.
    NotYet,
    /// There is none left.
    Nothing,
}

/// What bringing took.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Exchange {
    /// How long the device is busy with it yet, in ns, where that is modelled.
    pub(crate) wait_ns: u64,
    /// How long it was busy with the vGPU's memory since it was asked last, while others had it.
    pub(crate) ahead_ns: u64,
    /// What came took the slot of another part of the same vGPU.
    pub(crate) is_own: bool,
}

/// Whoever deals out a device's slots.
trait Dealer: std::fmt::Debug + Send {
    /// Brings the vGPU's parts into slots. What is there already is not copied. Whether a part that
    /// was met took the slot of another one of the same vGPU.
    fn make_resident(&mut self, board: &mut Board, question: Question<'_>) -> bool;

    /// A vGPU has fewer pages than before, or is gone. Slots have nothing of what is gone already;
    /// what follows for the plan is [`Self::tidy`]'s.
    fn note_shrunk(&mut self, vgpu: u32);

    /// Takes slots from those that have fewer parts than before.
    fn tidy(&mut self, board: &mut Board, now_ns: u64);

    /// While one has the device: writes one slot of the first of those that are `next` and lacks
    /// one, where that disturbs neither the holder nor those before it.
    fn write_ahead(&mut self, _board: &mut Board, _holder: u32, _next: &[u32]) -> Written {
        Written::Nothing
    }

    /// The order of turns that suits where everybody lies, if it is another one than was told
    /// last.
    fn new_order(&mut self) -> Option<TurnOrder> {
        None
    }

    /// A turn of the vGPU is over in which it used the device for so long.
    fn end_turn(&mut self, board: &mut Board, now_ns: u64, vgpu: u32, used_ns: u64);

    /// What to search a better layout for, if anything.
    fn search(&mut self) -> Option<Search> {
        None
    }

    /// Takes what a search found, if it is still of use.
    fn take(&mut self, _board: &mut Board, _search: &Search, _found: Layout) {}

    /// Who has each slot in its turns, in order.
    fn users(&self) -> Vec<Vec<u32>>;

    /// Holds what it keeps against its rules.
    #[cfg(test)]
    fn check(&self) -> Result<(), String>;
}

/// The slots of a device.
#[derive(Debug)]
pub(crate) struct Residency {
    terms: Terms,
    /// Locked for as long as entries are copied, and not while a better layout is searched for.
    slots: Mutex<Slots>,
    /// The order of turns that suits the slots, where they are written ahead. Locked for an
    /// instant.
    order: Mutex<Arc<TurnOrder>>,
}

#[derive(Debug)]
struct Slots {
    board: Board,
    dealer: Box<dyn Dealer>,
}

impl Residency {
    /// All slots are nobody's. What the physical table has is forgotten.
    pub(crate) fn new(terms: Terms, physical: PhysicalTable) -> Self {
        let dealer: Box<dyn Dealer> = match terms.dealing {
            Dealing::Placed(placement) => Box::new(Placed::new(&terms, placement)),
            Dealing::OnDemand => Box::new(Paged::new(&terms)),
        };
        let board = Board::new(terms.geometry, physical);
        let slots = Mutex::new(Slots { board, dealer });
        Self { terms, slots, order: Mutex::default() }
    }

    /// The order of turns in which least has to be written while nobody runs. It never waits for
    /// slots that are written.
    pub(crate) fn order(&self) -> Arc<TurnOrder> {
        Arc::clone(&self.order.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Somebody may lie elsewhere than before.
    fn note_order(&self, slots: &mut Slots) {
        if self.writes_ahead()
            && let Some(order) = slots.dealer.new_order()
        {
            *self.order.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(order);
        }
    }

    /// A panic of another thread leaves slots that are asked for again.
    fn lock(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A vGPU has this table. Its parts are in no slot, whatever the table says.
    pub(crate) fn add(&self, vgpu: u32, table: PrivateTable) {
        self.lock().board.add(vgpu, table);
    }

    /// A vGPU has no pages any more.
    pub(crate) fn remove(&self, vgpu: u32) {
        let mut slots = self.lock();
        if slots.board.remove(vgpu) {
            slots.dealer.note_shrunk(vgpu);
        }
    }

    /// Writes the entries of pages of a vGPU, in its own table and, of parts that are in their
    /// slots, in the device's.
    pub(crate) fn write(&self, vgpu: u32, runs: &[Pages], claim: u64) {
        let mut slots = self.lock();
        slots.board.write(vgpu, runs, claim);
        if claim == 0 {
            slots.dealer.note_shrunk(vgpu);
        }
    }

    /// Notes pages that have entries already.
    pub(crate) fn adopt(&self, vgpu: u32, run: Pages) {
        self.lock().board.adopt(vgpu, run);
    }

    /// Brings the vGPU's parts into its slots: those that it uses, those that the operation names
    /// which begins, and that of a page which one has met.
    pub(crate) fn make_resident(&self, now_ns: u64, vgpu: u32, wanted: &Wanted) -> Exchange {
        let mut slots = self.lock();
        let began = Instant::now();
        let Slots { board, dealer } = &mut *slots;
        let before = board.totals;
        let ahead_ns = self.terms.entry_ns.saturating_mul(board.begin_switch(vgpu));
        let is_own = dealer.make_resident(board, Question { now_ns, vgpu, wanted });
        let took_ns = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let entries = board.totals.entries - before.entries;
        let wait_ns = self.terms.entry_ns.saturating_mul(entries).saturating_sub(took_ns);
        board.end_switch(wanted.page.is_some(), took_ns.saturating_add(wait_ns));
        self.note_order(&mut slots);
        Exchange { wait_ns, ahead_ns, is_own }
    }

    /// Whether slots are written ahead of a switch.
    pub(crate) fn writes_ahead(&self) -> bool {
        self.terms.dealing.writes_ahead()
    }

    /// What a whole slot is said to take to write, in ns.
    pub(crate) fn slot_ns(&self) -> u64 {
        self.terms.entry_ns.saturating_mul(self.terms.geometry.slot_pages())
    }

    /// While one has the device, writes a slot of those that are next, in order: how long that is
    /// said to take, in ns.
    pub(crate) fn write_ahead(&self, holder: u32, next: &[u32]) -> Written {
        let mut slots = self.lock();
        let Slots { board, dealer } = &mut *slots;
        let (written, entries) = board.ahead(|board| dealer.write_ahead(board, holder, next));
        if let Written::Slot { .. } = written {
            return Written::Slot { ns: self.terms.entry_ns.saturating_mul(entries) };
        }
        written
    }

    /// A turn of the vGPU is over in which it used the device for so long. May take long, though
    /// nobody waits for most of it.
    pub(crate) fn end_turn(&self, now_ns: u64, vgpu: u32, used_ns: u64) {
        let mut slots = self.lock();
        let Slots { board, dealer } = &mut *slots;
        dealer.tidy(board, now_ns);
        dealer.end_turn(board, now_ns, vgpu, used_ns);
        let search = dealer.search();
        self.note_order(&mut slots);
        let Some(search) = search else { return };
        drop(slots);
        let Some(found) = search.run() else { return };
        let mut slots = self.lock();
        let Slots { board, dealer } = &mut *slots;
        dealer.take(board, &search, found);
        self.note_order(&mut slots);
    }

    /// Who has which slots, and what that cost.
    pub(crate) fn report(
        &self,
        now_ns: u64,
        name_of: impl Fn(u32) -> Option<String>,
    ) -> MemoryReport {
        let mut slots = self.lock();
        let Slots { board, dealer } = &mut *slots;
        dealer.tidy(board, now_ns);
        let name_of = |key: u32| name_of(key).unwrap_or_else(|| format!("#{key}"));
        let mut report = board.report(&dealer.users(), name_of);
        self.terms.dealing.name().clone_into(&mut report.placement);
        report.entry_ns = self.terms.entry_ns;
        report
    }
}

#[cfg(test)]
mod tests;
