//! Streams, the default ones included.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use weft_wire::id::StreamId;
use weft_wire::{Command, Status, progress};

use crate::capture::StreamCapture;
use crate::client::{Client, lock};
use crate::context::ContextState;
use crate::event::{EventState, EventWork};
use crate::handle::{Context, Event, Stream};
use crate::ipc_event::{shared_synchronize, shared_wait};
use crate::session::Session;

/// The least priority of a stream: the default.
pub const PRIORITY_LEAST: i32 = 0;
/// The greatest priority of a stream.
pub const PRIORITY_GREATEST: i32 = -5;

/// A stream.
#[derive(Debug)]
pub(crate) struct StreamState {
    pub(crate) handle: Stream,
    pub(crate) id: StreamId,
    pub(crate) session: Arc<Session>,
    pub(crate) context: Context,
    flags: u32,
    priority: i32,
    number: u64,
    /// Whether `capture` holds something: what a launch looks at.
    capturing: AtomicBool,
    pub(crate) capture: Mutex<Option<StreamCapture>>,
}

impl StreamState {
    /// `CU_STREAM_NON_BLOCKING`.
    pub(crate) const NON_BLOCKING: u32 = 1;

    /// The legacy default stream of a context.
    pub(crate) fn legacy(session: &Arc<Session>, context: Context, number: u64) -> Self {
        Self {
            handle: Stream::LEGACY,
            id: StreamId::LEGACY,
            session: Arc::clone(session),
            context,
            flags: 0,
            priority: PRIORITY_LEAST,
            number,
            capturing: AtomicBool::new(false),
            capture: Mutex::new(None),
        }
    }

    /// Sends a command of the stream.
    #[inline]
    pub(crate) fn send(&self, command: &Command<'_>) -> Result<(), Status> {
        self.session.counters.stream_command(self.id);
        self.session.submit(command)
    }

    /// A synchronous command of the stream, counted like the others.
    pub(crate) fn call(&self, command: &Command<'_>) -> Result<(), Status> {
        self.session.counters.stream_command(self.id);
        self.session.call(command)
    }

    /// Whether all work of the stream sent so far has ended, as far as the progress words tell.
    fn is_idle(&self) -> bool {
        // The legacy stream also waits for the blocking streams, which its own word does not count.
        if self.id == StreamId::LEGACY {
            return false;
        }
        let sent = self.session.counters.stream_commands(self.id);
        progress::stream_word(self.id)
            .and_then(|word| self.session.progress(word))
            .is_some_and(|ended| ended >= sent)
    }

    /// Waits for the work of a stream that does not capture.
    pub(crate) fn finish(&self) -> Result<(), Status> {
        if self.is_idle() {
            return self.session.healthy();
        }
        self.session.call(&Command::StreamSynchronize { stream: self.id })
    }

    /// Whether the stream orders itself with the legacy stream.
    pub(crate) fn is_blocking(&self) -> bool {
        self.flags & Self::NON_BLOCKING == 0
    }

    #[inline]
    pub(crate) fn is_capturing(&self) -> bool {
        self.capturing.load(Ordering::Acquire)
    }

    pub(crate) fn set_capturing(&self, capturing: bool) {
        self.capturing.store(capturing, Ordering::Release);
    }

    /// Ends a capture that meets a call it cannot hold.
    pub(crate) fn refuse_capture(&self) -> Result<(), Status> {
        if !self.is_capturing() {
            return Ok(());
        }
        if let Some(capture) = lock(&self.capture).as_ref() {
            capture.invalidate();
        }
        Err(Status::STREAM_CAPTURE_UNSUPPORTED)
    }
}

/// The per-thread default streams, by thread and context.
///
/// There is no destructor in the application's threads: a stream of a dead thread is found and
/// handed to another thread when their number has doubled.
#[derive(Debug, Default)]
pub(crate) struct ThreadStreams(Mutex<PerThread>);

