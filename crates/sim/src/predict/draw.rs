//! Configurations from a seed.

use crate::random::Random;

/// Thread blocks of a long kernel, and what each takes in µs.
pub const LONG_BLOCKS: u64 = 5_000;
/// What a block of a long kernel takes, in µs.
pub const LONG_BLOCK_US: u64 = 100;
/// The SLA of user-facing tenants, in ns.
pub const SLA_NS: u64 = 50_000_000;

/// Kernels of tenants that work without end, in µs; those of requests.
const WORK_US: [u64; 6] = [102, 172, 285, 391, 803, 1_605];
const REQUEST_US: [u64; 4] = [172, 285, 391, 803];
const QUANTA_US: [u64; 2] = [3_000, 6_000];
/// Requests come no closer than this on average: each makes four processes of a node run, and what
/// a machine of two cores cannot keep up with says nothing of the model.
const PERIOD_US_MIN: u64 = 10_000;
/// What is drawn here and nowhere else.
const PART: u64 = 21;

/// What a tenant does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// Kernels of so many µs without end.
    Kernels {
        /// The kernel's time.
        us: u64,
    },
    /// Long kernels without end, which are cut between their blocks.
    Long,
    /// Requests that come at times of their own: some kernels each, and a wait for the last.
    Requests {
        /// The kernel's time in µs.
        us: u64,
        /// Kernels of a request.
        launches: u64,
        /// The mean time between two, in µs.
        period_us: u64,
        /// What the times between them are drawn from.
        seed: u64,
    },
}

/// A tenant with a vGPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tenant {
    /// The device that its vGPU is on.
    pub device: u32,
    /// Its weight.
    pub weight: u32,
    /// It is user-facing.
    pub user_facing: bool,
    /// What it does.
    pub load: Load,
}

/// What runs together on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Configuration {
    /// Devices of the node.
    pub devices: u32,
    /// A turn, in µs.
    pub quantum_us: u64,
    /// Who shares them.
    pub tenants: Vec<Tenant>,
}

/// The configuration of that number.
pub fn draw(seed: u64, number: u64) -> Configuration {
    let mut random = Random::part(Random::part(seed, PART).below(u64::MAX), number);
    let devices = u32::try_from(random.between(1, 2)).unwrap_or(1);
    let quantum_us = choose(&mut random, &QUANTA_US);
    let mut tenants = Vec::new();
    for device in 0..devices {
        let first = tenants.len();
        for _ in 0..random.between(2, 3) {
            let load = match random.chance(200) {
                true => Load::Long,
                false => Load::Kernels { us: choose(&mut random, &WORK_US) },
            };
            let weight = weight(&mut random);
            tenants.push(Tenant { device, weight, user_facing: false, load });
        }
        let others: u64 = tenants[first..].iter().map(|tenant| u64::from(tenant.weight)).sum();
        tenants.push(service(&mut random, device, others));
    }
    Configuration { devices, quantum_us, tenants }
}

/// A service that asks for a part of its share, so that answers do not pile up.
fn service(random: &mut Random, device: u32, others: u64) -> Tenant {
    let weight = weight(random);
    let user_facing = random.chance(500);
    let (us, launches) = (choose(random, &REQUEST_US), random.between(1, 4));
    let part_permille = random.between(200, 500);
    let share = u64::from(weight) * part_permille;
    let period_us = us * launches * (others + u64::from(weight)) * 1_000 / share;
    let period_us = period_us.max(PERIOD_US_MIN);
    let seed = random.below(1 << 32);
    Tenant { device, weight, user_facing, load: Load::Requests { us, launches, period_us, seed } }
}

fn weight(random: &mut Random) -> u32 {
    u32::try_from(random.between(1, 4)).unwrap_or(1)
}

fn choose(random: &mut Random, of: &[u64]) -> u64 {
    of[usize::try_from(random.below(of.len() as u64)).unwrap_or_default()]
}

impl Tenant {
    /// Device time of one unit of its work (a kernel; a block of a long one), in µs.
    pub fn unit_us(&self) -> u64 {
        match self.load {
            Load::Kernels { us } | Load::Requests { us, .. } => us,
            Load::Long => LONG_BLOCK_US,
        }
    }

    /// It always has work.
    pub fn is_endless(&self) -> bool {
        match self.load {
            Load::Kernels { .. } | Load::Long => true,
            Load::Requests { .. } => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drawn_configurations_differ_and_have_work_and_a_service_on_each_device() {
        assert_eq!(draw(7, 3), draw(7, 3));
        assert_ne!(draw(7, 3), draw(7, 4));
        assert_ne!(draw(7, 3), draw(8, 3));
        let (mut classes, mut devices) = ([0, 0], [0; 3]);
        for number in 0..40 {
            let drawn = draw(7, number);
            devices[drawn.devices as usize] += 1;
            for device in 0..drawn.devices {
                let own = || drawn.tenants.iter().filter(|tenant| tenant.device == device);
                assert!(own().filter(|tenant| tenant.is_endless()).count() >= 2);
                let services: Vec<_> = own().filter(|tenant| !tenant.is_endless()).collect();
                assert_eq!(services.len(), 1);
                classes[usize::from(services[0].user_facing)] += 1;
            }
        }
        assert!(classes.iter().all(|count| *count > 15), "{classes:?}");
        assert!(devices[1..].iter().all(|count| *count > 5), "{devices:?}");
    }
}
