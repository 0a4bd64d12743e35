//! What is run: arrivals of the generator that the simulator has, and kernels that take Table I's
//! times on paced devices.

use anyhow::{Context as _, Result};
use weft_sched::pool::PoolConfig;
use weft_sim::flexy::{
    BATCH_TASKS, Column, Job, Options, Spec, USER_TASKS, generate, run as simulate,
};

/// The SLA of user-facing tasks (Flexy §III).
pub(super) const SLA_NS: u64 = 200_000_000;
/// The devices' pool.
pub(super) const POOL: &str = "flexy";
/// What a thread block takes on these devices: tasks are cut between two.
pub(super) const BLOCK_NS: u64 = 500_000;
/// Factors of the load that are tried, in thousandths; the paper's range.
const FACTORS: std::ops::RangeInclusive<u64> = 125..=4_000;

/// A column's jobs that arrive within a window.
#[derive(Debug)]
pub(super) struct Work {
    column: Column,
    pub(super) jobs: Vec<Job>,
    pub(super) factor_permille: u64,
    /// The last arrival, until which everything counts.
    pub(super) horizon_ns: u64,
}

/// `80:20` as a part of figures' names.
pub(super) fn name_of(column: &Column) -> String {
    column.name.replace(':', "_")
}

impl Work {
    /// The smallest load (largest factor) that keeps the simulated pool that busy.
    pub(super) fn at(
        column: Column,
        seed: u64,
        seconds: u64,
        utilization: f64,
        pool: PoolConfig,
    ) -> Result<Self> {
        let options = Options { clairvoyant: true, ..Options::new(pool) };
        for factor_permille in FACTORS.rev().step_by(5) {
            let work = Self::of(column, seed, seconds, factor_permille);
            let found = simulate(&work.jobs, &options, seed)?;
            if found.useful >= utilization {
                return Ok(work);
            }
        }
        None.with_context(|| format!("no load keeps the pool {utilization} busy"))
    }

    /// The jobs of the first seconds.
    fn of(column: Column, seed: u64, seconds: u64, factor_permille: u64) -> Self {
        let spec = Spec::new(column, factor_permille, seed);
        let end_ns = seconds * 1_000_000_000;
        let arrived = generate(&spec).into_iter().filter(|job| job.arrival_ns <= end_ns);
        let jobs: Vec<Job> = arrived.collect();
        let horizon_ns = jobs.last().map_or(0, |job| job.arrival_ns);
        Self { column, jobs, factor_permille, horizon_ns }
    }

    pub(super) fn name(&self) -> String {
        name_of(&self.column)
    }
}

/// Thread blocks of a task of that time.
pub(super) fn blocks(task_ns: u64) -> u32 {
    u32::try_from(task_ns.div_ceil(BLOCK_NS)).unwrap_or(u32::MAX)
}

/// The name of the kernel of that number, of Table I.
pub(super) fn kernel(number: u32) -> String {
    let all = USER_TASKS.iter().chain(&BATCH_TASKS);
    let name = all.map(|(name, _)| *name).nth(number as usize).unwrap_or_default();
    let name: String = name.chars().filter(char::is_ascii_alphanumeric).collect();
    format!("task_{}", name.to_lowercase())
}

/// PTX of that kernel. A block changes its word so that what ran twice, or not, shows, and says
/// when it did.
pub(super) fn module(kernel: &str) -> String {
    format!(
        ".version 7.0\n.target sm_70\n.address_size 64\n\
         .visible .entry {kernel}(.param .u64 words, .param .u64 stamps)\n{{\n\
         .reg .b32 %r<4>;\n.reg .b64 %rd<7>;\n\
         mov.u32 %r1, %ctaid.x;\n\
         ld.param.u64 %rd1, [words];\n\
         mul.wide.u32 %rd2, %r1, 4;\n\
         add.s64 %rd1, %rd1, %rd2;\n\
         ld.global.u32 %r2, [%rd1];\n\
         mad.lo.s32 %r2, %r2, {MULTIPLIER}, {INCREMENT};\n\
         st.global.u32 [%rd1], %r2;\n\
         ld.param.u64 %rd3, [stamps];\n\
         mul.wide.u32 %rd4, %r1, 8;\n\
         add.s64 %rd3, %rd3, %rd4;\n\
         mov.u64 %rd5, %globaltimer;\n\
         st.global.u64 [%rd3], %rd5;\n\
         ret;\n}}\n"
    )
}

const MULTIPLIER: u32 = 1_664_525;
const INCREMENT: u32 = 1_013_904_223;

/// What a block finds, of the task of that number.
pub(super) fn before(task: u32, block: u32) -> u32 {
    (task ^ block.rotate_left(16)).wrapping_mul(0x9E37_79B1)
}

/// What it leaves if it runs once.
pub(super) fn after(word: u32) -> u32 {
    word.wrapping_mul(MULTIPLIER).wrapping_add(INCREMENT)
}

/// The devices' model. Copies take longer than a GPU's: they really happen, and have to be done in
/// the time that they are said to take.
pub(super) fn model() -> String {
    format!(
        "base_ns = 100000\ncopy_base_ns = 100000\ncopy_bytes_per_us = 1000\n\n[[kernels]]\n\
         kernel = \"task_*\"\nns_per_block = {BLOCK_NS}\n"
    )
}

#[cfg(test)]
mod tests {
    use weft_sim::flexy::COLUMNS;

    use super::*;

    #[test]
    fn every_task_of_table_1_has_a_kernel_of_its_own() {
        let names: std::collections::BTreeSet<String> = (0..14).map(kernel).collect();
        assert_eq!(names.len(), 14);
        assert!(names.contains("task_blackscholes"), "{names:?}");
        assert_eq!((blocks(14_000_000), blocks(2_674_000_000)), (28, 5_348));
    }

    #[test]
    fn the_load_is_the_least_that_keeps_the_pool_busy() {
        let pool = PoolConfig::default();
        let work = Work::at(COLUMNS[0], 1, 20, 0.5, pool).unwrap();
        let options = Options { clairvoyant: true, ..Options::new(pool) };
        let found = simulate(&work.jobs, &options, 1).unwrap();
        assert!(found.useful >= 0.5);
        assert!(work.horizon_ns <= 20_000_000_000);
        let less = Work::of(COLUMNS[0], 1, 20, work.factor_permille + 5);
        assert!(simulate(&less.jobs, &options, 1).unwrap().useful < 0.5);
    }

    #[test]
    fn every_column_has_a_load_that_keeps_the_pool_as_busy_as_the_benchmark_asks() {
        let looks = [(true, &COLUMNS[..1]), (false, &COLUMNS[..])];
        for (quick, columns) in looks {
            let (seconds, target) = super::super::window(quick);
            for column in columns {
                Work::at(*column, super::super::SEED, seconds, target, PoolConfig::default())
                    .unwrap_or_else(|error| panic!("{}: {error}", column.name));
            }
        }
    }

    #[test]
    fn a_block_that_runs_twice_leaves_something_else() {
        for (task, block) in [(0, 0), (7, 5_347), (u32::MAX, 1)] {
            let word = before(task, block);
            assert_ne!(after(word), word);
            assert_ne!(after(after(word)), after(word));
        }
    }
}
