//! Rows.

use serde::{Deserialize, Serialize};
use weft_api::v1::{Event, InstanceState, Locality, Mode, OperationKind, OperationState, Role};

use crate::plan::{self, Step};

/// A token, without its secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenRow {
    /// What it is for.
    pub name: String,
    /// The project; none for all.
    pub project: Option<String>,
    /// What its bearer may.
    pub role: Role,
    /// Since when.
    pub created_ms: u64,
    /// Until when; for ever if nobody said.
    pub expires_ms: Option<u64>,
}

impl TokenRow {
    /// Whether it is nobody's any longer.
    #[must_use]
    pub fn has_expired(&self, now_ms: u64) -> bool {
        self.expires_ms.is_some_and(|end| end <= now_ms)
    }
}

/// A GPU node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeRow {
    /// Its name.
    pub name: String,
    /// Its daemon's admin socket.
    pub admin: String,
    /// Where its gateway listens, or is reached.
    pub gateway: String,
    /// Whether somebody said so; else it is what the node says.
    pub gateway_given: bool,
    /// The compute host that it is on.
    pub host: String,
    /// Since when.
    pub created_ms: u64,
    /// GPUs that it has; only read.
    pub gpus: u32,
    /// The digest of its gateway's public key, in hex; empty if it is not known.
    pub identity: String,
}

/// The endpoint of a compute host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointRow {
    /// The compute host.
    pub host: String,
    /// Its socket.
    pub socket: String,
    /// Whether it leads VMs that it does not lead yet.
    pub in_service: bool,
    /// Since when.
    pub created_ms: u64,
}

/// A GPU that a node has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuFound {
    /// Its name there.
    pub device: String,
    /// Product name.
    pub product: String,
    /// Its memory.
    pub memory_mib: u64,
}

/// A GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuRow {
    /// Its number.
    pub id: u32,
    /// Its node.
    pub node: String,
    /// What the node says of it.
    pub found: GpuFound,
    /// Memory given to cGPUs.
    pub held_mib: u64,
    /// cGPUs on it.
    pub cgpus: u32,
    /// Whether one VM has it alone.
    pub exclusive: bool,
    /// Whether new cGPUs may be put on it.
    pub in_service: bool,
    /// Counts its changes.
    pub generation: u64,
    /// Since when its node does not have it in service; nothing new is put on it.
    pub lost_ms: Option<u64>,
}

/// What a cGPU takes of a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taken {
    /// The instance.
    pub instance: String,
    /// The GPU.
    pub gpu: u32,
    /// Memory of it.
    pub memory_mib: u64,
    /// Whether it has the GPU alone.
    pub mode: Mode,
    /// The GPU's generation when that was decided; 0 where it is known to be so.
    pub generation: u64,
}

/// What is wanted of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// It is to be there.
    Present,
    /// It is to be gone.
    Absent,
}

/// Steps that were done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Marks(pub u32);

impl Marks {
    /// Whether a step was done.
    #[must_use]
    pub fn has(self, step: Step) -> bool {
        self.0 & step.bit() != 0
    }

    /// These and that one.
    #[must_use]
    pub fn with(self, step: Step) -> Self {
        Self(self.0 | step.bit())
    }
}

/// What an instance is to be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    /// How many cGPUs.
    pub cgpus: u32,
    /// Memory of each, as asked for.
    pub memory_mib: u64,
    /// Whether their GPUs are its own.
    pub mode: Mode,
    /// Where they are.
    pub locality: Locality,
    /// Weight of shared ones.
    pub weight: u32,
    /// Their SLA, 0 for none.
    pub sla_us: u64,
    /// What runs in the VM.
    pub user_data: String,
    /// The compute host that it must be on.
    pub host: Option<String>,
    /// What it is made of, where that was said.
    #[serde(default, skip_serializing_if = "Machine::is_default")]
    pub machine: Machine,
}

/// What a VM is made of, in the words of the cloud that makes it: the control plane's own where
/// nothing is said.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Id of the image.
    #[serde(default)]
    pub image: Option<String>,
    /// Name of the flavor.
    #[serde(default)]
    pub flavor: Option<String>,
    /// Id of the network.
    #[serde(default)]
    pub network: Option<String>,
}

impl Machine {
    /// Whether all of it is the control plane's own.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// Where a VM is attached to the network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    /// The interface on its host.
    pub tap: String,
    /// The VM's hardware address.
    pub mac: String,
    /// The VM's address.
    pub ip: String,
}

impl Port {
    /// The hardware address of what a relay leads, which has no port on its host.
    pub const RELAYED: &str = "00:00:00:00:00:00";

    /// Whether an endpoint of its host leads it.
    #[must_use]
    pub fn is_led(&self) -> bool {
        self.mac != Self::RELAYED
    }
}

