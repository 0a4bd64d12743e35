//! What is asked for, and what is answered.

use alloc::vec::Vec;
use core::fmt;

use crate::codec::{Codec, Malformed, Reader, codec};
use crate::key::key;

/// The most cGPUs of one request.
pub const CGPUS_MAX: u32 = 4_096;
/// The most GPUs of one host.
pub const GPUS_OF_HOST_MAX: usize = 16;
/// The most kinds of GPUs.
pub const KINDS_MAX: u8 = 64;
/// The most memory of a GPU or a host and the most of a host's processors, in their units: sums of
/// [`GPUS_OF_HOST_MAX`] of them times parts per million stay below 2⁶³.
pub const AMOUNT_MAX: u64 = 1 << 32;

key!(
    /// A compute node with GPUs, numbered from 0 in order of creation.
    HostKey(u32), "host "
);
key!(
    /// A GPU of the cluster, numbered from 0 in order of creation.
    GpuKey(u32), "GPU "
);
key!(
    /// A VM's cGPUs, given together and taken back together. The caller chooses the number.
    GrantKey(u64), "grant "
);

/// Whether a cGPU has its GPU to itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Mode {
    /// The whole GPU: nobody else has a part of it, the same VM neither.
    Exclusive,
    /// A part of a GPU's memory. Several cGPUs of one VM may lie on the same GPU (GSaaS §III-C).
    Shared,
}

/// Where the GPUs are, seen from the VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Locality {
    /// All on one host, which the VM is to be created on.
    Local,
    /// All on this host, where the VM is.
    LocalTo(HostKey),
    /// Anywhere, on several hosts too; the VM's own is one of them.
    Remote,
}

/// The kinds of GPUs that will do.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Kinds(pub u64);

impl Kinds {
    /// All kinds.
    pub const ANY: Self = Self(u64::MAX);

    /// One kind, below [`KINDS_MAX`].
    pub fn one(kind: u8) -> Self {
        Self(1_u64.checked_shl(u32::from(kind)).unwrap_or(0))
    }

    /// These and those.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether the kind is one of them.
    pub fn has(self, kind: u8) -> bool {
        self.0 & Self::one(kind).0 != 0
    }
}

impl fmt::Debug for Kinds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "kinds {:#x}", self.0)
    }
}

/// What one VM asks for: all of it or nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Request {
    /// How many cGPUs, up to [`CGPUS_MAX`]; none for a VM that takes only its host's resources.
    pub cgpus: u32,
    /// Memory of each cGPU, in MiB or whatever unit GPUs are counted in; of an exclusive one the
    /// least that its GPU must have.
    pub memory: u64,
    /// Alone or beside others.
    pub mode: Mode,
    /// Where.
    pub locality: Locality,
    /// On what.
    pub kinds: Kinds,
    /// Processors of the VM in thousandths; counted where the VM is local.
    pub cpu_milli: u64,
    /// Main memory of the VM in MiB; counted where the VM is local.
    pub host_memory: u64,
}

impl Request {
    /// So many cGPUs of that memory, anywhere and of any kind.
    pub fn new(cgpus: u32, memory: u64, mode: Mode) -> Self {
        let (locality, kinds) = (Locality::Remote, Kinds::ANY);
        Self { cgpus, memory, mode, locality, kinds, cpu_milli: 0, host_memory: 0 }
    }

    /// The same on one host.
    #[must_use]
    pub fn local(self) -> Self {
        Self { locality: Locality::Local, ..self }
    }

    /// One cGPU of it that takes nothing of a host.
    pub(super) fn single(self) -> Self {
        let locality = Locality::Local;
        Self { cgpus: 1, locality, cpu_milli: 0, host_memory: 0, ..self }
    }

    pub(super) fn is_exclusive(&self) -> bool {
        self.mode == Mode::Exclusive
    }
}

/// One cGPU's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Assigned {
    /// On which GPU.
    pub gpu: GpuKey,
    /// Memory of it: all of the GPU's for an exclusive cGPU.
    pub memory: u64,
    /// The GPU's generation that this was decided on.
    pub generation: u64,
}

