//! A connection of a tenant's program: modules and tasks come in, what became of them goes out.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use weft_client::LoadFailure;
use weft_ring::{Access, MemoryFile, SharedMemory};
use weft_tasks::protocol::{self, Event, RefusalCode, Request, Submission};

use super::messages::Report;
use super::module::{self, Module};
use super::task::{Outbox, Task};
use super::validate::{self, Refusal};
use super::{Runner, STACK_BYTES, lock};
use crate::config::ByteSize;

/// Most bytes of a module's image.
const MODULE_BYTES_MAX: u64 = 64 << 20;

/// Modules of one connection.
const MODULES_MAX: usize = 64;

/// Nothing was attached to.
const NO_DEVICE: &str =
    "no device of the pool can be used now; `weft ls --devices` shows them, try again";

/// A module waits for the first device so long.
const DEVICE_LIMIT: Duration = Duration::from_secs(90);

/// Serves a connection in threads of its own.
pub(super) fn begin(runner: &Arc<Runner>, socket: OwnedFd) {
    let Ok(writing) = socket.try_clone() else { return };
    let (events, unsent) = channel::<Event>();
    let unread = AtomicUsize::new(0);
    let outbox = Arc::new(Outbox { socket, events: Mutex::new(Some(events)), unread });
    let counted = Arc::clone(&outbox);
    let thread = || thread::Builder::new().name("tenant".to_owned()).stack_size(STACK_BYTES);
    let writer = thread().spawn(move || {
        while let Ok(event) = unsent.recv() {
            if protocol::send(&writing, &event, &[]).is_err() {
                return;
            }
            counted.unread.fetch_sub(1, Ordering::Relaxed);
        }
    });
    let serving = Arc::clone(runner);
    if writer.is_err() {
        return;
    }
    // Before its thread begins: a runner with connections does not end.
    runner.count_connections(1);
    let spawned = thread().spawn(move || {
        let mut connection = Connection { runner: &serving, outbox, modules: BTreeMap::new() };
        connection.serve();
        connection.end();
        serving.count_connections(-1);
    });
    if let Err(error) = spawned {
        runner.count_connections(-1);
        tracing::error!(%error, "no thread for a connection");
    }
}

impl Runner {
    fn count_connections(&self, more: i32) {
        let mut connections = lock(&self.connections);
        *connections = (connections.0.saturating_add_signed(more), Instant::now());
        self.report(&Report::Connections { count: connections.0 });
    }
}

struct Connection<'a> {
    runner: &'a Runner,
    outbox: Arc<Outbox>,
    modules: BTreeMap<u32, Arc<Module>>,
}

