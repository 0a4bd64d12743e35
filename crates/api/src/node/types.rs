//! What the admin socket carries. All times are ns of `CLOCK_MONOTONIC`, sizes are bytes.
//!
//! WHEN CHANGING IT: raise [`VERSION`], by one in a release, and keep what the version before asks
//! and is answered. A new request, field or value of an enumeration may only be used with a daemon
//! whose [`NodeReport::admin`] has its version; a new field of an answer has a default, for daemons
//! that do not send it. `fixtures/node-N.jsonl` has what a control plane of version N asks and is
//! answered as it was recorded, for the tests of both sides.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Elsewhere, GatewayHealth, GatewayReport};
use crate::versions::Versions;

/// The newest version. Version 2 brought [`NodeReport::admin`].
pub const VERSION: u32 = 2;

/// The versions that are spoken here.
pub const VERSIONS: Versions = Versions::up_to(VERSION);

/// One line from an administrator's tool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// What the node is. Answer: [`Answer::Node`].
    Node,
    /// All vGPUs. Answer: [`Answer::Vgpus`].
    List,
    /// Creates a vGPU. Answer: [`Answer::Vgpu`].
    Create {
        /// Its name: 1–64 letters, digits, `-`, `_`, `.`.
        name: String,
        /// Weight, 1–10,000; the node's default if absent.
        #[serde(default)]
        weight: Option<u32>,
        /// Memory quota; the node's default if absent.
        #[serde(default)]
        memory_bytes: Option<u64>,
        /// The device, or pool of devices, that it lives on; where there is room if absent.
        #[serde(default)]
        device: Option<String>,
        /// User who owns it; the caller if absent.
        #[serde(default)]
        owner: Option<u32>,
        /// Attach token that tenants must then show; none if absent.
        #[serde(default)]
        token: Option<String>,
        /// The most it may use even of an idle device, in millionths of the device's time; no
        /// limit if absent.
        #[serde(default)]
        cap_ppm: Option<u32>,
        /// Makes it user-facing: its work should be done within this time in ns. Batch if absent
        /// or 0.
        #[serde(default)]
        sla_ns: Option<u64>,
    },
    /// Creates a virtual accelerator: what tasks are submitted to. Answer: [`Answer::Done`].
    CreateAccelerator(AskedAccelerator),
    /// Changes a vGPU, or a virtual accelerator, while it runs. Answer: [`Answer::Vgpu`], or
    /// [`Answer::Done`] of an accelerator.
    Set {
        /// Its name.
        name: String,
        /// New weight.
        #[serde(default)]
        weight: Option<u32>,
        /// New memory quota; may lie below what is in use: then nothing more is allocated.
        #[serde(default)]
        memory_bytes: Option<u64>,
        /// New cap in millionths of the device's time; 1,000,000 for none.
        #[serde(default)]
        cap_ppm: Option<u32>,
        /// Makes it user-facing, with this SLA in ns; 0 makes it batch.
        #[serde(default)]
        sla_ns: Option<u64>,
    },
    /// Changes what a user's vGPUs together get. Answer: [`Answer::Done`].
    SetTenant {
        /// The user.
        uid: u32,
        /// New weight against other users, 1–10,000.
        weight: u32,
    },
    /// Changes what a process gets of its vGPU's part, until it ends. Answer: [`Answer::Done`].
    SetSession {
        /// The process.
        pid: u32,
        /// New weight against other sessions of the vGPU, 1–10,000; 1 at first.
        weight: u32,
    },
    /// Removes a vGPU or a virtual accelerator. Answer: [`Answer::Done`].
    Remove {
        /// Its name.
        name: String,
        /// End its sessions; without it a vGPU in use is refused.
        #[serde(default)]
        force: bool,
    },
    /// Ends a vGPU's sessions and lets none begin until it is removed, or the daemon is started
    /// again: what it has used is final. It may be asked again. Every daemon may be asked; one
    /// that does not know it says so ([`super::NOT_UNDERSTOOD`]), and is to remove the vGPU only.
    /// Answer: [`Answer::Vgpu`].
    Close {
        /// Its name.
        name: String,
    },
    /// Lets programs of other hosts use a vGPU, which is created if it is not there. Answer:
    /// [`Answer::Grant`].
    Grant(GrantRequest),
    /// The same of a vGPU that who asks makes afterwards: nothing is made, and the grant is good
    /// once the vGPU is there. Every daemon may be asked; one that does not know it says so, and
    /// is to make the vGPU first. Answer: [`Answer::Grant`].
    GrantAhead(GrantRequest),
    /// Totals and queue state now. Answer: [`Answer::Stats`]. Two of them make `admin::shares`.
    Stats,
    /// Who held the device when. Answer: [`Answer::Timeline`].
    Timeline {
        /// Only turns that end, or go on, at or after this instant.
        #[serde(default)]
        since_ns: u64,
    },
    /// Records what the scheduling core is told and answers, for some time. Answer:
    /// [`Answer::Recording`].
    Record {
        /// How long, 1–600.
        seconds: u32,
    },
    /// Reads, or with `set` changes, the policy. Answer: [`Answer::Node`].
    Policy {
        /// The new policy.
        #[serde(default)]
        set: Option<String>,
        /// Of this device; of all if absent.
        #[serde(default)]
        device: Option<String>,
    },
    /// Moves a vGPU to another device while its programs run. Answer: [`Answer::Moved`].
    Move {
        /// The vGPU.
        name: String,
        /// The device, or the pool of which it is to be another device.
        device: String,
    },
    /// Takes a device out of service, or puts it back. Answer: [`Answer::Done`].
    SetDevice {
        /// Its name.
        name: String,
        /// Whether vGPUs may use it.
        in_service: bool,
        /// End the sessions on it; without it a device in use is not taken out.
        #[serde(default)]
        force: bool,
    },
    /// Devices, limits and what is wrong with them. Answer: [`Answer::Doctor`].
    Doctor,
    /// Prometheus text. Answer: [`Answer::Metrics`].
    Metrics,
    /// Ends the daemon and its workers. Answer: [`Answer::Done`].
    Shutdown {
        /// End the programs' sessions; without it a node in use is refused.
        #[serde(default)]
        force: bool,
    },
}

