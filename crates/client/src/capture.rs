//! Stream capture: a local shadow that collects a stream's work into a graph.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;

use weft_wire::Status;

use crate::client::{Client, lock};
use crate::context::check_range;
use crate::current;
use crate::event::{EventState, EventWork};
use crate::graph::{GraphState, Work};
use crate::handle::{Context, Graph, GraphNode, Stream};
use crate::stream::StreamState;

/// `CU_STREAM_CAPTURE_MODE_RELAXED`: another thread may end the capture too.
const RELAXED: i32 = 2;

/// One capture, from begin to end.
#[derive(Debug)]
pub(crate) struct Capture {
    id: u64,
    graph: Arc<GraphState>,
    /// Whether the application made the graph and keeps it when the capture fails.
    own_graph: bool,
    mode: i32,
    thread: ThreadId,
    origin: Stream,
    context: Context,
    /// Whether the origin orders itself with the legacy stream.
    blocking: bool,
    valid: AtomicBool,
    /// Every stream that took part.
    streams: Mutex<Vec<Stream>>,
}

/// A stream's part in a capture: what its next node waits for.
#[derive(Debug, Clone)]
pub(crate) struct StreamCapture {
    capture: Arc<Capture>,
    after: BTreeSet<u32>,
}

impl StreamCapture {
    pub(crate) fn invalidate(&self) {
        self.capture.valid.store(false, Ordering::Release);
    }
}

/// A point of a capture that an event stands for.
#[derive(Debug, Clone)]
pub(crate) struct CapturedPoint {
    capture: Arc<Capture>,
    after: BTreeSet<u32>,
}

/// The captures in progress.
#[derive(Debug, Default)]
pub(crate) struct Captures {
    /// Those that a blocking stream began: the legacy stream would wait for them.
    blocking: AtomicU32,
    active: Mutex<Vec<Arc<Capture>>>,
}

impl Captures {
    /// A context's legacy stream must not be used while a blocking stream of it captures.
    #[inline]
    pub(crate) fn refuse_legacy(&self, context: Context) -> Result<(), Status> {
        if self.blocking.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        let active = lock(&self.active);
        let is_met = |capture: &&Arc<Capture>| capture.blocking && capture.context == context;
        let mut met = active.iter().filter(is_met).peekable();
        if met.peek().is_none() {
            return Ok(());
        }
        met.for_each(|capture| capture.valid.store(false, Ordering::Release));
        Err(Status::STREAM_CAPTURE_IMPLICIT)
    }
}

/// What a stream's capture is at, for `cuStreamGetCaptureInfo`.
#[derive(Debug, Clone)]
pub struct CaptureInfo {
    /// Whether the capture was invalidated.
    pub invalidated: bool,
    /// A number that no other capture of the session has.
    pub id: u64,
    /// The graph so far.
    pub graph: Graph,
    /// What the stream's next node will wait for.
    pub dependencies: Vec<GraphNode>,
}

impl Client {
    /// Begins to capture a stream, into a new graph or behind nodes of `into`.
    ///
    /// # Errors
    /// `STREAM_CAPTURE_UNSUPPORTED` for the legacy stream, `ILLEGAL_STATE` when it captures
    /// already, `INVALID_VALUE` for an unknown mode.
    pub fn capture_begin(
        &self,
        stream: Stream,
        into: Option<(Graph, &[GraphNode])>,
        mode: i32,
    ) -> Result<(), Status> {
        check_range(mode, 0..=2)?;
        if matches!(stream, Stream::NULL | Stream::LEGACY) {
            return Err(Status::STREAM_CAPTURE_UNSUPPORTED);
        }
        let stream = self.stream(stream)?;
        let mut part = lock(&stream.capture);
        if part.is_some() {
            return Err(Status::ILLEGAL_STATE);
        }
        let (graph, after) = match into {
            Some((graph, after)) => {
                let graph = self.graph(graph)?;
                let after = self.node_indices(&graph, after)?;
                (graph, after)
            }
            None => (self.new_graph(Default::default())?, BTreeSet::new()),
        };
        let capture = Arc::new(Capture {
            id: self.number(),
            graph,
            own_graph: into.is_some(),
            mode,
            thread: std::thread::current().id(),
            origin: stream.handle,
            context: stream.context,
            blocking: stream.is_blocking(),
            valid: AtomicBool::new(true),
            streams: Mutex::new(vec![stream.handle]),
        });
        lock(&self.captures.active).push(Arc::clone(&capture));
        if capture.blocking {
            self.captures.blocking.fetch_add(1, Ordering::AcqRel);
        }
        *part = Some(StreamCapture { capture, after });
        stream.set_capturing(true);
        Ok(())
    }

