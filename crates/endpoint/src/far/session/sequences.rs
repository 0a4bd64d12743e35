//! Whatever an endpoint says, in whatever order, and whatever its worker does meanwhile: what the
//! gateway keeps of it is bounded after every step, and nothing of it is left when all has ended.

use proptest::prelude::*;
use weft_ring::{ANSWER_SLOTS, ARENA_BLOCKS, ArenaRef, PAGE, WorkerSide};
use weft_wire::codec::encode_to_vec;
use weft_wire::command::{
    COMMAND_BYTES_MAX, Comparison, Endpoint, FillSpec, GraphNode, GraphWork, LaunchSpec, Payload,
    Place, Shape,
};
use weft_wire::id::{ContextId, EventId, GraphExecId, ModuleId, StreamId};

use super::super::ledger::{Due, Shadowed};
use super::*;

const ARENA: usize = 1 << 20;
const WINDOW: usize = 288 << 20;
/// Pages of the window: more than a session may have allocations.
const PAGES: u64 = (WINDOW / PAGE) as u64;
/// Where the parameters of large kernels lie in the arena, and how long they are.
const PARAMS: (u64, u64) = (0, 64 << 10);
/// Where lists of nodes lie in it.
const NODES: u64 = 128 << 10;
const CONTEXT: ContextId = ContextId { index: 0, generation: 1 };

/// One thing that an endpoint says, with the numbers that make it another than the one before.
#[derive(Debug, Clone, Copy)]
struct Said {
    what: What,
    /// A page, a graph's node, an event, or how many of something.
    number: u64,
    /// A stream, a graph, or a block.
    place: u32,
}

#[derive(Debug, Clone, Copy)]
enum What {
    Allocate,
    Free,
    Launch,
    LaunchOfMany,
    CopyIn,
    CopyOut,
    CopySync,
    Fill,
    WriteValue,
    WaitValue,
    Instantiate,
    SetNode,
    SetKernel,
    GraphLaunch,
    GraphDestroy,
    StreamCreate,
    EventCreate,
    ModuleLoad,
    Ping,
    /// A call that no caller awaits, or in a slot that there is not.
    Nonsense,
}

const WHATS: [What; 20] = [
    What::Allocate,
    What::Free,
    What::Launch,
    What::LaunchOfMany,
    What::CopyIn,
    What::CopyOut,
    What::CopySync,
    What::Fill,
    What::WriteValue,
    What::WaitValue,
    What::Instantiate,
    What::SetNode,
    What::SetKernel,
    What::GraphLaunch,
    What::GraphDestroy,
    What::StreamCreate,
    What::EventCreate,
    What::ModuleLoad,
    What::Ping,
    What::Nonsense,
];

/// One step of a sequence.
#[derive(Debug, Clone)]
enum Step {
    /// The same so many times, its number and its place one more each time.
    Say(Said, u32),
    /// The worker answers its calls, releases blocks, and ends commands of the first so many
    /// streams.
    Work { answers: bool, releases: bool, streams: u32 },
    /// It claims progress that it has not made.
    Lie { word: u32, value: u64 },
    /// What came due is collected.
    Collect,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let number =
        prop_oneof![4 => 0..64_u64, 1 => 0..PAGES, 1 => Just(PAGES - 1), 1 => any::<u64>()];
    let place =
        prop_oneof![6 => 0..8_u32, 1 => Just(1023), 1 => Just(ARENA_BLOCKS), 1 => any::<u32>()];
    let said = (proptest::sample::select(&WHATS[..]), number, place);
    let said = said.prop_map(|(what, number, place)| Said { what, number, place });
    let times = prop_oneof![6 => Just(1), 2 => 2..20_u32, 1 => 100..600_u32];
    let word = prop_oneof![3 => 0..8_u32, 1 => 0..4096_u32];
    let value = prop_oneof![0..64_u64, Just(u64::MAX)];
    let step = prop_oneof![
        8 => (said, times).prop_map(|(said, times)| Step::Say(said, times)),
        1 => (any::<bool>(), any::<bool>(), 0..1025_u32)
            .prop_map(|(answers, releases, streams)| Step::Work { answers, releases, streams }),
        1 => (word, value).prop_map(|(word, value)| Step::Lie { word, value }),
        2 => Just(Step::Collect),
    ];
    proptest::collection::vec(step, 1..80)
}

/// What a worker has taken and not ended.
struct Worker {
    side: WorkerSide,
    answers: Vec<AnswerTo>,
    blocks: Vec<Block>,
    /// How many commands each stream has had, and said to have ended.
    streams: Vec<u64>,
}

