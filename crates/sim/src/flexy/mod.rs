//! Flexy's evaluation around the pool core, and what goes past it.
//!
//! [`generate`] makes jobs as Flexy §III does, [`import()`] those of public traces. [`run()`]
//! drives the pool core with them, [`compare`] under every policy. [`evaluate`] has the
//! experiments, [`clairvoyant`] says what orders that know all could have done, and [`Report`]
//! writes it all down. Everything is simulated, but for the cost of a decision.

mod experiments;
mod fairness;
mod given;
mod import;
mod oracle;
mod paced;
mod paper;
mod report;
mod run;
mod study;
mod workload;

pub use experiments::{Evaluation, decision_ns, evaluate};
pub use given::{Machine, compare};
pub use import::{Source, TraceError, csv, import, read};
pub use oracle::{Rule, clairvoyant};
pub use paced::Paced;
pub(crate) use paper::{Said, said_of};
pub use report::Report;
pub use run::{Found, Options, run};
pub use workload::{BATCH_TASKS, COLUMNS, Column, Job, Spec, USER_TASKS, generate};
