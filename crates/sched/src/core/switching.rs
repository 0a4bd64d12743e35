//! How much a vGPU may be ahead and go on, where it costs much to give the device to another.
//!
//! Turns that are short beside what a switch writes leave little for work: with memory that is
//! swapped, vGPUs that each need all of the device do nothing else. So σ follows what switches
//! take, what operations meet of it later in the turn included: [`Config::slack_switches`] times
//! their mean, and never more than [`Config::slack_ns`], which is what the lag bound has.
//!
//! What switches take is nobody's service, as long as they are worth it. Whose turns end before it
//! has used the device for as long as its switches took, and as long again for writing back what
//! they displaced, is charged the rest when somebody else's turn begins.

use super::{Context, Core, to_signed};
use crate::codec::codec;
use crate::config::Config;
use crate::key::{SessionKey, VgpuKey};
use crate::policy::Charge;
use crate::turn::Turn;

/// Of a switch, this part enters the mean.
const PART: u64 = 4;

/// Less than this is no reason to let anybody wait, in ns.
const LEAST_NS: u64 = 1_000_000;

/// Turns of a vGPU that no other one's of its class came between.
#[derive(Clone, Copy, Debug, Default)]
struct Run {
    vgpu: Option<VgpuKey>,
    /// What its memory took, which the device has for it.
    dear_ns: u64,
    /// What its switches cost others and its use was not worth.
    unpaid_ns: u64,
}

codec!(struct Run { vgpu, dear_ns, unpaid_ns });

/// What switches between vGPUs took of late.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Switching {
    batch: Run,
    /// User-facing vGPUs' turns come between those of a run of batch work, which goes on then.
    urgent: Run,
    /// Whose turn was the last.
    last: Option<VgpuKey>,
    mean_ns: u64,
    slack_ns: u64,
}

codec!(struct Switching { batch, urgent, last, mean_ns, slack_ns });

impl Switching {
    fn run_of(&self, vgpu: VgpuKey) -> Option<&Run> {
        [&self.batch, &self.urgent].into_iter().find(|run| run.vgpu == Some(vgpu))
    }

    /// Ends the runs that are over; whether one is user-facing vGPUs' is the second argument.
    fn end(&mut self, is_over: impl Fn(&Run, bool) -> bool) -> [Run; 2] {
        let end = |run: &mut Run, is_urgent| match is_over(run, is_urgent) {
            true => core::mem::take(run),
            false => Run::default(),
        };
        [end(&mut self.batch, false), end(&mut self.urgent, true)]
    }

    /// A turn of the vGPU is over. The slack from now on, in ns, if it is another one.
    fn note(
        &mut self,
        config: &Config,
        vgpu: VgpuKey,
        is_urgent: bool,
        turn: &Turn,
        used_ns: u64,
    ) -> Option<u64> {
        let run = if is_urgent { &mut self.urgent } else { &mut self.batch };
        let goes_on = run.vgpu == Some(vgpu);
        let before_ns = if goes_on { run.unpaid_ns } else { 0 };
        let follows = self.last.replace(vgpu) == Some(vgpu);
        let unpaid_ns = turn.unpaid_ns(before_ns, follows, used_ns);
        *run = Run { vgpu: Some(vgpu), dear_ns: turn.dear_ns(), unpaid_ns };
        // Who goes on finds its memory where it is, which says nothing of a switch; nor does a turn
        // that comes between and brings nothing: many short ones would make dear switches cheap.
        let is_switch = !follows && (turn.exchange_ns() > 0 || !(goes_on || is_urgent));
        // One that used the device for little says little of how dear the others are.
        let quantum_ns = config.quantum_ns.max(1);
        let counts_ns = if turn.exchange_ns() > 0 { quantum_ns } else { used_ns.min(quantum_ns) };
        let forgets = u128::from(self.mean_ns / PART) * u128::from(counts_ns);
        // No more than the mean, which fits.
        let forgets_ns = u64::try_from(forgets / u128::from(quantum_ns)).unwrap_or(0);
        if is_switch { self.count(config, forgets_ns, turn.exchange_ns()) } else { None }
    }

    fn count(&mut self, config: &Config, forgets_ns: u64, switch_ns: u64) -> Option<u64> {
        if config.slack_switches == 0 {
            return None;
        }
        self.mean_ns = self.mean_ns - forgets_ns + switch_ns / PART;
        let wanted_ns = self.mean_ns.saturating_mul(config.slack_switches);
        // In powers of two, so that it seldom changes.
        let slack_ns = wanted_ns.checked_next_power_of_two().unwrap_or(u64::MAX);
        let slack_ns = if wanted_ns < LEAST_NS { 0 } else { slack_ns.min(config.slack_ns) };
        (core::mem::replace(&mut self.slack_ns, slack_ns) != slack_ns).then_some(slack_ns)
    }