impl Worker {
    fn take(&mut self) {
        while let Some(record) = self.side.take().expect("a gateway breaks no rule") {
            self.answers.extend(record.answer);
            let command = Command::decode(record.bytes).expect("it passes on what it understands");
            let stream = command.stream().and_then(|stream| usize::try_from(stream.index).ok());
            if let Some(count) = stream.and_then(|stream| self.streams.get_mut(stream)) {
                *count += 1;
            }
            let taken = command.try_for_each_block(&mut |block: &Block| {
                self.blocks.push(block.clone());
                Ok::<_, ()>(())
            });
            taken.unwrap();
        }
    }

    fn work(&mut self, answers: bool, releases: bool, streams: u32) {
        if answers {
            for to in self.answers.drain(..) {
                self.side.complete(to, 0, &[]).unwrap();
            }
        }
        if releases {
            for Block { offset, bytes, release } in self.blocks.drain(..) {
                let named = ArenaRef { block: release, offset, len: bytes };
                self.side.arena().release(&named).unwrap();
            }
        }
        for (word, count) in self.streams.iter().take(streams as usize).enumerate() {
            self.side.set_progress(word, *count);
        }
    }
}

/// A session, its worker, and what is expected of both.
struct Sequence {
    session: Arc<Session>,
    shadowed: Arc<Shadowed>,
    worker: Worker,
    _lifeline: OwnedFd,
    /// Writing commands that were reported to have ended.
    written: u64,
}

impl Sequence {
    fn new() -> Self {
        let shadowed = Arc::<Shadowed>::default();
        let sizes = (ARENA, WINDOW);
        // Without a connection and without grace: whoever would have to wait has ended instead.
        let (session, lifeline) = tests::session_of(sizes, Duration::ZERO, Arc::clone(&shadowed));
        let worker = Worker {
            side: WorkerSide::open(session.segment.clone()).unwrap(),
            answers: Vec::new(),
            blocks: Vec::new(),
            streams: vec![0; 1024],
        };
        Self { session, shadowed, worker, _lifeline: lifeline, written: 0 }
    }

    /// Goes through a sequence; `true` when the gateway ended the session before its end.
    fn run(&mut self, steps: &[Step]) -> bool {
        let session = Arc::clone(&self.session);
        let collecting = Lending::new(Collector::new(Arc::clone(&session), false));
        let relay = RelayIn::open(&session.segment).unwrap();
        let mut receiver = Receiver::new(&session, relay, &collecting);
        fill_arena(&mut receiver, session.pinned_base);
        for step in steps {
            let ended = match step {
                Step::Say(said, times) => self.say(&mut receiver, *said, *times).is_err(),
                Step::Work { answers, releases, streams } => {
                    self.worker.work(*answers, *releases, *streams);
                    false
                }
                Step::Lie { word, value } => {
                    self.worker.side.set_progress(*word as usize, *value);
                    false
                }
                Step::Collect => {
                    self.collect();
                    false
                }
            };
            receiver.window.verify();
            lock(&session.ledger).verify();
            if ended {
                return true;
            }
        }
        false
    }

    fn say(&mut self, receiver: &mut Receiver<'_>, said: Said, times: u32) -> Result<(), Over> {
        for time in 0..times {
            let said = Said {
                number: said.number.wrapping_add(time.into()),
                place: said.place.wrapping_add(time),
                ..said
            };
            let result = said.say(receiver);
            self.worker.take();
            result?;
        }
        Ok(())
    }

    /// As the collector does, but that nothing is sent.
    fn collect(&mut self) {
        let session = &self.session;
        let mut ledger = lock(&session.ledger);
        let mut due = ledger.answered(&session.out);
        let progress = |word: u32| session.out.progress(word as usize).unwrap_or(0);
        ledger.add_ended(&mut due, &session.out, progress);
        let Due { answers: _, released: _, written } = due;
        for writing in written {
            self.written += 1;
            for rows in &writing.given {
                let copy = ledger.take_shadow(rows);
                ledger.give_up(rows, copy);
            }
        }
    }

    /// The worker does all that is left, and all of it is collected: nothing is owed any more, if
    /// it was told all that the endpoint said.
    fn end(mut self, is_over: bool) {
        self.worker.take();
        self.worker.work(true, true, 1024);
        self.collect();
        let ledger = lock(&self.session.ledger);
        ledger.verify();
        if !is_over {
            assert!(!ledger.is_owed(), "{ledger:?}");
            assert_eq!(ledger.writes(), self.written, "each that wrote is told once");
        }
        drop(ledger);
        let Self { session, shadowed, .. } = self;
        drop(session);
        assert_eq!(shadowed.all(), 0, "a session that ended keeps copies");
    }
}

