//! A tenant that makes the device be written for its memory in each turn, and gives the turn up as
//! soon as that is done.

use crate::driver::{D, Driver, MS, US};
use weft_sched::{Class, Config, DeviceKey, Event, SessionKey, TenantKey, Usage, VgpuKey, Weight};

/// Has a command at any time.
const BUSY: SessionKey = SessionKey(0);
/// Has one short kernel, and then the next one.
const TINY: SessionKey = SessionKey(1);
const KERNEL_NS: u64 = 20 * US;

/// A device that executes what its holder has, and is written for [`TINY`] in each of its turns.
struct Device {
    driver: Driver,
    switch_ns: u64,
    /// Device time of each.
    used_ns: [u64; 2],
}

impl Device {
    fn new(weight: Weight, switch_ns: u64) -> Self {
        let (mut driver, config) = (Driver::new(), Config::default());
        let tenant = TenantKey::DEFAULT;
        driver.tell(Event::DeviceUp { device: D, config });
        for (session, weight) in [(BUSY, weight), (TINY, Weight::ONE)] {
            let vgpu = VgpuKey(session.0);
            let add = Event::AddVgpu { vgpu, tenant, device: D, weight };
            driver.tell(add);
            driver.tell(Event::AddSession { session, vgpu });
        }
        driver.tell(Event::Runnable { session: BUSY, estimate_ns: 0 });
        driver.tell(Event::Runnable { session: TINY, estimate_ns: 0 });
        Self { driver, switch_ns, used_ns: [0; 2] }
    }

    /// Nothing of a session comes for so long; asked to, its worker gives its turn up meanwhile.
    fn pause(&mut self, session: SessionKey, ns: u64) {
        let end_ns = self.driver.now_ns + ns;
        while self.driver.now_ns < end_ns {
            self.driver.pass(10 * US);
            if self.driver.revoked && self.driver.node.holders(D) == [session] {
                let (epoch, usage) = (self.driver.epoch, self.usage(session));
                self.driver.tell(Event::Released { session, epoch, usage });
            }
        }
        self.driver.tell(Event::Runnable { session, estimate_ns: 0 });
    }

    fn usage(&self, session: SessionKey) -> Usage {
        Usage { used_ns: self.used_ns[session.0 as usize], in_flight_ns: 0, idle_ns: 0 }
    }

    fn step(&mut self) {
        match self.driver.node.holders(D).first().copied() {
            Some(BUSY) => {
                self.driver.pass(100 * US);
                self.used_ns[0] += 100 * US;
                let (session, epoch, usage) = (BUSY, self.driver.epoch, self.usage(BUSY));
                self.driver.tell(match self.driver.revoked {
                    true => Event::Released { session, epoch, usage },
                    false => Event::Used { session, usage },
                });
            }
            Some(session) => {
                self.driver.tell(Event::Switched {
                    session,
                    switch_ns: self.switch_ns,
                    ahead_ns: 0,
                });
                self.driver.pass(self.switch_ns + KERNEL_NS);
                self.used_ns[1] += KERNEL_NS;
                self.driver.tell(Event::Idle { session });
                let (epoch, usage) = (self.driver.epoch, self.usage(session));
                self.driver.tell(Event::Released { session, epoch, usage });
                self.driver.pass(US);
                self.driver.tell(Event::Runnable { session, estimate_ns: 0 });
            }
            None => self.driver.pass(10 * US),
        }
    }
}

/// What the device is written for a tenant is no time of others' beyond its share: with a quarter
/// of the weight it has no more than a quarter, and what was cheap in the beginning.
#[test]
fn who_switches_and_gives_up_takes_no_more_than_its_share() {
    let mut device = Device::new(Weight::new(3).unwrap(), 5 * MS);
    while device.driver.now_ns < 4_000 * MS {
        device.step();
    }
    let [busy_ns, tiny_ns] = device.used_ns;
    let share = busy_ns as f64 / device.driver.now_ns as f64;
    assert!(share > 0.72, "the other one has {share:.3} of the device");
    assert!(tiny_ns > 100 * KERNEL_NS, "it gets on: {tiny_ns} ns");
}

/// Where nothing is written, nobody pays for it.
#[test]
fn who_gives_up_without_a_switch_leaves_the_device_to_the_other() {
    let mut device = Device::new(Weight::ONE, 0);
    while device.driver.now_ns < 1_000 * MS {
        device.step();
    }
    let share = device.used_ns[0] as f64 / device.driver.now_ns as f64;
    assert!(share > 0.9, "the other one has {share:.3} of the device");
}

/// Two that always have work, each of which needs all of the device's memory, before its turn or
/// where operations have `met` it: what both had in so many ms, how often the device went from one
/// to the other, and how far one was ahead at most.
fn both_busy(config: Config, switch_ns: u64, met: bool, ms: u64) -> ([u64; 2], u64, u64) {
    both_busy_with(config, switch_ns, met, 0, ms)
}

