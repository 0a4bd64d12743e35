//! What is known of vGPUs and sessions, by dense key.

use alloc::vec::Vec;

use crate::fair_queue::FairQueue;
use crate::key::{DeviceKey, SessionKey, VgpuKey, Weight};
use crate::tag::Tag;
use crate::turn::Turn;

/// An array with holes.
#[derive(Clone, Debug)]
pub(crate) struct Slots<T>(Vec<Option<T>>);

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> Slots<T> {
    pub(crate) fn find(&self, index: usize) -> Option<&T> {
        self.0.get(index).and_then(Option::as_ref)
    }

    pub(crate) fn find_mut(&mut self, index: usize) -> Option<&mut T> {
        self.0.get_mut(index).and_then(Option::as_mut)
    }

    pub(crate) fn insert(&mut self, index: usize, value: T) {
        if self.0.len() <= index {
            self.0.resize_with(index + 1, || None);
        }
        self.0[index] = Some(value);
    }

    pub(crate) fn take(&mut self, index: usize) -> Option<T> {
        self.0.get_mut(index).and_then(Option::take)
    }

    /// The occupied slots in the order of their keys.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0u32..).zip(&self.0).filter_map(|(key, slot)| slot.as_ref().map(|value| (key, value)))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut T)> {
        (0u32..).zip(&mut self.0).filter_map(|(key, slot)| slot.as_mut().map(|value| (key, value)))
    }
}

/// The vGPUs and sessions of all devices. Keys are checked once, in `Node::handle`; the accessors
/// here trust them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tables {
    pub(crate) vgpus: Slots<Vgpu>,
    pub(crate) sessions: Slots<Session>,
}

impl Tables {
    pub(crate) fn vgpu(&mut self, key: VgpuKey) -> &mut Vgpu {
        self.vgpus.find_mut(key.index()).expect("a vGPU's key is checked at the border")
    }

    pub(crate) fn session(&mut self, key: SessionKey) -> &mut Session {
        self.sessions.find_mut(key.index()).expect("a session's key is checked at the border")
    }

    pub(crate) fn turn(&mut self, key: SessionKey) -> &mut Turn {
        self.session(key).turn.as_mut().expect("a holder has a turn")
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Vgpu {
    pub(crate) device: DeviceKey,
    pub(crate) weight: Weight,
    /// Sessions with work.
    pub(crate) runnable: u32,
    /// Which session gets the vGPU's next turn: fair queueing with equal weights.
    pub(crate) members: FairQueue,
    /// The sessions by their key in `members`.
    locals: Vec<Option<SessionKey>>,
    /// Billed device time of all its sessions, past ones too.
    pub(crate) used_ns: u64,
    /// What was charged to its tag.
    pub(crate) held_ns: u64,
    pub(crate) turns: u64,
}

impl Vgpu {
    pub(crate) fn new(device: DeviceKey, weight: Weight) -> Self {
        Self {
            device,
            weight,
            runnable: 0,
            members: FairQueue::default(),
            locals: Vec::new(),
            used_ns: 0,
            held_ns: 0,
            turns: 0,
        }
    }

    /// Adds a session; the result is its key in `members`.
    pub(crate) fn join(&mut self, session: SessionKey) -> u32 {
        let free = self.locals.iter().position(Option::is_none);
        let place = free.unwrap_or(self.locals.len());
        if place == self.locals.len() {
            self.locals.push(None);
        }
        self.locals[place] = Some(session);
        let local = u32::try_from(place).expect("sessions have u32 keys");
        self.members.add(local, Weight::ONE, Tag::ZERO);
        local
    }

    pub(crate) fn leave(&mut self, local: u32) {
        self.members.remove(local);
        self.locals[local as usize] = None;
    }

    pub(crate) fn sessions(&self) -> impl Iterator<Item = SessionKey> + '_ {
        self.locals.iter().flatten().copied()
    }

    pub(crate) fn next_session(&self) -> Option<SessionKey> {
        self.members.peek().and_then(|local| self.locals[local as usize])
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Session {
    pub(crate) vgpu: VgpuKey,
    /// Its key in the vGPU's `members`.
    pub(crate) local: u32,
    pub(crate) runnable: bool,
    pub(crate) estimate_ns: u64,
    pub(crate) used_ns: u64,
    pub(crate) idle_ns: u64,
    /// Work in flight that is charged by prediction; zero during a turn.
    pub(crate) predicted_ns: u64,
    pub(crate) turn: Option<Turn>,
    pub(crate) sync: SyncRate,
}

impl Session {
    pub(crate) fn new(vgpu: VgpuKey, local: u32) -> Self {
        Self {
            vgpu,
            local,
            runnable: false,
            estimate_ns: 0,
            used_ns: 0,
            idle_ns: 0,
            predicted_ns: 0,
            turn: None,
            sync: SyncRate::default(),
        }
    }
}

/// Whether a session calls synchronously so often that its vGPU counts as interactive: more than 10
/// calls per 10 ms (FairGV §3.2.3). It stays so until it makes fewer than half as many.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SyncRate {
    since_ns: u64,
    calls: u64,
    pub(crate) interactive: bool,
}

impl SyncRate {
    const WINDOW_NS: u64 = 10_000_000;
    const ENTER: u128 = 10;
    const LEAVE: u128 = 5;

    /// `calls` is the count since the session began; readings within a window are gathered.
    pub(crate) fn observe(&mut self, now_ns: u64, calls: u64) {
        let window_ns = now_ns.saturating_sub(self.since_ns);
        if window_ns < Self::WINDOW_NS {
            return;
        }
        let made = u128::from(calls.saturating_sub(self.calls)) * u128::from(Self::WINDOW_NS);
        let limit = if self.interactive { Self::LEAVE } else { Self::ENTER };
        self.interactive = made > limit * u128::from(window_ns);
        *self = Self { since_ns: now_ns, calls: calls.max(self.calls), ..*self };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interactive_above_ten_calls_per_ten_milliseconds_with_hysteresis() {
        let ms = 1_000_000;
        let mut rate = SyncRate::default();
        rate.observe(10 * ms, 10);
        assert!(!rate.interactive, "ten are not more than ten");
        rate.observe(20 * ms, 21);
        assert!(rate.interactive);
        rate.observe(30 * ms, 27);
        assert!(rate.interactive, "six keep it");
        rate.observe(40 * ms, 32);
        assert!(!rate.interactive, "five do not");
    }
}
