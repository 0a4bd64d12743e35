//! What the core decides about vGPUs besides their turns: whom caps hold back, who is charged for
//! switches.

use super::{Model, Vgpu, vgpu_key};

impl Model {
    /// Who its cap holds back has no part to be compared.
    pub(super) fn observe_caps(&mut self) {
        for vgpu in 0..self.vgpus.len() {
            if self.is_capped(vgpu) {
                let throttled = self.is_throttled(vgpu);
                self.lag.set_throttled(vgpu_key(vgpu), throttled);
            }
        }
    }

    pub(super) fn is_capped(&self, vgpu: usize) -> bool {
        let Vgpu { tenant, cap, .. } = &self.vgpus[vgpu];
        cap.is_some() || self.tenants[*tenant].cap.is_some()
    }

    pub(super) fn is_throttled(&self, vgpu: usize) -> bool {
        self.is_capped(vgpu) && self.node.vgpu(vgpu_key(vgpu)).is_some_and(|view| view.is_throttled)
    }

    /// Who is charged for switches has had as much of the device.
    pub(super) fn observe_charges(&mut self) {
        for key in 0..self.vgpus.len() {
            let Some(view) = self.node.vgpu(vgpu_key(key)) else { continue };
            let before_ns = core::mem::replace(&mut self.vgpus[key].switches_ns, view.switches_ns);
            let result = self.lag.charged(vgpu_key(key), view.switches_ns - before_ns);
            if let (true, Err(lag)) = (self.check_fairness, result) {
                panic!("{lag} at {}, charged for switches", self.now);
            }
        }
    }
}
