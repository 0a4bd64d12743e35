//! A worker on the other side of a segment, in a thread of the test: enough of a device to check
//! what the client sends and what it makes of the answers.
#![expect(clippy::unwrap_used, reason = "a panic in the fake worker is the test's report")]
#![expect(clippy::cast_possible_truncation, reason = "test sizes fit every integer")]
#![expect(clippy::wildcard_enum_match_arm, reason = "the fake worker knows a few commands")]
#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part")]

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use weft_client::attach::{Addresses, Established};
use weft_client::{Client, Config};
use weft_ring::{
    Access, AnswerTo, ArenaRef, MemoryFile, Segment, SharedMemory, SharedSpan, WorkerSide,
};
use weft_wire::codec::{Field, decode_all, encode_to_vec};
use weft_wire::command::{Block, Endpoint, FillSpec, GraphNode, GraphWork, Payload, Place, Shape};
use weft_wire::handshake::{Attribute, Welcome};
use weft_wire::id::{EventId, StreamId};
use weft_wire::{Command, Status, progress, reply};

/// Of the pinned window.
pub const PINNED_BYTES: usize = 16 << 20;

/// What the test wants of the worker while it runs.
#[derive(Debug, Default)]
pub struct Controls {
    /// Do not take commands.
    pub paused: AtomicBool,
    /// Leave without a word.
    pub die: AtomicBool,
    /// Raise this fault at the next launch.
    pub fault: Mutex<Option<Status>>,
    /// Names of all commands taken.
    pub log: Mutex<Vec<String>>,
    /// Parameter blocks of all launches.
    pub launches: Mutex<Vec<Vec<u8>>>,
}

/// A client and its fake worker.
pub struct Fixture {
    pub client: Arc<Client>,
    pub controls: Arc<Controls>,
    worker: Option<JoinHandle<()>>,
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.end();
    }
}

impl Fixture {
    /// A session with an arena of `arena_bytes`, and a current context.
    pub fn new(arena_bytes: usize) -> Self {
        let fixture = Self::without_context(arena_bytes);
        fixture.client.context_create(0, 0).unwrap();
        fixture
    }

    pub fn without_context(arena_bytes: usize) -> Self {
        Self::with_config(arena_bytes, &Config::default())
    }

    pub fn with_config(arena_bytes: usize, config: &Config) -> Self {
        Self::welcomed(arena_bytes, config, welcome(PINNED_BYTES as u64))
    }

    /// With what the node says of the vGPU; the session is one of this host's all the same.
    pub fn welcomed(arena_bytes: usize, config: &Config, welcome: Welcome) -> Self {
        let addresses = Addresses::reserve().unwrap();
        let hello = addresses.hello(config, &config.vgpu).body;
        let segment = Segment::create(arena_bytes).unwrap();
        let pinned = MemoryFile::create("pinned", PINNED_BYTES).unwrap();
        let worker = Worker {
            side: WorkerSide::open(Segment::open(segment.map(Access::ReadWrite).unwrap()).unwrap())
                .unwrap(),
            pinned: pinned.map(Access::ReadWrite).unwrap(),
            pinned_base: hello.pinned_base,
            next_address: hello.device_base + 4096,
            memory: BTreeMap::new(),
            stream_counts: HashMap::new(),
            sent_before: HashMap::new(),
            graphs: HashMap::new(),
            due: VecDeque::new(),
            asker: None,
            held: Vec::new(),
            fault: None,
            waiting_host: 0,
        };
        let (lifeline, workers_end) = socket_pair();
        let controls = Arc::new(Controls::default());
        let session = Established::new(
            addresses,
            welcome,
            OwnedFd::from(segment),
            OwnedFd::from(pinned),
            Some(lifeline),
        )
        .unwrap();
        let shared = Arc::clone(&controls);
        let worker = std::thread::spawn(move || {
            worker.run(&shared);
            drop(workers_end);
        });
        let client = Client::over(config, session, None);
        Self { client, controls, worker: Some(worker) }
    }

    /// The worker leaves without a word, and has left when this returns.
    pub fn end(&mut self) {
        self.controls.paused.store(false, Ordering::Relaxed);
        self.controls.die.store(true, Ordering::Relaxed);
        if let Some(worker) = self.worker.take() {
            let ended = worker.join();
            if !std::thread::panicking() {
                ended.unwrap();
            }
        }
    }

    /// Waits until everything sent so far is logged, and clears the log.
    pub fn settle(&self) {
        self.client.context_synchronize(weft_client::Context::NULL).unwrap();
        self.log();
    }

    /// Takes the log.
    pub fn log(&self) -> Vec<String> {
        std::mem::take(&mut *self.controls.log.lock().unwrap())
    }
}

