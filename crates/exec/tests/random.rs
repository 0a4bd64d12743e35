//! Random tenants, honest and hostile: nothing panics, every caller is answered once, every block
//! comes back once, and every command counts once.
#![expect(clippy::unwrap_used, reason = "a test's helpers may panic")]
#![expect(clippy::wildcard_enum_match_arm, reason = "each match is about some kinds of commands")]

mod common;

use std::collections::{BTreeMap, BTreeSet};

use common::{Bench, CONTEXT, GRAPH, LEGACY, cut, device_side, fill, host_side, linear, spec};
use proptest::prelude::*;
use proptest::sample::Index;
use weft_device::{Fault, FaultKind, Outcome};
use weft_exec::{Accepted, Caller, Limits};
use weft_wire::Command;
use weft_wire::codec::encode_to_vec;
use weft_wire::command::{
    Block, Comparison, GraphNode, GraphWork, LaunchSpec, Payload, Place, Shape,
};
use weft_wire::id::{ContextId, EventId, ModuleId, StreamId};

const STREAMS: u32 = 4;
const EVENTS: u32 = 3;

/// One thing that happens.
#[derive(Debug, Clone)]
enum Move {
    Send(Kind, u8, u8),
    Start(Option<u64>),
    End(Index, End),
    CreateStream(u8, bool),
    DestroyStream(u8),
    HostDone(u8),
    Later(u64),
    /// An encoded command with some bytes changed.
    Garbage(Kind, Vec<(Index, u8)>),
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Launch,
    LaunchArena,
    LaunchBad,
    CopyIn,
    CopyOut,
    CopyUnmapped,
    CopySync,
    Fill,
    Record,
    WaitEvent,
    WaitValue,
    WriteValue,
    Host,
    HostNext,
    Graph,
    Alloc,
    Free,
    FreeAsync,
    SyncStream,
    SyncContext,
    SyncEvent,
    QueryStream,
    Load,
    Unload,
    Ping,
}

#[derive(Debug, Clone, Copy)]
enum End {
    Done,
    Partial,
    Fault,
}

fn kinds() -> impl Strategy<Value = Kind> {
    prop::sample::select(vec![
        Kind::Launch,
        Kind::LaunchArena,
        Kind::LaunchBad,
        Kind::CopyIn,
        Kind::CopyOut,
        Kind::CopyUnmapped,
        Kind::CopySync,
        Kind::Fill,
        Kind::Record,
        Kind::WaitEvent,
        Kind::WaitValue,
        Kind::WriteValue,
        Kind::Host,
        Kind::HostNext,
        Kind::Graph,
        Kind::Alloc,
        Kind::Free,
        Kind::FreeAsync,
        Kind::SyncStream,
        Kind::SyncContext,
        Kind::SyncEvent,
        Kind::QueryStream,
        Kind::Load,
        Kind::Unload,
        Kind::Ping,
    ])
}

fn moves(hostile: bool) -> impl Strategy<Value = Vec<Move>> {
    let end = prop_oneof![20 => Just(End::Done), 4 => Just(End::Partial), 1 => Just(End::Fault)];
    let garbage = (kinds(), prop::collection::vec((any::<Index>(), any::<u8>()), 1..4));
    let step = prop_oneof![
        40 => (kinds(), any::<u8>(), any::<u8>()).prop_map(|(kind, a, b)| Move::Send(kind, a, b)),
        20 => prop::option::of(1_u64..10_000).prop_map(Move::Start),
        20 => (any::<Index>(), end).prop_map(|(at, end)| Move::End(at, end)),
        2 => (any::<u8>(), any::<bool>()).prop_map(|(at, joins)| Move::CreateStream(at, joins)),
        2 => any::<u8>().prop_map(Move::DestroyStream),
        4 => any::<u8>().prop_map(Move::HostDone),
        4 => (0_u64..5_000_000).prop_map(Move::Later),
        if hostile { 20 } else { 0 } => garbage.prop_map(|(kind, to)| Move::Garbage(kind, to)),
    ];
    prop::collection::vec(step, 0..120)
}

