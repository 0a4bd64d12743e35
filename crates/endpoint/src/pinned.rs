//! Pinned host memory without shared memory: which bytes of the window a command reads and writes.
//!
//! Each end has a window of its own. Before a command that reads pinned memory the endpoint sends
//! what it reads; when a command that writes it has ended, the gateway sends what it wrote. A
//! kernel that is given a pinned address counts as reading and writing all of that allocation. Both
//! ends find the same by looking at the same commands, with this code.

use std::collections::{BTreeMap, BTreeSet};

use weft_wire::Command;
use weft_wire::codec::{Field, Reader, decode_all};
use weft_wire::command::{
    Block, Endpoint, GraphNode, GraphWork, LIST_BYTES_MAX, LaunchSpec, Payload, Place, Shape,
};
use weft_wire::id::{GraphExecId, StreamId};
use weft_wire::progress::STREAM_WORDS;

/// Nodes of a graph, and bytes of a kernel's parameters, beyond which a worker refuses the command:
/// nothing is noted of such.
const GRAPH_NODES_MAX: u32 = 1 << 16;
const PARAM_BYTES_MAX: u64 = 64 << 10;

/// Most bytes of the parameters of all of a graph's kernels: each word of them is looked up.
const GRAPH_PARAM_BYTES_MAX: u64 = 16 << 20;

/// What the window is allocated in, in bytes.
const PAGE: u64 = weft_ring::PAGE as u64;

/// Most allocations of pinned memory of a session: a gateway keeps where each is.
const ALLOCATIONS_MAX: usize = 1 << 16;

/// Most uses of pinned memory by all graphs of a session together: a gateway keeps those of all its
/// sessions.
const GRAPH_ROWS_MAX: usize = 1 << 16;

/// Rows of bytes in slices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rows {
    /// The first byte.
    pub address: u64,
    /// Bytes per row, rows per slice, slices.
    shape: [u64; 3],
    /// From one row to the next, from one slice to the next, in bytes.
    pitch: [u64; 2],
}

impl Rows {
    /// Bytes without a gap.
    #[must_use]
    pub fn linear(address: u64, bytes: u64) -> Self {
        Self { address, shape: [bytes, 1, 1], pitch: [0, 0] }
    }

    fn of(address: u64, endpoint: &Endpoint<'_>, shape: &Shape) -> Self {
        let Shape { width, height, depth } = *shape;
        let (pitch, slice) = (endpoint.pitch, endpoint.slice);
        let packed = (height <= 1 || pitch == width)
            && (depth <= 1 || slice == width.saturating_mul(height));
        if packed {
            let bytes = width.saturating_mul(height).saturating_mul(depth);
            return Self::linear(address, bytes);
        }
        Self { address, shape: [width, height, depth], pitch: [pitch, slice] }
    }

    /// First address and length of each run of bytes.
    pub fn runs(self) -> impl Iterator<Item = (u64, u64)> {
        let [width, height, depth] = self.shape;
        let [pitch, slice] = self.pitch;
        (0..depth).flat_map(move |z| {
            (0..height).map(move |y| {
                let offset = z.saturating_mul(slice).saturating_add(y.saturating_mul(pitch));
                (self.address.saturating_add(offset), width)
            })
        })
    }

    /// From the first byte to behind the last.
    fn bounds(&self) -> (u64, u64) {
        let [width, height, depth] = self.shape;
        let rows = height.saturating_sub(1).saturating_mul(self.pitch[0]);
        let slices = depth.saturating_sub(1).saturating_mul(self.pitch[1]);
        let bytes = width.saturating_add(rows).saturating_add(slices);
        (self.address, self.address.saturating_add(bytes))
    }

    /// Whether there are bytes and no row shares one with the next: the worker refuses others.
    fn is_apart(&self) -> bool {
        let [width, height, depth] = self.shape;
        let [pitch, slice] = self.pitch;
        width > 0
            && height > 0
            && depth > 0
            && (height == 1 || pitch >= width)
            && (depth == 1 || slice >= width)
    }

    /// Whether they may share a byte.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        let ((start, end), (from, to)) = (self.bounds(), other.bounds());
        start < to && from < end
    }
}

