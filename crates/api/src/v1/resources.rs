//! What there is. Times are milliseconds since 1970, memory is in MiB.

use serde::{Deserialize, Serialize};

/// Declares types that are said in JSON: names in snake case, schemas for the OpenAPI document.
macro_rules! said {
    ($($(#[$meta:meta])* pub enum $name:ident $body:tt)+) => {
        $(
            $(#[$meta])*
            #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
            #[serde(rename_all = "snake_case")]
            #[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
            pub enum $name $body
        )+
    };
}

said! {
    /// What a token lets its bearer do. Each may what the ones before may.
    pub enum Role {
        /// See what is the project's.
        Reader,
        /// Create and terminate the project's instances.
        Member,
        /// Everything, in every project.
        Admin,
    }

    /// Whether a cGPU has its GPU to itself.
    pub enum Mode {
        /// The whole GPU.
        Exclusive,
        /// A part of a GPU's memory, and a weighted part of its time.
        Shared,
    }

    /// Where the GPUs are, seen from the VM.
    pub enum Locality {
        /// All on the VM's host.
        Local,
        /// On any host.
        Remote,
    }

    /// How far an instance is.
    pub enum InstanceState {
        /// Its GPUs are reserved; it is being made.
        Building,
        /// It runs, and reaches its cGPUs.
        Ready,
        /// It is being removed.
        Terminating,
        /// It could not be made, or is lost; nothing of it is left but this record.
        Failed,
        /// It is gone.
        Terminated,
    }

    /// How far a cGPU is.
    pub enum CgpuState {
        /// The instance is being made.
        Reserved,
        /// The instance may use it.
        Granted,
        /// It is being taken back.
        Revoking,
        /// It was taken back.
        Released,
    }

    /// What an operation does.
    pub enum OperationKind {
        /// Makes an instance.
        Create,
        /// Removes one.
        Terminate,
    }

    /// How far an operation is.
    pub enum OperationState {
        /// Not done yet.
        Running,
        /// Done.
        Succeeded,
        /// Given up, and rolled back.
        Failed,
    }

    /// What an event says of a step.
    pub enum EventKind {
        /// It was done.
        Done,
        /// It failed and will be tried again.
        Retry,
        /// It failed for good.
        Failed,
    }
}

impl Role {
    /// Its name, as in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Reader => "reader",
            Self::Member => "member",
            Self::Admin => "admin",
        }
    }
}

/// Declares what requests ask for: unknown fields are refused.
macro_rules! asked {
    ($($(#[$meta:meta])* pub struct $name:ident $body:tt)+) => {
        $(
            $(#[$meta])*
            #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
            #[serde(deny_unknown_fields)]
            #[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
            pub struct $name $body
        )+
    };
}

/// Declares what answers say.
macro_rules! answered {
    ($($(#[$meta:meta])* pub struct $name:ident $body:tt)+) => {
        $(
            $(#[$meta])*
            #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
            #[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
            pub struct $name $body
        )+
    };
}

asked! {
    /// A GPU node to use. Its GPUs are asked of the node itself.
    pub struct NewNode {
        /// The admin socket of its daemon, as the control plane reaches it.
        pub admin: String,
        /// Where its gateway listens for endpoints (`host:port`); what the node itself says if
        /// absent.
        #[serde(default)]
        pub gateway: Option<String>,
        /// The compute host that it is on, for local instances; the node's name if absent.
        #[serde(default)]
        pub host: Option<String>,
    }

    /// What may change of a GPU.
    pub struct GpuChange {
        /// Whether new cGPUs may be put on it; those that are there stay.
        pub in_service: bool,
    }

    /// What may change of an endpoint.
    pub struct EndpointChange {
        /// Whether it is to lead VMs that it does not lead yet; those that it leads stay.
        pub in_service: bool,
    }

    /// A VM to make.
    pub struct NewInstance {
        /// Its name; its id if absent.
        #[serde(default)]
        pub name: Option<String>,
        /// The project that it is of; the token's if absent. Only administrators choose.
        #[serde(default)]
        pub project: Option<String>,
        /// How many cGPUs it has, 1–4,096.
        #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 4096))]
        pub cgpus: u32,
        /// Memory of each cGPU. Must be there for shared ones; of exclusive ones the least that
        /// their GPUs must have.
        #[serde(default)]
        pub memory_mib: Option<u64>,
        /// Whether the GPUs are its own; exclusive if absent.
        #[serde(default)]
        pub mode: Option<Mode>,
        /// Where the GPUs are; remote, which is anywhere, if absent.
        #[serde(default)]
        pub locality: Option<Locality>,
        /// Weight of its shared cGPUs against others on their GPUs, 1–10,000; 1 if absent. The
        /// project's quota bounds the sum.
        #[serde(default)]
        #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 10000))]
        pub weight: Option<u32>,
        /// Makes its cGPUs user-facing: their work should be done within so many microseconds,
        /// 100–3,600,000,000; without it they are not. The project's quota says how many may be.
        #[serde(default)]
        #[cfg_attr(feature = "openapi", schema(minimum = 100, maximum = 3600000000_i64))]
        pub sla_us: Option<u64>,
        /// A shell script that runs in the VM when it has booted, with the environment that its
        /// cGPUs need.
        #[serde(default)]
        pub user_data: Option<String>,
        /// Id of the image: a public one, or the project's own, with `weft-endpoint` and
        /// `libcuda.so.1` in it. The control plane's if absent. Of OpenStack's VMs only, as what
        /// follows; version 1.8.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub image: Option<String>,
        /// Name of the flavor, a public one. The control plane's if absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub flavor: Option<String>,
        /// Id of the network: the project's own, or one that is shared with it. The control
        /// plane's if absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub network: Option<String>,
    }

    /// Several equal VMs to make: all of them, or none if there is no room or quota for all. Each
    /// is an instance of its own from then on.
    pub struct NewBatch {
        /// How many, 1–64; of all of them together there are up to 4,096 cGPUs.
        #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 64))]
        pub count: u32,
        /// What each is to be. Their names are its name with `-1`, `-2`, … behind it.
        pub instance: NewInstance,
    }

    /// What may change of a project, which is made if it is not there.
    pub struct ProjectChange {
        /// What it may have.
        pub quota: NewQuota,
    }

    /// What a project may have at once.
    pub struct NewQuota {
        /// cGPUs.
        pub cgpus: u64,
        /// Memory of all of them.
        pub memory_mib: u64,
        /// GPUs to itself.
        pub exclusive_gpus: u64,
        /// Weights of all shared cGPUs together; 1 for each of `cgpus` if absent.
        #[serde(default)]
        pub weight: Option<u64>,
        /// User-facing cGPUs (`sla_us`); none if absent.
        #[serde(default)]
        pub user_facing: Option<u64>,
    }

    /// A token to make.
    pub struct NewToken {
        /// What it is for.
        pub name: String,
        /// The project; none for an administrator of all.
        #[serde(default)]
        pub project: Option<String>,
        /// What its bearer may.
        pub role: Role,
        /// For how many seconds it is good, up to ten years; for ever if absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 315360000))]
        pub valid_s: Option<u64>,
    }
}

answered! {
    /// A GPU node.
    pub struct Node {
        /// Its name.
        pub name: String,
        /// The admin socket of its daemon.
        pub admin: String,
        /// Where its gateway listens.
        pub gateway: String,
        /// The compute host that it is on.
        pub host: String,
        /// GPUs that it has.
        pub gpus: u32,
        /// Since when it is known.
        pub created_ms: u64,
        /// Why it does not answer, if it does not: its GPUs get no new cGPUs until it does.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub unreachable: Option<String>,
        /// For how long nothing has been heard of it, in ms, if it does not answer.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub unheard_ms: Option<u64>,
        /// What is wrong with its gateway, if the node says that it does not listen: programs in
        /// VMs do not reach their cGPUs.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub gateway_failure: Option<String>,
    }

    /// A physical GPU, or a software one.
    pub struct Gpu {
        /// Its number.
        pub id: u32,
        /// Its node.
        pub node: String,
        /// Its name on the node.
        pub device: String,
        /// Product name.
        pub product: String,
        /// Its memory.
        pub memory_mib: u64,
        /// Of that given to cGPUs.
        pub held_mib: u64,
        /// cGPUs on it.
        pub cgpus: u32,
        /// Whether one VM has it alone.
        pub exclusive: bool,
        /// Whether new cGPUs may be put on it.
        pub in_service: bool,
        /// Counts its changes.
        pub generation: u64,
        /// For how long nothing has been heard of its node, in ms, if that does not answer.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub unheard_ms: Option<u64>,
        /// Since when its node does not have it in service: it is gone, drained there, or smaller.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub lost_ms: Option<u64>,
    }

    /// The endpoint of a compute host.
    pub struct Endpoint {
        /// The compute host.
        pub host: String,
        /// Its socket, as the control plane reaches it.
        pub socket: String,
        /// Whether it leads VMs that it does not lead yet.
        pub in_service: bool,
        /// Instances that it leads that are not gone.
        pub instances: u32,
        /// Why it does not answer, if it does not.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub unreachable: Option<String>,
        /// Since when it is known.
        pub created_ms: u64,
    }

    /// A VM's cGPU. Where it really is, only administrators see.
    pub struct Cgpu {
        /// Its id: the instance's, and its number there.
        pub id: String,
        /// The instance.
        pub instance: String,
        /// The project.
        pub project: String,
        /// Its number in the instance: the program's device ordinal.
        pub ordinal: u32,
        /// Memory of it.
        pub memory_mib: u64,
        /// Whether it has its GPU to itself.
        pub mode: Mode,
        /// Weight against others on its GPU.
        pub weight: u32,
        /// How far it is.
        pub state: CgpuState,
        /// The address at which the VM finds it; `ivshmem:N` if it shares memory with the node.
        #[serde(default)]
        pub masked: Option<String>,
        /// The GPU, for administrators.
        #[serde(default)]
        pub gpu: Option<u32>,
        /// The node, for administrators.
        #[serde(default)]
        pub node: Option<String>,
        /// Its vGPU's name on the node, for administrators.
        #[serde(default)]
        pub vgpu: Option<String>,
        /// Since when.
        pub created_ms: u64,
        /// Until when.
        #[serde(default)]
        pub released_ms: Option<u64>,
    }

    /// A VM.
    pub struct Instance {
        /// Its id.
        pub id: String,
        /// Its name.
        pub name: String,
        /// Its project.
        pub project: String,
        /// How far it is.
        pub state: InstanceState,
        /// How many cGPUs it has.
        pub cgpus: u32,
        /// Memory of each, as asked for.
        pub memory_mib: u64,
        /// Whether their GPUs are its own.
        pub mode: Mode,
        /// Where they are.
        pub locality: Locality,
        /// Weight of the shared ones.
        pub weight: u32,
        /// The image that was asked for; version 1.8, as what follows.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub image: Option<String>,
        /// The flavor that was asked for.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub flavor: Option<String>,
        /// The network that was asked for.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub network: Option<String>,
        /// The operation that made it or removes it.
        pub operation: String,
        /// Since when.
        pub created_ms: u64,
        /// When it was ready.
        #[serde(default)]
        pub ready_ms: Option<u64>,
        /// Why it failed.
        #[serde(default)]
        pub failure: Option<String>,
        /// The compute host, for administrators.
        #[serde(default)]
        pub host: Option<String>,
        /// While it is removed and somebody does not answer who has a part in that: who, and what
        /// that means for the project's quota. Only where one instance is shown.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub ending: Option<String>,
    }

    /// VMs of one request.
    pub struct Batch {
        /// Each of them, in the order of their names.
        pub instances: Vec<Instance>,
    }

    /// What an instance must know to reach its cGPUs.
    pub struct Attachment {
        /// What its programs find in the environment.
        pub environment: Vec<Variable>,
        /// Where `weft-endpoint` connects to, with the grants to show there.
        pub gateways: Vec<Gateway>,
    }

    /// A variable of the environment.
    pub struct Variable {
        /// Its name.
        pub name: String,
        /// Its value.
        pub value: String,
    }

    /// A node's gateway.
    pub struct Gateway {
        /// `host:port`.
        pub address: String,
        /// The grants: secrets.
        pub grants: Vec<String>,
    }

    /// Something that takes its time.
    pub struct Operation {
        /// Its id.
        pub id: String,
        /// What it does.
        pub kind: OperationKind,
        /// To which instance.
        pub instance: String,
        /// The project.
        pub project: String,
        /// How far it is.
        pub state: OperationState,
        /// Since when.
        pub created_ms: u64,
        /// What happened, in order; the last 1,000.
        pub events: Vec<Event>,
        /// Why it was given up.
        #[serde(default)]
        pub failure: Option<String>,
    }

    /// A step of an operation.
    pub struct Event {
        /// When.
        pub at_ms: u64,
        /// Which step.
        pub step: String,
        /// What of it.
        pub kind: EventKind,
        /// How long it took, in microseconds.
        pub took_us: u64,
        /// More about it.
        #[serde(default)]
        pub detail: Option<String>,
    }

    /// Whose resources they are.
    pub struct Project {
        /// Its name.
        pub name: String,
        /// What it may have at once.
        pub quota: Quota,
        /// What it has.
        pub used: Quota,
    }

    /// A time that a cGPU was somebody's, for billing.
    pub struct UsageRecord {
        /// The cGPU.
        pub cgpu: String,
        /// The instance.
        pub instance: String,
        /// The project.
        pub project: String,
        /// Whether it had its GPU to itself.
        pub mode: Mode,
        /// Memory of it.
        pub memory_mib: u64,
        /// From when.
        pub from_ms: u64,
        /// To when; absent while it goes on.
        #[serde(default)]
        pub to_ms: Option<u64>,
        /// Device time that its work took, once it is over and if the node said so.
        #[serde(default)]
        pub used_ns: Option<u64>,
    }

    /// What somebody did, or was refused.
    pub struct AuditEntry {
        /// Its number; later ones are larger. With SQLite there are no gaps.
        pub id: u64,
        /// When.
        pub at_ms: u64,
        /// The token's name.
        pub actor: String,
        /// The token's project.
        #[serde(default)]
        pub project: Option<String>,
        /// The call.
        pub action: String,
        /// What it was about.
        pub target: String,
        /// The HTTP status of the answer.
        pub status: u16,
    }

    /// A token, without its secret.
    pub struct Token {
        /// What it is for.
        pub name: String,
        /// The project.
        #[serde(default)]
        pub project: Option<String>,
        /// What its bearer may.
        pub role: Role,
        /// Since when.
        pub created_ms: u64,
        /// Until when; absent for one that does not end by itself.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub expires_ms: Option<u64>,
    }

    /// A token that was made. The secret is said once.
    pub struct CreatedToken {
        /// The token.
        #[serde(flatten)]
        pub token: Token,
        /// What its bearer shows: `Authorization: Bearer SECRET`.
        pub secret: String,
    }
}

/// What a project may have at once, or has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Quota {
    /// cGPUs.
    pub cgpus: u64,
    /// Memory of all of them.
    pub memory_mib: u64,
    /// GPUs to itself.
    pub exclusive_gpus: u64,
    /// Weights of all shared cGPUs together: a GPU that projects share is divided by them.
    #[serde(default)]
    pub weight: u64,
    /// User-facing cGPUs, which go before others.
    #[serde(default)]
    pub user_facing: u64,
}

impl From<NewQuota> for Quota {
    fn from(asked: NewQuota) -> Self {
        let NewQuota { cgpus, memory_mib, exclusive_gpus, weight, user_facing } = asked;
        let (weight, user_facing) = (weight.unwrap_or(cgpus), user_facing.unwrap_or(0));
        Self { cgpus, memory_mib, exclusive_gpus, weight, user_facing }
    }
}

/// Some of many.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Page<T> {
    /// The items, in order.
    pub items: Vec<T>,
    /// What to ask for as `after` to get the next ones; absent after the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}