/// What a VM takes of its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct OnHost {
    /// Which.
    pub host: HostKey,
    /// Processors in thousandths.
    pub cpu_milli: u64,
    /// Main memory in MiB.
    pub host_memory: u64,
    /// The host's generation that this was decided on.
    pub generation: u64,
}

/// A decision that is not carried out yet. It stands as long as no generation in it has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Placement {
    /// A place for each cGPU; the same GPU may be there several times.
    pub cgpus: Vec<Assigned>,
    /// The VM's host, if the request was local.
    pub host: Option<OnHost>,
    /// Whether the GPUs are the VM's alone.
    pub mode: Mode,
}

/// Why nothing was placed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlaceError {
    /// There is no room for all of it now.
    #[error(
        "there is room for {found} of {asked} cGPUs with {memory} of memory each: ask for less or wait"
    )]
    NoRoom {
        /// How many were asked for.
        asked: u32,
        /// How many would fit where the request may go, one after the other.
        found: u32,
        /// Memory of each.
        memory: u64,
    },
    /// A VM without cGPUs was asked for anywhere.
    #[error("the request asks for nothing: ask for a cGPU, or for processors of a local VM")]
    Nothing,
    /// A cGPU without memory.
    #[error("a shared cGPU without memory: ask for at least 1")]
    Memory,
    /// More than any request may have.
    #[error("{asked} cGPUs: a request has at most {CGPUS_MAX}")]
    TooMany {
        /// How many were asked for.
        asked: u32,
    },
    /// The VM's host is not there.
    #[error("{host} is not known: add it first")]
    UnknownHost {
        /// Which.
        host: HostKey,
    },
}

/// Why a decision was not carried out; the cluster is as it was.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CommitError {
    /// A GPU changed since the decision.
    #[error("{gpu} changed since the decision: decide again")]
    GpuChanged {
        /// Which.
        gpu: GpuKey,
    },
    /// The VM's host changed since the decision.
    #[error("{host} changed since the decision: decide again")]
    HostChanged {
        /// Which.
        host: HostKey,
    },
    /// The decision takes what the cluster does not have.
    #[error("{gpu} has no room for this: the decision is not one of this cluster")]
    NoRoom {
        /// Which.
        gpu: GpuKey,
    },
    /// The decision takes what the host does not have.
    #[error("{host} has no room for this: the decision is not one of this cluster")]
    NoRoomOnHost {
        /// Which.
        host: HostKey,
    },
    /// There is such a grant already.
    #[error("{grant} is there already: release it first")]
    Twice {
        /// Which.
        grant: GrantKey,
    },
}

/// Why the cluster was not changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChangeError {
    /// No such host.
    #[error("{host} is not known: add it first")]
    UnknownHost {
        /// Which.
        host: HostKey,
    },
    /// No such GPU.
    #[error("{gpu} is not known: add it first")]
    UnknownGpu {
        /// Which.
        gpu: GpuKey,
    },
    /// No such grant.
    #[error("{grant} is not known: it was released or never committed")]
    UnknownGrant {
        /// Which.
        grant: GrantKey,
    },
    /// The host would have too many GPUs.
    #[error("a host with {gpus} GPUs: there are at most {GPUS_OF_HOST_MAX}")]
    TooManyGpus {
        /// How many.
        gpus: usize,
    },
    /// A kind that is no number of one.
    #[error("kind {kind} is not known: kinds are 0 to 63")]
    Kind {
        /// The number.
        kind: u8,
    },
    /// A GPU without memory, or more of something than can be counted.
    #[error(
        "an amount of {amount}: amounts are at most {AMOUNT_MAX}, and a GPU's memory at least 1"
    )]
    Amount {
        /// How much.
        amount: u64,
    },
}

codec!(enum Mode { 0 Exclusive {}, 1 Shared {} });

codec!(struct Assigned { gpu, memory, generation });

codec!(struct OnHost { host, cpu_milli, host_memory, generation });

codec!(struct Placement { cgpus, host, mode });
