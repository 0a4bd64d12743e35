//! Places vGPUs anew when that pays: on create, destroy, idle and wake, and periodically.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::dynamic::{self, Change, Dynamic};
use super::layout::Layout;
use super::monitor::{Monitor, MonitorConfig};
use super::table::{Step, Table};
use super::{Demand, EVERY_ROUND, Moves, PlaceError, PlacementId, Problem, add_last};
use crate::key::VgpuKey;

/// Time between two looks at everybody's rate unless told otherwise, in ns: the paper's 20 s.
pub const PERIOD_NS: u64 = 20_000_000_000;

/// When vGPUs that have a place are moved. `scores` never moves anybody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Where that saves more copies until the next look than it costs (Weft).
    Gain,
    /// A model of DymGPU's §3.2, for `size` and `utilization`; others follow `Gain`.
    Dymgpu,
}

/// Settings.
#[derive(Clone, Copy, Debug)]
pub struct ManagerConfig {
    /// Who lies where.
    pub placement: PlacementId,
    /// When somebody is moved.
    pub rule: Rule,
    /// Slots of the high region.
    pub region: usize,
    /// Slots that can be written during one quantum.
    pub hidden: usize,
    /// When somebody is idle.
    pub monitor: MonitorConfig,
    /// Time between two looks at everybody's rate, in ns.
    pub period_ns: u64,
    /// A quantum in ns: a vGPU's rate is its utilisation in these.
    pub quantum_ns: u64,
    /// Whether a better layout is searched for by whoever asks for a [`Search`], where the rule is
    /// that it must pay: a change takes the layout in which nobody moves, at once.
    pub defers: bool,
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
    dynamic: Dynamic,
    /// A layout was not taken because it would have moved the one that has the turn.
    held_back: bool,
    /// There was a change since the last search began.
    wants_search: bool,
    /// Counts layouts.
    version: u64,
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
            dynamic: Dynamic::default(),
            held_back: false,
            wants_search: false,
            version: 0,
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

