//! Host functions: the client's callback thread asks for the next one, runs it, and reports its
//! end.

use std::collections::VecDeque;

use crate::output::Caller;
use crate::stream::StreamKey;

/// Host functions that are due or running, and who asks for one.
#[derive(Debug, Default)]
pub(crate) struct HostCalls {
    due: VecDeque<(u64, StreamKey)>,
    running: VecDeque<(u64, StreamKey)>,
    askers: VecDeque<Caller>,
}

impl HostCalls {
    /// A stream has reached a host function. Returns who is told now, if anybody asks.
    pub(crate) fn reach(&mut self, call: u64, stream: StreamKey) -> Option<Caller> {
        match self.askers.pop_front() {
            Some(asker) => {
                self.running.push_back((call, stream));
                Some(asker)
            }
            None => {
                self.due.push_back((call, stream));
                None
            }
        }
    }

    /// Somebody asks. Returns the host function that is due, if one is.
    pub(crate) fn ask(&mut self, caller: Caller) -> Option<u64> {
        match self.due.pop_front() {
            Some((call, stream)) => {
                self.running.push_back((call, stream));
                Some(call)
            }
            None => {
                self.askers.push_back(caller);
                None
            }
        }
    }

    /// A host function has returned. Returns the stream that goes on.
    pub(crate) fn end(&mut self, call: u64) -> Option<StreamKey> {
        let at = self.running.iter().position(|(running, _)| *running == call)?;
        self.running.remove(at).map(|(_, stream)| stream)
    }

    pub(crate) fn askers(&self) -> usize {
        self.askers.len()
    }

    /// Forgets all calls and returns who still asked.
    pub(crate) fn clear(&mut self) -> Vec<Caller> {
        self.due.clear();
        self.running.clear();
        self.askers.drain(..).collect()
    }
}