    /// σ in force, in ns.
    fn slack_ns(&self, config: &Config) -> u64 {
        if config.slack_switches == 0 { config.slack_ns } else { self.slack_ns }
    }
}

impl Core {
    /// The device is written for so long in a session's turn: the turn begins when that is over.
    /// Once in a turn, and at most what a holder may be overdue: what a session makes the device
    /// lack within its turn is the turn's own time.
    pub(crate) fn switched(
        &mut self,
        cx: &mut Context<'_>,
        key: SessionKey,
        switch_ns: u64,
        ahead_ns: u64,
    ) {
        if !self.holders.contains(&key) {
            return;
        }
        let switch_ns = switch_ns.min(cx.config.overdue_ns);
        let turn = cx.tables.turn(key);
        turn.ahead_ns = turn.ahead_ns.saturating_add(ahead_ns);
        if turn.in_queue && turn.revoked_at_ns.is_none() && turn.switch_ns == 0 {
            turn.start_ns = turn.start_ns.saturating_add(switch_ns);
            turn.switch_ns = switch_ns;
        }
    }

    /// An operation of a session's turn waited so long for memory that it met. All of a turn's
    /// count up to what a switch may take: one kernel that goes through its memory for an hour says
    /// no more of how dear switches are.
    pub(crate) fn paged(&mut self, cx: &mut Context<'_>, key: SessionKey, paged_ns: u64) {
        if self.holders.contains(&key) {
            let most_ns = cx.config.overdue_ns;
            cx.tables.turn(key).page(paged_ns, most_ns);
        }
    }

    /// Whether the vGPU's last turn was the device's last, too, but for turns of user-facing vGPUs
    /// if it is none.
    pub(crate) fn follows(&self, vgpu: VgpuKey) -> bool {
        self.switching.run_of(vgpu).is_some()
    }

    /// A turn of the vGPU begins: what it kept of the one before, in ns.
    pub(super) fn kept_ns(&self, vgpu: VgpuKey) -> u64 {
        self.switching.run_of(vgpu).map_or(0, |run| run.dear_ns)
    }

    /// σ in force, in ns.
    pub(super) fn slack_in_force_ns(&self, config: &Config) -> u64 {
        self.switching.slack_ns(config)
    }

    /// A turn of the vGPU begins. Whose turns are over with that pays for its switches, whatever
    /// ended them: that it had nothing more to do, its cap, its death.
    pub(super) fn end_runs(&mut self, cx: &mut Context<'_>, next: VgpuKey) {
        let comes_between = self.comes_between(cx, next);
        let ended = self.switching.end(|run, is_urgent| match comes_between {
            true => is_urgent && run.vgpu != Some(next),
            // After a turn of batch work a user-facing one's memory need not be there.
            false => is_urgent || run.vgpu != Some(next),
        });
        ended.iter().for_each(|run| self.pay_for_switches(cx, run));
    }

    /// A class changes: which turns come between, too. All runs are over.
    pub(super) fn end_all_runs(&mut self, cx: &mut Context<'_>) {
        let ended = self.switching.end(|_, _| true);
        ended.iter().for_each(|run| self.pay_for_switches(cx, run));
    }

    /// A vGPU has no turn on this device again, or not soon.
    pub(super) fn end_runs_of(&mut self, cx: &mut Context<'_>, vgpu: VgpuKey) {
        let ended = self.switching.end(|run, _| run.vgpu == Some(vgpu));
        ended.iter().for_each(|run| self.pay_for_switches(cx, run));
    }

    /// Its switches were for a use that was shorter than they, and others waited for them. The
    /// lag bound has σ, and whoever went on has used it up: by no more is it ahead afterwards.
    fn pay_for_switches(&mut self, cx: &mut Context<'_>, run: &Run) {
        let Some(key) = run.vgpu.filter(|_| run.unpaid_ns > 0) else { return };
        let vgpu = cx.tables.vgpu(key);
        let (tenant, weight) = (vgpu.tenant, vgpu.weight);
        let ahead_ns = self.policy.ahead(key).to_service_ns(weight);
        let tenant_ahead = self.policy.tenant_ahead(tenant);
        let tenant_ahead_ns = tenant_ahead.to_service_ns(cx.tables.tenant(tenant).weight);
        let slack_ns = self.slack_in_force_ns(cx.config);
        let left_ns = slack_ns.saturating_sub(ahead_ns.max(tenant_ahead_ns));
        let ns = run.unpaid_ns.min(left_ns);
        if ns > 0 {
            let vgpu = cx.tables.vgpu(key);
            vgpu.held_ns = vgpu.held_ns.saturating_add(ns);
            vgpu.rest.switches_ns = vgpu.rest.switches_ns.saturating_add(ns);
            if !self.is_sliced() {
                self.policy.charge(key, Charge { ns: to_signed(ns), settled: false });
            }
        }
    }

