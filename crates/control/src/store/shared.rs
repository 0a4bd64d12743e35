//! What both stores do with rows.

use std::collections::BTreeMap;

use serde::Serialize;
use serde::de::DeserializeOwned;
use weft_api::v1::{Mode, Quota};

use super::{Part, StoreError, Taken};

/// The events of an operation that are shown.
pub(super) const EVENTS_MAX: u32 = 1_000;

/// For how long a request may be repeated.
pub(super) const KEY_LIFE_MS: u64 = 24 * 3_600_000;

/// Slots go round after so many instances; those of live ones are passed over.
pub(super) const SLOTS: u64 = 1 << 20;

impl From<serde_json::Error> for StoreError {
    fn from(error: serde_json::Error) -> Self {
        Self::Broken(format!("a row is not understood: {error}"))
    }
}

/// An enumeration as the word that it is in JSON.
pub(super) fn word<T: Serialize>(value: &T) -> Result<String, StoreError> {
    Ok(serde_json::to_string(value)?.trim_matches('"').to_owned())
}

/// And back.
pub(super) fn parsed<T: DeserializeOwned>(word: &str) -> Result<T, StoreError> {
    Ok(serde_json::from_value(serde_json::Value::String(word.to_owned()))?)
}

/// A cursor that is a number.
pub(super) fn number(part: &Part) -> Result<i64, StoreError> {
    let wrong = |_| StoreError::Missing("the item behind which the list is to go on".to_owned());
    part.after.as_deref().map_or(Ok(0), |after| after.parse().map_err(wrong))
}

pub(super) fn mode_of(is_exclusive: bool) -> Mode {
    if is_exclusive { Mode::Exclusive } else { Mode::Shared }
}

/// What a project has with so much more, if its quota allows it.
pub(super) fn charged(quota: &Quota, used: &Quota, taken: &[Taken]) -> Result<Quota, StoreError> {
    let exclusive = taken.iter().filter(|one| one.mode == Mode::Exclusive).count() as u64;
    let memory: u64 = taken.iter().map(|one| one.memory_mib).sum();
    let wanted = [
        ("cGPUs", used.cgpus + taken.len() as u64, quota.cgpus),
        ("MiB of GPU memory", used.memory_mib.saturating_add(memory), quota.memory_mib),
        ("exclusive GPUs", used.exclusive_gpus + exclusive, quota.exclusive_gpus),
    ];
    if let Some((what, wanted, quota)) = wanted.iter().find(|(_, wanted, quota)| wanted > quota) {
        return Err(StoreError::Quota(format!("{wanted} {what}, and its quota is {quota}")));
    }
    Ok(Quota { cgpus: wanted[0].1, memory_mib: wanted[1].1, exclusive_gpus: wanted[2].1 })
}

/// What cGPUs take of one GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sum {
    pub(super) memory_mib: u64,
    pub(super) cgpus: u32,
    pub(super) is_exclusive: bool,
    /// The GPU's generation when that was decided.
    pub(super) generation: u64,
}

/// What is taken, by GPU.
pub(super) fn by_gpu(taken: &[Taken]) -> BTreeMap<u32, Sum> {
    let mut of_gpu: BTreeMap<u32, Sum> = BTreeMap::new();
    for one in taken {
        let is_exclusive = one.mode == Mode::Exclusive;
        let generation = one.generation;
        let none = Sum { memory_mib: 0, cgpus: 0, is_exclusive, generation };
        let sum = of_gpu.entry(one.gpu).or_insert(none);
        sum.memory_mib += one.memory_mib;
        sum.cgpus += 1;
        sum.is_exclusive = is_exclusive;
    }
    of_gpu
}
