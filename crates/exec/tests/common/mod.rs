//! A device that does nothing until a test says so, and a session on it.
#![expect(clippy::unwrap_used, reason = "a test's helpers may panic")]
#![allow(dead_code, unreachable_pub, reason = "each test program uses its own part of the helpers")]

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use weft_device::{
    Capabilities, Completion, Device, DeviceError, DeviceInfo, Driven, FunctionInfo, GlobalInfo,
    LoadError, LoadedModule, MemoryUse, Op, OpId, Outcome, PAGE, ParamInfo, QueueId,
};
use weft_exec::{
    Accepted, Caller, Cut, Finished, Limits, Output, Session, Shared, Started, Violation,
};
use weft_ring::{Cell, SharedMemory};
use weft_wire::codec::{Field, decode_all};
use weft_wire::command::{Block, Endpoint, FillSpec, LaunchSpec, Payload, Place, Shape};
use weft_wire::id::{ContextId, EventId, GraphExecId, ModuleId, StreamId};
use weft_wire::{Command, Status, progress};

pub const ARENA_BYTES: usize = 1 << 16;
pub const ARENA_BLOCKS: u32 = 4096;
pub const PINNED_BYTES: usize = 4 * 4096;
pub const MEMORY_BYTES: u64 = 1 << 30;
/// First address of the fake device's memory.
pub const BASE: u64 = 0x7000_0000_0000;

pub const CONTEXT: ContextId = ContextId { index: 0, generation: 1 };
pub const MODULE: ModuleId = ModuleId { index: 0, generation: 1 };
pub const GRAPH: GraphExecId = GraphExecId { index: 0, generation: 1 };
pub const LEGACY: StreamId = StreamId::LEGACY;

/// A limit of so many ns, for a kernel.
pub fn cut(after_ns: u64) -> Cut {
    Cut { after_ns, after_bytes: u64::MAX }
}

pub fn stream(index: u32) -> StreamId {
    StreamId { index, generation: 1 }
}

pub fn event(index: u32) -> EventId {
    EventId { index, generation: 1 }
}

/// State of the fake device, shared with the test.
#[derive(Debug, Default)]
pub struct Fake {
    /// Every operation started.
    pub started: Vec<(OpId, QueueId, Op)>,
    /// After how long each was to stop.
    pub limits: Vec<Option<u64>>,
    /// Of each that was started: whether its end may be told with that of the next one.
    pub open: Vec<bool>,
    pub in_flight: BTreeSet<OpId>,
    finished: VecDeque<Completion>,
    pub allocations: BTreeMap<u64, u64>,
    next_address: u64,
    pub words: BTreeMap<u64, u64>,
    /// The page of memory that sessions share, wherever it is mapped.
    pub shared: Option<Arc<SharedMemory>>,
    pub modules: BTreeSet<u32>,
    next_module: u32,
    pub aborted: Vec<OpId>,
    /// What the running operation occupied the device for, if the device says.
    pub occupied_ns: Option<u64>,
    pub now_ns: u64,
    /// How far the clock goes with each drive.
    pub drive_ns: u64,
    /// Operations that fit in flight.
    pub room: usize,
}

impl Fake {
    pub fn end(&mut self, op: OpId, outcome: Outcome) {
        assert!(self.in_flight.remove(&op), "{op:?} is not in flight");
        let start_ns = self.now_ns;
        self.now_ns += 1000;
        self.finished.push_back(Completion { op, outcome, start_ns, end_ns: self.now_ns });
    }
}

/// The device's end of it.
#[derive(Debug)]
pub struct FakeDevice {
    pub state: Rc<RefCell<Fake>>,
    info: DeviceInfo,
}

fn kernel(name: &str) -> FunctionInfo {
    FunctionInfo {
        name: name.into(),
        params: vec![ParamInfo { offset: 0, size: 8 }],
        param_bytes: 8,
        shared_bytes: 1024,
        local_bytes: 0,
        const_bytes: 0,
        registers: 16,
        max_threads: 512,
        required_block: None,
        ptx_version: 64,
    }
}

