//! Several that pause while they hold a device that is written for each turn's memory: what is left
//! to one that works.
#![expect(clippy::unwrap_used, reason = "a panic here is the test's report")]

mod driver;

use std::collections::BTreeSet;

use driver::{D, Driver, MS, US};
use weft_sched::{Config, Event, SessionKey, TenantKey, Usage, VgpuKey, Weight};

const STEP_NS: u64 = 100 * US;

/// What a program does.
#[derive(Clone, Copy)]
enum Work {
    Always,
    /// So much, and then nothing for so long.
    Pausing {
        batch_ns: u64,
        pause_ns: u64,
    },
}

/// Whose vGPUs compete.
#[derive(Clone, Copy, Debug)]
enum Tenants {
    /// One tenant's.
    One,
    /// Each is a tenant's of its own.
    Each,
    /// The first one is, the others are two tenants' each.
    Pairs,
}

/// A program, with its worker.
struct Member {
    work: Work,
    used_ns: u64,
    idle_ns: u64,
    /// What is left of its batch.
    left_ns: u64,
    /// When it has work again.
    back_ns: Option<u64>,
    /// Since when it has the device and nothing to do.
    idle_since_ns: Option<u64>,
}

/// A device that is written for so long for each turn that begins after somebody else's.
struct Device {
    driver: Driver,
    switch_ns: u64,
    members: Vec<Member>,
    /// The turn that was seen last, and what its holder had used and idled when it began.
    turn: (u64, u64),
}

impl Device {
    fn new(switch_ns: u64, tenants: Tenants, works: &[Work]) -> Self {
        let config = Config { slack_ns: 1_000 * MS, slack_switches: 16, ..Config::default() };
        let mut driver = Driver::new();
        driver.tell(Event::DeviceUp { device: D, config });
        let (mut members, mut known) = (Vec::new(), BTreeSet::new());
        for (number, work) in (0..).zip(works) {
            let (vgpu, session, weight) = (VgpuKey(number), SessionKey(number), Weight::ONE);
            let tenant = match tenants {
                Tenants::One => TenantKey::DEFAULT,
                Tenants::Each => TenantKey(number + 1),
                Tenants::Pairs => TenantKey(number.div_ceil(2) + 1),
            };
            if known.insert(tenant) && tenant != TenantKey::DEFAULT {
                driver.tell(Event::AddTenant { tenant, weight });
            }
            driver.tell(Event::AddVgpu { vgpu, tenant, device: D, weight });
            driver.tell(Event::AddSession { session, vgpu });
            members.push(Member {
                work: *work,
                used_ns: 0,
                idle_ns: 0,
                left_ns: 0,
                back_ns: Some(0),
                idle_since_ns: None,
            });
        }
        Self { driver, switch_ns, members, turn: (0, 0) }
    }

    /// Lets time pass, and whoever has work again say so.
    fn pass(&mut self, ns: u64) {
        self.driver.pass(ns);
        for (number, member) in (0..).zip(&mut self.members) {
            let is_back = member.back_ns.is_some_and(|at_ns| at_ns <= self.driver.now_ns);
            if is_back && member.idle_since_ns.is_none() {
                member.begin_batch();
                self.driver.tell(Event::Runnable { session: SessionKey(number), estimate_ns: 0 });
            }
        }
    }

    fn usage(&self, session: SessionKey) -> Usage {
        let member = &self.members[session.0 as usize];
        Usage { used_ns: member.used_ns, in_flight_ns: 0, idle_ns: member.idle_ns }
    }

