//! Which processors a benchmark's parts run on, and before whom: what is started inherits both.

use anyhow::{Result, bail};
use rustix::thread::CpuSet;

/// Nice levels by which the device's processes precede others.
const DEVICE_PRECEDENCE: i32 = 10;

/// The processors of this process: all but the last, and the last, which is shared.
pub(super) fn processors() -> Result<(CpuSet, usize)> {
    let mut others = rustix::thread::sched_getaffinity(None)?;
    let last = last_of(&others);
    others.unset(last);
    if others.count() == 0 {
        bail!("needs two processors: one is shared, the workers need another");
    }
    Ok((others, last))
}

/// Starts something on these processors and, where that is allowed, before other work there: the
/// device is not what is measured.
pub(super) fn beside<T>(others: &CpuSet, start: impl FnOnce() -> Result<T>) -> Result<T> {
    let nice = rustix::process::getpriority_process(None)?;
    let is_before = rustix::process::setpriority_process(None, nice - DEVICE_PRECEDENCE).is_ok();
    let started = on(others, start);
    if is_before {
        rustix::process::setpriority_process(None, nice)?;
    }
    started
}

/// Starts something on these processors.
pub(super) fn on<T>(processors: &CpuSet, start: impl FnOnce() -> Result<T>) -> Result<T> {
    let all = rustix::thread::sched_getaffinity(None)?;
    rustix::thread::sched_setaffinity(None, processors)?;
    let started = start();
    rustix::thread::sched_setaffinity(None, &all)?;
    started
}

/// Starts something on the last of this process's processors.
pub(super) fn on_last<T>(start: impl FnOnce() -> Result<T>) -> Result<T> {
    on(&only(last_of(&rustix::thread::sched_getaffinity(None)?)), start)
}

/// One processor alone.
pub(super) fn only(processor: usize) -> CpuSet {
    let mut only = CpuSet::new();
    only.set(processor);
    only
}

fn last_of(processors: &CpuSet) -> usize {
    (0..CpuSet::MAX_CPU).rfind(|cpu| processors.is_set(*cpu)).unwrap_or(0)
}