    fn node_indices(
        &self,
        graph: &GraphState,
        wanted: &[GraphNode],
    ) -> Result<BTreeSet<u32>, Status> {
        let nodes = lock(&graph.nodes);
        let index = |node: &GraphNode| {
            let found = nodes.iter().find(|(_, known)| known.handle == *node);
            found.map(|(index, _)| *index).ok_or(Status::INVALID_VALUE)
        };
        wanted.iter().map(index).collect()
    }

    /// Ends a capture and returns its graph.
    ///
    /// # Errors
    /// `ILLEGAL_STATE` when the stream does not capture; `STREAM_CAPTURE_UNMATCHED`,
    /// `_WRONG_THREAD`, `_UNJOINED` or `_INVALIDATED`, which end the capture without a graph.
    pub fn capture_end(&self, stream: Stream) -> Result<Graph, Status> {
        let stream = self.stream(stream)?;
        let part = lock(&stream.capture).clone().ok_or(Status::ILLEGAL_STATE)?;
        let capture = &part.capture;
        if capture.origin != stream.handle {
            part.invalidate();
            return Err(Status::STREAM_CAPTURE_UNMATCHED);
        }
        if capture.mode != RELAXED && capture.thread != std::thread::current().id() {
            return Err(Status::STREAM_CAPTURE_WRONG_THREAD);
        }
        let outcome = self.check_capture(&part);
        self.leave_capture(capture);
        if outcome.is_err() && !capture.own_graph {
            self.graph_destroy(capture.graph.handle)?;
        }
        outcome.map(|()| capture.graph.handle)
    }

    fn check_capture(&self, part: &StreamCapture) -> Result<(), Status> {
        if !part.capture.valid.load(Ordering::Acquire) {
            return Err(Status::STREAM_CAPTURE_INVALIDATED);
        }
        let streams = lock(&part.capture.streams).clone();
        let mut ends = BTreeSet::new();
        for stream in streams.iter().filter(|stream| **stream != part.capture.origin) {
            if let Some(stream) = self.streams.get(*stream)
                && let Some(other) = lock(&stream.capture).as_ref()
            {
                ends.extend(other.after.iter().copied());
            }
        }
        // Work of another stream is joined when something else, or the origin's end, waits for it.
        let nodes = lock(&part.capture.graph.nodes);
        let awaited = |end: &u32| {
            part.after.contains(end) || nodes.values().any(|node| node.after.contains(end))
        };
        if ends.iter().all(awaited) { Ok(()) } else { Err(Status::STREAM_CAPTURE_UNJOINED) }
    }

