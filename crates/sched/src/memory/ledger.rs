//! The ledger of a device's memory: which pages of each vGPU are in use, by which of its sessions,
//! and how much it may have. Pure: the caller writes tables and clears pages.
//!
//! Pages of a vGPU are its own numbers, from 0. What all vGPUs have together is bounded by what the
//! device, or with oversubscription the node, lends. Where the pages are is another thing, which
//! the rest of [`crate::memory`] decides: a page that is paid for may have no slot.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// Adjacent pages: first, count.
pub type Pages = (u64, u64);

/// Pages of one device and quotas of its vGPUs.
#[derive(Debug)]
pub struct Ledger {
    /// Pages that all vGPUs may have together.
    total: u64,
    used: u64,
    /// Pages that are nobody's and not free before they are clear.
    clearing: u64,
    /// Pages that a vGPU has numbers for.
    numbers: u64,
    vgpus: BTreeMap<u32, Account>,
    sessions: BTreeMap<u32, Holding>,
    /// Pages that all vGPUs of a user may have together, by user.
    users: BTreeMap<u32, u64>,
}

#[derive(Debug)]
struct Account {
    quota: u64,
    used: u64,
    /// Whose it is, if anybody said.
    owner: Option<u32>,
    /// Numbers that are free.
    free: Runs,
    clearing: Runs,
}

#[derive(Debug)]
struct Holding {
    vgpu: u32,
    runs: Runs,
    pinned_bytes: u64,
}

/// Why pages were not handed out or taken back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LedgerError {
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
    /// The session does not have these pages.
    #[error("pages {0}+{1} are not the session's")]
    NotTheirs(u64, u64),
    /// What device memory is swapped to has no room.
    #[error("there is no room where the device's memory is swapped to")]
    Swap,
    /// No such session or vGPU.
    #[error("no such session")]
    Unknown,
}

impl Account {
    fn new(numbers: u64) -> Self {
        let mut free = Runs::default();
        free.insert(0, numbers);
        Self { quota: 0, used: 0, owner: None, free, clearing: Runs::default() }
    }
}

impl Ledger {
    /// Nobody has any of the `total` pages, of which one vGPU may have up to `numbers`.
    pub fn new(total: u64, numbers: u64) -> Self {
        let (vgpus, sessions, users) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { total, used: 0, clearing: 0, numbers, vgpus, sessions, users }
    }

    fn account(&mut self, vgpu: u32) -> &mut Account {
        let numbers = self.numbers;
        self.vgpus.entry(vgpu).or_insert_with(|| Account::new(numbers))
    }

    /// Adds a vGPU, or changes its quota, in pages. A quota below what is in use stops further
    /// allocation.
    pub fn set_quota(&mut self, vgpu: u32, pages: u64) {
        self.account(vgpu).quota = pages;
    }

    /// Says whose a vGPU is, and how many pages all vGPUs of that user may have together.
    pub fn set_owner(&mut self, vgpu: u32, uid: u32, pages: u64) {
        self.account(vgpu).owner = Some(uid);
        self.users.insert(uid, pages);
    }

    /// Pages that the vGPU's user may still take.
    fn left_of_user(&self, vgpu: u32) -> u64 {
        let Some(uid) = self.vgpus.get(&vgpu).and_then(|account| account.owner) else {
            return u64::MAX;
        };
        let of_user = self.vgpus.values().filter(|account| account.owner == Some(uid));
        let used: u64 = of_user.map(|account| account.used).sum();
        self.users.get(&uid).map_or(u64::MAX, |limit| limit.saturating_sub(used))
    }

    /// Forgets a vGPU without sessions.
    pub fn remove_vgpu(&mut self, vgpu: u32) {
        self.vgpus.remove(&vgpu);
    }