impl Device for FakeDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }
    fn now_ns(&self) -> u64 {
        self.state.borrow().now_ns
    }
    fn memory_use(&self) -> MemoryUse {
        let used: u64 = self.state.borrow().allocations.values().sum();
        MemoryUse { free: MEMORY_BYTES - used, total: MEMORY_BYTES }
    }
    fn alloc(&mut self, bytes: u64) -> Result<u64, DeviceError> {
        if bytes > self.memory_use().free {
            return Err(DeviceError::OutOfMemory { requested: bytes });
        }
        let mut state = self.state.borrow_mut();
        let address = BASE + state.next_address;
        state.next_address += bytes.next_multiple_of(4096) + 4096;
        state.allocations.insert(address, bytes);
        Ok(address)
    }
    fn export(&mut self, _: u64) -> Result<[u8; 16], DeviceError> {
        Ok([7; 16])
    }

    fn free(&mut self, address: u64) -> Result<(), DeviceError> {
        let freed = self.state.borrow_mut().allocations.remove(&address);
        freed.map(drop).ok_or(DeviceError::NotAnAllocation { address })
    }
    fn load(&mut self, images: &[&[u8]]) -> Result<LoadedModule, LoadError> {
        match images.first() {
            Some(image) if image.starts_with(b"good") => {}
            Some(image) if image.starts_with(b"cubin") => {
                return Err(LoadError::NoBinary("only sm_90".into()));
            }
            Some(_) | None => return Err(LoadError::InvalidPtx("line 3: bogus".into())),
        }
        let mut state = self.state.borrow_mut();
        state.next_module += 1;
        let id = state.next_module;
        state.modules.insert(id);
        let globals = vec![GlobalInfo { name: "table".into(), address: BASE, bytes: 64 }];
        let functions = vec![kernel("first"), kernel("second")];
        Ok(LoadedModule { id: weft_device::ModuleId(id), functions, globals })
    }
    fn unload(&mut self, module: weft_device::ModuleId) {
        assert!(self.state.borrow_mut().modules.remove(&module.0), "unloaded twice");
    }
    fn start(&mut self, queue: QueueId, op: Op, max_ns: Option<u64>) -> Result<OpId, DeviceError> {
        let mut state = self.state.borrow_mut();
        if state.in_flight.len() >= state.room {
            return Err(DeviceError::QueueFull);
        }
        let id = OpId(state.started.len() as u64);
        state.started.push((id, queue, op));
        state.limits.push(max_ns);
        state.open.push(false);
        state.in_flight.insert(id);
        Ok(id)
    }
    fn start_open(&mut self, queue: QueueId, op: Op) -> Result<OpId, DeviceError> {
        let id = self.start(queue, op, None)?;
        *self.state.borrow_mut().open.last_mut().unwrap() = true;
        Ok(id)
    }
    fn check_range(&self, address: u64, bytes: u64) -> Result<(), DeviceError> {
        let state = self.state.borrow();
        let below = state.allocations.range(..=address).next_back();
        match below {
            Some((start, size)) if address + bytes <= start + size => Ok(()),
            Some(_) | None => Err(DeviceError::BadRange { address, bytes }),
        }
    }
    fn read_word(&mut self, address: u64, wide: bool) -> Result<u64, DeviceError> {
        self.check_range(address, if wide { 8 } else { 4 })?;
        Ok(self.state.borrow().words.get(&address).copied().unwrap_or(0))
    }
    fn write_word(&mut self, address: u64, value: u64, wide: bool) -> Result<(), DeviceError> {
        self.check_range(address, if wide { 8 } else { 4 })?;
        self.state.borrow_mut().words.insert(address, value);
        Ok(())
    }
    fn shared_word(&mut self, address: u64) -> Result<Cell<AtomicU64>, DeviceError> {
        self.check_range(address, 8)?;
        let memory = self.state.borrow().shared.clone();
        let memory = memory.ok_or(DeviceError::Unsupported("no shared page"))?;
        let cell = memory.cell(usize::try_from(address % 4096).unwrap());
        cell.map_err(|_| DeviceError::BadRange { address, bytes: 8 })
    }
    fn drive(&mut self, _slice_ns: u64) -> Driven {
        let mut state = self.state.borrow_mut();
        state.now_ns += state.drive_ns;
        if state.in_flight.is_empty() { Driven::Idle } else { Driven::Busy }
    }
    fn poll(&mut self) -> Option<Completion> {
        self.state.borrow_mut().finished.pop_front()
    }
    fn abort(&mut self, op: OpId) {
        self.state.borrow_mut().aborted.push(op);
    }
    fn occupied_ns(&self) -> Option<u64> {
        self.state.borrow().occupied_ns
    }
    fn estimate_ns(&self, op: &Op) -> Option<u64> {
        matches!(op, Op::Launch(_)).then_some(5000)
    }
}

/// Everything a session said.
#[derive(Debug, Default)]
pub struct Record {
    pub replies: BTreeMap<u64, (Status, Vec<u8>)>,
    pub words: BTreeMap<u32, u64>,
    pub notices: BTreeMap<u32, u64>,
    pub released: BTreeMap<u32, u32>,
    pub finished: Vec<Finished>,
    /// Bytes that it may keep, if that is bounded.
    pub room_bytes: Option<u64>,
}

