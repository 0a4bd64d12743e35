//! The one ledger of device memory: which frames are free, whose the others are, and how much each
//! vGPU may have. Pure: the caller writes the physical table and clears frames.

use std::collections::BTreeMap;

use crate::link::Run;

/// Bytes of a frame.
const FRAME_BYTES: u64 = weft_device::PAGE;

/// Frames of one device and quotas of its vGPUs.
#[derive(Debug)]
pub(crate) struct Ledger {
    total: u64,
    free: Runs,
    /// Frames that are nobody's and not free before they are clear.
    clearing: u64,
    vgpus: BTreeMap<u32, Account>,
    sessions: BTreeMap<u32, Holding>,
    /// Frames that all vGPUs of a user may have together, by user.
    users: BTreeMap<u32, u64>,
}

#[derive(Debug, Default)]
struct Account {
    quota: u64,
    used: u64,
    /// Whose it is, if anybody said.
    owner: Option<u32>,
}

#[derive(Debug)]
struct Holding {
    vgpu: u32,
    runs: Runs,
    pinned_bytes: u64,
}

/// Why frames were not handed out or taken back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LedgerError {
    /// The vGPU's quota would be exceeded.
    #[error("the memory quota is used up")]
    Quota,
    /// The device has room as soon as what is being cleared is clear.
    #[error("the device's memory is being cleared")]
    Clearing,
    /// The device has no room.
    #[error("the device's memory is used up")]
    Device,
    /// The pinned window is smaller.
    #[error("the pinned memory limit is used up")]
    Pinned,
    /// The machine's memory, or the user's part of it.
    #[error("the host memory that the user or the node may take is used up")]
    Host,
    /// The session does not have these frames.
    #[error("frames {0}+{1} are not the session's")]
    NotTheirs(u64, u64),
    /// No such session or vGPU.
    #[error("no such session")]
    Unknown,
}

impl Ledger {
    /// A device of `frames` frames, all free.
    pub(crate) fn new(frames: u64) -> Self {
        let mut free = Runs::default();
        free.insert(0, frames);
        let (vgpus, sessions, users) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { total: frames, free, clearing: 0, vgpus, sessions, users }
    }

    /// Adds a vGPU, or changes its quota. A quota below what is in use stops further allocation.
    pub(crate) fn set_quota(&mut self, vgpu: u32, bytes: u64) {
        self.vgpus.entry(vgpu).or_default().quota = bytes / FRAME_BYTES;
    }

    /// Says whose a vGPU is, and how much all vGPUs of that user may have together.
    pub(crate) fn set_owner(&mut self, vgpu: u32, uid: u32, bytes: u64) {
        self.vgpus.entry(vgpu).or_default().owner = Some(uid);
        self.users.insert(uid, bytes / FRAME_BYTES);
    }

    /// Frames that the vGPU's user may still take.
    fn left_of_user(&self, vgpu: u32) -> u64 {
        let Some(uid) = self.vgpus.get(&vgpu).and_then(|account| account.owner) else {
            return u64::MAX;
        };
        let of_user = self.vgpus.values().filter(|account| account.owner == Some(uid));
        let used: u64 = of_user.map(|account| account.used).sum();
        self.users.get(&uid).map_or(u64::MAX, |limit| limit.saturating_sub(used))
    }

    /// Forgets a vGPU without sessions.
    pub(crate) fn remove_vgpu(&mut self, vgpu: u32) {
        self.vgpus.remove(&vgpu);
    }

    /// Adds a session to a vGPU.
    pub(crate) fn add_session(&mut self, session: u32, vgpu: u32) {
        let holding = Holding { vgpu, runs: Runs::default(), pinned_bytes: 0 };
        self.sessions.insert(session, holding);
    }

    /// Takes `frames` frames for a session in at most `runs_max` runs: perhaps fewer than asked,
    /// but only when all of them could be had.
    pub(crate) fn take(
        &mut self,
        session: u32,
        frames: u64,
        runs_max: usize,
    ) -> Result<Vec<Run>, LedgerError> {
        let vgpu = self.sessions.get(&session).ok_or(LedgerError::Unknown)?.vgpu;
        let left_of_user = self.left_of_user(vgpu);
        let holding = self.sessions.get_mut(&session).ok_or(LedgerError::Unknown)?;
        let account = self.vgpus.get_mut(&holding.vgpu).ok_or(LedgerError::Unknown)?;
        if frames > account.quota.saturating_sub(account.used).min(left_of_user) {
            return Err(LedgerError::Quota);
        }
        if frames > self.free.frames + self.clearing {
            return Err(LedgerError::Device);
        }
        if frames > self.free.frames {
            return Err(LedgerError::Clearing);
        }
        let runs = self.free.take(frames, runs_max);
        for &(first, count) in &runs {
            account.used += count;
            holding.runs.insert(first, count);
        }
        Ok(runs)
    }

