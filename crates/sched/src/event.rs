//! What the driver tells the core. Plain data: a journal of events replays every decision.

use crate::cap::{Cap, CapError};
use crate::class::Class;
use crate::config::{Config, ConfigError};
use crate::key::{DeviceKey, SessionKey, TenantKey, VgpuKey, Weight};
use crate::policy::PolicyId;

/// What a session's worker reports of itself, all in ns of the device's clock.
///
/// `used_ns` and `idle_ns` are counters that start at zero with the session and never fall; a value
/// below an earlier one is ignored. `in_flight_ns` is a level. A driver fills it from the control
/// page in one read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Usage {
    /// Device time consumed, as the device reports it, the elapsed part of the command that is
    /// executing included where the device tells: what is billed.
    pub used_ns: u64,
    /// Device time still to come for commands *submitted* and unfinished: exact where the device's
    /// timeline is known, predicted from samples where it is not, and then corrected by later
    /// reports. `used_ns + in_flight_ns` is the device time of everything submitted so far.
    pub in_flight_ns: u64,
    /// Time the worker held a grant with no device command queued or in flight. It is charged to
    /// the fair tags while somebody else waits, so that holding an idle device is not free, and is
    /// never billed.
    pub idle_ns: u64,
}

/// One thing that happened. Errors leave the state as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Event {
    /// A device is there and may be granted. On first sight it gets the policy of `config`; one
    /// that was there before keeps its own.
    DeviceUp {
        /// The device.
        device: DeviceKey,
        /// How it is to be shared from now on.
        config: Config,
    },
    /// A device failed or was taken away: its holders are revoked and nobody is granted it until it
    /// is up again. vGPUs, tags and totals stay.
    DeviceDown {
        /// The device.
        device: DeviceKey,
    },
    /// A tenant: the top of the hierarchy tenant → vGPU → session. Tenants divide a device by
    /// their weights, a tenant's vGPUs divide its part by theirs, so splitting gains nothing.
    AddTenant {
        /// Its key, unused so far; [`TenantKey::DEFAULT`] is there already.
        tenant: TenantKey,
        /// Its share of each device.
        weight: Weight,
    },
    /// A tenant is gone, and its vGPUs and their sessions with it.
    RemoveTenant {
        /// The tenant; not [`TenantKey::DEFAULT`].
        tenant: TenantKey,
    },
    /// A tenant's weight changed. Report the holder's [`Event::Used`] before.
    ReweightTenant {
        /// The tenant.
        tenant: TenantKey,
        /// Its share from now on.
        weight: Weight,
    },
    /// A tenant's cap from now on, on each device: its first period begins. What one of its vGPUs
    /// leaves of it is for the others. Report [`Event::Used`] of all holders before.
    SetTenantCap {
        /// The tenant.
        tenant: TenantKey,
        /// The most that its vGPUs may use together even of an idle device; `None` for no limit.
        cap: Option<Cap>,
    },
    /// A vGPU was created on a device that is known. It starts at the virtual time, without a cap.
    AddVgpu {
        /// Its key, unused so far.
        vgpu: VgpuKey,
        /// Whose it is.
        tenant: TenantKey,
        /// Where it lives.
        device: DeviceKey,
        /// Its share of the tenant's part.
        weight: Weight,
    },
    /// A vGPU is gone, and its sessions with it.
    RemoveVgpu {
        /// The vGPU.
        vgpu: VgpuKey,
    },
    /// A vGPU lives on another device that is known from now on. Its turns are over, its sessions
    /// have no work there until they say so ([`Event::Runnable`]), and it is as far ahead of the
    /// others there as it was where it came from, by at most what anybody may be: moving forgives
    /// nothing. Report [`Event::Used`] of its sessions before; they go when nothing of theirs is in
    /// flight.
    MoveVgpu {
        /// The vGPU.
        vgpu: VgpuKey,
        /// Where it lives from now on.
        device: DeviceKey,
    },
    /// A vGPU's weight changed. Report [`Event::Used`] of its sessions before: use not reported yet
    /// is charged at the new weight.
    Reweight {
        /// The vGPU.
        vgpu: VgpuKey,
        /// Its share from now on.
        weight: Weight,
    },
    /// A vGPU's cap from now on: its first period begins.
    SetCap {
        /// The vGPU.
        vgpu: VgpuKey,
        /// The most it may use even of an idle device; `None` for no limit.
        cap: Option<Cap>,
    },
    /// A vGPU's class from now on; new ones are batch. Report [`Event::Used`] of its device's
    /// holders before.
    SetClass {
        /// The vGPU.
        vgpu: VgpuKey,
        /// What its work is owed.
        class: Class,
    },
    /// Who answers for a vGPU's debts, where vGPUs of several users share a tenant; said before it
    /// has sessions. It begins as far ahead of the others as the owner's other vGPUs of the tenant
    /// on the device are that have no work, or as its removed ones were until the others have had
    /// as much: another name, or the same one made anew, forgives nothing.
    SetOwner {
        /// The vGPU.
        vgpu: VgpuKey,
        /// Any number that is the owner's alone.
        owner: u32,
    },
    /// A process attached to a vGPU. It starts idle, its counters at zero, with weight 1.
    AddSession {
        /// Its key, unused so far.
        session: SessionKey,
        /// What it attached to.
        vgpu: VgpuKey,
    },
    /// A session's share of its vGPU's part changed.
    ReweightSession {
        /// The session.
        session: SessionKey,
        /// Its share from now on.
        weight: Weight,
    },
    /// A session ended or its worker died. Report its last [`Usage`] first: what is not reported
    /// before cannot be billed after. Its turn, if it had one, is over.
    RemoveSession {
        /// The session.
        session: SessionKey,
    },
    /// The session has a device command that is ready to execute and has none before it. Before
    /// this event, report the holder's [`Event::Used`]: a lone holder's use until now is then
    /// exactly told apart from its use while somebody waits.
    Runnable {
        /// The session.
        session: SessionKey,
        /// Device time of what it has queued, in ns; 0 when unknown.
        estimate_ns: u64,
    },
    /// The session has no device command left, neither queued nor in flight.
    Idle {
        /// The session.
        session: SessionKey,
    },
    /// A reading of the session's counters. Needed before `Runnable` of somebody else and after a
    /// release until `in_flight_ns` is 0; harmless at any other time.
    Used {
        /// The session.
        session: SessionKey,
        /// The reading.
        usage: Usage,
    },
    /// The worker gave its grant back: budget consumed, nothing to do, or revoked. Work may still
    /// be in flight; the successor is granted when it is about to drain. A release of an epoch
    /// that the session does not hold counts as [`Event::Used`]. Report `Idle` before, when it is.
    Released {
        /// The session.
        session: SessionKey,
        /// The epoch of the grant given back.
        epoch: u64,
        /// The counters at that moment.
        usage: Usage,
    },
    /// The session's count of synchronous calls since it began (only waits for results count).
    SyncCalls {
        /// The session.
        session: SessionKey,
        /// The count.
        calls: u64,
    },
    /// How many pieces of longer kernels the session's worker has cut off since it began. Decides
    /// nothing; it is here for the journal.
    Pieces {
        /// The session.
        session: SessionKey,
        /// The count.
        pieces: u64,
    },
    /// In the session's turn the device is written for its vGPU's memory, which others had taken
    /// the slots of: so long it executes nothing. The turn lasts as much longer; its budget is
    /// device time and stays. It is charged as far as the vGPU's use is not worth it, when somebody
    /// else's turn begins.
    Switched {
        /// The session.
        session: SessionKey,
        /// How long, in ns, from now on.
        switch_ns: u64,
        /// How long it was written before, while others had the device, in ns. It moves nothing
        /// and says how dear it would be to begin again.
        ahead_ns: u64,
    },
    /// In the session's turn an operation met memory whose slots others had, or nobody, and waited
    /// until it was brought. That is the turn's own time; it tells how dear it is that the device
    /// went from one to the other.
    Paged {
        /// The session.
        session: SessionKey,
        /// How long, in ns.
        paged_ns: u64,
    },
    /// Who should be next when the turn that goes on is over, for a reason that the core does not
    /// know: its memory is being written. It is, under `fair`, if it waits then and is at most
    /// [`Config::reach_ns`] beyond the smallest tag. It holds until a turn begins.
    Prefer {
        /// The vGPU.
        vgpu: VgpuKey,
    },
    /// A vCPU of the vGPU's tenant was switched in or out by the CPU scheduler. Only `strict_co`
    /// listens (Pegasus, Algorithm 1), and only a simulator knows.
    OnCpu {
        /// The vGPU that the vCPU's VM owns.
        vgpu: VgpuKey,
        /// Whether a vCPU of it runs now.
        on: bool,
    },
    /// After a restart: a living worker says that it holds a grant of the earlier daemon.
    Adopt {
        /// The session, added before.
        session: SessionKey,
        /// The epoch it holds.
        epoch: u64,
        /// The budget it was given.
        budget_ns: u64,
    },
    /// Change a device's policy now. Tenants, totals and the tags of policies that share them stay.
    SetPolicy {
        /// The device.
        device: DeviceKey,
        /// The policy from now on.
        policy: PolicyId,
    },
    /// The time asked for by [`Action::Timer`](crate::Action::Timer) has come. Early and spurious
    /// ones are harmless. Report the holder's [`Used`](Self::Used) first, and this before anything
    /// else that is seen after that time: who had used up a cap wakes by it, and a vGPU's tenant
    /// must not seem without work because another vGPU's turn ended meanwhile.
    Timer,
}