/// A word that a stream waits for, which the program writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Watched {
    /// Its address.
    pub address: u64,
    /// Its bytes: 4 or 8.
    pub bytes: u64,
}

/// What a command does with the window.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Touched {
    /// What it reads.
    pub reads: Vec<Rows>,
    /// What it writes.
    pub writes: Vec<Rows>,
    /// Allocations that a kernel may read and write anywhere.
    pub given: Vec<Rows>,
    /// What it waits for.
    pub watched: Option<Watched>,
}

impl Touched {
    /// Whether it writes, or may.
    #[must_use]
    pub fn may_write(&self) -> bool {
        !self.writes.is_empty() || !self.given.is_empty()
    }

    fn is_empty(&self) -> bool {
        self.rows() == 0 && self.watched.is_none()
    }

    /// How many rows it has in all.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.reads.len() + self.writes.len() + self.given.len()
    }

    /// Adds what another one touches; `given` has the bounds of what is given to any.
    fn add(&mut self, other: &Self, given: &mut BTreeSet<(u64, u64)>) {
        self.reads.extend(&other.reads);
        self.writes.extend(&other.writes);
        self.given.extend(other.given.iter().filter(|rows| given.insert(rows.bounds())));
    }
}

/// Gives the bytes of an arena block.
pub type Blocks<'a> = &'a dyn Fn(&Block) -> Option<Vec<u8>>;

/// The window's allocations, and graphs that use them.
#[derive(Debug)]
pub struct Window {
    base: u64,
    bytes: u64,
    /// Length by address.
    allocations: BTreeMap<u64, u64>,
    graphs: BTreeMap<GraphExecId, Graph>,
    /// Of all graphs, and one for each.
    graph_rows: usize,
}

/// How many nodes a graph has, and what those touch that touch anything.
#[derive(Debug, Default)]
struct Graph {
    count: u32,
    nodes: BTreeMap<u32, Touched>,
}

impl Window {
    /// The window of a session.
    #[must_use]
    pub fn new(base: u64, bytes: u64) -> Self {
        Self { base, bytes, allocations: BTreeMap::new(), graphs: BTreeMap::new(), graph_rows: 0 }
    }

    /// Offset of bytes in the window; `None` when they do not all lie in it.
    #[must_use]
    pub fn offset(&self, address: u64, bytes: u64) -> Option<u64> {
        let offset = address.checked_sub(self.base)?;
        let end = offset.checked_add(bytes)?;
        (end <= self.bytes).then_some(offset)
    }

    /// Whether the program has memory in it.
    #[must_use]
    pub fn has_allocations(&self) -> bool {
        !self.allocations.is_empty()
    }

    fn holds(&self, rows: &Rows) -> bool {
        let (start, end) = rows.bounds();
        self.offset(start, end - start).is_some()
    }

    /// What a command touches. `block` gives the bytes that it brings along.
    ///
    /// # Errors
    /// [`Unrelayed`].
    pub fn touched(
        &mut self,
        command: &Command<'_>,
        block: Blocks<'_>,
    ) -> Result<Touched, Unrelayed> {
        self.note(command, block)?;
        let mut touched = Touched::default();
        if let Command::Copy { dst, src, shape, .. } | Command::CopySync { dst, src, shape, .. } =
            command
        {
            self.copy(&mut touched, dst, src, shape);
        } else if let Command::Launch { launch, .. } = command {
            self.kernel(&mut touched, launch, block);
        } else if let Command::Fill { fill, .. } = command {
            self.fill(&mut touched, fill);
        } else if let Command::StreamWriteValue { address, wide, .. } = command {
            let word = Rows::linear(*address, if *wide { 8 } else { 4 });
            touched.writes.extend(self.holds(&word).then_some(word));
        } else if let Command::StreamWaitValue { address, wide, .. } = command {
            let bytes = if *wide { 8 } else { 4 };
            let word = Watched { address: *address, bytes };
            touched.watched = self.holds(&Rows::linear(*address, bytes)).then_some(word);
        } else if let Command::GraphLaunch { graph, .. } = command {
            let mut given = BTreeSet::new();
            for node in self.graphs.get(graph).into_iter().flat_map(|graph| graph.nodes.values()) {
                touched.add(node, &mut given);
            }
        }
        Ok(touched)
    }