/// A tenant, and what its session owes it.
struct Tenant {
    bench: Bench,
    callers: BTreeSet<u64>,
    askers: BTreeSet<u64>,
    blocks: Vec<u32>,
    /// Commands sent per stream slot; generations and whether the slot has an owner.
    sent: BTreeMap<u32, u64>,
    owners: BTreeMap<u32, (u32, bool)>,
    records: BTreeMap<u32, u64>,
    next: u64,
    addresses: Vec<u64>,
    calls: u64,
    over: bool,
}

impl Tenant {
    fn new() -> Self {
        // Some of what is freed is long to release.
        let limits = Limits {
            stream_depth: 24,
            depth: 64,
            in_flight: 8,
            long_release_bytes: Some(128),
            ..Limits::default()
        };
        let mut bench = Bench::with(limits);
        for index in 0..EVENTS {
            bench.create_event(index);
        }
        let kernel = GraphNode { after: vec![], work: GraphWork::Kernel(spec(1)) };
        let host = GraphNode { after: vec![0], work: GraphWork::HostFunction(7) };
        let record = GraphNode { after: vec![], work: GraphWork::EventRecord(common::event(0)) };
        let wait = GraphNode { after: vec![], work: GraphWork::EventWait(common::event(1)) };
        let nodes = vec![kernel.clone(), host, record, wait, kernel];
        let nodes = bench.block(&encode_to_vec(&nodes, 1000).unwrap());
        let graph = Command::GraphInstantiate { context: CONTEXT, graph: GRAPH, nodes };
        bench.ask(&graph);
        bench.out.released.clear();
        Self {
            bench,
            callers: BTreeSet::new(),
            askers: BTreeSet::new(),
            blocks: Vec::new(),
            sent: BTreeMap::new(),
            owners: BTreeMap::from([(0, (0, true))]),
            records: BTreeMap::new(),
            next: 1000,
            addresses: Vec::new(),
            calls: 0,
            over: false,
        }
    }

    fn stream(&self, pick: u8) -> StreamId {
        let index = u32::from(pick) % STREAMS;
        let generation = self.owners.get(&index).map_or(0, |(generation, _)| *generation);
        StreamId { index, generation }
    }

    /// Offers a command and notes what the session owes for it.
    fn offer(&mut self, command: &Command<'_>, counts: Option<StreamId>, blocks: &[u32]) -> bool {
        self.next += 1;
        let caller = command.is_sync().then_some(Caller(self.next));
        match self.bench.session.accept(command, caller, &mut self.bench.out) {
            Ok(Accepted::Taken) => {}
            Ok(Accepted::Full) => return false,
            Err(_) => {
                self.over = true;
                return false;
            }
        }
        if matches!(command, Command::HostFunctionNext {}) {
            self.askers.insert(self.next);
        } else if caller.is_some() {
            self.callers.insert(self.next);
        }
        self.blocks.extend(blocks);
        if let Some(stream) = counts {
            *self.sent.entry(stream.index).or_insert(0) += 1;
        }
        true
    }

    fn block(&mut self) -> Block {
        self.bench.block(&[3; 64])
    }

    fn send(&mut self, kind: Kind, a: u8, b: u8) {
        let stream = self.stream(a);
        let counted = Some(stream);
        let event = EventId { index: u32::from(b) % EVENTS, generation: 1 };
        let buffer = self.bench.buffer;
        match kind {
            Kind::LaunchArena => {
                let block = self.bench.block(&[0; 8]);
                let word = block.release;
                let launch = LaunchSpec { params: Payload::Arena(block), ..spec(0) };
                self.offer(&Command::Launch { stream, launch }, counted, &[word]);
            }
            Kind::CopyIn | Kind::CopyUnmapped | Kind::CopySync => self.copy_in(kind, stream),
            Kind::CopyOut => {
                let block = self.block();
                let (dst, src) = (host_side(Payload::Arena(block.clone())), device_side(buffer));
                let copy = Command::Copy { stream, dst, src, shape: linear(u64::from(b) % 65) };
                self.offer(&copy, counted, &[block.release]);
            }
            Kind::Record => {
                let record = self.records.get(&event.index).map_or(1, |record| record + 1);
                let command = Command::EventRecord { event, stream, record };
                if self.offer(&command, counted, &[]) {
                    self.records.insert(event.index, record);
                }
            }
            Kind::Host => {
                self.calls += 1;
                let command = Command::HostFunction { stream, call: 100 + self.calls % 4 };
                self.offer(&command, counted, &[]);
            }
            Kind::Graph => {
                self.offer(&Command::GraphLaunch { graph: GRAPH, stream }, counted, &[]);
            }
            Kind::Alloc => self.alloc(64 << (b % 2)),
            Kind::Free | Kind::FreeAsync => {
                let address = self.addresses.pop().unwrap_or(1);
                if matches!(kind, Kind::Free) {
                    self.offer(&Command::MemFree { address }, None, &[]);
                } else {
                    self.offer(&Command::MemFreeAsync { stream, address }, counted, &[]);
                }
            }
            Kind::Load | Kind::Unload => self.module(kind, b),
            _ => {
                let (command, counts) = self.plain(kind, stream, event, b);
                self.offer(&command, counts, &[]);
            }
        }
    }

