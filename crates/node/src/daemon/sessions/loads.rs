//! Modules that sessions compile: who pays for it, and what part of the allowances is its.

use std::cell::Cell;
use std::collections::BTreeMap;

use weft_ring::peer;

use super::Session;
use crate::config::ShareConfig;
use crate::daemon::compiling::{ALLOWANCE_NS, Compiler, Priority};
use crate::daemon::{Daemon, Tables, clock};
use crate::link::Reply;

impl Daemon {
    /// Returns when a session may compile a module of so many bytes, or its tenant is gone, or it
    /// has to save memory of the device before.
    pub(super) fn begin_load(&self, session: &Session, bytes: Option<u64>, stands: bool) -> Reply {
        let tenant = self.payer(session);
        let allowance_ns = part_ns(tenant, &self.weights(&self.tables()));
        let compiler = Compiler { tenant, session: session.key, allowance_ns };
        // The worker ends when its tenant does, also while it waits for this answer.
        let debt = Cell::new(None);
        let is_over = || {
            debt.set(if stands { self.debt_of(session) } else { None });
            debt.get().is_some() || peer::has_hung_up(&session.worker.link)
        };
        // One that does not stand still cannot save while it waits.
        if stands {
            self.note_waiting_to_compile(session);
        }
        let priority = self.loads.begin(compiler, bytes, clock::now_ns(), is_over);
        if let (None, Some(bytes)) = (priority, debt.get()) {
            return Reply::Save { bytes };
        }
        // It keeps its leave to compile meanwhile.
        if let Some(bytes) = self.note_compiling(session, stands) {
            return Reply::Save { bytes };
        }
        if priority == Some(Priority::Lowest) {
            session.worker.process.does(|doing| doing.compiles = true);
            // Where somebody executes all the time it would not come to it.
            if stands {
                self.devices.put_away(&session.worker.process);
            }
        }
        Reply::Done
    }

    /// A session has compiled its module.
    pub(super) fn end_load(&self, session: &Session, took_ns: Option<u64>) {
        let device = self.tables().sessions.get(&session.key).map(|entry| entry.device);
        if let Some(device) = device {
            self.devices.put_on(device, &session.worker.process);
        }
        session.worker.process.does(|doing| doing.compiles = false);
        self.loads.end(session.key, took_ns, clock::now_ns());
    }

    /// Who pays for a session's processor time: its tenant, or its vGPU where these compete.
    pub(in crate::daemon) fn payer(&self, session: &Session) -> u32 {
        match self.config.scheduling.share {
            ShareConfig::Vgpu => session.vgpu,
            ShareConfig::User => session.payer,
        }
    }

    /// The weights of those who compete and have sessions.
    pub(in crate::daemon) fn weights(&self, tables: &Tables) -> BTreeMap<u32, u32> {
        let registry = &tables.registry;
        let scheduling = &self.config.scheduling;
        let each = tables.sessions.values().map(|entry| match scheduling.share {
            ShareConfig::Vgpu => {
                (entry.vgpu, registry.by_key(entry.vgpu).map_or(1, |vgpu| vgpu.weight))
            }
            ShareConfig::User => {
                let set = registry.user_weight(entry.payer);
                (entry.payer, set.unwrap_or_else(|| scheduling.user_weight(entry.payer)))
            }
        });
        each.collect()
    }
}

/// A tenant's part of the allowances of all, by weight: one allowance where weights are equal.
fn part_ns(tenant: u32, weights: &BTreeMap<u32, u32>) -> u64 {
    let all: u64 = weights.values().map(|weight| u64::from(*weight)).sum();
    let own = weights.get(&tenant).copied().map_or(0, u64::from);
    let all_ns = u128::from(ALLOWANCE_NS) * weights.len() as u128;
    let part_ns = all_ns * u128::from(own) / u128::from(all.max(1));
    u64::try_from(part_ns).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allowances_follow_the_weights_and_their_sum_is_constant() {
        let part =
            |weights: &[(u32, u32)], tenant| part_ns(tenant, &weights.iter().copied().collect());
        assert_eq!(part(&[(7, 3)], 7), ALLOWANCE_NS);
        let weights = [(1, 1), (2, 2), (3, 3)];
        let parts = weights.map(|(tenant, _)| part(&weights, tenant));
        assert_eq!(parts, [ALLOWANCE_NS / 2, ALLOWANCE_NS, ALLOWANCE_NS * 3 / 2]);
        assert_eq!(part(&[(1, 10_000), (2, 1)], 2), 2 * ALLOWANCE_NS / 10_001);
        assert_eq!(part(&[], 1), 0, "who has no session compiles nothing");
    }
}