/// What a virtual accelerator should be.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AskedAccelerator {
    /// Its name, like a vGPU's.
    pub name: String,
    /// The pool of devices that runs its tasks.
    pub pool: String,
    /// Weight within its class, 1–10,000; the node's default if absent.
    #[serde(default)]
    pub weight: Option<u32>,
    /// Memory quota on each device; the node's default if absent.
    #[serde(default)]
    pub memory_bytes: Option<u64>,
    /// User who owns it; the caller if absent.
    #[serde(default)]
    pub owner: Option<u32>,
    /// Token that programs must then show to submit; none if absent.
    #[serde(default)]
    pub token: Option<String>,
    /// Makes it user-facing: its tasks should be done within this time in ns. Batch if absent or
    /// 0.
    #[serde(default)]
    pub sla_ns: Option<u64>,
}

/// One line to an administrator's tool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "answer", content = "body", rename_all = "snake_case")]
pub enum Answer {
    /// It was done.
    Done,
    /// It was not done.
    Error {
        /// What happened and what to do, for people.
        message: String,
    },
    /// The node.
    Node(NodeReport),
    /// One vGPU.
    Vgpu(VgpuReport),
    /// All vGPUs, by name.
    Vgpus(Vec<VgpuReport>),
    /// Totals.
    Stats(Stats),
    /// Turns.
    Timeline(Timeline),
    /// A recording.
    Recording(Recording),
    /// A move.
    Moved(MoveReport),
    /// A grant.
    Grant(GrantReport),
    /// The state of the node's health.
    Doctor(DoctorReport),
    /// Prometheus text.
    Metrics(String),
}

