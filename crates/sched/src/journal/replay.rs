//! Holding the core against a journal.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::{MAGIC, PoolDifference, VERSION, frame};
use crate::action::{Action, Actions};
use crate::codec::{Codec, Malformed, Reader};
use crate::event::Event;
use crate::node::Node;

/// What became of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The core refused it.
    Refused,
    /// The actions that it caused.
    Done(Vec<Action>),
}

/// One record of a journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its number; the first is 0.
    pub number: u64,
    /// The driver's clock.
    pub now_ns: u64,
    /// What happened.
    pub event: Event,
    /// What became of it.
    pub outcome: Outcome,
}

/// The first record that the core answers otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The record, with the outcome that was expected.
    pub record: Record,
    /// What the core does now.
    pub got: Outcome,
}

/// Why a replay ended early.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// The bytes do not begin like a journal.
    #[error("this is no journal")]
    NoJournal,
    /// A journal of another version of the format.
    #[error("the journal has version {0}, this program reads version {VERSION}")]
    Version(u16),
    /// The state at the beginning is damaged.
    #[error("the state at the beginning is damaged")]
    Damaged,
    /// A record is damaged.
    #[error("record {0} is damaged: its checksum is another")]
    DamagedRecord(u64),
    /// A part cannot be read.
    #[error("record {record} cannot be read: {source}")]
    Malformed {
        /// The record; 0 for the state at the beginning too.
        record: u64,
        /// What is wrong.
        source: Malformed,
    },
    /// The core does something else.
    #[error(
        "record {} at {} ns, {:?}: expected {:?}, got {:?}",
        .0.record.number, .0.record.now_ns, .0.record.event, .0.record.outcome, .0.got
    )]
    Differs(Box<Difference>),
    /// The pool does something else.
    #[error(
        "record {} at {} ns, {:?}: expected {:?}, got {:?}",
        .0.record.number, .0.record.now_ns, .0.record.event, .0.record.actions, .0.got
    )]
    PoolDiffers(Box<PoolDifference>),
}

/// What a replay without a difference went through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Events.
    pub records: u64,
    /// Actions.
    pub actions: u64,
    /// Grants, changed budgets included.
    pub grants: u64,
    /// The file was cut within a record, which was left out.
    pub cut: bool,
}

/// A core that goes through a journal.
#[derive(Debug)]
pub struct Replay<'a> {
    node: Node,
    input: frame::RecordReader<'a>,
    now_ns: u64,
    actions: Actions,
    summary: Summary,
}

impl<'a> Replay<'a> {
    /// Reads the header of a journal: a core in the state at its beginning.
    pub fn new(journal: &'a [u8]) -> Result<Self, ReplayError> {
        let (state, input) = frame::open(MAGIC, journal)?;
        let malformed = |source| ReplayError::Malformed { record: 0, source };
        let node = Node::take(&mut Reader::new(state)).map_err(malformed)?;
        let now_ns = node.now_ns;
        Ok(Self { node, input, now_ns, actions: Actions::new(), summary: Summary::default() })
    }

    /// Feeds the core with the next record and compares; `None` at the end.
    pub fn step(&mut self) -> Result<Option<Record>, ReplayError> {
        let Some(record) = self.read()? else { return Ok(None) };
        self.actions.clear();
        let result = self.node.handle(record.now_ns, record.event, &mut self.actions);
        let same = match &record.outcome {
            Outcome::Refused => result.is_err(),
            Outcome::Done(expected) => result.is_ok() && expected == self.actions.as_slice(),
        };
        if !same {
            let done = || Outcome::Done(self.actions.as_slice().to_vec());
            let got = result.map_or(Outcome::Refused, |()| done());
            return Err(ReplayError::Differs(Box::new(Difference { record, got })));
        }
        let grants = |action: &&Action| matches!(action, Action::Grant { .. });
        self.summary.records += 1;
        self.summary.actions += self.actions.as_slice().len() as u64;
        self.summary.grants += self.actions.as_slice().iter().filter(grants).count() as u64;
        Ok(Some(record))
    }

    /// Goes through all of it.
    pub fn run(mut self) -> Result<Summary, ReplayError> {
        while self.step()?.is_some() {}
        Ok(self.summary)
    }

    /// How far it came.
    pub fn summary(&self) -> Summary {
        self.summary
    }

    /// The core as it is now.
    pub fn node(&self) -> &Node {
        &self.node
    }

    fn read(&mut self) -> Result<Option<Record>, ReplayError> {
        let number = self.summary.records;
        let Some((elapsed_ns, event, actions)) = self.input.next(number, &mut self.summary.cut)?
        else {
            return Ok(None);
        };
        self.now_ns = self.now_ns.wrapping_add_signed(elapsed_ns);
        let outcome = actions.map_or(Outcome::Refused, Outcome::Done);
        Ok(Some(Record { number, now_ns: self.now_ns, event, outcome }))
    }
}
