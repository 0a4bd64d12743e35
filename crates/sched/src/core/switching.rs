//! How much a vGPU may be ahead and go on, where it costs much to give the device to another.
//!
//! Turns that are short beside what a switch writes leave little for work: with memory that is
//! swapped, vGPUs that each need all of the device do nothing else. So σ follows what switches
//! take, what operations meet of it later in the turn included: [`Config::slack_switches`] times
//! their mean, and never more than [`Config::slack_ns`], which is what the lag bound has.

use super::{Context, Core};
use crate::codec::codec;
use crate::config::Config;
use crate::key::{SessionKey, VgpuKey};
use crate::turn::Turn;

/// Of a switch, this part enters the mean.
const PART: u64 = 4;

/// Less than this is no reason to let anybody wait, in ns.
const LEAST_NS: u64 = 1_000_000;

/// What switches between vGPUs took of late.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Switching {
    /// Whose turn was the last.
    last: Option<VgpuKey>,
    /// What that one's memory took, over turns that followed each other.
    dear_ns: u64,
    /// What its switches cost others and its use was not worth, over the same turns.
    unpaid_ns: u64,
    mean_ns: u64,
    slack_ns: u64,
}

codec!(struct Switching { last, dear_ns, unpaid_ns, mean_ns, slack_ns });

impl Switching {
    /// A turn of the vGPU is over in which its memory took so long. The slack from now on, in ns,
    /// if it is another one.
    pub(super) fn note(&mut self, config: &Config, vgpu: VgpuKey, switch_ns: u64) -> Option<u64> {
        // Who goes on finds its memory where it is, which says nothing of a switch.
        if self.last.replace(vgpu) == Some(vgpu) || config.slack_switches == 0 {
            return None;
        }
        self.mean_ns = self.mean_ns - self.mean_ns / PART + switch_ns / PART;
        let wanted_ns = self.mean_ns.saturating_mul(config.slack_switches);
        // In powers of two, so that it seldom changes.
        let slack_ns = wanted_ns.checked_next_power_of_two().unwrap_or(u64::MAX);
        let slack_ns = if wanted_ns < LEAST_NS { 0 } else { slack_ns.min(config.slack_ns) };
        (core::mem::replace(&mut self.slack_ns, slack_ns) != slack_ns).then_some(slack_ns)
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

    /// An operation of a session's turn waited so long for memory that it met.
    pub(crate) fn paged(&mut self, cx: &mut Context<'_>, key: SessionKey, paged_ns: u64) {
        if self.holders.contains(&key) {
            let turn = cx.tables.turn(key);
            turn.paged_ns = turn.paged_ns.saturating_add(paged_ns);
        }
    }

    /// Whether the last turn that is over was the vGPU's, too.
    pub(crate) fn follows(&self, vgpu: VgpuKey) -> bool {
        self.switching.last == Some(vgpu)
    }

    /// A turn of the vGPU begins: what it kept of the one before, in ns.
    pub(super) fn kept_ns(&self, vgpu: VgpuKey) -> u64 {
        if self.follows(vgpu) { self.switching.dear_ns } else { 0 }
    }

    /// What a vGPU is charged after its turn if it does not go on, in ns: its switches were for a
    /// use that was shorter than they, and its next turn begins with as much. By so much it is
    /// ahead when it has work again, for which the lag bound has the slack in force.
    pub(super) fn unpaid_ns(&self, config: &Config, vgpu: VgpuKey) -> u64 {
        let is_fixed = config.slack_switches == 0;
        let slack_ns = if is_fixed { config.slack_ns } else { self.switching.slack_ns };
        if self.follows(vgpu) { self.switching.unpaid_ns.min(slack_ns) } else { 0 }
    }

    /// A vGPU has paid for its switches, and not again if it comes back before another's turn.
    pub(super) fn settle_switches(&mut self, vgpu: VgpuKey) {
        if self.follows(vgpu) {
            self.switching.unpaid_ns = 0;
        }
    }

    /// A turn of the vGPU is over.
    pub(super) fn note_switch(&mut self, config: &Config, vgpu: VgpuKey, turn: &Turn) {
        let before_ns = if self.follows(vgpu) { self.switching.unpaid_ns } else { 0 };
        self.switching.unpaid_ns = turn.unpaid_ns(before_ns);
        self.switching.dear_ns = turn.dear_ns();
        if let Some(slack_ns) = self.switching.note(config, vgpu, turn.exchange_ns()) {
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

    /// After so many turns of two vGPUs, each beginning with such a switch.
    fn after(turns: u64, switch_ns: u64, switching: &mut Switching) -> u64 {
        for turn in 0..turns {
            switching.note(&config(8), if turn % 2 == 0 { A } else { B }, switch_ns);
        }
        switching.slack_ns
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
    fn who_goes_on_says_nothing_of_switches() {
        let mut switching = Switching::default();
        let slack_ns = after(40, 10 * MS, &mut switching);
        for _ in 0..100 {
            assert_eq!(switching.note(&config(8), B, 0), None);
        }
        assert_eq!(switching.slack_ns, slack_ns);
    }

    #[test]
    fn a_slack_that_is_always_there_does_not_change() {
        let mut switching = Switching::default();
        for turn in 0..100 {
            assert_eq!(switching.note(&config(0), VgpuKey(turn % 2), 10 * MS), None);
        }
    }
}
