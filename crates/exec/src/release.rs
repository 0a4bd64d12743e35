//! Memory that goes back to the system in one piece.
//!
//! That takes a microsecond a page, a sixth of a second for a gigabyte, and nothing else of the
//! session happens meanwhile. So long releases wait until whoever owns the session has given the
//! device back.

use std::collections::VecDeque;

use weft_device::Device;

use crate::output::Output;
use crate::session::Session;
use crate::wait::{Action, Wait};

/// Long releases that wait.
#[derive(Debug, Default)]
pub(crate) struct Releases {
    /// Of synchronous commands; nothing else is missing for their answers.
    due: VecDeque<Wait>,
    /// A stream's next task is one.
    pub(crate) is_next: bool,
    /// They are made now.
    is_open: bool,
}

impl Releases {
    pub(crate) fn len(&self) -> usize {
        self.due.len()
    }
}

impl<D: Device> Session<D> {
    /// Whether [`Session::release_memory`] has something to do.
    pub fn has_long_release(&self) -> bool {
        self.releases.is_next || !self.releases.due.is_empty()
    }

    /// Makes the long releases that nothing else holds up
    /// ([`crate::Limits::long_release_bytes`]).
    pub fn release_memory(&mut self, out: &mut dyn Output) {
        self.releases.is_open = true;
        while let Some(wait) = self.releases.due.pop_front() {
            self.act_and_answer(wait, out);
        }
        if std::mem::take(&mut self.releases.is_next) {
            self.settle_all(out);
        }
        self.releases.is_open = false;
    }

    /// Everything that the wait needed has ended.
    pub(crate) fn finish_wait(&mut self, wait: Wait, out: &mut dyn Output) {
        if self.waits_for_release(&wait.action) {
            self.releases.due.push_back(wait);
        } else {
            self.act_and_answer(wait, out);
        }
    }

    fn waits_for_release(&self, action: &Action) -> bool {
        match action {
            Action::Answer | Action::Unload(_) => false,
            Action::Free { bytes, .. } => self.is_release_late(*bytes),
            // It comes after those that came before it.
            Action::Alloc { .. } => !self.releases.is_open && !self.releases.due.is_empty(),
            // How much it is, nobody counts.
            Action::Discard | Action::Unmap(_) | Action::Release(_) | Action::Destroy(_) => {
                self.is_release_late(None)
            }
        }
    }

    /// Whether the release of so many bytes, if that is known, is long and has to wait.
    pub(crate) fn is_release_late(&self, bytes: Option<u64>) -> bool {
        let is_long = |least| bytes.is_none_or(|bytes| bytes >= least);
        !self.releases.is_open && self.limits.long_release_bytes.is_some_and(is_long)
    }
}
