//! `bench decision`: what one scheduling decision costs, against the number of vGPUs.

use std::hint::black_box;
use std::time::Instant;

use anyhow::Result;
use weft_sched::bench_support::Saturated;
use weft_sched::policy;

use super::document::Document;
use super::{Context, median};

const VGPUS: [u32; 4] = [2, 64, 1_024, 65_536];
const BATCH: u32 = 200;

#[expect(clippy::unnecessary_wraps, reason = "every benchmark has this shape")]
pub(crate) fn run(context: &Context) -> Result<Document> {
    let batches = if context.quick { 51 } else { 501 };
    let window = format!("median of {batches} batches of {BATCH} decisions, policy fair");
    let mut document = Document::new("decision", "real", &window);
    for vgpus in VGPUS {
        let mut device = Saturated::new(policy::by_name("fair").unwrap_or_default(), vgpus);
        for _ in 0..2 * vgpus {
            black_box(device.decide());
        }
        let costs: Vec<f64> = (0..batches)
            .map(|_| {
                let begin = Instant::now();
                for _ in 0..BATCH {
                    black_box(device.decide());
                }
                begin.elapsed().as_secs_f64() * 1e9 / f64::from(BATCH)
            })
            .collect();
        document.figure(format!("ns_p50_{vgpus}"), median(&costs));
    }
    Ok(document)
}
