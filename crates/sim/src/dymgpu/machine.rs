//! A device that takes turns: who runs next, what is copied when, and what of it is seen.

use weft_sched::VgpuKey;
use weft_sched::memory::contents::Contents;
use weft_sched::memory::{Ahead, Demand, EVERY_ROUND, Layout, Step, Table, Waiting};

use crate::random::Random;

/// What a device of that kind costs, and what it may do.
#[derive(Clone, Copy, Debug)]
pub(super) struct Machine {
    /// A turn, in ns.
    pub(super) quantum_ns: u64,
    /// Writing a slot's entries, in ns.
    pub(super) slot_ns: u64,
    /// Whether slots of the next ones are written while one runs.
    pub(super) ahead: bool,
    /// How far the order of turns may bend so that less is left to write, in ns; with 0 only equal
    /// tags are exchanged. `None` keeps to the layout's order in every round.
    pub(super) sigma_ns: Option<u64>,
    /// A fault of the device: after so many copies it skips one. For the negative control.
    pub(super) skip_after: Option<usize>,
}

/// What happened.
#[derive(Clone, Debug, Default)]
pub(super) struct Ran {
    /// Turns.
    pub(super) turns: u64,
    /// Slots written, whether seen or not.
    pub(super) copies: u64,
    /// Time in turns, in ns.
    pub(super) run_ns: u64,
    /// Time in which the device waited for copies, in ns; without the low region's.
    pub(super) stall_ns: u64,
    /// The longest wait for copies at one switch, in ns.
    pub(super) stall_max_ns: u64,
    /// Turns of each vGPU.
    pub(super) of_each: Vec<u64>,
    /// The most by which two vGPUs that always had work differed over an interval, in quanta.
    pub(super) lag_quanta: i64,
    /// The first violation: a turn that found something else than it had left, a switch that was
    /// refused, or a rule of the table that was broken; and how many turns had one.
    pub(super) broken: Option<String>,
    pub(super) violations: u64,
}

impl Ran {
    /// The part of the time in which the device ran somebody.
    pub(super) fn efficiency(&self) -> f64 {
        super::part(self.run_ns as f64, (self.run_ns + self.stall_ns) as f64)
    }

    /// The same if each turn also costs so many ns at its switch.
    pub(super) fn efficiency_with(&self, switch_ns: u64) -> f64 {
        let other = self.turns * switch_ns;
        super::part(self.run_ns as f64, (self.run_ns + self.stall_ns + other) as f64)
    }

    pub(super) fn copies_per_turn(&self) -> f64 {
        self.copies as f64 / self.turns.max(1) as f64
    }
}

/// The device while it runs.
struct State<'a> {
    machine: &'a Machine,
    layout: &'a Layout,
    table: Table,
    /// What the slots really have.
    device: Contents,
    steps: Vec<Step>,
    /// Service of each in quanta; the tag of one that wakes is raised to the least one.
    tags: Vec<u64>,
    /// The least tag of those with work; it never falls.
    virtual_time: u64,
    /// Who had work in the last round.
    awake: Vec<bool>,
    ran: Ran,
    lag: Lag,
}

impl Machine {
    /// Turns in the layout's order, all copies at the switch, no fault.
    pub(super) const fn in_turn(slot_ns: u64) -> Self {
        let quantum_ns = super::QUANTUM_NS;
        Self { quantum_ns, slot_ns, ahead: false, sigma_ns: None, skip_after: None }
    }

    /// So many rounds. In each a vGPU has work with its rate; its turn is a quantum. The first
    /// round, in which the table fills, is not counted.
    pub(super) fn run(
        &self,
        layout: &Layout,
        demands: &[Demand],
        rounds: u64,
        random: &mut Random,
    ) -> Ran {
        let mut table = Table::new(layout.region);
        table.set_layout(layout, &mut Vec::new());
        let count = demands.len();
        let ran = Ran { of_each: vec![0; count], ..Ran::default() };
        let lag = Lag::of(demands);
        let (tags, awake) = (vec![0; count], vec![true; count]);
        let device = match self.skip_after {
            Some(after) => Contents::skipping(layout.region, after),
            None => Contents::new(layout.region),
        };
        let (machine, steps) = (self, Vec::new());
        let mut state =
            State { machine, layout, table, device, steps, tags, virtual_time: 0, awake, ran, lag };
        let mut last = None;
        for round in 0..=rounds {
            let draw = |demand: &Demand| random.chance(u64::from(demand.rate));
            let active: Vec<bool> = demands.iter().map(draw).collect();
            state.round(&active, &mut last);
            if round == 0 {
                // What was broken there counts.
                let Ran { violations, broken, .. } = std::mem::take(&mut state.ran);
                state.ran = Ran { of_each: vec![0; count], violations, broken, ..Ran::default() };
                state.lag = Lag::of(demands);
            }
        }
        state.ran.lag_quanta = state.lag.most();
        state.ran
    }
}

