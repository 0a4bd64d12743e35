//! Places vGPUs anew when that pays: on create, destroy, idle and wake, and periodically.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::layout::Layout;
use super::monitor::{Monitor, MonitorConfig};
use super::table::{Step, Table};
use super::{Demand, EVERY_ROUND, PlaceError, PlacementId, Problem, add_last};
use crate::key::VgpuKey;

/// Settings.
#[derive(Clone, Copy, Debug)]
pub struct ManagerConfig {
    /// Who lies where.
    pub placement: PlacementId,
    /// Slots of the high region.
    pub region: usize,
    /// Slots that can be written during one quantum.
    pub hidden: usize,
    /// When somebody is idle.
    pub monitor: MonitorConfig,
    /// Time between two looks at everybody's rate, in ns. 20 s in the paper.
    pub period_ns: u64,
    /// A quantum in ns: a vGPU's rate is its utilisation in these.
    pub quantum_ns: u64,
}

/// What came of a change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replaced {
    /// vGPUs that lie somewhere else now.
    pub moved: usize,
    /// Slots whose entries must be written again for it.
    pub forgotten: usize,
}

/// The places of a device's vGPUs over time. Times are in ns and never fall.
#[derive(Clone, Debug)]
pub struct Manager {
    config: ManagerConfig,
    monitor: Monitor,
    /// Slots of everybody, idle ones included.
    slots: BTreeMap<VgpuKey, usize>,
    /// Those that are not idle, in order of creation or waking, with their rates.
    demands: Vec<Demand>,
    layout: Layout,
    table: Table,
    next_ns: u64,
}

impl Manager {
    /// An empty device.
    pub fn new(config: ManagerConfig) -> Self {
        Self {
            monitor: Monitor::new(config.monitor),
            table: Table::new(config.region),
            layout: Layout { region: config.region, ..Layout::default() },
            next_ns: config.period_ns,
            slots: BTreeMap::new(),
            demands: Vec::new(),
            config,
        }
    }

    /// A vGPU is created.
    ///
    /// # Errors
    /// If it asks for no slot, for more than there are, or is there already.
    pub fn create(
        &mut self,
        now_ns: u64,
        vgpu: VgpuKey,
        slots: usize,
        steps: &mut Vec<Step>,
    ) -> Result<Replaced, PlaceError> {
        if self.slots.contains_key(&vgpu) {
            return Err(PlaceError::Twice { vgpu });
        }
        let replaced = self.admit(now_ns, vgpu, slots, steps)?;
        self.slots.insert(vgpu, slots);
        self.monitor.add(now_ns, vgpu);
        Ok(replaced)
    }

    /// A vGPU is destroyed.
    ///
    /// # Errors
    /// If there is none of that key.
    pub fn destroy(
        &mut self,
        now_ns: u64,
        vgpu: VgpuKey,
        steps: &mut Vec<Step>,
    ) -> Result<Replaced, PlaceError> {
        self.slots.remove(&vgpu).ok_or(PlaceError::Unknown { vgpu })?;
        self.monitor.remove(vgpu);
        self.dismiss(now_ns, &[vgpu], steps)
    }

    /// A vGPU has work: if it was idle it is placed like a new one.
    ///
    /// # Errors
    /// If there is none of that key.
    pub fn wake(
        &mut self,
        now_ns: u64,
        vgpu: VgpuKey,
        steps: &mut Vec<Step>,
    ) -> Result<Replaced, PlaceError> {
        let slots = *self.slots.get(&vgpu).ok_or(PlaceError::Unknown { vgpu })?;
        if self.monitor.wake(now_ns, vgpu) {
            self.admit(now_ns, vgpu, slots, steps)
        } else {
            Ok(Replaced::default())
        }
    }

    /// A vGPU used the device for so long, until now.
    pub fn charge(&mut self, now_ns: u64, vgpu: VgpuKey, used_ns: u64) {
        self.monitor.charge(now_ns, vgpu, used_ns);
    }

    /// Time passed: looks for idle vGPUs, and at the rates when it is time.
    ///
    /// # Errors
    /// Never, while demands are only those that were accepted.
    pub fn handle_timeout(
        &mut self,
        now_ns: u64,
        steps: &mut Vec<Step>,
    ) -> Result<Replaced, PlaceError> {
        let idle = self.monitor.poll_idle(now_ns);
        let due = self.next_ns <= now_ns;
        if due {
            self.next_ns = now_ns + self.config.period_ns;
        }
        if idle.is_empty() && !due {
            return Ok(Replaced::default());
        }
        self.dismiss(now_ns, &idle, steps)
    }

