//! The session as the program's threads see it, on a device whose operations take a fixed time.
#![expect(clippy::unwrap_used, reason = "a test's helpers may panic")]

use std::collections::{BTreeMap, VecDeque};
use std::thread;
use std::time::{Duration, Instant};

use weft_device::{
    Capabilities, Completion, Device, DeviceError, DeviceInfo, Driven, LoadError, LoadedModule,
    MemoryUse, ModuleId, Op, OpId, Outcome, QueueId,
};
use weft_direct::{Direct, Opened, open};
use weft_ring::{Access, ClientOptions, ClientSide, MemoryFile, Segment};
use weft_wire::codec::decode_all;
use weft_wire::command::FillSpec;
use weft_wire::handshake::{Hello, HelloBody, PROTOCOL_VERSION};
use weft_wire::id::{ContextId, EventId, StreamId};
use weft_wire::{Command, Status, progress, reply};

const CONTEXT: ContextId = ContextId { index: 0, generation: 1 };
const STREAM: StreamId = StreamId { index: 1, generation: 1 };
const EVENT: EventId = EventId { index: 0, generation: 1 };
const OP_NS: u64 = 200_000;

/// Executes nothing, but takes its time.
#[derive(Debug)]
struct Timed {
    info: DeviceInfo,
    epoch: Instant,
    flights: VecDeque<(OpId, u64)>,
    next: u64,
    last_end_ns: u64,
}

impl Timed {
    fn new() -> Self {
        let info = DeviceInfo {
            name: "timed".into(),
            backend: "timed".to_owned(),
            uuid: [3; 16],
            compute_capability: (7, 5),
            memory_bytes: 1 << 20,
            attributes: BTreeMap::from([(1, 1024)]),
            capabilities: Capabilities::default(),
        };
        let epoch = Instant::now();
        Self { info, epoch, flights: VecDeque::new(), next: 0, last_end_ns: 0 }
    }
}

impl Device for Timed {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }
    fn now_ns(&self) -> u64 {
        u64::try_from(self.epoch.elapsed().as_nanos()).unwrap()
    }
    fn memory_use(&self) -> MemoryUse {
        MemoryUse { free: 1 << 20, total: 1 << 20 }
    }
    fn alloc(&mut self, _bytes: u64) -> Result<u64, DeviceError> {
        Ok(4096)
    }
    fn free(&mut self, _address: u64) -> Result<(), DeviceError> {
        Ok(())
    }
    fn load(&mut self, _images: &[&[u8]]) -> Result<LoadedModule, LoadError> {
        Err(LoadError::InvalidImage("none".into()))
    }
    fn unload(&mut self, _module: ModuleId) {}
    fn start(
        &mut self,
        _queue: QueueId,
        _op: Op,
        _max_ns: Option<u64>,
    ) -> Result<OpId, DeviceError> {
        self.next += 1;
        self.last_end_ns = self.last_end_ns.max(self.now_ns()) + OP_NS;
        self.flights.push_back((OpId(self.next), self.last_end_ns));
        Ok(OpId(self.next))
    }
    fn check_range(&self, _address: u64, _bytes: u64) -> Result<(), DeviceError> {
        Ok(())
    }
    fn read_word(&mut self, _address: u64, _wide: bool) -> Result<u64, DeviceError> {
        Ok(0)
    }
    fn write_word(&mut self, _: u64, _: u64, _: bool) -> Result<(), DeviceError> {
        Ok(())
    }
    fn drive(&mut self, _slice_ns: u64) -> Driven {
        self.flights.front().map_or(Driven::Idle, |(_, end_ns)| Driven::WaitUntil(*end_ns))
    }
    fn poll(&mut self) -> Option<Completion> {
        let now_ns = self.now_ns();
        let (op, end_ns) = self.flights.pop_front_if(|(_, end_ns)| *end_ns <= now_ns)?;
        Some(Completion { op, outcome: Outcome::Done, start_ns: end_ns - OP_NS, end_ns })
    }
    fn abort(&mut self, _op: OpId) {}
    fn estimate_ns(&self, _op: &Op) -> Option<u64> {
        Some(OP_NS)
    }
}

struct Bench {
    direct: Direct<Timed>,
    side: ClientSide,
}

