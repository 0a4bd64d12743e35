//! Who is idle, and how much the others use (DymGPU §3.1), from the charges of the scheduler.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use crate::key::VgpuKey;

/// Parts of the window that are forgotten at a time.
const PARTS: u64 = 20;

/// Times in ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MonitorConfig {
    /// Without work and without a charge for so long a vGPU is idle. 20 s in the paper.
    pub idle_ns: u64,
    /// Utilisation is averaged over so long. 20 s in the paper.
    pub window_ns: u64,
}

impl Default for MonitorConfig {
    fn default() -> Self {
        Self { idle_ns: 20_000_000_000, window_ns: 20_000_000_000 }
    }
}

/// What vGPUs did of late. Times never fall.
#[derive(Clone, Debug, Default)]
pub struct Monitor {
    config: MonitorConfig,
    rows: BTreeMap<VgpuKey, Row>,
}

#[derive(Clone, Debug)]
struct Row {
    since_ns: u64,
    last_ns: u64,
    is_idle: bool,
    has_work: bool,
    /// Number of the part of time, and what was used in it in ns.
    parts: VecDeque<(u64, u64)>,
}

impl Monitor {
    /// Nobody is known yet.
    pub fn new(config: MonitorConfig) -> Self {
        Self { config, rows: BTreeMap::new() }
    }

    /// A vGPU is there, without work, and counts as used now.
    pub fn add(&mut self, now_ns: u64, vgpu: VgpuKey) {
        let (since_ns, last_ns, parts) = (now_ns, now_ns, VecDeque::new());
        let row = Row { since_ns, last_ns, is_idle: false, has_work: false, parts };
        self.rows.insert(vgpu, row);
    }

    /// A vGPU is gone.
    pub fn remove(&mut self, vgpu: VgpuKey) {
        self.rows.remove(&vgpu);
    }

    /// A vGPU used the device for so long, until now.
    pub fn charge(&mut self, now_ns: u64, vgpu: VgpuKey, used_ns: u64) {
        let part = now_ns / self.part_ns();
        let Some(row) = self.rows.get_mut(&vgpu) else { return };
        row.last_ns = now_ns;
        match row.parts.back_mut() {
            Some((last, used)) if *last == part => *used = used.saturating_add(used_ns),
            Some(_) | None => row.parts.push_back((part, used_ns)),
        }
        row.parts.retain(|(old, _)| old + PARTS > part);
    }

    /// A vGPU has work, and is not idle until it [rests](Self::rest), however long it waits for a
    /// turn or one kernel takes. True if it was idle, and so has no place.
    pub fn wake(&mut self, now_ns: u64, vgpu: VgpuKey) -> bool {
        let Some(row) = self.rows.get_mut(&vgpu) else { return false };
        (row.last_ns, row.has_work) = (now_ns, true);
        core::mem::take(&mut row.is_idle)
    }

    /// A vGPU has no work any more.
    pub fn rest(&mut self, now_ns: u64, vgpu: VgpuKey) {
        let Some(row) = self.rows.get_mut(&vgpu).filter(|row| row.has_work) else { return };
        (row.last_ns, row.has_work) = (now_ns, false);
    }

    /// Those that became idle since the last call. The one that has the turn is not among them.
    pub fn poll_idle(&mut self, now_ns: u64, running: Option<VgpuKey>) -> Vec<VgpuKey> {
        let idle_ns = self.config.idle_ns;
        let is_over = |row: &Row| {
            !row.is_idle && !row.has_work && row.last_ns.saturating_add(idle_ns) <= now_ns
        };
        let over = self.rows.iter_mut();
        over.filter(|(vgpu, row)| is_over(row) && running != Some(**vgpu))
            .map(|(vgpu, row)| {
                row.is_idle = true;
                *vgpu
            })
            .collect()
    }

    /// Whether a vGPU is idle.
    pub fn is_idle(&self, vgpu: VgpuKey) -> bool {
        self.rows.get(&vgpu).is_some_and(|row| row.is_idle)
    }

    /// The part of the window that a vGPU used, in thousandths; of its life if that is shorter.
    /// `None` for one that is not known or too young to say: less than a part of the window.
    pub fn utilisation_permille(&self, now_ns: u64, vgpu: VgpuKey) -> Option<u64> {
        let old_enough = |row: &&Row| now_ns >= row.since_ns.saturating_add(self.part_ns());
        let row = self.rows.get(&vgpu).filter(old_enough)?;
        let part = now_ns / self.part_ns();
        let recent = row.parts.iter().filter(|(old, _)| old + PARTS > part);
        let used: u64 = recent.fold(0, |sum, (_, used)| used.saturating_add(sum));
        let over = self.config.window_ns.min(now_ns.saturating_sub(row.since_ns)).max(1);
        Some(used.saturating_mul(1_000) / over)
    }

    fn part_ns(&self) -> u64 {
        (self.config.window_ns / PARTS).max(1)
    }
}
