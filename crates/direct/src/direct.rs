//! A session that the program's own threads drive.
//!
//! Whoever calls in does the work: a submission executes what it can for a short while, a
//! synchronous call executes until its answer is there and waits only for completions that are due
//! (sleep, then a short spin). A *pump* thread goes on with what is left when the program computes,
//! so that kernels that wait for the program end and progress words move; it looks only once per
//! period, lest it compete with the program, and sleeps while nothing is in flight.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use weft_device::{Device, Driven};
use weft_exec::{Accepted, Caller, Session, Started};
use weft_ring::WorkerSide;
use weft_wire::{Command, Status};

use crate::outbox::{Outbox, Reply};

/// A submission executes for at most this long before it leaves the rest to the pump.
const SUBMIT_NS: u64 = 1_000_000;
/// Execution between two releases of the lock.
const SLICE_NS: u64 = 200_000;
/// A completion nearer than this is waited for by spinning: a sleep would come back late.
const SPIN: Duration = Duration::from_micros(120);
/// A longer wait wakes up this long before the completion.
const EARLY: Duration = Duration::from_micros(80);
/// How often the pump looks while work is in flight.
const PERIOD: Duration = Duration::from_millis(1);
/// Periods without work after which the pump sleeps until it is called.
const IDLE_PERIODS: u32 = 20;

/// One session on a device, shared by the program's threads.
#[derive(Debug)]
pub struct Direct<D> {
    inner: Arc<Inner<D>>,
    pump: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Inner<D> {
    state: Mutex<State<D>>,
    /// Something happened that a waiting caller wants to know.
    changed: Condvar,
    /// There is work for the pump.
    work: Condvar,
}

#[derive(Debug)]
struct State<D> {
    session: Session<D>,
    outbox: Outbox,
    /// Set when the client broke the protocol: nothing is taken any more.
    over: bool,
    closing: bool,
    next_caller: u64,
    /// Callers that sleep although they would drive the device.
    drivers: usize,
    pump_sleeps: bool,
}

impl<D: Device + Send + 'static> Direct<D> {
    /// Takes over a session and starts the pump.
    ///
    /// # Errors
    /// When the system has no thread for it.
    pub fn new(session: Session<D>, side: WorkerSide) -> std::io::Result<Self> {
        let state = State {
            session,
            outbox: Outbox::new(side),
            over: false,
            closing: false,
            next_caller: 0,
            drivers: 0,
            pump_sleeps: false,
        };
        let inner = Arc::new(Inner {
            state: Mutex::new(state),
            changed: Condvar::new(),
            work: Condvar::new(),
        });
        let pumped = Arc::clone(&inner);
        let thread = thread::Builder::new().name("weft-direct".to_owned());
        let pump = Some(thread.spawn(move || pumped.pump())?);
        Ok(Self { inner, pump })
    }
}

impl<D: Device> Direct<D> {
    /// Executes a command that nobody awaits; `bytes` are one [`weft_wire::Command`].
    ///
    /// # Errors
    /// `DEVICE_UNAVAILABLE` when the session is over, because the client broke the protocol.
    pub fn submit(&self, bytes: &[u8]) -> Result<(), Status> {
        let command = self.decode(bytes)?;
        let state = self.inner.lock();
        let mut state = self.offer(state, &command, None)?;
        let driven = state.work(SUBMIT_NS);
        self.inner.tell(&mut state, driven);
        Ok(())
    }

    /// Executes a synchronous command, copies as much of its answer's body as fits into `body`, and
    /// returns its outcome and the body's length.
    ///
    /// # Errors
    /// As [`Direct::submit`].
    pub fn call(&self, bytes: &[u8], body: &mut [u8]) -> Result<(Status, usize), Status> {
        let command = self.decode(bytes)?;
        let drives = !matches!(command, Command::HostFunctionNext {});
        let mut state = self.inner.lock();
        state.next_caller += 1;
        let caller = Caller(state.next_caller);
        let mut state = self.offer(state, &command, Some(caller))?;
        loop {
            let driven = state.work(SLICE_NS);
            if let Some(reply) = state.outbox.take(caller) {
                self.inner.tell(&mut state, driven);
                return Ok(copy_out(&reply, body));
            }
            if state.over {
                return Err(Status::DEVICE_UNAVAILABLE);
            }
            self.inner.tell(&mut state, driven);
            state = if drives {
                self.inner.rest(state, driven)
            } else {
                // Whoever reaches a host function says so.
                wait(&self.inner.changed, state, None)
            };
        }
    }

