//! The client: one session with everything the application holds in it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use weft_ring::{ClientSide, Loss};
use weft_wire::codec::{Field, decode_all};
use weft_wire::command::COMMAND_BYTES_MAX;
use weft_wire::handshake::Welcome;
use weft_wire::{Command, Status, id, progress};

use crate::attach::{self, AttachError, DirectSession, Lifeline, Session};
use crate::capture::Captures;
use crate::config::{Config, visible_devices};
use crate::context::ContextState;
use crate::device_range::DeviceRange;
use crate::event::EventState;
use crate::function::{FunctionState, KernelState};
use crate::graph::{GraphState, NodeRef};
use crate::graph_exec::GraphExecState;
use crate::handle::{Context, INDEX_MAX};
use crate::host_function::HostFunctions;
use crate::ipc::Imports;
use crate::ipc_event::EventPages;
use crate::launch::LaunchLimits;
use crate::library::LibraryState;
use crate::link::LinkState;
use crate::module::ModuleState;
use crate::pinned::PinnedHeap;
use crate::pointer::Ranges;
use crate::pool::{PoolChoice, PoolState};
use crate::primary::Primary;
use crate::stream::{StreamState, ThreadStreams};
use crate::table::Table;
use crate::transport::{Answer, Transport};
use crate::user_object::UserObjects;

/// Bytes of kernels' output that one answer brings at most.
const OUTPUT_PIECE: usize = 4096;

/// Answers to most commands fit into this many bytes.
const SMALL_ANSWER: usize = 64;

/// A session with a vGPU, and every object that the application made in it.
///
/// Methods stand in one module per noun. They check arguments as the native driver does and return
/// its codes.
#[derive(Debug)]
pub struct Client {
    pub(crate) side: Arc<ClientSide>,
    transport: Arc<dyn Transport>,
    pub(crate) welcome: Welcome,
    pub(crate) attributes: BTreeMap<u32, i32>,
    pub(crate) launch_limits: LaunchLimits,
    /// Whether the one attached device is visible to the program.
    pub(crate) devices: u8,
    pub(crate) contexts: Table<ContextState>,
    pub(crate) streams: Table<StreamState>,
    pub(crate) events: Table<EventState>,
    pub(crate) modules: Table<ModuleState>,
    pub(crate) functions: Table<FunctionState>,
    pub(crate) libraries: Table<LibraryState>,
    pub(crate) kernels: Table<KernelState>,
    pub(crate) graphs: Table<GraphState>,
    pub(crate) graph_nodes: Table<NodeRef>,
    pub(crate) graph_execs: Table<GraphExecState>,
    pub(crate) pools: Table<PoolState>,
    pub(crate) links: Table<LinkState>,
    pub(crate) primary: Mutex<Primary>,
    pub(crate) pool_choice: PoolChoice,
    pub(crate) ranges: Ranges,
    pub(crate) pinned: PinnedHeap,
    pub(crate) imports: Mutex<Imports>,
    pub(crate) event_pages: Mutex<EventPages>,
    pub(crate) counters: Counters,
    pub(crate) thread_streams: ThreadStreams,
    pub(crate) captures: Captures,
    pub(crate) host_functions: HostFunctions,
    pub(crate) user_objects: Arc<UserObjects>,
    refused_seen: AtomicU64,
    printed_seen: AtomicU64,
    next_number: AtomicU64,
    lifeline: Arc<Lifeline>,
    pub(crate) device_range: DeviceRange,
}

/// How many stream commands and event records were sent, by slot (see [`weft_wire::progress`]).
#[derive(Debug)]
pub(crate) struct Counters {
    streams: Box<[AtomicU64]>,
    /// In chunks that appear when their first event is recorded.
    events: Box<[OnceLock<Box<[AtomicU64]>>]>,
}

/// Events of one chunk of counters.
const EVENT_CHUNK: usize = 4096;

fn zeros(count: usize) -> Box<[AtomicU64]> {
    (0..count).map(|_| AtomicU64::new(0)).collect()
}

impl Counters {
    fn new() -> Self {
        let index = |limit: u32| usize::try_from(limit).unwrap_or(usize::MAX);
        let chunks = index(id::EVENTS_MAX).div_ceil(EVENT_CHUNK);
        Self {
            streams: zeros(index(progress::STREAM_WORDS)),
            events: (0..chunks).map(|_| OnceLock::new()).collect(),
        }
    }

    /// Counts one more command of the stream's slot.
    #[inline]
    pub(crate) fn stream_command(&self, stream: id::StreamId) {
        if let Some(count) = usize::try_from(stream.index).ok().and_then(|i| self.streams.get(i)) {
            count.fetch_add(1, Ordering::AcqRel);
        }
    }

    pub(crate) fn stream_commands(&self, stream: id::StreamId) -> u64 {
        let count = usize::try_from(stream.index).ok().and_then(|i| self.streams.get(i));
        count.map_or(0, |count| count.load(Ordering::Acquire))
    }

