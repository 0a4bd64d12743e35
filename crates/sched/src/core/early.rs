//! Turns that are given up early while others wait.

use crate::key::{SessionKey, VgpuKey};

use super::{Context, Core, TimerReason, to_signed};

impl Core {
    /// Charges a turn that its holder gave up early, `in_flight_ns` of its work still to come, for
    /// what nobody else could use of it, and the price of waste where it is most of what the tenant
    /// does; returns what the way to somebody else costs on top, in ns. Together it is at most a
    /// quantum: turns are charged no more than that and their last command's overrun, on which the
    /// lag bound stands.
    ///
    /// Turns whose time was over are charged device time and nothing else, which is what makes the
    /// lag bound exact; who gives up early has no command, so it bears the switch that it causes.
    pub(super) fn end_early(
        &mut self,
        cx: &mut Context<'_>,
        key: SessionKey,
        in_flight_ns: u64,
    ) -> u64 {
        let turn = *cx.tables.turn(key);
        if !turn.in_queue || turn.waited_for_ns == 0 || self.is_sliced() {
            return 0;
        }
        let &crate::Config { quantum_ns, switch_ns, .. } = cx.config;
        let wasted_ns = turn.wasted_ns(cx.now_ns, quantum_ns);
        // The device was written for its memory, too. That is charged to nobody in a turn that is
        // worth it; here it is the price of a turn that was not.
        let unused_ns = [turn.idled_ns, switch_ns, turn.switch_ns]
            .into_iter()
            .fold(wasted_ns, u64::saturating_add);
        let used_ns = turn.spent_ns.saturating_sub(turn.idled_ns).saturating_add(in_flight_ns);
        let vgpu = cx.tables.session(key).vgpu;
        let excess_ns = unused_ns.saturating_sub(used_ns);
        let surcharge_ns = cx.tables.waste(vgpu).surcharge_ns(cx.now_ns, excess_ns);
        let left_ns = quantum_ns.saturating_sub(turn.charged_ns);
        let charge_ns = wasted_ns.saturating_add(surcharge_ns).min(left_ns);
        self.charge(cx, key, to_signed(charge_ns), true);
        switch_ns.min(left_ns - charge_ns)
    }

    /// Has the successor be awake when the turn ends, at `end_ns` at the latest. Who wastes turns
    /// gives them up long before that, and the device would wait for whoever is woken only then:
    /// so its successor is told as the turn begins, and again in time, since who is told is awake
    /// for a moment only.
    pub(super) fn prepare_in_time(
        &mut self,
        cx: &mut Context<'_>,
        (holder, vgpu): (SessionKey, VgpuKey),
        end_ns: u64,
    ) {
        let prepare_ns = end_ns.saturating_sub(cx.config.prepare_lead_ns);
        if cx.now_ns < prepare_ns {
            self.arm(prepare_ns, TimerReason::Prepare);
            let awake_ns = cx.tables.turn(holder).start_ns.saturating_add(cx.config.yield_ns);
            if cx.now_ns >= awake_ns {
                self.prepared = None;
                return;
            }
            if !cx.tables.waste(vgpu).is_high(cx.now_ns) {
                return;
            }
            self.arm(awake_ns, TimerReason::Prepare);
        }
        let used_ns = cx.tables.session(holder).used_ns;
        let turn_used_ns = used_ns - cx.tables.turn(holder).used_at_start_ns;
        let rest_ns = cx.config.quantum_ns.saturating_sub(turn_used_ns);
        self.prepare_successor(cx, holder, rest_ns);
    }
}
