//! What the core asks of the driver. Only changes are emitted; the driver performs them in order.

use alloc::vec::Vec;

use crate::key::{DeviceKey, SessionKey};

/// A budget without an end: the lone tenant's, and everybody's under `unmanaged`.
pub const UNLIMITED: u64 = u64::MAX;

/// Why the core wants to be called again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum TimerReason {
    /// The last turn's work is about to drain: grant the successor.
    Handover,
    /// The turn is about to end: wake its successor.
    Prepare,
    /// The holder has had nothing to do for the yield time: take the turn back.
    Yield,
    /// The turn's time is over and its holder has not released.
    Revoke,
    /// A revoked holder has not released for so long that it is killed.
    Overdue,
    /// A vGPU that used up its cap may run again.
    Refill,
}

impl TimerReason {
    /// A short text for logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Handover => "predecessor drains",
            Self::Prepare => "successor must wake",
            Self::Yield => "idle holder yields",
            Self::Revoke => "turn ends",
            Self::Overdue => "revoked holder is overdue",
            Self::Refill => "capped vGPU may run again",
        }
    }
}

/// One thing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Action {
    /// The session may use the device. A grant with the epoch that it already holds changes only
    /// the budget. The worker gives the grant back when `used + in flight + idle` since the grant
    /// reaches the budget, and with a finite budget also when it had nothing to do for `yield_ns`,
    /// or for less.
    Grant {
        /// To whom.
        session: SessionKey,
        /// What.
        device: DeviceKey,
        /// Names the turn; rises with each turn of the device, across restarts too.
        epoch: u64,
        /// Held time, in ns, counted from the beginning of the turn; [`UNLIMITED`] for no end.
        budget_ns: u64,
    },
    /// Just before the grant that begins a turn of an interactive vGPU
    /// ([`VgpuView::is_interactive`](crate::VgpuView)): wake and boost the thread or vCPU that
    /// waits for a result of this session, so that it runs while its vGPU does (FairGV §3.2.3,
    /// Algorithm 3). Nothing to do where nobody waits.
    Wake {
        /// Whose waiting thread.
        session: SessionKey,
        /// The device that is granted.
        device: DeviceKey,
        /// The turn that begins: the boost ends with it at the latest.
        epoch: u64,
    },
    /// The session must submit nothing more and release. A driver that can take the grant back from
    /// a sleeping worker atomically may do so and report the release itself.
    Revoke {
        /// From whom.
        session: SessionKey,
        /// What.
        device: DeviceKey,
        /// The turn.
        epoch: u64,
    },
    /// The session will probably be granted the device in a moment: its worker should be awake.
    Prepare {
        /// Who.
        session: SessionKey,
        /// What.
        device: DeviceKey,
    },
    /// The session kept the device past every limit. Kill its worker, then report its last usage
    /// and [`Event::RemoveSession`](crate::Event::RemoveSession).
    Kill {
        /// Whom.
        session: SessionKey,
        /// What it holds.
        device: DeviceKey,
        /// The turn.
        epoch: u64,
    },
    /// Nobody has work for this device and nobody holds it with work.
    DeviceIdle {
        /// The device.
        device: DeviceKey,
    },
    /// Deliver [`Event::Timer`](crate::Event::Timer) at this time; replaces the earlier timer.
    Timer {
        /// When, in ns of the driver's clock.
        at_ns: u64,
        /// What for.
        why: TimerReason,
    },
    /// No timer is needed.
    CancelTimer,
}

/// The actions of one [`Node::handle`](crate::Node::handle), a buffer that its owner reuses.
///
/// **Perform and [`clear`](Self::clear) after every `handle`, in order.**
#[derive(Clone, Debug, Default)]
pub struct Actions {
    list: Vec<Action>,
}

impl Actions {
    /// An empty buffer.
    pub fn new() -> Self {
        Self::default()
    }

    /// The actions, in the order to perform them.
    pub fn as_slice(&self) -> &[Action] {
        &self.list
    }

    /// Takes the actions out, keeping the memory.
    pub fn drain(&mut self) -> impl Iterator<Item = Action> + '_ {
        self.list.drain(..)
    }

    /// Forgets the actions, keeping the memory.
    pub fn clear(&mut self) {
        self.list.clear();
    }

    pub(crate) fn push(&mut self, action: Action) {
        self.list.push(action);
    }
}
