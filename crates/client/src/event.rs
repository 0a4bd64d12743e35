//! Events. Whether one has completed is read from the segment.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use weft_wire::id::EventId;
use weft_wire::reply::Elapsed;
use weft_wire::{Command, Status, progress};

use crate::capture::CapturedPoint;
use crate::client::{Client, lock};
use crate::context::ContextState;
use crate::handle::{Context, Event, Stream};
use crate::ipc_event::{SharedCell, free_cell, shared_query, shared_record, shared_synchronize};
use crate::session::Session;

/// `CU_EVENT_DISABLE_TIMING`.
pub(crate) const DISABLE_TIMING: u32 = 2;
/// `CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS`.
const FLAGS: u32 = 7;
/// `CU_EVENT_INTERPROCESS`.
pub(crate) const INTERPROCESS: u32 = 4;

/// An event.
#[derive(Debug)]
pub(crate) struct EventState {
    pub(crate) handle: Event,
    pub(crate) id: EventId,
    pub(crate) session: Arc<Session>,
    pub(crate) context: Context,
    flags: u32,
    /// The number of the last record, 0 before the first.
    last: AtomicU64,
    /// Where its records are counted, if several processes may use it.
    pub(crate) shared: Option<SharedCell>,
    /// The point of a capture that the event was last recorded at.
    pub(crate) captured: Mutex<Option<CapturedPoint>>,
}

impl EventState {
    pub(crate) fn last_record(&self) -> u64 {
        self.last.load(Ordering::Acquire)
    }

    pub(crate) fn set_record(&self, record: u64) {
        self.last.fetch_max(record, Ordering::AcqRel);
    }

    /// Whether a record has completed; `None` when only the worker knows.
    fn is_done(&self, record: u64) -> Option<bool> {
        if record == 0 {
            return Some(true);
        }
        let word = progress::event_word(self.id)?;
        self.session.progress(word).map(|completed| completed >= record)
    }

    /// Waits for a record.
    pub(crate) fn await_record(&self, record: u64) -> Result<(), Status> {
        if self.is_done(record) == Some(true) {
            return self.session.healthy();
        }
        self.session.call(&Command::EventSynchronize { event: self.id, record })
    }
}

/// What a wait for an event turned out to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EventWork {
    /// The capture took it in.
    Captured,
    /// It is to be sent.
    Live,
}

impl Client {
    /// Creates an event in the current context.
    ///
    /// # Errors
    /// `INVALID_VALUE` for unknown flags or an interprocess event with timing, `OUT_OF_MEMORY`;
    /// `NOT_SUPPORTED` for an interprocess event on a device whose memory sessions do not share.
    pub fn event_create(&self, flags: u32) -> Result<Event, Status> {
        if flags & !FLAGS != 0 {
            return Err(Status::INVALID_VALUE);
        }
        let context = self.current()?;
        let shared = match flags & (INTERPROCESS | DISABLE_TIMING) {
            INTERPROCESS => return Err(Status::INVALID_VALUE),
            flags if flags & INTERPROCESS != 0 => Some(self.new_cell(&context)?),
            _ => None,
        };
        self.new_event(&context, flags, shared)
    }

    pub(crate) fn new_event(
        &self,
        context: &ContextState,
        flags: u32,
        shared: Option<SharedCell>,
    ) -> Result<Event, Status> {
        let (handle, state) = self
            .events
            .insert(context.session.ordinal, |slot, handle| EventState {
                handle,
                id: EventId { index: slot.index, generation: slot.generation },
                session: Arc::clone(&context.session),
                context: context.handle,
                flags,
                shared,
                last: AtomicU64::new(0),
                captured: Mutex::new(None),
            })
            .map_err(|_| Status::OUT_OF_MEMORY)?;
        let command = Command::EventCreate { context: context.id, event: state.id };
        let created = context.session.submit(&command);
        if created.is_err() {
            self.events.remove(handle);
        }
        created.map(|()| handle)
    }

