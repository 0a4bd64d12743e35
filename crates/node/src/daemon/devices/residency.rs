//! Which parts of vGPUs' memory are in slots of a device, and the tables that say so.
//!
//! Where they lie is decided in [`weft_sched::memory`]: by a placement ([`Placed`]), or by
//! nobody, with demand paging ([`Paged`]). A part gets a slot when an operation meets it first;
//! whoever has had slots of others' parts meanwhile asks for its own before the first operation of
//! its turn, when the device is its own ([`Residency::make_resident`]).

mod board;
mod paged;
mod placed;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use weft_device::soft::{Geometry, PhysicalTable, PrivateTable};
use weft_sched::memory::Pages;

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
}

/// A question of a worker, when the device is its own.
#[derive(Debug, Clone, Copy)]
struct Question<'a> {
    now_ns: u64,
    vgpu: u32,
    /// The page that an operation has met, if it has.
    page: Option<u64>,
    /// Parts that operations have met since the last question.
    touched: &'a [u64],
}

/// Whoever deals out a device's slots.
trait Dealer: std::fmt::Debug + Send {
    /// Brings the vGPU's parts into slots. What is there already is not copied.
    fn make_resident(&mut self, board: &mut Board, question: Question<'_>);

    /// A vGPU has fewer parts than before.
    fn shrink(&mut self, board: &mut Board, now_ns: u64, vgpu: u32);

    /// A vGPU has no pages any more. Its slots have nothing of it already.
    fn leave(&mut self, board: &mut Board, now_ns: u64, vgpu: u32);

    /// While one has the device: writes one slot of another that is next, where that disturbs
    /// neither the one nor whoever was brought last. Whether there was one.
    fn write_ahead(&mut self, _board: &mut Board, _holder: u32, _next: u32) -> bool {
        false
    }

    /// A turn of the vGPU is over in which it used the device for so long.
    fn end_turn(&mut self, board: &mut Board, now_ns: u64, vgpu: u32, used_ns: u64);

    /// Who has each slot in its turns, in order.
    fn users(&self) -> Vec<Vec<u32>>;

    /// Holds what it keeps against its rules.
    #[cfg(test)]
    fn check(&self) -> Result<(), String>;
}

/// The slots of a device. Locked for as long as entries are copied.
#[derive(Debug)]
pub(crate) struct Residency(Mutex<Slots>);

#[derive(Debug)]
struct Slots {
    terms: Terms,
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
        Self(Mutex::new(Slots { terms, board, dealer }))
    }

    /// A panic of another thread leaves slots that are asked for again.
    fn lock(&self) -> MutexGuard<'_, Slots> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A vGPU has this table. Its parts are in no slot, whatever the table says.
    pub(crate) fn add(&self, vgpu: u32, table: PrivateTable) {
        self.lock().board.add(vgpu, table);
    }

    /// A vGPU has no pages any more.
    pub(crate) fn remove(&self, now_ns: u64, vgpu: u32) {
        let mut slots = self.lock();
        let Slots { board, dealer, .. } = &mut *slots;
        if board.remove(vgpu) {
            dealer.leave(board, now_ns, vgpu);
        }
    }

    /// Writes the entries of pages of a vGPU, in its own table and, of parts that are in their
    /// slots, in the device's.
    pub(crate) fn write(&self, now_ns: u64, vgpu: u32, runs: &[Pages], claim: u64) {
        let mut slots = self.lock();
        let Slots { board, dealer, .. } = &mut *slots;
        board.write(vgpu, runs, claim);
        if claim == 0 {
            dealer.shrink(board, now_ns, vgpu);
        }
    }

    /// Notes pages that have entries already.
    pub(crate) fn adopt(&self, vgpu: u32, run: Pages) {
        self.lock().board.adopt(vgpu, run);
    }

    /// Brings the vGPU's parts into its slots: those that it uses, and that of a page which an
    /// operation has met. How long the device is busy with it, in ns, where that is modelled.
    pub(crate) fn make_resident(
        &self,
        now_ns: u64,
        vgpu: u32,
        page: Option<u64>,
        touched: &[u64],
    ) -> u64 {
        let mut slots = self.lock();
        let began = Instant::now();
        let Slots { terms, board, dealer } = &mut *slots;
        let before = board.totals;
        board.begin_switch(vgpu);
        dealer.make_resident(board, Question { now_ns, vgpu, page, touched });
        let took_ns = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        board.end_switch(page.is_some(), took_ns);
        let entries = board.totals.entries - before.entries;
        terms.entry_ns.saturating_mul(entries).saturating_sub(took_ns)
    }

    /// Whether slots are written ahead of a switch.
    pub(crate) fn writes_ahead(&self) -> bool {
        self.lock().terms.dealing.writes_ahead()
    }

    /// What a whole slot is said to take to write, in ns.
    pub(crate) fn slot_ns(&self) -> u64 {
        let slots = self.lock();
        slots.terms.entry_ns.saturating_mul(slots.terms.geometry.slot_pages())
    }

    /// While one has the device, writes a slot of another that is next: how long that is said to
    /// take, in ns. `None` when there is none left.
    pub(crate) fn write_ahead(&self, holder: u32, next: u32) -> Option<u64> {
        let mut slots = self.lock();
        let Slots { terms, board, dealer } = &mut *slots;
        let (is_written, entries) = board.ahead(|board| dealer.write_ahead(board, holder, next));
        is_written.then(|| terms.entry_ns.saturating_mul(entries))
    }

    /// A turn of the vGPU is over in which it used the device for so long.
    pub(crate) fn end_turn(&self, now_ns: u64, vgpu: u32, used_ns: u64) {
        let mut slots = self.lock();
        let Slots { board, dealer, .. } = &mut *slots;
        dealer.end_turn(board, now_ns, vgpu, used_ns);
    }

    /// Who has which slots, and what that cost.
    pub(crate) fn report(&self, name_of: impl Fn(u32) -> Option<String>) -> MemoryReport {
        let slots = self.lock();
        let Slots { terms, board, dealer } = &*slots;
        let name_of = |key: u32| name_of(key).unwrap_or_else(|| format!("#{key}"));
        let mut report = board.report(&dealer.users(), name_of);
        terms.dealing.name().clone_into(&mut report.placement);
        report.entry_ns = terms.entry_ns;
        report
    }
}

#[cfg(test)]
mod tests;