impl State<'_> {
    /// Everybody with work has at least one turn.
    fn round(&mut self, active: &[bool], last: &mut Option<usize>) {
        let with_work = || (0..active.len()).filter(|index| active[*index]);
        let mut left: Vec<usize> = with_work().collect();
        for index in with_work().filter(|index| !self.awake[*index]) {
            // Who slept has no claim to what it missed.
            self.tags[index] = self.tags[index].max(self.virtual_time);
        }
        self.awake = active.to_vec();
        while !left.is_empty() {
            let Some(next) = self.choose(&with_work().collect::<Vec<_>>(), *last) else { return };
            left.retain(|index| *index != next);
            self.turn(next);
            let least = with_work().map(|index| self.tags[index]).min().unwrap_or(0);
            self.virtual_time = self.virtual_time.max(least);
            *last = Some(next);
            self.write_ahead(&with_work().collect::<Vec<_>>());
        }
    }

    fn key(&self, index: usize) -> VgpuKey {
        self.layout.places[index].vgpu
    }

    fn ahead(&self) -> Ahead {
        let Machine { quantum_ns, slot_ns, sigma_ns, .. } = *self.machine;
        let hidden = usize::try_from(quantum_ns / slot_ns.max(1)).unwrap_or(usize::MAX);
        Ahead { sigma_ns, hidden }
    }

    fn waiting(&self, with_work: &[usize]) -> Vec<Waiting> {
        let one = |&index: &usize| {
            let tag_ns = self.tags[index] * self.machine.quantum_ns;
            Waiting { vgpu: self.key(index), tag_ns }
        };
        with_work.iter().map(one).collect()
    }

    /// Who is next after `last`.
    fn choose(&self, with_work: &[usize], last: Option<usize>) -> Option<usize> {
        let last = last.map(|index| self.key(index));
        let next = self.ahead().next(self.layout, &self.table, &self.waiting(with_work), last)?;
        self.layout.places.iter().position(|place| place.vgpu == next)
    }

    fn turn(&mut self, next: usize) {
        let place = &self.layout.places[next];
        let switched = self.table.switch_to(place.vgpu, &mut self.steps);
        self.device.carry_out(&mut self.steps);
        let judged = match switched {
            None => Err(format!("{:?} has no place", place.vgpu)),
            Some(_) => self.device.run(place).map_err(|lost| lost.to_string()),
        };
        let rules = self.table.check().map_err(|broken| broken.to_string());
        if let Err(words) = judged.and(rules) {
            self.ran.violations += 1;
            self.ran.broken.get_or_insert(words);
        }
        let copies = switched.unwrap_or(0) as u64;
        let stall = copies * self.machine.slot_ns;
        self.ran.copies += copies;
        self.ran.stall_ns += stall;
        self.ran.stall_max_ns = self.ran.stall_max_ns.max(stall);
        self.tags[next] += 1;
        self.ran.turns += 1;
        self.ran.run_ns += self.machine.quantum_ns;
        self.ran.of_each[next] += 1;
        self.lag.served(next);
    }

    /// During a turn: slots of those that are next, as many as there is time for.
    fn write_ahead(&mut self, with_work: &[usize]) {
        if !self.machine.ahead {
            return;
        }
        let (ahead, waiting) = (self.ahead(), self.waiting(with_work));
        let Self { layout, table, steps, .. } = self;
        let written = ahead.write(layout, table, &waiting, ahead.hidden, steps);
        self.device.carry_out(&mut self.steps);
        self.ran.copies += written as u64;
    }
}

