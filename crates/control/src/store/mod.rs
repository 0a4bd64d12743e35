//! What the control plane knows, kept. Each write is one transaction, done or not done when the
//! process is killed; what was answered is on disk.

pub mod postgres;
mod rows;
pub(crate) mod shared;
mod sql;
pub mod sqlite;

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use weft_api::v1::{AuditEntry, Event, Project, Quota};

pub use rows::{
    Audit, CgpuRow, Done, Effects, EndpointRow, Found, GpuFound, GpuRow, InstanceRow, Key, Machine,
    Marks, NodeRow, OperationRow, Port, Reservation, Spec, Taken, TokenRow, VGPU_PREFIX, Wanted,
};

/// How words end about a VM whose host's endpoint was forgotten.
pub(crate) const REMOVED: &str = " was taken out of service";

/// Why an operation failed that made what was terminated meanwhile.
pub(crate) const TERMINATED: &str = "it was terminated";

/// Why nothing was read or written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// A GPU is not as it was when somebody decided.
    #[error("a GPU changed since the decision")]
    Changed,
    /// The project would have more than its quota; who would have what.
    #[error("{0}")]
    Quota(String),
    /// It is there already.
    #[error("{0} is there already")]
    Exists(String),
    /// It is not there.
    #[error("{0} is not there")]
    Missing(String),
    /// Nobody else could administrate.
    #[error("`{0}` is the last administrator's token")]
    LastAdmin(String),
    /// It cannot be, as things are; why.
    #[error("{0}")]
    Refused(String),
    /// It is in use.
    #[error("{0} is in use")]
    InUse(String),
    /// The key was used for another request.
    #[error("the idempotency key was used for another request")]
    KeyReused,
    /// The same request was carried out before; these are its instances.
    #[error("the request was carried out before, for instance {}", .0.join(", "))]
    Repeated(Vec<String>),
    /// Another replica of the control plane leads, here if that is known: only that one writes.
    #[error("{}", not_leader(.0.as_deref()))]
    NotLeader(Option<String>),
    /// The database, or the disk, does not answer.
    #[error("the store cannot be reached or written now: {0}")]
    Away(String),
    /// The store does not work.
    #[error("the store fails: {0}")]
    Broken(String),
}

fn not_leader(leader: Option<&str>) -> String {
    match leader {
        Some(leader) => format!(
            "another replica leads: {leader} has the lease; if it is gone, another one takes over \
             when the lease is over"
        ),
        None => "no replica has the lease now: one of them takes it over soon".to_owned(),
    }
}

/// What a write will have come to. Writes are carried out in the order in which they were begun.
#[derive(Debug)]
pub struct Ticket<T>(Receiver<Result<T, StoreError>>);

impl<T> Ticket<T> {
    /// A ticket, and where its outcome is to be put.
    #[must_use]
    pub fn new() -> (SyncSender<Result<T, StoreError>>, Self) {
        let (sender, receiver) = sync_channel(1);
        (sender, Self(receiver))
    }

    /// Waits for it to be on disk.
    ///
    /// # Errors
    /// Why it is not.
    pub fn wait(self) -> Result<T, StoreError> {
        let ended = || StoreError::Broken("it was closed".to_owned());
        self.0.recv().unwrap_or_else(|_| Err(ended()))
    }
}

/// Who writes, of the control plane's replicas.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Leading {
    /// This process.
    Here,
    /// Another one, or none; where it was last heard of.
    Elsewhere(Option<String>),
}

/// A part of a list: so many items after that one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// At most so many.
    pub limit: u32,
    /// Items behind this one, in the list's order.
    pub after: Option<String>,
    /// Of this project only.
    pub project: Option<String>,
}

/// How much of everything there is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Instances that are not gone.
    pub instances: u64,
    /// Those of them that are neither ready nor failed.
    pub unsettled: u64,
    /// cGPUs that somebody has.
    pub cgpus: u64,
    /// GPUs.
    pub gpus: u64,
    /// Memory of all GPUs, in MiB.
    pub memory_mib: u64,
    /// Of that given to cGPUs.
    pub held_mib: u64,
}

