//! How long a VM with cGPUs takes until it is ready, part for part (GSaaS §V-C, equation 1), asked
//! of a control plane that runs: whatever makes its VMs.
//!
//! The paper's boot time is `check + create + activate + max(deploy, select + configure)`. Here the
//! *check* lasts until the control plane has accepted the request, with *select*: GPUs chosen and
//! reserved. *Create* is the asking for the VM, *port* the wait until its port is there. The
//! *deploy* part lasts from when the VM is asked for until it is seen to run, with both of these,
//! its activation, which nobody outside Nova can tell from it, and what is done meanwhile in it.
//! *Configure* is what the nodes' vGPUs and the rules of the VM's host take; the *manage* part is
//! what all steps but the VM's own take, and the *boot* time what somebody with a clock outside
//! sees, who waits for the answer that the VM is ready.

mod drawing;

use std::collections::BTreeMap;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use weft_api::figures::Figures;
use weft_api::files;
use weft_api::stolen::Processors;
use weft_api::v1::{Client, ClientError, Event, EventKind, InstanceState, Kind};

pub use self::drawing::drawing;
use crate::bench::{ANSWERED_WITHIN, median, wanted};

/// A VM is ready after this time, or has failed.
const LIMIT: Duration = Duration::from_secs(600);

/// A VM that takes less is none of a hypervisor's.
const DEPLOY_MS_MIN: f64 = 1_000.0;

/// Bytes of somebody else's figures: some names with numbers.
const BASELINES_BYTES_MAX: usize = 1 << 20;

/// The steps in which only the VM is waited for.
const OF_VM: [&str; 3] = ["create", "port", "active"];

/// Those that have a VM's cGPUs and the way to them in force.
const CONFIGURING: [&str; 2] = ["grant", "rules"];

/// What is measured.
#[derive(Debug, Clone)]
pub struct Plan {
    /// cGPUs of one VM, each in turn; the paper: 25, 50, 75, beside none.
    pub cgpus: Vec<u32>,
    /// VMs with one cGPU each; the paper: 15 to 90.
    pub vms: Vec<usize>,
    /// Between the beginnings of those VMs; the paper: 10 s.
    pub pace: Duration,
    /// Memory of each cGPU, in MiB; the paper: 100.
    pub memory_mib: u64,
    /// Times that each is measured.
    pub repeats: usize,
}

/// The parts of one VM's boot, in ms.
#[derive(Debug, Clone, Copy)]
struct Boot {
    boot: f64,
    check: f64,
    create: f64,
    port: f64,
    deploy: f64,
    configure: f64,
    manage: f64,
}

/// Figures of VMs without cGPUs, which somebody else has measured: JSON of names and milliseconds,
/// `boot_ms_0` of one, and of several by the names that those with cGPUs have.
///
/// # Errors
/// If the file cannot be read or has something else.
pub fn baselines(path: &Path) -> Result<BTreeMap<String, f64>> {
    let shown = path.display();
    let bytes = files::read(path, BASELINES_BYTES_MAX);
    let bytes = bytes.with_context(|| format!("cannot read {shown}"))?;
    serde_json::from_slice(&bytes).with_context(|| format!("there are no figures in {shown}"))
}

