//! Functions on the host that run in stream order.
//!
//! The worker says which one is due; a thread of this process, made at the first use, asks for the
//! next, calls it and says when it has returned. What Weft does itself at a place in a stream, as
//! copies between devices, waits for other sessions, so each has a thread of its own: another
//! session may wait for the next one of this session.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, Weak};

use weft_wire::reply::HostCall;
use weft_wire::{Command, Status};

use crate::client::{Client, lock};
use crate::graph::{HostWork, Work};
use crate::handle::Stream;
use crate::session::Session;
use crate::stream::StreamState;

/// A callback with the stream's state, called once.
pub type Callback = Box<dyn FnOnce(Result<(), Status>) + Send>;

/// Something of Weft's own. Where it fails, so does its session.
type OwnWork = Box<dyn FnOnce() -> Result<(), Status> + Send>;

enum Pending {
    /// For one call.
    Once(Callback),
    /// The same, by a thread of its own.
    Own(OwnWork),
    /// For every launch of an instantiated graph.
    Each {
        work: HostWork,
        /// Launches that have not called it yet.
        due: u64,
        /// The graph lives: there may be more launches.
        kept: bool,
    },
}

/// What the callback thread may be asked to call.
pub(crate) struct HostFunctions {
    session: Weak<Session>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    pending: HashMap<u64, Pending>,
    running: bool,
}

impl fmt::Debug for HostFunctions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostFunctions").finish_non_exhaustive()
    }
}

impl HostFunctions {
    pub(crate) fn new(session: Weak<Session>) -> Self {
        Self { session, state: Mutex::default() }
    }

    /// Keeps a function for every launch of a graph under the number `call`.
    pub(crate) fn keep(&self, call: u64, work: HostWork) -> Result<(), Status> {
        if let Some(Pending::Each { work: held, .. }) = lock(&self.state).pending.get_mut(&call) {
            *held = work;
            return Ok(());
        }
        self.add(call, Pending::Each { work, due: 0, kept: true })
    }

    /// The graph of a kept function is launched once more.
    pub(crate) fn expect(&self, call: u64) {
        if let Some(Pending::Each { due, .. }) = lock(&self.state).pending.get_mut(&call) {
            *due += 1;
        }
    }

    /// Forgets a kept function once the launches so far have called it.
    pub(crate) fn forget(&self, call: u64) {
        let mut state = lock(&self.state);
        if let Some(Pending::Each { due: 1.., kept, .. }) = state.pending.get_mut(&call) {
            *kept = false;
        } else {
            state.pending.remove(&call);
        }
    }

    fn add(&self, call: u64, pending: Pending) -> Result<(), Status> {
        let mut state = lock(&self.state);
        state.pending.insert(call, pending);
        if state.running {
            return Ok(());
        }
        let session = self.session.clone();
        let thread = std::thread::Builder::new().name("weft-callbacks".into());
        let spawned = thread.spawn(move || serve(&session));
        if spawned.is_err() {
            state.pending.remove(&call);
            return Err(Status::OPERATING_SYSTEM);
        }
        state.running = true;
        Ok(())
    }

    /// Tells every pending callback that it will not come due; false when there was none, and the
    /// thread must end.
    fn abandon(&self, outcome: Result<(), Status>) -> bool {
        let mut state = lock(&self.state);
        // Launches that were under way call nothing any more.
        state.pending.retain(|_, pending| match pending {
            Pending::Once(_) | Pending::Own(_) => true,
            Pending::Each { due, kept, .. } => {
                *due = 0;
                *kept
            }
        });
        let dropped: Vec<Pending> = state
            .pending
            .extract_if(|_, pending| matches!(pending, Pending::Once(_) | Pending::Own(_)))
            .map(|(_, pending)| pending)
            .collect();
        state.running = !dropped.is_empty();
        drop(state);
        let any = !dropped.is_empty();
        for pending in dropped {
            if let Pending::Once(callback) = pending {
                callback(Err(outcome.err().unwrap_or(Status::UNKNOWN)));
            }
        }
        any
    }