#[derive(Debug, Default)]
struct PerThread {
    streams: HashMap<(u32, Context), Stream>,
    sweep_at: usize,
}

impl ThreadStreams {
    pub(crate) fn forget_context(&self, context: Context) {
        lock(&self.0).streams.retain(|(_, of), _| *of != context);
    }
}

thread_local! {
    /// Context and stream of the last look-up.
    static THREAD_STREAM: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
}

impl Client {
    /// The stream that a handle means for the calling thread, in a healthy session.
    #[inline]
    pub(crate) fn stream(&self, stream: Stream) -> Result<Arc<StreamState>, Status> {
        match stream {
            Stream::NULL | Stream::LEGACY => {
                let context = self.current()?;
                self.captures.refuse_legacy(context.handle)?;
                Ok(Arc::clone(&context.legacy))
            }
            Stream::PER_THREAD => self.thread_stream(),
            handle => {
                let stream = self.streams.get(handle).ok_or(Status::INVALID_HANDLE)?;
                stream.session.healthy()?;
                Ok(stream)
            }
        }
    }

    /// Creates a stream in the current context.
    ///
    /// # Errors
    /// `INVALID_VALUE` for unknown flags, `OUT_OF_MEMORY` beyond the most streams of a session.
    pub fn stream_create(&self, flags: u32, priority: i32) -> Result<Stream, Status> {
        if flags & !StreamState::NON_BLOCKING != 0 {
            return Err(Status::INVALID_VALUE);
        }
        let context = self.current()?;
        self.new_stream(&context, flags, priority)
    }

    pub(crate) fn new_stream(
        &self,
        context: &ContextState,
        flags: u32,
        priority: i32,
    ) -> Result<Stream, Status> {
        let number = self.number();
        let priority = priority.clamp(PRIORITY_GREATEST, PRIORITY_LEAST);
        let (handle, state) = self
            .streams
            .insert(context.session.ordinal, |slot, handle| {
                let id = StreamId { index: slot.index, generation: slot.generation };
                let legacy = StreamState::legacy(&context.session, context.handle, number);
                StreamState { handle, id, flags, priority, ..legacy }
            })
            .map_err(|_| Status::OUT_OF_MEMORY)?;
        let created = context.session.submit(&Command::StreamCreate {
            context: context.id,
            stream: state.id,
            blocking: state.is_blocking(),
            priority,
        });
        if created.is_err() {
            self.streams.remove(handle);
        }
        created.map(|()| handle)
    }

    fn thread_stream(&self) -> Result<Arc<StreamState>, Status> {
        let context = self.current()?;
        let (of, raw) = THREAD_STREAM.with(Cell::get);
        if of == context.handle.raw()
            && let Some(stream) = self.streams.get(Stream::from_raw(raw))
        {
            return Ok(stream);
        }
        let handle = self.find_thread_stream(context.handle)?;
        THREAD_STREAM.with(|last| last.set((context.handle.raw(), handle.raw())));
        self.streams.get(handle).ok_or(Status::INVALID_HANDLE)
    }

    fn find_thread_stream(&self, context: Context) -> Result<Stream, Status> {
        /// Fewer per-thread streams than this are never swept.
        const SWEEP_FROM: usize = 64;

        let thread = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        let mut all = lock(&self.thread_streams.0);
        if let Some(stream) = all.streams.get(&(thread, context)) {
            return Ok(*stream);
        }
        if all.streams.len() >= all.sweep_at.max(SWEEP_FROM) {
            let (live, dead): (HashMap<_, _>, HashMap<_, _>) =
                all.streams.drain().partition(|((thread, _), _)| thread_exists(*thread));
            for stream in dead.into_values() {
                // Work of a dead thread's stream still ends before the stream goes.
                let _gone = self.stream_destroy(stream);
            }
            all.sweep_at = live.len() * 2;
            all.streams = live;
        }
        let stream = self.stream_create(0, PRIORITY_LEAST)?;
        all.streams.insert((thread, context), stream);
        Ok(stream)
    }

