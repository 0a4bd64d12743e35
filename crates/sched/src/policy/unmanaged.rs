//! `unmanaged`: no gate. Everybody is granted the device without a limit, and the device's own
//! first-come-first-served queue decides: the negative control of every fairness test.

use alloc::vec::Vec;

use crate::codec::{Codec, Malformed, Reader};
use crate::key::{TenantKey, VgpuKey, Weight};
use crate::policy::{Charge, Policy, Setup};
use crate::tag::Tag;

#[derive(Debug)]
pub(super) struct Unmanaged;

impl Unmanaged {
    pub(super) fn new(_setup: &Setup<'_>) -> Self {
        Self
    }
}

impl Policy for Unmanaged {
    fn is_shared(&self) -> bool {
        true
    }

    fn add(&mut self, _vgpu: VgpuKey, _tenant: TenantKey, _weight: Weight, _ahead: Tag) {}

    fn remove(&mut self, _vgpu: VgpuKey) {}

    fn reweight(&mut self, _vgpu: VgpuKey, _weight: Weight) {}

    fn wake(&mut self, _vgpu: VgpuKey) {}

    fn sleep(&mut self, _vgpu: VgpuKey) {}

    fn peek(&self) -> Option<VgpuKey> {
        None
    }

    fn start(&mut self, _vgpu: VgpuKey) {}

    fn stop(&mut self, _vgpu: VgpuKey) {}

    fn charge(&mut self, _vgpu: VgpuKey, _charge: Charge) {}

    fn successor(&self, _vgpu: VgpuKey, _rest_ns: u64) -> Option<VgpuKey> {
        None
    }
}

impl Codec for Unmanaged {
    fn put(&self, _out: &mut Vec<u8>) {}

    fn take(_input: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self)
    }
}
