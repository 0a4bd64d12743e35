//! Looks for what should not be there, and for what should be and is not: after a start, and every
//! now and then.
//!
//! Steps clean up after themselves; what is found here was left by a store that was restored from a
//! copy, a VM that ended of itself, or a hand that helped.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::clock;
use crate::engine::Engine;
use crate::execute::World;
use crate::nodes::NodeSeen;
use crate::plan::Step;
use crate::provision::{Failure, VmState};
use crate::rules::Ruled;
use crate::store::{InstanceRow, Leading, NodeRow, Part, Store, StoreError, VGPU_PREFIX, Wanted};

/// Nodes that are looked at.
const NODES_MAX: u32 = 100_000;

/// The least memory of a cGPU that hosts are said to have room for, as in the paper.
const MIB_OF_CGPU: u64 = 1_024;

/// Instances that are forgotten in one transaction: others write in between.
const FORGOTTEN_AT_ONCE: u32 = 100;

/// Such transactions at once: what more there is goes later.
const FORGETTING_MAX: u32 = 100;

/// Why an instance failed whose VM nobody knows any longer.
pub(crate) const VM_GONE: &str = "the VM is gone";

/// What stands between a vGPU and its node in words about one that is gone.
pub(crate) const VGPU_GONE: &str = " is no longer on node ";

/// What a sweep found and did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Swept {
    /// VMs that nobody knows, which were ended.
    pub vms: usize,
    /// Instances whose rules nobody knows, which were withdrawn.
    pub rules: usize,
    /// vGPUs that nobody knows, which were removed.
    pub vgpus: usize,
    /// vGPUs of other control planes: they stay, but sell the same GPUs.
    pub foreign: usize,
    /// Instances that are removed because their VM or a vGPU is gone.
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
    if world.store.leading() != Leading::Here {
        return Err(Failure::passing("this replica does not have the lease now"));
    }
    // Nothing of what follows is needed for that, and it may take long, or come to nothing.
    world.store.unsettled()?.iter().for_each(|id| engine.remind(id));
    // What is there is looked at before what is known: what is made meanwhile is known then. Who
    // does not answer keeps the others from nothing.
    let (vms, no_list) = match world.provisioner.inventory() {
        Ok(vms) => (vms, None),
        Err(failure) => (Vec::new(), Some(failure)),
    };
    let Ruled { instances: ruled, unanswered } = world.endpoint.instances();
    let nodes = world.store.nodes(&Part { limit: NODES_MAX, after: None, project: None })?;
    let mut vgpus = BTreeMap::new();
    offer(world, &nodes);
    for (name, node) in nodes {
        // Why one does not answer is said once.
        if let Ok(found) = ask(world, &node) {
            vgpus.insert(name, (node.admin, found));
        }
    }
    let own = Own::of(world.store.as_ref())?;
    let live = &own.live;
    let mut swept = Swept::default();
    let mut failed: Option<Failure> = no_list.or(unanswered);
    let mut note = |done: Result<usize, Failure>| {
        done.unwrap_or_else(|failure| {
            failed.get_or_insert(failure);
            0
        })
    };
    for vm in vms.iter().filter(|vm| !live.contains(*vm)) {
        swept.vms += note(world.provisioner.terminate(vm).map(|_| 1));
    }
    for (instance, host) in ruled.iter().filter(|(instance, _)| !live.contains(instance)) {
        swept.rules += note(world.endpoint.withdraw(instance, host.as_deref()).map(|()| 1));
    }
    for (node, (admin, found)) in &vgpus {
        let (unknown, foreign): (Vec<String>, Vec<String>) =
            found.iter().filter(|vgpu| !own.is_live(vgpu)).cloned().partition(|vgpu| own.has(vgpu));
        if !unknown.is_empty() {
            swept.vgpus += note(world.nodes.revoke(admin, &unknown, &|_| Ok(()), &|| {}));
        }
        if let Some(first) = foreign.first() {
            swept.foreign += foreign.len();
            tracing::warn!(node, vgpu = first, "another control plane has vGPUs on the node");
        }
    }
    let mut silent = Silent::default();
    for id in live {
        note(look_at(world, id, &vgpus, &mut silent, &mut swept).map(|()| 0));
    }
    world.store.unsettled()?.iter().for_each(|id| engine.kick(id));
    failed.map_or(Ok(swept), Err)
}

