//! `weft bench`: figures with their baselines and negative controls (design: honest numbers).
//!
//! A benchmark runs real programs and fails if one of them computes something wrong.

mod accounting;
mod adversary;
mod affinity;
mod call;
mod conserve;
mod control;
mod copy;
mod cosched;
mod decision;
pub(crate) mod document;
mod engine;
mod fairgv;
mod fairness;
mod flexy;
mod latency;
mod memory;
mod overhead;
mod pace;
mod relocate;
mod remote;
mod reweight;
mod scale;
pub(crate) mod several;
pub(crate) mod tenant;
pub(crate) mod via;
mod vm;
mod void;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};

use anyhow::{Result, bail};
use clap::ValueEnum;
use weft_api::stolen::Processors;

use self::document::Document;
use self::pace::{Pace, Steps};
use self::tenant::Kept;
use crate::args::BenchOptions;
use crate::programs;
use weft_sim::seeds::median;

/// The benchmarks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Name {
    /// Synchronous round trip and cost of an asynchronous launch.
    Call,
    /// Pinned and pageable copies against memcpy.
    Copy,
    /// Remoted against direct, kernels of 21 to 391 µs (FairGV, Figure 2).
    Overhead,
    /// Shares against weights, equal and mixed kernel sizes.
    Fairness,
    /// FairGV's Figures 8, 9, 11 and Table 4 on the paced device.
    Fairgv,
    /// Device utilisation beside a co-runner that sleeps (FairGV, Figure 10).
    Conserve,
    /// Speed of the software GPU.
    Engine,
    /// Charges against the truth (FairGV, Table 2).
    Accounting,
    /// How soon a waiting thread runs on a busy processor (FairGV, coscheduling).
    Cosched,
    /// The scheduling core alone: cost of a decision.
    Decision,
    /// A thousand vGPUs attached at once: attach time, memory and CPU of idle ones, and a few of
    /// them at work.
    Scale,
    /// Weights that change while all tenants work.
    Reweight,
    /// What a victim loses to tenants that compete by foul means.
    Adversary,
    /// How soon a user-facing vGPU's requests are answered beside batch tenants.
    Latency,
    /// Flexy's workload on four paced devices, through the task interface, beside its simulation.
    Flexy,
    /// How long a program stands still whose vGPU is moved between two devices.
    Move,
    /// Programs with more memory than the device has, beside other ways to run them.
    Memory,
    /// Applications on a vGPU of another host against the same on this one's (GSaaS, Figure 9).
    Remote,
    /// The cloud's services: the control plane, a compute host's endpoint, the boot of VMs (GSaaS,
    /// Table 2).
    Control,
}

impl Name {
    /// Whether its kernels can be those of a genuine GPU instead of a model's.
    fn has_either_pace(self) -> bool {
        let names = [Self::Overhead, Self::Fairness, Self::Conserve, Self::Reweight, Self::Latency];
        names.contains(&self)
    }

    /// Whether `--only` chooses among what it does.
    fn has_parts(self, via: Option<via::Via>) -> bool {
        match via {
            Some(via::Via::Vm) => self == Self::Fairgv,
            Some(via::Via::Tls) => false,
            None => [
                Self::Adversary,
                Self::Flexy,
                Self::Memory,
                Self::Fairness,
                Self::Latency,
                Self::Remote,
            ]
            .contains(&self),
        }
    }

    /// Whether it runs on a genuine GPU where one is named.
    fn is_on_any_device(self) -> bool {
        self.has_either_pace() || [Self::Call, Self::Copy, Self::Engine].contains(&self)
    }
}

/// What every benchmark is told.
#[derive(Debug)]
pub(crate) struct Context {
    /// Folder of the compiled programs.
    programs: PathBuf,
    /// Shorter and coarser.
    quick: bool,
    /// vGPUs of `scale`.
    vgpus: Option<u32>,
    /// Attacks of `adversary`, runs of `flexy`, parts of `memory`, programs of `fairgv --via vm`,
    /// applications of `remote`; all if empty.
    only: Vec<String>,
    /// How programs reach their vGPU, if not as programs of the node.
    via: Option<via::Via>,
    /// The device has a processor of its own.
    apart: bool,
    /// Folder of what virtual machines boot.
    guest: Option<PathBuf>,
    /// How long kernels last.
    pace: Pace,
    /// What trains with tinygrad, if there is such a Python.
    python: Option<Python>,
    /// How paced devices kept to their model, the worst of all runs that count; nothing while
    /// there was none on such a device.
    kept: Mutex<Option<Kept>>,
    /// How they kept to it in runs that were void and done again.
    repeated: Mutex<Vec<Kept>>,
}

/// A Python with tinygrad and NumPy, and its training program.
#[derive(Debug)]
struct Python {
    interpreter: PathBuf,
    train: PathBuf,
}

impl Context {
    /// For programs that are no benchmark's of this list.
    pub(crate) fn new(programs: PathBuf, quick: bool) -> Self {
        Self {
            programs,
            quick,
            vgpus: None,
            only: Vec::new(),
            via: None,
            apart: false,
            guest: None,
            pace: Pace::Modelled,
            python: None,
            kept: Mutex::default(),
            repeated: Mutex::default(),
        }
    }

    /// Remembers how a paced device kept to its model in a run that counts.
    fn keep(&self, kept: Kept) {
        let mut worst = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        *worst = Some(worst.map_or(kept, |worst| worst.worse(kept)));
    }

    /// Remembers a run that is void and done again.
    fn repeat(&self, kept: Kept) {
        self.repeated.lock().unwrap_or_else(PoisonError::into_inner).push(kept);
    }

