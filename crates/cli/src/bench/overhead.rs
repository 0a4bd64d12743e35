//! `bench overhead`: a lone tenant, remoted against direct (FairGV, Figure 2).

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use anyhow::Result;

use super::document::Document;
use super::tenant::{Host, kernel};
use super::{Context, median};

/// Kernel sizes of Figure 2, µs.
const SIZES_US: [u64; 6] = [21, 51, 102, 172, 285, 391];
/// Pairs of a direct and a remoted run.
const PAIRS: usize = 5;

pub(crate) fn run(context: &Context) -> Result<Document> {
    let (pairs, run_us) = if context.quick { (1, 200_000) } else { (PAIRS, 1_000_000) };
    let window = format!("{pairs} pairs of runs per size, each {} ms of kernels", run_us / 1000);
    let mut document = Document::new("overhead", "paced", &window);
    let node = Host::node(true, &[])?;
    let direct = Host::direct(true)?;
    let (mut batch_max, mut sync_max) = (0.0_f64, 0.0_f64);
    for us in SIZES_US {
        for sync in [false, true] {
            let kind = if sync { "sync" } else { "batch" };
            let cost = measure(context, (&direct, &node), us, sync, (pairs, run_us))?;
            document.figure(format!("{kind}_{us}us"), cost.over_direct);
            document.figure(format!("{kind}_{us}us_spread"), cost.spread);
            document.figure(format!("{kind}_{us}us_over_model"), cost.over_model);
            document.baseline(format!("direct_{kind}_{us}us_over_model"), cost.direct_over_model);
            if sync {
                sync_max = sync_max.max(cost.over_direct);
            } else {
                batch_max = batch_max.max(cost.over_direct);
            }
            if us == 21 && !sync {
                document.figure("overhead_21us", cost.over_direct);
            }
        }
    }
    document.figure("overhead_max", batch_max);
    document.figure("overhead_sync_max", sync_max);
    let trap_us = four_system_calls_us()?;
    document.control("trap_request_us", trap_us);
    document.control("trap_model_21us", (21.0 + trap_us) / 21.0);
    Ok(document)
}

/// Medians over the pairs of one size.
struct Cost {
    over_direct: f64,
    /// Largest minus smallest ratio.
    spread: f64,
    over_model: f64,
    direct_over_model: f64,
}

fn measure(
    context: &Context,
    (direct, node): (&Host, &Host),
    us: u64,
    sync: bool,
    (pairs, run_us): (usize, u64),
) -> Result<Cost> {
    let (name, count) = (kernel(us), (run_us / us).to_string());
    let mut arguments = vec![name.as_str(), "0", "--count", count.as_str()];
    if sync {
        arguments.push("--sync");
    }
    let (mut ratios, mut remoted, mut native) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..pairs {
        let alone = context.share(direct, &arguments)?;
        let shared = context.share(node, &arguments)?;
        ratios.push(shared.drained_seconds / alone.drained_seconds);
        #[expect(clippy::cast_precision_loss, reason = "a second of microseconds")]
        let model_s = |launches: u64| (launches * us) as f64 / 1e6;
        remoted.push(shared.drained_seconds / model_s(shared.launches));
        native.push(alone.drained_seconds / model_s(alone.launches));
    }
    let low = ratios.iter().copied().fold(f64::MAX, f64::min);
    let high = ratios.iter().copied().fold(0.0, f64::max);
    Ok(Cost {
        over_direct: median(&ratios),
        spread: high - low,
        over_model: median(&remoted),
        direct_over_model: median(&native),
    })
}

/// Median time of a request over a transport of four system calls (send, receive, send, receive
/// on a Unix socket between two threads): a model of a remoting transport that traps.
fn four_system_calls_us() -> Result<f64> {
    const REQUESTS: usize = 5000;
    let (mut client, mut server) = UnixStream::pair()?;
    let echo = std::thread::spawn(move || {
        let mut request = [0_u8; 64];
        while server.read_exact(&mut request).is_ok() && server.write_all(&request).is_ok() {}
    });
    let mut times = Vec::with_capacity(REQUESTS);
    let mut answer = [0_u8; 64];
    for _ in 0..REQUESTS {
        let begin = Instant::now();
        client.write_all(&[1; 64])?;
        client.read_exact(&mut answer)?;
        times.push(begin.elapsed().as_secs_f64() * 1e6);
    }
    drop(client);
    let _ = echo.join();
    Ok(median(&times))
}