/// What was found out about an instance while it was made.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// Its compute host.
    #[serde(default)]
    pub host: Option<String>,
    /// Its port.
    #[serde(default)]
    pub port: Option<Port>,
}

/// A VM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstanceRow {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Its project.
    pub project: String,
    /// What is wanted.
    pub wanted: Wanted,
    /// What was done.
    pub marks: Marks,
    /// What it is to be.
    pub spec: Spec,
    /// A number that no other live instance has.
    pub slot: u32,
    /// A number that grows with each instance.
    pub generation: u64,
    /// What was found out.
    pub found: Found,
    /// Why it failed.
    pub failure: Option<String>,
    /// The newest operation on it.
    pub operation: String,
    /// Since when.
    pub created_ms: u64,
    /// When it was ready.
    pub ready_ms: Option<u64>,
    /// When nothing of it was left.
    pub ended_ms: Option<u64>,
}

impl InstanceRow {
    /// How far it is.
    #[must_use]
    pub fn state(&self) -> InstanceState {
        match (self.wanted, self.ended_ms.is_some(), self.failure.is_some()) {
            (_, true, true) => InstanceState::Failed,
            (_, true, false) => InstanceState::Terminated,
            (Wanted::Absent, false, _) => InstanceState::Terminating,
            (Wanted::Present, false, _) if self.plan().is_empty() => InstanceState::Ready,
            (Wanted::Present, false, _) => InstanceState::Building,
        }
    }

    /// What is to be done, in order.
    #[must_use]
    pub fn plan(&self) -> Vec<Step> {
        plan::plan(self.wanted, self.marks)
    }
}

/// A cGPU, also one that was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CgpuRow {
    /// Its id.
    pub id: String,
    /// The instance.
    pub instance: String,
    /// The project.
    pub project: String,
    /// Its number in the instance.
    pub ordinal: u32,
    /// The GPU.
    pub gpu: u32,
    /// The node.
    pub node: String,
    /// The GPU's name on the node.
    pub device: String,
    /// Memory of it.
    pub memory_mib: u64,
    /// Whether it has the GPU alone.
    pub mode: Mode,
    /// Its weight.
    pub weight: u32,
    /// The address at which the VM finds it.
    pub masked: Option<String>,
    /// The node's grant: a secret, forgotten when it is taken back.
    pub token: Option<String>,
    /// From when.
    pub from_ms: u64,
    /// To when.
    pub to_ms: Option<u64>,
    /// Device time that it took.
    pub used_ns: Option<u64>,
}

impl CgpuRow {
    /// Its vGPU's name on the node.
    #[must_use]
    pub fn vgpu(&self) -> String {
        format!("{}{}", VGPU_PREFIX, self.id)
    }
}

/// How the vGPUs of all instances are called on their nodes.
pub const VGPU_PREFIX: &str = "cgpu-";

/// What a step brought to light.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Effects {
    /// Masked addresses, by cGPU.
    pub masked: Vec<(String, String)>,
    /// Grants, by cGPU.
    pub tokens: Vec<(String, String)>,
    /// What was found out about the VM.
    pub found: Option<Found>,
    /// When it was ready.
    pub ready_ms: Option<u64>,
}

/// A step that was done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Done {
    /// Which.
    pub step: Step,
    /// What it brought to light.
    pub effects: Effects,
    /// What is told of it.
    pub event: Event,
}

/// Somebody's act.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Audit {
    /// When.
    pub at_ms: u64,
    /// The token's name.
    pub actor: String,
    /// Its project.
    pub project: Option<String>,
    /// The call.
    pub action: String,
    /// What it was about.
    pub target: String,
    /// The status of the answer.
    pub status: u16,
}

/// A key under which a request may be repeated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    /// Whose.
    pub owner: String,
    /// The key.
    pub key: String,
    /// A digest of the request.
    pub digest: [u8; 32],
}

/// An instance to make, and what it takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reservation {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Its project.
    pub project: String,
    /// What it is to be.
    pub spec: Spec,
    /// Its operation's id.
    pub operation: String,
    /// A cGPU each, by ordinal.
    pub taken: Vec<Taken>,
    /// The key, if there is one: of the request, and so of all that are reserved together.
    pub key: Option<Key>,
    /// How many instances its project may make in a day (UTC), this one among them; any number if
    /// that is not bounded.
    pub launches_per_day: Option<u32>,
    /// Who asked.
    pub audit: Audit,
}

/// An operation, without its events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperationRow {
    /// Its id.
    pub id: String,
    /// What it does.
    pub kind: OperationKind,
    /// The instance.
    pub instance: String,
    /// The project.
    pub project: String,
    /// How far it is.
    pub state: OperationState,
    /// Since when.
    pub created_ms: u64,
    /// Why it was given up.
    pub failure: Option<String>,
}
