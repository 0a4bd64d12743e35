//! A configuration in the simulator.

use std::cell::RefCell;
use std::rc::Rc;

use weft_sched::Class;

use super::draw::{Configuration, LONG_BLOCK_US, Load, SLA_NS, Tenant};
use super::figures::Seen;
use crate::calibration::Calibration;
use crate::kernel::{Kernel, SECOND, US};
use crate::program::{Behaviour, Step, Transport, View};
use crate::random::Random;
use crate::worker::{GRID_BLOCKS, Source};
use crate::world::{Setup, SetupError, World};

/// How a configuration is simulated.
#[derive(Clone, Debug)]
pub struct Model {
    /// What things cost.
    pub costs: Calibration,
    /// The policy's name.
    pub policy: &'static str,
    /// Before the window, in s.
    pub warm_up_s: u64,
    /// The window, in s.
    pub window_s: u64,
    /// Shifts requests against turns.
    pub phase: u64,
    /// By how much programs sleep longer than they should, in ns: each time one of these. Without
    /// any it is the daemon's timers' delay each time.
    pub lateness_ns: Rc<[u64]>,
}

impl Model {
    /// A second of a policy with these costs after one of warm-up, whose programs sleep as long as
    /// timers take.
    pub fn new(costs: Calibration, policy: &'static str) -> Self {
        Self { costs, policy, warm_up_s: 1, window_s: 1, phase: 0, lateness_ns: Rc::from([]) }
    }

    /// Another phase.
    #[must_use]
    pub fn at(&self, phase: u64) -> Self {
        Self { phase, ..self.clone() }
    }
}

/// Answers of a service, as they come.
type Answers = Rc<RefCell<Vec<f64>>>;

/// The service of `bench/programs/request.c`.
#[derive(Debug)]
struct Service {
    kernel: Kernel,
    launches: u64,
    period_us: u64,
    random: u64,
    begin_ns: u64,
    end_ns: u64,
    comes_ns: u64,
    /// A sleep ends later than it should by one of these, or by that.
    lateness_ns: Rc<[u64]>,
    late_ns: u64,
    /// A wake-up by somebody else takes so much of it.
    wake_ns: u64,
    drawn: Random,
    /// Launches left of the request, and whether it is waited for.
    left: u64,
    waits: bool,
    answers: Answers,
}

impl Service {
    /// Uniform in [0, 1), as the program draws it (splitmix64).
    fn uniform(&mut self) -> f64 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// How much later than a wake-up by somebody else would a sleep ends.
    fn late_ns(&mut self) -> u64 {
        let count = self.lateness_ns.len() as u64;
        let place = if count > 0 { self.drawn.below(count) } else { 0 };
        let drawn = usize::try_from(place).ok().and_then(|place| self.lateness_ns.get(place));
        drawn.copied().unwrap_or(self.late_ns).saturating_sub(self.wake_ns)
    }

    fn next_request(&mut self) {
        let gap_us = self.period_us as f64 * (0.5 + self.uniform());
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a short time")]
        let gap_ns = (gap_us * 1e3) as u64;
        self.comes_ns += gap_ns;
        self.left = self.launches;
    }
}

impl Behaviour for Service {
    fn next(&mut self, view: &View) -> Step {
        if self.comes_ns == 0 {
            self.comes_ns = self.begin_ns;
            self.next_request();
        }
        if self.waits {
            self.waits = false;
            self.answers.borrow_mut().push((view.now_ns - self.comes_ns) as f64 / 1e3);
            self.next_request();
        }
        if self.comes_ns >= self.end_ns {
            return Step::End;
        }
        if view.now_ns < self.comes_ns {
            return Step::Sleep(self.comes_ns - view.now_ns + self.late_ns());
        }
        if self.left > 0 {
            self.left -= 1;
            return Step::Launch(self.kernel);
        }
        self.waits = true;
        Step::Sync
    }
}

/// Runs a configuration.
///
/// # Errors
/// If the core has no such policy.
pub fn simulate(configuration: &Configuration, model: &Model) -> Result<Seen, SetupError> {
    let count = configuration.tenants.len();
    let mut seen = Seen { work_s: vec![0.0; count], answers_us: vec![Vec::new(); count] };
    for device in 0..configuration.devices {
        let places = (0..count).filter(|place| configuration.tenants[*place].device == device);
        simulate_device(configuration, model, &places.collect::<Vec<_>>(), &mut seen)?;
    }
    Ok(seen)
}

fn simulate_device(
    configuration: &Configuration,
    model: &Model,
    places: &[usize],
    seen: &mut Seen,
) -> Result<(), SetupError> {
    let setup = Setup {
        costs: model.costs.clone(),
        tells_lengths: true,
        ..Setup::new(model.policy, model.phase)
    };
    let mut world = World::new(setup.quantum(configuration.quantum_us * US))?;
    let mut answers = Vec::new();
    for place in places {
        answers.push(add(&mut world, &configuration.tenants[*place], model));
    }
    world.run_for(model.warm_up_s * SECOND);
    let before = world.work_ns();
    world.run_for(model.window_s * SECOND);
    let after = world.work_ns();
    // Services answer what came.
    world.run_for(SECOND);
    for (number, place) in places.iter().enumerate() {
        seen.work_s[*place] = (after[number] - before[number]) as f64 / 1e9;
        seen.answers_us[*place] = answers[number].take();
    }
    Ok(())
}