    /// The memory of a vGPU without sessions is dropped: all its numbers are free.
    pub fn renew(&mut self, vgpu: u32) {
        let numbers = self.numbers;
        if let Some(account) = self.vgpus.get_mut(&vgpu).filter(|account| account.used == 0) {
            let Account { quota, owner, .. } = *account;
            *account = Account { quota, owner, ..Account::new(numbers) };
        }
    }

    /// Adds a session to a vGPU.
    pub fn add_session(&mut self, session: u32, vgpu: u32) {
        let holding = Holding { vgpu, runs: Runs::default(), pinned_bytes: 0 };
        self.sessions.insert(session, holding);
    }

    /// Takes `pages` pages for a session in at most `runs_max` runs: perhaps fewer than asked, but
    /// only when all of them could be had.
    ///
    /// # Errors
    /// What is used up; nothing was taken.
    pub fn take(
        &mut self,
        session: u32,
        pages: u64,
        runs_max: usize,
    ) -> Result<Vec<Pages>, LedgerError> {
        let vgpu = self.sessions.get(&session).ok_or(LedgerError::Unknown)?.vgpu;
        let left_of_user = self.left_of_user(vgpu);
        let left = self.total - self.used;
        let clearing = self.clearing;
        let holding = self.sessions.get_mut(&session).ok_or(LedgerError::Unknown)?;
        let account = self.vgpus.get_mut(&vgpu).ok_or(LedgerError::Unknown)?;
        if pages > account.quota.saturating_sub(account.used).min(left_of_user) {
            return Err(LedgerError::Quota);
        }
        if pages > left || pages > account.free.pages + account.clearing.pages {
            return Err(LedgerError::Device);
        }
        if pages > left.saturating_sub(clearing) || pages > account.free.pages {
            return Err(LedgerError::Clearing);
        }
        let runs = account.free.take(pages, runs_max);
        for &(first, count) in &runs {
            account.used += count;
            self.used += count;
            holding.runs.insert(first, count);
        }
        Ok(runs)
    }

    /// Checks that a session has all of `runs` and takes them from it. They stay out of use until
    /// [`Self::recycle`], so that nobody gets them before they are clear.
    ///
    /// # Errors
    /// [`LedgerError::NotTheirs`], [`LedgerError::Unknown`]; nothing was taken.
    pub fn give_back(&mut self, session: u32, runs: &[Pages]) -> Result<(), LedgerError> {
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
        let pages: u64 = runs.iter().map(|(_, count)| count).sum();
        runs.iter().for_each(|&(first, count)| account.clearing.insert(first, count));
        account.used -= pages;
        self.used -= pages;
        self.clearing += pages;
        Ok(())
    }

    /// Takes what it still has of `runs` from a session, as [`Self::give_back`] does.
    ///
    /// # Errors
    /// [`LedgerError::Unknown`].
    pub fn give_back_rest(
        &mut self,
        session: u32,
        runs: &[Pages],
    ) -> Result<Vec<Pages>, LedgerError> {
        let mut given = Vec::new();
        for &run in runs {
            let holding = self.sessions.get(&session).ok_or(LedgerError::Unknown)?;
            let held = holding.runs.within(run);
            self.give_back(session, &held)?;
            given.extend(held);
        }
        Ok(given)
    }

    /// Whether a session has all pages of a run.
    pub fn holds(&self, session: u32, run: Pages) -> bool {
        self.sessions.get(&session).is_some_and(|holding| holding.runs.within(run) == [run])
    }

    /// The vGPU of a session.
    pub fn vgpu_of(&self, session: u32) -> Option<u32> {
        self.sessions.get(&session).map(|holding| holding.vgpu)
    }

    /// The pages of a session.
    pub fn runs_of(&self, session: u32) -> Vec<Pages> {
        self.sessions.get(&session).map_or_else(Vec::new, |holding| holding.runs.iter().collect())
    }

    /// Whether so many pages can be had, but not before others are clear.
    pub fn must_clear(&self, pages: u64) -> bool {
        let left = self.total - self.used;
        pages > left.saturating_sub(self.clearing) && pages <= left
    }