    /// Numbers the next record of the event's slot.
    pub(crate) fn event_record(&self, event: id::EventId) -> u64 {
        let index = usize::try_from(event.index).unwrap_or(usize::MAX);
        let chunk = self.events.get(index / EVENT_CHUNK);
        let chunk = chunk.map(|chunk| chunk.get_or_init(|| zeros(EVENT_CHUNK)));
        let count = chunk.and_then(|chunk| chunk.get(index % EVENT_CHUNK));
        count.map_or(0, |count| count.fetch_add(1, Ordering::AcqRel) + 1)
    }
}

impl Client {
    /// Attaches to a node daemon. (`config.attach` is the shim's to look at.)
    ///
    /// # Errors
    /// [`AttachError`], whose text is for the program's user.
    pub fn attach(config: &Config) -> Result<Arc<Self>, AttachError> {
        Ok(Self::over(config, attach::connect(config)?, None))
    }

    /// Attaches to execution code in this process. `open` hands it the bytes of a hello; the shim
    /// does so because loading a library is not safe.
    ///
    /// # Errors
    /// [`AttachError`], whose text is for the program's user.
    pub fn attach_direct(
        config: &Config,
        open: impl FnOnce(&[u8]) -> Result<DirectSession, String>,
    ) -> Result<Arc<Self>, AttachError> {
        let (session, transport) = attach::connect_direct(config, open)?;
        Ok(Self::over(config, session, Some(transport)))
    }

    /// A client of an established session. Commands go through the segment's lanes unless another
    /// `transport` executes them.
    #[must_use]
    pub fn over(
        config: &Config,
        session: Session,
        transport: Option<Arc<dyn Transport>>,
    ) -> Arc<Self> {
        let Session { welcome, side, pinned, device, lifeline } = session;
        let side = Arc::new(side);
        let transport = transport.unwrap_or_else(|| Arc::clone(&side) as Arc<dyn Transport>);
        let visible = visible_devices(config.visible.as_deref(), &[welcome.uuid]);
        let attributes: BTreeMap<u32, i32> =
            welcome.attributes.iter().map(|a| (a.number, a.value)).collect();
        let launch_limits = LaunchLimits::read(|number, otherwise| {
            let stated = attributes.get(&number).and_then(|value| u32::try_from(*value).ok());
            stated.filter(|limit| *limit > 0).unwrap_or(otherwise)
        });
        Arc::new_cyclic(|this| Self {
            side,
            transport,
            attributes,
            launch_limits,
            devices: u8::from(!visible.is_empty()),
            contexts: Table::new(id::CONTEXTS_MAX),
            streams: Table::new(id::STREAMS_MAX),
            events: Table::new(id::EVENTS_MAX),
            modules: Table::new(id::MODULES_MAX),
            functions: Table::new(INDEX_MAX),
            libraries: Table::new(id::MODULES_MAX),
            kernels: Table::new(INDEX_MAX),
            graphs: Table::new(INDEX_MAX),
            graph_nodes: Table::new(INDEX_MAX),
            graph_execs: Table::new(id::GRAPHS_MAX),
            pools: Table::new(INDEX_MAX),
            links: Table::new(INDEX_MAX),
            primary: Mutex::new(Primary::default()),
            pool_choice: PoolChoice::default(),
            ranges: Ranges::default(),
            pinned: PinnedHeap::new(&pinned),
            imports: Mutex::default(),
            event_pages: Mutex::default(),
            counters: Counters::new(),
            thread_streams: ThreadStreams::default(),
            captures: Captures::default(),
            host_functions: HostFunctions::new(this.clone()),
            user_objects: Arc::new(UserObjects::new(this.clone())),
            refused_seen: AtomicU64::new(0),
            printed_seen: AtomicU64::new(0),
            next_number: AtomicU64::new(1),
            welcome,
            lifeline,
            device_range: DeviceRange::new(device),
        })
    }

    /// Whether this process is a fork of the one that attached. Costs one load.
    #[must_use]
    pub fn is_forked(&self) -> bool {
        self.side.is_forked()
    }

    /// Lets go of the session in a child made by `fork`: from then on the session's end depends on
    /// the parent alone. For the child's handler of `pthread_atfork`; takes no lock that another
    /// thread of the parent may have held, and does nothing in the parent.
    pub fn leave_in_child(&self) {
        if self.is_forked() {
            self.lifeline.cut();
            self.leave_registered();
        }
    }

    /// A number that no other object of the session has, for `cu*GetId`.
    pub(crate) fn number(&self) -> u64 {
        self.next_number.fetch_add(1, Ordering::Relaxed)
    }

    /// The calling thread's current context, free of sticky errors.
    #[inline]
    pub(crate) fn current(&self) -> Result<Arc<ContextState>, Status> {
        self.healthy()?;
        self.current_despite_faults()
    }

    /// The calling thread's current context, whatever happened in it.
    pub(crate) fn current_despite_faults(&self) -> Result<Arc<ContextState>, Status> {
        let top = crate::current::top();
        if top.is_null() {
            return Err(Status::INVALID_CONTEXT);
        }
        self.contexts.get(top).ok_or(Status::CONTEXT_IS_DESTROYED)
    }

