//! When a tenant's next worker may start.

use std::sync::PoisonError;
use std::time::Duration;

use anyhow::bail;

use super::Reservation;
use crate::config::ShareConfig;
use crate::daemon::starts::Starting;
use crate::daemon::{Daemon, clock};

impl Daemon {
    /// Keeps a tenant from attaching more often than it may while others have sessions.
    pub(super) fn pace_attach(&self, payer: u32) -> anyhow::Result<()> {
        if !self.tables().sessions.values().any(|entry| entry.payer != payer) {
            return Ok(());
        }
        let limits = &self.config.limits;
        let rate = limits.attaches_per_second;
        let mut pace = self.attach_pace.lock().unwrap_or_else(PoisonError::into_inner);
        let wait = Duration::from_nanos(pace.wait_ns(payer, clock::now_ns(), rate));
        if wait > limits.attach() {
            pace.give_back(payer, rate);
            bail!(
                "user {payer} attaches more than {rate} times a second while others work \
                 (limits.attaches_per_second); try again later"
            );
        }
        drop(pace);
        std::thread::sleep(wait);
        Ok(())
    }

    /// Waits while another worker of the same tenant starts and others have sessions; of the same
    /// vGPU, where these compete.
    pub(super) fn begin_start(&self, reservation: &Reservation) -> Starting<'_> {
        match self.config.scheduling.share {
            ShareConfig::User => {
                let payer = reservation.payer;
                self.starts.begin(payer, || {
                    self.tables().sessions.values().any(|entry| entry.payer != payer)
                })
            }
            ShareConfig::Vgpu => {
                let vgpu = reservation.vgpu.key;
                self.starts
                    .begin(vgpu, || self.tables().sessions.values().any(|entry| entry.vgpu != vgpu))
            }
        }
    }
}
