//! `bench decision`: what one scheduling decision costs, against the number of vGPUs.

use anyhow::Result;
use weft_sched::policy;
use weft_sim::experiments::{BATCH, decision_ns};

use super::Context;
use super::document::Document;

const VGPUS: [u32; 4] = [2, 64, 1_024, 65_536];

#[expect(clippy::unnecessary_wraps, reason = "every benchmark has this shape")]
pub(crate) fn run(context: &Context) -> Result<Document> {
    let batches = if context.quick { 51 } else { 501 };
    let window = format!("median of {batches} batches of {BATCH} decisions, policy fair");
    let mut document = Document::new("decision", "real", &window);
    let policy = policy::by_name("fair").unwrap_or_default();
    for vgpus in VGPUS {
        document.figure(format!("ns_p50_{vgpus}"), decision_ns(policy, vgpus, batches));
    }
    Ok(document)
}
