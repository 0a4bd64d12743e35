//! One turn: a grant and what happened to it.

use crate::codec::codec;
use crate::config::Config;

/// A session's hold of a device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    pub(crate) epoch: u64,
    /// When the device was, or will be, free of the predecessor's work.
    pub(crate) start_ns: u64,
    pub(crate) budget_ns: u64,
    /// What a budget is while somebody else waits: a quantum less the session's own work that was
    /// in flight when the turn began.
    pub(crate) share_ns: u64,
    /// The session's `used` counter when the turn began.
    pub(crate) used_at_start_ns: u64,
    /// The policy knows of this turn: not so under a shared policy, nor after a change of policy.
    pub(crate) in_queue: bool,
    /// Its beginning was put off for so long, for the device's memory; 0 if it was not.
    pub(crate) switch_ns: u64,
    /// For how long its operations waited for memory that they met.
    pub(crate) paged_ns: u64,
    /// For how long its memory was written before it began.
    pub(crate) ahead_ns: u64,
    /// What it took in the turn before, if that was the vGPU's, too.
    pub(crate) kept_ns: u64,
    /// Where the session stands among the device's holders.
    pub(crate) place: usize,
    pub(crate) revoked_at_ns: Option<u64>,
    pub(crate) killed: bool,
    pub(crate) idle_since_ns: Option<u64>,
    /// Somebody else waits, as of the last decision.
    pub(crate) contended: bool,
    /// It was revoked because its holder had nothing to do.
    pub(crate) yielded: bool,
    /// Device time that it used and time that it held an idle device.
    pub(crate) spent_ns: u64,
    /// What of it was charged to the tags.
    pub(crate) charged_ns: u64,
    /// Time that it held an idle device while somebody else waited.
    pub(crate) idled_ns: u64,
    /// Wall time since its beginning while somebody else waited.
    pub(crate) waited_for_ns: u64,
    /// What of that nobody is charged for yet.
    uncharged_ns: u64,
    counted_to_ns: u64,
    contended_ns: u64,
    alone_ns: u64,
}

impl Turn {
    /// For how long its holder keeps it with nothing to do, in ns: for as long as its memory took,
    /// which would soon have to be brought again.
    pub(crate) fn grace_ns(&self, config: &Config) -> u64 {
        config.yield_ns.max(self.dear_ns().min(config.quantum_ns))
    }

    /// What the vGPU's memory took that the device has for it, in ns, in turns of its own before
    /// that nobody else's came between, too.
    pub(crate) fn dear_ns(&self) -> u64 {
        self.kept_ns.max(self.exchange_ns().saturating_add(self.ahead_ns))
    }

    /// An operation waited so long for memory that it met, in ns; of all that the turn counts at
    /// most `most_ns`.
    pub(crate) fn page(&mut self, ns: u64, most_ns: u64) {
        self.paged_ns = self.paged_ns.saturating_add(ns).min(most_ns);
    }

    /// What it took for the vGPU's memory that others had the device before, in ns.
    pub(crate) fn exchange_ns(&self) -> u64 {
        self.switch_ns.saturating_add(self.paged_ns)
    }

    /// A turn from now on; `share_ns` is its budget while somebody else waits.
    pub(crate) fn new(now_ns: u64, epoch: u64, budget_ns: u64, share_ns: u64) -> Self {
        Self {
            epoch,
            start_ns: now_ns,
            budget_ns,
            share_ns,
            used_at_start_ns: 0,
            in_queue: false,
            switch_ns: 0,
            paged_ns: 0,
            ahead_ns: 0,
            kept_ns: 0,
            place: 0,
            revoked_at_ns: None,
            killed: false,
            idle_since_ns: None,
            contended: false,
            yielded: false,
            spent_ns: 0,
            charged_ns: 0,
            idled_ns: 0,
            waited_for_ns: 0,
            uncharged_ns: 0,
            counted_to_ns: now_ns,
            contended_ns: 0,
            alone_ns: 0,
        }
    }

