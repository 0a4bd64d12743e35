//! What a device was away for when it was reset, by the pool's journal.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result};
use weft_node::journal::{files, pool_folders};
use weft_sched::DeviceKey;
use weft_sched::journal::{PoolRecord, PoolReplay};
use weft_sched::pool::{PoolAction, PoolEvent};

use super::work::POOL;
use crate::replay::read;

/// Resets that are over, and those that are not.
#[derive(Debug, Default)]
struct Resets {
    since_ns: BTreeMap<DeviceKey, u64>,
    count: u64,
    sum_ns: u64,
}

impl Resets {
    fn see(&mut self, record: &PoolRecord) {
        if let PoolEvent::ResetDone { device } = record.event
            && let Some(since_ns) = self.since_ns.remove(&device)
        {
            self.count += 1;
            self.sum_ns += record.now_ns.saturating_sub(since_ns);
        }
        for action in record.actions.iter().flatten() {
            if let PoolAction::Reset { device } = *action {
                self.since_ns.insert(device, record.now_ns);
            }
        }
    }

    fn mean_ns(&self) -> Option<u64> {
        self.sum_ns.checked_div(self.count)
    }
}

/// The mean of all resets of the pool whose journal stands in this folder; none if there was none.
pub(super) fn mean_ns(journal: &Path) -> Result<Option<u64>> {
    let folders = pool_folders(journal).context("cannot read the journal")?;
    let mut resets = Resets::default();
    for (_, folder) in folders.iter().filter(|(name, _)| name == POOL) {
        for file in files(folder).context("cannot read the pool's journal")? {
            let bytes = read(&file.path)?;
            let mut replay = PoolReplay::new(&bytes)?;
            // What a device was away for when the node ended is not known.
            resets.since_ns.clear();
            while let Some(record) = replay.step()? {
                resets.see(&record);
            }
        }
    }
    Ok(resets.mean_ns())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(now_ns: u64, event: PoolEvent, actions: &[PoolAction]) -> PoolRecord {
        PoolRecord { number: 0, now_ns, event, actions: Some(actions.to_vec()) }
    }

    #[test]
    fn a_reset_lasts_until_its_device_is_back() {
        let [one, other] = [DeviceKey(0), DeviceKey(1)];
        let [reset, reset_other] = [one, other].map(|device| PoolAction::Reset { device });
        let done = |device| PoolEvent::ResetDone { device };
        let mut resets = Resets::default();
        assert_eq!(resets.mean_ns(), None);
        let up = PoolEvent::DeviceUp { device: DeviceKey(2) };
        resets.see(&record(10, up, &[reset, reset_other]));
        resets.see(&record(30, done(one), &[reset]));
        resets.see(&record(70, done(other), &[]));
        assert_eq!(resets.mean_ns(), Some(40), "20 and 60; one is not back");
    }
}