    /// A vGPU is destroyed. If it has the turn that ends here: stop it first.
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
        self.dismiss(now_ns, &[vgpu], false, steps)
    }

    /// A vGPU uses more slots, or fewer: it is placed like a new one. If it has the turn it must be
    /// switched to again. Nothing is moved for one that is idle.
    ///
    /// # Errors
    /// As [`Self::create`]; nothing changed then. [`PlaceError::Unknown`].
    pub fn resize(
        &mut self,
        now_ns: u64,
        vgpu: VgpuKey,
        slots: usize,
        steps: &mut Vec<Step>,
    ) -> Result<Replaced, PlaceError> {
        let own = self.slots.get_mut(&vgpu).ok_or(PlaceError::Unknown { vgpu })?;
        if slots == 0 {
            return Err(PlaceError::Empty { vgpu });
        }
        if slots > self.config.region {
            let region = self.config.region;
            return Err(PlaceError::TooLarge { vgpu, slots, region });
        }
        let before = core::mem::replace(own, slots);
        if before == slots || self.layout.place(vgpu).is_none() {
            return Ok(Replaced::default());
        }
        // As one that left and came back: what lies where it lay stays.
        self.demands.retain(|demand| demand.vgpu != vgpu);
        self.layout = without(core::mem::take(&mut self.layout), &[vgpu]);
        self.admit(now_ns, vgpu, slots, steps)
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

    /// A vGPU has no work any more: from now on it may become idle.
    pub fn rest(&mut self, now_ns: u64, vgpu: VgpuKey) {
        self.monitor.rest(now_ns, vgpu);
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
        let idle = self.monitor.poll_idle(now_ns, self.table.resident());
        let due = self.next_ns <= now_ns;
        if due {
            self.next_ns = now_ns.saturating_add(self.config.period_ns);
        }
        if idle.is_empty() && !due {
            return Ok(Replaced::default());
        }
        self.dismiss(now_ns, &idle, due, steps)
    }

    /// The vGPU gets its turn, and that of the last one is over. Until it is over in turn, nobody
    /// writes into its slots and it lies where it lies. The result is how many slots were written,
    /// `None` if it is idle or not known.
    pub fn switch_to(&mut self, vgpu: VgpuKey, steps: &mut Vec<Step>) -> Option<usize> {
        self.table.switch_to(vgpu, steps)
    }

    /// The turn is over: what was held back because it would have moved the resident is decided
    /// now.
    ///
    /// # Errors
    /// Never, while demands are only those that were accepted.
    pub fn end_turn(&mut self, steps: &mut Vec<Step>) -> Result<Replaced, PlaceError> {
        self.table.end_turn();
        if !core::mem::take(&mut self.held_back) {
            return Ok(Replaced::default());
        }
        self.choose(Change::HeldBack, &[], steps)
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
            let rate = used.map_or(every, |used| used.saturating_mul(count).clamp(1, every));
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
        let demand = Demand { vgpu, slots, rate: EVERY_ROUND };
        // Those before it were accepted.
        add_last(&self.problem(&[demand]), &mut self.layout)?;
        self.demands.push(demand);
        self.measure(now_ns);
        if let Some(newcomer) = self.demands.last_mut() {
            newcomer.rate = EVERY_ROUND;
        }
        self.choose(Change::Joined, &[], steps)
    }

    fn dismiss(
        &mut self,
        now_ns: u64,
        gone: &[VgpuKey],
        due: bool,
        steps: &mut Vec<Step>,
    ) -> Result<Replaced, PlaceError> {
        let had_own = dynamic::had_own(&self.layout, gone);
        self.demands.retain(|demand| !gone.contains(&demand.vgpu));
        self.measure(now_ns);
        self.layout = without(core::mem::take(&mut self.layout), gone);
        self.choose(Change::Left { had_own, due }, gone, steps)
    }

    /// Takes the layout in which nobody was moved, which [`Self::layout`] is already, or the one
    /// that the rule wants instead. Whoever has the turn is not moved: that waits for its end.
    /// `gone` have left.
    fn choose(
        &mut self,
        change: Change,
        gone: &[VgpuKey],
        steps: &mut Vec<Step>,
    ) -> Result<Replaced, PlaceError> {
        let Some(fresh) = self.fresh(change)? else {
            let forgotten = self.keep(change, gone, steps);
            return Ok(Replaced { moved: 0, forgotten });
        };
        // A newcomer has nothing to lose yet.
        let old = self.layout.places.len() - usize::from(change == Change::Joined);
        let moved = moved(&fresh, &self.layout, old).count();
        let forgotten = self.adopt(fresh, steps);
        Ok(Replaced { moved, forgotten })
    }

    /// The layout that the rule wants instead of this one, unless that must wait.
    fn fresh(&mut self, change: Change) -> Result<Option<Layout>, PlaceError> {
        let problem = self.problem(&self.demands);
        let kept = &mut self.layout;
        let fresh = match (self.config.placement.moves(), self.config.rule) {
            (Moves::Never, _) => None,
            (Moves::Always, _) => Some(self.config.placement.place(&problem)?),
            (Moves::BySize, Rule::Dymgpu) => self.dynamic.by_size(&problem, kept, change),
            (Moves::ByUtilization, Rule::Dymgpu) => dynamic::by_utilization(&problem, kept, change),
            (Moves::BySize | Moves::ByUtilization | Moves::IfItPays, _) if self.config.defers => {
                self.wants_search = true;
                None
            }
            (Moves::BySize | Moves::ByUtilization | Moves::IfItPays, _) => {
                let old = kept.places.len() - usize::from(change == Change::Joined);
                if_it_pays(&self.config, &problem, kept, old)?
            }
        };
        let held_back = fresh.as_ref().is_some_and(|fresh| self.moves_resident(fresh));
        self.held_back |= held_back;
        Ok(fresh.filter(|_| !held_back))
    }

    /// Whether a layout has whoever has the turn elsewhere than this one.
    fn moves_resident(&self, fresh: &Layout) -> bool {
        let running = self.table.resident();
        running.is_some_and(|vgpu| fresh.place(vgpu) != self.layout.place(vgpu))
    }

    /// The layout from now on; how many slots must be written again for it.
    fn adopt(&mut self, layout: Layout, steps: &mut Vec<Step>) -> usize {
        self.version += 1;
        self.layout = layout;
        self.table.set_layout(&self.layout, steps)
    }

    /// The same with the layout that there is, of which the table lacks only the change: nobody
    /// waits while all the others are compared.
    fn keep(&mut self, change: Change, gone: &[VgpuKey], steps: &mut Vec<Step>) -> usize {
        self.version += 1;
        match (change, self.layout.places.last()) {
            (Change::Joined, Some(newcomer)) => self.table.set_place(newcomer, steps),
            (Change::Left { .. }, _) => self.table.remove(gone, steps),
            (Change::Joined, None) | (Change::HeldBack, _) => 0,
        }
    }

    /// What to search a better layout for, if there was a change since the last time.
    pub fn search(&mut self) -> Option<Search> {
        let Self { config, version, .. } = *self;
        core::mem::take(&mut self.wants_search).then(|| Search {
            config,
            demands: self.demands.clone(),
            kept: self.layout.clone(),
            version,
        })
    }

    /// Takes what a search found, unless the layout is another one than it began with, or whoever
    /// has the turn would be moved: then there is to be another search.
    pub fn take(
        &mut self,
        search: &Search,
        found: Layout,
        steps: &mut Vec<Step>,
    ) -> Option<Replaced> {
        if search.version != self.version || self.moves_resident(&found) {
            self.wants_search = true;
            return None;
        }
        let moved = moved(&found, &self.layout, self.layout.places.len()).count();
        let forgotten = self.adopt(found, steps);
        Some(Replaced { moved, forgotten })
    }

    /// Counts the layouts so far: with the same count it is the same one.
    pub fn version(&self) -> u64 {
        self.version
    }

    fn problem<'a>(&self, demands: &'a [Demand]) -> Problem<'a> {
        Problem { region: self.config.region, demands, hidden: self.config.hidden }
    }
}