fn socket_pair() -> (OwnedFd, OwnedFd) {
    rustix::net::socketpair(
        rustix::net::AddressFamily::UNIX,
        rustix::net::SocketType::STREAM,
        rustix::net::SocketFlags::CLOEXEC,
        None,
    )
    .unwrap()
}

/// Of the fake device.
pub fn welcome(pinned_bytes: u64) -> Welcome {
    Welcome {
        session: 1,
        vgpu: "test".into(),
        device_name: "fake device".into(),
        uuid: [0xab; 16],
        capability_major: 7,
        capability_minor: 5,
        memory_bytes: 1 << 30,
        pinned_bytes,
        managed_bytes: 0,
        attributes: [(16, 4), (10, 32), (12, 20_000)]
            .map(|(number, value)| Attribute { number, value })
            .to_vec(),
        placement: None,
    }
}

/// The kernels and the one variable of every module; `exact` says its block.
pub fn symbols(global: u64) -> reply::Module {
    let kernel = reply::Function {
        name: "kernel".into(),
        params: vec![reply::Param { offset: 0, size: 8 }, reply::Param { offset: 8, size: 4 }],
        param_bytes: 12,
        shared_bytes: 1024,
        local_bytes: 0,
        const_bytes: 0,
        registers: 32,
        max_threads: 512,
        required_block: None,
        ptx_version: 75,
    };
    let exact = reply::Function {
        name: "exact".into(),
        max_threads: 64,
        required_block: Some([32, 2, 1]),
        ..kernel.clone()
    };
    reply::Module {
        functions: vec![kernel, exact],
        globals: vec![reply::Global { name: "variable".into(), address: global, bytes: 64 }],
    }
}

struct Worker {
    side: WorkerSide,
    pinned: Arc<SharedMemory>,
    pinned_base: u64,
    next_address: u64,
    memory: BTreeMap<u64, Vec<u8>>,
    stream_counts: HashMap<u32, u64>,
    sent_before: HashMap<u32, u64>,
    graphs: HashMap<u32, Vec<u8>>,
    due: VecDeque<u64>,
    asker: Option<AnswerTo>,
    /// Synchronisations that wait for a host function.
    held: Vec<AnswerTo>,
    fault: Option<Status>,
    waiting_host: usize,
}

impl Worker {
    fn run(mut self, controls: &Controls) {
        while !controls.die.load(Ordering::Relaxed) {
            if controls.paused.load(Ordering::Relaxed) {
                std::thread::yield_now();
                continue;
            }
            let taken = self.side.take().unwrap();
            let Some((bytes, answer)) = taken.map(|record| (record.bytes.to_vec(), record.answer))
            else {
                let limit = Some(Duration::from_millis(1));
                let _either = self.side.wait(Duration::from_micros(20), limit, || None::<()>);
                continue;
            };
            let command = Command::decode(&bytes).unwrap();
            assert_eq!(command.is_sync(), answer.is_some(), "{}", command.name());
            controls.log.lock().unwrap().push(command.name().to_owned());
            self.execute(&command, answer, controls);
        }
    }

    fn execute(&mut self, command: &Command<'_>, to: Option<AnswerTo>, controls: &Controls) {
        if let Some(status) = self.fault
            && !matches!(command, Command::ContextDestroy { .. })
        {
            if let Some(to) = to {
                self.answer(to, status, &[]);
            }
            return;
        }
        match to {
            Some(to) => self.execute_sync(command, to),
            None => self.execute_async(command, controls),
        }
    }

    fn execute_async(&mut self, command: &Command<'_>, controls: &Controls) {
        match command {
            Command::StreamCreate { stream, .. } => {
                let sent = self.stream_counts.get(&stream.index).copied().unwrap_or(0);
                self.side.set_progress(progress::stream_word(*stream).unwrap() as usize, sent);
            }
            Command::Copy { stream, dst, src, shape } => {
                self.copy(dst, src, shape);
                self.count(*stream);
            }
            Command::Fill { stream, fill } => {
                self.fill(fill);
                self.count(*stream);
            }
            Command::Launch { stream, launch } => {
                if let Some(status) = controls.fault.lock().unwrap().take() {
                    self.fault = Some(status);
                    self.side.set_notice(0, status.code().unsigned_abs().into());
                    return;
                }
                let params = self.payload(&launch.params);
                controls.launches.lock().unwrap().push(params);
                self.count(*stream);
            }
            Command::StreamWaitEvent { stream, .. } | Command::StreamWaitValue { stream, .. } => {
                self.count(*stream);
            }
            Command::StreamWriteValue { stream, address, value, wide } => {
                let bytes = value.to_le_bytes();
                self.write(*address, &bytes[..if *wide { 8 } else { 4 }]);
                self.count(*stream);
            }
            Command::EventRecord { event, stream, record } => {
                self.record(*event, *record);
                self.count(*stream);
            }
            Command::HostFunction { stream, call } => {
                self.waiting_host += 1;
                self.due.push_back(*call);
                self.offer();
                self.count(*stream);
            }
            Command::HostFunctionDone { .. } => {
                self.waiting_host -= 1;
                if self.waiting_host == 0 {
                    for to in std::mem::take(&mut self.held) {
                        self.answer(to, Status::SUCCESS, &[]);
                    }
                }
            }
            Command::GraphSetKernel { graph, node, launch } => {
                self.set_node(graph.index, *node, GraphWork::Kernel(launch.clone()));
            }
            Command::GraphLaunch { graph, stream } => {
                let bytes = self.graphs.get(&graph.index).unwrap().clone();
                let nodes: Vec<GraphNode<'_>> = decode_all(&bytes).unwrap();
                self.run_graph(&nodes, controls);
                self.count(*stream);
            }
            _ => {}
        }
    }