/// Measures; every VM is removed again.
///
/// # Errors
/// When the control plane refuses, or a VM fails.
pub fn run(client: &Client, plan: &Plan, mode: String) -> Result<Figures> {
    let (before, mut figures) = (Processors::now(), BTreeMap::<String, f64>::new());
    // The first one fills caches.
    boot_one(client, 1, plan.memory_mib)?;
    for cgpus in &plan.cgpus {
        let boots: Vec<Boot> = (0..plan.repeats)
            .map(|_| boot_one(client, *cgpus, plan.memory_mib))
            .collect::<Result<_>>()?;
        let part = |part: fn(&Boot) -> f64| median(boots.iter().map(part).collect());
        let deploy = part(|boot| boot.deploy);
        let parts = [
            ("boot", part(|boot| boot.boot)),
            ("check", part(|boot| boot.check)),
            ("create", part(|boot| boot.create)),
            ("port", part(|boot| boot.port)),
            ("deploy", deploy),
            ("configure", part(|boot| boot.configure)),
            ("manage", part(|boot| boot.manage)),
        ];
        figures.extend(parts.map(|(name, ms)| (format!("{name}_ms_{cgpus}"), ms)));
        let overhead = part(|boot| (boot.boot - boot.deploy) / boot.deploy.max(f64::MIN_POSITIVE));
        // Over a process, which starts in milliseconds, it would say nothing.
        if deploy >= DEPLOY_MS_MIN {
            figures.insert(format!("overhead_{cgpus}"), overhead);
        }
    }
    for vms in &plan.vms {
        let (median, longest) = boot_many(client, *vms, plan)?;
        figures.insert(format!("boot_ms_median_of_{vms}_vms"), median);
        figures.insert(format!("boot_ms_longest_of_{vms}_vms"), longest);
    }
    let pace = match plan.pace {
        Duration::ZERO => "at once".to_owned(),
        pace => format!("{pace:?} apart"),
    };
    let Plan { repeats, memory_mib, .. } = plan;
    let window = format!("medians of {repeats}; cGPUs of {memory_mib} MiB; VMs begun {pace}");
    let stolen = Some(Processors::now().stolen_since(before));
    Ok(Figures { stolen, ..Figures::new("deployment", mode, window, figures) })
}

fn boot_one(client: &Client, cgpus: u32, memory_mib: u64) -> Result<Boot> {
    let begun = Instant::now();
    let instance = client.create_instance(None, &wanted(cgpus, memory_mib))?;
    let check = begun.elapsed().as_secs_f64() * 1e3;
    wait_ready(client, &instance.id)?;
    let boot = begun.elapsed().as_secs_f64() * 1e3;
    let operation = client.operation(&instance.operation)?;
    remove(client, &[instance.id])?;
    let took = |is_meant: &dyn Fn(&str) -> bool| -> f64 {
        let done = |event: &&Event| event.kind == EventKind::Done && is_meant(&event.step);
        operation.events.iter().filter(done).map(|event| in_ms(event.took_us)).sum()
    };
    let [asked, port, active] = OF_VM;
    let until = |step| until_ms(&operation.events, asked, step);
    let (create, port) = (took(&|step| step == asked), until(port));
    let (port, deploy) = port.zip(until(active)).context("the VM was neither asked for nor ran")?;
    let configure = took(&|step| CONFIGURING.contains(&step));
    let manage = took(&|step| !OF_VM.contains(&step));
    Ok(Boot { boot, check, create, port, deploy: create + deploy, configure, manage })
}

/// From when a step was done until another one was. What a step took is its last attempt alone: the
/// wait for a VM lies between two events.
fn until_ms(events: &[Event], first: &str, last: &str) -> Option<f64> {
    let done = |step: &str| {
        events.iter().find(|event| event.kind == EventKind::Done && event.step == step)
    };
    let (first, last) = (done(first)?, done(last)?);
    Some(in_ms(last.at_ms.saturating_sub(first.at_ms).saturating_mul(1_000)))
}

