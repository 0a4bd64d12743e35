//! `bench scale`: many vGPUs attached to one software device, live, and a few of them at work.
//!
//! What an idle worker has to itself is read from `/proc/PID/smaps_rollup`: `Private_Clean` and
//! `Private_Dirty`, anonymous memory and private pages of files alike. CPU time is that of all
//! threads of the daemon and the workers (`/proc/PID/task/*/schedstat`).

use std::fs;
use std::io::PipeWriter;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::document::Document;
use super::fairness::{self, Set};
use super::tenant::{Host, Tenant};
use super::{Context, median};

const VGPUS: u32 = 1024;
const VGPUS_QUICK: u32 = 64;
/// Who works beside the idle ones.
const WORKING: Set<'static> = ("3_equal", &[1, 2, 3], &[285, 285, 285]);
/// Descriptors of this process besides the two pipes per tenant.
const OTHER_FILES: u64 = 64;

pub(crate) fn run(context: &Context) -> Result<Document> {
    let vgpus = context.vgpus.unwrap_or(if context.quick { VGPUS_QUICK } else { VGPUS });
    let (rest_s, window_s) = if context.quick { (2, 2) } else { (10, 10) };
    let text = format!("{vgpus} vGPUs; idle for {rest_s} s; then one window of {window_s} s");
    let mut document = Document::new("scale", "paced", &text);
    make_room(vgpus)?;
    let alone = Host::on_node(context, true, &[], |host| {
        fairness::contend(context, host, WORKING, window_s, 1)
    })?;
    document.baseline("mmr_without_idle", median(&alone.mmr));
    document.baseline("overhead_without_idle", alone.overhead);

    let limit = (vgpus + 64).to_string();
    let limits =
        ["limits.sessions", "limits.sessions_per_user", "limits.vgpus", "limits.vgpus_per_user"];
    let limits = limits.map(|key| (key, limit.as_str()));
    Host::on_node(context, true, &limits, |host| {
        live(context, host, vgpus, (rest_s, window_s), &mut document)
    })?;
    Ok(document)
}

/// Attaches all of them, lets them rest, and lets three others work beside them.
fn live(
    context: &Context,
    host: &Host,
    vgpus: u32,
    (rest_s, window_s): (u64, u64),
    document: &mut Document,
) -> Result<()> {
    let daemon = host.daemon()?.sockets().connect()?.node()?.pid;
    let mut idle = Vec::new();
    for index in 0..vgpus {
        idle.push(attach(context, host, index)?);
    }
    let mut attach_ms: Vec<f64> = idle.iter().map(|idle| idle.attach_ms).collect();
    attach_ms.sort_by(f64::total_cmp);
    document.figure("vgpus", f64::from(vgpus));
    document.figure("attach_ms_p50", quantile(&attach_ms, 50));
    document.figure("attach_ms_p99", quantile(&attach_ms, 99));
    let workers = children(daemon)?;
    if workers.len() != idle.len() {
        bail!("{} workers serve {} vGPUs", workers.len(), idle.len());
    }
    memory(document, daemon, &workers)?;
    document.figure("idle_cpu_percent", idle_cpu(daemon, &workers, Duration::from_secs(rest_s))?);

    let shared = fairness::contend(context, host, WORKING, window_s, 1)?;
    document.figure("mmr_of_three", median(&shared.mmr));
    document.figure("overhead_of_three", shared.overhead);
    for Idle { tenant, input, .. } in idle {
        drop(input);
        tenant.finish()?;
    }
    Ok(())
}

/// A tenant that waits for the end of its input.
struct Idle {
    tenant: Tenant,
    input: PipeWriter,
    attach_ms: f64,
}

fn attach(context: &Context, host: &Host, index: u32) -> Result<Idle> {
    let (reader, input) = std::io::pipe()?;
    let name = format!("idle{index}");
    let mut tenant = host.start_with_input(&name, 1, context.program("idle"), reader.into())?;
    let attach_us = tenant.line()?["attach_us"].as_f64().context("no time to attach")?;
    Ok(Idle { tenant, input, attach_ms: attach_us / 1e3 })
}

/// Two pipes per tenant.
fn make_room(vgpus: u32) -> Result<()> {
    let wanted = 2 * u64::from(vgpus) + OTHER_FILES;
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_some_and(|current| current < wanted) {
        let raised = Rlimit { current: Some(wanted), maximum };
        setrlimit(Resource::Nofile, raised).with_context(|| {
            format!("{vgpus} tenants need {wanted} open files; raise the limit (ulimit -Hn)")
        })?;
    }
    Ok(())
}

fn memory(document: &mut Document, daemon: u32, workers: &[u32]) -> Result<()> {
    let private_kib = |pid: &u32| -> Result<f64> {
        let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
        let fields = text.lines().filter(|line| line.starts_with("Private_"));
        let kib =
            |line: &str| line.split_whitespace().nth(1).and_then(|word| word.parse::<f64>().ok());
        Ok(fields.filter_map(kib).sum())
    };
    let mut of_workers = workers.iter().map(private_kib).collect::<Result<Vec<f64>>>()?;
    of_workers.sort_by(f64::total_cmp);
    document.figure("worker_private_kib_p50", quantile(&of_workers, 50));
    document.figure("worker_private_kib_max", quantile(&of_workers, 100));
    #[expect(clippy::cast_precision_loss, reason = "a few thousand")]
    let per_session = private_kib(&daemon)? / workers.len() as f64;
    document.figure("daemon_private_kib_per_session", per_session);
    Ok(())
}

/// CPU time of the daemon and the workers while nobody calls, in percent of one processor.
fn idle_cpu(daemon: u32, workers: &[u32], rest: Duration) -> Result<f64> {
    let all = || -> Result<u64> {
        workers.iter().chain([&daemon]).map(|pid| cpu_ns(*pid)).sum::<Result<u64>>()
    };
    let (began, before_ns) = (Instant::now(), all()?);
    std::thread::sleep(rest);
    let used_ns = all()?.saturating_sub(before_ns);
    #[expect(clippy::cast_precision_loss, reason = "a ratio")]
    Ok(100.0 * used_ns as f64 / began.elapsed().as_nanos() as f64)
}

/// CPU time of a process's threads so far.
fn cpu_ns(pid: u32) -> Result<u64> {
    let mut sum = 0;
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread that has just ended counts no more.
        let Ok(text) = fs::read_to_string(task?.path().join("schedstat")) else { continue };
        let first = text.split_whitespace().next().context("schedstat is empty")?;
        sum += first.parse::<u64>()?;
    }
    Ok(sum)
}

/// The processes whose parent is `parent`.
fn children(parent: u32) -> Result<Vec<u32>> {
    let mut found = Vec::new();
    for task in fs::read_dir(format!("/proc/{parent}/task"))? {
        let text = fs::read_to_string(task?.path().join("children"))?;
        found.extend(text.split_whitespace().filter_map(|word| word.parse::<u32>().ok()));
    }
    Ok(found)
}

/// A sorted list's quantile.
fn quantile(sorted: &[f64], percent: usize) -> f64 {
    let last = sorted.len().saturating_sub(1);
    sorted.get((last * percent).div_ceil(100)).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_members_of_the_list() {
        let list: Vec<f64> = (0..=200).map(f64::from).collect();
        assert_eq!(
            (quantile(&list, 50), quantile(&list, 99), quantile(&list, 100)),
            (100.0, 198.0, 200.0)
        );
        assert_eq!(quantile(&[], 50), 0.0);
    }
}
