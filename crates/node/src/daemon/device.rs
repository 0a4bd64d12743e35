//! The device's shared pages, and what the daemon reads from them.

use landlock::{AccessFs, CompatLevel, Compatible, Ruleset, RulesetAttr};
use weft_device::DeviceInfo;
use weft_device::soft::{DEVICE_PAGE_BYTES, DevicePage, device_info};
use weft_gate::NodePage;
use weft_ring::{Access, MemoryFile};

use super::adopt::Survivor;
use crate::admin::{DeviceReport, DoctorCheck, DoctorReport, Finding};
use crate::config::{ClockConfig, NodeConfig};

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

impl DeviceMemory {
    /// The pages of the survivors, or new ones.
    pub(crate) fn open(config: &NodeConfig, survivors: &[Survivor]) -> anyhow::Result<Self> {
        let (node_page, device_page) = match survivors.first() {
            Some(survivor) => {
                (survivor.files.node_page.try_clone()?, survivor.files.device_page.try_clone()?)
            }
            None => (NodePage::create()?, MemoryFile::create("weft-device", DEVICE_PAGE_BYTES)?),
        };
        let page = DevicePage::open(&device_page.map(Access::ReadWrite)?)?;
        Ok(Self { node_page, device_page, page, info: device_info(config.device.memory.0) })
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

    /// The device as administrators see it.
    pub(crate) fn report(&self, config: &NodeConfig, memory_used_bytes: u64) -> DeviceReport {
        let totals = self.page.totals();
        DeviceReport {
            name: self.info.name.clone(),
            backend: self.info.backend.to_owned(),
            clock: match config.device.clock {
                ClockConfig::Real => "real".to_owned(),
                ClockConfig::Paced => "paced".to_owned(),
            },
            memory_bytes: self.info.memory_bytes,
            memory_used_bytes,
            busy_ns: totals.busy_ns,
            overruns: totals.overruns,
            executions: totals.executions,
        }
    }
}

impl super::Daemon {
    /// The state of the node's health.
    pub(crate) fn doctor(&self) -> anyhow::Result<DoctorReport> {
        let mut checks = local_checks();
        let stats = self.stats()?;
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
}

/// What of this machine matters to a node.
pub(crate) fn local_checks() -> Vec<DoctorCheck> {
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let spin = match processors {
        1 => check(
            "processors",
            Finding::Warning,
            "one: nothing polls, so every call costs a wake".to_owned(),
        ),
        count => check("processors", Finding::Good, count.to_string()),
    };
    vec![spin, sandbox_check(), cuda_check()]
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

fn cuda_check() -> DoctorCheck {
    if !std::path::Path::new("/dev/nvidiactl").exists() {
        let detail = "no NVIDIA GPU (/dev/nvidiactl is missing); the software GPU executes";
        return check("device", Finding::Good, detail.to_owned());
    }
    match weft_device::cuda::devices() {
        Ok(names) => {
            let names = names.join(", ");
            let detail = format!("{names}: seen, but this node executes on the software GPU");
            check("device", Finding::Warning, detail)
        }
        Err(error) => check("device", Finding::Warning, format!("unusable NVIDIA GPU: {error}")),
    }
}

fn check(subject: &str, finding: Finding, detail: String) -> DoctorCheck {
    DoctorCheck { subject: subject.to_owned(), finding, detail }
}
