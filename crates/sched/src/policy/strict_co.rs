//! `strict_co`: a model of the strict coscheduling of Pegasus, Algorithms 1 and 2 (as FairGV §3.2.3
//! and §5.3 describe it), on top of Credit.
//!
//! When the CPU scheduler picks a vCPU it names that VM's vGPU (Algorithm 1,
//! [`Event::OnCpu`](crate::Event::OnCpu)). If that vGPU has as many credits as any other one, it
//! gets the device at once and the vGPU in its turn goes to the tail of its class; otherwise
//! nothing happens (Algorithm 2). A vGPU that gets work while its vCPU runs is named then.

use alloc::vec::Vec;

use crate::codec::codec;
use crate::key::{TenantKey, VgpuKey, Weight};
use crate::policy::credit::Credit;
use crate::policy::{Charge, Charges, Policy, Setup};
use crate::tag::Tag;

#[derive(Debug)]
pub(super) struct StrictCo {
    credit: Credit,
    /// Whose vCPU runs.
    on_cpu: Vec<bool>,
    /// Who was named and accepted, until its turn begins.
    target: Option<VgpuKey>,
}

impl StrictCo {
    pub(super) fn new(_setup: &Setup<'_>) -> Self {
        Self { credit: Credit::default(), on_cpu: Vec::new(), target: None }
    }

    fn consider(&mut self, vgpu: VgpuKey) {
        let runs = self.on_cpu.get(vgpu.index()).is_some_and(|on| *on);
        if runs && self.credit.is_awake(vgpu) && self.credit.has_most(vgpu) {
            self.target = Some(vgpu);
        }
    }

    fn forget(&mut self, vgpu: VgpuKey) {
        self.target = self.target.filter(|target| *target != vgpu);
    }
}

impl Policy for StrictCo {
    fn charges(&self) -> Charges {
        Charges::WallTime
    }

    fn coschedules(&self) -> bool {
        false
    }

    fn add(&mut self, vgpu: VgpuKey, _tenant: TenantKey, weight: Weight, _ahead: Tag) {
        if self.on_cpu.len() <= vgpu.index() {
            self.on_cpu.resize(vgpu.index() + 1, false);
        }
        self.credit.add(vgpu, weight);
    }

    fn remove(&mut self, vgpu: VgpuKey) {
        self.forget(vgpu);
        self.on_cpu[vgpu.index()] = false;
        self.credit.remove(vgpu);
    }

    fn reweight(&mut self, vgpu: VgpuKey, weight: Weight) {
        self.credit.reweight(vgpu, weight);
    }

    fn wake(&mut self, vgpu: VgpuKey) {
        self.credit.wake(vgpu);
        self.consider(vgpu);
    }

    fn sleep(&mut self, vgpu: VgpuKey) {
        self.forget(vgpu);
        self.credit.sleep(vgpu);
    }

    fn peek(&self) -> Option<VgpuKey> {
        self.target.or_else(|| self.credit.peek())
    }

    fn start(&mut self, vgpu: VgpuKey) {
        self.credit.start(vgpu);
        self.forget(vgpu);
    }

    fn stop(&mut self, vgpu: VgpuKey) {
        self.credit.stop(vgpu);
    }

    fn charge(&mut self, vgpu: VgpuKey, charge: Charge) {
        self.credit.burn(vgpu, charge.ns);
    }

    fn successor(&self, vgpu: VgpuKey, rest_ns: u64) -> Option<VgpuKey> {
        self.target.or_else(|| self.credit.successor(vgpu, rest_ns))
    }

    fn tick(&mut self, now_ns: u64) {
        self.credit.tick(now_ns);
    }

    fn on_cpu(&mut self, vgpu: VgpuKey, on: bool) {
        self.on_cpu[vgpu.index()] = on;
        self.consider(vgpu);
    }

    fn preempts(&self, vgpu: VgpuKey) -> bool {
        self.target.is_some_and(|target| target != vgpu)
    }
}

codec!(struct StrictCo { credit, on_cpu, target });
