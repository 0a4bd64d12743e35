//! Contexts and the calling thread's stack of them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use weft_wire::id::ContextId;
use weft_wire::{Command, Status};

use crate::client::{Client, lock};
use crate::current;
use crate::event::EventState;
use crate::graph_exec::GraphExecState;
use crate::handle::{Context, Stream};
use crate::module::ModuleState;
use crate::session::Session;
use crate::stream::StreamState;
use crate::table::Removed;

/// `CU_CTX_*` flags that mean something to somebody.
const FLAGS: u32 = 0xff;
/// `CU_CTX_SCHED_MASK`: of these at most one may be set.
const SCHED_MASK: u32 = 0x07;

/// A context.
#[derive(Debug)]
pub(crate) struct ContextState {
    pub(crate) handle: Context,
    pub(crate) id: ContextId,
    pub(crate) session: Arc<Session>,
    pub(crate) number: u64,
    primary: bool,
    flags: AtomicU32,
    cache_config: AtomicI32,
    shared_config: AtomicI32,
    limits: Mutex<BTreeMap<i32, u64>>,
    /// What copies that other devices ask for go through, once there was one.
    pub(crate) transfers: Mutex<Option<Stream>>,
    /// The legacy default stream as this context sees it.
    pub(crate) legacy: Arc<StreamState>,
}

/// What lived in a destroyed context. Its slots are free when this is dropped.
#[derive(Debug)]
pub(crate) struct Contents<'a> {
    _streams: Vec<Removed<'a, StreamState>>,
    _events: Vec<Removed<'a, EventState>>,
    _modules: Vec<Removed<'a, ModuleState>>,
    _graph_execs: Vec<Removed<'a, GraphExecState>>,
}

impl ContextState {
    pub(crate) fn set_flags(&self, flags: u32) {
        self.flags.store(flags, Ordering::Relaxed);
    }
}

/// Checks flags of context creation.
pub(crate) fn check_flags(flags: u32) -> Result<(), Status> {
    let schedule = flags & SCHED_MASK;
    if flags & !FLAGS != 0 || (schedule != 0 && !schedule.is_power_of_two()) {
        return Err(Status::INVALID_VALUE);
    }
    Ok(())
}

impl Client {
    /// Creates a context and makes it current.
    ///
    /// # Errors
    /// `INVALID_DEVICE`, `INVALID_VALUE`, `OUT_OF_MEMORY` beyond the most contexts of a session.
    pub fn context_create(&self, flags: u32, device: i32) -> Result<Context, Status> {
        let ordinal = self.device(device)?.ordinal;
        check_flags(flags)?;
        let context = self.create_context(ordinal, flags, false)?;
        current::push(context)?;
        Ok(context)
    }

    pub(crate) fn create_context(
        &self,
        ordinal: u8,
        flags: u32,
        primary: bool,
    ) -> Result<Context, Status> {
        let session = self.session(ordinal)?;
        let number = self.number();
        let stream_number = self.number();
        let (handle, state) = self
            .contexts
            .insert(ordinal, |slot, handle| ContextState {
                handle,
                id: ContextId { index: slot.index, generation: slot.generation },
                session: Arc::clone(session),
                number,
                primary,
                flags: AtomicU32::new(flags),
                cache_config: AtomicI32::new(0),
                shared_config: AtomicI32::new(1),
                limits: Mutex::new(BTreeMap::new()),
                transfers: Mutex::default(),
                legacy: Arc::new(StreamState::legacy(session, handle, stream_number)),
            })
            .map_err(|_| Status::OUT_OF_MEMORY)?;
        let created = session.submit(&Command::ContextCreate { context: state.id });
        if created.is_err() {
            self.contexts.remove(handle);
        }
        created.map(|()| handle)
    }

    /// Destroys a context that is not primary, wherever it is current.
    ///
    /// # Errors
    /// `INVALID_CONTEXT` for a stale or primary context.
    pub fn context_destroy(&self, context: Context) -> Result<(), Status> {
        let primary = self.contexts.with(context, |state| state.primary);
        if primary.ok_or(Status::INVALID_CONTEXT)? {
            return Err(Status::INVALID_CONTEXT);
        }
        if current::top() == context {
            current::pop()?;
        }
        self.remove_context(context)
    }