/// What [`forget`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forgotten {
    /// So many instances are forgotten.
    pub instances: u64,
    /// There was no more.
    pub is_all: bool,
}

/// Forgets some of what ended longer ago than it is to be kept, by the wall clock.
///
/// # Errors
/// The store's; what was forgotten before is.
pub fn forget(store: &dyn Store, keep: Duration, now_ms: u64) -> Result<Forgotten, StoreError> {
    let before_ms = now_ms.saturating_sub(u64::try_from(keep.as_millis()).unwrap_or(u64::MAX));
    let mut forgotten = Forgotten { instances: 0, is_all: false };
    for _ in 0..FORGETTING_MAX {
        let some = store.forget(before_ms, FORGOTTEN_AT_ONCE)?;
        forgotten.instances += some;
        forgotten.is_all = some < u64::from(FORGOTTEN_AT_ONCE);
        if forgotten.is_all {
            break;
        }
    }
    Ok(forgotten)
}

/// The control plane's vGPUs on a node, whose gateway may listen elsewhere than before, and which
/// may be of another version.
fn ask(world: &World, node: &NodeRow) -> Result<Vec<String>, Failure> {
    let vgpus = world.answered(&node.name, world.nodes.vgpus(&node.admin))?;
    let NodeSeen { gpus, gateway } = world.answered(&node.name, world.nodes.seen(&node.admin))?;
    if world.store.see_gpus(&node.name, &gpus, clock::now_ms())? {
        tracing::warn!(node = node.name, ?gpus, "its GPUs in service are others than before");
        world.allocator.forget();
    }
    // One that is just starting listens later.
    world.allocator.note_gateway(&node.name, gateway.is_some());
    let moved = gateway.filter(|gateway| !node.gateway_given && *gateway != node.gateway);
    if let Some(gateway) = moved {
        tracing::info!(node = node.name, gateway, "its gateway listens there now");
        world.store.set_gateway(&node.name, &gateway)?;
        world.allocator.forget();
    }
    Ok(vgpus)
}

/// Says how many cGPUs of its own VMs each compute host has room for: one for each GiB of its GPUs
/// that are in service.
fn offer(world: &World, nodes: &[(String, NodeRow)]) {
    let mut hosts: BTreeMap<&str, u64> = BTreeMap::new();
    let part = Part { limit: NODES_MAX, after: None, project: None };
    let Ok(gpus) = world.store.gpus(&part) else { return };
    let host_of: BTreeMap<&str, &str> =
        nodes.iter().map(|(name, node)| (name.as_str(), node.host.as_str())).collect();
    for (_, gpu) in gpus.iter().filter(|(_, gpu)| gpu.in_service && gpu.lost_ms.is_none()) {
        if let Some(host) = host_of.get(gpu.node.as_str()) {
            *hosts.entry(host).or_default() += (gpu.found.memory_mib / MIB_OF_CGPU).max(1);
        }
    }
    for (host, cgpus) in hosts {
        let cgpus = u32::try_from(cgpus).unwrap_or(u32::MAX);
        if let Err(failure) = world.provisioner.offer(host, cgpus) {
            tracing::warn!(host, why = failure.words, "its cGPUs are not offered");
        }
    }
}

/// Which vGPUs are this control plane's.
pub(crate) struct Own {
    live: BTreeSet<String>,
    /// How the instances that it makes begin.
    prefix: String,
}

impl Own {
    pub(crate) fn of(store: &dyn Store) -> Result<Self, StoreError> {
        let live = store.live()?.into_iter().collect();
        Ok(Self { live, prefix: store.instance_prefix() })
    }

    /// The instance in a vGPU's name, which is followed by a number.
    fn instance(vgpu: &str) -> &str {
        let cgpu = vgpu.strip_prefix(VGPU_PREFIX).unwrap_or_default();
        cgpu.rsplit_once('-').map_or("", |(instance, _)| instance)
    }

    /// Whether it is one of a live instance.
    fn is_live(&self, vgpu: &str) -> bool {
        self.live.contains(Self::instance(vgpu))
    }