/// How far apart two vGPUs get over any interval in which both always have work.
struct Lag {
    always: Vec<usize>,
    served: Vec<i64>,
    /// Least and largest difference of each pair.
    ranges: Vec<(i64, i64)>,
}

impl Lag {
    fn of(demands: &[Demand]) -> Self {
        let always: Vec<usize> =
            (0..demands.len()).filter(|index| demands[*index].rate == EVERY_ROUND).collect();
        let pairs = always.len() * always.len();
        Self { served: vec![0; demands.len()], ranges: vec![(0, 0); pairs], always }
    }

    fn served(&mut self, index: usize) {
        self.served[index] += 1;
        let count = self.always.len();
        let Some(place) = self.always.iter().position(|always| *always == index) else { return };
        for (other_place, other) in self.always.iter().enumerate() {
            let difference = self.served[index] - self.served[*other];
            for (at, difference) in [
                (place * count + other_place, difference),
                (other_place * count + place, -difference),
            ] {
                let range = &mut self.ranges[at];
                *range = (range.0.min(difference), range.1.max(difference));
            }
        }
    }

    fn most(&self) -> i64 {
        self.ranges.iter().map(|(low, high)| high - low).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{HIDDEN, QUANTUM_NS, REGION, SLOT_NS, mixed, place};
    use super::*;

    const ROUND_ROBIN: Machine = Machine::in_turn(SLOT_NS);

    #[test]
    fn rounds_of_busy_vgpus_copy_what_the_layout_says() {
        for name in ["scores", "size", "exact", "scattered"] {
            let demands = mixed(15);
            let layout = place(name, &demands);
            let ran = ROUND_ROBIN.run(&layout, &demands, 20, &mut Random::new(1));
            assert_eq!(ran.copies, 20 * layout.copies_per_round() as u64, "{name}");
            assert_eq!((ran.turns, ran.lag_quanta, ran.violations), (20 * 15, 1, 0));
        }
    }

    #[test]
    fn copies_that_are_hidden_are_still_made() {
        let demands = mixed(15);
        let layout = place("pipelined", &demands);
        let machine = Machine { ahead: true, ..ROUND_ROBIN };
        let ran = machine.run(&layout, &demands, 20, &mut Random::new(1));
        assert_eq!(ran.copies, 20 * layout.copies_per_round() as u64);
        let seen = machine.slot_ns * ran.copies;
        assert!(ran.stall_ns < seen / 4, "{} of {seen} ns are seen", ran.stall_ns);
        assert_eq!(ran.of_each, vec![20; 15]);
    }

    #[test]
    fn an_order_that_bends_lets_one_run_twice_and_another_wait_a_quantum_more() {
        let demands = mixed(15);
        let layout = place("pipelined", &demands);
        let fixed = Machine { ahead: true, ..ROUND_ROBIN };
        let bends = Machine { sigma_ns: Some(0), ..fixed };
        let of = |machine: &Machine| machine.run(&layout, &demands, 20, &mut Random::new(1));
        assert_eq!((of(&fixed).lag_quanta, of(&bends).lag_quanta), (1, 2));
        assert!(of(&bends).copies < of(&fixed).copies);
    }

    #[test]
    fn nothing_is_hidden_in_one_pile_of_one() {
        // Two vGPUs as large as the region: while one runs nothing of the other can be written.
        let demands = super::super::demands([REGION, REGION]);
        let layout = place("pipelined", &demands);
        let machine = Machine { ahead: true, ..ROUND_ROBIN };
        let ran = machine.run(&layout, &demands, 20, &mut Random::new(1));
        assert_eq!(ran.stall_ns, ran.copies * SLOT_NS);
        assert_eq!(ran.copies, 40 * REGION as u64);
    }

    #[test]
    fn a_quantum_hides_the_slots_that_fit_into_it() {
        assert_eq!(QUANTUM_NS / SLOT_NS, HIDDEN as u64);
    }

    #[test]
    fn a_skipped_copy_is_found_and_a_round_without_one_is_not() {
        let demands = mixed(15);
        let layout = place("size", &demands);
        for after in [0, 7, 400] {
            let faulty = Machine { skip_after: Some(after), ..ROUND_ROBIN };
            let ran = faulty.run(&layout, &demands, 20, &mut Random::new(1));
            assert!(ran.violations > 0, "copy {after} was not missed");
        }
    }
}