    /// Calls what is due, or has it called; whether it has returned.
    fn run(&self, session: &Arc<Session>, call: u64, health: Result<(), Status>) -> bool {
        let mut state = lock(&self.state);
        match state.pending.get_mut(&call) {
            Some(Pending::Each { work, due, kept }) => {
                let work = work.clone();
                *due = due.saturating_sub(1);
                if *due == 0 && !*kept {
                    state.pending.remove(&call);
                }
                drop(state);
                (work.0)();
            }
            Some(Pending::Once(_)) => {
                let once = state.pending.remove(&call);
                drop(state);
                if let Some(Pending::Once(callback)) = once {
                    callback(health);
                }
            }
            Some(Pending::Own(_)) => {
                let own = state.pending.remove(&call);
                drop(state);
                if let (Some(Pending::Own(work)), Ok(())) = (own, health) {
                    return !session.run_aside(call, work);
                }
            }
            None => {}
        }
        true
    }
}

impl Session {
    /// Does something in a thread of its own, which then says that it is done; whether there is
    /// such a thread.
    fn run_aside(self: &Arc<Self>, call: u64, work: OwnWork) -> bool {
        let session = Arc::clone(self);
        let thread = std::thread::Builder::new().name("weft-transfer".into());
        let spawned = thread.spawn(move || {
            match work() {
                // An object of a context that was destroyed meanwhile: nobody looks at the rest.
                Ok(()) | Err(Status::INVALID_HANDLE) => {}
                Err(status) => session.break_down(status),
            }
            // Whoever waits for a session that is over knows that.
            let _told = session.submit(&Command::HostFunctionDone { call });
        });
        if spawned.is_err() {
            self.break_down(Status::OPERATING_SYSTEM);
        }
        spawned.is_ok()
    }
}

/// The callback thread, until the session is over or faulted.
fn serve(session: &Weak<Session>) {
    while let Some(session) = session.upgrade() {
        let functions = &session.host_functions;
        if let Ok(HostCall { call }) = session.call_for(&Command::HostFunctionNext {}) {
            let has_returned = functions.run(&session, call, session.usable());
            if !has_returned || session.submit(&Command::HostFunctionDone { call }).is_ok() {
                continue;
            }
        }
        // What the worker dropped is told of it here. With nothing left, a later host function
        // starts another thread.
        let outcome = session.usable();
        if !functions.abandon(outcome) {
            return;
        }
    }
}

impl Client {
    /// Calls `function` on the host when the stream's earlier work has ended; later work waits for
    /// it.
    ///
    /// # Errors
    /// `INVALID_HANDLE`, `OPERATING_SYSTEM` when no thread can be made.
    pub fn launch_host_function(&self, stream: Stream, function: HostWork) -> Result<(), Status> {
        let stream = self.stream(stream)?;
        if stream.is_capturing() {
            return self.capture_work(&stream, Work::Host(function));
        }
        // Not called after a fault, as on the native driver.
        let once: Callback = Box::new(move |health| {
            if health.is_ok() {
                (function.0)();
            }
        });
        self.put_in_order(&stream, Pending::Once(once))
    }

    /// Does something of Weft's own at the stream's place: later work of the stream waits until it
    /// is done. It is dropped when the session faults; where it fails, so does the session.
    pub(crate) fn run_in_order(
        &self,
        stream: &StreamState,
        work: impl FnOnce() -> Result<(), Status> + Send + 'static,
    ) -> Result<(), Status> {
        self.put_in_order(stream, Pending::Own(Box::new(work)))
    }

    fn put_in_order(&self, stream: &StreamState, pending: Pending) -> Result<(), Status> {
        let call = self.number();
        stream.session.host_functions.add(call, pending)?;
        stream.send(&Command::HostFunction { stream: stream.id, call })
    }

    /// The same with the stream's state as argument, which is also told of faults
    /// (`cuStreamAddCallback`).
    ///
    /// # Errors
    /// As [`Client::launch_host_function`]; `STREAM_CAPTURE_UNSUPPORTED` in a capture.
    pub fn stream_add_callback(&self, stream: Stream, callback: Callback) -> Result<(), Status> {
        let stream = self.stream(stream)?;
        stream.refuse_capture()?;
        self.put_in_order(&stream, Pending::Once(callback))
    }
}