/// Parameters that point into every page of the window's beginning.
fn fill_arena(receiver: &mut Receiver<'_>, base: u64) {
    let words = (0..PARAMS.1 / 8).flat_map(|page| (base + page * PAGE as u64).to_le_bytes());
    let bytes: Vec<u8> = words.collect();
    receiver.handle(Frame::Block { offset: PARAMS.0, bytes: &bytes }).unwrap();
}

impl Said {
    fn say(self, receiver: &mut Receiver<'_>) -> Result<(), Over> {
        let base = receiver.session.pinned_base;
        let Self { what, number, place } = self;
        let address = base.wrapping_add(number.wrapping_mul(PAGE as u64));
        // Mostly what there is.
        let is_wild = number == PAGES - 1;
        let one_of = |most: u32| if is_wild { place } else { place % most };
        let stream = StreamId { index: one_of(4), generation: 1 };
        let graph = GraphExecId { index: one_of(8), generation: 1 };
        let release = one_of(ARENA_BLOCKS);
        let pinned = Endpoint {
            place: Place::Host(Payload::Pinned { address, bytes: 64 }),
            pitch: 64,
            slice: 0,
        };
        let device = Endpoint { place: Place::Device(4096), pitch: 16, slice: 0 };
        let shape = Shape { width: 16, height: number % 70, depth: 1 };
        let words = [address, address.wrapping_add(2 * PAGE as u64)].map(u64::to_le_bytes);
        let params = words.as_flattened();
        let small = || kernel(Payload::Inline(params));
        let fill = FillSpec { address, pitch: 9, width: 1, height: 70, element: 4, value: 1 };
        let block = |bytes| Block { offset: PARAMS.0, bytes, release };
        let command = match what {
            What::Allocate => {
                let pages = if place < 4 { u64::from(place) + 1 } else { 1 };
                Command::PinnedRange { address, bytes: pages * PAGE as u64, used: 1 }
            }
            What::Free => Command::PinnedRange { address, bytes: PAGE as u64, used: 0 },
            What::Launch => Command::Launch { stream, launch: small() },
            What::LaunchOfMany => {
                Command::Launch { stream, launch: kernel(Payload::Arena(block(PARAMS.1))) }
            }
            What::CopyIn => Command::Copy { stream, dst: device, src: pinned, shape },
            What::CopyOut => Command::Copy { stream, dst: pinned, src: device, shape },
            What::CopySync => {
                let place = Place::Host(Payload::Arena(block(number % 4096)));
                let dst = Endpoint { place, pitch: 0, slice: 0 };
                Command::CopySync { stream, dst, src: pinned, shape }
            }
            What::Fill => Command::Fill { stream, fill },
            What::WriteValue => Command::StreamWriteValue {
                stream,
                address,
                value: 1,
                wide: number.is_multiple_of(2),
            },
            What::WaitValue => {
                let (comparison, wide) = (Comparison::Equal, number.is_multiple_of(2));
                Command::StreamWaitValue { stream, address, value: 1, wide, comparison }
            }
            What::Instantiate => return self.instantiate(receiver, small()),
            What::SetNode => {
                let node = GraphNode { after: vec![], work: GraphWork::Fill(fill) };
                let bytes = listed(receiver, &node)?;
                let node_bytes = Block { offset: NODES, bytes, release };
                Command::GraphSetNode { graph, node: place_of(number), node_bytes }
            }
            What::SetKernel => {
                Command::GraphSetKernel { graph, node: place_of(number), launch: small() }
            }
            What::GraphLaunch => Command::GraphLaunch { graph, stream },
            What::GraphDestroy => Command::GraphDestroy { graph },
            What::StreamCreate
            | What::EventCreate
            | What::ModuleLoad
            | What::Ping
            | What::Nonsense => self.made(stream, &block(64)),
        };
        submit(receiver, &command, self)
    }

