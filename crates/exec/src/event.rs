//! Events: points of streams with a time.

use weft_wire::Status;
use weft_wire::id::{ContextId, EVENTS_MAX, EventId};
use weft_wire::progress;

use crate::stream::Point;

/// One slot of events. Record numbers go on over the slot's owners.
#[derive(Debug, Default)]
struct Slot {
    owner: Option<(u32, ContextId)>,
    /// Highest record accepted, and what it was when the present owner came.
    accepted: u64,
    before_owner: u64,
    /// Where the last accepted record lies.
    last: Option<Point>,
    /// Highest record completed, and when (device clock, ns).
    completed: u64,
    time_ns: u64,
    /// Waits by the record that they need.
    waits: Vec<(u64, u64)>,
}

/// All events of a session.
#[derive(Debug, Default)]
pub(crate) struct Events {
    slots: Vec<Option<Box<Slot>>>,
}

/// The slot of a new event is beyond the table or owned.
#[derive(Debug)]
pub(crate) struct SlotTaken;

/// A record has completed.
#[derive(Debug)]
pub(crate) struct Completed {
    pub(crate) word: Option<u32>,
    /// Waits that needed it.
    pub(crate) waits: Vec<u64>,
}

impl Events {
    pub(crate) fn create(&mut self, id: EventId, context: ContextId) -> Result<(), SlotTaken> {
        if id.index >= EVENTS_MAX {
            return Err(SlotTaken);
        }
        let at = usize::try_from(id.index).map_err(|_| SlotTaken)?;
        if at >= self.slots.len() {
            self.slots.resize_with(at + 1, || None);
        }
        let slot = self.slots.get_mut(at).ok_or(SlotTaken)?.get_or_insert_default();
        if slot.owner.is_some() {
            return Err(SlotTaken);
        }
        slot.owner = Some((id.generation, context));
        slot.before_owner = slot.accepted;
        slot.last = None;
        Ok(())
    }

    /// How many slots there are; they stay.
    pub(crate) fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Destroys the handle; its records go on.
    pub(crate) fn destroy(&mut self, id: EventId) -> Option<()> {
        self.owned_mut(id)?.1.owner = None;
        Some(())
    }

    pub(crate) fn destroy_of(&mut self, context: ContextId) {
        for slot in self.slots.iter_mut().flatten() {
            if slot.owner.is_some_and(|(_, owner)| owner == context) {
                slot.owner = None;
            }
        }
    }

    fn owned(&self, id: EventId) -> Option<&Slot> {
        let slot = self.slots.get(usize::try_from(id.index).ok()?)?.as_deref()?;
        slot.owner.filter(|(generation, _)| *generation == id.generation).map(|_| slot)
    }

    fn owned_mut(&mut self, id: EventId) -> Option<(usize, &mut Slot)> {
        let at = usize::try_from(id.index).ok()?;
        let slot = self.slots.get_mut(at)?.as_deref_mut()?;
        let owned = slot.owner.is_some_and(|(generation, _)| generation == id.generation);
        owned.then_some((at, slot))
    }

    pub(crate) fn is_live(&self, id: EventId) -> bool {
        self.owned(id).is_some()
    }

    /// Where the last record lies; `None` when there is none yet.
    pub(crate) fn last(&self, id: EventId) -> Result<Option<Point>, Status> {
        Ok(self.owned(id).ok_or(Status::INVALID_HANDLE)?.last)
    }

    /// Accepts record number `record` (the next one if `None`) at `point`. Returns slot and number.
    ///
    /// Threads that record one event at once may be overtaken on the way here: an older number then
    /// completes as usual but does not become the last record.
    pub(crate) fn accept(
        &mut self,
        id: EventId,
        record: Option<u64>,
        point: Point,
    ) -> Result<(usize, u64), Status> {
        let (at, slot) = self.owned_mut(id).ok_or(Status::INVALID_HANDLE)?;
        let record = record.unwrap_or_else(|| slot.accepted.saturating_add(1));
        if record > slot.accepted {
            slot.accepted = record;
            slot.last = Some(point);
        }
        Ok((at, record))
    }

    /// Completes a record of a slot at device time `now_ns`; `None` when a later one has completed
    /// already.
    pub(crate) fn complete(&mut self, at: usize, record: u64, now_ns: u64) -> Option<Completed> {
        let slot = self.slots.get_mut(at)?.as_deref_mut()?;
        if record <= slot.completed {
            return None;
        }
        slot.completed = record;
        slot.time_ns = now_ns;
        let mut waits = Vec::new();
        slot.waits.retain(|(needed, wait)| {
            let due = *needed <= record;
            if due {
                waits.push(*wait);
            }
            !due
        });
        let index = u32::try_from(at).ok()?;
        Some(Completed { word: progress::event_word(EventId { index, generation: 0 }), waits })
    }

    /// Whether a record has completed; a number not accepted yet means the last accepted one.
    pub(crate) fn is_complete(&self, id: EventId, record: u64) -> Result<bool, Status> {
        let slot = self.owned(id).ok_or(Status::INVALID_HANDLE)?;
        Ok(slot.completed >= record.min(slot.accepted))
    }

    /// Notes that `wait` needs the record.
    pub(crate) fn await_record(&mut self, id: EventId, record: u64, wait: u64) {
        if let Some((_, slot)) = self.owned_mut(id) {
            let needed = record.min(slot.accepted);
            slot.waits.push((needed, wait));
        }
    }

    /// Nanoseconds from the last record of `start` to that of `end`.
    pub(crate) fn elapsed_ns(&self, start: EventId, end: EventId) -> Result<i64, Status> {
        let time = |id| {
            let slot = self.owned(id).ok_or(Status::INVALID_HANDLE)?;
            if slot.accepted == slot.before_owner {
                return Err(Status::INVALID_HANDLE);
            }
            if slot.completed < slot.accepted {
                return Err(Status::NOT_READY);
            }
            Ok(slot.time_ns)
        };
        let (start, end) = (time(start)?, time(end)?);
        Ok(end.wrapping_sub(start).cast_signed())
    }

    /// Forgets all waits; they were answered otherwise.
    pub(crate) fn forget_waits(&mut self) {
        for slot in self.slots.iter_mut().flatten() {
            slot.waits.clear();
        }
    }
}
