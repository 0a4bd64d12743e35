//! Devices that fail: one of whose workers failed is looked at, and is out of service from then on
//! until it works again.
//!
//! A tenant can make its own worker fail, so a failed worker accuses nobody: only a look at the
//! device from outside any session, as at the node's start, does.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use weft_ring::Loss;
use weft_sched::DeviceKey;

use super::registry::Outage;
use super::{Daemon, spawn};

/// A device is looked at again after this time: one that failed, to see whether it works again; one
/// that works, at the earliest.
const AGAIN: Duration = Duration::from_secs(5);

/// How suspicions reach the thread that looks.
#[derive(Debug)]
pub(crate) struct Health(Mutex<Sender<DeviceKey>>);

impl Health {
    pub(crate) fn new(suspicions: Sender<DeviceKey>) -> Self {
        Self(Mutex::new(suspicions))
    }

    /// A worker of this device failed, for whatever reason.
    pub(crate) fn suspect(&self, device: DeviceKey) {
        // The thread ends with the daemon.
        let _ = self.0.lock().unwrap_or_else(PoisonError::into_inner).send(device);
    }
}

/// Looks at devices in a thread of its own, for as long as the daemon lives.
pub(crate) fn start(daemon: &Arc<Daemon>, suspicions: Receiver<DeviceKey>) -> anyhow::Result<()> {
    let daemon = Arc::downgrade(daemon);
    thread::Builder::new().name("health".to_owned()).spawn(move || watch(&daemon, &suspicions))?;
    Ok(())
}

fn watch(daemon: &Weak<Daemon>, suspicions: &Receiver<DeviceKey>) {
    let mut looked_at = std::collections::BTreeMap::<DeviceKey, Instant>::new();
    loop {
        let suspected = match suspicions.recv_timeout(AGAIN) {
            Ok(device) => vec![device],
            Err(RecvTimeoutError::Timeout) => Vec::new(),
            Err(RecvTimeoutError::Disconnected) => return,
        };
        let Some(daemon) = daemon.upgrade() else { return };
        daemon.tasks.flush_journals();
        for device in daemon.failed_devices().into_iter().chain(suspected) {
            // Workers fail as often as tenants like.
            let last = looked_at.get(&device);
            if last.is_none_or(|at| at.elapsed() >= AGAIN) {
                daemon.examine(device);
                looked_at.insert(device, Instant::now());
            }
        }
    }
}

impl Daemon {
    /// The devices that are out of service because they failed.
    fn failed_devices(&self) -> Vec<DeviceKey> {
        let tables = self.tables();
        let failed = |name: &str| matches!(tables.registry.outage(name), Some(Outage::Failed(_)));
        self.devices.iter().filter(|device| failed(&device.name)).map(|device| device.key).collect()
    }

    /// Looks at a device, and takes it out of service or puts it back accordingly. One that an
    /// administrator took out stays out.
    fn examine(self: &Arc<Self>, device: DeviceKey) {
        let device = self.devices.get(device);
        let name = device.name.as_str();
        let found = spawn::probe(&device.config);
        let outage = self.tables().registry.outage(name).cloned();
        match (found, outage) {
            (Err(error), None) => {
                let reason = format!("{error:#}");
                tracing::error!(device = name, reason, "the device fails: it is out of service");
                let outage = Outage::Failed(reason);
                if let Err(error) = self.withdraw(name, outage, Some(Loss::DeviceFailed)) {
                    let error = format!("{error:#}");
                    tracing::error!(device = name, error, "not all of its vGPUs moved");
                }
            }
            (Ok(_), Some(Outage::Failed(_))) => {
                tracing::info!(device = name, "the device works again: it is in service");
                self.recover(name, device.key);
            }
            (Err(_), Some(_)) | (Ok(_), None | Some(Outage::Withdrawn)) => {}
        }
    }
}