impl Bench {
    fn new() -> Self {
        let body = HelloBody {
            vgpu: String::new(),
            weight: 0,
            memory_bytes: 0,
            token: String::new(),
            pid: 1,
            program: "test".into(),
            device_base: 1 << 40,
            device_bytes: 1 << 40,
            pinned_base: 1 << 41,
            pinned_bytes: 1 << 20,
        };
        let hello = Hello { version: PROTOCOL_VERSION, body };
        let opened = open(&hello, |_| Ok(Timed::new())).unwrap();
        let Opened { direct, welcome, segment, pinned } = opened;
        assert_eq!((welcome.device_name.as_str(), welcome.pinned_bytes), ("timed", 1 << 20));
        assert_eq!(MemoryFile::received(pinned).unwrap().len(), 1 << 20);
        let segment = MemoryFile::received(segment).unwrap().map(Access::ReadWrite).unwrap();
        let segment = Segment::open(segment).unwrap();
        let side = ClientSide::open(segment, ClientOptions::default(), Box::new(|| true)).unwrap();
        let bench = Self { direct, side };
        bench.submit(&Command::ContextCreate { context: CONTEXT });
        let create =
            Command::StreamCreate { context: CONTEXT, stream: STREAM, blocking: true, priority: 0 };
        bench.submit(&create);
        bench.submit(&Command::EventCreate { context: CONTEXT, event: EVENT });
        bench
    }

    fn submit(&self, command: &Command<'_>) {
        assert_eq!(self.direct.submit(&encode(command)), Ok(()));
    }

    fn call(&self, command: &Command<'_>) -> (Status, Vec<u8>) {
        let mut body = [0; 64];
        let (status, len) = self.direct.call(&encode(command), &mut body).unwrap();
        (status, body[..len].to_vec())
    }

    fn fill(&self) {
        let fill = FillSpec { address: 4096, pitch: 0, width: 4, height: 1, element: 1, value: 0 };
        self.submit(&Command::Fill { stream: STREAM, fill });
    }

    fn word(&self) -> u64 {
        let word = progress::stream_word(STREAM).unwrap();
        self.side.progress(usize::try_from(word).unwrap()).unwrap()
    }
}

fn encode(command: &Command<'_>) -> Vec<u8> {
    let mut bytes = vec![0; weft_wire::command::COMMAND_BYTES_MAX];
    let length = command.encode(&mut bytes).unwrap();
    bytes.truncate(length);
    bytes
}

#[test]
fn a_submission_returns_at_once_and_a_synchronisation_when_it_is_due() {
    let bench = Bench::new();
    let start = Instant::now();
    for _ in 0..5 {
        bench.fill();
    }
    bench.submit(&Command::EventRecord { event: EVENT, stream: STREAM, record: 1 });
    assert_eq!(bench.call(&Command::StreamSynchronize { stream: STREAM }).0, Status::SUCCESS);
    assert!(start.elapsed() >= Duration::from_nanos(5 * OP_NS));
    assert_eq!(bench.word(), 6);
    assert_eq!(bench.call(&Command::EventQuery { event: EVENT, record: 1 }).0, Status::SUCCESS);
}

#[test]
fn words_move_while_the_program_does_something_else() {
    let bench = Bench::new();
    bench.fill();
    bench.fill();
    while bench.word() < 2 {
        thread::yield_now();
    }
}

#[test]
fn a_callback_thread_is_told_and_the_stream_goes_on() {
    let bench = Bench::new();
    thread::scope(|scope| {
        let callbacks = scope.spawn(|| {
            let (status, body) = bench.call(&Command::HostFunctionNext {});
            assert_eq!(status, Status::SUCCESS);
            let call = decode_all::<reply::HostCall>(&body).unwrap().call;
            bench.submit(&Command::HostFunctionDone { call });
            call
        });
        bench.fill();
        bench.submit(&Command::HostFunction { stream: STREAM, call: 77 });
        bench.fill();
        let sync = Command::ContextSynchronize { context: CONTEXT };
        assert_eq!(bench.call(&sync).0, Status::SUCCESS);
        assert_eq!(callbacks.join().unwrap(), 77);
    });
    assert_eq!(bench.word(), 3);
}

#[test]
fn threads_share_the_session() {
    const THREADS: u64 = 4;
    const ROUNDS: u64 = 20;
    let bench = Bench::new();
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for _ in 0..ROUNDS {
                    bench.fill();
                    let sync = Command::StreamSynchronize { stream: STREAM };
                    assert_eq!(bench.call(&sync).0, Status::SUCCESS);
                }
            });
        }
    });
    assert_eq!(bench.word(), THREADS * ROUNDS);
}

#[test]
fn a_broken_client_loses_its_session() {
    let bench = Bench::new();
    thread::scope(|scope| {
        let waiting =
            scope.spawn(|| bench.direct.call(&encode(&Command::HostFunctionNext {}), &mut []));
        assert_eq!(bench.direct.submit(&[255; 8]), Err(Status::DEVICE_UNAVAILABLE));
        assert_eq!(waiting.join().unwrap(), Err(Status::DEVICE_UNAVAILABLE));
    });
    assert_eq!(
        bench.direct.submit(&encode(&Command::HostFunctionDone { call: 1 })),
        Err(Status::DEVICE_UNAVAILABLE)
    );
}