    /// The vGPU gets its turn. The result is how many slots were written, `None` if it is idle or
    /// not known.
    pub fn switch_to(&mut self, vgpu: VgpuKey, steps: &mut Vec<Step>) -> Option<usize> {
        self.table.switch_to(vgpu, steps)
    }

    /// Writes one slot of a vGPU that will run soon, as [`Table::prefetch`].
    pub fn prefetch(
        &mut self,
        vgpu: VgpuKey,
        before: &[VgpuKey],
        steps: &mut Vec<Step>,
    ) -> Option<usize> {
        self.table.prefetch(vgpu, before, steps)
    }

    /// Where everybody that is not idle lies.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Whose entries are where.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// Rates, by utilisation over the window: who uses a fair share of the device or more, or is
    /// too young to say, has a turn in every round.
    fn measure(&mut self, now_ns: u64) {
        let count = self.demands.len() as u64;
        for demand in &mut self.demands {
            let used = self.monitor.utilisation_permille(now_ns, demand.vgpu);
            let every = u64::from(EVERY_ROUND);
            let rate = used.map_or(every, |used| (used * count).clamp(1, every));
            demand.rate = u32::try_from(rate).unwrap_or(EVERY_ROUND);
        }
    }

    fn admit(
        &mut self,
        now_ns: u64,
        vgpu: VgpuKey,
        slots: usize,
        steps: &mut Vec<Step>,
    ) -> Result<Replaced, PlaceError> {
        let mut demands = self.demands.clone();
        demands.push(Demand { vgpu, slots, rate: EVERY_ROUND });
        let mut layout = self.layout.clone();
        add_last(&self.problem(&demands), &mut layout)?;
        self.demands = demands;
        self.measure(now_ns);
        if let Some(newcomer) = self.demands.last_mut() {
            newcomer.rate = EVERY_ROUND;
        }
        self.choose(layout, steps)
    }

    fn dismiss(
        &mut self,
        now_ns: u64,
        gone: &[VgpuKey],
        steps: &mut Vec<Step>,
    ) -> Result<Replaced, PlaceError> {
        self.demands.retain(|demand| !gone.contains(&demand.vgpu));
        self.measure(now_ns);
        let mut layout = self.layout.clone();
        let stays = |index: usize| !gone.contains(&self.layout.places[index].vgpu);
        // Places that stay move up in the list, and so do their numbers in the order.
        let before = |index: usize| (0..index).filter(|other| stays(*other)).count();
        let order = self.layout.order.iter().filter(|index| stays(**index));
        layout.order = order.map(|index| before(*index)).collect();
        layout.places.retain(|place| !gone.contains(&place.vgpu));
        self.choose(layout, steps)
    }

    /// Takes the layout in which nobody was moved, or a new one if that saves more copies until the
    /// next look than moving costs.
    fn choose(&mut self, kept: Layout, steps: &mut Vec<Step>) -> Result<Replaced, PlaceError> {
        let problem = self.problem(&self.demands);
        let placement = self.config.placement;
        let fresh = placement.place(&problem)?;
        let round_ns = self.config.quantum_ns * self.demands.len().max(1) as u64;
        let rounds = self.config.period_ns / round_ns.max(1);
        let (before, after) = (placement.cost(&problem, &kept), placement.cost(&problem, &fresh));
        let gain = before.saturating_sub(after).saturating_mul(rounds) / u64::from(EVERY_ROUND);
        let moves = || fresh.places.iter().zip(&kept.places).filter(|(new, old)| new != old);
        let price: usize = moves().map(|(new, _)| new.slots().count()).sum();
        let (moved, layout) =
            if gain > price as u64 { (moves().count(), fresh) } else { (0, kept) };
        let forgotten = self.table.set_layout(&layout, steps);
        self.layout = layout;
        Ok(Replaced { moved, forgotten })
    }

    fn problem<'a>(&self, demands: &'a [Demand]) -> Problem<'a> {
        Problem { region: self.config.region, demands, hidden: self.config.hidden }
    }
}
