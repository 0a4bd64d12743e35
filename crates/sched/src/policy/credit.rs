//! A model of Xen's credit scheduler on a device, the competitor that FairGV §5.3 names: what
//! `credit_poll`, `credit_hs` and `strict_co` share.
//!
//! Every 30 ms the period's time is dealt out as credits by weight among the vGPUs that have
//! work. Turns are slices of *wall* time and burn as much credit, whatever the device executes
//! meanwhile or afterwards. Who has credits left (UNDER) goes before who has not (OVER), in the
//! order of waiting within each class. Credits are kept within one period: more is halved, less
//! is forgotten. Xen's boost of waking vCPUs is left out.

use alloc::vec::Vec;

use crate::codec::codec;
use crate::heap::Heap;
use crate::key::{VgpuKey, Weight};

/// The time between two distributions of credits (Xen's default).
const PERIOD_NS: u64 = 30_000_000;
const PERIOD_CREDITS: i64 = 30_000_000;

#[derive(Debug, Default)]
pub(super) struct Credit {
    flows: Vec<Flow>,
    waiting: Heap<Rank>,
    arrivals: u64,
    running: Option<u32>,
    /// When credits are dealt out next; `None` before the first event.
    next_ns: Option<u64>,
}

/// Class (0 UNDER, 1 OVER), then the order of waiting.
type Rank = (u32, u64);

#[derive(Clone, Copy, Debug, Default)]
struct Flow {
    weight: Weight,
    /// In ns of wall time.
    credits: i64,
    awake: bool,
    arrival: u64,
}

impl Flow {
    fn rank(&self) -> Rank {
        (u32::from(self.credits < 0), self.arrival)
    }
}

impl Credit {
    pub(super) fn add(&mut self, vgpu: VgpuKey, weight: Weight) {
        if self.flows.len() <= vgpu.index() {
            self.flows.resize(vgpu.index() + 1, Flow::default());
        }
        self.waiting.reserve(vgpu.0);
        self.flows[vgpu.index()] = Flow { weight, ..Flow::default() };
    }

    pub(super) fn remove(&mut self, vgpu: VgpuKey) {
        self.sleep(vgpu);
        self.running = self.running.filter(|key| *key != vgpu.0);
    }

    pub(super) fn reweight(&mut self, vgpu: VgpuKey, weight: Weight) {
        self.flows[vgpu.index()].weight = weight;
    }

    pub(super) fn wake(&mut self, vgpu: VgpuKey) {
        self.flows[vgpu.index()].awake = true;
        self.queue(vgpu);
    }

    pub(super) fn sleep(&mut self, vgpu: VgpuKey) {
        self.flows[vgpu.index()].awake = false;
        self.waiting.remove(vgpu.0);
    }

    pub(super) fn is_awake(&self, vgpu: VgpuKey) -> bool {
        self.flows[vgpu.index()].awake
    }

    pub(super) fn peek(&self) -> Option<VgpuKey> {
        self.waiting.peek().map(|(_, key)| VgpuKey(key))
    }

    pub(super) fn start(&mut self, vgpu: VgpuKey) {
        self.waiting.remove(vgpu.0);
        self.running = Some(vgpu.0);
    }

    pub(super) fn stop(&mut self, vgpu: VgpuKey) {
        self.running = None;
        self.queue(vgpu);
    }

    pub(super) fn burn(&mut self, vgpu: VgpuKey, ns: i64) {
        let flow = &mut self.flows[vgpu.index()];
        flow.credits = flow.credits.saturating_sub(ns);
    }

    /// It queues at the tail of its class.
    pub(super) fn successor(&self, vgpu: VgpuKey, rest_ns: u64) -> Option<VgpuKey> {
        let flow = self.flows[vgpu.index()];
        let rest = i64::try_from(rest_ns).unwrap_or(i64::MAX);
        let own = u32::from(flow.credits.saturating_sub(rest) < 0);
        let others = self.waiting.peek();
        let again = flow.awake && others.is_none_or(|((class, _), _)| own < class);
        if again { Some(vgpu) } else { others.map(|(_, key)| VgpuKey(key)) }
    }

