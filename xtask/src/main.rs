//! Developer commands: `cargo xtask demo`, `cargo xtask test`, and what they are made of.

mod benchmarks;
mod cloud;
mod coverage;
mod dist;
mod gpu;
#[cfg(test)]
mod names;
mod programs;
mod setup;
mod shell;
mod table;
mod tests;
mod tidy;
mod upstream;
mod void;

use std::path::PathBuf;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// Builds, runs and checks Weft.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Set up, build, and run the demo: three tenants share one software GPU.
    Demo {
        /// Arguments for `weft demo`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Set up, build, and run every test, the unmodified programs included.
    Test {
        /// Only tests whose name contains this.
        filter: Option<String>,
    },
    /// Run the benchmarks, keep their JSON and write the tables of docs/benchmarks.md.
    Benchmarks {
        /// Only these; the page still shows all that were ever kept.
        names: Vec<String>,
        /// Run none: write the page from the documents that are kept.
        #[arg(long, conflicts_with = "names")]
        page: bool,
    },
    /// Run the cloud on a real OpenStack or Slurm, made of Debian's packages, and keep the logs in
    /// docs/evaluation/cloud. As root; not part of `test`.
    Cloud {
        /// Which.
        real: cloud::Real,
        /// Only these steps of `tests/openstack/record.sh` or `tests/slurm/record.sh`.
        steps: Vec<String>,
    },
    /// Run tinygrad's own test files on Weft, those that need no other framework.
    Tinygrad {
        /// A clone of tinygrad, of about the version that the examples use.
        #[arg(long)]
        checkout: PathBuf,
        /// Build Weft in this profile.
        #[arg(long, default_value = "release")]
        profile: String,
        /// tinygrad's device: `CUDA:PTX`, or `CUDA` for NVRTC.
        #[arg(long, default_value = "CUDA:PTX")]
        dev: String,
    },
    /// Run conformance, the unmodified programs and benchmarks on this machine's NVIDIA GPU.
    Gpu,
    /// Put the scheduling core through random histories with every invariant checked.
    Soak {
        /// How many decisions.
        #[arg(long, default_value_t = 10_000_000)]
        decisions: u64,
        /// The first history's seed; a broken invariant names the seed that replays it.
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Install what the project needs: a C compiler, Python packages in `.venv`.
    Setup {
        /// What only tests need too.
        #[arg(long)]
        tests: bool,
    },
    /// Build the example programs in C against the shim.
    Examples {
        /// Build for this profile's libcuda.
        #[arg(long, default_value = "release")]
        profile: String,
    },
    /// Regenerate the examples' PTX from their CUDA sources (installs nvcc from PyPI).
    Ptx,
    /// Rewrite docs/coverage.md from the table of driver calls.
    Coverage,
    /// Rewrite the rows of the table of driver calls from NVIDIA's headers (from PyPI).
    Table {
        /// Write nothing; fail if something would change.
        #[arg(long)]
        check: bool,
    },
    /// Build what is installed into target/install, debug information apart; fails if `weft` is
    /// too large.
    Dist {
        /// Build `weft` alone, which is the one with a limit.
        #[arg(long)]
        weft_only: bool,
    },
    /// Check the house rules: file and line lengths, crate dependencies, leftover markers.
    Tidy,
}

fn main() -> Result<()> {
    match Arguments::parse().task {
        Task::Demo { arguments } => programs::demo(&arguments),
        Task::Test { filter } => tests::run_all(filter.as_deref()),
        Task::Benchmarks { names, page } => benchmarks::run(&names, page),
        Task::Cloud { real, steps } => cloud::record(real, &steps),
        Task::Tinygrad { checkout, profile, dev } => upstream::tinygrad(&checkout, &profile, &dev),
        Task::Gpu => gpu::run_all(),
        Task::Soak { decisions, seed } => tests::soak(decisions, seed),
        Task::Setup { tests: true } => setup::for_tests().map(drop),
        Task::Setup { tests: false } => setup::all().map(drop),
        Task::Examples { profile } => {
            let python = setup::all()?;
            programs::build(&profile)?;
            programs::compile_examples(&profile, &python).map(drop)
        }
        Task::Ptx => programs::regenerate_ptx(),
        Task::Coverage => coverage::write(),
        Task::Table { check } => table::generate(check),
        Task::Dist { weft_only } => dist::build(weft_only),
        Task::Tidy => tidy::check(),
    }
}
