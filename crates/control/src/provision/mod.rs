//! Where VMs come from.

pub mod fake;
pub mod local;
pub mod openstack;
pub mod slurm;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::store::{Machine, Port};

/// Gateways of one VM, as many as the last number of a masked address has values.
const GATEWAYS_MAX: u32 = 250;

/// The port at masked addresses, GSaaS' own.
const MASKED_PORT: u16 = 18_515;

/// Refuses a gateway for which a VM has no address left; `whose` it would be.
fn ensure_room(number: u32, whose: &str) -> Result<(), Failure> {
    let words = || format!("{whose}'s GPUs lie on at most {GATEWAYS_MAX} nodes");
    if number < GATEWAYS_MAX { Ok(()) } else { Err(Failure::permanent(words())) }
}

/// Where a VM with a network of its own finds its gateway of this number.
fn link_local(number: u32) -> String {
    format!("169.254.77.{}:{MASKED_PORT}", number + 1)
}

/// How the addresses begin of nodes with which a VM shares memory.
const SHARED: &str = "ivshmem:";

/// cGPUs of one node that a VM has by shared memory; of more their grants do not fit into one
/// message to the node, and the VM goes over the network.
const SHARED_CGPUS_MAX: usize = 32;

/// What stands for a masked address where a VM shares memory with the node of this number.
fn shared(number: u32) -> String {
    format!("{SHARED}{number}")
}

/// Whether that is what an address is: nothing leads there.
#[must_use]
pub fn is_shared(masked: &str) -> bool {
    masked.starts_with(SHARED)
}

/// Why something outside was not done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{words}")]
pub struct Failure {
    /// Trying again does not help.
    pub is_permanent: bool,
    /// Nobody answers who should be there, and may be starting again.
    pub is_away: bool,
    /// What happened.
    pub words: String,
}

impl Failure {
    /// It may go better next time.
    pub fn passing(words: impl Into<String>) -> Self {
        Self { is_permanent: false, is_away: false, words: words.into() }
    }

    /// It never will.
    pub fn permanent(words: impl Into<String>) -> Self {
        Self { is_permanent: true, is_away: false, words: words.into() }
    }

    /// It will when somebody is there again who does not answer now.
    pub fn away(words: impl Into<String>) -> Self {
        Self { is_permanent: false, is_away: true, words: words.into() }
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::passing(error.to_string())
    }
}

/// A VM to make.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmSpec {
    /// Its id.
    pub id: String,
    /// What people call it.
    pub name: String,
    /// Whose it is.
    pub project: String,
    /// A number that no other VM has.
    pub slot: u32,
    /// How many cGPUs it has.
    pub cgpus: u32,
    /// The compute host that it must be on.
    pub host: Option<String>,
    /// What its program finds in the environment.
    pub environment: Vec<(String, String)>,
    /// Masked addresses, each with the grants that are shown there: secrets.
    pub gateways: Vec<(String, Vec<String>)>,
    /// Tenant sockets of the nodes with which the VM shares memory, by what stands for the address.
    #[serde(default)]
    pub nodes: BTreeMap<String, PathBuf>,
    /// The shell script that runs when it has booted.
    pub user_data: String,
    /// What it is made of.
    #[serde(default)]
    pub machine: Machine,
}

/// How what a VM must know of its cGPUs comes to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// It is made with it.
    WithVm,
    /// Whoever asked for it fetches it.
    Fetched,
}

/// How often to look for what comes of itself: a port, a booted VM, one that is gone.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// How far a VM is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VmState {
    /// Nobody knows it.
    Absent,
    /// It boots.
    Booting,
    /// It runs.
    Active,
    /// It came to nothing.
    Broken(String),
}

/// Is told of VMs about which something changed.
#[derive(Clone)]
pub struct Notice(Arc<dyn Fn(&str) + Send + Sync>);

impl Notice {
    /// Calls `told` with ids of VMs.
    #[must_use]
    pub fn new(told: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self(Arc::new(told))
    }

    /// Something came of this VM.
    pub fn tell(&self, id: &str) {
        (self.0)(id);
    }
}

impl std::fmt::Debug for Notice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Notice")
    }
}

/// How a VM is that has lost what it reaches its cGPUs by on its own host.
pub(crate) const UNSHARED: &str = "no memory is shared with the VM";

