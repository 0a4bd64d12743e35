//! The journal: every event with its time and the actions that it caused, so that a later run can
//! be held against it bit for bit.
//!
//! A journal is a header and records. The header holds the *whole* state of the node (settings,
//! tags, turns in progress, timers, each device's policy by name), so it can begin at any moment:
//! a driver that rotates its files begins each with [`Writer::begin`] and needs nothing of the
//! earlier ones.
//!
//! ```text
//! journal    = "WEFTJRNL" version:u16le length state checksum:u64le record*
//! record     = length time event outcome checksum:u32le
//! time       = ns since the record before (since the state's, for the first), zigzag
//! event      = number fields          outcome = 0 (refused) | 1 + number of actions, actions
//! ```
//! Integers are varints. A record's checksum holds all records before it too. A file that was cut
//! within its last record is read up to there.
//!
//! Pools of devices have journals of their own, of the same form: [`PoolWriter`], [`PoolReplay`].

mod frame;
mod pools;
mod replay;

use alloc::vec::Vec;

pub use pools::{PoolDifference, PoolRecord, PoolReplay, PoolWriter, is_of_pool};
pub use replay::{Difference, Outcome, Record, Replay, ReplayError, Summary};

use crate::action::{Action, TimerReason};
use crate::codec::{Codec, codec};
use crate::config::Config;
use crate::event::{Event, EventError, Usage};
use crate::node::Node;

const MAGIC: &[u8; 8] = b"WEFTJRNL";

/// The version of the format. It changes with the fields of events, actions and state.
pub const VERSION: u16 = 18;

/// Writes a journal. It only appends to the buffer that it is given: the caller writes that out.
///
/// ```
/// # use weft_sched::{Actions, Config, DeviceKey, Event, Node, journal};
/// # let mut node = Node::new();
/// # let mut actions = Actions::new();
/// let mut file = Vec::new();
/// let mut writer = journal::Writer::begin(&node, &mut file);
/// let event = Event::DeviceUp { device: DeviceKey(0), config: Config::default() };
/// let result = node.handle(7, event, &mut actions);
/// writer.record(7, &event, result, actions.as_slice(), &mut file);
/// let summary = journal::Replay::new(&file)?.run()?;
/// assert_eq!(summary.records, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Writer(frame::Records);

impl Writer {
    /// Appends the header of a journal that begins with the state of `node`.
    pub fn begin(node: &Node, out: &mut Vec<u8>) -> Self {
        let mut state = Vec::new();
        node.put(&mut state);
        Self(frame::begin(MAGIC, node.now_ns, state, out))
    }

    /// Appends what [`Node::handle`] was given and what it gave: its result, and the actions of
    /// this event alone.
    pub fn record(
        &mut self,
        now_ns: u64,
        event: &Event,
        result: Result<(), EventError>,
        actions: &[Action],
        out: &mut Vec<u8>,
    ) {
        self.0.append(now_ns, event, result.is_ok().then_some(actions), out);
    }
}

codec!(struct Usage { used_ns, in_flight_ns, idle_ns });
codec!(struct Config {
    policy, quantum_ns, yield_ns, prepare_lead_ns, overlap_ns, overdue_ns, sleeper_credit_ns,
    slack_ns, slack_switches, reach_ns, switch_ns, borrow_ns, slice_ns,
});
codec!(enum Event {
    0 Timer {},
    1 DeviceUp { device, config },
    2 DeviceDown { device },
    3 AddTenant { tenant, weight },
    4 RemoveTenant { tenant },
    5 ReweightTenant { tenant, weight },
    6 AddVgpu { vgpu, tenant, device, weight },
    7 RemoveVgpu { vgpu },
    8 Reweight { vgpu, weight },
    9 SetCap { vgpu, cap },
    10 AddSession { session, vgpu },
    11 ReweightSession { session, weight },
    12 RemoveSession { session },
    13 Runnable { session, estimate_ns },
    14 Idle { session },
    15 Used { session, usage },
    16 Released { session, epoch, usage },
    17 SyncCalls { session, calls },
    18 OnCpu { vgpu, on },
    19 Adopt { session, epoch, budget_ns },
    20 SetPolicy { device, policy },
    21 Pieces { session, pieces },
    22 SetClass { vgpu, class },
    23 MoveVgpu { vgpu, device },
    24 Switched { session, switch_ns, ahead_ns },
    25 SetTenantCap { tenant, cap },
    26 SetOwner { vgpu, owner },
    27 Paged { session, paged_ns },
    28 Prefer { vgpu },
});
codec!(enum TimerReason {
    0 Handover {},
    1 Prepare {},
    2 Yield {},
    3 Revoke {},
    4 Overdue {},
    5 Refill {},
});
codec!(enum Action {
    0 Grant { session, device, epoch, budget_ns },
    1 Wake { session, device, epoch },
    2 Revoke { session, device, epoch },
    3 Prepare { session, device },
    4 Kill { session, device, epoch },
    5 DeviceIdle { device },
    6 Timer { at_ns, why },
    7 CancelTimer {},
});
