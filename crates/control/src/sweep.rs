//! Looks for what should not be there, and for what should be and is not: after a start, and every
//! now and then.
//!
//! Steps clean up after themselves; what is found here was left by a store that was restored from a
//! copy, a VM that ended of itself, or a hand that helped.

use std::collections::{BTreeMap, BTreeSet};

use crate::engine::Engine;
use crate::execute::World;
use crate::plan::Step;
use crate::provision::{Failure, VmState};
use crate::store::{NodeRow, Part, VGPU_PREFIX, Wanted};

/// Nodes that are looked at.
const NODES_MAX: u32 = 100_000;

/// The least memory of a cGPU that hosts are said to have room for, as in the paper.
const MIB_OF_CGPU: u64 = 1_024;

/// What a sweep found and did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Swept {
    /// VMs that nobody knows, which were ended.
    pub vms: usize,
    /// Instances whose rules nobody knows, which were withdrawn.
    pub rules: usize,
    /// vGPUs that nobody knows, which were removed.
    pub vgpus: usize,
    /// Instances that are removed because their VM is gone.
    pub lost: usize,
    /// Instances whose rules were put back.
    pub restored: usize,
}

/// Everything that is wanted is begun, and everything else removed.
///
/// # Errors
/// The first that could not be looked at; the rest is done all the same.
pub fn sweep(engine: &Engine) -> Result<Swept, Failure> {
    let world = engine.world();
    // What is there is looked at before what is known: what is made meanwhile is known then.
    let vms = world.provisioner.inventory()?;
    let ruled = world.endpoint.instances()?;
    let nodes = world.store.nodes(&Part { limit: NODES_MAX, after: None, project: None })?;
    let mut vgpus = Vec::new();
    offer(world, &nodes);
    for (name, node) in nodes {
        match world.nodes.vgpus(&node.admin) {
            Ok(found) => vgpus.push((node.admin, found)),
            Err(failure) => tracing::warn!(node = name, why = failure.words, "not looked at"),
        }
    }
    let live: BTreeSet<String> = world.store.live()?.into_iter().collect();
    let mut swept = Swept::default();
    let mut failed: Option<Failure> = None;
    let mut note = |done: Result<usize, Failure>| {
        done.unwrap_or_else(|failure| {
            failed.get_or_insert(failure);
            0
        })
    };
    for vm in vms.iter().filter(|vm| !live.contains(*vm)) {
        swept.vms += note(world.provisioner.terminate(vm).map(|_| 1));
    }
    for instance in ruled.iter().filter(|instance| !live.contains(*instance)) {
        swept.rules += note(world.endpoint.withdraw(instance).map(|()| 1));
    }
    for (admin, found) in vgpus {
        let unknown = found.into_iter().filter(|vgpu| !is_of(vgpu, &live));
        let unknown: Vec<String> = unknown.collect();
        if !unknown.is_empty() {
            swept.vgpus += note(world.nodes.revoke(&admin, &unknown).map(|gone| gone.len()));
        }
    }
    for id in &live {
        note(look_at(world, id, &mut swept).map(|()| 0));
    }
    for id in world.store.unsettled()? {
        engine.kick(&id);
    }
    failed.map_or(Ok(swept), Err)
}

/// Says how many cGPUs of its own VMs each compute host has room for: one for each GiB of its GPUs
/// that are in service.
fn offer(world: &World, nodes: &[(String, NodeRow)]) {
    let mut hosts: BTreeMap<&str, u64> = BTreeMap::new();
    let part = Part { limit: NODES_MAX, after: None, project: None };
    let Ok(gpus) = world.store.gpus(&part) else { return };
    for (_, gpu) in gpus.iter().filter(|(_, gpu)| gpu.in_service) {
        if let Some((_, node)) = nodes.iter().find(|(_, node)| node.name == gpu.node) {
            *hosts.entry(&node.host).or_default() += (gpu.found.memory_mib / MIB_OF_CGPU).max(1);
        }
    }
    for (host, cgpus) in hosts {
        let cgpus = u32::try_from(cgpus).unwrap_or(u32::MAX);
        if let Err(failure) = world.provisioner.offer(host, cgpus) {
            tracing::warn!(host, why = failure.words, "its cGPUs are not offered");
        }
    }
}

/// Whether a vGPU is one of a live instance: its name is the instance's with a number.
fn is_of(vgpu: &str, live: &BTreeSet<String>) -> bool {
    let cgpu = vgpu.strip_prefix(VGPU_PREFIX).unwrap_or_default();
    cgpu.rsplit_once('-').is_some_and(|(instance, _)| live.contains(instance))
}

/// Whether a ready instance still has its VM and its rules.
fn look_at(world: &World, id: &str, swept: &mut Swept) -> Result<(), Failure> {
    let Some(instance) = world.store.instance(id)? else { return Ok(()) };
    if instance.wanted == Wanted::Absent || !instance.marks.has(Step::Confirm) {
        return Ok(());
    }
    let lost = match world.provisioner.state(id)? {
        VmState::Absent => Some("the VM is gone".to_owned()),
        VmState::Broken(why) => Some(why),
        VmState::Active | VmState::Booting => None,
    };
    if let Some(why) = lost {
        world.store.renounce(id, Some(&why), None)?;
        swept.lost += 1;
        return Ok(());
    }
    let rows = world.rows(&instance, &world.store.instance_cgpus(id)?)?;
    if !world.endpoint.holds(id, &rows)? {
        world.endpoint.put(id, &rows)?;
        swept.restored += 1;
        // Whoever began to remove it meanwhile may have withdrawn them before.
        let now = world.store.instance(id)?;
        if now.is_none_or(|now| now.wanted == Wanted::Absent) {
            world.endpoint.withdraw(id)?;
        }
    }
    Ok(())
}