    fn set_node(&mut self, graph: u32, node: u32, work: GraphWork<'_>) {
        let bytes = self.graphs.remove(&graph).unwrap();
        let mut nodes: Vec<GraphNode<'_>> = decode_all(&bytes).unwrap();
        nodes[node as usize].work = work;
        self.graphs.insert(graph, encode_to_vec(&nodes, 1 << 20).unwrap());
    }

    fn run_graph(&mut self, nodes: &[GraphNode<'_>], controls: &Controls) {
        for node in nodes {
            match &node.work {
                GraphWork::Kernel(launch) => {
                    let params = self.payload(&launch.params);
                    controls.launches.lock().unwrap().push(params);
                }
                GraphWork::Copy { dst, src, shape } => self.copy(dst, src, shape),
                GraphWork::Fill(fill) => self.fill(fill),
                GraphWork::HostFunction(call) => {
                    self.waiting_host += 1;
                    self.due.push_back(*call);
                    self.offer();
                }
                GraphWork::EventRecord(event) => {
                    let word = progress::event_word(*event).unwrap() as usize;
                    let _event = (word, event);
                }
                GraphWork::Empty | GraphWork::EventWait(_) => {}
            }
        }
    }

    fn execute_sync(&mut self, command: &Command<'_>, to: AnswerTo) {
        match command {
            Command::MemAlloc { bytes, .. } | Command::MemAllocAsync { bytes, .. } => {
                let address = self.next_address;
                self.next_address += bytes.next_multiple_of(4096) + 4096;
                self.memory.insert(address, vec![0; *bytes as usize]);
                self.answer_with(to, &reply::Address { address });
            }
            Command::MemInfo {} => {
                self.answer_with(to, &reply::MemoryUse { free: 1 << 29, total: 1 << 30 });
            }
            Command::ModuleLoad { images, answer, .. } => self.load(images, answer, to),
            Command::CopySync { stream, dst, src, shape } => {
                self.copy(dst, src, shape);
                self.count(*stream);
                self.answer(to, Status::SUCCESS, &[]);
            }
            Command::StreamSynchronize { .. } | Command::ContextSynchronize { .. }
                if self.waiting_host > 0 =>
            {
                self.held.push(to);
            }
            Command::HostFunctionNext {} => {
                self.asker = Some(to);
                self.offer();
            }
            Command::GraphInstantiate { graph, nodes, .. } => {
                let bytes = self.block(nodes).to_vec();
                let list: Vec<GraphNode<'_>> = decode_all(&bytes).unwrap();
                for (i, node) in list.iter().enumerate() {
                    assert!(node.after.iter().all(|after| (*after as usize) < i));
                }
                self.graphs.insert(graph.index, bytes.clone());
                self.release(nodes);
                self.answer(to, Status::SUCCESS, &[]);
            }
            Command::GraphSetNode { graph, node, node_bytes } => {
                let bytes = self.block(node_bytes).to_vec();
                let changed: GraphNode<'_> = decode_all(&bytes).unwrap();
                self.set_node(graph.index, *node, changed.work);
                self.release(node_bytes);
                self.answer(to, Status::SUCCESS, &[]);
            }
            Command::EventElapsed { .. } => {
                self.answer_with(to, &reply::Elapsed { ns: 1_500_000 });
            }
            Command::ContextDestroy { .. } => {
                self.fault = None;
                self.side.set_notice(0, 0);
                self.answer(to, Status::SUCCESS, &[]);
            }
            _ => self.answer(to, Status::SUCCESS, &[]),
        }
    }

    fn load(&mut self, images: &[Block], answer: &Block, to: AnswerTo) {
        let text: Vec<u8> = images.iter().flat_map(|image| self.block(image).to_vec()).collect();
        images.iter().for_each(|image| self.release(image));
        if text.windows(3).any(|window| window == b"bad") {
            self.release(answer);
            self.answer(to, Status::INVALID_PTX, b"line 1: bad instruction");
            return;
        }
        let global = self.next_address;
        self.next_address += 8192;
        self.memory.insert(global, vec![0; 64]);
        let encoded = encode_to_vec(&symbols(global), 4096).unwrap();
        self.block(answer).write_from(&encoded).unwrap();
        self.release(answer);
        self.answer_with(to, &reply::Written { bytes: encoded.len() as u64 });
    }

    fn offer(&mut self) {
        if let Some(to) = self.asker
            && let Some(call) = self.due.pop_front()
        {
            self.asker = None;
            self.answer_with(to, &reply::HostCall { call });
        }
    }

    fn count(&mut self, stream: StreamId) {
        let count = self.stream_counts.entry(stream.index).or_default();
        *count += 1;
        let count = *count;
        self.side.set_progress(progress::stream_word(stream).unwrap() as usize, count);
    }

    fn record(&self, event: EventId, record: u64) {
        self.side.set_progress(progress::event_word(event).unwrap() as usize, record);
    }

    fn answer(&self, to: AnswerTo, status: Status, body: &[u8]) {
        self.side.complete(to, status.code(), body).unwrap();
    }

    fn answer_with<'a>(&self, to: AnswerTo, body: &impl Field<'a>) {
        self.answer(to, Status::SUCCESS, &encode_to_vec(body, 64).unwrap());
    }