    /// Commands without blocks.
    fn plain(
        &self,
        kind: Kind,
        stream: StreamId,
        event: EventId,
        b: u8,
    ) -> (Command<'static>, Option<StreamId>) {
        let address = self.bench.buffer + 4 * u64::from(b % 4);
        let value = u64::from(b / 128);
        let counted = Some(stream);
        match kind {
            Kind::LaunchBad => {
                let launch = LaunchSpec { grid: [0, 1, 1], ..spec(u32::from(b)) };
                (Command::Launch { stream, launch }, counted)
            }
            Kind::Fill => (Command::Fill { stream, fill: fill(address, b.into()) }, counted),
            Kind::WaitEvent => (Command::StreamWaitEvent { stream, event }, counted),
            Kind::WaitValue => {
                let comparison = Comparison::GreaterOrEqual;
                let command =
                    Command::StreamWaitValue { stream, address, value, wide: false, comparison };
                (command, counted)
            }
            Kind::WriteValue => {
                (Command::StreamWriteValue { stream, address, value: 1, wide: false }, counted)
            }
            Kind::HostNext => (Command::HostFunctionNext {}, None),
            Kind::SyncStream => (Command::StreamSynchronize { stream }, None),
            Kind::SyncContext => (Command::ContextSynchronize { context: CONTEXT }, None),
            Kind::SyncEvent => {
                (Command::EventSynchronize { event, record: u64::from(b % 3) }, None)
            }
            Kind::QueryStream => (Command::StreamQuery { stream }, None),
            Kind::Ping => (Command::Ping {}, None),
            _ => (Command::Launch { stream, launch: spec(u32::from(b % 2)) }, counted),
        }
    }

    fn copy_in(&mut self, kind: Kind, stream: StreamId) {
        let block = self.block();
        let word = block.release;
        let unmapped = matches!(kind, Kind::CopyUnmapped);
        let dst = device_side(if unmapped { 64 } else { self.bench.buffer });
        let src = host_side(Payload::Arena(block));
        let shape = linear(64);
        let command = if matches!(kind, Kind::CopySync) {
            Command::CopySync { stream, dst, src, shape }
        } else {
            Command::Copy { stream, dst, src, shape }
        };
        self.offer(&command, Some(stream), &[word]);
    }

    fn alloc(&mut self, bytes: u64) {
        if self.offer(&Command::MemAlloc { context: CONTEXT, bytes }, None, &[])
            && let Some((_, body)) = self.bench.out.replies.get(&self.next)
            && let Ok(address) = weft_wire::codec::decode_all::<u64>(body)
        {
            self.addresses.push(address);
        }
    }

    fn module(&mut self, kind: Kind, b: u8) {
        let module = ModuleId { index: 1 + u32::from(b % 2), generation: 1 };
        let live = self.records.contains_key(&(100 + module.index));
        if matches!(kind, Kind::Unload) {
            if self.offer(&Command::ModuleUnload { module }, None, &[]) {
                self.records.remove(&(100 + module.index));
            }
        } else if !live {
            let image = self.bench.block(if b > 64 { b"good" } else { b"evil" });
            let answer = self.bench.block(&[0; 512]);
            let words = [image.release, answer.release];
            let images = vec![image];
            let load = Command::ModuleLoad { context: CONTEXT, module, images, answer };
            self.offer(&load, None, &words);
            let status = self.bench.status(self.next);
            if status == Some(weft_wire::Status::SUCCESS) {
                self.records.insert(100 + module.index, 1);
            }
        }
    }