/// The same where each waits for its results, and pauses for so long after each ms of work.
fn both_busy_with(
    config: Config,
    switch_ns: u64,
    met: bool,
    pause_ns: u64,
    ms: u64,
) -> ([u64; 2], u64, u64) {
    let mut device = Device::new(Weight::ONE, switch_ns);
    let up = Event::DeviceUp { device: D, config };
    device.driver.tell(up);
    let (mut last, mut switches, mut ahead_ns) = (None, 0, 0);
    while device.driver.now_ns < ms * MS {
        let Some(session) = device.driver.node.holders(D).first().copied() else {
            device.driver.pass(10 * US);
            continue;
        };
        if last.replace(session) != Some(session) {
            switches += 1;
            device.driver.tell(match met {
                true => Event::Paged { session, paged_ns: switch_ns },
                false => Event::Switched { session, switch_ns, ahead_ns: 0 },
            });
            device.driver.pass(switch_ns);
        }
        device.driver.pass(100 * US);
        device.used_ns[session.0 as usize] += 100 * US;
        ahead_ns = ahead_ns.max(device.used_ns[0].abs_diff(device.used_ns[1]));
        let (epoch, usage) = (device.driver.epoch, device.usage(session));
        let pauses = pause_ns > 0 && device.used_ns[session.0 as usize].is_multiple_of(MS);
        if pauses {
            device.driver.tell(Event::Used { session, usage });
            device.driver.tell(Event::Idle { session });
        }
        device.driver.tell(match device.driver.revoked {
            true => Event::Released { session, epoch, usage },
            false => Event::Used { session, usage },
        });
        if pauses {
            device.pause(session, pause_ns);
        }
    }
    (device.used_ns, switches, ahead_ns)
}

/// Short turns that begin with long switches leave little for work. With a slack there are fewer,
/// as far as they are dear, and nobody is further ahead than it says.
#[test]
fn dear_switches_are_fewer_and_cheap_ones_are_not() {
    let slack_ns = 500 * MS;
    let slack = Config { slack_ns, slack_switches: 8, ..Config::default() };
    let (plain, plain_switches, _) = both_busy(Config::default(), 30 * MS, false, 20_000);
    let busy = |used: [u64; 2]| used[0] + used[1];
    for met in [false, true] {
        let (used, switches, ahead_ns) = both_busy(slack, 30 * MS, met, 20_000);
        assert!(plain_switches > 8 * switches, "{plain_switches} without it, {switches} with it");
        assert!(busy(plain) < 5_000 * MS && busy(used) > 17_000 * MS, "{plain:?}, {used:?}");
        assert!(ahead_ns <= slack_ns + 2 * slack.quantum_ns, "{ahead_ns}");
    }
    // Switches that take nothing are as many as without it.
    let (_, cheap, ahead_ns) = both_busy(slack, 0, false, 2_000);
    let (_, as_many, _) = both_busy(Config::default(), 0, false, 2_000);
    assert_eq!(cheap, as_many);
    assert!(ahead_ns <= 2 * slack.quantum_ns, "{ahead_ns}");
}

/// Who waits for each result has no work at the moment at which its turn ends, and goes on all the
/// same; so it does after a pause beyond the yield limit, for as long as its memory took, in the
/// turns that follow the one that began with it, too.
#[test]
fn who_pauses_goes_on_where_switches_are_dear() {
    let slack = Config { slack_ns: 500 * MS, slack_switches: 8, ..Config::default() };
    for pause_ns in [60 * US, 300 * US] {
        let (plain, plain_switches, _) =
            both_busy_with(Config::default(), 30 * MS, false, pause_ns, 20_000);
        let (used, switches, ahead_ns) = both_busy_with(slack, 30 * MS, false, pause_ns, 20_000);
        assert!(plain_switches > 5 * switches, "{plain_switches} without it, {switches} with it");
        assert!(used[0] + used[1] > 2 * (plain[0] + plain[1]), "{plain:?}, {used:?}");
        assert!(ahead_ns <= slack.slack_ns + 2 * slack.quantum_ns, "{ahead_ns}");
    }
}