    /// Notes what later commands refer to.
    fn note(&mut self, command: &Command<'_>, block: Blocks<'_>) -> Result<(), Unrelayed> {
        if let Command::PinnedRange { address, bytes, used } = command {
            match used {
                0 => drop(self.allocations.remove(address)),
                _ => self.allocate(*address, *bytes)?,
            }
        } else if let Command::GraphInstantiate { graph, nodes, .. } = command {
            self.forget(*graph);
            self.note_graph(*graph, &list(nodes, block), block)?;
        } else if let Command::GraphSetNode { graph, node, node_bytes } = command {
            if let Ok(changed) = decode_all::<GraphNode<'_>>(&list(node_bytes, block)) {
                let touched = self.node(&changed, block);
                self.set_node(*graph, *node, touched)?;
            }
        } else if let Command::GraphSetKernel { graph, node, launch } = command {
            let mut touched = Touched::default();
            self.kernel(&mut touched, launch, block);
            self.set_node(*graph, *node, touched)?;
        } else if let Command::GraphDestroy { graph } = command {
            self.forget(*graph);
        }
        Ok(())
    }

    /// Notes an allocation, if a worker may take it: whole pages of the window that nothing has.
    fn allocate(&mut self, address: u64, bytes: u64) -> Result<(), Unrelayed> {
        let is_whole = [address, bytes].iter().all(|it| it.is_multiple_of(PAGE)) && bytes > 0;
        if !is_whole || self.offset(address, bytes).is_none() {
            return Ok(());
        }
        let before = self.allocations.range(..address + bytes).next_back();
        if before.is_none_or(|(start, length)| start + length <= address) {
            self.allocations.insert(address, bytes);
        }
        if self.allocations.len() > ALLOCATIONS_MAX { Err(Unrelayed::Allocations) } else { Ok(()) }
    }

    /// Notes a graph's nodes as far as they make sense: a worker refuses what is wrong with any.
    fn note_graph(
        &mut self,
        graph: GraphExecId,
        bytes: &[u8],
        block: Blocks<'_>,
    ) -> Result<(), Unrelayed> {
        let mut reader = Reader::new(bytes);
        let count = u32::decode(&mut reader).unwrap_or(0).min(GRAPH_NODES_MAX);
        self.graphs.insert(graph, Graph { count, nodes: BTreeMap::new() });
        self.graph_rows += 1;
        let mut param_bytes = 0;
        for index in 0..count {
            // One after the other: all together may be a hundred times their bytes.
            let Ok(node) = GraphNode::decode(&mut reader) else { break };
            // Many may name the same bytes of the arena.
            param_bytes += param_bytes_of(&node);
            if param_bytes > GRAPH_PARAM_BYTES_MAX {
                return Err(Unrelayed::Parameters);
            }
            let touched = self.node(&node, block);
            self.set_node(graph, index, touched)?;
        }
        Ok(())
    }

    fn set_node(
        &mut self,
        graph: GraphExecId,
        node: u32,
        touched: Touched,
    ) -> Result<(), Unrelayed> {
        let graph = self.graphs.get_mut(&graph).filter(|graph| node < graph.count);
        // A worker refuses it as well.
        let Some(graph) = graph else { return Ok(()) };
        let rows = touched.rows();
        let before = graph.nodes.remove(&node).map_or(0, |before| before.rows());
        if rows > 0 {
            graph.nodes.insert(node, touched);
        }
        self.graph_rows = self.graph_rows + rows - before;
        if self.graph_rows > GRAPH_ROWS_MAX { Err(Unrelayed::Graphs) } else { Ok(()) }
    }

    fn forget(&mut self, graph: GraphExecId) {
        if let Some(graph) = self.graphs.remove(&graph) {
            self.graph_rows -= 1 + graph.nodes.values().map(Touched::rows).sum::<usize>();
        }
    }

    fn node(&self, node: &GraphNode<'_>, block: Blocks<'_>) -> Touched {
        let mut touched = Touched::default();
        match &node.work {
            GraphWork::Kernel(launch) => self.kernel(&mut touched, launch, block),
            GraphWork::Copy { dst, src, shape } => self.copy(&mut touched, dst, src, shape),
            GraphWork::Fill(fill) => self.fill(&mut touched, fill),
            GraphWork::Empty
            | GraphWork::HostFunction(_)
            | GraphWork::EventRecord(_)
            | GraphWork::EventWait(_) => {}
        }
        touched
    }

    fn copy(&self, touched: &mut Touched, dst: &Endpoint<'_>, src: &Endpoint<'_>, shape: &Shape) {
        touched.reads.extend(self.side(src, shape));
        touched.writes.extend(self.side(dst, shape));
    }

    /// The part of the window that a side of a copy is.
    fn side(&self, endpoint: &Endpoint<'_>, shape: &Shape) -> Option<Rows> {
        let address = match &endpoint.place {
            Place::Device(address) | Place::Host(Payload::Pinned { address, .. }) => *address,
            Place::Host(Payload::Inline(_) | Payload::Arena(_)) => return None,
        };
        let rows = Rows::of(address, endpoint, shape);
        (self.holds(&rows) && rows.is_apart()).then_some(rows)
    }

    fn fill(&self, touched: &mut Touched, fill: &weft_wire::command::FillSpec) {
        let width = fill.width.saturating_mul(u64::from(fill.element));
        let shape = Shape { width, height: fill.height, depth: 1 };
        let place = Place::Device(fill.address);
        let endpoint = Endpoint { place, pitch: fill.pitch, slice: 0 };
        touched.writes.extend(self.side(&endpoint, &shape));
    }

    /// Every aligned word of the parameters may be an address.
    fn kernel(&self, touched: &mut Touched, launch: &LaunchSpec<'_>, block: Blocks<'_>) {
        let from_arena;
        let params: &[u8] = match &launch.params {
            Payload::Inline(bytes) if bytes.len() as u64 <= PARAM_BYTES_MAX => bytes,
            Payload::Arena(named) if named.bytes <= PARAM_BYTES_MAX => {
                from_arena = block(named).unwrap_or_default();
                &from_arena
            }
            // A worker takes no more, and looking for addresses in more would take long.
            Payload::Inline(_) | Payload::Arena(_) => &[],
            // Nobody sends them so.
            Payload::Pinned { .. } => &[],
        };
        let mut seen = BTreeSet::new();
        for word in params.as_chunks::<8>().0 {
            let address = u64::from_le_bytes(*word);
            if self.offset(address, 1).is_none() {
                continue;
            }
            let last = self.allocations.range(..=address).next_back();
            let Some((start, bytes)) = last.filter(|(start, bytes)| address - **start < **bytes)
            else {
                continue;
            };
            let rows = Rows::linear(*start, *bytes);
            if self.holds(&rows) && seen.insert(*start) {
                touched.given.push(rows);
            }
        }
    }
}

