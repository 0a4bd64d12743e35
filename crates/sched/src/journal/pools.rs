//! Journals of pools: every event that a pool was given and the actions that it caused.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::{ReplayError, Summary, frame};
use crate::codec::codec;
use crate::pool::{Pool, PoolAction, PoolError, PoolEvent};

const MAGIC: &[u8; 8] = b"WEFTPOOL";

/// Whether these bytes begin like a pool's journal.
pub fn is_of_pool(journal: &[u8]) -> bool {
    journal.starts_with(MAGIC)
}

/// Writes the journal of a pool. It only appends to the buffer that it is given.
#[derive(Clone, Debug)]
pub struct PoolWriter(frame::Records);

impl PoolWriter {
    /// Appends the header of a journal that begins with the state of `pool`.
    pub fn begin(pool: &Pool, out: &mut Vec<u8>) -> Self {
        Self(frame::begin(MAGIC, pool.now_ns(), pool.snapshot(), out))
    }

    /// Appends what [`Pool::handle`] was given and what it gave: its result, and the actions of
    /// this event alone.
    pub fn record(
        &mut self,
        now_ns: u64,
        event: &PoolEvent,
        result: Result<(), &PoolError>,
        actions: &[PoolAction],
        out: &mut Vec<u8>,
    ) {
        self.0.append(now_ns, event, result.is_ok().then_some(actions), out);
    }
}

/// One record of a pool's journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolRecord {
    /// Its number; the first is 0.
    pub number: u64,
    /// The driver's clock.
    pub now_ns: u64,
    /// What happened.
    pub event: PoolEvent,
    /// What it caused; nothing if the pool refused it.
    pub actions: Option<Vec<PoolAction>>,
}

/// The first record that the pool answers otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolDifference {
    /// The record, with the actions that were expected.
    pub record: PoolRecord,
    /// What the pool does now; nothing if it refuses.
    pub got: Option<Vec<PoolAction>>,
}

/// A pool that goes through a journal.
#[derive(Debug)]
pub struct PoolReplay<'a> {
    pool: Pool,
    input: frame::RecordReader<'a>,
    now_ns: u64,
    actions: Vec<PoolAction>,
    summary: Summary,
}

impl<'a> PoolReplay<'a> {
    /// Reads the header of a journal: a pool in the state at its beginning.
    ///
    /// # Errors
    /// [`ReplayError`] if the bytes are no journal of a pool, or damaged.
    pub fn new(journal: &'a [u8]) -> Result<Self, ReplayError> {
        let (state, input) = frame::open(MAGIC, journal)?;
        let malformed = |source| ReplayError::Malformed { record: 0, source };
        let pool = Pool::restore(state).map_err(malformed)?;
        let now_ns = pool.now_ns();
        Ok(Self { pool, input, now_ns, actions: Vec::new(), summary: Summary::default() })
    }

    /// Feeds the pool with the next record and compares; `None` at the end.
    ///
    /// # Errors
    /// [`ReplayError::PoolDiffers`], or a record that cannot be read.
    pub fn step(&mut self) -> Result<Option<PoolRecord>, ReplayError> {
        let Some(record) = self.read()? else { return Ok(None) };
        self.actions.clear();
        let result = self.pool.handle(record.now_ns, record.event, &mut self.actions);
        let got = result.is_ok().then_some(self.actions.as_slice());
        if got != record.actions.as_deref() {
            let got = got.map(<[PoolAction]>::to_vec);
            let difference = PoolDifference { record, got };
            return Err(ReplayError::PoolDiffers(Box::new(difference)));
        }
        let runs = |action: &&PoolAction| matches!(action, PoolAction::Run { .. });
        self.summary.records += 1;
        self.summary.actions += self.actions.len() as u64;
        self.summary.grants += self.actions.iter().filter(runs).count() as u64;
        Ok(Some(record))
    }

    /// Goes through all of it.
    ///
    /// # Errors
    /// As [`Self::step`].
    pub fn run(&mut self) -> Result<Summary, ReplayError> {
        while self.step()?.is_some() {}
        Ok(self.summary)
    }

    /// The pool as it is now.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    fn read(&mut self) -> Result<Option<PoolRecord>, ReplayError> {
        let number = self.summary.records;
        let Some((elapsed_ns, event, actions)) = self.input.next(number, &mut self.summary.cut)?
        else {
            return Ok(None);
        };
        self.now_ns = self.now_ns.wrapping_add_signed(elapsed_ns);
        Ok(Some(PoolRecord { number, now_ns: self.now_ns, event, actions }))
    }
}

codec!(enum PoolEvent {
    0 DeviceUp { device },
    1 DeviceDown { device },
    2 AddVgpu { vgpu, tenant, class, weight },
    3 SetVgpu { vgpu, class, weight },
    4 RemoveVgpu { vgpu },
    5 Submit { task, vgpu, estimate_ns },
    6 Finished { device, task },
    7 Stopped { device, task },
    8 Lost { device, task },
    9 Cancel { task },
    10 ResetDone { device },
    11 SetTenant { tenant, weight },
});
codec!(enum PoolAction {
    0 Run { device, task },
    1 Yield { device, at_ns },
    2 Reset { device },
});