    pub(crate) fn set_contended(&mut self, now_ns: u64, contended: bool) {
        if self.contended != contended {
            self.count(now_ns);
            self.contended = contended;
        }
    }

    /// Wall time since the last call: (while somebody else waited, while nobody did).
    pub(crate) fn take_elapsed(&mut self, now_ns: u64) -> (u64, u64) {
        self.count(now_ns);
        self.waited_for_ns += self.contended_ns;
        (core::mem::take(&mut self.contended_ns), core::mem::take(&mut self.alone_ns))
    }

    /// Of an idle time that is told now, what others waited for: it is told when it is over, and
    /// reports meanwhile had some of the time in which others waited. Of the time since the last
    /// report somebody waited for `contended_ns`, and the device worked for `held_ns`.
    pub(crate) fn take_idle(&mut self, contended_ns: u64, held_ns: u64, idle_ns: u64) -> u64 {
        let uncharged_ns = self.uncharged_ns.saturating_add(contended_ns).saturating_sub(held_ns);
        let kept_ns = idle_ns.min(uncharged_ns);
        self.uncharged_ns = uncharged_ns - kept_ns;
        kept_ns
    }

    /// Whether the turn ended because its time was over, `in_flight_ns` still to come: not because
    /// its holder had nothing more to do, or died.
    pub(crate) fn is_spent(&self, in_flight_ns: u64) -> bool {
        /// The worker counts to its budget by predictions.
        const PART: u64 = 8;

        let spent_ns = self.spent_ns.saturating_add(in_flight_ns);
        let revoked = self.revoked_at_ns.is_some() && !self.yielded;
        revoked || spent_ns >= self.share_ns - self.share_ns / PART
    }

    /// Whether the device was used for most of the time that is charged for it.
    pub(crate) fn worked(&self) -> bool {
        self.idled_ns <= self.spent_ns / 2
    }

    /// By how much switches took longer, in ns, than the `used_ns` that the device was used for
    /// after them: this turn's, as far as others waited, and as much again for writing back what it
    /// displaced. What operations met is use. The same of the turns before it is `before_ns`: to
    /// that it adds where it `follows` them. Where somebody came between, who may have displaced
    /// what they brought, only the dearer one counts.
    pub(crate) fn unpaid_ns(&self, before_ns: u64, follows: bool, used_ns: u64) -> u64 {
        let switches_ns = self.switch_ns.min(self.waited_for_ns).saturating_mul(2);
        let owed_ns = match follows {
            true => before_ns.saturating_add(switches_ns),
            false => before_ns.max(switches_ns),
        };
        owed_ns.saturating_sub(used_ns)
    }

    /// What a turn that ended early kept the device from others without being charged for it, in
    /// ns: the way to its worker. At most what is left of a quantum, so that the lag bound needs no
    /// term for it.
    pub(crate) fn wasted_ns(&self, now_ns: u64, quantum_ns: u64) -> u64 {
        // Not before the predecessor's work had drained.
        let since_start_ns = now_ns.saturating_sub(self.start_ns);
        let kept_ns = self.waited_for_ns.min(since_start_ns);
        kept_ns.saturating_sub(self.charged_ns).min(quantum_ns.saturating_sub(self.charged_ns))
    }

    fn count(&mut self, now_ns: u64) {
        let elapsed_ns = now_ns.saturating_sub(self.counted_to_ns);
        self.counted_to_ns = now_ns;
        if self.contended {
            self.contended_ns += elapsed_ns;
        } else {
            self.alone_ns += elapsed_ns;
        }
    }
}

codec!(struct Turn {
    epoch, start_ns, budget_ns, share_ns, used_at_start_ns, in_queue, switch_ns, paged_ns, ahead_ns, kept_ns, place, revoked_at_ns, killed,
    idle_since_ns, contended, yielded, spent_ns, charged_ns, idled_ns, waited_for_ns, uncharged_ns, counted_to_ns, contended_ns, alone_ns,
});