impl Connection<'_> {
    fn serve(&mut self) {
        loop {
            match protocol::receive::<Request>(&self.outbox.socket) {
                Ok(Some((request, descriptors))) => self.act(request, descriptors),
                Ok(None) => return,
                Err(error) => {
                    tracing::debug!(%error, "a connection is closed");
                    return;
                }
            }
        }
    }

    fn act(&mut self, request: Request, mut descriptors: Vec<OwnedFd>) {
        match request {
            Request::Load { module, bytes } => {
                let event = match self.load(module, bytes, descriptors.pop()) {
                    Ok(kernels) => Event::Loaded { module, kernels },
                    Err(message) => Event::LoadRefused { module, message },
                };
                self.outbox.say(if protocol::fits(&event) { event } else { too_long(module) });
            }
            Request::Unload { module } => drop(self.modules.remove(&module)),
            Request::Submit(submission) => {
                let task = submission.task;
                if let Err((code, message)) = self.submit(submission, descriptors.pop()) {
                    self.outbox.say(Event::Refused { task, code, message });
                }
            }
            Request::Cancel { task } => {
                if let Some(task) = self.own_tasks().into_iter().find(|own| own.id == task) {
                    self.runner.report(&Report::Cancel { task: task.number });
                }
            }
        }
    }

    fn own_tasks(&self) -> Vec<Arc<Task>> {
        let tasks = lock(&self.runner.tasks);
        tasks.iter().filter(|task| Arc::ptr_eq(&task.outbox, &self.outbox)).cloned().collect()
    }

    /// What nobody waits for any more goes.
    fn end(&self) {
        for task in self.own_tasks() {
            task.state().unwanted = true;
            self.runner.report(&Report::Cancel { task: task.number });
        }
        // The writer ends.
        *lock(&self.outbox.events) = None;
    }

    fn load(
        &mut self,
        number: u32,
        bytes: u64,
        file: Option<OwnedFd>,
    ) -> Result<Vec<protocol::KernelInfo>, String> {
        if self.modules.len() >= MODULES_MAX {
            return Err(format!(
                "the connection has its {MODULES_MAX} modules; drop one that is no longer needed"
            ));
        }
        if bytes == 0 || bytes > MODULE_BYTES_MAX {
            return Err(format!(
                "the module has {}; 1B to {} are allowed",
                ByteSize(bytes),
                ByteSize(MODULE_BYTES_MAX)
            ));
        }
        let image = read(file, bytes)?;
        let (prepared, text) = module::prepare(image);
        let session = self.runner.any_session(DEVICE_LIMIT).ok_or(NO_DEVICE)?;
        self.runner.note_attached(Some(session.limits));
        let client = &session.client;
        let in_words = |failure: LoadFailure| {
            let status = failure.status;
            let (name, text) = (status.name(), status.description());
            let (name, text) = (name.to_string_lossy(), text.to_string_lossy());
            let log = if failure.log.is_empty() { text.into_owned() } else { failure.log };
            format!("the module does not load: {name}: {log}")
        };
        let of_status = |status| in_words(LoadFailure::from(status));
        client.context_set_current(session.context).map_err(of_status)?;
        let loaded = client.module_load(&prepared).map_err(in_words)?;
        let id = self.runner.number_of_module();
        let module = Module::of(id, prepared, &text, client, loaded).map_err(in_words)?;
        if let Some(why) = module.without_task() {
            // A session that is over has unloaded it.
            let _ = client.module_unload(loaded);
            return Err(format!("no kernel of the module can be a task: {why}"));
        }
        let module = Arc::new(module);
        lock(&self.runner.modules).insert(id, Arc::downgrade(&module));
        lock(&self.runner.modules).retain(|_, module| module.strong_count() > 0);
        session.modules.keep(id, loaded);
        let kernels = module.kernels.values().map(module::Kernel::info).collect();
        self.modules.insert(number, module);
        Ok(kernels)
    }

    fn submit(&self, submission: Submission, file: Option<OwnedFd>) -> Result<(), Refusal> {
        let module = self.modules.get(&submission.module).ok_or_else(|| {
            let message = "the task's module is not loaded here; load it first";
            (RefusalCode::Module, message.to_owned())
        })?;
        let malformed = |message: &str| (RefusalCode::Malformed, message.to_owned());
        let memory = match (file, submission.memory_bytes) {
            (None, 0) => None,
            (Some(file), 1..) => Some(map(file).map_err(|why| (RefusalCode::Malformed, why))?),
            _ => return Err(malformed("a task's memory must come along if it has any")),
        };
        let file_bytes = memory.as_ref().map_or(0, |memory| memory.len() as u64);
        let kernel = validate::kernel(module, &submission.kernel)?;
        // A module was loaded, so it was attached once.
        let limits = lock(&self.runner.limits).ok_or_else(|| malformed(NO_DEVICE))?;
        let quota = self.runner.owed().memory_bytes;
        let plan = validate::validate(kernel, &submission, file_bytes, &limits, quota)?;
        // What was measured counts, and the tenant's word where nothing was.
        let estimate_ns = match kernel.times.anywhere_ns(plan.blocks) {
            0 => submission.estimate_ns,
            measured => measured,
        };
        let id = submission.task;
        let module = Arc::clone(module);
        let mut tasks = lock(&self.runner.tasks);
        self.check_room(tasks.len(), tasks.bytes(), file_bytes)?;
        let number = tasks.number();
        let outbox = Arc::clone(&self.outbox);
        let task = Task::new(number, id, outbox, module, submission, plan, memory);
        tasks.insert(Arc::new(task));
        drop(tasks);
        self.outbox.say(Event::Accepted { task: id });
        self.runner.report(&Report::Submit { task: number, estimate_ns });
        Ok(())
    }

    fn check_room(&self, tasks: usize, bytes: u64, more: u64) -> Result<(), Refusal> {
        let bounds = &self.runner.begin.bounds;
        let name = &self.runner.begin.accelerator;
        if more > bounds.bytes {
            return Err((
                RefusalCode::TooLarge,
                format!(
                    "the task's buffers are {} in all, and those of accelerator `{name}` may be \
                     {} together; make them smaller, or have pool.*.task_memory raised",
                    ByteSize(more),
                    ByteSize(bounds.bytes)
                ),
            ));
        }
        if tasks >= bounds.tasks as usize {
            return Err((
                RefusalCode::QueueFull,
                format!(
                    "accelerator `{name}` has its {tasks} tasks outstanding (pool.*.tasks); wait \
                     for one of them"
                ),
            ));
        }
        if bytes.saturating_add(more) > bounds.bytes {
            return Err((
                RefusalCode::QueueFull,
                format!(
                    "the tasks of accelerator `{name}` have {} of buffers outstanding, and {} is \
                     the most (pool.*.task_memory); wait for one of them",
                    ByteSize(bytes),
                    ByteSize(bounds.bytes)
                ),
            ));
        }
        Ok(())
    }
}

/// What is said of a module about which too much would have to be said.
fn too_long(module: u32) -> Event {
    let message = format!(
        "what is to be told of the module's kernels (names, parameters) is longer than {}; make it \
         several modules, or leave out what no task runs",
        ByteSize(protocol::MESSAGE_BYTES_MAX as u64)
    );
    Event::LoadRefused { module, message }
}

fn map(file: OwnedFd) -> Result<Arc<SharedMemory>, String> {
    let mapped = MemoryFile::received(file).and_then(|file| file.map(Access::ReadWrite));
    mapped.map_err(|error| format!("the memory that came along cannot be used: {error}"))
}

/// A private copy of what came along.
fn read(file: Option<OwnedFd>, bytes: u64) -> Result<Vec<u8>, String> {
    let file = file.ok_or_else(|| "no image came along".to_owned())?;
    let memory = MemoryFile::received(file).and_then(|file| file.map(Access::ReadOnly));
    let memory = memory.map_err(|error| format!("the image cannot be read: {error}"))?;
    let len = usize::try_from(bytes).unwrap_or(usize::MAX);
    let span = memory.span(0, len);
    let span = span.map_err(|_| format!("the image is shorter than {bytes} bytes"))?;
    Ok(span.to_vec())
}