    /// Destroys a stream after its work; does not wait.
    ///
    /// # Errors
    /// `INVALID_HANDLE` for a stale or default stream.
    pub fn stream_destroy(&self, stream: Stream) -> Result<(), Status> {
        let state = self.streams.remove(stream).ok_or(Status::INVALID_HANDLE)?;
        if let Some(capture) = lock(&state.capture).take() {
            capture.invalidate();
        }
        state.session.submit(&Command::StreamDestroy { stream: state.id })
    }

    /// Success when the stream's work has ended.
    ///
    /// # Errors
    /// `NOT_READY`, `INVALID_HANDLE`, or a fault.
    pub fn stream_query(&self, stream: Stream) -> Result<(), Status> {
        let stream = self.stream(stream)?;
        stream.refuse_capture()?;
        if stream.is_idle() {
            return stream.session.healthy();
        }
        stream.session.call(&Command::StreamQuery { stream: stream.id })
    }

    /// Waits for the stream's work.
    ///
    /// # Errors
    /// `INVALID_HANDLE`, or a fault.
    pub fn stream_synchronize(&self, stream: Stream) -> Result<(), Status> {
        let stream = self.stream(stream)?;
        stream.refuse_capture()?;
        stream.finish()
    }

    /// Makes later work of the stream wait for the event's last record.
    ///
    /// # Errors
    /// `INVALID_HANDLE`, or what a capture refuses.
    pub fn stream_wait_event(&self, stream: Stream, event: Event) -> Result<(), Status> {
        let stream = self.stream(stream)?;
        let event = self.events.get(event).ok_or(Status::INVALID_HANDLE)?;
        if event.session.ordinal != stream.session.ordinal {
            return self.wait_for_another_device(&stream, &event);
        }
        if let Some(cell) = event.shared {
            return shared_wait(&cell, &stream);
        }
        match self.capture_wait(&stream, &event)? {
            EventWork::Captured => Ok(()),
            EventWork::Live if event.last_record() == 0 => Ok(()),
            EventWork::Live => {
                let command = Command::StreamWaitEvent { stream: stream.id, event: event.id };
                stream.send(&command)
            }
        }
    }

    /// Sessions cannot wait for each other, so a thread of this process waits at the event's place
    /// in the stream.
    fn wait_for_another_device(
        &self,
        stream: &StreamState,
        event: &Arc<EventState>,
    ) -> Result<(), Status> {
        stream.refuse_capture()?;
        let (event, record) = (Arc::clone(event), event.last_record());
        if let Some(cell) = event.shared {
            return self.run_in_order(stream, move || shared_synchronize(&event.session, &cell));
        }
        self.refuse_captured(&event)?;
        // An event of a session that is over does not come: what waits for it must not go on.
        self.run_in_order(stream, move || event.await_record(record))
    }

    /// The stream's flags.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    pub fn stream_flags(&self, stream: Stream) -> Result<u32, Status> {
        Ok(self.stream(stream)?.flags)
    }

    /// The stream's priority.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    pub fn stream_priority(&self, stream: Stream) -> Result<i32, Status> {
        Ok(self.stream(stream)?.priority)
    }

    /// A number that no other stream of the session has.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    pub fn stream_id(&self, stream: Stream) -> Result<u64, Status> {
        Ok(self.stream(stream)?.number)
    }

    /// The stream's context.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    pub fn stream_context(&self, stream: Stream) -> Result<Context, Status> {
        Ok(self.stream(stream)?.context)
    }

    /// The stream's device.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    pub fn stream_device(&self, stream: Stream) -> Result<i32, Status> {
        self.context_device(self.stream(stream)?.context)
    }
}

fn thread_exists(thread: u32) -> bool {
    // Where /proc cannot be read every thread counts as alive, and no stream is taken from it.
    std::fs::exists(format!("/proc/self/task/{thread}")).unwrap_or(true)
}