impl Output for Record {
    fn reply(&mut self, caller: Caller, status: Status, body: &[u8]) {
        let before = self.replies.insert(caller.0, (status, body.to_vec()));
        assert_eq!(before, None, "caller {} was answered twice", caller.0);
    }
    fn progress(&mut self, word: u32, value: u64) {
        let before = self.words.insert(word, value).unwrap_or(0);
        assert!(before <= value, "word {word} went back from {before} to {value}");
        assert!(word < progress::WORDS, "word {word} does not exist");
    }
    fn notice(&mut self, word: u32, value: u64) {
        self.notices.insert(word, value);
    }
    fn release(&mut self, word: u32) {
        *self.released.entry(word).or_insert(0) += 1;
    }
    fn finished(&mut self, finished: &Finished) {
        self.finished.push(*finished);
    }
    fn may_keep(&mut self, bytes: u64, _more: u64) -> bool {
        self.room_bytes.is_none_or(|room| bytes <= room)
    }
}

/// A session on a fake device with a context, a module and an allocation.
pub struct Bench {
    pub session: Session<FakeDevice>,
    pub fake: Rc<RefCell<Fake>>,
    pub out: Record,
    pub shared: Shared,
    pub buffer: u64,
    next_caller: u64,
    next_block: u32,
}

impl Bench {
    pub fn new() -> Self {
        Self::with(Limits::default())
    }

    pub fn with(limits: Limits) -> Self {
        let mut bench = Self::bare(limits);
        bench.send(&Command::ContextCreate { context: CONTEXT });
        bench.load(MODULE);
        bench.buffer = bench.alloc(1 << 20);
        bench
    }

    pub fn bare(limits: Limits) -> Self {
        let shared = Some(SharedMemory::anonymous(4096).unwrap());
        let fake = Rc::new(RefCell::new(Fake { room: 64, shared, ..Fake::default() }));
        let info = DeviceInfo {
            name: "fake".into(),
            backend: "fake".to_owned(),
            uuid: [0; 16],
            compute_capability: (7, 5),
            memory_bytes: MEMORY_BYTES,
            attributes: BTreeMap::from([(1, 1024), (97, 48 << 10)]),
            capabilities: Capabilities {
                slice_blocks: true,
                cancel: true,
                preemptive: false,
                runs_ahead: true,
                managed: false,
            },
        };
        let arena = SharedMemory::anonymous(ARENA_BYTES).unwrap();
        let pinned = SharedMemory::anonymous(PINNED_BYTES).unwrap();
        let (base, all) = (pinned.address() as u64, arena.span(0, ARENA_BYTES).unwrap());
        let window = pinned.span(0, PINNED_BYTES).unwrap();
        let shared = Shared::new(all, ARENA_BLOCKS, window, base);
        let device = FakeDevice { state: Rc::clone(&fake), info };
        let session = Session::new(device, shared.clone(), limits);
        let out = Record::default();
        Self { session, fake, out, shared, buffer: 0, next_caller: 0, next_block: 0 }
    }

    pub fn offer(&mut self, command: &Command<'_>) -> Result<Accepted, Violation> {
        self.session.accept(command, None, &mut self.out)
    }

    /// Sends an asynchronous command.
    pub fn send(&mut self, command: &Command<'_>) {
        assert_eq!(self.offer(command), Ok(Accepted::Taken), "{command:?}");
    }

    /// Sends a synchronous command and returns its caller.
    pub fn call(&mut self, command: &Command<'_>) -> u64 {
        self.next_caller += 1;
        let caller = Some(Caller(self.next_caller));
        let outcome = self.session.accept(command, caller, &mut self.out);
        assert_eq!(outcome, Ok(Accepted::Taken), "{command:?}");
        self.next_caller
    }

    pub fn status(&self, caller: u64) -> Option<Status> {
        self.out.replies.get(&caller).map(|(status, _)| *status)
    }

    pub fn body<T: for<'a> Field<'a>>(&self, caller: u64) -> T {
        let (status, body) = self.out.replies.get(&caller).unwrap();
        assert_eq!(*status, Status::SUCCESS);
        decode_all(body).unwrap()
    }

    /// Sends a synchronous command that is answered at once.
    pub fn ask(&mut self, command: &Command<'_>) -> Status {
        let caller = self.call(command);
        self.status(caller).unwrap()
    }

