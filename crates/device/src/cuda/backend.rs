//! A genuine GPU as a node has it: how its worker is confined, and which GPUs a node refuses.
//!
//! What the driver of a given version needs of the system is known from what such programs are seen
//! to do, not from a promise of its vendor.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use toml::Table;
use weft_ring::Access;

use super::{CudaConfig, CudaDevice, Found, LIBRARY_VARIABLE, devices};
use crate::{Backend, DeviceInfo, Lends, NameError, Needs, OpenError, PAGE, Parts};

/// Where a driver and what it loads may lie, and what it reads of the system.
const READS: &[&str] = &[
    "/lib",
    "/lib64",
    "/usr/lib",
    "/usr/lib64",
    "/usr/local/nvidia",
    "/etc/ld.so.cache",
    "/etc/nvidia",
    "/proc/self",
    "/proc/driver/nvidia",
    "/proc/driver/nvidia-uvm",
    "/proc/devices",
    "/proc/modules",
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/proc/version",
    "/proc/sys/vm",
    "/sys/devices",
    "/sys/bus/pci",
    "/sys/module",
];

/// Devices that a driver opens besides `/dev/nvidia0` and its like.
const DEVICES: &[&str] = &[
    "/dev/nvidiactl",
    "/dev/nvidia-uvm",
    "/dev/nvidia-uvm-tools",
    "/dev/nvidia-modeset",
    "/dev/nvidia-caps",
    "/dev/null",
    "/dev/zero",
    "/dev/urandom",
];

/// What a driver writes to: it names its threads, and does not start if it cannot. The other files
/// there belong to root, since the process is not dumpable.
const WRITES: &[&str] = &["/proc/self/task"];

/// Most GPUs of a machine.
const GPUS_MAX: u32 = 64;

/// Commands of `fcntl`: a driver makes descriptors.
const FCNTL: &[libc::c_int] = &[libc::F_DUPFD, libc::F_SETFD, libc::F_SETFL, libc::F_ADD_SEALS];

/// System calls of a driver.
const CALLS: &[i64] = &[
    // Files that landlock lets it open.
    libc::SYS_openat,
    libc::SYS_newfstatat,
    libc::SYS_fstat,
    libc::SYS_statx,
    libc::SYS_readlinkat,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_getdents64,
    libc::SYS_lseek,
    libc::SYS_pread64,
    libc::SYS_ioctl,
    libc::SYS_dup,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_open,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_stat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_access,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_readlink,
    // Memory, of which it compiles some.
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_mlock,
    libc::SYS_munlock,
    libc::SYS_mincore,
    libc::SYS_mbind,
    libc::SYS_get_mempolicy,
    libc::SYS_set_mempolicy,
    libc::SYS_memfd_create,
    libc::SYS_ftruncate,
    // Threads and what they wait on.
    libc::SYS_clone,
    libc::SYS_clone3,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_membarrier,
    libc::SYS_prctl,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_setaffinity,
    libc::SYS_rt_sigaction,
    libc::SYS_pipe2,
    libc::SYS_eventfd2,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_epoll_wait,
    // What it asks about the system and itself.
    libc::SYS_uname,
    libc::SYS_sysinfo,
    libc::SYS_prlimit64,
    libc::SYS_getrusage,
    libc::SYS_gettimeofday,
    libc::SYS_getcpu,
    libc::SYS_getppid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
];

/// What a driver finds in its environment.
const ENVIRONMENT: &[(&str, Option<&str>)] = &[
    // A worker may not write files, and one tenant's compiled kernels are not another's.
    ("CUDA_CACHE_DISABLE", Some("1")),
    // Loading code at a kernel's first launch would be charged as the kernel's time.
    ("CUDA_MODULE_LOADING", Some("EAGER")),
    // Contexts that share a server would share their faults too.
    ("CUDA_MPS_PIPE_DIRECTORY", Some("/nonexistent")),
    // What somebody set to debug the daemon's environment would stop a worker's loop.
    ("CUDA_LAUNCH_BLOCKING", None),
    ("CUDA_INJECTION64_PATH", None),
];

/// What a genuine GPU is told.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CudaBackend {
    /// The driver's library; `libcuda.so.1` where the system finds it if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub library: Option<PathBuf>,
    /// Which of the driver's devices.
    pub ordinal: u32,
}