    /// Whether the vGPU has at least as many credits as every other one with work (the fairness
    /// check of Pegasus, Algorithm 2).
    pub(super) fn has_most(&self, vgpu: VgpuKey) -> bool {
        let own = self.flows[vgpu.index()].credits;
        self.flows.iter().all(|flow| !flow.awake || flow.credits <= own)
    }

    /// Deals out the credits of the periods that passed.
    pub(super) fn tick(&mut self, now_ns: u64) {
        let next_ns = *self.next_ns.get_or_insert_with(|| now_ns.saturating_add(PERIOD_NS));
        let Some(late_ns) = now_ns.checked_sub(next_ns) else { return };
        let periods = late_ns / PERIOD_NS + 1;
        self.next_ns = Some(next_ns.saturating_add(periods.saturating_mul(PERIOD_NS)));
        let awake = self.flows.iter().filter(|flow| flow.awake);
        let total: i64 = awake.map(|flow| i64::from(flow.weight.get())).sum();
        let periods = i64::try_from(periods).unwrap_or(i64::MAX);
        for (key, flow) in (0..).zip(&mut self.flows) {
            if !flow.awake {
                continue;
            }
            let share = PERIOD_CREDITS * i64::from(flow.weight.get()) / total.max(1);
            let credits = flow.credits.saturating_add(share.saturating_mul(periods));
            let kept = if credits > PERIOD_CREDITS { credits / 2 } else { credits };
            flow.credits = kept.clamp(-PERIOD_CREDITS, PERIOD_CREDITS);
            if self.running != Some(key) {
                self.waiting.set(key, flow.rank());
            }
        }
    }

    fn queue(&mut self, vgpu: VgpuKey) {
        let flow = &mut self.flows[vgpu.index()];
        if flow.awake && self.running != Some(vgpu.0) {
            self.arrivals += 1;
            flow.arrival = self.arrivals;
            self.waiting.set(vgpu.0, flow.rank());
        }
    }
}

codec!(struct Credit { flows, waiting, arrivals, running, next_ns });
codec!(struct Flow { weight, credits, awake, arrival });

#[cfg(test)]
mod tests {
    use super::*;

    const SLICE: i64 = 6_000_000;

    fn run(credit: &mut Credit, now_ns: &mut u64) -> u32 {
        let next = credit.peek().unwrap();
        credit.start(next);
        *now_ns += SLICE.cast_unsigned();
        credit.burn(next, SLICE);
        credit.tick(*now_ns);
        credit.stop(next);
        next.0
    }

    #[test]
    fn slices_follow_the_weights_over_periods() {
        let mut credit = Credit::default();
        let mut now_ns = 0;
        credit.tick(now_ns);
        for (key, weight) in [(0, 1), (1, 2), (2, 3)] {
            credit.add(VgpuKey(key), Weight::new(weight).unwrap());
            credit.wake(VgpuKey(key));
        }
        let mut slices = [0; 3];
        for _ in 0..6_000 {
            slices[run(&mut credit, &mut now_ns) as usize] += 1;
        }
        for (key, share) in [1_000i32, 2_000, 3_000].into_iter().enumerate() {
            let got: i32 = slices[key];
            assert!((got - share).abs() < share / 10, "{slices:?}");
        }
    }

    #[test]
    fn credits_stay_within_a_period() {
        let mut credit = Credit::default();
        credit.tick(0);
        credit.add(VgpuKey(0), Weight::ONE);
        credit.wake(VgpuKey(0));
        credit.tick(10 * PERIOD_NS);
        assert_eq!(credit.flows[0].credits, PERIOD_CREDITS);
        credit.burn(VgpuKey(0), 100 * PERIOD_CREDITS);
        credit.tick(11 * PERIOD_NS);
        assert_eq!(credit.flows[0].credits, -PERIOD_CREDITS);
        assert_eq!(credit.waiting.peek(), Some(((1, 1), 0)));
    }
}
