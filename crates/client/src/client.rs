//! The client: the process's devices, and every object that the application made on them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use weft_ring::Loss;
use weft_wire::{Status, id};

use crate::advice::Advised;
use crate::attach::{self, AttachError, DirectSession, Established};
use crate::capture::Captures;
use crate::config::{Config, visible_devices};
use crate::context::ContextState;
use crate::event::EventState;
use crate::function::{FunctionState, KernelState};
use crate::graph::{GraphState, NodeRef};
use crate::graph_exec::GraphExecState;
use crate::handle::{Context, INDEX_MAX, ORDINALS_MAX};
use crate::library::LibraryState;
use crate::link::LinkState;
use crate::module::ModuleState;
use crate::pointer::Ranges;
use crate::pool::{PoolChoice, PoolState};
use crate::session::Session;
use crate::stream::{StreamState, ThreadStreams};
use crate::table::Table;
use crate::transport::Transport;
use crate::user_object::UserObjects;

/// The devices of a process, each a session with a vGPU, and every object that the application
/// made on them.
///
/// Methods stand in one module per noun. They check arguments as the native driver does and return
/// its codes. A handle's ordinal says which session an object belongs to; slots are unique in the
/// process, so they are in each session.
#[derive(Debug)]
pub struct Client {
    /// Those that the program sees, by ordinal.
    pub(crate) sessions: Vec<Arc<Session>>,
    /// Those that it does not.
    hidden: Vec<Arc<Session>>,
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
    pub(crate) pool_choice: PoolChoice,
    pub(crate) ranges: Ranges,
    pub(crate) advised: Advised,
    pub(crate) thread_streams: ThreadStreams,
    pub(crate) captures: Captures,
    pub(crate) user_objects: Arc<UserObjects>,
    next_number: AtomicU64,
}

/// A session before it has its place among the process's devices.
type Attached = (Established, Option<Arc<dyn Transport>>);

impl Client {
    /// Attaches to a node daemon, once for each vGPU that is named. (`config.attach` is the shim's
    /// to look at.)
    ///
    /// # Errors
    /// [`AttachError`], whose text is for the program's user.
    pub fn attach(config: &Config) -> Result<Arc<Self>, AttachError> {
        let (names, config) = config.seen()?;
        let attached = names.into_iter().map(|vgpu| Ok((attach::connect(&config, vgpu)?, None)));
        let attached = attached.collect::<Result<Vec<Attached>, AttachError>>()?;
        Ok(Self::of(&config, attached))
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
        let (established, transport) = attach::connect_direct(config, open)?;
        Ok(Self::of(config, vec![(established, Some(transport))]))
    }

    /// A client of one session that was established. Commands go through the segment's lanes unless
    /// another `transport` executes them.
    #[must_use]
    pub fn over(
        config: &Config,
        established: Established,
        transport: Option<Arc<dyn Transport>>,
    ) -> Arc<Self> {
        Self::of(config, vec![(established, transport)])
    }

    fn of(config: &Config, attached: Vec<Attached>) -> Arc<Self> {
        let uuids: Vec<[u8; 16]> = attached.iter().map(|(one, _)| one.welcome.uuid).collect();
        let visible = visible_devices(config.visible.as_deref(), &uuids);
        let mut attached: Vec<Option<Attached>> = attached.into_iter().map(Some).collect();
        let seen = visible.iter().filter_map(|at| attached.get_mut(*at)?.take());
        let with_ordinal = |(ordinal, (established, transport)): (u8, Attached)| {
            Session::over(ordinal, established, transport)
        };
        let sessions = (0..).zip(seen.collect::<Vec<_>>()).map(with_ordinal).collect();
        let unseen = attached.into_iter().flatten().map(|one| (ORDINALS_MAX, one));
        let hidden = unseen.map(with_ordinal).collect();
        Arc::new(Self {
            sessions,
            hidden,
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
            pool_choice: PoolChoice::default(),
            ranges: Ranges::default(),
            advised: Advised::default(),
            thread_streams: ThreadStreams::default(),
            captures: Captures::default(),
            user_objects: Arc::new(UserObjects::new()),
            next_number: AtomicU64::new(1),
        })
    }

    /// All sessions, also of devices that the program does not see.
    fn all(&self) -> impl Iterator<Item = &Arc<Session>> {
        self.sessions.iter().chain(&self.hidden)
    }

    /// Whether this process is a fork of the one that attached. Costs one load.
    #[must_use]
    pub fn is_forked(&self) -> bool {
        self.all().next().is_some_and(|session| session.is_forked())
    }

    /// Lets go of the sessions in a child made by `fork`: from then on their end depends on the
    /// parent alone. For the child's handler of `pthread_atfork`; takes no lock that another thread
    /// of the parent may have held, and does nothing in the parent.
    pub fn leave_in_child(&self) {
        self.all().for_each(|session| session.leave_in_child());
    }

    /// Hands what kernels have printed to `write`, piece by piece. Costs one look at shared memory
    /// for each device when nothing was printed. Works after a fault: what a kernel said before it
    /// matters most.
    pub fn take_output(&self, mut write: impl FnMut(&[u8])) {
        self.sessions.iter().for_each(|session| session.take_output(&mut write));
    }

    /// Why a session is over, if one is.
    #[must_use]
    pub fn loss(&self) -> Option<Loss> {
        self.sessions.iter().find_map(|session| session.loss())
    }

    /// A number that no other object of the process has, for `cu*GetId`.
    pub(crate) fn number(&self) -> u64 {
        self.next_number.fetch_add(1, Ordering::Relaxed)
    }

    /// The session of the device with that ordinal.
    pub(crate) fn session(&self, ordinal: u8) -> Result<&Arc<Session>, Status> {
        self.sessions.get(usize::from(ordinal)).ok_or(Status::INVALID_DEVICE)
    }

    /// The session that a context, alive or not, was made in.
    pub(crate) fn home(&self, context: Context) -> Result<&Arc<Session>, Status> {
        self.session(context.ordinal()).map_err(|_| Status::INVALID_CONTEXT)
    }

    /// The calling thread's current context, free of sticky errors.
    #[inline]
    pub(crate) fn current(&self) -> Result<Arc<ContextState>, Status> {
        match self.current_despite_faults() {
            Ok(context) => context.session.healthy().map(|()| context),
            Err(status) => {
                self.healthy()?;
                Err(status)
            }
        }
    }

    /// Brings asynchronous faults and refusals of any device to the next call.
    pub(crate) fn healthy(&self) -> Result<(), Status> {
        self.sessions.iter().try_for_each(|session| session.healthy())
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
}

/// Locks a mutex whose content stays meaningful when a holder panicked.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
