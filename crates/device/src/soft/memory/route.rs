//! From a device address to bytes.
//!
//! Operations of the device go by its physical table. The worker's own looks (what a module's
//! globals begin as, a word that a stream waits for) may come while another vGPU has the device:
//! they go by the vGPU's private table, which is always its own.

use std::cell::Cell;

use super::slots::Translation;
use super::tlb::Window;
use super::{FrameStore, Memory};
use crate::{Op, PAGE, Wanted};

/// A part that was asked for so often and taken again each time is found by the private table.
const ASKED_MAX: u32 = 8;

/// Which table translates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Via {
    /// The device's, for its operations.
    Physical,
    /// The vGPU's own.
    Private,
}

/// Translates pages of one window: the part that it looked at last is at hand.
struct Pages<'a> {
    store: &'a FrameStore,
    table: Option<&'a Translation>,
    via: Via,
    at: Cell<(usize, Option<usize>)>,
}

impl<'a> Pages<'a> {
    fn new(store: &'a FrameStore, via: Via) -> Self {
        Self { store, table: store.table.as_ref(), via, at: Cell::new((usize::MAX, None)) }
    }

    /// The frame of a page of the vGPU, if it has one that this session may use.
    fn frame(&self, page: u64) -> Option<u64> {
        let frame = match (self.table, self.via) {
            (None, _) => page,
            (Some(_), Via::Private) => return self.store.usable(page).then_some(page),
            (Some(table), Via::Physical) => {
                let part = table.geometry().part_of(page);
                if self.at.get().0 != part {
                    self.at.set((part, table.base(part)));
                }
                let entry = table.physical(self.at.get().1?, page)?;
                let frame = table.frame(entry, page);
                // The slot may have got another part of the vGPU since its base was read.
                (frame == page && self.store.is_allowed(table, page, entry)).then_some(frame)?
            }
        };
        self.store.has(frame).then_some(frame)
    }
}

impl Memory {
    /// The window around `address` that lies in one piece, if the address is mapped, for an
    /// operation of the device. A window never crosses a chunk of the page table (2 MiB).
    pub(crate) fn window(&self, address: u64) -> Option<Window> {
        self.window_via(Via::Physical, address)
    }

    pub(super) fn window_via(&self, via: Via, address: u64) -> Option<Window> {
        if let Some(window) = self.pinned(address) {
            return Some(window);
        }
        self.mapped(via, address).or_else(|| self.bring(via, address))
    }

    /// Has the part that `address` lies in brought into a slot, if it is the session's.
    #[cold]
    fn bring(&self, via: Via, address: u64) -> Option<Window> {
        let number = address / PAGE;
        let page = self.table.chunk(number)?.get(number)?.frame;
        if via == Via::Private || !self.store.is_guarded() || !self.store.usable(page) {
            return None;
        }
        let table = self.store.table.as_ref()?;
        for _ in 0..ASKED_MAX {
            let before = table.taken();
            let wait_ns = self.ask_for(Some(page), Vec::new());
            self.owed_ns.set(self.owed_ns.get().saturating_add(wait_ns));
            let window = self.mapped(via, address);
            // What is not there although nobody took it is not the vGPU's: a fault.
            if window.is_some() || table.taken() == before {
                return window;
            }
        }
        // Two operations at once, each of which takes the other's slots before it looks: where the
        // device's time is not the processors' (a paced device), or nobody manages it. Neither
        // waits for the other. The private table is the vGPU's own and has the same frames.
        self.mapped(Via::Private, address)
    }

    /// Before an operation: has the vGPU's parts brought into its slots if others have been there.
    /// How long the device is not to be used for it, in ns.
    pub(crate) fn make_resident(&self, op: &Op) -> u64 {
        match &self.store.table {
            Some(table) if table.lacks() => self.ask_for(None, self.named(table.geometry(), op)),
            Some(_) | None => 0,
        }
    }

    /// How long the device is not to be used for what operations met since the last call, in ns.
    pub(crate) fn take_owed_ns(&self) -> u64 {
        self.owed_ns.take()
    }

    fn ask_for(&self, page: Option<u64>, named: Vec<u64>) -> u64 {
        self.asked.set(self.asked.get() + 1);
        let touched = self.take_touched();
        self.source.make_resident(&Wanted { page, touched, named }).wait_ns
    }

    /// The parts that were used since the last call.
    fn take_touched(&self) -> Vec<u64> {
        let bits = std::mem::take(&mut *self.touched.borrow_mut());
        let parts = (0_u64..).zip(bits).flat_map(|(word, bits)| {
            (0..64).filter(move |bit| bits >> bit & 1 == 1).map(move |bit| word * 64 + bit)
        });
        parts.collect()
    }

    pub(super) fn touch(&self, page: u64) {
        let Some(table) = &self.store.table else { return };
        let part = table.geometry().part_of(page);
        let mut touched = self.touched.borrow_mut();
        if touched.len() <= part / 64 {
            touched.resize(part / 64 + 1, 0);
        }
        touched[part / 64] |= 1 << (part % 64);
    }

    fn mapped(&self, via: Via, address: u64) -> Option<Window> {
        let page = address / PAGE;
        let chunk = self.table.chunk(page)?;
        let entry = chunk.get(page)?;
        if address % PAGE >= entry.bytes {
            return None;
        }
        let pages = Pages::new(&self.store, via);
        let frame = pages.frame(entry.frame)?;
        if via == Via::Physical {
            self.touch(entry.frame);
        }
        let adjacent = |to: u64, wanted: u64| {
            chunk.get(to).filter(|entry| pages.frame(entry.frame) == Some(wanted))
        };
        let mut first = page;
        while first > 0
            && frame > page - first
            && adjacent(first - 1, frame - (page - first) - 1).is_some_and(|e| e.bytes == PAGE)
        {
            first -= 1;
        }
        let mut last = page;
        let mut tail = entry.bytes;
        while tail == PAGE {
            let Some(next) = adjacent(last + 1, frame + (last - page) + 1) else { break };
            last += 1;
            tail = next.bytes;
        }
        let len = (last - first) * PAGE + tail;
        if let Some(host) = self.managed(first * PAGE) {
            return Some(Window { lo: first * PAGE, len, host, shared: true });
        }
        let offset = usize::try_from((frame - (page - first)) * PAGE).ok()?;
        Some(Window {
            lo: first * PAGE,
            len,
            // `Pages::frame` said that all these frames lie inside the mapping.
            host: self.store.memory().as_ptr().wrapping_add(offset),
            shared: false,
        })
    }
}