    /// How many of these pages of a vGPU are in use, or not clear yet.
    pub fn used_within(&self, vgpu: u32, (first, count): Pages) -> u64 {
        let Some(account) = self.vgpus.get(&vgpu) else { return 0 };
        let free: u64 = account.free.within((first, count)).iter().map(|(_, count)| count).sum();
        let count = count.min(self.numbers.saturating_sub(first));
        count.saturating_sub(free)
    }

    /// Up to where pages of a vGPU within these are in use, or not clear yet: the last of them and
    /// one.
    pub fn used_end(&self, vgpu: u32, (first, count): Pages) -> u64 {
        let end = first.saturating_add(count).min(self.numbers);
        let Some(account) = self.vgpus.get(&vgpu) else { return first };
        match account.free.within((first, count)).last() {
            Some(&(start, length)) if start + length == end => start,
            Some(_) | None => end.max(first),
        }
    }

    /// Puts cleared pages of a vGPU back into use.
    pub fn recycle(&mut self, vgpu: u32, runs: &[Pages]) {
        self.clearing -= runs.iter().map(|(_, count)| count).sum::<u64>();
        // One that was removed meanwhile has given all its numbers back.
        let Some(account) = self.vgpus.get_mut(&vgpu) else { return };
        for &(first, count) in runs {
            if account.clearing.remove(first, count) {
                account.free.insert(first, count);
            }
        }
    }

    /// Takes pages of a vGPU that could not be cleared out of use while it is there.
    pub fn withdraw(&mut self, vgpu: u32, runs: &[Pages]) {
        self.clearing -= runs.iter().map(|(_, count)| count).sum::<u64>();
        if let Some(account) = self.vgpus.get_mut(&vgpu) {
            for &(first, count) in runs {
                account.clearing.remove(first, count);
            }
        }
    }

    /// Ends a session and returns its pages, to be cleared and recycled.
    pub fn remove_session(&mut self, session: u32) -> Vec<Pages> {
        let runs = self.runs_of(session);
        // A session has what it has.
        let _ = self.give_back(session, &runs);
        self.sessions.remove(&session);
        runs
    }

    /// Notes pages that an adopted session holds already.
    ///
    /// # Errors
    /// [`LedgerError::NotTheirs`], [`LedgerError::Unknown`].
    pub fn adopt(&mut self, session: u32, first: u64, count: u64) -> Result<(), LedgerError> {
        let holding = self.sessions.get_mut(&session).ok_or(LedgerError::Unknown)?;
        let account = self.vgpus.get_mut(&holding.vgpu).ok_or(LedgerError::Unknown)?;
        if !account.free.remove(first, count) {
            return Err(LedgerError::NotTheirs(first, count));
        }
        account.used += count;
        // More than there is, if there was more when they were handed out.
        self.used += count;
        self.total = self.total.max(self.used);
        holding.runs.insert(first, count);
        Ok(())
    }

    /// Notes a session's new total of pinned memory.
    ///
    /// # Errors
    /// As [`Self::check_pinned`].
    pub fn set_pinned(&mut self, session: u32, bytes: u64, limit: u64) -> Result<(), LedgerError> {
        self.check_pinned(session, bytes, limit)?;
        let holding = self.sessions.get_mut(&session).ok_or(LedgerError::Unknown)?;
        holding.pinned_bytes = bytes;
        Ok(())
    }

    /// Whether a session may have so much pinned memory.
    ///
    /// # Errors
    /// [`LedgerError::Pinned`], [`LedgerError::Unknown`].
    pub fn check_pinned(&self, session: u32, bytes: u64, limit: u64) -> Result<(), LedgerError> {
        match self.sessions.contains_key(&session) {
            false => Err(LedgerError::Unknown),
            true if bytes > limit => Err(LedgerError::Pinned),
            true => Ok(()),
        }
    }