    fn decode<'a>(&self, bytes: &'a [u8]) -> Result<Command<'a>, Status> {
        Command::decode(bytes).map_err(|error| {
            tracing::error!(%error, "the client sent no command");
            self.inner.lock().over = true;
            self.inner.changed.notify_all();
            Status::DEVICE_UNAVAILABLE
        })
    }

    /// Hands the command to the session, as soon as its queues have room.
    fn offer<'a>(
        &'a self,
        mut state: MutexGuard<'a, State<D>>,
        command: &Command<'_>,
        caller: Option<Caller>,
    ) -> Result<MutexGuard<'a, State<D>>, Status> {
        loop {
            if state.over {
                return Err(Status::DEVICE_UNAVAILABLE);
            }
            let State { session, outbox, .. } = &mut *state;
            match session.accept(command, caller, outbox) {
                Ok(Accepted::Taken) => return Ok(state),
                Ok(Accepted::Full) => {
                    let driven = state.work(SLICE_NS);
                    self.inner.tell(&mut state, driven);
                    state = self.inner.rest(state, driven);
                }
                Err(violation) => {
                    tracing::error!(%violation, "the client broke the protocol");
                    state.over = true;
                    self.inner.changed.notify_all();
                }
            }
        }
    }
}

impl<D> Drop for Direct<D> {
    fn drop(&mut self) {
        self.inner.lock().closing = true;
        self.inner.work.notify_all();
        if let Some(pump) = self.pump.take() {
            // A pump that panicked has said so.
            let _ = pump.join();
        }
    }
}

impl<D: Device> State<D> {
    /// Starts what is ready, executes for a while and handles what has ended.
    fn work(&mut self, slice_ns: u64) -> Driven {
        self.start();
        let driven = self.session.drive(slice_ns, &mut self.outbox);
        if self.start() { Driven::Busy } else { driven }
    }

    fn start(&mut self) -> bool {
        let mut any = false;
        while self.session.has_ready_work() {
            match self.session.start_next(None, false, &mut self.outbox) {
                Started::Flying | Started::Open | Started::Dropped => any = true,
                Started::NotNow => break,
            }
        }
        any
    }

    fn has_work(&self) -> bool {
        self.session.in_flight() > 0 || self.session.deadline_ns().is_some()
    }
}

impl<D> Inner<D> {
    fn lock(&self) -> MutexGuard<'_, State<D>> {
        // The session's state is meaningful after each of its calls, and a panic in one is a bug
        // anyway.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<D: Device> Inner<D> {
    /// Wakes who is to know what happened.
    fn tell(&self, state: &mut State<D>, driven: Driven) {
        if state.outbox.has_news() || state.drivers > 0 {
            self.changed.notify_all();
        }
        let wanted = match driven {
            Driven::Busy => true,
            Driven::Idle | Driven::WaitUntil(_) => state.pump_sleeps && state.has_work(),
        };
        if wanted {
            state.pump_sleeps = false;
            self.work.notify_one();
        }
    }

    /// Waits for the next completion that is due, or for somebody else's doing.
    fn rest<'a>(
        &'a self,
        mut state: MutexGuard<'a, State<D>>,
        driven: Driven,
    ) -> MutexGuard<'a, State<D>> {
        let until_ns = match driven {
            Driven::Busy => {
                drop(state);
                thread::yield_now();
                return self.lock();
            }
            Driven::Idle => None,
            Driven::WaitUntil(due_ns) => Some(due_ns),
        };
        let until_ns = until_ns.into_iter().chain(state.session.deadline_ns()).min();
        let left = until_ns.map(|until_ns| {
            Duration::from_nanos(until_ns.saturating_sub(state.session.device().now_ns()))
        });
        match left {
            Some(left) if left <= SPIN => {
                drop(state);
                let due = Instant::now() + left;
                while Instant::now() < due {
                    std::hint::spin_loop();
                }
                self.lock()
            }
            limit => {
                state.drivers += 1;
                let limit = limit.map(|left| left.saturating_sub(EARLY));
                let mut state = wait(&self.changed, state, limit);
                state.drivers -= 1;
                state
            }
        }
    }

    /// The pump thread, until the session closes.
    fn pump(&self) {
        let mut idle = 0;
        let mut state = self.lock();
        while !state.closing {
            let busy = state.has_work() && {
                let driven = state.work(SLICE_NS);
                if state.outbox.has_news() || state.drivers > 0 {
                    self.changed.notify_all();
                }
                driven == Driven::Busy
            };
            if busy {
                // Others get their turn between two slices.
                drop(state);
                thread::yield_now();
                state = self.lock();
                continue;
            }
            idle = if state.has_work() { 0 } else { idle + 1 };
            state.pump_sleeps = idle > IDLE_PERIODS;
            let limit = (!state.pump_sleeps).then_some(PERIOD);
            state = wait(&self.work, state, limit);
        }
    }
}

/// Waits for a signal or until the limit has passed. May come back early.
fn wait<'a, T>(
    signal: &Condvar,
    state: MutexGuard<'a, T>,
    limit: Option<Duration>,
) -> MutexGuard<'a, T> {
    match limit {
        None => signal.wait(state).unwrap_or_else(PoisonError::into_inner),
        Some(limit) => {
            let woken = signal.wait_timeout(state, limit);
            woken.unwrap_or_else(PoisonError::into_inner).0
        }
    }
}

fn copy_out(reply: &Reply, body: &mut [u8]) -> (Status, usize) {
    let room = reply.body.len().min(body.len());
    if let (Some(target), Some(source)) = (body.get_mut(..room), reply.body.get(..room)) {
        target.copy_from_slice(source);
    }
    (reply.status, reply.body.len())
}
