//! The state of a node's health, and of what it needs of the machine.

use std::path::Path;

use landlock::{AccessFs, CompatLevel, Compatible, Ruleset, RulesetAttr};
use weft_device::DeviceInfo;
use weft_device::cuda::Found;

use super::attach::gateway;
use super::cosched;
use crate::admin::{DeviceReport, DoctorCheck, DoctorReport, Finding, GatewayHealth};
use crate::config::Processors;

impl super::Daemon {
    /// The state of the node's health.
    pub(crate) fn doctor(&self) -> anyhow::Result<DoctorReport> {
        let mut checks = machine_checks();
        for device in self.devices.iter() {
            let DeviceInfo { name, backend, memory_bytes, .. } = &device.info;
            let detail = format!("{name} ({backend}), {} MiB for vGPUs", memory_bytes >> 20);
            let (finding, detail) = match self.tables().registry.outage(&device.name) {
                None => (Finding::Good, detail),
                Some(outage) => {
                    (Finding::Warning, format!("{detail}; {}", outage.in_words(&device.name)))
                }
            };
            checks.push(check(&format!("device {}", device.name), finding, detail));
        }
        let stats = self.stats()?;
        checks.push(cosched::check(Some(&stats.coscheduling)));
        checks.extend(self.journal_check(stats.lost_records));
        checks.extend(stats.gateway.as_ref().map(gateway_check));
        let error = stats.closure.error();
        let finding = if error <= 0.005 { Finding::Good } else { Finding::Warning };
        let detail =
            format!("charges differ from the device's busy time by {:.3} %", error * 100.0);
        checks.push(check("accounting", finding, detail));
        for device in stats.devices.iter().filter(|device| device.overruns > 0) {
            let DeviceReport { name, overruns, executions, .. } = device;
            let detail =
                format!("{name}: {overruns} of {executions} executions took longer than it says");
            checks.push(check("model", Finding::Warning, detail));
        }
        Ok(DoctorReport { checks })
    }

    /// Whether all of the journal is written.
    fn journal_check(&self, lost: u64) -> Option<DoctorCheck> {
        if lost > 0 {
            let detail = format!(
                "{lost} records are missing in journals and traces: the disk is full or too slow; \
                 make room, and the journal goes on in a new file"
            );
            return Some(check("journal", Finding::Warning, detail));
        }
        let dir = self.config.journal.dir.as_ref()?;
        Some(check("journal", Finding::Good, format!("written to {}", dir.display())))
    }
}

/// Whether programs of other hosts are let in.
fn gateway_check(health: &GatewayHealth) -> DoctorCheck {
    let GatewayHealth { listens, silent_s, ends, hangs } = *health;
    let (mut finding, mut detail) = match (silent_s, listens) {
        (0, true) => (Finding::Good, "it lets programs of other hosts in".to_owned()),
        (0, false) => (Finding::Warning, "it does not listen; the node's log says why".to_owned()),
        (1.., _) => {
            let limit_s = gateway::SILENCE_MAX.as_secs();
            let words = format!(
                "it has not answered for {silent_s} s; after {limit_s} s it is ended, and its \
                 sessions with it, and started again"
            );
            (Finding::Warning, words)
        }
    };
    if ends > 0 {
        let since = "since the daemon started";
        detail += &format!("; times that it ended {since}: {ends}, for want of an answer: {hangs}");
        // Each time remote sessions ended with it.
        finding = Finding::Warning;
    }
    check("gateway", finding, detail)
}

/// What of this machine matters to a node, its GPUs included.
pub(crate) fn local_checks() -> Vec<DoctorCheck> {
    let mut checks = machine_checks();
    checks.push(cosched::check(None));
    checks.extend(gpu_checks());
    checks
}

/// What of this machine matters to any node.
fn machine_checks() -> Vec<DoctorCheck> {
    // Those of the machine: who waits polls though it may use only one of them.
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    let online = online.trim().parse::<Processors>().map_or(1, |online| online.count());
    let own = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let spin = match online.max(own) {
        1 => check(
            "processors",
            Finding::Warning,
            "one: nothing polls, so every call costs a wake".to_owned(),
        ),
        count => check("processors", Finding::Good, count.to_string()),
    };
    vec![spin, sandbox_check()]
}

fn sandbox_check() -> DoctorCheck {
    let landlock = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::Execute)
        .and_then(Ruleset::create);
    if landlock.is_ok() {
        return check("sandbox", Finding::Good, "seccomp and landlock".to_owned());
    }
    let detail = "seccomp only: this kernel has no landlock (boot with lsm=landlock,…)";
    check("sandbox", Finding::Warning, detail.to_owned())
}

/// The GPUs that the driver lists, each with why a node could not execute on it. Loads the driver
/// into this process.
pub(crate) fn gpu_checks() -> Vec<DoctorCheck> {
    let is_there = Path::new("/dev/nvidiactl").exists();
    match weft_device::cuda::devices(None) {
        Ok(found) => found.iter().map(gpu_check).collect(),
        Err(error) if is_there => {
            let detail = format!("NVIDIA GPU, but unusable: {error}");
            vec![check("gpu", Finding::Warning, detail)]
        }
        Err(error) => {
            let detail = format!("none ({error}; no /dev/nvidiactl); the software GPU executes");
            vec![check("gpu", Finding::Good, detail)]
        }
    }
}

fn gpu_check(found: &Found) -> DoctorCheck {
    let Found { ordinal, info, unusable, reaches_host } = found;
    let (major, minor) = info.compute_capability;
    let mib = info.memory_bytes >> 20;
    let what =
        format!("cuda:{ordinal} {}, compute capability {major}.{minor}, {mib} MiB", info.name);
    match unusable {
        None if *reaches_host => {
            let detail = format!(
                "{what}: only with device.trust_tenants = true, or after loading nvidia_uvm with \
                 uvm_disable_hmm=1: its kernels reach all memory of their process"
            );
            check("gpu", Finding::Warning, detail)
        }
        None => check("gpu", Finding::Good, format!("{what}: `weft node --device cuda:{ordinal}`")),
        Some(reason) => check("gpu", Finding::Warning, format!("{what}: unusable: {reason}")),
    }
}

fn check(subject: &str, finding: Finding, detail: String) -> DoctorCheck {
    DoctorCheck { subject: subject.to_owned(), finding, detail }
}