    /// Checks that a session has all of `runs` and takes them from it. They stay out of use until
    /// [`Self::recycle`], so that nobody gets them before they are clear.
    pub(crate) fn give_back(&mut self, session: u32, runs: &[Run]) -> Result<(), LedgerError> {
        let holding = self.sessions.get_mut(&session).ok_or(LedgerError::Unknown)?;
        let account = self.vgpus.get_mut(&holding.vgpu).ok_or(LedgerError::Unknown)?;
        for (before, &(first, count)) in runs.iter().enumerate() {
            if !holding.runs.remove(first, count) {
                for &(first, count) in runs.iter().take(before) {
                    holding.runs.insert(first, count);
                }
                return Err(LedgerError::NotTheirs(first, count));
            }
        }
        let frames: u64 = runs.iter().map(|(_, count)| count).sum();
        account.used -= frames;
        self.clearing += frames;
        Ok(())
    }

    /// Takes what it still has of `runs` from a session, as [`Self::give_back`] does.
    pub(crate) fn give_back_rest(
        &mut self,
        session: u32,
        runs: &[Run],
    ) -> Result<Vec<Run>, LedgerError> {
        let mut given = Vec::new();
        for &run in runs {
            let holding = self.sessions.get(&session).ok_or(LedgerError::Unknown)?;
            let held = holding.runs.within(run);
            self.give_back(session, &held)?;
            given.extend(held);
        }
        Ok(given)
    }

    /// Whether a session has all frames of a run.
    pub(crate) fn holds(&self, session: u32, run: Run) -> bool {
        self.sessions.get(&session).is_some_and(|holding| holding.runs.within(run) == [run])
    }

    /// The frames of a session.
    pub(crate) fn runs_of(&self, session: u32) -> Vec<Run> {
        self.sessions.get(&session).map_or_else(Vec::new, |holding| holding.runs.iter().collect())
    }

    /// Whether so many frames can be had, but not before others are clear.
    pub(crate) fn must_clear(&self, frames: u64) -> bool {
        frames > self.free.frames && frames <= self.free.frames + self.clearing
    }

    /// Puts cleared frames back into use.
    pub(crate) fn recycle(&mut self, runs: &[Run]) {
        for &(first, count) in runs {
            self.clearing -= count;
            self.free.insert(first, count);
        }
    }

    /// Takes frames that could not be cleared out of use for ever.
    pub(crate) fn withdraw(&mut self, runs: &[Run]) {
        self.clearing -= runs.iter().map(|(_, count)| count).sum::<u64>();
    }

    /// Ends a session and returns its frames, to be cleared and recycled.
    pub(crate) fn remove_session(&mut self, session: u32) -> Vec<Run> {
        let Some(holding) = self.sessions.remove(&session) else { return Vec::new() };
        if let Some(account) = self.vgpus.get_mut(&holding.vgpu) {
            account.used -= holding.runs.frames;
        }
        self.clearing += holding.runs.frames;
        holding.runs.iter().collect()
    }

    /// Notes frames that an adopted session holds already.
    pub(crate) fn adopt(
        &mut self,
        session: u32,
        first: u64,
        count: u64,
    ) -> Result<(), LedgerError> {
        let holding = self.sessions.get_mut(&session).ok_or(LedgerError::Unknown)?;
        let account = self.vgpus.get_mut(&holding.vgpu).ok_or(LedgerError::Unknown)?;
        if !self.free.remove(first, count) {
            return Err(LedgerError::NotTheirs(first, count));
        }
        account.used += count;
        holding.runs.insert(first, count);
        Ok(())
    }

    /// Notes a session's new total of pinned memory.
    pub(crate) fn set_pinned(
        &mut self,
        session: u32,
        bytes: u64,
        limit: u64,
    ) -> Result<(), LedgerError> {
        self.check_pinned(session, bytes, limit)?;
        let holding = self.sessions.get_mut(&session).ok_or(LedgerError::Unknown)?;
        holding.pinned_bytes = bytes;
        Ok(())
    }

    /// Whether a session may have so much pinned memory.
    pub(crate) fn check_pinned(
        &self,
        session: u32,
        bytes: u64,
        limit: u64,
    ) -> Result<(), LedgerError> {
        match self.sessions.contains_key(&session) {
            false => Err(LedgerError::Unknown),
            true if bytes > limit => Err(LedgerError::Pinned),
            true => Ok(()),
        }
    }