/// How many bytes of parameters are looked at of a node.
fn param_bytes_of(node: &GraphNode<'_>) -> u64 {
    let GraphWork::Kernel(launch) = &node.work else { return 0 };
    let bytes = match &launch.params {
        Payload::Inline(bytes) => bytes.len() as u64,
        Payload::Arena(named) => named.bytes,
        Payload::Pinned { .. } => 0,
    };
    if bytes > PARAM_BYTES_MAX { 0 } else { bytes }
}

/// The bytes of an encoded list, if a worker takes so many.
fn list(named: &Block, block: Blocks<'_>) -> Vec<u8> {
    let is_taken = usize::try_from(named.bytes).is_ok_and(|bytes| bytes <= LIST_BYTES_MAX);
    if is_taken { block(named).unwrap_or_default() } else { Vec::new() }
}

/// Counts the commands of each stream, as the worker does ([`weft_wire::progress`]).
#[derive(Debug)]
pub struct Counts(Vec<u64>);

impl Default for Counts {
    fn default() -> Self {
        Self(vec![0; usize::try_from(STREAM_WORDS).unwrap_or(0)])
    }
}

/// When a command has ended: its stream's progress word has come so far. A command without one ends
/// with its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Until {
    /// The word.
    pub word: u32,
    /// Its value.
    pub value: u64,
}

