//! What both stores do with rows.

use std::collections::BTreeMap;

use serde::Serialize;
use serde::de::DeserializeOwned;
use weft_api::v1::{Mode, Quota};

use super::{Part, Spec, StoreError, Taken};

/// The events of an operation that are shown.
pub(super) const EVENTS_MAX: u32 = 1_000;

/// Of an operation that is tried again without end so many retries are kept, the last ones: all of
/// its other events are shown beside them.
pub(super) const RETRIES_MAX: u32 = 500;

/// A day, by which launches are counted.
pub(super) const DAY_MS: u64 = 24 * 3_600_000;

/// For how long a request may be repeated.
pub(super) const KEY_LIFE_MS: u64 = DAY_MS;

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
    let wrong = |after: &str| {
        let after: String = after.chars().take(80).collect();
        StoreError::Missing(format!("after={after}: the item behind which the list is to go on"))
    };
    part.after.as_deref().map_or(Ok(0), |after| after.parse().map_err(|_| wrong(after)))
}

pub(super) fn mode_of(is_exclusive: bool) -> Mode {
    if is_exclusive { Mode::Exclusive } else { Mode::Shared }
}

/// What an instance takes of its project's quota with so many cGPUs of so much memory together.
/// The weight of one that has its GPU alone is against nobody; its class is told to the node.
pub(crate) fn demand(spec: &Spec, cgpus: u64, memory_mib: u64) -> Quota {
    let (exclusive_gpus, weight) = match spec.mode {
        Mode::Exclusive => (cgpus, 0),
        Mode::Shared => (0, cgpus.saturating_mul(spec.weight.into())),
    };
    let user_facing = if spec.sla_us > 0 { cgpus } else { 0 };
    Quota { cgpus, memory_mib, exclusive_gpus, weight, user_facing }
}

/// What a project has with so much more.
pub(super) fn with(used: &Quota, more: &Quota) -> Quota {
    Quota {
        cgpus: used.cgpus.saturating_add(more.cgpus),
        memory_mib: used.memory_mib.saturating_add(more.memory_mib),
        exclusive_gpus: used.exclusive_gpus.saturating_add(more.exclusive_gpus),
        weight: used.weight.saturating_add(more.weight),
        user_facing: used.user_facing.saturating_add(more.user_facing),
    }
}

/// The same, if its quota allows it. What it has too much of already keeps it from nothing else.
pub(crate) fn charged(
    project: &str,
    quota: &Quota,
    used: &Quota,
    more: &Quota,
) -> Result<Quota, StoreError> {
    let all = with(used, more);
    let asked = [
        ("cGPUs", more.cgpus, all.cgpus, quota.cgpus),
        ("MiB of GPU memory", more.memory_mib, all.memory_mib, quota.memory_mib),
        ("exclusive GPUs", more.exclusive_gpus, all.exclusive_gpus, quota.exclusive_gpus),
        ("of weight in shared cGPUs", more.weight, all.weight, quota.weight),
        ("user-facing cGPUs", more.user_facing, all.user_facing, quota.user_facing),
    ];
    match asked.iter().find(|(_, more, all, quota)| *more > 0 && all > quota) {
        Some((what, _, all, quota)) => {
            let words =
                format!("project {project} would have {all} {what}, and its quota is {quota}");
            Err(StoreError::Quota(words))
        }
        None => Ok(all),
    }
}

/// Refuses, in words, so many more instances of a project that has made so many on a day.
pub(crate) fn ensure_launches(
    project: &str,
    made: u64,
    more: u64,
    most: u32,
) -> Result<(), StoreError> {
    if made.saturating_add(more) <= u64::from(most) {
        return Ok(());
    }
    Err(StoreError::Quota(format!(
        "project {project} has made {made} instances today (UTC), and a project makes no more than \
         {most} in a day, whatever is terminated: the next day begins at midnight"
    )))
}

/// What a project has without so much.
pub(super) fn without(used: &Quota, less: &Quota) -> Quota {
    Quota {
        cgpus: used.cgpus.saturating_sub(less.cgpus),
        memory_mib: used.memory_mib.saturating_sub(less.memory_mib),
        exclusive_gpus: used.exclusive_gpus.saturating_sub(less.exclusive_gpus),
        weight: used.weight.saturating_sub(less.weight),
        user_facing: used.user_facing.saturating_sub(less.user_facing),
    }
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
pub(super) fn by_gpu<'a>(taken: impl IntoIterator<Item = &'a Taken>) -> BTreeMap<u32, Sum> {
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