    /// Destroys an event; work that waits for it still does.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    pub fn event_destroy(&self, event: Event) -> Result<(), Status> {
        let state = self.events.remove(event).ok_or(Status::INVALID_HANDLE)?;
        if let Some(cell) = state.shared {
            free_cell(&state.session, &cell);
        }
        state.session.submit(&Command::EventDestroy { event: state.id })
    }

    /// Records an event in stream order.
    ///
    /// # Errors
    /// `INVALID_HANDLE`, also when event and stream belong to different contexts.
    pub fn event_record(&self, event: Event, stream: Stream) -> Result<(), Status> {
        let stream = self.stream(stream)?;
        let event = self.events.get(event).ok_or(Status::INVALID_HANDLE)?;
        if event.context != stream.context {
            return Err(Status::INVALID_HANDLE);
        }
        if let Some(cell) = event.shared {
            return shared_record(&cell, &stream);
        }
        if self.capture_record(&stream, &event)? == EventWork::Captured {
            return Ok(());
        }
        *lock(&event.captured) = None;
        let record = event.session.counters.event_record(event.id);
        event.set_record(record);
        let command = Command::EventRecord { event: event.id, stream: stream.id, record };
        stream.send(&command)
    }

    /// Success when the last record has completed, or there was none.
    ///
    /// # Errors
    /// `NOT_READY`, `INVALID_HANDLE`, `CAPTURED_EVENT`, or a fault.
    pub fn event_query(&self, event: Event) -> Result<(), Status> {
        let event = self.healthy_event(event)?;
        if let Some(cell) = event.shared {
            return shared_query(&event.session, &cell);
        }
        self.refuse_captured(&event)?;
        let record = event.last_record();
        match event.is_done(record) {
            // A fault completes what is recorded behind it, after it was told.
            Some(true) => event.session.healthy(),
            Some(false) => Err(Status::NOT_READY),
            None => event.session.call(&Command::EventQuery { event: event.id, record }),
        }
    }

    /// Waits for the last record.
    ///
    /// # Errors
    /// `INVALID_HANDLE`, `CAPTURED_EVENT`, or a fault.
    pub fn event_synchronize(&self, event: Event) -> Result<(), Status> {
        let event = self.healthy_event(event)?;
        if let Some(cell) = event.shared {
            return shared_synchronize(&event.session, &cell);
        }
        self.refuse_captured(&event)?;
        event.await_record(event.last_record())
    }

    /// An event of a session without faults.
    pub(crate) fn healthy_event(&self, event: Event) -> Result<Arc<EventState>, Status> {
        let event = self.events.get(event).ok_or(Status::INVALID_HANDLE)?;
        event.session.healthy()?;
        Ok(event)
    }

    /// Milliseconds between two completed records.
    ///
    /// # Errors
    /// `INVALID_HANDLE` for events without timing, never recorded, or of two devices; `NOT_READY`,
    /// or a fault.
    pub fn event_elapsed(&self, start: Event, end: Event) -> Result<f32, Status> {
        let start = self.healthy_event(start)?;
        let end = self.healthy_event(end)?;
        if start.session.ordinal != end.session.ordinal {
            return Err(Status::INVALID_HANDLE);
        }
        for event in [&start, &end] {
            self.refuse_captured(event)?;
            if event.flags & DISABLE_TIMING != 0 || event.last_record() == 0 {
                return Err(Status::INVALID_HANDLE);
            }
            if event.is_done(event.last_record()) == Some(false) {
                return Err(Status::NOT_READY);
            }
        }
        let command = Command::EventElapsed { start: start.id, end: end.id };
        let Elapsed { ns } = start.session.call_for(&command)?;
        Ok(milliseconds(ns))
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "the API's type")]
fn milliseconds(ns: i64) -> f32 {
    (ns as f64 / 1e6) as f32
}