    fn garbage(&mut self, kind: Kind, changes: &[(Index, u8)]) {
        let stream = LEGACY;
        let block = Block { offset: 0, bytes: 64, release: 1 };
        let command = match kind {
            Kind::CopyIn | Kind::CopyOut => Command::Copy {
                stream,
                dst: device_side(self.bench.buffer),
                src: weft_wire::command::Endpoint {
                    place: Place::Host(Payload::Arena(block)),
                    pitch: 16,
                    slice: 64,
                },
                shape: Shape { width: 16, height: 2, depth: 2 },
            },
            Kind::Load => Command::ModuleLoad {
                context: CONTEXT,
                module: ModuleId { index: 9, generation: 1 },
                images: vec![block.clone()],
                answer: block,
            },
            Kind::Graph => {
                Command::GraphInstantiate { context: CONTEXT, graph: GRAPH, nodes: block }
            }
            Kind::Alloc => {
                Command::ContextDestroy { context: ContextId { index: 3, generation: 1 } }
            }
            _ => self.plain(kind, stream, EventId { index: 0, generation: 1 }, 200).0,
        };
        let mut bytes = [0; weft_wire::command::COMMAND_BYTES_MAX];
        let length = command.encode(&mut bytes).unwrap();
        let bytes = &mut bytes[..length];
        for (at, to) in changes {
            bytes[at.index(length)] = *to;
        }
        if let Ok(command) = Command::decode(bytes) {
            self.offer(&command, None, &[]);
        }
    }

    fn end(&mut self, at: Index, end: End) {
        let in_flight: Vec<_> = self.bench.fake.borrow().in_flight.iter().copied().collect();
        let Some(op) = (!in_flight.is_empty()).then(|| in_flight[at.index(in_flight.len())]) else {
            return;
        };
        let fake = self.bench.fake.borrow();
        let (_, queue, what) = &fake.started[usize::try_from(op.0).unwrap()];
        let earlier =
            |(id, other, _): &(_, _, _)| other == queue && *id < op && fake.in_flight.contains(id);
        let limited = fake.limits[usize::try_from(op.0).unwrap()].is_some();
        let is_launch = matches!(what, weft_device::Op::Launch(_));
        let ordered = !fake.started.iter().any(earlier);
        drop(fake);
        if ordered {
            let outcome = match end {
                End::Partial if limited => {
                    Outcome::Partial { reached: if is_launch { 2 } else { 4 } }
                }
                End::Done | End::Partial => Outcome::Done,
                End::Fault => Outcome::Fault(Box::new(fault())),
            };
            self.bench.end_op(op, outcome);
        }
    }

    fn go(&mut self, step: &Move) {
        match step {
            Move::Send(kind, a, b) => self.send(*kind, *a, *b),
            Move::Garbage(kind, changes) => self.garbage(*kind, changes),
            Move::Start(limit) => {
                let ready = self.bench.session.next_op().is_some();
                let started =
                    self.bench.session.start_next(limit.map(cut), true, &mut self.bench.out);
                assert_eq!(ready, started != weft_exec::Started::NotNow);
            }
            Move::End(at, end) => self.end(*at, *end),
            Move::CreateStream(pick, blocking) => self.create_stream(*pick, *blocking),
            Move::DestroyStream(pick) => {
                let stream = self.stream(*pick);
                if self.offer(&Command::StreamDestroy { stream }, None, &[])
                    && stream.index > 0
                    && let Some((_, live)) = self.owners.get_mut(&stream.index)
                {
                    *live = false;
                }
            }
            Move::HostDone(pick) => {
                let call = if *pick % 5 == 4 { 7 } else { 100 + u64::from(*pick % 5) };
                self.offer(&Command::HostFunctionDone { call }, None, &[]);
            }
            Move::Later(ns) => {
                self.bench.fake.borrow_mut().now_ns += ns;
                self.bench.session.drive(1000, &mut self.bench.out);
                if self.bench.session.has_long_release() {
                    self.bench.session.release_memory(&mut self.bench.out);
                }
            }
        }
    }