/// What a grant is to say.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GrantRequest {
    /// The vGPU's name.
    pub name: String,
    /// Its weight; the node's default for a new one if absent.
    #[serde(default)]
    pub weight: Option<u32>,
    /// Its memory quota; the node's default for a new one if absent.
    #[serde(default)]
    pub memory_bytes: Option<u64>,
    /// For how long sessions may begin with it, in seconds.
    pub valid_s: u64,
    /// Endpoints that may use it.
    pub uses: u32,
}

/// What lets an endpoint on another host open sessions of a vGPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantReport {
    /// The grant: a secret, one word.
    pub grant: String,
    /// The vGPU.
    pub vgpu: String,
    /// Its weight.
    pub weight: u32,
    /// Its memory quota.
    pub memory_bytes: u64,
    /// Endpoints that may use it.
    pub uses: u32,
    /// Until when sessions may begin with it, in seconds since 1970.
    pub expires_s: u64,
    /// Where the gateway listens, once it does.
    pub listen: Option<String>,
    /// SHA-256 of the gateway's public key, in hex: a node's own. Empty from older nodes.
    #[serde(default)]
    pub gateway_key: String,
}

/// A vGPU that was moved to another device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveReport {
    /// The device that it left.
    pub from: String,
    /// The device that it lives on now.
    pub to: String,
    /// Sessions that went along.
    pub sessions: usize,
    /// Device memory that they have.
    pub bytes: u64,
    /// How long the first of them stood still, until all went on, in ns; 0 without any.
    pub pause_ns: u64,
}

/// What the node is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeReport {
    /// Version of the daemon.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// Wire protocol it speaks.
    pub protocol: u16,
    /// Versions of this interface that it speaks.
    #[serde(default)]
    pub admin: Versions,
    /// Policies in force, each once.
    pub policy: String,
    /// Policies that may be set.
    pub policies: Vec<String>,
    /// Tenant socket.
    pub tenant_socket: String,
    /// The devices.
    pub devices: Vec<DeviceReport>,
    /// Sessions adopted from an earlier daemon.
    pub adopted_sessions: u64,
    /// Whether who asked may administrate the node.
    #[serde(default)]
    pub you_administrate: bool,
    /// Its gateway, if programs on other hosts may use it (`remote.listen`).
    #[serde(default)]
    pub gateway: Option<GatewayReport>,
}

/// What an SLA may be, in ns: 100 µs to an hour.
pub const SLA_NS: std::ops::RangeInclusive<u64> = 100_000..=3_600_000_000_000;

fn yes() -> bool {
    true
}

/// A device.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceReport {
    /// Its name on the node.
    pub name: String,
    /// The pool that it is in.
    #[serde(default)]
    pub pool: Option<String>,
    /// Whether vGPUs may use it.
    #[serde(default = "yes")]
    pub in_service: bool,
    /// How it fails, if it is out of service for that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// Product name.
    pub product: String,
    /// Backend: `soft`.
    pub backend: String,
    /// `real` or `paced`.
    pub clock: String,
    /// Processors of the host that are its own: `0-3,6`; empty if it has none.
    #[serde(default)]
    pub processors: String,
    /// Policy in force.
    pub policy: String,
    /// Memory.
    pub memory_bytes: u64,
    /// Memory allocated to vGPUs.
    pub memory_used_bytes: u64,
    /// Its slots.
    #[serde(default)]
    pub memory: MemoryReport,
    /// Device time occupied since the device was created.
    pub busy_ns: u64,
    /// Executions that took longer than the model says (paced).
    pub overruns: u64,
    /// Executions that were in time by themselves, but began too late (paced).
    #[serde(default)]
    pub late: u64,
    /// Executions in all.
    pub executions: u64,
}

/// What [`MemoryReport::placement`] is of a device that lends its memory session by session.
pub const LENT_BY_SESSIONS: &str = "sessions";

