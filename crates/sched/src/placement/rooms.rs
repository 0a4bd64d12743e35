//! Hosts in the order of the room that their GPUs have. By a policy that likes full hosts, who goes
//! on from the fullest that may do has found the best before most hosts were looked at.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use super::cluster::Host;
use super::host::View;
use super::rankings::Changes;
use super::types::Request;

/// Changes that may be kept back while nobody goes by the order: to make it anew, as has to be done
/// when more come than are kept, takes as long as some thousands of them.
const BEHIND_MAX: u64 = 256;

/// A host's place in the order: the room of all its GPUs, and its key.
pub(super) type Spot = (u64, u32);

/// By what most of the hosts are told that cannot take a request: to look at them takes longer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Brief {
    cpu_milli: u64,
    host_memory: u64,
    /// Room of the GPU with the most.
    largest: u64,
    /// Memory of the largest of the GPUs that nobody has a part of, and how many there are.
    empty: u64,
    empties: u32,
    kind: u8,
}

impl Brief {
    fn of(view: &View) -> Self {
        let &View { kind, cpu_milli, host_memory, .. } = view;
        let largest = view.rooms().iter().copied().max().unwrap_or(0);
        let mut brief = Self { cpu_milli, host_memory, largest, empty: 0, empties: 0, kind };
        for gpu in view.rooms().iter().zip(view.capacities()).filter(|gpu| View::is_empty(*gpu)) {
            brief.empty = brief.empty.max(*gpu.1);
            brief.empties += 1;
        }
        brief
    }

    /// False only of a host that cannot take the request.
    pub(super) fn may_take(&self, request: &Request) -> bool {
        let has_gpus = match request.is_exclusive() {
            true => self.empty >= request.memory && self.empties >= request.cgpus,
            false => self.largest >= request.memory,
        };
        self.cpu_milli >= request.cpu_milli
            && self.host_memory >= request.host_memory
            && (request.cgpus == 0 || request.kinds.has(self.kind) && has_gpus)
    }
}

/// The order, as hosts were at some change.
#[derive(Clone, Debug, Default)]
pub(super) struct Rooms {
    order: BTreeSet<Spot>,
    /// Of each host the room by which it stands there, and what else is to be known at once.
    hosts: Vec<(u64, Brief)>,
    /// Changes before this are in it.
    seen: u64,
    /// Memory of the smallest and of the largest GPU.
    capacities: (u64, u64),
}

impl Rooms {
    /// Lets the order follow the hosts that changed, or makes it if it is not known which did.
    pub(super) fn follow(&mut self, changes: &Changes, hosts: &[Host]) {
        let of = |host: &Host| (host.view.room(), Brief::of(&host.view));
        if self.hosts.len() == hosts.len() && changes.are_known(self.seen) {
            for key in changes.since(self.seen) {
                let at = key as usize;
                if let (Some(host), Some(stands)) = (hosts.get(at), self.hosts.get_mut(at)) {
                    let old = core::mem::replace(stands, of(host));
                    if old.0 != stands.0 {
                        self.order.remove(&(old.0, key));
                        self.order.insert((stands.0, key));
                    }
                }
            }
        } else {
            self.hosts = hosts.iter().map(of).collect();
            self.order = self.hosts.iter().map(|(room, _)| *room).zip(0..).collect();
            let all = || hosts.iter().flat_map(|host| host.view.capacities().iter().copied());
            self.capacities = (all().min().unwrap_or(0), all().max().unwrap_or(0));
        }
        self.seen = changes.now();
    }

    /// Whether many changes are kept back that can be followed one by one.
    pub(super) fn is_behind(&self, changes: &Changes, hosts: usize) -> bool {
        self.hosts.len() == hosts
            && changes.are_known(self.seen)
            && changes.now() - self.seen >= BEHIND_MAX
    }

    /// Hosts from that place on.
    pub(super) fn from(&self, spot: Spot) -> impl Iterator<Item = (Spot, &Brief)> {
        let of = move |spot: &Spot| Some((*spot, &self.hosts.get(spot.1 as usize)?.1));
        self.order.range(spot..).filter_map(of)
    }

    /// The least and the most that the request takes of a host's room.
    pub(super) fn takes(&self, request: &Request) -> (u64, u64) {
        let (least, most) = match request.is_exclusive() {
            true => (self.capacities.0.max(request.memory), self.capacities.1),
            false => (request.memory, request.memory),
        };
        let cgpus = u64::from(request.cgpus);
        (cgpus.saturating_mul(least), cgpus.saturating_mul(most))
    }
}
