//! How soon the work of user-facing vGPUs is done.

use std::collections::BTreeMap;

use weft_sched::{Class, Event, Node, SessionKey, VgpuKey};
use weft_turn::Decision;

use crate::admin::Attainment;

/// For each user-facing vGPU: what came of the times in which it had work.
///
/// A session that stands still for a move says that it has no work, and may have some: then the
/// answer is still to come.
#[derive(Debug, Default)]
pub(super) struct ResponseTimes {
    vgpus: BTreeMap<u32, Observed>,
    /// Sessions that were asked to stand still, since when in ns, until they go on.
    asked_ns: BTreeMap<u32, u64>,
    /// Those that stand still with work, and their vGPUs.
    standing: BTreeMap<u32, u32>,
}

#[derive(Debug, Default)]
struct Observed {
    /// Since when it has work, in ns.
    since_ns: Option<u64>,
    attainment: Attainment,
    last: Option<Answer>,
}

/// An answer that may turn out to be none.
#[derive(Debug, Clone, Copy)]
struct Answer {
    since_ns: u64,
    at_ns: u64,
    /// What was counted before it.
    before: Attainment,
}

impl ResponseTimes {
    /// A session was asked to stand still. Asked twice is asked once.
    pub(super) fn will_stand(&mut self, session: SessionKey, now_ns: u64) {
        self.asked_ns.entry(session.0).or_insert(now_ns);
    }

    /// A session stands still with work: what was taken for an answer since it was asked to is
    /// none.
    pub(super) fn stands(&mut self, node: &Node, session: SessionKey, now_ns: u64) {
        let Some(vgpu) = node.vgpu_of(session) else { return };
        if node.class(vgpu).and_then(Class::sla_ns).is_none() {
            return;
        }
        self.standing.insert(session.0, vgpu.0);
        let asked_ns = self.asked_ns.get(&session.0).copied().unwrap_or(now_ns);
        let observed = self.vgpus.entry(vgpu.0).or_default();
        if observed.since_ns.is_none() {
            let since_asked = observed.last.take_if(|answer| answer.at_ns >= asked_ns);
            if let Some(Answer { before, .. }) = since_asked {
                observed.attainment = before;
            }
            observed.since_ns = Some(since_asked.map_or(now_ns, |answer| answer.since_ns));
        }
    }

    /// The core was told something.
    pub(super) fn observe(&mut self, decision: &Decision<'_>) {
        let node = decision.node;
        match decision.event {
            Event::Runnable { session, .. } => {
                self.standing.remove(&session.0);
                self.asked_ns.remove(&session.0);
                self.look(node, session, decision.now_ns);
            }
            Event::Idle { session } => self.look(node, session, decision.now_ns),
            // One that died with work gets no answer.
            Event::RemoveSession { session } => {
                self.standing.remove(&session.0);
                self.asked_ns.remove(&session.0);
                for (vgpu, observed) in &mut self.vgpus {
                    let works = node.vgpu(VgpuKey(*vgpu)).is_some_and(|view| view.is_runnable);
                    if !works && !self.standing.values().any(|standing| standing == vgpu) {
                        observed.since_ns = None;
                    }
                }
            }
            Event::RemoveVgpu { vgpu } => {
                self.vgpus.remove(&vgpu.0);
                self.standing.retain(|_, standing| *standing != vgpu.0);
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
            | Event::SetTenantCap { .. }
            | Event::SetClass { .. }
            | Event::SetOwner { .. }
            | Event::MoveVgpu { .. }
            | Event::AddSession { .. }
            | Event::ReweightSession { .. }
            | Event::Used { .. }
            | Event::Released { .. }
            | Event::SyncCalls { .. }
            | Event::Pieces { .. }
            | Event::Switched { .. }
            | Event::Paged { .. }
            | Event::Prefer { .. }
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
        let stands = self.standing.values().any(|standing| *standing == vgpu.0);
        let observed = self.vgpus.entry(vgpu.0).or_default();
        if view.is_runnable {
            observed.since_ns.get_or_insert(now_ns);
        } else if let Some(since_ns) = observed.since_ns.take_if(|_| !stands) {
            let took_ns = now_ns.saturating_sub(since_ns);
            let before = observed.attainment;
            observed.last = Some(Answer { since_ns, at_ns: now_ns, before });
            observed.attainment = Attainment {
                count: before.count + 1,
                in_time: before.in_time + u64::from(took_ns <= sla_ns),
                longest_ns: before.longest_ns.max(took_ns),
            };
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, Attainment)> {
        self.vgpus.iter().map(|(vgpu, observed)| (*vgpu, observed.attainment))
    }
}

#[cfg(test)]
mod tests {
    use weft_sched::{Actions, Config, DeviceKey, TenantKey, Weight};

    use super::*;

    /// What happens in a test.
    enum Step {
        Told(Event),
        Asked(SessionKey),
        Stands(SessionKey),
    }

    const SESSION: SessionKey = SessionKey(0);
    const VGPU: VgpuKey = VgpuKey(0);

    fn play(events: &[(u64, Event)]) -> Vec<(u32, Attainment)> {
        let told = |(now_ns, event): &(u64, Event)| (*now_ns, Step::Told(*event));
        play_steps(&events.iter().map(told).collect::<Vec<_>>())
    }

    fn play_steps(steps: &[(u64, Step)]) -> Vec<(u32, Attainment)> {
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
        for (now_ns, step) in begin.map(|event| (0, Step::Told(event))).iter().chain(steps) {
            let (now_ns, event) = match step {
                Step::Told(event) => (*now_ns, *event),
                Step::Asked(session) => {
                    times.will_stand(*session, *now_ns);
                    continue;
                }
                Step::Stands(session) => {
                    times.stands(&node, *session, *now_ns);
                    continue;
                }
            };
            let result = node.handle(now_ns, event, &mut actions);
            let actions = actions.as_slice();
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

    /// Whether the pause is seen before or after its session says that it stands still with work.
    #[test]
    fn the_pause_of_a_move_is_no_answer() {
        let runnable = || Step::Told(Event::Runnable { session: SESSION, estimate_ns: 1 });
        let idle = || Step::Told(Event::Idle { session: SESSION });
        for orders in [
            [(1_030, idle()), (1_031, Step::Stands(SESSION))],
            [(1_030, Step::Stands(SESSION)), (1_031, idle())],
        ] {
            let mut steps = vec![
                (500, runnable()),
                (510, idle()),
                (1_000, runnable()),
                (1_020, Step::Asked(SESSION)),
            ];
            steps.extend(orders);
            steps.extend([(1_130, runnable()), (1_140, idle())]);
            let expected = Attainment { count: 2, in_time: 1, longest_ns: 140 };
            assert_eq!(play_steps(&steps), [(0, expected)]);
        }
    }

    #[test]
    fn who_was_done_when_it_was_moved_has_its_answer() {
        let runnable = || Step::Told(Event::Runnable { session: SESSION, estimate_ns: 1 });
        let idle = || Step::Told(Event::Idle { session: SESSION });
        let steps = [
            (1_000, runnable()),
            (1_010, Step::Asked(SESSION)),
            (1_020, idle()),
            (9_000, runnable()),
            (9_010, idle()),
        ];
        let expected = Attainment { count: 2, in_time: 2, longest_ns: 20 };
        assert_eq!(play_steps(&steps), [(0, expected)]);
    }
}