/// The slots of a device's memory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryReport {
    /// Who lies where, by name; [`LENT_BY_SESSIONS`] without slots.
    pub placement: String,
    /// What a copied entry is said to take, in ns; 0 for what it takes.
    pub entry_ns: u64,
    /// Bytes of a slot.
    pub slot_bytes: u64,
    /// The slots in order.
    pub slots: Vec<SlotReport>,
    /// Times that somebody's parts were brought into slots.
    pub switches: u64,
    /// Slots written for that.
    pub copied_slots: u64,
    /// Entries written for that.
    pub copied_entries: u64,
    /// Time that it took, in ns, with what entries are said to take.
    pub copying_ns: u64,
    /// Operations that met a part without a slot.
    pub faults: u64,
    /// Parts that had to give way to others of their vGPU.
    pub replaced_parts: u64,
    /// Slots written for one that was next, while another had the device.
    #[serde(default)]
    pub ahead_slots: u64,
    /// Bytes that went to the host and came back, where memory is lent session by session.
    #[serde(default)]
    pub moved_bytes: u64,
    /// Slots written the last time.
    pub last_switch_slots: u64,
    /// The last time.
    #[serde(default)]
    pub last_switch: Option<LastSwitch>,
    /// What each vGPU has, in slots and beside them.
    #[serde(default)]
    pub vgpus: Vec<VgpuMemoryReport>,
}

/// A switch that copied something.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastSwitch {
    /// Whose.
    pub vgpu: String,
    /// Bytes that went to the host and came back, where memory is lent session by session.
    #[serde(default)]
    pub moved_bytes: u64,
    /// Slots that were written.
    pub slots: u64,
    /// Entries that were written.
    pub entries: u64,
    /// Time that it took, in ns, without what is only said.
    pub ns: u64,
}

/// A vGPU's memory on a device.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VgpuMemoryReport {
    /// Its name.
    pub name: String,
    /// Parts that it has pages in, each as long as a slot.
    pub parts: u64,
    /// Bytes of its pages.
    pub used_bytes: u64,
    /// Bytes of those whose entries are in a slot: the rest is swapped out.
    pub resident_bytes: u64,
}

/// A slot of a device's memory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotReport {
    /// The vGPU whose entries it has.
    pub owner: Option<String>,
    /// Which part of that vGPU's memory.
    #[serde(default)]
    pub part: Option<u64>,
    /// The last switch wrote it.
    #[serde(default)]
    pub copied: bool,
    /// The vGPUs that have it in their turns.
    pub users: Vec<String>,
}

/// What a vGPU is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VgpuState {
    /// No session.
    Detached,
    /// Sessions, but no work for the device.
    Idle,
    /// Work, waiting for its turn.
    Waiting,
    /// Holds the device.
    Running,
}

/// One vGPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VgpuReport {
    /// Name, unique on the node.
    pub name: String,
    /// User who owns it.
    pub owner: u32,
    /// The device that it lives on.
    pub device: String,
    /// vGPUs of one tenant share the tenant's part of the device: the owner, or none for a node
    /// whose vGPUs all compete with each other.
    pub tenant: Option<u32>,
    /// The tenant's weight against others.
    pub tenant_weight: u32,
    /// The most that all vGPUs of the tenant may use together, in millionths of each device's time.
    #[serde(default)]
    pub tenant_cap_ppm: Option<u32>,
    /// Its part of its user's cap, in millionths of the device's time, where vGPUs compete each for
    /// itself.
    #[serde(default)]
    pub cap_part_ppm: Option<u32>,
    /// Weight within the tenant's part.
    pub weight: u32,
    /// The most it may use, in millionths of the device's time.
    pub cap_ppm: Option<u32>,
    /// The SLA of a user-facing vGPU in ns; 0 of a batch one.
    #[serde(default)]
    pub sla_ns: u64,
    /// How often its work was done in time.
    #[serde(default)]
    pub attainment: Attainment,
    /// Memory quota.
    pub memory_bytes: u64,
    /// Memory allocated.
    pub memory_used_bytes: u64,
    /// Pinned host memory.
    pub pinned_bytes: u64,
    /// What it is doing.
    pub state: VgpuState,
    /// It is being removed, and gets no session any more.
    #[serde(default)]
    pub is_closing: bool,
    /// Sessions now.
    pub sessions: u32,
    /// Programs of the sessions, with their process ids.
    pub programs: Vec<String>,
    /// The sessions' processes.
    #[serde(default)]
    pub processes: Vec<ProcessReport>,
    /// Device time charged over its whole life.
    pub used_ns: u64,
    /// Device time held while others waited, over its whole life.
    pub held_ns: u64,
    /// Turns granted over its whole life.
    pub turns: u64,
    /// Sessions over its whole life.
    pub sessions_total: u64,
}