    /// What a vGPU may still take and its quota, in pages.
    pub fn usage(&self, vgpu: u32) -> (u64, u64) {
        let Some(account) = self.vgpus.get(&vgpu) else { return (0, 0) };
        let of_device = self.total - self.used;
        let left = account.quota.saturating_sub(account.used).min(of_device);
        (left.min(self.left_of_user(vgpu)), account.quota)
    }

    /// What a vGPU has, in pages.
    pub fn used_by(&self, vgpu: u32) -> u64 {
        self.vgpus.get(&vgpu).map_or(0, |account| account.used)
    }

    /// What a session has, in pages.
    pub fn held_by(&self, session: u32) -> u64 {
        self.sessions.get(&session).map_or(0, |holding| holding.runs.pages)
    }

    /// Pinned memory of a session, in bytes.
    pub fn pinned_bytes(&self, session: u32) -> u64 {
        self.sessions.get(&session).map_or(0, |holding| holding.pinned_bytes)
    }

    /// What all vGPUs have, in pages.
    pub fn used(&self) -> u64 {
        self.used
    }
}

/// A set of pages as coalesced runs.
#[derive(Debug, Default)]
struct Runs {
    by_first: BTreeMap<u64, u64>,
    pages: u64,
}

impl Runs {
    fn iter(&self) -> impl Iterator<Item = Pages> {
        self.by_first.iter().map(|(first, count)| (*first, *count))
    }