/// Everything that is kept. Lists come in pairs of a cursor and an item.
pub trait Store: Send + Sync + std::fmt::Debug {
    /// Whether it can be read, and written as far as that is known: a write that has been under way
    /// for some seconds hangs, and it is written for that only where the last write failed.
    ///
    /// # Errors
    /// Why not. The same holds for every other call.
    fn check(&self) -> Result<(), StoreError>;
    /// Which control plane this is: six hexadecimal digits, drawn when the store was made.
    fn plane(&self) -> &str;
    /// Who writes. Nothing is to be done in the world outside but here.
    fn leading(&self) -> Leading {
        Leading::Here
    }
    /// How the ids of the instances begin that it makes.
    fn instance_prefix(&self) -> String {
        format!("i{}", self.plane())
    }

    /// The token with this digest.
    fn token(&self, digest: &[u8; 32]) -> Result<Option<TokenRow>, StoreError>;
    /// Tokens by name.
    fn tokens(&self, part: &Part) -> Result<Vec<(String, TokenRow)>, StoreError>;
    /// Keeps a token.
    fn add_token(
        &self,
        token: &TokenRow,
        digest: [u8; 32],
        audit: Option<&Audit>,
    ) -> Result<(), StoreError>;
    /// Gives a token another secret; it is made if it is not there.
    fn replace_token(
        &self,
        token: &TokenRow,
        digest: [u8; 32],
        audit: &Audit,
    ) -> Result<(), StoreError>;
    /// Forgets a token; the last administrator's stays.
    fn remove_token(&self, name: &str, audit: &Audit) -> Result<(), StoreError>;

    /// A project: quota, and what it has.
    fn project(&self, name: &str) -> Result<Option<(Quota, Quota)>, StoreError>;
    /// Projects by name.
    fn projects(&self, part: &Part) -> Result<Vec<(String, Project)>, StoreError>;
    /// Makes a project, or changes its quota.
    fn put_project(
        &self,
        name: &str,
        quota: Quota,
        audit: Option<&Audit>,
    ) -> Result<(), StoreError>;

    /// A node.
    fn node(&self, name: &str) -> Result<Option<NodeRow>, StoreError>;
    /// Nodes by name.
    fn nodes(&self, part: &Part) -> Result<Vec<(String, NodeRow)>, StoreError>;
    /// Makes a node, or changes it: new GPUs are added, and nothing new is put on those that it
    /// does not have in service.
    fn put_node(
        &self,
        node: &NodeRow,
        gpus: &[GpuFound],
        audit: Option<&Audit>,
    ) -> Result<(), StoreError>;
    /// A node's gateway listens elsewhere now, if nobody said where it is reached.
    fn set_gateway(&self, node: &str, gateway: &str) -> Result<(), StoreError>;
    /// Forgets a node without cGPUs.
    fn remove_node(&self, name: &str, audit: &Audit) -> Result<(), StoreError>;
    /// Endpoints by host.
    fn endpoints(&self, part: &Part) -> Result<Vec<(String, EndpointRow)>, StoreError>;
    /// The endpoint of a host.
    fn endpoint(&self, host: &str) -> Result<Option<EndpointRow>, StoreError>;
    /// Uses endpoints, by host and socket; those that are known are where they are said to be now,
    /// and in service or not as before.
    fn put_endpoints(&self, endpoints: &[(String, String)]) -> Result<(), StoreError>;
    /// Drains an endpoint, or puts it back into service.
    fn set_endpoint(
        &self,
        host: &str,
        in_service: bool,
        audit: &Audit,
    ) -> Result<EndpointRow, StoreError>;
    /// Forgets an endpoint. One in service is in use while it leads instances; if it was
    /// drained those are to be removed from here on, and named.
    fn remove_endpoint(&self, host: &str, audit: &Audit) -> Result<Vec<String>, StoreError>;
    /// Live instances that are on a host, with that.
    fn placed(&self) -> Result<Vec<(String, String)>, StoreError>;
    /// A GPU.
    fn gpu(&self, id: u32) -> Result<Option<GpuRow>, StoreError>;
    /// GPUs by number.
    fn gpus(&self, part: &Part) -> Result<Vec<(String, GpuRow)>, StoreError>;
    /// Nodes and GPUs as they are after all writes that were begun.
    fn inventory(&self) -> Ticket<Vec<(NodeRow, Vec<GpuRow>)>>;
    /// What live instances take of GPUs, after all writes that were begun.
    fn taken(&self) -> Ticket<Vec<Taken>>;
    /// What a node has in service now: others are lost, and those that have less memory than is
    /// known of them. Those of them are not any longer that are there again with just the memory
    /// that is known. Whether that changed anything.
    fn see_gpus(&self, node: &str, gpus: &[GpuFound], now_ms: u64) -> Result<bool, StoreError>;
    /// Forgets a GPU that is lost and that nobody has a cGPU of.
    fn remove_gpu(&self, id: u32, audit: &Audit) -> Result<(), StoreError>;
    /// Takes a GPU out of service, or puts it back.
    fn set_gpu(&self, id: u32, in_service: bool, audit: &Audit) -> Ticket<GpuRow>;