impl Backend for CudaBackend {
    const KIND: &'static str = "cuda";
    const SPELLINGS: &'static str = "cuda or cuda:N";
    const KEYS: &'static [&'static str] = &["library", "ordinal"];
    const LOADS_DRIVER: bool = true;
    type Device = CudaDevice;

    fn parse(rest: Option<&str>) -> Result<Option<Table>, NameError> {
        let mut settings = Table::new();
        let Some(rest) = rest else { return Ok(Some(settings)) };
        let ordinal = rest.parse::<u32>().ok().filter(|ordinal| *ordinal < GPUS_MAX);
        Ok(ordinal.map(|ordinal| {
            settings.insert("ordinal".to_owned(), ordinal.into());
            settings
        }))
    }

    fn conflict(&self, other: &Self) -> Option<(&'static str, String)> {
        let same = || ("ordinal", format!("the same GPU, {}", self.ordinal));
        (self.ordinal == other.ordinal).then(same)
    }

    fn outlives(&self, other: &Self) -> bool {
        self == other
    }

    fn clock(&self) -> &'static str {
        "device"
    }

    fn lends(&self) -> Lends {
        Lends::Sessions
    }

    fn needs(&self) -> Needs {
        let variable = || std::env::var_os(LIBRARY_VARIABLE).map(PathBuf::from);
        let library = self.library.clone().or_else(variable);
        let folder = library.as_deref().and_then(Path::parent).map(Path::to_owned);
        let gpus = (0..GPUS_MAX).map(|number| PathBuf::from(format!("/dev/nvidia{number}")));
        Needs {
            driver: true,
            reads: READS.iter().map(PathBuf::from).chain(folder).collect(),
            devices: DEVICES.iter().map(PathBuf::from).chain(gpus).collect(),
            writes: WRITES,
            calls: CALLS,
            fcntl: FCNTL,
        }
    }

    fn environment(&self) -> &'static [(&'static str, Option<&'static str>)] {
        ENVIRONMENT
    }

    fn probe(&self, _memory_bytes: u64, trusting: bool) -> Result<DeviceInfo, String> {
        let found = devices(self.library.as_deref()).map_err(|error| error.to_string())?;
        let (ordinal, count) = (self.ordinal, found.len());
        let device = found.into_iter().find(|device| device.ordinal == ordinal);
        let device = device
            .ok_or_else(|| format!("there is no device {ordinal}: the driver lists {count}"))?;
        match refusal(&device, trusting) {
            Some(reason) => Err(format!("{}: {reason}", device.info.name)),
            None => Ok(device.info),
        }
    }

    /// A context. The frames pay for its memory and keep what is not on the device; the tables have
    /// no meaning here.
    fn open(&self, parts: Parts) -> Result<CudaDevice, OpenError> {
        let lends = parts.geometry.lends();
        let frames = lends.then(|| parts.frames.map(Access::ReadWrite));
        let frames = frames.transpose().map_err(OpenError::new)?;
        CudaDevice::open(CudaConfig {
            library: self.library.clone(),
            ordinal: self.ordinal,
            source: parts.source,
            range: parts.range,
            part_bytes: parts.geometry.slot_pages() * PAGE,
            frames,
            lends,
            window: Some((parts.window.base, parts.window.memory)),
            staging: Some(parts.staging),
            kernel_ns: parts.kernel_ns,
            page: Some(parts.page),
            catch_output: true,
        })
        .map_err(OpenError::new)
    }
}

/// Why a node does not execute on this device.
fn refusal(device: &Found, trusting: bool) -> Option<String> {
    let exposed = device.reaches_host && !trusting;
    let exposes = || {
        "its kernels reach all memory of the process that launches them (`Addressing Mode` in \
         nvidia-smi -q), and with it what keeps tenants apart; load nvidia_uvm with \
         uvm_disable_hmm=1, or set device.trust_tenants = true if no tenant is hostile"
            .to_owned()
    };
    device.unusable.clone().or_else(|| exposed.then(exposes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::soft::device_info;

    #[test]
    fn a_device_that_exposes_the_worker_needs_trust() {
        let mut device =
            Found { ordinal: 0, info: device_info(1 << 20), unusable: None, reaches_host: false };
        assert_eq!(refusal(&device, false), None);
        device.reaches_host = true;
        assert!(refusal(&device, false).unwrap().contains("device.trust_tenants"));
        assert_eq!(refusal(&device, true), None);
        device.unusable = Some("it is prohibited".to_owned());
        assert_eq!(refusal(&device, true).unwrap(), "it is prohibited");
    }
}
