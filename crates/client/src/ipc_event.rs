//! Events that several processes of one vGPU use.
//!
//! Their records are counted in cells of a page of device memory that the processes share, and each
//! process's worker looks there. Calls about them await the worker: what one process has called
//! is so for another one that learns of it.

use std::time::Duration;

use weft_wire::{Command, Status};

use crate::client::{Client, lock};
use crate::context::ContextState;
use crate::event::{DISABLE_TIMING, INTERPROCESS};
use crate::handle::{Context, Event};
use crate::session::Session;
use crate::stream::StreamState;

const CELL_BYTES: u64 = 16;
const PAGE_BYTES: u64 = 4096;
/// How long a thread sleeps that waits for another process, at first and at most.
const NAPS: [Duration; 2] = [Duration::from_micros(20), Duration::from_millis(1)];

/// This process's pages.
#[derive(Debug, Default)]
pub(crate) struct EventPages(Vec<Page>);

#[derive(Debug)]
struct Page {
    address: u64,
    key: [u8; 16],
    context: Context,
    /// Where the cells begin that were never used.
    fresh: u64,
    /// Cells of events that are gone. Their counts go on.
    free: Vec<u64>,
}

/// Where an event's records are counted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SharedCell {
    page: u64,
    key: [u8; 16],
    offset: u64,
}

impl SharedCell {
    fn address(&self) -> u64 {
        self.page + self.offset
    }
}

impl Client {
    /// A cell for an event of this process.
    pub(crate) fn new_cell(&self, state: &ContextState) -> Result<SharedCell, Status> {
        let (context, session) = (state.handle, &state.session);
        let mut pages = lock(&session.event_pages);
        pages.0.retain(|page| self.contexts.get(page.context).is_some());
        let has_room = |page: &Page| !page.free.is_empty() || page.fresh < PAGE_BYTES;
        let found = pages.0.iter().position(|page| page.context == context && has_room(page));
        let at = match found {
            Some(at) => at,
            None => {
                pages.0.push(self.new_page(context)?);
                pages.0.len() - 1
            }
        };
        let page = pages.0.get_mut(at).ok_or(Status::UNKNOWN)?;
        let (address, key) = (page.address, page.key);
        if let Some(offset) = page.free.pop() {
            return Ok(SharedCell { page: address, key, offset });
        }
        let cell = SharedCell { page: address, key, offset: page.fresh };
        session.call(&Command::SharedEventCreate { cell: cell.address() })?;
        page.fresh += CELL_BYTES;
        Ok(cell)
    }

    fn new_page(&self, context: Context) -> Result<Page, Status> {
        let address = self.mem_alloc(PAGE_BYTES)?;
        let key = self.mem_export(address).inspect_err(|_| {
            // The event is refused whatever becomes of this.
            let _ = self.mem_free(address);
        })?;
        Ok(Page { address, key, context, fresh: 0, free: Vec::new() })
    }

    /// What other processes of the vGPU open the event by: a key, and a place.
    ///
    /// # Errors
    /// `INVALID_HANDLE` for a stale event or one that is not for several processes.
    pub fn event_export(&self, event: Event) -> Result<([u8; 16], u32), Status> {
        let event = self.healthy_event(event)?;
        let cell = event.shared.ok_or(Status::INVALID_HANDLE)?;
        Ok((cell.key, u32::try_from(cell.offset).map_err(|_| Status::INVALID_HANDLE)?))
    }

    /// Opens another process's event in the current context.
    ///
    /// # Errors
    /// `INVALID_HANDLE` when no other living session of the vGPU exports it, `OUT_OF_MEMORY`.
    pub fn event_import(&self, key: [u8; 16], offset: u32) -> Result<Event, Status> {
        let (context, offset) = (self.current()?, u64::from(offset));
        if offset >= PAGE_BYTES || !offset.is_multiple_of(CELL_BYTES) {
            return Err(Status::INVALID_HANDLE);
        }
        // Stays open with the context: there is one page for all events of a process.
        let page = self.mem_import(key)?;
        let cell = SharedCell { page, key, offset };
        self.new_event(&context, DISABLE_TIMING | INTERPROCESS, Some(cell))
    }
}

/// The event of a cell is gone. A cell of which a record is under way is not used again.
pub(crate) fn free_cell(session: &Session, cell: &SharedCell) {
    let mut pages = lock(&session.event_pages);
    let own = pages.0.iter_mut().find(|page| page.key == cell.key);
    if let Some(page) = own
        && shared_query(session, cell).is_ok()
    {
        page.free.push(cell.offset);
    }
}

pub(crate) fn shared_record(cell: &SharedCell, stream: &StreamState) -> Result<(), Status> {
    stream.refuse_capture()?;
    stream.call(&Command::SharedEventRecord { cell: cell.address(), stream: stream.id })
}

pub(crate) fn shared_wait(cell: &SharedCell, stream: &StreamState) -> Result<(), Status> {
    stream.refuse_capture()?;
    stream.call(&Command::SharedEventWait { cell: cell.address(), stream: stream.id })
}

pub(crate) fn shared_query(session: &Session, cell: &SharedCell) -> Result<(), Status> {
    session.call(&Command::SharedEventQuery { cell: cell.address() })
}

/// The worker cannot tell when another session's record completes, so this asks and sleeps.
pub(crate) fn shared_synchronize(session: &Session, cell: &SharedCell) -> Result<(), Status> {
    let [mut nap, most] = NAPS;
    loop {
        match shared_query(session, cell) {
            Err(Status::NOT_READY) => std::thread::sleep(nap),
            outcome => return outcome,
        }
        nap = (nap * 2).min(most);
    }
}
