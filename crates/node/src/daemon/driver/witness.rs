//! What the scheduling core is told and says, for whoever records it.

use std::collections::BTreeMap;
use std::time::Duration;

use weft_sched::{EventError, Node, SessionKey};
use weft_turn::{Decision, Host};

use crate::admin::Attainment;
use crate::daemon::clock;
use crate::daemon::driver::responses::ResponseTimes;
use crate::daemon::recorder::Recorder;

/// The recordings that go on.
#[derive(Debug, Default)]
pub(super) struct Witness {
    /// By their names; the configured journal is 0.
    recorders: BTreeMap<u64, Recorder>,
    /// Records that recordings lost which are over.
    lost: u64,
    responses: ResponseTimes,
    /// The core is other than when it was last saved.
    is_unsaved: bool,
}

impl Witness {
    /// A recording begins.
    pub(super) fn begin(&mut self, id: u64, recorder: Recorder) {
        self.recorders.insert(id, recorder);
    }

    /// A recording is over.
    pub(super) fn end(&mut self, id: u64) {
        if let Some(mut recorder) = self.recorders.remove(&id) {
            recorder.flush();
            self.lost += recorder.lost_ever();
        }
    }

    /// Hands on what was recorded.
    pub(super) fn flush(&mut self) {
        self.recorders.values_mut().for_each(Recorder::flush);
    }

    /// The same if it is old; when the next of it will be.
    pub(super) fn flush_if_old(&mut self) -> Option<Duration> {
        self.recorders.values_mut().filter_map(Recorder::flush_if_old).min()
    }

    /// How soon the work of user-facing vGPUs was done, by key.
    pub(super) fn attainment(&self) -> impl Iterator<Item = (u32, Attainment)> {
        self.responses.iter()
    }

    /// A session was asked to stand still.
    pub(super) fn will_stand(&mut self, session: SessionKey) {
        self.responses.will_stand(session, clock::now_ns());
    }

    /// It stands still, with work.
    pub(super) fn stands(&mut self, node: &Node, session: SessionKey) {
        self.responses.stands(node, session, clock::now_ns());
    }

    /// Whether the core is other than when it was last saved.
    pub(super) fn is_unsaved(&self) -> bool {
        self.is_unsaved
    }

    /// The core is saved as it is.
    pub(super) fn saved(&mut self) {
        self.is_unsaved = false;
    }

    /// Records that were ever lost.
    pub(super) fn lost_ever(&self) -> u64 {
        self.recorders.values().map(Recorder::lost_ever).sum::<u64>() + self.lost
    }
}

impl Host for Witness {
    fn now_ns(&self) -> u64 {
        clock::now_ns()
    }

    fn decided(&mut self, decision: &Decision<'_>) {
        self.is_unsaved = true;
        match decision.result {
            // A saved state knows the sessions that were adopted.
            Ok(()) | Err(EventError::SessionExists(_)) => {}
            // Its page holds a grant that another's turn has overtaken: it is taken back.
            Err(error @ EventError::AlreadyHeld(_)) => tracing::debug!(%error, "not adopted"),
            Err(error) => {
                let event = decision.event;
                tracing::error!(%error, ?event, "the scheduling core refused an event");
            }
        }
        self.responses.observe(decision);
        for recorder in self.recorders.values_mut() {
            recorder.record(decision);
        }
        if self.recorders.values().any(Recorder::is_over) {
            let over = self.recorders.extract_if(.., |_, recorder| recorder.is_over());
            self.lost += over.map(|(_, recorder)| recorder.lost_ever()).sum::<u64>();
        }
    }
}
