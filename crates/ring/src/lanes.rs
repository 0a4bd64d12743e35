//! All lanes of a session in the order of their tickets.

use crate::lane::{AnswerTo, Consumer, Front, MAX_COMMAND, Violation};
use crate::sync::{AtomicU32, Ordering};
use crate::{cells::Cell, wait::WakeFlag};

/// A command as the worker gets it: its bytes are a private copy.
#[derive(Debug)]
pub struct Record<'a> {
    /// The lane that it came through.
    pub lane: usize,
    /// Its place in the session's order.
    pub ticket: u64,
    /// Where to answer, for a synchronous call.
    pub answer: Option<AnswerTo>,
    /// The command.
    pub bytes: &'a [u8],
}

/// The consuming side of every lane of a session.
#[derive(Debug)]
pub(crate) struct Lanes {
    lanes: Vec<Lane>,
    /// Written by the client: lanes below this were ever used.
    used: Cell<AtomicU32>,
    buffer: Box<[u8; MAX_COMMAND]>,
}

#[derive(Debug)]
struct Lane {
    consumer: Consumer,
    front: Option<Front>,
    room: WakeFlag,
}

impl Lanes {
    pub(crate) fn new(
        lanes: impl IntoIterator<Item = (Consumer, WakeFlag)>,
        used: Cell<AtomicU32>,
    ) -> Self {
        let lanes = lanes
            .into_iter()
            .map(|(consumer, room)| Lane { consumer, front: None, room })
            .collect();
        Self { lanes, used, buffer: Box::new([0; MAX_COMMAND]) }
    }

    /// Whether any lane has a record.
    #[cfg(not(loom))]
    pub(crate) fn has_record(&self) -> bool {
        let used = self.used();
        self.lanes[..used].iter().any(|lane| lane.front.is_some() || lane.consumer.has_published())
    }

    /// The record with the smallest published ticket.
    ///
    /// A record found in a later lane may have a predecessor in an earlier lane that was looked at
    /// before it was published. So the lanes without a known front are looked at again until a
    /// whole pass changes nothing: acquiring a record makes visible whatever was submitted before
    /// it. A ticket that was drawn but not published is not waited for: its call has not returned.
    pub(crate) fn next(&mut self) -> Result<Option<Record<'_>>, Violation> {
        let Some(lane) = self.first()? else {
            return Ok(None);
        };
        let chosen = &mut self.lanes[lane];
        let Some(front) = chosen.front.take() else {
            return Ok(None);
        };
        if chosen.consumer.take(&front, &mut self.buffer) {
            chosen.room.wake();
        }
        let Front { ticket, answer, len } = front;
        Ok(Some(Record { lane, ticket, answer, bytes: &self.buffer[..len] }))
    }

    fn first(&mut self) -> Result<Option<usize>, Violation> {
        let mut first: Option<(u64, usize)> = None;
        loop {
            let before = first;
            let used = self.used();
            for (i, lane) in self.lanes[..used].iter_mut().enumerate() {
                if lane.front.is_none() {
                    lane.front = lane.consumer.peek()?;
                }
                if let Some(front) = &lane.front
                    && first.is_none_or(|smallest| (front.ticket, i) < smallest)
                {
                    first = Some((front.ticket, i));
                }
            }
            // A single lane is in order by itself.
            if first == before || used == 1 {
                return Ok(first.map(|(_, lane)| lane));
            }
        }
    }

    /// The client's word, bounded by what exists; a lie hides only the client's own commands.
    fn used(&self) -> usize {
        let used = usize::try_from(self.used.load(Ordering::Acquire)).unwrap_or(usize::MAX);
        used.min(self.lanes.len())
    }
}
