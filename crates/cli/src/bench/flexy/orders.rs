//! What the pool's journal says of its orders: for how long a device was away that was reset, and
//! how long one took to be free that was told to yield.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result};
use weft_node::journal::{files, pool_folders};
use weft_sched::DeviceKey;
use weft_sched::journal::{PoolRecord, PoolReplay};
use weft_sched::pool::{PoolAction, PoolEvent};

use super::work::POOL;
use crate::replay::read;

/// Orders that were carried out, and those that were not yet.
#[derive(Debug, Default)]
pub(super) struct Orders {
    reset_since_ns: BTreeMap<DeviceKey, u64>,
    resets: u64,
    resets_sum_ns: u64,
    /// From when on devices are to be free for others.
    yield_from_ns: BTreeMap<DeviceKey, u64>,
    /// For how long each was not, from then on.
    yields_ns: Vec<u64>,
}

impl Orders {
    /// The orders of the pool whose journal stands in this folder, all of its runs.
    ///
    /// # Errors
    /// If it cannot be read, or is no journal.
    pub(super) fn of(journal: &Path) -> Result<Self> {
        let folders = pool_folders(journal).context("cannot read the journal")?;
        let mut orders = Self::default();
        for (_, folder) in folders.iter().filter(|(name, _)| name == POOL) {
            for file in files(folder).context("cannot read the pool's journal")? {
                let bytes = read(&file.path)?;
                let mut replay = PoolReplay::new(&bytes)?;
                // What had not been carried out when the node ended is not known.
                orders.reset_since_ns.clear();
                orders.yield_from_ns.clear();
                while let Some(record) = replay.step()? {
                    orders.see(&record);
                }
            }
        }
        Ok(orders)
    }

    fn see(&mut self, record: &PoolRecord) {
        let now_ns = record.now_ns;
        match record.event {
            PoolEvent::ResetDone { device } => {
                if let Some(since_ns) = self.reset_since_ns.remove(&device) {
                    self.resets += 1;
                    self.resets_sum_ns += now_ns.saturating_sub(since_ns);
                }
            }
            // What ended by itself before it had to yield was not in anybody's way.
            PoolEvent::Stopped { device, .. } | PoolEvent::Finished { device, .. } => {
                let from_ns = self.yield_from_ns.remove(&device);
                self.yields_ns.extend(from_ns.and_then(|from_ns| now_ns.checked_sub(from_ns)));
            }
            PoolEvent::Lost { device, .. } | PoolEvent::DeviceDown { device } => {
                self.yield_from_ns.remove(&device);
            }
            PoolEvent::DeviceUp { .. }
            | PoolEvent::SetTenant { .. }
            | PoolEvent::AddVgpu { .. }
            | PoolEvent::SetVgpu { .. }
            | PoolEvent::RemoveVgpu { .. }
            | PoolEvent::Submit { .. }
            | PoolEvent::Cancel { .. } => {}
        }
        for action in record.actions.iter().flatten() {
            match *action {
                PoolAction::Reset { device } => {
                    self.yield_from_ns.remove(&device);
                    self.reset_since_ns.insert(device, now_ns);
                }
                // Told twice, it is the earlier time that it is to keep to.
                PoolAction::Yield { device, at_ns } => {
                    let at_ns = at_ns.max(now_ns);
                    let from_ns = self.yield_from_ns.entry(device).or_insert(at_ns);
                    *from_ns = at_ns.min(*from_ns);
                }
                PoolAction::Run { .. } => {}
            }
        }
    }

    /// For how long a device was away that was reset, the mean; none if none was.
    pub(super) fn reset_mean_ns(&self) -> Option<u64> {
        self.resets_sum_ns.checked_div(self.resets)
    }

    /// From when a device is to yield until it is free: what 99 of 100 do not exceed; none if none
    /// was told to.
    pub(super) fn free_p99_ns(&self) -> Option<u64> {
        let mut yields_ns = self.yields_ns.clone();
        yields_ns.sort_unstable();
        let rank = (yields_ns.len() * 99).div_ceil(100).checked_sub(1)?;
        yields_ns.get(rank).copied()
    }
}

#[cfg(test)]
mod tests {
    use weft_sched::TaskKey;

    use super::*;

    fn record(now_ns: u64, event: PoolEvent, actions: &[PoolAction]) -> PoolRecord {
        PoolRecord { number: 0, now_ns, event, actions: Some(actions.to_vec()) }
    }

    const UP: PoolEvent = PoolEvent::DeviceUp { device: DeviceKey(2) };

    #[test]
    fn a_reset_lasts_until_its_device_is_back() {
        let [one, other] = [DeviceKey(0), DeviceKey(1)];
        let [reset, reset_other] = [one, other].map(|device| PoolAction::Reset { device });
        let done = |device| PoolEvent::ResetDone { device };
        let mut orders = Orders::default();
        assert_eq!(orders.reset_mean_ns(), None);
        orders.see(&record(10, UP, &[reset, reset_other]));
        orders.see(&record(30, done(one), &[reset]));
        orders.see(&record(70, done(other), &[]));
        assert_eq!(orders.reset_mean_ns(), Some(40), "20 and 60; one is not back");
    }

    #[test]
    fn a_device_is_free_when_its_task_has_stopped() {
        let (device, task) = (DeviceKey(0), TaskKey(0));
        let yields = |at_ns| PoolAction::Yield { device, at_ns };
        let stopped = PoolEvent::Stopped { device, task };
        let mut orders = Orders::default();
        assert_eq!(orders.free_p99_ns(), None);
        // At once, since the time that it is told has passed.
        orders.see(&record(100, UP, &[yields(50)]));
        orders.see(&record(104, stopped, &[]));
        assert_eq!(orders.yields_ns, [4]);
        // Told a later time, too, it keeps to the first one.
        orders.see(&record(200, UP, &[yields(210)]));
        orders.see(&record(205, UP, &[yields(230)]));
        orders.see(&record(217, stopped, &[]));
        assert_eq!(orders.yields_ns, [4, 7]);
        // It ended before that, or with its worker.
        orders.see(&record(300, UP, &[yields(310)]));
        orders.see(&record(305, PoolEvent::Finished { device, task }, &[]));
        orders.see(&record(400, UP, &[yields(410)]));
        orders.see(&record(420, PoolEvent::Lost { device, task }, &[]));
        orders.see(&record(430, stopped, &[]));
        assert_eq!(orders.yields_ns, [4, 7]);
        assert_eq!(orders.free_p99_ns(), Some(7));
    }

    #[test]
    fn one_in_a_hundred_is_beyond_the_99th_percentile() {
        let orders = Orders { yields_ns: (1..=200).rev().collect(), ..Orders::default() };
        assert_eq!(orders.free_p99_ns(), Some(198));
    }
}
