//! The device's shared pages, and what the daemon reads from them.

use std::path::Path;

use anyhow::Context;
use landlock::{AccessFs, CompatLevel, Compatible, Ruleset, RulesetAttr};
use weft_device::cuda::Found;
use weft_device::soft::{DEVICE_PAGE_BYTES, DevicePage, device_info};
use weft_device::{Capabilities, DeviceInfo};
use weft_gate::NodePage;
use weft_ring::{Access, MemoryFile};

use super::adopt::Survivor;
use super::cosched;
use super::spawn;
use crate::admin::{DeviceReport, DoctorCheck, DoctorReport, Finding};
use crate::config::{ByteSize, ClockConfig, DeviceKind, NodeConfig};
use crate::link::{Backend, Probe};

/// Pages that all workers of a node share.
#[derive(Debug)]
pub(crate) struct DeviceMemory {
    /// One doorbell for the daemon and a mark per session.
    pub(crate) node_page: MemoryFile,
    /// The device's queue, timeline and busy total.
    pub(crate) device_page: MemoryFile,
    page: DevicePage,
    info: DeviceInfo,
}

/// `CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED`.
const IPC_EVENT_SUPPORTED: u32 = 125;

/// The device that `config` names. Of a GPU, the memory that vGPUs may have is noted in `config`:
/// as much as configured, but not more than there is.
pub(crate) fn identify(config: &mut NodeConfig) -> anyhow::Result<DeviceInfo> {
    if config.device.kind == DeviceKind::Soft {
        let mut info = device_info(config.device.memory_bytes());
        // Sessions on a node share memory, and so events.
        info.attributes.insert(IPC_EVENT_SUPPORTED, 1);
        return Ok(info);
    }
    let probe = spawn::probe(&Backend::of(config));
    let Probe { name, uuid, capability, memory_bytes, attributes } =
        probe.context("device.kind = \"cuda\" is unusable (`weft doctor` lists what is there)")?;
    let asked = config.device.memory.map_or(memory_bytes, |memory| memory.0);
    let memory_bytes = asked.min(memory_bytes);
    config.device.memory = Some(ByteSize(memory_bytes));
    Ok(DeviceInfo {
        name,
        backend: "cuda",
        uuid,
        compute_capability: capability,
        memory_bytes,
        attributes,
        capabilities: Capabilities { slice_blocks: true, cancel: false, preemptive: true },
    })
}

impl DeviceMemory {
    /// The pages of the survivors, or new ones.
    pub(crate) fn open(info: DeviceInfo, survivors: &[Survivor]) -> anyhow::Result<Self> {
        let (node_page, device_page) = match survivors.first() {
            Some(survivor) => {
                (survivor.files.node_page.try_clone()?, survivor.files.device_page.try_clone()?)
            }
            None => (NodePage::create()?, MemoryFile::create("weft-device", DEVICE_PAGE_BYTES)?),
        };
        let page = DevicePage::open(&device_page.map(Access::ReadWrite)?)?;
        Ok(Self { node_page, device_page, page, info })
    }

    /// The node page, mapped.
    pub(crate) fn node_page(&self) -> anyhow::Result<NodePage> {
        Ok(NodePage::open(&self.node_page.map(Access::ReadWrite)?)?)
    }

    /// What tenants see.
    pub(crate) fn device_info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Removes a dead session from the device's queue.
    pub(crate) fn repair(&self, session: u32) {
        self.page.repair(session);
    }

    /// Counts device time that a session occupied and did not live to report, in ns.
    pub(crate) fn count_abandoned(&self, ns: u64) {
        self.page.count_abandoned(ns);
    }

    /// The device as administrators see it.
    pub(crate) fn report(&self, config: &NodeConfig, memory_used_bytes: u64) -> DeviceReport {
        let totals = self.page.totals();
        DeviceReport {
            name: self.info.name.clone(),
            backend: self.info.backend.to_owned(),
            clock: match (config.device.kind, config.device.clock) {
                (DeviceKind::Cuda, _) => "device".to_owned(),
                (DeviceKind::Soft, ClockConfig::Real) => "real".to_owned(),
                (DeviceKind::Soft, ClockConfig::Paced) => "paced".to_owned(),
            },
            memory_bytes: self.info.memory_bytes,
            memory_used_bytes,
            busy_ns: totals.busy_ns,
            overruns: totals.overruns,
            late: totals.late,
            executions: totals.executions,
        }
    }
}

impl super::Daemon {
    /// The state of the node's health.
    pub(crate) fn doctor(&self) -> anyhow::Result<DoctorReport> {
        let mut checks = machine_checks();
        let info = self.memory.device_info();
        let detail =
            format!("{} ({}), {} MiB for vGPUs", info.name, info.backend, info.memory_bytes >> 20);
        checks.push(check("node's device", Finding::Good, detail));
        let stats = self.stats()?;
        checks.push(cosched::check(Some(&stats.coscheduling)));
        checks.extend(self.journal_check(stats.lost_records));
        let error = stats.closure.error();
        let finding = if error <= 0.005 { Finding::Good } else { Finding::Warning };
        let detail =
            format!("charges differ from the device's busy time by {:.3} %", error * 100.0);
        checks.push(check("accounting", finding, detail));
        if stats.device.overruns > 0 {
            let device = &stats.device;
            let detail = format!(
                "{} of {} executions took longer than the model says",
                device.overruns, device.executions
            );
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

/// What of this machine matters to a node, its GPUs included.
pub(crate) fn local_checks() -> Vec<DoctorCheck> {
    let mut checks = machine_checks();
    checks.push(cosched::check(None));
    checks.extend(gpu_checks());
    checks
}

/// What of this machine matters to any node.
fn machine_checks() -> Vec<DoctorCheck> {
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let spin = match processors {
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
