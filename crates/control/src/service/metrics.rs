//! Prometheus text.

use std::fmt::Write as _;

use super::{Answer, Reply, Service};
use crate::allocate::broken;
use crate::store::{Counts, Leading};

impl Service {
    pub(super) fn metrics(&self) -> Answer {
        let Counts { instances, unsettled, cgpus, gpus, memory_mib, held_mib } =
            self.store().counts().map_err(broken)?;
        let unreachable = self.world().allocator.unreachable().len() as u64;
        let silent = self.world().allocator.without_gateway() as u64;
        let leads = u64::from(self.store().leading() == Leading::Here);
        let asked = self.places.taken() as u64;
        let mut text = String::new();
        for (name, help, value) in [
            ("weft_cloud_leads", "whether this replica makes changes", leads),
            ("weft_cloud_instances", "instances that are not gone", instances),
            ("weft_cloud_instances_unsettled", "instances being made or removed", unsettled),
            ("weft_cloud_cgpus", "cGPUs that somebody has", cgpus),
            ("weft_cloud_gpus", "GPUs", gpus),
            ("weft_cloud_requests", "requests that are being answered", asked),
            ("weft_cloud_nodes_unreachable", "nodes that do not answer", unreachable),
            (
                "weft_cloud_nodes_without_gateway",
                "nodes that say that their gateways do not listen",
                silent,
            ),
            ("weft_cloud_memory_bytes", "memory of all GPUs", memory_mib << 20),
            ("weft_cloud_memory_held_bytes", "memory given to cGPUs", held_mib << 20),
        ] {
            // A string takes everything.
            let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} gauge\n{name} {value}\n");
        }
        Ok(Reply::Text(text))
    }
}
