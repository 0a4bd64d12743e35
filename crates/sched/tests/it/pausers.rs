//! Several that give turns up early on a device that is written for each turn's memory, each in a
//! way of its own: what is left to one that works.

use std::collections::BTreeSet;

use crate::driver::{D, Driver, MS, US};
use weft_sched::{Cap, Class, Config, Event, SessionKey, TenantKey, Usage, VgpuKey, Weight};

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
    /// Always, with a cap that it has used up before its memory was worth bringing.
    Capped {
        share_ppm: u32,
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
    /// What the device was written for it.
    written_ns: u64,
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
    /// It is written when operations meet what they lack.
    met: bool,
    members: Vec<Member>,
    /// The turn that was seen last, and what its holder had used and idled when it began.
    turn: (u64, u64),
}

impl Device {
    fn new(switch_ns: u64, tenants: Tenants, works: &[Work]) -> Self {
        let borrow_ns = 20 * MS;
        let config =
            Config { slack_ns: 1_000 * MS, slack_switches: 16, borrow_ns, ..Config::default() };
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
            if let Work::Capped { share_ppm } = *work {
                let cap = Some(Cap { share_ppm, period_ns: 100 * MS });
                driver.tell(Event::SetCap { vgpu, cap });
            }
            members.push(Member {
                work: *work,
                used_ns: 0,
                idle_ns: 0,
                written_ns: 0,
                left_ns: 0,
                back_ns: Some(0),
                idle_since_ns: None,
            });
        }
        Self { driver, switch_ns, met: false, members, turn: (0, 0) }
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

    /// Lets so long pass.
    fn run(&mut self, ms: u64) {
        let mut last = None;
        while self.driver.now_ns < ms * MS {
            let Some(session) = self.driver.node.holders(D).first().copied() else {
                self.pass(10 * US);
                continue;
            };
            if last.replace(session) != Some(session) {
                self.switch(session);
            }
            self.hold(session);
        }
    }

    fn switch(&mut self, session: SessionKey) {
        let switch_ns = self.switch_ns;
        let member = &mut self.members[session.0 as usize];
        member.written_ns += switch_ns;
        if self.met {
            member.used_ns += switch_ns;
            self.driver.tell(Event::Paged { session, paged_ns: switch_ns });
        } else {
            self.driver.tell(Event::Switched { session, switch_ns, ahead_ns: 0 });
        }
        self.pass(switch_ns);
    }

    fn used_ns(&self, number: u32) -> u64 {
        self.members[number as usize].used_ns
    }
}

impl Member {
    fn begin_batch(&mut self) {
        self.back_ns = None;
        self.left_ns = match self.work {
            Work::Always | Work::Capped { .. } => u64::MAX,
            Work::Pausing { batch_ns, .. } => batch_ns,
        };
    }

    fn end_idling(&mut self, now_ns: u64) {
        if let Some(since_ns) = self.idle_since_ns.take() {
            self.idle_ns += now_ns - since_ns;
        }
    }
}

/// What one that always works has beside six of a kind, over what it has beside six like it.
fn kept(switch_ns: u64, tenants: Tenants, other: Work) -> f64 {
    let beside = |other| {
        let mut works = [other; 7];
        works[0] = Work::Always;
        let mut device = Device::new(switch_ns, tenants, &works);
        device.run(60_000);
        device.used_ns(0)
    };
    beside(other) as f64 / beside(Work::Always) as f64
}

fn pausing(pause_ns: u64) -> Work {
    Work::Pausing { batch_ns: 300 * US, pause_ns }
}

/// Where each turn begins with a switch, who pauses through its turn does not go on as long as one
/// that works, so it has more turns. It pays for their switches, also where another vGPU of its
/// tenant has work meanwhile: while they were nobody's service, 0.2 of its part was left to one
/// that works.
#[test]
fn those_who_pause_where_switches_are_dear_leave_others_their_part() {
    for tenants in [Tenants::One, Tenants::Each, Tenants::Pairs] {
        for pause_ns in [300 * US, 3 * MS, 7 * MS, 20 * MS] {
            let kept = kept(30 * MS, tenants, pausing(pause_ns));
            assert!(kept > 0.95, "{tenants:?}, pauses of {pause_ns} ns leave {kept:.3}");
        }
    }
}

/// What operations meet within a turn is the turn's own time, so it is paid for already.
#[test]
fn those_who_pause_after_what_they_met_leave_others_their_part() {
    let worked_beside = |other| {
        let mut works = [other; 7];
        works[0] = Work::Always;
        let mut device = Device::new(30 * MS, Tenants::Each, &works);
        device.met = true;
        device.run(60_000);
        device.used_ns(0) - device.members[0].written_ns
    };
    let kept = worked_beside(pausing(7 * MS)) as f64 / worked_beside(Work::Always) as f64;
    assert!(kept > 0.95, "{kept:.3}");
}

/// A cap may be as small as its owner likes. Whoever it holds back has work all the same when its
/// turn ends, and so paid for no switch: four of them were never all asleep, and nobody else had a
/// turn for minutes.
#[test]
fn those_whom_caps_hold_back_pay_for_their_switches() {
    for tenants in [Tenants::One, Tenants::Each, Tenants::Pairs] {
        for share_ppm in [1_000, 10_000, 50_000] {
            let kept = kept(30 * MS, tenants, Work::Capped { share_ppm });
            assert!(kept > 0.95, "{tenants:?}, caps of {share_ppm} ppm leave {kept:.3}");
        }
    }
}

/// Where a switch takes nothing, who pauses pays for the time that it keeps and for nothing else.
#[test]
fn those_who_pause_where_switches_are_cheap_leave_as_much() {
    for tenants in [Tenants::One, Tenants::Each, Tenants::Pairs] {
        let kept = kept(0, tenants, pausing(7 * MS));
        assert!(kept > 0.99, "{tenants:?}: {kept:.3}");
    }
}

/// They pay twice what switches took at most, their own and what it takes to write back what they
/// displaced; and who works through its turns pays for none.
#[test]
fn nobody_pays_for_more_than_two_switches_a_turn() {
    let mut works = [pausing(7 * MS); 7];
    works[0] = Work::Always;
    let mut device = Device::new(30 * MS, Tenants::Each, &works);
    device.run(60_000);
    let paid_ns = |vgpu| device.driver.node.vgpu(VgpuKey(vgpu)).unwrap().switches_ns;
    assert_eq!(paid_ns(0), 0);
    let all_ns: u64 = (1..7).map(paid_ns).sum();
    let written_ns: u64 = device.members.iter().map(|member| member.written_ns).sum();
    assert!(all_ns > written_ns / 2, "{all_ns} of {written_ns}");
    assert!(all_ns <= 2 * written_ns, "{all_ns} of {written_ns}");
}

/// A user-facing vGPU that always has work borrows no more than it may, and then others are before
/// it: it pays for the switches that it makes then, and they do not for those by which it comes
/// between.
#[test]
fn a_user_facing_one_that_always_works_leaves_others_their_part() {
    let mut device = Device::new(30 * MS, Tenants::Each, &[Work::Always; 2]);
    let class = Class::UserFacing { sla_ns: 100 * MS };
    device.driver.tell(Event::SetClass { vgpu: VgpuKey(1), class });
    device.run(60_000);
    let [batch_ns, own_ns] = [0, 1].map(|number| device.used_ns(number));
    assert!(batch_ns as f64 > 0.8 * own_ns as f64, "{batch_ns} of batch work beside {own_ns}");
    assert!(batch_ns + own_ns > 20_000 * MS, "{batch_ns} and {own_ns} ns of 60 s");
}