    /// Commands that touch nothing.
    fn made(self, stream: StreamId, block: &Block) -> Command<'static> {
        let context = CONTEXT;
        if matches!(self.what, What::StreamCreate) {
            Command::StreamCreate { context, stream, blocking: true, priority: 0 }
        } else if matches!(self.what, What::EventCreate) {
            let event = EventId { index: self.place, generation: 1 };
            Command::EventCreate { context, event }
        } else if matches!(self.what, What::ModuleLoad) {
            let module = ModuleId { index: 0, generation: 1 };
            let release = block.release.wrapping_add(2048) % ARENA_BLOCKS;
            let answer = Block { release, ..block.clone() };
            Command::ModuleLoad { context, module, images: vec![block.clone()], answer }
        } else {
            Command::Ping {}
        }
    }

    /// A graph of up to seventy of each kind of node.
    fn instantiate(self, receiver: &mut Receiver<'_>, kernel: LaunchSpec<'_>) -> Result<(), Over> {
        let address = receiver.session.pinned_base;
        let fill = FillSpec { address, pitch: 8, width: 1, height: 3, element: 4, value: 1 };
        let works = [GraphWork::Kernel(kernel), GraphWork::Fill(fill), GraphWork::Empty];
        let works = works.iter().cycle().take(3 * (self.number % 70) as usize);
        let nodes = works.map(|work| GraphNode { after: vec![], work: work.clone() });
        let bytes = listed(receiver, &nodes.collect::<Vec<_>>())?;
        let graph = GraphExecId { index: self.place, generation: 1 };
        let nodes = Block { offset: NODES, bytes, release: self.place % ARENA_BLOCKS };
        submit(receiver, &Command::GraphInstantiate { context: CONTEXT, graph, nodes }, self)
    }
}

fn submit(receiver: &mut Receiver<'_>, command: &Command<'_>, said: Said) -> Result<(), Over> {
    let slot = u16::try_from(said.number % u64::from(ANSWER_SLOTS)).unwrap();
    let to = AnswerTo { slot, call: said.place % 1000 + 1 };
    let nowhere = AnswerTo { slot: ANSWER_SLOTS, call: 1 };
    let answer = if matches!(said.what, What::Nonsense) {
        said.number.is_multiple_of(2).then_some(nowhere)
    } else {
        command.is_sync().then_some(to)
    };
    let mut bytes = [0; COMMAND_BYTES_MAX];
    let length = command.encode(&mut bytes).unwrap();
    receiver.handle(Frame::Command { answer, bytes: &bytes[..length] })
}

/// Writes a list into the arena; how long it is.
fn listed<'a>(
    receiver: &mut Receiver<'_>,
    list: &impl weft_wire::codec::Field<'a>,
) -> Result<u64, Over> {
    let bytes = encode_to_vec(list, 1 << 16).unwrap();
    receiver.handle(Frame::Block { offset: NODES, bytes: &bytes })?;
    Ok(bytes.len() as u64)
}

fn place_of(number: u64) -> u32 {
    u32::try_from(number % 256).unwrap()
}

fn kernel(params: Payload<'_>) -> LaunchSpec<'_> {
    let module = ModuleId { index: 0, generation: 1 };
    LaunchSpec { module, function: 0, grid: [1; 3], block: [1; 3], shared_bytes: 0, params }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..Default::default() })]

    #[test]
    fn whatever_is_said_and_done_what_is_kept_is_bounded(steps in steps()) {
        let mut sequence = Sequence::new();
        let is_over = sequence.run(&steps);
        sequence.end(is_over);
    }
}

/// Says one thing again and again; whether the gateway ended the session for it.
fn repeat(what: What, rounds: u32, ends: bool) -> bool {
    const TIMES: u32 = 300;
    let say = |what, number, place, times| Step::Say(Said { what, number, place }, times);
    // There are allocations and graphs that use them.
    let mut steps = vec![say(What::Allocate, 0, 4, 64)];
    steps.extend((0..8).map(|graph| say(What::Instantiate, 69, graph, 1)));
    steps.extend([Step::Work { answers: true, releases: true, streams: 0 }, Step::Collect]);
    for round in 0..rounds {
        steps.push(say(what, u64::from(round * TIMES), 4 + round * TIMES, TIMES));
        if ends {
            steps.push(Step::Work { answers: true, releases: true, streams: 1024 });
            steps.push(Step::Collect);
        }
    }
    let mut sequence = Sequence::new();
    let is_over = sequence.run(&steps);
    sequence.end(is_over);
    is_over
}

/// With a worker that ends nothing, and with one that ends all of it: what would grow for ever ends
/// its session, and nothing else does.
#[test]
fn whoever_repeats_anything_fills_no_gateway() {
    for what in WHATS {
        let rounds = if matches!(what, What::Allocate) { 256 } else { 20 };
        let lends = matches!(
            what,
            What::LaunchOfMany
                | What::CopySync
                | What::Instantiate
                | What::SetNode
                | What::ModuleLoad
        );
        let is_kept = matches!(what, What::Allocate | What::Instantiate);
        let (nonsense, writes) =
            (matches!(what, What::Nonsense), matches!(what, What::GraphLaunch));
        let is_over = repeat(what, rounds, false);
        assert_eq!(is_over, lends || is_kept || nonsense || writes, "{what:?} that does not end");
        let is_over = repeat(what, rounds, true);
        assert_eq!(is_over, is_kept || nonsense, "{what:?} that ends");
    }
}