/// The median and the longest boot of so many VMs that are asked for one after the other.
fn boot_many(client: &Client, vms: usize, plan: &Plan) -> Result<(f64, f64)> {
    let one = |number: u32| -> Result<(f64, String)> {
        thread::sleep(plan.pace * number);
        let begun = Instant::now();
        let instance = client.create_instance(None, &wanted(1, plan.memory_mib))?;
        wait_ready(client, &instance.id)?;
        Ok((begun.elapsed().as_secs_f64() * 1e3, instance.id))
    };
    let ended = || anyhow::anyhow!("a thread ended before its time");
    let booted: Vec<Result<(f64, String)>> = thread::scope(|scope| {
        let one = &one;
        let threads: Vec<_> =
            (0..).take(vms).map(|number| scope.spawn(move || one(number))).collect();
        let joined = threads.into_iter().map(|thread| thread.join().map_err(|_| ended()));
        joined.map(|booted| booted.and_then(|booted| booted)).collect()
    });
    let (mut times, mut ids, mut failed) = (Vec::new(), Vec::new(), None);
    for one in booted {
        match one {
            Ok((ms, id)) => {
                times.push(ms);
                ids.push(id);
            }
            Err(error) => failed = Some(error),
        }
    }
    remove(client, &ids)?;
    if let Some(error) = failed {
        return Err(error.context(format!("one of {vms} VMs")));
    }
    let longest = times.iter().copied().fold(0.0, f64::max);
    Ok((median(times), longest))
}

fn wait_ready(client: &Client, id: &str) -> Result<()> {
    let begun = Instant::now();
    loop {
        let instance = client.instance_within(id, ANSWERED_WITHIN)?;
        match instance.state {
            InstanceState::Ready => return Ok(()),
            InstanceState::Building => {}
            InstanceState::Failed | InstanceState::Terminating | InstanceState::Terminated => {
                anyhow::bail!("VM {id} came to nothing: {}", instance.failure.unwrap_or_default())
            }
        }
        ensure!(begun.elapsed() < LIMIT, "VM {id} is not ready after {LIMIT:?}");
    }
}

fn remove(client: &Client, ids: &[String]) -> Result<()> {
    for id in ids {
        client.delete_instance(id).with_context(|| format!("VM {id} stays"))?;
    }
    ids.iter().try_for_each(|id| wait_gone(client, id))
}

fn wait_gone(client: &Client, id: &str) -> Result<()> {
    let begun = Instant::now();
    loop {
        match client.instance_within(id, ANSWERED_WITHIN) {
            Ok(one) if one.state == InstanceState::Terminated => return Ok(()),
            Err(ClientError::Refused(problem)) if problem.kind == Kind::NotFound => return Ok(()),
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        ensure!(begun.elapsed() < LIMIT, "VM {id} is not gone after {LIMIT:?}");
    }
}

#[expect(clippy::cast_precision_loss, reason = "milliseconds of minutes")]
fn in_ms(us: u64) -> f64 {
    us as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vms_own_part_is_the_wait_for_it_and_not_the_last_look() {
        let event = |step: &str, kind, at_ms, took_us| {
            let step = step.to_owned();
            Event { at_ms, step, kind, took_us, detail: None }
        };
        let events = [
            event("sign", EventKind::Done, 1_000, 9_000),
            event("create", EventKind::Done, 1_010, 2_500),
            event("port", EventKind::Retry, 1_050, 0),
            event("port", EventKind::Done, 1_100, 30_000),
            event("rules", EventKind::Done, 1_300, 200_000),
            event("active", EventKind::Done, 5_010, 20),
        ];
        assert_eq!(until_ms(&events, "create", "active"), Some(4_000.0));
        assert_eq!(until_ms(&events, "create", "port"), Some(90.0));
        assert_eq!(until_ms(&events[..5], "create", "active"), None);
    }

    #[test]
    fn what_somebody_else_measured_is_names_and_numbers() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("plain.json");
        for (text, found) in [
            (r#"{"boot_ms_0": 2500, "boot_ms_median_of_15_vms": 2600.5}"#, Some(2_600.5)),
            (r#"{"boot_ms_0": "fast"}"#, None),
            ("[1]", None),
            ("", None),
        ] {
            std::fs::write(&path, text).unwrap();
            let read = baselines(&path).ok();
            let median = read.and_then(|read| read.get("boot_ms_median_of_15_vms").copied());
            assert_eq!(median, found, "{text}");
        }
        let endless = baselines(Path::new("/dev/zero")).unwrap_err();
        assert!(format!("{endless:#}").contains("more than 1048576 bytes"), "{endless:#}");
    }
}