/// Responses of a user-facing vGPU since its node's daemon began. A response is the time from when
/// it gets work until it has none left.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attainment {
    /// All.
    pub count: u64,
    /// Those within the SLA.
    pub in_time: u64,
    /// The longest, in ns.
    pub longest_ns: u64,
}

impl Attainment {
    /// The part that was within the SLA, 0–1; `None` without any.
    #[must_use]
    pub fn ratio(&self) -> Option<f64> {
        #[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
        (self.count > 0).then(|| self.in_time as f64 / self.count as f64)
    }
}

/// What a virtual accelerator's tasks are doing, and did since its node's daemon began. Times from
/// submission to end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskCounts {
    /// Tasks that wait for a device.
    pub waiting: u64,
    /// Tasks that are on one.
    pub running: u64,
    /// Tasks that were done.
    pub done: u64,
    /// Those of them that were within the SLA.
    pub in_time: u64,
    /// The longest time of one, in ns.
    pub longest_ns: u64,
    /// Tasks that ended with an error.
    pub failed: u64,
    /// Tasks that nobody wanted any more before they ran.
    pub dropped: u64,
    /// How often a task was stopped for another one.
    pub stops: u64,
    /// How often a task lost its device or its worker, and began anew.
    pub losses: u64,
    /// How often that was for another task's sake.
    pub resets: u64,
}

/// A virtual accelerator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AcceleratorReport {
    /// Name, unique on the node.
    pub name: String,
    /// User who owns it.
    pub owner: u32,
    /// Its pool.
    pub pool: String,
    /// Weight within its class.
    pub weight: u32,
    /// Memory quota on each device.
    pub memory_bytes: u64,
    /// The SLA of a user-facing one in ns; 0 of a batch one.
    pub sla_ns: u64,
    /// The process that runs its tasks, if it is there.
    pub runner: Option<u32>,
    /// Programs that are connected to it.
    pub connections: u32,
    /// Its tasks.
    pub tasks: TaskCounts,
    /// Its vGPUs, one on each device of the pool.
    pub vgpus: Vec<String>,
    /// Device time charged to them over their whole life.
    pub used_ns: u64,
}

/// A pool of devices.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolReport {
    /// Its name.
    pub name: String,
    /// Which task runs where.
    pub policy: String,
    /// Its devices.
    pub devices: Vec<String>,
    /// Devices that user-facing tasks may use now.
    pub user_devices: u32,
    /// Devices that run batch tasks now.
    pub batch_devices: u32,
}

/// A process that is attached to a vGPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessReport {
    /// Its number. Of a program that is elsewhere that of the process on the node which relays for
    /// it: the gateway, or the server of a virtual machine.
    pub pid: u32,
    /// Where the program is, if it is no process of the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elsewhere: Option<Elsewhere>,
    /// Its user.
    pub uid: u32,
    /// The name of its program.
    pub program: String,
    /// Device memory that it allocated.
    pub memory_bytes: u64,
    /// Pinned host memory.
    pub pinned_bytes: u64,
    /// Device time that it used.
    pub used_ns: u64,
    /// What it is doing.
    pub state: VgpuState,
}

