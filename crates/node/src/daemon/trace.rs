//! Who held the device when: a bounded record.
//!
//! The thread that hands the device out notes turns; whoever asks takes over what was noted since
//! the last time, so that no answer has that thread copy what it has told before.

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

/// Turns that ended, the newest of them.
#[derive(Debug, Default)]
struct Ended {
    spans: VecDeque<Span>,
    dropped: u64,
}

impl Ended {
    fn push(&mut self, span: Span) {
        if self.spans.len() == SPANS_MAX {
            self.spans.pop_front();
            self.dropped += 1;
        }
        self.spans.push_back(span);
    }
}

/// What was noted since it was last taken over.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    ended: Ended,
    /// Turns that go on, by session.
    open: BTreeMap<u32, Span>,
}

/// What is taken over.
#[derive(Debug)]
pub(crate) struct News {
    ended: Ended,
    open: Vec<Span>,
}

impl Trace {
    /// A session got the device.
    pub(crate) fn begin(&mut self, device: u32, vgpu: u32, session: u32, start_ns: u64) {
        self.open.insert(session, Span { device, vgpu, start_ns, end_ns: None, used_ns: 0 });
    }

    /// It gave the device back.
    pub(crate) fn end(&mut self, session: u32, end_ns: u64, used_ns: u64) {
        let Some(span) = self.open.remove(&session) else { return };
        self.ended.push(Span { end_ns: Some(end_ns), used_ns, ..span });
    }

    /// Turns that have ended since the last time, and those that go on.
    pub(crate) fn take(&mut self) -> News {
        let open = self.open.values().copied().collect();
        News { ended: std::mem::take(&mut self.ended), open }
    }
}

/// All that is kept.
#[derive(Debug, Default)]
pub(crate) struct Archive(Ended);

impl Archive {
    /// Turns that end or go on at or after `since_ns`, by start, and how many older ones are gone.
    pub(crate) fn since(&mut self, news: News, since_ns: u64) -> (Vec<Span>, u64) {
        self.0.dropped += news.ended.dropped;
        news.ended.spans.into_iter().for_each(|span| self.0.push(span));
        let ended = self.0.spans.iter().filter(|span| span.end_ns >= Some(since_ns));
        let mut spans: Vec<Span> = ended.chain(&news.open).copied().collect();
        spans.sort_by_key(|span| span.start_ns);
        (spans, self.0.dropped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_come_in_order_with_the_one_that_goes_on() {
        let (mut trace, mut archive) = (Trace::default(), Archive::default());
        trace.begin(0, 1, 10, 100);
        trace.end(10, 200, 90);
        trace.begin(1, 2, 20, 200);
        trace.end(99, 250, 0);
        let (spans, dropped) = archive.since(trace.take(), 0);
        assert_eq!(spans.len(), 2);
        assert_eq!((spans[0].vgpu, spans[0].end_ns, spans[0].used_ns), (1, Some(200), 90));
        assert_eq!((spans[1].device, spans[1].vgpu, spans[1].end_ns), (1, 2, None));
        assert_eq!(dropped, 0);
        assert_eq!(archive.since(trace.take(), 201).0.len(), 1);
        // What was taken over is there the next time, too, once.
        trace.end(20, 300, 80);
        let (again, _) = archive.since(trace.take(), 0);
        assert_eq!(
            again.iter().map(|span| span.end_ns).collect::<Vec<_>>(),
            [Some(200), Some(300)]
        );
    }

    #[test]
    fn the_record_is_bounded() {
        let turns = |trace: &mut Trace, from: u64, to: u64| {
            for at in from..to {
                trace.begin(0, 1, 1, at);
                trace.end(1, at, 0);
            }
        };
        let (mut trace, mut archive) = (Trace::default(), Archive::default());
        turns(&mut trace, 0, SPANS_MAX as u64 + 5);
        let (spans, dropped) = archive.since(trace.take(), 0);
        assert_eq!((spans.len(), dropped), (SPANS_MAX, 5));
        turns(&mut trace, SPANS_MAX as u64 + 5, SPANS_MAX as u64 + 8);
        let (spans, dropped) = archive.since(trace.take(), 0);
        assert_eq!((spans.len(), dropped), (SPANS_MAX, 8));
        assert_eq!(spans[0].start_ns, 8);
    }
}