    /// Adds a run that is disjoint from the set.
    fn insert(&mut self, first: u64, count: u64) {
        if count == 0 {
            return;
        }
        self.pages += count;
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
    fn within(&self, (first, count): Pages) -> Vec<Pages> {
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
        self.pages -= count;
        true
    }

    /// Removes up to `pages` pages in at most `runs_max` runs: one run if any is long enough,
    /// else the first ones.
    fn take(&mut self, pages: u64, runs_max: usize) -> Vec<Pages> {
        let whole = self.iter().find(|(_, count)| *count >= pages);
        if let Some((first, _)) = whole {
            self.remove(first, pages);
            return alloc::vec![(first, pages)];
        }
        let mut left = pages;
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
        let mut ledger = Ledger::new(100, 100);
        ledger.set_quota(1, 60);
        ledger.set_quota(2, 60);
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
        assert_eq!(ledger.usage(1), (0, 60));
        assert_eq!(ledger.take(20, 41, 8), Err(LedgerError::Device));
        ledger.take(20, 40, 8).unwrap();
        assert_eq!(ledger.used(), 100);
    }

    #[test]
    fn vgpus_of_a_user_share_what_the_user_may_have() {
        let mut ledger = ledger();
        ledger.set_owner(1, 1000, 50);
        ledger.set_owner(2, 1000, 50);
        ledger.take(10, 40, 8).unwrap();
        assert_eq!(ledger.take(20, 11, 8), Err(LedgerError::Quota));
        assert_eq!(ledger.usage(2).0, 10);
        ledger.take(20, 10, 8).unwrap();
        let runs = ledger.remove_session(10);
        ledger.recycle(1, &runs);
        ledger.take(20, 40, 8).unwrap();
        ledger.set_owner(2, 1001, 60);
        ledger.take(11, 50, 8).unwrap();
    }

    #[test]
    fn only_the_owner_gives_pages_back_and_nobody_gets_them_before_they_are_clear() {
        let mut ledger = ledger();
        let runs = ledger.take(10, 60, 8).unwrap();
        assert!(matches!(ledger.give_back(20, &runs), Err(LedgerError::NotTheirs(..))));
        ledger.give_back(10, &runs).unwrap();
        assert!(matches!(ledger.give_back(10, &runs), Err(LedgerError::NotTheirs(..))));
        assert_eq!(ledger.take(20, 41, 8), Err(LedgerError::Clearing));
        assert_eq!(ledger.used(), 0);
        ledger.recycle(1, &runs);
        ledger.take(20, 60, 8).unwrap();
    }

    #[test]
    fn a_dead_session_returns_all() {
        let mut ledger = ledger();
        ledger.take(10, 30, 8).unwrap();
        ledger.take(11, 30, 8).unwrap();
        let runs = ledger.remove_session(10);
        ledger.recycle(1, &runs);
        assert_eq!(ledger.used_by(1), 30);
        assert_eq!(ledger.usage(1).0, 30);
    }

    #[test]
    fn fragments_come_in_bounded_answers() {
        let mut ledger = Ledger::new(100, 60);
        ledger.set_quota(1, 60);
        ledger.add_session(10, 1);
        ledger.take(10, 60, 8).unwrap();
        for first in (0..60).step_by(2) {
            ledger.give_back(10, &[(first, 1)]).unwrap();
            ledger.recycle(1, &[(first, 1)]);
        }
        let runs = ledger.take(10, 20, 8).unwrap();
        assert_eq!(runs.len(), 8);
        assert_eq!(ledger.take(10, 12, 100).unwrap().len(), 12);
    }

    #[test]
    fn quotas_may_exceed_what_there_is_and_pages_are_the_vgpus_own() {
        let mut ledger = ledger();
        assert_eq!(ledger.take(10, 60, 8).unwrap(), [(0, 60)]);
        assert_eq!(ledger.take(20, 30, 8).unwrap(), [(0, 30)]);
        assert_eq!((ledger.usage(2), ledger.used()), ((10, 60), 90));
        // What is cleared of one is room for another.
        ledger.give_back(10, &[(0, 50)]).unwrap();
        assert!(ledger.must_clear(11) && !ledger.must_clear(10));
        assert_eq!(ledger.take(20, 11, 8), Err(LedgerError::Clearing));
        ledger.recycle(1, &[(0, 50)]);
        assert_eq!(ledger.take(20, 30, 8).unwrap(), [(30, 30)]);
    }

    #[test]
    fn what_is_in_use_of_a_range_is_known() {
        let mut ledger = ledger();
        ledger.take(10, 30, 8).unwrap();
        ledger.give_back(10, &[(10, 5)]).unwrap();
        assert_eq!(ledger.used_within(1, (8, 10)), 10, "what is not clear is in use");
        ledger.recycle(1, &[(10, 5)]);
        assert_eq!(ledger.used_within(1, (8, 10)), 5);
        assert_eq!(ledger.used_within(1, (90, 20)), 0);
        assert_eq!((ledger.used_end(1, (0, 20)), ledger.used_end(1, (20, 20))), (20, 30));
        assert_eq!((ledger.used_end(1, (40, 20)), ledger.used_end(3, (40, 20))), (40, 40));
        ledger.remove_vgpu(1);
        ledger.set_quota(1, 100);
        assert_eq!(ledger.used_within(1, (0, 100)), 0);
    }

    #[test]
    fn hostile_runs_are_refused() {
        let mut ledger = ledger();
        ledger.take(10, 10, 8).unwrap();
        for run in [(0, 0), (0, 11), (u64::MAX, 1), (5, u64::MAX), (9, 2)] {
            assert!(ledger.give_back(10, &[(3, 2), run]).is_err(), "{run:?}");
        }
        assert_eq!(ledger.used_by(1), 10);
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
        assert_eq!(ledger.used_by(1), 9);
    }

    #[test]
    fn adopted_pages_are_out_of_the_free_set() {
        let mut ledger = ledger();
        ledger.adopt(10, 5, 10).unwrap();
        assert!(ledger.adopt(11, 14, 1).is_err());
        assert_eq!(ledger.take(20, 60, 8).unwrap(), [(0, 60)]);
        assert_eq!(ledger.take(11, 30, 8).unwrap(), [(15, 30)]);
    }
}