    fn comes_between(&self, cx: &mut Context<'_>, vgpu: VgpuKey) -> bool {
        // Mostly nobody is, and what is known of the class is in no cache.
        self.expects_user_facing(0) && cx.tables.vgpu(vgpu).rest.class.is_user_facing()
    }

    /// A turn of the vGPU is over, in which it used the device for so long.
    pub(super) fn note_switch(
        &mut self,
        cx: &mut Context<'_>,
        vgpu: VgpuKey,
        turn: &Turn,
        used_ns: u64,
    ) {
        let is_urgent = self.comes_between(cx, vgpu);
        if let Some(slack_ns) = self.switching.note(cx.config, vgpu, is_urgent, turn, used_ns) {
            self.policy.set_slack(slack_ns);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: VgpuKey = VgpuKey(1);
    const B: VgpuKey = VgpuKey(2);
    const MS: u64 = 1_000_000;

    fn config(slack_switches: u64) -> Config {
        Config { slack_ns: 500 * MS, slack_switches, ..Config::default() }
    }

    fn turn_of(switch_ns: u64) -> Turn {
        let mut turn = Turn::new(0, 1, 0, 0);
        turn.switch_ns = switch_ns;
        turn
    }

    /// After so many turns of two vGPUs by turns, each of which brings memory and uses the device
    /// for so long, in ns.
    fn turns(switching: &mut Switching, vgpus: [VgpuKey; 2], turns: usize, ns: (u64, u64)) -> u64 {
        for vgpu in vgpus.iter().cycle().take(turns) {
            switching.end(|run, _| run.vgpu != Some(*vgpu));
            switching.note(&config(8), *vgpu, false, &turn_of(ns.0), ns.1);
        }
        switching.slack_ns
    }

    /// The same of turns that use a quantum each.
    fn after(count: usize, switch_ns: u64, switching: &mut Switching) -> u64 {
        turns(switching, [A, B], count, (switch_ns, config(8).quantum_ns))
    }

    #[test]
    fn dear_switches_are_fewer_up_to_the_limit_and_cheap_ones_are_as_they_were() {
        let mut switching = Switching::default();
        assert_eq!(after(40, 0, &mut switching), 0);
        // Eight times as long, or up to twice that.
        let slack_ns = after(40, 10 * MS, &mut switching);
        assert!((79 * MS..160 * MS).contains(&slack_ns), "{slack_ns}");
        assert_eq!(after(40, 1_000 * MS, &mut switching), 500 * MS);
        assert_eq!(after(80, 0, &mut switching), 0, "what was dear is forgotten");
    }

    #[test]
    fn what_operations_meet_counts_up_to_a_limit() {
        let mut turn = turn_of(MS);
        turn.page(MS, 5 * MS);
        assert_eq!(turn.exchange_ns(), 2 * MS);
        (0..100).for_each(|_| turn.page(3 * MS, 5 * MS));
        assert_eq!(turn.exchange_ns(), 6 * MS);
        turn.page(u64::MAX, 5 * MS);
        assert_eq!(turn.exchange_ns(), 6 * MS);
    }

    #[test]
    fn who_goes_on_says_nothing_of_switches() {
        let mut switching = Switching::default();
        let slack_ns = after(40, 10 * MS, &mut switching);
        for _ in 0..100 {
            assert_eq!(switching.note(&config(8), B, false, &turn_of(0), 0), None);
        }
        assert_eq!(switching.slack_ns, slack_ns);
    }

    #[test]
    fn turns_that_come_between_and_bring_nothing_make_no_switch_cheap() {
        let mut switching = Switching::default();
        let slack_ns = after(40, 10 * MS, &mut switching);
        for turn in 0..100 {
            let vgpu = VgpuKey(3 + turn % 2);
            assert_eq!(switching.note(&config(8), vgpu, true, &turn_of(0), 0), None);
        }
        assert_eq!(switching.slack_ns, slack_ns);
    }

    /// Two of one user's, whose memory fits, with kernels of some microseconds.
    #[test]
    fn short_turns_make_no_switch_cheap() {
        let mut switching = Switching::default();
        let slack_ns = after(40, 10 * MS, &mut switching);
        let mut short = |count| turns(&mut switching, [VgpuKey(3), VgpuKey(4)], count, (0, 50_000));
        assert_eq!(short(24), slack_ns);
        assert_eq!(short(10_000), 0, "for half a second nobody had a dear one");
    }

    #[test]
    fn a_slack_that_is_always_there_does_not_change() {
        let mut switching = Switching::default();
        for turn in 0..100 {
            let turn_of = turn_of(10 * MS);
            assert_eq!(switching.note(&config(0), VgpuKey(turn % 2), false, &turn_of, 0), None);
        }
    }
}
