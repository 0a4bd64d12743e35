//! `credit_poll`: a model of Credit scheduling whose tenants poll for replies without end (FairGV
//! §5.3). The device is shared as under `credit_hs`; what differs is how a tenant waits, which
//! [`PolicyId::tenants_poll`](crate::PolicyId::tenants_poll) tells a simulator.

use crate::journal::codec;
use crate::key::{TenantKey, VgpuKey, Weight};
use crate::policy::credit::Credit;
use crate::policy::{Charge, Charges, Policy, Setup};
use crate::tag::Tag;

#[derive(Debug)]
pub(super) struct CreditPoll {
    credit: Credit,
}

impl CreditPoll {
    pub(super) fn new(_setup: &Setup<'_>) -> Self {
        Self { credit: Credit::default() }
    }
}

impl Policy for CreditPoll {
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

codec!(struct CreditPoll { credit });