    fn leave_capture(&self, capture: &Arc<Capture>) {
        for stream in lock(&capture.streams).iter() {
            if let Some(stream) = self.streams.get(*stream) {
                *lock(&stream.capture) = None;
                stream.set_capturing(false);
            }
        }
        let mut active = lock(&self.captures.active);
        let before = active.len();
        active.retain(|other| !Arc::ptr_eq(other, capture));
        if active.len() < before && capture.blocking {
            self.captures.blocking.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// What the stream captures, if it does.
    ///
    /// # Errors
    /// `INVALID_HANDLE`, `STREAM_CAPTURE_IMPLICIT` for the legacy stream beside a blocking capture.
    pub fn capture_info(&self, stream: Stream) -> Result<Option<CaptureInfo>, Status> {
        let stream = self.stream(stream)?;
        let part = lock(&stream.capture).clone();
        Ok(part.map(|part| {
            let nodes = lock(&part.capture.graph.nodes);
            let dependencies = part.after.iter().filter_map(|index| nodes.get(index));
            CaptureInfo {
                invalidated: !part.capture.valid.load(Ordering::Acquire),
                id: part.capture.id,
                graph: part.capture.graph.handle,
                dependencies: dependencies.map(|node| node.handle).collect(),
            }
        }))
    }

    /// Adds to, or replaces, what the stream's next node waits for.
    ///
    /// # Errors
    /// `ILLEGAL_STATE` when the stream does not capture, `INVALID_VALUE` for foreign nodes.
    pub fn capture_update_dependencies(
        &self,
        stream: Stream,
        nodes: &[GraphNode],
        replace: bool,
    ) -> Result<(), Status> {
        let stream = self.stream(stream)?;
        let mut part = lock(&stream.capture);
        let part = part.as_mut().ok_or(Status::ILLEGAL_STATE)?;
        let wanted = self.node_indices(&part.capture.graph, nodes)?;
        if replace {
            part.after.clear();
        }
        part.after.extend(wanted);
        Ok(())
    }

    /// Exchanges the calling thread's capture mode and returns the one before.
    ///
    /// # Errors
    /// `INVALID_VALUE`.
    pub fn capture_exchange_mode(&self, mode: i32) -> Result<i32, Status> {
        check_range(mode, 0..=2)?;
        let mode = u8::try_from(mode).map_err(|_| Status::INVALID_VALUE)?;
        Ok(i32::from(current::exchange_capture_mode(mode)))
    }

    /// Takes work into the stream's capture. Only for streams that capture.
    pub(crate) fn capture_work(&self, stream: &StreamState, work: Work) -> Result<(), Status> {
        let mut part = lock(&stream.capture);
        let part = part.as_mut().ok_or(Status::ILLEGAL_STATE)?;
        if !part.capture.valid.load(Ordering::Acquire) {
            return Err(Status::STREAM_CAPTURE_INVALIDATED);
        }
        let after = part.after.clone();
        let (index, _) = self.add_node(&part.capture.graph, after, work)?;
        part.after = BTreeSet::from([index]);
        Ok(())
    }

    /// Notes the captured point that an event was recorded at.
    pub(crate) fn capture_record(
        &self,
        stream: &StreamState,
        event: &EventState,
    ) -> Result<EventWork, Status> {
        if !stream.is_capturing() {
            return Ok(EventWork::Live);
        }
        let Some(part) = lock(&stream.capture).clone() else {
            return Ok(EventWork::Live);
        };
        *lock(&event.captured) = Some(CapturedPoint { capture: part.capture, after: part.after });
        Ok(EventWork::Captured)
    }

    /// Joins a stream into the capture of the event that it waits for.
    pub(crate) fn capture_wait(
        &self,
        stream: &StreamState,
        event: &EventState,
    ) -> Result<EventWork, Status> {
        let point = lock(&event.captured).clone();
        let mut part = lock(&stream.capture);
        match (point, part.as_mut()) {
            (None, None) => Ok(EventWork::Live),
            (None, Some(own)) => {
                own.invalidate();
                Err(Status::STREAM_CAPTURE_ISOLATION)
            }
            (Some(point), Some(own)) if Arc::ptr_eq(&point.capture, &own.capture) => {
                own.after.extend(point.after);
                Ok(EventWork::Captured)
            }
            (Some(point), Some(own)) => {
                own.invalidate();
                point.capture.valid.store(false, Ordering::Release);
                Err(Status::STREAM_CAPTURE_MERGE)
            }
            // The event stands for a point of a capture that is over.
            (Some(point), None)
                if !lock(&self.captures.active)
                    .iter()
                    .any(|active| Arc::ptr_eq(active, &point.capture)) =>
            {
                Err(Status::CAPTURED_EVENT)
            }
            (Some(_), None) if stream.handle == Stream::LEGACY => {
                Err(Status::STREAM_CAPTURE_IMPLICIT)
            }
            (Some(point), None) => {
                lock(&point.capture.streams).push(stream.handle);
                *part = Some(StreamCapture { capture: point.capture, after: point.after });
                stream.set_capturing(true);
                Ok(EventWork::Captured)
            }
        }
    }

    /// An event that stands for a point of a running capture cannot be waited for or asked.
    pub(crate) fn refuse_captured(&self, event: &EventState) -> Result<(), Status> {
        let captured = lock(&event.captured);
        if let Some(point) = captured.as_ref() {
            point.capture.valid.store(false, Ordering::Release);
            return Err(Status::CAPTURED_EVENT);
        }
        Ok(())
    }

    /// A context must not be synchronised while one of its streams captures.
    pub(crate) fn refuse_while_capturing(&self, context: Context) -> Result<(), Status> {
        let active = lock(&self.captures.active);
        let mut own = active.iter().filter(|capture| capture.context == context).peekable();
        if own.peek().is_none() {
            return Ok(());
        }
        own.for_each(|capture| capture.valid.store(false, Ordering::Release));
        Err(Status::STREAM_CAPTURE_UNSUPPORTED)
    }
}