    /// What a vGPU may still take and its quota, in bytes.
    pub(crate) fn usage(&self, vgpu: u32) -> (u64, u64) {
        let Some(account) = self.vgpus.get(&vgpu) else { return (0, 0) };
        let of_device = self.free.frames + self.clearing;
        let left = account.quota.saturating_sub(account.used).min(of_device);
        let left = left.min(self.left_of_user(vgpu));
        (left * FRAME_BYTES, account.quota * FRAME_BYTES)
    }

    /// What a vGPU has, in bytes.
    pub(crate) fn used_bytes(&self, vgpu: u32) -> u64 {
        self.vgpus.get(&vgpu).map_or(0, |account| account.used * FRAME_BYTES)
    }

    /// What a session has, in bytes.
    pub(crate) fn session_bytes(&self, session: u32) -> u64 {
        self.sessions.get(&session).map_or(0, |holding| holding.runs.frames * FRAME_BYTES)
    }

    /// Pinned memory of a session, in bytes.
    pub(crate) fn pinned_bytes(&self, session: u32) -> u64 {
        self.sessions.get(&session).map_or(0, |holding| holding.pinned_bytes)
    }

    /// What all vGPUs have, in bytes.
    pub(crate) fn used_bytes_total(&self) -> u64 {
        (self.total - self.free.frames - self.clearing) * FRAME_BYTES
    }
}

/// A set of frames as coalesced runs.
#[derive(Debug, Default)]
struct Runs {
    by_first: BTreeMap<u64, u64>,
    frames: u64,
}

impl Runs {
    fn iter(&self) -> impl Iterator<Item = Run> {
        self.by_first.iter().map(|(first, count)| (*first, *count))
    }

    /// Adds a run that is disjoint from the set.
    fn insert(&mut self, first: u64, count: u64) {
        if count == 0 {
            return;
        }
        self.frames += count;
        let (mut first, mut count) = (first, count);
        if let Some((&before, &length)) = self.by_first.range(..first).next_back() {
            debug_assert!(before + length <= first, "runs are disjoint");
            if before + length == first {
                self.by_first.remove(&before);
                (first, count) = (before, length + count);
            }
        }
        if let Some(length) = self.by_first.remove(&(first + count)) {
            count += length;
        }
        self.by_first.insert(first, count);
    }

    /// What of a run is in the set.
    fn within(&self, (first, count): Run) -> Vec<Run> {
        let end = first.saturating_add(count);
        let before = self.by_first.range(..first).next_back();
        let found = before.into_iter().chain(self.by_first.range(first..end));
        let parts = found.map(|(start, length)| {
            let (from, to) = (first.max(*start), end.min(start + length));
            (from, to.saturating_sub(from))
        });
        parts.filter(|(_, count)| *count > 0).collect()
    }

    /// Removes a run if all of it is in the set.
    fn remove(&mut self, first: u64, count: u64) -> bool {
        let Some(end) = first.checked_add(count) else { return false };
        let Some((&start, &length)) = self.by_first.range(..=first).next_back() else {
            return false;
        };
        let stop = start + length;
        if count == 0 || end > stop {
            return false;
        }
        self.by_first.remove(&start);
        if start < first {
            self.by_first.insert(start, first - start);
        }
        if end < stop {
            self.by_first.insert(end, stop - end);
        }
        self.frames -= count;
        true
    }