    /// Takes `pages` of the window from page `first` on.
    pub fn pin(&mut self, first: u64, pages: u64) {
        let (address, bytes) = (self.shared.pinned_base + first * PAGE, pages * PAGE);
        let granted = self.session.pinned_bytes() + bytes;
        assert_eq!(self.ask(&Command::PinnedQuota { bytes: granted }), Status::SUCCESS);
        self.send(&Command::PinnedRange { address, bytes, used: 1 });
    }

    /// A new arena block with these bytes.
    pub fn block(&mut self, bytes: &[u8]) -> Block {
        let release = self.next_block;
        self.next_block += 1;
        let offset = u64::from(release % 64) * 1024;
        self.shared.arena.write_at(usize::try_from(offset).unwrap(), bytes).unwrap();
        Block { offset, bytes: bytes.len() as u64, release }
    }

    pub fn load(&mut self, module: ModuleId) {
        let images = vec![self.block(b"good image")];
        let answer = self.block(&[0; 512]);
        let load = Command::ModuleLoad { context: CONTEXT, module, images, answer };
        assert_eq!(self.ask(&load), Status::SUCCESS);
    }

    pub fn alloc(&mut self, bytes: u64) -> u64 {
        let caller = self.call(&Command::MemAlloc { context: CONTEXT, bytes });
        self.body::<weft_wire::reply::Address>(caller).address
    }

    pub fn create_streams(&mut self, streams: &[(u32, bool)]) {
        for (index, blocking) in streams {
            self.send(&Command::StreamCreate {
                context: CONTEXT,
                stream: stream(*index),
                blocking: *blocking,
                priority: 0,
            });
        }
    }

    pub fn create_event(&mut self, index: u32) {
        self.send(&Command::EventCreate { context: CONTEXT, event: event(index) });
    }

    pub fn launch(&mut self, stream: StreamId, function: u32) {
        self.send(&Command::Launch { stream, launch: spec(function) });
    }

    /// Starts everything that is ready and returns the queues' numbers and kernels in order.
    pub fn start_all(&mut self) -> Vec<(u32, u32)> {
        let before = self.fake.borrow().started.len();
        while self.session.next_op().is_some() {
            match self.session.start_next(None, true, &mut self.out) {
                Started::Flying | Started::Open | Started::Dropped => {}
                Started::NotNow => break,
            }
        }
        let fake = self.fake.borrow();
        let what = |op: &Op| match op {
            Op::Launch(launch) => launch.function,
            Op::Copy { .. } => 100,
            Op::Fill(_) => 101,
        };
        fake.started[before..].iter().map(|(_, queue, op)| (queue.0, what(op))).collect()
    }

    /// Ends the oldest operation in flight.
    pub fn end_one(&mut self) {
        self.end_as(Outcome::Done);
    }

    pub fn end_as(&mut self, outcome: Outcome) {
        let op = *self.fake.borrow().in_flight.first().unwrap();
        self.end_op(op, outcome);
    }

    pub fn end_op(&mut self, op: OpId, outcome: Outcome) {
        self.fake.borrow_mut().end(op, outcome);
        self.session.drive(1000, &mut self.out);
    }

    /// Starts and ends until nothing is left to do.
    pub fn run(&mut self) {
        loop {
            let started = self.start_all();
            if self.fake.borrow().in_flight.is_empty() {
                assert!(started.is_empty());
                return;
            }
            self.end_one();
        }
    }

    pub fn word(&self, stream: StreamId) -> u64 {
        let word = progress::stream_word(stream).unwrap();
        self.out.words.get(&word).copied().unwrap_or(0)
    }

    pub fn event_word(&self, event: EventId) -> u64 {
        let word = progress::event_word(event).unwrap();
        self.out.words.get(&word).copied().unwrap_or(0)
    }
}

pub fn spec(function: u32) -> LaunchSpec<'static> {
    LaunchSpec {
        module: MODULE,
        function,
        grid: [4, 1, 1],
        block: [32, 1, 1],
        shared_bytes: 0,
        params: Payload::Inline(&[7; 8]),
    }
}

pub fn device_side(address: u64) -> Endpoint<'static> {
    Endpoint { place: Place::Device(address), pitch: 0, slice: 0 }
}

pub fn host_side(payload: Payload<'_>) -> Endpoint<'_> {
    Endpoint { place: Place::Host(payload), pitch: 0, slice: 0 }
}

pub fn linear(width: u64) -> Shape {
    Shape { width, height: 1, depth: 1 }
}

pub fn fill(address: u64, bytes: u64) -> FillSpec {
    FillSpec { address, pitch: 0, width: bytes, height: 1, element: 1, value: 0 }
}
