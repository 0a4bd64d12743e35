//! `bench overhead --via vm`: a lone tenant in a machine (FairGV, Figure 2), against what its
//! kernels take by the device's model.
//!
//! A device inside the machine would be interpreted too and keep to no model, so the native
//! baseline is a process of this host with the device in it, which `overhead_*` are over, and so is
//! the transport of four system calls a request, which is the control. Shared memory is beside it
//! as a process of this host, and a TCP echo as the guest's loopback has it.

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::{Machine, Tcp};
use crate::bench::document::Document;
use crate::bench::overhead::{KINDS, SIZES_US, echoed, passes, summed_up, trapped};
use crate::bench::tenant::{Host, ShareReport, kernel};
use crate::bench::{Context, median};

const RUNS: usize = 3;

pub(super) fn run(context: &Context) -> Result<Document> {
    let (runs, run_us) = if context.quick { (1, 200_000) } else { (RUNS, 1_000_000) };
    let window = format!(
        "{runs} boots of a machine under TCG, each with {} ms of kernels per size; medians",
        run_us / 1000
    );
    let mut document = Document::new("overhead", "paced", &window);
    let words = ["guest-sizes.sh".to_owned(), run_us.to_string()];
    let words = words.each_ref().map(String::as_str);
    let direct = Host::direct(true)?;
    let start = || Host::node(true, &[]);
    let (reports, beside, echoes) = direct.beside(context, start, |host| {
        let (mut reports, mut beside, mut echoes) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..runs {
            let machine = Machine { name: "vm", weight: 1, flags: &[], words: &words };
            reports.extend(machine.run(context, host.daemon()?)?);
            beside.push([figure_2(context, &direct, run_us)?, figure_2(context, host, run_us)?]);
            echoes.push(Tcp::measure(context, host.daemon()?)?.echo_us);
        }
        Ok((reports, beside, echoes))
    })?;
    let mut point = 0;
    for (kind, sync) in KINDS {
        let (mut line, mut native) = (Vec::new(), Vec::new());
        for us in SIZES_US {
            let over = over_model(&reports, us, sync)?;
            document.figure(format!("{kind}_{us}us_over_model"), over);
            line.push((us, over));
            let [alone, shared] = [0, 1].map(|host: usize| {
                median(&beside.iter().map(|run| run[host][point]).collect::<Vec<f64>>())
            });
            document.baseline(format!("direct_{kind}_{us}us_over_model"), alone);
            document.baseline(format!("shared_memory_{kind}_{us}us_over_model"), shared);
            native.push((us, Some(over / alone)));
            point += 1;
        }
        let most = line.iter().map(|point| point.1).fold(0.0, f64::max);
        document.figure(format!("{kind}_over_model_max"), most);
        document.figure(format!("{kind}_passes_1_02_us"), passes(&line, 1.02));
        let name = if sync { "overhead_sync" } else { "overhead" };
        summed_up(&mut document, name, &native);
    }
    trapped(context, &mut document, &direct, (runs, run_us))?;
    document.baseline("tcp_echo_in_guest_us_p50", median(&echoes));
    echoed(&mut document, "tcp_echo_in_guest_model", median(&echoes));
    Ok(document)
}

/// Figure 2 of a process of this host, over the model: each kind's sizes.
fn figure_2(context: &Context, host: &Host, run_us: u64) -> Result<Vec<f64>> {
    let mut points = Vec::new();
    for (_, sync) in KINDS {
        for us in SIZES_US {
            let (name, count) = (kernel(us), (run_us / us).to_string());
            let mut arguments = vec![name.as_str(), "0", "--count", &count];
            arguments.extend(sync.then_some("--sync"));
            points.push(ratio(&context.share(host, &arguments)?, us));
        }
    }
    Ok(points)
}

/// The median of the time that kernels of that size took over what they take by the model.
fn over_model(lines: &[Value], us: u64, sync: bool) -> Result<f64> {
    let (step, wait) = (kernel(us), if sync { "each" } else { "batches" });
    let mut ratios = Vec::new();
    for line in lines.iter().filter(|line| line["kernel"] == *step && line["wait"] == wait) {
        ratios.push(ratio(&ShareReport::parse(vec![line.clone()])?, us));
    }
    let first = ratios.first().copied();
    first.with_context(|| format!("no machine ran {step}")).map(|_| median(&ratios))
}

fn ratio(report: &ShareReport, us: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a second of microseconds")]
    let model_s = (report.launches * us) as f64 / 1e6;
    report.drained_seconds / model_s
}