    /// What the holder's worker does: it keeps its turn through pauses of up to its budget.
    fn hold(&mut self, session: SessionKey) {
        let member = &self.members[session.0 as usize];
        if self.turn.0 != self.driver.epoch {
            self.turn = (self.driver.epoch, member.used_ns + member.idle_ns);
        }
        self.pass(STEP_NS);
        let (now_ns, epoch) = (self.driver.now_ns, self.driver.epoch);
        let member = &mut self.members[session.0 as usize];
        if member.idle_since_ns.is_none() {
            member.used_ns += STEP_NS;
            member.left_ns = member.left_ns.saturating_sub(STEP_NS);
            if let (0, Work::Pausing { pause_ns, .. }) = (member.left_ns, member.work) {
                member.back_ns = Some(now_ns + pause_ns);
                member.idle_since_ns = Some(now_ns);
            }
        } else if member.back_ns.is_some_and(|at_ns| at_ns <= now_ns) {
            member.end_idling(now_ns);
            member.begin_batch();
        }
        let idling_ns = member.idle_since_ns.map_or(0, |since_ns| now_ns - since_ns);
        let spent_ns = member.used_ns + member.idle_ns + idling_ns - self.turn.1;
        let is_over = self.driver.revoked || spent_ns >= self.driver.budget_ns;
        let pauses = is_over && member.idle_since_ns.is_some();
        if pauses {
            member.end_idling(now_ns);
        }
        let usage = self.usage(session);
        self.driver.tell(Event::Used { session, usage });
        if pauses {
            self.driver.tell(Event::Idle { session });
        }
        if is_over {
            self.driver.tell(Event::Released { session, epoch, usage });
        }
    }

    /// What each has used after so long.
    fn run(mut self, ms: u64) -> Vec<u64> {
        let mut last = None;
        while self.driver.now_ns < ms * MS {
            let Some(session) = self.driver.node.holders(D).first().copied() else {
                self.pass(10 * US);
                continue;
            };
            if last.replace(session) != Some(session) {
                let switch_ns = self.switch_ns;
                self.driver.tell(Event::Switched { session, switch_ns, ahead_ns: 0 });
                self.pass(switch_ns);
            }
            self.hold(session);
        }
        self.members.iter().map(|member| member.used_ns).collect()
    }
}

impl Member {
    fn begin_batch(&mut self) {
        self.back_ns = None;
        self.left_ns = match self.work {
            Work::Always => u64::MAX,
            Work::Pausing { batch_ns, .. } => batch_ns,
        };
    }

    fn end_idling(&mut self, now_ns: u64) {
        if let Some(since_ns) = self.idle_since_ns.take() {
            self.idle_ns += now_ns - since_ns;
        }
    }
}

/// What one that always works has beside six that pause, over what it has beside six like it.
fn kept(switch_ns: u64, tenants: Tenants, pause_ns: u64) -> f64 {
    let pausing = Work::Pausing { batch_ns: 300 * US, pause_ns };
    let beside = |other| {
        let mut works = [other; 7];
        works[0] = Work::Always;
        Device::new(switch_ns, tenants, &works).run(60_000)[0]
    };
    beside(pausing) as f64 / beside(Work::Always) as f64
}

/// Where each turn begins with a switch, who pauses through its turn does not go on as long as one
/// that works, so it has more turns. It pays for their switches, also where another vGPU of its
/// tenant has work meanwhile: while they were nobody's service, 0.2 of its part was left to one
/// that works.
#[test]
fn those_who_pause_where_switches_are_dear_leave_others_their_part() {
    for tenants in [Tenants::One, Tenants::Each, Tenants::Pairs] {
        for pause_ns in [300 * US, 3 * MS, 7 * MS, 20 * MS] {
            let kept = kept(30 * MS, tenants, pause_ns);
            assert!(kept > 0.95, "{tenants:?}, pauses of {pause_ns} ns leave {kept:.3}");
        }
    }
}

/// Where a switch takes nothing, who pauses pays for the time that it keeps and for nothing else.
#[test]
fn those_who_pause_where_switches_are_cheap_leave_as_much() {
    for tenants in [Tenants::One, Tenants::Each, Tenants::Pairs] {
        let kept = kept(0, tenants, 7 * MS);
        assert!(kept > 0.99, "{tenants:?}: {kept:.3}");
    }
}