    /// Removes up to `frames` frames in at most `runs_max` runs: one run if any is long enough,
    /// else the first ones.
    fn take(&mut self, frames: u64, runs_max: usize) -> Vec<Run> {
        let whole = self.iter().find(|(_, count)| *count >= frames);
        if let Some((first, _)) = whole {
            self.remove(first, frames);
            return vec![(first, frames)];
        }
        let mut left = frames;
        let mut runs = Vec::new();
        while left > 0 && runs.len() < runs_max {
            let Some((first, count)) = self.iter().next() else { break };
            let count = count.min(left);
            self.remove(first, count);
            runs.push((first, count));
            left -= count;
        }
        runs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger() -> Ledger {
        let mut ledger = Ledger::new(100);
        ledger.set_quota(1, 60 * FRAME_BYTES);
        ledger.set_quota(2, 60 * FRAME_BYTES);
        ledger.add_session(10, 1);
        ledger.add_session(11, 1);
        ledger.add_session(20, 2);
        ledger
    }

    #[test]
    fn sessions_of_a_vgpu_share_its_quota() {
        let mut ledger = ledger();
        ledger.take(10, 40, 8).unwrap();
        assert_eq!(ledger.take(11, 21, 8), Err(LedgerError::Quota));
        ledger.take(11, 20, 8).unwrap();
        assert_eq!(ledger.usage(1), (0, 60 * FRAME_BYTES));
        assert_eq!(ledger.take(20, 41, 8), Err(LedgerError::Device));
        ledger.take(20, 40, 8).unwrap();
        assert_eq!(ledger.used_bytes_total(), 100 * FRAME_BYTES);
    }

    #[test]
    fn vgpus_of_a_user_share_what_the_user_may_have() {
        let mut ledger = ledger();
        ledger.set_owner(1, 1000, 50 * FRAME_BYTES);
        ledger.set_owner(2, 1000, 50 * FRAME_BYTES);
        ledger.take(10, 40, 8).unwrap();
        assert_eq!(ledger.take(20, 11, 8), Err(LedgerError::Quota));
        assert_eq!(ledger.usage(2).0, 10 * FRAME_BYTES);
        ledger.take(20, 10, 8).unwrap();
        let runs = ledger.remove_session(10);
        ledger.recycle(&runs);
        ledger.take(20, 40, 8).unwrap();
        ledger.set_owner(2, 1001, 60 * FRAME_BYTES);
        ledger.take(11, 50, 8).unwrap();
    }

    #[test]
    fn only_the_owner_gives_frames_back_and_nobody_gets_them_before_they_are_clear() {
        let mut ledger = ledger();
        let runs = ledger.take(10, 60, 8).unwrap();
        assert!(matches!(ledger.give_back(20, &runs), Err(LedgerError::NotTheirs(..))));
        ledger.give_back(10, &runs).unwrap();
        assert!(matches!(ledger.give_back(10, &runs), Err(LedgerError::NotTheirs(..))));
        assert_eq!(ledger.take(20, 41, 8), Err(LedgerError::Clearing));
        assert_eq!(ledger.used_bytes_total(), 0);
        ledger.recycle(&runs);
        ledger.take(20, 60, 8).unwrap();
    }

    #[test]
    fn a_dead_session_returns_all() {
        let mut ledger = ledger();
        ledger.take(10, 30, 8).unwrap();
        ledger.take(11, 30, 8).unwrap();
        let runs = ledger.remove_session(10);
        ledger.recycle(&runs);
        assert_eq!(ledger.used_bytes(1), 30 * FRAME_BYTES);
        assert_eq!(ledger.usage(1).0, 30 * FRAME_BYTES);
    }

    #[test]
    fn fragments_come_in_bounded_answers() {
        let mut ledger = ledger();
        ledger.take(10, 60, 8).unwrap();
        ledger.take(20, 40, 8).unwrap();
        for first in (0..60).step_by(2) {
            ledger.give_back(10, &[(first, 1)]).unwrap();
            ledger.recycle(&[(first, 1)]);
        }
        let runs = ledger.take(20, 20, 8).unwrap();
        assert_eq!(runs.len(), 8);
        assert_eq!(ledger.take(20, 12, 100).unwrap().len(), 12);
    }

    #[test]
    fn hostile_runs_are_refused() {
        let mut ledger = ledger();
        ledger.take(10, 10, 8).unwrap();
        for run in [(0, 0), (0, 11), (u64::MAX, 1), (5, u64::MAX), (9, 2)] {
            assert!(ledger.give_back(10, &[(3, 2), run]).is_err(), "{run:?}");
        }
        assert_eq!(ledger.used_bytes(1), 10 * FRAME_BYTES);
        ledger.give_back(10, &[(0, 10)]).unwrap();
    }

    #[test]
    fn what_a_session_still_has_is_told_from_what_it_has_given_back() {
        let mut ledger = ledger();
        ledger.take(10, 20, 8).unwrap();
        assert!(ledger.holds(10, (0, 20)) && !ledger.holds(11, (0, 20)));
        for run in [(0, 21), (0, 0), (19, u64::MAX), (u64::MAX, u64::MAX)] {
            assert!(!ledger.holds(10, run), "{run:?}");
        }
        ledger.give_back(10, &[(5, 5)]).unwrap();
        let rest = ledger.give_back_rest(10, &[(3, 8), (0, 4), (90, u64::MAX)]).unwrap();
        assert_eq!(rest, [(3, 2), (10, 1), (0, 3)]);
        assert_eq!(ledger.used_bytes(1), 9 * FRAME_BYTES);
    }

    #[test]
    fn adopted_frames_are_out_of_the_free_set() {
        let mut ledger = ledger();
        ledger.adopt(10, 5, 10).unwrap();
        assert!(ledger.adopt(20, 14, 1).is_err());
        assert_eq!(ledger.take(20, 60, 8).unwrap(), [(15, 60)]);
    }
}
