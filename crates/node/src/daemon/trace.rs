//! Who held the device when: a bounded record.

use std::collections::{BTreeMap, VecDeque};

/// Turns kept: 6 ms each, more than ten minutes.
const SPANS_MAX: usize = 1 << 17;

/// One turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    /// The device's key.
    pub(crate) device: u32,
    /// vGPU's key.
    pub(crate) vgpu: u32,
    /// When it got the device.
    pub(crate) start_ns: u64,
    /// When it gave it back; absent while it holds it.
    pub(crate) end_ns: Option<u64>,
    /// Device time used in the turn.
    pub(crate) used_ns: u64,
}

/// The record.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    ended: VecDeque<Span>,
    /// Turns that go on, by session.
    open: BTreeMap<u32, Span>,
    dropped: u64,
}

impl Trace {
    /// A session got the device.
    pub(crate) fn begin(&mut self, device: u32, vgpu: u32, session: u32, start_ns: u64) {
        self.open.insert(session, Span { device, vgpu, start_ns, end_ns: None, used_ns: 0 });
    }

    /// It gave the device back.
    pub(crate) fn end(&mut self, session: u32, end_ns: u64, used_ns: u64) {
        let Some(span) = self.open.remove(&session) else { return };
        if self.ended.len() == SPANS_MAX {
            self.ended.pop_front();
            self.dropped += 1;
        }
        self.ended.push_back(Span { end_ns: Some(end_ns), used_ns, ..span });
    }

    /// Turns that end or go on at or after `since_ns`, by start, and how many older ones are gone.
    pub(crate) fn since(&self, since_ns: u64) -> (Vec<Span>, u64) {
        let ended = self.ended.iter().filter(|span| span.end_ns >= Some(since_ns));
        let mut spans: Vec<Span> = ended.chain(self.open.values()).copied().collect();
        spans.sort_by_key(|span| span.start_ns);
        (spans, self.dropped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_come_in_order_with_the_one_that_goes_on() {
        let mut trace = Trace::default();
        trace.begin(0, 1, 10, 100);
        trace.end(10, 200, 90);
        trace.begin(1, 2, 20, 200);
        trace.end(99, 250, 0);
        let (spans, dropped) = trace.since(0);
        assert_eq!(spans.len(), 2);
        assert_eq!((spans[0].vgpu, spans[0].end_ns, spans[0].used_ns), (1, Some(200), 90));
        assert_eq!((spans[1].device, spans[1].vgpu, spans[1].end_ns), (1, 2, None));
        assert_eq!(dropped, 0);
        assert_eq!(trace.since(201).0.len(), 1);
    }

    #[test]
    fn the_record_is_bounded() {
        let mut trace = Trace::default();
        for at in 0..SPANS_MAX as u64 + 5 {
            trace.begin(0, 1, 1, at);
            trace.end(1, at, 0);
        }
        assert_eq!(trace.since(0).0.len(), SPANS_MAX);
        assert_eq!(trace.since(0).1, 5);
    }
}
