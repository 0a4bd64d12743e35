//! How soon the work of user-facing vGPUs is done.

use std::collections::BTreeMap;

use weft_sched::{Class, Event, Node, SessionKey, VgpuKey};
use weft_turn::Decision;

use crate::admin::Attainment;

/// For each user-facing vGPU: what came of the times in which it had work.
#[derive(Debug, Default)]
pub(super) struct ResponseTimes(BTreeMap<u32, Observed>);

#[derive(Debug, Default)]
struct Observed {
    /// Since when it has work, in ns.
    since_ns: Option<u64>,
    attainment: Attainment,
}

impl ResponseTimes {
    /// The core was told something.
    pub(super) fn observe(&mut self, decision: &Decision<'_>) {
        let node = decision.node;
        match decision.event {
            Event::Runnable { session, .. } | Event::Idle { session } => {
                self.look(node, session, decision.now_ns);
            }
            // One that died with work gets no answer.
            Event::RemoveSession { .. } => {
                for (vgpu, observed) in &mut self.0 {
                    if node.vgpu(VgpuKey(*vgpu)).is_none_or(|view| !view.is_runnable) {
                        observed.since_ns = None;
                    }
                }
            }
            Event::RemoveVgpu { vgpu } => {
                self.0.remove(&vgpu.0);
            }
            Event::Timer
            | Event::DeviceUp { .. }
            | Event::DeviceDown { .. }
            | Event::AddTenant { .. }
            | Event::RemoveTenant { .. }
            | Event::ReweightTenant { .. }
            | Event::AddVgpu { .. }
            | Event::Reweight { .. }
            | Event::SetCap { .. }
            | Event::SetClass { .. }
            | Event::MoveVgpu { .. }
            | Event::AddSession { .. }
            | Event::ReweightSession { .. }
            | Event::Used { .. }
            | Event::Released { .. }
            | Event::SyncCalls { .. }
            | Event::Pieces { .. }
            | Event::Switched { .. }
            | Event::OnCpu { .. }
            | Event::Adopt { .. }
            | Event::SetPolicy { .. } => {}
        }
    }

    fn look(&mut self, node: &Node, session: SessionKey, now_ns: u64) {
        let Some(vgpu) = node.vgpu_of(session) else { return };
        // Most vGPUs are batch, and this is asked at each of their turns.
        let Some(sla_ns) = node.class(vgpu).and_then(Class::sla_ns) else { return };
        let Some(view) = node.vgpu(vgpu) else { return };
        let Observed { since_ns, attainment } = self.0.entry(vgpu.0).or_default();
        if view.is_runnable {
            since_ns.get_or_insert(now_ns);
        } else if let Some(since_ns) = since_ns.take() {
            let took_ns = now_ns.saturating_sub(since_ns);
            attainment.count += 1;
            attainment.in_time += u64::from(took_ns <= sla_ns);
            attainment.longest_ns = attainment.longest_ns.max(took_ns);
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, Attainment)> {
        self.0.iter().map(|(vgpu, observed)| (*vgpu, observed.attainment))
    }
}

#[cfg(test)]
mod tests {
    use weft_sched::{Actions, Config, DeviceKey, TenantKey, Weight};

    use super::*;

    const SESSION: SessionKey = SessionKey(0);
    const VGPU: VgpuKey = VgpuKey(0);

    fn play(events: &[(u64, Event)]) -> Vec<(u32, Attainment)> {
        let (mut node, mut actions) = (Node::new(), Actions::new());
        let mut times = ResponseTimes::default();
        let (device, tenant, weight) = (DeviceKey(0), TenantKey::DEFAULT, Weight::ONE);
        let begin = [
            Event::DeviceUp { device, config: Config::default() },
            Event::AddVgpu { vgpu: VGPU, tenant, device, weight },
            Event::SetClass { vgpu: VGPU, class: Class::UserFacing { sla_ns: 100 } },
            Event::AddSession { session: SESSION, vgpu: VGPU },
            Event::AddSession { session: SessionKey(1), vgpu: VGPU },
        ];
        for (now_ns, event) in begin.map(|event| (0, event)).iter().chain(events) {
            let result = node.handle(*now_ns, *event, &mut actions);
            let (now_ns, event, actions) = (*now_ns, *event, actions.as_slice());
            times.observe(&Decision { node: &node, now_ns, event, result, actions });
        }
        times.iter().collect()
    }

    #[test]
    fn an_answer_lasts_until_no_session_has_work() {
        let one = |session| Event::Runnable { session, estimate_ns: 1 };
        let idle = |session| Event::Idle { session };
        let other = SessionKey(1);
        let attainment = play(&[
            (1_000, one(SESSION)),
            (1_040, one(other)),
            (1_050, idle(SESSION)),
            (1_090, idle(other)),
            (2_000, one(SESSION)),
            (2_101, idle(SESSION)),
        ]);
        let expected = Attainment { count: 2, in_time: 1, longest_ns: 101 };
        assert_eq!(attainment, [(0, expected)]);
    }

    #[test]
    fn who_dies_with_work_has_no_answer() {
        let runnable = |session| Event::Runnable { session, estimate_ns: 1 };
        let (other, dies) = (SessionKey(1), Event::RemoveSession { session: SESSION });
        let attainment = play(&[
            (1_000, runnable(SESSION)),
            (1_010, dies),
            (5_000, runnable(other)),
            (5_010, Event::Idle { session: other }),
        ]);
        assert_eq!(attainment, [(0, Attainment { count: 1, in_time: 1, longest_ns: 10 })]);
    }
}