/// Totals and queue state at one instant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Stats {
    /// When.
    pub now_ns: u64,
    /// Policies in force, each once.
    pub policy: String,
    /// vGPUs that hold devices.
    pub holders: Vec<String>,
    /// vGPUs that wait for one.
    pub waiting: u32,
    /// The devices.
    pub devices: Vec<DeviceReport>,
    /// All vGPUs, by name.
    pub vgpus: Vec<VgpuReport>,
    /// All virtual accelerators, by name.
    #[serde(default)]
    pub accelerators: Vec<AcceleratorReport>,
    /// All pools, by name.
    #[serde(default)]
    pub pools: Vec<PoolReport>,
    /// How well the charges add up.
    pub closure: Closure,
    /// Records of scheduling events that were lost because the disk did not keep up with the
    /// journal or a trace, or was full.
    #[serde(default)]
    pub lost_records: u64,
    /// How threads that wait for the device are helped.
    #[serde(default)]
    pub coscheduling: CoschedulingReport,
    /// How its gateway does, if it is to have one.
    #[serde(default)]
    pub gateway: Option<GatewayHealth>,
}

/// How threads that wait for the device are helped to run when their result comes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoschedulingReport {
    /// What the configuration asks for.
    pub wanted: String,
    /// What is done: `off`, `wake`, `slice` or `boost`.
    pub means: String,
    /// Why it is not the best that was asked for.
    pub why: Option<String>,
    /// The watchdog's process, once there is one.
    pub watchdog: Option<u32>,
    /// Threads boosted.
    pub boosts: u64,
    /// Boosts that the thread had not ended itself when they were over.
    pub ended_by_daemon: u64,
    /// Boosts that the watchdog ended.
    pub ended_by_watchdog: u64,
    /// Boosts that a bound on boosted time forbade.
    pub capped: u64,
    /// Threads that were not the tenant's own.
    pub refused: u64,
    /// Early wake-ups.
    pub wakes: u64,
    /// Time that threads ran boosted.
    pub boosted_ns: u64,
}

/// Charges against the device's own report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Closure {
    /// Device time charged to vGPUs, over the device's life.
    pub charged_ns: u64,
    /// Device time the device says it was busy.
    pub busy_ns: u64,
}

impl Closure {
    /// `|charged − busy| / busy`; 0 for a device that did nothing.
    #[must_use]
    pub fn error(&self) -> f64 {
        if self.busy_ns == 0 {
            return 0.0;
        }
        ratio(self.charged_ns.abs_diff(self.busy_ns), self.busy_ns)
    }
}

/// One turn on a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnReport {
    /// The device.
    #[serde(default)]
    pub device: String,
    /// vGPU that held it.
    pub vgpu: String,
    /// When it got the device.
    pub start_ns: u64,
    /// When it gave the device back; absent while it holds it.
    pub end_ns: Option<u64>,
    /// Device time it used in the turn.
    pub used_ns: u64,
}

/// A journal that was recorded on request (`weft_sched::journal`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recording {
    /// The file, in the node's runtime directory; it goes when the connection ends.
    pub path: String,
    /// Names of the vGPUs by their keys in the journal.
    pub vgpus: BTreeMap<u32, String>,
    /// It ends early: it grew too large, or the system was too slow to write it.
    pub cut: bool,
}

/// Recent turns, oldest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timeline {
    /// The turns.
    pub turns: Vec<TurnReport>,
    /// Older turns that the node no longer has.
    pub dropped: u64,
}

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Finding {
    /// As it should be.
    Good,
    /// Works, with a restriction.
    Warning,
    /// Does not work.
    Bad,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DoctorCheck {
    /// What.
    pub subject: String,
    /// How it is.
    pub finding: Finding,
    /// In words, with what to do.
    pub detail: String,
}

/// The state of the node's health.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DoctorReport {
    /// All that was looked at.
    pub checks: Vec<DoctorCheck>,
}

/// A part of a whole; 0 of nothing.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
pub fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_with_an_unknown_field_is_refused() {
        let line = r#"{"op":"set","name":"a","wait":3}"#;
        assert!(serde_json::from_str::<Request>(line).unwrap_err().to_string().contains("wait"));
        let request: Request = serde_json::from_str(r#"{"op":"list"}"#).unwrap();
        assert_eq!(request, Request::List);
    }
}