/// Uses of pinned memory that are not relayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unrelayed {
    /// In a stream that has no progress word.
    #[error(
        "a remote session uses pinned memory in the first {STREAM_WORDS} streams of a program only"
    )]
    Stream,
    /// In too many places of graphs.
    #[error("the graphs of a remote session use pinned memory in {GRAPH_ROWS_MAX} places at most")]
    Graphs,
    /// In too many allocations.
    #[error("a remote session has {ALLOCATIONS_MAX} allocations of pinned memory at most")]
    Allocations,
    /// Nobody can tell: the parameters are too long to look for it.
    #[error(
        "the kernels of a remote session's graph have {} MiB of parameters at most",
        GRAPH_PARAM_BYTES_MAX >> 20
    )]
    Parameters,
}

impl Counts {
    /// Counts a command; when it will have ended.
    ///
    /// # Errors
    /// [`Unrelayed::Stream`].
    pub fn count(&mut self, stream: StreamId) -> Result<Until, Unrelayed> {
        let index = usize::try_from(stream.index).unwrap_or(usize::MAX);
        let count = self.0.get_mut(index).ok_or(Unrelayed::Stream)?;
        *count += 1;
        Ok(Until { word: stream.index, value: *count })
    }
}

/// What a command touches and when it will be over; `None` when it touches nothing.
///
/// # Errors
/// [`Unrelayed`].
pub fn pending(
    window: &mut Window,
    counts: &mut Counts,
    command: &Command<'_>,
    block: Blocks<'_>,
) -> Result<Option<(Until, Touched)>, Unrelayed> {
    let touched = window.touched(command, block)?;
    let Some(stream) = command.stream() else { return Ok(None) };
    let until = counts.count(stream);
    if touched.is_empty() {
        return Ok(None);
    }
    Ok(Some((until?, touched)))
}

