//! `credit_hs`: a model of Credit scheduling whose tenants wait by hybrid spinning: they poll for a
//! time and then block (FairGV §5.3 and §3.2.2), as Weft's tenants do.

use crate::codec::codec;
use crate::key::{TenantKey, VgpuKey, Weight};
use crate::policy::credit::Credit;
use crate::policy::{Charge, Charges, Policy, Setup};
use crate::tag::Tag;

#[derive(Debug)]
pub(super) struct CreditHs {
    credit: Credit,
}

impl CreditHs {
    pub(super) fn new(_setup: &Setup<'_>) -> Self {
        Self { credit: Credit::default() }
    }
}

impl Policy for CreditHs {
    fn charges(&self) -> Charges {
        Charges::WallTime
    }

    fn coschedules(&self) -> bool {
        false
    }

    fn add(&mut self, vgpu: VgpuKey, _tenant: TenantKey, weight: Weight, _ahead: Tag) {
        self.credit.add(vgpu, weight);
    }

    fn remove(&mut self, vgpu: VgpuKey) {
        self.credit.remove(vgpu);
    }

    fn reweight(&mut self, vgpu: VgpuKey, weight: Weight) {
        self.credit.reweight(vgpu, weight);
    }

    fn wake(&mut self, vgpu: VgpuKey) {
        self.credit.wake(vgpu);
    }

    fn sleep(&mut self, vgpu: VgpuKey) {
        self.credit.sleep(vgpu);
    }

    fn peek(&self) -> Option<VgpuKey> {
        self.credit.peek()
    }

    fn start(&mut self, vgpu: VgpuKey) {
        self.credit.start(vgpu);
    }

    fn stop(&mut self, vgpu: VgpuKey) {
        self.credit.stop(vgpu);
    }

    fn charge(&mut self, vgpu: VgpuKey, charge: Charge) {
        self.credit.burn(vgpu, charge.ns);
    }

    fn successor(&self, vgpu: VgpuKey, rest_ns: u64) -> Option<VgpuKey> {
        self.credit.successor(vgpu, rest_ns)
    }

    fn tick(&mut self, now_ns: u64) {
        self.credit.tick(now_ns);
    }
}

codec!(struct CreditHs { credit });
