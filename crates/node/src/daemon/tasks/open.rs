//! A program asks for an accelerator: who it is, and a socket to the runner.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use rustix::net::sockopt::{self, Timeout};
use weft_ring::peer::{self, Credentials};
use weft_tasks::protocol::{self, Open, Opened, VERSION};

use super::Record;
use crate::daemon::log::LogLimit;
use crate::daemon::registry::token;
use crate::daemon::{Daemon, STACK_BYTES};
use crate::runner::messages::Order;

/// Programs whose connections are being opened, at once.
const OPENING_MAX: usize = 64;

/// Programs that are connected to one accelerator, at once.
const CONNECTIONS_MAX: u32 = 64;

/// Lines about programs that get no accelerator, which any program can cause in a loop.
static REFUSALS: LogLimit = LogLimit::per_second(10);

/// Why a program gets no accelerator, and whether it may in a moment.
struct Closed(String, bool);

/// Serves a connection whose first message was `hello`. Does not wait for anybody.
pub(crate) fn greet(daemon: &Arc<Daemon>, socket: OwnedFd, caller: &Credentials, hello: &[u8]) {
    let found = understand(hello).and_then(|open| daemon.accelerator_for(&open, caller));
    let record = match found {
        Ok(record) => record,
        Err(closed) => return refuse(&socket, caller, closed),
    };
    {
        let mut inner = daemon.tasks.inner();
        if inner.opening >= OPENING_MAX {
            drop(inner);
            let why = "too many programs open accelerators at once; try again";
            return refuse(&socket, caller, Closed(why.to_owned(), true));
        }
        inner.opening += 1;
    }
    let (opening, caller) = (Arc::clone(daemon), *caller);
    let thread = thread::Builder::new().name("accelerator".to_owned()).stack_size(STACK_BYTES);
    let spawned = thread.spawn(move || {
        match opening.connect(&record) {
            Ok(runner) => welcome(&opening, &socket, &record, &runner),
            Err(error) => refuse(&socket, &caller, Closed(format!("{error:#}"), true)),
        }
        opening.tasks.inner().opening -= 1;
    });
    if let Err(error) = spawned {
        daemon.tasks.inner().opening -= 1;
        tracing::error!(%error, "no thread for a program");
    }
}

fn understand(hello: &[u8]) -> Result<Open, Closed> {
    let open: Open = serde_json::from_slice(hello)
        .map_err(|error| Closed(format!("the hello is not understood: {error}"), false))?;
    if open.weft_tasks != VERSION {
        let theirs = open.weft_tasks;
        return Err(Closed(
            format!(
                "the program speaks version {theirs} of the task protocol and this node version \
                 {VERSION}; use the library of the node's own build"
            ),
            false,
        ));
    }
    Ok(open)
}

fn refuse(socket: &OwnedFd, caller: &Credentials, Closed(message, again): Closed) {
    if let Some(suppressed) = REFUSALS.line(Instant::now()) {
        let (uid, pid) = (caller.uid, caller.pid);
        tracing::info!(uid, pid, message, suppressed, "no accelerator for a program");
    }
    // One answer fits a socket that nothing was sent to. A program that is gone needs none.
    let _ = protocol::send(socket, &Opened::Refused { message, again }, &[]);
}

fn welcome(daemon: &Daemon, socket: &OwnedFd, record: &Record, runner: &OwnedFd) {
    let settings = daemon.config.pool_settings(&record.pool);
    let devices = daemon.places(record).into_iter().map(|place| place.name).collect();
    let (tasks_max, bytes_max) = (settings.tasks, settings.task_memory.0);
    let pool = record.pool.clone();
    let opened = Opened::Welcome { pool, devices, tasks_max, bytes_max };
    let limit = Some(daemon.config.limits.attach());
    let sent = sockopt::set_socket_timeout(socket, Timeout::Send, limit)
        .map_err(Into::into)
        .and_then(|()| protocol::send(socket, &opened, &[runner.as_fd()]));
    if let Err(error) = sent {
        tracing::debug!(accelerator = record.name, %error, "a program left before it was told");
    }
}

impl Daemon {
    /// The accelerator that a program asks for, if it is its user's.
    fn accelerator_for(&self, open: &Open, caller: &Credentials) -> Result<Record, Closed> {
        let inner = self.tasks.inner();
        let record = inner.store.find(&open.accelerator).ok_or_else(|| {
            let name: String = open.accelerator.chars().take(64).collect();
            Closed(
                format!(
                    "there is no virtual accelerator `{name}` on this node; `weft create {name} \
                     --tasks --device POOL` makes one, `weft ls` lists them"
                ),
                false,
            )
        })?;
        if record.owner != caller.uid {
            let name = &record.name;
            return Err(Closed(
                format!("virtual accelerator `{name}` belongs to another user; use one of yours"),
                false,
            ));
        }
        if !token::opens(record.token.as_ref(), &open.token) {
            let name = &record.name;
            return Err(Closed(
                format!("virtual accelerator `{name}` needs its token (WEFT_TOKEN)"),
                false,
            ));
        }
        if inner.runners.get(&record.key).is_some_and(|of| of.connections >= CONNECTIONS_MAX) {
            let name = &record.name;
            return Err(Closed(
                format!(
                    "{CONNECTIONS_MAX} programs are connected to accelerator `{name}`, which is \
                     the most; close one"
                ),
                false,
            ));
        }
        Ok(record.clone())
    }

    /// One end of a connection to the accelerator's runner, which is started if need be.
    fn connect(self: &Arc<Self>, record: &Record) -> anyhow::Result<OwnedFd> {
        self.ensure_runner(record)?;
        let (ours, theirs) = peer::pair()?;
        let inner = self.tasks.inner();
        let runner = inner.runners.get(&record.key);
        let runner = runner.ok_or_else(|| anyhow::anyhow!("its runner ended; try again"))?;
        runner.tell(Order::Connection, Some(theirs));
        Ok(ours)
    }
}