#[cfg(test)]
mod invariants;

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: u64 = 0x2000_0000_0000;

    fn window() -> Window {
        let mut window = Window::new(BASE, 1 << 20);
        let range = Command::PinnedRange { address: BASE + 4096, bytes: 8192, used: 1 };
        assert_eq!(window.touched(&range, &|_| None), Ok(Touched::default()));
        window
    }

    fn pinned(address: u64, pitch: u64) -> Endpoint<'static> {
        let place = Place::Host(Payload::Pinned { address, bytes: 0 });
        Endpoint { place, pitch, slice: 0 }
    }

    fn device(address: u64) -> Endpoint<'static> {
        Endpoint { place: Place::Device(address), pitch: 0, slice: 0 }
    }

    #[test]
    fn copies_read_and_write_their_rows_alone() {
        let mut window = window();
        let shape = Shape { width: 16, height: 3, depth: 1 };
        let stream = StreamId::LEGACY;
        let (dst, src) = (device(0x3000_0000_0000), pinned(BASE + 4096, 64));
        let copy = Command::Copy { stream, dst, src, shape: shape.clone() };
        let touched = window.touched(&copy, &|_| None).unwrap();
        let runs: Vec<_> = touched.reads[0].runs().collect();
        assert_eq!(runs, [0, 64, 128].map(|offset| (BASE + 4096 + offset, 16)));
        assert!(!touched.may_write());
        // A pinned address counts however it is named.
        let (dst, src) = (device(BASE + 64), device(0x3000_0000_0000));
        let copy = Command::CopySync { stream, dst, src, shape: Shape { height: 1, ..shape } };
        assert_eq!(window.touched(&copy, &|_| None).unwrap().writes, [Rows::linear(BASE + 64, 16)]);
        // What does not lie in the window is the worker's to refuse.
        let far = pinned(BASE + (1 << 20) - 8, 0);
        let shape = Shape { width: 16, height: 1, depth: 1 };
        let copy = Command::Copy { stream, dst: device(0), src: far, shape };
        assert!(window.touched(&copy, &|_| None).unwrap().is_empty());
        let huge = Shape { width: u64::MAX, height: u64::MAX, depth: u64::MAX };
        let copy = Command::Copy { stream, dst: device(0), src: pinned(BASE, 8), shape: huge };
        assert!(window.touched(&copy, &|_| None).unwrap().is_empty());
    }

    #[test]
    fn a_kernel_is_given_the_allocations_that_its_parameters_point_into() {
        let mut window = window();
        let mut params = Vec::new();
        for word in [7, BASE + 4096 + 100, BASE + 4096, BASE + 4096 + 8192, 0x3000_0000_0000] {
            params.extend_from_slice(&u64::to_le_bytes(word));
        }
        let stream = StreamId { index: 4, generation: 1 };
        let command = Command::Launch { stream, launch: kernel(&params) };
        let whole = [Rows::linear(BASE + 4096, 8192)];
        assert_eq!(window.touched(&command, &|_| None).unwrap().given, whole);
        let mut counts = Counts::default();
        let (until, _) = pending(&mut window, &mut counts, &command, &|_| None).unwrap().unwrap();
        assert_eq!(until, Until { word: 4, value: 1 });
        let freed = Command::PinnedRange { address: BASE + 4096, bytes: 8192, used: 0 };
        window.touched(&freed, &|_| None).unwrap();
        assert_eq!(pending(&mut window, &mut counts, &command, &|_| None), Ok(None));
    }

    #[test]
    fn what_a_worker_takes_for_no_allocation_is_none() {
        let mut window = Window::new(BASE, 1 << 20);
        let mut allocate = |address: u64, bytes: u64| {
            let range = Command::PinnedRange { address, bytes, used: 1 };
            window.touched(&range, &|_| None).unwrap();
            window.allocations.len()
        };
        assert_eq!(allocate(BASE + PAGE, 2 * PAGE), 1);
        // Not whole pages, overlapping, empty, or outside: as many as there are bytes else.
        for (at, bytes) in
            [(1, PAGE), (0, 1), (0, 2 * PAGE), (2 * PAGE, PAGE), (PAGE, PAGE), (4 * PAGE, 0)]
        {
            assert_eq!(allocate(BASE + at, bytes), 1, "{at} {bytes}");
        }
        assert_eq!(allocate(BASE - PAGE, PAGE), 1);
        assert_eq!(allocate(BASE + (1 << 20) - PAGE, 2 * PAGE), 1);
        assert_eq!(allocate(!0 - PAGE + 1, PAGE), 1);
        assert_eq!(allocate(BASE, PAGE) + allocate(BASE + 3 * PAGE, PAGE), 2 + 3);
    }

    #[test]
    fn allocations_are_bounded() {
        let most = ALLOCATIONS_MAX as u64;
        let mut window = Window::new(BASE, (most + 1) * PAGE);
        let mut allocate = |number: u64| {
            let address = BASE + number * PAGE;
            window.touched(&Command::PinnedRange { address, bytes: PAGE, used: 1 }, &|_| None)
        };
        for number in 0..most {
            allocate(number).unwrap();
        }
        assert_eq!(allocate(most), Err(Unrelayed::Allocations));
    }

    #[test]
    fn what_is_looked_up_for_a_command_is_bounded() {
        let mut window = window();
        let stream = StreamId { index: 4, generation: 1 };
        let word = (BASE + PAGE).to_le_bytes();
        let most = usize::try_from(PARAM_BYTES_MAX).unwrap();
        for (bytes, is_looked_up) in [(most, true), (most + 8, false)] {
            let params = word.repeat(bytes / 8);
            let command = Command::Launch { stream, launch: kernel(&params) };
            let given = window.touched(&command, &|_| None).unwrap().given;
            assert_eq!(given.len(), usize::from(is_looked_up), "one allocation, named often");
        }
    }

    #[test]
    fn streams_without_a_progress_word_use_no_pinned_memory() {
        let mut window = window();
        let mut counts = Counts::default();
        let stream = |index| StreamId { index, generation: 1 };
        let last = STREAM_WORDS - 1;
        assert_eq!(counts.count(stream(last)), Ok(Until { word: last, value: 1 }));
        assert_eq!(counts.count(stream(STREAM_WORDS)), Err(Unrelayed::Stream));
        assert!(Unrelayed::Stream.to_string().contains("first 1024 streams"));
        // There they are refused what they have to wait for, and nothing else.
        let shape = Shape { width: 8, height: 1, depth: 1 };
        for (src, touches) in [(pinned(BASE, 0), true), (device(2), false)] {
            let stream = stream(STREAM_WORDS);
            let copy = Command::Copy { stream, dst: device(1), src, shape: shape.clone() };
            let expected = if touches { Err(Unrelayed::Stream) } else { Ok(None) };
            assert_eq!(pending(&mut window, &mut counts, &copy, &|_| None), expected);
        }
    }

    #[test]
    fn a_graph_touches_what_its_nodes_do() {
        let mut window = window();
        let shape = Shape { width: 8, height: 1, depth: 1 };
        let copy = GraphWork::Copy { dst: device(1), src: pinned(BASE, 0), shape };
        let nodes = vec![GraphNode { after: vec![], work: copy }];
        let bytes = weft_wire::codec::encode_to_vec(&nodes, 4096).unwrap();
        let graph = GraphExecId { index: 1, generation: 1 };
        let block = Block { offset: 0, bytes: bytes.len() as u64, release: 0 };
        let context = weft_wire::id::ContextId { index: 0, generation: 0 };
        let made = Command::GraphInstantiate { context, graph, nodes: block.clone() };
        window.touched(&made, &|_| Some(bytes.clone())).unwrap();
        let launch = Command::GraphLaunch { graph, stream: StreamId::LEGACY };
        assert_eq!(window.touched(&launch, &|_| None).unwrap().reads, [Rows::linear(BASE, 8)]);
        window.touched(&Command::GraphDestroy { graph }, &|_| None).unwrap();
        assert!(window.touched(&launch, &|_| None).unwrap().is_empty());
    }

    #[test]
    fn a_graph_touches_what_its_nodes_are_changed_to() {
        let mut window = window();
        let node = |work| GraphNode { after: vec![], work };
        let nodes = vec![node(GraphWork::Empty), node(GraphWork::Empty)];
        let bytes = weft_wire::codec::encode_to_vec(&nodes, 4096).unwrap();
        let block = |bytes: &[u8]| Block { offset: 0, bytes: bytes.len() as u64, release: 0 };
        let graph = GraphExecId { index: 1, generation: 1 };
        let context = weft_wire::id::ContextId { index: 0, generation: 0 };
        let made = Command::GraphInstantiate { context, graph, nodes: block(&bytes) };
        window.touched(&made, &|_| Some(bytes.clone())).unwrap();
        let launch = Command::GraphLaunch { graph, stream: StreamId::LEGACY };
        assert!(window.touched(&launch, &|_| None).unwrap().is_empty());
        // One becomes a fill, and then the same fill elsewhere.
        for address in [BASE + 8, BASE + 64] {
            let fill = fill(address);
            let changed = node(GraphWork::Fill(fill));
            let bytes = weft_wire::codec::encode_to_vec(&changed, 4096).unwrap();
            let set = Command::GraphSetNode { graph, node: 0, node_bytes: block(&bytes) };
            window.touched(&set, &|_| Some(bytes.clone())).unwrap();
            let touched = window.touched(&launch, &|_| None).unwrap();
            assert_eq!(touched.writes, [Rows::linear(address, 24)]);
        }
        // The other one becomes a kernel that is given the allocation.
        let params = (BASE + 4096 + 16).to_le_bytes();
        let set = Command::GraphSetKernel { graph, node: 1, launch: kernel(&params) };
        window.touched(&set, &|_| None).unwrap();
        let touched = window.touched(&launch, &|_| None).unwrap();
        assert_eq!(touched.given, [Rows::linear(BASE + 4096, 8192)]);
        assert_eq!(window.graph_rows, 3);
    }

    #[test]
    fn fills_and_written_words_are_writes() {
        let mut window = window();
        let stream = StreamId::LEGACY;
        let mut writes = |command| window.touched(&command, &|_| None).unwrap().writes;
        let filled = writes(Command::Fill { stream, fill: fill(BASE + 8) });
        assert_eq!(filled, [Rows::linear(BASE + 8, 24)]);
        for (wide, bytes) in [(false, 4), (true, 8)] {
            let (address, value) = (BASE + 32, 7);
            let write = Command::StreamWriteValue { stream, address, value, wide };
            assert_eq!(writes(write), [Rows::linear(address, bytes)]);
            let write = Command::StreamWriteValue { stream, address: 4096, value, wide };
            assert_eq!(writes(write), []);
        }
        assert_eq!(writes(Command::Fill { stream, fill: fill(4096) }), []);
    }

    /// Six elements of four bytes.
    fn fill(address: u64) -> weft_wire::command::FillSpec {
        let (pitch, width, height, element, value) = (0, 6, 1, 4, 9);
        weft_wire::command::FillSpec { address, pitch, width, height, element, value }
    }

    /// A launch with these parameters.
    fn kernel(params: &[u8]) -> LaunchSpec<'_> {
        LaunchSpec {
            module: weft_wire::id::ModuleId { index: 0, generation: 0 },
            function: 0,
            grid: [1; 3],
            block: [1; 3],
            shared_bytes: 0,
            params: Payload::Inline(params),
        }
    }

    /// A graph of so many copies from pinned memory, after as many nodes that do nothing.
    fn graph(index: u32, copies: usize) -> (Command<'static>, Vec<u8>) {
        let shape = Shape { width: 8, height: 1, depth: 1 };
        let node = |work| GraphNode { after: vec![], work };
        let copy =
            || GraphWork::Copy { dst: device(1), src: pinned(BASE, 0), shape: shape.clone() };
        let mut nodes: Vec<_> = (0..copies).map(|_| node(GraphWork::Empty)).collect();
        nodes.extend((0..copies).map(|_| node(copy())));
        let bytes = weft_wire::codec::encode_to_vec(&nodes, LIST_BYTES_MAX).unwrap();
        let block = Block { offset: 0, bytes: bytes.len() as u64, release: 0 };
        let context = weft_wire::id::ContextId { index: 0, generation: 0 };
        let graph = GraphExecId { index, generation: 1 };
        (Command::GraphInstantiate { context, graph, nodes: block }, bytes)
    }

    #[test]
    fn what_is_kept_of_graphs_is_bounded() {
        let mut window = window();
        let (made, bytes) = graph(1, GRAPH_ROWS_MAX / 4);
        for _ in 0..5 {
            // The same again takes the place of what was there.
            window.touched(&made, &|_| Some(bytes.clone())).unwrap();
            assert_eq!(window.graph_rows, GRAPH_ROWS_MAX / 4 + 1);
        }
        let (more, bytes) = graph(2, GRAPH_ROWS_MAX / 2);
        window.touched(&more, &|_| Some(bytes.clone())).unwrap();
        let (beyond, bytes) = graph(3, GRAPH_ROWS_MAX / 4 + 1);
        let refused = window.touched(&beyond, &|_| Some(bytes.clone()));
        assert_eq!(refused, Err(Unrelayed::Graphs));
        for index in 1..4 {
            let graph = GraphExecId { index, generation: 1 };
            window.touched(&Command::GraphDestroy { graph }, &|_| None).unwrap();
        }
        assert_eq!((window.graph_rows, window.graphs.len()), (0, 0));
        // Nodes that touch nothing are not kept, and lists that a worker refuses are not read.
        let (empty, bytes) = graph(4, 0);
        window.touched(&empty, &|_| Some(bytes.clone())).unwrap();
        assert_eq!(window.graph_rows, 1);
        let Command::GraphInstantiate { context, graph, nodes } = empty else { unreachable!() };
        let nodes = Block { bytes: LIST_BYTES_MAX as u64 + 1, ..nodes };
        let huge = Command::GraphInstantiate { context, graph, nodes };
        window.touched(&huge, &|_| panic!("it is read")).unwrap();
    }
}
