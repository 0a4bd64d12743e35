//! A virtual accelerator: its connection, which outlives task runners, and its modules.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::path::PathBuf;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use weft_ring::{Access, MemoryFile};

use crate::error::TaskError;
use crate::link::{self, Closed};
use crate::pending::{Done, Figures, Pending, Slot, Standing};
use crate::protocol::{self, Event, KernelInfo, Request};
use crate::task::Task;

/// A task is sent again so often when its runner was lost.
const RESUBMISSIONS_MAX: u32 = 5;

/// A node that is gone is waited for so long: it may have been restarted.
const RESTART_LIMIT: Duration = Duration::from_secs(1);

/// Between two attempts to reach it.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// Where the node is.
#[derive(Debug, Clone)]
pub struct Options {
    pub(crate) sockets: Vec<PathBuf>,
    /// Somebody named the socket, so it may be another user namespace's.
    pub(crate) named: bool,
    /// What the accelerator asks for; empty without one.
    pub(crate) token: String,
}

impl Options {
    /// As the environment says: `WEFT_SOCKET`, `WEFT_RUNTIME_DIR`, or the usual places, with the
    /// token `WEFT_TOKEN`.
    #[must_use]
    pub fn from_env() -> Self {
        let (sockets, named) = link::sockets();
        Self { sockets, named, token: token() }
    }

    /// The node that listens at this tenant socket, with the token `WEFT_TOKEN` of the environment.
    #[must_use]
    pub fn at(socket: &Path) -> Self {
        Self { sockets: vec![socket.to_owned()], named: true, token: token() }
    }

    /// Shows that token instead.
    #[must_use]
    pub fn with_token(self, token: &str) -> Self {
        Self { token: token.to_owned(), ..self }
    }
}

fn token() -> String {
    std::env::var("WEFT_TOKEN").unwrap_or_default()
}

/// A connection to a virtual accelerator. Clones are the same connection.
#[derive(Debug, Clone)]
pub struct Accelerator {
    handle: Arc<Handle>,
}

/// Keeps the connection open.
#[derive(Debug)]
pub(crate) struct Handle(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    options: Options,
    name: String,
    /// Taken before `tables`.
    link: Mutex<Link>,
    tables: Mutex<Tables>,
}

#[derive(Debug, Default)]
struct Link {
    socket: Option<Arc<OwnedFd>>,
    closing: bool,
}

#[derive(Debug, Default)]
struct Tables {
    next: u64,
    tasks: BTreeMap<u64, Outstanding>,
    modules: BTreeMap<u32, Arc<Image>>,
    loads: BTreeMap<u32, Sender<Result<Vec<KernelInfo>, TaskError>>>,
    /// Why nothing goes any more.
    lost: Option<TaskError>,
}

#[derive(Debug)]
struct Outstanding {
    slot: Arc<Slot>,
    /// Stays while the task may have to be sent again.
    _module: Module,
    sent: u32,
}

#[derive(Debug)]
struct Image {
    file: MemoryFile,
    bytes: u64,
}

/// A module of an accelerator. Forgotten there with its last clone and task.
#[derive(Debug, Clone)]
pub struct Module(Arc<Loaded>);

#[derive(Debug)]
struct Loaded {
    number: u32,
    kernels: Vec<KernelInfo>,
    handle: Arc<Handle>,
}

impl Module {
    pub(crate) fn number(&self) -> u32 {
        self.0.number
    }