/// A search for a layout that has fewer copies, without the manager: it takes long where there are
/// many vGPUs, and nobody should wait for it.
#[derive(Clone, Debug)]
pub struct Search {
    config: ManagerConfig,
    demands: Vec<Demand>,
    kept: Layout,
    version: u64,
}

impl Search {
    /// A layout that saves more copies until the next look than moving costs, for
    /// [`Manager::take`].
    pub fn run(&self) -> Option<Layout> {
        let Self { config, demands, kept, .. } = self;
        let problem = Problem { region: config.region, demands, hidden: config.hidden };
        // Demands are those that were accepted.
        if_it_pays(config, &problem, kept, kept.places.len()).ok().flatten()
    }
}

/// Everybody placed anew, if that saves more copies until the next look than moving costs.
fn if_it_pays(
    config: &ManagerConfig,
    problem: &Problem<'_>,
    kept: &Layout,
    old: usize,
) -> Result<Option<Layout>, PlaceError> {
    let placement = config.placement;
    let before = placement.cost(problem, kept);
    if before == 0 {
        return Ok(None);
    }
    let fresh = placement.place(problem)?;
    let round_ns = config.quantum_ns.saturating_mul(problem.demands.len().max(1) as u64);
    let rounds = config.period_ns / round_ns.max(1);
    let saved = before.saturating_sub(placement.cost(problem, &fresh));
    let gain = saved.saturating_mul(rounds) / u64::from(EVERY_ROUND);
    let price: usize = moved(&fresh, kept, old).sum();
    Ok((gain > price as u64).then_some(fresh))
}

/// The layout with fewer vGPUs; the others stay where they are.
fn without(mut layout: Layout, gone: &[VgpuKey]) -> Layout {
    let stays: Vec<bool> = layout.places.iter().map(|place| !gone.contains(&place.vgpu)).collect();
    // Places that stay move up in the list, and so do their numbers in the order.
    let mut numbers = Vec::with_capacity(stays.len());
    let mut before = 0;
    for stays in &stays {
        numbers.push(before);
        before += usize::from(*stays);
    }
    layout.order.retain(|index| stays[*index]);
    layout.order.iter_mut().for_each(|index| *index = numbers[*index]);
    layout.places.retain(|place| !gone.contains(&place.vgpu));
    layout
}

/// Slots of each of the first `old` vGPUs that one layout has elsewhere than another.
fn moved<'a>(fresh: &'a Layout, kept: &'a Layout, old: usize) -> impl Iterator<Item = usize> + 'a {
    let pairs = fresh.places.iter().zip(&kept.places).take(old);
    pairs.filter(|(new, old)| new != old).map(|(new, _)| new.slots().count())
}