    /// What a document of all that was done so far is read with: whether that was quick, or a part,
    /// and how paced devices kept to their model.
    pub(crate) fn tell(&self, document: &mut Document) {
        document.set_quick(self.quick);
        document.set_only(&self.only);
        document.set_via(self.via.map(via::Via::name));
        document.set_apart(self.apart);
        document.set_repeated(&self.repeated.lock().unwrap_or_else(PoisonError::into_inner));
        let worst = *self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(worst) = worst {
            document.baseline("overrun_share", worst.overruns);
            document.baseline("late_share", worst.late);
        }
    }

    /// Whether what has this name is to be run.
    fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == name)
    }

    /// Refuses a name of `--only` that is none of these.
    fn check_only<'a>(&self, names: impl Iterator<Item = &'a str>) -> Result<()> {
        let names: Vec<&str> = names.collect();
        let unknown = self.only.iter().find(|only| !names.contains(&only.as_str()));
        match unknown {
            Some(only) => bail!("--only: there is no `{only}`; there are {}", names.join(", ")),
            None => Ok(()),
        }
    }
}

/// What trains with tinygrad, if it was said.
fn python(options: &BenchOptions) -> Option<Python> {
    let (interpreter, train) = (options.python.clone()?, options.train.clone()?);
    Some(Python { interpreter, train })
}

/// `weft bench`
pub(crate) fn bench(options: &BenchOptions) -> Result<ExitCode> {
    let mut context = Context {
        programs: if matches!(options.name, Name::Decision) {
            // It runs none.
            PathBuf::new()
        } else {
            programs::example_dir(options.programs.as_deref())?
        },
        quick: options.quick,
        vgpus: options.vgpus,
        only: options.only.clone(),
        via: options.via,
        apart: options.apart,
        guest: options.guest.clone(),
        pace: Pace::Modelled,
        python: python(options),
        kept: Mutex::default(),
        repeated: Mutex::default(),
    };
    let is_remote = context.via == Some(via::Via::Tls);
    if is_remote && !matches!(options.name, Name::Call | Name::Copy | Name::Overhead) {
        bail!("--via tls is for `bench call`, `bench copy` and `bench overhead`");
    }
    if context.apart && !matches!(options.name, Name::Adversary) {
        bail!("--apart is for `bench adversary`");
    }
    if !(context.only.is_empty() || options.name.has_parts(context.via)) {
        bail!(
            "--only: this benchmark has no parts to choose from; `weft bench --help` says which do"
        );
    }
    if context.vgpus.is_some() && !matches!(options.name, Name::Scale) {
        bail!("--vgpus is for `bench scale`");
    }
    let may_be_gpu = context.via.is_none() && options.name.is_on_any_device();
    let gpu = if may_be_gpu { tenant::genuine()? } else { None };
    if gpu.is_some() && options.name.has_either_pace() {
        context.pace = Pace::Measured(Steps::measure(&context)?);
    }
    let before = Processors::now();
    let mut document = match options.name {
        name if context.via == Some(via::Via::Vm) => vm::run(&context, name),
        Name::Call => call::run(&context),
        Name::Copy => copy::run(&context),
        Name::Overhead => overhead::run(&context),
        Name::Fairness => fairness::run(&context),
        Name::Fairgv => fairgv::run(&context),
        Name::Conserve => conserve::run(&context),
        Name::Engine => engine::run(&context),
        Name::Accounting => accounting::run(&context),
        Name::Cosched => cosched::run(&context),
        Name::Decision => decision::run(&context),
        Name::Scale => scale::run(&context),
        Name::Reweight => reweight::run(&context),
        Name::Adversary => adversary::run(&context),
        Name::Latency => latency::run(&context),
        Name::Flexy => flexy::run(&context),
        Name::Move => relocate::run(&context),
        Name::Memory => memory::run(&context),
        Name::Remote => remote::run(&context),
        Name::Control => control::run(&context),
    }?;
    context.pace.document(&mut document);
    context.tell(&mut document);
    if let Some(name) = gpu {
        document.set_gpu(&name);
    }
    document.set_stolen(Processors::now().stolen_since(before));
    document.print(options.json)?;
    Ok(ExitCode::SUCCESS)
}

/// Smallest over largest value; 0 for an empty list.
fn min_max_ratio(values: &[f64]) -> f64 {
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    let high = values.iter().copied().fold(0.0, f64::max);
    if high > 0.0 { low / high } else { 0.0 }
}

/// The smallest value.
fn least(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::MAX, f64::min)
}

/// The largest value.
fn most(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::MIN, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_has_the_worst_of_the_runs_that_count() {
        let context = Context::new(PathBuf::new(), true);
        let told = || {
            let mut document = Document::new("call", "real", "w");
            context.tell(&mut document);
            serde_json::to_value(&document).unwrap()
        };
        assert_eq!(told()["quick"], true);
        assert_eq!(told()["baselines"], serde_json::json!({}));
        context.keep(Kept { overruns: 0.25, late: 0.0, unmanaged: false, paced: true });
        context.keep(Kept { overruns: 0.0, late: 0.5, unmanaged: false, paced: true });
        let expected = serde_json::json!({"overrun_share": 0.25, "late_share": 0.5});
        assert_eq!(told()["baselines"], expected);
    }

    #[test]
    fn medians_and_ratios() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(min_max_ratio(&[2.0, 1.0, 4.0]), 0.25);
        assert_eq!(min_max_ratio(&[]), 0.0);
    }
}
