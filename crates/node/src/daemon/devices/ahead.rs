//! A thread that writes slots of who is next while another has the device, one by one.
//!
//! It only saves time: what it did not write is written at the switch, by whoever asks.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use weft_sched::DeviceKey;

use super::residency::{Residency, Written};

/// Orders that wait; one beyond that is not carried out, and its slots are written at the switch.
const ORDERS_MAX: usize = 64;

/// Until what the turn before left in flight is over: a worker gives its turn back up to 300 µs
/// before its last operation ends.
const SETTLED: Duration = Duration::from_micros(500);

/// Who is next on a device.
#[derive(Debug)]
pub(crate) struct Next {
    /// Which device.
    pub(crate) device: DeviceKey,
    /// Its slots.
    pub(crate) slots: Arc<Residency>,
    /// Who has it: its slots stay.
    pub(crate) holder: u32,
    /// Who is next, in order: with nobody, nothing more is written.
    pub(crate) next: Vec<u32>,
}

/// The thread. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Writer {
    orders: SyncSender<Next>,
}

impl Writer {
    /// Starts it; without one nothing is written ahead.
    pub(crate) fn start() -> Option<Self> {
        let (sender, orders) = sync_channel(ORDERS_MAX);
        let thread = std::thread::Builder::new().name("weft-ahead".to_owned());
        match thread.spawn(move || run(&orders)) {
            Ok(_) => Some(Self { orders: sender }),
            Err(error) => {
                tracing::warn!(%error, "no slots are written ahead of switches");
                None
            }
        }
    }

    /// Has slots of who is next written from now on, in place of what was ordered before for that
    /// device.
    pub(crate) fn order(&self, next: Next) {
        // Full: the slots are written at the switch.
        let _ = self.orders.try_send(next);
    }
}

/// What is to be written on a device, and when.
struct Job {
    next: Next,
    due: Instant,
}

fn run(orders: &Receiver<Next>) {
    let mut jobs: BTreeMap<DeviceKey, Job> = BTreeMap::new();
    loop {
        let due = jobs.values().map(|job| job.due).min();
        let order = match due {
            None => orders.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(due) => orders.recv_timeout(due.saturating_duration_since(Instant::now())),
        };
        match order {
            Ok(Next { device, next, .. }) if next.is_empty() => {
                jobs.remove(&device);
            }
            Ok(next) => {
                // A slot is there when the time is over that it is said to take.
                let due = Instant::now() + SETTLED + Duration::from_nanos(next.slots.slot_ns());
                jobs.insert(next.device, Job { next, due });
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        let now = Instant::now();
        jobs.retain(|_, job| job.due > now || write_one(job, now));
    }
}

/// Writes a slot; whether there may be another one.
fn write_one(job: &mut Job, now: Instant) -> bool {
    let Next { slots, holder, next, .. } = &job.next;
    let again = match slots.write_ahead(*holder, next) {
        Written::Slot { ns } => Duration::from_nanos(ns),
        Written::NotYet => SETTLED.max(Duration::from_nanos(slots.slot_ns())),
        Written::Nothing => return false,
    };
    job.due = now + again;
    true
}
