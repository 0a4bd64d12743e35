//! What the endpoint of a compute host must hold: rows, which are a pure function of the store.

use std::collections::{BTreeMap, BTreeSet};

pub use weft_api::endpoint::GrantRow;

use crate::provision::{Failure, is_shared};
use crate::store::{CgpuRow, InstanceRow, Port};

/// The rows of an instance; none before it has a port. cGPUs of one node share an address, and
/// those of a node with which the VM shares memory have none.
#[must_use]
pub fn rows(
    instance: &InstanceRow,
    cgpus: &[CgpuRow],
    gateways: &BTreeMap<String, String>,
) -> Vec<GrantRow> {
    let Some(Port { tap, mac, ip }) = &instance.found.port else { return Vec::new() };
    let row = |cgpu: &CgpuRow| {
        Some(GrantRow {
            instance: instance.id.clone(),
            host: instance.found.host.clone().unwrap_or_default(),
            tap: tap.clone(),
            mac: mac.clone(),
            ip: ip.clone(),
            masked: cgpu.masked.clone().filter(|masked| !is_shared(masked))?,
            node: gateways.get(&cgpu.node)?.clone(),
            generation: instance.generation,
        })
    };
    let rows: BTreeSet<GrantRow> = cgpus.iter().filter_map(row).collect();
    rows.into_iter().collect()
}

/// The endpoints of all compute hosts.
pub trait Endpoint: Send + Sync + std::fmt::Debug {
    /// An instance's rows, in the place of those that it had. Repeated, it does nothing.
    ///
    /// # Errors
    /// Why they are not in force.
    fn put(&self, instance: &str, rows: &[GrantRow]) -> Result<(), Failure>;

    /// Whether exactly these rows of an instance are in force.
    ///
    /// # Errors
    /// Why nobody knows.
    fn holds(&self, instance: &str, rows: &[GrantRow]) -> Result<bool, Failure>;

    /// No rows of an instance, and no connection that they let through: on the compute host where
    /// its VM is, or on all if nobody knows it. Repeated, it does nothing.
    ///
    /// # Errors
    /// Why some may be in force.
    fn withdraw(&self, instance: &str, host: Option<&str>) -> Result<(), Failure>;

    /// Withdraws an instance's rows once more; whether what they let through has ended: it has
    /// where they lead anywhere, and somebody is there now and says so. An endpoint that was taken
    /// out of service while it was away has cut nobody off, wherever it was put back.
    fn cut(&self, instance: &str, host: Option<&str>) -> bool {
        self.withdraw(instance, host).is_ok()
    }

    /// Instances with rows, as far as anybody says.
    fn instances(&self) -> Ruled;
}

/// Instances with rows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ruled {
    /// Those that are known, with the host whose endpoint has them where there are several.
    pub instances: Vec<(String, Option<String>)>,
    /// Why there may be others: the first who did not say.
    pub unanswered: Option<Failure>,
}

impl Ruled {
    /// What somebody said or why not.
    #[must_use]
    pub fn of(said: Result<Vec<(String, Option<String>)>, Failure>) -> Self {
        match said {
            Ok(instances) => Self { instances, unanswered: None },
            Err(failure) => Self { instances: Vec::new(), unanswered: Some(failure) },
        }
    }

    /// And what somebody else said.
    pub fn add(&mut self, other: Self) {
        self.instances.extend(other.instances);
        self.unanswered = self.unanswered.take().or(other.unanswered);
    }
}
