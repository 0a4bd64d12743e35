//! Which GPUs of a cluster a VM's cGPUs are given, of which nothing is shared with a clock, a store
//! or a network: the control plane and the simulator ask the same [`Cluster`].
//!
//! [`Cluster::place`] decides and changes nothing; [`Cluster::commit`] carries a decision out if
//! nothing that it rests on has changed meanwhile (each GPU has a generation), so that several
//! replicas may decide at once. A policy is one file with two functions, and one line in the
//! registry: *which GPU of a host* takes the next shared cGPU, and *how good it is* to give a
//! request to a host. The hosts' ranks for each shape of request stand in a tournament that is
//! brought up to date by the hosts that changed since the shape was last asked for. By a policy
//! that likes full hosts only those are ranked that may be the best. When the mix of requests
//! changes ([`Cluster::learn`]) ranks are made anew a few with each decision.
//!
//! # The rules, and where they come from
//!
//! | rule | source |
//! |---|---|
//! | `first_fit`, `least_load`; exclusive or shared, local or remote | GSaaS §III-B, §III-C |
//! | A GPU has room if the request is at most what is free | GSaaS §III-B in words; Algorithm 1 as printed is wrong |
//! | Several shared cGPUs of one VM may lie on one GPU, exclusive ones never | GSaaS §II-C, §IV-D |
//! | A request is met wholly or refused before anything is created | GSaaS §III-C |
//! | Several requests are met together or not at all; equal ones wherever any choice does | Weft |
//! | `host_fit`, `gradient` | models of Weng et al., USENIX ATC '23 |
//! | `fragmentation`: their measure; a host that loses nothing is as good as one that gains | Weft |
//! | A generation for each GPU and host; decide and commit apart | Weft |
//! | The mix is what was really asked for, old requests forgotten ([`Observed`]) | Weft |
//!
//! `docs/placement.md` explains it.

mod alike;
mod best_fit;
mod cluster;
mod first_fit;
mod fragmentation;
mod gradient;
mod host;
mod host_fit;
pub mod invariants;
mod learning;
mod least_load;
mod mix;
mod policy;
mod ranking;
mod rankings;
mod rooms;
mod snapshot;
#[cfg(test)]
mod tests;
mod types;

pub use cluster::{Cluster, Gpu, Host};
pub use learning::LEARN_UNITS;
pub use mix::{CLASSES_MAX, LEARN_EVERY, LEARN_PERCENT, Mix, Observed};
pub use policy::{NAMES, PolicyId, UnknownPolicy, by_name};
pub use types::{
    AMOUNT_MAX, Assigned, CGPUS_MAX, ChangeError, CommitError, GPUS_OF_HOST_MAX, GpuKey, GrantKey,
    HostKey, KINDS_MAX, Kinds, Locality, Mode, OnHost, PlaceError, Placement, Request,
};