/// Beside one that has work at any time: what that one has of the time where the other works for a
/// moment, pauses, and does so again, and the device is written at each change.
fn beside_pauses(config: Config, switch_ns: u64, work_ns: u64, pause_ns: u64) -> f64 {
    let mut device = Device::new(Weight::ONE, switch_ns);
    device.driver.tell(Event::DeviceUp { device: D, config });
    let (mut last, mut worked_ns, mut back_ns) = (None, 0, None);
    while device.driver.now_ns < 20_000 * MS {
        if back_ns.is_some_and(|at_ns| at_ns <= device.driver.now_ns) {
            back_ns = None;
            device.driver.tell(Event::Runnable { session: TINY, estimate_ns: 0 });
        }
        let Some(session) = device.driver.node.holders(D).first().copied() else {
            device.driver.pass(10 * US);
            continue;
        };
        if last.replace(session) != Some(session) {
            device.driver.tell(Event::Switched { session, switch_ns, ahead_ns: 0 });
            device.driver.pass(switch_ns);
        }
        let step_ns = if session == TINY { work_ns.min(100 * US) } else { 100 * US };
        if session == TINY && back_ns.is_some() {
            device.driver.pass(10 * US);
        } else {
            device.driver.pass(step_ns);
            device.used_ns[session.0 as usize] += step_ns;
            worked_ns += if session == TINY { step_ns } else { 0 };
        }
        let (epoch, usage) = (device.driver.epoch, device.usage(session));
        if session == TINY && back_ns.is_none() && worked_ns >= work_ns {
            (worked_ns, back_ns) = (0, Some(device.driver.now_ns + pause_ns));
            device.driver.tell(Event::Used { session, usage });
            device.driver.tell(Event::Idle { session });
            device.driver.tell(Event::Released { session, epoch, usage });
            continue;
        }
        device.driver.tell(match device.driver.revoked {
            true => Event::Released { session, epoch, usage },
            false => Event::Used { session, usage },
        });
    }
    device.used_ns[0] as f64 / device.driver.now_ns as f64
}

/// Longer turns are for those who work through them: nobody waits for one that gives its turns up.
#[test]
fn who_gives_turns_up_is_not_waited_for() {
    let slack = Config { slack_ns: 500 * MS, slack_switches: 8, ..Config::default() };
    for (work_ns, pause_ns) in [(20 * US, 5 * MS), (MS, 5 * MS), (7 * MS, 20 * MS)] {
        let share = beside_pauses(slack, 30 * MS, work_ns, pause_ns);
        assert!(share > 0.7, "{work_ns} ns and {pause_ns} ns leave the other one {share:.3}");
    }
}

/// A device on which [`TINY`] was granted a turn that began with a switch of 30 ms, while the other
/// one waited.
fn switched() -> Device {
    let config = Config { slack_ns: 500 * MS, ..Config::default() };
    let mut device = Device::new(Weight::ONE, 30 * MS);
    device.driver.tell(Event::DeviceUp { device: D, config });
    device.give_up(BUSY);
    assert_eq!(device.driver.node.holders(D), [TINY]);
    device.driver.tell(Event::Runnable { session: BUSY, estimate_ns: 0 });
    device.driver.tell(Event::Switched { session: TINY, switch_ns: 30 * MS, ahead_ns: 0 });
    device.driver.pass(30 * MS);
    device
}

impl Device {
    /// A session has used so much more.
    fn work(&mut self, session: SessionKey, ns: u64) {
        self.driver.pass(ns);
        self.used_ns[session.0 as usize] += ns;
        let usage = self.usage(session);
        self.driver.tell(Event::Used { session, usage });
    }

    /// A session has nothing to do, and gives its turn up.
    fn give_up(&mut self, session: SessionKey) {
        self.driver.tell(Event::Idle { session });
        let (epoch, usage) = (self.driver.epoch, self.usage(session));
        self.driver.tell(Event::Released { session, epoch, usage });
        self.driver.pass(MS);
    }

    /// What the vGPU of that number was charged for switches.
    fn paid_ns(&self, vgpu: u32) -> u64 {
        self.driver.node.vgpu(VgpuKey(vgpu)).unwrap().switches_ns
    }
}

/// Who has paid for its switches and comes back before anybody else had a turn brings nothing, and
/// pays no more for them.
#[test]
fn switches_are_paid_for_once() {
    let mut device = switched();
    device.work(TINY, KERNEL_NS);
    device.give_up(TINY);
    assert_eq!(device.driver.node.holders(D), [BUSY]);
    assert_eq!(device.paid_ns(TINY.0), 2 * 30 * MS - KERNEL_NS);
    device.give_up(BUSY);
    device.driver.tell(Event::Runnable { session: TINY, estimate_ns: 0 });
    device.driver.tell(Event::Runnable { session: BUSY, estimate_ns: 0 });
    device.work(TINY, KERNEL_NS);
    device.give_up(TINY);
    assert_eq!(device.paid_ns(TINY.0), 2 * 30 * MS - KERNEL_NS, "and no more");
}

