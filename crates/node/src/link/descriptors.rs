//! File descriptors beside a message, by what they are.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};

/// What a descriptor is. The message that it comes with says so, in the order of the descriptors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Passed {
    /// The session's segment.
    Segment,
    /// Its control page.
    Control,
    /// The node page.
    NodePage,
    /// The device page.
    DevicePage,
    /// The vGPU's frames.
    Frames,
    /// The vGPU's private table.
    Table,
    /// The device's physical table.
    Physical,
    /// The listening socket at which the next daemon comes.
    Door,
    /// The pinned window.
    Pinned,
    /// One end of the tenant's lifeline.
    Lifeline,
    /// The tenant's process.
    Tenant,
    /// The file for the session's last counter.
    Record,
    /// Where frames are on another device.
    Moved,
    /// Where marks for a virtual machine are written.
    Marks,
}

/// Descriptors that came with a message.
#[derive(Debug)]
pub(crate) struct Descriptors(Vec<(Passed, OwnedFd)>);

impl Descriptors {
    /// Those that came, with what the message says they are.
    pub(crate) fn received(names: &[Passed], fds: Vec<OwnedFd>) -> anyhow::Result<Self> {
        let (named, came) = (names.len(), fds.len());
        ensure!(named == came, "{came} descriptors came with a message that names {named}");
        Ok(Self(names.iter().copied().zip(fds).collect()))
    }

    /// Takes the one that is this.
    pub(crate) fn take(&mut self, what: Passed) -> anyhow::Result<OwnedFd> {
        let place = self.0.iter().position(|(name, _)| *name == what);
        let place = place.with_context(|| format!("no descriptor is the {what:?}"))?;
        Ok(self.0.swap_remove(place).1)
    }

    /// Puts a descriptor in the place of the one that is this.
    pub(crate) fn replace(&mut self, what: Passed, fd: OwnedFd) {
        self.0.retain(|(name, _)| *name != what);
        self.0.push((what, fd));
    }

    /// Copies of those that are these.
    pub(crate) fn copies(&self, wanted: &[Passed]) -> anyhow::Result<Self> {
        let copy = |(name, fd): &(Passed, OwnedFd)| Ok((*name, fd.try_clone()?));
        let chosen = self.0.iter().filter(|(name, _)| wanted.contains(name));
        chosen.map(copy).collect::<anyhow::Result<_>>().map(Self)
    }

    /// Each with what it is.
    pub(crate) fn into_parts(self) -> Vec<(Passed, OwnedFd)> {
        self.0
    }

    /// What they are, for the message, and the descriptors to send with it.
    pub(crate) fn to_send(&self) -> (Vec<Passed>, Vec<BorrowedFd<'_>>) {
        self.0.iter().map(|(name, fd)| (*name, fd.as_fd())).unzip()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn null() -> OwnedFd {
        std::fs::File::open("/dev/null").unwrap().into()
    }

    #[test]
    fn descriptors_are_taken_by_what_they_are_and_once() {
        let names = [Passed::Table, Passed::Segment];
        let mut came = Descriptors::received(&names, vec![null(), null()]).unwrap();
        let copies = came.copies(&[Passed::Segment, Passed::Door]).unwrap();
        assert_eq!(copies.to_send().0, [Passed::Segment]);
        came.take(Passed::Segment).unwrap();
        let error = came.take(Passed::Segment).unwrap_err().to_string();
        assert!(error.contains("Segment"), "{error}");
        let error = Descriptors::received(&names, vec![null()]).unwrap_err().to_string();
        assert!(error.contains('1') && error.contains('2'), "{error}");
    }
}