    /// A context by handle; null means the current one.
    pub(crate) fn context(&self, handle: Context) -> Result<Arc<ContextState>, Status> {
        if handle.is_null() {
            return self.current();
        }
        self.contexts.get(handle).ok_or(Status::INVALID_CONTEXT)
    }

    /// Brings asynchronous faults and refusals to the next call.
    #[inline]
    pub(crate) fn healthy(&self) -> Result<(), Status> {
        self.usable()?;
        let refused = self.notice(progress::NOTICE_REFUSED);
        if refused == self.refused_seen.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.refused_seen.store(refused, Ordering::Relaxed);
        self.call(&Command::Ping {})
    }

    /// Whether the session lives and no fault sticks.
    #[inline]
    pub(crate) fn usable(&self) -> Result<(), Status> {
        if self.side.is_forked() {
            return Err(Status::NOT_INITIALIZED);
        }
        if self.side.is_lost() {
            return Err(Status::DEVICE_UNAVAILABLE);
        }
        if self.notice(progress::NOTICE_FAULT) != 0 {
            return Err(self.fault());
        }
        Ok(())
    }

    /// Hands what kernels have printed to `write`, piece by piece. Costs one look at shared memory
    /// when nothing was printed. Works after a fault: what a kernel said before it matters most.
    pub fn take_output(&self, write: impl FnMut(&[u8])) {
        if self.side.is_forked() || self.side.is_lost() {
            return;
        }
        let printed = self.notice(progress::NOTICE_PRINTED);
        if self.printed_seen.swap(printed, Ordering::Relaxed) != printed {
            self.fetch_output(write);
        }
    }

    #[cold]
    fn fetch_output(&self, mut write: impl FnMut(&[u8])) {
        let mut body = [0; OUTPUT_PIECE];
        while let Ok(answer) = self.call_into(&Command::TakeOutput {}, &mut body) {
            match body.get(..answer.len) {
                Some(piece) if !piece.is_empty() && answer.status == Status::SUCCESS => {
                    write(piece);
                }
                _ => return,
            }
        }
    }

    #[cold]
    fn fault(&self) -> Status {
        let code = i32::try_from(self.notice(progress::NOTICE_FAULT)).unwrap_or(-1);
        Status::from_peer(code)
    }

    fn notice(&self, word: u32) -> u64 {
        usize::try_from(word).ok().and_then(|word| self.side.notice(word)).unwrap_or(0)
    }

    /// A progress word. Never touched in a forked child, which does not have the segment.
    pub(crate) fn progress(&self, word: u32) -> Option<u64> {
        usize::try_from(word).ok().and_then(|word| self.side.progress(word))
    }

    /// Sends an asynchronous command.
    #[inline]
    pub(crate) fn submit(&self, command: &Command<'_>) -> Result<(), Status> {
        debug_assert!(!command.is_sync(), "{} is answered", command.name());
        let mut bytes = [0; COMMAND_BYTES_MAX];
        let length = command.encode(&mut bytes).map_err(|_| Status::INVALID_VALUE)?;
        let sent = self.transport.submit(bytes.get(..length).unwrap_or_default());
        sent.inspect_err(|status| self.note_loss(*status))
    }

    /// Sends a synchronous command whose answer is only a status.
    pub(crate) fn call(&self, command: &Command<'_>) -> Result<(), Status> {
        self.call_into(command, &mut [])?.status.into_result()
    }

    /// Sends a synchronous command and decodes its answer.
    pub(crate) fn call_for<T: for<'a> Field<'a>>(
        &self,
        command: &Command<'_>,
    ) -> Result<T, Status> {
        let mut body = [0; SMALL_ANSWER];
        let answer = self.call_into(command, &mut body)?;
        answer.status.into_result()?;
        let body = body.get(..answer.len).ok_or(Status::UNKNOWN)?;
        decode_all(body).map_err(|_| Status::UNKNOWN)
    }

    /// Sends a synchronous command and copies its answer's body into `body`.
    pub(crate) fn call_into(
        &self,
        command: &Command<'_>,
        body: &mut [u8],
    ) -> Result<Answer, Status> {
        debug_assert!(command.is_sync(), "{} is not answered", command.name());
        let mut bytes = [0; COMMAND_BYTES_MAX];
        let length = command.encode(&mut bytes).map_err(|_| Status::INVALID_VALUE)?;
        let answer = self.transport.call(bytes.get(..length).unwrap_or_default(), body);
        answer.inspect_err(|status| self.note_loss(*status))
    }

    /// Why the session is over, if it is.
    #[must_use]
    pub fn loss(&self) -> Option<Loss> {
        self.side.segment().loss().ok().flatten()
    }

    /// One thread that finds the worker gone tells the others, who may be waiting or about to
    /// submit.
    #[cold]
    fn note_loss(&self, status: Status) {
        if status == Status::DEVICE_UNAVAILABLE && !self.side.is_lost() {
            // It cannot fail for an opened segment, and the caller has its error already.
            let _told = self.side.segment().declare_worker_lost();
        }
    }
}

/// Locks a mutex whose content stays meaningful when a holder panicked.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