/// Nobody pays where nobody waited.
#[test]
fn a_switch_that_nobody_waited_for_is_free() {
    let mut device = switched();
    device.work(TINY, 61 * MS);
    device.give_up(TINY);
    assert_eq!(device.paid_ns(TINY.0), 0, "its use was worth it");
    device.give_up(BUSY);
    for session in [TINY, BUSY] {
        device.driver.tell(Event::Runnable { session, estimate_ns: 0 });
        device.driver.tell(Event::Switched { session, switch_ns: 30 * MS, ahead_ns: 0 });
        device.driver.pass(30 * MS);
        device.give_up(session);
    }
    assert_eq!([device.paid_ns(TINY.0), device.paid_ns(BUSY.0)], [0, 0]);
}

/// A vGPU's sessions are one vGPU: what one of them uses is worth the switch of another, and one
/// that ends in the other's turn pays for nothing and takes no debt with it.
#[test]
fn sessions_of_a_vgpu_share_their_switches() {
    let other = SessionKey(2);
    for (second_ns, expected_ns) in [(20 * MS, 39 * MS), (70 * MS, 0)] {
        let mut device = switched();
        let vgpu = VgpuKey(TINY.0);
        device.driver.tell(Event::AddSession { session: other, vgpu });
        device.driver.tell(Event::Runnable { session: other, estimate_ns: 0 });
        device.work(TINY, MS);
        device.give_up(TINY);
        assert_eq!(device.driver.node.holders(D), [other], "the vGPU goes on");
        assert_eq!(device.paid_ns(TINY.0), 0);
        device.driver.tell(Event::RemoveSession { session: TINY });
        device.driver.pass(second_ns);
        let usage = Usage { used_ns: second_ns, in_flight_ns: 0, idle_ns: 0 };
        device.driver.tell(Event::Idle { session: other });
        let epoch = device.driver.epoch;
        device.driver.tell(Event::Released { session: other, epoch, usage });
        // It worked, so it is waited for.
        device.driver.pass(10 * MS);
        assert_eq!(device.driver.node.holders(D), [BUSY]);
        assert_eq!(device.paid_ns(TINY.0), expected_ns, "{second_ns}");
    }
}

/// A user-facing vGPU that comes between ends no turns of batch work: that goes on after it, with
/// what it owes.
#[test]
fn what_is_owed_for_switches_outlives_a_turn_that_comes_between() {
    let urgent = SessionKey(2);
    let vgpu = VgpuKey(2);
    let mut device = switched();
    let (tenant, weight) = (TenantKey::DEFAULT, Weight::ONE);
    device.driver.tell(Event::AddVgpu { vgpu, tenant, device: D, weight });
    device.driver.tell(Event::SetClass { vgpu, class: Class::UserFacing { sla_ns: MS } });
    device.driver.tell(Event::AddSession { session: urgent, vgpu });
    device.work(TINY, 7 * MS);
    device.driver.tell(Event::Runnable { session: urgent, estimate_ns: 0 });
    assert!(device.driver.revoked, "it is before who has the turn");
    let (epoch, usage) = (device.driver.epoch, device.usage(TINY));
    device.driver.tell(Event::Released { session: TINY, epoch, usage });
    assert_eq!(device.driver.node.holders(D), [urgent]);
    device.driver.pass(KERNEL_NS);
    device.driver.tell(Event::Idle { session: urgent });
    let usage = Usage { used_ns: KERNEL_NS, in_flight_ns: 0, idle_ns: 0 };
    let epoch = device.driver.epoch;
    device.driver.tell(Event::Released { session: urgent, epoch, usage });
    device.driver.pass(MS);
    assert_eq!(device.driver.node.holders(D), [TINY], "whose memory is there");
    assert_eq!(device.paid_ns(TINY.0), 0);
    device.give_up(TINY);
    assert_eq!(device.driver.node.holders(D), [BUSY]);
    assert_eq!(device.paid_ns(TINY.0), 2 * 30 * MS - 7 * MS);
}

/// Who dies in its turn owes as much.
#[test]
fn who_ends_pays_for_its_switches() {
    let mut device = switched();
    device.work(TINY, KERNEL_NS);
    device.driver.tell(Event::RemoveSession { session: TINY });
    assert_eq!(device.paid_ns(TINY.0), 2 * 30 * MS - KERNEL_NS);
}

/// A vGPU that is moved away and back owes what it owed.
#[test]
fn a_move_forgives_no_switch() {
    let config = Config { slack_ns: 500 * MS, ..Config::default() };
    let (vgpu, there) = (VgpuKey(TINY.0), DeviceKey(1));
    let mut device = switched();
    device.driver.tell(Event::DeviceUp { device: there, config });
    device.work(TINY, KERNEL_NS);
    device.driver.tell(Event::MoveVgpu { vgpu, device: there });
    device.driver.tell(Event::MoveVgpu { vgpu, device: D });
    let ahead_ns = device.driver.node.vgpu(vgpu).unwrap().ahead.to_ns();
    assert!(ahead_ns > u128::from(50 * MS), "{ahead_ns}");
}
