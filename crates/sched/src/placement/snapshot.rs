//! A cluster as bytes: what a control plane keeps over a restart, and what a test replays.

use alloc::string::String;
use alloc::vec::Vec;

use super::cluster::Cluster;
use super::mix::{CLASSES_MAX, Mix, WHOLE};
use super::policy::by_name;
use super::types::{GpuKey, GrantKey, HostKey, Kinds, Locality, Placement, Request};
use crate::codec::{Codec, Malformed, Reader, codec};

/// The first number; what another version wrote is refused.
const VERSION: u32 = 1;

impl Codec for Kinds {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
    }

    fn take(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        u64::take(input).map(Self)
    }
}

impl Codec for Locality {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Local => out.push(0),
            Self::LocalTo(host) => {
                out.push(1);
                host.put(out);
            }
            Self::Remote => out.push(2),
        }
    }

    fn take(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        match input.bytes(1)? {
            [0] => Ok(Self::Local),
            [1] => HostKey::take(input).map(Self::LocalTo),
            [2] => Ok(Self::Remote),
            _ => Err(input.malformed("Locality")),
        }
    }
}

codec!(struct Request { cgpus, memory, mode, locality, kinds, cpu_milli, host_memory });

/// What is kept of a host: what it has, and of each GPU memory, service and generation.
struct HostState {
    kind: u32,
    cpu_milli: u64,
    host_memory: u64,
    generation: u64,
    gpus: Vec<(u64, (bool, u64))>,
}

codec!(struct HostState { kind, cpu_milli, host_memory, generation, gpus });

impl Codec for Cluster {
    /// Rankings are not written: they are worked out again. So a mix that is being learnt is in
    /// force for whoever reads this: there is nothing that would have to be ranked by it first.
    fn put(&self, out: &mut Vec<u8>) {
        VERSION.put(out);
        String::from(self.policy.name()).put(out);
        self.newest_mix().classes().to_vec().put(out);
        self.hosts.len().put(out);
        for host in &self.hosts {
            let gpus = host.gpus().map(|gpu| &self.gpus[gpu.0 as usize]);
            HostState {
                kind: u32::from(host.kind()),
                cpu_milli: host.cpu_milli,
                host_memory: host.host_memory,
                generation: host.generation,
                gpus: gpus.map(|gpu| (gpu.capacity, (gpu.is_in_service, gpu.generation))).collect(),
            }
            .put(out);
        }
        self.grants.len().put(out);
        self.grants.iter().for_each(|(grant, placement)| {
            grant.put(out);
            placement.put(out);
        });
    }

    /// Refuses grants that take what there is not.
    fn take(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        if u32::take(input)? != VERSION {
            return Err(input.malformed("cluster of version 1"));
        }
        let policy = by_name(&String::take(input)?);
        let mut cluster = Self::new(policy.map_err(|_| input.malformed("placement policy"))?);
        let classes = Vec::<(Request, u64)>::take(input)?;
        let sum = classes.iter().try_fold(0_u64, |sum, (_, part)| sum.checked_add(*part));
        let is_mix = classes.len() <= CLASSES_MAX && sum.is_some_and(|sum| sum <= WHOLE);
        if !is_mix {
            return Err(input.malformed("mix of requests"));
        }
        cluster.set_mix(Mix::from_parts(&classes));
        let hosts = Vec::<HostState>::take(input)?;
        for host in &hosts {
            let memories: Vec<u64> = host.gpus.iter().map(|gpu| gpu.0).collect();
            let kind = u8::try_from(host.kind).map_err(|_| input.malformed("kind of GPU"))?;
            cluster
                .add_host(kind, host.cpu_milli, host.host_memory, &memories)
                .map_err(|_| input.malformed("host"))?;
        }
        for (grant, mut placement) in Vec::<(GrantKey, Placement)>::take(input)? {
            let written = placement.clone();
            cluster.renew(&mut placement);
            cluster.commit(grant, placement).map_err(|_| input.malformed("grant that fits"))?;
            cluster.grants.insert(grant, written);
        }
        let gpus = hosts.iter().flat_map(|host| &host.gpus);
        for (gpu, (_, (is_in_service, generation))) in (0..).map(GpuKey).zip(gpus) {
            let known = cluster.set_in_service(gpu, *is_in_service);
            known.map_err(|_| input.malformed("GPU"))?;
            cluster.gpus[gpu.0 as usize].generation = *generation;
        }
        for (host, state) in cluster.hosts.iter_mut().zip(&hosts) {
            host.generation = state.generation;
        }
        Ok(cluster)
    }
}

impl Cluster {
    /// Lets a placement rest on the generations that there are.
    fn renew(&self, placement: &mut Placement) {
        for cgpu in &mut placement.cgpus {
            let gpu = self.gpus.get(cgpu.gpu.0 as usize);
            cgpu.generation = gpu.map_or(0, |gpu| gpu.generation);
        }
        if let Some(on) = &mut placement.host {
            let host = self.hosts.get(on.host.0 as usize);
            on.generation = host.map_or(0, |host| host.generation);
        }
    }
}