    fn create_stream(&mut self, pick: u8, blocking: bool) {
        let index = 1 + u32::from(pick) % (STREAMS - 1);
        let (generation, live) = self.owners.get(&index).copied().unwrap_or((0, false));
        if live {
            return;
        }
        let stream = StreamId { index, generation: generation + 1 };
        let create = Command::StreamCreate { context: CONTEXT, stream, blocking, priority: 0 };
        if self.offer(&create, None, &[]) {
            self.owners.insert(index, (generation + 1, true));
        }
    }

    /// Ends everything, with a fault so that nothing waits for ever.
    fn finish(&mut self) {
        self.bench.launch_and_fault();
        while !self.bench.fake.borrow().in_flight.is_empty() {
            self.bench.end_one();
        }
        self.bench.session.release_memory(&mut self.bench.out);
        assert!(self.bench.session.is_idle(), "{:?}", self.bench.session);
        for caller in &self.callers {
            assert!(self.bench.out.replies.contains_key(caller), "caller {caller} waits for ever");
        }
        for asker in &self.askers {
            assert!(self.bench.out.replies.contains_key(asker), "asker {asker} waits for ever");
        }
    }

    /// What an honest tenant may rely on.
    fn check_counts(&self) {
        for word in &self.blocks {
            let released = self.bench.out.released.get(word);
            assert_eq!(released, Some(&1), "block {word}");
        }
        for (index, (generation, live)) in &self.owners {
            let stream = StreamId { index: *index, generation: *generation };
            let sent = self.sent.get(index).copied().unwrap_or(0);
            if *live {
                assert_eq!(self.bench.word(stream), sent, "slot {index}");
            }
        }
    }
}

fn fault() -> Fault {
    Fault {
        kind: FaultKind::IllegalAddress,
        kernel: "first".into(),
        block: [0; 3],
        thread: [0; 3],
        address: None,
        line: 1,
        detail: String::new(),
    }
}

impl Bench {
    /// Ends all that is in flight, then lets a kernel on a stream of its own fault.
    fn launch_and_fault(&mut self) {
        let stream = StreamId { index: 50, generation: 1 };
        let create =
            Command::StreamCreate { context: CONTEXT, stream, blocking: false, priority: -100 };
        let created = self.session.accept(&create, None, &mut self.out);
        assert_eq!(created, Ok(Accepted::Taken));
        for _ in 0..1000 {
            if self.session.fault().is_some() {
                return;
            }
            let launch = Command::Launch { stream, launch: spec(0) };
            if self.session.accept(&launch, None, &mut self.out) == Ok(Accepted::Taken)
                && self.session.has_ready_work()
            {
                break;
            }
            // Room comes with the ends of operations, or of a host function.
            if self.fake.borrow().in_flight.is_empty() {
                self.start_all();
            }
            if self.fake.borrow().in_flight.is_empty() {
                self.unblock();
            } else {
                self.end_one();
            }
        }
        while self.session.has_ready_work() && self.session.in_flight() < 8 {
            let _ = self.session.start_next(None, true, &mut self.out);
        }
        let first = self.fake.borrow().in_flight.first().copied();
        if let (Some(op), None) = (first, self.session.fault()) {
            self.end_op(op, Outcome::Fault(Box::new(fault())));
        }
    }

    /// Makes room in a session that only waits for its tenant.
    fn unblock(&mut self) {
        for call in [7, 100, 101, 102, 103] {
            let done = Command::HostFunctionDone { call };
            assert_eq!(self.session.accept(&done, None, &mut self.out), Ok(Accepted::Taken));
        }
        self.call(&Command::HostFunctionNext {});
        for word in 0..4 {
            self.fake.borrow_mut().words.insert(self.buffer + 4 * word, 1);
        }
        self.fake.borrow_mut().now_ns += 10_000_000;
        self.session.drive(1000, &mut self.out);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn an_honest_tenant_gets_everything_once(moves in moves(false)) {
        let mut tenant = Tenant::new();
        for step in &moves {
            tenant.go(step);
            prop_assert!(!tenant.over, "an honest tenant was taken for a hostile one: {step:?}");
        }
        tenant.finish();
        tenant.check_counts();
    }

    #[test]
    fn a_hostile_tenant_only_loses_its_session(moves in moves(true)) {
        let mut tenant = Tenant::new();
        for step in &moves {
            if tenant.over {
                return Ok(());
            }
            tenant.go(step);
        }
    }
}
