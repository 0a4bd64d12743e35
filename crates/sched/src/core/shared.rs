//! Policies without turns: whoever has work is granted the device.

use alloc::vec::Vec;

use crate::action::{Action, UNLIMITED};
use crate::key::SessionKey;
use crate::turn::Turn;

use super::{Context, Core};

impl Core {
    /// Grants all that have work under a policy without turns; under another it does nothing.
    pub(super) fn grant_everybody(&mut self, cx: &mut Context<'_>) {
        if !self.policy.is_shared() {
            return;
        }
        for place in 0..self.holders.len() {
            self.rebudget(cx, self.holders[place], UNLIMITED);
        }
        let device = self.device;
        let keys: Vec<SessionKey> = cx
            .tables
            .vgpus
            .iter()
            .filter(|(_, v)| v.device == device)
            .flat_map(|(_, vgpu)| vgpu.sessions())
            .collect();
        for key in keys {
            self.grant_if_shared(cx, key);
        }
    }

    pub(super) fn grant_if_shared(&mut self, cx: &mut Context<'_>, key: SessionKey) {
        let session = cx.tables.session(key);
        let vgpu = session.vgpu;
        let wanted = session.runnable && session.turn.is_none();
        if !(wanted && self.up && self.policy.is_shared()) {
            return;
        }
        let (device, epoch, budget_ns) = (self.device, self.next_epoch, UNLIMITED);
        self.next_epoch += 1;
        let turn = Turn::new(cx.now_ns, epoch, budget_ns, cx.config.quantum_ns);
        self.begin_turn(cx, vgpu, key, turn);
        cx.out.push(Action::Grant { session: key, device, epoch, budget_ns });
    }
}
