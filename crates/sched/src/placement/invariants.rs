//! What must hold after every step, worked out from the grants that an observer saw and not from
//! what the cluster believes.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

use super::cluster::Cluster;
use super::types::{GpuKey, GrantKey, HostKey, Locality, Mode, Placement, Request};

/// A rule that does not hold, in words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct Broken {
    /// What is wrong, and where.
    pub what: String,
}

/// An observer's own book of grants.
#[derive(Clone, Debug, Default)]
pub struct Audit {
    grants: BTreeMap<GrantKey, (Request, Placement)>,
}

/// What grants hold of a GPU.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    memory: u64,
    cgpus: u32,
    grants: u32,
    exclusive: u32,
}

fn broken(what: String) -> Result<(), Broken> {
    Err(Broken { what })
}

impl Audit {
    /// A grant was committed.
    ///
    /// # Errors
    /// If it is not what was asked for.
    pub fn committed(
        &mut self,
        cluster: &Cluster,
        grant: GrantKey,
        request: &Request,
        placement: &Placement,
    ) -> Result<(), Broken> {
        is_as_asked(cluster, grant, request, placement)?;
        self.grants.insert(grant, (*request, placement.clone()));
        Ok(())
    }

    /// A grant was released.
    pub fn released(&mut self, grant: GrantKey) {
        self.grants.remove(&grant);
    }

    /// Grants that are in force.
    pub fn grants(&self) -> impl Iterator<Item = (&GrantKey, &(Request, Placement))> {
        self.grants.iter()
    }

    /// Holds the cluster against the book: nothing is over-committed, exclusive means alone, the
    /// sums of what is held and of what is left are right, for each GPU and each host.
    ///
    /// # Errors
    /// The first rule that does not hold.
    pub fn check(&self, cluster: &Cluster) -> Result<(), Broken> {
        let (gpus, hosts) = self.sums();
        for (key, gpu) in (0..).map(GpuKey).zip(cluster.gpus()) {
            let held = gpus.get(&key).copied().unwrap_or_default();
            if held.memory > gpu.capacity {
                return broken(alloc::format!(
                    "{key} has {} of memory and {} are given away",
                    gpu.capacity,
                    held.memory
                ));
            }
            if held.exclusive > 0 && (held.exclusive, held.cgpus, held.grants) != (1, 1, 1) {
                return broken(alloc::format!("{key} is exclusive and has {} cGPUs", held.cgpus));
            }
            if (gpu.held, gpu.cgpus, gpu.is_exclusive)
                != (held.memory, held.cgpus, held.exclusive > 0)
            {
                return broken(alloc::format!("{key} is {gpu:?} and grants hold {held:?}"));
            }
        }
        for (key, host) in (0..).map(HostKey).zip(cluster.hosts()) {
            let (cpu_milli, host_memory) = hosts.get(&key).copied().unwrap_or_default();
            let left = (host.cpu_milli_free(), host.host_memory_free());
            let due =
                (host.cpu_milli.checked_sub(cpu_milli), host.host_memory.checked_sub(host_memory));
            if (Some(left.0), Some(left.1)) != due {
                return broken(alloc::format!("{key} has {left:?} left and {due:?} are due"));
            }
        }
        let known: Vec<GrantKey> = cluster.grants().map(|(grant, _)| grant).collect();
        if !known.iter().eq(self.grants.keys()) {
            return broken(alloc::format!("the cluster has the grants {known:?}"));
        }
        Ok(())
    }

    fn sums(&self) -> (BTreeMap<GpuKey, Held>, BTreeMap<HostKey, (u64, u64)>) {
        let (mut gpus, mut hosts) = (BTreeMap::<GpuKey, Held>::new(), BTreeMap::new());
        for (request, placement) in self.grants.values() {
            let mut seen = Vec::new();
            for cgpu in &placement.cgpus {
                let held = gpus.entry(cgpu.gpu).or_default();
                held.memory += cgpu.memory;
                held.cgpus += 1;
                held.exclusive += u32::from(request.mode == Mode::Exclusive);
                if !seen.contains(&cgpu.gpu) {
                    held.grants += 1;
                    seen.push(cgpu.gpu);
                }
            }
            if let Some(on) = &placement.host {
                let sum: &mut (u64, u64) = hosts.entry(on.host).or_default();
                *sum = (sum.0 + on.cpu_milli, sum.1 + on.host_memory);
            }
        }
        (gpus, hosts)
    }
}

/// Number, memory, kind, service and place of what was given.
fn is_as_asked(
    cluster: &Cluster,
    grant: GrantKey,
    request: &Request,
    placement: &Placement,
) -> Result<(), Broken> {
    if placement.cgpus.len() != request.cgpus as usize || placement.mode != request.mode {
        return broken(alloc::format!("{grant} asked for {request:?} and has {placement:?}"));
    }
    let on = placement.host.as_ref();
    let host_is_right = match request.locality {
        Locality::Remote => on.is_none(),
        Locality::Local => on.is_some(),
        Locality::LocalTo(host) => on.is_some_and(|on| on.host == host),
    };
    let takes = on.is_none_or(|on| {
        (on.cpu_milli, on.host_memory) == (request.cpu_milli, request.host_memory)
    });
    if !host_is_right || !takes {
        return broken(alloc::format!("{grant} asked for {request:?} and is on {on:?}"));
    }
    for cgpu in &placement.cgpus {
        let Some(gpu) = cluster.gpus().get(cgpu.gpu.0 as usize) else {
            return broken(alloc::format!("{grant} has {}, which is not there", cgpu.gpu));
        };
        let kind = cluster.hosts()[gpu.host.0 as usize].kind();
        let is_here = on.is_none_or(|on| on.host == gpu.host);
        let memory = match request.mode {
            Mode::Shared => cgpu.memory == request.memory,
            Mode::Exclusive => cgpu.memory == gpu.capacity && gpu.capacity >= request.memory,
        };
        if !(is_here && memory && gpu.is_in_service && request.kinds.has(kind)) {
            return broken(alloc::format!("{grant} asked for {request:?} and has {cgpu:?}"));
        }
    }
    Ok(())
}