    /// Whether this control plane has made it.
    pub(crate) fn has(&self, vgpu: &str) -> bool {
        let instance = Self::instance(vgpu);
        self.live.contains(instance) || instance.starts_with(&self.prefix)
    }
}

/// The vGPUs found on nodes that answer, by node, with their admin sockets.
type OnNodes = BTreeMap<String, (String, Vec<String>)>;

/// Who did not answer in this sweep, and is asked about no other instance.
#[derive(Default)]
struct Silent {
    provisioner: bool,
    hosts: BTreeSet<String>,
}

/// Whether a ready instance still has its VM, its vGPUs and its rules. To `silent` those are added
/// who do not answer; rules are looked at all the same where only VMs are not known.
fn look_at(
    world: &World,
    id: &str,
    found: &OnNodes,
    silent: &mut Silent,
    swept: &mut Swept,
) -> Result<(), Failure> {
    let Some(instance) = world.store.instance(id)? else { return Ok(()) };
    if instance.wanted == Wanted::Absent || !instance.marks.has(Step::Confirm) {
        return Ok(());
    }
    let state = if silent.provisioner { None } else { Some(world.provisioner.state(id)) };
    silent.provisioner |= state.as_ref().is_some_and(|state| state.as_ref().is_err_and(is_away));
    let lost = match &state {
        Some(Ok(VmState::Absent)) => Some(VM_GONE.to_owned()),
        Some(Ok(VmState::Broken(why))) => Some(why.clone()),
        Some(Ok(VmState::Active | VmState::Booting)) => lost_vgpu(world, id, found)?,
        Some(Err(_)) | None => None,
    };
    if let Some(why) = lost {
        world.store.renounce(id, Some(&why), None)?;
        swept.lost += 1;
        return Ok(());
    }
    let host = instance.found.host.clone().unwrap_or_default();
    if !silent.hosts.contains(&host) {
        let repaired = repair(world, &instance, swept);
        if repaired.as_ref().is_err_and(is_away) {
            silent.hosts.insert(host);
        }
        repaired?;
    }
    state.transpose().map(drop)
}

fn is_away(failure: &Failure) -> bool {
    failure.is_away
}

/// Puts an instance's rules back if they are not there.
fn repair(world: &World, instance: &InstanceRow, swept: &mut Swept) -> Result<(), Failure> {
    let id = &instance.id;
    let rows = world.rows(instance, &world.store.instance_cgpus(id)?)?;
    if !world.endpoint.holds(id, &rows)? {
        world.endpoint.put(id, &rows)?;
        swept.restored += 1;
        // Whoever began to remove it meanwhile may have withdrawn them before.
        let now = world.store.instance(id)?;
        if now.is_none_or(|now| now.wanted == Wanted::Absent) {
            world.withdraw(instance)?;
        }
    }
    Ok(())
}

/// What is to be said of an instance that has lost a vGPU: its grant is gone with it.
fn lost_vgpu(world: &World, id: &str, found: &OnNodes) -> Result<Option<String>, Failure> {
    for cgpu in world.store.instance_cgpus(id)? {
        let (name, node) = (cgpu.vgpu(), &cgpu.node);
        let Some((admin, there)) = found.get(node) else { continue };
        // One that was made since is there now, and one that is being removed is not.
        if there.contains(&name) || world.nodes.vgpus(admin)?.contains(&name) {
            continue;
        }
        let now = world.store.instance(id)?;
        if now.is_some_and(|now| now.wanted == Wanted::Present) {
            return Ok(Some(format!("vGPU {name}{VGPU_GONE}{node}")));
        }
    }
    Ok(None)
}

/// Hears whether nodes that did not answer do so again; whether one does. It may have been started
/// again, and then what leads to it is to be looked at.
pub fn ask_unreachable(world: &World) -> bool {
    let mut answers = false;
    for name in world.allocator.unreachable() {
        match world.store.node(&name) {
            // Whether it answers, `answered` keeps.
            Ok(Some(node)) => answers |= ask(world, &node).is_ok(),
            Ok(None) => world.allocator.note_answer(&name, None),
            Err(_) => {}
        }
    }
    answers
}
