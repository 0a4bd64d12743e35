//! Nodes and GPUs.

use weft_api::v1::{Gpu, GpuChange, Kind, NewNode, Node, Problem};

use super::{Actor, Answer, Ask, Service, json, missing, named, page, parse, part};
use crate::allocate::broken;
use crate::clock;
use crate::store::{GpuRow, NodeRow, StoreError};
use crate::sweep;

/// GPUs of a node that placement can deal with.
const GPUS_MAX: usize = weft_sched::placement::GPUS_OF_HOST_MAX;

impl Service {
    pub(super) fn node_list(&self, ask: &Ask) -> Answer {
        let part = part(ask)?;
        let found = self.store().nodes(&part).map_err(broken)?;
        page(&part, found, |row| self.shown(row))
    }

    pub(super) fn node_show(&self, ask: &Ask) -> Answer {
        let found = self.store().node(&ask.target).map_err(broken)?;
        json(&self.shown(found.ok_or_else(|| missing("node", &ask.target))?))
    }

    pub(super) fn node_put(&self, actor: &Actor, ask: &Ask) -> Answer {
        let asked: NewNode = parse(ask)?;
        named(&ask.target)?;
        if asked.admin.is_empty() || asked.admin.contains('\0') {
            let words = format!("admin={:?} is no path of a socket", asked.admin);
            return Err(Problem::new(Kind::Invalid, words)
                .hint("say where the node's admin socket is, such as /run/weft/admin.sock"));
        }
        let facts = self.world().nodes.look(&asked.admin).map_err(|failure| {
            Problem::new(Kind::Conflict, failure.words)
                .hint("the node must run, with `remote.listen` set, and let this user administrate")
        })?;
        if facts.gpus.is_empty() || facts.gpus.len() > GPUS_MAX {
            let words = format!("the node has {} GPUs in service", facts.gpus.len());
            return Err(
                Problem::new(Kind::Invalid, words).hint(format!("1 to {GPUS_MAX} can be used"))
            );
        }
        self.ensure_own(&asked.admin)?;
        let name = ask.target.clone();
        let host = asked.host.unwrap_or_else(|| name.clone());
        named(&host)?;
        let node = NodeRow {
            name,
            admin: asked.admin,
            gateway_given: asked.gateway.is_some(),
            gateway: asked.gateway.unwrap_or(facts.gateway),
            host,
            created_ms: clock::now_ms(),
            gpus: 0,
            identity: facts.identity,
        };
        let audit = actor.did(&ask.target);
        let kept = self.store().put_node(&node, &facts.gpus, Some(&audit));
        self.world().allocator.forget();
        kept.map_err(broken)?;
        self.world().allocator.note_answer(&ask.target, None);
        self.node_show(ask)
    }

    /// Refuses a node that another control plane uses: both would sell the same GPUs.
    fn ensure_own(&self, admin: &str) -> Result<(), Problem> {
        let conflict = |words: String| Problem::new(Kind::Conflict, words);
        let found = self.world().nodes.vgpus(admin).map_err(|failure| conflict(failure.words))?;
        let own = sweep::Own::of(self.store()).map_err(broken)?;
        match found.iter().find(|vgpu| !own.has(vgpu)) {
            Some(foreign) => {
                Err(conflict(format!("the node has vGPU {foreign} of another control plane")).hint(
                    "a node belongs to one control plane; if the other one is gone, remove what it \
                 left with `weft rm --force`",
                ))
            }
            None => Ok(()),
        }
    }

    pub(super) fn node_delete(&self, actor: &Actor, ask: &Ask) -> Answer {
        let removed = self.store().remove_node(&ask.target, &actor.did(&ask.target));
        match &removed {
            Ok(()) => self.world().allocator.forget_node(&ask.target),
            Err(_) => self.world().allocator.forget(),
        }
        removed.map(|()| super::Reply::Nothing).map_err(|error| {
            let is_used = matches!(error, StoreError::InUse(_));
            let problem = broken(error);
            if is_used {
                problem.hint("drain its GPUs, and terminate the instances that have them")
            } else {
                problem
            }
        })
    }

    fn shown(&self, row: NodeRow) -> Node {
        let NodeRow { name, admin, gateway, host, created_ms, gpus, .. } = row;
        let allocator = &self.world().allocator;
        let (unreachable, unheard_ms) =
            (allocator.why_unreachable(&name), allocator.unheard_ms(&name));
        let gateway_failure = allocator.gateway_failure(&name);
        Node {
            name,
            admin,
            gateway,
            host,
            gpus,
            created_ms,
            unreachable,
            unheard_ms,
            gateway_failure,
        }
    }

    pub(super) fn gpu_list(&self, ask: &Ask) -> Answer {
        let part = part(ask)?;
        page(&part, self.store().gpus(&part).map_err(broken)?, |row| self.gpu_shown(row))
    }

    fn gpu_number(ask: &Ask) -> Result<u32, Problem> {
        ask.target.parse().map_err(|_| missing("GPU", &ask.target).hint("GPUs have numbers"))
    }

    pub(super) fn gpu_show(&self, ask: &Ask) -> Answer {
        let found = self.store().gpu(Self::gpu_number(ask)?).map_err(broken)?;
        json(&self.gpu_shown(found.ok_or_else(|| missing("GPU", &ask.target))?))
    }

    pub(super) fn gpu_change(&self, actor: &Actor, ask: &Ask) -> Answer {
        let (id, audit) = (Self::gpu_number(ask)?, actor.did(&ask.target));
        let change: GpuChange = parse(ask)?;
        let changed = self.world().allocator.set_gpu(id, change.in_service, &audit);
        json(&self.gpu_shown(changed.map_err(broken)?))
    }

    pub(super) fn gpu_delete(&self, actor: &Actor, ask: &Ask) -> Answer {
        let removed = self.store().remove_gpu(Self::gpu_number(ask)?, &actor.did(&ask.target));
        self.world().allocator.forget();
        removed.map(|()| super::Reply::Nothing).map_err(broken)
    }

    fn gpu_shown(&self, row: GpuRow) -> Gpu {
        Gpu { unheard_ms: self.world().allocator.unheard_ms(&row.node), ..gpu_shown(row) }
    }
}

fn gpu_shown(row: GpuRow) -> Gpu {
    Gpu {
        id: row.id,
        node: row.node,
        unheard_ms: None,
        lost_ms: row.lost_ms,
        device: row.found.device,
        product: row.found.product,
        memory_mib: row.found.memory_mib,
        held_mib: row.held_mib,
        cgpus: row.cgpus,
        exclusive: row.exclusive,
        in_service: row.in_service && row.lost_ms.is_none(),
        generation: row.generation,
    }
}