    /// Its kernels.
    #[must_use]
    pub fn kernels(&self) -> &[KernelInfo] {
        &self.0.kernels
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        self.handle.0.tables().modules.remove(&self.number);
        // A runner that is gone has forgotten it.
        let _ = self.handle.0.send(&Request::Unload { module: self.number });
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Handle {
    pub(crate) fn cancel(&self, task: u64) {
        // With its runner the task is gone, or will be sent again and can be cancelled then.
        let _ = self.0.send(&Request::Cancel { task });
    }
}

impl Accelerator {
    /// Connects to the virtual accelerator of that name on the node that the environment names.
    ///
    /// # Errors
    /// [`TaskError::NoNode`], [`TaskError::Stranger`], [`TaskError::Connection`],
    /// [`TaskError::Open`] when the node has no such accelerator for this user.
    pub fn open(name: &str) -> Result<Self, TaskError> {
        Self::open_with(name, Options::from_env())
    }

    /// The same on the node that `options` name.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_with(name: &str, options: Options) -> Result<Self, TaskError> {
        let socket = Arc::new(link::open(&options, name).map_err(|closed| closed.error)?);
        let link = Link { socket: Some(Arc::clone(&socket)), closing: false };
        let shared = Arc::new(Shared {
            options,
            name: name.to_owned(),
            link: Mutex::new(link),
            tables: Mutex::default(),
        });
        let reading = Arc::clone(&shared);
        let thread = thread::Builder::new().name("weft-tasks".to_owned());
        let spawned = thread.spawn(move || reading.read(socket));
        spawned.map_err(|error| TaskError::Memory(error.to_string()))?;
        Ok(Self { handle: Arc::new(Handle(shared)) })
    }

    /// Loads a module: PTX text, or a fatbin.
    ///
    /// # Errors
    /// [`TaskError::Load`] says what of the image is wrong; [`TaskError::Lost`].
    pub fn load(&self, image: &[u8]) -> Result<Module, TaskError> {
        let file = MemoryFile::create("weft-module", image.len().max(1))?;
        if !image.is_empty() {
            file.map(Access::ReadWrite)?.span(0, image.len())?.write_from(image)?;
        }
        let image = Arc::new(Image { file, bytes: image.len() as u64 });
        let shared = &self.handle.0;
        let (answer, loaded) = channel();
        let number = {
            let link = shared.link();
            let mut tables = shared.tables();
            tables.usable()?;
            let number = u32::try_from(tables.number()).unwrap_or(u32::MAX);
            tables.modules.insert(number, Arc::clone(&image));
            tables.loads.insert(number, answer);
            drop(tables);
            link.send_image(number, &image);
            number
        };
        let kernels = loaded.recv().unwrap_or_else(|_| Err(lost("the connection ended")));
        let kernels = kernels.inspect_err(|_| {
            shared.tables().modules.remove(&number);
        })?;
        Ok(Module(Arc::new(Loaded { number, kernels, handle: Arc::clone(&self.handle) })))
    }

    /// Submits a task. Returns as soon as the node has looked at it: one that is refused never
    /// runs.
    ///
    /// # Errors
    /// [`TaskError::Refused`] says what is wrong; [`TaskError::Memory`], [`TaskError::Lost`].
    pub fn submit(&self, task: &Task<'_>) -> Result<Pending, TaskError> {
        let shared = &self.handle.0;
        let number = shared.tables().number();
        let slot = Arc::new(Slot::new(task.prepare(number)?));
        {
            let link = shared.link();
            let mut tables = shared.tables();
            tables.usable()?;
            let outstanding =
                Outstanding { slot: Arc::clone(&slot), _module: task.module.clone(), sent: 1 };
            tables.tasks.insert(number, outstanding);
            drop(tables);
            link.send_task(&slot).inspect_err(|_| {
                drop(shared.tables().tasks.remove(&number));
            })?;
        }
        slot.accepted()?;
        Ok(Pending::new(slot, Arc::clone(&self.handle)))
    }

    /// Ends the connection: tasks that are not over, of this handle and its clones, are lost.
    pub fn disconnect(&self) {
        self.handle.0.close();
        self.handle.0.give_up(&TaskError::Open("the connection was closed".to_owned()));
    }

    /// Submits a task and waits for its end.
    ///
    /// # Errors
    /// As [`Self::submit`] and [`Pending::wait`].
    pub fn run(&self, task: &Task<'_>) -> Result<Done, TaskError> {
        self.submit(task)?.wait()
    }
}

impl Link {
    fn send_image(&self, number: u32, image: &Image) {
        let request = Request::Load { module: number, bytes: image.bytes };
        if let Some(socket) = &self.socket {
            // One that is gone gets a successor, which is sent everything again.
            let _ = protocol::send(socket, &request, &[image.file.as_fd()]);
        }
    }

    fn send_task(&self, slot: &Slot) -> Result<(), TaskError> {
        let Some(socket) = &self.socket else { return Ok(()) };
        let request = Request::Submit(slot.prepared.submission.clone());
        let memory = slot.prepared.memory.as_ref().map(|memory| memory.file.as_fd());
        match protocol::send(socket, &request, memory.as_slice()) {
            Err(error) if error.kind() == std::io::ErrorKind::InvalidInput => {
                Err(TaskError::Refused {
                    code: protocol::RefusalCode::Arguments,
                    message: "the task's scalar arguments do not fit a message of 64 KiB; pass \
                              large ones as a buffer"
                        .to_owned(),
                })
            }
            // As above.
            Ok(()) | Err(_) => Ok(()),
        }
    }
}

impl Tables {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn usable(&self) -> Result<(), TaskError> {
        self.lost.clone().map_or(Ok(()), Err)
    }
}

fn lost(why: &str) -> TaskError {
    TaskError::Lost(why.to_owned())
}

impl Shared {
    fn link(&self) -> MutexGuard<'_, Link> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close(&self) {
        let mut link = self.link();
        link.closing = true;
        if let Some(socket) = link.socket.take() {
            // The thread that reads there ends.
            let _ = rustix::net::shutdown(&socket, rustix::net::Shutdown::Both);
        }
    }

    fn send(&self, request: &Request) -> std::io::Result<()> {
        match &self.link().socket {
            Some(socket) => protocol::send(socket, request, &[]),
            None => Ok(()),
        }
    }