    /// Takes GPUs for an instance, if nothing changed since that was decided and the quota allows.
    fn reserve(&self, reservation: Reservation) -> Ticket<InstanceRow>;
    /// The same for several of one request, which have one project and one key: for all of them or
    /// for none. What was decided for each rests on what was there before the first.
    fn reserve_all(&self, wanted: Vec<Reservation>) -> Ticket<Vec<InstanceRow>>;
    /// How many instances a project has made on the day (UTC) of then, as far as they are counted.
    fn launches(&self, project: &str, now_ms: u64) -> Result<u64, StoreError>;
    /// The instances of a request that was carried out under this key, less than a day before, in
    /// order; none if there was no such request.
    fn repeated(&self, key: &Key, now_ms: u64) -> Result<Vec<String>, StoreError>;
    /// An instance.
    fn instance(&self, id: &str) -> Result<Option<InstanceRow>, StoreError>;
    /// Instances that somebody may see, in order of creation.
    fn instances(&self, part: &Part) -> Result<Vec<(String, InstanceRow)>, StoreError>;
    /// Instances with something to be done, those that are removed first.
    fn unsettled(&self) -> Result<Vec<String>, StoreError>;
    /// Instances of which something may be there.
    fn live(&self) -> Result<Vec<String>, StoreError>;
    /// An instance's cGPUs by ordinal.
    fn instance_cgpus(&self, instance: &str) -> Result<Vec<CgpuRow>, StoreError>;
    /// cGPUs that somebody has.
    fn cgpus(&self, part: &Part) -> Result<Vec<(String, CgpuRow)>, StoreError>;
    /// All cGPUs that anybody ever had.
    fn usage(&self, part: &Part) -> Result<Vec<(String, CgpuRow)>, StoreError>;
    /// The last of them, the newest first.
    fn newest_usage(&self, project: Option<&str>, limit: u32) -> Result<Vec<CgpuRow>, StoreError>;
    /// Steps were done, with what is to be known of them.
    fn mark(&self, instance: &str, done: &[Done]) -> Result<(), StoreError>;
    /// Device time that cGPUs have used, before their vGPUs are removed.
    fn keep_used(&self, used_ns: &[(String, u64)]) -> Result<(), StoreError>;
    /// Something happened to an instance.
    fn tell(&self, instance: &str, event: &Event) -> Result<(), StoreError>;
    /// From here on an instance is to be removed. With a failure it stays to be seen.
    fn renounce(
        &self,
        instance: &str,
        failure: Option<&str>,
        audit: Option<&Audit>,
    ) -> Result<InstanceRow, StoreError>;
    /// Nothing of an instance is left: its GPUs are free.
    fn release(&self, instance: &str, now_ms: u64, event: &Event) -> Ticket<()>;
    /// An instance that cannot be removed now does not count for its project any longer; its GPUs
    /// stay taken until it is released.
    fn give_quota_back(&self, instance: &str, event: &Event) -> Result<(), StoreError>;
    /// Counts anew what projects have. For whoever begins to write: a replica of an earlier
    /// version may have written before.
    fn recount(&self) -> Result<(), StoreError>;
    /// A failed instance is not shown any longer. Repeated, it does nothing.
    fn hide(&self, instance: &str, audit: &Audit) -> Result<(), StoreError>;
    /// Forgets instances that ended before then, with their cGPUs, operations and events: those
    /// that ended first, and so many at most. How many they were.
    fn forget(&self, before_ms: u64, most: u32) -> Result<u64, StoreError>;
    /// An operation and its events.
    fn operation(&self, id: &str) -> Result<Option<(OperationRow, Vec<Event>)>, StoreError>;

    /// Adds to the audit.
    fn note(&self, audit: &Audit) -> Result<(), StoreError>;
    /// The audit in order.
    fn audit(&self, part: &Part) -> Result<Vec<(String, AuditEntry)>, StoreError>;
    /// The last of them, the newest first.
    fn newest_audit(&self, limit: u32) -> Result<Vec<AuditEntry>, StoreError>;
    /// How much of everything there is.
    fn counts(&self) -> Result<Counts, StoreError>;
}