/// An event that does not fit the state; nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EventError {
    /// The event names a device that was never up.
    #[error("device {0} is not known")]
    UnknownDevice(DeviceKey),
    /// The event names a vGPU that is not there.
    #[error("vGPU {0} is not known")]
    UnknownVgpu(VgpuKey),
    /// The event names a tenant that is not there.
    #[error("tenant {0} is not known")]
    UnknownTenant(TenantKey),
    /// A tenant of that key exists.
    #[error("tenant {0} exists already")]
    TenantExists(TenantKey),
    /// The default tenant cannot be removed.
    #[error("tenant {} is every node's default and stays", TenantKey::DEFAULT)]
    DefaultTenant,
    /// A setting outside its range.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A cap outside its range.
    #[error(transparent)]
    Cap(#[from] CapError),
    /// The event names a session that is not there.
    #[error("session {0} is not known")]
    UnknownSession(SessionKey),
    /// A vGPU of that key exists.
    #[error("vGPU {0} exists already")]
    VgpuExists(VgpuKey),
    /// A session of that key exists.
    #[error("session {0} exists already")]
    SessionExists(SessionKey),
    /// A key at or above [`KEY_LIMIT`](crate::KEY_LIMIT).
    #[error("key {0} is too large: keys are dense and below {limit}", limit = crate::KEY_LIMIT)]
    KeyTooLarge(u32),
    /// The device's other sessions hold it under a policy with one holder, or the session does.
    #[error("session {0} cannot be adopted as a holder: the device is held")]
    AlreadyHeld(SessionKey),
}