    /// Hears of tasks until the connection is closed or cannot be had again.
    fn read(&self, mut socket: Arc<OwnedFd>) {
        // Since when runners end without a word.
        let mut silent: Option<Instant> = None;
        let mut heard = false;
        loop {
            if let Ok(Some((event, _))) = protocol::receive::<Event>(&*socket) {
                (silent, heard) = (None, true);
                self.hear(event);
                continue;
            }
            // Until a daemon hears of a runner's death, it hands out connections to it. That is no
            // fault of the tasks, which nobody looked at.
            let counts = heard || silent.is_some_and(|since| since.elapsed() >= RESTART_LIMIT);
            if !counts {
                silent.get_or_insert_with(Instant::now);
                thread::sleep(RETRY_PAUSE);
            }
            match self.reconnect(counts) {
                Some(again) => (socket, heard) = (again, false),
                None => return,
            }
        }
    }

    fn hear(&self, event: Event) {
        match event {
            Event::Loaded { module, kernels } => self.answer_load(module, Ok(kernels)),
            Event::LoadRefused { module, message } => {
                self.answer_load(module, Err(TaskError::Load(message)));
            }
            Event::Accepted { task } => {
                let slot = self.tables().tasks.get(&task).map(|of| Arc::clone(&of.slot));
                if let Some(slot) = slot {
                    slot.set(Standing::Accepted);
                }
            }
            Event::Refused { task, code, message } => {
                self.end(task, Err(TaskError::Refused { code, message }));
            }
            Event::Done { task, used_ns, latency_ns, device, runs } => {
                self.end(task, Ok(Figures { used_ns, latency_ns, device, runs }));
            }
            Event::Failed { task, status, message } => {
                self.end(task, Err(TaskError::Failed { status, message }));
            }
            Event::Cancelled { task } => self.end(task, Err(TaskError::Cancelled)),
        }
    }

    fn answer_load(&self, module: u32, result: Result<Vec<KernelInfo>, TaskError>) {
        let waiting = self.tables().loads.remove(&module);
        if let Some(waiting) = waiting {
            // Whoever asked waits.
            let _ = waiting.send(result);
        }
    }

    fn end(&self, task: u64, result: Result<Figures, TaskError>) {
        // Its module may go with it, and takes the tables' lock then.
        let ended = self.tables().tasks.remove(&task);
        if let Some(ended) = ended {
            ended.slot.set(Standing::Over(result));
        }
    }

    /// Reaches a new runner, and sends it everything; `None` when there is none to be had. `counts`
    /// is whether the tasks may have been what ended the last one.
    fn reconnect(&self, counts: bool) -> Option<Arc<OwnedFd>> {
        let mut link = self.link();
        link.socket = None;
        if link.closing {
            return None;
        }
        let began = Instant::now();
        let opened = loop {
            match link::open(&self.options, &self.name) {
                Ok(socket) => break Ok(Arc::new(socket)),
                Err(Closed { again: true, .. }) if began.elapsed() < RESTART_LIMIT => {
                    thread::sleep(RETRY_PAUSE);
                }
                Err(closed) => break Err(closed.error),
            }
        };
        match opened {
            Ok(socket) => {
                link.socket = Some(Arc::clone(&socket));
                let given_up = self.send_again(&link, counts);
                drop(link);
                for task in given_up {
                    self.end(task, Err(lost("its runner died again and again")));
                }
                Some(socket)
            }
            Err(error) => {
                drop(link);
                self.give_up(&error);
                None
            }
        }
    }

    /// Everything that the runner before had, but tasks that had too many.
    fn send_again(&self, link: &Link, counts: bool) -> Vec<u64> {
        let mut tables = self.tables();
        let images: Vec<_> =
            tables.modules.iter().map(|(number, image)| (*number, Arc::clone(image))).collect();
        let mut slots = Vec::new();
        let mut given_up = Vec::new();
        for (number, outstanding) in &mut tables.tasks {
            outstanding.sent += u32::from(counts);
            match outstanding.sent > RESUBMISSIONS_MAX {
                true => given_up.push(*number),
                false => slots.push(Arc::clone(&outstanding.slot)),
            }
        }
        drop(tables);
        images.iter().for_each(|(number, image)| link.send_image(*number, image));
        for slot in slots {
            // It was short enough before.
            let _ = link.send_task(&slot);
        }
        given_up
    }

    fn give_up(&self, error: &TaskError) {
        let error = lost(&error.to_string());
        let (tasks, loads) = {
            let mut tables = self.tables();
            tables.lost = Some(error.clone());
            (std::mem::take(&mut tables.tasks), std::mem::take(&mut tables.loads))
        };
        for (_, outstanding) in tasks {
            outstanding.slot.set(Standing::Over(Err(error.clone())));
        }
        for (_, waiting) in loads {
            // Whoever asked waits.
            let _ = waiting.send(Err(error.clone()));
        }
    }
}
