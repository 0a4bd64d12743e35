//! Killing batch tasks for user-facing ones (Flexy §II-C3 and §II-D).

use alloc::vec::Vec;

use super::super::state::{Device, Run, State};
use super::Order;
use crate::key::DeviceKey;

/// Resets up to `count` devices that run batch tasks, those that would be free last spared. A task
/// that would end before the reset does is left to end: the paper says "less" where it must be
/// "greater". One that did not end when it should have, or of which nothing is known, is not left.
pub(super) fn reset(state: &State, now_ns: u64, count: usize, orders: &mut Vec<Order>) {
    if count == 0 {
        return;
    }
    let mut victims: Vec<(u64, DeviceKey, Run)> = (0u32..)
        .zip(&state.devices)
        .filter_map(|(key, device)| match device {
            Device::Running(run) if run.is_batch => Some((run.end_ns, DeviceKey(key), *run)),
            Device::Running(_) | Device::Down | Device::Free | Device::Resetting => None,
        })
        .filter(|(end_ns, ..)| {
            let left_ns = end_ns.checked_sub(now_ns);
            left_ns.is_none_or(|left_ns| left_ns > state.config.reset_ns)
        })
        .collect();
    victims.sort_unstable_by_key(|(end_ns, device, _)| (*end_ns, *device));
    let chosen = victims.into_iter().take(count);
    orders.extend(chosen.map(|(_, device, run)| Order::Reset { device, run }));
}