    // Memory.

    fn block(&self, block: &Block) -> SharedSpan {
        self.side.arena().span(&arena_ref(block)).unwrap()
    }

    fn release(&self, block: &Block) {
        self.side.arena().release(&arena_ref(block)).unwrap();
    }

    fn payload(&self, payload: &Payload<'_>) -> Vec<u8> {
        match payload {
            Payload::Inline(bytes) => bytes.to_vec(),
            Payload::Arena(block) => {
                let bytes = self.block(block).to_vec();
                self.release(block);
                bytes
            }
            Payload::Pinned { address, bytes } => self.pinned(*address, *bytes).to_vec(),
        }
    }

    fn pinned(&self, address: u64, bytes: u64) -> SharedSpan {
        let offset = (address - self.pinned_base) as usize;
        self.pinned.span(offset, bytes as usize).unwrap()
    }

    fn read(&self, address: u64, bytes: usize) -> Vec<u8> {
        let (start, memory) = self.memory.range(..=address).next_back().unwrap();
        let at = (address - start) as usize;
        memory[at..at + bytes].to_vec()
    }

    fn write(&mut self, address: u64, bytes: &[u8]) {
        let (start, memory) = self.memory.range_mut(..=address).next_back().unwrap();
        let at = (address - start) as usize;
        memory[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn copy(&mut self, dst: &Endpoint<'_>, src: &Endpoint<'_>, shape: &Shape) {
        for z in 0..shape.depth {
            for y in 0..shape.height {
                let width = shape.width as usize;
                let from = (y * src.pitch + z * src.slice) as usize;
                let row = match &src.place {
                    Place::Device(address) => self.read(address + from as u64, width),
                    Place::Host(Payload::Inline(bytes)) => bytes[from..from + width].to_vec(),
                    Place::Host(Payload::Arena(block)) => {
                        self.block(block).part(from, width).unwrap().to_vec()
                    }
                    Place::Host(Payload::Pinned { address, bytes }) => {
                        self.pinned(*address, *bytes).part(from, width).unwrap().to_vec()
                    }
                };
                let to = (y * dst.pitch + z * dst.slice) as usize;
                match &dst.place {
                    Place::Device(address) => self.write(address + to as u64, &row),
                    Place::Host(Payload::Arena(block)) => {
                        self.block(block).write_at(to, &row).unwrap();
                    }
                    Place::Host(Payload::Pinned { address, bytes }) => {
                        self.pinned(*address, *bytes).write_at(to, &row).unwrap();
                    }
                    Place::Host(Payload::Inline(_)) => panic!("inline target"),
                }
            }
        }
        for place in [&dst.place, &src.place] {
            if let Place::Host(Payload::Arena(block)) = place {
                self.release(block);
            }
        }
    }

    fn fill(&mut self, fill: &FillSpec) {
        let element = fill.element as usize;
        let pattern = fill.value.to_le_bytes();
        for row in 0..fill.height {
            let bytes = pattern[..element].repeat(fill.width as usize);
            self.write(fill.address + row * fill.pitch, &bytes);
        }
    }
}

fn arena_ref(block: &Block) -> ArenaRef {
    ArenaRef { block: block.release, offset: block.offset, len: block.bytes }
}