/// A hypervisor, a cloud, or what stands for one. All calls may be repeated, after a crash too.
pub trait Provisioner: Send + Sync + std::fmt::Debug {
    /// What it is, and whether it works here.
    ///
    /// # Errors
    /// Why it does not.
    fn check(&self) -> Result<String, Failure>;

    /// Where a VM finds its gateway of this number; chosen before there is a VM.
    ///
    /// # Errors
    /// If there are too many.
    fn masked(&self, slot: u32, number: u32) -> Result<String, Failure>;

    /// Where a VM finds the node of this number whose GPUs are on its own host, of which it has so
    /// many cGPUs: memory that both share, where that can be.
    ///
    /// # Errors
    /// If there are too many.
    fn masked_here(&self, slot: u32, number: u32, _cgpus: usize) -> Result<String, Failure> {
        self.masked(slot, number)
    }

    /// Whether a project may have a VM that is made of this, `local` cGPUs of whose own host are in
    /// it; asked before anything is reserved.
    ///
    /// # Errors
    /// Why it may not.
    fn offers(
        &self,
        _project: &str,
        machine: &Machine,
        _local: Option<u32>,
    ) -> Result<(), Failure> {
        let Machine { image, flavor, network } = machine;
        let said = [("image", image), ("flavor", flavor), ("network", network)];
        match said.into_iter().find(|(_, said)| said.is_some()) {
            Some((what, _)) => Err(Failure::permanent(format!(
                "`{what}` is of OpenStack's VMs, and this control plane makes none"
            ))),
            None => Ok(()),
        }
    }

    /// Whether a VM can be told what it must know, with grants as long as they are at most; asked
    /// before anything is reserved.
    ///
    /// # Errors
    /// Why it cannot.
    fn fits(&self, _vm: &VmSpec) -> Result<(), Failure> {
        Ok(())
    }

    /// Asks for a VM, if it is not there.
    ///
    /// # Errors
    /// Why there is none.
    fn create(&self, vm: &VmSpec) -> Result<(), Failure>;

    /// A VM's host and its port there, once it has one.
    ///
    /// # Errors
    /// Why nobody knows.
    fn port(&self, id: &str) -> Result<Option<(String, Port)>, Failure>;

    /// How far a VM is.
    ///
    /// # Errors
    /// Why nobody knows.
    fn state(&self, id: &str) -> Result<VmState, Failure>;

    /// The same of one that is waited for: many may be, and be asked about together.
    ///
    /// # Errors
    /// Why nobody knows.
    fn awaited(&self, id: &str) -> Result<VmState, Failure> {
        self.state(id)
    }

    /// Takes a VM away; whether it is gone already.
    ///
    /// # Errors
    /// Why it may still be there.
    fn terminate(&self, id: &str) -> Result<bool, Failure>;

    /// Whether a VM that was taken away has ended: a batch system's job is not this one's to end.
    fn ends(&self) -> bool {
        true
    }

    /// The VMs that there are.
    ///
    /// # Errors
    /// Why nobody knows.
    fn inventory(&self) -> Result<Vec<String>, Failure>;

    /// What a VM printed.
    ///
    /// # Errors
    /// Why nobody knows.
    fn console(&self, id: &str) -> Result<String, Failure>;

    /// How often to look for what comes of itself: a port, a booted VM, one that is gone.
    fn look_again(&self) -> Duration {
        LOOK_AGAIN
    }

    /// From here on `changed` is told of VMs of which something came of itself, by whoever learns
    /// of that sooner than one who looks. All others are looked at.
    fn notify(&self, _changed: Notice) {}

    /// How what a VM must know comes to it.
    fn delivery(&self) -> Delivery {
        Delivery::WithVm
    }

    /// The endpoint of a compute host was taken out of service: it leads no VM that is made from
    /// here on.
    fn endpoint_removed(&self, _host: &str) {}

    /// A compute host has room for so many cGPUs of its own VMs: for whoever decides where VMs
    /// are. Repeated, it does nothing.
    ///
    /// # Errors
    /// Why nobody was told.
    fn offer(&self, _host: &str, _cgpus: u32) -> Result<(), Failure> {
        Ok(())
    }
}