    /// Takes out the local objects that lived in a context.
    pub(crate) fn forget_contents(&self, context: &ContextState) -> Contents<'_> {
        let handle = context.handle;
        let streams = self.streams.all().into_iter().filter(|stream| stream.context == handle);
        let events = self.events.all().into_iter().filter(|event| event.context == handle);
        let modules = self.modules.all().into_iter().filter(|module| module.context == handle);
        let execs = self.graph_execs.all().into_iter().filter(|exec| exec.context == handle);
        let contents = Contents {
            _streams: streams.filter_map(|s| self.streams.remove(s.handle)).collect(),
            _events: events.filter_map(|event| self.events.remove(event.handle)).collect(),
            _modules: modules.filter_map(|module| self.forget_module(&module)).collect(),
            _graph_execs: execs.filter_map(|exec| self.forget_exec(exec.handle)).collect(),
        };
        self.ranges.forget_context(handle);
        self.thread_streams.forget_context(handle);
        contents
    }

    /// Makes a context current in place of the top of the stack; null pops the stack.
    ///
    /// # Errors
    /// `INVALID_CONTEXT` for a stale handle.
    pub fn context_set_current(&self, context: Context) -> Result<(), Status> {
        self.known_or_null(context)?;
        current::set(context);
        Ok(())
    }

    fn known_or_null(&self, context: Context) -> Result<(), Status> {
        let known = context.is_null() || self.contexts.with(context, |_| ()).is_some();
        if known { Ok(()) } else { Err(Status::INVALID_CONTEXT) }
    }

    /// The current context, or null.
    #[must_use]
    pub fn context_get_current(&self) -> Context {
        current::top()
    }

    /// Pushes a context onto the calling thread's stack.
    ///
    /// # Errors
    /// `INVALID_CONTEXT` for a stale handle or null.
    pub fn context_push(&self, context: Context) -> Result<(), Status> {
        self.contexts.with(context, |_| ()).ok_or(Status::INVALID_CONTEXT)?;
        current::push(context)
    }

    /// Pops the calling thread's stack.
    ///
    /// # Errors
    /// `INVALID_CONTEXT` when it is empty.
    pub fn context_pop(&self) -> Result<Context, Status> {
        current::pop()
    }

    /// The device of a context; null means the current one.
    ///
    /// # Errors
    /// `INVALID_CONTEXT`.
    pub fn context_device(&self, context: Context) -> Result<i32, Status> {
        let context = if context.is_null() { current::top() } else { context };
        self.contexts
            .with(context, |state| i32::from(state.session.ordinal))
            .ok_or(Status::INVALID_CONTEXT)
    }

    /// The flags of the current context.
    ///
    /// # Errors
    /// `INVALID_CONTEXT`.
    pub fn context_flags(&self) -> Result<u32, Status> {
        Ok(self.current_despite_faults()?.flags.load(Ordering::Relaxed))
    }

    /// Sets the flags of the current context.
    ///
    /// # Errors
    /// `INVALID_CONTEXT`, `INVALID_VALUE`.
    pub fn context_set_flags(&self, flags: u32) -> Result<(), Status> {
        check_flags(flags)?;
        self.current_despite_faults()?.set_flags(flags);
        Ok(())
    }

    /// A number that no other context of the session has; null means the current one.
    ///
    /// # Errors
    /// `INVALID_CONTEXT`.
    pub fn context_id(&self, context: Context) -> Result<u64, Status> {
        Ok(self.context(context)?.number)
    }

    /// The driver API version that a context was made with; null means the current one.
    ///
    /// # Errors
    /// `INVALID_CONTEXT`.
    pub fn context_api_version(&self, context: Context) -> Result<u32, Status> {
        /// What current drivers answer for contexts of `cuCtxCreate_v2` and later.
        const API_VERSION: u32 = 3020;
        self.context(context)?;
        Ok(API_VERSION)
    }

    /// Waits for all work of a context; null means the current one.
    ///
    /// # Errors
    /// `INVALID_CONTEXT`, `STREAM_CAPTURE_UNSUPPORTED` while a stream captures, or a fault.
    pub fn context_synchronize(&self, context: Context) -> Result<(), Status> {
        let context = self.context(context)?;
        self.refuse_while_capturing(context.handle)?;
        context.session.call(&Command::ContextSynchronize { context: context.id })
    }

    /// A `CUlimit`.
    ///
    /// # Errors
    /// `INVALID_CONTEXT`, `UNSUPPORTED_LIMIT`.
    pub fn context_limit(&self, limit: i32) -> Result<u64, Status> {
        let default = default_limit(limit)?;
        let context = self.current_despite_faults()?;
        let set = lock(&context.limits).get(&limit).copied();
        Ok(set.unwrap_or(default))
    }

    /// Sets a `CUlimit`. The software device grows what it needs, so the values are only
    /// remembered.
    ///
    /// # Errors
    /// `INVALID_CONTEXT`, `UNSUPPORTED_LIMIT`.
    pub fn context_set_limit(&self, limit: i32, value: u64) -> Result<(), Status> {
        default_limit(limit)?;
        let context = self.current_despite_faults()?;
        lock(&context.limits).insert(limit, value);
        Ok(())
    }

    /// The preferred cache configuration.
    ///
    /// # Errors
    /// `INVALID_CONTEXT`.
    pub fn context_cache_config(&self) -> Result<i32, Status> {
        Ok(self.current_despite_faults()?.cache_config.load(Ordering::Relaxed))
    }

    /// Sets the preferred cache configuration, a mere preference.
    ///
    /// # Errors
    /// `INVALID_CONTEXT`, `INVALID_VALUE`.
    pub fn context_set_cache_config(&self, config: i32) -> Result<(), Status> {
        check_range(config, 0..=3)?;
        self.current_despite_faults()?.cache_config.store(config, Ordering::Relaxed);
        Ok(())
    }

    /// The shared memory bank configuration.
    ///
    /// # Errors
    /// `INVALID_CONTEXT`.
    pub fn context_shared_config(&self) -> Result<i32, Status> {
        Ok(self.current_despite_faults()?.shared_config.load(Ordering::Relaxed))
    }

    /// Sets the shared memory bank configuration, a mere preference.
    ///
    /// # Errors
    /// `INVALID_CONTEXT`, `INVALID_VALUE`.
    pub fn context_set_shared_config(&self, config: i32) -> Result<(), Status> {
        check_range(config, 0..=2)?;
        self.current_despite_faults()?.shared_config.store(config, Ordering::Relaxed);
        Ok(())
    }

    /// Least and greatest priority of streams: `(0, -5)`, as on current devices, or `(0, 0)` where
    /// streams have none.
    ///
    /// # Errors
    /// `INVALID_CONTEXT`.
    pub fn context_stream_priorities(&self) -> Result<(i32, i32), Status> {
        /// `CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED`.
        const STREAM_PRIORITIES: u32 = 78;

        let context = self.current_despite_faults()?;
        let supported = context.session.attribute(STREAM_PRIORITIES) != 0;
        let greatest = if supported { crate::stream::PRIORITY_GREATEST } else { 0 };
        Ok((crate::stream::PRIORITY_LEAST, greatest))
    }
}

/// Checks an enumeration's value.
pub(crate) fn check_range(value: i32, known: std::ops::RangeInclusive<i32>) -> Result<(), Status> {
    if known.contains(&value) { Ok(()) } else { Err(Status::INVALID_VALUE) }
}

fn default_limit(limit: i32) -> Result<u64, Status> {
    match limit {
        // CU_LIMIT_STACK_SIZE
        0 => Ok(1024),
        // CU_LIMIT_PRINTF_FIFO_SIZE
        1 => Ok(1 << 20),
        // CU_LIMIT_MALLOC_HEAP_SIZE
        2 => Ok(8 << 20),
        // CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH
        3 => Ok(2),
        // CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT
        4 => Ok(2048),
        // CU_LIMIT_MAX_L2_FETCH_GRANULARITY
        5 => Ok(64),
        // CU_LIMIT_PERSISTING_L2_CACHE_SIZE
        6 => Ok(0),
        _ => Err(Status::UNSUPPORTED_LIMIT),
    }
}