fn add(world: &mut World, tenant: &Tenant, model: &Model) -> Answers {
    let vgpu = world.vgpu(tenant.weight);
    if tenant.user_facing {
        world.set_class(vgpu, Class::UserFacing { sla_ns: SLA_NS });
    }
    let answers = Answers::default();
    let key = u32::try_from(vgpu).unwrap_or(u32::MAX);
    match tenant.load {
        Load::Kernels { us } => {
            let kernels = vec![Kernel::new(key, us * US)];
            world.session(vgpu, Source::Endless { kernels, jitter_permille: 0 });
        }
        Load::Long => {
            // As many blocks of the same time as the simulator cuts a kernel into.
            let kernels = vec![Kernel::sliceable(key, GRID_BLOCKS * LONG_BLOCK_US * US)];
            world.session(vgpu, Source::Endless { kernels, jitter_permille: 0 });
        }
        Load::Requests { us, launches, period_us, seed } => {
            let begin_ns = Random::part(model.phase, 22).below(10_000 * US);
            let service = Service {
                kernel: Kernel::new(key, us * US),
                launches,
                period_us,
                random: seed,
                begin_ns,
                end_ns: begin_ns + (model.warm_up_s + model.window_s) * SECOND,
                comes_ns: 0,
                lateness_ns: Rc::clone(&model.lateness_ns),
                late_ns: model.costs.timer_late.ns,
                wake_ns: model.costs.wake.ns,
                drawn: Random::part(model.phase, 23),
                left: 0,
                waits: false,
                answers: Rc::clone(&answers),
            };
            let transport = Transport {
                submit_ns: model.costs.submit.ns,
                round_trip_ns: model.costs.round_trip.ns,
                lock_step: false,
            };
            world.program(vgpu, Box::new(service), transport, None, 1_024);
        }
    }
    answers
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The 99th percentile of a service's answers beside two batch tenants with kernels of so many
    /// µs that are not cut, or beside nobody; in µs.
    fn p99_us(batch_us: Option<u64>, user_facing: bool) -> f64 {
        let load = Load::Requests { us: 391, launches: 4, period_us: 12_000, seed: 7 };
        let mut tenants = vec![Tenant { device: 0, weight: 1, user_facing, load }];
        if let Some(us) = batch_us {
            let batch = Tenant { load: Load::Kernels { us }, user_facing: false, ..tenants[0] };
            tenants.extend([batch; 2]);
        }
        let configuration = Configuration { devices: 1, quantum_us: 6_000, tenants };
        let model = Model { window_s: 20, ..Model::new(Calibration::default(), "fair").at(3) };
        let seen = simulate(&configuration, &model).unwrap();
        super::super::figures::Figures::of(&configuration, &seen, 20.0).p99_us[0].unwrap()
    }

    /// Requests alone, whose program sleeps as much longer as one of these, in µs.
    #[test]
    fn a_program_that_is_late_answers_late() {
        let load = Load::Requests { us: 172, launches: 1, period_us: 10_000, seed: 7 };
        let tenants = vec![Tenant { device: 0, weight: 1, user_facing: true, load }];
        let configuration = Configuration { devices: 1, quantum_us: 6_000, tenants };
        let answers_us = |lateness_ns: &[u64]| {
            let lateness_ns = Rc::from(lateness_ns);
            let model = Model { lateness_ns, ..Model::new(Calibration::default(), "fair") };
            let mut answers = simulate(&configuration, &model).unwrap().answers_us.remove(0);
            answers.sort_unstable_by(f64::total_cmp);
            (answers[0], answers[answers.len() - 1])
        };
        let (soonest, latest) = answers_us(&[100 * US]);
        assert!(latest - soonest < 100.0, "{soonest} to {latest}");
        let (_, sometimes) = answers_us(&[100 * US, 100 * US, 900 * US]);
        assert!((700.0..900.0).contains(&(sometimes - latest)), "{latest} and {sometimes}");
    }

    #[test]
    fn a_request_waits_for_a_slice_whatever_kernels_others_have() {
        const SLICE_US: f64 = 2_000.0;
        let alone_us = p99_us(None, true);
        for batch_us in [207, 1_605] {
            let beside_us = p99_us(Some(batch_us), true);
            assert!(beside_us <= 1.05 * (alone_us + SLICE_US), "{batch_us}: {beside_us}");
            let equal_us = p99_us(Some(batch_us), false);
            assert!(equal_us > 1.5 * (alone_us + SLICE_US), "{batch_us}: {equal_us}");
        }
    }
}
